/* kv_lines: codes of KV pages read back. Compiled once per instruction set, with the same bits: one
 * conversion, one product.
 *
 * A line of n codes (n a multiple of 16) is one or two planes. A plane of w bits has m = n * w / 8
 * bytes; byte i holds the bits of codes i, i + m, i + 2m ... from its lowest bits up, so that
 * unpacking needs no shuffle. 8, 4 and 2 bits are one plane, 6 are 4 + 2, 5 are 4 + 1, 3 are 2 + 1,
 * low bits first. Codes are offset binary.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_LINES_H
#define DQ_KV_LINES_H

#include "kernels/cpu/simd.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { DQ_KV_LINE = 128 }; /* longer lines are cut into lines of this many codes */
enum { SLOTS = 64 };       /* of a page */

static inline int64_t pages_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* 64 columns, codes chunk * 64 .. of `cols`, of lines `stride` bytes apart; next: lines of the same
 * form that are read after these, NULL: unknown. */
typedef struct pages_lines {
    const uint8_t *codes, *next;
    int bits;
    int64_t cols, chunk, stride, n;
} pages_lines;

/* u |= plane << shift */
static inline void kv_plane(uint8_t *restrict u, const uint8_t *restrict in, int64_t n, int width,
                            int shift)
{
    const int parts = 8 / width;
    const int64_t m = n / parts;
    const unsigned mask = (1u << width) - 1;
    for (int k = 0; k < parts; k++) {
#pragma omp simd
        for (int64_t i = 0; i < m; i++) {
            const unsigned x = (unsigned)in[i] >> (k * width) & mask;
            u[k * m + i] = (uint8_t)(u[k * m + i] | x << shift);
        }
    }
}

/* Bits of the first plane. */
static inline int kv_low(int bits)
{
    return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}

INLINE void kv_planes(uint8_t *restrict u, const uint8_t *restrict line, const int bits, int64_t n)
{
    const int low = kv_low(bits);
    if (low == 8)
        memcpy(u, line, (size_t)n);
    else
        kv_plane(u, line, n, low, 0);
    if (bits > low) kv_plane(u, line + n * low / 8, n, bits - low, low);
}

/* n <= DQ_KV_LINE codes of one line, in offset binary. */
static inline void kv_unsigned(uint8_t *restrict u, const uint8_t *restrict line, int bits,
                               int64_t n)
{
    memset(u, 0, (size_t)n);
    WITH_BITS(bits, kv_planes(u, line, BITS, n))
}

/* The same, signed. */
static inline void kv_unpack(int8_t *restrict q, const uint8_t *restrict line, int bits, int64_t n)
{
    const int half = 1 << (bits - 1);
    uint8_t u[DQ_KV_LINE];
    kv_unsigned(u, line, bits, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) q[i] = (int8_t)(u[i] - half);
}

#define DQ_KV_FETCH(p) __builtin_prefetch(p, 0, 2) /* towards the second-level cache */

/* Codes of one plane in the j-th of `parts` equal pieces of a line. */
INLINE unsigned kv_bits(const uint8_t *restrict plane, int width, int parts, int64_t piece, int j,
                        int64_t i)
{
    const int pieces = width * parts / 8; /* of bytes in this plane */
    return (unsigned)plane[j % pieces * piece + i] >> (j / pieces * width) & ((1u << width) - 1);
}

/* The j-th piece: codes times scale[]; `lows`: (code - d) * step + low, by channel or each code. */
INLINE void kv_piece(float *restrict dst, const uint8_t *restrict line, int bits, int parts,
                     int64_t piece, int j, const bool lows, float d, const float *restrict step,
                     const float *restrict least, int each)
{
    const int half = 1 << (bits - 1), low = kv_low(bits), high = bits - low;
    const uint8_t *restrict second = line + piece * parts * low / 8;
#pragma omp simd
    for (int64_t i = 0; i < piece; i++) {
        unsigned u = kv_bits(line, low, parts, piece, j, i);
        if (high) u |= kv_bits(second, high ? high : 1, parts, piece, j, i) << low;
        const int64_t at = each * (j * piece + i);
        dst[j * piece + i] =
            lows ? ((float)(int)u - d) * step[at] + least[at] : (float)((int)u - half) * step[at];
    }
}

/* A piece has one place in every byte; with constant `bits` and n no piece needs a branch. */
INLINE void kv_line(float *restrict dst, const uint8_t *restrict line, int bits, int64_t n,
                    const bool lows, float d, const float *restrict step,
                    const float *restrict least, int each)
{
    const int parts = bits % 2 ? 8 : 4;
    kv_piece(dst, line, bits, parts, n / parts, 0, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 1, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 2, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 3, lows, d, step, least, each);
    if (parts == 4) return;
    kv_piece(dst, line, bits, parts, n / parts, 4, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 5, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 6, lows, d, step, least, each);
    kv_piece(dst, line, bits, parts, n / parts, 7, lows, d, step, least, each);
}

