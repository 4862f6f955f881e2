/* head_measure: what the attention of one output head looks like, summed over query rows: how spread its maps
 * are, how much of them cancels, and what could be left out.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_MEASURE_H
#define DQ_HEAD_MEASURE_H

#include "base/base.h"

enum {
    DQ_N_THRESHOLDS = 4,
    DQ_SINKS = 4 /* the first positions, where attention is parked. arXiv 2309.17453 */
};
extern const double dq_head_measure_thresholds[DQ_N_THRESHOLDS]; /* 1e-4, 1e-3, 1e-2, 1e-1 */

/* D = A1 - lambda A2 of one output head (one map: D = A1, and the second entries stay 0). Sums over rows;
 * divided by `rows`, `keys` or `pages` they are means and shares. */
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

#endif
