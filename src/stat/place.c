/* place: see place.h. Fields are compared one after the other, so that the order is total.
 * SPDX-License-Identifier: MIT */
#include "stat/place.h"

int dq_place_order(const dq_place *a, const dq_place *b)
{
    const int32_t x[5] = {a->seq, a->layer, a->head, a->row, a->col};
    const int32_t y[5] = {b->seq, b->layer, b->head, b->row, b->col};
    for (int i = 0; i < 5; i++) {
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    }
    return 0;
}
