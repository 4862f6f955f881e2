/* outliers: see outliers.h. Layers are filled on their own; what covers all layers is merged from them at the end. A merge of
 * tallies that are refined adds the counts of their bins alone, so pooled numbers stay.
 * SPDX-License-Identifier: MIT */
#include "calib/outliers.h"

#include <math.h>
#include <string.h>

const char *const dq_outlier_name[DQ_N_KINDS] = {
    "attention_logits", "hidden_states", "queries",       "keys",      "values",
    "qkv_input",        "o_input",       "gate_up_input", "down_input"};

const char *const dq_outlier_detail_name[DQ_DETAILS] = {"table5", "maps", "all"};

/* Columns of a kind of activations. */
static int64_t cols_of(const dq_model *m, int kind)
{
    const dq_head_order *map = &m->map;
    const int64_t d = map->head_dim;
    const int64_t cols[DQ_N_KINDS] = {0,
                                      m->dim,
                                      map->n_q * d,
                                      map->n_kv * d,
                                      map->n_kv * d,
                                      m->dim,
                                      (int64_t)map->n_out * map->n_slabs * d,
                                      m->dim,
                                      m->ffn};
    return cols[kind];
}

static dq_status init_tallies(dq_tally *pooled, dq_tally **layer, int n, dq_err *err)
{
    *layer = dq_block_new((size_t)n, sizeof **layer, err);
    if (!*layer) return err->code;
    DQ_TRY(dq_tally_init(pooled, err));
    for (int i = 0; i < n; i++) DQ_TRY(dq_tally_init(&(*layer)[i], err));
    return DQ_OK;
}

static dq_status init_profile(dq_outlier_kind *x, const dq_model *m, int kind, dq_err *err)
{
    DQ_TRY(init_tallies(&x->pooled_ordinary, &x->ordinary, m->n_layers, err));
    if (kind == DQ_KIND_LOGITS) return DQ_OK;
    x->channels = dq_block_new((size_t)m->n_layers, sizeof *x->channels, err);
    if (!x->channels) return err->code;
    for (int i = 0; i < m->n_layers; i++)
        DQ_TRY(dq_channels_init(&x->channels[i], cols_of(m, kind), err));
    return DQ_OK;
}

dq_status dq_outliers_init(dq_outliers *o, const dq_model *m, dq_outlier_detail detail, dq_err *err)
{
    const bool profile = detail == DQ_DETAIL_ALL;
    const size_t layers = (size_t)m->n_layers, outs = layers * (size_t)m->map.n_out;
    *o = (dq_outliers){.n_layers = m->n_layers,
                       .n_out = m->map.n_out,
                       .n_q = m->map.n_q,
                       .n_kinds = profile ? DQ_N_KINDS : DQ_N_TABLE5};
    for (int k = 0; k < o->n_kinds; k++) {
        dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(init_tallies(&x->pooled, &x->layer, m->n_layers, err));
        x->layer_median = dq_block_new(layers, sizeof *x->layer_median, err);
        if (!x->layer_median) return err->code;
        if (profile) DQ_TRY(init_profile(x, m, k, err));
    }
    if (detail == DQ_DETAIL_TABLE5) return DQ_OK;
    o->measure_sum = dq_block_new(outs, sizeof *o->measure_sum, err);
    o->measure = dq_block_new(outs, sizeof *o->measure, err);
    if (!profile) return err->code;
    o->head = dq_block_new(layers * (size_t)o->n_q * DQ_TOKEN_CLASSES, sizeof *o->head, err);
    o->tokens = dq_block_new(layers * DQ_TOKEN_CLASSES, sizeof *o->tokens, err);
    o->look_sum = dq_block_new(outs, sizeof *o->look_sum, err);
    o->look = dq_block_new(outs, sizeof *o->look, err);
    return err->code;
}

