/* What is copied at once lies in one pool, since a large page is larger than many a weight; the
 * memory of a weight that is released is given back, and with the last of them the pool.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/os.h"
#include "kernels/cpu/linear/cpu_linear.h"
#include "tensor/tensor.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- CPU dense ---- */

enum { COPY_AFTER = 16, LINE_BYTES = 64 };

typedef struct pool {
    dq_os_block block;
    int64_t users; /* weights */
} pool;

typedef struct entry {
    const void *key; /* dq_weight.data */
    dq_weight w;
    int users;
    int uses;     /* products with few rows, up to COPY_AFTER */
    size_t bytes; /* of a copy */
    pool *pool;   /* NULL: it is not copied */
    const uint8_t *copy;
} entry;

struct dq_cpu_dense {
    dq_address_list entries; /* every dense weight that is acquired */
};

static entry *find(const dq_cpu_dense *all, const dq_weight *w)
{
    return all ? dq_address_list_find(&all->entries, w->data) : NULL;
}

bool dq_cpu_dense_takes(const dq_weight *w)
{
    return !dq_weight_is_coded(w) || w->format->block;
}

static size_t copy_bytes(const dq_weight *w)
{
    if (!dq_weight_is_coded(w)) return dq_weight_bytes(w);
    return (size_t)w->rows * (size_t)w->cols * sizeof(float);
}

bool dq_cpu_dense_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const entry e = {.key = w->data, .w = *w, .users = 1, .bytes = copy_bytes(w)};
    if (b->err.code != DQ_OK) return false;
    if (!cpu->dense) {
        dq_cpu_dense *all = dq_block_new(1, sizeof *all, &b->err);
        if (all) all->entries.size = sizeof(entry);
        cpu->dense = all;
    }
    if (!cpu->dense) return false;
    entry *known = find(cpu->dense, w);
    if (known) {
        known->users++;
        return true;
    }
    if (!dq_address_list_reserve(&cpu->dense->entries, &b->err)) return false;
    dq_address_list_add(&cpu->dense->entries, &e);
    return true;
}

static void leave_pool(pool *p)
{
    if (!p || --p->users > 0) return;
    dq_os_block_free(&p->block);
    dq_block_free(p);
}

void dq_cpu_dense_release(dq_backend *b, const dq_weight *w)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    entry *e = find(all, w);
    if (!e || --e->users > 0) return;
    if (e->pool) dq_os_map_release(e->copy, e->bytes);
    leave_pool(e->pool);
    dq_address_list_remove(&all->entries, e);
}

void dq_cpu_dense_end(dq_backend *b)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    if (!all) return;
    const entry *e = all->entries.item;
    for (size_t i = 0; i < all->entries.n; i++) leave_pool(e[i].pool);
    dq_address_list_free(&all->entries);
    dq_block_free(all);
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

static bool is_wanted(const entry *e)
{
    bool cut;
    return !e->pool && (dq_weight_is_coded(&e->w) || dq_os_map_at(e->key, &cut) != NULL);
}

/* A pool for all that have none; NULL: none is wanted, or memory is short. */
static pool *new_pool(const dq_cpu_dense *all)
{
    const entry *e = all->entries.item;
    size_t bytes = 0;
    dq_err short_of = {0};
    for (size_t i = 0; i < all->entries.n; i++)
        bytes += is_wanted(&e[i]) ? whole_lines(e[i].bytes) : 0;
    if (bytes == 0 || (int64_t)bytes > dq_os_memory_left("") / 4 * 3) return NULL;
    pool *p = dq_block_new(1, sizeof *p, &short_of);
    if (p && dq_os_block_reserve(&p->block, bytes) && dq_os_block_take(&p->block)) return p;
    if (p) dq_os_block_free(&p->block);
    dq_block_free(p);
    return NULL;
}

/* In pieces, so that file and copy are not both resident. */
static void copy_one(uint8_t *to, const entry *e)
{
    enum { PIECE = 4 << 20 };
    const uint8_t *from = e->key;
    if (dq_weight_is_coded(&e->w)) {
        dq_weight_dequantize_rows((float *)(void *)to, &e->w, 0, e->w.rows);
        return;
    }
    for (size_t at = 0; at < e->bytes; at += PIECE) {
        const size_t n = e->bytes - at < PIECE ? e->bytes - at : PIECE;
        memcpy(to + at, from + at, n);
        dq_os_map_release(from + at, n);
    }
}

