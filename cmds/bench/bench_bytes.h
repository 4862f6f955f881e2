/* bench_bytes: the stored bytes of the weights that one step of decoding reads, and their storage in words.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_BYTES_H
#define DQ_BENCH_BYTES_H

#include "model/model.h"
#include "record/record.h"

/* Bytes as stored; a layout that a device makes for itself may take a little more. Every weight that a product reads once,
 * gains and biases; of the embedding the rows that are looked up. A head that shares the embedding's memory is read whole. */
typedef struct dq_bench_bytes {
    double codes, scales;
    double zeros; /* zero points and indices of groups */
    double dense; /* without codes */
    double total;
    double weights; /* numbers in those that products read */
} dq_bench_bytes;
/* Of one pass of so many rows. */
dq_bench_bytes dq_bench_bytes_of(const dq_model *m, int rows);
/* {"total", "codes", "scales", "zeros", "dense"} */
json_t *dq_bench_bytes_json(const dq_bench_bytes *bytes);

/* How the projections are stored: "F32", "W4 in groups of 32", "W8, one group a row", "W4 in groups of 32, zero
 * points". */
enum { DQ_BENCH_WEIGHTS = 96 };
const char *dq_bench_weights(char buf[DQ_BENCH_WEIGHTS], const dq_model *m);

#endif
