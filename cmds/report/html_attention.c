/* html_attention: attention to the answer and attention noise while a number is retrieved (Table 3).
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include "cmds/page/page_style.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEPTHS = 32 };

typedef struct depths {
    int n;
    double at[DEPTHS];
} depths;

/* Three ways to make shares of a row whose entries may be negative: their keys in the document. The first
 * stands open: its shares lie in 0 to 1 and count all attention. */
enum { NORMS = 3 };
static const char *const norms[NORMS] = {"absolute", "positive", "sum"};
static const char *const norm_names[NORMS] = {
    "absolute values, divided by their sum",
    "negative entries left out, divided by the sum of the rest", "divided by the sum of the row"};
static const char *const norm_captions[NORMS] = {
    "Shares by depth of the answer: absolute values of each row of attention, divided by their "
    "sum; "
    "± one standard error over lengths where there are several.",
    "The same without negative entries.",
    "The same divided by the sum of the row: no share where that sum is near 0."};

static const json_t *cells_of(const dq_html_row *r)
{
    return json_object_get(json_object_get(r->j, "needle"), "cells");
}

static bool has_attention(const dq_html_row *r)
{
    const json_t *cell;
    size_t i;
    json_array_foreach(cells_of(r), i, cell)
    {
        if (json_is_object(json_object_get(cell, "attention"))) return true;
    }
    return false;
}

/* The depths of all cells, upwards. */
static depths depths_of(const dq_html *h)
{
    depths s = {.n = 0};
    for (int r = 0; r < h->n; r++) {
        const json_t *cell;
        size_t i;
        json_array_foreach(cells_of(&h->row[r]), i, cell)
        {
            double x = dq_html_real(cell, "depth");
            int at = 0;
            while (at < s.n && s.at[at] < x) at++;
            if (!isfinite(x) || s.n == DEPTHS || (at < s.n && s.at[at] == x)) continue;
            memmove(s.at + at + 1, s.at + at, (size_t)(s.n - at) * sizeof *s.at);
            s.at[at] = x;
            s.n++;
        }
    }
    return s;
}

/* Mean over the cells of a depth and, of several cells, its standard error; NaN where unknown. */
static double mass(const dq_html_row *r, double depth, const char *norm, bool noise, double *se)
{
    const json_t *cell;
    size_t i;
    double mean = (double)NAN, squares = 0, n = 0;
    json_array_foreach(cells_of(r), i, cell)
    {
        const json_t *a = json_object_get(json_object_get(cell, "attention"), norm);
        double x = dq_html_real(a, noise ? "noise" : "answer");
        double rest = noise ? dq_html_real(a, "distractor") : 0;
        if (dq_html_real(cell, "depth") != depth || !isfinite(x)) continue;
        x += isfinite(rest) ? rest : 0;
        double off = n++ > 0 ? x - mean : 0; /* sums that do not cancel */
        mean = n > 1 ? mean + off / n : x;
        squares += off * (x - mean);
    }
    *se = n > 1 ? sqrt(squares / (n - 1) / n) : (double)NAN;
    if (!(*se > 1e-12)) *se = (double)NAN;
    return mean;
}

/* Rows of the picture: all, or where these are too many for the colours the first of each model. */
static int drawn(const dq_html *h, int i)
{
    int n = 0, before = 0, of_model = 0;
    for (int k = 0; k < h->n; k++) {
        if (!has_attention(&h->row[k])) continue;
        n++;
        before += k < i;
        of_model += k < i && h->row[k].model_index == h->row[i].model_index;
    }
    if (!has_attention(&h->row[i])) return -1;
    if (n <= DQ_PAGE_COLOURS) return before;
    return of_model ? -1 : h->row[i].model_index;
}

static void legend(const dq_html *h)
{
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        int k = drawn(h, i);
        if (k >= 0) dq_picture_legend_bar(h->p, k, h->row[i].label);
    }
    dq_picture_legend_end(h->p);
}

static void draw_bars(dq_html *h, dq_picture *c, const depths *depth, const char *norm, bool noise)
{
    int n = 0, k = 0;
    for (int i = 0; i < h->n; i++) n += drawn(h, i) >= 0;
    double width = 0.8 / n;
    for (int i = 0; i < h->n; i++) {
        double x[DEPTHS], y[DEPTHS], lo[DEPTHS], hi[DEPTHS], se;
        int colour = drawn(h, i);
        if (colour < 0) continue;
        for (int d = 0; d < depth->n; d++) {
            x[d] = d - 0.4 + width * (k + 0.5);
            y[d] = mass(&h->row[i], depth->at[d], norm, noise, &se);
            lo[d] = y[d] - se;
            hi[d] = y[d] + se;
        }
        k++;
        dq_picture_bars(c, (dq_picture_style){colour, 0, 0}, 0.9 * width, depth->n, x, y, lo, hi);
    }
}

