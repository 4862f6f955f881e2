/* What rounding one thing does: foretold, and measured.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SENSITIVITY_H
#define DQ_SENSITIVITY_H

#include "engine/runner.h"
#include "plan/plan_weights.h"
#include "stat/stat.h"

/* ---- Forecast ----
 * What rounding attention logits will do to them and to the maps, for every width and granularity,
 * from q and k of one pass: nothing after the maps is run.
 *
 * Predicted, from absolute maxima alone: logits spread evenly over a step A / Qmax are off by A /
 * (Qmax sqrt 12), root mean square, with A of their group (kv/kv.h); and by no more than what they
 * are. Measured, beside it: every logit is rounded. */

enum { DQ_FORECAST_WIDTHS = 4 };
extern const int dq_forecast_bits[DQ_FORECAST_WIDTHS]; /* 8, 6, 4, 3 */

/* Sums over the visible logits of a query head. */
typedef struct dq_forecast_logits {
    int64_t n;
    double sum2;                                         /* S^2 */
    double absmax2[DQ_GRANULARITIES];                    /* A^2 of the group that a logit is in */
    double error2[DQ_FORECAST_WIDTHS][DQ_GRANULARITIES]; /* (S' - S)^2 */
} dq_forecast_logits;

/* Sums over the same entries of an output head's maps, D = A1 - lambda A2. */
typedef struct dq_forecast_maps {
    double d2;                                            /* D^2 */
    double first2[DQ_FORECAST_WIDTHS][DQ_GRANULARITIES];  /* (A1' - A1)^2 */
    double second2[DQ_FORECAST_WIDTHS][DQ_GRANULARITIES]; /* lambda^2 (A2' - A2)^2; 0: one map */
    double both2[DQ_FORECAST_WIDTHS][DQ_GRANULARITIES];   /* (D' - D)^2 */
} dq_forecast_maps;

typedef struct dq_forecast {
    int n_layers, n_q, n_out;
    int64_t n_clusters;
    dq_forecast_logits *logits; /* [n_layers][n_q] */
    dq_forecast_maps *maps;     /* [n_layers][n_out] */
    /* sums over all layers and heads, by cluster of the text */
    dq_forecast_logits *logits_of; /* [n_clusters] */
    dq_forecast_maps *maps_of;
} dq_forecast;

void dq_forecast_logits_merge(dq_forecast_logits *into, const dq_forecast_logits *from);
void dq_forecast_maps_merge(dq_forecast_maps *into, const dq_forecast_maps *from);
/* Root mean square error of a head's logit, predicted and measured; NaN without logits. */
double dq_forecast_predicted(const dq_forecast_logits *x, int bits, dq_granularity g);
/* The prediction for several heads together, each bounded by its own logits. */
double dq_forecast_predicted_all(const dq_forecast_logits *x, int64_t n, int bits,
                                 dq_granularity g);
double dq_forecast_measured(const dq_forecast_logits *x, int width, dq_granularity g);
/* |D' - D| / |D|; NaN where D is 0. */
double dq_forecast_map_error(const dq_forecast_maps *x, int width, dq_granularity g);
/* |A1' - A1 - lambda (A2' - A2)| / (|A1' - A1| + lambda |A2' - A2|): 1 where the errors of both
 * maps add up, 0 where they cancel, 0.71 where they are independent and of one size. NaN without
 * error. */
double dq_forecast_cancellation(const dq_forecast_maps *x, int width, dq_granularity g);

/* How many bits fewer than 4 a model needs for errors as large as another's at 4 bits, its mean
 * over clusters. Of logits as predicted, where 2^(b - 1) - 1 steps make up for larger maxima; of
 * maps between the widths that are measured, along straight lines of log2. Both models have read
 * the same tokens, so that clusters are pairs. A cluster without an error, as of a single token, or
 * with one beyond the widths does not count. None for fewer than two that count, or another number
 * of clusters. */
typedef struct dq_forecast_advantage {
    dq_mean bits; /* clusters: that count */
    dq_interval interval;
} dq_forecast_advantage;
enum { DQ_FORECAST_ADVANTAGE_BITS = 4 };
typedef enum dq_forecast_error { DQ_FORECAST_OF_LOGITS, DQ_FORECAST_OF_MAPS } dq_forecast_error;
dq_status dq_forecast_advantage_of(dq_forecast_advantage *out, const dq_forecast *model,
                                   const dq_forecast *other, dq_forecast_error of, dq_granularity g,
                                   dq_err *err);

