/* cuda_linear: products with weights of any storage. Floats go to cuBLAS in tiles of a fixed number of
 * rows; 8-bit activations times packed weights are linear_packed.cu.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_linear.h"

#include "kernels/cuda/device/linear.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "tensor/tensor.h"

#ifdef DQ_SIMT /* tests see several pieces of a small matrix */
enum { WIDE_BYTES = 1 << 16, WIDE_STEP = 32 };
#else
enum { WIDE_BYTES = 64 << 20, WIDE_STEP = 128 };
#endif

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 256 == 0;
}

/* Whether cuBLAS takes a weight where it lies. */
static bool is_whole(int kind, bool bf16)
{
    return kind == (bf16 ? DQ_STORED_BF16 : DQ_STORED_F32);
}

/* What a product with a stored weight runs. */
typedef enum way { WAY_NONE, WAY_PACKED, WAY_F32, WAY_WIDE_F32, WAY_BF16, WAY_WIDE_BF16 } way;

static way way_of(int kind, dq_num num)
{
    if (num == DQ_NUM_INT8) return kind == DQ_STORED_PACKED ? WAY_PACKED : WAY_NONE;
    if (num == DQ_NUM_BF16) return is_whole(kind, true) ? WAY_BF16 : WAY_WIDE_BF16;
    return is_whole(kind, false) ? WAY_F32 : WAY_WIDE_F32;
}

const char *dq_cuda_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num)
{
    static const char *const name[] = {NULL,           "gemm_packed",
                                       "cublasSgemm",  "widen + cublasSgemm",
                                       "cublasGemmEx", "widen + cublasGemmEx"};
    (void)b;
    return name[way_of(dq_cuda_stored_kind(w), num)];
}

int64_t dq_cuda_wide_count(const dq_cuda_weight *w)
{
    const int64_t rows = WIDE_BYTES / (4 * w->cols) / WIDE_STEP * WIDE_STEP;
    return rows > WIDE_STEP ? rows : WIDE_STEP;
}

const void *dq_cuda_wide_rows(dq_backend *b, const dq_cuda_weight *w, int64_t n0, int64_t n,
                              bool bf16)
{
    const int64_t size = bf16 ? 2 : 4;
    if (is_whole(w->kind, bf16)) return (const uint8_t *)w->data + n0 * w->cols * size;
    void *to = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, (size_t)(n * w->cols * size));
    if (to && !dq_cuda_ok(b, dq_linear_widen(to, bf16, w, n0, n, dq_cuda_stream(b)), "widen"))
        return NULL;
    return to;
}

const void *dq_cuda_tile_rows(dq_backend *b, dq_mat src, int64_t m0, bool bf16)
{
    enum { M = DQ_CUDA_TILE_ROWS };
    const int64_t left = src.rows - m0, rows = left < M ? left : M;
    const float *from = src.p + m0 * src.cols;
    cudaStream_t s = dq_cuda_stream(b);
    if (!bf16 && rows == M && is_aligned(from)) return from;
    void *to = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, (size_t)(M * src.cols * (bf16 ? 2 : 4)));
    if (!to) return NULL;
    const cudaError_t e = bf16 ? dq_linear_bf16(to, from, rows * src.cols, s)
                               : cudaMemcpyAsync(to, from, (size_t)(rows * src.cols) * sizeof *from,
                                                 cudaMemcpyDeviceToDevice, s);
    return dq_cuda_ok(b, e, "a tile of rows") ? to : NULL;
}

