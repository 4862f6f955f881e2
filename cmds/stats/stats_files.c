/* stats_files: the numbers of dq stats as CSV and as HDF5. Both walk models, kinds and layers in that order; in HDF5 a quantity
 * becomes an array over layers, and channels an array over layers, classes of tokens and channels.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_attention.h"
#include "cmds/stats/stats_cells.h"
#include "cmds/stats/stats_forecast.h"
#include "cmds/stats/stats_units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ----- CSV ----- */

static void csv_row(dq_table *t, const cmd_stats_entry *e, int k, int layer, bool ordinary)
{
    const dq_outlier_kind *x = &e->out.kind[k];
    const dq_tally *all = layer < 0 ? &x->pooled : &x->layer[layer];
    const dq_tally *y = !ordinary ? all : layer < 0 ? &x->pooled_ordinary : &x->ordinary[layer];
    const dq_median m = ordinary    ? dq_outlier_median(y)
                        : layer < 0 ? x->pooled_median
                                    : x->layer_median[layer];
    dq_table_cell(t, "%s", e->model->path);
    dq_table_cell(t, "%s", dq_outlier_name[k]);
    if (layer < 0)
        dq_table_cell(t, "all");
    else
        dq_table_cell(t, "%d", layer);
    dq_table_cell(t, "%lld", (long long)y->n);
    for (int c = 0; c < CMD_STATS_TOPS; c++)
        cmd_stats_number(t, dq_outlier_top(y, cmd_stats_tops[c]), 9);
    cmd_stats_number(t, m.value, 9);
    cmd_stats_number(t, m.bound, 9);
    cmd_stats_number(t, dq_outlier_rms(y), 9);
    cmd_stats_number(t, dq_outlier_kurtosis0(y), 9);
    cmd_stats_number(t, dq_tally_quantile(y, 0.999, NULL), 9);
    dq_table_cell(t, ordinary ? "ordinary" : "all");
}

dq_status cmd_stats_csv(const cmd_stats_entry *e, int n, const char *path, dq_err *err)
{
    static const char *const titles[] = {"model",        "values", "layer",     "n",      "top1",
                                         "top2",         "top3",   "top10",     "top100", "median",
                                         "median_bound", "rms",    "kurtosis0", "p99_9",  "tokens"};
    dq_table *t;
    if (dq_table_new(&t, titles, 15, err) == DQ_OK) {
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < e[i].out.n_kinds; k++) {
                for (int some = 0; some < (e[i].out.n_kinds > DQ_N_TABLE5 ? 2 : 1); some++) {
                    for (int l = -1; l < e[i].out.n_layers; l++) csv_row(t, &e[i], k, l, some);
                }
            }
        }
        dq_table_csv(t, path, err);
    }
    dq_table_free(t);
    return err->code;
}

/* ----- HDF5: tallies ----- */

/* What a block of n tallies becomes: arrays whose first dimension is n. */
typedef struct columns {
    int64_t *count, *bad, *hist; /* hist NULL: left out */
    double *median, *bound, *quantile, *sum, *rms, *kurtosis0;
    float *top;
    int32_t *place;
} columns;

static dq_status columns_init(columns *c, size_t n, bool hist, dq_arena *a, dq_err *err)
{
    *c = (columns){0};
    c->count = dq_alloc(a, n, sizeof *c->count, err);
    c->bad = dq_alloc(a, n, sizeof *c->bad, err);
    if (hist) c->hist = dq_alloc(a, n * DQ_HIST_BINS, sizeof *c->hist, err);
    c->quantile = dq_alloc(a, n * CMD_STATS_QUANTILES, sizeof *c->quantile, err);
    c->median = dq_alloc(a, n, sizeof *c->median, err);
    c->bound = dq_alloc(a, n, sizeof *c->bound, err);
    c->sum = dq_alloc(a, n, sizeof *c->sum, err);
    c->rms = dq_alloc(a, n, sizeof *c->rms, err);
    c->kurtosis0 = dq_alloc(a, n, sizeof *c->kurtosis0, err);
    c->top = dq_alloc(a, n * DQ_TOP, sizeof *c->top, err);
    c->place = dq_alloc(a, n * DQ_TOP * 5, sizeof *c->place, err);
    return err->code;
}

