/* quant_search: the pieces of DQ_SEARCH, for groups that do not fit in memory at once (one scale for
 * a whole tensor): the caller sums the error of every candidate over the pieces and takes the least.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANT_SEARCH_H
#define DQ_QUANT_SEARCH_H

#include "quant.h"

enum { DQ_N_CANDIDATES = 33 }; /* from absmax / Qmax down to a fifth of it */

/* The k-th scale that the search tries for a group whose largest magnitude is absmax. */
float dq_scale_candidate(float absmax, int bits, int k);
/* error[k] += sum of (w - scale q)^2 for every candidate scale. */
void dq_scale_errors(double error[DQ_N_CANDIDATES], const float *w, int64_t n, int bits,
                     float absmax);
/* The scale for a group whose value of largest magnitude (the first of equals) is `peak`, without a
 * search. */
float dq_scale_of_peak(float peak, int bits, dq_scale_mode mode);
/* The value of largest magnitude, the first of equals, sign kept. 0 for n = 0. */
float dq_peak(const float *w, int64_t n);

#endif
