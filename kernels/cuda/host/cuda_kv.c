/* What policies ask of keys. The kernels are in kv.cu; the small matrix of
 * leverages is factored on the host, which waits for it.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"
#include "kernels/paged/kv_pages.h"

#include <math.h>
#include <string.h>

/* ---- CUDA keys ---- */

/* One side of a list as kernels read it, its records up to date. False: sticky error. */
static bool side_of_list(dq_backend *b, dq_keys *k, const dq_kv *kv, dq_kv_list *list, int group,
                         int side, int32_t t)
{
    dq_page_form form[2];
    int64_t first;
    dq_cuda_forms(form, kv);
    *k = (dq_keys){
        .count = list->count, .heads = kv->heads[group], .side = side, .form = form[side]};
    if (!dq_kv_read_as_at(b, kv, list, t, &k->coded)) return false;
    if (!dq_cuda_records_begin(b, kv) || !dq_cuda_records_of(b, kv, list, &first) ||
        !dq_cuda_records_send(b, kv))
        return false;
    k->pages = dq_cuda_records(kv) + first;
    return true;
}

static bool keys_of_list(dq_backend *b, dq_keys *k, const dq_kv *kv, dq_kv_list *list, int group,
                         int32_t t)
{
    return side_of_list(b, k, kv, list, group, DQ_K, t);
}

void dq_cuda_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t t, double *sum)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    const size_t bytes = (size_t)list->count * sizeof(double);
    if (list->count == 0) return;
    dq_keys k;
    double *into = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, bytes);
    if (into && keys_of_list(b, &k, kv, list, group, t) &&
        dq_cuda_ok(
            b,
            dq_kv_launch_norms(into, k.pages, k.count, k.coded, k.form, k.heads, dq_cuda_stream(b)),
            "kv_key_norms"))
        dq_cuda_download(b, into, bytes, NULL, sum);
    dq_cuda_upload_end(b);
}

void dq_cuda_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                            int32_t t, double *cosine)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    const size_t n = (size_t)list->count, heads = (size_t)kv->heads[group];
    const size_t dim = (size_t)kv->map->head_dim;
    if (n == 0) return;
    dq_keys k;
    double *into =
        dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, ((1 + heads) * n + heads * dim) * sizeof *into);
    if (into && keys_of_list(b, &k, kv, list, group, t) &&
        dq_cuda_ok(b, dq_keys_cosines(into, k, into + n, into + (1 + heads) * n, dq_cuda_stream(b)),
                   "kv_key_cosines"))
        dq_cuda_download(b, into, n * sizeof *into, NULL, cosine);
    dq_cuda_upload_end(b);
}

/* ---- leverages */

/* RoPE by the negative position is its inverse, but for the square of the amplitude. */
static bool undo_rope(dq_backend *b, dq_mat x, const dq_kv *kv, const dq_kv_list *list,
                      const dq_rope *rope)
{
    const int dim = kv->map->head_dim;
    dq_mat table = {.rows = x.rows, .cols = dim};
    int32_t *pos = dq_block_new((size_t)x.rows, sizeof *pos, &b->err);
    if (pos) table.p = dq_cuda_alloc(b, (size_t)(x.rows * dim) * sizeof *table.p);
    if (table.p) {
        for (int64_t i = 0; i < x.rows; i++) pos[i] = -dq_kv_pos(list, i);
        if (kv->spec.rotate_k) dq_cuda_hadamard(b, x, dim);
        dq_cuda_rope_table(b, table, pos, rope);
        dq_cuda_rope(b, x, table, rope->order);
    }
    dq_cuda_free(b, table.p);
    dq_block_free(pos);
    return b->err.code == DQ_OK;
}

/* to[cols][cols] = U^-1 of what `gram` holds on the device. */
static bool factor(dq_backend *b, float *to, const double *gram, int64_t cols)
{
    const size_t square = (size_t)(cols * cols);
    double *host = dq_block_new(3 * square, sizeof *host, &b->err);
    float *right = dq_block_new(square, sizeof *right, &b->err);
    if (host && right) {
        dq_cuda_get(b, host, gram, square * sizeof *host);
        if (b->err.code == DQ_OK && !dq_key_factor(right, host + square, host, cols, cols))
            dq_fail(&b->err, DQ_DAMAGED, "keys of the KV cache are not finite");
        dq_cuda_put(b, to, right, square * sizeof *right);
    }
    dq_block_free(right);
    dq_block_free(host);
    return b->err.code == DQ_OK;
}

/* x holds keys before RoPE. */
static bool measure(dq_backend *b, double *leverage, dq_mat x, double unit)
{
    const size_t square = (size_t)(x.cols * x.cols);
    double *gram = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, square * sizeof *gram);
    float *right = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, square * sizeof *right);
    /* the means, before the matrix stands there */
    return gram && right &&
           dq_cuda_ok(b, dq_keys_centre(x.p, gram, unit, x.rows, x.cols, dq_cuda_stream(b)),
                      "means of keys") &&
           dq_cuda_ok(b, dq_keys_gram(gram, x.p, x.rows, x.cols, dq_cuda_stream(b)),
                      "products of keys") &&
           factor(b, right, gram, x.cols) &&
           dq_cuda_ok(b, dq_keys_leverages(leverage, x.p, right, x.rows, x.cols, dq_cuda_stream(b)),
                      "kv_key_leverages");
}

