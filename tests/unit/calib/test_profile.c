/* A profile of the test checkpoints against tests/golden/profile_oracle.json; outliers that are each named once.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/json.h"
#include "calib/outliers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void must(dq_status status, const dq_err *err)
{
    if (status != DQ_OK) fail_msg("%s", err->text);
}

/* float32 rounding through three layers. */
static void close_to(double got, const json_t *x, const char *key)
{
    const json_t *v = json_object_get(x, key);
    const double want = json_number_value(v);
    if (!v) fail_msg("%s: none is expected", key);
    if (!(fabs(got - want) <= 3e-5 * fabs(want) + 1e-7))
        fail_msg("%s: expected %.9g, found %.9g", key, want, got);
}

static int64_t count_of(const json_t *x, const char *key)
{
    return json_integer_value(json_object_get(x, key));
}

static void check_tally(const dq_tally *t, const json_t *want)
{
    static const struct {
        const char *key;
        double p;
    } quantile[] = {{"median", 0.5}, {"p99", 0.99}, {"p99_9", 0.999}};
    assert_int_equal(t->n, count_of(want, "n"));
    assert_int_equal(t->n_bad, 0);
    if (t->n == 0) return;
    close_to(dq_outlier_top(t, 1), want, "max");
    close_to(dq_outlier_rms(t), want, "rms");
    close_to(dq_outlier_kurtosis0(t), want, "kurtosis0");
    for (size_t i = 0; i < sizeof quantile / sizeof *quantile; i++) {
        const double exact = json_number_value(json_object_get(want, quantile[i].key));
        assert_true(fabs(dq_tally_quantile(t, quantile[i].p, NULL) - exact) <= exact / 255);
    }
}

static void check_channels(const dq_channels *c, const json_t *list)
{
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        const json_t *want = json_array_get(list, (size_t) class);
        double weighted_max = 0, weighted_rms = 0;
        int64_t largest = 0;
        assert_int_equal(c->rows[class], count_of(want, "n"));
        if (c->rows[class] == 0) continue;
        for (int64_t i = 0; i < c->cols; i++) {
            const float max = c->of[class * c->cols + i].max;
            weighted_max += (double)(i + 1) * (double)max;
            weighted_rms += (double)(i + 1) * dq_channels_rms(c, class, i);
            if (max > c->of[class * c->cols + largest].max) largest = i;
        }
        assert_int_equal(largest, count_of(want, "channel"));
        close_to((double)c->of[class * c->cols + largest].max, want, "max");
        close_to(weighted_max, want, "weighted_max");
        close_to(weighted_rms, want, "weighted_rms");
    }
}

static void check_heads(const dq_outliers *o, int layer, const json_t *heads)
{
    for (int q = 0; q < o->n_q; q++) {
        for (int c = 0; c < DQ_TOKEN_CLASSES; c++) {
            const dq_moments m = dq_outlier_head(o, layer, q, 1u << c);
            const json_t *want = json_array_get(json_array_get(heads, (size_t)q), (size_t)c);
            assert_int_equal(m.n, count_of(want, "n"));
            if (m.n == 0) continue;
            close_to((double)m.max, want, "max");
            close_to(dq_moments_rms(&m), want, "rms");
            close_to(dq_moments_kurtosis0(&m), want, "kurtosis0");
        }
    }
}

static void check_look(const dq_outliers *o, int layer, const json_t *heads)
{
    assert_int_equal(json_array_size(heads), o->n_out);
    for (int h = 0; h < o->n_out; h++) {
        const dq_head_profile *p = &o->look[layer * o->n_out + h];
        const json_t *want = json_array_get(heads, (size_t)h);
        assert_int_equal(p->rows, count_of(want, "rows"));
        assert_int_equal(p->copies, count_of(want, "copies"));
        assert_true(p->copies > 0);
        for (size_t i = 0; i < DQ_HEAD_SUMS; i++) {
            const double sum = json_number_value(json_array_get(json_object_get(want, "sum"), i));
            if (!(fabs(p->sum[i] - sum) <= 3e-5 * fabs(sum) + 1e-6))
                fail_msg("head %d, sum %zu: expected %.9g, found %.9g", h, i, sum, p->sum[i]);
        }
    }
}

