/* Each loop is written once, as an inline function, and a macro makes a plain and an AVX2 function
 * of it; the table for this machine is chosen at the first call.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "tensor/inside.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Each loop is written once and expanded into a plain and a wide function. */
#define INLINE static inline __attribute__((always_inline))

/* Adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even, for |x| < 2^22. */
static const float round_magic = 12582912.0f;

INLINE uint32_t top32(const void *src, int64_t n)
{
    const uint8_t *p = src;
    int32_t top = 0; /* signed: that is what older vector units compare */
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int32_t u;
        memcpy(&u, p + 4 * i, sizeof u);
        u &= 0x7fffffff;
        top = u > top ? u : top;
    }
    return (uint32_t)top;
}

INLINE uint32_t top16(const void *src, int64_t n)
{
    const uint8_t *p = src;
    int16_t top = 0;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; i++) {
        int16_t u;
        memcpy(&u, p + 2 * i, sizeof u);
        u = (int16_t)(u & 0x7fff);
        top = u > top ? u : top;
    }
    return (uint32_t)top;
}

INLINE void widen_bf16(float *dst, const void *src, int64_t n)
{
    const uint8_t *p = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        uint32_t u = (uint32_t)h << 16;
        memcpy(&dst[i], &u, sizeof u);
    }
}

INLINE void widen_f16(float *dst, const void *src, int64_t n)
{
    const uint8_t *p = src;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        /* in the exponent field the value is 2^112 times too small; scaling is exact, of subnormals
         * too */
        uint32_t u = (uint32_t)(h & 0x7fffu) << 13, scaled;
        float x;
        memcpy(&x, &u, sizeof x);
        x *= 0x1p112f;
        memcpy(&scaled, &x, sizeof scaled);
        scaled = (h & 0x7fffu) >= 0x7c00u ? u | 0x7f800000u : scaled;
        scaled |= (uint32_t)(h & 0x8000u) << 16;
        memcpy(&dst[i], &scaled, sizeof scaled);
    }
}

INLINE void encode(int8_t *q, float *got, const float *w, int64_t n, float scale, float low,
                   float high)
{
    /* clamping first gives the same codes, the limits being integers, and keeps the sum exact */
    if (!got) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float x = w[i] / scale;
            x = x < low ? low : x;
            x = x > high ? high : x;
            q[i] = (int8_t)(int)((x + round_magic) - round_magic);
        }
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = w[i] / scale;
        x = x < low ? low : x;
        x = x > high ? high : x;
        x = (x + round_magic) - round_magic;
        q[i] = (int8_t)(int)x;
        got[i] = x * scale;
    }
}

INLINE void error(double sums[24], const float *want, const float *got, int64_t n)
{
    double signal[8], noise[8], top[8];
    memcpy(signal, sums, sizeof signal);
    memcpy(noise, sums + 8, sizeof noise);
    memcpy(top, sums + 16, sizeof top);
    for (int64_t i = 0; i < n; i += 8) {
        if (n - i >= 8) {
#pragma omp simd
            for (int j = 0; j < 8; j++) {
                double w = (double)want[i + j], d = w - (double)got[i + j], a = fabs(d);
                signal[j] += w * w;
                noise[j] += d * d;
                top[j] = a > top[j] ? a : top[j];
            }
        } else {
            for (int j = 0; j < (int)(n - i); j++) {
                double w = (double)want[i + j], d = w - (double)got[i + j], a = fabs(d);
                signal[j] += w * w;
                noise[j] += d * d;
                top[j] = a > top[j] ? a : top[j];
            }
        }
    }
    memcpy(sums, signal, sizeof signal);
    memcpy(sums + 8, noise, sizeof noise);
    memcpy(sums + 16, top, sizeof top);
}

INLINE float miss(float x, float low, float high)
{
    float code = x < low ? low : x;
    code = code > high ? high : code;
    x -= (code + round_magic) - round_magic;
    return x * x;
}

/* One lane per scale, so sums do not cross; four values at once hide the latency of additions. */
INLINE void misses(float sums[DQ_QUANT_LOOP_SCALES], const float inverse[DQ_QUANT_LOOP_SCALES],
                   const float *w, int64_t n, float low, float high)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float a = w[i], b = w[i + 1], c = w[i + 2], d = w[i + 3];
