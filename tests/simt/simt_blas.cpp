/* simt_blas: see simt_blas.h. cuBLAS as loops over the operands: sums are in ascending k, in f32, or in
 * descending k where rows are to differ.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_blas.h"

#include "kernels/cuda/device/ptx.cuh"

enum {
    OP_N = 0,
    OP_T = 1,
    R_32F = 0,
    R_16BF = 14,
    COMPUTE_32F = 68,
    OK = 0,
    INVALID = 7,
    INTERNAL_ERROR = 14,
    NOT_SUPPORTED = 15,
    EVEN_ROWS = 32, /* of uneven products: those after them are summed the other way */
    FEW_ROWS = 7    /* all that DQ_SIMT_LT_FEW takes */
};

static int there = DQ_SIMT_BLAS_WHOLE, lt_mode, calls, last_m, last_n, last_k;

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
product(float *c, const T *a, const T *b, int m, int n, int k, int lda, int ldb, int ldc, int even)
{
    for (int64_t i = dq_thread(); i < (int64_t)m * n; i += 32) {
        const T *x = a + i % m * lda, *y = b + i / m * ldb;
        const bool up = i / m < even;
        float sum = 0;
        for (int q = 0; q < k; q++) {
            const int at = up ? q : k - 1 - q;
            sum += value(x, at) * value(y, at);
        }
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
    DQ_LAUNCH(product<float>, dim3(1), 32, 0, stream, c, a, b, m, n, k, lda, ldb, ldc, n);
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
              (const uint16_t *)b, m, n, k, lda, ldb, ldc, n);
    return OK;
}

/* ---- cuBLASLt */
struct desc {
    int compute, scale, op_a;
};

struct layout {
    int type;
    uint64_t rows, cols;
    int64_t ld;
};

struct preference {
    uint32_t reductions, alignment[4]; /* of A, B, C, D */
};

/* What one was chosen for, as each product must be. */
struct algorithm {
    uint64_t n, k;
    int64_t ldd;
    uint32_t alignment[4];
    int type, splits;
    uint64_t unused[2];
};
static_assert(sizeof(algorithm) == 64, "as cublasLtMatmulAlgo_t");

struct result {
    algorithm chosen;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};

static int desc_new(void **out, int compute, int scale)
{
    *out = new desc{compute, scale, OP_N};
    return OK;
}

static int layout_new(void **out, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    *out = new layout{type, rows, cols, ld};
    return OK;
}

static int preference_new(void **out)
{
    *out = new preference{7, {256, 256, 256, 256}}; /* as NVIDIA's */
    return OK;
}

static int desc_set(void *of, int attribute, const void *value, size_t bytes)
{
    if (attribute != 3 || bytes != 4) return INVALID; /* CUBLASLT_MATMUL_DESC_TRANSA */
    ((desc *)of)->op_a = *(const int *)value;
    return OK;
}

static int layout_set(void *of, int attribute, const void *value, size_t bytes)
{
    if (attribute != 3 || bytes != 8) return INVALID; /* CUBLASLT_MATRIX_LAYOUT_COLS */
    ((layout *)of)->cols = *(const uint64_t *)value;
    return OK;
}

static int preference_set(void *of, int attribute, const void *value, size_t bytes)
{
    preference *p = (preference *)of;
    /* CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, MIN_ALIGNMENT_A_BYTES .. D */
    if (bytes != 4 || (attribute != 3 && (attribute < 5 || attribute > 8))) return INVALID;
    (attribute == 3 ? p->reductions : p->alignment[attribute - 5]) = *(const uint32_t *)value;
    return OK;
}

template <class T> static int drop(void *of)
{
    delete (T *)of;
    return OK;
}

static bool fits(const void *op, const layout *a, const layout *b, const layout *c, const layout *d)
{
    const desc *o = (const desc *)op;
    return o->compute == COMPUTE_32F && o->scale == R_32F && o->op_a == OP_T &&
           a->type == b->type && (a->type == R_32F || a->type == R_16BF) && c == d &&
           d->type == R_32F && a->rows == b->rows && a->cols == d->rows && b->cols == d->cols &&
           a->ld >= (int64_t)a->rows && b->ld >= (int64_t)b->rows && d->ld >= (int64_t)d->rows;
}

