/* html_icl: in-context learning over the number of demonstrations.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290, POINTS = 128 };

static const json_t *icl_of(const dq_html_row *r, const char *key)
{
    return json_object_get(json_object_get(r->j, "icl"), key);
}

static void draw_shots(dq_picture *c, const dq_html_row *r)
{
    const json_t *x;
    size_t i;
    double shots[POINTS], mean[POINTS], lo[POINTS], hi[POINTS];
    int n = 0;
    json_array_foreach(icl_of(r, "curve"), i, x)
    {
        if (n == POINTS || !isfinite(dq_html_real(x, "shots"))) continue;
        shots[n] = dq_html_real(x, "shots");
        mean[n] = dq_html_real(x, "acc_mean");
        lo[n] = dq_html_real(x, "acc_min");
        hi[n++] = dq_html_real(x, "acc_max");
    }
    if (n > 1) dq_picture_band(c, r->style, n, shots, lo, hi);
    dq_picture_line(c, r->style, n, shots, mean, NULL, NULL);
    n = 0;
    json_array_foreach(icl_of(r, "runs"), i, x)
    {
        if (n == POINTS || !isfinite(dq_html_real(x, "shots"))) continue;
        shots[n] = dq_html_real(x, "shots");
        mean[n++] = dq_html_metric(x, "acc", NULL);
    }
    dq_picture_dots(c, r->style, n, shots, mean);
}

static void shots_axis(const dq_html *h, dq_picture *c, const char *task)
{
    double min = HUGE_VAL, max = -HUGE_VAL;
    for (int i = 0; i < h->n; i++) {
        const json_t *x;
        size_t k;
        if (strcmp(h->row[i].task, task) != 0) continue;
        json_array_foreach(icl_of(&h->row[i], "curve"), k, x)
        {
            min = fmin(min, dq_html_real(x, "shots"));
            max = fmax(max, dq_html_real(x, "shots"));
        }
    }
    double margin = max > min ? 0.04 * (max - min) : 1;
    if (max >= min) dq_picture_set(c, "set xrange [%g:%g]\n", min - margin, max + margin);
    if (max - min < 8) dq_picture_set(c, "set xtics 1\n"); /* no half demonstrations */
}

static void shots_picture(dq_html *h, const char *task)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"demonstrations (shots)\"\nset ylabel \"accuracy\"\n"
                       "set yrange [0:1.03]\nset ytics 0.2\n");
    shots_axis(h, &c, task);
    for (int i = 0; i < h->n; i++) {
        if (strcmp(h->row[i].task, task) == 0) draw_shots(&c, &h->row[i]);
    }
    dq_picture_end(&c, dq_html_words(h, "Accuracy on %s over the number of demonstrations.", task));
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (strcmp(r->task, task) == 0 && json_object_get(r->j, "icl"))
            dq_picture_legend_item(h->p, r->style, r->label);
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, task);
    dq_html_page_html(h->p,
                      ": accuracy over the number of demonstrations. Lines are means over runs, "
                      "each with other demonstrations in another order; bands reach from the "
                      "worst run to the best; small marks are single runs.");
    dq_picture_figure_end(h->p);
}

/* Over "runs" (key "curve") or "permutations" (key "permutation_spread"). */
static void shots_table(dq_html *h, const char *key, const char *over, const char *caption)
{
    const char *const titles[] = {"<row",      "<task", "<order", "shots",  over, "mean",
                                  "std. dev.", "worst", "best",   "spread", NULL};
    dq_html_page_table(h->p, caption, titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *x;
        size_t k;
        json_array_foreach(icl_of(r, key), k, x)
        {
            double lo = dq_html_real(x, "acc_min"), hi = dq_html_real(x, "acc_max");
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, k ? "" : r->label);
            dq_html_page_cell(h->p, k ? "" : r->task);
            dq_html_page_cell(h->p,
                              k ? "" : dq_html_text(json_object_get(r->j, "icl"), "demo_order"));
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(x, "shots"));
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(x, over));
            dq_html_page_value(h->p, dq_html_real(x, "acc_mean"), (double)NAN);
            dq_html_page_value(h->p, dq_html_real(x, "acc_std"), (double)NAN);
            dq_html_page_value(h->p, lo, (double)NAN);
            dq_html_page_value(h->p, hi, (double)NAN);
            dq_html_page_value(h->p, hi - lo, (double)NAN);
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    dq_html_page_table_end(h->p);
}

static void difference_cell(dq_html *h, const json_t *of, const char *key)
{
    const json_t *o = json_object_get(of, key);
    dq_html_page_value(h->p, dq_html_real(o, "delta"), dq_html_real(o, "stderr"));
}

/* Over the larger numbers of demonstrations. */
static void plateau_table(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "<task", "<order", "from shots", "mean", "minus reference", "minus first model",
        NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *x = icl_of(r, "plateau");
        double se, mean = dq_html_metric(x, "acc", &se);
        if (!json_is_object(x)) continue;
        if (!begun)
            dq_html_page_table(h->p,
                               "Mean accuracy over the larger numbers of demonstrations ± standard "
                               "error for other runs and queries, and its paired differences.",
                               titles);
        begun = true;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_cell(h->p, r->task);
        dq_html_page_cell(h->p, dq_html_text(json_object_get(r->j, "icl"), "demo_order"));
        dq_html_count_cell(h, dq_html_real(x, "from"));
        dq_html_page_value(h->p, mean, se);
        difference_cell(h, x, "paired");
        difference_cell(h, x, "cross_paired");
        dq_html_page_html(h->p, "</tr>\n");
    }
    if (begun) dq_html_page_table_end(h->p);
}

bool dq_html_has_icl(const dq_html *h)
{
    return dq_html_any(h, "icl");
}

void dq_html_icl(dq_html *h)
{
    bool orders = false;
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++) {
        bool first = json_is_object(json_object_get(h->row[i].j, "icl"));
        for (int k = 0; k < i; k++)
            first = first && !(json_object_get(h->row[k].j, "icl") &&
                               strcmp(h->row[k].task, h->row[i].task) == 0);
        if (first) shots_picture(h, h->row[i].task);
    }
    dq_html_page_html(h->p, "</div>\n");
    shots_table(h, "curve", "runs",
                "Accuracy by number of demonstrations, over runs; the spread is the best run less "
                "the worst. A standard error of the mean is the standard deviation divided by the "
                "root of the number of runs.");
    plateau_table(h);
    for (int i = 0; i < h->n && !orders; i++)
        orders = json_array_size(icl_of(&h->row[i], "permutation_spread")) > 0;
    if (orders)
        shots_table(h, "permutation_spread", "permutations",
                    "The same demonstrations, those of the first run, in several orders: what "
                    "their order alone does to the accuracy.");
}
