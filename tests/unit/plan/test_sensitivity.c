/* Attention logits of one layer, head or map rounded alone, and what is forecast of it, against tests/golden/rounding_oracle.json.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "plan/sensitivity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void must(dq_status status, const dq_err *err)
{
    if (status != DQ_OK) fail_msg("%s", err->text);
}

static double number(const json_t *x, const char *key)
{
    const json_t *v = json_object_get(x, key);
    if (!json_is_number(v)) fail_msg("%s: none is expected", key);
    return json_number_value(v);
}

static void near(double got, double want, double relative, double absolute, const char *what)
{
    if (!(fabs(got - want) <= relative * fabs(want) + absolute))
        fail_msg("%s: expected %.9g, found %.9g", what, want, got);
}

/* ----- the text ----- */

static dq_calib_text text_of(const json_t *model)
{
    const dq_sequences s = given_sequences(json_object_get(model, "sequences"));
    const json_t *list = json_object_get(model, "cluster");
    dq_err err = {0};
    int32_t *cluster = dq_alloc(given_arena(), (size_t)s.n, sizeof *cluster, &err);
    assert_non_null(cluster);
    dq_calib_text t = {.ids = s.ids, .n_ids = s.cu[s.n], .cu = s.cu, .n_seq = s.n, .ctx = 512};
    assert_int_equal(json_array_size(list), s.n);
    for (int64_t i = 0; i < s.n; i++) {
        cluster[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
        if (cluster[i] >= t.n_clusters) t.n_clusters = cluster[i] + 1;
    }
    t.unit = t.cluster = cluster;
    t.n_units = t.n_clusters;
    return t;
}

/* ----- units ----- */

/* Another order of sums in float32 moves the logits of the vocabulary by `noise` or so, and with it a KLD k per token by sqrt(2 k)
 * times as much, as k is the square of a change. The same of the residual stream, of its own size. */
static const double noise = 2e-5, stream_noise = 2e-6;

static void check_unit(const dq_sensitivity_unit *u, const int64_t *scored, const json_t *want)
{
    char name[80], what[120];
    size_t c;
    json_t *x;
    snprintf(name, sizeof name, "%s, layer %d head %d map %d", dq_sensitivity_name[u->kind],
             u->layer, u->head, u->map);
    assert_string_equal(dq_sensitivity_name[u->kind],
                        json_string_value(json_object_get(want, "kind")));
    assert_int_equal(u->layer, json_integer_value(json_object_get(want, "layer")));
    assert_int_equal(u->head, json_integer_value(json_object_get(want, "head")));
    assert_int_equal(u->map, json_integer_value(json_object_get(want, "map")));
    json_array_foreach(json_object_get(want, "kld"), c, x)
    {
        const double kld = json_number_value(x);
        snprintf(what, sizeof what, "%s, KLD of cluster %zu", name, c);
        near(u->sums[c], kld, 0, noise * sqrt(2 * kld * (double)scored[c]), what);
    }
    const double local = number(want, "local");
    snprintf(what, sizeof what, "%s, local error", name);
    near(u->local, local, 0, 2 * stream_noise * sqrt(local), what);
}

/* ----- forecast ----- */

enum { AT_4 = 2 }; /* of dq_forecast_bits */

typedef double of_grid(const void *x, int width, dq_granularity g);

static double predicted(const void *x, int w, dq_granularity g)
{
    return dq_forecast_predicted(x, dq_forecast_bits[w], g);
}
static double measured(const void *x, int w, dq_granularity g)
{
    return dq_forecast_measured(x, w, g);
}
static double map_error(const void *x, int w, dq_granularity g)
{
    return dq_forecast_map_error(x, w, g);
}
static double cancellation(const void *x, int w, dq_granularity g)
{
    return dq_forecast_cancellation(x, w, g);
}

/* Of 8 and 6 bits codes lie so near each other that some logit lies on two sides of a tie, which leaves its own error as large as
 * it is, but not what the softmax makes of it beside the errors of others. */
static void check_grid(of_grid *f, const void *x, const json_t *want, const char *key, size_t at,
                       bool of_maps)
{
    const json_t *grid = json_object_get(want, key);
    char what[120];
    assert_int_equal(json_array_size(grid), DQ_FORECAST_WIDTHS);
    for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) {
        const double relative = !of_maps || dq_forecast_bits[w] < 6 ? 1e-5
                                : dq_forecast_bits[w] == 6          ? 1e-3
                                                                    : 5e-3;
        for (int g = 0; g < DQ_GRANULARITIES; g++) {
            const json_t *y = json_array_get(json_array_get(grid, (size_t)w), (size_t)g);
            assert_true(json_is_real(y));
            snprintf(what, sizeof what, "%s %zu, %d bits %s", key, at, dq_forecast_bits[w],
                     dq_granularity_name[g]);
            near(f(x, w, (dq_granularity)g), json_number_value(y), relative, 0, what);
        }
    }
}

