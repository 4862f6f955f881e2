/* test_simt_sample: the sample kernels against plain loops, in several orders of the threads; also the
 * example of how a kernel is tested.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/ptx.cuh"
#include "tests/simt/simt_sample.h"

static void check_product(int m, int n, int k)
{
    check_random r = {(uint64_t)(m * 10007 + n * 101 + k)};
    check_array<uint8_t> a((size_t)m * k);
    check_array<int8_t> b((size_t)n * k);
    check_array<int32_t> c((size_t)m * n);
    for (size_t i = 0; i < a.n; i++) a.host[i] = (uint8_t)r.extreme(0, 255);
    for (size_t i = 0; i < b.n; i++) b.host[i] = (int8_t)r.extreme(-128, 127);
    a.put();
    b.put();
    dq_sample_product(c.device, a.device, b.device, m, n, k, NULL);
    c.get();
    assert_string_equal(dq_simt_report(), "");
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int32_t sum = 0;
            for (int q = 0; q < k; q++) sum += a.host[i * k + q] * b.host[j * k + q];
            assert_int_equal(c.host[i * n + j], sum);
        }
}

TEST(test_product)
{
    dq_each_order([] {
        check_product(32, 32, 64);
        check_product(37, 70, 208);
        check_product(1, 1, 16);
    });
}

static void check_sum(int n)
{
    check_array<uint32_t> x((size_t)n), total(1);
    uint32_t sum = 0;
    for (int i = 0; i < n; i++) sum += x.host[i] = (uint32_t)i * 2654435761u;
    total.host[0] = 0;
    x.put();
    total.put();
    dq_sample_sum(total.device, x.device, n, NULL);
    total.get();
    assert_int_equal(total.host[0], sum);
}

TEST(test_sum)
{
    dq_each_order([] {
        check_sum(1);
        check_sum(2000);
    });
    dq_simt_set_workers(2);
    check_sum(20000);
    dq_simt_set_workers(1);
}

/* Each warp reads what the warp before it wrote, with no barrier between. */
DQ_KERNEL(128) look_back(uint32_t *out)
{
    DQ_SHARED(uint32_t, x, [128]);
    unsigned t = dq_thread();
    x[t] = 100 + t;
    out[t] = x[t < 32 ? t : t - 32];
}

static int count_wrong(dq_simt_schedule schedule, uint64_t seed)
{
    check_array<uint32_t> out(128);
    int wrong = 0;
    dq_simt_set_schedule(schedule, seed);
    DQ_LAUNCH(look_back, 1, 128, 0, NULL, out.device);
    out.get();
    for (unsigned t = 0; t < 128; t++) wrong += out.host[t] != 100 + (t < 32 ? t : t - 32);
    return wrong;
}

/* Why tests run in several greedy orders. */
TEST(test_orders_that_show_and_hide)
{
    int seen = 0;
    for (uint64_t seed = 1; seed <= 8; seed++) seen += count_wrong(DQ_SIMT_GREEDY, seed) > 0;
    assert_true(seen >= 6); /* 23 of 24 orders of the warps show it */
    assert_int_equal(count_wrong(DQ_SIMT_ROUND_ROBIN, 0), 0);
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}
