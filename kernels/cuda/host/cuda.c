/* The batch is walked twice: once to count units, edges and records, once to fill arrays of that
 * size, which then go to the device together. Units are placed into launches greedily, in order: a
 * launch ends where the next unit's strips would not fit.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"

#include "engine/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CUDA units ---- */

enum { UNITS = 65535 }; /* a grid's third axis ends there */

/* ---- sizes */

typedef struct draft {
    const dq_attend_args *args;
    dq_cuda_units_request request;
    bool viewed;           /* by kv_append */
    bool multiplies_codes; /* operands are int8 */
    dq_attention_unit *unit;
    int32_t *visible, *hidden, *edge; /* hidden NULL: there is no window */
    int n_units;
    int64_t n_edges, n_visible;
    int64_t n_spans; /* rows before the sequence that spans count */
} draft;

static dq_kv_list *list_of(const dq_attend_args *args, int i, int g)
{
    return dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, g);
}

/* The last of rows first .. end-1 is as far from the first as there are rows: no position is
 * left out. */
static bool goes_on(const dq_batch *batch, int64_t first, int64_t end)
{
    return batch->pos[end - 1] - batch->pos[first] == end - 1 - first;
}

/* Rows of a sequence from `first` on whose positions share a tile. */
static int64_t tile_end(const dq_batch *batch, int64_t first, int64_t end)
{
    const int64_t whole = first + DQ_PAGE_TOKENS - batch->pos[first] % DQ_PAGE_TOKENS;
    if (whole <= end && goes_on(batch, first, whole)) return whole;
    int64_t n = first + 1;
    while (n < end && batch->pos[n] / DQ_PAGE_TOKENS == batch->pos[first] / DQ_PAGE_TOKENS) n++;
    return n;
}

/* Whether all rows of a sequence see one key more than the row before, which then stands in no
 * table. */
static bool sees_on(const draft *d, const dq_kv_list *list, int i)
{
    const int64_t first = d->args->batch->cu_rows[i], end = d->args->batch->cu_rows[i + 1];
    if (d->request.places || !goes_on(d->args->batch, first, end) || list->count == 0) return false;
    const int32_t from = dq_kv_pos(list, 0), to = dq_kv_pos(list, list->count - 1);
    return to - from == list->count - 1 && d->args->batch->pos[first] >= from &&
           d->args->batch->pos[end - 1] <= to;
}

static void count(draft *d)
{
    const dq_batch *batch = d->args->batch;
    const int n_groups = d->args->attn->map->n_groups;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t end = batch->cu_rows[i + 1];
        for (int64_t r = batch->cu_rows[i]; r < end; r = tile_end(batch, r, end))
            d->n_units += n_groups;
        for (int g = 0; end > batch->cu_rows[i] && g < n_groups; g++) {
            const dq_kv_list *list = list_of(d->args, i, g);
            d->n_edges += list->count; /* at most */
            if (!sees_on(d, list, i)) d->n_visible += end - batch->cu_rows[i];
        }
    }
}

static bool draft_new(dq_backend *b, draft *d, const dq_attend_args *args,
                      dq_cuda_units_request request)
{
    memset(d, 0, sizeof *d);
    d->args = args;
    d->request = request;
    d->multiplies_codes = request.operands && dq_cuda_multiplies_codes(b, args->kv);
    d->viewed = dq_cuda_views_of(b, args->kv, args->layer, args->batch) != NULL;
    count(d);
    d->unit = dq_block_new((size_t)d->n_units + 1, sizeof *d->unit, &b->err);
    d->visible = dq_block_new((size_t)d->n_visible + 1, sizeof *d->visible, &b->err);
    if (args->attn->window)
        d->hidden = dq_block_new((size_t)d->n_visible + 1, sizeof *d->hidden, &b->err);
    if (request.edges || request.places)
        d->edge = dq_block_new((size_t)d->n_edges + 1, sizeof *d->edge, &b->err);
    d->n_units = 0;
    d->n_edges = d->n_visible = 0;
    return b->err.code == DQ_OK && dq_cuda_records_begin(b, args->kv);
}

/* ---- content */

/* From which row of a unit on columns count, n: none. */
static int32_t first_counted(const draft *d, const dq_attention_unit *w)
{
    const dq_columns *c = d->args->columns;
    if (!c) return w->n;
    const int64_t end = d->args->batch->cu_rows[w->seq + 1];
    const int64_t first = c->last_rows ? end - c->last_rows - w->row : 0;
    return (int32_t)(first < 0 ? 0 : first > w->n ? w->n : first);
}

/* The same for spans, with the record of that row. */
static void place_spans(const draft *d, dq_attention_unit *w)
{
    const int64_t *cu_rows = d->args->batch->cu_rows;
    w->counted = w->n;
    if (!d->args->spans) return;
    const int64_t first = dq_attention_spans_first(d->args->spans, cu_rows, w->seq),
                  here = first - w->row;
    w->counted = (int32_t)(here < 0 ? 0 : here > w->n ? w->n : here);
    w->span = (int32_t)(d->n_spans + (here < 0 ? -here : 0));
}

bool dq_cuda_on_hopper(const dq_backend *b, int head_dim)
{
    return dq_attend_has_hopper && dq_cuda_of(b)->cc == 90 && head_dim <= DQ_HOPPER_DIM;
}

bool dq_cuda_multiplies_codes(const dq_backend *b, const dq_kv *kv)
{
    dq_page_form form[2];
    dq_cuda_forms(form, kv);
    return dq_cuda_on_hopper(b, form[0].dim) && kv->spec.num == DQ_NUM_INT8 &&
           dq_attend_takes_int8(&form[0]);
}

/* Tokens of pages that no row of the unit sees. */
static int32_t hidden_pages(const dq_attention_unit *w)
{
    return w->hidden[0] / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
}

