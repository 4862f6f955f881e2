/* launch: functions that launch kernels and structs that both sides know. Pointers are device
 * memory, structs are passed by value, work is in stream s. C and C++.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LAUNCH_H
#define DQ_LAUNCH_H

#include "kernels/cuda/host/runtime.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights ----
 * A weight matrix as it lies on the device.
 *
 * Dense: rows * cols values without gaps. Packed: rows of `pitch` bytes with the codes of
 * dq_weight, each group filled up to a multiple of 32 codes, so that a word of four codes and a
 * step of a product never lie in two groups. What fills up is any code: it is multiplied by zero.
 * Scales are turned, a group's scales of all rows side by side, because a tile of a product wants
 * those of many rows at once. So are zero points, which take a byte each here. */

enum { DQ_STORED_F32, DQ_STORED_F16, DQ_STORED_BF16, DQ_STORED_PACKED };
enum { DQ_GROUP_STEP = 32 }; /* codes of a group are padded to a multiple of it */

typedef struct dq_cuda_weight {
    int kind; /* DQ_STORED_ */
    int bits; /* packed: 2..8 */
    int64_t rows, cols;
    const void *data;
    /* packed only: */
    int64_t pitch;       /* bytes per row, a multiple of 16 */
    int64_t group;       /* columns per scale */
    int64_t group_codes; /* codes from the start of a group to the next: `group` padded */
    int64_t groups;      /* per row */
    const void *scale;   /* [groups][scale_pitch], f16 or f32 */
    int64_t scale_pitch; /* values, a multiple of 8, at least rows */
    int scale_f16;
    const uint8_t *zero; /* zero points [groups][zero_pitch]; NULL: 2^(bits-1) */
    int64_t zero_pitch;  /* a multiple of 16, at least rows */
} dq_cuda_weight;

/* ---- linear.cu ----
 * Around products with weights, and the product of 8-bit activations with packed ones. Results are
 * in row-major order. */

/* dst[n][cols] = rows n0 .. n0 + n of w, as f32 or (bf16) rounded to bf16. */
cudaError_t dq_linear_widen(void *dst, bool bf16, const dq_cuda_weight *w, int64_t n0, int64_t n,
                            cudaStream_t s);
/* dst[n] = src[n], rounded to bf16. */
cudaError_t dq_linear_bf16(uint16_t *dst, const float *src, int64_t n, cudaStream_t s);
/* Sets *differs, which the host may read once it has waited, where a row of x[m][ld] is not row[n],
 * bit for bit. */
cudaError_t dq_linear_differ(int32_t *differs, const float *x, int64_t ld, const float *row,
                             int64_t m, int64_t n, cudaStream_t s);
/* x[rows][cols] += bias[cols] */
cudaError_t dq_linear_bias(float *x, const float *bias, int64_t rows, int64_t cols, cudaStream_t s);

/* Bytes per row of the codes that dq_linear_round makes for w; floats per group of its scales. */
int64_t dq_linear_code_pitch(const dq_cuda_weight *w);
int64_t dq_linear_scale_pitch(int64_t rows);
/* Rounds x[rows][w->cols] to 8 bits by row and column group, as cpu_linear.h does, with groups
 * padded by zeros; sum[groups][scale_pitch]: sums of codes where w has zero points, else NULL. */
cudaError_t dq_linear_round(int8_t *code, float *scale, int32_t *sum, const float *x, int64_t rows,
                            const dq_cuda_weight *w, cudaStream_t s);
/* dst[rows][w->rows] = x W^T + bias (NULL: none) of what dq_linear_round made, as on the CPU. */
cudaError_t dq_linear_packed(float *dst, const int8_t *code, const float *scale, const int32_t *sum,
                             int64_t rows, const dq_cuda_weight *w, const float *bias,
                             cudaStream_t s);

/* ---- rows.cu: rows ----
 * Rows of activations, f32 in row-major order: what cpu.c computes; sums are in double and in a
 * fixed order. */

/* dst[rows][table->cols] = rows ids[rows] of the table, times scale. */
cudaError_t dq_rows_embed(float *dst, const dq_cuda_weight *table, const int32_t *ids, float scale,
                          int64_t rows, cudaStream_t s);
