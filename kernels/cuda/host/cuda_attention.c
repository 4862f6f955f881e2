/* Operations on rows of activations. The kernels are in rows.cu.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"
#include "kernels/paged/kv_pages.h"

#include <math.h>
#include <string.h>

typedef struct dq_cuda_observers {
    const dq_attend_args *args;
    dq_map_sums sums;   /* device; all NULL: no columns */
    double *measure;    /* device [n_seq][n_out][DQ_MAP_FIELDS]; NULL: none */
    dq_span_sums spans; /* device; mass NULL: none */
    size_t mass_bytes;
    size_t after;    /* bytes that observers want after the strips */
    double *scratch; /* there */
} dq_cuda_observers;

/* Attention over operands of one launch's units: see dq_attend_call. */
typedef struct operands {
    dq_attend_call call;
    const dq_attend_join *joins;
    int n_joins;
} operands;

/* Lists, items and joins of the units, on the device. */
static bool upload_plan(dq_backend *b, operands *t, const dq_attend_plan *p,
                        const dq_unfold_list **lists)
{
    *lists = dq_cuda_upload(b, p->list, (size_t)p->n_lists * sizeof *p->list);
    t->call.item = dq_cuda_upload(b, p->item, (size_t)p->n_items * sizeof *p->item);
    t->joins = dq_cuda_upload(b, p->join, (size_t)p->n_joins * sizeof *p->join);
    t->call.n_items = p->n_items;
    t->n_joins = p->n_joins;
    return b->err.code == DQ_OK;
}

static bool on_hopper(const dq_backend *b, const dq_attention_units *u)
{
    return dq_cuda_on_hopper(b, u->form[0].dim);
}

/* Units of an item. Where blocks divide the pages of lists no two units share them, and a second
 * block of a cluster would have nothing to do. */
static int units_together(const dq_backend *b, const dq_attention_units *u,
                          const dq_attention_unit *unit)
{
    bool few = true;
    for (int i = 0; few && i < u->n; i++) few = unit[i].few;
    return (on_hopper(b, u) && !few ? 2 : 1) * (u->n_maps == 1 ? 2 : 1);
}

/* Unfolds what units of a launch read; unit: the same on the host. False with the sticky error
 * set. */
static bool unfold(dq_backend *b, operands *t, const dq_attention_units *u,
                   const dq_attention_unit *unit, const dq_attend_args *args)
{
    const dq_cuda_heads *heads = dq_cuda_heads_of(args->kv);
    const int together = units_together(b, u, unit);
    const size_t n = (size_t)u->n, items = (size_t)dq_attend_items(unit, u->n);
    size_t counts = 1;
    for (int i = 0; i < u->n; i++) {
        const size_t pages = (size_t)(unit[i].keys + DQ_PAGE_SLOTS - 1) / DQ_PAGE_SLOTS;
        if (pages >= counts) counts = pages + 1;
    }
    dq_unfold_list *views = dq_cuda_views_of(b, args->kv, args->layer, args->batch);
    *t = (operands){.call = {.u = *u, .together = together}};
    t->call.o = dq_attend_operands(u->form[0].dim, u->n_slabs, heads->max_kv, heads->max_pairs,
                                   heads->head_keys);
    t->call.o.int8 = dq_cuda_multiplies_codes(b, args->kv);
    dq_attend_plan p = {0};
    uint8_t *host = dq_block_new(1,
                                 n * (sizeof *p.list + sizeof *p.join) + items * sizeof *p.item +
                                     counts * sizeof(int32_t),
                                 &b->err);
    if (!host) return false;
    p.list = (dq_unfold_list *)(void *)host;
    p.item = (dq_attend_item *)(void *)(p.list + n);
    p.join = (dq_attend_join *)(void *)(p.item + items);
    dq_attend_plan_units(&p, u, unit, together, views, (int32_t *)(void *)(p.join + n));
    const dq_unfold_list *lists;
    const bool ok = upload_plan(b, t, &p, &lists);
    dq_block_free(host);
    dq_cuda *c = dq_cuda_of(b);
    if (!views) c->viewed = NULL;
    t->call.o.page = views ? c->scratch[DQ_CUDA_SCRATCH_OPERANDS]
                           : dq_cuda_scratch(b, DQ_CUDA_SCRATCH_OPERANDS,
                                             (size_t)(p.operand_pages * t->call.o.page_bytes));
    if (p.share_rows)
        t->call.share = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_SHARES,
                                        (size_t)(p.share_rows * dq_attend_share_floats(&t->call)) *
                                            sizeof(float));
    t->call.beyond = dq_cuda_range_flag(b);
    const dq_unfold k = dq_attend_unfold_of(u, t->call.o, args->kv->spec.rotate_v, t->call.beyond);
    for (int i = 0; views && i < u->n; i++)
        views[unit[i].seq * u->n_groups + unit[i].group].end = 0;
    return ok && b->err.code == DQ_OK &&
           dq_cuda_ok(
               b,
               dq_attend_unfold(k, u->pages, lists, p.n_lists, p.unfold_pages, dq_cuda_stream(b)),
               "attend (unfold)");
}

/* Strips of S in the arithmetic that attention runs in. */
static bool scores(dq_backend *b, const dq_attend_args *args, const dq_attention_units *u,
                   const dq_attention_unit *unit)
{
    operands t;
    if (args->math.qk == DQ_NUM_F32)
        return dq_cuda_ok(b, dq_attention_scores(*u, dq_cuda_stream(b)), "attention (scores)");
    return unfold(b, &t, u, unit, args) &&
           dq_cuda_ok(b, dq_attend_scores(t.call, dq_cuda_stream(b)), "attention (scores)");
}

/* ---- CUDA rows ---- */

