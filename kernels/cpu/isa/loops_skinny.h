/* loops_skinny: products of few rows with weights that lie as they are stored, read once for MAX_ROWS. An instruction set
 * includes this and gives before it: vec, a vector of LANES f32 or words; MAX_ROWS of activations at a time; STRIPS of LANES rows of W
 * for f32; zero_vec, splat_vec and fma_vec; columns_of, LANES words of LANES rows transposed; high_of and low_of, the
 * halves of words as f32; put_sums, which adds to n columns of C or replaces them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_SKINNY_H
#define DQ_LOOPS_SKINNY_H

typedef struct thin_job {
    float *c;
    const float *a;
    const uint8_t *w;
    int64_t ldc, lda, stride, n, k; /* stride: bytes between rows of W */
    bool add;
} thin_job;

enum { LINE = 64, WORDS = LINE / 4 };
/* Lines of a row that are asked for one after the other: memory gives neighbours faster. */
enum { RUN = 4 };

/* A word holds one value, or two of bfloat16, the first in its low half. */
INLINE vec value_of(const int per, vec word, int64_t which)
{
    if (per == 1) return word;
    return which ? high_of(word) : low_of(word);
}

/* dst[WORDS] = bytes first .. end of a line of each row, zeros beside them. */
static __attribute__((noinline)) void part_of_line(vec dst[WORDS], const uint8_t *src,
                                                   int64_t stride, int64_t first, int64_t end)
{
    uint8_t line[LANES * LINE] = {0};
    for (int i = 0; i < LANES; i++)
        memcpy(line + i * LINE + first, src + i * stride + first, (size_t)(end - first));
    for (int h = 0; h < WORDS; h += LANES) columns_of(dst + h, line + 4 * h, LINE);
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
    const int64_t cut = kk <= 0 ? -1 : (DQ_CHAIN - kk % DQ_CHAIN) % DQ_CHAIN;
    vec y[WORDS];
    if (first == 0 && end == wide) {
#pragma GCC unroll 2
        for (int h = 0; h < WORDS; h += LANES) columns_of(y + h, w + 4 * h, t->stride);
    } else
        part_of_line(y, w, t->stride, first * 4 / per, end * 4 / per);
    for (int64_t j = first; j < end; j++) {
        const vec x = value_of(per, y[j / per], j % per);
        if (j == cut) fold_rows(m, t->c + row, t->ldc, s, t->n - row, t->add || kk + j > DQ_CHAIN);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) s[i] = fma_vec(splat_vec(t->a[i * t->lda + kk + j]), x, s[i]);
    }
}

/* What is asked for while a line of LANES rows is worked on: RUN lines of each of LANES / RUN rows, so that RUN such lines ask
 * for all rows. Asked twice, as the processor drops what it is asked for while it is busy. */
typedef struct ahead {
    const uint8_t *row;
    int64_t soon, later; /* bytes */
} ahead;

INLINE void ask(ahead *h, int64_t stride, const int i)
{
    __builtin_prefetch(h->row + h->soon + i % RUN * LINE, 0, 2);
    __builtin_prefetch(h->row + h->later + i % RUN * LINE, 0, 2);
    if (i % RUN == RUN - 1) h->row += stride;
    __asm__("" : "+r"(h->row)); /* one address, not LANES on the stack */
}

/* A whole line of LANES rows, others being asked for between columns. */
INLINE void thin_line(const thin_job *t, const int m, const int per, vec s[MAX_ROWS],
                      const uint8_t *w, const float *a, ahead next)
{
    vec y[LANES];
#pragma GCC unroll 2
    for (int h = 0; h < WORDS; h += LANES) {
        columns_of(y, w + 4 * h, t->stride);
        __asm__ volatile("" ::: "memory"); /* factors are read again, not kept on the stack */
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            if (h == 0) ask(&next, t->stride, j);
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

/* The sums of m rows with LANES nv rows of W. Rows whose lengths are multiples of ALIKE lines meet in few sets of the cache,
 * where two halves of two lines would be read twice: of these, whole lines are read, and the columns before the first cost
 * more. */
INLINE void thin_rows(const thin_job *t, const int m, const int nv, const int per)
{
    enum { SOON = 16, LATER = 64, ALIKE = 16 }; /* lines */
    const int64_t wide = WORDS * per, half = wide / 2, turn = (LANES * nv - 1) * t->stride;
    const int64_t begin = (int64_t)((uintptr_t)t->w % LINE) * per / 4;
    const int64_t skip = t->stride % (ALIKE * LINE) ? 0 : begin;
    vec s[2][MAX_ROWS];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) s[v][i] = zero_vec();
    for (int64_t kk = -skip; kk < t->k; kk += wide) {
        const int64_t nth = (kk + skip) / wide % RUN, run = kk - nth * wide;
        const int64_t soon = LINE * SOON + (run + SOON * wide + half < t->k ? 0 : turn);
        const int64_t later = LINE * LATER + (run + LATER * wide + half < t->k ? 0 : turn);
        const bool edge = kk < 0 || kk + wide > t->k || kk % DQ_CHAIN + wide > DQ_CHAIN;
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const uint8_t *w = t->w + v * LANES * t->stride + kk * 4 / per;
            ahead next = {w - nth * LINE + nth * (LANES / RUN) * t->stride, soon, later};
            if (!edge) {
                if (kk % DQ_CHAIN == 0 && kk > 0)
                    fold_rows(m, t->c + v * LANES, t->ldc, s[v], t->n - v * LANES,
                              t->add || kk > DQ_CHAIN);
                thin_line(t, m, per, s[v], w, t->a + kk, next);
                continue;
            }
            for (int j = 0; j < LANES; j++) ask(&next, t->stride, j);
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

static void skinny(float *c, int64_t ldc, const float *a, int64_t lda, const float *w, int64_t ldw,
                   int64_t m, int64_t n, int64_t k, bool add)
{
    const uint8_t *data = (const uint8_t *)(const void *)w;
    thin_any((thin_job){c, a, data, ldc, lda, 4 * ldw, n, k, add}, m, STRIPS, 1);
}

/* Two columns a word: one chain alone would wait for itself. */
static void skinny_bf16(float *c, int64_t ldc, const float *a, int64_t lda, const uint16_t *w,
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
