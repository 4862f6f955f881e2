/* numerics: see numerics.h. Written with integers, so that no compiler flag changes a result.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/numerics.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static float of_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}

uint32_t numerics_dp4a(uint32_t c, uint32_t a, uint32_t b, bool a_signed, bool b_signed)
{
    for (int i = 0; i < 4; i++) {
        int32_t x = (int32_t)(a >> 8 * i & 255u), y = (int32_t)(b >> 8 * i & 255u);
        if (a_signed && x > 127) x -= 256;
        if (b_signed && y > 127) y -= 256;
        c += (uint32_t)(x * y);
    }
    return c;
}

uint32_t numerics_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t n = select >> 4 * i & 15u, byte = (uint32_t)(bytes >> 8 * (n & 7u)) & 255u;
        if (n & 8u) byte = byte & 128u ? 255u : 0u;
        r |= byte << 8 * i;
    }
    return r;
}

uint16_t numerics_f32_bf16(float x)
{
    uint32_t b = bits_of(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (uint16_t)((b + 0x7fffu + (b >> 16 & 1u)) >> 16);
}

uint16_t numerics_f32_f16(float x)
{
    uint32_t b = bits_of(x), sign = b >> 16 & 0x8000u, mag = b & 0x7fffffffu;
    if (mag > 0x7f800000u) return 0x7fff;
    if (mag >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* 2^16 and more */
    uint32_t mantissa, shift;
    if (mag >= 0x38800000u) { /* normal in f16: 2^-14 and more */
        mantissa = mag - 0x38000000u;
        shift = 13;
    } else { /* subnormal: units of 2^-24 */
        uint32_t exponent = mag >> 23;
        if (exponent < 102) return (uint16_t)sign; /* below 2^-25, half the smallest */
        mantissa = (mag & 0x7fffffu) | 0x800000u;
        shift = 126 - exponent;
    }
    uint32_t half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
    uint32_t r = mantissa >> shift;
    if (rest > half || (rest == half && (r & 1u))) r++; /* may carry into the exponent, rightly */
    return (uint16_t)(sign | r);
}

float numerics_f16_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 31u, m = x & 0x3ffu;
    if (exponent == 31) return of_bits(m ? 0x7fffffffu : sign | 0x7f800000u);
    if (exponent == 0) { /* m * 2^-24 exactly */
        float r = (float)m * 0x1p-24f;
        return sign ? -r : r;
    }
    return of_bits(sign | (exponent + 112) << 23 | m << 13);
}

static int32_t rounded(float x, double low, double high)
{
    if (x != x) return 0;
    double r = rint((double)x);
    return (int32_t)(r < low ? low : r > high ? high : r);
}

int32_t numerics_f32_s8(float x)
{
    return rounded(x, -128, 127);
}

int32_t numerics_f32_s32(float x)
{
    return rounded(x, -2147483648.0, 2147483647.0);
}

double numerics_div64(double a, double b)
{
    if (b != 0) return a / b;
    if (a != a || b != b || a == 0) return (double)NAN;
    return (signbit(a) != 0) != (signbit(b) != 0) ? (double)-INFINITY : (double)INFINITY;
}

float numerics_div(float a, float b)
{
    if (b != 0) return a / b;
    return (float)numerics_div64((double)a, (double)b);
}

float numerics_max(float a, float b)
{
    return a != a ? b : b != b || a > b ? a : b;
}

float numerics_min(float a, float b)
{
    return a != a ? b : b != b || a < b ? a : b;
}

float numerics_exp2_fast(float x)
{
    float r = exp2f(x);
    return r < 0x1p-126f ? 0.0f : r;
}
