/* loops: what all instruction sets share but for VECTOR_BYTES: every product and sum is rounded
 * alone, and 8 lanes are summed whatever a vector holds.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LOOPS_H
#define DQ_LOOPS_H

#include "kernels/cpu/simd.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- exponential */

/* exp(x) = 2^n * exp(r), n = rint(x / ln 2), r = x - n ln 2 in two steps, as n * EXP_LN2_HI is
 * exact; exp(r) = 1 + (r + r^2 q(r)), q of degree 5, Taylor: the next term is below 2^-28 for |r|
 * <= ln 2 / 2. A result below EXP_LOW would be subnormal: it is 0. */
#define EXP_LOW    (-87.33654f)
#define EXP_HIGH   88.72283f
#define EXP_LOG2E  1.44269504f
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_C7     1.98412698e-4f
#define EXP_C6     1.38888889e-3f
#define EXP_C5     8.33333333e-3f
#define EXP_C4     4.16666667e-2f
#define EXP_C3     1.66666667e-1f
#define EXP_C2     0.5f

static inline float exp_scalar(float x)
{
    float low = x < EXP_HIGH ? x : EXP_HIGH; /* NaN is put back at the end */
    low = low > EXP_LOW ? low : EXP_LOW;
    float n = rintf(low * EXP_LOG2E);
    float r = low - n * EXP_LN2_HI;
    r = r - n * EXP_LN2_LO;
    float q = EXP_C7 * r + EXP_C6;
    q = q * r + EXP_C5;
    q = q * r + EXP_C4;
    q = q * r + EXP_C3;
    q = q * r + EXP_C2;
    float y = (q * r) * r + r;
    y = y + 1.0f;
    /* 2^n in two factors: n = 128 has no f32 of its own */
    int32_t k = (int32_t)n, half = k >> 1, rest = k - half;
    int32_t a = (half + 127) << 23, b = (rest + 127) << 23;
    float fa, fb;
    memcpy(&fa, &a, sizeof fa);
    memcpy(&fb, &b, sizeof fb);
    y = (y * fa) * fb;
    if (x < EXP_LOW) y = 0.0f;
    if (x > EXP_HIGH) y = INFINITY;
    return x != x ? x : y;
}

/* ---- rows */

static void round_to_grid(float *x, int64_t n, float r, float qmax, float delta)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float q = rintf(x[i] * r);
        q = q < qmax ? q : qmax; /* the vector minimum's choice for NaN, too */
        q = q > -qmax ? q : -qmax;
        x[i] = q * delta;
    }
}

static void diff(float *d, const float *p1, const float *p2, int64_t n, float a, float b)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = a * p1[i] - b * p2[i];
}

static void scale_row(float *x, int64_t n, float a)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] *= a;
}

static void scale_gain(float *y, const float *x, int64_t n, float a, const float *w)
{
    if (w) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * a * w[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = x[i] * a;
    }
}

static void add_row(float *x, const float *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}

static void rotate(float *lo, float *hi, const float *cos, const float *sin, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float x = lo[i], y = hi[i];
        lo[i] = x * cos[i] - y * sin[i];
        hi[i] = y * cos[i] + x * sin[i];
    }
}

/* ---- divergence */

typedef double wide_doubles __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t wide_words __attribute__((vector_size(VECTOR_BYTES)));
typedef float wide_floats __attribute__((vector_size(VECTOR_BYTES / 2), aligned(4)));
enum { WIDE_LANES = 8, WIDE_STEP = VECTOR_BYTES / 8, WIDE_VECTORS = WIDE_LANES / WIDE_STEP };

/* The compiler's own conversion cuts vectors in halves. */
INLINE wide_doubles wide_of(const float *p)
{
    wide_floats x;
    memcpy(&x, p, sizeof x);
#ifdef VECTOR
    return (wide_doubles)VECTOR(cvtps_pd)(x);
#else
    return __builtin_convertvector(x, wide_doubles);
#endif
}

/* exp(x) for x <= 0 or NaN, within 1 ulp; 0 below -708. x = n ln 2 + r, where adding 1.5 * 2^52
 * leaves n in the low bits and n times 32 bits of ln 2 is exact. exp(r) = 1 + (r + r^2 q(r)), q of
 * degree 9 through Chebyshev's points of |r| <= ln 2 / 2, within 2^-55.7. 2^n is made of bits. */
