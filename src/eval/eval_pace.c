/* eval_pace: how long a sweep is expected to take: the tokens of each row, at what a short pass of its model takes. Of caches and long
 * contexts only the sweep itself learns more.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "eval/eval_sweep.h"

enum { LEAST = 8, MOST = 128 };  /* rows of the pass */
static const double much = 2e10; /* parameters times rows */

/* Two passes, of which the first one packs weights. */
dq_status dq_eval_token_seconds(double *seconds, dq_runner *r, const dq_pass *pass, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    const double fit = much / (double)dq_runner_model(r)->n_params;
    const int64_t n = fit < LEAST ? LEAST : fit < MOST ? (int64_t)fit : MOST;
    const int64_t cu[2] = {0, n};
    int32_t ids[MOST] = {0}, pos[MOST], seq;
    dq_mat hidden;
    for (int i = 0; i < MOST; i++) pos[i] = i;
    for (int i = 0; err->code == DQ_OK && i < 2; i++) {
        seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
        const dq_batch batch = {
            .n_seq = 1, .n_rows = n, .cu_rows = cu, .seq = &seq, .ids = ids, .pos = pos};
        const double begin = dq_os_seconds();
        if (seq < 0) return dq_backend_sync(b, err);
        if (dq_runner_pass(r, &batch, pass, &hidden, err) == DQ_OK) dq_backend_sync(b, err);
        *seconds = (dq_os_seconds() - begin) / (double)n;
        b->ops->kv_seq_free(b, dq_runner_kv(r), seq);
    }
    return err->code;
}

/* By the runner of the plain cache, which has no codes that a row's arithmetic may need. */
static dq_status time_model(dq_eval_sweep *s, const dq_eval_row *row, dq_err *err)
{
    dq_eval_model *m = &s->e->model[row->model];
    const dq_pass pass = {.logit = dq_logit_plain,
                          .math = {row->math.linear, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
    DQ_TRY(dq_eval_sweep_hold(s, row->model, err));
    return dq_eval_token_seconds(&m->seconds, s->runner, &pass, err);
}

double dq_eval_expected(dq_eval *e)
{
    dq_eval_sweep s;
    e->share = 1;
    dq_eval_sweep_begin(&s, e);
    return dq_pace_left(&s.pace);
}

dq_status dq_eval_measure(double *seconds, dq_eval *e, dq_err *err)
{
    dq_eval_sweep s = {.e = e, .model = -1};
    for (int i = 0; err->code == DQ_OK && i < e->n_rows; i++)
        if (e->model[e->row[i].model].seconds <= 0) time_model(&s, &e->row[i], err);
    dq_eval_sweep_end(&s);
    *seconds = dq_eval_expected(e);
    return err->code;
}
