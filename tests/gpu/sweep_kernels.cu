/* sweep_kernels: see sweep_kernels.h.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/sweep_kernels.h"

#include "kernels/cuda/device/attend_hopper.cuh"

/* ---------------------------------------------------------------------------------------- variants */
template <int BLOCKS, int RING, dq_operand_layout OF_CELLS, hopper_order OF_STEPS>
struct variant : hopper_shape<128, 256, BLOCKS, RING> {
    static constexpr dq_operand_layout LAYOUT = OF_CELLS;
    static constexpr hopper_order ORDER = OF_STEPS;
};

template <class SHAPE> static cudaError_t run(dq_attend_call a, cudaStream_t s)
{
    a.scale = a.u.scale * LOG2E;
    return a.logits.round == DQ_ROUND_NOT ? launch_hopper<SHAPE, false>(a, s)
                                          : launch_hopper<SHAPE, true>(a, s);
}

#define VARIANT(blocks, ring, layout, order)                                                       \
    {                                                                                              \
        blocks, ring, (layout) == DQ_SWIZZLED, (order) == RUN_LAST,                                \
            run<variant<blocks, ring, layout, order>>                                              \
    }
#define LAYOUTS(blocks, ring, order)                                                               \
    VARIANT(blocks, ring, DQ_CELLS, order), VARIANT(blocks, ring, DQ_SWIZZLED, order)

/* The most telling first; a ring of 4 has no room. */
const dq_sweep_variant dq_sweep_variants[] = {
    LAYOUTS(2, 3, ASCENDING), LAYOUTS(1, 3, ASCENDING), LAYOUTS(4, 3, ASCENDING),
    LAYOUTS(2, 2, ASCENDING), LAYOUTS(2, 3, RUN_LAST),  LAYOUTS(1, 3, RUN_LAST),
    LAYOUTS(4, 3, RUN_LAST),  LAYOUTS(1, 2, ASCENDING), LAYOUTS(4, 2, ASCENDING)};
const int dq_sweep_n_variants = sizeof dq_sweep_variants / sizeof *dq_sweep_variants;

/* ---------------------------------------------------------------------------------------- operands */
/* Of variance 1, even between -sqrt 3 and sqrt 3. */
DQ_DEVICE float number(uint64_t i)
{
    uint32_t x = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32) * 0x85ebca6bu;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    x ^= x >> 16;
    return ((float)(x >> 8) * 0x1p-23f - 1.0f) * 1.7320508f;
}
/* Eight that follow each other, as a cell. */
DQ_DEVICE void put_numbers(uint8_t *to, uint64_t i)
{
    uint32_t w[4];
    DQ_UNROLL
    for (unsigned k = 0; k < 4; k++) w[k] = dq_f32x2_f16(number(i + 2 * k), number(i + 2 * k + 1));
    dq_store16(to, dq_u4{w[0], w[1], w[2], w[3]});
}

/* A block for each page. */
template <dq_operand_layout LAYOUT> DQ_KERNEL(256) fill_operands(DQ_PARAMETER dq_operands o)
{
    const int64_t page = dq_block_x();
    const int head_cells = o.key_channels * KEYS / 8, pair_cells = o.value_channels * KEYS / 8;
    const int keys = o.n_keys * head_cells, cells = keys + o.n_values * pair_cells;
    for (int i = (int)dq_thread(); i < cells; i += (int)dq_threads()) {
        const uint64_t first = ((uint64_t)page * (uint64_t)cells + (uint64_t)i) * 8;
        if (i < keys) {
            const int t = i % KEYS, c = i % head_cells / KEYS * 8;
            put_numbers(o.page + dq_operand_keys_at(&o, page, i / head_cells) +
                            dq_operand_key(t, c, LAYOUT),
                        first);
        } else {
            const int k = (i - keys) % pair_cells, c = k % o.value_channels;
            const int t = k / o.value_channels * 8;
            put_numbers(o.page + dq_operand_values_at(&o, page, (i - keys) / pair_cells) +
                            dq_operand_value(o.value_channels, t, c, LAYOUT),
                        first);
        }
    }
}

