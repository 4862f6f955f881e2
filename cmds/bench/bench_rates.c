/* bench_rates: see bench_rates.h. Floating-point operations are counted from the shapes, times are medians of
 * whole runs. The rate of a bare product is the best of three after one that warms up, and is what a prompt's
 * rate is compared with.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_rates.h"

#include "base/os.h"
#include "eval/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

dq_bench_timing dq_bench_timing_of(double *s, int64_t n)
{
    qsort(s, (size_t)n, sizeof *s, by_value);
    return (dq_bench_timing){
        .median = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2, .min = s[0], .max = s[n - 1]};
}

static bool by_processor(const dq_backend *b)
{
    return b->threads == 1 && strcmp(b->ops->name, "cpu") == 0;
}

double dq_bench_now(const dq_backend *b)
{
    return by_processor(b) ? dq_os_own_seconds() : dq_os_seconds();
}

const char *dq_bench_clock(const dq_backend *b)
{
    return by_processor(b) ? "processor" : "wall";
}

double dq_bench_row_flops(const dq_model *m)
{
    const dq_layer *l = &m->layer[0];
    const dq_weight *w[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double sum = 0;
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
        sum += 2 * (double)w[i]->rows * (double)w[i]->cols;
    return m->n_layers * sum;
}

double dq_bench_logits_flops(const dq_model *m)
{
    return 2 * (double)m->vocab * (double)m->dim;
}

double dq_bench_prefill_flops(const dq_model *m, double n)
{
    const dq_head_order *a = &m->map;
    const double pairs = n * (n + 1) / 2;
    const double attention = 2.0 * a->head_dim * (a->n_q + (double)a->n_out * a->n_slabs);
    return dq_bench_row_flops(m) * n + m->n_layers * attention * pairs + dq_bench_logits_flops(m);
}

dq_status dq_bench_product_rate(double *flops, dq_backend *b, const dq_model *m, dq_num num,
                                dq_err *err)
{
    const dq_ops *op = b->ops;
    const dq_weight *w = &m->layer[0].gate;
    dq_mat in = {.rows = DQ_BENCH_PRODUCT_ROWS, .cols = w->cols},
           out = {.rows = DQ_BENCH_PRODUCT_ROWS, .cols = w->rows};
    in.p = dq_bench_floats(b, in.rows * in.cols, err);
    out.p = op->alloc(b, (size_t)(out.rows * out.cols) * sizeof(float));
    double best = HUGE_VAL;
    if (err->code == DQ_OK && !out.p) dq_fail(err, DQ_RESOURCE, "out of memory");
    for (int i = 0; err->code == DQ_OK && i < 4; i++) {
        const double start = dq_bench_now(b);
        op->matmul(b, out, in, w, NULL, num);
        dq_backend_sync(b, err);
        const double s = dq_bench_now(b) - start;
        if (i > 0 && s < best) best = s;
    }
    op->free(b, in.p);
    op->free(b, out.p);
    *flops = 2.0 * DQ_BENCH_PRODUCT_ROWS * (double)w->rows * (double)w->cols / best;
    return err->code;
}

void dq_bench_ids(int32_t *ids, int64_t n, const dq_model *m, uint32_t seed)
{
    uint32_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        ids[i] = (int32_t)((state >> 8) % (uint32_t)m->vocab);
    }
}

dq_status dq_bench_prompt_new(dq_bench_prompt *p, const dq_model *m, int64_t n, dq_err *err)
{
    *p = (dq_bench_prompt){.n = n};
    p->ids = dq_block_new((size_t)n, sizeof *p->ids, err);
    p->pos = dq_block_new((size_t)n, sizeof *p->pos, err);
    if (err->code == DQ_OK) dq_bench_ids(p->ids, n, m, 1);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) p->pos[i] = (int32_t)i;
    if (err->code != DQ_OK) dq_bench_prompt_free(p);
    return err->code;
}

void dq_bench_prompt_free(dq_bench_prompt *p)
{
    dq_block_free(p->ids);
    dq_block_free(p->pos);
    *p = (dq_bench_prompt){0};
}

dq_status dq_bench_prompt_run(double *seconds, dq_runner *r, const dq_bench_prompt *p,
                              dq_logit_spec logit, dq_math math, dq_err *err)
{
    dq_backend *b = dq_runner_backend(r);
    dq_kv *kv = dq_runner_kv(r);
    int32_t seq = b->ops->kv_seq_new(b, kv), top1;
    const int64_t cu[2] = {0, p->n};
    const dq_batch batch = {
        .n_seq = 1, .n_rows = p->n, .cu_rows = cu, .seq = &seq, .ids = p->ids, .pos = p->pos};
    const dq_pass pass = {.logit = logit, .math = math};
    dq_mat hidden;
    double logp;
    const double start = dq_bench_now(b);
    if (dq_runner_pass(r, &batch, &pass, &hidden, err) == DQ_OK) {
        const dq_mat last = {
            .p = hidden.p + (hidden.rows - 1) * hidden.cols, .rows = 1, .cols = hidden.cols};
        b->ops->logprob(b, &logp, &top1, last, &dq_runner_model(r)->head, p->ids, math.linear);
        dq_backend_sync(b, err);
    }
    *seconds = dq_bench_now(b) - start;
    if (err->code == DQ_OK) dq_score_check_logp(dq_runner_model(r), &logp, 1, err);
    b->ops->kv_seq_free(b, kv, seq);
    return err->code;
}

float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err)
{
    float *host = dq_block_new((size_t)n, sizeof *host, err);
    float *p = host ? b->ops->alloc(b, (size_t)n * sizeof *p) : NULL;
    uint32_t state = 7;
    for (int64_t i = 0; host && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
    if (p) b->ops->put(b, p, host, (size_t)n * sizeof *p);
    dq_block_free(host);
    if (!p) dq_fail(err, DQ_RESOURCE, "out of memory");
    return p;
}
