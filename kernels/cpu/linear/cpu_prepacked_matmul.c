/* cpu_prepacked_matmul: products with prepacked weights. See cpu_prepacked.h.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/linear/cpu_prepacked.h"

#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { ROWS = DQ_PREPACKED_ROWS, COLS = DQ_PREPACKED_COLS };

static int64_t padded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Rows in tiles of at most `most`, nearly equal ones. Tile i begins at the row tile_at(..., i). */
static int64_t n_tiles(int64_t rows, int most)
{
    return (rows + most - 1) / most;
}

static int64_t tile_at(int64_t rows, int most, int64_t i)
{
    return rows * i / n_tiles(rows, most);
}

/* Blocks of a task: `first` and n - 1 more, `step` apart. */
typedef struct task {
    int64_t first, step;
    int n;
} task;

/* Tasks of a product. Blocks that are read once go side by side: as streams that go on from task to task, as what is
 * fetched ahead then is what comes next; one that many tiles read stays near. Every thread has as many tasks, of nearly as
 * many blocks, if there are enough. In large pages two streams are read faster than one or four. */
static int64_t n_tasks(const dq_backend *b, int64_t n_blocks, bool once)
{
    enum { STREAMS = DQ_PREPACKED_WIDE / 2 }; /* of the blocks that a product may take together */
    const int64_t least = once ? (n_blocks + STREAMS - 1) / STREAMS : n_blocks;
    const int64_t n = (least + b->threads - 1) / b->threads * b->threads;
    return n < n_blocks ? n : n_blocks;
}

static task task_at(int64_t n_blocks, int64_t tasks, int64_t i)
{
    return (task){i, tasks, (int)((n_blocks - i + tasks - 1) / tasks)};
}

/* Tasks that a thread takes at a time: streams shall be long, and the last thread shall not be long alone. */
static int task_run(const dq_backend *b, int64_t tasks, bool once)
{
    const int64_t n = once ? tasks / (4 * b->threads) : 1;
    return n > 0 ? (int)n : 1;
}

/* A weight, and what products read of it: its packed form, or (data is NULL) blocks that are packed when they are needed, in a
 * thread's scratch. */
typedef struct operand {
    const dq_weight *w;
    dq_simd_prepacked_weight d;
} operand;

static operand operand_of(dq_backend *b, const dq_weight *w)
{
    const dq_simd_prepacked_weight *kept = dq_cpu_prepacked_of(b, w);
    return (operand){w, kept ? *kept : dq_cpu_prepacked_shape(w)};
}

/* ------------------------------------------------------------------------------- factors of columns */

/* Bytes of a thread's scratch for `bytes`, and after them for a row of activations times the factors of w's columns. */
static int64_t with_row(const dq_weight *w, int64_t bytes)
{
    return w->column ? padded(bytes) + w->cols * (int64_t)sizeof(float) : bytes;
}

/* Bytes for the factors themselves. */
static size_t factor_bytes(const dq_weight *w)
{
    return w->column ? (size_t)w->cols * sizeof(float) : 0;
}

/* to[cols]; NULL where w has none. */
static const float *factors_of(float *to, const dq_weight *w)
{
    if (!w->column) return NULL;
    for (int64_t i = 0; i < w->cols; i++) to[i] = dq_weight_factor(w->column[i]);
    return to;
}

/* x[cols], or, where there are factors, x times them in the scratch after `bytes`. */
static const float *row_for(const float *factor, const float *x, int64_t cols, void *scratch,
                            int64_t bytes)
{
    if (!factor) return x;
    float *to = (float *)(void *)((uint8_t *)scratch + padded(bytes));
#pragma omp simd
    for (int64_t i = 0; i < cols; i++) to[i] = x[i] * factor[i];
    return to;
}

/* Scratch of a thread for that, and for `bytes` before. */
static bool reserve(dq_backend *b, const operand *o, int64_t bytes)
{
    const int64_t own = o->d.data ? 0 : dq_cpu_prepacked_scratch(o->w, &o->d);
    return dq_cpu_reserve(b, (size_t)(own > bytes ? own : bytes));
}

