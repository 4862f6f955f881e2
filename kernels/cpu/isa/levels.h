/* levels: windows of trellis codes to the levels that they name, for blocks of prepacked products (simd.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LEVELS_H
#define DQ_LEVELS_H

#include <stdint.h>

/* Bytes after the last column's codes that may be read. */
enum { DQ_LEVELS_SPARE = 24 };

/* 32 rows of columns: their codes, each column's `apart` bytes after those of the one before, and the byte after, likewise. */
typedef struct dq_levels_rings {
    const uint8_t *codes, *after;
    int64_t apart;
    int bits;
} dq_levels_rings;

/* n chunks of 8 bits, [n][8 steps][32 rows][4 columns], of 32 n columns; table: what stands for a window. Every instruction set
 * gives the same. */
typedef void dq_levels_chunks(uint8_t *to, const dq_levels_rings *r, int64_t n,
                              const uint8_t table[256]);

dq_levels_chunks dq_levels_plain;
#if defined(__x86_64__)
dq_levels_chunks dq_levels_vbmi; /* AVX-512 with VBMI */
#endif

#endif
