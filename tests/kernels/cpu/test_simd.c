/* test_simd: every inner loop of the wide tables against the scalar one, bit for bit where simd.h
 * promises it, and exp against f64.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "kernels/cpu/simd.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX = 200 };

static const dq_simd *wide[2]; /* NULL: not on this machine */

static int find_tables(void **state)
{
    const unsigned have = dq_os_cpu_features(NULL);
    (void)state;
    if (have & DQ_CPU_AVX2) wide[0] = dq_cpu_isa_of(DQ_CPU_AVX2)->simd;
    if (have & DQ_CPU_AVX512) wide[1] = dq_cpu_isa_of(DQ_CPU_AVX2 | DQ_CPU_AVX512)->simd;
    return 0;
}

static float value(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*seed >> 33) / 1073741824.0 - 1.0) * 4.0f;
}

static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = value(&seed);
}

static void same(const float *a, const float *b, int64_t n)
{
    assert_memory_equal(a, b, (size_t)(n + 1) * sizeof *a); /* and nothing after */
}

/* Ends the data with what is hard: infinities, NaN, zeros of both signs. */
static void harden(float *x, int64_t n)
{
    const float hard[] = {-INFINITY, NAN, -0.0f, 0.0f, 1e-40f, -3e38f};
    for (int64_t i = 0; i < 6 && 7 * i + 3 < n; i++) x[7 * i + 3] = hard[i];
}

TEST(row_functions)
{
    const dq_simd *s = &dq_simd_scalar;
    float x[MAX + 1], y[MAX + 1], u[MAX + 1], v[MAX + 1], c[MAX + 1];
    for (int64_t n = 0; n <= 2 * MAX; n++) {
        const bool hard = n > MAX;
        const int64_t len = hard ? n - MAX : n;
        for (int w = 0; w < 2; w++) {
            const dq_simd *t = wide[w];
            if (!t) continue;
            fill(x, MAX + 1, (uint64_t)n);
            fill(u, MAX + 1, (uint64_t)n + 1000);
            if (hard) harden(x, len);
            memcpy(y, x, sizeof x);
            assert_memory_equal(&(float){s->max(x, len)}, &(float){t->max(x, len)}, 4);
            assert_memory_equal(&(float){s->absmax(x, len)}, &(float){t->absmax(x, len)}, 4);
            assert_true(s->scale_max(x, len, 0.3f) == t->scale_max(y, len, 0.3f));
            same(x, y, len);
            s->round_to_grid(x, len, 5.3f, 7.0f, 0.21f);
            t->round_to_grid(y, len, 5.3f, 7.0f, 0.21f);
            same(x, y, len);
            if (hard) continue; /* signs of NaN are nobody's promise below */
            s->diff(x, x, u, len, 0.7f, 1.3f);
            t->diff(y, y, u, len, 0.7f, 1.3f);
            same(x, y, len);
            s->scale_gain(x, x, len, 1.7f, u);
            t->scale_gain(y, y, len, 1.7f, u);
            same(x, y, len);
            s->scale_gain(x, x, len, 0.7f, NULL);
            t->scale_gain(y, y, len, 0.7f, NULL);
            same(x, y, len);
            s->scale(x, len, 1.1f);
            t->scale(y, len, 1.1f);
            same(x, y, len);
            s->add(x, u, len);
            t->add(y, u, len);
            same(x, y, len);
            assert_true(s->sum_squares(x, len) == t->sum_squares(x, len));
            memcpy(v, u, sizeof u);
            fill(c, MAX + 1, 5);
            s->rotate(x, u, c, c + (MAX - len), len);
            t->rotate(y, v, c, c + (MAX - len), len);
            same(x, y, len);
            same(u, v, len);
            s->silu_mul(x, u, len);
            t->silu_mul(y, u, len);
            same(x, y, len);
            s->gelu_mul(x, u, len);
            t->gelu_mul(y, u, len);
            same(x, y, len);
        }
    }
}