void dq_cuda_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                              int32_t t, const dq_rope *rope, double *leverage)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    dq_mat x = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    const double a = (double)rope->amplitude;
    const size_t bytes = (size_t)x.rows * sizeof(double);
    if (x.rows == 0) return;
    dq_keys k;
    double *into = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, bytes);
    x.p = dq_cuda_alloc(b, (size_t)(x.rows * x.cols) * sizeof *x.p);
    bool ok = into && x.p && keys_of_list(b, &k, kv, list, group, t) &&
              dq_cuda_ok(b, dq_keys_read(x.p, k, dq_cuda_stream(b)), "keys");
    dq_cuda_upload_end(b);
    ok = ok && undo_rope(b, x, kv, list, rope);
    if (ok && measure(b, into, x, 1.0 / (a * a))) dq_cuda_download(b, into, bytes, NULL, leverage);
    dq_cuda_free(b, x.p);
}

/* ---- rows */

/* x[count][heads * dim] on the device: a side of a list as it lies in pages. */
static bool read_side(dq_backend *b, dq_mat x, const dq_kv *kv, dq_kv_list *list, int group,
                      int side, int32_t t)
{
    dq_keys k;
    const bool ok = side_of_list(b, &k, kv, list, group, side, t) &&
                    dq_cuda_ok(b, dq_keys_read(x.p, k, dq_cuda_stream(b)), "kv_rows");
    dq_cuda_upload_end(b);
    return ok;
}

static void put_half(dq_backend *b, float *row, dq_mat x, double unit)
{
    float *host = dq_block_new((size_t)(x.rows * x.cols), sizeof *host, &b->err);
    if (host) dq_cuda_get(b, host, x.p, (size_t)(x.rows * x.cols) * sizeof *host);
    for (int64_t i = 0; host && i < x.rows; i++) {
        for (int64_t c = 0; c < x.cols; c++)
            row[i * 2 * x.cols + c] = (float)((double)host[i * x.cols + c] * unit);
    }
    dq_block_free(host);
}

void dq_cuda_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                     const dq_rope *rope, float *row)
{
    if (b->err.code != DQ_OK || !dq_kv_pages_known(b, kv, seq)) return;
    dq_kv_list *list = dq_kv_list_of(kv, seq, layer, group);
    dq_mat x = {.rows = list->count, .cols = (int64_t)kv->heads[group] * kv->map->head_dim};
    const double a = (double)rope->amplitude;
    if (x.rows == 0) return;
    x.p = dq_cuda_alloc(b, (size_t)(x.rows * x.cols) * sizeof *x.p);
    if (x.p && read_side(b, x, kv, list, group, DQ_K, t) && undo_rope(b, x, kv, list, rope))
        put_half(b, row, x, 1.0 / (a * a));
    if (b->err.code == DQ_OK && x.p && read_side(b, x, kv, list, group, DQ_V, t)) {
        if (kv->spec.rotate_v) dq_cuda_hadamard(b, x, kv->map->head_dim);
        put_half(b, row + x.cols, x, 1);
    }
    dq_cuda_free(b, x.p);
}

/* ---- CUDA KV ----
 * What the CUDA backend does with the memory of the KV cache's pages. */

/* The records of a list's pages: a run of the table. What is stale is patched before it is read. */
typedef struct run {
    int64_t first, capacity;
    int64_t stale;  /* the first page whose record is not right */
    uint64_t epoch; /* of the cache, when it was made right */
    int32_t next;   /* of the runs that are free: an index plus one, 0: none */
} run;

/* Operands that the last rows were appended to, where dq_cuda.viewed is the cache. */
typedef struct views {
    dq_unfold_list *list; /* [n_seq][n_groups] */
    int32_t *seq;         /* [n_seq] */
    size_t list_capacity, seq_capacity;
    int layer, n_seq;
    bool int8;
} views;

/* What a cache has on the device beside its pages. */
typedef struct own {
    dq_cuda_heads heads;
    dq_page *page; /* [capacity] the table of records */
    float *dither; /* [capacity + 1][DQ_PAGE_TOKENS] by position, then by record; NULL: none */
    int64_t used, capacity;
    run *run; /* [n_runs] by dq_kv_list.own, less one */
    size_t n_runs, runs_capacity;
    int32_t free_run;
    uint64_t epoch;     /* grows where pages of several lists may have changed */
    dq_kv_patch *patch; /* [n_patches] that no launch has carried out */
    size_t n_patches, patch_capacity;
    float *row; /* [n_rows][DQ_PAGE_TOKENS] of dither, for patches */
    size_t n_rows, row_capacity;
    views views;
} own;

static own *own_of(const dq_kv *kv)
{
    return kv->own;
}

_Static_assert((int)DQ_PAGE_SLOTS == (int)DQ_PAGE_TOKENS, "kernels and bookkeeping agree on pages");

dq_page dq_cuda_page(const dq_kv *kv, const dq_kv_page *p)
{
    const int heads = kv->heads[p->place % kv->map->n_groups];
    dq_page page = {
        .begins = p->begins, .dither = -1, .n_sinks = p->n_sinks, .heads = (int16_t)heads};
    for (int side = DQ_K; side <= DQ_V; side++) {
        const dq_kv_arrays *arrays = &p->arrays[side];
        page.side[side] =
            (dq_page_side){arrays->plain, arrays->codes, arrays->scale, arrays->sinks};
        page.wide[side] = arrays->wide;
        for (int h = 0; kv->by_layer && kv->form[side].bits < 16 && h < heads; h++)
            page.widths[side] |= (uint64_t)dq_kv_bits_of(kv, p, side, h) << 4 * h;
    }
    return page;
}

