/* test_simt_wgmma: what is said of products of a warpgroup that are wrong, and of registers that
 * warpgroups hand over.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/hopper.cuh"

NEEDS(check_hopper)

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
    NOT_HELD,
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
    if (which != NOT_HELD && which != READ_EARLY && which != NOT_COMMITTED) dq_hold(d);
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
        {NOT_HELD, "are touched without a dq_hold after the wait"},
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
        check_report(row.report);
    }
    DQ_LAUNCH(broken, 1, 64, 8192, NULL, RIGHT, out.device, x.device);
    check_report("warp 0 is in no whole warpgroup");
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH(broken, 1, 128, 8192, NULL, RIGHT, out.device, x.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        assert_true(out.host[77] == 16 * numerics_f16_f32(0x3c3c));
    });
}

/* However long a thread looks, some products read their operands only when they are waited for, and
 * others have. */
DQ_KERNEL(128) patient(float *out)
{
    DQ_SHARED_DYNAMIC(smem);
    ((uint32_t *)smem)[dq_thread()] = 0;
    dq_fence_async();
    dq_sync();
    dq_registers<float, 32> d;
    const uint64_t b = dq_make_descriptor(dq_smem_address(smem), 1024, 128, DQ_SWIZZLE_NONE);
    dq_wgmma_fence();
    dq_wgmma_f16(d, b, b, false);
    dq_wgmma_commit();
    dq_sync(); /* all warps have started it */
    for (int i = 0; i < 100; i++) dq_ballot(true);
    dq_sync();
    if (dq_thread() == 0) smem[0] = 1;
    dq_sync();
    dq_wgmma_wait<0>();
    dq_hold(d);
    out[dq_thread()] = d[0];
}

TEST(test_moments)
{
    check_array<float> out(128);
    int late = 0;
    dq_simt_set_quiet(1);
    for (uint64_t seed = 1; seed <= 16; seed++) {
        dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
        DQ_LAUNCH(patient, 1, 128, 8192, NULL, out.device);
        late += cudaDeviceSynchronize() != cudaSuccess;
        dq_simt_reset();
    }
    dq_simt_set_quiet(0);
    assert_in_range(late, 4, 12);
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* ------------------------------------------------------------------------------------------- registers */
enum wrong_registers { HALF_GROUP, TOO_MANY, LESS, MORE, LANES, AT_ONCE, WELL, FROM_LAST };

DQ_KERNEL(384) hand_over(int which, uint32_t *out)
{
    if (which == FROM_LAST ? dq_warp() >= 8 : dq_warp() < 4) {
        if (which == HALF_GROUP && dq_warp() < 2) return;
        if (which == MORE) dq_setmaxnreg_dec<240>();
        if (which == TOO_MANY)
            dq_setmaxnreg_dec<40>();
        else
            dq_setmaxnreg_dec<24>();
        if (which != AT_ONCE) dq_bar_sync(1, 128);
        if (which == AT_ONCE || which == WELL) dq_setmaxnreg_dec<24>();
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
        {AT_ONCE, "setmaxnreg: warp 0 has met no barrier since that of line"},
        {LANES, "setmaxnreg: the warps of a warpgroup do not meet: 232 registers for warp 5"},
    };
    check_array<uint32_t> out(384);
    dq_simt_set_quiet(1);
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
    for (const auto &row : rows) {
        DQ_LAUNCH(hand_over, 1, 384, 0, NULL, row.which, out.device);
        check_report(row.report);
    }
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH(hand_over, 1, 384, 0, NULL, WELL, out.device);
        DQ_LAUNCH(hand_over, 1, 384, 0, NULL, FROM_LAST, out.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
    });
}
