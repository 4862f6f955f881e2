/* cpu_observe: reducers that look at values on their way through the forward pass. Every thread has a tally of its own; tallies
 * merge in any order.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/attention/cpu_attention.h"

#include <omp.h>
#include <string.h>

enum { ACTIVATION_ROWS = 32 };

dq_tally *dq_cpu_tallies_new(dq_backend *b, const dq_tally *tally)
{
    dq_tally *local = dq_block_new((size_t)b->threads, sizeof *local, &b->err);
    for (int i = 0; local && i < b->threads; i++) {
        if (dq_tally_init(&local[i], &b->err) != DQ_OK) break;
        local[i].threshold = tally->threshold; /* what cannot enter there need not enter here */
        local[i].powers = dq_cpu_of(b)->simd->power_sums;
        if (!tally->fine) continue;
        local[i].refine_bin = tally->refine_bin;
        local[i].fine = dq_block_new(65536, sizeof *local[i].fine, &b->err);
    }
    return local;
}

void dq_cpu_tallies_free(dq_tally *local, int n)
{
    for (int i = 0; local && i < n; i++) dq_tally_free(&local[i]);
    dq_block_free(local);
}

void dq_cpu_tallies_join(dq_tally *tally, const dq_tally *local, int n)
{
    for (int i = 0; local && i < n; i++) dq_tally_merge(tally, &local[i]);
}

/* Positions rise: the last one tells whether any is missing. */
static void add_runs(dq_tally *local, const float *x, const dq_kv_list *list, int64_t n,
                     dq_place at)
{
    for (int64_t i = 0; i < n;) {
        int64_t end = i + 1;
        at.col = dq_kv_pos(list, i);
        if (dq_kv_pos(list, n - 1) - at.col == n - 1 - i) end = n;
        while (end < n && dq_kv_pos(list, end) - at.col == end - i) end++;
        dq_tally_add(local, x + i, end - i, at);
        i = end;
    }
}

typedef struct piece {
    dq_kv_rows rows;
    int head;
} piece;

/* The logits of a piece, row by row. */
static void walk_piece(dq_backend *b, const dq_attend_args *args, const piece *p, int64_t step,
                       int32_t seq_base, dq_cpu_take_logits *take, void *arg)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const dq_head_order *map = args->attn->map;
    const dq_kv_list *list = dq_kv_list_of(args->kv, args->batch->seq[p->rows.seq], args->layer,
                                           map->group[map->key[p->head]]);
    float *scratch = dq_cpu_of(b)->block[omp_get_thread_num()];
    float *s = scratch + dq_cpu_score_floats(args, step, 1);
    const int64_t ld = dq_cpu_row_floats(dq_kv_visible(list, p->rows.pos[p->rows.n - 1]));
    for (int64_t done = 0; done < p->rows.n && !dq_os_stop_signal(); done += step) {
        dq_kv_rows rows = {p->rows.seq, p->rows.first + done, p->rows.n - done, p->rows.pos + done};
        if (rows.n > step) rows.n = step;
        dq_cpu_scores(dq_cpu_of(b), &s, ld, args, &rows, list, &p->head, 1,
                      dq_kv_visible(list, rows.pos[rows.n - 1]), NULL, scratch);
        for (int64_t r = 0; r < rows.n; r++) {
            const int64_t n = dq_kv_visible(list, rows.pos[r]);
            dq_place at = {seq_base + rows.seq, args->layer, p->head, rows.pos[r], 0};
            simd->scale(s + r * ld, n, map->scale);
            take(arg, omp_get_thread_num(), s + r * ld, n, list, at);
        }
    }
}

/* Tiles of rows for every query head. Fills list (NULL: only counts); *keys: the longest list. */
static int64_t list_pieces(piece *list, const dq_attend_args *args, int64_t *keys)
{
    const dq_head_order *map = args->attn->map;
    const dq_batch *batch = args->batch;
    int64_t n = 0;
    *keys = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int g = 0; g < map->n_groups; g++) {
            int64_t held = dq_kv_list_of(args->kv, batch->seq[i], args->layer, g)->count;
            *keys = held > *keys ? held : *keys;
        }
        for (int64_t end = batch->cu_rows[i + 1]; end > batch->cu_rows[i];) {
            dq_kv_rows tile;
            dq_cpu_rows_last_tile(&tile, batch, i, batch->cu_rows[i], end);
            end = tile.first;
            for (int h = 0; h < map->n_q; h++, n++) {
                if (list) list[n] = (piece){tile, h};
            }
        }
    }
    return n;
}

void dq_cpu_walk_logits(dq_backend *b, const dq_attend_args *args, int32_t seq_base,
                        dq_cpu_take_logits *take, void *arg)
{
    int64_t keys, n = list_pieces(NULL, args, &keys);
    const int64_t step = dq_cpu_block_rows(keys, 1); /* pieces that see less keep to it too */
    const int64_t floats = step * dq_cpu_row_floats(keys) + dq_cpu_score_floats(args, step, 1);
    piece *pieces = dq_cpu_shared(b, (size_t)(n + 1) * sizeof *pieces);
    if (!pieces || !dq_cpu_reserve(b, (size_t)floats * sizeof(float))) return;
    list_pieces(pieces, args, &keys);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t i = 0; i < n; i++) walk_piece(b, args, &pieces[i], step, seq_base, take, arg);
    dq_os_check_stop(&b->err);
}

static void tally_row(void *arg, int thread, const float *s, int64_t n, const dq_kv_list *list,
                      dq_place at)
{
    dq_tally *local = arg;
    add_runs(&local[thread], s, list, n, at);
}

void dq_cpu_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                         int32_t seq_base)
{
    if (b->err.code != DQ_OK) return;
    dq_tally *local = dq_cpu_tallies_new(b, tally);
    if (b->err.code == DQ_OK) dq_cpu_walk_logits(b, args, seq_base, tally_row, local);
    if (b->err.code == DQ_OK) dq_cpu_tallies_join(tally, local, b->threads);
    dq_cpu_tallies_free(local, b->threads);
}

int dq_cpu_seq_of_row(const dq_batch *batch, int64_t row)
{
    int i = 0;
    while (batch->cu_rows[i + 1] <= row) i++;
    return i;
}

static dq_place place_of(const dq_batch *batch, int64_t row, int layer, int32_t seq_base)
{
    return (dq_place){seq_base + dq_cpu_seq_of_row(batch, row), layer, -1, batch->pos[row], 0};
}

void dq_cpu_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                    int32_t seq_base)
{
    if (b->err.code != DQ_OK) return;
    dq_tally *local = dq_cpu_tallies_new(b, tally);
    if (b->err.code == DQ_OK) {
#pragma omp parallel for schedule(dynamic, ACTIVATION_ROWS) num_threads(b->threads)
        for (int64_t row = 0; row < x.rows; row++)
            dq_tally_add(&local[omp_get_thread_num()], x.p + row * x.cols, x.cols,
                         place_of(batch, row, layer, seq_base));
        dq_cpu_tallies_join(tally, local, b->threads);
    }
    dq_cpu_tallies_free(local, b->threads);
}
