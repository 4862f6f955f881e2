/* What is seen of attention while a model runs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OBSERVE_H
#define DQ_OBSERVE_H

#include "base/base.h"
#include "stat/stat.h"

#include <stdbool.h>
#include <stdint.h>

/* How much attention output heads give to classes of tokens: the first token, an answer, the
 * question, the rest. Backends sum it up; no row of a map leaves them. */

enum { DQ_SPAN_CLASSES = 8 };

/* For a = A1 - lambda A2 of a row and output head (one map: A1), before the head's norm and as
 * used, a class has a share of the row's whole; entries may be negative, so there are three
 * wholes. */
typedef enum dq_span_norm {
    DQ_SPAN_SUM,      /* a / sum a; rows with |sum a| below DQ_SPAN_LEAST are skipped */
    DQ_SPAN_POSITIVE, /* max(a, 0) / sum max(a, 0); rows without a positive entry are skipped */
    DQ_SPAN_ABSOLUTE, /* |a| / sum |a|; rows of zeros are skipped */
    DQ_N_SPAN_NORMS
} dq_span_norm;
/* Rows with |sum a| below it are counted: their shares lie far outside 0 to 1 and dominate
 * means. */
#define DQ_SPAN_SMALL 0.1

typedef struct dq_span_share {
    double share[DQ_N_SPAN_NORMS][DQ_SPAN_CLASSES];
    int64_t rows;                     /* those skipped among them */
    int64_t skipped[DQ_N_SPAN_NORMS]; /* by each norm on its own */
    int64_t small;                    /* with |sum a| below DQ_SPAN_SMALL */
} dq_span_share;

/* A row's sum of positive a, and of -a for negative a, in one class. */
typedef struct dq_span_mass {
    double positive, negative;
} dq_span_mass;

/* A request to attend or a pass, on the host. `label` covers every position of a sequence; evicted
 * tokens have no share. */
typedef struct dq_attention_spans {
    int n_classes; /* 1..DQ_SPAN_CLASSES */
    /* token of sequence i has class label[at[i] + its position] */
    const uint8_t *label;
    const int64_t *at; /* [n_seq] */
    /* rows that count, from the sequence's last one back; 0: none, more than there are: all */
    const int64_t *last_rows; /* [n_seq] */
    dq_span_share *sums;      /* [n_seq][n_out]; added to until the next sync */
} dq_attention_spans;

/* First counted row of the batch in sequence i, which has rows cu_rows[i] .. cu_rows[i + 1] - 1;
 * cu_rows[i + 1]: none. */
static inline int64_t dq_attention_spans_first(const dq_attention_spans *s, const int64_t *cu_rows,
                                               int i)
{
    const int64_t n = cu_rows[i + 1] - cu_rows[i], last = s->last_rows[i];
    return cu_rows[i + 1] - (last < n ? last : n);
}

/* Adds one row, mass[n_classes]; a NaN is kept and shows in the shares. */
void dq_attention_spans_add_row(dq_span_share *into, const dq_span_mass *mass, int n_classes);
/* Mean share over the rows not skipped; NaN: none. */
double dq_attention_spans_mean(const dq_span_share *s, dq_span_norm norm, int class_);

/* How spread an output head's maps are, how much of them cancels, and what could be skipped, summed
 * over query rows. */

enum {
    DQ_N_THRESHOLDS = 4,
    DQ_SINKS = 4 /* the first positions, where attention is parked. arXiv 2309.17453 */
};
extern const double dq_head_measure_thresholds[DQ_N_THRESHOLDS]; /* 1e-4, 1e-3, 1e-2, 1e-1 */

/* D = A1 - lambda A2 (one map: D = A1, second entries 0). Sums over rows; divide by `rows`, `keys`
 * or `pages`. */
