/* Sums are f64, in the order of features, so that a score is the same whoever read the rows.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LISTS = 1 << 20, MAX_DIM = 1 << 16, MAX_HEADS = 1 << 14 };

int64_t dq_kv_gates_features(int heads, int head_dim)
{
    return (int64_t)heads * (2 * head_dim + 2) + 2;
}

static double length_of(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

void dq_kv_gates_describe(double *f, const float *row, int heads, int head_dim, int32_t pos)
{
    const float *value = row + (int64_t)heads * head_dim;
    for (int h = 0; h < heads; h++) {
        const float *k = row + (int64_t)h * head_dim, *v = value + (int64_t)h * head_dim;
        for (int i = 0; i < head_dim; i++) *f++ = (double)k[i];
        for (int i = 0; i < head_dim; i++) *f++ = (double)v[i];
        *f++ = length_of(k, head_dim);
        *f++ = log(length_of(v, head_dim) + DQ_KV_GATES_FLOOR);
    }
    *f++ = log1p((double)pos);
    *f = 1;
}

dq_status dq_kv_gates_new(dq_kv_gates **out, int n_layers, int n_groups, int head_dim,
                          const int *heads, dq_arena *a, dq_err *err)
{
    dq_kv_gates *g = *out = dq_alloc(a, 1, sizeof *g, err);
    int *copy = dq_alloc(a, (size_t)n_groups, sizeof *copy, err);
    int64_t *at = dq_alloc(a, (size_t)n_layers * (size_t)n_groups + 1, sizeof *at, err);
    DQ_TRY(err->code);
    memcpy(copy, heads, (size_t)n_groups * sizeof *copy);
    for (int i = 0; i < n_layers * n_groups; i++)
        at[i + 1] = at[i] + dq_kv_gates_features(heads[i % n_groups], head_dim);
    *g = (dq_kv_gates){
        .n_layers = n_layers, .n_groups = n_groups, .head_dim = head_dim, .heads = copy, .at = at};
    g->weight = dq_alloc(a, (size_t)at[n_layers * n_groups], sizeof *g->weight, err);
    return err->code;
}

dq_status dq_kv_gates_score(double *score, const dq_kv_gates *g, int list, const float *row,
                            const int32_t *pos, int64_t n, dq_err *err)
{
    const int heads = g->heads[list % g->n_groups];
    const int64_t features = g->at[list + 1] - g->at[list];
    const double *weight = g->weight + g->at[list];
    double *f = dq_block_new((size_t)features, sizeof *f, err);
    for (int64_t i = 0; f && i < n; i++) {
        double sum = 0;
        dq_kv_gates_describe(f, row + i * 2 * heads * g->head_dim, heads, g->head_dim, pos[i]);
        for (int64_t k = 0; k < features; k++) sum += weight[k] * f[k];
        score[i] = sum;
    }
    dq_block_free(f);
    return err->code;
}

static const char schema[] = "dq-gates/1";

void dq_kv_gates_rows(dq_row_writer *w, const dq_kv_gates *g)
{
    DQ_PUT(w, "schema", schema, "Name and version of this document.", DQ_WORD(schema));
    DQ_PUT(w, "layers", g->n_layers, "Layers.", .min = 1);
    DQ_PUT(w, "groups", g->n_groups, "Groups of KV heads of a layer.", .min = 1);
    DQ_PUT(w, "head_dim", g->head_dim, "Elements of a head.", .min = 1);
    DQ_LIST(w, "heads", "KV heads of each group.");
    for (int i = 0; DQ_MORE(w, i, g->n_groups); i++)
        DQ_PUT(w, NULL, g->heads[i], "Heads.", .min = 1);
    dq_row_end(w);
    DQ_LIST(w, "weights", "Weights of the features, a list for each layer and group.");
    for (int i = 0; DQ_MORE(w, i, g->n_layers * g->n_groups); i++) {
        DQ_LIST(w, NULL, NULL);
        for (int64_t k = w->live ? g->at[i] : 0; DQ_MORE(w, k, g->at[i + 1]); k++)
            DQ_PUT(w, NULL, g->weight[k], NULL);
        dq_row_end(w);
    }
    dq_row_end(w);
}

static dq_status read_weights(dq_kv_gates *g, const json_t *o, dq_err *err)
{
    const json_t *lists = json_object_get(o, "weights");
    const int n = g->n_layers * g->n_groups;
    if (!json_is_array(lists) || json_array_size(lists) != (size_t)n)
        return dq_json_wrong("weights", "a list for each layer and group", lists, err);
    for (int i = 0; i < n; i++) {
        const json_t *list = json_array_get(lists, (size_t)i);
        const size_t want = (size_t)(g->at[i + 1] - g->at[i]);
        if (!json_is_array(list) || json_array_size(list) != want)
            return dq_fail(err, DQ_DAMAGED, "\"weights\": list %d has not %zu numbers", i, want);
        for (size_t k = 0; k < want; k++) {
            const json_t *v = json_array_get(list, k);
            const double x = json_number_value(v);
            if (!json_is_number(v) || !(fabs(x) < 1e300))
                return dq_fail(err, DQ_DAMAGED, "\"weights\": list %d: entry %zu is no number", i,
                               k);
            g->weight[g->at[i] + (int64_t)k] = x;
        }
    }
    return DQ_OK;
}

/* Each weight takes at least two bytes of a file. */
static dq_status check_size(const int *heads, int64_t layers, int64_t groups, int64_t dim,
                            size_t len, dq_err *err)
{
    double weights = 0;
    for (int64_t g = 0; g < groups; g++)
        weights += (double)(layers * dq_kv_gates_features(heads[g], (int)dim));
    if (2 * weights <= (double)len) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "\"weights\": %g of them are more than a file of %zu bytes has",
                   weights, len);
}

