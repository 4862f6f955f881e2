/* simd: the inner loops of the CPU backend, one table per instruction set. Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_H
#define DQ_SIMD_H

#include "tensor/tensor.h"

#define INLINE static inline __attribute__((always_inline))

/* A case of a switch: the statement with NAME as a constant, in code of its own. */
#define CASE_OF(NAME, VALUE, ...)                                                                  \
    case VALUE: {                                                                                  \
        enum { NAME = VALUE };                                                                     \
        __VA_ARGS__;                                                                               \
        break;                                                                                     \
    }
/* The statement with ROWS, 1 to 4, or BITS, a width of codes in the KV cache, as a constant. */
#define WITH_ROWS(n, ...)                                                                          \
    switch (n) {                                                                                   \
        CASE_OF(ROWS, 1, __VA_ARGS__)                                                              \
        CASE_OF(ROWS, 2, __VA_ARGS__)                                                              \
        CASE_OF(ROWS, 3, __VA_ARGS__)                                                              \
    default: CASE_OF(ROWS, 4, __VA_ARGS__)                                                         \
    }
#define WITH_BITS(n, ...)                                                                          \
    switch (n) {                                                                                   \
        CASE_OF(BITS, 8, __VA_ARGS__)                                                              \
        CASE_OF(BITS, 6, __VA_ARGS__)                                                              \
        CASE_OF(BITS, 5, __VA_ARGS__)                                                              \
        CASE_OF(BITS, 4, __VA_ARGS__)                                                              \
        CASE_OF(BITS, 3, __VA_ARGS__)                                                              \
    default: CASE_OF(BITS, 2, __VA_ARGS__)                                                         \
    }

/* Columns of a tile of B: K pages ([head_dim][64]) and blocks of transposed weights share it. */
enum { DQ_TILE_N = 64 };
/* A product with weights is the sum, in order, of chains over DQ_CHAIN values of k. */
enum { DQ_CHAIN = 256 };
/* Limits that sizes are compared with at a time. */
enum { DQ_SIMD_LIMITS = 4 };

/* 2 sqrt(2 / pi) and 0.044715 times that, as 1 + tanh(t) is 2 / (1 + exp(-2 t)). */
#define DQ_GELU_A 1.59576912f
#define DQ_GELU_B 0.0713548163f

/* Rules that hold for every function:
 * - pointers need only the alignment of their type; vectors never read or write outside what the
 *   comment names;
 * - `gemm` gives the same bits for a given element whatever m, n and the position in the tile are;
 *   AVX2 and AVX-512 agree bit for bit (fused chains), scalar rounds products too (plain a*b + c);
 * - every other function gives the same bits on all three instruction sets. */