void dq_cuda_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids,
                   float scale)
{
    const dq_cuda_weight *w = dq_cuda_weight_of(b, table);
    const int32_t *device_ids = dq_cuda_upload(b, ids, (size_t)dst.rows * sizeof *ids);
    if (w && device_ids)
        dq_cuda_ok(b, dq_rows_embed(dst.p, w, device_ids, scale, dst.rows, dq_cuda_stream(b)),
                   "embed");
    dq_cuda_upload_end(b);
}

void dq_cuda_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index)
{
    const int64_t *at = dq_cuda_upload(b, index, (size_t)dst.rows * sizeof *index);
    if (at)
        dq_cuda_ok(b, dq_rows_gather(dst.p, src.p, at, dst.rows, dst.cols, dq_cuda_stream(b)),
                   "gather");
    dq_cuda_upload_end(b);
}

void dq_cuda_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps)
{
    const float *g = gain ? dq_cuda_constant(b, gain, (size_t)src.cols * sizeof *gain) : NULL;
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_rows_rms_norm(dst.p, src.p, g, eps, src.rows, src.cols, dq_cuda_stream(b)),
                   "rms_norm");
}

void dq_cuda_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope)
{
    const int64_t half = rope->dim / 2;
    const int32_t *p = dq_cuda_upload(b, pos, (size_t)table.rows * sizeof *pos);
    const float *freq = dq_cuda_constant(b, rope->inv_freq, (size_t)half * sizeof *freq);
    if (p && freq)
        dq_cuda_ok(b,
                   dq_rows_rope_table(table.p, p, freq, rope->amplitude, table.rows, half,
                                      dq_cuda_stream(b)),
                   "rope_table");
    dq_cuda_upload_end(b);
}

void dq_cuda_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b,
               dq_rows_rope(x.p, table.p, order == DQ_ROPE_ADJACENT, x.rows, x.cols, table.cols,
                            dq_cuda_stream(b)),
               "rope");
}

void dq_cuda_hadamard(dq_backend *b, dq_mat x, int dim)
{
    const float norm = (float)(1.0 / sqrt((double)dim));
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_hadamard(x.p, x.rows * (x.cols / dim), dim, norm, dq_cuda_stream(b)),
               "hadamard");
}

void dq_cuda_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param)
{
    if (b->err.code != DQ_OK) return;
    const int64_t n = gate.rows * gate.cols;
    if (act == DQ_ACT_POLYNORM)
        dq_cuda_ok(b,
                   dq_rows_polynorm(gate.p, up.p, param, gate.rows, gate.cols, dq_cuda_stream(b)),
                   "PolyNorm");
    else if (act == DQ_ACT_GELU)
        dq_cuda_ok(b, dq_rows_gelu(gate.p, up.p, n, dq_cuda_stream(b)), "GELU");
    else
        dq_cuda_ok(b, dq_rows_silu(gate.p, up.p, n, dq_cuda_stream(b)), "SiLU");
}

void dq_cuda_sigmoid(dq_backend *b, dq_mat x)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_sigmoid(x.p, x.rows * x.cols, dq_cuda_stream(b)), "sigmoid");
}

void dq_cuda_add(dq_backend *b, dq_mat dst, dq_mat src)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_rows_add(dst.p, src.p, dst.rows * dst.cols, dq_cuda_stream(b)), "add");
}

static void take_bad_row(void *arg, const void *data, size_t bytes)
{
    uint32_t found;
    int64_t *row = arg;
    memcpy(&found, data, sizeof found);
    (void)bytes;
    *row = found ? (int64_t)(UINT32_MAX - found) : -1;
}

void dq_cuda_first_bad_row(dq_backend *b, int64_t *row, dq_mat x)
{
    const uint32_t none = 0;
    if (b->err.code != DQ_OK) return;
    *row = -1;
    uint32_t *found = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, sizeof *found);
    if (!found) return;
    dq_cuda_put(b, found, &none, sizeof none);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_rows_first_bad(found, x.p, x.rows, x.cols, dq_cuda_stream(b)),
                   "first_bad_row");
    dq_cuda_download(b, found, sizeof *found, take_bad_row, row);
}

/* ---- CUDA spans ----
 * Spans of attend, from the host's classes to kernels and back. */

_Static_assert((int)DQ_SPAN_SUM_CLASSES == (int)DQ_SPAN_CLASSES, "classes");
_Static_assert(sizeof(dq_span_mass) == 2 * sizeof(double), "masses are pairs of doubles");

/* Of args->spans: classes to the device, room for masses. False with the sticky error set. */
static bool spans_begin(dq_backend *b, dq_cuda_observers *l)
{
    const dq_attend_args *args = l->args;
    dq_span_rows rows;
    if (!dq_span_rows_new(b, &rows, args)) return false;
    const size_t n_lists = (size_t)(args->batch->n_seq * args->attn->map->n_groups);
    bool ok = true;
    l->mass_bytes = (size_t)rows.n * rows.row_bytes;
    if (rows.n > 0) {
        l->spans.n_classes = args->spans->n_classes;
        l->spans.mass = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_SPANS, l->mass_bytes);
        l->spans.label = dq_cuda_upload(b, rows.label, (size_t)rows.key[n_lists]);
        l->spans.key = dq_cuda_upload(b, rows.key, n_lists * sizeof *rows.key);
        ok = l->spans.mass && l->spans.label && l->spans.key;
    }
    dq_span_rows_free(&rows);
    return ok;
}

typedef struct span_note {
    dq_span_share *sums;
    int n_seq, n_out, n_classes;
    int64_t at[]; /* [n_seq + 1] */
} span_note;

static void take_spans(void *arg, const void *data, size_t bytes)
{
    const span_note *note = arg;
    (void)bytes;
    dq_span_rows_add(note->sums, note->at, note->n_seq, note->n_out, note->n_classes, data);
}

/* ---- CUDA observe ----
 * The reducers of the CUDA backend: magnitudes of logits and of hidden states, counted on the
 * device and merged into the caller's tally at the next sync. */

enum { PIECE_ROWS = 1024 };

