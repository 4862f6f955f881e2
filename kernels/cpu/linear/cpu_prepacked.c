/* Codes are packed once, by all threads; what is read from a file is told to the system as not
 * needed, so that a weight takes its memory once.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/linear/cpu_linear.h"
#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- CPU prepacked ---- */

enum { ROWS = DQ_PREPACKED_ROWS, COLS = DQ_PREPACKED_COLS, LINE = 4 * ROWS };
enum {
    RUN = 16,
    RUN_WORDS = RUN * 8
}; /* chunks whose codes move at a time, and their words at most */

typedef struct entry {
    const void *key; /* dq_weight.data */
    int users;
    bool refused;  /* used where it lies */
    int64_t bytes; /* of its packing, made or not; 0: refused */
    void *data;    /* NULL: not made yet */
    dq_simd_prepacked_weight w;
} entry;

struct dq_cpu_prepacked {
    dq_address_list entries; /* every weight that is acquired */
    int64_t bytes, most;     /* of all packings; what they may take */
};

static entry *find(const dq_cpu_prepacked *all, const dq_weight *w)
{
    return all ? dq_address_list_find(&all->entries, w->data) : NULL;
}

/* ---- packing */
static int64_t padded_to(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int64_t blocks_of(const dq_simd_prepacked_weight *d)
{
    return (d->rows + ROWS - 1) / ROWS;
}

static int64_t used_bytes(const dq_simd_prepacked_weight *d)
{
    const int64_t codes = d->chunks * d->bits * LINE + d->groups * d->scales;
    return codes + (d->own_zeros ? padded_to(d->groups * ROWS, DQ_PREPACKED_ZEROS) : 0);
}

/* Whether a group begins within a chunk of the codes as they are stored. */
static bool is_odd(const dq_weight *w)
{
    return w->group_size % COLS != 0 && w->group_size < w->cols;
}

/* A chunk holds columns of one group: its last one may have fewer than COLS. */
dq_simd_prepacked_weight dq_cpu_prepacked_shape(const dq_weight *w)
{
    const int bits = dq_weight_format_of(w)->has_levels ? 8 : w->bits;
    dq_simd_prepacked_weight d = {.bits = bits,
                                  .zero = 1 << (bits - 1),
                                  .scale_f16 = w->scale_dtype == DQ_F16,
                                  .own_zeros = w->zero != NULL,
                                  .rows = w->rows,
                                  .cols = w->cols,
                                  .groups = dq_quant_groups(w->cols, w->group_size)};
    const int64_t last = w->cols - (d.groups - 1) * w->group_size;
    d.group = padded_to(d.groups == 1 ? w->cols : w->group_size, COLS) / COLS;
    d.chunks = (d.groups - 1) * d.group + padded_to(last, COLS) / COLS;
    d.scales = ROWS * (d.scale_f16 ? 2 : 4);
    d.bytes = padded_to(used_bytes(&d), 64);
    return d;
}

/* n columns of stored words to[n][32 rows], of which `have` exist; `mask` cuts a row's last. */
typedef struct word_run {
    const dq_simd *simd;
    const uint8_t *row; /* the first of the block */
    int64_t bytes;      /* of a row */
    int64_t rows, used; /* used: words of a row that hold codes */
    uint32_t mask;      /* of the last of them */
} word_run;

static void fetch_words(uint8_t *to, const word_run *r, int64_t k, int64_t n)
{
    const int64_t have = r->used - k < n ? r->used - k : n;
    float *dst = (float *)(void *)to;
    float copy[ROWS * RUN_WORDS];
    const float *src = (const float *)(const void *)(r->row + 4 * k);
    int64_t ld = r->bytes / 4;
    if ((uintptr_t)r->row % 4 != 0) { /* a file that another program wrote */
        for (int64_t j = 0; j < r->rows; j++)
            memcpy(copy + j * RUN_WORDS, r->row + j * r->bytes + 4 * k, (size_t)(4 * have));
        src = copy;
        ld = RUN_WORDS;
    }
    if (r->rows < ROWS || have < n) memset(to, 0, (size_t)(n * LINE));
    r->simd->transpose(dst, ROWS, src, ld, r->rows, have);
    for (int j = 0; k + have == r->used && j < ROWS; j++) {
        uint8_t *last = to + (have - 1) * LINE + 4 * j;
        uint32_t x;
        memcpy(&x, last, sizeof x);
        x &= r->mask;
        memcpy(last, &x, sizeof x);
    }
}

static uint8_t *chunk_at(uint8_t *block, const dq_simd_prepacked_weight *d, int64_t c)
{
    return block + dq_simd_prepacked_group(d, c / d->group) + c % d->group * d->bits * LINE;
}

/* n chunks from chunk c on, from their words, group by group: scales stand between. */
static void put_chunks(const dq_simd *simd, uint8_t *block, const dq_simd_prepacked_weight *d,
                       int64_t c, int64_t n, const uint8_t *words)
{
    for (int64_t end = c + n, each; c < end; c += each, words += each * d->bits * LINE) {
        const int64_t left = d->group - c % d->group;
        each = left < end - c ? left : end - c;
        if (d->bits == 8) /* lines are what is stored */
            memcpy(chunk_at(block, d, c), words, (size_t)(each * 8 * LINE));
        else
            simd->lines(chunk_at(block, d, c), words, d->bits, each);
    }
}

/* Where groups are odd: rows with groups filled up to whole chunks, and a row before and after. */
static int64_t repacked_bytes(const dq_simd_prepacked_weight *d)
{
    return ROWS * d->chunks * d->bits * 4 + 2 * d->chunks * COLS;
}

/* What a block takes beside its d->bytes; every instruction set makes the same. */
static int64_t block_scratch(const dq_weight *w, const dq_simd_prepacked_weight *d)
{
    return d->bytes + (is_odd(w) && !w->level ? repacked_bytes(d) : 0);
}

static void repack(uint8_t *to, const dq_weight *w, const dq_simd_prepacked_weight *d,
                   int64_t first, int64_t rows)
{
    const int64_t bytes = d->chunks * d->bits * 4, cols = d->chunks * COLS;
    int8_t *stored = (int8_t *)(to + ROWS * bytes), *filled = stored + cols;
    memset(filled, -(1 << (d->bits - 1)), (size_t)cols); /* as unsigned codes: zeros */
    for (int64_t j = 0; j < rows; j++) {
        const int64_t at = (first + j) * (int64_t)dq_quant_row_bytes(w->cols, w->bits);
        dq_quant_unpack_row(stored, (const uint8_t *)w->data + at, w->cols, w->bits);
        for (int64_t g = 0; g < d->groups; g++) {
            const int64_t k = g * w->group_size, left = w->cols - k;
            memcpy(filled + g * d->group * COLS, stored + k,
                   (size_t)(left < w->group_size ? left : w->group_size));
        }
        dq_quant_pack_row(to + j * bytes, filled, cols, d->bits);
    }
}

static void pack_codes(const dq_simd *simd, uint8_t *block, const dq_weight *w,
                       const dq_simd_prepacked_weight *d, int64_t first, int64_t rows)
{
    _Alignas(64) uint8_t words[RUN_WORDS * LINE];
    const int64_t cols = is_odd(w) ? d->chunks * COLS : w->cols;
    const int64_t bytes = (int64_t)dq_quant_row_bytes(cols, w->bits);
    const int over = (int)(cols * w->bits % 32);
    word_run r = {.simd = simd,
                  .row = (const uint8_t *)w->data + first * bytes,
                  .bytes = bytes,
                  .rows = rows,
                  .used = (cols * w->bits + 31) / 32,
                  .mask = over ? (1u << over) - 1 : UINT32_MAX};
    if (is_odd(w)) {
        repack(block + d->bytes, w, d, first, rows);
        r.row = block + d->bytes;
    }
    for (int64_t c = 0; c < d->chunks; c += RUN) {
        const int64_t n = d->chunks - c < RUN ? d->chunks - c : RUN;
        fetch_words(words, &r, c * w->bits, n * w->bits);
        put_chunks(simd, block, d, c, n, words);
    }
}

/* ---- trellis codes */

/* The codes of a block's columns: rows in the middle of their rings. */
static dq_levels_rings rings_of(const dq_weight *w, int64_t row)
{
    const int64_t strip = row / DQ_STRIP_ROWS * DQ_STRIP_ROWS;
    const int64_t left = dq_weight_strip_padded(w->rows) - strip;
    const int64_t rows = left < DQ_STRIP_ROWS ? left : DQ_STRIP_ROWS;
    const uint8_t *at = (const uint8_t *)w->data + strip * w->cols * w->bits / 8;
    const int64_t ring = rows * w->bits / 8, own = (row - strip) * w->bits / 8;
    const int64_t next = own + ROWS * w->bits / 8;
    return (dq_levels_rings){
        .codes = at + own, .after = at + (next < ring ? next : 0), .apart = ring, .bits = w->bits};
}

/* Columns after whose codes there are DQ_LEVELS_SPARE bytes of the weight's. */
static int64_t readable_cols(const dq_weight *w, const dq_levels_rings *r)
{
    const int64_t bytes = dq_weight_strip_padded(w->rows) * w->cols * w->bits / 8;
    const int64_t left = (const uint8_t *)w->data + bytes - r->codes;
    const int64_t rest = left - ROWS * w->bits / 8 - DQ_LEVELS_SPARE;
    return rest < 0 ? 0 : rest / r->apart + 1;
}

/* Scales of n rows go after the codes of their groups, `ld` bytes apart (0: all have the same). */
INLINE void pack_scales(uint8_t *block, int64_t n, const uint8_t *scale, int64_t ld,
                        const dq_simd_prepacked_weight *d, const size_t size)
{
    for (int64_t g = 0; g < d->groups; g++, scale += size) {
        const int64_t left = d->chunks - g * d->group, chunks = left < d->group ? left : d->group;
        uint8_t *to = block + dq_simd_prepacked_group(d, g) + chunks * d->bits * LINE;
        for (int64_t j = 0; j < n; j++) memcpy(to + (size_t)j * size, scale + j * ld, size);
    }
}

/* Every byte of the block is written: first by the thread that lays it out. */
void dq_cpu_prepacked_block(const dq_simd *simd, dq_levels_chunks *levels, uint8_t *block,
                            const dq_weight *w, const dq_simd_prepacked_weight *d, int64_t i)
{
    const int64_t first = i * ROWS;
    const int64_t rows = w->rows - first < ROWS ? w->rows - first : ROWS;
    const int64_t used = rows < ROWS ? 0 : used_bytes(d);
    memset(block + used, 0, (size_t)(d->bytes - used));
    if (w->level) {
        const dq_levels_rings all = rings_of(w, first);
        const int64_t readable = readable_cols(w, &all);
        uint8_t table[256];
#pragma omp simd
        for (int j = 0; j < 256; j++) table[j] = (uint8_t)(w->level[j] + 128);
        for (int64_t g = 0; g < d->groups; g++) {
            const int64_t col = g * w->group_size, left = w->cols - col;
            const int64_t n = left < w->group_size ? left : w->group_size;
            const int64_t safe = readable > col ? readable - col : 0;
            const int64_t whole = (safe < n ? safe : n) / COLS;
            dq_levels_rings r = all;
            r.codes += col * r.apart;
            r.after += col * r.apart;
            levels(chunk_at(block, d, g * d->group), &r, whole, table);
            for (int64_t c = whole; c * COLS < n; c++) {
                dq_levels_rings last = r;
                last.codes += c * COLS * r.apart;
                last.after += c * COLS * r.apart;
                const int64_t cols = n - c * COLS < COLS ? n - c * COLS : COLS;
                enum { APART = 32 }; /* bytes of a column's codes, and the one after */
                uint8_t codes[COLS * APART + DQ_LEVELS_SPARE] = {0};
                const int64_t own = ROWS * last.bits / 8;
                for (int64_t k = 0; k < cols; k++) {
                    memcpy(codes + k * APART, last.codes + k * last.apart, (size_t)own);
                    codes[k * APART + own] = last.after[k * last.apart];
                }
                levels(chunk_at(block, d, g * d->group + c),
                       &(dq_levels_rings){codes, codes + own, APART, last.bits}, 1, table);
            }
        }
    } else
        pack_codes(simd, block, w, d, first, rows);
    /* Of rows first .. first + n. */
    const int64_t row = d->groups * (d->scale_f16 ? 2 : 4), ld = w->scale_rows == 1 ? 0 : row;
    const uint8_t *scale = (const uint8_t *)w->scale + first * ld;
    if (d->scale_f16) /* a constant, for speed */
        pack_scales(block, rows, scale, ld, d, 2);
    else
        pack_scales(block, rows, scale, ld, d, 4);
    if (d->own_zeros) {
        for (int64_t g = 0; g < d->groups + d->groups % 2; g++) {
            uint8_t *zeros = block + dq_simd_prepacked_group(d, g - g % 2) - DQ_PREPACKED_ZEROS;
            for (int64_t j = 0; j < rows; j++)
                zeros[g % 2 * ROWS + j] =
                    g < d->groups ? (uint8_t)dq_weight_zero(w, first + j, g) : 0;
        }
    }
}

/* ---- operations */

bool dq_cpu_prepacked_fits(const dq_weight *w)
{
    if (!dq_weight_is_affine(w) && !dq_weight_format_of(w)->has_levels) return false;
    return w->group_size % COLS == 0 || w->group_size >= w->cols;
}

/* What is made of its rows is given back to their file. Levels would take 8 bits each. */
static bool is_wanted(const dq_weight *w)
{
    bool cut;
    return dq_cpu_prepacked_fits(w) && dq_weight_is_affine(w) &&
           dq_os_map_at(w->data, &cut) != NULL;
}

static entry entry_of(const dq_cpu_prepacked *all, const dq_weight *w)
{
    entry e = {.key = w->data, .users = 1, .refused = true};
    if (!is_wanted(w)) return e;
    e.w = dq_cpu_prepacked_shape(w);
    e.bytes = blocks_of(&e.w) * e.w.bytes;
    e.refused = e.bytes > all->most - all->bytes;
    if (e.refused) e.bytes = 0;
    return e;
}

bool dq_cpu_prepacked_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (b->err.code != DQ_OK) return false;
    if (!cpu->prepacked) {
        dq_cpu_prepacked *all = dq_block_new(1, sizeof *all, &b->err);
        if (all) all->entries.size = sizeof(entry);
        cpu->prepacked = all;
    }
    dq_cpu_prepacked *all = cpu->prepacked;
    if (!all) return false;
    entry *known = find(all, w);
    if (known) {
        known->users++;
        return true;
    }
    if (all->entries.n == 0) all->most = dq_os_memory_left("") / 4 * 3;
    if (!dq_address_list_reserve(&all->entries, &b->err)) return false;
    const entry e = entry_of(all, w);
    dq_address_list_add(&all->entries, &e);
    all->bytes += e.bytes;
    return true;
}

