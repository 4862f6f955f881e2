/* cuda_weights: the weights that are on the device, by the address of their data on the host.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"

#include "base/base.h"
#include "tensor/tensor.h"

#include <string.h>

typedef struct entry {
    const void *key; /* dq_weight.data */
    int users;
    void *data, *scale, *zero;
    dq_cuda_weight w;
} entry;

struct dq_cuda_weights {
    dq_address_list entries;
};

enum { STAGE_BYTES = 1 << 20 };

dq_cuda_weights *dq_cuda_weights_new(dq_err *err)
{
    dq_cuda_weights *all = dq_block_new(1, sizeof *all, err);
    if (all) all->entries.size = sizeof(entry);
    return all;
}

void dq_cuda_weights_free(dq_cuda_weights *all)
{
    if (!all) return;
    dq_address_list_free(&all->entries); /* device memory goes with the pool */
    dq_block_free(all);
}

static int64_t padded(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* ------------------------------------------------------------------------------------------ uploads */
int dq_cuda_stored_kind(const dq_weight *w)
{
    if (dq_weight_is_affine(w)) return DQ_STORED_PACKED;
    if (dq_weight_is_coded(w)) return DQ_STORED_F32;
    if (w->dtype == DQ_F32) return DQ_STORED_F32;
    return w->dtype == DQ_F16 ? DQ_STORED_F16 : DQ_STORED_BF16;
}

static void put_dense(dq_backend *b, entry *e, const dq_weight *w)
{
    const size_t size = w->dtype == DQ_F32 ? 4 : 2, bytes = (size_t)(w->rows * w->cols) * size;
    e->data = dq_cuda_alloc(b, bytes);
    if (e->data) dq_cuda_put(b, e->data, w->data, bytes);
}

/* Levels have no kernel of their own: they are uploaded as what they stand for. */
static void put_levels(dq_backend *b, entry *e, const dq_weight *w)
{
    const size_t row = (size_t)w->cols * sizeof(float);
    const int64_t fit = STAGE_BYTES / (int64_t)row, step = fit > 0 ? fit : 1;
    float *stage = dq_block_new((size_t)step, row, &b->err);
    e->data = dq_cuda_alloc(b, (size_t)w->rows * row);
    for (int64_t r = 0; r < w->rows && b->err.code == DQ_OK; r += step) {
        const int64_t n = w->rows - r < step ? w->rows - r : step;
        dq_weight_dequantize_rows(stage, w, r, r + n);
        dq_cuda_put(b, (uint8_t *)e->data + (size_t)r * row, stage, (size_t)n * row);
    }
    dq_block_free(stage);
}

/* One row with its groups padded; codes is scratch for a row, before and after. */
static void spread_row(uint8_t *to, const uint8_t *from, const dq_cuda_weight *d, int8_t *codes)
{
    int8_t *wide = codes + padded(d->cols, 64);
    dq_quant_unpack_row(codes, from, d->cols, d->bits);
    memset(wide, 0, (size_t)(d->groups * d->group_codes));
    for (int64_t i = 0; i < d->cols; i++)
        wide[i / d->group * d->group_codes + i % d->group] = codes[i];
    dq_quant_pack_row(to, wide, d->groups * d->group_codes, d->bits);
}

static void put_codes(dq_backend *b, entry *e, const dq_weight *w)
{
    dq_cuda_weight *d = &e->w;
    const bool whole = d->groups == 1 || d->group % DQ_GROUP_STEP == 0;
    const int64_t bytes = (int64_t)dq_quant_row_bytes(w->cols, w->bits);
    const int64_t stage_rows = d->pitch < STAGE_BYTES ? STAGE_BYTES / d->pitch : 1;
    const size_t spread = (size_t)(padded(d->cols, 64) + d->groups * d->group_codes);
    uint8_t *stage = dq_block_new((size_t)stage_rows, (size_t)d->pitch, &b->err);
    int8_t *codes = dq_block_new(1, spread, &b->err);
    e->data = dq_cuda_alloc(b, (size_t)(d->rows * d->pitch));
    for (int64_t r = 0; r < w->rows && b->err.code == DQ_OK; r += stage_rows) {
        const int64_t n = w->rows - r < stage_rows ? w->rows - r : stage_rows;
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *from = (const uint8_t *)w->data + (r + i) * bytes;
            uint8_t *to = stage + i * d->pitch;
            if (whole)
                memcpy(to, from, (size_t)bytes); /* the rest of the pitch stays zero */
            else
                spread_row(to, from, d, codes);
        }
        dq_cuda_put(b, (uint8_t *)e->data + r * d->pitch, stage, (size_t)(n * d->pitch));
    }
    dq_block_free(codes);
    dq_block_free(stage);
}

