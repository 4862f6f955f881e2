/* Blocks of rows are transposed once and multiplied by the backend's own product, tile by tile of
 * rows of C. One process alone does so block by block; ranks take all blocks of a call and go tile
 * by tile, and the one that a tile belongs to adds what the others send it while they are at the
 * next one.
 * SPDX-License-Identifier: MIT */
#include "calibrate/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Mean over rows, order by descending diagonal (the lower column first among equals), damping
 * `share` of the mean diagonal, and the factor. Where that is not positive definite, ten times
 * more, at most DQ_HESSIAN_TRIES times in all: damping_share says what it took. A column without
 * any input is left out of feedback. The sums are lost. DQ_DAMAGED for sums that are not finite, or
 * a matrix that no damping makes positive definite; `what` names it. */
enum { DQ_HESSIAN_TRIES = 4 };
enum { DQ_CORRECTION_ROWS = 64 }; /* of C that are solved together */

enum { TILE = DQ_TILE_SUMS_TILE, ROWS = DQ_TILE_SUMS_ROWS };

typedef struct block {
    int64_t first, n;
} block;

/* The next block of the pieces of `rows` rows, after which *at moves; false: none. */
static bool next_block(block *out, int64_t *at, int64_t rows, dq_tile_sums_rows which)
{
    while (*at < rows) {
        const int64_t begin = *at - *at % which.piece, left = rows - begin,
                      n = left < which.piece ? left : which.piece, half = n / 2;
        const int64_t first = which.half == DQ_ROWS_SECOND ? begin + half : begin,
                      end = which.half == DQ_ROWS_FIRST ? begin + half : begin + n;
        const int64_t from = *at > first ? *at : first;
        if (from >= end) {
            *at = begin + n;
            continue;
        }
        *out = (block){from, end - from < ROWS ? end - from : ROWS};
        *at = out->first + out->n;
        return true;
    }
    return false;
}

static int64_t count_blocks(int64_t rows, dq_tile_sums_rows which, int64_t *n_rows)
{
    int64_t n = 0;
    block k;
    *n_rows = 0;
    for (int64_t at = 0; next_block(&k, &at, rows, which); n++) *n_rows += k.n;
    return n;
}

static int64_t kept_rows(int64_t max_rows)
{
    return dq_ranks_count() == 1 && max_rows > ROWS ? ROWS : max_rows;
}

/* Pieces have ROWS rows, or there are none. */
static int64_t most_blocks(int64_t max_rows)
{
    return dq_ranks_count() == 1 ? 1 : (max_rows + ROWS - 1) / ROWS;
}

static int64_t tile_sums_bytes(int64_t max_m, int64_t max_n, bool lower, int64_t max_rows)
{
    const int64_t rows = kept_rows(max_rows), products = most_blocks(max_rows);
    const int64_t tiles = dq_ranks_count() == 1 ? 1 : 2 * products + 1;
    return (((lower ? 0 : max_m) + max_n) * rows + tiles * TILE * max_n) * (int64_t)sizeof(float);
}

dq_status dq_tile_sums_new(dq_tile_sums *s, int64_t max_m, int64_t max_n, bool lower,
                           int64_t max_rows, dq_err *err)
{
    const size_t rows = (size_t)kept_rows(max_rows), m = (size_t)max_m, n = (size_t)max_n;
    const size_t products = (size_t)most_blocks(max_rows), tile = TILE * sizeof(float);
    const bool alone = dq_ranks_count() == 1;
    *s = (dq_tile_sums){.lower = lower, .max_rows = max_rows, .product_bytes = n * products * tile};
    s->right = dq_block_new(n, rows * sizeof(float), err);
    s->left = lower ? s->right : dq_block_new(m, rows * sizeof(float), err);
    s->product[0] = dq_block_new(n, products * tile, err);
    if (!alone) s->product[1] = dq_block_new(n, products * tile, err);
    if (!alone) s->got = dq_block_new(n, tile, err);
    s->rows_of = dq_block_new((size_t)dq_ranks_count(), sizeof *s->rows_of, err);
    return err->code;
}

void dq_tile_sums_free(dq_tile_sums *s)
{
    if (s->left != s->right) dq_block_free(s->left);
    dq_block_free(s->right);
    dq_block_free(s->product[0]);
    dq_block_free(s->product[1]);
    dq_block_free(s->got);
    dq_block_free(s->rows_of);
    *s = (dq_tile_sums){.c = NULL};
}

