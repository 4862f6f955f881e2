/* loops_exp: the constants of exp, which every instruction set evaluates with the same separately rounded
 * products and sums, so that results agree bit for bit.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_EXP_H
#define DQ_LOOPS_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp(x) = 2^n * exp(r), n = rint(x / ln 2), r = x - n ln 2 in two steps: n * EXP_LN2_HI is exact (9
 * bits by 8 bits). exp(r) = 1 + (r + r^2 q(r)), q of degree 5, Taylor: the next term is below 2^-28
 * for |r| <= ln 2 / 2. Below EXP_LOW the result would be subnormal: it is 0. */
#define EXP_LOW    (-87.33654f)
#define EXP_HIGH   88.72283f
#define EXP_LOG2E  1.44269504f
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_C7     1.98412698e-4f
#define EXP_C6     1.38888889e-3f
#define EXP_C5     8.33333333e-3f
#define EXP_C4     4.16666667e-2f
#define EXP_C3     1.66666667e-1f
#define EXP_C2     0.5f

static inline float exp_scalar(float x)
{
    float low = x < EXP_HIGH ? x : EXP_HIGH; /* NaN is put back at the end */
    low = low > EXP_LOW ? low : EXP_LOW;
    float n = rintf(low * EXP_LOG2E);
    float r = low - n * EXP_LN2_HI;
    r = r - n * EXP_LN2_LO;
    float q = EXP_C7 * r + EXP_C6;
    q = q * r + EXP_C5;
    q = q * r + EXP_C4;
    q = q * r + EXP_C3;
    q = q * r + EXP_C2;
    float y = (q * r) * r + r;
    y = y + 1.0f;
    /* 2^n in two factors: n = 128 has no f32 of its own */
    int32_t k = (int32_t)n, half = k >> 1, rest = k - half;
    int32_t a = (half + 127) << 23, b = (rest + 127) << 23;
    float fa, fb;
    memcpy(&fa, &a, sizeof fa);
    memcpy(&fb, &b, sizeof fb);
    y = (y * fa) * fb;
    if (x < EXP_LOW) y = 0.0f;
    if (x > EXP_HIGH) y = INFINITY;
    return x != x ? x : y;
}

#endif
