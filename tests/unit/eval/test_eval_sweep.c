/* test_eval_sweep: how many models a sweep holds at a time, and that this changes no number; how long its steps are.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "eval/eval.h"
#include "eval/eval_sweep.c" /* what is private there */
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <stdlib.h>
#include <string.h>

enum { MODELS = 3, WINDOWS = 30, CTX = 16, SCORED = 8 };

static struct {
    dq_model *m[MODELS];
    dq_tokenizer *tok[MODELS];
    dq_backend *b;
    const dq_ops *ops; /* the backend's own */
    int acquired[MODELS];
    int held, most; /* models of which more than one weight is acquired */
    int began[MODELS];
    int told;
    int32_t ids[WINDOWS + CTX];
    dq_window win[WINDOWS];
} x;

static int model_of(const dq_weight *w)
{
    const uintptr_t at = (uintptr_t)w;
    for (int i = 0; i < MODELS; i++) {
        const uintptr_t first = (uintptr_t)x.m[i]->layer;
        const bool in_layer =
            at >= first && at < first + (size_t)x.m[i]->n_layers * sizeof(dq_layer);
        if (w == &x.m[i]->embed || w == &x.m[i]->head || in_layer) return i;
    }
    fail();
    return 0;
}

static bool acquire(dq_backend *b, const dq_weight *w)
{
    const int i = model_of(w);
    if (++x.acquired[i] == 2 && ++x.held > x.most) x.most = x.held;
    return !x.ops->weight_acquire || x.ops->weight_acquire(b, w);
}

static void release(dq_backend *b, const dq_weight *w)
{
    const int i = model_of(w);
    if (x.acquired[i]-- == 2) x.held--;
    if (x.ops->weight_release) x.ops->weight_release(b, w);
}

/* Plenty for model 0, nothing for the others. */
static size_t scarce(const dq_backend *b)
{
    (void)b;
    for (int i = 1; i < MODELS; i++) {
        if (x.acquired[i] >= 2) return 0;
    }
    return (size_t)1 << 30;
}

static dq_ops counted;

static int setup(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        x.m[i] = given_model(DQ_SOURCE_DIR "/calib/pair/llama");
        x.tok[i] = given_tokenizer_of(x.m[i], NULL, NULL);
    }
    x.b = given_backend(2);
    x.ops = x.b->ops;
    counted = *x.ops;
    counted.weight_acquire = acquire;
    counted.weight_release = release;
    x.b->ops = &counted;
    for (int i = 0; i < WINDOWS + CTX; i++) x.ids[i] = (i * 37 + 11) % x.m[0]->vocab;
    for (int i = 0; i < WINDOWS; i++)
        x.win[i] =
            (dq_window){.ids = x.ids + i, .n = CTX, .first = CTX - SCORED - 1, .value = SCORED * i};
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        dq_tokenizer_free(x.tok[i]);
        dq_model_close(x.m[i]);
    }
    x.b->ops = x.ops;
    dq_backend_close(x.b);
    return 0;
}

static void began(void *arg, int model)
{
    (void)arg;
    x.began[model]++;
}

/* Model 0 is the reference of all; each has a row of 16 bits and one of 4. */
static void sweep_open(dq_eval *e)
{
    static dq_eval_source source = {.name = "text", .path = "-", .kind = &dq_eval_text};
    dq_err err = {0};
    *e = (dq_eval){.a = given_arena(), .backend = x.b, .source = &source, .begins = began};
    e->n_models = MODELS;
    e->n_sources = e->n_ids = 1;
    e->model = dq_alloc(e->a, MODELS, sizeof *e->model, &err);
    e->ids = dq_alloc(e->a, 1, sizeof *e->ids, &err);
    e->cap_ids = 1;
    e->ids[0].win =
        (dq_windows){.win = x.win, .n = WINDOWS, .n_values = SCORED * WINDOWS, .longest = CTX};
    e->ids[0].n_extra = 1;
    for (int i = 0; i < MODELS; i++) {
        dq_eval_model *m = &e->model[i];
        *m = (dq_eval_model){.m = x.m[i], .tok = x.tok[i], .shown = true};
        assert_int_equal(dq_model_file(m->m, "tokenizer.json", &m->tok_text, &m->tok_len, &err),
                         DQ_OK);
    }
    for (int i = MODELS - 1; i >= 0; i--) {
        for (int bits = 4; bits <= 16; bits += 12) {
            const dq_logit_spec logit = {.bits = bits, .granularity = DQ_GRANULARITY_ROW};
            assert_int_equal(dq_eval_add(e, i, 0, logit, (dq_math){0}, &dq_kv_plain, &err), DQ_OK);
        }
    }
    assert_int_equal(e->n_ids, 1); /* one cluster */
    assert_int_equal(e->n_rows, 2 * MODELS);
}

