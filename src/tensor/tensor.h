/* Numbers of a matrix: dtypes, rounding to codes, and the formats that hold these.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TENSOR_H
#define DQ_TENSOR_H

#include "base/base.h"

#include <stdint.h>
#include <string.h>

/* Element types, views of host memory, exact conversions; owns nothing. */

typedef enum dq_dtype {
    DQ_F32,
    DQ_F16,
    DQ_BF16,
    DQ_F64,
    DQ_F8_E4M3,
    DQ_F8_E5M2,
    DQ_I64,
    DQ_I32,
    DQ_I16,
    DQ_I8,
    DQ_U64,
    DQ_U32,
    DQ_U16,
    DQ_U8,
    DQ_BOOL,
    DQ_DTYPE_COUNT
} dq_dtype;

typedef struct dq_dtype_info {
    const char *name; /* safetensors spelling, "BF16" */
    size_t bytes;     /* per element */
} dq_dtype_info;

extern const dq_dtype_info dq_dtypes[DQ_DTYPE_COUNT];

enum { DQ_MAX_DIMS = 8 };

/* Borrowed, row-major, perhaps unaligned: read it with memcpy or dq_tensor_to_f32. */
typedef struct dq_tensor {
    const char *name;
    dq_dtype dtype;
    int n_dims; /* 0..DQ_MAX_DIMS; 0 is a scalar */
    int64_t shape[DQ_MAX_DIMS];
    const void *data;
} dq_tensor;

int64_t
dq_tensor_numel(const dq_tensor *t); /* product of shape, 1 for a scalar; shapes are checked */
size_t dq_tensor_bytes(const dq_tensor *t);
/* From F32, F16, BF16 (exact) or F64 (nearest), perhaps unaligned. False: another type. */
bool dq_tensor_to_f32(float *dst, const void *src, dq_dtype type, int64_t n);
/* Round to nearest even; overflow gives infinity, and NaN stays NaN. */
uint16_t dq_f16_from_f32(float x);
float dq_f32_from_f16(uint16_t h);
uint16_t dq_bf16_from_f32(float x);
float dq_f32_from_bf16(uint16_t h);

/* ---- Weight ----
 * A matrix that knows its own storage, dense or packed. */

struct dq_weight_format;

/* y = W x with W[rows, cols]. Memory belongs to the model's source (checkpoint or container), both
 * of which are mapped; a backend may keep a copy of its own (dq_ops.weight_acquire).
 *
 * What the bytes mean is the format's business: "Weight format". Dense: data holds rows * cols
 * values of `dtype` (F32, F16 or BF16), perhaps unaligned. Coded (bits 2..8): data holds, but for
 * trellis codes (formats.c), rows of dq_quant_row_bytes(cols, bits) bytes, unsigned codes u, least
 * significant bit first, and groups of columns have a scale of type scale_dtype (F16 or F32), shape
 * [scale_rows, groups]; scale_rows is `rows`, or 1 when the whole tensor has one scale. */
typedef struct dq_weight {
    const char *name;
    int64_t rows, cols;                    /* rows 0: absent */
    const struct dq_weight_format *format; /* NULL: dense */
    int bits;                              /* of a code; dense: 16 */
    dq_dtype dtype;                        /* of dense values */
    const void *data;
    int64_t group_size; /* coded: columns per scale, 1..cols */
    int64_t scale_rows; /* coded: rows or 1 */
    dq_dtype scale_dtype;
    const void *scale;
    const void *zero;     /* zero points of groups; NULL: 2^(bits-1) */
    const int8_t *level;  /* [256] trellis: of windows */
    const int8_t *column; /* [cols] trellis: factors of columns (dq_weight_factor) */
    const int32_t *index; /* [cols] the group of each column; NULL: column / group_size */
} dq_weight;

static inline dq_weight dq_weight_of_f32(const char *name, int64_t rows, int64_t cols,
                                         const float *values)
{
    return (dq_weight){
        .name = name, .rows = rows, .cols = cols, .bits = 16, .dtype = DQ_F32, .data = values};
}

