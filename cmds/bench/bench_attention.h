/* bench_attention: prefill of attention alone, one layer: what the difference of two maps costs beside two softmax
 * attentions, and what the rounding of logits adds.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BENCH_ATTENTION_H
#define DQ_BENCH_ATTENTION_H

#include "cmds/cli/logger.h"
#include "engine/backend.h"
#include "model/model.h"

typedef struct dq_bench_attention_options {
    const int *length; /* [n_lengths] rows of a sequence */
    int n_lengths;
    /* [n_logits], the first one unrounded: what others are compared with */
    const dq_logit_spec *logit;
    int n_logits;
    int64_t runs; /* timed, after one that warms up */
    const char *math_word;
    dq_math math;
    const dq_kv_spec *kv;
    bool json;
} dq_bench_attention_options;

/* Times the first layer's attention over invented queries, keys and values of each length, from products with keys to the
 * head norm: with every rounding of logits, and, where the model has two maps, each map by itself as a softmax
 * attention over the same keys and values. These take turns, and so does the ceiling (bench_limits.h). In int8 tokens
 * that a row reads unquantized are multiplied in f32, as in a pass. Prints a table or a document. */
dq_status dq_bench_attention(dq_logger *logger, const dq_model *m, dq_backend *b,
                             const dq_bench_attention_options *o, dq_err *err);

#endif
