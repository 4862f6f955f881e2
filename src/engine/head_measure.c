/* head_measure: see head_measure.h. Plain sums, so that rows, sequences and threads can be merged in any grouping;
 * divisions come when the numbers are shown.
 * SPDX-License-Identifier: MIT */
#include "engine/head_measure.h"

const double dq_head_measure_thresholds[DQ_N_THRESHOLDS] = {1e-4, 1e-3, 1e-2, 1e-1};

void dq_head_measure_merge(dq_head_measure *into, const dq_head_measure *from)
{
    into->rows += from->rows;
    into->keys += from->keys;
    into->pages += from->pages;
    for (int m = 0; m < 2; m++) {
        into->entropy[m] += from->entropy[m];
        into->sink_mass[m] += from->sink_mass[m];
    }
    into->variation += from->variation;
    into->negative += from->negative;
    for (int i = 0; i < DQ_N_THRESHOLDS; i++) {
        into->near_zero[i] += from->near_zero[i];
        into->skippable[i] += from->skippable[i];
    }
}
