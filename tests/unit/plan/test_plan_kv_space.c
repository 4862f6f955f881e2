/* test_plan_kv_space: texts of mixes against widths that the cache reads from them, costs, steps and uniform widths.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "plan/plan_cache.h"

#include <math.h>
#include <string.h>

static dq_plan_kv_space space_of(int layers, int together, int maps)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    dq_plan_kv_space s = {.n_bits = 6};
    dq_err err = {0};
    memcpy(s.bits, bits, sizeof bits);
    if (dq_plan_kv_space_begin(&s, layers, together, maps, &err) != DQ_OK) fail_msg("%s", err.text);
    return s;
}

static void expect_text(const dq_plan_kv_space *s, const int *width, const char *want)
{
    char text[DQ_KV_LISTS];
    dq_err err = {0};
    if (dq_plan_kv_space_text(text, s, width, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_string_equal(text, want);
}

TEST(a_mix_has_one_text)
{
    const dq_plan_kv_space two = space_of(2, 1, 2), one = space_of(3, 1, 1),
                           runs = space_of(5, 2, 2);
    assert_int_equal(two.n_units, 6);
    expect_text(&two, (const int[]){3, 3, 5, 3, 3, 6}, "3|5+3:3|6");
    expect_text(&two, (const int[]){4, 4, 4, 4, 4, 4}, "4:4");
    expect_text(&two, (const int[]){8, 3, 8, 3, 5, 5}, "8+3:5");
    assert_int_equal(one.n_units, 6);
    expect_text(&one, (const int[]){3, 5, 5, 2, 2, 2}, "3|5*2:2");
    assert_int_equal(runs.n_units, 9);
    expect_text(&runs, (const int[]){3, 4, 2, 2, 6, 6, 8, 5, 5}, "3+4*2|2*2|6:8*2|5*3");
}

/* What the text says of each layer and map is what the units have, and the mean is that of the text. */
TEST(texts_say_what_units_have)
{
    dq_random r = dq_random_of(5, 0);
    dq_err err = {0};
    for (int i = 0; i < 300; i++) {
        const int layers = 1 + (int)dq_random_below(&r, 20), maps = 1 + (int)dq_random_below(&r, 2);
        const dq_plan_kv_space s = space_of(layers, 1 + (int)dq_random_below(&r, 3), maps);
        int width[DQ_PLAN_KV_UNITS];
        char text[DQ_KV_LISTS];
        dq_kv_widths w;
        for (int u = 0; u < s.n_units; u++) width[u] = s.bits[dq_random_below(&r, 6)];
        assert_int_equal(dq_plan_kv_space_text(text, &s, width, &err), DQ_OK);
        assert_int_equal(dq_kv_widths_parse(&w, text, &err), DQ_OK);
        assert_int_equal(dq_kv_widths_fit(&w, layers, &err), DQ_OK);
        for (int u = 0; u < s.n_units; u++) {
            const dq_plan_kv_unit x = dq_plan_kv_space_unit(&s, u);
            for (int l = x.first; l < x.first + x.layers; l++) {
                for (int map = 0; map < 2; map++) {
                    if (x.map >= 0 && x.map != map) continue;
                    assert_int_equal(dq_kv_widths_of(&w, x.values, l, map), width[u]);
                }
            }
        }
        const double mean = (dq_kv_widths_mean(&w, 0) + dq_kv_widths_mean(&w, 1)) / 2;
        assert_true(fabs(mean - dq_plan_kv_space_mean(&s, width)) < 1e-12);
    }
}

/* Mixes seen by `near`. */
typedef struct seen {
    const dq_plan_kv_space *s;
    const int *from;
    double mean;
    int n, pairs;
} seen;

static dq_status see(void *arg, const int *width, dq_err *err)
{
    seen *x = arg;
    int up = 0, down = 0;
    (void)err;
    for (int u = 0; u < x->s->n_units; u++) {
        up += width[u] > x->from[u];
        down += width[u] < x->from[u];
    }
    assert_int_equal(up, 1);
    assert_true(down <= 1);
    assert_true(dq_plan_kv_space_mean(x->s, width) <= x->mean + 1e-9);
    x->n++;
    x->pairs += down;
    return DQ_OK;
}

TEST(steps_stay_within_the_mean)
{
    const dq_plan_kv_space s = space_of(2, 1, 2);
    const int full[] = {4, 4, 4, 4, 4, 4}, widest[] = {8, 8, 8, 8, 8, 8};
    seen x = {.s = &s, .from = full, .mean = 4}, free = {.s = &s, .from = full, .mean = 8};
    seen none = {.s = &s, .from = widest, .mean = 8};
    dq_err err = {0};
    assert_int_equal(dq_plan_kv_space_near(&s, full, 4, see, &x, &err), DQ_OK);
    /* a key up takes one other unit down, 5 of them; a value, which costs as much as two keys, the other value */
    assert_int_equal(x.n, 4 * 5 + 2);
    assert_int_equal(x.pairs, x.n);
    assert_int_equal(dq_plan_kv_space_near(&s, full, 8, see, &free, &err), DQ_OK);
    assert_int_equal(free.n, 6);
    assert_int_equal(free.pairs, 0);
    assert_int_equal(dq_plan_kv_space_near(&s, widest, 8, see, &none, &err), DQ_OK);
    assert_int_equal(none.n, 0);
}

TEST(uniform_widths_come_next_to_a_mean)
{
    static const struct {
        double mean;
        int n, pair[2][2];
    } want[] = {{4, 1, {{4, 4}}},          {4.5, 2, {{4, 5}, {5, 4}}}, {2, 1, {{2, 2}}},
                {2.4, 1, {{2, 2}}},        {7, 2, {{6, 8}, {8, 6}}},   {8, 1, {{8, 8}}},
                {7.9, 2, {{6, 8}, {8, 6}}}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        int pair[2][2];
        assert_int_equal(dq_plan_kv_space_uniform(pair, want[i].mean), want[i].n);
        for (int k = 0; k < want[i].n; k++)
            assert_memory_equal(pair[k], want[i].pair[k], sizeof pair[k]);
    }
}

TEST(what_no_text_holds_is_refused)
{
    dq_plan_kv_space s = {.n_bits = 2, .bits = {2, 4}}, least;
    dq_err err = {0};
    assert_int_equal(dq_plan_kv_space_begin(&s, 80, 1, 2, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "layers 1: widths of 80 layers one by one take"));
    err = (dq_err){0};
    least = s;
    assert_int_equal(dq_plan_kv_space_begin(&s, 80, least.together, 2, &err), DQ_OK);
    assert_true(least.together > 2);
    assert_int_equal(dq_plan_kv_space_begin(&s, 80, 2, 2, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "layers 2: widths of 80 layers 2 together take"));
    err = (dq_err){0};
    assert_int_equal(dq_plan_kv_space_begin(&s, 80, least.together - 1, 2, &err), DQ_USAGE);
}

/* 4^-bits is a line in ln; what loses nothing is between by proportion. */
TEST(losses_between_widths)
{
    const dq_plan_kv_space s = {.bits = {2, 3, 6}, .n_bits = 3};
    double loss[] = {16, 0, 0.0625}, none[] = {8, 0, 0};
    dq_plan_kv_space_between(loss, &s, 1);
    assert_true(fabs(loss[1] - 4) < 1e-12 && loss[0] == 16 && loss[2] == 0.0625);
    dq_plan_kv_space_between(none, &s, 1);
    assert_true(fabs(none[1] - 6) < 1e-12);
}
