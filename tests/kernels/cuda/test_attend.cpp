/* test_attend: attention over operands against plain loops, of every code of the cache, by both kernels.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/attend_rig.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The simulated device watches shared memory from 9.0 on, which takes time: that kernel alone runs there. */
static bool has_hopper(void)
{
    const bool has = check_hopper();
    dq_simt_set_capability(80);
    return has;
}

enum { SMEM = 163 << 10 }; /* of a block, on compute capability 8.0 */

static const float lambdas[4] = {-0.3f, 0.0f, 0.8f, 1.4f};
static const int dims[5] = {16, 32, 48, 80, 128}, widths[7] = {16, 8, 6, 5, 4, 3, 2};

static void check_scores(rig *r, rig_call *k)
{
    dq_attention_units *u = &r->units;
    dq_simt_set_capability(r->spec.int8 ? 90 : 80);
    assert_int_equal(dq_attend_scores(k->call, NULL), cudaSuccess);
    dq_simt_set_capability(80);
    cudaDeviceSynchronize();
    assert_string_equal(dq_simt_report(), "");
    r->strip->get();
    for (int i = 0; i < r->n_units; i++)
        for (int h = 0; h < u->max_q; h++) {
            const dq_attention_unit *w = &r->list[i].unit;
            for (int row = 0; row < w->n; row++)
                for (int t = w->hidden[0]; t < w->keys; t++) {
                    const double x =
                        (double)r->strip->host[w->strip + ((int64_t)h * w->n + row) * w->ld + t];
                    const double y = rig_score(r, i, h, row, t);
                    if (fabs(x - y) <= (rig_is_exact(r, i, row, t) ? 0 : 1e-5)) continue;
                    printf("unit %d head %d row %d token %d: %.9g, not %.9g\n", i, h, row, t, x, y);
                    fail();
                }
        }
}

static void find_maxima(rig_call *k, check_array<uint32_t> *max, bool by_row, bool hopper)
{
    max->put();
    dq_simt_set_capability(hopper ? 90 : 80);
    assert_int_equal(dq_attend_absmax(k->call, max->device, by_row, hopper, NULL), cudaSuccess);
    dq_simt_set_capability(80);
    cudaDeviceSynchronize();
    assert_string_equal(dq_simt_report(), "");
    max->get();
}

/* Head 0 is of another group. */
static void check_maxima(rig *r, rig_call *k, bool hopper)
{
    const int n_q = r->units.n_q;
    check_array<uint32_t> all((size_t)(r->n_units * n_q)), each((size_t)(r->rows * n_q));
    find_maxima(k, &all, false, hopper);
    find_maxima(k, &each, true, hopper);
    for (int i = 0; i < r->n_units; i++)
        for (int h = 0; h <= r->units.max_q; h++) {
            const dq_attention_unit *w = &r->list[i].unit;
            const double x = (double)dq_float_of(all.host[i * n_q + h]);
            assert_true(fabs(x - (h ? rig_absmax(r, i, h - 1) : 0)) <= 1e-5);
            for (int row = 0; row < w->n; row++) {
                const double y = (double)dq_float_of(each.host[(w->row + row) * n_q + h]);
                assert_true(fabs(y - (h ? rig_row_absmax(r, i, h - 1, row) : 0)) <= 1e-5);
            }
        }
}

#define UNTOUCHED 777.0f

static void check_rows(const rig *r, int n_units)
{
    double y[2 * MAX_DIM], bound[2 * MAX_DIM];
    for (int k = 0; k < r->rows * r->width; k++) /* head 0 is of another group */
        assert_true(r->out->host[k / r->width * r->finish.out_cols + k % r->width] == UNTOUCHED);
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
static void check_run(rig *r, rig_call *k, bool hopper, int n_units)
{
    for (size_t i = 0; i < r->out->n; i++) r->out->host[i] = UNTOUCHED;
    r->out->put();
    dq_simt_set_capability(hopper ? 90 : 80);
    rig_call_run(k, hopper);
    dq_simt_set_capability(80);
    cudaDeviceSynchronize();
    assert_string_equal(dq_simt_report(), "");
    r->out->get();
    check_rows(r, n_units);
}

static rig_spec spec_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    check_random x = {seed * 977};
    rig_spec s = {};
    for (int i = 0; i < 5; i++) x.bits();
    s.dim = dim;
    s.max_keys = seed % 6 == 5 ? 700 : 256; /* parts where rows are few */
    s.bits[0] = k_bits;
    s.bits[1] = v_bits;
    s.group = 16 << (x.bits() % 3 ? 1 : x.bits() % 3);
    if (s.group > dim) s.group = dim;
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
    s.round = rounds[x.bits() % 4];
    return s;
}

