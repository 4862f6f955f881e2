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
    DQ_TRY(dq_eval_lengths(set->length, &set->n_lengths, set->settings->length,
                           set->settings->n_lengths, e, err));
    const int64_t n = set->n_lengths * set->samples, max_new = m.task->max_new;
    dq_ruler_prompt *prompt = dq_alloc(m.a, (size_t)n, sizeof *prompt, err);
    dq_request *r = dq_eval_requests(&ids->req, n, m.a, err);
    if (!prompt || !r) return err->code;
    for (int64_t i = 0; i < n; i++) {
        DQ_TRY(dq_ruler_make(&prompt[i], &m, set->length[i / set->samples], set->settings->seed,
                             i % set->samples, err));
        r[i].ctx = prompt[i].ids;
        r[i].n_ctx = prompt[i].n;
        r[i].n_cont = max_new;
        r[i].value = i * max_new;
    }
    set->prompt = prompt;
    ids->req.n_values = n * max_new;
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

static bool all_found(const void *arg, int64_t prompt, const char *text, size_t len)
{
    const dq_ruler_prompt *p = (const dq_ruler_prompt *)arg + prompt;
    return dq_ruler_found(text, len, p->answer, p->n_answers) == 1;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_arena *a, dq_err *err)
{
    const dq_ruler_set *set = dq_ruler_set_of(e, row);
    const dq_ruler_prompt *of = set->prompt + begin;
    const dq_eval_ids *ids = &e->ids[row->ids];
    dq_generate_state g;
    dq_generate_prompt *prompt = dq_alloc(a, (size_t)(end - begin), sizeof *prompt, err);
    if (!prompt) return err->code;
    for (int64_t i = 0; i < end - begin; i++)
        prompt[i] =
            (dq_generate_prompt){.ids = of[i].ids,
                                 .n = of[i].n,
                                 .max_new = set->settings->task->max_new,
                                 .context = set->settings->query_aware ? 0 : of[i].question};
    DQ_TRY(dq_eval_continue(&g, e, row, s, prompt, end - begin, all_found, of, false, a, err));
    for (int64_t i = 0; i < g.n; i++) {
        const dq_generate_result *result = &g.of[i];
        const dq_request *r = &ids->req.req[begin + i];
        double *extra = row->extra + (begin + i) * DQ_RULER_EXTRA;
        char *text;
        size_t len;
        dq_eval_store(row, r->value, r->n_cont, result);
        extra[DQ_RULER_AT_COUNT] = (double)result->n;
        extra[DQ_RULER_AT_END] = result->end;
        DQ_TRY(dq_tokenizer_decode(e->model[ids->model].tok, result->ids, result->n, 0, &text, &len,
                                   err));
        extra[DQ_RULER_AT_FOUND] = dq_ruler_found(text, len, of[i].answer, of[i].n_answers);
        dq_block_free(text);
    }
    return DQ_OK;
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
