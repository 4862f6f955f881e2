/* eval_text: see eval_text.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_text.h"

#include "cmds/cli/document.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_kv.h"
#include "eval/kind_text.h"

#include <math.h>
#include <stdio.h>

static const dq_text_settings *settings_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->settings;
}

static bool is_text(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->kind == &dq_eval_text;
}

static bool is_reference(const dq_eval *e, int row)
{
    return e->row[row].ref == row;
}

/* The first shown row of a text, or -1. */
static int first_text(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].shown && is_text(e, i)) return i;
    }
    return -1;
}

/* ---- JSON ---- */

static json_t *confidence_json(const dq_text_details *d)
{
    json_t *list = json_array();
    for (int i = 0; i < DQ_CONFIDENCES; i++) {
        const dq_confidence *c = &d->confidence[i];
        json_t *o = json_object();
        json_object_set_new(o, "from", dq_real(c->from));
        json_object_set_new(o, "to", dq_real(c->to));
        json_object_set_new(o, "n", json_integer((json_int_t)c->n));
        json_object_set_new(o, "kld_nats", dq_eval_mean_json(c->kld));
        json_object_set_new(o, "same_top1", dq_eval_mean_json(c->same));
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *difference_json(dq_mean m, bool is_ref)
{
    return is_ref ? json_null() : dq_eval_mean_json(m);
}

static json_t *positions_json(const dq_text_details *d, int64_t documents, bool is_ref)
{
    json_t *o = json_object(), *at = json_array(), *cumulative = json_array();
    json_t *difference = json_array(), *bins = json_array();
    json_object_set_new(o, "documents", json_integer((json_int_t)documents));
    json_object_set_new(o, "at", at);
    json_object_set_new(o, "cumulative_nll_nats", cumulative);
    json_object_set_new(o, "difference_nats", is_ref ? json_null() : json_incref(difference));
    json_object_set_new(o, "bins", bins);
    for (int i = 0; i < d->n_at; i++) {
        json_array_append_new(at, json_integer((json_int_t)d->at[i].at));
        json_array_append_new(cumulative, dq_eval_mean_json(d->at[i].cumulative));
        json_array_append_new(difference, dq_eval_mean_json(d->at[i].difference));
    }
    for (int i = 0; i < d->n_bins; i++) {
        const dq_position_bin *b = &d->bin[i];
        json_t *x = json_object();
        json_object_set_new(x, "from", json_integer((json_int_t)b->from));
        json_object_set_new(x, "to", json_integer((json_int_t)b->to));
        json_object_set_new(x, "n", json_integer((json_int_t)b->n));
        json_object_set_new(x, "nll_nats", dq_eval_mean_json(b->nll));
        json_object_set_new(x, "difference_nats", difference_json(b->difference, is_ref));
        json_array_append_new(bins, x);
    }
    json_decref(difference);
    return o;
}

static json_t *slice_json(const dq_slice *s, bool is_ref)
{
    json_t *o = json_object();
    json_object_set_new(o, "n", json_integer((json_int_t)s->n));
    json_object_set_new(o, "nll_nats", dq_eval_mean_json(s->nll));
    json_object_set_new(o, "delta_nats", difference_json(s->delta, is_ref));
    return o;
}

static json_t *slices_json(const dq_text_details *d, const dq_slices *s,
                           const dq_text_settings *settings, bool is_ref)
{
    json_t *o = json_object();
    json_object_set_new(o, "ar_hit", slice_json(&d->hit, is_ref));
    json_object_set_new(o, "others", slice_json(&d->others, is_ref));
    json_object_set_new(o, "share_ar_hit", dq_real(d->share_hit));
    json_object_set_new(o, "counted_in",
                        dq_name_json(s->own ? "text" : settings->counts.doc[0].path));
    json_object_set_new(o, "counted_ids", json_integer((json_int_t)s->counted));
    json_object_set_new(o, "threshold", dq_real(s->threshold));
    return o;
}

dq_status dq_eval_text_details(json_t *o, const dq_eval_view *v, int row, dq_err *err)
{
    const dq_eval_ids *ids = &v->e->ids[v->e->row[row].ids];
    const dq_text_settings *s = settings_of(v->e, row);
    bool is_ref = is_reference(v->e, row);
    dq_text_details d;
    DQ_TRY(dq_text_details_of(v->e, row, &d, err));
    json_object_set_new(o, "window", json_string(dq_scheme_name[s->scheme]));
    json_object_set_new(o, "windows", json_integer((json_int_t)ids->win.n));
    json_object_set_new(o, "documents", json_integer((json_int_t)ids->win.n_docs));
    json_object_set_new(o, "kld_by_confidence", confidence_json(&d));
    if (d.n_at) json_object_set_new(o, "positions", positions_json(&d, ids->win.n_docs, is_ref));
    if (d.sliced) json_object_set_new(o, "slices", slices_json(&d, ids->slices, s, is_ref));
    return DQ_OK;
}

void dq_eval_text_metrics(json_t *metrics, const dq_eval_numbers *x)
{
    json_t *kld = dq_eval_mean_json(x->kld), *dp = dq_eval_mean_json(x->dp);
    for (int i = 0; i < DQ_KLD_POINTS; i++)
        json_object_set_new(kld, dq_kld_point_name[i], dq_real(x->kld_at[i]));
    json_object_set_new(kld, "noise_floor", dq_real(x->noise_floor));
    json_object_set_new(metrics, "nll_nats", dq_eval_mean_json(x->nll));
    json_object_set_new(metrics, "ppl", dq_eval_mean_json(x->ppl));
    json_object_set_new(metrics, "ln_ppl_ratio", dq_eval_mean_json(x->ln_ratio));
    json_object_set_new(metrics, "kld_nats", kld);
    json_object_set_new(metrics, "same_top1", dq_eval_mean_json(x->same));
    json_object_set_new(dp, "rms", dq_real(x->dp_rms.value));
    json_object_set_new(dp, "rms_stderr", dq_real(x->dp_rms.std_err));
    json_object_set_new(metrics, "delta_p", dp);
    if (isnan(x->word_ppl)) return;
    json_object_set_new(metrics, "word_ppl", dq_metric(x->word_ppl, (double)NAN));
    json_object_set_new(metrics, "byte_ppl", dq_metric(x->byte_ppl, (double)NAN));
    json_object_set_new(metrics, "bits_per_byte", dq_metric(x->bits_per_byte, (double)NAN));
}

/* ---- Tables ---- */

/* What tells rows apart. */
enum { ROW_TITLES = 4 };
static const char *const row_title[ROW_TITLES] = {"model", "weights", "logit bits", "KV"};
static void row_cells(dq_table *t, const dq_eval_view *v, int row)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_model *m = v->e->model[r->model].m;
    char label[96];
    dq_table_cell(t, "%s", v->names[r->model]);
    if (m->weight_bits)
        dq_table_cell(t, m->weight_bits == 16 ? "%d" : "%d/%s", m->weight_bits, m->weight_group);
    else
        dq_table_cell(t, "mixed");
    if (r->logit.bits == 16)
        dq_table_cell(t, "16");
    else
        dq_table_cell(t, "%d %s", r->logit.bits, dq_grain_name[r->logit.grain]);
    dq_table_cell(t, "%s", dq_kv_label(label, sizeof label, &r->kv));
}

/* Cells of a row behind those that tell it apart. */
typedef void fill_row(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x, bool is_ref);

/* A table of all shown rows of texts. */
static dq_status print(const dq_eval_view *v, const char *head, const char *const *titles,
                       int n_titles, fill_row *fill, dq_err *err)
{
    const char *all[ROW_TITLES + 2 * DQ_POSITIONS_MAX];
    dq_table *t = NULL;
    for (int i = 0; i < ROW_TITLES; i++) all[i] = row_title[i];
    for (int i = 0; i < n_titles; i++) all[ROW_TITLES + i] = titles[i];
    DQ_TRY(dq_table_new(&t, all, ROW_TITLES + n_titles, err));
    for (int i = 0; err->code == DQ_OK && i < v->e->n_rows; i++) {
        dq_text_details d;
        dq_eval_numbers x;
        if (!v->e->row[i].shown || !is_text(v->e, i)) continue;
        if (dq_text_details_of(v->e, i, &d, err) != DQ_OK ||
            dq_eval_numbers_of(v->e, i, &x, err) != DQ_OK)
            break;
        row_cells(t, v, i);
        fill(t, &d, &x, is_reference(v->e, i));
    }
    if (err->code == DQ_OK) {
        printf("\n%s\n", head);
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

static void fill_rolling(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                         bool is_ref)
{
    (void)d;
    (void)is_ref;
    dq_table_cell(t, "%.6g", x->word_ppl);
    dq_table_cell(t, "%.6g", x->byte_ppl);
    dq_table_cell(t, "%.6g", x->bits_per_byte);
}

static void fill_cumulative(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                            bool is_ref)
{
    (void)x;
    (void)is_ref;
    for (int i = 0; i < d->n_at; i++) dq_eval_mean_cell(t, d->at[i].cumulative, "");
}

static void fill_difference(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                            bool is_ref)
{
    const dq_mean none = dq_mean_none;
    (void)x;
    for (int i = 0; i < d->n_at; i++)
        dq_eval_mean_cell(t, is_ref ? none : d->at[i].difference, "+");
}

static void fill_slices(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                        bool is_ref)
{
    const dq_mean none = dq_mean_none;
    (void)x;
    dq_table_cell(t, "%.4f", d->share_hit);
    dq_eval_mean_cell(t, d->hit.nll, "");
    dq_eval_mean_cell(t, d->others.nll, "");
    dq_eval_mean_cell(t, is_ref ? none : d->hit.delta, "+");
    dq_eval_mean_cell(t, is_ref ? none : d->others.delta, "+");
}

/* Whether some shown row is compared with another. */
static bool compared(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].shown && is_text(e, i) && !is_reference(e, i)) return true;
    }
    return false;
}