/* Without a kept packing, a task has one block. */
static dq_simd_blocks blocks_of(const dq_cpu *cpu, const operand *o, const task *t)
{
    const dq_simd_prepacked_weight *d = &o->d;
    if (d->data) return (dq_simd_blocks){d->data + t->first * d->bytes, t->step * d->bytes, t->n};
    uint8_t *scratch = cpu->block[omp_get_thread_num()];
    dq_cpu_prepacked_block(cpu->simd, cpu->levels, scratch, o->w, d, t->first);
    return (dq_simd_blocks){.at = scratch, .n = 1};
}

/* dst[m] from y[m][blocks], plus bias. */
static void put(dq_mat dst, int64_t row, const task *t, const float *y, int m, const float *bias,
                const dq_simd *simd)
{
    for (int k = 0; k < t->n; k++) {
        const int64_t col = (t->first + k * t->step) * ROWS, left = dst.cols - col;
        const int64_t n = left < ROWS ? left : ROWS;
        for (int i = 0; i < m; i++) {
            float *to = dst.p + (row + i) * dst.cols + col;
            memcpy(to, y + (i * t->n + k) * ROWS, (size_t)n * sizeof *to);
            if (bias) simd->add(to, bias + col, n);
        }
    }
}

/* All activations of a call: panels of columns one after another, of each tiles of rows. Scales and sums are those of
 * tiles. */
typedef struct activations {
    int8_t *code;
    float *scale;
    int32_t *sum;
    const float *factor;          /* of columns; NULL: none */
    int64_t rows, padded, groups; /* padded, groups: of a row */
    int64_t panel;                /* columns, whole groups; the last one is what is left */
    bool words;                   /* codes are words of 16 bits */
} activations;

/* Columns of the panel that begins at column k. */
static int64_t panel_cols(const activations *a, int64_t k)
{
    return a->padded - k < a->panel ? a->padded - k : a->panel;
}

/* Codes of the tile of row `first`, from column k on, where a panel begins. */
static int8_t *codes_at(const activations *a, int64_t first, int64_t k)
{
    return a->code + ((a->rows * k + first * panel_cols(a, k)) << a->words);
}

/* Those of the m rows of a tile from a group and its first column on. */
static dq_simd_prepacked_rows rows_at(const activations *a, int64_t first, int m, int64_t group,
                                      int64_t k)
{
    const int64_t at = first * a->groups + group * m;
    return (dq_simd_prepacked_rows){codes_at(a, first, k), a->scale + at, a->sum + at};
}

/* Codes of four columns; words: even ones before odd ones, in 16 bits each. */
static void put_four(int8_t *to, const int8_t *from, bool words)
{
    if (words) {
        const int16_t four[4] = {from[0], from[2], from[1], from[3]};
        memcpy(to, four, sizeof four);
    } else {
        memcpy(to, from, 4);
    }
}

/* Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, without a call. */
static int32_t encode(int8_t *code, const float *x, int64_t n, float scale)
{
    const float magic = 12582912.0f;
    int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) {
        const float q = x[i] / scale + magic - magic;
        const int32_t c = (int32_t)q;
        code[i] = (int8_t)c;
        sum += c;
    }
    return sum;
}

int32_t dq_cpu_round8(const dq_simd *simd, int8_t *code, float *scale, const float *x, int64_t n)
{
    const float max = simd->absmax(x, n);
    *scale = isfinite(max) ? max / 127.0f : NAN; /* shows in every result of the row */
    if (*scale > 0) return encode(code, x, n, *scale);
    memset(code, 0, (size_t)n);
    return 0;
}