_Static_assert((int)DQ_OBSERVE_TOP == (int)DQ_TOP && (int)DQ_OBSERVE_BINS == (int)DQ_HIST_BINS,
               "kernels count what dq_tally holds");

typedef struct observe_count {
    dq_tally *tally;
    const dq_attend_args *args; /* of logits */
    bool refines;
    dq_observe_call *call;
    dq_observe_top *top; /* one per launch */
    dq_observe_bins *bins;
    int n_launches, launched;
    size_t result_bytes;
} observe_count;

/* ---- merging */

typedef struct observe_note {
    dq_tally *tally;
    int32_t layer, seq_base;
    int n_launches;
} observe_note;

static void add_top(dq_tally *from, const dq_observe_top *top, const observe_note *n)
{
    from->n_top = (int)top->n;
    for (int i = 0; i < from->n_top; i++) {
        const dq_observe_found *f = &top->found[i];
        from->top[i] = f->value;
        from->place[i] = (dq_place){n->seq_base + f->seq, n->layer, f->head, f->row, f->col};
    }
}

static void take_tally(void *arg, const void *data, size_t bytes)
{
    static int64_t nothing[DQ_HIST_BINS];
    const observe_note *n = arg;
    const dq_observe_call *call = data;
    const dq_observe_top *top = (const dq_observe_top *)(const void *)(call + 1);
    dq_tally from = {0};
    (void)bytes;
    dq_fixed_add(&from.sum, call->total[0]);
    dq_fixed_add(&from.sum2, call->total[1]);
    dq_fixed_add(&from.sum4, call->total[2]);
    from.hist = nothing;
    from.n_bad = (int64_t)call->total[3];
    for (int i = 0; i < DQ_HIST_BINS; i++) {
        n->tally->hist[i] += (int64_t)call->hist[i];
        from.n += (int64_t)call->hist[i];
    }
    for (int i = 0; i < n->n_launches; i++) {
        add_top(&from, &top[i], n);
        dq_tally_merge(n->tally, &from);
        from.n = from.n_bad = 0;
        from.sum = from.sum2 = from.sum4 = (dq_fixed){{0}};
    }
}

static void take_fine(void *arg, const void *data, size_t bytes)
{
    const observe_note *n = arg;
    const uint64_t *fine = data;
    for (size_t i = 0; n->tally->fine && i < bytes / sizeof *fine; i++)
        n->tally->fine[i] += (int64_t)fine[i];
}

/* ---- a call */

/* args: NULL for hidden states. */
static bool count_begin(dq_backend *b, observe_count *c, dq_tally *tally,
                        const dq_attend_args *args, int n_launches)
{
    const cudaStream_t s = dq_cuda_stream(b);
    memset(c, 0, sizeof *c);
    c->tally = tally;
    c->args = args;
    c->refines = tally->fine != NULL;
    c->n_launches = n_launches;
    c->result_bytes = sizeof *c->call + (size_t)n_launches * sizeof *c->top;
    if (c->refines) c->result_bytes = 0;
    uint8_t *p = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, sizeof *c->bins + c->result_bytes);
    if (!p) return false;
    c->bins = (dq_observe_bins *)(void *)p;
    c->call = (dq_observe_call *)(void *)(c->bins + 1);
    c->top = (dq_observe_top *)(void *)(c->call + 1);
    return dq_cuda_ok(b, cudaMemsetAsync(p, 0, sizeof *c->bins + c->result_bytes, s), "memset");
}

/* scratch: 36 bytes for every row. */
static bool count_rows(dq_backend *b, observe_count *c, const dq_observe_piece *pieces, int n,
                       void *scratch)
{
    if (n == 0) return true;
    dq_observe_rows rows = {.n = n, .records = pieces[n - 1].record + pieces[n - 1].rows};
    double *sums = scratch;
    for (int i = 0; i < n; i++) {
        if (pieces[i].rows > rows.max_rows) rows.max_rows = pieces[i].rows;
    }
    rows.piece = dq_cuda_upload(b, pieces, (size_t)n * sizeof *pieces);
    if (!rows.piece) return false;
    if (c->refines)
        return dq_cuda_ok(b,
                          dq_observe_refined(rows, c->bins->fine, (uint32_t)c->tally->refine_bin,
                                             dq_cuda_stream(b)),
                          "observe");
    return dq_cuda_ok(b,
                      dq_observe_launch(rows, c->call, &c->top[c->launched++], c->bins, sums,
                                        (uint32_t *)(void *)(sums + 4 * (size_t)rows.records),
                                        dq_cuda_stream(b)),
                      "observe");
}

static size_t count_bytes(int64_t rows)
{
    return (size_t)rows * (4 * sizeof(double) + sizeof(uint32_t));
}

static void count_end(dq_backend *b, const observe_count *c, int layer, int32_t seq_base)
{
    observe_note *n = dq_cuda_note(b, sizeof *n);
    if (!n) return;
    *n = (observe_note){c->tally, layer, seq_base, c->launched};
    if (c->refines)
        dq_cuda_download(b, c->bins->fine, sizeof c->bins->fine, take_fine, n);
    else
        dq_cuda_download(b, c->call, c->result_bytes, take_tally, n);
}

/* ---- logits */

/* Strips of one sequence of a launch, by query head and position. */
static int add_pieces(dq_observe_piece *to, const dq_cuda_units *u,
                      const dq_attention_units *launch, const dq_attention_unit *unit, int n,
                      const dq_head_order *map, int32_t *record)
{
    int n_pieces = 0;
    for (int h = 0; h < map->n_q; h++) {
        const int g = map->group[map->key[h]];
        int slot = 0;
        for (int k = 0; k < h; k++) slot += map->group[map->key[k]] == g;
        for (int i = 0; i < n; i++) {
            const dq_attention_unit *w = &unit[i];
            if (w->group != g) continue;
            to[n_pieces++] =
                (dq_observe_piece){.x = launch->strip + w->strip + (int64_t)slot * w->n * w->ld,
                                   .ld = w->ld,
                                   .visible = launch->visible + w->visible,
                                   .hidden = launch->window ? launch->hidden + w->visible : NULL,
                                   .col = launch->edge + w->edge,
                                   .pos = u->pos + w->row,
                                   .rows = w->n,
                                   .record = *record,
                                   .seq = w->seq,
                                   .head = h};
            *record += w->n;
        }
    }
    return n_pieces;
}