static dq_status print_positions(const dq_eval_view *v, const dq_windows *w, dq_err *err)
{
    const int64_t scored = dq_window_scored(&w->win[0]);
    char head[128];
    char name[DQ_POSITIONS_MAX][24];
    const char *titles[DQ_POSITIONS_MAX];
    int64_t at[DQ_POSITIONS_MAX];
    int n = dq_position_marks(at, scored);
    for (int i = 0; i < n; i++) {
        snprintf(name[i], sizeof name[i], "%lld", (long long)at[i]);
        titles[i] = name[i];
    }
    snprintf(head, sizeof head,
             "Mean NLL (nats) of the first ids of each of %lld documents:", (long long)w->n);
    DQ_TRY(print(v, head, titles, n, fill_cumulative, err));
    if (!compared(v->e)) return DQ_OK;
    return print(v, "The same, less that of the reference:", titles, n, fill_difference, err);
}

dq_status dq_eval_text_tables(const dq_eval_view *v, dq_err *err)
{
    static const char *const rolling[] = {"PPL per word", "per byte", "bits per byte"};
    static const char *const sliced[] = {"AR-hit share", "AR-hit NLL", "others NLL",
                                         "AR-hit against reference", "others against reference"};
    const int row = first_text(v->e);
    if (row < 0) return DQ_OK;
    const dq_eval_ids *ids = &v->e->ids[v->e->row[row].ids];
    const dq_text_settings *s = settings_of(v->e, row);
    if (s->scheme == DQ_WINDOW_ROLLING && !ids->win.cut)
        DQ_TRY(print(v, "Perplexity by the words and bytes of the text:", rolling, 3, fill_rolling,
                     err));
    if (s->scheme == DQ_WINDOW_POSITIONS) DQ_TRY(print_positions(v, &ids->win, err));
    if (!ids->slices) return DQ_OK;
    return print(v,
                 ids->slices->own
                     ? "NLL of ids that end a repeated bigram (frequent ones counted in "
                       "the other documents):"
                     : "NLL of ids that end a repeated bigram (frequent ones counted in "
                       "--slice-counts):",
                 sliced, 5, fill_slices, err);
}

