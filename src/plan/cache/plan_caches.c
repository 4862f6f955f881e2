/* plan_caches: see plan_caches.h. A sweep of dq_eval for some caches and as many windows as a pass holds, so that the
 * unquantized cache runs once for all of them and an end in between costs little; its rows are summed by window and dropped.
 * Lines of the journal: {KEY: name, "from", "kld": [...], "loss": [...]}, a number for each window; those of questions are
 * plan_caches_ask.h's.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_caches.h"

#include "base/os.h"
#include "base/sha256.h"
#include "plan/cache/plan_caches_ask.h"
#include "plan/plan_decide.h"

#include <math.h>
#include <string.h>

/* ---- Caches ---- */

int dq_plan_caches_find(dq_plan_caches *c, const char *name, dq_err *err)
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

dq_status dq_plan_caches_spec(dq_kv_spec *out, const dq_plan_caches *c, const char *name,
                              dq_err *err)
{
    const dq_math math = {0};
    dq_kv_config config;
    DQ_TRY(c->kind.config(&config, c->kind.arg, name, err));
    DQ_TRY(dq_model_kv_spec(out, &config, c->in->model, math.kv, err));
    return dq_backend_can(c->in->backend, c->in->model, math, out, err);
}

dq_status dq_plan_caches_add(dq_eval *e, const dq_plan_caches *c, int cache, dq_err *err)
{
    dq_kv_spec spec;
    DQ_TRY(dq_plan_caches_spec(&spec, c, c->list[cache].name, err));
    return dq_eval_add(e, 0, 0, dq_logit_plain, (dq_math){0}, &spec, err);
}

/* ---- The journal ---- */

static dq_status put_cache(dq_plan_caches *c, int cache, int64_t begin, int64_t end, dq_err *err)
{
    const dq_plan_cache *m = &c->list[cache];
    json_t *line = json_object();
    json_object_set_new(line, c->kind.key, json_string(m->name));
    json_object_set_new(line, "from", json_integer(begin));
    json_object_set_new(line, "kld", dq_plan_journal_reals(m->kld + begin, end - begin));
    json_object_set_new(line, "loss", dq_plan_journal_reals(m->loss + begin, end - begin));
    return dq_plan_journal_put(&c->journal, line, err);
}

int dq_plan_caches_of_line(dq_plan_caches *c, const json_t *line, dq_err *err)
{
    const char *name;
    if (dq_json_text(&name, line, c->kind.key, NULL, err) != DQ_OK) return -1;
    if (c->kind.is_name(c->kind.arg, name)) return dq_plan_caches_find(c, name, err);
    dq_fail(err, DQ_DAMAGED, "\"%s\" \"%.80s\" are not as a plan writes them", c->kind.key, name);
    return -1;
}

static dq_status take_windows(dq_plan_caches *c, const json_t *line, dq_err *err)
{
    int64_t from, n_kld, n_loss;
    const int cache = dq_plan_caches_of_line(c, line, err);
    if (cache < 0) return err->code;
    DQ_TRY(dq_json_int(&from, line, "from", 0, c->win.n - 1, NULL, err));
    dq_plan_cache *m = &c->list[cache];
    DQ_TRY(dq_plan_journal_take_reals(m->kld + from, c->win.n - from, &n_kld, line, "kld", err));
    DQ_TRY(dq_plan_journal_take_reals(m->loss + from, c->win.n - from, &n_loss, line, "loss", err));
    if (n_kld != n_loss) return dq_fail(err, DQ_DAMAGED, "\"kld\" and \"loss\" differ in length");
    for (int64_t i = from; i < from + n_kld; i++) {
        c->n_resumed += !m->known[i];
        m->known[i] = true;
    }
    return DQ_OK;
}

static dq_status take_line(void *arg, json_t *line, dq_err *err)
{
    dq_plan_caches *c = arg;
    json_object_get(line, "lack") ? dq_plan_caches_ask_take(c, line, err)
                                  : take_windows(c, line, err);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", c->journal.path);
}

