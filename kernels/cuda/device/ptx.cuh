/* ptx: every name through which kernels touch the device. Inline assembly and built-ins stand here
 * alone, so that kernels also compile as plain C++: nvcc takes the device half below, any other
 * compiler simt.h (tests/simt), which runs the same names on a CPU.
 *
 * Kernels may rely on: blocks are one-dimensional and whole warps; `mask` names the lanes of a warp
 * that must all reach the same collective; pointers are generic unless called smem (shared memory).
 * Names ending in _rn round once, to nearest, ties to even, and are never contracted: results made
 * of them and of integers are equal bit for bit on every device and on the host.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PTX_CUH
#define DQ_PTX_CUH

#include "kernels/cuda/host/runtime.h"

#define DQ_WARP  32
#define DQ_LANES 0xffffffffu

/* Sixteen bytes, the widest access of one thread. */
struct alignas(16) dq_u4 {
    uint32_t x, y, z, w;
};

#ifdef __CUDACC__

/* ---- structure */
#define DQ_DEVICE static __device__ __forceinline__
#define DQ_BOTH                                                                                    \
    static __host__ __device__ __forceinline__ /* numbers only; tests call it on the host */
#define DQ_RESTRICT __restrict__
/* A parameter that is indexed or pointed to is read where it is: without this, each thread copies
 * it to local memory. */
#define DQ_PARAMETER const __grid_constant__
#define DQ_UNROLL    _Pragma("unroll")
#define DQ_LOOP      _Pragma("unroll 1") /* stays a loop */
/* A kernel's return type and qualifiers; at most `threads` per block, and at least `blocks` of them
 * resident on one multiprocessor. */
#define DQ_KERNEL(threads)                static __global__ void __launch_bounds__(threads)
#define DQ_KERNEL_BLOCKS(threads, blocks) static __global__ void __launch_bounds__(threads, blocks)
/* Shared memory of a block: DQ_SHARED(float, part, [4][32]); contents undefined at the start. */
#define DQ_SHARED(type, name, dims) __shared__ __align__(16) type name dims
/* unsigned char *name: the bytes asked for in the launch, 1024-byte aligned. */
#define DQ_SHARED_DYNAMIC(name) extern __shared__ __align__(1024) unsigned char name[]
/* grid: dim3; threads of a block; bytes of dynamic shared memory. A name with commas stands in
 * parentheses. Failures are in cudaGetLastError. */
#define DQ_LAUNCH(kernel, grid, threads, smem_bytes, stream, ...)                                  \
    do {                                                                                           \
        dq_trace_begin(#kernel, stream);                                                           \
        kernel<<<(grid), (threads), (smem_bytes), (stream)>>>(__VA_ARGS__);                        \
        dq_trace_end(stream);                                                                      \
    } while (0)
/* cudaError_t: allows more than 48 KiB of dynamic shared memory. */
#define DQ_ALLOW_SMEM(kernel, bytes)                                                               \
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,        \
                         (int)(bytes))

DQ_DEVICE unsigned dq_thread(void)
{
    return threadIdx.x;
}
DQ_DEVICE unsigned dq_threads(void)
{
    return blockDim.x;
}
DQ_DEVICE unsigned dq_lane(void)
{
    return threadIdx.x & 31u;
}
DQ_DEVICE unsigned dq_warp(void)
{
    return threadIdx.x >> 5;
}
DQ_DEVICE unsigned dq_block_x(void)
{
    return blockIdx.x;
}
DQ_DEVICE unsigned dq_block_y(void)
{
    return blockIdx.y;
}
DQ_DEVICE unsigned dq_block_z(void)
{
    return blockIdx.z;
}
DQ_DEVICE unsigned dq_grid_x(void)
{
    return gridDim.x;
}
DQ_DEVICE unsigned dq_grid_y(void)
{
    return gridDim.y;
}
DQ_DEVICE unsigned dq_grid_z(void)
{
    return gridDim.z;
}

/* ---- barriers */
/* Barriers have names, since tests/simt/barriers.tsv leaves each out and says what fails. */
#define DQ_SYNC(name)             dq_sync()
#define DQ_WARP_SYNC(name)        dq_warp_sync()
#define DQ_CP_ASYNC_WAIT(n, name) dq_cp_async_wait<n>()
#define DQ_BAR_SYNC(id, n, name)  dq_bar_sync(id, n)
/* All threads of the block; those that have returned count as arrived. */
DQ_DEVICE void dq_sync(void)
{
    __syncthreads();
}
/* Barrier id 1..15 for n threads (whole warps): sync waits, arrive does not. */
DQ_DEVICE void dq_bar_sync(unsigned id, unsigned n)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
}
DQ_DEVICE void dq_bar_arrive(unsigned id, unsigned n)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n) : "memory");
}
/* Also orders memory among the lanes. */
DQ_DEVICE void dq_warp_sync(unsigned mask = DQ_LANES)
{
    __syncwarp(mask);
}
/* Earlier writes are seen by every thread of the device before later ones. */
DQ_DEVICE void dq_fence(void)
{
    __threadfence();
}