INLINE wide_doubles exp_of(wide_doubles x)
{
    static const double q[] = {0x1.af390ba7e6f47p-26, 0x1.2891d4ffbb0f9p-22, 0x1.71de0d85293b8p-19,
                               0x1.a019b8ca26fcfp-16, 0x1.a01a01a7cebcdp-13, 0x1.6c16c1789d1d7p-10,
                               0x1.11111111109a6p-7,  0x1.5555555553d37p-5,  0x1.5555555555556p-3,
                               0x1.0000000000001p-1};
    const double round = 0x1.8p52;
    const wide_doubles shifted = x * 0x1.71547652b82fep+0 + round, n = shifted - round;
    const wide_doubles r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    wide_doubles y = r * q[0] + q[1];
#pragma GCC unroll 8
    for (int i = 2; i < 10; i++) y = y * r + q[i];
    y = (y * r) * r + r;
    const wide_words exponent = ((wide_words)shifted + 1023) << 52;
    y = (y + 1.0) * (wide_doubles)exponent;
    return (wide_doubles)((wide_words)y & ~(wide_words)(x < -708.0));
}

/* Lane by lane: sums of exp(u), exp(v) and exp(u) (u - v), the last where exp(u) is not 0. */
INLINE void add_divergence(wide_doubles s[3][WIDE_VECTORS], const float *p, const float *q,
                           double top_p, double top_q)
{
    for (int j = 0; j < WIDE_VECTORS; j++) {
        const wide_doubles u = wide_of(p + j * WIDE_STEP) - top_p;
        const wide_doubles v = wide_of(q + j * WIDE_STEP) - top_q;
        const wide_doubles e = exp_of(u), term = e * (u - v);
        s[0][j] += e;
        s[1][j] += exp_of(v);
        s[2][j] += (wide_doubles)((wide_words)term & (wide_words)(e > 0.0));
    }
}

/* Lane i with lane i + 4, then + 2, + 1. */
INLINE double fold_lanes(const void *lanes)
{
    double x[WIDE_LANES];
    memcpy(x, lanes, sizeof x);
    for (int step = WIDE_LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++) x[i] += x[i + step];
    return x[0];
}

static void divergence(double sum[3], const float *p, const float *q, int64_t n, double top_p,
                       double top_q)
{
    wide_doubles s[3][WIDE_VECTORS] = {{{0}}};
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) add_divergence(s, p + i, q + i, top_p, top_q);
    if (i < n) {
        float rest[2][WIDE_LANES]; /* what does not exist adds nothing */
        for (int j = 0; j < WIDE_LANES; j++) {
            rest[0][j] = i + j < n ? p[i + j] : -INFINITY;
            rest[1][j] = i + j < n ? q[i + j] : -INFINITY;
        }
        add_divergence(s, rest[0], rest[1], top_p, top_q);
    }
    for (int k = 0; k < 3; k++) sum[k] = fold_lanes(s[k]);
}

/* ---- maps */

typedef float maps_floats __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef int32_t maps_ints __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint32_t maps_words __attribute__((vector_size(VECTOR_BYTES / 2)));

/* log(x) of a normal x > 0. x = 2^n m, m from sqrt(1/2) to sqrt(2); r = m - 1 and n times 9 bits of
 * ln 2 are exact; log(1 + r) = r - r^2 / 2 + r^3 q(r), q of degree 7, to 2^-27.3 of log. */
INLINE maps_floats maps_log(maps_floats x)
{
    static const float q[] = {-0x1.38b57fp-4f, 0x1.055b6ap-3f, -0x1.0d8542p-3f, 0x1.22da1cp-3f,
                              -0x1.547244p-3f, 0x1.99a008p-3f, -0x1.000226p-2f, 0x1.555554p-2f};
    const maps_words bits = (maps_words)x, above = bits - 0x3f3504f3u; /* sqrt(1/2) */
    const maps_floats n = __builtin_convertvector((maps_ints)above >> 23, maps_floats);
    const maps_floats r = (maps_floats)(bits - (above & 0xff800000u)) - 1.0f, square = r * r;
    maps_floats y = r * q[0] + q[1];
#pragma GCC unroll 6
    for (int i = 2; i < 8; i++) y = y * r + q[i];
    y = y * r * square - n * 2.12194440e-4f; /* the second part of ln 2 is below 0 */
    return ((y - square * 0.5f) + r) + n * 0.693359375f;
}

INLINE maps_floats maps_load(const float *p)
{
    maps_floats x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE maps_floats maps_size(maps_floats x)
{
    return (maps_floats)((maps_ints)x & INT32_MAX);
}

INLINE void maps_add_entropy(wide_doubles *sum, const float *p, float a)
{
    for (int j = 0; j < WIDE_VECTORS; j++) {
        const maps_floats x = maps_load(p + j * WIDE_STEP) * a;
        const maps_floats term = (maps_floats)((maps_ints)(x * maps_log(x)) & (x >= FLT_MIN));
        sum[j] -= __builtin_convertvector(term, wide_doubles);
    }
}

static double entropy(const float *p, int64_t n, float a)
{
    wide_doubles sum[WIDE_VECTORS] = {{0}};
    float rest[WIDE_LANES] = {0};
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) maps_add_entropy(sum, p + i, a);
    if (i < n) {
        memcpy(rest, p + i, (size_t)(n - i) * sizeof *rest);
        maps_add_entropy(sum, rest, a);
    }
    return fold_lanes(sum);
}