/* Rounds row i of the m of a tile into line[padded], where groups begin as they do in the packed form; sums are taken `times`. */
static void round_row(const dq_simd *simd, const activations *a, int8_t *line, const float *x,
                      const operand *o, int32_t times, int64_t first, int i, int m)
{
    const int64_t size = o->w->group_size, width = o->d.group * COLS;
    for (int64_t g = 0; g < a->groups; g++) {
        const int64_t left = o->w->cols - g * size, n = left < size ? left : size;
        const int64_t rest = a->padded - g * width, at = first * a->groups + g * m + i;
        int8_t *code = line + g * width;
        const int32_t sum = dq_cpu_round8(simd, code, &a->scale[at], x + g * size, n);
        memset(code + n, 0, (size_t)((rest < width ? rest : width) - n));
        a->sum[at] = (int32_t)((uint32_t)times * (uint32_t)sum); /* as vectors do */
    }
}

/* Rounds rows first .. first + m into their tile. */
static void round_tile(const dq_simd *simd, const activations *a, int8_t *line, dq_mat src,
                       const operand *o, int32_t times, int64_t first, int m)
{
    for (int i = 0; i < m; i++) {
        const float *x =
            row_for(a->factor, src.p + (first + i) * src.cols, src.cols, line, a->padded);
        round_row(simd, a, line, x, o, times, first, i, m);
        for (int64_t k0 = 0; k0 < a->padded; k0 += a->panel) {
            int8_t *code = codes_at(a, first, k0);
            for (int64_t k = 0; k < panel_cols(a, k0); k += 4)
                put_four(code + ((k * m + 4 * i) << a->words), line + k0 + k, a->words);
        }
    }
}

/* Rows of a tile. */
static int int8_most(const dq_simd_prepacked *blocks, int64_t rows)
{
    return rows > blocks->int8_rows ? blocks->int8_one : blocks->int8_rows;
}

static void run_int8(dq_backend *b, dq_mat dst, const activations *a, const operand *o,
                     const float *bias)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = int8_most(cpu->blocks, dst.rows);
    const int64_t n_blocks = (o->d.rows + ROWS - 1) / ROWS;
    const bool once = o->d.data && dst.rows <= most;
    const int64_t tasks = n_tasks(b, n_blocks, once);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, task_run(b, tasks, once))
    for (int64_t i = 0; i < tasks; i++) {
        if (dq_os_stop_signal()) continue;
        const task own = task_at(n_blocks, tasks, i);
        const dq_simd_blocks blocks = blocks_of(cpu, o, &own);
        for (int64_t t = 0; t < n_tiles(dst.rows, most); t++) {
            const int64_t first = tile_at(dst.rows, most, t);
            const int m = (int)(tile_at(dst.rows, most, t + 1) - first);
            const dq_simd_prepacked_rows rows = rows_at(a, first, m, 0, 0);
            float y[DQ_PREPACKED_INT8_MAX * DQ_PREPACKED_WIDE * ROWS];
            cpu->blocks->int8(y, own.n * ROWS, &o->d, blocks, &rows, m);
            put(dst, first, &own, y, m, bias, cpu->simd);
        }
    }
}

/* Whether codes that are kept prepacked are unpacked once for many rows. */
static bool is_unpacked(const dq_simd_prepacked *blocks, const operand *o, int64_t rows)
{
    return o->d.data && blocks->unpack && rows > blocks->int8_rows;
}

/* A part of a product: one panel of activations, and rows of it whose codes stay in the second-level cache while all
 * blocks pass over them. */
typedef struct part {
    int64_t k, group, chunks; /* of the panel: its first column and group */
    int64_t tile, end;
} part;

/* Asks for sums of m rows that are added to. */
static void expect_sums(const float *y, int64_t ldy, int64_t m)
{
    for (int64_t r = 0; r < m; r++)
        for (int k = 0; k < ROWS; k += 16) __builtin_prefetch(y + r * ldy + k, 1);
}

