/* html_heads: what every head of every layer does: a map of largest logits, of kinds, of how wide it looks and of what it parks.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_grid.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

static const json_t *layers_of(const dq_html *h, int i)
{
    return dq_html_member(h, i, "layers");
}

/* The heads of a layer with what their attention does. */
static const json_t *lookers_of(const json_t *layer)
{
    return json_object_get(json_object_get(layer, "attention"), "heads");
}

bool dq_html_has_heads(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(lookers_of(json_array_get(layers_of(h, i), 0)))) return true;
    }
    return false;
}

/* What a map shows: of query heads, or of output heads: a number for each map, one number, or the kind; or what rounding to 4 bits
 * per tensor does, of the list `key` of the forecast. */
typedef enum source { OF_LOGITS, OF_MAPS, OF_HEAD, OF_KIND, OF_FORECAST } source;

static const struct drawn {
    const char *what, *key, *caption;
    source from;
    dq_html_shading shades;
} drawn[] = {
    {"logits", "max", "the largest attention logit with an ordinary key", OF_LOGITS,
     DQ_HTML_BY_VALUE},
    {"kind", "kind",
     "what heads do: Retrieval, Sink, Local, Mixed (by where most of their attention goes)",
     OF_KIND, DQ_HTML_BY_KIND},
    {"support", "effective_support", "effective support: keys over which a row would be even",
     OF_MAPS, DQ_HTML_BY_LOGARITHM},
    {"sinks", "sink_mass", "attention on the first 4 positions, of 1", OF_MAPS, DQ_HTML_BY_SHARE},
    {"cancelled", "cancelled_mass", "what of the first map the subtraction takes away, of 1",
     OF_HEAD, DQ_HTML_BY_SHARE},
    {"error", "heads", "predicted error of a logit at 4 bits, per-tensor", OF_FORECAST,
     DQ_HTML_BY_VALUE},
    {"map-error", "outputs", "error of D at 4 bits, per-tensor: Frobenius norm over that of D",
     OF_FORECAST, DQ_HTML_BY_VALUE},
};

static void add(dq_html_grid *g, double layer, double head, double map, double value,
                const char *kind)
{
    g->at[g->n++] = (dq_html_grid_cell){layer, head, map, value, kind};
}

/* Cells of one head; two where its maps have a number each. */
static void add_head(dq_html_grid *g, const struct drawn *d, double layer, const json_t *head)
{
    const double k = dq_html_real(head, "head"), none = (double)NAN;
    const json_t *ordinary = json_object_get(head, "ordinary"),
                 *maps = json_object_get(head, d->key);
    if (d->from == OF_LOGITS) {
        add(g, layer, k, dq_html_real(head, "map"),
            dq_html_real(ordinary ? ordinary : head, d->key), "");
    } else if (d->from == OF_MAPS) {
        const bool two = isfinite(dq_html_real_at(maps, 1));
        add(g, layer, k, two ? 1 : none, dq_html_real_at(maps, 0), "");
        if (two) add(g, layer, k, 2, dq_html_real_at(maps, 1), "");
    } else {
        add(g, layer, k, none, dq_html_real(head, d->key), dq_html_text(head, d->key));
    }
}

static void add_forecast(dq_html_grid *g, const json_t *list)
{
    const json_t *head;
    size_t k;
    json_array_foreach(list, k, head)
    {
        const json_t *all = json_object_get(head, "error");
        if (!all) all = json_object_get(head, "map_error");
        add(g, dq_html_real(head, "layer"), dq_html_real(head, "head"), dq_html_real(head, "map"),
            dq_html_real(json_object_get(all, "4"), "per-tensor"), "");
    }
}

static bool says(const dq_html_grid *g)
{
    for (int i = 0; i < g->n; i++) {
        if (isfinite(g->at[i].value) || (g->shades == DQ_HTML_BY_KIND && *g->at[i].kind))
            return true;
    }
    return false;
}

static void map(dq_html *h, int i, const struct drawn *d)
{
    dq_html_grid g = {
        .what = d->what, .name = h->item[i].name, .caption = d->caption, .shades = d->shades};
    const json_t *layer, *head;
    const json_t *forecast = json_object_get(dq_html_member(h, i, "forecast"), d->key);
    size_t l, k, n = json_array_size(forecast);
    json_array_foreach(layers_of(h, i), l, layer) n +=
        2 * json_array_size(lookers_of(layer)) + json_array_size(json_object_get(layer, "heads"));
    g.at = dq_alloc(h->a, n, sizeof *g.at, h->p->err);
    if (!g.at) return;
    if (d->from == OF_FORECAST) add_forecast(&g, forecast);
    json_array_foreach(layers_of(h, i), l, layer)
    {
        if (d->from == OF_FORECAST) break;
        const json_t *heads =
            d->from == OF_LOGITS ? json_object_get(layer, "heads") : lookers_of(layer);
        json_array_foreach(heads, k, head) add_head(&g, d, dq_html_real(layer, "layer"), head);
    }
    if (says(&g)) dq_html_grid_show(h, &g);
}

void dq_html_heads(dq_html *h)
{
    dq_html_page_html(h->p, "<p>A row for each layer, a column for each head; of a differential "
                            "model, head/map. Darker: more.</p>\n");
    for (int i = 0; i < h->n; i++) {
        dq_html_page_html(h->p, "<div class=\"maps\">\n");
        for (size_t d = 0; d < sizeof drawn / sizeof drawn[0]; d++) map(h, i, &drawn[d]);
        dq_html_page_html(h->p, "</div>\n");
    }
}
