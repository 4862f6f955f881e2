/* html_sensitivity: see html_sensitivity.h. Bars of the units that cost most, a map of heads, and forecast beside measured.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sensitivity.h"
#include "cmds/report/html_grid.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 460, HIGH = 300, KINDS = 16, SHOWN = 15 };

/* ----- units ----- */

const json_t *dq_html_sensitivity_of(const dq_html *h, int i)
{
    const json_t *s = dq_html_member(h, i, "sensitivity");
    return json_array_size(json_object_get(s, "units")) ? s : NULL;
}

static bool same_kind(const json_t *a, const json_t *b)
{
    return strcmp(dq_html_text(a, "of"), dq_html_text(b, "of")) == 0 &&
           strcmp(dq_html_text(a, "by"), dq_html_text(b, "by")) == 0;
}

/* The first unit of the k-th kind; NULL: there are fewer. */
static const json_t *first_of_kind(const json_t *units, int k)
{
    const json_t *seen[KINDS], *x;
    int n = 0;
    size_t u;
    json_array_foreach(units, u, x)
    {
        bool known = n == KINDS;
        for (int i = 0; i < n; i++) known = known || same_kind(seen[i], x);
        if (known) continue;
        if (n == k) return x;
        seen[n++] = x;
    }
    return NULL;
}

const char *dq_html_unit_name(dq_html *h, const json_t *unit)
{
    static const char *const keys[] = {"layer", "head", "map"};
    const char *name = dq_html_text(unit, "tensor");
    if (*name) return name;
    for (int i = 0; i < 3; i++) {
        const double x = dq_html_real(unit, keys[i]);
        if (isfinite(x)) name = dq_html_words(h, "%s%s%s %.0f", name, *name ? " " : "", keys[i], x);
    }
    return *name ? name : "–";
}

static int by_kld(const void *a, const void *b)
{
    const dq_html_unit *x = a, *y = b;
    if (x->kld > y->kld) return -1;
    if (x->kld < y->kld) return 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

dq_html_units dq_html_units_of(dq_html *h, int i, int k)
{
    const json_t *all = json_object_get(dq_html_sensitivity_of(h, i), "units"), *x;
    const json_t *first = first_of_kind(all, k);
    dq_html_units u = {NULL, 0};
    size_t at;
    if (!first) return u;
    u.at = dq_alloc(h->a, json_array_size(all), sizeof *u.at, h->p->err);
    json_array_foreach(all, at, x)
    {
        const json_t *kld = json_object_get(x, "kld_nats"),
                     *ends = json_object_get(kld, "interval");
        if (!u.at || !same_kind(first, x) || !isfinite(dq_html_real(kld, "value"))) continue;
        u.at[u.n++] = (dq_html_unit){x,
                                     at,
                                     dq_html_text(x, "of"),
                                     dq_html_text(x, "by"),
                                     dq_html_unit_name(h, x),
                                     dq_html_real(kld, "value"),
                                     dq_html_real_at(ends, 0),
                                     dq_html_real_at(ends, 1),
                                     dq_html_real(x, "local_error"),
                                     dq_html_real(x, "logit_error")};
    }
    if (u.n) qsort(u.at, (size_t)u.n, sizeof *u.at, by_kld);
    return u;
}

const json_t *dq_html_units_decided(const dq_html *h, int i, const dq_html_units *u)
{
    const json_t *x;
    size_t k;
    json_array_foreach(json_object_get(dq_html_sensitivity_of(h, i), "first"), k, x)
    {
        if (same_kind(json_object_get(x, "first"), u->at[0].j)) return x;
    }
    return NULL;
}

/* ----- bars ----- */

static double in_range(double share)
{
    return fmin(100, fmax(0, 100 * share));
}

static void bar_row(dq_html *h, const dq_html_unit *u, double most)
{
    const bool ends = isfinite(u->low) && isfinite(u->high);
    const double from = ends ? in_range(u->low / most) : 0,
                 to = ends ? in_range(u->high / most) : 0;
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, u->name);
    dq_html_page_html(h->p,
                      "<td><div class=\"bar\" aria-hidden=\"true\"><i style=\"width:%.2f%%\"></i>"
                      "<b style=\"left:%.2f%%;width:%.2f%%\"></b></div></td>",
                      in_range(u->kld / most), from, to - from);
    dq_html_real_cell(h, u->kld);
    dq_html_ends_cell(h, u->low, u->high);
    dq_html_real_cell(h, u->local);
    dq_html_real_cell(h, u->logits);
    dq_html_page_html(h->p, "</tr>\n");
}

