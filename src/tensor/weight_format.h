/* weight_format: how a matrix is stored, one row of a table a format: its name, the datasets it has in a
 * container and what is true of them, decoding, encoding, and what kernels may do with its codes. A format is
 * one file, format_NAME.c, with one dq_weight_format; everybody else asks the row.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WEIGHT_FORMAT_H
#define DQ_WEIGHT_FORMAT_H

#include "tensor/quant.h"

#include <string.h>

enum {
    DQ_MAX_PARTS = 4,
    DQ_STRIP_ROWS =
        128, /* of codes that are found together; the last strip of a matrix may have fewer */
    DQ_STRIP_BLOCK = 32 /* rows of a strip are filled up to a multiple */
};
static inline int64_t dq_weight_strip_padded(int64_t rows)
{
    return (rows + DQ_STRIP_BLOCK - 1) / DQ_STRIP_BLOCK * DQ_STRIP_BLOCK;
}

/* One dataset of a stored matrix: a matrix of entries, the columns of /index, in a container's shape. */
typedef struct dq_part {
    int bits;           /* of one entry */
    int64_t rows, cols; /* of entries */
    dq_dtype dtype;     /* of the dataset: U8 where entries are packed */
    int64_t shape[2];   /* of the dataset */
    const void *data;   /* NULL while it is a plan */
} dq_part;
size_t dq_weight_part_bytes(const dq_part *p);

typedef struct dq_weight_part_row {
    const char *name;     /* of the dataset in the tensor's group: "packed" */
    const char *encoding; /* in /index */
    const char *label;    /* of the second axis of the dataset; the first is "out" */
    bool is_codes; /* an entry per value; bits per weight and SQNR stand in its row of /index */
    /* The part of a weight whose other fields are known. */
    dq_part (*of)(const dq_weight *w);
    /* Sets the weight's pointer to a dataset that was found, and what only it tells. NULL, or what is wrong. */
    const char *(*take)(dq_weight *w, const dq_tensor *found);
    /* What is wrong with the contents; NULL: nothing. */
    const char *(*wrong)(const dq_part *p, dq_scale_mode mode);
    /* The contents, where codes have no part in them; NULL: they have. Gives NULL for zeros. */
    const void *(*fixed)(const dq_quant_spec *s);
} dq_weight_part_row;

/* An attribute of the tensor's group that depends on the width of codes. */
typedef struct dq_weight_attribute {
    const char *name;
    int (*value)(int bits);
} dq_weight_attribute;

/* 2^(code / 8), rounded to the nearest float. */
static inline float dq_weight_factor(int8_t code)
{
    static const float eighth[8] = {0x1p0f,        0x1.172b84p0f, 0x1.306fe0p0f, 0x1.4bfdaep0f,
                                    0x1.6a09e6p0f, 0x1.8ace54p0f, 0x1.ae89fap0f, 0x1.d5818ep0f};
    const uint32_t bits = (uint32_t)(127 + (code >> 3)) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * eighth[code & 7];
}

/* What the values of a group say about its scale. */
typedef struct dq_weight_range {
    /* of largest magnitude, the first of equals; its sign counts for DQ_SEARCH only */
    float peak;
    float low, high; /* at most 0 and at least 0; found for formats with `ends` alone */
} dq_weight_range;

/* Widens low and high by n values. */
static inline void dq_weight_range_ends(dq_weight_range *r, const float *w, int64_t n)
{
    float low = r->low, high = r->high;
#pragma omp simd reduction(min : low) reduction(max : high)
    for (int64_t i = 0; i < n; i++) {
        low = w[i] < low ? w[i] : low;
        high = w[i] > high ? w[i] : high;
    }
    r->low = low;
    r->high = high;
}

/* What the codes of a group are relative to, as stored. */
typedef struct dq_grid {
    float scale;
    int zero;
} dq_grid;

/* Codes and what they are relative to in one piece, as other programs store them. */
typedef struct dq_block {
    uint32_t number; /* of the type, in files of the other program */
    int bits;        /* of a code */
    int values, bytes;
    void (*read)(float *y, const uint8_t *b); /* y[values] */
    /* Of whole numbers q[values] that the type holds, f16 scale d and, where the type has one, f16 lowest value; NULL: such
     * blocks are only read. */
    void (*write)(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low);
} dq_block;

