/* calibrate_layer: a layer takes five passes, six where weights are aligned, over the chunks of the text, each of which ends
 * where the next product needs weights that are not rounded yet; what a pass leaves lies in the scratch file. The head takes
 * one more after the last layer.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_job.h"

#include "base/os.h"
#include "base/ranks.h"
#include "calibrate/calibrate_work.h"
#include "engine/runner.h"

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

/* For weights that have to be rounded the Hessian is emptied. */
static bool begin_sums(dq_calibrate_job *j, const dq_weight *const *w, int n)
{
    const bool any = dq_calibrate_job_is_left(j, w, n);
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

dq_status dq_calibrate_job_refuse_row(const dq_calibrate_job *j, const dq_calib_chunk *k,
                                      int64_t at, const dq_weight *w, const char *what,
                                      const char *where, dq_err *err)
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

/* Where what the rounded model reads is not finite; before: whether it is in the model before rounding. */
static const char *where_of(const dq_calibrate_job *j, bool before)
{
    if (!j->ref.act) return " in the model as rounded so far";
    return before ? " in the model as rounded so far; before rounding it is"
                  : ", with or without rounding";
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
    return dq_calibrate_job_refuse_row(j, k, at + bad, w, "its input", where_of(j, before), err);
}

static dq_status add_sums(dq_calibrate_job *j, dq_mat x, int64_t piece, dq_err *err)
{
    if (j->ref.act)
        dq_shrinkage_add_inputs(&j->ref.half, j->h, j->b, x, piece, err);
    else
        dq_hessian_add(j->h, j->b, x, (dq_tile_sums_rows){DQ_ROWS_ALL, piece}, err);
    dq_calibrate_job_advance(j, DQ_CALIBRATE_HESSIANS,
                             dq_calibrate_work_hessian((double)x.rows, (double)x.cols), "hessians");
    return err->code;
}

/* Rows from `at` of a chunk that w reads; halves of the sums are those of pieces. */
static dq_status add_inputs(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat x,
                            const dq_weight *w, norm_step *norm, int64_t piece, dq_err *err)
{
    DQ_TRY(check_inputs(j, k, at, x, w, norm, err));
    return add_sums(j, x, piece, err);
}

/* The sums of a round in which this rank has no chunk. */
static dq_status add_none(dq_calibrate_job *j, int64_t piece, dq_err *err)
{
    DQ_TRY(add_sums(j, (dq_mat){NULL, 0, j->h->n}, piece, err));
    return j->ref.act ? dq_reference_add_none(&j->ref, j->b, piece, err) : DQ_OK;
}

/* Of the sums of what the rounded model lacks, m outputs, and of the product that says it; NULL: none does. */
static void end_lacks(dq_calibrate_job *j, int64_t rows, int64_t n, const dq_weight *product)
{
    const double sums = dq_calibrate_work_cross((double)rows, (double)j->ref.sums->m, (double)n);
    dq_calibrate_job_advance(j, DQ_CALIBRATE_HESSIANS,
                             sums + (product ? dq_calibrate_work_rows(product, rows) : 0),
                             "hessians");
}

/* ---- Passes of a layer ---- */

/* After add_inputs of s->h, where there is a reference. */
static dq_status add_lacking_inputs(dq_calibrate_job *j, const dq_calib_chunk *k,
                                    const dq_layer_steps *s, norm_step *norm, dq_err *err)
{
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_get(&j->ref, k->first, k->batch.n_rows, err));
    dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
    DQ_TRY(dq_reference_add_inputs(&j->ref, s, norm, err));
    end_lacks(j, s->h.rows, s->h.cols, NULL);
    return DQ_OK;
}

