/* Items of tasks: choices, of which the likeliest is taken, and questions and prompts, which a
 * model goes on with. Text of new ids is cut at the first stop text.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "tasks/documents.h"
#include "tasks/questions.h"

#include <math.h>
#include <string.h>

int dq_eval_pick(const dq_item *item, const dq_eval_row *row, const dq_request *first, bool by_norm)
{
    int best = 0;
    double best_value = -INFINITY;
    for (int c = 0; c < item->n_choices; c++) {
        double points = (double)item->choice[c].points;
        double ll = dq_eval_ll(row, &first[c]);
        double v = !by_norm ? ll : points > 0 ? ll / points : (double)-INFINITY;
        if (v > best_value) {
            best = c;
            best_value = v;
        }
    }
    return best;
}

double dq_eval_ll(const dq_eval_row *row, const dq_request *r)
{
    double ll = 0;
    for (int64_t i = 0; i < r->n_cont; i++) ll += row->logp[r->value + i];
    return ll;
}

bool dq_eval_greedy(const dq_eval_row *row, const dq_request *r)
{
    for (int64_t i = 0; i < r->n_cont; i++) {
        if (row->top1[r->value + i] != r->cont[i]) return false;
    }
    return true;
}

static dq_status encode_items(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_model *m = &e->model[ids->model];
    const dq_items *items = &e->source[ids->source].items;
    return dq_items_encode(&ids->req, items, m->tok, e->bos, m->m->max_positions, m->m->vocab, e->a,
                           err);
}

static void judge_choices(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const dq_requests *q = &e->ids[row->ids].req;
    const dq_items *items = &dq_eval_source_of(e, row)->items;
    for (int64_t i = 0; i < q->n_items; i++)
        score[i] = dq_eval_pick(&items->item[i], row, &q->req[q->at[i]], metric == 1) ==
                   items->item[i].gold;
}

const dq_eval_kind dq_eval_choices = {
    .metric = {"acc", "acc_norm"},
    .encode = encode_items,
    .judge = judge_choices,
};

typedef struct text_stop {
    const dq_eval *e;
    const dq_eval_row *row;
    int64_t begin; /* the unit of prompt 0 */
    const dq_tokenizer *tok;
    dq_eval_is_over *over;
    dq_err err; /* of decoding; ends the sequence */
} text_stop;

static bool is_over(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    text_stop *x = arg;
    char *text;
    size_t len;
    if (dq_tokenizer_decode(x->tok, ids, n, 0, &text, &len, &x->err) != DQ_OK) return true;
    const bool over = x->over(x->e, x->row, x->begin + prompt, text, len);
    dq_block_free(text);
    return over;
}

dq_generate_result *dq_eval_continue(const dq_eval *e, const dq_eval_row *row, dq_scorer *s,
                                     int64_t begin, const dq_generate_prompt *prompt, int64_t n,
                                     dq_eval_is_over *over, bool logp, dq_arena *a, dq_err *err)
{
    text_stop x = {e, row, begin, e->model[e->ids[row->ids].model].tok, over, {0}};
    dq_stop_ids stops;
    if (dq_eval_stop_ids(&stops, e, row->model, err) != DQ_OK) return NULL;
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = n,
                                   .stop_id = stops.id,
                                   .n_stop_ids = stops.n,
                                   .stop = over ? is_over : NULL,
                                   .stop_arg = &x,
                                   .logp = logp,
                                   .measure = !dq_kv_spec_is_plain(&row->kv)};
    dq_generate_result *g = dq_generate(s, &spec, a, err);
    if (!g || x.err.code == DQ_OK) return g;
    dq_fail_as(err, &x.err);
    return NULL;
}

void dq_eval_store(dq_eval_row *row, int64_t at, int64_t n, const dq_generate_result *g)
{
    for (int64_t i = 0; i < n; i++) row->top1[at + i] = i < g->n ? g->ids[i] : -1;
}

dq_status dq_eval_write(const dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin,
                        int64_t end, dq_eval_is_over *over, dq_eval_judge_text *judge, dq_arena *a,
                        dq_err *err)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    dq_generate_prompt *prompt = dq_alloc(a, (size_t)(end - begin), sizeof *prompt, err);
    if (!prompt) return err->code;
    for (int64_t i = begin; i < end; i++) {
        const dq_request *r = &ids->req.req[i];
        prompt[i - begin] = (dq_generate_prompt){r->ctx, r->n_ctx, r->n_cont, r->context};
    }
    const dq_generate_result *g =
        dq_eval_continue(e, row, s, begin, prompt, end - begin, over, false, a, err);
    for (int64_t i = begin; g && i < end; i++, g++) {
        double *extra = row->extra + i * DQ_GEN_EXTRA;
        char *text;
        size_t len;
        dq_eval_store(row, ids->req.req[i].value, ids->req.req[i].n_cont, g);
        extra[DQ_GEN_COUNT] = (double)g->n;
        extra[DQ_GEN_END] = g->end;
        DQ_TRY(dq_tokenizer_decode(e->model[ids->model].tok, g->ids, g->n, 0, &text, &len, err));
        judge(extra + DQ_GEN_EXACT, e, row, i, text, len, err);
        dq_block_free(text);
        DQ_TRY(err->code);
    }
    return err->code;
}

/* Prompts finished together: enough for full passes, few enough that a stop loses little. */
enum { GROUP = 32 };

static const dq_eval_generate *settings_of(const dq_eval_source *s)
{
    return s->settings;
}

