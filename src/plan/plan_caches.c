/* Lines of the ledger (work/work.h): {KEY: name, "from", "to", "kld", "loss"}, a number for each
 * window.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/os.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "plan/inside.h"
#include "tasks/documents.h"
#include "work/ranks.h"

#include <math.h>
#include <string.h>

/* Progress of a dq_eval over so many tokens; arg of its callback. */
typedef struct dq_plan_caches_work {
    dq_plan_caches *c;
    double ids;
    const char *what;
} dq_plan_caches_work;

/* -1: see err. */
static int find(dq_plan_caches *c, const char *name, dq_err *err)
{
    for (int i = 0; i < c->n; i++) {
        if (strcmp(c->list[i].name, name) == 0) return i;
    }
    const size_t n = (size_t)c->win.n, asked = (size_t)c->n_questions;
    dq_plan_cache *list = dq_grow(c->arena, c->list, (size_t)c->n + 1, &c->cap, sizeof *list, err);
    if (!list) return -1;
    c->list = list;
    dq_plan_cache *m = &list[c->n];
    *m = (dq_plan_cache){.name = dq_textf(c->arena, err, "%s", name),
                         .known = dq_alloc(c->arena, n, sizeof *m->known, err),
                         .kld = dq_alloc(c->arena, n, sizeof *m->kld, err),
                         .loss = dq_alloc(c->arena, n, sizeof *m->loss, err),
                         .answered = dq_alloc(c->arena, asked, sizeof *m->answered, err),
                         .lack = dq_alloc(c->arena, asked, sizeof *m->lack, err)};
    return err->code == DQ_OK ? c->n++ : -1;
}

int dq_plan_caches_find(dq_plan_caches *c, const char *name, dq_err *err)
{
    const int i = find(c, name, err);
    if (i >= 0 && c->list[i].place == 0) c->list[i].place = ++c->n_places;
    return i;
}

dq_status dq_plan_caches_spec(dq_kv_spec *out, const dq_plan_caches *c, const char *name,
                              dq_err *err)
{
    const dq_math math = {0};
    dq_kv_config config;
    DQ_TRY(c->kind.config(&config, c->kind.arg, name, err));
    DQ_TRY(dq_model_kv_spec(out, &config, c->in->model, math.kv, err));
    return dq_backend_can(c->in->backend, c->in->model, math, out, err);
}

static dq_status add_cache(dq_eval *e, const dq_plan_caches *c, int cache, dq_err *err)
{
    dq_kv_spec spec;
    DQ_TRY(dq_plan_caches_spec(&spec, c, c->list[cache].name, err));
    return dq_eval_add(e, 0, 0, dq_logit_plain, (dq_math){0}, &spec, err);
}

/* The cache that a line names; -1: see err. */
static int of_line(dq_plan_caches *c, const json_t *line, dq_err *err)
{
    const char *name;
    if (dq_json_text(&name, line, c->kind.key, NULL, err) != DQ_OK) return -1;
    if (c->kind.is_name(c->kind.arg, name)) return find(c, name, err);
    dq_fail(err, DQ_DAMAGED, "\"%s\" \"%.80s\" are not as a plan writes them", c->kind.key, name);
    return -1;
}

static void take_up(dq_plan_caches *c, bool *known, int64_t from, int64_t to, bool told)
{
    for (int64_t i = from; i < to; i++) {
        c->n_resumed += !told && !known[i];
        known[i] = true;
    }
}

static dq_status take_windows(dq_plan_caches *c, const json_t *line, bool told, dq_err *err)
{
    int64_t from, to;
    const int cache = of_line(c, line, err);
    if (cache < 0) return err->code;
    DQ_TRY(dq_json_int(&from, line, "from", 0, c->win.n - 1, NULL, err));
    DQ_TRY(dq_json_int(&to, line, "to", from + 1, c->win.n, NULL, err));
    const dq_plan_cache *m = &c->list[cache];
    DQ_TRY(dq_plan_take_nats(m->kld + from, to - from, line, "kld", err));
    DQ_TRY(dq_plan_take_nats(m->loss + from, to - from, line, "loss", err));
    take_up(c, m->known, from, to, told);
    const double beside = 1 + 1.0 / DQ_PLAN_CACHES_SWEEP; /* the unquantized cache */
    if (told) c->done += (double)((to - from) * c->in->ctx) * beside;
    return DQ_OK;
}

