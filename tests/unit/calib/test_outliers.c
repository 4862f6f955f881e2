/* Outlier statistics of the test checkpoints against tests/golden/stats_oracle.json, and files that
 * results are written to.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "calib/outliers.h"
#include "checkpoint/h5_result.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(dq_status status, const dq_err *err)
{
    if (status != DQ_OK) fail_msg("%s", err->text);
}

/* float32 rounding through three layers. */
static void close_to(double got, double want, const char *what)
{
    if (!(fabs(got - want) <= 3e-5 * fabs(want) + 1e-7))
        fail_msg("%s: expected %.9g, found %.9g", what, want, got);
}

typedef struct fixture {
    json_t *root;
    dq_backend *backend;
} fixture;

static int set_up(void **state)
{
    static fixture f;
    f.root = given_json(DQ_TEST_DIR "/golden/stats_oracle.json");
    f.backend = given_backend(2);
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    json_decref(f->root);
    dq_backend_close(f->backend);
    return 0;
}

static void collect(dq_outliers *o, const dq_model *m, dq_backend *b, const dq_sequences *s,
                    int64_t max_rows, int walks)
{
    dq_err err = {0};
    dq_runner *r = NULL;
    const dq_outlier_walk_how how = {.max_rows = max_rows, .walks = walks};
    must(dq_outliers_init(o, m, DQ_DETAIL_ALL, &err), &err);
    must(dq_runner_new(&r, m, b, &dq_kv_plain, &err), &err);
    must(dq_outlier_walk_collect(o, r, s, &how, &err), &err);
    assert_int_equal(o->n_rows, s->cu[s->n]);
    dq_runner_free(r);
}

static void compare(const dq_tally *t, dq_median m, const json_t *want, bool exact)
{
    static const int tops[] = {1, 2, 3, 10, 100};
    char key[16];
    assert_int_equal(t->n, json_integer_value(json_object_get(want, "n")));
    assert_int_equal(t->n_bad, 0);
    for (size_t i = 0; i < sizeof tops / sizeof tops[0]; i++) {
        snprintf(key, sizeof key, "top%d", tops[i]);
        close_to(dq_outlier_top(t, tops[i]), json_number_value(json_object_get(want, key)), key);
    }
    close_to(dq_outlier_rms(t), json_number_value(json_object_get(want, "rms")), "rms");
    double median = json_number_value(json_object_get(want, "median"));
    if (exact) {
        assert_true(m.bound <= 0);
        close_to(m.value, median, "median");
    } else {
        assert_true(m.bound > 0 && m.bound <= m.value / 256);
        assert_true(fabs(m.value - median) <= m.bound + 3e-5 * median);
    }
}

static void compare_place(const dq_tally *t, const json_t *want)
{
    const dq_place *p = &t->place[0];
    const int32_t got[5] = {p->seq, p->layer, p->head, p->row, p->col};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(got[i], json_integer_value(json_array_get(want, i)));
}

static void near_count(int64_t got, const json_t *want, const char *what)
{
    /* a value within rounding of a threshold may fall on either side */
    int64_t w = json_integer_value(want);
    if (llabs(got - w) > 2) fail_msg("%s: %lld, expected %lld", what, (long long)got, (long long)w);
}

