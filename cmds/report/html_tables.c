/* html_tables: the results as tables.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

enum { METRICS = 24 };

/* Names of the metrics of a task, in the order in which they first occur. */
static int metrics_of(const dq_html *h, const char *task, const char **name)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        const char *key;
        json_t *v, *all = json_object_get(h->row[i].j, "metrics");
        if (strcmp(h->row[i].task, task) != 0) continue;
        json_object_foreach(all, key, v)
        {
            bool known = n == METRICS;
            for (int k = 0; k < n; k++) known = known || strcmp(name[k], key) == 0;
            if (!known) name[n++] = key;
        }
    }
    return n;
}

static void result_cells(dq_html *h, const dq_html_row *r, const char *const *name, int n)
{
    const json_t *weights = json_object_get(r->j, "weights");
    const json_t *work = json_object_get(r->j, "throughput");
    const char *order = dq_html_text(json_object_get(r->j, "icl"), "demo_order");
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, *order ? dq_html_words(h, "%s, order %s", r->model, order) : r->model);
    dq_html_size_cells(h, weights);
    dq_html_json_cell(h, json_object_get(weights, "bits"));
    dq_html_page_cellf(h->p, "%d", r->bits);
    dq_html_page_cell(h->p, r->bits == 16 ? "–" : r->granularity);
    if (dq_html_shows_kv(h)) dq_html_page_cell(h->p, *r->kv ? r->kv : "32:32");
    dq_html_count_cell(h, dq_html_real(r->j, "n"));
    for (int k = 0; k < n; k++) dq_html_metric_cell(h, r->metrics, name[k]);
    dq_html_count_cell(h, dq_html_real(work, "tokens_per_second"));
    dq_html_page_html(h->p, "</tr>\n");
}

static void results_head(dq_html *h, const char *task, const char *const *name, int n)
{
    const char *paper = "", *cluster = "", *caption;
    bool text = false;
    for (int i = 0; i < h->n; i++) {
        if (strcmp(h->row[i].task, task) != 0) continue;
        if (!*paper) paper = dq_html_text(h->row[i].j, "paper_metric");
        if (!*cluster) cluster = dq_html_text(h->row[i].j, "cluster");
        text = text || json_object_get(h->row[i].metrics, "ppl");
    }
    caption =
        text ? dq_html_words(h,
                             "All rows of this task. n: scored tokens; ± one standard "
                             "error, each %s a cluster; – where a row is its own reference.",
                             dq_html_cluster(h))
             : dq_html_words(h, "All rows of this task. n: items; ± one standard error over %s.",
                             strcmp(cluster, "query") == 0 ? "queries, which runs share" : "items");
    if (*paper)
        caption = dq_html_words(
            h, "%s The metric with a star is the one that the paper&#39;s tables use.", caption);
    dq_html_page_heading(h->p);
    dq_html_page_text(h->p, task);
    dq_html_page_heading_end(h->p);
    dq_html_page_table(h->p, caption, NULL);
    dq_html_page_title(h->p, "model", true);
    dq_html_page_title(h->p, "bits per weight", false);
    dq_html_page_title(h->p, "file bytes", false);
    dq_html_page_title(h->p, "weight bits", false);
    dq_html_page_title(h->p, "logit bits", false);
    dq_html_page_title(h->p, "granularity", true);
    if (dq_html_shows_kv(h)) dq_html_page_title(h->p, "KV cache", true);
    dq_html_page_title(h->p, "n", false);
    for (int k = 0; k < n; k++)
        dq_html_page_title(
            h->p, strcmp(name[k], paper) == 0 ? dq_html_words(h, "%s *", name[k]) : name[k], false);
    dq_html_page_title(h->p, "tokens/s", false);
    dq_html_page_table_rows(h->p);
}

bool dq_html_has_rows(const dq_html *h)
{
    return h->n > 0;
}

void dq_html_results(dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        const char *name[METRICS], *task = h->row[i].task;
        if (!dq_html_first_of_task(h, i)) continue;
        int n = metrics_of(h, task, name);
        results_head(h, task, name, n);
        for (int k = i; k < h->n; k++) {
            if (strcmp(h->row[k].task, task) == 0) result_cells(h, &h->row[k], name, n);
        }
        dq_html_page_table_end(h->p);
    }
}

static void paired_row(dq_html *h, const dq_html_row *r, const char *against, const char *metric,
                       const json_t *d)
{
    char text[96];
    double x = dq_html_real(d, "delta"), se = dq_html_real(d, "stderr");
    double p = dq_html_real(d, json_object_get(d, "p") ? "p" : "mcnemar_p");
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, r->label);
    dq_html_page_cell(h->p, r->task);
    dq_html_page_cell(h->p, against);
    dq_html_page_cell(h->p, metric);
    dq_html_page_cellf(h->p, "%s%s", x > 0 ? "+" : "",
                       dq_html_page_value_text(text, sizeof text, x, se));
    dq_html_interval_cell(h, d);
    dq_html_count_cell(h, dq_html_real(d, "n01"));
    dq_html_count_cell(h, dq_html_real(d, "n10"));
    if (isfinite(p))
        dq_html_page_cellf(h->p, "%.2g", p);
    else
        dq_html_page_cellf(h->p, "–");
    dq_html_page_html(h->p, "</tr>\n");
}

/* The comparisons of a row with its reference, or with another checkpoint. */
static json_t *compared(const dq_html_row *r, int cross)
{
    return json_object_get(r->j, cross ? "cross_paired" : "paired");
}

bool dq_html_has_paired(const dq_html *h)
{
    for (int i = 0; i < 2 * h->n; i++) {
        json_t *d;
        const char *key;
        json_object_foreach(compared(&h->row[i / 2], i % 2), key, d)
        {
            if (json_is_object(d)) return true;
        }
    }
    return false;
}

void dq_html_paired(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "<task", "<compared with", "<metric", "difference", "95 % interval", "n01", "n10",
        "p",    NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        for (int cross = 0; cross < 2; cross++) {
            json_t *o = compared(r, cross), *d;
            const char *key;
            json_object_foreach(o, key, d)
            {
                if (!json_is_object(d)) continue;
                if (!begun) {
                    dq_html_page_table(
                        h->p,
                        "Differences on the same items or tokens, ± one paired standard "
                        "error. n01: items whose score fell; n10: whose score rose; p: "
                        "exact two-sided McNemar test of the two, or where items share "
                        "queries a t test over these. Of tests at 0.05, one in 20 calls "
                        "equal rows different.",
                        titles);
                }
                begun = true;
                paired_row(h, r, dq_html_text(cross ? o : r->j, cross ? "model" : "reference"), key,
                           d);
            }
        }
    }
    dq_html_page_table_end(h->p);
}