static void bars(dq_html *h, int i, const dq_html_units *u)
{
    static const char *const titles[] = {"<unit",       "<KLD, from 0", "KLD", "95 % interval",
                                         "local error", "logit error",  NULL};
    const int n = u->n < SHOWN ? u->n : SHOWN;
    double most = 1e-300;
    for (int k = 0; k < n; k++) most = fmax(most, fmax(u->at[k].kld, u->at[k].high));
    dq_html_page_heading(h->p);
    dq_html_page_text(h->p,
                      dq_html_words(h, "%s: %s by %s", h->item[i].name, u->at[0].of, u->at[0].by));
    dq_html_page_heading_end(h->p);
    dq_html_page_table(h->p,
                       dq_html_words(h,
                                     "The %d of %d units that cost most, each rounded alone: KL "
                                     "divergence, nats per token. Thin bars are intervals of 95 "
                                     "%%; where they overlap, the order is inconclusive. Two "
                                     "forecasts: what the change does to the residual stream after "
                                     "the layer, and the predicted error of a logit.",
                                     n, u->n),
                       titles);
    for (int k = 0; k < n; k++) bar_row(h, &u->at[k], most);
    dq_html_page_table_end(h->p);
}

/* ----- a map of heads ----- */

static const char *map_key(const json_t *unit)
{
    return isfinite(dq_html_real(unit, "map")) ? "map" : "";
}

static void heads(dq_html *h, int i, const dq_html_units *u)
{
    dq_html_grid g = {.name = h->item[i].name, .n = 0};
    const char *by = u->at[0].by;
    if (strcmp(by, "head") != 0 && strcmp(by, "map") != 0) return;
    g.what = "sensitivity";
    g.caption = dq_html_words(h, "KLD with the %s of one head%s rounded, thousandths of a nat",
                              strcmp(u->at[0].of, "logits") == 0 ? "logits" : "cache",
                              strcmp(by, "map") == 0 ? " and map" : "");
    g.at = dq_alloc(h->a, (size_t)u->n, sizeof *g.at, h->p->err);
    for (int k = 0; g.at && k < u->n; k++) {
        const json_t *j = u->at[k].j;
        g.at[g.n++] = (dq_html_grid_cell){dq_html_real(j, "layer"), dq_html_real(j, "head"),
                                          dq_html_real(j, map_key(j)), 1000 * u->at[k].kld, ""};
    }
    g.shades = DQ_HTML_BY_LOGARITHM;
    dq_html_page_html(h->p, "<div class=\"maps\">\n");
    dq_html_grid_show(h, &g);
    dq_html_page_html(h->p, "</div>\n");
}

/* ----- forecast beside measured ----- */

static const struct forecast {
    const char *key, *name;
} forecasts[] = {{"local_error", "local error"}, {"logit_error", "logit error"}};

static const json_t *correlation_of(const dq_html *h, int i, const dq_html_units *u, int forecast)
{
    const json_t *x;
    size_t k;
    json_array_foreach(json_object_get(dq_html_sensitivity_of(h, i), "correlation"), k, x)
    {
        if (same_kind(x, u->at[0].j) &&
            strcmp(dq_html_text(x, "forecast"), forecasts[forecast].key) == 0)
            return x;
    }
    return NULL;
}