#pragma omp simd
        for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) {
            float s = inverse[k];
            sums[k] += (miss(a * s, low, high) + miss(b * s, low, high)) +
                       (miss(c * s, low, high) + miss(d * s, low, high));
        }
    }
    for (; i < n; i++) {
        float a = w[i];
#pragma omp simd
        for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) sums[k] += miss(a * inverse[k], low, high);
    }
}

INLINE void pack8(uint8_t *packed, const int8_t *q, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) packed[i] = (uint8_t)(q[i] + 128);
}

INLINE void pack4(uint8_t *packed, const int8_t *q, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n / 2; i++)
        packed[i] = (uint8_t)((q[2 * i] + 8) | (q[2 * i + 1] + 8) << 4);
}

#define VERSION(name, attribute)                                                                   \
    attribute static uint32_t top32_##name(const void *src, int64_t n)                             \
    {                                                                                              \
        return top32(src, n);                                                                      \
    }                                                                                              \
    attribute static uint32_t top16_##name(const void *src, int64_t n)                             \
    {                                                                                              \
        return top16(src, n);                                                                      \
    }                                                                                              \
    attribute static void widen_bf16_##name(float *dst, const void *src, int64_t n)                \
    {                                                                                              \
        widen_bf16(dst, src, n);                                                                   \
    }                                                                                              \
    attribute static void widen_f16_##name(float *dst, const void *src, int64_t n)                 \
    {                                                                                              \
        widen_f16(dst, src, n);                                                                    \
    }                                                                                              \
    attribute static void encode_##name(int8_t *q, float *got, const float *w, int64_t n,          \
                                        float scale, float low, float high)                        \
    {                                                                                              \
        encode(q, got, w, n, scale, low, high);                                                    \
    }                                                                                              \
    attribute static void error_##name(double sums[24], const float *want, const float *got,       \
                                       int64_t n)                                                  \
    {                                                                                              \
        error(sums, want, got, n);                                                                 \
    }                                                                                              \
    attribute static void misses_##name(float sums[DQ_QUANT_LOOP_SCALES],                          \
                                        const float inverse[DQ_QUANT_LOOP_SCALES], const float *w, \
                                        int64_t n, float low, float high)                          \
    {                                                                                              \
        misses(sums, inverse, w, n, low, high);                                                    \
    }                                                                                              \
    attribute static void pack8_##name(uint8_t *packed, const int8_t *q, int64_t n)                \
    {                                                                                              \
        pack8(packed, q, n);                                                                       \
    }                                                                                              \
    attribute static void pack4_##name(uint8_t *packed, const int8_t *q, int64_t n)                \
    {                                                                                              \
        pack4(packed, q, n);                                                                       \
    }                                                                                              \
    static const dq_quant_loop_table name##_loops = {                                              \
        top32_##name, top16_##name,  widen_bf16_##name, widen_f16_##name, encode_##name,           \
        error_##name, misses_##name, pack8_##name,      pack4_##name};

#define NOTHING
VERSION(plain, NOTHING)
#if defined(__x86_64__)
VERSION(wide, __attribute__((target("avx2"))))
#endif

const dq_quant_loop_table *dq_quant_loops_plain(void)
{
    return &plain_loops;
}

const dq_quant_loop_table *dq_quant_loops(void)
{
    /* asking the processor takes longer than a short loop; threads that ask at once agree */
    static _Atomic(const dq_quant_loop_table *) chosen;
    const dq_quant_loop_table *t = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (t) return t;
    t = &plain_loops;
#if defined(__x86_64__)
    if (dq_os_cpu_features(NULL) & DQ_CPU_AVX2) t = &wide_loops;
#endif
    atomic_store_explicit(&chosen, t, memory_order_relaxed);
    return t;
}

/* Candidates are denser near absmax and share one loop of lanes: the squared distance of w / scale
 * to its code, times scale^2. Finalists are encoded and measured in full. */

enum { BLOCK = 256 }; /* values at once: a multiple of the eight sums of dq_quant_error_add */