/* ---- CSV ---- */

static const char *const rolling_column[] = {"word_ppl", "byte_ppl", "bits_per_byte"};
static const char *const slice_column[] = {
    "ar_hit_share",           "ar_hit_nll_nats",          "ar_hit_nll_nats_stderr",
    "ar_hit_delta_nats",      "ar_hit_delta_nats_stderr", "others_nll_nats",
    "others_nll_nats_stderr", "others_delta_nats",        "others_delta_nats_stderr"};
enum { ROLLING_COLUMNS = 3, SLICE_COLUMNS = 9 };

static dq_status position_titles(const char **titles, int *n, dq_arena *a, int64_t scored,
                                 dq_err *err)
{
    static const char *const base[] = {"cumulative_nll_nats", "cumulative_difference_nats"};
    static const char *const form[] = {"", "_stderr"};
    int64_t at[DQ_POSITIONS_MAX];
    int marks = dq_position_marks(at, scored);
    for (int i = 0; i < 4 * marks; i++) {
        titles[*n] =
            dq_textf(a, err, "%s_%lld%s", base[i / 2 % 2], (long long)at[i / 4], form[i % 2]);
        if (!titles[(*n)++]) return err->code;
    }
    return DQ_OK;
}

dq_status dq_eval_text_titles(const char **titles, int *n, const dq_eval_view *v, dq_err *err)
{
    static const char *const always[] = {"kld_noise_floor", "delta_p", "delta_p_stderr",
                                         "delta_p_rms", "delta_p_rms_stderr"};
    const int row = first_text(v->e);
    if (row < 0) return DQ_OK;
    const dq_eval_ids *ids = &v->e->ids[v->e->row[row].ids];
    const dq_scheme scheme = settings_of(v->e, row)->scheme;
    for (int i = 0; i < DQ_KLD_POINTS; i++) {
        titles[*n] = dq_textf(v->e->a, err, "kld_%s", dq_kld_point_name[i]);
        if (!titles[(*n)++]) return err->code;
    }
    for (int i = 0; i < 5; i++) titles[(*n)++] = always[i];
    for (int i = 0; scheme == DQ_WINDOW_ROLLING && i < ROLLING_COLUMNS; i++)
        titles[(*n)++] = rolling_column[i];
    for (int i = 0; ids->slices && i < SLICE_COLUMNS; i++) titles[(*n)++] = slice_column[i];
    if (scheme != DQ_WINDOW_POSITIONS) return DQ_OK;
    return position_titles(titles, n, v->e->a, dq_window_scored(&ids->win.win[0]), err);
}

