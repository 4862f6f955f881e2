/* probes_matrix: ldmatrix and mma against the fragment models, dot products of bytes.
 * SPDX-License-Identifier: MIT */
#include "tests/gpu/probes.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device/ptx.cuh"
#include "tests/simt/fragments.h"
#include "tests/simt/numerics.h"

enum {
    ROWS = 128, /* of 16 bytes, from which ldmatrix picks */
    ROUNDS = 64 /* blocks, each with operands of its own */
};

/* ---------------------------------------------------------------------------------------- ldmatrix */
enum load_kind { X4, X2, X4_TRANS, X2_TRANS };

/* out[block][32][4]; row[block][32]: which row of x each lane points to. */
template <int KIND> DQ_KERNEL(32) load(uint32_t *out, const uint16_t *x, const int32_t *row)
{
    DQ_SHARED(uint16_t, s, [ROWS * 8]);
    unsigned lane = dq_lane();
    for (unsigned i = lane; i < ROWS * 8; i += 32) s[i] = x[i];
    dq_warp_sync();
    uint32_t r[4] = {0, 0, 0, 0};
    const uint16_t *at = s + 8 * row[dq_block_x() * 32 + lane];
    if (KIND == X4) dq_ldmatrix_x4(r, at);
    if (KIND == X2) dq_ldmatrix_x2(r, at);
    if (KIND == X4_TRANS) dq_ldmatrix_x4_trans(r, at);
    if (KIND == X2_TRANS) dq_ldmatrix_x2_trans(r, at);
    for (int j = 0; j < 4; j++) out[(dq_block_x() * 32 + lane) * 4 + j] = r[j];
}

template <int KIND> static void probe_load(dq_probe *p)
{
    static uint16_t x[ROWS * 8];
    static int32_t row[ROUNDS][32];
    static uint32_t out[ROUNDS][32][4];
    for (int i = 0; i < ROWS * 8; i++) x[i] = (uint16_t)dq_probe_bits(p);
    for (int i = 0; i < ROUNDS * 32; i++) row[i / 32][i % 32] = (int32_t)(dq_probe_bits(p) % ROWS);
    void *dx = dq_probe_put(p, x, sizeof x), *dr = dq_probe_put(p, row, sizeof row);
    void *dout = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(load<KIND>, dim3(ROUNDS), 32, 0, NULL, (uint32_t *)dout, (const uint16_t *)dx,
              (const int32_t *)dr);
    dq_probe_take(p, out, dout, sizeof out);
    dq_probe_take(p, NULL, dx, 0);
    dq_probe_take(p, NULL, dr, 0);
    const int count = KIND == X2 || KIND == X2_TRANS ? 2 : 4;
    for (int b = 0; b < ROUNDS; b++) {
        const void *start[32];
        uint32_t model[32][4];
        memset(model, 0, sizeof model);
        for (int lane = 0; lane < 32; lane++) start[lane] = x + 8 * row[b][lane];
        fragments_ldmatrix(model, start, count, KIND == X4_TRANS || KIND == X2_TRANS);
        for (int i = 0; i < 128; i++)
            dq_probe_check(p, out[b][i / 4][i % 4] == model[i / 4][i % 4], "4 lane + register",
                           (uint64_t)i, out[b][i / 4][i % 4], model[i / 4][i % 4]);
    }
}

/* -------------------------------------------------------------------------------------------- mma */
enum mma_kind { S8S8, U8S8, S8U8 };

/* a, b, d: fragments [block][32][4], [block][32][2], [block][32][4]; d is read and written. */
template <int KIND> DQ_KERNEL(32) multiply8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    unsigned at = dq_block_x() * 32 + dq_lane();
    uint32_t fa[4], fb[2];
    int32_t fd[4];
    for (int i = 0; i < 4; i++) fa[i] = a[4 * at + i];
    for (int i = 0; i < 2; i++) fb[i] = b[2 * at + i];
    for (int i = 0; i < 4; i++) fd[i] = d[4 * at + i];
    if (KIND == S8S8) dq_mma_s8s8(fd, fa, fb);
    if (KIND == U8S8) dq_mma_u8s8(fd, fa, fb);
    if (KIND == S8U8) dq_mma_s8u8(fd, fa, fb);
    for (int i = 0; i < 4; i++) d[4 * at + i] = fd[i];
}

static void random_bytes(dq_probe *p, void *to, size_t n)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = dq_probe_byte(p);
}

