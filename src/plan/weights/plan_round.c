/* plan_round: see plan_round.h. Rows are coded group by group with the loop of the format, as a container's are.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_round.h"

#include "tensor/tensor.h"

#include <math.h>

dq_dtype dq_plan_round_scale(const float *w, int64_t rows, int64_t cols, const dq_quant_spec *spec)
{
    dq_code_shape s = dq_code_shape_of(rows, cols, spec);
    if (s.grid_rows == 1 && s.groups == 1) /* one scale for all rows, which lie side by side */
        s = (dq_code_shape){.rows = 1, .cols = rows * cols, .group_size = rows * cols};
    for (int64_t r = 0; r < s.rows; r++) {
        if (!dq_codes_row_fits(w + r * s.cols, &s, spec)) return DQ_F32;
    }
    return spec->scale_dtype;
}

dq_status dq_plan_round_values(float **out, const dq_weight *w, dq_err *err)
{
    const int64_t n = w->rows * w->cols;
    float *f32 = *out = dq_block_new((size_t)w->rows, (size_t)w->cols * sizeof *f32, err);
    bool finite = true;
    if (!f32) return err->code;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < w->rows; r++) dq_weight_dequantize_rows(f32 + r * w->cols, w, r, r + 1);
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t i = 0; i < n; i++) finite = finite && isfinite(f32[i]);
    return finite ? DQ_OK : dq_fail(err, DQ_DAMAGED, "%s: has values that are not finite", w->name);
}

dq_status dq_plan_round_nearest(dq_coded *out, dq_gptq_loss *loss, const float *w, int64_t rows,
                                int64_t cols, const dq_quant_spec *spec, dq_err *err)
{
    dq_codes *c;
    DQ_TRY(dq_codes_new(&c, rows, cols, spec, err));
    const dq_weight_format *f = dq_weight_format_of_mode(spec->mode);
    float *got = dq_block_new((size_t)cols, sizeof *got, err);
    dq_codes_fit(c, w);
    for (int64_t r = 0; got && r < rows; r++) {
        for (int64_t at = 0; at < cols; at += c->shape.group_size) {
            const int64_t left = cols - at;
            const int64_t n = left < c->shape.group_size ? left : c->shape.group_size;
            f->encode(c->code + r * cols + at, got, w + r * cols + at, n, dq_codes_grid(c, r, at),
                      spec);
            for (int64_t i = 0; i < n; i++) {
                const double is = (double)w[r * cols + at + i];
                const double off = is - (double)got[i];
                loss->error += off * off;
                loss->signal += is * is;
            }
        }
    }
    dq_block_free(got);
    if (err->code == DQ_OK) dq_coded_pack(out, c, err);
    dq_codes_free(c);
    return err->code;
}