TEST(turned_scales)
{
    enum { SLOTS = 64, MOST = 8 };
    uint16_t in[SLOTS * MOST];
    float out[SLOTS * MOST + 1];
    for (int i = 0; i < SLOTS * MOST; i++) in[i] = (uint16_t)(i * 8191 + 77); /* NaN among them */
    for (int w = 0; w < 2; w++) {
        for (int64_t n = 1; wide[w] && wide[w]->turn_scales && n <= MOST; n++) {
            memset(out, 1, sizeof out);
            const bool done = wide[w]->turn_scales(out, in, n);
            assert_int_equal(done, n == 1 || n == 2 || n == 4);
            for (int64_t i = 0; i < SLOTS * MOST + 1; i++) {
                float x;
                memset(&x, 1, sizeof x);
                if (done && i < SLOTS * n)
                    dq_simd_scalar.widen(&x, in + i % SLOTS * n + i / SLOTS, DQ_F16, 1);
                assert_memory_equal(out + i, &x, sizeof x);
            }
        }
    }
}

TEST(exponentials)
{
    float x[MAX + 1], p[MAX + 1], q[MAX + 1];
    for (int round = 0; round < 3000; round++) {
        const int64_t n = round % (MAX + 1);
        uint64_t seed = (uint64_t)round;
        for (int64_t i = 0; i <= n; i++) x[i] = value(&seed) * (float)(round % 23) - 3.0f;
        if (round % 5 == 0 && n > 2) x[n / 2] = -INFINITY;
        if (round % 7 == 0 && n > 2) x[n / 3] = 95.0f;
        memset(p, 0, sizeof p);
        const double sum = dq_simd_scalar.exp_sum(p, x, n, 1.5f);
        assert_true(sum == dq_simd_scalar.sum_exp(x, n, 1.5f));
        for (int w = 0; w < 2; w++) {
            if (!wide[w]) continue;
            memset(q, 0, sizeof q);
            assert_true(wide[w]->exp_sum(q, x, n, 1.5f) == sum);
            assert_true(wide[w]->sum_exp(x, n, 1.5f) == sum);
            same(p, q, n);
        }
        for (int64_t i = 0; i < n; i++) {
            const double want = exp((double)(x[i] - 1.5f));
            if (want < 0x1p-126) {
                assert_true(p[i] == 0.0f);
            } else if (want > 3.4028235e38) {
                assert_true(isinf(p[i]));
            } else {
                const double ulp = (double)(nextafterf((float)want, INFINITY) - (float)want);
                assert_true(fabs((double)p[i] - want) <= ulp);
            }
        }
    }
    for (int w = -1; w < 2; w++) { /* a row may be cut at multiples of 64 */
        const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
        if (!t) continue;
        fill(x, MAX, 3);
        assert_true(t->sum_exp(x, 128, 4.0f) + t->sum_exp(x + 128, 72, 4.0f) ==
                    t->sum_exp(x, 200, 4.0f));
        x[100] = NAN;
        assert_true(isnan(t->exp_sum(q, x, 200, 4.0f)) && isnan(q[100]) && !isnan(q[99]));
    }
}

/* Against libm, one value and many; every instruction set gives the same bits. */
TEST(divergences)
{
    float p[MAX], q[MAX];
    double sum[3], other[3];
    for (int64_t n = 0; n <= MAX; n++) {
        double want[3] = {0};
        uint64_t seed = (uint64_t)n + 1;
        for (int64_t i = 0; i < n; i++) p[i] = value(&seed) * (float)(n % 40);
        for (int64_t i = 0; i < n; i++) q[i] = value(&seed) * (float)(n % 7);
        if (n % 3 == 1) p[n / 2] = -INFINITY;
        if (n % 5 == 1) q[n / 3] = -800.0f;
        const double top_p = (double)dq_simd_scalar.max(p, n),
                     top_q = (double)dq_simd_scalar.max(q, n);
        for (int64_t i = 0; i < n; i++) {
            const double u = (double)p[i] - top_p, v = (double)q[i] - top_q;
            want[0] += exp(u);
            want[1] += exp(v);
            if (exp(u) > 0) want[2] += exp(u) * (u - v);
        }
        dq_simd_scalar.divergence(sum, p, q, n, top_p, top_q);
        for (int k = 0; k < 3; k++)
            assert_true((isnan(sum[k]) && isnan(want[k])) ||
                        fabs(sum[k] - want[k]) <= 1e-13 * (1 + fabs(want[k])));
        for (int w = 0; w < 2; w++) {
            if (!wide[w]) continue;
            wide[w]->divergence(other, p, q, n, top_p, top_q);
            if (!isnan(sum[0])) assert_memory_equal(sum, other, sizeof sum);
        }
        dq_simd_scalar.divergence(sum, q, q, n, top_q, top_q);
        assert_true(sum[0] == sum[1] && sum[2] == 0);
    }
    for (int i = 0; i <= 200000;
         i++) { /* one value: exp itself; -infinity adds nothing, NaN stays */
        const float x = i == 200000 ? NAN : -0.00355f * (float)i, none = -INFINITY;
        const double want = exp((double)x), ulp = nextafter(want, 2) - want;
        dq_simd_scalar.divergence(sum, &none, &x, 1, 0, 0);
        assert_true(sum[0] == 0 && sum[2] == 0);
        assert_true(x < -708 ? sum[1] == 0 : isnan(x) ? isnan(sum[1]) : fabs(sum[1] - want) <= ulp);
    }
}