static void copy_all(dq_backend *b, dq_cpu_dense *all)
{
    entry *e = all->entries.item;
    const int64_t n = (int64_t)all->entries.n;
    pool *p = new_pool(all);
    uint8_t *to = p ? p->block.data : NULL;
    if (!p) return;
    dq_os_memory_large(p->block.data, p->block.bytes);
    for (int64_t i = 0; i < n; i++) {
        if (!is_wanted(&e[i])) continue;
        e[i].pool = p;
        e[i].copy = to;
        to += whole_lines(e[i].bytes);
        p->users++;
    }
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
        if (e[i].pool == p) copy_one(p->block.data + (e[i].copy - p->block.data), &e[i]);
    }
}

dq_weight dq_cpu_dense_weight(dq_backend *b, const dq_weight *w, bool few_rows)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    entry *e = find(all, w);
    dq_weight copied = *w;
    if (!e || e->bytes != copy_bytes(w)) return copied;
    if (few_rows && e->uses < COPY_AFTER && ++e->uses == COPY_AFTER && !e->pool) copy_all(b, all);
    if (!e->pool) return copied;
    copied = dq_weight_of_f32(w->name, w->rows, w->cols, NULL);
    if (!dq_weight_is_coded(w)) copied.dtype = w->dtype;
    copied.data = e->copy;
    return copied;
}

/* ---- CPU matmul ----
 * Products with weights of any storage, and what is computed from logits. */

/* The same for every number of rows, threads and pieces; a block of W stays in the second cache. */
enum { K_BLOCK = DQ_CHAIN, STRIP = 16, STRIP_LD = K_BLOCK + 16, FEW_ROWS = 8 };

typedef struct scratch {
    float b[K_BLOCK * DQ_TILE_N];
    float strip[STRIP * STRIP_LD]; /* STRIP rows of W widened to f32 */
} scratch;

void dq_cpu_weight_row(const dq_simd *simd, float *dst, const dq_weight *w, int64_t row,
                       int64_t first, int64_t n)
{
    const uint8_t *data = w->data;
    if (!dq_weight_is_coded(w)) {
        const int64_t size = w->dtype == DQ_F32 ? 4 : 2;
        simd->widen(dst, data + (row * w->cols + first) * size, w->dtype, n);
        return;
    }
    const bool aligned = w->group_size % 32 == 0 || w->group_size >= w->cols;
    if (!dq_weight_is_affine(w) || (!aligned && w->zero)) {
        w->format->dequantize(dst, w, row, first, n);
        return;
    }
    const int64_t bytes = (int64_t)dq_quant_row_bytes(w->cols, w->bits);
    const uint8_t *packed = data + row * bytes;
    if (!aligned) simd->codes(dst, packed, bytes, w->bits, first, n, 1 << (w->bits - 1), 1.0f);
    for (int64_t i = 0; i < n;) {
        const int64_t group = (first + i) / w->group_size;
        int64_t end = (group + 1) * w->group_size - first;
        if (end > n) end = n;
        const float scale = dq_weight_scale(w, row, group);
        if (aligned)
            simd->codes(dst + i, packed, bytes, w->bits, first + i, end - i,
                        dq_weight_zero(w, row, group), scale);
        else
            simd->scale(dst + i, end - i, scale);
        i = end;
    }
}

/* Bytes of `n` columns of one stored row, and where a row's columns from `first` on begin. */
static int64_t stored_bytes(const dq_weight *w, int64_t n)
{
    if (!dq_weight_is_coded(w)) return n * (w->dtype == DQ_F32 ? 4 : 2);
    return n * w->bits / 8;
}

static const uint8_t *stored_at(const dq_weight *w, int64_t row, int64_t first)
{
    const int64_t bytes = dq_weight_is_coded(w) ? (int64_t)dq_quant_row_bytes(w->cols, w->bits)
                                                : stored_bytes(w, w->cols);
    return (const uint8_t *)w->data + row * bytes + stored_bytes(w, first);
}