bool dq_quant_scale_fits_f16(float scale)
{
    unsigned mag = dq_f16_from_f32(scale) & 0x7fffu;
    return scale == 0 || (mag >= 0x0400u && mag < 0x7c00u);
}

/* 0: the stored scale would not be a normal number. */
static float normal_scale(float scale, dq_dtype dtype)
{
    if (dtype == DQ_F16)
        scale = dq_quant_scale_fits_f16(scale) ? dq_quant_stored_scale(scale, DQ_F16) : 0;
    return scale >= FLT_MIN ? scale : 0;
}

void dq_quant_search_begin(dq_quant_search *s, float peak, int bits, dq_dtype dtype)
{
    const float plain[] = {dq_quant_absmax_scale(peak, bits), dq_quant_signed_scale(peak, bits)};
    s->bits = bits;
    s->n_finalists = 0;
    for (int i = 0; i < 2; i++)
        s->finalist[s->n_finalists++] = dq_quant_stored_scale(plain[i], dtype);
    for (int i = 0; i < 2 && dtype != DQ_F16; i++) {
        if (dq_quant_scale_fits_f16(plain[i]))
            s->finalist[s->n_finalists++] = dq_quant_stored_scale(plain[i], DQ_F16);
    }
    const int pairs = DQ_N_CANDIDATES / 2;
    const float last = (float)((pairs - 1) * (pairs - 1));
    for (int k = 0; k < pairs; k++) {
        float share = 1.0f - 0.8f * (float)(k * k) / last;
        float scale = normal_scale(fabsf(peak) * share / (float)dq_quant_max_code(s->bits), dtype);
        float inverse = scale != 0 ? 1.0f / scale : 0;
        s->candidate[2 * k] = scale;
        s->candidate[2 * k + 1] = -scale;
        s->inverse[2 * k] = inverse;
        s->inverse[2 * k + 1] = -inverse;
    }
}

void dq_quant_search_rank(const dq_quant_search *s, double error[DQ_N_CANDIDATES], const float *w,
                          int64_t n)
{
    float high = (float)dq_quant_max_code(s->bits);
    for (int64_t i = 0; i < n; i += BLOCK) {
        float misses[DQ_N_CANDIDATES] = {0};
        dq_quant_loops()->misses(misses, s->inverse, w + i, n - i < BLOCK ? n - i : BLOCK,
                                 -high - 1, high);
        for (int k = 0; k < DQ_N_CANDIDATES; k++)
            error[k] += (double)s->candidate[k] * (double)s->candidate[k] * (double)misses[k];
    }
}

void dq_quant_search_narrow(dq_quant_search *s, const double error[DQ_N_CANDIDATES])
{
    int best = -1;
    for (int k = 0; k < DQ_N_CANDIDATES; k++) {
        if (s->candidate[k] != 0 && (best < 0 || error[k] < error[best])) best = k;
    }
    if (best >= 0) s->finalist[s->n_finalists++] = s->candidate[best];
}

void dq_quant_search_measure(const dq_quant_search *s, double error[DQ_N_FINALISTS], const float *w,
                             int64_t n)
{
    int8_t q[BLOCK];
    float got[BLOCK];
    for (int f = 0; f < s->n_finalists; f++) {
        double sums[24] = {0};
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t m = n - i < BLOCK ? n - i : BLOCK;
            dq_quant_encode_back(q, got, w + i, m, s->bits, s->finalist[f], DQ_SEARCH);
            dq_quant_loops()->error(sums, w + i, got, m);
        }
        for (int j = 0; j < 8; j++) error[f] += sums[8 + j];
    }
}

float dq_quant_search_end(const dq_quant_search *s, const double error[DQ_N_FINALISTS])
{
    int best = 0;
    for (int f = 1; f < s->n_finalists; f++) {
        if (error[f] < error[best]) best = f;
    }
    return s->finalist[best];
}

