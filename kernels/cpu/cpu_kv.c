/* cpu_kv: the paged KV cache of the CPU backend, in f32.
 * SPDX-License-Identifier: MIT */
#include "cpu_attention.h"

#include <string.h>

static dq_kv_page *page_new(dq_backend *b, dq_kv *kv, int group)
{
    size_t floats = (size_t)(kv->heads[group] * kv->head_floats) * sizeof(float);
    dq_kv_page *p = dq_block_new(1, sizeof *p + floats, &b->err);
    if (!p) return NULL;
    p->holders = 1;
    kv->bytes.unquantized += (int64_t)floats;
    kv->bytes.index += (int64_t)sizeof *p;
    return p;
}

static void page_drop(dq_kv *kv, dq_kv_page *p, int group)
{
    if (--p->holders > 0) return;
    kv->bytes.unquantized -= kv->heads[group] * kv->head_floats * (int64_t)sizeof(float);
    kv->bytes.index -= (int64_t)sizeof *p;
    dq_block_free(p);
}

/* Room for n page pointers. */
static bool list_reserve(dq_backend *b, dq_kv *kv, dq_kv_list *list, int64_t n)
{
    if (n <= list->capacity) return true;
    int64_t capacity = list->capacity ? list->capacity : 8;
    while (capacity < n) capacity *= 2;
    dq_kv_page **page = dq_block_new((size_t)capacity, sizeof(dq_kv_page *), &b->err);
    if (!page) return false;
    if (list->n_pages) memcpy(page, list->page, (size_t)list->n_pages * sizeof(dq_kv_page *));
    dq_block_free(list->page);
    list->page = page;
    kv->bytes.index += (capacity - list->capacity) * (int64_t)sizeof(dq_kv_page *);
    list->capacity = capacity;
    return true;
}

static void list_cut(dq_kv *kv, dq_kv_list *list, int group, int64_t n_pages)
{
    while (list->n_pages > n_pages) page_drop(kv, list->page[--list->n_pages], group);
}

static void list_free(dq_kv *kv, dq_kv_list *list, int group)
{
    list_cut(kv, list, group, 0);
    kv->bytes.index -= list->capacity * (int64_t)sizeof(dq_kv_page *);
    dq_block_free(list->page);
}

static int64_t pages_of(int64_t tokens)
{
    return (tokens + DQ_PAGE - 1) / DQ_PAGE;
}

int64_t dq_kv_visible(const dq_kv_list *list, int32_t t)
{
    int64_t low = 0, high = list->count; /* positions before low are <= t, from high on > t */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (dq_kv_pos(list, middle) <= t) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_headmap *map, int n_layers, const dq_kv_spec *spec)
{
    if (b->err.code != DQ_OK) return NULL;
    if (spec->k_bits != 16 || spec->v_bits != 16) {
        dq_fail(&b->err, DQ_MISMATCH, "the cpu backend has no %d:%d-bit KV cache", spec->k_bits,
                spec->v_bits);
        return NULL;
    }
    dq_kv *kv = dq_block_new(1, sizeof *kv, &b->err);
    if (!kv) return NULL;
    kv->map = map;
    kv->n_layers = n_layers;
    kv->v_cols = (map->head_dim + 15) / 16 * 16;
    kv->head_floats = (map->head_dim + kv->v_cols) * (int64_t)DQ_PAGE;
    kv->slot = dq_block_new((size_t)map->n_kv, sizeof *kv->slot, &b->err);
    kv->heads = dq_block_new((size_t)map->n_groups, sizeof *kv->heads, &b->err);
    if (!kv->slot || !kv->heads) {
        dq_cpu_kv_free(b, kv);
        return NULL;
    }
    for (int j = 0; j < map->n_kv; j++) kv->slot[j] = kv->heads[map->group[j]]++;
    return kv;
}

void dq_cpu_kv_free(dq_backend *b, dq_kv *kv)
{
    if (!kv) return;
    for (int32_t i = 0; i < kv->n_seq; i++) {
        if (kv->seq[i]) dq_cpu_kv_seq_free(b, kv, i);
    }
    dq_block_free(kv->seq);
    dq_block_free(kv->slot);
    dq_block_free(kv->heads);
    dq_block_free(kv);
}

