/* plan_probe: see plan_probe.h. One pass of the calibration text through a layer gives the Hessians of its four kinds of
 * inputs and takes the text on to the next layer; after the last one the final norm gives that of a head's.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_probe.h"

#include "plan/plan_decide.h"

#include "base/os.h"
#include "calibrate/calibrate_work.h"
#include "calibrate/gptq_stripes.h"
#include "engine/runner.h"
#include "plan/weights/plan_round.h"

#include <math.h>
#include <string.h>

/* One run. */
typedef struct job {
    dq_plan_probe *p;
    dq_calib_pass pass; /* of the calibration text */
    dq_activations act;
    dq_hessian *h[DQ_PLAN_PRODUCTS];
    bool wanted[DQ_PLAN_PRODUCTS], factored[DQ_PLAN_PRODUCTS];
    dq_plan_sums sums;
    dq_err *err; /* of what sees inputs */
} job;

/* A head's inputs are as many as those of q, k and v, and come when these have served. */
static dq_plan_product product_of(dq_plan_slot s)
{
    if (s <= DQ_PLAN_V || s >= DQ_PLAN_EMBED) return DQ_PLAN_QKV;
    if (s == DQ_PLAN_OUT) return DQ_PLAN_O;
    return s == DQ_PLAN_DOWN_PROJ ? DQ_PLAN_DOWN : DQ_PLAN_GATE_UP;
}

static bool is_end(const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_EMBED || t->slot == DQ_PLAN_HEAD;
}

dq_weight *dq_plan_probe_weight(dq_layer *l, dq_plan_slot s)
{
    dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    return all[s];
}

/* An embedding that is no head: nothing says what reads its columns. */
static bool is_nearest(const dq_model *m, const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_EMBED && !m->tied;
}

/* Whether the head, tied to the embedding or not, is to be measured. */
static bool wants_head(const dq_plan_probe *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (is_end(t) && !is_nearest(p->m, t) && !t->known) return true;
    }
    return false;
}

dq_mean dq_plan_probe_kld(const dq_plan_tensor *t, int option)
{
    const double of = t->loss[t->measured], share = of > 0 ? t->loss[option] / of : 1;
    dq_mean k = t->kld;
    k.value *= share;
    k.std_err *= share;
    return k;
}

int dq_plan_probe_measured(const dq_plan_tensor *t)
{
    enum { SMALL = 3 };
    int i = 0;
    while (i + 1 < t->n && t->bits[i] < SMALL) i++;
    return i;
}

/* The first layer that runs when it is measured. */
static int first_layer(const dq_model *m, const dq_plan_tensor *t)
{
    return t->slot == DQ_PLAN_HEAD ? m->n_layers : t->layer;
}

/* ---- Arithmetic ---- */

static double rounding_flop(const dq_plan_probe *p, const dq_plan_tensor *t)
{
    if (is_nearest(p->m, t)) return 0;
    const double rows = (double)t->rows, cols = (double)t->cols;
    return DQ_CALIBRATE_F64_FLOP * (dq_calibrate_work_rounding(rows, cols, t->spec.mode, p->rule) +
                                    dq_calibrate_work_found(rows, cols, t->spec.mode, p->rule));
}

static double tensor_flop(const dq_plan_probe *p, const dq_plan_tensor *t, double search_ids)
{
    const int from = t->slot == DQ_PLAN_EMBED ? 0 : first_layer(p->m, t);
    return t->n * rounding_flop(p, t) + dq_plan_part_flop(p->m, from, search_ids);
}

static double hessians_flop(const dq_model *m, const bool *wanted, double ids)
{
    double n = 0;
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        const double width = (double)dq_plan_pass_width(m, (dq_plan_product)i);
        n += wanted[i] ? dq_calibrate_work_hessian(ids, width) : 0;
    }
    return n;
}

static double head_hessian_flop(const dq_model *m, double ids)
{
    return dq_calibrate_work_hessian(ids, (double)m->dim);
}