float dq_quant_search_weighted(const float *w, const double *weight, int64_t n, int bits,
                               dq_dtype dtype)
{
    dq_quant_search s;
    double error[DQ_N_CANDIDATES + 2] = {0}, least = (double)INFINITY;
    float scale[DQ_N_CANDIDATES + 2], best = 0;
    const float peak = dq_quant_peak(w, n);
    if (peak == 0) return 0;
    dq_quant_search_begin(&s, peak, bits, dtype);
    memcpy(scale, s.finalist, 2 * sizeof *scale); /* absmax and signed, as stored */
    memcpy(scale + 2, s.candidate, sizeof s.candidate);
    for (int k = 0; k < DQ_N_CANDIDATES + 2; k++) {
        int8_t q[BLOCK];
        float got[BLOCK];
        if (scale[k] == 0) continue;
        for (int64_t at = 0; at < n; at += BLOCK) {
            const int64_t m = n - at < BLOCK ? n - at : BLOCK;
            dq_quant_encode_back(q, got, w + at, m, bits, scale[k], DQ_SEARCH);
            for (int64_t i = 0; i < m; i++) {
                const double d = (double)w[at + i] - (double)got[i];
                error[k] += weight[at + i] * d * d;
            }
        }
        if (error[k] < least) best = scale[k];
        if (error[k] < least) least = error[k];
    }
    return best;
}

/* Codes are offset to unsigned and packed by eights, `bits` bytes each, the rest bit by bit. Errors
 * are summed in eight lanes, added in order. */

const dq_scale_mode_row dq_quant_modes[DQ_QUANT_MODES] = {
    [DQ_ABSMAX] = {.name = "absmax",
                   .negative = "holds a negative scale, which absmax never makes."},
    [DQ_SEARCH] = {.name = "search",
                   .tries = {0.9f, 0.95f, 1.05f},
                   .about = "the least squared error of 66 scales of either sign; slower"},
    [DQ_ASYM] = {.name = "asym",
                 .about = "from the smallest to the largest value, with a zero point of N bits per "
                          "group",
                 .negative = "holds a negative scale, which asym never makes."},
    [DQ_TRELLIS] = {.name = "trellis",
                    .about =
                        "codes that are read together with their neighbours: least loss at 2 to "
                        "5 bits",
                    .tries = {0.85f, 0.95f, 1.1f},
                    .negative = "holds a negative scale, which trellis never makes."},
};

int dq_quant_max_code(int bits)
{
    return (1 << (bits - 1)) - 1;
}

size_t dq_quant_row_bytes(int64_t cols, int bits)
{
    size_t n = (size_t)cols, b = (size_t)bits;
    /* eight columns take `bits` bytes: no product that could overflow before the division */
    size_t bytes = n / 8 * b + (n % 8 * b + 7) / 8;
    return (bytes + 3) / 4 * 4;
}

int64_t dq_quant_groups(int64_t cols, int64_t group_size)
{
    return cols / group_size + (cols % group_size != 0);
}

/* cols is a multiple of eight. */
static void pack_eights(uint8_t *packed, const int8_t *q, int64_t cols, int bits)
{
    int offset = 1 << (bits - 1);
    for (int64_t c = 0; c < cols; c += 8) {
        uint64_t acc = 0;
        for (int j = 0; j < 8; j++) acc |= (uint64_t)(q[c + j] + offset) << (j * bits);
        for (int k = 0; k < bits; k++) *packed++ = (uint8_t)(acc >> (8 * k));
    }
}

void dq_quant_pack_row(uint8_t *packed, const int8_t *q, int64_t cols, int bits)
{
    size_t bytes = dq_quant_row_bytes(cols, bits);
    int offset = 1 << (bits - 1), held = 0;
    uint32_t acc = 0;
    int64_t c = cols / 8 * 8;

    if (bits == 8)
        dq_quant_loops()->pack8(packed, q, c);
    else if (bits == 4)
        dq_quant_loops()->pack4(packed, q, c);
    else
        pack_eights(packed, q, c, bits);
    size_t at = (size_t)(c / 8) * (size_t)bits;
    for (; c < cols; c++) {
        acc |= (uint32_t)(q[c] + offset) << held;
        for (held += bits; held >= 8; held -= 8) {
            packed[at++] = (uint8_t)acc;
            acc >>= 8;
        }
    }
    if (held > 0) packed[at++] = (uint8_t)acc;
    memset(packed + at, 0, bytes - at);
}

