/* gptq: see gptq.h. Rows do not see each other: a task takes 64 of them through all columns. Columns go in blocks of 128: what
 * earlier blocks say about a block is one product in f64, and so it is for parts of it.
 * SPDX-License-Identifier: MIT */
#include "calibrate/gptq.h"

#include "base/os.h"
#include "calibrate/f64_tile.h"
#include "calibrate/scale_refit.h"
#include "tensor/quant_search.h"

#include <math.h>
#include <string.h>

enum { ROWS = DQ_F64_TILE, BLOCK = 128, PART = 16 };

/* 64 rows, transposed: [n, 64] by index in the order of rounding. */
typedef struct strip {
    double *w, *error;
    double corner[BLOCK * BLOCK]; /* of L, its upper triangle 0 */
    _Alignas(64) double ahead[BLOCK * ROWS];
} strip;

typedef struct rounding {
    dq_codes *c;          /* NULL: only the signal is wanted */
    const float *w;       /* [rows, n] */
    const dq_codes *less; /* whose values are taken from w; NULL: none */
    int64_t rows;
    const dq_hessian *h;
    const dq_weight_format *format;
    dq_gptq_loss *loss; /* [rows] */
} rounding;

/* The value that a code stands for. */
static float value_of(const dq_codes *c, int64_t row, int64_t col)
{
    const dq_grid g = dq_codes_grid(c, row, col);
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
    return (float)f->level(c->code[row * c->shape.cols + col], g, &c->spec) * g.scale;
}

static void load(strip *s, const rounding *g, int64_t first, int64_t rows)
{
    const int64_t n = g->h->n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t col = g->h->order[i];
        const float *w = g->w + first * n + col;
        double *to = s->w + i * ROWS;
        for (int64_t r = 0; r < ROWS; r++) to[r] = r < rows ? (double)w[r * n] : 0;
        for (int64_t r = 0; g->less && r < rows; r++)
            to[r] -= (double)value_of(g->less, first + r, col);
    }
}

static void load_corner(strip *s, const dq_hessian *h, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        double *to = s->corner + (i - begin) * BLOCK;
        memset(to, 0, BLOCK * sizeof *to);
        memcpy(to, h->a + i * h->ld + begin, (size_t)(i - begin + 1) * sizeof *to);
    }
}

/* ahead = rows begin .. end - 1 of L^T x, as far as columns from `end` on make them. */
static void look_ahead(strip *s, const dq_hessian *h, const double *x, int64_t begin, int64_t end)
{
    const int64_t cols = (end - begin + 3) / 4 * 4; /* padding gives what is not used */
    memset(s->ahead, 0, sizeof s->ahead);
    dq_f64_tile_add(s->ahead, h->a + end * h->ld + begin, h->ld, x + end * ROWS, cols, h->n - end);
}

/* Rounds column i of the order for all rows of the strip; missed[r]: what the rounding alone left. */
static void round_column(strip *s, double missed[ROWS], const rounding *g, int64_t first,
                         int64_t rows, int64_t begin, int64_t i)
{
    const dq_code_shape *shape = &g->c->shape;
    const int64_t col = g->h->order[i];
    const double *ahead = s->ahead + (i - begin) * ROWS;
    const double pivot = s->corner[(i - begin) * BLOCK + i - begin];
    for (int64_t r = 0; r < rows; r++) {
        const double w = s->w[i * ROWS + r], want = w + ahead[r] / pivot;
        const float near = (float)want;
        const dq_grid grid = dq_codes_grid(g->c, first + r, col);
        float got;
        g->format->encode(&g->c->code[(first + r) * shape->cols + col], &got, &near, 1, grid,
                          &g->c->spec);
        s->error[i * ROWS + r] = w - (double)got;
        missed[r] = want - (double)got;
    }
}