static bool dithers(const dq_kv *kv, const dq_kv_page *p)
{
    return dq_kv_dithers(&kv->spec) && dq_kv_bits_of(kv, p, DQ_V, 0) < 16 &&
           dq_kv_bits_of(kv, p, DQ_V, 0) >= 4;
}

/* Whether the row of dither by position is not that of a page: its slots do not lie in the order
 * of positions. */
static bool dithers_own(const dq_kv *kv, const dq_kv_page *p)
{
    const int last = p->coded > p->due ? p->coded : p->due;
    if (!dithers(kv, p) || last <= p->n_sinks) return false;
    return p->pos[p->n_sinks] % DQ_PAGE_TOKENS != p->n_sinks ||
           p->pos[last - 1] - p->pos[p->n_sinks] != last - 1 - p->n_sinks;
}

void dq_cuda_forms(dq_page_form form[2], const dq_kv *kv)
{
    const int dense = kv->dense == DQ_F32   ? DQ_PAGE_F32
                      : kv->dense == DQ_F16 ? DQ_PAGE_F16
                                            : DQ_PAGE_BF16;
    const float *dither = own_of(kv) ? own_of(kv)->dither : NULL;
    for (int side = DQ_K; side <= DQ_V; side++) {
        const dq_kv_page_form *f = &kv->form[side];
        form[side] = (dq_page_form){.bits = f->bits,
                                    .group = f->group,
                                    .n_scales = (int32_t)f->n_scales,
                                    .has_lows = f->has_lows,
                                    .dim = kv->map->head_dim,
                                    .cols = (int32_t)kv->v_cols,
                                    .stride = (int32_t)(f->plain_floats / DQ_PAGE_TOKENS),
                                    .code_bytes = (int32_t)f->code_bytes,
                                    .dense = dense,
                                    .dither = side == DQ_V ? dither : NULL,
                                    .set_numbers = (int32_t)f->set_scales};
    }
}

/* ---------------------------------------------------------------------------------------- heads */

/* Of the group's heads from `first` on, those before `to` included: which pair of values it has. */
static int32_t pair_of(const dq_o_head *first, const dq_o_head *to)
{
    int32_t n = 0;
    for (const dq_o_head *o = first; o < to; o++) {
        if (o->v[0] == to->v[0] && o->v[1] == to->v[1]) return o->pair;
        if (o->pair >= n) n = o->pair + 1;
    }
    return n;
}

/* On the host: query and output heads, then their first ones by group, then the KV heads of
 * each. */
static void fill_heads(dq_cuda_heads *h, uint8_t *at, const dq_kv *kv)
{
    const dq_head_order *map = kv->map;
    dq_q_head *q = (dq_q_head *)(void *)at;
    dq_o_head *o = (dq_o_head *)(void *)(q + map->n_q);
    int32_t *q_first = (int32_t *)(void *)(o + map->n_out), *o_first = q_first + map->n_groups + 1;
    int32_t *first = o_first + map->n_groups + 1, *head = first + map->n_groups + 1;
    int32_t n_q = 0, n_out = 0, *place = head + map->n_kv; /* of a query head in its group */
    h->head_keys = 1;
    for (int g = 0; g < map->n_groups; g++) {
        q_first[g] = n_q;
        o_first[g] = n_out;
        first[g + 1] = first[g] + kv->heads[g];
        for (int i = 0; i < map->n_q; i++) {
            if (map->group[map->key[i]] != g) continue;
            place[i] = n_q - q_first[g];
            q[n_q++] = (dq_q_head){i, kv->slot[map->key[i]]};
        }
        for (int i = 0; i < map->n_out; i++) {
            const dq_head *from = &map->head[i];
            if (map->group[from->v[0]] != g) continue;
            dq_o_head *to = &o[n_out++];
            *to = (dq_o_head){i, {-1, -1}, {-1, -1}, 0};
            for (int m = 0; m < map->n_maps; m++) to->q[m] = place[from->q[m]];
            for (int e = 0; e < map->n_slabs; e++) to->v[e] = kv->slot[from->v[e]];
            to->pair = pair_of(o + o_first[g], to);
            if (map->n_maps == 2 && map->key[from->q[0]] != map->key[from->q[1]]) h->head_keys = 2;
            if (to->pair >= h->max_pairs) h->max_pairs = to->pair + 1;
        }
        if (kv->heads[g] > h->max_kv) h->max_kv = kv->heads[g];
        if (n_q - q_first[g] > h->max_q) h->max_q = n_q - q_first[g];
        if (n_out - o_first[g] > h->max_out) h->max_out = n_out - o_first[g];
    }
    q_first[map->n_groups] = n_q;
    o_first[map->n_groups] = n_out;
    for (int j = 0; j < map->n_kv; j++) head[first[map->group[j]] + kv->slot[j]] = j;
    h->q_first = q_first;
    h->o_first = o_first;
}

const dq_cuda_heads *dq_cuda_heads_of(const dq_kv *kv)
{
    return &own_of(kv)->heads;
}

