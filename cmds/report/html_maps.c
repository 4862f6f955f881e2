/* html_maps: what the attention maps of each layer look like.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290 };

static const json_t *layers_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].j, "layers");
}

static const json_t *mean_of(const json_t *layer)
{
    return json_object_get(json_object_get(layer, "attention"), "mean");
}

bool dq_html_has_maps(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_is_object(mean_of(json_array_get(layers_of(h, i), 0)))) return true;
    }
    return false;
}

static double near_zero(const json_t *mean)
{
    return dq_html_real(json_object_get(mean, "near_zero_keys"), "1e-03");
}

static double entropy(const json_t *mean)
{
    return dq_html_real_at(json_object_get(mean, "entropy_nats"), 0);
}

static void draw(dq_html *h, dq_picture *c, int i, double (*value)(const json_t *mean))
{
    const json_t *layer;
    const size_t n = json_array_size(layers_of(h, i));
    double *x = dq_alloc(h->a, n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, n, sizeof *y, h->p->err);
    size_t l;
    if (!x || !y) return;
    json_array_foreach(layers_of(h, i), l, layer)
    {
        x[l] = dq_html_real(layer, "layer");
        y[l] = value(mean_of(layer));
    }
    dq_picture_line(c, (dq_picture_style){i, i, i / 7}, (int)n, x, y, NULL, NULL);
}

/* A line over layers for each model; label and caption are dq's own words. */
static void picture(dq_html *h, const char *label, const char *caption,
                    double (*value)(const json_t *mean))
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set ylabel \"%s\"\nset yrange [0:*]\nset offsets 0,0,graph 0.05,0\n",
                   label);
    dq_html_layer_axis(&c, dq_html_last_layer(h));
    for (int i = 0; i < h->n; i++) draw(h, &c, i, value);
    dq_picture_end(&c, dq_html_words(h, "%s The table holds the numbers.", caption));
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++)
        dq_picture_legend_item(h->p, (dq_picture_style){i, i, i / 7}, h->item[i].name);
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "%s", caption);
    dq_picture_figure_end(h->p);
}

static void row(dq_html *h, const char *name, const json_t *layer)
{
    static const char *const shares[] = {"near_zero_keys", "skippable_pages"};
    static const char *const below[] = {"1e-03", "1e-02"};
    const json_t *mean = mean_of(layer), *e = json_object_get(mean, "entropy_nats"),
                 *sinks = json_object_get(mean, "sink_mass");
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, name);
    dq_html_count_cell(h, dq_html_real(layer, "layer"));
    dq_html_real_cell(h, dq_html_real(json_object_get(layer, "attention"), "lambda"));
    for (size_t k = 0; k < 2; k++) dq_html_real_cell(h, dq_html_real_at(e, k));
    for (size_t k = 0; k < 2; k++) dq_html_real_cell(h, dq_html_real_at(sinks, k));
    dq_html_real_cell(h, dq_html_real(mean, "total_variation"));
    dq_html_real_cell(h, dq_html_real(mean, "negative_mass"));
    for (int k = 0; k < 4; k++)
        dq_html_real_cell(h, dq_html_real(json_object_get(mean, shares[k / 2]), below[k % 2]));
    dq_html_page_html(h->p, "</tr>\n");
}

static void table(dq_html *h)
{
    static const char *const titles[] = {
        "<model",  "layer", "λ",           "entropy 1",   "entropy 2",    "sinks 1",      "sinks 2",
        "sum |D|", "D < 0", "keys < 1e-3", "keys < 1e-2", "pages < 1e-3", "pages < 1e-2", NULL};
    dq_html_page_table(
        h->p,
        "Means over rows and heads of each layer. Entropy in nats and mass on the first "
        "4 positions (sinks), of both maps; D = A1 − λA2 where there are two, else A1: "
        "the sum of its magnitudes, the sum of its negative entries, the share of keys "
        "with |D| below a threshold, and of pages of 64 keys whose sum is. λ where a "
        "layer has one.",
        titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *layer;
        size_t l;
        json_array_foreach(layers_of(h, i), l, layer)
        {
            if (json_is_object(mean_of(layer))) row(h, l ? "" : h->item[i].name, layer);
        }
    }
    dq_html_page_table_end(h->p);
}

void dq_html_maps(dq_html *h)
{
    if (dq_html_has_layers(h)) {
        dq_html_page_html(h->p, "<div class=\"pair\">\n");
        picture(h, "entropy, nats",
                "Entropy of a row of attention, mean over rows and heads of each layer; of the "
                "first map where there are two.",
                entropy);
        picture(h, "share of keys with |D| < 0.001",
                "Keys that a row gives less than 0.001 of attention: their share in each layer.",
                near_zero);
        dq_html_page_html(h->p, "</div>\n");
    }
    table(h);
}
