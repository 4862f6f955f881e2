/* cpu_key_cosines: how much the keys of a list point where all of them point. Two walks over the pages of a head: the
 * sum of directions, then each key's cosine with it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/kv/cpu_kv.h"

#include <math.h>
#include <string.h>

/* Keys of one KV head as a query reads them. */
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
