/* Viterbi's algorithm over the windows, from the last row to the first: the windows that may come
 * before one differ in their high bits alone, so that what is compared lies in whole runs.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "tensor/inside.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LEVELS = DQ_TRELLIS_LEVELS, ROWS = DQ_TRELLIS_ROWS, MAX_STATES = 64 };

/* Made by studies/weights/trellis_levels.c. */
static const dq_trellis_table tables[DQ_TRELLIS_MAX_BITS + 1] = {
    [2] = {.reach = 2.8f,
           .peak = 2.5525f,
           .error = 0.07353f,
           .level =
               {
                   0,   -37, -123, -5,  18,  -66, -103, -14, -26,  -14, 19,  -64,  -39, 96,   -78,
                   37,  92,  -60,  32,  -26, -8,  31,   -28, -50,  1,   48,  -104, 75,  -18,  45,
                   -47, 18,  67,   31,  -38, -71, 3,    12,  -11,  63,  -57, 31,   -9,  -27,  -7,
                   79,  34,  9,    -72, -31, 18,  73,   -35, -49,  -7,  14,  41,   12,  -66,  82,
                   97,  44,  -25,  13,  69,  -5,  122,  44,  80,   -2,  -39, 42,   4,   41,   -28,
                   80,  -81, 54,   85,  8,   -43, -77,  -17, 22,   22,  -42, -79,  -20, -67,  -12,
                   -2,  25,  -81,  6,   48,  -35, 21,   104, -127, 60,  -66, 28,   -41, -105, -29,
                   3,   18,  43,   122, -2,  95,  -68,  -22, -60,  -5,  16,  -5,   61,  -46,  -92,
                   9,   -11, 33,   56,  29,  -8,  71,   -42, -81,  46,  14,  -112, 4,   -26,  41,
                   -83, 39,  -13,  -55, 8,   47,  9,    -13, -32,  42,  2,   19,   -91, -30,  6,
                   43,  -68, -30,  98,  36,  3,   -6,   65,  124,  -33, -42, -9,   4,   29,   -42,
                   24,  55,  -4,   22,  -86, 71,  -10,  50,  -38,  5,   -12, -43,  4,   -25,  -101,
                   56,  -15, 9,    -44, 54,  -41, 115,  -29, -31,  -91, -64, 59,   42,  16,   -20,
                   -24, 49,  -32,  4,   3,   -57, 28,   58,  22,   13,  -18, -21,  68,  10,   -18,
                   57,  -58, 42,   74,  -44, 13,  37,   -55, -1,   -47, 22,  -23,  -71, 105,  -3,
                   69,  43,  -29,  -18, 53,  15,  -29,  24,  76,   -7,  -60, 13,   36,  -114, -32,
                   -13, 28,  81,   -58, -38, 20,  45,   27,  -17,  -62, 40,  -2,   70,  -45,  17,
                   -79,
               }},
    [3] = {.reach = 2.0f,
           .peak = 1.9659f,
           .error = 0.01206f,
           .level =
               {
                   -4,   -41, -125, 4,   18,  -69,  -97, -15,  -12,  -24,  15,  -63, -45,  123,
                   -96,  48,  124,  -91, 69,  -22,  1,   33,   -31,  -53,  -37, 72,  -123, 90,
                   -17,  28,  -52,  21,  42,  15,   -31, -74,  -6,   25,   6,   61,  -44,  20,
                   -12,  -28, 11,   77,  42,  3,    -68, -44,  14,   94,   -29, -92, -10,  28,
                   38,   4,   -71,  53,  110, 73,   -17, -8,   89,   -18,  103, 49,  67,   1,
                   -43,  31,  10,   46,  -31, 84,   -89, 64,   125,  31,   -41, -78, -24,  0,
                   18,   -50, -62,  -15, -57, -23,  -12, 13,   -83,  9,    53,  -56, 1,    100,
                   -110, 72,  -71,  51,  -61, -126, -29, 7,    31,   53,   121, -2,  93,   -92,
                   -14,  -57, 2,    25,  -15, 79,   -40, -116, 17,   21,   34,  38,  53,   -13,
                   83,   -29, -74,  35,  24,  -125, 2,   -52,  74,   -100, 45,  -9,  -55,  15,
                   21,   13,  -10,  -33, 32,  10,   52,  -120, -44,  -11,  28,  -73, -22,  120,
                   24,   -9,  12,   53,  127, -46,  -19, -2,   5,    27,   -36, 41,  55,   17,
                   28,   -91, 76,   -15, 55,  -39,  9,   -4,   -58,  -1,   -12, -91, 57,   -26,
                   15,   -38, 40,   -36, 123, -23,  -53, -74,  -104, 66,   63,  42,  -14,  -17,
                   38,   -36, 19,   3,   -65, 35,   60,  37,   -6,   -23,  -28, 79,  3,    -23,
                   36,   -52, 29,   61,  -78, 9,    23,  -55,  12,   -36,  1,   -14, -71,  101,
                   -31,  75,  51,   -45, -19, 26,   -3,  -40,  -5,   71,   3,   -48, 36,   40,
                   -125, -20, -27,  24,  104, -74,  -45, 7,    36,   47,   -4,  -61, 55,   10,
                   86,   -42, 23,   -83,
               }},
    [4] = {.reach = 2.0f,
           .peak = 1.9743f,
           .error = 0.00324f,
           .level =
               {
                   115,  38,  66,  -25, 9,   13,   24,  42,   2,   -13,  55,   47,   -111, 51,
                   31,   22,  16,  -25, -37, -61,  4,   -14,  -8,  30,   -100, -126, -3,   53,
                   -29,  -19, -80, 9,   35,  -56,  -89, 95,   -32, -23,  -13,  -19,  -3,   60,
                   107,  11,  -79, -38, 76,  -101, -34, -125, -61, 75,   -20,  -14,  94,   -53,
                   47,   -25, 67,  -42, -4,  57,   15,  28,   97,  13,   84,   -49,  -84,  -36,
                   -23,  6,   30,  18,  -66, 40,   -57, -40,  -7,  65,   51,   24,   -9,   44,
                   -25,  6,   -4,  -42, 12,  34,   -12, 62,   0,   -91,  -50,  -126, 38,   47,
                   15,   57,  79,  70,  -36, -5,   22,  -68,  -17, -127, -47,  26,   -1,   -26,
                   -42,  8,   33,  -34, 17,  -7,   2,   23,   -53, 110,  63,   72,   -68,  41,
                   92,   84,  -51, 58,  -45, 72,   38,  -1,   -62, 12,   -76,  29,   45,   -10,
                   7,    20,  6,   36,  -79, 89,   -17, 127,  99,  32,   11,   -27,  42,   0,
                   79,   20,  63,  -11, -59, -2,   -66, -28,  49,  -40,  -10,  -32,  -78,  -99,
                   -43,  -50, 127, -23, 25,  34,   -18, 4,    27,  -92,  -25,  86,   -6,   58,
                   34,   114, 16,  22,  -44, -16,  -36, 7,    -69, 44,   21,   -5,   -73,  6,
                   -51,  -61, 80,  35,  -30, 41,   25,  -89,  16,  -25,  -38,  -17,  -2,   19,
                   -41,  -17, 127, 102, 39,  62,   -61, -31,  6,   -73,  -9,   -50,  50,   14,
                   6,    -43, -30, 22,  -2,  127,  52,  17,   -15, 10,   -78,  30,   -22,  -1,
                   -109, -9,  -11, 33,  1,   -110, 25,  16,   -48, -37,  71,   46,   -54,  -30,
                   -17,  -68, -89, 54,
               }},
    [5] = {.reach = 2.0f,
           .peak = 1.9922f,
           .error = 0.00089f,
           .level =
               {
                   42,  -37,  126, 29,  -30,  7,   1,    50,  -78, 75,   -46,  -41,  -19, -15, -105,
                   37,  -4,   14,  -24, -53,  -57, 21,   -43, 26,  -35,  -67,  -12,  -86, 56,  33,
                   66,  -8,   -44, 28,  9,    24,  -62,  -20, 93,  41,   56,   -15,  109, 18,  -27,
                   76,  9,    -36, -9,  45,   -4,  -98,  6,   -12, 127,  16,   2,    36,  15,  12,
                   -2,  -69,  50,  21,  13,   -26, -70,  7,   -13, -60,  -31,  23,   98,  -44, -92,
                   -48, 17,   55,  -2,  -16,  32,  -6,   -38, 66,  -22,  -110, 27,   -11, -83, -20,
                   -78, 76,   3,   -53, -66,  44,  -91,  -79, 90,  -127, 71,   -2,   40,  -27, 50,
                   22,  -33,  -12, -52, -39,  3,   -101, -21, 58,  -49,  -117, -8,   13,  -17, 33,
                   119, -8,   -65, -43, 62,   -77, 16,   8,   -27, 53,   28,   -8,   -11, -18, -45,
                   -23, -33,  84,  4,   -22,  21,  -28,  -55, -5,  7,    0,    -73,  56,  43,  63,
                   36,  12,   -1,  -84, 127,  32,  -16,  -34, -38, -30,  26,   19,   -8,  -18, 14,
                   -25, -127, -41, 34,  10,   78,  3,    86,  45,  103,  30,   -113, -52, -15, -3,
                   38,  70,   -49, -32, 40,   63,  23,   -59, -74, 52,   115,  97,   -15, 6,   -30,
                   -3,  36,   -96, 30,  -126, 10,  -48,  -55, -36, 50,   82,   21,   0,   57,  33,
                   17,  -26,  1,   67,  -22,  14,  -63,  70,  62,  46,   26,   40,   -9,  -87, 80,
                   29,  21,   105, -23, -48,  44,  -34,  -70, -29, -19,  25,   12,   2,   59,  -42,
                   47,  -57,  33,  11,  -39,  90,  -13,  -2,  18,  52,   -61,  39,   7,   -8,  -5,
                   5,
               }},
};

