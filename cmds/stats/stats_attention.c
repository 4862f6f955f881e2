/* stats_attention: see stats_attention.h. Sums over rows are divided here and nowhere before, so that layers can
 * be added up first. The table, the document and the file show the same shares.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_attention.h"

#include "calib/head_kinds.h"
#include "cmds/cli/table.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Means and shares of one measure. */
typedef struct shares {
    double entropy[2], sink_mass[2], variation, negative;
    double near_zero[DQ_N_THRESHOLDS], skippable[DQ_N_THRESHOLDS];
} shares;

static double over(double x, int64_t n)
{
    return n > 0 ? x / (double)n : (double)NAN;
}

static shares shares_of(const dq_head_measure *m, int n_maps)
{
    shares s;
    for (int k = 0; k < 2; k++) {
        s.entropy[k] = k < n_maps ? over(m->entropy[k], m->rows) : (double)NAN;
        s.sink_mass[k] = k < n_maps ? over(m->sink_mass[k], m->rows) : (double)NAN;
    }
    s.variation = over(m->variation, m->rows);
    s.negative = over(m->negative, m->rows);
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        s.near_zero[i] = over((double)m->near_zero[i], m->keys);
        s.skippable[i] = over((double)m->skippable[i], m->pages);
    }
    return s;
}

static dq_head_measure layers_of(const dq_outliers *o, int first, int end)
{
    dq_head_measure all = {0};
    for (int i = first * o->n_out; i < end * o->n_out; i++)
        dq_head_measure_merge(&all, &o->measure[i]);
    return all;
}

static void cell(dq_table *t, double x)
{
    if (isfinite(x))
        dq_table_cell(t, "%.4g", x);
    else
        dq_table_cell(t, "-");
}

static void row(dq_table *t, const cmd_stats_entry *e, int first, int end)
{
    const dq_head_measure m = layers_of(&e->out, first, end);
    const shares s = shares_of(&m, e->model->map.n_maps);
    const double x[] = {s.entropy[0],   s.entropy[1],  s.sink_mass[0], s.sink_mass[1],
                        s.variation,    s.negative,    s.near_zero[1], s.near_zero[2],
                        s.skippable[1], s.skippable[2]};
    dq_table_cell(t, "%s", e->label);
    if (end - first == 1)
        dq_table_cell(t, "%d", first);
    else
        dq_table_cell(t, "all");
    for (size_t c = 0; c < sizeof x / sizeof *x; c++) cell(t, x[c]);
}