/* B-bit codes: packing, scales, the reference quantizer and error measures; this defines the
 * container's integers (FORMAT.md). */

typedef enum dq_scale_mode {
    DQ_ABSMAX,  /* scale = absmax / Qmax */
    DQ_SEARCH,  /* least squared error of absmax, the signed scale with its peak at -2^(b-1), and
                * smaller scales of either sign */
    DQ_ASYM,    /* (max - min) / (2^b - 1) of a range that includes 0, and an integer zero point */
    DQ_TRELLIS, /* levels that reach as far as the group; codes found together: format_trellis */
    DQ_QUANT_MODES
} dq_scale_mode;

/* Properties of a mode; "Weight format" says which format takes it. */
typedef struct dq_scale_mode_row {
    const char *name;  /* "absmax" */
    const char *about; /* for who is to choose; NULL: nothing */
    float tries
        [3]; /* gptq tries scales times these, and those of weighted errors; 0: it tries none */
    const char *negative; /* what is wrong with a negative scale; NULL: the mode makes them */
} dq_scale_mode_row;
extern const dq_scale_mode_row dq_quant_modes[DQ_QUANT_MODES];

enum { DQ_GROUP_ROW = -1, DQ_GROUP_TENSOR = -2 };

/* How a [rows, cols] matrix is to be stored. */
typedef struct dq_quant_spec {
    int bits;      /* 2..8, or 16: leave as it is */
    int64_t group; /* columns per scale >= 1, DQ_GROUP_ROW or DQ_GROUP_TENSOR */
    dq_scale_mode mode;
    dq_dtype scale_dtype; /* DQ_F16 or DQ_F32 */
    const int8_t
        *column; /* [cols] factors of columns (dq_weight_factor), somebody else's; NULL: all 1 */
} dq_quant_spec;

static inline dq_quant_spec dq_quant_spec_at(const dq_quant_spec *s, int64_t at)
{
    dq_quant_spec own = *s;
    if (own.column) own.column += at;
    return own;
}

int dq_quant_max_code(int bits); /* 2^(bits-1) - 1 */
/* Packed bytes of a row: bits * cols bits, zero-padded to a multiple of 4 bytes. */
size_t dq_quant_row_bytes(int64_t cols, int bits);
/* Scales per row for a group size in 1..cols. */
int64_t dq_quant_groups(int64_t cols, int64_t group_size);

/* Packs signed codes q[n] that fit in `bits`, and unpacks them. */
void dq_quant_pack_row(uint8_t *packed, const int8_t *q, int64_t cols, int bits);
void dq_quant_unpack_row(int8_t *q, const uint8_t *packed, int64_t cols, int bits);

/* A group's scale as stored in `dtype`, F16 or F32; w is finite. DQ_SEARCH has at most the error
 * (dq_quant_error, noise) of either other mode, in this dtype and F16. */
float dq_quant_group_scale(const float *w, int64_t n, int bits, dq_scale_mode mode, dq_dtype dtype);
/* The value of a scale once stored (rounded to nearest even). */
float dq_quant_stored_scale(float scale, dq_dtype dtype);
/* clamp(rint(w / scale)) to +-Qmax for DQ_ABSMAX, else -2^(b-1)..Qmax; scale 0 gives 0. */
void dq_quant_encode(int8_t *q, const float *w, int64_t n, int bits, float scale,
                     dq_scale_mode mode);
/* The same, and got[n] = q * scale. */
void dq_quant_encode_back(int8_t *q, float *got, const float *w, int64_t n, int bits, float scale,
                          dq_scale_mode mode);

/* Running error of a tensor, merged in row order. */
typedef struct dq_quant_error {
    double signal, noise; /* sums of w^2 and (w - w')^2 */
    double max_abs;
} dq_quant_error;
void dq_quant_error_add(dq_quant_error *e, const float *want, const float *got, int64_t n);
void dq_quant_error_merge(dq_quant_error *into, const dq_quant_error *from);
double dq_quant_sqnr_db(const dq_quant_error *e); /* +infinity when the noise is 0 */

