/* html_places: where the largest attention logits and hidden states stand.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

static const json_t *top_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].j, "top");
}

bool dq_html_has_places(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(top_of(h, i)) > 0) return true;
    }
    return false;
}

static void logit_cells(dq_html *h, const json_t *place)
{
    dq_html_count_cell(h, dq_html_real(place, "head"));
    dq_html_count_cell(h, dq_html_real(place, "map"));
    dq_html_count_cell(h, dq_html_real(place, "query"));
    dq_html_token_cell(h, place, "query_token", "query_id");
    dq_html_count_cell(h, dq_html_real(place, "key"));
    dq_html_token_cell(h, place, "key_token", "key_id");
}

static void state_cells(dq_html *h, const json_t *place)
{
    dq_html_count_cell(h, dq_html_real(place, "channel"));
    dq_html_count_cell(h, dq_html_real(place, "position"));
    dq_html_token_cell(h, place, "token", "id");
}

/* The two kinds of values, by their names in the document. */
static const struct values {
    const char *key, *summary, *caption, *titles[12];
    void (*cells)(dq_html *h, const json_t *place);
} values[] = {
    {"attention_logits",
     "The largest attention logits",
     "The largest attention logits, all layers together: query and key are positions in the "
     "sequence.",
     {"<model", "rank", "magnitude", "sequence", "layer", "head", "map", "query", "<token", "key",
      "<token", NULL},
     logit_cells},
    {"hidden_states",
     "The largest hidden states",
     "The largest hidden states, all layers together.",
     {"<model", "rank", "magnitude", "sequence", "layer", "channel", "position", "<token", NULL},
     state_cells},
};

static void table(dq_html *h, const struct values *v)
{
    dq_html_page_fold(h->p, v->summary, !json_array_size(dq_html_member(h, 0, "outliers")));
    dq_html_page_table(h->p, v->caption, v->titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *place;
        const char *name = h->item[i].name;
        size_t k;
        json_array_foreach(top_of(h, i), k, place)
        {
            if (strcmp(dq_html_text(place, "values"), v->key) != 0) continue;
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, name);
            dq_html_count_cell(h, dq_html_real(place, "rank"));
            dq_html_real_cell(h, dq_html_real(place, "magnitude"));
            dq_html_count_cell(h, dq_html_real(place, "sequence"));
            dq_html_count_cell(h, dq_html_real(place, "layer"));
            v->cells(h, place);
            dq_html_page_html(h->p, "</tr>\n");
            name = "";
        }
    }
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

void dq_html_places(dq_html *h)
{
    for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) table(h, &values[v]);
}
