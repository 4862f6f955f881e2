/* How much the keys of a list point where all of them point. Two walks over the pages of a head:
 * the sum of directions, then each key's cosine with it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"
#include "kernels/paged/kv_pages.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- CPU key cosines ---- */

typedef struct head_keys {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    int head;
    int64_t coded_end, dim;
} head_keys;

/* [dim][DQ_PAGE_TOKENS], good until the next call. */
static const float *page_keys(const head_keys *h, int64_t page)
{
    return dq_cpu_kv_read_keys(dq_cpu_of(h->b)->simd, h->kv, h->list, page, h->head, h->coded_end,
                               dq_cpu_of(h->b)->block[0]);
}

/* dot[i] = k_i . with, norm[i] = |k_i| of a page's n keys; a NULL `with` gives no products. */
static void measure_page(double *dot, double *norm, const float *k, const double *with, int64_t n,
                         int64_t dim)
{
    for (int64_t i = 0; i < n; i++) dot[i] = norm[i] = 0;
    for (int64_t c = 0; c < dim; c++) {
        for (int64_t i = 0; i < n; i++) {
            const double x = (double)k[c * DQ_PAGE_TOKENS + i];
            norm[i] += x * x;
            dot[i] += x * (with ? with[c] : 0.0);
        }
    }
    for (int64_t i = 0; i < n; i++) norm[i] = sqrt(norm[i]);
}

static void add_directions(double *sum, const head_keys *h)
{
    double dot[DQ_PAGE_TOKENS], norm[DQ_PAGE_TOKENS];
    memset(sum, 0, (size_t)h->dim * sizeof *sum);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < h->list->count; p++) {
        const int64_t n = dq_kv_slots(h->list->count, p);
        const float *k = page_keys(h, p);
        measure_page(dot, norm, k, NULL, n, h->dim);
        for (int64_t c = 0; c < h->dim; c++) {
            for (int64_t i = 0; i < n; i++)
                if (norm[i] > 0) sum[c] += (double)k[c * DQ_PAGE_TOKENS + i] / norm[i];
        }
    }
}

static void add_cosines(double *cosine, const double *sum, const head_keys *h)
{
    double dot[DQ_PAGE_TOKENS], norm[DQ_PAGE_TOKENS], length = 0;
    for (int64_t c = 0; c < h->dim; c++) length += sum[c] * sum[c];
    length = sqrt(length);
    for (int64_t p = 0; p * DQ_PAGE_TOKENS < h->list->count; p++) {
        const int64_t n = dq_kv_slots(h->list->count, p);
        measure_page(dot, norm, page_keys(h, p), sum, n, h->dim);
        for (int64_t i = 0; i < n; i++)
            if (norm[i] > 0 && length > 0)
                cosine[p * DQ_PAGE_TOKENS + i] += dot[i] / (norm[i] * length);
    }
}

void dq_cpu_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                           int32_t t, double *cosine)
{
    const dq_head_order *map = kv->map;
    head_keys h = {.b = b, .kv = kv, .dim = map->head_dim};
    h.list = dq_cpu_kv_list_at(b, kv, seq, layer, group, t, &h.coded_end);
    double *sum = h.list ? dq_block_new((size_t)map->head_dim, sizeof *sum, &b->err) : NULL;
    if (!sum) return;
    for (int64_t i = 0; i < h.list->count; i++) cosine[i] = 0;
    for (h.head = 0; h.head < map->n_kv; h.head++) {
        if (map->group[h.head] != group) continue;
        add_directions(sum, &h);
        add_cosines(cosine, sum, &h);
    }
    dq_block_free(sum);
}

/* ---- Leverage ----
 * How much of what the keys of a list span is a key's own. Keys go back to where RoPE found them,
 * the mean is taken off, and with their Gram matrix G = U'U a key's number is the length of x
 * U^-1, squared. Products are f32 by pages, sums over pages and the factor f64; each number is
 * made by one thread in one order. */

typedef struct leverages {
    dq_backend *b;
    const dq_kv *kv;
    const dq_kv_list *list;
    const dq_rope *rope;
    int64_t n, cols,
        ld; /* tokens; the group's key heads side by side, padded with zeros to a multiple of 16 */
    dq_mat x;     /* [n][ld] */
    double *gram; /* [cols][ld], upper triangle = U'U */
    float *right; /* [cols][ld], U^-1 */
} leverages;

static float *thread_scratch(const leverages *l)
{
    return dq_cpu_of(l->b)->block[omp_get_thread_num()];
}

