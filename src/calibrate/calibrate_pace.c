/* calibrate_pace: how long a calibrated run takes: what each part of it has to do (calibrate_work.h), at what this machine needs
 * for pieces of it, with the model's own layers and shapes.
 * SPDX-License-Identifier: MIT */
#include "calibrate/calibrate_pace.h"

#include "base/os.h"
#include "base/random.h"
#include "base/ranks.h"
#include "calibrate/calibrate_work.h"
#include "calibrate/f64_tile.h"
#include "calibrate/gptq.h"

#include <math.h>

#define ALL(x)                                                                                     \
    {                                                                                              \
        0, 0, x, x, x, x, x, x, x                                                                  \
    }
const dq_calibrate_rates dq_calibrate_pace_usual = {.flop = {[DQ_CALIBRATE_FORWARD] = 2e-11,
                                                             [DQ_CALIBRATE_MAPS] = 4e-11,
                                                             [DQ_CALIBRATE_HESSIANS] = 2e-11,
                                                             [DQ_CALIBRATE_FACTORS] = 1e-10,
                                                             [DQ_CALIBRATE_ROUNDING] = 6e-11},
                                                    .value = {[DQ_ABSMAX] = ALL(5e-8),
                                                              [DQ_SEARCH] = ALL(4e-7),
                                                              [DQ_ASYM] = ALL(1e-7),
                                                              [DQ_TRELLIS] = ALL(1.5e-5)}};

/* ---- What is expected ---- */

double dq_calibrate_pace_rounding(const dq_calibrate *c, double rows, double cols,
                                  const dq_quant_spec *spec)
{
    return dq_calibrate_work_rounding(rows, cols, spec->mode, c->set.rule) *
               c->rates.flop[DQ_CALIBRATE_ROUNDING] +
           rows * cols * c->rates.value[spec->mode][spec->bits];
}

static void expect(const dq_calibrate_job *j, dq_pace *p, dq_calibrate_part part, double flop)
{
    dq_pace_expect(p, DQ_QUANTIZE_METHOD + (int)part, flop * j->c->rates.flop[part]);
}

static void expect_rounding(const dq_calibrate_job *j, dq_pace *p, const dq_weight *w)
{
    if (!dq_calibrate_job_is_left(j, &w, 1)) return;
    const dq_quant_spec *spec = &dq_quantize_tensor_of(j->q, w->name)->spec;
    dq_pace_expect(p, DQ_QUANTIZE_METHOD + DQ_CALIBRATE_ROUNDING,
                   dq_calibrate_pace_rounding(j->c, (double)w->rows, (double)w->cols, spec));
}

/* Matrices with the same inputs: sums of these, and m outputs of what they lack; the factor; codes. */
static void expect_group(const dq_calibrate_job *j, dq_pace *p, const dq_weight *const *w, int n,
                         double m, bool aligns)
{
    const double tokens = (double)j->c->text.n_ids, cols = (double)w[0]->cols;
    if (!dq_calibrate_job_is_left(j, w, n)) return;
    double sums = dq_calibrate_work_hessian(tokens, cols);
    if (aligns) sums += dq_calibrate_work_cross(tokens, m, cols);
    expect(j, p, DQ_CALIBRATE_HESSIANS, sums);
    expect(j, p, DQ_CALIBRATE_FACTORS,
           aligns ? dq_calibrate_work_correction(m, cols) : dq_calibrate_work_factor(cols));
    for (int i = 0; i < n; i++) expect_rounding(j, p, w[i]);
}

/* Of all sequences of the text. */
static double of_sequences(const dq_calibrate_job *j,
                           double (*flop)(const dq_model *m, int64_t rows))
{
    const dq_calib_text *t = &j->c->text;
    double n = 0;
    for (int64_t s = 0; s < t->n_seq; s++) n += flop(j->m, t->cu[s + 1] - t->cu[s]);
    return n;
}

static double forward_flop(const dq_calibrate_job *j, const dq_layer *l)
{
    return (double)j->c->text.n_ids * dq_calibrate_work_layer(l) +
           of_sequences(j, dq_calibrate_work_attention);
}

