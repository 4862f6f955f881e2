/* eval_pieces: see eval_pieces.h. A piece has about as many rows of passes as products need to be fast; where models take
 * turns over a text, as many as a turn has, since each turn packs their weights anew.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_pieces.h"

#include "eval/eval_sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_ROWS = 1024 };

typedef struct builder {
    const dq_eval *e;
    dq_eval_pieces *out;
    size_t cap;
    int turn;
    bool cut;
} builder;

/* Whether row i is computed in pieces of row `first`: that row itself, or of a text one with this reference. */
static bool belongs(const dq_eval *e, int i, int first)
{
    const dq_eval_row *row = &e->row[i];
    if (i == first) return true;
    return row->same == i && row->ref == first && dq_eval_source_of(e, row)->kind->windows;
}

static double parameters_of(const dq_eval *e, int first, bool *several)
{
    double n = 0;
    *several = false;
    for (int i = 0; i < e->n_rows; i++) {
        if (!belongs(e, i, first)) continue;
        n += (double)e->model[e->row[i].model].m->n_params;
        *several = *several || e->row[i].model != e->row[first].model;
    }
    return n;
}

/* Units that must not be parted: those that are finished together, and those that share a prefix, which is fed once for them;
 * the end of the ones that begin with `at`, and the ids that they feed. */
static int64_t together(const dq_eval *e, const dq_eval_row *row, int64_t at, double *fed)
{
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const int64_t n = dq_eval_units(e, row);
    int64_t end = at + (kind->group ? kind->group : 1);
    *fed = 0;
    if (!kind->windows) {
        const dq_shared_prefix *p = dq_items_shared_prefix(&e->ids[row->ids].req, at);
        if (p->n && p->end > end) end = p->end;
        *fed = (double)p->n;
    }
    if (end > n) end = n;
    *fed += dq_eval_sweep_feeds(e, row, at, end);
    return end;
}

static int64_t piece_end(const dq_eval *e, const dq_eval_row *row, int64_t begin, double rows,
                         double *fed)
{
    const int64_t n = dq_eval_units(e, row);
    int64_t end = together(e, row, begin, fed);
    while (end < n) {
        double more;
        const int64_t next = together(e, row, end, &more);
        if (*fed + more > rows) break;
        *fed += more;
        end = next;
    }
    return end;
}

static dq_status add_row(builder *b, int first, dq_err *err)
{
    const dq_eval_row *row = &b->e->row[first];
    const int64_t n = dq_eval_units(b->e, row);
    bool several;
    const double parameters = parameters_of(b->e, first, &several);
    const double rows = !b->cut ? INFINITY : several ? DQ_SCORE_ROWS : PIECE_ROWS;
    for (int64_t begin = 0, end; begin < n; begin = end) {
        double fed;
        end = piece_end(b->e, row, begin, rows, &fed);
        const int64_t number = b->out->n;
        dq_eval_piece *list =
            dq_grow(b->e->a, b->out->piece, (size_t)number + 1, &b->cap, sizeof *list, err);
        if (!list) return err->code;
        list[number] = (dq_eval_piece){number, first, b->turn, begin, end, fed * parameters};
        b->out->piece = list;
        b->out->n++;
    }
    return DQ_OK;
}

static int by_work(const void *a, const void *b)
{
    const dq_eval_piece *x = a, *y = b;
    if (x->work != y->work) return x->work < y->work ? 1 : -1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static int by_turn(const void *a, const void *b)
{
    const dq_eval_piece *x = a, *y = b;
    return x->turn != y->turn ? (x->turn < y->turn ? -1 : 1) : by_work(a, b);
}

void dq_eval_pieces_sort(dq_eval_pieces *p)
{
    if (p->n) qsort(p->piece, (size_t)p->n, sizeof *p->piece, by_turn);
}

/* Rows of items of one model, or the texts that it is the reference of. */
static dq_status add_model(builder *b, int model, bool windows, dq_err *err)
{
    const dq_eval *e = b->e;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *row = &e->row[i];
        if (row->same != i || row->model != model) continue;
        if (dq_eval_source_of(e, row)->kind->windows != windows) continue;
        if (!windows || row->ref == i) DQ_TRY(add_row(b, i, err));
    }
    b->turn++;
    return DQ_OK;
}

dq_status dq_eval_pieces_of(dq_eval_pieces *out, const dq_eval *e, bool cut, dq_err *err)
{
    builder b = {.e = e, .out = out, .cut = cut};
    *out = (dq_eval_pieces){0};
    for (int i = 0; i < e->n_models; i++) {
        DQ_TRY(add_model(&b, i, false, err));
        DQ_TRY(add_model(&b, i, true, err));
    }
    return DQ_OK;
}

/* ---- Shards ---- */

static int least(const double *work, int n)
{
    int at = 0;
    for (int i = 1; i < n; i++) {
        if (work[i] < work[at]) at = i;
    }
    return at;
}

dq_status dq_eval_pieces_share(int *shard, const dq_eval_pieces *p, int n_shards, dq_err *err)
{
    double *work = dq_block_new((size_t)n_shards, sizeof *work, err);
    dq_eval_piece *order = work ? dq_block_new((size_t)p->n + 1, sizeof *order, err) : NULL;
    if (order && p->n) memcpy(order, p->piece, (size_t)p->n * sizeof *order);
    if (order) qsort(order, (size_t)p->n, sizeof *order, by_work);
    for (int64_t i = 0; order && i < p->n; i++) {
        const int to = least(work, n_shards);
        shard[order[i].number] = to;
        work[to] += order[i].work;
    }
    dq_block_free(order);
    dq_block_free(work);
    return err->code;
}