/* dst[i] = src[index[i]]; index[rows] */
cudaError_t dq_rows_gather(float *dst, const float *src, const int64_t *index, int64_t rows,
                           int64_t cols, cudaStream_t s);
/* dst = src / sqrt(mean of squares + eps) * gain[cols] (NULL: 1); dst may be src. */
cudaError_t dq_rows_rms_norm(float *dst, const float *src, const float *gain, float eps,
                             int64_t rows, int64_t cols, cudaStream_t s);
/* table[rows][2 * half]: cosines, then sines, of the f32 products pos * inv_freq[half]. */
cudaError_t dq_rows_rope_table(float *table, const int32_t *pos, const float *inv_freq,
                               float amplitude, int64_t rows, int64_t half, cudaStream_t s);
/* Turns every run of dim values of x[rows][cols] in place; pairs are adjacent, else halves. */
cudaError_t dq_rows_rope(float *x, const float *table, bool adjacent, int64_t rows, int64_t cols,
                         int64_t dim, cudaStream_t s);
/* Every run of dim values, a power of two up to 8192, times the normalized Hadamard matrix. */
cudaError_t dq_rows_hadamard(float *x, int64_t n_runs, int dim, float norm, cudaStream_t s);
/* gate = gate / (1 + exp(-gate)) * up over n values, equal to the CPU's bit for bit. */
cudaError_t dq_rows_silu(float *gate, const float *up, int64_t n, cudaStream_t s);
/* gate = GELU by tanh of gate, times up, likewise equal. */
cudaError_t dq_rows_gelu(float *gate, const float *up, int64_t n, cudaStream_t s);
/* gate = PolyNorm of the row, with w0, w1, w2 and b in param, times up. */
cudaError_t dq_rows_polynorm(float *gate, const float *up, const float param[4], int64_t rows,
                             int64_t cols, cudaStream_t s);
cudaError_t dq_rows_sigmoid(float *x, int64_t n, cudaStream_t s);
cudaError_t dq_rows_add(float *dst, const float *src, int64_t n, cudaStream_t s);
/* *found = the largest UINT32_MAX - row of rows with a NaN or infinity; unchanged without any. */
cudaError_t dq_rows_first_bad(uint32_t *found, const float *x, int64_t rows, int64_t cols,
                              cudaStream_t s);

/* ---- rows.cu: log-probabilities ----
 * Sums over a vocabulary that comes in pieces, in ascending order, so that no row of all logits is
 * ever made. Everything is in double but the logits themselves. */

/* What is known of one row after some pieces. */
typedef struct dq_logprob_row {
    double sum;   /* of exp(logit - most) */
    float max;    /* largest logit, NaN skipped */
    float target; /* the target's logit, once seen */
    int32_t top;  /* its index, the lowest among equals; INT32_MAX: none yet */
    int32_t unused;
} dq_logprob_row;

typedef struct dq_logprob_kld_row {
    double sum_p, sum_q, weighted; /* weighted: of exp(p - max_p) (p - q) */
    float max_p, max_q;
} dq_logprob_kld_row;

/* Entries first .. first + n of logits[rows][ld]; first 0 begins the rows; target may be NULL. */
cudaError_t dq_logprob_piece(dq_logprob_row *state, const float *logits, int64_t ld, int64_t first,
                             int64_t n, const int32_t *target, int64_t rows, cudaStream_t s);
/* logp[rows] (without a target: that of top1) and top1[rows]; either may be NULL. */
cudaError_t dq_logprob_end(double *logp, int32_t *top1, const dq_logprob_row *state,
                           const int32_t *target, int64_t rows, cudaStream_t s);

/* The same for KL(softmax(p) || softmax(q)). */
cudaError_t dq_logprob_kld_piece(dq_logprob_kld_row *state, const float *p, const float *q,
                                 int64_t ld, int64_t first, int64_t n, int64_t rows,
                                 cudaStream_t s);
cudaError_t dq_logprob_kld_end(double *kld, const dq_logprob_kld_row *state, int64_t rows,
                               cudaStream_t s);

/* ---- pages ----
 * Pages of the KV cache as kernels see them; page.cuh says how tokens lie in them. */

enum { DQ_PAGE_SLOTS = 64 }; /* tokens of a page */

