/* cuda_blas: cuBLAS, opened when a product of floats first needs it: half a gigabyte that nobody should
 * load who does not use it, and dq must start where it is missing.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_blas.h"

#include "base/os.h"
#include "kernels/cuda/host/cuda_blas_find.h"
#include "kernels/cuda/host/cuda_open.h"
#include "kernels/cuda/host/trace.h"

#ifdef DQ_SIMT
#include "tests/simt/simt_blas.h"
#endif

/* The part of the cuBLAS interface that is used; its numbers do not change between versions. */
enum {
    OP_N = 0,
    OP_T = 1,
    R_32F = 0,
    R_8I = 3,
    R_32I = 10,
    R_16BF = 14,
    COMPUTE_32F = 68,
    COMPUTE_32I = 72,
    GEMM_DEFAULT = -1
};
/* Products in the type of their operands (no TF32), and no sums in bf16. */
enum { DEFAULT_MATH = 0, NO_REDUCED_SUMS = 16 };
enum { STATUS_OK = 0, STATUS_NO_MEMORY = 3 };

typedef int property_fn(int which, int *value); /* 0, 1, 2: major, minor, patch */
typedef int create_fn(void **handle);
typedef int destroy_fn(void *handle);
typedef int set_stream_fn(void *handle, cudaStream_t s);
typedef int set_math_fn(void *handle, int mode);
typedef int sgemm_fn(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                     const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                     int ldc);
typedef int gemm_ex_fn(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                       const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);

struct dq_cuda_blas {
    void *handle;
    create_fn *create;
    destroy_fn *destroy;
    set_stream_fn *set_stream;
    set_math_fn *set_math;
    sgemm_fn *sgemm;
    gemm_ex_fn *gemm_ex;
};

#ifdef DQ_SIMT
static dq_status open_library(dq_cuda_blas_file *f, dq_arena *a, dq_err *err)
{
    (void)a;
    *f = (dq_cuda_blas_file){.library = dq_simt_blas_library(), .path = "simulated"};
    return f->library ? DQ_OK : dq_cuda_blas_missing("", err);
}

static dq_os_function *function(void *library, const char *name)
{
    (void)library;
    return dq_simt_blas_function(name);
}
#else
static dq_status open_library(dq_cuda_blas_file *f, dq_arena *a, dq_err *err)
{
    return dq_cuda_blas_find(f, "", a, err);
}

static dq_os_function *function(void *library, const char *name)
{
    return dq_os_library_function(library, name);
}
#endif

static dq_status bind(dq_cuda_blas *k, const dq_cuda_blas_file *f, dq_err *err)
{
    k->create = (create_fn *)function(f->library, "cublasCreate_v2");
    k->destroy = (destroy_fn *)function(f->library, "cublasDestroy_v2");
    k->set_stream = (set_stream_fn *)function(f->library, "cublasSetStream_v2");
    k->set_math = (set_math_fn *)function(f->library, "cublasSetMathMode");
    k->sgemm = (sgemm_fn *)function(f->library, "cublasSgemm_v2");
    k->gemm_ex = (gemm_ex_fn *)function(f->library, "cublasGemmEx");
    if (!k->create || !k->destroy || !k->set_stream || !k->set_math || !k->sgemm || !k->gemm_ex)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
            "%.400s lacks functions (expected cuBLAS 12 or 13). Install NVIDIA's package "
            "libcublas-13-0 or pip's nvidia-cublas, or name another file with "
            "DQ_CUBLAS=PATH",
            f->path);
    return DQ_OK;
}

/* "13.0.2", NULL where the library does not say. Needs no device. */
static const char *version(void *library, dq_arena *a, dq_err *err)
{
    property_fn *property = (property_fn *)function(library, "cublasGetProperty");
    int part[3];
    for (int i = 0; i < 3; i++)
        if (!property || property(i, &part[i]) != STATUS_OK) return NULL;
    return dq_textf(a, err, "%d.%d.%d", part[0], part[1], part[2]);
}