const dq_trellis_table *dq_trellis_table_of(int bits)
{
    return &tables[bits];
}

/* The high bits of the window that leads to each state, row by row. */
typedef struct path {
    uint8_t high[ROWS][MAX_STATES];
} path;

typedef float floats __attribute__((vector_size(32)));
typedef int32_t words __attribute__((vector_size(32)));
enum { LANES = 8 };

INLINE floats splat(float x)
{
    return (floats){x, x, x, x, x, x, x, x};
}

/* cost[s] of the state before each of LANES windows from w on. */
INLINE floats costs_before(const float *cost, int w, const int bits)
{
    const float *c = cost + (w >> bits);
    if (bits >= 3) return splat(c[0]);
    return (floats){c[0], c[0], c[0], c[0], c[1], c[1], c[1], c[1]};
}

/* One row: updates cost[states] of its windows' low bits from the row after it; x: the wanted
 * value, in levels. */
INLINE void step(float *cost, uint8_t *high, const floats *level, float x, float weight,
                 const int bits)
{
    const int states = LEVELS >> bits, choices = 1 << bits;
    const floats want = splat(x), by = splat(weight);
    floats all[MAX_STATES / LANES];
#pragma GCC unroll 8
    for (int v = 0; v < states / LANES; v++) {
        floats best;
        words which = {0};
#pragma GCC unroll 32
        for (int b = 0; b < choices; b++) {
            const int w = b * states + v * LANES;
            const floats d = want - level[w / LANES],
                         sum = d * d * by + costs_before(cost, w, bits);
            if (b == 0) {
                best = sum;
                continue;
            }
            const words less = sum < best, number = {b, b, b, b, b, b, b, b};
            which = (less & number) | (~less & which);
            best = (floats)((less & (words)sum) | (~less & (words)best));
        }
        all[v] = best;
        for (int k = 0; k < LANES; k++) high[v * LANES + k] = (uint8_t)which[k];
    }
    memcpy(cost, all, (size_t)states * sizeof *cost);
}