static void check_logits(const dq_forecast_logits *x, const json_t *want, size_t at)
{
    assert_int_equal(x->n, json_integer_value(json_object_get(want, "n")));
    near(sqrt(x->sum2 / (double)x->n), number(want, "rms"), 1e-5, 0, "rms");
    check_grid(predicted, x, want, "predicted", at, false);
    check_grid(measured, x, want, "measured", at, false);
}

static void check_maps(const dq_forecast_maps *x, const json_t *want, size_t at)
{
    check_grid(map_error, x, want, "error", at, true);
    if (json_object_get(want, "cancellation"))
        check_grid(cancellation, x, want, "cancellation", at, true);
}

static void check_forecast(const dq_forecast *f, const json_t *want)
{
    size_t i;
    json_t *x;
    assert_int_equal(json_array_size(json_object_get(want, "heads")), f->n_layers * f->n_q);
    assert_int_equal(json_array_size(json_object_get(want, "outputs")), f->n_layers * f->n_out);
    assert_int_equal(json_array_size(json_object_get(want, "clusters")), f->n_clusters);
    json_array_foreach(json_object_get(want, "heads"), i, x) check_logits(&f->logits[i], x, i);
    json_array_foreach(json_object_get(want, "outputs"), i, x) check_maps(&f->maps[i], x, i);
    json_array_foreach(json_object_get(want, "clusters"), i, x)
    {
        check_logits(&f->logits_of[i], x, i);
        check_maps(&f->maps_of[i], x, i);
    }
}

/* The predicted error of a unit's logits, of what is predicted of its query heads; head o of DiffLlama has heads o and o + n / 2. */
static void check_logit_error(const dq_sensitivity_unit *u, const dq_forecast *f,
                              const json_t *want, dq_granularity g)
{
    const json_t *heads = json_object_get(want, "heads");
    double sum = 0, n = 0;
    for (int h = 0; h < f->n_q; h++) {
        const json_t *x = json_array_get(heads, (size_t)(u->layer * f->n_q + h));
        const double one = json_number_value(
            json_array_get(json_array_get(json_object_get(x, "predicted"), AT_4), g));
        if (u->head >= 0 && h % f->n_out != u->head) continue;
        if (u->map >= 0 && h / f->n_out != u->map) continue;
        sum += one * one * number(x, "n");
        n += number(x, "n");
    }
    near(u->logit_error, sqrt(sum / n), 1e-5, 0, "logit error of a unit");
}

/* ----- runs ----- */

static const char *beside(void)
{
    const char *folder = getenv("TMPDIR");
    dq_err err = {0};
    const char *path = dq_textf(given_arena(), &err, "%s/dq", folder && *folder ? folder : "/tmp");
    assert_non_null(path);
    return path;
}

static void run(dq_sensitivity *s, const dq_model *m, const dq_calib_text *t, unsigned kinds,
                dq_granularity g, int threads)
{
    dq_err err = {0};
    dq_backend *b = given_backend(threads);
    const dq_sensitivity_settings set = {.kinds = kinds,
                                         .bits = 4,
                                         .granularity = g,
                                         .group = 64,
                                         .kv = dq_kv_config_plain,
                                         .backend = b,
                                         .beside = beside()};
    *s = (dq_sensitivity){.n = 0};
    must(dq_sensitivity_new(s, m, t, &set, given_arena(), &err), &err);
    must(dq_sensitivity_run(s, &err), &err);
    dq_backend_close(b);
}

