/* cmd_text_table: what a window or --slices adds to running text: small tables after the large one, and columns of the
 * CSV.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/cmd_text_table.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_cells.h"
#include "cmds/eval/eval_kv.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

static const dq_text_settings *settings_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->settings;
}

static bool shows(const dq_eval *e, int row)
{
    return cmd_eval_kind_shows(&cmd_eval_text, e, row);
}

static bool is_reference(const dq_eval *e, int row)
{
    return e->row[row].ref == row;
}

/* The first shown row of a text, or -1. */
static int first_text(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (shows(e, i)) return i;
    }
    return -1;
}

/* ---- Tables ---- */

/* What tells rows apart. */
enum { ROW_TITLES = 4 };
static const char *const row_title[ROW_TITLES + 1] = {"model", "weights", "logit bits", "KV",
                                                      "math"};
static void row_cells(dq_table *t, const cmd_eval_view *v, int row)
{
    const dq_eval_row *r = &v->e->row[row];
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", v->names[r->model]);
    cmd_eval_weights_cell(t, v->e->model[r->model].m);
    if (r->logit.bits == 16)
        dq_table_cell(t, "16");
    else
        dq_table_cell(t, "%d %s", r->logit.bits, dq_granularity_name[r->logit.granularity]);
    dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
    if (cmd_eval_math_swept(v->e)) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
}

/* Cells of a row after those that tell it apart. */
typedef void fill_row(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x, bool is_ref);

/* A table of all shown rows of texts. */
static dq_status print(const cmd_eval_view *v, const char *head, const char *const *titles,
                       int n_titles, fill_row *fill, dq_err *err)
{
    const int keys = ROW_TITLES + cmd_eval_math_swept(v->e);
    const char *all[ROW_TITLES + 1 + 2 * DQ_POSITIONS_MAX];
    dq_table *t = NULL;
    for (int i = 0; i < keys; i++) all[i] = row_title[i];
    for (int i = 0; i < n_titles; i++) all[keys + i] = titles[i];
    DQ_TRY(dq_table_new(&t, all, keys + n_titles, err));
    dq_table_keys(t, keys);
    for (int i = 0; err->code == DQ_OK && i < v->e->n_rows; i++) {
        dq_text_details d;
        dq_eval_numbers x;
        if (!shows(v->e, i)) continue;
        if (dq_text_numbers_details(v->e, i, &d, err) != DQ_OK ||
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
    const double ppl[] = {x->word_ppl, x->byte_ppl};
    for (int i = 0; i < 2; i++) dq_table_cell(t, isinf(ppl[i]) ? "beyond f64" : "%.6g", ppl[i]);
    dq_table_cell(t, "%.6g", x->bits_per_byte);
}

static void fill_cumulative(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                            bool is_ref)
{
    (void)x;
    (void)is_ref;
    for (int i = 0; i < d->n_at; i++) cmd_eval_mean_cell(t, d->at[i].cumulative, "");
}

static void fill_difference(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                            bool is_ref)
{
    const dq_mean none = dq_mean_none;
    (void)x;
    for (int i = 0; i < d->n_at; i++)
        cmd_eval_mean_cell(t, is_ref ? none : d->at[i].difference, "+");
}

static void fill_fit(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x, bool is_ref)
{
    (void)x;
    (void)is_ref;
    for (int i = 0; i < DQ_TEXT_FIT_PARAMETERS; i++)
        cmd_eval_mean_cell(t, d->fit.there ? d->fit.parameter[i] : dq_mean_none, "");
    if (d->fit.there)
        dq_table_cell(t, "%.4f", d->fit.residual);
    else
        dq_table_cell(t, "-");
}

static void fill_slices(dq_table *t, const dq_text_details *d, const dq_eval_numbers *x,
                        bool is_ref)
{
    const dq_mean none = dq_mean_none;
    (void)x;
    dq_table_cell(t, "%.4f", d->share_hit);
    cmd_eval_mean_cell(t, d->hit.nll, "");
    cmd_eval_mean_cell(t, d->others.nll, "");
    cmd_eval_mean_cell(t, is_ref ? none : d->hit.delta, "+");
    cmd_eval_mean_cell(t, is_ref ? none : d->others.delta, "+");
}

/* Whether some shown row is compared with another. */
static bool compared(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (shows(e, i) && !is_reference(e, i)) return true;
    }
    return false;
}

static dq_status print_fit(const cmd_eval_view *v, int64_t from, dq_err *err)
{
    static const char *const titles[] = {"alpha", "beta", "gamma", "residual"};
    char head[160];
    snprintf(head, sizeof head,
             "alpha t^beta + gamma through the mean NLL of the first t tokens, t from %lld on "
             "(\u00b1 jackknife over documents):",
             (long long)from);
    return print(v, head, titles, 4, fill_fit, err);
}

static dq_status print_positions(const cmd_eval_view *v, const dq_windows *w, dq_err *err)
{
    const int64_t scored = dq_window_scored(&w->win[0]);
    char head[128];
    char name[DQ_POSITIONS_MAX][24];
    const char *titles[DQ_POSITIONS_MAX];
    int64_t at[DQ_POSITIONS_MAX];
    int n = dq_text_numbers_positions(at, scored);
    for (int i = 0; i < n; i++) {
        snprintf(name[i], sizeof name[i], "%lld", (long long)at[i]);
        titles[i] = name[i];
    }
    snprintf(head, sizeof head,
             "Mean NLL (nats) of the first tokens of each of %lld documents:", (long long)w->n);
    DQ_TRY(print(v, head, titles, n, fill_cumulative, err));
    if (compared(v->e))
        DQ_TRY(print(v, "The same, less that of the reference:", titles, n, fill_difference, err));
    return print_fit(v, at[0], err);
}

dq_status cmd_eval_text_tables(const cmd_eval_view *v, dq_err *err)
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
                     ? "NLL of tokens that end a repeated bigram (frequent ones counted in "
                       "the other documents):"
                     : "NLL of tokens that end a repeated bigram (frequent ones counted in "
                       "--slice-counts):",
                 sliced, 5, fill_slices, err);
}