const void *dq_cuda_heads_at(const dq_cuda_heads *h, const void *p)
{
    return h->device + ((const uint8_t *)p - h->host);
}

static bool heads_new(dq_backend *b, const dq_kv *kv)
{
    const dq_head_order *map = kv->map;
    const size_t numbers = 3 * ((size_t)map->n_groups + 1) + (size_t)map->n_kv + (size_t)map->n_q;
    const size_t bytes = (size_t)map->n_q * sizeof(dq_q_head) +
                         (size_t)map->n_out * sizeof(dq_o_head) + numbers * sizeof(int32_t);
    dq_cuda_heads *h = &own_of(kv)->heads;
    h->host = dq_block_new(1, bytes, &b->err);
    h->device = dq_cuda_alloc(b, bytes);
    if (!h->host || !h->device) return false;
    fill_heads(h, h->host, kv);
    dq_cuda_put(b, h->device, h->host, bytes);
    return b->err.code == DQ_OK;
}

static dq_kv_group_heads group_heads(const dq_kv *kv)
{
    const dq_cuda_heads *h = dq_cuda_heads_of(kv);
    const int n_groups = kv->map->n_groups;
    const int32_t *first = dq_cuda_heads_at(h, h->o_first + n_groups + 1);
    return (dq_kv_group_heads){first, first + n_groups + 1, n_groups, h->max_kv};
}

/* -------------------------------------------------------------------------------------- records */

static void changed(const dq_kv *kv, const dq_kv_list *list, int64_t index)
{
    own *o = own_of(kv);
    if (!list)
        o->epoch++;
    else if (list->own && index < o->run[list->own - 1].stale)
        o->run[list->own - 1].stale = index;
}

/* Its records stay for the next list that wants some. */
static void list_free(const dq_kv *kv, const dq_kv_list *list)
{
    own *o = own_of(kv);
    if (!list->own) return;
    run *r = &o->run[list->own - 1];
    r->stale = 0;
    r->next = o->free_run;
    o->free_run = list->own;
}

static bool table_reserve(dq_backend *b, const dq_kv *kv, int64_t n)
{
    own *o = own_of(kv);
    if (n <= o->capacity) return true;
    const int64_t capacity = n < 2 * o->capacity ? 2 * o->capacity : n;
    if (capacity >= INT32_MAX / DQ_PAGE_TOKENS) {
        dq_fail(&b->err, DQ_RESOURCE, "%lld pages of a KV cache on a GPU", (long long)capacity);
        return false;
    }
    const size_t row = DQ_PAGE_TOKENS * sizeof(float);
    dq_page *page = dq_cuda_alloc(b, (size_t)capacity * sizeof *page);
    float *dither =
        dq_kv_dithers(&kv->spec) ? dq_cuda_alloc(b, (size_t)(capacity + 1) * row) : NULL;
    if (dither) dq_cuda_put(b, dither, kv->dither, row);
    const cudaStream_t s = dq_cuda_stream(b);
    if (b->err.code == DQ_OK && o->used)
        dq_cuda_ok(b,
                   cudaMemcpyAsync(page, o->page, (size_t)o->used * sizeof *page,
                                   cudaMemcpyDeviceToDevice, s),
                   "records of pages");
    if (b->err.code == DQ_OK && o->used && dither)
        dq_cuda_ok(b,
                   cudaMemcpyAsync(dither + DQ_PAGE_TOKENS, o->dither + DQ_PAGE_TOKENS,
                                   (size_t)o->used * row, cudaMemcpyDeviceToDevice, s),
                   "dither of pages");
    if (b->err.code != DQ_OK) {
        dq_cuda_free(b, page);
        dq_cuda_free(b, dither);
        return false;
    }
    dq_cuda_free(b, o->page);
    dq_cuda_free(b, o->dither);
    o->page = page;
    o->dither = dither;
    o->capacity = capacity;
    return true;
}

/* The run of a list, with room for n records. NULL: the sticky error is set. */
static run *run_of(dq_backend *b, const dq_kv *kv, dq_kv_list *list, int64_t n)
{
    enum { LEAST = 8 };
    own *o = own_of(kv);
    if (!list->own && o->free_run) {
        list->own = o->free_run;
        o->free_run = o->run[list->own - 1].next;
    }
    if (!list->own) {
        run *more = dq_grow(NULL, o->run, o->n_runs + 1, &o->runs_capacity, sizeof *more, &b->err);
        if (!more) return NULL;
        o->run = more;
        o->run[o->n_runs++] = (run){0};
        list->own = (int32_t)o->n_runs;
    }
    run *r = &o->run[list->own - 1];
    if (n <= r->capacity) return r;
    int64_t capacity = LEAST;
    while (capacity < n + n / 8) capacity *= 2; /* a list that is full is written anew */
    if (!table_reserve(b, kv, o->used + capacity)) return NULL;
    *r = (run){.first = o->used, .capacity = capacity};
    o->used += capacity;
    return r;
}

/* Its own row, into the patches; false: the sticky error is set. */
static bool add_row(dq_backend *b, const dq_kv *kv, dq_kv_patch *patch, const dq_kv_page *p)
{
    own *o = own_of(kv);
    const int last = p->coded > p->due ? p->coded : p->due;
    const size_t n = (o->n_rows + 1) * DQ_PAGE_TOKENS;
    float *row = dq_grow(NULL, o->row, n, &o->row_capacity, sizeof *row, &b->err);
    if (!row) return false;
    o->row = row;
    row += o->n_rows * DQ_PAGE_TOKENS;
    for (int i = 0; i < DQ_PAGE_TOKENS; i++)
        row[i] = i < last ? kv->dither[p->pos[i] % DQ_PAGE_TOKENS] : 0;
    patch->row = (int32_t)o->n_rows++;
    patch->page.dither = patch->to + 1;
    return true;
}

