/* test_fused: attention in one kernel against plain loops: scores of bytes bit for bit, results within
 * what rounding D and f32 sums may cost.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/fused_rig.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const float lambdas[4] = {-0.3f, 0.0f, 0.8f, 1.4f};

static void check_scores(rig *r)
{
    dq_attention_units *u = &r->units;
    check_array<uint32_t> max((size_t)(r->n_units * u->n_q));
    max.put();
    assert_int_equal(dq_fused_scores(*u, r->spec.math, NULL), cudaSuccess);
    assert_int_equal(dq_fused_absmax(*u, max.device, r->spec.math, NULL), cudaSuccess);
    r->strip->get();
    max.get();
    assert_string_equal(dq_simt_report(), "");
    for (int i = 0; i < r->n_units; i++)
        for (int h = 0; h < u->max_q; h++) {
            const dq_attention_unit *w = &r->list[i].unit;
            for (int row = 0; row < w->n; row++)
                for (int t = 0; t < w->keys; t++) {
                    const float x =
                        r->strip->host[w->strip + ((int64_t)h * w->n + row) * w->ld + t];
                    const float y = rig_score(r, i, h, row, t);
                    const bool bytes = r->spec.math == DQ_FUSED_INT8;
                    if (bytes ? memcmp(&x, &y, 4) == 0 : fabsf(x - y) <= 1e-5f) continue;
                    printf("unit %d head %d row %d token %d: %.9g, not %.9g\n", i, h, row, t,
                           (double)x, (double)y);
                    fail();
                }
            const float x = dq_float_of(max.host[i * u->n_q + 1 + h]), y = rig_absmax(r, i, h);
            if (r->spec.math == DQ_FUSED_INT8)
                assert_memory_equal(&x, &y, 4);
            else
                assert_true(fabsf(x - y) <= 1e-5f);
        }
}

static void check_rows(const rig *r, int n_units)
{
    double y[2 * MAX_DIM], bound[2 * MAX_DIM];
    for (int i = 0; i < n_units; i++)
        for (int o = 0; o < r->spec.outs; o++)
            for (int row = 0; row < r->list[i].unit.n; row++) {
                rig_row(r, i, o, row, y, bound);
                const float *x = r->out->host + (r->list[i].unit.row + row) * r->finish.out_cols +
                                 r->o_head[o].out * r->width;
                for (int c = 0; c < r->width; c++) {
                    if (fabs((double)x[c] - y[c]) <= bound[c]) continue;
                    printf("unit %d out %d row %d (of %d, %d keys) channel %d: %.9g, not %.9g +- "
                           "%.3g\n",
                           i, o, row, r->list[i].unit.n, r->list[i].unit.keys, c, (double)x[c],
                           y[c], bound[c]);
                    fail();
                }
            }
}

/* Results of the first n_units. */
static void check_attend_of(rig *r, int n_units)
{
    r->out->put();
    assert_int_equal(dq_fused_attend(r->units, r->finish, r->logits, r->spec.math, NULL),
                     cudaSuccess);
    r->out->get();
    assert_string_equal(dq_simt_report(), "");
    check_rows(r, n_units);
}

/* Few rows: those of attend_int8 bit for bit. */
static void check_decode(rig *r)
{
    check_array<float> clear(r->out->n), many(r->out->n);
    memcpy(clear.host, r->out->host, clear.n * sizeof(float));
    check_attend_of(r, r->n_units);
    memcpy(many.host, r->out->host, many.n * sizeof(float));
    memcpy(r->out->host, clear.host, clear.n * sizeof(float));
    r->out->put();
    assert_int_equal(dq_fused_decode(r->units, r->finish, r->logits, NULL), cudaSuccess);
    r->out->get();
    assert_string_equal(dq_simt_report(), "");
    for (size_t i = 0; i < many.n; i++) {
        if (memcmp(&many.host[i], &r->out->host[i], sizeof(float)) == 0) continue;
        printf("output %d: %.9g, not %.9g\n", (int)i, (double)r->out->host[i],
               (double)many.host[i]);
        fail();
    }
}

