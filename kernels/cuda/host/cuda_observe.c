/* cuda_observe: the reducers of the CUDA backend: magnitudes of logits and of hidden states, counted on the
 * device and merged into the caller's tally at the next sync.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/device/observe_launch.h"
#include "kernels/cuda/host/cuda_attention.h"

#include <string.h>

enum { PIECE_ROWS = 1024 };

_Static_assert((int)DQ_OBSERVE_TOP == (int)DQ_TOP && (int)DQ_OBSERVE_BINS == (int)DQ_HIST_BINS,
               "kernels count what dq_tally holds");

/* One call, on the device. */
typedef struct count {
    dq_tally *tally;
    const dq_attend_args *args; /* of logits */
    bool refines;
    dq_observe_call *call;
    dq_observe_top *top; /* one per launch */
    dq_observe_bins *bins;
    int n_launches, launched;
    size_t result_bytes;
} count;

/* ------------------------------------------------------------------------------------------ merging */

/* What take needs. */
typedef struct note {
    dq_tally *tally;
    int32_t layer, seq_base;
    int n_launches;
} note;

static void add_top(dq_tally *from, const dq_observe_top *top, const note *n)
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
    const note *n = arg;
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
    const note *n = arg;
    const uint64_t *fine = data;
    for (size_t i = 0; n->tally->fine && i < bytes / sizeof *fine; i++)
        n->tally->fine[i] += (int64_t)fine[i];
}

/* ----------------------------------------------------------------------------------------- a call */

/* args: NULL for hidden states. */
static bool count_begin(dq_backend *b, count *c, dq_tally *tally, const dq_attend_args *args,
                        int n_launches)
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
static bool count_rows(dq_backend *b, count *c, const dq_observe_piece *pieces, int n,
                       void *scratch)
{
    const cudaStream_t s = dq_cuda_stream(b);
    if (n == 0) return true;
    dq_observe_rows rows = {.n = n, .records = pieces[n - 1].record + pieces[n - 1].rows};
    double *sums = scratch;
    for (int i = 0; i < n; i++) {
        if (pieces[i].rows > rows.max_rows) rows.max_rows = pieces[i].rows;
    }
    rows.piece = dq_cuda_upload(b, pieces, (size_t)n * sizeof *pieces);
    if (!rows.piece) return false;
    if (c->refines)
        return dq_cuda_ok(
            b, dq_observe_refined(rows, c->bins->fine, (uint32_t)c->tally->refine_bin, s),
            "observe");
    return dq_cuda_ok(b,
                      dq_observe_launch(rows, c->call, &c->top[c->launched++], c->bins, sums,
                                        (uint32_t *)(void *)(sums + 4 * (size_t)rows.records), s),
                      "observe");
}

static size_t count_bytes(int64_t rows)
{
    return (size_t)rows * (4 * sizeof(double) + sizeof(uint32_t));
}

static void count_end(dq_backend *b, const count *c, int layer, int32_t seq_base)
{
    note *n = dq_cuda_note(b, sizeof *n);
    if (!n) return;
    *n = (note){c->tally, layer, seq_base, c->launched};
    if (c->refines)
        dq_cuda_download(b, c->bins->fine, sizeof c->bins->fine, take_fine, n);
    else
        dq_cuda_download(b, c->call, c->result_bytes, take_tally, n);
}

/* ------------------------------------------------------------------------------------------ logits */

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
                                   .visible = launch->visible + (int64_t)w->row * map->n_groups + g,
                                   .col = launch->edge + w->edge,
                                   .pos = u->pos + w->row,
                                   .step = map->n_groups,
                                   .rows = w->n,
                                   .record = *record,
                                   .seq = w->seq,
                                   .head = h};
            *record += w->n;
        }
    }
    return n_pieces;
}

static bool observe_launch(dq_backend *b, count *c, const dq_cuda_units *u,
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
    const bool ok = dq_cuda_ok(b, dq_cuda_scores(c->args, *launch, dq_cuda_stream(b)),
                               "attn_observe (scores)") &&
                    count_rows(b, c, pieces, n_pieces, scratch);
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
    const dq_cuda_units_request request = {.strips = true, .places = true};
    const dq_head_order *map = args->attn->map;
    dq_cuda_units u;
    count c;
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

/* ----------------------------------------------------------------------------------- hidden states */

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
    count c;
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
