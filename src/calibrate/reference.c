/* reference: see reference.h. Differences are taken in place, in host memory, and handed to the sums block by block.
 * SPDX-License-Identifier: MIT */
#include "calibrate/reference.h"

#include "calibrate/calib_pass.h"
#include "engine/runner.h"
#include "tensor/tensor.h"

#include <string.h>

int64_t dq_reference_bytes(const dq_model *m, int64_t max_rows)
{
    return dq_cross_bytes(m->dim, dq_calib_pass_widest(m), max_rows) +
           dq_shrinkage_bytes(m->dim, dq_calib_pass_widest(m), max_rows) +
           2 * max_rows * m->dim * (int64_t)sizeof(float);
}

dq_status dq_reference_new(dq_reference *r, dq_activations *act, const dq_model *m,
                           int64_t max_rows, dq_err *err)
{
    *r = (dq_reference){.act = act, .m = m};
    const dq_mat shape = {.rows = max_rows, .cols = m->dim};
    r->x = r->lacks = shape;
    r->x.p = dq_block_new((size_t)max_rows, (size_t)m->dim * sizeof(float), err);
    r->lacks.p = dq_block_new((size_t)max_rows, (size_t)m->dim * sizeof(float), err);
    if (err->code == DQ_OK) dq_cross_new(&r->sums, m->dim, dq_calib_pass_widest(m), max_rows, err);
    if (err->code == DQ_OK)
        dq_shrinkage_new(&r->half, m->dim, dq_calib_pass_widest(m), max_rows, err);
    return err->code;
}

void dq_reference_free(dq_reference *r)
{
    dq_block_free(r->x.p);
    dq_block_free(r->lacks.p);
    dq_cross_free(r->sums);
    dq_shrinkage_free(&r->half);
    *r = (dq_reference){.act = NULL};
}

dq_layer_steps dq_reference_steps(const dq_reference *r, const dq_layer_steps *s, int number)
{
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    own.x = dq_calib_pass_first(r->x, s->x.rows);
    return own;
}

dq_status dq_reference_get(dq_reference *r, int64_t first, int64_t rows, dq_err *err)
{
    return dq_activations_get(r->act, DQ_ACTIVATIONS_BEFORE, first, dq_calib_pass_first(r->x, rows),
                              err);
}

dq_status dq_reference_put(dq_reference *r, int64_t first, dq_mat x, dq_err *err)
{
    return dq_activations_put(r->act, DQ_ACTIVATIONS_BEFORE, first, x, err);
}

void dq_reference_begin_inputs(dq_reference *r, int64_t n)
{
    r->of_inputs = true;
    dq_cross_begin(r->sums, n, n);
    dq_shrinkage_begin(&r->half, n, n);
}

void dq_reference_begin_outputs(dq_reference *r, int64_t n)
{
    r->of_inputs = false;
    dq_cross_begin(r->sums, r->m->dim, n);
    dq_shrinkage_begin(&r->half, r->m->dim, n);
}

/* lacks = want - (lacks + have); have NULL: nothing. */
static void take_from(dq_mat lacks, dq_mat want, const float *have)
{
    const int64_t n = lacks.rows * lacks.cols;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        lacks.p[i] = want.p[i] - (have ? lacks.p[i] + have[i] : lacks.p[i]);
}

dq_status dq_reference_add_inputs(dq_reference *r, const dq_layer_steps *s,
                                  void (*norm)(const dq_layer_steps *s), dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, s->h.rows);
    dq_layer_steps own = *s;
    own.x = dq_calib_pass_first(r->x, s->h.rows);
    own.h = lacks;
    norm(&own); /* gains are not rounded: those of the layer at hand */
    return dq_reference_add_read(r, s->b, s->h, err);
}

dq_status dq_reference_add_read(dq_reference *r, dq_backend *b, dq_mat x, dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, x.rows);
    const int64_t n = lacks.rows * lacks.cols;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) lacks.p[i] -= x.p[i];
    return dq_shrinkage_add_lacks(&r->half, r->sums, b, lacks, x, DQ_TILE_SUMS_NO_PIECES, err);
}

