/* cpu_attention: attention over the paged cache, in f32.
 *
 * A task walks blocks of rows of one sequence. For a block it holds S of one or two query heads for
 * all keys the block sees (memory linear in the context), turns rows into exp(S - max), subtracts
 * the maps, and multiplies once with V. Every value of a row is made by a chain of operations whose
 * order depends on the row's own keys only; so rows do not depend on blocks, calls or threads.
 * SPDX-License-Identifier: MIT */
#include "cpu_attention.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum {
    BLOCK_FLOATS = 1 << 18, /* 1 MiB of scores: about what a second-level cache holds */
    LEAST_ROWS = 16
};

int64_t dq_cpu_block_rows(int64_t keys, int64_t buffers)
{
    int64_t rows = DQ_PAGE;
    while (rows > LEAST_ROWS && rows * buffers * dq_cpu_row_floats(keys) > BLOCK_FLOATS) rows /= 2;
    return rows;
}

int64_t dq_cpu_row_floats(int64_t keys)
{
    /* The 16 keep rows of a block from falling into the same cache sets. */
    return (keys + DQ_PAGE - 1) / DQ_PAGE * DQ_PAGE + 16;
}

void dq_rows_last_tile(dq_rows *rows, const dq_batch *batch, int seq, int64_t first, int64_t end)
{
    const int32_t tile = batch->pos[end - 1] / DQ_PAGE;
    rows->seq = seq;
    rows->first = end - 1;
    while (rows->first > first && batch->pos[rows->first - 1] / DQ_PAGE == tile) rows->first--;
    rows->n = end - rows->first;
    rows->pos = batch->pos + rows->first;
}

void dq_cpu_scores(const dq_simd *simd, float *const *s, int64_t ld, const dq_attend_args *args,
                   const dq_rows *rows, const dq_kv_list *list, const int *head, int n_heads,
                   int64_t keys)
{
    const dq_headmap *map = args->attn->map;
    const float *q = args->q.p + rows->first * args->q.cols;
    for (int64_t p = 0; p * DQ_PAGE < keys; p++) {
        int64_t n = keys - p * DQ_PAGE < DQ_PAGE ? keys - p * DQ_PAGE : DQ_PAGE;
        for (int i = 0; i < n_heads; i++) {
            const float *page = dq_kv_keys(args->kv, list->page[p], map->key[head[i]]);
            simd->gemm(s[i] + p * DQ_PAGE, ld, q + (int64_t)head[i] * map->head_dim, args->q.cols,
                       page, DQ_PAGE, rows->n, n, map->head_dim, false);
        }
    }
}

/* What one task computes: rows first..end of a sequence for output heads out_first..out_end of one
 * KV head group. */
typedef struct task {
    int seq;
    int64_t first, end;
    int out_first, out_end, group;
} task;

/* Scratch of a thread, sized for `keys` keys. */
typedef struct scratch {
    float *map[2];     /* [block rows][row floats] each: S, then exp(S - max) */
    float *edge_max;   /* [segments] tile grain: largest |S| */
    int32_t *edge;     /* [segments] tile grain: end of each run of keys in one tile of positions */
    int64_t n_edges;
    int held;          /* query head whose exp rows stand in map[1]; -1: none */
    double sum[2][DQ_PAGE];
    int64_t visible[DQ_PAGE];
} scratch;

typedef struct work {
    const dq_simd *simd;
    const dq_attend_args *args;
    dq_mat dst;
} work;

static int group_of_out(const dq_headmap *map, int out)
{
    return map->group[map->head[out].v[0]];
}

/* Keys of one tile of positions are neighbours in the list, wherever kept tokens ended up. */
static void find_edges(scratch *s, const dq_kv_list *list, int64_t keys)
{
    s->n_edges = 0;
    for (int64_t i = 0; i < keys; i++) {
        if (i + 1 == keys || dq_kv_pos(list, i + 1) / DQ_PAGE != dq_kv_pos(list, i) / DQ_PAGE) {
            s->edge[s->n_edges++] = (int32_t)(i + 1);
        }
    }
}

