/* test_simt: what threads do together: indices, barriers, shuffles, votes, atomics; and the reports about
 * kernels that are wrong.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/ptx.cuh"

/* ------------------------------------------------------------------------------------------ indices */
DQ_KERNEL(64) indices(uint32_t *out)
{
    unsigned block = (dq_block_z() * dq_grid_y() + dq_block_y()) * dq_grid_x() + dq_block_x();
    uint32_t *o = out + (block * dq_threads() + dq_thread()) * 2;
    o[0] = dq_warp() * 100 + dq_lane();
    o[1] = dq_grid_z();
}

TEST(test_indices)
{
    check_array<uint32_t> out(3 * 2 * 4 * 64 * 2);
    DQ_LAUNCH(indices, dim3(3, 2, 4), 64, 0, NULL, out.device);
    out.get();
    for (size_t i = 0; i < out.n / 2; i++) {
        assert_int_equal(out.host[2 * i], i % 64 / 32 * 100 + i % 32);
        assert_int_equal(out.host[2 * i + 1], 4);
    }
}

/* ------------------------------------------------------------------------------- shuffles and votes */
DQ_KERNEL(64) shuffles(uint32_t *x, float *f, double *d)
{
    unsigned t = dq_thread(), lane = dq_lane();
    x[4 * t] = dq_shfl(t * 3, lane + 5);
    x[4 * t + 1] = dq_shfl_xor(t * 3, 9);
    x[4 * t + 2] = dq_shfl_down(t * 3, 7);
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    x[4 * t + 3] = dq_shfl_xor(t * 3, 3, half);
    f[t] = dq_shfl(-0.5f * (float)t, 2);
    d[t] = dq_shfl_xor((double)t * 1e100, 16);
}

TEST(test_shuffles)
{
    check_array<uint32_t> x(256);
    check_array<float> f(64);
    check_array<double> d(64);
    dq_each_order([&] {
        DQ_LAUNCH(shuffles, 1, 64, 0, NULL, x.device, f.device, d.device);
        x.get();
        f.get();
        d.get();
        for (unsigned t = 0; t < 64; t++) {
            unsigned base = t & 32u, lane = t % 32;
            assert_int_equal(x.host[4 * t], 3 * (base + (lane + 5) % 32));
            assert_int_equal(x.host[4 * t + 1], 3 * (base + (lane ^ 9u)));
            assert_int_equal(x.host[4 * t + 2], 3 * (base + (lane + 7 < 32 ? lane + 7 : lane)));
            assert_int_equal(x.host[4 * t + 3], 3 * (base + (lane ^ 3u)));
            assert_true(f.host[t] == -0.5f * (float)(base + 2));
            assert_true(d.host[t] == (double)(t ^ 16u) * 1e100);
        }
    });
}

DQ_KERNEL(32) votes(uint32_t *out, uint32_t yes, uint32_t mask)
{
    unsigned lane = dq_lane();
    if (!(mask >> lane & 1u)) return;
    bool p = yes >> lane & 1u;
    out[3 * lane] = dq_ballot(p, mask);
    out[3 * lane + 1] = dq_any(p, mask);
    out[3 * lane + 2] = dq_all(p, mask);
}

TEST(test_votes)
{
    check_random r = {7};
    check_array<uint32_t> out(96);
    for (int i = 0; i < 40; i++) {
        uint32_t mask = i % 2 ? DQ_LANES : r.bits() | 1u;
        uint32_t yes = i % 5 == 0 ? DQ_LANES : i % 5 == 1 ? 0 : r.bits();
        DQ_LAUNCH(votes, 1, 32, 0, NULL, out.device, yes, mask);
        out.get();
        for (int lane = 0; lane < 32; lane++) {
            if (!(mask >> lane & 1u)) continue;
            assert_int_equal(out.host[3 * lane], yes & mask);
            assert_int_equal(out.host[3 * lane + 1], (yes & mask) != 0);
            assert_int_equal(out.host[3 * lane + 2], (yes & mask) == mask);
        }
    }
}