DQ_KERNEL(256) fill(float *x, int64_t n)
{
    const int64_t step = (int64_t)dq_grid_x() * dq_threads();
    for (int64_t i = (int64_t)dq_block_x() * dq_threads() + dq_thread(); i < n; i += step)
        x[i] = number((uint64_t)i + ((uint64_t)1 << 40));
}

cudaError_t dq_sweep_fill_operands(dq_operands o, int64_t pages, bool swizzled, cudaStream_t s)
{
    if (swizzled)
        DQ_LAUNCH(fill_operands<DQ_SWIZZLED>, dim3((unsigned)pages), 256, 0, s, o);
    else
        DQ_LAUNCH(fill_operands<DQ_CELLS>, dim3((unsigned)pages), 256, 0, s, o);
    return cudaGetLastError();
}

cudaError_t dq_sweep_fill(float *x, int64_t n, cudaStream_t s)
{
    const int64_t blocks = (n + 4095) / 4096;
    DQ_LAUNCH(fill, dim3((unsigned)(blocks < 65536 ? blocks : 65536)), 256, 0, s, x, n);
    return cudaGetLastError();
}

/* ----------------------------------------------------------------------------------- one thing alone */
enum loop_kind { KEYS_F16, VALUES_F16, KEYS_S8, EXP2, COPIES };
enum { SWIZZLED_LOOP = 16, LOOP_STAGES = 4, PIECE = 32 * 1024 };

const dq_sweep_loop dq_sweep_loops[] = {
    {"f16-scores:cells", "FLOP", KEYS_F16},
    {"f16-scores:swizzled", "FLOP", KEYS_F16 | SWIZZLED_LOOP},
    {"f16-values:cells", "FLOP", VALUES_F16},
    {"f16-values:swizzled", "FLOP", VALUES_F16 | SWIZZLED_LOOP},
    {"s8-scores:cells", "OP", KEYS_S8},
    {"s8-scores:swizzled", "OP", KEYS_S8 | SWIZZLED_LOOP},
    {"exp2", "exp2", EXP2},
    {"copies:cluster-1", "byte", COPIES},
    {"copies:cluster-2", "byte", COPIES + 1},
    {"copies:cluster-4", "byte", COPIES + 2},
};
const int dq_sweep_n_loops = sizeof dq_sweep_loops / sizeof *dq_sweep_loops;

/* Of a product's B with n rows. */
template <dq_operand_layout LAYOUT> DQ_DEVICE uint64_t loop_descriptor(unsigned char *smem, int n)
{
    const uint32_t at = dq_smem_address(smem);
    return LAYOUT == DQ_SWIZZLED ? dq_make_descriptor(at, 0, 1024, DQ_SWIZZLE_128)
                                 : dq_make_descriptor(at, (unsigned)n * 16, 128, DQ_SWIZZLE_NONE);
}

/* All bytes of B are those of ones. */
DQ_DEVICE void put_ones(unsigned char *smem, int bytes, uint32_t word)
{
    for (int i = 16 * (int)dq_thread(); i < bytes; i += 16 * (int)dq_threads())
        dq_store16(smem + i, dq_u4{word, word, word, word});
    DQ_FENCE_ASYNC(sweep_ones_fence);
    DQ_SYNC(sweep_ones);
}