/* Of each window where it stands and its ids, which a tokenizer and a form of text make of the same bytes. */
static dq_status hash_ids(char hex[65], const dq_plan_caches *c, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < c->win.n; i++) {
        const dq_window *w = &c->win.win[i];
        const int64_t head[] = {w->n, w->first, w->past, w->doc};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, w->ids, (size_t)(w->n + w->past) * sizeof *w->ids);
    }
    return dq_sha256_end(&h, hex, err);
}

/* All that numbers of a cache on a window depend on; ids: hash_ids. */
static json_t *key_of(const dq_plan_caches *c, const char *ids)
{
    const dq_plan_caches_input *in = c->in;
    json_t *of = json_object();
    json_object_set_new(of, "version", json_string(in->dq_version));
    json_object_set_new(of, "compiler", json_string(__VERSION__));
    json_object_set_new(of, "cpu", json_integer(dq_os_cpu_features(NULL)));
    json_object_set_new(of, "on_cpu", json_boolean(strncmp(in->backend->device, "cpu", 3) == 0));
    json_object_set_new(of, "model", json_string(in->content));
    json_object_set_new(of, "text", json_string(in->text_sha256));
    json_object_set_new(of, "ids", json_string(ids));
    json_object_set_new(of, "ctx", json_integer(in->ctx));
    json_object_set_new(of, "windows", json_integer(c->win.n));
    c->kind.depend(of, c->kind.arg);
    if (c->n_questions) json_object_set_new(of, "questions", json_string(c->questions_sha256));
    return of;
}

dq_status dq_plan_caches_begin(dq_plan_caches *c, dq_err *err)
{
    char key[65], ids[65];
    DQ_TRY(hash_ids(ids, c, err));
    json_t *of = key_of(c, ids);
    if (dq_plan_journal_key(key, of, err) == DQ_OK) {
        const dq_plan_journal_how how = {.out = c->in->out,
                                         .key = key,
                                         .of = of,
                                         .file = {{"model", c->in->model->path},
                                                  {"text", c->in->text},
                                                  {"ids", c->in->text},
                                                  {"questions", c->in->questions_path}},
                                         .resume = c->in->resume,
                                         .force = c->in->force,
                                         .take = take_line,
                                         .arg = c};
        dq_plan_journal_open(&c->journal, &how, c->arena, err);
    }
    json_decref(of);
    DQ_TRY(err->code);
    return dq_runner_new(&c->runner, c->in->model, c->in->backend, &dq_kv_plain, err);
}

void dq_plan_caches_end(dq_plan_caches *c)
{
    dq_plan_journal_end(&c->journal, false);
    dq_runner_free(c->runner);
}

/* ---- The text ---- */

dq_status dq_plan_caches_fit(dq_plan_caches_input *in, dq_err *err)
{
    const int positions = in->model->max_positions;
    if (in->ctx == 0) in->ctx = positions > 0 && positions < 2048 ? positions : 2048;
    if (in->ctx <= positions) return DQ_OK;
    return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CTX, .number = {positions}},
                        "%s: has %d positions, windows of %lld tokens are more", in->model->path,
                        positions, (long long)in->ctx);
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
    /* documents are there once they are encoded, so that the tokenizer has failed at none */
    if (err->code == DQ_MISMATCH && c->win.doc && c->win.n == 0) *err = (dq_err){0};
    if (err->code != DQ_OK) return dq_in(err, "%s: ", in->text);
    return in->questions ? dq_plan_caches_ask_open(c, err) : DQ_OK;
}

static bool is_in(const dq_plan_caches *c, int64_t window, dq_plan_caches_part part)
{
    return (window >= c->begin && window < c->end) == (part == DQ_PLAN_CACHES_SEARCH);
}

