/* calib_pass: see calib_pass.h. A chunk has a cache of its own for each layer, so that memory is that of one layer.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calib_pass.h"

#include "base/ranks.h"
#include "engine/runner.h"

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t dq_calib_pass_y(const dq_model *m)
{
    return (int64_t)m->map.n_out * m->map.n_slabs * m->map.head_dim;
}

int64_t dq_calib_pass_widest(const dq_model *m)
{
    return larger(larger(dq_calib_pass_y(m), m->ffn), m->dim);
}

int64_t dq_calib_pass_rows(const dq_calib_text *t)
{
    const int64_t rows = larger(DQ_CALIB_PASS_ROWS, dq_calib_text_longest(t));
    return rows < t->n_ids ? rows : t->n_ids;
}

static int64_t gate_rows(int64_t rows)
{
    return dq_ranks_count() > 1 || rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
}

int64_t dq_calib_pass_bytes(const dq_model *m, int64_t rows)
{
    const dq_head_order *a = &m->map;
    const int64_t ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS, d = a->head_dim;
    const int64_t y = dq_calib_pass_y(m), cache = 2 * (int64_t)a->n_kv * d;
    const int64_t heads = ((int64_t)a->n_q + 2 * (int64_t)a->n_kv + 1) * d + a->n_out;
    const int64_t moved = larger(rows * larger(m->dim, y), ffn_rows * m->ffn);
    const int64_t ffn = (gate_rows(rows) + ffn_rows) * m->ffn;
    return (rows * (2 * m->dim + heads + y + cache) + ffn + moved) * (int64_t)sizeof(float);
}

/* Sequence after the last one of the chunk that begins with s. */
static int64_t chunk_end(const dq_calib_text *t, int64_t s)
{
    int64_t end = s + 1;
    while (end < t->n_seq && t->cu[end + 1] - t->cu[s] <= DQ_CALIB_PASS_ROWS) end++;
    return end;
}

static dq_status list_chunks(dq_calib_pass *p, const dq_calib_text *t, dq_err *err)
{
    dq_arena *a = p->arena;
    const int ranks = dq_ranks_count();
    int32_t *pos = dq_alloc(a, (size_t)t->n_ids, sizeof *pos, err);
    int32_t *seq = dq_alloc(a, (size_t)t->n_seq, sizeof *seq, err);
    int64_t *cu = dq_alloc(a, 2 * (size_t)t->n_seq, sizeof *cu, err);
    p->chunk = dq_alloc(a, (size_t)t->n_seq, sizeof *p->chunk, err);
    p->row = dq_alloc(a, (size_t)t->n_seq + 1, sizeof *p->row, err);
    if (err->code != DQ_OK) return err->code;
    for (int64_t s = 0, end; s < t->n_seq; s = end) {
        const int64_t first = t->cu[s];
        end = chunk_end(t, s);
        p->max_rows = larger(p->max_rows, t->cu[end] - first);
        p->row[p->n_all] = first;
        p->row[p->n_all + 1] = t->cu[end];
        if (p->n_all++ % ranks != dq_ranks_number()) continue;
        dq_calib_chunk *k = &p->chunk[p->n_chunks++];
        k->first = p->n_rows;
        k->first_row = first;
        k->first_seq = s;
        k->batch = (dq_batch){.n_seq = (int)(end - s),
                              .n_rows = t->cu[end] - first,
                              .cu_rows = cu,
                              .seq = seq,
                              .ids = t->ids + first,
                              .pos = pos + first};
        for (int64_t i = s; i <= end; i++) *cu++ = t->cu[i] - first;
        p->n_rows += k->batch.n_rows;
    }
    p->n_rounds = (p->n_all + ranks - 1) / ranks;
    for (int64_t s = 0; s < t->n_seq; s++) {
        for (int64_t i = t->cu[s]; i < t->cu[s + 1]; i++) pos[i] = (int32_t)(i - t->cu[s]);
    }
    return DQ_OK;
}

double dq_calib_pass_at_once(const dq_calib_pass *p, int64_t round)
{
    const dq_calib_chunk *own = dq_calib_pass_chunk(p, round);
    const int64_t first = round * dq_ranks_count(), left = p->n_all - first,
                  n = left < dq_ranks_count() ? left : dq_ranks_count();
    return own ? (double)(p->row[first + n] - p->row[first]) / (double)own->batch.n_rows : 0;
}

