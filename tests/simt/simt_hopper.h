/* simt_hopper: the host half of kernels/cuda/device/hopper.cuh, which says what each name means.
 * Whatever goes on while threads go on (copies, products) happens at a random moment between its
 * start and the wait that covers it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_HOPPER_H
#define DQ_SIMT_HOPPER_H

#include "tests/simt/simt.h"

/* ------------------------------------------------------------------------------ what the .cpp have */
unsigned simt_cluster_rank(int line);
void simt_cluster_arrive(int line);
void simt_cluster_wait(int line);
void simt_mbarrier_init(void *barrier, unsigned count, const char *name, int line);
void simt_fence_mbarrier_init(int line);
void simt_mbarrier_arrive(void *barrier, unsigned bytes, int line);
void simt_mbarrier_arrive_remote(void *barrier, unsigned rank, int line);
bool simt_mbarrier_try_wait(void *barrier, unsigned parity, bool poll, const char *name, int line);
void simt_fence_async(int line);
void simt_bulk_copy(void *smem, const void *global, unsigned bytes, void *barrier, unsigned ranks,
                    int line);
void simt_setmaxnreg(int registers, bool more, int line);
void simt_wgmma_fence(int line);
void simt_wgmma_commit(int line);
void simt_wgmma_wait(int groups, int line);
uint32_t simt_smem_address(const void *smem, int line);

/* What a thread has done with its products. */
struct simt_wgmma_thread {
    uint64_t group; /* the open one; groups below `done` are waited for */
    uint64_t done, fences;
};
simt_wgmma_thread *simt_wgmma_self(void);
/* Of registers: the group of the last product with them plus 1, and how many fences there were when
 * they were touched last, plus 1. */
struct simt_use {
    simt_wgmma_thread *thread;
    uint64_t group, touched;
    uint64_t held; /* the group before the last dq_hold, plus 1 */
    int line;      /* of that product */
    bool accumulator;
};
[[noreturn]] void simt_fail_touch(const simt_use *use, int line);
[[noreturn]] void simt_fail_hold(const simt_use *use, int line);

enum simt_wgmma_kind { SIMT_WGMMA_F16, SIMT_WGMMA_BF16, SIMT_WGMMA_S8 };
/* One product as one lane sees it; a NULL: A is behind a descriptor. */
struct simt_wgmma {
    simt_wgmma_kind kind;
    int n;
    void *d;
    const uint32_t *a;
    simt_use *d_use, *a_use;
    uint64_t a_descriptor, b_descriptor;
    bool add;
    int line;
};
void simt_wgmma_start(const simt_wgmma *product);

