/* outliers: magnitudes of attention logits and activations of one model: the numbers of Table 5 of arXiv 2410.05258, pooled and
 * per layer; and, where a profile is wanted, the same with and without the tokens on which attention is parked, by head and by
 * channel. Nothing depends on the order in which tokens come, and nothing grows with their number.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTLIERS_H
#define DQ_OUTLIERS_H

#include "engine/observe.h"
#include "engine/runner.h"
#include "stat/stat.h"

/* The median of |x|: within `bound` of the true value; bound 0 says exact. NaN without values. */
typedef struct dq_median {
    double value, bound;
} dq_median;

enum {
    DQ_KIND_LOGITS, /* |q k| / sqrt(head size) after RoPE, of both maps, keys that their query sees */
    DQ_KIND_HIDDEN,          /* layer outputs, after both residual additions */
    DQ_N_TABLE5,             /* those of Table 5; the others are of profiles */
    DQ_KIND_Q = DQ_N_TABLE5, /* after RoPE, as k */
    DQ_KIND_K,
    DQ_KIND_V,
    DQ_KIND_QKV_IN, /* inputs of projections */
    DQ_KIND_O_IN,
    DQ_KIND_GATE_UP_IN,
    DQ_KIND_DOWN_IN,
    DQ_N_KINDS
};
extern const char *const dq_outlier_name[DQ_N_KINDS]; /* "attention_logits", "hidden_states" .. */

/* How much is looked at: the numbers of Table 5; attention maps too; a profile with all kinds, classes of tokens, heads and
 * channels. */
typedef enum dq_outlier_detail {
    DQ_DETAIL_TABLE5,
    DQ_DETAIL_MAPS,
    DQ_DETAIL_ALL,
    DQ_DETAILS
} dq_outlier_detail;
extern const char *const dq_outlier_detail_name[DQ_DETAILS]; /* "table5", "maps", "all" */

/* One kind of value. `pooled` covers all layers. */
typedef struct dq_outlier_kind {
    dq_tally pooled, *layer; /* layer[n_layers] */
    dq_median pooled_median, *layer_median;
    /* Of a profile: without the first token of a sequence and attention sinks. A logit is its key's. */
    dq_tally pooled_ordinary, *ordinary; /* [n_layers] */
    dq_channels *channels;               /* [n_layers] of all but logits */
} dq_outlier_kind;

typedef struct dq_outliers {
    int n_layers, n_out, n_q, n_kinds; /* n_kinds: DQ_N_TABLE5, or DQ_N_KINDS of a profile */
    dq_outlier_kind kind[DQ_N_KINDS];
    dq_moments *
        head; /* of a profile: [n_layers][n_q][DQ_TOKEN_CLASSES] logits of a query head, by the class of the key */
    int64_t *tokens; /* of a profile: [n_layers][DQ_TOKEN_CLASSES] how many there were */
    dq_head_measure_sum *measure_sum; /* [n_layers][n_out]; NULL: maps are not looked at */
    dq_head_measure *measure;      /* [n_layers][n_out] what attention maps look like; afterwards */
    dq_head_profile_sum *look_sum; /* of a profile: [n_layers][n_out] */
    dq_head_profile *look;         /* of a profile: [n_layers][n_out] where maps go; afterwards */
    int64_t n_rows;                /* tokens fed in the first pass over the data */
} dq_outliers;

dq_status dq_outliers_init(dq_outliers *o, const dq_model *m, dq_outlier_detail detail,
                           dq_err *err);
void dq_outliers_free(dq_outliers *o); /* zeroed or initialised */
/* What was found in a layer as bytes, for a process of the same program; a merge of them, which moves *at on: in any order to the same
 * bits. While tallies are refined it is their counts alone. DQ_DAMAGED: the bytes end before `end`, or are none of this model's. */
dq_status dq_outliers_put(const dq_outliers *o, int layer, dq_strbuf *to, dq_err *err);
dq_status dq_outliers_merge(dq_outliers *o, int layer, const char **at, const char *end,
                            dq_err *err);
/* Fills what follows from the layers: pooled tallies, medians, measures. Once after each pass over the data; after the first one
 * it adds only what was refined. */
void dq_outliers_pool(dq_outliers *o);
/* Half of the histogram bin is how far the middle can be from the value. */
dq_median dq_outlier_median(const dq_tally *t);

/* What follows from a tally; NaN where there are too few values. */
double dq_outlier_top(const dq_tally *t, int k); /* k-th largest magnitude, k from 1 to DQ_TOP */
double dq_outlier_rms(const dq_tally *t);
/* n sum x^4 / (sum x^2)^2: the kurtosis of the values taken around zero; 3 for a normal distribution
 * without mean. */
double dq_outlier_kurtosis0(const dq_tally *t);
/* 1 or 2: the softmax map that query head `head` belongs to; 0 when the model has one map. */
int dq_outlier_map(const dq_head_order *map, int head);
/* A query head's logits on keys of some classes: bit i stands for class i. */
dq_moments dq_outlier_head(const dq_outliers *o, int layer, int head, unsigned classes);

#endif
