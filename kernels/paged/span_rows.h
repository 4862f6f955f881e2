/* span_rows: the rows of a call that count for spans (observe.h), where their masses stand, and the class of every
 * token that they may see. Private to kernels.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SPAN_ROWS_H
#define DQ_SPAN_ROWS_H

#include "kernels/paged/kv_pages.h"

/* Masses are [n][n_out][n_classes]; row `row` of the batch, of sequence i, has the record
 * at[i] + row - dq_attention_spans_first(i). */
typedef struct dq_span_rows {
    int64_t n;   /* rows that count */
    int64_t *at; /* [n_seq + 1] */
    /* Where the classes of a list's tokens start in label; lists of sequences of which no row counts have none. */
    int64_t *key; /* [n_seq * n_groups + 1] */
    uint8_t *label;
    size_t row_bytes; /* of the masses of one row */
} dq_span_rows;

/* Of args->spans. False with the sticky error set, nothing to free; classes that do not exist are a DQ_BUG. */
bool dq_span_rows_new(dq_backend *b, dq_span_rows *s, const dq_attend_args *args);
void dq_span_rows_free(dq_span_rows *s); /* zeroes too */
/* Records before those of each sequence: at[n_seq + 1]. */
void dq_span_rows_place(int64_t *at, const dq_attention_spans *spans, const dq_batch *batch);
/* sums[n_seq][n_out] += masses of all rows, row by row in their order: cutting a pass never shows. */
void dq_span_rows_add(dq_span_share *sums, const int64_t *at, int n_seq, int n_out, int n_classes,
                      const dq_span_mass *mass);

#endif