/* The loops that dominate quantizing a checkpoint, in plain C and in a wider form for AVX2, chosen
 * once by dq_os_cpu_features. Both give the same bits, as every element is independent and sums
 * keep their lanes. */

enum { DQ_QUANT_LOOP_SCALES = 64 }; /* tried at once */

typedef struct dq_quant_loop_table {
    /* The largest magnitude of n values as bits of their type without sign, which order like
     * magnitudes; at or above infinity's: not finite. Unaligned sources allowed. top16 serves F16
     * and BF16. */
    uint32_t (*top32)(const void *src, int64_t n);
    uint32_t (*top16)(const void *src, int64_t n);
    void (*widen_bf16)(float *dst, const void *src, int64_t n);
    void (*widen_f16)(float *dst, const void *src, int64_t n);
    /* q[n] = clamp(rint(w / scale), low, high) with integer limits; got[n] (NULL: not wanted) = q *
     * scale; scale is not 0. */
    void (*encode)(int8_t *q, float *got, const float *w, int64_t n, float scale, float low,
                   float high);
    /* sums[j], sums[8 + j], sums[16 + j]: w^2, d^2 and the largest |d|, d = want - got, over i % 8
     * == j in ascending i. */
    void (*error)(double sums[24], const float *want, const float *got, int64_t n);
    /* misses[k] += sum of (x - rint(clamp(x, low, high)))^2 in f32, x = w * inverse[k]: the squared
     * distance of n values to codes of scale 1 / inverse[k]. */
    void (*misses)(float misses[DQ_QUANT_LOOP_SCALES], const float inverse[DQ_QUANT_LOOP_SCALES],
                   const float *w, int64_t n, float low, float high);
    void (*pack8)(uint8_t *packed, const int8_t *q, int64_t n); /* q + 128 */
    /* Two codes per byte, the even column in the low half. */
    void (*pack4)(uint8_t *packed, const int8_t *q, int64_t n);
} dq_quant_loop_table;

const dq_quant_loop_table *dq_quant_loops(void); /* for this machine */
const dq_quant_loop_table *dq_quant_loops_plain(void);

/* ---- Searched scales ----
 * The pieces of DQ_SEARCH, for groups that do not fit in memory at once (one scale for a whole
 * tensor). A first sweep ranks a grid of scales by their error in f32, a second one measures the
 * best of them beside the scales of the other modes, as dq_quant_error does, so that no other mode
 * can win. The caller adds up what each sweep says of the pieces. */

enum { DQ_N_CANDIDATES = DQ_QUANT_LOOP_SCALES, DQ_N_FINALISTS = 5 };

typedef struct dq_quant_search {
    int bits, n_finalists;
    float candidate
        [DQ_N_CANDIDATES]; /* absmax / Qmax down to a fifth of it, with either sign, as stored;
                                         0: this one cannot be stored */
    float inverse[DQ_N_CANDIDATES];
    float finalist[DQ_N_FINALISTS]; /* as stored: absmax, signed, both as F16 too where F32 is
                                       stored, the best candidate */
} dq_quant_search;

/* peak: the value of largest magnitude (the first of equals), not 0. */
void dq_quant_search_begin(dq_quant_search *s, float peak, int bits, dq_dtype dtype);
/* First sweep: error[k] += sum of (w - candidate[k] q)^2, in f32. */
void dq_quant_search_rank(const dq_quant_search *s, double error[DQ_N_CANDIDATES], const float *w,
                          int64_t n);
/* The best candidate joins the finalists. */
void dq_quant_search_narrow(dq_quant_search *s, const double error[DQ_N_CANDIDATES]);
/* Second sweep: adds each finalist's noise, as dq_quant_error_add does. */
void dq_quant_search_measure(const dq_quant_search *s, double error[DQ_N_FINALISTS], const float *w,
                             int64_t n);