static dq_status read_document(dq_kv_gates **out, const json_t *o, size_t len, dq_arena *a,
                               dq_err *err)
{
    const char *is, *model, *none = "";
    int64_t layers, groups, dim;
    DQ_TRY(dq_json_text(&is, o, "schema", NULL, err));
    if (strcmp(is, schema) != 0)
        return dq_fail(err, DQ_DAMAGED, "schema \"%.40s\" (expected \"%s\")", is, schema);
    DQ_TRY(dq_json_int(&layers, o, "layers", 1, MAX_LISTS, NULL, err));
    DQ_TRY(dq_json_int(&groups, o, "groups", 1, MAX_LISTS / layers, NULL, err));
    DQ_TRY(dq_json_int(&dim, o, "head_dim", 1, MAX_DIM, NULL, err));
    int *heads = dq_alloc(a, (size_t)groups, sizeof *heads, err);
    if (!heads) return err->code;
    const int n = (int)groups;
    const json_t *list = json_object_get(o, "heads");
    if (!json_is_array(list) || json_array_size(list) != (size_t)n)
        return dq_json_wrong("heads", "a number of KV heads for each group", list, err);
    for (int i = 0; i < n; i++) {
        int64_t v;
        if (!dq_json_whole(&v, json_array_get(list, (size_t)i)) || v < 1 || v > MAX_HEADS)
            return dq_json_wrong("heads", "numbers from 1 to 16384",
                                 json_array_get(list, (size_t)i), err);
        heads[i] = (int)v;
    }
    DQ_TRY(check_size(heads, layers, groups, dim, len, err));
    DQ_TRY(dq_json_text(&model, o, "model_fingerprint", &none, err));
    DQ_TRY(dq_kv_gates_new(out, (int)layers, (int)groups, (int)dim, heads, a, err));
    snprintf((*out)->model, sizeof(*out)->model, "%s", model);
    return read_weights(*out, o, err);
}

dq_status dq_kv_gates_parse(dq_kv_gates **out, const char *text, size_t len, const char *where,
                            dq_arena *a, dq_err *err)
{
    json_t *o;
    *out = NULL;
    DQ_TRY(dq_json_parse(&o, text, len, where, err));
    if (!json_is_object(o))
        dq_fail(err, DQ_DAMAGED, "%s: not an object", where);
    else if (read_document(out, o, len, a, err) != DQ_OK)
        dq_in(err, "%s: ", where);
    json_decref(o);
    DQ_TRY(err->code);
    (*out)->text = text;
    (*out)->len = len;
    return dq_sha256_of((*out)->sha256, text, len, err);
}

dq_status dq_kv_gates_fit(const dq_kv_gates *g, const dq_kv_gates *model, dq_err *err)
{
    if (g->n_layers == model->n_layers && g->n_groups == model->n_groups &&
        g->head_dim == model->head_dim &&
        memcmp(g->heads, model->heads, (size_t)g->n_groups * sizeof *g->heads) == 0)
        return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "gates of another model: they have %d layers, %d groups of KV heads, of which "
                   "the first has %d, and head_dim %d; the model %d, %d, %d and %d",
                   g->n_layers, g->n_groups, g->heads[0], g->head_dim, model->n_layers,
                   model->n_groups, model->heads[0], model->head_dim);
}
