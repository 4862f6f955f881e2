/* cpu_blocked: see cpu_blocked.h. Codes are laid out once, by all threads; what is read from a file is told to the
 * system as not needed, so that a weight takes its memory once.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu_blocked.h"
#include "base/os.h"
#include "tensor/weight_format.h"

#include <string.h>

enum { ROWS = DQ_BLOCKED_ROWS, COLS = DQ_BLOCKED_COLS, STEPS = COLS / 4, LINE = 4 * ROWS };

typedef struct entry {
    const void *key; /* dq_weight.data */
    int users;
    bool refused;  /* used where it lies */
    int64_t bytes; /* of its layout, made or not; 0: refused */
    void *data;    /* NULL: not made yet */
    dq_simd_blocked_weight w;
} entry;

struct dq_cpu_blocked {
    entry *entry; /* [n], by key: every weight that is acquired */
    size_t n, capacity;
    int64_t bytes, most; /* of all layouts; what they may take */
};

/* Index of the first entry whose key is not below `key`. */
static size_t place_of(const dq_cpu_blocked *all, const void *key)
{
    size_t low = 0, high = all->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)all->entry[middle].key < (uintptr_t)key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static entry *find(const dq_cpu_blocked *all, const dq_weight *w)
{
    if (!all || all->n == 0) return NULL;
    const size_t at = place_of(all, w->data);
    return at < all->n && all->entry[at].key == w->data ? &all->entry[at] : NULL;
}

