/* kv_policy: which tokens of a KV cache are worth keeping, from numbers about each of them. A policy is one
 * function over columns of numbers and never sees a tensor; a new one is one row of the table.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_POLICY_H
#define DQ_KV_POLICY_H

#include "base/base.h"

/* What is known about the n tokens that one (sequence, layer, KV head group) holds, positions ascending.
 * Columns that the policy does not need are NULL. */
typedef struct dq_token_columns {
    int64_t n;
    const int32_t *pos;
    /* sums over query rows and output heads of the group, see dq_columns in backend.h */
    const double *mass[2], *lambda_mass, *diff; /* one map: the second's are zero or NULL */
    const double *key_norm;                     /* sum of |k|^2 over the group's key heads */
    const double *key_cosine;                   /* sum over the group's key heads, see backend.h */
    const double *key_leverage;                 /* see backend.h */
    const double *peak; /* of rows that read the prefix again, see dq_columns in backend.h */
    const double *gate; /* ln of that peak, foretold: see kv_gates.h */
    /* of this layer and group: dq_kv_policy_seed */
    uint64_t seed;
} dq_token_columns;

enum { /* columns, as bits of dq_kv_policy.needs */
       DQ_NEEDS_MASS1 = 1,
       DQ_NEEDS_MASS2 = 2,
       DQ_NEEDS_LAMBDA_MASS = 4,
       DQ_NEEDS_DIFF = 8,
       DQ_NEEDS_KEY_NORM = 16,
       DQ_NEEDS_PEAK = 32, /* the prefix is read again after itself, see second_pass.h */
       DQ_NEEDS_KEY_COSINE = 64,
       DQ_NEEDS_KEY_LEVERAGE = 128,
       DQ_NEEDS_GATES = 256, /* the model has gates, see kv_gates.h */
       /* sums over query rows: a window of rows says something, and a sequence must be watched */
       DQ_NEEDS_ATTENTION = DQ_NEEDS_MASS1 | DQ_NEEDS_MASS2 | DQ_NEEDS_LAMBDA_MASS | DQ_NEEDS_DIFF
};

/* How many tokens of a budget each layer and group gets. */
typedef enum dq_kv_budget {
    DQ_KV_BUDGET_UNIFORM,  /* the same everywhere */
    DQ_KV_BUDGET_ADAPTIVE, /* groups of a layer share one pool by score, each at least a fifth of its
                           uniform share. arXiv 2407.11550 */
    DQ_KV_BUDGET_GLOBAL,   /* groups of all layers share one pool by score. arXiv 2505.23416 */
    DQ_KV_BUDGET_HEADS, /* groups that need the whole context first, see kv_heads.h. arXiv 2410.10819 */
    DQ_KV_BUDGET_USUAL /* in what is asked, before a model is known: the policy's own, dq_kv_budget_for */
} dq_kv_budget;
typedef struct dq_kv_policy {
    const char *name;  /* "h2o" */
    const char *about; /* one line, with its source */
    unsigned needs;
    int64_t window; /* last rows of the prefix whose attention counts; 0: all */
    int pool;       /* odd width of the maximum over neighbouring positions; 1: none */
    bool draws;     /* at random: a seed says something */
    /* scores of different layers and groups are in one unit: a shared budget compares them as they are */
    bool common;
    dq_kv_budget budget[2]; /* where nobody names one: on one map, on two */
    bool baseline;          /* there to compare the others with; these stand last */
    /* score[n]: larger is kept first. Before pooling: callers want dq_kv_policy_score. NULL: a policy that
     * some container names and this program does not have. */
    void (*score)(double *score, const dq_token_columns *c);
} dq_kv_policy;

