/* Prompts are taken in order into groups that are alive together. A group runs its shared
 * beginning, then all prompts in one pass, then passes of one row for each sequence that has not
 * ended: all of them have as many new ids, so that evictions every so many tokens fall together.
 * SPDX-License-Identifier: MIT */
#include "eval/inside.h"
#include "tasks/documents.h"
#include "tasks/questions.h"

#include <string.h>

enum { MIN_SHARED = 32, MAX_ROWS = 4096, MAX_SEQS = 64 };

/* The last new id is not fed, and thus needs no position. */
static int64_t max_new_of(const dq_generate_prompt *p, const dq_model *m)
{
    int64_t n = p->max_new > 0 ? p->max_new : 0;
    if (m->max_positions > 0 && n > m->max_positions - p->n + 1) n = m->max_positions - p->n + 1;
    return n;
}

static void count_done(dq_generate_state *g)
{
    while (g->n_done < g->n && g->of[g->n_done].end != DQ_TEXT_END_NONE) g->n_done++;
}

dq_status dq_generate_new(dq_generate_state *g, const dq_generate_spec *spec, const dq_model *m,
                          dq_arena *a, dq_err *err)
{
    *g = (dq_generate_state){.n = spec->n};
    for (int64_t i = 0; i < spec->n; i++) {
        const dq_generate_prompt *p = &spec->prompt[i];
        if (p->n < 1)
            return dq_fail(
                err, DQ_MISMATCH,
                "prompt %lld has no tokens, so nothing can follow them. Put text or a BOS there.",
                (long long)i);
        if (m->max_positions > 0 && p->n > m->max_positions)
            return dq_fail(
                err, DQ_MISMATCH,
                "%s: prompt %lld has too many tokens (expected at most %d, found %lld). Shorten "
                "it.",
                m->path, (long long)i, m->max_positions, (long long)p->n);
        if (p->context < 0 || p->context >= p->n)
            return dq_fail(err, DQ_BUG, "prompt %lld: a context of %lld of its %lld tokens",
                           (long long)i, (long long)p->context, (long long)p->n);
        if (!spec->prompt[i].context != !spec->prompt[0].context)
            return dq_fail(err, DQ_BUG, "prompt %lld: some have a context and some have none",
                           (long long)i);
    }
    g->of = dq_alloc(a, (size_t)spec->n, sizeof *g->of, err);
    for (int64_t i = 0; g->of && i < spec->n; i++) {
        const int64_t max_new = max_new_of(&spec->prompt[i], m);
        dq_generate_result *to = &g->of[i];
        to->ids = dq_alloc(a, (size_t)max_new, sizeof *to->ids, err);
        if (spec->logp) to->logp = dq_alloc(a, (size_t)max_new, sizeof *to->logp, err);
        if (err->code != DQ_OK) return err->code;
        if (max_new == 0) to->end = DQ_TEXT_END_MAX_NEW;
    }
    if (g->of) count_done(g);
    return err->code;
}

typedef struct group {
    const int64_t *prompt; /* [n] */
    int64_t n;
    int64_t shared; /* ids that all of them begin with and that are computed once; 0: none */
    int64_t rows;   /* of the largest pass before new ids */
} group;

/* Where sharing does not change the bits of results. */
static bool may_share(const dq_scorer *s, const dq_generate_spec *spec)
{
    const dq_kv_policy *policy = s->kv->evict.policy;
    if (spec->measure || dq_logit_ties_rows(s->pass.logit)) return false;
    return !policy || !(policy->needs & DQ_NEEDS_ATTENTION);
}

/* At least one row of the prompt, or of its context, must be left. */
static int64_t most_shared(const dq_generate_prompt *p)
{
    return (p->context ? p->context : p->n) - 1;
}