void dq_cpu_prepacked_release(dq_backend *b, const dq_weight *w)
{
    dq_cpu_prepacked *all = dq_cpu_of(b)->prepacked;
    entry *e = find(all, w);
    if (!e || --e->users > 0) return;
    all->bytes -= e->bytes;
    dq_block_free(e->data);
    dq_address_list_remove(&all->entries, e);
}

void dq_cpu_prepacked_end(dq_backend *b)
{
    dq_cpu_prepacked *all = dq_cpu_of(b)->prepacked;
    if (!all) return;
    const entry *e = all->entries.item;
    for (size_t i = 0; i < all->entries.n; i++) dq_block_free(e[i].data);
    dq_address_list_free(&all->entries);
    dq_block_free(all);
}

static bool serves(const entry *e, const dq_weight *w)
{
    return e && !e->refused && e->w.rows == w->rows && e->w.cols == w->cols &&
           e->w.bits == w->bits && dq_weight_is_affine(w);
}

dq_cpu_packing dq_cpu_prepacked_state(const dq_backend *b, const dq_weight *w)
{
    const dq_cpu *cpu = b->state;
    const entry *e = find(cpu->prepacked, w);
    if (e) return serves(e, w) ? DQ_CPU_BLOCKS : DQ_CPU_ROWS;
    return is_wanted(w) ? DQ_CPU_UNDECIDED : DQ_CPU_ROWS;
}

