/* eval_needle_table: the tables of multi-needle retrieval. See eval_needle.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_needle.h"

#include "cmds/cli/kv_report.h"
#include "cmds/cli/table.h"

#include <math.h>

/* Cells of one row and N:R lie at first + length * n_depths + depth. */
typedef struct grid {
    const dq_eval_view *v;
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

static void print_title(const grid *g, const char *what)
{
    const dq_needle_cell *c = cell_of(g, 0, 0);
    char label[96];
    printf("\n%s of %s, %d needle%s, %d asked for, %d-bit logits", what, g->v->names[g->row->model],
           c->n, c->n == 1 ? "" : "s", c->r, g->row->logit.bits);
    if (g->row->logit.bits < 16) printf(" (grain %s)", dq_grain_name[g->row->logit.grain]);
    if (!dq_kv_spec_is_plain(&g->row->kv))
        printf(", KV %s", dq_kv_label(label, sizeof label, &g->row->kv));
}

/* Depth by length, and the mean over depths. */
static dq_status accuracy(dq_table *t, const grid *g, dq_err *err)
{
    double sum[DQ_NEEDLE_SWEEP] = {0};
    for (int d = 0; d <= g->n_depths; d++) {
        if (d == g->n_depths)
            dq_table_cell(t, "mean");
        else
            dq_table_cell(t, "%d %%", cell_of(g, 0, d)->depth);
        for (int l = 0; l < g->n_lengths; l++) {
            dq_needle_numbers x;
            if (d == g->n_depths) {
                share_cell(t, sum[l] / g->n_depths);
                continue;
            }
            DQ_TRY(dq_needle_numbers_of(&x, g->v->e, g->row,
                                        g->first + (int64_t)l * g->n_depths + d, err));
            share_cell(t, x.acc.value);
            sum[l] += x.acc.value;
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
        snprintf(name[l], sizeof name[l], "%lld ids", (long long)cell_of(g, l, 0)->length);
        titles[l + 1] = name[l];
    }
    print_title(g, "Accuracy");
    printf(":\n");
    if (dq_table_new(&t, titles, g->n_lengths + 1, err) == DQ_OK && accuracy(t, g, err) == DQ_OK)
        dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

/* Rows of all cells of a length, as dq_needle_numbers counts them. */
typedef struct row_count {
    int64_t all, small;
} row_count;

/* As Table 3 of arXiv 2410.05258 has it: its noise counts the other needles. */
static dq_status attention(dq_table *t, const grid *g, int length, row_count *rows, dq_err *err)
{
    for (int d = 0; d < g->n_depths; d++) {
        dq_needle_numbers x;
        DQ_TRY(dq_needle_numbers_of(&x, g->v->e, g->row,
                                    g->first + (int64_t)length * g->n_depths + d, err));
        const double *s = x.share[DQ_NEEDLE_NORM];
        rows->all += x.rows;
        rows->small += x.small;
        dq_table_cell(t, "%d %%", cell_of(g, length, d)->depth);
        share_cell(t, s[DQ_NEEDLE_ANSWER]);
        share_cell(t, s[DQ_NEEDLE_NOISE] + s[DQ_NEEDLE_DISTRACTOR]);
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
    printf(", %lld ids, %s, |a| / sum |a|; noise counts other needles:\n",
           (long long)cell_of(g, length, 0)->length,
           g->set->settings->query_rows ? "rows of the question" : "last row");
    if (dq_table_new(&t, titles, N, err) == DQ_OK && attention(t, g, length, &rows, err) == DQ_OK &&
        dq_table_print(t, err) == DQ_OK && rows.small > 0)
        printf("|sum a| is below %g in %lld of %lld rows of heads, so a / sum a (in the JSON) is "
               "no share there.\n",
               DQ_SPAN_SMALL, (long long)rows.small, (long long)rows.all);
    dq_table_free(t);
    return err->code;
}

dq_status dq_needle_tables(const dq_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_row *r = &v->e->row[i];
        if (!r->shown || dq_eval_source_of(v->e, r)->kind != &dq_eval_needle) continue;
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
