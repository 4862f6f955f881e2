/* probes_numbers: conversions, single operations and exponentials against the models, over bit patterns
 * that hold every exponent, tie, subnormal, infinity and NaN.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/probes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device/ptx.cuh"
#include "tests/simt/numerics.h"

static float of_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static uint64_t bits_of64(double x)
{
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* Equal bits, or both NaN. */
static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

/* Every upper half with lower halves around what rounding to bf16, f16 and integers cuts at. */
static const uint32_t low_half[] = {0,      1,      0x07ff, 0x0800, 0x0fff, 0x1000, 0x1001, 0x2fff,
                                    0x3000, 0x3001, 0x5000, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff};
enum {
    N_LOW = sizeof low_half / sizeof *low_half,
    N_PATTERNS = 65536 * N_LOW,
    PER_LAUNCH = 256 /* blocks */
};

static uint32_t pattern(int i)
{
    return (uint32_t)(i / N_LOW) << 16 | low_half[i % N_LOW];
}

/* ------------------------------------------------------------------------------------- conversions */
struct converted {
    float x, rint, from_bf16;
    int32_t s8, s32;
    uint32_t bf16x2;
    uint16_t bf16, f16;
};

DQ_DEVICE unsigned first(void)
{
    return dq_block_x() * dq_threads() + dq_thread();
}

DQ_DEVICE unsigned step(void)
{
    return dq_grid_x() * dq_threads();
}

DQ_KERNEL(128) convert(converted *out, const uint32_t *bits, unsigned n)
{
    for (unsigned i = first(); i < n; i += step()) {
        converted c;
        c.x = dq_bits_f32(bits[i]);
        c.rint = dq_rint(c.x);
        c.s8 = dq_f32_s8(c.x);
        c.s32 = dq_f32_s32(c.x);
        c.bf16 = dq_f32_bf16(c.x);
        c.f16 = dq_f32_f16(c.x);
        c.bf16x2 = dq_f32x2_bf16(c.x, -c.x);
        c.from_bf16 = dq_bf16_f32((uint16_t)(bits[i] >> 16));
        out[i] = c;
    }
}

/* All patterns through the kernel; the caller frees. */
static converted *convert_patterns(dq_probe *p)
{
    converted *out = (converted *)dq_probe_room(N_PATTERNS, sizeof *out);
    uint32_t *bits = (uint32_t *)dq_probe_room(N_PATTERNS, sizeof *bits);
    for (int i = 0; i < N_PATTERNS; i++) bits[i] = pattern(i);
    void *in = dq_probe_put(p, bits, N_PATTERNS * sizeof *bits);
    void *to = dq_probe_put(p, NULL, N_PATTERNS * sizeof *out);
    DQ_LAUNCH(convert, dim3(PER_LAUNCH), 128, 0, NULL, (converted *)to, (const uint32_t *)in,
              (unsigned)N_PATTERNS);
    dq_probe_take(p, out, to, N_PATTERNS * sizeof *out);
    dq_probe_take(p, NULL, in, 0);
    free(bits);
    return out;
}

static void probe_to_bf16(dq_probe *p)
{
    converted *c = convert_patterns(p);
    for (int i = 0; i < N_PATTERNS; i++) {
        uint32_t b = pattern(i);
        uint16_t right = numerics_f32_bf16(of_bits(b));
        uint16_t minus = numerics_f32_bf16(of_bits(b ^ 0x80000000u));
        uint32_t pair = right | (uint32_t)minus << 16;
        dq_probe_check(p, c[i].bf16 == right, "f32_bf16", b, c[i].bf16, right);
        dq_probe_check(p, c[i].bf16x2 == pair, "f32x2_bf16", b, c[i].bf16x2, pair);
        dq_probe_check(p, bits_of(c[i].from_bf16) == (b & 0xffff0000u), "bf16_f32", b,
                       bits_of(c[i].from_bf16), b & 0xffff0000u);
    }
    free(c);
}

static void probe_to_f16(dq_probe *p)
{
    converted *c = convert_patterns(p);
    for (int i = 0; i < N_PATTERNS; i++) {
        uint16_t right = numerics_f32_f16(of_bits(pattern(i)));
        dq_probe_check(p, c[i].f16 == right, "f32_f16", pattern(i), c[i].f16, right);
    }
    free(c);
}