static const unsigned of_logits =
    1u << DQ_SENSITIVITY_LAYERS | 1u << DQ_SENSITIVITY_HEADS | 1u << DQ_SENSITIVITY_MAPS;

static void check_model(const json_t *model, int threads)
{
    const dq_calib_text t = text_of(model);
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/%s",
                              json_string_value(json_object_get(model, "model")));
    dq_err err = {0};
    const int64_t *scored = dq_plan_reference_scored(&t, given_arena(), &err);
    assert_non_null(scored);
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        const json_t *units =
            json_object_get(json_object_get(model, "units"), dq_granularity_name[g]);
        dq_sensitivity s;
        if (!units) continue;
        run(&s, m, &t, of_logits, (dq_granularity)g, threads);
        assert_int_equal(s.n, json_array_size(units));
        assert_int_equal(s.n_known, 0);
        for (int64_t i = 0; i < s.n; i++) {
            check_unit(&s.unit[i], scored, json_array_get(units, (size_t)i));
            check_logit_error(&s.unit[i], &s.forecast, json_object_get(model, "forecast"),
                              (dq_granularity)g);
        }
        check_forecast(&s.forecast, json_object_get(model, "forecast"));
    }
    dq_model_close(m);
}

TEST(against_transformers)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/rounding_oracle.json"), *x;
    size_t i;
    assert_int_equal(json_array_size(root), 3);
    json_array_foreach(root, i, x) check_model(x, 1 + (int)i);
    json_decref(root);
}

/* ----- beside the runner ----- */

/* KLD of the scored tokens of a sequence, of two runners' final states. */
static double kld_of(const dq_model *m, dq_backend *b, const float *plain, dq_mat other, int64_t n)
{
    const int64_t first = dq_plan_reference_first(n) - 1, count = n - 1 - first;
    dq_err err = {0};
    double *kld = dq_alloc(given_arena(), (size_t)count, sizeof *kld, &err), sum = 0;
    union {
        const float *in;
        float *out;
    } p = {plain + first * m->dim};
    const dq_mat ref = {.p = p.out, .rows = count, .cols = m->dim};
    assert_non_null(kld);
    b->ops->kld(b, kld, ref, &m->head, DQ_NUM_F32, dq_layer_steps_rows(other, first, n - 1),
                &m->head, DQ_NUM_F32);
    must(dq_backend_sync(b, &err), &err);
    for (int64_t i = 0; i < count; i++) sum += kld[i];
    return sum;
}

/* The final states of the text's only sequence; a copy of them where plain is not NULL, else the KLD against it. */
static double pass(const dq_model *m, dq_backend *b, const dq_calib_text *t, const dq_kv_spec *kv,
                   dq_logit_spec logit, float *copy, const float *plain)
{
    dq_err err = {0};
    dq_runner *r;
    dq_mat h;
    int32_t *pos = dq_alloc(given_arena(), (size_t)t->n_ids, sizeof *pos, &err);
    assert_non_null(pos);
    for (int64_t i = 0; i < t->n_ids; i++) pos[i] = (int32_t)i;
    must(dq_runner_new(&r, m, b, kv, &err), &err);
    const int32_t seq = b->ops->kv_seq_new(b, dq_runner_kv(r));
    const dq_batch batch = {
        .n_seq = 1, .n_rows = t->n_ids, .cu_rows = t->cu, .seq = &seq, .ids = t->ids, .pos = pos};
    const dq_pass how = {.logit = logit, .math = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32}};
    must(dq_runner_pass(r, &batch, &how, &h, &err), &err);
    double kld = 0;
    if (copy)
        memcpy(copy, h.p, (size_t)(h.rows * h.cols) * sizeof *copy);
    else
        kld = kld_of(m, b, plain, h, t->n_ids);
    dq_runner_free(r);
    return kld;
}

