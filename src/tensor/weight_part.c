/* weight_part: a part is described from the weight (of), found in a file (take) and looked over (wrong).
 * SPDX-License-Identifier: MIT */
#include "tensor/weight_part.h"

#include "tensor/quant_search.h"

enum { BLOCK = 256 }; /* codes held at once on the stack */

bool dq_weight_part_is(const dq_part *want, const dq_tensor *found)
{
    return found->dtype == want->dtype && found->n_dims == 2 && found->shape[0] == want->shape[0] &&
           found->shape[1] == want->shape[1];
}

/* ---- Codes ---- */

dq_part dq_weight_part_of_codes(const dq_weight *w)
{
    return (dq_part){.bits = w->bits,
                     .rows = w->rows,
                     .cols = w->cols,
                     .dtype = DQ_U8,
                     .shape = {w->rows, (int64_t)dq_quant_row_bytes(w->cols, w->bits)},
                     .data = w->data};
}

const char *dq_weight_part_take_codes(dq_weight *w, const dq_tensor *found)
{
    const dq_part want = dq_weight_part_of_codes(w);
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    w->data = found->data;
    return NULL;
}

const char *dq_weight_part_wrong_codes(const dq_part *p, dq_scale_mode mode)
{
    const size_t row = (size_t)p->shape[1], whole = (size_t)p->cols / 8 * (size_t)p->bits,
                 last = (size_t)p->cols % 8 * (size_t)p->bits, used = whole + last / 8;
    const uint8_t *at = p->data;
    (void)mode;
    if (used == row) return NULL;
    for (int64_t r = 0; r < p->rows; r++, at += row) {
        bool zero = at[used] >> last % 8 == 0;
        for (size_t i = used + 1; i < row; i++) zero = zero && at[i] == 0;
        if (!zero) return "holds padding bits that are not zero.";
    }
    return NULL;
}

/* ---- Scales ---- */

dq_part dq_weight_part_of_scales(const dq_weight *w)
{
    const int64_t groups = dq_quant_groups(w->cols, w->group_size);
    return (dq_part){.bits = 8 * (int)dq_dtypes[w->scale_dtype].bytes,
                     .rows = w->scale_rows,
                     .cols = groups,
                     .dtype = w->scale_dtype,
                     .shape = {w->scale_rows, groups},
                     .data = w->scale};
}

const char *dq_weight_part_take_scales(dq_weight *w, const dq_tensor *found)
{
    w->scale_dtype = found->dtype == DQ_F16 ? DQ_F16 : DQ_F32;
    w->scale_rows = found->n_dims == 2 && found->shape[0] == 1 ? 1 : w->rows;
    const dq_part want = dq_weight_part_of_scales(w);
    if (!dq_weight_part_is(&want, found)) return "wrong type or shape";
    if (w->scale_rows == 1 && w->group_size != w->cols) return "one row of scales for groups";
    w->scale = found->data;
    return NULL;
}

/* What any of n scales is, by its bits: several times as fast as by its value. */
typedef struct scale_kinds {
    bool endless, negative;
} scale_kinds;

static scale_kinds kinds_of_f16(const uint8_t *at, int64_t n)
{
    unsigned endless = 0, negative = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, at + i * (int64_t)sizeof h, sizeof h);
        endless |= (h & 0x7c00u) == 0x7c00u;
        negative |= h > 0x8000u;
    }
    return (scale_kinds){endless, negative};
}

static scale_kinds kinds_of_f32(const uint8_t *at, int64_t n)
{
    unsigned endless = 0, negative = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);
        endless |= (x & 0x7f800000u) == 0x7f800000u;
        negative |= x > 0x80000000u;
    }
    return (scale_kinds){endless, negative};
}

const char *dq_weight_part_wrong_scales(const dq_part *p, dq_scale_mode mode)
{
    const int64_t n = p->rows * p->cols;
    const scale_kinds k = p->dtype == DQ_F16 ? kinds_of_f16(p->data, n) : kinds_of_f32(p->data, n);
    if (k.endless) return "holds a scale that is not finite.";
    return k.negative ? dq_quant_modes[mode].negative : NULL;
}

bool dq_weight_part_holds_scale(float scale, dq_dtype type)
{
    return type != DQ_F16 || dq_quant_scale_fits_f16(scale);
}

void dq_weight_part_put_scale(uint8_t *row, int64_t group, float scale, dq_dtype dtype)
{
    const uint16_t h = dq_f16_from_f32(scale);
    if (dtype == DQ_F16)
        memcpy(row + group * (int64_t)sizeof h, &h, sizeof h);
    else
        memcpy(row + group * (int64_t)sizeof scale, &scale, sizeof scale);
}

/* ---- Values ---- */

void dq_weight_part_dequantize_affine(float *out, const dq_weight *w, int64_t row, int64_t first,
                                      int64_t n)
{
    const uint8_t *packed =
        (const uint8_t *)w->data + (size_t)row * dq_quant_row_bytes(w->cols, w->bits);
    int8_t q[BLOCK];
    float scale = 0;
    int64_t group = -1;
    int shift = 0; /* from q = u - 2^(bits-1) to u - zero */
    /* BLOCK columns take a whole number of bytes at every width */
    for (int64_t c = first; c < first + n; c += BLOCK) {
        const int64_t m = first + n - c < BLOCK ? first + n - c : BLOCK;
        dq_quant_unpack_row(q, packed + (size_t)(c / 8) * (size_t)w->bits, m, w->bits);
        for (int64_t i = 0; i < m;) {
            const int64_t g = (c + i) / w->group_size;
            int64_t end = (g + 1) * w->group_size - c;
            if (g != group) {
                scale = dq_weight_scale(w, row, g);
                shift = (1 << (w->bits - 1)) - dq_weight_zero(w, row, g);
            }
            group = g;
            for (end = end < m ? end : m; i < end; i++)
                out[c - first + i] = (float)(q[i] + shift) * scale;
        }
    }
}