/* By lane, sums of a row and of its page, and counts of values below each limit. */
typedef struct maps_walk {
    wide_doubles negative[WIDE_VECTORS], page[WIDE_VECTORS];
    maps_ints below[DQ_SIMD_LIMITS];
} maps_walk;

/* `both` is a constant at every call. */
INLINE void maps_add_sizes(maps_walk *w, const float *p1, const float *p2, float a, float b,
                           const float *limit, const bool both)
{
    for (int j = 0; j < WIDE_VECTORS; j++) {
        maps_floats d = maps_load(p1 + j * WIDE_STEP) * a;
        if (both) {
            d -= maps_load(p2 + j * WIDE_STEP) * b;
            const maps_floats low = (maps_floats)((maps_ints)d & (d < 0.0f));
            w->negative[j] -= __builtin_convertvector(low, wide_doubles);
        }
        const maps_floats size = maps_size(d);
        w->page[j] += __builtin_convertvector(size, wide_doubles);
        for (int k = 0; k < DQ_SIMD_LIMITS; k++) w->below[k] -= size < limit[k];
    }
}

INLINE void maps_walk_page(maps_walk *w, const float *p1, const float *p2, int64_t n, float a,
                           float b, const float *limit, const bool both)
{
    float rest[2][WIDE_LANES] = {{0}};
    int64_t i = 0;
    for (int j = 0; j < WIDE_VECTORS; j++) w->page[j] = (wide_doubles){0};
    for (; i + WIDE_LANES <= n; i += WIDE_LANES)
        maps_add_sizes(w, p1 + i, both ? p2 + i : p1, a, b, limit, both);
    if (i == n) return;
    memcpy(rest[0], p1 + i, (size_t)(n - i) * sizeof **rest);
    if (both) memcpy(rest[1], p2 + i, (size_t)(n - i) * sizeof **rest);
    maps_add_sizes(w, rest[0], rest[1], a, b, limit, both);
}

INLINE double maps_walk_row(double *page, int64_t *below, const float *p1, const float *p2,
                            int64_t n, float a, float b, const float *limit, const bool both)
{
    const int64_t spare = (WIDE_LANES - n % WIDE_LANES) % WIDE_LANES;
    const float none = fabsf(0.0f * a - 0.0f * b); /* |d| of what fills up */
    maps_walk w;
    memset(&w, 0, sizeof w);
    for (int64_t i = 0; i < n; i += DQ_TILE_N) {
        const int64_t end = n - i < DQ_TILE_N ? n - i : DQ_TILE_N;
        maps_walk_page(&w, p1 + i, both ? p2 + i : NULL, end, a, b, limit, both);
        page[i / DQ_TILE_N] = fold_lanes(w.page);
    }
    for (int k = 0; k < DQ_SIMD_LIMITS; k++) {
        for (int j = 0; j < WIDE_STEP; j++) below[k] += w.below[k][j];
        if (none < limit[k]) below[k] -= spare;
    }
    return fold_lanes(w.negative);
}

static double map_sizes(double *page, int64_t *below, const float *p1, const float *p2, int64_t n,
                        float a, float b, const float *limit)
{
    return p2 ? maps_walk_row(page, below, p1, p2, n, a, b, limit, true)
              : maps_walk_row(page, below, p1, NULL, n, a, 0.0f, limit, false);
}

/* ---- powers */

static double sum_squares(const float *x, int64_t n)
{
    wide_doubles s[WIDE_VECTORS] = {{0}};
    double lane[WIDE_LANES];
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) {
        for (int j = 0; j < WIDE_VECTORS; j++) {
            const wide_doubles v = wide_of(x + i + j * WIDE_STEP);
            s[j] += v * v;
        }
    }
    for (int j = 0; j < WIDE_VECTORS; j++) memcpy(lane + j * WIDE_STEP, &s[j], sizeof s[j]);
    for (int k = 0; i < n; i++, k++) lane[k] += (double)x[i] * (double)x[i];
    return fold_lanes(lane);
}

