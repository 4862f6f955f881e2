/* loops_avx2: the AVX2 functions, which the AVX-512 table shares where wider vectors gain nothing.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_AVX2_H
#define DQ_LOOPS_AVX2_H

#include "kernels/cpu/simd.h"

float dq_simd_avx2_scale_max(float *x, int64_t n, float scale);
float dq_simd_avx2_max(const float *x, int64_t n);
float dq_simd_avx2_absmax(const float *x, int64_t n);
void dq_simd_avx2_round_to_grid(float *x, int64_t n, float r, float qmax, float delta);
void dq_simd_avx2_diff(float *d, const float *p1, const float *p2, int64_t n, float a, float b);
void dq_simd_avx2_scale(float *x, int64_t n, float a);
void dq_simd_avx2_scale_gain(float *y, const float *x, int64_t n, float a, const float *w);
double dq_simd_avx2_sum_squares(const float *x, int64_t n);
void dq_simd_avx2_add(float *x, const float *y, int64_t n);
void dq_simd_avx2_rotate(float *lo, float *hi, const float *cos, const float *sin, int64_t n);

#endif