/* of[window] of a part (NULL: not wanted): its cluster, numbered within the part. */
static dq_status number_clusters(int64_t *of, int64_t *n, const dq_plan_caches *c,
                                 dq_plan_caches_part part, dq_err *err)
{
    int64_t *number = dq_block_new((size_t)c->win.n, sizeof *number, err); /* from 1 */
    *n = 0;
    for (int64_t x = 0; number && x < c->win.n; x++) {
        if (!is_in(c, x, part)) continue;
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

int64_t dq_plan_caches_ids(const dq_plan_caches *c, dq_plan_caches_part part)
{
    const int64_t search = c->end - c->begin;
    return (part == DQ_PLAN_CACHES_SEARCH ? search : c->win.n - search) * c->in->ctx;
}

/* ---- Progress ---- */

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

void dq_plan_caches_progress(void *arg, double share, const char *note)
{
    const dq_plan_caches_work *w = arg;
    dq_plan_caches *c = w->c;
    const double done = c->done + share * w->ids;
    (void)note;
    if (c->total < done) c->total = done;
    if (c->in->step) c->in->step(c->in->arg, done, c->total, w->what);
}

/* ---- Sweeps ---- */

/* Some caches on windows begin .. end - 1. */
typedef struct sweep {
    dq_plan_caches_work work;
    dq_plan_caches *c;
    const int *cache; /* [n] */
    int n;
    int64_t begin, end;
} sweep;

/* The part of all windows. */
static dq_status slice(dq_windows *out, const sweep *s, dq_arena *a, dq_err *err)
{
    const dq_windows *all = &s->c->win;
    dq_window *win = dq_alloc(a, (size_t)(s->end - s->begin), sizeof *win, err);
    if (!win) return err->code;
    const int64_t first = dq_windows_values(all, s->begin);
    *out = *all;
    out->win = win;
    out->n = s->end - s->begin;
    out->n_values = dq_windows_values(all, s->end) - first;
    for (int64_t i = 0; i < out->n; i++) {
        win[i] = all->win[s->begin + i];
        win[i].value -= first;
    }
    return DQ_OK;
}

/* Means by window of rows, which stand in the order of the caches, their reference among them. */
static void take_rows(const dq_eval *e, const sweep *s)
{
    const dq_windows *w = &e->ids[0].win;
    for (int i = 0, k = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i], *ref = &e->row[row->ref];
        if (row->ref == i) continue;
        dq_plan_cache *m = &s->c->list[s->cache[k++]];
        for (int64_t x = 0; x < w->n; x++) {
            const int64_t from = w->win[x].value, to = dq_windows_values(w, x + 1);
            double kld = 0, loss = 0;
            for (int64_t v = from; v < to; v++) {
                kld += row->kld[v];
                loss += ref->logp[v] - row->logp[v];
            }
            m->kld[s->begin + x] = kld / (double)(to - from);
            m->loss[s->begin + x] = loss / (double)(to - from);
            m->known[s->begin + x] = true;
        }
    }
}

/* Without the journal. */
static dq_status compute_sweep(sweep *s, dq_arena *a, dq_err *err)
{
    const dq_plan_caches_input *in = s->c->in;
    dq_eval_model model = {.m = in->model, .tok = in->tok, .runner = s->c->runner, .shown = true};
    /* its windows are cut already: it has no settings */
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
                 .progress = dq_plan_caches_progress,
                 .progress_arg = &s->work};
    s->work.ids = (double)(s->n + 1) * (double)(s->end - s->begin) * (double)in->ctx;
    DQ_TRY(slice(&ids.win, s, a, err));
    for (int i = 0; i < s->n; i++) DQ_TRY(dq_plan_caches_add(&e, s->c, s->cache[i], err));
    DQ_TRY(dq_eval_run(&e, err));
    take_rows(&e, s);
    return DQ_OK;
}

static dq_status run_sweep(sweep *s, dq_arena *a, dq_err *err)
{
    DQ_TRY(compute_sweep(s, a, err));
    s->c->done += s->work.ids;
    for (int i = 0; i < s->n; i++) DQ_TRY(put_cache(s->c, s->cache[i], s->begin, s->end, err));
    return DQ_OK;
}

