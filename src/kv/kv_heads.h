/* kv_heads: which groups of KV heads need the whole context, as a text: all groups of a model in order of need, layer.group
 * with commas between, "1.0,1.1,0.0,0.1". Groups before a / share what may be kept, "1.0,1.1/0.0,0.1";
 * at the end it says that all do. Retrieval and streaming heads are
 * DuoAttention's, arXiv 2410.10819.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_HEADS_H
#define DQ_KV_HEADS_H

#include "kv/kv_policy.h"

enum { DQ_KV_HEADS_TEXT = 8192 /* bytes of a text, with its 0 */, DQ_KV_HEADS_MAX = 1024 };

typedef struct dq_kv_heads_group {
    int16_t layer, group;
} dq_kv_heads_group;

typedef struct dq_kv_heads {
    dq_kv_heads_group at[DQ_KV_HEADS_MAX]; /* the first needs most */
    int n;                                 /* at least 1 */
    int sharing;                           /* groups before the /; 0: there is none */
} dq_kv_heads;

/* DQ_USAGE: no such text, or a group that stands twice. */
dq_status dq_kv_heads_parse(dq_kv_heads *out, const char *text, dq_err *err);
/* DQ_MISMATCH: not the groups of a model with n_layers of n_groups each. */
dq_status dq_kv_heads_fit(const dq_kv_heads *r, int n_layers, int n_groups, dq_err *err);

/* share[layer * n_groups + group] = tokens that each group of `pool`, all of a model that dq_kv_heads_fit has seen, keeps, its
 * protected ones among them. What the budget leaves beside protected tokens is given in order of need: tokens are
 * dealt out one by one to those before the /, as long as they lack some; what is left then goes to the first that
 * lack tokens, as many as they lack. */
void dq_kv_budget_of_heads(int64_t *share, const dq_pool *pool, const dq_kv_heads *r, int n_groups);

#endif
