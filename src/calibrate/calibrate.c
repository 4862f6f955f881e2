/* Codes of the tensors that read the same inputs, by the sums over these, band by band of rows;
 * and what stands in for them in the passes after it.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate.h"

#include "calibrate/inside.h"
#include "work/ranks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* act must outlive it. Host memory. DQ_RESOURCE. */
static dq_status reference_new(dq_reference *r, dq_activations *act, const dq_model *m,
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

static void reference_free(dq_reference *r)
{
    dq_block_free(r->x.p);
    dq_block_free(r->lacks.p);
    dq_cross_free(r->sums);
    dq_shrinkage_free(&r->half);
    *r = (dq_reference){.act = NULL};
}

/* Steps of the reference in layer `number`; overwrites the buffers of s except s->x. */
static dq_layer_steps reference_steps(const dq_reference *r, const dq_layer_steps *s, int number)
{
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    own.x = dq_calib_pass_first(r->x, s->x.rows);
    return own;
}

/* Reads r->x from the scratch file. */
static dq_status reference_get(dq_reference *r, int64_t first, int64_t rows, dq_err *err)
{
    return dq_activations_get(r->act, DQ_ACTIVATIONS_BEFORE, first, dq_calib_pass_first(r->x, rows),
                              err);
}

static dq_status reference_put(dq_reference *r, int64_t first, dq_mat x, dq_err *err)
{
    return dq_activations_put(r->act, DQ_ACTIVATIONS_BEFORE, first, x, err);
}

/* Empties the sums for a product and says what they add: inputs, or outputs. */
static void reference_begin_inputs(dq_reference *r, int64_t n)
{
    r->of_inputs = true;
    dq_cross_begin(r->sums, n, n);
    dq_shrinkage_begin(&r->half, n, n);
}

static void reference_begin_outputs(dq_reference *r, int64_t n)
{
    r->of_inputs = false;
    dq_cross_begin(r->sums, r->m->dim, n);
    dq_shrinkage_begin(&r->half, r->m->dim, n);
}

/* lacks = want - (made + have); have NULL: 0. All may be the same matrix. */
static void take_from(dq_mat lacks, dq_mat want, dq_mat made, const float *have)
{
    const int64_t n = lacks.rows * lacks.cols;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++)
        lacks.p[i] = want.p[i] - (have ? made.p[i] + have[i] : made.p[i]);
}

/* Adds r->lacks[rows, n], unrounded inputs, less the rounded model's x[rows, n]. */
static dq_status reference_add_read(dq_reference *r, dq_backend *b, dq_mat x, dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, x.rows);
    const int64_t n = lacks.rows * lacks.cols;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) lacks.p[i] -= x.p[i];
    return dq_shrinkage_add_lacks(&r->half, r->sums, b, lacks, x, DQ_TILE_SUMS_NO_PIECES, err);
}

/* By all ranks, one without rows by reference_add_none with the same pieces. Adds norm(r->x) -
 * s->h, where s->h is that norm of the rounded stream. */
static dq_status reference_add_inputs(dq_reference *r, const dq_layer_steps *s,
                                      void (*norm)(const dq_layer_steps *s), dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, s->h.rows);
    dq_layer_steps own = *s;
    own.x = dq_calib_pass_first(r->x, s->h.rows);
    own.h = lacks;
    norm(&own); /* gains are not rounded: those of the layer at hand */
    return reference_add_read(r, s->b, s->h, err);
}

/* Where a norm follows a product, what its outputs lack is found before that norm, and not in the
 * stream: keeps the reference's, in s->h, in r->lacks. */
static void reference_keep(dq_reference *r, const dq_layer_steps *s, const float *norm)
{
    if (norm) memcpy(r->lacks.p, s->h.p, (size_t)(s->h.rows * s->h.cols) * sizeof *s->h.p);
}

/* Adds what the rounded stream lacks after attention with an unrounded o: r->x is after attention,
 * s->x before it, s->y o's inputs; overwrites s->h. */
static dq_status reference_add_attention(dq_reference *r, const dq_layer_steps *s, int number,
                                         dq_err *err)
{
    const dq_mat lacks = dq_calib_pass_first(r->lacks, s->x.rows);
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    dq_layer_steps_o(&own);
    if (own.layer->norm_attn_out)
        take_from(lacks, lacks, s->h, NULL);
    else
        take_from(lacks, r->x, s->h, s->x.p);
    return dq_shrinkage_add_lacks(&r->half, r->sums, s->b, lacks, s->y, DQ_TILE_SUMS_NO_PIECES,
                                  err);
}

/* The same for down and rows from `at` on: r->x is after the layer, s->x before down, gate[n, ffn]
 * down's inputs. */
static dq_status reference_add_down(dq_reference *r, const dq_layer_steps *s, int number,
                                    int64_t at, dq_mat gate, dq_err *err)
{
    dq_layer_steps own = *s;
    own.layer = &r->m->layer[number];
    const bool normed = own.layer->norm_ffn_out; /* r->x is free then */
    const dq_mat made = dq_calib_pass_first(normed ? r->x : r->lacks, gate.rows),
                 lacks = normed ? dq_layer_steps_rows(r->lacks, at, at + gate.rows) : made;
    dq_layer_steps_down(&own, made, gate);
    if (normed)
        take_from(lacks, lacks, made, NULL);
    else
        take_from(lacks, dq_layer_steps_rows(r->x, at, at + gate.rows), made,
                  s->x.p + at * s->x.cols);
    return dq_shrinkage_add_lacks(&r->half, r->sums, s->b, lacks, gate, DQ_FFN_ROWS, err);
}

static dq_status reference_add_none(dq_reference *r, dq_backend *b, int64_t piece, dq_err *err)
{
    const dq_mat lacks = {NULL, 0, r->sums->m}, x = {NULL, 0, r->sums->n};
    return dq_shrinkage_add_lacks(&r->half, r->sums, b, lacks, x, piece, err);
}

