/* test_kv_gates: features against the sentence that defines them, scores against their sum, files that come back as they were
 * written and that are refused by name, and which models gates are for.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "kv/kv.h"
#include "record/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, GROUPS = 2, DIM = 4 };
static const int heads[GROUPS] = {1, 2};

static dq_kv_gates *some_gates(void)
{
    dq_kv_gates *g;
    dq_err err = {0};
    dq_random r = dq_random_of(7, 0);
    assert_int_equal(dq_kv_gates_new(&g, LAYERS, GROUPS, DIM, heads, given_arena(), &err), DQ_OK);
    for (int64_t i = 0; i < g->at[LAYERS * GROUPS]; i++)
        g->weight[i] = (double)dq_random_next(&r) / 1e19 - 0.5;
    return g;
}

TEST(features_are_keys_values_lengths_and_position)
{
    /* two heads: keys, then values */
    const float row[] = {3, 0, 4, 0, 0, 1, 0, 0, 0, 0, 0, 2, 6, 8, 0, 0};
    const double want[] = {3,      0, 4, 0, 0, 0, 0, 2, 5, log(2 + 1e-6),
                           0,      1, 0, 0, 6, 8, 0, 0, 1, log(10 + 1e-6),
                           log(8), 1};
    double f[sizeof want / sizeof *want];
    assert_int_equal(dq_kv_gates_features(2, DIM), sizeof want / sizeof *want);
    dq_kv_gates_describe(f, row, 2, DIM, 7);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_true(fabs(f[i] - want[i]) < 1e-12);
}

TEST(a_score_is_the_sum_of_weights_times_features)
{
    enum { N = 3, LIST = 3, COLS = 2 * 2 * DIM, F = 2 * (2 * DIM + 2) + 2 };
    const dq_kv_gates *g = some_gates();
    const int32_t pos[N] = {0, 5, 1000};
    float row[N * COLS];
    double score[N], f[F];
    dq_err err = {0};
    for (int i = 0; i < N * COLS; i++) row[i] = (float)(i * 7 % 11) - 5;
    assert_int_equal(g->at[LIST + 1] - g->at[LIST], F);
    assert_int_equal(dq_kv_gates_score(score, g, LIST, row, pos, N, &err), DQ_OK);
    for (int i = 0; i < N; i++) {
        double want = 0;
        dq_kv_gates_describe(f, row + i * COLS, 2, DIM, pos[i]);
        for (int k = 0; k < F; k++) want += g->weight[g->at[LIST] + k] * f[k];
        assert_true(fabs(score[i] - want) < 1e-12);
    }
}

/* A file of `o`, which is taken. */
static dq_status parse(dq_kv_gates **out, json_t *o, dq_err *err)
{
    char *text = json_dumps(o, JSON_REAL_PRECISION(17));
    *err = (dq_err){0};
    dq_kv_gates_parse(out, text, strlen(text), "gates.json", given_arena(), err);
    free(text);
    json_decref(o);
    return err->code;
}

static json_t *document(void)
{
    json_t *o = json_object();
    dq_row_writer w = dq_row_json(o);
    dq_kv_gates_rows(&w, some_gates());
    return o;
}

TEST(a_file_comes_back)
{
    const dq_kv_gates *g = some_gates();
    dq_kv_gates *back;
    dq_err err;
    json_t *o = document();
    json_object_set_new(o, "settings", json_object()); /* what is not known is let be */
    assert_int_equal(parse(&back, o, &err), DQ_OK);
    assert_int_equal(dq_kv_gates_fit(back, g, &err), DQ_OK);
    assert_memory_equal(back->at, g->at, (LAYERS * GROUPS + 1) * sizeof *g->at);
    assert_memory_equal(back->weight, g->weight, (size_t)g->at[LAYERS * GROUPS] * sizeof(double));
    assert_int_equal(strlen(back->sha256), 64);
}

static json_t *list_of(json_t *o, size_t i)
{
    return json_array_get(json_object_get(o, "weights"), i);
}

TEST(what_is_damaged_is_named)
{
    static const char *const keys[] = {"schema",   "layers", "groups",
                                       "head_dim", "heads",  "weights"};
    dq_kv_gates *g;
    dq_err err;
    json_t *o;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_object_del(o = document(), keys[i]);
        assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
        if (!strstr(err.text, keys[i])) fail_msg("%s is not named: %s", keys[i], err.text);
    }
    json_object_set_new(o = document(), "schema", json_string("dq-gates/2"));
    assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
    check_error(&err, DQ_DAMAGED, "gates.json: schema \"dq-gates/2\" (expected \"dq-gates/1\")");
    json_array_append_new(list_of(o = document(), 1), json_real(1));
    assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
    check_error(&err, DQ_DAMAGED, "\"weights\": list 1 has not 22 numbers");
    json_array_set_new(list_of(o = document(), 2), 3, json_string("x"));
    assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
    check_error(&err, DQ_DAMAGED, "\"weights\": list 2: entry 3 is no number");
    json_array_set_new(json_object_get(o = document(), "heads"), 0, json_integer(0));
    assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
    json_object_set_new(o = document(), "layers", json_integer(1 << 20));
    assert_int_equal(parse(&g, o, &err), DQ_DAMAGED);
    assert_int_equal(parse(&g, json_array(), &err), DQ_DAMAGED);
    check_error(&err, DQ_DAMAGED, "gates.json: not an object");
}

TEST(gates_are_for_one_form_of_model)
{
    static const int other[GROUPS] = {2, 1};
    const dq_kv_gates *g = some_gates();
    dq_kv_gates *m;
    dq_err err = {0};
    dq_arena *a = given_arena();
    assert_int_equal(dq_kv_gates_new(&m, LAYERS + 1, GROUPS, DIM, heads, a, &err), DQ_OK);
    assert_int_equal(dq_kv_gates_fit(g, m, &err), DQ_MISMATCH);
    check_error(
        &err, DQ_MISMATCH,
        "gates of another model: they have 2 layers, 2 groups of KV heads, of which the first "
        "has 1, and head_dim 4; the model 3, 2, 1 and 4");
    err = (dq_err){0};
    assert_int_equal(dq_kv_gates_new(&m, LAYERS, GROUPS, DIM, other, a, &err), DQ_OK);
    assert_int_equal(dq_kv_gates_fit(g, m, &err), DQ_MISMATCH);
}
