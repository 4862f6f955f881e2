/* test_simt_wgmma: products of a warpgroup against plain loops, in every type, width and layout, and registers that warpgroups hand
 * over; and what is said of kernels that are wrong.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/hopper.cuh"
#include "tests/simt/fragments.h"

#include <vector>

static const bool hopper __attribute__((unused)) = (dq_simt_set_capability(90), true);

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

/* d = A B over `steps` instructions; add: to what is there. Fragments: of A, [steps][128][4], or none, and A is in the image. */
template <class T, int HALF>
DQ_KERNEL(128)
product(typename T::sum *d, const unsigned char *image, int bytes, const uint32_t *fragments,
        place a, place b, int steps, bool add)
{
    DQ_SHARED_DYNAMIC(smem);
    for (int i = (int)dq_thread(); i < bytes; i += 128) smem[i] = image[i];
    dq_fence_async();
    dq_sync();
    dq_registers<typename T::sum, HALF> sum;
    dq_registers<uint32_t, 16> own;
    if (add)
        for (int i = 0; i < HALF; i++) sum[i] = d[i * 128 + (int)dq_thread()];
    if (fragments)
        for (int i = 0; i < 4 * steps; i++)
            own[i] = fragments[(i / 4 * 128 + (int)dq_thread()) * 4 + i % 4];
    dq_wgmma_fence();
    for (int k = 0; k < steps; k++) {
        const uint64_t bd = descriptor(smem, b, k);
        if (fragments)
            T::multiply(sum, own, 4 * k, bd, add || k);
        else
            T::multiply(sum, descriptor(smem, a, k), bd, add || k);
    }
    dq_wgmma_commit();
    dq_wgmma_wait<0>();
    for (int i = 0; i < HALF; i++) d[i * 128 + (int)dq_thread()] = sum[i];
}

/* Where the cell of row and k-cell (16 bytes) stands, read off the manual's figures of the canonical layouts. */
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
    /* An atom of 8 rows; line l of 128 bytes holds 8 / width rows; cells of a row are exchanged by the number of the line. */
    const int line = row % 8 * width / 8;
    const int place_in_row = cell ^ (line % width);
    return p.at + (unsigned)(row / 8) * p.stride + (unsigned)(row % 8 * width * 16) +
           (unsigned)place_in_row * 16;
}

template <class T, int HALF> static void check(bool registers, dq_swizzle swizzle, bool add)
{
    typedef typename T::sum sum;
    enum { N = 2 * HALF, STEPS = 2, K = STEPS * T::K, CELLS = 2 * STEPS };
    const unsigned rows_bytes = swizzle == DQ_SWIZZLE_NONE  ? 0
                                : swizzle == DQ_SWIZZLE_128 ? 128
                                : swizzle == DQ_SWIZZLE_64  ? 64
                                                            : 32;
    const int steps = swizzle == DQ_SWIZZLE_32 ? 1 : STEPS, depth = steps * T::K;
    place a = {0, 64 * 16, 128, 2 * 64 * 16, swizzle},
          b = {16384, N * 16, 128, 2 * N * 16, swizzle};
    if (rows_bytes) {
        a = {0, 16, 8 * rows_bytes, 32, swizzle};
        b = {16384, 16, 8 * rows_bytes, 32, swizzle};
    }
    check_random r = {(uint64_t)(HALF * 10 + (int)swizzle)};
    std::vector<float> x(64 * K), y(N * K);
    for (float &v : x) v = (float)(int)(r.bits() % 33) - 16;
    for (float &v : y) v = (float)(int)(r.bits() % 33) - 16;
    check_array<unsigned char> image(16384 + 256 * 128);
    check_array<uint32_t> fragments(STEPS * 128 * 4);
    check_array<sum> d(HALF * 128);
    const int per = 16 / T::BYTES;
    for (int k = 0; k < depth; k++) {
        for (int row = 0; row < 64; row++) {
            const auto code = T::code(x[row * K + k]);
            memcpy(image.host + cell_at(a, depth * T::BYTES, row, k / per) + k % per * T::BYTES,
                   &code, T::BYTES);
        }
        for (int row = 0; row < N; row++) {
            const auto code = T::code(y[row * K + k]);
            memcpy(image.host + cell_at(b, depth * T::BYTES, row, k / per) + k % per * T::BYTES,
                   &code, T::BYTES);
        }
    }
    for (int s = 0; s < steps; s++)
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
    DQ_LAUNCH((product<T, HALF>), 1, 128, 16384 + 256 * 128, NULL, d.device, image.device,
              (int)image.n, registers ? fragments.device : NULL, a, b, steps, add);
    d.get();
    assert_string_equal(dq_simt_report(), "");
    for (int t = 0; t < 128; t++)
        for (int i = 0; i < HALF; i++) {
            const int row = 16 * (t / 32) + t % 32 / 4 + 8 * (i / 2 % 2);
            const int column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
            double expected = add ? (double)before[(size_t)(i * 128 + t)] : 0;
            for (int k = 0; k < depth; k++)
                expected += (double)(x[row * K + k] * y[column * K + k]);
            assert_true((double)d.host[i * 128 + t] == expected);
        }
}