/* Turns the sums into a correction of the product's weights; h, the sums without r->half's, is
 * factored with `damping`. *share: mean share that outputs keep. */
static dq_status reference_solve(dq_reference *r, dq_hessian *h, double damping, const char *what,
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

/* NULL: this rank has no chunk in the round. */
static const dq_calib_chunk *chunk_at(dq_calibrate_job *j, int64_t round)
{
    j->at_once = dq_calib_pass_at_once(&j->pass, round);
    return dq_calib_pass_chunk(&j->pass, round);
}

static void end_phase(dq_calibrate *c, dq_calibrate_phase phase, double flop)
{
    const double now = dq_os_seconds();
    c->info.seconds[phase] += now - c->lap;
    c->info.flop[phase] += flop;
    c->lap = now;
}

/* Reports the progress of all ranks, which do as much at the same time. */
static void advance(dq_calibrate_job *j, dq_calibrate_phase phase, double flop, const char *what)
{
    const double seconds = flop * j->c->rates.flop[phase];
    end_phase(j->c, phase, flop);
    dq_quantize_feed_advance(j->feed, (int)phase,
                             phase == DQ_CALIBRATE_FACTORS ? seconds : seconds * j->at_once, what);
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

/* Finds what is left to round: n_layers, embed, head. */
static void find_left(dq_calibrate_job *j)
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

static void note_factor(dq_calibrate_job *j, double damping, const char *name)
{
    dq_calibrate_info *info = &j->c->info;
    info->n_dead += j->h->n_dead;
    if (j->h->damping_share <= 1.5 * damping) return;
    if (info->n_damped++ == 0) snprintf(info->damped, sizeof info->damped, "%s", name);
    if (j->h->damping_share > info->damped_share) info->damped_share = j->h->damping_share;
}

static void begin_phase(dq_calibrate *c)
{
    c->lap = dq_os_seconds();
}

static dq_status job_factor(dq_calibrate_job *j, double damping, const char *name, dq_err *err)
{
    DQ_TRY(dq_backend_sync(j->b, err));
    begin_phase(j->c);
    DQ_TRY(dq_hessian_share(j->h, err));
    DQ_TRY(dq_hessian_factor(j->h, damping, name, err));
    note_factor(j, damping, name);
    advance(j, DQ_CALIBRATE_FACTORS, dq_calibrate_work_factor((double)j->h->n), name);
    return DQ_OK;
}

static dq_status factor(dq_calibrate_job *j, const char *name, dq_err *err)
{
    const double damping = dq_calibrate_damping(j->h->n, j->c->text.n_ids);
    if (!j->ref.act) return job_factor(j, damping, name, err);
    /* With a reference, its sums become a correction of the weights. */
    double share;
    DQ_TRY(dq_backend_sync(j->b, err));
    begin_phase(j->c);
    DQ_TRY(reference_solve(&j->ref, j->h, damping, name, &share, err));
    j->c->info.n_corrected++;
    j->c->info.trust += share;
    note_factor(j, damping, name);
    const double flop = dq_calibrate_work_correction((double)j->ref.sums->m, (double)j->h->n);
    advance(j, DQ_CALIBRATE_FACTORS, flop, name);
    return DQ_OK;
}

static void take_values(float *to, const dq_weight *w, int64_t first, int64_t rows)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        dq_weight_dequantize_rows(to + r * w->cols, w, first + r, first + r + 1);
}

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

/* The loss is relative to the source's weights, also where they are corrected. */
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
        end_phase(j->c, DQ_CALIBRATE_ROUNDING,
                  dq_calibrate_work_rounding((double)rows, (double)w->cols, r->t->spec.mode,
                                             j->c->set.rule));
        dq_quantize_feed_advance(
            j->feed, DQ_CALIBRATE_ROUNDING,
            dq_calibrate_pace_rounding(j->c, (double)rows, (double)w->cols, &r->t->spec), w->name);
    }
    return DQ_OK;
}

/* Ranks round different rows, but of a matrix with one scale all of them. */
static dq_status note_kept(dq_calibrate_job *j, const rounding *r, dq_err *err)
{
    dq_calibrate_info *info = &j->c->info;
    int64_t kept = r->n_kept;
    if (!r->t->one_scale) DQ_TRY(dq_ranks_sum(&kept, err));
    if (kept > 0 && info->n_kept == 0) snprintf(info->kept, sizeof info->kept, "%s", r->w->name);
    info->n_kept += kept;
    return DQ_OK;
}

/* Writes a tensor's codes to the container; the caller ends *out. aligns: weights are corrected
 * first. */