/* Per-channel codes, with dither and with widths by map. */
static rig_spec sets_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = spec_of(dim, k_bits, v_bits, seed);
    s.sets = true;
    s.dither = seed / 4 % 2;
    s.many_sets = seed / 8 % 3 == 1;
    s.each_slot = seed / 8 % 7 == 2;
    if (seed % 3 == 0) s.second = widths[1 + seed / 3 % 6];
    return s;
}

/* Mixed codes. */
static rig_spec mixed_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = sets_of(dim, k_bits, v_bits, seed);
    s.mixed = true;
    s.dither = s.each_slot = false;
    s.all_coded = seed % 4 == 1;
    return s;
}

/* Codes of keys that are multiplied as they are: of 8, 6 and 5 bits. */
static rig_spec int8_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = spec_of(dim, k_bits == 16 ? 8 : k_bits < 5 ? 6 : k_bits, v_bits, seed);
    s.int8 = true;
    return s;
}

/* One random call. */
static void check_spec(rig_spec s, uint64_t seed)
{
    rig r;
    rig_call k;
    if (getenv("DQ_ATTEND_SAY"))
        printf("dim %d bits %d %d group %d maps %d slabs %d outs %d rotated %d norm %d round %d "
               "sets %d mixed %d seed %d\n",
               s.dim, s.bits[0], s.bits[1], s.group, s.maps, s.slabs, s.outs, s.rotated, s.norm,
               s.round, s.sets, s.mixed, (int)seed);
    rig_open(&r, &s, seed);
    assert_null(dq_attend_lacks(&r.units, &r.finish, s.round, SMEM));
    assert_true(!s.int8 || dq_attend_takes_int8(r.units.form));
    rig_call_open(&k, &r, 1 + (int)(seed % 4));
    rig_call_unfold(&k);
    check_scores(&r, &k);
    for (int hopper = s.int8; hopper <= (s.int8 || (seed % 2 && has_hopper())); hopper++) {
        check_maxima(&r, &k, hopper);
        check_run(&r, &k, hopper, r.n_units);
    }
    rig_call_close(&k);
    rig_close(&r);
}

typedef rig_spec spec_maker(int dim, int k_bits, int v_bits, uint64_t seed);

