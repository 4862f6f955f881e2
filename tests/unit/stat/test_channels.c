/* Tables of channels, and moments, against plain loops; merges in any order.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/random.h"
#include "stat/tally.c" /* what is private there */

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 203, COLS = 131, SEQS = 3 };

typedef struct rows {
    float x[SEQS * ROWS * COLS];
} rows;

static dq_token_class class_of(int row)
{
    return row == 0 ? DQ_TOKEN_FIRST : row % 50 == 7 ? DQ_TOKEN_SINK : DQ_TOKEN_ORDINARY;
}

static void fill(rows *r)
{
    dq_random g = dq_random_of(11, 2);
    for (int i = 0; i < SEQS * ROWS * COLS; i++) /* few values: many are equal */
        r->x[i] = (float)((int)dq_random_below(&g, 41) - 20) / 4;
    r->x[5 * COLS + 3] = NAN;
    r->x[9 * COLS + 4] = -INFINITY;
    r->x[(ROWS + 8) * COLS + 130] = -77.5f;
}

static void add_rows(dq_channels *c, const rows *r, int seq, int64_t first_col, int64_t end_col)
{
    for (int row = 0, end; row < ROWS; row = end) {
        for (end = row + 1; end < ROWS && class_of(end) == class_of(row);) end++;
        dq_channels_add(c, class_of(row), r->x + ((int64_t)seq * ROWS + row) * COLS, end - row,
                        first_col, end_col, seq, row);
        if (first_col == 0) c->rows[class_of(row)] += end - row;
    }
}

static dq_channels new_channels(void)
{
    dq_channels c;
    dq_err err = {0};
    assert_int_equal(dq_channels_init(&c, COLS, &err), DQ_OK);
    return c;
}

static dq_channels all_rows(const rows *r)
{
    dq_channels c = new_channels();
    for (int seq = 0; seq < SEQS; seq++) {
        add_rows(&c, r, seq, 0, 70);
        add_rows(&c, r, seq, 70, COLS);
    }
    return c;
}

TEST(every_channel)
{
    rows *r = malloc(sizeof *r);
    fill(r);
    dq_channels c = all_rows(r);
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        for (int col = 0; col < COLS; col++) {
            const dq_channel *at = &c.of[class * COLS + col];
            double sum2 = 0, max = 0;
            int64_t n = 0, place = 0;
            for (int i = 0; i < SEQS * ROWS; i++) {
                const double x = fabs((double)r->x[i * COLS + col]);
                if ((int)class_of(i % ROWS) != class) continue;
                n++;
                if (!isfinite(x)) continue;
                sum2 += x * x;
                if (x > max) place = i;
                max = fmax(max, x);
            }
            assert_int_equal(c.rows[class], n);
            assert_true((double)at->max == max);
            if (max > 0) assert_int_equal((int64_t)at->seq * ROWS + at->row, place);
            assert_true(fabs(dq_channels_rms(&c, class, col) - sqrt(sum2 / (double)n)) < 1e-12);
        }
    }
    dq_channels_free(&c);
    free(r);
}

TEST(merged_by_bytes)
{
    rows *r = malloc(sizeof *r);
    dq_err err = {0};
    fill(r);
    dq_channels whole = all_rows(r), merged = new_channels();
    for (int seq = SEQS - 1; seq >= 0; seq--) {
        dq_strbuf bytes = {0};
        dq_err cut = {0};
        dq_channels part = new_channels(), spare = new_channels();
        add_rows(&part, r, seq, 0, COLS);
        assert_int_equal(dq_channels_put(&part, &bytes, &err), DQ_OK);
        const char *at = bytes.s;
        assert_int_equal(dq_channels_merge_bytes(&merged, &at, bytes.s + bytes.n, &err), DQ_OK);
        assert_ptr_equal(at, bytes.s + bytes.n);
        for (size_t n = 0; n < bytes.n; n += 97) {
            at = bytes.s;
            cut = (dq_err){0};
            assert_int_equal(dq_channels_merge_bytes(&spare, &at, bytes.s + n, &cut), DQ_DAMAGED);
        }
        ((int64_t *)(void *)bytes.s)[0]++; /* of another table */
        at = bytes.s;
        cut = (dq_err){0};
        assert_int_equal(dq_channels_merge_bytes(&spare, &at, bytes.s + bytes.n, &cut), DQ_DAMAGED);
        dq_channels_free(&part);
        dq_channels_free(&spare);
        dq_block_free(bytes.s);
    }
    assert_memory_equal(whole.rows, merged.rows, sizeof whole.rows);
    assert_memory_equal(whole.of, merged.of, sizeof *whole.of * COLS * DQ_TOKEN_CLASSES);
    dq_channels_free(&whole);
    dq_channels_free(&merged);
    free(r);
}

TEST(moments)
{
    const float x[] = {1, -3, 3, 2};
    dq_moments m = {0}, other = {0}, both[2] = {{0}};
    assert_true(isnan(dq_moments_rms(&m)) && isnan(dq_moments_kurtosis0(&m)));
    raise_by_row(&m, 3, x, 4, (dq_place){1, 0, 0, 5, 10});
    assert_true(m.max == 3 && m.at.col == 11);
    raise_by_row(&m, 3, x + 2, 2, (dq_place){0, 0, 0, 5, 12}); /* as large, and before */
    assert_true(m.at.seq == 0 && m.at.col == 12);
    raise_by_row(&m, 3, x + 1, 2, (dq_place){0, 0, 0, 6, 11});
    assert_true(m.at.row == 5);
    m.n = 4;
    dq_fixed_add(&m.sum2, 1 + 9 + 9 + 4);
    dq_fixed_add(&m.sum4, 1 + 81 + 81 + 16);
    assert_true(fabs(dq_moments_rms(&m) - sqrt(23.0 / 4)) < 1e-15);
    assert_true(fabs(dq_moments_kurtosis0(&m) - 4 * 179.0 / 529) < 1e-15);
    other = m;
    other.at.seq = 7;
    for (int i = 0; i < 2; i++) {
        dq_moments_merge(&both[i], i ? &m : &other);
        dq_moments_merge(&both[i], i ? &other : &m);
    }
    assert_memory_equal(&both[0], &both[1], sizeof both[0]);
    assert_true(both[0].n == 8 && both[0].at.seq == 0);
}