/* Transposes at most 16 x 16 at a time and writes whole lines: at a stride of a power of two they
 * would evict each other. */
enum { SQUARE = 16 };
static void transpose_square(float *dst, dq_mat x, int64_t r0, int64_t c0)
{
    float square[SQUARE][SQUARE];
    const int64_t rows = x.rows - r0 < SQUARE ? x.rows - r0 : SQUARE;
    const int64_t cols = x.cols - c0 < SQUARE ? x.cols - c0 : SQUARE;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x.p + (r0 + r) * x.cols + c0;
        for (int64_t c = 0; c < cols; c++) square[c][r] = from[c];
    }
    for (int64_t c = 0; c < cols; c++)
        memcpy(dst + (c0 + c) * x.rows + r0, square[c], (size_t)rows * sizeof *dst);
}

void dq_tile_sums_transpose(float *dst, dq_mat x)
{
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < x.cols; c += SQUARE) {
        for (int64_t r = 0; r < x.rows; r += SQUARE) transpose_square(dst, x, r, c);
    }
}

/* Transposed as products read it, behind the `before` rows already there. */
static void put_block(const dq_tile_sums *s, dq_mat a, dq_mat x, block k, int64_t before)
{
    const dq_mat right = {x.p + k.first * x.cols, k.n, x.cols},
                 left = {a.p + k.first * a.cols, k.n, a.cols};
    dq_tile_sums_transpose(s->right + before * x.cols, right);
    if (!s->lower) dq_tile_sums_transpose(s->left + before * a.cols, left);
}

static int64_t tile_rows(const dq_tile_sums *s, int64_t i)
{
    return s->m - i < TILE ? s->m - i : TILE;
}

static int64_t tile_cols(const dq_tile_sums *s, int64_t i)
{
    return s->lower ? i + tile_rows(s, i) : s->n;
}

static void multiply(const dq_tile_sums *s, dq_backend *b, float *out, int64_t i, int64_t rows,
                     int64_t before)
{
    const int64_t n = tile_rows(s, i), cols = tile_cols(s, i);
    const dq_weight right = dq_weight_of_f32("inputs", cols, rows, s->right + before * s->n);
    const dq_mat left = {s->left + before * s->m + i * rows, n, rows};
    b->ops->matmul(b, (dq_mat){out, n, cols}, left, &right, NULL, DQ_NUM_F32);
}

static void add(const dq_tile_sums *s, const float *product, int64_t i)
{
    const int64_t end = i + tile_rows(s, i), cols = tile_cols(s, i);
#pragma omp parallel for schedule(static)
    for (int64_t r = i; r < end; r++) {
        double *to = s->c + r * s->ld;
        const float *from = product + (r - i) * cols;
        const int64_t n = s->lower ? r + 1 : cols;
        for (int64_t c = 0; c < n; c++) to[c] += (double)from[c];
    }
}

static void multiply_blocks(const dq_tile_sums *s, dq_backend *b, float *out, int64_t i,
                            int64_t rows, dq_tile_sums_rows which)
{
    const int64_t size = tile_rows(s, i) * tile_cols(s, i);
    block k;
    for (int64_t at = 0, before = 0; next_block(&k, &at, rows, which); before += k.n) {
        multiply(s, b, out, i, k.n, before);
        out += size;
    }
}

/* Adds every rank's products of an own tile, in the order of ranks. */
static void add_all(const dq_tile_sums *s, const float *own, int64_t i, dq_tile_sums_rows which)
{
    const int64_t size = tile_rows(s, i) * tile_cols(s, i);
    for (int rank = 0; rank < dq_ranks_count(); rank++) {
        int64_t ignore, n = count_blocks(s->rows_of[rank], which, &ignore);
        for (int64_t k = 0; k < n; k++) {
            const bool is_own = rank == dq_ranks_number();
            if (!is_own) dq_ranks_receive(rank, s->got, (size_t)size * sizeof *s->got);
            add(s, is_own ? own + k * size : s->got, i);
        }
    }
}

static int owner_of(int64_t tile)
{
    return (int)(tile / TILE % dq_ranks_count());
}