/* A line is {KEY: name, "question": the first, "to", "lack"}. */
static dq_status take_answers(dq_plan_caches *c, const json_t *line, bool told, dq_err *err)
{
    int64_t from, to;
    const int cache = of_line(c, line, err);
    if (cache < 0) return err->code;
    DQ_TRY(dq_json_int(&from, line, "question", 0, c->n_questions - 1, NULL, err));
    DQ_TRY(dq_json_int(&to, line, "to", from + 1, c->n_questions, NULL, err));
    const dq_plan_cache *m = &c->list[cache];
    DQ_TRY(dq_plan_take_nats(m->lack + from, to - from, line, "lack", err));
    take_up(c, m->answered, from, to, told);
    if (told) c->done += (double)(c->question_ids * (to - from)) / (double)c->n_questions;
    return DQ_OK;
}

static dq_status take_line(void *arg, const json_t *line, bool told, dq_err *err)
{
    return json_object_get(line, "lack") ? take_answers(arg, line, told, err)
                                         : take_windows(arg, line, told, err);
}

dq_status dq_plan_caches_begin(dq_plan_caches *c, dq_err *err)
{
    char ids[65];
    DQ_TRY(dq_windows_hash(ids, &c->win, err));
    /* Everything that a cache's numbers depend on. */
    const dq_plan_caches_input *in = c->in;
    json_t *of = json_object();
    dq_row_writer w = dq_row_json(of);
    DQ_PUT(&w, "version", in->dq_version, NULL);
    DQ_PUT(&w, "compiler", __VERSION__, NULL);
    DQ_PUT(&w, "cpu", dq_os_cpu_features(NULL), NULL);
    DQ_PUT(&w, "on_cpu", (bool)(strncmp(in->backend->device, "cpu", 3) == 0), NULL);
    DQ_PUT(&w, "model", in->content, NULL);
    DQ_PUT(&w, "text", in->text_sha256, NULL);
    DQ_PUT(&w, "ids", ids, NULL);
    DQ_PUT(&w, "ctx", in->ctx, NULL);
    DQ_PUT(&w, "windows", c->win.n, NULL);
    c->kind.depend(&w, c->kind.arg);
    if (c->n_questions) DQ_PUT(&w, "questions", c->questions_sha256, NULL);
    const dq_work_how how = {.path = dq_textf(c->arena, err, "%s.journal", in->out),
                             .schema = "dq-plan-caches/1",
                             .of = of,
                             .source = {{"model", in->model->path},
                                        {"text", in->text},
                                        {"ids", in->text},
                                        {"questions", in->questions_path}},
                             .resume = in->resume,
                             .force = in->force,
                             .beside = true,
                             .shared = true,
                             .take = take_line,
                             .arg = c};
    dq_work_open(&c->work, &how, err);
    json_decref(of);
    DQ_TRY(err->code);
    return dq_runner_new(&c->runner, c->in->model, c->in->backend, &dq_kv_plain, err);
}

void dq_plan_caches_end(dq_plan_caches *c)
{
    dq_work_close(&c->work, false);
    dq_runner_free(c->runner);
}

dq_status dq_plan_caches_fit(dq_plan_caches_input *in, dq_err *err)
{
    const int positions = in->model->max_positions;
    if (in->ctx == 0) in->ctx = positions > 0 && positions < 2048 ? positions : 2048;
    if (in->ctx <= positions) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CTX, .number = {positions}},
                        "%s: has %d positions, windows of %lld tokens are more", in->model->path,
                        positions, (long long)in->ctx);
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

static dq_status open_questions(dq_plan_caches *c, dq_err *err)
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
    /* Hashes the tokens of all requests and the indices of right choices. */
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < q.n; i++) {
        const dq_request *r = &q.req[i];
        const int64_t head[] = {r->item, r->choice, in->questions->item[r->item].gold, r->n_ctx,
                                r->n_cont};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, r->ctx, (size_t)r->n_ctx * sizeof *r->ctx);
        dq_sha256_add(&h, r->cont, (size_t)r->n_cont * sizeof *r->cont);
    }
    return dq_sha256_end(&h, c->questions_sha256, err);
}