static void expect_layer(const dq_calibrate_job *j, dq_pace *p, int number)
{
    const dq_layer *l = &j->m->layer[number];
    const dq_weight *const all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
    const int64_t tokens = j->c->text.n_ids;
    const bool aligns = j->c->set.rule->aligns, last = number == j->n_layers - 1 && !j->head;
    const double dim = (double)j->m->dim;
    double forward = forward_flop(j, l), products = 0;
    expect_group(j, p, all, aligns ? 2 : 3, dim, aligns);
    expect_group(j, p, all + 3, 1, dim, aligns);
    expect_group(j, p, all + 4, 2, dim, aligns);
    expect_group(j, p, all + 6, 1, dim, aligns);
    if (aligns) {
        expect_group(j, p, all + 2, 1, dim, true);
        forward += forward_flop(j, l);
        if (dq_calibrate_job_is_left(j, all + 2, 1)) {
            forward +=
                dq_calibrate_work_rows(&l->q, tokens) + dq_calibrate_work_rows(&l->k, tokens);
            expect(j, p, DQ_CALIBRATE_MAPS, 2 * of_sequences(j, dq_value_maps_flop));
        }
        for (int i = 3; i < 7; i += 3)
            if (dq_calibrate_job_is_left(j, all + i, 1))
                products += dq_calibrate_work_rows(all[i], tokens);
        expect(j, p, DQ_CALIBRATE_HESSIANS, products);
    }
    if (last) forward -= dq_calibrate_work_rows(&l->down, tokens);
    expect(j, p, DQ_CALIBRATE_FORWARD, forward);
}

void dq_calibrate_pace_expect(const dq_calibrate_job *j, dq_pace *p)
{
    const dq_weight *const embed[] = {&j->m->embed}, *const head[] = {&j->m->head};
    for (int i = 0; j->embed && i < j->m->n_layers; i++)
        expect(j, p, DQ_CALIBRATE_FORWARD, forward_flop(j, &j->m->layer[i]));
    if (j->embed) expect_group(j, p, embed, 1, 0, false);
    for (int i = 0; i < j->n_layers; i++) expect_layer(j, p, i);
    if (j->head) expect_group(j, p, head, 1, (double)j->m->dim, j->c->set.rule->aligns);
}

/* ---- Timing ---- */

/* Rows that are enough to time, and operations that are. Of some times the least counts: the first one touches memory and wakes
 * threads, which the work itself does once. */
enum { LEAST_ROWS = 64, ROUND_COLS = 512, VALUE_COLS = 64, TIMES = 5 };
static const double much = 2e9;

/* What is timed. */
typedef struct timing {
    dq_calibrate *c;
    const dq_quantizer *q;
    dq_calib_text text; /* one short sequence */
    int64_t cu[2];
    dq_calib_pass pass;
    dq_hessian *h;
    double begin, least;
} timing;

/* The beginning of the text's longest sequence, as long as a layer over it takes little time. */
static void take_text(timing *t)
{
    const dq_calib_text *all = &t->c->text;
    const double fit = much / dq_calibrate_work_layer(&t->c->m->layer[0]);
    int64_t longest = 0;
    for (int64_t s = 0; s < all->n_seq; s++)
        if (all->cu[s + 1] - all->cu[s] > all->cu[longest + 1] - all->cu[longest]) longest = s;
    int64_t n = all->cu[longest + 1] - all->cu[longest];
    const int64_t most = fit > LEAST_ROWS ? (int64_t)fit : LEAST_ROWS;
    if (n > most) n = most;
    t->text = *all;
    t->text.ids = all->ids + all->cu[longest];
    t->text.n_ids = t->cu[1] = n;
    t->text.cu = t->cu;
    t->text.n_seq = 1;
}

static void begin(timing *t, int number)
{
    if (number == 0) t->least = INFINITY;
    t->begin = dq_os_seconds();
}

static void end(timing *t)
{
    t->least = fmin(t->least, dq_os_seconds() - t->begin);
}

static void keep(const timing *t, dq_calibrate_part part, double flop)
{
    t->c->rates.flop[part] = t->least / flop;
}

