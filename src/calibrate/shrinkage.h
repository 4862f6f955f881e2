/* shrinkage: how far a correction of weights is to be trusted, by what one that half of the rows gave does for the other half.
 *
 * A correction has as many unknowns for each output as a product has inputs. From few tokens it is chance for the most part,
 * and worse than none. So weights become W + diag(a) K, K = C (H + ridge mean(diag H) I)^-1, with a ridge for each product and a
 * share a for each output. K is solved from rows A and judged on rows B, where an output's error is
 *     |lacks - a k x|^2 = const - 2 a k c^T + a^2 k H_B k^T,    k and c its rows of K and C_B,
 * and least at a = k c^T / k H_B k^T. Ridges grow as long as that makes outputs clearly better.
 *
 * All rows are twice as many as A, with half the chance in them: a becomes 2 a / (1 + a), as signal and chance are a to 1 - a in
 * A, and the ridge its half. Before that a is taken 1.3 times, which costs a tenth of its gain at most: an output's error hardly
 * tells shares near the best apart.
 * Source: shrinkage by cross-validation; Hastie, Tibshirani, Friedman, The Elements of Statistical Learning, 3.4 and 7.10.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SHRINKAGE_H
#define DQ_SHRINKAGE_H

#include "calibrate/correction.h"

enum { DQ_SHRINKAGE_RIDGES = 7 }; /* that are tried at most */

/* Sums over the first half of the rows of each call; the caller's are over the others. */
typedef struct dq_shrinkage {
    dq_hessian *h;
    dq_cross *c;
    double *k;     /* [m, ld of c] a correction by A */
    double *share; /* [m] found by dq_shrinkage_find; the rest is private */
} dq_shrinkage;

/* For corrections of at most max_m x max_n, and calls of at most max_rows rows. DQ_RESOURCE. */
dq_status dq_shrinkage_new(dq_shrinkage *o, int64_t max_m, int64_t max_n, int64_t max_rows,
                           dq_err *err);
void dq_shrinkage_free(dq_shrinkage *o); /* {0} allowed */
int64_t dq_shrinkage_bytes(int64_t max_m, int64_t max_n, int64_t max_rows);
/* Empty, for m <= max_m and n <= max_n. */
void dq_shrinkage_begin(dq_shrinkage *o, int64_t m, int64_t n);
/* By all ranks: rows go to o and h in halves of each `piece` (tile_sums.h): x[rows, n]; and what is lacking there, lacks[rows, m],
 * to o and c. */
dq_status dq_shrinkage_add_inputs(dq_shrinkage *o, dq_hessian *h, dq_backend *b, dq_mat x,
                                  int64_t piece, dq_err *err);
dq_status dq_shrinkage_add_lacks(dq_shrinkage *o, dq_cross *c, dq_backend *b, dq_mat lacks,
                                 dq_mat x, int64_t piece, dq_err *err);
/* By all ranks, each of which solves for some outputs: *ridge, a share of the mean diagonal, and o->share; h and c become the sums over all rows. `what` names the product. The same
 * for any number of threads. DQ_DAMAGED for sums that are not finite; DQ_RESOURCE; DQ_STOPPED. */
dq_status dq_shrinkage_find(double *ridge, dq_shrinkage *o, dq_hessian *h, dq_cross *c,
                            const char *what, dq_err *err);

#endif
