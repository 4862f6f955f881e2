/* simt_sample: see simt_sample.h. The barriers, the wait and the order of the fragments are spoilt by rows of
 * defects.tsv, which quotes this text.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_sample.h"

#include "kernels/cuda/device/ptx.cuh"

enum {
    TILE = 32,         /* rows and columns of c per block */
    STEP = 64,         /* bytes of k per stage */
    PITCH = STEP + 16, /* of a row in shared memory: 8 rows fall into different banks */
    STAGE = 2 * TILE * PITCH,
    STAGES = 2
};

/* Starts the copies of columns k0 .. k0 + STEP of 32 rows from row0 on; beyond the edges zeros. One
 * 16-byte cell per thread. */
DQ_DEVICE void load_tile(unsigned char *tile, const uint8_t *x, int row0, int rows, int k0, int k)
{
    int row = (int)dq_thread() / 4, cell = (int)dq_thread() % 4;
    int at = k0 + 16 * cell;
    bool there = row0 + row < rows && at < k;
    const uint8_t *from = there ? x + (size_t)(row0 + row) * (size_t)k + at : x;
    dq_cp_async16_zfill(tile + row * PITCH + 16 * cell, from, there ? 16 : 0);
}

DQ_DEVICE void load_stage(unsigned char *stage, const uint8_t *a, const int8_t *b, int m, int n,
                          int k0, int k)
{
    load_tile(stage, a, (int)dq_block_y() * TILE, m, k0, k);
    load_tile(stage + TILE * PITCH, (const uint8_t *)b, (int)dq_block_x() * TILE, n, k0, k);
    dq_cp_async_commit();
}

/* Adds the stage's products to the warp's 16 x 16 part of c. */
DQ_DEVICE void multiply_stage(int32_t d[2][4], const unsigned char *stage)
{
    int lane = (int)dq_lane(), warp = (int)dq_warp();
    const unsigned char *a = stage + (16 * (warp / 2) + lane % 16) * PITCH + 16 * (lane / 16);
    const unsigned char *b = stage + TILE * PITCH;
    b += (16 * (warp % 2) + 8 * (lane / 16) + lane % 8) * PITCH + 16 * (lane / 8 % 2);
    DQ_UNROLL
    for (int k = 0; k < STEP; k += 32) {
        uint32_t fa[4], fb[4];
        dq_ldmatrix_x4(fa, a + k);
        dq_ldmatrix_x4(fb, b + k);
        dq_mma_u8s8(d[0], fa, fb);
        dq_mma_u8s8(d[1], fa, fb + 2);
    }
}

DQ_KERNEL(128)
product(int32_t *DQ_RESTRICT c, const uint8_t *DQ_RESTRICT a, const int8_t *DQ_RESTRICT b, int m,
        int n, int k)
{
    DQ_SHARED_DYNAMIC(stages);
    int32_t d[2][4] = {};
    load_stage(stages, a, b, m, n, 0, k);
    for (int k0 = 0, i = 0; k0 < k; k0 += STEP, i++) {
        load_stage(stages + (i + 1) % STAGES * STAGE, a, b, m, n, k0 + STEP, k);
        DQ_CP_ASYNC_WAIT(1, sample_wait);
        DQ_SYNC(sample_stage); /* the stage is there for all */
        multiply_stage(d, stages + i % STAGES * STAGE);
        DQ_SYNC(sample_read); /* all have read it */
    }
    int lane = (int)dq_lane(), warp = (int)dq_warp();
    int row = (int)dq_block_y() * TILE + 16 * (warp / 2) + lane / 4;
    int col = (int)dq_block_x() * TILE + 16 * (warp % 2) + 2 * (lane % 4);
    DQ_UNROLL
    for (int i = 0; i < 8; i++) {
        int r = row + 8 * (i / 2 % 2), q = col + 8 * (i / 4) + i % 2;
        if (r < m && q < n) c[(size_t)r * (size_t)n + (size_t)q] = d[i / 4][i % 4];
    }
}

template <bool BARRIER> DQ_KERNEL(256) sum(uint32_t *total, const uint32_t *x, int n)
{
    DQ_SHARED(uint32_t, part, [8]);
    int i = (int)(dq_block_x() * dq_threads() + dq_thread());
    uint32_t v = i < n ? x[i] : 0;
    for (unsigned o = 16; o; o >>= 1) v += dq_shfl_xor(v, o);
    if (dq_lane() == 0) part[dq_warp()] = v;
    if (BARRIER) DQ_SYNC(sample_part); /* every warp's part is there */
    if (dq_thread() == 0) {
        uint32_t s = 0;
        for (unsigned w = 0; w < dq_threads() / 32; w++) s += part[w];
        dq_atomic_add(total, s);
    }
}

void dq_sample_product(int32_t *c, const uint8_t *a, const int8_t *b, int m, int n, int k,
                       cudaStream_t s)
{
    dim3 grid((unsigned)(n + TILE - 1) / TILE, (unsigned)(m + TILE - 1) / TILE);
    DQ_LAUNCH(product, grid, 128, STAGES * STAGE, s, c, a, b, m, n, k);
}

void dq_sample_sum(uint32_t *total, const uint32_t *x, int n, cudaStream_t s)
{
    DQ_LAUNCH(sum<true>, dim3((unsigned)(n + 255) / 256), 256, 0, s, total, x, n);
}

void dq_sample_sum_racy(uint32_t *total, const uint32_t *x, int n, cudaStream_t s)
{
    DQ_LAUNCH(sum<false>, dim3((unsigned)(n + 255) / 256), 256, 0, s, total, x, n);
}
