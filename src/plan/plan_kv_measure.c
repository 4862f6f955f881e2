/* plan_kv_measure: see plan_kv_measure.h. A sweep of dq_eval for some caches and as many windows as a pass holds, so that the
 * unquantized cache runs once for all of them and an end in between costs little; its rows are summed by window and dropped.
 * Lines of the journal: {"widths", "from", "kld": [...], "loss": [...]}, a number for each window.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_kv_measure.h"

#include "base/os.h"
#include "base/sha256.h"
#include "kv/kv_field.h"
#include "plan/plan_part.h"

#include <math.h>
#include <string.h>

/* ---- Mixes ---- */

int dq_plan_kv_measure_mix(dq_plan_kv *p, const char *widths, dq_err *err)
{
    for (int i = 0; i < p->n_mixes; i++) {
        if (strcmp(p->mix[i].widths, widths) == 0) return i;
    }
    const size_t n = (size_t)p->win.n;
    dq_plan_kv_mix *list =
        dq_grow(p->arena, p->mix, (size_t)p->n_mixes + 1, &p->cap_mixes, sizeof *list, err);
    if (!list) return -1;
    p->mix = list;
    dq_plan_kv_mix *m = &list[p->n_mixes];
    *m = (dq_plan_kv_mix){.known = dq_alloc(p->arena, n, sizeof *m->known, err),
                          .kld = dq_alloc(p->arena, n, sizeof *m->kld, err),
                          .loss = dq_alloc(p->arena, n, sizeof *m->loss, err)};
    if (err->code != DQ_OK) return -1;
    memcpy(m->widths, widths, strlen(widths) + 1);
    return p->n_mixes++;
}

/* ---- The journal ---- */

/* Nats an id that a file may say: more than logits of any model differ by, and little enough that sums are finite. */
static const double MOST_NATS = 1e9;

static json_t *list_of(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

static dq_status put_mix(dq_plan_kv *p, int mix, int64_t begin, int64_t end, dq_err *err)
{
    const dq_plan_kv_mix *m = &p->mix[mix];
    json_t *line = json_object();
    json_object_set_new(line, "widths", json_string(m->widths));
    json_object_set_new(line, "from", json_integer(begin));
    json_object_set_new(line, "kld", list_of(m->kld + begin, end - begin));
    json_object_set_new(line, "loss", list_of(m->loss + begin, end - begin));
    return dq_plan_journal_put(&p->journal, line, err);
}

/* The numbers of a list, at most n of them; *found: how many. */
static dq_status take_list(double *x, int64_t n, int64_t *found, const json_t *line,
                           const char *key, dq_err *err)
{
    const json_t *list = json_object_get(line, key);
    *found = (int64_t)json_array_size(list);
    if (*found < 1 || *found > n)
        return dq_fail(err, DQ_DAMAGED, "%lld numbers of \"%s\" (expected 1 to %lld)",
                       (long long)*found, key, (long long)n);
    for (int64_t i = 0; i < *found; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        if (!json_is_number(one))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds what is no number", key);
        x[i] = json_number_value(one);
        if (!(fabs(x[i]) < MOST_NATS))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds %g, which is no loss of a cache", key,
                           x[i]);
    }
    return DQ_OK;
}

/* That a mix is written as dq_plan_kv_space_text does it for the model, so that it is one mix with what is measured. */
static dq_status check_widths(const dq_plan_kv *p, const char *widths, dq_err *err)
{
    dq_kv_widths w;
    char text[DQ_KV_LISTS];
    dq_err e = {0};
    if (strlen(widths) < DQ_KV_LISTS && dq_kv_widths_parse(&w, widths, &e) == DQ_OK &&
        dq_kv_widths_fit(&w, p->set.model->n_layers, &e) == DQ_OK &&
        dq_kv_widths_text(text, &w, &e) == DQ_OK && strcmp(text, widths) == 0)
        return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "\"widths\" \"%.80s\" are not as a plan writes them", widths);
}

static dq_status take_mix(dq_plan_kv *p, const json_t *line, dq_err *err)
{
    const char *widths;
    int64_t from, n_kld, n_loss;
    DQ_TRY(dq_json_text(&widths, line, "widths", NULL, err));
    DQ_TRY(dq_json_int(&from, line, "from", 0, p->win.n - 1, NULL, err));
    DQ_TRY(check_widths(p, widths, err));
    const int mix = dq_plan_kv_measure_mix(p, widths, err);
    if (mix < 0) return err->code;
    dq_plan_kv_mix *m = &p->mix[mix];
    DQ_TRY(take_list(m->kld + from, p->win.n - from, &n_kld, line, "kld", err));
    DQ_TRY(take_list(m->loss + from, p->win.n - from, &n_loss, line, "loss", err));
    if (n_kld != n_loss) return dq_fail(err, DQ_DAMAGED, "\"kld\" and \"loss\" differ in length");
    for (int64_t i = from; i < from + n_kld; i++) {
        p->n_resumed += !m->known[i];
        m->known[i] = true;
    }
    return DQ_OK;
}

