/* simt_blas: see simt_blas.h. cuBLAS as loops over the operands: sums are in ascending k, in f32.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_blas.h"

#include "kernels/cuda/device/ptx.cuh"

enum { OP_N = 0, OP_T = 1, R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, OK = 0, INVALID = 7 };

static int there = 1, calls, last_m, last_n, last_k;

DQ_DEVICE float value(const float *p, int64_t i)
{
    return p[i];
}
DQ_DEVICE float value(const uint16_t *p, int64_t i)
{
    return dq_bf16_f32(p[i]);
}

/* c[n][ldc] = b[n][ldb] a[m][lda]^T in terms of rows; one block, so that it costs little. */
template <class T>
DQ_KERNEL(32)
product(float *c, const T *a, const T *b, int m, int n, int k, int lda, int ldb, int ldc)
{
    for (int64_t i = dq_thread(); i < (int64_t)m * n; i += 32) {
        const T *x = a + i % m * lda, *y = b + i / m * ldb;
        float sum = 0;
        for (int q = 0; q < k; q++) sum += value(x, q) * value(y, q);
        c[i / m * ldc + i % m] = sum;
    }
}

static cudaStream_t stream;

static int create(void **handle)
{
    *handle = &stream;
    return OK;
}

static int destroy(void *)
{
    return OK;
}

static int set_stream(void *, cudaStream_t s)
{
    stream = s;
    return OK;
}

static int set_math(void *, int mode)
{
    return mode == 16 ? OK : INVALID; /* neither TF32 nor sums in bf16 */
}

static bool fits(int op_a, int op_b, int m, int n, int k, int lda, int ldb, int ldc)
{
    calls++;
    last_m = m;
    last_n = n;
    last_k = k;
    return op_a == OP_T && op_b == OP_N && lda >= k && ldb >= k && ldc >= m;
}

static int sgemm(void *, int op_a, int op_b, int m, int n, int k, const float *alpha,
                 const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                 int ldc)
{
    if (!fits(op_a, op_b, m, n, k, lda, ldb, ldc) || *alpha != 1 || *beta != 0) return INVALID;
    DQ_LAUNCH(product<float>, dim3(1), 32, 0, stream, c, a, b, m, n, k, lda, ldb, ldc);
    return OK;
}

static int gemm_ex(void *, int op_a, int op_b, int m, int n, int k, const void *alpha,
                   const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                   const void *beta, void *c, int c_type, int ldc, int compute, int)
{
    if (!fits(op_a, op_b, m, n, k, lda, ldb, ldc) || *(const float *)alpha != 1 ||
        *(const float *)beta != 0 || a_type != R_16BF || b_type != R_16BF || c_type != R_32F ||
        compute != COMPUTE_32F)
        return INVALID;
    DQ_LAUNCH(product<uint16_t>, dim3(1), 32, 0, stream, (float *)c, (const uint16_t *)a,
              (const uint16_t *)b, m, n, k, lda, ldb, ldc);
    return OK;
}

void *dq_simt_blas_library(void)
{
    return there ? &there : NULL;
}

dq_simt_function *dq_simt_blas_function(const char *name)
{
    static const struct {
        const char *name;
        dq_simt_function *function;
    } all[] = {{"cublasCreate_v2", (dq_simt_function *)create},
               {"cublasDestroy_v2", (dq_simt_function *)destroy},
               {"cublasSetStream_v2", (dq_simt_function *)set_stream},
               {"cublasSetMathMode", (dq_simt_function *)set_math},
               {"cublasSgemm_v2", (dq_simt_function *)sgemm},
               {"cublasGemmEx", (dq_simt_function *)gemm_ex}};
    if (there == 2 && strcmp(name, "cublasGemmEx") == 0) return NULL;
    for (const auto &row : all)
        if (strcmp(row.name, name) == 0) return row.function;
    return NULL;
}

void dq_simt_set_blas(int is_there)
{
    there = is_there;
}

int dq_simt_blas_calls(int *m, int *n, int *k)
{
    *m = last_m;
    *n = last_n;
    *k = last_k;
    return calls;
}
