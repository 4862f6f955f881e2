/* bench_rates: what the benchmarks of dq bench have in common: repeated times, a prompt as prefill sees it, and
 * the rate of the model's own matrix product.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_RATES_H
#define DQ_BENCH_RATES_H

#include "engine/runner.h"

typedef struct dq_bench_timing {
    double median, min, max;
} dq_bench_timing;
/* Of n > 0 numbers, which it sorts. */
dq_bench_timing dq_bench_timing_of(double *s, int64_t n);

/* The clock of benchmarks, in seconds. One thread of the CPU is timed by what it gets of a processor, which other work
 * on the machine disturbs less; waiting threads may spin, so several are timed by the clock on the wall. */
double dq_bench_now(const dq_backend *b);
const char *dq_bench_clock(const dq_backend *b); /* "processor" or "wall" */

/* Multiply-adds (each counts as two) of the projections of one row in all layers, of one row of logits, and of one
 * prefill of n tokens: these, the visible query-key pairs of every map and the value products of every output
 * head. */
double dq_bench_row_flops(const dq_model *m);
double dq_bench_logits_flops(const dq_model *m);
double dq_bench_prefill_flops(const dq_model *m, double n);

/* *flops: per second, of the backend's own dense product at the feed-forward shape, the best of three.
 * Activations are filled in: products pass over what is zero. */
enum { DQ_BENCH_PRODUCT_ROWS = 1024 };
dq_status dq_bench_product_rate(double *flops, dq_backend *b, const dq_model *m, dq_num num,
                                dq_err *err);

/* n invented ids, others for every seed: speed does not depend on them. */
void dq_bench_ids(int32_t *ids, int64_t n, const dq_model *m, uint32_t seed);
/* n of them at positions 0 .. n - 1. */
typedef struct dq_bench_prompt {
    int32_t *ids, *pos; /* [n], owned */
    int64_t n;
} dq_bench_prompt;
dq_status dq_bench_prompt_new(dq_bench_prompt *p, const dq_model *m, int64_t n, dq_err *err);
void dq_bench_prompt_free(dq_bench_prompt *p);
/* *seconds of one prefill, from the first operation to the last row's log-probability. */
dq_status dq_bench_prompt_run(double *seconds, dq_runner *r, const dq_bench_prompt *p,
                              dq_logit_spec logit, dq_math math, dq_err *err);

/* n invented numbers in [-1, 1) in backend memory; NULL with DQ_RESOURCE. The caller frees them. */
float *dq_bench_floats(dq_backend *b, int64_t n, dq_err *err);

#endif