static dq_status round_tensor(dq_calibrate_job *j, const dq_quantize_tensor *t, const dq_weight *w,
                              bool aligns, dq_coded *out, dq_err *err)
{
    dq_gptq_loss loss;
    begin_phase(j->c);
    const bool whole = t->one_scale || w->rows < DQ_CALIBRATE_BAND_ROWS;
    const int64_t band = whole ? w->rows : DQ_CALIBRATE_BAND_ROWS;
    rounding r = {.j = j, .t = t, .w = w, .aligns = aligns};
    loss = (dq_gptq_loss){0};
    r.f32 = dq_block_new((size_t)band, (size_t)w->cols * sizeof *r.f32, err);
    r.loss = dq_block_new((size_t)band, sizeof *r.loss, err);
    if (err->code == DQ_OK) dq_gptq_zero_columns(&r.zero, w, err);
    if (err->code == DQ_OK) dq_coded_new(out, w->rows, w->cols, &t->spec, err);
    if (err->code == DQ_OK) round_bands(j, out, &loss, &r, band, err);
    if (err->code == DQ_OK) note_kept(j, &r, err);
    dq_block_free(r.f32);
    dq_block_free(r.zero);
    dq_block_free(r.loss);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(dq_quantize_feed_put(j->feed, t, &out->weight,
                                loss.signal > 0 ? loss.error / loss.signal : 0, err));
    end_phase(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* A matrix stored without codes is converted to its stored type and back. */
static dq_status take_stored(dq_calibrate_job *j, dq_weight *w, dq_err *err)
{
    const dq_quantize_tensor *t = w->rows > 0 ? dq_quantize_tensor_of(j->feed->q, w->name) : NULL;
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

/* Gives the layer rounded weights with the same inputs, from an earlier run or made from their
 * sums. */
static dq_status job_round(dq_calibrate_job *j, dq_weight *const *w, int n, bool sums, dq_err *err)
{
    bool factored = false;
    for (int i = 0; i < n; i++) {
        const char *name = w[i]->name;
        if (!is_coded(j, w[i])) {
            DQ_TRY(take_stored(j, w[i], err));
            continue;
        }
        dq_coded *out = &j->coded[j->n_coded++];
        const dq_quantize_tensor *t = dq_quantize_tensor_of(j->feed->q, name);
        DQ_TRY(dq_os_check_stop(err));
        if (dq_quantize_feed_done(j->feed, t)) {
            DQ_TRY(dq_quantize_feed_take(j->feed, t, out, err));
        } else {
            if (!sums) return dq_fail(err, DQ_BUG, "%s: no sums of its inputs", name);
            if (!factored) DQ_TRY(factor(j, name, err));
            factored = true;
            DQ_TRY(round_tensor(j, t, w[i], j->ref.act, out, err));
        }
        *w[i] = out->weight;
        w[i]->name = name;
    }
    return DQ_OK;
}

/* A tied embedding is rounded first, since everything reads it: as the head, by that one's inputs
 * in the unrounded model. On SmolLM2-135M at 4 bits this leaves a sixth of the KLD of rounding to
 * nearest. */

static dq_status embed(dq_calibrate_job *j, dq_mat x, const dq_weight *w, float scale,
                       const dq_calib_chunk *k, dq_err *err)
{
    j->b->ops->embed(j->b, x, w, k->batch.ids, scale);
    return dq_backend_sync(j->b, err);
}

static dq_status add_rows(dq_calibrate_job *j, dq_mat x, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL,
                                   DQ_TILE_SUMS_NO_PIECES}; /* nothing is judged here */
    return dq_hessian_add(j->h, j->b, x, all, err);
}

/* DQ_DAMAGED: the inputs of w in row `at` of a chunk are not finite. */
static dq_status refuse_row(const dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at,
                            const dq_weight *w, const char *what, const char *where, dq_err *err)
{
    const dq_calib_text *t = &j->c->text;
    int64_t seq = 0;
    while (t->cu[seq + 1] <= k->first_row + at) seq++;
    return dq_fail_with(err, DQ_DAMAGED, (dq_remedy){.code = DQ_REMEDY_NOT_FINITE},
                        "%s: %s at position %lld of sequence %lld of the calibration text is not "
                        "finite%s",
                        w->name, what, (long long)(k->first_row + at - t->cu[seq]), (long long)seq,
                        where);
}

/* A temporary cache serves the chunk. */
static dq_status attend(dq_calibrate_job *j, const dq_calib_chunk *k, dq_layer_steps s, dq_err *err)
{
    const dq_attend_args plain = {.logit = dq_logit_plain};
    double maps = 0;
    DQ_TRY(dq_calib_pass_cache(&j->pass, &s, err));
    dq_layer_steps_norm_attn(&s);
    dq_layer_steps_qkv(&s);
    dq_layer_steps_attend(&s, &plain);
    dq_backend_sync(j->b, err);
    j->b->ops->kv_free(j->b, s.kv);
    const int64_t n = k->batch.n_rows;
    for (int i = 0; i < k->batch.n_seq; i++)
        maps += dq_calibrate_work_attention(j->m, k->batch.cu_rows[i + 1] - k->batch.cu_rows[i]);
    advance(j, DQ_CALIBRATE_FORWARD,
            maps + dq_calibrate_work_rows(&s.layer->q, n) + dq_calibrate_work_rows(&s.layer->k, n) +
                dq_calibrate_work_rows(&s.layer->v, n),
            "attention");
    return err->code;
}

/* Runs a chunk's embeddings through all unrounded layers. */
static dq_status run_source(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    for (int i = 0; i < j->m->n_layers; i++) {
        const dq_layer *l = &j->m->layer[i];
        const dq_layer_steps s = dq_calib_pass_steps(&j->pass, j->m, l, k);
        DQ_TRY(dq_os_check_stop(err));
        begin_phase(j->c);
        DQ_TRY(attend(j, k, s, err));
        dq_layer_steps_out(&s);
        dq_reference_feed_forward(&s, j->pass.gate, j->pass.up);
        DQ_TRY(dq_backend_sync(j->b, err));
        const int64_t n = s.x.rows; /* attention has told of q, k and v */
        const double flop = dq_calibrate_work_layer(l) * (double)n -
                            dq_calibrate_work_rows(&l->q, n) - dq_calibrate_work_rows(&l->k, n) -
                            dq_calibrate_work_rows(&l->v, n);
        advance(j, DQ_CALIBRATE_FORWARD, flop, "model before rounding");
    }
    return DQ_OK;
}

/* Adds the head's inputs in a chunk to the sums; NULL: there is none. */
static dq_status add_chunk(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    int64_t bad = -1;
    if (!k) return add_rows(j, (dq_mat){NULL, 0, j->m->dim}, err);
    const dq_layer_steps s = dq_calib_pass_steps(&j->pass, j->m, &j->layer, k);
    DQ_TRY(embed(j, s.x, &j->m->embed, j->m->embed_scale, k, err));
    DQ_TRY(run_source(j, k, err));
    dq_layer_steps_norm_out(&s);
    j->b->ops->first_bad_row(j->b, &bad, s.h);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad >= 0)
        return refuse_row(j, k, bad, &j->m->embed, "what the head reads", ", before rounding", err);
    begin_phase(j->c);
    DQ_TRY(add_rows(j, s.h, err));
    const double n = (double)s.h.rows;
    advance(j, DQ_CALIBRATE_HESSIANS, dq_calibrate_work_hessian(n, (double)s.h.cols), "hessians");
    return DQ_OK;
}

static dq_status put_stream(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              dq_calib_pass_first(j->pass.x, k->batch.n_rows), err));
    end_phase(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

static dq_status begin_streams(dq_calibrate_job *j, const dq_quantize_tensor *t,
                               const dq_weight *rounded, dq_err *err)
{
    begin_phase(j->c);
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        const dq_mat x = dq_calib_pass_first(j->pass.x, k->batch.n_rows);
        const float scale = j->m->embed_scale;
        DQ_TRY(embed(j, x, &j->m->embed, scale, k, err));
        if (j->ref.act) DQ_TRY(reference_put(&j->ref, k->first, x, err));
        if (rounded) {
            DQ_TRY(embed(j, x, rounded, scale, k, err));
        } else if (t) {
            /* Rows of an embedding that no method rounds are read back as stored. */
            DQ_TRY(embed(j, x, &j->m->embed, 1.0f, k, err));
            float *got = dq_block_new((size_t)x.cols, sizeof *got, err);
            int8_t *codes = dq_block_new((size_t)x.cols, sizeof *codes, err);
            for (int64_t r = 0; err->code == DQ_OK && r < x.rows; r++) {
                float *row = x.p + r * x.cols;
                dq_quantize_tensor_read_back(t, row, got, codes);
                for (int64_t c = 0; c < x.cols; c++) row[c] = got[c] * scale;
            }
            dq_block_free(got);
            dq_block_free(codes);
            if (err->code != DQ_OK) return err->code;
        }
        DQ_TRY(put_stream(j, k, err));
    }
    return DQ_OK;
}

