/* loops_codes: where codes lie in packed bytes. A code of at most 8 bits lies in two neighbouring
 * bytes: 16 pairs of bytes are gathered with one shuffle, then each pair is shifted by its own
 * amount. Rows of both tables go by width, from 2 bits on.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_CODES_H
#define DQ_LOOPS_CODES_H

#include <stdint.h>

/* The high byte of the last 8-bit code would be byte 16: 0x80 makes the shuffle give 0. */
#define PAIR(b, i) ((i) * (b) / 8), ((i) * (b) / 8 + 1 < 16 ? (i) * (b) / 8 + 1 : 0x80)
#define PAIRS(b)                                                                                   \
    {                                                                                              \
        PAIR(b, 0), PAIR(b, 1), PAIR(b, 2), PAIR(b, 3), PAIR(b, 4), PAIR(b, 5), PAIR(b, 6),        \
            PAIR(b, 7), PAIR(b, 8), PAIR(b, 9), PAIR(b, 10), PAIR(b, 11), PAIR(b, 12),             \
            PAIR(b, 13), PAIR(b, 14), PAIR(b, 15)                                                  \
    }
#define SHIFTS(b)                                                                                  \
    {                                                                                              \
        0, (b) % 8, 2 * (b) % 8, 3 * (b) % 8, 4 * (b) % 8, 5 * (b) % 8, 6 * (b) % 8, 7 * (b) % 8,  \
            0, (b) % 8, 2 * (b) % 8, 3 * (b) % 8, 4 * (b) % 8, 5 * (b) % 8, 6 * (b) % 8,           \
            7 * (b) % 8                                                                            \
    }

static const uint8_t code_bytes[7][32] = {PAIRS(2), PAIRS(3), PAIRS(4), PAIRS(5),
                                          PAIRS(6), PAIRS(7), PAIRS(8)};
static const uint32_t code_shift[7][16] = {SHIFTS(2), SHIFTS(3), SHIFTS(4), SHIFTS(5),
                                           SHIFTS(6), SHIFTS(7), SHIFTS(8)};

#endif
