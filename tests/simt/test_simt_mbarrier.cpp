/* test_simt_mbarrier: mbarriers, bulk copies, the async proxy and clusters: kernels that are right,
 * in several orders, and what is said of wrong ones.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/hopper.cuh"

NEEDS(check_hopper)

/* ------------------------------------------------------------------------------------------- a ring */
enum { STAGES = 3, PART = 256, STAGE = 2 * PART, WORDS = STAGE / 4 };

/* Each block sums x[steps][WORDS] by word; with two blocks in a cluster each copies one half of a
 * stage for both. */
DQ_KERNEL(64) ring(uint32_t *sum, const uint32_t *x, int steps, unsigned blocks)
{
    DQ_SHARED_DYNAMIC(stage);
    DQ_SHARED(dq_mbarrier, full, [STAGES]);
    DQ_SHARED(dq_mbarrier, empty, [STAGES]);
    const unsigned rank = dq_cluster_rank();
    if (dq_thread() == 0) {
        for (int s = 0; s < STAGES; s++) {
            DQ_MBARRIER_INIT(&full[s], 1);
            DQ_MBARRIER_INIT(&empty[s], 32 * blocks);
        }
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(ring_start);
    if (dq_warp() == 0 && dq_lane() == 0) {
        for (int i = 0; i < steps; i++) {
            const int s = i % STAGES;
            const unsigned round = (unsigned)(i / STAGES);
            DQ_MBARRIER_WAIT(&empty[s], (round & 1u) ^ 1u, ring_empty);
            dq_mbarrier_arrive_expect(&full[s], STAGE);
            unsigned char *to = stage + s * STAGE;
            const unsigned char *from = (const unsigned char *)x + (size_t)i * STAGE;
            if (blocks == 2) {
                dq_bulk_copy_multicast(to + rank * PART, from + rank * PART, PART, &full[s], 3);
            } else {
                dq_bulk_copy(to, from, PART, &full[s]);
                dq_bulk_copy(to + PART, from + PART, PART, &full[s]);
            }
        }
    } else if (dq_warp() == 1) {
        uint32_t v[WORDS / 32] = {};
        for (int i = 0; i < steps; i++) {
            const int s = i % STAGES;
            DQ_MBARRIER_WAIT(&full[s], (unsigned)(i / STAGES) & 1u, ring_full);
            const uint32_t *w = (const uint32_t *)(stage + s * STAGE);
            for (unsigned k = 0; k < WORDS / 32; k++) v[k] += w[32 * k + dq_lane()];
            for (unsigned r = 0; r < blocks; r++)
                if (r == rank)
                    dq_mbarrier_arrive(&empty[s]);
                else
                    dq_mbarrier_arrive_remote(&empty[s], r);
        }
        for (unsigned k = 0; k < WORDS / 32; k++)
            sum[dq_block_x() * WORDS + 32 * k + dq_lane()] = v[k];
    }
    dq_warp_sync();
    DQ_CLUSTER_SYNC(ring_end);
}

static void check_ring(int steps, unsigned cluster, unsigned grid)
{
    check_array<uint32_t> x((size_t)steps * WORDS), sum(grid * WORDS);
    uint32_t expected[WORDS] = {};
    for (size_t i = 0; i < x.n; i++) expected[i % WORDS] += x.host[i] = (uint32_t)i * 2654435761u;
    x.put();
    DQ_LAUNCH_CLUSTER(ring, cluster, grid, 64, STAGES * STAGE, NULL, sum.device, x.device, steps,
                      cluster);
    sum.get();
    assert_string_equal(dq_simt_report(), "");
    for (size_t i = 0; i < sum.n; i++) assert_int_equal(sum.host[i], expected[i % WORDS]);
}

TEST(test_ring)
{
    dq_each_order([] {
        check_ring(1, 1, 1);
        check_ring(10, 1, 3);
        check_ring(10, 2, 4);
    });
    dq_simt_set_workers(2);
    check_ring(10, 2, 8);
    dq_simt_set_workers(1);
}

/* The phase before the first one has ended; a wait may fail although its phase has ended, but not
 * for ever. */
DQ_KERNEL(32) parities(uint32_t *out)
{
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_lane()) return;
    DQ_MBARRIER_INIT(m, 2);
    uint32_t spurious = 0;
    for (unsigned phase = 0; phase < 50; phase++) {
        while (!dq_mbarrier_try_wait(m, (phase & 1u) ^ 1u)) spurious++;
        dq_mbarrier_arrive(m);
        dq_mbarrier_arrive(m);
        while (!dq_mbarrier_try_wait(m, phase & 1u)) spurious++;
    }
    out[0] = spurious;
}

