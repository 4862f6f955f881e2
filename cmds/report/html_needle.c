/* html_needle: retrieval by length and depth.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX = 32 };

static const json_t *cells_of(const dq_html_row *r)
{
    return json_object_get(json_object_get(r->j, "needle"), "cells");
}

/* The different values of a key among the cells of a row, upwards. */
typedef struct values {
    int n;
    double v[MAX];
} values;

static values values_of(const dq_html_row *r, const char *key)
{
    values s = {.n = 0};
    const json_t *cell;
    size_t i;
    json_array_foreach(cells_of(r), i, cell)
    {
        double x = dq_html_real(cell, key);
        int at = 0;
        if (!isfinite(x) || s.n == MAX) continue;
        while (at < s.n && s.v[at] < x) at++;
        if (at < s.n && s.v[at] == x) continue;
        memmove(s.v + at + 1, s.v + at, (size_t)(s.n - at) * sizeof *s.v);
        s.v[at] = x;
        s.n++;
    }
    return s;
}

/* N and R of a map: cells of a row may differ in them. */
typedef struct kind {
    double needles, queries;
} kind;

static bool of_kind(const json_t *cell, kind k)
{
    return dq_html_real(cell, "n_needles") == k.needles &&
           dq_html_real(cell, "n_queries") == k.queries;
}

static const json_t *cell_at(const dq_html_row *r, kind k, double length, double depth)
{
    const json_t *cell;
    size_t i;
    json_array_foreach(cells_of(r), i, cell)
    {
        if (of_kind(cell, k) && dq_html_real(cell, "length") == length &&
            dq_html_real(cell, "depth") == depth)
            return cell;
    }
    return NULL;
}

static void heat_cell(dq_html *h, const json_t *cell)
{
    char text[96];
    double se, x = dq_html_metric(cell, "acc", &se);
    if (!isfinite(x)) {
        dq_html_page_html(h->p, "<td style=\"--v:0\">–</td>");
        return;
    }
    dq_html_page_html(h->p, "<td%s style=\"--v:%.2f\" title=\"%s, n = %.0f\">%.2f</td>",
                      x > 0.78 ? " class=\"hi\"" : "", fmin(1, fmax(0, x)),
                      dq_html_page_value_text(text, sizeof text, x, se), dq_html_real(cell, "n"),
                      x);
}