/* A layer takes five passes over the text, six where weights are aligned; each ends where the next
 * product needs weights that are not rounded yet, with its results in the scratch file. The head
 * takes one more. */

typedef void norm_step(const dq_layer_steps *s);

/* The caller owns the cache. */
static dq_layer_steps steps_of(const dq_calibrate_job *j, const dq_calib_chunk *k)
{
    return dq_calib_pass_steps(&j->pass, j->m, &j->layer, k);
}

static dq_status get_stream(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    DQ_TRY(dq_os_check_stop(err));
    begin_phase(j->c);
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first,
                              dq_calib_pass_first(j->pass.x, k->batch.n_rows), err));
    end_phase(j->c, DQ_CALIBRATE_FILES, 0);
    return DQ_OK;
}

/* The Hessian starts empty where weights are to be rounded. */
static bool begin_sums(dq_calibrate_job *j, const dq_weight *const *w, int n)
{
    const bool any = dq_calibrate_job_is_left(j, w, n);
    if (any) dq_hessian_begin(j->h, w[0]->cols);
    return any;
}

/* Says where values are not finite; before: whether also in the unrounded model. */
static const char *where_of(const dq_calibrate_job *j, bool before)
{
    if (!j->ref.act) return " in the model as rounded so far";
    return before ? " in the model as rounded so far; before rounding it is"
                  : ", with or without rounding";
}

/* DQ_DAMAGED: inputs of w in rows from `at` on are not finite; norm: x is the normalized stream. */
static dq_status check_inputs(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat x,
                              const dq_weight *w, norm_step *norm, dq_err *err)
{
    bool before = true;
    int64_t bad = -1;
    j->b->ops->first_bad_row(j->b, &bad, x);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad < 0) return DQ_OK;
    if (j->ref.act) {
        /* Looks whether the unrounded model, if kept, is finite in this row: its stream and its
         * norm; inputs of o and down have reached its stream by then. */
        const int64_t row = at + bad;
        dq_layer_steps s = steps_of(j, k);
        int64_t bad_before = -1, bad_norm = -1;
        s.x = dq_calib_pass_first(j->ref.x, k->batch.n_rows);
        DQ_TRY(reference_get(&j->ref, k->first, k->batch.n_rows, err));
        j->b->ops->first_bad_row(j->b, &bad_before, dq_layer_steps_rows(s.x, row, row + 1));
        if (norm) norm(&s);
        if (norm) j->b->ops->first_bad_row(j->b, &bad_norm, dq_layer_steps_rows(s.h, row, row + 1));
        before = bad_before < 0 && bad_norm < 0;
        DQ_TRY(dq_backend_sync(j->b, err));
    }
    return refuse_row(j, k, at + bad, w, "its input", where_of(j, before), err);
}

static dq_status add_sums(dq_calibrate_job *j, dq_mat x, int64_t piece, dq_err *err)
{
    if (j->ref.act)
        dq_shrinkage_add_inputs(&j->ref.half, j->h, j->b, x, piece, err);
    else
        dq_hessian_add(j->h, j->b, x, (dq_tile_sums_rows){DQ_ROWS_ALL, piece}, err);
    advance(j, DQ_CALIBRATE_HESSIANS, dq_calibrate_work_hessian((double)x.rows, (double)x.cols),
            "hessians");
    return err->code;
}

/* Adds inputs of w in rows from `at` on; halves of the sums are halves of pieces. */
static dq_status add_inputs(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat x,
                            const dq_weight *w, norm_step *norm, int64_t piece, dq_err *err)
{
    DQ_TRY(check_inputs(j, k, at, x, w, norm, err));
    return add_sums(j, x, piece, err);
}

/* Sums need all ranks, also in a round without a chunk for this one. */
static dq_status add_none(dq_calibrate_job *j, int64_t piece, dq_err *err)
{
    DQ_TRY(add_sums(j, (dq_mat){NULL, 0, j->h->n}, piece, err));
    return j->ref.act ? reference_add_none(&j->ref, j->b, piece, err) : DQ_OK;
}

