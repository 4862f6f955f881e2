/* cuda_rig: the CPU's backend and the CUDA backend side by side, and data for both. The CUDA backend runs on
 * the simulation, or, without DQ_SIMT, on a GPU (tests/gpu builds the same tests so).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_RIG_H
#define DQ_CUDA_RIG_H

#include "tests/rigs/suite.h"

#include <stdint.h>

#include "engine/backend.h"
#include "tensor/tensor.h"
#include "tests/kernels/cuda/simulated.h"
#ifdef DQ_SIMT
#include "tests/simt/simt_blas.h"
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct rig {
    dq_backend *cpu, *cuda;
} rig;

/* DQ_TEST_DEVICE where it names a GPU. */
static inline const char *rig_name(void)
{
    const char *name = getenv("DQ_TEST_DEVICE");
    return name && strncmp(name, "cuda", 4) == 0 ? name : "cuda";
}

/* Whether there is a GPU; without one a test of the simulation would be wrong, one for a GPU is skipped. */
static inline bool rig_can_run(void)
{
#ifdef DQ_SIMT
    return true;
#else
    dq_err err = {0};
    dq_backend *b;
    const bool there = dq_backend_open(&b, rig_name(), 1, &err) == DQ_OK;
    if (!there) print_error("skipped: %s\n", err.text);
    dq_backend_close(b);
    return there;
#endif
}

static inline dq_backend *rig_device(const char *name)
{
    dq_err err = {0};
    dq_backend *b;
    if (dq_backend_open(&b, name, 1, &err) != DQ_OK) fail_msg("%s", err.text);
    return b;
}

static inline rig rig_open(void)
{
    return (rig){rig_device("cpu"), rig_device(rig_name())};
}

static inline void rig_sync(dq_backend *b)
{
    dq_err err = {0};
    if (dq_backend_sync(b, &err) != DQ_OK) fail_msg("%s", err.text);
}

static inline void rig_close(rig *r)
{
    rig_sync(r->cuda);
    dq_backend_close(r->cpu);
    dq_backend_close(r->cuda);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* ---------------------------------------------------------------------------------------------- data */
static inline void *rig_block(size_t n, size_t size)
{
    dq_err err = {0};
    void *p = dq_block_new(n ? n : 1, size, &err);
    assert_non_null(p);
    return p;
}

/* Nearly normal. */
static inline float rig_value(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*state >> 33) / 2147483648.0 - 0.5;
    }
    return (float)(sum * 1.4142135);
}

static inline float *rig_floats(int64_t n, uint64_t seed)
{
    float *x = rig_block((size_t)n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = rig_value(&seed);
    return x;
}

static inline void rig_drop(const void *p)
{
    union {
        const void *in;
        void *out;
    } u = {.in = p};
    dq_block_free(u.out);
}

static inline dq_weight rig_dense(int64_t rows, int64_t cols, dq_dtype type, uint64_t seed)
{
    float *x = rig_floats(rows * cols, seed);
    dq_weight w = {
        .name = "dense", .rows = rows, .cols = cols, .bits = 16, .dtype = type, .data = x};
    if (type == DQ_F32) return w;
    uint16_t *h = rig_block((size_t)(rows * cols), sizeof *h);
    for (int64_t i = 0; i < rows * cols; i++)
        h[i] = type == DQ_F16 ? dq_f16_from_f32(x[i]) : dq_bf16_from_f32(x[i]);
    w.data = h;
    rig_drop(x);
    return w;
}

/* group 0: one scale for the whole tensor. scale_dtype F16 or F32. */
static inline dq_weight rig_packed(int64_t rows, int64_t cols, int bits, int64_t group,
                                   dq_dtype type, uint64_t seed)
{
    const bool tensor = group == 0;
    if (group == 0 || group > cols) group = cols;
    const int64_t groups = dq_quant_groups(cols, group),
                  bytes = (int64_t)dq_quant_row_bytes(cols, bits);
    float *x = rig_floats(rows * cols, seed);
    const float all = dq_quant_group_scale(x, rows * cols, bits, DQ_ABSMAX, type);
    uint8_t *data = rig_block((size_t)(rows * bytes), 1);
    float *scale = rig_block((size_t)(rows * groups), sizeof *scale);
    int8_t *q = rig_block((size_t)cols, 1);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t g = 0; g < groups; g++) {
            const int64_t at = g * group, n = cols - at < group ? cols - at : group;
            const float *from = x + r * cols + at;
            const float own = dq_quant_group_scale(from, n, bits, DQ_ABSMAX, type);
            scale[tensor ? 0 : r * groups + g] = tensor ? all : own;
            dq_quant_encode(q + at, from, n, bits, tensor ? all : own, DQ_ABSMAX);
        }
        dq_quant_pack_row(data + r * bytes, q, cols, bits);
    }
    for (int64_t i = 0; type == DQ_F16 && i < rows * groups; i++) { /* in place, from the front */
        const uint16_t h = dq_f16_from_f32(scale[i]);
        memcpy((uint8_t *)scale + 2 * i, &h, sizeof h);
    }
    rig_drop(q);
    rig_drop(x);
    return (dq_weight){.name = "packed",
                       .rows = rows,
                       .cols = cols,
                       .format = &dq_format_int,
                       .bits = bits,
                       .data = data,
                       .group_size = group,
                       .scale_rows = tensor ? 1 : rows,
                       .scale_dtype = type,
                       .scale = scale};
}

