/* act: the activation between a feed-forward layer's products.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ACT_H
#define DQ_ACT_H

typedef enum dq_act {
    DQ_ACT_SILU,
    DQ_ACT_POLYNORM /* w0 n(x^3) + w1 n(x^2) + w2 n(x) + b, n(z) = z / sqrt(mean z^2 + 1e-6) */
} dq_act;

#endif
