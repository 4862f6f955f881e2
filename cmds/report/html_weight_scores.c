/* html_weight_scores: scores of tasks over the bits per weight of containers, a line for each model that they were made of.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290 };

static const char *source_of(const dq_html_row *r)
{
    const char *source = dq_html_text(r->j, "reference");
    return *source ? source : r->model;
}

/* A row of a task that differs from others by its weights alone, and has a score. */
static bool is_point(const dq_html_row *r, const char *task)
{
    const char *m = dq_html_main_metric(r);
    return strcmp(r->task, task) == 0 && r->bits == 16 && !*r->kv && m &&
           isfinite(dq_html_metric(r->metrics, m, NULL)) && isfinite(dq_html_weight_bits(r));
}

/* Whether a line of the task would have two widths. */
static bool has_line(const dq_html *h, const char *task)
{
    for (int i = 0; i < h->n; i++) {
        for (int k = 0; k < i; k++) {
            if (is_point(&h->row[i], task) && is_point(&h->row[k], task) &&
                strcmp(source_of(&h->row[i]), source_of(&h->row[k])) == 0 &&
                dq_html_weight_bits(&h->row[i]) != dq_html_weight_bits(&h->row[k]))
                return true;
        }
    }
    return false;
}

bool dq_html_has_weight_scores(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (dq_html_first_of_task(h, i) && has_line(h, h->row[i].task)) return true;
    }
    return false;
}

static int by_bits(const void *a, const void *b)
{
    const dq_html_row *const *x = a, *const *y = b;
    const double u = dq_html_weight_bits(*x), v = dq_html_weight_bits(*y);
    return u < v ? -1 : u > v ? 1 : *x < *y ? -1 : *x > *y;
}

/* Whether row i is a point of the line of row `first`. */
static bool is_of(const dq_html *h, int i, int first, const char *task)
{
    return is_point(&h->row[i], task) &&
           strcmp(source_of(&h->row[i]), source_of(&h->row[first])) == 0;
}

/* True for the first point of its model. */
static bool starts(const dq_html *h, int i, const char *task)
{
    if (!is_point(&h->row[i], task)) return false;
    for (int k = 0; k < i; k++) {
        if (is_of(h, k, i, task)) return false;
    }
    return true;
}

static void line(dq_html *h, dq_picture *c, int first, int place, const char *task, double reach[2])
{
    int all = 0, n = 0;
    for (int i = first; i < h->n; i++) all += is_of(h, i, first, task);
    const dq_html_row **at = dq_alloc(h->a, (size_t)all, sizeof *at, h->p->err);
    double *v = dq_alloc(h->a, 4 * (size_t)all, sizeof *v, h->p->err);
    double *x = v, *y = v + all, *lo = v + 2 * all, *hi = v + 3 * all;
    if (!at || !v) return;
    for (int i = first; i < h->n; i++) {
        if (is_of(h, i, first, task)) at[n++] = &h->row[i];
    }
    qsort(at, (size_t)n, sizeof *at, by_bits);
    for (int i = 0; i < n; i++) {
        double se;
        x[i] = dq_html_weight_bits(at[i]);
        y[i] = dq_html_metric(at[i]->metrics, dq_html_main_metric(at[i]), &se);
        lo[i] = se > 0 ? y[i] - se : (double)NAN;
        hi[i] = se > 0 ? y[i] + se : (double)NAN;
        reach[0] = fmin(reach[0], se > 0 ? lo[i] : y[i]);
        reach[1] = fmax(reach[1], se > 0 ? hi[i] : y[i]);
    }
    dq_picture_line(c, (dq_picture_style){place, place, 0}, n, x, y, lo, hi);
}

static void picture(dq_html *h, const char *task)
{
    dq_picture c;
    double reach[2] = {(double)NAN, (double)NAN};
    int place = 0;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"bits per weight\"\nset ylabel \"score\"\n"
                       "set offsets graph 0.05, graph 0.05, graph 0.08, graph 0.08\n");
    for (int i = 0; i < h->n; i++) {
        if (starts(h, i, task)) line(h, &c, i, place++, task, reach);
    }
    dq_html_score_axis(&c, reach[0], reach[1]);
    dq_picture_end(&c, dq_html_words(h, "Score on %s over bits per weight.", task));
    dq_picture_legend_begin(h->p);
    place = 0;
    for (int i = 0; i < h->n; i++) {
        if (!starts(h, i, task)) continue;
        dq_picture_legend_item(h->p, (dq_picture_style){place, place, 0}, source_of(&h->row[i]));
        place++;
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, task);
    dq_html_page_html(h->p, ": the score (a fraction) over bits per weight, containers and what "
                            "they were made of. Bars are one standard error over the items.");
    dq_picture_figure_end(h->p);
}

void dq_html_weight_scores(dq_html *h)
{
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++) {
        if (dq_html_first_of_task(h, i) && has_line(h, h->row[i].task)) picture(h, h->row[i].task);
    }
    dq_html_page_html(h->p, "</div>\n");
}
