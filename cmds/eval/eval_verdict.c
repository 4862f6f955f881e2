/* eval_verdict: see eval_verdict.h. Rows that differ in the bits of their logits alone form a series. Its widths are
 * walked from 16 down, and the lowest that holds is the last before one that does not, or about which nothing is
 * decided.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_verdict.h"

#include "cmds/cli/kv_report.h"
#include "cmds/eval/eval_averages.h"
#include "cmds/eval/eval_cells.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_kv.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

cmd_eval_verdict cmd_eval_verdict_of(const cmd_eval_view *v, int row, const dq_eval_numbers *x)
{
    cmd_eval_verdict y = {.there = false};
    y.there = dq_eval_loss_of(&y.loss, v->e, row, x);
    if (!y.there) return y;
    y.is = dq_interval_decide(y.loss.interval, v->margin);
    if (y.is == DQ_INCONCLUSIVE) y.missing = dq_interval_missing(&y.loss, v->margin);
    return y;
}

/* ---- The lowest width ---- */

/* Rows that differ in the bits of their logits only, the widest first. */
typedef struct series {
    int row[WIDTHS], n;
    cmd_eval_verdict verdict[WIDTHS];
    int lowest; /* bits; 0: none */
} series;

static bool same_but_bits(const dq_eval_row *a, const dq_eval_row *b)
{
    return b->shown && b->model == a->model && b->ids == a->ids && dq_math_same(a->math, b->math) &&
           dq_kv_spec_same(&a->kv, &b->kv) &&
           (!dq_logit_rounds(b->logit) || b->logit.granularity == a->logit.granularity);
}

/* Whether row i is the first rounded one of a series, and the series. */
static dq_status series_of(series *f, const cmd_eval_view *v, int i, bool *speaks, dq_err *err)
{
    const dq_eval *e = v->e;
    bool good = true;
    *f = (series){.n = 0};
    *speaks = is_compared(e, i) && e->row[i].ref != i && e->row[i].logit.bits < 16;
    for (int k = 0; *speaks && k < i; k++)
        *speaks = e->row[k].logit.bits == 16 || !same_but_bits(&e->row[i], &e->row[k]);
    for (int bits = 16; *speaks && bits > 1; bits--) {
        for (int k = 0; k < e->n_rows; k++) {
            dq_eval_numbers x;
            if (e->row[k].logit.bits != bits || f->n == WIDTHS) continue;
            if (!same_but_bits(&e->row[i], &e->row[k])) continue;
            DQ_TRY(dq_eval_numbers_of(e, k, &x, err));
            f->verdict[f->n] = cmd_eval_verdict_of(v, k, &x);
            good = good && (!f->verdict[f->n].there || f->verdict[f->n].is == DQ_WITHIN);
            if (good) f->lowest = bits;
            f->row[f->n++] = k;
        }
    }
    *speaks = *speaks && f->n > 1;
    return DQ_OK;
}

static void print_series(const cmd_eval_view *v, const series *f)
{
    const dq_eval_row *r = &v->e->row[f->row[f->n - 1]];
    const char *cluster = dq_eval_cluster(v->e, r);
    char label[DQ_KV_LABEL];
    printf("  %s, %s, granularity %s", v->names[r->model], cmd_eval_title(v->e, f->row[0]),
           dq_granularity_name[r->logit.granularity]);
    if (cmd_eval_math_swept(v->e)) printf(", math %s", dq_num_name[r->math.linear]);
    if (cmd_eval_kv_swept(v->e)) printf(", KV %s", dq_kv_report_label(label, sizeof label, &r->kv));
    if (f->lowest)
        printf(": %d\n", f->lowest);
    else
        printf(": none\n");
    for (int i = 0; i < f->n; i++) {
        const cmd_eval_verdict *y = &f->verdict[i];
        if (!y->there) continue;
        printf("    %d bits: %s; loss %+.4f", v->e->row[f->row[i]].logit.bits,
               dq_interval_decision_name[y->is], y->loss.value);
        if (isnan(y->loss.interval.low))
            printf(", no interval over one %s", cluster);
        else
            printf(", interval %+.4f to %+.4f", y->loss.interval.low, y->loss.interval.high);
        if (y->missing)
            printf(", roughly %s more would decide",
                   cmd_eval_clusters_text(label, sizeof label, y->missing, cluster));
        printf("\n");
    }
}

/* ---- What the numbers rest on ---- */