static void power_sums(double sum[3], const float *x, int n)
{
    wide_doubles s[3][WIDE_VECTORS] = {{{0}}};
    double lane[3][WIDE_LANES];
    int i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) {
        for (int j = 0; j < WIDE_VECTORS; j++) {
            const wide_doubles v = wide_of(x + i + j * WIDE_STEP), w = v * v;
            s[0][j] += (wide_doubles)((wide_words)v & INT64_MAX);
            s[1][j] += w;
            s[2][j] += w * w;
        }
    }
    memcpy(lane, s, sizeof lane);
    for (int k = 0; i < n; i++, k++) {
        const double v = (double)x[i], w = v * v;
        lane[0][k] += fabs(v);
        lane[1][k] += w;
        lane[2][k] += w * w;
    }
    for (int k = 0; k < 3; k++) sum[k] += fold_lanes(lane[k]);
}

/* ---- lines */

/* A vector holds the same word of VECTOR_BYTES / 4 rows, so that no byte changes its row. */
typedef uint32_t lines_rows __attribute__((vector_size(VECTOR_BYTES), may_alias,
                                           aligned(4))); /* what wrote it wrote floats */
enum { LINES_STEPS = DQ_PREPACKED_COLS / 4, LINES_VECTORS = 4 * DQ_PREPACKED_ROWS / VECTOR_BYTES };

/* Ones in the low n bits of every `step` bits. */
INLINE uint32_t lines_mask(const int n, const int step)
{
    uint32_t x = 0;
    for (int at = 0; at < 32; at += step) x |= ((1u << n) - 1) << at;
    return x;
}

/* Columns 4 s .. 4 s + 3 of a chunk, a byte each: halves move apart, then quarters. */
INLINE lines_rows lines_step(const lines_rows *in, const int s, const int bits)
{
    const int at = 4 * bits * s, word = at / 32, shift = at % 32;
    const uint32_t one = lines_mask(bits, 16);
    lines_rows x = in[word * LINES_VECTORS] >> shift;
    if (shift + 4 * bits > 32) x |= in[(word + 1) * LINES_VECTORS] << (32 - shift);
    x = (x & ((1u << 2 * bits) - 1)) | (x >> 2 * bits & ((1u << 2 * bits) - 1)) << 16;
    return (x & one) | (x >> bits & one) << 8;
}

/* A chunk of as many rows as a vector has lanes. */
INLINE void lines_chunk(lines_rows *to, const lines_rows *in, const int bits)
{
    const int each = 8 / bits, whole = each * bits, spare = 8 - whole;
    lines_rows step[LINES_STEPS];
#pragma GCC unroll 8
    for (int s = 0; s < LINES_STEPS; s++) step[s] = lines_step(in, s, bits);
#pragma GCC unroll 7
    for (int l = 0; l < bits; l++) {
        lines_rows x = step[l * each];
#pragma GCC unroll 4
        for (int i = 1; i < each; i++) x |= step[l * each + i] << bits * i;
#pragma GCC unroll 3
        for (int s = whole; s < LINES_STEPS; s++) {
            const int at =
                (s - whole) * bits - l * spare; /* of the step's codes in the spare bits */
            const int from = at > 0 ? at : 0, end = at + bits < spare ? at + bits : spare;
            if (from < end)
                x |= (step[s] >> (from - at) & lines_mask(end - from, 8)) << (whole + from);
        }
        to[l * LINES_VECTORS] = x;
    }
}

INLINE void lines_chunks(void *to, const void *words, const int bits, int64_t chunks)
{
    lines_rows *out = to;
    const lines_rows *in = words;
    for (int64_t i = 0; i < chunks; i++, out += bits * LINES_VECTORS, in += bits * LINES_VECTORS)
        for (int j = 0; j < LINES_VECTORS; j++) lines_chunk(out + j, in + j, bits);
}

static void lines(void *to, const void *words, int bits, int64_t chunks)
{
    if (bits == 7)
        lines_chunks(to, words, 7, chunks);
    else
        WITH_BITS(bits, lines_chunks(to, words, BITS, chunks))
}

#if VECTOR_BYTES > 16
/* ---- vectors */

/* The instruction set has defined exp_lanes, exp_low, is_above, columns (LANES words of LANES rows,
 * transposed) and TILE_VECTORS of a tile's row. */

/* exp(x) / 2^n, as exp_scalar has it. */
INLINE vecf exp_rest(vecf x, vecf n)
{
    vecf r = x - n * EXP_LN2_HI;
    r = r - n * EXP_LN2_LO;
    vecf q = EXP_C7 * r + EXP_C6;
    q = q * r + EXP_C5;
    q = q * r + EXP_C4;
    q = q * r + EXP_C3;
    q = q * r + EXP_C2;
    return (q * r) * r + r + 1.0f;
}

