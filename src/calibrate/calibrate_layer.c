/* calibrate_layer: a layer takes five passes, six where weights are aligned, over the chunks of the text, each of which ends
 * where the next product needs weights that are not rounded yet; what a pass leaves lies in the scratch file. The head takes
 * one more after the last layer.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "base/os.h"
#include "calibrate/calibrate_work.h"
#include "calibrate/gptq.h"
#include "engine/memory_fit.h"
#include "quantize/quantize_tensor.h"
#include "tensor/coded.h"

#include <stdio.h>
#include <string.h>

/* Ends a part, and tells progress of it. */
static void advance(dq_calibrate_job *j, dq_calibrate_part part, double flop, const char *what)
{
    dq_calibrate_job_end_part(j->c, part, flop);
    if (part == DQ_CALIBRATE_FACTORS || part == DQ_CALIBRATE_ROUNDING)
        flop *= DQ_CALIBRATE_F64_FLOP;
    dq_quantize_feed_advance(j->feed, (int64_t)(flop / DQ_CALIBRATE_FLOP_PER_BYTE), what);
}

/* One of dq_layer_steps_norm_.... */
typedef void norm_step(const dq_layer_steps *s);

/* The steps of the current layer on a chunk; the cache is the caller's. */
static dq_layer_steps steps_of(const dq_calibrate_job *j, const dq_calib_chunk *k)
{
    return dq_calib_pass_steps(&j->pass, j->m, &j->layer, k);
}

static dq_status get_stream(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              dq_calib_pass_first(j->pass.x, k->batch.n_rows), err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

dq_status dq_calibrate_job_put_stream(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              dq_calib_pass_first(j->pass.x, k->batch.n_rows), err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* ---- Rounding one tensor ---- */

static bool is_coded(const dq_calibrate_job *j, const dq_weight *w)
{
    const dq_quantize_tensor *t = w->rows > 0 ? dq_quantize_feed_tensor(j->feed, w->name) : NULL;
    return t && t->format && t->is_fed;
}

/* Whether any of these has to be rounded. */
static bool is_left(const dq_calibrate_job *j, const dq_weight *const *w, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_coded(j, w[i])) continue;
        if (!dq_quantize_feed_done(j->feed, dq_quantize_feed_tensor(j->feed, w[i]->name)))
            return true;
    }
    return false;
}

void dq_calibrate_job_find_left(dq_calibrate_job *j)
{
    const dq_weight *const head[] = {&j->m->head};
    int n = j->m->n_layers;
    j->head = is_left(j, head, 1);
    for (; n > 0 && !j->head; n--) {
        const dq_layer *l = &j->m->layer[n - 1];
        const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        if (is_left(j, all, 7)) break;
    }
    j->n_layers = n;
}

/* For weights that have to be rounded the Hessian is emptied. */
static bool begin_sums(dq_calibrate_job *j, const dq_weight *const *w, int n)
{
    const bool any = is_left(j, w, n);
    if (any) dq_hessian_begin(j->h, w[0]->cols);
    return any;
}

/* Whether the model before rounding, where it runs beside, is finite in a row of a chunk: its stream, and the norm of that, if
 * one is read; what o and down read is part of its stream by then. */
static dq_status look_before(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t row,
                             norm_step *norm, bool *finite, dq_err *err)
{
    dq_layer_steps s = steps_of(j, k);
    int64_t bad = -1, bad_norm = -1;
    s.x = dq_calib_pass_first(j->ref.x, k->batch.n_rows);
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    j->b->ops->first_bad_row(j->b, &bad, dq_layer_steps_rows(s.x, row, row + 1));
    if (norm) norm(&s);
    if (norm) j->b->ops->first_bad_row(j->b, &bad_norm, dq_layer_steps_rows(s.h, row, row + 1));
    *finite = bad < 0 && bad_norm < 0;
    return dq_backend_sync(j->b, err);
}