/* Adds a part with block i; the last panel adds the bias. unpacked[dq_simd_unpacked_bytes]. */
static void run_unpacked(const dq_cpu *cpu, dq_mat dst, const activations *a,
                         const dq_simd_prepacked_weight *w, int64_t i, const part *p,
                         uint8_t *unpacked, const float *bias)
{
    const int most = cpu->blocks->int8_one;
    const int64_t col = i * ROWS, left = dst.cols - col, n = left < ROWS ? left : ROWS;
    const bool add = p->k > 0, last = p->k + p->chunks * COLS == a->padded;
    cpu->blocks->unpack(unpacked, w, w->data + i * w->bytes, p->group, p->chunks);
    for (int64_t t = p->tile; t < p->end; t++) {
        const int64_t first = tile_at(dst.rows, most, t);
        const int m = (int)(tile_at(dst.rows, most, t + 1) - first);
        const dq_simd_prepacked_rows rows = rows_at(a, first, m, p->group, p->k);
        float *to = dst.p + first * dst.cols + col, cut[DQ_PREPACKED_INT8_MAX * ROWS];
        float *y = n < ROWS ? cut : to;
        const int64_t ldy = n < ROWS ? ROWS : dst.cols;
        if (t + 1 < p->end && n == ROWS)
            expect_sums(to + m * dst.cols, dst.cols,
                        tile_at(dst.rows, most, t + 2) - tile_at(dst.rows, most, t + 1));
        for (int r = 0; n < ROWS && add && r < m; r++)
            memcpy(cut + r * ROWS, to + r * dst.cols, (size_t)n * sizeof *to);
        cpu->blocks->int8_unpacked(y, ldy, w, unpacked, p->chunks, &rows, m, add);
        for (int r = 0; n < ROWS && r < m; r++)
            memcpy(to + r * dst.cols, cut + r * ROWS, (size_t)n * sizeof *to);
        for (int r = 0; bias && last && r < m; r++)
            cpu->simd->add(to + r * dst.cols, bias + col, n);
    }
}

/* A panel with all blocks and rows, `each` tiles at a time. */
static void run_panel(dq_backend *b, dq_mat dst, const activations *a,
                      const dq_simd_prepacked_weight *w, part panel, const float *bias)
{
    enum { NEAR = 1 << 19 };
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = cpu->blocks->int8_one;
    const int64_t n_blocks = (w->rows + ROWS - 1) / ROWS, tiles = n_tiles(dst.rows, most);
    const int64_t near = NEAR / (panel.chunks * COLS * most);
    const int64_t each = near > 0 ? near : 1, parts = (tiles + each - 1) / each;
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
    for (int64_t i = 0; i < parts * n_blocks; i++) {
        if (dq_os_stop_signal()) continue;
        part p = panel;
        p.tile = tiles * (i / n_blocks) / parts;
        p.end = tiles * (i / n_blocks + 1) / parts;
        run_unpacked(cpu, dst, a, w, i % n_blocks, &p, cpu->block[omp_get_thread_num()], bias);
    }
}

static void run_int8_unpacked(dq_backend *b, dq_mat dst, const activations *a,
                              const dq_simd_prepacked_weight *w, const float *bias)
{
    if (!dq_cpu_reserve(b, (size_t)dq_simd_unpacked_bytes(w, a->panel / COLS))) return;
    part p = {0};
    for (; p.k < a->padded; p.k += a->panel, p.group += a->panel / COLS / w->group) {
        p.chunks = panel_cols(a, p.k) / COLS;
        run_panel(b, dst, a, w, p, bias);
    }
}

/* Columns of a panel of activations: whole groups. */
static int64_t panel_of(const dq_simd_prepacked_weight *w)
{
    enum { CHUNKS = 32 };
    const int64_t groups = w->group < CHUNKS ? CHUNKS / w->group : 1;
    const int64_t chunks = groups * w->group;
    return (chunks < w->chunks ? chunks : w->chunks) * COLS;
}