typedef struct dq_simd {
    const char *name; /* "scalar", "AVX2", "AVX-512" */

    /* C[i*ldc + j] = (add ? C[i*ldc + j] : 0) + s(i,j), s(i,j) = sum over kk < k of
     * A[i*lda + kk] * B[kk*ldb + j] as one chain in ascending kk that starts at 0; the addition to
     * C is one rounding after the chain. 1 <= n <= 64. Rows of B must be readable up to n rounded
     * up to a multiple of 16; of C only n columns are touched. S = Q K^T: B is a page
     * [head_dim][64]; D V: B is [64][head_dim padded to 16], 64 columns per call. */
    void (*gemm)(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, bool add);
    /* The same bits with B of F16 or BF16, for few rows: every 6 of them convert B in registers. */
    void (*gemm_half)(float *c, int64_t ldc, const float *a, int64_t lda, const void *b,
                      dq_dtype type, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add);
    /* The bits of gemm's sums for each DQ_CHAIN of k, in order, with W[n][ldw] not transposed:
     * s(i,j) = sum A[i*lda + kk] * W[j*ldw + kk]. For up to about 8 rows and long rows of W. 1 <= n
     * <= 16; 16 rows of W must be readable. */
    void (*skinny)(float *c, int64_t ldc, const float *a, int64_t lda, const float *w, int64_t ldw,
                   int64_t m, int64_t n, int64_t k, bool add);
    /* The same sums with W of bfloat16. n is a multiple of 16 (best of 32). */
    void (*skinny_bf16)(float *c, int64_t ldc, const float *a, int64_t lda, const uint16_t *w,
                        int64_t ldw, int64_t m, int64_t n, int64_t k, bool add);
    /* dst[j*ldd + i] = src[i*lds + j], i < rows, j < cols. */
    void (*transpose)(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                      int64_t cols);

    /* x *= scale in place (one product each); returns the largest result, -infinity for n = 0. NaN
     * is skipped in the maximum. */
    float (*scale_max)(float *x, int64_t n, float scale);
    /* Largest x; -infinity for n = 0. NaN is skipped. */
    float (*max)(const float *x, int64_t n);
    /* Largest |x|, 0 for n = 0; NaN if there is any. Independent of order. */
    float (*absmax)(const float *x, int64_t n);
    /* x = clamp(rint(x * r), -qmax, qmax) * delta in place, ties to even; three roundings as
     * written. */
    void (*round_to_grid)(float *x, int64_t n, float r, float qmax, float delta);
    /* p = exp(s - m), p may be s. Returns the sum: 64 values in 16 interleaved f32 lanes, added
     * pairwise, then in double; rows cut at multiples of 64 therefore add up to the same result.
     * exp within 1 ulp; 0 below -87.33, so that s = -infinity gives 0 if m is finite. */
    double (*exp_sum)(float *p, const float *s, int64_t n, float m);
    /* sum of exp((double)(s - m)) as exp_sum, without storing. */
    double (*sum_exp)(const float *s, int64_t n, float m);
    /* The sums of exp(u), exp(v) and exp(u) (u - v) where exp(u) is not 0, of u = p - top_p and v =
     * q - top_q in double: 8 interleaved lanes, added pairwise. exp within 1 ulp; 0 below -708.
     * Equal p and q give equal sums and 0. */
    void (*divergence)(double sum[3], const float *p, const float *q, int64_t n, double top_p,
                       double top_q);
    /* -sum of x log(x) over x = p * a, without those below 2^-126 and NaN: 8 interleaved lanes of
     * double, added pairwise. log within 1 ulp. */
    double (*entropy)(const float *p, int64_t n, float a);
    /* Of d = a * p1 - b * p2 as diff makes it (p2 NULL: a * p1 >= 0): page[i] = sum of |d| of 64
     * values, below[k] += number of |d| less than limit[k] (DQ_SIMD_LIMITS). Returns the sum of |d|
     * where d < 0. Lanes as entropy. */
    double (*map_sizes)(double *page, int64_t *below, const float *p1, const float *p2, int64_t n,
                        float a, float b, const float *limit);
    /* A dq_tally_powers: adds sums of |x|, x^2, x^4 in double, each step rounded, in 8 lanes. */
    void (*power_sums)(double sum[3], const float *x, int n);
    /* d = a * p1 - b * p2: two products, one difference. d may be p1 or p2. */
    void (*diff)(float *d, const float *p1, const float *p2, int64_t n, float a, float b);
    /* x *= a in place. */
    void (*scale)(float *x, int64_t n, float a);
    /* y = (x * a) * w, w NULL: x * a. y may be x. */
    void (*scale_gain)(float *y, const float *x, int64_t n, float a, const float *w);
    /* sum of x^2 in double: 8 interleaved lanes (value i in lane i mod 8), added pairwise. */
    double (*sum_squares)(const float *x, int64_t n);
    /* x += y */
    void (*add)(float *x, const float *y, int64_t n);
    /* g = g / (1 + exp(-g)) * u */
    void (*silu_mul)(float *g, const float *u, int64_t n);
    /* g = g / (1 + exp(-g (DQ_GELU_A + DQ_GELU_B g^2))) * u: GELU by tanh */
    void (*gelu_mul)(float *g, const float *u, int64_t n);
    /* Rotation of pairs (lo[i], hi[i]), i < n: lo = lo*c - hi*s, hi = hi*c + lo*s, each product
     * rounded. */
    void (*rotate)(float *lo, float *hi, const float *cos, const float *sin, int64_t n);

    /* dst[n] = src[n] of type F32, F16 or BF16 (exact), src perhaps unaligned. */
    void (*widen)(float *dst, const void *src, dq_dtype type, int64_t n);
    /* out[g * 64 + t] = in[t * n + g], f16, of 64 slots; false: not for this n; NULL: for none. */
    bool (*turn_scales)(float *out, const uint16_t *in, int64_t n);
    /* dst[n] = (u - zero) * scale, codes u from `first`, a multiple of 32, of a packed row. */
    void (*codes)(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                  int64_t n, int zero, float scale);
    /* to[chunks][bits][32 rows] of 32-bit words, lines (dq_simd_prepacked_weight), from the words
     * of packed rows, for fewer than 8 bits. */
    void (*lines)(void *to, const void *words, int bits, int64_t chunks);
    /* Codes of a KV page (kv_lines.h) times their scales: keys dst[channels][64], a line per
     * channel, scale[runs of `group` channels][64]; values dst[tokens][cols], a line per token,
     * scale[tokens][n_scales], the last one to the end of the line. */
    void (*read_keys)(float *dst, const uint8_t *codes, int bits, int64_t channels, int64_t group,
                      const float *scale);
    void (*read_values)(float *dst, const uint8_t *codes, int bits, int64_t tokens, int64_t cols,
                        int64_t group, const float *scale, int64_t n_scales);
    /* Codes of one set: dst[channels][64] = code * step[channel] + low[channel]; values of tokens
     * first .. end-1 = (code - dither[token]) * step[col] + low[col]. One product, one sum. */
    void (*read_page_keys)(float *dst, const uint8_t *codes, int bits, int64_t channels,
                           const float *step, const float *low);
    void (*read_page_values)(float *dst, const uint8_t *codes, int bits, int64_t first, int64_t end,
                             int64_t cols, const float *step, const float *low,
                             const float *dither);
} dq_simd;