static bool near_to(double got, double want)
{
    return fabs(got - want) <= 3e-7 * (fabs(want) + 1e-30);
}

/* A row as softmax leaves it: some of it zero, sizes over many powers of two. */
static void fill_row(float *p, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        p[i] = ldexpf(fabsf(value(&seed)), -(int)(seed >> 40 & 31));
        if (i % 11 == 5) p[i] = 0.0f;
    }
}

static void compare_entropy(const float *p, int64_t n, float a)
{
    double want = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)(p[i] * a);
        if (x > 0) want -= x * log(x);
        if (x > 0) size += fabs(x * log(x));
    }
    const double got = dq_simd_scalar.entropy(p, n, a);
    assert_true(fabs(got - want) <= 3e-7 * size);
    for (int w = 0; w < 2; w++) {
        if (!wide[w]) continue;
        const double other = wide[w]->entropy(p, n, a);
        assert_memory_equal(&got, &other, sizeof got);
    }
}

/* Against libm, one value and many. What is no normal number above 0 adds nothing. */
TEST(entropies)
{
    float p[MAX];
    const float none[] = {0, -0.0f, NAN, -1, 1e-40f, -INFINITY};
    for (int64_t n = 0; n <= MAX; n++) {
        fill_row(p, n, (uint64_t)n + 1);
        compare_entropy(p, n, 1.0f / (float)(1 + n % 9));
    }
    for (int i = 0; i <= 200000; i++) {
        const float x = ldexpf(1.0f + (float)(i % 1000) / 1000.0f, i / 1000 - 126);
        compare_entropy(&x, 1, 1.0f);
    }
    for (float x = 0.999f; x < 1.001f; x = nextafterf(x, 2)) compare_entropy(&x, 1, 1.0f);
    for (int i = 0; i < 6; i++) assert_true(dq_simd_scalar.entropy(&none[i], 1, 1.0f) == 0);
}

/* The sums that tallies make in plain C. */
TEST(sums_of_powers)
{
    float x[MAX];
    for (int n = 0; n <= MAX; n++) {
        double lane[3][8] = {{0}}, got[3] = {1, 2, 3};
        fill(x, n, (uint64_t)n + 1);
        for (int i = 0; i < n; i++) {
            const double v = fabs((double)x[i]), w = v * v;
            lane[0][i % 8] += v;
            lane[1][i % 8] += w;
            lane[2][i % 8] += w * w;
        }
        for (int k = 0; k < 3; k++) {
            for (int step = 4; step > 0; step /= 2)
                for (int i = 0; i < step; i++) lane[k][i] += lane[k][i + step];
        }
        dq_simd_scalar.power_sums(got, x, n);
        for (int k = 0; k < 3; k++) {
            const double want = (double)(k + 1) + lane[k][0];
            assert_memory_equal(&got[k], &want, sizeof want);
        }
        for (int w = 0; w < 2; w++) {
            double other[3] = {1, 2, 3};
            if (!wide[w]) continue;
            wide[w]->power_sums(other, x, n);
            assert_memory_equal(other, got, sizeof got);
        }
    }
}

enum { PAGES = (MAX + 63) / 64 };

/* What map_sizes finds. */
typedef struct sizes {
    double page[PAGES], negative;
    int64_t below[DQ_SIMD_LIMITS];
} sizes;

static sizes sizes_by(const dq_simd *t, const float *p1, const float *p2, int64_t n, float a,
                      float b, const float *limit)
{
    sizes s = {.below = {1, 2, 3, 4}}; /* counts are added to */
    s.negative = t->map_sizes(s.page, s.below, p1, p2, n, a, b, limit);
    return s;
}

