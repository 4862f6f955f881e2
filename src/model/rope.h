/* rope: rotary position embedding, as numbers.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ROPE_H
#define DQ_ROPE_H

typedef enum dq_rope_order { DQ_ROPE_HALVES, DQ_ROPE_ADJACENT } dq_rope_order;

typedef struct dq_rope {
    dq_rope_order order;
    int dim;               /* rotated elements per head = head_dim */
    const float *inv_freq; /* [dim/2], scaling applied; computed in double, rounded once */
    float amplitude;       /* multiplies cos and sin: 1 but for yarn and longrope */
    int max_positions;     /* positions from here on would need other frequencies; 0: none do */
} dq_rope;

#endif