static bool add_list(dq_backend *b, draft *d, int i, int g)
{
    const dq_batch *batch = d->args->batch;
    dq_kv_list *list = list_of(d->args, i, g);
    const int64_t end = batch->cu_rows[i + 1], edges = d->n_edges;
    const int window = d->args->attn->window;
    int64_t pages;
    if (!dq_cuda_records_of(b, d->args->kv, list, &pages)) return false;
    if (!d->viewed && dq_kv_lost(d->args->kv, list, batch->pos[batch->cu_rows[i]])) {
        dq_fail(&b->err, DQ_BUG, "what a row at position %d reads is held as codes only",
                (int)batch->pos[batch->cu_rows[i]]);
        return false;
    }
    /* Keys of one tile of positions are neighbours in the list, wherever kept tokens ended up. */
    for (int64_t k = 0; d->request.places && k < list->count; k++)
        d->edge[d->n_edges++] = dq_kv_pos(list, k);
    for (int64_t k = 0; d->request.edges && k < list->count; k++) {
        if (k + 1 == list->count ||
            dq_kv_pos(list, k + 1) / DQ_PAGE_TOKENS != dq_kv_pos(list, k) / DQ_PAGE_TOKENS)
            d->edge[d->n_edges++] = (int32_t)(k + 1);
    }
    const bool on = sees_on(d, list, i);
    const int64_t first = batch->cu_rows[i], table = d->n_visible - first;
    int64_t n = dq_kv_visible(list, batch->pos[first]);
    /* Positions of rows and tokens ascend, so this walks both once. */
    for (int64_t r = first; !on && r < end; r++) {
        while (n < list->count && dq_kv_pos(list, n) <= batch->pos[r]) n++;
        if (d->hidden) d->hidden[d->n_visible] = (int32_t)dq_kv_hidden(list, window, batch->pos[r]);
        d->visible[d->n_visible++] = (int32_t)n;
    }
    const int64_t sinks = dq_kv_visible(list, d->args->kv->spec.sink - 1);
    const dq_attention_unit shared = {.page = pages,
                                      .edge = edges,
                                      .n_edges = (int32_t)(d->n_edges - edges),
                                      .seq = i,
                                      .group = g,
                                      .few = end - first <= DQ_ATTEND_FEW,
                                      .uncoded = d->multiplies_codes ? (int32_t)sinks : 0,
                                      .sinks = (int32_t)dq_kv_visible(list, DQ_SINKS - 1)};
    for (int64_t r = batch->cu_rows[i]; r < end;) {
        const dq_kv_rows rows = {i, r, tile_end(batch, r, end) - r, batch->pos + r};
        dq_attention_unit *w = &d->unit[d->n_units++];
        dq_kv_span span[2];
        const int n_spans = dq_kv_spans(span, d->args->kv, list, &rows);
        const int64_t last = rows.first + rows.n - 1;
        *w = shared;
        w->row = (int32_t)rows.first;
        w->n = (int32_t)rows.n;
        w->split = (int32_t)span[0].n;
        w->coded[0] = (int32_t)span[0].coded_end;
        w->coded[1] = (int32_t)span[n_spans - 1].coded_end;
        w->visible = on ? first - rows.first - n - 1 : table + rows.first;
        w->keys = on ? (int32_t)(n + last - first) : d->visible[table + last];
        w->hidden[0] = (int32_t)dq_kv_hidden(list, window, batch->pos[r]);
        w->hidden[1] = (int32_t)dq_kv_hidden(list, window, batch->pos[last]);
        w->ld = (w->keys + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS - hidden_pages(w);
        d->unit[d->n_units - 1].first = first_counted(d, &d->unit[d->n_units - 1]);
        place_spans(d, &d->unit[d->n_units - 1]);
        r += rows.n;
    }
    return true;
}

/* ------------------------------------------------------------------------------------- launches */

bool dq_cuda_units_next(dq_cuda_units *u, dq_attention_units *launch, int *first)
{
    if (u->next >= u->n) return false;
    *first = u->next;
    *launch = u->dev;
    launch->unit += u->next;
    do {
        const dq_attention_unit *w = &u->unit[u->next++];
        if (w->n > launch->max_rows) launch->max_rows = w->n;
        const int32_t keys = w->keys - hidden_pages(w);
        if (keys > launch->max_keys) launch->max_keys = keys;
        if (w->n_edges > launch->max_edges) launch->max_edges = w->n_edges;
    } while (u->next < u->n && u->unit[u->next].record > 0);
    launch->n = u->next - *first;
    return true;
}

static void describe(dq_attention_units *u, const dq_attend_args *args)
{
    const dq_head_order *map = args->attn->map;
    const dq_cuda_heads *heads = dq_cuda_heads_of(args->kv);
    dq_cuda_forms(u->form, args->kv);
    u->n_groups = map->n_groups;
    u->n_q = map->n_q;
    u->n_out = map->n_out;
    u->n_slabs = map->n_slabs;
    u->n_maps = map->n_maps;
    u->max_q = heads->max_q;
    u->max_out = heads->max_out;
    u->q_head = (const dq_q_head *)(const void *)heads->device;
    u->o_head = (const dq_o_head *)(const void *)(u->q_head + map->n_q);
    u->q_first = dq_cuda_heads_at(heads, heads->q_first);
    u->o_first = dq_cuda_heads_at(heads, heads->o_first);
    u->pages = dq_cuda_records(args->kv);
    u->q = args->q.p;
    u->scale = map->scale;
    u->window = args->attn->window;
    u->lambda = args->attn->lambda_kind == DQ_LAMBDA_TOKEN ? args->lambda.p : NULL;
    u->lambda_layer = args->attn->lambda;
}

/* Bytes of the operands of the list that begins at unit k, unless they are there, and of the parts
 * of its rows. */
static size_t list_bytes(const dq_cuda_units *u, const dq_cuda_heads *heads, bool there, int k,
                         int *n_units)
{
    const dq_operands o = dq_attend_operands(u->dev.form[0].dim, u->dev.n_slabs, heads->max_kv,
                                             heads->max_pairs, heads->head_keys);
    const dq_attend_call call = {.u = u->dev, .o = o};
    const int64_t pages = dq_attend_list_pages(u->dev.form, u->unit + k, u->n - k, n_units);
    const int64_t rows = dq_attend_share_rows(u->unit + k, *n_units);
    return (there ? 0 : (size_t)(pages * o.page_bytes)) +
           (size_t)(rows * dq_attend_share_floats(&call)) * sizeof(float);
}

/* Where each unit's strips, sums and factors lie; a launch ends where they or the operands would
 * not fit. */
static void cut_launches(const dq_backend *b, dq_cuda_units *u, const dq_attend_args *args,
                         dq_cuda_units_request request, bool viewed)
{
    const dq_cuda *c = dq_cuda_of(b);
    const dq_cuda_heads *heads = dq_cuda_heads_of(args->kv);
    const int64_t capacity = (int64_t)(c->strip_bytes / sizeof(float));
    int64_t strips = 0, records = 0, factors = 0;
    size_t operands = 0;
    for (int k = 0, in_launch = 0, next_list = 0, units = 0; k < u->n; k++, in_launch++) {
        dq_attention_unit *w = &u->unit[k];
        const int q = heads->q_first[w->group + 1] - heads->q_first[w->group];
        const int o = heads->o_first[w->group + 1] - heads->o_first[w->group];
        const bool needs_strips = request.strips || (request.counted && w->counted < w->n);
        const int64_t floats = needs_strips ? (int64_t)q * w->n * w->ld : 0;
        size_t more = 0;
        if (request.operands && k == next_list) {
            more = list_bytes(u, heads, viewed, k, &units);
            next_list = k + units;
        }
        if (in_launch && (strips + floats > capacity || in_launch == UNITS ||
                          (more && operands + more > c->operand_bytes))) {
            strips = records = factors = in_launch = 0;
            operands = 0;
            /* what is left of a list is unfolded again */
            if (request.operands && !more) more = list_bytes(u, heads, viewed, k, &units);
        }
        w->strip = strips - hidden_pages(w);
        w->record = (int32_t)records;
        w->factor = (int32_t)factors;
        operands += more;
        strips += floats;
        records += (int64_t)q * w->n;
        factors += (int64_t)o * w->n;
        if (strips > u->max_strips) u->max_strips = strips;
        if (records > u->max_records) u->max_records = records;
        if (factors > u->max_factors) u->max_factors = factors;
    }
}

bool dq_cuda_units_begin(dq_backend *b, dq_cuda_units *u, const dq_attend_args *args,
                         dq_cuda_units_request request)
{
    draft d;
    memset(u, 0, sizeof *u);
    if (b->err.code != DQ_OK) return false;
    for (int i = 0; i < args->batch->n_seq; i++) {
        if (!dq_kv_pages_known(b, args->kv, args->batch->seq[i])) return false;
    }
    if (draft_new(b, &d, args, request)) {
        for (int i = 0; i < args->batch->n_seq; i++) {
            const bool rows = args->batch->cu_rows[i + 1] > args->batch->cu_rows[i];
            for (int g = 0; rows && g < args->attn->map->n_groups; g++)
                if (!add_list(b, &d, i, g)) break;
            if (args->spans)
                d.n_spans += args->batch->cu_rows[i + 1] -
                             dq_attention_spans_first(args->spans, args->batch->cu_rows, i);
        }
        describe(&u->dev, args);
        u->unit = d.unit;
        u->n = d.n_units;
        cut_launches(b, u, args, request, d.viewed);
        const dq_batch *batch = d.args->batch;
        u->dev.unit = dq_cuda_upload(b, d.unit, (size_t)u->n * sizeof *d.unit);
        u->dev.visible = dq_cuda_upload(b, d.visible, (size_t)d.n_visible * sizeof *d.visible);
        if (d.hidden)
            u->dev.hidden = dq_cuda_upload(b, d.hidden, (size_t)d.n_visible * sizeof *d.hidden);
        if (d.edge) u->dev.edge = dq_cuda_upload(b, d.edge, (size_t)d.n_edges * sizeof *d.edge);
        if (d.request.places)
            u->pos = dq_cuda_upload(b, batch->pos, (size_t)batch->n_rows * sizeof *batch->pos);
        if (b->err.code == DQ_OK) dq_cuda_records_send(b, args->kv);
    } else {
        dq_block_free(d.unit);
    }
    dq_block_free(d.visible);
    dq_block_free(d.hidden);
    dq_block_free(d.edge);
    if (b->err.code != DQ_OK) dq_cuda_units_end(b, u);
    return b->err.code == DQ_OK;
}

void dq_cuda_units_end(dq_backend *b, dq_cuda_units *u)
{
    dq_block_free(u->unit);
    u->unit = NULL;
    dq_cuda_upload_end(b);
}

bool dq_cuda_units_scratch(dq_backend *b, dq_cuda_units *u, size_t after, void **more)
{
    const size_t strips = ((size_t)u->max_strips * sizeof(float) + 255) / 256 * 256;
    const size_t sums = (size_t)u->max_records * sizeof(double);
    uint8_t *a = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, strips + after);
    double *sum =
        dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, sums + 3 * (size_t)u->max_factors * sizeof(float));
    if (!a || !sum) return false;
    u->dev.strip = (float *)(void *)a;
    u->dev.sum = sum;
    u->dev.factor = (float *)(void *)((uint8_t *)sum + sums);
    if (more) *more = a + strips;
    return true;
}

