/* test_plan_search: the cheapest point that keeps a budget, where predictions are off by a factor and by noise, where none keeps
 * it, and how many measurements that takes; budgets as text; the parts of a text; how far a plan is.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "calibrate/calibrate.h"
#include "plan/plan_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS = 20 };

typedef struct world {
    dq_plan_curve curve;
    double factor, noise, power;
    double worst; /* of what was measured */
    int measured;
    bool seen[200];
} world;

/* What a point loses: the prediction times a factor and a wobble of its own. */
static double truth(const world *w, int64_t point)
{
    const double wobble = (double)(dq_random_mix((uint64_t)point) % 1000) / 1000 - 0.5;
    return pow(w->curve.loss[point], w->power) * w->factor * (1 + w->noise * wobble);
}

static dq_status measure(void *arg, int64_t point, double *upper, dq_err *err)
{
    world *w = arg;
    (void)err;
    assert_in_range(point, 0, w->curve.n - 1);
    assert_false(w->seen[point]);
    w->seen[point] = true;
    w->measured++;
    *upper = truth(w, point);
    w->worst = fmax(w->worst, *upper);
    return DQ_OK;
}

static void begin(world *w, dq_plan_item *item, dq_arena *a, uint64_t seed)
{
    dq_err err = {0};
    dq_random r = dq_random_of(seed, 0);
    *w = (world){.power = 1};
    for (int i = 0; i < ITEMS; i++) {
        const double size = 1 + (double)dq_random_below(&r, 4);
        const double weight = exp((double)dq_random_below(&r, 60) / 10 - 9);
        item[i] = (dq_plan_item){.n = 6};
        for (int k = 0; k < 6; k++) {
            item[i].cost[k] = size * (k + 2);
            item[i].loss[k] = weight * pow(0.2, k);
        }
    }
    assert_int_equal(dq_plan_alloc_curve(&w->curve, item, ITEMS, a, &err), DQ_OK);
}

/* What a search finds in the world of a seed, with at most `max` measurements. */
static int64_t search(world *w, dq_plan_item *item, dq_arena *a, uint64_t seed, world truth_is,
                      int max)
{
    dq_err err = {0};
    int64_t point;
    begin(w, item, a, seed);
    w->factor = truth_is.factor;
    w->noise = truth_is.noise;
    if (truth_is.power > 0) w->power = truth_is.power;
    const dq_plan_search s = {&w->curve, 0.01, max, measure, w};
    assert_int_equal(dq_plan_search_run(&point, &s, &err), DQ_OK);
    assert_in_range(point, 0, w->curve.n - 1);
    return point;
}

TEST(finds_the_cheapest)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        dq_arena *a = dq_arena_new();
        dq_plan_item item[ITEMS];
        world w;
        const world is = {.factor = 0.3 + 0.1 * (double)(seed % 20)};
        const int64_t point = search(&w, item, a, seed, is, 40);
        assert_true(truth(&w, point) <= 0.01);
        /* without noise the one before it misses, or costs the same to 2 per mille and a step */
        if (point > 0 && truth(&w, point - 1) <= 0.01)
            assert_true(w.curve.cost[point] - w.curve.cost[point - 1] <=
                        0.002 * w.curve.cost[point]);
        assert_in_range(w.measured, 1, 4);
        dq_arena_free(a);
    }
}

TEST(keeps_it_in_noise)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        dq_arena *a = dq_arena_new();
        dq_plan_item item[ITEMS];
        world w;
        const int64_t point = search(&w, item, a, seed, (world){.factor = 0.7, .noise = 0.3}, 8);
        assert_true(w.seen[point] && truth(&w, point) <= 0.01);
        assert_true(w.measured <= 8);
        dq_arena_free(a);
    }
}