dq_status dq_cuda_blas_about(const char **path, const char **number, dq_arena *a, dq_err *err)
{
    dq_cuda_blas unused;
    dq_cuda_blas_file f;
    *path = *number = NULL;
    DQ_TRY(open_library(&f, a, err));
    DQ_TRY(bind(&unused, &f, err));
    *number = version(f.library, a, err);
    *path = f.path;
    return err->code;
}

static dq_status load(dq_cuda_blas *k, dq_err *err)
{
    dq_cuda_blas_file f;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (open_library(&f, a, err) == DQ_OK) bind(k, &f, err);
    dq_arena_free(a);
    return err->code;
}

static bool check(dq_backend *b, int status, const char *what)
{
    if (status == STATUS_OK) return b->err.code == DQ_OK;
    if (status == STATUS_NO_MEMORY)
        dq_cuda_no_memory(b, 0, what);
    else
        dq_fail(&b->err, DQ_BUG, "cuda:%d: %s failed: cuBLAS status %d", dq_cuda_of(b)->device,
                what, status);
    return false;
}

static dq_cuda_blas *blas_of(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    if (c->blas || b->err.code != DQ_OK) return c->blas;
    dq_cuda_blas *k = dq_block_new(1, sizeof *k, &b->err);
    if (!k) return NULL;
    if (load(k, &b->err) == DQ_OK && check(b, k->create(&k->handle), "cublasCreate") &&
        check(b, k->set_stream(k->handle, c->stream), "cublasSetStream") &&
        check(b, k->set_math(k->handle, DEFAULT_MATH | NO_REDUCED_SUMS), "cublasSetMathMode"))
        c->blas = k;
    else
        dq_cuda_blas_free(k);
    return c->blas;
}

void dq_cuda_blas_free(dq_cuda_blas *k)
{
    if (!k) return;
    if (k->handle) k->destroy(k->handle);
    dq_block_free(k);
}

void dq_cuda_gemm(dq_backend *b, bool bf16, float *dst, int64_t ldd, const void *src, const void *w,
                  int64_t n, int64_t k)
{
    enum { M = DQ_CUDA_TILE_ROWS };
    const dq_cuda_blas *blas = blas_of(b);
    const float one = 1, zero = 0;
    if (!blas || n == 0) return;
    if (ldd > INT32_MAX || n > INT32_MAX || k > INT32_MAX) {
        dq_fail(&b->err, DQ_MISMATCH, "a product of %lld columns is too large for cuBLAS",
                (long long)ldd);
        return;
    }
    dq_trace_begin(bf16 ? "cublasGemmEx" : "cublasSgemm", dq_cuda_stream(b));
    /* cuBLAS counts columns first: dst^T[n][M] = W[n][k] src^T[k][M] */
    if (bf16)
        check(b,
              blas->gemm_ex(blas->handle, OP_T, OP_N, (int)n, M, (int)k, &one, w, R_16BF, (int)k,
                            src, R_16BF, (int)k, &zero, dst, R_32F, (int)ldd, COMPUTE_32F,
                            GEMM_DEFAULT),
              "cublasGemmEx");
    else
        check(b,
              blas->sgemm(blas->handle, OP_T, OP_N, (int)n, M, (int)k, &one, w, (int)k, src, (int)k,
                          &zero, dst, (int)ldd),
              "cublasSgemm");
    dq_trace_end(dq_cuda_stream(b));
}

bool dq_cuda_gemm_square(dq_backend *b, bool int8, void *c, const void *x, const void *y, int n)
{
    const dq_cuda_blas *blas = blas_of(b);
    const float one = 1, zero = 0;
    const int32_t one_i = 1, zero_i = 0;
    if (!blas) return false;
    const int in = int8 ? R_8I : R_16BF, out = int8 ? R_32I : R_32F;
    const int compute = int8 ? COMPUTE_32I : COMPUTE_32F;
    const void *alpha = int8 ? (const void *)&one_i : &one;
    const void *beta = int8 ? (const void *)&zero_i : &zero;
    return blas->gemm_ex(blas->handle, OP_T, OP_N, n, n, n, alpha, y, in, n, x, in, n, beta, c, out,
                         n, compute, GEMM_DEFAULT) == STATUS_OK;
}