/* What the maps look like, against float64 softmaxes. */
static void compare_measure(const dq_head_measure *m, const json_t *want)
{
    assert_int_equal(m->rows, json_integer_value(json_object_get(want, "rows")));
    assert_int_equal(m->keys, json_integer_value(json_object_get(want, "keys")));
    assert_int_equal(m->pages, json_integer_value(json_object_get(want, "pages")));
    for (size_t k = 0; k < 2; k++) {
        const json_t *h = json_array_get(json_object_get(want, "entropy"), k);
        const json_t *sinks = json_array_get(json_object_get(want, "sink_mass"), k);
        close_to(m->entropy[k], json_number_value(h), "entropy");
        close_to(m->sink_mass[k], json_number_value(sinks), "sink mass");
    }
    close_to(m->variation, json_number_value(json_object_get(want, "variation")), "variation");
    double negative = json_number_value(json_object_get(want, "negative"));
    assert_true(fabs(m->negative - negative) <= 1e-4 * (1 + negative));
    for (size_t i = 0; i < DQ_N_THRESHOLDS; i++) {
        near_count(m->near_zero[i], json_array_get(json_object_get(want, "near_zero"), i), "keys");
        near_count(m->skippable[i], json_array_get(json_object_get(want, "skippable"), i), "pages");
    }
}

static void check_model(const fixture *f, const json_t *x, int64_t max_rows, int walks)
{
    const char *name = json_string_value(json_object_get(x, "model"));
    dq_sequences s = given_sequences(json_object_get(x, "sequences"));
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s", name);
    dq_outliers o;
    collect(&o, m, f->backend, &s, max_rows, walks);
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        const dq_outlier_kind *kind = &o.kind[k];
        const char *key = dq_outlier_name[k];
        compare(&kind->pooled, kind->pooled_median,
                json_object_get(json_object_get(x, "table5"), key), walks >= 2);
        compare_place(&kind->pooled, json_object_get(json_object_get(x, "place"), key));
        for (int i = 0; i < m->n_layers; i++) {
            json_t *layer = json_array_get(json_object_get(x, "layers"), (size_t)i);
            bool exact = walks >= 3 || (walks == 2 && kind->layer_median[i].bound <= 0);
            compare(&kind->layer[i], kind->layer_median[i], json_object_get(layer, key), exact);
        }
    }
    for (int i = 0; i < m->n_layers * m->map.n_out; i++) {
        const json_t *layer =
            json_array_get(json_object_get(x, "layers"), (size_t)(i / m->map.n_out));
        compare_measure(&o.measure[i], json_array_get(json_object_get(layer, "attention"),
                                                      (size_t)(i % m->map.n_out)));
    }
    dq_outliers_free(&o);
    dq_model_close(m);
}

TEST(test_oracle)
{
    const fixture *f = *case_state;
    size_t i;
    json_t *x;
    json_array_foreach(f->root, i, x)
    {
        for (int walks = 1; walks <= 3; walks++) check_model(f, x, 4096, walks);
        check_model(f, x, 64, 3); /* several passes, one with three sequences */
        check_model(f, x, 1, 3);  /* a sequence longer than a pass is a pass of its own */
    }
}

/* Batching changes no bit. */
TEST(test_batching)
{
    const fixture *f = *case_state;
    const json_t *x = json_array_get(f->root, 1);
    dq_sequences s = given_sequences(json_object_get(x, "sequences"));
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s",
                              json_string_value(json_object_get(x, "model")));
    dq_outliers a, b;
    collect(&a, m, f->backend, &s, 4096, 2);
    collect(&b, m, f->backend, &s, 50, 2);
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        const dq_tally *p = &a.kind[k].pooled, *q = &b.kind[k].pooled;
        assert_memory_equal(p->top, q->top, sizeof p->top);
        assert_memory_equal(p->place, q->place, sizeof p->place);
        assert_memory_equal(p->hist, q->hist, DQ_HIST_BINS * sizeof *p->hist);
        assert_true(!(a.kind[k].pooled_median.value < b.kind[k].pooled_median.value) &&
                    !(a.kind[k].pooled_median.value > b.kind[k].pooled_median.value));
    }
    assert_memory_equal(a.measure, b.measure,
                        (size_t)(m->n_layers * m->map.n_out) * sizeof *a.measure);
    dq_outliers_free(&a);
    dq_outliers_free(&b);
    dq_model_close(m);
}

