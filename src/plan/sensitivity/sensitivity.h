/* sensitivity: how far a model goes from itself when one thing alone is rounded: the attention logits of a layer, head or map, the keys
 * or values that a layer caches, one matrix of weights. What that costs is measured by the parts of a plan (plan_part.h); beside it
 * stand forecasts that run no more than the layer.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SENSITIVITY_H
#define DQ_SENSITIVITY_H

#include "plan/plan_journal.h"
#include "plan/sensitivity/forecast.h"
#include "plan/weights/plan_part.h"
#include "plan/weights/plan_probe.h"

/* What is rounded, one thing at a time. */
typedef enum dq_sensitivity_kind {
    DQ_SENSITIVITY_LAYERS, /* logits of a layer */
    DQ_SENSITIVITY_HEADS,  /* of an output head, both maps */
    DQ_SENSITIVITY_MAPS,   /* of one map of an output head, of models with two */
    DQ_SENSITIVITY_KEYS,   /* that a layer caches */
    DQ_SENSITIVITY_VALUES,
    DQ_SENSITIVITY_WEIGHTS, /* a matrix */
    DQ_SENSITIVITY_KINDS
} dq_sensitivity_kind;
extern const char *const dq_sensitivity_name[DQ_SENSITIVITY_KINDS]; /* "layers", "heads", ... */

typedef struct dq_sensitivity_unit {
    dq_sensitivity_kind kind;
    int layer;         /* -1: of none */
    int head, map;     /* output head; 0, 1: of its maps; -1: all */
    dq_plan_slot slot; /* of weights */
    const char *name;  /* of a matrix; NULL: none */
    double *sums;      /* [n_clusters] KLD, over the scored tokens of a cluster */
    dq_mean kld;       /* nats per token */
    dq_interval interval;
    /* Forecasts; NaN: there is none. What the change does to the residual stream within its layer (dq_plan_part_local); the
     * predicted error of a logit (dq_forecast_predicted). */
    double local, logit_error;
    bool known;
} dq_sensitivity_unit;

typedef struct dq_sensitivity_settings {
    unsigned kinds; /* bits of dq_sensitivity_kind; 0: the forecast of logits alone */
    int bits;       /* of all that is rounded: 8, 6, 5, 4, 3 or 2 */
    dq_granularity granularity;
    int64_t group;   /* of weights: columns per scale; the codes nearest, with searched scales */
    dq_kv_config kv; /* of keys and values but for their widths */
    dq_backend *backend;      /* one that computes in host memory */
    const char *beside;       /* where scratch files are */
    dq_plan_journal *journal; /* takes what is found; NULL: none */
    int number;               /* of the model, in its lines */
} dq_sensitivity_settings;

typedef struct dq_sensitivity {
    dq_sensitivity_settings set;
    const dq_model *m;
    const dq_calib_text *text;
    dq_sensitivity_unit *unit; /* [n] in the order in which they are measured, by layer */
    int64_t n, n_known;        /* n_known: found by an earlier run */
    dq_forecast forecast;
    int64_t scored;           /* tokens */
    const int64_t *scored_of; /* [n_clusters] of them */
    dq_arena *arena;
    dq_plan_work work; /* step and arg are the caller's */
} dq_sensitivity;

/* Units of the kinds that the model has. Memory in the arena. DQ_RESOURCE; DQ_MISMATCH for keys and values of widths that a cache
 * does not have. */
dq_status dq_sensitivity_new(dq_sensitivity *s, const dq_model *m, const dq_calib_text *text,
                             const dq_sensitivity_settings *set, dq_arena *a, dq_err *err);
/* A line of the journal: results of a unit. A dq_plan_journal_take; arg: the dq_sensitivity. */
dq_plan_journal_take dq_sensitivity_take;
/* Multiplications and additions that lack; expected by work. */
double dq_sensitivity_flop(const dq_sensitivity *s);
/* By all ranks (base/ranks.h). DQ_STOPPED; DQ_DAMAGED for what is not finite. */
dq_status dq_sensitivity_run(dq_sensitivity *s, dq_err *err);

/* What forecasts are worth: of units of a kind. */
typedef struct dq_sensitivity_rank {
    int64_t n;
    double local, logit_error; /* Spearman's correlation with the KLD; NaN: none */
    dq_interval local_interval, logit_interval;
    double repeat; /* of the KLD on one half of the clusters with that on the other; NaN: none */
} dq_sensitivity_rank;
dq_status dq_sensitivity_rank_of(dq_sensitivity_rank *out, const dq_sensitivity *s,
                                 dq_sensitivity_kind kind, dq_err *err);

/* Which unit of a kind breaks first: the one of most KLD on half of the clusters, judged on the other half. more: what it loses more
 * there than whichever other unit loses most in each cluster, which is at most what it loses more than any of them; so one interval
 * speaks for all. first -1: fewer than two units, or than DQ_SENSITIVITY_WINDOWS clusters. */
enum { DQ_SENSITIVITY_WINDOWS = 4 };
typedef struct dq_sensitivity_first {
    int64_t first,
        next; /* of s->unit; next: of most KLD but for the first on the half that judges; -1: none */
    dq_mean more;
    dq_interval interval;
} dq_sensitivity_first;
dq_status dq_sensitivity_first_of(dq_sensitivity_first *out, const dq_sensitivity *s,
                                  dq_sensitivity_kind kind, dq_err *err);

#endif