/* ----------------------------------------------------------------------------------------- barriers */
/* Warp 1 fills a buffer of two halves, warps 2 and 3 add it up; warp 0 returns at once. */
DQ_KERNEL(128) handover(uint32_t *out, int rounds)
{
    DQ_SHARED(uint32_t, box, [2][32]);
    unsigned w = dq_warp(), lane = dq_lane();
    if (w == 0) return;
    dq_sync(); /* without warp 0 */
    uint32_t sum = 0;
    for (int i = 0; i < rounds; i++) {
        unsigned half = (unsigned)i & 1u, full = 1 + half, empty = 3 + half;
        if (w == 1) {
            if (i >= 2) dq_bar_sync(empty, 96);
            box[half][lane] = (uint32_t)i * 100 + lane;
            dq_bar_arrive(full, 96);
        } else {
            dq_bar_sync(full, 96);
            sum += box[half][lane];
            if (i + 2 < rounds) dq_bar_arrive(empty, 96);
        }
    }
    if (w > 1) out[32 * (w - 2) + lane] = sum;
}

TEST(test_named_barriers)
{
    check_array<uint32_t> out(64);
    dq_each_order([&] {
        DQ_LAUNCH(handover, 1, 128, 0, NULL, out.device, 7);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        for (unsigned i = 0; i < 64; i++) assert_int_equal(out.host[i], 2100 + 7 * (i % 32));
    });
}

/* ------------------------------------------------------------------------------------------- blocks */
DQ_KERNEL(64) log_blocks(uint32_t *entry, uint32_t *n, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        dq_sync();
        if (dq_thread() == 0) entry[dq_atomic_add(n, 1u)] = dq_block_x();
    }
}

/* Two blocks go on side by side: what they log is mixed. */
TEST(test_side_by_side)
{
    dq_each_order([] {
        check_array<uint32_t> entry(40), n(1);
        uint32_t turns = 0;
        n.put();
        DQ_LAUNCH(log_blocks, 2, 64, 0, NULL, entry.device, n.device, 20);
        entry.get();
        assert_string_equal(dq_simt_report(), "");
        for (int i = 1; i < 40; i++) turns += entry.host[i] != entry.host[i - 1];
        assert_true(turns > 2);
    });
}

DQ_KERNEL(32) mark_block(uint32_t *mark)
{
    if (dq_thread() == 0)
        mark[(dq_block_z() * dq_grid_y() + dq_block_y()) * dq_grid_x() + dq_block_x()] = 1;
}

TEST(test_corners)
{
    check_array<uint32_t> mark(5 * 2 * 8);
    mark.put();
    dq_simt_set_corners(1);
    DQ_LAUNCH(mark_block, dim3(5, 2, 8), 32, 0, NULL, mark.device);
    dq_simt_set_corners(0);
    mark.get();
    for (int i = 0; i < 5 * 2 * 8; i++) {
        const int x = i % 5, z = i / 10;
        assert_int_equal(mark.host[i], x % 2 == 0 && (z == 0 || z == 4 || z == 7));
    }
}

/* Lanes take turns in shared memory with no barrier but the warp's. */
DQ_KERNEL(64) neighbours(uint32_t *out)
{
    DQ_SHARED(uint32_t, x, [64]);
    x[dq_thread()] = dq_thread();
    dq_warp_sync();
    uint32_t v = x[dq_thread() ^ 1u];
    dq_warp_sync();
    x[dq_thread()] = v + 1;
    dq_warp_sync();
    out[dq_thread()] = x[dq_thread() ^ 1u];
}

TEST(test_warp_sync)
{
    check_array<uint32_t> out(64);
    dq_each_order([&] {
        DQ_LAUNCH(neighbours, 1, 64, 0, NULL, out.device);
        out.get();
        for (unsigned i = 0; i < 64; i++) assert_int_equal(out.host[i], i + 1);
    });
}

