/* hopper: instructions of compute capability 9.0 that load and multiply asynchronously: products of
 * a warpgroup, mbarriers, bulk copies, clusters, registers that warpgroups hand over. As ptx.cuh
 * for them: nvcc takes the device half below, any other compiler takes simt_hopper.h (tests/simt),
 * which runs the same names on a CPU.
 *
 * A warpgroup is four warps, the first a multiple of four. Names of this header are for whole warps
 * whose lanes are together, and products for whole warpgroups; but mbarriers and copies are for
 * single threads.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HOPPER_CUH
#define DQ_HOPPER_CUH

#include "kernels/cuda/device/ptx.cuh"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "hopper.cuh needs compute capability 9.0a: compile the kernel for sm_90a alone"
#endif

/* An object of shared memory. A phase ends when all arrivals and all bytes that it expects are
 * there. */
struct alignas(8) dq_mbarrier {
    uint64_t state;
};

/* How rows of 16-byte cells lie in shared memory; the values are those of a descriptor. */
enum dq_swizzle { DQ_SWIZZLE_NONE = 0, DQ_SWIZZLE_128 = 1, DQ_SWIZZLE_64 = 2, DQ_SWIZZLE_32 = 3 };

#ifdef __CUDACC__

/* ------------------------------------------------------------------------------------- launches */
/* As DQ_LAUNCH, in clusters of so many blocks that follow each other along x. */
#define DQ_LAUNCH_CLUSTER(kernel, cluster, grid, threads, smem_bytes, stream, ...)                 \
    do {                                                                                           \
        dq_trace_begin(#kernel, stream);                                                           \
        dq_launch_cluster(kernel, (cluster), (grid), (threads), (smem_bytes), (stream),            \
                          ##__VA_ARGS__);                                                          \
        dq_trace_end(stream);                                                                      \
    } while (0)
struct dq_cluster_config {
    cudaLaunchAttribute shape = {};
    cudaLaunchConfig_t launch = {};
    dq_cluster_config(unsigned cluster, dim3 grid, unsigned threads, size_t smem_bytes)
    {
        shape.id = cudaLaunchAttributeClusterDimension;
        shape.val.clusterDim.x = cluster;
        shape.val.clusterDim.y = shape.val.clusterDim.z = 1;
        launch.gridDim = grid;
        launch.blockDim = dim3(threads);
        launch.dynamicSmemBytes = smem_bytes;
        launch.attrs = &shape;
        launch.numAttrs = 1;
    }
    dq_cluster_config(const dq_cluster_config &) = delete; /* points to itself */
    dq_cluster_config &operator=(const dq_cluster_config &) = delete;
};
template <class T> struct dq_same {
    typedef T type;
};
template <class... P>
static inline void dq_launch_cluster(void (*kernel)(P...), unsigned cluster, dim3 grid,
                                     unsigned threads, size_t smem_bytes, cudaStream_t stream,
                                     typename dq_same<P>::type... args)
{
    dq_cluster_config config(cluster, grid, threads, smem_bytes);
    config.launch.stream = stream;
    cudaLaunchKernelEx(&config.launch, kernel, args...);
}
/* Clusters that run at once: multiprocessors that share one are few. */
template <class... P>
static inline cudaError_t dq_resident_clusters(int *n, void (*kernel)(P...), unsigned cluster,
                                               unsigned threads, size_t smem_bytes)
{
    dq_cluster_config config(cluster, dim3(cluster), threads, smem_bytes);
    return cudaOccupancyMaxActiveClusters(n, kernel, &config.launch);
}

/* ------------------------------------------------------------------------------------- clusters */
/* Of the calling block within its cluster. */
DQ_DEVICE unsigned dq_cluster_rank(void)
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
/* All threads of the cluster that have not returned; what they did before is seen after the
 * wait. */
DQ_DEVICE void dq_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
DQ_DEVICE void dq_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
#define DQ_CLUSTER_SYNC(name) (dq_cluster_arrive(), dq_cluster_wait())

/* ------------------------------------------------------------------------------------ mbarriers */
/* By one thread, once; every phase takes `count` arrivals. Copies see it after a
 * dq_fence_mbarrier_init of that thread, other threads after a barrier, other blocks after both. */
#define DQ_MBARRIER_INIT(barrier, count) dq_mbarrier_init(barrier, count)
DQ_DEVICE void dq_mbarrier_init(dq_mbarrier *barrier, unsigned count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(dq_smem_address(barrier)),
                 "r"(count)
                 : "memory");
}
DQ_DEVICE void dq_fence_mbarrier_init(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DQ_DEVICE void dq_mbarrier_arrive(dq_mbarrier *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(dq_smem_address(barrier))
                 : "memory");
}
/* The phase also expects so many bytes of copies. */
DQ_DEVICE void dq_mbarrier_arrive_expect(dq_mbarrier *barrier, unsigned bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(dq_smem_address(barrier)),
        "r"(bytes)
        : "memory");
}
/* A barrier that lies in the block of that rank where `barrier` lies in this one. */
struct dq_remote_mbarrier {
    uint32_t address;
};
DQ_DEVICE dq_remote_mbarrier dq_remote_of(dq_mbarrier *barrier, unsigned rank)
{
    dq_remote_mbarrier r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(r.address)
                 : "r"(dq_smem_address(barrier)), "r"(rank));
    return r;
}
/* At the i-th barrier from that one on. */
DQ_DEVICE void dq_mbarrier_arrive_remote(dq_remote_mbarrier first, int i)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(
                     first.address + (unsigned)i * (unsigned)sizeof(dq_mbarrier))
                 : "memory");
}
DQ_DEVICE void dq_mbarrier_arrive_remote(dq_mbarrier *barrier, unsigned rank)
{
    dq_mbarrier_arrive_remote(dq_remote_of(barrier, rank), 0);
}
/* Whether the phase of that parity has ended; false also if it has not for a while. Phases count
 * from 0, and before the first one ends the one of parity 1 has ended. */