/* Keys (side 0) or values (side 1) of one page; arrays hold the group's KV heads in order. */
typedef struct dq_page_side {
    void *plain;    /* in the form's dense type; NULL: none */
    uint8_t *codes; /* NULL: none */
    /* f16, or f32 where the page's side is wide; of per-channel codes [sets][heads][set_numbers] */
    void *scale;
    void *sinks; /* the same [n_sinks][dim] a head; NULL: none */
} dq_page_side;

typedef struct dq_page {
    dq_page_side side[2];
    uint64_t begins; /* per-channel codes: bit i: slot i is the first of a set */
    uint64_t widths
        [2]; /* bits of each head's codes, 4 bits a head from the lowest; 0: those of the form */
    int32_t dither; /* row of the form's dither; -1: none */
    int16_t n_sinks, heads;
    uint8_t wide[2];
} dq_page;

enum { DQ_PAGE_WIDTHS = 16 }; /* heads that `widths` holds */

/* What is not coded. */
enum { DQ_PAGE_F32, DQ_PAGE_F16, DQ_PAGE_BF16 };

/* How all pages store a side. */
typedef struct dq_page_form {
    int32_t bits;     /* 16: no codes; the largest, where pages say more */
    int32_t group;    /* channels per scale */
    int32_t n_scales; /* per token and head: scales, or the steps of all runs, then their lows */
    int32_t has_lows;
    int32_t dim;        /* channels of a head */
    int32_t cols;       /* the same, padded to a multiple of 16: channels that have codes */
    int32_t stride;     /* elements from token to token in `plain` */
    int32_t code_bytes; /* of one head and page */
    /* per-channel codes: of a set and head, a step for each channel, then a low; else 0 */
    int32_t set_numbers;
    int32_t dense;       /* type of `plain` and `sinks` */
    const float *dither; /* of values: rows of DQ_PAGE_SLOTS, one number a slot; NULL: none */
} dq_page_form;

/* ---- kv.cu: pages ----
 * The table of pages, and tokens that move. Pointers in structs are device memory too; form[0] is
 * that of keys. */

/* Record `to` of the table of pages becomes `page`; its own row of dither, one after it, `row`
 * of those that came with the patches; row -1: none. */
typedef struct dq_kv_patch {
    dq_page page;
    int32_t to, row;
} dq_kv_patch;

typedef struct dq_kv_patches {
    const dq_kv_patch *patch; /* [n] */
    int32_t n;
    const float *row; /* of dither, [DQ_PAGE_SLOTS] each */
    dq_page *page;    /* the tables */
    float *dither;    /* NULL: none */
} dq_kv_patches;

/* KV heads of all groups: heads first[g] .. first[g+1]-1 of `head`, in the order of their slots. */
typedef struct dq_kv_group_heads {
    const int32_t *first, *head;
    int32_t n_groups, max; /* heads of the largest group */
} dq_kv_group_heads;

cudaError_t dq_kv_launch_patch(dq_kv_patches patches, cudaStream_t s);
/* Tokens source[i] (64 * index in `from` + slot), i < n <= 64, become slots i of `to`, which has
 * codes for slots n_sinks .. coded-1; `heads` KV heads. */
cudaError_t dq_kv_launch_move(dq_page to, int coded, const dq_page *from, const int32_t *source,
                              int n, dq_page_form const form[2], int heads, cudaStream_t s);
/* The unquantized part of one side that is new: slots 0 .. n-1 from its sinks, zeros after them. */
cudaError_t dq_kv_launch_reopen(dq_page page, int side, int n, dq_page_form form, int heads,
                                cudaStream_t s);
cudaError_t dq_kv_launch_widen(float *to, const uint16_t *from, int64_t n, cudaStream_t s);
/* sum[count] = |k|^2 over `heads` heads of each token; the first `coded` ones are read as codes. */
cudaError_t dq_kv_launch_norms(double *sum, const dq_page *pages, int64_t count, int64_t coded,
                               dq_page_form form, int heads, cudaStream_t s);

/* ---- kv.cu: keys ----
 * Reads and measures the keys of a list for policies, and reads its values, in the order of the
 * CPU's sums (cpu_kv.c). */

