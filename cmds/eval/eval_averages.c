/* eval_averages: see eval_averages.h. A line stands at the first of its rows; the others are found from it. Each row gives
 * the metric that is quoted of its task.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_averages.h"

#include "cmds/cli/kv_report.h"
#include "cmds/eval/eval_cells.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_kv.h"
#include "cmds/eval/eval_options.h"
#include "eval/eval.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The rows of a model and setting, and what they make together. */
typedef struct line {
    int row[DQ_EVAL_SOURCES], n; /* n 0: there is no such line */
    dq_mean score[DQ_EVAL_SOURCES];
    dq_eval_average mean;
    bool compared, crossed; /* the two below are there */
    dq_eval_average delta, cross;
    int cross_model; /* the first model */
} line;

static const dq_eval_kind *kind_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->kind;
}

static int quoted(const dq_eval *e, int row)
{
    return dq_eval_quoted(dq_eval_source_of(e, &e->row[row]));
}

static bool has_cross(const dq_eval *e, const int *row, int n)
{
    for (int i = 0; i < n; i++) {
        if (cmd_eval_cross_row(e, row[i]) < 0) return false;
    }
    return true;
}

static dq_mean mean_of_flips(const dq_stat_flips *f)
{
    return (dq_mean){f->delta, f->std_err, f->clusters};
}

static dq_status find_cross(line *l, const cmd_eval_view *v, dq_err *err)
{
    const dq_eval *e = v->e;
    dq_mean mean[DQ_EVAL_SOURCES];
    dq_interval interval[DQ_EVAL_SOURCES];
    l->crossed = has_cross(e, l->row, l->n);
    for (int i = 0; l->crossed && i < l->n; i++) {
        dq_stat_flips f;
        const int other = cmd_eval_cross_row(e, l->row[i]);
        DQ_TRY(dq_eval_compare(e, other, l->row[i], quoted(e, l->row[i]), &f, err));
        mean[i] = mean_of_flips(&f);
        interval[i] = f.interval;
        l->cross_model = e->row[other].model;
    }
    if (l->crossed) l->cross = dq_eval_average_of(mean, interval, l->n);
    return DQ_OK;
}

/* l->n is 0 where no line begins at that row. */
static dq_status line_of(line *l, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    dq_mean delta[DQ_EVAL_SOURCES];
    dq_interval score_interval[DQ_EVAL_SOURCES], delta_interval[DQ_EVAL_SOURCES];
    *l = (line){.compared = true};
    l->n = dq_eval_average_rows(l->row, e, row);
    if (l->n == 0) return DQ_OK;
    for (int i = 0; i < l->n; i++) {
        dq_eval_numbers x;
        const int m = quoted(e, l->row[i]);
        DQ_TRY(dq_eval_numbers_of(e, l->row[i], &x, err));
        l->score[i] = x.score[m];
        score_interval[i] = x.score_interval[m];
        delta[i] = mean_of_flips(&x.flips[m]);
        delta_interval[i] = x.flips[m].interval;
        l->compared = l->compared && !x.is_ref;
    }
    l->mean = dq_eval_average_of(l->score, score_interval, l->n);
    if (l->compared) l->delta = dq_eval_average_of(delta, delta_interval, l->n);
    return find_cross(l, v, err);
}

static dq_interval loss_interval(const line *l)
{
    return (dq_interval){-l->delta.interval.high, -l->delta.interval.low};
}

int cmd_eval_averages_compared(const dq_eval *e)
{
    int n = 0;
    for (int i = 0; i < e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES];
        const int k = dq_eval_average_rows(row, e, i);
        if (k == 0 || e->row[i].same != i) continue;
        n += e->row[i].ref != i;
        n += has_cross(e, row, k);
    }
    return n;
}

/* ---- The table ---- */

/* Columns that not every table has. */
typedef struct columns {
    bool math, kv, difference, cross;
} columns;

static dq_status columns_of(columns *c, const cmd_eval_view *v, const dq_eval_kind *kind,
                            dq_err *err)
{
    *c = (columns){.math = cmd_eval_math_swept(v->e), .kv = cmd_eval_kv_swept(v->e)};
    for (int i = 0; i < v->e->n_rows; i++) {
        line l;
        if (kind_of(v->e, i) != kind) continue;
        DQ_TRY(line_of(&l, v, i, err));
        c->difference = c->difference || (l.n && l.compared);
        c->cross = c->cross || (l.n && l.crossed);
    }
    return DQ_OK;
}

static void difference_cell(dq_table *t, bool there, const dq_eval_average *x)
{
    if (there)
        cmd_eval_score_cell(t, x->mean, x->interval, "+");
    else
        dq_table_cell(t, "-");
}

static void table_line(dq_table *t, const cmd_eval_view *v, const line *l, const columns *c)
{
    const dq_eval_row *r = &v->e->row[l->row[0]];
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", v->names[r->model]);
    cmd_eval_weights_cell(t, cmd_eval_model_of(v->e, l->row[0]));
    if (r->logit.bits == 16)
        dq_table_cell(t, "16");
    else
        dq_table_cell(t, "%d %s", r->logit.bits, dq_granularity_name[r->logit.granularity]);
    if (c->kv) dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
    if (c->math) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    for (int i = 0; i < l->n; i++) dq_table_cell(t, "%.4f", l->score[i].value);
    cmd_eval_score_cell(t, l->mean.mean, l->mean.interval, "");
    if (c->difference) {
        difference_cell(t, l->compared, &l->delta);
        dq_table_cell(
            t, "%s",
            l->compared ? dq_interval_decision_name[dq_interval_decide(loss_interval(l), v->margin)]
                        : "-");
    }
    if (c->cross) difference_cell(t, l->crossed, &l->cross);
}

