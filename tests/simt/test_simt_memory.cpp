/* test_simt_memory: asynchronous copies, and the stand-in of the runtime: memory, limits, what waits for
 * what, launches that are refused.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "tests/simt/check.h"

#include "kernels/cuda/device/ptx.cuh"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- async copies */
/* Four groups of one 16-byte copy per thread; after a wait that leaves `left` groups on their way,
 * every thread notes what it sees of its own cells. */
template <int LEFT> DQ_KERNEL(32) four_groups(uint32_t *seen, const uint32_t *x)
{
    DQ_SHARED(uint32_t, box, [4][32][4]);
    unsigned t = dq_thread();
    for (unsigned i = 0; i < 4; i++) {
        dq_cp_async16(box[i][t], x + (32 * i + t) * 4);
        dq_cp_async_commit();
    }
    if (LEFT < 4) dq_cp_async_wait<LEFT>();
    for (unsigned i = 0; i < 4; i++) seen[4 * t + i] = box[i][t][3];
    dq_cp_async_wait<0>();
}

template <int LEFT> static void check_groups(void)
{
    check_array<uint32_t> x(512), seen(128);
    for (uint32_t i = 0; i < 512; i++) x.host[i] = i;
    x.put();
    DQ_LAUNCH(four_groups<LEFT>, 1, 32, 0, NULL, seen.device, x.device);
    seen.get();
    uint32_t early = 0, poison = 0;
    for (uint32_t t = 0; t < 32; t++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t v = seen.host[4 * t + i], right = (32 * i + t) * 4 + 3;
            if (i < 4 - LEFT)
                assert_int_equal(v, right);
            else if (v == right)
                early++;
            else {
                assert_int_equal(v, 0xa5a5a5a5u);
                poison++;
            }
        }
    assert_int_equal(early + poison, 32 * LEFT);
    if (LEFT) assert_true(poison > 8); /* some may land early, not most */
}

TEST(test_wait_counts)
{
    dq_each_order([] {
        check_groups<0>();
        check_groups<1>();
        check_groups<3>();
        check_groups<4>(); /* no wait at all */
    });
}

/* A copy over old contents: until the wait they are gone as well. */
DQ_KERNEL(32) reused(uint32_t *seen, const uint32_t *x)
{
    DQ_SHARED(uint32_t, box, [32]);
    box[dq_thread()] = 7;
    dq_cp_async4(&box[dq_thread()], x + dq_thread());
    seen[dq_thread()] = box[dq_thread()];
    dq_cp_async_commit();
    dq_cp_async_wait<0>();
    seen[32 + dq_thread()] = box[dq_thread()];
}

TEST(test_old_contents_are_gone)
{
    check_array<uint32_t> x(32), seen(64);
    for (uint32_t i = 0; i < 32; i++) x.host[i] = 100 + i;
    x.put();
    dq_each_order([&] {
        DQ_LAUNCH(reused, 1, 32, 0, NULL, seen.device, x.device);
        seen.get();
        for (uint32_t i = 0; i < 32; i++) {
            assert_int_equal(seen.host[i], 0xa5a5a5a5u);
            assert_int_equal(seen.host[32 + i], 100 + i);
        }
    });
}

DQ_KERNEL(32) sizes(uint32_t *out, const unsigned char *x)
{
    DQ_SHARED(unsigned char, box, [32 * 32]);
    unsigned t = dq_thread();
    dq_cp_async16_zfill(box + 32 * t, x + 16 * t, t <= 16 ? t : 16);
    dq_cp_async8(box + 32 * t + 16, x + 8 * t);
    dq_cp_async4(box + 32 * t + 24, x + 4 * t);
    dq_cp_async_commit();
    dq_cp_async_wait<0>();
    memcpy(out + 8 * t, box + 32 * t, 32);
}