static int64_t lists_bytes(const dq_kv *kv)
{
    return (int64_t)kv->n_layers * kv->map->n_groups * (int64_t)sizeof(dq_kv_list);
}

/* The lowest free handle; the table grows when none is free. */
static int32_t handle_new(dq_backend *b, dq_kv *kv)
{
    for (int32_t i = 0; i < kv->n_seq; i++) {
        if (!kv->seq[i]) return i;
    }
    int32_t n = kv->n_seq ? kv->n_seq * 2 : 8;
    dq_kv_list **seq = dq_block_new((size_t)n, sizeof(dq_kv_list *), &b->err);
    if (!seq) return -1;
    if (kv->n_seq) memcpy(seq, kv->seq, (size_t)kv->n_seq * sizeof(dq_kv_list *));
    dq_block_free(kv->seq);
    kv->seq = seq;
    kv->bytes.index += (n - kv->n_seq) * (int64_t)sizeof(dq_kv_list *);
    int32_t handle = kv->n_seq;
    kv->n_seq = n;
    return handle;
}

static bool known(dq_backend *b, const dq_kv *kv, int32_t seq)
{
    if (seq >= 0 && seq < kv->n_seq && kv->seq[seq]) return true;
    dq_fail(&b->err, DQ_BUG, "no sequence %d in the KV cache", (int)seq);
    return false;
}

int32_t dq_cpu_kv_seq_new(dq_backend *b, dq_kv *kv)
{
    if (b->err.code != DQ_OK) return -1;
    int32_t seq = handle_new(b, kv);
    if (seq < 0) return -1;
    size_t n = (size_t)kv->n_layers * (size_t)kv->map->n_groups;
    kv->seq[seq] = dq_block_new(n, sizeof(dq_kv_list), &b->err);
    if (!kv->seq[seq]) return -1;
    kv->bytes.index += lists_bytes(kv);
    return seq;
}

int32_t dq_cpu_kv_fork(dq_backend *b, dq_kv *kv, int32_t seq)
{
    if (b->err.code != DQ_OK || !known(b, kv, seq)) return -1;
    int32_t copy = dq_cpu_kv_seq_new(b, kv);
    if (copy < 0) return -1;
    for (int i = 0; i < kv->n_layers * kv->map->n_groups; i++) {
        const dq_kv_list *from = &kv->seq[seq][i];
        dq_kv_list *to = &kv->seq[copy][i];
        const int64_t n_pages = pages_of(from->count);
        if (!list_reserve(b, kv, to, n_pages)) {
            dq_cpu_kv_seq_free(b, kv, copy);
            return -1;
        }
        for (int64_t p = 0; p < n_pages; p++) {
            to->page[p] = from->page[p];
            to->page[p]->holders++;
        }
        to->n_pages = n_pages;
        to->count = from->count;
    }
    return copy;
}

/* Works after an error too: memory must go back. */
void dq_cpu_kv_seq_free(dq_backend *b, dq_kv *kv, int32_t seq)
{
    if (!known(b, kv, seq)) return;
    for (int i = 0; i < kv->n_layers * kv->map->n_groups; i++) {
        list_free(kv, &kv->seq[seq][i], i % kv->map->n_groups);
    }
    dq_block_free(kv->seq[seq]);
    kv->seq[seq] = NULL;
    kv->bytes.index -= lists_bytes(kv);
}

/* Pages for n more tokens, none of them shared from the first free slot on. */
static bool make_room(dq_backend *b, dq_kv *kv, dq_kv_list *list, int group, int64_t n)
{
    int64_t need = pages_of(list->count + n), tail = list->count / DQ_PAGE;
    if (!list_reserve(b, kv, list, need)) return false;
    if (n && tail < list->n_pages && list->page[tail]->holders > 1) {
        dq_kv_page *own = page_new(b, kv, group), *shared = list->page[tail];
        if (!own) return false;
        memcpy(own->pos, shared->pos, sizeof own->pos);
        memcpy(own->data, shared->data,
               (size_t)(kv->heads[group] * kv->head_floats) * sizeof(float));
        page_drop(kv, shared, group);
        list->page[tail] = own;
    }
    while (list->n_pages < need) {
        dq_kv_page *p = page_new(b, kv, group);
        if (!p) return false;
        list->page[list->n_pages++] = p;
    }
    return true;
}