/* One group of bars per depth, in it one bar per row. */
static void picture(dq_html *h, const char *norm, bool noise)
{
    dq_picture c;
    depths depth = depths_of(h);
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, 460, 260);
    dq_picture_set(&c,
                   "set xlabel \"depth of the answer, %%\"\nset ylabel \"%s\"\n"
                   "set xrange [-0.6:%g]\nset yrange [*<0:*]\nset xzeroaxis\nset xtics (",
                   noise ? "attention noise" : "attention to the answer", depth.n - 0.4);
    for (int d = 0; d < depth.n; d++)
        dq_picture_set(&c, "%s\"%g\" %d", d ? ", " : "", 100 * depth.at[d], d);
    dq_picture_set(&c, ")\n");
    draw_bars(h, &c, &depth, norm, noise);
    dq_picture_end(&c, noise ? "Attention noise by depth of the answer, a bar for each row. The "
                               "next table holds the numbers."
                             : "Attention to the answer by its depth, a bar for each row. The "
                               "next table holds the numbers.");
    legend(h);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      noise ? "Attention noise: mass on tokens that are neither the first, nor "
                              "the answer&#39;s sentence, nor the question; other needles count."
                            : "Attention to the sentence that holds the answer, averaged over "
                              "heads, layers and samples.");
    dq_html_page_html(h->p,
                      " Error bars, where there are several lengths, are one standard error over "
                      "these.");
    dq_picture_figure_end(h->p);
}

static void table(dq_html *h, int norm)
{
    depths depth = depths_of(h);
    dq_html_page_table(h->p, norm_captions[norm], NULL);
    dq_html_page_title(h->p, "row", true);
    dq_html_page_title(h->p, "mass on", true);
    for (int d = 0; d < depth.n; d++)
        dq_html_page_title(h->p, dq_html_words(h, "%g %%", 100 * depth.at[d]), false);
    dq_html_page_table_rows(h->p);
    for (int i = 0; i < h->n; i++) {
        for (int noise = 0; noise < 2 && has_attention(&h->row[i]); noise++) {
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, noise ? "" : h->row[i].label);
            dq_html_page_cell(h->p, noise ? "noise" : "answer");
            for (int d = 0; d < depth.n; d++) {
                double se, x = mass(&h->row[i], depth.at[d], norms[norm], noise != 0, &se);
                dq_html_page_value(h->p, x, se);
            }
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    dq_html_page_table_end(h->p);
}

/* How often the sum of a row is so small that dividing by it makes no share. */
static void small_sums(dq_html *h)
{
    double rows = 0, few = 0;
    for (int i = 0; i < h->n; i++) {
        const json_t *cell;
        size_t k;
        json_array_foreach(cells_of(&h->row[i]), k, cell)
        {
            const json_t *a = json_object_get(cell, "attention");
            const double n = dq_html_real(a, "head_rows"), small = dq_html_real(a, "small_sums");
            rows += isfinite(n) ? n : 0;
            few += isfinite(small) ? small : 0;
        }
    }
    if (rows > 0)
        dq_html_page_html(h->p, "<p>The sum is below 0.1 in %.0f of %.0f rows of heads.</p>\n", few,
                          rows);
}

static void best_heads(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "length", "depth", "layer", "head", "attention to the answer", NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const json_t *cell;
        size_t k;
        json_array_foreach(cells_of(&h->row[i]), k, cell)
        {
            const json_t *b = json_object_get(json_object_get(cell, "attention"), "best_head");
            if (!json_is_object(b)) continue;
            if (!begun) {
                dq_html_page_fold(h->p, "The best head of each cell", false);
                dq_html_page_table(h->p,
                                   "Means hide heads that retrieve: the head with the most "
                                   "attention to the answer.",
                                   titles);
            }
            begun = true;
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, h->row[i].label);
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(cell, "length"));
            dq_html_page_cellf(h->p, "%g %%", 100 * dq_html_real(cell, "depth"));
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(b, "layer"));
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(b, "head"));
            dq_html_page_value(h->p, dq_html_real(b, "answer"), (double)NAN);
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    if (!begun) return;
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

bool dq_html_has_attention(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (has_attention(&h->row[i])) return true;
    }
    return false;
}

void dq_html_attention(dq_html *h)
{
    for (int k = 0; k < NORMS; k++) {
        if (k)
            dq_html_page_fold(h->p, dq_html_words(h, "Other normalization: %s", norm_names[k]),
                              false);
        else
            dq_html_page_html(h->p, "<p>Normalization: %s.</p>\n", norm_names[k]);
        if (strcmp(norms[k], "sum") == 0) small_sums(h);
        dq_html_page_html(h->p, "<div class=\"pair\">\n");
        picture(h, norms[k], false);
        picture(h, norms[k], true);
        dq_html_page_html(h->p, "</div>\n");
        table(h, k);
        if (k) dq_html_page_fold_end(h->p);
    }
    best_heads(h);
}