static void check_widths(spec_maker *make, int from, uint64_t times, uint64_t seed)
{
    const uint64_t n = (uint64_t)(7 - from);
    for (uint64_t i = 0; i < times; i++) {
        dq_simt_set_schedule(i % 3 ? DQ_SIMT_GREEDY : DQ_SIMT_ROUND_ROBIN, i);
        check_spec(make(dims[i % 5], widths[from + (int)(i % n)], widths[from + (int)(i / 5 % n)],
                        seed + i),
                   seed + i);
    }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* A few of each, quickly. */
TEST(test_few)
{
    check_widths(spec_of, 0, 8, 1);
    check_widths(sets_of, 1, 3, 2000);
    check_widths(mixed_of, 1, 3, 5000);
}

/* On compute capability 9.0 alone. */
TEST(test_int8_few)
{
    if (!has_hopper()) skip();
    check_widths(int8_of, 0, 10, 1);
}

TEST(test_int8)
{
    if (!has_hopper()) skip();
    check_widths(int8_of, 0, 40, 8000);
}

TEST(test_tokens)
{
    check_widths(spec_of, 0, 49, 1);
}

TEST(test_sets)
{
    check_widths(sets_of, 1, 36, 2000);
}

TEST(test_mixed)
{
    check_widths(mixed_of, 1, 36, 5000);
}

/* The rows of a unit as `pieces` units. */
static void cut_unit(rig *r, check_array<dq_attention_unit> *cut, int pieces)
{
    const rig_list *l = &r->list[0];
    const dq_attention_unit whole = l->unit;
    r->units.n = 0;
    for (int i = 0; i < pieces; i++) {
        const int from = whole.n * i / pieces, to = whole.n * (i + 1) / pieces;
        if (from == to) continue;
        dq_attention_unit *w = cut->host + r->units.n++;
        *w = whole;
        w->row += from;
        w->visible += w->visible < 0 ? -from : from;
        w->n = to - from;
        w->keys = l->visible[to - 1];
        w->hidden[0] = l->hidden[from];
        w->hidden[1] = l->hidden[to - 1];
        w->split = whole.split < from ? 0 : whole.split > to ? w->n : whole.split - from;
    }
    memcpy(r->unit, cut->host, (size_t)r->units.n * sizeof *r->unit);
    cut->put();
    r->units.unit = cut->device;
}

/* Units cut in four: rows come to other lanes and warps, and have other neighbours. */
static void check_cut(rig_spec s, uint64_t seed, bool hopper)
{
    rig r;
    rig_call k;
    check_array<dq_attention_unit> cut(4);
    s.round = s.round == DQ_ROUND_GIVEN ? DQ_ROUND_NOT : s.round;
    s.max_keys = 256; /* no more pages than one block reads */
    rig_open(&r, &s, seed);
    check_array<float> before(r.out->n);
    const int most = (hopper ? 2 : 1) * (s.maps == 1 ? 2 : 1);
    for (int run = 0; run < (most > 1 ? 3 : 2); run++) {
        cut_unit(&r, &cut, run ? 4 : 1);
        rig_call_open(&k, &r, run < 2 ? 1 : most);
        rig_call_unfold(&k);
        check_run(&r, &k, hopper, 1);
        rig_call_close(&k);
        if (run == 0) memcpy(before.host, r.out->host, before.n * sizeof(float));
        for (size_t i = 0; i < before.n; i++) assert_true(before.host[i] == r.out->host[i]);
    }
    rig_close(&r);
}

TEST(test_cut)
{
    for (int hopper = 0; hopper <= has_hopper(); hopper++) /* an item's units end in two pages */
        check_cut(spec_of(32, 8, 4, 52), 52, hopper);
    for (uint64_t seed = 1; seed <= 8; seed++)
        for (int hopper = 0; hopper <= has_hopper(); hopper++) {
            dq_simt_set_schedule(DQ_SIMT_GREEDY, seed);
            check_cut(spec_of(32, 8, 4, seed), seed, hopper);
            check_cut(sets_of(32, 8, 4, seed), seed, hopper);
            check_cut(mixed_of(32, 8, 4, seed), seed, hopper);
            if (hopper) check_cut(int8_of(32, 8, 4, seed), seed, true);
        }
    dq_simt_set_schedule(DQ_SIMT_GREEDY, 1);
}

/* Rows that see a window: shorter than a page, pages and a few tokens, one token. */
static const int windows[6] = {20, 100, 64, 130, 1, 333};
static rig_spec window_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = seed % 3 == 0   ? sets_of(dim, k_bits == 16 ? 8 : k_bits, v_bits, seed)
                 : seed % 3 == 1 ? spec_of(dim, k_bits, v_bits, seed)
                                 : mixed_of(dim, k_bits == 16 ? 4 : k_bits, v_bits, seed);
    s.window = windows[seed % 6];
    s.max_keys = 700;
    return s;
}
static rig_spec int8_window_of(int dim, int k_bits, int v_bits, uint64_t seed)
{
    rig_spec s = int8_of(dim, k_bits, v_bits, seed);
    s.window = windows[seed % 6];
    s.max_keys = seed % 2 ? 700 : 90; /* sinks are seen, or hidden in part */
    return s;
}

TEST(test_window)
{
    check_widths(window_of, 1, 12, 3);
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int hopper = 0; hopper <= has_hopper(); hopper++) {
            rig_spec s = spec_of(32, 8, 4, seed);
            s.window = windows[seed - 1];
            check_cut(s, seed, hopper);
        }
}

TEST(test_int8_window)
{
    if (!has_hopper()) skip();
    check_widths(int8_window_of, 0, 8, 8000);
}

/* Units whose rows see nothing give zeros, alone and before another list. */
static void check_nothing(rig *r, int n_units, bool hopper)
{
    rig_call k;
    r->units.n = n_units;
    rig_call_open(&k, r, 2);
    rig_call_unfold(&k);
    for (size_t i = 0; i < r->out->n; i++) r->out->host[i] = 1;
    check_run(r, &k, hopper, n_units);
    rig_call_close(&k);
    const dq_attention_unit *w = r->unit;
    for (int row = 0; row < w->n; row++)
        for (int o = 0; o < r->spec.outs; o++)
            for (int c = 0; c < r->width; c++)
                assert_true(r->out->host[(w->row + row) * r->finish.out_cols +
                                         r->o_head[o].out * r->width + c] == 0);
}

