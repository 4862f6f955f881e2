/* html_grid: see html_grid.h. Rows and columns are what occurs in the cells, sorted; then cells are looked up by both.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS_MAX = 1 << 17 };

typedef struct column {
    double map, head;
} column;

/* The same number, or none both. */
static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static int by_number(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(b) - isnan(a);
    return a < b ? -1 : a > b;
}

static int by_column(const void *a, const void *b)
{
    const column *x = a, *y = b;
    const int d = by_number(x->map, y->map);
    return d ? d : by_number(x->head, y->head);
}

/* The map of each column is the layer of a row where layers are collected. */
static int collect(column *list, const dq_html_grid *g, bool layers)
{
    int n = 0;
    for (int i = 0; i < g->n; i++)
        list[i] = layers ? (column){g->at[i].layer, 0} : (column){g->at[i].map, g->at[i].head};
    qsort(list, (size_t)g->n, sizeof *list, by_column);
    for (int i = 0; i < g->n; i++) {
        if (!n || !same(list[i].map, list[n - 1].map) || !same(list[i].head, list[n - 1].head))
            list[n++] = list[i];
    }
    return n;
}

const char *dq_html_grid_text(char buf[32], double x)
{
    const double m = fabs(x);
    if (!isfinite(x))
        snprintf(buf, 32, "–");
    else if (m >= 9999.5 || (m < 0.005 && m > 0))
        snprintf(buf, 32, "%.0e", x);
    else
        snprintf(buf, 32, "%.*f", m >= 99.95 ? 0 : m >= 9.995 ? 1 : 2, x);
    return buf;
}

typedef struct range {
    double low, high;
} range;

static range range_of(const dq_html_grid *g)
{
    range r = {0, 1};
    if (g->shades == DQ_HTML_BY_SHARE) return r;
    r = g->shades == DQ_HTML_BY_LOGARITHM ? (range){(double)NAN, (double)NAN}
                                          : (range){0, (double)NAN};
    for (int i = 0; i < g->n; i++) {
        const double x = g->at[i].value;
        if (g->shades == DQ_HTML_BY_LOGARITHM && x > 0) r.low = fmin(r.low, log(x));
        if (g->shades == DQ_HTML_BY_LOGARITHM && x > 0) r.high = fmax(r.high, log(x));
        if (g->shades == DQ_HTML_BY_VALUE && isfinite(x)) r.high = fmax(r.high, x);
    }
    return r;
}

static void value_cell(dq_html *h, const dq_html_grid *g, range r, double x)
{
    char text[32];
    const double at = g->shades != DQ_HTML_BY_LOGARITHM ? x : x > 0 ? log(x) : r.low;
    double v = r.high > r.low ? (at - r.low) / (r.high - r.low) : 0;
    v = isfinite(v) ? fmin(1, fmax(0, v)) : 0;
    dq_html_page_html(h->p, "<td%s style=\"--v:%.2f\">%s</td>", v > 0.78 ? " class=\"hi\"" : "", v,
                      dq_html_grid_text(text, x));
}

static void kind_cell(dq_html *h, const char *kind)
{
    static const char *const known[] = {"retrieval", "sink", "local", "mixed"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(kind, known[i]) == 0) {
            dq_html_page_html(h->p, "<td class=\"k%d\" title=\"%s\">%c</td>", i, kind,
                              kind[0] - 'a' + 'A');
            return;
        }
    }
    dq_html_page_html(h->p, "<td class=\"k3\">–</td>");
}

static void titles(dq_html *h, const dq_html_grid *g, const column *head, int n)
{
    dq_picture_figure_begin(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, g->name);
    dq_html_page_html(h->p,
                      ": %s</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                      "aria-label=\"Figure %d\"><table class=\"heat small\" data-grid=\"%s\" "
                      "data-model=\"",
                      g->caption, h->p->n_figures, g->what);
    dq_html_page_text(h->p, g->name);
    dq_html_page_html(h->p, "\"><thead><tr><th scope=\"col\">layer</th>");
    for (int i = 0; i < n; i++) {
        dq_html_page_html(h->p, "<th scope=\"col\">%.0f", head[i].head);
        if (isfinite(head[i].map)) dq_html_page_html(h->p, "/%.0f", head[i].map);
        dq_html_page_html(h->p, "</th>");
    }
    dq_html_page_table_rows(h->p);
}

static int place_in(const column *list, int n, column x)
{
    const column *found = bsearch(&x, list, (size_t)n, sizeof *list, by_column);
    return found ? (int)(found - list) : -1;
}

static void rows(dq_html *h, const dq_html_grid *g, const column *layer, int n_layers,
                 const column *head, int n_heads)
{
    const range r = range_of(g);
    const size_t all = (size_t)n_layers * (size_t)n_heads;
    const dq_html_grid_cell **at = dq_alloc(h->a, all, sizeof *at, h->p->err);
    if (!at) return;
    for (int i = 0; i < g->n; i++) {
        const int l = place_in(layer, n_layers, (column){g->at[i].layer, 0});
        const int k = place_in(head, n_heads, (column){g->at[i].map, g->at[i].head});
        if (l >= 0 && k >= 0) at[l * n_heads + k] = &g->at[i];
    }
    for (int l = 0; l < n_layers; l++) {
        dq_html_page_html(h->p, "<tr><th scope=\"row\">%.0f</th>", layer[l].map);
        for (int k = 0; k < n_heads; k++) {
            const dq_html_grid_cell *c = at[l * n_heads + k];
            if (g->shades == DQ_HTML_BY_KIND)
                kind_cell(h, c ? c->kind : "");
            else
                value_cell(h, g, r, c ? c->value : (double)NAN);
        }
        dq_html_page_html(h->p, "</tr>\n");
    }
}

void dq_html_grid_show(dq_html *h, const dq_html_grid *g)
{
    column *layer = dq_alloc(h->a, (size_t)g->n, sizeof *layer, h->p->err);
    column *head = dq_alloc(h->a, (size_t)g->n, sizeof *head, h->p->err);
    if (!g->n || !layer || !head) return;
    const int n_layers = collect(layer, g, true), n_heads = collect(head, g, false);
    if ((int64_t)n_layers * n_heads > CELLS_MAX) {
        dq_html_page_html(h->p, "<p>%d layers of %d heads are too many for a map.</p>\n", n_layers,
                          n_heads);
        return;
    }
    titles(h, g, head, n_heads);
    rows(h, g, layer, n_layers, head, n_heads);
    dq_html_page_html(h->p, "</tbody></table></div></figure>\n");
}