/* What w reads is not finite in row `at` of a chunk; before: whether it is in the model before rounding. */
static dq_status refuse_row(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at,
                            const dq_weight *w, const char *what, bool before, dq_err *err)
{
    const dq_calib_text *t = &j->c->text;
    int64_t seq = 0;
    while (t->cu[seq + 1] <= k->first + at) seq++;
    const char *where = !j->ref.act ? " in the model as rounded so far"
                        : before    ? " in the model as rounded so far; before rounding it is"
                                    : ", with or without rounding";
    return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_NOT_FINITE},
                        "%s: %s at position %lld of sequence %lld of the calibration text is not "
                        "finite%s",
                        w->name, what, (long long)(k->first + at - t->cu[seq]), (long long)seq,
                        where);
}

/* Rows from `at` of a chunk, which w reads, are to be finite; norm: x is that of the stream. */
static dq_status check_inputs(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat x,
                              const dq_weight *w, norm_step *norm, dq_err *err)
{
    bool before = true;
    int64_t bad = -1;
    j->b->ops->first_bad_row(j->b, &bad, x);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad < 0) return DQ_OK;
    if (j->ref.act) DQ_TRY(look_before(j, k, at + bad, norm, &before, err));
    return refuse_row(j, k, at + bad, w, "its input", before, err);
}

static void add_sums(dq_calibrate_job *j, dq_mat x)
{
    dq_hessian_add(j->h, j->b, x);
    advance(j, DQ_CALIBRATE_HESSIANS, dq_calibrate_work_hessian((double)x.rows, (double)x.cols),
            "hessians");
}

static dq_status add_inputs(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat x,
                            const dq_weight *w, norm_step *norm, dq_err *err)
{
    DQ_TRY(check_inputs(j, k, at, x, w, norm, err));
    add_sums(j, x);
    return DQ_OK;
}

/* Of the sums of what the rounded model lacks, m outputs, and of the product that says it; NULL: none does. */
static void end_lacks(dq_calibrate_job *j, int64_t rows, int64_t n, const dq_weight *product)
{
    const double sums = dq_calibrate_work_cross((double)rows, (double)j->ref.sums->m, (double)n);
    advance(j, DQ_CALIBRATE_HESSIANS, sums + (product ? dq_calibrate_work_rows(product, rows) : 0),
            "hessians");
}

static dq_status factor(dq_calibrate_job *j, const char *name, dq_err *err)
{
    dq_calibrate_info *info = &j->c->info;
    DQ_TRY(dq_backend_sync(j->b, err));
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_hessian_factor(j->h, j->c->set.damping, name, err));
    info->n_dead += j->h->n_dead;
    if (j->h->damping_share > 1.5 * j->c->set.damping) {
        if (info->n_damped++ == 0) snprintf(info->damped, sizeof info->damped, "%s", name);
        if (j->h->damping_share > info->damped_share) info->damped_share = j->h->damping_share;
    }
    advance(j, DQ_CALIBRATE_FACTORS, dq_calibrate_work_factor((double)j->h->n), name);
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_solve(&j->ref, j->h, name, err));
    const double n = (double)j->h->n;
    advance(j, DQ_CALIBRATE_FACTORS, 2 * (double)j->ref.sums->m * n * n, name);
    return DQ_OK;
}

/* Rows first .. first + rows - 1. */
static void take_values(float *to, const dq_weight *w, int64_t first, int64_t rows)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        dq_weight_dequantize_rows(to + r * w->cols, w, first + r, first + r + 1);
}

/* Rows first .. of w, which f32 holds. */
static dq_status correct(dq_calibrate_job *j, float *f32, const dq_weight *w, int64_t first,
                         int64_t rows, const dq_quant_spec *spec, dq_err *err)
{
    dq_calibrate_info *info = &j->c->info;
    int64_t kept;
    DQ_TRY(dq_reference_correct(&j->ref, f32, first, rows, spec, &kept, err));
    if (kept > 0 && info->n_kept == 0) snprintf(info->kept, sizeof info->kept, "%s", w->name);
    info->n_kept += kept;
    return DQ_OK;
}

