/* simt: the host half of kernels/cuda/device/ptx.cuh, which says what each name means. Every CUDA thread of a
 * block is a fiber. Whatever lanes or threads do together is a
 * rendezvous: each posts its operands, the last to arrive does the work for all. Line numbers travel
 * along for the reports.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_H
#define DQ_SIMT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/simt/numerics.h"
#include "tests/simt/simt_runtime.h"

#define DQ_DEVICE   static inline
#define DQ_BOTH     static inline
#define DQ_RESTRICT __restrict__
#define DQ_UNROLL
#define DQ_LOOP
#define DQ_KERNEL(threads)                static void
#define DQ_KERNEL_BLOCKS(threads, blocks) static void
#define DQ_SHARED(type, name, dims)                                                                \
    typedef type name##_shared dims;                                                               \
    static const char name##_key = 0;                                                              \
    name##_shared &name = *(name##_shared *)simt_shared(&name##_key, sizeof(name##_shared), 16)
#define DQ_SHARED_DYNAMIC(name) unsigned char *const name = simt_shared_dynamic()
#define DQ_LAUNCH(kernel, grid, threads, smem_bytes, stream, ...)                                  \
    do {                                                                                           \
        dq_trace_begin(#kernel, stream);                                                           \
        simt_launch(kernel, #kernel, (grid), (threads), (smem_bytes), (stream), ##__VA_ARGS__);    \
        dq_trace_end(stream);                                                                      \
    } while (0)
#define DQ_ALLOW_SMEM(kernel, bytes)                                                               \
    cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,      \
                         (int)(bytes))

/* -------------------------------------------------------------------------------- what simt.cpp has */
struct simt_place {
    unsigned thread, threads;
    dim3 block, grid;
};
const simt_place *simt_here(void);
void *simt_shared(const void *key, size_t bytes, size_t align);
unsigned char *simt_shared_dynamic(void);
/* body is deleted after the launch has run. */
void simt_enqueue(const void *kernel, const char *name, dim3 grid, unsigned threads, size_t smem,
                  cudaStream_t s, void (*run)(void *), void (*drop)(void *), void *body);