/* ----------------------------------------------------------------------------------------- layout */
static int64_t padded(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int64_t blocks_of(const dq_simd_blocked_weight *d)
{
    return (d->rows + ROWS - 1) / ROWS;
}

/* Of a block whose rows all exist. */
static int64_t used_bytes(const dq_simd_blocked_weight *d)
{
    return d->zero_at + (d->own_zeros ? d->groups * ROWS : 0);
}

dq_simd_blocked_weight dq_cpu_blocked_shape(const dq_weight *w)
{
    dq_simd_blocked_weight d = {.bits = w->bits,
                                .zero = 1 << (w->bits - 1),
                                .scale_f16 = w->scale_dtype == DQ_F16,
                                .own_zeros = w->zero != NULL,
                                .rows = w->rows,
                                .cols = w->cols,
                                .chunks = padded(w->cols, COLS) / COLS,
                                .groups = dq_quant_groups(w->cols, w->group_size)};
    d.group = d.groups == 1 ? d.chunks : w->group_size / COLS;
    d.scale_at = d.chunks * w->bits * LINE;
    d.zero_at = d.scale_at + d.groups * ROWS * (d.scale_f16 ? 2 : 4);
    d.bytes = padded(used_bytes(&d), 64);
    return d;
}

#define INLINE static inline __attribute__((always_inline))

/* Ones in the low n bits of every `step` bits of a word of 64. */
INLINE uint64_t low_bits(int n, int step)
{
    uint64_t x = 0;
    for (int at = 0; at < 64; at += step) x |= (((uint64_t)1 << n) - 1) << at;
    return x;
}

/* Eight codes, one after another, each into a byte of its own: halves move apart, then quarters, then all. */
INLINE uint64_t spread(uint64_t x, const int bits)
{
    const uint64_t two = low_bits(2 * bits, 32), one = low_bits(bits, 16);
    x = (x & (((uint64_t)1 << 4 * bits) - 1)) | x >> 4 * bits << 32;
    x = (x & two) | (x >> 2 * bits & two) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

/* n <= 8 bytes as a word: parts that are loaded as they are, as bytes just stored could not be loaded together. */
INLINE uint64_t word_of(const uint8_t *at, const size_t n)
{
    uint64_t x = 0;
    uint32_t four = 0;
    uint16_t two = 0;
    if (n == 8) {
        memcpy(&x, at, 8);
        return x;
    }
    if (n & 4) memcpy(&four, at, 4);
    if (n & 2) memcpy(&two, at + (n & 4), 2);
    if (n & 1) x = at[n - 1];
    x = n & 2 ? x << 16 | two : x;
    return n & 4 ? x << 32 | four : x;
}

/* The words of one row in a chunk: n <= 32 codes from `at` on, zeros behind them. */
INLINE void lay_out_chunk(uint8_t *to, const uint8_t *at, int64_t n, const int bits)
{
    uint64_t codes[STEPS / 2] = {0};
    uint32_t word[STEPS];
#pragma GCC unroll 4
    for (int i = 0; i < STEPS / 2; i++, at += bits) { /* eight are `bits` bytes */
        const int64_t left = n - 8 * i < 8 ? n - 8 * i : 8;
        if (left <= 0) break;
        uint64_t x = word_of(at, left == 8 ? (size_t)bits : (size_t)(left * bits + 7) / 8);
        if (left < 8) x &= ((uint64_t)1 << left * bits) - 1;
        codes[i] = spread(x, bits);
    }
    memcpy(word, codes, sizeof word);
#pragma GCC unroll 3
    for (int done = 0; done < bits;) {
        const int left = bits - done, width = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        const int each =
            8 / width; /* a division in a loop's head keeps checked builds from unrolling it */
        const uint32_t mask = 0x01010101u * ((1u << width) - 1);
#pragma GCC unroll 8
        for (int s = 0; s < STEPS; s += each, to += LINE) {
            uint32_t x = 0;
#pragma GCC unroll 8
            for (int i = 0; i < each; i++) x |= (word[s + i] >> done & mask) << width * i;
            memcpy(to, &x, sizeof x);
        }
        done += width;
    }
}

/* Codes of one block: as many chunks of a row at a time as keep what is written near. */
INLINE void lay_out_codes(uint8_t *block, const dq_weight *w, int64_t first, int64_t rows,
                          const int bits)
{
    enum { RUN = 4 };
    const int64_t bytes = (int64_t)dq_quant_row_bytes(w->cols, bits);
    for (int64_t k0 = 0; k0 < w->cols; k0 += RUN * COLS)
        for (int64_t j = 0; j < rows; j++)
            for (int64_t k = k0; k < k0 + RUN * COLS && k < w->cols; k += COLS) {
                uint8_t *to = block + k / COLS * bits * LINE + 4 * j;
                const uint8_t *at = (const uint8_t *)w->data + (first + j) * bytes + k / 8 * bits;
                if (w->cols - k >= COLS)
                    lay_out_chunk(to, at, COLS, bits); /* a constant, for speed */
                else
                    lay_out_chunk(to, at, w->cols - k, bits);
            }
}

static void lay_out_scales(uint8_t *block, int64_t j, const dq_weight *w,
                           const dq_simd_blocked_weight *d, int64_t row)
{
    const int64_t size = d->scale_f16 ? 2 : 4, r = w->scale_rows == 1 ? 0 : row;
    const uint8_t *scale = (const uint8_t *)w->scale + r * d->groups * size;
    for (int64_t g = 0; g < d->groups; g++)
        memcpy(block + d->scale_at + (g * ROWS + j) * size, scale + g * size, (size_t)size);
    for (int64_t g = 0; d->own_zeros && g < d->groups; g++)
        block[d->zero_at + g * ROWS + j] = (uint8_t)dq_weight_zero(w, row, g);
}

/* Every byte of the block is written: first by the thread that lays it out. */
void dq_cpu_blocked_lay_out(uint8_t *block, const dq_weight *w, const dq_simd_blocked_weight *d,
                            int64_t i)
{
    const int64_t first = i * ROWS;
    const int64_t rows = w->rows - first < ROWS ? w->rows - first : ROWS;
    const int64_t used = rows < ROWS ? 0 : used_bytes(d);
    memset(block + used, 0, (size_t)(d->bytes - used));
    switch (w->bits) {
    case 2: lay_out_codes(block, w, first, rows, 2); break;
    case 3: lay_out_codes(block, w, first, rows, 3); break;
    case 4: lay_out_codes(block, w, first, rows, 4); break;
    case 5: lay_out_codes(block, w, first, rows, 5); break;
    case 6: lay_out_codes(block, w, first, rows, 6); break;
    case 7: lay_out_codes(block, w, first, rows, 7); break;
    default: lay_out_codes(block, w, first, rows, 8); break;
    }
    for (int64_t j = 0; j < rows; j++) lay_out_scales(block, j, w, d, first + j);
}

static void lay_out(dq_backend *b, entry *e, const dq_weight *w)
{
    const dq_simd_blocked_weight *d = &e->w;
    const int64_t n_blocks = blocks_of(d);
    uint8_t *to = e->data;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int64_t i = 0; i < n_blocks; i++) dq_cpu_blocked_lay_out(to + i * d->bytes, w, d, i);
    dq_os_map_release(w->data, (size_t)w->rows * dq_quant_row_bytes(w->cols, w->bits));
}

/* -------------------------------------------------------------------------------------- operations */

bool dq_cpu_blocked_fits(const dq_weight *w)
{
    if (!dq_weight_is_coded(w) || !dq_weight_is_affine(w)) return false;
    return w->group_size % COLS == 0 || w->group_size >= w->cols;
}

/* What is made of its rows is given back to their file. */
static bool is_wanted(const dq_weight *w)
{
    bool cut;
    return dq_cpu_blocked_fits(w) && dq_os_map_at(w->data, &cut) != NULL;
}

static entry entry_of(const dq_cpu_blocked *all, const dq_weight *w)
{
    entry e = {.key = w->data, .users = 1, .refused = true};
    if (!is_wanted(w)) return e;
    e.w = dq_cpu_blocked_shape(w);
    e.bytes = blocks_of(&e.w) * e.w.bytes;
    e.refused = e.bytes > all->most - all->bytes;
    if (e.refused) e.bytes = 0;
    return e;
}

bool dq_cpu_blocked_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (b->err.code != DQ_OK) return false;
    if (!cpu->blocked) cpu->blocked = dq_block_new(1, sizeof *cpu->blocked, &b->err);
    dq_cpu_blocked *all = cpu->blocked;
    if (!all) return false;
    entry *known = find(all, w);
    if (known) {
        known->users++;
        return true;
    }
    if (all->n == 0) all->most = dq_os_memory_left("") / 4 * 3;
    const entry e = entry_of(all, w);
    entry *list = dq_grow(NULL, all->entry, all->n + 1, &all->capacity, sizeof *list, &b->err);
    if (!list) return false;
    all->entry = list;
    const size_t at = place_of(all, w->data);
    memmove(list + at + 1, list + at, (all->n - at) * sizeof e);
    list[at] = e;
    all->n++;
    all->bytes += e.bytes;
    return true;
}