dq_status dq_plan_caches_cut(dq_plan_caches *c, const dq_plan_caches_input *in,
                             const dq_plan_caches_kind *kind, dq_arena *a, dq_err *err)
{
    const dq_window_spec spec = {.scheme = DQ_WINDOW_CHUNK,
                                 .n_ctx = in->ctx,
                                 .limit = in->windows,
                                 .bos = DQ_BOS_AUTO,
                                 .vocab = in->model->vocab};
    *c = (dq_plan_caches){.in = in, .kind = *kind, .arena = a};
    dq_windows_make(&c->win, in->tok, in->docs, &spec, a, err);
    /* documents exist only after encoding, so the tokenizer did not fail */
    if (err->code == DQ_MISMATCH && c->win.doc && c->win.n == 0) *err = (dq_err){0};
    if (err->code != DQ_OK) return dq_in(err, "%s: ", in->text);
    return in->questions ? open_questions(c, err) : DQ_OK;
}

static bool is_in(const dq_plan_caches *c, int64_t window, dq_plan_caches_windows which)
{
    return (window >= c->begin && window < c->end) == (which == DQ_PLAN_CACHES_SEARCH);
}

/* of[window] (NULL: not wanted) becomes its cluster among such windows, numbered from 0. */
static dq_status number_clusters(int64_t *of, int64_t *n, const dq_plan_caches *c,
                                 dq_plan_caches_windows which, dq_err *err)
{
    int64_t *number = dq_block_new((size_t)c->win.n, sizeof *number, err); /* from 1 */
    *n = 0;
    for (int64_t x = 0; number && x < c->win.n; x++) {
        if (!is_in(c, x, which)) continue;
        if (number[c->win.cluster[x]] == 0) number[c->win.cluster[x]] = ++*n;
        if (of) of[x] = number[c->win.cluster[x]] - 1;
    }
    dq_block_free(number);
    return err->code;
}

dq_status dq_plan_caches_split(dq_plan_caches *c, int64_t begin, int64_t end, dq_err *err)
{
    c->begin = begin;
    c->end = end;
    DQ_TRY(number_clusters(NULL, &c->clusters, c, DQ_PLAN_CACHES_UNSEEN, err));
    if (c->clusters > 1) return DQ_OK;
    return dq_fail_with(
        err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SMALLER_CTX},
        c->win.n_docs < 2
            ? "%s: repeats itself: an interval needs 2 windows, and the %lld of %lld tokens that "
              "decide are copies of one, of %lld document. Give other text,"
            : "%s: too little text: an interval needs 2 documents, and the %lld windows "
              "of %lld tokens that decide lie in one of %lld, or its copies. Give more of them, "
              "the "
              "text as a single one,",
        c->in->text, (long long)(c->win.n - (end - begin)), (long long)c->in->ctx,
        (long long)c->win.n_docs);
}

int64_t dq_plan_caches_ids(const dq_plan_caches *c, dq_plan_caches_windows which)
{
    const int64_t search = c->end - c->begin;
    return (which == DQ_PLAN_CACHES_SEARCH ? search : c->win.n - search) * c->in->ctx;
}

void dq_plan_caches_expect(dq_plan_caches *c, int64_t search, int64_t unseen)
{
    const double ids = (double)(search * dq_plan_caches_ids(c, DQ_PLAN_CACHES_SEARCH)) +
                       (double)(unseen * dq_plan_caches_ids(c, DQ_PLAN_CACHES_UNSEEN));
    c->total = c->done + ids * (DQ_PLAN_CACHES_SWEEP + 1) / DQ_PLAN_CACHES_SWEEP;
}

void dq_plan_caches_stage(const dq_plan_caches *c, const char *name)
{
    if (c->in->stage) c->in->stage(c->in->arg, name);
}

static void caches_progress(void *arg, double share, const char *note)
{
    const dq_plan_caches_work *w = arg;
    dq_plan_caches *c = w->c;
    const double done = c->done + share * w->ids;
    (void)note;
    if (c->total < done) c->total = done;
    if (c->in->step) c->in->step(c->in->arg, done, c->total, w->what);
}