/* A band of rows. The loss is that of the source's weights, whatever they are corrected to. */
static dq_status round_band(dq_calibrate_job *j, dq_coded *out, dq_gptq_loss *loss,
                            const dq_quantize_tensor *t, const dq_weight *w, int64_t first,
                            int64_t rows, float *f32, dq_err *err)
{
    const int refits = j->c->set.rule->refits;
    const bool aligns = j->ref.act;
    dq_codes *codes = NULL;
    take_values(f32, w, first, rows);
    if (aligns) correct(j, f32, w, first, rows, &t->spec, err);
    if (err->code == DQ_OK)
        dq_gptq(&codes, f32, rows, w->cols, j->h, &t->spec, refits, aligns ? NULL : loss, err);
    if (err->code == DQ_OK && aligns) {
        take_values(f32, w, first, rows);
        dq_gptq_measure(loss, codes, f32, j->h, err);
    }
    if (err->code == DQ_OK) dq_coded_put(out, codes, first);
    dq_codes_free(codes);
    return err->code;
}

static dq_status round_values(dq_calibrate_job *j, dq_coded *out, dq_gptq_loss *loss,
                              const dq_quantize_tensor *t, const dq_weight *w, dq_err *err)
{
    const bool whole = t->one_scale || w->rows < DQ_CALIBRATE_BAND_ROWS;
    const int64_t band = whole ? w->rows : DQ_CALIBRATE_BAND_ROWS;
    float *f32 = dq_block_new((size_t)band, (size_t)w->cols * sizeof *f32, err);
    *loss = (dq_gptq_loss){0};
    if (f32) dq_coded_new(out, w->rows, w->cols, &t->spec, err);
    for (int64_t first = 0; err->code == DQ_OK && first < w->rows; first += band) {
        const int64_t left = w->rows - first, rows = left < band ? left : band;
        dq_gptq_loss part = {0};
        if (round_band(j, out, &part, t, w, first, rows, f32, err) != DQ_OK) break;
        loss->error += part.error;
        loss->signal += part.signal;
        advance(
            j, DQ_CALIBRATE_ROUNDING,
            dq_calibrate_work_rounding((double)rows, (double)w->cols, t->spec.mode, j->c->set.rule),
            w->name);
    }
    dq_block_free(f32);
    return err->code;
}

