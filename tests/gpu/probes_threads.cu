/* probes_threads: shuffles, votes, barriers, atomics, asynchronous copies and wide accesses.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/probes.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device/ptx.cuh"

enum { BLOCKS = 48 };

/* ------------------------------------------------------------------------------ shuffles and votes */
struct exchanged {
    uint32_t idx, up, down, half, ballot, flags;
    uint64_t wide;
    float real;
};

/* x[block][32]: each lane's operands. */
DQ_KERNEL(32) exchange(exchanged *out, const uint32_t *x)
{
    unsigned lane = dq_lane(), at = dq_block_x() * 32 + lane;
    uint32_t v = x[at];
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
    exchanged e;
    e.idx = dq_shfl(v, v >> 7);
    e.up = dq_shfl_xor(v, 1 + dq_block_x() % 31);
    e.down = dq_shfl_down(v, dq_block_x() % 32);
    e.half = dq_shfl_xor(v, 5, half);
    e.ballot = dq_ballot(v % 3 == 0, half);
    e.flags = dq_any(v % 61 == 0) | (uint32_t)dq_all(v % 61 != 0) << 1;
    e.wide = dq_shfl_xor((uint64_t)v << 32 | ~v, 3);
    e.real = dq_shfl((float)v, 9);
    out[at] = e;
}

static void check_lane(dq_probe *p, unsigned block, unsigned lane, const uint32_t *v,
                       const exchanged *e)
{
    uint32_t votes = 0, any = 0;
    for (unsigned i = 0; i < 32; i++) {
        if (i / 16 == lane / 16 && v[i] % 3 == 0) votes |= 1u << i;
        any |= v[i] % 61 == 0;
    }
    unsigned delta = block % 32;
    uint32_t idx = v[v[lane] >> 7 & 31u], up = v[lane ^ (1 + block % 31)];
    uint32_t down = v[lane + delta < 32 ? lane + delta : lane], other = v[lane ^ 3u];
    uint64_t wide = (uint64_t)other << 32 | ~other;
    dq_probe_check(p, e->idx == idx, "shfl", lane, e->idx, idx);
    dq_probe_check(p, e->up == up, "shfl_xor", lane, e->up, up);
    dq_probe_check(p, e->down == down, "shfl_down", lane, e->down, down);
    dq_probe_check(p, e->half == v[lane ^ 5u], "shfl_xor of half a warp", lane, e->half,
                   v[lane ^ 5u]);
    dq_probe_check(p, e->ballot == votes, "ballot", lane, e->ballot, votes);
    dq_probe_check(p, e->flags == (any ? 1u : 2u), "any, all", lane, e->flags, any ? 1u : 2u);
    dq_probe_check(p, e->wide == wide, "shfl_xor of 8 bytes", lane, e->wide, wide);
    dq_probe_check(p, e->real == (float)v[9], "shfl of a float", lane, (uint64_t)e->real, v[9]);
}

static void probe_exchange(dq_probe *p)
{
    static uint32_t x[BLOCKS][32];
    static exchanged out[BLOCKS][32];
    for (int i = 0; i < BLOCKS * 32; i++) x[i / 32][i % 32] = dq_probe_bits(p);
    void *in = dq_probe_put(p, x, sizeof x), *to = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(exchange, dim3(BLOCKS), 32, 0, NULL, (exchanged *)to, (const uint32_t *)in);
    dq_probe_take(p, out, to, sizeof out);
    dq_probe_take(p, NULL, in, 0);
    for (unsigned b = 0; b < BLOCKS; b++)
        for (unsigned lane = 0; lane < 32; lane++) check_lane(p, b, lane, x[b], &out[b][lane]);
}

/* ---------------------------------------------------------------------------------------- barriers */
/* Warp 1 fills one of two boxes, warps 2 and 3 empty it; warp 0 has returned. */
DQ_KERNEL(128) handover(uint32_t *out, int rounds)
{
    DQ_SHARED(uint32_t, box, [2][32]);
    unsigned w = dq_warp(), lane = dq_lane(), sum = 0;
    if (w == 0) return;
    dq_sync();
    for (int i = 0; i < rounds; i++) {
        unsigned half = (unsigned)i & 1u;
        if (w == 1) {
            if (i >= 2) dq_bar_sync(3 + half, 96);
            box[half][lane] = (uint32_t)(i * i) + lane * dq_block_x();
            dq_bar_arrive(1 + half, 96);
        } else {
            dq_bar_sync(1 + half, 96);
            sum += box[half][(lane + 5) % 32];
            if (i + 2 < rounds) dq_bar_arrive(3 + half, 96);
        }
    }
    if (w > 1) out[(dq_block_x() * 2 + w - 2) * 32 + lane] = sum;
}