dq_status dq_plan_caches_pace(double *seconds, dq_plan_caches *c, int cache, dq_err *err)
{
    sweep s = {.work = {.c = c}, .c = c, .cache = &cache, .n = 1, .end = 1};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_runner_new(&c->runner, c->in->model, c->in->backend, &dq_kv_plain, err) == DQ_OK) {
        const double before = dq_os_seconds();
        compute_sweep(&s, a, err);
        *seconds = (dq_os_seconds() - before) / s.work.ids;
    }
    dq_runner_free(c->runner);
    c->runner = NULL;
    dq_arena_free(a);
    return err->code;
}

/* The caches that are not known in these windows, some at a time. */
static dq_status run_group(sweep *s, const int *cache, int n, dq_err *err)
{
    int todo[DQ_PLAN_CACHES_SWEEP];
    s->cache = todo;
    s->n = 0;
    for (int i = 0; i < n; i++) {
        bool known = true;
        for (int64_t x = s->begin; x < s->end; x++) known = known && s->c->list[cache[i]].known[x];
        for (int k = 0; k < s->n; k++) known = known || todo[k] == cache[i];
        if (!known) todo[s->n++] = cache[i];
        if (s->n == 0 || (s->n < DQ_PLAN_CACHES_SWEEP && i + 1 < n)) continue;
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        run_sweep(s, a, err);
        dq_arena_free(a);
        DQ_TRY(err->code);
        s->n = 0;
    }
    return DQ_OK;
}

dq_status dq_plan_caches_run(dq_plan_caches *c, const int *cache, int n, dq_plan_caches_part part,
                             const char *what, dq_err *err)
{
    const int64_t fit = DQ_SCORE_ROWS / c->in->ctx, step = fit > 1 ? fit : 1;
    const int64_t edge[] = {0, c->begin, c->end, c->win.n};
    for (int i = 0; i < 3; i++) {
        if ((i == 1) != (part == DQ_PLAN_CACHES_SEARCH)) continue;
        for (int64_t begin = edge[i]; begin < edge[i + 1]; begin += step) {
            sweep s = {.work = {.c = c, .what = what}, .c = c, .begin = begin, .end = edge[i + 1]};
            if (s.end > begin + step) s.end = begin + step;
            DQ_TRY(run_group(&s, cache, n, err));
        }
    }
    return DQ_OK;
}

/* ---- Numbers ---- */

/* Sums over the ids of each cluster: documents, or windows of a single one; of: number_clusters. */
static void sum_up(double *kld, double *loss, int64_t *ids, const int64_t *of,
                   const dq_plan_caches *c, int cache, int less, dq_plan_caches_part part)
{
    const dq_plan_cache *m = &c->list[cache], *other = less < 0 ? NULL : &c->list[less];
    for (int64_t x = 0; x < c->win.n; x++) {
        if (!is_in(c, x, part)) continue;
        const int64_t scored = dq_window_scored(&c->win.win[x]);
        kld[of[x]] += (double)scored * (m->kld[x] - (other ? other->kld[x] : 0));
        loss[of[x]] += (double)scored * (m->loss[x] - (other ? other->loss[x] : 0));
        ids[of[x]] += scored;
    }
}

dq_status dq_plan_caches_numbers_of(dq_plan_caches_numbers *out, const dq_plan_caches *c, int cache,
                                    int less, dq_plan_caches_part part, dq_err *err)
{
    const size_t all = (size_t)c->win.n;
    double *sums = dq_block_new(2 * all, sizeof *sums, err);
    int64_t *ids = dq_block_new(2 * all, sizeof *ids, err), n;
    if (sums && ids && number_clusters(ids + all, &n, c, part, err) == DQ_OK) {
        sum_up(sums, sums + all, ids, ids + all, c, cache, less, part);
        dq_plan_decide_mean(&out->kld, sums, ids, n, err);
        dq_plan_decide_mean(&out->loss, sums + all, ids, n, err);
        out->kld_skew = dq_plan_decide_skew(sums, ids, n);
        out->loss_skew = dq_plan_decide_skew(sums + all, ids, n);
    }
    dq_block_free(sums);
    dq_block_free(ids);
    return err->code;
}
