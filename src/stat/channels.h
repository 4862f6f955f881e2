/* channels: the magnitudes of each column of matrices whose rows are tokens, by class of token: the largest with its place, and
 * the sum of squares. Merging pieces in any order gives the same bits.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHANNELS_H
#define DQ_CHANNELS_H

#include "base/strbuf.h"
#include "stat/fixed.h"

/* What a token is to attention. Source: arXiv 2309.17453 and 2402.17762: outliers of hidden states stand at the first position
 * and at few other tokens on which attention is parked. */
typedef enum dq_token_class {
    DQ_TOKEN_ORDINARY,
    DQ_TOKEN_SINK,  /* not at the first position, but attention is parked there */
    DQ_TOKEN_FIRST, /* of its sequence */
    DQ_TOKEN_CLASSES
} dq_token_class;
extern const char *const dq_token_class_name[DQ_TOKEN_CLASSES]; /* "ordinary", "sink", "first" */

typedef struct dq_channel {
    float max;        /* largest finite magnitude */
    int32_t seq, row; /* where; of equal ones the first. Of no meaning where max is 0 */
    dq_fixed sum2;    /* of x^2 */
} dq_channel;

typedef struct dq_channels {
    int64_t cols, rows[DQ_TOKEN_CLASSES]; /* rows: how many there were */
    dq_channel *of;                       /* [DQ_TOKEN_CLASSES][cols] */
} dq_channels;

dq_status dq_channels_init(dq_channels *c, int64_t cols, dq_err *err);
void dq_channels_free(dq_channels *c); /* zeroed or initialised */
/* Columns first .. end - 1 of x[n][cols], consecutive rows of a class of a sequence from position `row` on, to those
 * columns alone: threads may share a table by columns. Values that are not finite are left out. Rows are not counted. */
void dq_channels_add(dq_channels *c, dq_token_class class, const float *x, int64_t n, int64_t first,
                     int64_t end, int32_t seq, int32_t row);
/* All of it as bytes, for a process of the same program; a merge of them, which moves *at on. DQ_DAMAGED: they end before
 * `end`, or are of a table of other columns. */
dq_status dq_channels_put(const dq_channels *c, dq_strbuf *to, dq_err *err);
dq_status dq_channels_merge_bytes(dq_channels *into, const char **at, const char *end, dq_err *err);

/* NaN without rows. */
double dq_channels_rms(const dq_channels *c, dq_token_class class, int64_t col);

#endif