/* Length of the common start of both prompts, at most `most`. */
static int64_t common(const dq_generate_prompt *a, const dq_generate_prompt *b, int64_t max)
{
    int64_t n = 0;
    while (n < max && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* Takes prompts of left[n] in order while their rows fit. */
static group next_group(const dq_scorer *s, const dq_generate_spec *spec, const int64_t *left,
                        int64_t n)
{
    const int64_t max_rows = spec->max_rows > 0 ? spec->max_rows : MAX_ROWS;
    const int64_t max_seqs = spec->max_seqs > 0 ? spec->max_seqs : MAX_SEQS;
    const bool share = may_share(s, spec);
    const dq_generate_prompt *first = &spec->prompt[left[0]];
    int64_t all = first->n, same = most_shared(first);
    group g = {.prompt = left, .n = 1, .rows = first->n};
    while (g.n < n && g.n < max_seqs) {
        const dq_generate_prompt *p = &spec->prompt[left[g.n]];
        const int64_t most = most_shared(p);
        const int64_t same_now = common(first, p, same < most ? same : most);
        const int64_t shared = share && same_now >= MIN_SHARED ? same_now : 0;
        const int64_t rows = all + p->n - g.n * shared;
        if (rows > max_rows) break;
        same = same_now;
        all += p->n;
        g.shared = shared;
        g.rows = rows;
        g.n++;
    }
    return g;
}

typedef struct run {
    dq_scorer *s;
    const dq_generate_spec *spec;
    dq_generate_state *out;
    const group *g;
    dq_arena *a;
    dq_pass_plan plan; /* of the pass at hand */
    float *state;      /* [g->n][dim], backend memory */
    int32_t *seq;      /* [g->n]; -1: not open */
    int32_t beginning; /* sequence of the shared ids; -1: not open */
    dq_scores answer;  /* [g->n] by question: the most likely id and its logp */
    dq_kv_bytes floor;
} run;

static void close_one(run *x, int32_t *seq)
{
    if (*seq >= 0) dq_score_close(x->s, seq, 1);
    *seq = -1;
}

static dq_status run_begin(run *x, dq_err *err)
{
    dq_runner *r = x->s->r;
    dq_backend *b = dq_runner_backend(r);
    const size_t n = (size_t)x->g->n;
    x->a = dq_arena_new();
    if (!x->a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x->seq = dq_alloc(x->a, n, sizeof *x->seq, err);
    for (size_t i = 0; x->seq && i < n; i++) x->seq[i] = -1;
    x->answer.top1 = dq_alloc(x->a, n, sizeof *x->answer.top1, err);
    x->answer.logp = dq_alloc(x->a, n, sizeof *x->answer.logp, err);
    DQ_TRY(dq_pass_plan_begin(&x->plan, x->s, x->a, x->g->n, x->g->rows, x->g->n, err));
    if (x->spec->measure) DQ_TRY(dq_kv_cached_floor(&x->floor, r, x->g->n, err));
    x->state = b->ops->alloc(b, n * (size_t)dq_runner_model(r)->dim * sizeof *x->state);
    if (!x->state) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for %zu final states", n);
    }
    return err->code;
}

static dq_status ask(run *x, dq_err *err)
{
    const dq_model *m = dq_runner_model(x->s->r);
    const dq_mat state = {.p = x->state, .rows = x->plan.n_requested, .cols = m->dim};
    DQ_TRY(dq_pass_plan_answer(&x->plan, state, x->answer, err));
    return dq_score_check_logp(m, x->answer.logp, x->plan.n_requested, err);
}

static const dq_generate_prompt *prompt_of(const run *x, int64_t i)
{
    return &x->spec->prompt[x->g->prompt[i]];
}

/* Tokens computed before the cache is cut; all, where it is not. */
static int64_t context_of(const run *x, const dq_generate_prompt *p)
{
    return p->context && !dq_kv_spec_is_plain(x->s->kv) ? p->context : p->n;
}

/* Computes the shared tokens once. */
static dq_status run_beginning(run *x, dq_err *err)
{
    dq_mat hidden;
    x->beginning = dq_score_open(x->s, -1, err);
    if (x->beginning < 0) return err->code;
    dq_pass_plan_sequence(&x->plan, x->beginning);
    dq_pass_plan_rows(&x->plan, prompt_of(x, 0)->ids, x->g->shared, 0);
    DQ_TRY(dq_pass_plan_run(&x->plan, &hidden, err));
    dq_pass_plan_clear(&x->plan);
    return DQ_OK;
}

static dq_status run_prompts(run *x, dq_err *err)
{
    const int64_t shared = x->g->shared;
    const bool split = context_of(x, prompt_of(x, 0)) < prompt_of(x, 0)->n;
    dq_mat hidden;
    if (shared) DQ_TRY(run_beginning(x, err));
    for (int64_t i = 0; i < x->g->n; i++) {
        const dq_generate_prompt *p = prompt_of(x, i);
        const int64_t end = context_of(x, p);
        x->seq[i] = dq_score_open(x->s, x->beginning, err);
        if (x->seq[i] < 0) return err->code;
        dq_pass_plan_sequence(&x->plan, x->seq[i]);
        dq_pass_plan_rows(&x->plan, p->ids + shared, end - shared, shared);
        if (!split) dq_pass_plan_ask(&x->plan, x->plan.n_rows - 1, -1, i);
        x->s->work.tokens += p->n;
    }
    close_one(x, &x->beginning);
    DQ_TRY(split ? dq_pass_plan_run(&x->plan, &hidden, err) : ask(x, err));
    DQ_TRY(dq_pass_plan_compress(&x->plan, x->spec->measure ? &x->floor : NULL, err));
    if (!split) return DQ_OK;
    /* The tokens after the contexts. */
    dq_pass_plan_clear(&x->plan);
    for (int64_t i = 0; i < x->g->n; i++) {
        const dq_generate_prompt *p = prompt_of(x, i);
        const int64_t from = context_of(x, p);
        dq_pass_plan_sequence(&x->plan, x->seq[i]);
        dq_pass_plan_rows(&x->plan, p->ids + from, p->n - from, from);
        dq_pass_plan_ask(&x->plan, x->plan.n_rows - 1, -1, i);
    }
    return ask(x, err);
}

/* Feeds the last id of every living sequence; all have equally many new ids. */
static dq_status run_step(run *x, int64_t fed, dq_err *err)
{
    dq_pass_plan_clear(&x->plan);
    for (int64_t i = 0; i < x->g->n; i++) {
        if (x->seq[i] < 0) continue;
        dq_pass_plan_sequence(&x->plan, x->seq[i]);
        dq_pass_plan_rows(&x->plan, &x->out->of[x->g->prompt[i]].ids[fed - 1], 1,
                          prompt_of(x, i)->n + fed - 1);
        dq_pass_plan_ask(&x->plan, x->plan.n_rows - 1, -1, i);
    }
    x->s->work.tokens += x->plan.n_rows;
    DQ_TRY(ask(x, err));
    if (fed % dq_score_piece(x->s) != 0) return DQ_OK;
    return dq_pass_plan_compress(&x->plan, NULL, err); /* not part of what a prompt took */
}

static bool is_stop_id(const dq_generate_spec *spec, int32_t id)
{
    for (int64_t i = 0; i < spec->n_stop_ids; i++) {
        if (spec->stop_id[i] == id) return true;
    }
    return false;
}

static dq_text_end end_of(const run *x, int64_t prompt, const dq_generate_result *to)
{
    const dq_generate_spec *spec = x->spec;
    const dq_generate_prompt *p = &spec->prompt[prompt];
    if (spec->stop && spec->stop(spec->stop_arg, prompt, to->ids, to->n))
        return DQ_TEXT_END_REQUESTED;
    if (to->n >= p->max_new) return DQ_TEXT_END_MAX_NEW;
    return to->n < max_new_of(p, dq_runner_model(x->s->r)) ? DQ_TEXT_END_NONE
                                                           : DQ_TEXT_END_POSITIONS;
}

/* Takes the pass's results and closes ended sequences; returns how many live. */
static int64_t take(run *x)
{
    int64_t alive = 0;
    for (int64_t q = 0; q < x->plan.n_requested; q++) {
        const int64_t i = x->plan.value[q], prompt = x->g->prompt[i];
        dq_generate_result *to = &x->out->of[prompt];
        if (is_stop_id(x->spec, x->answer.top1[q])) {
            to->end = DQ_TEXT_END_STOP_ID;
        } else {
            if (to->logp) to->logp[to->n] = x->answer.logp[q];
            to->ids[to->n++] = x->answer.top1[q];
            to->end = end_of(x, prompt, to);
        }
        if (to->end == DQ_TEXT_END_NONE)
            alive++;
        else
            close_one(x, &x->seq[i]);
    }
    return alive;
}

dq_status dq_generate(dq_scorer *s, const dq_generate_spec *spec, dq_generate_state *g, dq_err *err)
{
    int64_t *left = dq_block_new((size_t)g->n, sizeof *left, err), n = 0, at = 0;
    if (!left) return err->code;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->of[i].end != DQ_TEXT_END_NONE) continue;
        g->of[i].n = 0; /* what an earlier call left unfinished */
        left[n++] = i;
    }
    while (at < n) {
        const group next = next_group(s, spec, left + at, n - at);
        run x = {.s = s, .spec = spec, .out = g, .g = &next, .beginning = -1};
        int64_t alive = 0, fed = 0;
        if (run_begin(&x, err) == DQ_OK && run_prompts(&x, err) == DQ_OK) alive = take(&x);
        while (alive > 0 && run_step(&x, ++fed, err) == DQ_OK) alive = take(&x);
        dq_backend *b = dq_runner_backend(x.s->r);
        for (int64_t i = 0; x.seq && i < x.g->n; i++) close_one(&x, &x.seq[i]);
        close_one(&x, &x.beginning);
        b->ops->free(b, x.state);
        dq_arena_free(x.a);
        if (err->code != DQ_OK) break;
        at += next.n;
    }
    count_done(g);
    dq_block_free(left);
    return err->code;
}