TEST(test_parities)
{
    check_array<uint32_t> out(1);
    DQ_LAUNCH(parities, 1, 32, 0, NULL, out.device);
    out.get();
    assert_true(out.host[0] > 0 && out.host[0] < 100);
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
    DQ_LAUNCH(parities, 1, 32, 0, NULL, out.device);
    out.get();
    assert_int_equal(out.host[0], 0);
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* One thread looks after two barriers in turns, of which the second is first to be ready. */
DQ_KERNEL(64) polls(uint32_t *out, bool ever)
{
    DQ_SHARED(dq_mbarrier, m, [2]);
    if (dq_thread() == 0) {
        DQ_MBARRIER_INIT(&m[0], 1);
        DQ_MBARRIER_INIT(&m[1], 1);
    }
    dq_sync();
    if (dq_thread() == 32 && ever) dq_mbarrier_arrive(&m[1]);
    if (dq_thread()) return;
    bool first = false, second = false;
    while (!first) {
        if (dq_mbarrier_try_wait(&m[0], 0)) first = true;
        if (!second && dq_mbarrier_try_wait(&m[1], 0)) {
            second = true;
            dq_mbarrier_arrive(&m[0]);
        }
    }
    out[0] = second;
}

TEST(test_polls)
{
    check_array<uint32_t> out(1);
    dq_simt_set_quiet(1);
    dq_each_order([&] {
        DQ_LAUNCH(polls, 1, 64, 0, NULL, out.device, true);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        assert_int_equal(out.host[0], 1);
        DQ_LAUNCH(polls, 1, 64, 0, NULL, out.device, false);
        check_report("wait in dq_mbarrier_try_wait, line");
    });
    dq_simt_set_quiet(0);
}

/* ------------------------------------------------------------------------------------ wrong by one thread */
enum wrong {
    AGAIN,
    NOBODY,
    CROOKED,
    UNSEEN_BY_COPY,
    ODD_BYTES,
    ODD_SOURCE,
    ODD_DESTINATION,
    BEYOND_SOURCE,
    BEYOND_SHARED,
    MORE_BYTES,
    HALF_EXPECTED,
    FEWER_BYTES,
    MORE_ARRIVALS,
    RANK,
    PARITY,
    SOURCE_WRITTEN,
    UNFENCED,
    DESTINATION_WRITTEN,
    TWICE,
    NOT_WAITED,
    OVERWRITTEN,
    HUGE_BYTES,
    NEVER_COPIED,
    NONE_WRONG
};

DQ_KERNEL(32) broken(int which, unsigned char *x)
{
    DQ_SHARED_DYNAMIC(to);
    DQ_SHARED(dq_mbarrier, m, [2]);
    if (dq_lane()) return;
    if (which == NOBODY) dq_mbarrier_arrive(m);
    if (which == CROOKED) dq_mbarrier_arrive((dq_mbarrier *)(void *)((char *)m + 4));
    DQ_MBARRIER_INIT(m, 1);
    if (which == AGAIN) DQ_MBARRIER_INIT(m, 1);
    if (which != UNSEEN_BY_COPY) dq_fence_mbarrier_init();
    to[40] = 1;
    if (which != UNFENCED && which != UNSEEN_BY_COPY) dq_fence_async();
    if (which == MORE_ARRIVALS) {
        dq_mbarrier_arrive_expect(m, 64);
        dq_mbarrier_arrive(m);
    }
    if (which == NEVER_COPIED) {
        dq_mbarrier_arrive_expect(m, 64);
        return;
    }
    if (which == RANK) dq_mbarrier_arrive_remote(m, 1);
    if (which == PARITY) dq_mbarrier_try_wait(m, 2);
    if (which == OVERWRITTEN) m->state = 5;
    if (which == HALF_EXPECTED) {
        dq_bulk_copy(to, x, 32, m);
        dq_bulk_copy(to + 96, x, 32, m);
    }
    dq_mbarrier_arrive_expect(m, which == HUGE_BYTES    ? 1u << 20
                                 : which == FEWER_BYTES ? 64
                                 : which == MORE_BYTES  ? 16
                                                        : 32);
    dq_bulk_copy(which == ODD_DESTINATION ? to + 8
                 : which == BEYOND_SHARED ? to + 112
                                          : to + 32,
                 which == ODD_SOURCE      ? x + 8
                 : which == BEYOND_SOURCE ? x + 112
                                          : x,
                 which == ODD_BYTES ? 24 : 32, m);
    if (which == TWICE) dq_bulk_copy(to + 48, x, 32, m);
    if (which == SOURCE_WRITTEN) x[5]++;
    if (which == DESTINATION_WRITTEN) to[33] = 7;
    if (which == NOT_WAITED) return;
    DQ_MBARRIER_WAIT(m, 0, broken_there);
    x[64] = to[33];
}

TEST(test_wrong)
{
    static const struct {
        wrong which;
        const char *report;
    } rows[] = {
        {AGAIN, "mbarrier m (byte 192 of the shared memory of block (0,0,0)), of line"},
        {NOBODY, "dq_mbarrier_arrive: no mbarrier was initialised at byte"},
        {CROOKED, "is not a multiple of 8"},
        {UNSEEN_BY_COPY, "is used by a copy before dq_fence_mbarrier_init has made it visible"},
        {ODD_BYTES, "dq_bulk_copy of 24 bytes, no multiple of 16"},
        {ODD_SOURCE, "dq_bulk_copy, source: address"},
        {ODD_DESTINATION, "dq_bulk_copy, destination: address"},
        {BEYOND_SOURCE, "its source, 32 bytes, is not within a block of device memory"},
        {BEYOND_SHARED, "its destination, 32 bytes, is not within the block's shared memory"},
        {MORE_BYTES, "16 bytes more than phase 0 expects"},
        {HALF_EXPECTED, "phase 0 ends while the bulk copy of line"},
        {FEWER_BYTES,
         "of block (0,0,0)), which is in phase 0: 1 of 1 arrivals there, 32 bytes missing"},
        {MORE_ARRIVALS, "more than the 1 arrivals of phase 0, which waits for 64 bytes"},
        {RANK, "dq_mbarrier_arrive_remote: rank 1 of a cluster of 1"},
        {PARITY, "parity 2"},
        {SOURCE_WRITTEN, "was written while it was read"},
        {UNFENCED,
         "over bytes that thread 0 of block (0,0,0) has written without a dq_fence_async"},
        {DESTINATION_WRITTEN,
         "thread 0 writes byte 33 of shared memory, to which a bulk copy is on its way"},
        {TWICE, "to which another copy is on its way"},
        {NOT_WAITED, "the block ends while the bulk copy of line"},
        {OVERWRITTEN, "was written over"},
        {NEVER_COPIED, "of block (0,0,0)) waits for 64 bytes in phase 0"},
        {HUGE_BYTES, "expects 1048576 bytes, which is too much"},
    };
    check_array<unsigned char> x(128);
    for (size_t i = 0; i < x.n; i++) x.host[i] = (unsigned char)i;
    x.put();
    dq_simt_set_quiet(1);
    for (const auto &row : rows) { /* as late as can be */
        dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
        DQ_LAUNCH(broken, 1, 32, 128, NULL, row.which, x.device);
        check_report(row.report);
    }
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH(broken, 1, 32, 128, NULL, NONE_WRONG, x.device);
        x.get();
        assert_string_equal(dq_simt_report(), "");
        assert_int_equal(x.host[64], 1);
    });
}