/* The keys of one list, as a query reads them that takes the first `coded` as codes. */
typedef struct dq_keys {
    const dq_page *pages;
    int64_t count, coded;
    dq_page_form form;
    int32_t heads; /* of the list's group */
    int32_t side;  /* 1: these are the list's values instead */
} dq_keys;

/* cosine[count] as kv_key_cosines of backend.h. Scratch: norm[heads][count], sum[heads][dim]. */
cudaError_t dq_keys_cosines(double *cosine, dq_keys k, double *norm, double *sum, cudaStream_t s);

/* x[count][heads * dim] */
cudaError_t dq_keys_read(float *x, dq_keys k, cudaStream_t s);
/* x[n][cols] = (x - its mean over n) * unit. Scratch: mean[cols]. */
cudaError_t dq_keys_centre(float *x, double *mean, double unit, int64_t n, int64_t cols,
                           cudaStream_t s);
/* Upper triangle of gram[cols][cols] = x'x: f32 sums of 64 rows each, added in f64. */
cudaError_t dq_keys_gram(double *gram, const float *x, int64_t n, int64_t cols, cudaStream_t s);
/* leverage[n] = |x right|^2 by row; right[cols][cols] is an upper triangle with zeros below. */
cudaError_t dq_keys_leverages(double *leverage, const float *x, const float *right, int64_t n,
                              int64_t cols, cudaStream_t s);

/* ---- attention.cu ----
 * Attention in f32 over paged keys and values, and the units of rows that these kernels and those
 * which observe the maps work on. The order of every sum depends on a row's own keys only, and is
 * that of the CPU's vector code.
 *
 * Work is cut into units: rows of one sequence whose positions share a tile of 64, and one KV head
 * group. A unit has a strip for every query head of its group: S, then exp(S - max), of rows by
 * keys. A launch takes units that follow each other, as many as memory holds strips for. */

typedef struct dq_attention_unit {
    int64_t strip; /* of its first strip, in floats */
    int64_t page;  /* of its list's first page, in the table of pages */
    int64_t edge;  /* of its list's first edge (granularity `tile`), in the table of edges */
    /* What its rows see, each: its first row's place in the table `visible`, or, less than 0,
     * row r sees r - visible - 1 keys. */
    int64_t visible;
    int32_t record; /* of its first row and query head */
    int32_t factor; /* of its first row and output head */
    int32_t row, n; /* rows of the batch */
    /* Rows before `split` read the first coded[0] tokens as codes, others coded[1]; sinks, never
     * read as codes, are counted in. */
    int32_t split, coded[2];
    int32_t keys, ld; /* up to where the last row sees; floats from row to row */
    /* Tokens at the list's beginning that its first row, and its last, do not see (dq_window_of).
     * Strips begin with the page of the first of its tokens that any row sees. */
    int32_t hidden[2];
    int32_t n_edges;
    int32_t seq, group;
    int32_t few; /* the call has at most DQ_ATTEND_FEW rows of its list: blocks divide its pages */
    int32_t uncoded;       /* with int8 operands: its list's first tokens, which are never coded */
    int32_t first;         /* row of the unit from which on columns count; n: none */
    int32_t sinks;         /* tokens at positions where attention is parked (measure) */
    int32_t counted, span; /* row of the unit from which on spans count, n: none; and its record */
} dq_attention_unit;

/* A query head of a group, and the slot of the key head it reads. */
typedef struct dq_q_head {
    int32_t head, key;
} dq_q_head;

/* q: indices among the group's query heads; v: slots of its values; -1: none. pair: which of the
 * group's different `v`, from 0. */
typedef struct dq_o_head {
    int32_t out, q[2], v[2], pair;
} dq_o_head;

