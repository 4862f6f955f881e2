/* The fused form of attention against the decompositions that papers give (two calls with values of
 * double width, four plain calls) and against f64; far positions; the reducers of attn_observe and
 * observe against naive loops.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/pairings.h"
#include "tests/rigs/suite.h"

#include "engine/backend.h"
#include "tests/rigs/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 64, N_Q = 8, N_KV = 4, T = 150 };

/* One sequence of T tokens in a cache of one layer, whole in one batch. */
typedef struct scene {
    dq_backend *b;
    dq_head_order map;
    dq_kv *kv;
    dq_batch batch;
    int64_t cu_rows[2];
    int32_t seq, pos[T];
    float q[T * N_Q * D], k[T * N_KV * D], v[T * N_KV * D];
    float gain[2 * D];
} scene;

static uint64_t seed;

static float gauss(float width)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(seed >> 11) * 0x1p-53;
    }
    return width * (float)sum;
}

static scene *scene_new(dq_pairing pairing, float width, int32_t first_pos, int threads)
{
    scene *s = calloc(1, sizeof *s);
    seed = 12345;
    s->map = pairings_map(pairing, N_Q, N_KV, D);
    s->b = given_backend(threads);
    s->kv = s->b->ops->kv_new(s->b, &s->map, 1, &dq_kv_plain);
    s->seq = s->b->ops->kv_seq_new(s->b, s->kv);
    for (int i = 0; i < T * N_Q * D; i++) s->q[i] = gauss(width);
    for (int i = 0; i < T * N_KV * D; i++) s->k[i] = gauss(width);
    for (int i = 0; i < T * N_KV * D; i++) s->v[i] = gauss(1.0f);
    for (int i = 0; i < 2 * D; i++) s->gain[i] = gauss(1.0f);
    for (int i = 0; i < T; i++) s->pos[i] = first_pos + i;
    s->cu_rows[1] = T;
    s->batch = (dq_batch){1, T, s->cu_rows, &s->seq, s->pos, s->pos};
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, (dq_mat){s->k, T, N_KV * D},
                         (dq_mat){s->v, T, N_KV * D}, DQ_NUM_F32);
    return s;
}

static void scene_free(scene *s)
{
    dq_err err = {0};
    assert_int_equal(dq_backend_sync(s->b, &err), DQ_OK);
    s->b->ops->kv_free(s->b, s->kv);
    dq_backend_close(s->b);
    free(s);
}

static dq_attend_args arguments(scene *s, const dq_attn *attn)
{
    return (dq_attend_args){.attn = attn,
                            .batch = &s->batch,
                            .kv = s->kv,
                            .q = {s->q, T, N_Q * D},
                            .logit = {16, DQ_GRANULARITY_TENSOR}};
}

static float *attend(scene *s, const dq_attn *attn)
{
    const int64_t cols = (int64_t)attn->map->n_out * attn->map->n_slabs * D;
    float *y = calloc((size_t)(T * cols), sizeof *y);
    dq_attend_args a = arguments(s, attn);
    s->b->ops->attend(s->b, (dq_mat){y, T, cols}, &a);
    return y;
}

/* One plain call: softmax of map m times value slabs first..first+n-1 of every output head. */
static float *plain_call(scene *s, int m, int first, int n)
{
    dq_head_order map = s->map;
    dq_head head[N_Q];
    for (int o = 0; o < map.n_out; o++) {
        const dq_head *h = &s->map.head[o];
        head[o] = (dq_head){{h->q[m], -1}, {h->v[first], n == 2 ? h->v[first + 1] : (int16_t)-1}};
    }
    map.head = head;
    map.n_maps = 1;
    map.n_slabs = n;
    dq_attn attn = {.map = &map, .out_scale = 1.0f};
    return attend(s, &attn);
}

static dq_attn differential(const scene *s)
{
    return (dq_attn){.map = &s->map,
                     .lambda_kind = DQ_LAMBDA_LAYER,
                     .lambda = 0.55f,
                     .out_scale = 0.45f,
                     .head_norm = true,
                     .norm_eps = 1e-5f,
                     .gain = s->gain};
}

/* Norm and scale as the formula says, in f64. */
static void finish(double *y, int width, const dq_attn *attn)
{
    double squares = 0;
    for (int c = 0; c < width; c++) squares += y[c] * y[c];
    double a = 1.0 / sqrt(squares / width + (double)attn->norm_eps);
    for (int c = 0; c < width; c++) y[c] *= a * (double)attn->gain[c] * (double)attn->out_scale;
}

static void expect_close(const float *got, const double *want, int64_t n, double tolerance)
{
    double max = 0, worst = 0;
    for (int64_t i = 0; i < n; i++) {
        double off = fabs((double)got[i] - want[i]);
        max = fmax(max, fabs(want[i]));
        worst = off > worst || off != off ? off : worst;
    }
    if (!(worst <= tolerance * max)) print_error("off by %g of %g\n", worst, max);
    assert_true(worst <= tolerance * max);
}