static void check_layer(const dq_outliers *o, int layer, const json_t *want)
{
    const json_t *tokens = json_object_get(want, "tokens");
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++)
        assert_int_equal(o->tokens[layer * DQ_TOKEN_CLASSES + c],
                         count_of(tokens, dq_token_class_name[c]));
    for (int k = 0; k < DQ_N_KINDS; k++) {
        const dq_outlier_kind *x = &o->kind[k];
        const json_t *y = json_object_get(want, dq_outlier_name[k]);
        assert_non_null(y);
        check_tally(&x->layer[layer], json_object_get(y, "all"));
        check_tally(&x->ordinary[layer], json_object_get(y, "ordinary"));
        if (x->channels) check_channels(&x->channels[layer], json_object_get(y, "channels"));
    }
    check_heads(o, layer, json_object_get(want, "heads"));
    check_look(o, layer, json_object_get(want, "look"));
}

static void check_weights(const dq_model *m, const json_t *list)
{
    dq_weight_outliers o;
    dq_err err = {0};
    must(dq_weight_outliers_collect(&o, m, &err), &err);
    assert_int_equal(o.n, json_array_size(list));
    for (int i = 0; i < o.n; i++) {
        const dq_weight_outlier *w = &o.of[i];
        const json_t *want = json_array_get(list, (size_t)i);
        assert_int_equal(w->rows * w->cols, count_of(want, "n"));
        close_to((double)w->max, want, "max");
        close_to(w->rms, want, "rms");
        close_to(w->kurtosis0, want, "kurtosis0");
        close_to(w->col_ratio, want, "column_over_median");
        assert_int_equal(w->row, count_of(want, "row"));
        assert_int_equal(w->col, count_of(want, "column"));
        assert_int_equal(w->largest_col, count_of(want, "largest_column"));
        const double exact = json_number_value(json_object_get(want, "p99_9"));
        assert_true(fabs(w->p99_9 - exact) <= exact / 255);
    }
    dq_weight_outliers_free(&o);
}

static void collect(dq_outliers *o, const dq_model *m, const dq_sequences *s, int threads,
                    int64_t max_rows)
{
    dq_err err = {0};
    dq_runner *r = NULL;
    dq_backend *b = given_backend(threads);
    const dq_outlier_walk_how how = {.max_rows = max_rows, .walks = 1};
    must(dq_outliers_init(o, m, DQ_DETAIL_ALL, &err), &err);
    must(dq_runner_new(&r, m, b, &dq_kv_plain, &err), &err);
    must(dq_outlier_walk_collect(o, r, s, &how, &err), &err);
    dq_runner_free(r);
    dq_backend_close(b);
}

TEST(against_numpy)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/profile_oracle.json"), *x;
    size_t i;
    json_array_foreach(root, i, x)
    {
        const dq_sequences s = given_sequences(json_object_get(x, "sequences"));
        dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s",
                                  json_string_value(json_object_get(x, "model")));
        for (int threads = 1; threads <= 3; threads++) {
            dq_outliers o;
            collect(&o, m, &s, threads, threads == 1 ? 4096 : 1);
            for (int l = 0; l < m->n_layers; l++)
                check_layer(&o, l, json_array_get(json_object_get(x, "layers"), (size_t)l));
            dq_outliers_free(&o);
        }
        check_weights(m, json_object_get(x, "weights"));
        dq_model_close(m);
    }
    json_decref(root);
}

/* ----- elements ----- */

static void put(dq_outliers *o, int kind, int layer, dq_token_class class, int col, float max)
{
    dq_channels *c = &o->kind[kind].channels[layer];
    c->of[class * c->cols + col].max = max;
    c->of[class * c->cols + col].row = layer;
    c->rows[class] = 1;
}

