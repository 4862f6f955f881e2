/* race: runs a sample kernel under ThreadSanitizer, which knows every CUDA thread.
 *   race_sample clean|racy|product|stuck|attend
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/ptx.cuh"
#include "tests/simt/simt_attend.h"
#include "tests/simt/simt_sample.h"

#include <stdio.h>
#include <string.h>

static int run_sum(bool racy)
{
    uint32_t x[256], total = 0, *dx, *dt;
    for (uint32_t i = 0; i < 256; i++) x[i] = i;
    if (cudaMalloc((void **)&dx, sizeof x) || cudaMalloc((void **)&dt, sizeof total)) return 1;
    cudaMemcpy(dx, x, sizeof x, cudaMemcpyHostToDevice);
    cudaMemcpy(dt, &total, sizeof total, cudaMemcpyHostToDevice);
    (racy ? dq_sample_sum_racy : dq_sample_sum)(dt, dx, 256, NULL);
    cudaMemcpy(&total, dt, sizeof total, cudaMemcpyDeviceToHost);
    cudaFree(dx);
    cudaFree(dt);
    printf("sum %u\n", total);
    return racy || total == 32640 ? 0 : 1;
}

DQ_KERNEL(64) stuck(void)
{
    if (dq_thread() != 40) dq_sync();
    if (dq_thread() == 40) dq_warp_sync();
}

/* A deadlock is reported here too. */
static int run_stuck(void)
{
    DQ_LAUNCH(stuck, 1, 64, 0, NULL);
    return cudaDeviceSynchronize() == cudaErrorLaunchFailure ? 0 : 1;
}

static int run_product(void)
{
    enum { N = 32, K = 192 };
    static uint8_t a[N * K];
    static int8_t b[N * K];
    static int32_t c[N * N];
    uint8_t *da;
    int8_t *db;
    int32_t *dc, wrong = 0;
    for (int i = 0; i < N * K; i++) {
        a[i] = (uint8_t)(i * 37);
        b[i] = (int8_t)(i * 91);
    }
    if (cudaMalloc((void **)&da, sizeof a) || cudaMalloc((void **)&db, sizeof b) ||
        cudaMalloc((void **)&dc, sizeof c))
        return 1;
    cudaMemcpy(da, a, sizeof a, cudaMemcpyHostToDevice);
    cudaMemcpy(db, b, sizeof b, cudaMemcpyHostToDevice);
    dq_sample_product(dc, da, db, N, N, K, NULL);
    cudaMemcpy(c, dc, sizeof c, cudaMemcpyDeviceToHost);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            int32_t sum = 0;
            for (int k = 0; k < K; k++) sum += a[i * K + k] * b[j * K + k];
            wrong += c[i * N + j] != sum;
        }
    cudaFree(da);
    cudaFree(db);
    cudaFree(dc);
    printf("product, %d wrong\n", wrong);
    return wrong != 0;
}

/* One page for one cluster; numbers are the business of test_simt_attend. */
static int run_attend(void)
{
    const size_t rows = 2 * DQ_ATTEND_ROWS, pages = 4, keys = pages * DQ_ATTEND_KEYS;
    uint16_t *q, *k, *v;
    float *out;
    dq_simt_set_capability(90);
    if (cudaMalloc((void **)&q, rows * 2 * DQ_ATTEND_HEAD * 2) ||
        cudaMalloc((void **)&k, keys * 2 * DQ_ATTEND_HEAD * 2) ||
        cudaMalloc((void **)&v, keys * DQ_ATTEND_VALUE * 2) ||
        cudaMalloc((void **)&out, rows * DQ_ATTEND_VALUE * sizeof *out))
        return 1;
    cudaMemset(q, 0, rows * 2 * DQ_ATTEND_HEAD * 2);
    cudaMemset(k, 0, keys * 2 * DQ_ATTEND_HEAD * 2);
    cudaMemset(v, 0, keys * DQ_ATTEND_VALUE * 2);
    if (dq_attend_sample(out, q, k, v, (int)pages, 1, 1, 0.5f, NULL)) return 1;
    const cudaError_t e = cudaDeviceSynchronize();
    cudaFree(q);
    cudaFree(k);
    cudaFree(v);
    cudaFree(out);
    return e != cudaSuccess;
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    if (!strcmp(argv[1], "clean")) return run_sum(false);
    if (!strcmp(argv[1], "racy")) return run_sum(true);
    if (!strcmp(argv[1], "product")) return run_product();
    if (!strcmp(argv[1], "stuck")) return run_stuck();
    if (!strcmp(argv[1], "attend")) return run_attend();
    return 2;
}