static int heuristic(void *, void *op, void *a, void *b, void *c, void *d, void *with, int n,
                     result *out, int *n_out)
{
    const layout *w = (layout *)a, *to = (layout *)d;
    const preference *p = (preference *)with;
    *n_out = 0;
    if (n < 1 || !fits(op, w, (layout *)b, (layout *)c, to)) return INVALID;
    if (lt_mode == DQ_SIMT_LT_NONE) return NOT_SUPPORTED;
    *out = {};
    out->chosen = {w->cols, w->rows, to->ld, {}, w->type, p->reductions != 0, {}};
    memcpy(out->chosen.alignment, p->alignment, sizeof p->alignment);
    *n_out = 1;
    return OK;
}

static int matmul(void *, void *op, const void *alpha, const void *a, void *a_layout, const void *b,
                  void *b_layout, const void *beta, const void *c, void *c_layout, void *d,
                  void *d_layout, const algorithm *with, void *, size_t, cudaStream_t s)
{
    const layout *w = (layout *)a_layout, *x = (layout *)b_layout, *y = (layout *)d_layout;
    const void *const at[] = {a, b, c, d};
    if (!fits(op, w, x, (layout *)c_layout, y) || *(const float *)alpha != 1 ||
        *(const float *)beta != 0 || c != d || with->n != w->cols || with->k != w->rows ||
        with->ldd != y->ld || with->type != w->type)
        return INVALID;
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % with->alignment[i]) return INVALID;
    if (lt_mode == DQ_SIMT_LT_FEW && x->cols > FEW_ROWS) return NOT_SUPPORTED;
    if (lt_mode == DQ_SIMT_LT_FAILS && x->cols > 1) return INTERNAL_ERROR;
    if (lt_mode == DQ_SIMT_LT_ONE && x->cols == 1) return NOT_SUPPORTED;
    calls++;
    last_m = (int)y->rows, last_n = (int)y->cols, last_k = (int)w->rows;
    const int even = lt_mode == DQ_SIMT_LT_UNEVEN || with->splits ? (int)EVEN_ROWS : last_n;
    if (w->type == R_32F)
        DQ_LAUNCH(product<float>, dim3(1), 32, 0, s, (float *)d, (const float *)a, (const float *)b,
                  last_m, last_n, last_k, (int)w->ld, (int)x->ld, (int)y->ld, even);
    else
        DQ_LAUNCH(product<uint16_t>, dim3(1), 32, 0, s, (float *)d, (const uint16_t *)a,
                  (const uint16_t *)b, last_m, last_n, last_k, (int)w->ld, (int)x->ld, (int)y->ld,
                  even);
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
               {"cublasGemmEx", (dq_simt_function *)gemm_ex},
               {"cublasLtMatmulDescCreate", (dq_simt_function *)desc_new},
               {"cublasLtMatrixLayoutCreate", (dq_simt_function *)layout_new},
               {"cublasLtMatmulPreferenceCreate", (dq_simt_function *)preference_new},
               {"cublasLtMatmulDescSetAttribute", (dq_simt_function *)desc_set},
               {"cublasLtMatrixLayoutSetAttribute", (dq_simt_function *)layout_set},
               {"cublasLtMatmulPreferenceSetAttribute", (dq_simt_function *)preference_set},
               {"cublasLtMatmulDescDestroy", (dq_simt_function *)drop<desc>},
               {"cublasLtMatrixLayoutDestroy", (dq_simt_function *)drop<layout>},
               {"cublasLtMatmulPreferenceDestroy", (dq_simt_function *)drop<preference>},
               {"cublasLtMatmulAlgoGetHeuristic", (dq_simt_function *)heuristic},
               {"cublasLtMatmul", (dq_simt_function *)matmul}};
    if (there == DQ_SIMT_BLAS_OLD && strcmp(name, "cublasGemmEx") == 0) return NULL;
    if (there == DQ_SIMT_BLAS_WITHOUT_LT && strncmp(name, "cublasLt", 8) == 0) return NULL;
    if (there == DQ_SIMT_BLAS_OLD_LT && strcmp(name, "cublasLtMatmulAlgoGetHeuristic") == 0)
        return NULL;
    for (const auto &row : all)
        if (strcmp(row.name, name) == 0) return row.function;
    return NULL;
}

void dq_simt_set_blas(int is_there)
{
    there = is_there;
}

void dq_simt_set_lt(int mode)
{
    lt_mode = mode;
}

int dq_simt_blas_calls(int *m, int *n, int *k)
{
    *m = last_m;
    *n = last_n;
    *k = last_k;
    return calls;
}