static rig_spec spec_of(int math, int dim, int k_bits, int v_bits, uint64_t seed)
{
    check_random x = {seed * 977};
    rig_spec s = {};
    for (int i = 0; i < 5; i++) x.bits();
    s.dim = dim;
    s.max_keys = 256;
    s.bits[0] = k_bits;
    s.bits[1] = v_bits;
    s.group = 16 << (x.bits() % 3 ? 1 : x.bits() % 3);
    if (s.group > dim) s.group = dim;
    s.math = math;
    s.maps = x.bits() % 4 ? 2 : 1;
    s.slabs = 1 + (int)(x.bits() % 2);
    s.outs = 1 + (x.bits() % 4 == 0);
    s.lambda = lambdas[x.bits() % 4];
    s.token_lambda = x.bits() % 2;
    s.shared_second = x.bits() % 2;
    s.same_keys = x.bits() % 4 == 0;
    s.rotated = (dim & (dim - 1)) == 0 && x.bits() % 2;
    s.norm = x.bits() % 2;
    const int rounds[4] = {DQ_ROUND_NOT, DQ_ROUND_NOT, DQ_ROUND_GIVEN, DQ_ROUND_ROW};
    s.round = math == DQ_FUSED_INT8 ? rounds[x.bits() % 4] : DQ_ROUND_NOT;
    return s;
}

/* Per-channel codes, in int8, with dither and with widths by map. */
static rig_spec sets_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    static const int widths[6] = {8, 6, 5, 4, 3, 2};
    rig_spec s = spec_of(DQ_FUSED_INT8, dim, k_bits, v_bits, seed);
    s.sets = true;
    s.dither = seed / 4 % 2;
    s.many_sets = seed / 8 % 3 == 1;
    if (seed % 3 == 0) s.second = widths[seed / 3 % 6];
    return s;
}

/* Mixed codes. */
static rig_spec mixed_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = sets_of(dim, k_bits, v_bits, seed);
    s.mixed = true;
    s.dither = false;
    s.all_coded = seed % 4 == 1;
    return s;
}

/* One random call. */
static void check_spec(rig_spec s, uint64_t seed)
{
    rig r;
    const int math = s.math, dim = s.dim;
    if (getenv("DQ_FUSED_SAY"))
        printf("math %d dim %d bits %d %d group %d maps %d slabs %d outs %d rotated %d norm %d "
               "round %d sets %d mixed %d seed %d\n",
               math, dim, s.bits[0], s.bits[1], s.group, s.maps, s.slabs, s.outs, s.rotated, s.norm,
               s.round, s.sets, s.mixed, (int)seed);
    rig_open(&r, &s, seed);
    assert_null(dq_fused_lacks(&r.units, &r.finish, math, s.round));
    check_scores(&r);
    check_attend_of(&r, r.n_units);
    rig_close(&r);
}

static void check_call(int math, int dim, int k_bits, int v_bits, uint64_t seed)
{
    check_spec(spec_of(math, dim, k_bits, v_bits, seed), seed);
}

static const int dims[5] = {16, 32, 48, 80, 128};