static double head_factor_flop(const dq_model *m)
{
    return DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor((double)m->dim);
}

static double factors_flop(const dq_model *m, const bool *wanted)
{
    double n = 0;
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        const double width = (double)dq_plan_pass_width(m, (dq_plan_product)i);
        n += wanted[i] ? DQ_CALIBRATE_F64_FLOP * dq_calibrate_work_factor(width) : 0;
    }
    return n;
}

/* Products of a layer with tensors whose numbers lack. */
static void find_wanted(bool wanted[DQ_PLAN_PRODUCTS], const dq_plan_probe *p, int layer)
{
    memset(wanted, 0, DQ_PLAN_PRODUCTS * sizeof *wanted);
    for (int64_t i = 0; i < p->n; i++) {
        const dq_plan_tensor *t = &p->tensor[i];
        if (!is_end(t) && !t->known && t->layer == layer) wanted[product_of(t->slot)] = true;
    }
}

double dq_plan_probe_flop(const dq_plan_probe *p, int64_t calib_ids, int64_t search_ids)
{
    double n = 0;
    for (int64_t i = 0; i < p->n; i++)
        n += p->tensor[i].known ? 0 : tensor_flop(p, &p->tensor[i], (double)search_ids);
    for (int l = 0; l < p->m->n_layers; l++) {
        bool wanted[DQ_PLAN_PRODUCTS];
        find_wanted(wanted, p, l);
        n += (double)(calib_ids + search_ids) * dq_calibrate_work_layer(&p->m->layer[l]) +
             hessians_flop(p->m, wanted, (double)calib_ids) + factors_flop(p->m, wanted);
    }
    if (wants_head(p)) n += head_hessian_flop(p->m, (double)calib_ids) + head_factor_flop(p->m);
    return n;
}

/* ---- Rounding one tensor ---- */

/* What rounds rows of a tensor by the method. */
typedef struct by_method {
    job *j;
    const float *w;
    const dq_plan_tensor *t;
    const dq_quant_spec *spec;
} by_method;

static dq_status round_rows(void *arg, dq_codes **out, dq_gptq_loss *loss, int64_t first,
                            int64_t rows, dq_err *err)
{
    const by_method *m = arg;
    const dq_plan_tensor *t = m->t;
    return dq_gptq(out, m->w + first * t->cols, rows, t->cols, m->j->h[product_of(t->slot)], NULL,
                   m->spec, m->j->p->rule->refits, loss, err);
}

/* In bands, which do not see each other, so that beside a head's values memory is that of a band. */
static dq_status round_by_method(dq_coded *out, dq_gptq_loss *loss, by_method *m, dq_err *err)
{
    enum { BAND = 4096 };
    const dq_plan_tensor *t = m->t;
    const bool whole = m->spec->group == DQ_GROUP_TENSOR;
    const int64_t band = whole || t->rows < BAND ? t->rows : BAND;
    const dq_gptq_stripes stripes = {m->spec, t->cols, whole, round_rows, m};
    DQ_TRY(dq_coded_new(out, t->rows, t->cols, m->spec, err));
    dq_gptq_loss *each = dq_block_new((size_t)band, sizeof *each, err);
    for (int64_t first = 0; err->code == DQ_OK && first < t->rows; first += band) {
        const int64_t left = t->rows - first, n = left < band ? left : band;
        if (dq_gptq_stripes_round(&stripes, out, each, first, n, err) == DQ_OK)
            dq_gptq_loss_add(loss, each, n);
    }
    dq_block_free(each);
    return err->code;
}

