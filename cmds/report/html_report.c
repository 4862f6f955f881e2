/* html_report: see eval_html.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_report.h"

#include "cmds/report/html_sections.h"

#include <stdio.h>
#include <string.h>

/* "dq eval: a, b on t, u", short enough for a heading. */
static const char *title_of(dq_html *h)
{
    char models[600] = "", tasks[300] = "";
    size_t m = 0, t = 0;
    for (int i = 0; i < h->n_models && m < sizeof models; i++)
        m += (size_t)snprintf(models + m, sizeof models - m, "%s%s", i ? ", " : "", h->model[i]);
    for (int i = 0; i < h->n && t < sizeof tasks; i++) {
        if (dq_html_first_of_task(h, i))
            t += (size_t)snprintf(tasks + t, sizeof tasks - t, "%s%s", t ? ", " : "",
                                  h->row[i].task);
    }
    if (m >= sizeof models || t >= sizeof tasks) /* a cut could fall into a character */
        return dq_html_words(h, "dq eval: %d models", h->n_models);
    return dq_html_words(h, "dq eval: %s on %s", h->n ? models : "no model",
                         h->n ? tasks : "nothing");
}

static void sections(dq_html *h)
{
    dq_html_verdicts(h);
    dq_html_accuracy(h);
    dq_html_kld(h);
    dq_html_kv(h);
    dq_html_positions(h);
    dq_html_needle(h);
    dq_html_attention(h);
    dq_html_icl(h);
    dq_html_slices(h);
    dq_html_generation(h);
    dq_html_results(h);
    dq_html_paired(h);
    dq_html_settings(h);
}

dq_status dq_eval_html(const json_t *document, const char *path, dq_err *err)
{
    dq_html h;
    dq_page page;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    dq_page_begin(&page, err);
    if (dq_html_read(&h, document, a, err) == DQ_OK) {
        h.p = &page;
        sections(&h);
        dq_page_write(&page, title_of(&h), path);
    }
    dq_page_free(&page);
    dq_arena_free(a);
    return err->code;
}