/* Counts the arithmetic of sums with m outputs and of the product they come from; NULL: none. */
static void end_lacks(dq_calibrate_job *j, int64_t rows, int64_t n, const dq_weight *product)
{
    const double sums = dq_calibrate_work_cross((double)rows, (double)j->ref.sums->m, (double)n);
    advance(j, DQ_CALIBRATE_HESSIANS, sums + (product ? dq_calibrate_work_rows(product, rows) : 0),
            "hessians");
}

/* After add_inputs of s->h; does nothing without a reference. */
static dq_status add_lacking_inputs(dq_calibrate_job *j, const dq_calib_chunk *k,
                                    const dq_layer_steps *s, norm_step *norm, dq_err *err)
{
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(reference_get(&j->ref, k->first, k->batch.n_rows, err));
    end_phase(j->c, DQ_CALIBRATE_FILES, 0);
    DQ_TRY(reference_add_inputs(&j->ref, s, norm, err));
    end_lacks(j, s->h.rows, s->h.cols, NULL);
    return DQ_OK;
}

/* Rounds matrices that read a norm of the stream. */
static dq_status pass_norm(dq_calibrate_job *j, dq_weight *const *w, int n, norm_step *norm,
                           dq_err *err)
{
    const bool sums = begin_sums(j, (const dq_weight *const *)w, n);
    if (j->ref.act) reference_begin_inputs(&j->ref, w[0]->cols);
    for (int64_t i = 0; sums && i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        if (!k) {
            DQ_TRY(add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
            continue;
        }
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        norm(&s);
        DQ_TRY(add_inputs(j, k, 0, s.h, w[0], norm, DQ_TILE_SUMS_NO_PIECES, err));
        DQ_TRY(add_lacking_inputs(j, k, &s, norm, err));
    }
    return job_round(j, w, n, sums, err);
}

/* Rounds q and k; and v, where there is no pass_values. */
static dq_status pass_qkv(dq_calibrate_job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    return pass_norm(j, (dq_weight *const[]){&l->q, &l->k, &l->v}, j->ref.act ? 2 : 3,
                     dq_layer_steps_norm_attn, err);
}

/* Applies the maps of s to its h. */
static void read_maps(dq_calibrate_job *j, const dq_calib_chunk *k, const dq_layer_steps *s,
                      dq_mat z)
{
    double flop = 0;
    dq_value_maps_read(j->maps, z, s, k->first_seq);
    for (int i = 0; i < k->batch.n_seq; i++)
        flop += dq_value_maps_flop(j->m, k->batch.cu_rows[i + 1] - k->batch.cu_rows[i]);
    advance(j, DQ_CALIBRATE_MAPS, flop, "values by maps");
}

/* DQ_DAMAGED: the mapped inputs of v, in z, are not finite; ref.lacks holds the reference's. */
static dq_status check_maps(dq_calibrate_job *j, const dq_calib_chunk *k, dq_mat z, dq_err *err)
{
    int64_t bad = -1, bad_before = -1;
    j->b->ops->first_bad_row(j->b, &bad, z);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad < 0) return DQ_OK;
    j->b->ops->first_bad_row(j->b, &bad_before, dq_layer_steps_rows(j->ref.lacks, bad, bad + 1));
    DQ_TRY(dq_backend_sync(j->b, err));
    return refuse_row(j, k, bad, &j->layer.v, "what attention makes of its inputs",
                      where_of(j, bad_before < 0), err);
}

/* Sums for v: inputs under the maps of the rounded q and k, and their difference to the
 * reference's. */
static dq_status add_values(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    const int64_t n = k->batch.n_rows;
    const dq_layer_steps s = steps_of(j, k);
    const dq_mat z = s.x; /* of which only the norm is needed */
    DQ_TRY(get_stream(j, k, err));
    dq_layer_steps_norm_attn(&s);
    j->b->ops->rope_table(j->b, s.angles, k->batch.pos, s.layer->rope);
    dq_layer_steps_qk(&s);
    DQ_TRY(dq_backend_sync(j->b, err));
    advance(j, DQ_CALIBRATE_FORWARD,
            dq_calibrate_work_rows(&s.layer->q, n) + dq_calibrate_work_rows(&s.layer->k, n),
            "attention");
    read_maps(j, k, &s, z);
    DQ_TRY(check_maps(j, k, z, err));
    DQ_TRY(add_sums(j, z, DQ_TILE_SUMS_NO_PIECES, err));
    DQ_TRY(reference_add_read(&j->ref, j->b, z, err));
    end_lacks(j, z.rows, z.cols, NULL);
    return DQ_OK;
}

