/* second_pass: see second_pass.h. A chunk runs as a pass of its own: columns of the fork are laid out list by list, the part that
 * counts is found by position, and maxima are copied to where the caller's lists have those tokens.
 * SPDX-License-Identifier: MIT */
#include "engine/second_pass.h"

#include <string.h>

/* One chunk on its way: ids begin .. end - 1 after `lead` others. */
typedef struct chunk {
    const dq_second_pass *w;
    int64_t begin, end, lead, rows;
    int n_layers, n_groups;
    int32_t seq;
    int32_t *pos;         /* [rows] */
    int64_t *offset;      /* [n_layers * n_groups] */
    dq_column_part *part; /* [n_layers * n_groups] */
    double *area;         /* what the lists hold, and the rows */
    dq_columns *columns;  /* [n_layers] */
} chunk;

static int64_t lead_of(int64_t begin)
{
    return begin < DQ_SECOND_PASS_LEAD ? begin : DQ_SECOND_PASS_LEAD;
}

int64_t dq_second_pass_rows(int64_t n)
{
    int64_t rows = n;
    for (int64_t begin = 0; begin < n; begin += DQ_SECOND_PASS_CHUNK) rows += lead_of(begin);
    return rows;
}

int64_t dq_second_pass_end(int64_t n)
{
    int64_t most = 0;
    for (int64_t begin = 0; begin < n; begin += DQ_SECOND_PASS_CHUNK) {
        const int64_t left = n - begin,
                      rows = lead_of(begin) +
                             (left < DQ_SECOND_PASS_CHUNK ? left : DQ_SECOND_PASS_CHUNK);
        if (rows > most) most = rows;
    }
    return n + most;
}

/* First of the list's tokens at position `pos` or after it. */
static int64_t first_from(const dq_second_pass *w, int list, int64_t pos)
{
    int64_t low = w->at[list], high = w->at[list + 1];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (w->pos[middle] < pos)
            low = middle + 1;
        else
            high = middle;
    }
    return low - w->at[list];
}

static dq_status lay_out(chunk *c, dq_arena *a, dq_err *err)
{
    const dq_second_pass *w = c->w;
    const int n_lists = c->n_layers * c->n_groups;
    const size_t floats = (size_t)(w->at[n_lists] + n_lists * c->rows);
    c->pos = dq_alloc(a, (size_t)c->rows, sizeof *c->pos, err);
    c->offset = dq_alloc(a, (size_t)n_lists, sizeof *c->offset, err);
    c->part = dq_alloc(a, (size_t)n_lists, sizeof *c->part, err);
    c->area = dq_alloc(a, floats, sizeof *c->area, err);
    c->columns = dq_alloc(a, (size_t)c->n_layers, sizeof *c->columns, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t i = 0; i < c->rows; i++) c->pos[i] = (int32_t)(w->n + i);
    for (int i = 0; i < n_lists; i++) {
        c->offset[i] = w->at[i] + i * c->rows;
        c->part[i] =
            (dq_column_part){.sinks = first_from(w, i, w->sink < c->begin ? w->sink : c->begin),
                             .from = first_from(w, i, c->begin),
                             .to = first_from(w, i, c->end),
                             .own = w->at[i + 1] - w->at[i]};
    }
    for (int l = 0; l < c->n_layers; l++)
        c->columns[l] = (dq_columns){.offset = c->offset + l * c->n_groups,
                                     .peak = c->area,
                                     .part = c->part + l * c->n_groups};
    return DQ_OK;
}

static dq_status run_chunk(double *peak, chunk *c, dq_err *err)
{
    const dq_second_pass *w = c->w;
    const int64_t cu[2] = {0, c->rows};
    const dq_batch batch = {.n_seq = 1,
                            .n_rows = c->rows,
                            .cu_rows = cu,
                            .seq = &c->seq,
                            .ids = w->ids + c->begin - c->lead,
                            .pos = c->pos};
    const dq_pass pass = {.logit = w->pass.logit,
                          .math = w->pass.math,
                          .listener = w->pass.listener,
                          .columns = c->columns,
                          .maps_only = true};
    dq_mat hidden;
    DQ_TRY(dq_runner_pass(w->r, &batch, &pass, &hidden, err));
    for (int i = 0; i < c->n_layers * c->n_groups; i++) {
        const dq_column_part *p = &c->part[i];
        if (p->to > p->from)
            memcpy(peak + w->at[i] + p->from, c->area + c->offset[i] + p->from,
                   (size_t)(p->to - p->from) * sizeof *peak);
    }
    return DQ_OK;
}

static dq_status read_chunk(double *peak, const dq_second_pass *w, int64_t begin, dq_err *err)
{
    dq_backend *b = dq_runner_backend(w->r);
    dq_kv *kv = dq_runner_kv(w->r);
    const dq_model *m = dq_runner_model(w->r);
    const int64_t left = w->n - begin,
                  n = left < DQ_SECOND_PASS_CHUNK ? left : DQ_SECOND_PASS_CHUNK;
    chunk c = {.w = w,
               .begin = begin,
               .end = begin + n,
               .lead = lead_of(begin),
               .rows = n + lead_of(begin),
               .n_layers = m->n_layers,
               .n_groups = m->map.n_groups};
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (lay_out(&c, a, err) == DQ_OK) {
        c.seq = b->ops->kv_fork(b, kv, w->seq);
        if (c.seq < 0) {
            dq_backend_sync(b, err);
            dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
        } else {
            run_chunk(peak, &c, err);
            b->ops->kv_seq_free(b, kv, c.seq);
        }
    }
    dq_arena_free(a);
    return err->code;
}

dq_status dq_second_pass_peaks(double *peak, const dq_second_pass *w, dq_err *err)
{
    for (int64_t begin = 0; begin < w->n; begin += DQ_SECOND_PASS_CHUNK)
        DQ_TRY(read_chunk(peak, w, begin, err));
    return DQ_OK;
}
