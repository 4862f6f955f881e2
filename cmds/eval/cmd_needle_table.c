/* cmd_needle_table: see cmd_needle_table.h. Cells of one N:R and length are those of all depths, one after the other, so their
 * prompts are too.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/cmd_needle_table.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"
#include "cmds/eval/eval_cells.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

/* ---- Over all depths ---- */

/* An entry of Table 2 of arXiv 2410.05258: all prompts of N:R at a length, whatever the depth. */
typedef struct entry {
    dq_mean acc;
    dq_interval interval;
    bool paired, crossed;
    dq_stat_flips flips, cross; /* against the reference, and against the first model */
    int other;                  /* row of that */
} entry;

static dq_status entry_of(entry *o, const cmd_eval_view *v, int row, int64_t cell, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_needle_set *set = dq_needle_set_of(e, r);
    const int64_t depths = set->settings->n_depths, n = depths * set->samples;
    double *score = dq_block_new((size_t)(2 * n), sizeof *score, err);
    *o = (entry){.paired = r->ref != row, .other = cmd_eval_cross_row(e, row)};
    o->crossed = o->other >= 0;
    if (!score) return err->code;
    dq_needle_scores(score, e, r, cell, depths);
    o->acc = dq_mean_of_scores(score, NULL, n, &o->interval);
    if (o->paired) {
        dq_needle_scores(score + n, e, &e->row[r->ref], cell, depths);
        o->flips = dq_stat_flips_of(score + n, score, NULL, n);
    }
    if (o->crossed) {
        dq_needle_scores(score + n, e, &e->row[o->other], cell, depths);
        o->cross = dq_stat_flips_of(score + n, score, NULL, n);
    }
    dq_block_free(score);
    return DQ_OK;
}

dq_status cmd_eval_needle_entries(json_t *needle, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_needle_set *set = dq_needle_set_of(v->e, &v->e->row[row]);
    const int64_t depths = set->settings->n_depths;
    json_t *all = json_array();
    json_object_set_new(needle, "over_depths", all);
    for (int64_t c = 0; c < set->n_cells; c += depths) {
        entry x;
        DQ_TRY(entry_of(&x, v, row, c, err));
        json_t *o = json_object(), *acc = cmd_eval_mean_json(x.acc), *cross;
        json_object_set_new(acc, "interval", cmd_eval_interval_json(x.interval));
        json_object_set_new(o, "length", json_integer((json_int_t)set->cell[c].length));
        json_object_set_new(o, "n_needles", json_integer(set->cell[c].n));
        json_object_set_new(o, "n_queries", json_integer(set->cell[c].r));
        json_object_set_new(o, "n", json_integer((json_int_t)(depths * set->samples)));
        json_object_set_new(o, "acc", acc);
        json_object_set_new(o, "paired", x.paired ? cmd_eval_flips_json(&x.flips) : json_null());
        json_array_append_new(all, o);
        if (!x.crossed) continue;
        cross = json_object();
        json_object_set_new(cross, "model", json_string(v->names[v->e->row[x.other].model]));
        json_object_set_new(cross, "acc", cmd_eval_flips_json(&x.cross));
        json_object_set_new(o, "cross_paired", cross);
    }
    return DQ_OK;
}

/* ---- Tables ---- */

/* Cells of one row and N:R lie at first + length * n_depths + depth. */
typedef struct grid {
    const cmd_eval_view *v;
    const dq_eval_row *row;
    const dq_needle_set *set;
    int64_t first;
    int n_lengths, n_depths;
} grid;

static const dq_needle_cell *cell_of(const grid *g, int length, int depth)
{
    return &g->set->cell[g->first + (int64_t)length * g->n_depths + depth];
}

static void share_cell(dq_table *t, double x)
{
    if (isnan(x))
        dq_table_cell(t, "-");
    else
        dq_table_cell(t, "%.3f", x);
}

static void share_mean_cell(dq_table *t, dq_mean x)
{
    if (isnan(x.value) || isnan(x.std_err))
        share_cell(t, x.value);
    else
        dq_table_cell(t, "%.3f \u00b1 %.3f", x.value, x.std_err);
}

static void print_title(const grid *g, const char *what)
{
    const dq_needle_cell *c = cell_of(g, 0, 0);
    char label[DQ_KV_LABEL];
    printf("\n%s of %s, %d needle%s, %d asked for, %d-bit logits", what, g->v->names[g->row->model],
           c->n, c->n == 1 ? "" : "s", c->r, g->row->logit.bits);
    if (g->row->logit.bits < 16)
        printf(" (granularity %s)", dq_granularity_name[g->row->logit.granularity]);
    if (!dq_kv_spec_is_plain(&g->row->kv))
        printf(", KV %s", dq_kv_report_label(label, sizeof label, &g->row->kv));
}

