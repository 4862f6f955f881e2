/* html_run: what ran: warnings, settings as they took effect, inputs with their hashes.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A setting: words and numbers, lists of them; what is nested deeper can be opened. */
static void setting(dq_html *h, const char *key, const json_t *v)
{
    size_t i;
    const json_t *x;
    bool nested = json_is_object(v);
    json_array_foreach(v, i, x) nested = nested || json_is_object(x) || json_is_array(x);
    dq_html_page_html(h->p, "<tr><th scope=\"row\">");
    dq_html_page_text(h->p, key);
    dq_html_page_html(h->p, "</th><td class=\"l wrap\">");
    if (nested) {
        char *text;
        dq_json_dump(&text, v, JSON_INDENT(1) | JSON_REAL_PRECISION(9), h->p->err);
        dq_html_page_fold(h->p, "show", false);
        dq_html_page_html(h->p, "<pre>");
        if (text) dq_html_page_text(h->p, text);
        dq_html_page_html(h->p, "</pre>");
        dq_html_page_fold_end(h->p);
        free(text);
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, x)
        {
            if (i) dq_html_page_html(h->p, ", ");
            dq_html_json_words(h, x);
        }
    } else {
        dq_html_json_words(h, v);
    }
    dq_html_page_html(h->p, "</td></tr>\n");
}

static void inputs(dq_html *h, const json_t *document)
{
    static const char *const titles[] = {"<kind", "<path", "bytes", "<SHA-256", NULL};
    static const char *const hashes[] = {"content_sha256", "fingerprint", "sha256"};
    const json_t *list = json_object_get(document, "inputs"), *x;
    size_t i;
    if (json_array_size(list) == 0) return;
    dq_html_page_table(
        h->p,
        "Inputs. The hash of a model is over its configuration and tensors; the first 16 "
        "of 64 digits.",
        titles);
    json_array_foreach(list, i, x)
    {
        char hash[17] = "";
        for (int k = 0; k < 3 && !*hash; k++)
            snprintf(hash, sizeof hash, "%s", dq_html_text(x, hashes[k]));
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, dq_html_text(x, "kind"));
        dq_html_page_cell(h->p, json_is_string(x) ? json_string_value(x) : dq_html_text(x, "path"));
        dq_html_count_cell(
            h, dq_html_real(x, json_object_get(x, "file_bytes") ? "file_bytes" : "bytes"));
        dq_html_page_html(h->p, "<td class=\"l\"><code>");
        dq_html_page_text(h->p, hash);
        dq_html_page_html(h->p, "</code></td></tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static void warnings(dq_html *h, const json_t *document)
{
    const json_t *list = json_object_get(document, "warnings"), *x;
    size_t i, n = json_array_size(list);
    if (n == 0) return;
    dq_html_page_html(h->p,
                      "<div class=\"warn\" role=\"note\"><details open=\"open\"><summary><b>%zu "
                      "warning%s</b></summary><ul>\n",
                      n, n == 1 ? "" : "s");
    json_array_foreach(list, i, x)
    {
        dq_html_page_html(h->p, "<li>");
        dq_html_page_text(h->p, json_is_string(x) ? json_string_value(x) : "–");
        dq_html_page_html(h->p, "</li>\n");
    }
    dq_html_page_html(h->p, "</ul></details></div>\n");
}

static void settings(dq_html *h, const json_t *document)
{
    static const char *const titles[] = {"<setting", "<value", NULL};
    json_t *all = json_object_get(document, "settings"), *v;
    const char *key;
    if (!json_object_size(all)) return;
    dq_html_page_table(h->p, "Settings, as they took effect.", titles);
    json_object_foreach(all, key, v) setting(h, key, v);
    dq_html_page_table_end(h->p);
}

static void made_by(dq_html *h, const json_t *document)
{
    dq_html_page_html(h->p, "Made by <code>dq ");
    dq_html_page_text(h->p, dq_html_text(document, "command"));
    dq_html_page_html(h->p, "</code>, version ");
    dq_html_page_text(h->p, dq_html_text(document, "dq_version"));
    dq_html_page_html(h->p, ".");
}

/* One of several documents: its tables can be opened. */
static void document_of_several(dq_html *h, const dq_report_input *in)
{
    dq_html_page_heading(h->p);
    dq_html_page_text(h->p, in->name);
    dq_html_page_heading_end(h->p);
    dq_html_page_html(h->p, "<p>");
    made_by(h, in->document);
    dq_html_page_html(h->p, "</p>\n");
    warnings(h, in->document);
    dq_html_page_fold(h->p, "Settings and inputs", false);
    settings(h, in->document);
    inputs(h, in->document);
    dq_html_page_fold_end(h->p);
}

void dq_html_run(dq_html *h)
{
    dq_html_page_html(h->p, "<p>");
    if (h->n_in == 1) made_by(h, h->document);
    dq_html_page_html(h->p, "%s%s</p>\n", h->n_in == 1 ? " " : "", h->about);
    for (int i = 0; i < h->n_in && h->n_in > 1; i++) document_of_several(h, &h->in[i]);
    if (h->n_in > 1) return;
    warnings(h, h->document);
    settings(h, h->document);
    inputs(h, h->document);
}
