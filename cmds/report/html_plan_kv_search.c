/* html_plan_kv_search: how the widths of a plan of the KV cache were found: the mixes that were measured whole, and what each unit
 * loses where it alone is coded at a width.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_plan_cache.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 620, HIGH = 360, ORIGINS = 3 };

/* Where a mix comes from: as the document and the tables of dq plan call it. */
static const char *const origins[ORIGINS][2] = {
    {"units", "by units"}, {"uniform", "uniform"}, {"trade", "a step away"}};

static const char *origin_of(const json_t *trial)
{
    const char *from = dq_html_text(trial, "from");
    for (int k = 0; k < ORIGINS; k++) {
        if (strcmp(origins[k][0], from) == 0) return origins[k][1];
    }
    return from;
}

static bool is_taken(const json_t *trial)
{
    return json_is_true(json_object_get(trial, "taken"));
}

/* ----- the search ----- */

typedef struct points {
    double *x, *y;
    int n;
} points;

/* Mixes of one origin (NULL: those that were taken). */
static void collect(points *p, const json_t *trials, const char *from)
{
    const json_t *trial;
    size_t k;
    p->n = 0;
    json_array_foreach(trials, k, trial)
    {
        const double y = dq_html_real(trial, "kld_nats");
        const bool its = from ? strcmp(dq_html_text(trial, "from"), from) == 0 : is_taken(trial);
        if (!its || !(y > 0)) continue; /* 0 has no place on a logarithmic axis */
        p->x[p->n] = dq_html_real(trial, "mean_bits");
        p->y[p->n++] = y;
    }
}

static dq_picture_style style_of(int i, int origin)
{
    return (dq_picture_style){i, origin, 0};
}

static void draw_trials(dq_html *h, dq_picture *c, int i, bool taken)
{
    const json_t *trials = dq_html_member(h, i, "trials");
    const size_t n = json_array_size(trials);
    points p = {dq_alloc(h->a, n, sizeof *p.x, h->p->err),
                dq_alloc(h->a, n, sizeof *p.y, h->p->err), 0};
    if (!p.x || !p.y) return;
    if (taken) {
        collect(&p, trials, NULL);
        dq_picture_rings(c, p.n, p.x, p.y);
        return;
    }
    for (int k = 0; k < ORIGINS; k++) {
        collect(&p, trials, origins[k][0]);
        if (k == 2)
            dq_picture_dots(c, style_of(i, k), p.n, p.x, p.y);
        else
            for (int at = 0; at < p.n; at++)
                dq_picture_line(c, style_of(i, k), 1, p.x + at, p.y + at, NULL, NULL);
    }
}

/* Least and most of the KLD of all mixes of a page's plans. */
static void reach_of(double reach[2], const dq_html *h)
{
    reach[0] = reach[1] = (double)NAN;
    for (int i = 0; i < h->n; i++) {
        const json_t *trial;
        size_t k;
        json_array_foreach(dq_html_member(h, i, "trials"), k, trial)
        {
            const double y = dq_html_real(trial, "kld_nats");
            if (!(y > 0)) continue;
            reach[0] = fmin(reach[0], y);
            reach[1] = fmax(reach[1], y);
        }
    }
}

static void search_picture(dq_html *h)
{
    dq_picture c;
    double reach[2];
    reach_of(reach, h);
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"bits of keys and values, without scales\"\n"
                       "set ylabel \"KL divergence, nats per id\"\n"
                       "set offsets graph 0.08, graph 0.08, 0, 0\n");
    dq_html_loss_axis(&c, reach[0], reach[1]);
    for (int i = 0; i < h->n; i++) draw_trials(h, &c, i, true);
    for (int i = 0; i < h->n; i++) draw_trials(h, &c, i, false);
    dq_picture_end(&c, "KL divergence over the mean of bits of the mixes that were measured whole. "
                       "The tables hold the numbers.");
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        for (int k = 0; k < ORIGINS; k++)
            dq_picture_legend_item(h->p, style_of(i, k),
                                   dq_html_words(h, "%s, %s", h->item[i].name, origins[k][1]));
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "Mixes of widths that were measured whole on the search windows. A ring: the "
                      "plan for a while; the last of them is the plan. Points have no "
                      "intervals: other windows decide.");
    dq_picture_figure_end(h->p);
}

/* The mixes of a plan: all, or those that were the plan for a while. */
static void trial_rows(dq_html *h, int i, bool all)
{
    const json_t *trial;
    size_t k;
    bool first = true;
    json_array_foreach(dq_html_member(h, i, "trials"), k, trial)
    {
        const double kld = dq_html_real(trial, "kld_nats");
        if (!all && !is_taken(trial)) continue;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, first ? h->item[i].name : "");
        dq_html_page_cellf(h->p, "%zu", k + 1);
        dq_html_page_cell(h->p, origin_of(trial));
        dq_html_page_cell(h->p, dq_html_text(trial, "widths"));
        dq_html_page_cellf(h->p, "%.4g", dq_html_real(trial, "mean_bits"));
        if (isfinite(kld))
            dq_html_page_cellf(h->p, "%.3g", kld);
        else
            dq_html_page_cellf(h->p, "–");
        if (all) dq_html_page_cell(h->p, is_taken(trial) ? "yes" : "");
        dq_html_page_html(h->p, "</tr>\n");
        first = false;
    }
}