static dq_status round_option(dq_coded *out, job *j, dq_plan_tensor *t, int option,
                              const dq_weight *w, dq_err *err)
{
    const bool fed = !is_nearest(j->p->m, t);
    dq_gptq_loss loss = {0};
    dq_quant_spec spec = t->spec;
    int8_t *column = NULL;
    float *f32;
    spec.bits = t->bits[option];
    spec.mode = dq_quantize_mode(spec.mode, spec.bits, fed);
    if (dq_plan_round_values(&f32, w, err) == DQ_OK && spec.mode == DQ_TRELLIS) {
        spec.column = column = dq_block_new((size_t)t->cols, 1, err);
        if (column) dq_codes_columns_of(column, f32, t->rows, t->cols, err);
    }
    if (err->code == DQ_OK) {
        spec.scale_dtype = dq_plan_round_scale(f32, t->rows, t->cols, &spec);
        if (!fed)
            dq_plan_round_nearest(out, &loss, f32, t->rows, t->cols, &spec, err);
        else
            round_by_method(out, &loss, &(by_method){j, f32, t, &spec}, err);
    }
    t->loss[option] = loss.signal > 0 ? loss.error / loss.signal : 0;
    dq_block_free(f32);
    dq_block_free(column);
    out->weight.name = t->name;
    return err->code;
}

/* ---- Measuring ---- */

static dq_status measure(job *j, const dq_plan_tensor *t, const dq_weight *w, dq_err *err)
{
    const dq_model *m = j->p->m;
    dq_layer layer = m->layer[t->layer];
    const dq_plan_change change = {.layer = &layer};
    dq_plan_other other = {.m = m, .from = first_layer(m, t), .head = &m->head, .what = t->name};
    if (t->slot == DQ_PLAN_EMBED) other.embed = w;
    if (t->slot == DQ_PLAN_HEAD || (t->slot == DQ_PLAN_EMBED && m->tied)) other.head = w;
    if (!is_end(t)) {
        *dq_plan_probe_weight(&layer, t->slot) = *w;
        other.change = &change;
    }
    return dq_plan_part_measure(&j->sums, j->p->search, &other, err);
}

static dq_status probe_option(job *j, dq_plan_tensor *t, int option, const dq_weight *w,
                              dq_err *err)
{
    dq_plan_probe *p = j->p;
    dq_coded coded = {.bytes = NULL};
    DQ_TRY(dq_os_check_stop(err));
    if (round_option(&coded, j, t, option, w, err) == DQ_OK) {
        dq_plan_work_add(p->work, rounding_flop(p, t), t->name);
        if (option == t->measured) measure(j, t, &coded.weight, err);
    }
    dq_coded_free(&coded);
    return err->code;
}

static double damping_of(const job *j, const dq_plan_tensor *t)
{
    const double usual = dq_calibrate_damping(t->cols, j->p->calib->n_ids);
    return t->slot == DQ_PLAN_EMBED ? fmax(usual, DQ_CALIBRATE_EMBED_DAMPING) : usual;
}

static dq_status probe_tensor(job *j, int64_t i, dq_err *err)
{
    dq_plan_tensor *t = &j->p->tensor[i];
    const dq_model *m = j->p->m;
    dq_layer layer = m->layer[t->layer];
    const dq_weight *w = t->slot == DQ_PLAN_EMBED  ? &m->embed
                         : t->slot == DQ_PLAN_HEAD ? &m->head
                                                   : dq_plan_probe_weight(&layer, t->slot);
    if (!is_nearest(m, t)) {
        const dq_plan_product product = product_of(t->slot);
        if (!j->factored[product]) {
            DQ_TRY(dq_hessian_share(j->h[product], err));
            DQ_TRY(dq_hessian_factor(j->h[product], damping_of(j, t), t->name, err));
        }
        j->factored[product] = true;
    }
    t->measured = dq_plan_probe_measured(t);
    for (int o = 0; o < t->n; o++) DQ_TRY(probe_option(j, t, o, w, err));
    DQ_TRY(dq_plan_decide_mean(&t->kld, j->sums.kld, j->sums.ids, j->sums.n, err));
    t->known = true;
    return j->p->found(j->p->arg, i, err);
}

/* ---- Layers ---- */

