/* Collectors of outliers: of what models compute on a text, and of their weights.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OUTLIERS_H
#define DQ_OUTLIERS_H

#include "engine/observe.h"
#include "engine/runner.h"
#include "stat/stat.h"

/* The first that fits, by shares of sum |D|. Source of retrieval: induction heads, arXiv
 * 2209.11895. */
typedef enum dq_head_kind {
    DQ_HEAD_RETRIEVAL, /* a tenth on what followed the last occurrence of a row's token */
    DQ_HEAD_SINK,      /* half on the first token */
    DQ_HEAD_LOCAL,     /* half on the last DQ_LOCAL_KEYS tokens */
    DQ_HEAD_MIXED,
    DQ_HEAD_KINDS
} dq_head_kind;
extern const char
    *const dq_head_kind_name[DQ_HEAD_KINDS]; /* "retrieval", "sink", "local", "mixed" */

/* DQ_HEAD_MIXED without rows. */
dq_head_kind dq_head_kind_of(const dq_head_measure *m, const dq_head_profile *p);

/* ---- Outliers ----
 * Magnitudes of attention logits and activations of one model: the numbers of Table 5 of arXiv
 * 2410.05258, pooled and per layer; and, where a profile is wanted, the same with and without the
 * tokens on which attention is parked, by head and by channel. Nothing depends on the order in
 * which tokens come, and nothing grows with their number. */

/* The median of |x|, within `bound` of the true value (0: exact); NaN without values. */
typedef struct dq_median {
    double value, bound;
} dq_median;