static void round_run(const dq_simd *simd, float *x, int64_t n, float absmax, float qmax)
{
    if (absmax == 0.0f) {
        memset(x, 0, (size_t)n * sizeof *x);
    } else {
        simd->round_to_grid(x, n, qmax / absmax, qmax, absmax / qmax);
    }
}

/* The block holds all rows of the call whose positions share a tile, so its maxima are the tile's. */
static void round_tiles(const work *w, scratch *s, float *x, int64_t ld, int64_t rows, float qmax)
{
    int64_t begin = 0;
    for (int64_t e = 0; e < s->n_edges; begin = s->edge[e++]) {
        float most[DQ_PAGE] = {0};
        for (int64_t r = 0; r < rows; r++) {
            int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (begin < end) most[r] = w->simd->absmax(x + r * ld + begin, end - begin);
        }
        float absmax = w->simd->absmax(most, rows);
        for (int64_t r = 0; r < rows; r++) {
            int64_t end = s->edge[e] < s->visible[r] ? s->edge[e] : s->visible[r];
            if (begin < end) round_run(w->simd, x + r * ld + begin, end - begin, absmax, qmax);
        }
    }
}

static void round_logits(const work *w, scratch *s, float *x, int64_t ld, const dq_rows *rows,
                         int head)
{
    const dq_attend_args *args = w->args;
    const float qmax = (float)((1 << (args->logit.bits - 1)) - 1);
    if (args->logit.grain == DQ_GRAIN_TILE) {
        round_tiles(w, s, x, ld, rows->n, qmax);
        return;
    }
    for (int64_t r = 0; r < rows->n; r++) {
        float *row = x + r * ld;
        float absmax = args->logit.grain == DQ_GRAIN_ROW
                           ? w->simd->absmax(row, s->visible[r])
                           : args->absmax[rows->seq * args->attn->map->n_q + head];
        round_run(w->simd, row, s->visible[r], absmax, qmax);
    }
}

/* S of one map becomes exp(S - max), zero where the row sees nothing, with sums in s->sum[m]. */
static void softmax_rows(const work *w, scratch *s, int m, int64_t ld, const dq_rows *rows,
                         int head, int64_t keys)
{
    const bool rounded = w->args->logit.bits < 16;
    const float scale = w->args->attn->map->scale;
    float *x = s->map[m];
    float top[DQ_PAGE];
    for (int64_t r = 0; r < rows->n; r++) {
        top[r] = w->simd->scale_max(x + r * ld, s->visible[r], scale);
    }
    if (rounded) round_logits(w, s, x, ld, rows, head);
    for (int64_t r = 0; r < rows->n; r++) {
        float *row = x + r * ld;
        int64_t n = s->visible[r];
        if (rounded) top[r] = w->simd->max(row, n);
        s->sum[m][r] = w->simd->exp_sum(row, row, n, top[r]);
        memset(row + n, 0, (size_t)(keys - n) * sizeof *row);
    }
}

static float lambda_of(const dq_attend_args *args, int64_t row, int out)
{
    return args->attn->lambda_kind == DQ_LAMBDA_TOKEN ? args->lambda.p[row * args->lambda.cols + out]
                                                      : args->attn->lambda;
}

static void add_columns(double *sums, const float *p, int64_t n, float a)
{
    for (int64_t i = 0; i < n; i++) sums[i] += (double)(p[i] * a);
}

/* map[0] becomes P1 - lambda P2 (two maps) or stays exp(S - max) (one map: y is divided instead). */
static void subtract(const work *w, scratch *s, int64_t ld, const dq_rows *rows, int out, int group)
{
    const dq_attend_args *args = w->args;
    const dq_columns *columns = args->columns;
    const int64_t end = args->batch->cu_rows[rows->seq + 1];
    const bool two = args->attn->map->n_maps == 2;
    int64_t at = columns ? columns->offset[rows->seq * args->attn->map->n_groups + group] : 0;
    for (int64_t r = 0; r < rows->n; r++) {
        float *p1 = s->map[0] + r * ld;
        const float *p2 = s->map[1] + r * ld;
        const int64_t n = s->visible[r];
        const bool counts = n && columns &&
                            (columns->last_rows == 0 || rows->first + r >= end - columns->last_rows);
        const float a = (float)(1.0 / s->sum[0][r]);
        float b = 0.0f;
        if (counts && columns->mass[0]) add_columns(columns->mass[0] + at, p1, n, a);
        if (two) {
            b = (float)((double)lambda_of(args, rows->first + r, out) / s->sum[1][r]);
            if (counts && columns->mass[1]) {
                add_columns(columns->mass[1] + at, p2, n, (float)(1.0 / s->sum[1][r]));
            }
            w->simd->diff(p1, p1, p2, n, a, b);
        }
        if (counts && columns->diff) {
            for (int64_t i = 0; i < n; i++) {
                columns->diff[at + i] += (double)fabsf(two ? p1[i] : p1[i] * a);
            }
        }
    }
}