/* Columns k0 .. k0 + K_BLOCK of rows n0 .. n0 + nb, so that they arrive in time. */
static void expect_block(const dq_weight *w, int64_t n0, int64_t nb, int64_t k0)
{
    enum { LINE = 64 };
    const int64_t kb = w->cols - k0 < K_BLOCK ? w->cols - k0 : K_BLOCK;
    if (kb <= 0 || dq_weight_format_of(w)->block || w->level) return;
    const int64_t bytes = stored_bytes(w, kb);
    for (int64_t i = 0; i < nb; i++) {
        const uint8_t *row = stored_at(w, n0 + i, k0);
        for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at, 0, 2);
    }
}

/* Stored as values of the type, that may be read as such. */
static bool is_plain(const dq_weight *w, dq_dtype type)
{
    return !dq_weight_is_coded(w) && w->dtype == type &&
           (uintptr_t)w->data % dq_dtypes[type].bytes == 0;
}

static void fetch_strip(const dq_simd *simd, scratch *s, const dq_weight *w, int64_t n0,
                        int64_t rows, int64_t k0, int64_t kb)
{
    for (int64_t j = 0; j < rows; j++)
        dq_cpu_weight_row(simd, s->strip + j * STRIP_LD, w, n0 + j, k0, kb);
}

/* s->b = W[n0 .. n0+nb)[k0 .. k0+kb) transposed. */
static void fetch_block(const dq_simd *simd, scratch *s, const dq_weight *w, int64_t n0, int64_t nb,
                        int64_t k0, int64_t kb)
{
    if (is_plain(w, DQ_F32)) {
        const float *from = (const float *)w->data + n0 * w->cols + k0;
        simd->transpose(s->b, DQ_TILE_N, from, w->cols, nb, kb);
        return;
    }
    for (int64_t i = 0; i < nb; i += STRIP) {
        const int64_t rows = nb - i < STRIP ? nb - i : STRIP;
        fetch_strip(simd, s, w, n0 + i, rows, k0, kb);
        simd->transpose(s->b + i, DQ_TILE_N, s->strip, STRIP_LD, rows, kb);
    }
}

typedef struct product {
    const dq_simd *simd;
    dq_mat dst, src;
    const dq_weight *w;
    const float *bias;
} product;

/* Rows n0 .. n0 + n of W, at most STRIP, times all rows of src, K_BLOCK columns after the other. */
static void run_strip(const product *p, scratch *s, int64_t n0, int64_t n)
{
    const int64_t cols = p->w->rows, depth = p->w->cols;
    for (int64_t k0 = 0; k0 < depth; k0 += K_BLOCK) {
        const int64_t kb = depth - k0 < K_BLOCK ? depth - k0 : K_BLOCK;
        if (dq_weight_is_coded(p->w)) expect_block(p->w, n0, n, k0 + K_BLOCK);
        fetch_strip(p->simd, s, p->w, n0, n, k0, kb);
        p->simd->skinny(p->dst.p + n0, cols, p->src.p + k0, depth, s->strip, STRIP_LD, p->src.rows,
                        n, kb, k0 > 0);
    }
}

/* Few rows: a block of weights would not be used again. */
static void run_skinny(const product *p, scratch *s, int64_t n0, int64_t nb)
{
    const int64_t cols = p->w->rows, depth = p->w->cols, rows = p->src.rows, at = n0 * depth;
    const int64_t whole = nb / STRIP * STRIP;
    const float *a = p->src.p;
    float *c = p->dst.p + n0;
    int64_t i = 0;
    if (whole && is_plain(p->w, DQ_BF16)) {
        const uint16_t *w = (const uint16_t *)p->w->data + at;
        p->simd->skinny_bf16(c, cols, a, depth, w, depth, rows, whole, depth, false);
        i = whole;
    }
    for (; i < whole && is_plain(p->w, DQ_F32); i += STRIP) {
        const float *w = (const float *)p->w->data + at + i * depth;
        p->simd->skinny(c + i, cols, a, depth, w, depth, rows, STRIP, depth, false);
    }
    for (; i < nb; i += STRIP) run_strip(p, s, n0 + i, nb - i < STRIP ? nb - i : STRIP);
}

/* Every piece fetches its weights anew: a panel of src that fits a cache pays for more cuts than
 * PANEL rows, and too few columns for many threads for fewer rows. */
