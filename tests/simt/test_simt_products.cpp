/* test_simt_products: products of a warpgroup against plain loops, in every type, width and layout;
 * here or on a GPU, so that what the simulation computes is what a device does.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/hopper.cuh"
#include "tests/simt/fragments.h"
#include "tests/simt/numerics.h"

#include <vector>

NEEDS(check_hopper)

/* ------------------------------------------------------------------------------------------ products */
struct f16 {
    typedef float sum;
    enum { BYTES = 2, K = 16 };
    static uint16_t code(float x)
    {
        return numerics_f32_f16(x);
    }
    template <class... P> DQ_DEVICE void multiply(P &&...p)
    {
        dq_wgmma_f16(p...);
    }
};
struct bf16 : f16 {
    static uint16_t code(float x)
    {
        return numerics_f32_bf16(x);
    }
    template <class... P> DQ_DEVICE void multiply(P &&...p)
    {
        dq_wgmma_bf16(p...);
    }
};
struct s8 {
    typedef int32_t sum;
    enum { BYTES = 1, K = 32 };
    static uint8_t code(float x)
    {
        return (uint8_t)(int8_t)x;
    }
    template <class... P> DQ_DEVICE void multiply(P &&...p)
    {
        dq_wgmma_s8(p...);
    }
};

/* How an operand lies in shared memory: bytes between its parts. */
struct place {
    unsigned at, leading, stride, step; /* step: from one instruction's k to the next one's */
    dq_swizzle swizzle;
};

DQ_DEVICE uint64_t descriptor(const unsigned char *smem, const place &p, int step)
{
    return dq_make_descriptor(dq_smem_address(smem) + p.at + (unsigned)step * p.step, p.leading,
                              p.stride, p.swizzle);
}

/* d = A B over STEPS instructions; add: to what is there. A comes from fragments[STEPS][128][4], or
 * from the image. */
template <class T, int HALF, bool REGISTERS, int STEPS>
DQ_KERNEL(128)
product(typename T::sum *d, const unsigned char *image, int bytes, const uint32_t *fragments,
        place a, place b, bool add)
{
    DQ_SHARED_DYNAMIC(smem);
    for (int i = (int)dq_thread() * 16; i < bytes; i += 128 * 16)
        dq_store16(smem + i, dq_load16_const(image + i));
    dq_fence_async();
    dq_sync();
    dq_registers<typename T::sum, HALF> sum;
    dq_registers<uint32_t, 4 * STEPS> own;
    DQ_UNROLL
    for (int i = 0; i < HALF; i++) sum[i] = d[i * 128 + (int)dq_thread()];
    DQ_UNROLL
    for (int i = 0; i < 4 * STEPS; i++)
        own[i] = fragments[(i / 4 * 128 + (int)dq_thread()) * 4 + i % 4];
    dq_wgmma_fence();
    DQ_UNROLL
    for (int k = 0; k < STEPS; k++) {
        const uint64_t bd = descriptor(smem, b, k);
        if (REGISTERS)
            T::multiply(sum, own, 4 * k, bd, add || k > 0);
        else
            T::multiply(sum, descriptor(smem, a, k), bd, add || k > 0);
    }
    dq_wgmma_commit();
    dq_wgmma_wait<0>();
    dq_hold(sum);
    DQ_UNROLL
    for (int i = 0; i < HALF; i++) d[i * 128 + (int)dq_thread()] = sum[i];
}

/* Where the cell of row and k-cell (16 bytes) stands, read off the manual's figures of the
 * canonical layouts. */
static unsigned cell_at(const place &p, int k_bytes, int row, int cell)
{
    const int step = cell / 2, half = cell % 2;
    if (p.swizzle == DQ_SWIZZLE_NONE)
        return p.at + (unsigned)step * p.step + (unsigned)(row / 8) * p.stride +
               (unsigned)half * p.leading + (unsigned)(row % 8) * 16;
    const int width = p.swizzle == DQ_SWIZZLE_128  ? 8
                      : p.swizzle == DQ_SWIZZLE_64 ? 4
                                                   : 2; /* cells */
    assert_true(k_bytes <= 16 * width);
    /* An atom of 8 rows; line l of 128 bytes holds 8 / width rows; cells of a row are exchanged by
     * the number of the line. */
    const int line = row % 8 * width / 8;
    const int place_in_row = cell ^ (line % width);
    return p.at + (unsigned)(row / 8) * p.stride + (unsigned)(row % 8 * width * 16) +
           (unsigned)place_in_row * 16;
}