/* How far a model's output moves when one thing alone is rounded: the attention logits of a layer,
 * head or map, the keys or values of a layer, or one weight matrix; beside the measured KLD stand
 * forecasts that run at most the layer. */

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
    /* forecasts, NaN: none; the change of the residual stream within the layer
     * (dq_plan_reference_local), and the predicted error of a logit (dq_forecast_predicted) */
    double local, logit_error;
    bool known;
} dq_sensitivity_unit;

struct dq_sensitivity;
typedef struct dq_sensitivity_settings {
    unsigned kinds; /* bits of dq_sensitivity_kind; 0: the forecast of logits alone */
    int bits;       /* of all that is rounded: 8, 6, 5, 4, 3 or 2 */
    dq_granularity granularity;
    int64_t group;   /* of weights: columns per scale; the codes nearest, with searched scales */
    dq_kv_config kv; /* of keys and values but for their widths */
    dq_backend *backend; /* one that computes in host memory */
    const char *beside;  /* where scratch files are */
    int number;          /* of the model, in lines of the journal */
    int shard, n_shards; /* from 1: every n-th unit is measured, the forecast by the first shard; 0
                            and 0: all */
    /* Told of each unit that is measured. NULL: nobody is. */
    dq_status (*found)(void *arg, const struct dq_sensitivity *s, int64_t unit, dq_err *err);
    void *arg;
} dq_sensitivity_settings;

typedef struct dq_sensitivity {
    dq_sensitivity_settings set;
    const dq_model *m;
    const dq_calib_text *text;
    dq_sensitivity_unit *unit; /* [n] in the order in which they are measured, by layer */
    int64_t n, n_known;        /* n_known: found by an earlier run */
    dq_forecast forecast;
    bool foretold;            /* the forecast is there */
    int64_t scored;           /* tokens */
    const int64_t *scored_of; /* [n_clusters] of them */
    dq_arena *arena;
    dq_plan_work work; /* step and arg are the caller's */
} dq_sensitivity;

/* Lists the units of the kinds that the model has. Memory in the arena. DQ_RESOURCE; DQ_MISMATCH: a
 * cache does not have the widths. */
dq_status dq_sensitivity_new(dq_sensitivity *s, const dq_model *m, const dq_calib_text *text,
                             const dq_sensitivity_settings *set, dq_arena *a, dq_err *err);
/* What is known of a unit as a line of a journal, or (unit n) the forecast; NULL: nothing, or
 * see err. Taken back with the dq_sensitivity as arg. */
json_t *dq_sensitivity_line(const dq_sensitivity *s, int64_t unit, dq_err *err);
dq_work_take dq_sensitivity_take;
/* Whether the unit, or (n) the forecast, is of this shard. */
bool dq_sensitivity_is_mine(const dq_sensitivity *s, int64_t unit);
/* Measures what is not known. DQ_STOPPED; DQ_DAMAGED: something is not finite. */
dq_status dq_sensitivity_run(dq_sensitivity *s, dq_err *err);

/* How well forecasts rank the units of a kind. */
typedef struct dq_sensitivity_rank {
    int64_t n;
    double local, logit_error; /* Spearman's correlation with the KLD; NaN: none */
    dq_interval local_interval, logit_interval;
    double repeat; /* of the KLD on one half of the clusters with that on the other; NaN: none */
} dq_sensitivity_rank;
dq_status dq_sensitivity_rank_of(dq_sensitivity_rank *out, const dq_sensitivity *s,
                                 dq_sensitivity_kind kind, dq_err *err);

/* Which unit of a kind breaks first: the one of most KLD on half of the clusters, judged on the
 * other half. more: what it loses more there than whichever other unit loses most in each cluster,
 * which is at most what it loses more than any of them; so one interval speaks for all. first -1:
 * fewer than two units, or than DQ_SENSITIVITY_WINDOWS clusters. */
enum { DQ_SENSITIVITY_WINDOWS = 4 };
typedef struct dq_sensitivity_first {
    int64_t first, next; /* in s->unit; next: the second by KLD on the judging half; -1: none */
    dq_mean more;
    dq_interval interval;
} dq_sensitivity_first;
dq_status dq_sensitivity_first_of(dq_sensitivity_first *out, const dq_sensitivity *s,
                                  dq_sensitivity_kind kind, dq_err *err);

#endif