/* y = D [V | V], page after page. */
static void times_values(const work *w, const scratch *s, int64_t ld, const dq_rows *rows,
                         const dq_kv_list *list, int out, int64_t keys)
{
    const dq_headmap *map = w->args->attn->map;
    const dq_kv *kv = w->args->kv;
    for (int slab = 0; slab < map->n_slabs; slab++) {
        int64_t column = ((int64_t)out * map->n_slabs + slab) * map->head_dim;
        float *y = w->dst.p + rows->first * w->dst.cols + column;
        for (int64_t p = 0; p * DQ_PAGE < keys; p++) {
            const float *v = dq_kv_values(kv, list->page[p], map->head[out].v[slab]);
            int64_t k = keys - p * DQ_PAGE < DQ_PAGE ? keys - p * DQ_PAGE : DQ_PAGE;
            for (int64_t c = 0; c < map->head_dim; c += DQ_TILE_N) {
                int64_t n = map->head_dim - c < DQ_TILE_N ? map->head_dim - c : DQ_TILE_N;
                w->simd->gemm(y + c, w->dst.cols, s->map[0] + p * DQ_PAGE, ld, v + c, kv->v_cols,
                              rows->n, n, k, p > 0);
            }
        }
    }
}

/* The division that a single map still needs, norm and scale. */
static void finish(const work *w, const scratch *s, const dq_rows *rows, int out)
{
    const dq_attn *attn = w->args->attn;
    const int64_t width = (int64_t)attn->map->n_slabs * attn->map->head_dim;
    for (int64_t r = 0; r < rows->n; r++) {
        float *y = w->dst.p + (rows->first + r) * w->dst.cols + out * width;
        if (s->visible[r] == 0) {
            memset(y, 0, (size_t)width * sizeof *y);
            continue;
        }
        if (attn->map->n_maps == 1) w->simd->scale(y, width, (float)(1.0 / s->sum[0][r]));
        if (attn->head_norm) {
            double mean = w->simd->sum_squares(y, width) / (double)width;
            float a = (float)(1.0 / sqrt(mean + (double)attn->norm_eps));
            w->simd->scale_gain(y, y, width, a, attn->gain);
        }
        if (attn->out_scale != 1.0f) w->simd->scale(y, width, attn->out_scale);
    }
}

static void attend_out(const work *w, scratch *s, int64_t ld, const dq_rows *rows,
                       const dq_kv_list *list, int out, int group, int64_t keys)
{
    const dq_headmap *map = w->args->attn->map;
    const int head[2] = {map->head[out].q[0], map->head[out].q[1]};
    const int fresh = map->n_maps == 2 && s->held != head[1] ? 2 : 1;
    dq_cpu_scores(w->simd, s->map, ld, w->args, rows, list, head, fresh, keys);
    for (int m = 0; m < fresh; m++) softmax_rows(w, s, m, ld, rows, head[m], keys);
    if (map->n_maps == 2) s->held = head[1];
    subtract(w, s, ld, rows, out, group);
    times_values(w, s, ld, rows, list, out, keys);
    finish(w, s, rows, out);
}