/* Every block finds poison, whatever the one before left; distinct variables do not overlap. */
DQ_KERNEL(32) first_look(uint32_t *out)
{
    DQ_SHARED(uint32_t, a, [3]);
    DQ_SHARED(uint32_t, b, [1]);
    DQ_SHARED_DYNAMIC(dynamic);
    if (dq_thread()) return;
    uint32_t *d = (uint32_t *)(void *)dynamic;
    uint32_t *o = out + 3 * dq_block_x();
    o[0] = a[2];
    o[1] = b[0];
    o[2] = d[7];
    a[2] = 1;
    b[0] = 2;
    d[7] = 3;
    if (a[2] + b[0] + d[7] != 6 || (uintptr_t)dynamic % 1024) o[0] = 0;
}

TEST(test_shared_memory_is_poisoned)
{
    check_array<uint32_t> out(3 * 5);
    DQ_LAUNCH(first_look, 5, 32, 32, NULL, out.device);
    out.get();
    for (size_t i = 0; i < out.n; i++) assert_int_equal(out.host[i], 0xa5a5a5a5u);
}

/* ------------------------------------------------------------------------------------------ atomics */
struct totals {
    uint64_t u64;
    double f64;
    uint32_t u32, max_u32, cas;
    int32_t max_i32;
    float f32;
};

DQ_KERNEL(64) count_up(totals *t, uint32_t *last_block)
{
    DQ_SHARED(uint32_t, local, [1]);
    unsigned i = dq_block_x() * dq_threads() + dq_thread();
    if (dq_thread() == 0) local[0] = 0;
    dq_sync();
    dq_atomic_add(&local[0], 1u);
    dq_sync();
    if (dq_thread() == 0) dq_atomic_add(&t->u32, local[0]);
    dq_atomic_add(&t->u64, (uint64_t)1 << 33);
    dq_atomic_add(&t->f32, 0.5f);
    dq_atomic_add(&t->f64, 0.25);
    dq_atomic_max(&t->max_u32, i ^ 0x80000000u);
    dq_atomic_max(&t->max_i32, -5 - (int32_t)i);
    for (uint32_t seen = t->cas;;) {
        uint32_t was = dq_atomic_cas(&t->cas, seen, seen + 2);
        if (was == seen) break;
        seen = was;
    }
    dq_fence();
    if (dq_thread() == 0 && dq_atomic_add(last_block, 1u) == dq_grid_x() - 1)
        *last_block = 1000 + dq_load_fresh(&t->u32);
}

TEST(test_atomics)
{
    for (int workers = 1; workers <= 3; workers++) {
        check_array<totals> t(1);
        check_array<uint32_t> last(1);
        memset(t.host, 0, sizeof *t.host);
        t.host->max_i32 = -1000000;
        t.put();
        last.put();
        dq_simt_set_workers(workers);
        DQ_LAUNCH(count_up, 20, 64, 0, NULL, t.device, last.device);
        t.get();
        last.get();
        assert_int_equal(t.host->u32, 1280);
        assert_true(t.host->u64 == (uint64_t)1280 << 33);
        assert_true(t.host->f32 == 640.0f && t.host->f64 == 320.0);
        assert_int_equal(t.host->max_u32, 1279 ^ 0x80000000u);
        assert_int_equal(t.host->max_i32, -5);
        assert_int_equal(t.host->cas, 2560);
        assert_int_equal(last.host[0], 2280);
    }
    dq_simt_set_workers(1);
}

