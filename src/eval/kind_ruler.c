/* The prompts of a length are drawn from the seed, the length and the sample alone. A continuation
 * ends where all answers stand in it: more text would change no score.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"

#include <string.h>

const dq_ruler_set *dq_ruler_set_of(const dq_eval *e, const dq_eval_row *row)
{
    return e->ids[row->ids].own;
}

const double *dq_ruler_unit(const dq_eval_row *row, int64_t unit)
{
    return row->extra + unit * DQ_RULER_EXTRA;
}

static dq_status load(dq_eval *e, dq_eval_source *source, dq_err *err)
{
    dq_ruler_text *t = dq_alloc(e->a, 1, sizeof *t, err);
    if (!t) return err->code;
    source->own = t;
    if (dq_ruler_text_read(t, source->text, source->len, e->a, err) != DQ_OK)
        return dq_in(err, "%s: ", source->path);
    return DQ_OK;
}

static dq_status choose_lengths(dq_ruler_set *set, const dq_eval *e, dq_err *err)
{
    const dq_ruler_settings *s = set->settings;
    const dq_model *least = e->model[0].m;
    for (int i = 1; i < e->n_models; i++) {
        if (e->model[i].m->max_positions < least->max_positions) least = e->model[i].m;
    }
    set->n_lengths = s->n_lengths;
    memcpy(set->length, s->length, sizeof set->length);
    if (s->n_lengths == 0)
        set->length[set->n_lengths++] = least->max_positions < DQ_RULER_DEFAULT_LENGTH
                                            ? least->max_positions
                                            : DQ_RULER_DEFAULT_LENGTH;
    for (int l = 0; l < set->n_lengths; l++) {
        if (set->length[l] > least->max_positions)
            return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_OPTION},
                                "lengths %d: %s has %d positions. Use lengths up to %d",
                                set->length[l], least->path, least->max_positions,
                                least->max_positions);
    }
    return DQ_OK;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *em = &e->model[ids->model];
    dq_ruler_set *set = dq_alloc(e->a, 1, sizeof *set, err);
    if (!set) return err->code;
    set->settings = s->settings;
    set->samples = set->settings->samples;
    const dq_ruler_text *text = s->own;
    const dq_ruler_maker m = {set->settings->task, text, em->tok, e->bos, em->m->vocab, e->a};
    if (text) {
        ids->n_bad = text->n_bad;
        ids->first_bad = text->first_bad;
    }
    DQ_TRY(dq_items_bos_check(m.t, e->bos, err));
    DQ_TRY(choose_lengths(set, e, err));
    const int64_t n = set->n_lengths * set->samples, max_new = m.task->max_new;
    dq_ruler_prompt *prompt = dq_alloc(m.a, (size_t)n, sizeof *prompt, err);
    dq_request *r = dq_alloc(m.a, (size_t)n, sizeof *r, err);
    int64_t *at = dq_alloc(m.a, (size_t)n + 1, sizeof *at, err);
    if (!prompt || !r || !at) return err->code;
    for (int64_t i = 0; i < n; i++) {
        DQ_TRY(dq_ruler_make(&prompt[i], &m, set->length[i / set->samples], set->settings->seed,
                             i % set->samples, err));
        r[i] = (dq_request){.ctx = prompt[i].ids,
                            .n_ctx = prompt[i].n,
                            .n_cont = max_new,
                            .value = i * max_new,
                            .item = i};
        at[i + 1] = i + 1;
    }
    set->prompt = prompt;
    ids->req = (dq_requests){.req = r, .at = at, .n = n, .n_items = n, .n_values = n * max_new};
    ids->n_extra = DQ_RULER_EXTRA;
    ids->own = set;
    return DQ_OK;
}

static dq_status takes(const dq_eval_source *source, const dq_kv_spec *kv, dq_err *err)
{
    const dq_ruler_settings *s = source->settings;
    if (s->query_aware || !kv->evict.policy || !kv->evict.every) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_EVERY},
                        "%s: evicting every %lld tokens is not defined where the question comes "
                        "after what is evicted",
                        source->name, (long long)kv->evict.every);
}

typedef struct run {
    dq_eval *e;
    dq_eval_row *row;
    const dq_ruler_set *set;
    const dq_tokenizer *tok;
    int64_t begin, end; /* units */
    dq_err err;         /* of decoding; ends a sequence */
} run;