/* Bytes that have not landed are poison, whoever reads them. */
DQ_KERNEL(32) early(uint32_t *out, const unsigned char *x)
{
    DQ_SHARED_DYNAMIC(to);
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_lane()) return;
    DQ_MBARRIER_INIT(m, 1);
    dq_fence_mbarrier_init();
    to[3] = 1;
    dq_fence_async();
    dq_mbarrier_arrive_expect(m, 16);
    dq_bulk_copy(to, x, 16, m);
    out[0] = to[3];
    DQ_MBARRIER_WAIT(m, 0, early_there);
    out[1] = to[3];
}

TEST(test_poison)
{
    check_array<unsigned char> x(16);
    check_array<uint32_t> out(2);
    memset(x.host, 9, 16);
    x.put();
    dq_each_order([&] {
        DQ_LAUNCH(early, 1, 32, 64, NULL, out.device, x.device);
        out.get();
        assert_int_equal(out.host[0], 0xa5);
        assert_int_equal(out.host[1], 9);
    });
}

/* However long a thread looks, some copies are not there before it waits, and others are. */
DQ_KERNEL(32) patient(uint32_t *out, const unsigned char *x)
{
    DQ_SHARED_DYNAMIC(to);
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_lane()) return;
    DQ_MBARRIER_INIT(m, 1);
    dq_fence_mbarrier_init();
    dq_mbarrier_arrive_expect(m, 16);
    dq_bulk_copy(to, x, 16, m);
    for (int i = 0; i < 1000; i++) dq_ballot(true, 1);
    out[0] = to[3];
    DQ_MBARRIER_WAIT(m, 0, patient_there);
}

