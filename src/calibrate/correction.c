/* correction: see correction.h. Rows of C are independent right-hand sides: a task takes 64 of them, transposed, through
 * L y = c and L^T x = y, blocks of 64 columns at a time, where what other blocks say is one product of tiles in f64.
 * SPDX-License-Identifier: MIT */
#include "calibrate/correction.h"

#include "base/os.h"
#include "base/ranks.h"
#include "calibrate/f64_tile.h"

#include <string.h>

enum { ROWS = DQ_CORRECTION_ROWS, DEPTH = 256 };
_Static_assert((int)ROWS == (int)DQ_F64_TILE, "a strip is a tile");

/* 64 right-hand sides. */
typedef struct strip {
    double *y;                                                 /* [n, 64] */
    _Alignas(64) double sum[ROWS * ROWS], panel[DEPTH * ROWS]; /* of one block */
} strip;

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static void subtract(double *y, const double *sum, int64_t n)
{
    for (int64_t i = 0; i < n * ROWS; i++) y[i] -= sum[i];
}

/* L y = c, in place. */
static void forward(strip *s, const dq_hessian *h)
{
    for (int64_t b = 0; b < h->n; b += ROWS) {
        const int64_t cols = least(ROWS, h->n - b);
        double *y = s->y + b * ROWS;
        memset(s->sum, 0, sizeof s->sum);
        for (int64_t k = 0; k < b; k += DEPTH) {
            const int64_t depth = least(DEPTH, b - k);
            dq_f64_tile_transpose(s->panel, h->a + b * h->ld + k, h->ld, cols, depth);
            dq_f64_tile_add(s->sum, s->panel, ROWS, s->y + k * ROWS, ROWS, depth);
        }
        subtract(y, s->sum, cols);
        for (int64_t i = 0; i < cols; i++) {
            const double *l = h->a + (b + i) * h->ld + b;
            for (int64_t k = 0; k < i; k++) {
                for (int64_t r = 0; r < ROWS; r++) y[i * ROWS + r] -= l[k] * y[k * ROWS + r];
            }
            for (int64_t r = 0; r < ROWS; r++) y[i * ROWS + r] /= l[i];
        }
    }
}

/* L^T x = y, in place. */
static void backward(strip *s, const dq_hessian *h)
{
    for (int64_t end = h->n, b; end > 0; end = b) {
        b = (end - 1) / ROWS * ROWS;
        const int64_t cols = end - b;
        double *y = s->y + b * ROWS;
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, h->a + end * h->ld + b, h->ld, s->y + end * ROWS,
                        (cols + 3) / 4 * 4, h->n - end); /* padding reads what is not used */
        subtract(y, s->sum, cols);
        for (int64_t i = cols - 1; i >= 0; i--) {
            for (int64_t k = i + 1; k < cols; k++) {
                const double l = h->a[(b + k) * h->ld + b + i];
                for (int64_t r = 0; r < ROWS; r++) y[i * ROWS + r] -= l * y[k * ROWS + r];
            }
            const double pivot = h->a[(b + i) * h->ld + b + i];
            for (int64_t r = 0; r < ROWS; r++) y[i * ROWS + r] /= pivot;
        }
    }
}

static void solve_strip(strip *s, const dq_cross *x, const dq_hessian *h, int64_t first)
{
    const int64_t rows = least(ROWS, x->m - first), n = h->n;
    for (int64_t i = 0; i < n; i++) {
        const double *from = x->c + first * x->ld + h->order[i];
        for (int64_t r = 0; r < ROWS; r++) s->y[i * ROWS + r] = r < rows ? from[r * x->ld] : 0;
    }
    forward(s, h);
    backward(s, h);
    for (int64_t i = 0; i < n; i++) {
        double *to = x->c + first * x->ld + h->order[i];
        const bool dead = h->dead[h->order[i]];
        for (int64_t r = 0; r < rows; r++) to[r * x->ld] = dead ? 0 : s->y[i * ROWS + r];
    }
}

/* A strip with y[n, 64] for one thread. NULL: see err. */
static strip *strip_new(int64_t n, dq_err *err)
{
    strip *s = dq_block_new(1, sizeof *s, err);
    if (s) s->y = dq_block_new((size_t)n, ROWS * sizeof *s->y, err);
    return s;
}

static void strip_free(strip *s)
{
    if (s) dq_block_free(s->y);
    dq_block_free(s);
}