/* Two teams, as in attention: N columns, so many cells deep, the newest group on its way. */
template <class T, int N, int CELLS, dq_operand_layout LAYOUT>
DQ_KERNEL_BLOCKS(2 * TEAM, 1)
products_alone(int rounds, int32_t *wrong)
{
    DQ_SHARED_DYNAMIC(smem);
    const bool bytes = sizeof(T) == 4 && (T)0.5f == 0; /* int32_t */
    const uint32_t ones = bytes ? 0x01010101u : 0x3c003c00u;
    put_ones(smem, N * CELLS * 16, ones);
    dq_registers<T, N / 2> d;
    dq_registers<uint32_t, 4> a;
    DQ_UNROLL
    for (int i = 0; i < 4; i++) a[i] = ones;
    DQ_UNROLL
    for (int i = 0; i < N / 2; i++) d[i] = 0;
    const uint64_t first = loop_descriptor<LAYOUT>(smem, N);
    DQ_WGMMA_FENCE(sweep_products_fence);
    for (int r = 0; r < rounds; r++) {
        DQ_UNROLL
        for (int i = 0; i < CELLS; i += 2) {
            const int at = dq_operand_cell(LAYOUT, N, 0, i);
            if constexpr (sizeof(T) == 4 && (T)0.5f == 0)
                dq_wgmma_s8(d, a, 0, dq_descriptor_after(first, (unsigned)at), true);
            else
                dq_wgmma_f16(d, a, 0, dq_descriptor_after(first, (unsigned)at), true);
        }
        dq_wgmma_commit();
        DQ_WGMMA_WAIT(1, sweep_products_wait);
    }
    DQ_WGMMA_WAIT(0, sweep_products_end);
    dq_hold(d);
    const T sum = (T)((bytes ? 16 : 8) * CELLS * rounds);
    bool right = true;
    DQ_UNROLL
    for (int i = 0; i < N / 2; i++) right &= d[i] == sum;
    if (!right) *wrong = 1;
}

/* Eight chains of a thread. */
DQ_KERNEL_BLOCKS(512, 2) exp2_alone(int rounds, int32_t *wrong)
{
    float x[8];
    DQ_UNROLL
    for (int i = 0; i < 8; i++) x[i] = -(float)(i + 1) / 8;
    for (int r = 0; r < rounds; r++) {
        DQ_UNROLL
        for (int i = 0; i < 8; i++) x[i] = dq_exp2_fast(-x[i]); /* near .64 after some */
    }
    bool right = true;
    DQ_UNROLL
    for (int i = 0; i < 8; i++) right &= dq_abs(x[i]) < 4.0f;
    if (!right) *wrong = 1;
}

/* One thread copies its share of each piece to all blocks of the cluster, another takes it. */
template <int CLUSTER>
DQ_KERNEL_BLOCKS(64, 1)
copies_alone(int rounds, const uint8_t *source, int64_t pieces, int32_t *wrong)
{
    DQ_SHARED_DYNAMIC(smem);
    DQ_SHARED(dq_mbarrier, full, [LOOP_STAGES]);
    DQ_SHARED(dq_mbarrier, empty, [LOOP_STAGES]);
    if (dq_thread() == 0) {
        for (int s = 0; s < LOOP_STAGES; s++) {
            DQ_MBARRIER_INIT(&full[s], 1);
            DQ_MBARRIER_INIT(&empty[s], CLUSTER);
        }
        dq_fence_mbarrier_init();
    }
    DQ_CLUSTER_SYNC(sweep_copies_start);
    const int64_t first = (int64_t)dq_block_x() / CLUSTER * 7; /* clusters begin apart */
    const int share = (int)dq_cluster_rank() * (PIECE / CLUSTER);
    for (int r = 0; r < rounds && dq_thread() == 0; r++) {
        const int s = r % LOOP_STAGES;
        const uint8_t *from = source + (first + r) % pieces * PIECE + share;
        DQ_MBARRIER_WAIT(&empty[s], (unsigned)(r / LOOP_STAGES + 1) & 1u, sweep_copies_empty);
        dq_mbarrier_arrive_expect(&full[s], PIECE);
        dq_bulk_copy_multicast(smem + s * PIECE + share, from, PIECE / CLUSTER, &full[s],
                               (1u << CLUSTER) - 1);
    }
    for (int r = 0; r < rounds && dq_thread() == 32; r++) {
        const int s = r % LOOP_STAGES;
        DQ_MBARRIER_WAIT(&full[s], (unsigned)(r / LOOP_STAGES) & 1u, sweep_copies_full);
        const int at = (r * 48 + 16) % PIECE / 16 * 16;
        const dq_u4 got = dq_load16(smem + s * PIECE + at);
        if (r % 16 == 0) {
            const dq_u4 is = dq_load16_const(source + (first + r) % pieces * PIECE + at);
            if (got.x != is.x || got.w != is.w) *wrong = 1;
        }
        for (unsigned rank = 0; rank < CLUSTER; rank++) dq_mbarrier_arrive_remote(&empty[s], rank);
    }
    DQ_SYNC(sweep_copies_together);
    DQ_CLUSTER_SYNC(sweep_copies_end);
}

