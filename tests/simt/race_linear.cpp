/* race_linear: 8-bit rounding and the packed product with one OS thread per CUDA thread, for
 * ThreadSanitizer; both tiles, several stages, groups that end inside a stage.
 *   race_linear
 * SPDX-License-Identifier: MIT */
#include "linear.h"

#include <stdio.h>
#include <stdlib.h>

static void *device(size_t bytes, unsigned seed)
{
    unsigned char *host = (unsigned char *)malloc(bytes);
    void *p = NULL;
    for (size_t i = 0; i < bytes; i++)
        host[i] = (unsigned char)((seed = seed * 1103515245u + 12345u) >> 18);
    if (cudaMalloc(&p, bytes) || cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice)) exit(1);
    free(host);
    return p;
}

static int run(int64_t rows, int64_t out, int64_t cols, int64_t group)
{
    dq_cuda_weight w = {};
    w.kind = DQ_STORED_PACKED;
    w.bits = 4;
    w.rows = out;
    w.cols = cols;
    w.group = w.group_codes = group;
    w.groups = cols / group;
    w.pitch = cols / 2;
    w.scale_pitch = (out + 7) / 8 * 8;
    w.scale_f16 = 1;
    w.data = device((size_t)(out * w.pitch), 1);
    w.scale = device((size_t)(w.groups * w.scale_pitch) * 2, 2);
    float *x = (float *)device((size_t)(rows * cols) * 4, 3);
    float *y = (float *)device((size_t)(rows * out) * 4, 4);
    int8_t *code = (int8_t *)device((size_t)(rows * dq_linear_code_pitch(&w)), 5);
    float *scale = (float *)device((size_t)(w.groups * dq_linear_scale_pitch(rows)) * 4, 6);
    const bool right = dq_linear_round(code, scale, x, rows, &w, NULL) == cudaSuccess &&
                       dq_linear_packed(y, code, scale, rows, &w, NULL, NULL) == cudaSuccess &&
                       cudaDeviceSynchronize() == cudaSuccess;
    printf("%lld rows: %s\n", (long long)rows, right ? "done" : "failed");
    return right ? 0 : 1;
}

int main(void)
{
    return run(5, 40, 768, 64) + run(17, 64, 384, 96);
}