static void probe_to_integers(dq_probe *p)
{
    converted *c = convert_patterns(p);
    for (int i = 0; i < N_PATTERNS; i++) {
        float x = of_bits(pattern(i));
        int32_t s8 = numerics_f32_s8(x), s32 = numerics_f32_s32(x);
        dq_probe_check(p, c[i].s8 == s8, "f32_s8", pattern(i), (uint32_t)c[i].s8, (uint32_t)s8);
        dq_probe_check(p, c[i].s32 == s32, "f32_s32", pattern(i), (uint32_t)c[i].s32,
                       (uint32_t)s32);
        dq_probe_check(p, same(c[i].rint, rintf(x)), "rint", pattern(i), bits_of(c[i].rint),
                       bits_of(rintf(x)));
    }
    free(c);
}

struct widened {
    float f16, u8, s32;
};

DQ_KERNEL(128) widen(widened *out, const uint32_t *x, unsigned n)
{
    for (unsigned i = first(); i < n; i += step()) {
        out[i].f16 = dq_f16_f32((uint16_t)i);
        out[i].u8 = dq_u8_f32(x[i]);
        out[i].s32 = dq_s32_f32((int32_t)x[i]);
    }
}

static void probe_widen(dq_probe *p)
{
    enum { N = 65536 };
    widened *out = (widened *)dq_probe_room(N, sizeof *out);
    uint32_t *x = (uint32_t *)dq_probe_room(N, sizeof *x);
    uint32_t nan_bits = 0;
    for (int i = 0; i < N; i++) x[i] = dq_probe_bits(p) >> i % 32;
    x[0] = 0x80000000u;
    void *in = dq_probe_put(p, x, N * sizeof *x), *to = dq_probe_put(p, NULL, N * sizeof *out);
    DQ_LAUNCH(widen, dim3(64), 128, 0, NULL, (widened *)to, (const uint32_t *)in, (unsigned)N);
    dq_probe_take(p, out, to, N * sizeof *out);
    dq_probe_take(p, NULL, in, 0);
    for (int i = 0; i < N; i++) {
        float right = numerics_f16_f32((uint16_t)i);
        if (isnan(out[i].f16)) nan_bits |= bits_of(out[i].f16);
        dq_probe_check(p, same(out[i].f16, right), "f16_f32", (uint64_t)i, bits_of(out[i].f16),
                       bits_of(right));
        dq_probe_check(p, out[i].u8 == (float)(x[i] & 255u), "u8_f32", x[i], bits_of(out[i].u8),
                       bits_of((float)(x[i] & 255u)));
        dq_probe_check(p, out[i].s32 == (float)(int32_t)x[i], "s32_f32", x[i], bits_of(out[i].s32),
                       bits_of((float)(int32_t)x[i]));
    }
    if (!p->wrong) snprintf(p->note, sizeof p->note, "bits seen in f16 NaNs: 0x%x", nan_bits);
    free(out);
    free(x);
}

/* -------------------------------------------------------------------------------------- operations */
struct operated {
    float add, sub, mul, fma, div, sqrt, max, max_nan, min, abs, plain;
    double add64, sub64, mul64, fma64, div64, sqrt64;
};

DQ_KERNEL(128) operate(operated *out, const uint32_t *bits, unsigned n)
{
    for (unsigned i = first(); i < n; i += step()) {
        float a = dq_bits_f32(bits[4 * i]), b = dq_bits_f32(bits[4 * i + 1]);
        float c = dq_bits_f32(bits[4 * i + 2]);
        double a64 = dq_bits_f64((uint64_t)bits[4 * i] << 32 | bits[4 * i + 3]);
        double b64 = dq_bits_f64((uint64_t)bits[4 * i + 1] << 32 | bits[4 * i + 3]);
        double c64 = dq_bits_f64((uint64_t)bits[4 * i + 2] << 32);
        operated o;
        o.add = dq_add_rn(a, b);
        o.sub = dq_sub_rn(a, b);
        o.mul = dq_mul_rn(a, b);
        o.fma = dq_fma_rn(a, b, c);
        o.div = dq_div_rn(a, b);
        o.sqrt = dq_sqrt_rn(a);
        o.max = dq_max(a, b);
        o.max_nan = dq_max_nan(a, b);
        o.min = dq_min(a, b);
        o.abs = dq_abs(a);
        o.plain = a * b + c; /* the build must not contract it */
        o.add64 = dq_add_rn(a64, b64);
        o.sub64 = dq_sub_rn(a64, b64);
        o.sqrt64 = dq_sqrt_rn(a64);
        o.mul64 = dq_mul_rn(a64, b64);
        o.fma64 = dq_fma_rn(a64, b64, c64);
        o.div64 = dq_div_rn(a64, b64);
        out[i] = o;
    }
}