static void scatter(dq_html *h, int i, const dq_html_units *u, int forecast)
{
    const json_t *r = correlation_of(h, i, u, forecast), *ends = json_object_get(r, "interval");
    const double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1);
    double *x = dq_alloc(h->a, (size_t)u->n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, (size_t)u->n, sizeof *y, h->p->err);
    dq_picture c;
    int n = 0;
    if (!x || !y) return;
    for (int k = 0; k < u->n; k++) {
        const double of = forecast ? u->at[k].logits : u->at[k].local;
        if (!(of > 0 && u->at[k].kld > 0)) continue;
        x[n] = of;
        y[n++] = u->at[k].kld;
    }
    if (n < 3) return;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c,
                   "set logscale xy\nset format x \"10^{%%T}\"\nset format y \"10^{%%T}\"\n"
                   "set xlabel \"forecast: %s\"\nset ylabel \"KL divergence, nats per token\"\n",
                   forecasts[forecast].name);
    dq_picture_marks(&c, (dq_picture_style){0, 0, 0}, n, x, y);
    dq_picture_end(&c, "KL divergence of each unit over what was forecast of it.");
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p,
                      dq_html_words(h, "%s, %s by %s", h->item[i].name, u->at[0].of, u->at[0].by));
    dq_html_page_html(h->p, ": measured over its %s, %d of %d units (those above 0).",
                      forecasts[forecast].name, n, u->n);
    if (isfinite(low) && isfinite(high) && isfinite(dq_html_real(r, "spearman")))
        dq_html_page_html(h->p, " Rank correlation %.2f (%.2f to %.2f).",
                          dq_html_real(r, "spearman"), low, high);
    dq_picture_figure_end(h->p);
}

static void correlations(dq_html *h)
{
    static const char *const titles[] = {
        "<model", "<of", "<by", "<forecast", "units", "Spearman", "95 % interval", "itself", NULL};
    dq_html_page_table(h->p,
                       "Rank correlation of forecast and measured KL divergence; itself: of the KL "
                       "divergence on one half of the windows with that on the other.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *x, *ends;
        size_t k;
        json_array_foreach(json_object_get(dq_html_sensitivity_of(h, i), "correlation"), k, x)
        {
            ends = json_object_get(x, "interval");
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, h->item[i].name);
            dq_html_page_cell(h->p, dq_html_text(x, "of"));
            dq_html_page_cell(h->p, dq_html_text(x, "by"));
            dq_html_page_cell(h->p, strcmp(dq_html_text(x, "forecast"), forecasts[1].key) == 0
                                        ? forecasts[1].name
                                        : forecasts[0].name);
            dq_html_count_cell(h, dq_html_real(x, "n"));
            dq_html_real_cell(h, dq_html_real(x, "spearman"));
            dq_html_ends_cell(h, dq_html_real_at(ends, 0), dq_html_real_at(ends, 1));
            dq_html_real_cell(h, dq_html_real(x, "repeat"));
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    dq_html_page_table_end(h->p);
}

bool dq_html_has_sensitivity(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (dq_html_sensitivity_of(h, i)) return true;
    }
    return false;
}

void dq_html_sensitivity(dq_html *h)
{
    dq_html_units u;
    for (int i = 0; i < h->n; i++) {
        const json_t *s = dq_html_sensitivity_of(h, i);
        if (!s) continue;
        dq_html_page_html(h->p, "<p>");
        dq_html_page_text(h->p, h->item[i].name);
        dq_html_page_html(h->p,
                          ": one unit rounded to %.0f bits, all else as it was; KL divergence of "
                          "%.0f tokens, error between %.0f windows.</p>\n",
                          dq_html_real(s, "bits"), dq_html_real(s, "scored"),
                          dq_html_real(s, "clusters"));
        for (int k = 0; (u = dq_html_units_of(h, i, k)).n; k++) {
            bars(h, i, &u);
            heads(h, i, &u);
        }
    }
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++)
        for (int k = 0; (u = dq_html_units_of(h, i, k)).n; k++) {
            for (int f = 0; f < 2; f++) scatter(h, i, &u, f);
        }
    dq_html_page_html(h->p, "</div>\n");
    correlations(h);
}