dq_status dq_tile_sums_add(const dq_tile_sums *s, dq_backend *b, dq_mat a, dq_mat x,
                           dq_tile_sums_rows which, int64_t *rows, dq_err *err)
{
    if (x.rows > s->max_rows || (which.piece != DQ_TILE_SUMS_NO_PIECES && which.piece != ROWS))
        dq_fail(err, DQ_BUG, "sums: a call of %lld rows", (long long)x.rows);
    DQ_TRY(dq_ranks_gather(s->rows_of, x.rows, err));
    *rows = 0;
    for (int i = 0; i < dq_ranks_count(); i++) {
        int64_t n;
        count_blocks(s->rows_of[i], which, &n);
        *rows += n;
    }
    if (dq_ranks_count() == 1) {
        block k;
        for (int64_t at = 0; next_block(&k, &at, x.rows, which);) {
            put_block(s, a, x, k, 0);
            for (int64_t i = 0; i < s->m; i += TILE) {
                multiply(s, b, s->product[0], i, k.n, 0);
                add(s, s->product[0], i);
            }
        }
    } else {
        int64_t ignore, n = count_blocks(x.rows, which, &ignore), turn = 0;
        block k;
        for (int64_t at = 0, before = 0; next_block(&k, &at, x.rows, which); before += k.n)
            put_block(s, a, x, k, before);
        for (int64_t i = 0; i < s->m; i += TILE, turn = 1 - turn) {
            const size_t size = (size_t)(tile_rows(s, i) * tile_cols(s, i));
            float *own = s->product[turn];
            dq_ranks_sent(own, s->product_bytes);
            multiply_blocks(s, b, own, i, x.rows, which);
            if (owner_of(i) == dq_ranks_number())
                add_all(s, own, i, which);
            else
                for (int64_t j = 0; j < n; j++)
                    dq_ranks_send(owner_of(i), own + (size_t)j * size, size * sizeof *own);
        }
        dq_ranks_sent(s->product[0], s->product_bytes);
        dq_ranks_sent(s->product[1], s->product_bytes);
    }
    return DQ_OK;
}

/* By all ranks, after the last call: all get all of c. */
static dq_status tile_sums_share(const dq_tile_sums *s, dq_err *err)
{
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    for (int64_t i = 0; i < s->m && dq_ranks_count() > 1; i += TILE)
        dq_ranks_spread(owner_of(i), s->c + i * s->ld,
                        (size_t)(tile_rows(s, i) * s->ld) * sizeof *s->c);
    return DQ_OK;
}

/* The upper triangle keeps the permuted matrix while the lower one is factored, so that one n x n
 * matrix is enough. */

int64_t dq_hessian_bytes(int64_t n, int64_t max_rows)
{
    return n * dq_cholesky_stride(n) * (int64_t)sizeof(double) +
           tile_sums_bytes(n, n, true, max_rows);
}

dq_status dq_hessian_new(dq_hessian **out, int64_t max_n, int64_t max_rows, dq_err *err)
{
    dq_hessian *h = *out = dq_block_new(1, sizeof *h, err);
    if (!h) return err->code;
    const size_t n = (size_t)max_n;
    h->a = dq_block_new(n, (size_t)dq_cholesky_stride(max_n) * sizeof *h->a, err);
    h->order = dq_block_new(n, sizeof *h->order, err);
    h->diagonal = dq_block_new(n, sizeof *h->diagonal, err);
    h->dead = dq_block_new(n, sizeof *h->dead, err);
    if (dq_tile_sums_new(&h->sums, max_n, max_n, true, max_rows, err) == DQ_OK) return DQ_OK;
    dq_hessian_free(h);
    *out = NULL;
    return err->code;
}

void dq_hessian_free(dq_hessian *h)
{
    if (!h) return;
    dq_block_free(h->a);
    dq_tile_sums_free(&h->sums);
    dq_block_free(h->order);
    dq_block_free(h->diagonal);
    dq_block_free(h->dead);
    dq_block_free(h);
}

void dq_hessian_begin(dq_hessian *h, int64_t n)
{
    h->n = n;
    h->ld = dq_cholesky_stride(n);
    h->rows = h->n_dead = 0;
    h->sums.c = h->a;
    h->sums.m = h->sums.n = n;
    h->sums.ld = h->ld;
    memset(h->a, 0, (size_t)(n * h->ld) * sizeof *h->a);
}

