/* html_stats: outliers of several models side by side: pooled (Table 5 of arXiv 2410.05258) and by layer.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290, VALUES = 2, RANKS = 6 };

static const char *const values[VALUES] = {"attention_logits", "hidden_states"};
static const char *const value_names[VALUES] = {"attention logits", "hidden states"};
static const char *const ranks[RANKS] = {"top1", "top2", "top3", "top10", "top100", "median"};

/* ----- reading ----- */

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
#define VALUES_AT(path)                                                                            \
    {path, "n", DQ_NEED_NUMBER},                                                                   \
    {                                                                                              \
        path, "top1 top2 top3 top10 top100 median rms kurtosis0", DQ_NEED_NUMBER_OR_NULL           \
    }
    static const dq_html_members members[] = {
        {"", "model", DQ_NEED_TEXT},
        {"", "table5", DQ_NEED_OBJECT},
        {"table5", "attention_logits hidden_states", DQ_NEED_OBJECT},
        VALUES_AT("table5.attention_logits"),
        VALUES_AT("table5.hidden_states"),
        {"", "layers", DQ_NEED_LIST},
        {"layers[]", "layer", DQ_NEED_NUMBER},
        {0}};
    static const dq_html_members of_layers[] = {
        {"layers[]", "attention_logits hidden_states", DQ_NEED_OBJECT},
        VALUES_AT("layers[].attention_logits"),
        VALUES_AT("layers[].hidden_states"),
        {0}};
    const json_t *layer;
    size_t i;
    DQ_TRY(dq_html_check_members(result, where, members, err));
    json_array_foreach(json_object_get(result, "layers"), i, layer)
    {
        const double number = dq_html_real(layer, "layer");
        if (!(number >= 0 && number < 100000))
            return dq_fail(err, DQ_DAMAGED,
                           "%s.layers[%zu]: \"layer\" is %g (expected a number from 0 up)", where,
                           i, number);
    }
    return dq_html_check_members(result, where, of_layers, err);
}

/* What was measured: texts and ids, which have no fingerprint as models have. */
static json_t *data_of(const json_t *document)
{
    const json_t *x;
    size_t i;
    json_t *data = json_array();
    json_array_foreach(json_object_get(document, "inputs"), i, x)
    {
        if (!json_object_get(x, "fingerprint")) json_array_append_new(data, json_deep_copy(x));
    }
    return data;
}

/* Adds the names of settings with another value in b than in a, but for those that change no number. */
static void add_differences(json_t *names, json_t *a, const json_t *b)
{
    static const char *const idle[] = {"threads", "device", "places"};
    const char *key;
    json_t *v;
    json_object_foreach(a, key, v)
    {
        bool same = json_equal(v, json_object_get(b, key));
        for (int i = 0; i < 3; i++) same = same || strcmp(key, idle[i]) == 0;
        if (!same) json_object_set_new(names, key, json_true());
    }
}

static void find_differences(dq_html *h)
{
    json_t *names = json_object(), *first = data_of(h->document), *v;
    json_t *settings = json_object_get(h->document, "settings");
    const char *key;
    for (int i = 1; i < h->n_in; i++) {
        json_t *other = data_of(h->in[i].document);
        if (!json_equal(first, other)) json_object_set_new(names, "the text", json_true());
        json_decref(other);
        other = json_object_get(h->in[i].document, "settings");
        add_differences(names, settings, other);
        add_differences(names, other, settings);
    }
    dq_strbuf list = {0};
    json_object_foreach(names, key, v) dq_html_list_add(h, &list, key);
    h->differ = dq_html_list_end(h, &list);
    json_decref(first);
    json_decref(names);
}

dq_status dq_html_stats_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "model", check_result, err));
    find_differences(h);
    h->about = "Attention logits are scaled, before the softmax, of the entries that a query sees, "
               "all heads and both maps; hidden states are the outputs of every layer. Largest "
               "values and counts are exact; a median with ± is the middle of a bin of a "
               "histogram, and at most that far off.";
    return err->code;
}

bool dq_html_has_items(const dq_html *h)
{
    return h->n > 0;
}

/* ----- pooled ----- */

static dq_picture_style style_of(int i)
{
    return (dq_picture_style){i, i, i / 7};
}

static void legend(dq_html *h)
{
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) dq_picture_legend_item(h->p, style_of(i), h->item[i].name);
    dq_picture_legend_end(h->p);
}

static const json_t *pooled(const dq_html *h, int i, int v)
{
    return json_object_get(json_object_get(h->item[i].j, "table5"), values[v]);
}

/* What a logarithmic axis can show. */
static double shown(double x)
{
    return x > 0 ? x : (double)NAN;
}

static void magnitude_picture(dq_html *h, int v)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set logscale y\nset ylabel \"magnitude\"\nset xlabel \"k-th largest\"\n"
                       "set xrange [-0.35:5.35]\nset xtics (\"1\" 0, \"2\" 1, \"3\" 2, \"10\" 3, "
                       "\"100\" 4, \"median\" 5)\n");
    for (int i = 0; i < h->n; i++) {
        double x[RANKS], y[RANKS];
        for (int k = 0; k < RANKS; k++) {
            x[k] = k;
            y[k] = shown(dq_html_real(pooled(h, i, v), ranks[k]));
        }
        dq_picture_line(&c, style_of(i), RANKS - 1, x, y, NULL, NULL);
        dq_picture_line(&c, style_of(i), 1, x + RANKS - 1, y + RANKS - 1, NULL, NULL);
    }
    dq_picture_end(&c, dq_html_words(h,
                                     "The largest magnitudes of the %s of each model, and the "
                                     "median. The table holds the numbers.",
                                     value_names[v]));
    legend(h);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "%c%s: the largest magnitudes and the median, all layers together.",
                      value_names[v][0] - 'a' + 'A', value_names[v] + 1);
    dq_picture_figure_end(h->p);
}