static void round_block(strip *s, const rounding *g, int64_t first, int64_t rows, int64_t begin,
                        int64_t end)
{
    dq_gptq_loss *loss = g->loss + first;
    double missed[ROWS];
    look_ahead(s, g->h, s->error, begin, end);
    for (int64_t i = end - 1; i >= begin; i--) {
        const double *l = s->corner + (i - begin) * BLOCK, *e = s->error + i * ROWS;
        const int64_t part = (i - begin) / PART * PART; /* a few columns at once */
        round_column(s, missed, g, first, rows, begin, i);
        for (int64_t k = part; k < i - begin; k++) {
            for (int64_t r = 0; r < ROWS; r++) s->ahead[k * ROWS + r] += l[k] * e[r];
        }
        if (i == begin + part) {
            const int64_t last = end - i < PART ? end - i : PART;
            dq_f64_tile_add(s->ahead, l, BLOCK, e, part, last);
        }
        for (int64_t r = 0; r < rows && !g->h->dead[g->h->order[i]]; r++) {
            const double left = missed[r] * l[i - begin];
            loss[r].error += left * left - g->h->damping * e[r] * e[r];
        }
    }
}

/* |L^T w|^2, less what damping makes of it. */
static void signal_of_block(strip *s, const rounding *g, int64_t first, int64_t rows, int64_t begin,
                            int64_t end)
{
    look_ahead(s, g->h, s->w, begin, end);
    dq_f64_tile_add(s->ahead, s->corner, BLOCK, s->w + begin * ROWS, BLOCK, end - begin);
    for (int64_t i = begin; i < end; i++) {
        const double *w = s->w + i * ROWS, *lw = s->ahead + (i - begin) * ROWS;
        for (int64_t r = 0; r < rows && !g->h->dead[g->h->order[i]]; r++)
            g->loss[first + r].signal += lw[r] * lw[r] - g->h->damping * w[r] * w[r];
    }
}

static void run_strip(strip *s, const rounding *g, int64_t first)
{
    const int64_t n = g->h->n, rows = g->rows - first < ROWS ? g->rows - first : ROWS;
    load(s, g, first, rows);
    memset(s->error, 0, (size_t)(n * ROWS) * sizeof *s->error);
    for (int64_t end = n, begin; end > 0; end = begin) {
        begin = end > BLOCK ? end - BLOCK : 0;
        load_corner(s, g->h, begin, end);
        if (g->c)
            round_block(s, g, first, rows, begin, end);
        else
            signal_of_block(s, g, first, rows, begin, end);
    }
}

