/* eval_table: the table and the CSV of dq eval: columns that all rows fill, then those of the kinds in the run.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_table.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_cells.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_kv.h"
#include "cmds/eval/eval_verdict.h"
#include "settings/inputs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void cmd_eval_table_sizes(const cmd_eval_view *v)
{
    char text[DQ_SIZE_REPORT_TEXT];
    for (int i = 0; i < v->e->n_models; i++)
        printf("%s: %s%s\n", v->names[i], dq_size_report_text(text, v->e->model[i].m),
               v->e->model[i].shown ? "" : " (the reference)");
    putchar('\n');
}

/* Whether the run has items, whose scores have a p. */
static bool has_items(const dq_eval *e)
{
    for (int i = 0; i < e->n_sources; i++) {
        if (!e->source[i].kind->windows) return true;
    }
    return false;
}

static bool in_run(const cmd_eval_kind *kind, const dq_eval *e)
{
    return cmd_eval_kind_source(kind, e->source, e->n_sources) != NULL;
}

/* Name of metric m, where all sources that have one agree. */
static const char *metric_title(const dq_eval *e, int m)
{
    const char *name = NULL;
    for (int i = 0; i < e->n_sources; i++) {
        const char *own = e->source[i].kind->metric[m];
        if (name && own && strcmp(own, name) != 0) return m == 0 ? "score" : "second score";
        if (own) name = own;
    }
    return name;
}

static void difference_cells(dq_table *t, const cmd_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_stat_flips *f = &x->flips[dq_eval_quoted(dq_eval_source_of(v->e, &v->e->row[row]))];
    const cmd_eval_verdict y = cmd_eval_verdict_of(v, row, x);
    if (!y.there)
        dq_table_cell(t, "-");
    else if (x->is_task)
        cmd_eval_score_cell(t, (dq_mean){f->delta, f->std_err, f->clusters}, f->interval, "+");
    else
        cmd_eval_mean_cell(t, x->ln_ratio, "+");
    if (has_items(v->e)) {
        if (x->is_task && y.there)
            dq_table_cell(t, "%.3g", f->p);
        else
            dq_table_cell(t, "-");
    }
    dq_table_cell(t, "%s", y.there ? dq_interval_decision_name[y.is] : "-");
}

/* "4:4", how it evicts and how much it is told to keep; in runs with such a cache only. */
static void kv_cells(dq_table *t, const dq_eval *e, const dq_eval_row *r)
{
    const dq_evict_spec *evict = &r->kv.evict;
    const bool cuts = evict->policy && evict->keep != 1; /* else no policy has anything to choose */
    char widths[DQ_KV_TEXT], keep[DQ_KV_KEEP];
    if (!cmd_eval_kv_swept(e)) return;
    dq_table_cell(t, "%s", dq_kv_codes_text(widths, &r->kv));
    if (cmd_eval_kv_policies(e)) dq_table_cell(t, "%s", cuts ? evict->policy->name : "-");
    if (cmd_eval_kv_budgets(e))
        dq_table_cell(t, "%s", cuts ? dq_kv_budget_name[evict->budget] : "-");
    if (cmd_eval_kv_keeps(e)) dq_table_cell(t, "%s", cmd_eval_kv_keep_text(keep, &r->kv));
}

/* The share kept and the bytes, in the same runs. */
static void kv_shares_cells(dq_table *t, const dq_eval *e, const dq_eval_row *r)
{
    dq_kv_report_shares s = dq_kv_report_shares_of(&r->kv, &r->work.cached);
    if (!cmd_eval_kv_swept(e)) return;
    if (isfinite(s.kept))
        dq_table_cell(t, "%.3f", s.kept);
    else
        dq_table_cell(t, "-");
    if (isfinite(s.share))
        dq_table_cell(t, "%.4f%s", s.share, s.saves_nothing ? ", saves nothing" : "");
    else
        dq_table_cell(t, "-");
}

