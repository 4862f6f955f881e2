/* Results become a document, and tables, CSV and claims read it.
 *
 * A cache is on the Pareto front if it is better than each one that holds no more bytes, every
 * difference by its own paired interval: all of them must decide, so the claim errs no more often
 * than one interval. It is dominated if one of them is better; the others are inconclusive. One
 * that is no smaller than all tokens in 16 bits saves nothing: it is compared with none. Bytes
 * within a hundredth are the same: what policies hold at one budget differs by tails of pages.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With fewer clusters there is a warning. */
enum { DQ_EVAL_FEW_CLUSTERS = 10 };

#define SAME_BYTES 1.01

typedef enum is { ON_FRONT, UNDECIDED, DOMINATED, USELESS } is; /* the worst last */
static const char *const is_name[] = {"on the Pareto front", "inconclusive", "dominated",
                                      DQ_KV_SAVES_NOTHING};

typedef struct point {
    int row;
    int64_t bytes;
    double share;  /* of a 16-bit cache of all tokens */
    dq_mean value; /* score, or KLD */
    is front;
    int against; /* point that decided, or came nearest to it; -1: nothing holds as little */
    dq_interval_loss worse; /* than that one */
} point;

/* Caches of one model, source, logit rounding and arithmetic, sorted by bytes. */
typedef struct front {
    const cmd_eval_view *v;
    point *of;
    int n;
    int64_t comparisons;
    bool windows;
    const char *metric;
} front;

/* Sentences of the document, which table and page print. False: there is nothing to read them from;
 * the list is ended by the caller in any case. */
static bool begin_says(dq_row_writer *w, const char *about, unsigned when)
{
    DQ_BEGIN(w, LIST, "says", true, about, .when = when);
    if (!w->live) DQ_PUT(w, NULL, "", NULL);
    return w->live;
}

DQ_PRINTF(2, 3) static void say(dq_row_writer *w, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    json_t *text = json_vsprintf(fmt, args);
    va_end(args);
    DQ_PUT(w, NULL, json_string_value(text), NULL);
    json_decref(text);
}

/* The i-th sentence; "": there is none. */
static const char *said(const json_t *of, size_t i)
{
    const char *s = json_string_value(json_array_get(json_object_get(of, "says"), i));
    return s ? s : "";
}

static const char *text_of(const json_t *o, const char *member)
{
    const char *s = json_string_value(json_object_get(o, member));
    return s ? s : "";
}

static const char *is_of(const json_t *verdict, const char *none)
{
    return verdict ? text_of(verdict, "is") : none;
}

static bool is_point(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    const dq_eval_kind *kind = dq_eval_source_of(e, r)->kind;
    return r->shown && (kind->windows ? r->ref != row : kind->metric[0] != NULL) &&
           dq_kv_report_shares_of(&r->kv, &r->work.cached).measured;
}

static bool belongs(const dq_eval_row *a, const dq_eval_row *b)
{
    return a->model == b->model && a->ids == b->ids && dq_logit_same(a->logit, b->logit) &&
           dq_math_same(a->math, b->math);
}

static bool chooses(const dq_eval *e, const dq_eval_row *r)
{
    return dq_eval_kept_of(e, r) == DQ_EVAL_KEPT_CHOSEN;
}

/* Whether caches differ only in how numbers become codes. */
static bool other_code(const dq_kv_spec *a, const dq_kv_spec *b)
{
    dq_kv_spec same = *b;
    same.quant = a->quant;
    same.rotate_k = a->rotate_k; /* what auto makes of a rotation goes by the code */
    same.rotate_v = a->rotate_v;
    return dq_kv_has_codes(a) && a->quant != b->quant && dq_kv_spec_same(a, &same);
}

static bool has_other_code(const dq_eval *e, int k)
{
    const dq_eval_row *r = &e->row[k];
    for (int i = 0; i < k; i++) {
        if (is_point(e, i) && belongs(&e->row[i], r) && other_code(&e->row[i].kv, &r->kv))
            return true;
    }
    return false;
}

static bool begins(const dq_eval *e, int i)
{
    const dq_evict_spec *seen = NULL;
    bool several = false;
    if (!is_point(e, i)) return false;
    for (int k = 0; k < e->n_rows; k++) {
        const dq_evict_spec *s = &e->row[k].kv.evict;
        if (!is_point(e, k) || !belongs(&e->row[i], &e->row[k])) continue;
        if (k < i) return false;
        several = several || has_other_code(e, k);
        if (!chooses(e, &e->row[k])) continue;
        several = several || (seen && (seen->policy != s->policy || seen->budget != s->budget));
        seen = s;
    }
    return several;
}

/* Whether an earlier point is the same cache under another name. */
static bool is_again(const front *f, int row)
{
    const dq_eval *e = f->v->e;
    for (int i = 0; i < f->n; i++) {
        if (dq_eval_same_cache(e, &e->row[f->of[i].row], &e->row[row])) return true;
    }
    return false;
}

/* Orders differences of one verdict by how close they are to worse. */
static double nearness(is now, const dq_interval_loss *worse)
{
    return now == ON_FRONT    ? worse->interval.high
           : now == DOMINATED ? worse->interval.low
                              : worse->value;
}

static dq_status front_of(front *f, const cmd_eval_view *v, int first, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_source *source = dq_eval_source_of(e, &e->row[first]);
    *f = (front){.v = v, .windows = source->kind->windows};
    f->metric = f->windows ? "kld_nats" : source->kind->metric[dq_eval_quoted(source)];
    f->of = dq_block_new((size_t)e->n_rows, sizeof *f->of, err);
    for (int i = first; f->of && i < e->n_rows; i++) {
        if (is_point(e, i) && belongs(&e->row[first], &e->row[i]) && !is_again(f, i)) {
            const dq_eval_row *r = &e->row[i];
            const dq_kv_report_shares s = dq_kv_report_shares_of(&r->kv, &r->work.cached);
            int at = f->n++;
            for (; at > 0 && f->of[at - 1].bytes > s.bytes_cached; at--) f->of[at] = f->of[at - 1];
            f->of[at] = (point){.row = i,
                                .bytes = s.bytes_cached,
                                .share = s.share,
                                .front = s.saves_nothing ? USELESS : ON_FRONT,
                                .value = cmd_eval_mean_of(json_object_get(
                                    cmd_eval_at(cmd_eval_result(v, i), "metrics"), f->metric)),
                                .against = -1};
        }
    }
    if (!f->of) return err->code;
    for (int i = 0; i < f->n; i++) {
        point *p = &f->of[i];
        for (int k = 0; p->front != USELESS && k < f->n; k++) {
            dq_interval_loss worse;
            if (k == i || f->of[k].front == USELESS ||
                (double)f->of[k].bytes > SAME_BYTES * (double)p->bytes)
                continue;
            DQ_TRY(dq_eval_worse(&worse, f->v->e, f->of[k].row, p->row, err));
            /* Combines the verdict against point k with p's: the worst one counts. */
            const is now = worse.interval.high < 0  ? ON_FRONT
                           : worse.interval.low > 0 ? DOMINATED
                                                    : UNDECIDED; /* also without an interval */
            if (!(p->against >= 0) ||
                !(now < p->front ||
                  (now == p->front && nearness(now, &worse) <= nearness(now, &p->worse)))) {
                p->front = now;
                p->against = k;
                p->worse = worse;
            }
            f->comparisons++;
        }
    }
    return DQ_OK;
}

/* Where nothing is left to choose, the policy is not named. */
static const char *label_of(const front *f, int i, char *buf, size_t cap)
{
    const dq_eval_row *r = &f->v->e->row[f->of[i].row];
    const dq_eval_kept kept = dq_eval_kept_of(f->v->e, r);
    char widths[DQ_KV_TEXT];
    if (kept == DQ_EVAL_KEPT_CHOSEN) return dq_kv_report_label(buf, cap, &r->kv);
    dq_kv_codes_text(widths, &r->kv);
    if (kept == DQ_EVAL_KEPT_ALL)
        snprintf(buf, cap, "%s, all tokens", widths);
    else
        snprintf(buf, cap, "%s, first %d and last %d tokens", widths, r->kv.sink, r->kv.recent);
    return buf;
}