/* A line of a token's values. */
INLINE void kv_value_line(float *restrict dst, const uint8_t *restrict line, int bits, int64_t n,
                          const bool lows, float d, const float *restrict step,
                          const float *restrict least)
{
    if (n == 128)
        kv_line(dst, line, bits, 128, lows, d, step, least, 1);
    else if (n == 64)
        kv_line(dst, line, bits, 64, lows, d, step, least, 1);
    else
        kv_line(dst, line, bits, n, lows, d, step, least, 1);
}

INLINE void kv_keys(float *restrict dst, const uint8_t *restrict codes, int bits, int64_t channels,
                    int64_t group, const float *restrict scale)
{
    int64_t left = group;
    for (int64_t c = 0; c < channels; c++, left--) {
        if (left == 0) {
            scale += 64;
            left = group;
        }
        kv_line(dst + c * 64, codes + c * 8 * bits, bits, 64, false, 0, scale, NULL, 1);
    }
}

static inline void read_keys(float *restrict dst, const uint8_t *restrict codes, int bits,
                             int64_t channels, int64_t group, const float *restrict scale){
    WITH_BITS(bits, kv_keys(dst, codes, BITS, channels, group, scale))}

INLINE void kv_page_keys(float *restrict dst, const uint8_t *restrict codes, int bits,
                         int64_t channels, const float *restrict step, const float *restrict least)
{
    for (int64_t c = 0; c < channels; c++)
        kv_line(dst + c * 64, codes + c * 8 * bits, bits, 64, true, 0, step + c, least + c, 0);
}

static inline void read_page_keys(float *restrict dst, const uint8_t *restrict codes, int bits,
                                  int64_t channels, const float *restrict step,
                                  const float *restrict least){
    WITH_BITS(bits, kv_page_keys(dst, codes, BITS, channels, step, least))}

INLINE void kv_page_values(float *restrict dst, const uint8_t *restrict codes, int bits,
                           int64_t first, int64_t end, int64_t cols, const float *step,
                           const float *least, const float *dither)
{
    for (int64_t t = first; t < end; t++) {
        for (int64_t c = 0; c < cols; c += DQ_KV_LINE) {
            const int64_t at = t * cols + c;
            kv_value_line(dst + at, codes + at * bits / 8, bits, pages_min(cols - c, DQ_KV_LINE),
                          true, dither[t], step + c, least + c);
        }
    }
}

static inline void read_page_values(float *restrict dst, const uint8_t *restrict codes, int bits,
                                    int64_t first, int64_t end, int64_t cols, const float *step,
                                    const float *least, const float *dither)
{
    WITH_BITS(bits, kv_page_values(dst, codes, BITS, first, end, cols, step, least, dither))
}

/* s[n] = scales of channels c .. c+n-1 of one token. */
static inline void kv_spread(float *restrict s, int64_t c, int64_t n, int64_t group,
                             const float *restrict scale, int64_t n_scales)
{
    int64_t g = c == 0 ? 0 : c / group; /* a division costs as much as many codes */
    for (int64_t i = 0; i < n; g++) {
        if (g >= n_scales) g = n_scales - 1; /* padding */
        const int64_t last = g + 1 < n_scales ? (g + 1) * group - c : n;
        const int64_t end = last < n ? last : n;
        const float x = scale[g];
#pragma omp simd
        for (int64_t k = i; k < end; k++) s[k] = x;
        i = end;
    }
}

INLINE void kv_values(float *restrict dst, const uint8_t *restrict codes, int bits, int64_t tokens,
                      int64_t cols, int64_t group, const float *restrict scale, int64_t n_scales)
{
    float s[DQ_KV_LINE];
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < cols; c += DQ_KV_LINE) {
            const int64_t n = pages_min(cols - c, DQ_KV_LINE), at = t * cols + c;
            kv_spread(s, c, n, group, scale + t * n_scales, n_scales);
            kv_value_line(dst + at, codes + at * bits / 8, bits, n, false, 0, s, NULL);
        }
    }
}

static inline void read_values(float *restrict dst, const uint8_t *restrict codes, int bits,
                               int64_t tokens, int64_t cols, int64_t group,
                               const float *restrict scale, int64_t n_scales)
{
    WITH_BITS(bits, kv_values(dst, codes, BITS, tokens, cols, group, scale, n_scales))
}

#endif
