/* html_profiles: magnitudes over layers, a small picture for each kind of values, with first tokens and sinks and without.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

enum { WIDE = 340, HIGH = 230, KINDS = 9 };

static const struct {
    const char *key, *name;
} kinds[KINDS] = {{"attention_logits", "Attention logits"},
                  {"hidden_states", "Hidden states"},
                  {"queries", "Queries"},
                  {"keys", "Keys"},
                  {"values", "Values"},
                  {"qkv_input", "Input of q k v"},
                  {"o_input", "Input of o"},
                  {"gate_up_input", "Input of gate up"},
                  {"down_input", "Input of down"}};

static const json_t *layers_of(const dq_html *h, int i)
{
    return dq_html_member(h, i, "layers");
}

bool dq_html_has_profiles(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        const json_t *states = json_object_get(json_array_get(layers_of(h, i), 1), kinds[1].key);
        if (json_is_object(json_object_get(states, "ordinary"))) return true;
    }
    return false;
}

/* One line: a number of each layer, of all tokens or of ordinary ones. */
static void line(dq_html *h, dq_picture *c, int i, int kind, bool ordinary, const char *key,
                 int dash)
{
    const size_t n = json_array_size(layers_of(h, i));
    double *x = dq_alloc(h->a, n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, n, sizeof *y, h->p->err);
    const json_t *layer;
    size_t l;
    if (!x || !y) return;
    json_array_foreach(layers_of(h, i), l, layer)
    {
        const json_t *all = json_object_get(layer, kinds[kind].key);
        const double v = dq_html_real(ordinary ? json_object_get(all, "ordinary") : all, key);
        x[l] = dq_html_real(layer, "layer");
        y[l] = v > 0 ? v : (double)NAN;
    }
    dq_picture_line(c, (dq_picture_style){i, i, dash}, (int)n, x, y, NULL, NULL);
}

static bool has_kind(const dq_html *h, int kind)
{
    for (int i = 0; i < h->n; i++) {
        if (json_object_get(json_array_get(layers_of(h, i), 0), kinds[kind].key)) return true;
    }
    return false;
}

static void picture(dq_html *h, int kind)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set logscale y\nset format y \"%%g\"\nset pointsize 0.6\n");
    dq_html_layer_axis(&c, dq_html_last_layer(h));
    for (int i = 0; i < h->n; i++) {
        line(h, &c, i, kind, false, "top1", 1);
        line(h, &c, i, kind, true, "top1", 0);
        line(h, &c, i, kind, true, "rms", 2);
    }
    dq_picture_end(&c, dq_html_words(h,
                                     "%s over layers: the largest of all tokens and of "
                                     "ordinary ones, and the root mean square of these.",
                                     kinds[kind].name));
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "%s.", kinds[kind].name);
    dq_picture_figure_end(h->p);
}

static void pooled_row(dq_html *h, int i, int kind, const char *name)
{
    const json_t *x =
        json_object_get(dq_html_member(h, i, kind < 2 ? "table5" : "values"), kinds[kind].key);
    const json_t *o = json_object_get(x, "ordinary");
    static const char *const keys[] = {"top1", "p99_9", "rms", "crest", "kurtosis0"};
    if (!json_is_object(x)) return;
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, name);
    dq_html_page_cell(h->p, kinds[kind].name);
    for (int k = 0; k < 5; k++) dq_html_real_cell(h, dq_html_real(x, keys[k]));
    for (int k = 0; k < 5; k++) dq_html_real_cell(h, dq_html_real(o, keys[k]));
    dq_html_page_html(h->p, "</tr>\n");
}

static void table(dq_html *h)
{
    static const char *const titles[] = {
        "<model",       "<values", "largest", "p99.9",   "rms",      "max/rms", "kurtosis",
        "ord. largest", "p99.9",   "rms",     "max/rms", "kurtosis", NULL};
    dq_html_page_table(h->p,
                       "All layers together, of all tokens and of ordinary ones (ord.); the "
                       "kurtosis is taken around 0.",
                       titles);
    for (int i = 0; i < h->n; i++)
        for (int k = 0; k < KINDS; k++) pooled_row(h, i, k, k ? "" : h->item[i].name);
    dq_html_page_table_end(h->p);
}

void dq_html_profiles(dq_html *h)
{
    dq_html_page_html(
        h->p, "<p>Solid: the largest magnitude of ordinary tokens. Dashed: of all tokens. Dotted: "
              "the root mean square of ordinary ones. Where dashed lies above solid, the first "
              "token of a sequence or an attention sink has the largest value.</p>\n");
    if (h->n > 1) {
        dq_picture_legend_begin(h->p);
        for (int i = 0; i < h->n; i++)
            dq_picture_legend_item(h->p, (dq_picture_style){i, i, 0}, h->item[i].name);
        dq_picture_legend_end(h->p);
    }
    dq_html_page_html(h->p, "<div class=\"multiples\">\n");
    for (int k = 0; k < KINDS; k++) {
        if (has_kind(h, k)) picture(h, k);
    }
    dq_html_page_html(h->p, "</div>\n");
    table(h);
}