/* What the layers of each block have, as bytes. */
static void compute_blocks(dq_strbuf *bytes, const dq_model *m, dq_backend *b,
                           const dq_sequences *s, const dq_outlier_walk_how *how)
{
    dq_err err = {0};
    dq_runner *r = NULL;
    must(dq_runner_new(&r, m, b, &dq_kv_plain, &err), &err);
    for (int64_t i = 0; i < s->n; i++) {
        dq_outliers o;
        dq_outlier_walk *w;
        must(dq_outliers_init(&o, m, DQ_DETAIL_ALL, &err), &err);
        must(dq_outlier_walk_new(&w, &o, m, s, how, &err), &err);
        must(dq_outlier_walk_run(w, r, (int)i, &err), &err);
        for (int l = 0; l < m->n_layers; l++) must(dq_outliers_put(&o, l, &bytes[i], &err), &err);
        dq_outlier_walk_free(w);
        dq_outliers_free(&o);
    }
    dq_runner_free(r);
}

static void same_tally(const dq_tally *p, const dq_tally *q)
{
    assert_true(p->n == q->n && p->n_bad == q->n_bad);
    assert_memory_equal(&p->sum, &q->sum, 3 * sizeof p->sum);
    assert_memory_equal(p->top, q->top, sizeof p->top);
    assert_memory_equal(p->place, q->place, sizeof p->place);
    assert_memory_equal(p->hist, q->hist, DQ_HIST_BINS * sizeof *p->hist);
}

static void same_outliers(const dq_outliers *a, const dq_outliers *b)
{
    const size_t layers = (size_t)a->n_layers, outs = layers * (size_t)a->n_out;
    assert_true(a->n_rows == b->n_rows && a->n_kinds == b->n_kinds);
    for (int k = 0; k < a->n_kinds; k++) {
        const dq_outlier_kind *x = &a->kind[k], *y = &b->kind[k];
        same_tally(&x->pooled, &y->pooled);
        same_tally(&x->pooled_ordinary, &y->pooled_ordinary);
        for (size_t i = 0; i < layers; i++) {
            same_tally(&x->layer[i], &y->layer[i]);
            same_tally(&x->ordinary[i], &y->ordinary[i]);
            if (k == DQ_KIND_LOGITS) continue;
            assert_memory_equal(x->channels[i].rows, y->channels[i].rows,
                                sizeof x->channels[i].rows);
            assert_memory_equal(x->channels[i].of, y->channels[i].of,
                                (size_t)x->channels[i].cols * DQ_TOKEN_CLASSES *
                                    sizeof(dq_channel));
        }
        assert_memory_equal(&x->pooled_median, &y->pooled_median, sizeof(dq_median));
        assert_memory_equal(x->layer_median, y->layer_median, layers * sizeof(dq_median));
    }
    assert_memory_equal(a->head, b->head,
                        layers * (size_t)a->n_q * DQ_TOKEN_CLASSES * sizeof *a->head);
    assert_memory_equal(a->tokens, b->tokens, layers * DQ_TOKEN_CLASSES * sizeof *a->tokens);
    assert_memory_equal(a->measure, b->measure, outs * sizeof *a->measure);
}