TEST(test_moments)
{
    check_array<unsigned char> x(16);
    check_array<uint32_t> out(1);
    int late = 0;
    x.put();
    for (uint64_t seed = 1; seed <= 16; seed++) {
        dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
        DQ_LAUNCH(patient, 1, 32, 64, NULL, out.device, x.device);
        out.get();
        late += out.host[0] == 0xa5;
    }
    assert_in_range(late, 4, 12);
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* ------------------------------------------------------------------------------------- by several threads */
DQ_KERNEL(64) unordered(int which, uint32_t *out)
{
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_thread() == 0) {
        DQ_MBARRIER_INIT(m, 1);
        dq_fence_mbarrier_init();
    }
    if (which) dq_sync();
    if (dq_thread() == 0) dq_mbarrier_arrive(m);
    if (dq_thread() == 32) {
        if (!which)
            while (m->state == 0xa5a5a5a5a5a5a5a5u)
                dq_ballot(true, 1); /* it is there, but who saw it? */
        DQ_MBARRIER_WAIT(m, 0, unordered_there);
        out[0] = 1;
    }
}

TEST(test_initialisation_seen)
{
    check_array<uint32_t> out(1);
    dq_simt_set_quiet(1);
    DQ_LAUNCH(unordered, 1, 64, 0, NULL, 1, out.device);
    out.get();
    assert_string_equal(dq_simt_report(), "");
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
    DQ_LAUNCH(unordered, 1, 64, 0, NULL, 0, out.device);
    check_report("unordered_there: no barrier stands between the initialisation of mbarrier m");
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
    dq_simt_set_quiet(0);
}

