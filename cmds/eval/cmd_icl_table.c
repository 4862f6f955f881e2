/* cmd_icl_table: see cmd_icl_table.h. A row stands in the plateau's table with the range of shots that all rows of its task
 * have.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/cmd_icl_table.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_cells.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void cmd_eval_icl_shots_text(char *out, size_t cap, const int *shots, int n)
{
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t used = strlen(out);
        snprintf(out + used, cap - used, "%s%d", i ? ", " : "", shots[i]);
    }
}

dq_icl_score *cmd_eval_icl_scores(const dq_eval *e, const dq_eval_row *r, dq_err *err)
{
    const dq_icl_plan *p = e->ids[r->ids].own;
    dq_icl_score *score = dq_block_new((size_t)p->n_blocks, sizeof *score, err);
    if (score && dq_icl_scores(e, r, score, err) == DQ_OK) return score;
    dq_block_free(score);
    return NULL;
}

/* ---- The plateau ---- */

/* A row over its range of shots, and less its reference and less the first model. */
typedef struct plateau {
    dq_icl_range range; /* n 0: there is none */
    dq_icl_plateau acc, delta, cross;
    int before, cross_row; /* rows; -1: it is the reference, there is none */
} plateau;

static dq_status plateau_of(plateau *x, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_icl_settings *s = dq_eval_source_of(e, &e->row[row])->settings;
    *x = (plateau){.before = e->row[row].ref == row ? -1 : e->row[row].ref};
    x->range = dq_icl_range_of(e, row, s->plateau_from);
    x->cross_row = cmd_eval_cross_row(e, row);
    if (x->range.n == 0) return DQ_OK;
    DQ_TRY(dq_icl_plateau_find(&x->acc, e, -1, row, &x->range, err));
    if (x->before >= 0) DQ_TRY(dq_icl_plateau_find(&x->delta, e, x->before, row, &x->range, err));
    if (x->cross_row >= 0)
        DQ_TRY(dq_icl_plateau_find(&x->cross, e, x->cross_row, row, &x->range, err));
    return DQ_OK;
}

static json_t *plateau_number(const char *name, const dq_icl_plateau *x)
{
    json_t *o = json_object();
    json_object_set_new(o, name, dq_document_real(x->mean.value));
    json_object_set_new(o, "stderr", dq_document_real(x->mean.std_err));
    json_object_set_new(o, "interval", cmd_eval_interval_json(x->interval));
    return o;
}

dq_status cmd_eval_icl_plateau_json(json_t *icl, const cmd_eval_view *v, int row, dq_err *err)
{
    plateau x;
    DQ_TRY(plateau_of(&x, v, row, err));
    json_t *o = json_null(), *shots = json_array();
    for (int i = 0; i < x.range.n; i++)
        json_array_append_new(shots, json_integer(x.range.shots[i]));
    if (x.range.n) {
        o = json_object();
        json_object_set_new(o, "from", json_integer(x.range.from));
        json_object_set(o, "shots", shots);
        json_object_set_new(o, "acc", plateau_number("value", &x.acc));
        json_object_set_new(o, "paired",
                            x.before >= 0 ? plateau_number("delta", &x.delta) : json_null());
    }
    if (x.range.n && x.cross_row >= 0) {
        json_t *cross = plateau_number("delta", &x.cross);
        json_object_set_new(cross, "model", json_string(v->names[v->e->row[x.cross_row].model]));
        json_object_set_new(o, "cross_paired", cross);
    }
    json_decref(shots);
    json_object_set_new(icl, "plateau", o);
    return DQ_OK;
}

/* ---- The table ---- */

/* Numbers of shots that some shown row has, rising. */
static int all_shots(const dq_eval *e, int *shots)
{
    int n = 0;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_icl_plan *p = e->ids[e->row[i].ids].own;
        if (!cmd_eval_kind_shows(&cmd_eval_icl, e, i)) continue;
        for (int k = 0; k < p->n_shots; k++) {
            int at = 0;
            while (at < n && shots[at] < p->shots[k]) at++;
            if (n == DQ_ICL_SHOTS || (at < n && shots[at] == p->shots[k])) continue;
            memmove(&shots[at + 1], &shots[at], (size_t)(n++ - at) * sizeof *shots);
            shots[at] = p->shots[k];
        }
    }
    return n;
}

static bool has_shots(const dq_icl_plan *p, int shots)
{
    for (int i = 0; i < p->n_shots; i++) {
        if (p->shots[i] == shots) return true;
    }
    return false;
}

static void point_cell(dq_table *t, const dq_icl_point *x, bool margin)
{
    if (margin)
        dq_table_cell(t, "%.4f", x->max - x->min);
    else if (isnan(x->std))
        dq_table_cell(t, "%.4f", x->mean);
    else
        dq_table_cell(t, "%.4f \u00b1 %.4f", x->mean, x->std);
}