void dq_html_plan_kv_search(dq_html *h)
{
    static const char *const titles[] = {"<plan", "mix", "<from",  "<widths",
                                         "bits",  "KLD", "<taken", NULL};
    static const char *const steps[] = {"<plan", "mix", "<from", "<widths", "bits", "KLD", NULL};
    search_picture(h);
    dq_html_page_table(h->p,
                       "The steps of the search: mixes that were the plan for a while, with their "
                       "place among those measured.",
                       steps);
    for (int i = 0; i < h->n; i++) trial_rows(h, i, false);
    dq_html_page_table_end(h->p);
    dq_html_page_fold(h->p, "All mixes that were measured whole", false);
    dq_html_page_table(h->p, "All mixes in the order in which they were measured.", titles);
    for (int i = 0; i < h->n; i++) trial_rows(h, i, true);
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

/* ----- units alone ----- */

/* Widths of the units of a plan, upwards, and between which powers of 10 their losses lie. */
typedef struct columns {
    double bits[DQ_HTML_PLAN_WIDTHS];
    int n;
    dq_html_shades shades;
} columns;

static void add_width(columns *s, double bits)
{
    int at = 0;
    while (at < s->n && s->bits[at] < bits) at++;
    if (s->n == DQ_HTML_PLAN_WIDTHS || (at < s->n && s->bits[at] == bits)) return;
    memmove(s->bits + at + 1, s->bits + at, (size_t)(s->n - at) * sizeof *s->bits);
    s->bits[at] = bits;
    s->n++;
}

static columns columns_of(const dq_html *h, int i)
{
    columns s = {.shades = DQ_HTML_NO_SHADES};
    const json_t *unit, *w;
    size_t u, k;
    json_array_foreach(dq_html_member(h, i, "units"), u, unit)
    {
        json_array_foreach(json_object_get(unit, "alone"), k, w)
        {
            add_width(&s, dq_html_real(w, "bits"));
            dq_html_shades_add(&s.shades, dq_html_metric(w, "kld_nats", NULL));
        }
    }
    return s;
}

/* "keys of layers 0 to 1, map 2", as the tables of dq plan say it. */
static const char *unit_name(dq_html *h, const json_t *unit)
{
    const json_t *layers = json_object_get(unit, "layers");
    const double first = dq_html_real_at(layers, 0), last = dq_html_real_at(layers, 1);
    const double map = dq_html_real(unit, "map");
    return dq_html_words(h, "%s of layer%s %g%s%s", dq_html_text(unit, "side"),
                         last > first ? "s" : "", first,
                         last > first ? dq_html_words(h, " to %g", last) : "",
                         isfinite(map) ? dq_html_words(h, ", map %g", map) : "");
}

static void unit_cell(dq_html *h, const json_t *unit, double bits, const columns *s)
{
    const json_t *w, *at = NULL;
    size_t k;
    json_array_foreach(json_object_get(unit, "alone"), k, w)
    {
        if (dq_html_real(w, "bits") == bits) at = w;
    }
    double se, x = dq_html_metric(at, "kld_nats", &se);
    dq_html_heat_cell(h, &s->shades, x, se, at && dq_html_real(unit, "bits") == bits, "");
}

static void heat_map(dq_html *h, int i)
{
    const columns s = columns_of(h, i);
    const json_t *unit;
    size_t u;
    dq_html_heat_begin(h, h->item[i].name, "Units alone", "unit \\ bits");
    for (int k = 0; k < s.n; k++) dq_html_page_html(h->p, "<th scope=\"col\">%g</th>", s.bits[k]);
    dq_html_heat_rows(h);
    json_array_foreach(dq_html_member(h, i, "units"), u, unit)
    {
        dq_html_page_html(h->p, "<tr><th scope=\"row\">");
        dq_html_page_text(h->p, unit_name(h, unit));
        dq_html_page_html(h->p, "</th>");
        for (int k = 0; k < s.n; k++) unit_cell(h, unit, s.bits[k], &s);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_heat_end(h);
}

void dq_html_plan_kv_units(dq_html *h)
{
    dq_html_page_html(
        h->p, "<p>KLD ± one standard error on the search windows where one unit is "
              "coded at a width and all others at 8 bits. Darker: more, by its "
              "logarithm. In bold: the width that the unit got, where it was measured alone.</p>\n"
              "<div class=\"maps\">\n");
    for (int i = 0; i < h->n; i++) heat_map(h, i);
    dq_html_page_html(h->p, "</div>\n");
}