static void point_rows(dq_row_writer *w, const void *of, int64_t i)
{
    static const char *const kept_name[] = {"all", "least", "chosen"};
    const front *f = of;
    const dq_eval *e = DQ_LIVE(w, f->v->e);
    const point *p = DQ_LIVE(w, &f->of[i]);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[p->row]);
    char label[DQ_KV_LABEL];
    const bool there = w->live && p->against >= 0;
    DQ_PUT(w, "result", cmd_eval_result_of(e, p->row), "Index of the result.");
    DQ_PUT(w, "kv_label", label_of(f, (int)i, label, sizeof label), "The cache as a label.");
    DQ_PUT(w, "policy", chooses(e, r) ? r->kv.evict.policy->name : NULL,
           "What decides which tokens stay; null: nothing to choose.", .when = DQ_NULL);
    DQ_PUT(w, "kept", kept_name[dq_eval_kept_of(e, r)], "Which tokens stay.", DQ_WORDS(kept_name));
    DQ_PUT(w, "bytes_held", p->bytes, "Bytes of the cache.");
    DQ_PUT(w, "share", p->share, "Over those of a 16-bit cache.", .when = DQ_NULL);
    DQ_PUT(w, "value", p->value.value, "The metric.", .when = DQ_NULL);
    DQ_PUT(w, "stderr", p->value.std_err, "Its standard error.", .when = DQ_NULL);
    DQ_PUT(w, "is", is_name[p->front], "What follows.", DQ_WORDS(is_name));
    DQ_PUT(w, "against", there ? cmd_eval_result_of(e, f->of[p->against].row) : -1,
           "Index of the result that decides; null: none.", .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "worse", there ? p->worse.value : DQ_NO_REAL, "What it lost more than that.",
           .when = DQ_NULL);
    DQ_INTERVAL(w, "interval", there ? p->worse.interval : dq_interval_none,
                "Paired interval of that.");
}

static void front_rows(dq_row_writer *w, const front *f)
{
    const dq_eval *e = DQ_LIVE(w, f->v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[f->of[0].row]);
    DQ_ITEM(w);
    DQ_PUT(w, "model", f->v->names[r->model], "Its name.");
    DQ_PUT(w, "task", cmd_eval_title(e, f->of[0].row), "What was scored.");
    dq_kv_report_logit_rows(w, DQ_LIVE(w, &r->logit), "Bits of attention logits.");
    DQ_PUT(w, "math", dq_kv_report_math_json(r->math), "The arithmetic.", DQ_MATH);
    DQ_PUT(w, "metric", f->metric, "What is compared.");
    DQ_PUT(w, "cluster", dq_eval_cluster(e, r), "What errors take for independent.");
    DQ_PUT(w, "comparisons", f->comparisons, "Comparisons that were made.");
    DQ_ITEMS(w, "points", point_rows, f, f->n, "Caches.");
    int dominated = 0;
    for (int i = 0; w->live && i < f->n; i++) dominated += f->of[i].front == DOMINATED;
    if (begin_says(w, "What follows of these caches, a sentence each.", 0)) {
        say(w,
            "On the Pareto front: better than each of no more bytes (up to 1 %% more), by paired "
            "95 %% intervals of %s.",
            f->metric);
        say(w,
            "%d of %d are dominated by one of no more bytes. %lld comparisons, each at 95 %%: "
            "about "
            "%.1f of their intervals are expected to miss by chance.",
            dominated, f->n, (long long)f->comparisons, 0.05 * (double)f->comparisons);
    }
    dq_row_end(w);
    dq_row_end(w);
}

dq_status cmd_eval_pareto_rows(dq_row_writer *w, const cmd_eval_view *v, dq_err *err)
{
    const int n = w->live ? v->e->n_rows : 0;
    int i = 0;
    while (i < n && !begins(v->e, i)) i++;
    if (!DQ_BEGIN(w, LIST, "pareto_fronts", i < n, "Of sweeps of the KV cache.", .when = DQ_OUT))
        return DQ_OK;
    if (!w->live) front_rows(w, NULL);
    for (; i < n && err->code == DQ_OK; i++) {
        front f;
        if (!begins(v->e, i)) continue;
        if (front_of(&f, v, i, err) == DQ_OK) front_rows(w, &f);
        dq_block_free(f.of);
    }
    dq_row_end(w);
    return err->code;
}

/* The element of a list whose member `result` is that of x. */
static const json_t *point_of(const json_t *points, const json_t *result)
{
    const json_t *p;
    size_t i;
    json_array_foreach(points, i, p)
    {
        if (json_equal(json_object_get(p, "result"), result)) return p;
    }
    return NULL;
}

static void point_cells(dq_table *t, const json_t *points, const json_t *p, bool fine)
{
    const json_t *other = point_of(points, json_object_get(p, "against"));
    const dq_interval x = cmd_eval_interval_of(p);
    cmd_eval_cell_text(t, json_object_get(p, "kv_label"));
    cmd_eval_cell_real(t, json_object_get(p, "share"));
    cmd_eval_cell_mean(t, p);
    cmd_eval_cell_text(t, json_object_get(p, "is"));
    if (!other) {
        dq_table_cell(t, strcmp(is_of(p, ""), is_name[USELESS]) == 0 ? "-"
                                                                     : "nothing holds as little");
        dq_table_cell(t, "-");
        dq_table_cell(t, "-");
        return;
    }
    cmd_eval_cell_text(t, json_object_get(other, "kv_label"));
    dq_table_cell(t, fine ? "%+.3g" : "%+.4f", cmd_eval_real(p, "worse"));
    if (isnan(x.low))
        dq_table_cell(t, "none");
    else
        dq_table_cell(t, fine ? "%+.3g to %+.3g" : "%+.4f to %+.4f", x.low, x.high);
}

dq_status cmd_eval_pareto(const cmd_eval_view *v, dq_err *err)
{
    const json_t *x, *p;
    size_t i, k;
    json_array_foreach(json_object_get(v->doc, "pareto_fronts"), i, x)
    {
        const char *metric = text_of(x, "metric"), *rule = said(x, 0);
        const char *titles[] = {"KV",       "share of 16 bits", metric, "front", "compared with",
                                "worse by", "interval"};
        const json_t *points = json_object_get(x, "points");
        const double bits = cmd_eval_real(x, "logit_bits");
        dq_table *t;
        DQ_TRY(dq_table_new(&t, titles, (int)(sizeof titles / sizeof *titles), err));
        json_array_foreach(points, k, p)
        {
            if (strcmp(is_of(p, ""), is_name[DOMINATED]) != 0)
                point_cells(t, points, p, strcmp(metric, "kld_nats") == 0);
        }
        printf("\nWhat the bytes of the KV cache buy, %s, %s, %.0f-bit logits", text_of(x, "model"),
               text_of(x, "task"), bits);
        if (bits < 16) printf(" (%s)", text_of(x, "logit_granularity"));
        printf(", %s. %.*s:\n", json_string_value(cmd_eval_at(x, "math.linear")),
               (int)strlen(rule) - 1, rule);
        if (dq_table_print(t, err) == DQ_OK) printf("%s\n", said(x, 1));
        dq_table_free(t);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

/* Rows that differ only in logit bits form a series. From 16 bits down, the lowest width that holds
 * is the last one before a width that fails or is inconclusive. */

enum { WIDTHS = 16 }; /* rows of a series at most: 16 and 2 to 8 bits */

static const dq_eval_kind *kind_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->kind;
}

static bool is_compared(const dq_eval *e, int row)
{
    const dq_eval_kind *kind = kind_of(e, row);
    return e->row[row].shown && (kind->windows || kind->metric[0]);
}

/* That of a result; NULL: it has none. */
static const json_t *verdict_of(const cmd_eval_view *v, int row)
{
    const json_t *y = json_object_get(cmd_eval_result(v, row), "verdict");
    return json_is_object(y) ? y : NULL;
}

/* Rows that differ only in logit bits, widest first. */
typedef struct series {
    int row[WIDTHS], n;
    const json_t *verdict[WIDTHS];
    int lowest; /* bits; 0: none */
} series;

static bool same_but_bits(const dq_eval_row *a, const dq_eval_row *b)
{
    return b->shown && b->model == a->model && b->ids == a->ids && dq_math_same(a->math, b->math) &&
           dq_kv_spec_same(&a->kv, &b->kv) &&
           (!dq_logit_rounds(b->logit) || b->logit.granularity == a->logit.granularity);
}

/* Whether row i is the first rounded one of a series, and the series. */
static bool series_of(series *f, const cmd_eval_view *v, int i)
{
    const dq_eval *e = v->e;
    const char *within = dq_interval_decision_name[DQ_WITHIN];
    bool good = true, speaks = is_compared(e, i) && e->row[i].ref != i && e->row[i].logit.bits < 16;
    *f = (series){.n = 0};
    for (int k = 0; speaks && k < i; k++)
        speaks = e->row[k].logit.bits == 16 || !same_but_bits(&e->row[i], &e->row[k]);
    for (int bits = 16; speaks && bits > 1; bits--) {
        for (int k = 0; k < e->n_rows; k++) {
            if (e->row[k].logit.bits != bits || f->n == WIDTHS) continue;
            if (!same_but_bits(&e->row[i], &e->row[k])) continue;
            f->verdict[f->n] = verdict_of(v, k);
            good = good && strcmp(is_of(f->verdict[f->n], within), within) == 0;
            if (good) f->lowest = bits;
            f->row[f->n++] = k;
        }
    }
    return speaks && f->n > 1;
}

/* "1 query", "250 queries" */
static const char *clusters_text(char *buf, size_t cap, int64_t n, const char *cluster)
{
    const size_t len = strlen(cluster);
    const bool y = n != 1 && cluster[len - 1] == 'y';
    snprintf(buf, cap, "%lld %.*s%s", (long long)n, (int)(y ? len - 1 : len), cluster,
             n == 1 ? ""
             : y    ? "ies"
                    : "s");
    return buf;
}

/* Counts quoted differences to references, between models, and of their means over tasks; a cache
 * under several names counts once. */
static int n_comparisons(const cmd_eval_view *v)
{
    const json_t *averages = json_object_get(v->doc, "averages");
    int n = 0, row[DQ_EVAL_SOURCES];
    size_t at = 0;
    for (int i = 0; i < v->e->n_rows; i++) {
        const json_t *of[2] = {is_compared(v->e, i) ? cmd_eval_result(v, i) : NULL, NULL};
        if (dq_eval_average_rows(row, v->e, i)) of[1] = json_array_get(averages, at++);
        for (int k = 0; v->e->row[i].same == i && k < 2; k++) {
            n += json_is_object(json_object_get(of[k], "paired"));
            n += json_is_object(json_object_get(of[k], "cross_paired"));
        }
    }
    return n;
}

/* Whether rows of a model are. */
static bool compares(const dq_eval *e, int model)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].model == model && is_compared(e, i)) return true;
    }
    return false;
}

