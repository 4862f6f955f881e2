/* bench_limits: see bench_limits.h. The operations of the backend are short, so that they are repeated until the clock has
 * seen enough of them.
 * SPDX-License-Identifier: MIT */
#include "cmds/bench/bench_limits.h"

#include "base/os.h"
#include "cmds/bench/bench_rates.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double dq_bench_limits_ops(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction)
{
    const double enough = 0.02;
    double ops = 0, seconds = 0;
    *instruction = NULL;
    if (!b->ops->peak_ops || b->ops->peak_ops(b, num, w, instruction) <= 0) return (double)NAN;
    const double start = dq_bench_now(b);
    while (seconds < enough) {
        ops += b->ops->peak_ops(b, num, w, instruction);
        seconds = dq_bench_now(b) - start;
    }
    return ops / seconds;
}

double dq_bench_limits_model(dq_backend *b, dq_num num, const dq_model *m, const char **instruction)
{
    enum { KERNELS = 8 };
    const char *seen[KERNELS];
    int n = 0;
    double most = (double)NAN;
    *instruction = NULL;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            const char *kernel = b->ops->matmul_kernel(b, all[k], num), *name;
            int at = 0;
            while (at < n && seen[at] != kernel) at++;
            if (!kernel || at < n || n == KERNELS) continue;
            seen[n++] = kernel;
            const double ops = dq_bench_limits_ops(b, num, all[k], &name);
            if (!name || ops <= most) continue; /* NaN is exceeded by everything */
            most = ops;
            *instruction = name;
        }
    }
    return most;
}

const char *dq_bench_peak(char name[DQ_BENCH_PEAK], dq_num num, const char *instruction)
{
    if (instruction)
        snprintf(name, DQ_BENCH_PEAK, "%s multiply-adds (%s)", dq_num_name[num], instruction);
    else
        snprintf(name, DQ_BENCH_PEAK, "not known");
    return name;
}

void dq_bench_peak_json(json_t *settings, dq_num num, const char *instruction)
{
    char name[DQ_BENCH_PEAK];
    dq_bench_peak(name, num, instruction);
    json_object_set_new(settings, "peak", instruction ? json_string(name) : json_null());
}

void dq_bench_block_new(dq_bench_block *block, dq_backend *b, double weights)
{
    const double least = 1 << 27, most = 1 << 30, cache = 4 * (double)dq_os_cache_bytes();
    *block = (dq_bench_block){.b = b};
    if (!b->ops->peak_read) return;
    block->bytes = (size_t)fmin(fmax(weights, fmax(cache, least)), most) / 4096 * 4096;
    block->p = b->ops->alloc(b, block->bytes);
    dq_err none = {0};
    if (block->p)
        memset(block->p, 1, block->bytes); /* memory that was never written is one page of zeros */
    else
        dq_backend_sync(b, &none); /* the measurement goes on without it */
}

void dq_bench_block_free(dq_bench_block *block)
{
    if (block->b) block->b->ops->free(block->b, block->p);
    *block = (dq_bench_block){0};
}

double dq_bench_block_read(const dq_bench_block *block, double seconds)
{
    if (!block->p) return (double)NAN;
    const double start = dq_bench_now(block->b);
    double bytes = 0, spent;
    do {
        block->b->ops->peak_read(block->b, block->p, block->bytes);
        bytes += (double)block->bytes;
        spent = dq_bench_now(block->b) - start;
    } while (spent < seconds);
    return bytes / spent;
}