static void attend_block(const work *w, scratch *s, int64_t ld, const dq_rows *rows,
                         const dq_kv_list *list, const task *t)
{
    const dq_headmap *map = w->args->attn->map;
    for (int64_t r = 0; r < rows->n; r++) s->visible[r] = dq_kv_visible(list, rows->pos[r]);
    const int64_t keys = s->visible[rows->n - 1];
    if (w->args->logit.bits < 16 && w->args->logit.grain == DQ_GRAIN_TILE) find_edges(s, list, keys);
    s->held = -1;
    for (int out = t->out_first; out < t->out_end; out++) {
        if (group_of_out(map, out) == t->group) {
            attend_out(w, s, ld, rows, list, out, t->group, keys);
        }
    }
}

/* Rows per block and the scratch that goes with them, for the longest list of the call. */
typedef struct plan {
    int64_t keys, block_rows;
    size_t bytes;
} plan;

static int64_t max_keys(const dq_attend_args *args)
{
    int64_t most = 0;
    for (int i = 0; i < args->batch->n_seq; i++) {
        for (int g = 0; g < args->attn->map->n_groups; g++) {
            int64_t n = dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, g)->count;
            most = n > most ? n : most;
        }
    }
    return most;
}

static plan plan_blocks(const dq_attend_args *args)
{
    plan p = {.keys = max_keys(args), .block_rows = DQ_PAGE};
    const int maps = args->attn->map->n_maps;
    const bool tiles = args->logit.bits < 16 && args->logit.grain == DQ_GRAIN_TILE;
    if (!tiles) p.block_rows = dq_cpu_block_rows(p.keys, maps);
    if (args->batch->n_rows < p.block_rows) p.block_rows = args->batch->n_rows;
    p.bytes = (size_t)(p.block_rows * maps * dq_cpu_row_floats(p.keys)) * sizeof(float);
    p.bytes += (size_t)(p.keys + 16) * sizeof(int32_t);
    return p;
}

static void run_task(const work *w, const task *t, const plan *p, void *block)
{
    const dq_attend_args *args = w->args;
    const dq_kv_list *list =
        dq_kv_list_of(args->kv, args->batch->seq[t->seq], args->layer, t->group);
    const int64_t ld = dq_cpu_row_floats(p->keys), floats = p->block_rows * ld;
    const int maps = args->attn->map->n_maps;
    scratch s;
    s.map[0] = block;
    s.map[1] = s.map[0] + (maps - 1) * floats;
    s.edge = (int32_t *)(void *)(s.map[0] + maps * floats);
    for (int64_t end = t->end; end > t->first;) {
        dq_rows tile;
        dq_rows_last_tile(&tile, args->batch, t->seq, t->first, end);
        end = tile.first;
        for (int64_t done = 0; done < tile.n; done += p->block_rows) {
            dq_rows rows = {.seq = t->seq, .first = tile.first + done, .pos = tile.pos + done};
            rows.n = tile.n - done < p->block_rows ? tile.n - done : p->block_rows;
            attend_block(w, &s, ld, &rows, list, t);
        }
    }
}

/* Output heads after `out` that can share its second map: they stay in one task. */
static int share_end(const dq_headmap *map, int out)
{
    int end = out + 1;
    if (map->n_maps < 2) return end;
    while (end < map->n_out && map->head[end].q[1] == map->head[out].q[1] &&
           group_of_out(map, end) == group_of_out(map, out)) {
        end++;
    }
    return end;
}

/* Fills list (NULL: only counts). Column sums are added in one order, so each of their tasks owns a
 * sequence and group whole. */
static int64_t list_tasks(task *list, const dq_attend_args *args)
{
    const dq_headmap *map = args->attn->map;
    const dq_batch *batch = args->batch;
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        int64_t first = batch->cu_rows[i], end = batch->cu_rows[i + 1];
        for (int g = 0; args->columns && g < map->n_groups && first < end; g++, n++) {
            if (list) list[n] = (task){i, first, end, 0, map->n_out, g};
        }
        while (!args->columns && end > first) {
            dq_rows tile;
            dq_rows_last_tile(&tile, batch, i, first, end);
            for (int out = 0; out < map->n_out; n++) {
                int next = share_end(map, out);
                if (list) list[n] = (task){i, tile.first, end, out, next, group_of_out(map, out)};
                out = next;
            }
            end = tile.first;
        }
    }
    return n;
}

