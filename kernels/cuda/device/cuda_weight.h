/* cuda_weight: a weight matrix as it lies on the device, for host code and kernels.
 *
 * Dense: rows * cols values without gaps. Packed: rows of `pitch` bytes with the codes of dq_weight, each
 * group filled up to a multiple of 32 codes, so that a word of four codes and a step of a product never
 * lie in two groups. What fills up is any code: it is multiplied by zero. Scales are turned, a group's
 * scales of all rows side by side, because a tile of a product wants those of many rows at once. So are zero
 * points, which take a byte each here.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_WEIGHT_H
#define DQ_CUDA_WEIGHT_H

#include <stdint.h>

enum { DQ_STORED_F32, DQ_STORED_F16, DQ_STORED_BF16, DQ_STORED_PACKED };
enum { DQ_GROUP_STEP = 32 }; /* codes of a group are padded to a multiple of it */

typedef struct dq_cuda_weight {
    int kind; /* DQ_STORED_ */
    int bits; /* packed: 2..8 */
    int64_t rows, cols;
    const void *data;
    /* packed only: */
    int64_t pitch;       /* bytes per row, a multiple of 16 */
    int64_t group;       /* columns per scale */
    int64_t group_codes; /* codes from the start of a group to the next: `group` padded */
    int64_t groups;      /* per row */
    const void *scale;   /* [groups][scale_pitch], f16 or f32 */
    int64_t scale_pitch; /* values, a multiple of 8, at least rows */
    int scale_f16;
    const uint8_t *zero; /* zero points [groups][zero_pitch]; NULL: 2^(bits-1) */
    int64_t zero_pitch;  /* a multiple of 16, at least rows */
} dq_cuda_weight;

#endif
