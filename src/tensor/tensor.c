/* Conversions by bits, round to nearest even, without the compiler's half types: the same on every
 * machine. NaN stays NaN, what is too large becomes infinity.
 * SPDX-License-Identifier: MIT */
#include "tensor/inside.h"

#include <string.h>

const dq_dtype_info dq_dtypes[DQ_DTYPE_COUNT] = {
    [DQ_F32] = {"F32", 4}, [DQ_F16] = {"F16", 2},         [DQ_BF16] = {"BF16", 2},
    [DQ_F64] = {"F64", 8}, [DQ_F8_E4M3] = {"F8_E4M3", 1}, [DQ_F8_E5M2] = {"F8_E5M2", 1},
    [DQ_I64] = {"I64", 8}, [DQ_I32] = {"I32", 4},         [DQ_I16] = {"I16", 2},
    [DQ_I8] = {"I8", 1},   [DQ_U64] = {"U64", 8},         [DQ_U32] = {"U32", 4},
    [DQ_U16] = {"U16", 2}, [DQ_U8] = {"U8", 1},           [DQ_BOOL] = {"BOOL", 1},
};

int64_t dq_tensor_numel(const dq_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->shape[i];
    return n;
}

size_t dq_tensor_bytes(const dq_tensor *t)
{
    return (size_t)dq_tensor_numel(t) * dq_dtypes[t->dtype].bytes;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t dq_f16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    uint32_t sign = u >> 16 & 0x8000u;
    uint32_t mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (mag >> 13 & 0x1ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (mag < 0x38800000u) {
        /* A subnormal half: adding 0.5 aligns its last place with the float's, which rounds to
         * even. */
        uint32_t sum = bits_of(float_of(mag) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    uint32_t odd = mag >> 13 & 1u;
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + odd) >> 13));
}

float dq_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0) { /* fraction * 2^-24 is exact in f32 */
        float x = (float)fraction * 0x1p-24f;
        return float_of(bits_of(x) | sign);
    }
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
}

uint16_t dq_bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float dq_f32_from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

bool dq_tensor_to_f32(float *dst, const void *src, dq_dtype type, int64_t n)
{
    const unsigned char *p = src;
    if (n <= 0) return type == DQ_F32 || type == DQ_F16 || type == DQ_BF16 || type == DQ_F64;
    switch (type) {
    case DQ_F32: memcpy(dst, p, (size_t)n * sizeof *dst); return true;
    case DQ_F16: dq_quant_loops()->widen_f16(dst, p, n); return true;
    case DQ_BF16: dq_quant_loops()->widen_bf16(dst, p, n); return true;
    case DQ_F64:
        for (int64_t i = 0; i < n; i++) {
            double x;
            memcpy(&x, p + 8 * i, sizeof x);
            dst[i] = (float)x;
        }
        return true;
    default: return false;
    }
}
