/* html_tables: what ran, and the results as tables.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void cell_json(dq_html *h, const json_t *v)
{
    char number[64];
    if (json_is_string(v)) {
        dq_page_text(h->p, json_string_value(v));
    } else if (json_is_integer(v)) {
        dq_page_html(h->p, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        snprintf(number, sizeof number, "%.6g", json_real_value(v));
        dq_page_text(h->p, number);
    } else {
        dq_page_text(h->p, json_is_true(v) ? "yes" : json_is_false(v) ? "no" : "–");
    }
}

/* A setting: words and numbers, lists of them; what is nested deeper can be opened. */
static void setting(dq_html *h, const char *key, const json_t *v)
{
    size_t i;
    const json_t *x;
    bool nested = json_is_object(v);
    json_array_foreach(v, i, x) nested = nested || json_is_object(x) || json_is_array(x);
    dq_page_html(h->p, "<tr><th scope=\"row\">");
    dq_page_text(h->p, key);
    dq_page_html(h->p, "</th><td class=\"l wrap\">");
    if (nested) {
        char *text;
        dq_json_dump(&text, v, JSON_INDENT(1) | JSON_REAL_PRECISION(9), h->p->err);
        dq_page_html(h->p, "<details><summary>show</summary><pre>");
        if (text) dq_page_text(h->p, text);
        dq_page_html(h->p, "</pre></details>");
        free(text);
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, x)
        {
            if (i) dq_page_html(h->p, ", ");
            cell_json(h, x);
        }
    } else {
        cell_json(h, v);
    }
    dq_page_html(h->p, "</td></tr>\n");
}

static void inputs(dq_html *h)
{
    static const char *const titles[] = {"<kind", "<path", "bytes", "<SHA-256", NULL};
    static const char *const hashes[] = {"content_sha256", "fingerprint", "sha256"};
    const json_t *list = json_object_get(h->document, "inputs"), *x;
    size_t i;
    if (json_array_size(list) == 0) return;
    dq_page_table(h->p,
                  "Inputs. The hash of a model is over its configuration and tensors; the first 16 "
                  "of 64 digits.",
                  titles);
    json_array_foreach(list, i, x)
    {
        char hash[17] = "";
        for (int k = 0; k < 3 && !*hash; k++)
            snprintf(hash, sizeof hash, "%s", dq_html_text(x, hashes[k]));
        double bytes = dq_html_real(x, "bytes");
        dq_page_html(h->p, "<tr>");
        dq_page_cell(h->p, dq_html_text(x, "kind"));
        dq_page_cell(h->p, dq_html_text(x, "path"));
        if (isfinite(bytes))
            dq_page_cellf(h->p, "%.0f", bytes);
        else
            dq_page_cellf(h->p, "–");
        dq_page_html(h->p, "<td class=\"l\"><code>");
        dq_page_text(h->p, hash);
        dq_page_html(h->p, "</code></td></tr>\n");
    }
    dq_page_table_end(h->p);
}

static void warnings(dq_html *h)
{
    const json_t *list = json_object_get(h->document, "warnings"), *x;
    size_t i, n = json_array_size(list);
    if (n == 0) return;
    dq_page_html(h->p,
                 "<div class=\"warn\" role=\"note\"><details open=\"open\"><summary><b>%zu "
                 "warning%s</b></summary><ul>\n",
                 n, n == 1 ? "" : "s");
    json_array_foreach(list, i, x)
    {
        dq_page_html(h->p, "<li>");
        dq_page_text(h->p, json_is_string(x) ? json_string_value(x) : "–");
        dq_page_html(h->p, "</li>\n");
    }
    dq_page_html(h->p, "</ul></details></div>\n");
}