static void free_kind(dq_outlier_kind *x, int n_layers)
{
    for (int i = 0; i < n_layers; i++) {
        if (x->layer) dq_tally_free(&x->layer[i]);
        if (x->ordinary) dq_tally_free(&x->ordinary[i]);
        if (x->channels) dq_channels_free(&x->channels[i]);
    }
    dq_tally_free(&x->pooled);
    dq_tally_free(&x->pooled_ordinary);
    dq_block_free(x->layer);
    dq_block_free(x->ordinary);
    dq_block_free(x->channels);
    dq_block_free(x->layer_median);
}

void dq_outliers_free(dq_outliers *o)
{
    for (int k = 0; k < DQ_N_KINDS; k++) free_kind(&o->kind[k], o->n_layers);
    dq_block_free(o->head);
    dq_block_free(o->tokens);
    dq_block_free(o->look_sum);
    dq_block_free(o->look);
    dq_block_free(o->measure_sum);
    dq_block_free(o->measure);
    memset(o, 0, sizeof *o);
}

/* ---- Bytes ---- */

static size_t moments_of(const dq_outliers *o)
{
    return (size_t)o->n_q * DQ_TOKEN_CLASSES;
}

dq_status dq_outliers_put(const dq_outliers *o, int layer, dq_strbuf *to, dq_err *err)
{
    const bool refines = o->kind[0].layer[layer].fine;
    const bool profile = o->n_kinds > DQ_N_TABLE5 && !refines;
    for (int k = 0; k < (profile ? o->n_kinds : DQ_N_TABLE5); k++) {
        const dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(dq_tally_put(&x->layer[layer], to, err));
        if (profile) DQ_TRY(dq_tally_put(&x->ordinary[layer], to, err));
        if (profile && x->channels) DQ_TRY(dq_channels_put(&x->channels[layer], to, err));
    }
    if (o->measure_sum && !refines)
        DQ_TRY(dq_strbuf_add(to, (const char *)(o->measure_sum + (size_t)layer * (size_t)o->n_out),
                             (size_t)o->n_out * sizeof *o->measure_sum, err));
    if (!profile) return DQ_OK;
    DQ_TRY(dq_strbuf_add(to, (const char *)(o->head + (size_t)layer * moments_of(o)),
                         moments_of(o) * sizeof *o->head, err));
    DQ_TRY(dq_strbuf_add(to, (const char *)(o->tokens + (size_t)layer * DQ_TOKEN_CLASSES),
                         DQ_TOKEN_CLASSES * sizeof *o->tokens, err));
    return dq_strbuf_add(to, (const char *)(o->look_sum + (size_t)layer * (size_t)o->n_out),
                         (size_t)o->n_out * sizeof *o->look_sum, err);
}

static bool merge_heads(dq_outliers *o, int layer, const char **at, const char *end)
{
    for (size_t i = 0; i < moments_of(o); i++) {
        dq_moments m;
        if (!dq_strbuf_take(&m, sizeof m, at, end) || !dq_fixed_is_count(m.n) || !isfinite(m.max))
            return false;
        dq_moments_merge(&o->head[(size_t)layer * moments_of(o) + i], &m);
    }
    for (int i = 0; i < DQ_TOKEN_CLASSES; i++) {
        int64_t n;
        if (!dq_strbuf_take(&n, sizeof n, at, end) || !dq_fixed_is_count(n)) return false;
        o->tokens[layer * DQ_TOKEN_CLASSES + i] += n;
    }
    for (int i = 0; i < o->n_out; i++) {
        dq_head_profile_sum s;
        if (!dq_strbuf_take(&s, sizeof s, at, end)) return false;
        if (!dq_head_profile_sum_merge(&o->look_sum[layer * o->n_out + i], &s)) return false;
    }
    return true;
}

static bool merge_measures(dq_outliers *o, int layer, const char **at, const char *end)
{
    for (int i = 0; i < o->n_out; i++) {
        dq_head_measure_sum s;
        if (!dq_strbuf_take(&s, sizeof s, at, end)) return false;
        if (!dq_head_measure_sum_merge(&o->measure_sum[layer * o->n_out + i], &s)) return false;
    }
    return true;
}