const dq_simd_prepacked_weight *dq_cpu_prepacked_of(dq_backend *b, const dq_weight *w)
{
    dq_cpu_prepacked *all = dq_cpu_of(b)->prepacked;
    entry *e = find(all, w);
    if (b->err.code != DQ_OK || !serves(e, w)) return NULL;
    if (e->data) return &e->w;
    dq_err short_of = {0};
    e->data = dq_block_raw((size_t)blocks_of(&e->w), (size_t)e->w.bytes, &short_of);
    if (!e->data) {
        all->bytes -= e->bytes;
        e->bytes = 0;
        e->refused = true;
        return NULL;
    }
    const dq_cpu *cpu = dq_cpu_of(b);
    const dq_simd_prepacked_weight *d = &e->w;
    const int64_t n_blocks = blocks_of(d);
    uint8_t *to = e->data;
    dq_os_memory_large(to, (size_t)(n_blocks * d->bytes));
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int64_t i = 0; i < n_blocks; i++) {
        dq_os_memory_touch(to + i * d->bytes, (size_t)d->bytes);
        dq_cpu_prepacked_block(cpu->simd, cpu->levels, to + i * d->bytes, w, d, i);
    }
    dq_os_map_release(w->data, (size_t)w->rows * dq_quant_row_bytes(w->cols, w->bits));
    e->w.data = e->data;
    return &e->w;
}