static void heat_map(dq_html *h, const dq_html_row *r, kind k)
{
    values lengths = values_of(r, "length"), depths = values_of(r, "depth");
    dq_picture_figure_begin(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, r->label);
    dq_html_page_html(h->p, ", N&#160;=&#160;%g, R&#160;=&#160;%g</figcaption>\n", k.needles,
                      k.queries);
    dq_html_page_html(h->p, "<div class=\"scroll\"><table class=\"heat\"><thead><tr>"
                            "<th scope=\"col\">depth \\ length</th>");
    for (int i = 0; i < lengths.n; i++)
        dq_html_page_html(h->p, "<th scope=\"col\">%.0f</th>", lengths.v[i]);
    dq_html_page_html(h->p, "</tr></thead>\n<tbody>\n");
    for (int d = 0; d < depths.n; d++) {
        dq_html_page_html(h->p, "<tr><th scope=\"row\">%g %%</th>", 100 * depths.v[d]);
        for (int i = 0; i < lengths.n; i++) heat_cell(h, cell_at(r, k, lengths.v[i], depths.v[d]));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_html(h->p, "</tbody></table></div></figure>\n");
}

/* A map for each pair of N and R of a row. */
static void heat_maps(dq_html *h, const dq_html_row *r)
{
    const json_t *cell, *other;
    size_t i, o;
    json_array_foreach(cells_of(r), i, cell)
    {
        kind k = {dq_html_real(cell, "n_needles"), dq_html_real(cell, "n_queries")};
        bool first = true;
        json_array_foreach(cells_of(r), o, other)
        {
            if (o >= i) break;
            first = first && !of_kind(other, k);
        }
        if (first) heat_map(h, r, k);
    }
}

static const char *const parts[] = {"correct", "other_needle", "near_miss", "none"};
static const char *const part_names[] = {"correct", "another needle's number",
                                         "near miss (at least 5 of 7 digits)", "none of these"};

/* Shares over all cells, weighted by the numbers asked for; false: unknown. */
static bool confusion(const dq_html_row *r, double share[4])
{
    const json_t *cell;
    size_t i;
    double sum = 0;
    memset(share, 0, 4 * sizeof *share);
    json_array_foreach(cells_of(r), i, cell)
    {
        const json_t *c = json_object_get(cell, "confusion");
        double w = dq_html_real(cell, "n") * dq_html_real(cell, "n_queries");
        if (!json_is_object(c) || !(w > 0)) continue;
        for (int k = 0; k < 4; k++) {
            double x = dq_html_real(c, parts[k]);
            share[k] += isfinite(x) ? w * x : 0;
        }
        sum += w;
    }
    for (int k = 0; k < 4 && sum > 0; k++) share[k] /= sum;
    return sum > 0;
}

static void confusion_table(dq_html *h)
{
    static const char *const titles[] = {"<row",      "<shares", "correct", "other needle",
                                         "near miss", "none",    NULL};
    bool begun = false;
    double share[4];
    for (int i = 0; i < h->n; i++) {
        if (!confusion(&h->row[i], share)) continue;
        if (!begun) {
            dq_html_page_table(
                h->p,
                "What is answered instead: shares of all numbers asked for, over all "
                "lengths and depths.",
                titles);
        }
        begun = true;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->row[i].label);
        dq_html_page_html(h->p, "<td><div class=\"stack\" aria-hidden=\"true\">");
        for (int k = 0; k < 4; k++)
            if (share[k] > 0)
                dq_html_page_html(h->p, "<i class=\"c%d\" style=\"width:%.2f%%\"></i>", k,
                                  100 * share[k]);
        dq_html_page_html(h->p, "</div></td>");
        for (int k = 0; k < 4; k++) dq_html_page_cellf(h->p, "%.3f", share[k]);
        dq_html_page_html(h->p, "</tr>\n");
    }
    if (!begun) return;
    dq_html_page_table_end(h->p);
    dq_html_page_html(h->p, "<ul class=\"legend\">\n");
    for (int k = 0; k < 4; k++)
        dq_html_page_html(h->p, "<li><span class=\"swatch c%d\"></span>%s</li>\n", k,
                          part_names[k]);
    dq_html_page_html(h->p, "</ul>\n");
}

static void introduction(dq_html *h, const json_t *needle)
{
    const char *boundary = dq_html_text(needle, "kv_boundary");
    dq_html_page_html(
        h->p,
        "<p>Accuracy: the share of the R numbers asked for, out of N in the text, that "
        "are %s. Rows are depths of the first needle that is asked for, columns lengths "
        "in tokens. The stronger the colour, the more are found; the standard error of a "
        "cell is sqrt(p(1 − p)/(n − 1)) for R = 1 and stands in the cell&#39;s tooltip.",
        strcmp(dq_html_text(needle, "mode"), "generated") == 0
            ? "generated exactly"
            : "predicted exactly, digit by digit, when the right digits before are given");
    if (*boundary && dq_html_shows_kv(h)) {
        dq_html_page_html(h->p, " A KV cache that evicts or rounds does so ");
        dq_html_page_text(h->p, boundary);
        dq_html_page_html(h->p, ".");
    }
    dq_html_page_html(h->p, "</p>\n<div class=\"maps\">\n");
}

bool dq_html_has_needle(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(cells_of(&h->row[i])) > 0) return true;
    }
    return false;
}

void dq_html_needle(dq_html *h)
{
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (json_array_size(cells_of(r)) == 0) continue;
        if (!begun) introduction(h, json_object_get(r->j, "needle"));
        begun = true;
        heat_maps(h, r);
    }
    dq_html_page_html(h->p, "</div>\n");
    confusion_table(h);
}