static int64_t piece_rows(int64_t rows, int64_t n_blocks)
{
    enum { PANEL = 768, ENOUGH = 16, STEP = 48 };
    const int64_t panels = (rows + PANEL - 1) / PANEL, wanted = (ENOUGH + n_blocks - 1) / n_blocks;
    const int64_t cuts = panels > wanted ? panels : wanted;
    return ((rows + cuts - 1) / cuts + STEP - 1) / STEP * STEP;
}

static void run_pieces(dq_backend *b, const product *p)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const int64_t n_blocks = (p->w->rows + DQ_TILE_N - 1) / DQ_TILE_N, rows = p->src.rows;
    if (rows == 0 || !dq_cpu_reserve(b, sizeof(scratch))) return;
    const int64_t each = piece_rows(rows, n_blocks), n_cuts = (rows + each - 1) / each;
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
    for (int64_t i = 0; i < n_blocks * n_cuts; i++) {
        if (dq_os_stop_signal()) continue;
        const int64_t m0 = i / n_blocks * each, m1 = rows - m0 < each ? rows : m0 + each;
        scratch *s = cpu->block[omp_get_thread_num()];
        const int64_t n0 = i % n_blocks * DQ_TILE_N;
        const int64_t cols = p->w->rows, depth = p->w->cols;
        const int64_t nb = cols - n0 < DQ_TILE_N ? cols - n0 : DQ_TILE_N;
        float *c = p->dst.p + m0 * cols + n0;
        const float *a = p->src.p + m0 * depth;
        const bool skinny = p->src.rows <= FEW_ROWS;
        if (skinny) run_skinny(p, s, n0, nb);
        for (int64_t k0 = 0; !skinny && k0 < depth; k0 += K_BLOCK) {
            const int64_t kb = depth - k0 < K_BLOCK ? depth - k0 : K_BLOCK;
            expect_block(p->w, n0, nb, k0 + K_BLOCK);
            fetch_block(p->simd, s, p->w, n0, nb, k0, kb);
            p->simd->gemm(c, cols, a + k0, depth, s->b, DQ_TILE_N, m1 - m0, nb, kb, k0 > 0);
        }
        if (!p->bias) continue;
        for (int64_t k = m0; k < m1; k++) p->simd->add(p->dst.p + k * cols + n0, p->bias + n0, nb);
    }
}

static void run_product(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w,
                        const float *bias)
{
    if (dq_cpu_prepacked_fits(w)) {
        dq_cpu_prepacked_f32(b, dst, src, w, bias);
    } else {
        const dq_weight from = dq_cpu_dense_weight(b, w, src.rows <= FEW_ROWS);
        run_pieces(b, &(product){dq_cpu_of(b)->simd, dst, src, &from, bias});
    }
    dq_os_check_stop(&b->err);
}

typedef enum way { WAY_NONE, WAY_F32, WAY_INT8 } way;

static way way_of(const dq_weight *w, dq_num num)
{
    if (num == DQ_NUM_F32) return WAY_F32;
    return num == DQ_NUM_INT8 && dq_weight_is_integer(w) ? WAY_INT8 : WAY_NONE;
}

const char *dq_cpu_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num)
{
    static const char *const name[][3] = {
        [DQ_CPU_ROWS] = {NULL, "packed", "packed_int8"},
        [DQ_CPU_BLOCKS] = {NULL, "prepacked", "prepacked_int8"},
        [DQ_CPU_UNDECIDED] = {NULL, "packed or prepacked", "packed_int8 or prepacked_int8"}};
    const way to = way_of(w, num);
    return to == WAY_F32 && !dq_cpu_prepacked_fits(w) ? "gemm"
                                                      : name[dq_cpu_prepacked_state(b, w)][to];
}

/* What the caller must have made sure of, and the arithmetic that exists here. */
static bool can_run(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, dq_num num)
{
    if (b->err.code != DQ_OK) return false;
    if (num == DQ_NUM_BF16) {
        dq_fail(&b->err, DQ_MISMATCH, "bf16 products are not available on the CPU. Use f32");
    } else if (src.cols != w->cols || dst.cols != w->rows || dst.rows != src.rows) {
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes", w->name ? w->name : "weight");
    }
    return b->err.code == DQ_OK;
}