template <class T, int HALF, bool REGISTERS, dq_swizzle swizzle> static void check(bool add)
{
    typedef typename T::sum sum;
    enum { N = 2 * HALF, STEPS = swizzle == DQ_SWIZZLE_32 ? 1 : 2, K = STEPS * T::K };
    const unsigned rows_bytes = swizzle == DQ_SWIZZLE_NONE  ? 0
                                : swizzle == DQ_SWIZZLE_128 ? 128
                                : swizzle == DQ_SWIZZLE_64  ? 64
                                                            : 32;
    place a = {0, 64 * 16, 128, 2 * 64 * 16, swizzle},
          b = {16384, N * 16, 128, 2 * N * 16, swizzle};
    if (rows_bytes) {
        a = {0, 16, 8 * rows_bytes, 32, swizzle};
        b = {16384, 64, 8 * rows_bytes, 32, swizzle}; /* leading is not read */
    }
    check_random r = {(uint64_t)(HALF * 10 + (int)swizzle)};
    std::vector<float> x(64 * K), y(N * K);
    for (float &v : x) v = (float)(int)(r.bits() % 33) - 16;
    for (float &v : y) v = (float)(int)(r.bits() % 33) - 16;
    check_array<unsigned char> image(16384 + 256 * 128);
    check_array<uint32_t> fragments(STEPS * 128 * 4);
    check_array<sum> d(HALF * 128);
    const int per = 16 / T::BYTES;
    for (int k = 0; k < K; k++) {
        for (int row = 0; row < 64; row++) {
            const auto code = T::code(x[row * K + k]);
            memcpy(image.host + cell_at(a, K * T::BYTES, row, k / per) + k % per * T::BYTES, &code,
                   T::BYTES);
        }
        for (int row = 0; row < N; row++) {
            const auto code = T::code(y[row * K + k]);
            memcpy(image.host + cell_at(b, K * T::BYTES, row, k / per) + k % per * T::BYTES, &code,
                   T::BYTES);
        }
    }
    for (int s = 0; s < STEPS; s++)
        for (int w = 0; w < 4; w++) {
            uint32_t frag[32][4];
            decltype(T::code(0)) part[16][T::K];
            for (int i = 0; i < 16; i++)
                for (int k = 0; k < T::K; k++)
                    part[i][k] = T::code(x[(16 * w + i) * K + s * T::K + k]);
            if (T::BYTES == 1)
                fragments_a8(frag, (const uint8_t *)part);
            else
                fragments_a16(frag, (const uint16_t *)part);
            memcpy(fragments.host + (s * 128 + 32 * w) * 4, frag, sizeof frag);
        }
    for (size_t i = 0; i < d.n; i++) d.host[i] = (sum)(int)(r.bits() % 100);
    std::vector<sum> before(d.host, d.host + d.n);
    image.put();
    fragments.put();
    d.put();
    DQ_LAUNCH((product<T, HALF, REGISTERS, STEPS>), 1, 128, 16384 + 256 * 128, NULL, d.device,
              image.device, (int)image.n, fragments.device, a, b, add);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    d.get();
    assert_string_equal(dq_simt_report(), "");
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < HALF; i++) {
            const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2);
            const int column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
            double expected = add ? (double)before[(size_t)(i * 128 + t)] : 0;
            for (int k = 0; k < K; k++) expected += (double)(x[row * K + k] * y[column * K + k]);
            assert_true((double)d.host[i * 128 + t] == expected);
        }
}

template <class T, bool REGISTERS> static void check_layouts(void)
{
    check<T, 32, REGISTERS, DQ_SWIZZLE_NONE>(false);
    check<T, 64, REGISTERS, DQ_SWIZZLE_NONE>(true);
    check<T, 96, REGISTERS, DQ_SWIZZLE_NONE>(false);
    check<T, 128, REGISTERS, DQ_SWIZZLE_NONE>(true);
    check<T, 32, REGISTERS, DQ_SWIZZLE_32>(false);
    check<T, 64, REGISTERS, DQ_SWIZZLE_64>(true);
    check<T, 128, REGISTERS, DQ_SWIZZLE_128>(false);
}

template <class T> static void check_type(void)
{
    check_layouts<T, false>();
    check_layouts<T, true>();
}

TEST(test_f16)
{
    check_type<f16>();
    dq_each_order([] { check<f16, 32, true, DQ_SWIZZLE_NONE>(true); });
}

TEST(test_bf16)
{
    check_type<bf16>();
}

TEST(test_s8)
{
    check_type<s8>();
}

DQ_KERNEL(32) descriptors(uint64_t *out)
{
    if (dq_lane()) return;
    out[0] = dq_make_descriptor(0x12340, 1024, 128, DQ_SWIZZLE_NONE);
    out[1] = dq_make_descriptor(0x3fff0, 0x3fff0, 0x3fff0, DQ_SWIZZLE_32);
    out[2] = dq_make_descriptor(0, 16, 32, DQ_SWIZZLE_128);
}

TEST(test_descriptor)
{
    check_array<uint64_t> out(3);
    DQ_LAUNCH(descriptors, 1, 32, 0, NULL, out.device);
    out.get();
    assert_true(out.host[0] == 0x0000000800401234u);
    assert_true(out.host[1] == 0xc0003fff3fff3fffu);
    assert_true(out.host[2] == 0x4000000200010000u);
}
