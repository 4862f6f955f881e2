/* Group by group the rows of H that belong to it are gathered from the triangle that keeps H in
 * the order of rounding, and multiply the integers of 64 matrix rows at a time; what comes of it
 * and the integers of another group give one entry of each row's system. A system as large as a
 * row has groups does not fit where these are many: then groups are solved for in bands, one after
 * the other, each with the scales of the others as they are by then.
 * SPDX-License-Identifier: MIT */
#include "calibrate/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = DQ_F64_TILE,
    STRIPS = 8, /* of 64 matrix rows, at most, in memory at a time */
    BAND = 704, /* groups of a system: 64 of them take no more than SYSTEMS */
    PANEL = 512 /* rows of H at a time */
};
#define SYSTEMS ((int64_t)256 << 20) /* bytes */

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
    int64_t *place;         /* [n] of a column in the order of rounding */
    double *panel;          /* [size.panel, size.panel_ld] rows of H */
    double *level, *weight; /* [size.rows / 64][n, 64] integers, and targets, transposed */
    double *left, *right;   /* [size.rows][band, ld] and [size.rows][ld]: the systems */
    int64_t first_group, end_group;
} refit;

static int64_t up_to(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

static sizes sizes_of(const dq_code_shape *s)
{
    sizes z = {.band = dq_least(s->groups, BAND), .panel = dq_least(s->group_size, PANEL)};
    z.ld = dq_cholesky_stride(z.band);
    z.panel_ld = up_to(s->cols, 8);
    const int64_t strip = ROWS * z.band * z.ld * (int64_t)sizeof(double);
    const int64_t fit = SYSTEMS / strip, strips = dq_least(fit > 1 ? fit : 1, STRIPS);
    z.rows = dq_least(strips * ROWS, up_to(s->rows, ROWS));
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

/* Integers and weights of rows; where a column is outside the band, the rest of the weight after
 * its own scale. */
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

/* Columns in the matrix's order. */
static void gather(refit *f, int64_t begin, int64_t end)
{
    const dq_hessian *h = f->h;
#pragma omp parallel for schedule(static)
    for (int64_t i = begin; i < end; i++) {
        double *to = f->panel + (i - begin) * f->size.panel_ld;
        const int64_t p = f->place[i];
        for (int64_t j = 0; j < h->n; j++) {
            const int64_t q = f->place[j];
            to[j] = h->a[dq_least(p, q) * h->ld + (p > q ? p : q)];
        }
        to[i] = h->diagonal[i] + h->damping;
    }
}

/* Adds columns begin .. end - 1 of a group to its equation for 64 rows. */
static void fill(refit *f, int64_t strip, int64_t rows, int64_t group, int64_t begin, int64_t end)
{
    _Alignas(64) double tile[ROWS * ROWS];
    const int64_t n = f->h->n, ld = f->size.ld, mine = group - f->first_group;
    const double *level = f->level + strip * n * ROWS, *weight = f->weight + strip * n * ROWS;
    for (int64_t c = 0; c < n; c += ROWS) {
        const int64_t cols = dq_least(ROWS, n - c);
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

/* Solves a row's system into `right`; false: it is singular. */
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

static dq_status refit_band(refit *f, int64_t first, int64_t rows, dq_err *err)
{
    const int64_t groups = f->end_group - f->first_group, ld = f->size.ld;
    load(f, first, rows);
    /* Builds the systems of rows from `first` on for the groups of a band. */
    const dq_code_shape *s = &f->c->shape;
    for (int64_t g = f->first_group; g < f->end_group; g++) {
        const int64_t last = dq_least((g + 1) * s->group_size, s->cols);
        for (int64_t begin = g * s->group_size, end; begin < last; begin = end) {
            end = dq_least(begin + PANEL, last);
            DQ_TRY(dq_os_check_stop(err));
            gather(f, begin, end);
#pragma omp parallel for schedule(dynamic)
            for (int64_t t = 0; t < (rows + ROWS - 1) / ROWS; t++)
                fill(f, t, dq_least(ROWS, rows - t * ROWS), g, begin, end);
        }
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        dq_err mine = {0};
        double *right = f->right + r * ld;
        if (solve(f->left + r * f->size.band * ld, right, groups, ld, &mine)) {
            /* Accepts a band's scales of a row within their limits. */
            dq_grid *grid = f->c->grid + (first + r) * f->groups + f->first_group;
            const dq_dtype type = f->c->spec.scale_dtype;
            const dq_weight_format *format = dq_weight_format_of_mode(f->c->spec.mode);
            for (int64_t g = 0; g < f->end_group - f->first_group; g++) {
                const float got = dq_quant_stored_scale((float)right[g], type);
                const float ratio =
                    got / grid[g].scale; /* NaN and infinity where the old one is 0 */
                if (ratio >= 0.5f && ratio <= 2 && format->holds(got, type)) grid[g].scale = got;
            }
        }
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
        const int64_t rows = dq_least(f.size.rows, c->shape.rows - r);
        for (int64_t g = 0; err->code == DQ_OK && g < f.groups; g = f.end_group) {
            f.first_group = g;
            f.end_group = dq_least(g + BAND, f.groups);
            refit_band(&f, r, rows, err);
        }
    }
    refit_free(&f);
    return err->code;
}

/* Rows are independent: a task takes 64, or a strip with common codes, through all columns. Columns
 * go in blocks of 128; the effect of earlier blocks is one f64 product, and likewise within a
 * block. */

enum { BLOCK_ROWS = DQ_F64_TILE, BLOCK = 128, COLUMNS = 16, TILES = DQ_STRIP_ROWS / BLOCK_ROWS };

/* 64 rows, transposed: [n, 64] in the order of rounding. */
typedef struct strip {
    double *w, *error;
    double corner[BLOCK * BLOCK]; /* of L, its upper triangle 0 */
    _Alignas(64) double ahead[BLOCK * BLOCK_ROWS];
} strip;

typedef struct rounding {
    dq_codes *c;          /* NULL: only the signal is wanted */
    const float *w;       /* [rows, n] */
    const dq_codes *less; /* whose values are taken from w; NULL: none */
    int64_t rows;
    const dq_hessian *h;
    const bool *zero; /* [n] by column: makes up for no error; NULL: all do */
    const dq_weight_format *format;
    dq_gptq_loss *loss; /* [rows] */
} rounding;

static void gptq_load(strip *s, const rounding *g, int64_t first, int64_t rows)
{
    const int64_t n = g->h->n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t col = g->h->order[i];
        const float *w = g->w + first * n + col;
        double *to = s->w + i * BLOCK_ROWS;
        for (int64_t r = 0; r < BLOCK_ROWS; r++) to[r] = r < rows ? (double)w[r * n] : 0;
        for (int64_t r = 0; g->less && r < rows; r++)
            to[r] -= (double)dq_codes_value(g->less, first + r, col);
    }
}

/* ahead = rows begin .. end - 1 of L^T x, from columns `end` on. */
static void look_ahead(strip *s, const dq_hessian *h, const double *x, int64_t begin, int64_t end)
{
    const int64_t cols = (end - begin + 3) / 4 * 4; /* padding gives what is not used */
    memset(s->ahead, 0, sizeof s->ahead);
    dq_f64_tile_add(s->ahead, h->a + end * h->ld + begin, h->ld, x + end * BLOCK_ROWS, cols,
                    h->n - end);
}

/* The error of earlier columns that this one makes up for. */
static double made_up(const rounding *g, int64_t col, double ahead, double pivot)
{
    return g->zero && g->zero[col] ? 0 : ahead / pivot;
}

/* Rounds column i of the order for all rows; missed[r]: the rounding error alone. */
static void round_alone(strip *s, double missed[BLOCK_ROWS], const rounding *g, int64_t first,
                        int64_t rows, int64_t begin, int64_t i)
{
    const dq_code_shape *shape = &g->c->shape;
    const int64_t col = g->h->order[i];
    const double *ahead = s->ahead + (i - begin) * BLOCK_ROWS;
    const double pivot = s->corner[(i - begin) * BLOCK + i - begin];
    for (int64_t r = 0; r < rows; r++) {
        const double w = s->w[i * BLOCK_ROWS + r], want = w + made_up(g, col, ahead[r], pivot);
        const float near = (float)want;
        const dq_grid grid = dq_codes_grid(g->c, first + r, col);
        float got;
        g->format->encode(&g->c->code[(first + r) * shape->cols + col], &got, &near, 1, grid,
                          &g->c->spec);
        s->error[i * BLOCK_ROWS + r] = w - (double)got;
        missed[r] = want - (double)got;
    }
}

/* Passes the error of column i on to the later ones of its block, and adds its loss. */
static void pass_on(strip *s, const double missed[BLOCK_ROWS], const rounding *g, int64_t first,
                    int64_t rows, int64_t begin, int64_t end, int64_t i)
{
    dq_gptq_loss *loss = g->loss + first;
    const double *l = s->corner + (i - begin) * BLOCK, *e = s->error + i * BLOCK_ROWS;
    const int64_t column = (i - begin) / COLUMNS * COLUMNS; /* a few columns at once */
    for (int64_t k = column; k < i - begin; k++) {
        for (int64_t r = 0; r < BLOCK_ROWS; r++) s->ahead[k * BLOCK_ROWS + r] += l[k] * e[r];
    }
    if (i == begin + column) {
        const int64_t last = end - i < COLUMNS ? end - i : COLUMNS;
        dq_f64_tile_add(s->ahead, l, BLOCK, e, column, last);
    }
    for (int64_t r = 0; r < rows && !g->h->dead[g->h->order[i]]; r++) {
        const double left = missed[r] * l[i - begin];
        loss[r].error += left * left - g->h->damping * e[r] * e[r];
    }
}

static int64_t tile_rows(int64_t rows, int tile)
{
    const int64_t left = rows - tile * (int64_t)BLOCK_ROWS;
    return left < BLOCK_ROWS ? left : BLOCK_ROWS;
}

static void round_block(strip *const s[TILES], int tiles, const rounding *g, int64_t first,
                        int64_t rows, int64_t begin, int64_t end)
{
    double missed[TILES][BLOCK_ROWS];
    for (int t = 0; t < tiles; t++) look_ahead(s[t], g->h, s[t]->error, begin, end);
    for (int64_t i = end - 1; i >= begin; i--) {
        if (g->format->encode_strip) {
            /* The same for rows with common codes, ROWS of them in each of s. */
            const int64_t cols = g->c->shape.cols, col = g->h->order[i],
                          n = dq_weight_strip_padded(rows);
            const float factor = dq_codes_factor(g->c, col);
            float want[DQ_STRIP_ROWS], scale[DQ_STRIP_ROWS], got[DQ_STRIP_ROWS];
            int8_t q[DQ_STRIP_ROWS];
            for (int64_t r = 0; r < rows; r++) {
                const strip *t = s[r / BLOCK_ROWS];
                const double pivot = t->corner[(i - begin) * BLOCK + i - begin];
                const double ahead = t->ahead[(i - begin) * BLOCK_ROWS + r % BLOCK_ROWS];
                want[r] =
                    (float)(t->w[i * BLOCK_ROWS + r % BLOCK_ROWS] + made_up(g, col, ahead, pivot));
                scale[r] = dq_codes_grid(g->c, first + r, col).scale * factor;
            }
            g->format->encode_strip(q, got, want, scale, rows, &g->c->spec);
            for (int64_t r = 0; r < n; r++) g->c->code[(first + r) * cols + col] = q[r];
            for (int64_t r = 0; r < rows; r++) {
                strip *t = s[r / BLOCK_ROWS];
                const double pivot = t->corner[(i - begin) * BLOCK + i - begin];
                const double w = t->w[i * BLOCK_ROWS + r % BLOCK_ROWS];
                const double ahead = t->ahead[(i - begin) * BLOCK_ROWS + r % BLOCK_ROWS];
                t->error[i * BLOCK_ROWS + r % BLOCK_ROWS] = w - (double)got[r];
                missed[r / BLOCK_ROWS][r % BLOCK_ROWS] = w + ahead / pivot - (double)got[r];
            }
        } else {
            round_alone(s[0], missed[0], g, first, rows, begin, i);
        }
        for (int t = 0; t < tiles; t++)
            pass_on(s[t], missed[t], g, first + t * BLOCK_ROWS, tile_rows(rows, t), begin, end, i);
    }
}

/* |L^T w|^2 without the damping. */
static void signal_of_block(strip *s, const rounding *g, int64_t first, int64_t rows, int64_t begin,
                            int64_t end)
{
    look_ahead(s, g->h, s->w, begin, end);
    dq_f64_tile_add(s->ahead, s->corner, BLOCK, s->w + begin * BLOCK_ROWS, BLOCK, end - begin);
    for (int64_t i = begin; i < end; i++) {
        const double *w = s->w + i * BLOCK_ROWS, *lw = s->ahead + (i - begin) * BLOCK_ROWS;
        for (int64_t r = 0; r < rows && !g->h->dead[g->h->order[i]]; r++)
            g->loss[first + r].signal += lw[r] * lw[r] - g->h->damping * w[r] * w[r];
    }
}

static int64_t strip_rows(const rounding *g)
{
    return g->c && g->format->encode_strip ? DQ_STRIP_ROWS : BLOCK_ROWS;
}

static void run_strip(strip *const s[TILES], const rounding *g, int64_t first)
{
    const int64_t n = g->h->n, each = strip_rows(g), left = g->rows - first,
                  rows = left < each ? left : each;
    const int tiles = (int)((rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
    for (int t = 0; t < tiles; t++) {
        gptq_load(s[t], g, first + t * BLOCK_ROWS, tile_rows(rows, t));
        memset(s[t]->error, 0, (size_t)(n * BLOCK_ROWS) * sizeof *s[t]->error);
    }
    for (int64_t end = n, begin; end > 0; end = begin) {
        begin = end > BLOCK ? end - BLOCK : 0;
        for (int t = 0; t < tiles; t++) {
            for (int64_t i = begin; i < end; i++) {
                double *to = s[t]->corner + (i - begin) * BLOCK;
                memset(to, 0, BLOCK * sizeof *to);
                memcpy(to, g->h->a + i * g->h->ld + begin, (size_t)(i - begin + 1) * sizeof *to);
            }
        }
        if (g->c)
            round_block(s, tiles, g, first, rows, begin, end);
        else
            signal_of_block(s[0], g, first, rows, begin, end);
    }
}

static strip *strip_new(size_t n, dq_err *err)
{
    strip *s = dq_block_new(1, sizeof *s, err);
    if (s) s->w = dq_block_new(n, BLOCK_ROWS * sizeof *s->w, err);
    if (s) s->error = dq_block_new(n, BLOCK_ROWS * sizeof *s->error, err);
    return s;
}

static void strip_free(strip *s)
{
    if (!s) return;
    dq_block_free(s->w);
    dq_block_free(s->error);
    dq_block_free(s);
}

static dq_status run_strips(const rounding *g, dq_err *err)
{
    const size_t n = (size_t)g->h->n;
    const int64_t each = strip_rows(g);
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s[TILES] = {NULL};
        for (int t = 0; t * BLOCK_ROWS < each && mine.code == DQ_OK; t++)
            s[t] = strip_new(n, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < g->rows; first += each) {
            if (mine.code == DQ_OK && dq_os_check_stop(&mine) == DQ_OK) run_strip(s, g, first);
        }
        for (int t = 0; t < TILES; t++) strip_free(s[t]);
#pragma omp critical(dq_gptq_error)
        dq_fail_as(err, &mine);
    }
    return err->code;
}

dq_status dq_gptq_round(dq_codes *c, const float *w, const dq_hessian *h, const bool *zero,
                        dq_gptq_loss *loss, dq_err *err)
{
    const rounding g = {.c = c,
                        .w = w,
                        .rows = c->shape.rows,
                        .h = h,
                        .zero = zero,
                        .format = dq_weight_format_of_mode(c->spec.mode),
                        .loss = loss};
    if (c->shape.cols != h->n)
        return dq_fail(err, DQ_BUG, "rounding: %lld columns, %lld inputs", (long long)c->shape.cols,
                       (long long)h->n);
    for (int64_t r = 0; r < c->shape.rows; r++) loss[r].error = 0;
    return run_strips(&g, err);
}

/* Fits grids with values weighted by the squared pivot of their column, the cost of their rounding
 * error. */
static dq_status fit_weighted(dq_codes *c, const float *w, const dq_hessian *h, dq_err *err)
{
    const dq_code_shape s = c->shape;
    const dq_weight_format *f = dq_weight_format_of_mode(c->spec.mode);
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
            const dq_quant_spec spec = dq_quant_spec_at(&c->spec, at);
            c->grid[r * s.groups + g] = f->fit_weighted(w + r * s.cols + at, weight + at, n, &spec);
        }
    }
    dq_block_free(weight);
    return DQ_OK;
}

/* Takes rows of `other` with less loss, or whole strips where codes are common. */
static void take_better_rows(dq_codes *c, dq_gptq_loss *loss, const dq_codes *other,
                             const dq_gptq_loss *its)
{
    const dq_code_shape s = c->shape;
    const bool together = dq_weight_format_of_mode(c->spec.mode)->encode_strip;
    const int64_t each = together ? DQ_STRIP_ROWS : 1;
    const int64_t all = dq_codes_rows(s.rows, &c->spec);
    for (int64_t r = 0; r < s.rows; r += each) {
        const int64_t rows = s.rows - r < each ? s.rows - r : each,
                      coded = all - r < each ? all - r : each;
        double now = 0, then = 0;
        for (int64_t k = 0; k < rows; k++) {
            now += loss[r + k].error;
            then += its[r + k].error;
        }
        if (!(then < now)) continue;
        memcpy(loss + r, its + r, (size_t)rows * sizeof *loss);
        memcpy(c->code + r * s.cols, other->code + r * s.cols, (size_t)(coded * s.cols));
        memcpy(c->grid + r * s.groups, other->grid + r * s.groups,
               (size_t)(rows * s.groups) * sizeof *c->grid);
    }
}

/* As stored; unscaled if the product does not fit. */
static float scaled(float scale, float factor, const dq_quant_spec *spec)
{
    const float to = scale * factor;
    if (!dq_weight_format_of_mode(spec->mode)->holds(to, spec->scale_dtype)) return scale;
    return isfinite(to) ? dq_quant_stored_scale(to, spec->scale_dtype) : scale;
}

/* Rounds again with other grids than those of c. */
static dq_status try_variants(dq_codes *c, dq_gptq_loss *loss, const float *w, const dq_hessian *h,
                              const bool *zero, dq_err *err)
{
    const dq_code_shape s = c->shape;
    const size_t grids = (size_t)(s.rows * s.groups);
    dq_codes *other = NULL;
    dq_gptq_loss *its = dq_block_new((size_t)s.rows, sizeof *its, err);
    dq_grid *plain = dq_block_new(grids, sizeof *plain, err);
    if (err->code == DQ_OK) dq_codes_new(&other, s.rows, s.cols, &c->spec, err);
    if (err->code == DQ_OK) memcpy(plain, c->grid, grids * sizeof *plain);
    for (int v = 0; err->code == DQ_OK && v < DQ_GPTQ_TRIES - 1; v++) {
        if (v == 0) fit_weighted(other, w, h, err);
        for (size_t i = 0; v > 0 && i < grids; i++)
            other->grid[i].scale =
                scaled(plain[i].scale, dq_quant_modes[c->spec.mode].tries[v - 1], &c->spec);
        if (err->code == DQ_OK) dq_gptq_round(other, w, h, zero, its, err);
        if (err->code == DQ_OK) take_better_rows(c, loss, other, its);
    }
    dq_codes_free(other);
    dq_block_free(plain);
    dq_block_free(its);
    return err->code;
}

dq_status dq_gptq_measure(dq_gptq_loss *loss, const dq_codes *c, const float *w,
                          const dq_hessian *h, dq_err *err)
{
    const int64_t rows = c->shape.rows;
    rounding of = {.w = w, .less = c, .rows = rows, .h = h, .loss = loss};
    if (c->shape.cols != h->n) return dq_fail(err, DQ_BUG, "loss: inputs of another product");
    for (int64_t r = 0; r < rows; r++) loss[r] = (dq_gptq_loss){0};
    DQ_TRY(run_strips(&of, err)); /* the signal of what is missing is the error */
    for (int64_t r = 0; r < rows; r++) loss[r] = (dq_gptq_loss){.error = loss[r].signal};
    of.less = NULL;
    return run_strips(&of, err);
}

void dq_gptq_loss_add(dq_gptq_loss *sum, const dq_gptq_loss *loss, int64_t rows)
{
    dq_gptq_loss all = {0}; /* of these alone first: a band does not depend on those before it */
    for (int64_t r = 0; r < rows; r++) {
        all.error += loss[r].error;
        all.signal += loss[r].signal;
    }
    sum->error += all.error;
    sum->signal += all.signal;
}

/* Limits weights of dead inputs to the range of the others in their group and rows, as they would
 * set its scale. A group of only such weights stays. */
static void limit_dead(float *w, int64_t rows, int64_t ld, int64_t from, int64_t to,
                       const bool *dead)
{
    float low = INFINITY, high = -INFINITY;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = from; i < to; i++) {
            if (dead[i]) continue;
            low = fminf(low, w[r * ld + i]);
            high = fmaxf(high, w[r * ld + i]);
        }
    }
    for (int64_t r = 0; r < rows && low <= high; r++) {
        for (int64_t i = from; i < to; i++)
            if (dead[i]) w[r * ld + i] = fminf(fmaxf(w[r * ld + i], low), high);
    }
}