/* Any bits, or two operands of nearly the same size, or special ones. */
static void operands(dq_probe *p, uint32_t x[4], int i)
{
    static const uint32_t special[] = {0,           0x80000000u, 0x7f800000u, 0xff800000u,
                                       0x7fc00000u, 1,           0x007fffffu, 0x00800000u,
                                       0x7f7fffffu, 0x3f800000u, 0x80000001u, 0xbf800000u};
    for (int k = 0; k < 4; k++) {
        x[k] = dq_probe_bits(p);
        if (i % 4 == 1) x[k] = (x[k] & 0x83ffffffu) | 0x3c000000u;
        if (i % 4 == 2) x[k] = (x[k] & 0x80ffffffu); /* small, half of them subnormal */
        if (i % 4 == 3 && x[k] % 2) x[k] = special[x[k] / 2 % (sizeof special / sizeof *special)];
    }
}

static void check32(dq_probe *p, const char *what, int i, float got, float right)
{
    dq_probe_check(p, same(got, right), what, (uint64_t)i, bits_of(got), bits_of(right));
}

static void check64(dq_probe *p, const char *what, int i, double got, double right)
{
    dq_probe_check(p, bits_of64(got) == bits_of64(right) || (isnan(got) && isnan(right)), what,
                   (uint64_t)i, bits_of64(got), bits_of64(right));
}

static double join(uint32_t high, uint32_t low)
{
    uint64_t b = (uint64_t)high << 32 | low;
    double x;
    memcpy(&x, &b, sizeof x);
    return x;
}

static void check_operations(dq_probe *p, int i, const uint32_t x[4], const operated *o)
{
    float a = of_bits(x[0]), b = of_bits(x[1]), c = of_bits(x[2]);
    double a64 = join(x[0], x[3]), b64 = join(x[1], x[3]), c64 = join(x[2], 0);
    check32(p, "add", i, o->add, a + b);
    check32(p, "sub", i, o->sub, a - b);
    check32(p, "mul", i, o->mul, a * b);
    check32(p, "fma", i, o->fma, fmaf(a, b, c));
    check32(p, "div", i, o->div, numerics_div(a, b));
    check32(p, "sqrt", i, o->sqrt, sqrtf(a));
    check32(p, "abs", i, o->abs, fabsf(a));
    float product = a * b;
    check32(p, "a * b + c", i, o->plain, product + c);
    if (a != 0 || b != 0) { /* which zero is larger is left open */
        check32(p, "max", i, o->max, numerics_max(a, b));
        check32(p, "max_nan", i, o->max_nan, isnan(a) || isnan(b) ? NAN : numerics_max(a, b));
        check32(p, "min", i, o->min, numerics_min(a, b));
    }
    check64(p, "add, f64", i, o->add64, a64 + b64);
    check64(p, "sub, f64", i, o->sub64, a64 - b64);
    check64(p, "sqrt, f64", i, o->sqrt64, sqrt(a64));
    check64(p, "mul, f64", i, o->mul64, a64 * b64);
    check64(p, "fma, f64", i, o->fma64, fma(a64, b64, c64));
    check64(p, "div, f64", i, o->div64, numerics_div64(a64, b64));
}

static void probe_operations(dq_probe *p)
{
    enum { N = 100000 };
    uint32_t(*x)[4] = (uint32_t(*)[4])dq_probe_room(N, sizeof *x);
    operated *out = (operated *)dq_probe_room(N, sizeof *out);
    for (int i = 0; i < N; i++) operands(p, x[i], i);
    void *in = dq_probe_put(p, x, N * sizeof *x), *to = dq_probe_put(p, NULL, N * sizeof *out);
    DQ_LAUNCH(operate, dim3(64), 128, 0, NULL, (operated *)to, (const uint32_t *)in, (unsigned)N);
    dq_probe_take(p, out, to, N * sizeof *out);
    dq_probe_take(p, NULL, in, 0);
    for (int i = 0; i < N; i++) check_operations(p, i, x[i], &out[i]);
    free(x);
    free(out);
}

/* -------------------------------------------------------------------------------------------- bits */
struct picked {
    uint32_t popc, clz, prmt;
};

DQ_KERNEL(128) pick(picked *out, const uint32_t *x, unsigned n)
{
    for (unsigned i = first(); i < n; i += step()) {
        out[i].popc = dq_popc(x[i]);
        out[i].clz = dq_clz(x[i]);
        out[i].prmt = dq_prmt(x[i], x[(i + 1) % n], x[(i + 2) % n] & 0xffffu);
    }
}