typedef struct dq_attention_units {
    const dq_attention_unit *unit;
    int32_t n;
    int32_t max_rows, max_q, max_out, max_edges; /* of any of them */
    int32_t max_keys;                            /* from a unit's first page on */
    const dq_page *pages;
    dq_page_form form[2];
    const int32_t *visible; /* tokens up to the last that a row sees: by unit, row by row */
    /* Of them those at the beginning that it does not see, alike; a row of no table sees the last
     * `window` tokens. Window 0: all rows see all. */
    const int32_t *hidden;
    int32_t window;
    const int32_t *edge; /* ends of runs of keys in one tile of positions, ascending */
    const dq_q_head *q_head;
    const dq_o_head *o_head;
    const int32_t *q_first, *o_first; /* [n_groups + 1] */
    int32_t n_groups, n_q, n_out, n_slabs, n_maps;
    const float *q; /* [rows][n_q * dim] */
    float scale;
    float *strip;
    double *sum;         /* [records] of exp(S - max) */
    float *factor;       /* [factors][3]: 1 / sum of both maps, lambda / second sum */
    const float *lambda; /* [rows][n_out]; NULL: lambda_layer */
    float lambda_layer;
} dq_attention_units;

/* Strips: S = scale * (q . k). */
cudaError_t dq_attention_scores(dq_attention_units u, cudaStream_t s);
/* max[seq][n_q] = max of itself and bits of |S| over what rows see; no strips. */
cudaError_t dq_attention_absmax(dq_attention_units u, uint32_t *max, cudaStream_t s);
/* Each row of x[n][cols] becomes its maximum; NaN wins. */
cudaError_t dq_attention_join(float *x, int n, int cols, cudaStream_t s);

enum {
    DQ_ROUND_NOT,
    DQ_ROUND_GIVEN, /* by absmax[seq][n_q] */
    DQ_ROUND_ROW,
    DQ_ROUND_TILE
};
/* S to exp(S - max), sums and factors. */
cudaError_t dq_attention_softmax(dq_attention_units u, int round, float qmax, const float *absmax,
                                 cudaStream_t s);

typedef struct dq_attention_finish {
    float *out; /* [rows][out_cols]: heads of n_slabs * dim */
    int64_t out_cols;
    const float *gain; /* [n_slabs * dim]; NULL: none */
    float norm_eps, out_scale;
    bool rotated, norm;
} dq_attention_finish;
/* (P1 - lambda P2) V, then norm and scale. dim a power of two where rotated. */
cudaError_t dq_attention_values(dq_attention_units u, dq_attention_finish f, cudaStream_t s);

/* ---- operands.cu ----
 * Appended rows become pages, and pages operands of products: f16 in the order in which those read
 * them (attend.cuh), whatever pages hold. */

typedef struct dq_operands {
    uint8_t *page;            /* pages of page_bytes: keys of all heads, then values of all pairs */
    int64_t page_bytes;       /* a multiple of 16 */
    int32_t n_keys, n_values; /* heads and pairs of the largest group */
    int32_t head_keys;        /* different heads of keys that an output head reads, 1 or 2 */
    /* of a head of keys; of both slabs of values: padded with zeros to 64, 128 or 256 */
    int32_t key_channels, value_channels;
    /* what is read as codes has bytes for keys, with f32 scales; tokens that are never coded
     * (uncoded) lie in pages of their own besides, in f16 as what is not read so */
    bool int8;
} dq_operands;

/* What is unfolded of a list. A page is there up to twice: as rows see it that read its codes, and
 * as those see it that do not. */
typedef struct dq_unfold_list {
    int64_t page; /* of its first page, in the table of pages */
    int32_t group, keys;
    int32_t first, end; /* pages before are read by no row, and from there on there already */
    int32_t coded_end, plain_from; /* rows read tokens before and from there so */
    int32_t uncoded;               /* as of a unit, at most keys */
    /* operand page of its page 0, as codes, not so (the first of which are none) and of uncoded
     * tokens */
    int32_t at[3];
} dq_unfold_list;

/* How pages are unfolded. */
typedef struct dq_unfold {
    dq_page_form form[2];
    dq_operands o; /* page NULL: they are not */
    const dq_o_head *o_head;
    const int32_t *o_first; /* [n_groups + 1] */
    int32_t n_slabs;
    float norm;      /* of the rotation of values, which is turned back; 0: there is none */
    int32_t *beyond; /* becomes 1 where a finite number is none in f16; may be pinned memory */
} dq_unfold;
/* Of these units. */
dq_unfold dq_attend_unfold_of(const dq_attention_units *u, dq_operands o, bool rotated,
                              int32_t *beyond);
/* pages: the table. max_pages: of a list, but for what is there already. */
cudaError_t dq_attend_unfold(dq_unfold k, const dq_page *pages, const dq_unfold_list *lists, int n,
                             int max_pages, cudaStream_t s);