static dq_status found_in(double *share, const run *x, int64_t unit, const int32_t *ids, int64_t n,
                          dq_err *err)
{
    const dq_ruler_prompt *p = &x->set->prompt[unit];
    char *text;
    size_t len;
    DQ_TRY(dq_tokenizer_decode(x->tok, ids, n, 0, &text, &len, err));
    *share = dq_ruler_found(text, len, p->answer, p->n_answers);
    dq_block_free(text);
    return DQ_OK;
}

static bool all_found(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    run *x = arg;
    double share = 0;
    return found_in(&share, x, x->begin + prompt, ids, n, &x->err) != DQ_OK || share == 1;
}

static dq_status answer(run *x, dq_scorer *s, dq_arena *a, dq_err *err)
{
    const int64_t n = x->end - x->begin;
    dq_generate_state g;
    dq_stop_ids stops;
    dq_generate_prompt *prompt = dq_alloc(a, (size_t)n, sizeof *prompt, err);
    if (!prompt) return err->code;
    for (int64_t i = 0; i < n; i++) {
        const dq_ruler_prompt *p = &x->set->prompt[x->begin + i];
        prompt[i] =
            (dq_generate_prompt){.ids = p->ids,
                                 .n = p->n,
                                 .max_new = x->set->settings->task->max_new,
                                 .context = x->set->settings->query_aware ? 0 : p->question};
    }
    dq_generate_spec spec = {.prompt = prompt,
                             .n = n,
                             .stop = all_found,
                             .stop_arg = x,
                             .measure = !dq_kv_spec_is_plain(&x->row->kv)};
    DQ_TRY(dq_eval_stop_ids(&stops, x->e, x->row->model, err));
    spec.stop_id = stops.id;
    spec.n_stop_ids = stops.n;
    DQ_TRY(dq_generate_new(&g, &spec, dq_runner_model(s->r), a, err));
    DQ_TRY(dq_generate(s, &spec, &g, err));
    if (x->err.code != DQ_OK) return dq_fail_as(err, &x->err);
    for (int64_t i = 0; i < n; i++) {
        const int64_t unit = x->begin + i;
        const dq_generate_result *result = &g.of[i];
        const dq_request *r = &x->e->ids[x->row->ids].req.req[unit];
        double *extra = x->row->extra + unit * DQ_RULER_EXTRA;
        for (int64_t k = 0; k < r->n_cont; k++)
            x->row->top1[r->value + k] = k < result->n ? result->ids[k] : -1;
        extra[DQ_RULER_AT_COUNT] = (double)result->n;
        extra[DQ_RULER_AT_END] = result->end;
        DQ_TRY(found_in(&extra[DQ_RULER_AT_FOUND], x, unit, result->ids, result->n, err));
    }
    return DQ_OK;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_err *err)
{
    run x = {.e = e,
             .row = row,
             .set = dq_ruler_set_of(e, row),
             .tok = e->model[e->ids[row->ids].model].tok,
             .begin = begin,
             .end = end};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    answer(&x, s, a, err);
    dq_arena_free(a);
    return err->code;
}

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const int64_t n = dq_eval_units(e, row);
    for (int64_t i = 0; i < n; i++) {
        const double share = dq_ruler_unit(row, i)[DQ_RULER_AT_FOUND];
        score[i] = metric == 0 || share == 1 ? share : 0;
    }
}

dq_status dq_ruler_numbers_of(dq_ruler_numbers *out, const dq_eval *e, const dq_eval_row *row,
                              int length, dq_err *err)
{
    const dq_ruler_set *s = dq_ruler_set_of(e, row);
    const int64_t begin = length < 0 ? 0 : length * s->samples;
    const int64_t end = length < 0 ? s->n_lengths * s->samples : begin + s->samples;
    int64_t all = 0;
    *out = (dq_ruler_numbers){.n = end - begin};
    double *share = dq_block_new((size_t)out->n, sizeof *share, err);
    if (!share) return err->code;
    for (int64_t i = begin; i < end; i++) {
        const double *x = dq_ruler_unit(row, i);
        share[i - begin] = x[DQ_RULER_AT_FOUND];
        all += x[DQ_RULER_AT_FOUND] == 1;
        out->prompt_ids += s->prompt[i].n;
        out->new_ids += (int64_t)x[DQ_RULER_AT_COUNT];
    }
    out->acc = dq_mean_of(share, out->n);
    out->all_correct = dq_mean_share(all, out->n);
    dq_block_free(share);
    return DQ_OK;
}

const dq_eval_kind dq_eval_ruler = {
    .metric = {"acc", "all_correct"},
    .load = load,
    .encode = encode,
    .judge = judge,
    .cluster = "prompt",
    .score = score,
    .takes = takes,
};