static dq_status round_tensor(dq_calibrate_job *j, const dq_quantize_tensor *t, const dq_weight *w,
                              dq_coded *out, dq_err *err)
{
    dq_gptq_loss loss;
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(round_values(j, out, &loss, t, w, err));
    DQ_TRY(dq_quantize_feed_put(j->feed, t, &out->weight,
                                loss.signal > 0 ? loss.error / loss.signal : 0, err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* Gives the layer a matrix that is not coded as it will be read back: in another type, where it is to have one. */
static dq_status take_stored(dq_calibrate_job *j, dq_weight *w, dq_err *err)
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

/* Gives the layer the rounded form of weights with the same inputs: from an earlier run, or made now by their sums. */
static dq_status round_weights(dq_calibrate_job *j, dq_weight *const *w, int n, bool sums,
                               dq_err *err)
{
    bool factored = false;
    for (int i = 0; i < n; i++) {
        const char *name = w[i]->name;
        if (!is_coded(j, w[i])) {
            DQ_TRY(take_stored(j, w[i], err));
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
            if (round_tensor(j, t, w[i], out, err) != DQ_OK) return err->code;
        }
        *w[i] = out->weight;
        w[i]->name = name;
    }
    return DQ_OK;
}

/* ---- Passes of a layer ---- */

/* After add_inputs of s->h, where there is a reference. */
static dq_status add_lacking_inputs(dq_calibrate_job *j, const dq_calib_chunk *k,
                                    const dq_layer_steps *s, norm_step *norm, dq_err *err)
{
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    dq_reference_add_inputs(&j->ref, s, norm);
    end_lacks(j, s->h.rows, s->h.cols, NULL);
    return DQ_OK;
}

/* Matrices that read a norm of the stream as it lies. */
static dq_status pass_norm(dq_calibrate_job *j, dq_weight *const *w, int n, norm_step *norm,
                           dq_err *err)
{
    const bool sums = begin_sums(j, (const dq_weight *const *)w, n);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, w[0]->cols);
    for (int64_t i = 0; sums && i < j->pass.n_chunks; i++) {
        const dq_layer_steps s = steps_of(j, &j->pass.chunk[i]);
        DQ_TRY(get_stream(j, &j->pass.chunk[i], err));
        norm(&s);
        DQ_TRY(add_inputs(j, &j->pass.chunk[i], 0, s.h, w[0], norm, err));
        DQ_TRY(add_lacking_inputs(j, &j->pass.chunk[i], &s, norm, err));
    }
    return round_weights(j, w, n, sums, err);
}

/* q and k; and v, where there is no pass_values. */
static dq_status pass_qkv(dq_calibrate_job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    return pass_norm(j, (dq_weight *const[]){&l->q, &l->k, &l->v}, j->ref.act ? 2 : 3,
                     dq_layer_steps_norm_attn, err);
}

/* y of one chunk and the stream in s, in a cache that lives as long. */
static dq_status attend(dq_calibrate_job *j, const dq_calib_chunk *k, dq_layer_steps s, dq_err *err)
{
    const dq_attend_args plain = {.logit = dq_logit_plain};
    DQ_TRY(dq_calib_pass_cache(&j->pass, &s, err));
    dq_layer_steps_norm_attn(&s);
    dq_layer_steps_qkv(&s);
    dq_layer_steps_attend(&s, &plain);
    dq_backend_sync(j->b, err);
    j->b->ops->kv_free(j->b, s.kv);
    const int64_t n = k->batch.n_rows;
    advance(j, DQ_CALIBRATE_FORWARD,
            dq_calibrate_work_rows(&s.layer->q, n) + dq_calibrate_work_rows(&s.layer->k, n) +
                dq_calibrate_work_rows(&s.layer->v, n),
            "attention");
    return err->code;
}

/* What the maps of s make of its h. */
static void read_maps(dq_calibrate_job *j, const dq_calib_chunk *k, const dq_layer_steps *s,
                      dq_mat z)
{
    double flop = 0;
    dq_value_maps_read(j->maps, z, s, k->first_seq);
    for (int i = 0; i < k->batch.n_seq; i++)
        flop += dq_value_maps_flop(j->m, k->batch.cu_rows[i + 1] - k->batch.cu_rows[i]);
    advance(j, DQ_CALIBRATE_MAPS, flop, "values by maps");
}

/* Takes the reference through attention, o included; where v is to be rounded, ref.lacks becomes what its maps make of its
 * inputs. */
static dq_status reference_attend(dq_calibrate_job *j, const dq_calib_chunk *k, bool sums,
                                  dq_err *err)
{
    const dq_layer_steps rounded = steps_of(j, k);
    const dq_layer_steps s = dq_reference_steps(&j->ref, &rounded, j->number);
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    DQ_TRY(attend(j, k, s, err));
    if (sums) read_maps(j, k, &s, dq_calib_pass_first(j->ref.lacks, k->batch.n_rows));
    dq_layer_steps_out(&s);
    DQ_TRY(dq_reference_put(&j->ref, k->first, s.x, err));
    advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&s.layer->o, k->batch.n_rows),
            "attention");
    return DQ_OK;
}

/* The maps multiply a row that is not finite by 0 too, so that others are not finite either: what v reads is looked at before
 * them, and while the reference's stream is still the one that attention reads. */
static dq_status check_values(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    const dq_layer_steps s = steps_of(j, k);
    DQ_TRY(get_stream(j, k, err));
    dq_layer_steps_norm_attn(&s);
    return check_inputs(j, k, 0, s.h, &s.layer->v, dq_layer_steps_norm_attn, err);
}

/* What the maps make of v's inputs, in z, is to be finite; ref.lacks is what those of the reference make of its own. */
static dq_status check_maps(dq_calibrate_job *j, const dq_calib_chunk *k, dq_mat z, dq_err *err)
{
    int64_t bad = -1, bad_before = -1;
    j->b->ops->first_bad_row(j->b, &bad, z);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad < 0) return DQ_OK;
    j->b->ops->first_bad_row(j->b, &bad_before, dq_layer_steps_rows(j->ref.lacks, bad, bad + 1));
    DQ_TRY(dq_backend_sync(j->b, err));
    return refuse_row(j, k, bad, &j->layer.v, "what attention makes of its inputs", bad_before < 0,
                      err);
}

