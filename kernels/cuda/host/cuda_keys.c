/* cuda_keys: what policies ask of keys. The kernels are in kv.cu (norms) and keys.cu; the small matrix of leverages is
 * factored on the host, which waits for it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/keys.h"
#include "kernels/cuda/device/kv_launch.h"
#include "kernels/cuda/host/cuda_kv.h"
#include "kernels/cuda/host/cuda_ops.h"
#include "kernels/paged/key_factor.h"

/* The keys, or the values, of a list with tokens, for kernels that are launched before the next dq_cuda_upload_end. False with
 * the sticky error set. */
static bool upload_side(dq_backend *b, dq_keys *k, const dq_kv *kv, const dq_kv_list *list,
                        int group, int side, int32_t t)
{
    const int64_t n_pages = (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
    dq_page_form form[2];
    dq_cuda_dither dither;
    dq_cuda_forms(form, kv);
    *k = (dq_keys){.count = list->count, .heads = kv->heads[group], .side = side};
    if (!dq_kv_read_as_at(b, kv, list, t, &k->coded)) return false;
    dq_page *pages = dq_block_new((size_t)n_pages, sizeof *pages, &b->err);
    if (pages && dq_cuda_dither_new(b, &dither, kv, n_pages)) {
        for (int64_t i = 0; i < n_pages; i++)
            pages[i] = dq_cuda_page_dithered(&dither, kv, list->page[i]);
        if (dq_cuda_dither_upload(b, form, &dither))
            k->pages = dq_cuda_upload(b, pages, (size_t)n_pages * sizeof *pages);
        dq_block_free(dither.row);
    }
    dq_block_free(pages);
    k->form = form[side];
    return k->pages != NULL;
}

static bool upload_keys(dq_backend *b, dq_keys *k, const dq_kv *kv, const dq_kv_list *list,
                        int group, int32_t t)
{
    return upload_side(b, k, kv, list, group, DQ_K, t);
}

void dq_cuda_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t t, double *sum)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    const size_t bytes = (size_t)list->count * sizeof(double);
    if (list->count == 0) return;
    dq_keys k;
    double *into = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, bytes);
    if (into && upload_keys(b, &k, kv, list, group, t) &&
        dq_cuda_ok(
            b,
            dq_kv_launch_norms(into, k.pages, k.count, k.coded, k.form, k.heads, dq_cuda_stream(b)),
            "kv_key_norms"))
        dq_cuda_download(b, into, bytes, NULL, sum);
    dq_cuda_upload_end(b);
}

void dq_cuda_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                            int32_t t, double *cosine)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    const size_t n = (size_t)list->count, heads = (size_t)kv->heads[group];
    const size_t dim = (size_t)kv->map->head_dim;
    if (n == 0) return;
    dq_keys k;
    double *into =
        dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, ((1 + heads) * n + heads * dim) * sizeof *into);
    if (into && upload_keys(b, &k, kv, list, group, t) &&
        dq_cuda_ok(b, dq_keys_cosines(into, k, into + n, into + (1 + heads) * n, dq_cuda_stream(b)),
                   "kv_key_cosines"))
        dq_cuda_download(b, into, n * sizeof *into, NULL, cosine);
    dq_cuda_upload_end(b);
}

/* ------------------------------------------------------------------------------------- leverages */

/* x as it was before RoPE; RoPE by the negative position is its inverse, but for the square of the amplitude. */
static bool undo_rope(dq_backend *b, dq_mat x, const dq_kv *kv, const dq_kv_list *list,
                      const dq_rope *rope)
{
    const int dim = kv->map->head_dim;
    dq_mat table = {.rows = x.rows, .cols = dim};
    int32_t *pos = dq_block_new((size_t)x.rows, sizeof *pos, &b->err);
    if (pos) table.p = dq_cuda_alloc(b, (size_t)(x.rows * dim) * sizeof *table.p);
    if (table.p) {
        for (int64_t i = 0; i < x.rows; i++) pos[i] = -dq_kv_pos(list, i);
        if (kv->spec.rotate_k) dq_cuda_hadamard(b, x, dim);
        dq_cuda_rope_table(b, table, pos, rope);
        dq_cuda_rope(b, x, table, rope->order);
    }
    dq_cuda_free(b, table.p);
    dq_block_free(pos);
    return b->err.code == DQ_OK;
}

