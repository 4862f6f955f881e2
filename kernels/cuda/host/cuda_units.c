/* cuda_units: see cuda_units.h. The batch is walked twice: once to count units, edges and records, once to fill
 * arrays of that size, which then go to the device together. Units are placed into launches greedily, in order: a
 * launch ends where the next unit's strips would not fit.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_units.h"

#include "kernels/cuda/device/fused.h"

#include <string.h>

enum { UNITS = 65535 }; /* a grid's third axis ends there */

/* ---------------------------------------------------------------------------------------- sizes */

/* Host arrays while they are made. */
typedef struct draft {
    const dq_attend_args *args;
    dq_cuda_units_request request;
    dq_attention_unit *unit;
    dq_page *page;
    int32_t *visible, *edge;
    int n_units;
    dq_cuda_dither dither;
    int64_t n_pages, n_own, n_edges; /* n_own: pages with a row of dither of their own */
    int64_t n_spans;                 /* rows before the sequence that spans count */
} draft;

static const dq_kv_list *list_of(const dq_attend_args *args, int i, int g)
{
    return dq_kv_list_of(args->kv, args->batch->seq[i], args->layer, g);
}

/* Rows of a sequence from `first` on whose positions share a tile. */
static int64_t tile_end(const dq_batch *batch, int64_t first, int64_t end)
{
    int64_t n = first + 1;
    while (n < end && batch->pos[n] / DQ_PAGE_TOKENS == batch->pos[first] / DQ_PAGE_TOKENS) n++;
    return n;
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
            const int64_t pages = (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS;
            d->n_pages += pages;
            for (int64_t p = 0; dq_kv_dithers(&d->args->kv->spec) && p < pages; p++)
                d->n_own += dq_cuda_dithers_own(d->args->kv, list->page[p]);
            d->n_edges += list->count; /* at most */
        }
    }
}

static bool draft_new(dq_backend *b, draft *d, const dq_attend_args *args,
                      dq_cuda_units_request request)
{
    memset(d, 0, sizeof *d);
    d->args = args;
    d->request = request;
    count(d);
    const size_t cells = (size_t)args->batch->n_rows * (size_t)args->attn->map->n_groups;
    d->unit = dq_block_new((size_t)d->n_units + 1, sizeof *d->unit, &b->err);
    d->page = dq_block_new((size_t)d->n_pages + 1, sizeof *d->page, &b->err);
    d->visible = dq_block_new(cells + 1, sizeof *d->visible, &b->err);
    if (request.edges || request.places)
        d->edge = dq_block_new((size_t)d->n_edges + 1, sizeof *d->edge, &b->err);
    const bool ok = b->err.code == DQ_OK && dq_cuda_dither_new(b, &d->dither, args->kv, d->n_own);
    d->n_units = 0;
    d->n_pages = d->n_edges = 0;
    return ok;
}

static void draft_free(draft *d)
{
    dq_block_free(d->dither.row);
    dq_block_free(d->page);
    dq_block_free(d->visible);
    dq_block_free(d->edge);
}

/* ---------------------------------------------------------------------------------------- content */

/* Keys of one tile of positions are neighbours in the list, wherever kept tokens ended up. */
static void add_edges(draft *d, const dq_kv_list *list)
{
    for (int64_t i = 0; d->request.places && i < list->count; i++)
        d->edge[d->n_edges++] = dq_kv_pos(list, i);
    for (int64_t i = 0; d->request.edges && i < list->count; i++) {
        if (i + 1 == list->count ||
            dq_kv_pos(list, i + 1) / DQ_PAGE_TOKENS != dq_kv_pos(list, i) / DQ_PAGE_TOKENS)
            d->edge[d->n_edges++] = (int32_t)(i + 1);
    }
}

/* What each row of a sequence sees. Positions of rows and tokens ascend, so this walks both once. */
static void add_visible(draft *d, const dq_kv_list *list, int i, int g)
{
    const dq_batch *batch = d->args->batch;
    const int n_groups = d->args->attn->map->n_groups;
    int64_t n = dq_kv_visible(list, batch->pos[batch->cu_rows[i]]);
    for (int64_t r = batch->cu_rows[i]; r < batch->cu_rows[i + 1]; r++) {
        while (n < list->count && dq_kv_pos(list, n) <= batch->pos[r]) n++;
        d->visible[r * n_groups + g] = (int32_t)n;
    }
}

