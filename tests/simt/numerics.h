/* numerics: what the device's number instructions give, in plain C, read off the PTX manual: the shim
 * computes with these functions and the probes compare a GPU with them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_NUMERICS_H
#define DQ_NUMERICS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* c + sum of a[i] * b[i] over the four bytes, modulo 2^32. */
uint32_t numerics_dp4a(uint32_t c, uint32_t a, uint32_t b, bool a_signed, bool b_signed);
/* Four of the eight bytes of b:a, or their signs, by the four nibbles of select. */
uint32_t numerics_prmt(uint32_t a, uint32_t b, uint32_t select);
/* Nearest, ties to even; a NaN becomes 0x7fff. */
uint16_t numerics_f32_bf16(float x);
uint16_t numerics_f32_f16(float x);
float numerics_f16_f32(uint16_t x);
/* Nearest, ties to even, held within the range; a NaN becomes 0. */
int32_t numerics_f32_s8(float x);
int32_t numerics_f32_s32(float x);
/* Division also where the divisor is 0, which C leaves undefined. */
float numerics_div(float a, float b);
double numerics_div64(double a, double b);
/* A NaN is missing data, a signaling one too, which the C library's fmaxf makes a NaN of. */
float numerics_max(float a, float b);
float numerics_min(float a, float b);
/* 2^x rounded once; results below 2^-126 become 0. The device may differ by 2^-22, relative. */
float numerics_exp2_fast(float x);

#ifdef __cplusplus
}
#endif

#endif
