/* kind_generate: see kind_generate.h. Prompts are encoded as requests without choices, dq_generate continues them,
 * and the text of their new ids is cut at the first stop text. Answers are judged from the text that is kept, so a
 * resumed run judges as the first one did.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_generate.h"

#include "tasks/answers.h"
#include "tasks/repeats.h"

#include <string.h>

/* Prompts that are finished together: enough for a pass of their newest ids, few enough that a stop does
 * not lose much. */
enum { GROUP = 32 };

static const dq_eval_generate *settings_of(const dq_eval_source *s)
{
    return s->settings;
}

static const dq_questions *questions_of(const dq_eval_source *s)
{
    return s->own;
}

static dq_status load(dq_eval *e, dq_eval_source *s, dq_err *err)
{
    dq_questions *q = dq_alloc(e->a, 1, sizeof *q, err);
    if (!q) return err->code;
    s->own = q;
    DQ_TRY(dq_questions_load(q, settings_of(s)->set, &settings_of(s)->shots, s->path, s->text,
                             s->len, e->limit, e->a, err));
    s->n_own_shots = q->n_own_shots;
    s->items.n_bad = q->n_bad; /* for the warning about ill-formed text */
    s->items.first_bad = q->first_bad;
    return DQ_OK;
}

/* ---- Prompts that are too long ---- */

static int64_t count(const dq_eval_source *s)
{
    return questions_of(s)->n;
}

static int64_t line(const dq_eval_source *s, int64_t unit)
{
    return questions_of(s)->question[unit].line;
}

static dq_status need_positions(int64_t *need, const dq_eval *e, const dq_eval_source *s,
                                const dq_eval_model *m, dq_arena *a, dq_err *err)
{
    const dq_questions *q = questions_of(s);
    (void)a;
    for (int64_t i = 0; i < q->n; i++) {
        const dq_question *one = &q->question[i];
        const unsigned flags = dq_items_bos_flags(m->tok, e->bos, one->prompt, one->len);
        int32_t *ids = NULL;
        DQ_TRY(dq_tokenizer_encode(m->tok, one->prompt, one->len, flags, &ids, &need[i], NULL, NULL,
                                   err));
        dq_block_free(ids);
    }
    return DQ_OK;
}

static dq_status keep(dq_eval_source *s, const int64_t *number, int64_t n, dq_arena *a, dq_err *err)
{
    dq_questions *q = s->own;
    dq_question *question = dq_alloc(a, (size_t)n, sizeof *question, err);
    if (!question) return err->code;
    for (int64_t i = 0; i < n; i++) question[i] = q->question[number[i]];
    q->question = question;
    q->n = n;
    return DQ_OK;
}

/* ---- Encoding ---- */

static dq_status check_ids(const dq_model *m, const int32_t *ids, int64_t n, dq_err *err)
{
    if (n < 1)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_BOS_ON},
                            "the prompt gives no tokens. Put text there");
    return dq_tokenizer_check_ids(ids, n, m->vocab, err);
}

static dq_status encode_prompt(dq_request *r, const dq_eval *e, const dq_eval_model *m,
                               const dq_question *q, dq_err *err)
{
    int32_t *ids = NULL, *kept = NULL;
    int64_t n = 0, capacity = m->m->max_positions - r->n_cont, cut = 0;
    DQ_TRY(dq_tokenizer_encode(m->tok, q->prompt, q->len,
                               dq_items_bos_flags(m->tok, e->bos, q->prompt, q->len), &ids, &n,
                               NULL, NULL, err));
    if (e->too_long == DQ_LONG_CUT && m->m->max_positions > 0 && n > capacity) cut = n - capacity;
    if (check_ids(m->m, ids, n, err) == DQ_OK)
        kept = dq_alloc(e->a, (size_t)(n - cut), sizeof *kept, err);
    if (kept) memcpy(kept, ids + cut, (size_t)(n - cut) * sizeof *kept);
    dq_block_free(ids);
    r->ctx = kept;
    r->n_ctx = n - cut;
    r->truncated = cut > 0;
    return err->code;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *m = &e->model[ids->model];
    const dq_questions *q = questions_of(s);
    const int64_t max_new = settings_of(s)->max_new;
    int64_t n_cut = 0;
    DQ_TRY(dq_items_bos_check(m->tok, e->bos, err));
    if (m->m->max_positions > 0 && max_new > m->m->max_positions)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MAX_NEW},
                            "%lld new tokens are asked for, %s has %d positions",
                            (long long)max_new, m->m->path, m->m->max_positions);
    if (e->too_long == DQ_LONG_CUT && m->m->max_positions > 0 && max_new >= m->m->max_positions)
        return dq_fail_with(
            err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_LONG_CUT},
            "long cut leaves room for %lld new tokens, and %s has %d positions: nothing "
            "is left of a prompt",
            (long long)max_new, m->m->path, m->m->max_positions);
    dq_request *req = dq_alloc(e->a, (size_t)q->n, sizeof *req, err);
    int64_t *at = dq_alloc(e->a, (size_t)q->n + 1, sizeof *at, err);
    uint64_t *key = dq_alloc(e->a, (size_t)q->n, sizeof *key, err);
    if (!req || !at || !key) return err->code;
    for (int64_t i = 0; i < q->n; i++) key[i] = q->question[i].cluster;
    DQ_TRY(dq_repeats_keys(&ids->cluster, key, q->n, e->a, err));
    for (int64_t i = 0; i < q->n; i++) {
        const dq_question *one = &q->question[i];
        req[i] = (dq_request){.n_cont = max_new, .value = i * max_new, .item = i};
        at[i + 1] = i + 1;
        encode_prompt(&req[i], e, m, one, err);
        n_cut += req[i].truncated;
        if (err->code == DQ_OK) continue;
        return one->line ? dq_in(err, "line %lld, item %lld: ", (long long)one->line, (long long)i)
                         : dq_in(err, "item %lld: ", (long long)i);
    }
    ids->req = (dq_requests){.req = req,
                             .at = at,
                             .n = q->n,
                             .n_items = q->n,
                             .n_truncated = n_cut,
                             .n_values = q->n * max_new};
    ids->n_extra = DQ_GEN_EXTRA;
    return DQ_OK;
}