/* A model that ends after its first layer, in which a layer's unit is all that a runner rounds. */
static void check_only_layer(const dq_model *m, const dq_calib_text *t)
{
    dq_err err = {0};
    dq_backend *b = given_backend(2);
    float *plain = dq_alloc(given_arena(), (size_t)(t->n_ids * m->dim), sizeof *plain, &err);
    assert_non_null(plain);
    pass(m, b, t, &dq_kv_plain, dq_logit_plain, plain, NULL);
    for (int kind = 0; kind <= DQ_SENSITIVITY_VALUES; kind++) {
        const bool logits = kind == DQ_SENSITIVITY_LAYERS;
        for (int g = 0; g < (logits ? DQ_GRANULARITIES : 1); g++) {
            dq_kv_config c = dq_kv_config_plain;
            dq_kv_spec kv;
            dq_sensitivity s;
            if (kind == DQ_SENSITIVITY_HEADS || kind == DQ_SENSITIVITY_MAPS) continue;
            if (kind == DQ_SENSITIVITY_KEYS) c.k_bits = 4;
            if (kind == DQ_SENSITIVITY_VALUES) c.v_bits = 4;
            must(dq_model_kv_spec(&kv, &c, m, DQ_NUM_F32, &err), &err);
            const dq_logit_spec four = {4, (dq_granularity)g};
            const double want = pass(m, b, t, &kv, logits ? four : dq_logit_plain, NULL, plain);
            run(&s, m, t, 1u << kind, (dq_granularity)g, 1);
            assert_int_equal(s.n, 1);
            /* a query within a window shorter than a page reads no codes */
            const bool codes = logits || !m->layer[0].attn.window;
            assert_true(codes ? want > 1e-6 : want >= 0);
            near(s.unit[0].sums[0], want, 1e-12, 0, dq_sensitivity_name[kind]);
            assert_true(isnan(s.unit[0].interval.low)); /* of one window there is none */
        }
    }
    dq_backend_close(b);
}

TEST(as_the_runner_rounds)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/rounding_oracle.json"), *x;
    size_t i;
    json_array_foreach(root, i, x)
    {
        dq_calib_text t = text_of(x);
        const int64_t cu[2] = {0, t.n_ids};
        t.cu = cu;
        t.n_seq = t.n_units = t.n_clusters = 1;
        dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/%s",
                                  json_string_value(json_object_get(x, "model")));
        const int n_layers = m->n_layers;
        m->n_layers = 1;
        check_only_layer(m, &t);
        m->n_layers = n_layers;
        dq_model_close(m);
    }
    json_decref(root);
}

/* ----- threads ----- */

TEST(any_number_of_threads)
{
    const unsigned all = (1u << DQ_SENSITIVITY_KINDS) - 1;
    json_t *root = given_json(DQ_TEST_DIR "/golden/rounding_oracle.json");
    const json_t *x = json_array_get(root, 1);
    const dq_calib_text t = text_of(x);
    dq_model *m = given_model(DQ_SOURCE_DIR "/calib/pair/%s", "diffllama");
    dq_sensitivity one, more;
    run(&one, m, &t, all, DQ_GRANULARITY_TENSOR, 1);
    run(&more, m, &t, all, DQ_GRANULARITY_TENSOR, 3);
    assert_int_equal(one.n, more.n);
    for (int64_t i = 0; i < one.n; i++) {
        assert_memory_equal(one.unit[i].sums, more.unit[i].sums,
                            (size_t)t.n_clusters * sizeof(double));
        assert_memory_equal(&one.unit[i].local, &more.unit[i].local, sizeof(double));
    }
    assert_memory_equal(one.forecast.logits, more.forecast.logits,
                        (size_t)(one.forecast.n_layers * one.forecast.n_q) *
                            sizeof *one.forecast.logits);
    assert_memory_equal(one.forecast.maps, more.forecast.maps,
                        (size_t)(one.forecast.n_layers * one.forecast.n_out) *
                            sizeof *one.forecast.maps);
    dq_model_close(m);
    json_decref(root);
}
