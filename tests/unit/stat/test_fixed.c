/* Sums in any order, against sums in more digits.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "stat/stat.h"

#include <math.h>

static dq_fixed sum_of(const double *x, int n, int step)
{
    dq_fixed sum = {{0}};
    for (int i = 0; i < n; i++) dq_fixed_add(&sum, x[i * step % n]);
    return sum;
}

TEST(order_does_not_matter)
{
    enum { N = 997 };
    double x[N];
    long double want = 0;
    dq_random r = dq_random_of(5, 1);
    for (int i = 0; i < N; i++) {
        x[i] = ldexp((double)dq_random_below(&r, 1 << 30) / (1 << 30) - 0.3, i % 90 - 40);
        want += (long double)x[i];
    }
    const dq_fixed sum = sum_of(x, N, 1);
    assert_true(fabs(dq_fixed_value(&sum) - (double)want) <= 1e-15 * fabs((double)want));
    for (int step = 2; step < 50; step++) {
        const dq_fixed other = sum_of(x, N, step);
        assert_memory_equal(&sum, &other, sizeof sum);
    }
    dq_fixed parts = sum_of(x, 300, 7);
    const dq_fixed rest = sum_of(x + 300, N - 300, 5);
    dq_fixed_merge(&parts, &rest);
    assert_memory_equal(&sum, &parts, sizeof sum);
}

TEST(single_values)
{
    static const double x[] = {0,     1,    -1,    0.1,     -0.1,
                               1e-20, 3e37, -3e37, 1.5e-38, 123456789.123456789};
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        dq_fixed f = {{0}};
        dq_fixed_add(&f, x[i]);
        assert_true(fabs(dq_fixed_value(&f) - x[i]) <= ldexp(1, -128));
        dq_fixed_add(&f, -x[i]);
        assert_true(dq_fixed_value(&f) == 0);
    }
}

TEST(what_does_not_fit_is_not_a_number)
{
    const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1e39, -1e300};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dq_fixed f = {{0}}, g = {{0}};
        dq_fixed_add(&f, bad[i]);
        dq_fixed_add(&f, 1);
        assert_true(isnan(dq_fixed_value(&f)));
        dq_fixed_add(&g, 2);
        dq_fixed_merge(&g, &f);
        assert_true(isnan(dq_fixed_value(&g)));
    }
    dq_fixed f = {{0}};
    for (int i = 0; i < 100; i++) dq_fixed_add(&f, 1e37);
    assert_true(isnan(dq_fixed_value(&f)));
    f = (dq_fixed){{0}};
    for (int i = 0; i < 100; i++) dq_fixed_add(&f, -1e37);
    assert_true(isnan(dq_fixed_value(&f)));
    f = (dq_fixed){{0}};
    dq_fixed_add(&f, 1e-60); /* below the last place */
    assert_true(dq_fixed_value(&f) == 0);
}
