/* forecast: what rounding attention logits will do to them and to the maps, for every width and granularity, from q and k of one
 * pass: nothing after the maps is run.
 *
 * Predicted, from absolute maxima alone: logits spread evenly over a step A / Qmax are off by A / (Qmax sqrt 12), root mean
 * square, with A of their group (kv/kv.h); and by no more than what they are. Measured, beside it: every logit is rounded.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FORECAST_H
#define DQ_FORECAST_H

#include "engine/runner.h"
#include "stat/stat.h"

enum { DQ_FORECAST_WIDTHS = 4 };
extern const int dq_forecast_bits[DQ_FORECAST_WIDTHS]; /* 8, 6, 4, 3 */

/* Sums over the logits of a query head that rows see. */
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
    /* the same over all layers and heads, by cluster of the text */
    dq_forecast_logits *logits_of; /* [n_clusters] */
    dq_forecast_maps *maps_of;
} dq_forecast;

/* Memory in the arena. DQ_RESOURCE. */
dq_status dq_forecast_new(dq_forecast *f, const dq_model *m, int64_t n_clusters, dq_arena *a,
                          dq_err *err);
/* Adds a layer's rows, whose q and k are in host memory: whole sequences, each of which belongs to a cluster. The same bits for any
 * number of threads. DQ_RESOURCE. */
dq_status dq_forecast_add(dq_forecast *f, int layer, const dq_layer_steps *s,
                          const int32_t *cluster, dq_err *err);

void dq_forecast_logits_merge(dq_forecast_logits *into, const dq_forecast_logits *from);
void dq_forecast_maps_merge(dq_forecast_maps *into, const dq_forecast_maps *from);
/* Root mean square error of a logit of a head, predicted and measured; NaN without logits. */
double dq_forecast_predicted(const dq_forecast_logits *x, int bits, dq_granularity g);
/* The prediction for several heads together, each bounded by its own logits. */
double dq_forecast_predicted_all(const dq_forecast_logits *x, int64_t n, int bits,
                                 dq_granularity g);
double dq_forecast_measured(const dq_forecast_logits *x, int width, dq_granularity g);
/* |D' - D| / |D|; NaN where D is nothing. */
double dq_forecast_map_error(const dq_forecast_maps *x, int width, dq_granularity g);
/* |A1' - A1 - lambda (A2' - A2)| / (|A1' - A1| + lambda |A2' - A2|): 1 where the errors of both maps add up, 0 where they cancel;
 * 0.71 where they are of one size and have nothing to do with each other. NaN where there is no error. */
double dq_forecast_cancellation(const dq_forecast_maps *x, int width, dq_granularity g);

/* How many bits fewer than 4 a model needs for errors as large as another's at 4 bits, its mean over clusters. Of logits as
 * predicted, where 2^(b - 1) - 1 steps make up for larger maxima; of maps between the widths that are measured, along straight lines
 * of log2. Both models have read the same tokens, so that clusters are pairs. A cluster without an error, as of a single token, or
 * with one beyond the widths does not count. None for fewer than two that count, or another number of clusters. */
typedef struct dq_forecast_advantage {
    dq_mean bits; /* clusters: that count */
    dq_interval interval;
} dq_forecast_advantage;
enum { DQ_FORECAST_ADVANTAGE_BITS = 4 };
typedef enum dq_forecast_error { DQ_FORECAST_OF_LOGITS, DQ_FORECAST_OF_MAPS } dq_forecast_error;
dq_status dq_forecast_advantage_of(dq_forecast_advantage *out, const dq_forecast *model,
                                   const dq_forecast *other, dq_forecast_error of, dq_granularity g,
                                   dq_err *err);

#endif