typedef struct dq_weight_format {
    const char *name; /* encoding-type of the tensor's group or dataset */
    bool is_coded;    /* codes of 2..8 bits in groups; else values of dq_weight.dtype */
    /* w = (u - zero) * scale, one f32 product, with an integer zero per group: kernels that multiply codes may
     * take it (dq_weight_zero, dq_weight_scale). Others dequantize it. */
    bool is_affine;
    /* w = level * scale * factor with a level of 8 bits that a table names, and a factor for each column: kernels that multiply
     * integers may take it. */
    bool has_levels;
    const dq_block *
        block; /* rows are runs of such blocks; NULL: the parts below hold codes and scales apart */
    const char *note; /* for lines about a weight, besides width and groups; NULL: nothing */
    /* beside those that every coded tensor has; ends with {0} */
    const dq_weight_attribute *attribute;
    const dq_weight_part_row *part; /* [n_parts], in path order */
    int n_parts;
    /* out[n] = columns first .. first + n of a row; first is a multiple of 8 */
    void (*dequantize)(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n);

    /* Coded only. All values are finite; s says width, mode and the type of scales. */
    unsigned modes; /* 1 << dq_scale_mode: those that give this format */
    bool ends;      /* wants dq_weight_range.low and high */
    bool (*fits_f16)(const dq_weight_range *r,
                     const dq_quant_spec *s); /* every scale that may come of it */
    dq_grid (*grid)(const dq_weight_range *r,
                    const dq_quant_spec *s); /* of a whole tensor; not DQ_SEARCH */
    dq_grid (*fit)(const float *w, int64_t n, const dq_quant_spec *s);
    /* The same where value i counts weight[i] times; called for modes with tries alone. */
    dq_grid (*fit_weighted)(const float *w, const double *weight, int64_t n,
                            const dq_quant_spec *s);
    /* Whether a type holds the scale, not 0, closely enough. */
    bool (*holds)(float scale, dq_dtype type);
    /* q[n] as dq_quant_pack_row takes them, u - 2^(bits-1), and got[n], the values that they stand for. */
    void (*encode)(int8_t *q, float *got, const float *w, int64_t n, dq_grid g,
                   const dq_quant_spec *s);
    /* Where codes of a column are found together, strips of DQ_STRIP_ROWS rows one by one, instead: q[padded rows] and got[rows] of
     * w[rows], scale[rows] being those of their groups; NULL: every value has its own. */
    void (*encode_strip)(int8_t *q, float *got, const float *w, const float *scale, int64_t rows,
                         const dq_quant_spec *s);
    /* The bytes of a strip of codes q[padded rows, cols]. */
    void (*pack_strip)(uint8_t *to, const int8_t *q, int64_t rows, int64_t cols, int bits);
    /* The integer that the scale of g multiplies for a code as encode gives it. */
    int (*level)(int8_t q, dq_grid g, const dq_quant_spec *s);
    /* Stores the grid of one group in a row of every part but the codes (zeroed memory). */
    void (*put)(uint8_t *const part[DQ_MAX_PARTS], int64_t group, dq_grid g,
                const dq_quant_spec *s);
} dq_weight_format;

extern const dq_weight_format dq_format_dense, dq_format_int, dq_format_int_zero, dq_format_trellis;
/* Of checkpoints that another tool has quantized; no container holds it, and so it is not in the table. */
extern const dq_weight_format dq_format_int_index;

/* By name, or by the mode of its scales; NULL: none has it. */
const dq_weight_format *dq_weight_format_named(const char *name);
const dq_weight_format *dq_weight_format_of_mode(dq_scale_mode mode);

static inline const dq_weight_format *dq_weight_format_of(const dq_weight *w)
{
    return w->format ? w->format : &dq_format_dense;
}

static inline bool dq_weight_is_coded(const dq_weight *w)
{
    return dq_weight_format_of(w)->is_coded;
}

static inline bool dq_weight_is_affine(const dq_weight *w)
{
    return dq_weight_format_of(w)->is_affine;
}

/* Whether products can be sums of integers. */
static inline bool dq_weight_is_integer(const dq_weight *w)
{
    return dq_weight_format_of(w)->is_affine || dq_weight_format_of(w)->has_levels;
}

dq_part dq_weight_part(const dq_weight *w, int i);    /* i < n_parts of its format */
size_t dq_weight_bytes(const dq_weight *w);           /* all parts */
double dq_weight_bits_per_weight(const dq_weight *w); /* with padding and scales */
/* What `bytes` are per weight, in bits, of n of them: the one place where that is worked out. 0 of none. */
double dq_weight_bits_over(int64_t bytes, int64_t n);

/* w[rows, cols] f32 of any weight; begin..end selects rows. */
void dq_weight_dequantize_rows(float *out, const dq_weight *w, int64_t begin, int64_t end);

/* Of a group of an affine weight. */
static inline float dq_weight_scale(const dq_weight *w, int64_t row, int64_t group)
{
    const int64_t r = w->scale_rows == 1 ? 0 : row;
    const size_t at = (size_t)(r * dq_quant_groups(w->cols, w->group_size) + group);
    if (w->scale_dtype == DQ_F16) {
        uint16_t h;
        memcpy(&h, (const uint8_t *)w->scale + at * sizeof h, sizeof h);
        return dq_f32_from_f16(h);
    }
    float s;
    memcpy(&s, (const uint8_t *)w->scale + at * sizeof s, sizeof s);
    return s;
}

/* Bytes of a row of zero points: `bits` bits each, packed as codes are, padded to a whole byte. */
static inline size_t dq_weight_zero_bytes(int64_t groups, int bits)
{
    return (size_t)groups / 8 * (size_t)bits + ((size_t)groups % 8 * (size_t)bits + 7) / 8;
}

static inline int dq_weight_zero(const dq_weight *w, int64_t row, int64_t group)
{
    if (!w->zero) return 1 << (w->bits - 1);
    const int64_t r = w->scale_rows == 1 ? 0 : row, bit = group * w->bits;
    const size_t bytes = dq_weight_zero_bytes(dq_quant_groups(w->cols, w->group_size), w->bits);
    const uint8_t *at = (const uint8_t *)w->zero + (size_t)r * bytes + bit / 8;
    unsigned u = at[0];
    if (bit % 8 + w->bits > 8) u |= (unsigned)at[1] << 8;
    return (int)(u >> bit % 8 & ((1u << w->bits) - 1));
}

#endif