/* ---------------------------------------------------------------------------------------- launches */
#define DQ_LAUNCH_CLUSTER(kernel, cluster, grid, threads, smem_bytes, stream, ...)                 \
    do {                                                                                           \
        dq_trace_begin(#kernel, stream);                                                           \
        simt_next_cluster(cluster);                                                                \
        simt_launch(kernel, #kernel, (grid), (threads), (smem_bytes), (stream), ##__VA_ARGS__);    \
        dq_trace_end(stream);                                                                      \
    } while (0)
void simt_next_cluster(unsigned blocks); /* of the next launch */
template <class K>
static inline cudaError_t dq_resident_clusters(int *n, K *, unsigned cluster, unsigned, size_t)
{
    const cudaError_t e = cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, 0);
    *n /= (int)cluster;
    return e;
}

/* ---------------------------------------------------------------------------------------- clusters */
DQ_DEVICE unsigned dq_cluster_rank(SIMT_LINE)
{
    return simt_cluster_rank(line);
}
DQ_DEVICE void dq_cluster_arrive(SIMT_LINE)
{
    simt_cluster_arrive(line);
}
DQ_DEVICE void dq_cluster_wait(SIMT_LINE)
{
    simt_cluster_wait(line);
}
#define DQ_CLUSTER_SYNC(name)                                                                      \
    (simt_without(#name) ? (void)0 : (dq_cluster_arrive(), dq_cluster_wait()))

/* --------------------------------------------------------------------------------------- mbarriers */
#define DQ_MBARRIER_INIT(barrier, count) simt_mbarrier_init(barrier, count, #barrier, __LINE__)
DQ_DEVICE void dq_fence_mbarrier_init(SIMT_LINE)
{
    simt_fence_mbarrier_init(line);
}
DQ_DEVICE void dq_mbarrier_arrive(dq_mbarrier *barrier, SIMT_LINE)
{
    simt_mbarrier_arrive(barrier, 0, line);
}
DQ_DEVICE void dq_mbarrier_arrive_expect(dq_mbarrier *barrier, unsigned bytes, SIMT_LINE)
{
    simt_mbarrier_arrive(barrier, bytes, line);
}
DQ_DEVICE void dq_mbarrier_arrive_remote(dq_mbarrier *barrier, unsigned rank, SIMT_LINE)
{
    simt_mbarrier_arrive_remote(barrier, rank, line);
}
struct dq_remote_mbarrier {
    dq_mbarrier *barrier;
    unsigned rank;
};
DQ_DEVICE dq_remote_mbarrier dq_remote_of(dq_mbarrier *barrier, unsigned rank)
{
    return dq_remote_mbarrier{barrier, rank};
}
DQ_DEVICE void dq_mbarrier_arrive_remote(dq_remote_mbarrier first, int i, SIMT_LINE)
{
    simt_mbarrier_arrive_remote(first.barrier + i, first.rank, line);
}
DQ_DEVICE bool dq_mbarrier_try_wait(dq_mbarrier *barrier, unsigned parity, SIMT_LINE)
{
    return simt_mbarrier_try_wait(barrier, parity, true, "dq_mbarrier_try_wait", line);
}
DQ_DEVICE void simt_mbarrier_wait(dq_mbarrier *barrier, unsigned parity, const char *name, int line)
{
    while (!simt_mbarrier_try_wait(barrier, parity, false, name, line)) {
    }
}
#define DQ_MBARRIER_WAIT(barrier, parity, name)                                                    \
    (simt_without(#name) ? (void)0 : simt_mbarrier_wait(barrier, parity, #name, __LINE__))

/* ---------------------------------------------------------------------------- copies and their view */
#define DQ_FENCE_ASYNC(name) (simt_without(#name) ? (void)0 : dq_fence_async())
DQ_DEVICE void dq_fence_async(SIMT_LINE)
{
    simt_fence_async(line);
}
DQ_DEVICE void dq_bulk_copy(void *smem, const void *global, unsigned bytes, dq_mbarrier *barrier,
                            SIMT_LINE)
{
    simt_bulk_copy(smem, global, bytes, barrier, 1u << simt_cluster_rank(line), line);
}
DQ_DEVICE void dq_bulk_copy_multicast(void *smem, const void *global, unsigned bytes,
                                      dq_mbarrier *barrier, unsigned ranks, SIMT_LINE)
{
    simt_bulk_copy(smem, global, bytes, barrier, ranks, line);
}

/* --------------------------------------------------------------------------------------- registers */
template <int N> DQ_DEVICE void dq_setmaxnreg_inc(SIMT_LINE)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread");
    simt_setmaxnreg(N, true, line);
}
template <int N> DQ_DEVICE void dq_setmaxnreg_dec(SIMT_LINE)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread");
    simt_setmaxnreg(N, false, line);
}

/* An index that knows the line where it is used. */
struct simt_index {
    int i, line;
    simt_index(int at, int where = __builtin_LINE()) : i(at), line(where)
    {
    }
};
template <class T, int COUNT> struct dq_registers {
    T v[COUNT];
    simt_use use;
    dq_registers()
    {
        memset(v, 0xff, sizeof v); /* as floats, no numbers */
        use = {simt_wgmma_self(), 0, 0, 0, 0, false};
        use.touched = use.thread->fences + 1;
    }
    ~dq_registers()
    {
        if (use.group > use.thread->done) simt_fail_touch(&use, -1);
    }
    dq_registers(const dq_registers &) = delete;
    dq_registers &operator=(const dq_registers &) = delete;
    T &operator[](simt_index at)
    {
        if (use.group > use.thread->done) simt_fail_touch(&use, at.line);
        if (use.accumulator && use.held != use.group) simt_fail_hold(&use, at.line);
        if (at.i < 0 || at.i >= COUNT) simt_fail(at.line, "register %d of %d", at.i, COUNT);
        use.touched = use.thread->fences + 1;
        return v[at.i];
    }
};
/* What a compiler moves is not simulated, but that it could. */
template <class T, int COUNT> DQ_DEVICE void dq_hold(dq_registers<T, COUNT> &r, SIMT_LINE)
{
    if (r.use.group > r.use.thread->done) simt_fail_touch(&r.use, line);
    r.use.held = r.use.group;
}

/* ---------------------------------------------------------------------------------------- products */
#define DQ_WGMMA_FENCE(name)   (simt_without(#name) ? (void)0 : dq_wgmma_fence())
#define DQ_WGMMA_WAIT(n, name) (simt_without(#name) ? dq_wgmma_wait<(n) + 1>() : dq_wgmma_wait<n>())
DQ_DEVICE void dq_wgmma_fence(SIMT_LINE)
{
    simt_wgmma_fence(line);
}
DQ_DEVICE void dq_wgmma_commit(SIMT_LINE)
{
    simt_wgmma_commit(line);
}
template <int N> DQ_DEVICE void dq_wgmma_wait(SIMT_LINE)
{
    static_assert(N >= 0 && N <= 7, "groups");
    simt_wgmma_wait(N, line);
}
DQ_DEVICE uint32_t dq_smem_address(const void *smem, SIMT_LINE)
{
    return simt_smem_address(smem, line);
}
DQ_DEVICE uint64_t dq_descriptor_field(uint32_t x, SIMT_LINE)
{
    if (x % 16 || x >> 18) simt_fail(line, "descriptor: %u is no multiple of 16 below 262144", x);
    return x >> 4;
}
#define SIMT_WGMMA(name, T, kind)                                                                  \
    template <int HALF, int COUNT>                                                                 \
    DQ_DEVICE void name(dq_registers<T, HALF> &d, dq_registers<uint32_t, COUNT> &a, int at,        \
                        uint64_t b_descriptor, bool add, SIMT_LINE)                                \
    {                                                                                              \
        static_assert(HALF == 32 || HALF == 64 || HALF == 96 || HALF == 128, "columns");           \
        if (at < 0 || at + 4 > COUNT) simt_fail(line, "A: registers %d.. of %d", at, COUNT);       \
        const simt_wgmma p = {kind,   2 * HALF, d.v,          a.v + at, &d.use,                    \
                              &a.use, 0,        b_descriptor, add,      line};                     \
        simt_wgmma_start(&p);                                                                      \
    }                                                                                              \
    template <int HALF>                                                                            \
    DQ_DEVICE void name(dq_registers<T, HALF> &d, uint64_t a_descriptor, uint64_t b_descriptor,    \
                        bool add, SIMT_LINE)                                                       \
    {                                                                                              \
        static_assert(HALF == 32 || HALF == 64 || HALF == 96 || HALF == 128, "columns");           \
        const simt_wgmma p = {kind, 2 * HALF,     d.v,          NULL, &d.use,                      \
                              NULL, a_descriptor, b_descriptor, add,  line};                       \
        simt_wgmma_start(&p);                                                                      \
    }
SIMT_WGMMA(dq_wgmma_f16, float, SIMT_WGMMA_F16)
SIMT_WGMMA(dq_wgmma_bf16, float, SIMT_WGMMA_BF16)
SIMT_WGMMA(dq_wgmma_s8, int32_t, SIMT_WGMMA_S8)
#undef SIMT_WGMMA

#endif