template <class T, int N, int CELLS>
static cudaError_t run_products(bool swizzled, unsigned sms, int rounds, int32_t *wrong,
                                cudaStream_t s)
{
    const unsigned smem = N * CELLS * 16;
    if (swizzled)
        DQ_LAUNCH((products_alone<T, N, CELLS, DQ_SWIZZLED>), dim3(sms), 2 * TEAM, smem, s, rounds,
                  wrong);
    else
        DQ_LAUNCH((products_alone<T, N, CELLS, DQ_CELLS>), dim3(sms), 2 * TEAM, smem, s, rounds,
                  wrong);
    return cudaGetLastError();
}

template <int CLUSTER>
static cudaError_t run_copies(int rounds, const uint8_t *source, int64_t bytes, int32_t *wrong,
                              double *each, cudaStream_t s)
{
    const int smem = LOOP_STAGES * PIECE;
    int clusters = 0;
    cudaError_t e = DQ_ALLOW_SMEM(copies_alone<CLUSTER>, smem);
    if (e == cudaSuccess)
        e = dq_resident_clusters(&clusters, copies_alone<CLUSTER>, CLUSTER, 64, smem);
    if (e != cudaSuccess) return e;
    *each = (double)PIECE * CLUSTER * clusters;
    DQ_LAUNCH_CLUSTER(copies_alone<CLUSTER>, CLUSTER, dim3(CLUSTER * (unsigned)clusters), 64,
                      (unsigned)smem, s, rounds, source, bytes / PIECE, wrong);
    return cudaGetLastError();
}

cudaError_t dq_sweep_run_loop(const dq_sweep_loop *l, int rounds, const uint8_t *source,
                              int64_t source_bytes, int32_t *wrong, double *each, cudaStream_t s)
{
    int device, n;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    if (e != cudaSuccess) return e;
    const unsigned sms = (unsigned)n;
    const bool swizzled = l->kind & SWIZZLED_LOOP;
    switch (l->kind & ~SWIZZLED_LOOP) {
    case KEYS_F16:
        *each = 2.0 * 2 * 64 * 64 * 128 * n;
        return run_products<float, 64, 16>(swizzled, sms, rounds, wrong, s);
    case VALUES_F16:
        *each = 2.0 * 2 * 64 * 256 * 64 * n;
        return run_products<float, 256, 8>(swizzled, sms, rounds, wrong, s);
    case KEYS_S8:
        *each = 2.0 * 2 * 64 * 64 * 128 * n;
        return run_products<int32_t, 64, 8>(swizzled, sms, rounds, wrong, s);
    case EXP2:
        *each = 2.0 * 512 * 8 * n;
        DQ_LAUNCH(exp2_alone, dim3(2 * sms), 512, 0, s, rounds, wrong);
        return cudaGetLastError();
    case COPIES: return run_copies<1>(rounds, source, source_bytes, wrong, each, s);
    case COPIES + 1: return run_copies<2>(rounds, source, source_bytes, wrong, each, s);
    default: return run_copies<4>(rounds, source, source_bytes, wrong, each, s);
    }
}
