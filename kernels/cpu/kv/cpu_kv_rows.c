/* cpu_kv_rows: what the tokens of a list are, as rows: keys where RoPE found them, and values. Pages are read by all threads, each
 * into rows of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"

#include <omp.h>
#include <string.h>

typedef struct reading {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    int group;
    int64_t coded_end;
} reading;

static float *thread_scratch(const reading *r)
{
    return dq_cpu_of(r->b)->block[omp_get_thread_num()];
}

static void read_keys(const reading *r, dq_mat x, int64_t page)
{
    const int64_t dim = r->kv->map->head_dim;
    const dq_simd *simd = dq_cpu_of(r->b)->simd;
    float *row = x.p + page * DQ_PAGE_TOKENS * x.cols;
    for (int head = 0, at = 0; head < r->kv->map->n_kv; head++) {
        if (r->kv->map->group[head] != r->group) continue;
        const float *k =
            dq_cpu_kv_read_keys(simd, r->kv, r->list, page, head, r->coded_end, thread_scratch(r));
        simd->transpose(row + at++ * dim, x.cols, k, DQ_PAGE_TOKENS, dim,
                        dq_kv_slots(r->list->count, page));
    }
}

/* RoPE by the negative position is its inverse, but for the square of the amplitude. */
static void undo_rope(const reading *r, dq_mat x, const dq_rope *rope)
{
    const int64_t dim = r->kv->map->head_dim;
    dq_mat table = {.rows = x.rows, .cols = dim};
    int32_t *pos = dq_block_new((size_t)x.rows, sizeof *pos, &r->b->err);
    table.p = dq_block_new((size_t)(x.rows * dim), sizeof *table.p, &r->b->err);
    if (pos && table.p) {
        for (int64_t i = 0; i < x.rows; i++) pos[i] = -dq_kv_pos(r->list, i);
        if (r->kv->spec.rotate_k) dq_cpu_hadamard(r->b, x, (int)dim);
        dq_cpu_rope_table(r->b, table, pos, rope);
        dq_cpu_rope(r->b, x, table, rope->order);
    }
    dq_block_free(pos);
    dq_block_free(table.p);
}

static int64_t pages_of(const dq_kv_list *list)
{
    return (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

void dq_cpu_kv_read_bare_keys(dq_backend *b, dq_mat x, const dq_kv *kv, const dq_kv_list *list,
                              int group, int64_t coded_end, const dq_rope *rope)
{
    const reading r = {b, kv, list, group, coded_end};
#pragma omp parallel for schedule(static) num_threads(b->threads) if (x.rows > DQ_PAGE_TOKENS)
    for (int64_t p = 0; p < pages_of(list); p++) read_keys(&r, x, p);
    undo_rope(&r, x, rope);
}

/* Values of a page to the second half of rows, and keys to the first. */
static void put_page(const reading *r, float *row, dq_mat keys, double unit, int64_t page)
{
    const int64_t dim = r->kv->map->head_dim, n = dq_kv_slots(r->list->count, page);
    const int64_t first = page * DQ_PAGE_TOKENS, cols = keys.cols;
    for (int64_t i = first; i < first + n; i++) {
        for (int64_t c = 0; c < cols; c++)
            row[i * 2 * cols + c] = (float)((double)keys.p[i * cols + c] * unit);
    }
    for (int head = 0, at = 0; head < r->kv->map->n_kv; head++) {
        if (r->kv->map->group[head] != r->group) continue;
        const float *v = dq_cpu_kv_read_values(dq_cpu_of(r->b)->simd, r->kv, r->list, page, head,
                                               r->coded_end, thread_scratch(r));
        for (int64_t i = 0; i < n; i++) {
            float *to = row + (first + i) * 2 * cols + cols + at * dim;
            memcpy(to, v + i * r->kv->v_cols, (size_t)dim * sizeof *to);
            if (r->kv->spec.rotate_v) dq_cpu_hadamard_run(to, (int)dim);
        }
        at++;
    }
}

void dq_cpu_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                    const dq_rope *rope, float *row)
{
    int64_t coded_end;
    const dq_kv_list *list = dq_cpu_kv_list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    const reading r = {b, kv, list, group, coded_end};
    const double a = (double)rope->amplitude;
    dq_mat keys = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    keys.p = dq_block_new((size_t)(keys.rows * keys.cols), sizeof *keys.p, &b->err);
    if (keys.p) {
        dq_cpu_kv_read_bare_keys(b, keys, kv, list, group, r.coded_end, rope);
#pragma omp parallel for schedule(static) num_threads(b->threads) if (keys.rows > DQ_PAGE_TOKENS)
        for (int64_t p = 0; p < pages_of(list); p++) put_page(&r, row, keys, 1.0 / (a * a), p);
    }
    dq_block_free(keys.p);
}