static void check_widths(int math, const int *k, int n_k, const int *v, int n_v, int times)
{
    uint64_t seed = 1;
    for (int i = 0; i < n_k * n_v * 5 * times; i++, seed++) {
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, seed);
        const int pair = i / 5 % (n_k * n_v);
        check_call(math, dims[i % 5], k[pair / n_v], v[pair % n_v], seed);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

TEST(test_int8)
{
    const int k[3] = {8, 6, 4}, v[5] = {8, 6, 4, 3, 2};
    check_widths(DQ_FUSED_INT8, k, 3, v, 5, 1);
}

TEST(test_decode)
{
    const int k[3] = {8, 6, 4}, v[5] = {8, 6, 4, 3, 2};
    for (int i = 0; i < 75; i++) {
        rig r;
        rig_spec s =
            spec_of(DQ_FUSED_INT8, dims[i % 5], k[i / 25], v[i / 5 % 5], 1000 + (uint64_t)i);
        s.max_rows = 1 + i % 8;
        s.max_keys = i % 4 ? 300 : 64 * MAX_PAGES; /* more than decode_sums takes at a time */
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, (uint64_t)i);
        rig_open(&r, &s, 1000 + (uint64_t)i);
        check_decode(&r);
        rig_close(&r);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

typedef rig_spec spec_maker(int dim, int k_bits, int v_bits, uint64_t seed);

static void check_all_widths(spec_maker *make, uint64_t times, uint64_t seed)
{
    static const int widths[6] = {8, 6, 5, 4, 3, 2};
    for (uint64_t i = 0; i < times; i++) {
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, i);
        check_spec(make(dims[i % 5], widths[i % 6], widths[i / 5 % 6], seed + i), seed + i);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

static void decode_all_widths(spec_maker *make, uint64_t times, uint64_t seed)
{
    static const int widths[6] = {8, 6, 5, 4, 3, 2};
    for (uint64_t i = 0; i < times; i++) {
        rig r;
        rig_spec s = make(dims[i % 5], widths[i % 6], widths[i / 5 % 6], seed + i);
        /* single rows have scores of their own */
        s.max_rows = i / 6 % 2 ? 1 : 1 + (int)(i + i / 12) % 8;
        s.max_keys = i % 4 ? 300 : 64 * MAX_PAGES;
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, i);
        rig_open(&r, &s, seed + i);
        check_decode(&r);
        rig_close(&r);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

TEST(test_sets)
{
    check_all_widths(sets_of, 60, 2000);
}

TEST(test_decode_sets)
{
    decode_all_widths(sets_of, 48, 3000);
}

TEST(test_mixed)
{
    check_all_widths(mixed_of, 60, 5000);
}

TEST(test_decode_mixed)
{
    decode_all_widths(mixed_of, 48, 6000);
}

/* Pages of as many sets as they have slots. */
TEST(test_each_slot)
{
    static const int widths[6] = {8, 6, 5, 4, 3, 2};
    for (uint64_t i = 0; i < 12; i++) {
        rig r;
        rig_spec s = sets_of(dims[i % 5], widths[i % 6], widths[5 - i % 6], 4000 + i);
        s.each_slot = true;
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, i);
        if (i < 6) check_spec(s, 4000 + i);
        s.max_rows = i % 2 ? 8 : 1;
        s.max_keys = i % 5 ? 300 : 64 * MAX_PAGES;
        rig_open(&r, &s, 4100 + i);
        check_decode(&r);
        rig_close(&r);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

TEST(test_bf16)
{
    const int k[4] = {16, 8, 6, 4}, v[6] = {16, 8, 6, 4, 3, 2};
    check_widths(DQ_FUSED_BF16, k, 4, v, 6, 1);
}

/* Units cut in two: rows come to other lanes and warps, and have other neighbours. */
static void check_cut(rig_spec s, uint64_t seed)
{
    rig r;
    s.round = s.round == DQ_ROUND_GIVEN ? DQ_ROUND_NOT : s.round;
    rig_open(&r, &s, seed);
    const dq_attention_unit whole = r.list[0].unit;
    const int half = whole.n / 2;
    check_array<dq_attention_unit> cut(2);
    r.units.n = 1;
    check_attend_of(&r, 1);
    check_array<float> before(r.out->n);
    memcpy(before.host, r.out->host, before.n * sizeof(float));
    cut.host[0] = cut.host[1] = whole;
    cut.host[0].n = half;
    cut.host[0].keys = half ? r.list[0].visible[half - 1] : 0;
    cut.host[0].split = whole.split < half ? whole.split : half;
    cut.host[1].row += half;
    cut.host[1].visible += half;
    cut.host[1].n -= half;
    cut.host[1].split = whole.split > half ? whole.split - half : 0;
    cut.put();
    r.units.unit = cut.device;
    r.units.n = 2;
    check_attend_of(&r, 1);
    for (size_t i = 0; i < before.n; i++) assert_true(before.host[i] == r.out->host[i]);
    rig_close(&r);
}

TEST(test_cut)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
        check_cut(spec_of(DQ_FUSED_INT8, 32, 8, 4, seed), seed);
        check_cut(spec_of(DQ_FUSED_BF16, 32, 8, 4, seed), seed);
        check_cut(sets_of(32, 8, 4, seed), seed);
        check_cut(mixed_of(32, 8, 4, seed), seed);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

TEST(test_lacks)
{
    rig r;
    const rig_spec s = spec_of(DQ_FUSED_INT8, 48, 8, 8, 3);
    rig_open(&r, &s, 3);
    dq_attention_units u = r.units;
    dq_attention_finish f = r.finish;
    assert_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_ROW));
    assert_non_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_TILE));
    u.form[0].set_numbers = 96; /* of keys alone */
    assert_non_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_NOT));
    u.form[1].has_lows = 1; /* mixed codes */
    assert_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_NOT));
    u.form[0].set_numbers = 0;
    assert_non_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_NOT));
    u.form[1].has_lows = 0;
    f.rotated = true; /* of 48 channels */
    assert_non_null(dq_fused_lacks(&u, &f, DQ_FUSED_INT8, DQ_ROUND_NOT));
    u.form[1].bits = 16;
    assert_null(dq_fused_lacks(&u, &r.finish, DQ_FUSED_BF16, DQ_ROUND_NOT));
    assert_non_null(dq_fused_lacks(&u, &r.finish, DQ_FUSED_INT8, DQ_ROUND_NOT));
    u.form[0].dim = 40;
    assert_non_null(dq_fused_lacks(&u, &r.finish, DQ_FUSED_BF16, DQ_ROUND_NOT));
    assert_int_equal(dq_fused_scores(u, DQ_FUSED_BF16, NULL), cudaErrorInvalidValue);
    rig_close(&r);
}