void dq_html_settings(dq_html *h)
{
    static const char *const titles[] = {"<setting", "<value", NULL};
    json_t *settings = json_object_get(h->document, "settings"), *v;
    const char *key;
    dq_page_section(h->p, "run", "What ran");
    dq_page_html(h->p, "<p>Made by <code>dq ");
    dq_page_text(h->p, dq_html_text(h->document, "command"));
    dq_page_html(h->p, "</code>, version ");
    dq_page_text(h->p, dq_html_text(h->document, "dq_version"));
    dq_page_html(
        h->p,
        ". %d row%s of results. Every row is compared with its reference: the same "
        "checkpoint at 16-bit logits and a 16-bit cache in f32, or the model given with "
        "<code>--ref</code>. A container without either is compared with nothing. ± is one "
        "standard error "
        "over the clusters of a row (items, queries, "
        "documents or windows); where no item differs, a 95 %% bound stands instead.</p>\n",
        h->n, h->n == 1 ? "" : "s");
    warnings(h);
    if (json_object_size(settings)) {
        dq_page_table(h->p, "Settings, as they took effect.", titles);
        json_object_foreach(settings, key, v) setting(h, key, v);
        dq_page_table_end(h->p);
    }
    inputs(h);
    dq_page_section_end(h->p);
}

static void slice_row(dq_html *h, const char *label, const char *name, const json_t *s)
{
    double se, x = dq_html_metric(s, "nll_nats", &se);
    dq_page_html(h->p, "<tr>");
    dq_page_cell(h->p, label);
    dq_page_cell(h->p, name);
    dq_page_cellf(h->p, "%.0f", dq_html_real(s, "n"));
    dq_page_value(h->p, x, se);
    x = dq_html_metric(s, "delta_nats", &se);
    dq_page_value(h->p, x, se);
    dq_page_html(h->p, "</tr>\n");
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
            dq_page_section(h->p, "slices", "Associative recall slices");
            dq_page_html(h->p,
                         "<p>AR hits are the last tokens of bigrams that occurred earlier in "
                         "the same context and are rare: at most %g times in ",
                         dq_html_real(s, "threshold"));
            dq_page_text(h->p, dq_html_text(s, "counted_in"));
            dq_page_html(h->p, "; %.1f %% of the tokens here.</p>\n",
                         100 * dq_html_real(s, "share_ar_hit"));
            dq_page_table(h->p,
                          "Mean negative log-likelihood of the two slices ± standard error, and "
                          "the paired difference to the reference.",
                          titles);
        }
        begun = true;
        slice_row(h, h->row[i].label, "AR hit", json_object_get(s, "ar_hit"));
        slice_row(h, "", "others", json_object_get(s, "others"));
    }
    if (!begun) return;
    dq_page_table_end(h->p);
    dq_page_section_end(h->p);
}