static bool has_windows(const dq_eval *e, bool windows)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (is_compared(e, i) && kind_of(e, i)->windows == windows) return true;
    }
    return false;
}

static int first_clustered(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (is_compared(e, i) && e->ids[e->row[i].ids].cluster) return i;
    }
    return -1;
}

static void say_notes(dq_row_writer *w, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    const bool items = has_windows(e, false), texts = has_windows(e, true);
    const int n = n_comparisons(v), clustered = first_clustered(e);
    const char *bound = items ? "Where no item differs, a 95 % bound stands instead. " : "";
    char name[48], test[96] = "";
    if (!items && !texts) return;
    if (clustered >= 0) {
        clusters_text(name, sizeof name, 2, dq_eval_cluster(e, &e->row[clustered]));
        snprintf(test, sizeof test, "; p: t test over %s, else exact McNemar test",
                 strchr(name, ' ') + 1);
    } else if (items) {
        snprintf(test, sizeof test, "; p: exact McNemar test");
    }
    if (n == 0) snprintf(test, sizeof test, "No row is compared with another");
    say(w, "\u00b1 is one standard error over the clusters of the row. %s%s%s%s.", bound,
        n ? "Differences are paired" : "", n && texts ? "; of a text, of its NLL" : "", test);
    if (n == 1)
        say(w, "1 comparison, at 95 %%.");
    else if (n)
        say(w,
            "%d comparisons, each at 95 %%: about %.1f of their intervals are expected to miss by "
            "chance.",
            n, 0.05 * n);
}

static void say_shares(dq_row_writer *w, const dq_eval *e)
{
    bool any = false, nothing = false;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        if (!r->shown || !r->work.cached.contexts) continue;
        any = true;
        nothing = nothing || dq_kv_report_shares_of(&r->kv, &r->work.cached).saves_nothing;
    }
    if (!any || !cmd_eval_kv_swept(e)) return;
    bool windows = false;
    for (int i = 0; i < e->n_models; i++) windows = windows || dq_model_window(e->model[i].m);
    say(w, "kept: share of a context's tokens that its cache holds.");
    say(w, "share of 16 bits: bytes held (codes, scales, index, rest) over those of the whole "
           "context in 16 bits.");
    if (windows)
        say(w, "Of layers with a window both are shares of what its pages hold when nothing is "
               "evicted.");
    if (nothing) say(w, "From 1 on a cache " DQ_KV_SAVES_NOTHING ".");
}

/* Whether m and k are their own references and scored the same tokens of a text. */
static bool stand_apart(const dq_eval *e, int m, int k)
{
    const dq_eval_model *a = &e->model[m], *b = &e->model[k];
    if (m == k || a->ref != m || b->ref != k || a->sourceless || b->sourceless) return false;
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].model != m || !e->row[i].shown || !kind_of(e, i)->windows) continue;
        for (int j = 0; j < e->n_rows; j++) {
            if (e->row[j].model == k && e->row[j].shown && e->row[j].ids == e->row[i].ids)
                return true;
        }
    }
    return false;
}

static void say_references(dq_row_writer *w, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    json_t *names = NULL;
    for (int m = 0; m < e->n_models; m++) {
        if (e->model[m].sourceless && compares(e, m))
            say(w,
                "%s: compared with nothing, as its source checkpoint is not in the run. Add it, or "
                "--ref MODEL (the container itself: without what its weights lost).",
                v->names[m]);
    }
    for (int m = 0; m < e->n_models; m++) {
        int k = 0;
        while (k < e->n_models && !stand_apart(e, m, k)) k++;
        if (k == e->n_models) continue;
        json_t *more = names ? json_sprintf("%s, %s", json_string_value(names), v->names[m])
                             : json_string(v->names[m]);
        json_decref(names);
        names = more;
    }
    if (names)
        say(w,
            "%s: each is its own reference, so neither KLD nor a difference of a text compares "
            "them. --ref MODEL compares every row with one model.",
            json_string_value(names));
    json_decref(names);
}

void cmd_eval_claims(const cmd_eval_view *v)
{
    const json_t *says = json_object_get(v->doc, "says"), *x,
                 *lowest = json_object_get(v->doc, "lowest_logit_bits");
    size_t i;
    if (json_array_size(says) && (has_windows(v->e, false) || has_windows(v->e, true)))
        printf("\n");
    json_array_foreach(says, i, x) printf("%s\n", json_string_value(x));
    if (json_array_size(lowest))
        printf("\nLowest logit bits within the margin: loss at most %g (%s), by paired 95 %% "
               "intervals:\n",
               v->margin,
               !has_windows(v->e, true)    ? "of accuracy"
               : !has_windows(v->e, false) ? "nats of NLL"
                                           : "of accuracy, or nats of NLL");
    json_array_foreach(lowest, i, x)
    {
        for (size_t k = 0; *said(x, k); k++) printf("%s%s\n", k ? "    " : "  ", said(x, k));
    }
}

void cmd_eval_warn_clusters(dq_logger *logger, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    for (int i = 0; i < e->n_rows; i++) {
        const char *cluster = dq_eval_cluster(e, &e->row[i]);
        const int64_t n = json_integer_value(json_object_get(cmd_eval_result(v, i), "n_clusters"));
        if (!is_compared(e, i)) continue;
        if (n == 1)
            dq_logger_warn(logger,
                           "%s: one %s, or copies of one, so there are no standard errors and "
                           "nothing is decided",
                           cmd_eval_title(e, i), cluster);
        else if (n < DQ_EVAL_FEW_CLUSTERS)
            dq_logger_warn(
                logger,
                "%s: standard errors rest on %lld clusters (each %s is one) and are rough "
                "themselves; intervals take this into account with Student's t. Use %d or more",
                cmd_eval_title(e, i), (long long)n,
                strcmp(cluster, "cluster") == 0 ? "set of copies or of items of a passage"
                                                : cluster,
                DQ_EVAL_FEW_CLUSTERS);
    }
}

/* A checkpoint of the run that may be the source of model m: one of that name, else any. -1:
 * none. */
static int looks_like_source(const dq_eval *e, int m, const char *made_from)
{
    int other = -1;
    for (int k = 0; k < e->n_models; k++) {
        if (e->model[k].m->is_container) continue;
        if (strcmp(e->model[k].m->name, made_from) == 0) return k;
        if (other < 0 && e->model[k].m->vocab == e->model[m].m->vocab) other = k;
    }
    return other;
}