TEST(test_nothing)
{
    for (uint64_t seed = 1; seed <= 6; seed++)
        for (int kind = 0; kind < (has_hopper() ? 3 : 1); kind++) { /* the last: int8 operands */
            const bool hopper = kind > 0;
            rig r;
            rig_spec s = spec_of(32, 8, 4, seed);
            s.round = DQ_ROUND_NOT;
            s.int8 = kind == 2;
            rig_open(&r, &s, seed);
            rig_list *l = r.list;
            check_array<dq_attention_unit> unit(MAX_UNITS);
            check_array<int32_t> visible(64 * MAX_UNITS);
            for (int row = 0; row < l->unit.n; row++) l->visible[row] = 0;
            l->unit.keys = 0;
            l->unit.visible = 0;
            l->unit.coded[0] = l->unit.coded[1] = 0;
            r.unit[0] = l->unit;
            for (int i = 0; i < r.n_units; i++) {
                unit.host[i] = r.unit[i];
                for (int row = 0; row < 64; row++)
                    visible.host[64 * i + row] = r.list[i].visible[row];
            }
            unit.put();
            visible.put();
            r.units.unit = unit.device;
            r.units.visible = visible.device;
            for (int n = 1; n <= r.n_units; n++) check_nothing(&r, n, hopper);
            rig_close(&r);
        }
}

/* A number that f16 does not have is reported; its neighbours are not. */
TEST(test_beyond)
{
    for (int far = 0; far < 2; far++) {
        rig r;
        rig_call k;
        rig_spec s = spec_of(32, 16, 16, 3);
        s.large = far ? 65520.0f : 65504.0f;
        rig_open(&r, &s, 3);
        rig_call_open(&k, &r, 1);
        rig_call_unfold(&k);
        int32_t beyond = -1;
        assert_int_equal(cudaMemcpy(&beyond, k.beyond, sizeof beyond, cudaMemcpyDeviceToHost),
                         cudaSuccess);
        assert_int_equal(beyond, far);
        rig_call_close(&k);
        rig_close(&r);
    }
}

TEST(test_queries_beyond)
{
    for (int i = 0; i < 2 * (1 + has_hopper()); i++) {
        rig r;
        rig_call k;
        rig_spec s = spec_of(32, 16, 16, 3);
        s.round = DQ_ROUND_NOT;
        rig_open(&r, &s, 3);
        r.q->host[r.q->n - 1] = i % 2 ? -65520.0f : 65504.0f;
        r.q->put();
        rig_call_open(&k, &r, 1);
        rig_call_unfold(&k);
        dq_simt_set_capability(i / 2 ? 90 : 80);
        rig_call_run(&k, i / 2);
        dq_simt_set_capability(80);
        int32_t beyond = -1;
        assert_int_equal(cudaMemcpy(&beyond, k.beyond, sizeof beyond, cudaMemcpyDeviceToHost),
                         cudaSuccess);
        assert_int_equal(beyond, i % 2);
        rig_call_close(&k);
        rig_close(&r);
    }
}

/* Maxima of some rows that move late; with maxima 16 powers of two too low P would not fit f16. */
TEST(test_rises)
{
    enum { SEED = 52 };
    rig_spec s = spec_of(32, 16, 16, SEED);
    rig r;
    s.round = DQ_ROUND_NOT;
    s.rise = 11.5f; /* 16.6 powers of two */
    rig_open(&r, &s, SEED);
    const dq_attention_unit w = r.list[0].unit;
    rig_close(&r);
    assert_true(w.n == 33 && w.keys - w.n > 128);
    for (int hopper = 0; hopper <= has_hopper(); hopper++) check_cut(s, SEED, hopper);
}

/* Pages are divided among blocks where rows are few. */
TEST(test_parts)
{
    dq_attention_unit w = {};
    w.keys = 64 * 64 - 1;
    assert_int_equal(dq_attend_items(&w, 1), 1);
    w.few = 1;
    assert_int_equal(dq_attend_items(&w, 1), 64 / dq_attend_range(64));
    w.keys = 64 * dq_attend_range(64);
    assert_int_equal(dq_attend_items(&w, 1), 1);
}

/* NaN is the largest, of its rows and of the sequence, whatever else they see. */
TEST(test_no_numbers)
{
    for (int kind = 0; kind < (has_hopper() ? 3 : 1); kind++) {
        const bool hopper = kind > 0;
        rig r;
        rig_call k;
        rig_spec s = kind == 2 ? int8_of(32, 8, 8, 3) : spec_of(32, 16, 16, 3);
        s.round = DQ_ROUND_NOT;
        rig_open(&r, &s, 3);
        const int n_q = r.units.n_q, row = r.list[0].unit.n / 2;
        r.q->host[((r.list[0].unit.row + row) * n_q + 1) * s.dim] = -NAN;
        r.q->put();
        rig_call_open(&k, &r, 1);
        rig_call_unfold(&k);
        check_array<uint32_t> all((size_t)(r.n_units * n_q)), each((size_t)(r.rows * n_q));
        find_maxima(&k, &all, false, hopper);
        find_maxima(&k, &each, true, hopper);
        for (int i = 0; i < r.rows; i++)
            assert_int_equal(isnan(dq_float_of(each.host[i * n_q + 1])), i == row);
        assert_true(isnan(dq_float_of(all.host[1])) && !isnan(dq_float_of(all.host[2])));
        rig_call_close(&k);
        rig_close(&r);
    }
}

