/* tally_text: a tally as JSON, from which a process of any machine makes the same bits.
 *
 *   {"n": N, "n_bad": N, "sums": "X X X", "top": "X SEQ LAYER HEAD ROW COL ..", "histogram": "BIN:N N N;BIN:N .."}
 *                          largest values with their places; runs of bins that are not empty, each from its first BIN on
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TALLY_TEXT_H
#define DQ_TALLY_TEXT_H

#include "base/part.h"
#include "stat/tally.h"

/* Of a first pass. */
void dq_tally_text_put(FILE *f, const dq_tally *t);
/* Reads one into `out`, which is empty and of dq_tally_init; its `threshold` too. DQ_DAMAGED: not of that form, counts that do
 * not belong together, or more than 2^46 values. */
dq_status dq_tally_text_get(dq_tally *out, const json_t *o, dq_err *err);

#endif
