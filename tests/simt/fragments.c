/* fragments: see fragments.h. Which lane holds which element is written down once per operand, as functions of
 * lane and index from the PTX manual; products are plain loops over the matrices that the fragments stand for.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/fragments.h"

#include "tests/simt/numerics.h"

#include <string.h>

typedef struct place {
    int row, col;
} place;

static place a8(int lane, int byte)
{
    int r = byte / 4, i = byte % 4;
    return (place){lane / 4 + 8 * (r & 1), 4 * (lane % 4) + i + 16 * (r >> 1)};
}

static place b8(int lane, int byte)
{
    int r = byte / 4, i = byte % 4;
    return (place){4 * (lane % 4) + i + 16 * r, lane / 4};
}

static place a16(int lane, int half)
{
    int r = half / 2, i = half % 2;
    return (place){lane / 4 + 8 * (r & 1), 2 * (lane % 4) + i + 8 * (r >> 1)};
}

static place b16(int lane, int half)
{
    int r = half / 2, i = half % 2;
    return (place){2 * (lane % 4) + i + 8 * r, lane / 4};
}

void fragments_d(int lane, int i, int *row, int *col)
{
    *row = lane / 4 + 8 * (i / 2);
    *col = 2 * (lane % 4) + i % 2;
}

static uint32_t byte_of(const uint32_t *reg, int byte)
{
    return reg[byte / 4] >> 8 * (byte % 4) & 255u;
}

static uint32_t half_of(const uint32_t *reg, int half)
{
    return reg[half / 2] >> 16 * (half % 2) & 0xffffu;
}

void fragments_a8(uint32_t frag[32][4], const uint8_t *a)
{
    memset(frag, 0, 32 * sizeof *frag);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 16; i++) {
            place p = a8(lane, i);
            frag[lane][i / 4] |= (uint32_t)a[p.row * 32 + p.col] << 8 * (i % 4);
        }
}

void fragments_b8(uint32_t frag[32][2], const uint8_t *b)
{
    memset(frag, 0, 32 * sizeof *frag);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            place p = b8(lane, i);
            frag[lane][i / 4] |= (uint32_t)b[p.row * 8 + p.col] << 8 * (i % 4);
        }
}

void fragments_a16(uint32_t frag[32][4], const uint16_t *a)
{
    memset(frag, 0, 32 * sizeof *frag);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            place p = a16(lane, i);
            frag[lane][i / 2] |= (uint32_t)a[p.row * 16 + p.col] << 16 * (i % 2);
        }
}

void fragments_b16(uint32_t frag[32][2], const uint16_t *b)
{
    memset(frag, 0, 32 * sizeof *frag);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            place p = b16(lane, i);
            frag[lane][i / 2] |= (uint32_t)b[p.row * 8 + p.col] << 16 * (i % 2);
        }
}

void fragments_ldmatrix(uint32_t r[32][4], const void *const row[32], int count, bool trans)
{
    for (int j = 0; j < count; j++) {
        uint16_t m[8][8];
        for (int i = 0; i < 8; i++) memcpy(m[i], row[8 * j + i], sizeof m[i]);
        for (int lane = 0; lane < 32; lane++) {
            int g = lane / 4, q = 2 * (lane % 4);
            uint32_t low = trans ? m[q][g] : m[g][q], high = trans ? m[q + 1][g] : m[g][q + 1];
            r[lane][j] = low | high << 16;
        }
    }
}

static int signed_byte(uint32_t b, bool is_signed)
{
    return is_signed && b > 127 ? (int)b - 256 : (int)b;
}

void fragments_mma8(int32_t d[32][4], uint32_t a[32][4], uint32_t b[32][2], bool a_signed,
                    bool b_signed)
{
    int16_t ma[16][32], mb[8][32]; /* B by columns: the sums run over contiguous values */
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 16; i++) {
            place p = a8(lane, i);
            ma[p.row][p.col] = (int16_t)signed_byte(byte_of(a[lane], i), a_signed);
        }
        for (int i = 0; i < 8; i++) {
            place p = b8(lane, i);
            mb[p.col][p.row] = (int16_t)signed_byte(byte_of(b[lane], i), b_signed);
        }
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            int row, col, sum = 0;
            fragments_d(lane, i, &row, &col);
            for (int k = 0; k < 32; k++) sum += ma[row][k] * mb[col][k];
            d[lane][i] = (int32_t)((uint32_t)d[lane][i] + (uint32_t)sum);
        }
}

void fragments_mma_f16(float d[32][4], uint32_t a[32][4], uint32_t b[32][2])
{
    double ma[16][16], mb[8][16];
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) {
            place p = a16(lane, i);
            ma[p.row][p.col] = (double)numerics_f16_f32((uint16_t)half_of(a[lane], i));
        }
        for (int i = 0; i < 4; i++) {
            place p = b16(lane, i);
            mb[p.col][p.row] = (double)numerics_f16_f32((uint16_t)half_of(b[lane], i));
        }
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            int row, col;
            fragments_d(lane, i, &row, &col);
            double sum = (double)d[lane][i];
            for (int k = 0; k < 16; k++) sum += ma[row][k] * mb[col][k];
            d[lane][i] = (float)sum;
        }
}