void cmd_eval_warn_sources(dq_logger *logger, const cmd_eval_view *v, const char *const *made_from)
{
    const dq_eval *e = v->e;
    for (int m = 0; m < e->n_models; m++) {
        if (!compares(e, m) || !e->model[m].sourceless || !made_from[m]) continue;
        const int k = looks_like_source(e, m, made_from[m]);
        if (k >= 0)
            dq_logger_warn(
                logger,
                "%s: was made from \"%s\", fingerprint %.16s; %s in this run has fingerprint "
                "%.16s, so it is not the source and is not compared with",
                v->names[m], made_from[m], e->model[m].m->fingerprint, v->names[k],
                e->model[k].m->fingerprint);
        dq_logger_warn(
            logger,
            "%s: its source checkpoint is not in the run, so nothing says what its weights "
            "lost, and no difference is taken. Add the source, or --ref MODEL (the container "
            "itself: what logits and caches alone lose)",
            v->names[m]);
    }
}

static void verdict_rows(dq_row_writer *w, const cmd_eval_view *v, int row,
                         const dq_eval_numbers *x)
{
    dq_interval_loss loss = {.interval = dq_interval_none};
    const bool there = w->live && dq_eval_loss_of(&loss, v->e, row, x);
    const double margin = w->live ? v->margin : 0;
    const dq_interval_decision what = dq_interval_decide(loss.interval, margin);
    if (!DQ_BEGIN(w, OBJECT, "verdict", there,
                  "Whether it lost too much; null: it is compared with nothing.", .when = DQ_NULL,
                  .def = "verdict"))
        return;
    const dq_eval_source *s = DQ_LIVE(w, dq_eval_source_of(v->e, &v->e->row[row]));
    DQ_PUT(w, "metric", s->kind->windows ? DQ_EVAL_LOSS : s->kind->metric[dq_eval_quoted(s)],
           "What is compared.");
    DQ_PUT(w, "loss", loss.value, "What was lost, of a score or in nats.", .when = DQ_NULL);
    DQ_INTERVAL(w, "interval", loss.interval, "Paired 95 % interval.");
    DQ_PUT(w, "n_clusters", loss.clusters, "Clusters.");
    DQ_PUT(w, "margin", margin, "What is allowed.");
    DQ_PUT(w, "is", dq_interval_decision_name[what], "What follows.",
           DQ_WORDS(dq_interval_decision_name));
    DQ_PUT(w, "missing_clusters",
           what == DQ_INCONCLUSIVE ? dq_interval_missing(&loss, margin) : (int64_t)0,
           "Clusters more that would decide; null: decided, or not known.",
           .when = DQ_NULL | DQ_AT_0);
    dq_row_end(w);
}

static void say_lowest(dq_row_writer *w, const cmd_eval_view *v, const series *f)
{
    const dq_eval_row *r = &v->e->row[f->row[f->n - 1]];
    const char *cluster = dq_eval_cluster(v->e, r);
    char math[32] = "", kv[DQ_KV_LABEL + 8] = "", label[DQ_KV_LABEL], lowest[16] = "none";
    if (cmd_eval_math_swept(v->e))
        snprintf(math, sizeof math, ", math %s", dq_num_name[r->math.linear]);
    if (cmd_eval_kv_swept(v->e))
        snprintf(kv, sizeof kv, ", KV %s", dq_kv_report_label(label, sizeof label, &r->kv));
    if (f->lowest) snprintf(lowest, sizeof lowest, "%d", f->lowest);
    say(w, "%s, %s, granularity %s%s%s: %s", v->names[r->model], cmd_eval_title(v->e, f->row[0]),
        dq_granularity_name[r->logit.granularity], math, kv, lowest);
    for (int k = 0; k < f->n; k++) {
        const json_t *y = f->verdict[k];
        const dq_interval x = cmd_eval_interval_of(y);
        const int64_t missing = json_integer_value(json_object_get(y, "missing_clusters"));
        char of[80], more[96] = "";
        if (!y) continue;
        if (isnan(x.low))
            snprintf(of, sizeof of, "no interval over one %s", cluster);
        else
            snprintf(of, sizeof of, "interval %+.4f to %+.4f", x.low, x.high);
        if (missing)
            snprintf(more, sizeof more, ", roughly %s more would decide",
                     clusters_text(label, sizeof label, missing, cluster));
        say(w, "%d bits: %s; loss %+.4f, %s%s", v->e->row[f->row[k]].logit.bits, is_of(y, ""),
            cmd_eval_real(y, "loss"), of, more);
    }
}

static void lowest_rows(dq_row_writer *w, const cmd_eval_view *v, const series *f)
{
    const dq_eval_row *r = DQ_LIVE(w, &v->e->row[f->row[f->n - 1]]);
    char bits[16] = "", label[DQ_KV_LABEL];
    DQ_ITEM(w);
    DQ_PUT(w, "model", v->names[r->model], "Its name.");
    DQ_PUT(w, "task", cmd_eval_title(v->e, f->row[0]), "What was scored.");
    DQ_PUT(w, "logit_granularity", dq_granularity_name[r->logit.granularity],
           "What shares a scale.", DQ_WORDS(dq_granularity_name));
    DQ_PUT(w, "math", dq_kv_report_math_json(r->math), "The arithmetic.", DQ_MATH);
    DQ_PUT(w, "kv", dq_kv_spec_json(&r->kv), "The KV cache.", DQ_KV_SPEC);
    DQ_PUT(w, "kv_label", dq_kv_report_label(label, sizeof label, &r->kv), "The same as a label.");
    DQ_PUT(w, "lowest", f->lowest, "Lowest bits within the margin; null: none.",
           .when = DQ_NULL | DQ_AT_0);
    DQ_BEGIN(w, MAP, "widths", true, "What each width is.");
    for (int k = 0; DQ_MORE(w, k, f->n); k++) {
        if (w->live) snprintf(bits, sizeof bits, "%d", v->e->row[f->row[k]].logit.bits);
        DQ_PUT(w, bits, is_of(f->verdict[k], DQ_EVAL_IS_REFERENCE), NULL);
    }
    dq_row_end(w);
    if (begin_says(w, "What is lowest, and what each width loses.", 0)) say_lowest(w, v, f);
    dq_row_end(w);
    dq_row_end(w);
}

void cmd_eval_claims_rows(dq_row_writer *w, const cmd_eval_view *v)
{
    const int n = w->live ? n_comparisons(v) : 0;
    series f = {.n = 0};
    DQ_BEGIN(w, OBJECT, "comparisons", true, "How many verdicts there are.", .when = DQ_SOMETIMES);
    DQ_PUT(w, "n", n, "Verdicts.");
    DQ_PUT(w, "level", 0.95, "Level of each interval.");
    DQ_PUT(w, "expected_misses", 0.05 * n, "Intervals that miss in the mean.");
    dq_row_end(w);
    DQ_BEGIN(w, LIST, "lowest_logit_bits", true,
             "Lowest bits of logits that lose nothing, of each sweep.", .when = DQ_SOMETIMES);
    for (int i = 0; DQ_MORE(w, i, v->e->n_rows); i++) {
        if (!w->live || series_of(&f, v, i)) lowest_rows(w, v, &f);
    }
    dq_row_end(w);
    if (begin_says(w, "What the results rest on, a sentence each.", DQ_SOMETIMES)) {
        say_notes(w, v);
        say_shares(w, v->e);
        say_references(w, v);
    }
    dq_row_end(w);
}

void cmd_eval_table_sizes(const cmd_eval_view *v)
{
    char text[DQ_SIZE_REPORT_TEXT];
    for (int i = 0; i < v->e->n_models; i++)
        printf("%s: %s%s\n", v->names[i], dq_size_report_text(text, v->e->model[i].m),
               v->e->model[i].shown ? "" : " (the reference)");
    putchar('\n');
}

static bool has_sources(const dq_eval *e, bool windows)
{
    for (int i = 0; i < e->n_sources; i++) {
        if (e->source[i].kind->windows == windows) return true;
    }
    return false;
}

/* NULL: sources disagree. */
static const char *metric_title(const dq_eval *e, int m)
{
    const char *name = NULL;
    for (int i = 0; i < e->n_sources; i++) {
        const char *own = e->source[i].kind->metric[m];
        if (name && own && strcmp(own, name) != 0) return m == 0 ? "score" : "second score";
        if (own) name = own;
    }
    return name;
}

