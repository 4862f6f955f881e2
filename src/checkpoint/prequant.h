/* prequant: folders whose weights another tool has quantized (quantization_config of transformers) as a source of coded
 * weights: "X.weight" stands for "X.qweight", "X.scales" and what else belongs to it. Codes lie in the mapped file where
 * the layouts agree (compressed-tensors); others are repacked, once, in memory of the source, before they are used.
 * A weight is (u - zero) * scale, one f32 product, whatever type the scales have; transformers computes the same in the
 * type of the model, f16 or bf16, and rounds there.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PREQUANT_H
#define DQ_PREQUANT_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/source.h"

typedef struct dq_prequant dq_prequant;

/* Texts belong to the source. */
typedef struct dq_prequant_info {
    const char *method;          /* quant_method: "gptq" */
    const char *about;           /* for people: "GPTQ, checkpoint_format gptq_v2" */
    int64_t n_weights;           /* that are quantized */
    int64_t n_zeros;             /* of them with zero points that are not 2^(bits-1) */
    int64_t n_indexed;           /* of them with groups that are not runs of columns */
    int64_t own_bytes;           /* of parts that were laid out anew */
    const char *const *warnings; /* [n_warnings] */
    int n_warnings;
} dq_prequant_info;

/* *out is NULL where the configuration says of no quantization. The checkpoint must stay open as long.
 * Another method or layout is DQ_MISMATCH by name, as is a tensor that does not have the shape that the
 * configuration gives it; a tensor that is missing, of the wrong type, or with an index or zero point out of range is
 * DQ_DAMAGED by name. Reads headers, zero points and indices. */
dq_status dq_prequant_open(dq_prequant **out, const dq_checkpoint *c, dq_err *err);
/* Lays out codes and scales, once: until then the weights of the source have shapes and formats, but no values to read. A
 * scale that is not finite and padding that is not zero are DQ_DAMAGED by name; where what is laid out is more than the
 * machine's memory, DQ_RESOURCE before anything is taken. */
dq_status dq_prequant_load(dq_prequant *p, dq_err *err);
void dq_prequant_close(dq_prequant *p); /* NULL allowed */
const dq_prequant_info *dq_prequant_header(const dq_prequant *p);
/* Every tensor of the checkpoint that is no part of a quantized weight, and every quantized weight. */
dq_source dq_prequant_source(dq_prequant *p);

#endif