/* "stop_id 3, max_new 2": how often answers ended for which reason. */
static void ends_cell(dq_html *h, json_t *ends)
{
    const char *key, *sep = "";
    json_t *v;
    dq_page_html(h->p, "<td class=\"l\">");
    json_object_foreach(ends, key, v)
    {
        if (json_integer_value(v) == 0) continue;
        dq_page_html(h->p, "%s", sep);
        dq_page_text(h->p, key);
        dq_page_html(h->p, " %lld", (long long)json_integer_value(v));
        sep = ", ";
    }
    dq_page_html(h->p, "%s</td>", *sep ? "" : "–");
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
            dq_page_section(h->p, "generation", "Generation");
            dq_page_table(h->p,
                          "Answers generated greedily. Exact match: the share whose last number is "
                          "right; strict match: whose number behind #### is; finished: the share "
                          "that ended by a stop before the limit. New tokens are a mean. Standard "
                          "errors over items.",
                          titles);
        }
        begun = true;
        dq_page_html(h->p, "<tr>");
        dq_page_cell(h->p, r->label);
        dq_page_cell(h->p, r->task);
        dq_page_cellf(h->p, "%.0f", dq_html_real(r->j, "n"));
        dq_page_value(h->p, x, se);
        x = dq_html_metric(r->metrics, "strict_match", &se);
        dq_page_value(h->p, x, se);
        x = dq_html_metric(g, "finished", &se);
        dq_page_value(h->p, x, se);
        dq_page_value(h->p, dq_html_real(g, "new_tokens_mean"), (double)NAN);
        ends_cell(h, json_object_get(g, "ends"));
        dq_page_html(h->p, "</tr>\n");
    }
    if (!begun) return;
    dq_page_table_end(h->p);
    dq_page_section_end(h->p);
}

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
    const json_t *bits = json_object_get(json_object_get(r->j, "weights"), "bits");
    const json_t *work = json_object_get(r->j, "throughput");
    double x, rate = dq_html_real(work, "tokens_per_second");
    const char *order = dq_html_text(json_object_get(r->j, "icl"), "order");
    dq_page_html(h->p, "<tr>");
    dq_page_cell(h->p, *order ? dq_html_words(h, "%s, order %s", r->model, order) : r->model);
    dq_page_html(h->p, "<td>");
    cell_json(h, bits);
    dq_page_html(h->p, "</td>");
    dq_page_cellf(h->p, "%d", r->bits);
    dq_page_cell(h->p, r->bits == 16 ? "–" : r->grain);
    if (dq_html_shows_kv(h)) dq_page_cell(h->p, *r->kv ? r->kv : "16:16");
    x = dq_html_real(r->j, "n");
    if (isfinite(x))
        dq_page_cellf(h->p, "%.0f", x);
    else
        dq_page_cellf(h->p, "–");
    for (int k = 0; k < n; k++) dq_html_metric_cell(h, r->metrics, name[k]);
    if (isfinite(rate))
        dq_page_cellf(h->p, "%.0f", rate);
    else
        dq_page_cellf(h->p, "–");
    dq_page_html(h->p, "</tr>\n");
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
    dq_page_html(h->p, "<h3>");
    dq_page_text(h->p, task);
    dq_page_html(h->p, "</h3>\n");
    dq_page_table(h->p, caption, NULL);
    dq_page_title(h->p, "model", true);
    dq_page_title(h->p, "weight bits", false);
    dq_page_title(h->p, "logit bits", false);
    dq_page_title(h->p, "grain", true);
    if (dq_html_shows_kv(h)) dq_page_title(h->p, "KV cache", true);
    dq_page_title(h->p, "n", false);
    for (int k = 0; k < n; k++)
        dq_page_title(
            h->p, strcmp(name[k], paper) == 0 ? dq_html_words(h, "%s *", name[k]) : name[k], false);
    dq_page_title(h->p, "tokens/s", false);
    dq_page_table_rows(h->p);
}

void dq_html_results(dq_html *h)
{
    if (h->n == 0) return;
    dq_page_section(h->p, "results", "Results");
    for (int i = 0; i < h->n; i++) {
        const char *name[METRICS], *task = h->row[i].task;
        if (!dq_html_first_of_task(h, i)) continue;
        int n = metrics_of(h, task, name);
        results_head(h, task, name, n);
        for (int k = i; k < h->n; k++) {
            if (strcmp(h->row[k].task, task) == 0) result_cells(h, &h->row[k], name, n);
        }
        dq_page_table_end(h->p);
    }
    dq_page_section_end(h->p);
}

static void paired_row(dq_html *h, const dq_html_row *r, const char *against, const char *metric,
                       const json_t *d)
{
    char text[96];
    double x = dq_html_real(d, "delta"), se = dq_html_real(d, "stderr");
    double p = dq_html_real(d, json_object_get(d, "p") ? "p" : "mcnemar_p");
    dq_page_html(h->p, "<tr>");
    dq_page_cell(h->p, r->label);
    dq_page_cell(h->p, r->task);
    dq_page_cell(h->p, against);
    dq_page_cell(h->p, metric);
    dq_page_cellf(h->p, "%s%s", x > 0 ? "+" : "", dq_value_text(text, sizeof text, x, se));
    dq_html_interval_cell(h, d);
    for (int k = 0; k < 2; k++) {
        double flips = dq_html_real(d, k ? "n10" : "n01");
        if (isfinite(flips))
            dq_page_cellf(h->p, "%.0f", flips);
        else
            dq_page_cellf(h->p, "–");
    }
    if (isfinite(p))
        dq_page_cellf(h->p, "%.2g", p);
    else
        dq_page_cellf(h->p, "–");
    dq_page_html(h->p, "</tr>\n");
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
            json_t *o = json_object_get(r->j, cross ? "cross_paired" : "paired"), *d;
            const char *key;
            json_object_foreach(o, key, d)
            {
                if (!json_is_object(d)) continue;
                if (!begun) {
                    dq_page_section(h->p, "paired", "Paired differences");
                    dq_page_table(h->p,
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
    if (!begun) return;
    dq_page_table_end(h->p);
    dq_page_section_end(h->p);
}