/* Losses that grow slower than predicted: every step falls short, on the side that keeps the budget. None goes far beyond it. */
TEST(comes_from_one_side)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        dq_arena *a = dq_arena_new();
        dq_plan_item item[ITEMS];
        world w;
        const int64_t point = search(&w, item, a, seed, (world){.factor = 0.08, .power = 0.5}, 8);
        assert_true(truth(&w, point) <= 0.01 && w.worst < 0.012);
        dq_arena_free(a);
    }
}

/* The same from the side that misses: the dearest point does not stand in for the cheapest. */
TEST(comes_from_the_other_side)
{
    for (uint64_t seed = 0; seed < 60; seed++) {
        dq_arena *a = dq_arena_new();
        dq_plan_item item[ITEMS];
        int64_t best = 0;
        world w;
        const int64_t point = search(&w, item, a, seed, (world){.factor = 0.3, .power = 0.5}, 8);
        while (best < w.curve.n - 1 && truth(&w, best) > 0.01) best++;
        assert_true(w.curve.cost[point] < 1.05 * w.curve.cost[best]);
        dq_arena_free(a);
    }
}

TEST(none_keeps_it)
{
    dq_arena *a = dq_arena_new();
    dq_plan_item item[ITEMS];
    dq_err err = {0};
    int64_t point;
    world w;
    begin(&w, item, a, 3);
    w.factor = 1e6;
    const dq_plan_search s = {&w.curve, 0.001, 3, measure, &w};
    assert_int_equal(dq_plan_search_run(&point, &s, &err), DQ_OK);
    assert_int_equal(point, -1);
    assert_true(w.seen[w.curve.n - 1]); /* not without the dearest */
    assert_true(w.measured <= 3);
    dq_arena_free(a);
}

TEST(next_is_dearer)
{
    dq_arena *a = dq_arena_new();
    dq_plan_item item[ITEMS];
    world w;
    begin(&w, item, a, 4);
    int64_t k = 0, steps = 0;
    for (int64_t next; (next = dq_plan_search_next(&w.curve, k)) >= 0; k = next, steps++) {
        assert_true(next > k);
        if (next < w.curve.n - 1) assert_true(w.curve.loss[next] <= 0.9 * w.curve.loss[k]);
    }
    assert_int_equal(k, w.curve.n - 1);
    assert_true(steps < w.curve.n);
    dq_arena_free(a);
}

TEST(budgets)
{
    static const char *const wrong[] = {"",       "0.01",     "kld",        "kld=",      "kld=0",
                                        "kld=-1", "kld=nan",  "kld=1x",     "ppl=1",     "ppl=0.9",
                                        "pp=1.1", "kl=0.1",   "bpw=0",      "bpw=inf",   "size=0",
                                        "size=x", "size=1TB", "size=1 MB",  "kld=0.01 ", "klds=0.1",
                                        "kld= 1", "bpw=0x4",  "size=0X1p20"};
    dq_plan_budget b;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dq_err err = {0};
        assert_int_equal(dq_plan_weights_budget_parse(&b, wrong[i], &err), DQ_USAGE);
    }
    dq_err err = {0};
    assert_int_equal(dq_plan_weights_budget_parse(&b, "size=1.5GiB", &err), DQ_OK);
    assert_true(b.goal == DQ_PLAN_SIZE && b.value == 1.5 * 1073741824);
    assert_int_equal(dq_plan_weights_budget_parse(&b, "size=700MB", &err), DQ_OK);
    assert_true(b.value == 7e8);
    assert_int_equal(dq_plan_weights_budget_parse(&b, "ppl=1.005", &err), DQ_OK);
    assert_true(b.goal == DQ_PLAN_PPL && b.value == 1.005);
    assert_int_equal(dq_plan_weights_budget_parse(&b, "bpw=4.2", &err), DQ_OK);
    assert_true(b.goal == DQ_PLAN_BPW);
    assert_int_equal(dq_plan_weights_budget_parse(&b, "kld=1e-2", &err), DQ_OK);
    assert_true(b.goal == DQ_PLAN_KLD && b.value == 0.01);
}