/* The cells that tell a row apart. */
static void row_cells(dq_table *t, const cmd_eval_view *v, const dq_eval_row *r)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, r);
    const dq_icl_settings *x = s->settings;
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", v->names[r->model]);
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", r->logit.bits == 16 ? "-" : dq_granularity_name[r->logit.granularity]);
    if (cmd_eval_math_swept(v->e)) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    dq_table_cell(t, "%s",
                  dq_kv_spec_is_plain(&r->kv) ? "32:32"
                                              : dq_kv_report_label(label, sizeof label, &r->kv));
    dq_table_cell(t, "%s", s->name);
    dq_table_cell(t, "%s", dq_icl_order_name[x->order]);
}

/* A line of a row: means over runs, or margins over orders. */
static void table_line(dq_table *t, const cmd_eval_view *v, const dq_eval_row *r,
                       const dq_icl_score *score, const int *shots, int n_shots, bool margin)
{
    const dq_icl_plan *p = v->e->ids[r->ids].own;
    const dq_icl_settings *x = dq_eval_source_of(v->e, r)->settings;
    row_cells(t, v, r);
    if (margin)
        dq_table_cell(t, "margin of %lld orders", (long long)x->orders);
    else
        dq_table_cell(t, "mean of %lld run%s", (long long)x->runs, x->runs == 1 ? "" : "s");
    for (int i = 0; i < n_shots; i++) {
        if (!has_shots(p, shots[i])) {
            dq_table_cell(t, "-");
            continue;
        }
        dq_icl_point y = dq_icl_point_of(p, score, shots[i], margin);
        point_cell(t, &y, margin);
    }
}

static dq_status fill(dq_table *t, const cmd_eval_view *v, const int *shots, int n, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        const dq_icl_settings *x = dq_eval_source_of(v->e, r)->settings;
        if (!cmd_eval_kind_shows(&cmd_eval_icl, v->e, i)) continue;
        dq_icl_score *score = cmd_eval_icl_scores(v->e, r, err);
        if (!score) return err->code;
        table_line(t, v, r, score, shots, n, false);
        if (x->orders) table_line(t, v, r, score, shots, n, true);
        dq_block_free(score);
    }
    return DQ_OK;
}

static dq_status print_curve(const cmd_eval_view *v, dq_err *err)
{
    enum { HEAD = 8 };
    static const char *const rest[] = {"KV", "task", "order", "acc"};
    const char *titles[HEAD + DQ_ICL_SHOTS] = {"model", "logit bits", "granularity"};
    char title[DQ_ICL_SHOTS][32];
    int shots[DQ_ICL_SHOTS], n = all_shots(v->e, shots), head = 3;
    dq_table *t = NULL;
    if (n == 0) return DQ_OK;
    if (cmd_eval_math_swept(v->e)) titles[head++] = "math";
    for (int i = 0; i < 4; i++) titles[head++] = rest[i];
    for (int i = 0; i < n; i++) {
        snprintf(title[i], sizeof title[i], "%d shot%s", shots[i], shots[i] == 1 ? "" : "s");
        titles[head + i] = title[i];
    }
    if (dq_table_new(&t, titles, head + n, err) == DQ_OK && fill(t, v, shots, n, err) == DQ_OK) {
        dq_table_keys(t, head - 1);
        printf(
            "\nAccuracy by the number of demonstrations (\u00b1 standard deviation over runs):\n");
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

static void plateau_cell(dq_table *t, bool there, const dq_icl_plateau *x, const char *sign)
{
    if (there)
        cmd_eval_score_cell(t, x->mean, x->interval, sign);
    else
        dq_table_cell(t, "-");
}

static dq_status fill_plateau(dq_table *t, const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        char shots[256];
        plateau x;
        if (!cmd_eval_kind_shows(&cmd_eval_icl, v->e, i)) continue;
        DQ_TRY(plateau_of(&x, v, i, err));
        row_cells(t, v, r);
        cmd_eval_icl_shots_text(shots, sizeof shots, x.range.shots, x.range.n);
        dq_table_cell(t, "%s", x.range.n ? shots : "-");
        plateau_cell(t, x.range.n > 0, &x.acc, "");
        plateau_cell(t, x.range.n && x.before >= 0, &x.delta, "+");
        plateau_cell(t, x.range.n && x.cross_row >= 0, &x.cross, "+");
    }
    return DQ_OK;
}

static dq_status print_plateau(const cmd_eval_view *v, dq_err *err)
{
    static const char *const rest[] = {
        "KV", "task", "order", "shots", "acc", "against reference", "against first model"};
    enum { REST = sizeof rest / sizeof rest[0] };
    const char *titles[4 + REST] = {"model", "logit bits", "granularity"};
    const int head = 3 + cmd_eval_math_swept(v->e);
    dq_table *t = NULL;
    if (head > 3) titles[3] = "math";
    for (int i = 0; i < REST; i++) titles[head + i] = rest[i];
    if (dq_table_new(&t, titles, head + REST, err) == DQ_OK && fill_plateau(t, v, err) == DQ_OK) {
        dq_table_keys(t, head + 3);
        printf(
            "\nMean accuracy over the larger numbers of demonstrations (\u00b1 standard error for "
            "other runs and queries):\n");
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

dq_status cmd_eval_icl_tables(const cmd_eval_view *v, dq_err *err)
{
    int shots[DQ_ICL_SHOTS];
    if (all_shots(v->e, shots) == 0) return DQ_OK;
    DQ_TRY(print_curve(v, err));
    return print_plateau(v, err);
}