template <int KIND> static void probe_mma8(dq_probe *p)
{
    static uint32_t a[ROUNDS][32][4], b[ROUNDS][32][2];
    static int32_t d[ROUNDS][32][4], out[ROUNDS][32][4];
    random_bytes(p, a, sizeof a);
    random_bytes(p, b, sizeof b);
    memset(a[0], KIND == U8S8 ? 0xff : 0x80, sizeof a[0]); /* the largest products */
    memset(b[0], KIND == S8U8 ? 0xff : 0x80, sizeof b[0]);
    for (int i = 0; i < ROUNDS * 128; i++) /* sums that wrap, too */
        d[i / 128][i / 4 % 32][i % 4] = i % 5 == 0   ? INT32_MAX
                                        : i % 5 == 1 ? INT32_MIN
                                                     : (int32_t)dq_probe_bits(p) >> 8;
    void *da = dq_probe_put(p, a, sizeof a), *db = dq_probe_put(p, b, sizeof b);
    void *dd = dq_probe_put(p, d, sizeof d);
    DQ_LAUNCH(multiply8<KIND>, dim3(ROUNDS), 32, 0, NULL, (int32_t *)dd, (const uint32_t *)da,
              (const uint32_t *)db);
    dq_probe_take(p, out, dd, sizeof out);
    dq_probe_take(p, NULL, da, 0);
    dq_probe_take(p, NULL, db, 0);
    for (int r = 0; r < ROUNDS; r++) {
        fragments_mma8(d[r], a[r], b[r], KIND != U8S8, KIND != S8U8);
        for (int i = 0; i < 128; i++)
            dq_probe_check(p, out[r][i / 4][i % 4] == d[r][i / 4][i % 4], "4 lane + register",
                           (uint64_t)i, (uint32_t)out[r][i / 4][i % 4],
                           (uint32_t)d[r][i / 4][i % 4]);
    }
}

DQ_KERNEL(32) multiply16(float *d, const uint32_t *a, const uint32_t *b)
{
    unsigned at = dq_block_x() * 32 + dq_lane();
    uint32_t fa[4], fb[2];
    float fd[4];
    for (int i = 0; i < 4; i++) fa[i] = a[4 * at + i];
    for (int i = 0; i < 2; i++) fb[i] = b[2 * at + i];
    for (int i = 0; i < 4; i++) fd[i] = d[4 * at + i];
    dq_mma_f16(fd, fa, fb);
    for (int i = 0; i < 4; i++) d[4 * at + i] = fd[i];
}

struct f16_case {
    uint32_t a[ROUNDS][32][4], b[ROUNDS][32][2];
    float d[ROUNDS][32][4], out[ROUNDS][32][4];
};

static void run_f16(dq_probe *p, f16_case *c)
{
    void *da = dq_probe_put(p, c->a, sizeof c->a), *db = dq_probe_put(p, c->b, sizeof c->b);
    void *dd = dq_probe_put(p, c->d, sizeof c->d);
    DQ_LAUNCH(multiply16, dim3(ROUNDS), 32, 0, NULL, (float *)dd, (const uint32_t *)da,
              (const uint32_t *)db);
    dq_probe_take(p, c->out, dd, sizeof c->out);
    dq_probe_take(p, NULL, da, 0);
    dq_probe_take(p, NULL, db, 0);
}

static uint32_t two_f16(float low, float high)
{
    return numerics_f32_f16(low) | (uint32_t)numerics_f32_f16(high) << 16;
}