dq_status dq_reference_add_attention(dq_reference *r, const dq_layer_steps *s, int number,
                                     dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, s->x.rows);
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    own.x = lacks;
    memcpy(lacks.p, s->x.p, (size_t)(lacks.rows * lacks.cols) * sizeof *lacks.p);
    dq_layer_steps_out(&own);
    take_from(lacks, r->x, NULL);
    return dq_shrinkage_add_lacks(&r->half, r->sums, s->b, lacks, s->y, DQ_TILE_SUMS_NO_PIECES,
                                  err);
}

dq_status dq_reference_add_down(dq_reference *r, const dq_layer_steps *s, int number, int64_t at,
                                dq_mat gate, dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, gate.rows);
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    dq_layer_steps_down(&own, lacks, gate);
    take_from(lacks, dq_layer_steps_rows(r->x, at, at + gate.rows), s->x.p + at * s->x.cols);
    return dq_shrinkage_add_lacks(&r->half, r->sums, s->b, lacks, gate, DQ_FFN_ROWS, err);
}

dq_status dq_reference_add_none(dq_reference *r, dq_backend *b, int64_t piece, dq_err *err)
{
    const dq_mat lacks = {NULL, 0, r->sums->m}, x = {NULL, 0, r->sums->n};
    return dq_shrinkage_add_lacks(&r->half, r->sums, b, lacks, x, piece, err);
}

void dq_reference_feed_forward(const dq_layer_steps *s, dq_mat gate, dq_mat up)
{
    dq_layer_steps_norm_ffn(s);
    for (int64_t at = 0; at < s->x.rows; at += DQ_FFN_ROWS) {
        const int64_t left = s->x.rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
        const dq_mat rows = dq_layer_steps_rows(s->h, at, at + n);
        dq_layer_steps_gate_up(s, dq_calib_pass_first(gate, n), dq_calib_pass_first(up, n), rows);
        dq_layer_steps_down(s, rows, dq_calib_pass_first(gate, n));
    }
    s->b->ops->add(s->b, s->x, s->h);
}

dq_status dq_reference_solve(dq_reference *r, dq_hessian *h, double damping, const char *what,
                             double *share, dq_err *err)
{
    dq_cross *k = r->sums;
    double ridge;
    DQ_TRY(dq_shrinkage_find(&ridge, &r->half, h, k, what, err));
    DQ_TRY(dq_hessian_factor(h, ridge, what, err));
    DQ_TRY(dq_cross_mean(k, what, err));
    DQ_TRY(dq_correction_solve_in_step(k, h, err));
    *share = 0;
    for (int64_t i = 0; i < k->m; i++) {
        for (int64_t c = 0; c < k->n; c++) k->c[i * k->ld + c] *= r->half.share[i];
        *share += r->half.share[i] / (double)k->m;
    }
    return dq_hessian_refactor(h, damping, what, err);
}

dq_status dq_reference_correct(const dq_reference *r, float *w, int64_t first, int64_t rows,
                               const dq_quant_spec *spec, int64_t *kept, dq_err *err)
{
    const int64_t n = r->sums->n;
    int64_t n_kept = 0;
    const size_t bytes = (size_t)(rows * n) * sizeof *w;
    const dq_code_shape shape = dq_code_shape_of(rows, n, spec);
    float *before = dq_block_new(bytes, 1, err);
    if (!before) return err->code;
    memcpy(before, w, bytes);
    if (r->of_inputs)
        dq_correction_of_inputs(w, rows, r->sums, err);
    else
        dq_correction_of_outputs(w, first, rows, r->sums, err);
#pragma omp parallel for schedule(static) reduction(+ : n_kept)
    for (int64_t i = 0; i < rows; i++) {
        if (dq_codes_row_fits(w + i * n, &shape, spec)) continue;
        memcpy(w + i * n, before + i * n, (size_t)n * sizeof *w);
        n_kept++;
    }
    *kept = n_kept;
    dq_block_free(before);
    return err->code;
}
