/* kv_gates: how much a second pass would look at a token, foretold from what the cache holds of it. For each layer and group of KV
 * heads a linear model of ln(peak + DQ_KV_GATES_FLOOR), where peak is what second_pass.h notes: one pass then ranks tokens as two do.
 * KVzap (arXiv 2601.07891) foretells the same from hidden states, which are gone once the cache is there; keys and values are
 * linear in them.
 *
 * Features of a token, of each KV head of its group: the key before RoPE (head_dim), the value (head_dim), |key|, ln |value|;
 * then ln(1 + position) and 1.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_GATES_H
#define DQ_KV_GATES_H

#include "base/json.h"

#define DQ_KV_GATES_FLOOR 1e-6

/* List i = layer * n_groups + group has the weights weight[at[i]] .. weight[at[i + 1]] - 1, one for each feature. */
typedef struct dq_kv_gates {
    int n_layers, n_groups, head_dim;
    const int *heads;  /* [n_groups] KV heads of each group */
    const int64_t *at; /* [n_layers * n_groups + 1] */
    double *weight;
    /* of a file: its text, the caller's, the SHA-256 of that, and the fingerprint of the model that it is for; else NULL and "" */
    const char *text;
    size_t len;
    char sha256[65], model[65];
} dq_kv_gates;

int64_t dq_kv_gates_features(int heads, int head_dim);
/* f[features] of one token. row[2 * heads * head_dim]: keys of the heads, then their values. */
void dq_kv_gates_describe(double *f, const float *row, int heads, int head_dim, int32_t pos);

/* Weights of zero for a model's groups, heads[n_groups] of which the list is copied. DQ_RESOURCE. */
dq_status dq_kv_gates_new(dq_kv_gates **out, int n_layers, int n_groups, int head_dim,
                          const int *heads, dq_arena *a, dq_err *err);
/* score[n] of a list's tokens; row[n][2 * heads * head_dim]. DQ_RESOURCE. */
dq_status dq_kv_gates_score(double *score, const dq_kv_gates *g, int list, const float *row,
                            const int32_t *pos, int64_t n, dq_err *err);

/* What a file holds (dq-gates/1, FORMAT.md): members of `o`, which has others too, and back; `text` outlives it. DQ_DAMAGED by name for what is
 * missing, has another form or is not finite. */
void dq_kv_gates_put(json_t *o, const dq_kv_gates *g);
dq_status dq_kv_gates_parse(dq_kv_gates **out, const char *text, size_t len, const char *where,
                            dq_arena *a, dq_err *err);
/* DQ_MISMATCH where a model has other layers, groups or heads. */
dq_status dq_kv_gates_fit(const dq_kv_gates *g, const dq_kv_gates *model, dq_err *err);

#endif
