/* pass_plan: see pass_plan.h. A plan is the arrays of a ragged batch, filled from left to right: cu[i] is the
 * first row of sequence i. Requested rows are gathered out of the pass's final states, so that the output
 * head is read once for all of them and for no other row.
 * SPDX-License-Identifier: MIT */
#include "eval/pass_plan.h"

#include "base/os.h"

#include <string.h>

dq_status dq_pass_plan_begin(dq_pass_plan *p, dq_scorer *s, dq_arena *a, int64_t seqs, int64_t rows,
                             int64_t requested, dq_err *err)
{
    *p = (dq_pass_plan){.s = s, .a = a};
    p->cu = dq_alloc(a, (size_t)seqs + 1, sizeof *p->cu, err);
    p->seq = dq_alloc(a, (size_t)seqs, sizeof *p->seq, err);
    p->ids = dq_alloc(a, (size_t)rows, sizeof *p->ids, err);
    p->pos = dq_alloc(a, (size_t)rows, sizeof *p->pos, err);
    p->row = dq_alloc(a, (size_t)requested, sizeof *p->row, err);
    p->target = dq_alloc(a, (size_t)requested, sizeof *p->target, err);
    p->value = dq_alloc(a, (size_t)requested, sizeof *p->value, err);
    return err->code;
}

void dq_pass_plan_clear(dq_pass_plan *p)
{
    p->n_seq = 0;
    p->n_rows = p->n_requested = 0;
}

void dq_pass_plan_sequence(dq_pass_plan *p, int32_t seq)
{
    p->seq[p->n_seq++] = seq;
    p->cu[p->n_seq] = p->n_rows;
}

void dq_pass_plan_rows(dq_pass_plan *p, const int32_t *ids, int64_t n, int64_t pos)
{
    if (n > 0) memcpy(p->ids + p->n_rows, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) p->pos[p->n_rows + i] = (int32_t)(pos + i);
    p->n_rows += n;
    p->cu[p->n_seq] = p->n_rows;
}

void dq_pass_plan_ask(dq_pass_plan *p, int64_t row, int32_t target, int64_t value)
{
    p->row[p->n_requested] = row;
    p->target[p->n_requested] = target;
    p->value[p->n_requested++] = value;
}

static dq_batch batch_of(const dq_pass_plan *p)
{
    return (dq_batch){.n_seq = p->n_seq,
                      .n_rows = p->n_rows,
                      .cu_rows = p->cu,
                      .seq = p->seq,
                      .ids = p->ids,
                      .pos = p->pos};
}

dq_status dq_pass_plan_run(dq_pass_plan *p, dq_mat *hidden, dq_err *err)
{
    dq_scorer *s = p->s;
    dq_batch batch = batch_of(p);
    dq_pass pass = s->pass;
    double start = dq_os_seconds();
    pass.spans = p->spans;
    DQ_TRY(dq_os_check_stop(err));
    if (s->evictor) DQ_TRY(dq_evictor_watch(s->evictor, &batch, &pass.columns, err));
    DQ_TRY(dq_runner_pass(s->r, &batch, &pass, hidden, err));
    s->work.computed += p->n_rows;
    s->work.seconds += dq_os_seconds() - start;
    return DQ_OK;
}

/* What the requested rows read. */
static dq_status count_reads(const dq_pass_plan *p, dq_err *err)
{
    dq_runner *r = p->s->r;
    int32_t *pos;
    if (!dq_kv_has_codes(dq_runner_kv_spec(r))) return DQ_OK;
    pos = dq_block_new((size_t)p->n_requested, sizeof *pos, err);
    for (int64_t k = 0; pos && k < p->n_requested; k++) pos[k] = p->pos[p->row[k]];
    for (int64_t i = 0, k = 0; pos && err->code == DQ_OK && i < p->n_seq; i++) {
        const int64_t from = k;
        while (k < p->n_requested && p->row[k] < p->cu[i + 1]) k++;
        dq_kv_cached_reads(&p->s->work.cached, r, p->seq[i], pos + from, k - from, err);
    }
    dq_block_free(pos);
    return err->code;
}

dq_status dq_pass_plan_answer(dq_pass_plan *p, dq_mat state, dq_scores out, dq_err *err)
{
    dq_scorer *s = p->s;
    dq_backend *b = dq_runner_backend(s->r);
    dq_mat hidden;
    DQ_TRY(dq_pass_plan_run(p, &hidden, err));
    DQ_TRY(count_reads(p, err));
    double start = dq_os_seconds();
    b->ops->gather(b, state, hidden, p->row);
    b->ops->logprob(b, out.logp, out.top1, state, &dq_runner_model(s->r)->head, p->target,
                    s->pass.math.linear);
    if (dq_backend_sync(b, err) != DQ_OK) return dq_runner_advise(s->r, p->n_rows, err);
    s->work.seconds += dq_os_seconds() - start;
    return DQ_OK;
}

static dq_mat state_new(dq_runner *r, int64_t rows, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    dq_mat m = {.rows = rows, .cols = dq_runner_model(r)->dim};
    m.p = b->ops->alloc(b, (size_t)(m.rows * m.cols) * sizeof *m.p);
    if (!m.p) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for %lld final states", (long long)rows);
    }
    return m;
}

dq_status dq_pass_plan_score(dq_pass_plan *p, dq_scores out, dq_err *err)
{
    dq_backend *b = dq_runner_backend(p->s->r);
    dq_mat state = {0};
    if (p->n_rows == 0) return DQ_OK;
    if (p->n_requested == 0) return dq_pass_plan_run(p, &state, err);
    dq_scores requested = {
        .logp = dq_alloc(p->a, (size_t)p->n_requested, sizeof *requested.logp, err),
        .top1 = dq_alloc(p->a, (size_t)p->n_requested, sizeof *requested.top1, err)};
    if (err->code == DQ_OK) state = state_new(p->s->r, p->n_requested, err);
    if (err->code == DQ_OK && dq_pass_plan_answer(p, state, requested, err) == DQ_OK) {
        for (int64_t i = 0; i < p->n_requested; i++) {
            out.logp[p->value[i]] = requested.logp[i];
            out.top1[p->value[i]] = requested.top1[i];
        }
    }
    b->ops->free(b, state.p);
    return err->code;
}

/* Position of the next row of each sequence (0 where it had no rows): [n_seq], a block. */
static int32_t *next_positions(const dq_pass_plan *p, dq_err *err)
{
    int32_t *next = dq_block_new((size_t)p->n_seq, sizeof *next, err);
    for (int i = 0; next && i < p->n_seq; i++)
        next[i] = p->cu[i + 1] > p->cu[i] ? p->pos[p->cu[i + 1] - 1] + 1 : 0;
    return next;
}

dq_status dq_pass_plan_compress(const dq_pass_plan *p, const dq_kv_bytes *floor, dq_err *err)
{
    dq_scorer *s = p->s;
    const dq_batch batch = batch_of(p);
    dq_evict_report report = dq_evict_report_none;
    const double start = dq_os_seconds();
    int32_t *next = next_positions(p, err);
    if (!next) return err->code;
    if (s->evictor) {
        dq_evictor_run(s->evictor, &batch, next, &report, err);
        s->work.computed += report.second_pass;
        s->work.seconds += dq_os_seconds() - start;
    }
    if (floor && err->code == DQ_OK) {
        if (s->evictor) dq_kv_cached_report(&s->work.cached, &report, p->n_seq);
        dq_kv_cached_measure(&s->work.cached, s->r, s->kv, floor, p->seq, next, p->n_seq);
    }
    dq_block_free(next);
    return err->code;
}