void dq_cpu_prepacked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                           const float *bias)
{
    const operand o = operand_of(b, w);
    const dq_simd_prepacked_weight *d = &o.d;
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = int8_most(cpu->blocks, src.rows);
    const bool unpacked = is_unpacked(cpu->blocks, &o, src.rows);
    activations a = {.rows = src.rows,
                     .padded = d->chunks * COLS,
                     .groups = d->groups,
                     .panel = unpacked ? panel_of(d) : d->chunks * COLS,
                     .words = !unpacked && d->bits == cpu->blocks->int8_words};
    const int32_t zero = unpacked && d->bits == 8 ? d->zero - 128 : d->zero;
    const size_t codes = ((size_t)((src.rows * a.padded) << a.words) + 63) / 64 * 64;
    const size_t words = (size_t)(src.rows * a.groups);
    const size_t sums = words * (sizeof(float) + sizeof(int32_t));
    uint8_t *shared = dq_cpu_shared(b, codes + sums + factor_bytes(w));
    if (!shared || !reserve(b, &o, with_row(w, a.padded))) return;
    a.code = (int8_t *)shared;
    a.scale = (float *)(void *)(shared + codes);
    a.sum = (int32_t *)(void *)(a.scale + words);
    a.factor = factors_of((float *)(void *)(shared + codes + sums), w);
#pragma omp parallel for num_threads(b->threads) schedule(static) if (src.rows > most)
    for (int64_t t = 0; t < n_tiles(src.rows, most); t++) {
        const int64_t first = tile_at(src.rows, most, t), end = tile_at(src.rows, most, t + 1);
        round_tile(cpu->simd, &a, cpu->block[omp_get_thread_num()], src, &o,
                   d->own_zeros ? 1 : -zero, first, (int)(end - first));
    }
    if (unpacked)
        run_int8_unpacked(b, dst, &a, d, bias);
    else
        run_int8(b, dst, &a, &o, bias);
}

/* ------------------------------------------------------------------------------------------- f32 */

/* All activations of a call as split integers: tiles of rows one after another. */
typedef struct split_rows {
    int8_t *code;
    float *unit;
    int32_t *start;
    const float *factor;    /* of columns; NULL: none */
    uint8_t *uneven;        /* [rows]: what is left of one of a row's pieces counts */
    int64_t padded, pieces; /* of a row */
    bool words;             /* parts are words of 16 bits */
} split_rows;

static dq_simd_split_rows split_at(const split_rows *a, int64_t first)
{
    return (dq_simd_split_rows){a->code + ((3 * first * a->padded) << a->words),
                                a->unit + first * a->pieces, a->start + 3 * first * a->pieces};
}

static int64_t pieces_of(int64_t chunks)
{
    return (chunks + DQ_PREPACKED_PIECE - 1) / DQ_PREPACKED_PIECE;
}

/* Columns of a piece of a row: the first one begins at 0. */
typedef struct piece {
    int64_t k, n;
} piece;

/* False after the last one. */
static bool next_piece(piece *p, const dq_simd_prepacked_weight *w)
{
    const int64_t group = w->group * COLS, k = p->k + p->n;
    const int64_t end = (k / group + 1) * group, stop = end < w->cols ? end : w->cols;
    const int64_t n = stop - k, most = DQ_PREPACKED_PIECE * COLS;
    *p = (piece){k, n < most ? n : most};
    return p->n > 0;
}

/* Row i of the m of a tile; line[3][padded]. */
static void split_row(const dq_cpu *cpu, const split_rows *a, int8_t *line,
                      const dq_simd_prepacked_weight *w, const float *x, int64_t first, int i,
                      int m)
{
    const int32_t by = w->own_zeros ? -1 : -w->zero;
    bool uneven = false;
    int64_t at = first * a->pieces + i;
    for (piece p = {0}; next_piece(&p, w); at += m) {
        int32_t sum[3];
        const float max = cpu->simd->absmax(x + p.k, p.n);
        uneven |=
            cpu->blocks->split(line + p.k, a->padded, a->unit + at, sum, NULL, x + p.k, p.n, max);
        for (int d = 0; d < 3; d++) a->start[3 * at + d] = by * sum[d];
    }
    a->uneven[first + i] = uneven;
}