/* ---- CUDA memory ----
 * Device memory of the CUDA backend: a pool of blocks and the named scratch buffers.
 *
 * All work of a backend is in one stream, so a block may be given out again as soon as it is
 * freed: whatever uses it next is launched after what used it before. Taking memory from the
 * driver costs a hundred times more than that and may stop the device, so blocks come from it in
 * chunks of one size, each as large as all chunks of that size before it and at most CHUNK_BYTES,
 * and go back only at the end, or when an allocation would fail otherwise. A block that is in use
 * keeps its chunk, whose other blocks serve what is of that size next. The chunks with a free
 * block stand in a list for each class of sizes, and all in the order of their addresses, which
 * finds the block that is freed.
 *
 * DQ_CUDA_POOL=exact of the environment is for compute-sanitizer and the like, which cannot see an
 * access to what a pool holds: every request is a block of exactly its size from the driver, and
 * goes back as soon as it is freed; both look at all blocks. Red zones are the tool's own
 * (compute-sanitizer --padding 256; guard pages of the simulation). */

enum { ALIGN = 256, CLASSES = 8 * 64, CHUNK_BYTES = 2 << 20 };

static const uint32_t in_use = UINT32_MAX;

/* Blocks of one size that came from the driver together. */
typedef struct chunk {
    uint8_t *p;
    size_t bytes, class; /* of a block */
    uint32_t n, used;    /* blocks; those in use */
    uint32_t cut;        /* blocks from there on have never been given out */
    uint32_t free;       /* first free one before: an index plus one, 0: none */
    struct chunk *next;  /* of its class that has a free block */
    uint32_t link[];     /* [n] the free block after a free one likewise, or in_use */
} chunk;

struct dq_cuda_pool {
    chunk **chunk; /* [n] by address */
    size_t n, capacity;
    chunk *last;                 /* that was asked for by address; NULL: none */
    chunk *open[CLASSES];        /* first chunk of each class that has a free block */
    size_t chunk_bytes[CLASSES]; /* of all chunks of each class */
    size_t idle_bytes;           /* of chunks without a block in use */
    bool exact;
};