/* ------------------------------------------------------------------------------------------ reports */
static void report_has(const char *a, const char *b)
{
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    const char *report = dq_simt_report();
    if (!strstr(report, a) || !strstr(report, b))
        fail_msg("the report lacks \"%s\" or \"%s\": %s", a, b, report);
    /* As on a device, nothing works any more. */
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    dq_simt_reset();
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

DQ_KERNEL(64) left_alone(uint32_t *out)
{
    if (dq_block_x() == 1 && dq_warp() == 1 && dq_lane() > 3) out[0] = dq_shfl_xor(dq_lane(), 1);
    dq_sync();
}

DQ_KERNEL(64) half_barrier(uint32_t *out)
{
    if (dq_warp() == 0) dq_sync();
    if (dq_warp() == 1) dq_bar_sync(5, 64);
    out[0] = 1;
}

DQ_KERNEL(32) two_kinds(uint32_t *out)
{
    if (dq_lane() < 16)
        out[0] = dq_any(true);
    else
        out[1] = dq_shfl(1u, 0);
}

DQ_KERNEL(32) two_masks(uint32_t *out)
{
    out[dq_lane()] = dq_ballot(true, dq_lane() == 9 ? 0xffffu : DQ_LANES);
}

DQ_KERNEL(32) foreign_mask(uint32_t *out)
{
    out[0] = dq_ballot(true, 0xffu);
}

DQ_KERNEL(32) foreign_source(uint32_t *out)
{
    if (dq_lane() < 16) out[0] = dq_shfl(1u, 20, 0xffffu);
}

DQ_KERNEL(64) two_counts(uint32_t *out)
{
    dq_bar_sync(2, dq_warp() ? 64 : 32 * (1 + out[0]));
}

DQ_KERNEL(32) crooked_matrix(uint32_t *out)
{
    DQ_SHARED(uint32_t, x, [128]);
    uint32_t r[2];
    dq_ldmatrix_x2(r, (unsigned char *)x + 16 * (dq_lane() % 16) + 4);
    out[0] = r[0];
}

DQ_KERNEL(32) matrix_elsewhere(uint32_t *out)
{
    uint32_t r[4];
    dq_ldmatrix_x4(r, out);
    out[0] = r[0];
}

DQ_KERNEL(32) crooked_copy(uint32_t *out)
{
    DQ_SHARED(uint32_t, x, [128]);
    dq_cp_async16(x + 4 * dq_lane(), out + 1);
}

DQ_KERNEL(32) crooked_load(uint32_t *out)
{
    out[0] = dq_load16(out + 2).x;
}

TEST(test_reports)
{
    check_array<uint32_t> out(256);
    dq_simt_set_quiet(1);
    dq_each_order([&] {
        out.put(); /* zeros */
        DQ_LAUNCH(left_alone, 3, 64, 0, NULL, out.device);
        report_has("kernel left_alone, block (1,0,0): deadlock",
                   "warp 1 lanes 4-31 wait in dq_shfl_xor");
        DQ_LAUNCH(left_alone, 3, 64, 0, NULL, out.device);
        report_has("warp 1 lanes 0-3 wait in dq_sync", "for lanes 0000000f");
        DQ_LAUNCH(half_barrier, 1, 64, 0, NULL, out.device);
        report_has("lanes 0-31 wait in dq_sync", "wait at barrier 5");
        DQ_LAUNCH(two_kinds, 1, 32, 0, NULL, out.device);
        report_has("dq_any", "dq_shfl");
        DQ_LAUNCH(two_masks, 1, 32, 0, NULL, out.device);
        report_has("mask 0000ffff", "mask ffffffff");
        DQ_LAUNCH(foreign_mask, 1, 32, 0, NULL, out.device);
        report_has("is not in its own mask", "dq_ballot");
        DQ_LAUNCH(foreign_source, 1, 32, 0, NULL, out.device);
        report_has("reads lane 20", "dq_shfl");
        DQ_LAUNCH(two_counts, 1, 64, 0, NULL, out.device);
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
        dq_simt_reset();
        DQ_LAUNCH(crooked_matrix, 1, 32, 0, NULL, out.device);
        report_has("dq_ldmatrix_x2", "is not a multiple of 16");
        DQ_LAUNCH(matrix_elsewhere, 1, 32, 0, NULL, out.device);
        report_has("dq_ldmatrix_x4", "is not in the block's shared memory");
        DQ_LAUNCH(crooked_copy, 1, 32, 0, NULL, out.device);
        report_has("cp.async, source", "is not a multiple of 16");
        DQ_LAUNCH(crooked_load, 1, 32, 0, NULL, out.device);
        report_has("dq_load16", "is not a multiple of 16");
    });
    dq_simt_set_quiet(0);
}
