/* html_matrices: magnitudes of weights: of each role the matrix with the largest crest factor, then all.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

static const json_t *weights_of(const dq_html *h, int i)
{
    return dq_html_member(h, i, "weights");
}

bool dq_html_has_matrices(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(weights_of(h, i)) > 0) return true;
    }
    return false;
}

/* Whether no other matrix of its role has a larger crest factor, nor an earlier one the same. */
static bool is_largest(const json_t *list, size_t at)
{
    const json_t *mine = json_array_get(list, at), *x;
    const double crest = dq_html_real(mine, "crest");
    size_t k;
    json_array_foreach(list, k, x)
    {
        const double other = dq_html_real(x, "crest");
        if (k == at || strcmp(dq_html_text(x, "role"), dq_html_text(mine, "role")) != 0) continue;
        if (other > crest || isnan(crest) || (other == crest && k < at)) return false;
    }
    return true;
}

static void row(dq_html *h, const char *model, const json_t *x)
{
    static const char *const keys[] = {"max", "median", "p99_9", "rms", "crest", "kurtosis0"};
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, model);
    dq_html_page_cell(h->p, dq_html_text(x, "role"));
    dq_html_count_cell(h, dq_html_real(x, "layer"));
    for (int k = 0; k < 6; k++) dq_html_real_cell(h, dq_html_real(x, keys[k]));
    dq_html_count_cell(h, dq_html_real(x, "row"));
    dq_html_count_cell(h, dq_html_real(x, "column"));
    dq_html_count_cell(h, dq_html_real(x, "largest_column"));
    dq_html_real_cell(h, dq_html_real(x, "column_over_median"));
    dq_html_page_html(h->p, "</tr>\n");
}

static void table(dq_html *h, const char *caption, bool all)
{
    static const char *const titles[] = {
        "<model",  "<role",    "layer", "largest", "median",         "p99.9",    "rms",
        "max/rms", "kurtosis", "row",   "column",  "largest column", "/ median", NULL};
    dq_html_page_table(h->p, caption, titles);
    for (int i = 0; i < h->n; i++) {
        const char *model = h->item[i].name;
        const json_t *list = weights_of(h, i), *x;
        size_t k;
        json_array_foreach(list, k, x)
        {
            if (!all && !is_largest(list, k)) continue;
            row(h, model, x);
            model = "";
        }
    }
    dq_html_page_table_end(h->p);
}

void dq_html_matrices(dq_html *h)
{
    table(h,
          "Of each role the matrix with the largest crest factor (max/rms). Largest column: the "
          "input channel with the largest root mean square, and that over the median of channels.",
          false);
    dq_html_page_fold(h->p, "All matrices", false);
    table(h, "All matrices.", true);
    dq_html_page_fold_end(h->p);
}