DQ_DEVICE bool dq_mbarrier_try_wait(dq_mbarrier *barrier, unsigned parity)
{
    uint32_t ended;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(ended)
                 : "r"(dq_smem_address(barrier)), "r"(parity)
                 : "memory");
    return ended != 0;
}
#define DQ_MBARRIER_WAIT(barrier, parity, name) dq_mbarrier_wait(barrier, parity)
DQ_DEVICE void dq_mbarrier_wait(dq_mbarrier *barrier, unsigned parity)
{
    while (!dq_mbarrier_try_wait(barrier, parity)) {
    }
}

/* ------------------------------------------------------------------------ copies and their view */
/* What the thread has written to shared memory is seen by copies and products that start after it
 * (and after a barrier, if others start them). */
#define DQ_FENCE_ASYNC(name) dq_fence_async()
DQ_DEVICE void dq_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Both addresses and bytes are multiples of 16. The bytes count for the barrier's phase when they
 * are there. */
DQ_DEVICE void dq_bulk_copy(void *smem, const void *global, unsigned bytes, dq_mbarrier *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(dq_smem_address(barrier))
                 : "memory");
}
/* To that place, and for the barrier of that place, in every block whose rank is a bit of
 * `ranks`. */
DQ_DEVICE void dq_bulk_copy_multicast(void *smem, const void *global, unsigned bytes,
                                      dq_mbarrier *barrier, unsigned ranks)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(dq_smem_address(barrier)),
                 "h"((uint16_t)ranks)
                 : "memory");
}

/* ------------------------------------------------------------------------------------ registers */
/* By all threads of a warpgroup: each of them has N registers from then on. inc waits until others
 * have given enough away. The kernel says how many blocks are resident (DQ_KERNEL_BLOCKS), or the
 * compiler ignores both. */