void dq_cpu_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    const work w = {dq_cpu_of(b)->simd, args, dst};
    const plan p = plan_blocks(args);
    const int64_t n = list_tasks(NULL, args);
    task *tasks = dq_cpu_shared(b, (size_t)(n + 1) * sizeof *tasks);
    if (!tasks || !dq_cpu_reserve(b, p.bytes)) return;
    list_tasks(tasks, args);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t i = 0; i < n; i++) {
        run_task(&w, &tasks[i], &p, dq_cpu_of(b)->block[omp_get_thread_num()]);
    }
}

/* Largest |S| of one query head over a tile of rows. Rounding is monotonic and scale positive, so
 * scaling the largest |q . k| gives the largest |S| bit for bit. */
static float tile_absmax(const dq_simd *simd, const dq_attend_args *args, const dq_rows *rows,
                         int head)
{
    const dq_headmap *map = args->attn->map;
    const dq_kv_list *list = dq_kv_list_of(args->kv, args->batch->seq[rows->seq], args->layer,
                                           map->group[map->key[head]]);
    float product[DQ_PAGE * DQ_PAGE], most[DQ_PAGE] = {0};
    int64_t visible[DQ_PAGE];
    for (int64_t r = 0; r < rows->n; r++) visible[r] = dq_kv_visible(list, rows->pos[r]);
    const int64_t keys = visible[rows->n - 1];
    const float *q = args->q.p + rows->first * args->q.cols + (int64_t)head * map->head_dim;
    for (int64_t p = 0; p * DQ_PAGE < keys; p++) {
        int64_t n = keys - p * DQ_PAGE < DQ_PAGE ? keys - p * DQ_PAGE : DQ_PAGE;
        simd->gemm(product, DQ_PAGE, q, args->q.cols,
                   dq_kv_keys(args->kv, list->page[p], map->key[head]), DQ_PAGE, rows->n, n,
                   map->head_dim, false);
        for (int64_t r = 0; r < rows->n; r++) {
            int64_t seen = visible[r] - p * DQ_PAGE < n ? visible[r] - p * DQ_PAGE : n;
            if (seen <= 0) continue;
            float pair[2] = {most[r], simd->absmax(product + r * DQ_PAGE, seen)};
            most[r] = simd->absmax(pair, 2); /* as NaN stays, unlike in a comparison */
        }
    }
    return simd->absmax(most, rows->n) * map->scale;
}

/* Tiles of rows of all sequences. Fills list (NULL: only counts). */
static int64_t list_tiles(dq_rows *list, const dq_batch *batch)
{
    int64_t n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        for (int64_t end = batch->cu_rows[i + 1]; end > batch->cu_rows[i]; n++) {
            dq_rows tile;
            dq_rows_last_tile(&tile, batch, i, batch->cu_rows[i], end);
            end = tile.first;
            if (list) list[n] = tile;
        }
    }
    return n;
}

void dq_cpu_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    if (b->err.code != DQ_OK) return;
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int n_q = args->attn->map->n_q;
    const int64_t n = list_tiles(NULL, args->batch);
    const size_t each = sizeof(dq_rows) + (size_t)n_q * sizeof(float);
    memset(absmax, 0, (size_t)args->batch->n_seq * (size_t)n_q * sizeof *absmax);
    dq_rows *tiles = dq_cpu_shared(b, (size_t)(n + 1) * each);
    if (!tiles) return;
    float *most = (float *)(void *)(tiles + n);
    list_tiles(tiles, args->batch);
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads)
    for (int64_t t = 0; t < n * n_q; t++) {
        most[t] = tile_absmax(simd, args, &tiles[t / n_q], (int)(t % n_q));
    }
    for (int64_t t = 0; t < n * n_q; t++) {
        float *into = &absmax[tiles[t / n_q].seq * n_q + t % n_q];
        float pair[2] = {*into, most[t]};
        *into = simd->absmax(pair, 2);
    }
}

void dq_cpu_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q)
{
    if (b->err.code != DQ_OK) return;
    for (int i = 0; i < n_seq; i++) {
        float *row = absmax + (int64_t)i * n_q;
        float most = dq_cpu_of(b)->simd->absmax(row, n_q);
        for (int h = 0; h < n_q; h++) row[h] = most;
    }
}