template <class T> static void check_type(void)
{
    DQ_ALLOW_SMEM((product<T, 32>), 65536);
    DQ_ALLOW_SMEM((product<T, 64>), 65536);
    DQ_ALLOW_SMEM((product<T, 96>), 65536);
    DQ_ALLOW_SMEM((product<T, 128>), 65536);
    for (int registers = 0; registers < 2; registers++) {
        check<T, 32>(registers, DQ_SWIZZLE_NONE, false);
        check<T, 64>(registers, DQ_SWIZZLE_NONE, true);
        check<T, 96>(registers, DQ_SWIZZLE_NONE, false);
        check<T, 128>(registers, DQ_SWIZZLE_NONE, true);
        check<T, 32>(registers, DQ_SWIZZLE_32, false);
        check<T, 64>(registers, DQ_SWIZZLE_64, true);
        check<T, 128>(registers, DQ_SWIZZLE_128, false);
    }
}

TEST(test_f16)
{
    check_type<f16>();
    dq_each_order([] { check<f16, 32>(true, DQ_SWIZZLE_NONE, true); });
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

/* -------------------------------------------------------------------------------------- wrong products */
enum wrong {
    READ_EARLY,
    CHANGED_EARLY,
    NOT_COMMITTED,
    WAIT_TOO_SMALL,
    NO_FENCE,
    NO_FENCE_A,
    ODD_STRIDE,
    OUTSIDE,
    OFF_1024,
    BASE_OFFSET,
    SPARE_BITS,
    LANE_MISSING,
    LANE_DIFFERS,
    WARP_DIFFERS,
    WARP_MISSING,
    WARP_COMMITS,
    UNSEEN,
    RETURNS,
    RETURNS_OPEN,
    GONE,
    WRITTEN,
    COPIED,
    UNDER_COPY,
    BEYOND,
    RIGHT
};

DQ_KERNEL(128) broken(int which, float *out, const unsigned char *x)
{
    DQ_SHARED_DYNAMIC(smem);
    DQ_SHARED(dq_mbarrier, m, [1]);
    const unsigned thread = dq_thread(), warp = dq_warp();
    for (unsigned i = thread; i < 8192; i += 128) smem[i] = 0x3c; /* a number of f16 near 1 */
    if (which != UNSEEN || warp != 2) dq_fence_async();
    if (thread == 0) {
        DQ_MBARRIER_INIT(m, 1);
        dq_fence_mbarrier_init();
    }
    dq_sync();
    dq_registers<float, 32> d;
    dq_registers<uint32_t, 4> a;
    for (int i = 0; i < 4; i++) a[i] = 0x3c003c00u;
    const unsigned at = dq_smem_address(smem);
    uint64_t b = dq_make_descriptor(at, 1024, which == ODD_STRIDE ? 136 : 128, DQ_SWIZZLE_NONE);
    if (which == OUTSIDE) b = dq_make_descriptor(at + 8192 - 1024, 1024, 128, DQ_SWIZZLE_NONE);
    if (which == OFF_1024) b = dq_make_descriptor(at + 128, 16, 1024, DQ_SWIZZLE_128);
    if (which == BASE_OFFSET) b |= (uint64_t)1 << 49;
    if (which == SPARE_BITS) b |= (uint64_t)1 << 30;
    if (which == LANE_DIFFERS && thread == 37) b += 2;
    if (which == WARP_DIFFERS && warp == 2) b += 2;
    if (which == UNDER_COPY && thread == 0) {
        dq_mbarrier_arrive_expect(m, 64);
        dq_bulk_copy(smem + 1024, x, 64, m);
    }
    if (which == WARP_COMMITS && warp == 3) dq_wgmma_commit();
    if (which != NO_FENCE) dq_wgmma_fence();
    if (which == NO_FENCE_A) a[2] = 0;
    if (!(which == LANE_MISSING && thread == 69) && !(which == WARP_MISSING && warp == 3))
        dq_wgmma_f16(d, a, which == BEYOND ? 1 : 0, b, false);
    if (which == CHANGED_EARLY) a[1] = 0;
    if (which == WRITTEN && thread == 5) smem[100] = 1;
    if (which == COPIED && thread == 0) {
        dq_mbarrier_arrive_expect(m, 64);
        dq_bulk_copy(smem + 1024, x, 64, m);
    }
    if (which == GONE) {
        dq_registers<float, 32> e;
        dq_wgmma_fence();
        dq_wgmma_f16(e, b, b, false);
        dq_wgmma_commit();
    }
    if (which == RETURNS_OPEN) return;
    if (which != NOT_COMMITTED) dq_wgmma_commit();
    if (which == RETURNS) return;
    if (which == WAIT_TOO_SMALL)
        dq_wgmma_wait<1>();
    else if (which != READ_EARLY)
        dq_wgmma_wait<0>();
    out[thread] = d[0];
}

TEST(test_wrong)
{
    static const struct {
        wrong which;
        const char *report;
    } rows[] = {
        {READ_EARLY, "accumulators of the wgmma of line"},
        {READ_EARLY, "are touched before the wait that covers it"},
        {CHANGED_EARLY, "registers of A of the wgmma of line"},
        {NOT_COMMITTED, "are touched before it is committed and waited for"},
        {WAIT_TOO_SMALL, "are touched before the wait that covers it"},
        {NO_FENCE, "dq_wgmma_f16: no dq_wgmma_fence since its accumulators were touched"},
        {NO_FENCE_A, "dq_wgmma_f16: no dq_wgmma_fence since its registers of A were touched"},
        {ODD_STRIDE, "descriptor: 136 is no multiple of 16"},
        {OUTSIDE, "descriptor of B: row 0, cell 1 is byte 8192, outside the block's shared memory"},
        {OFF_1024, "descriptor of B: byte 128 does not start a swizzle of 128 bytes, which repeats "
                   "every 1024"},
        {BASE_OFFSET, "descriptor of B: base offset 1 is not simulated"},
        {SPARE_BITS, "descriptor of B: bits are set that have no meaning"},
        {LANE_MISSING, "dq_wgmma_commit (mask ffffffff) meets dq_wgmma_f16 (mask ffffffff, line"},
        {LANE_DIFFERS, "lanes 0 and 5 of warp 1 start different products"},
        {WARP_DIFFERS, "the warps of a warpgroup do not meet: warp 2 starts that of line"},
        {WARP_MISSING, "for the wgmma of line"},
        {WARP_COMMITS, "the warps of a warpgroup do not meet: warp 3 starts that of line"},
        {UNSEEN, "of shared memory, which thread 67 has written without a dq_fence_async since"},
        {RETURNS, "are gone before the wait that covers it"},
        {RETURNS_OPEN, "are gone before it is committed and waited for"},
        {GONE, "are gone before the wait that covers it"},
        {WRITTEN, "thread 5 writes byte 100 of shared memory, which the wgmma of line"},
        {COPIED, "dq_bulk_copy to byte 1024 of the shared memory of block (0,0,0), which the wgmma "
                 "of line"},
        {UNDER_COPY, "reads byte 1024 of shared memory, to which a bulk copy is on its way"},
        {BEYOND, "A: registers 1.. of 4"},
    };
    check_array<float> out(128);
    check_array<unsigned char> x(64);
    dq_simt_set_quiet(1);
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0); /* as late as can be */
    for (const auto &row : rows) {
        DQ_LAUNCH(broken, 1, 128, 8192, NULL, row.which, out.device, x.device);
        dq_report_has(row.report);
    }
    DQ_LAUNCH(broken, 1, 64, 8192, NULL, RIGHT, out.device, x.device);
    dq_report_has("warp 0 is in no whole warpgroup");
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH(broken, 1, 128, 8192, NULL, RIGHT, out.device, x.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        assert_true(out.host[77] == 16 * numerics_f16_f32(0x3c3c));
    });
}