template <int N> DQ_DEVICE void dq_setmaxnreg_inc(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread");
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> DQ_DEVICE void dq_setmaxnreg_dec(void)
{
    static_assert(N % 8 == 0 && N >= 24 && N <= 256, "registers of a thread");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Registers that products read or write while the thread goes on. Until the wait that covers the
 * product they are not touched; after it, accumulators are held (dq_hold) before they are; and once
 * they were touched a fence stands before the next product with them. */
template <class T, int COUNT> struct dq_registers {
    T v[COUNT];
    __device__ __forceinline__ dq_registers()
    {
    }
    dq_registers(const dq_registers &) = delete;
    dq_registers &operator=(const dq_registers &) = delete;
    __device__ __forceinline__ T &operator[](int i)
    {
        return v[i];
    }
};
DQ_DEVICE void dq_hold(float &r)
{
    asm volatile("" : "+f"(r)::"memory");
}
DQ_DEVICE void dq_hold(int32_t &r)
{
    asm volatile("" : "+r"(r)::"memory");
}
DQ_DEVICE void dq_hold(uint32_t &r)
{
    asm volatile("" : "+r"(r)::"memory");
}
/* The compiler moves no use of the registers across this point; after each wait. */
template <class T, int COUNT> DQ_DEVICE void dq_hold(dq_registers<T, COUNT> &r)
{
    DQ_UNROLL
    for (int i = 0; i < COUNT; i++) dq_hold(r.v[i]);
}

/* ------------------------------------------------------------------------------------- products */
/* A number of 18 bits, a multiple of 16, as it stands in a descriptor. */
DQ_DEVICE uint64_t dq_descriptor_field(uint32_t x)
{
    return (x & 0x3ffffu) >> 4;
}
#define DQ_WGMMA_FENCE(name)   dq_wgmma_fence()
#define DQ_WGMMA_WAIT(n, name) dq_wgmma_wait<n>()
DQ_DEVICE void dq_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
/* Closes the group of the products since the last commit. */
DQ_DEVICE void dq_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most N of the newest groups are on their way. */
template <int N> DQ_DEVICE void dq_wgmma_wait(void)
{
    static_assert(N >= 0 && N <= 7, "groups");
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* clang-format off */
#define DQ_PTX_IO8(c, d, i)  c((d)[i]), c((d)[(i) + 1]), c((d)[(i) + 2]), c((d)[(i) + 3]), \
                             c((d)[(i) + 4]), c((d)[(i) + 5]), c((d)[(i) + 6]), c((d)[(i) + 7])
#define DQ_PTX_IO32(c, d, i) DQ_PTX_IO8(c, d, i), DQ_PTX_IO8(c, d, (i) + 8), \
                             DQ_PTX_IO8(c, d, (i) + 16), DQ_PTX_IO8(c, d, (i) + 24)
#define DQ_PTX_IO64(c, d, i) DQ_PTX_IO32(c, d, i), DQ_PTX_IO32(c, d, (i) + 32)
#define DQ_PTX_IO96(c, d, i) DQ_PTX_IO64(c, d, i), DQ_PTX_IO32(c, d, (i) + 64)
#define DQ_PTX_IO128(c, d, i) DQ_PTX_IO64(c, d, i), DQ_PTX_IO64(c, d, (i) + 64)
#define DQ_PTX_D32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, " \
    "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DQ_PTX_D64 DQ_PTX_D32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
    "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
    "%62, %63"
#define DQ_PTX_D96 DQ_PTX_D64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, " \
    "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, " \
    "%94, %95"
#define DQ_PTX_D128 DQ_PTX_D96 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
    "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
    "%122, %123, %124, %125, %126, %127"

/* d = A B, or d + A B with add: d is 64 x 2 COUNT, where entry 4 j + 2 h + e of lane 4 g + q of
 * warp w is row 16 w + g + 8 h, column 8 j + 2 q + e. A is 64 x 16 (f16, bf16) or 64 x 32 (s8): in
 * registers a[at..at + 3], laid out as fragments.h has A for every warp, or behind a descriptor; B,
 * with as many rows as d has columns, is behind one. */
#define DQ_PTX_WGMMA(name, T, c, shape, types, scales, count, a0, a1, a2, a3, b, p, b_ss, p_ss) \
template <int COUNT> \
DQ_DEVICE void name(dq_registers<T, count> &d, dq_registers<uint32_t, COUNT> &a, int at, \
                    uint64_t bd, bool add) \
{ \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p ", 0;\n" \
                 "wgmma.mma_async.sync.aligned." shape types " {" DQ_PTX_D##count "}, " \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p" scales(0) ";\n}" \
                 : DQ_PTX_IO##count(c, d.v, 0) \
                 : "r"(a.v[at]), "r"(a.v[at + 1]), "r"(a.v[at + 2]), "r"(a.v[at + 3]), "l"(bd), \
                   "r"((int)add)); \
} \
DQ_DEVICE void name(dq_registers<T, count> &d, uint64_t ad, uint64_t bd, bool add) \
{ \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #p_ss ", 0;\n" \
                 "wgmma.mma_async.sync.aligned." shape types " {" DQ_PTX_D##count "}, " \
                 "%" #a0 ", %" #b_ss ", p" scales(1) ";\n}" \
                 : DQ_PTX_IO##count(c, d.v, 0) \
                 : "l"(ad), "l"(bd), "r"((int)add)); \
}
#define DQ_PTX_SCALES_0 ", 1, 1, 0"
#define DQ_PTX_SCALES_1 ", 1, 1, 0, 0"
#define DQ_PTX_SCALES(ss) DQ_PTX_SCALES_##ss
#define DQ_PTX_NO_SCALES(ss)
#define DQ_PTX_F32 "+f"
#define DQ_PTX_S32 "+r"
#define DQ_PTX_WGMMA_OF(n, count, ...) \
DQ_PTX_WGMMA(dq_wgmma_f16, float, DQ_PTX_F32, "m64n" #n "k16", ".f32.f16.f16", DQ_PTX_SCALES, \
             count, __VA_ARGS__) \
DQ_PTX_WGMMA(dq_wgmma_bf16, float, DQ_PTX_F32, "m64n" #n "k16", ".f32.bf16.bf16", DQ_PTX_SCALES, \
             count, __VA_ARGS__) \
DQ_PTX_WGMMA(dq_wgmma_s8, int32_t, DQ_PTX_S32, "m64n" #n "k32", ".s32.s8.s8", DQ_PTX_NO_SCALES, \
             count, __VA_ARGS__)
DQ_PTX_WGMMA_OF(64, 32, 32, 33, 34, 35, 36, 37, 33, 34)
DQ_PTX_WGMMA_OF(128, 64, 64, 65, 66, 67, 68, 69, 65, 66)
DQ_PTX_WGMMA_OF(192, 96, 96, 97, 98, 99, 100, 101, 97, 98)
DQ_PTX_WGMMA_OF(256, 128, 128, 129, 130, 131, 132, 133, 129, 130)
/* clang-format on */

#else
#include "tests/simt/simt_hopper.h"
#endif

/* ------------------------------------------------------------------------------- both compilers */
/* Where a product finds an operand whose rows run along k, in units of core matrices (8 rows of 16
 * bytes). Without a swizzle the 8 rows follow each other, `leading` bytes lie between core matrices
 * that are adjacent along k, and `stride` bytes between those adjacent along the rows. With one,
 * rows are 32, 64 or 128 bytes apart, leading is not read, and the address of a cell is that of the
 * plain layout with bits 4.. exchanged by those from bit 7 on; then smem is a multiple of 256, 512
 * or 1024 but for the offset of a step along k. All are multiples of 16. */
DQ_DEVICE uint64_t dq_make_descriptor(uint32_t smem_address, unsigned leading, unsigned stride,
                                      dq_swizzle swizzle)
{
    return dq_descriptor_field(smem_address) | dq_descriptor_field(leading) << 16 |
           dq_descriptor_field(stride) << 32 | (uint64_t)swizzle << 62;
}

/* What lane 0 has. A compiler knows that it is the same in all lanes: descriptors of such addresses
 * are made in registers of the whole warp, from which products take them. */
DQ_DEVICE uint32_t dq_uniform(uint32_t x)
{
    return dq_shfl(x, 0u);
}

/* n times `bytes`, a multiple of 16, further on; without a carry, as an address has 18 bits. */
DQ_DEVICE uint64_t dq_descriptor_after(uint64_t descriptor, unsigned bytes, int n = 1)
{
    return (uint64_t)((uint32_t)descriptor + (unsigned)n * (bytes / 16)) | descriptor >> 32 << 32;
}

#endif
