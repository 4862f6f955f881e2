/* quantize_tensor: one tensor, tile by tile: the scan before anything is written, and the pass that
 * gives codes and scales. Memory is bounded by the tile, not by the tensor.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANTIZE_TENSOR_H
#define DQ_QUANTIZE_TENSOR_H

#include "model/model.h"
#include "tensor/tensor.h"

/* How one tensor of a checkpoint is stored. */
typedef struct dq_quantize_tensor {
    const dq_tensor *t;
    dq_weight w;                    /* its values; `data` may be other than t->data */
    int64_t rows, cols;             /* a vector: rows = numel, cols = 1 */
    dq_role role;                   /* of a tensor that can be packed */
    const dq_weight_format *format; /* NULL: dense, and the rest means nothing but dense_dtype */
    /* of a dense tensor: t->dtype, or DQ_BF16 or DQ_F16, to which values are rounded (nearest, ties to even) */
    dq_dtype dense_dtype;
    /* scale_dtype as stored: dq_quantize_tensor_scan turns F16 into F32 where it must */
    dq_quant_spec spec;
    int8_t *column; /* [cols] that of spec, found by dq_quantize_tensor_scan; NULL: it has none */
    int64_t group_size, scale_rows;
    bool one_scale; /* for the whole tensor */
    bool counts;    /* among the model's parameters: see model.h */
    bool own_group; /* a rule's, not that of the settings */
    bool is_fed;    /* dq_quantize_choice.fed: a method that runs the model makes its codes */
    dq_grid grid;   /* of one_scale, as stored; found by dq_quantize_tensor_scan */
} dq_quantize_tensor;

/* What it becomes, without data. */
dq_weight dq_quantize_tensor_weight(const dq_quantize_tensor *q);
/* After a scan: got[cols] are the values that a row w[cols] is read back with, once dq_quantize_tensor_write has stored it;
 * codes[cols] is scratch. */
void dq_quantize_tensor_read_back(const dq_quantize_tensor *q, const float *w, float *got,
                                  int8_t *codes);

/* Where a pass reports how far it is: source bytes done. Called by one thread at a time. */
typedef struct dq_quantize_tick {
    void (*step)(void *arg, int64_t bytes);
    void *arg;
} dq_quantize_tick;

/* Parts of the format; 0: the dense bytes. Bytes of a part come in order. */
typedef struct dq_quantize_sink {
    dq_status (*put)(void *arg, int part, const void *p, size_t bytes, dq_err *err);
    void *arg;
} dq_quantize_sink;

/* Buffers that passes over many tensors share; {0} at first. Allocating them for each tensor would let
 * the heap grow with the number of tensors. */
typedef struct dq_quantize_tensor_buffers {
    void *part[3];
    size_t bytes[3];
} dq_quantize_tensor_buffers;
void dq_quantize_tensor_buffers_free(dq_quantize_tensor_buffers *r);

/* Finds the first value that is not finite (DQ_DAMAGED with row and column) or whose rounding to dense_dtype is not
 * (DQ_MISMATCH, likewise), the scale of the tensor where one is asked for, and whether scales fit F16. DQ_STOPPED between
 * tiles. Meant to be called inside a parallel region, by one thread; its tasks spread over the others. */
dq_status dq_quantize_tensor_scan(dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                  const dq_quantize_tick *tick, dq_err *err);
/* After a scan, called likewise. The error of the result is left in *e (untouched for dense
 * tensors). */
dq_status dq_quantize_tensor_write(const dq_quantize_tensor *q, dq_quantize_tensor_buffers *buffers,
                                   const dq_quantize_sink *sink, dq_quant_error *e,
                                   const dq_quantize_tick *tick, dq_err *err);

/* The error of w, whose shape is that of the tensor, against the source; the same for any number of threads.
 * DQ_RESOURCE. */
dq_status dq_quantize_tensor_error(dq_quant_error *e, const dq_quantize_tensor *q,
                                   const dq_weight *w, dq_err *err);

#endif