void dq_cpu_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                   dq_num num)
{
    if (!can_run(b, dst, src, w, num) || src.rows == 0) return;
    const way to = way_of(w, num);
    if (to == WAY_INT8) {
        dq_cpu_prepacked_int8(b, dst, src, w, bias);
        dq_os_check_stop(&b->err);
        return;
    }
    if (to == WAY_NONE) {
        dq_fail(&b->err, DQ_MISMATCH, "%s: is not packed, so there is no int8 product with it",
                w->name ? w->name : "weight");
        return;
    }
    run_product(b, dst, src, w, bias);
}

/* Rows whose logits are held at once: about 64 MB, enough to repay fetching the weights. */
static int64_t logit_rows(int64_t rows, int64_t vocab)
{
    enum { FLOATS = 1 << 24, MAX = 256, LEAST = 16 };
    int64_t n = FLOATS / (vocab + 1);
    n = n > MAX ? MAX : n;
    n = n < LEAST ? LEAST : n;
    return rows < n ? rows : n;
}

int64_t dq_cpu_logit_bytes(int64_t rows, int64_t vocab)
{
    const int64_t one = logit_rows(rows, vocab) * vocab, two = logit_rows(rows, 2 * vocab) * vocab;
    return (one > 2 * two ? one : 2 * two) * (int64_t)sizeof(float);
}

static int32_t first_at(const float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] == value) return (int32_t)i;
    return 0; /* only NaN */
}

void dq_cpu_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                    const dq_weight *head, const int32_t *target, dq_num num)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t vocab = head->rows, step = logit_rows(hidden.rows, vocab);
    const dq_mat all = {NULL, hidden.rows, vocab};
    if (!can_run(b, all, hidden, head, num) || hidden.rows == 0) return;
    float *logits = dq_cpu_shared(b, (size_t)(step * vocab) * sizeof *logits);
    if (!logits) return;
    for (int64_t first = 0; first < hidden.rows && b->err.code == DQ_OK; first += step) {
        const int64_t n = hidden.rows - first < step ? hidden.rows - first : step;
        const dq_mat h = {hidden.p + first * hidden.cols, n, hidden.cols};
        run_product(b, (dq_mat){logits, n, vocab}, h, head, NULL);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
        for (int64_t i = 0; i < n; i++) {
            const float *x = logits + i * vocab;
            const int32_t t = target ? target[first + i] : -1;
            const float top = simd->max(x, vocab);
            if (top1) top1[first + i] = first_at(x, vocab, top);
            const double off = t >= 0 ? (double)x[t] - (double)top : 0;
            if (logp) logp[first + i] = off - log(simd->sum_exp(x, vocab, top));
        }
    }
}

/* Divergence of one row. Everything in double: the terms nearly cancel when the models agree. */
static double row_kld(const dq_simd *simd, const float *ref, const float *x, int64_t n)
{
    double sum[3];
    simd->divergence(sum, ref, x, n, (double)simd->max(ref, n), (double)simd->max(x, n));
    return sum[2] / sum[0] + (log(sum[1]) - log(sum[0]));
}

void dq_cpu_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                dq_mat hidden, const dq_weight *head, dq_num num)
{
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int64_t vocab = head->rows, step = logit_rows(hidden.rows, 2 * vocab);
    const dq_mat all = {NULL, hidden.rows, vocab};
    if (!can_run(b, all, ref, ref_head, ref_num) || !can_run(b, all, hidden, head, num)) return;
    if (hidden.rows == 0) return;
    float *logits = dq_cpu_shared(b, (size_t)(2 * step * vocab) * sizeof *logits);
    if (!logits) return;
    float *other = logits + step * vocab;
    for (int64_t first = 0; first < hidden.rows && b->err.code == DQ_OK; first += step) {
        const int64_t n = hidden.rows - first < step ? hidden.rows - first : step;
        const dq_mat r = {ref.p + first * ref.cols, n, ref.cols};
        const dq_mat h = {hidden.p + first * hidden.cols, n, hidden.cols};
        run_product(b, (dq_mat){logits, n, vocab}, r, ref_head, NULL);
        run_product(b, (dq_mat){other, n, vocab}, h, head, NULL);
#pragma omp parallel for num_threads(b->threads) schedule(dynamic)
        for (int64_t i = 0; i < n; i++)
            kld[first + i] = row_kld(simd, logits + i * vocab, other + i * vocab, vocab);
    }
}
