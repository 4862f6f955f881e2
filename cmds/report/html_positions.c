/* html_positions: loss by position.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290, POINTS = 128 };

typedef struct curve {
    int n;
    double x[POINTS], y[POINTS], lo[POINTS], hi[POINTS];
} curve;

static void add_point(curve *k, double x, const json_t *metric)
{
    double y = dq_html_real(metric, "value"), se = dq_html_real(metric, "stderr");
    if (k->n == POINTS || !isfinite(x)) return;
    k->x[k->n] = x;
    k->y[k->n] = y;
    k->lo[k->n] = se > 0 ? y - se : (double)NAN;
    k->hi[k->n] = se > 0 ? y + se : (double)NAN;
    k->n++;
}

static curve curve_of(const dq_html_row *r, const char *what)
{
    const json_t *p = json_object_get(r->j, "positions"), *list = json_object_get(p, what);
    curve k = {.n = 0};
    for (size_t i = 0; i < json_array_size(list); i++)
        add_point(&k, dq_html_real_at(json_object_get(p, "at"), i), json_array_get(list, i));
    return k;
}

static void position_axis(dq_html *h, dq_picture *c)
{
    double min = HUGE_VAL, max = 0;
    for (int i = 0; i < h->n; i++) {
        curve k = curve_of(&h->row[i], "cumulative_nll_nats");
        for (int n = 0; n < k.n; n++) {
            min = fmin(min, k.x[n]);
            max = fmax(max, k.x[n]);
        }
    }
    dq_picture_set(c, "set xlabel \"position, tokens\"\n");
    dq_html_token_axis(c, min, max);
}

static void position_legend(dq_html *h, const char *what)
{
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        if (curve_of(&h->row[i], what).n)
            dq_picture_legend_item(h->p, h->row[i].style, h->row[i].label);
    }
    dq_picture_legend_end(h->p);
}

static void position_picture(dq_html *h, const char *what, bool difference)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    position_axis(h, &c);
    dq_picture_set(&c, difference ? "set ylabel \"difference, nats per token\"\nset xzeroaxis\n"
                                  : "set ylabel \"cumulative NLL, nats per token\"\n");
    for (int i = 0; i < h->n; i++) {
        curve k = curve_of(&h->row[i], what);
        if (k.n)
            dq_picture_line(&c, h->row[i].style, k.n, k.x, k.y, difference ? k.lo : NULL,
                            difference ? k.hi : NULL);
    }
    dq_picture_end(&c, difference ? "Difference of the cumulative negative log-likelihood to the "
                                    "reference over the position."
                                  : "Cumulative negative log-likelihood over the position. A table "
                                    "below holds the numbers.");
    position_legend(h, what);
    dq_picture_figure_caption(h->p);
    if (difference)
        dq_html_page_html(h->p,
                          "The same less the reference on the same documents. Bars are one paired "
                          "standard error over documents.");
    else
        dq_html_page_html(h->p,
                          "Mean negative log-likelihood of all tokens up to a position, averaged "
                          "over documents that reach the last one. Standard errors over documents "
                          "stand in the table.");
    dq_picture_figure_end(h->p);
}

/* The value at a position, wherever it stands in this row's list. */
static const json_t *value_at(const json_t *p, const char *what, double position)
{
    const json_t *x = json_object_get(p, "at");
    for (size_t i = 0; i < json_array_size(x); i++) {
        if (dq_html_real_at(x, i) == position) return json_array_get(json_object_get(p, what), i);
    }
    return NULL;
}

static void position_row(dq_html *h, const char *label, const char *what, const json_t *p,
                         const json_t *columns)
{
    bool difference = strcmp(what, "difference_nats") == 0;
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, label);
    dq_html_page_cell(h->p, difference ? "minus reference" : "cumulative NLL");
    for (size_t k = 0; k < json_array_size(columns); k++) {
        const json_t *v = value_at(p, what, dq_html_real_at(columns, k));
        dq_html_page_value(h->p, dq_html_real(v, "value"), dq_html_real(v, "stderr"));
    }
    dq_html_page_html(h->p, "</tr>\n");
}