static bool observe_launch(dq_backend *b, observe_count *c, const dq_cuda_units *u,
                           const dq_attention_units *launch, const dq_attention_unit *unit,
                           const dq_head_order *map, void *scratch)
{
    dq_observe_piece *pieces =
        dq_block_new((size_t)launch->n * (size_t)map->n_q, sizeof *pieces, &b->err);
    if (!pieces) return false;
    int n_pieces = 0;
    int32_t record = 0;
    for (int i = 0, end; i < launch->n; i = end) {
        end = i + 1;
        while (end < launch->n && unit[end].seq == unit[i].seq) end++;
        n_pieces += add_pieces(pieces + n_pieces, u, launch, unit + i, end - i, map, &record);
    }
    const bool ok = scores(b, c->args, launch, unit) && count_rows(b, c, pieces, n_pieces, scratch);
    dq_block_free(pieces);
    return ok;
}

static int count_launches(const dq_cuda_units *u)
{
    dq_cuda_units all = *u;
    dq_attention_units launch;
    int n = 0;
    for (int first; dq_cuda_units_next(&all, &launch, &first);) n++;
    return n;
}

void dq_cuda_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                          int32_t seq_base)
{
    const dq_cuda_units_request request = {
        .strips = true, .places = true, .operands = args->math.qk != DQ_NUM_F32};
    const dq_head_order *map = args->attn->map;
    dq_cuda_units u;
    observe_count c;
    void *scratch;
    if (b->err.code != DQ_OK) return;
    if (!dq_cuda_units_begin(b, &u, args, request)) return;
    if (count_begin(b, &c, tally, args, count_launches(&u)) &&
        dq_cuda_units_scratch(b, &u, count_bytes(u.max_records), &scratch)) {
        dq_attention_units launch;
        for (int first; b->err.code == DQ_OK && dq_cuda_units_next(&u, &launch, &first);)
            observe_launch(b, &c, &u, &launch, u.unit + first, map, scratch);
        count_end(b, &c, args->layer, seq_base);
    }
    dq_cuda_units_end(b, &u);
}

/* ---- hidden states */

/* Rows of all sequences; to NULL: only counts. */
static int row_pieces(dq_observe_piece *to, dq_mat x, const dq_batch *batch, const int32_t *pos)
{
    int n = 0;
    for (int i = 0; i < batch->n_seq; i++) {
        const int64_t end = batch->cu_rows[i + 1];
        for (int64_t r = batch->cu_rows[i]; r < end; r += PIECE_ROWS, n++) {
            if (!to) continue;
            to[n] =
                (dq_observe_piece){.x = x.p + r * x.cols,
                                   .ld = x.cols,
                                   .pos = pos + r,
                                   .cols = (int32_t)x.cols,
                                   .rows = (int32_t)(end - r < PIECE_ROWS ? end - r : PIECE_ROWS),
                                   .record = (int32_t)r,
                                   .seq = i,
                                   .head = -1};
        }
    }
    return n;
}

void dq_cuda_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                     int32_t seq_base)
{
    const int n = row_pieces(NULL, x, batch, NULL);
    observe_count c;
    if (b->err.code != DQ_OK || n == 0) return;
    const int32_t *pos = dq_cuda_upload(b, batch->pos, (size_t)batch->n_rows * sizeof *pos);
    void *scratch = pos ? dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, count_bytes(batch->n_rows)) : NULL;
    dq_observe_piece *pieces = dq_block_new((size_t)n, sizeof *pieces, &b->err);
    if (scratch && pieces && count_begin(b, &c, tally, NULL, 1)) {
        row_pieces(pieces, x, batch, pos);
        if (count_rows(b, &c, pieces, n, scratch)) count_end(b, &c, layer, seq_base);
    }
    dq_block_free(pieces);
    dq_cuda_upload_end(b);
}

/* ---- CUDA maps ----
 * Columns and measures of attend, from kernels to the host's arrays. */

enum { N_COLUMNS = 4 };

_Static_assert((int)DQ_MAP_THRESHOLDS == (int)DQ_N_THRESHOLDS, "thresholds");

static int requested_columns(double *host[N_COLUMNS], const dq_columns *c)
{
    double *const all[N_COLUMNS] = {c->mass[0], c->mass[1], c->lambda_mass, c->diff};
    int n = 0;
    for (int i = 0; i < N_COLUMNS; i++) n += (host[i] = all[i]) != NULL;
    return n;
}

/* Values of all lists with rows: at[n_lists + 1]. */
static void place_lists(int64_t *at, const dq_attend_args *args)
{
    const dq_batch *batch = args->batch;
    const int n_groups = args->attn->map->n_groups;
    at[0] = 0;
    for (int l = 0; l < batch->n_seq * n_groups; l++) {
        const int i = l / n_groups;
        const bool rows = batch->cu_rows[i + 1] > batch->cu_rows[i];
        at[l + 1] = at[l];
        if (rows)
            at[l + 1] += dq_kv_list_of(args->kv, batch->seq[i], args->layer, l % n_groups)->count;
    }
}

/* ---- begin */