static void oracle_result(scene *s, const dq_attn *attn, double *y)
{
    dq_oracle *o = dq_oracle_new(&s->map);
    dq_oracle_append(o, &s->batch, s->k, s->v);
    dq_oracle_args a = {attn, &s->batch, s->q, NULL, {16, DQ_GRANULARITY_TENSOR}, NULL};
    dq_oracle_attend(y, o, &a);
    dq_oracle_free(o);
}

/* Fused, two-call, four-call and f64 of every family with two value slabs. */
TEST(decompositions_agree)
{
    static const dq_pairing families[] = {DQ_PAIR_ADJACENT, DQ_PAIR_ADJACENT_NAIVE, DQ_PAIR_HALVES,
                                          DQ_PAIR_GROUPED};
    for (int f = 0; f < 4; f++) {
        scene *s = scene_new(families[f], 1.0f, 0, 2);
        dq_attn attn = differential(s);
        const int n_out = s->map.n_out;
        const int64_t n = (int64_t)T * n_out * 2 * D;
        double *two = calloc((size_t)n, sizeof *two), *four = calloc((size_t)n, sizeof *four);
        float *fused = attend(s, &attn);
        float *wide[2] = {plain_call(s, 0, 0, 2), plain_call(s, 1, 0, 2)};
        float *single[4] = {plain_call(s, 0, 0, 1), plain_call(s, 0, 1, 1), plain_call(s, 1, 0, 1),
                            plain_call(s, 1, 1, 1)};
        for (int64_t i = 0; i < (int64_t)T * n_out; i++) {
            for (int c = 0; c < 2 * D; c++) {
                int64_t at = i * 2 * D + c, half = i * D + c % D;
                two[at] = (double)wide[0][at] - (double)attn.lambda * (double)wide[1][at];
                four[at] = (double)single[c / D][half] -
                           (double)attn.lambda * (double)single[2 + c / D][half];
            }
            finish(two + i * 2 * D, 2 * D, &attn);
            finish(four + i * 2 * D, 2 * D, &attn);
        }
        expect_close(fused, two, n, 1e-5);
        expect_close(fused, four, n, 1e-5);
        oracle_result(s, &attn, two);
        expect_close(fused, two, n, 1e-5);
        for (int i = 0; i < 2; i++) free(wide[i]);
        for (int i = 0; i < 4; i++) free(single[i]);
        free(fused);
        free(two);
        free(four);
        scene_free(s);
    }
}

/* From nearly uniform rows to rows that hang on one key, and far from position 0. */
TEST(sharp_rows_and_far_positions)
{
    static const float widths[] = {0.01f, 1.0f, 3.0f, 8.0f};
    for (int i = 0; i < 4; i++) {
        scene *s = scene_new(DQ_PAIR_SHARED_KV, widths[i], i % 2 ? 60000 : 31, 1);
        dq_attn attn = differential(s);
        const int64_t n = (int64_t)T * s->map.n_out * s->map.n_slabs * D;
        double *want = calloc((size_t)n, sizeof *want);
        attn.head_norm = false;
        float *got = attend(s, &attn);
        oracle_result(s, &attn, want);
        /* f32 logits of size S are off by about S ulp, which the exponential hands on */
        expect_close(got, want, n, 2e-6 * (1.0 + (double)(widths[i] * widths[i])));
        free(got);
        free(want);
        scene_free(s);
    }
}

/* The tally that naive loops over the oracle's logits give. */
static void naive_logits(dq_tally *t, scene *s, const dq_attn *attn)
{
    dq_oracle *o = dq_oracle_new(&s->map);
    dq_oracle_append(o, &s->batch, s->k, s->v);
    dq_oracle_args a = {attn, &s->batch, s->q, NULL, {8, DQ_GRANULARITY_TENSOR}, NULL};
    for (int h = 0; h < N_Q; h++) {
        for (int row = 0; row < T; row++) {
            for (int i = 0; i <= row; i++) {
                float x = (float)dq_oracle_logit(o, &a, row, h, i);
                dq_tally_add(t, &x, 1, (dq_place){3, 0, h, s->pos[row], s->pos[i]});
            }
        }
    }
    dq_oracle_free(o);
}

/* Grid values make S exact in f32, so naive and real logits are the same numbers. */
static void use_grid(scene *s)
{
    for (int i = 0; i < T * N_Q * D; i++) s->q[i] = rintf(s->q[i] * 4.0f) / 4.0f;
    for (int i = 0; i < T * N_KV * D; i++) s->k[i] = rintf(s->k[i] * 4.0f) / 4.0f;
    s->b->ops->kv_rewind(s->b, s->kv, s->seq, 0);
    s->b->ops->kv_append(s->b, s->kv, 0, &s->batch, (dq_mat){s->k, T, N_KV * D},
                         (dq_mat){s->v, T, N_KV * D}, DQ_NUM_F32);
}