extern const dq_simd dq_simd_scalar;
#if defined(__x86_64__)
extern const dq_simd dq_simd_avx2;
extern const dq_simd dq_simd_avx512;
#endif

/* A packed weight as products read it (cpu_prepacked.c). A block is 32 rows: groups one after
 * another, each with its codes, chunk after chunk of 32 columns, and scales [32 rows]; before every
 * two groups their zero points [2][32 rows], bytes, where groups have their own. Missing rows and
 * columns are zeros. Products read a block in the order of its addresses, which processors foresee.
 *
 * The codes of a chunk are `bits` lines, a word for each row. Columns 4 s .. 4 s + 3 are step s, a
 * byte of a word each: each byte of a line has 8 / bits whole codes, low bits first, for the steps
 * in order. The steps without lines (2 of 3 and of 6 bits, 3 of 5, 1 of 7) fill the spare high
 * bits, one after the other from the first line on. */
enum { DQ_PREPACKED_ROWS = 32, DQ_PREPACKED_COLS = 32 };
/* The most rows of activations that a table may take in one call, and blocks. */
enum {
    DQ_PREPACKED_INT8_MAX = 8,
    DQ_PREPACKED_F32_MAX = 3,
    DQ_PREPACKED_DOTS_MAX = 9,
    DQ_PREPACKED_WIDE = 4
};
/* Pieces begin where groups do. Sums of 128 * 255 * 128 * 257 fit 32 bits; longer pieces are hardly
 * faster, and an outlier coarsens all columns of its piece. */
enum { DQ_PREPACKED_PIECE = 4 };
typedef struct dq_simd_prepacked_weight {
    const uint8_t *data; /* [blocks][bytes], on 64 bytes */
    int bits, zero;      /* zero: of all groups, where they have none of their own */
    bool scale_f16, own_zeros;
    int64_t rows, cols, chunks; /* chunks of a row */
    int64_t groups, group;      /* group: chunks of a scale */
    int64_t scales, bytes;      /* scales: bytes of a group's; bytes: of a block */
} dq_simd_prepacked_weight;

enum { DQ_PREPACKED_ZEROS = 2 * DQ_PREPACKED_ROWS }; /* bytes of two groups' zero points */

/* Bytes from a block to the codes of a group. */
static inline int64_t dq_simd_prepacked_group(const dq_simd_prepacked_weight *w, int64_t group)
{
    const int64_t codes = w->group * w->bits * DQ_PREPACKED_ROWS * 4;
    return group * (codes + w->scales) + (w->own_zeros ? (group / 2 + 1) * DQ_PREPACKED_ZEROS : 0);
}

/* Unpacked codes, a byte each: of each group [chunks][8 steps] lines, then [32 rows] of scales in
 * f32 and negated zero points in 32 bits, and one more line. 8-bit codes and zero points are less
 * 128; their steps have two lines, |c| and -(c < 0), and the last line sums |c| where c < 0. */