/* ---- Matmul ----
 * Products with prepacked weights. */

enum { MATMUL_ROWS = DQ_PREPACKED_ROWS, MATMUL_COLS = DQ_PREPACKED_COLS };

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

/* Blocks that are read once are side by side in streams that go on from task to task, so that
 * prefetching is right; a block that many tiles read stays near. Tasks are nearly alike. In large
 * pages two streams are read faster than one or four. */
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

/* Tasks a thread takes at a time: streams shall be long, and the last thread not long alone. */
static int task_run(const dq_backend *b, int64_t tasks, bool once)
{
    const int64_t n = once ? tasks / (4 * b->threads) : 1;
    return n > 0 ? (int)n : 1;
}

/* A weight's packed form, or (data NULL) blocks that are packed as they are needed. */
typedef struct operand {
    const dq_weight *w;
    dq_simd_prepacked_weight d;
} operand;

static operand operand_of(dq_backend *b, const dq_weight *w)
{
    const dq_simd_prepacked_weight *kept = dq_cpu_prepacked_of(b, w);
    return (operand){w, kept ? *kept : dq_cpu_prepacked_shape(w)};
}

/* ---- factors of columns */

/* A thread's scratch: `bytes` and a row of activations times the factors of w's columns. */
static int64_t with_row(const dq_weight *w, int64_t bytes)
{
    return w->column ? padded(bytes) + w->cols * (int64_t)sizeof(float) : bytes;
}

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
    const int64_t own = o->d.data ? 0 : block_scratch(o->w, &o->d);
    return dq_cpu_reserve(b, (size_t)(own > bytes ? own : bytes));
}

