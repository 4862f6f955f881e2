/* cpu_absmax: the largest logits of a call, which granularities that span rows are rounded by.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"

#include <omp.h>
#include <string.h>

/* Floats for a maximum of every query head, such that what follows stands on 64 bytes. */
static int64_t max_floats(const dq_head_order *map)
{
    return (map->n_q + 15) / 16 * 16;
}

/* What attn_absmax needs of a thread's block: products, maxima of every query head, a page. */
static size_t absmax_bytes(const dq_attend_args *args)
{
    const int n_q = args->attn->map->n_q;
    const int64_t floats = DQ_PAGE_TOKENS * DQ_PAGE_TOKENS + max_floats(args->attn->map);
    return (size_t)(floats + dq_cpu_score_floats(args, DQ_PAGE_TOKENS, n_q)) * sizeof(float) +
           (size_t)n_q * (sizeof(dq_simd_int8_rows) + sizeof(int));
}

/* Raises *max to the largest |q . k| of one query head on a page; as NaN stays, unlike in a comparison. Later rows see more:
 * after the first that sees all of the page the products are one run. */
static void raise_max(const dq_simd *simd, float *max, const float *product, const dq_kv_span *a,
                      const int64_t *visible, int64_t p)
{
    int64_t r = 0, seen;
    for (; r < a->n && (seen = dq_kv_slots(visible[a->first + r], p)) < DQ_PAGE_TOKENS; r++) {
        float pair[2] = {*max, simd->absmax(product + r * DQ_PAGE_TOKENS, seen)};
        *max = simd->absmax(pair, 2);
    }
    float pair[2] = {*max, simd->absmax(product + r * DQ_PAGE_TOKENS, (a->n - r) * DQ_PAGE_TOKENS)};
    *max = simd->absmax(pair, 2);
}

/* Largest |S| over a tile of rows, of every query head that reads KV head `key`. Rounding is monotonic
 * and scale positive, so scaling the largest |q . k| gives the largest |S| bit for bit. */
static void tile_absmax(const dq_cpu *cpu, float *absmax, const dq_attend_args *args,
                        const dq_kv_rows *rows, int key, float *block)
{
    const dq_simd *simd = cpu->simd;
    const dq_head_order *map = args->attn->map;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[rows->seq], args->layer, map->group[key]);
    float *product = block, *max = product + DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
    float *read = max + max_floats(map);
    dq_simd_int8_rows *q = (void *)(read + dq_cpu_score_floats(args, DQ_PAGE_TOKENS, map->n_q));
    int *head = (void *)(q + map->n_q), n_heads = 0;
    int64_t visible[DQ_PAGE_TOKENS];
    dq_kv_span span[2], at[2];
    const int n_spans = dq_kv_spans(span, args->kv, list, rows);
    for (int h = 0; h < map->n_q; h++) {
        if (map->key[h] == key) head[n_heads++] = h;
    }
    dq_cpu_round_queries(q, cpu, args, rows, head, n_heads, read);
    memset(max, 0, (size_t)n_heads * sizeof *max);
    for (int64_t r = 0; r < rows->n; r++) visible[r] = dq_kv_visible(list, rows->pos[r]);
    const int64_t keys = visible[rows->n - 1];
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < keys && !dq_os_stop_signal(); p++) {
        const int n_at = dq_kv_page_spans(at, span, n_spans, p);
        for (int i = 0; i < n_at; i++) {
            const dq_cpu_page page = dq_cpu_open_keys(cpu, args, list, p, key, at[i].coded_end,
                                                      dq_kv_slots(keys, p), DQ_PAGE_TOKENS, read);
            for (int h = 0; h < n_heads; h++) {
                dq_cpu_times_keys(cpu, product, DQ_PAGE_TOKENS, args, rows, &at[i], head[h], &q[h],
                                  &page, read);
                raise_max(simd, &max[h], product, &at[i], visible, p);
            }
        }
    }
    for (int h = 0; h < n_heads; h++) absmax[head[h]] = max[h] * map->scale;
}

/* Tiles of rows of all sequences. Fills list (NULL: only counts). */
static int64_t list_tiles(dq_kv_rows *list, const dq_batch *batch)
{
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t end = batch->cu_rows[i + 1]; end > batch->cu_rows[i]; n++) {
            dq_kv_rows tile;
            dq_cpu_rows_last_tile(&tile, batch, i, batch->cu_rows[i], end);
            end = tile.first;
            if (list) list[n] = tile;
        }
    }
    return n;
}

void dq_cpu_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    const dq_cpu *cpu = dq_cpu_of(b);
    const dq_simd *simd = cpu->simd;
    const int n_q = args->attn->map->n_q, n_kv = args->attn->map->n_kv;
    const int64_t n = list_tiles(NULL, args->batch);
    const size_t each = sizeof(dq_kv_rows) + (size_t)n_q * sizeof(float);
    memset(absmax, 0, (size_t)args->batch->n_seq * (size_t)n_q * sizeof *absmax);
    dq_kv_rows *tiles = dq_cpu_shared(b, (size_t)(n + 1) * each);
    if (!tiles || !dq_cpu_reserve(b, absmax_bytes(args))) return;
    float *max = (float *)(void *)(tiles + n);
    list_tiles(tiles, args->batch);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t t = 0; t < n * n_kv; t++) {
        tile_absmax(cpu, max + t / n_kv * n_q, args, &tiles[t / n_kv], (int)(t % n_kv),
                    cpu->block[omp_get_thread_num()]);
    }
    dq_os_check_stop(&b->err);
    for (int64_t t = 0; b->err.code == DQ_OK && t < n * n_q; t++) {
        float *into = &absmax[tiles[t / n_q].seq * n_q + t % n_q];
        float pair[2] = {*into, max[t]};
        *into = simd->absmax(pair, 2);
    }
}

void dq_cpu_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q)
{
    if (b->err.code != DQ_OK) return;
    for (int i = 0; i < n_seq; i++) {
        float *row = absmax + (int64_t)i * n_q;
        float max = dq_cpu_of(b)->simd->absmax(row, n_q);
        for (int h = 0; h < n_q; h++) row[h] = max;
    }
}