TEST(each_once)
{
    dq_err err = {0};
    dq_outliers o;
    dq_element found[4];
    dq_model *m = given_model(DQ_TEST_DIR "/golden/models/%s", "llama-f32");
    must(dq_outliers_init(&o, m, DQ_DETAIL_ALL, &err), &err);
    assert_true(m->n_layers >= 3);
    /* of the residual stream a channel is one element, wherever it is largest */
    put(&o, DQ_KIND_HIDDEN, 0, DQ_TOKEN_FIRST, 5, 3);
    put(&o, DQ_KIND_HIDDEN, 1, DQ_TOKEN_FIRST, 5, 100);
    put(&o, DQ_KIND_HIDDEN, 2, DQ_TOKEN_FIRST, 5, 10);
    put(&o, DQ_KIND_HIDDEN, 2, DQ_TOKEN_FIRST, 2, 40);
    put(&o, DQ_KIND_HIDDEN, 2, DQ_TOKEN_ORDINARY, 5, 7);
    assert_int_equal(dq_elements_find(found, 4, &o, DQ_KIND_HIDDEN, DQ_TOKEN_FIRST), 2);
    assert_true(found[0].col == 5 && found[0].max == 100 && found[0].at.layer == 1);
    assert_true(found[0].first == 1 && found[0].last == 2 && found[0].n_gaps == 0);
    assert_true(found[0].before == 3 && found[0].at.row == 1);
    assert_true(found[1].col == 2 && found[1].first == 2 && found[1].before == 0);
    assert_int_equal(dq_elements_find(found, 4, &o, DQ_KIND_HIDDEN, DQ_TOKEN_ORDINARY), 1);
    assert_int_equal(dq_elements_find(found, 4, &o, DQ_KIND_HIDDEN, DQ_TOKEN_SINK), 0);
    /* elsewhere channels of layers are different things */
    put(&o, DQ_KIND_K, 0, DQ_TOKEN_ORDINARY, 1, 5);
    put(&o, DQ_KIND_K, 1, DQ_TOKEN_ORDINARY, 1, 6);
    put(&o, DQ_KIND_K, 2, DQ_TOKEN_ORDINARY, 1, 5);
    assert_int_equal(dq_elements_find(found, 4, &o, DQ_KIND_K, DQ_TOKEN_ORDINARY), 3);
    assert_true(found[0].at.layer == 1 && found[1].at.layer == 0 && found[2].at.layer == 2);
    assert_true(found[0].first == 1 && found[0].last == 1 && isnan(found[0].before));
    /* no more than are wanted, and these the largest */
    assert_int_equal(dq_elements_find(found, 2, &o, DQ_KIND_K, DQ_TOKEN_ORDINARY), 2);
    assert_true(found[0].max == 6 && found[1].at.layer == 0);
    /* heads */
    o.head[(2 * o.n_q + 1) * DQ_TOKEN_CLASSES + DQ_TOKEN_SINK] =
        (dq_moments){.n = 4, .max = 9, .at = {1, 2, 1, 30, 4}};
    assert_int_equal(dq_elements_find(found, 4, &o, DQ_KIND_LOGITS, DQ_TOKEN_SINK), 1);
    assert_true(found[0].col == 1 && found[0].at.layer == 2 && found[0].first == 2);
    dq_outliers_free(&o);
    dq_model_close(m);
}

/* ----- head kinds ----- */

/* Of 10 rows with sum |D| = 2 each, 4 of which have something to copy. */
static dq_head_kind kind_of(double copied, double first, double local)
{
    const dq_head_measure m = {.rows = 10, .variation = 20};
    dq_head_profile p = {.rows = 10, .copies = 4};
    p.sum[DQ_HEAD_COPY_D] = copied;
    p.sum[DQ_HEAD_FIRST_D] = first;
    p.sum[DQ_HEAD_LOCAL_D] = local;
    return dq_head_kind_of(&m, &p);
}

TEST(kinds_of_heads)
{
    const dq_head_measure nothing = {.rows = 0};
    const dq_head_profile none = {.rows = 0};
    assert_int_equal(kind_of(0.81, 15, 2), DQ_HEAD_RETRIEVAL); /* .8 is a tenth of 4 rows */
    assert_int_equal(kind_of(0.79, 15, 2), DQ_HEAD_SINK);
    assert_int_equal(kind_of(0.79, 10, 10), DQ_HEAD_SINK);
    assert_int_equal(kind_of(0, 9.9, 10.1), DQ_HEAD_LOCAL);
    assert_int_equal(kind_of(0, 9.9, 9.9), DQ_HEAD_MIXED);
    assert_int_equal(dq_head_kind_of(&nothing, &none), DQ_HEAD_MIXED);
}
