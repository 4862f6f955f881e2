/* plan_caches: see plan_caches.h. Caches by name, the journal, the text and what it says; plan_caches_run.c measures.
 * Lines of the journal: {KEY: name, "from", "kld": [...], "loss": [...]}, a number for each window; those of questions are
 * plan_caches_ask.h's. The same lines go from rank to rank, and what is found in a journal to all of them.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_caches.h"

#include "base/os.h"
#include "base/ranks.h"
#include "plan/cache/plan_caches_ask.h"
#include "plan/plan_decide.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Caches ---- */

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

dq_status dq_plan_caches_add(dq_eval *e, const dq_plan_caches *c, int cache, dq_err *err)
{
    dq_kv_spec spec;
    DQ_TRY(dq_plan_caches_spec(&spec, c, c->list[cache].name, err));
    return dq_eval_add(e, 0, 0, dq_logit_plain, (dq_math){0}, &spec, err);
}

/* ---- The journal ---- */

int dq_plan_caches_of_line(dq_plan_caches *c, const json_t *line, dq_err *err)
{
    const char *name;
    if (dq_json_text(&name, line, c->kind.key, NULL, err) != DQ_OK) return -1;
    if (c->kind.is_name(c->kind.arg, name)) return find(c, name, err);
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

/* ---- Ranks ---- */

dq_status dq_plan_caches_tell(dq_plan_caches *c, json_t *line, dq_err *err)
{
    if (dq_ranks_number() == 0) return dq_plan_journal_put(&c->journal, line, err);
    char *text = NULL;
    if (dq_json_complete(err) == DQ_OK && dq_json_dump(&text, line, JSON_COMPACT, err) == DQ_OK)
        dq_ranks_tell(text, strlen(text), err);
    free(text);
    json_decref(line);
    return err->code;
}

/* Ids that the caches of a line have run, their share of the unquantized one's among them. */
static double ids_of(const dq_plan_caches *c, const json_t *line)
{
    const size_t windows = json_array_size(json_object_get(line, "kld")),
                 questions = json_array_size(json_object_get(line, "lack"));
    if (questions) return (double)c->question_ids * (double)questions / (double)c->n_questions;
    return (double)windows * (double)c->in->ctx * (DQ_PLAN_CACHES_SWEEP + 1) / DQ_PLAN_CACHES_SWEEP;
}

dq_status dq_plan_caches_hear(dq_plan_caches *c, const char *text, size_t len, dq_err *err)
{
    const int64_t resumed = c->n_resumed;
    json_t *line;
    DQ_TRY(dq_json_parse(&line, text, len, "what a rank tells", err));
    if (take_line(c, line, err) == DQ_OK) {
        c->done += ids_of(c, line);
        c->n_resumed = resumed; /* none of an earlier run */
        return dq_plan_journal_put(&c->journal, line, err);
    }
    json_decref(line);
    return err->code;
}

/* ---- The key ---- */

/* All that numbers of a cache on a window depend on; ids: dq_windows_hash. */
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
    char key[65] = "", ids[65];
    DQ_TRY(dq_windows_hash(ids, &c->win, err));
    json_t *of = key_of(c, ids);
    dq_plan_journal_key(key, of, err);
    if (dq_ranks_agree("set of inputs or settings", key, err) == DQ_OK) {
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