void dq_quant_unpack_row(int8_t *q, const uint8_t *packed, int64_t cols, int bits)
{
    int offset = 1 << (bits - 1), held = 0;
    uint32_t acc = 0, mask = (1u << bits) - 1;
    int64_t c = 0;

    if (bits == 8) {
        for (; c < cols; c++) q[c] = (int8_t)(packed[c] - offset);
        return;
    }
    if (bits == 4) {
        for (; c + 1 < cols; c += 2) {
            uint8_t two = packed[c / 2];
            q[c] = (int8_t)((two & 15) - offset);
            q[c + 1] = (int8_t)((two >> 4) - offset);
        }
        packed += c / 2;
    }
    for (; c < cols; c++) {
        if (held < bits) {
            acc |= (uint32_t)*packed++ << held;
            held += 8;
        }
        q[c] = (int8_t)((int)(acc & mask) - offset);
        acc >>= bits;
        held -= bits;
    }
}

static float absmax_of(const float *w, int64_t n)
{
    uint32_t u = dq_quant_loops()->top32(w, n);
    float top;
    memcpy(&top, &u, sizeof top);
    return top;
}

float dq_quant_peak(const float *w, int64_t n)
{
    float top = absmax_of(w, n);
    for (int64_t i = 0; i < n; i++) {
        if (fabsf(w[i]) == top) return w[i];
    }
    return 0;
}

float dq_quant_absmax_scale(float peak, int bits)
{
    return fabsf(peak) / (float)dq_quant_max_code(bits);
}

float dq_quant_signed_scale(float peak, int bits)
{
    return -peak / (float)(1 << (bits - 1));
}

float dq_quant_group_scale(const float *w, int64_t n, int bits, dq_scale_mode mode, dq_dtype dtype)
{
    if (mode == DQ_SEARCH) {
        const float peak = dq_quant_peak(w, n);
        dq_quant_search s;
        double rank[DQ_N_CANDIDATES] = {0}, error[DQ_N_FINALISTS] = {0};
        if (peak == 0) return 0;
        dq_quant_search_begin(&s, peak, bits, dtype);
        dq_quant_search_rank(&s, rank, w, n);
        dq_quant_search_narrow(&s, rank);
        dq_quant_search_measure(&s, error, w, n);
        return dq_quant_search_end(&s, error);
    }
    return dq_quant_stored_scale(dq_quant_absmax_scale(absmax_of(w, n), bits), dtype);
}

float dq_quant_stored_scale(float scale, dq_dtype dtype)
{
    return dtype == DQ_F16 ? dq_f32_from_f16(dq_f16_from_f32(scale)) : scale;
}

void dq_quant_encode_back(int8_t *q, float *got, const float *w, int64_t n, int bits, float scale,
                          dq_scale_mode mode)
{
    float high = (float)dq_quant_max_code(bits);
    float low = mode == DQ_ABSMAX ? -high : -high - 1;
    if (n <= 0) return;
    if (scale != 0) {
        dq_quant_loops()->encode(q, got, w, n, scale, low, high);
    } else {
        memset(q, 0, (size_t)n);
        if (got) memset(got, 0, (size_t)n * sizeof *got);
    }
}

void dq_quant_encode(int8_t *q, const float *w, int64_t n, int bits, float scale,
                     dq_scale_mode mode)
{
    dq_quant_encode_back(q, NULL, w, n, bits, scale, mode);
}

void dq_quant_error_add(dq_quant_error *e, const float *want, const float *got, int64_t n)
{
    double sums[24] = {0};
    dq_quant_loops()->error(sums, want, got, n);
    for (int j = 0; j < 8; j++) {
        e->signal += sums[j];
        e->noise += sums[8 + j];
        if (sums[16 + j] > e->max_abs) e->max_abs = sums[16 + j];
    }
}

void dq_quant_error_merge(dq_quant_error *into, const dq_quant_error *from)
{
    into->signal += from->signal;
    into->noise += from->noise;
    if (from->max_abs > into->max_abs) into->max_abs = from->max_abs;
}

double dq_quant_sqnr_db(const dq_quant_error *e)
{
    if (e->noise == 0) return (double)INFINITY;
    return 10 * log10(e->signal / e->noise);
}
