/* Golden head orders of every pairing: worked examples, entries of published models, a numeric probe
 * through a literal reference, and the identities between pairings.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "model/head_order.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dq_head_order build(dq_pairing pairing, int n_q, int n_kv, int n_noise)
{
    dq_head_order map;
    dq_err err = {0};
    dq_status s = dq_head_order_build(&map, pairing, n_q, n_kv, 2, n_noise, given_arena(), &err);
    if (s != DQ_OK) print_error("%s\n", err.text);
    assert_int_equal(s, DQ_OK);
    return map;
}

/* One output head: map 1 and map 2 as (query, key), and the value slabs. */
typedef struct row {
    int q1, k1, q2, k2, v0, v1;
} row;

static void check_row(const dq_head_order *map, int o, const row *want)
{
    const dq_head *h = &map->head[o];
    assert_int_equal(h->q[0], want->q1);
    assert_int_equal(map->key[want->q1], want->k1);
    assert_int_equal(h->q[1], want->q2);
    if (want->q2 >= 0) assert_int_equal(map->key[want->q2], want->k2);
    assert_int_equal(h->v[0], want->v0);
    assert_int_equal(h->v[1], want->v1);
}

/* 8 query heads on 4 KV heads. */
static const struct example {
    dq_pairing pairing;
    int n_noise, n_out, n_maps, n_slabs;
    row rows[8];
    int n_groups, group[4];
    double probe[8][4]; /* outputs of the probe below */
} examples[] = {
    {DQ_PAIR_NONE,
     0,
     8,
     1,
     1,
     {{0, 0, -1, -1, 0, -1},
      {1, 0, -1, -1, 0, -1},
      {2, 1, -1, -1, 1, -1},
      {3, 1, -1, -1, 1, -1},
      {4, 2, -1, -1, 2, -1},
      {5, 2, -1, -1, 2, -1},
      {6, 3, -1, -1, 3, -1},
      {7, 3, -1, -1, 3, -1}},
     4,
     {0, 1, 2, 3},
     {{6.247285, -0.737636},
      {6.141384, -0.742931},
      {6.717459, -1.764127},
      {6.506636, -1.774668},
      {6.787223, -2.810639},
      {6.492690, -2.825366},
      {6.598943, -3.870053},
      {6.286017, -3.885699}}},
    {DQ_PAIR_ADJACENT,
     0,
     4,
     2,
     2,
     {{0, 0, 1, 1, 0, 1}, {2, 0, 3, 1, 0, 1}, {4, 2, 5, 3, 2, 3}, {6, 2, 7, 3, 2, 3}},
     2,
     {0, 0, 1, 1},
     {{4.764962, -0.549252, 5.514962, -1.299252},
      {4.658696, -0.554565, 5.408696, -1.304565},
      {5.302627, -2.097369, 6.052627, -2.847369},
      {4.887726, -2.118114, 5.637726, -2.868114}}},
    {DQ_PAIR_ADJACENT_NAIVE,
     0,
     4,
     2,
     2,
     {{0, 0, 1, 0, 0, 1}, {2, 1, 3, 1, 0, 1}, {4, 2, 5, 2, 2, 3}, {6, 3, 7, 3, 2, 3}},
     2,
     {0, 0, 1, 1},
     {{4.711940, -0.551903, 5.461940, -1.301903},
      {4.340800, -0.570460, 5.090800, -1.320460},
      {5.164051, -2.104297, 5.914051, -2.854297},
      {4.277439, -2.148628, 5.027439, -2.898628}}},
    {DQ_PAIR_HALVES,
     0,
     4,
     2,
     2,
     {{0, 0, 4, 2, 0, 2}, {1, 0, 5, 2, 0, 2}, {2, 1, 6, 3, 1, 3}, {3, 1, 7, 3, 1, 3}},
     2,
     {0, 1, 0, 1},
     {{5.050480, -0.534976, 6.550480, -2.034976},
      {5.018211, -0.536589, 6.518211, -2.036589},
      {5.567723, -1.296614, 7.067723, -2.796614},
      {5.435132, -1.303243, 6.935132, -2.803243}}},
    {DQ_PAIR_GROUPED,
     2,
     6,
     2,
     2,
     {{0, 0, 3, 1, 0, 1},
      {1, 0, 3, 1, 0, 1},
      {2, 0, 3, 1, 0, 1},
      {4, 2, 7, 3, 2, 3},
      {5, 2, 7, 3, 2, 3},
      {6, 2, 7, 3, 2, 3}},
     2,
     {0, 0, 1, 1},
     {{4.870626, -0.543969, 5.620626, -1.293969},
      {4.764725, -0.549264, 5.514725, -1.299264},
      {4.658696, -0.554565, 5.408696, -1.304565},
      {5.465719, -2.089214, 6.215719, -2.839214},
      {5.171186, -2.103941, 5.921186, -2.853941},
      {4.887726, -2.118114, 5.637726, -2.868114}}},
    {DQ_PAIR_SHARED_KV,
     0,
     4,
     2,
     1,
     {{0, 0, 1, 0, 0, -1}, {2, 1, 3, 1, 1, -1}, {4, 2, 5, 2, 2, -1}, {6, 3, 7, 3, 3, -1}},
     4,
     {0, 1, 2, 3},
     {{4.711940, -0.551903}, {5.090800, -1.320460}, {5.164051, -2.104297}, {5.027439, -2.898628}}},
};
enum { N_EXAMPLES = sizeof examples / sizeof *examples };

