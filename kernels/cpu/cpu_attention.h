/* cpu_attention: the KV cache and attention of the CPU backend. Private to kernels/cpu.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_ATTENTION_H
#define DQ_CPU_ATTENTION_H

#include "backend.h"
#include "cpu.h"

/* DQ_PAGE tokens of one (sequence, layer, KV head group). For each KV head of the group: keys
 * transposed, [head_dim][DQ_PAGE], then values, [DQ_PAGE][v_cols]. Forks share pages; a page with
 * more than one holder is copied before it is written. Slots at and after a list's count may hold
 * what another holder appended or what a rewind left: readers stop at the count. */
typedef struct dq_kv_page {
    int32_t holders;
    int32_t unused[15];
    int32_t pos[DQ_PAGE];
    float data[];
} dq_kv_page;

/* The tokens of one (sequence, layer, group), positions ascending. */
typedef struct dq_kv_list {
    dq_kv_page **page;
    int64_t n_pages, capacity; /* n_pages * DQ_PAGE >= count */
    int64_t count;
} dq_kv_list;

struct dq_kv {
    const dq_headmap *map;
    int n_layers;
    int64_t v_cols;      /* head_dim, padded to a multiple of 16 with zeros */
    int64_t head_floats; /* keys and values of one head in a page */
    int *slot;           /* [n_kv] index of a KV head inside its group */
    int *heads;          /* [n_groups] KV heads of each group */
    dq_kv_list **seq;    /* [n_seq] of [n_layers * n_groups]; NULL: free handle */
    int32_t n_seq;
    dq_kv_bytes bytes; /* kept up to date by every change, but for `tokens` */
};

static inline const dq_kv_list *dq_kv_list_of(const dq_kv *kv, int32_t seq, int layer, int group)
{
    return &kv->seq[seq][layer * kv->map->n_groups + group];
}

static inline float *dq_kv_keys(const dq_kv *kv, dq_kv_page *page, int head)
{
    return page->data + kv->slot[head] * kv->head_floats;
}

static inline float *dq_kv_values(const dq_kv *kv, dq_kv_page *page, int head)
{
    return dq_kv_keys(kv, page, head) + (int64_t)kv->map->head_dim * DQ_PAGE;
}

static inline int32_t dq_kv_pos(const dq_kv_list *list, int64_t i)
{
    return list->page[i / DQ_PAGE]->pos[i % DQ_PAGE];
}

/* How many tokens stand at positions <= t: what a query at t sees. */
int64_t dq_kv_visible(const dq_kv_list *list, int32_t t);

/* cpu_kv.c */
dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_headmap *map, int n_layers, const dq_kv_spec *spec);
void dq_cpu_kv_free(dq_backend *b, dq_kv *kv);
int32_t dq_cpu_kv_seq_new(dq_backend *b, dq_kv *kv);
int32_t dq_cpu_kv_fork(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_cpu_kv_seq_free(dq_backend *b, dq_kv *kv, int32_t seq);
void dq_cpu_kv_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                      dq_mat v);
void dq_cpu_kv_rewind(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length);
void dq_cpu_kv_keep(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                    const int32_t *kept, int64_t n);
void dq_cpu_kv_settle(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch);
void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum);
int64_t dq_cpu_kv_count(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                        int32_t *pos);
dq_kv_bytes dq_cpu_kv_bytes(dq_backend *b, const dq_kv *kv);

/* Consecutive rows of one sequence, at most DQ_PAGE of them where attention works on blocks. */
typedef struct dq_rows {
    int seq;            /* index in the batch */
    int64_t first, n;   /* rows of the batch */
    const int32_t *pos; /* of row `first` */
} dq_rows;

/* S[r * ld + s] = (q_r . k_s) unscaled, for every token s < keys of the list and each of n_heads
 * query heads (S[i] belongs to head[i]). Pages are walked once for all heads. */
void dq_cpu_scores(const dq_simd *simd, float *const *s, int64_t ld, const dq_attend_args *args,
                   const dq_rows *rows, const dq_kv_list *list, const int *head, int n_heads,
                   int64_t keys);
/* Rows per block such that `buffers` rows-by-keys blocks stay near the cache; 1..DQ_PAGE. */
int64_t dq_cpu_block_rows(int64_t keys, int64_t buffers);
/* Floats from one row of a block to the next. */
int64_t dq_cpu_row_floats(int64_t keys);
/* Cuts rows first..end of sequence `seq` at multiples of DQ_PAGE in position: *rows becomes the
 * last such tile before `end` (later tiles see more keys, so they are handed out first). */
void dq_rows_last_tile(dq_rows *rows, const dq_batch *batch, int seq, int64_t first, int64_t end);

/* One output head's maps for a block of rows, on their way from softmax to subtraction: row r of map m is
 * p[m][r * ld + i] / sum[m][r] for the visible[r] first tokens of the list. p[1] NULL: one map. */
typedef struct dq_column_job {
    const dq_simd *simd;
    const dq_attend_args *args;
    const dq_kv_list *list;
    dq_rows rows;
    int out;
    float *p[2]; /* changed on the way, and put back */
    const double *sum[2];
    int64_t ld;
    const int64_t *visible;
    float *scratch; /* dq_cpu_column_floats; the task's own */
} dq_column_job;

/* cpu_columns.c: adds to args->columns. */
void dq_cpu_count_columns(const dq_column_job *job);
/* Scratch for blocks of at most `rows` rows, a multiple of 16; 0 where the columns need none. */
int64_t dq_cpu_column_floats(const dq_attend_args *args, int64_t rows);

/* cpu_measure.c: adds the block's rows to the measure of the output head. */
void dq_cpu_measure(const dq_column_job *job, dq_head_measure *m);

static inline float dq_cpu_lambda(const dq_attend_args *args, int64_t row, int out)
{
    return args->attn->lambda_kind == DQ_LAMBDA_TOKEN
               ? args->lambda.p[row * args->lambda.cols + out]
               : args->attn->lambda;
}

/* cpu_attention.c */
void dq_cpu_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args);
void dq_cpu_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q);
void dq_cpu_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args);

/* cpu_observe.c */
void dq_cpu_attn_observe(dq_backend *b, dq_observe_kind kind, dq_tally *tally,
                         const dq_attend_args *args, int32_t seq_base);
void dq_cpu_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                    int32_t seq_base);

#endif
