/* plan_caches_ask: see plan_caches_ask.h. A cache is asked a few questions at a time, so that an end in between costs little; an
 * unquantized cache is not asked, as what answers lack says enough by itself.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_caches_ask.h"

#include "base/file.h"
#include "base/ranks.h"
#include "tasks/repeats.h"

#include <math.h>

enum { TOGETHER = 8 }; /* questions */

/* ---- Questions ---- */

/* Of all requests their ids, and which choice is the right one. */
static dq_status hash_requests(char hex[65], const dq_requests *q, const dq_items *items,
                               dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < q->n; i++) {
        const dq_request *r = &q->req[i];
        const int64_t head[] = {r->item, r->choice, items->item[r->item].gold, r->n_ctx, r->n_cont};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, r->ctx, (size_t)r->n_ctx * sizeof *r->ctx);
        dq_sha256_add(&h, r->cont, (size_t)r->n_cont * sizeof *r->cont);
    }
    return dq_sha256_end(&h, hex, err);
}

static dq_status find_clusters(dq_plan_caches *c, const dq_items *items, dq_err *err)
{
    const int64_t n = c->n_questions;
    const int32_t *cluster;
    uint64_t *key = dq_alloc(c->arena, (size_t)n, sizeof *key, err);
    if (!key) return err->code;
    for (int64_t i = 0; i < n; i++) key[i] = items->item[i].cluster;
    DQ_TRY(dq_repeats_keys(&cluster, key, n, c->arena, err));
    if (!cluster) return DQ_OK;
    c->question_place = dq_alloc(c->arena, (size_t)n, sizeof *c->question_place, err);
    c->question_cluster = dq_alloc(c->arena, (size_t)n, sizeof *c->question_cluster, err);
    if (!c->question_place || !c->question_cluster) return err->code;
    return dq_repeats_order(c->question_place, c->question_cluster, cluster, n, err);
}

dq_status dq_plan_caches_ask_open(dq_plan_caches *c, dq_err *err)
{
    const dq_plan_caches_input *in = c->in;
    dq_requests q;
    if (dq_items_encode(&q, in->questions, in->tok, DQ_BOS_AUTO, in->model->max_positions,
                        in->model->vocab, c->arena, err) != DQ_OK)
        return dq_in(err, "%s: ", in->questions_path);
    c->n_questions = q.n_items;
    for (int64_t i = 0; i < q.n_items; i++) {
        const dq_request *first = &q.req[q.at[i]];
        if (i == 0 || first->n_ctx < c->shortest) c->shortest = first->n_ctx;
        if (first->n_ctx > c->longest) c->longest = first->n_ctx;
        c->question_ids += first->n_ctx;
    }
    for (int64_t k = 0; k < q.n; k++) c->n_single += q.req[k].n_cont == 1;
    c->n_choices = q.n;
    c->n_truncated = q.n_truncated;
    DQ_TRY(find_clusters(c, in->questions, err));
    return hash_requests(c->questions_sha256, &q, in->questions, err);
}

void dq_plan_caches_ask_expect(dq_plan_caches *c, int64_t caches)
{
    c->total += (double)(caches * c->question_ids);
}

dq_status dq_plan_caches_ask_mean(dq_mean *out, const dq_plan_caches *c, int cache, dq_err *err)
{
    const double *lack = c->list[cache].lack;
    const int64_t n = c->n_questions;
    *out = dq_mean_of(lack, n);
    if (!c->question_place) return DQ_OK;
    double *ordered = dq_block_new((size_t)n, sizeof *ordered, err);
    if (!ordered) return err->code;
    for (int64_t i = 0; i < n; i++) ordered[c->question_place[i]] = lack[i];
    *out = dq_mean_clustered(ordered, c->question_cluster, n);
    dq_block_free(ordered);
    return DQ_OK;
}

/* ---- The journal ---- */

static dq_status tell_answers(dq_plan_caches *c, int cache, int64_t begin, int64_t n, dq_err *err)
{
    const dq_plan_cache *m = &c->list[cache];
    json_t *line = json_object();
    json_object_set_new(line, c->kind.key, json_string(m->name));
    json_object_set_new(line, "question", json_integer(begin));
    json_object_set_new(line, "lack", dq_plan_journal_reals(m->lack + begin, n));
    return dq_plan_caches_tell(c, line, err);
}

dq_status dq_plan_caches_ask_take(dq_plan_caches *c, const json_t *line, dq_err *err)
{
    int64_t begin, n;
    const int cache = dq_plan_caches_of_line(c, line, err);
    if (cache < 0) return err->code;
    DQ_TRY(dq_json_int(&begin, line, "question", 0, c->n_questions - 1, NULL, err));
    dq_plan_cache *m = &c->list[cache];
    DQ_TRY(
        dq_plan_journal_take_reals(m->lack + begin, c->n_questions - begin, &n, line, "lack", err));
    for (int64_t i = begin; i < begin + n; i++) {
        c->n_resumed += !m->answered[i];
        m->answered[i] = true;
    }
    return DQ_OK;
}

