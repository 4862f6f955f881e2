/* Tests of element types and exact conversions.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tensor/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

typedef uint16_t (*narrow_fn)(float);
typedef float (*widen_fn)(uint16_t);

static const struct format {
    const char *name;
    narrow_fn narrow;
    widen_fn widen;
    uint16_t infinity;
} formats[] = {
    {"f16", dq_f16_from_f32, dq_f32_from_f16, 0x7c00},
    {"bf16", dq_bf16_from_f32, dq_f32_from_bf16, 0x7f80},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

TEST(every_16_bit_value_survives)
{
    for (int f = 0; f < N_FORMATS; f++) {
        for (uint32_t h = 0; h < 65536; h++) {
            float x = formats[f].widen((uint16_t)h);
            uint16_t back = formats[f].narrow(x);
            if ((h & 0x7fffu) > formats[f].infinity) {
                assert_true(isnan(x));
                assert_true(isnan(formats[f].widen(back)));
            } else {
                assert_int_equal(back, h);
            }
        }
    }
}

/* No neighbour may be nearer, and between two equally near ones the even one is taken. */
static void check_nearest(const struct format *f, float x)
{
    uint16_t h = f->narrow(x), magnitude = h & 0x7fffu;
    double want = fabs((double)x);
    if (magnitude == f->infinity) {
        double top = (double)f->widen((uint16_t)(f->infinity - 1));
        double step = top - (double)f->widen((uint16_t)(f->infinity - 2));
        assert_true(want >= top + step / 2);
        return;
    }
    double error = fabs((double)f->widen(magnitude) - want);
    double above = magnitude + 1 == f->infinity ? 2 * (double)f->widen(magnitude) -
                                                      (double)f->widen((uint16_t)(magnitude - 1))
                                                : (double)f->widen((uint16_t)(magnitude + 1));
    assert_true(error <= fabs(above - want));
    if (error >= fabs(above - want)) assert_int_equal(magnitude & 1, 0);
    if (magnitude > 0) {
        double below = fabs((double)f->widen((uint16_t)(magnitude - 1)) - want);
        assert_true(error <= below);
        if (error >= below) assert_int_equal(magnitude & 1, 0);
    }
    assert_int_equal(h >> 15, bits_of(x) >> 31);
}

TEST(rounding_is_to_the_nearest_even)
{
    uint64_t seed = 1;
    for (int i = 0; i < 400000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t u = (uint32_t)(seed >> 32);
        if (i % 4 == 0) u &= ~0xfffu; /* many ties of f16 */
        if (i % 4 == 1) u = (u & 0xffff8000u);
        if (i % 4 == 2) u = (u & 0x8fffffffu) | 0x30000000u; /* around the f16 range */
        float x = float_of(u);
        if (!isfinite(x)) continue;
        for (int f = 0; f < N_FORMATS; f++) check_nearest(&formats[f], x);
    }
}

TEST(known_values_convert)
{
    static const struct {
        float x;
        uint16_t f16, bf16;
    } t[] = {
        {0.0f, 0x0000, 0x0000},         {-0.0f, 0x8000, 0x8000},
        {1.0f, 0x3c00, 0x3f80},         {-2.5f, 0xc100, 0xc020},
        {65504.0f, 0x7bff, 0x4780},     {65519.996f, 0x7bff, 0x4780},
        {65520.0f, 0x7c00, 0x4780},     {1e30f, 0x7c00, 0x714a},
        {0x1p-14f, 0x0400, 0x3880},     {0x1p-24f, 0x0001, 0x3380},
        {0x1p-25f, 0x0000, 0x3300},     {0x1.000002p-25f, 0x0001, 0x3300},
        {0x1.8p-24f, 0x0002, 0x33c0},   {0x1.ff8p-15f, 0x03ff, 0x3880},
        {0x1.ffcp-15f, 0x0400, 0x3880}, {-3.4028235e38f, 0xfc00, 0xff80},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(dq_f16_from_f32(t[i].x), t[i].f16);
        assert_int_equal(dq_bf16_from_f32(t[i].x), t[i].bf16);
    }
    assert_int_equal(dq_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(dq_bf16_from_f32(-INFINITY), 0xff80);
    /* A NaN whose payload lies in the bits that are dropped must not become infinity. */
    assert_true(isnan(dq_f32_from_f16(dq_f16_from_f32(float_of(0x7f800001u)))));
    assert_true(isnan(dq_f32_from_bf16(dq_bf16_from_f32(float_of(0x7f800001u)))));
    assert_true(isnan(dq_f32_from_bf16(dq_bf16_from_f32(float_of(0xffffffffu)))));
}

TEST(rows_convert_from_any_address)
{
    const float want[3] = {1.5f, -0.25f, 96.0f};
    unsigned char raw[3 * 8 + 1];
    for (int type = 0; type < DQ_DTYPE_COUNT; type++) {
        bool can = type == DQ_F32 || type == DQ_F16 || type == DQ_BF16 || type == DQ_F64;
        float got[3] = {0};
        memset(raw, 0, sizeof raw);
        for (int i = 0; i < 3; i++) {
            double wide = (double)want[i];
            uint16_t h = dq_f16_from_f32(want[i]), b = dq_bf16_from_f32(want[i]);
            if (type == DQ_F32) memcpy(raw + 1 + 4 * i, &want[i], 4);
            if (type == DQ_F16) memcpy(raw + 1 + 2 * i, &h, 2);
            if (type == DQ_BF16) memcpy(raw + 1 + 2 * i, &b, 2);
            if (type == DQ_F64) memcpy(raw + 1 + 8 * i, &wide, 8);
        }
        assert_int_equal(dq_tensor_to_f32(got, raw + 1, (dq_dtype)type, 3), can);
        assert_int_equal(dq_tensor_to_f32(got, NULL, (dq_dtype)type, 0), can);
        if (can) assert_memory_equal(got, want, sizeof want);
    }
}

TEST(sizes_follow_shape_and_type)
{
    static const struct {
        dq_tensor t;
        int64_t numel;
        size_t bytes;
    } t[] = {
        {{.dtype = DQ_F32}, 1, 4},
        {{.dtype = DQ_BF16, .n_dims = 2, .shape = {3, 5}}, 15, 30},
        {{.dtype = DQ_F64, .n_dims = 3, .shape = {2, 0, 7}}, 0, 0},
        {{.dtype = DQ_BOOL, .n_dims = 1, .shape = {9}}, 9, 9},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(dq_tensor_numel(&t[i].t), t[i].numel);
        assert_int_equal(dq_tensor_bytes(&t[i].t), t[i].bytes);
    }
    for (int i = 0; i < DQ_DTYPE_COUNT; i++) assert_non_null(dq_dtypes[i].name);
}