static dq_cuda_pool *pool_new(dq_err *err)
{
    const char *kind = getenv("DQ_CUDA_POOL");
    const bool exact = kind && strcmp(kind, "exact") == 0;
    if (kind && *kind && !exact) {
        dq_fail(err, DQ_USAGE,
                "environment variable DQ_CUDA_POOL: unknown value %.40s (expected exact)", kind);
        return NULL;
    }
    dq_cuda_pool *pool = dq_block_new(1, sizeof *pool, err);
    if (pool) pool->exact = exact;
    return pool;
}

/* *bytes becomes that of a class, unless it is to stay exact: eight classes from one power of two
 * to the next. */
static size_t class_of(size_t *bytes, bool exact)
{
    size_t power = 0;
    while (*bytes >> power >= ALIGN * 16) power++;
    const size_t step = (size_t)ALIGN << power, whole = *bytes / ALIGN >> power;
    const size_t steps = whole + (*bytes > whole * step);
    if (!exact) *bytes = steps * step < *bytes ? whole * step : steps * step; /* or none has it */
    return 8 * power + steps;
}

/* How many chunks begin at p or below. */
static size_t chunks_below(const dq_cuda_pool *pool, const uint8_t *p)
{
    size_t low = 0, high = pool->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)pool->chunk[middle]->p <= (uintptr_t)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The chunk with a block in use at p, its index in *at; NULL: none. */
static chunk *chunk_of(dq_cuda_pool *pool, const uint8_t *p, size_t *at)
{
    const chunk *last = pool->last;
    if (!last || (uintptr_t)p - (uintptr_t)last->p >= last->n * last->bytes) {
        const size_t below = chunks_below(pool, p);
        if (below == 0) return NULL;
        pool->last = pool->chunk[below - 1];
    }
    chunk *k = pool->last;
    const size_t offset = (uintptr_t)p - (uintptr_t)k->p;
    *at = offset / k->bytes;
    return *at < k->n && offset % k->bytes == 0 && k->link[*at] == in_use ? k : NULL;
}

static void open_chunk(dq_cuda_pool *pool, chunk *k)
{
    k->next = pool->open[k->class];
    pool->open[k->class] = k;
}

/* A block of the first open chunk of a class. */
static void *take_block(dq_cuda_pool *pool, size_t class)
{
    chunk *k = pool->open[class];
    const uint32_t at = k->free ? k->free - 1 : k->cut++;
    if (k->free) k->free = k->link[at];
    k->link[at] = in_use;
    if (k->used++ == 0) pool->idle_bytes -= k->n * k->bytes;
    if (k->used == k->n) pool->open[class] = k->next;
    return k->p + at * k->bytes;
}

/* Chunks without a block in use. */
static void give_back_free(dq_cuda *c)
{
    dq_cuda_pool *pool = c->pool;
    size_t kept = 0;
    cudaStreamSynchronize(c->stream);
    memset(pool->open, 0, sizeof pool->open);
    pool->last = NULL;
    for (size_t i = 0; i < pool->n; i++) {
        chunk *k = pool->chunk[i];
        if (k->used == 0) {
            pool->idle_bytes -= k->n * k->bytes;
            pool->chunk_bytes[k->class] -= k->n * k->bytes;
            cudaFree(k->p);
            dq_block_free(k);
            continue;
        }
        pool->chunk[kept++] = k;
        if (k->used < k->n) open_chunk(pool, k);
    }
    pool->n = kept;
}

/* Opens one of n blocks. DQ_RESOURCE without a message: the driver has no memory for it. */
static dq_status chunk_new(dq_backend *b, size_t bytes, size_t class, size_t n)
{
    dq_cuda_pool *pool = dq_cuda_of(b)->pool;
    chunk **list =
        dq_grow(NULL, pool->chunk, pool->n + 1, &pool->capacity, sizeof(chunk *), &b->err);
    if (!list) return b->err.code;
    pool->chunk = list;
    chunk *k = dq_block_new(1, sizeof *k + n * sizeof *k->link, &b->err);
    if (!k) return b->err.code;
    void *p = NULL;
    const cudaError_t e = cudaMalloc(&p, n * bytes);
    if (e != cudaSuccess) {
        dq_block_free(k);
        if (e != cudaErrorMemoryAllocation) dq_cuda_ok(b, e, "cudaMalloc");
        cudaGetLastError(); /* or the next launch would seem to have failed */
        return DQ_RESOURCE;
    }
    *k = (chunk){.p = p, .bytes = bytes, .class = class, .n = (uint32_t)n};
    const size_t at = chunks_below(pool, p);
    memmove(list + at + 1, list + at, (pool->n++ - at) * sizeof *list);
    list[at] = k;
    open_chunk(pool, k);
    pool->idle_bytes += n * bytes;
    pool->chunk_bytes[class] += n * bytes;
    return DQ_OK;
}

void dq_cuda_no_memory(dq_backend *b, size_t bytes, const char *what)
{
    const double mib = 1024.0 * 1024.0;
    size_t free_bytes = 0, total = dq_cuda_of(b)->total_bytes;
    char needed[64];
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) free_bytes = 0;
    if (bytes)
        snprintf(needed, sizeof needed, "%.2f MiB needed", (double)bytes / mib);
    else
        snprintf(needed, sizeof needed, "in %.50s", what);
    dq_fail_with(&b->err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                 "cuda:%d: out of memory (%s, %.2f MiB of %.2f MiB free)", dq_cuda_of(b)->device,
                 needed, (double)free_bytes / mib, (double)total / mib);
}

static size_t cuda_memory(const dq_backend *b)
{
    const dq_cuda *c = dq_cuda_of(b);
    size_t bytes = 0, total = 0;
    if (cudaMemGetInfo(&bytes, &total) != cudaSuccess) bytes = 0;
    bytes += c->pool->idle_bytes;
    /* strips and operands are the largest scratch; what it has already is not free */
    const size_t had = c->scratch_bytes[DQ_CUDA_SCRATCH_A] +
                       c->scratch_bytes[DQ_CUDA_SCRATCH_OPERANDS] +
                       c->scratch_bytes[DQ_CUDA_SCRATCH_SHARES];
    const size_t most = c->strip_bytes + c->operand_bytes, own = had < most ? most - had : 0;
    return bytes > own ? bytes - own : 0;
}