/* Windows of rows from + n - 1 .. from, modulo n; state: low bits of row `from`, -1: any. */
INLINE void run(uint8_t *u, path *p, const float *x, const float *weight, int64_t n, int64_t from,
                int state, const int bits, const floats *level)
{
    const int states = LEVELS >> bits;
    float cost[MAX_STATES];
    for (int s = 0; s < states; s++) cost[s] = state < 0 || s == state ? 0 : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        const int64_t t = (from + n - 1 - i) % n;
        step(cost, p->high[i], level, x[t], weight[t], bits);
    }
    int s = state < 0 ? 0 : state;
    for (int k = 1; state < 0 && k < states; k++)
        if (cost[k] < cost[s]) s = k;
    for (int64_t i = n - 1; i >= 0; i--) {
        const int w = p->high[i][s] * states + s;
        u[(from + n - 1 - i) % n] = (uint8_t)w;
        s = w >> bits;
    }
}

INLINE void encode(uint8_t *u, const float *x, const float *weight, int64_t n, const int bits)
{
    const int8_t *table = tables[bits].level;
    floats level[LEVELS / LANES];
    path p;
    for (int w = 0; w < LEVELS; w++) level[w / LANES][w % LANES] = table[w];
    /* An open ring that is cut in the middle says how rows n - 1 and 0 meet. A loop, since the
     * function is inlined where it stands: twice takes twice as long to compile. */
    for (int closed = 0; closed < 2; closed++)
        run(u, &p, x, weight, n, closed ? 0 : n / 2, closed ? u[0] & ((LEVELS >> bits) - 1) : -1,
            bits, level);
}