/* Differences of the quoted metric: shown rows against their references, and those of tasks against the first model, and
 * the same of means over tasks; a cache that several rows name counts once. */
static int n_comparisons(const dq_eval *e)
{
    int n = cmd_eval_averages_compared(e);
    for (int i = 0; i < e->n_rows; i++) {
        if (!is_compared(e, i) || e->row[i].same != i) continue;
        n += e->row[i].ref != i;
        n += cmd_eval_cross_row(e, i) >= 0;
    }
    return n;
}

static bool has_windows(const dq_eval *e, bool windows)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (is_compared(e, i) && kind_of(e, i)->windows == windows) return true;
    }
    return false;
}

/* The first row whose units depend on each other; -1: none. */
static int first_clustered(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (is_compared(e, i) && e->ids[e->row[i].ids].cluster) return i;
    }
    return -1;
}

static void print_notes(const dq_eval *e)
{
    const int n = n_comparisons(e), clustered = first_clustered(e);
    bool any = false;
    for (int i = 0; i < e->n_rows; i++) any = any || is_compared(e, i);
    if (!any) return;
    printf("\n\u00b1 is one standard error over the clusters of the row. ");
    if (has_windows(e, false)) printf("Where no item differs, a 95 %% bound stands instead. ");
    if (n == 0) {
        printf("No row is compared with another.\n");
        return;
    }
    printf("Differences are paired%s", has_windows(e, true) ? "; of a text, of its NLL" : "");
    if (clustered >= 0) {
        char name[48];
        printf("; p: t test over %s, else exact McNemar test",
               strchr(cmd_eval_clusters_text(name, sizeof name, 2,
                                             dq_eval_cluster(e, &e->row[clustered])),
                      ' ') +
                   1);
    } else if (has_windows(e, false))
        printf("; p: exact McNemar test");
    printf(".\n");
    if (n == 1)
        printf("1 comparison, at 95 %%.\n");
    else
        printf("%d comparisons, each at 95 %%: about %.1f of their intervals are "
               "expected to miss by chance.\n",
               n, 0.05 * n);
}

/* What the columns of a cache say. */
static void print_shares(const dq_eval *e)
{
    bool any = false, nothing = false;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        if (!r->shown || !r->work.cached.contexts) continue;
        any = true;
        nothing = nothing || dq_kv_report_shares_of(&r->kv, &r->work.cached).saves_nothing;
    }
    if (!any || !cmd_eval_kv_swept(e)) return;
    printf("kept: share of a context's tokens that its cache holds. share of 16 bits: bytes held "
           "(codes, scales, index,\nwhat is not coded) over those of the whole context at 2 an "
           "element.%s\n",
           nothing ? " From 1 on a cache " DQ_KV_SAVES_NOTHING "." : "");
}

static void print_sourceless(const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    for (int m = 0; m < e->n_models; m++) {
        bool any = false;
        for (int i = 0; i < e->n_rows; i++)
            any = any || (e->row[i].model == m && is_compared(e, i));
        if (any && e->model[m].sourceless)
            printf("%s: compared with nothing, as its source checkpoint is not in the run. Add it, "
                   "or --ref MODEL (the container itself: without what its weights lost).\n",
                   v->names[m]);
    }
}

/* Whether models m and k are references of their own rows and have scored the same tokens of a text. */
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

static void print_apart(const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    bool any = false;
    for (int m = 0; m < e->n_models; m++) {
        bool apart = false;
        for (int k = 0; k < e->n_models; k++) apart = apart || stand_apart(e, m, k);
        if (apart) printf("%s%s", any ? ", " : "", v->names[m]);
        any = any || apart;
    }
    if (any)
        printf(": each is its own reference, so neither KLD nor a difference of a text compares "
               "them. --ref MODEL compares every row with one model.\n");
}

dq_status cmd_eval_claims(const cmd_eval_view *v, dq_err *err)
{
    bool first = true;
    print_notes(v->e);
    print_shares(v->e);
    print_sourceless(v);
    print_apart(v);
    for (int i = 0; i < v->e->n_rows; i++) {
        series f;
        bool speaks;
        DQ_TRY(series_of(&f, v, i, &speaks, err));
        if (!speaks) continue;
        if (first)
            printf("\nLowest logit bits within the margin: loss at most %g (%s), by paired 95 %% "
                   "intervals:\n",
                   v->margin,
                   !has_windows(v->e, true)    ? "of accuracy"
                   : !has_windows(v->e, false) ? "nats of NLL"
                                               : "of accuracy, or nats of NLL");
        first = false;
        print_series(v, &f);
    }
    return DQ_OK;
}