/* Operands of a list in both views, beyond those that cuda_memory counts. */
static double cuda_attend_bytes(const dq_backend *b, const dq_kv *kv, int64_t tokens)
{
    const dq_cuda_heads *h = dq_cuda_heads_of(kv);
    const dq_operands o = dq_attend_operands(kv->map->head_dim, kv->map->n_slabs, h->max_kv,
                                             h->max_pairs, h->head_keys);
    const int64_t pages = 2 * ((tokens + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS);
    const double bytes = (double)(pages * o.page_bytes),
                 counted = (double)dq_cuda_of(b)->operand_bytes;
    return kv->spec.num == DQ_NUM_F32 || bytes < counted ? 0 : bytes - counted;
}

/* A class with an open chunk of blocks of so many bytes, or, where they are large, of twice as many
 * at most; CLASSES: sticky error. */
static size_t open_class(dq_backend *b, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_pool *pool = c->pool;
    if (b->err.code != DQ_OK) return CLASSES;
    bytes = bytes ? bytes : 1;
    const size_t class = class_of(&bytes, pool->exact);
    const bool large = pool->exact || bytes > CHUNK_BYTES / 2;
    for (size_t i = class; i <= (large ? class + 8 : class) && i < CLASSES; i++)
        if (pool->open[i]) return i;
    size_t n = 1;
    while (!large && 2 * n * bytes <= CHUNK_BYTES && n * bytes < pool->chunk_bytes[class]) n *= 2;
    if (chunk_new(b, bytes, class, n) != DQ_OK && b->err.code == DQ_OK) {
        give_back_free(c);
        if (chunk_new(b, bytes, class, 1) != DQ_OK && b->err.code == DQ_OK)
            dq_cuda_no_memory(b, bytes, NULL);
    }
    return b->err.code == DQ_OK ? class : CLASSES;
}

void *dq_cuda_alloc(dq_backend *b, size_t bytes)
{
    const size_t class = open_class(b, bytes);
    return class < CLASSES ? take_block(dq_cuda_of(b)->pool, class) : NULL;
}

bool dq_cuda_alloc_blocks(dq_backend *b, void **p, int64_t n, int64_t bytes)
{
    dq_cuda_pool *pool = dq_cuda_of(b)->pool;
    size_t class = CLASSES;
    for (int64_t i = 0; i < n; i++) {
        if (class == CLASSES || !pool->open[class]) class = open_class(b, (size_t)bytes);
        if (class < CLASSES) {
            p[i] = take_block(pool, class);
            continue;
        }
        while (i > 0) {
            dq_cuda_free(b, p[--i]);
            p[i] = NULL;
        }
        return false;
    }
    return true;
}

void dq_cuda_free(dq_backend *b, void *p)
{
    dq_cuda_pool *pool = dq_cuda_of(b)->pool;
    size_t at;
    if (!p) return;
    chunk *k = chunk_of(pool, p, &at);
    if (!k) {
        dq_fail(&b->err, DQ_BUG, "memory is freed that the CUDA backend did not give out");
        return;
    }
    k->link[at] = k->free;
    k->free = (uint32_t)at + 1;
    if (k->used-- == k->n) open_chunk(pool, k);
    if (k->used == 0) pool->idle_bytes += k->n * k->bytes;
    if (pool->exact) give_back_free(dq_cuda_of(b));
}

void *dq_cuda_scratch(dq_backend *b, int slot, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    if (b->err.code != DQ_OK) return NULL;
    const size_t has = c->scratch_bytes[slot];
    if (c->scratch[slot] && (c->pool->exact ? bytes == has : bytes <= has)) return c->scratch[slot];
    dq_cuda_free(b, c->scratch[slot]);
    c->scratch[slot] = dq_cuda_alloc(b, bytes);
    c->scratch_bytes[slot] = c->scratch[slot] ? bytes : 0;
    return c->scratch[slot];
}

/* ---- CUDA transfer ----
 * Copies between host and device. What goes up passes a ring of pinned blocks, so that the
 * caller's memory is free when a call returns and the device need not wait; what comes down waits
 * in pinned memory until the backend is synchronized. What an operation uploads stays for it in a
 * second ring whose blocks have twins on the device: a copy into a twin waits in the stream for the
 * kernels that read it before. */

enum { MAX_RING_BYTES = 8 << 20, RING = 2, AREA_BYTES = 1 << 20, ALIGN_UPLOAD = 64 };

typedef struct ring_block {
    uint8_t *p;        /* pinned, NULL until first used */
    uint8_t *twin;     /* device memory of the same size; of uploads */
    cudaEvent_t empty; /* after the last copy out of it */
    bool busy;
} ring_block;

typedef struct ring {
    ring_block block[RING];
    int current;
    size_t used; /* of the current block */
} ring;

/* Of a block: a small device has small ones. */
static size_t ring_bytes(const dq_backend *b)
{
    const size_t share = dq_cuda_of(b)->total_bytes / 64 / 4096 * 4096;
    return share > MAX_RING_BYTES ? MAX_RING_BYTES : share > 65536 ? share : 65536;
}

typedef struct area {
    uint8_t *p; /* pinned */
    size_t bytes, used;
} area;

typedef struct result {
    dq_cuda_take *take;
    void *arg;
    const void *data;
    size_t bytes;
} result;

typedef struct list {
    void *item;
    size_t n, capacity;
} list;

typedef struct constant {
    const void *key; /* on the host */
    size_t bytes;
    void *copy, *device;
} constant;

struct dq_cuda_transfer {
    ring put, upload;
    size_t sent; /* of the current block of uploads: copied to its twin */
    int entered; /* blocks of uploads since the operation began */
    list own;    /* void *: device memory to free at dq_cuda_upload_end */
    dq_address_list constant;
    int32_t *flag; /* pinned */
    size_t n_flags;
    int32_t *range; /* see dq_cuda_range_flag */
    list area, result;
    list note; /* void *: host memory */
};

/* Capacity for one more; NULL with the sticky error set. */
static void *push(dq_backend *b, list *l, size_t size)
{
    void *item = dq_grow(NULL, l->item, l->n + 1, &l->capacity, size, &b->err);
    if (!item) return NULL;
    l->item = item;
    return (uint8_t *)l->item + size * l->n++;
}

static void forget_results(dq_cuda_transfer *t)
{
    area *a = t->area.item;
    void **note = t->note.item;
    for (size_t i = 0; i < t->area.n; i++) a[i].used = 0;
    for (size_t i = 0; i < t->note.n; i++) dq_block_free(note[i]);
    t->result.n = t->note.n = 0;
}

static void *pinned(dq_backend *b, size_t bytes)
{
    void *p = NULL;
    const cudaError_t e = cudaMallocHost(&p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        dq_fail(&b->err, DQ_RESOURCE, "out of memory (%zu bytes of pinned host memory)", bytes);
        return NULL;
    }
    return dq_cuda_ok(b, e, "cudaMallocHost") ? p : NULL;
}

/* ------------------------------------------------------------------------------------------- up */
/* On to the next block. */
static bool ring_turn(dq_backend *b, ring *r)
{
    ring_block *k = &r->block[r->current];
    if (!dq_cuda_ok(b, cudaEventRecord(k->empty, dq_cuda_of(b)->stream), "cudaEventRecord"))
        return false;
    k->busy = true;
    r->current = (r->current + 1) % RING;
    r->used = 0;
    return true;
}

/* The current block, with `bytes` left in it. */
static ring_block *ring_reserve(dq_backend *b, ring *r, size_t bytes)
{
    if (ring_bytes(b) - r->used < bytes && !ring_turn(b, r)) return NULL;
    ring_block *k = &r->block[r->current];
    if (!k->p) {
        if (!k->empty && !dq_cuda_ok(b, cudaEventCreateWithFlags(&k->empty, cudaEventDisableTiming),
                                     "cudaEventCreate"))
            return NULL;
        k->p = pinned(b, ring_bytes(b));
        if (!k->p) return NULL;
    }
    if (k->busy) {
        if (!dq_cuda_ok(b, cudaEventSynchronize(k->empty), "cudaEventSynchronize")) return NULL;
        k->busy = false;
    }
    return k;
}

void dq_cuda_put(dq_backend *b, void *dst, const void *host, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    ring *r = &c->transfer->put;
    uint8_t *to = dst;
    const uint8_t *from = host;
    if (b->err.code != DQ_OK) return;
    while (bytes > 0) {
        const ring_block *k = ring_reserve(b, r, 1);
        if (!k) return;
        const size_t left = ring_bytes(b) - r->used, n = bytes < left ? bytes : left;
        memcpy(k->p + r->used, from, n);
        if (!dq_cuda_ok(b,
                        cudaMemcpyAsync(to, k->p + r->used, n, cudaMemcpyHostToDevice, c->stream),
                        "copy to the device"))
            return;
        /* in steps of 64 bytes: what is read by the device and what is written next share no
         * line */
        r->used = n == left ? ring_bytes(b) : (r->used + n + 63) / 64 * 64;
        to += n;
        from += n;
        bytes -= n;
    }
}

/* Sends what the current block of uploads has and its twin has not. */
static void send_uploads(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    const ring_block *k = &t->upload.block[t->upload.current];
    const size_t from = t->sent, bytes = t->upload.used - from;
    if (bytes == 0) return;
    t->sent = t->upload.used;
    if (b->err.code == DQ_OK)
        dq_cuda_ok(
            b,
            cudaMemcpyAsync(k->twin + from, k->p + from, bytes, cudaMemcpyHostToDevice, c->stream),
            "copy to the device");
}

cudaStream_t dq_cuda_stream(dq_backend *b)
{
    send_uploads(b);
    return dq_cuda_of(b)->stream;
}

/* Memory of its own: for what is large, and for tools that watch every block. */
static void *upload_own(dq_backend *b, const void *host, size_t bytes)
{
    void *p = dq_cuda_alloc(b, bytes);
    if (!p) return NULL;
    void **slot = push(b, &dq_cuda_of(b)->transfer->own, sizeof *slot);
    if (!slot) {
        dq_cuda_free(b, p);
        return NULL;
    }
    *slot = p;
    dq_cuda_put(b, p, host, bytes);
    return b->err.code == DQ_OK ? p : NULL;
}

void *dq_cuda_upload(dq_backend *b, const void *host, size_t bytes)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    ring *r = &t->upload;
    if (b->err.code != DQ_OK) return NULL;
    const bool fits = ring_bytes(b) - r->used >= bytes;
    if (dq_cuda_of(b)->pool->exact || bytes > ring_bytes(b) || (!fits && t->entered == RING - 1))
        return upload_own(b, host, bytes);
    if (!fits) {
        send_uploads(b);
        t->sent = 0;
        t->entered++;
    }
    ring_block *k = ring_reserve(b, r, bytes);
    if (!k) return NULL;
    if (!k->twin) k->twin = dq_cuda_alloc(b, ring_bytes(b));
    if (!k->twin) return NULL;
    const size_t at = r->used;
    if (bytes) memcpy(k->p + at, host, bytes);
    r->used = (at + bytes + ALIGN_UPLOAD - 1) / ALIGN_UPLOAD * ALIGN_UPLOAD;
    return k->twin + at;
}

