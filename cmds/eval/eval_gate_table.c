/* eval_gate_table: a row of the table is an object of "compared" in a gate of the document.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_gate_table.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"

#include <math.h>
#include <stdio.h>

/* The row of result i. */
static int row_of(const dq_eval *e, int64_t i)
{
    int row = 0;
    while (!e->row[row].shown || i-- > 0) row++;
    return row;
}

static double real_of(const json_t *o, const char *key)
{
    const json_t *x = json_object_get(o, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

static void number_cell(dq_table *t, double x, double std_err)
{
    if (isnan(x))
        dq_table_cell(t, "-");
    else if (isnan(std_err))
        dq_table_cell(t, "%.5g", x);
    else
        dq_table_cell(t, "%.5g \u00b1 %.2g", x, std_err);
}

static void add_row(dq_table *t, const cmd_eval_view *v, const char *condition, const json_t *c)
{
    const int index = row_of(v->e, json_integer_value(json_object_get(c, "result")));
    const dq_eval_row *r = &v->e->row[index];
    const json_t *met = json_object_get(c, "met");
    const double change = real_of(c, "change");
    char label[DQ_KV_LABEL];
    dq_table_cell(t, "%s", condition);
    dq_table_cell(t, "%s", v->names[r->model]);
    dq_table_cell(t, "%s", cmd_eval_title(v->e, index));
    dq_table_cell(t, "%d", r->logit.bits);
    dq_table_cell(t, "%s", r->logit.bits == 16 ? "-" : dq_granularity_name[r->logit.granularity]);
    dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
    dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
    number_cell(t, real_of(c, "value"), real_of(c, "stderr"));
    number_cell(t, real_of(c, "baseline"), real_of(c, "baseline_stderr"));
    if (isnan(change))
        dq_table_cell(t, "-");
    else
        dq_table_cell(t, "%+.4g", change);
    number_cell(t, real_of(c, "limit"), (double)NAN);
    dq_table_cell(t, "%s",
                  json_is_null(met)   ? "not checked"
                  : json_is_true(met) ? "met"
                                      : "not met");
}

dq_status cmd_eval_gate_table(const cmd_eval_gates *g, const cmd_eval_view *v,
                              const json_t *document, dq_err *err)
{
    static const char *const titles[] = {"condition",   "model",  "task",     "logit bits",
                                         "granularity", "math",   "KV cache", "here",
                                         "baseline",    "change", "limit",    "outcome"};
    enum { N = sizeof titles / sizeof *titles, KEYS = 7 };
    const json_t *gates = json_object_get(document, "gates");
    dq_table *t;
    size_t i, k;
    json_t *gate, *c;
    if (!g->baseline.path) return DQ_OK;
    printf("\nAgainst the baseline %s:\n\n", g->baseline.name);
    DQ_TRY(dq_table_new(&t, titles, N, err));
    dq_table_keys(t, KEYS);
    json_array_foreach(gates, i, gate)
    {
        json_array_foreach(json_object_get(gate, "compared"), k, c)
            add_row(t, v, g->gate[i].text, c);
    }
    if (dq_table_print(t, err) == DQ_OK)
        printf("\nA change is the difference of two point values: a document has no results of "
               "single items, so no interval\nbelongs to it. \u00b1 is the standard error of a "
               "number in its own run.\n");
    dq_table_free(t);
    return err->code;
}