static void add_unit(draft *d, const dq_kv_list *list, const dq_kv_rows *rows, int g,
                     dq_attention_unit shared)
{
    dq_attention_unit *w = &d->unit[d->n_units++];
    dq_kv_span span[2];
    const int n_spans = dq_kv_spans(span, d->args->kv, list, rows);
    const int64_t last = (rows->first + rows->n - 1) * d->args->attn->map->n_groups + g;
    *w = shared;
    w->row = (int32_t)rows->first;
    w->n = (int32_t)rows->n;
    w->split = (int32_t)span[0].n;
    w->coded[0] = (int32_t)span[0].coded_end;
    w->coded[1] = (int32_t)span[n_spans - 1].coded_end;
    w->keys = d->visible[last];
    w->ld = (w->keys + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS * DQ_PAGE_TOKENS;
    if (!d->args->kv->form[DQ_V].set_scales) w->n_parts = w->ld / DQ_PAGE_TOKENS;
}

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

/* A list's pages; returns how many sets they have. */
static int32_t add_pages(draft *d, const dq_kv_list *list)
{
    int32_t n_sets = 0;
    for (int64_t p = 0; p < (list->count + DQ_PAGE_TOKENS - 1) / DQ_PAGE_TOKENS; p++) {
        dq_page *page = &d->page[d->n_pages++];
        *page = dq_cuda_page_dithered(&d->dither, d->args->kv, list->page[p]);
        page->first_set = n_sets;
        n_sets += dq_kv_sets(list->page[p], DQ_PAGE_TOKENS);
    }
    return n_sets;
}

static void add_list(draft *d, int i, int g)
{
    const dq_batch *batch = d->args->batch;
    const dq_kv_list *list = list_of(d->args, i, g);
    const int64_t end = batch->cu_rows[i + 1], edges = d->n_edges, pages = d->n_pages;
    add_edges(d, list);
    add_visible(d, list, i, g);
    const int32_t n_sets = add_pages(d, list);
    const dq_attention_unit shared = {.page = pages,
                                      .edge = edges,
                                      .n_edges = (int32_t)(d->n_edges - edges),
                                      .n_parts = n_sets,
                                      .seq = i,
                                      .group = g,
                                      .sinks = (int32_t)dq_kv_visible(list, DQ_SINKS - 1)};
    for (int64_t r = batch->cu_rows[i]; r < end;) {
        const dq_kv_rows rows = {i, r, tile_end(batch, r, end) - r, batch->pos + r};
        add_unit(d, list, &rows, g, shared);
        d->unit[d->n_units - 1].first = first_counted(d, &d->unit[d->n_units - 1]);
        place_spans(d, &d->unit[d->n_units - 1]);
        r += rows.n;
    }
}

/* ------------------------------------------------------------------------------------------ heads */

static int group_of_out(const dq_head_order *map, int out)
{
    return map->group[map->head[out].v[0]];
}

typedef struct head_table {
    dq_q_head *q;
    dq_o_head *o;
    int32_t *q_first, *o_first, *place; /* place[n_q]: index of a query head in its group */
} head_table;

static void fill_heads(head_table *t, const dq_kv *kv)
{
    const dq_head_order *map = kv->map;
    int32_t n_q = 0, n_out = 0;
    for (int g = 0; g < map->n_groups; g++) {
        t->q_first[g] = n_q;
        t->o_first[g] = n_out;
        for (int h = 0; h < map->n_q; h++) {
            if (map->group[map->key[h]] != g) continue;
            t->place[h] = n_q - t->q_first[g];
            t->q[n_q++] = (dq_q_head){h, kv->slot[map->key[h]]};
        }
        for (int o = 0; o < map->n_out; o++) {
            const dq_head *head = &map->head[o];
            if (group_of_out(map, o) != g) continue;
            dq_o_head *to = &t->o[n_out++];
            *to = (dq_o_head){o, {-1, -1}, {-1, -1}};
            for (int m = 0; m < map->n_maps; m++) to->q[m] = t->place[head->q[m]];
            for (int e = 0; e < map->n_slabs; e++) to->v[e] = kv->slot[head->v[e]];
        }
    }
    t->q_first[map->n_groups] = n_q;
    t->o_first[map->n_groups] = n_out;
}

static void max_heads(dq_attention_units *u, const head_table *t, int n_groups)
{
    for (int g = 0; g < n_groups; g++) {
        const int32_t q = t->q_first[g + 1] - t->q_first[g], o = t->o_first[g + 1] - t->o_first[g];
        if (q > u->max_q) u->max_q = q;
        if (o > u->max_out) u->max_out = o;
    }
}

/* Heads by group. *t stays good until it is freed as one block: t->q. */
static bool upload_heads(dq_backend *b, dq_attention_units *u, head_table *t, const dq_kv *kv)
{
    const dq_head_order *map = kv->map;
    const size_t q = (size_t)map->n_q, o = (size_t)map->n_out, g = (size_t)map->n_groups + 1;
    const size_t bytes = q * sizeof *t->q + o * sizeof *t->o + (2 * g + q) * sizeof(int32_t);
    t->q = dq_block_new(1, bytes, &b->err);
    if (!t->q) return false;
    t->o = (dq_o_head *)(void *)(t->q + q);
    t->q_first = (int32_t *)(void *)(t->o + o);
    t->o_first = t->q_first + g;
    t->place = t->o_first + g;
    fill_heads(t, kv);
    max_heads(u, t, map->n_groups);
    u->q_head = dq_cuda_upload(b, t->q, bytes);
    if (!u->q_head) return false;
    u->o_head = (const dq_o_head *)(const void *)(u->q_head + q);
    u->q_first = (const int32_t *)(const void *)(u->o_head + o);
    u->o_first = u->q_first + g;
    return true;
}

/* ---------------------------------------------------------------------------------------- launches */

/* Where each unit's strips, sums and factors lie; a launch ends where they would not fit. */
static void place_units(dq_cuda_units *u, const head_table *t, dq_cuda_units_request request,
                        size_t strip_bytes)
{
    const int64_t capacity = (int64_t)(strip_bytes / sizeof(float));
    int64_t strips = 0, records = 0, factors = 0;
    for (int i = 0, in_launch = 0; i < u->n; i++, in_launch++) {
        dq_attention_unit *w = &u->unit[i];
        const int q = t->q_first[w->group + 1] - t->q_first[w->group];
        const int o = t->o_first[w->group + 1] - t->o_first[w->group];
        const int64_t parts =
            request.parts ? dq_fused_decode_floats(&u->dev, o, w->n, w->n_parts) : 0;
        const bool needs_strips = request.strips || (request.counted && w->counted < w->n);
        const int64_t floats = needs_strips ? (int64_t)q * w->n * w->ld + parts : 0;
        if (in_launch && (strips + floats > capacity || in_launch == UNITS))
            strips = records = factors = in_launch = 0;
        w->strip = strips;
        w->record = (int32_t)records;
        w->factor = (int32_t)factors;
        strips += floats;
        records += (int64_t)q * w->n;
        factors += (int64_t)o * w->n;
        if (strips > u->max_strips) u->max_strips = strips;
        if (records > u->max_records) u->max_records = records;
        if (factors > u->max_factors) u->max_factors = factors;
    }
}

bool dq_cuda_units_next(dq_cuda_units *u, dq_attention_units *launch, int *first)
{
    if (u->next >= u->n) return false;
    *first = u->next;
    *launch = u->dev;
    launch->unit += u->next;
    do {
        const dq_attention_unit *w = &u->unit[u->next++];
        if (w->n > launch->max_rows) launch->max_rows = w->n;
        if (w->keys > launch->max_keys) launch->max_keys = w->keys;
        if (w->n_edges > launch->max_edges) launch->max_edges = w->n_edges;
    } while (u->next < u->n && u->unit[u->next].record > 0);
    launch->n = u->next - *first;
    return true;
}

static void describe(dq_attention_units *u, const dq_attend_args *args)
{
    const dq_head_order *map = args->attn->map;
    dq_cuda_forms(u->form, args->kv);
    u->n_groups = map->n_groups;
    u->n_q = map->n_q;
    u->n_out = map->n_out;
    u->n_slabs = map->n_slabs;
    u->n_maps = map->n_maps;
    u->q = args->q.p;
    u->scale = map->scale;
    u->lambda = args->attn->lambda_kind == DQ_LAMBDA_TOKEN ? args->lambda.p : NULL;
    u->lambda_layer = args->attn->lambda;
}

static bool upload_draft(dq_backend *b, dq_cuda_units *u, const draft *d)
{
    const dq_batch *batch = d->args->batch;
    const size_t cells = (size_t)batch->n_rows * (size_t)u->dev.n_groups;
    u->dev.unit = dq_cuda_upload(b, d->unit, (size_t)u->n * sizeof *d->unit);
    u->dev.pages = dq_cuda_upload(b, d->page, (size_t)d->n_pages * sizeof *d->page);
    dq_cuda_dither_upload(b, u->dev.form, &d->dither);
    u->dev.visible = dq_cuda_upload(b, d->visible, cells * sizeof *d->visible);
    if (d->edge) u->dev.edge = dq_cuda_upload(b, d->edge, (size_t)d->n_edges * sizeof *d->edge);
    if (d->request.places)
        u->pos = dq_cuda_upload(b, batch->pos, (size_t)batch->n_rows * sizeof *batch->pos);
    return b->err.code == DQ_OK;
}

bool dq_cuda_units_begin(dq_backend *b, dq_cuda_units *u, const dq_attend_args *args,
                         dq_cuda_units_request request)
{
    draft d;
    head_table t = {0};
    memset(u, 0, sizeof *u);
    if (b->err.code != DQ_OK) return false;
    for (int i = 0; i < args->batch->n_seq; i++) {
        if (!dq_kv_pages_known(b, args->kv, args->batch->seq[i])) return false;
    }
    describe(&u->dev, args);
    if (draft_new(b, &d, args, request)) {
        for (int i = 0; i < args->batch->n_seq; i++) {
            const bool rows = args->batch->cu_rows[i + 1] > args->batch->cu_rows[i];
            for (int g = 0; rows && g < u->dev.n_groups; g++) add_list(&d, i, g);
            if (args->spans)
                d.n_spans += args->batch->cu_rows[i + 1] -
                             dq_attention_spans_first(args->spans, args->batch->cu_rows, i);
        }
        u->unit = d.unit;
        u->n = d.n_units;
        if (upload_heads(b, &u->dev, &t, args->kv)) {
            place_units(u, &t, request, dq_cuda_of(b)->strip_bytes);
            upload_draft(b, u, &d);
        }
        dq_block_free(t.q);
    } else {
        dq_block_free(d.unit);
    }
    draft_free(&d);
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