bool dq_cuda_records_begin(dq_backend *b, const dq_kv *kv)
{
    own *o = own_of(kv);
    if (o->n_patches) o->epoch++; /* of an operation that failed */
    o->n_patches = o->n_rows = 0;
    return b->err.code == DQ_OK;
}

bool dq_cuda_records_of(dq_backend *b, const dq_kv *kv, dq_kv_list *list, int64_t *first)
{
    own *o = own_of(kv);
    const int64_t n = (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
    run *r = run_of(b, kv, list, n);
    if (!r) return false;
    const int64_t from = r->epoch == o->epoch ? r->stale : 0;
    *first = r->first;
    if (from >= n) return true;
    const size_t more = o->n_patches + (size_t)(n - from);
    dq_kv_patch *patch = dq_grow(NULL, o->patch, more, &o->patch_capacity, sizeof *patch, &b->err);
    if (!patch) return false;
    o->patch = patch;
    patch += o->n_patches;
    for (int64_t p = from; p < n; p++, patch++) {
        const dq_kv_page *page = list->page[p];
        *patch =
            (dq_kv_patch){.page = dq_cuda_page(kv, page), .to = (int32_t)(r->first + p), .row = -1};
        if (dithers(kv, page)) patch->page.dither = 0;
        if (dithers_own(kv, page) && !add_row(b, kv, patch, page)) return false;
    }
    o->n_patches = more;
    r->stale = n;
    r->epoch = o->epoch;
    return true;
}

const dq_page *dq_cuda_records(const dq_kv *kv)
{
    return own_of(kv)->page;
}

bool dq_cuda_records_send(dq_backend *b, const dq_kv *kv)
{
    own *o = own_of(kv);
    dq_kv_patches k = {.page = o->page, .dither = o->dither, .n = (int32_t)o->n_patches};
    if (o->n_patches == 0) return b->err.code == DQ_OK;
    k.patch = dq_cuda_upload(b, o->patch, o->n_patches * sizeof *o->patch);
    if (o->n_rows) k.row = dq_cuda_upload(b, o->row, o->n_rows * DQ_PAGE_TOKENS * sizeof *o->row);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_kv_launch_patch(k, dq_cuda_stream(b)), "records of pages");
    if (b->err.code == DQ_OK) o->n_patches = 0;
    return b->err.code == DQ_OK;
}

/* --------------------------------------------------------------------------------------- blocks */

static void block_copy(dq_backend *b, void *dst, const void *src, int64_t bytes)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(
        b, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToDevice, dq_cuda_stream(b)),
        "copy of a page");
}

static void reopen(dq_backend *b, const dq_kv *kv, dq_kv_page *p, int group, int side, int64_t n)
{
    dq_page_form form[2];
    if (b->err.code != DQ_OK) return;
    dq_cuda_forms(form, kv);
    dq_cuda_ok(b,
               dq_kv_launch_reopen(dq_cuda_page(kv, p), side, (int)n, form[side], kv->heads[group],
                                   dq_cuda_stream(b)),
               "a page that is opened again");
}

static void widen(dq_backend *b, float *to, const void *f16, int64_t n)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_kv_launch_widen(to, f16, n, dq_cuda_stream(b)), "scales of a page");
}

/* ---- views */

static int64_t pages_of(int64_t tokens)
{
    return (tokens + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static dq_operands operands_of(const dq_kv *kv)
{
    const dq_cuda_heads *h = dq_cuda_heads_of(kv);
    return dq_attend_operands(kv->map->head_dim, kv->map->n_slabs, h->max_kv, h->max_pairs,
                              h->head_keys);
}

/* Tokens that int8 operands have in pages of their own. */
static int64_t uncoded_of(const dq_kv *kv, const dq_kv_list *list, bool int8)
{
    return int8 ? dq_kv_visible(list, kv->spec.sink - 1) : 0;
}

/* Where tensor cores take such heads and the operands of all lists fit together. */
static bool keeps_views(const dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch,
                        dq_num reads)
{
    dq_attention_units u = {.n_maps = kv->map->n_maps, .n_slabs = kv->map->n_slabs};
    int64_t pages = 0;
    const bool int8 = dq_cuda_multiplies_codes(b, kv);
    dq_cuda_forms(u.form, kv);
    if (reads == DQ_NUM_F32 || dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, dq_cuda_of(b)->smem_optin))
        return false;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        for (int g = 0; n && g < kv->map->n_groups; g++) {
            const dq_kv_list *list = dq_kv_list_of(kv, batch->seq[i], layer, g);
            const int64_t coded = dq_kv_coded_index(kv, list, batch->pos[first]);
            pages += (kv->has_codes ? 2 : 1) * pages_of(list->count + n) - coded / DQ_PAGE_TOKENS;
            if (int8) pages += pages_of(least(kv->spec.sink, list->count + n));
        }
    }
    return (size_t)(pages * operands_of(kv).page_bytes) <= dq_cuda_of(b)->operand_bytes;
}