typedef struct text_stop {
    const dq_tokenizer *tok;
    dq_eval_is_over *over;
    const void *arg;
    dq_err err; /* of decoding; ends the sequence */
} text_stop;

static bool is_over(void *arg, int64_t prompt, const int32_t *ids, int64_t n)
{
    text_stop *x = arg;
    char *text;
    size_t len;
    if (dq_tokenizer_decode(x->tok, ids, n, 0, &text, &len, &x->err) != DQ_OK) return true;
    const bool over = x->over(x->arg, prompt, text, len);
    dq_block_free(text);
    return over;
}

dq_status dq_eval_continue(dq_generate_state *g, const dq_eval *e, const dq_eval_row *row,
                           dq_scorer *s, const dq_generate_prompt *prompt, int64_t n,
                           dq_eval_is_over *over, const void *arg, bool logp, dq_arena *a,
                           dq_err *err)
{
    text_stop x = {e->model[e->ids[row->ids].model].tok, over, arg, {0}};
    dq_stop_ids stops;
    DQ_TRY(dq_eval_stop_ids(&stops, e, row->model, err));
    const dq_generate_spec spec = {.prompt = prompt,
                                   .n = n,
                                   .stop_id = stops.id,
                                   .n_stop_ids = stops.n,
                                   .stop = over ? is_over : NULL,
                                   .stop_arg = &x,
                                   .logp = logp,
                                   .measure = !dq_kv_spec_is_plain(&row->kv)};
    DQ_TRY(dq_generate_new(g, &spec, dq_runner_model(s->r), a, err));
    DQ_TRY(dq_generate(s, &spec, g, err));
    return x.err.code == DQ_OK ? DQ_OK : dq_fail_as(err, &x.err);
}