/* *limited: a copy of w[rows, cols], a block; NULL without dead inputs. */
static dq_status limit_all_dead(float **limited, const float *w, const dq_codes *c,
                                const dq_hessian *h, dq_err *err)
{
    const dq_code_shape s = c->shape;
    const int64_t together = s.grid_rows == s.rows ? 1 : s.rows;
    if (h->n_dead == 0) return DQ_OK;
    *limited = dq_block_new((size_t)s.rows, (size_t)s.cols * sizeof **limited, err);
    if (!*limited) return err->code;
    memcpy(*limited, w, (size_t)(s.rows * s.cols) * sizeof *w);
    for (int64_t r = 0; r < s.rows; r += together) {
        for (int64_t from = 0, to; from < s.cols; from = to) {
            to = from + s.group_size < s.cols ? from + s.group_size : s.cols;
            limit_dead(*limited + r * s.cols, together, s.cols, from, to, h->dead);
        }
    }
    return DQ_OK;
}

dq_status dq_gptq_zero_columns(bool **zero, const dq_weight *w, dq_err *err)
{
    int64_t left = w->cols;
    float *row = dq_block_new((size_t)w->cols, sizeof *row, err);
    bool *of = *zero = dq_block_new((size_t)w->cols, sizeof *of, err);
    for (int64_t i = 0; of && i < w->cols; i++) of[i] = true;
    for (int64_t r = 0; row && of && left > 0 && r < w->rows; r++) {
        dq_weight_dequantize_rows(row, w, r, r + 1);
        for (int64_t i = 0; i < w->cols; i++) {
            left -= of[i] && row[i] != 0;
            of[i] = of[i] && row[i] == 0;
        }
    }
    dq_block_free(row);
    if (left > 0) return err->code;
    dq_block_free(of);
    *zero = NULL;
    return err->code;
}

