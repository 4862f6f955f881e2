/* trellis: codes of which each is read together with its neighbours. A column's codes of `bits` bits stand one after the other in
 * a ring of bits, row after row; the value of a row is the level that the eight bits from its own on name. So a row chooses
 * among 2^bits levels, its neighbours choose which: of normal values in groups of 64 that loses .63, .67, .69 and .74 of what
 * integers of 2, 3, 4 and 5 bits lose with the best scale of each group (.077, .021, .0056 and .0015 of the mean square).
 * Source: trellis coded quantization, Marcellin and Fischer 1990; the ring of bits and its windows, QTIP, arXiv 2406.11235.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_TRELLIS_H
#define DQ_TRELLIS_H

#include <stdint.h>

enum {
    DQ_TRELLIS_LEVELS = 256, /* of a table: windows of 8 bits */
    DQ_TRELLIS_ROWS = 128,   /* of a ring, at most */
    DQ_TRELLIS_MIN_BITS = 2,
    DQ_TRELLIS_MAX_BITS = 5
};

/* Levels by window, -127 to 127, for groups of 64 values of a normal distribution in units of their own: the unit of a group is the
 * root of its mean square, or its largest magnitude divided by `reach` where that is more. */
typedef struct dq_trellis_table {
    float reach;
    float peak;  /* units that level 127 stands for */
    float error; /* mean square in units */
    int8_t level[DQ_TRELLIS_LEVELS];
} dq_trellis_table;
const dq_trellis_table *dq_trellis_table_of(int bits);

/* Windows u[n] of a ring, n <= DQ_TRELLIS_ROWS a multiple of 8, whose levels times scale[n] come near want[n]: the least sum of
 * squared errors, each divided by |scale|, so that rows of small scales, which whole sums would give up, keep more of themselves.
 * Rows with scale 0 count nothing. It is the least of all rings but
 * for where the ring closes: its state there is that of the best open sequence. */
void dq_trellis_encode(uint8_t *u, const float *want, const float *scale, int64_t n, int bits);
/* The same by plain C, for tests. */
void dq_trellis_encode_plain(uint8_t *u, const float *want, const float *scale, int64_t n,
                             int bits);
/* n * bits / 8 bytes of a ring from its windows, and back. */
void dq_trellis_pack(uint8_t *ring, const uint8_t *u, int64_t n, int bits);
static inline uint8_t dq_trellis_window(const uint8_t *ring, int64_t row, int64_t n, int bits)
{
    const int64_t bit = row * bits, bytes = n * bits / 8, at = bit / 8;
    const unsigned two = ring[at] | (unsigned)ring[at + 1 < bytes ? at + 1 : 0] << 8;
    return (uint8_t)(two >> bit % 8);
}

#endif