/* A page's rows go to slots first .. end-1, from `row` of k and v on; slots from .. to-1 get codes,
 * of one side, or of both (side -1); then come both views, of rows that read slots before `coded`
 * as codes. */
typedef struct dq_kv_fill_job {
    int32_t record; /* in the table of pages */
    int32_t group, row, side;
    int32_t at[3]; /* operand page as codes, not so, and of uncoded tokens; -1: none */
    int16_t first, end, from, to, coded;
} dq_kv_fill_job;

typedef struct dq_kv_fill {
    dq_unfold u;
    dq_kv_group_heads heads;
    const dq_page *pages; /* the table */
    const float *k, *v;   /* [rows][row_cols], heads of form.dim channels; NULL: no rows */
    int64_t row_cols;
    /* Flags, zero before, may be pinned memory of the host: overflow[n][2] becomes 1 where a scale
     * or low of a side that is not wide stays f32 (kv.h). */
    int32_t *overflow;
    /* The maximum of itself and the bits of all finite |x| that the form's dense type makes
     * infinite; then *beyond_flag becomes 1. Both NULL with f32. */
    uint32_t *beyond;
    int32_t *beyond_flag;
} dq_kv_fill;
/* Bytes of shared memory that a block wants. */
size_t dq_kv_fill_smem(dq_page_form const form[2]);
cudaError_t dq_kv_launch_fill(dq_kv_fill k, const dq_kv_fill_job *jobs, int n, cudaStream_t s);

/* ---- attend.cu, attend_hopper.cu, absmax_hopper.cu, attend_int8.cu ----
 * Attention by tensor cores over operands: one kernel makes both maps in one pass.
 * Arithmetic: queries, keys, values (code times scale) and each map's exp(S - max) are f16, sums
 * f32. A row's result depends on its own keys only; but rows of lists with few of them, whose pages
 * blocks divide, agree with others to a tolerance. */

/* Rounding of logits: a DQ_ROUND_; the largest |S|: [seq][n_q], for DQ_ROUND_ROW [rows][n_q]. */
typedef struct dq_attend_logits {
    int32_t round;
    float qmax;
    const float *absmax;
} dq_attend_logits;

/* Units that follow each other in one list and share what is loaded, all with the same heads. */
typedef struct dq_attend_item {
    int32_t unit, n;
    int32_t first, end;   /* pages of the list */
    int32_t front;        /* in pages before it windows of some rows begin */
    int32_t coded, plain; /* pages before `coded` are read as codes, those from `plain` on not */
    int32_t run;          /* pages from `front` on that all rows read whole and in one way */
    int32_t uncoded;      /* as dq_unfold_list */
    int32_t part;         /* rows of the parts before it, in share; -1: these are all pages */
    int32_t at[3];        /* as dq_unfold_list */
} dq_attend_item;

/* A unit whose pages are divided into n parts, the first after so many rows of others; none where
 * its rows see nothing. */
typedef struct dq_attend_join {
    int32_t unit, first, n;
} dq_attend_join;

typedef struct dq_attend_call {
    dq_attention_units u;
    dq_attention_finish f;
    dq_attend_logits logits;
    dq_operands o;
    const dq_attend_item *item;
    int32_t n_items, together; /* units of an item, at most */
    float scale;               /* of S to powers of two, set by dq_attend_run */
    float *share;              /* dq_attend_share_floats() of each row of a part */
    int32_t *beyond;           /* of queries, as that of dq_unfold */
} dq_attend_call;

/* Why attention by operands refuses these arguments, by host fields alone; NULL: it does not. f
 * NULL: scores alone. smem: bytes of shared memory that a block may have. */
const char *dq_attend_lacks(const dq_attention_units *u, const dq_attention_finish *f, int round,
                            size_t smem);

/* Whether operands can be int8: keys have per-token codes of more than 4 bits, with one scale. */
bool dq_attend_takes_int8(const dq_page_form *keys);