/* What the rows of a list's sequence will read of it. Nothing is unfolded yet of pages before
 * `end`. */
static dq_unfold_list view_of(const dq_kv *kv, const dq_kv_list *list, int64_t record, int group,
                              const int32_t *pos, int64_t n, bool int8, int64_t *pages)
{
    dq_unfold_list l = {.page = record, .group = group, .keys = (int32_t)list->count};
    l.end = (int32_t)((list->count - n) / DQ_PAGE_TOKENS);
    l.plain_from = (int32_t)least(dq_kv_coded_index(kv, list, pos[0]), list->count);
    l.coded_end = (int32_t)least(dq_kv_coded_index(kv, list, pos[n - 1]), list->count);
    const int64_t coded = pages_of(l.coded_end), plain = l.plain_from / DQ_PAGE_TOKENS;
    l.at[0] = (int32_t)*pages;
    l.at[1] = (int32_t)(*pages + coded - plain);
    l.uncoded = (int32_t)uncoded_of(kv, list, int8);
    l.at[2] = (int32_t)(l.at[1] + pages_of(list->count));
    *pages += coded + pages_of(list->count) - plain + pages_of(l.uncoded);
    return l;
}

/* Makes room for the operands of all lists with rows, which stay till another call wants theirs. */
static bool views_begin(dq_backend *b, const dq_kv *kv, const dq_kv_new_rows *rows)
{
    const dq_batch *batch = rows->batch;
    const int n_groups = kv->map->n_groups;
    views *v = &own_of(kv)->views;
    int64_t pages = 0, record;
    v->n_seq = 0;
    v->int8 = dq_cuda_multiplies_codes(b, kv);
    dq_cuda_of(b)->viewed = NULL;
    if (!rows->viewed) return true;
    dq_unfold_list *list = dq_grow(NULL, v->list, (size_t)(batch->n_seq * n_groups),
                                   &v->list_capacity, sizeof *list, &b->err);
    if (list) v->list = list;
    int32_t *seq =
        dq_grow(NULL, v->seq, (size_t)batch->n_seq, &v->seq_capacity, sizeof *seq, &b->err);
    if (seq) v->seq = seq;
    if (!list || !seq) return false;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        seq[i] = batch->seq[i];
        memset(list + i * n_groups, 0, (size_t)n_groups * sizeof *list);
        for (int g = 0; n && g < n_groups; g++) {
            dq_kv_list *from = dq_kv_list_of(kv, seq[i], rows->layer, g);
            if (!dq_cuda_records_of(b, kv, from, &record)) return false;
            list[i * n_groups + g] =
                view_of(kv, from, record, g, batch->pos + first, n, v->int8, &pages);
        }
    }
    if (!dq_cuda_scratch(b, DQ_CUDA_SCRATCH_OPERANDS, (size_t)(pages * operands_of(kv).page_bytes)))
        return false;
    v->layer = rows->layer;
    v->n_seq = batch->n_seq;
    dq_cuda_of(b)->viewed = kv;
    return true;
}

/* Whether it has what rows from pos[0] to pos[n-1] read. */
static bool view_serves(const dq_unfold_list *l, const dq_kv *kv, const dq_kv_list *list,
                        const int32_t *pos, int64_t n)
{
    return l->keys == list->count && l->plain_from <= dq_kv_coded_index(kv, list, pos[0]) &&
           l->coded_end >= dq_kv_coded_index(kv, list, pos[n - 1]);
}

dq_unfold_list *dq_cuda_views_of(dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch)
{
    const views *v = &own_of(kv)->views;
    if (dq_cuda_of(b)->viewed != kv || v->layer != layer || v->n_seq != batch->n_seq) return NULL;
    for (int i = 0; i < v->n_seq; i++) {
        const int64_t first = batch->cu_rows[i], n = batch->cu_rows[i + 1] - first;
        const int n_groups = kv->map->n_groups;
        if (v->seq[i] != batch->seq[i]) return NULL;
        for (int g = 0; n && g < n_groups; g++)
            if (!view_serves(&v->list[i * n_groups + g], kv, dq_kv_list_of(kv, v->seq[i], layer, g),
                             batch->pos + first, n))
                return NULL;
    }
    return v->list;
}

/* ---- filling */

/* Pages of one launch: their rows are written, codes and views made. */
typedef struct filling {
    const dq_kv *kv;
    const dq_kv_new_rows *rows; /* NULL: codes alone */
    dq_kv_fill_job *job;        /* [n] */
    dq_kv_page **page;          /* [n] */
    int64_t n;
    bool codes;
} filling;

/* Sequence of the batch that a list of the layer belongs to; -1: none. */
static int seq_of(const filling *f, const dq_kv_list *list, int group)
{
    const dq_batch *batch = f->rows ? f->rows->batch : NULL;
    for (int i = 0; batch && i < batch->n_seq; i++)
        if (dq_kv_list_of(f->kv, batch->seq[i], f->rows->layer, group) == list) return i;
    return -1;
}