/* Members of "metrics" that have a column; those of items lead nowhere. */
static int field_columns(cmd_eval_column *column, const dq_eval *e)
{
    int n = 0;
    for (const cmd_eval_field *f = cmd_eval_fields; has_sources(e, true) && f->name; f++) {
        if (f->title) column[n++] = (cmd_eval_column)DQ_COLUMN(f->title, f->name, f->cell);
    }
    return n;
}

static const cmd_eval_key row_keys[] = {
    DQ_KEY_MODEL,  DQ_KEY_WEIGHTS, DQ_KEY_BITS, DQ_KEY_GRANULARITY, DQ_KEY_MATH, DQ_KEY_CODES,
    DQ_KEY_POLICY, DQ_KEY_BUDGET,  DQ_KEY_KEEP, DQ_KEY_TITLE,       DQ_KEYS_END};

static void table_row(dq_table *t, const cmd_eval_view *v, int row, const cmd_eval_column *field,
                      int n_fields)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *source = dq_eval_source_of(e, r);
    const json_t *result = cmd_eval_result(v, row), *verdict = verdict_of(v, row);
    const json_t *metrics = json_object_get(result, "metrics");
    char clusters[48];
    cmd_eval_key_cells(t, v, row, row_keys);
    dq_table_cell(t, "%lld", json_integer_value(json_object_get(result, "n")));
    dq_table_cell(t, "%s",
                  clusters_text(clusters, sizeof clusters,
                                json_integer_value(json_object_get(result, "n_clusters")),
                                dq_eval_cluster(e, r)));
    for (int m = 0; m < 2 && metric_title(e, m); m++) {
        const char *own = source->kind->metric[m];
        cmd_eval_cell_score(t, own ? json_object_get(metrics, own) : NULL);
    }
    cmd_eval_column_cells(t, metrics, field, n_fields);
    const json_t *metric = json_object_get(verdict, "metric");
    const json_t *loss =
        metric ? json_object_get(json_object_get(result, "paired"), json_string_value(metric))
               : NULL;
    if (source->kind->windows)
        cmd_eval_cell_change(t, loss);
    else
        cmd_eval_cell_score_change(t, loss);
    if (has_sources(e, false))
        dq_table_known(t, loss && !source->kind->windows, "%.3g", cmd_eval_real(loss, "p"));
    dq_table_cell(t, "%s", is_of(verdict, "-"));
    /* The kept share and the bytes, in the same runs. */
    dq_kv_report_shares s = dq_kv_report_shares_of(&r->kv, &r->work.cached);
    if (cmd_eval_kv_swept(e)) {
        dq_table_known(t, isfinite(s.kept), "%.3f", s.kept);
        dq_table_known(t, isfinite(s.share), "%.4f%s", s.share,
                       s.saves_nothing ? ", saves nothing" : "");
    }
    dq_table_cell(t, "%.0f", dq_score_rate(&r->work));
}

/* With several rows per model, rules between models help. */
static bool swept(const dq_eval *e)
{
    int last = -1;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (e->row[i].model == last) return true;
        last = e->row[i].model;
    }
    return false;
}

enum { TITLES = 64 };
dq_status cmd_eval_table(dq_table **out, const cmd_eval_view *v, dq_err *err)
{
    const char *titles[TITLES];
    const int keys = cmd_eval_key_titles(titles, v->e, row_keys);
    cmd_eval_column field[TITLES];
    const int n_fields = field_columns(field, v->e);
    int n = keys, last = -1;
    char within[48];
    titles[n++] = "n";
    titles[n++] = "clusters";
    for (int m = 0; m < 2 && metric_title(v->e, m); m++) titles[n++] = metric_title(v->e, m);
    for (int i = 0; i < n_fields; i++) titles[n++] = field[i].title;
    titles[n++] = "against reference";
    if (has_sources(v->e, false)) titles[n++] = "p";
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    titles[n++] = within;
    if (cmd_eval_kv_swept(v->e)) {
        titles[n++] = "kept";
        titles[n++] = "share of 16 bits";
    }
    titles[n++] = "tokens/s";
    DQ_TRY(dq_table_new(out, titles, n, err));
    dq_table_keys(*out, keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        if (!v->e->row[i].shown) continue;
        if (last >= 0 && v->e->row[i].model != last && swept(v->e)) dq_table_rule(*out);
        last = v->e->row[i].model;
        table_row(*out, v, i, field, n_fields);
    }
    return DQ_OK;
}

/* Columns of every CSV; those of the cache are added where some cache is not plain. */
#define OF(metric_, title_, path_, member_)                                                        \
    {                                                                                              \
        .title = (title_), .path = (path_), .member = (member_), .metric = (metric_)               \
    }
#define SCORE(m) OF(m, "", "metrics", "value"), OF(m, "_stderr", "metrics", "stderr")
#define CHANGE(m)                                                                                  \
    OF(m, "_delta", "paired", "delta"), OF(m, "_delta_stderr", "paired", "stderr"),                \
        OF(m, "_mcnemar_p", "paired", "mcnemar_p")
static const cmd_eval_column common[] = {
    DQ_COLUMN("model", "model", NULL),
    DQ_COLUMN("bits_per_weight", "weights.bits_per_weight", NULL),
    DQ_COLUMN("file_bytes", "weights.file_bytes", NULL),
    DQ_COLUMN("reference", "reference", NULL),
    DQ_COLUMN("weight_bits", "weights.bits", NULL),
    DQ_COLUMN("weight_group", "weights.group", NULL),
    DQ_COLUMN("logit_bits", "logit_bits", NULL),
    DQ_COLUMN("logit_granularity", "logit_granularity", NULL),
    DQ_COLUMN("task", NULL, NULL),
    DQ_COLUMN("n", "n", NULL),
    SCORE(1),
    SCORE(2),
    DQ_COLUMNS_MEAN("nll_nats", "metrics.nll_nats"),
    DQ_COLUMNS_MEAN("ppl", "metrics.ppl"),
    DQ_COLUMNS_MEAN("ln_ppl_ratio", "metrics.ln_ppl_ratio"),
    DQ_COLUMNS_MEAN("kld_nats", "metrics.kld_nats"),
    DQ_COLUMNS_MEAN("same_top1", "metrics.same_top1"),
    CHANGE(1),
    CHANGE(2),
    DQ_COLUMN("tokens_per_second", "throughput.tokens_per_second", NULL),
    DQ_COLUMN("math_linear", "math.linear", NULL),
    DQ_COLUMN("math_qk", "math.qk", NULL),
    DQ_COLUMN("math_pv", "math.pv", NULL),
    DQ_COLUMN("math_kv", "math.kv", NULL),
    OF(1, "_p", "paired", "p"),
    OF(2, "_p", "paired", "p"),
    DQ_COLUMN("clusters", "n_clusters", NULL),
    DQ_COLUMN("loss", "verdict.loss", NULL),
    {.title = "loss_low", .path = "verdict.interval", .at = 0},
    {.title = "loss_high", .path = "verdict.interval", .at = 1},
    DQ_COLUMN("margin", NULL, NULL),
    DQ_COLUMN("verdict", "verdict.is", NULL),
};
enum { COMMON = sizeof common / sizeof common[0] };

/* Columns of results that have what they lead to, without labels or for each. */
static const cmd_eval_column sliced[] = {
    DQ_COLUMN("ar_hit_share", "slices.share_ar_hit", NULL),
    DQ_COLUMNS_MEAN("ar_hit_nll_nats", "slices.ar_hit.nll_nats"),
    DQ_COLUMNS_MEAN("ar_hit_delta_nats", "slices.ar_hit.delta_nats"),
    DQ_COLUMNS_MEAN("others_nll_nats", "slices.others.nll_nats"),
    DQ_COLUMNS_MEAN("others_delta_nats", "slices.others.delta_nats")};
static const cmd_eval_column by_position[] = {
    {"cumulative_nll_nats", "positions.cumulative_nll_nats", .labels = "positions.at"},
    {"cumulative_difference_nats", "positions.difference_nats", .labels = "positions.at"}};
enum { SLICED = sizeof sliced / sizeof sliced[0], OWN_COLUMNS = 64 + 4 * DQ_EVAL_LABELS };

/* A column of a value, and one of its error. */
static dq_status mean_columns(cmd_eval_column *column, int *n, const char *title,
                              cmd_eval_column of, dq_arena *a, dq_err *err)
{
    of.title = title;
    column[(*n)++] = of;
    of.title = dq_textf(a, err, "%s_stderr", title);
    of.member =
        strcmp(of.member, "value") == 0 ? "stderr" : dq_textf(a, err, "%s_stderr", of.member);
    column[(*n)++] = of;
    return err->code;
}