static dq_status take_line(void *arg, json_t *line, dq_err *err)
{
    dq_plan_kv *p = arg;
    return take_mix(p, line, err) == DQ_OK ? DQ_OK : dq_in(err, "%s: ", p->journal.path);
}

/* Of each window where it stands and its ids, which a tokenizer and a form of text make of the same bytes. */
static dq_status hash_ids(char hex[65], const dq_plan_kv *p, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (int64_t i = 0; i < p->win.n; i++) {
        const dq_window *w = &p->win.win[i];
        const int64_t head[] = {w->n, w->first, w->past, w->doc};
        dq_sha256_add(&h, head, sizeof head);
        dq_sha256_add(&h, w->ids, (size_t)(w->n + w->past) * sizeof *w->ids);
    }
    return dq_sha256_end(&h, hex, err);
}

/* All that numbers of a mix on a window depend on; ids: hash_ids. */
static json_t *key_of(const dq_plan_kv *p, const char *ids)
{
    const dq_plan_kv_settings *s = &p->set;
    json_t *of = json_object();
    json_object_set_new(of, "version", json_string(s->dq_version));
    json_object_set_new(of, "compiler", json_string(__VERSION__));
    json_object_set_new(of, "cpu", json_integer(dq_os_cpu_features(NULL)));
    json_object_set_new(of, "on_cpu", json_boolean(strncmp(s->backend->device, "cpu", 3) == 0));
    json_object_set_new(of, "model", json_string(s->content));
    json_object_set_new(of, "text", json_string(s->text_sha256));
    json_object_set_new(of, "ids", json_string(ids));
    json_object_set_new(of, "ctx", json_integer(s->ctx));
    json_object_set_new(of, "windows", json_integer(p->win.n));
    json_object_set_new(of, "code", json_string(dq_kv_code_name[s->kv.code]));
    json_object_set_new(of, "recent", json_integer(s->kv.recent));
    json_object_set_new(of, "sink", json_integer(s->kv.sink));
    return of;
}

dq_status dq_plan_kv_measure_begin(dq_plan_kv *p, dq_err *err)
{
    char key[65], ids[65];
    DQ_TRY(hash_ids(ids, p, err));
    json_t *of = key_of(p, ids);
    if (dq_plan_journal_key(key, of, err) == DQ_OK) {
        const dq_plan_journal_how how = {.out = p->set.out,
                                         .key = key,
                                         .of = of,
                                         .resume = p->set.resume,
                                         .force = p->set.force,
                                         .take = take_line,
                                         .arg = p};
        dq_plan_journal_open(&p->journal, &how, p->arena, err);
    }
    json_decref(of);
    DQ_TRY(err->code);
    return dq_runner_new(&p->runner, p->set.model, p->set.backend, &dq_kv_plain, err);
}

/* ---- Sweeps ---- */

/* Some caches on windows begin .. end - 1. */
typedef struct sweep {
    dq_plan_kv *p;
    const int *mix; /* [n] */
    int n;
    int64_t begin, end;
    const char *what;
} sweep;

