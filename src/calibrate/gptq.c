/* gptq: see gptq.h. Rows do not see each other: a task takes 64 of them through all columns. Columns go in blocks of 128: what
 * earlier blocks say about a block is one product in f64, inside it column after column.
 * SPDX-License-Identifier: MIT */
#include "calibrate/gptq.h"

#include "base/os.h"
#include "calibrate/f64_tile.h"

#include <math.h>
#include <string.h>

enum { ROWS = DQ_F64_TILE, BLOCK = 128 };

/* 64 rows, transposed: [n, 64] by index in the order of rounding. */
typedef struct strip {
    double *w, *error;
    double corner[BLOCK * BLOCK]; /* of L, its upper triangle 0 */
    _Alignas(64) double feedback[BLOCK * ROWS], signal[BLOCK * ROWS];
} strip;

typedef struct rounding {
    dq_codes *c;
    const float *w;
    const dq_hessian *h;
    const dq_weight_format *format;
    dq_gptq_loss *loss; /* [strips] */
} rounding;

static void load(strip *s, const rounding *g, int64_t first, int64_t rows)
{
    const int64_t n = g->h->n;
    for (int64_t i = 0; i < n; i++) {
        const float *w = g->w + first * n + g->h->order[i];
        for (int64_t r = 0; r < ROWS; r++) s->w[i * ROWS + r] = r < rows ? (double)w[r * n] : 0;
    }
}

/* What columns from `end` on have to say about columns begin .. end - 1 of L^T E and of L^T W. */
static void look_ahead(strip *s, const dq_hessian *h, int64_t begin, int64_t end)
{
    const int64_t cols = (end - begin + 3) / 4 * 4; /* padding reads what is not used */
    const double *l = h->a + end * h->ld + begin;
    memset(s->feedback, 0, sizeof s->feedback);
    memset(s->signal, 0, sizeof s->signal);
    dq_f64_tile_add(s->feedback, l, h->ld, s->error + end * ROWS, cols, h->n - end);
    dq_f64_tile_add(s->signal, l, h->ld, s->w + end * ROWS, cols, h->n - end);
    for (int64_t i = begin; i < end; i++) {
        memset(s->corner + (i - begin) * BLOCK, 0, BLOCK * sizeof *s->corner);
        memcpy(s->corner + (i - begin) * BLOCK, h->a + i * h->ld + begin,
               (size_t)(i - begin + 1) * sizeof *s->corner);
    }
    dq_f64_tile_add(s->signal, s->corner, BLOCK, s->w + begin * ROWS, BLOCK, end - begin);
}

/* Rounds column i of the order for all rows of the strip; returns the squared residuals, in units of w. */
static double round_column(strip *s, const rounding *g, int64_t first, int64_t rows, int64_t begin,
                           int64_t i)
{
    const dq_code_shape *shape = &g->c->shape;
    const int64_t col = g->h->order[i];
    const double *feedback = s->feedback + (i - begin) * ROWS;
    const double pivot = s->corner[(i - begin) * BLOCK + i - begin];
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double w = s->w[i * ROWS + r], want = w + feedback[r] / pivot;
        const float near = (float)want;
        const dq_grid grid = dq_codes_grid(g->c, first + r, col);
        float got;
        g->format->encode(&g->c->code[(first + r) * shape->cols + col], &got, &near, 1, grid,
                          &g->c->spec);
        s->error[i * ROWS + r] = w - (double)got;
        sum += (want - (double)got) * (want - (double)got);
    }
    return sum;
}

static void round_block(strip *s, const rounding *g, int64_t first, int64_t rows, int64_t begin,
                        int64_t end, dq_gptq_loss *loss)
{
    look_ahead(s, g->h, begin, end);
    for (int64_t i = end - 1; i >= begin; i--) {
        const double *l = s->corner + (i - begin) * BLOCK, *e = s->error + i * ROWS;
        const double pivot = l[i - begin], missed = round_column(s, g, first, rows, begin, i);
        const bool dead = g->h->dead[g->h->order[i]];
        for (int64_t k = 0; k < i - begin; k++) {
            for (int64_t r = 0; r < ROWS; r++) s->feedback[k * ROWS + r] += l[k] * e[r];
        }
        if (dead) continue;
        const double *w = s->w + i * ROWS, *wl = s->signal + (i - begin) * ROWS;
        loss->error += missed * pivot * pivot;
        for (int64_t r = 0; r < ROWS; r++) {
            loss->error -= g->h->damping * e[r] * e[r];
            loss->signal += wl[r] * wl[r] - g->h->damping * w[r] * w[r];
        }
    }
}

static void round_strip(strip *s, const rounding *g, int64_t index)
{
    const int64_t first = index * ROWS, n = g->h->n;
    const int64_t rows = g->c->shape.rows - first < ROWS ? g->c->shape.rows - first : ROWS;
    load(s, g, first, rows);
    memset(s->error, 0, (size_t)(n * ROWS) * sizeof *s->error);
    for (int64_t end = n, begin; end > 0; end = begin) {
        begin = end > BLOCK ? end - BLOCK : 0;
        round_block(s, g, first, rows, begin, end, &g->loss[index]);
    }
}

static void round_all(const rounding *g, dq_err *err)
{
    const int64_t n = g->h->n, strips = (g->c->shape.rows + ROWS - 1) / ROWS;
#pragma omp parallel
    {
        dq_err mine = {0};
        strip *s = dq_block_new(1, sizeof *s, &mine);
        if (s) s->w = dq_block_new((size_t)n, ROWS * sizeof *s->w, &mine);
        if (s) s->error = dq_block_new((size_t)n, ROWS * sizeof *s->error, &mine);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < strips; i++) {
            if (mine.code == DQ_OK && dq_os_check_stop(&mine) == DQ_OK) round_strip(s, g, i);
        }
        if (s) dq_block_free(s->w);
        if (s) dq_block_free(s->error);
        dq_block_free(s);
#pragma omp critical(dq_gptq_error)
        dq_fail_as(err, &mine);
    }
}

dq_status dq_gptq_round(dq_codes *c, const float *w, const dq_hessian *h, dq_gptq_loss *loss,
                        dq_err *err)
{
    const int64_t strips = (c->shape.rows + ROWS - 1) / ROWS;
    rounding g = {.c = c, .w = w, .h = h, .format = dq_weight_format_of_mode(c->spec.mode)};
    if (c->shape.cols != h->n)
        return dq_fail(err, DQ_BUG, "rounding: %lld columns, %lld inputs", (long long)c->shape.cols,
                       (long long)h->n);
    g.loss = dq_block_new((size_t)strips, sizeof *g.loss, err);
    if (!g.loss) return err->code;
    round_all(&g, err);
    dq_gptq_loss all = {0};
    for (int64_t i = 0; i < strips; i++) {
        all.error += g.loss[i].error;
        all.signal += g.loss[i].signal;
    }
    if (loss) *loss = all;
    dq_block_free(g.loss);
    return err->code;
}

dq_status dq_gptq(dq_codes **out, const float *w, int64_t rows, int64_t cols, const dq_hessian *h,
                  const dq_quant_spec *spec, dq_gptq_loss *loss, dq_err *err)
{
    DQ_TRY(dq_codes_new(out, rows, cols, spec, err));
    dq_codes_fit(*out, w);
    if (dq_gptq_round(*out, w, h, loss, err) == DQ_OK) return DQ_OK;
    dq_codes_free(*out);
    *out = NULL;
    return err->code;
}
