/* kind_needle_run: see kind_needle_run.h. Answers are forced or generated, then judged; attention has passes of its own.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_needle_run.h"

#include "eval/generate.h"
#include "eval/pass_plan.h"

#include <string.h>

/* What scoring a group of units needs. */
typedef struct run {
    dq_eval *e;
    dq_eval_row *row;
    dq_scorer *s;
    const dq_needle_set *set;
    const dq_tokenizer *tok;
    int64_t begin, end; /* units */
    dq_arena *a;        /* of this group */
} run;

static double *extra_of(const run *x, int64_t unit)
{
    return x->row->extra + unit * x->e->ids[x->row->ids].n_extra;
}

static void keep_recall(double *extra, const dq_needle_recall *sum)
{
    extra[DQ_NEEDLE_AT_CORRECT] = (double)sum->correct;
    extra[DQ_NEEDLE_AT_OTHER] = (double)sum->other;
    extra[DQ_NEEDLE_AT_NEAR] = (double)sum->near;
    extra[DQ_NEEDLE_AT_NONE] = (double)sum->none;
}

/* ---- Forced ---- */

static dq_status judge_forced(const run *x, int64_t unit, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    double *extra = extra_of(x, unit);
    dq_needle_recall sum = {0};
    extra[DQ_NEEDLE_AT_LL] = 0;
    for (int k = 0; k < p->requested; k++) {
        const int64_t v = dq_needle_value(x->e, x->row, unit, k);
        DQ_TRY(dq_needle_judge_ids(&sum, p, k, x->tok, x->row->top1 + v, err));
        for (int64_t i = 0; i < p->answer[k].to - p->answer[k].from; i++)
            extra[DQ_NEEDLE_AT_LL] += x->row->logp[v + i];
    }
    keep_recall(extra, &sum);
    return DQ_OK;
}

static dq_status force(const run *x, dq_err *err)
{
    const dq_requests *q = &x->e->ids[x->row->ids].req;
    const dq_scores out = {x->row->logp, x->row->top1};
    DQ_TRY(dq_score_items(x->s, q, x->begin, x->end, out, err));
    for (int64_t i = x->begin; i < x->end; i++) DQ_TRY(judge_forced(x, i, err));
    return DQ_OK;
}

/* ---- Generated ---- */

typedef struct stopper {
    const dq_tokenizer *tok;
    dq_err err; /* of decoding; ends the sequence */
} stopper;

/* Two newlines. */
static bool is_over(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    stopper *s = arg;
    char *text;
    size_t len;
    (void)prompt;
    if (dq_tokenizer_decode(s->tok, ids, n, 0, &text, &len, &s->err) != DQ_OK) return true;
    bool over = false;
    for (size_t i = 0; i + 1 < len; i++) over = over || (text[i] == '\n' && text[i + 1] == '\n');
    dq_block_free(text);
    return over;
}

/* How many of the first ids have neither a newline nor a period in their text. */
static dq_status cut(int64_t *kept, const dq_tokenizer *tok, const int32_t *ids, int64_t n,
                     dq_err *err)
{
    for (*kept = 0; *kept < n; ++*kept) {
        char *text;
        size_t len;
        DQ_TRY(dq_tokenizer_decode(tok, ids, *kept + 1, 0, &text, &len, err));
        const bool ends = memchr(text, '\n', len) || memchr(text, '.', len);
        dq_block_free(text);
        if (ends) break;
    }
    return DQ_OK;
}

/* Writes down what was generated for city k of a unit, and lets the next question follow it. */
static dq_status take_answer(const run *x, int64_t unit, int k, const dq_generate_result *g,
                             int32_t *ids, int64_t *n, dq_needle_recall *sum, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const int64_t v = dq_needle_value(x->e, x->row, unit, k);
    char *text;
    size_t len;
    int64_t kept;
    for (int64_t i = 0; i < DQ_NEEDLE_NEW; i++) {
        x->row->top1[v + i] = i < g->n ? g->ids[i] : -1;
        x->row->logp[v + i] = i < g->n ? g->logp[i] : 0;
    }
    DQ_TRY(dq_tokenizer_decode(x->tok, g->ids, g->n, 0, &text, &len, err));
    dq_needle_judge_text(sum, p, k, text, len, err);
    dq_block_free(text);
    if (err->code != DQ_OK || k + 1 == p->requested) return err->code;
    DQ_TRY(cut(&kept, x->tok, g->ids, g->n, err));
    memcpy(ids + *n, g->ids, (size_t)kept * sizeof *ids);
    const int64_t from = p->answer[k].to, to = p->answer[k + 1].begin;
    memcpy(ids + *n + kept, p->ids + p->n + from, (size_t)(to - from) * sizeof *ids);
    *n += kept + to - from;
    return DQ_OK;
}

/* Prompts of the units on their way: the asked cities follow each other. */
typedef struct asking {
    int32_t **ids;         /* [units], room for dq_needle_cell.length */
    int64_t *n;            /* [units] */
    dq_needle_recall *sum; /* [units] */
    dq_generate_prompt *prompt;
    int64_t *unit; /* [units] of a prompt */
    dq_stop_ids stops;
} asking;

static dq_status asking_begin(asking *q, const run *x, dq_err *err)
{
    const size_t n = (size_t)(x->end - x->begin);
    q->ids = dq_alloc(x->a, n, sizeof *q->ids, err);
    q->n = dq_alloc(x->a, n, sizeof *q->n, err);
    q->sum = dq_alloc(x->a, n, sizeof *q->sum, err);
    q->prompt = dq_alloc(x->a, n, sizeof *q->prompt, err);
    q->unit = dq_alloc(x->a, n, sizeof *q->unit, err);
    for (size_t i = 0; err->code == DQ_OK && i < n; i++) {
        const dq_needle_prompt *p = &x->set->prompt[x->begin + (int64_t)i];
        q->ids[i] = dq_alloc(x->a, (size_t)(p->n + p->budget), sizeof **q->ids, err);
        if (!q->ids[i]) break;
        memcpy(q->ids[i], p->ids, (size_t)p->n * sizeof **q->ids);
        q->n[i] = p->n;
    }
    DQ_TRY(err->code);
    return dq_eval_stop_ids(&q->stops, x->e, x->row->model, err);
}