/* "0.774", or "0.774 ± 0.002" where one pass over the data gave a bound. */
static void median_cell(dq_html *h, const json_t *x)
{
    dq_html_page_value(h->p, dq_html_real(x, "median"), dq_html_real(x, "median_bound"));
}

static void magnitude_table(dq_html *h, int v)
{
    static const char *const titles[] = {
        "<model", "bits per weight", "file bytes", "1st",          "2nd",        "3rd", "10th",
        "100th",  "median",          "n",          "1st / median", "not finite", NULL};
    dq_html_page_table(h->p,
                       dq_html_words(h, "Largest magnitudes of the %s, all layers%s together.",
                                     value_names[v], v == 0 ? ", heads and maps" : ""),
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *x = pooled(h, i, v);
        const double median = dq_html_real(x, "median");
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->item[i].name);
        dq_html_size_cells(h, h->item[i].j);
        for (int k = 0; k < RANKS - 1; k++) dq_html_real_cell(h, dq_html_real(x, ranks[k]));
        median_cell(h, x);
        dq_html_count_cell(h, dq_html_real(x, "n"));
        dq_html_real_cell(h, median > 0 ? dq_html_real(x, "top1") / median : (double)NAN);
        dq_html_count_cell(h, dq_html_real(x, "n_not_finite"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

void dq_html_magnitudes(dq_html *h)
{
    if (*h->differ) {
        dq_html_page_html(h->p, "<div class=\"warn\" role=\"note\"><p>These documents differ in: ");
        dq_html_page_text(h->p, h->differ);
        dq_html_page_html(h->p,
                          ". Numbers of different files are no comparison of models.</p></div>\n");
    }
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int v = 0; v < VALUES; v++) magnitude_picture(h, v);
    dq_html_page_html(h->p, "</div>\n");
    for (int v = 0; v < VALUES; v++) magnitude_table(h, v);
}

/* ----- by layer ----- */

static const json_t *layers_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].j, "layers");
}

bool dq_html_has_layers(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(layers_of(h, i)) > 1) return true;
    }
    return false;
}

double dq_html_last_layer(const dq_html *h)
{
    double last = 0;
    for (int i = 0; i < h->n; i++) {
        const json_t *layer;
        size_t l;
        json_array_foreach(layers_of(h, i), l, layer) last =
            fmax(last, dq_html_real(layer, "layer"));
    }
    return last;
}

static void layer_line(dq_html *h, dq_picture *c, int i, int v, const char *key,
                       dq_picture_style style)
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
        y[l] = shown(dq_html_real(json_object_get(layer, values[v]), key));
    }
    dq_picture_line(c, style, (int)n, x, y, NULL, NULL);
}

static void layer_picture(dq_html *h, int v)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set logscale y\nset ylabel \"magnitude\"\n");
    dq_html_layer_axis(&c, dq_html_last_layer(h));
    for (int i = 0; i < h->n; i++) {
        const dq_picture_style solid = style_of(i);
        layer_line(h, &c, i, v, "top1", (dq_picture_style){solid.colour, solid.mark, 0});
        layer_line(h, &c, i, v, "median", (dq_picture_style){solid.colour, solid.mark, 2});
    }
    dq_picture_end(&c, dq_html_words(h,
                                     "The largest magnitude and the median of the %s of each "
                                     "layer. The tables below hold the numbers.",
                                     value_names[v]));
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++)
        dq_picture_legend_item(h->p, (dq_picture_style){i, i, 0}, h->item[i].name);
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "%c%s by layer: the largest magnitude (solid) and the median (dotted).",
                      value_names[v][0] - 'a' + 'A', value_names[v] + 1);
    dq_picture_figure_end(h->p);
}

static void layer_row(dq_html *h, const char *name, const json_t *layer, const json_t *x)
{
    const double rms = dq_html_real(x, "rms"), top = dq_html_real(x, "top1");
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, name);
    dq_html_count_cell(h, dq_html_real(layer, "layer"));
    dq_html_real_cell(h, top);
    dq_html_real_cell(h, dq_html_real(x, "top10"));
    median_cell(h, x);
    dq_html_real_cell(h, rms);
    dq_html_real_cell(h, rms > 0 ? top / rms : (double)NAN);
    dq_html_real_cell(h, dq_html_real(x, "kurtosis0"));
    dq_html_page_html(h->p, "</tr>\n");
}

static void layer_table(dq_html *h, int v)
{
    static const char *const titles[] = {"<model", "layer",     "1st",      "10th", "median",
                                         "rms",    "1st / rms", "kurtosis", NULL};
    dq_html_page_fold(
        h->p,
        dq_html_words(h, "%c%s, layer by layer", value_names[v][0] - 'a' + 'A', value_names[v] + 1),
        false);
    dq_html_page_table(
        h->p,
        dq_html_words(h, "Magnitudes of the %s by layer; the kurtosis is taken around 0.",
                      value_names[v]),
        titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *layer;
        size_t l;
        json_array_foreach(layers_of(h, i), l, layer)
            layer_row(h, l ? "" : h->item[i].name, layer, json_object_get(layer, values[v]));
    }
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

void dq_html_layers(dq_html *h)
{
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int v = 0; v < VALUES; v++) layer_picture(h, v);
    dq_html_page_html(h->p, "</div>\n");
    for (int v = 0; v < VALUES; v++) layer_table(h, v);
}