/* How a launch's units are done, on the host. */
typedef struct dq_attend_plan {
    dq_unfold_list *list; /* [n_lists] to be unfolded, at most as many as units */
    dq_attend_item *item; /* [n_items], the longest first */
    dq_attend_join *join; /* [n_joins], at most as many as units */
    int32_t n_lists, n_items, n_joins, share_rows;
    int32_t max_pages, unfold_pages; /* of a unit; of a list, to be unfolded */
    int64_t operand_pages;           /* of all lists */
} dq_attend_plan;

enum { DQ_ATTEND_FEW = 64, DQ_HOPPER_DIM = 128 /* head_dim that `hopper` takes, at most */ };
/* Pages of a part, where so many are divided. */
int dq_attend_range(int pages);
/* Items of these units, at most. unit[n]: those of a list follow each other. */
int64_t dq_attend_items(const dq_attention_unit *unit, int n);
/* Rows of the parts of these units, together. */
int64_t dq_attend_share_rows(const dq_attention_unit *unit, int n);
/* Operand pages of the list that begins at unit[0], and its units among the n. */
int64_t dq_attend_list_pages(const dq_page_form form[2], const dq_attention_unit *unit, int n,
                             int *n_units);
/* Fills arrays of the caller's, of u->n units on the host. item.n is at most `together`; views:
 * where operands of lists are already, [n_seq][n_groups], or NULL; count: of scratch, as many
 * numbers as the longest list has pages and one. */
void dq_attend_plan_units(dq_attend_plan *p, const dq_attention_units *u,
                          const dq_attention_unit *unit, int together, const dq_unfold_list *views,
                          int32_t *count);
/* Of such heads, without memory. */
dq_operands dq_attend_operands(int head_dim, int n_slabs, int n_keys, int n_values, int head_keys);
int64_t dq_attend_share_floats(const dq_attend_call *a);

/* Strips, as dq_attention_scores; max, zero before, becomes the largest |S| as that of
 * dq_attention_absmax, or of each row: [rows][n_q]. */
cudaError_t dq_attend_scores(dq_attend_call a, cudaStream_t s);
cudaError_t dq_attend_absmax(dq_attend_call a, uint32_t *max, bool by_row, bool hopper,
                             cudaStream_t s);
/* Uses no strip, sum or factor. */
cudaError_t dq_attend_run(dq_attend_call a, bool hopper, cudaStream_t s);
/* What the two do where `hopper` is asked for: by wgmma, which adds the channels of an f16 S in an
 * order of its own, so that S may differ from mma.sync's in the last bits. */
cudaError_t dq_attend_hopper(dq_attend_call a, cudaStream_t s);
cudaError_t dq_absmax_hopper(dq_attend_call a, uint32_t *max, bool by_row, cudaStream_t s);
/* The same over int8 operands, and strips, with the CPU's S of what rows read as codes: queries are
 * rounded to 8 bits, and sums of codes exact (attend of backend.h). dq_attend_int8 multiplies by
 * the scales one after the other, which may change S by two roundings. */
cudaError_t dq_attend_int8(dq_attend_call a, cudaStream_t s);
cudaError_t dq_absmax_int8(dq_attend_call a, uint32_t *max, bool by_row, cudaStream_t s);
cudaError_t dq_scores_int8(dq_attend_call a, cudaStream_t s);
/* Whether this build has them, for compute capability 9.0. */
#if defined(DQ_HAVE_HOPPER) || defined(DQ_SIMT)
enum { dq_attend_has_hopper = 1 };
#else
enum { dq_attend_has_hopper = 0 };
#endif
/* Rows of units whose pages were divided. */
cudaError_t dq_attend_combine(dq_attend_call a, const dq_attend_join *joins, int n, cudaStream_t s);

/* ---- observe.cu: maps ----
 * Looks at the maps of output heads between softmax and subtraction: per-key sums, and measures of
 * rows. Strips hold exp(S - max); sums and factors are there. Sums are f64 in an order that
 * depends on the sequence alone. */

/* Units of one list that follow each other in a launch. */
typedef struct dq_map_run {
    int32_t first, n, keys; /* the most that one of them sees */
} dq_map_run;

/* Columns (backend.h), NULL: not asked for; list l = seq * n_groups + group begins at at[l]. */
typedef struct dq_map_sums {
    double *mass[2], *lambda_mass, *diff;
    const int64_t *at;
} dq_map_sums;