/* Turned to [groups][scale_pitch]; one scale of the whole tensor becomes one per row. */
static void put_scales(dq_backend *b, entry *e, const dq_weight *w)
{
    const dq_cuda_weight *d = &e->w;
    const size_t size = d->scale_f16 ? 2 : 4;
    const size_t bytes = (size_t)(d->groups * d->scale_pitch) * size;
    uint8_t *turned = dq_block_new(1, bytes, &b->err);
    e->scale = dq_cuda_alloc(b, bytes);
    if (turned && e->scale) {
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t g = 0; g < d->groups; g++) {
                const int64_t from = (w->scale_rows == 1 ? 0 : r) * d->groups + g;
                memcpy(turned + (size_t)(g * d->scale_pitch + r) * size,
                       (const uint8_t *)w->scale + (size_t)from * size, size);
            }
        dq_cuda_put(b, e->scale, turned, bytes);
    }
    dq_block_free(turned);
}

/* Zero points likewise, a byte each. */
static void put_zeros(dq_backend *b, entry *e, const dq_weight *w)
{
    const dq_cuda_weight *d = &e->w;
    const size_t bytes = (size_t)(d->groups * d->zero_pitch);
    uint8_t *turned = dq_block_new(1, bytes, &b->err);
    e->zero = dq_cuda_alloc(b, bytes);
    if (turned && e->zero) {
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t g = 0; g < d->groups; g++)
                turned[g * d->zero_pitch + r] = (uint8_t)dq_weight_zero(w, r, g);
        dq_cuda_put(b, e->zero, turned, bytes);
    }
    dq_block_free(turned);
}

static void put_packed(dq_backend *b, entry *e, const dq_weight *w)
{
    dq_cuda_weight *d = &e->w;
    d->bits = w->bits;
    d->group = w->group_size;
    d->groups = dq_quant_groups(w->cols, w->group_size);
    d->group_codes = padded(w->group_size, DQ_GROUP_STEP);
    d->pitch = padded((int64_t)dq_quant_row_bytes(d->groups * d->group_codes, w->bits), 16);
    d->scale_f16 = w->scale_dtype == DQ_F16;
    d->scale_pitch = padded(w->rows, 8);
    d->zero_pitch = padded(w->rows, 16);
    put_codes(b, e, w);
    put_scales(b, e, w);
    if (w->zero) put_zeros(b, e, w);
}

/* ----------------------------------------------------------------------------------- for operations */
bool dq_cuda_weight_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cuda_weights *all = dq_cuda_of(b)->weights;
    if (b->err.code != DQ_OK) return false;
    entry *known = dq_address_list_find(&all->entries, w->data);
    if (known) {
        known->users++;
        return true;
    }
    if (dq_weight_is_coded(w) && !dq_weight_is_integer(w)) {
        dq_fail(&b->err, DQ_MISMATCH,
                "%s: weights of format %s are not available on the cuda backend. Use the cpu",
                w->name ? w->name : "a weight", w->format->name);
        return false;
    }
    if (!dq_address_list_reserve(&all->entries, &b->err)) return false;
    entry e = {.key = w->data, .users = 1, .w = {.rows = w->rows, .cols = w->cols}};
    e.w.kind = dq_cuda_stored_kind(w);
    if (e.w.kind == DQ_STORED_PACKED)
        put_packed(b, &e, w);
    else if (dq_weight_is_coded(w))
        put_levels(b, &e, w);
    else
        put_dense(b, &e, w);
    if (b->err.code != DQ_OK) {
        dq_cuda_free(b, e.data);
        dq_cuda_free(b, e.scale);
        dq_cuda_free(b, e.zero);
        return false;
    }
    e.w.data = e.data;
    e.w.scale = e.scale;
    e.w.zero = e.zero;
    dq_address_list_add(&all->entries, &e);
    return true;
}

void dq_cuda_weight_release(dq_backend *b, const dq_weight *w)
{
    dq_cuda_weights *all = dq_cuda_of(b)->weights;
    entry *e = dq_address_list_find(&all->entries, w->data);
    if (!e || --e->users > 0) return;
    dq_cuda_free(b, e->data);
    dq_cuda_free(b, e->scale);
    dq_cuda_free(b, e->zero);
    dq_address_list_remove(&all->entries, e);
}

const dq_cuda_weight *dq_cuda_weight_of(dq_backend *b, const dq_weight *w)
{
    if (b->err.code != DQ_OK) return NULL;
    const entry *e = dq_address_list_find(&dq_cuda_of(b)->weights->entries, w->data);
    if (!e || e->w.rows != w->rows || e->w.cols != w->cols) {
        dq_fail(&b->err, DQ_BUG, "%s: is used on cuda:%d without being acquired",
                w->name ? w->name : "a weight", dq_cuda_of(b)->device);
        return NULL;
    }
    return &e->w;
}