/* Sums for v: of what the maps of the rounded q and k make of its inputs, and what they lack beside the reference's. */
static dq_status add_values(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    const int64_t n = k->batch.n_rows;
    const dq_layer_steps s = steps_of(j, k);
    const dq_mat z = s.x; /* of which only the norm is needed */
    DQ_TRY(get_stream(j, k, err));
    dq_layer_steps_norm_attn(&s);
    j->b->ops->rope_table(j->b, s.angles, k->batch.pos, &j->m->rope);
    dq_layer_steps_qk(&s);
    DQ_TRY(dq_backend_sync(j->b, err));
    advance(j, DQ_CALIBRATE_FORWARD,
            dq_calibrate_work_rows(&s.layer->q, n) + dq_calibrate_work_rows(&s.layer->k, n),
            "attention");
    read_maps(j, k, &s, z);
    DQ_TRY(check_maps(j, k, z, err));
    add_sums(j, z);
    dq_reference_add_read(&j->ref, j->b, z);
    end_lacks(j, z.rows, z.cols, NULL);
    return DQ_OK;
}

/* v, beside a reference, which is taken through attention. */
static dq_status pass_values(dq_calibrate_job *j, dq_err *err)
{
    dq_weight *const v = &j->layer.v;
    const bool sums = begin_sums(j, (const dq_weight *const[]){v}, 1);
    dq_reference_begin_inputs(&j->ref, v->cols);
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        if (sums) DQ_TRY(check_values(j, &j->pass.chunk[i], err));
        DQ_TRY(reference_attend(j, &j->pass.chunk[i], sums, err));
        if (sums) DQ_TRY(add_values(j, &j->pass.chunk[i], err));
    }
    return round_weights(j, (dq_weight *const[]){v}, 1, sums, err);
}

static dq_status pass_attend(dq_calibrate_job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.o};
    const bool sums = begin_sums(j, in, 1);
    if (j->ref.act) dq_reference_begin_outputs(&j->ref, j->layer.o.cols);
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &j->pass.chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(attend(j, k, s, err));
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        DQ_TRY(add_inputs(j, k, 0, s.y, in[0], NULL, err));
        if (!j->ref.act) continue;
        DQ_TRY(dq_reference_get(&j->ref, k->first, s.x.rows, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        dq_reference_add_attention(&j->ref, &s, j->number);
        end_lacks(j, s.y.rows, s.y.cols, &j->layer.o);
    }
    return round_weights(j, (dq_weight *const[]){&j->layer.o}, 1, sums, err);
}

static dq_status pass_out(dq_calibrate_job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    const dq_weight *const in[] = {&l->gate, &l->up};
    const bool sums = begin_sums(j, in, 2);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, l->gate.cols);
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &j->pass.chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        dq_layer_steps_out(&s);
        advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&l->o, k->batch.n_rows),
                "attention");
        DQ_TRY(dq_calibrate_job_put_stream(j, k, err));
        if (!sums) continue;
        dq_layer_steps_norm_ffn(&s);
        DQ_TRY(add_inputs(j, k, 0, s.h, in[0], dq_layer_steps_norm_ffn, err));
        DQ_TRY(add_lacking_inputs(j, k, &s, dq_layer_steps_norm_ffn, err));
    }
    return round_weights(j, (dq_weight *const[]){&l->gate, &l->up}, 2, sums, err);
}

