/* fixed: sums of doubles that do not depend on the order of their terms: 256 bits of two's complement, 128 of them after the
 * point. A term is rounded towards zero to a multiple of 2^-128; every sum of such terms is exact.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FIXED_H
#define DQ_FIXED_H

#include <stdbool.h>
#include <stdint.h>

/* {0} is 0. What is not finite, or does not fit 2^127, makes it NaN for good. */
typedef struct dq_fixed {
    uint64_t word[4]; /* the lowest first */
} dq_fixed;

/* Whether a count from elsewhere is one: of 0 to 2^46, of which 131072 add up within 63 bits. */
bool dq_fixed_is_count(int64_t n);

void dq_fixed_add(dq_fixed *f, double x);
void dq_fixed_merge(dq_fixed *into, const dq_fixed *from);
double dq_fixed_value(const dq_fixed *f);

#endif
