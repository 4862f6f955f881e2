/* needle_recall: which of the numbers hidden in a long text an answer names, and what it names instead.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_NEEDLE_RECALL_H
#define DQ_NEEDLE_RECALL_H

#include "base/base.h"

/* Whether `number` (ASCII digits) stands in text[len] with no digit right before or after it. */
bool dq_needle_recall_found(const char *text, size_t len, const char *number);

enum { DQ_NEAR_DIGITS = 2 }; /* that may differ: 5 of 7 are equal */

/* What became of the numbers that were asked for; the first that holds, so they add up to n_requested. */
typedef struct dq_needle_recall {
    int64_t correct; /* it is found */
    int64_t other;   /* a number that was hidden but not asked for is found */
    int64_t near;    /* found is a run of as many digits, no hidden number, of which at most
                        DQ_NEAR_DIGITS differ in place, but not all */
    int64_t none;
} dq_needle_recall;

/* Adds to *sum: number[0 .. n_requested - 1] were asked for, number[n_requested .. n - 1] were hidden too. */
void dq_needle_recall_judge(dq_needle_recall *sum, const char *text, size_t len,
                            const char *const *number, int64_t n_requested, int64_t n);

#endif
