/* scale_refit: see scale_refit.h. Group by group the rows of H that belong to it are gathered from the triangle that keeps H in
 * the order of rounding, and multiply the integers of 64 matrix rows at a time; what comes of it and the integers of another
 * group give one entry of each row's system. A system as large as a row has groups does not fit where these are many: then groups
 * are solved for in bands, one after the other, each with the scales of the others as they are by then.
 * SPDX-License-Identifier: MIT */
#include "calibrate/scale_refit.h"

#include "base/os.h"
#include "calibrate/cholesky.h"
#include "calibrate/f64_tile.h"
#include "tensor/tensor.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = DQ_F64_TILE,
    STRIPS = 8, /* of 64 matrix rows, at most, in memory at a time */
    BAND = 704, /* groups of a system: 64 of them take no more than SYSTEMS */
    PANEL = 512 /* rows of H at a time */
};
#define SYSTEMS ((int64_t)256 << 20) /* bytes */

/* What is allocated for a matrix. */
typedef struct sizes {
    int64_t rows;     /* at a time, whole strips */
    int64_t band, ld; /* groups of a system, and its row stride */
    int64_t panel, panel_ld;
} sizes;

typedef struct refit {
    dq_codes *c;
    const float *w;
    const dq_hessian *h;
    int64_t groups;
    sizes size;
    int64_t *place; /* [n] of a column in the order of rounding */
    double *panel;  /* [size.panel, size.panel_ld] rows of H */
    double *level,
        *weight; /* [size.rows / 64][n, 64] integers of rows, and what they are to give, transposed */
    double *left, *right;           /* [size.rows][band, ld] and [size.rows][ld]: the systems */
    int64_t first_group, end_group; /* of the band at hand */
} refit;

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t up_to(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static sizes sizes_of(const dq_code_shape *s)
{
    sizes z = {.band = least(s->groups, BAND), .panel = least(s->group_size, PANEL)};
    z.ld = dq_cholesky_stride(z.band);
    z.panel_ld = up_to(s->cols, 8);
    const int64_t strip = ROWS * z.band * z.ld * (int64_t)sizeof(double);
    const int64_t fit = SYSTEMS / strip, strips = least(fit > 1 ? fit : 1, STRIPS);
    z.rows = least(strips * ROWS, up_to(s->rows, ROWS));
    return z;
}

int64_t dq_scale_refit_bytes(const dq_code_shape *s)
{
    const sizes z = sizes_of(s);
    return (s->cols + z.panel * z.panel_ld + z.rows * (2 * s->cols + (z.band + 1) * z.ld)) *
           (int64_t)sizeof(double);
}

static void refit_free(refit *f)
{
    dq_block_free(f->place);
    dq_block_free(f->panel);
    dq_block_free(f->level);
    dq_block_free(f->weight);
    dq_block_free(f->left);
    dq_block_free(f->right);
}

static dq_status refit_new(refit *f, dq_codes *c, const float *w, const dq_hessian *h, dq_err *err)
{
    const sizes z = sizes_of(&c->shape);
    const size_t n = (size_t)h->n, rows = (size_t)z.rows, ld = (size_t)z.ld;
    *f = (refit){.c = c, .w = w, .h = h, .groups = c->shape.groups, .size = z};
    f->place = dq_block_new(n, sizeof *f->place, err);
    f->panel = dq_block_new((size_t)z.panel, (size_t)z.panel_ld * sizeof *f->panel, err);
    f->level = dq_block_new(n, rows * sizeof *f->level, err);
    f->weight = dq_block_new(n, rows * sizeof *f->weight, err);
    f->left = dq_block_new(rows * (size_t)z.band, ld * sizeof *f->left, err);
    f->right = dq_block_new(rows, ld * sizeof *f->right, err);
    if (err->code != DQ_OK) {
        refit_free(f);
        return err->code;
    }
    for (int64_t i = 0; i < h->n; i++) f->place[h->order[i]] = i;
    return DQ_OK;
}

/* Integers and weights of rows; of a column that the band does not reach, what its scale leaves of the weight. */
static void load(refit *f, int64_t first, int64_t rows)
{
    const dq_code_shape *s = &f->c->shape;
    const dq_weight_format *format = dq_weight_format_of_mode(f->c->spec.mode);
    const int64_t strips = (rows + ROWS - 1) / ROWS;
    memset(f->level, 0, (size_t)(strips * ROWS * s->cols) * sizeof *f->level);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (first + r) * s->cols, to = r / ROWS * s->cols * ROWS + r % ROWS;
        for (int64_t i = 0; i < s->cols; i++) {
            const dq_grid g = dq_codes_grid(f->c, first + r, i);
            const int64_t group = i / s->group_size;
            const bool mine = group >= f->first_group && group < f->end_group;
            const double z = format->level(f->c->code[at + i], g, &f->c->spec) *
                             (double)dq_codes_factor(f->c, i);
            f->level[to + i * ROWS] = z;
            f->weight[to + i * ROWS] = (double)f->w[at + i] - (mine ? 0 : (double)g.scale * z);
        }
    }
    memset(f->left, 0, (size_t)(rows * f->size.band * f->size.ld) * sizeof *f->left);
    memset(f->right, 0, (size_t)(rows * f->size.ld) * sizeof *f->right);
}