/* The same codes and scales with a zero point per group, any number of `bits` bits. */
static inline dq_weight rig_zeroed(int64_t rows, int64_t cols, int bits, int64_t group,
                                   dq_dtype type, uint64_t seed)
{
    dq_weight w = rig_packed(rows, cols, bits, group, type, seed);
    w.format = &dq_format_int_zero;
    const dq_dataset p = dq_weight_dataset(&w, 2);
    uint8_t *zero = rig_block(1, dq_dataset_bytes(&p) + 1);
    const dq_quant_spec spec = {.bits = bits, .scale_dtype = DQ_F32};
    float *scale = rig_block((size_t)p.cols, sizeof *scale);
    for (int64_t r = 0; r < p.rows; r++) {
        uint8_t *dataset[DQ_MAX_DATASETS] = {NULL, (uint8_t *)scale, zero + r * p.shape[1]};
        for (int64_t g = 0; g < p.cols; g++) {
            const int z = (int)((seed + (uint64_t)(5 * r + 3 * g)) % (1u << bits));
            w.format->put(dataset, g, (dq_grid){.scale = 1, .zero = z}, &spec);
        }
    }
    rig_drop(scale);
    w.zero = zero;
    return w;
}

static inline void rig_drop_weight(dq_weight *w)
{
    rig_drop(w->data);
    rig_drop(w->scale);
    if (w->zero) rig_drop(w->zero);
}

/* A matrix on a backend with the values of x (NULL: none). */
static inline dq_mat rig_put(dq_backend *b, const float *x, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    m.p = b->ops->alloc(b, (size_t)(rows * cols) * sizeof *x);
    assert_non_null(m.p);
    if (x) b->ops->put(b, m.p, x, (size_t)(rows * cols) * sizeof *x);
    return m;
}

/* Its values in a block; the matrix is freed. */
static inline float *rig_take(dq_backend *b, dq_mat m)
{
    float *x = rig_block((size_t)(m.rows * m.cols), sizeof *x);
    b->ops->get(b, x, m.p, (size_t)(m.rows * m.cols) * sizeof *x);
    b->ops->free(b, m.p);
    rig_sync(b);
    return x;
}

/* -------------------------------------------------------------------------------------------- checks */
/* |got - want| <= relative * |want| + absolute; 0 and 0: the same bits, but for NaN. */
static inline void rig_compare(const float *want, const float *got, int64_t n, double relative,
                               double absolute)
{
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)want[i], y = (double)got[i];
        const bool same = memcmp(&want[i], &got[i], sizeof *got) == 0 || (isnan(x) && isnan(y));
        if (same || fabs(x - y) <= relative * fabs(x) + absolute) {
            if (same || relative > 0 || absolute > 0) continue;
        }
        fail_msg("element %lld of %lld: %.9g, expected %.9g", (long long)i, (long long)n, y, x);
    }
}

/* Takes both matrices. */
static inline void rig_compare_mats(const rig *r, dq_mat cpu, dq_mat cuda, double relative,
                                    double absolute)
{
    float *want = rig_take(r->cpu, cpu), *got = rig_take(r->cuda, cuda);
    rig_compare(want, got, cpu.rows * cpu.cols, relative, absolute);
    rig_drop(want);
    rig_drop(got);
}

#endif