/* The largest lane or number of `rest`, which has n; lanes are none of them NaN. */
INLINE float max_with(vecf best, const float *rest, int64_t n)
{
    float top = top_of(best);
    for (int64_t i = 0; i < n; i++) top = rest[i] > top ? rest[i] : top;
    return top;
}

static float scale_max(float *x, int64_t n, float scale)
{
    vecf best = all_floats(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vecf v = load_floats(x + i) * scale;
        store_floats(x + i, v);
        best = VECTOR(max_ps)(v, best); /* NaN in v gives best */
    }
    for (int64_t k = i; k < n; k++) x[k] *= scale;
    return max_with(best, x + i, n - i);
}

static float row_max(const float *x, int64_t n)
{
    vecf best = all_floats(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) best = VECTOR(max_ps)(load_floats(x + i), best);
    return max_with(best, x + i, n - i);
}

static float absmax(const float *x, int64_t n)
{
    const veci no_sign = all_words(INT32_MAX);
    veci best = all_words(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        best = VECTOR(max_epi32)(best, (veci)load_floats(x + i) & no_sign);
    best = VECTOR(max_epi32)(best, (veci)load_some(x + i, n - i) & no_sign);
    int32_t lane[LANES], top = 0;
    float f;
    store_words(lane, best);
    for (int j = 0; j < LANES; j++) top = lane[j] > top ? lane[j] : top;
    memcpy(&f, &top, sizeof f);
    return f;
}

/* exp_lanes of what is at most EXP_HIGH, and whether anything is above that, or NaN. */
INLINE vecf exp_lanes(vecf x);
INLINE vecf exp_low(vecf x);
INLINE int is_above(vecf x);

INLINE double sum_of_exp(float *p, const float *s, int64_t n, float m)
{
    enum { BLOCK = 64, STEP = 4 * LANES };
    double sum = 0;
    for (int64_t first = 0; first < n; first += BLOCK) {
        const int64_t end = n - first < BLOCK ? n : first + BLOCK;
        int64_t i = first;
        vecf part[PARTS] = {{0}};
        for (; i + STEP <= end; i += STEP) {
            vecf x[4];
            int above = 0; /* hardly ever: less than all that is subtracted is never above 0 */
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                x[j] = load_floats(s + i + j * LANES) - m;
                above |= is_above(x[j]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const vecf y = above ? exp_lanes(x[j]) : exp_low(x[j]);
                if (p) store_floats(p + i + j * LANES, y);
                part[j % PARTS] += y;
            }
        }
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++, i += LANES) {
            if (i >= end) break;
            const vecf y = some_of(exp_lanes(load_some(s + i, end - i) - m), end - i);
            if (p) store_some(p + i, y, end - i);
            part[j % PARTS] += y;
        }
        sum += (double)fold16(part);
    }
    return sum;
}

static void silu_mul(float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vecf x = load_some(g + i, n - i), y = x / (1.0f + exp_lanes(-x));
        store_some(g + i, y * load_some(u + i, n - i), n - i);
    }
}

static void gelu_mul(float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        const vecf x = load_some(g + i, n - i), t = x * (DQ_GELU_A + DQ_GELU_B * (x * x)),
                   y = x / (1.0f + exp_lanes(-t));
        store_some(g + i, y * load_some(u + i, n - i), n - i);
    }
}

/* Elements of two bytes as f32. */
INLINE vecf as_floats(vech h, const dq_dtype type)
{
    if (type == DQ_F16) return VECTOR(cvtph_ps)(h);
    return (vecf)words_left(VECTOR(cvtepu16_epi32)(h), 16);
}

INLINE vecf load_as(const void *from, const dq_dtype type)
{
    return type == DQ_F32 ? load_floats(from) : as_floats(load_half(from), type);
}

/* n columns of C (none: less than 1) become the sums, or have them added. */
INLINE void put_sums(float *c, vecf s, int64_t n, bool add)
{
    if (n < 1) return;
    store_some(c, add ? floats_plus(load_some(c, n), s) : s, n);
}