/* By cluster, a document or a window of a single one. less -1: nothing. kld and ids are blocks. */
static dq_status sums_of(dq_plan_sums *out, const dq_plan_caches *c, int cache, int less,
                         dq_plan_caches_windows which, dq_err *err)
{
    const size_t all = (size_t)c->win.n;
    double *sums = dq_block_new(2 * all, sizeof *sums, err);
    int64_t *ids = dq_block_new(2 * all, sizeof *ids, err);
    *out = (dq_plan_sums){.ids = ids, .kld = sums};
    if (!sums || !ids) return err->code;
    int64_t *of = ids + all;
    out->loss = sums + all;
    DQ_TRY(number_clusters(of, &out->n, c, which, err));
    const dq_plan_cache *m = &c->list[cache], *other = less < 0 ? NULL : &c->list[less];
    for (int64_t x = 0; x < c->win.n; x++) {
        if (!is_in(c, x, which)) continue;
        const int64_t scored = dq_window_scored(&c->win.win[x]);
        out->kld[of[x]] += (double)scored * (m->kld[x] - (other ? other->kld[x] : 0));
        out->loss[of[x]] += (double)scored * (m->loss[x] - (other ? other->loss[x] : 0));
        ids[of[x]] += scored;
    }
    return DQ_OK;
}

static void free_sums(const dq_plan_sums *s)
{
    dq_block_free(s->kld);
    dq_block_free((void *)(uintptr_t)s->ids);
}

dq_status dq_plan_caches_numbers_of(dq_plan_numbers *out, const dq_plan_caches *c, int cache,
                                    dq_plan_caches_windows which, dq_err *err)
{
    dq_plan_sums s;
    if (sums_of(&s, c, cache, -1, which, err) == DQ_OK) dq_plan_numbers_of(out, &s, err);
    free_sums(&s);
    return err->code;
}

dq_status dq_plan_caches_found_of(dq_plan_found *out, const dq_plan_caches *c, int cache, int less,
                                  double outside, dq_err *err)
{
    dq_plan_sums s;
    if (sums_of(&s, c, cache, less, DQ_PLAN_CACHES_UNSEEN, err) == DQ_OK)
        dq_plan_found_of(out, &s, less >= 0, outside, err);
    free_sums(&s);
    return err->code;
}

/* Few questions at a time, so that an interruption costs little. The unquantized cache is not
 * asked: what answers lack says enough. */

enum { TOGETHER = 8 }; /* questions */

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

/* Some windows of several caches, or some questions to one cache. */
typedef struct piece {
    int64_t begin, end;
    int cache[DQ_PLAN_CACHES_SWEEP], n;
} piece;

typedef struct pieces {
    dq_plan_caches *c;
    const char *what;
    bool asks;
    piece *list; /* [n] a block */
    int64_t n;
    size_t cap;
} pieces;

static dq_status add_piece(pieces *x, const int *cache, int n, int64_t begin, int64_t end,
                           dq_err *err)
{
    piece *list = dq_grow(NULL, x->list, (size_t)x->n + 1, &x->cap, sizeof *list, err);
    if (!list) return err->code;
    x->list = list;
    piece *p = &list[x->n++];
    *p = (piece){.begin = begin, .end = end, .n = n};
    memcpy(p->cache, cache, (size_t)n * sizeof *cache);
    return DQ_OK;
}

static bool is_known(const bool *known, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        if (!known[i]) return false;
    }
    return true;
}

static dq_status ask(dq_plan_caches *c, const piece *p, dq_plan_caches_work *work, dq_arena *a,
                     dq_err *err)
{
    const dq_plan_caches_input *in = c->in;
    const dq_plan_cache *m = &c->list[p->cache[0]];
    const int64_t n = p->end - p->begin;
    dq_eval_model model = {
        .m = in->model, .tok = in->tok, .runner = c->runner, .sourceless = true, .shown = true};
    dq_eval_source source = {.name = "mc",
                             .path = in->questions_path,
                             .kind = &dq_eval_choices,
                             .task = dq_task_find("mc", a, err),
                             .items = {.item = in->questions->item + p->begin, .n = n}};
    dq_eval e = {.a = a,
                 .model = &model,
                 .source = &source,
                 .n_models = 1,
                 .n_sources = 1,
                 .alone = true,
                 .progress = caches_progress,
                 .progress_arg = work};
    DQ_TRY(add_cache(&e, c, p->cache[0], err));
    DQ_TRY(dq_eval_run(&e, err));
    for (int64_t i = 0; i < n; i++) {
        const dq_requests *q = &e.ids[0].req;
        const int64_t first = q->at[i], end = q->at[i + 1];
        const double right = dq_eval_ll(&e.row[0], &q->req[first + e.source[0].items.item[i].gold]);
        double best = right, sum = 0;
        for (int64_t k = first; k < end; k++) best = fmax(best, dq_eval_ll(&e.row[0], &q->req[k]));
        for (int64_t k = first; k < end; k++) sum += exp(dq_eval_ll(&e.row[0], &q->req[k]) - best);
        m->lack[p->begin + i] = best + log(sum) - right;
        m->answered[p->begin + i] = true;
    }
    return DQ_OK;
}