/* Without a kept packing, a task has one block. */
static dq_simd_blocks blocks_for(const dq_cpu *cpu, const operand *o, const task *t)
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
        const int64_t col = (t->first + k * t->step) * MATMUL_ROWS, left = dst.cols - col;
        const int64_t n = left < MATMUL_ROWS ? left : MATMUL_ROWS;
        for (int i = 0; i < m; i++) {
            float *to = dst.p + (row + i) * dst.cols + col;
            memcpy(to, y + (i * t->n + k) * MATMUL_ROWS, (size_t)n * sizeof *to);
            if (bias) simd->add(to, bias + col, n);
        }
    }
}

/* A call's activations: panels of columns, each of tiles of rows with their scales and sums. */
typedef struct activations {
    int8_t *code;
    float *scale;
    int32_t *sum;
    const float *factor;          /* of columns; NULL: none */
    int64_t rows, padded, groups; /* padded, groups: of a row */
    int64_t panel;                /* columns, whole groups; the last one is what is left */
    bool words;                   /* codes are words of 16 bits */
} activations;

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

static int int8_most(const dq_simd_prepacked *blocks, int64_t rows)
{
    return rows > blocks->int8_rows ? blocks->int8_one : blocks->int8_rows;
}

static void run_int8(dq_backend *b, dq_mat dst, const activations *a, const operand *o,
                     const float *bias)
{
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = int8_most(cpu->blocks, dst.rows);
    const int64_t n_blocks = (o->d.rows + MATMUL_ROWS - 1) / MATMUL_ROWS;
    const bool once = o->d.data && dst.rows <= most;
    const int64_t tasks = n_tasks(b, n_blocks, once);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, task_run(b, tasks, once))
    for (int64_t i = 0; i < tasks; i++) {
        if (dq_os_stop_signal()) continue;
        const task own = task_at(n_blocks, tasks, i);
        const dq_simd_blocks blocks = blocks_for(cpu, o, &own);
        for (int64_t t = 0; t < n_tiles(dst.rows, most); t++) {
            const int64_t first = tile_at(dst.rows, most, t);
            const int m = (int)(tile_at(dst.rows, most, t + 1) - first);
            const dq_simd_prepacked_rows rows = rows_at(a, first, m, 0, 0);
            float y[DQ_PREPACKED_INT8_MAX * DQ_PREPACKED_WIDE * MATMUL_ROWS];
            cpu->blocks->int8(y, own.n * MATMUL_ROWS, &o->d, blocks, &rows, m);
            put(dst, first, &own, y, m, bias, cpu->simd);
        }
    }
}