dq_status dq_hessian_add(dq_hessian *h, dq_backend *b, dq_mat x, dq_tile_sums_rows which,
                         dq_err *err)
{
    int64_t rows;
    DQ_TRY(dq_tile_sums_add(&h->sums, b, x, x, which, &rows, err));
    h->rows += rows;
    return DQ_OK;
}

dq_status dq_hessian_share(dq_hessian *h, dq_err *err)
{
    return tile_sums_share(&h->sums, err);
}

typedef struct key {
    double value;
    int64_t column;
} key;

/* Small diagonals first, as they are rounded last; of equals, the higher column. */
static int by_value(const void *a, const void *b)
{
    const key *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->column < y->column ? 1 : -1;
}

/* Means and the diagonal; false: a sum is not finite. */
static bool look(dq_hessian *h)
{
    bool finite = true;
    const double share = h->rows > 0 ? 1 / (double)h->rows : 0;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t r = 0; r < h->n; r++) {
        double *a = h->a + r * h->ld;
        for (int64_t c = 0; c <= r; c++) {
            a[c] *= share;
            finite = finite && isfinite(a[c]);
        }
    }
    for (int64_t i = 0; i < h->n; i++) {
        h->diagonal[i] = h->a[i * h->ld + i];
        h->dead[i] = h->diagonal[i] == 0;
        h->n_dead += h->dead[i];
    }
    return finite;
}

static double at(const dq_hessian *h, int64_t i, int64_t j)
{
    return i > j ? h->a[i * h->ld + j] : h->a[j * h->ld + i];
}

dq_status dq_hessian_refactor(dq_hessian *h, double share, const char *what, dq_err *err)
{
    double mean = 0;
    for (int64_t i = 0; i < h->n; i++) mean += h->diagonal[i] / (double)h->n;
    for (int i = 0; i < DQ_HESSIAN_TRIES; i++, share *= 10) {
        int64_t bad;
        h->damping_share = share;
        h->damping = share * mean;
        /* Copies the upper triangle to the lower one. */
        enum { STEP = 64 };
#pragma omp parallel for schedule(dynamic)
        for (int64_t i0 = 0; i0 < h->n; i0 += STEP) {
            const int64_t end = i0 + STEP < h->n ? i0 + STEP : h->n;
            for (int64_t j = 0; j < end; j++) {
                for (int64_t k = i0 > j ? i0 : j + 1; k < end; k++)
                    h->a[k * h->ld + j] = h->a[j * h->ld + k];
            }
            for (int64_t k = i0; k < end; k++) {
                const int64_t c = h->order[k];
                h->a[k * h->ld + k] = h->dead[c] ? 1 : h->diagonal[c] + h->damping;
            }
        }
        DQ_TRY(dq_cholesky(&bad, h->a, h->n, h->ld, err));
        if (bad < 0) return DQ_OK;
    }
    return dq_fail_with(
        err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_MORE_TEXT},
        "%s: the mean of squared inputs is not positive definite, with %g of its mean "
        "diagonal added either",
        what, h->damping_share);
}

dq_status dq_hessian_factor(dq_hessian *h, double share, const char *what, dq_err *err)
{
    if (!look(h))
        return dq_fail_with(
            err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_SUMS},
            "%s: sums of squares of its inputs on the calibration text are not finite", what);
    key *k = dq_block_new((size_t)h->n, sizeof *k, err);
    if (!k) return err->code;
    for (int64_t i = 0; i < h->n; i++) k[i] = (key){h->diagonal[i], i};
    qsort(k, (size_t)h->n, sizeof *k, by_value);
    for (int64_t i = 0; i < h->n; i++) h->order[i] = k[i].column;
    dq_block_free(k);
    /* Gathers the permuted matrix into the free upper triangle. */
    const int64_t *o = h->order;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t t = 0; t < h->n; t++) {
        double *to = h->a + t * h->ld;
        for (int64_t j = t + 1; j < h->n; j++) to[j] = at(h, o[t], o[j]);
    }
    return dq_hessian_refactor(h, share, what, err);
}

static int64_t stride(int64_t n)
{
    return (n + 7) / 8 * 8;
}

int64_t dq_cross_bytes(int64_t m, int64_t n, int64_t max_rows)
{
    return m * stride(n) * (int64_t)sizeof(double) + tile_sums_bytes(m, n, false, max_rows);
}

