/* fragments: which element of a matrix each lane of a warp holds in the operands of ldmatrix and mma,
 * and the products themselves, in plain C after the PTX manual. The shim computes with these
 * functions and the probes compare a GPU with them: the layouts are written nowhere else.
 *
 * g = lane / 4, q = lane % 4. A register holds four bytes or two 16-bit elements, the first in the
 * lowest bits.
 *   8-bit  A[16][32]: byte 4r + i is row g + 8 (r & 1), column 4q + i + 16 (r >> 1), r = 0..3
 *          B[32][8]:  byte 4r + i is row 4q + i + 16 r, column g,                    r = 0..1
 *   16-bit A[16][16]: half 2r + i is row g + 8 (r & 1), column 2q + i + 8 (r >> 1),  r = 0..3
 *          B[16][8]:  half 2r + i is row 2q + i + 8 r, column g,                     r = 0..1
 *   D[16][8]: entry 2r + i is row g + 8 r, column 2q + i
 *   ldmatrix: register j holds elements 2q and 2q + 1 of row g of matrix j; with .trans rows 2q and
 *   2q + 1 of column g
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FRAGMENTS_H
#define DQ_FRAGMENTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* a[16][32] and b[32][8] by rows, bytes as they are; fragments per lane. */
void fragments_a8(uint32_t frag[32][4], const uint8_t *a);
void fragments_b8(uint32_t frag[32][2], const uint8_t *b);
/* a[16][16], b[16][8] of 16-bit elements. */
void fragments_a16(uint32_t frag[32][4], const uint16_t *a);
void fragments_b16(uint32_t frag[32][2], const uint16_t *b);
/* Row and column of entry i = 0..3 of lane's part of D. */
void fragments_d(int lane, int i, int *row, int *col);

/* row[32]: where the lanes' rows of 8 16-bit elements start; count 2 or 4; r[lane][count]. */
void fragments_ldmatrix(uint32_t r[32][4], const void *const row[32], int count, bool trans);
/* d += A B, modulo 2^32. */
void fragments_mma8(int32_t d[32][4], uint32_t a[32][4], uint32_t b[32][2], bool a_signed,
                    bool b_signed);
/* d += A B: exact products, summed in f64, one rounding at the end. */
void fragments_mma_f16(float d[32][4], uint32_t a[32][4], uint32_t b[32][2]);

#ifdef __cplusplus
}
#endif

#endif