static uint32_t bits_of(float x)
{
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

/* Operands from draw. */
static void fill_f16(dq_probe *p, f16_case *c, float (*draw)(dq_probe *))
{
    for (int r = 0; r < ROUNDS; r++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) {
                float low = draw(p), high = draw(p);
                c->a[r][lane][i] = two_f16(low, high);
                low = draw(p);
                high = draw(p);
                if (i < 2) c->b[r][lane][i] = two_f16(low, high);
                c->d[r][lane][i] = draw(p);
            }
}

static float small_integer(dq_probe *p)
{
    return (float)(int)(dq_probe_bits(p) % 255) - 127;
}

/* Small integers: every sum is exact, so the layout decides alone. */
static void probe_f16_layout(dq_probe *p)
{
    f16_case *c = (f16_case *)dq_probe_room(1, sizeof *c);
    fill_f16(p, c, small_integer);
    run_f16(p, c);
    for (int r = 0; r < ROUNDS; r++) {
        fragments_mma_f16(c->d[r], c->a[r], c->b[r]);
        for (int i = 0; i < 128; i++)
            dq_probe_check(p, c->out[r][i / 4][i % 4] == c->d[r][i / 4][i % 4], "4 lane + register",
                           (uint64_t)i, bits_of(c->out[r][i / 4][i % 4]),
                           bits_of(c->d[r][i / 4][i % 4]));
    }
    free(c);
}

/* Random values; worst: difference from the f64 sum over the sum of the terms' sizes, in units of
 * 2^-24. Held to 17 terms of one unit each. */
static void probe_f16_rounding(dq_probe *p)
{
    f16_case *c = (f16_case *)dq_probe_room(1, sizeof *c);
    fill_f16(p, c, dq_probe_value);
    run_f16(p, c);
    double worst = 0;
    uint64_t equal = 0;
    for (int r = 0; r < ROUNDS; r++) {
        float sizes[32][4];
        uint32_t a[32][4], b[32][2];
        for (int i = 0; i < 128; i++) {
            sizes[i / 4][i % 4] = fabsf(c->d[r][i / 4][i % 4]);
            a[i / 4][i % 4] = c->a[r][i / 4][i % 4] & 0x7fff7fffu;
            b[i / 4][i % 2] = c->b[r][i / 4][i % 2] & 0x7fff7fffu;
        }
        fragments_mma_f16(sizes, a, b);
        fragments_mma_f16(c->d[r], c->a[r], c->b[r]);
        for (int i = 0; i < 128; i++) {
            float got = c->out[r][i / 4][i % 4], right = c->d[r][i / 4][i % 4];
            double off = fabs((double)got - (double)right) / (double)sizes[i / 4][i % 4] * 0x1p24;
            equal += got == right;
            if (!(off <= worst)) worst = off;
            dq_probe_check(p, off <= 17, "4 lane + register", (uint64_t)i, bits_of(got),
                           bits_of(right));
        }
    }
    p->worst = worst;
    if (!p->wrong)
        snprintf(p->note, sizeof p->note,
                 "worst: |difference from f64| in 2^-24 of the sum of sizes; %.1f%% equal",
                 100.0 * (double)equal / (double)p->cases);
    free(c);
}

/* ------------------------------------------------------------------------------------------- dp4a */
DQ_KERNEL(128) dots(uint32_t *out, const uint32_t *a, const uint32_t *b, const uint32_t *c, int n)
{
    int step = (int)(dq_grid_x() * dq_threads());
    for (int i = (int)(dq_block_x() * dq_threads() + dq_thread()); i < n; i += step) {
        out[4 * i] = (uint32_t)dq_dp4a_s8s8((int32_t)c[i], a[i], b[i]);
        out[4 * i + 1] = (uint32_t)dq_dp4a_u8s8((int32_t)c[i], a[i], b[i]);
        out[4 * i + 2] = (uint32_t)dq_dp4a_s8u8((int32_t)c[i], a[i], b[i]);
        out[4 * i + 3] = dq_dp4a_u8u8(c[i], a[i], b[i]);
    }
}

static void probe_dp4a(dq_probe *p)
{
    enum { N = 20000 };
    static uint32_t a[N], b[N], c[N], out[N][4];
    static const char *const what[] = {"s8s8", "u8s8", "s8u8", "u8u8"};
    random_bytes(p, a, sizeof a);
    random_bytes(p, b, sizeof b);
    for (int i = 0; i < N; i++) c[i] = i % 4 ? dq_probe_bits(p) : 0x7ffffff0u;
    void *da = dq_probe_put(p, a, sizeof a), *db = dq_probe_put(p, b, sizeof b);
    void *dc = dq_probe_put(p, c, sizeof c), *dout = dq_probe_put(p, NULL, sizeof out);
    DQ_LAUNCH(dots, dim3(32), 128, 0, NULL, (uint32_t *)dout, (const uint32_t *)da,
              (const uint32_t *)db, (const uint32_t *)dc, N);
    dq_probe_take(p, out, dout, sizeof out);
    dq_probe_take(p, NULL, da, 0);
    dq_probe_take(p, NULL, db, 0);
    dq_probe_take(p, NULL, dc, 0);
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) {
            uint32_t right = numerics_dp4a(c[i], a[i], b[i], k % 2 == 0, k < 2);
            dq_probe_check(p, out[i][k] == right, what[k], (uint64_t)i, out[i][k], right);
        }
}

const dq_probe_entry dq_probes_matrix[] = {{"ldmatrix_x4", probe_load<X4>},
                                           {"ldmatrix_x2", probe_load<X2>},
                                           {"ldmatrix_x4_trans", probe_load<X4_TRANS>},
                                           {"ldmatrix_x2_trans", probe_load<X2_TRANS>},
                                           {"mma_s8s8", probe_mma8<S8S8>},
                                           {"mma_u8s8", probe_mma8<U8S8>},
                                           {"mma_s8u8", probe_mma8<S8U8>},
                                           {"mma_f16_layout", probe_f16_layout},
                                           {"mma_f16_rounding", probe_f16_rounding},
                                           {"dp4a", probe_dp4a},
                                           {NULL, NULL}};