/* Blocks as bytes, in any order, are the walk, bit for bit. */
TEST(test_blocks)
{
    const fixture *f = *case_state;
    const json_t *x = json_array_get(f->root, 1);
    dq_sequences s = given_sequences(json_object_get(x, "sequences"));
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s",
                              json_string_value(json_object_get(x, "model")));
    const dq_outlier_walk_how how = {.max_rows = 1, .walks = 1};
    dq_strbuf bytes[DQ_OUTLIER_BLOCKS] = {{0}};
    dq_err err = {0};
    dq_outliers whole, merged;
    dq_outlier_walk *w;
    int64_t rows = 0;
    collect(&whole, m, f->backend, &s, 1, 1);
    compute_blocks(bytes, m, f->backend, &s, &how);
    must(dq_outliers_init(&merged, m, DQ_DETAIL_ALL, &err), &err);
    must(dq_outlier_walk_new(&w, &merged, m, &s, &how, &err), &err);
    const int n = dq_outlier_walk_blocks(w);
    assert_int_equal(n, s.n);
    for (int i = n - 1; i >= 0; i--) {
        const char *at = bytes[i].s, *end = at + bytes[i].n;
        for (int l = 0; l < m->n_layers; l++)
            must(dq_outliers_merge(&merged, l, &at, end, &err), &err);
        assert_ptr_equal(at, end);
        rows += dq_outlier_walk_rows(w, i);
    }
    assert_true(dq_outlier_walk_check(w));
    dq_outlier_walk_end(w);
    assert_int_equal(rows, s.cu[s.n]);
    same_outliers(&whole, &merged);
    /* cut off, and with places that are none */
    for (size_t cut = 0; cut < bytes[0].n; cut += bytes[0].n / 50) {
        dq_outliers spare;
        dq_err damaged = {0};
        const char *at = bytes[0].s;
        must(dq_outliers_init(&spare, m, DQ_DETAIL_ALL, &err), &err);
        for (int l = 0; l < m->n_layers && damaged.code == DQ_OK; l++)
            dq_outliers_merge(&spare, l, &at, bytes[0].s + cut, &damaged);
        assert_int_equal(damaged.code, DQ_DAMAGED);
        dq_outliers_free(&spare);
    }
    merged.head[0].at.col = 4000;
    assert_false(dq_outlier_walk_check(w));
    merged.head[0].at.col = 0;
    merged.kind[DQ_KIND_Q].layer[0].place[0].row = -1;
    assert_false(dq_outlier_walk_check(w));
    dq_outlier_walk_free(w);
    for (int i = 0; i < n; i++) dq_block_free(bytes[i].s);
    dq_outliers_free(&merged);
    dq_outliers_free(&whole);
    dq_model_close(m);
}

TEST(test_refusals)
{
    const fixture *f = *case_state;
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s", "diffllama-f32");
    const int64_t cu[] = {0, 2, 3};
    const dq_outlier_walk_how how = {.max_rows = 4096, .walks = 3};
    for (int turn = 0; turn < 2; turn++) {
        const int32_t ids[] = {1, 2, turn ? 256 : -1};
        const dq_sequences s = {.n = 2, .cu = cu, .ids = ids};
        dq_err err = {0};
        dq_outliers o;
        dq_runner *r = NULL;
        must(dq_outliers_init(&o, m, DQ_DETAIL_ALL, &err), &err);
        must(dq_runner_new(&r, m, f->backend, &dq_kv_plain, &err), &err);
        assert_int_equal(dq_outlier_walk_collect(&o, r, &s, &how, &err), DQ_MISMATCH);
        assert_non_null(strstr(err.text, "outside the vocabulary"));
        dq_runner_free(r);
        dq_outliers_free(&o);
    }
    int positions = m->max_positions;
    const int32_t ids[] = {1, 2, 3};
    const dq_sequences s = {.n = 2, .cu = cu, .ids = ids};
    dq_err err = {0};
    dq_outliers o;
    dq_runner *r = NULL;
    m->max_positions = 1;
    must(dq_outliers_init(&o, m, DQ_DETAIL_ALL, &err), &err);
    must(dq_runner_new(&r, m, f->backend, &dq_kv_plain, &err), &err);
    assert_int_equal(dq_outlier_walk_collect(&o, r, &s, &how, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "positions"));
    m->max_positions = positions;
    dq_runner_free(r);
    dq_outliers_free(&o);
    dq_model_close(m);
}

