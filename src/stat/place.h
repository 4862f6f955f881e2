/* place: where a value was seen.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLACE_H
#define DQ_PLACE_H

#include <stdint.h>

/* Unused fields are -1. */
typedef struct dq_place {
    int32_t seq; /* sequence of the run */
    int32_t layer;
    int32_t head; /* query head (logits) */
    int32_t row;  /* position of the row (query) */
    int32_t col;  /* key position (logits) or channel (hidden states) */
} dq_place;

/* Negative: a stands before b, by seq, layer, head, row, col. */
int dq_place_order(const dq_place *a, const dq_place *b);

#endif
