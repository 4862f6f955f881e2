/* levels_vbmi: sixteen windows of four columns at a time: bytes are brought to where their windows are cut out of, and the table
 * lies in four registers. Compiled with flags of its own.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/isa/levels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

enum { ROWS = 32, COLS = 32 };

typedef struct tables {
    __m512i level[4]; /* of windows 64 i .. */
    __m512i collect, cut,
        to;        /* bytes of eight rows; their windows; column by row to row by column */
    __mmask16 own; /* bytes of the last 16 rows */
} tables;

/* 16 rows of a column; those that are the last ones take the byte after them. */
INLINE __m128i column(const dq_levels_rings *r, int64_t c, int half, const tables *t)
{
    const uint8_t *at = r->codes + c * r->apart + 2 * half * r->bits;
    if (half == 0) return _mm_loadu_si128((const void *)at);
    return _mm_mask_loadu_epi8(_mm_set1_epi8((char)r->after[c * r->apart]), t->own, at);
}

/* Of four columns from c on, a column in each quarter, row after row. */
INLINE __m512i windows(const dq_levels_rings *r, int64_t c, int half, const tables *t)
{
    __m512i x = _mm512_castsi128_si512(column(r, c, half, t));
    x = _mm512_inserti32x4(x, column(r, c + 1, half, t), 1);
    x = _mm512_inserti32x4(x, column(r, c + 2, half, t), 2);
    x = _mm512_inserti32x4(x, column(r, c + 3, half, t), 3);
    return _mm512_multishift_epi64_epi8(t->cut, _mm512_shuffle_epi8(x, t->collect));
}

INLINE __m512i look_up(const tables *t, __m512i w)
{
    const __m512i low = _mm512_permutex2var_epi8(t->level[0], w, t->level[1]);
    const __m512i high = _mm512_permutex2var_epi8(t->level[2], w, t->level[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(w), low, high);
}

void dq_levels_vbmi(uint8_t *to, const dq_levels_rings *r, int64_t n, const uint8_t table[256])
{
    static const uint8_t turn[64] = {
        0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51, 4,  20, 36, 52, 5,  21,
        37, 53, 6,  22, 38, 54, 7,  23, 39, 55, 8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58,
        11, 27, 43, 59, 12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
    const long long eight = 0x0706050403020100, each = 0x0101010101010101;
    tables t = {.own = (__mmask16)((1u << 2 * r->bits) - 1)};
    for (int i = 0; i < 4; i++) t.level[i] = _mm512_loadu_si512(table + 64 * i);
    t.collect = _mm512_broadcast_i32x4(_mm_set_epi64x(eight + each * r->bits, eight));
    t.cut = _mm512_set1_epi64(eight * r->bits);
    t.to = _mm512_loadu_si512(turn);
    for (int64_t c = 0; c < n * COLS; c += 4) {
        for (int half = 0; half < 2; half++, to += 2 * ROWS) {
            const __m512i w = windows(r, c, half, &t);
            _mm512_storeu_si512(to, look_up(&t, _mm512_permutexvar_epi8(t.to, w)));
        }
    }
}

#endif