/* Rounds v and keeps what the reference's attention gives. */
static dq_status pass_values(dq_calibrate_job *j, dq_err *err)
{
    dq_weight *const v = &j->layer.v;
    const bool sums = begin_sums(j, (const dq_weight *const[]){v}, 1);
    reference_begin_inputs(&j->ref, v->cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        if (k && sums) {
            /* Maps spread a row that is not finite (0 * NaN), so v's inputs are checked first,
             * while attention has not yet changed the reference's stream. */
            const dq_layer_steps steps = steps_of(j, k);
            DQ_TRY(get_stream(j, k, err));
            dq_layer_steps_norm_attn(&steps);
            DQ_TRY(check_inputs(j, k, 0, steps.h, &steps.layer->v, dq_layer_steps_norm_attn, err));
        }
        if (k) {
            /* The reference's attention; where v is to be rounded, ref.lacks becomes its mapped
             * inputs. */
            const dq_layer_steps rounded = steps_of(j, k);
            const dq_layer_steps s = reference_steps(&j->ref, &rounded, j->number);
            begin_phase(j->c);
            DQ_TRY(reference_get(&j->ref, k->first, k->batch.n_rows, err));
            end_phase(j->c, DQ_CALIBRATE_FILES, 0);
            DQ_TRY(attend(j, k, s, err));
            if (sums) read_maps(j, k, &s, dq_calib_pass_first(j->ref.lacks, k->batch.n_rows));
            DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
            end_phase(j->c, DQ_CALIBRATE_FILES, 0);
        }
        if (sums) DQ_TRY(k ? add_values(j, k, err) : add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
    }
    return job_round(j, (dq_weight *const[]){v}, 1, sums, err);
}

/* Takes the reference, of which pass_values has kept the attention, past o. */
static dq_status move_reference(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    const dq_layer_steps rounded = steps_of(j, k),
                         s = reference_steps(&j->ref, &rounded, j->number);
    begin_phase(j->c);
    DQ_TRY(reference_get(&j->ref, k->first, k->batch.n_rows, err));
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
    end_phase(j->c, DQ_CALIBRATE_FILES, 0);
    dq_layer_steps_o(&s);
    reference_keep(&j->ref, &s, s.layer->norm_attn_out);
    dq_layer_steps_add_attn(&s);
    DQ_TRY(reference_put(&j->ref, k->first, s.x, err));
    advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&s.layer->o, k->batch.n_rows),
            "attention");
    return DQ_OK;
}

static dq_status pass_attend(dq_calibrate_job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.o};
    const bool sums = begin_sums(j, in, 1);
    if (j->ref.act) reference_begin_outputs(&j->ref, j->layer.o.cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
        if (!k) continue;
        const dq_layer_steps s = steps_of(j, k);
        if (j->ref.act) DQ_TRY(move_reference(j, k, err));
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(attend(j, k, s, err));
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        end_phase(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        DQ_TRY(add_inputs(j, k, 0, s.y, in[0], NULL, DQ_TILE_SUMS_NO_PIECES, err));
        if (!j->ref.act) continue;
        DQ_TRY(reference_add_attention(&j->ref, &s, j->number, err));
        end_lacks(j, s.y.rows, s.y.cols, &j->layer.o);
    }
    return job_round(j, (dq_weight *const[]){&j->layer.o}, 1, sums, err);
}

static dq_status pass_out(dq_calibrate_job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    const dq_weight *const in[] = {&l->gate, &l->up};
    const bool sums = begin_sums(j, in, 2);
    if (j->ref.act) reference_begin_inputs(&j->ref, l->gate.cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
        if (!k) continue;
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        end_phase(j->c, DQ_CALIBRATE_FILES, 0);
        dq_layer_steps_out(&s);
        advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&l->o, k->batch.n_rows),
                "attention");
        DQ_TRY(put_stream(j, k, err));
        if (!sums) continue;
        dq_layer_steps_norm_ffn(&s);
        DQ_TRY(
            add_inputs(j, k, 0, s.h, in[0], dq_layer_steps_norm_ffn, DQ_TILE_SUMS_NO_PIECES, err));
        DQ_TRY(add_lacking_inputs(j, k, &s, dq_layer_steps_norm_ffn, err));
    }
    return job_round(j, (dq_weight *const[]){&l->gate, &l->up}, 2, sums, err);
}

static dq_status add_gate(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat gate,
                          dq_err *err)
{
    const dq_layer_steps s = steps_of(j, k);
    DQ_TRY(add_inputs(j, k, at, gate, &j->layer.down, NULL, DQ_FFN_ROWS, err));
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(reference_add_down(&j->ref, &s, j->number, at, gate, err));
    end_lacks(j, gate.rows, gate.cols, &j->layer.down);
    return DQ_OK;
}

/* Makes the inputs of down in pieces of at most DQ_FFN_ROWS rows, which a single process adds to
 * the sums at once. */
static dq_status gate_up(dq_calibrate_job *j, const dq_calib_chunk *k, bool sums, dq_err *err)
{
    const bool whole = dq_ranks_count() > 1;
    const dq_layer_steps s = steps_of(j, k);
    dq_layer_steps_norm_ffn(&s);
    for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
        const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS,
                      to = whole ? at : 0;
        const dq_mat gate = dq_layer_steps_rows(j->pass.gate, to, to + n),
                     up = dq_calib_pass_first(j->pass.up, n);
        dq_layer_steps_gate_up(&s, gate, up, dq_layer_steps_rows(s.h, at, at + n));
        DQ_TRY(dq_backend_sync(j->b, err));
        advance(j, DQ_CALIBRATE_FORWARD, 2 * dq_calibrate_work_rows(&j->layer.gate, n),
                "feed-forward");
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
        end_phase(j->c, DQ_CALIBRATE_FILES, 0);
        if (sums && !whole) DQ_TRY(add_gate(j, k, at, gate, err));
    }
    if (!sums || !whole) return DQ_OK;
    return add_gate(j, k, 0, dq_calib_pass_first(j->pass.gate, k->batch.n_rows), err);
}

static bool is_last(const dq_calibrate_job *j)
{
    return j->number == j->n_layers - 1 && !j->head;
}

static dq_status pass_gate_up(dq_calibrate_job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.down};
    const bool sums = begin_sums(j, in, 1), last = is_last(j);
    if (j->ref.act) reference_begin_outputs(&j->ref, j->layer.down.cols);
    for (int64_t i = 0; (sums || !last) && i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_FFN_ROWS, err));
        if (!k) continue;
        if (j->ref.act) {
            const dq_layer_steps rounded = steps_of(j, k);
            const dq_layer_steps s = reference_steps(&j->ref, &rounded, j->number);
            begin_phase(j->c);
            DQ_TRY(reference_get(&j->ref, k->first, k->batch.n_rows, err));
            dq_reference_feed(&s, j->pass.gate, j->pass.up);
            reference_keep(&j->ref, &s, s.layer->norm_ffn_out);
            dq_layer_steps_add_ffn(&s);
            DQ_TRY(reference_put(&j->ref, k->first, s.x, err));
            const double flop = 2 * dq_calibrate_work_rows(&s.layer->gate, s.x.rows) +
                                dq_calibrate_work_rows(&s.layer->down, s.x.rows);
            advance(j, DQ_CALIBRATE_FORWARD, flop, "feed-forward");
        }
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(gate_up(j, k, sums, err));
    }
    return job_round(j, (dq_weight *const[]){&j->layer.down}, 1, sums, err);
}