static void columns_fill(columns *c, int i, const dq_tally *t, dq_median m)
{
    c->count[i] = t->n;
    c->bad[i] = t->n_bad;
    c->median[i] = m.value;
    c->bound[i] = m.bound;
    c->sum[i] = dq_fixed_value(&t->sum);
    c->rms[i] = dq_outlier_rms(t);
    c->kurtosis0[i] = dq_outlier_kurtosis0(t);
    if (c->hist)
        memcpy(c->hist + (int64_t)i * DQ_HIST_BINS, t->hist, DQ_HIST_BINS * sizeof *t->hist);
    for (int k = 0; k < CMD_STATS_QUANTILES; k++)
        c->quantile[(int64_t)i * CMD_STATS_QUANTILES + k] =
            dq_tally_quantile(t, cmd_stats_quantile[k].p, NULL);
    for (int k = 0; k < DQ_TOP; k++) {
        int32_t *p = c->place + ((int64_t)i * DQ_TOP + k) * 5;
        const dq_place none = {-1, -1, -1, -1, -1}, *at = k < t->n_top ? &t->place[k] : &none;
        c->top[(int64_t)i * DQ_TOP + k] = k < t->n_top ? t->top[k] : (float)NAN;
        p[0] = at->seq;
        p[1] = at->layer;
        p[2] = at->head;
        p[3] = at->row;
        p[4] = at->col;
    }
}

static dq_status columns_write(dq_h5_result *h, const char *group, const columns *c, int64_t n,
                               dq_err *err)
{
    const int64_t one[1] = {n}, hist[2] = {n, DQ_HIST_BINS}, top[2] = {n, DQ_TOP},
                  place[3] = {n, DQ_TOP, 5}, quantile[2] = {n, CMD_STATS_QUANTILES};
    const struct {
        const char *name;
        dq_h5_result_type type;
        int n_dims;
        const int64_t *shape;
        const void *data;
    } all[] = {{"n", DQ_OUT_I64, 1, one, c->count},
               {"n_not_finite", DQ_OUT_I64, 1, one, c->bad},
               {"top", DQ_OUT_F32, 2, top, c->top},
               {"place", DQ_OUT_I32, 3, place, c->place},
               {"median", DQ_OUT_F64, 1, one, c->median},
               {"median_bound", DQ_OUT_F64, 1, one, c->bound},
               {"quantiles", DQ_OUT_F64, 2, quantile, c->quantile},
               {"sum", DQ_OUT_F64, 1, one, c->sum},
               {"rms", DQ_OUT_F64, 1, one, c->rms},
               {"kurtosis0", DQ_OUT_F64, 1, one, c->kurtosis0},
               {"histogram", DQ_OUT_I64, 2, hist, c->hist}};
    char name[128];
    DQ_TRY(dq_h5_result_group(h, group, err));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].data) continue;
        snprintf(name, sizeof name, "%s/%s", group, all[i].name);
        DQ_TRY(dq_h5_result_array(h, name, all[i].type, all[i].n_dims, all[i].shape, all[i].data,
                                  err));
    }
    snprintf(name, sizeof name, "%s/place", group);
    DQ_TRY(dq_h5_result_text(h, name, "columns", "sequence layer head row column", err));
    snprintf(name, sizeof name, "%s/quantiles", group);
    char p[16 * CMD_STATS_QUANTILES] = "";
    for (int i = 0; i < CMD_STATS_QUANTILES; i++)
        snprintf(p + strlen(p), sizeof p - strlen(p), "%s%g", i ? " " : "",
                 cmd_stats_quantile[i].p);
    DQ_TRY(dq_h5_result_text(h, name, "p", p, err));
    if (!c->hist) return DQ_OK;
    snprintf(name, sizeof name, "%s/histogram", group);
    return dq_h5_result_text(h, name, "bins", "upper 16 bits of |x| as f32", err);
}

/* median NULL: of ordinary tokens, which are not refined. */
static dq_status tallies_h5(dq_h5_result *h, const char *group, const dq_tally *layer,
                            const dq_median *median, int n, bool hist, dq_arena *a, dq_err *err)
{
    columns c;
    DQ_TRY(columns_init(&c, (size_t)n, hist, a, err));
    for (int i = 0; i < n; i++)
        columns_fill(&c, i, &layer[i], median ? median[i] : dq_outlier_median(&layer[i]));
    return columns_write(h, group, &c, n, err);
}

