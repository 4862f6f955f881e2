/* test_simt_numbers: matrix fragments against plain products, dot products of bytes, conversions against
 * a search for the nearest value, exponentials.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/ptx.cuh"

/* ----------------------------------------------------------------------------------------- matrices */
enum {
    ROW8 = 48, /* bytes of a row of 32 in shared memory */
    ROW16 = 24 /* 16-bit elements of a row of 16 */
};

/* One warp: c[16][8] = a[16][32] b[32][8], b given by columns. kind: 0 s8 s8, 1 u8 s8, 2 s8 u8. */
DQ_KERNEL(32) product8(int32_t *c, const uint8_t *a, const uint8_t *b, int kind)
{
    DQ_SHARED(uint8_t, sa, [16 * ROW8]);
    DQ_SHARED(uint8_t, sb, [8 * ROW8]);
    int lane = (int)dq_lane();
    for (int i = lane; i < 16 * 32; i += 32) sa[i / 32 * ROW8 + i % 32] = a[i];
    for (int i = lane; i < 8 * 32; i += 32) sb[i / 32 * ROW8 + i % 32] = b[i];
    dq_warp_sync();
    uint32_t fa[4], fb[2];
    int32_t d[4] = {1, -2, 3, -4};
    dq_ldmatrix_x4(fa, sa + lane % 16 * ROW8 + lane / 16 * 16);
    dq_ldmatrix_x2(fb, sb + lane % 8 * ROW8 + lane / 8 % 2 * 16);
    if (kind == 0) dq_mma_s8s8(d, fa, fb);
    if (kind == 1) dq_mma_u8s8(d, fa, fb);
    if (kind == 2) dq_mma_s8u8(d, fa, fb);
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

static int value8(uint8_t x, bool is_signed)
{
    return is_signed && x > 127 ? x - 256 : x;
}

TEST(test_product8)
{
    check_random r = {3};
    check_array<uint8_t> a(512), b(256);
    check_array<int32_t> c(128);
    const int start[4] = {1, -2, 3, -4};
    for (int round = 0; round < 12; round++) {
        int kind = round % 3;
        bool as = kind != 1, bs = kind != 2;
        for (int i = 0; i < 512; i++) /* round 0..2: the largest sums there are */
            a.host[i] =
                round < 3 ? (as ? 0x80 : 0xff) : (uint8_t)r.extreme(as ? -128 : 0, as ? 127 : 255);
        for (int i = 0; i < 256; i++)
            b.host[i] =
                round < 3 ? (bs ? 0x80 : 0xff) : (uint8_t)r.extreme(bs ? -128 : 0, bs ? 127 : 255);
        a.put();
        b.put();
        DQ_LAUNCH(product8, 1, 32, 0, NULL, c.device, a.device, b.device, kind);
        c.get();
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                int sum = start[i / 8 * 2 + j % 2];
                for (int k = 0; k < 32; k++)
                    sum += value8(a.host[i * 32 + k], as) * value8(b.host[j * 32 + k], bs);
                assert_int_equal(c.host[i * 8 + j], sum);
            }
    }
}

/* c[16][8] = a[16][16] b[16][8] of f16, b by rows (loaded transposed) or by columns. */
DQ_KERNEL(32) product16(float *c, const uint16_t *a, const uint16_t *b, int by_rows)
{
    DQ_SHARED(uint16_t, sa, [16 * ROW16]);
    DQ_SHARED(uint16_t, sb, [16 * ROW16]);
    int lane = (int)dq_lane(), cols = by_rows ? 8 : 16;
    for (int i = lane; i < 256; i += 32) sa[i / 16 * ROW16 + i % 16] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i / cols * ROW16 + i % cols] = b[i];
    dq_warp_sync();
    uint32_t fa[4], fb[4];
    float d[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    dq_ldmatrix_x4(fa, sa + lane % 16 * ROW16 + lane / 16 * 8);
    if (by_rows)
        dq_ldmatrix_x2_trans(fb, sb + lane % 16 * ROW16);
    else
        dq_ldmatrix_x2(fb, sb + lane % 8 * ROW16 + lane / 8 % 2 * 8);
    dq_mma_f16(d, fa, fb);
    for (int i = 0; i < 4; i++) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

/* The four matrices one by one, plain and transposed. */
DQ_KERNEL(32) four_matrices(uint32_t *out, const uint16_t *x, int trans)
{
    DQ_SHARED(uint16_t, s, [256]);
    int lane = (int)dq_lane();
    for (int i = lane; i < 256; i += 32) s[i] = x[i];
    dq_warp_sync();
    uint32_t r[4];
    if (trans)
        dq_ldmatrix_x4_trans(r, s + 8 * lane);
    else
        dq_ldmatrix_x4(r, s + 8 * lane);
    for (int j = 0; j < 4; j++) out[4 * lane + j] = r[j];
}

TEST(test_product16)
{
    check_random r = {4};
    check_array<uint16_t> a(256), b(128);
    check_array<float> c(128);
    for (int round = 0; round < 6; round++) {
        int by_rows = round % 2;
        for (int i = 0; i < 256; i++) a.host[i] = dq_f32_f16(r.value());
        for (int i = 0; i < 128; i++) b.host[i] = dq_f32_f16(r.value());
        a.put();
        b.put();
        DQ_LAUNCH(product16, 1, 32, 0, NULL, c.device, a.device, b.device, by_rows);
        c.get();
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                double sum = 0.5;
                for (int k = 0; k < 16; k++)
                    sum += (double)dq_f16_f32(a.host[i * 16 + k]) *
                           (double)dq_f16_f32(b.host[by_rows ? k * 8 + j : j * 16 + k]);
                assert_true(fabs((double)c.host[i * 8 + j] - sum) <= 1e-6 * (1 + fabs(sum)));
            }
    }
}