/* Page `index` of a list whose records begin at `record`; i: its sequence in the batch, or -1. */
static void add_page(filling *f, const dq_kv_list *list, int64_t record, int i, int group,
                     int64_t index, int side)
{
    dq_kv_page *p = list->page[index];
    const int64_t at = index * DQ_PAGE_TOKENS;
    dq_kv_fill_job j = {.record = (int32_t)(record + index),
                        .group = group,
                        .side = side,
                        .at = {-1, -1, -1},
                        .from = p->coded,
                        .to = p->due};
    if (i >= 0) {
        const int64_t *cu = f->rows->batch->cu_rows + i, before = list->count - (cu[1] - cu[0]);
        const int64_t first = at < before ? before : at;
        const int64_t end = least(list->count, at + DQ_PAGE_TOKENS);
        if (first < end) {
            j.row = (int32_t)(cu[0] + first - before);
            j.first = (int16_t)(first - at);
            j.end = (int16_t)(end - at);
        }
        if (first < end && f->rows->viewed) {
            const dq_unfold_list *l = &own_of(f->kv)->views.list[i * f->kv->map->n_groups + group];
            if (at < l->coded_end) j.at[0] = l->at[0] + (int32_t)index;
            if (index >= l->plain_from / DQ_PAGE_TOKENS) j.at[1] = l->at[1] + (int32_t)index;
            if (at < l->uncoded) j.at[2] = l->at[2] + (int32_t)index;
            j.coded = (int16_t)dq_kv_slots(l->coded_end, index);
        }
    }
    f->codes = f->codes || j.from < j.to;
    f->page[f->n] = p;
    f->job[f->n++] = j;
}

/* Pages with rows, list by list, and those of jobs, which are in the same order, that have none. */
static bool add_pages(dq_backend *b, filling *f, const dq_kv_job *jobs, int64_t n)
{
    const dq_batch *batch = f->rows && !f->rows->written ? f->rows->batch : NULL;
    int64_t done = 0, record;
    for (int i = 0; batch && i < batch->n_seq; i++) {
        const int64_t rows = batch->cu_rows[i + 1] - batch->cu_rows[i];
        for (int g = 0; rows && g < f->kv->map->n_groups; g++) {
            dq_kv_list *list = dq_kv_list_of(f->kv, batch->seq[i], f->rows->layer, g);
            const int64_t tail = (list->count - rows) / DQ_PAGE_TOKENS;
            if (!dq_cuda_records_of(b, f->kv, list, &record)) return false;
            for (int64_t p = tail; p < pages_of(list->count); p++)
                add_page(f, list, record, i, g, p, -1);
            for (; done < n && jobs[done].list == list; done++)
                if (jobs[done].index < tail) add_page(f, list, record, -1, g, jobs[done].index, -1);
        }
    }
    for (; done < n; done++) {
        const dq_kv_job *j = &jobs[done];
        if (!dq_cuda_records_of(b, f->kv, j->list, &record)) return false;
        add_page(f, j->list, record, seq_of(f, j->list, j->group), j->group, j->index, j->side);
    }
    return true;
}

/* At most so many pages. */
static int64_t count_pages(const filling *f, int64_t n)
{
    const dq_batch *batch = f->rows && !f->rows->written ? f->rows->batch : NULL;
    for (int i = 0; batch && i < batch->n_seq; i++)
        n += f->kv->map->n_groups * (pages_of(batch->cu_rows[i + 1] - batch->cu_rows[i]) + 1);
    return n;
}

/* The host decides whether a page grows, and whether tokens are refused, so it waits for flags. */
static bool read_flags(dq_backend *b, const filling *f, const dq_kv_fill *k)
{
    float found = 0;
    if (!f->codes && !k->beyond) return true;
    if (!dq_cuda_wait(b, "kv_append")) return false;
    if (k->beyond && *k->beyond_flag) {
        dq_cuda_get(b, &found, k->beyond, sizeof found);
        dq_kv_refuse_range(b, f->kv->dense, f->rows->layer, found);
        return false;
    }
    for (int64_t i = 0; i < f->n; i++) {
        const int only = f->job[i].side;
        for (int side = DQ_K; side <= DQ_V; side++) {
            if (only < 0 || only == side)
                f->page[i]->arrays[side].overflow = k->overflow[2 * i + side] != 0;
        }
    }
    return true;
}

static bool launch_fill(dq_backend *b, const filling *f)
{
    const dq_kv *kv = f->kv;
    const uint32_t none = 0;
    dq_kv_fill k = {.heads = group_heads(kv)};
    const dq_kv_fill_job *jobs = dq_cuda_upload(b, f->job, (size_t)f->n * sizeof *jobs);
    k.overflow = dq_cuda_flags(b, 2 * (size_t)f->n + 1);
    if (f->rows) {
        k.k = f->rows->k.p;
        k.v = f->rows->v.p;
        k.row_cols = f->rows->k.cols;
    }
    if (f->rows && kv->dense != DQ_F32) {
        k.beyond = dq_cuda_upload(b, &none, sizeof none);
        k.beyond_flag = k.overflow + 2 * f->n;
    }
    dq_cuda_forms(k.u.form, kv);
    if (f->rows && f->rows->viewed) {
        const dq_cuda_heads *h = dq_cuda_heads_of(kv);
        k.u.o = operands_of(kv);
        k.u.o.int8 = own_of(kv)->views.int8;
        k.u.o.page = dq_cuda_of(b)->scratch[DQ_CUDA_SCRATCH_OPERANDS];
        k.u.o_head =
            (const dq_o_head *)(const void *)(h->device + (size_t)kv->map->n_q * sizeof(dq_q_head));
        k.u.o_first = dq_cuda_heads_at(h, h->o_first);
        k.u.n_slabs = kv->map->n_slabs;
        k.u.norm = kv->spec.rotate_v ? 1.0f / sqrtf((float)kv->map->head_dim) : 0;
        k.u.beyond = dq_cuda_range_flag(b);
    }
    if (!dq_cuda_records_send(b, kv)) return false;
    k.pages = dq_cuda_records(kv);
    return dq_cuda_ok(b, dq_kv_launch_fill(k, jobs, (int)f->n, dq_cuda_stream(b)), "kv_append") &&
           read_flags(b, f, &k);
}