static void split_tile(const dq_cpu *cpu, const split_rows *a, int8_t *line, dq_mat src,
                       const dq_simd_prepacked_weight *w, int64_t first, int m)
{
    int8_t *code = a->code + ((3 * first * a->padded) << a->words);
    for (int d = 0; d < 3; d++)
        memset(line + d * a->padded + src.cols, 0, (size_t)(a->padded - src.cols));
    for (int i = 0; i < m; i++) {
        const float *x =
            row_for(a->factor, src.p + (first + i) * src.cols, src.cols, line, 3 * a->padded);
        split_row(cpu, a, line, w, x, first, i, m);
        for (int64_t k = 0; k < a->padded; k += 4)
            for (int d = 0; d < 3; d++)
                put_four(code + ((3 * (k * m + 4 * i) + 4 * d) << a->words),
                         line + d * a->padded + k, a->words);
    }
}

/* Fills a for all rows. False with the sticky error set when memory is short. */
static bool split_activations(dq_backend *b, split_rows *a, dq_mat src, const dq_weight *from,
                              const dq_simd_prepacked_weight *w)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = cpu->blocks->f32_rows;
    const int64_t last = w->chunks - (w->groups - 1) * w->group;
    a->padded = w->chunks * COLS;
    a->pieces = (w->groups - 1) * pieces_of(w->group) + pieces_of(last);
    a->words = w->bits == cpu->blocks->int8_words;
    const size_t codes = ((size_t)((3 * src.rows * a->padded) << a->words) + 63) / 64 * 64;
    const size_t words = (size_t)(src.rows * a->pieces);
    const size_t sums = words * (sizeof(float) + 3 * sizeof(int32_t));
    uint8_t *at = dq_cpu_operand(b, codes + sums + factor_bytes(from) + (size_t)src.rows);
    if (!at || !dq_cpu_reserve(b, (size_t)with_row(from, 3 * a->padded))) return false;
    a->code = (int8_t *)at;
    a->unit = (float *)(void *)(at + codes);
    a->start = (int32_t *)(void *)(a->unit + words);
    a->factor = factors_of((float *)(void *)(at + codes + sums), from);
    a->uneven = at + codes + sums + factor_bytes(from);
#pragma omp parallel for num_threads(b->threads) schedule(static) if (src.rows > most)
    for (int64_t t = 0; t < n_tiles(src.rows, most); t++) {
        const int64_t first = tile_at(src.rows, most, t), end = tile_at(src.rows, most, t + 1);
        split_tile(cpu, a, cpu->block[omp_get_thread_num()], src, w, first, (int)(end - first));
    }
    return true;
}

/* Tiles tile .. end of rows with a task's blocks of w, which stand where `blocks` says. */
static void run_f32(const dq_cpu *cpu, dq_mat dst, const split_rows *a,
                    const dq_simd_prepacked_weight *w, const task *own, dq_simd_blocks blocks,
                    int64_t tile, int64_t end, const float *bias)
{
    const int most = cpu->blocks->f32_rows;
    for (; tile < end; tile++) {
        const int64_t first = tile_at(dst.rows, most, tile);
        const int m = (int)(tile_at(dst.rows, most, tile + 1) - first);
        const dq_simd_split_rows rows = split_at(a, first);
        float y[DQ_PREPACKED_F32_MAX * DQ_PREPACKED_WIDE * ROWS];
        cpu->blocks->f32(y, own->n * ROWS, w, blocks, &rows, m);
        put(dst, first, own, y, m, bias, cpu->simd);
    }
}

/* Tiles of rows whose parts stay in the second-level cache while all blocks pass over them. */
static int64_t panel_tiles(const dq_cpu *cpu, const split_rows *a)
{
    enum { PANEL = 1 << 19 };
    const int64_t n = PANEL / ((3 * a->padded * cpu->blocks->f32_rows) << a->words);
    return n > 0 ? n : 1;
}

