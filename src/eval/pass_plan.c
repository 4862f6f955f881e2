/* pass_plan: see pass_plan.h.
 * SPDX-License-Identifier: MIT */
#include "eval/pass_plan.h"

#include "base/os.h"

#include <string.h>

int64_t dq_score_fed(const dq_request *r)
{
    return r->n_ctx + r->n_cont - 1;
}

bool dq_score_same_context(const dq_requests *q, int64_t item)
{
    const dq_request *a = &q->req[q->at[item]];
    for (int64_t k = q->at[item] + 1; k < q->at[item + 1]; k++) {
        const dq_request *b = &q->req[k];
        if (a->n_ctx != b->n_ctx ||
            (a->ctx != b->ctx && memcmp(a->ctx, b->ctx, (size_t)a->n_ctx * sizeof *a->ctx) != 0))
            return false;
    }
    return true;
}

dq_status dq_score_plan_begin(dq_score_plan *p, dq_runner *r, dq_arena *a, int64_t seqs,
                              int64_t rows, int64_t asked, dq_err *err)
{
    *p = (dq_score_plan){.r = r, .a = a};
    p->cu = dq_alloc(a, (size_t)seqs + 1, sizeof *p->cu, err);
    p->seq = dq_alloc(a, (size_t)seqs, sizeof *p->seq, err);
    p->ids = dq_alloc(a, (size_t)rows, sizeof *p->ids, err);
    p->pos = dq_alloc(a, (size_t)rows, sizeof *p->pos, err);
    p->row = dq_alloc(a, (size_t)asked, sizeof *p->row, err);
    p->target = dq_alloc(a, (size_t)asked, sizeof *p->target, err);
    p->value = dq_alloc(a, (size_t)asked, sizeof *p->value, err);
    return err->code;
}

int32_t dq_score_open(dq_runner *r, dq_evictor *evictor, int32_t parent, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    dq_kv *kv = dq_runner_kv(r);
    int32_t s = parent < 0 ? b->ops->kv_seq_new(b, kv) : b->ops->kv_fork(b, kv, parent);
    if (s < 0) {
        dq_backend_sync(b, err);
        dq_fail(err, DQ_RESOURCE, "out of memory for the KV cache");
        return -1;
    }
    if (parent >= 0 && evictor && dq_evictor_fork(evictor, parent, s, err) != DQ_OK) {
        dq_score_close(r, evictor, &s, 1);
        return -1;
    }
    return s;
}

void dq_score_close(dq_runner *r, dq_evictor *evictor, const int32_t *seq, int64_t n)
{
    dq_backend *b = dq_runner_backend(r);
    for (int64_t i = 0; i < n; i++) {
        if (evictor) dq_evictor_forget(evictor, seq[i]);
        b->ops->kv_seq_free(b, dq_runner_kv(r), seq[i]);
    }
}

void dq_score_plan_sequence(dq_score_plan *p, int32_t seq)
{
    p->seq[p->n_seq++] = seq;
    p->cu[p->n_seq] = p->n_rows;
}

void dq_score_plan_rows(dq_score_plan *p, const int32_t *ids, int64_t n, int64_t pos)
{
    if (n > 0) memcpy(p->ids + p->n_rows, ids, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) p->pos[p->n_rows + i] = (int32_t)(pos + i);
    p->n_rows += n;
    p->cu[p->n_seq] = p->n_rows;
}

void dq_score_plan_ask(dq_score_plan *p, int64_t row, int32_t target, int64_t value)
{
    p->row[p->n_asked] = row;
    p->target[p->n_asked] = target;
    p->value[p->n_asked++] = value;
}

dq_batch dq_score_batch(const dq_score_plan *p)
{
    return (dq_batch){.n_seq = p->n_seq,
                      .n_rows = p->n_rows,
                      .cu_rows = p->cu,
                      .seq = p->seq,
                      .ids = p->ids,
                      .pos = p->pos};
}