/* ---- CSV ---- */

static const char *const slice_column[] = {
    "ar_hit_share",           "ar_hit_nll_nats",          "ar_hit_nll_nats_stderr",
    "ar_hit_delta_nats",      "ar_hit_delta_nats_stderr", "others_nll_nats",
    "others_nll_nats_stderr", "others_delta_nats",        "others_delta_nats_stderr"};
enum { SLICE_COLUMNS = 9 };

static dq_status position_titles(const char **titles, int *n, dq_arena *a, int64_t scored,
                                 dq_err *err)
{
    static const char *const base[] = {"cumulative_nll_nats", "cumulative_difference_nats"};
    static const char *const form[] = {"", "_stderr"};
    int64_t at[DQ_POSITIONS_MAX];
    int marks = dq_text_numbers_positions(at, scored);
    for (int i = 0; i < 4 * marks; i++) {
        titles[*n] =
            dq_textf(a, err, "%s_%lld%s", base[i / 2 % 2], (long long)at[i / 4], form[i % 2]);
        if (!titles[(*n)++]) return err->code;
    }
    return DQ_OK;
}

dq_status cmd_eval_text_csv_titles(const char **titles, int *n, const cmd_eval_view *v, dq_err *err)
{
    const int row = first_text(v->e);
    if (row < 0) return DQ_OK;
    const dq_eval_ids *ids = &v->e->ids[v->e->row[row].ids];
    const dq_scheme scheme = settings_of(v->e, row)->scheme;
    for (int i = 0; ids->slices && i < SLICE_COLUMNS; i++) titles[(*n)++] = slice_column[i];
    if (scheme != DQ_WINDOW_POSITIONS) return DQ_OK;
    return position_titles(titles, n, v->e->a, dq_window_scored(&ids->win.win[0]), err);
}

dq_status cmd_eval_text_csv_cells(dq_table *t, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_mean none = dq_mean_none;
    const bool is_ref = is_reference(v->e, row);
    dq_text_details d;
    DQ_TRY(dq_text_numbers_details(v->e, row, &d, err));
    if (d.sliced) {
        dq_table_real(t, d.share_hit);
        cmd_eval_mean_columns(t, d.hit.nll);
        cmd_eval_mean_columns(t, is_ref ? none : d.hit.delta);
        cmd_eval_mean_columns(t, d.others.nll);
        cmd_eval_mean_columns(t, is_ref ? none : d.others.delta);
    }
    for (int i = 0; i < d.n_at; i++) {
        cmd_eval_mean_columns(t, d.at[i].cumulative);
        cmd_eval_mean_columns(t, is_ref ? none : d.at[i].difference);
    }
    return DQ_OK;
}