void dq_cuda_upload_end(dq_backend *b)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    void **p = t->own.item;
    for (size_t i = 0; i < t->own.n; i++) dq_cuda_free(b, p[i]);
    t->own.n = 0;
    t->entered = 0;
    /* The next operation finds half a block at least, or its uploads would be more than one
     * copy. */
    if (t->upload.used > ring_bytes(b) / 2 && t->sent == t->upload.used && b->err.code == DQ_OK &&
        ring_turn(b, &t->upload))
        t->sent = 0;
}

const void *dq_cuda_constant(dq_backend *b, const void *host, size_t bytes)
{
    dq_address_list *all = &dq_cuda_of(b)->transfer->constant;
    if (b->err.code != DQ_OK) return NULL;
    constant *k = dq_address_list_find(all, host);
    if (k && k->bytes == bytes && memcmp(k->copy, host, bytes) == 0) return k->device;
    if (k && k->bytes != bytes) { /* another array where one was */
        dq_block_free(k->copy);
        dq_cuda_free(b, k->device);
        dq_address_list_remove(all, k);
        k = NULL;
    }
    if (!k) {
        if (!dq_address_list_reserve(all, &b->err)) return NULL;
        const constant made = {host, bytes, dq_block_new(bytes, 1, &b->err),
                               dq_cuda_alloc(b, bytes)};
        if (b->err.code != DQ_OK) {
            dq_block_free(made.copy);
            dq_cuda_free(b, made.device);
            return NULL;
        }
        dq_address_list_add(all, &made);
        k = dq_address_list_find(all, host);
    }
    dq_cuda_put(b, k->device, host, bytes);
    if (b->err.code != DQ_OK) { /* what the device has then, nobody knows */
        dq_block_free(k->copy);
        dq_cuda_free(b, k->device);
        dq_address_list_remove(all, k);
        return NULL;
    }
    memcpy(k->copy, host, bytes);
    return k->device;
}

int32_t *dq_cuda_flags(dq_backend *b, size_t n)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    if (b->err.code != DQ_OK) return NULL;
    if (n > t->n_flags) {
        if (t->flag) cudaFreeHost(t->flag);
        t->n_flags = 0;
        t->flag = pinned(b, n * sizeof *t->flag);
        if (!t->flag) return NULL;
        t->n_flags = n;
    }
    memset(t->flag, 0, n * sizeof *t->flag);
    return t->flag;
}