static dq_status add_inputs(job *j, dq_plan_product product, dq_mat x, dq_err *err)
{
    const int64_t piece = product == DQ_PLAN_DOWN ? DQ_FFN_ROWS : DQ_TILE_SUMS_NO_PIECES;
    return dq_hessian_add(j->h[product], j->pass.b, x, (dq_tile_sums_rows){DQ_ROWS_ALL, piece},
                          err);
}

static void see(void *arg, dq_plan_product product, dq_mat x)
{
    job *j = arg;
    if (j->wanted[product]) add_inputs(j, product, x, j->err);
}

/* The sums of a round in which this rank has no chunk. */
static dq_status see_none(job *j, dq_err *err)
{
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        if (j->wanted[i])
            DQ_TRY(add_inputs(j, (dq_plan_product)i, (dq_mat){NULL, 0, j->h[i]->n}, err));
    }
    return DQ_OK;
}

/* Told of a chunk of a round, in which other ranks do the same of theirs. */
static void advance(const job *j, int64_t round, double flop)
{
    dq_plan_work_add(j->p->work, flop * dq_calib_pass_at_once(&j->pass, round), "hessians");
}

/* A chunk of the calibration text through a layer. */
static dq_status see_chunk(job *j, int number, const dq_calib_chunk *k, dq_err *err)
{
    const dq_model *m = j->p->m;
    const dq_plan_inputs inputs = {.see = see, .arg = j};
    const dq_mat x = dq_plan_pass_stream(&j->pass, k);
    j->err = err;
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    DQ_TRY(dq_plan_pass_layer(&j->pass, m, number, NULL, k, &inputs, err));
    return dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err);
}

/* All of it. */
static dq_status see_layer(job *j, int number, dq_err *err)
{
    const dq_model *m = j->p->m;
    const double layer = dq_calibrate_work_layer(&m->layer[number]);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) {
        j->factored[i] = false;
        if (j->wanted[i]) dq_hessian_begin(j->h[i], dq_plan_pass_width(m, (dq_plan_product)i));
    }
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calib_pass_chunk(&j->pass, i);
        DQ_TRY(k ? see_chunk(j, number, k, err) : see_none(j, err));
        const double rows = k ? (double)k->batch.n_rows : 0;
        advance(j, i, rows * layer + hessians_flop(m, j->wanted, rows));
    }
    dq_plan_work_add(j->p->work, factors_flop(m, j->wanted), "hessians");
    return DQ_OK;
}

/* Tensors of a layer whose numbers lack; *later: some of a layer after it do. */
static bool wants_layer(job *j, int number, bool *later)
{
    bool any = false;
    *later = false;
    find_wanted(j->wanted, j->p, number);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) any = any || j->wanted[i];
    for (int64_t i = 0; i < j->p->n; i++) {
        const dq_plan_tensor *t = &j->p->tensor[i];
        *later = *later || (!is_end(t) && !t->known && t->layer > number);
    }
    return any;
}

static dq_status run_layers(job *j, bool head, dq_err *err)
{
    dq_plan_probe *p = j->p;
    bool any = true, later = true;
    for (int l = 0; l < p->m->n_layers && (later || head); l++) {
        any = wants_layer(j, l, &later);
        if (any || later || head) DQ_TRY(see_layer(j, l, err));
        for (int64_t i = 0; any && i < p->n; i++) {
            const dq_plan_tensor *t = &p->tensor[i];
            if (is_end(t) || t->layer != l || t->known) continue;
            if (probe_tensor(j, i, err) != DQ_OK)
                return err->code == DQ_STOPPED ? err->code : dq_in(err, "layer %d: ", l);
        }
        if (later) DQ_TRY(dq_plan_part_advance(p->search, l, err));
    }
    return DQ_OK;
}