/* streaming, h2o, snapkv, knorm, random, diff, kvzip, kvzap, keydiff, leverage, and for comparison a1, a2, sum. */
extern const dq_kv_policy dq_kv_policies[];
extern const int dq_kv_n_policies;
/* Where nobody names one; every device has it. results/real and results/kv. */
#define DQ_POLICY_USUAL "keydiff"
/* That one, or where there are gates the one that they are for. */
const dq_kv_policy *dq_kv_policy_usual(bool gates);
/* b, or where that is DQ_KV_BUDGET_USUAL the one that the policy has on n_maps. */
dq_kv_budget dq_kv_budget_for(dq_kv_budget b, const dq_kv_policy *p, int n_maps);
/* DQ_USAGE with the names for an unknown one. */
const dq_kv_policy *dq_kv_policy_find(const char *name, dq_err *err);
/* For an unknown one a row with nothing but its name, in the arena: it can be shown, but not used. NULL
 * where memory is short. */
const dq_kv_policy *dq_kv_policy_stored(const char *name, dq_arena *a, dq_err *err);
/* By name; two NULLs, which are no policy, are the same. */
bool dq_kv_policy_same(const dq_kv_policy *a, const dq_kv_policy *b);

/* A layer's and group's share of `seed`. Sequences are left out: their handles depend on how a run was
 * batched. */
uint64_t dq_kv_policy_seed(uint64_t seed, int layer, int group);

/* Tokens that are kept whatever they score: positions below `sink`, and the last `recent` before `end`. */
typedef struct dq_kv_protected {
    int sink, recent;
    int32_t end; /* position of the next row */
} dq_kv_protected;
int64_t dq_kv_policy_protected(const int32_t *pos, int64_t n, dq_kv_protected safe);

/* score[c->n]: the policy's numbers, NaN made -infinity, then its pooling: the largest number among
 * the unprotected tokens at most pool / 2 positions away (a sink's large mass says nothing about its
 * neighbours). */
void dq_kv_policy_score(double *score, const dq_kv_policy *p, const dq_token_columns *c,
                        dq_kv_protected safe);

enum { DQ_KV_BUDGETS = 4 };
/* "uniform", "adaptive", "global", "heads"; then "usual", which nobody can ask for */
extern const char *const dq_kv_budget_name[DQ_KV_BUDGETS + 1];

/* Scores of one group on its way into a pool. */
typedef struct dq_pool_group {
    const double *score;
    const int32_t *pos;
    int64_t n;
} dq_pool_group;

/* Groups that share a budget. */
typedef struct dq_pool {
    const dq_pool_group *group; /* [n_groups] */
    int n_groups;
    int64_t budget; /* tokens of a group on average */
    dq_kv_protected safe;
    /* Scores are compared as they are; else as parts of the sum of their magnitudes over the group's unprotected
     * tokens. */
    bool common;
    /* Of the unprotected tokens that `budget` would have left it, a group keeps at least one part in so many
     * (rounded up); 0: none. */
    int floor;
    /* Tokens of a page. Groups compete for pages by the best token that each would hold, until these hold the budget, then
     * their tokens for the places on them: less than a page of room stays empty, but on pages that protected tokens begin. The
     * floor begins no page for a part of it. 0: for tokens alone. */
    int page;
} dq_pool;
enum { DQ_KV_ADAPTIVE_FLOOR = 5 };

/* share[g] = tokens that each group keeps, its protected ones among them. *gap: as dq_kv_policy_gap, of the pool's
 * cut. */
dq_status dq_kv_budget_of_groups(int64_t *share, double *gap, const dq_pool *pool, dq_err *err);

/* Chooses what is kept: protected tokens and the best-scoring others up to `budget` tokens in all, ties
 * to the lower position. A budget below the protected keeps those all the same. Fills kept[] with
 * ascending indices, *n_kept with how many. budget >= n keeps everything. Scores may be infinite; NaN
 * counts as -infinity. */
dq_status dq_kv_policy_keep(int32_t *kept, int64_t *n_kept, const double *score, const int32_t *pos,
                            int64_t n, int64_t budget, dq_kv_protected safe, dq_err *err);

/* Gap between the last score kept and the first one dropped, relative to the larger magnitude: how sure
 * the choice is. INFINITY when nothing was chosen by score. Pooling makes neighbours tie, with gap 0. */
double dq_kv_policy_gap(const int32_t *kept, int64_t n_kept, const double *score,
                        const int32_t *pos, int64_t n, dq_kv_protected safe);

#endif