TEST(test_four_matrices)
{
    check_array<uint16_t> x(256);
    check_array<uint32_t> out(128);
    for (int i = 0; i < 256; i++) x.host[i] = (uint16_t)(i * 257 + 3);
    x.put();
    for (int trans = 0; trans < 2; trans++) {
        DQ_LAUNCH(four_matrices, 1, 32, 0, NULL, out.device, x.device, trans);
        out.get();
        for (int lane = 0; lane < 32; lane++)
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 2; i++) {
                    int row = trans ? lane % 4 * 2 + i : lane / 4;
                    int col = trans ? lane / 4 : lane % 4 * 2 + i;
                    assert_int_equal(out.host[4 * lane + j] >> 16 * i & 0xffffu,
                                     x.host[64 * j + 8 * row + col]);
                }
    }
}

TEST(test_dp4a)
{
    check_random r = {5};
    for (int round = 0; round < 4000; round++) {
        uint32_t a = 0, b = 0, c = round % 3 ? r.bits() % 1000 : 0x7fffffffu;
        int32_t ss = (int32_t)c, us = ss, su = ss;
        uint32_t uu = c;
        for (int i = 0; i < 4; i++) {
            uint8_t x = (uint8_t)r.extreme(-128, 127), y = (uint8_t)r.extreme(-128, 127);
            a |= (uint32_t)x << 8 * i;
            b |= (uint32_t)y << 8 * i;
            ss = (int32_t)((uint32_t)ss + (uint32_t)((int8_t)x * (int8_t)y));
            us = (int32_t)((uint32_t)us + (uint32_t)(x * (int8_t)y));
            su = (int32_t)((uint32_t)su + (uint32_t)((int8_t)x * y));
            uu += (uint32_t)(x * y);
        }
        assert_int_equal(dq_dp4a_s8s8((int32_t)c, a, b), ss);
        assert_int_equal(dq_dp4a_u8s8((int32_t)c, a, b), us);
        assert_int_equal(dq_dp4a_s8u8((int32_t)c, a, b), su);
        assert_int_equal(dq_dp4a_u8u8(c, a, b), uu);
    }
}

TEST(test_bits)
{
    assert_int_equal(dq_popc(0xf0010001u), 6);
    assert_int_equal(dq_clz(0), 32);
    assert_int_equal(dq_clz(1), 31);
    assert_int_equal(dq_clz(0x80000000u), 0);
    assert_int_equal(dq_prmt(0x33221180u, 0x77665544u, 0x7250u), 0x77225580u);
    assert_int_equal(dq_prmt(0x33221180u, 0x77665544u, 0xf8a1u), 0x00ff0011u);
}

/* -------------------------------------------------------------------------------------- conversions */
/* Of the values value(0..last), ascending, the one nearest to |x|; ties to the even code; beyond the
 * middle between the last and what would follow it: last + 1. */
static uint32_t nearest(double x, uint32_t last, double (*value)(uint32_t))
{
    x = fabs(x);
    uint32_t low = 0, high = last + 1; /* value(low) <= x < value(high) */
    while (high - low > 1) {
        uint32_t mid = (low + high) / 2;
        if (value(mid) <= x)
            low = mid;
        else
            high = mid;
    }
    double below = x - value(low), above = value(low + 1) - x;
    if (below != above) return below < above ? low : low + 1;
    return low % 2 ? low + 1 : low;
}

static double bf16_value(uint32_t code) /* also of the code after the last finite one: 2^128 */
{
    return code == 0x7f80u ? 0x1p128 : (double)dq_bits_f32(code << 16);
}

static double f16_value(uint32_t code)
{
    int e = (int)(code >> 10);
    double m = code & 0x3ffu;
    return e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
}

