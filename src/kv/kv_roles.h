/* kv_roles: which groups of KV heads need the whole context, as a text: all groups of a model in order of need, layer.group
 * with commas between, "1.0,1.1,0.0,0.1". Groups before a / share what may be kept, "1.0,1.1/0.0,0.1";
 * at the end it says that all do. Head roles are
 * DuoAttention's, arXiv 2410.10819.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_ROLES_H
#define DQ_KV_ROLES_H

#include "kv/kv_policy.h"

enum { DQ_KV_ROLES_TEXT = 8192 /* bytes of a text, with its 0 */, DQ_KV_ROLES_MAX = 1024 };

typedef struct dq_kv_role {
    int16_t layer, group;
} dq_kv_role;

typedef struct dq_kv_roles {
    dq_kv_role at[DQ_KV_ROLES_MAX]; /* the first needs most */
    int n;                          /* at least 1 */
    int sharing;                    /* groups before the /; 0: there is none */
} dq_kv_roles;

/* DQ_USAGE: no such text, or a group that stands twice. */
dq_status dq_kv_roles_parse(dq_kv_roles *out, const char *text, dq_err *err);
/* DQ_MISMATCH: not the groups of a model with n_layers of n_groups each. */
dq_status dq_kv_roles_fit(const dq_kv_roles *r, int n_layers, int n_groups, dq_err *err);

/* share[layer * n_groups + group] = tokens that each group of `pool`, all of a model that dq_kv_roles_fit has seen, keeps, its
 * protected ones among them. What the budget leaves beside protected tokens is given in order of need: tokens are
 * dealt out one by one to those before the /, as long as they lack some; what is left then goes to the first that
 * lack tokens, as many as they lack. */
void dq_kv_budget_of_roles(int64_t *share, const dq_pool *pool, const dq_kv_roles *r, int n_groups);

#endif