/* Matrices that read a norm of the stream as it lies. */
static dq_status pass_norm(dq_calibrate_job *j, dq_weight *const *w, int n, norm_step *norm,
                           dq_err *err)
{
    const bool sums = begin_sums(j, (const dq_weight *const *)w, n);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, w[0]->cols);
    for (int64_t i = 0; sums && i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
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
    return dq_calibrate_job_round(j, w, n, sums, err);
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
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                             maps + dq_calibrate_work_rows(&s.layer->q, n) +
                                 dq_calibrate_work_rows(&s.layer->k, n) +
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
    dq_calibrate_job_advance(j, DQ_CALIBRATE_MAPS, flop, "values by maps");
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
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                             dq_calibrate_work_rows(&s.layer->o, k->batch.n_rows), "attention");
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
    return dq_calibrate_job_refuse_row(j, k, bad, &j->layer.v, "what attention makes of its inputs",
                                       where_of(j, bad_before < 0), err);
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
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                             dq_calibrate_work_rows(&s.layer->q, n) +
                                 dq_calibrate_work_rows(&s.layer->k, n),
                             "attention");
    read_maps(j, k, &s, z);
    DQ_TRY(check_maps(j, k, z, err));
    DQ_TRY(add_sums(j, z, DQ_TILE_SUMS_NO_PIECES, err));
    DQ_TRY(dq_reference_add_read(&j->ref, j->b, z, err));
    end_lacks(j, z.rows, z.cols, NULL);
    return DQ_OK;
}

/* v, beside a reference, which is taken through attention. */
static dq_status pass_values(dq_calibrate_job *j, dq_err *err)
{
    dq_weight *const v = &j->layer.v;
    const bool sums = begin_sums(j, (const dq_weight *const[]){v}, 1);
    dq_reference_begin_inputs(&j->ref, v->cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        if (k && sums) DQ_TRY(check_values(j, k, err));
        if (k) DQ_TRY(reference_attend(j, k, sums, err));
        if (sums) DQ_TRY(k ? add_values(j, k, err) : add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
    }
    return dq_calibrate_job_round(j, (dq_weight *const[]){v}, 1, sums, err);
}

static dq_status pass_attend(dq_calibrate_job *j, dq_err *err)
{
    const dq_weight *const in[] = {&j->layer.o};
    const bool sums = begin_sums(j, in, 1);
    if (j->ref.act) dq_reference_begin_outputs(&j->ref, j->layer.o.cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
        if (!k) continue;
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(attend(j, k, s, err));
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (!sums) continue;
        DQ_TRY(add_inputs(j, k, 0, s.y, in[0], NULL, DQ_TILE_SUMS_NO_PIECES, err));
        if (!j->ref.act) continue;
        DQ_TRY(dq_reference_get(&j->ref, k->first, s.x.rows, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        DQ_TRY(dq_reference_add_attention(&j->ref, &s, j->number, err));
        end_lacks(j, s.y.rows, s.y.cols, &j->layer.o);
    }
    return dq_calibrate_job_round(j, (dq_weight *const[]){&j->layer.o}, 1, sums, err);
}

static dq_status pass_out(dq_calibrate_job *j, dq_err *err)
{
    dq_layer *l = &j->layer;
    const dq_weight *const in[] = {&l->gate, &l->up};
    const bool sums = begin_sums(j, in, 2);
    if (j->ref.act) dq_reference_begin_inputs(&j->ref, l->gate.cols);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_TILE_SUMS_NO_PIECES, err));
        if (!k) continue;
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first, s.y, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        dq_layer_steps_out(&s);
        dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                                 dq_calibrate_work_rows(&l->o, k->batch.n_rows), "attention");
        DQ_TRY(dq_calibrate_job_put_stream(j, k, err));
        if (!sums) continue;
        dq_layer_steps_norm_ffn(&s);
        DQ_TRY(
            add_inputs(j, k, 0, s.h, in[0], dq_layer_steps_norm_ffn, DQ_TILE_SUMS_NO_PIECES, err));
        DQ_TRY(add_lacking_inputs(j, k, &s, dq_layer_steps_norm_ffn, err));
    }
    return dq_calibrate_job_round(j, (dq_weight *const[]){&l->gate, &l->up}, 2, sums, err);
}

/* What down reads from row `at` of a chunk, added to its sums. */
static dq_status add_gate(dq_calibrate_job *j, const dq_calib_chunk *k, int64_t at, dq_mat gate,
                          dq_err *err)
{
    const dq_layer_steps s = steps_of(j, k);
    DQ_TRY(add_inputs(j, k, at, gate, &j->layer.down, NULL, DQ_FFN_ROWS, err));
    if (!j->ref.act) return DQ_OK;
    DQ_TRY(dq_reference_add_down(&j->ref, &s, j->number, at, gate, err));
    end_lacks(j, gate.rows, gate.cols, &j->layer.down);
    return DQ_OK;
}