/* ---- Text of new ids ---- */

/* Where the text of ids[n] ends; *text is a block. */
static dq_status text_of(const dq_eval *e, const dq_eval_row *row, const int32_t *ids, int64_t n,
                         char **text, size_t *len, size_t *end, dq_err *err)
{
    const dq_eval_generate *s = settings_of(dq_eval_source_of(e, row));
    const dq_tokenizer *tok = e->model[e->ids[row->ids].model].tok;
    DQ_TRY(dq_tokenizer_decode(tok, ids, n, 0, text, len, err));
    *end = dq_answer_end(*text, *len, s->stop, s->n_stop);
    return DQ_OK;
}

dq_status dq_eval_completion(const dq_eval *e, const dq_eval_row *row, int64_t unit, char **text,
                             size_t *len, dq_err *err)
{
    const int32_t *ids = row->top1 + dq_eval_values(e, row, unit);
    const int64_t n = (int64_t)row->extra[unit * DQ_GEN_EXTRA + DQ_GEN_COUNT];
    size_t all;
    return text_of(e, row, ids, n, text, &all, len, err);
}

dq_status dq_eval_keep(const dq_eval *e, dq_eval_row *row, int64_t unit,
                       const dq_generate_result *g, dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(e, row);
    const dq_question *q = &questions_of(s)->question[unit];
    int32_t *ids = row->top1 + dq_eval_values(e, row, unit);
    double *extra = row->extra + unit * DQ_GEN_EXTRA;
    dq_answer_verdict v = {0};
    char *text = NULL;
    size_t len;
    for (int64_t i = 0; i < settings_of(s)->max_new; i++) ids[i] = i < g->n ? g->ids[i] : -1;
    extra[DQ_GEN_COUNT] = (double)g->n;
    extra[DQ_GEN_END] = g->end;
    if (q->gold && dq_eval_completion(e, row, unit, &text, &len, err) == DQ_OK)
        dq_answer_rules_judge(&v, q->rule, text, len, q->gold, err);
    dq_block_free(text);
    extra[DQ_GEN_EXACT] = v.flexible;
    extra[DQ_GEN_STRICT] = v.strict;
    return err->code;
}

/* ---- Generating ---- */

/* For dq_generate_stop, which cannot fail by itself. */
typedef struct stop_arg {
    const dq_eval *e;
    const dq_eval_row *row;
    dq_err err;
} stop_arg;

static bool stop(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    stop_arg *x = arg;
    char *text = NULL;
    size_t len = 0, end = 0;
    (void)prompt;
    bool is_end = text_of(x->e, x->row, ids, n, &text, &len, &end, &x->err) != DQ_OK || end < len;
    dq_block_free(text);
    return is_end;
}

static dq_status generate(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                          dq_arena *a, dq_err *err)
{
    const dq_eval_generate *set = settings_of(dq_eval_source_of(e, row));
    const dq_request *req = e->ids[row->ids].req.req;
    stop_arg x = {.e = e, .row = row};
    dq_generate_state g;
    dq_stop_ids stops;
    dq_generate_prompt *prompt = dq_alloc(a, (size_t)(end - begin), sizeof *prompt, err);
    if (!prompt) return err->code;
    for (int64_t i = begin; i < end; i++)
        prompt[i - begin] =
            (dq_generate_prompt){.ids = req[i].ctx, .n = req[i].n_ctx, .max_new = set->max_new};
    dq_generate_spec spec = {.prompt = prompt,
                             .n = end - begin,
                             .stop = set->n_stop ? stop : NULL,
                             .stop_arg = &x,
                             .measure = !dq_kv_spec_is_plain(&row->kv)};
    DQ_TRY(dq_eval_stop_ids(&stops, e, row->model, err));
    spec.stop_id = stops.id;
    spec.n_stop_ids = stops.n;
    DQ_TRY(dq_generate_new(&g, &spec, dq_runner_model(s->r), a, err));
    DQ_TRY(dq_generate(s, &spec, &g, err));
    if (x.err.code != DQ_OK) return dq_fail_as(err, &x.err);
    for (int64_t i = 0; i < g.n; i++) DQ_TRY(dq_eval_keep(e, row, begin + i, &g.of[i], err));
    return DQ_OK;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_err *err)
{
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    generate(e, row, s, begin, end, a, err);
    dq_arena_free(a);
    return err->code;
}

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const int64_t n = dq_eval_units(e, row);
    for (int64_t i = 0; i < n; i++)
        score[i] = row->extra[i * DQ_GEN_EXTRA + (metric ? DQ_GEN_STRICT : DQ_GEN_EXACT)];
}

/* What both kinds share: prompts are refused where they are too long. */
#define GENERATED                                                                                  \
    .group = GROUP, .encode = encode, .score = score, .usual_long = DQ_LONG_ERROR, .count = count, \
    .line = line, .need = need_positions, .keep = keep

const dq_eval_kind dq_eval_answers = {
    GENERATED,        .metric = {"exact_match", "strict_match"},
    .load = load,     .judge = judge,
    .answered = true, .averaged = true,
};

const dq_eval_kind dq_eval_prompts = {GENERATED, .load = load};