dq_status dq_gptq(dq_codes **out, const float *w, int64_t rows, int64_t cols, const dq_hessian *h,
                  const bool *zero, const dq_quant_spec *spec, int refits, dq_gptq_loss *loss,
                  dq_err *err)
{
    dq_gptq_loss *own = loss ? NULL : dq_block_new((size_t)rows, sizeof *own, err),
                 *each = loss ? loss : own;
    const rounding signal = {.w = w, .rows = rows, .h = h, .loss = each};
    float *limited = NULL;
    *out = NULL;
    if (each && dq_codes_new(out, rows, cols, spec, err) == DQ_OK &&
        limit_all_dead(&limited, w, *out, h, err) == DQ_OK) {
        if (limited) w = limited;
        for (int64_t r = 0; r < rows; r++) each[r] = (dq_gptq_loss){0};
        dq_codes_fit(*out, w);
        dq_gptq_round(*out, w, h, zero, each, err);
        if (err->code == DQ_OK && dq_quant_modes[spec->mode].tries[0] > 0 &&
            (*out)->shape.grid_rows == rows)
            try_variants(*out, each, w, h, zero, err);
        if (err->code == DQ_OK && refits > 0 && (*out)->shape.grid_rows == rows) {
            /* Refits scales to the codes and rounds with them. */
            dq_codes *c = *out;
            const dq_code_shape s = c->shape;
            dq_codes *other = NULL;
            dq_gptq_loss *its = dq_block_new((size_t)s.rows, sizeof *its, err);
            if (its) dq_codes_new(&other, s.rows, s.cols, &c->spec, err);
            for (int i = 0; err->code == DQ_OK && i < refits; i++) {
                memcpy(other->code, c->code, (size_t)(dq_codes_rows(s.rows, &c->spec) * s.cols));
                memcpy(other->grid, c->grid, (size_t)(s.rows * s.groups) * sizeof *c->grid);
                dq_scale_refit(other, w, h, err);
                if (err->code == DQ_OK) dq_gptq_round(other, w, h, zero, its, err);
                if (err->code == DQ_OK) take_better_rows(c, each, other, its);
            }
            dq_codes_free(other);
            dq_block_free(its);
        }
        if (err->code == DQ_OK && loss) run_strips(&signal, err);
    }
    dq_block_free(own);
    dq_block_free(limited);
    if (err->code == DQ_OK) return DQ_OK;
    dq_codes_free(*out);
    *out = NULL;
    return err->code;
}

