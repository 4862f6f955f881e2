/* format_ggml: matrices in the blocks of ggml, as GGUF files hold them. No container holds such a format, and no kernel
 * multiplies its codes: rows are dequantized.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FORMAT_GGML_H
#define DQ_FORMAT_GGML_H

#include "tensor/weight_format.h"

/* Numbers of ggml_type that are named elsewhere. */
enum {
    DQ_GGML_F32 = 0,
    DQ_GGML_F16 = 1,
    DQ_GGML_Q4_0 = 2,
    DQ_GGML_Q4_1 = 3,
    DQ_GGML_Q5_0 = 6,
    DQ_GGML_Q5_1 = 7,
    DQ_GGML_Q8_0 = 8,
    DQ_GGML_BF16 = 30
};

/* The format with this number of ggml_type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS. NULL: another. */
const dq_weight_format *dq_format_ggml(uint32_t number);
/* rows x cols values in blocks at `data`; cols is a multiple of format->block->values. */
dq_weight dq_format_ggml_weight(const dq_weight_format *format, const char *name, int64_t rows,
                                int64_t cols, const void *data);

#endif