TEST(quarters_as_json)
{
    for (unsigned part = 1; part <= DQ_CALIB_TEXT_ALL; part++) {
        json_t *list = dq_calib_text_quarters_json(part);
        assert_int_equal(dq_calib_text_quarters(list), part);
        json_decref(list);
    }
    json_t *bad = json_pack("[i, i]", 1, 4);
    assert_int_equal(dq_calib_text_quarters(bad), 0);
    assert_int_equal(dq_calib_text_quarters(NULL), 0);
    json_decref(bad);
}

/* Quarters of the pair's text, one document, are a piece of it each, and all of it together. */
TEST(parts_share_nothing)
{
    dq_arena *a = dq_arena_new();
    dq_err err = {0};
    dq_model *m;
    dq_calib_text whole, part[3];
    const unsigned quarter[3] = {5, 2, 8};
    int64_t at[3] = {0};
    const char *text = DQ_SOURCE_DIR "/calib/pair/text.txt";
    assert_int_equal(dq_model_open(&m, DQ_SOURCE_DIR "/calib/pair/llama", &err), DQ_OK);
    assert_int_equal(dq_calib_text_read(&whole, text, m, 19200, 192, DQ_CALIB_TEXT_ALL, a, &err),
                     DQ_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(dq_calib_text_read(&part[i], text, m, 19200, 192, quarter[i], a, &err),
                         DQ_OK);
    assert_int_equal(part[0].n_seq + part[1].n_seq + part[2].n_seq, whole.n_seq);
    assert_int_equal(part[0].n_seq, 50);
    for (int64_t s = 0; s < whole.n_seq; s++) {
        const int64_t q = s * 4 / whole.n_seq;
        const int which = q == 1 ? 1 : q == 3 ? 2 : 0;
        const int64_t k = at[which]++, n = whole.cu[s + 1] - whole.cu[s];
        assert_int_equal(part[which].unit[k], s);
        assert_int_equal(part[which].cu[k + 1] - part[which].cu[k], n);
        assert_memory_equal(part[which].ids + part[which].cu[k], whole.ids + whole.cu[s],
                            (size_t)n * sizeof *whole.ids);
    }
    dq_model_close(m);
    dq_arena_free(a);
}

typedef struct shown {
    double done, total;
    const char *what;
    int n;
} shown;

static void show(void *arg, double done, double total, const char *what)
{
    shown *s = arg;
    *s = (shown){done, total, what, s->n + 1};
}

/* Work and what is expected, in one measure; of a quantization the share of the time that it takes. */
TEST(progress)
{
    shown s = {.n = 0};
    dq_plan_work w = {.step = show, .arg = &s};
    dq_plan_work_share share = {&w, 40, 0};
    dq_pace pace;
    dq_plan_work_expect(&w, 100);
    dq_plan_work_add(&w, 10, "a");
    assert_true(s.done == 10 && s.total == 100 && strcmp(s.what, "a") == 0);
    dq_pace_begin(&pace, 0);
    dq_pace_expect(&pace, 0, 4);
    dq_plan_work_step(&share, &pace, "b");
    assert_true(s.n == 1 && w.done == 10);
    dq_pace_step(&pace, 0, 1, 3);
    dq_plan_work_step(&share, &pace, "c"); /* a quarter, whatever it took */
    assert_true(s.n == 2 && fabs(s.done - 20) < 1 && s.total == 100);
    dq_pace_step(&pace, 0, 3, 12);
    dq_plan_work_step(&share, &pace, "d");
    assert_true(s.n == 3 && s.done == 50 && s.total == 100);
    dq_plan_work_expect(&w, 5); /* fewer models than were thought of */
    assert_true(w.total == 55);
    dq_plan_work_add(&w, 10, "e"); /* more than was thought of */
    assert_true(s.done == 60 && s.total == 60);
}