/* Positions must go on ascending, because a query's visible tokens are a prefix of the list. */
static bool ascends(const dq_kv_list *list, const int32_t *pos, int64_t n)
{
    if (n && list->count && dq_kv_pos(list, list->count - 1) >= pos[0]) return false;
    for (int64_t i = 1; i < n; i++) {
        if (pos[i] <= pos[i - 1]) return false;
    }
    return true;
}

static void write_tokens(const dq_simd *simd, dq_kv *kv, dq_kv_list *list, int group,
                         const float *k, const float *v, const int32_t *pos, int64_t n)
{
    const dq_headmap *map = kv->map;
    const int64_t d = map->head_dim, stride = map->n_kv * d;
    for (int64_t done = 0; done < n;) {
        int64_t at = list->count % DQ_PAGE;
        int64_t take = DQ_PAGE - at < n - done ? DQ_PAGE - at : n - done;
        dq_kv_page *p = list->page[list->count / DQ_PAGE];
        memcpy(p->pos + at, pos + done, (size_t)take * sizeof *pos);
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *from_k = k + done * stride + j * d, *from_v = v + done * stride + j * d;
            float *values = dq_kv_values(kv, p, j) + at * kv->v_cols;
            simd->transpose(dq_kv_keys(kv, p, j) + at, DQ_PAGE, from_k, stride, take, d);
            for (int64_t i = 0; i < take; i++) {
                memcpy(values + i * kv->v_cols, from_v + i * stride, (size_t)d * sizeof(float));
            }
        }
        list->count += take;
        done += take;
    }
}

void dq_cpu_kv_append(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                      dq_mat v)
{
    const int groups = kv->map->n_groups;
    if (b->err.code != DQ_OK) return;
    /* Memory first and on one thread: either all lists grow or none. */
    for (int i = 0; i < batch->n_seq; i++) {
        if (!known(b, kv, batch->seq[i])) return;
        int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        for (int g = 0; g < groups; g++) {
            dq_kv_list *list = &kv->seq[batch->seq[i]][layer * groups + g];
            if (!ascends(list, batch->pos + first, n)) {
                dq_fail(&b->err, DQ_BUG, "positions of appended tokens do not ascend");
                return;
            }
            if (!make_room(b, kv, list, g, n)) return;
        }
    }
    const dq_simd *simd = dq_cpu_of(b)->simd;
    const int tasks = batch->n_seq * groups;
#pragma omp parallel for schedule(dynamic, 1) num_threads(b->threads) if (batch->n_rows > 32)
    for (int task = 0; task < tasks; task++) {
        int i = task / groups, g = task % groups;
        int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        write_tokens(simd, kv, &kv->seq[batch->seq[i]][layer * groups + g], g, k.p + first * k.cols,
                     v.p + first * v.cols, batch->pos + first, n);
    }
}

void dq_cpu_kv_rewind(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length)
{
    if (b->err.code != DQ_OK || !known(b, kv, seq)) return;
    for (int i = 0; i < kv->n_layers * kv->map->n_groups; i++) {
        dq_kv_list *list = &kv->seq[seq][i];
        list->count = length > 0 ? dq_kv_visible(list, length - 1) : 0;
        list_cut(kv, list, i % kv->map->n_groups, pages_of(list->count));
    }
}

