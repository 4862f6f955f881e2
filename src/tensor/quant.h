/* quant: b-bit absmax codes: bit packing, scales, the reference quantizer, error measures. The
 * definition of the container's integers (FORMAT.md).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANT_H
#define DQ_QUANT_H

#include "tensor/weight.h"

typedef enum dq_scale_mode {
    DQ_ABSMAX, /* scale = absmax / Qmax */
    DQ_SEARCH, /* the least squared error of absmax, of the signed scale that makes the peak -2^(b-1), and of
                     smaller scales of either sign */
    DQ_ASYM, /* (largest - smallest) / (2^b - 1), both ends moved to 0 where they lie beyond, and an integer
                     zero point: format_int_zero */
    DQ_TRELLIS, /* levels that reach as far as the group, of codes that are found together: format_trellis */
    DQ_QUANT_MODES
} dq_scale_mode;

/* What others know of a mode; weight_format.h says which format takes it. */
typedef struct dq_scale_mode_row {
    const char *name;  /* "absmax" */
    const char *about; /* for who is to choose; NULL: nothing */
    float tries
        [3]; /* gptq tries scales times these, and those of weighted errors; 0: it tries none */
    const char *negative; /* what is wrong with a negative scale; NULL: the mode makes them */
} dq_scale_mode_row;
extern const dq_scale_mode_row dq_quant_modes[DQ_QUANT_MODES];

enum { DQ_GROUP_ROW = -1, DQ_GROUP_TENSOR = -2 };

/* How one [rows, cols] matrix is to be stored. */
typedef struct dq_quant_spec {
    int bits;      /* 2..8, or 16: leave as it is */
    int64_t group; /* columns per scale >= 1, DQ_GROUP_ROW or DQ_GROUP_TENSOR */
    dq_scale_mode mode;
    dq_dtype scale_dtype; /* DQ_F16 or DQ_F32 */
    const int8_t
        *column; /* [cols] factors of columns (dq_weight_factor), somebody else's; NULL: all 1 */
} dq_quant_spec;

/* The spec of columns from `at` on. */
static inline dq_quant_spec dq_quant_spec_at(const dq_quant_spec *s, int64_t at)
{
    dq_quant_spec own = *s;
    if (own.column) own.column += at;
    return own;
}

int dq_quant_max_code(int bits); /* 2^(bits-1) - 1 */
/* Packed bytes of one row: bits * cols bits, padded with zero bits to a multiple of 4 bytes. */
size_t dq_quant_row_bytes(int64_t cols, int bits);
/* Scales per row for a group size in 1..cols. */
int64_t dq_quant_groups(int64_t cols, int64_t group_size);

/* codes q[n] (signed, fit in bits) -> packed row, and back. */
void dq_quant_pack_row(uint8_t *packed, const int8_t *q, int64_t cols, int bits);
void dq_quant_unpack_row(int8_t *q, const uint8_t *packed, int64_t cols, int bits);

/* The scale of one group as stored in `dtype`, F16 or F32: see dq_scale_mode. n values, all finite. What
 * DQ_SEARCH finds has at most the error (dq_quant_error, noise) of either other mode, in this dtype and in F16. */
float dq_quant_group_scale(const float *w, int64_t n, int bits, dq_scale_mode mode, dq_dtype dtype);
/* The value a scale has once stored as `dtype` (rounded to nearest even). */
float dq_quant_stored_scale(float scale, dq_dtype dtype);
/* q[n] = clamp(rint(w / scale)), one f32 division each, ties to even; scale 0 gives 0. Limits are
 * +-Qmax for DQ_ABSMAX, else -2^(b-1)..Qmax. */
void dq_quant_encode(int8_t *q, const float *w, int64_t n, int bits, float scale,
                     dq_scale_mode mode);
/* The same, and got[n] = q * scale. */
void dq_quant_encode_back(int8_t *q, float *got, const float *w, int64_t n, int bits, float scale,
                          dq_scale_mode mode);

/* Running error of a quantized tensor, merged in row order. */
typedef struct dq_quant_error {
    double signal, noise; /* sums of w^2 and (w - w')^2 */
    double max_abs;
} dq_quant_error;
void dq_quant_error_add(dq_quant_error *e, const float *want, const float *got, int64_t n);
void dq_quant_error_merge(dq_quant_error *into, const dq_quant_error *from);
double dq_quant_sqnr_db(const dq_quant_error *e); /* +infinity when the noise is 0 */

#endif