TEST(worked_examples_come_out)
{
    for (int e = 0; e < N_EXAMPLES; e++) {
        const struct example *x = &examples[e];
        dq_head_order map = build(x->pairing, 8, 4, x->n_noise);
        assert_int_equal(map.n_q, 8);
        assert_int_equal(map.n_kv, 4);
        assert_int_equal(map.head_dim, 2);
        assert_int_equal(map.n_out, x->n_out);
        assert_int_equal(map.n_maps, x->n_maps);
        assert_int_equal(map.n_slabs, x->n_slabs);
        assert_true(fabs((double)map.scale - sqrt(0.5)) < 1e-7);
        for (int o = 0; o < x->n_out; o++) check_row(&map, o, &x->rows[o]);
        assert_int_equal(map.n_groups, x->n_groups);
        for (int i = 0; i < 4; i++) assert_int_equal(map.group[i], x->group[i]);
    }
}

TEST(entries_of_published_models_come_out)
{
    static const struct {
        dq_pairing pairing;
        int n_q, n_kv, n_noise, o;
        row want;
    } t[] = {
        /* DiffLlama-1B */
        {DQ_PAIR_HALVES, 32, 8, 0, 0, {0, 0, 16, 4, 0, 4}},
        {DQ_PAIR_HALVES, 32, 8, 0, 3, {3, 0, 19, 4, 0, 4}},
        {DQ_PAIR_HALVES, 32, 8, 0, 4, {4, 1, 20, 5, 1, 5}},
        {DQ_PAIR_HALVES, 32, 8, 0, 15, {15, 3, 31, 7, 3, 7}},
        /* Motif-2-12.7B */
        {DQ_PAIR_GROUPED, 40, 16, 8, 0, {0, 0, 4, 1, 0, 1}},
        {DQ_PAIR_GROUPED, 40, 16, 8, 3, {3, 0, 4, 1, 0, 1}},
        {DQ_PAIR_GROUPED, 40, 16, 8, 4, {5, 2, 9, 3, 2, 3}},
        {DQ_PAIR_GROUPED, 40, 16, 8, 31, {38, 14, 39, 15, 14, 15}},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_head_order map = build(t[i].pairing, t[i].n_q, t[i].n_kv, t[i].n_noise);
        check_row(&map, t[i].o, &t[i].want);
    }
}

/* ---- A numeric probe: two tokens, heads of two elements, no rotation, lambda = 0.25 ---- */

static const double probe_lambda = 0.25;

static void query(double q[2], int j, int t)
{
    q[0] = 0.1 * (j + 1);
    q[1] = 0.2 * (t + 1);
}

static void key(double k[2], int i, int t)
{
    k[0] = 0.3 * (i + 1) * (1 - 2 * t);
    k[1] = 0.1 * (i + 1) + 0.5 * t;
}

static void value(double v[2], int i, int t)
{
    v[0] = (i + 1) + 10.0 * t;
    v[1] = -(i + 1) + 0.5 * t;
}

/* Probabilities that query head m of row 1 gives the two keys. */
static void probabilities(double p[2], const dq_head_order *map, int m)
{
    double q[2], k[2], e[2];
    query(q, m, 1);
    for (int s = 0; s < 2; s++) {
        key(k, map->key[m], s);
        e[s] = exp((double)map->scale * (q[0] * k[0] + q[1] * k[1]));
    }
    for (int s = 0; s < 2; s++) p[s] = e[s] / (e[0] + e[1]);
}

static void output(double y[4], const dq_head_order *map, int o)
{
    const dq_head *h = &map->head[o];
    double plus[2], minus[2] = {0, 0}, v[2];
    probabilities(plus, map, h->q[0]);
    if (h->q[1] >= 0) probabilities(minus, map, h->q[1]);
    for (int r = 0; r < map->n_slabs; r++) {
        for (int s = 0; s < 2; s++) {
            value(v, h->v[r], s);
            for (int c = 0; c < 2; c++) y[2 * r + c] += (plus[s] - probe_lambda * minus[s]) * v[c];
        }
    }
}