/* Which of the threads that have written are fenced is known thread by thread. */
DQ_KERNEL(64) fenced_by_one(const unsigned char *x, bool all)
{
    DQ_SHARED_DYNAMIC(to);
    DQ_SHARED(dq_mbarrier, m, [1]);
    ((uint32_t *)to)[dq_thread()] = dq_thread();
    if (dq_thread() == 0) {
        DQ_MBARRIER_INIT(m, 1);
        dq_fence_mbarrier_init();
    }
    if (all) dq_fence_async();
    dq_sync();
    if (dq_thread()) return;
    dq_fence_async();
    dq_mbarrier_arrive_expect(m, 64);
    dq_bulk_copy(to, x, 64, m);
    DQ_MBARRIER_WAIT(m, 0, fenced_there);
}

TEST(test_fences)
{
    check_array<unsigned char> x(64);
    dq_simt_set_quiet(1);
    dq_each_order([&] {
        DQ_LAUNCH(fenced_by_one, 1, 64, 256, NULL, x.device, true);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        DQ_LAUNCH(fenced_by_one, 1, 64, 256, NULL, x.device, false);
        check_report(
            "over bytes that thread 1 of block (0,0,0) has written without a dq_fence_async");
    });
    dq_simt_set_quiet(0);
}

/* A second store of the same bytes, with a fence, makes up for the first one. */
DQ_KERNEL(64) stored_again(const unsigned char *x)
{
    DQ_SHARED_DYNAMIC(to);
    DQ_SHARED(dq_mbarrier, m, [1]);
    if (dq_thread() == 0) dq_store16(to, dq_u4{1, 2, 3, 4});
    dq_sync();
    if (dq_thread() != 32) return;
    dq_store16(to, dq_u4{1, 2, 3, 4});
    DQ_MBARRIER_INIT(m, 1);
    dq_fence_mbarrier_init();
    dq_fence_async();
    dq_mbarrier_arrive_expect(m, 16);
    dq_bulk_copy(to, x, 16, m);
    DQ_MBARRIER_WAIT(m, 0, stored_there);
}

TEST(test_stores)
{
    check_array<unsigned char> x(16);
    dq_each_order([&] {
        DQ_LAUNCH(stored_again, 1, 64, 16, NULL, x.device);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    });
}

/* -------------------------------------------------------------------------------------------- clusters */
enum wrong_cluster {
    NOT_VISIBLE,
    ENDED,
    ARRIVES_TWICE,
    WAITS_ALONE,
    SKIPS,
    MISSING_BLOCK,
    NO_INIT,
    RIGHT
};

DQ_KERNEL(32) clusters(int which, uint32_t *out)
{
    DQ_SHARED(dq_mbarrier, m, [1]);
    const unsigned rank = dq_cluster_rank();
    if (dq_lane() == 0 && !(which == NO_INIT && rank == 1)) {
        DQ_MBARRIER_INIT(m, 1);
        if (which != NOT_VISIBLE) dq_fence_mbarrier_init();
    }
    if (which == WAITS_ALONE) dq_cluster_wait();
    dq_cluster_arrive();
    if (which == ARRIVES_TWICE) dq_cluster_arrive();
    dq_cluster_wait();
    if (dq_lane() == 0 && rank == 0) {
        if (which == ENDED)
            for (int i = 0; i < 50; i++) dq_ballot(true, 1);
        dq_mbarrier_arrive_remote(m, 1);
    }
    dq_warp_sync();
    if (rank == 1 && which == ENDED) return;
    if (rank == 1 && which != MISSING_BLOCK) DQ_MBARRIER_WAIT(m, 0, cluster_there);
    if (which == SKIPS && rank) DQ_MBARRIER_WAIT(m, 1, cluster_never);
    out[dq_block_x()] = 1 + rank;
    DQ_CLUSTER_SYNC(cluster_end);
}