void dq_calib_pass_join(const dq_calib_pass *p, void *x, size_t bytes)
{
    for (int64_t i = 0; i < p->n_all; i++) {
        const size_t at = (size_t)p->row[i] * bytes, end = (size_t)p->row[i + 1] * bytes;
        dq_ranks_spread((int)(i % dq_ranks_count()), (char *)x + at, end - at);
    }
}

static dq_mat buffer(dq_calib_pass *p, int64_t rows, int64_t cols)
{
    dq_mat m = {.rows = rows, .cols = cols};
    if (cols > 0) m.p = p->b->ops->alloc(p->b, (size_t)(rows * cols) * sizeof *m.p);
    if (cols > 0 && !m.p)
        dq_fail(&p->b->err, DQ_RESOURCE, "out of memory for a pass of %lld rows of calibration",
                (long long)rows);
    return m;
}

dq_status dq_calib_pass_new(dq_calib_pass *p, const dq_model *m, dq_backend *b,
                            const dq_calib_text *text, dq_err *err)
{
    const dq_head_order *a = &m->map;
    *p = (dq_calib_pass){.b = b, .arena = dq_arena_new()};
    if (!p->arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    DQ_TRY(list_chunks(p, text, err));
    const int64_t rows = p->max_rows, ffn_rows = rows < DQ_FFN_ROWS ? rows : DQ_FFN_ROWS;
    p->x = buffer(p, rows, m->dim);
    p->h = buffer(p, rows, m->dim);
    p->q = buffer(p, rows, (int64_t)a->n_q * a->head_dim);
    p->k = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->v = buffer(p, rows, (int64_t)a->n_kv * a->head_dim);
    p->y = buffer(p, rows, dq_calib_pass_y(m));
    p->angles = buffer(p, rows, a->head_dim);
    p->lambda = buffer(p, rows, m->architecture->lambda == DQ_LAMBDA_TOKEN ? a->n_out : 0);
    p->gate = buffer(p, gate_rows(rows), m->ffn);
    p->up = buffer(p, ffn_rows, m->ffn);
    return dq_backend_sync(b, err);
}

void dq_calib_pass_end(dq_calib_pass *p)
{
    const dq_mat all[] = {p->x, p->h, p->q, p->k, p->v, p->y, p->angles, p->lambda, p->gate, p->up};
    for (size_t i = 0; p->b && i < sizeof all / sizeof *all; i++) p->b->ops->free(p->b, all[i].p);
    dq_arena_free(p->arena);
    *p = (dq_calib_pass){.b = NULL};
}

dq_layer_steps dq_calib_pass_steps(const dq_calib_pass *p, const dq_model *m, const dq_layer *layer,
                                   const dq_calib_chunk *k)
{
    const int64_t n = k->batch.n_rows;
    return (dq_layer_steps){.b = p->b,
                            .m = m,
                            .layer = layer,
                            .batch = &k->batch,
                            .kv_spec = &dq_kv_plain,
                            .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32},
                            .x = dq_calib_pass_first(p->x, n),
                            .h = dq_calib_pass_first(p->h, n),
                            .q = dq_calib_pass_first(p->q, n),
                            .k = dq_calib_pass_first(p->k, n),
                            .v = dq_calib_pass_first(p->v, n),
                            .y = dq_calib_pass_first(p->y, n),
                            .angles = dq_calib_pass_first(p->angles, n),
                            .lambda = dq_calib_pass_first(p->lambda, n)};
}

dq_status dq_calib_pass_cache(const dq_calib_pass *p, dq_layer_steps *s, dq_err *err)
{
    union { /* handles of this chunk; the batch is read-only for everybody else */
        const int32_t *in;
        int32_t *out;
    } seq = {s->batch->seq};
    s->kv = p->b->ops->kv_new(p->b, &s->m->map, 1, s->kv_spec);
    if (!s->kv) {
        dq_backend_sync(p->b, err);
        return dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache of calibration");
    }
    for (int i = 0; i < s->batch->n_seq; i++) seq.out[i] = p->b->ops->kv_seq_new(p->b, s->kv);
    p->b->ops->rope_table(p->b, s->angles, s->batch->pos, &s->m->rope);
    return DQ_OK;
}