static void expect_same_tally(const dq_tally *a, const dq_tally *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_bad, b->n_bad);
    assert_int_equal(a->n_top, b->n_top);
    assert_memory_equal(a->top, b->top, sizeof a->top);
    assert_memory_equal(a->place, b->place, sizeof(dq_place) * (size_t)a->n_top);
    assert_memory_equal(a->hist, b->hist, sizeof(int64_t) * DQ_HIST_BINS);
    const double sum = dq_fixed_value(&a->sum), sum4 = dq_fixed_value(&a->sum4);
    assert_true(fabs(sum - dq_fixed_value(&b->sum)) <= 1e-12 * sum);
    assert_true(fabs(sum4 - dq_fixed_value(&b->sum4)) <= 1e-12 * sum4);
}

TEST(observed_logits_match)
{
    double sums[3] = {0};
    for (int threads = 1; threads <= 3; threads++) {
        scene *s = scene_new(DQ_PAIR_HALVES, 1.0f, 40, threads);
        dq_attn attn = differential(s);
        dq_tally want, got;
        dq_err err = {0};
        bool exact;
        use_grid(s);
        dq_tally_init(&want, &err);
        dq_tally_init(&got, &err);
        naive_logits(&want, s, &attn);
        dq_attend_args a = arguments(s, &attn);
        s->b->ops->attn_observe(s->b, &got, &a, 3);
        assert_int_equal(got.n, (int64_t)N_Q * T * (T + 1) / 2);
        expect_same_tally(&want, &got);
        sums[threads - 1] = dq_fixed_value(&got.sum4);
        assert_true(sums[threads - 1] == sums[0]); /* bit for bit */
        dq_tally_refine(&want, 0.5, &err);
        dq_tally_refine(&got, 0.5, &err);
        naive_logits(&want, s, &attn);
        s->b->ops->attn_observe(s->b, &got, &a, 3);
        double median = dq_tally_quantile(&got, 0.5, &exact);
        assert_true(exact && median == dq_tally_quantile(&want, 0.5, NULL));
        expect_same_tally(&want, &got);
        dq_tally_free(&want);
        dq_tally_free(&got);
        scene_free(s);
    }
}

/* Kept tokens carry their own positions into the places. */
TEST(places_name_positions)
{
    scene *s = scene_new(DQ_PAIR_NONE, 1.0f, 0, 2);
    dq_attn attn = {.map = &s->map, .out_scale = 1.0f};
    int32_t kept[T];
    for (int32_t i = 0; i < T / 3; i++) kept[i] = 3 * i + 2;
    for (int g = 0; g < s->map.n_groups; g++) {
        s->b->ops->kv_keep(s->b, s->kv, s->seq, 0, g, kept, T / 3);
    }
    dq_tally got;
    dq_err err = {0};
    dq_tally_init(&got, &err);
    dq_attend_args a = arguments(s, &attn);
    s->b->ops->attn_observe(s->b, &got, &a, 0);
    int64_t n = 0;
    for (int row = 0; row < T; row++) n += (int64_t)N_Q * ((row + 1) / 3);
    assert_int_equal(got.n, n);
    for (int i = 0; i < got.n_top; i++) {
        const dq_place *p = &got.place[i];
        const float *q = s->q + (p->row * N_Q + p->head) * D;
        const float *k = s->k + (p->col * N_KV + s->map.key[p->head]) * D;
        double dot = 0;
        for (int c = 0; c < D; c++) dot += (double)q[c] * (double)k[c];
        assert_int_equal(p->col % 3, 2);
        assert_true(p->col <= p->row);
        assert_true(fabs(fabs(dot) / 8.0 - (double)got.top[i]) <= 1e-5 * (double)got.top[i]);
    }
    dq_tally_free(&got);
    scene_free(s);
}

TEST(observed_activations_match)
{
    for (int threads = 1; threads <= 3; threads++) {
        scene *s = scene_new(DQ_PAIR_NONE, 1.0f, 7, threads);
        const int64_t cu[4] = {0, 0, 60, T};
        const dq_batch batch = {3, T, cu, NULL, NULL, s->pos};
        dq_tally want, got;
        dq_err err = {0};
        dq_tally_init(&want, &err);
        dq_tally_init(&got, &err);
        s->q[500] = NAN;
        for (int i = 0; i < 2; i++) { /* the second time the threshold is set */
            for (int row = 0; row < T; row++) {
                dq_tally_add(&want, s->q + row * N_Q * D, N_Q * D,
                             (dq_place){10 + (row < 60 ? 1 : 2), 4 + i, -1, s->pos[row], 0});
            }
            s->b->ops->observe(s->b, &got, (dq_mat){s->q, T, N_Q * D}, &batch, 4 + i, 10);
        }
        expect_same_tally(&want, &got);
        assert_int_equal(got.n_bad, 2);
        dq_tally_free(&want);
        dq_tally_free(&got);
        scene_free(s);
    }
}