/* One panel of activations, and rows of it whose codes stay in the second cache for all blocks. */
typedef struct part {
    int64_t k, group, chunks; /* of the panel: its first column and group */
    int64_t tile, end;
} part;

/* Asks for sums of m rows that are added to. */
static void expect_sums(const float *y, int64_t ldy, int64_t m)
{
    for (int64_t r = 0; r < m; r++)
        for (int k = 0; k < MATMUL_ROWS; k += 16) __builtin_prefetch(y + r * ldy + k, 1);
}

/* Adds a part with block i; the last panel adds the bias. unpacked[dq_simd_unpacked_bytes]. */
static void run_unpacked(const dq_cpu *cpu, dq_mat dst, const activations *a,
                         const dq_simd_prepacked_weight *w, int64_t i, const part *p,
                         uint8_t *unpacked, const float *bias)
{
    const int most = cpu->blocks->int8_one;
    const int64_t col = i * MATMUL_ROWS, left = dst.cols - col,
                  n = left < MATMUL_ROWS ? left : MATMUL_ROWS;
    const bool add = p->k > 0, last = p->k + p->chunks * MATMUL_COLS == a->padded;
    cpu->blocks->unpack(unpacked, w, w->data + i * w->bytes, p->group, p->chunks);
    for (int64_t t = p->tile; t < p->end; t++) {
        const int64_t first = tile_at(dst.rows, most, t);
        const int m = (int)(tile_at(dst.rows, most, t + 1) - first);
        const dq_simd_prepacked_rows rows = rows_at(a, first, m, p->group, p->k);
        float *to = dst.p + first * dst.cols + col, cut[DQ_PREPACKED_INT8_MAX * MATMUL_ROWS];
        float *y = n < MATMUL_ROWS ? cut : to;
        const int64_t ldy = n < MATMUL_ROWS ? MATMUL_ROWS : dst.cols;
        if (t + 1 < p->end && n == MATMUL_ROWS)
            expect_sums(to + m * dst.cols, dst.cols,
                        tile_at(dst.rows, most, t + 2) - tile_at(dst.rows, most, t + 1));
        for (int r = 0; n < MATMUL_ROWS && add && r < m; r++)
            memcpy(cut + r * MATMUL_ROWS, to + r * dst.cols, (size_t)n * sizeof *to);
        cpu->blocks->int8_unpacked(y, ldy, w, unpacked, p->chunks, &rows, m, add);
        for (int r = 0; n < MATMUL_ROWS && r < m; r++)
            memcpy(to + r * dst.cols, cut + r * MATMUL_ROWS, (size_t)n * sizeof *to);
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
    const int64_t n_blocks = (w->rows + MATMUL_ROWS - 1) / MATMUL_ROWS,
                  tiles = n_tiles(dst.rows, most);
    const int64_t near = NEAR / (panel.chunks * MATMUL_COLS * most);
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

static int64_t panel_of(const dq_simd_prepacked_weight *w)
{
    enum { CHUNKS = 32 };
    const int64_t groups = w->group < CHUNKS ? CHUNKS / w->group : 1;
    const int64_t chunks = groups * w->group;
    return (chunks < w->chunks ? chunks : w->chunks) * MATMUL_COLS;
}

void dq_cpu_prepacked_int8(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                           const float *bias)
{
    const operand o = operand_of(b, w);
    const dq_simd_prepacked_weight *d = &o.d;
    const dq_cpu *cpu = dq_cpu_of(b);
    const int most = int8_most(cpu->blocks, src.rows);
    const bool unpacked = o.d.data && cpu->blocks->unpack && src.rows > cpu->blocks->int8_rows;
    activations a = {.rows = src.rows,
                     .padded = d->chunks * MATMUL_COLS,
                     .groups = d->groups,
                     .panel = unpacked ? panel_of(d) : d->chunks * MATMUL_COLS,
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
        int8_t *line = cpu->block[omp_get_thread_num()];
        const int m = (int)(end - first);
        for (int i = 0; i < m; i++) {
            const float *x =
                row_for(a.factor, src.p + (first + i) * src.cols, src.cols, line, a.padded);
            const int64_t size = o.w->group_size, width = o.d.group * MATMUL_COLS;
            for (int64_t g = 0; g < a.groups; g++) {
                const int64_t left = o.w->cols - g * size, n = left < size ? left : size;
                const int64_t rest = a.padded - g * width, at = first * a.groups + g * m + i;
                int8_t *code = line + g * width;
                const int32_t sum = dq_cpu_round8(cpu->simd, code, &a.scale[at], x + g * size, n);
                memset(code + n, 0, (size_t)((rest < width ? rest : width) - n));
                a.sum[at] = (int32_t)((uint32_t)(d->own_zeros ? 1 : -zero) *
                                      (uint32_t)sum); /* as vectors do */
            }
            for (int64_t k0 = 0; k0 < a.padded; k0 += a.panel) {
                int8_t *code = codes_at(&a, first, k0);
                for (int64_t k = 0; k < panel_cols(&a, k0); k += 4)
                    put_four(code + ((k * m + 4 * i) << a.words), line + k0 + k, a.words);
            }
        }
    }
    if (unpacked) {
        if (dq_cpu_reserve(b, (size_t)dq_simd_unpacked_bytes(d, a.panel / MATMUL_COLS))) {
            part p = {0};
            for (; p.k < a.padded; p.k += a.panel, p.group += a.panel / MATMUL_COLS / d->group) {
                p.chunks = panel_cols(&a, p.k) / MATMUL_COLS;
                run_panel(b, dst, &a, d, p, bias);
            }
        }
    } else
        run_int8(b, dst, &a, &o, bias);
}

/* ---- f32 */

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

static int64_t pieces_of(int64_t chunks)
{
    return (chunks + DQ_PREPACKED_PIECE - 1) / DQ_PREPACKED_PIECE;
}

/* Columns of a piece of a row: the first one begins at 0. */
typedef struct piece {
    int64_t k, n;
} piece;

static bool next_piece(piece *p, const dq_simd_prepacked_weight *w)
{
    const int64_t group = w->group * MATMUL_COLS, k = p->k + p->n;
    const int64_t end = (k / group + 1) * group, stop = end < w->cols ? end : w->cols;
    const int64_t n = stop - k, most = DQ_PREPACKED_PIECE * MATMUL_COLS;
    *p = (piece){k, n < most ? n : most};
    return p->n > 0;
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
        const int32_t by = w->own_zeros ? -1 : -w->zero;
        bool uneven = false;
        int64_t at = first * a->pieces + i;
        for (piece p = {0}; next_piece(&p, w); at += m) {
            int32_t sum[3];
            const float max = cpu->simd->absmax(x + p.k, p.n);
            uneven |= cpu->blocks->split(line + p.k, a->padded, a->unit + at, sum, NULL, x + p.k,
                                         p.n, max);
            for (int j = 0; j < 3; j++) a->start[3 * at + j] = by * sum[j];
        }
        a->uneven[first + i] = uneven;
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
    a->padded = w->chunks * MATMUL_COLS;
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
        const dq_simd_split_rows rows =
            (dq_simd_split_rows){a->code + ((3 * first * a->padded) << a->words),
                                 a->unit + first * a->pieces, a->start + 3 * first * a->pieces};
        float y[DQ_PREPACKED_F32_MAX * DQ_PREPACKED_WIDE * MATMUL_ROWS];
        cpu->blocks->f32(y, own->n * MATMUL_ROWS, w, blocks, &rows, m);
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
    const int64_t n_blocks = (d->rows + MATMUL_ROWS - 1) / MATMUL_ROWS;
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
        run_f32(cpu, dst, a, d, &own, blocks_for(cpu, &o, &own), first, end, bias);
    }
    return true;
}

/* What parts leave of a row's uneven pieces, zeros elsewhere. */
static void rest_of_row(const dq_cpu *cpu, float *rest, const dq_simd_prepacked_weight *w,
                        const float *x)
{
    int8_t line[3 * DQ_PREPACKED_PIECE * MATMUL_COLS];
    for (piece p = {0}; next_piece(&p, w);) {
        float unit;
        int32_t sum[3];
        const float max = cpu->simd->absmax(x + p.k, p.n);
        if (!cpu->blocks->split(line, DQ_PREPACKED_PIECE * MATMUL_COLS, &unit, sum, rest + p.k,
                                x + p.k, p.n, max))
            memset(rest + p.k, 0, (size_t)p.n * sizeof *rest);
    }
}

/* `each` uneven rows at a time; row[n], rest[each][cols], sum[each][w->rows], own[cols]. */
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
