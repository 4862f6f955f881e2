/* cpu_prepacked: see cpu_prepacked.h. Codes are packed once, by all threads; what is read from a file is told to the
 * system as not needed, so that a weight takes its memory once.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/linear/cpu_prepacked.h"
#include "base/base.h"
#include "base/os.h"
#include "tensor/tensor.h"

#include <string.h>

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

/* ----------------------------------------------------------------------------------------- packing */
static int64_t padded(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int64_t blocks_of(const dq_simd_prepacked_weight *d)
{
    return (d->rows + ROWS - 1) / ROWS;
}

/* Of a block whose rows all exist. */
static int64_t used_bytes(const dq_simd_prepacked_weight *d)
{
    const int64_t codes = d->chunks * d->bits * LINE + d->groups * d->scales;
    return codes + (d->own_zeros ? padded(d->groups * ROWS, DQ_PREPACKED_ZEROS) : 0);
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
    d.group = padded(d.groups == 1 ? w->cols : w->group_size, COLS) / COLS;
    d.chunks = (d.groups - 1) * d.group + padded(last, COLS) / COLS;
    d.scales = ROWS * (d.scale_f16 ? 2 : 4);
    d.bytes = padded(used_bytes(&d), 64);
    return d;
}

/* Columns of words as they are stored, from word k on, n of them of which the first `have` exist, to[n][32 rows]; the last
 * of a row is cut by `mask`. */
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

/* Where chunk c of a block is. */
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

/* Where groups are odd: rows with every group filled up to whole chunks, and one row before and after that. */
static int64_t repacked_bytes(const dq_simd_prepacked_weight *d)
{
    return ROWS * d->chunks * d->bits * 4 + 2 * d->chunks * COLS;
}

int64_t dq_cpu_prepacked_scratch(const dq_weight *w, const dq_simd_prepacked_weight *d)
{
    return d->bytes + (is_odd(w) && !w->level ? repacked_bytes(d) : 0);
}

/* Rows of w from `first` on into to[rows][chunks * bits * 4]. */
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

/* ------------------------------------------------------------------------------------ trellis codes */

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

/* A chunk of fewer columns than a chunk has, or at the end of what may be read. */
static void cut_chunk(dq_levels_chunks *levels, uint8_t *to, const dq_levels_rings *r, int64_t cols,
                      const uint8_t table[256])
{
    enum { APART = 32 }; /* bytes of a column's codes, and the one after */
    uint8_t codes[COLS * APART + DQ_LEVELS_SPARE] = {0};
    const int64_t own = ROWS * r->bits / 8;
    for (int64_t k = 0; k < cols; k++) {
        memcpy(codes + k * APART, r->codes + k * r->apart, (size_t)own);
        codes[k * APART + own] = r->after[k * r->apart];
    }
    levels(to, &(dq_levels_rings){codes, codes + own, APART, r->bits}, 1, table);
}

static void level_codes(dq_levels_chunks *levels, uint8_t *block, const dq_weight *w,
                        const dq_simd_prepacked_weight *d, int64_t first)
{
    const dq_levels_rings all = rings_of(w, first);
    const int64_t readable = readable_cols(w, &all);
    uint8_t table[256];
#pragma omp simd
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(w->level[i] + 128);
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
            cut_chunk(levels, chunk_at(block, d, g * d->group + c), &last, cols, table);
        }
    }
}

#define INLINE static inline __attribute__((always_inline))

/* Scales of `size` bytes each, of n rows of a matrix, `ld` bytes apart (0: all have the same), after the codes of their groups. */
INLINE void pack_scales(uint8_t *block, int64_t n, const uint8_t *scale, int64_t ld,
                        const dq_simd_prepacked_weight *d, const size_t size)
{
    for (int64_t g = 0; g < d->groups; g++, scale += size) {
        const int64_t left = d->chunks - g * d->group, chunks = left < d->group ? left : d->group;
        uint8_t *to = block + dq_simd_prepacked_group(d, g) + chunks * d->bits * LINE;
        for (int64_t j = 0; j < n; j++) memcpy(to + (size_t)j * size, scale + j * ld, size);
    }
}

static void pack_zeros(uint8_t *block, int64_t n, const dq_weight *w,
                       const dq_simd_prepacked_weight *d, int64_t first)
{
    for (int64_t g = 0; g < d->groups + d->groups % 2; g++) {
        uint8_t *zeros = block + dq_simd_prepacked_group(d, g - g % 2) - DQ_PREPACKED_ZEROS;
        for (int64_t j = 0; j < n; j++)
            zeros[g % 2 * ROWS + j] = g < d->groups ? (uint8_t)dq_weight_zero(w, first + j, g) : 0;
    }
}

/* Of rows first .. first + n. */
static void pack_groups(uint8_t *block, int64_t n, const dq_weight *w,
                        const dq_simd_prepacked_weight *d, int64_t first)
{
    const int64_t row = d->groups * (d->scale_f16 ? 2 : 4), ld = w->scale_rows == 1 ? 0 : row;
    const uint8_t *scale = (const uint8_t *)w->scale + first * ld;
    if (d->scale_f16) /* a constant, for speed */
        pack_scales(block, n, scale, ld, d, 2);
    else
        pack_scales(block, n, scale, ld, d, 4);
    if (d->own_zeros) pack_zeros(block, n, w, d, first);
}

/* Every byte of the block is written: first by the thread that lays it out. */
void dq_cpu_prepacked_block(const dq_simd *simd, dq_levels_chunks *levels, uint8_t *block,
                            const dq_weight *w, const dq_simd_prepacked_weight *d, int64_t i)
{
    const int64_t first = i * ROWS;
    const int64_t rows = w->rows - first < ROWS ? w->rows - first : ROWS;
    const int64_t used = rows < ROWS ? 0 : used_bytes(d);
    memset(block + used, 0, (size_t)(d->bytes - used));
    if (w->level)
        level_codes(levels, block, w, d, first);
    else
        pack_codes(simd, block, w, d, first, rows);
    pack_groups(block, rows, w, d, first);
}

static void pack_all(dq_backend *b, entry *e, const dq_weight *w)
{
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
}

/* -------------------------------------------------------------------------------------- operations */

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

static dq_cpu_prepacked *new_list(dq_err *err)
{
    dq_cpu_prepacked *all = dq_block_new(1, sizeof *all, err);
    if (all) all->entries.size = sizeof(entry);
    return all;
}

bool dq_cpu_prepacked_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (b->err.code != DQ_OK) return false;
    if (!cpu->prepacked) cpu->prepacked = new_list(&b->err);
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
    pack_all(b, e, w);
    e->w.data = e->data;
    return &e->w;
}
