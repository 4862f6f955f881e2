/* html_generation: answers that were generated, and what ended them.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>

/* "stop_id 3, max_new 2": how often answers ended for which reason. */
static void ends_cell(dq_html *h, json_t *ends)
{
    const char *key, *sep = "";
    json_t *v;
    dq_html_page_html(h->p, "<td class=\"l\">");
    json_object_foreach(ends, key, v)
    {
        if (json_integer_value(v) == 0) continue;
        dq_html_page_html(h->p, "%s", sep);
        dq_html_page_text(h->p, key);
        dq_html_page_html(h->p, " %lld", (long long)json_integer_value(v));
        sep = ", ";
    }
    dq_html_page_html(h->p, "%s</td>", *sep ? "" : "–");
}

bool dq_html_has_generation(const dq_html *h)
{
    return dq_html_any(h, "generation");
}

void dq_html_generation(dq_html *h)
{
    static const char *const titles[] = {"<row",        "<task",        "items",
                                         "exact match", "strict match", "finished",
                                         "new tokens",  "<ended by",    NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *g = json_object_get(r->j, "generation");
        double se, x = dq_html_metric(r->metrics, "exact_match", &se);
        if (!json_is_object(g)) continue;
        if (!begun) {
            dq_html_page_table(
                h->p,
                "Answers generated greedily. Exact match: the share whose last number is "
                "right; strict match: whose number after #### is; finished: the share "
                "that ended by a stop before the limit. New tokens are a mean. Standard "
                "errors over items.",
                titles);
        }
        begun = true;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_cell(h->p, r->task);
        dq_html_count_cell(h, dq_html_real(r->j, "n"));
        dq_html_page_value(h->p, x, se);
        x = dq_html_metric(r->metrics, "strict_match", &se);
        dq_html_page_value(h->p, x, se);
        x = dq_html_metric(g, "finished", &se);
        dq_html_page_value(h->p, x, se);
        dq_html_page_value(h->p, dq_html_real(g, "new_tokens_mean"), (double)NAN);
        ends_cell(h, json_object_get(g, "ends"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}
