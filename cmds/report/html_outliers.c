/* html_outliers: the channels and heads that have the largest values, each once, by class of tokens.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

static const json_t *outliers_of(const dq_html *h, int i)
{
    return dq_html_member(h, i, "outliers");
}

bool dq_html_has_channels(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(outliers_of(h, i)) > 0) return true;
    }
    return false;
}

/* "11 to 29", and how many layers of these do not have it. */
static void layers_cell(dq_html *h, const json_t *x)
{
    const double first = dq_html_real(x, "first_layer"), last = dq_html_real(x, "last_layer"),
                 without = dq_html_real(x, "layers_between_without");
    const char *less = without > 0 ? dq_html_words(h, " less %.0f", without) : "";
    if (!isfinite(first) || !isfinite(last))
        dq_html_page_cellf(h->p, "–");
    else if (last > first)
        dq_html_page_cellf(h->p, "%.0f to %.0f%s", first, last, less);
    else
        dq_html_page_cellf(h->p, "%.0f", first);
}

static void channel_row(dq_html *h, const char *model, const char *kind, const json_t *x)
{
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, model);
    if (kind) dq_html_page_cell(h->p, kind);
    dq_html_page_cell(h->p, dq_html_text(x, "tokens"));
    dq_html_count_cell(h, dq_html_real(x, "channel"));
    layers_cell(h, x);
    dq_html_real_cell(h, dq_html_real(x, "magnitude_before"));
    dq_html_real_cell(h, dq_html_real(x, "magnitude"));
    dq_html_count_cell(h, dq_html_real(x, "layer"));
    dq_html_real_cell(h, dq_html_real(x, "rms"));
    dq_html_real_cell(h, dq_html_real(x, "over_median"));
    dq_html_count_cell(h, dq_html_real(x, "sequence"));
    dq_html_count_cell(h, dq_html_real(x, "position"));
    dq_html_token_cell(h, x, "token", "id");
    dq_html_page_html(h->p, "</tr>\n");
}

static void head_row(dq_html *h, const char *model, const json_t *x)
{
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, model);
    dq_html_page_cell(h->p, dq_html_text(x, "tokens"));
    dq_html_count_cell(h, dq_html_real(x, "layer"));
    dq_html_count_cell(h, dq_html_real(x, "head"));
    dq_html_count_cell(h, dq_html_real(x, "map"));
    dq_html_real_cell(h, dq_html_real(x, "magnitude"));
    dq_html_real_cell(h, dq_html_real(x, "rms"));
    dq_html_real_cell(h, dq_html_real(x, "over_median"));
    dq_html_count_cell(h, dq_html_real(x, "query"));
    dq_html_token_cell(h, x, "query_token", "query_id");
    dq_html_count_cell(h, dq_html_real(x, "key"));
    dq_html_token_cell(h, x, "key_token", "key_id");
    dq_html_page_html(h->p, "</tr>\n");
}

typedef enum table { HEADS, STREAM, OTHERS } table;

static bool is_in(const json_t *x, table t)
{
    const char *values = dq_html_text(x, "values");
    if (strcmp(values, "attention_logits") == 0) return t == HEADS;
    return strcmp(values, "hidden_states") == 0 ? t == STREAM : t == OTHERS;
}

static void rows(dq_html *h, table t)
{
    for (int i = 0; i < h->n; i++) {
        const char *model = h->item[i].name;
        const json_t *x;
        size_t k;
        json_array_foreach(outliers_of(h, i), k, x)
        {
            if (!is_in(x, t)) continue;
            if (t == HEADS)
                head_row(h, model, x);
            else
                channel_row(h, model, t == OTHERS ? dq_html_text(x, "values") : NULL, x);
            model = "";
        }
    }
}

void dq_html_channels(dq_html *h)
{
    static const char *const channels[] = {
        "<model",  "<tokens",  "channel",  "layers",   "before", "largest", "in layer",
        "its rms", "/ median", "sequence", "position", "<token", NULL};
    static const char *const others[] = {"<model",   "<values",  "<tokens",  "channel", "layers",
                                         "before",   "largest",  "in layer", "its rms", "/ median",
                                         "sequence", "position", "<token",   NULL};
    static const char *const heads[] = {"<model",  "<keys",   "layer",    "head",  "map",
                                        "largest", "its rms", "/ median", "query", "<token",
                                        "key",     "<token",  NULL};
    dq_html_page_table(h->p,
                       "Channels of the hidden states, each once: the layers where it comes to a "
                       "tenth of its largest magnitude, its magnitude in the layer before these, "
                       "its root mean square in the layer of the largest, and the largest over "
                       "the median of ordinary tokens there.",
                       channels);
    rows(h, STREAM);
    dq_html_page_table_end(h->p);
    dq_html_page_table(h->p,
                       "Heads with the largest attention logits, by what the key is; query and key "
                       "are positions in the sequence.",
                       heads);
    rows(h, HEADS);
    dq_html_page_table_end(h->p);
    dq_html_page_table(h->p,
                       "Channels of other values; those of queries, keys, values and the inputs of "
                       "o and down mean something else in every layer.",
                       others);
    rows(h, OTHERS);
    dq_html_page_table_end(h->p);
}