dq_status dq_cross_new(dq_cross **out, int64_t max_m, int64_t max_n, int64_t max_rows, dq_err *err)
{
    dq_cross *x = *out = dq_block_new(1, sizeof *x, err);
    if (!x) return err->code;
    x->c = dq_block_new((size_t)max_m, (size_t)stride(max_n) * sizeof *x->c, err);
    if (dq_tile_sums_new(&x->sums, max_m, max_n, false, max_rows, err) == DQ_OK) return DQ_OK;
    dq_cross_free(x);
    *out = NULL;
    return err->code;
}

void dq_cross_free(dq_cross *x)
{
    if (!x) return;
    dq_block_free(x->c);
    dq_tile_sums_free(&x->sums);
    dq_block_free(x);
}

void dq_cross_begin(dq_cross *x, int64_t m, int64_t n)
{
    x->m = m;
    x->n = n;
    x->ld = stride(n);
    x->rows = 0;
    x->sums.c = x->c;
    x->sums.m = m;
    x->sums.n = n;
    x->sums.ld = x->ld;
    memset(x->c, 0, (size_t)(m * x->ld) * sizeof *x->c);
}

dq_status dq_cross_add(dq_cross *c, dq_backend *b, dq_mat a, dq_mat x, dq_tile_sums_rows which,
                       dq_err *err)
{
    int64_t rows;
    DQ_TRY(dq_tile_sums_add(&c->sums, b, a, x, which, &rows, err));
    c->rows += rows;
    return DQ_OK;
}

static dq_status cross_share(dq_cross *c, dq_err *err)
{
    return tile_sums_share(&c->sums, err);
}

dq_status dq_cross_mean(dq_cross *x, const char *what, dq_err *err)
{
    const double share = x->rows > 0 ? 1 / (double)x->rows : 0;
    bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t r = 0; r < x->m; r++) {
        for (int64_t c = 0; c < x->n; c++) {
            x->c[r * x->ld + c] *= share;
            finite = finite && isfinite(x->c[r * x->ld + c]);
        }
    }
    if (finite) return DQ_OK;
    return dq_fail_with(
        err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_SUMS},
        "%s: sums of what the rounded model lacks on the calibration text are not finite", what);
}

/* Rows of C are independent right-hand sides: a task solves 64, transposed, L y = c and L^T x = y,
 * in blocks of 64 columns whose mutual effect is a product of f64 tiles. */

enum { SOLVED_ROWS = DQ_CORRECTION_ROWS, DEPTH = 256 };
_Static_assert((int)SOLVED_ROWS == (int)DQ_F64_TILE, "a strip is a tile");

typedef struct strip {
    double *y; /* [n, 64] */
    _Alignas(64) double sum[SOLVED_ROWS * SOLVED_ROWS],
        panel[DEPTH * SOLVED_ROWS]; /* of one block */
} strip;

static void subtract(double *y, const double *sum, int64_t n)
{
    for (int64_t i = 0; i < n * SOLVED_ROWS; i++) y[i] -= sum[i];
}

