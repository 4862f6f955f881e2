/* calibrate_round: codes of the tensors that read the same inputs, by the sums over these, band by band of rows; and what stands
 * in for them in the passes after it.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "base/os.h"
#include "base/ranks.h"
#include "calibrate/calibrate_pace.h"
#include "calibrate/calibrate_work.h"
#include "calibrate/gptq_stripes.h"
#include "quantize/quantize.h"

#include <stdio.h>
#include <string.h>

const dq_calib_chunk *dq_calibrate_job_chunk(dq_calibrate_job *j, int64_t round)
{
    j->at_once = dq_calib_pass_at_once(&j->pass, round);
    return dq_calib_pass_chunk(&j->pass, round);
}

void dq_calibrate_job_advance(dq_calibrate_job *j, dq_calibrate_part part, double flop,
                              const char *what)
{
    const double seconds = flop * j->c->rates.flop[part];
    dq_calibrate_job_end_part(j->c, part, flop);
    dq_quantize_feed_advance(j->feed, (int)part,
                             part == DQ_CALIBRATE_FACTORS ? seconds : seconds * j->at_once, what);
}

static bool is_coded(const dq_calibrate_job *j, const dq_weight *w)
{
    const dq_quantize_tensor *t = w->rows > 0 ? dq_quantize_tensor_of(j->q, w->name) : NULL;
    return t && t->format && t->is_fed;
}

bool dq_calibrate_job_is_left(const dq_calibrate_job *j, const dq_weight *const *w, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_coded(j, w[i])) continue;
        if (!j->feed || !dq_quantize_feed_done(j->feed, dq_quantize_tensor_of(j->q, w[i]->name)))
            return true;
    }
    return false;
}

void dq_calibrate_job_find_left(dq_calibrate_job *j)
{
    const dq_weight *const head[] = {&j->m->head}, *const embed[] = {&j->m->embed};
    int n = j->m->n_layers;
    j->embed = dq_calibrate_job_is_left(j, embed, 1);
    j->head = !j->m->tied && dq_calibrate_job_is_left(j, head, 1);
    for (; n > 0 && !j->head; n--) {
        const dq_layer *l = &j->m->layer[n - 1];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        if (dq_calibrate_job_is_left(j, all, 7)) break;
    }
    j->n_layers = n;
}

/* What was unusual about a Hessian that was to have this damping. */
static void note_factor(dq_calibrate_job *j, double damping, const char *name)
{
    dq_calibrate_info *info = &j->c->info;
    info->n_dead += j->h->n_dead;
    if (j->h->damping_share <= 1.5 * damping) return;
    if (info->n_damped++ == 0) snprintf(info->damped, sizeof info->damped, "%s", name);
    if (j->h->damping_share > info->damped_share) info->damped_share = j->h->damping_share;
}

dq_status dq_calibrate_job_factor(dq_calibrate_job *j, double damping, const char *name,
                                  dq_err *err)
{
    DQ_TRY(dq_backend_sync(j->b, err));
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_hessian_share(j->h, err));
    DQ_TRY(dq_hessian_factor(j->h, damping, name, err));
    note_factor(j, damping, name);
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FACTORS, dq_calibrate_work_factor((double)j->h->n),
                             name);
    return DQ_OK;
}

/* The same beside a reference, whose sums become what is added to the weights. */
static dq_status solve(dq_calibrate_job *j, double damping, const char *name, dq_err *err)
{
    double share;
    DQ_TRY(dq_backend_sync(j->b, err));
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_reference_solve(&j->ref, j->h, damping, name, &share, err));
    j->c->info.n_corrected++;
    j->c->info.trust += share;
    note_factor(j, damping, name);
    const double flop = dq_calibrate_work_correction((double)j->ref.sums->m, (double)j->h->n);
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FACTORS, flop, name);
    return DQ_OK;
}

static dq_status factor(dq_calibrate_job *j, const char *name, dq_err *err)
{
    const double damping = dq_calibrate_damping(j->h->n, j->c->text.n_ids);
    return j->ref.act ? solve(j, damping, name, err)
                      : dq_calibrate_job_factor(j, damping, name, err);
}

/* Rows first .. first + rows - 1. */
static void take_values(float *to, const dq_weight *w, int64_t first, int64_t rows)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        dq_weight_dequantize_rows(to + r * w->cols, w, first + r, first + r + 1);
}

/* One tensor on its way to codes. */
typedef struct rounding {
    dq_calibrate_job *j;
    const dq_quantize_tensor *t;
    const dq_weight *w;
    bool aligns;
    float *f32;         /* values of rows */
    bool *zero;         /* [cols] of the matrix's columns that are 0; NULL: none is */
    dq_gptq_loss *loss; /* [rows of a band] */
    int64_t n_kept;     /* rows that could not be corrected */
} rounding;

/* Codes of rows. The loss is that of the source's weights, whatever they are corrected to. */
static dq_status round_rows(void *arg, dq_codes **out, dq_gptq_loss *loss, int64_t first,
                            int64_t rows, dq_err *err)
{
    rounding *r = arg;
    dq_calibrate_job *j = r->j;
    const int refits = j->c->set.rule->refits;
    int64_t kept = 0;
    take_values(r->f32, r->w, first, rows);
    if (r->aligns) dq_reference_correct(&j->ref, r->f32, first, rows, &r->t->spec, &kept, err);
    r->n_kept += kept;
    if (err->code == DQ_OK)
        dq_gptq(out, r->f32, rows, r->w->cols, j->h, r->zero, &r->t->spec, refits,
                r->aligns ? NULL : loss, err);
    if (err->code == DQ_OK && r->aligns) {
        take_values(r->f32, r->w, first, rows);
        dq_gptq_measure(loss, *out, r->f32, j->h, err);
    }
    return err->code;
}