template <class F>
void simt_enqueue_body(const void *kernel, const char *name, dim3 grid, unsigned threads,
                       size_t smem, cudaStream_t s, F body)
{
    simt_enqueue(
        kernel, name, grid, threads, smem, s, [](void *p) { (*(F *)p)(); },
        [](void *p) { delete (F *)p; }, new F(body));
}
template <class T> struct simt_same {
    typedef T type;
};
/* The arguments take the types of the parameters here, at the launch; the kernel runs later. */
template <class... P>
void simt_launch(void (*kernel)(P...), const char *name, dim3 grid, unsigned threads, size_t smem,
                 cudaStream_t s, typename simt_same<P>::type... args)
{
    simt_enqueue_body((const void *)kernel, name, grid, threads, smem, s,
                      [kernel, args...] { kernel(args...); });
}
/* Ends the launch with a report; does not return. */
[[noreturn]] void simt_fail(int line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A point where another thread may run, or a copy may land, if the schedule wants it. */
void simt_pause(void);
void simt_sync(int line);
void simt_bar(unsigned id, unsigned n, bool wait, int line);
void simt_warp_sync(unsigned mask, int line);
uint64_t simt_exchange(uint64_t v, unsigned source, unsigned mask, const char *what, int line);
uint32_t simt_ballot(bool p, unsigned mask, const char *what, int line);
void simt_ldmatrix(uint32_t *r, const void *smem, int count, bool trans, int line);
enum simt_mma_kind { SIMT_MMA_S8S8, SIMT_MMA_U8S8, SIMT_MMA_S8U8, SIMT_MMA_F16 };
void simt_mma(simt_mma_kind kind, void *d, const uint32_t *a, const uint32_t *b, int line);
void simt_copy(void *smem, const void *global, unsigned size, unsigned bytes, int line);
void simt_copy_commit(int line);
void simt_stored(
    const void *p); /* the thread has stored 16 bytes there, perhaps of shared memory */
void simt_copy_wait(int groups, int line);

#define SIMT_LINE int line = __builtin_LINE()

/* ------------------------------------------------------------------------------------- structure */
DQ_DEVICE unsigned dq_thread(void)
{
    return simt_here()->thread;
}
DQ_DEVICE unsigned dq_threads(void)
{
    return simt_here()->threads;
}
DQ_DEVICE unsigned dq_lane(void)
{
    return simt_here()->thread & 31u;
}
DQ_DEVICE unsigned dq_warp(void)
{
    return simt_here()->thread >> 5;
}
DQ_DEVICE unsigned dq_block_x(void)
{
    return simt_here()->block.x;
}
DQ_DEVICE unsigned dq_block_y(void)
{
    return simt_here()->block.y;
}
DQ_DEVICE unsigned dq_block_z(void)
{
    return simt_here()->block.z;
}
DQ_DEVICE unsigned dq_grid_x(void)
{
    return simt_here()->grid.x;
}
DQ_DEVICE unsigned dq_grid_y(void)
{
    return simt_here()->grid.y;
}
DQ_DEVICE unsigned dq_grid_z(void)
{
    return simt_here()->grid.z;
}

/* -------------------------------------------------------------------------------------- barriers */
/* Whether the barrier of that name is left out (DQ_SIMT_WITHOUT of the environment); of a wait, one group. */
extern const char *const simt_left_out;
DQ_DEVICE bool simt_without(const char *name)
{
    return simt_left_out && !strcmp(simt_left_out, name);
}
#define DQ_SYNC(name)            (simt_without(#name) ? (void)0 : dq_sync())
#define DQ_WARP_SYNC(name)       (simt_without(#name) ? (void)0 : dq_warp_sync())
#define DQ_BAR_SYNC(id, n, name) (simt_without(#name) ? (void)0 : dq_bar_sync(id, n))
#define DQ_CP_ASYNC_WAIT(n, name)                                                                  \
    (simt_without(#name) ? dq_cp_async_wait<(n) + 1>() : dq_cp_async_wait<n>())
DQ_DEVICE void dq_sync(SIMT_LINE)
{
    simt_sync(line);
}
DQ_DEVICE void dq_bar_sync(unsigned id, unsigned n, SIMT_LINE)
{
    simt_bar(id, n, true, line);
}
DQ_DEVICE void dq_bar_arrive(unsigned id, unsigned n, SIMT_LINE)
{
    simt_bar(id, n, false, line);
}
DQ_DEVICE void dq_warp_sync(unsigned mask = 0xffffffffu, SIMT_LINE)
{
    simt_warp_sync(mask, line);
}
/* The build for races joins all threads between blocks, and its tool cannot see a fence. */
DQ_DEVICE void dq_fence(void)
{
#ifndef __SANITIZE_THREAD__
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* --------------------------------------------------------------------------- exchange in a warp */
template <class T>
DQ_DEVICE T simt_shuffle(T v, unsigned source, unsigned mask, const char *what, int line)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = simt_exchange(bits, source, mask, what, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> DQ_DEVICE T dq_shfl(T v, unsigned lane, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    return simt_shuffle(v, lane & 31u, mask, "dq_shfl", line);
}
template <class T>
DQ_DEVICE T dq_shfl_xor(T v, unsigned bits, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    return simt_shuffle(v, (dq_lane() ^ bits) & 31u, mask, "dq_shfl_xor", line);
}
template <class T>
DQ_DEVICE T dq_shfl_down(T v, unsigned delta, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    unsigned lane = dq_lane();
    return simt_shuffle(v, lane + delta < 32 ? lane + delta : lane, mask, "dq_shfl_down", line);
}
DQ_DEVICE uint32_t dq_ballot(bool p, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    return simt_ballot(p, mask, "dq_ballot", line);
}
DQ_DEVICE bool dq_any(bool p, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    return simt_ballot(p, mask, "dq_any", line) != 0;
}
DQ_DEVICE bool dq_all(bool p, unsigned mask = 0xffffffffu, SIMT_LINE)
{
    return simt_ballot(p, mask, "dq_all", line) == mask;
}

/* --------------------------------------------------------------------------------------- atomics */
template <class T> DQ_DEVICE T simt_atomic_add(T *p, T v)
{
    simt_pause();
    return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
template <class T, class U> DQ_DEVICE T simt_atomic_add_float(T *p, T v)
{
    simt_pause();
    U old = __atomic_load_n((U *)p, __ATOMIC_RELAXED), now;
    T was;
    do {
        memcpy(&was, &old, sizeof was);
        T sum = was + v;
        memcpy(&now, &sum, sizeof now);
    } while (
        !__atomic_compare_exchange_n((U *)p, &old, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return was;
}
template <class T> DQ_DEVICE T simt_atomic_max(T *p, T v)
{
    simt_pause();
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < v &&
           !__atomic_compare_exchange_n(p, &old, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return old;
}
DQ_DEVICE uint32_t dq_atomic_add(uint32_t *p, uint32_t v)
{
    return simt_atomic_add(p, v);
}
DQ_DEVICE uint64_t dq_atomic_add(uint64_t *p, uint64_t v)
{
    return simt_atomic_add(p, v);
}
DQ_DEVICE float dq_atomic_add(float *p, float v)
{
    return simt_atomic_add_float<float, uint32_t>(p, v);
}
DQ_DEVICE double dq_atomic_add(double *p, double v)
{
    return simt_atomic_add_float<double, uint64_t>(p, v);
}
DQ_DEVICE void dq_raise(int32_t *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}
DQ_DEVICE uint32_t dq_atomic_max(uint32_t *p, uint32_t v)
{
    return simt_atomic_max(p, v);
}
DQ_DEVICE int32_t dq_atomic_max(int32_t *p, int32_t v)
{
    return simt_atomic_max(p, v);
}
DQ_DEVICE uint32_t dq_atomic_cas(uint32_t *p, uint32_t expected, uint32_t v)
{
    simt_pause();
    __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

/* ---------------------------------------------------------------------------------------- memory */
DQ_DEVICE void simt_check_aligned(const void *p, size_t size, const char *what, int line)
{
    if ((uintptr_t)p % size)
        simt_fail(line, "%s: address %p is not a multiple of %zu", what, p, size);
}
DQ_DEVICE uint64_t dq_load8(const void *p, SIMT_LINE)
{
    simt_check_aligned(p, 8, "dq_load8", line);
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
DQ_DEVICE dq_u4 dq_load16(const void *p, SIMT_LINE)
{
    simt_check_aligned(p, 16, "dq_load16", line);
    dq_u4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
DQ_DEVICE void dq_store16(void *p, dq_u4 v, SIMT_LINE)
{
    simt_check_aligned(p, 16, "dq_store16", line);
    memcpy(p, &v, sizeof v);
    simt_stored(p);
}
DQ_DEVICE dq_u4 dq_load16_const(const void *global, SIMT_LINE)
{
    return dq_load16(global, line);
}
DQ_DEVICE float dq_load_fresh(const float *global)
{
    return *global;
}
DQ_DEVICE uint32_t dq_load_fresh(const uint32_t *global)
{
    return *global;
}

/* ------------------------------------------------------------------------------------ async copy */
DQ_DEVICE void dq_cp_async16(void *smem, const void *global, SIMT_LINE)
{
    simt_copy(smem, global, 16, 16, line);
}
DQ_DEVICE void dq_cp_async16_zfill(void *smem, const void *global, unsigned bytes, SIMT_LINE)
{
    simt_copy(smem, global, 16, bytes, line);
}
DQ_DEVICE void dq_cp_async8(void *smem, const void *global, SIMT_LINE)
{
    simt_copy(smem, global, 8, 8, line);
}
DQ_DEVICE void dq_cp_async4(void *smem, const void *global, SIMT_LINE)
{
    simt_copy(smem, global, 4, 4, line);
}
DQ_DEVICE void dq_cp_async_commit(SIMT_LINE)
{
    simt_copy_commit(line);
}
template <int N> DQ_DEVICE void dq_cp_async_wait(SIMT_LINE)
{
    static_assert(N >= 0, "groups");
    simt_copy_wait(N, line);
}

/* ------------------------------------------------------------------------------- matrix fragments */
DQ_DEVICE void dq_ldmatrix_x4(uint32_t r[4], const void *smem, SIMT_LINE)
{
    simt_ldmatrix(r, smem, 4, false, line);
}
DQ_DEVICE void dq_ldmatrix_x2(uint32_t r[2], const void *smem, SIMT_LINE)
{
    simt_ldmatrix(r, smem, 2, false, line);
}
DQ_DEVICE void dq_ldmatrix_x4_trans(uint32_t r[4], const void *smem, SIMT_LINE)
{
    simt_ldmatrix(r, smem, 4, true, line);
}
DQ_DEVICE void dq_ldmatrix_x2_trans(uint32_t r[2], const void *smem, SIMT_LINE)
{
    simt_ldmatrix(r, smem, 2, true, line);
}
DQ_DEVICE void dq_mma_s8s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], SIMT_LINE)
{
    simt_mma(SIMT_MMA_S8S8, d, a, b, line);
}
DQ_DEVICE void dq_mma_u8s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], SIMT_LINE)
{
    simt_mma(SIMT_MMA_U8S8, d, a, b, line);
}
DQ_DEVICE void dq_mma_s8u8(int32_t d[4], const uint32_t a[4], const uint32_t b[2], SIMT_LINE)
{
    simt_mma(SIMT_MMA_S8U8, d, a, b, line);
}
DQ_DEVICE void dq_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2], SIMT_LINE)
{
    simt_mma(SIMT_MMA_F16, d, a, b, line);
}
DQ_DEVICE int32_t dq_dp4a_s8s8(int32_t c, uint32_t a, uint32_t b)
{
    return (int32_t)numerics_dp4a((uint32_t)c, a, b, true, true);
}
DQ_DEVICE int32_t dq_dp4a_u8s8(int32_t c, uint32_t a, uint32_t b)
{
    return (int32_t)numerics_dp4a((uint32_t)c, a, b, false, true);
}
DQ_DEVICE int32_t dq_dp4a_s8u8(int32_t c, uint32_t a, uint32_t b)
{
    return (int32_t)numerics_dp4a((uint32_t)c, a, b, true, false);
}
DQ_DEVICE uint32_t dq_dp4a_u8u8(uint32_t c, uint32_t a, uint32_t b)
{
    return numerics_dp4a(c, a, b, false, false);
}

/* ------------------------------------------------------------------------------------------ bits */
DQ_DEVICE unsigned dq_popc(uint32_t x)
{
    return (unsigned)__builtin_popcount(x);
}
DQ_DEVICE unsigned dq_clz(uint32_t x)
{
    return x ? (unsigned)__builtin_clz(x) : 32;
}
DQ_DEVICE uint32_t dq_prmt(uint32_t a, uint32_t b, uint32_t select)
{
    return numerics_prmt(a, b, select);
}

/* --------------------------------------------------------------------------------------- numbers */
DQ_DEVICE uint32_t dq_f32_bits(float x)
{
    uint32_t r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DQ_DEVICE float dq_bits_f32(uint32_t x)
{
    float r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DQ_DEVICE uint64_t dq_f64_bits(double x)
{
    uint64_t r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DQ_DEVICE double dq_bits_f64(uint64_t x)
{
    double r;
    memcpy(&r, &x, sizeof r);
    return r;
}
/* The compiler is told not to contract (-ffp-contract=off). */
DQ_DEVICE float dq_add_rn(float a, float b)
{
    return a + b;
}
DQ_DEVICE float dq_sub_rn(float a, float b)
{
    return a - b;
}
DQ_DEVICE float dq_mul_rn(float a, float b)
{
    return a * b;
}
DQ_DEVICE float dq_fma_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
DQ_DEVICE float dq_div_rn(float a, float b)
{
    return numerics_div(a, b);
}
DQ_DEVICE float dq_sqrt_rn(float a)
{
    return sqrtf(a);
}
DQ_DEVICE double dq_add_rn(double a, double b)
{
    return a + b;
}
DQ_DEVICE double dq_sub_rn(double a, double b)
{
    return a - b;
}
DQ_DEVICE double dq_mul_rn(double a, double b)
{
    return a * b;
}
DQ_DEVICE double dq_fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}
DQ_DEVICE double dq_div_rn(double a, double b)
{
    return numerics_div64(a, b);
}
DQ_DEVICE double dq_sqrt_rn(double a)
{
    return sqrt(a);
}
DQ_DEVICE double dq_exp(double x)
{
    return exp(x);
}
DQ_DEVICE double dq_log(double x)
{
    return log(x);
}
DQ_DEVICE float dq_max(float a, float b)
{
    return numerics_max(a, b);
}
DQ_DEVICE float dq_max_nan(float a, float b)
{
    return isnan(a) || isnan(b) ? dq_bits_f32(0x7fffffffu) : numerics_max(a, b);
}
DQ_DEVICE float dq_min(float a, float b)
{
    return numerics_min(a, b);
}
DQ_DEVICE float dq_abs(float a)
{
    return fabsf(a);
}
DQ_DEVICE float dq_rint(float x)
{
    return rintf(x);
}
DQ_DEVICE void dq_in_order(void)
{
}
DQ_DEVICE uint16_t dq_f32_bf16(float x)
{
    return numerics_f32_bf16(x);
}
DQ_DEVICE uint32_t dq_f32x2_bf16(float low, float high)
{
    return numerics_f32_bf16(low) | (uint32_t)numerics_f32_bf16(high) << 16;
}
DQ_DEVICE float dq_bf16_f32(uint16_t x)
{
    return dq_bits_f32((uint32_t)x << 16);
}
DQ_DEVICE uint16_t dq_f32_f16(float x)
{
    return numerics_f32_f16(x);
}
DQ_DEVICE uint32_t dq_f32x2_f16(float low, float high)
{
    return numerics_f32_f16(low) | (uint32_t)numerics_f32_f16(high) << 16;
}
DQ_DEVICE float dq_f16_f32(uint16_t x)
{
    return numerics_f16_f32(x);
}
DQ_DEVICE int32_t dq_f32_s8(float x)
{
    return numerics_f32_s8(x);
}
DQ_DEVICE int32_t dq_f32_s32(float x)
{
    return numerics_f32_s32(x);
}
DQ_DEVICE float dq_s32_f32(int32_t x)
{
    return (float)x;
}
DQ_DEVICE float dq_u8_f32(uint32_t x)
{
    return (float)(x & 255u);
}
DQ_DEVICE float dq_exp2_fast(float x)
{
    return numerics_exp2_fast(x);
}

#endif
