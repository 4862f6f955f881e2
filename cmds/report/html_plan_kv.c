/* html_plan_kv: what a plan of the KV cache found: its widths, and the comparison with uniform widths.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_plan_cache.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>

enum { BASELINES = 16 }; /* of a plan; dq plan makes 2 at most */

/* ----- reading ----- */

static dq_status check_trial(const json_t *row, const char *where, dq_err *err)
{
    DQ_TRY(dq_html_check(row, "widths", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check(row, "from", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check(row, "mean_bits", DQ_NEED_NUMBER, where, err));
    return dq_html_check(row, "kld_nats", DQ_NEED_NUMBER_OR_NULL, where, err);
}

static dq_status check_uniform(const json_t *row, const char *where, dq_err *err)
{
    DQ_TRY(dq_html_check(row, "widths", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check(row, "mean_bits", DQ_NEED_NUMBER, where, err));
    DQ_TRY(dq_html_check_losses(row, "unseen", where, err));
    return dq_html_check_intervals(row, "plan_less_it", where, err);
}

/* So that all units together have no more widths than a map has columns. */
static dq_status check_bits(const json_t *row, const char *where, dq_err *err)
{
    const double bits = dq_html_real(row, "bits");
    DQ_TRY(dq_html_check(row, "bits", DQ_NEED_NUMBER, where, err));
    if (bits >= 1 && bits <= DQ_HTML_PLAN_WIDTHS && bits == floor(bits)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: \"bits\" is %g (expected 1 to %d)", where, bits,
                   DQ_HTML_PLAN_WIDTHS);
}

static dq_status check_unit(const json_t *row, const char *where, dq_err *err)
{
    const json_t *alone = json_object_get(row, "alone"), *w;
    size_t i;
    DQ_TRY(dq_html_check(row, "side", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check_ends(row, "layers", where, err));
    DQ_TRY(dq_html_check(row, "map", DQ_NEED_NUMBER_OR_NULL, where, err));
    DQ_TRY(dq_html_check(row, "bits", DQ_NEED_NUMBER, where, err));
    DQ_TRY(dq_html_check(row, "alone", DQ_NEED_LIST, where, err));
    if (json_array_size(alone) > DQ_HTML_PLAN_WIDTHS)
        return dq_fail(err, DQ_DAMAGED, "%s: \"alone\" holds %zu widths (expected at most %d)",
                       where, json_array_size(alone), DQ_HTML_PLAN_WIDTHS);
    json_array_foreach(alone, i, w)
    {
        char inside[100];
        snprintf(inside, sizeof inside, "%s.alone[%zu]", where, i);
        DQ_TRY(check_bits(w, inside, err));
        DQ_TRY(dq_html_check(w, "kld_nats", DQ_NEED_OBJECT, inside, err));
    }
    return DQ_OK;
}

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    static const dq_html_members members[] = {
        {"chosen.kv", "widths quant", DQ_NEED_TEXT}, {"chosen", "mean_bits", DQ_NEED_NUMBER}, {0}};
    DQ_TRY(dq_html_check_whole_run(result, where, err));
    DQ_TRY(dq_html_check_members(result, where, members, err));
    DQ_TRY(dq_html_check_list(result, "baselines", check_uniform, where, err));
    if (json_array_size(json_object_get(result, "baselines")) > BASELINES)
        return dq_fail(err, DQ_DAMAGED, "%s: \"baselines\" holds %zu caches (expected at most %d)",
                       where, json_array_size(json_object_get(result, "baselines")), BASELINES);
    DQ_TRY(dq_html_check_list(result, "trials", check_trial, where, err));
    return dq_html_check_list(result, "units", check_unit, where, err);
}

dq_status dq_html_plan_kv_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "path", check_result, err));
    h->about = "KLD is in nats per id. It and the perplexity are against the same weights with an "
               "unquantized cache, on the second half of each window. Bits are those of codes, the "
               "mean over keys and values, without scales. ± is one standard error between "
               "documents, or between windows of a single one.";
    return err->code;
}

/* ----- the widths, and uniform ones ----- */

static double mean_bits(const dq_html *h, int i)
{
    return dq_html_real(dq_html_member(h, i, "chosen"), "mean_bits");
}