/* Columns are the positions of the row that has the most. */
static void position_table(dq_html *h)
{
    const json_t *columns = NULL;
    for (int i = 0; i < h->n; i++) {
        const json_t *x = json_object_get(json_object_get(h->row[i].j, "positions"), "at");
        if (json_array_size(x) > json_array_size(columns)) columns = x;
    }
    dq_html_page_table(h->p,
                       "Cumulative negative log-likelihood in nats per token up to a position, ± "
                       "standard error over documents; differences ± paired standard error.",
                       NULL);
    dq_html_page_title(h->p, "row", true);
    dq_html_page_title(h->p, "value", true);
    for (size_t k = 0; k < json_array_size(columns); k++)
        dq_html_page_title(h->p, dq_html_words(h, "%.0f", dq_html_real_at(columns, k)), false);
    dq_html_page_table_rows(h->p);
    for (int i = 0; i < h->n; i++) {
        const json_t *p = json_object_get(h->row[i].j, "positions");
        if (!json_is_object(p)) continue;
        position_row(h, h->row[i].label, "cumulative_nll_nats", p, columns);
        if (json_is_array(json_object_get(p, "difference_nats")))
            position_row(h, "", "difference_nats", p, columns);
    }
    dq_html_page_table_end(h->p);
}

/* The power law through the cumulative NLL. */
static void fit_table(dq_html *h)
{
    static const char *const titles[] = {"<row", "alpha", "beta", "gamma", "residual (nats)", NULL};
    static const char *const names[] = {"alpha", "beta", "gamma"};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const json_t *f = json_object_get(json_object_get(h->row[i].j, "positions"), "fit");
        if (!json_is_object(f)) continue;
        if (!begun)
            dq_html_page_table(h->p,
                               "alpha t^beta + gamma through the cumulative NLL of the first t "
                               "tokens, by least squares ± standard error over documents.",
                               titles);
        begun = true;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->row[i].label);
        for (int k = 0; k < 3; k++) {
            double se, x = dq_html_metric(f, names[k], &se);
            dq_html_page_value(h->p, x, se);
        }
        dq_html_real_cell(h, dq_html_real(f, "residual_nats"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    if (begun) dq_html_page_table_end(h->p);
}

static void bins_table(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "positions", "tokens", "NLL (nats)", "minus reference (nats)", NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const json_t *bins = json_object_get(json_object_get(h->row[i].j, "positions"), "bins"), *b;
        size_t k;
        json_array_foreach(bins, k, b)
        {
            double se, x = dq_html_metric(b, "nll_nats", &se);
            if (!begun) {
                dq_html_page_fold(h->p, "Mean in ranges of positions", false);
                dq_html_page_table(
                    h->p,
                    "Mean negative log-likelihood within ranges of positions: damage at "
                    "late positions, which a cumulative mean hides; and the paired "
                    "difference to the reference.",
                    titles);
            }
            begun = true;
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, k ? "" : h->row[i].label);
            dq_html_page_cellf(h->p, "%.0f to %.0f", dq_html_real(b, "from"),
                               dq_html_real(b, "to"));
            dq_html_count_cell(h, dq_html_real(b, "n"));
            dq_html_page_value(h->p, x, se);
            x = dq_html_metric(b, "difference_nats", &se);
            dq_html_page_value(h->p, x, se);
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    if (!begun) return;
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

bool dq_html_has_positions(const dq_html *h)
{
    return dq_html_any(h, "positions");
}

void dq_html_positions(dq_html *h)
{
    bool difference = false;
    const json_t *p = dq_html_first(h, "positions");
    for (int i = 0; i < h->n; i++)
        difference = difference || curve_of(&h->row[i], "difference_nats").n > 0;
    dq_html_page_html(h->p, "<p>%.0f documents.</p>\n<div class=\"pair\">\n",
                      dq_html_real(p, "documents"));
    position_picture(h, "cumulative_nll_nats", false);
    if (difference) position_picture(h, "difference_nats", true);
    dq_html_page_html(h->p, "</div>\n");
    position_table(h);
    fit_table(h);
    bins_table(h);
}