dq_status dq_correction_solve(dq_cross *x, const dq_hessian *h, dq_err *err)
{
    if (x->n != h->n) return dq_fail(err, DQ_BUG, "correction: sums of another product");
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = strip_new(h->n, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < x->m; first += ROWS) {
            if (mine.code == DQ_OK && dq_os_check_stop(&mine) == DQ_OK) solve_strip(s, x, h, first);
        }
        strip_free(s);
#pragma omp critical(dq_correction_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}

dq_status dq_correction_solve_in_step(dq_cross *x, const dq_hessian *h, dq_err *err)
{
    const dq_ranks_rows own = dq_ranks_stripe(dq_ranks_number(), x->m, ROWS);
    dq_cross part = *x;
    part.c = x->c + own.first * x->ld;
    part.m = own.end - own.first;
    dq_correction_solve(&part, h, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(x->c, x->m, ROWS, (size_t)x->ld * sizeof *x->c);
    return DQ_OK;
}

/* 64 rows of w, transposed, times K. */
static void multiply_strip(strip *s, float *w, int64_t rows, const dq_cross *k)
{
    const int64_t n = k->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < ROWS; r++) s->y[i * ROWS + r] = r < rows ? (double)w[r * n + i] : 0;
    }
    for (int64_t c = 0; c < n; c += ROWS) {
        const int64_t cols = least(ROWS, n - c);
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, k->c + c, k->ld, s->y, (cols + 3) / 4 * 4, n);
        for (int64_t i = 0; i < cols; i++) {
            for (int64_t r = 0; r < rows; r++) {
                float *to = w + r * n + c + i;
                *to = (float)((double)*to + s->sum[i * ROWS + r]);
            }
        }
    }
}

dq_status dq_correction_of_inputs(float *w, int64_t rows, const dq_cross *k, dq_err *err)
{
    if (k->m != k->n)
        return dq_fail(err, DQ_BUG, "correction: inputs are not those of the product");
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = strip_new(k->n, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < rows; first += ROWS) {
            if (mine.code == DQ_OK)
                multiply_strip(s, w + first * k->n, least(ROWS, rows - first), k);
        }
        strip_free(s);
#pragma omp critical(dq_correction_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}

dq_status dq_correction_of_outputs(float *w, int64_t first, int64_t rows, const dq_cross *k,
                                   dq_err *err)
{
    if (first < 0 || rows > k->m - first)
        return dq_fail(err, DQ_BUG, "correction: outputs are not those of the product");
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const double *from = k->c + (first + r) * k->ld;
        float *to = w + r * k->n;
        for (int64_t c = 0; c < k->n; c++) to[c] = (float)((double)to[c] + from[c]);
    }
    return DQ_OK;
}

/* Of 64 rows of K: blocks below the diagonal count twice. */
static void energy_of_strip(double *out, strip *s, const dq_cross *k, const dq_hessian *h,
                            int64_t first)
{
    const int64_t rows = least(ROWS, k->m - first), n = h->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < ROWS; r++)
            s->y[i * ROWS + r] = r < rows ? k->c[(first + r) * k->ld + i] : 0;
    }
    for (int64_t r = 0; r < rows; r++) out[first + r] = 0;
    for (int64_t c = 0; c < n; c += ROWS) {
        const int64_t cols = least(ROWS, n - c), below = c + cols;
        const double *y = s->y + c * ROWS;
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, h->a + below * h->ld + c, h->ld, s->y + below * ROWS,
                        (cols + 3) / 4 * 4, n - below);
        for (int64_t i = 0; i < cols; i++) {
            const double *row = h->a + (c + i) * h->ld + c;
            double *to = s->sum + i * ROWS;
            for (int64_t j = 0; j < i; j++) {
                for (int64_t r = 0; r < ROWS; r++) to[r] += row[j] * y[j * ROWS + r];
            }
            for (int64_t r = 0; r < rows; r++)
                out[first + r] += (2 * to[r] + row[i] * y[i * ROWS + r]) * y[i * ROWS + r];
        }
    }
}

dq_status dq_correction_energy(double *out, const dq_cross *k, const dq_hessian *h, dq_err *err)
{
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = strip_new(h->n, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < k->m; first += ROWS) {
            if (mine.code == DQ_OK) energy_of_strip(out, s, k, h, first);
        }
        strip_free(s);
#pragma omp critical(dq_correction_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}
