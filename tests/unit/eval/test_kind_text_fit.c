/* Power laws with an offset: exact ones are found, and those of tests/golden/fit.py with their jackknife errors are SciPy's.
 * SPDX-License-Identifier: MIT */
#include "eval/kind_text.c" /* what is private there */

#include "base/json.h"
#include "tests/rigs/given.h"

#include "tests/rigs/suite.h"
#include <math.h>

static void near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within)) fail_msg("got %.17g, want %.17g", got, want);
}

TEST(test_points)
{
    int64_t at[DQ_TEXT_FIT_POINTS];
    int n = fit_points(at, 16, 128);
    assert_int_equal(n, 25);
    for (int i = 0; i < n; i++) assert_true(i == 0 || at[i] > at[i - 1]);
    assert_true(at[0] == 16 && at[8] == 32 && at[16] == 64 && at[24] == 128);
    assert_int_equal(at[1], 17); /* 17.4 */
    n = fit_points(at, 16, 100);
    assert_true(at[n - 1] == 100 && at[n - 2] < 100 && at[n - 2] > 90);
    assert_int_equal(fit_points(at, 16, 16), 1);
    assert_true(fit_points(at, 1, INT64_C(1) << 40) < DQ_TEXT_FIT_POINTS); /* as long as any text */
}

TEST(test_exact_laws)
{
    static const double law[][3] = {{3, -0.5, 2}, {0.2, -3, 1}, {-1.5, -0.2, 4}, {40, -0.03, -20}};
    int64_t at[DQ_TEXT_FIT_POINTS];
    const int n = fit_points(at, 16, 900);
    for (size_t k = 0; k < sizeof law / sizeof *law; k++) {
        double curve[2 * DQ_TEXT_FIT_POINTS];
        dq_text_fit o;
        dq_err err = {0};
        for (int i = 0; i < 2 * n; i++)
            curve[i] = law[k][0] * pow((double)at[i % n], law[k][1]) + law[k][2];
        assert_int_equal(fit_of(&o, curve, 2, at, n, &err), DQ_OK);
        assert_true(o.there);
        for (int p = 0; p < 3; p++) {
            near(o.parameter[p].value, law[k][p], 2e-3 * fabs(law[k][p]));
            near(o.parameter[p].std_err, 0, 1e-9);
        }
        assert_true(o.residual < 1e-6);
    }
}

static void check_case(const json_t *want)
{
    const json_t *curves = json_object_get(want, "curves"), *list;
    const json_t *parameters = json_object_get(want, "parameters");
    int64_t at[DQ_TEXT_FIT_POINTS], first, last;
    double curve[16 * DQ_TEXT_FIT_POINTS];
    dq_err err = {0};
    dq_text_fit o;
    size_t d;
    assert_int_equal(dq_json_int(&first, want, "first", 1, INT64_MAX, NULL, &err), DQ_OK);
    assert_int_equal(dq_json_int(&last, want, "last", 1, INT64_MAX, NULL, &err), DQ_OK);
    const int n = fit_points(at, first, last);
    assert_int_equal(n, json_array_size(json_object_get(want, "at")));
    for (int i = 0; i < n; i++)
        assert_int_equal(
            at[i], json_integer_value(json_array_get(json_object_get(want, "at"), (size_t)i)));
    json_array_foreach(curves, d, list)
    {
        for (int i = 0; i < n; i++)
            curve[(int)d * n + i] = json_number_value(json_array_get(list, (size_t)i));
    }
    const int64_t documents = (int64_t)json_array_size(curves);
    assert_int_equal(fit_of(&o, curve, documents, at, n, &err), DQ_OK);
    assert_int_equal(o.there, json_is_array(parameters));
    for (size_t p = 0; o.there && p < 3; p++) {
        const double se = json_number_value(json_array_get(json_object_get(want, "stderr"), p));
        const double x = json_number_value(json_array_get(parameters, p));
        near(o.parameter[p].value, x, 1e-4 * se);
        near(o.parameter[p].std_err, se, 1e-4 * se);
        const dq_interval i = dq_interval_t(x, se, documents);
        near(o.interval[p].low, i.low, 1e-3 * se);
        near(o.interval[p].high, i.high, 1e-3 * se);
    }
    if (o.there) near(o.residual, json_number_value(json_object_get(want, "residual")), 1e-9);
}

TEST(test_golden)
{
    json_t *all = given_json(DQ_TEST_DIR "/golden/fit/golden.json"), *one;
    size_t i;
    assert_int_equal(json_array_size(json_object_get(all, "cases")), 4);
    json_array_foreach(json_object_get(all, "cases"), i, one) check_case(one);
    json_decref(all);
}

/* One document has parameters without errors; three points leave nothing over. */
TEST(test_what_lacks)
{
    int64_t at[DQ_TEXT_FIT_POINTS];
    const int n = fit_points(at, 16, 900);
    double curve[DQ_TEXT_FIT_POINTS];
    dq_text_fit o;
    dq_err err = {0};
    for (int i = 0; i < n; i++) curve[i] = 3 / sqrt((double)at[i]) + 2;
    assert_int_equal(fit_of(&o, curve, 1, at, n, &err), DQ_OK);
    assert_true(o.there && isnan(o.parameter[1].std_err) && isnan(o.interval[1].low));
    assert_int_equal(fit_of(&o, curve, 1, at, 3, &err), DQ_OK);
    assert_false(o.there);
}
