/* weight_outliers: see weight_outliers.h. Rows are dequantized in blocks, and a tally and a table of columns take them; both are
 * used again for the next matrix, so memory is that of the widest.
 * SPDX-License-Identifier: MIT */
#include "calib/weight_outliers.h"

#include "base/os.h"
#include "calib/outliers.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, ROLES = 8 };
static const char *const roles[ROLES] = {"q", "k", "v", "o", "gate", "up", "down", "lambda"};

static void weights_of(const dq_weight *out[ROLES], const dq_layer *l)
{
    const dq_weight *const all[ROLES] = {&l->q,    &l->k,  &l->v,    &l->o,
                                         &l->gate, &l->up, &l->down, &l->lambda_proj};
    memcpy(out, all, sizeof all);
}

static int ascending(const void *a, const void *b)
{
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static dq_status find_column(dq_weight_outlier *to, const dq_channels *c, dq_err *err)
{
    double *rms = dq_block_new((size_t)c->cols, sizeof *rms, err);
    double largest = -1;
    if (!rms) return err->code;
    for (int64_t i = 0; i < c->cols; i++) {
        rms[i] = dq_channels_rms(c, DQ_TOKEN_ORDINARY, i);
        if (rms[i] <= largest) continue;
        largest = rms[i];
        to->largest_col = i;
    }
    qsort(rms, (size_t)c->cols, sizeof *rms, ascending);
    const double median = rms[(c->cols - 1) / 2];
    to->col_ratio = median > 0 ? largest / median : 0;
    dq_block_free(rms);
    return DQ_OK;
}

static void read_tally(dq_weight_outlier *to, const dq_tally *t)
{
    to->n_bad = t->n_bad;
    to->max = t->n_top ? t->top[0] : 0;
    to->row = t->n_top ? t->place[0].row : -1;
    to->col = t->n_top ? t->place[0].col : -1;
    to->median = dq_tally_quantile(t, 0.5, NULL);
    to->p99_9 = dq_tally_quantile(t, 0.999, NULL);
    to->rms = dq_outlier_rms(t);
    to->kurtosis0 = dq_outlier_kurtosis0(t);
}

static dq_status look_at(dq_weight_outlier *to, const dq_weight *w, dq_tally *t, dq_err *err)
{
    dq_channels c;
    float *x = dq_block_raw((size_t)(ROWS * w->cols), sizeof *x, err);
    dq_channels_init(&c, w->cols, err);
    dq_tally_clear(t);
    for (int64_t row = 0; row < w->rows && err->code == DQ_OK; row += ROWS) {
        const int64_t end = row + ROWS < w->rows ? row + ROWS : w->rows;
        if (dq_os_check_stop(err) != DQ_OK) break;
        dq_weight_dequantize_rows(x, w, row, end);
        for (int64_t r = row; r < end; r++)
            dq_tally_add(t, x + (r - row) * w->cols, w->cols,
                         (dq_place){-1, to->layer, -1, (int32_t)r, 0});
        dq_channels_add(&c, DQ_TOKEN_ORDINARY, x, end - row, 0, w->cols, 0, (int32_t)row);
        c.rows[DQ_TOKEN_ORDINARY] += end - row;
    }
    if (err->code == DQ_OK) {
        read_tally(to, t);
        find_column(to, &c, err);
    }
    dq_channels_free(&c);
    dq_block_free(x);
    return err->code;
}

static dq_status add(dq_weight_outliers *o, const dq_weight *w, const char *role, int layer,
                     dq_tally *t, dq_err *err)
{
    if (w->rows == 0) return DQ_OK;
    dq_weight_outlier *to = &o->of[o->n];
    *to = (dq_weight_outlier){
        .name = w->name, .role = role, .layer = layer, .rows = w->rows, .cols = w->cols};
    DQ_TRY(look_at(to, w, t, err));
    o->n++;
    return DQ_OK;
}

dq_status dq_weight_outliers_collect(dq_weight_outliers *o, const dq_model *m, dq_err *err)
{
    dq_tally t = {0};
    *o = (dq_weight_outliers){0};
    DQ_TRY(dq_model_check_weights(m, err));
    o->of = dq_block_new((size_t)(m->n_layers * ROLES + 2), sizeof *o->of, err);
    if (!o->of) return err->code;
    if (dq_tally_init(&t, err) == DQ_OK) add(o, &m->embed, "embed", -1, &t, err);
    for (int l = 0; l < m->n_layers && err->code == DQ_OK; l++) {
        const dq_weight *all[ROLES];
        weights_of(all, &m->layer[l]);
        for (int i = 0; i < ROLES && err->code == DQ_OK; i++) add(o, all[i], roles[i], l, &t, err);
    }
    if (err->code == DQ_OK && !m->tied) add(o, &m->head, "head", -1, &t, err);
    dq_tally_free(&t);
    return err->code;
}

void dq_weight_outliers_free(dq_weight_outliers *o)
{
    dq_block_free(o->of);
    *o = (dq_weight_outliers){0};
}
