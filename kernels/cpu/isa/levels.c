/* levels: windows of trellis codes to the levels that they name, eight of a column out of one word;
 * with VBMI, compiled by attribute, 32 of two columns by a table in four registers.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/simd.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#include <stdbool.h>
#endif

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

#if defined(__x86_64__)
#define FOR_VBMI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

enum { AHEAD = 4096 };

typedef struct tables {
    __m512i level[4];     /* of windows 64 i .. */
    __m512i collect, cut; /* bytes of eight rows; their windows */
    __m512i top, bottom;  /* of two pairs of columns: rows 0 .. 15 by four columns, and 16 .. 31 */
    __mmask32 after;      /* the byte after a column's own */
} tables;

/* 32 rows of a column. The byte after its own lies there, or is put there. */
FOR_VBMI INLINE __m256i column(const dq_levels_rings *r, int64_t c, const tables *t, bool wraps)
{
    const __m256i x = _mm256_loadu_si256((const void *)(r->codes + c * r->apart));
    return wraps ? _mm256_mask_set1_epi8(x, t->after, (char)r->after[c * r->apart]) : x;
}

FOR_VBMI INLINE __m512i look_up(const tables *t, __m512i w)
{
    const __m512i low = _mm512_permutex2var_epi8(t->level[0], w, t->level[1]);
    const __m512i high = _mm512_permutex2var_epi8(t->level[2], w, t->level[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(w), low, high);
}

/* Levels of columns c and c + 1, row after row. */
FOR_VBMI INLINE __m512i pair(const dq_levels_rings *r, int64_t c, const tables *t, bool wraps)
{
    const __m512i x = _mm512_inserti64x4(_mm512_castsi256_si512(column(r, c, t, wraps)),
                                         column(r, c + 1, t, wraps), 1);
    const __m512i bytes = _mm512_permutexvar_epi8(t->collect, x);
    return look_up(t, _mm512_multishift_epi64_epi8(t->cut, bytes));
}

FOR_VBMI INLINE void chunks(uint8_t *to, const dq_levels_rings *r, int64_t n, const tables *t,
                            bool wraps)
{
    for (int64_t c = 0; c < n * COLS; c += 4, to += 4 * ROWS) {
        for (int i = 0; i < 4; i++)
            _mm_prefetch((const char *)r->codes + (c + i) * r->apart + AHEAD, _MM_HINT_T0);
        const __m512i one = pair(r, c, t, wraps), two = pair(r, c + 2, t, wraps);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi8(one, t->top, two));
        _mm512_storeu_si512(to + 2 * ROWS, _mm512_permutex2var_epi8(one, t->bottom, two));
    }
}

FOR_VBMI void dq_levels_vbmi(uint8_t *to, const dq_levels_rings *r, int64_t n,
                             const uint8_t table[256])
{
    static const uint8_t top[64] = {0,   32,  64, 96,  1,   33,  65,  97,  2,   34,  66,  98, 3,
                                    35,  67,  99, 4,   36,  68,  100, 5,   37,  69,  101, 6,  38,
                                    70,  102, 7,  39,  71,  103, 8,   40,  72,  104, 9,   41, 73,
                                    105, 10,  42, 74,  106, 11,  43,  75,  107, 12,  44,  76, 108,
                                    13,  45,  77, 109, 14,  46,  78,  110, 15,  47,  79,  111};
    const long long eight = 0x0706050403020100, each = 0x0101010101010101, own = each * r->bits;
    const long long second = eight + each * ROWS;
    const tables t = {
        .level = {_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64),
                  _mm512_loadu_si512(table + 128), _mm512_loadu_si512(table + 192)},
        .collect = _mm512_set_epi64(second + 3 * own, second + 2 * own, second + own, second,
                                    eight + 3 * own, eight + 2 * own, eight + own, eight),
        .cut = _mm512_set1_epi64(eight * r->bits),
        .top = _mm512_loadu_si512(top),
        .bottom = _mm512_add_epi8(_mm512_loadu_si512(top), _mm512_set1_epi8(ROWS / 2)),
        .after = (__mmask32)1 << (ROWS / 8 * r->bits)};
    if (r->after == r->codes + ROWS / 8 * r->bits)
        chunks(to, r, n, &t, false);
    else
        chunks(to, r, n, &t, true);
}
#endif
