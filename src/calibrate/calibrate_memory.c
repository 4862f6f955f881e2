/* calibrate_memory: see calibrate_memory.h. Adds up what lives at the same time: a pass, the sums, the coded matrices of a layer,
 * and the rounding of the one that takes most.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_memory.h"

#include "base/os.h"
#include "calibrate/calibrate_job.h"
#include "calibrate/f64_tile.h"
#include "calibrate/scale_refit.h"

#include <string.h>

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Correcting a band of rows, rounding it, fitting scales: the one that takes most. */
static int64_t rounding_bytes(const dq_quantize_row *r, const dq_calibrate_rule *rule)
{
    const int64_t rows =
        r->one_scale || r->rows < DQ_CALIBRATE_BAND_ROWS ? r->rows : DQ_CALIBRATE_BAND_ROWS;
    const int64_t values = rows * r->cols, groups = (r->cols + r->group_size - 1) / r->group_size;
    const int64_t f32 = values * (int64_t)sizeof(float);
    const int64_t grids = rows * groups * (int64_t)sizeof(dq_grid), codes = values + grids;
    const int64_t corner = 1 << 15; /* what a thread has besides its rows, at most */
    const dq_weight_format *format = dq_weight_format_named(r->format);
    const int64_t tiles = format && format->encode_strip ? DQ_STRIP_ROWS / DQ_F64_TILE : 1;
    const int64_t strips =
        dq_os_threads() * tiles * (2 * r->cols * DQ_F64_TILE + corner) * (int64_t)sizeof(double);
    const dq_code_shape shape = {.rows = rows,
                                 .cols = r->cols,
                                 .group_size = r->group_size,
                                 .groups = groups,
                                 .grid_rows = rows};
    const int64_t refit = rule->refits > 0 ? dq_scale_refit_bytes(&shape) : 0;
    const int64_t round = 2 * codes + larger(grids + strips, refit);
    return f32 + (rule->aligns ? larger(f32 + strips, round) : round);
}

/* A matrix of a layer as the plan has it; false: it is absent. */
static bool find_row(dq_quantize_row *out, const dq_quantizer *q, const dq_weight *w)
{
    const int64_t n = dq_quantize_result(q)->n_tensors;
    for (int64_t i = 0; w->rows > 0 && i < n; i++) {
        *out = dq_quantize_row_at(q, i);
        if (strcmp(out->name, w->name) == 0) return true;
    }
    return false;
}

/* What lives of matrices that are rounded one after the other and used together. */
static int64_t matrices_bytes(const dq_calibrate *c, const dq_quantizer *q,
                              const dq_weight *const *all, int n)
{
    int64_t kept = 0, most = 0;
    for (int i = 0; i < n; i++) {
        dq_quantize_row r;
        if (!find_row(&r, q, all[i])) continue;
        if (r.packed) {
            kept += r.bytes;
            most = larger(most, rounding_bytes(&r, c->set.rule));
        } else if (r.dense_dtype != r.dtype) {
            kept += r.rows * r.cols * (int64_t)sizeof(float);
        }
    }
    return kept + most;
}

static int64_t layer_bytes(const dq_calibrate *c, const dq_quantizer *q, const dq_layer *l)
{
    const dq_weight *const all[] = {&l->q,    &l->k,  &l->v,    &l->o,
                                    &l->gate, &l->up, &l->down, &l->lambda_proj};
    return matrices_bytes(c, q, all, sizeof all / sizeof *all);
}

int64_t dq_calibrate_memory(const dq_calibrate *c, const dq_quantizer *q)
{
    const dq_model *m = c->m;
    const int64_t rows = dq_calib_pass_rows(&c->text);
    int64_t layer = 0;
    for (int i = 0; i < m->n_layers; i++) layer = larger(layer, layer_bytes(c, q, &m->layer[i]));
    const dq_weight *const end[] = {m->tied ? &m->embed : &m->head};
    layer = larger(layer, matrices_bytes(c, q, end, 1));
    int64_t sums = dq_hessian_bytes(dq_calib_pass_widest(m), rows);
    if (c->set.rule->aligns)
        sums +=
            dq_reference_bytes(m, rows) + dq_value_maps_bytes(m, dq_calib_text_longest(&c->text));
    return (dq_calib_pass_bytes(m, rows) + sums + layer) / 8 * 9;
}

dq_status dq_calibrate_memory_check(const dq_calibrate *c, const dq_quantizer *q, dq_err *err)
{
    const double mib = 1024.0 * 1024.0;
    const int64_t have = dq_os_memory_bytes(), want = dq_calibrate_memory(c, q);
    if (have <= 0 || want <= have) return DQ_OK;
    const char *less = c->set.rule->aligns ? ". gptq takes less than align" : "";
    return dq_fail(
        err, DQ_RESOURCE,
        "%s: not enough memory to calibrate (expected about %.1f MiB, this process can have "
        "%.1f MiB)%s.",
        c->m->name, (double)want / mib, (double)have / mib, less);
}