static void solve_strip(strip *s, const dq_cross *x, const dq_hessian *h, int64_t first)
{
    const int64_t rows = dq_least(SOLVED_ROWS, x->m - first), n = h->n;
    for (int64_t i = 0; i < n; i++) {
        const double *from = x->c + first * x->ld + h->order[i];
        for (int64_t r = 0; r < SOLVED_ROWS; r++)
            s->y[i * SOLVED_ROWS + r] = r < rows ? from[r * x->ld] : 0;
    }
    for (int64_t b = 0; b < h->n; b += SOLVED_ROWS) {
        const int64_t cols = dq_least(SOLVED_ROWS, h->n - b);
        double *y = s->y + b * SOLVED_ROWS;
        memset(s->sum, 0, sizeof s->sum);
        for (int64_t k = 0; k < b; k += DEPTH) {
            const int64_t depth = dq_least(DEPTH, b - k);
            dq_f64_tile_transpose(s->panel, h->a + b * h->ld + k, h->ld, cols, depth);
            dq_f64_tile_add(s->sum, s->panel, SOLVED_ROWS, s->y + k * SOLVED_ROWS, SOLVED_ROWS,
                            depth);
        }
        subtract(y, s->sum, cols);
        for (int64_t i = 0; i < cols; i++) {
            const double *l = h->a + (b + i) * h->ld + b;
            for (int64_t k = 0; k < i; k++) {
                for (int64_t t = 0; t < SOLVED_ROWS; t++)
                    y[i * SOLVED_ROWS + t] -= l[k] * y[k * SOLVED_ROWS + t];
            }
            for (int64_t t = 0; t < SOLVED_ROWS; t++) y[i * SOLVED_ROWS + t] /= l[i];
        }
    }
    for (int64_t end = h->n, b; end > 0; end = b) {
        b = (end - 1) / SOLVED_ROWS * SOLVED_ROWS;
        const int64_t cols = end - b;
        double *y = s->y + b * SOLVED_ROWS;
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, h->a + end * h->ld + b, h->ld, s->y + end * SOLVED_ROWS,
                        (cols + 3) / 4 * 4, h->n - end); /* padding reads what is not used */
        subtract(y, s->sum, cols);
        for (int64_t i = cols - 1; i >= 0; i--) {
            for (int64_t k = i + 1; k < cols; k++) {
                const double l = h->a[(b + k) * h->ld + b + i];
                for (int64_t r = 0; r < SOLVED_ROWS; r++)
                    y[i * SOLVED_ROWS + r] -= l * y[k * SOLVED_ROWS + r];
            }
            const double pivot = h->a[(b + i) * h->ld + b + i];
            for (int64_t r = 0; r < SOLVED_ROWS; r++) y[i * SOLVED_ROWS + r] /= pivot;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        double *to = x->c + first * x->ld + h->order[i];
        const bool dead = h->dead[h->order[i]];
        for (int64_t r = 0; r < rows; r++) to[r * x->ld] = dead ? 0 : s->y[i * SOLVED_ROWS + r];
    }
}

