/* bench_clocked: see bench_clocked.h. A copy of the backend's table, with clocks around the operations of interest, takes the
 * table's place. An operation knows its backend only, so what goes with the copy is a variable of this file.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_clocked.h"

#include "cmds/bench/bench_rates.h"

#include <string.h>

static struct {
    const dq_ops *of;
    dq_ops clocked;
    dq_bench_clocked sum;
} table;

static void matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                   dq_num num)
{
    const double start = dq_bench_now(b);
    table.of->matmul(b, dst, src, w, bias, num);
    table.sum.products += dq_bench_now(b) - start;
}

static void logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                    const dq_weight *head, const int32_t *target, dq_num num)
{
    const double start = dq_bench_now(b);
    table.of->logprob(b, logp, top1, hidden, head, target, num);
    table.sum.products += dq_bench_now(b) - start;
}

static void attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args)
{
    const double start = dq_bench_now(b);
    table.of->attn_absmax(b, absmax, args);
    table.sum.attention += dq_bench_now(b) - start;
}

static void attend(dq_backend *b, dq_mat dst, const dq_attend_args *args)
{
    const double start = dq_bench_now(b);
    table.of->attend(b, dst, args);
    table.sum.attention += dq_bench_now(b) - start;
}

bool dq_bench_clocked_begin(dq_backend *b)
{
    if (strcmp(b->ops->name, "cpu") != 0) return false;
    table.of = b->ops;
    table.clocked = *b->ops;
    table.clocked.matmul = matmul;
    table.clocked.logprob = logprob;
    table.clocked.attn_absmax = attn_absmax;
    table.clocked.attend = attend;
    table.sum = (dq_bench_clocked){0};
    b->ops = &table.clocked;
    return true;
}

dq_bench_clocked dq_bench_clocked_take(void)
{
    const dq_bench_clocked sum = table.sum;
    table.sum = (dq_bench_clocked){0};
    return sum;
}

void dq_bench_clocked_end(dq_backend *b)
{
    if (b->ops == &table.clocked) b->ops = table.of;
}
