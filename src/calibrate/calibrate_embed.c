/* calibrate_embed: a tied embedding is rounded first, since everything reads what it gives: as the head, by the inputs that this
 * has in the model before rounding. On SmolLM2-135M at 4 bits that leaves a sixth of the KLD of rounding to nearest.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "calibrate/calibrate_work.h"

#include <math.h>
#include <string.h>

static dq_status embed(dq_calibrate_job *j, dq_mat x, const dq_weight *w, const dq_calib_chunk *k,
                       dq_err *err)
{
    j->b->ops->embed(j->b, x, w, k->batch.ids);
    return dq_backend_sync(j->b, err);
}

static dq_status add_rows(dq_calibrate_job *j, dq_mat x, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL,
                                   DQ_TILE_SUMS_NO_PIECES}; /* nothing is judged here */
    return dq_hessian_add(j->h, j->b, x, all, err);
}

/* What the head reads of a chunk, added to the sums. NULL: of none. */
static dq_status add_chunk(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    int64_t bad = -1;
    if (!k) return add_rows(j, (dq_mat){NULL, 0, j->m->dim}, err);
    const dq_layer_steps s = dq_calib_pass_steps(&j->pass, j->m, &j->layer, k);
    DQ_TRY(embed(j, s.x, &j->m->embed, k, err));
    DQ_TRY(dq_calibrate_job_run_source(j, k, err));
    dq_layer_steps_norm_out(&s);
    j->b->ops->first_bad_row(j->b, &bad, s.h);
    DQ_TRY(dq_backend_sync(j->b, err));
    if (bad >= 0)
        return dq_calibrate_job_refuse_row(j, k, bad, &j->m->embed, "what the head reads",
                                           ", before rounding", err);
    dq_calibrate_job_begin_part(j->c);
    DQ_TRY(add_rows(j, s.h, err));
    const double n = (double)s.h.rows;
    dq_calibrate_job_advance(j, DQ_CALIBRATE_HESSIANS,
                             dq_calibrate_work_hessian(n, (double)s.h.cols), "hessians");
    return DQ_OK;
}

static dq_status round_tied(dq_calibrate_job *j, const dq_quantize_tensor *t, dq_coded *out,
                            dq_err *err)
{
    const dq_weight *w = &j->m->embed;
    const double usual = dq_calibrate_damping(w->cols, j->c->text.n_ids),
                 share = fmax(usual, DQ_CALIBRATE_EMBED_DAMPING);
    dq_hessian_begin(j->h, w->cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++)
        DQ_TRY(add_chunk(j, dq_calibrate_job_chunk(j, i), err));
    DQ_TRY(dq_calibrate_job_factor(j, share, w->name, err));
    return dq_calibrate_job_round_tensor(j, t, w, false, out, err);
}

/* Rows of an embedding that no method rounds, as they are read back. */
static dq_status read_back(const dq_quantize_tensor *t, dq_mat x, dq_err *err)
{
    float *got = dq_block_new((size_t)x.cols, sizeof *got, err);
    int8_t *codes = dq_block_new((size_t)x.cols, sizeof *codes, err);
    for (int64_t r = 0; err->code == DQ_OK && r < x.rows; r++) {
        float *row = x.p + r * x.cols;
        dq_quantize_tensor_read_back(t, row, got, codes);
        memcpy(row, got, (size_t)x.cols * sizeof *row);
    }
    dq_block_free(got);
    dq_block_free(codes);
    return err->code;
}

static dq_status begin_streams(dq_calibrate_job *j, const dq_quantize_tensor *t,
                               const dq_weight *rounded, dq_err *err)
{
    dq_calibrate_job_begin_part(j->c);
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        const dq_mat x = dq_calib_pass_first(j->pass.x, k->batch.n_rows);
        DQ_TRY(embed(j, x, &j->m->embed, k, err));
        if (j->ref.act) DQ_TRY(dq_reference_put(&j->ref, k->first, x, err));
        if (rounded)
            DQ_TRY(embed(j, x, rounded, k, err));
        else if (t)
            DQ_TRY(read_back(t, x, err));
        DQ_TRY(dq_calibrate_job_put_stream(j, k, err));
    }
    return DQ_OK;
}

dq_status dq_calibrate_job_run_embedding(dq_calibrate_job *j, dq_err *err)
{
    const dq_quantize_tensor *t = dq_quantize_feed_tensor(j->feed, j->m->embed.name);
    const bool fed = t && t->format && t->is_fed;
    dq_coded coded = {0};
    if (j->embed)
        DQ_TRY(round_tied(j, t, &coded, err));
    else if (fed)
        DQ_TRY(dq_quantize_feed_take(j->feed, t, &coded, err));
    begin_streams(j, t, fed ? &coded.weight : NULL, err);
    if (fed) dq_coded_free(&coded);
    return err->code;
}
