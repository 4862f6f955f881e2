/* cpu_attention: attention of the CPU backend over its KV cache. Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_ATTENTION_H
#define DQ_CPU_ATTENTION_H

#include "kernels/cpu/kv/cpu_kv.h"
#include "kernels/paged/kv_pages.h"

/* ---- cpu_attention.c: pages in products. A call's math.qk and math.pv decide whether a page's
 * codes are multiplied as integers; unquantized slots are multiplied in f32. */

/* What attend takes for math.qk, math.pv. */
const char *dq_cpu_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, int head_dim,
                                 dq_math math);

/* A page of one KV head as some rows read it. */
typedef struct dq_cpu_page {
    const float *plain; /* NULL: all is coded, or `half` has it */
    const void *half;   /* the same in kv->dense, as the cache holds it, for few rows */
    int64_t n_plain;    /* leading slots that take part in the f32 product */
    enum { DQ_CPU_PLAIN, DQ_CPU_CODED, DQ_CPU_SETS } kind;
    union {                    /* overrides what the f32 product says */
        dq_simd_set_page sets; /* per-channel codes */
        dq_simd_int8_page coded;
    };
} dq_cpu_page;

/* Floats of scratch for `heads` query heads of `rows` rows; enough for dq_cpu_kv_read_* too. */
int64_t dq_cpu_score_floats(const dq_attend_args *args, int64_t rows, int64_t heads);
/* Query heads in 8 bits, q[n_heads], into scratch; nothing with other arithmetic. */
void dq_cpu_round_queries(dq_simd_int8_rows *q, const dq_cpu *cpu, const dq_attend_args *args,
                          const dq_kv_rows *rows, const int *head, int n_heads, float *scratch);
/* The same of rows x[n][ldx] of one head, or of several in turn; `at`: dq_cpu_rounded_at. */
dq_simd_int8_rows dq_cpu_round_rows(const dq_cpu *cpu, const dq_attend_args *args, const float *x,
                                    int64_t ldx, int64_t n, float *at);
float *dq_cpu_rounded_at(const dq_attend_args *args, float *scratch);
/* The page's first n slots, for products with `rows` rows a call; it may use scratch. */
dq_cpu_page dq_cpu_open_page(const dq_cpu *cpu, const dq_attend_args *args, const dq_kv_list *list,
                             int64_t page, int side, int head, int64_t coded_end, int64_t n,
                             int64_t rows, float *scratch);
/* s[r * ld + i] = q . k unscaled, r < a->n: rows a->first .. of `rows`, whose heads q holds. */
void dq_cpu_times_keys(const dq_cpu *cpu, float *s, int64_t ld, const dq_attend_args *args,
                       const dq_kv_rows *rows, const dq_kv_span *a, int head,
                       const dq_simd_int8_rows *q, const dq_cpu_page *page, float *scratch);
/* The same of m rows x[m][ldx], which are rows first .. of q. */
void dq_cpu_rows_times_keys(const dq_cpu *cpu, float *s, int64_t ld, const dq_attend_args *args,
                            const float *x, int64_t ldx, int64_t m, const dq_simd_int8_rows *q,
                            int64_t first, const dq_cpu_page *page, float *scratch);
/* y[m][head_dim] = D V, or y += D V; d[m][ldd] from the page's first slot on. */
void dq_cpu_times_values(const dq_cpu *cpu, float *y, int64_t ldy, const dq_attend_args *args,
                         const float *d, int64_t ldd, int64_t m, const dq_cpu_page *page, bool add,
                         float *scratch);

/* While logits are near, they are multiplied by `scale`, and top[i][r] becomes their maximum. */
typedef struct dq_cpu_scaled {
    float scale;
    const int64_t *hidden, *visible; /* [rows]: tokens hidden .. visible - 1 are seen */
    float (*top)[DQ_PAGE_TOKENS];
} dq_cpu_scaled;
/* ---- cpu_attention.c */
/* S[i][r * ld + s] = q_r . k_s, unscaled where `scaled` is NULL, for tokens s < keys and up to 32
 * query heads head[i]. Pages are walked once for all heads, codes unpacked once per KV head. The
 * rows share a tile; scratch: dq_cpu_score_floats. */
void dq_cpu_scores(const dq_cpu *cpu, float *const *s, int64_t ld, const dq_attend_args *args,
                   const dq_kv_rows *rows, const dq_kv_list *list, const int *head, int n_heads,
                   int64_t keys, const dq_cpu_scaled *scaled, float *scratch);
/* Rows such that `buffers` rows-by-keys blocks take 64 MiB, or 16 rows; 1..DQ_PAGE_TOKENS. */
int64_t dq_cpu_block_rows(int64_t keys, int64_t buffers);
/* What a block of rows sees at most of the longest list of the call, from a page's start on. */
int64_t dq_cpu_max_keys(const dq_attend_args *args);
/* Floats from one row of a block to the next. */
int64_t dq_cpu_row_floats(int64_t keys);
/* The last tile of rows first..end of a sequence, cut at multiples of DQ_PAGE_TOKENS in position:
 * later tiles see more keys, so they are handed out first. */
void dq_cpu_rows_last_tile(dq_kv_rows *rows, const dq_batch *batch, int seq, int64_t first,
                           int64_t end);

/* One output head's maps before subtraction: row r of map m is p[m][r * ld + i] / sum[m][r] for
 * tokens hidden[r] <= i < visible[r], and 0 before them; p[1] NULL: one map. */
typedef struct dq_cpu_column_job {
    const dq_attend_args *args;
    const dq_kv_list *list; /* dq_kv_seen of the first row */
    dq_kv_rows rows;
    int out;
    const float *p[2];
    const double *sum[2];
    int64_t ld;
    const int64_t *hidden, *visible;
} dq_cpu_column_job;

/* cpu_observe.c: adds to args->columns. */
void dq_cpu_count_columns(const dq_cpu_column_job *job);

/* cpu_observe.c: adds the block's rows to the measure of the output head. */
void dq_cpu_measure(const dq_simd *simd, const dq_cpu_column_job *job, dq_head_measure *m);

/* cpu_look.c: the same of its profile. */
void dq_cpu_look(const dq_cpu_column_job *job, dq_head_profile *p);

/* cpu_observe.c: masses of those of the block's rows that count; the others cost nothing. */
void dq_cpu_count_spans(const dq_cpu_column_job *job, dq_span_mass *mass, const dq_span_rows *s);

static inline float dq_cpu_lambda(const dq_attend_args *args, int64_t row, int out)
{
    return args->attn->lambda_kind == DQ_LAMBDA_TOKEN
               ? args->lambda.p[row * args->lambda.cols + out]
               : args->attn->lambda;
}

/* cpu_observe.c */
void dq_cpu_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args);
void dq_cpu_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q);

/* cpu_attention.c */
void dq_cpu_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args);

/* cpu_observe.c */
void dq_cpu_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                         int32_t seq_base);
void dq_cpu_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                    int32_t seq_base);
/* cpu_observe.c */
void dq_cpu_profile_logits(dq_backend *b, const dq_profile *to, const dq_attend_args *args);
void dq_cpu_profile_rows(dq_backend *b, const dq_profile *to, dq_mat x, int64_t first,
                         const dq_batch *batch, int layer);

#endif