typedef struct dq_head_measure {
    int64_t rows;
    int64_t keys;        /* visible keys of all rows */
    int64_t pages;       /* runs of 64 visible keys of all rows, the last one short */
    double entropy[2];   /* of each map's row, nats */
    double sink_mass[2]; /* on positions below DQ_SINKS */
    double variation;    /* sum |D| of the row: its total variation */
    double negative;     /* the part of it where D < 0 */
    int64_t near_zero[DQ_N_THRESHOLDS]; /* keys with |D| below the threshold */
    int64_t skippable[DQ_N_THRESHOLDS]; /* pages whose sum of |D| is below it */
} dq_head_measure;

void dq_head_measure_merge(dq_head_measure *into, const dq_head_measure *from);

/* Where an output head attends, summed over query rows: how many keys share it, how much goes to
 * the first token, recent tokens and what followed the last occurrence of the query's token; and
 * what two maps share. */

enum { DQ_LOCAL_KEYS = 64 }; /* the query's own token and those right before it */

/* Sums over rows of A1, A2 and |D|, D = A1 - lambda A2 (one map: A1, and A2's stay 0). */
typedef enum dq_head_sum {
    DQ_HEAD_SUPPORT_1, /* 1 / sum p^2: over as many keys the row would be even */
    DQ_HEAD_SUPPORT_2,
    DQ_HEAD_FIRST_1, /* mass on the first token of the sequence */
    DQ_HEAD_FIRST_2,
    DQ_HEAD_FIRST_D,
    DQ_HEAD_LOCAL_1, /* mass on the last DQ_LOCAL_KEYS tokens */
    DQ_HEAD_LOCAL_2,
    DQ_HEAD_LOCAL_D,
    DQ_HEAD_COPY_1, /* mass on the key of dq_head_look.copy, if any. arXiv 2209.11895 */
    DQ_HEAD_COPY_2,
    DQ_HEAD_COPY_D,
    DQ_HEAD_COMMON,    /* sum min(A1, A2): 1 less it is their total variation distance */
    DQ_HEAD_CANCELLED, /* sum min(A1, lambda A2), what cancels of A1; 0 if lambda < 0 */
    DQ_HEAD_SUMS
} dq_head_sum;

typedef struct dq_head_profile {
    int64_t rows, copies; /* copies: rows that have a key to copy from */
    double sum[DQ_HEAD_SUMS];
} dq_head_profile;

/* Filled by attend; sequences hold the batch's rows alone, from position 0. */
typedef struct dq_head_look {
    dq_head_profile *head; /* [n_out] on the host, added to */
    /* [n_rows] position after the last one, before the local keys, with the row's token; -1:
     * none */
    const int32_t *copy;
} dq_head_look;

void dq_head_profile_merge(dq_head_profile *into, const dq_head_profile *from);

/* Adds in any order to the same bits. {0} is empty. */
typedef struct dq_head_profile_sum {
    int64_t rows, copies;
    dq_fixed sum[DQ_HEAD_SUMS];
} dq_head_profile_sum;
void dq_head_profile_sum_add(dq_head_profile_sum *s, const dq_head_profile *p);
/* False: counts below 0, or above 2^46. */
bool dq_head_profile_sum_merge(dq_head_profile_sum *into, const dq_head_profile_sum *from);
dq_head_profile dq_head_profile_sum_value(const dq_head_profile_sum *s);

/* Adds in any order to the same bits. */

enum { DQ_MEASURE_COUNTS = 3 + 2 * DQ_N_THRESHOLDS, DQ_MEASURE_SUMS = 6 };

/* {0} is empty. */
typedef struct dq_head_measure_sum {
    int64_t count[DQ_MEASURE_COUNTS];
    dq_fixed sum[DQ_MEASURE_SUMS];
} dq_head_measure_sum;

void dq_head_measure_sum_add(dq_head_measure_sum *s, const dq_head_measure *m);
/* False: counts below 0, or above 2^46. */
bool dq_head_measure_sum_merge(dq_head_measure_sum *into, const dq_head_measure_sum *from);
dq_head_measure dq_head_measure_sum_value(const dq_head_measure_sum *s);

#endif