/* A tile of mr x LANES nv; mr, nv and type are constants, so that sums stay in registers. */
INLINE void tile(const dq_dtype type, const int mr, const int nv, float *c, int64_t ldc,
                 const float *a, int64_t lda, const uint8_t *b, int64_t ldb, int64_t n, int64_t k,
                 bool add)
{
    const int bytes = type == DQ_F32 ? 4 : 2;
    vecf s[6][TILE_VECTORS];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) s[i][j] = VECTOR(setzero_ps)();
    for (int64_t kk = 0; kk < k; kk++, b += ldb * bytes) {
        vecf w[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++) w[j] = load_as(b + LANES * bytes * j, type);
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            const vecf x = all_floats(a[i * lda + kk]);
#pragma GCC unroll 4
            for (int j = 0; j < nv; j++) s[i][j] = floats_fma(x, w[j], s[i][j]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
        for (int j = 0; j < nv; j++)
            put_sums(c + i * ldc + LANES * j, s[i][j], j + 1 < nv ? LANES : n - LANES * j, add);
}

INLINE void tile_rows(const dq_dtype type, const int nv, float *c, int64_t ldc, const float *a,
                      int64_t lda, const uint8_t *b, int64_t ldb, int64_t m, int64_t n, int64_t k,
                      bool add)
{
    for (; m >= 6; m -= 6, a += 6 * lda, c += 6 * ldc)
        tile(type, 6, nv, c, ldc, a, lda, b, ldb, n, k, add);
    switch (m) {
    case 5: tile(type, 5, nv, c, ldc, a, lda, b, ldb, n, k, add); break;
    case 4: tile(type, 4, nv, c, ldc, a, lda, b, ldb, n, k, add); break;
    case 3: tile(type, 3, nv, c, ldc, a, lda, b, ldb, n, k, add); break;
    case 2: tile(type, 2, nv, c, ldc, a, lda, b, ldb, n, k, add); break;
    case 1: tile(type, 1, nv, c, ldc, a, lda, b, ldb, n, k, add); break;
    default: break;
    }
}

/* At most TILE_VECTORS * LANES columns. */
INLINE void tile_columns(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                         const uint8_t *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    switch ((n + LANES - 1) / LANES) {
    case 1: tile_rows(type, 1, c, ldc, a, lda, b, ldb, m, n, k, add); break;
#if TILE_VECTORS > 2
    case 2: tile_rows(type, 2, c, ldc, a, lda, b, ldb, m, n, k, add); break;
    case 3: tile_rows(type, 3, c, ldc, a, lda, b, ldb, m, n, k, add); break;
#endif
    default: tile_rows(type, TILE_VECTORS, c, ldc, a, lda, b, ldb, m, n, k, add); break;
    }
}

INLINE void tiles(const dq_dtype type, float *c, int64_t ldc, const float *a, int64_t lda,
                  const uint8_t *b, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    enum { COLS = TILE_VECTORS * LANES };
    const int bytes = type == DQ_F32 ? 4 : 2;
    if ((int)COLS >= (int)DQ_TILE_N) /* a loop would keep what it does not need at hand */
        tile_columns(type, c, ldc, a, lda, b, ldb, m, n, k, add);
    for (int64_t j = 0; (int)COLS < (int)DQ_TILE_N && j < n; j += COLS)
        tile_columns(type, c + j, ldc, a, lda, b + j * bytes, ldb, m, n - j, k, add);
}

static void gemm(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, bool add)
{
    tiles(DQ_F32, c, ldc, a, lda, (const uint8_t *)(const void *)b, ldb, m, n, k, add);
}

static void gemm_half(float *c, int64_t ldc, const float *a, int64_t lda, const void *b,
                      dq_dtype type, int64_t ldb, int64_t m, int64_t n, int64_t k, bool add)
{
    if (type == DQ_F16)
        tiles(DQ_F16, c, ldc, a, lda, b, ldb, m, n, k, add);
    else
        tiles(DQ_BF16, c, ldc, a, lda, b, ldb, m, n, k, add);
}

static void transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t rows,
                      int64_t cols)
{
    const int64_t whole_rows = rows / LANES * LANES, whole_cols = cols / LANES * LANES;
    for (int64_t i = 0; i < whole_rows; i += LANES)
        for (int64_t j = 0; j < whole_cols; j += LANES) {
            vecf y[LANES];
            float *to = dst + j * ldd + i;
            columns(y, src + i * lds + j, 4 * lds);
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) store_floats(to + k * ldd, y[k]);
        }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < whole_rows ? whole_cols : 0; j < cols; j++)
            dst[j * ldd + i] = src[i * lds + j];
}

/* ---- codes */

/* A code of at most 8 bits lies in two neighbouring bytes: a shuffle gathers 16 such pairs, and
 * each is shifted by its own amount. Byte 16 would end the last 8-bit code's pair: 0x80 gives 0. */
#define PAIR(b, i) ((i) * (b) / 8), ((i) * (b) / 8 + 1 < 16 ? (i) * (b) / 8 + 1 : 0x80)
#define PAIRS(b)                                                                                   \
    {                                                                                              \
        PAIR(b, 0), PAIR(b, 1), PAIR(b, 2), PAIR(b, 3), PAIR(b, 4), PAIR(b, 5), PAIR(b, 6),        \
            PAIR(b, 7), PAIR(b, 8), PAIR(b, 9), PAIR(b, 10), PAIR(b, 11), PAIR(b, 12),             \
            PAIR(b, 13), PAIR(b, 14), PAIR(b, 15)                                                  \
    }
