/* instruction sets: the CPU backend held to one instruction set, and numbers to feed it. For tests.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ISAS_H
#define DQ_ISAS_H

#include "tests/rigs/suite.h"

#include <stdint.h>

#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#include <stdlib.h>
#include <string.h>

static const char *const isas[] = {"scalar", "avx2", "avx512"};
enum { N_ISAS = 3 };

/* The table of an instruction set, NULL where this machine has none. */
static inline const dq_simd *table_of(int isa)
{
    const unsigned have = dq_os_cpu_features(NULL);
    if (isa == 0) return &dq_simd_scalar;
    if (isa == 1) return have & DQ_CPU_AVX2 ? dq_cpu_isa_of(DQ_CPU_AVX2)->simd : NULL;
    return have & DQ_CPU_AVX512 ? dq_cpu_isa_of(DQ_CPU_AVX2 | DQ_CPU_AVX512)->simd : NULL;
}

/* A backend held to one instruction set; NULL where this machine has none. */
static inline dq_backend *open_isa(int isa, int threads)
{
    dq_err err = {0};
    dq_backend *b = NULL;
    if (!table_of(isa)) return NULL;
    setenv("DQ_CPU", isas[isa], 1);
    assert_int_equal(dq_backend_open(&b, "cpu", threads, &err), DQ_OK);
    unsetenv("DQ_CPU");
    assert_ptr_equal(dq_cpu_of(b)->simd, table_of(isa));
    return b;
}

static inline void expect_sync(dq_backend *b)
{
    dq_err err = {0};
    if (dq_backend_sync(b, &err) != DQ_OK) fail_msg("%s", err.text);
}

/* A generator of our own, so that every run and machine sees the same numbers. */
static inline uint32_t next_bits(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* About normal, deviation 1. */
static inline float next_value(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) sum += (double)next_bits(state) / 2147483648.0 - 0.5;
    return (float)(sum * 1.4142135);
}

static inline float *new_floats(int64_t n)
{
    dq_err err = {0};
    float *p = dq_block_new((size_t)n, sizeof *p, &err);
    assert_non_null(p);
    return p;
}

static inline float *random_floats(int64_t n, uint64_t seed)
{
    float *p = new_floats(n);
    for (int64_t i = 0; i < n; i++) p[i] = next_value(&seed);
    return p;
}

static inline bool same_bits(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

#endif