/* Columns that are not in every CSV. */
static dq_status own_columns(cmd_eval_column *column, int *n, const cmd_eval_view *v, dq_err *err)
{
    dq_arena *a = v->e->a;
    const dq_eval_source *text = NULL;
    int at[DQ_EVAL_LABELS];
    bool slices = false;
    *n = 0;
    for (int i = 0; i < v->e->n_rows; i++) {
        if (!v->e->row[i].shown) continue;
        if (kind_of(v->e, i)->windows) text = dq_eval_source_of(v->e, &v->e->row[i]);
        slices = slices || cmd_eval_at(cmd_eval_result(v, i), sliced[0].path);
    }
    for (const cmd_eval_field *f = cmd_eval_fields; text && f->name; f++) {
        cmd_eval_column c = {f->csv, dq_textf(a, err, "metrics.%s", f->of ? f->of : f->name),
                             .member = f->of ? f->name : "value"};
        if (!c.path) return err->code;
        if (!f->csv || (f->there && !f->there(text))) continue;
        if (f->type == DQ_FIELD_MEAN)
            DQ_TRY(mean_columns(column, n, f->csv, c, a, err));
        else
            column[(*n)++] = c;
    }
    for (int i = 0; slices && i < SLICED; i++) column[(*n)++] = sliced[i];
    const int marks = cmd_eval_labels(at, v, &by_position[0]);
    for (int i = 0; i < 2 * marks; i++) {
        cmd_eval_column c = by_position[i % 2];
        const char *title = dq_textf(a, err, "%s_%d", c.title, at[i / 2]);
        if (!title) return err->code;
        c.at = at[i / 2];
        c.member = "value";
        DQ_TRY(mean_columns(column, n, title, c, a, err));
    }
    return DQ_OK;
}

static void common_cells(dq_table *t, const cmd_eval_view *v, int row)
{
    const json_t *result = cmd_eval_result(v, row);
    const dq_eval_kind *kind = dq_eval_source_of(v->e, &v->e->row[row])->kind;
    for (int i = 0; i < COMMON; i++) {
        cmd_eval_column c = common[i];
        const char *metric = c.metric ? kind->metric[c.metric - 1] : NULL;
        const json_t *of = result;
        if (c.metric) {
            of = metric ? json_object_get(json_object_get(result, c.path), metric) : NULL;
            c.path = "";
        }
        if (c.path)
            cmd_eval_column_csv(t, of, &c);
        else if (strcmp(c.title, "task") == 0)
            dq_table_cell(t, "%s", cmd_eval_title(v->e, row));
        else
            dq_table_real(t, v->margin);
    }
}

dq_status cmd_eval_columns(dq_table **out, const cmd_eval_view *v, dq_err *err)
{
    static const char *const usual[] = {"acc", "acc_norm"};
    const char *titles[COMMON + DQ_KV_TITLES + OWN_COLUMNS];
    cmd_eval_column column[OWN_COLUMNS];
    int n = COMMON, n_own;
    for (int i = 0; i < COMMON; i++) {
        const int m = common[i].metric - 1;
        const char *own = m < 0 ? "" : metric_title(v->e, m);
        titles[i] = dq_textf(v->e->a, err, "%s%s", own ? own : usual[m], common[i].title);
        if (!titles[i]) return err->code;
    }
    if (cmd_eval_kv_swept(v->e)) n += dq_kv_report_titles(titles + n);
    DQ_TRY(own_columns(column, &n_own, v, err));
    for (int i = 0; i < n_own; i++) titles[n++] = column[i].title;
    DQ_TRY(dq_table_new(out, titles, n, err));
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!r->shown) continue;
        common_cells(*out, v, i);
        if (cmd_eval_kv_swept(v->e)) dq_kv_report_columns(*out, &r->kv, &r->work.cached);
        /* Paths of other kinds lead nowhere, so their columns are empty. */
        for (int k = 0; k < n_own; k++)
            cmd_eval_column_csv(*out, cmd_eval_result(v, i), &column[k]);
    }
    return DQ_OK;
}

/* Means over tasks: a line stands at the first of its rows, each of which gives its quoted metric.
 */

static int quoted(const dq_eval *e, int row)
{
    return dq_eval_quoted(dq_eval_source_of(e, &e->row[row]));
}

/* What a result has of its quoted metric, under "metrics", "paired" or "cross_paired"; NULL:
 * nothing. */
static const json_t *quoted_of(const cmd_eval_view *v, int row, const char *of)
{
    const char *metric = kind_of(v->e, row)->metric[quoted(v->e, row)];
    return json_object_get(json_object_get(cmd_eval_result(v, row), of), metric);
}

/* Of n rows; false: one has none. */
static bool average_of(dq_eval_average *out, const cmd_eval_view *v, const int *row, int n,
                       const char *of)
{
    dq_mean mean[DQ_EVAL_SOURCES];
    dq_interval interval[DQ_EVAL_SOURCES];
    for (int i = 0; i < n; i++) {
        const json_t *x = quoted_of(v, row[i], of);
        if (!x) return false;
        mean[i] = cmd_eval_mean_of(x);
        interval[i] = cmd_eval_interval_of(x);
    }
    *out = dq_eval_average_of(mean, interval, n);
    return true;
}

/* Whether a mean of the kind has the member. */
static bool some_have(const cmd_eval_view *v, const dq_eval_kind *kind, const char *member)
{
    int row[DQ_EVAL_SOURCES];
    size_t at = 0;
    for (int i = 0; i < v->e->n_rows; i++) {
        if (!dq_eval_average_rows(row, v->e, i)) continue;
        const json_t *of = json_array_get(json_object_get(v->doc, "averages"), at++);
        if (kind_of(v->e, i) == kind && json_is_object(json_object_get(of, member))) return true;
    }
    return false;
}

static dq_status print_kind(const cmd_eval_view *v, const dq_eval_kind *kind, const int *first,
                            int n_tasks, dq_err *err)
{
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL,    DQ_KEY_WEIGHTS, DQ_KEY_LOGIT,
                                        DQ_KEY_KV_SWEPT, DQ_KEY_MATH,    DQ_KEYS_END};
    static const cmd_eval_column mean = DQ_COLUMN("mean", "mean", cmd_eval_cell_score),
                                 paired[] = {DQ_COLUMN("against reference", "paired",
                                                       cmd_eval_cell_score_change),
                                             DQ_COLUMN(NULL, "verdict.is", cmd_eval_cell_text)},
                                 cross = DQ_COLUMN("against first model", "cross_paired",
                                                   cmd_eval_cell_score_change);
    const bool compared = some_have(v, kind, "paired"),
               crossed = some_have(v, kind, "cross_paired");
    const char *titles[DQ_KEYS + DQ_EVAL_SOURCES + 4];
    char within[48];
    int n = cmd_eval_key_titles(titles, v->e, keys);
    const int n_keys = n;
    size_t at = 0;
    dq_table *t;
    for (int i = 0; i < n_tasks; i++) titles[n++] = cmd_eval_title(v->e, first[i]);
    titles[n++] = mean.title;
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    if (compared) titles[n++] = paired[0].title;
    if (compared) titles[n++] = within;
    if (crossed) titles[n++] = cross.title;
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, n_keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES];
        if (!dq_eval_average_rows(row, v->e, i)) continue;
        const json_t *of = json_array_get(json_object_get(v->doc, "averages"), at++);
        if (kind_of(v->e, i) != kind) continue;
        cmd_eval_key_cells(t, v, i, keys);
        for (int k = 0; k < n_tasks; k++)
            cmd_eval_cell_real(t, json_object_get(quoted_of(v, row[k], "metrics"), "value"));
        cmd_eval_column_cells(t, of, &mean, 1);
        if (compared) cmd_eval_column_cells(t, of, paired, 2);
        if (crossed) cmd_eval_column_cells(t, of, &cross, 1);
    }
    printf("\nMean over %d tasks, each counting as much (", n_tasks);
    /* "acc", or "acc_norm of hellaswag, acc of the others". */
    int second = 0;
    for (int i = 0; i < n_tasks; i++) {
        if (quoted(v->e, first[i]) == 0) continue;
        if (second == 0) printf("%s of ", kind->metric[1]);
        printf("%s%s", second++ ? ", " : "", cmd_eval_title(v->e, first[i]));
    }
    if (second < n_tasks)
        printf("%s%s%s", second ? ", " : "", kind->metric[0], second ? " of the others" : "");
    printf("):\n");
    return dq_table_finish(t, err);
}

dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES], other[DQ_EVAL_SOURCES];
        const int n = dq_eval_average_rows(row, v->e, i);
        bool seen = false;
        for (int k = 0; k < i && n; k++)
            seen = seen || (kind_of(v->e, k) == kind_of(v->e, i) &&
                            dq_eval_average_rows(other, v->e, k) > 0);
        if (n && !seen) DQ_TRY(print_kind(v, kind_of(v->e, i), row, n, err));
    }
    return DQ_OK;
}

static void average_rows(dq_row_writer *w, const cmd_eval_view *v, const int *row, int n)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row[0]]);
    dq_eval_average x = {.mean = dq_mean_none}, paired = x, cross = x;
    const bool compared = w->live && average_of(&paired, v, row, n, "paired");
    const bool crossed = w->live && average_of(&cross, v, row, n, "cross_paired");
    const dq_interval loss = {-paired.interval.high, -paired.interval.low};
    if (w->live) average_of(&x, v, row, n, "metrics");
    DQ_ITEM(w);
    DQ_PUT(w, "model", v->names[r->model], "Its name.");
    DQ_PUT(w, "reference", v->names[e->row[r->ref].model], "Model that it is compared with.");
    dq_kv_report_logit_rows(w, DQ_LIVE(w, &r->logit), "Bits of attention logits.");
    DQ_PUT(w, "kv", dq_kv_spec_json(&r->kv), "The KV cache.", DQ_KV_SPEC);
    DQ_PUT(w, "math", dq_kv_report_math_json(r->math), "The arithmetic.", DQ_MATH);
    DQ_LIST(w, "tasks", "What the mean is over.");
    for (int i = 0; DQ_MORE(w, i, n); i++) DQ_PUT(w, NULL, cmd_eval_title(e, row[i]), NULL);
    dq_row_end(w);
    DQ_LIST(w, "metrics", "What it takes of each.");
    for (int i = 0; DQ_MORE(w, i, n); i++)
        DQ_PUT(w, NULL, kind_of(e, row[i])->metric[quoted(e, row[i])], NULL);
    dq_row_end(w);
    DQ_ESTIMATE(w, "mean", x.mean, x.interval,
                "Every task counts as much, whatever its items; stderr null: a task has none.");
    DQ_NUMBER(w, "paired", DELTA, compared, paired.mean, paired.interval, NULL,
              "Difference to the reference on the same items; null: it is the reference.",
              .when = DQ_NULL);
    if (DQ_BEGIN(w, OBJECT, "verdict", compared,
                 "Whether it lost too much; null: it is compared with nothing.", .when = DQ_NULL)) {
        DQ_PUT(w, "loss", -paired.mean.value, "What the mean lost.", .when = DQ_NULL);
        DQ_INTERVAL(w, "interval", loss, "95 % interval of the loss.");
        DQ_PUT(w, "margin", v->margin, "The loss that is allowed.");
        DQ_PUT(w, "is", dq_interval_decision_name[dq_interval_decide(loss, v->margin)],
               "The verdict.", DQ_WORDS(dq_interval_decision_name));
        dq_row_end(w);
    }
    DQ_NUMBER(w, "cross_paired", CROSS, crossed, cross.mean, cross.interval, v->names[0],
              "Difference to the first model of the run on the same items.", .when = DQ_OUT);
    dq_row_end(w);
}

void cmd_eval_averages_rows(dq_row_writer *w, const cmd_eval_view *v)
{
    DQ_BEGIN(w, LIST, "averages", true,
             "Means over tasks, one for each model and setting of several tasks of a kind.",
             .when = DQ_SOMETIMES);
    for (int i = 0; DQ_MORE(w, i, v->e->n_rows); i++) {
        int row[DQ_EVAL_SOURCES];
        const int n = w->live ? dq_eval_average_rows(row, v->e, i) : 1;
        if (n) average_rows(w, v, row, n);
    }
    dq_row_end(w);
}

/* Why a row has none; NULL: it is compared. */
static const char *no_difference(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    if (r->ref != row) return NULL;
    return e->model[r->model].sourceless ? DQ_EVAL_SOURCELESS : DQ_EVAL_IS_REFERENCE;
}

/* What a metric of items is. */
static const char *metric_about(const char *metric)
{
    static const char *const about[][2] = {
        {"acc", "Share of items that are right, or of numbers that were found."},
        {"acc_norm", "The same by log-likelihood per character."},
        {"acc_ll", "The same by log-likelihood of whole labels."},
        {"all_correct", "Share of prompts of which all answers are right."},
        {"exact_match", "Share of answers that match, extracted flexibly."},
        {"strict_match", "Share of answers that match in the form asked for."}};
    for (size_t i = 0; i < sizeof about / sizeof *about; i++) {
        if (strcmp(about[i][0], metric) == 0) return about[i][1];
    }
    return NULL;
}

static void weights_rows(dq_row_writer *w, const dq_model *m)
{
    if (!DQ_OBJECT(w, "weights", "Its weights, and what they take.", .def = "weights")) return;
    const char *g = w->live ? m->weight_group : "";
    const bool packed = g[0], number = isdigit((unsigned char)g[0]);
    const bool differs = w->live && (!m->weight_bits || m->embed_bits != 16 || m->head_bits != 16);
    dq_size_rows(w, m);
    DQ_PUT(w, "bits", m->weight_bits, "Bits of the packed projections, 16: none is packed.",
           .min = 2, .max = 16, .mixed = "mixed");
    if (DQ_WHEN(w, !number))
        DQ_PUT(w, "group", packed ? g : NULL,
               "Columns per scale, row, tensor or mixed; null: nothing is packed.",
               .when = DQ_NULL);
    if (DQ_WHEN(w, number)) DQ_PUT(w, "group", strtol(g, NULL, 10), "Columns per scale.");
    DQ_PUT(w, "scale", packed ? m->scale_mode : NULL,
           "How scales were found; null: nothing is packed.", .when = DQ_NULL);
    DQ_PUT(w, "embed_bits", m->embed_bits == 16 ? -1 : m->embed_bits,
           "Bits of the embedding, where it is packed.", .when = DQ_OUT | DQ_BELOW_0);
    DQ_PUT(w, "head_bits", m->head_bits == 16 ? -1 : m->head_bits,
           "Bits of the head, where it is packed.", .when = DQ_OUT | DQ_BELOW_0);
    DQ_PUT(w, "packed_bits_per_weight", differs ? m->packed_bits : DQ_NO_REAL,
           "Bits per weight of the packed matrices, where they differ.", .when = DQ_OUT);
    dq_row_end(w);
}

void cmd_eval_choices_rows(dq_row_writer *w, const dq_eval *e, const dq_eval_row *r)
{
    const dq_eval_source *s = DQ_LIVE(w, dq_eval_source_of(e, r));
    DQ_PUT(w, "num_fewshot", s->n_shots, "Solved examples before every item.");
    DQ_PUT(w, "seed", s->n_shots ? s->seed : -1, "Of their draw; null: none.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "paper_metric", s->task->metric, "The metric that papers quote; null: not known.",
           .when = DQ_NULL, DQ_WORD("acc", "acc_norm"));
    DQ_PUT(w, "delimiter", dq_items_delimiter(&s->items),
           "What stands between contexts and choices; null: not the same in all items.",
           .when = DQ_NULL);
    DQ_PUT(w, "truncated_items", e->ids[r->ids].req.n_truncated,
           "Items that lost the beginning of their context.");
}

/* Differences to the reference row, or to that of another model. */
static void flips_rows(dq_row_writer *w, const dq_eval_kind *of, const dq_stat_flips *f)
{
    for (int m = 0; m < 2 && of->metric[m]; m++)
        DQ_FLIPS(w, of->metric[m], true, &f[m], "Scores of the same items in two runs.");
}

static dq_status cross_rows(dq_row_writer *w, const cmd_eval_view *v, int row,
                            const dq_eval_kind *of, dq_err *err)
{
    const int other = w->live ? cmd_eval_cross_row(v->e, row) : -1;
    dq_stat_flips f[2];
    if (!of->metric[0] ||
        !DQ_BEGIN(w, OBJECT, "cross_paired", other >= 0,
                  "Differences to the first model of the run on the same items.", .when = DQ_OUT))
        return DQ_OK;
    for (int m = 0; other >= 0 && m < 2 && of->metric[m]; m++)
        DQ_TRY(dq_eval_compare(v->e, other, row, m, &f[m], err));
    DQ_PUT(w, "model", v->names[v->e->row[other].model], "That model.");
    flips_rows(w, of, f);
    dq_row_end(w);
    return DQ_OK;
}

