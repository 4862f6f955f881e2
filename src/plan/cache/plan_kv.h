/* plan_kv: which widths the codes of a KV cache get by layer and map for a mean of bits, measured on a text.
 *
 * Windows of the text, one after the other, of which the second half is scored: the second and third fifth of them search, the
 * others decide. Every unit (plan_kv_space.h) is coded alone at each width, all others at 8 bits; widths go where they save most
 * for their bits (plan_alloc.h); that mix and uniform widths of as many bits are measured whole; from the best of them, mixes a
 * step away are measured, those first whose units lose least, and the best one is taken as long as that helps. The windows
 * that no choice has seen tell what the plan loses, beside uniform widths. A cache is compared with the same weights and an
 * unquantized cache, as dq_eval does it.
 *
 * Where units alone would take more than DQ_PLAN_KV_ALONE tokens the plan is coarse: of more than three widths every other one is
 * measured alone, what lies between is on a line of ln KLD over bits, and as many windows search as keep within these tokens.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_KV_H
#define DQ_PLAN_KV_H

#include "plan/cache/plan_caches.h"
#include "plan/cache/plan_kv_space.h"

enum {
    DQ_PLAN_KV_WINDOWS = 60, /* without other words */
    /* tokens of all caches of units alone, above which fewer are measured */
    DQ_PLAN_KV_ALONE = 1600000,
    DQ_PLAN_KV_TRIALS = 200,
    DQ_PLAN_KV_LEAST_WINDOWS = 5,
    DQ_PLAN_KV_ROUND = 32 /* mixes that are measured before one is taken */
};
enum { DQ_PLAN_KV_OTHERS = 8 }; /* width of the others where a unit is coded alone */

typedef struct dq_plan_kv_settings {
    dq_plan_caches_input in;
    double mean; /* bits of keys and values together */
    int bits[DQ_PLAN_WIDTHS], n_bits, together;
    dq_kv_config kv; /* per-channel codes and their windows; widths are not looked at */
    int64_t trials;  /* mixes measured whole in the search, at most */
} dq_plan_kv_settings;

/* A mix measured whole on the search windows. */
typedef struct dq_plan_kv_trial {
    int mix; /* of dq_plan_kv.caches */
    int width[DQ_PLAN_KV_UNITS];
    double bits, kld;
    double added;     /* what its units lose alone, together: the estimate of kld */
    const char *from; /* "units", "uniform", "trade" */
    bool taken;       /* the plan at that time */
} dq_plan_kv_trial;

typedef struct dq_plan_kv_baseline {
    int mix;
    double bits;
    dq_plan_caches_numbers its, difference; /* on the unseen windows; of the plan less its own */
    dq_interval kld, loss;                  /* of the difference */
} dq_plan_kv_baseline;

typedef struct dq_plan_kv {
    dq_plan_kv_settings set;
    dq_plan_kv_space space;
    dq_plan_caches caches;        /* mixes, by their text */
    int *alone;                   /* [units][bits] mixes; -1: not measured */
    dq_plan_caches_numbers *unit; /* [units][bits] on the search windows, of those */
    dq_plan_item *item;
    dq_plan_kv_trial *trial; /* the last one taken is the plan */
    int n_trials, chosen;
    dq_plan_kv_baseline baseline[2];
    int n_baselines;
    double outside;               /* of each interval of a difference: 5 % for all together */
    dq_plan_caches_numbers found; /* of the plan on the unseen windows */
    /* private */
    bool coarse; /* units alone are measured at every other width */
    size_t cap_trials;
    dq_arena *arena;
} dq_plan_kv;

/* Cuts the text and lists units. DQ_USAGE for a mean that the widths cannot have, a window that the model has no positions for,
 * per-token codes, whose widths are the same everywhere; DQ_MISMATCH for too little text. */
dq_status dq_plan_kv_open(dq_plan_kv **out, const dq_plan_kv_settings *s, dq_err *err);
void dq_plan_kv_close(dq_plan_kv *p); /* NULL allowed */
/* Whether the k-th width is measured of units alone. */
bool dq_plan_kv_measures(const dq_plan_kv *p, int k);
/* Caches of units alone. */
int64_t dq_plan_kv_caches(const dq_plan_kv *p);
/* Caches in the search beside these, at most. */
int64_t dq_plan_kv_max_trials(const dq_plan_kv *p);
/* Seconds that a token takes, by a window that is run now. */
dq_status dq_plan_kv_pace(double *seconds, dq_plan_kv *p, dq_err *err);
/* All of it. After DQ_STOPPED and other failures that leave something, what was found is in out.journal, and a plan with
 * `resume` goes on from there to the same result, or to that of another mean. */
dq_status dq_plan_kv_run(dq_plan_kv *p, dq_err *err);
/* After a failure of what is made of a plan, too: says what is kept. Returns err->code. */
dq_status dq_plan_kv_failed(dq_plan_kv *p, dq_err *err);
/* Drops the journal: what it holds is written elsewhere. */
void dq_plan_kv_done(dq_plan_kv *p);
/* What the plan is, as --kv-bits takes it. */
const char *dq_plan_kv_widths(const dq_plan_kv *p);
/* The cache with such widths. */
dq_status dq_plan_kv_config(dq_kv_config *out, const dq_plan_kv *p, const char *widths,
                            dq_err *err);

#endif