static void probe_barriers(dq_probe *p)
{
    static uint32_t out[BLOCKS][2][32];
    const int rounds = 501;
    uint32_t squares = 0;
    for (int i = 0; i < rounds; i++) squares += (uint32_t)(i * i);
    void *to = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(handover, dim3(BLOCKS), 128, 0, NULL, (uint32_t *)to, rounds);
    dq_probe_take(p, out, to, sizeof out);
    for (unsigned b = 0; b < BLOCKS; b++)
        for (unsigned i = 0; i < 64; i++) {
            uint32_t right = squares + (uint32_t)rounds * ((i + 5) % 32) * b;
            dq_probe_check(p, out[b][i / 32][i % 32] == right, "sum", i, out[b][i / 32][i % 32],
                           right);
        }
}

/* ----------------------------------------------------------------------------------------- atomics */
struct totals {
    uint64_t u64;
    double f64;
    uint32_t u32, max_u32, cas, last;
    int32_t max_i32;
    float f32;
};

DQ_KERNEL(64) count_up(totals *t)
{
    DQ_SHARED(uint32_t, local, [1]);
    unsigned i = dq_block_x() * dq_threads() + dq_thread();
    if (dq_thread() == 0) local[0] = 0;
    dq_sync();
    dq_atomic_add(&local[0], 3u);
    dq_sync();
    dq_atomic_add(&t->u64, (uint64_t)1 << 33);
    dq_atomic_add(&t->f32, 0.5f);
    dq_atomic_add(&t->f64, 0.25);
    dq_atomic_max(&t->max_u32, i ^ 0x80000000u);
    dq_atomic_max(&t->max_i32, -5 - (int32_t)i);
    for (uint32_t seen = 0;;) {
        uint32_t was = dq_atomic_cas(&t->cas, seen, seen + 2);
        if (was == seen) break;
        seen = was;
    }
    if (dq_thread()) return;
    dq_atomic_add(&t->u32, local[0]);
    dq_fence();
    if (dq_atomic_add(&t->last, 1u) == dq_grid_x() - 1) t->last = 1000 + dq_load_fresh(&t->u32);
}

static void probe_atomics(dq_probe *p)
{
    totals t;
    const uint32_t n = BLOCKS * 64;
    memset(&t, 0, sizeof t);
    t.max_i32 = INT32_MIN;
    void *to = dq_probe_put(p, &t, sizeof t);
    DQ_LAUNCH(count_up, dim3(BLOCKS), 64, 0, NULL, (totals *)to);
    dq_probe_take(p, &t, to, sizeof t);
    dq_probe_check(p, t.u32 == 3 * n, "add u32, also shared", 0, t.u32, 3 * n);
    dq_probe_check(p, t.u64 == (uint64_t)n << 33, "add u64", 0, t.u64, (uint64_t)n << 33);
    dq_probe_check(p, t.f32 == 0.5f * (float)n, "add f32", 0, (uint64_t)t.f32, n / 2);
    dq_probe_check(p, t.f64 == 0.25 * n, "add f64", 0, (uint64_t)t.f64, n / 4);
    dq_probe_check(p, t.max_u32 == ((n - 1) ^ 0x80000000u), "max u32", 0, t.max_u32,
                   (n - 1) ^ 0x80000000u);
    dq_probe_check(p, t.max_i32 == -5, "max i32", 0, (uint32_t)t.max_i32, (uint32_t)-5);
    dq_probe_check(p, t.cas == 2 * n, "cas", 0, t.cas, 2 * n);
    dq_probe_check(p, t.last == 1000 + 3 * n, "last block", 0, t.last, 1000 + 3 * n);
}