/* to[cols][cols] = U^-1 of what `gram` holds on the device. */
static bool factor(dq_backend *b, float *to, const double *gram, int64_t cols)
{
    const size_t square = (size_t)(cols * cols);
    double *host = dq_block_new(3 * square, sizeof *host, &b->err);
    float *right = dq_block_new(square, sizeof *right, &b->err);
    if (host && right) {
        dq_cuda_get(b, host, gram, square * sizeof *host);
        if (b->err.code == DQ_OK && !dq_key_factor(right, host + square, host, cols, cols))
            dq_fail(&b->err, DQ_DAMAGED, "keys of the KV cache are not finite");
        dq_cuda_put(b, to, right, square * sizeof *right);
    }
    dq_block_free(right);
    dq_block_free(host);
    return b->err.code == DQ_OK;
}

/* x holds keys before RoPE. */
static bool measure(dq_backend *b, double *leverage, dq_mat x, double unit)
{
    const size_t square = (size_t)(x.cols * x.cols);
    double *gram = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, square * sizeof *gram);
    float *right = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, square * sizeof *right);
    /* the means, before the matrix stands there */
    return gram && right &&
           dq_cuda_ok(b, dq_keys_centre(x.p, gram, unit, x.rows, x.cols, dq_cuda_stream(b)),
                      "means of keys") &&
           dq_cuda_ok(b, dq_keys_gram(gram, x.p, x.rows, x.cols, dq_cuda_stream(b)),
                      "products of keys") &&
           factor(b, right, gram, x.cols) &&
           dq_cuda_ok(b, dq_keys_leverages(leverage, x.p, right, x.rows, x.cols, dq_cuda_stream(b)),
                      "kv_key_leverages");
}

void dq_cuda_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                              int32_t t, const dq_rope *rope, double *leverage)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    dq_mat x = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    const double a = (double)rope->amplitude;
    const size_t bytes = (size_t)x.rows * sizeof(double);
    if (x.rows == 0) return;
    dq_keys k;
    double *into = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, bytes);
    x.p = dq_cuda_alloc(b, (size_t)(x.rows * x.cols) * sizeof *x.p);
    bool ok = into && x.p && upload_keys(b, &k, kv, list, group, t) &&
              dq_cuda_ok(b, dq_keys_read(x.p, k, dq_cuda_stream(b)), "keys");
    dq_cuda_upload_end(b);
    ok = ok && undo_rope(b, x, kv, list, rope);
    if (ok && measure(b, into, x, 1.0 / (a * a))) dq_cuda_download(b, into, bytes, NULL, leverage);
    dq_cuda_free(b, x.p);
}

/* ------------------------------------------------------------------------------------- rows */

/* x[count][heads * dim] on the device: a side of a list as it lies in pages. */
static bool read_side(dq_backend *b, dq_mat x, const dq_kv *kv, const dq_kv_list *list, int group,
                      int side, int32_t t)
{
    dq_keys k;
    const bool ok = upload_side(b, &k, kv, list, group, side, t) &&
                    dq_cuda_ok(b, dq_keys_read(x.p, k, dq_cuda_stream(b)), "kv_rows");
    dq_cuda_upload_end(b);
    return ok;
}

/* Half of each row, from the device. */
static void put_half(dq_backend *b, float *row, dq_mat x, double unit)
{
    float *host = dq_block_new((size_t)(x.rows * x.cols), sizeof *host, &b->err);
    if (host) dq_cuda_get(b, host, x.p, (size_t)(x.rows * x.cols) * sizeof *host);
    for (int64_t i = 0; host && i < x.rows; i++) {
        for (int64_t c = 0; c < x.cols; c++)
            row[i * 2 * x.cols + c] = (float)((double)host[i * x.cols + c] * unit);
    }
    dq_block_free(host);
}

void dq_cuda_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                     const dq_rope *rope, float *row)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    dq_mat x = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    const double a = (double)rope->amplitude;
    if (x.rows == 0) return;
    x.p = dq_cuda_alloc(b, (size_t)(x.rows * x.cols) * sizeof *x.p);
    if (x.p && read_side(b, x, kv, list, group, DQ_K, t) && undo_rope(b, x, kv, list, rope))
        put_half(b, row, x, 1.0 / (a * a));
    if (b->err.code == DQ_OK && x.p && read_side(b, x, kv, list, group, DQ_V, t)) {
        if (kv->spec.rotate_v) dq_cuda_hadamard(b, x, kv->map->head_dim);
        put_half(b, row + x.cols, x, 1);
    }
    dq_cuda_free(b, x.p);
}
