/* test_tile_sums: sums of products of two activations hold the rows that a call is told to add, and no others.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "calibrate/calibrate.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 2500, M = 300, N = 40 };

static float x[ROWS * M], a[ROWS * M];

static bool is_taken(int64_t row, dq_tile_sums_rows which)
{
    const int64_t begin = row - row % which.piece, left = ROWS - begin,
                  half = (left < which.piece ? left : which.piece) / 2;
    if (which.half == DQ_ROWS_FIRST) return row < begin + half;
    return which.half == DQ_ROWS_ALL || row >= begin + half;
}

static void check(bool lower, dq_tile_sums_rows which)
{
    dq_err err = {0};
    dq_tile_sums s;
    const int64_t n = lower ? M : N;
    int64_t rows, want_rows = 0;
    dq_backend *b = given_backend(2);
    double *want = calloc((size_t)(M * n), sizeof *want);
    assert_int_equal(dq_tile_sums_new(&s, M, n, lower, ROWS, &err), DQ_OK);
    s.c = calloc((size_t)(M * n), sizeof *s.c);
    s.m = M;
    s.n = s.ld = n;
    for (int64_t r = 0; r < ROWS; r++) {
        if (!is_taken(r, which)) continue;
        want_rows++;
        for (int64_t i = 0; i < M; i++) {
            for (int64_t k = 0; k < n; k++)
                want[i * n + k] += (double)(lower ? x : a)[r * M + i] * (double)x[r * n + k];
        }
    }
    const dq_mat right = {x, ROWS, n}, left = {lower ? x : a, ROWS, M};
    assert_int_equal(dq_tile_sums_add(&s, b, left, right, which, &rows, &err), DQ_OK);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    assert_int_equal(rows, want_rows);
    for (int64_t i = 0; i < M; i++) {
        for (int64_t k = 0; k < n; k++) {
            const double got = s.c[i * n + k], to = lower && k > i ? 0 : want[i * n + k];
            assert_true(fabs(got - to) < 2e-3);
        }
    }
    free(s.c);
    free(want);
    dq_tile_sums_free(&s);
    dq_backend_close(b);
}

TEST(rows_of_a_call_are_added)
{
    static const dq_tile_sums_half halves[] = {DQ_ROWS_ALL, DQ_ROWS_FIRST, DQ_ROWS_SECOND};
    for (int i = 0; i < ROWS * M; i++) {
        x[i] = (float)((i * 7919L % 1000) - 500) / 500;
        a[i] = (float)((i * 104729L % 1000) - 500) / 500;
    }
    for (int i = 0; i < 3; i++) {
        check(true, (dq_tile_sums_rows){halves[i], DQ_TILE_SUMS_NO_PIECES});
        check(false, (dq_tile_sums_rows){halves[i], DQ_TILE_SUMS_NO_PIECES});
        check(true, (dq_tile_sums_rows){halves[i], DQ_TILE_SUMS_ROWS});
        check(false, (dq_tile_sums_rows){halves[i], DQ_TILE_SUMS_ROWS});
    }
}

/* Pieces that would need more products at a time than there is memory for, and more rows than were spoken of. */
TEST(calls_are_as_large_as_spoken_of)
{
    dq_err err = {0};
    dq_tile_sums s;
    int64_t rows;
    dq_backend *b = given_backend(1);
    double c[N * N] = {0};
    assert_int_equal(dq_tile_sums_new(&s, N, N, true, ROWS, &err), DQ_OK);
    s.c = c;
    s.m = s.n = s.ld = N;
    const dq_mat more = {x, ROWS + 1, N}, right = {x, ROWS, N};
    const dq_tile_sums_rows all = {DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES}, odd = {DQ_ROWS_ALL, 10};
    assert_int_equal(dq_tile_sums_add(&s, b, more, more, all, &rows, &err), DQ_BUG);
    err = (dq_err){0};
    assert_int_equal(dq_tile_sums_add(&s, b, right, right, odd, &rows, &err), DQ_BUG);
    dq_tile_sums_free(&s);
    dq_backend_close(b);
}