/* The finalist with the least error, the first of equals. */
float dq_quant_search_end(const dq_quant_search *s, const double error[DQ_N_FINALISTS]);
float dq_quant_signed_scale(float peak, int bits);
/* The value of largest magnitude with its sign, the first of equals; 0 for n = 0. */
float dq_quant_peak(const float *w, int64_t n);
/* Whether F16 holds a scale as 0 or a normal number. */
bool dq_quant_scale_fits_f16(float scale);

/* ---- Trellis ----
 * Codes of which each is read together with its neighbours. A column's codes of `bits` bits stand
 * one after the other in a ring of bits, row after row; the value of a row is the level that the
 * eight bits from its own on name. So a row chooses among 2^bits levels, its neighbours choose
 * which: of normal values in groups of 64 that loses .63, .67, .69 and .74 of what integers of 2,
 * 3, 4 and 5 bits lose with the best scale of each group (.077, .021, .0056 and .0015 of the mean
 * square). Source: trellis coded quantization, Marcellin and Fischer 1990; the ring of bits and
 * its windows, QTIP, arXiv 2406.11235. */

enum {
    DQ_TRELLIS_LEVELS = 256, /* of a table: windows of 8 bits */
    DQ_TRELLIS_ROWS = 128,   /* of a ring, at most */
    DQ_TRELLIS_MIN_BITS = 2,
    DQ_TRELLIS_MAX_BITS = 5
};

/* Levels by window, -127 to 127, for normally distributed groups of 64 in units of their root mean
 * square, or of their largest magnitude / `reach` where that is more. */
typedef struct dq_trellis_table {
    float reach;
    float peak;  /* units that level 127 stands for */
    float error; /* mean square in units */
    int8_t level[DQ_TRELLIS_LEVELS];
} dq_trellis_table;
const dq_trellis_table *dq_trellis_table_of(int bits);

/* Windows u[n] of a ring, n <= DQ_TRELLIS_ROWS a multiple of 8, whose levels times scale[n] come
 * near want[n]: the least sum of squared errors, each divided by |scale|, so that rows of small
 * scales, which whole sums would give up, keep more of themselves. Rows with scale 0 count nothing.
 * It is the least of all rings but for where the ring closes: its state there is that of the best
 * open sequence. */
void dq_trellis_encode(uint8_t *u, const float *want, const float *scale, int64_t n, int bits);
/* In plain C, for tests. */
void dq_trellis_encode_plain(uint8_t *u, const float *want, const float *scale, int64_t n,
                             int bits);
/* n * bits / 8 bytes of a ring from its windows, and back. */
void dq_trellis_pack(uint8_t *ring, const uint8_t *u, int64_t n, int bits);
static inline uint8_t dq_trellis_window(const uint8_t *ring, int64_t row, int64_t n, int bits)
{
    const int64_t bit = row * bits, bytes = n * bits / 8, at = bit / 8;
    const unsigned two = ring[at] | (unsigned)ring[at + 1 < bytes ? at + 1 : 0] << 8;
    return (uint8_t)(two >> bit % 8);
}

/* ---- Weight format ----
 * How a matrix is stored, one row of a table a format: its name, the datasets it has in a
 * container and what is true of them, decoding, encoding, and what kernels may do with its codes.
 * A format is one file, format_NAME.c, with one dq_weight_format; everybody else asks the row. */

enum {
    DQ_MAX_DATASETS = 4,
    DQ_STRIP_ROWS =
        128, /* of codes that are found together; the last strip of a matrix may have fewer */
    DQ_STRIP_BLOCK = 32 /* rows of a strip are filled up to a multiple */
};
static inline int64_t dq_weight_strip_padded(int64_t rows)
{
    return (rows + DQ_STRIP_BLOCK - 1) / DQ_STRIP_BLOCK * DQ_STRIP_BLOCK;
}