/* The columns of the fields that kinds of the run have. */
static int field_titles(const char **titles, int n, const dq_eval *e)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_field *f = cmd_eval_kinds[i]->out.fields;
        for (; in_run(cmd_eval_kinds[i], e) && f && f->name; f++) {
            if (f->title) titles[n++] = f->title;
        }
    }
    return n;
}

/* Their cells; "-" in the columns of other kinds. */
static void field_cells(dq_table *t, const dq_eval *e, int row, const dq_eval_numbers *x)
{
    const cmd_eval_kind *own = cmd_eval_kind_of(dq_eval_source_of(e, &e->row[row]));
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_field *f = cmd_eval_kinds[i]->out.fields;
        for (; in_run(cmd_eval_kinds[i], e) && f && f->name; f++) {
            if (f->title && cmd_eval_kinds[i] == own)
                f->cell(t, cmd_eval_field_value(f, x));
            else if (f->title)
                dq_table_cell(t, "-");
        }
    }
}

static void table_row(dq_table *t, const cmd_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    char clusters[48];
    dq_table_cell(t, "%s", v->names[r->model]);
    cmd_eval_weights_cell(t, cmd_eval_model_of(e, row));
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", r->logit.bits == 16 ? "-" : dq_granularity_name[r->logit.granularity]);
    if (cmd_eval_math_swept(e)) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    kv_cells(t, e, r);
    dq_table_cell(t, "%s", cmd_eval_title(e, row));
    dq_table_cell(t, "%lld", (long long)x->n);
    dq_table_cell(
        t, "%s",
        cmd_eval_clusters_text(clusters, sizeof clusters, x->n_clusters, dq_eval_cluster(e, r)));
    for (int m = 0; m < 2 && metric_title(e, m); m++) {
        const bool there = m < x->n_metrics;
        cmd_eval_score_cell(t, there ? x->score[m] : dq_mean_none, x->score_interval[m], "");
    }
    field_cells(t, e, row, x);
    difference_cells(t, v, row, x);
    kv_shares_cells(t, e, r);
    dq_table_cell(t, "%.0f", cmd_eval_rate(&r->work));
}

/* True when some model has several rows: then lines between the models help. */
static bool swept(const dq_eval *e)
{
    int last = -1;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (e->row[i].model == last) return true;
        last = e->row[i].model;
    }
    return false;
}

enum { TITLES = 64 };
dq_status cmd_eval_table(dq_table **out, const cmd_eval_view *v, dq_err *err)
{
    const char *titles[TITLES] = {"model", "weights", "logit bits", "granularity"};
    int n = 4, last = -1;
    char within[48];
    if (cmd_eval_math_swept(v->e)) titles[n++] = "math";
    if (cmd_eval_kv_swept(v->e)) {
        titles[n++] = "KV bits";
        if (cmd_eval_kv_policies(v->e)) titles[n++] = "policy";
        if (cmd_eval_kv_budgets(v->e)) titles[n++] = "budget";
        if (cmd_eval_kv_keeps(v->e)) titles[n++] = "keep";
    }
    titles[n++] = "task";
    const int keys = n;
    titles[n++] = "n";
    titles[n++] = "clusters";
    for (int m = 0; m < 2 && metric_title(v->e, m); m++) titles[n++] = metric_title(v->e, m);
    n = field_titles(titles, n, v->e);
    titles[n++] = "against reference";
    if (has_items(v->e)) titles[n++] = "p";
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    titles[n++] = within;
    if (cmd_eval_kv_swept(v->e)) {
        titles[n++] = "kept";
        titles[n++] = "share of 16 bits";
    }
    titles[n++] = "tokens/s";
    DQ_TRY(dq_table_new(out, titles, n, err));
    dq_table_keys(*out, keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        dq_eval_numbers x;
        if (!v->e->row[i].shown) continue;
        DQ_TRY(dq_eval_numbers_of(v->e, i, &x, err));
        if (last >= 0 && v->e->row[i].model != last && swept(v->e)) dq_table_rule(*out);
        last = v->e->row[i].model;
        table_row(*out, v, i, &x);
    }
    return DQ_OK;
}

