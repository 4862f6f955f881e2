/* cuda_units: a call of attention as units of rows (attention.h), with everything about them that kernels read,
 * cut into launches whose strips fit in memory. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_UNITS_H
#define DQ_CUDA_UNITS_H

#include "kernels/cuda/device/attention.h"
#include "kernels/cuda/host/cuda_kv.h"

/* Units stand by sequence, KV head group and position: those of one list follow each other. */
typedef struct dq_cuda_units {
    dq_attention_units dev;  /* for kernels, but for what a launch fills in */
    dq_attention_unit *unit; /* [n] on the host */
    int n, next;             /* units; the first one that has not been launched */
    int64_t max_strips, max_records, max_factors; /* of any launch */
    const int32_t *pos;                           /* [n_rows] on the device */
} dq_cuda_units;

/* What a call needs beside the strips of query heads. */
typedef struct dq_cuda_units_request {
    bool strips;  /* of all units. Without any: one launch for as many units as a grid takes */
    bool counted; /* strips of units with rows that spans count */
    bool parts;   /* after the strips, what dq_fused_decode wants; observers are done then */
    bool edges;
    bool places; /* positions of rows in `pos`; of keys as edges */
} dq_cuda_units_request;

/* Everything is uploaded: end it with dq_cuda_units_end, which also ends uploads of the operation. False
 * with the sticky error set, nothing to end. */
bool dq_cuda_units_begin(dq_backend *b, dq_cuda_units *u, const dq_attend_args *args,
                         dq_cuda_units_request request);
void dq_cuda_units_end(dq_backend *b, dq_cuda_units *u);
/* Scratch for strips (A, `after` bytes more after them at *more), sums and factors (B). */
bool dq_cuda_units_scratch(dq_backend *b, dq_cuda_units *u, size_t after, void **more);
/* The next launch; false after the last one. first: index of its first unit. */
bool dq_cuda_units_next(dq_cuda_units *u, dq_attention_units *launch, int *first);

#endif