/* ------------------------------------------------------------------------------------------- registers */
enum wrong_registers { HALF_GROUP, TOO_MANY, LESS, MORE, LANES, WELL };

DQ_KERNEL(384) hand_over(int which, uint32_t *out)
{
    if (dq_warp() < 4) {
        if (which == HALF_GROUP && dq_warp() < 2) return;
        if (which == MORE) dq_setmaxnreg_dec<240>();
        if (which == TOO_MANY)
            dq_setmaxnreg_dec<40>();
        else
            dq_setmaxnreg_dec<24>();
    } else {
        if (which == LESS) dq_setmaxnreg_inc<24>();
        if (which == LANES && dq_warp() == 5) dq_setmaxnreg_inc<232>();
        dq_setmaxnreg_inc<240>();
    }
    out[dq_thread()] = 1;
}

TEST(test_registers)
{
    static const struct {
        wrong_registers which;
        const char *report;
    } rows[] = {
        {HALF_GROUP, "0 more are free; warps c of warpgroup 0 alone set 24, line"},
        {TOO_MANY, "for 240 registers a thread: warps f of the warpgroup are there, it has 168, 56 "
                   "more are free"},
        {LESS, "dq_setmaxnreg_inc to 24 registers of a warpgroup that has 168"},
        {MORE, "dq_setmaxnreg_dec to 240 registers of a warpgroup that has 168"},
        {LANES, "setmaxnreg: the warps of a warpgroup do not meet: 232 registers for warp 5"},
    };
    check_array<uint32_t> out(384);
    dq_simt_set_quiet(1);
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
    for (const auto &row : rows) {
        DQ_LAUNCH(hand_over, 1, 384, 0, NULL, row.which, out.device);
        dq_report_has(row.report);
    }
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH(hand_over, 1, 384, 0, NULL, WELL, out.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
    });
}
