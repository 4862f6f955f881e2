/* stats_weights: see stats_weights.h. Roles stand in the order in which a model has them; a role's line is of one matrix, so that
 * all of its numbers belong together.
 * SPDX-License-Identifier: MIT */
#include "cmds/stats/stats_weights.h"

#include "cmds/stats/stats_cells.h"
#include "record/record.h"

#include <math.h>
#include <string.h>

static double crest(const dq_weight_outlier *w)
{
    return w->rms > 0 ? (double)w->max / w->rms : 0;
}

/* The matrix of the same role with the largest crest factor, where x is the first one; NULL elsewhere. */
static const dq_weight_outlier *worst(const dq_weight_outliers *o, int x)
{
    const dq_weight_outlier *found = &o->of[x];
    for (int i = 0; i < o->n; i++) {
        if (strcmp(o->of[i].role, o->of[x].role) != 0) continue;
        if (i < x) return NULL;
        if (crest(&o->of[i]) > crest(found)) found = &o->of[i];
    }
    return found;
}

static void row(dq_table *t, const dq_weight_outlier *w)
{
    dq_table_cell(t, "%s", w->role);
    if (w->layer < 0)
        dq_table_cell(t, "-");
    else
        dq_table_cell(t, "%d", w->layer);
    cmd_stats_number(t, (double)w->max, 5);
    cmd_stats_number(t, w->median, 4);
    cmd_stats_number(t, w->p99_9, 4);
    cmd_stats_number(t, w->rms, 4);
    cmd_stats_number(t, crest(w), 4);
    cmd_stats_number(t, w->kurtosis0, 4);
    dq_table_cell(t, "%lld", (long long)w->row);
    dq_table_cell(t, "%lld", (long long)w->col);
    dq_table_cell(t, "%lld", (long long)w->largest_col);
    cmd_stats_number(t, w->col_ratio, 4);
}

dq_status cmd_stats_weights_print(const cmd_stats_entry *e, dq_err *err)
{
    static const char *const titles[] = {
        "weights", "layer",     "max", "median", "p99.9",          "rms",
        "max/rms", "kurtosis0", "row", "column", "largest column", "/median"};
    dq_table *t;
    if (dq_table_new(&t, titles, 12, err) == DQ_OK) {
        for (int i = 0; i < e->weights.n; i++) {
            const dq_weight_outlier *w = worst(&e->weights, i);
            if (w) row(t, w);
        }
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

json_t *cmd_stats_weights_json(const cmd_stats_entry *e)
{
    json_t *list = json_array();
    for (int i = 0; i < e->weights.n; i++) {
        const dq_weight_outlier *w = &e->weights.of[i];
        json_t *x = json_object();
        json_object_set_new(x, "tensor", dq_document_name(w->name));
        json_object_set_new(x, "role", json_string(w->role));
        json_object_set_new(x, "layer", w->layer < 0 ? json_null() : json_integer(w->layer));
        json_object_set_new(x, "rows", json_integer(w->rows));
        json_object_set_new(x, "cols", json_integer(w->cols));
        json_object_set_new(x, "max", json_real((double)w->max));
        json_object_set_new(x, "row", json_integer(w->row));
        json_object_set_new(x, "column", json_integer(w->col));
        json_object_set_new(x, "median", dq_document_real(w->median));
        json_object_set_new(x, "p99_9", dq_document_real(w->p99_9));
        json_object_set_new(x, "rms", dq_document_real(w->rms));
        json_object_set_new(x, "crest", dq_document_real(crest(w)));
        json_object_set_new(x, "kurtosis0", dq_document_real(w->kurtosis0));
        json_object_set_new(x, "largest_column", json_integer(w->largest_col));
        json_object_set_new(x, "column_over_median", dq_document_real(w->col_ratio));
        json_object_set_new(x, "n_not_finite", json_integer(w->n_bad));
        json_array_append_new(list, x);
    }
    return list;
}