static dq_status pass_down(dq_calibrate_job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = chunk_at(j, i);
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
            const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
            const dq_mat gate = dq_calib_pass_first(j->pass.gate, n);
            DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
            end_phase(j->c, DQ_CALIBRATE_FILES, 0);
            dq_layer_steps_down(&s, dq_layer_steps_rows(s.h, at, at + n), gate);
            DQ_TRY(dq_backend_sync(j->b, err));
            advance(j, DQ_CALIBRATE_FORWARD, dq_calibrate_work_rows(&j->layer.down, n),
                    "feed-forward");
        }
        dq_layer_steps_add_ffn(&s);
        DQ_TRY(put_stream(j, k, err));
    }
    return DQ_OK;
}

static void free_rounded(dq_calibrate_job *j)
{
    while (j->n_coded > 0) dq_coded_free(&j->coded[--j->n_coded]);
    while (j->n_dense > 0) dq_block_free(j->dense[--j->n_dense]);
}

const char *const dq_calibrate_phase_name[DQ_CALIBRATE_PHASES] = {
    "text", "forward", "maps", "hessians", "factors", "rounding", "files"};

const dq_calibrate_rule dq_calibrate_rules[DQ_CALIBRATE_RULES] = {
    {.name = "gptq",
     .about = "layer by layer, errors of columns made up for by those still to be rounded"},
    {.name = "align",
     .about = "the same of weights that first make up for what was lost before them; takes longer",
     .aligns = true,
     .refits = 2},
};

double dq_calibrate_damping(int64_t inputs, int64_t tokens)
{
    const double least = 0.01, share = tokens > 0 ? 0.5 * (double)inputs / (double)tokens : 0;
    return share > least ? share : least;
}

static void tell_sampled(void *arg, double share)
{
    dq_calibrate_job *j = arg;
    j->at_once = 1;
    advance(j, DQ_CALIBRATE_TEXT, share * dq_calib_sample_flop(j->m, &j->c->text), "text");
}

static dq_status run_job(dq_calibrate_job *j, dq_err *err)
{
    dq_calibrate *c = j->c;
    find_left(j);
    if (j->n_layers == 0 && !j->embed) return DQ_OK;
    dq_quantize_feed_expect(j->feed);
    if (c->sampled) {
        const dq_calib_sampler to = {.m = j->m,
                                     .b = j->b,
                                     .text = &c->text,
                                     .ids = c->sampled,
                                     .tell = tell_sampled,
                                     .arg = j};
        begin_phase(c);
        DQ_TRY(dq_calib_sample(&to, err));
    }
    DQ_TRY(dq_calib_pass_new(&j->pass, j->m, j->b, &c->text, err));
    DQ_TRY(dq_hessian_new(&j->h, dq_calib_pass_widest(j->m), j->pass.max_rows, err));
    const int streams = c->set.rule->aligns ? 2 : 1;
    DQ_TRY(dq_activations_open(&j->act, j->b, c->set.out, j->pass.n_rows, j->m->dim, streams,
                               dq_calib_pass_widest(j->m), err));
    if (streams == 2) {
        DQ_TRY(reference_new(&j->ref, &j->act, j->m, j->pass.max_rows, err));
        DQ_TRY(dq_value_maps_new(&j->maps, j->m, dq_calib_text_longest(&c->text), err));
    }
    /* Starts both streams from the embedding, plain and as rounded. A tied one is rounded here, by
     * the final norm of the unrounded model. */
    const dq_quantize_tensor *t = dq_quantize_tensor_of(j->feed->q, j->m->embed.name);
    const bool fed = t && t->format && t->is_fed;
    dq_coded coded = {0};
    if (j->embed) {
        const dq_weight *w = &j->m->embed;
        const double usual = dq_calibrate_damping(w->cols, j->c->text.n_ids),
                     share = fmax(usual, DQ_CALIBRATE_EMBED_DAMPING);
        dq_hessian_begin(j->h, w->cols);
        for (int64_t i = 0; i < j->pass.n_rounds; i++) DQ_TRY(add_chunk(j, chunk_at(j, i), err));
        DQ_TRY(job_factor(j, share, w->name, err));
        DQ_TRY(round_tensor(j, t, w, false, &coded, err));
    } else if (fed) {
        DQ_TRY(dq_quantize_feed_take(j->feed, t, &coded, err));
    }
    begin_streams(j, t, fed ? &coded.weight : NULL, err);
    if (fed) dq_coded_free(&coded);
    if (err->code != DQ_OK) return err->code;
    for (int i = 0; i < j->n_layers; i++) {
        /* Rounds a layer's projections and takes both streams through it. */
        j->layer = j->m->layer[i];
        j->number = i;
        if (take_stored(j, &j->layer.lambda_proj, err) == DQ_OK && pass_qkv(j, err) == DQ_OK &&
            (!j->ref.act || pass_values(j, err) == DQ_OK) && pass_attend(j, err) == DQ_OK &&
            pass_out(j, err) == DQ_OK && pass_gate_up(j, err) == DQ_OK && !is_last(j))
            pass_down(j, err);
        free_rounded(j);
        if (err->code != DQ_OK && err->code != DQ_STOPPED && err->code != DQ_DAMAGED)
            dq_in(err, "layer %d: ", i);
        if (err->code != DQ_OK) return err->code;
    }
    if (!j->head) return DQ_OK;
    /* Rounds an untied head by the final norms of both streams, after the last layer. */
    dq_weight head = j->m->head;
    pass_norm(j, (dq_weight *const[]){&head}, 1, dq_layer_steps_norm_out, err);
    free_rounded(j);
    return err->code;
}