#define SHIFTS(b)                                                                                  \
    {                                                                                              \
        0, (b) % 8, 2 * (b) % 8, 3 * (b) % 8, 4 * (b) % 8, 5 * (b) % 8, 6 * (b) % 8, 7 * (b) % 8,  \
            0, (b) % 8, 2 * (b) % 8, 3 * (b) % 8, 4 * (b) % 8, 5 * (b) % 8, 6 * (b) % 8,           \
            7 * (b) % 8                                                                            \
    }

static const uint8_t code_bytes[7][32] = {PAIRS(2), PAIRS(3), PAIRS(4), PAIRS(5),
                                          PAIRS(6), PAIRS(7), PAIRS(8)};
static const uint32_t code_shift[7][16] = {SHIFTS(2), SHIFTS(3), SHIFTS(4), SHIFTS(5),
                                           SHIFTS(6), SHIFTS(7), SHIFTS(8)};

/* Few bits are looked up in a table of LANES values that repeats: bits above the code may stay. */
INLINE void codes_as(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                     int64_t n, int zero, float scale, const bool looked_up)
{
    static const int32_t counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vech pairs = load_half((const void *)code_bytes[bits - 2]);
    const veci shifts = load_bits((const void *)code_shift[bits - 2]);
    const veci mask = all_words((1 << bits) - 1), none = all_words(zero);
    const veci all = load_bits((const void *)counts) & mask;
    const vecf factor = all_floats(scale),
               table = floats_times(floats_of(words_less(all, none)), factor);
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t at = (first + i) * bits / 8, left = row_bytes - at;
        const __m128i bytes = left >= 16 ? _mm_loadu_si128((const void *)(row + at))
                                         : load_some_bytes(row + at, left);
        const veci u = VECTOR(cvtepu16_epi32)(shuffled_bytes(bytes, pairs));
        const veci q = VECTOR(srlv_epi32)(u, shifts);
        const vecf x = looked_up ? look_up(table, q)
                                 : floats_times(floats_of(words_less(q & mask, none)), factor);
        if (n - i >= LANES)
            store_floats(dst + i, x);
        else
            store_some(dst + i, x, n - i);
    }
}

static void codes(float *dst, const uint8_t *row, int64_t row_bytes, int bits, int64_t first,
                  int64_t n, int zero, float scale)
{
    if (1 << bits <= LANES)
        codes_as(dst, row, row_bytes, bits, first, n, zero, scale, true);
    else
        codes_as(dst, row, row_bytes, bits, first, n, zero, scale, false);
}

INLINE void widen_as(float *dst, const uint8_t *in, const dq_dtype type, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) store_floats(dst + i, load_as(in + 2 * i, type));
    if (i < n) store_some(dst + i, as_floats(load_some_halves(in + 2 * i, n - i), type), n - i);
}

static void widen(float *dst, const void *src, dq_dtype type, int64_t n)
{
    if (type == DQ_F32)
        memcpy(dst, src, (size_t)n * sizeof *dst);
    else if (type == DQ_F16)
        widen_as(dst, src, DQ_F16, n);
    else
        widen_as(dst, src, DQ_BF16, n);
}

/* ---- products of few rows */

/* Weights are read once for MAX_ROWS rows of activations; the instruction set has defined MAX_ROWS,
 * STRIPS of LANES rows of W for f32, and columns_far. */
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

INLINE vecf low_of(vecf words)
{
    return (vecf)words_left((veci)words, 16);
}

INLINE vecf high_of(vecf words)
{
    return (vecf)((veci)words & all_words(-65536));
}

/* A word holds one value, or two of bfloat16, the first in its low half. */
INLINE vecf value_of(const int per, vecf word, int64_t which)
{
    if (per == 1) return word;
    return which ? high_of(word) : low_of(word);
}

/* dst[WORDS] = bytes first .. end of a line of each row, zeros beside them. */
static __attribute__((noinline)) void part_of_line(vecf dst[WORDS], const uint8_t *src,
                                                   int64_t stride, int64_t first, int64_t end)
{
    uint8_t line[LANES * LINE] = {0};
    for (int i = 0; i < LANES; i++)
        memcpy(line + i * LINE + first, src + i * stride + first, (size_t)(end - first));
    for (int h = 0; h < WORDS; h += LANES) columns_far(dst + h, line + 4 * h, LINE);
}

/* A chain of m rows ends. */
INLINE void fold_rows(const int m, float *c, int64_t ldc, vecf s[MAX_ROWS], int64_t n, bool add)
{
#pragma GCC unroll 8
    for (int i = 0; i < m; i++) {
        put_sums(c + i * ldc, s[i], n, add);
        s[i] = VECTOR(setzero_ps)();
    }
}

