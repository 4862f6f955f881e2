/* simd_thin: products of few rows with weights that lie as they are stored, read once for MAX_ROWS. An instruction level
 * includes this and gives before it: vec, a vector of LANES f32 or words; MAX_ROWS of activations at a time; STRIPS of LANES rows of W
 * for f32; zero_vec, load_vec, splat_vec and fma_vec; columns_of, LANES words of LANES rows transposed; high_of and low_of, the
 * halves of words as f32; put_sums, which adds to n columns of C or replaces them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMD_THIN_H
#define DQ_SIMD_THIN_H

typedef struct thin_job {
    float *c;
    const float *a;
    const uint8_t *w;
    int64_t ldc, lda, stride, n, k; /* stride: bytes between rows of W */
    bool add;
} thin_job;

enum { LINE = 64, WORDS = LINE / 4 };

/* A word holds one value, or two of bfloat16, the first in its low half. */
INLINE vec value_of(const int per, vec word, int64_t which)
{
    if (per == 1) return word;
    return which ? high_of(word) : low_of(word);
}

/* dst[WORDS][LANES] = bytes first .. end of a line of each row, zeros beside them. */
static __attribute__((noinline)) void part_of_line(float *dst, const uint8_t *src, int64_t stride,
                                                   int64_t first, int64_t end)
{
    uint8_t line[LANES * LINE] = {0};
    for (int i = 0; i < LANES; i++)
        memcpy(line + i * LINE + first, src + i * stride + first, (size_t)(end - first));
    for (int h = 0; h < WORDS; h += LANES) {
        vec y[LANES];
        columns_of(y, line + 4 * h, LINE);
        memcpy(dst + h * LANES, y, sizeof y);
    }
}

/* A chain of m rows ends. */
INLINE void fold_rows(const int m, float *c, int64_t ldc, vec s[MAX_ROWS], int64_t n, bool add)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        put_sums(c + i * ldc, s[i], n, add);
        s[i] = zero_vec();
    }
}

/* A line inside of which a chain or a row of W begins or ends, a column after the other. */
INLINE void thin_edge(const thin_job *t, const int m, const int per, vec s[MAX_ROWS], int64_t row,
                      const uint8_t *w, int64_t kk)
{
    const int64_t wide = WORDS * per, first = kk < 0 ? -kk : 0;
    const int64_t end = t->k - kk < wide ? t->k - kk : wide;
    float words[WORDS * LANES];
    part_of_line(words, w, t->stride, first * 4 / per, end * 4 / per);
    for (int64_t j = first; j < end; j++) {
        const vec y = value_of(per, load_vec(words + j / per * LANES), j % per);
        if ((kk + j) % DQ_CHAIN == 0 && kk + j > 0)
            fold_rows(m, t->c + row, t->ldc, s, t->n - row, t->add || kk + j > DQ_CHAIN);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) s[i] = fma_vec(splat_vec(t->a[i * t->lda + kk + j]), y, s[i]);
    }
}

/* What comes is asked for twice, as the processor drops what it is asked for while it is busy. */
INLINE void ask(const uint8_t *w, int64_t soon, int64_t later)
{
    __builtin_prefetch(w + soon, 0, 2);
    __builtin_prefetch(w + later, 0, 2);
}

/* A whole line of LANES rows, a row being asked for between columns. */
INLINE void thin_line(const thin_job *t, const int m, const int per, vec s[MAX_ROWS],
                      const uint8_t *w, const float *a, int64_t soon, int64_t later)
{
    const uint8_t *row = w;
    vec y[LANES];
#pragma GCC unroll 2
    for (int h = 0; h < WORDS; h += LANES) {
        columns_of(y, w + 4 * h, t->stride);
        __asm__ volatile("" ::: "memory"); /* factors are read again, not kept on the stack */
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            if (h == 0) ask(row, soon, later);
            row += t->stride;
            __asm__("" : "+r"(row)); /* one address, not LANES on the stack */
#pragma GCC unroll 2
            for (int p = 0; p < per; p++) {
                const vec value = value_of(per, y[j], p);
#pragma GCC unroll 8
                for (int i = 0; i < m; i++)
                    s[i] = fma_vec(splat_vec(a[i * t->lda + (h + j) * per + p]), value, s[i]);
            }
        }
    }
}

