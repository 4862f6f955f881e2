/* channels: see channels.h. A step of rows and columns is reduced in registers: maxima in float, squares in double, in the order
 * of rows. Then each column's sum is added exactly, and a row is looked for only where the maximum has grown.
 * SPDX-License-Identifier: MIT */
#include "stat/channels.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { STEP_ROWS = 64, STEP_COLS = 64 };

const char *const dq_token_class_name[DQ_TOKEN_CLASSES] = {"ordinary", "sink", "first"};

dq_status dq_channels_init(dq_channels *c, int64_t cols, dq_err *err)
{
    *c = (dq_channels){.cols = cols};
    c->of = dq_block_new((size_t)cols * DQ_TOKEN_CLASSES, sizeof *c->of, err);
    return err->code;
}

void dq_channels_free(dq_channels *c)
{
    dq_block_free(c->of);
    *c = (dq_channels){0};
}

/* Takes a magnitude if it is larger, or as large and stands before. */
static void raise_to(dq_channel *to, float max, int32_t seq, int32_t row)
{
    const bool before = seq < to->seq || (seq == to->seq && row < to->row);
    if (max < to->max || (max <= to->max && (max <= 0 || !before))) return;
    to->max = max;
    to->seq = seq;
    to->row = row;
}

/* The first row with |x| = max in a column. */
static int64_t find_row(const float *x, int64_t n, int64_t ld, float max)
{
    for (int64_t r = 0; r < n; r++) {
        if (fabsf(x[r * ld]) >= max && fabsf(x[r * ld]) <= max) return r;
    }
    return 0;
}

static void add_step(dq_channel *to, const float *x, int64_t n, int64_t ld, int cols, int32_t seq,
                     int32_t row)
{
    float max[STEP_COLS] = {0};
    double sum[STEP_COLS] = {0};
    for (int64_t r = 0; r < n; r++) {
        const float *y = x + r * ld;
#pragma omp simd
        for (int i = 0; i < cols; i++) {
            const float size = fabsf(y[i]) <= FLT_MAX ? fabsf(y[i]) : 0.0f;
            max[i] = size > max[i] ? size : max[i];
            sum[i] += (double)size * (double)size;
        }
    }
    for (int i = 0; i < cols; i++) {
        dq_fixed_add(&to[i].sum2, sum[i]);
        if (max[i] >= to[i].max && max[i] > 0)
            raise_to(&to[i], max[i], seq, row + (int32_t)find_row(x + i, n, ld, max[i]));
    }
}

void dq_channels_add(dq_channels *c, dq_token_class class, const float *x, int64_t n, int64_t first,
                     int64_t end, int32_t seq, int32_t row)
{
    dq_channel *of = c->of + class * c->cols;
    for (int64_t col = first; col < end; col += STEP_COLS) {
        const int cols = end - col < STEP_COLS ? (int)(end - col) : STEP_COLS;
        for (int64_t r = 0; r < n; r += STEP_ROWS)
            add_step(of + col, x + r * c->cols + col, n - r < STEP_ROWS ? n - r : STEP_ROWS,
                     c->cols, cols, seq, row + (int32_t)r);
    }
}

dq_status dq_channels_put(const dq_channels *c, dq_strbuf *to, dq_err *err)
{
    DQ_TRY(dq_strbuf_add(to, (const char *)&c->cols, sizeof c->cols, err));
    DQ_TRY(dq_strbuf_add(to, (const char *)c->rows, sizeof c->rows, err));
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        if (c->rows[class] > 0)
            DQ_TRY(dq_strbuf_add(to, (const char *)(c->of + class * c->cols),
                                 (size_t)c->cols * sizeof *c->of, err));
    }
    return DQ_OK;
}

static bool merge(dq_channels *into, const char **at, const char *end)
{
    int64_t cols, rows[DQ_TOKEN_CLASSES];
    if (!dq_strbuf_take(&cols, sizeof cols, at, end) || cols != into->cols) return false;
    if (!dq_strbuf_take(rows, sizeof rows, at, end)) return false;
    for (int class = 0; class < DQ_TOKEN_CLASSES; class ++) {
        dq_channel *to = into->of + class * cols;
        if (!dq_fixed_is_count(rows[class])) return false;
        into->rows[class] += rows[class];
        for (int64_t i = 0; rows[class] > 0 && i < cols; i++) {
            dq_channel from;
            if (!dq_strbuf_take(&from, sizeof from, at, end) ||
                !(from.max >= 0 && from.max <= FLT_MAX))
                return false;
            raise_to(&to[i], from.max, from.seq, from.row);
            dq_fixed_merge(&to[i].sum2, &from.sum2);
        }
    }
    return true;
}

dq_status dq_channels_merge_bytes(dq_channels *into, const char **at, const char *end, dq_err *err)
{
    if (merge(into, at, end)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "a table of channels is cut off, or none");
}

double dq_channels_rms(const dq_channels *c, dq_token_class class, int64_t col)
{
    if (c->rows[class] == 0) return (double)NAN;
    return sqrt(dq_fixed_value(&c->of[class * c->cols + col].sum2) / (double)c->rows[class]);
}