/* A line inside of which a chain or a row of W begins or ends, a column after the other. */
INLINE void thin_edge(const thin_job *t, const int m, const int per, vecf s[MAX_ROWS], int64_t row,
                      const uint8_t *w, int64_t kk)
{
    const int64_t wide = WORDS * per, first = kk < 0 ? -kk : 0;
    const int64_t end = t->k - kk < wide ? t->k - kk : wide;
    const int64_t cut = kk <= 0 ? -1 : (DQ_CHAIN - kk % DQ_CHAIN) % DQ_CHAIN;
    vecf y[WORDS];
    if (first == 0 && end == wide) {
#pragma GCC unroll 2
        for (int h = 0; h < WORDS; h += LANES) columns_far(y + h, w + 4 * h, t->stride);
    } else
        part_of_line(y, w, t->stride, first * 4 / per, end * 4 / per);
    for (int64_t j = first; j < end; j++) {
        const vecf x = value_of(per, y[j / per], j % per);
        if (j == cut) fold_rows(m, t->c + row, t->ldc, s, t->n - row, t->add || kk + j > DQ_CHAIN);
#pragma GCC unroll 8
        for (int i = 0; i < m; i++)
            s[i] = floats_fma(all_floats(t->a[i * t->lda + kk + j]), x, s[i]);
    }
}

/* RUN lines of each of LANES / RUN rows, asked for twice, as a busy processor drops requests. */
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
INLINE void thin_line(const thin_job *t, const int m, const int per, vecf s[MAX_ROWS],
                      const uint8_t *w, const float *a, ahead next)
{
    vecf y[LANES];
#pragma GCC unroll 2
    for (int h = 0; h < WORDS; h += LANES) {
        columns_far(y, w + 4 * h, t->stride);
        __asm__ volatile("" ::: "memory"); /* factors are read again, not kept on the stack */
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            if (h == 0) ask(&next, t->stride, j);
#pragma GCC unroll 2
            for (int p = 0; p < per; p++) {
                const vecf value = value_of(per, y[j], p);
#pragma GCC unroll 8
                for (int i = 0; i < m; i++)
                    s[i] = floats_fma(all_floats(a[i * t->lda + (h + j) * per + p]), value, s[i]);
            }
        }
    }
}

/* Rows of a multiple of ALIKE lines meet in few sets of the cache, where halves of lines would be
 * read twice: of these whole lines are read, and the columns before the first cost more. */
INLINE void thin_rows(const thin_job *t, const int m, const int nv, const int per)
{
    enum { SOON = 16, LATER = 64, ALIKE = 16 }; /* lines */
    const int64_t wide = WORDS * per, half = wide / 2, turn = (LANES * nv - 1) * t->stride;
    const int64_t begin = (int64_t)((uintptr_t)t->w % LINE) * per / 4;
    const int64_t skip = t->stride % (ALIKE * LINE) ? 0 : begin;
    vecf s[2][MAX_ROWS];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
#pragma GCC unroll 8
        for (int i = 0; i < m; i++) s[v][i] = VECTOR(setzero_ps)();
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

/* exp_sum and sum_exp: the instruction set has defined sum_of_exp, of which p may be NULL. */
static double exp_sum(float *p, const float *s, int64_t n, float m)
{
    return sum_of_exp(p, s, n, m);
}

static double sum_exp(const float *s, int64_t n, float m)
{
    return sum_of_exp(NULL, s, n, m);
}

/* The instruction set has read kv_lines.h. */
#define DQ_LOOPS_TABLE(NAME, TURN_SCALES)                                                          \
    {                                                                                              \
        .name = NAME, .gemm = gemm, .gemm_half = gemm_half, .skinny = skinny,                      \
        .skinny_bf16 = skinny_bf16, .transpose = transpose, .scale_max = scale_max,                \
        .max = row_max, .absmax = absmax, .round_to_grid = round_to_grid, .exp_sum = exp_sum,      \
        .sum_exp = sum_exp, .divergence = divergence, .entropy = entropy, .map_sizes = map_sizes,  \
        .power_sums = power_sums, .diff = diff, .scale = scale_row, .scale_gain = scale_gain,      \
        .sum_squares = sum_squares, .add = add_row, .silu_mul = silu_mul, .gelu_mul = gelu_mul,    \
        .rotate = rotate, .widen = widen, .turn_scales = TURN_SCALES, .codes = codes,              \
        .lines = lines, .read_keys = read_keys, .read_values = read_values,                        \
        .read_page_keys = read_page_keys, .read_page_values = read_page_values                     \
    }

#endif