/* The sums of m rows with LANES nv rows of W. Where all rows begin alike in a line of the cache, whole lines are read:
 * two halves of two lines would be read twice, as rows whose lengths are a power of two meet in one set of the cache. */
INLINE void thin_rows(const thin_job *t, const int m, const int nv, const int per)
{
    enum { SOON = 16, LATER = 32 }; /* lines */
    const int64_t wide = WORDS * per, turn = (LANES * nv - 1) * t->stride;
    const int64_t skip = t->stride % LINE ? 0 : (int64_t)((uintptr_t)t->w % LINE) * per / 4;
    vec s[2][MAX_ROWS];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) s[v][i] = zero_vec();
    for (int64_t kk = -skip; kk < t->k; kk += wide) {
        const int64_t soon = LINE * SOON + (kk + SOON * wide < t->k ? 0 : turn);
        const int64_t later = LINE * LATER + (kk + LATER * wide < t->k ? 0 : turn);
        const bool edge = kk < 0 || kk + wide > t->k || kk % DQ_CHAIN + wide > DQ_CHAIN;
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const uint8_t *w = t->w + v * LANES * t->stride + kk * 4 / per;
            if (!edge) {
                if (kk % DQ_CHAIN == 0 && kk > 0)
                    fold_rows(m, t->c + v * LANES, t->ldc, s[v], t->n - v * LANES,
                              t->add || kk > DQ_CHAIN);
                thin_line(t, m, per, s[v], w, t->a + kk, soon, later);
                continue;
            }
            for (int j = 0; j < LANES; j++) ask(w + j * t->stride, soon, later);
            thin_edge(t, m, per, s[v], v * LANES, w, kk);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
        fold_rows(m, t->c + v * LANES, t->ldc, s[v], t->n - v * LANES, t->add || t->k > DQ_CHAIN);
}

INLINE void thin_any(thin_job t, int64_t m, const int nv, const int per)
{
    for (; m > 0; m -= MAX_ROWS, t.a += MAX_ROWS * t.lda, t.c += MAX_ROWS * t.ldc)
        switch (m < MAX_ROWS ? m : MAX_ROWS) {
        case 1: thin_rows(&t, 1, nv, per); break;
        case 2: thin_rows(&t, 2, nv, per); break;
        case 3: thin_rows(&t, 3, nv, per); break;
#if MAX_ROWS > 4
        case 4: thin_rows(&t, 4, nv, per); break;
        case 5: thin_rows(&t, 5, nv, per); break;
        case 6: thin_rows(&t, 6, nv, per); break;
        case 7: thin_rows(&t, 7, nv, per); break;
#endif
        default: thin_rows(&t, MAX_ROWS, nv, per); break;
        }
}

static void thin(float *c, int64_t ldc, const float *a, int64_t lda, const float *w, int64_t ldw,
                 int64_t m, int64_t n, int64_t k, bool add)
{
    const uint8_t *data = (const uint8_t *)(const void *)w;
    thin_any((thin_job){c, a, data, ldc, lda, 4 * ldw, n, k, add}, m, STRIPS, 1);
}

/* Two columns a word: one chain alone would wait for itself. */
static void thin_bf16(float *c, int64_t ldc, const float *a, int64_t lda, const uint16_t *w,
                      int64_t ldw, int64_t m, int64_t n, int64_t k, bool add)
{
    const int64_t step = m == 1 && n % (2 * LANES) == 0 ? 2 * LANES : STRIPS * LANES;
    for (; n > 0; n -= step, w += step * ldw, c += step) {
        const uint8_t *data = (const uint8_t *)(const void *)w;
        const thin_job t = {c, a, data, ldc, lda, 2 * ldw, step, k, add};
        if (step == STRIPS * LANES)
            thin_any(t, m, STRIPS, 2);
        else
            thin_rows(&t, 1, 2, 2);
    }
}

#endif