/* A dataset of a stored matrix: a matrix of entries in a container's shape. */
typedef struct dq_dataset {
    int bits;           /* of one entry */
    int64_t rows, cols; /* of entries */
    dq_dtype dtype;     /* of the dataset: U8 where entries are packed */
    int64_t shape[2];   /* of the dataset */
    const void *data;   /* NULL while it is a plan */
} dq_dataset;
size_t dq_dataset_bytes(const dq_dataset *p);

typedef struct dq_dataset_row {
    const char *name;     /* of the dataset in the tensor's group: "packed" */
    const char *encoding; /* in /index */
    const char *label;    /* of the second axis of the dataset; the first is "out" */
    bool is_codes; /* an entry per value; bits per weight and SQNR stand in its row of /index */
    size_t at;     /* of the pointer to it in dq_weight */
    /* Describes the dataset of a weight whose other fields are known. */
    dq_dataset (*of)(const dq_weight *w);
    /* Sets what only the dataset tells; NULL function: nothing. NULL, or what is wrong. */
    const char *(*look)(dq_weight *w, const dq_tensor *found);
    /* What is wrong with the contents; NULL: nothing. */
    const char *(*wrong)(const dq_dataset *p, dq_scale_mode mode);
    /* Contents that do not depend on codes; NULL function: they do; NULL result: zeros. */
    const void *(*fixed)(const dq_quant_spec *s);
} dq_dataset_row;
/* Sets the weight's pointer to a dataset, and what only that tells. NULL, or what is wrong. */
const char *dq_dataset_take(dq_weight *w, const dq_dataset_row *row, const dq_tensor *found);

/* An attribute of the tensor's group that depends on the codes' width. */
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

/* The values of a group, as far as its scale depends on them. */
typedef struct dq_weight_range {
    /* of largest magnitude, the first of equals; only DQ_SEARCH uses its sign */
    float peak;
    float low, high; /* at most 0 and at least 0; found for formats with `ends` alone */
} dq_weight_range;

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

typedef struct dq_grid {
    float scale;
    int zero;
} dq_grid;

/* Codes and grid in one piece, as other programs store them. */
typedef struct dq_block {
    uint32_t number; /* of the type, in files of the other program */
    int bits;        /* of a code */
    int values, bytes;
    void (*read)(float *y, const uint8_t *b); /* y[values] */
    /* Writes q[values] with f16 scale d and, where the type has one, f16 lowest value; NULL: such
     * blocks are only read. */
    void (*write)(uint8_t *b, const int8_t *q, uint16_t d, uint16_t low);
} dq_block;

typedef struct dq_weight_format {
    const char *name; /* encoding-type of the tensor's group or dataset */
    bool is_coded;    /* codes of 2..8 bits in groups; else values of dq_weight.dtype */
    /* w = (u - zero) * scale, one f32 product with an integer zero per group, which integer kernels
     * can use (dq_weight_zero, dq_weight_scale). */
    bool is_affine;
    /* w = level * scale * factor, with 8-bit levels from a table and a factor per column, which
     * integer kernels can use. */
    bool has_levels;
    const dq_block *block; /* rows are runs of such blocks; NULL: codes and scales are apart */
    const char *note;      /* for lines about a weight, besides width and groups; NULL: nothing */
    /* besides those of every coded tensor; ends with {0} */
    const dq_weight_attribute *attribute;
    const dq_dataset_row *dataset; /* [n_datasets], in path order */
    int n_datasets;
    /* out[n] = columns first .. first + n of a row; first is a multiple of 8 */
    void (*dequantize)(float *out, const dq_weight *w, int64_t row, int64_t first, int64_t n);

    /* Below, coded formats only: values are finite; s has width, mode and type of scales. */
    unsigned modes; /* 1 << dq_scale_mode: those that give this format */
    bool ends;      /* wants dq_weight_range.low and high */
    bool (*fits_f16)(const dq_weight_range *r,
                     const dq_quant_spec *s); /* every scale that may come of it */
    dq_grid (*grid)(const dq_weight_range *r,
                    const dq_quant_spec *s); /* of a whole tensor; not DQ_SEARCH */
    dq_grid (*fit)(const float *w, int64_t n, const dq_quant_spec *s);
    /* Value i counts weight[i] times; only for modes with tries. */
    dq_grid (*fit_weighted)(const float *w, const double *weight, int64_t n,
                            const dq_quant_spec *s);
    /* Whether a type holds a nonzero scale closely enough. */
    bool (*holds)(float scale, dq_dtype type);
    /* q[n] = u - 2^(bits-1), as for dq_quant_pack_row, and got[n], their values. */
    void (*encode)(int8_t *q, float *got, const float *w, int64_t n, dq_grid g,
                   const dq_quant_spec *s);
    /* For codes found together by column, in strips of DQ_STRIP_ROWS rows: q[padded rows] and
     * got[rows] of w[rows], with their groups' scale[rows]; NULL: values are independent. */
    void (*encode_strip)(int8_t *q, float *got, const float *w, const float *scale, int64_t rows,
                         const dq_quant_spec *s);
    /* The bytes of a strip q[padded rows, cols]. */
    void (*pack_strip)(uint8_t *to, const int8_t *q, int64_t rows, int64_t cols, int bits);
    /* The integer that the scale of g multiplies, for a code from encode. */
    int (*level)(int8_t q, dq_grid g, const dq_quant_spec *s);
    /* Stores a group's grid in a row of every dataset but the codes, in zeroed memory. */
    void (*put)(uint8_t *const dataset[DQ_MAX_DATASETS], int64_t group, dq_grid g,
                const dq_quant_spec *s);
} dq_weight_format;