/* The field after `last` that the CSV of every run has columns of, all of them means; NULL: none. */
static const cmd_eval_field *next_every(const cmd_eval_field *last)
{
    bool found = !last;
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_field *f = cmd_eval_kinds[i]->out.fields;
        for (; f && f->name; f++) {
            if (found && f->every_csv) return f;
            found = found || f == last;
        }
    }
    return NULL;
}

static void columns_row(dq_table *t, const cmd_eval_view *v, int row, const dq_eval_numbers *x)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_mean none = dq_mean_none;
    const cmd_eval_verdict y = cmd_eval_verdict_of(v, row, x);
    const dq_model_size size = dq_model_size_of(cmd_eval_model_of(e, row));
    dq_table_cell(t, "%s", v->names[r->model]);
    dq_table_real(t, size.bits_per_weight);
    dq_table_cell(t, "%lld", (long long)size.file_bytes);
    dq_table_cell(t, "%s", v->names[e->row[r->ref].model]);
    if (cmd_eval_model_of(e, row)->weight_bits)
        dq_table_cell(t, "%d", cmd_eval_model_of(e, row)->weight_bits);
    else
        dq_table_cell(t, "mixed");
    dq_table_cell(t, "%s", cmd_eval_model_of(e, row)->weight_group);
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", dq_granularity_name[r->logit.granularity]);
    dq_table_cell(t, "%s", cmd_eval_title(e, row));
    dq_table_cell(t, "%lld", (long long)x->n);
    for (int m = 0; m < 2; m++) cmd_eval_mean_columns(t, m < x->n_metrics ? x->score[m] : none);
    for (const cmd_eval_field *f = NULL; (f = next_every(f)) != NULL;)
        cmd_eval_mean_columns(t, x->is_task ? none : cmd_eval_field_value(f, x));
    for (int m = 0; m < 2; m++) {
        bool there = m < x->n_metrics && !x->is_ref;
        dq_table_real(t, there ? x->flips[m].delta : (double)NAN);
        dq_table_real(t, there ? x->flips[m].std_err : (double)NAN);
        dq_table_real(t, there && !x->flips[m].clustered ? x->flips[m].p : (double)NAN);
    }
    dq_table_real(t, cmd_eval_rate(&r->work));
    dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    dq_table_cell(t, "%s", dq_num_name[r->math.qk]);
    dq_table_cell(t, "%s", dq_num_name[r->math.pv]);
    dq_table_cell(t, "%s", dq_num_name[r->math.kv]);
    for (int m = 0; m < 2; m++)
        dq_table_real(t, m < x->n_metrics && !x->is_ref ? x->flips[m].p : (double)NAN);
    dq_table_cell(t, "%lld", (long long)x->n_clusters);
    dq_table_real(t, y.there ? y.loss.value : (double)NAN);
    dq_table_real(t, y.there ? y.loss.interval.low : (double)NAN);
    dq_table_real(t, y.there ? y.loss.interval.high : (double)NAN);
    dq_table_real(t, v->margin);
    dq_table_cell(t, "%s", y.there ? dq_interval_decision_name[y.is] : "");
    if (cmd_eval_kv_swept(e)) dq_kv_report_columns(t, &r->kv, &r->work.cached);
}

/* "acc" -> "exact_match" and so on, where that is what the columns hold. */
enum { SCORE_FORMS = 6, SCORE_NAME = 48 };
static void score_titles(char (*name)[SCORE_NAME], const char **titles, int n, const dq_eval *e)
{
    static const char *const plain[2] = {"acc", "acc_norm"};
    static const char *const form[SCORE_FORMS] = {
        "", "_stderr", "_delta", "_delta_stderr", "_mcnemar_p", "_p"};
    for (int i = 0; i < 2 * SCORE_FORMS; i++) {
        const char *own = metric_title(e, i / SCORE_FORMS);
        char old[SCORE_NAME];
        if (!own) continue;
        snprintf(old, sizeof old, "%s%s", plain[i / SCORE_FORMS], form[i % SCORE_FORMS]);
        snprintf(name[i], SCORE_NAME, "%s%s", own, form[i % SCORE_FORMS]);
        for (int k = 0; k < n; k++) {
            if (strcmp(titles[k], old) == 0) titles[k] = name[i];
        }
    }
}

