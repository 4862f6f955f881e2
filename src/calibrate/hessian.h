/* hessian: H = mean of h h^T over the inputs h of a product: what an error in its weights costs, tr(E H E^T) per token. Sums
 * are those of tile_sums.h, whose blocks of rows the caller's calls fix; then the factor for rounding.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HESSIAN_H
#define DQ_HESSIAN_H

#include "calibrate/tile_sums.h"

typedef struct dq_hessian {
    int64_t n, ld;
    int64_t rows; /* inputs added so far */
    double *a;    /* [n, ld]: before factoring the lower triangle is the sum of h h^T */
    dq_tile_sums sums;
    /* After factoring: columns in the order in which they are rounded, the last one first, H + damping I in that order
     * = L L^T, L in the lower triangle. */
    int64_t *order; /* [n] order[i]: column of the matrix; a later i is rounded earlier */
    double *diagonal;
    bool *dead;           /* [n] by column of the matrix: no input was ever other than 0 */
    double damping;       /* what was added to the diagonal, in units of it */
    double damping_share; /* of the mean of the diagonal */
    int64_t n_dead;
} dq_hessian;

/* For products of at most max_n inputs, and calls that add at most max_rows rows. DQ_RESOURCE. */
dq_status dq_hessian_new(dq_hessian **out, int64_t max_n, int64_t max_rows, dq_err *err);
void dq_hessian_free(dq_hessian *h); /* NULL allowed */
int64_t dq_hessian_bytes(int64_t max_n, int64_t max_rows);
/* Empty, for n <= max_n inputs. */
void dq_hessian_begin(dq_hessian *h, int64_t n);
/* By all ranks: adds rows of x[rows, n], as dq_tile_sums_add does; and after the last call. */
dq_status dq_hessian_add(dq_hessian *h, dq_backend *b, dq_mat x, dq_tile_sums_rows which,
                         dq_err *err);
dq_status dq_hessian_share(dq_hessian *h, dq_err *err);
/* Mean over rows, order by descending diagonal (the lower column first among equals), damping `share` of the mean
 * diagonal, and the factor. Where that is not positive definite, ten times more, at most DQ_HESSIAN_TRIES times in all:
 * damping_share says what it took. A column without any input is left out of feedback. The sums are lost. DQ_DAMAGED for
 * sums that are not finite, or a matrix that no damping makes positive definite; `what` names it. */
enum { DQ_HESSIAN_TRIES = 4 };
dq_status dq_hessian_factor(dq_hessian *h, double share, const char *what, dq_err *err);
/* The factor of the same means with another damping. */
dq_status dq_hessian_refactor(dq_hessian *h, double share, const char *what, dq_err *err);

/* Before factoring: the sums of part, of as many inputs, are kept beside those of h, in the triangle that these leave free; and
 * become part of them, as those of `rows` inputs. */
void dq_hessian_set_aside(dq_hessian *h, const dq_hessian *part);
void dq_hessian_take_in(dq_hessian *h, int64_t rows);

#endif