enum {
    DQ_UNPACKED_CHUNK = DQ_PREPACKED_ROWS * DQ_PREPACKED_COLS,
    DQ_UNPACKED_TAIL = 12 * DQ_PREPACKED_ROWS
};

static inline int64_t dq_simd_unpacked_bytes(const dq_simd_prepacked_weight *w, int64_t chunks)
{
    const int64_t groups = (chunks + w->group - 1) / w->group;
    return chunks * (w->bits == 8 ? 2 : 1) * DQ_UNPACKED_CHUNK + groups * DQ_UNPACKED_TAIL;
}

/* n blocks of a weight, `apart` bytes from each other. */
typedef struct dq_simd_blocks {
    const uint8_t *at;
    int64_t apart;
    int n;
} dq_simd_blocks;

/* m rows of 8-bit activations: codes [column / 4][m][4], zeros up to whole chunks; scales and sums
 * of codes [groups][m], the sums times -zero where groups share one. Where int8_words are
 * the weight's bits, codes are words of 16 bits, four columns in the order 0, 2, 1, 3. */
typedef struct dq_simd_prepacked_rows {
    const int8_t *code;
    const float *scale;
    const int32_t *sum;
} dq_simd_prepacked_rows;

/* m rows as split integers, d0 * 65536 + d1 * 256 + d2 units with digits in -128 .. 127: digits
 * [column / 4][m][3][4], zeros up to whole chunks; units [pieces][m], powers of two;
 * [pieces][m][3]: minus the sums of digits, times the zero point where all groups share it. Digits
 * are words where codes are. */
typedef struct dq_simd_split_rows {
    const int8_t *code;
    const float *unit;
    const int32_t *start;
} dq_simd_split_rows;

typedef struct dq_simd_prepacked {
    int int8_rows, f32_rows; /* of a call, at most DQ_PREPACKED_INT8_MAX, DQ_PREPACKED_F32_MAX */
    int int8_one;            /* rows that are best taken with one block */
    int int8_words; /* bits of weights that take activations as words of 16 bits; 0: none do */
    /* y[r * ldy + j], r < m, row j of the blocks: each group in order adds (float)(dots - zero *
     * sum) * (activation scale * weight scale), the same bits in every table. */
    void (*int8)(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks blocks,
                 const dq_simd_prepacked_rows *a, int m);
    /* For many rows (NULL: int8 serves them). unpack: `chunks` chunks of a block, from a group on,
     * up to a group's end or the row's, to to[dq_simd_unpacked_bytes], aligned to 64 bytes.
     * int8_unpacked: int8's sums over these, added to y where `add`; a begins at these columns with
     * bytes, 2 <= m <= int8_one, and its sums are times the unpacked zero point. */
    void (*unpack)(uint8_t *to, const dq_simd_prepacked_weight *w, const uint8_t *block,
                   int64_t group, int64_t chunks);
    void (*int8_unpacked)(float *y, int64_t ldy, const dq_simd_prepacked_weight *w,
                          const uint8_t *unpacked, int64_t chunks, const dq_simd_prepacked_rows *a,
                          int m, bool add);
    /* The same in f32: each piece adds ((float)s0 * 65536 + (float)(s1 * 256 + s2)) * weight scale
     * * unit, s0, s1, s2 the sums of (code - zero) * digit. */
    void (*f32)(float *y, int64_t ldy, const dq_simd_prepacked_weight *w, dq_simd_blocks blocks,
                const dq_simd_split_rows *a, int m);
    /* Splits n columns of a row, digit d at line[d * ld + column]. The unit is the least power of
     * two with max < unit * 2^23 / (1 + 1/128), NaN where max is not finite. rest[n] (may be NULL):
     * x less its units, exact. Returns whether the rest should count: it is not zero, and half of
     * the activations or more have at most an eighth of the largest and a mean below 2^16 units. */
    bool (*split)(int8_t *line, int64_t ld, float *unit, int32_t sum[3], float *rest,
                  const float *x, int64_t n, float max);
} dq_simd_prepacked;

