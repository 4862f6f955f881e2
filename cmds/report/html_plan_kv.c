/* html_plan_kv: what a plan of the KV cache found: its widths, and the comparison with uniform widths. Words of decision are those
 * of the tables of dq plan: they follow from the ends of an interval, and an interval without ends decides nothing.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 260 };

/* ----- reading ----- */

/* Members of an object that measures, each {value, stderr}. */
static dq_status check_measured(const json_t *object, const char *key, const char *where,
                                dq_err *err)
{
    static const char *const both[] = {"kld_nats", "ln_ppl_ratio"};
    const json_t *o = json_object_get(object, key);
    char inside[120];
    DQ_TRY(dq_html_check(object, key, DQ_NEED_OBJECT, where, err));
    for (int k = 0; k < 2; k++) {
        snprintf(inside, sizeof inside, "%s.%s", where, key);
        DQ_TRY(dq_html_check(o, both[k], DQ_NEED_OBJECT, inside, err));
        snprintf(inside, sizeof inside, "%s.%s.%s", where, key, both[k]);
        DQ_TRY(dq_html_check(json_object_get(o, both[k]), "value", DQ_NEED_NUMBER_OR_NULL, inside,
                             err));
    }
    return DQ_OK;
}

static dq_status check_intervals(const json_t *object, const char *key, const char *where,
                                 dq_err *err)
{
    const json_t *o = json_object_get(object, key);
    char inside[120];
    snprintf(inside, sizeof inside, "%s.%s", where, key);
    DQ_TRY(check_measured(object, key, where, err));
    DQ_TRY(dq_html_check(o, "kld_interval", DQ_NEED_LIST, inside, err));
    DQ_TRY(dq_html_check(o, "ln_ppl_interval", DQ_NEED_LIST, inside, err));
    return dq_html_check(o, "outside", DQ_NEED_NUMBER, inside, err);
}

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
    DQ_TRY(check_measured(row, "unseen", where, err));
    return check_intervals(row, "plan_less_it", where, err);
}

static dq_status check_unit(const json_t *row, const char *where, dq_err *err)
{
    const json_t *alone = json_object_get(row, "alone"), *w;
    size_t i;
    DQ_TRY(dq_html_check(row, "side", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check(row, "layers", DQ_NEED_LIST, where, err));
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
        DQ_TRY(dq_html_check(w, "bits", DQ_NEED_NUMBER, inside, err));
        DQ_TRY(dq_html_check(w, "kld_nats", DQ_NEED_OBJECT, inside, err));
    }
    return DQ_OK;
}