/* ---------------------------------------------------------------------------------------- copies */
enum {
    STAGES = 4,
    TURNS = 23 /* stages that pass through */
};

/* A ring of stages in more shared memory than a block gets unasked; every form of copy. */
DQ_KERNEL(128) ring(unsigned char *out, const unsigned char *x)
{
    DQ_SHARED_DYNAMIC(box); /* [STAGES][128][32] */
    unsigned t = dq_thread();
    for (int i = 0; i < TURNS + STAGES - 1; i++) {
        if (i < TURNS) {
            unsigned char *to = box + (i % STAGES * 128 + (int)t) * 32;
            const unsigned char *from = x + ((size_t)i * 128 + t) * 32;
            dq_cp_async16_zfill(to, from, (t + (unsigned)i) % 17);
            dq_cp_async8(to + 16, from + 16);
            dq_cp_async4(to + 24, from + 24);
            dq_cp_async4(to + 28, from + 28);
        }
        dq_cp_async_commit();
        dq_cp_async_wait<STAGES - 1>();
        dq_sync();
        int done = i - (STAGES - 1);
        if (done >= 0) { /* another thread's bytes */
            const unsigned char *from = box + (done % STAGES * 128 + (int)(t ^ 37u)) * 32;
            unsigned char *to = out + ((size_t)done * 128 + (t ^ 37u)) * 32;
            dq_store16(to, dq_load16(from));
            dq_store16(to + 16, dq_load16(from + 16));
        }
        dq_sync();
    }
}

static void probe_copies(dq_probe *p)
{
    enum { BYTES = TURNS * 128 * 32, SMEM = 100 * 1024 };
    static unsigned char x[BYTES], out[BYTES];
    for (int i = 0; i < BYTES; i++) x[i] = (unsigned char)(1 + dq_probe_bits(p) % 255);
    void *in = dq_probe_put(p, x, BYTES), *to = dq_probe_put(p, NULL, BYTES);
    cudaError_t e = DQ_ALLOW_SMEM(ring, SMEM);
    dq_probe_check(p, e == cudaSuccess, "allow 100 KiB", 0, (uint64_t)e, 0);
    DQ_LAUNCH(ring, dim3(1), 128, SMEM, NULL, (unsigned char *)to, (const unsigned char *)in);
    dq_probe_take(p, out, to, BYTES);
    dq_probe_take(p, NULL, in, 0);
    for (int i = 0; i < BYTES; i++) {
        int cell = i / 32, byte = i % 32, length = (cell % 128 + cell / 128) % 17;
        unsigned char right = byte < 16 && byte >= length ? 0 : x[i];
        dq_probe_check(p, out[i] == right, "byte", (uint64_t)i, out[i], right);
    }
}

/* ------------------------------------------------------------------------------------ wide accesses */
DQ_KERNEL(64) reverse(dq_u4 *out, const dq_u4 *x, int n)
{
    int i = (int)(dq_block_x() * dq_threads() + dq_thread());
    if (i >= n) return;
    dq_u4 v = dq_load16_const(x + i);
    dq_store16(out + (n - 1 - i), dq_u4{v.w, v.z, v.y, v.x});
}

static void probe_wide(dq_probe *p)
{
    enum { N = 1000 };
    static uint32_t x[N][4], out[N][4];
    for (int i = 0; i < N * 4; i++) x[i / 4][i % 4] = dq_probe_bits(p);
    void *in = dq_probe_put(p, x, sizeof x), *to = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(reverse, dim3((N + 63) / 64), 64, 0, NULL, (dq_u4 *)to, (const dq_u4 *)in, N);
    dq_probe_take(p, out, to, sizeof out);
    dq_probe_take(p, NULL, in, 0);
    for (int i = 0; i < N * 4; i++) {
        uint32_t right = x[N - 1 - i / 4][3 - i % 4];
        dq_probe_check(p, out[i / 4][i % 4] == right, "word", (uint64_t)i, out[i / 4][i % 4],
                       right);
    }
}

const dq_probe_entry dq_probes_threads[] = {
    {"exchange", probe_exchange}, {"barriers", probe_barriers}, {"atomics", probe_atomics},
    {"cp_async", probe_copies},   {"wide_access", probe_wide},  {NULL, NULL}};
