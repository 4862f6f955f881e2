/* cuda_attention: what attend does besides its outputs: columns, measures and spans. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_ATTENTION_H
#define DQ_CUDA_ATTENTION_H

#include "kernels/cuda/device/maps.h"
#include "kernels/cuda/device/spans.h"
#include "kernels/cuda/host/cuda_units.h"

/* One call of attend. */
typedef struct dq_cuda_observers {
    const dq_attend_args *args;
    dq_map_sums sums;   /* device; all NULL: no columns */
    double *measure;    /* device [n_seq][n_out][DQ_MAP_FIELDS]; NULL: none */
    dq_span_sums spans; /* device; mass NULL: none */
    size_t mass_bytes;
    size_t after;    /* bytes that observers want after the strips */
    double *scratch; /* there */
} dq_cuda_observers;

/* Makes and clears the sums. False with the sticky error set. */
bool dq_cuda_observers_begin(dq_backend *b, dq_cuda_observers *l, const dq_cuda_units *u,
                             const dq_attend_args *args);
/* Columns and measures, between softmax and values of a launch, whose units on the host start at `unit`. */
bool dq_cuda_observers_run(dq_backend *b, const dq_cuda_observers *l, const dq_attention_units *u,
                           const dq_attention_unit *unit);
/* Sums go to the host at the next sync. */
void dq_cuda_observers_end(dq_backend *b, const dq_cuda_observers *l);

/* ---- cuda_spans.c */
/* Of args->spans: classes to the device, room for masses. False with the sticky error set. */
bool dq_cuda_spans_begin(dq_backend *b, dq_cuda_observers *l);
/* Masses are added to the host's sums at the next sync. */
void dq_cuda_spans_end(dq_backend *b, const dq_cuda_observers *l);

/* Strips of S in the arithmetic that attention runs in. */
cudaError_t dq_cuda_scores(const dq_attend_args *args, dq_attention_units u, cudaStream_t s);

#endif