/* ----- HDF5: channels and heads ----- */

/* What a table of n entries becomes, by layer, class and channel or head. */
typedef struct arrays {
    float *max;
    double *rms;
    int32_t *place;
    int64_t *n;
} arrays;

static dq_status arrays_init(arrays *x, size_t n, dq_arena *a, dq_err *err)
{
    x->max = dq_alloc(a, n, sizeof *x->max, err);
    x->rms = dq_alloc(a, n, sizeof *x->rms, err);
    x->place = dq_alloc(a, 3 * n, sizeof *x->place, err);
    x->n = dq_alloc(a, n, sizeof *x->n, err);
    return err->code;
}

static dq_status put(dq_h5_result *h, const char *group, const char *name, dq_h5_result_type type,
                     int n_dims, const int64_t *shape, const void *data, dq_err *err)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", group, name);
    return dq_h5_result_array(h, path, type, n_dims, shape, data, err);
}

static dq_status channels_h5(dq_h5_result *h, const char *group, const dq_channels *layer,
                             int n_layers, dq_arena *a, dq_err *err)
{
    const int64_t cols = layer->cols;
    const int64_t shape[4] = {n_layers, DQ_TOKEN_CLASSES, cols, 2};
    arrays x;
    DQ_TRY(arrays_init(&x, (size_t)(n_layers * DQ_TOKEN_CLASSES * cols), a, err));
    for (int l = 0; l < n_layers; l++) {
        for (int c = 0; c < DQ_TOKEN_CLASSES; c++) {
            const int64_t first = (l * DQ_TOKEN_CLASSES + c) * cols;
            x.n[l * DQ_TOKEN_CLASSES + c] = layer[l].rows[c];
            for (int64_t i = 0; i < cols; i++) {
                const dq_channel *y = &layer[l].of[c * cols + i];
                x.max[first + i] = y->max;
                x.rms[first + i] = dq_channels_rms(&layer[l], c, i);
                x.place[2 * (first + i)] = y->max > 0 ? y->seq : -1;
                x.place[2 * (first + i) + 1] = y->max > 0 ? y->row : -1;
            }
        }
    }
    DQ_TRY(dq_h5_result_group(h, group, err));
    DQ_TRY(put(h, group, "n", DQ_OUT_I64, 2, shape, x.n, err));
    DQ_TRY(put(h, group, "max", DQ_OUT_F32, 3, shape, x.max, err));
    DQ_TRY(put(h, group, "rms", DQ_OUT_F64, 3, shape, x.rms, err));
    DQ_TRY(put(h, group, "place", DQ_OUT_I32, 4, shape, x.place, err));
    return dq_h5_result_text(h, group, "axes",
                             "layer; ordinary sink first; channel; sequence position", err);
}

static dq_status heads_h5(dq_h5_result *h, const char *group, const dq_outliers *o, dq_arena *a,
                          dq_err *err)
{
    const int64_t n = (int64_t)o->n_layers * o->n_q * DQ_TOKEN_CLASSES;
    const int64_t shape[4] = {o->n_layers, o->n_q, DQ_TOKEN_CLASSES, 3};
    double *kurtosis0 = dq_alloc(a, (size_t)n, sizeof *kurtosis0, err);
    arrays x;
    if (!kurtosis0) return err->code;
    DQ_TRY(arrays_init(&x, (size_t)n, a, err));
    for (int64_t i = 0; i < n; i++) {
        const dq_moments *m = &o->head[i];
        x.n[i] = m->n;
        x.max[i] = m->n ? m->max : (float)NAN;
        x.rms[i] = dq_moments_rms(m);
        kurtosis0[i] = dq_moments_kurtosis0(m);
        x.place[3 * i] = m->max > 0 ? m->at.seq : -1;
        x.place[3 * i + 1] = m->max > 0 ? m->at.row : -1;
        x.place[3 * i + 2] = m->max > 0 ? m->at.col : -1;
    }
    DQ_TRY(dq_h5_result_group(h, group, err));
    DQ_TRY(put(h, group, "n", DQ_OUT_I64, 3, shape, x.n, err));
    DQ_TRY(put(h, group, "max", DQ_OUT_F32, 3, shape, x.max, err));
    DQ_TRY(put(h, group, "rms", DQ_OUT_F64, 3, shape, x.rms, err));
    DQ_TRY(put(h, group, "kurtosis0", DQ_OUT_F64, 3, shape, kurtosis0, err));
    DQ_TRY(put(h, group, "place", DQ_OUT_I32, 4, shape, x.place, err));
    return dq_h5_result_text(h, group, "axes",
                             "layer; query head; key ordinary sink first; sequence query key", err);
}