/* Rows begin .. end - 1 of H + damping I, columns in the matrix's order. */
static void gather(refit *f, int64_t begin, int64_t end)
{
    const dq_hessian *h = f->h;
#pragma omp parallel for schedule(static)
    for (int64_t i = begin; i < end; i++) {
        double *to = f->panel + (i - begin) * f->size.panel_ld;
        const int64_t p = f->place[i];
        for (int64_t j = 0; j < h->n; j++) {
            const int64_t q = f->place[j];
            to[j] = h->a[least(p, q) * h->ld + (p > q ? p : q)];
        }
        to[i] = h->diagonal[i] + h->damping;
    }
}

/* Adds what columns begin .. end - 1 of a group say to its row of the systems of 64 rows. */
static void fill(refit *f, int64_t strip, int64_t rows, int64_t group, int64_t begin, int64_t end)
{
    _Alignas(64) double tile[ROWS * ROWS];
    const int64_t n = f->h->n, ld = f->size.ld, mine = group - f->first_group;
    const double *level = f->level + strip * n * ROWS, *weight = f->weight + strip * n * ROWS;
    for (int64_t c = 0; c < n; c += ROWS) {
        const int64_t cols = least(ROWS, n - c);
        memset(tile, 0, sizeof tile);
        dq_f64_tile_add(tile, f->panel + c, f->size.panel_ld, level + begin * ROWS,
                        (cols + 3) / 4 * 4, end - begin);
        for (int64_t i = 0; i < cols; i++) {
            const int64_t other = (c + i) / f->c->shape.group_size - f->first_group;
            const bool both = other >= 0 && other < f->end_group - f->first_group;
            for (int64_t r = 0; r < rows; r++) {
                const int64_t row = strip * ROWS + r;
                const double x = tile[i * ROWS + r];
                if (both)
                    f->left[(row * f->size.band + mine) * ld + other] +=
                        x * level[(c + i) * ROWS + r];
                f->right[row * ld + mine] += x * weight[(c + i) * ROWS + r];
            }
        }
    }
}

/* The scales of a row whose system is complete, in place of right. False: it has no single solution. */
static bool solve(double *left, double *right, int64_t n, int64_t ld, dq_err *err)
{
    int64_t bad;
    for (int64_t i = 0; i < n; i++) { /* a group of zeros says nothing of its scale */
        if (left[i * ld + i] == 0) left[i * ld + i] = 1;
    }
    if (dq_cholesky(&bad, left, n, ld, err) != DQ_OK || bad >= 0) return false;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < i; k++) right[i] -= left[i * ld + k] * right[k];
        right[i] /= left[i * ld + i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < n; k++) right[i] -= left[k * ld + i] * right[k];
        right[i] /= left[i * ld + i];
    }
    return true;
}

/* The band's scales of a row, where they may stand. */
static void take(const refit *f, int64_t row, const double *scale)
{
    dq_grid *grid = f->c->grid + row * f->groups + f->first_group;
    const dq_dtype type = f->c->spec.scale_dtype;
    const dq_weight_format *format = dq_weight_format_of_mode(f->c->spec.mode);
    for (int64_t g = 0; g < f->end_group - f->first_group; g++) {
        const float got = dq_quant_stored_scale((float)scale[g], type);
        const float ratio = got / grid[g].scale; /* NaN and infinity where the old one is 0 */
        if (ratio >= 0.5f && ratio <= 2 && format->holds(got, type)) grid[g].scale = got;
    }
}

/* The systems of rows first .. for the groups of a band. */
static dq_status fill_band(refit *f, int64_t rows, dq_err *err)
{
    const dq_code_shape *s = &f->c->shape;
    for (int64_t g = f->first_group; g < f->end_group; g++) {
        const int64_t last = least((g + 1) * s->group_size, s->cols);
        for (int64_t begin = g * s->group_size, end; begin < last; begin = end) {
            end = least(begin + PANEL, last);
            DQ_TRY(dq_os_check_stop(err));
            gather(f, begin, end);
#pragma omp parallel for schedule(dynamic)
            for (int64_t t = 0; t < (rows + ROWS - 1) / ROWS; t++)
                fill(f, t, least(ROWS, rows - t * ROWS), g, begin, end);
        }
    }
    return DQ_OK;
}

static dq_status refit_band(refit *f, int64_t first, int64_t rows, dq_err *err)
{
    const int64_t groups = f->end_group - f->first_group, ld = f->size.ld;
    load(f, first, rows);
    DQ_TRY(fill_band(f, rows, err));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        dq_err mine = {0};
        double *right = f->right + r * ld;
        if (solve(f->left + r * f->size.band * ld, right, groups, ld, &mine))
            take(f, first + r, right);
#pragma omp critical(dq_scale_refit_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}

dq_status dq_scale_refit(dq_codes *c, const float *w, const dq_hessian *h, dq_err *err)
{
    refit f;
    if (c->shape.cols != h->n) return dq_fail(err, DQ_BUG, "scales: inputs of another product");
    if (c->shape.grid_rows == 1 && c->shape.rows > 1) return DQ_OK;
    DQ_TRY(refit_new(&f, c, w, h, err));
    for (int64_t r = 0; r < c->shape.rows; r += f.size.rows) {
        const int64_t rows = least(f.size.rows, c->shape.rows - r);
        for (int64_t g = 0; err->code == DQ_OK && g < f.groups; g = f.end_group) {
            f.first_group = g;
            f.end_group = least(g + BAND, f.groups);
            refit_band(&f, r, rows, err);
        }
    }
    refit_free(&f);
    return err->code;
}