dq_status dq_outliers_merge(dq_outliers *o, int layer, const char **at, const char *end,
                            dq_err *err)
{
    const bool refines = o->kind[0].layer[layer].fine;
    const bool profile = o->n_kinds > DQ_N_TABLE5 && !refines;
    for (int k = 0; k < (profile ? o->n_kinds : DQ_N_TABLE5); k++) {
        const dq_outlier_kind *x = &o->kind[k];
        DQ_TRY(dq_tally_merge_bytes(&x->layer[layer], at, end, err));
        if (profile) DQ_TRY(dq_tally_merge_bytes(&x->ordinary[layer], at, end, err));
        if (profile && x->channels)
            DQ_TRY(dq_channels_merge_bytes(&x->channels[layer], at, end, err));
    }
    if (o->measure_sum && !refines && !merge_measures(o, layer, at, end))
        return dq_fail(err, DQ_DAMAGED, "measures of heads are cut off, or none");
    if (!profile || merge_heads(o, layer, at, end)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "moments of heads are cut off, or none");
}

/* ---- What follows ---- */

dq_median dq_outlier_median(const dq_tally *t)
{
    bool exact;
    dq_median m = {.value = dq_tally_quantile(t, 0.5, &exact)};
    if (exact || t->n == 0) return m;
    float at = (float)m.value, low, high;
    uint32_t bits;
    memcpy(&bits, &at, sizeof bits);
    uint32_t first = bits & 0xffff0000u, last = bits | 0xffffu;
    memcpy(&low, &first, sizeof low);
    memcpy(&high, &last, sizeof high);
    m.bound = fmax(m.value - (double)low, (double)high - m.value);
    return m;
}

static void pool_kind(dq_outlier_kind *x, int n_layers, bool refined)
{
    for (int i = 0; i < n_layers; i++) {
        dq_tally_merge(&x->pooled, &x->layer[i]);
        if (x->ordinary && !refined) dq_tally_merge(&x->pooled_ordinary, &x->ordinary[i]);
        x->layer_median[i] = dq_outlier_median(&x->layer[i]);
    }
    x->pooled_median = dq_outlier_median(&x->pooled);
}

void dq_outliers_pool(dq_outliers *o)
{
    const bool refined = o->kind[0].pooled.fine;
    for (int k = 0; k < (refined ? DQ_N_TABLE5 : o->n_kinds); k++)
        pool_kind(&o->kind[k], o->n_layers, refined);
    for (int i = 0; o->measure && i < o->n_layers * o->n_out; i++)
        o->measure[i] = dq_head_measure_sum_value(&o->measure_sum[i]);
    for (int i = 0; o->look && i < o->n_layers * o->n_out; i++)
        o->look[i] = dq_head_profile_sum_value(&o->look_sum[i]);
}

double dq_outlier_top(const dq_tally *t, int k)
{
    return k >= 1 && k <= t->n_top ? (double)t->top[k - 1] : (double)NAN;
}

double dq_outlier_rms(const dq_tally *t)
{
    return t->n ? sqrt(dq_fixed_value(&t->sum2) / (double)t->n) : (double)NAN;
}

double dq_outlier_kurtosis0(const dq_tally *t)
{
    const double sum2 = dq_fixed_value(&t->sum2);
    return sum2 > 0 ? (double)t->n * dq_fixed_value(&t->sum4) / (sum2 * sum2) : (double)NAN;
}

int dq_outlier_map(const dq_head_order *map, int head)
{
    if (map->n_maps < 2) return 0;
    for (int i = 0; i < map->n_out; i++) {
        if (map->head[i].q[0] == head) return 1;
        if (map->head[i].q[1] == head) return 2;
    }
    return 0;
}

dq_moments dq_outlier_head(const dq_outliers *o, int layer, int head, unsigned classes)
{
    dq_moments all = {0};
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++) {
        if (classes >> c & 1u)
            dq_moments_merge(&all,
                             &o->head[((int64_t)layer * o->n_q + head) * DQ_TOKEN_CLASSES + c]);
    }
    return all;
}
