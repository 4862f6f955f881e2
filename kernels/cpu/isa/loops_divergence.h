/* loops_divergence: sums of exponentials in double, for the files of the instruction sets, which differ in DIVERGENCE_BYTES, the length
 * of their vectors, only: every product and sum is rounded alone, and 8 lanes are summed whatever a vector holds.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_DIVERGENCE_H
#define DQ_LOOPS_DIVERGENCE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef double wide_doubles __attribute__((vector_size(DIVERGENCE_BYTES)));
typedef int64_t wide_words __attribute__((vector_size(DIVERGENCE_BYTES)));
typedef float wide_floats __attribute__((vector_size(DIVERGENCE_BYTES / 2), aligned(4)));
enum { DIVERGENCE_LANES = 8, DIVERGENCE_STEP = DIVERGENCE_BYTES / 8 };

#define DIVERGENCE_INLINE static inline __attribute__((always_inline))

/* exp(x) for x <= 0 or NaN, within 1 ulp; 0 below -708. x = n ln 2 + r with n = rint(x / ln 2), which adding 1.5 * 2^52
 * leaves in the low bits; n times the first part of ln 2, 32 bits, is exact. exp(r) = 1 + (r + r^2 q(r)), q of degree 9
 * through Chebyshev's points of |r| <= ln 2 / 2: within 2^-55.7 of it. 2^n is made of bits, and times NaN stays NaN. */
DIVERGENCE_INLINE wide_doubles exp_of(wide_doubles x)
{
    static const double q[] = {0x1.af390ba7e6f47p-26, 0x1.2891d4ffbb0f9p-22, 0x1.71de0d85293b8p-19,
                               0x1.a019b8ca26fcfp-16, 0x1.a01a01a7cebcdp-13, 0x1.6c16c1789d1d7p-10,
                               0x1.11111111109a6p-7,  0x1.5555555553d37p-5,  0x1.5555555555556p-3,
                               0x1.0000000000001p-1};
    const double round = 0x1.8p52;
    const wide_doubles shifted = x * 0x1.71547652b82fep+0 + round, n = shifted - round;
    const wide_doubles r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    wide_doubles y = r * q[0] + q[1];
#pragma GCC unroll 8
    for (int i = 2; i < 10; i++) y = y * r + q[i];
    y = (y * r) * r + r;
    const wide_words exponent = ((wide_words)shifted + 1023) << 52;
    y = (y + 1.0) * (wide_doubles)exponent;
    return (wide_doubles)((wide_words)y & ~(wide_words)(x < -708.0));
}

/* Lane by lane: sums of exp(u), exp(v) and exp(u) (u - v), the last where exp(u) is not 0. */
typedef struct divergence_sums {
    wide_doubles p, q, weighted;
} divergence_sums;

DIVERGENCE_INLINE void add_divergence(divergence_sums *s, const float *p, const float *q,
                                      double top_p, double top_q)
{
    wide_floats a, b;
    memcpy(&a, p, sizeof a);
    memcpy(&b, q, sizeof b);
    const wide_doubles u = __builtin_convertvector(a, wide_doubles) - top_p;
    const wide_doubles v = __builtin_convertvector(b, wide_doubles) - top_q;
    const wide_doubles e = exp_of(u), term = e * (u - v);
    s->p += e;
    s->q += exp_of(v);
    s->weighted += (wide_doubles)((wide_words)term & (wide_words)(e > 0.0));
}

/* Lane i with lane i + 4, then + 2, + 1. */
DIVERGENCE_INLINE double fold_lanes(const double *lane)
{
    double x[DIVERGENCE_LANES];
    memcpy(x, lane, sizeof x);
    for (int step = DIVERGENCE_LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) x[i] += x[i + step];
    return x[0];
}

static void divergence(double sum[3], const float *p, const float *q, int64_t n, double top_p,
                       double top_q)
{
    enum { VECTORS = DIVERGENCE_LANES / DIVERGENCE_STEP };
    divergence_sums s[VECTORS];
    double lane[3][DIVERGENCE_LANES];
    float rest[2][DIVERGENCE_LANES];
    memset(s, 0, sizeof s);
    int64_t i = 0;
    for (; i + DIVERGENCE_LANES <= n; i += DIVERGENCE_LANES)
        for (int j = 0; j < VECTORS; j++)
            add_divergence(&s[j], p + i + j * DIVERGENCE_STEP, q + i + j * DIVERGENCE_STEP, top_p,
                           top_q);
    for (int j = 0; j < DIVERGENCE_LANES; j++) { /* what does not exist adds nothing */
        rest[0][j] = i + j < n ? p[i + j] : -INFINITY;
        rest[1][j] = i + j < n ? q[i + j] : -INFINITY;
    }
    for (int j = 0; j < VECTORS && i < n; j++)
        add_divergence(&s[j], rest[0] + j * DIVERGENCE_STEP, rest[1] + j * DIVERGENCE_STEP, top_p,
                       top_q);
    for (int j = 0; j < VECTORS; j++) {
        memcpy(lane[0] + j * DIVERGENCE_STEP, &s[j].p, sizeof s[j].p);
        memcpy(lane[1] + j * DIVERGENCE_STEP, &s[j].q, sizeof s[j].q);
        memcpy(lane[2] + j * DIVERGENCE_STEP, &s[j].weighted, sizeof s[j].weighted);
    }
    for (int k = 0; k < 3; k++) sum[k] = fold_lanes(lane[k]);
}

#endif