/* The compiler moves no access of memory across it, so that loads of an unrolled loop are not all
 * made first. */
DQ_DEVICE void dq_in_order(void)
{
    asm volatile("" ::: "memory");
}

/* ---- exchange in a warp */
/* T: 4- or 8-byte integers, float, double. */
template <class T> DQ_DEVICE T dq_shfl(T v, unsigned lane, unsigned mask = DQ_LANES)
{
    return __shfl_sync(mask, v, (int)lane);
}
template <class T> DQ_DEVICE T dq_shfl_xor(T v, unsigned bits, unsigned mask = DQ_LANES)
{
    return __shfl_xor_sync(mask, v, (int)bits);
}
/* From lane + delta; the own value where there is none. */
template <class T> DQ_DEVICE T dq_shfl_down(T v, unsigned delta, unsigned mask = DQ_LANES)
{
    return __shfl_down_sync(mask, v, delta);
}
DQ_DEVICE uint32_t dq_ballot(bool p, unsigned mask = DQ_LANES)
{
    return __ballot_sync(mask, p);
}
DQ_DEVICE bool dq_any(bool p, unsigned mask = DQ_LANES)
{
    return __any_sync(mask, p) != 0;
}
DQ_DEVICE bool dq_all(bool p, unsigned mask = DQ_LANES)
{
    return __all_sync(mask, p) != 0;
}

/* ---- atomics */
/* On global or shared memory; each returns the value before. No order beyond the one address. */
DQ_DEVICE uint32_t dq_atomic_add(uint32_t *p, uint32_t v)
{
    return atomicAdd(p, v);
}
DQ_DEVICE uint64_t dq_atomic_add(uint64_t *p, uint64_t v)
{
    return atomicAdd((unsigned long long *)p, (unsigned long long)v);
}
DQ_DEVICE float dq_atomic_add(float *p, float v)
{
    return atomicAdd(p, v);
}
DQ_DEVICE double dq_atomic_add(double *p, double v)
{
    return atomicAdd(p, v);
}
/* *flag = 1, which any number of threads may do; seen by the host once it has waited. */
DQ_DEVICE void dq_raise(int32_t *flag)
{
    *(volatile int32_t *)flag = 1;
}
DQ_DEVICE uint32_t dq_atomic_max(uint32_t *p, uint32_t v)
{
    return atomicMax(p, v);
}
DQ_DEVICE int32_t dq_atomic_max(int32_t *p, int32_t v)
{
    return atomicMax(p, v);
}
DQ_DEVICE uint32_t dq_atomic_cas(uint32_t *p, uint32_t expected, uint32_t v)
{
    return atomicCAS(p, expected, v);
}

/* ---- memory */
/* p is a multiple of 8. */
DQ_DEVICE uint64_t dq_load8(const void *p)
{
    return *(const uint64_t *)p;
}
/* p is a multiple of 16. */
DQ_DEVICE dq_u4 dq_load16(const void *p)
{
    uint4 v = *(const uint4 *)p;
    return dq_u4{v.x, v.y, v.z, v.w};
}
DQ_DEVICE void dq_store16(void *p, dq_u4 v)
{
    *(uint4 *)p = make_uint4(v.x, v.y, v.z, v.w);
}
/* Global memory that nothing writes while the kernel runs. */
DQ_DEVICE dq_u4 dq_load16_const(const void *global)
{
    uint4 v = __ldg((const uint4 *)global);
    return dq_u4{v.x, v.y, v.z, v.w};
}
/* Global memory that another block of the same launch wrote before a dq_fence. */
DQ_DEVICE float dq_load_fresh(const float *global)
{
    return __ldcg(global);
}
DQ_DEVICE uint32_t dq_load_fresh(const uint32_t *global)
{
    return __ldcg(global);
}

/* ---- async copy */
DQ_DEVICE uint32_t dq_smem_address(const void *smem)
{
    return (uint32_t)__cvta_generic_to_shared(smem);
}
/* Copies that the calling thread starts; smem holds the bytes, for this thread, after a wait that
 * covers their group, and for others after a barrier after that wait. Both addresses are multiples
 * of the size. Until then the destination is undefined. */