static bool begin_columns(dq_backend *b, dq_cuda_observers *l)
{
    const dq_attend_args *args = l->args;
    const int n_lists = args->batch->n_seq * args->attn->map->n_groups;
    double *host[N_COLUMNS];
    const int requested = requested_columns(host, args->columns);
    if (requested == 0) return true;
    int64_t *at = dq_block_new((size_t)n_lists + 1, sizeof *at, &b->err);
    if (!at) return false;
    place_lists(at, args);
    const size_t bytes = (size_t)requested * (size_t)at[n_lists] * sizeof(double);
    double *p = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, bytes);
    double **const to[N_COLUMNS] = {&l->sums.mass[0], &l->sums.mass[1], &l->sums.lambda_mass,
                                    &l->sums.diff};
    for (int i = 0, done = 0; p && i < N_COLUMNS; i++) {
        if (host[i]) *to[i] = p + done++ * at[n_lists];
    }
    l->sums.at = p ? dq_cuda_upload(b, at, ((size_t)n_lists + 1) * sizeof *at) : NULL;
    dq_block_free(at);
    return l->sums.at && dq_cuda_ok(b, cudaMemsetAsync(p, 0, bytes, dq_cuda_stream(b)), "memset");
}

static size_t measure_bytes(const dq_attend_args *args)
{
    return (size_t)args->batch->n_seq * (size_t)args->attn->map->n_out * DQ_MAP_FIELDS *
           sizeof(double);
}

/* Makes and clears the sums. False with the sticky error set. */
static bool observers_begin(dq_backend *b, dq_cuda_observers *l, const dq_cuda_units *u,
                            const dq_attend_args *args)
{
    memset(l, 0, sizeof *l);
    l->args = args;
    if (args->columns && !begin_columns(b, l)) return false;
    if (args->spans && !spans_begin(b, l)) return false;
    if (args->measure) {
        l->after = (size_t)u->max_factors * DQ_MAP_FIELDS * sizeof(double);
        l->measure = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_BATCH, measure_bytes(args));
        if (!l->measure) return false;
        return dq_cuda_ok(b, cudaMemsetAsync(l->measure, 0, measure_bytes(args), dq_cuda_stream(b)),
                          "memset");
    }
    return true;
}

/* ---- launch */

/* Lists of a launch as runs of its units. Returns how many; *most: keys of the longest. */
static int find_runs(dq_map_run *runs, int *max, const dq_attention_unit *unit, int n)
{
    int n_runs = 0;
    *max = 0;
    for (int i = 0; i < n; i++) {
        const dq_attention_unit *w = &unit[i];
        if (i == 0 || w->seq != w[-1].seq || w->group != w[-1].group)
            runs[n_runs++] = (dq_map_run){i, 0, 0};
        dq_map_run *run = &runs[n_runs - 1];
        run->n++;
        if (w->keys > run->keys) run->keys = w->keys;
        if (w->keys > *max) *max = w->keys;
    }
    return n_runs;
}

/* A grid's second axis ends at 65535. */
enum { RUNS = 65535 };

static bool sum_up(dq_backend *b, const dq_cuda_observers *l, const dq_attention_units *u,
                   const dq_map_run *runs, int n, int max)
{
    const cudaStream_t s = dq_cuda_stream(b);
    dq_map_limits limits;
    memcpy(limits.below, dq_head_measure_thresholds, sizeof limits.below);
    bool ok = true;
    for (int i = 0; ok && l->sums.at && i < n; i += RUNS)
        ok = dq_cuda_ok(b, dq_maps_sum(*u, l->sums, runs + i, n - i < RUNS ? n - i : RUNS, max, s),
                        "attend (columns)");
    if (ok && l->measure)
        ok = dq_cuda_ok(b, dq_maps_measure(*u, limits, l->measure, l->scratch, runs, n, s),
                        "attend (measure)");
    return ok;
}

/* Runs between softmax and values of a launch, whose units on the host start at `unit`. */
static bool observers_run(dq_backend *b, const dq_cuda_observers *l, const dq_attention_units *u,
                          const dq_attention_unit *unit)
{
    int max;
    if (!l->sums.at && !l->measure) return true;
    dq_map_run *runs = dq_block_new((size_t)u->n, sizeof *runs, &b->err);
    if (!runs) return false;
    const int n = find_runs(runs, &max, unit, u->n);
    const dq_map_run *at = dq_cuda_upload(b, runs, (size_t)n * sizeof *runs);
    dq_block_free(runs);
    return at && sum_up(b, l, u, at, n, max);
}

/* ---- end */

typedef struct column_note {
    double *host[N_COLUMNS];
    int n_lists;
    int64_t list[]; /* at[n_lists + 1], offset[n_lists] */
} column_note;

static void take_columns(void *arg, const void *data, size_t bytes)
{
    const column_note *note = arg;
    const int64_t *at = note->list, *offset = at + note->n_lists + 1;
    const double *from = data;
    (void)bytes;
    for (int c = 0; c < N_COLUMNS; c++) {
        if (!note->host[c]) continue;
        for (int l = 0; l < note->n_lists; l++) {
            for (int64_t k = at[l]; k < at[l + 1]; k++)
                note->host[c][offset[l] + k - at[l]] += from[k];
        }
        from += at[note->n_lists];
    }
}

typedef struct measure_note {
    dq_head_measure *into;
    int n_out;
} measure_note;

static void take_measures(void *arg, const void *data, size_t bytes)
{
    const measure_note *note = arg;
    const double *f = data;
    const size_t n = bytes / (DQ_MAP_FIELDS * sizeof(double));
    for (size_t i = 0; i < n; i++, f += DQ_MAP_FIELDS) {
        const double *count = f + 6;
        dq_head_measure m = {.entropy = {f[0], f[1]},
                             .sink_mass = {f[2], f[3]},
                             .variation = f[4],
                             .negative = f[5]};
        for (int k = 0; k < DQ_N_THRESHOLDS; k++) {
            m.near_zero[k] = (int64_t)count[k];
            m.skippable[k] = (int64_t)count[DQ_N_THRESHOLDS + k];
        }
        count += 2 * DQ_N_THRESHOLDS;
        m.rows = (int64_t)count[0];
        m.keys = (int64_t)count[1];
        m.pages = (int64_t)count[2];
        dq_head_measure_merge(&note->into[(int)i % note->n_out], &m);
    }
}