dq_status cmd_eval_warn_clusters(dq_logger *logger, const cmd_eval_view *v, dq_err *err)
{
    const dq_eval *e = v->e;
    for (int i = 0; i < e->n_rows; i++) {
        dq_eval_numbers x;
        const char *cluster = dq_eval_cluster(e, &e->row[i]);
        if (!is_compared(e, i)) continue;
        DQ_TRY(dq_eval_numbers_of(e, i, &x, err));
        if (x.n_clusters == 1)
            dq_logger_warn(logger,
                           "%s: one %s, or copies of one, so there are no standard errors and "
                           "nothing is decided",
                           cmd_eval_title(e, i), cluster);
        else if (x.n_clusters < DQ_EVAL_FEW_CLUSTERS)
            dq_logger_warn(
                logger,
                "%s: standard errors rest on %lld clusters (each %s is one) and are rough "
                "themselves; intervals take this into account with Student's t. Use %d or more",
                cmd_eval_title(e, i), (long long)x.n_clusters,
                strcmp(cluster, "cluster") == 0 ? "set of copies or of items of a passage"
                                                : cluster,
                DQ_EVAL_FEW_CLUSTERS);
    }
    return DQ_OK;
}

/* A checkpoint of the run that could be taken for the source of model m: the one of that name, else any. -1: none. */
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
        bool any = false;
        for (int i = 0; i < e->n_rows; i++)
            any = any || (e->row[i].model == m && is_compared(e, i));
        if (!any || !e->model[m].sourceless || !made_from[m]) continue;
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

/* ---- JSON ---- */

json_t *cmd_eval_verdict_json(const cmd_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, &v->e->row[row]);
    const cmd_eval_kind *kind = cmd_eval_kind_of(s);
    const cmd_eval_verdict y = cmd_eval_verdict_of(v, row, x);
    if (!y.there) return json_null();
    json_t *o = json_object();
    json_object_set_new(
        o, "metric",
        json_string(kind->out.loss ? kind->out.loss : s->kind->metric[dq_eval_quoted(s)]));
    json_object_set_new(o, "loss", dq_document_real(y.loss.value));
    json_object_set_new(o, "interval", cmd_eval_interval_json(y.loss.interval));
    json_object_set_new(o, "n_clusters", json_integer((json_int_t)y.loss.clusters));
    json_object_set_new(o, "margin", dq_document_real(v->margin));
    json_object_set_new(o, "is", json_string(dq_interval_decision_name[y.is]));
    json_object_set_new(o, "missing_clusters",
                        y.missing ? json_integer((json_int_t)y.missing) : json_null());
    return o;
}

static json_t *series_json(const cmd_eval_view *v, const series *f)
{
    const dq_eval_row *r = &v->e->row[f->row[f->n - 1]];
    json_t *o = json_object(), *widths = json_object();
    char bits[16], label[DQ_KV_LABEL];
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "task", json_string(cmd_eval_title(v->e, f->row[0])));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "kv_label",
                        json_string(dq_kv_report_label(label, sizeof label, &r->kv)));
    json_object_set_new(o, "lowest", f->lowest ? json_integer(f->lowest) : json_null());
    for (int i = 0; i < f->n; i++) {
        const cmd_eval_verdict *y = &f->verdict[i];
        snprintf(bits, sizeof bits, "%d", v->e->row[f->row[i]].logit.bits);
        json_object_set_new(
            widths, bits,
            json_string(y->there ? dq_interval_decision_name[y->is] : "is the reference"));
    }
    json_object_set_new(o, "widths", widths);
    return o;
}

dq_status cmd_eval_claims_json(json_t *document, const cmd_eval_view *v, dq_err *err)
{
    const int n = n_comparisons(v->e);
    json_t *c = json_object(), *lowest = json_array();
    json_object_set_new(c, "n", json_integer(n));
    json_object_set_new(c, "level", json_real(0.95));
    json_object_set_new(c, "expected_misses", json_real(0.05 * n));
    json_object_set_new(document, "comparisons", c);
    json_object_set_new(document, "lowest_logit_bits", lowest);
    for (int i = 0; i < v->e->n_rows; i++) {
        series f;
        bool speaks;
        DQ_TRY(series_of(&f, v, i, &speaks, err));
        if (speaks) json_array_append_new(lowest, series_json(v, &f));
    }
    return DQ_OK;
}
