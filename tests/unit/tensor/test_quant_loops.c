/* test_quant_loops: every form of the loops gives the bits of a definition written out here.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/grid.h"
#include "tests/rigs/suite.h"

#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 150 };

static uint64_t state = 88172645463325252u;
static uint64_t random_bits(void)
{
    return xorshift(&state);
}

/* Any finite float, small and large ones alike. */
static float any_float(void)
{
    uint32_t u = (uint32_t)(random_bits() >> 20);
    float x;
    if ((u & 0x7f800000u) == 0x7f800000u) u &= 0xbfffffffu;
    memcpy(&x, &u, sizeof x);
    return x;
}

static const dq_quant_loop_table *form(int i)
{
    return i == 0 ? dq_quant_loops_plain() : dq_quant_loops();
}

TEST(the_largest_magnitude_is_found)
{
    uint8_t bytes[4 * MAX + 4];
    for (int n = 0; n < MAX; n++) {
        uint32_t want32 = 0, want16 = 0;
        int shift = n % 4; /* sources need no alignment */
        for (int i = 0; i < n; i++) {
            uint32_t u = (uint32_t)(random_bits() >> 16);
            memcpy(bytes + shift + 4 * i, &u, sizeof u);
            u &= 0x7fffffffu;
            want32 = u > want32 ? u : want32;
        }
        for (int i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, bytes + shift + 2 * i, sizeof h);
            want16 = (h & 0x7fffu) > want16 ? h & 0x7fffu : want16;
        }
        for (int f = 0; f < 2; f++) {
            assert_int_equal(form(f)->top32(bytes + shift, n), want32);
            assert_int_equal(form(f)->top16(bytes + shift, n), want16);
        }
    }
}

TEST(every_half_becomes_its_float)
{
    static uint16_t halves[65536];
    static float got[65536];
    for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
    for (int f = 0; f < 4; f++) {
        if (f < 2)
            form(f)->widen_f16(got, halves, 65536);
        else
            form(f - 2)->widen_bf16(got, halves, 65536);
        for (int i = 0; i < 65536; i++) {
            float want = f < 2 ? dq_f32_from_f16((uint16_t)i) : dq_f32_from_bf16((uint16_t)i);
            assert_memory_equal(&got[i], &want, sizeof want);
        }
    }
}

TEST(codes_and_errors_follow_the_definition)
{
    float w[MAX], got[MAX];
    int8_t q[MAX], alone[MAX];
    for (int n = 0; n < MAX; n++) {
        float high = (float)(1 << (n % 7 + 1)) - 1, low = n % 2 ? -high : -high - 1;
        float scale = n % 3 ? 0.01f : -0.003f;
        for (int i = 0; i < n; i++)
            w[i] =
                i % 5 ? (float)((int64_t)(random_bits() >> 40) - (1 << 23)) * 1e-7f : any_float();
        for (int f = 0; f < 2; f++) {
            double sums[24] = {0}, want[24] = {0};
            form(f)->encode(q, got, w, n, scale, low, high);
            form(f)->encode(alone, NULL, w, n, scale, low, high);
            form(f)->error(sums, w, got, n);
            for (int i = 0; i < n; i++) {
                float code = fmaxf(low, fminf(high, rintf(w[i] / scale))), back = code * scale;
                double d = (double)w[i] - (double)back;
                assert_int_equal(q[i], (int)code);
                assert_true(got[i] >= back && got[i] <= back);
                want[i % 8] += (double)w[i] * (double)w[i];
                want[8 + i % 8] += d * d;
                want[16 + i % 8] = fmax(want[16 + i % 8], fabs(d));
            }
            assert_memory_equal(q, alone, (size_t)n);
            assert_memory_equal(sums, want, sizeof sums);
        }
    }
}

TEST(misses_follow_the_definition)
{
    float w[MAX], inverse[DQ_QUANT_LOOP_SCALES];
    for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++)
        inverse[k] = k ? (k % 2 ? -1.0f : 1.0f) * (0.3f + (float)k) : 0;
    for (int n = 0; n < MAX; n++) {
        float high = (float)(1 << (n % 7 + 1)) - 1, got[2][DQ_QUANT_LOOP_SCALES];
        for (int i = 0; i < n; i++)
            w[i] = (float)((int64_t)(random_bits() >> 40) - (1 << 23)) * 1e-6f;
        for (int f = 0; f < 2; f++) {
            for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) got[f][k] = 1;
            form(f)->misses(got[f], inverse, w, n, -high - 1, high);
        }
        assert_memory_equal(got[0], got[1], sizeof got[0]);
        for (int k = 0; k < DQ_QUANT_LOOP_SCALES; k++) {
            double want = 1;
            for (int i = 0; i < n; i++) {
                float x = w[i] * inverse[k];
                double d = (double)x - (double)fmaxf(-high - 1, fminf(high, rintf(x)));
                want += d * d;
            }
            assert_true(fabs((double)got[0][k] - want) <= 1e-5 * want);
        }
    }
}

TEST(codes_are_packed)
{
    int8_t q[MAX];
    uint8_t packed[MAX + 1];
    for (int n = 0; n < MAX; n += 2) {
        for (int f = 0; f < 2; f++) {
            for (int i = 0; i < n; i++) q[i] = (int8_t)((int)(random_bits() >> 50 & 255) - 128);
            packed[n] = 0xaa;
            form(f)->pack8(packed, q, n);
            for (int i = 0; i < n; i++) assert_int_equal(packed[i], q[i] + 128);
            assert_int_equal(packed[n], 0xaa);
            for (int i = 0; i < n; i++) q[i] = (int8_t)((int)(random_bits() >> 50 & 15) - 8);
            packed[n / 2] = 0xaa;
            form(f)->pack4(packed, q, n);
            for (int i = 0; i < n; i += 2)
                assert_int_equal(packed[i / 2], (q[i] + 8) | (q[i + 1] + 8) << 4);
            assert_int_equal(packed[n / 2], 0xaa);
        }
    }
}
