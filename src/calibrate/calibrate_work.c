/* calibrate_work: see calibrate_work.h. Counts go by shapes alone; attention itself, norms and conversions are left out.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_work.h"

#include "calibrate/gptq.h"
#include "calibrate/shrinkage.h"
#include "calibrate/value_maps.h"

double dq_calibrate_work_rows(const dq_weight *w, int64_t rows)
{
    return 2 * (double)rows * (double)w->rows * (double)w->cols;
}

double dq_calibrate_work_layer(const dq_layer *l)
{
    const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    double n = 0;
    for (int i = 0; i < 7; i++) n += 2 * (double)all[i]->rows * (double)all[i]->cols;
    return n;
}

double dq_calibrate_work_attention(const dq_model *m, int64_t rows)
{
    const dq_head_order *a = &m->map;
    const double pairs = (double)rows * (double)(rows + 1) / 2;
    return 2 * pairs * a->head_dim * (a->n_q + a->n_out * a->n_maps * a->n_slabs);
}

double dq_calibrate_work_hessian(double rows, double n)
{
    return rows * n * n; /* the lower triangle */
}

double dq_calibrate_work_factor(double n)
{
    return n * n * n / 3;
}

double dq_calibrate_work_correction(double m, double n)
{
    enum { RIDGES = DQ_SHRINKAGE_RIDGES / 2 }; /* usually */
    return (RIDGES + 2) * dq_calibrate_work_factor(n) + (3 * RIDGES + 2) * m * n * n;
}

static int tries_of(dq_scale_mode mode)
{
    return dq_quant_modes[mode].tries[0] > 0 ? DQ_GPTQ_TRIES : 1;
}

double dq_calibrate_work_rounding(double rows, double n, dq_scale_mode mode,
                                  const dq_calibrate_rule *rule)
{
    return (tries_of(mode) + 1 + 3 * rule->refits + rule->aligns) * rows * n * n;
}

double dq_calibrate_work_found(double rows, double n, dq_scale_mode mode,
                               const dq_calibrate_rule *rule)
{
    enum { TRELLIS = 1000 }; /* a value in two passes over 256 windows */
    return mode == DQ_TRELLIS ? (tries_of(mode) + rule->refits) * rows * n * TRELLIS : 0;
}

double dq_calibrate_work_cross(double rows, double m, double n)
{
    return 2 * rows * m * n;
}

/* What a rule that aligns adds to a layer: the other forward pass, o and down once more, sums and solutions; for v q and k
 * once more, what their maps make of both models' inputs, and sums and a factor of its own. */
static double align_flop(const dq_model *m, const dq_layer *l, const dq_calib_text *text)
{
    const double dim = m->dim, y = (double)l->o.cols, ffn = m->ffn, tokens = (double)text->n_ids;
    double n = tokens * (dq_calibrate_work_layer(l) + 2 * dim * (y + ffn));
    n += dq_calibrate_work_rows(&l->q, text->n_ids) + dq_calibrate_work_rows(&l->k, text->n_ids);
    for (int64_t s = 0; s < text->n_seq; s++)
        n += 2 * dq_value_maps_flop(m, text->cu[s + 1] - text->cu[s]);
    n += 3 * dq_calibrate_work_cross(tokens, dim, dim) + dq_calibrate_work_cross(tokens, dim, y) +
         dq_calibrate_work_cross(tokens, dim, ffn) + dq_calibrate_work_hessian(tokens, dim);
    return n + DQ_CALIBRATE_F64_FLOP *
                   (3 * dq_calibrate_work_correction(dim, dim) +
                    dq_calibrate_work_correction(dim, y) + dq_calibrate_work_correction(dim, ffn));
}

double dq_calibrate_work_all(const dq_model *m, const dq_calibrate_rule *rule,
                             const dq_calib_text *text)
{
    const double tokens = (double)text->n_ids;
    double n = 0;
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        n += tokens * dq_calibrate_work_layer(l) + (rule->aligns ? align_flop(m, l, text) : 0);
        for (int k = 0; k < 7; k++) {
            const double cols = (double)all[k]->cols;
            n += DQ_CALIBRATE_F64_FLOP *
                 dq_calibrate_work_rounding((double)all[k]->rows, cols, DQ_SEARCH, rule);
            /* k shares the Hessian of q, v too where nothing is aligned, up that of gate */
            if (k == 0 || k == 3 || k == 4 || k == 6)
                n += dq_calibrate_work_hessian(tokens, cols) +
                     DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor(cols);
        }
    }
    /* nobody reads what the last down gives but the head, where it is rounded */
    return n - dq_calibrate_work_rows(&m->layer[m->n_layers - 1].down, text->n_ids);
}

double dq_calibrate_work_embedding(const dq_model *m, const dq_calibrate_rule *rule, double tokens)
{
    const double cols = (double)m->embed.cols;
    double n = dq_calibrate_work_hessian(tokens, cols);
    for (int i = 0; i < m->n_layers; i++) n += tokens * dq_calibrate_work_layer(&m->layer[i]);
    return n + DQ_CALIBRATE_F64_FLOP *
                   (dq_calibrate_work_factor(cols) +
                    dq_calibrate_work_rounding((double)m->embed.rows, cols, DQ_SEARCH, rule));
}