static void compare_sizes(const float *p1, const float *p2, int64_t n, float a, float b)
{
    const float limit[DQ_SIMD_LIMITS] = {0, 1e-6f, 1e-3f, 0.25f};
    sizes want = {.below = {1, 2, 3, 4}};
    for (int64_t i = 0; i < n; i++) {
        const float d = p2 ? p1[i] * a - p2[i] * b : p1[i] * a;
        want.page[i / 64] += fabs((double)d);
        if (p2 && d < 0) want.negative -= (double)d;
        for (int k = 0; k < DQ_SIMD_LIMITS; k++) want.below[k] += fabsf(d) < limit[k];
    }
    const sizes got = sizes_by(&dq_simd_scalar, p1, p2, n, a, b, limit);
    assert_memory_equal(got.below, want.below, sizeof got.below);
    for (int64_t i = 0; i < PAGES; i++)
        assert_true(isnan(want.page[i]) ? isnan(got.page[i]) : near_to(got.page[i], want.page[i]));
    assert_true(near_to(got.negative, want.negative));
    for (int w = 0; w < 2; w++) {
        if (!wide[w]) continue;
        const sizes other = sizes_by(wide[w], p1, p2, n, a, b, limit);
        assert_memory_equal(other.below, got.below, sizeof got.below);
        assert_memory_equal(&other.negative, &got.negative, sizeof got.negative);
        for (int64_t i = 0; i < PAGES; i++)
            assert_true(isnan(got.page[i]) || memcmp(&other.page[i], &got.page[i], 8) == 0);
    }
}

TEST(sizes_of_maps)
{
    float p1[MAX], p2[MAX];
    for (int64_t n = 0; n <= MAX; n++) {
        fill_row(p1, n, (uint64_t)n + 1);
        fill_row(p2, n, (uint64_t)n + 1000);
        compare_sizes(p1, p2, n, 0.25f, 0.2f);
        compare_sizes(p1, p2, n, 0.25f, -0.2f);
        compare_sizes(p1, NULL, n, 0.25f, 0);
        compare_sizes(p1, p2, n, 0.25f, NAN);
        if (n > 3) p2[n / 2] = NAN;
        compare_sizes(p1, p2, n, 0.25f, 0.2f);
    }
}

/* The chain that gemm promises, one element. */
static float chain(const float *a, const float *b, int64_t ldb, int64_t k, bool fused)
{
    float s = 0;
    for (int64_t i = 0; i < k; i++) s = fused ? fmaf(a[i], b[i * ldb], s) : s + a[i] * b[i * ldb];
    return s;
}

static void gemm_case(const dq_simd *t, int64_t m, int64_t n, int64_t k, bool add)
{
    enum { LDC = 71 };
    const int64_t wide_n = (n + 15) / 16 * 16, lda = k + 3;
    float *a = malloc((size_t)((m - 1) * lda + k) * sizeof *a + 1);
    float *b = malloc((size_t)(k * wide_n) * sizeof *b + 1);
    float *c = malloc((size_t)(m * LDC) * sizeof *c), *old = malloc((size_t)(m * LDC) * sizeof *c);
    assert_true(a && b && c && old);
    fill(a, (m - 1) * lda + k, 1);
    fill(b, k * wide_n, 2);
    fill(c, m * LDC, 3);
    memcpy(old, c, (size_t)(m * LDC) * sizeof *c);
    t->gemm(c, LDC, a, lda, b, wide_n, m, n, k, add);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < LDC; j++) {
            float want = old[i * LDC + j];
            if (j < n) {
                const float s = chain(a + i * lda, b + j, wide_n, k, t != &dq_simd_scalar);
                want = add ? want + s : s;
            }
            assert_true(c[i * LDC + j] == want);
        }
    free(old);
    free(c);
    free(b);
    free(a);
}