/* ----- HDF5: all ----- */

static dq_status kind_h5(dq_h5_result *h, const char *group, const dq_outliers *o, int kind,
                         dq_arena *a, dq_err *err)
{
    const dq_outlier_kind *k = &o->kind[kind];
    const int n = o->n_layers;
    const bool hist = kind < DQ_N_TABLE5;
    char name[128];
    DQ_TRY(dq_h5_result_group(h, group, err));
    snprintf(name, sizeof name, "%s/layers", group);
    DQ_TRY(tallies_h5(h, name, k->layer, k->layer_median, n, hist, a, err));
    snprintf(name, sizeof name, "%s/pooled", group);
    DQ_TRY(tallies_h5(h, name, &k->pooled, &k->pooled_median, 1, hist, a, err));
    if (!k->ordinary) return DQ_OK;
    snprintf(name, sizeof name, "%s/layers_ordinary", group);
    DQ_TRY(tallies_h5(h, name, k->ordinary, NULL, n, false, a, err));
    snprintf(name, sizeof name, "%s/pooled_ordinary", group);
    DQ_TRY(tallies_h5(h, name, &k->pooled_ordinary, NULL, 1, false, a, err));
    if (!k->channels) return DQ_OK;
    snprintf(name, sizeof name, "%s/channels", group);
    return channels_h5(h, name, k->channels, n, a, err);
}

static dq_status profile_h5(dq_h5_result *h, const char *group, const cmd_stats_entry *e,
                            dq_arena *a, dq_err *err)
{
    const int64_t shape[2] = {e->out.n_layers, DQ_TOKEN_CLASSES};
    char name[128];
    DQ_TRY(put(h, group, "tokens", DQ_OUT_I64, 2, shape, e->out.tokens, err));
    snprintf(name, sizeof name, "%s/attention_logits/heads", group);
    return heads_h5(h, name, &e->out, a, err);
}

dq_status cmd_stats_h5(dq_h5_result *h, const cmd_stats_entry *e, int i, dq_err *err)
{
    char group[32], name[64];
    const int64_t cu[1] = {e->in.n_seq + 1}, ids[1] = {e->in.cu[e->in.n_seq]};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    snprintf(group, sizeof group, "/models/%d", i);
    if (dq_h5_result_group(h, group, err) == DQ_OK &&
        dq_h5_result_text(h, group, "name", e->model->name, err) == DQ_OK &&
        dq_h5_result_text(h, group, "architecture", e->model->architecture->name, err) == DQ_OK)
        dq_h5_result_text(h, group, "fingerprint", e->model->fingerprint, err);
    for (int k = 0; k < e->out.n_kinds && err->code == DQ_OK; k++) {
        snprintf(name, sizeof name, "%s/%s", group, dq_outlier_name[k]);
        kind_h5(h, name, &e->out, k, a, err);
    }
    if (err->code == DQ_OK && e->out.measure) cmd_stats_attention_h5(h, group, e, a, err);
    if (err->code == DQ_OK && e->out.head) profile_h5(h, group, e, a, err);
    if (err->code == DQ_OK) cmd_stats_forecast_h5(h, group, e, a, err);
    if (err->code == DQ_OK) cmd_stats_units_h5(h, group, e, a, err);
    snprintf(name, sizeof name, "%s/ids", group);
    if (err->code == DQ_OK) dq_h5_result_array(h, name, DQ_OUT_I32, 1, ids, e->in.ids, err);
    snprintf(name, sizeof name, "%s/cu_ids", group);
    if (err->code == DQ_OK) dq_h5_result_array(h, name, DQ_OUT_I64, 1, cu, e->in.cu, err);
    dq_arena_free(a);
    return err->code;
}