/* One tile of dst's rows, columns n0 .. n0 + n. */
static void multiply_tile(dq_backend *b, dq_mat dst, dq_mat src, const void *w, int64_t m0,
                          int64_t n0, int64_t n, bool bf16)
{
    enum { M = DQ_CUDA_TILE_ROWS };
    const int64_t left = dst.rows - m0, rows = left < M ? left : M;
    const size_t pitch = (size_t)dst.cols * sizeof *dst.p;
    float *to = dst.p + m0 * dst.cols;
    /* the same distance between rows in scratch: see DQ_CUDA_TILE_ROWS */
    const bool direct = rows == M && is_aligned(to);
    float *tile = direct ? to : dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, M * pitch);
    const void *from = dq_cuda_tile_rows(b, src, m0, bf16);
    if (!tile || !from) return;
    dq_cuda_gemm(b, bf16, tile + n0, dst.cols, from, w, n, src.cols);
    if (direct || b->err.code != DQ_OK) return;
    dq_cuda_ok(b,
               cudaMemcpy2DAsync(to + n0, pitch, tile + n0, pitch, (size_t)n * sizeof *to,
                                 (size_t)rows, cudaMemcpyDeviceToDevice, dq_cuda_stream(b)),
               "rows of a product");
}

static void multiply_floats(dq_backend *b, dq_mat dst, dq_mat src, const dq_cuda_weight *w,
                            bool bf16)
{
    const int64_t step = is_whole(w->kind, bf16) ? w->rows : dq_cuda_wide_count(w);
    for (int64_t n0 = 0; n0 < w->rows && b->err.code == DQ_OK; n0 += step) {
        const int64_t n = w->rows - n0 < step ? w->rows - n0 : step;
        const void *wide = dq_cuda_wide_rows(b, w, n0, n, bf16);
        for (int64_t m0 = 0; m0 < dst.rows && b->err.code == DQ_OK; m0 += DQ_CUDA_TILE_ROWS)
            multiply_tile(b, dst, src, wide, m0, n0, n, bf16);
    }
}

static void multiply_packed(dq_backend *b, dq_mat dst, dq_mat src, const dq_cuda_weight *w,
                            const float *bias)
{
    cudaStream_t s = dq_cuda_stream(b);
    const size_t codes = (size_t)(src.rows * dq_linear_code_pitch(w));
    const int64_t words = w->groups * dq_linear_scale_pitch(src.rows); /* scales; as many sums */
    const size_t scales = (size_t)(w->zero ? 2 * words : words) * sizeof(float);
    int8_t *code = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, codes);
    float *scale = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, scales);
    if (!code || !scale) return;
    int32_t *sum = w->zero ? (int32_t *)(void *)(scale + words) : NULL;
    if (dq_cuda_ok(b, dq_linear_round(code, scale, sum, src.p, src.rows, w, s),
                   "rounding to 8 bits"))
        dq_cuda_ok(b, dq_linear_packed(dst.p, code, scale, sum, src.rows, w, bias, s),
                   "gemm_packed");
}

void dq_cuda_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                    dq_num num)
{
    const dq_cuda_weight *stored = dq_cuda_weight_of(b, w);
    if (!stored) return;
    const char *name = w->name ? w->name : "weight";
    if (src.cols != w->cols || dst.cols != w->rows || dst.rows != src.rows)
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes", name);
    else if (way_of(stored->kind, num) == WAY_NONE && dq_weight_is_coded(w))
        dq_fail(&b->err, DQ_MISMATCH, "%s: has %s, of which there are no int8 products on a GPU",
                name, w->format->note);
    else if (way_of(stored->kind, num) == WAY_NONE)
        dq_fail(&b->err, DQ_MISMATCH, "%s: is not packed, so there is no int8 product with it",
                name);
    if (src.rows == 0 || b->err.code != DQ_OK) return;
    const float *added = NULL;
    if (bias) added = dq_cuda_upload(b, bias, (size_t)w->rows * sizeof *bias);
    if (b->err.code == DQ_OK && way_of(stored->kind, num) == WAY_PACKED) {
        multiply_packed(b, dst, src, stored, added);
    } else if (b->err.code == DQ_OK) {
        multiply_floats(b, dst, src, stored, num == DQ_NUM_BF16);
        if (added && b->err.code == DQ_OK)
            dq_cuda_ok(b, dq_linear_bias(dst.p, added, dst.rows, dst.cols, dq_cuda_stream(b)),
                       "bias");
    }
    dq_cuda_upload_end(b);
}