/* gemm of the same numbers in f32. */
static void gemm_half_case(const dq_simd *t, dq_dtype type, int64_t m, int64_t n, int64_t k,
                           bool add)
{
    enum { LDC = 67, ROWS = 13, DEPTH = 130 };
    static float a[ROWS * DEPTH], b[DEPTH * DQ_TILE_N], want[ROWS * LDC], got[ROWS * LDC];
    static uint16_t half[DEPTH * DQ_TILE_N];
    const int64_t ldb = (n + 15) / 16 * 16;
    fill(a, m * k, 1);
    fill(b, k * ldb, 2);
    fill(want, m * LDC, 3);
    memcpy(got, want, sizeof got);
    for (int64_t i = 0; i < k * ldb; i++) {
        half[i] = type == DQ_F16 ? dq_f16_from_f32(b[i]) : dq_bf16_from_f32(b[i]);
        b[i] = type == DQ_F16 ? dq_f32_from_f16(half[i]) : dq_f32_from_bf16(half[i]);
    }
    t->gemm(want, LDC, a, k, b, ldb, m, n, k, add);
    t->gemm_half(got, LDC, a, k, half, type, ldb, m, n, k, add);
    assert_memory_equal(got, want, sizeof got);
}

TEST(gemms_of_two_bytes)
{
    for (int w = -1; w < 2; w++) {
        const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
        for (int64_t i = 0; t && i < 13 * DQ_TILE_N; i++) {
            const int64_t m = 1 + i % 13, n = 1 + i / 13, k = i % 4 ? 2 * n : 1 + n % 37;
            gemm_half_case(t, i % 2 ? DQ_F16 : DQ_BF16, m, n, k, i % 3 == 0);
        }
    }
}

TEST(gemms)
{
    for (int w = -1; w < 2; w++) {
        const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
        if (!t) continue;
        for (int64_t m = 1; m <= 13; m++)
            for (int64_t n = 1; n <= DQ_TILE_N; n += m > 2 ? 7 : 1) {
                gemm_case(t, m, n, 1 + n % 37, n % 2 == 0);
                gemm_case(t, m, DQ_TILE_N, 2 * n, n % 2 == 0);
            }
        gemm_case(t, 3, 5, 0, false);
    }
}

/* Weights read where they lie, `skip` bytes after the start of a line and up to the end of what may be read: the chains of
 * gemm, and nothing beside the columns. */
static void thin_case(const dq_simd *t, bool half, int64_t skip, int64_t ldw, int64_t m, int64_t n,
                      int64_t k, bool add)
{
    enum { LDC = 35, MOST = 9, DEPTH = 530, ROWS = 32, PAGE = 1 << 16 };
    static float a[MOST * DEPTH], c[MOST * LDC], old[MOST * LDC], w[ROWS * (DEPTH + 32)];
    const int64_t size = half ? 2 : 4, rows = half ? n : 16, bytes = ((rows - 1) * ldw + k) * size;
    const int64_t room = (bytes + 127) / 64 * 64;
    uint8_t *pages =
        mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED && room <= 2 * PAGE);
    assert_int_equal(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE), 0);
    uint8_t *at = pages + 2 * PAGE -
                  (skip < 0 ? bytes : room - skip); /* < 0: the last byte is the page's last */
    fill(a, MOST * DEPTH, 1);
    fill(w, (rows - 1) * ldw + k, 2);
    fill(c, MOST * LDC, 3);
    memcpy(old, c, sizeof c);
    for (int64_t i = 0; i < (rows - 1) * ldw + k; i++) {
        const uint16_t bits = dq_bf16_from_f32(w[i]);
        if (half) w[i] = dq_f32_from_bf16(bits);
        memcpy(at + i * size, half ? (const void *)&bits : (const void *)&w[i], (size_t)size);
    }
    if (half)
        t->skinny_bf16(c, LDC, a, DEPTH, (const uint16_t *)(const void *)at, ldw, m, n, k, add);
    else
        t->skinny(c, LDC, a, DEPTH, (const float *)(const void *)at, ldw, m, n, k, add);
    for (int64_t i = 0; i < MOST; i++)
        for (int64_t j = 0; j < LDC; j++) {
            float want = old[i * LDC + j];
            for (int64_t k0 = 0; i < m && j < n && k0 < k; k0 += DQ_CHAIN) {
                const int64_t kb = k - k0 < DQ_CHAIN ? k - k0 : DQ_CHAIN;
                const float s =
                    chain(a + i * DEPTH + k0, w + j * ldw + k0, 1, kb, t != &dq_simd_scalar);
                want = add || k0 > 0 ? want + s : s;
            }
            assert_true(c[i * LDC + j] == want);
        }
    assert_int_equal(munmap(pages, 3 * PAGE), 0);
}

