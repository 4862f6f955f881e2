/* policy: which tokens of a KV cache are worth keeping, from numbers about each of them. A policy is one
 * function over columns of numbers and never sees a tensor; a new one is one row of the table.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_POLICY_H
#define DQ_POLICY_H

#include "base.h"

/* What is known about the n tokens that one (sequence, layer, KV head group) holds, positions ascending.
 * Columns that the policy does not need are NULL. */
typedef struct dq_token_columns {
    int64_t n;
    const int32_t *pos;
    /* sums over query rows and output heads of the group, see dq_columns in backend.h */
    const double *mass[2], *lambda_mass, *diff, *loo;
    const double *key_norm; /* sum of |k|^2 over the group's key heads */
    uint64_t seed;          /* of this sequence, layer and group */
} dq_token_columns;

enum { /* columns, as bits of dq_policy.needs */
       DQ_NEEDS_MASS1 = 1,
       DQ_NEEDS_MASS2 = 2,
       DQ_NEEDS_LAMBDA_MASS = 4,
       DQ_NEEDS_DIFF = 8,
       DQ_NEEDS_LOO = 16,
       DQ_NEEDS_KEY_NORM = 32
};

typedef struct dq_policy {
    const char *name;  /* "h2o" */
    const char *about; /* one line, with its source */
    unsigned needs;
    int64_t window; /* last rows of the prefix whose attention counts; 0: all */
    int pool;       /* odd width of the maximum over neighbouring positions; 1: none */
    /* score[n]: larger is kept first. */
    void (*score)(double *score, const dq_token_columns *c);
} dq_policy;

/* streaming, h2o, snapkv, knorm, random, diff, loo, and for comparison a1, a2, sum. */
extern const dq_policy dq_policies[];
extern const int dq_n_policies;
/* DQ_USAGE with the names for an unknown one. */
const dq_policy *dq_policy_find(const char *name, dq_err *err);

/* How many tokens of a budget each layer and group gets. */
typedef enum dq_kv_budget {
    DQ_BUDGET_UNIFORM, /* the same everywhere */
    DQ_BUDGET_PYRAMID, /* falls linearly from the first layer to the last, same sum. arXiv 2406.02069 */
    DQ_BUDGET_ADAPTIVE /* groups of a layer share one pool by score, each at least a fifth of its
                          uniform share. arXiv 2407.11550 */
} dq_kv_budget;
extern const char *const dq_kv_budget_name[3]; /* "uniform", "pyramid", "adaptive" */

/* Tokens that layer `layer` keeps per group: `budget` redistributed; sums over layers to n_layers *
 * budget, none below `least` or above n (where that leaves room). */
int64_t dq_budget_of_layer(dq_kv_budget kind, int64_t budget, int layer, int n_layers,
                           int64_t least, int64_t n);

/* Chooses what is kept: every position below `sink`, the last `recent` positions before `end`, and the
 * best-scoring others up to `budget` tokens in all, ties to the lower position. A budget below sink +
 * recent keeps those all the same. Fills kept[] with ascending indices, returns how many. budget >= n
 * keeps everything. Scores may be -infinity, not NaN (counted as -infinity). */
int64_t dq_policy_keep(int32_t *kept, const double *score, const int32_t *pos, int64_t n,
                       int64_t budget, int sink, int recent, int32_t end, dq_err *err);

/* Gap between the last score kept and the first one dropped, relative to the larger magnitude: how sure
 * the choice is. INFINITY when nothing was chosen by score. */
double dq_policy_gap(const int32_t *kept, int64_t n_kept, const double *score, const int32_t *pos,
                     int64_t n, int sink, int recent, int32_t end);

#endif