/* Adds what rows first .. n-1 of the units contribute. */
cudaError_t dq_maps_sum(dq_attention_units u, dq_map_sums c, const dq_map_run *runs, int n_runs,
                        int max_keys, cudaStream_t s);

/* Entropy and sink mass by map, variation, negative, near_zero, skippable, rows, keys, pages. */
enum { DQ_MAP_THRESHOLDS = 4, DQ_MAP_FIELDS = 6 + 2 * DQ_MAP_THRESHOLDS + 3 };
typedef struct dq_map_limits {
    double below[DQ_MAP_THRESHOLDS];
} dq_map_limits;
/* into[seq][n_out][DQ_MAP_FIELDS] += all rows; row[factors][DQ_MAP_FIELDS] is overwritten. */
cudaError_t dq_maps_measure(dq_attention_units u, dq_map_limits limits, double *into, double *row,
                            const dq_map_run *runs, int n_runs, cudaStream_t s);

/* ---- observe.cu: spans ----
 * Adds up what rows give to classes of tokens (observe.h), between softmax and subtraction. */

enum { DQ_SPAN_SUM_CLASSES = 8 };

/* List l = seq * n_groups + group has the classes of its tokens from label[key[l]] on. */
typedef struct dq_span_sums {
    double *mass; /* [records][n_out][n_classes][2]: of positive entries, of negative ones */
    const uint8_t *label;
    const int64_t *key;
    int32_t n_classes;
} dq_span_sums;

/* Overwrites masses of rows that count; f64, in an order that depends on what a row sees alone. */
cudaError_t dq_spans_add_sums(dq_attention_units u, dq_span_sums c, cudaStream_t s);

/* ---- observe.cu: magnitudes ----
 * Reduces magnitudes of rows of values to what dq_tally holds: counts by the upper 16 bits, sums,
 * the largest values with their places. */

enum { DQ_OBSERVE_TOP = 128, DQ_OBSERVE_BINS = 1 << 15, DQ_OBSERVE_FINE = 1 << 16 };

/* Rows of one sequence and query head (hidden states: -1), at most 65535; pieces are in the order
 * of their places. */
typedef struct dq_observe_piece {
    const float *x; /* row r from x + r * ld on */
    int64_t ld;
    const int32_t *visible; /* values up to the last of row r; NULL: cols */
    const int32_t *hidden;  /* of them those before the first; NULL: none */
    const int32_t *col;     /* col[i] is the column of value i; NULL: i */
    const int32_t *pos;     /* of each row */
    int32_t cols, rows, record, seq, head;
} dq_observe_piece;

/* A large value. */
typedef struct dq_observe_found {
    float value;
    int32_t seq, head, row, col;
} dq_observe_found;

/* What one launch finds: the largest values of its rows, in no order. */
typedef struct dq_observe_top {
    uint32_t bin, value;  /* the smallest of them: its upper bits; its bits */
    uint64_t above, want; /* values in higher bins; how many are wanted */
    uint32_t ties, n;     /* values equal to it that are wanted; entries of found */
    dq_observe_found found[DQ_OBSERVE_TOP];
} dq_observe_top;

/* Of all launches of a call; zero before the first one. */
typedef struct dq_observe_call {
    uint64_t hist[DQ_OBSERVE_BINS];
    double total[4]; /* sums of |x|, x^2, x^4; values that are not finite */
} dq_observe_call;

/* Zero before the first launch, and after each one. */
typedef struct dq_observe_bins {
    uint64_t hist[DQ_OBSERVE_BINS], fine[DQ_OBSERVE_FINE];
} dq_observe_bins;

typedef struct dq_observe_rows {
    const dq_observe_piece *piece;
    int32_t n, max_rows, records;
} dq_observe_rows;

/* sums[records][4] and tied[records] are overwritten. */
cudaError_t dq_observe_launch(dq_observe_rows rows, dq_observe_call *call, dq_observe_top *top,
                              dq_observe_bins *bins, double *sums, uint32_t *tied, cudaStream_t s);
/* fine[DQ_OBSERVE_FINE] += counts by the lower 16 bits of values whose upper ones are `bin`. */
cudaError_t dq_observe_refined(dq_observe_rows rows, uint64_t *fine, uint32_t bin, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
