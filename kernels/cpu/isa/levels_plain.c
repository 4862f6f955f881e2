/* levels_plain: eight windows of a column at a time, out of one word.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/levels.h"

#include <string.h>

enum { ROWS = 32, COLS = 32 };

void dq_levels_plain(uint8_t *to, const dq_levels_rings *r, int64_t n, const uint8_t table[256])
{
    const int bits = r->bits, last = 3 * bits;
    for (int64_t c = 0; c < n * COLS; c++) {
        const uint8_t *codes = r->codes + c * r->apart;
        uint8_t *out = to + c / 4 * (4 * ROWS) + c % 4;
        for (int at = 0; at <= last; at += bits, out += 32) {
            uint64_t word; /* little-endian, as every target is */
            memcpy(&word, codes + at, sizeof word);
            if (at == last) {
                const uint64_t own = ((uint64_t)1 << 8 * bits) - 1;
                word = (word & own) | (uint64_t)r->after[c * r->apart] << 8 * bits;
            }
            for (int i = 0; i < 8; i++) out[4 * i] = table[word >> (bits * i) & 255];
        }
    }
}