int32_t *dq_cuda_range_flag(dq_backend *b)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    if (b->err.code != DQ_OK) return NULL;
    if (!t->range) {
        t->range = pinned(b, sizeof *t->range);
        if (t->range) *t->range = 0;
    }
    return t->range;
}

bool dq_cuda_wait(dq_backend *b, const char *what)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    const bool ok = dq_cuda_ok(b, cudaStreamSynchronize(dq_cuda_stream(b)), what);
    const bool beyond = t->range && *t->range;
    if (beyond) *t->range = 0; /* after another error, too, or a later call would seem to have it */
    if (!ok || !beyond) return ok;
    dq_fail_with(&b->err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_F32_OR_CPU},
                 "a query, key or value is beyond 65504, where f16 ends: math bf16 and int8 attend "
                 "in f16 on the cuda backend");
    return false;
}

/* ---- down */
static void *area_take(dq_backend *b, size_t bytes)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    area *a = t->area.item;
    const size_t whole = (bytes + 63) / 64 * 64;
    for (size_t i = 0; i < t->area.n; i++) {
        if (a[i].bytes - a[i].used < whole) continue;
        a[i].used += whole;
        return a[i].p + a[i].used - whole;
    }
    const area fresh = {.bytes = whole > AREA_BYTES ? whole : AREA_BYTES, .used = whole};
    area *more = push(b, &t->area, sizeof *more);
    if (!more) return NULL;
    *more = fresh;
    more->p = pinned(b, fresh.bytes);
    if (!more->p) t->area.n--;
    return more->p;
}

/* Waits; then what was downloaded is given to the caller, or forgotten after an error. */
static void finish_uploads(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    dq_cuda_wait(b, "a kernel");
    const result *r = t->result.item;
    for (size_t i = 0; i < t->result.n && b->err.code == DQ_OK; i++) {
        if (r[i].take)
            r[i].take(r[i].arg, r[i].data, r[i].bytes);
        else
            memcpy(r[i].arg, r[i].data, r[i].bytes);
    }
    forget_results(t);
}

void dq_cuda_download(dq_backend *b, const void *src, size_t bytes, dq_cuda_take *take, void *arg)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    if (b->err.code != DQ_OK) return;
    void *data = area_take(b, bytes);
    result *r = data ? push(b, &t->result, sizeof *r) : NULL;
    if (!r) return;
    *r = (result){.take = take, .arg = arg, .data = data, .bytes = bytes};
    if (bytes)
        dq_cuda_ok(b, cudaMemcpyAsync(data, src, bytes, cudaMemcpyDeviceToHost, dq_cuda_stream(b)),
                   "copy from the device");
}

void *dq_cuda_note(dq_backend *b, size_t bytes)
{
    if (b->err.code != DQ_OK) return NULL;
    void **slot = push(b, &dq_cuda_of(b)->transfer->note, sizeof *slot);
    if (!slot) return NULL;
    *slot = dq_block_new(1, bytes ? bytes : 1, &b->err);
    return *slot;
}

void dq_cuda_get(dq_backend *b, void *host, const void *src, size_t bytes)
{
    if (b->err.code != DQ_OK) return;
    if (bytes)
        dq_cuda_ok(b, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, dq_cuda_stream(b)),
                   "copy from the device");
    finish_uploads(b);
}

/* ---- CUDA ----
 * The CUDA backend's table, opening and closing, and its error texts. */

enum { OLDEST = 80 }; /* compute capability of the oldest device that the kernels are built for */

/* Strips of a launch: every multiprocessor is busy, and small launches stay in the cache. */
enum { SHARE = 64, MAX_STRIPS = 256 << 20, MAX_OPERANDS = 1 << 30 };

bool dq_cuda_ok(dq_backend *b, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return b->err.code == DQ_OK;
    if (e == cudaErrorMemoryAllocation)
        dq_cuda_no_memory(b, 0, what);
    else
        dq_fail(&b->err, DQ_BUG, "cuda:%d: %s failed: %s (%s)", dq_cuda_of(b)->device, what,
                cudaGetErrorString(e), cudaGetErrorName(e));
    return false;
}

static void cuda_sync(dq_backend *b)
{
    finish_uploads(b);
    dq_cuda_upload_end(b); /* what an operation that failed half-way left */
}

static void cuda_close(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    if (!c) return;
    if (c->stream) cudaStreamSynchronize(c->stream);
    dq_cuda_blas_free(c->blas);
    dq_cuda_weights_free(c->weights);
    dq_cuda_transfer *t = c->transfer;
    if (t) {
        ring *const rings[] = {&t->put, &t->upload};
        for (int i = 0; i < 2 * RING; i++) {
            const ring_block *k = &rings[i / RING]->block[i % RING];
            if (k->p) cudaFreeHost(k->p);
            if (k->empty) cudaEventDestroy(k->empty);
        }
        constant *k = t->constant.item;
        for (size_t i = 0; i < t->constant.n; i++) dq_block_free(k[i].copy);
        dq_address_list_free(&t->constant);
        if (t->range) cudaFreeHost(t->range);
        if (t->flag) cudaFreeHost(t->flag);
        forget_results(t);
        area *a = t->area.item;
        for (size_t i = 0; i < t->area.n; i++) cudaFreeHost(a[i].p);
        dq_block_free(t->own.item);
        dq_block_free(t->area.item);
        dq_block_free(t->result.item);
        dq_block_free(t->note.item);
        dq_block_free(t);
    }
    dq_cuda_pool *pool = c->pool;
    if (pool) {
        for (size_t i = 0; i < pool->n; i++) {
            cudaFree(pool->chunk[i]->p);
            dq_block_free(pool->chunk[i]);
        }
        dq_block_free(pool->chunk);
        dq_block_free(pool);
    }
    if (c->stream) cudaStreamDestroy(c->stream);
    dq_block_free(c);
    b->state = NULL;
}