static void check_narrow(float x)
{
    uint32_t sign = dq_f32_bits(x) >> 16 & 0x8000u;
    if (isnan(x)) {
        assert_int_equal(dq_f32_bf16(x), 0x7fff);
        assert_int_equal(dq_f32_f16(x), 0x7fff);
        return;
    }
    uint32_t bf16 = isinf(x) ? 0x7f80u : nearest((double)x, 0x7f7f, bf16_value);
    uint32_t f16 = fabsf(x) >= 65536.0f ? 0x7c00u : nearest((double)x, 0x7bff, f16_value);
    assert_int_equal(dq_f32_bf16(x), sign | bf16);
    assert_int_equal(dq_f32_f16(x), sign | f16);
    assert_int_equal(dq_f32x2_bf16(x, 1.0f), sign | bf16 | 0x3f800000u);
    assert_int_equal(dq_f32x2_bf16(-2.0f, x), (sign | bf16) << 16 | 0xc000u);
    assert_int_equal(dq_f32x2_f16(x, 1.0f), sign | f16 | 0x3c000000u);
    assert_int_equal(dq_f32x2_f16(-2.0f, x), (sign | f16) << 16 | 0xc000u);
}

TEST(test_narrow_floats)
{
    const uint32_t low_bits[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000,
                                 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff, 0xf000, 0xefff};
    for (uint32_t high = 0; high < 0x10000; high += 3)
        for (uint32_t low : low_bits) check_narrow(dq_bits_f32(high << 16 | low));
    for (uint32_t code = 0; code < 0x7c00; code++) {
        assert_true((double)dq_f16_f32((uint16_t)code) == f16_value(code));
        assert_true((double)dq_f16_f32((uint16_t)(code | 0x8000u)) == -f16_value(code));
        double tie = (f16_value(code) + f16_value(code + 1)) / 2;
        check_narrow((float)tie);
        check_narrow(nextafterf((float)tie, 0.0f));
        check_narrow(nextafterf((float)tie, 1e9f));
    }
    assert_true(isinf(dq_f16_f32(0xfc00)) && signbit(dq_f16_f32(0xfc00)));
    assert_true(isnan(dq_f16_f32(0x7c01)));
}

TEST(test_integers)
{
    for (int i = -1400; i <= 1400; i++) {
        float x = (float)i / 4.0f;
        int down = (int)floorf(x), whole = down;
        float rest = x - (float)down;
        if (rest > 0.5f || (rest == 0.5f && down % 2)) whole++;
        assert_int_equal(dq_f32_s32(x), whole);
        assert_int_equal(dq_f32_s8(x), whole < -128 ? -128 : whole > 127 ? 127 : whole);
        assert_true(dq_rint(x) == (float)whole);
    }
    assert_int_equal(dq_f32_s8(NAN), 0);
    assert_int_equal(dq_f32_s32(NAN), 0);
    assert_int_equal(dq_f32_s8(-INFINITY), -128);
    assert_int_equal(dq_f32_s8(3e38f), 127);
    assert_int_equal(dq_f32_s32(INFINITY), INT32_MAX);
    assert_int_equal(dq_f32_s32(-2147483648.0f), INT32_MIN);
    assert_int_equal(dq_f32_s32(-3e9f), INT32_MIN);
    assert_int_equal(dq_f32_s32(2147483520.0f), 2147483520);
    assert_true(dq_s32_f32(INT32_MIN) == -2147483648.0f && dq_s32_f32(16777217) == 16777216.0f);
    assert_true(dq_u8_f32(0xffffff80u) == 128.0f);
}

TEST(test_exponentials)
{
    double worst = 0;
    for (float x = -126.0f; x < 127.99f; x += 0.00317f)
        worst = fmax(worst, fabs((double)dq_exp2_fast(x) / exp2((double)x) - 1));
    assert_true(worst < 0x1p-22);
    assert_true(dq_exp2_fast(-INFINITY) == 0 && dq_exp2_fast(-126.5f) == 0);
}

TEST(test_exact_operations)
{
    float e = 0x1p-12f;
    assert_true(dq_add_rn(dq_mul_rn(1 + e, 1 + e), -1 - 2 * e) == 0); /* not contracted */
    assert_true(dq_fma_rn(1 + e, 1 + e, -1 - 2 * e) == 0x1p-24f);
    assert_true(dq_div_rn(1.0f, 3.0f) == 0x1.555556p-2f);
    assert_true(isinf(dq_div_rn(-1.0f, 0.0f)) && isnan(dq_div_rn(0.0f, 0.0f)));
    assert_true(dq_div_rn(1.0, -0.0) == -(double)INFINITY);
    assert_true(dq_sqrt_rn(2.0f) == 0x1.6a09e6p+0f);
    assert_true(dq_sqrt_rn(2.0) == 0x1.6a09e667f3bcdp+0 && dq_sub_rn(1.0, 0x1p-60) == 1.0);
    assert_true(fabs(dq_log(dq_exp(3.0)) - 3) < 1e-15);
    assert_true(dq_max(NAN, 1.0f) == 1.0f && dq_min(1.0f, NAN) == 1.0f &&
                dq_max(-1.0f, 2.0f) == 2.0f);
    assert_true(isnan(dq_max_nan(-NAN, 1.0f)) && isnan(dq_max_nan(INFINITY, NAN)) &&
                dq_max_nan(-1.0f, 2.0f) == 2.0f);
    assert_true(dq_fma_rn(1.0 + 0x1p-30, 1.0 + 0x1p-30, -1.0 - 0x1p-29) == 0x1p-60);
}