DQ_DEVICE void dq_cp_async16(void *smem, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}
/* The first `bytes` (0..16) come from global, the rest are zero; with 0 global is not read. */
DQ_DEVICE void dq_cp_async16_zfill(void *smem, const void *global, unsigned bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}
DQ_DEVICE void dq_cp_async8(void *smem, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}
DQ_DEVICE void dq_cp_async4(void *smem, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dq_smem_address(smem)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}
/* Closes the group of the copies started since the last commit; a group may be empty. */
DQ_DEVICE void dq_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most N of the thread's newest groups are still on their way. */
template <int N> DQ_DEVICE void dq_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- matrix fragments */
/* Lane 8j + i gives the address (a multiple of 16) of row i of 8 x 8 matrix j of 16-bit elements
 * (x2: lanes 0..15); r[j] is the lane's piece of it, laid out as in tests/simt/fragments.h. */
DQ_DEVICE void dq_ldmatrix_x4(uint32_t r[4], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dq_smem_address(smem))
                 : "memory");
}
DQ_DEVICE void dq_ldmatrix_x2(uint32_t r[2], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(dq_smem_address(smem))
                 : "memory");
}
DQ_DEVICE void dq_ldmatrix_x4_trans(uint32_t r[4], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dq_smem_address(smem))
                 : "memory");
}
DQ_DEVICE void dq_ldmatrix_x2_trans(uint32_t r[2], const void *smem)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(dq_smem_address(smem))
                 : "memory");
}

/* d += A B: A 16 x 32, B 32 x 8, d 16 x 8; sums modulo 2^32. The names say A's type, then B's. */
#define DQ_PTX_MMA8(name, types)                                                                   \
    DQ_DEVICE void name(int32_t d[4], const uint32_t a[4], const uint32_t b[2])                    \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." types                                \
                     ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));          \
    }
DQ_PTX_MMA8(dq_mma_s8s8, "s8.s8")
DQ_PTX_MMA8(dq_mma_u8s8, "u8.s8")
DQ_PTX_MMA8(dq_mma_s8u8, "s8.u8")
#undef DQ_PTX_MMA8
/* d += A B in f16 with f32 sums: A 16 x 16, B 16 x 8. The order and the rounding inside are the
 * device's own; only the bound of a float sum may be relied on. */
DQ_DEVICE void dq_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c + the sum of four products of bytes; modulo 2^32. The names say a's type, then b's. */
#define DQ_PTX_DP4A(name, types, type)                                                             \
    DQ_DEVICE type name(type c, uint32_t a, uint32_t b)                                            \
    {                                                                                              \
        type d;                                                                                    \
        asm("dp4a." types " %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));                  \
        return d;                                                                                  \
    }
DQ_PTX_DP4A(dq_dp4a_s8s8, "s32.s32", int32_t)
DQ_PTX_DP4A(dq_dp4a_u8s8, "u32.s32", int32_t)
DQ_PTX_DP4A(dq_dp4a_s8u8, "s32.u32", int32_t)
DQ_PTX_DP4A(dq_dp4a_u8u8, "u32.u32", uint32_t)
#undef DQ_PTX_DP4A

/* ---- bits */
/* Bits that are 1; zeros above the highest 1 (32 of 0). */
DQ_DEVICE unsigned dq_popc(uint32_t x)
{
    return (unsigned)__popc((int)x);
}
DQ_DEVICE unsigned dq_clz(uint32_t x)
{
    return (unsigned)__clz((int)x);
}
/* Byte i of the result is byte (select >> 4 i) & 7 of b:a; with bit 3 set, that byte's sign. */
DQ_DEVICE uint32_t dq_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(select));
    return r;
}

/* ---- numbers */
DQ_DEVICE uint32_t dq_f32_bits(float x)
{
    return __float_as_uint(x);
}
DQ_DEVICE float dq_bits_f32(uint32_t x)
{
    return __uint_as_float(x);
}
DQ_DEVICE uint64_t dq_f64_bits(double x)
{
    return (uint64_t)__double_as_longlong(x);
}
DQ_DEVICE double dq_bits_f64(uint64_t x)
{
    return __longlong_as_double((long long)x);
}

