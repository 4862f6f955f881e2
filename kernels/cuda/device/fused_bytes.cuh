/* fused_bytes: products of bytes by the warps of fused_int8.cu: query rows times keys, and D, rounded to 16 bits and multiplied
 * as two bytes, times values. Texts of masks are quoted by tests/simt/defects.tsv.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FUSED_BYTES_CUH
#define DQ_FUSED_BYTES_CUH

#include "kernels/cuda/device/fused_int8.cuh"

/* Rows of the warp times 32 tokens, channels of 32 from c on that lie in begin..end. sixteens: of the two, which are wanted. */
DQ_DEVICE void multiply_keys(int32_t acc[4][4], const uint8_t *q, const uint8_t *keys, int n_cells,
                             int half, int c, int begin, int end, uint32_t sixteens)
{
    int lane = (int)dq_lane(), matrix = lane / 8, i = lane % 8;
    uint32_t a[4], b[4];
    dq_ldmatrix_x4(
        a,
        q + ((c / 16 + matrix / 2) * TILE + WARP_ROWS * (int)dq_warp() + matrix % 2 * 8 + i) * 16);
    if (c < begin) a[0] = a[1] = 0;
    if (c + 16 >= end) a[2] = a[3] = 0;
    int cell = c / 16 + matrix % 2;
    if (cell >= n_cells) cell = n_cells - 1; /* meets zeros */
    DQ_UNROLL
    for (int p = 0; p < 2; p++) {
        if (!(sixteens >> p & 1)) continue;
        int t = 32 * half + token_of<false>(2 * p + matrix / 2, i / 2) + i % 2;
        dq_ldmatrix_x4(b, keys + (cell * DQ_PAGE_SLOTS + t) * 16);
        dq_mma_s8u8(acc[2 * p], a, b);
        dq_mma_s8u8(acc[2 * p + 1], a, b + 2);
    }
}

/* D times the scales of a run, in 16 bits: bytes of four tokens in a word. */
struct rounded_rows {
    uint32_t high[2][4], low[2][4];
    float scale[2];
};

/* Where round_difference finds D: d in registers, or parked (PARKED), the lane's [32][DQ_WARP]; scale[64], with SCALES. */
struct lane_difference {
    const float (*d)[4];
    const float *parked, *scale;
};

template <bool PARKED, bool SCALES>
DQ_DEVICE float scaled(const lane_difference *x, const lane_page *at, int j, int i, int e)
{
    int t = token_of<false>(j, (int)dq_lane() % 4) + e;
    if (!is_code(at, i, t) || !sees(at, i, t)) return 0.0f;
    float d = PARKED ? x->parked[(4 * j + 2 * i + e) * DQ_WARP] : x->d[j][2 * i + e];
    return SCALES ? dq_mul_rn(d, x->scale[t]) : d;
}

/* Two rounded values as the lower halves of a word each, high and low bytes. */
DQ_DEVICE void round_pair(uint32_t *high, uint32_t *low, float x, float y, float r)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to integers */
    uint32_t a = dq_f32_bits(dq_add_rn(dq_mul_rn(x, r), magic));
    uint32_t b = dq_f32_bits(dq_add_rn(dq_mul_rn(y, r), magic));
    *low = dq_prmt(a, b, 0x0040);
    *high = dq_prmt(a + 128, b + 128, 0x0051); /* what remains is -128..127 */
}

/* sixteens: tokens elsewhere are no codes. */
template <bool PARKED, bool SCALES>
DQ_DEVICE void round_difference(rounded_rows *to, const lane_difference *d, const lane_page *at,
                                uint32_t sixteens)
{
    uint32_t order = (int)dq_lane() % 4 >> 1 ? 0x1054 : 0x5410;
    DQ_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t max = 0;
        DQ_UNROLL
        for (int j = 0; j < 8; j++) {
            if (!(sixteens >> j / 2 & 1)) continue;
            DQ_UNROLL
            for (int e = 0; e < 2; e++) {
                uint32_t bits = dq_f32_bits(scaled<PARKED, SCALES>(d, at, j, i, e)) & 0x7fffffffu;
                max = bits > max ? bits : max;
            }
        }
        uint32_t other = dq_shfl_xor(max, 1u);
        max = other > max ? other : max;
        other = dq_shfl_xor(max, 2u);
        max = other > max ? other : max;
        float peak = dq_bits_f32(max);
        bool real = max < 0x7f800000u, some = real && peak >= 0x1p-100f;
        to->scale[i] = some ? dq_div_rn(peak, 32512.0f) : real ? 0.0f : dq_bits_f32(0x7fc00000u);
        float r = some ? dq_div_rn(32512.0f, peak) : 0.0f; /* 127 * 256: both bytes are signed */
        DQ_UNROLL
        for (int b = 0; b < 4; b++) {
            uint32_t high[2] = {}, low[2] = {};
            DQ_UNROLL
            for (int k = 0; k < 2 && (sixteens >> b & 1); k++)
                round_pair(&high[k], &low[k], scaled<PARKED, SCALES>(d, at, 2 * b + k, i, 0),
                           scaled<PARKED, SCALES>(d, at, 2 * b + k, i, 1), r);
            to->high[b / 2][b % 2 * 2 + i] = dq_prmt(high[0], high[1], order);
            to->low[b / 2][b % 2 * 2 + i] = dq_prmt(low[0], low[1], order);
        }
    }
}

/* Sums of codes of D V of eight channels, whose cells begin at `cells`. sixteens: D of tokens elsewhere is zero. */
DQ_DEVICE void multiply_values(int32_t acc[4], const rounded_rows *d, const uint8_t *cells,
                               int cols, uint32_t sixteens)
{
    uint32_t b[4];
    DQ_UNROLL
    for (int i = 0; i < 4; i++) acc[i] = 0;
    dq_ldmatrix_x4(b, cells + ((int)dq_lane() / 8 * cols + (int)dq_lane() % 8) * 16);
    if (sixteens & 3) dq_mma_s8s8(acc, d->high[0], b);
    if (sixteens & 12) dq_mma_s8s8(acc, d->high[1], b + 2);
    DQ_UNROLL
    for (int i = 0; i < 4; i++) acc[i] *= 256;
    if (sixteens & 3) dq_mma_s8s8(acc, d->low[0], b);
    if (sixteens & 12) dq_mma_s8s8(acc, d->low[1], b + 2);
}

#endif