/* Sums go to the host at the next sync. */
static void observers_end(dq_backend *b, const dq_cuda_observers *l)
{
    if (b->err.code != DQ_OK) return;
    if (l->sums.at) {
        const dq_columns *c = l->args->columns;
        const size_t n_lists = (size_t)(l->args->batch->n_seq * l->args->attn->map->n_groups);
        column_note *note =
            dq_cuda_note(b, sizeof *note + (2 * n_lists + 1) * sizeof note->list[0]);
        if (note) {
            const int requested = requested_columns(note->host, c);
            note->n_lists = (int)n_lists;
            place_lists(note->list, l->args);
            memcpy(note->list + n_lists + 1, c->offset, n_lists * sizeof *c->offset);
            double *const first[] = {l->sums.mass[0], l->sums.mass[1], l->sums.lambda_mass,
                                     l->sums.diff};
            int i = 0;
            while (!first[i]) i++;
            dq_cuda_download(b, first[i],
                             (size_t)requested * (size_t)note->list[n_lists] * sizeof(double),
                             take_columns, note);
        }
    }
    if (l->spans.mass) {
        /* Masses are added to the host's sums at the next sync. */
        const dq_attention_spans *spans = l->args->spans;
        const int n_seq = l->args->batch->n_seq;
        span_note *note = dq_cuda_note(b, sizeof *note + ((size_t)n_seq + 1) * sizeof note->at[0]);
        if (note) {
            note->sums = spans->sums;
            note->n_seq = n_seq;
            note->n_out = l->args->attn->map->n_out;
            note->n_classes = spans->n_classes;
            dq_span_rows_place(note->at, spans, l->args->batch);
            dq_cuda_download(b, l->spans.mass, l->mass_bytes, take_spans, note);
        }
    }
    if (!l->measure) return;
    measure_note *note = dq_cuda_note(b, sizeof *note);
    if (!note) return;
    *note = (measure_note){l->args->measure, l->args->attn->map->n_out};
    dq_cuda_download(b, l->measure, measure_bytes(l->args), take_measures, note);
}

/* ---- CUDA logprob ----
 * What is computed from logits, a piece of the vocabulary at a time. */

#ifdef DQ_SIMT /* tests see several pieces of a small vocabulary */
enum { PIECE = 64, ROWS = 32 };
#else
enum { PIECE = 4096, ROWS = 4096 };
#endif

typedef struct side {
    dq_mat hidden;
    const dq_cuda_weight *head;
    bool bf16;
    void *rounded; /* hidden in bf16; NULL: it is multiplied as it is */
    float *logits; /* [hidden.rows, at most ROWS][PIECE] */
} side;

static int64_t rows_at_once(int64_t rows, int64_t m0)
{
    return rows - m0 < ROWS ? rows - m0 : ROWS;
}

static bool side_of(dq_backend *b, side *k, dq_mat hidden, const dq_weight *head, dq_num num)
{
    k->hidden = hidden;
    k->bf16 = num == DQ_NUM_BF16;
    k->head = dq_cuda_weight_of(b, head);
    if (k->head && hidden.cols != head->cols)
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes",
                head->name ? head->name : "head");
    const int64_t n = hidden.rows * hidden.cols;
    k->rounded = k->bf16 ? dq_cuda_alloc(b, (size_t)n * sizeof(uint16_t)) : NULL;
    k->logits = dq_cuda_alloc(b, sizeof *k->logits * (size_t)rows_at_once(hidden.rows, 0) * PIECE);
    if (k->rounded && b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_linear_bf16(k->rounded, hidden.p, n, dq_cuda_stream(b)), "rows in bf16");
    return b->err.code == DQ_OK;
}

static void side_end(dq_backend *b, const side *k)
{
    dq_cuda_free(b, k->rounded);
    dq_cuda_free(b, k->logits);
}

/* Of rows m0 .. m0 + m and entries n0 .. n0 + n of the vocabulary. */
static void make_logits(dq_backend *b, const side *k, int64_t m0, int64_t m, int64_t n0, int64_t n)
{
    const int64_t at = m0 * k->hidden.cols;
    const void *rows = k->rounded ? (const void *)((const uint16_t *)k->rounded + at)
                                  : (const void *)(k->hidden.p + at);
    const void *wide = dq_cuda_wide_rows(b, k->head, n0, n, k->bf16);
    if (wide) dq_cuda_gemm(b, k->bf16, k->logits, PIECE, rows, wide, m, n, k->hidden.cols);
}

static void logprob_pieces(dq_backend *b, const side *k, dq_logprob_row *state,
                           const int32_t *target)
{
    const int64_t vocab = k->head->rows, rows = k->hidden.rows;
    for (int64_t m0 = 0; m0 < rows; m0 += ROWS) {
        const int64_t m = rows_at_once(rows, m0);
        for (int64_t n0 = 0; n0 < vocab && b->err.code == DQ_OK; n0 += PIECE) {
            const int64_t n = vocab - n0 < PIECE ? vocab - n0 : PIECE;
            make_logits(b, k, m0, m, n0, n);
            if (b->err.code == DQ_OK)
                dq_cuda_ok(b,
                           dq_logprob_piece(state + m0, k->logits, PIECE, n0, n,
                                            target ? target + m0 : NULL, m, dq_cuda_stream(b)),
                           "logprob");
        }
    }
}