/* No values: nothing to say, and nothing said. */
TEST(test_few_values)
{
    dq_err err = {0};
    dq_tally t = {0};
    must(dq_tally_init(&t, &err), &err);
    assert_true(isnan(dq_outlier_top(&t, 1)) && isnan(dq_outlier_rms(&t)));
    assert_true(isnan(dq_outlier_kurtosis0(&t)));
    const float x[3] = {3, -4, 0};
    dq_tally_add(&t, x, 3, (dq_place){0, 0, 0, 0, 0});
    assert_true(dq_outlier_top(&t, 1) > 3.999 && isnan(dq_outlier_top(&t, 4)));
    close_to(dq_outlier_rms(&t), sqrt(25.0 / 3), "rms");
    close_to(dq_outlier_kurtosis0(&t), 3 * 337.0 / 625, "kurtosis0");
    dq_tally_free(&t);
}

TEST(test_maps)
{
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s", "diffllama-f32"),
             *plain = given_model(DQ_TEST_DIR "/golden/models/%s", "llama-f32");
    const int want[4] = {1, 1, 2, 2};
    for (int h = 0; h < 4; h++) {
        assert_int_equal(dq_outlier_map(&m->map, h), want[h]);
        assert_int_equal(dq_outlier_map(&plain->map, h), 0);
    }
    dq_model_close(m);
    dq_model_close(plain);
}

static bool same_bytes(const char *a, const char *b)
{
    dq_err err = {0};
    dq_os_map x, y;
    must(dq_os_map_open(&x, a, &err), &err);
    must(dq_os_map_open(&y, b, &err), &err);
    bool same = x.bytes == y.bytes && x.bytes > 0 && memcmp(x.data, y.data, x.bytes) == 0;
    dq_os_map_close(&x);
    dq_os_map_close(&y);
    return same;
}

static void write_one(const char *path, bool force)
{
    dq_err err = {0};
    dq_h5_result *h = NULL;
    const int64_t shape[2] = {2, 3};
    const float x[6] = {1, 2, 3, 4, 5, 6};
    must(dq_h5_result_new(&h, path, force, &err), &err);
    must(dq_h5_result_group(h, "/g", &err), &err);
    must(dq_h5_result_array(h, "/g/x", DQ_OUT_F32, 2, shape, x, &err), &err);
    must(dq_h5_result_text(h, "/g/x", "unit", "", &err), &err);
    must(dq_h5_result_int(h, "/", "n", 7, &err), &err);
    must(dq_h5_result_matrix(h, "/m", 2, 3, &err), &err);
    must(dq_h5_result_rows(h, 1, 1, x + 3, &err), &err);
    must(dq_h5_result_rows(h, 0, 1, x, &err), &err);
    assert_false(!force && dq_file_exists(path)); /* the name appears with the commit */
    must(dq_h5_result_commit(&h, &err), &err);
    assert_null(h);
}

TEST(test_files)
{
    const char *a = "test_outliers_a.h5", *b = "test_outliers_b.h5";
    dq_err err = {0};
    dq_h5_result *h = NULL;
    remove(a);
    remove(b);
    write_one(a, false);
    write_one(b, false);
    assert_true(same_bytes(a, b));
    assert_int_equal(dq_h5_result_check(a, false, &err), DQ_FILE);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_FORCE);
    write_one(a, true);
    assert_true(same_bytes(a, b));

    err = (dq_err){0}; /* a file that is given up leaves nothing and takes nothing away */
    must(dq_h5_result_new(&h, a, true, &err), &err);
    dq_h5_result_drop(h);
    assert_true(same_bytes(a, b) && !dq_file_exists("test_outliers_a.h5.partial"));
    remove(a);
    remove(b);

    static const char *const bad[] = {"/dev/full", "no-such-folder/x.h5", "."};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (dq_err){0};
        assert_int_equal(dq_h5_result_new(&h, bad[i], true, &err), DQ_FILE);
        assert_null(h);
    }
    err = (dq_err){0};
    assert_int_equal(dq_h5_result_check("-", true, &err), DQ_USAGE);
}

FIXTURES(set_up, tear_down)
