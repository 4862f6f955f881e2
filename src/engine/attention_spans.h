/* attention_spans: how much attention the rows of an output head give to classes of tokens: the first token, an answer,
 * the question, all else. A backend adds it up on the way; no row of a map ever leaves it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTENTION_SPANS_H
#define DQ_ATTENTION_SPANS_H

#include "base/base.h"

enum { DQ_SPAN_CLASSES = 8 };

/* With a = A1 - lambda A2 of one row and output head (one map: a = A1), before the head's norm and of the
 * probabilities that the row used, a class has a share of the row's whole. Entries of a may be negative, so
 * there are three wholes. */
typedef enum dq_span_norm {
    DQ_SPAN_SUM,      /* a / sum a; rows with |sum a| below DQ_SPAN_LEAST are skipped */
    DQ_SPAN_POSITIVE, /* max(a, 0) / sum max(a, 0); rows without a positive entry are skipped */
    DQ_SPAN_ABSOLUTE, /* |a| / sum |a|; rows of zeros are skipped */
    DQ_N_SPAN_NORMS
} dq_span_norm;
#define DQ_SPAN_LEAST 1e-3
/* Below it |sum a| is counted: such rows have shares of the sum far outside 0 to 1, which rule their mean. */
#define DQ_SPAN_SMALL 0.1

/* Sums over rows of one output head. */
typedef struct dq_span_share {
    double share[DQ_N_SPAN_NORMS][DQ_SPAN_CLASSES];
    int64_t rows;                     /* those skipped among them */
    int64_t skipped[DQ_N_SPAN_NORMS]; /* by each norm on its own */
    int64_t small;                    /* with |sum a| below DQ_SPAN_SMALL */
} dq_span_share;

/* What one row gives to one class: the sum of a where it is positive, and of -a where it is negative. */
typedef struct dq_span_mass {
    double positive, negative;
} dq_span_mass;

/* What a call of attend, or a pass, is asked for, on the host. `label` covers every position up to the last one
 * that a sequence holds. Tokens that were evicted take no part: shares are of what a row sees. */
typedef struct dq_attention_spans {
    int n_classes; /* 1..DQ_SPAN_CLASSES */
    /* The class of a token of sequence i of the batch: label[at[i] + its position]. */
    const uint8_t *label;
    const int64_t *at; /* [n_seq] */
    /* How many rows of the call count, from the sequence's last one backwards. 0: none; more than it has: all. */
    const int64_t *last_rows; /* [n_seq] */
    dq_span_share *sums;      /* [n_seq][n_out]; added to until the next sync */
} dq_attention_spans;

/* First row of the batch that counts of sequence i, whose rows are cu_rows[i] .. cu_rows[i + 1] - 1;
 * cu_rows[i + 1]: none. */
static inline int64_t dq_attention_spans_first(const dq_attention_spans *s, const int64_t *cu_rows,
                                               int i)
{
    const int64_t n = cu_rows[i + 1] - cu_rows[i], last = s->last_rows[i];
    return cu_rows[i + 1] - (last < n ? last : n);
}

/* Adds one row, mass[n_classes]. A NaN is no reason to skip: it shows in the shares. */
void dq_attention_spans_add_row(dq_span_share *into, const dq_span_mass *mass, int n_classes);
/* Mean share of a class over the rows that were not skipped; NaN if there are none. */
double dq_attention_spans_mean(const dq_span_share *s, dq_span_norm norm, int class_);

#endif