/* Fills a, too. False with the sticky error set when memory is short. */
static bool product(dq_backend *b, split_rows *a, dq_mat dst, dq_mat src, const dq_weight *w,
                    const float *bias)
{
    const operand o = operand_of(b, w);
    const dq_simd_prepacked_weight *d = &o.d;
    const dq_cpu *cpu = dq_cpu_of(b);
    const int64_t n_blocks = (d->rows + ROWS - 1) / ROWS;
    if (!split_activations(b, a, src, w, d) || !reserve(b, &o, 0)) return false;
    const int64_t tiles = n_tiles(src.rows, cpu->blocks->f32_rows);
    const int64_t each = d->data ? panel_tiles(cpu, a) : tiles, panels = (tiles + each - 1) / each;
    const bool once = d->data && tiles == 1;
    const int64_t tasks = n_tasks(b, n_blocks, once);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, task_run(b, tasks, once))
    for (int64_t i = 0; i < tasks * panels; i++) {
        if (dq_os_stop_signal()) continue;
        const task own = task_at(n_blocks, tasks, i % tasks);
        const int64_t first = i / tasks * each, end = tiles - first < each ? tiles : first + each;
        run_f32(cpu, dst, a, d, &own, blocks_of(cpu, &o, &own), first, end, bias);
    }
    return true;
}

/* What parts leave of a row's uneven pieces, zeros elsewhere. */
static void rest_of_row(const dq_cpu *cpu, float *rest, const dq_simd_prepacked_weight *w,
                        const float *x)
{
    int8_t line[3 * DQ_PREPACKED_PIECE * COLS];
    for (piece p = {0}; next_piece(&p, w);) {
        float unit;
        int32_t sum[3];
        const float max = cpu->simd->absmax(x + p.k, p.n);
        if (!cpu->blocks->split(line, DQ_PREPACKED_PIECE * COLS, &unit, sum, rest + p.k, x + p.k,
                                p.n, max))
            memset(rest + p.k, 0, (size_t)p.n * sizeof *rest);
    }
}

/* Adds the products of what is left of uneven rows, `each` of them at a time; row[n], rest[each][cols], sum[each][w->rows],
 * own[cols], and factors[cols] after it. */
static void add_rests(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const int64_t *row,
                      int64_t n, int64_t each, float *rest, float *sum, float *own)
{
    dq_weight plain = *w; /* factors are in what is left already */
    const float *factor = factors_of(own + w->cols, w);
    plain.column = NULL;
    const dq_cpu *cpu = dq_cpu_of(b);
    const dq_simd_prepacked_weight d = dq_cpu_prepacked_shape(w);
    split_rows a;
    for (int64_t first = 0; first < n; first += each) {
        const int64_t m = n - first < each ? n - first : each;
        for (int64_t i = 0; i < m; i++)
            rest_of_row(cpu, rest + i * src.cols, &d,
                        row_for(factor, src.p + row[first + i] * src.cols, src.cols, own, 0));
        if (!product(b, &a, (dq_mat){sum, m, dst.cols}, (dq_mat){rest, m, src.cols}, &plain, NULL))
            return;
        for (int64_t i = 0; i < m; i++)
            cpu->simd->add(dst.p + row[first + i] * dst.cols, sum + i * dst.cols, dst.cols);
    }
}

void dq_cpu_prepacked_f32(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                          const float *bias)
{
    enum { EACH = 16 };
    split_rows a;
    int64_t n = 0;
    if (!product(b, &a, dst, src, w, bias)) return;
    for (int64_t i = 0; i < src.rows; i++) n += a.uneven[i];
    if (n == 0) return;
    const int64_t each = n < EACH ? n : EACH;
    int64_t *row = dq_block_new((size_t)n, sizeof *row, &b->err);
    float *rest = row ? dq_block_new((size_t)(each * (src.cols + dst.cols) + 2 * src.cols),
                                     sizeof *rest, &b->err)
                      : NULL;
    if (rest) {
        for (int64_t i = 0, k = 0; i < src.rows; i++)
            if (a.uneven[i]) row[k++] = i;
        float *sum = rest + each * src.cols;
        add_rests(b, dst, src, w, row, n, each, rest, sum, sum + each * dst.cols);
    }
    dq_block_free(rest);
    dq_block_free(row);
}