static dq_status load(dq_eval *e, dq_eval_source *s, dq_err *err)
{
    dq_questions q;
    DQ_TRY(dq_questions_load(&q, s->task, &settings_of(s)->shots, s->path, s->text, s->len,
                             e->limit, e->a, err));
    dq_item *item = dq_alloc(e->a, (size_t)q.n, sizeof *item, err);
    for (int64_t i = 0; item && i < q.n; i++) {
        const dq_question *one = &q.question[i];
        item[i] = (dq_item){.ctx = one->prompt,
                            .ctx_len = one->len,
                            .question = one,
                            .line = one->line,
                            .content = one->content,
                            .cluster = one->cluster};
    }
    s->items = (dq_items){.item = item, .n = q.n, .n_bad = q.n_bad, .first_bad = q.first_bad};
    s->n_own_shots = q.n_own_shots;
    return err->code;
}

static dq_status encode_prompt(dq_request *r, const dq_eval *e, const dq_eval_model *m,
                               const dq_item *q, dq_err *err)
{
    int32_t *ids = NULL;
    int64_t n = 0, capacity = m->m->max_positions - r->n_cont, cut = 0;
    DQ_TRY(dq_tokenizer_encode(m->tok, q->ctx, q->ctx_len,
                               dq_items_bos_flags(m->tok, e->bos, q->ctx, q->ctx_len), &ids, &n,
                               NULL, NULL, err));
    if (e->too_long == DQ_LONG_CUT && m->m->max_positions > 0 && n > capacity) cut = n - capacity;
    if (n < 1)
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_BOS_ON},
                     "the prompt gives no tokens. Put text there");
    else if (dq_tokenizer_check_ids(ids, cut, m->m->vocab, err) == DQ_OK)
        r->ctx = dq_tokenizer_keep(ids + cut, n - cut, m->m->vocab, e->a, err);
    dq_block_free(ids);
    r->n_ctx = n - cut;
    r->truncated = cut > 0;
    return err->code;
}

static dq_status encode(dq_eval *e, dq_eval_ids *ids, dq_err *err)
{
    const dq_eval_source *s = &e->source[ids->source];
    const dq_eval_model *m = &e->model[ids->model];
    const dq_items *q = &s->items;
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
    dq_request *req = dq_eval_requests(&ids->req, q->n, e->a, err);
    if (!req) return err->code;
    for (int64_t i = 0; i < q->n; i++) {
        const dq_item *one = &q->item[i];
        req[i].n_cont = max_new;
        req[i].value = i * max_new;
        encode_prompt(&req[i], e, m, one, err);
        n_cut += req[i].truncated;
        if (err->code == DQ_OK) continue;
        return one->line ? dq_in(err, "line %lld, item %lld: ", (long long)one->line, (long long)i)
                         : dq_in(err, "item %lld: ", (long long)i);
    }
    ids->req.n_truncated = n_cut;
    ids->req.n_values = q->n * max_new;
    ids->n_extra = DQ_GEN_EXTRA;
    ids->passes = "decode";
    return DQ_OK;
}

dq_status dq_eval_completion(const dq_eval *e, const dq_eval_row *row, int64_t unit, char **text,
                             size_t *len, dq_err *err)
{
    const dq_eval_generate *s = settings_of(dq_eval_source_of(e, row));
    const int64_t n = (int64_t)row->extra[unit * DQ_GEN_EXTRA + DQ_GEN_COUNT];
    DQ_TRY(dq_tokenizer_decode(e->model[e->ids[row->ids].model].tok,
                               row->top1 + dq_eval_values(e, row, unit), n, 0, text, len, err));
    *len = dq_answer_end(*text, *len, s->stop, s->n_stop);
    return DQ_OK;
}

static dq_status judge_answer(double right[2], const dq_eval *e, const dq_eval_row *row,
                              int64_t unit, const char *text, size_t len, dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(e, row);
    const dq_question *q = s->items.item[unit].question;
    dq_answer_verdict v = {0};
    len = dq_answer_end(text, len, settings_of(s)->stop, settings_of(s)->n_stop);
    if (q->gold) dq_answer_rules_judge(&v, q->rule, text, len, q->gold, err);
    right[0] = v.flexible;
    right[1] = v.strict;
    return err->code;
}

static bool has_stop(const dq_eval *e, const dq_eval_row *row, int64_t unit, const char *text,
                     size_t len)
{
    const dq_eval_generate *s = settings_of(dq_eval_source_of(e, row));
    (void)unit;
    return dq_answer_end(text, len, s->stop, s->n_stop) < len;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_arena *a, dq_err *err)
{
    const bool stops = settings_of(dq_eval_source_of(e, row))->n_stop > 0;
    return dq_eval_write(e, row, s, begin, end, stops ? has_stop : NULL, judge_answer, a, err);
}

void dq_eval_judge_written(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const int64_t n = dq_eval_units(e, row);
    for (int64_t i = 0; i < n; i++) score[i] = row->extra[i * DQ_GEN_EXTRA + DQ_GEN_EXACT + metric];
}

const dq_eval_kind dq_eval_answers = {.metric = {"exact_match", "strict_match"},
                                      .group = GROUP,
                                      .load = load,
                                      .encode = encode,
                                      .judge = dq_eval_judge_written,
                                      .score = score};

const dq_eval_kind dq_eval_prompts = {
    .group = GROUP, .load = load, .encode = encode, .score = score};