TEST(thin_products)
{
    static const int64_t depth[] = {1, 16, 31, 33, 255, 256, 257, 300, 512, 530};
    static const int64_t skips[] = {-1, 0, 2, 4, 8, 30, 60};
    for (int w = -1; w < 2; w++) {
        const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
        for (int64_t m = 1; m <= 9 && t; m++)
            for (int d = 0; d < 10; d++)
                for (int i = 0; i < 7; i++) {
                    const int64_t k = depth[d], lines = (k + 31) / 32 * 32, skip = skips[i];
                    const bool add = (m + d + i) % 3 == 0;
                    if (skip < 0 || skip % 4 == 0) {
                        thin_case(t, false, skip, lines, m, 1 + (m + d) % 16, k, add);
                        thin_case(t, false, skip, k, m, 16, k, add);
                    }
                    thin_case(t, true, skip, lines, m, m % 2 ? 32 : 16, k, add);
                    thin_case(t, true, skip, k, m, m % 3 ? 16 : 32, k, add);
                }
    }
}

TEST(transposes)
{
    enum { SIDE = 70, LD = 77 };
    static float x[SIDE * LD], y[SIDE * LD];
    fill(x, SIDE * LD, 4);
    for (int w = -1; w < 2; w++) {
        const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
        if (!t) continue;
        for (int64_t rows = 1; rows <= SIDE; rows += 3)
            for (int64_t cols = 1; cols <= SIDE; cols += 5) {
                memset(y, 0, sizeof y);
                t->transpose(y, LD, x, LD, rows, cols);
                for (int64_t i = 0; i < SIDE; i++)
                    for (int64_t j = 0; j < LD; j++)
                        assert_true(y[i * LD + j] == (i < cols && j < rows ? x[j * LD + i] : 0.0f));
            }
    }
}

TEST(stored_values)
{
    static uint16_t all[65536];
    static float p[65536], q[65536];
    for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
    for (int type = 0; type < 2; type++) {
        const dq_dtype dtype = type ? DQ_F16 : DQ_BF16;
        dq_simd_scalar.widen(p, all, dtype, 65536);
        for (int i = 0; i < 65536; i++) {
            const float want = type ? dq_f32_from_f16(all[i]) : dq_f32_from_bf16(all[i]);
            assert_true(p[i] == want || (isnan(p[i]) && isnan(want)));
        }
        for (int w = 0; w < 2; w++)
            for (int64_t n = 0; n < 40 && wide[w]; n++) {
                memset(q, 0, sizeof q);
                wide[w]->widen(q, all, dtype, n == 39 ? 65536 : n);
                if (n == 39) assert_memory_equal(p, q, sizeof p);
                if (n < 39) assert_true(memcmp(p, q, (size_t)n * sizeof *p) == 0 && q[n] == 0.0f);
            }
    }
}

TEST(packed_codes)
{
    enum { COLS = 109 };
    int8_t code[COLS], back[COLS];
    float p[COLS + 1], *q = p;
    for (int bits = 2; bits <= 8; bits++)
        for (int w = -1; w < 2; w++) {
            const dq_simd *t = w < 0 ? &dq_simd_scalar : wide[w];
            if (!t) continue;
            for (int64_t cols = 1; cols <= COLS; cols++) {
                const size_t bytes = dq_quant_row_bytes(cols, bits);
                uint8_t *row = malloc(bytes);
                assert_non_null(row);
                for (int64_t i = 0; i < cols; i++)
                    code[i] = (int8_t)((i * 37 + cols) % (1 << bits) - (1 << (bits - 1)));
                dq_quant_pack_row(row, code, cols, bits);
                dq_quant_unpack_row(back, row, cols, bits);
                assert_memory_equal(code, back, (size_t)cols);
                for (int64_t first = 0; first < cols; first += 32) {
                    const int half = 1 << (bits - 1), zero = (int)(cols + first) % (2 * half);
                    memset(p, 0, sizeof p);
                    t->codes(q, row, (int64_t)bytes, bits, first, cols - first, zero, 1.5f);
                    for (int64_t i = first; i < cols; i++)
                        assert_true(q[i - first] == (float)(code[i] + half - zero) * 1.5f);
                    assert_true(q[cols - first] == 0.0f);
                }
                free(row);
            }
        }
}

FIXTURES(find_tables, NULL)
