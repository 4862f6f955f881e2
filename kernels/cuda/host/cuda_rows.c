/* cuda_rows: operations on rows of activations. The kernels are in rows.cu.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/rows.h"
#include "kernels/cuda/host/cuda_ops.h"

#include <math.h>
#include <string.h>

void dq_cuda_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids)
{
    const dq_cuda_weight *w = dq_cuda_weight_of(b, table);
    const int32_t *device_ids = dq_cuda_upload(b, ids, (size_t)dst.rows * sizeof *ids);
    if (w && device_ids)
        dq_cuda_ok(b, dq_rows_embed(dst.p, w, device_ids, dst.rows, dq_cuda_stream(b)), "embed");
    dq_cuda_upload_end(b);
}

void dq_cuda_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index)
{
    const int64_t *at = dq_cuda_upload(b, index, (size_t)dst.rows * sizeof *index);
    if (at)
        dq_cuda_ok(b, dq_rows_gather(dst.p, src.p, at, dst.rows, dst.cols, dq_cuda_stream(b)),
                   "gather");
    dq_cuda_upload_end(b);
}

void dq_cuda_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps)
{
    const float *g = gain ? dq_cuda_upload(b, gain, (size_t)src.cols * sizeof *gain) : NULL;
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_rows_rms_norm(dst.p, src.p, g, eps, src.rows, src.cols, dq_cuda_stream(b)),
                   "rms_norm");
    dq_cuda_upload_end(b);
}

void dq_cuda_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope)
{
    const int64_t half = rope->dim / 2;
    const int32_t *p = dq_cuda_upload(b, pos, (size_t)table.rows * sizeof *pos);
    const float *freq = dq_cuda_upload(b, rope->inv_freq, (size_t)half * sizeof *freq);
    if (p && freq)
        dq_cuda_ok(b,
                   dq_rows_rope_table(table.p, p, freq, rope->amplitude, table.rows, half,
                                      dq_cuda_stream(b)),
                   "rope_table");
    dq_cuda_upload_end(b);
}

void dq_cuda_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b,
               dq_rows_rope(x.p, table.p, order == DQ_ROPE_ADJACENT, x.rows, x.cols, table.cols,
                            dq_cuda_stream(b)),
               "rope");
}

void dq_cuda_hadamard(dq_backend *b, dq_mat x, int dim)
{
    const float norm = (float)(1.0 / sqrt((double)dim));
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_hadamard(x.p, x.rows * (x.cols / dim), dim, norm, dq_cuda_stream(b)),
               "hadamard");
}

void dq_cuda_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param)
{
    if (b->err.code != DQ_OK) return;
    if (act == DQ_ACT_POLYNORM)
        dq_cuda_ok(b,
                   dq_rows_polynorm(gate.p, up.p, param, gate.rows, gate.cols, dq_cuda_stream(b)),
                   "PolyNorm");
    else
        dq_cuda_ok(b, dq_rows_silu(gate.p, up.p, gate.rows * gate.cols, dq_cuda_stream(b)), "SiLU");
}

void dq_cuda_sigmoid(dq_backend *b, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_sigmoid(x.p, x.rows * x.cols, dq_cuda_stream(b)), "sigmoid");
}

void dq_cuda_add(dq_backend *b, dq_mat dst, dq_mat src)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_add(dst.p, src.p, dst.rows * dst.cols, dq_cuda_stream(b)), "add");
}

static void take_bad_row(void *arg, const void *data, size_t bytes)
{
    uint32_t found;
    int64_t *row = arg;
    memcpy(&found, data, sizeof found);
    (void)bytes;
    *row = found ? (int64_t)(UINT32_MAX - found) : -1;
}

void dq_cuda_first_bad_row(dq_backend *b, int64_t *row, dq_mat x)
{
    const uint32_t none = 0;
    if (b->err.code != DQ_OK) return;
    *row = -1;
    uint32_t *found = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, sizeof *found);
    if (!found) return;
    dq_cuda_put(b, found, &none, sizeof none);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_rows_first_bad(found, x.p, x.rows, x.cols, dq_cuda_stream(b)),
                   "first_bad_row");
    dq_cuda_download(b, found, sizeof *found, take_bad_row, row);
}
