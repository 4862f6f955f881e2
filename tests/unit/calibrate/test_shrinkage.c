/* test_shrinkage: shares and ridges of corrections: what inputs say of outputs is kept whole, chance is thrown away, and of a mixture
 * what plain sums over the halves say; both halves become sums over all rows; the same bits for any number of threads.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/grid.h"
#include "tests/rigs/suite.h"

#include "calibrate/calibrate.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_AT_ONCE = 1 << 20 };

enum { N = 70, M = 9, ROWS = 600 };

static uint64_t state = 88172645463325252u;
static float uniform(void) /* -1 .. 1 */
{
    return (float)((double)(xorshift(&state) >> 11) / 4503599627370496.0 - 1);
}

/* Outputs 0 .. 2 are a sum of two inputs, 3 .. 5 of chance alone, 6 .. 8 both. */
static void make(float *x, float *lacks)
{
    state = 88172645463325252u;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++) x[r * N + i] = uniform();
        for (int i = 0; i < M; i++) {
            const float said = x[r * N + i] - x[r * N + i + 20] / 2, chance = 4 * uniform();
            lacks[r * M + i] = (i / 3 != 1 ? said : 0) + (i / 3 != 0 ? chance : 0);
        }
    }
}

typedef struct found {
    dq_shrinkage s;
    dq_hessian *h;
    dq_cross *c;
    double ridge;
} found;

static void found_of(found *f, int rows, int threads)
{
    static float x[ROWS * N], lacks[ROWS * M];
    dq_err err = {0};
    make(x, lacks);
    omp_set_num_threads(threads);
    dq_backend *b = given_backend(threads);
    assert_int_equal(dq_shrinkage_new(&f->s, M, N, ROWS_AT_ONCE, &err), DQ_OK);
    assert_int_equal(dq_hessian_new(&f->h, N, ROWS_AT_ONCE, &err), DQ_OK);
    assert_int_equal(dq_cross_new(&f->c, M, N, ROWS_AT_ONCE, &err), DQ_OK);
    dq_hessian_begin(f->h, N);
    dq_cross_begin(f->c, M, N);
    dq_shrinkage_begin(&f->s, M, N);
    assert_int_equal(
        dq_shrinkage_add_inputs(&f->s, f->h, b, (dq_mat){x, rows, N}, DQ_TILE_SUMS_NO_PIECES, &err),
        DQ_OK);
    assert_int_equal(dq_shrinkage_add_lacks(&f->s, f->c, b, (dq_mat){lacks, rows, M},
                                            (dq_mat){x, rows, N}, DQ_TILE_SUMS_NO_PIECES, &err),
                     DQ_OK);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    assert_int_equal(dq_shrinkage_find(&f->ridge, &f->s, f->h, f->c, "x", &err), DQ_OK);
    dq_backend_close(b);
}

static void found_free(found *f)
{
    dq_shrinkage_free(&f->s);
    dq_hessian_free(f->h);
    dq_cross_free(f->c);
}

TEST(chance_is_thrown_away_and_the_rest_is_kept)
{
    found f;
    found_of(&f, ROWS, 2);
    assert_true(f.ridge >= 0.01 && f.ridge <= 5);
    for (int i = 0; i < 3; i++) {
        assert_true(f.s.share[i] > 0.99);
        assert_true(f.s.share[i + 3] < 0.35);
        assert_true(f.s.share[i + 6] > f.s.share[i + 3] && f.s.share[i + 6] < 1);
    }
    found_free(&f);
}

/* The share of an output by plain sums over the rows of both halves, at the least ridge. */
static double plain_share(const float *x, const float *lacks, int output)
{
    static double a[N][N + 1], h[N][N];
    const int half = ROWS / 2;
    double trace = 0, inner = 0, energy = 0;
    memset(a, 0, sizeof a);
    memset(h, 0, sizeof h);
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++) {
            const double xi = (double)x[r * N + i];
            for (int j = 0; j < N; j++) {
                const double both = xi * (double)x[r * N + j];
                if (r < half)
                    a[i][j] += both / half;
                else
                    h[i][j] += both;
            }
            if (r < half) a[i][N] += xi * (double)lacks[r * M + output] / half;
        }
    }
    for (int i = 0; i < N; i++) trace += a[i][i] / N;
    for (int i = 0; i < N; i++) a[i][i] += 0.01 * trace;
    for (int p = 0; p < N; p++) { /* Gauss-Jordan */
        for (int i = 0; i < N; i++) {
            const double by = i == p ? 0 : a[i][p] / a[p][p];
            for (int j = p; j <= N; j++) a[i][j] -= by * a[p][j];
        }
    }
    for (int i = 0; i < N; i++) {
        const double k = a[i][N] / a[i][i];
        for (int r = half; r < ROWS; r++)
            inner += k * (double)lacks[r * M + output] * (double)x[r * N + i];
        for (int j = 0; j < N; j++) energy += k * h[i][j] * a[j][N] / a[j][j];
    }
    const double share = 1.3 * fmax(0, fmin(1, inner / energy));
    return 2 * fmin(1, share) / (1 + fmin(1, share));
}

TEST(shares_are_those_of_plain_sums)
{
    static float x[ROWS * N], lacks[ROWS * M];
    found f;
    make(x, lacks);
    found_of(&f, ROWS, 1);
    assert_true(f.ridge == 0.01); /* inputs of one size: no other is clearly better */
    for (int i = 0; i < M; i++) assert_true(fabs(f.s.share[i] - plain_share(x, lacks, i)) < 1e-4);
    found_free(&f);
}

TEST(sums_are_of_all_rows)
{
    static float x[ROWS * N], lacks[ROWS * M];
    found f;
    make(x, lacks);
    found_of(&f, ROWS, 2);
    assert_int_equal(f.h->rows, ROWS);
    assert_int_equal(f.c->rows, ROWS);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = 0;
            for (int r = 0; r < ROWS; r++) sum += (double)x[r * N + i] * (double)x[r * N + j];
            assert_true(fabs(f.h->a[i * f.h->ld + j] - sum) < 1e-3);
        }
        double sum = 0;
        for (int r = 0; r < ROWS; r++) sum += (double)x[r * N + i] * (double)lacks[r * M + 4];
        assert_true(fabs(f.c->c[4 * f.c->ld + i] - sum) < 1e-3);
    }
    found_free(&f);
}

/* Of one row there is no half to judge by. */
TEST(one_row_corrects_nothing)
{
    found f;
    found_of(&f, 1, 1);
    for (int i = 0; i < M; i++) assert_true(f.s.share[i] == 0);
    assert_int_equal(f.h->rows, 1);
    found_free(&f);
}

TEST(threads_change_no_bit)
{
    found one, three;
    found_of(&one, ROWS, 1);
    found_of(&three, ROWS, 3);
    assert_true(one.ridge == three.ridge);
    assert_memory_equal(one.s.share, three.s.share, M * sizeof(double));
    found_free(&one);
    found_free(&three);
}