void dq_cpu_blocked_release(dq_backend *b, const dq_weight *w)
{
    dq_cpu_blocked *all = dq_cpu_of(b)->blocked;
    entry *e = find(all, w);
    if (!e || --e->users > 0) return;
    all->bytes -= e->bytes;
    dq_block_free(e->data);
    const size_t at = (size_t)(e - all->entry);
    memmove(e, e + 1, (all->n - at - 1) * sizeof *e);
    all->n--;
}

void dq_cpu_blocked_end(dq_backend *b)
{
    dq_cpu_blocked *all = dq_cpu_of(b)->blocked;
    if (!all) return;
    for (size_t i = 0; i < all->n; i++) dq_block_free(all->entry[i].data);
    dq_block_free(all->entry);
    dq_block_free(all);
}

static bool serves(const entry *e, const dq_weight *w)
{
    return e && !e->refused && e->w.rows == w->rows && e->w.cols == w->cols &&
           e->w.bits == w->bits && dq_weight_is_affine(w);
}

dq_cpu_layout dq_cpu_blocked_layout(const dq_backend *b, const dq_weight *w)
{
    const dq_cpu *cpu = b->state;
    const entry *e = find(cpu->blocked, w);
    if (e) return serves(e, w) ? DQ_CPU_BLOCKS : DQ_CPU_ROWS;
    return is_wanted(w) ? DQ_CPU_UNDECIDED : DQ_CPU_ROWS;
}

const dq_simd_blocked_weight *dq_cpu_blocked_of(dq_backend *b, const dq_weight *w)
{
    dq_cpu_blocked *all = dq_cpu_of(b)->blocked;
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
    lay_out(b, e, w);
    e->w.data = e->data;
    return &e->w;
}