static dq_status cuda_can(const dq_need *need, dq_err *err)
{
    const dq_kv_spec *kv = need->kv;
    const int d = need->head_dim ? need->head_dim : 16;
    const bool mixed = kv->quant == DQ_KV_MIXED && kv->v_bits < 16;
    const int run = mixed ? 2 * kv->group : kv->group;
    const bool short_groups = (mixed || !dq_kv_by_page(kv)) &&
                              (mixed || kv->k_bits <= 4 || kv->v_bits <= 4) && run % 16 && run < d;
    if (need->math.qk == DQ_NUM_F32) return DQ_OK;
    const char *name = dq_num_name[need->math.kv]; /* as asked for */
    if (d % 16 || d > 128) {
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_HEADS},
                     "math %s on the cuda backend needs a head_dim that is a multiple of 16 up to "
                     "128, and this model has %d",
                     name, d);
        return dq_in(err, "%s: ", need->path);
    }
    if (short_groups)
        return dq_fail_with(
            err, DQ_MISMATCH,
            (dq_remedy){.code = DQ_REMEDY_MATH_GROUP, .number = {kv->group}, .word = name},
            "math %s on the cuda backend needs a group of the KV cache that is a multiple of 16, "
            "found %d",
            name, kv->group);
    return DQ_OK;
}

static const dq_ops ops_cuda = {
    .name = "cuda",
    .alloc = dq_cuda_alloc,
    .free = dq_cuda_free,
    .put = dq_cuda_put,
    .get = dq_cuda_get,
    .sync = cuda_sync,
    .close = cuda_close,
    .can = cuda_can,
    .memory = cuda_memory,
    .attend_bytes = cuda_attend_bytes,
    .weight_acquire = dq_cuda_weight_acquire,
    .weight_release = dq_cuda_weight_release,
    .kv_new = dq_cuda_kv_new,
    .kv_free = dq_cuda_kv_free,
    .kv_seq_new = dq_kv_pages_seq_new,
    .kv_fork = dq_kv_pages_fork,
    .kv_seq_free = dq_kv_pages_seq_free,
    .kv_append = dq_kv_pages_append,
    .kv_rewind = dq_kv_pages_rewind,
    .kv_keep = dq_kv_pages_keep,
    .kv_compact = dq_kv_pages_compact,
    .kv_key_norms = dq_cuda_kv_key_norms,
    .kv_key_cosines = dq_cuda_kv_key_cosines,
    .kv_key_leverages = dq_cuda_kv_key_leverages,
    .kv_rows = dq_cuda_kv_rows,
    .kv_count = dq_kv_pages_count,
    .kv_bytes = dq_kv_pages_bytes,
    .attn_absmax = dq_cuda_attn_absmax,
    .absmax_join = dq_cuda_absmax_join,
    .attends_in_f16 = true,
    .keys_in_int8 = dq_cuda_keys_in_int8,
    .attend = dq_cuda_attend,
    .attend_kernel = dq_cuda_attend_kernel,
    .attn_observe = dq_cuda_attn_observe,
    .observe = dq_cuda_observe,
    .embed = dq_cuda_embed,
    .first_bad_row = dq_cuda_first_bad_row,
    .rms_norm = dq_cuda_rms_norm,
    .matmul = dq_cuda_matmul,
    .matmul_kernel = dq_cuda_matmul_kernel,
    .rope_table = dq_cuda_rope_table,
    .rope = dq_cuda_rope,
    .ffn_act = dq_cuda_ffn_act,
    .sigmoid = dq_cuda_sigmoid,
    .hadamard = dq_cuda_hadamard,
    .add = dq_cuda_add,
    .gather = dq_cuda_gather,
    .logprob = dq_cuda_logprob,
    .kld = dq_cuda_kld,
};

dq_status dq_cuda_refuse(cudaError_t e, int driver, int runtime, dq_err *err)
{
    /* versions are 1000 * major + 10 * minor */
    const int major = runtime / 1000, minor = runtime % 1000 / 10;
    if (e == cudaErrorNoDevice)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
            "no CUDA device is visible (nvidia-smi lists them; CUDA_VISIBLE_DEVICES hides some)");
    if (e == cudaErrorInsufficientDriver && driver == 0)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
            "no NVIDIA driver is installed (expected one for CUDA %d.%d). Install it", major,
            minor);
    if (e == cudaErrorInsufficientDriver)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
                            "the NVIDIA driver is too old (expected one for CUDA %d.%d, found one "
                            "for CUDA %d.%d). Update it",
                            major, minor, driver / 1000, driver % 1000 / 10);
    return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                        "CUDA does not start: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
}

static dq_status count_devices(int *count, dq_err *err)
{
    int driver = 0, runtime = 0;
    *count = 0;
    const cudaError_t e = cudaGetDeviceCount(count);
    if (e == cudaSuccess && *count > 0) return DQ_OK;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return dq_cuda_refuse(e == cudaSuccess ? cudaErrorNoDevice : e, driver, runtime, err);
}

static dq_status cuda_describe(dq_backend *b, int device, dq_err *err)
{
    dq_cuda *c = dq_cuda_of(b);
    struct cudaDeviceProp p;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return dq_cuda_refuse(e, 0, 0, err);
    }
    c->device = device;
    c->n_sm = p.multiProcessorCount;
    c->cc = 10 * p.major + p.minor;
    c->smem_optin = p.sharedMemPerBlockOptin;
    c->total_bytes = p.totalGlobalMem;
    c->strip_bytes = c->total_bytes / SHARE < MAX_STRIPS ? c->total_bytes / SHARE : MAX_STRIPS;
    c->operand_bytes =
        c->total_bytes / SHARE < MAX_OPERANDS ? c->total_bytes / SHARE : MAX_OPERANDS;
    if (c->cc < OLDEST)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
            "cuda:%d (%.100s) has compute capability %d.%d (expected %d.%d or later)", device,
            p.name, p.major, p.minor, OLDEST / 10, OLDEST % 10);
    snprintf(b->device, sizeof b->device, "cuda:%d, %.80s, %d multiprocessors", device, p.name,
             c->n_sm);
    return DQ_OK;
}

dq_status dq_cuda_open(dq_backend *b, int device, dq_err *err)
{
    int count;
    DQ_TRY(count_devices(&count, err));
    if (device >= count)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OTHER_DEVICE},
                            "device cuda:%d does not exist (expected cuda:0 to cuda:%d)", device,
                            count - 1);
    dq_cuda *c = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    b->state = c;
    b->ops = &ops_cuda;
    c->pool = pool_new(err);
    c->transfer = dq_block_new(1, sizeof(dq_cuda_transfer), err);
    if (c->transfer) c->transfer->constant.size = sizeof(constant);
    c->weights = dq_cuda_weights_new(err);
    if (!c->pool || !c->transfer || !c->weights || cuda_describe(b, device, err) != DQ_OK)
        cuda_close(b);
    return err->code;
}

dq_status dq_cuda_open_nth(dq_backend *b, int nth, dq_err *err)
{
    int count;
    DQ_TRY(count_devices(&count, err));
    return dq_cuda_open(b, nth % count, err);
}