static bool fill(dq_backend *b, const dq_kv *kv, const dq_kv_new_rows *rows, const dq_kv_job *jobs,
                 int64_t n)
{
    filling f = {.kv = kv, .rows = rows};
    const int64_t most = count_pages(&f, n);
    f.job = dq_block_raw((size_t)most + 1, sizeof *f.job, &b->err);
    f.page = dq_block_raw((size_t)most + 1, sizeof(dq_kv_page *), &b->err);
    bool ok = f.job && f.page && dq_cuda_records_begin(b, kv);
    if (!rows || !rows->written) ok = ok && views_begin(b, kv, rows ? rows : &(dq_kv_new_rows){0});
    ok = ok && add_pages(b, &f, jobs, n) && launch_fill(b, &f);
    if (!ok) dq_cuda_of(b)->viewed = NULL;
    dq_block_free(f.page);
    dq_block_free(f.job);
    dq_cuda_upload_end(b);
    return ok;
}

/* ---- moving */

static bool move(dq_backend *b, const dq_kv *kv, dq_kv_page *to, int group, const dq_kv_list *from,
                 const int32_t *kept, int64_t n)
{
    dq_page page[DQ_PAGE_TOKENS];
    int32_t source[DQ_PAGE_TOKENS], n_pages = 0;
    dq_page_form form[2];
    if (b->err.code != DQ_OK) return false;
    for (int64_t i = 0; i < n; i++) {
        const int32_t p = kept[i] / DQ_PAGE_TOKENS;
        if (i == 0 || p != kept[i - 1] / DQ_PAGE_TOKENS)
            page[n_pages++] = dq_cuda_page(kv, from->page[p]);
        source[i] = (n_pages - 1) * DQ_PAGE_TOKENS + kept[i] % DQ_PAGE_TOKENS;
    }
    dq_cuda_forms(form, kv);
    const dq_page *pages = dq_cuda_upload(b, page, (size_t)n_pages * sizeof *page);
    const int32_t *at = pages ? dq_cuda_upload(b, source, (size_t)n * sizeof *source) : NULL;
    const bool ok =
        at && dq_cuda_ok(b,
                         dq_kv_launch_move(dq_cuda_page(kv, to), to->coded, pages, at, (int)n, form,
                                           kv->heads[group], dq_cuda_stream(b)),
                         "kv_keep");
    dq_cuda_upload_end(b);
    return ok;
}

static const dq_kv_device device = {
    .blocks_new = dq_cuda_alloc_blocks,
    .block_free = dq_cuda_free,
    .block_copy = block_copy,
    .reopen = reopen,
    .fill = fill,
    .keeps_views = keeps_views,
    .widen = widen,
    .move = move,
    .changed = changed,
    .list_free = list_free,
};

/* ---- operations */

dq_kv *dq_cuda_kv_new(dq_backend *b, const dq_head_order *map, int n_layers, const dq_kv_spec *spec)
{
    dq_kv *kv = dq_kv_pages_new(b, map, n_layers, spec, &device);
    if (!kv) return NULL;
    const bool wide = kv->by_layer && kv->max_heads > DQ_PAGE_WIDTHS;
    kv->own = dq_block_new(1, sizeof(own), &b->err);
    dq_page_form form[2];
    dq_cuda_forms(form, kv);
    const size_t smem = dq_kv_fill_smem(form), has = dq_cuda_of(b)->smem_optin;
    if (smem > has)
        dq_fail_with(&b->err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CPU},
                     "heads of %d channels want %zu bytes of shared memory on the cuda backend, "
                     "and cuda:%d has %zu",
                     map->head_dim, smem, dq_cuda_of(b)->device, has);
    if (kv->own && !wide && smem <= has && heads_new(b, kv)) return kv;
    if (wide)
        dq_fail_with(&b->err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_CPU},
                     "the cuda backend has widths of the KV cache by layer for groups of at most "
                     "%d KV heads, and this model has %d",
                     DQ_PAGE_WIDTHS, kv->max_heads);
    dq_cuda_kv_free(b, kv);
    return NULL;
}

void dq_cuda_kv_free(dq_backend *b, dq_kv *kv)
{
    own *o = kv ? own_of(kv) : NULL;
    dq_kv_pages_free(b, kv);
    if (!o) return;
    if (dq_cuda_of(b)->viewed == kv) dq_cuda_of(b)->viewed = NULL;
    dq_block_free(o->views.list);
    dq_block_free(o->views.seq);
    dq_block_free(o->run);
    dq_block_free(o->patch);
    dq_block_free(o->row);
    dq_block_free(o->heads.host);
    dq_cuda_free(b, o->heads.device);
    dq_cuda_free(b, o->page);
    dq_cuda_free(b, o->dither);
    dq_block_free(o);
}