static void copy_token(const dq_kv *kv, dq_kv_page *to, int64_t at, dq_kv_page *from, int64_t i,
                       int group)
{
    const dq_headmap *map = kv->map;
    to->pos[at] = from->pos[i];
    for (int j = 0; j < map->n_kv; j++) {
        if (map->group[j] != group) continue;
        float *key = dq_kv_keys(kv, to, j) + at;
        const float *old = dq_kv_keys(kv, from, j) + i;
        for (int64_t c = 0; c < map->head_dim; c++) key[c * DQ_PAGE] = old[c * DQ_PAGE];
        memcpy(dq_kv_values(kv, to, j) + at * kv->v_cols,
               dq_kv_values(kv, from, j) + i * kv->v_cols, (size_t)kv->v_cols * sizeof(float));
    }
}

static bool kept_is_valid(const int32_t *kept, int64_t n, int64_t count)
{
    for (int64_t i = 0; i < n; i++) {
        if (kept[i] < 0 || kept[i] >= count || (i > 0 && kept[i] <= kept[i - 1])) return false;
    }
    return true;
}

void dq_cpu_kv_keep(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                    const int32_t *kept, int64_t n)
{
    if (b->err.code != DQ_OK || !known(b, kv, seq)) return;
    dq_kv_list *list = &kv->seq[seq][layer * kv->map->n_groups + group];
    if (!kept_is_valid(kept, n, list->count)) {
        dq_fail(&b->err, DQ_BUG, "kept tokens are not ascending indices below %lld",
                (long long)list->count);
        return;
    }
    int64_t whole = 0; /* pages that stay as they are, perhaps shared */
    while ((whole + 1) * DQ_PAGE <= n &&
           kept[whole * DQ_PAGE + DQ_PAGE - 1] == (int32_t)(whole * DQ_PAGE + DQ_PAGE - 1)) {
        whole++;
    }
    dq_kv_list dense = {0};
    if (!list_reserve(b, kv, &dense, pages_of(n))) return;
    for (int64_t p = whole; p < pages_of(n); p++) {
        dq_kv_page *fresh = page_new(b, kv, group);
        if (!fresh) {
            list_free(kv, &dense, group);
            return;
        }
        dense.page[dense.n_pages++] = fresh;
    }
    for (int64_t i = whole * DQ_PAGE; i < n; i++) {
        int64_t to = i / DQ_PAGE - whole;
        copy_token(kv, dense.page[to], i % DQ_PAGE, list->page[kept[i] / DQ_PAGE],
                   kept[i] % DQ_PAGE, group);
    }
    list_cut(kv, list, group, whole);
    if (dense.n_pages) {
        memcpy(list->page + whole, dense.page, (size_t)dense.n_pages * sizeof(dq_kv_page *));
    }
    list->n_pages = whole + dense.n_pages;
    list->count = n;
    dense.n_pages = 0;
    list_free(kv, &dense, group);
}

void dq_cpu_kv_settle(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch)
{
    (void)layer;
    for (int i = 0; i < batch->n_seq; i++) known(b, kv, batch->seq[i]);
}

void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum)
{
    const dq_headmap *map = kv->map;
    (void)t;
    if (b->err.code != DQ_OK || !known(b, kv, seq)) return;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    for (int64_t i = 0; i < list->count; i++) {
        sum[i] = 0;
        for (int j = 0; j < map->n_kv; j++) {
            if (map->group[j] != group) continue;
            const float *k = dq_kv_keys(kv, list->page[i / DQ_PAGE], j) + i % DQ_PAGE;
            for (int c = 0; c < map->head_dim; c++)
                sum[i] += (double)k[c * DQ_PAGE] * (double)k[c * DQ_PAGE];
        }
    }
}

int64_t dq_cpu_kv_count(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                        int32_t *pos)
{
    if (!known(b, kv, seq)) return 0;
    const dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    for (int64_t i = 0; pos && i < list->count; i++) pos[i] = dq_kv_pos(list, i);
    return list->count;
}

dq_kv_bytes dq_cpu_kv_bytes(dq_backend *b, const dq_kv *kv)
{
    dq_kv_bytes bytes = kv->bytes;
    (void)b;
    for (int32_t s = 0; s < kv->n_seq; s++) {
        for (int i = 0; kv->seq[s] && i < kv->n_layers * kv->map->n_groups; i++) {
            bytes.tokens += kv->seq[s][i].count;
        }
    }
    return bytes;
}