/* What maps make of a layer's inputs. */
static dq_status time_maps(timing *t, const dq_layer_steps *s, dq_err *err)
{
    const dq_model *m = t->c->m;
    dq_value_maps *maps = NULL;
    if (dq_value_maps_new(&maps, m, s->x.rows, err) == DQ_OK) {
        for (int i = 0; i < TIMES; i++) {
            begin(t, i);
            dq_value_maps_read(maps, s->x, s, 0);
            end(t);
        }
        keep(t, DQ_CALIBRATE_MAPS, dq_value_maps_flop(m, s->x.rows));
    }
    dq_value_maps_free(maps);
    return dq_backend_sync(t->c->set.backend, err);
}

/* A layer's forward pass, and what maps make of it. */
static dq_status time_forward(timing *t, dq_err *err)
{
    const dq_model *m = t->c->m;
    const dq_layer *l = &m->layer[m->n_layers - 1];
    const dq_attend_args plain = {.logit = dq_logit_plain};
    const dq_calib_chunk *k = dq_calib_pass_chunk(&t->pass, 0);
    dq_backend *b = t->c->set.backend;
    dq_layer_steps s = dq_calib_pass_steps(&t->pass, m, l, k);
    const int64_t n = k->batch.n_rows;
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        b->ops->embed(b, s.x, &m->embed, k->batch.ids);
        DQ_TRY(dq_calib_pass_cache(&t->pass, &s, err));
        dq_layer_steps_norm_attn(&s);
        dq_layer_steps_qkv(&s);
        dq_layer_steps_attend(&s, &plain);
        dq_layer_steps_out(&s);
        dq_reference_feed_forward(&s, t->pass.gate, t->pass.up);
        DQ_TRY(dq_backend_sync(b, err));
        b->ops->kv_free(b, s.kv);
        end(t);
    }
    keep(t, DQ_CALIBRATE_FORWARD,
         (double)n * dq_calibrate_work_layer(l) + dq_calibrate_work_attention(m, n));
    return t->c->set.rule->aligns ? time_maps(t, &s, err) : DQ_OK;
}

/* Numbers of chance in rows of a buffer. */
static void fill(float *x, int64_t n)
{
    dq_random r = dq_random_of(0, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(dq_random_next(&r) >> 40) / (float)(1 << 24) - 0.5f;
}

/* Sums over n inputs. */
static dq_status time_sums(timing *t, dq_mat x, int64_t n, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES};
    x.cols = n;
    dq_hessian_begin(t->h, n);
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        DQ_TRY(dq_hessian_add(t->h, t->c->set.backend, x, all, err));
        DQ_TRY(dq_backend_sync(t->c->set.backend, err));
        end(t);
    }
    keep(t, DQ_CALIBRATE_HESSIANS, dq_calibrate_work_hessian((double)x.rows, (double)n));
    return dq_hessian_share(t->h, err);
}

/* Solving for as many outputs as there are inputs, by the factor. */
static dq_status time_solving(timing *t, dq_err *err)
{
    const int64_t n = t->h->n;
    dq_cross *x = NULL;
    if (dq_cross_new(&x, n, n, 1, err) == DQ_OK) {
        dq_cross_begin(x, n, n);
        for (int i = 0; i < TIMES && err->code == DQ_OK; i++) {
            begin(t, i);
            dq_correction_solve(x, t->h, err);
            end(t);
        }
        keep(t, DQ_CALIBRATE_FACTORS, 2 * (double)n * (double)n * (double)n);
    }
    dq_cross_free(x);
    return err->code;
}

/* The factor; a rule that aligns solves by it, which is most of the work. */
static dq_status time_factor(timing *t, dq_err *err)
{
    for (int i = 0; i < TIMES; i++) {
        begin(t, i);
        DQ_TRY(dq_hessian_refactor(t->h, 1, "timing", err));
        end(t);
    }
    keep(t, DQ_CALIBRATE_FACTORS, dq_calibrate_work_factor((double)t->h->n));
    return t->c->set.rule->aligns ? time_solving(t, err) : DQ_OK;
}

