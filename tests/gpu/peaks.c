/* peaks: see peaks.h. The best of several runs after each other, of random numbers: zeros draw less power
 * and would be faster than real data.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/peaks.h"

#include "base/os.h"
#include "kernels/cuda/host/cuda.h"

#include <string.h>

enum { RUNS = 10, FILL = 1 << 20 };

typedef struct blocks {
    dq_backend *b;
    void *x, *y, *z;
    size_t bytes;
    int n;
} blocks;

typedef bool work(const blocks *k);

static bool copy(const blocks *k)
{
    return dq_cuda_ok(
        k->b,
        cudaMemcpyAsync(k->y, k->x, k->bytes, cudaMemcpyDeviceToDevice, dq_cuda_of(k->b)->stream),
        "copy");
}

static bool bf16(const blocks *k)
{
    return dq_cuda_gemm_square(k->b, false, k->z, k->x, k->y, k->n);
}

static bool int8(const blocks *k)
{
    return dq_cuda_gemm_square(k->b, true, k->z, k->x, k->y, k->n);
}

/* The least seconds of one of RUNS runs after each other; 0 where it is refused. */
static double least(const blocks *k, work *f)
{
    double best = 0;
    for (int i = -2; i < RUNS; i++) {
        const double start = dq_os_seconds();
        for (int j = 0; j < 4; j++) {
            if (!f(k)) return 0;
        }
        k->b->ops->sync(k->b);
        const double s = (dq_os_seconds() - start) / 4;
        if (i >= 0 && (best == 0 || s < best)) best = s;
    }
    return best;
}

/* bf16 numbers of both signs around 1, which are good bytes too. Zeros would be faster than real data. */
static void fill(const blocks *k, void *p, uint16_t *host)
{
    uint32_t state = 9;
    for (int i = 0; i < FILL / 2; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (uint16_t)(0x3f00 | (state >> 16 & 0x80ff));
    }
    for (size_t at = 0; at < k->bytes; at += FILL) {
        const size_t left = k->bytes - at;
        k->b->ops->put(k->b, (char *)p + at, host, left < FILL ? left : FILL);
    }
}

dq_status dq_peaks_measure(dq_peaks *out, dq_backend *b, int n, dq_err *err)
{
    blocks k = {.b = b, .bytes = 2 * (size_t)n * (size_t)n, .n = n};
    uint16_t *host = dq_block_new(FILL, 1, err);
    memset(out, 0, sizeof *out);
    k.x = b->ops->alloc(b, k.bytes);
    k.y = b->ops->alloc(b, k.bytes);
    k.z = b->ops->alloc(b, 2 * k.bytes);
    if (host && k.x && k.y && k.z) {
        const double flops = 2.0 * n * n * n;
        fill(&k, k.x, host);
        fill(&k, k.y, host);
        const double s[] = {least(&k, copy), least(&k, bf16), least(&k, int8)};
        if (s[0] > 0) out->copy = 2 * (double)k.bytes / s[0];
        if (s[1] > 0) out->bf16 = flops / s[1];
        if (s[2] > 0) out->int8 = flops / s[2];
    }
    b->ops->free(b, k.x);
    b->ops->free(b, k.y);
    b->ops->free(b, k.z);
    dq_block_free(host);
    return dq_backend_sync(b, err);
}