/* The final norm of a chunk, into the sums; NULL: none. */
static dq_status see_final(job *j, const dq_calib_chunk *k, dq_err *err)
{
    if (!k) return add_inputs(j, DQ_PLAN_QKV, (dq_mat){NULL, 0, j->p->m->dim}, err);
    const dq_mat x = dq_plan_pass_stream(&j->pass, k);
    DQ_TRY(dq_os_check_stop(err));
    DQ_TRY(dq_activations_get(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    DQ_TRY(add_inputs(j, DQ_PLAN_QKV, dq_plan_pass_final(&j->pass, j->p->m, k), err));
    return dq_backend_sync(j->pass.b, err);
}

/* The head, tied to the embedding or not, by the outputs of the final norm after the last layer. */
static dq_status run_head(job *j, dq_err *err)
{
    const dq_model *m = j->p->m;
    j->factored[DQ_PLAN_QKV] = false;
    dq_hessian_begin(j->h[DQ_PLAN_QKV], m->dim);
    for (int64_t i = 0; i < j->pass.n_rounds; i++) {
        const dq_calib_chunk *k = dq_calib_pass_chunk(&j->pass, i);
        DQ_TRY(see_final(j, k, err));
        advance(j, i, head_hessian_flop(m, k ? (double)k->batch.n_rows : 0));
    }
    dq_plan_work_add(j->p->work, head_factor_flop(m), "hessians");
    for (int64_t i = 0; i < j->p->n; i++) {
        const dq_plan_tensor *t = &j->p->tensor[i];
        if (is_end(t) && !is_nearest(m, t) && !t->known) DQ_TRY(probe_tensor(j, i, err));
    }
    return DQ_OK;
}

static dq_status embed(job *j, dq_err *err)
{
    for (int64_t i = 0; i < j->pass.n_chunks; i++) {
        const dq_calib_chunk *k = &j->pass.chunk[i];
        const dq_mat x = dq_plan_pass_stream(&j->pass, k);
        j->pass.b->ops->embed(j->pass.b, x, &j->p->m->embed, k->batch.ids);
        DQ_TRY(dq_activations_put(&j->act, DQ_ACTIVATIONS_STREAM, k->first, x, err));
    }
    return DQ_OK;
}

static dq_status run_job(job *j, dq_err *err)
{
    dq_plan_probe *p = j->p;
    const dq_model *m = p->m;
    j->sums.kld = dq_block_new((size_t)p->search->text->n_clusters, sizeof(double), err);
    j->sums.loss = dq_block_new((size_t)p->search->text->n_clusters, sizeof(double), err);
    DQ_TRY(err->code);
    for (int64_t i = 0; i < p->n; i++) { /* while the stream is that of layer 0 */
        if (is_nearest(m, &p->tensor[i]) && !p->tensor[i].known) DQ_TRY(probe_tensor(j, i, err));
    }
    DQ_TRY(dq_calib_pass_new(&j->pass, m, p->b, p->calib, err));
    DQ_TRY(dq_activations_open(&j->act, p->b, p->beside, j->pass.n_rows, m->dim, 1, 0, err));
    DQ_TRY(embed(j, err));
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++)
        DQ_TRY(dq_hessian_new(&j->h[i], dq_plan_pass_width(m, (dq_plan_product)i), j->pass.max_rows,
                              err));
    const bool head = wants_head(p);
    DQ_TRY(run_layers(j, head, err));
    return head ? run_head(j, err) : DQ_OK;
}

dq_status dq_plan_probe_run(dq_plan_probe *p, dq_err *err)
{
    job j = {.p = p, .act.file.fd = -1};
    int64_t missing = 0;
    for (int64_t i = 0; i < p->n; i++) missing += !p->tensor[i].known;
    if (missing == 0) return DQ_OK;
    run_job(&j, err);
    for (int i = 0; i < DQ_PLAN_PRODUCTS; i++) dq_hessian_free(j.h[i]);
    dq_activations_close(&j.act);
    dq_calib_pass_end(&j.pass);
    dq_block_free(j.sums.kld);
    dq_block_free(j.sums.loss);
    return err->code;
}