void dq_eval_store(dq_eval_row *row, int64_t at, int64_t n, const dq_generate_result *g)
{
    for (int64_t i = 0; i < n; i++) row->top1[at + i] = i < g->n ? g->ids[i] : -1;
}

/* dq_generate continues the prompts, and the text of new ids is cut at the first stop text. Answers
 * are judged from the kept text, so that a resumed run judges alike. */

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

/* Stores a unit's ids and verdict in the row. */
static dq_status keep(const dq_eval *e, dq_eval_row *row, int64_t unit, const dq_generate_result *g,
                      dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(e, row);
    const dq_question *q = s->items.item[unit].question;
    double *extra = row->extra + unit * DQ_GEN_EXTRA;
    dq_answer_verdict v = {0};
    char *text = NULL;
    size_t len;
    dq_eval_store(row, dq_eval_values(e, row, unit), settings_of(s)->max_new, g);
    extra[DQ_GEN_COUNT] = (double)g->n;
    extra[DQ_GEN_END] = g->end;
    if (q->gold && dq_eval_completion(e, row, unit, &text, &len, err) == DQ_OK)
        dq_answer_rules_judge(&v, q->rule, text, len, q->gold, err);
    dq_block_free(text);
    extra[DQ_GEN_EXACT] = v.flexible;
    extra[DQ_GEN_STRICT] = v.strict;
    return err->code;
}

static bool has_stop(const void *arg, int64_t prompt, const char *text, size_t len)
{
    const dq_eval_generate *s = arg;
    (void)prompt;
    return dq_answer_end(text, len, s->stop, s->n_stop) < len;
}

static dq_status score(dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin, int64_t end,
                       dq_arena *a, dq_err *err)
{
    const dq_eval_generate *set = settings_of(dq_eval_source_of(e, row));
    const dq_request *req = e->ids[row->ids].req.req;
    dq_generate_state g;
    dq_generate_prompt *prompt = dq_alloc(a, (size_t)(end - begin), sizeof *prompt, err);
    if (!prompt) return err->code;
    for (int64_t i = begin; i < end; i++)
        prompt[i - begin] =
            (dq_generate_prompt){.ids = req[i].ctx, .n = req[i].n_ctx, .max_new = set->max_new};
    DQ_TRY(dq_eval_continue(&g, e, row, s, prompt, end - begin, set->n_stop ? has_stop : NULL, set,
                            false, a, err));
    for (int64_t i = 0; i < g.n; i++) DQ_TRY(keep(e, row, begin + i, &g.of[i], err));
    return DQ_OK;
}

static void judge(const dq_eval *e, const dq_eval_row *row, int metric, double *score)
{
    const int64_t n = dq_eval_units(e, row);
    for (int64_t i = 0; i < n; i++)
        score[i] = row->extra[i * DQ_GEN_EXTRA + (metric ? DQ_GEN_STRICT : DQ_GEN_EXACT)];
}

const dq_eval_kind dq_eval_answers = {.metric = {"exact_match", "strict_match"},
                                      .group = GROUP,
                                      .load = load,
                                      .encode = encode,
                                      .judge = judge,
                                      .score = score};

const dq_eval_kind dq_eval_prompts = {
    .group = GROUP, .load = load, .encode = encode, .score = score};