#define VERSION(name, attribute)                                                                   \
    attribute static void encode_##name(uint8_t *u, const float *x, const float *weight,           \
                                        int64_t n, int bits)                                       \
    {                                                                                              \
        switch (bits) {                                                                            \
        case 2: encode(u, x, weight, n, 2); return;                                                \
        case 3: encode(u, x, weight, n, 3); return;                                                \
        case 4: encode(u, x, weight, n, 4); return;                                                \
        default: encode(u, x, weight, n, 5); return;                                               \
        }                                                                                          \
    }
typedef void encode_function(uint8_t *u, const float *x, const float *weight, int64_t n, int bits);

#define NOTHING
VERSION(plain, NOTHING)
#if defined(__x86_64__)
VERSION(avx2, __attribute__((target("avx2"))))
VERSION(avx512, __attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512"))))
#endif

/* The widest on this machine; all give the same windows. */
static encode_function *encoder(void)
{
    static _Atomic(encode_function *) chosen;
    encode_function *f = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (f) return f;
    f = encode_plain;
#if defined(__x86_64__)
    if (dq_os_cpu_features(NULL) & DQ_CPU_AVX2) f = encode_avx2;
    if (dq_os_cpu_features(NULL) & DQ_CPU_AVX512) f = encode_avx512;
#endif
    atomic_store_explicit(&chosen, f, memory_order_relaxed);
    return f;
}

/* In units of scales: squares count |scale| each, the largest scale 1. */
static void encode_with(encode_function *f, uint8_t *u, const float *want, const float *scale,
                        int64_t n, int bits)
{
    const float far = 1e6f; /* beyond all levels, and its square is finite */
    float x[ROWS], weight[ROWS], most = 0;
    for (int64_t i = 0; i < n; i++) most = fmaxf(most, fabsf(scale[i]));
    for (int64_t i = 0; i < n; i++) {
        weight[i] = most > 0 ? fabsf(scale[i]) / most : 0;
        x[i] = scale[i] != 0 ? fmaxf(-far, fminf(far, want[i] / scale[i])) : 0;
    }
    f(u, x, weight, n, bits);
}

void dq_trellis_encode(uint8_t *u, const float *want, const float *scale, int64_t n, int bits)
{
    encode_with(encoder(), u, want, scale, n, bits);
}

void dq_trellis_encode_plain(uint8_t *u, const float *want, const float *scale, int64_t n, int bits)
{
    encode_with(encode_plain, u, want, scale, n, bits);
}

void dq_trellis_pack(uint8_t *ring, const uint8_t *u, int64_t n, int bits)
{
    memset(ring, 0, (size_t)(n * bits / 8));
    for (int64_t r = 0, bit = 0; r < n; r++, bit += bits) {
        const unsigned own = (u[r] & ((1u << bits) - 1)) << bit % 8;
        ring[bit / 8] = (uint8_t)(ring[bit / 8] | own);
        if (own > 255) ring[bit / 8 + 1] = (uint8_t)(ring[bit / 8 + 1] | own >> 8);
    }
}