/* A piece is a sweep of dq_eval for some caches and as many windows as a pass holds, so that the
 * unquantized cache runs once for all and an interruption costs little. Where ranks share, each has
 * fewer windows and about as many caches, so that they end together. */

enum { SHARED_ROWS = 512 }; /* of a cache in a piece: products over fewer cost more each */

/* Tokens that a piece runs. */
static double ids_of(const pieces *x, const piece *p)
{
    const dq_plan_caches *c = x->c;
    const int64_t n = p->end - p->begin;
    if (x->asks) return (double)(c->question_ids * n) / (double)c->n_questions;
    return (double)(p->n + 1) * (double)n * (double)c->in->ctx;
}

static dq_status read_windows(dq_plan_caches *c, const piece *p, dq_plan_caches_work *work,
                              dq_arena *a, dq_err *err)
{
    const dq_plan_caches_input *in = c->in;
    dq_eval_model model = {.m = in->model, .tok = in->tok, .runner = c->runner, .shown = true};
    /* its windows are cut already, so it needs no settings */
    dq_eval_source source = {.name = "text", .path = in->text, .kind = &dq_eval_text};
    dq_eval_ids ids = {.source = 0};
    dq_eval e = {.a = a,
                 .model = &model,
                 .source = &source,
                 .ids = &ids,
                 .n_models = 1,
                 .n_sources = 1,
                 .n_ids = 1,
                 .n_ctx = in->ctx,
                 .alone = true,
                 .progress = caches_progress,
                 .progress_arg = work};
    dq_windows *out = &ids.win;
    dq_window *win = dq_alloc(a, (size_t)(p->end - p->begin), sizeof *win, err);
    if (!win) return err->code;
    const int64_t first = dq_windows_values(&c->win, p->begin);
    *out = c->win;
    out->win = win;
    out->n = p->end - p->begin;
    out->n_values = dq_windows_values(&c->win, p->end) - first;
    for (int64_t i = 0; i < out->n; i++) {
        win[i] = c->win.win[p->begin + i];
        win[i].value -= first;
    }
    for (int i = 0; i < p->n; i++) DQ_TRY(add_cache(&e, c, p->cache[i], err));
    DQ_TRY(dq_eval_run(&e, err));
    /* Rows stand in the order of the caches, with their reference. */
    const dq_windows *w = &e.ids[0].win;
    for (int t = 0, k = 0; t < e.n_rows; t++) {
        const dq_eval_row *row = &e.row[t], *ref = &e.row[row->ref];
        if (row->ref == t) continue;
        dq_plan_cache *m = &c->list[p->cache[k++]];
        for (int64_t x = 0; x < w->n; x++) {
            const int64_t from = w->win[x].value, to = dq_windows_values(w, x + 1);
            double kld = 0, loss = 0;
            for (int64_t v = from; v < to; v++) {
                kld += row->kld[v];
                loss += ref->logp[v] - row->logp[v];
            }
            m->kld[p->begin + x] = kld / (double)(to - from);
            m->loss[p->begin + x] = loss / (double)(to - from);
            m->known[p->begin + x] = true;
        }
    }
    return DQ_OK;
}

static dq_status put_piece(dq_plan_caches *c, const piece *p, int cache, bool asks, dq_err *err)
{
    const dq_plan_cache *m = &c->list[cache];
    const int64_t from = p->begin, n = p->end - from;
    json_t *line = json_object();
    dq_row_writer w = dq_row_json(line);
    DQ_PUT(&w, c->kind.key, m->name, NULL);
    DQ_PUT(&w, asks ? "question" : "from", from, NULL);
    DQ_PUT(&w, "to", p->end, NULL);
    if (asks) DQ_PUT(&w, "lack", dq_work_reals(m->lack + from, n), NULL);
    if (!asks) DQ_PUT(&w, "kld", dq_work_reals(m->kld + from, n), NULL);
    if (!asks) DQ_PUT(&w, "loss", dq_work_reals(m->loss + from, n), NULL);
    return dq_work_put(&c->work, line, err);
}