/* The grid of a row of zeros. */
TEST(test_zeros)
{
    for (int int8 = 0; int8 <= has_hopper(); int8++) {
        rig r;
        rig_call k;
        rig_spec s = int8 ? int8_of(32, 8, 8, 3) : spec_of(32, 8, 8, 3);
        s.round = DQ_ROUND_ROW;
        rig_open(&r, &s, 3);
        memset(r.q->host, 0, r.q->n * sizeof(float));
        r.q->put();
        rig_call_open(&k, &r, 1);
        rig_call_unfold(&k);
        check_run(&r, &k, int8, r.n_units);
        rig_call_close(&k);
        rig_close(&r);
    }
}

TEST(test_lacks)
{
    rig r;
    rig_spec s = spec_of(48, 8, 8, 3);
    s.rotated = false;
    rig_open(&r, &s, 3);
    dq_attention_units u = r.units;
    dq_attention_finish f = r.finish;
    assert_null(dq_attend_lacks(&u, &f, DQ_ROUND_ROW, SMEM));
    assert_non_null(dq_attend_lacks(&u, &f, DQ_ROUND_TILE, SMEM));
    f.rotated = true; /* of 48 channels */
    assert_non_null(dq_attend_lacks(&u, &f, DQ_ROUND_NOT, SMEM));
    assert_null(dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, SMEM));
    u.form[0].dim = u.form[1].dim = u.form[0].cols = u.form[1].cols = 256;
    u.form[0].stride = u.form[1].stride = 256;
    u.n_slabs = 1;
    assert_null(dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, SMEM));
    assert_non_null(dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, 99 << 10)); /* of 8.6 */
    u.n_slabs = 2;
    assert_non_null(dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, SMEM));
    u.form[0].dim = 40;
    assert_non_null(dq_attend_lacks(&u, NULL, DQ_ROUND_NOT, SMEM));
    rig_close(&r);
}

/* A launch that fails is reported by its kernel's name. */
TEST(test_names)
{
    if (!simulated()) skip(); /* a GPU forgets a process whose kernel failed */
    const char *const names[7] = {"attend<",        "scores<",      "absmax<",   "attend_hopper<",
                                  "absmax_hopper<", "attend_int8<", "look_int8<"};
    for (int i = 0; i < (has_hopper() ? 7 : 3); i++) {
        rig r;
        rig_call k;
        rig_spec s = i >= 5 ? int8_of(32, 8, 8, 3) : spec_of(32, 8, 8, 3);
        s.round = DQ_ROUND_NOT;
        rig_open(&r, &s, 3);
        rig_call_open(&k, &r, 1);
        dq_simt_set_quiet(1);
        k.call.o.page += 8; /* not aligned */
        dq_simt_set_capability(i >= 3 ? 90 : 80);
        if (i == 0 || i == 3 || i == 5) dq_attend_run(k.call, i >= 3, NULL);
        if (i == 1) dq_attend_scores(k.call, NULL);
        uint32_t *const max = (uint32_t *)(void *)r.sum->device;
        if (i % 2 == 0 && i) dq_attend_absmax(k.call, max, false, i >= 4, NULL);
        assert_int_equal(cudaDeviceSynchronize(), cudaErrorLaunchFailure);

        if (!strstr(dq_simt_report(), names[i])) fail_msg("%s", dq_simt_report());
        dq_simt_reset();
        dq_simt_set_capability(80);
        dq_simt_set_quiet(0);
        rig_call_close(&k);
        rig_close(&r);
    }
}

/* Every order of threads. */
TEST(test_orders)
{
    dq_each_order([] {
        check_spec(spec_of(32, 8, 8, 104), 104);
        check_spec(spec_of(32, 4, 3, 105), 105);
    });
}

static bool is_there(void)
{
    int devices = 0;
    const cudaError_t e = cudaGetDeviceCount(&devices);
    if (e == cudaSuccess && devices > 0) return true;
    print_error("skipped: %s\n", cudaGetErrorString(e));
    return false;
}

NEEDS(is_there)