/* Chunks differ by rank, so their arithmetic is summed. */
static dq_status sum_flop(dq_calibrate_info *info, dq_err *err)
{
    static const dq_calibrate_phase phases[] = {DQ_CALIBRATE_FORWARD, DQ_CALIBRATE_MAPS,
                                                DQ_CALIBRATE_HESSIANS};
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        int64_t flop = (int64_t)info->flop[phases[i]];
        DQ_TRY(dq_ranks_sum(&flop, err));
        info->flop[phases[i]] = (double)flop;
    }
    return DQ_OK;
}

static dq_status run(void *arg, dq_quantize_feed *feed, dq_err *err)
{
    dq_calibrate *c = arg;
    dq_calibrate_job j = {.c = c,
                          .q = feed->q,
                          .feed = feed,
                          .m = feed->q->model,
                          .b = c->set.backend,
                          .act.file.fd = -1};
    if (dq_model_check_weights(j.m, err) == DQ_OK) run_job(&j, err);
    if (err->code == DQ_OK) sum_flop(&c->info, err);
    reference_free(&j.ref);
    dq_value_maps_free(j.maps);
    dq_activations_close(&j.act);
    dq_hessian_free(j.h);
    dq_calib_pass_end(&j.pass);
    dq_err ignore = {0};
    dq_backend_sync(j.b, &ignore);
    return err->code;
}

static void expect(void *arg, const dq_quantizer *q, dq_quantize_feed *feed, dq_pace *p)
{
    dq_calibrate *c = arg;
    dq_calibrate_job j = {.c = c, .q = q, .feed = feed, .m = c->m};
    find_left(&j);
    dq_calibrate_pace_expect(&j, p);
}

/* *what: the text as a container names it. */
static dq_status read_file(json_t **what, dq_calibrate *c, const dq_model *m, dq_err *err)
{
    const dq_calib_text *t = &c->text;
    const char *slash = strrchr(c->set.path, '/');
    const char *file = slash ? slash + 1 : c->set.path;
    int64_t first;
    DQ_TRY(dq_calib_text_read(&c->text, c->set.path, m, c->set.tokens, c->set.ctx, c->set.quarters,
                              c->arena, err));
    if (c->set.sha256 && strcmp(t->sha256, c->set.sha256) != 0)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: is not the text that the recipe was planned with (its SHA-256 is %.12s..., "
            "expected %.12s...). Give that text, or take \"calib\" out of the recipe's plan.",
            c->set.path, t->sha256, c->set.sha256);
    if (dq_utf8_check(file, strlen(file), &first) > 0)
        return dq_fail(err, DQ_USAGE, "%s: the name of the calibration text is not UTF-8",
                       c->set.path);
    *what = json_pack("{s:s, s:s, s:o}", "file", file, "sha256", t->sha256, "sketch",
                      dq_calib_text_sketch(t));
    return *what ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

static dq_status write_own(json_t **what, dq_calibrate *c, const dq_model *m, dq_err *err)
{
    if (c->set.sha256)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: its recipe was planned with the text of SHA-256 %.12s..., and not with "
                       "one that the model writes. Give that text, or take \"calib\" out of the "
                       "recipe's plan.",
                       m->path, c->set.sha256);
    DQ_TRY(
        dq_calib_text_sampled(&c->text, &c->sampled, m, c->set.tokens, c->set.ctx, c->arena, err));
    *what = json_pack("{s:i}", "seed", DQ_CALIB_SAMPLE_SEED);
    return *what ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

static dq_status begin(void *arg, const dq_model *m, dq_quantize_needs *out, dq_err *err)
{
    dq_calibrate *c = arg;
    const dq_calib_text *t = &c->text;
    json_t *o;
    DQ_TRY(c->set.path ? read_file(&o, c, m, err) : write_own(&o, c, m, err));
    out->calib = o;
    c->m = m;
    c->info.text = t;
    c->info.inputs = dq_calib_pass_widest(m);
    c->info.scratch_bytes = dq_activations_bytes(t->n_ids, m->dim, c->set.rule->aligns ? 2 : 1,
                                                 dq_calib_pass_widest(m));
    out->scratch_bytes = c->info.scratch_bytes;
    json_object_set_new(o, "tokens", json_integer(t->n_ids));
    json_object_set_new(o, "sequences", json_integer(t->n_seq));
    json_object_set_new(o, "ctx", json_integer(t->ctx));
    json_object_set_new(o, "damping", json_string(DQ_CALIBRATE_DAMPING));
    if (c->set.rule->aligns) json_object_set_new(o, "values", json_string("maps"));
    if (c->set.quarters != DQ_CALIB_TEXT_ALL)
        json_object_set_new(o, "quarters", dq_calib_text_quarters_json(c->set.quarters));
    return dq_json_complete(err);
}

dq_status dq_calibrate_new(dq_calibrate **out, const dq_calibrate_settings *s, dq_err *err)
{
    dq_calibrate *c = *out = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    c->set = *s;
    c->rates = dq_calibrate_pace_usual;
    if (c->set.quarters == 0) c->set.quarters = DQ_CALIB_TEXT_ALL;
    c->method = (dq_quantize_method){
        .name = s->rule->name, .begin = begin, .run = run, .expect = expect, .arg = c};
    c->arena = dq_arena_new();
    if (c->arena) return DQ_OK;
    dq_calibrate_free(c);
    *out = NULL;
    return dq_fail(err, DQ_RESOURCE, "out of memory");
}

void dq_calibrate_free(dq_calibrate *c)
{
    if (!c) return;
    dq_arena_free(c->arena);
    dq_block_free(c);
}
