/* key_factor: the factor of the keys' Gram matrix that leverages (backend.h) are made with, in f64 on the host.
 * Private to kernels.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KEY_FACTOR_H
#define DQ_KEY_FACTOR_H

#include <stdbool.h>
#include <stdint.h>

/* right[cols][ld] = U^-1, an upper triangle with zeros below, of gram + e I = U'U with e as backend.h says. gram[cols][ld]:
 * only its upper triangle is read. work[2][cols][ld]. False: there is no such e, as values are not finite. */
bool dq_key_factor(float *right, double *work, const double *gram, int64_t cols, int64_t ld);

#endif
