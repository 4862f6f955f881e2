/* html_averages: means over the tasks of a run.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <string.h>

static const json_t *averages(const dq_html *h)
{
    return json_object_get(h->document, "averages");
}

bool dq_html_has_averages(const dq_html *h)
{
    return json_array_size(averages(h)) > 0;
}

/* "arc_easy, hellaswag (acc_norm)" */
static const char *tasks(dq_html *h, const json_t *of)
{
    const json_t *names = json_object_get(of, "tasks"), *metrics = json_object_get(of, "metrics");
    dq_strbuf all = {0};
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        const char *metric = json_string_value(json_array_get(metrics, i));
        const bool usual = !metric || strcmp(metric, "acc") == 0;
        dq_html_list_add(h, &all,
                         usual ? name ? name : ""
                               : dq_html_words(h, "%s (%s)", name ? name : "", metric));
    }
    return dq_html_list_end(h, &all);
}

static void difference_cell(dq_html *h, const json_t *of, const char *key)
{
    const json_t *o = json_object_get(of, key);
    dq_html_page_value(h->p, dq_html_real(o, "delta"), dq_html_real(o, "stderr"));
}

void dq_html_averages(dq_html *h)
{
    static const char *const titles[] = {
        "<model", "logit bits",      "<granularity", "KV bits",           "<tasks",
        "mean",   "minus reference", "<verdict",     "minus first model", NULL};
    const json_t *list = averages(h), *of;
    size_t i;
    dq_html_page_table(h->p,
                       "Mean over tasks, each of which counts as much, ± standard error, and its "
                       "paired differences.",
                       titles);
    json_array_foreach(list, i, of)
    {
        const json_t *kv = json_object_get(of, "kv"), *verdict = json_object_get(of, "verdict");
        double se, mean = dq_html_metric(of, "mean", &se);
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, dq_html_text(of, "model"));
        dq_html_count_cell(h, dq_html_real(of, "logit_bits"));
        dq_html_page_cell(h->p, dq_html_text(of, "logit_granularity"));
        dq_html_page_cellf(h->p, "%g:%g", dq_html_real(kv, "k_bits"), dq_html_real(kv, "v_bits"));
        dq_html_page_cell(h->p, tasks(h, of));
        dq_html_page_value(h->p, mean, se);
        difference_cell(h, of, "paired");
        dq_html_page_cell(h->p, verdict ? dq_html_text(verdict, "is") : "");
        difference_cell(h, of, "cross_paired");
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}