/* "acc", or "acc_norm of hellaswag, acc of the others". */
static void print_metrics(const dq_eval *e, const dq_eval_kind *kind, const line *l)
{
    int second = 0;
    for (int i = 0; i < l->n; i++) {
        if (quoted(e, l->row[i]) == 0) continue;
        if (second == 0) printf("%s of ", kind->metric[1]);
        printf("%s%s", second++ ? ", " : "", cmd_eval_title(e, l->row[i]));
    }
    if (second < l->n)
        printf("%s%s%s", second ? ", " : "", kind->metric[0], second ? " of the others" : "");
}

static dq_status print_kind(const cmd_eval_view *v, const dq_eval_kind *kind, const line *first,
                            dq_err *err)
{
    const char *titles[8 + DQ_EVAL_SOURCES + 4] = {"model", "weights", "logit bits"};
    char within[48];
    int n = 3;
    columns c;
    dq_table *t = NULL;
    DQ_TRY(columns_of(&c, v, kind, err));
    if (c.kv) titles[n++] = "KV";
    if (c.math) titles[n++] = "math";
    const int keys = n;
    for (int i = 0; i < first->n; i++) titles[n++] = cmd_eval_title(v->e, first->row[i]);
    titles[n++] = "mean";
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    if (c.difference) titles[n++] = "against reference";
    if (c.difference) titles[n++] = within;
    if (c.cross) titles[n++] = "against first model";
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, keys);
    for (int i = 0; err->code == DQ_OK && i < v->e->n_rows; i++) {
        line l;
        if (kind_of(v->e, i) == kind && line_of(&l, v, i, err) == DQ_OK && l.n)
            table_line(t, v, &l, &c);
    }
    if (err->code == DQ_OK) {
        printf("\nMean over %d tasks, each counting as much (", first->n);
        print_metrics(v->e, kind, first);
        printf("):\n");
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_kind *kind = kind_of(v->e, i);
        line l;
        bool seen = false;
        DQ_TRY(line_of(&l, v, i, err));
        for (int k = 0; k < i && l.n; k++) {
            int row[DQ_EVAL_SOURCES];
            seen = seen || (kind_of(v->e, k) == kind && dq_eval_average_rows(row, v->e, k) > 0);
        }
        if (l.n && !seen) DQ_TRY(print_kind(v, kind, &l, err));
    }
    return DQ_OK;
}

/* ---- JSON ---- */

static json_t *difference_json(const dq_eval_average *x)
{
    json_t *o = json_object();
    json_object_set_new(o, "delta", dq_document_real(x->mean.value));
    json_object_set_new(o, "stderr", dq_document_real(x->mean.std_err));
    json_object_set_new(o, "interval", cmd_eval_interval_json(x->interval));
    return o;
}

static json_t *verdict_json(const line *l, double margin)
{
    const dq_interval loss = loss_interval(l);
    json_t *o = json_object();
    json_object_set_new(o, "loss", dq_document_real(-l->delta.mean.value));
    json_object_set_new(o, "interval", cmd_eval_interval_json(loss));
    json_object_set_new(o, "margin", dq_document_real(margin));
    json_object_set_new(o, "is",
                        json_string(dq_interval_decision_name[dq_interval_decide(loss, margin)]));
    return o;
}

static json_t *line_json(const cmd_eval_view *v, const line *l)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[l->row[0]];
    json_t *o = json_object(), *tasks = json_array(), *metrics = json_array(), *mean, *cross;
    for (int i = 0; i < l->n; i++) {
        json_array_append_new(tasks, json_string(cmd_eval_title(e, l->row[i])));
        json_array_append_new(metrics,
                              json_string(kind_of(e, l->row[i])->metric[quoted(e, l->row[i])]));
    }
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "reference", json_string(v->names[e->row[r->ref].model]));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
    json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "tasks", tasks);
    json_object_set_new(o, "metrics", metrics);
    mean = dq_document_metric(l->mean.mean.value, l->mean.mean.std_err);
    json_object_set_new(mean, "interval", cmd_eval_interval_json(l->mean.interval));
    json_object_set_new(o, "mean", mean);
    json_object_set_new(o, "paired", l->compared ? difference_json(&l->delta) : json_null());
    json_object_set_new(o, "verdict", l->compared ? verdict_json(l, v->margin) : json_null());
    if (!l->crossed) return o;
    cross = difference_json(&l->cross);
    json_object_set_new(cross, "model", json_string(v->names[l->cross_model]));
    json_object_set_new(o, "cross_paired", cross);
    return o;
}

dq_status cmd_eval_averages_json(json_t *document, const cmd_eval_view *v, dq_err *err)
{
    json_t *all = json_array();
    json_object_set_new(document, "averages", all);
    for (int i = 0; i < v->e->n_rows; i++) {
        line l;
        DQ_TRY(line_of(&l, v, i, err));
        if (l.n) json_array_append_new(all, line_json(v, &l));
    }
    return DQ_OK;
}