static dq_status run_piece(void *arg, int64_t i, dq_err *err)
{
    const pieces *x = arg;
    dq_plan_caches *c = x->c;
    const piece *p = &x->list[i];
    dq_plan_caches_work work = {c, ids_of(x, p), x->what};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x->asks ? ask(c, p, &work, a, err) : read_windows(c, p, &work, a, err);
    dq_arena_free(a);
    DQ_TRY(err->code);
    c->done += work.ids;
    for (int k = 0; k < p->n; k++) DQ_TRY(put_piece(c, p, p->cache[k], x->asks, err));
    return DQ_OK;
}

dq_status dq_plan_caches_pace(double *seconds, dq_plan_caches *c, int cache, dq_err *err)
{
    const piece p = {.end = 1, .cache = {cache}, .n = 1};
    const pieces x = {.c = c};
    dq_plan_caches_work work = {c, ids_of(&x, &p), NULL};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_runner_new(&c->runner, c->in->model, c->in->backend, &dq_kv_plain, err) == DQ_OK) {
        const double before = dq_os_seconds();
        read_windows(c, &p, &work, a, err);
        *seconds = (dq_os_seconds() - before) / work.ids / dq_ranks_count();
    }
    dq_runner_free(c->runner);
    c->runner = NULL;
    dq_arena_free(a);
    return err->code;
}

static bool is_before(const int *cache, int i)
{
    for (int k = 0; k < i; k++) {
        if (cache[k] == cache[i]) return true;
    }
    return false;
}

/* Windows that search lie between others. */
static dq_status add_windows(pieces *x, const int *cache, int n, dq_plan_caches_windows which,
                             dq_err *err)
{
    const dq_plan_caches *c = x->c;
    const int64_t rows = dq_ranks_count() > 1 ? SHARED_ROWS : DQ_SCORE_ROWS;
    const int64_t fit = rows / c->in->ctx, step = fit > 1 ? fit : 1;
    const int64_t edge[] = {0, c->begin, c->end, c->win.n};
    for (int i = 0; i < 3; i++) {
        if ((i == 1) != (which == DQ_PLAN_CACHES_SEARCH)) continue;
        for (int64_t begin = edge[i]; begin < edge[i + 1]; begin += step) {
            const int64_t end = begin + step < edge[i + 1] ? begin + step : edge[i + 1];
            /* Unknown caches in batches: at most a sweep's, in pieces of similar size. */
            int lacking = 0;
            int *list = dq_block_new((size_t)n, sizeof *list, err);
            for (int t = 0; list && t < n; t++) {
                if (!is_before(cache, t) && !is_known(x->c->list[cache[t]].known, begin, end))
                    list[lacking++] = cache[t];
            }
            const int most = DQ_PLAN_CACHES_SWEEP, groups = (lacking + most - 1) / most;
            for (int k = 0, from = 0, to; err->code == DQ_OK && k < groups; k++, from = to) {
                to = dq_ranks_count() > 1 ? (k + 1) * lacking / groups : (k + 1) * most;
                if (to > lacking) to = lacking;
                add_piece(x, list + from, to - from, begin, end, err);
            }
            dq_block_free(list);
            if (err->code != DQ_OK) return err->code;
        }
    }
    return DQ_OK;
}

dq_status dq_plan_caches_run(dq_plan_caches *c, const int *cache, int n,
                             dq_plan_caches_windows which, const char *what, dq_err *err)
{
    pieces x = {.c = c, .what = what};
    add_windows(&x, cache, n, which, err);
    dq_work_run(&c->work, x.n, run_piece, &x, err);
    dq_block_free(x.list);
    return err->code;
}

dq_status dq_plan_caches_ask_run(dq_plan_caches *c, const int *cache, int n, const char *what,
                                 dq_err *err)
{
    pieces x = {.c = c, .what = what, .asks = true};
    if (c->n_questions == 0) return err->code;
    for (int i = 0; i < n; i++) {
        for (int64_t begin = 0; err->code == DQ_OK && begin < c->n_questions; begin += TOGETHER) {
            const int64_t left = c->n_questions - begin,
                          end = begin + (left < TOGETHER ? left : TOGETHER);
            if (!is_known(c->list[cache[i]].answered, begin, end))
                add_piece(&x, &cache[i], 1, begin, end, err);
        }
    }
    dq_work_run(&c->work, x.n, run_piece, &x, err);
    dq_block_free(x.list);
    return err->code;
}