void dq_cuda_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                     const dq_weight *head, const int32_t *target, dq_num num)
{
    side k;
    const size_t n = (size_t)hidden.rows;
    if (b->err.code != DQ_OK || n == 0) return;
    const int32_t *t = target ? dq_cuda_upload(b, target, n * sizeof *t) : NULL;
    const bool ready = side_of(b, &k, hidden, head, num);
    dq_logprob_row *state = dq_cuda_alloc(b, n * sizeof *state);
    double *sums = dq_cuda_alloc(b, n * sizeof *sums);
    int32_t *tops = dq_cuda_alloc(b, n * sizeof *tops);
    if (ready && b->err.code == DQ_OK) logprob_pieces(b, &k, state, t);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_logprob_end(sums, tops, state, t, hidden.rows, dq_cuda_stream(b)),
                   "logprob");
    if (logp) dq_cuda_download(b, sums, n * sizeof *sums, NULL, logp);
    if (top1) dq_cuda_download(b, tops, n * sizeof *tops, NULL, top1);
    dq_cuda_free(b, tops);
    dq_cuda_free(b, sums);
    dq_cuda_free(b, state);
    side_end(b, &k);
    dq_cuda_upload_end(b);
}

static void kld_pieces(dq_backend *b, const side *p, const side *q, dq_logprob_kld_row *state)
{
    const int64_t vocab = p->head->rows, rows = p->hidden.rows;
    for (int64_t m0 = 0; m0 < rows; m0 += ROWS) {
        const int64_t m = rows_at_once(rows, m0);
        for (int64_t n0 = 0; n0 < vocab && b->err.code == DQ_OK; n0 += PIECE) {
            const int64_t n = vocab - n0 < PIECE ? vocab - n0 : PIECE;
            make_logits(b, p, m0, m, n0, n);
            make_logits(b, q, m0, m, n0, n);
            if (b->err.code == DQ_OK)
                dq_cuda_ok(b,
                           dq_logprob_kld_piece(state + m0, p->logits, q->logits, PIECE, n0, n, m,
                                                dq_cuda_stream(b)),
                           "kld");
        }
    }
}

void dq_cuda_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                 dq_mat hidden, const dq_weight *head, dq_num num)
{
    side p, q;
    const size_t n = (size_t)hidden.rows;
    if (b->err.code != DQ_OK || n == 0) return;
    const bool ready_p = side_of(b, &p, ref, ref_head, ref_num);
    const bool ready_q = side_of(b, &q, hidden, head, num);
    dq_logprob_kld_row *state = dq_cuda_alloc(b, n * sizeof *state);
    double *sums = dq_cuda_alloc(b, n * sizeof *sums);
    if (ready_p && ready_q && b->err.code == DQ_OK) kld_pieces(b, &p, &q, state);
    if (b->err.code == DQ_OK)
        dq_cuda_ok(b, dq_logprob_kld_end(sums, state, hidden.rows, dq_cuda_stream(b)), "kld");
    dq_cuda_download(b, sums, n * sizeof *sums, NULL, kld);
    dq_cuda_free(b, sums);
    dq_cuda_free(b, state);
    side_end(b, &p);
    side_end(b, &q);
}

/* ---- CUDA attention ----
 * Attend, attn_absmax and absmax_join of the CUDA backend. */

bool dq_cuda_keys_in_int8(const dq_backend *b, const dq_kv_spec *kv, int head_dim)
{
    return dq_cuda_on_hopper(b, head_dim) && kv->num == DQ_NUM_INT8 &&
           kv->quant == DQ_KV_PER_TOKEN && kv->k_bits > 4 && kv->k_bits <= 8;
}

const char *dq_cuda_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, int head_dim,
                                  dq_math math)
{
    if (math.qk == DQ_NUM_F32) return "scores + softmax + values";
    if (!dq_cuda_on_hopper(b, head_dim)) return "unfold + attend in f16";
    return dq_cuda_keys_in_int8(b, kv, head_dim) ? "unfold + attend_int8 in int8 and f16"
                                                 : "unfold + attend_hopper in f16";
}

static int rounding_of(dq_logit_spec logit)
{
    if (!dq_logit_rounds(logit)) return DQ_ROUND_NOT;
    if (dq_logit_needs_absmax(logit)) return DQ_ROUND_GIVEN;
    return dq_logit_by_tile(logit) ? DQ_ROUND_TILE : DQ_ROUND_ROW;
}

static float qmax_of(dq_logit_spec logit)
{
    return (float)((1 << (logit.bits - 1)) - 1);
}

/* Strips up to exp(S - max). */
static bool make_strips(dq_backend *b, const dq_attention_units *u, const dq_attention_unit *unit,
                        const dq_attend_args *args)
{
    return scores(b, args, u, unit) &&
           dq_cuda_ok(b,
                      dq_attention_softmax(*u, rounding_of(args->logit), qmax_of(args->logit),
                                           args->absmax, dq_cuda_stream(b)),
                      "attend (softmax)");
}

/* Spans look at few units as a rule: where nothing else needs strips, theirs alone are made. */
static bool observe_spans(dq_backend *b, const dq_attention_units *u, const dq_attend_args *args,
                          const dq_cuda_observers *observers, const dq_attention_unit *unit,
                          bool made)
{
    for (int i = 0, n; observers->spans.mass && i < u->n; i += n) {
        const bool counts = unit[i].counted < unit[i].n;
        for (n = 1; i + n < u->n && (unit[i + n].counted < unit[i + n].n) == counts;) n++;
        dq_attention_units part = *u;
        part.unit += i;
        part.n = n;
        if (!counts) continue;
        if (!made && !make_strips(b, &part, unit + i, args)) return false;
        if (!dq_cuda_ok(b, dq_spans_add_sums(part, observers->spans, dq_cuda_stream(b)),
                        "attend (spans)"))
            return false;
    }
    return true;
}

/* The largest |S| of each row, which rounding by rows wants first. */
static bool row_maxima(dq_backend *b, operands *t, const dq_attend_args *args)
{
    const size_t bytes =
        (size_t)args->batch->n_rows * (size_t)args->attn->map->n_q * sizeof(uint32_t);
    uint32_t *max = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_ROWS, bytes);
    t->call.logits.absmax = (const float *)(void *)max;
    return max && dq_cuda_ok(b, cudaMemsetAsync(max, 0, bytes, dq_cuda_stream(b)), "memset") &&
           dq_cuda_ok(
               b, dq_attend_absmax(t->call, max, true, on_hopper(b, &t->call.u), dq_cuda_stream(b)),
               "attend (maxima)");
}