static void probe_bits(dq_probe *p)
{
    enum { N = 20000 };
    static uint32_t x[N];
    static picked out[N];
    for (int i = 0; i < N; i++) x[i] = dq_probe_bits(p) >> i % 33 % 32;
    x[0] = 0;
    void *in = dq_probe_put(p, x, sizeof x), *to = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(pick, dim3(32), 128, 0, NULL, (picked *)to, (const uint32_t *)in, (unsigned)N);
    dq_probe_take(p, out, to, sizeof out);
    dq_probe_take(p, NULL, in, 0);
    for (int i = 0; i < N; i++) {
        uint32_t ones = 0, zeros = 32, v = x[i];
        uint32_t right = numerics_prmt(v, x[(i + 1) % N], x[(i + 2) % N] & 0xffffu);
        for (; v; v >>= 1, zeros--) ones += v & 1u;
        dq_probe_check(p, out[i].popc == ones, "popc", x[i], out[i].popc, ones);
        dq_probe_check(p, out[i].clz == zeros, "clz", x[i], out[i].clz, zeros);
        dq_probe_check(p, out[i].prmt == right, "prmt", x[i], out[i].prmt, right);
    }
}

/* ------------------------------------------------------------------------------ exp and log in f64 */
struct curved {
    double exp, log;
};

DQ_KERNEL(128) curve(curved *out, unsigned n)
{
    for (unsigned i = first(); i < n; i += step()) {
        out[i].exp = dq_exp(((double)i - n / 2) * (1400.0 / n));
        out[i].log = dq_log((double)(i + 1) * 1.37e-3);
    }
}

/* worst: relative error of exp, or of log near its size or 1, in 2^-52; held to 4. */
static void probe_curves(dq_probe *p)
{
    enum { N = 50000 };
    static curved out[N];
    double worst = 0;
    void *to = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(curve, dim3(32), 128, 0, NULL, (curved *)to, (unsigned)N);
    dq_probe_take(p, out, to, sizeof out);
    for (int i = 0; i < N; i++) {
        double e = exp(((double)i - N / 2) * (1400.0 / N)), l = log((double)(i + 1) * 1.37e-3);
        double off_e = fabs(out[i].exp - e) / e * 0x1p52;
        double off_l = fabs(out[i].log - l) / fmax(1, fabs(l)) * 0x1p52;
        dq_probe_check(p, off_e <= 4, "exp", (uint64_t)i, bits_of64(out[i].exp), bits_of64(e));
        dq_probe_check(p, off_l <= 4, "log", (uint64_t)i, bits_of64(out[i].log), bits_of64(l));
        worst = fmax(worst, fmax(off_e, off_l));
    }
    p->worst = worst;
    if (!p->wrong) snprintf(p->note, sizeof p->note, "worst: relative error in 2^-52");
}

/* ------------------------------------------------------------------------------------ fast exp2 */
DQ_KERNEL(128) fast(float *out, float start, float width, unsigned n)
{
    for (unsigned i = first(); i < n; i += step())
        out[i] = dq_exp2_fast(dq_add_rn(start, dq_mul_rn(width, (float)(int)i)));
}

/* worst: relative error in units of 2^-23 over -126..128; held to the 2^-22 that ptx.cuh names. */
static void probe_exp2_fast(dq_probe *p)
{
    enum { N = 1 << 20 };
    const float start = -130.0f, width = 258.0f / N;
    float *out = (float *)dq_probe_room(N, sizeof *out), at = 0;
    double worst = 0;
    void *to = dq_probe_put(p, NULL, N * sizeof *out);
    DQ_LAUNCH(fast, dim3(PER_LAUNCH), 128, 0, NULL, (float *)to, start, width, (unsigned)N);
    dq_probe_take(p, out, to, N * sizeof *out);
    for (int i = 0; i < N; i++) {
        float product = width * (float)i, x = start + product;
        double right = exp2((double)x), off = fabs((double)out[i] / right - 1) * 0x1p23;
        if (x < -126.0f) { /* flushed; just below, rounding may still give 2^-126 */
            bool zero = out[i] == 0 || (out[i] == 0x1p-126f && x > -126.001f);
            dq_probe_check(p, zero, "below -126", bits_of(x), bits_of(out[i]), 0);
            continue;
        }
        if (!(off <= worst)) {
            worst = off;
            at = x;
        }
        dq_probe_check(p, off <= 2, "exp2_fast", bits_of(x), bits_of(out[i]),
                       bits_of((float)right));
    }
    p->worst = worst;
    if (!p->wrong)
        snprintf(p->note, sizeof p->note, "worst: relative error in 2^-23, at %.9g", (double)at);
    free(out);
}

const dq_probe_entry dq_probes_numbers[] = {{"to_bf16", probe_to_bf16},
                                            {"to_f16", probe_to_f16},
                                            {"to_integers", probe_to_integers},
                                            {"widen", probe_widen},
                                            {"operations", probe_operations},
                                            {"bits", probe_bits},
                                            {"curves", probe_curves},
                                            {"exp2_fast", probe_exp2_fast},
                                            {NULL, NULL}};