int32_t *dq_score_plan_next(const dq_score_plan *p, dq_err *err)
{
    int32_t *next = dq_block_new((size_t)p->n_seq, sizeof *next, err);
    for (int i = 0; next && i < p->n_seq; i++)
        next[i] = p->cu[i + 1] > p->cu[i] ? p->pos[p->cu[i + 1] - 1] + 1 : 0;
    return next;
}

dq_status dq_score_plan_evict(const dq_score_plan *p, dq_evict_report *report, dq_work *work,
                              dq_err *err)
{
    const dq_batch batch = dq_score_batch(p);
    const double start = dq_seconds();
    int32_t *prefix = dq_score_plan_next(p, err);
    if (prefix) dq_evictor_run(p->evictor, &batch, prefix, report, err);
    dq_block_free(prefix);
    work->seconds += dq_seconds() - start;
    return err->code;
}

dq_status dq_score_plan_pass(dq_score_plan *p, const dq_pass *pass, dq_mat *hidden, dq_work *work,
                             dq_err *err)
{
    dq_batch batch = dq_score_batch(p);
    dq_pass watched = *pass;
    double start = dq_seconds();
    DQ_TRY(dq_check_stop(err));
    if (p->evictor) DQ_TRY(dq_evictor_watch(p->evictor, &batch, &watched.columns, err));
    DQ_TRY(dq_runner_pass(p->r, &batch, &watched, hidden, err));
    work->computed += p->n_rows;
    work->seconds += dq_seconds() - start;
    return DQ_OK;
}

/* What the asked rows read; rows of a sequence are asked one behind the other. */
static dq_status count_reads(const dq_score_plan *p, dq_work *work, dq_err *err)
{
    int32_t *pos;
    if (!dq_kv_has_codes(dq_runner_kv_spec(p->r))) return DQ_OK;
    pos = dq_block_new((size_t)p->n_asked, sizeof *pos, err);
    for (int64_t k = 0; pos && k < p->n_asked; k++) pos[k] = p->pos[p->row[k]];
    for (int64_t i = 0, k = 0; pos && err->code == DQ_OK && i < p->n_seq; i++) {
        const int64_t from = k;
        while (k < p->n_asked && p->row[k] < p->cu[i + 1]) k++;
        dq_kv_held_reads(&work->held, p->r, p->seq[i], pos + from, k - from, err);
    }
    dq_block_free(pos);
    return err->code;
}

dq_status dq_score_plan_run(dq_score_plan *p, const dq_pass *pass, dq_mat state, double *logp,
                            int32_t *top1, dq_work *work, dq_err *err)
{
    dq_backend *b = dq_runner_backend(p->r);
    dq_mat hidden;
    DQ_TRY(dq_score_plan_pass(p, pass, &hidden, work, err));
    DQ_TRY(count_reads(p, work, err));
    double start = dq_seconds();
    b->ops->gather(b, state, hidden, p->row);
    b->ops->logprob(b, logp, top1, state, &dq_runner_model(p->r)->head, p->target,
                    pass->math.linear);
    if (dq_backend_sync(b, err) != DQ_OK) return dq_runner_advise(p->r, p->n_rows, err);
    work->seconds += dq_seconds() - start;
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

dq_status dq_score_plan_items(dq_score_plan *p, const dq_pass *pass, double *logp, int32_t *top1,
                              dq_work *work, dq_err *err)
{
    dq_mat hidden;
    if (p->n_rows == 0) return DQ_OK;
    if (p->n_asked == 0) return dq_score_plan_pass(p, pass, &hidden, work, err);
    double *lp = dq_alloc(p->a, (size_t)p->n_asked, sizeof *lp, err);
    int32_t *top = dq_alloc(p->a, (size_t)p->n_asked, sizeof *top, err);
    dq_mat state = {0};
    if (err->code == DQ_OK) state = state_new(p->r, p->n_asked, err);
    if (err->code == DQ_OK && dq_score_plan_run(p, pass, state, lp, top, work, err) == DQ_OK) {
        for (int64_t i = 0; i < p->n_asked; i++) {
            logp[p->value[i]] = lp[i];
            top1[p->value[i]] = top[i];
        }
    }
    dq_backend *b = dq_runner_backend(p->r);
    b->ops->free(b, state.p);
    return err->code;
}
