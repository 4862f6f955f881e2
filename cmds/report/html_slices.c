/* html_slices: loss on ids that could be copied from the context, and on the others.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

static void slice_row(dq_html *h, const char *label, const char *name, const json_t *s)
{
    double se, x = dq_html_metric(s, "nll_nats", &se);
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, label);
    dq_html_page_cell(h->p, name);
    dq_html_count_cell(h, dq_html_real(s, "n"));
    dq_html_page_value(h->p, x, se);
    x = dq_html_metric(s, "delta_nats", &se);
    dq_html_page_value(h->p, x, se);
    dq_html_page_html(h->p, "</tr>\n");
}

bool dq_html_has_slices(const dq_html *h)
{
    return dq_html_any(h, "slices");
}

void dq_html_slices(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "<slice", "tokens", "NLL (nats)", "minus reference (nats)", NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const json_t *s = json_object_get(h->row[i].j, "slices");
        if (!json_is_object(s)) continue;
        if (!begun) {
            dq_html_page_html(h->p,
                              "<p>AR hits are the last tokens of bigrams that occurred earlier in "
                              "the same context and are rare: at most %g times in ",
                              dq_html_real(s, "threshold"));
            dq_html_page_text(h->p, dq_html_text(s, "counted_in"));
            dq_html_page_html(h->p, "; %.1f %% of the tokens here.</p>\n",
                              100 * dq_html_real(s, "share_ar_hit"));
            dq_html_page_table(
                h->p,
                "Mean negative log-likelihood of the two slices ± standard error, and "
                "the paired difference to the reference.",
                titles);
        }
        begun = true;
        slice_row(h, h->row[i].label, "AR hit", json_object_get(s, "ar_hit"));
        slice_row(h, "", "others", json_object_get(s, "others"));
    }
    dq_html_page_table_end(h->p);
}