/* What down reads, in pieces of at most DQ_FFN_ROWS rows. */
static dq_status gate_up(dq_calibrate_job *j, const dq_calib_chunk *k, bool sums, dq_err *err)
{
    const dq_layer_steps s = steps_of(j, k);
    dq_layer_steps_norm_ffn(&s);
    for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
        const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
        const dq_mat gate = dq_calib_pass_first(j->pass.gate, n),
                     up = dq_calib_pass_first(j->pass.up, n);
        dq_layer_steps_gate_up(&s, gate, up, dq_layer_steps_rows(s.h, at, at + n));
        DQ_TRY(dq_backend_sync(j->b, err));
        advance(j, DQ_CALIBRATE_FORWARD, 2 * dq_calibrate_work_rows(&j->layer.gate, n),
                "feed-forward");
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        DQ_TRY(add_inputs(j, k, at, gate, &j->layer.down, NULL, err));
        if (!j->ref.act) continue;
        dq_reference_add_down(&j->ref, &s, j->number, at, gate);
        end_lacks(j, n, gate.cols, &j->layer.down);
    }
    return DQ_OK;
}

/* Takes the reference through the rest of the layer. */
static dq_status reference_feed_forward(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    const dq_layer_steps rounded = steps_of(j, k);
    const dq_layer_steps s = dq_reference_steps(&j->ref, &rounded, j->number);
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    dq_reference_feed_forward(&s, j->pass.gate, j->pass.up);
    DQ_TRY(dq_reference_put(&j->ref, k->first, s.x, err));
    const double flop = 2 * dq_calibrate_work_rows(&s.layer->gate, s.x.rows) +
                        dq_calibrate_work_rows(&s.layer->down, s.x.rows);
    advance(j, DQ_CALIBRATE_FORWARD, flop, "feed-forward");
    return DQ_OK;
}

/* Nothing that is left to round lies after the layer. */
static bool is_last(const dq_calibrate_job *j)
{
    return j->number == j->n_layers - 1 && !j->head;
}

static dq_status pass_gate_up(dq_calibrate_job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.down};
    const bool sums = begin_sums(j, in, 1), last = is_last(j);
    if (j->ref.act) dq_reference_begin_outputs(&j->ref, j->layer.down.cols);
    for (int64_t i = 0; (sums || !last) && i < j->pass.n_chunks; i++) {
        if (j->ref.act) DQ_TRY(reference_feed_forward(j, &j->pass.chunk[i], err));
        DQ_TRY(get_stream(j, &j->pass.chunk[i], err));
        DQ_TRY(gate_up(j, &j->pass.chunk[i], sums, err));
    }
    return round_weights(j, (dq_weight *const[]){&j->layer.down}, 1, sums, err);
}

static dq_status pass_down(dq_calibrate_job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &j->pass.chunk[i];
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
            const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
            const dq_mat gate = dq_calib_pass_first(j->pass.gate, n);
            DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
            dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
            dq_layer_steps_down(&s, dq_layer_steps_rows(s.h, at, at + n), gate);
            DQ_TRY(dq_backend_sync(j->b, err));
            advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&j->layer.down, n),
                    "feed-forward");
        }
        j->b->ops->add(j->b, s.x, s.h);
        DQ_TRY(dq_calibrate_job_put_stream(j, k, err));
    }
    return DQ_OK;
}

static void free_rounded(dq_calibrate_job *j)
{
    while (j->n_coded > 0) dq_coded_free(&j->coded[--j->n_coded]);
    while (j->n_dense > 0) dq_block_free(j->dense[--j->n_dense]);
}

dq_status dq_calibrate_job_run_layer(dq_calibrate_job *j, int number, dq_err *err)
{
    j->layer = j->m->layer[number];
    j->number = number;
    if (take_stored(j, &j->layer.lambda_proj, err) == DQ_OK && pass_qkv(j, err) == DQ_OK &&
        (!j->ref.act || pass_values(j, err) == DQ_OK) && pass_attend(j, err) == DQ_OK &&
        pass_out(j, err) == DQ_OK && pass_gate_up(j, err) == DQ_OK && !is_last(j))
        pass_down(j, err);
    free_rounded(j);
    if (err->code != DQ_OK && err->code != DQ_STOPPED && err->code != DQ_DAMAGED)
        dq_in(err, "layer %d: ", number);
    return err->code;
}

dq_status dq_calibrate_job_run_head(dq_calibrate_job *j, dq_err *err)
{
    dq_weight head = j->m->head;
    pass_norm(j, (dq_weight *const[]){&head}, 1, dq_layer_steps_norm_out, err);
    free_rounded(j);
    return err->code;
}