TEST(one_model_at_a_time)
{
    dq_eval e, f;
    dq_err err = {0};
    sweep_open(&e);
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    assert_int_equal(x.most, 1);
    for (int i = 0; i < MODELS; i++) {
        assert_int_equal(x.acquired[i], 0);
        assert_int_equal(x.began[i], 1); /* all its rows, and all windows of a turn, at once */
    }
    sweep_open(&f); /* all at once, each with the caller's runner */
    for (int i = 0; i < MODELS; i++)
        assert_int_equal(dq_runner_new(&f.model[i].runner, x.m[i], x.b, &dq_kv_plain, &err), DQ_OK);
    assert_int_equal(x.most, MODELS);
    assert_int_equal(dq_eval_run(&f, &err), DQ_OK);
    for (int i = 0; i < e.n_rows; i++) {
        const dq_eval_row *a = &e.row[i], *b = &f.row[i];
        assert_int_equal(dq_eval_lacking(a, 0, WINDOWS), WINDOWS);
        assert_memory_equal(a->logp, b->logp, SCORED * WINDOWS * sizeof *a->logp);
        assert_memory_equal(a->kld, b->kld, SCORED * WINDOWS * sizeof *a->kld);
    }
    for (int i = 0; i < MODELS; i++) dq_runner_free(f.model[i].runner);
}

static void listen(void *arg, double share, const char *note)
{
    (void)arg;
    (void)share;
    (void)note;
    x.told++;
}

/* Rows of a model take no more at a time than its own memory holds, whatever the reference's does. */
TEST(memory_goes_by_model)
{
    dq_eval e;
    dq_err err = {0};
    sweep_open(&e);
    e.progress = listen;
    counted.memory = scarce;
    assert_int_equal(dq_eval_run(&e, &err), DQ_OK);
    counted.memory = x.ops->memory;
    assert_true(x.told >=
                2 * WINDOWS * 2 * (MODELS - 1)); /* before and after each window of two rows */
}

/* A step of all windows of the row, so many times the 480 rows that they have. */
static void take_step(sweep *s, dq_eval_row *row, double times, double seconds)
{
    step_begin(s, row, 0, WINDOWS, true);
    s->feeds *= times;
    s->begun -= seconds;
    step_end(s);
}

TEST(steps_go_by_their_row)
{
    enum { FIRST = 512, MAX = 1 << 20, PASS = 100, ROWS = WINDOWS * CTX };
    dq_eval e;
    sweep s;
    sweep_open(&e);
    sweep_begin(&s, &e);
    dq_eval_row *row = &e.row[0];
    assert_int_equal(step_rows(row, MAX), FIRST);
    for (int i = 1; i <= 5; i++) {
        take_step(&s, row, 1 << i, 0);
        assert_true(step_rows(row, MAX) >= (FIRST << i));
    }
    assert_int_equal(step_rows(row, PASS), PASS);
    for (int i = 1; i < e.n_rows; i++) assert_int_equal(step_rows(&e.row[i], MAX), FIRST);
    take_step(&s, row, 16, 4); /* half a second of that is an eighth */
    assert_in_range(step_rows(row, MAX), 2 * ROWS * 9 / 10, 2 * ROWS);
    take_step(&s, row, 2, 0.7); /* neither short nor long */
    assert_in_range(step_rows(row, MAX), 2 * ROWS * 9 / 10, 2 * ROWS);
    take_step(&s, row, 2, 60);
    assert_int_equal(step_rows(row, MAX), FIRST);
    let_go(&s);
}

FIXTURES(setup, teardown)