dq_status cmd_stats_attention_print(const cmd_stats_entry *e, int n, bool layers, dq_err *err)
{
    static const char *const titles[] = {
        "model",   "layer", "entropy 1",  "entropy 2",  "sinks 1",      "sinks 2",
        "sum |D|", "D < 0", "|D| < 1e-3", "|D| < 1e-2", "pages < 1e-3", "pages < 1e-2"};
    dq_table *t;
    if (dq_table_new(&t, titles, 12, err) == DQ_OK) {
        dq_table_keys(t, 2);
        for (int i = 0; i < n; i++) {
            if (i && layers) dq_table_rule(t);
            for (int l = 0; layers && l < e[i].out.n_layers; l++) row(t, &e[i], l, l + 1);
            if (!layers) row(t, &e[i], 0, e[i].out.n_layers);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* "3.1 11.0": layers and heads of a kind, as many as a cell takes. */
static void heads_cell(dq_table *t, const dq_outliers *o, dq_head_kind kind)
{
    enum { WIDE = 78 };
    char text[WIDE + 24] = "";
    size_t n = 0;
    for (int i = 0; i < o->n_layers * o->n_out; i++) {
        if (dq_head_kind_of(&o->measure[i], &o->look[i]) != kind) continue;
        if (n > WIDE) {
            snprintf(text + n, sizeof text - n, " ...");
            break;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d.%d", n ? " " : "", i / o->n_out,
                              i % o->n_out);
    }
    dq_table_cell(t, "%s", *text ? text : "-");
}

dq_status cmd_stats_kinds_print(const cmd_stats_entry *e, dq_err *err)
{
    static const char *const titles[] = {"kind", "heads", "layer.head"};
    const dq_outliers *o = &e->out;
    int count[DQ_HEAD_KINDS] = {0};
    dq_table *t;
    for (int i = 0; i < o->n_layers * o->n_out; i++)
        count[dq_head_kind_of(&o->measure[i], &o->look[i])]++;
    if (dq_table_new(&t, titles, 3, err) == DQ_OK) {
        for (int k = 0; k < DQ_HEAD_KINDS; k++) {
            dq_table_cell(t, "%s", dq_head_kind_name[k]);
            dq_table_cell(t, "%d", count[k]);
            heads_cell(t, o, (dq_head_kind)k);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

/* {"1e-04": share, ...} */
static json_t *thresholds_json(const double *share)
{
    char key[16];
    json_t *x = json_object();
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        snprintf(key, sizeof key, "%.0e", dq_head_measure_thresholds[i]);
        json_object_set_new(x, key, dq_document_real(share[i]));
    }
    return x;
}

static json_t *pair_json(const double *x)
{
    json_t *pair = json_array();
    json_array_append_new(pair, dq_document_real(x[0]));
    json_array_append_new(pair, dq_document_real(x[1]));
    return pair;
}

/* Means over rows of A1, A2, and of |D|; null where there is no second map. */
static json_t *masses_json(const dq_head_profile *p, dq_head_sum first, int64_t n, int n_maps)
{
    json_t *x = json_array();
    for (int k = 0; k < 3; k++)
        json_array_append_new(x, k == 1 && n_maps < 2
                                     ? json_null()
                                     : dq_document_real(over(p->sum[(int)first + k], n)));
    return x;
}

/* What a profile has of a head, or of several. */
static void profile_json(json_t *x, const dq_head_profile *p, int n_maps)
{
    const double support[2] = {over(p->sum[DQ_HEAD_SUPPORT_1], p->rows),
                               n_maps > 1 ? over(p->sum[DQ_HEAD_SUPPORT_2], p->rows) : (double)NAN};
    json_object_set_new(x, "effective_support", pair_json(support));
    json_object_set_new(x, "first_mass", masses_json(p, DQ_HEAD_FIRST_1, p->rows, n_maps));
    json_object_set_new(x, "local_mass", masses_json(p, DQ_HEAD_LOCAL_1, p->rows, n_maps));
    json_object_set_new(x, "copy_mass", masses_json(p, DQ_HEAD_COPY_1, p->copies, n_maps));
    json_object_set_new(x, "n_copy_rows", json_integer(p->copies));
    json_object_set_new(x, "maps_distance",
                        n_maps > 1 ? dq_document_real(1 - over(p->sum[DQ_HEAD_COMMON], p->rows))
                                   : json_null());
    json_object_set_new(x, "cancelled_mass",
                        n_maps > 1 ? dq_document_real(over(p->sum[DQ_HEAD_CANCELLED], p->rows))
                                   : json_null());
}

static json_t *measure_json(const dq_head_measure *m, int n_maps)
{
    const shares s = shares_of(m, n_maps);
    json_t *x = json_object();
    json_object_set_new(x, "n_rows", json_integer(m->rows));
    json_object_set_new(x, "entropy_nats", pair_json(s.entropy));
    json_object_set_new(x, "sink_mass", pair_json(s.sink_mass));
    json_object_set_new(x, "total_variation", dq_document_real(s.variation));
    json_object_set_new(x, "negative_mass", dq_document_real(s.negative));
    json_object_set_new(x, "positive_mass", dq_document_real(s.variation - s.negative));
    json_object_set_new(x, "near_zero_keys", thresholds_json(s.near_zero));
    json_object_set_new(x, "skippable_pages", thresholds_json(s.skippable));
    return x;
}

json_t *cmd_stats_attention_json(const cmd_stats_entry *e, int layer)
{
    const dq_outliers *o = &e->out;
    const int n_maps = e->model->map.n_maps;
    const dq_head_measure all = layers_of(o, layer, layer + 1);
    json_t *x = json_object(), *heads = json_array(), *mean = measure_json(&all, n_maps);
    dq_head_profile seen = {0};
    for (int h = 0; h < o->n_out; h++) {
        const int64_t at = (int64_t)layer * o->n_out + h;
        json_t *head = measure_json(&o->measure[at], n_maps);
        json_object_set_new(head, "head", json_integer(h));
        if (o->look) {
            profile_json(head, &o->look[at], n_maps);
            json_object_set_new(
                head, "kind",
                json_string(dq_head_kind_name[dq_head_kind_of(&o->measure[at], &o->look[at])]));
            dq_head_profile_merge(&seen, &o->look[at]);
        }
        json_array_append_new(heads, head);
    }
    if (o->look) profile_json(mean, &seen, n_maps);
    json_object_set_new(x, "lambda",
                        e->model->layer[layer].attn.lambda_kind == DQ_LAMBDA_LAYER
                            ? dq_document_real((double)e->model->layer[layer].attn.lambda)
                            : json_null());
    json_object_set_new(x, "mean", mean);
    json_object_set_new(x, "heads", heads);
    return x;
}

/* Arrays of a profile, beside those of measures. */
static dq_status profile_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                            dq_arena *a, dq_err *err)
{
    static const struct {
        const char *name;
        dq_head_sum first;
        int width;
        bool copies;
    } all[] = {{"effective_support", DQ_HEAD_SUPPORT_1, 2, false},
               {"first_mass", DQ_HEAD_FIRST_1, 3, false},
               {"local_mass", DQ_HEAD_LOCAL_1, 3, false},
               {"copy_mass", DQ_HEAD_COPY_1, 3, true},
               {"common_mass", DQ_HEAD_COMMON, 1, false},
               {"cancelled_mass", DQ_HEAD_CANCELLED, 1, false}};
    const dq_outliers *o = &e->out;
    const int64_t n = (int64_t)o->n_layers * o->n_out;
    char name[160];
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
        const int64_t shape[3] = {o->n_layers, o->n_out, all[k].width};
        double *x = dq_alloc(a, (size_t)(n * all[k].width), sizeof *x, err);
        if (!x) return err->code;
        for (int64_t i = 0; i < n * all[k].width; i++) {
            const dq_head_profile *p = &o->look[i / all[k].width];
            x[i] = over(p->sum[(int)all[k].first + (int)(i % all[k].width)],
                        all[k].copies ? p->copies : p->rows);
        }
        snprintf(name, sizeof name, "%s/attention/%s", group, all[k].name);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_F64, all[k].width == 1 ? 2 : 3, shape, x, err));
    }
    return DQ_OK;
}

dq_status cmd_stats_attention_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                                 dq_arena *a, dq_err *err)
{
    const dq_outliers *o = &e->out;
    const int64_t n = (int64_t)o->n_layers * o->n_out;
    const int64_t shape[3] = {o->n_layers, o->n_out, 2},
                  wide[3] = {o->n_layers, o->n_out, DQ_N_THRESHOLDS};
    enum { N = 6 };
    static const char *const names[N] = {"entropy_nats",  "sink_mass",      "total_variation",
                                         "negative_mass", "near_zero_keys", "skippable_pages"};
    static const int width[N] = {2, 2, 1, 1, DQ_N_THRESHOLDS, DQ_N_THRESHOLDS};
    double *all[N];
    char name[160];
    for (int k = 0; k < N; k++) {
        all[k] = dq_alloc(a, (size_t)(n * width[k]), sizeof(double), err);
        if (!all[k]) return err->code;
    }
    for (int64_t i = 0; i < n; i++) {
        const shares s = shares_of(&o->measure[i], e->model->map.n_maps);
        for (int k = 0; k < 2; k++) {
            all[0][2 * i + k] = s.entropy[k];
            all[1][2 * i + k] = s.sink_mass[k];
        }
        all[2][i] = s.variation;
        all[3][i] = s.negative;
        for (int k = 0; k < DQ_N_THRESHOLDS; k++) {
            all[4][DQ_N_THRESHOLDS * i + k] = s.near_zero[k];
            all[5][DQ_N_THRESHOLDS * i + k] = s.skippable[k];
        }
    }
    snprintf(name, sizeof name, "%s/attention", group);
    DQ_TRY(dq_h5_result_group(h, name, err));
    for (int k = 0; k < N; k++) {
        snprintf(name, sizeof name, "%s/attention/%s", group, names[k]);
        DQ_TRY(dq_h5_result_array(h, name, DQ_OUT_F64, width[k] == 1 ? 2 : 3,
                                  width[k] == DQ_N_THRESHOLDS ? wide : shape, all[k], err));
    }
    return o->look ? profile_h5(h, group, e, a, err) : DQ_OK;
}