TEST(test_clusters)
{
    static const struct {
        wrong_cluster which;
        const char *report;
    } rows[] = {
        {NOT_VISIBLE, "is used from another block before dq_fence_mbarrier_init"},
        {NO_INIT, "no mbarrier was initialised there in block (1,0,0) (rank 1)"},
        {ARRIVES_TWICE, "the thread has arrived, and has not waited since"},
        {WAITS_ALONE, "dq_cluster_wait: the thread has not arrived"},
        {SKIPS, "wait in cluster_never"},
    };
    check_array<uint32_t> out(4);
    dq_simt_set_quiet(1);
    for (const auto &row : rows) {
        dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
        DQ_LAUNCH_CLUSTER(clusters, 2, 2, 32, 0, NULL, row.which, out.device);
        check_report(row.report);
    }
    int ended = 0; /* the other block may be slower than this one */
    for (uint64_t seed = 1; seed <= 8; seed++) {
        dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
        DQ_LAUNCH_CLUSTER(clusters, 2, 2, 32, 0, NULL, ENDED, out.device);
        cudaDeviceSynchronize();
        ended += strstr(dq_simt_report(), "to block (1,0,0) (rank 1), which has ended") != NULL;
        dq_simt_reset();
    }
    assert_true(ended > 0);
    dq_simt_set_quiet(0);
    dq_each_order([&] {
        DQ_LAUNCH_CLUSTER(clusters, 2, 4, 32, 0, NULL, RIGHT, out.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        for (uint32_t i = 0; i < 4; i++) assert_int_equal(out.host[i], 1 + i % 2);
    });
}

/* Threads that have returned are not waited for, and their arrivals do not count for others. */
DQ_KERNEL(64) leavers(uint32_t *out)
{
    const unsigned rank = dq_cluster_rank();
    if (rank && dq_warp()) return;
    DQ_CLUSTER_SYNC(leavers_first);
    if (rank) {
        dq_cluster_arrive();
        return;
    }
    if (dq_warp()) {
        for (int i = 0; i < 50; i++) dq_ballot(true);
        out[dq_lane()] = 7;
    }
    DQ_CLUSTER_SYNC(leavers_second);
    if (!dq_warp()) out[dq_lane()]++;
}

TEST(test_returned)
{
    check_array<uint32_t> out(32);
    dq_each_order([&] {
        DQ_LAUNCH_CLUSTER(leavers, 2, 2, 64, 0, NULL, out.device);
        out.get();
        assert_string_equal(dq_simt_report(), "");
        assert_int_equal(out.host[31], 8);
    });
}

TEST(test_launches)
{
    check_array<uint32_t> out(4);
    DQ_LAUNCH_CLUSTER(clusters, 2, 3, 32, 0, NULL, RIGHT, out.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    DQ_LAUNCH_CLUSTER(clusters, 9, 9, 32, 0, NULL, RIGHT, out.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    dq_simt_set_capability(80);
    DQ_LAUNCH_CLUSTER(clusters, 2, 2, 32, 0, NULL, RIGHT, out.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    dq_simt_set_quiet(1);
    DQ_LAUNCH(parities, 1, 32, 0, NULL, out.device);
    check_report("dq_mbarrier_init needs compute capability 9.0, the device has 8.0");
    dq_simt_set_quiet(0);
    dq_simt_set_capability(90);
}

/* -------------------------------------------------------------------------------------- named barriers */
DQ_KERNEL(64) half_warps(uint32_t *out)
{
    if (dq_lane() < 16) dq_bar_sync(1, 32);
    out[dq_thread()] = 1;
}

TEST(test_whole_warps)
{
    check_array<uint32_t> out(64);
    dq_simt_set_quiet(1);
    DQ_LAUNCH(half_warps, 1, 64, 0, NULL, out.device);
    check_report("barrier 1 counts whole warps, but 16 lanes of warp 0 are there");
    dq_simt_set_quiet(0);
}