extern const dq_weight_format dq_format_dense, dq_format_int, dq_format_int_zero, dq_format_trellis;
/* For checkpoints quantized elsewhere; no container holds it, so it is not in the table. */
extern const dq_weight_format dq_format_int_index;

/* By name, or by mode of scales; NULL: none. */
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

/* Whether products can be integer sums. */
static inline bool dq_weight_is_integer(const dq_weight *w)
{
    return dq_weight_format_of(w)->is_affine || dq_weight_format_of(w)->has_levels;
}

dq_dataset dq_weight_dataset(const dq_weight *w, int i); /* i < n_datasets of its format */
size_t dq_weight_bytes(const dq_weight *w);              /* all datasets */
double dq_weight_bits_per_weight(const dq_weight *w);    /* with padding and scales */
/* Bits per weight of `bytes` over n weights, worked out only here; 0 for none. */
double dq_weight_bits_over(int64_t bytes, int64_t n);

/* f32 values of rows begin .. end - 1 of any weight. */
void dq_weight_dequantize_rows(float *out, const dq_weight *w, int64_t begin, int64_t end);

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

/* Bytes of a row of zero points of `bits` bits, packed like codes and padded to a byte. */
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

/* Codes and grids of a matrix before packing, an entry per value and per group. */

typedef struct dq_code_shape {
    int64_t rows, cols;
    int64_t group_size; /* 1..cols; the last group of a row may be short */
    int64_t groups;     /* of a row */
    int64_t grid_rows;  /* rows, or 1: one grid for the whole matrix */
} dq_code_shape;
dq_code_shape dq_code_shape_of(int64_t rows, int64_t cols, const dq_quant_spec *spec);

/* Owned by its maker. */
typedef struct dq_codes {
    dq_code_shape shape;
    dq_quant_spec spec;
    /* [rows, cols] u - 2^(bits-1) from encode of dq_weight_format, or encode_strip with rows that
     * fill the last block */
    int8_t *code;
    dq_grid *grid; /* [grid_rows, groups] */
} dq_codes;

/* Rows of codes; the last block may add some. */
int64_t dq_codes_rows(int64_t rows, const dq_quant_spec *spec);
/* What the spec's factors are to be, [cols]: such that columns of a matrix divided by them are at
 * most 1.5 times as large as their median, in the root of the mean of squares; others have 1.
 * sums[cols] are those of strips of DQ_STRIP_ROWS rows, each 0 at first, added in order.
 * DQ_RESOURCE. */