/* Columns of the kinds of the run after those of all rows; n_own: how many each has. */
static dq_status kind_titles(const char **titles, int *n, int *n_own, const cmd_eval_view *v,
                             dq_err *err)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        const dq_eval_source *source = cmd_eval_kind_source(kind, v->e->source, v->e->n_sources);
        const int first = *n;
        if (source)
            DQ_TRY(cmd_eval_field_csv_titles(titles, n, kind->out.fields, source, v->e->a, err));
        if (source && kind->out.csv_titles) DQ_TRY(kind->out.csv_titles(titles, n, v, err));
        n_own[i] = *n - first;
    }
    return DQ_OK;
}

/* Their cells, empty in the columns of other kinds. */
static dq_status kind_columns(dq_table *t, const int *n_own, const cmd_eval_view *v, int row,
                              const dq_eval_numbers *x, dq_err *err)
{
    const dq_eval_source *source = dq_eval_source_of(v->e, &v->e->row[row]);
    const cmd_eval_kind *own = cmd_eval_kind_of(source);
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i] == own) {
            cmd_eval_field_csv_cells(t, own->out.fields, source, x);
            if (own->out.csv_cells) DQ_TRY(own->out.csv_cells(t, v, row, err));
        }
        for (int c = 0; cmd_eval_kinds[i] != own && c < n_own[i]; c++) dq_table_cell(t, "%s", "");
    }
    return DQ_OK;
}

/* Columns of every CSV; those of the cache follow where some cache is not plain. */
static const char *const common[] = {"model",
                                     "bits_per_weight",
                                     "file_bytes",
                                     "reference",
                                     "weight_bits",
                                     "weight_group",
                                     "logit_bits",
                                     "logit_granularity",
                                     "task",
                                     "n",
                                     "acc",
                                     "acc_stderr",
                                     "acc_norm",
                                     "acc_norm_stderr",
                                     "nll_nats",
                                     "nll_nats_stderr",
                                     "ppl",
                                     "ppl_stderr",
                                     "ln_ppl_ratio",
                                     "ln_ppl_ratio_stderr",
                                     "kld_nats",
                                     "kld_nats_stderr",
                                     "same_top1",
                                     "same_top1_stderr",
                                     "acc_delta",
                                     "acc_delta_stderr",
                                     "acc_mcnemar_p",
                                     "acc_norm_delta",
                                     "acc_norm_delta_stderr",
                                     "acc_norm_mcnemar_p",
                                     "tokens_per_second",
                                     "math_linear",
                                     "math_qk",
                                     "math_pv",
                                     "math_kv",
                                     "acc_p",
                                     "acc_norm_p",
                                     "clusters",
                                     "loss",
                                     "loss_low",
                                     "loss_high",
                                     "margin",
                                     "verdict"};
enum { COLUMNS = sizeof common / sizeof common[0] };

dq_status cmd_eval_columns(dq_table **out, const cmd_eval_view *v, dq_err *err)
{
    const char *titles[COLUMNS + DQ_KV_TITLES + DQ_EVAL_KINDS * DQ_EVAL_KIND_CSV_COLUMNS];
    int n = COLUMNS, n_own[DQ_EVAL_KINDS];
    char name[2 * SCORE_FORMS][SCORE_NAME];
    memcpy(titles, common, sizeof common);
    if (cmd_eval_kv_swept(v->e)) n += dq_kv_report_titles(titles + n);
    score_titles(name, titles, n, v->e);
    DQ_TRY(kind_titles(titles, &n, n_own, v, err));
    DQ_TRY(dq_table_new(out, titles, n, err));
    for (int i = 0; i < v->e->n_rows; i++) {
        dq_eval_numbers x;
        if (!v->e->row[i].shown) continue;
        DQ_TRY(dq_eval_numbers_of(v->e, i, &x, err));
        columns_row(*out, v, i, &x);
        DQ_TRY(kind_columns(*out, n_own, v, i, &x, err));
    }
    return DQ_OK;
}