static void detail_columns(dq_table *t, const dq_text_details *d, bool is_ref)
{
    const dq_mean none = dq_mean_none;
    if (d->sliced) {
        dq_table_real(t, d->share_hit);
        dq_eval_mean_columns(t, d->hit.nll);
        dq_eval_mean_columns(t, is_ref ? none : d->hit.delta);
        dq_eval_mean_columns(t, d->others.nll);
        dq_eval_mean_columns(t, is_ref ? none : d->others.delta);
    }
    for (int i = 0; i < d->n_at; i++) {
        dq_eval_mean_columns(t, d->at[i].cumulative);
        dq_eval_mean_columns(t, is_ref ? none : d->at[i].difference);
    }
}

dq_status dq_eval_text_columns(dq_table *t, const dq_eval_view *v, int row,
                               const dq_eval_numbers *x, dq_err *err)
{
    const char *titles[DQ_TEXT_COLUMNS];
    dq_text_details d;
    int n = 0;
    if (!is_text(v->e, row)) { /* a task beside a text */
        DQ_TRY(dq_eval_text_titles(titles, &n, v, err));
        for (int i = 0; i < n; i++) dq_table_cell(t, "%s", "");
        return DQ_OK;
    }
    DQ_TRY(dq_text_details_of(v->e, row, &d, err));
    for (int i = 0; i < DQ_KLD_POINTS; i++) dq_table_real(t, x->kld_at[i]);
    dq_table_real(t, x->noise_floor);
    dq_eval_mean_columns(t, x->dp);
    dq_eval_mean_columns(t, x->dp_rms);
    if (settings_of(v->e, row)->scheme == DQ_WINDOW_ROLLING) {
        dq_table_real(t, x->word_ppl);
        dq_table_real(t, x->byte_ppl);
        dq_table_real(t, x->bits_per_byte);
    }
    detail_columns(t, &d, is_reference(v->e, row));
    return DQ_OK;
}