static strip *strip_new(int64_t n, dq_err *err)
{
    strip *s = dq_block_new(1, sizeof *s, err);
    if (s) s->y = dq_block_new((size_t)n, SOLVED_ROWS * sizeof *s->y, err);
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
        for (int64_t first = 0; first < x->m; first += SOLVED_ROWS) {
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
    const dq_ranks_rows own = dq_ranks_stripe(dq_ranks_number(), x->m, SOLVED_ROWS);
    dq_cross part = *x;
    part.c = x->c + own.first * x->ld;
    part.m = own.end - own.first;
    dq_correction_solve(&part, h, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(x->c, x->m, SOLVED_ROWS, (size_t)x->ld * sizeof *x->c);
    return DQ_OK;
}

static void multiply_strip(strip *s, float *w, int64_t rows, const dq_cross *k)
{
    const int64_t n = k->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < SOLVED_ROWS; r++)
            s->y[i * SOLVED_ROWS + r] = r < rows ? (double)w[r * n + i] : 0;
    }
    for (int64_t c = 0; c < n; c += SOLVED_ROWS) {
        const int64_t cols = dq_least(SOLVED_ROWS, n - c);
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, k->c + c, k->ld, s->y, (cols + 3) / 4 * 4, n);
        for (int64_t i = 0; i < cols; i++) {
            for (int64_t r = 0; r < rows; r++) {
                float *to = w + r * n + c + i;
                *to = (float)((double)*to + s->sum[i * SOLVED_ROWS + r]);
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
        for (int64_t first = 0; first < rows; first += SOLVED_ROWS) {
            if (mine.code == DQ_OK)
                multiply_strip(s, w + first * k->n, dq_least(SOLVED_ROWS, rows - first), k);
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

/* Blocks below the diagonal count twice. */
static void energy_of_strip(double *out, strip *s, const dq_cross *k, const dq_hessian *h,
                            int64_t first)
{
    const int64_t rows = dq_least(SOLVED_ROWS, k->m - first), n = h->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t r = 0; r < SOLVED_ROWS; r++)
            s->y[i * SOLVED_ROWS + r] = r < rows ? k->c[(first + r) * k->ld + i] : 0;
    }
    for (int64_t r = 0; r < rows; r++) out[first + r] = 0;
    for (int64_t c = 0; c < n; c += SOLVED_ROWS) {
        const int64_t cols = dq_least(SOLVED_ROWS, n - c), below = c + cols;
        const double *y = s->y + c * SOLVED_ROWS;
        memset(s->sum, 0, sizeof s->sum);
        dq_f64_tile_add(s->sum, h->a + below * h->ld + c, h->ld, s->y + below * SOLVED_ROWS,
                        (cols + 3) / 4 * 4, n - below);
        for (int64_t i = 0; i < cols; i++) {
            const double *row = h->a + (c + i) * h->ld + c;
            double *to = s->sum + i * SOLVED_ROWS;
            for (int64_t j = 0; j < i; j++) {
                for (int64_t r = 0; r < SOLVED_ROWS; r++) to[r] += row[j] * y[j * SOLVED_ROWS + r];
            }
            for (int64_t r = 0; r < rows; r++)
                out[first + r] +=
                    (2 * to[r] + row[i] * y[i * SOLVED_ROWS + r]) * y[i * SOLVED_ROWS + r];
        }
    }
}

/* The sums of A lie in the free triangle of B's while A is factored. */

/* Shares cannot resolve steps finer than three. */
static const double ridges[DQ_SHRINKAGE_RIDGES] = {0.01, 0.03, 0.1, 0.3, 1, 3, 10};

int64_t dq_shrinkage_bytes(int64_t m, int64_t n, int64_t max_rows)
{
    return dq_hessian_bytes(n, max_rows) + dq_cross_bytes(m, n, max_rows) +
           m * (stride(n) + 4) * (int64_t)sizeof(double);
}

dq_status dq_shrinkage_new(dq_shrinkage *o, int64_t max_m, int64_t max_n, int64_t max_rows,
                           dq_err *err)
{
    *o = (dq_shrinkage){.h = NULL};
    DQ_TRY(dq_hessian_new(&o->h, max_n, max_rows, err));
    DQ_TRY(dq_cross_new(&o->c, max_m, max_n, max_rows, err));
    o->k = dq_block_new((size_t)(max_m * stride(max_n)), sizeof *o->k, err);
    o->share = dq_block_new((size_t)max_m, 4 * sizeof *o->share, err);
    return err->code;
}

void dq_shrinkage_free(dq_shrinkage *o)
{
    dq_hessian_free(o->h);
    dq_cross_free(o->c);
    dq_block_free(o->k);
    dq_block_free(o->share);
    *o = (dq_shrinkage){.h = NULL};
}

void dq_shrinkage_begin(dq_shrinkage *o, int64_t m, int64_t n)
{
    dq_hessian_begin(o->h, n);
    dq_cross_begin(o->c, m, n);
}

dq_status dq_shrinkage_add_inputs(dq_shrinkage *o, dq_hessian *h, dq_backend *b, dq_mat x,
                                  int64_t piece, dq_err *err)
{
    DQ_TRY(dq_hessian_add(o->h, b, x, (dq_tile_sums_rows){DQ_ROWS_FIRST, piece}, err));
    return dq_hessian_add(h, b, x, (dq_tile_sums_rows){DQ_ROWS_SECOND, piece}, err);
}

dq_status dq_shrinkage_add_lacks(dq_shrinkage *o, dq_cross *c, dq_backend *b, dq_mat lacks,
                                 dq_mat x, int64_t piece, dq_err *err)
{
    DQ_TRY(dq_cross_add(o->c, b, lacks, x, (dq_tile_sums_rows){DQ_ROWS_FIRST, piece}, err));
    return dq_cross_add(c, b, lacks, x, (dq_tile_sums_rows){DQ_ROWS_SECOND, piece}, err);
}

/* For outputs first .. end - 1: the share of A's correction that removes most on B, and how
 * much. */
static dq_status judge_rows(double *share, double *gain, dq_shrinkage *o, const dq_hessian *h,
                            const dq_cross *c, dq_ranks_rows rows, dq_err *err)
{
    dq_cross k = *o->c;
    const int64_t before = rows.first * k.ld;
    k.c = o->k + before;
    k.m = rows.end - rows.first;
    for (int64_t i = 0; i < k.m * k.ld; i++) k.c[i] = o->c->c[before + i] / (double)k.rows;
    DQ_TRY(dq_correction_solve(&k, o->h, err));
    /* out[k->m] = diagonal of K H K^T for an unfactored h: how much each output changes, squared
     * and summed. Bits do not depend on threads. */
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = strip_new(h->n, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < k.m; first += SOLVED_ROWS) {
            if (mine.code == DQ_OK) energy_of_strip(gain + rows.first, s, &k, h, first);
        }
        strip_free(s);
#pragma omp critical(dq_correction_error)
        dq_fail_as(err, &mine);
    }
    if (err->code != DQ_OK) return err->code;
#pragma omp parallel for schedule(static)
    for (int64_t r = rows.first; r < rows.end; r++) {
        double inner = 0;
        for (int64_t i = 0; i < k.n; i++) inner += o->k[r * k.ld + i] * c->c[r * c->ld + i];
        const double energy = gain[r], best = energy > 0 ? inner / energy : 0;
        share[r] = best < 0 ? 0 : best > 1 ? 1 : best;
        gain[r] = (2 * inner - share[r] * energy) * share[r];
    }
    return DQ_OK;
}

static dq_status judge(double *share, double *gain, dq_shrinkage *o, const dq_hessian *h,
                       const dq_cross *c, dq_err *err)
{
    const int64_t m = o->c->m, unit = DQ_CORRECTION_ROWS;
    judge_rows(share, gain, o, h, c, dq_ranks_stripe(dq_ranks_number(), m, unit), err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(share, m, unit, sizeof *share);
    dq_ranks_join(gain, m, unit, sizeof *gain);
    return DQ_OK;
}

/* Outputs vote by relative gain, so that a few large ones do not decide. */
static bool is_better(const double *later, const double *before, int64_t m)
{
    const double clear = 0.03;
    double sum = 0;
    for (int64_t r = 0; r < m; r++) {
        const double both = later[r] + before[r];
        sum += both > 0 ? (later[r] - before[r]) / both : 0;
    }
    return sum > clear * (double)m;
}

dq_status dq_shrinkage_find(double *ridge, dq_shrinkage *o, dq_hessian *h, dq_cross *c,
                            const char *what, dq_err *err)
{
    const int64_t rows = o->h->rows;
    DQ_TRY(dq_hessian_share(o->h, err));
    DQ_TRY(dq_hessian_share(h, err));
    DQ_TRY(cross_share(o->c, err));
    DQ_TRY(cross_share(c, err));
    *ridge = ridges[0];
    memset(o->share, 0, (size_t)c->m * sizeof *o->share);
    /* Before factoring, the sums of `part` are kept in the free triangle of h's; then added to
     * them. */
    const dq_hessian *part = o->h;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t r = 0; r < h->n; r++) {
        h->diagonal[r] = part->a[r * part->ld + r];
        for (int64_t i = r + 1; i < h->n; i++) h->a[r * h->ld + i] = part->a[i * part->ld + r];
    }
    if (rows > 0) {
        /* The sums of A are lost. */
        const int64_t m = c->m;
        const size_t bytes = (size_t)m * sizeof *o->share;
        double *gain = o->share + m, *next_share = gain + m, *next_gain = next_share + m;
        DQ_TRY(dq_hessian_factor(o->h, ridges[0], what, err));
        DQ_TRY(judge(o->share, gain, o, h, c, err));
        for (int t = 1; t < DQ_SHRINKAGE_RIDGES; t++) {
            DQ_TRY(dq_hessian_refactor(o->h, ridges[t], what, err));
            DQ_TRY(judge(next_share, next_gain, o, h, c, err));
            if (!is_better(next_gain, gain, m)) break;
            memcpy(o->share, next_share, bytes);
            memcpy(gain, next_gain, bytes);
            *ridge = ridges[t];
        }
    }
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t r = 0; r < h->n; r++) {
        for (int64_t k = 0; k < r; k++) h->a[r * h->ld + k] += h->a[k * h->ld + r];
        h->a[r * h->ld + r] += h->diagonal[r];
    }
    h->rows += rows;
    /* Adds sums over other rows. */
    const dq_cross *other = o->c;
    for (int64_t i = 0; i < c->m * c->ld; i++) c->c[i] += other->c[i];
    c->rows += other->rows;
    *ridge = *ridge / 2 > ridges[0] ? *ridge / 2 : ridges[0];
    for (int64_t r = 0; r < c->m; r++) {
        /* A correction from all rows deserves more trust than one from A. */
        const double doubt = 1.3, a = o->share[r] * doubt < 1 ? o->share[r] * doubt : 1;
        o->share[r] = 2 * a / (1 + a);
    }
    return DQ_OK;
}
