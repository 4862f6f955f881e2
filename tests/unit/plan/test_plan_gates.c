/* test_plan_gates: the fit of gates. A planted linear relation is found, the constant is not shrunk, what does not vary is left
 * alone, the solution makes the gradient of what it minimizes zero, and threads change no bit.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "plan/plan_cache.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { F = 21, ROWS = 900 };

static double next(dq_random *r)
{
    return (double)dq_random_next(r) / 0x1p63 - 1;
}

/* Features of different sizes, of which the 5th never varies; the last is 1. */
static void make(double *f, double *y, const double *weight, double noise)
{
    dq_random r = dq_random_of(11, 0);
    for (int t = 0; t < ROWS; t++) {
        y[t] = noise * next(&r);
        for (int i = 0; i < F; i++) {
            f[t * F + i] = i == F - 1 ? 1 : i == 5 ? 3 : 10 * i + (i + 1) * next(&r);
            y[t] += weight[i] * f[t * F + i];
        }
    }
}

static void fit(double *weight, const double *f, const double *y)
{
    double squares[F * F] = {0}, by[F] = {0};
    dq_plan_gates_sums s = {F, squares, by};
    dq_err err = {0};
    dq_plan_gates_add(&s, f, y, ROWS / 3);
    dq_plan_gates_add(&s, f + ROWS / 3 * F, y + ROWS / 3, ROWS - ROWS / 3);
    assert_int_equal(dq_plan_gates_solve(weight, &s, &err), DQ_OK);
}

TEST(a_planted_relation_is_found)
{
    static double f[ROWS * F], y[ROWS];
    double planted[F], found[F], error = 0, spread = 0;
    for (int i = 0; i < F; i++) planted[i] = i == 5 ? 0 : 0.3 * i - 2;
    make(f, y, planted, 0);
    fit(found, f, y);
    for (int t = 0; t < ROWS; t++) {
        double said = 0;
        for (int i = 0; i < F; i++) said += found[i] * f[t * F + i];
        error += (said - y[t]) * (said - y[t]);
        spread += y[t] * y[t];
    }
    assert_true(error < 1e-5 * spread);
    for (int i = 0; i < F - 1; i++)
        assert_true(fabs(found[i] - planted[i]) < 4e-3 * (1 + fabs(planted[i])));
    assert_true(found[5] == 0); /* exactly: it says nothing */
}

/* d/dw_i of the squared errors plus 1e-3 w_i^2 times the feature's own squares about its mean. */
TEST(the_solution_is_a_minimum)
{
    static double f[ROWS * F], y[ROWS];
    double planted[F] = {0}, w[F];
    for (int i = 0; i < F; i++) planted[i] = i % 3 - 1;
    make(f, y, planted, 20);
    fit(w, f, y);
    for (int i = 0; i < F; i++) {
        double slope = 0, size = 0, mean = 0, own = 0;
        for (int t = 0; t < ROWS; t++) mean += f[t * F + i] / ROWS;
        for (int t = 0; t < ROWS; t++) {
            double e = -y[t];
            for (int k = 0; k < F; k++) e += w[k] * f[t * F + k];
            slope += e * f[t * F + i];
            size += fabs(e * f[t * F + i]);
            own += (f[t * F + i] - mean) * (f[t * F + i] - mean);
        }
        if (i < F - 1 && i != 5) slope += 1e-3 * own * w[i];
        assert_true(fabs(slope) < 1e-8 * size);
    }
}

TEST(threads_change_nothing)
{
    static double f[ROWS * F], y[ROWS];
    double planted[F], one[F], three[F];
    for (int i = 0; i < F; i++) planted[i] = 1;
    make(f, y, planted, 1);
    omp_set_num_threads(1);
    fit(one, f, y);
    omp_set_num_threads(3);
    fit(three, f, y);
    assert_memory_equal(one, three, sizeof one);
}

TEST(nothing_to_fit_is_refused)
{
    double squares[4] = {0}, by[2] = {0}, w[2];
    const dq_plan_gates_sums s = {2, squares, by};
    dq_err err = {0};
    assert_int_equal(dq_plan_gates_solve(w, &s, &err), DQ_DAMAGED);
    squares[0] = squares[2] = by[0] = NAN;
    squares[3] = 4;
    err = (dq_err){0};
    assert_int_equal(dq_plan_gates_solve(w, &s, &err), DQ_DAMAGED);
}