/* City k of all units that ask for so many. */
static dq_status ask(asking *q, const run *x, int k, dq_err *err)
{
    stopper s = {.tok = x->tok};
    dq_generate_spec spec = {.prompt = q->prompt,
                             .stop_id = q->stops.id,
                             .n_stop_ids = q->stops.n,
                             .stop = is_over,
                             .stop_arg = &s,
                             .logp = true,
                             .measure = !dq_kv_spec_is_plain(&x->row->kv)};
    dq_generate_state g;
    for (int64_t i = 0; i < x->end - x->begin; i++) {
        if (x->set->prompt[x->begin + i].requested <= k) continue;
        q->unit[spec.n] = i;
        q->prompt[spec.n++] =
            (dq_generate_prompt){.ids = q->ids[i], .n = q->n[i], .max_new = DQ_NEEDLE_NEW};
    }
    if (spec.n == 0) return DQ_OK;
    DQ_TRY(dq_generate_new(&g, &spec, dq_runner_model(x->s->r), x->a, err));
    DQ_TRY(dq_generate(x->s, &spec, &g, err));
    if (s.err.code != DQ_OK) return dq_fail_as(err, &s.err);
    for (int64_t j = 0; j < spec.n; j++) {
        const int64_t i = q->unit[j];
        DQ_TRY(take_answer(x, x->begin + i, k, &g.of[j], q->ids[i], &q->n[i], &q->sum[i], err));
    }
    return DQ_OK;
}

static dq_status generate(const run *x, dq_err *err)
{
    asking q = {0};
    int max = 0;
    DQ_TRY(asking_begin(&q, x, err));
    for (int64_t i = x->begin; i < x->end; i++)
        max = x->set->prompt[i].requested > max ? x->set->prompt[i].requested : max;
    for (int k = 0; k < max; k++) DQ_TRY(ask(&q, x, k, err));
    for (int64_t i = x->begin; i < x->end; i++) {
        keep_recall(extra_of(x, i), &q.sum[i - x->begin]);
        extra_of(x, i)[DQ_NEEDLE_AT_LL] = 0;
    }
    return DQ_OK;
}

/* ---- Attention ---- */

/* Runs ids begin .. end - 1 of the prompt; with `spans` their sums are taken. */
static dq_status run_rows(const run *x, const dq_needle_prompt *p, int32_t seq, int64_t begin,
                          int64_t end, const dq_attention_spans *spans, dq_err *err)
{
    dq_pass_plan plan;
    dq_mat hidden;
    DQ_TRY(dq_pass_plan_begin(&plan, x->s, x->a, 1, end - begin, 0, err));
    plan.spans = spans;
    dq_pass_plan_sequence(&plan, seq);
    dq_pass_plan_rows(&plan, p->ids + begin, end - begin, begin);
    DQ_TRY(dq_pass_plan_run(&plan, &hidden, err));
    return dq_backend_sync(dq_runner_backend(x->s->r), err);
}

/* A compressed cache is read back by the question only if it comes in a pass of its own. */
static dq_status attend(const run *x, int64_t unit, dq_err *err)
{
    const dq_needle_prompt *p = &x->set->prompt[unit];
    const dq_model *m = dq_runner_model(x->s->r);
    const int n_layers = m->n_layers, n_out = m->map.n_out;
    const int64_t at = 0, last = x->set->settings->query_rows ? p->n - p->question : 1;
    const bool plain = dq_kv_spec_is_plain(&x->row->kv);
    uint8_t *label = dq_alloc(x->a, (size_t)p->n, 1, err);
    dq_span_share *sums = dq_alloc(x->a, (size_t)(n_layers * n_out), sizeof *sums, err);
    dq_attention_spans *spans = dq_alloc(x->a, (size_t)n_layers, sizeof *spans, err);
    if (!label || !sums || !spans) return err->code;
    dq_needle_labels(label, p);
    for (int l = 0; l < n_layers; l++)
        spans[l] = (dq_attention_spans){DQ_NEEDLE_CLASSES, label, &at, &last, sums + l * n_out};
    int32_t seq = dq_score_open(x->s, -1, err);
    if (seq < 0) return err->code;
    if (plain || run_rows(x, p, seq, 0, p->question, NULL, err) == DQ_OK)
        run_rows(x, p, seq, plain ? 0 : p->question, p->n, spans, err);
    dq_score_close(x->s, &seq, 1);
    x->s->work.tokens += p->n;
    if (err->code == DQ_OK)
        dq_needle_shares(extra_of(x, unit) + DQ_NEEDLE_AT_SHARE, sums, n_layers, n_out);
    return err->code;
}

dq_status dq_needle_score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                          dq_err *err)
{
    run x = {.e = e,
             .row = row,
             .s = s,
             .set = dq_needle_set_of(e, row),
             .tok = e->model[e->ids[row->ids].model].tok,
             .begin = begin,
             .end = end};
    x.a = dq_arena_new();
    if (!x.a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (x.set->settings->generated)
        generate(&x, err);
    else
        force(&x, err);
    for (int64_t i = begin; x.set->settings->attention && err->code == DQ_OK && i < end; i++)
        attend(&x, i, err);
    dq_arena_free(x.a);
    return err->code;
}