/* Sends a rank's codes to all. */
static dq_status pass_codes(dq_codes **c, const dq_gptq_stripes *s, int rank, int64_t rows,
                            dq_err *err)
{
    const dq_code_shape *shape;
    if (rank != dq_ranks_number()) dq_codes_new(c, rows, s->cols, s->spec, err);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    shape = &(*c)->shape;
    dq_ranks_spread(rank, (*c)->code, (size_t)(dq_codes_rows(rows, s->spec) * shape->cols));
    dq_ranks_spread(rank, (*c)->grid, (size_t)(rows * shape->groups) * sizeof *(*c)->grid);
    return DQ_OK;
}

dq_status dq_gptq_stripes_round(const dq_gptq_stripes *s, dq_coded *out, dq_gptq_loss *loss,
                                int64_t first, int64_t rows, dq_err *err)
{
    if (s->whole) {
        dq_codes *all = NULL;
        if (s->round(s->arg, &all, loss, first, rows, err) == DQ_OK) dq_coded_put(out, all, first);
        dq_codes_free(all);
        return err->code;
    }
    enum { UNIT = DQ_STRIP_ROWS };
    const dq_ranks_rows mine = dq_ranks_stripe(dq_ranks_number(), rows, UNIT);
    dq_codes *own = NULL;
    if (mine.end > mine.first)
        s->round(s->arg, &own, loss + mine.first, first + mine.first, mine.end - mine.first, err);
    for (int rank = 0; err->code == DQ_OK && rank < dq_ranks_count(); rank++) {
        const dq_ranks_rows its = dq_ranks_stripe(rank, rows, UNIT);
        dq_codes *codes = rank == dq_ranks_number() ? own : NULL;
        if (its.end == its.first) continue;
        if (pass_codes(&codes, s, rank, its.end - its.first, err) == DQ_OK)
            dq_coded_put(out, codes, first + its.first);
        if (codes != own) dq_codes_free(codes);
    }
    dq_codes_free(own);
    DQ_TRY(dq_ranks_agree(NULL, NULL, err));
    dq_ranks_join(loss, rows, UNIT, sizeof *loss);
    return DQ_OK;
}