TEST(probe_gives_the_golden_outputs)
{
    for (int e = 0; e < N_EXAMPLES; e++) {
        dq_head_order map = build(examples[e].pairing, 8, 4, examples[e].n_noise);
        for (int o = 0; o < map.n_out; o++) {
            double y[4] = {0};
            output(y, &map, o);
            for (int c = 0; c < 2 * map.n_slabs; c++)
                assert_true(fabs(y[c] - examples[e].probe[o][c]) < 2e-6);
        }
    }
}

/* ---- Identities ---- */

static bool same_map(const dq_head_order *a, const dq_head_order *b)
{
    return a->n_q == b->n_q && a->n_kv == b->n_kv && a->n_out == b->n_out &&
           a->n_maps == b->n_maps && a->n_slabs == b->n_slabs && a->n_groups == b->n_groups &&
           memcmp(a->key, b->key, (size_t)a->n_q * sizeof *a->key) == 0 &&
           memcmp(a->head, b->head, (size_t)a->n_out * sizeof *a->head) == 0 &&
           memcmp(a->group, b->group, (size_t)a->n_kv * sizeof *a->group) == 0;
}

TEST(pairings_agree_where_they_must)
{
    for (int h = 4; h <= 64; h += 4) {
        for (int k = 2; k <= h; k += 2) {
            if (h % k) continue;
            dq_head_order adjacent = build(DQ_PAIR_ADJACENT, h, k, 0);
            dq_head_order naive = build(DQ_PAIR_ADJACENT_NAIVE, h, k, 0);
            dq_head_order grouped = build(DQ_PAIR_GROUPED, h, k, h / 2);
            assert_true(same_map(&adjacent, &grouped));
            assert_int_equal(same_map(&adjacent, &naive), h == k);
        }
    }
}

/* Every KV head is in one group, outputs stay inside theirs, and groups are as small as that
 * allows: K_j with its partners, as each family defines them. */
TEST(groups_are_the_heads_read_together)
{
    for (int h = 4; h <= 48; h += 4) {
        for (int k = 2; k <= h; k += 2) {
            if (h % k) continue;
            dq_head_order plain = build(DQ_PAIR_NONE, h, k, 0);
            dq_head_order adjacent = build(DQ_PAIR_ADJACENT, h, k, 0);
            dq_head_order halves = build(DQ_PAIR_HALVES, h, k, 0);
            assert_int_equal(plain.n_groups, k);
            assert_int_equal(adjacent.n_groups, k / 2);
            assert_int_equal(halves.n_groups, k / 2);
            for (int j = 0; j < k; j++) {
                assert_int_equal(plain.group[j], j);
                assert_int_equal(adjacent.group[j], j / 2);
                assert_int_equal(halves.group[j], j % (k / 2));
            }
        }
    }
}

TEST(impossible_shapes_are_refused)
{
    static const struct {
        dq_pairing pairing;
        int n_q, n_kv, head_dim, n_noise;
        const char *names; /* a number that the message must hold */
    } t[] = {
        {DQ_PAIR_NONE, 8, 3, 2, 0, "8"},
        {DQ_PAIR_NONE, 0, 1, 2, 0, "0"},
        {DQ_PAIR_NONE, 1, 0, 2, 0, "0"},
        {DQ_PAIR_NONE, 4, 8, 2, 0, "8"},
        {DQ_PAIR_NONE, 40000, 40000, 2, 0, "40000"},
        {DQ_PAIR_NONE, 8, 8, 0, 0, "0"},
        {DQ_PAIR_NONE, 8, 8, 2, 2, "2"},
        {DQ_PAIR_ADJACENT, 9, 3, 2, 0, "3"},
        {DQ_PAIR_ADJACENT, 8, 1, 2, 0, "1"},
        {DQ_PAIR_ADJACENT_NAIVE, 8, 6, 2, 0, "6"},
        {DQ_PAIR_HALVES, 15, 5, 2, 0, "5"},
        {DQ_PAIR_HALVES, 8, 1, 2, 0, "1"},
        {DQ_PAIR_GROUPED, 8, 4, 2, 0, "0"},
        {DQ_PAIR_GROUPED, 8, 4, 2, 3, "3"},
        {DQ_PAIR_GROUPED, 8, 4, 2, 8, "8"},
        {DQ_PAIR_GROUPED, 12, 8, 2, 2, "4"},
        {DQ_PAIR_SHARED_KV, 8, 8, 2, 0, "1"},
        {DQ_PAIR_SHARED_KV, 9, 3, 2, 0, "9"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_head_order map;
        dq_err err = {0};
        assert_int_equal(dq_head_order_build(&map, t[i].pairing, t[i].n_q, t[i].n_kv, t[i].head_dim,
                                             t[i].n_noise, given_arena(), &err),
                         DQ_MISMATCH);
        assert_non_null(strstr(err.text, t[i].names));
    }
}