static const char *const passes[] = {"whole", "context+rest", "decode", "prompt+decode",
                                     "context+question+decode"};

/* kind, of: the row's. */
static dq_status result_rows(dq_row_writer *w, const cmd_eval_view *v, int row,
                             const cmd_eval_kind *kind, const dq_eval_kind *of, dq_err *err)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    const dq_eval_source *source = DQ_LIVE(w, dq_eval_source_of(e, r));
    const char *own = w->live ? e->ids[r->ids].passes : NULL;
    dq_eval_numbers numbers, *x = w->live ? &numbers : NULL;
    if (w->live) DQ_TRY(dq_eval_numbers_of(e, row, &numbers, err));
    DQ_ITEM(w);
    DQ_PUT(w, "model", v->names[r->model], "Its name in the run.");
    DQ_PUT(w, "reference", v->names[e->row[r->ref].model], "The model that it is compared with.");
    DQ_PUT(w, "reference_weights", cmd_eval_reference_weights(e, r), "Whose weights that has.",
           DQ_WORD("own", "source", "other"));
    weights_rows(w, DQ_LIVE(w, e->model[r->model].m));
    dq_kv_report_logit_rows(w, DQ_LIVE(w, &r->logit), "Bits of attention logits, 16: not rounded.");
    DQ_PUT(w, "kv", dq_kv_report_json(&r->kv, &r->work.cached), "The KV cache and what it held.",
           DQ_KV_RESULT);
    DQ_PUT(w, "same_as", cmd_eval_same_as(e, row),
           "Index of the result whose numbers it shares; null: none.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "math", dq_kv_report_math_json(r->math), "The arithmetic.", DQ_MATH);
    DQ_PUT(w, "passes", own ? own : dq_eval_passes(r), "How tokens were fed.", DQ_WORDS(passes));
    DQ_PUT(w, "task", source->name, "What was scored.");
    DQ_PUT(w, "n", x->n, "Items, or scored tokens of a text.");
    DQ_PUT(w, "n_clusters", x->n_clusters, "Clusters that errors are over.");
    DQ_PUT(w, "cluster", dq_eval_cluster(e, r),
           "What they are: item, prompt, query, document or window.");
    DQ_OBJECT(w, "metrics", "What it scored.");
    for (int m = 0; m < 2 && of->metric[m]; m++)
        DQ_SCORE(w, of->metric[m], x->score[m], x->score_interval[m], metric_about(of->metric[m]));
    if (of->windows) cmd_eval_field_rows(w, x, w->live ? no_difference(e, row) : NULL);
    dq_row_end(w);
    if (DQ_BEGIN(w, OBJECT, "paired", !x->is_ref,
                 "Differences to the reference on the same items; null: it is the reference.",
                 .when = DQ_NULL)) {
        flips_rows(w, of, DQ_LIVE(w, x->flips));
        if (of->windows)
            DQ_NUMBER(w, DQ_EVAL_LOSS, LOSS, true, x->ln_ratio, dq_mean_interval(x->ln_ratio), NULL,
                      "Of the NLL of a text, nats.");
        dq_row_end(w);
    }
    verdict_rows(w, v, row, x);
    DQ_OBJECT(w, "throughput", "How fast it was scored.");
    DQ_PUT(w, "tokens", r->work.tokens, "Tokens, each sequence counted for itself.");
    DQ_PUT(w, "computed_tokens", r->work.computed, "Of them computed.");
    DQ_PUT(w, "seconds", r->work.seconds, "Seconds.", .when = DQ_NULL);
    DQ_PUT(w, "tokens_per_second", dq_score_rate(&r->work), "Computed tokens per second.",
           .when = DQ_NULL);
    dq_row_end(w);
    if (kind->details) DQ_TRY(kind->details(w, v, row, err));
    DQ_TRY(cross_rows(w, v, row, of, err));
    dq_row_end(w);
    return DQ_OK;
}

/* What a schema is of: of one that may be null the other, of a reference what it is to. */
static const json_t *schema_behind(const json_t *x, const json_t *defs)
{
    const json_t *several = json_object_get(x, "oneOf");
    if (several) x = json_array_get(several, 1);
    const char *ref = json_string_value(json_object_get(x, "$ref"));
    return ref ? json_object_get(defs, strrchr(ref, '/') + 1) : x;
}

/* Whether a schema's type is a number, or one of several that is. */
static bool may_be_number(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    bool number = false;
    for (size_t i = 0; i < (json_is_array(type) ? json_array_size(type) : 1); i++) {
        const char *one = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        number = number || (one && (strcmp(one, "number") == 0 || strcmp(one, "integer") == 0));
    }
    return number;
}

bool cmd_eval_result_has(const dq_eval_source *source, const char *path)
{
    char key[DQ_GATE_NAME];
    dq_err none = {0};
    json_t *o = json_object();
    dq_row_writer w = dq_row_schema(o);
    w.at[0].row.type = DQ_ROW_LIST;
    result_rows(&w, NULL, 0, cmd_eval_kind_of(source), source->kind, &none);
    const json_t *x = json_object_get(o, "items"), *defs = w.defs;
    for (const char *at = path; x && at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(at, "."), at);
        x = schema_behind(json_object_get(json_object_get(x, "properties"), key), defs);
    }
    const bool has = may_be_number(x);
    json_decref(o);
    return has;
}

dq_status cmd_eval_results_rows(dq_row_writer *w, const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; w->live && i < v->e->n_rows; i++) {
        const dq_eval_source *s = dq_eval_source_of(v->e, &v->e->row[i]);
        if (v->e->row[i].shown) DQ_TRY(result_rows(w, v, i, cmd_eval_kind_of(s), s->kind, err));
    }
    for (int i = 0; !w->live && i < DQ_EVAL_KINDS * DQ_EVAL_KIND_ROWS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i / DQ_EVAL_KIND_ROWS];
        const dq_eval_kind *of = kind->kind[i % DQ_EVAL_KIND_ROWS];
        if (of) result_rows(w, NULL, 0, kind, of, err);
    }
    return DQ_OK;
}

void cmd_eval_choice_rows(dq_row_writer *w, const dq_eval_source *s, int64_t item, int choice)
{
    const dq_item *of = &s->items.item[item];
    const dq_choice *c = &of->choice[choice];
    size_t n;
    const char *context = dq_item_context(of, choice, &n);
    DQ_PUT(w, "item", dq_eval_number(s, item), NULL);
    DQ_PUT(w, "choice", choice, NULL);
    DQ_PUT(w, "context", json_stringn(context, n), NULL);
    DQ_PUT(w, "continuation", json_stringn(c->text, c->len), NULL);
}

void cmd_eval_request_rows(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r,
                           const dq_request *q, int64_t n_cont)
{
    dq_request own = *q;
    own.n_cont = n_cont;
    DQ_PUT(w, "n_ctx", dq_items_shared_prefix(&v->e->ids[r->ids].req, q->item)->n + q->n_ctx, NULL);
    DQ_PUT(w, "n_cont", n_cont, NULL);
    DQ_PUT(w, "ll", dq_eval_ll(r, &own), NULL);
    DQ_PUT(w, "greedy", dq_eval_greedy(r, &own), NULL);
}

typedef struct dump {
    const cmd_eval_view *v;
    const cmd_eval_kind *kind; /* NULL: all that have no file of their own */
} dump;

static dq_status dump_rows(FILE *f, const void *arg, dq_err *err)
{
    const dump *d = arg;
    const dq_eval *e = d->v->e;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        const dq_eval_source *s = dq_eval_source_of(e, r);
        const cmd_eval_kind *kind = cmd_eval_kind_of(s);
        const int64_t n = s->kind->windows ? dq_eval_units(e, r) : e->ids[r->ids].req.n;
        if (!r->shown || (d->kind ? kind != d->kind : !cmd_eval_kind_dumps(kind))) continue;
        for (int64_t k = 0; k < n; k++) {
            json_t *o = json_object();
            dq_row_writer w = dq_row_json(o);
            cmd_eval_row_keys(&w, d->v, r);
            kind->item(&w, d->v, r, k, err);
            dq_document_put_line(f, o, err);
            DQ_TRY(err->code);
        }
    }
    return DQ_OK;
}

dq_status cmd_eval_dump(const cmd_eval_view *v, const cmd_eval_kind *kind, const char *path,
                        dq_err *err)
{
    const dump d = {v, kind};
    return dq_document_write_lines(path, dump_rows, &d, err);
}
