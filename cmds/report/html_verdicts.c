/* html_verdicts: losses against the margin, and the lowest width of logits that holds.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

static const json_t *verdict_of(const dq_html_row *r)
{
    return json_object_get(r->j, "verdict");
}

static void rows_table(dq_html *h)
{
    static const char *const titles[] = {
        "<row",     "<task",   "<compared with",         "<verdict", "loss", "interval",
        "clusters", "<each a", "more that would decide", NULL};
    dq_html_page_table(
        h->p,
        "Loss of each row against its reference on the same items or tokens: accuracy "
        "lost, or nats of negative log-likelihood. The interval is a paired one of 95 % "
        "(Student&#39;s t over clusters; of independent items, Tango&#39;s score "
        "interval). The last column is a rough count of clusters.",
        titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *v = verdict_of(r);
        if (!json_is_object(v)) continue;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_cell(h->p, r->task);
        dq_html_page_cell(h->p, dq_html_text(r->j, "reference"));
        dq_html_page_cell(h->p, dq_html_text(v, "is"));
        dq_html_page_value(h->p, dq_html_real(v, "loss"), (double)NAN);
        dq_html_interval_cell(h, v);
        dq_html_count_cell(h, dq_html_real(v, "n_clusters"));
        dq_html_page_cell(h->p, dq_html_text(r->j, "cluster"));
        dq_html_count_cell(h, dq_html_real(v, "missing_clusters"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

/* "8, 6": the widths of a series with this verdict, the widest first. */
static const char *widths_with(dq_html *h, const json_t *series, const char *is)
{
    const json_t *widths = json_object_get(series, "widths");
    const char *all = "";
    for (int bits = 16; bits > 1; bits--) {
        const char *key = dq_html_words(h, "%d", bits);
        if (strcmp(dq_html_text(widths, key), is) == 0)
            all = dq_html_words(h, "%s%s%d", all, *all ? ", " : "", bits);
    }
    return *all ? all : "–";
}

static void lowest_table(dq_html *h)
{
    static const char *const titles[] = {"<model", "<task",   "<granularity", "<KV cache", "lowest",
                                         "within", "exceeds", "inconclusive", NULL};
    const json_t *list = json_object_get(h->document, "lowest_logit_bits"), *f;
    size_t i;
    if (json_array_size(list) == 0) return;
    dq_html_page_table(h->p,
                       "The lowest width of the attention logits within the margin, with every "
                       "larger width that was "
                       "tested. 16 bits stand for no rounding.",
                       titles);
    json_array_foreach(list, i, f)
    {
        const json_t *math = json_object_get(f, "math");
        double lowest = dq_html_real(f, "lowest");
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, dq_html_text(f, "model"));
        dq_html_page_cell(h->p, dq_html_text(f, "task"));
        dq_html_page_cell(h->p, dq_html_text(f, "logit_granularity"));
        dq_html_page_cell(h->p, dq_html_words(h, "%s, %s", dq_html_text(f, "kv_label"),
                                              dq_html_text(math, "linear")));
        if (isfinite(lowest))
            dq_html_page_cellf(h->p, "%.0f", lowest);
        else
            dq_html_page_cellf(h->p, "none");
        dq_html_page_cellf(h->p, "%s", widths_with(h, f, "within the margin"));
        dq_html_page_cellf(h->p, "%s", widths_with(h, f, "exceeds the margin"));
        dq_html_page_cellf(h->p, "%s", widths_with(h, f, "inconclusive"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

bool dq_html_has_verdicts(const dq_html *h)
{
    return dq_html_any(h, "verdict");
}

void dq_html_verdicts(dq_html *h)
{
    const json_t *first = dq_html_first(h, "verdict"),
                 *all = json_object_get(h->document, "comparisons");
    const double n = dq_html_real(all, "n"), missed = dq_html_real(all, "expected_misses");
    dq_html_page_html(
        h->p,
        "<p>A row is within the margin, %g, if all of the interval of its loss is at most that; it "
        "exceeds the margin if all of it is more; else the row is inconclusive.",
        dq_html_real(first, "margin"));
    if (isfinite(n) && isfinite(missed))
        dq_html_page_html(h->p,
                          " %.0f comparison%s, at 95 %% each: about %.1f of their "
                          "intervals are expected to miss by chance.",
                          n, n == 1 ? "" : "s", missed);
    dq_html_page_html(h->p, "</p>\n");
    lowest_table(h);
    rows_table(h);
}