static dq_status round_bands(dq_calibrate_job *j, dq_coded *out, dq_gptq_loss *loss, rounding *r,
                             int64_t band, dq_err *err)
{
    const dq_weight *w = r->w;
    const dq_gptq_stripes stripes = {&r->t->spec, w->cols, r->t->one_scale, round_rows, r};
    for (int64_t first = 0; first < w->rows; first += band) {
        const int64_t left = w->rows - first, rows = left < band ? left : band;
        DQ_TRY(dq_gptq_stripes_round(&stripes, out, r->loss, first, rows, err));
        dq_gptq_loss_add(loss, r->loss, rows);
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_ROUNDING,
                                  dq_calibrate_work_rounding((double)rows, (double)w->cols,
                                                             r->t->spec.mode, j->c->set.rule));
        dq_quantize_feed_advance(
            j->feed, DQ_CALIBRATE_ROUNDING,
            dq_calibrate_pace_rounding(j->c, (double)rows, (double)w->cols, &r->t->spec), w->name);
    }
    return DQ_OK;
}

/* Of all ranks, which kept rows of their stripes; those of a matrix of one scale are the same ones. */
static dq_status note_kept(dq_calibrate_job *j, const rounding *r, dq_err *err)
{
    dq_calibrate_info *info = &j->c->info;
    int64_t kept = r->n_kept;
    if (!r->t->one_scale) DQ_TRY(dq_ranks_sum(&kept, err));
    if (kept > 0 && info->n_kept == 0) snprintf(info->kept, sizeof info->kept, "%s", r->w->name);
    info->n_kept += kept;
    return DQ_OK;
}

static dq_status round_values(dq_calibrate_job *j, dq_coded *out, dq_gptq_loss *loss,
                              const dq_quantize_tensor *t, const dq_weight *w, bool aligns,
                              dq_err *err)
{
    const bool whole = t->one_scale || w->rows < DQ_CALIBRATE_BAND_ROWS;
    const int64_t band = whole ? w->rows : DQ_CALIBRATE_BAND_ROWS;
    rounding r = {.j = j, .t = t, .w = w, .aligns = aligns};
    *loss = (dq_gptq_loss){0};
    r.f32 = dq_block_new((size_t)band, (size_t)w->cols * sizeof *r.f32, err);
    r.loss = dq_block_new((size_t)band, sizeof *r.loss, err);
    if (err->code == DQ_OK) dq_gptq_zero_columns(&r.zero, w, err);
    if (err->code == DQ_OK) dq_coded_new(out, w->rows, w->cols, &t->spec, err);
    if (err->code == DQ_OK) round_bands(j, out, loss, &r, band, err);
    if (err->code == DQ_OK) note_kept(j, &r, err);
    dq_block_free(r.f32);
    dq_block_free(r.zero);
    dq_block_free(r.loss);
    return err->code;
}

dq_status dq_calibrate_job_round_tensor(dq_calibrate_job *j, const dq_quantize_tensor *t,
                                        const dq_weight *w, bool aligns, dq_coded *out, dq_err *err)
{
    dq_gptq_loss loss;
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(round_values(j, out, &loss, t, w, aligns, err));
    DQ_TRY(dq_quantize_feed_put(j->feed, t, &out->weight,
                                loss.signal > 0 ? loss.error / loss.signal : 0, err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

dq_status dq_calibrate_job_take_stored(dq_calibrate_job *j, dq_weight *w, dq_err *err)
{
    const dq_quantize_tensor *t = w->rows > 0 ? dq_quantize_feed_tensor(j->feed, w->name) : NULL;
    if (!t || t->format || t->dense_dtype == t->t->dtype) return DQ_OK;
    float *f32 = dq_block_new((size_t)w->rows, (size_t)w->cols * sizeof *f32, err);
    if (!f32) return err->code;
    j->dense[j->n_dense++] = f32;
    take_values(f32, w, 0, w->rows);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < w->rows; r++)
        dq_quantize_tensor_read_back(t, f32 + r * w->cols, f32 + r * w->cols, NULL);
    *w = dq_weight_of_f32(w->name, w->rows, w->cols, f32);
    return DQ_OK;
}

dq_status dq_calibrate_job_round(dq_calibrate_job *j, dq_weight *const *w, int n, bool sums,
                                 dq_err *err)
{
    bool factored = false;
    for (int i = 0; i < n; i++) {
        const char *name = w[i]->name;
        if (!is_coded(j, w[i])) {
            DQ_TRY(dq_calibrate_job_take_stored(j, w[i], err));
            continue;
        }
        dq_coded *out = &j->coded[j->n_coded++];
        const dq_quantize_tensor *t = dq_quantize_feed_tensor(j->feed, name);
        DQ_TRY(dq_os_check_stop(err));
        if (dq_quantize_feed_done(j->feed, t)) {
            DQ_TRY(dq_quantize_feed_take(j->feed, t, out, err));
        } else {
            if (!sums) return dq_fail(err, DQ_BUG, "%s: no sums of its inputs", name);
            if (!factored) DQ_TRY(factor(j, name, err));
            factored = true;
            DQ_TRY(dq_calibrate_job_round_tensor(j, t, w[i], j->ref.act, out, err));
        }
        *w[i] = out->weight;
        w[i]->name = name;
    }
    return DQ_OK;
}