static dq_status run_strips(const rounding *g, dq_err *err)
{
    const size_t n = (size_t)g->h->n;
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = dq_block_new(1, sizeof *s, &mine);
        if (s) s->w = dq_block_new(n, ROWS * sizeof *s->w, &mine);
        if (s) s->error = dq_block_new(n, ROWS * sizeof *s->error, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < g->rows; first += ROWS) {
            if (mine.code == DQ_OK && dq_os_check_stop(&mine) == DQ_OK) run_strip(s, g, first);
        }
        if (s) dq_block_free(s->w);
        if (s) dq_block_free(s->error);
        dq_block_free(s);
#pragma omp critical(dq_gptq_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}

dq_status dq_gptq_round(dq_codes *c, const float *w, const dq_hessian *h, dq_gptq_loss *loss,
                        dq_err *err)
{
    const rounding g = {.c = c,
                        .w = w,
                        .rows = c->shape.rows,
                        .h = h,
                        .format = dq_weight_format_of_mode(c->spec.mode),
                        .loss = loss};
    if (c->shape.cols != h->n)
        return dq_fail(err, DQ_BUG, "rounding: %lld columns, %lld inputs", (long long)c->shape.cols,
                       (long long)h->n);
    for (int64_t r = 0; r < c->shape.rows; r++) loss[r].error = 0;
    return run_strips(&g, err);
}

/* ---- Grids ---- */

/* Of a group: of the scales that the search tries, the one of least error when each value counts as much as what its rounding
 * alone leaves behind costs: the squared pivot of its column. */
static float weighted_scale(const float *w, const double *weight, int64_t n,
                            const dq_quant_spec *spec)
{
    enum { PIECE = 256 };
    dq_quant_search s;
    double error[DQ_N_CANDIDATES + 2] = {0}, least = (double)INFINITY;
    float scale[DQ_N_CANDIDATES + 2], best = 0;
    const float peak = dq_quant_peak(w, n);
    if (peak == 0) return 0;
    dq_quant_search_begin(&s, peak, spec->bits, spec->scale_dtype);
    memcpy(scale, s.finalist, 2 * sizeof *scale); /* absmax and signed, as stored */
    memcpy(scale + 2, s.candidate, sizeof s.candidate);
    for (int k = 0; k < DQ_N_CANDIDATES + 2; k++) {
        int8_t q[PIECE];
        float got[PIECE];
        if (scale[k] == 0) continue;
        for (int64_t at = 0; at < n; at += PIECE) {
            const int64_t m = n - at < PIECE ? n - at : PIECE;
            dq_quant_encode_back(q, got, w + at, m, spec->bits, scale[k], spec->mode);
            for (int64_t i = 0; i < m; i++) {
                const double d = (double)w[at + i] - (double)got[i];
                error[k] += weight[at + i] * d * d;
            }
        }
        if (error[k] < least) best = scale[k];
        if (error[k] < least) least = error[k];
    }
    return best;
}

static dq_status fit_weighted(dq_codes *c, const float *w, const dq_hessian *h, dq_err *err)
{
    const dq_code_shape s = c->shape;
    double *weight = dq_block_new((size_t)s.cols, sizeof *weight, err);
    if (!weight) return err->code;
    for (int64_t i = 0; i < s.cols; i++) {
        const double pivot = h->a[i * h->ld + i];
        weight[h->order[i]] = h->dead[h->order[i]] ? 0 : pivot * pivot;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s.rows; r++) {
        for (int64_t g = 0, at = 0; g < s.groups; g++, at += s.group_size) {
            const int64_t n = s.cols - at < s.group_size ? s.cols - at : s.group_size;
            c->grid[r * s.groups + g].scale =
                weighted_scale(w + r * s.cols + at, weight + at, n, &c->spec);
        }
    }
    dq_block_free(weight);
    return DQ_OK;
}

/* Rows of `other` that lose less replace those of c. */
static void take_better_rows(dq_codes *c, dq_gptq_loss *loss, const dq_codes *other,
                             const dq_gptq_loss *its)
{
    const dq_code_shape s = c->shape;
    for (int64_t r = 0; r < s.rows; r++) {
        if (!(its[r].error < loss[r].error)) continue;
        loss[r].error = its[r].error;
        memcpy(c->code + r * s.cols, other->code + r * s.cols, (size_t)s.cols);
        memcpy(c->grid + r * s.groups, other->grid + r * s.groups,
               (size_t)s.groups * sizeof *c->grid);
    }
}

/* What rows are rounded with: scales of the search, or weighted ones, times a factor. */
typedef struct variant {
    bool weighted;
    float factor;
} variant;
static const variant variants[] = {{true, 1}, {false, 0.9f}, {false, 0.95f}, {false, 1.05f}};

/* As stored; the scale itself where the product could not be. */
static float scaled(float scale, float factor, dq_dtype dtype)
{
    const float to = scale * factor;
    if (dtype == DQ_F16 && !dq_quant_scale_fits_f16(to)) return scale;
    return isfinite(to) ? dq_quant_stored_scale(to, dtype) : scale;
}

/* More roundings with other grids than those of c, which are those of the search. */
static dq_status try_variants(dq_codes *c, dq_gptq_loss *loss, const float *w, const dq_hessian *h,
                              dq_err *err)
{
    const dq_code_shape s = c->shape;
    const size_t grids = (size_t)(s.rows * s.groups);
    dq_codes *other = NULL;
    dq_gptq_loss *its = dq_block_new((size_t)s.rows, sizeof *its, err);
    dq_grid *plain = dq_block_new(grids, sizeof *plain, err);
    if (err->code == DQ_OK) dq_codes_new(&other, s.rows, s.cols, &c->spec, err);
    if (err->code == DQ_OK) memcpy(plain, c->grid, grids * sizeof *plain);
    for (size_t v = 0; err->code == DQ_OK && v < sizeof variants / sizeof *variants; v++) {
        for (size_t i = 0; i < grids; i++)
            other->grid[i].scale = scaled(plain[i].scale, variants[v].factor, c->spec.scale_dtype);
        if (variants[v].weighted) fit_weighted(other, w, h, err);
        if (err->code == DQ_OK) dq_gptq_round(other, w, h, its, err);
        if (err->code == DQ_OK) take_better_rows(c, loss, other, its);
    }
    dq_codes_free(other);
    dq_block_free(plain);
    dq_block_free(its);
    return err->code;
}

/* Scales found anew from the codes, and a rounding by them. */
static dq_status refit(dq_codes *c, dq_gptq_loss *loss, const float *w, const dq_hessian *h,
                       int times, dq_err *err)
{
    const dq_code_shape s = c->shape;
    dq_codes *other = NULL;
    dq_gptq_loss *its = dq_block_new((size_t)s.rows, sizeof *its, err);
    if (its) dq_codes_new(&other, s.rows, s.cols, &c->spec, err);
    for (int i = 0; err->code == DQ_OK && i < times; i++) {
        memcpy(other->code, c->code, (size_t)(s.rows * s.cols));
        memcpy(other->grid, c->grid, (size_t)(s.rows * s.groups) * sizeof *c->grid);
        dq_scale_refit(other, w, h, err);
        if (err->code == DQ_OK) dq_gptq_round(other, w, h, its, err);
        if (err->code == DQ_OK) take_better_rows(c, loss, other, its);
    }
    dq_codes_free(other);
    dq_block_free(its);
    return err->code;
}

dq_status dq_gptq_measure(dq_gptq_loss *loss, const dq_codes *c, const float *w,
                          const dq_hessian *h, dq_err *err)
{
    const int64_t rows = c->shape.rows;
    rounding of = {.w = w, .less = c, .rows = rows, .h = h};
    if (c->shape.cols != h->n) return dq_fail(err, DQ_BUG, "loss: inputs of another product");
    *loss = (dq_gptq_loss){0};
    of.loss = dq_block_new((size_t)rows, sizeof *of.loss, err);
    if (!of.loss) return err->code;
    if (run_strips(&of, err) == DQ_OK) { /* the signal of what is missing is the error */
        for (int64_t r = 0; r < rows; r++) loss->error += of.loss[r].signal;
        memset(of.loss, 0, (size_t)rows * sizeof *of.loss);
        of.less = NULL;
        run_strips(&of, err);
    }
    for (int64_t r = 0; err->code == DQ_OK && r < rows; r++) loss->signal += of.loss[r].signal;
    dq_block_free(of.loss);
    return err->code;
}

dq_status dq_gptq(dq_codes **out, const float *w, int64_t rows, int64_t cols, const dq_hessian *h,
                  const dq_quant_spec *spec, int refits, dq_gptq_loss *loss, dq_err *err)
{
    dq_gptq_loss *each = dq_block_new((size_t)rows, sizeof *each, err), all = {0};
    const rounding signal = {.w = w, .rows = rows, .h = h, .loss = each};
    *out = NULL;
    if (each && dq_codes_new(out, rows, cols, spec, err) == DQ_OK) {
        dq_codes_fit(*out, w);
        dq_gptq_round(*out, w, h, each, err);
        if (err->code == DQ_OK && spec->mode == DQ_SEARCH && (*out)->shape.grid_rows == rows)
            try_variants(*out, each, w, h, err);
        if (err->code == DQ_OK && refits > 0 && (*out)->shape.grid_rows == rows)
            refit(*out, each, w, h, refits, err);
        if (err->code == DQ_OK && loss) run_strips(&signal, err);
    }
    for (int64_t r = 0; err->code == DQ_OK && r < rows; r++) {
        all.error += each[r].error;
        all.signal += each[r].signal;
    }
    if (loss) *loss = all;
    dq_block_free(each);
    if (err->code == DQ_OK) return DQ_OK;
    dq_codes_free(*out);
    *out = NULL;
    return err->code;
}
