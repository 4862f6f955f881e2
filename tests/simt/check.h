/* check: what tests of kernels share: cmocka, random operands, arrays on both sides, orders of threads.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECK_H
#define DQ_CHECK_H

#include "tests/kernels/cuda/simulated.h"
#include "tests/rigs/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check_random {
    uint64_t state;
    uint32_t bits()
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 32);
    }
    /* low..high, and each end as often as all the rest of a dozen values */
    int extreme(int low, int high)
    {
        uint32_t pick = bits() % 12;
        if (pick == 0) return low;
        if (pick == 1) return high;
        return low + (int)(bits() % (uint32_t)(high - low + 1));
    }
    /* about -4..4 */
    float value()
    {
        return ((float)(bits() >> 8) * 0x1p-24f - 0.5f) * 8.0f;
    }
};

/* n elements on the host and as many on the device. put and get wait. */
template <class T> struct check_array {
    size_t n;
    T *host, *device;
    explicit check_array(size_t count) : n(count)
    {
        host = (T *)calloc(n, sizeof(T));
        assert_non_null(host);
        assert_int_equal(cudaMalloc((void **)&device, n * sizeof(T)), cudaSuccess);
    }
    ~check_array()
    {
        free(host);
        cudaFree(device);
    }
    check_array(const check_array &) = delete;
    void put()
    {
        assert_int_equal(cudaMemcpy(device, host, n * sizeof(T), cudaMemcpyHostToDevice),
                         cudaSuccess);
    }
    void get()
    {
        assert_int_equal(cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost),
                         cudaSuccess);
    }
};

/* The float of these bits. */
static inline float dq_float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Whether the device has the instructions of hopper.cuh; the simulated one has them from then on. */
static inline bool check_hopper(void)
{
    int major = 0;
    dq_simt_set_capability(90);
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
           major == 9;
}

/* A kernel has failed, and the report holds the text; errors are forgotten. */
static inline void check_report(const char *text)
{
    char report[8192];
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
    snprintf(report, sizeof report, "%s", dq_simt_report());
    dq_simt_reset();
    if (!strstr(report, text)) fail_msg("\"%s\" says nothing of \"%s\"", report, text);
}

/* Runs f in the orders that every kernel must survive. */
template <class F> void dq_each_order(F f)
{
    dq_simt_set_schedule(DQ_SIMT_ROUND_ROBIN, 0);
    f();
    for (uint64_t seed = 1; seed <= 4; seed++) {
        dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
        f();
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

#endif