extern const dq_simd_prepacked dq_simd_prepacked_scalar;
#if defined(__x86_64__)
extern const dq_simd_prepacked dq_simd_prepacked_avx2;
extern const dq_simd_prepacked dq_simd_prepacked_vnni; /* AVX-512 with VNNI */
#endif

/* Rows of one query head in 8 bits, rounded by the runs of a page's scales, padded to 4. */
typedef struct dq_simd_int8_rows {
    const int8_t *code; /* [rows][ld] */
    int64_t ld;
    const float *scale; /* [rows][n] */
    const int32_t *sum; /* [rows][n] of codes */
} dq_simd_int8_rows;

/* Rows that need no block (the bytes of D are two). */
enum { DQ_PAGES_FEW = 4 };

/* Slots first .. end-1 of one page of one KV head, as integers. */
typedef struct dq_simd_int8_page {
    uint8_t *block; /* of key_block or value_block, or room for it; 64-byte aligned */
    const uint8_t *codes,
        *next; /* as they take them, for at most DQ_PAGES_FEW rows; NULL: the block is made */
    const float *scale;  /* [n][64]: of each run of channels, all slots; zero where not coded */
    const float *middle; /* the same, added to code * scale of values; NULL: none */
    int bits;
    int64_t dim, group, n; /* channels, channels per scale, scales per slot */
    int64_t first, end;
} dq_simd_int8_page;

/* Sets of slots have steps and middles by channel; a set begins at every bit of `begins`. */
typedef struct dq_simd_set_page {
    uint8_t *block; /* as key_block of one run, or value_block, made it, or room for it */
    const uint8_t *codes, *next; /* as above */
    const float *sets;           /* [sets][2][cols]: step, and low + 2^(bits-1) step */
    int bits;
    int64_t dim, cols;
    uint64_t begins;
    int64_t first, end;
    const float *dither; /* [64], of values */
} dq_simd_set_page;

/* Attention on packed pages (kv_lines.h) in integers, with the same bits in every table; a block is
 * read by the table that made it. */
typedef struct dq_simd_pages {
    /* block[dq_simd_int8_key_bytes] or [dq_simd_int8_value_bytes]; `next`: codes of the same size
     * that are read after these, NULL: unknown. */
    void (*key_block)(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                      int64_t dim, int64_t group);
    void (*value_block)(uint8_t *block, const uint8_t *codes, const uint8_t *next, int bits,
                        int64_t cols);
    /* s[r * lds + t] = q_r . k_t for r < m and first <= t < end: runs of channels in order, each
     * (float)(exact sum of codes) * (q scale * k scale). */
    void (*key_scores)(float *s, int64_t lds, const dq_simd_int8_rows *q, int64_t m,
                       const dq_simd_int8_page *page);
    /* y[r * ldy + c] += (float)(exact sum over t of D code * V code) * D scale, c < dim. Per run of
     * channels e_t = d[r * ldd + t] * scale[run][t] is rounded to 16 bits: scale max|e| / 32512,
     * code rint(e * (32512 / max|e|)); nothing is added where max|e| < 2^-100, NaN where it is not
     * finite. Then the sum over t of D * middle, in 16 lanes as base below.
     * work[dq_simd_int8_work_bytes], aligned to 64 bytes. */
    void (*value_sums)(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                       const dq_simd_int8_page *page, void *work);
    /* Set by set, s[r * lds + t] = (float)(exact sum of q codes * (code - 2^(bits-1))) * q scale +
     * base: q[r * ldq] times the steps is rounded to 8 bits, scale max|e| / 127, code rint(e * (127
     * / max|e|)), none where max|e| < 2^-100; base is the sum of q times the middles in 16
     * interleaved lanes, added pairwise. work[dq_simd_set_work_bytes]. */
    void (*set_scores)(float *s, int64_t lds, const float *q, int64_t ldq, int64_t m,
                       const dq_simd_set_page *page, void *work);
    /* Whether set_scores and set_sums have a faster way for m rows of such a page, with the same
     * sums; its `work` is room for codes alone: dim bytes a row, of sums 128. */
    bool (*few_of_set)(const dq_simd_set_page *page, int64_t m);
    /* y[r * ldy + c] += ((float)(exact sum of D codes * (code - 2^(bits-1))) * D scale - sum of D
     * dither) * step + middle * sum of D: D is rounded as e above, sums have 16 lanes as base. */
    void (*set_sums)(float *y, int64_t ldy, const float *d, int64_t ldd, int64_t m,
                     const dq_simd_set_page *page, void *work);
} dq_simd_pages;

