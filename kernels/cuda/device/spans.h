/* spans: kernels that add up what rows give to classes of tokens (observe.h), between softmax and subtraction.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SPANS_H
#define DQ_SPANS_H

#include "kernels/cuda/device/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DQ_SPAN_SUM_CLASSES = 8 };

/* List l = seq * n_groups + group has the classes of its tokens from label[key[l]] on. */
typedef struct dq_span_sums {
    double *mass; /* [records][n_out][n_classes][2]: of positive entries, of negative ones */
    const uint8_t *label;
    const int64_t *key;
    int32_t n_classes;
} dq_span_sums;

/* Masses of the units' rows that count are overwritten. f64, in an order that depends on what a row sees alone. */
cudaError_t dq_spans_add_sums(dq_attention_units u, dq_span_sums c, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