/* The part of all windows. */
static dq_status slice(dq_windows *out, const sweep *s, dq_arena *a, dq_err *err)
{
    const dq_windows *all = &s->p->win;
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

static dq_status add_rows(dq_eval *e, const sweep *s, dq_err *err)
{
    const dq_math math = {0};
    for (int i = 0; i < s->n; i++) {
        dq_kv_config c;
        dq_kv_spec spec;
        DQ_TRY(dq_plan_kv_config(&c, s->p, s->p->mix[s->mix[i]].widths, err));
        DQ_TRY(dq_model_kv_spec(&spec, &c, s->p->set.model, math.kv, err));
        DQ_TRY(dq_backend_can(s->p->set.backend, s->p->set.model, math, &spec, err));
        DQ_TRY(dq_eval_add(e, 0, 0, dq_logit_plain, math, &spec, err));
    }
    return DQ_OK;
}

/* Means by window of rows, which stand in the order of the mixes, their reference among them. */
static void take_rows(const dq_eval *e, const sweep *s)
{
    const dq_windows *w = &e->ids[0].win;
    for (int i = 0, k = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i], *ref = &e->row[row->ref];
        if (row->ref == i) continue;
        dq_plan_kv_mix *m = &s->p->mix[s->mix[k++]];
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

static double ids_of(const sweep *s)
{
    return (double)(s->n + 1) * (double)(s->end - s->begin) * (double)s->p->set.ctx;
}

static void progress(void *arg, double share, const char *note)
{
    const sweep *s = arg;
    dq_plan_kv *p = s->p;
    const double done = p->done + share * ids_of(s);
    (void)note;
    if (p->total < done) p->total = done;
    if (p->set.step) p->set.step(p->set.arg, done, p->total, s->what);
}

static dq_status run_sweep(sweep *s, dq_arena *a, dq_err *err)
{
    const dq_plan_kv_settings *set = &s->p->set;
    dq_eval_model model = {.m = set->model, .tok = set->tok, .runner = s->p->runner, .shown = true};
    /* its windows are cut already: no settings of it are read */
    dq_eval_source source = {.name = "text", .path = set->text, .kind = &dq_eval_text};
    dq_eval_ids ids = {.source = 0};
    dq_eval e = {.a = a,
                 .model = &model,
                 .source = &source,
                 .ids = &ids,
                 .n_models = 1,
                 .n_sources = 1,
                 .n_ids = 1,
                 .n_ctx = set->ctx,
                 .progress = progress,
                 .progress_arg = s};
    DQ_TRY(slice(&ids.win, s, a, err));
    DQ_TRY(add_rows(&e, s, err));
    DQ_TRY(dq_eval_run(&e, err));
    take_rows(&e, s);
    s->p->done += ids_of(s);
    for (int i = 0; i < s->n; i++) DQ_TRY(put_mix(s->p, s->mix[i], s->begin, s->end, err));
    return DQ_OK;
}

/* The mixes that are not known in these windows, some at a time. */
static dq_status run_group(sweep *s, const int *mix, int n, dq_err *err)
{
    int todo[DQ_PLAN_KV_SWEEP];
    s->mix = todo;
    s->n = 0;
    for (int i = 0; i < n; i++) {
        bool known = true;
        for (int64_t x = s->begin; x < s->end; x++) known = known && s->p->mix[mix[i]].known[x];
        for (int k = 0; k < s->n; k++) known = known || todo[k] == mix[i];
        if (!known) todo[s->n++] = mix[i];
        if (s->n == 0 || (s->n < DQ_PLAN_KV_SWEEP && i + 1 < n)) continue;
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        run_sweep(s, a, err);
        dq_arena_free(a);
        DQ_TRY(err->code);
        s->n = 0;
    }
    return DQ_OK;
}

dq_status dq_plan_kv_measure_run(dq_plan_kv *p, const int *mix, int n, dq_plan_kv_part part,
                                 const char *what, dq_err *err)
{
    const int64_t fit = DQ_SCORE_ROWS / p->set.ctx, step = fit > 1 ? fit : 1;
    const int64_t edge[] = {0, p->begin, p->end, p->win.n};
    for (int i = 0; i < 3; i++) {
        if ((i == 1) != (part == DQ_PLAN_KV_SEARCH)) continue;
        for (int64_t begin = edge[i]; begin < edge[i + 1]; begin += step) {
            sweep s = {.p = p, .begin = begin, .end = edge[i + 1], .what = what};
            if (s.end > begin + step) s.end = begin + step;
            DQ_TRY(run_group(&s, mix, n, err));
        }
    }
    return DQ_OK;
}

/* ---- Numbers ---- */

static bool is_in(const dq_plan_kv *p, int64_t window, dq_plan_kv_part part)
{
    return (window >= p->begin && window < p->end) == (part == DQ_PLAN_KV_SEARCH);
}

/* Sums over the ids of each cluster: documents, or windows of a single one. */
static int64_t sum_up(double *kld, double *loss, int64_t *ids, const dq_plan_kv *p, int mix,
                      int less, dq_plan_kv_part part)
{
    const dq_plan_kv_mix *m = &p->mix[mix], *other = less < 0 ? NULL : &p->mix[less];
    int64_t n = 0, doc = -1;
    for (int64_t x = 0; x < p->win.n; x++) {
        if (!is_in(p, x, part)) continue;
        const int64_t scored = dq_window_scored(&p->win.win[x]);
        if (p->win.n_docs < 2 || p->win.win[x].doc != doc) n++;
        doc = p->win.win[x].doc;
        kld[n - 1] += (double)scored * (m->kld[x] - (other ? other->kld[x] : 0));
        loss[n - 1] += (double)scored * (m->loss[x] - (other ? other->loss[x] : 0));
        ids[n - 1] += scored;
    }
    return n;
}

dq_status dq_plan_kv_measure_numbers(dq_plan_kv_numbers *out, const dq_plan_kv *p, int mix,
                                     int less, dq_plan_kv_part part, dq_err *err)
{
    const size_t all = (size_t)p->win.n;
    double *sums = dq_block_new(2 * all, sizeof *sums, err);
    int64_t *ids = dq_block_new(all, sizeof *ids, err);
    if (sums && ids) {
        const int64_t n = sum_up(sums, sums + all, ids, p, mix, less, part);
        dq_plan_part_mean(&out->kld, sums, ids, n, err);
        dq_plan_part_mean(&out->loss, sums + all, ids, n, err);
        out->kld_skew = dq_plan_part_skew(sums, ids, n);
        out->loss_skew = dq_plan_part_skew(sums + all, ids, n);
    }
    dq_block_free(sums);
    dq_block_free(ids);
    return err->code;
}