/* Rows [n of t->h] rounded by a spec. */
static dq_status time_rounding(timing *t, int64_t rows, const dq_quant_spec *spec, dq_err *err)
{
    const int64_t n = t->h->n;
    dq_quant_spec own = *spec;
    own.column = NULL;
    dq_gptq_loss *loss = dq_block_new((size_t)rows, sizeof *loss, err);
    float *w = dq_block_new((size_t)rows, (size_t)n * sizeof *w, err);
    for (int i = 0; i < TIMES && err->code == DQ_OK; i++) {
        dq_codes *codes = NULL;
        fill(w, rows * n);
        begin(t, i);
        dq_gptq(&codes, w, rows, n, t->h, NULL, &own, t->c->set.rule->refits, loss, err);
        end(t);
        dq_codes_free(codes);
    }
    dq_block_free(loss);
    dq_block_free(w);
    return err->code;
}

/* What each way to round takes of a value, beside products of f64. */
static dq_status time_values(timing *t, dq_err *err)
{
    const int64_t rows = (int64_t)DQ_STRIP_ROWS * dq_os_threads(),
                  n = dq_quantize_result(t->q)->n_tensors;
    bool known[DQ_QUANT_MODES][9] = {{false}};
    for (int64_t i = 0; i < n; i++) {
        const dq_quantize_row r = dq_quantize_row_at(t->q, i);
        if (!r.fed) continue;
        const dq_quant_spec *spec = &dq_quantize_tensor_of(t->q, r.name)->spec;
        if (known[spec->mode][spec->bits]) continue;
        double *each = &t->c->rates.value[spec->mode][spec->bits];
        known[spec->mode][spec->bits] = true;
        *each = 0;
        DQ_TRY(time_rounding(t, rows, spec, err));
        const double products =
            dq_calibrate_pace_rounding(t->c, (double)rows, (double)t->h->n, spec);
        *each = fmax(0, t->least - products) / (double)(rows * t->h->n);
    }
    return DQ_OK;
}

/* The factor of so few inputs that products hide nothing of what a value takes. */
static dq_status factor_few(timing *t, dq_mat x, dq_err *err)
{
    const dq_tile_sums_rows all = {DQ_ROWS_ALL, DQ_TILE_SUMS_NO_PIECES};
    x.cols = VALUE_COLS;
    dq_hessian_begin(t->h, VALUE_COLS);
    DQ_TRY(dq_hessian_add(t->h, t->c->set.backend, x, all, err));
    DQ_TRY(dq_hessian_share(t->h, err));
    return dq_hessian_factor(t->h, 1, "timing", err);
}

static dq_status time_all(timing *t, dq_err *err)
{
    const dq_model *m = t->c->m;
    const dq_quant_spec plain = {.bits = 4, .group = 128, .mode = DQ_ABSMAX, .scale_dtype = DQ_F32};
    const int64_t cols = m->dim < ROUND_COLS ? m->dim : ROUND_COLS,
                  rows = (int64_t)DQ_F64_TILE * dq_os_threads();
    take_text(t);
    DQ_TRY(dq_calib_pass_new(&t->pass, m, t->c->set.backend, &t->text, err));
    DQ_TRY(dq_hessian_new(&t->h, m->dim, t->pass.max_rows, err));
    DQ_TRY(time_forward(t, err));
    const dq_mat x = t->pass.x;
    fill(x.p, x.rows * x.cols);
    DQ_TRY(time_sums(t, x, cols, err));
    DQ_TRY(dq_hessian_factor(t->h, 1, "timing", err));
    DQ_TRY(time_factor(t, err));
    DQ_TRY(time_rounding(t, rows, &plain, err));
    keep(t, DQ_CALIBRATE_ROUNDING,
         dq_calibrate_work_rounding((double)rows, (double)cols, DQ_ABSMAX, t->c->set.rule));
    if (cols > VALUE_COLS) DQ_TRY(factor_few(t, x, err));
    return time_values(t, err);
}

dq_status dq_calibrate_measure(dq_calibrate *c, const dq_quantizer *q, dq_err *err)
{
    timing t = {.c = c, .q = q};
    if (dq_ranks_count() > 1) return DQ_OK; /* a rank alone has no chunk to time */
    time_all(&t, err);
    dq_hessian_free(t.h);
    dq_calib_pass_end(&t.pass);
    return err->code;
}