/* Depth by length, and the mean over depths. */
static dq_status fill_accuracy(dq_table *t, const grid *g, dq_err *err)
{
    for (int d = 0; d <= g->n_depths; d++) {
        if (d == g->n_depths)
            dq_table_cell(t, "mean");
        else
            dq_table_cell(t, "%d %%", cell_of(g, 0, d)->depth);
        for (int l = 0; l < g->n_lengths; l++) {
            dq_needle_numbers x;
            entry all;
            if (d == g->n_depths) {
                DQ_TRY(entry_of(&all, g->v, (int)(g->row - g->v->e->row),
                                g->first + (int64_t)l * g->n_depths, err));
                cmd_eval_score_cell(t, all.acc, all.interval, "");
                continue;
            }
            DQ_TRY(dq_needle_numbers_of(&x, g->v->e, g->row,
                                        g->first + (int64_t)l * g->n_depths + d, err));
            share_cell(t, x.acc.value);
        }
    }
    return DQ_OK;
}

static dq_status print_accuracy(const grid *g, dq_err *err)
{
    char name[DQ_NEEDLE_SWEEP][24];
    const char *titles[DQ_NEEDLE_SWEEP + 1] = {"depth"};
    dq_table *t = NULL;
    for (int l = 0; l < g->n_lengths; l++) {
        snprintf(name[l], sizeof name[l], "%lld tokens", (long long)cell_of(g, l, 0)->length);
        titles[l + 1] = name[l];
    }
    print_title(g, "Accuracy");
    printf(":\n");
    if (dq_table_new(&t, titles, g->n_lengths + 1, err) == DQ_OK &&
        fill_accuracy(t, g, err) == DQ_OK)
        dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

/* Rows of all cells of a length, as dq_needle_numbers counts them. */
typedef struct row_count {
    int64_t all, small;
} row_count;

/* As Table 3 of arXiv 2410.05258 has it: its noise counts the other needles. */
static dq_status fill_attention(dq_table *t, const grid *g, int length, row_count *rows,
                                dq_err *err)
{
    for (int d = 0; d < g->n_depths; d++) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, g->v->e, g->row,
                                    g->first + (int64_t)length * g->n_depths + d, err));
        const double *s = x.share[DQ_NEEDLE_NORM];
        rows->all += x.rows;
        rows->small += x.small;
        dq_table_cell(t, "%d %%", cell_of(g, length, d)->depth);
        share_mean_cell(t, x.answer[DQ_NEEDLE_NORM]);
        share_mean_cell(t, x.noise[DQ_NEEDLE_NORM]);
        share_cell(t, s[DQ_NEEDLE_DISTRACTOR]);
        share_cell(t, s[DQ_NEEDLE_BOS]);
        share_cell(t, s[DQ_NEEDLE_QUERY]);
        if (x.best_layer < 0)
            dq_table_cell(t, "-");
        else
            dq_table_cell(t, "%.3f (layer %d, head %d)", x.best, x.best_layer, x.best_head);
    }
    return DQ_OK;
}

static dq_status print_attention(const grid *g, int length, dq_err *err)
{
    static const char *const titles[] = {
        "depth", "answer", "noise", "other needles", "BOS", "query", "best head's answer"};
    enum { N = sizeof titles / sizeof *titles };
    dq_table *t = NULL;
    row_count rows = {0, 0};
    print_title(g, "Attention");
    printf(", %lld tokens, %s, |a| / sum |a|; noise counts other needles:\n",
           (long long)cell_of(g, length, 0)->length,
           g->set->settings->query_rows ? "rows of the question" : "last row");
    if (dq_table_new(&t, titles, N, err) == DQ_OK &&
        fill_attention(t, g, length, &rows, err) == DQ_OK && dq_table_print(t, err) == DQ_OK &&
        rows.small > 0)
        printf("|sum a| is below %g in %lld of %lld rows of heads, so a / sum a (in the JSON) is "
               "no share there.\n",
               DQ_SPAN_SMALL, (long long)rows.small, (long long)rows.all);
    dq_table_free(t);
    return err->code;
}

dq_status cmd_eval_needle_tables(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!cmd_eval_kind_shows(&cmd_eval_needle, v->e, i)) continue;
        grid g = {.v = v, .row = r, .set = dq_needle_set_of(v->e, r)};
        const dq_needle_settings *s = g.set->settings;
        g.n_depths = s->n_depths;
        g.n_lengths = (int)(g.set->n_cells / s->n_pairs / s->n_depths);
        for (; g.first < g.set->n_cells; g.first += (int64_t)g.n_lengths * g.n_depths) {
            DQ_TRY(print_accuracy(&g, err));
            for (int l = 0; s->attention && l < g.n_lengths; l++)
                DQ_TRY(print_attention(&g, l, err));
        }
    }
    return DQ_OK;
}