DQ_DEVICE float dq_add_rn(float a, float b)
{
    return __fadd_rn(a, b);
}
DQ_DEVICE float dq_sub_rn(float a, float b)
{
    return __fsub_rn(a, b);
}
DQ_DEVICE float dq_mul_rn(float a, float b)
{
    return __fmul_rn(a, b);
}
DQ_DEVICE float dq_fma_rn(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}
DQ_DEVICE float dq_div_rn(float a, float b)
{
    return __fdiv_rn(a, b);
}
DQ_DEVICE float dq_sqrt_rn(float a)
{
    return __fsqrt_rn(a);
}
DQ_DEVICE double dq_add_rn(double a, double b)
{
    return __dadd_rn(a, b);
}
DQ_DEVICE double dq_sub_rn(double a, double b)
{
    return __dsub_rn(a, b);
}
DQ_DEVICE double dq_mul_rn(double a, double b)
{
    return __dmul_rn(a, b);
}
DQ_DEVICE double dq_fma_rn(double a, double b, double c)
{
    return __fma_rn(a, b, c);
}
DQ_DEVICE double dq_div_rn(double a, double b)
{
    return __ddiv_rn(a, b);
}
DQ_DEVICE double dq_sqrt_rn(double a)
{
    return __dsqrt_rn(a);
}
/* Within a few units of the last place; not equal between devices and host. */
DQ_DEVICE double dq_exp(double x)
{
    return exp(x);
}
DQ_DEVICE double dq_log(double x)
{
    return log(x);
}
/* The larger or smaller; the other one where one is a NaN. */
DQ_DEVICE float dq_max(float a, float b)
{
    return fmaxf(a, b);
}
DQ_DEVICE float dq_min(float a, float b)
{
    return fminf(a, b);
}
/* NaN of any kind wins, as 0x7fffffff. */
DQ_DEVICE float dq_max_nan(float a, float b)
{
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
DQ_DEVICE float dq_abs(float a)
{
    return fabsf(a);
}
/* To an integral value, ties to even. */
DQ_DEVICE float dq_rint(float x)
{
    return rintf(x);
}

/* Rounded to nearest, ties to even; beyond the largest finite value it is an infinity. */
DQ_DEVICE uint16_t dq_f32_bf16(float x)
{
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
/* low in bits 0..15, high in bits 16..31 */
DQ_DEVICE uint32_t dq_f32x2_bf16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DQ_DEVICE float dq_bf16_f32(uint16_t x)
{
    return __uint_as_float((uint32_t)x << 16);
}
DQ_DEVICE uint16_t dq_f32_f16(float x)
{
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
    return r;
}
/* low in bits 0..15, high in bits 16..31 */
DQ_DEVICE uint32_t dq_f32x2_f16(float low, float high)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DQ_DEVICE float dq_f16_f32(uint16_t x)
{
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}
/* To nearest, ties to even, into -128..127 (s8) or the range of s32; a NaN gives 0. */
DQ_DEVICE int32_t dq_f32_s8(float x)
{
    int32_t r;
    asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
DQ_DEVICE int32_t dq_f32_s32(float x)
{
    int32_t r;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
DQ_DEVICE float dq_s32_f32(int32_t x)
{
    return __int2float_rn(x);
}
/* The lowest byte of x, exactly. */
DQ_DEVICE float dq_u8_f32(uint32_t x)
{
    float r;
    asm("cvt.rn.f32.u8 %0, %1;" : "=f"(r) : "r"(x));
    return r;
}
/* 2^x by the special function unit: relative error at most 2^-22 (tests/gpu measures it); results
 * below 2^-126 are 0, -inf gives 0. Not equal between devices and host. */
DQ_DEVICE float dq_exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

#else
#include "tests/simt/simt.h"
#define DQ_PARAMETER const
#endif

/* ---- both compilers */
/* exp as kernels/cpu/isa/loops.h has it, bit for bit: exp(x) = 2^n exp(r), r = x - n ln 2 in two
 * steps, exp(r) by its series; results that would be subnormal are 0. */
DQ_DEVICE float dq_exp_as_cpu(float x)
{
    const float low = -87.33654f, high = 88.72283f;
    float clamped = x < high ? x : high;
    clamped = clamped > low ? clamped : low;
    float n = dq_rint(dq_mul_rn(clamped, 1.44269504f));
    float r = dq_sub_rn(clamped, dq_mul_rn(n, 0.693359375f));
    r = dq_sub_rn(r, dq_mul_rn(n, -2.12194440e-4f));
    float q = dq_add_rn(dq_mul_rn(1.98412698e-4f, r), 1.38888889e-3f);
    q = dq_add_rn(dq_mul_rn(q, r), 8.33333333e-3f);
    q = dq_add_rn(dq_mul_rn(q, r), 4.16666667e-2f);
    q = dq_add_rn(dq_mul_rn(q, r), 1.66666667e-1f);
    q = dq_add_rn(dq_mul_rn(q, r), 0.5f);
    float y = dq_add_rn(dq_mul_rn(dq_mul_rn(q, r), r), r);
    y = dq_add_rn(y, 1.0f);
    int32_t k = dq_f32_s32(n), half = k >> 1, rest = k - half;
    y = dq_mul_rn(y, dq_bits_f32((uint32_t)(half + 127) << 23));
    y = dq_mul_rn(y, dq_bits_f32((uint32_t)(rest + 127) << 23));
    if (x < low) y = 0.0f;
    if (x > high) y = dq_bits_f32(0x7f800000u);
    return x != x ? x : y;
}

#endif
