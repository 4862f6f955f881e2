/* oracle: attention with KV lists in the simplest loops there are, in f64. What the backends are
 * tested against; never part of the program.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ORACLE_H
#define DQ_ORACLE_H

#include "engine/backend.h"

enum { DQ_ORACLE_SEQ = 8, DQ_ORACLE_GROUPS = 8, DQ_ORACLE_TOKENS = 1024 };

/* Tokens of one (sequence, group): rows of all KV heads, of which the group's own are read. */
typedef struct dq_oracle_list {
    int64_t n;
    int32_t pos[DQ_ORACLE_TOKENS];
    float *k, *v;                /* [DQ_ORACLE_TOKENS][n_kv * head_dim] */
    float *k_coded, *v_coded;    /* the same, codes read back */
    bool made[DQ_ORACLE_TOKENS]; /* per-channel codes: they are there */
} dq_oracle_list;

/* One layer. */
typedef struct dq_oracle {
    const dq_head_order *map;
    dq_kv_spec spec; /* dq_kv_plain, until a test says otherwise */
    dq_oracle_list list[DQ_ORACLE_SEQ][DQ_ORACLE_GROUPS];
} dq_oracle;

dq_oracle *dq_oracle_new(const dq_head_order *map);
void dq_oracle_free(dq_oracle *o);
void dq_oracle_append(dq_oracle *o, const dq_batch *batch, const float *k, const float *v);
void dq_oracle_fork(dq_oracle *o, int to, int from);
void dq_oracle_rewind(dq_oracle *o, int seq, int32_t length);
void dq_oracle_keep(dq_oracle *o, int seq, int group, const int32_t *kept, int64_t n);

/* What the operation `attend` takes, as host arrays. absmax is found here. */
typedef struct dq_oracle_args {
    const dq_attn *attn;
    const dq_batch *batch;
    const float *q, *lambda;
    dq_logit_spec logit;
    const dq_columns *columns;
} dq_oracle_args;

/* out[n_rows][n_out * n_slabs * head_dim] */
void dq_oracle_attend(double *out, const dq_oracle *o, const dq_oracle_args *args);
/* Adds to spans->sums. */
void dq_oracle_spans(const dq_oracle *o, const dq_oracle_args *args,
                     const dq_attention_spans *spans);
/* S of one query head and row against the i-th token of its list: f64, or rounded to f32 before and
 * after the scale where logits are rounded (bits < 16). */
double dq_oracle_logit(const dq_oracle *o, const dq_oracle_args *args, int64_t row, int head,
                       int64_t i);
/* Keys or values x[n] of one head as codes read back, by the rule of tensor.h and kv.h. */
void dq_oracle_codes(float *out, const float *x, int n, int bits, int group);
/* Key or value [head_dim] of the i-th token of a list as a query at position t reads it. */
const float *dq_oracle_key(const dq_oracle *o, const dq_oracle_list *l, int64_t i, int head,
                           int32_t t);
const float *dq_oracle_value(const dq_oracle *o, const dq_oracle_list *l, int64_t i, int head,
                             int32_t t);
int dq_oracle_seq_of(const dq_batch *batch, int64_t row);

#endif