/* A launch that fails is reported by its kernel's name. */
TEST(test_names)
{
    if (!simulated()) skip(); /* a GPU forgets a process whose kernel failed */
    for (int math = DQ_FUSED_INT8; math <= DQ_FUSED_BF16; math++) {
        const char *const names[2][3] = {{"attend_int8<", "scores_int8<", "absmax_int8<"},
                                         {"attend_bf16<", "scores_bf16,", "absmax_bf16,"}};
        for (int i = 0; i < 3; i++) {
            rig r;
            const rig_spec s = spec_of(math, 32, 8, 8, 3);
            rig_open(&r, &s, 3);
            dq_attention_units u = r.units;
            uint32_t *max = (uint32_t *)(void *)r.sum->device;
            char text[64];
            dq_simt_set_quiet(1);
            check_array<float> q(r.q->n + 1);
            q.put();
            u.q = q.device + 1; /* not aligned */
            if (i == 0) dq_fused_attend(u, r.finish, r.logits, math, NULL);
            if (i == 1) dq_fused_scores(u, math, NULL);
            if (i == 2) dq_fused_absmax(u, max, math, NULL);
            assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
            snprintf(text, sizeof text, "kernel %s", names[math][i]);
            if (!strstr(dq_simt_report(), text)) fail_msg("%s", dq_simt_report());
            dq_simt_reset();
            dq_simt_set_quiet(0);
            rig_close(&r);
        }
    }
}

/* The widest head in every order of threads. */
TEST(test_orders)
{
    dq_each_order([] {
        check_call(DQ_FUSED_INT8, 32, 8, 8, 104);
        check_call(DQ_FUSED_INT8, 32, 4, 3, 105);
    });
}

/* With an argument: tests of that name. */

static bool is_there(void)
{
    int devices = 0;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaSuccess && devices > 0) return true;
    print_error("skipped: %s\n", cudaGetErrorString(e));
    return false;
}

NEEDS(is_there)