void dq_codes_column_sums(double *sums, const float *strip, int64_t rows, int64_t cols);
dq_status dq_codes_columns(int8_t *column, const double *sums, int64_t cols, dq_err *err);
/* For a whole matrix. DQ_RESOURCE. */
dq_status dq_codes_columns_of(int8_t *column, const float *w, int64_t rows, int64_t cols,
                              dq_err *err);
/* Zeroed; spec.bits is 2..8. DQ_RESOURCE. */
dq_status dq_codes_new(dq_codes **out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err);
void dq_codes_free(dq_codes *c); /* NULL allowed */
/* Grids of finite w[rows, cols] by the spec's mode, each from its group alone. Whether F16 holds
 * them is the caller's business (fits_f16 of dq_weight_format). */
void dq_codes_fit(dq_codes *c, const float *w);
/* Grids and codes of one strip w[rows, cols], with scales refitted to the codes twice; runs on the
 * calling thread. */
void dq_codes_round_strip(dq_codes *c, const float *w);
/* Whether the spec's type holds every scale of the row. */
bool dq_codes_row_fits(const float *row, const dq_code_shape *s, const dq_quant_spec *spec);
static inline float dq_codes_factor(const dq_codes *c, int64_t col)
{
    return c->spec.column ? dq_weight_factor(c->spec.column[col]) : 1.0f;
}
static inline dq_grid dq_codes_grid(const dq_codes *c, int64_t row, int64_t col)
{
    const dq_code_shape *s = &c->shape;
    return c->grid[(s->grid_rows == 1 ? 0 : row) * s->groups + col / s->group_size];
}

static inline float dq_codes_value(const dq_codes *c, int64_t row, int64_t col)
{
    const dq_grid g = dq_codes_grid(c, row, col);
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    const float x = (float)f->level(c->code[row * c->shape.cols + col], g, &c->spec) * g.scale;
    return c->spec.column ? x * dq_codes_factor(c, col) : x;
}

/* A coded matrix in memory: a dq_weight with exactly a container's bytes. */

/* A coded matrix whose datasets lie in one block. */
typedef struct dq_coded {
    dq_weight weight; /* name NULL; pointers into `bytes` */
    uint8_t *bytes;
} dq_coded;

/* End with dq_coded_free. DQ_RESOURCE. */
dq_status dq_coded_pack(dq_coded *out, const dq_codes *c, dq_err *err);
/* For rows packed band by band, or datasets read from a file. */
dq_status dq_coded_new(dq_coded *out, int64_t rows, int64_t cols, const dq_quant_spec *spec,
                       dq_err *err);
/* Packs rows from `first` on of a matrix with this spec; with a single grid, all rows. */
void dq_coded_put(dq_coded *out, const dq_codes *c, int64_t first);
uint8_t *dq_coded_dataset(dq_coded *c, int dataset); /* the bytes of a dataset, to be filled */
void dq_coded_free(dq_coded *c);                     /* {0} allowed */

const char *dq_dataset_wrong_scales(const dq_dataset *p, dq_scale_mode mode);

/* Matrices in ggml blocks, as in GGUF files. No container holds them, and no kernel multiplies
 * their codes: rows are dequantized. */

/* Numbers of ggml_type used elsewhere. */
enum {
    DQ_GGML_F32 = 0,
    DQ_GGML_F16 = 1,
    DQ_GGML_Q4_0 = 2,
    DQ_GGML_Q4_1 = 3,
    DQ_GGML_Q5_0 = 6,
    DQ_GGML_Q5_1 = 7,
    DQ_GGML_Q8_0 = 8,
    DQ_GGML_BF16 = 30
};

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS; NULL: another number. */
const dq_weight_format *dq_format_ggml(uint32_t number);
/* Blocks of rows x cols values at `data`; cols is a multiple of format->block->values. */
dq_weight dq_format_ggml_weight(const dq_weight_format *format, const char *name, int64_t rows,
                                int64_t cols, const void *data);

#endif