/* ---- Asking ---- */

/* Questions begin .. begin + n - 1 to one cache. */
typedef struct part {
    int cache;
    int64_t begin, n;
} part;

typedef struct parts {
    dq_plan_caches *c;
    const char *what;
    part *list; /* [n] a block */
    int64_t n;
    size_t cap;
} parts;

static double lack_of(const dq_eval *e, int64_t item)
{
    const dq_requests *q = &e->ids[0].req;
    const int64_t first = q->at[item], end = q->at[item + 1];
    const double right =
        dq_eval_ll(&e->row[0], &q->req[first + e->source[0].items.item[item].gold]);
    double best = right, sum = 0;
    for (int64_t k = first; k < end; k++) best = fmax(best, dq_eval_ll(&e->row[0], &q->req[k]));
    for (int64_t k = first; k < end; k++) sum += exp(dq_eval_ll(&e->row[0], &q->req[k]) - best);
    return best + log(sum) - right;
}

static dq_status compute(dq_plan_caches *c, const part *p, dq_plan_caches_work *work, dq_arena *a,
                         dq_err *err)
{
    const dq_plan_caches_input *in = c->in;
    dq_plan_cache *m = &c->list[p->cache];
    dq_eval_model model = {
        .m = in->model, .tok = in->tok, .runner = c->runner, .sourceless = true, .shown = true};
    dq_eval_source source = {.name = "mc",
                             .path = in->questions_path,
                             .kind = &dq_eval_choices,
                             .task = dq_task_find("mc", err),
                             .items = {.item = in->questions->item + p->begin, .n = p->n}};
    dq_eval e = {.a = a,
                 .model = &model,
                 .source = &source,
                 .n_models = 1,
                 .n_sources = 1,
                 .alone = true,
                 .progress = dq_plan_caches_progress,
                 .progress_arg = work};
    DQ_TRY(dq_plan_caches_add(&e, c, p->cache, err));
    DQ_TRY(dq_eval_run(&e, err));
    for (int64_t i = 0; i < p->n; i++) {
        m->lack[p->begin + i] = lack_of(&e, i);
        m->answered[p->begin + i] = true;
    }
    return DQ_OK;
}

static dq_status run_part(void *arg, int64_t i, dq_err *err)
{
    const parts *x = arg;
    dq_plan_caches *c = x->c;
    const part *p = &x->list[i];
    const double ids = (double)(c->question_ids * p->n) / (double)c->n_questions;
    dq_plan_caches_work work = {c, ids, x->what};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    compute(c, p, &work, a, err);
    dq_arena_free(a);
    DQ_TRY(err->code);
    c->done += ids;
    return tell_answers(c, p->cache, p->begin, p->n, err);
}

/* dq_ranks_take. */
static dq_status hear(void *arg, const char *text, size_t len, dq_err *err)
{
    return dq_plan_caches_hear(((parts *)arg)->c, text, len, err);
}

static bool is_known(const dq_plan_caches *c, const part *p)
{
    for (int64_t i = p->begin; i < p->begin + p->n; i++) {
        if (!c->list[p->cache].answered[i]) return false;
    }
    return true;
}

static dq_status add_parts(parts *x, int cache, dq_err *err)
{
    for (int64_t begin = 0; begin < x->c->n_questions; begin += TOGETHER) {
        const int64_t left = x->c->n_questions - begin;
        const part p = {cache, begin, left < TOGETHER ? left : TOGETHER};
        if (is_known(x->c, &p)) continue;
        part *list = dq_grow(NULL, x->list, (size_t)x->n + 1, &x->cap, sizeof *list, err);
        if (!list) return err->code;
        x->list = list;
        list[x->n++] = p;
    }
    return DQ_OK;
}

/* What rank 0 has of a cache, which is all, becomes what all have. */
static dq_status share(dq_plan_caches *c, int cache, dq_err *err)
{
    dq_plan_cache *m = &c->list[cache];
    if (dq_ranks_count() == 1) return err->code;
    DQ_TRY(dq_ranks_share(m->lack, (size_t)c->n_questions * sizeof *m->lack, err));
    for (int64_t i = 0; i < c->n_questions; i++) m->answered[i] = true;
    return DQ_OK;
}

dq_status dq_plan_caches_ask_run(dq_plan_caches *c, const int *cache, int n, const char *what,
                                 dq_err *err)
{
    parts x = {.c = c, .what = what};
    if (c->n_questions == 0) return err->code;
    for (int i = 0; err->code == DQ_OK && i < n; i++) add_parts(&x, cache[i], err);
    const dq_ranks_work work = {.n = x.n, .run = run_part, .take = hear, .arg = &x};
    dq_ranks_run(&work, err);
    dq_block_free(x.list);
    for (int i = 0; err->code == DQ_OK && i < n; i++) share(c, cache[i], err);
    return err->code;
}