/* What down reads, in pieces of at most DQ_FFN_ROWS rows, which one process alone adds to the sums as they come. */
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
        dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                                 2 * dq_calibrate_work_rows(&j->layer.gate, n), "feed-forward");
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
        dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
        if (sums && !whole) DQ_TRY(add_gate(j, k, at, gate, err));
    }
    if (!sums || !whole) return DQ_OK;
    return add_gate(j, k, 0, dq_calib_pass_first(j->pass.gate, k->batch.n_rows), err);
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
    dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD, flop, "feed-forward");
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
    for (int64_t i = 0; (sums || !last) && i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        if (!k && sums) DQ_TRY(add_none(j, DQ_FFN_ROWS, err));
        if (!k) continue;
        if (j->ref.act) DQ_TRY(reference_feed_forward(j, k, err));
        DQ_TRY(get_stream(j, k, err));
        DQ_TRY(gate_up(j, k, sums, err));
    }
    return dq_calibrate_job_round(j, (dq_weight *const[]){&j->layer.down}, 1, sums, err);
}

static dq_status pass_down(dq_calibrate_job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = dq_calibrate_job_chunk(j, i);
        const dq_layer_steps s = steps_of(j, k);
        DQ_TRY(get_stream(j, k, err));
        for (int64_t at = 0; at < k->batch.n_rows; at += DQ_FFN_ROWS) {
            const int64_t left = k->batch.n_rows - at, n = left < DQ_FFN_ROWS ? left : DQ_FFN_ROWS;
            const dq_mat gate = dq_calib_pass_first(j->pass.gate, n);
            DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_OTHER, k->first + at, gate, err));
            dq_calibrate_job_end_part(j->c, DQ_CALIBRATE_FILES, 0);
            dq_layer_steps_down(&s, dq_layer_steps_rows(s.h, at, at + n), gate);
            DQ_TRY(dq_backend_sync(j->b, err));
            dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD,
                                     dq_calibrate_work_rows(&j->layer.down, n), "feed-forward");
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
    if (dq_calibrate_job_take_stored(j, &j->layer.lambda_proj, err) == DQ_OK &&
        pass_qkv(j, err) == DQ_OK && (!j->ref.act || pass_values(j, err) == DQ_OK) &&
        pass_attend(j, err) == DQ_OK && pass_out(j, err) == DQ_OK &&
        pass_gate_up(j, err) == DQ_OK && !is_last(j))
        pass_down(j, err);
    free_rounded(j);
    if (err->code != DQ_OK && err->code != DQ_STOPPED && err->code != DQ_DAMAGED)
        dq_in(err, "layer %d: ", number);
    return err->code;
}

dq_status dq_calibrate_job_run_source(dq_calibrate_job *j, const dq_calib_chunk *k, dq_err *err)
{
    for (int i = 0; i < j->m->n_layers; i++) {
        const dq_layer *l = &j->m->layer[i];
        const dq_layer_steps s = dq_calib_pass_steps(&j->pass, j->m, l, k);
        DQ_TRY(dq_os_check_stop(err));
        dq_calibrate_job_begin_part(j->c);
        DQ_TRY(attend(j, k, s, err));
        dq_layer_steps_out(&s);
        dq_reference_feed_forward(&s, j->pass.gate, j->pass.up);
        DQ_TRY(dq_backend_sync(j->b, err));
        const int64_t n = s.x.rows; /* attention has told of q, k and v */
        const double flop = dq_calibrate_work_layer(l) * (double)n -
                            dq_calibrate_work_rows(&l->q, n) - dq_calibrate_work_rows(&l->k, n) -
                            dq_calibrate_work_rows(&l->v, n);
        dq_calibrate_job_advance(j, DQ_CALIBRATE_FORWARD, flop, "model before rounding");
    }
    return DQ_OK;
}

dq_status dq_calibrate_job_run_head(dq_calibrate_job *j, dq_err *err)
{
    dq_weight head = j->m->head;
    pass_norm(j, (dq_weight *const[]){&head}, 1, dq_layer_steps_norm_out, err);
    free_rounded(j);
    return err->code;
}