enum {
    DQ_KIND_LOGITS,          /* |q k| / sqrt(head size) after RoPE, both maps, visible keys */
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

/* The numbers of Table 5; attention maps too; or a profile with all kinds, classes of tokens, heads
 * and channels. */
typedef enum dq_outlier_detail {
    DQ_DETAIL_TABLE5,
    DQ_DETAIL_MAPS,
    DQ_DETAIL_ALL,
    DQ_DETAILS
} dq_outlier_detail;
extern const char *const dq_outlier_detail_name[DQ_DETAILS]; /* "table5", "maps", "all" */

/* `pooled` covers all layers. */
typedef struct dq_outlier_kind {
    dq_tally pooled, *layer; /* layer[n_layers] */
    dq_median pooled_median, *layer_median;
    /* of a profile: without first tokens and attention sinks; a logit counts for its key */
    dq_tally pooled_ordinary, *ordinary; /* [n_layers] */
    dq_channels *channels;               /* [n_layers] of all but logits */
} dq_outlier_kind;

typedef struct dq_outliers {
    dq_arena *a;                       /* of the arrays */
    int n_layers, n_out, n_q, n_kinds; /* n_kinds: DQ_N_TABLE5, or DQ_N_KINDS of a profile */
    dq_outlier_kind kind[DQ_N_KINDS];
    dq_moments
        *head; /* [n_layers][n_q][DQ_TOKEN_CLASSES] logits, by class of the key; of a profile */
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
/* A layer's findings as bytes, for the same program; and a merge of them, which advances *at, in
 * any order to the same bits. While tallies are refined, only their counts. DQ_DAMAGED: they end
 * before `end`, or are invalid. */
dq_status dq_outliers_put(const dq_outliers *o, int layer, dq_strbuf *to, dq_err *err);
dq_status dq_outliers_merge(dq_outliers *o, int layer, const char **at, const char *end,
                            dq_err *err);
/* The bound is half of the histogram's bin. */
dq_median dq_outlier_median(const dq_tally *t);

/* NaN with too few values. */
double dq_outlier_top(const dq_tally *t, int k); /* k-th largest magnitude, k from 1 to DQ_TOP */
double dq_outlier_rms(const dq_tally *t);
/* n sum x^4 / (sum x^2)^2, the kurtosis around zero; 3 for a centred normal distribution. */
double dq_outlier_kurtosis0(const dq_tally *t);
/* 1 or 2: the map of a query head; 0: the model has one map. */
int dq_outlier_map(const dq_head_order *map, int head);
/* A query head's logits on keys of some classes, bit i for class i. */
dq_moments dq_outlier_head(const dq_outliers *o, int layer, int head, unsigned classes);

/* ---- Elements ----
 * Outliers as one looks for them, each named once: a channel of the residual stream at a class of
 * tokens, with the layers where it stands; or a channel of q, k, v or a projection's input, or a
 * query head's logits on a class of keys, of a layer. */

typedef struct dq_element {
    int kind;
    dq_token_class class; /* of the token; of logits: of the key */
    int64_t col;          /* channel; of logits the query head */
    float max;            /* its largest magnitude over layers */
    dq_place at;          /* where: seq, layer, row; of logits the query and, in col, the key */
    double rms;           /* in that layer, over tokens of the class */
    double ratio;         /* max over the median of that layer's ordinary tokens */
    /* The layers first .. last, with n_gaps between, where its magnitude is at least a tenth of
     * `max`. Only channels of the residual stream span layers; elsewhere first = last =
     * at.layer. */
    int first, last, n_gaps;
    double before; /* its magnitude in layer first - 1; NaN: there is none */
} dq_element;

/* The `max` largest elements of a profile's kind and class, largest first, in out[max]; returns how
 * many. */
int dq_elements_find(dq_element *out, int max, const dq_outliers *o, int kind,
                     dq_token_class class);

/* A matrix [rows, cols], y = W x: columns are input channels, rows outputs. */
typedef struct dq_weight_outlier {
    const char *name; /* the tensor's */
    const char *role; /* "embed", "q" .. "down", "lambda", "head" */
    int layer;        /* -1: of no layer */
    int64_t rows, cols;
    int64_t n_bad; /* values that are not finite, which are in no other number */
    float max;     /* the largest magnitude, and where */
    int64_t row, col;
    double median, p99_9; /* to the middle of a bin: 0.4 % off at most */
    double rms, kurtosis0;
    int64_t largest_col; /* the input channel of largest root mean square, the first of equals */
    double col_ratio;    /* that over the median over columns; 0: that is 0 */
} dq_weight_outlier;

typedef struct dq_weight_outliers {
    dq_weight_outlier *of; /* [n] in the order of the model */
    int n;
} dq_weight_outliers;

/* All matrices; a tied head does not count. End with dq_weight_outliers_free. DQ_STOPPED after
 * Ctrl-C. */
dq_status dq_weight_outliers_collect(dq_weight_outliers *o, const dq_model *m, dq_err *err);
void dq_weight_outliers_free(dq_weight_outliers *o); /* zeroed or collected */

/* Forward passes over given sequences, from which outliers are collected. */

/* A view: sequence i is ids[cu[i]] .. ids[cu[i+1]-1], from position 0. */
typedef struct dq_sequences {
    int64_t n;
    const int64_t *cu; /* [n + 1], from 0 */
    const int32_t *ids;
} dq_sequences;

typedef struct dq_outlier_walk_how {
    int64_t max_rows; /* of one pass; a longer sequence is a pass of its own */
    /* 1: exact top values, bounded medians; 2: exact pooled medians; 3: exact medians of layers.
     * Each is one more walk over all sequences. */
    int walks;
    /* Called between layers and after each pass; NULL allowed. `walk` counts from 0. */
    void (*tick)(void *arg, int walk, int64_t rows_done);
    void *arg;
} dq_outlier_walk_how;

/* A profile's classes of tokens. A token not at the first position is a sink from the first layer
 * on in which the queries that see it give it this share of their attention, on average over them
 * and the layer's maps; where fewer see it, nothing is known, and it is none. What a layer puts out
 * is classed by the attention of the next layer, which reads it; after the last layer by that
 * one's. */
#define DQ_OUTLIER_SINK_SHARE 0.02
enum { DQ_OUTLIER_SINK_QUERIES = 128 };

/* Fills *o, of dq_outliers_init and this model. Sequences longer than the model's positions are
 * DQ_MISMATCH, ids outside its vocabulary and a profile on a backend without profile_rows too; all
 * are found before anything runs. By all ranks (work/ranks.h); only on rank 0 *o holds all of it
 * then. The numbers do not depend on how many there are. */
dq_status dq_outlier_walk_collect(dq_outliers *o, dq_runner *r, const dq_sequences *s,
                                  const dq_outlier_walk_how *how, dq_err *err);

/* The first walk alone, in blocks, for processes that never meet. Blocks follow from sequences and
 * how->max_rows; `walks` is ignored. */
typedef struct dq_outlier_walk dq_outlier_walk;
enum { DQ_OUTLIER_BLOCKS = 128 }; /* at most */
/* `o` comes from dq_outliers_init for this model; all but `w` must stay. Refuses as
 * dq_outlier_walk_collect does. */
dq_status dq_outlier_walk_new(dq_outlier_walk **w, dq_outliers *o, const dq_model *m,
                              const dq_sequences *s, const dq_outlier_walk_how *how, dq_err *err);
void dq_outlier_walk_free(dq_outlier_walk *w); /* NULL allowed */
int dq_outlier_walk_blocks(const dq_outlier_walk *w);
int64_t dq_outlier_walk_rows(const dq_outlier_walk *w, int block);
dq_status dq_outlier_walk_run(dq_outlier_walk *w, dq_runner *r, int block, dq_err *err);
/* Whether the places in *o, which may come from a file, lie in its sequences, as ids are looked up
 * by them. */
bool dq_outlier_walk_check(const dq_outlier_walk *w);
/* After the last block, wherever it ran (dq_outliers_merge): *o is exactly that of
 * dq_outlier_walk_collect with one walk. */
void dq_outlier_walk_end(dq_outlier_walk *w);

#endif
