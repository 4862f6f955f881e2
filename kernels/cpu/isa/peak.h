/* peak: what a processor reaches at most, one row per instruction set: for benchmarks to compare with.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PEAK_H
#define DQ_PEAK_H

#include <stddef.h>

typedef struct dq_simd_peak {
    /* The instructions of the instruction set that do most multiply-adds of f32, of 8-bit codes, and of products in f32 with packed
     * weights, which are three of codes. Products are made of no fewer. */
    const char *fma, *dot, *three_dots;
    /* A million of them and more in independent chains, on registers alone. Returns the operations done: a multiply-add of
     * two numbers counts as two. */
    double (*run_fma)(void);
    double (*run_dot)(void);
    /* Loads p[bytes], a multiple of 64 from an address that is one, once. */
    void (*read)(const void *p, size_t bytes);
} dq_simd_peak;

extern const dq_simd_peak dq_simd_peak_scalar;
#if defined(__x86_64__)
extern const dq_simd_peak dq_simd_peak_avx2, dq_simd_peak_avx512;
extern const dq_simd_peak dq_simd_peak_vnni; /* AVX-512 with VNNI */
#endif

#endif
