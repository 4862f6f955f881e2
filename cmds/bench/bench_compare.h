/* bench_compare: documents of dq bench and of tests/peers/bench.py side by side.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_COMPARE_H
#define DQ_BENCH_COMPARE_H

#include "base/base.h"

/* One line for every work: what a peer and dq reached, in tokens per second, and dq over peer. Documents of peers
 * (dq-peers/1) have both. What dq bench measured (dq-bench/1; prefill and generate) takes the place of dq's figure, with a
 * mark, on the lines of the same model, work, weights, arithmetic and threads; it makes a line of its own where there is
 * none. The order of documents does not matter. Prints a table. DQ_DAMAGED for what is no such document, DQ_MISMATCH for
 * other schemas and kinds, and for a line that is there twice. */
dq_status dq_bench_compare(const char *const *path, int n, dq_err *err);

#endif