static dq_status check_list(const json_t *result, const char *key, dq_html_check_result *check,
                            const char *where, dq_err *err)
{
    const json_t *row;
    size_t i;
    DQ_TRY(dq_html_check(result, key, DQ_NEED_LIST, where, err));
    json_array_foreach(json_object_get(result, key), i, row)
    {
        char inside[80];
        snprintf(inside, sizeof inside, "%s.%s[%zu]", where, key, i);
        DQ_TRY(check(row, inside, err));
    }
    return DQ_OK;
}

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    const json_t *kv = json_object_get(result, "kv");
    char inside[60];
    if (!kv && json_object_get(result, "caches_alone"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a plan of --dry-run, which measures nothing (expected one of a whole "
                       "run). Run dq plan without --dry-run",
                       where);
    snprintf(inside, sizeof inside, "%s.kv", where);
    DQ_TRY(dq_html_check(result, "kv", DQ_NEED_OBJECT, where, err));
    DQ_TRY(dq_html_check(kv, "widths", DQ_NEED_TEXT, inside, err));
    DQ_TRY(dq_html_check(kv, "code", DQ_NEED_TEXT, inside, err));
    DQ_TRY(dq_html_check(result, "mean_bits", DQ_NEED_NUMBER, where, err));
    DQ_TRY(check_intervals(result, "unseen", where, err));
    DQ_TRY(check_list(result, "uniform", check_uniform, where, err));
    DQ_TRY(check_list(result, "trials", check_trial, where, err));
    return check_list(result, "units", check_unit, where, err);
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

static const json_t *list_of(const dq_html *h, int i, const char *key)
{
    return json_object_get(h->item[i].j, key);
}

/* ----- the widths, and uniform ones ----- */

static double percent(double loss)
{
    return 100 * expm1(loss);
}

/* Of a KLD, which has no sign, of a difference of two, or of a perplexity, per cent. */
typedef enum kind { OF_KLD, OF_DIFFERENCE, OF_PPL } kind;

static void ends_cell(dq_html *h, const json_t *ends, kind of)
{
    const double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1);
    if (!isfinite(low) || !isfinite(high))
        dq_html_page_cellf(h->p, "–");
    else if (of == OF_PPL)
        dq_html_page_cellf(h->p, "%+.3f to %+.3f", percent(low), percent(high));
    else if (of == OF_DIFFERENCE)
        dq_html_page_cellf(h->p, "%+.3g to %+.3g", low, high);
    else
        dq_html_page_cellf(h->p, "%.3g to %.3g", low, high);
}

static void percent_cell(dq_html *h, const json_t *object)
{
    const double x = dq_html_metric(object, "ln_ppl_ratio", NULL);
    if (isfinite(x))
        dq_html_page_cellf(h->p, "%+.3f", percent(x));
    else
        dq_html_page_cellf(h->p, "–");
}

static void kld_cell(dq_html *h, const json_t *object)
{
    double se, x = dq_html_metric(object, "kld_nats", &se);
    dq_html_page_value(h->p, x, se);
}

/* The nominal level of the intervals of an object, per cent. */
static void level_cell(dq_html *h, const json_t *object)
{
    dq_html_page_cellf(h->p, "%.5g", 100 * (1 - dq_html_real(object, "outside")));
}

void dq_html_plan_kv_chosen(dq_html *h)
{
    static const char *const titles[] = {
        "<plan", "<--kv-code",   "<--kv-bits",    "--kv-recent",  "--kv-sink",    "bits",
        "KLD",   "its interval", "perplexity, %", "its interval", "nominally, %", NULL};
    dq_html_page_table(h->p, "What was chosen, and what it loses on windows that no choice saw.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *j = h->item[i].j, *kv = json_object_get(j, "kv");
        const json_t *unseen = json_object_get(j, "unseen");
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->item[i].name);
        dq_html_page_cell(h->p, dq_html_text(kv, "code"));
        dq_html_page_cell(h->p, dq_html_text(kv, "widths"));
        dq_html_count_cell(h, dq_html_real(kv, "recent"));
        dq_html_count_cell(h, dq_html_real(kv, "sink"));
        dq_html_page_cellf(h->p, "%.4g", dq_html_real(j, "mean_bits"));
        kld_cell(h, unseen);
        ends_cell(h, json_object_get(unseen, "kld_interval"), OF_KLD);
        percent_cell(h, unseen);
        ends_cell(h, json_object_get(unseen, "ln_ppl_interval"), OF_PPL);
        level_cell(h, unseen);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static const char *verdict(const json_t *ends, const char *less, const char *more, const char *open)
{
    return dq_html_real_at(ends, 1) < 0 ? less : dq_html_real_at(ends, 0) > 0 ? more : open;
}

static void uniform_row(dq_html *h, int i, const json_t *rival, bool of_ppl)
{
    const json_t *less = json_object_get(rival, "plan_less_it");
    const json_t *ends = json_object_get(less, of_ppl ? "ln_ppl_interval" : "kld_interval");
    const json_t *both[] = {list_of(h, i, "unseen"), json_object_get(rival, "unseen"), less};
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, of_ppl ? "" : h->item[i].name);
    dq_html_page_cell(h->p, of_ppl ? "" : dq_html_text(rival, "widths"));
    if (of_ppl)
        dq_html_page_html(h->p, "<td></td>");
    else
        dq_html_page_cellf(h->p, "%.4g", dq_html_real(rival, "mean_bits"));
    dq_html_page_cell(h->p, of_ppl ? "perplexity, %" : "KLD");
    for (int k = 0; k < 3; k++) of_ppl ? percent_cell(h, both[k]) : kld_cell(h, both[k]);
    ends_cell(h, ends, of_ppl ? OF_PPL : OF_DIFFERENCE);
    level_cell(h, less);
    dq_html_page_cell(h->p,
                      of_ppl ? verdict(ends, "the plan loses less", "the uniform width loses less",
                                       "not decided which loses less")
                             : verdict(ends, "the plan is closer", "the uniform width is closer",
                                       "not decided which is closer"));
    dq_html_page_html(h->p, "</tr>\n");
}

/* What else there is to say of the comparisons of a plan. */
static void uniform_words(dq_html *h, int i)
{
    const json_t *rivals = list_of(h, i, "uniform"), *rival;
    const bool none = json_array_size(rivals) == 0;
    const char *words = json_array_size(list_of(h, i, "trials")) == 1
                            ? "no other mix within the mean was measured"
                            : "the plan is uniform: nothing else that was measured on the search "
                              "windows is closer there (no interval)";
    double more = 0;
    size_t k;
    json_array_foreach(rivals, k, rival) more =
        fmax(more, dq_html_real(h->item[i].j, "mean_bits") - dq_html_real(rival, "mean_bits"));
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

/* Differences with their intervals, a point for each rival; 0 is no difference. */
static void difference_picture(dq_html *h, bool of_ppl)
{
    dq_picture c;
    size_t k;
    double at = 0;
    const json_t *rival;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    for (int i = 0; i < h->n; i++) {
        json_array_foreach(list_of(h, i, "uniform"), k, rival)
        {
            const json_t *less = json_object_get(rival, "plan_less_it");
            const json_t *ends = json_object_get(less, of_ppl ? "ln_ppl_interval" : "kld_interval");
            double y = dq_html_metric(less, of_ppl ? "ln_ppl_ratio" : "kld_nats", NULL);
            double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1), x = at++;
            if (of_ppl) {
                y = percent(y);
                low = percent(low);
                high = percent(high);
            }
            dq_picture_line(&c, (dq_picture_style){i, (int)k, 0}, 1, &x, &y, &low, &high);
        }
    }
    dq_picture_set(&c, "set ylabel \"%s\"\nset xrange [-0.6:%g]\nunset xtics\nset xzeroaxis\n",
                   of_ppl ? "perplexity, %, plan less uniform"
                          : "KLD, nats per id, plan less uniform",
                   at - 0.4);
    dq_picture_end(&c, dq_html_words(h,
                                     "%s of each plan less that of uniform widths, with its "
                                     "interval. The next table holds the numbers.",
                                     of_ppl ? "Perplexity" : "KL divergence"));
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        json_array_foreach(list_of(h, i, "uniform"), k, rival) dq_picture_legend_item(
            h->p, (dq_picture_style){i, (int)k, 0},
            dq_html_words(h, "%s against %s", h->item[i].name, dq_html_text(rival, "widths")));
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "%s of the plan less that of uniform widths on windows that no choice saw, "
                      "in the order of the table; bars are the intervals of it. Below 0 the plan "
                      "%s.",
                      of_ppl ? "The perplexity" : "The KL divergence",
                      of_ppl ? "loses less" : "is closer");
    dq_picture_figure_end(h->p);
}

void dq_html_plan_kv_uniform(dq_html *h)
{
    static const char *const titles[] = {"<plan",        "<against",   "its bits",   "<what",
                                         "of the plan",  "of uniform", "difference", "its interval",
                                         "nominally, %", "<decision",  NULL};
    size_t n = 0, k;
    const json_t *rival;
    for (int i = 0; i < h->n; i++) n += json_array_size(list_of(h, i, "uniform"));
    if (n) {
        dq_html_page_html(h->p, "<div class=\"pair\">\n");
        difference_picture(h, false);
        difference_picture(h, true);
        dq_html_page_html(h->p, "</div>\n");
        dq_html_page_table(h->p,
                           "The plan beside uniform widths of at most the same mean, the nearest "
                           "that there are, on windows that no choice saw. An interval that holds "
                           "0 decides nothing.",
                           titles);
        for (int i = 0; i < h->n; i++) {
            json_array_foreach(list_of(h, i, "uniform"), k, rival)
            {
                uniform_row(h, i, rival, false);
                uniform_row(h, i, rival, true);
            }
        }
        dq_html_page_table_end(h->p);
    }
    for (int i = 0; i < h->n; i++) uniform_words(h, i);
}