void dq_html_plan_kv_chosen(dq_html *h)
{
    static const char *const titles[] = {
        "<plan", "<--kv-quant",  "<--kv-bits",    "--kv-recent",  "--kv-sink",    "bits",
        "KLD",   "its interval", "perplexity, %", "its interval", "nominally, %", NULL};
    dq_html_page_table(h->p, "What was chosen, and what it loses on windows that no choice saw.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *kv = dq_html_chosen(h, i, "kv");
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->item[i].name);
        dq_html_page_cell(h->p, dq_html_text(kv, "quant"));
        dq_html_page_cell(h->p, dq_html_text(kv, "widths"));
        dq_html_count_cell(h, dq_html_real(kv, "recent"));
        dq_html_count_cell(h, dq_html_real(kv, "sink"));
        dq_html_page_cellf(h->p, "%.4g", mean_bits(h, i));
        dq_html_found_cells(h, dq_html_chosen(h, i, "unseen"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static void uniform_row(dq_html *h, const dq_html_baselines *r, int i, bool of_ppl)
{
    const dq_html_baseline *baseline = &r->at[i];
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, of_ppl ? "" : h->item[baseline->plan].name);
    dq_html_page_cell(h->p, of_ppl ? "" : dq_html_text(baseline->j, "widths"));
    if (of_ppl)
        dq_html_page_html(h->p, "<td></td>");
    else
        dq_html_page_cellf(h->p, "%.4g", dq_html_real(baseline->j, "mean_bits"));
    dq_html_baseline_cells(h, r, i, of_ppl);
    dq_html_page_html(h->p, "</tr>\n");
}

/* What else there is to say of the comparisons of a plan. */
static void uniform_words(dq_html *h, int i)
{
    const json_t *baselines = dq_html_member(h, i, "baselines"), *baseline;
    const bool none = json_array_size(baselines) == 0;
    const char *words = json_array_size(dq_html_member(h, i, "trials")) == 1
                            ? "no other mix within the mean was measured"
                            : "the plan is uniform: nothing else that was measured on the search "
                              "windows is closer there (no interval)";
    double more = 0;
    size_t k;
    json_array_foreach(baselines, k, baseline) more =
        fmax(more, mean_bits(h, i) - dq_html_real(baseline, "mean_bits"));
    if (!none && !(more > 1e-9)) return;
    dq_html_page_html(h->p, "<p>");
    dq_html_page_text(h->p, h->item[i].name);
    if (none)
        dq_html_page_html(h->p, ": %s.</p>\n", words);
    else
        dq_html_page_html(h->p,
                          ": the plan has %.3g bits more: no uniform widths come nearer to the "
                          "mean from below.</p>\n",
                          more);
}

/* Uniform widths beside each plan, in the order of the table. */
static dq_html_baselines baselines_of(dq_html *h)
{
    dq_html_baselines r = {.all = "uniform widths", .one = "the uniform width"};
    const json_t *baseline;
    size_t n = 0, k;
    for (int i = 0; i < h->n; i++) n += json_array_size(dq_html_member(h, i, "baselines"));
    r.at = dq_alloc(h->a, n, sizeof *r.at, h->p->err);
    for (int i = 0; i < h->n && r.at; i++) {
        json_array_foreach(dq_html_member(h, i, "baselines"), k, baseline)
            r.at[r.n++] = (dq_html_baseline){
            i, (int)k,
            dq_html_words(h, "%s against %s", h->item[i].name, dq_html_text(baseline, "widths")),
            dq_html_chosen(h, i, "unseen"), baseline};
    }
    return r;
}

void dq_html_plan_kv_uniform(dq_html *h)
{
    static const char *const titles[] = {"<plan",        "<against",   "its bits",   "<what",
                                         "of the plan",  "of uniform", "difference", "its interval",
                                         "nominally, %", "<decision",  NULL};
    const dq_html_baselines r = baselines_of(h);
    if (r.n) {
        dq_html_baselines_pictures(h, &r);
        dq_html_page_table(h->p,
                           "The plan beside uniform widths of at most the same mean, the nearest "
                           "that there are, on windows that no choice saw. An interval that holds "
                           "0 decides nothing.",
                           titles);
        for (int i = 0; i < r.n; i++) {
            uniform_row(h, &r, i, false);
            uniform_row(h, &r, i, true);
        }
        dq_html_page_table_end(h->p);
    }
    for (int i = 0; i < h->n; i++) uniform_words(h, i);
}
