/* export_tensor: the bytes of a tensor, rows at a time, by all threads: each row by itself.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_names.h"
#include "export/export_plan.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

/* out[n] of 16 bits each, or f32; returns the first value that becomes infinite, n: none does. */
static int64_t convert(uint8_t *out, const float *values, int64_t n, dq_dtype type)
{
    if (type == DQ_F32) {
        memcpy(out, values, (size_t)n * sizeof *values);
        return n;
    }
    const uint16_t infinite = type == DQ_F16 ? 0x7c00 : 0x7f80;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t h =
            type == DQ_F16 ? dq_f16_from_f32(values[i]) : dq_bf16_from_f32(values[i]);
        if ((h & 0x7fff) == infinite && isfinite(values[i])) return i;
        memcpy(out + 2 * i, &h, sizeof h);
    }
    return n;
}

/* The row of the weight that is row r of the slot. */
static int64_t row_of(const dq_export_slot *s, int64_t r)
{
    return s->pair_rows ? dq_gguf_name_hf_row(r, s->pair_rows) : r;
}

static dq_status write_values(uint8_t *out, float *values, const dq_weight *w,
                              const dq_export_slot *s, int64_t first, int64_t n, dq_err *err)
{
    const int64_t cols = w->cols;
    const dq_dtype type = s->tensor.dtype;
    const size_t bytes = (size_t)cols * dq_dtypes[type].bytes;
    int64_t bad = n * cols;
#pragma omp parallel for schedule(static) reduction(min : bad)
    for (int64_t r = 0; r < n; r++) {
        float *row = values + r * cols;
        const int64_t from = row_of(s, first + r);
        dq_weight_dequantize_rows(row, w, from, from + 1);
        const int64_t at = convert(out + (size_t)r * bytes, row, cols, type);
        if (at < cols && r * cols + at < bad) bad = r * cols + at;
    }
    if (bad == n * cols) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "%s: the value %g in row %lld, column %lld is beyond %s. Use a wider type.",
                   w->name, (double)values[bad], (long long)row_of(s, first + bad / cols),
                   (long long)(bad % cols), dq_dtypes[type].name);
}

/* u - zero of a row, signed codes: they stand for the same values at every width that holds them, without a zero point. */
static void signed_codes(int8_t *q, const dq_weight *w, int64_t row)
{
    const size_t bytes = dq_quant_row_bytes(w->cols, w->bits);
    const int middle = 1 << (w->bits - 1);
    dq_quant_unpack_row(q, (const uint8_t *)w->data + (size_t)row * bytes, w->cols, w->bits);
    if (!w->zero) return;
    for (int64_t c = 0, g = 0; c < w->cols; g++) {
        const int shift = middle - dq_weight_zero(w, row, g);
        const int64_t end = c + w->group_size < w->cols ? c + w->group_size : w->cols;
        for (; c < end; c++) q[c] = (int8_t)(q[c] + shift);
    }
}

static void write_codes(uint8_t *out, const dq_weight *w, int bits, int64_t first, int64_t n,
                        int8_t *codes)
{
    const size_t bytes = dq_quant_row_bytes(w->cols, bits);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < n; r++) {
        int8_t *row = codes + r * w->cols;
        signed_codes(row, w, first + r);
        dq_quant_pack_row(out + (size_t)r * bytes, row, w->cols, bits);
    }
}

/* Rows of words: a word has the zero points of 8 or 4 rows of the weight, the first in its lowest bits. */
static void write_zeros(uint8_t *out, const dq_weight *w, int64_t first, int64_t n)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size), per_word = 32 / w->bits;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t g = 0; g < groups; g++) {
            uint32_t word = 0;
            for (int64_t k = 0, r = (first + i) * per_word; k < per_word && r < w->rows; k++, r++)
                word |= (uint32_t)dq_weight_zero(w, r, g) << k * w->bits;
            memcpy(out + 4 * (i * groups + g), &word, sizeof word);
        }
    }
}

/* A row of codes as blocks of a type that holds them: u - zero, or, beside a lowest value, u. */
static void write_block_row(uint8_t *out, int8_t *q, const dq_weight *w, const dq_block *b,
                            int64_t row)
{
    const bool low = b->number == DQ_GGML_Q4_1 || b->number == DQ_GGML_Q5_1;
    signed_codes(q, w, row);
    for (int64_t c = 0; c < w->cols; c += b->values, out += b->bytes, q += b->values) {
        const int64_t g = c / w->group_size;
        const float scale = dq_weight_scale(w, row, g);
        const int zero = low ? dq_weight_zero(w, row, g) : 0;
        for (int i = 0; low && i < b->values; i++) q[i] = (int8_t)(q[i] + zero);
        b->write(out, q, dq_f16_from_f32(scale), dq_f16_from_f32(0 - scale * (float)zero));
    }
}

static void write_blocks(uint8_t *out, const dq_weight *w, const dq_block *b,
                         const dq_export_slot *s, int64_t first, int64_t n, int8_t *codes)
{
    const size_t bytes = (size_t)(w->cols / b->values) * (size_t)b->bytes;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < n; r++)
        write_block_row(out + (size_t)r * bytes, codes + r * w->cols, w, b, row_of(s, first + r));
}

dq_status dq_export_tensor_rows(uint8_t *out, float *values, const dq_export *x,
                                const dq_export_slot *s, int64_t first, int64_t n, dq_err *err)
{
    const dq_weight *w = &x->weight[s->row];
    const int scheme = x->row[s->row].scheme, bits = scheme < 0 ? 0 : x->scheme[scheme].bits;
    const int64_t shape[2] = {w->rows, w->cols};
    const size_t item = dq_dtypes[s->tensor.dtype].bytes;
    switch (s->kind) {
    case DQ_EXPORT_VALUES: return write_values(out, values, w, s, first, n, err);
    case DQ_EXPORT_CODES: write_codes(out, w, bits, first, n, (int8_t *)values); return DQ_OK;
    case DQ_EXPORT_BLOCKS:
        write_blocks(out, w, x->row[s->row].blocks->block, s, first, n, (int8_t *)values);
        return DQ_OK;
    case DQ_EXPORT_ZEROS: write_zeros(out, w, first, n); return DQ_OK;
    case DQ_EXPORT_SHAPE: memcpy(out, shape + first, (size_t)n * sizeof *shape); return DQ_OK;
    case DQ_EXPORT_SCALES:
        for (int64_t i = 0; i < n; i++) memcpy(out + (size_t)i * item, w->scale, item);
        return DQ_OK;
    default: return dq_fail(err, DQ_BUG, "%s: a copy has no rows to make", s->tensor.name);
    }
}