static bool attend_operands(dq_backend *b, const dq_attention_units *u,
                            const dq_attention_unit *unit, const dq_attention_finish *f,
                            const dq_attend_args *args)
{
    operands t;
    if (!unfold(b, &t, u, unit, args)) return false;
    t.call.f = *f;
    t.call.logits =
        (dq_attend_logits){rounding_of(args->logit), qmax_of(args->logit), args->absmax};
    if (t.call.logits.round == DQ_ROUND_ROW && !row_maxima(b, &t, args)) return false;
    const cudaStream_t s = dq_cuda_stream(b);
    return dq_cuda_ok(b, dq_attend_run(t.call, on_hopper(b, u), s), "attend") &&
           dq_cuda_ok(b, dq_attend_combine(t.call, t.joins, t.n_joins, s), "attend (combine)");
}

/* Tensor cores need no strips: those are made for observers, which then change no result. */
static bool attend_units(dq_backend *b, const dq_attention_units *u, const dq_attention_finish *f,
                         const dq_attend_args *args, const dq_cuda_observers *observers,
                         const dq_attention_unit *unit)
{
    const bool f32 = args->math.qk == DQ_NUM_F32, all = f32 || args->columns || args->measure;
    if (all && !(make_strips(b, u, unit, args) && observers_run(b, observers, u, unit)))
        return false;
    if (!observe_spans(b, u, args, observers, unit, all)) return false;
    if (!f32) return attend_operands(b, u, unit, f, args);
    return dq_cuda_ok(b, dq_attention_values(*u, *f, dq_cuda_stream(b)), "attend (values)");
}

/* Refuses by name what the tensor-core kernels do not take. f: NULL for scores alone. */
static bool taken(dq_backend *b, const dq_cuda_units *u, const dq_attention_finish *f,
                  const dq_attend_args *args)
{
    if (args->math.qk == DQ_NUM_F32) return true;
    const char *lack =
        dq_attend_lacks(&u->dev, f, rounding_of(args->logit), dq_cuda_of(b)->smem_optin);
    if (!lack) return true;
    dq_fail_with(&b->err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_F32_OR_CPU},
                 "%s attention on the cuda backend does not take this: %s",
                 dq_num_name[args->math.qk], lack);
    return false;
}

static bool describe_finish(dq_backend *b, dq_attention_finish *f, dq_mat dst,
                            const dq_attend_args *args)
{
    const dq_attn *attn = args->attn;
    const size_t width = (size_t)attn->map->n_slabs * (size_t)attn->map->head_dim;
    *f = (dq_attention_finish){.out = dst.p,
                               .out_cols = dst.cols,
                               .norm_eps = attn->norm_eps,
                               .out_scale = attn->out_scale,
                               .rotated = args->kv->spec.rotate_v,
                               .norm = attn->head_norm};
    if (attn->head_norm && attn->gain) {
        f->gain = dq_cuda_constant(b, attn->gain, width * sizeof(float));
        if (!f->gain) return false;
    }
    return true;
}

void dq_cuda_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    const bool f32 = args->math.qk == DQ_NUM_F32;
    const dq_cuda_units_request request = {.strips = f32 || args->columns || args->measure,
                                           .counted = args->spans != NULL,
                                           .operands = !f32,
                                           .edges = rounding_of(args->logit) == DQ_ROUND_TILE};
    dq_cuda_units u;
    dq_cuda_observers observers;
    dq_attention_finish f;
    void *after;
    if (b->err.code == DQ_OK && args->columns && args->attn->window)
        dq_fail(&b->err, DQ_BUG, "sums over the rows of a layer that has a window");
    if (!dq_cuda_units_begin(b, &u, args, request)) return;
    if (describe_finish(b, &f, dst, args) && taken(b, &u, &f, args) &&
        observers_begin(b, &observers, &u, args) &&
        dq_cuda_units_scratch(b, &u, observers.after, &after)) {
        dq_attention_units launch;
        observers.scratch = after;
        for (int first; b->err.code == DQ_OK && dq_cuda_units_next(&u, &launch, &first);)
            attend_units(b, &launch, &f, args, &observers, u.unit + first);
        observers_end(b, &observers);
    }
    dq_cuda_units_end(b, &u);
}

void dq_cuda_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    const size_t n = (size_t)args->batch->n_seq * (size_t)args->attn->map->n_q;
    dq_cuda_units u;
    if (b->err.code != DQ_OK || n == 0) return;
    if (!dq_cuda_ok(b, cudaMemsetAsync(absmax, 0, n * sizeof *absmax, dq_cuda_stream(b)), "memset"))
        return;
    const bool f32 = args->math.qk == DQ_NUM_F32;
    if (!dq_cuda_units_begin(b, &u, args, (dq_cuda_units_request){.operands = !f32})) return;
    dq_attention_units launch;
    const bool ok = taken(b, &u, NULL, args);
    uint32_t *bits = (uint32_t *)(void *)absmax;
    for (int first; ok && b->err.code == DQ_OK && dq_cuda_units_next(&u, &launch, &first);) {
        operands t;
        if (f32)
            dq_cuda_ok(b, dq_attention_absmax(launch, bits, dq_cuda_stream(b)), "attn_absmax");
        else if (unfold(b, &t, &launch, u.unit + first, args))
            dq_cuda_ok(
                b, dq_attend_absmax(t.call, bits, false, on_hopper(b, &launch), dq_cuda_stream(b)),
                "attn_absmax");
    }
    dq_cuda_units_end(b, &u);
}

void dq_cuda_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q)
{
    if (b->err.code != DQ_OK) return;
    dq_cuda_ok(b, dq_attention_join(absmax, n_seq, n_q, dq_cuda_stream(b)), "absmax_join");
}