static int64_t pages_of(const leverages *l)
{
    return (l->n + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

static int64_t tile_of(const leverages *l, int64_t first)
{
    return l->cols - first < DQ_TILE_N ? l->cols - first : DQ_TILE_N;
}

/* Columns first .. of the rows above and on the diagonal. */
static void gram_tile(const leverages *l, int64_t first)
{
    const dq_simd *simd = dq_cpu_of(l->b)->simd;
    const int64_t n = tile_of(l, first), rows = first + n;
    float *turned = thread_scratch(l), *part = turned + l->cols * DQ_PAGE_TOKENS;
    for (int64_t p = 0; p < pages_of(l); p++) {
        const float *x = l->x.p + p * DQ_PAGE_TOKENS * l->ld;
        const int64_t k = dq_kv_slots(l->n, p);
        simd->transpose(turned, DQ_PAGE_TOKENS, x, l->ld, k, rows);
        simd->gemm(part, DQ_TILE_N, turned, DQ_PAGE_TOKENS, x + first, l->ld, rows, n, k, false);
        for (int64_t i = 0; i < rows; i++) {
            double *to = l->gram + i * l->ld + first;
            for (int64_t c = 0; c < n; c++) to[c] += (double)part[i * DQ_TILE_N + c];
        }
    }
}

static void measure(const leverages *l, double *work, double *leverage)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(l->b->threads) if (l->cols > DQ_TILE_N)
    for (int64_t c = 0; c < l->cols; c += DQ_TILE_N) gram_tile(l, c);
    if (!dq_key_factor(l->right, work, l->gram, l->cols, l->ld)) {
        dq_fail(&l->b->err, DQ_DAMAGED, "keys of the KV cache are not finite");
        return;
    }
#pragma omp parallel for schedule(static) num_threads(l->b->threads) if (l->n > DQ_PAGE_TOKENS)
    for (int64_t p = 0; p < pages_of(l); p++) {
        const dq_simd *simd = dq_cpu_of(l->b)->simd;
        const int64_t first = p * DQ_PAGE_TOKENS, rows = dq_kv_slots(l->n, p);
        float *y = thread_scratch(l);
        for (int64_t i = 0; i < rows; i++) leverage[first + i] = 0;
        for (int64_t k = 0; k < l->cols; k += DQ_TILE_N) {
            const int64_t n = tile_of(l, k);
            simd->gemm(y, DQ_TILE_N, l->x.p + first * l->ld, l->ld, l->right + k, l->ld, rows, n,
                       k + n, false);
            for (int64_t i = 0; i < rows; i++)
                leverage[first + i] += simd->sum_squares(y + i * DQ_TILE_N, n);
        }
    }
}

static bool reserve(const leverages *l)
{
    const int64_t read = dq_cpu_kv_scratch_floats(l->kv);
    const int64_t tiles = 2 * (l->cols + DQ_TILE_N) * DQ_PAGE_TOKENS;
    return dq_cpu_reserve(l->b, (size_t)(read > tiles ? read : tiles) * sizeof(float));
}

void dq_cpu_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                             int32_t t, const dq_rope *rope, double *leverage)
{
    int64_t coded_end;
    const dq_kv_list *list = dq_cpu_kv_list_at(b, kv, seq, layer, group, t, &coded_end);
    if (!list) return;
    leverages l = {.b = b,
                   .kv = kv,
                   .list = list,
                   .rope = rope,
                   .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    l.n = l.list->count;
    l.ld = (l.cols + 15) / 16 * 16;
    if (l.n == 0 || !reserve(&l)) return;
    const size_t square = (size_t)(l.cols * l.ld);
    l.x = (dq_mat){dq_block_new((size_t)(l.n * l.ld), sizeof(float), &b->err), l.n, l.ld};
    l.gram = dq_block_new(square, sizeof *l.gram, &b->err);
    l.right = dq_block_new(square, sizeof *l.right, &b->err);
    double *work = dq_block_new(2 * square, sizeof *work, &b->err);
    if (b->err.code == DQ_OK) {
        dq_cpu_kv_read_bare_keys(b, l.x, kv, list, group, coded_end, rope);
        if (b->err.code == DQ_OK) {
            const double a = (double)l.rope->amplitude, unit = 1.0 / (a * a);
            memset(work, 0, (size_t)l.cols * sizeof *work);
            for (int64_t i = 0; i < l.n; i++) {
                for (int64_t c = 0; c < l.cols; c++) work[c] += (double)l.x.p[i * l.ld + c];
            }
            for (int64_t c = 0; c < l.cols; c++) work[c] /= (double)l.n;
            for (int64_t i = 0; i < l.n; i++) {
                float *x = l.x.p + i * l.ld;
                for (int64_t c = 0; c < l.cols; c++)
                    x[c] = (float)(((double)x[c] - work[c]) * unit);
            }
            measure(&l, work, leverage);
        }
    }
    dq_block_free(work);
    dq_block_free(l.right);
    dq_block_free(l.gram);
    dq_block_free(l.x.p);
}