extern const dq_simd_pages dq_simd_pages_scalar;
#if defined(__x86_64__)
extern const dq_simd_pages dq_simd_pages_avx2;
extern const dq_simd_pages dq_simd_pages_vnni; /* AVX-512 with VNNI */
#endif

/* Codes of a row whose runs of `group` channels are filled up to multiples of 4. */
static inline int64_t dq_simd_int8_padded(int64_t dim, int64_t group)
{
    const int64_t whole = dim / group, rest = dim % group;
    return whole * ((group + 3) / 4 * 4) + (rest + 3) / 4 * 4;
}

static inline int64_t dq_simd_int8_key_bytes(int64_t dim, int64_t group)
{
    return dq_simd_int8_padded(dim, group) * 64;
}

static inline int64_t dq_simd_int8_value_bytes(int64_t cols)
{
    return (cols + 63) / 64 * 4096;
}

/* Rows of D that are rounded at a time: their codes shall stay near. */
static inline int64_t dq_simd_int8_value_rows(int64_t n_scales)
{
    return n_scales >= 512 ? 1 : n_scales > 64 ? 512 / n_scales : 8;
}

/* Two bytes of 64 codes, a scale and a sum of every row and run. */
static inline int64_t dq_simd_int8_work_bytes(int64_t n_scales)
{
    return dq_simd_int8_value_rows(n_scales) * n_scales * (2 * 64 + 8);
}

/* Rows that are worked on at a time: codes [8][2 * 64] or [8][dim padded to 4], a row of f32. */
static inline int64_t dq_simd_set_work_bytes(int64_t dim)
{
    const int64_t cols = (dim + 63) / 64 * 64;
    return 8 * ((cols < 128 ? 128 : cols) + 16) + 4 * cols;
}

/* Windows of trellis codes to the levels that they name, for blocks of prepacked products. */

/* Bytes after the last column's codes that may be read. */
enum { DQ_LEVELS_SPARE = 24 };

/* 32 rows of columns: their codes and the byte after them, `apart` bytes from column to column. */
typedef struct dq_levels_rings {
    const uint8_t *codes, *after;
    int64_t apart;
    int bits;
} dq_levels_rings;

/* n chunks of 8 bits, [n][8 steps][32 rows][4 columns]; table: what a window stands for; one result
 * in every instruction set. */
typedef void dq_levels_chunks(uint8_t *to, const dq_levels_rings *r, int64_t n,
                              const uint8_t table[256]);

dq_levels_chunks dq_levels_plain;
#if defined(__x86_64__)
dq_levels_chunks dq_levels_vbmi; /* AVX-512 with VBMI */
#endif

/* What a processor reaches at most: for benchmarks to compare with. */
typedef struct dq_simd_peak {
    /* The fastest instructions for multiply-adds of f32, of 8-bit codes, and of f32 with packed
     * weights, which takes three products of codes. */
    const char *fma, *dot, *three_dots;
    /* A million or more in independent chains; returns operations, two for a multiply-add. */
    double (*run_fma)(void);
    double (*run_dot)(void);
    /* Loads p[bytes], a multiple of 64 from an address that is one, once. */
    void (*read)(const void *p, size_t bytes);
} dq_simd_peak;

extern const dq_simd_peak dq_simd_peak_scalar;
#if defined(__x86_64__)
extern const dq_simd_peak dq_simd_peak_avx2, dq_simd_peak_avx512;
extern const dq_simd_peak dq_simd_peak_vnni; /* AVX-512 with VNNI */
#endif

/* An instruction set: a row of isa.c, and the files that it names. */
typedef struct dq_cpu_isa {
    unsigned needs;                     /* feature bits of dq_os_cpu_features(), all of them */
    const dq_simd *simd;                /* f32, and reading codes */
    const dq_simd_prepacked *prepacked; /* products with prepacked weights */
    dq_levels_chunks *levels;           /* of trellis codes */
    const dq_simd_pages *pages;         /* packed KV pages in integers */
    const dq_simd_peak *peak;
} dq_cpu_isa;

/* The highest instruction set whose needs `features` has. */
const dq_cpu_isa *dq_cpu_isa_of(unsigned features);

#endif