TEST(test_copy_sizes)
{
    check_array<unsigned char> x(512), out(1024);
    for (unsigned i = 0; i < 512; i++) x.host[i] = (unsigned char)(i * 7 + 1);
    x.put();
    DQ_LAUNCH(sizes, 1, 32, 0, NULL, (uint32_t *)out.device, x.device);
    out.get();
    for (unsigned t = 0; t < 32; t++) {
        unsigned n = t < 16 ? t : 16;
        const unsigned char *o = out.host + 32 * t, zeros[16] = {0};
        assert_memory_equal(o, x.host + 16 * t, n);
        assert_memory_equal(o + n, zeros, 16 - n);
        assert_memory_equal(o + 16, x.host + 8 * t, 8);
        assert_memory_equal(o + 24, x.host + 4 * t, 4);
    }
}

/* ------------------------------------------------------------------------------------------ runtime */
TEST(test_memory_limit)
{
    void *a, *b;
    size_t before = dq_simt_memory_used(), free_bytes, total;
    dq_simt_set_memory(before + 1000);
    assert_int_equal(cudaMalloc(&a, 600), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(free_bytes, 400);
    assert_int_equal(cudaMalloc(&b, 401), cudaErrorMemoryAllocation);
    assert_null(b);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_int_equal(cudaMalloc(&b, 400), cudaSuccess);
    assert_int_equal(cudaFree(a), cudaSuccess);
    assert_int_equal(cudaFree(b), cudaSuccess);
    assert_int_equal(cudaFree(NULL), cudaSuccess);
    assert_int_equal(cudaFree(&a), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(dq_simt_memory_used(), before);
    dq_simt_set_memory((size_t)1 << 30);
}

DQ_KERNEL(32) add_one(uint32_t *x)
{
    x[dq_thread()]++;
}

/* Pinned memory shows who forgot to wait; other host memory is read and written at once. */
TEST(test_nothing_happens_before_a_wait)
{
    check_array<uint32_t> x(32);
    uint32_t *pinned;
    cudaStream_t s;
    cudaEvent_t e;
    assert_int_equal(cudaMallocHost((void **)&pinned, 128), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaEventCreate(&e), cudaSuccess);
    x.host[3] = 41;
    assert_int_equal(cudaMemcpyAsync(x.device, x.host, 128, cudaMemcpyHostToDevice, s),
                     cudaSuccess);
    x.host[3] = 0; /* too late to matter */
    DQ_LAUNCH(add_one, 1, 32, 0, s, x.device);
    assert_int_equal(cudaMemcpyAsync(pinned, x.device, 128, cudaMemcpyDeviceToHost, s),
                     cudaSuccess);
    assert_int_equal(cudaEventRecord(e, s), cudaSuccess);
    assert_int_equal(cudaEventQuery(e), cudaErrorNotReady);
    assert_int_equal(pinned[3], 0xa5a5a5a5u);
    assert_int_equal(cudaEventSynchronize(e), cudaSuccess);
    assert_int_equal(pinned[3], 42);
    pinned[3] = 7;
    assert_int_equal(cudaMemcpyAsync(x.device, pinned, 128, cudaMemcpyHostToDevice, s),
                     cudaSuccess);
    pinned[3] = 8; /* seen by the copy: it has not run */
    assert_int_equal(cudaMemcpyAsync(x.host, x.device, 128, cudaMemcpyDeviceToHost, s),
                     cudaSuccess);
    assert_int_equal(x.host[3], 8);
    assert_int_equal(cudaStreamSynchronize(s), cudaSuccess);
    assert_int_equal(cudaEventDestroy(e), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(s), cudaSuccess);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
}

TEST(test_wrong_sides_are_refused)
{
    check_array<uint32_t> x(32);
    uint32_t other[32] = {0};
    assert_int_equal(cudaMemcpy(other, x.host, 128, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x.device, x.device, 128, cudaMemcpyHostToDevice),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(x.device, x.host, 129, cudaMemcpyHostToDevice),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(x.device + 1, 0, 128), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(cudaMemset(x.device, 1, 128), cudaSuccess);
    x.get();
    assert_int_equal(x.host[31], 0x01010101);
    memset(other, 2, sizeof other);
    assert_int_equal(cudaMemcpy2DAsync(x.device, 16, other, 8, 4, 8, cudaMemcpyHostToDevice, NULL),
                     cudaSuccess);
    x.get();
    for (int i = 0; i < 32; i++) assert_int_equal(x.host[i], i % 4 ? 0x01010101 : 0x02020202);
}

DQ_KERNEL(32) large(unsigned char *out, unsigned bytes)
{
    DQ_SHARED_DYNAMIC(box);
    for (unsigned i = dq_thread(); i < bytes; i += 32) box[i] = (unsigned char)i;
    dq_warp_sync();
    if (dq_thread() == 0) *out = box[bytes - 1];
}

TEST(test_launches_are_refused)
{
    check_array<uint32_t> x(32);
    DQ_LAUNCH(add_one, 1, 33, 0, NULL, x.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    DQ_LAUNCH(add_one, 0, 32, 0, NULL, x.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    DQ_LAUNCH(add_one, 1, 2048, 0, NULL, x.device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    unsigned bytes = 100000;
    DQ_LAUNCH(large, 1, 32, bytes, NULL, (unsigned char *)x.device, bytes);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(DQ_ALLOW_SMEM(large, 300000), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    assert_int_equal(DQ_ALLOW_SMEM(large, bytes), cudaSuccess);
    DQ_LAUNCH(large, 1, 32, bytes, NULL, (unsigned char *)x.device, bytes);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    x.get();
    assert_int_equal(x.host[0] & 255u, (bytes - 1) & 255u);
}

/* -------------------------------------------------------------------------------------------- edges */
enum edge { INSIDE, GLOBAL_READ, GLOBAL_WRITE, STATIC_SHARED, DYNAMIC_SHARED, ASYNC_COPY, LOCAL };

DQ_KERNEL(32) beyond(uint32_t *x, int edge)
{
    DQ_SHARED(uint32_t, a, [33]);
    DQ_SHARED_DYNAMIC(d);
    uint32_t local[4] = {1, 2, 3, 4};
    unsigned t = dq_thread();
    uint32_t v = local[(t & 3u) + (edge == LOCAL ? 4 : 0)];
    a[edge == STATIC_SHARED ? 33 : t] = v;
    d[edge == DYNAMIC_SHARED ? 64 : 63] = 1;
    dq_cp_async4(&a[t], x + (edge == ASYNC_COPY ? 64 : 63));
    dq_cp_async_wait<0>();
    v += x[edge == GLOBAL_READ ? 64 : 63];
    if (t == 0) x[edge == GLOBAL_WRITE ? 64 : 63] = v;
}

/* With the address sanitizer, what goes over an edge ends the process. */
TEST(test_edges)
{
#ifdef __SANITIZE_ADDRESS__
    for (int edge = INSIDE; edge <= LOCAL; edge++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            void *x;
            fclose(stderr);
            close(2);
            if (cudaMalloc(&x, 256)) _exit(3);
            DQ_LAUNCH(beyond, 1, 32, 64, NULL, (uint32_t *)x, edge);
            _exit(cudaDeviceSynchronize() ? 4 : 0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (edge == INSIDE)
            assert_int_equal(status, 0);
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) /* the sanitizer's own */
            fail_msg("edge %d: status %x", edge, (unsigned)status);
    }
#else
    (void)beyond;
    skip();
#endif
}

TEST(test_devices)
{
    int n = -1, value = 0;
    cudaDeviceProp p;
    assert_int_equal(cudaGetDeviceCount(&n), cudaSuccess);
    assert_int_equal(n, 1);
    assert_int_equal(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    assert_int_equal(p.warpSize, 32);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0),
                     cudaSuccess);
    assert_int_equal(value, p.major);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    dq_simt_set_devices(0);
    n = -1;
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    dq_simt_set_driver(0);
    assert_int_equal(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    assert_int_equal(n, -1);
    assert_string_equal(cudaGetErrorName(cudaErrorInsufficientDriver),
                        "cudaErrorInsufficientDriver");
    dq_simt_set_devices(1);
    dq_simt_set_driver(13000);
    dq_simt_reset();
}
