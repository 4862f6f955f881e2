/* html_plan_cache: see html_plan_cache.h. Words of decision follow from the ends of an interval. A map is shaded by the logarithm
 * of the loss: losses of parts of a cache lie powers of 10 apart.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_plan_cache.h"

#include <math.h>
#include <stdio.h>

enum { WIDE = 460, HIGH = 260 };

/* ----- reading ----- */

dq_status dq_html_check_whole_run(const json_t *result, const char *where, dq_err *err)
{
    char inside[120];
    if (!json_object_get(result, "chosen") && json_object_get(result, "caches_alone"))
        return dq_fail(err, DQ_MISMATCH,
                       "%s: a plan of --dry-run, which measures nothing (expected one of a whole "
                       "run). Run dq plan without --dry-run",
                       where);
    DQ_TRY(dq_html_check(result, "chosen", DQ_NEED_OBJECT, where, err));
    snprintf(inside, sizeof inside, "%s.chosen", where);
    DQ_TRY(dq_html_check(json_object_get(result, "chosen"), "kv", DQ_NEED_OBJECT, inside, err));
    return dq_html_check_intervals(json_object_get(result, "chosen"), "unseen", inside, err);
}

const json_t *dq_html_chosen(const dq_html *h, int i, const char *key)
{
    return json_object_get(dq_html_member(h, i, "chosen"), key);
}

dq_status dq_html_check_losses(const json_t *object, const char *key, const char *where,
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

dq_status dq_html_check_ends(const json_t *object, const char *key, const char *where, dq_err *err)
{
    const json_t *ends = json_object_get(object, key);
    const json_t *low = json_array_get(ends, 0), *high = json_array_get(ends, 1);
    DQ_TRY(dq_html_check(object, key, DQ_NEED_LIST, where, err));
    const bool none = json_is_null(low) && json_is_null(high);
    const bool both = json_is_number(low) && json_is_number(high) &&
                      json_number_value(low) <= json_number_value(high);
    if (json_array_size(ends) == 2 && (none || both)) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: \"%s\" is not two ends, the smaller one first (expected numbers, or null "
                   "for both)",
                   where, key);
}

dq_status dq_html_check_intervals(const json_t *object, const char *key, const char *where,
                                  dq_err *err)
{
    const json_t *o = json_object_get(object, key);
    char inside[120];
    snprintf(inside, sizeof inside, "%s.%s", where, key);
    DQ_TRY(dq_html_check_losses(object, key, where, err));
    DQ_TRY(dq_html_check_ends(o, "kld_interval", inside, err));
    DQ_TRY(dq_html_check_ends(o, "ln_ppl_interval", inside, err));
    return dq_html_check(o, "outside", DQ_NEED_NUMBER, inside, err);
}

dq_status dq_html_check_list(const json_t *result, const char *key, dq_html_check_result *check,
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

/* ----- cells ----- */

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

static void level_cell(dq_html *h, const json_t *object)
{
    dq_html_page_cellf(h->p, "%.5g", 100 * (1 - dq_html_real(object, "outside")));
}

void dq_html_found_cells(dq_html *h, const json_t *unseen)
{
    kld_cell(h, unseen);
    ends_cell(h, json_object_get(unseen, "kld_interval"), OF_KLD);
    percent_cell(h, unseen);
    ends_cell(h, json_object_get(unseen, "ln_ppl_interval"), OF_PPL);
    level_cell(h, unseen);
}

/* ----- a plan beside other caches ----- */

static const json_t *ends_of(const json_t *less, bool of_ppl)
{
    return json_object_get(less, of_ppl ? "ln_ppl_interval" : "kld_interval");
}

static void difference_picture(dq_html *h, const dq_html_baselines *r, bool of_ppl)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    for (int i = 0; i < r->n; i++) {
        const json_t *less = json_object_get(r->at[i].j, "plan_less_it");
        const json_t *ends = ends_of(less, of_ppl);
        double y = dq_html_metric(less, of_ppl ? "ln_ppl_ratio" : "kld_nats", NULL);
        double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1), x = i;
        if (of_ppl) {
            y = percent(y);
            low = percent(low);
            high = percent(high);
        }
        dq_picture_line(&c, (dq_picture_style){r->at[i].plan, r->at[i].place, 0}, 1, &x, &y, &low,
                        &high);
    }
    dq_picture_set(&c, "set ylabel \"%s\"\nset xrange [-0.6:%g]\nunset xtics\nset xzeroaxis\n",
                   of_ppl ? "perplexity, %, plan less uniform"
                          : "KLD, nats per id, plan less uniform",
                   r->n - 0.4);
    dq_picture_end(&c, dq_html_words(h,
                                     "%s of each plan less that of %s, with its interval. The next "
                                     "table holds the numbers.",
                                     of_ppl ? "Perplexity" : "KL divergence", r->all));
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < r->n; i++)
        dq_picture_legend_item(h->p, (dq_picture_style){r->at[i].plan, r->at[i].place, 0},
                               r->at[i].label);
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "%s of the plan less that of %s on windows that no choice saw, in the order "
                      "of the table; bars are the intervals of it. Below 0 the plan %s.",
                      of_ppl ? "The perplexity" : "The KL divergence", r->all,
                      of_ppl ? "loses less" : "is closer");
    dq_picture_figure_end(h->p);
}

void dq_html_baselines_pictures(dq_html *h, const dq_html_baselines *r)
{
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    difference_picture(h, r, false);
    difference_picture(h, r, true);
    dq_html_page_html(h->p, "</div>\n");
}

static const char *verdict(dq_html *h, const json_t *ends, const char *one, bool of_ppl)
{
    const char *is = of_ppl ? "loses less" : "is closer";
    if (dq_html_real_at(ends, 1) < 0) return dq_html_words(h, "the plan %s", is);
    if (dq_html_real_at(ends, 0) > 0) return dq_html_words(h, "%s %s", one, is);
    return dq_html_words(h, "inconclusive which %s", is);
}

void dq_html_baseline_cells(dq_html *h, const dq_html_baselines *r, int i, bool of_ppl)
{
    const json_t *less = json_object_get(r->at[i].j, "plan_less_it"), *ends = ends_of(less, of_ppl);
    const json_t *all[] = {r->at[i].found, json_object_get(r->at[i].j, "unseen"), less};
    dq_html_page_cell(h->p, of_ppl ? "perplexity, %" : "KLD");
    for (int k = 0; k < 3; k++) of_ppl ? percent_cell(h, all[k]) : kld_cell(h, all[k]);
    ends_cell(h, ends, of_ppl ? OF_PPL : OF_DIFFERENCE);
    level_cell(h, less);
    dq_html_page_cell(h->p, verdict(h, ends, r->one, of_ppl));
}

/* ----- maps ----- */

void dq_html_shades_add(dq_html_shades *s, double loss)
{
    if (!(loss > 0)) return;
    s->low = fmin(s->low, log10(loss));
    s->high = fmax(s->high, log10(loss));
}

void dq_html_heat_begin(dq_html *h, const char *name, const char *label, const char *corner)
{
    dq_picture_figure_begin(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, name);
    dq_html_page_html(h->p,
                      "</figcaption>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
                      "aria-label=\"%s\"><table class=\"heat\"><thead><tr>"
                      "<th scope=\"col\">%s</th>",
                      label, corner);
}

void dq_html_heat_rows(dq_html *h)
{
    dq_html_page_table_rows(h->p);
}

void dq_html_heat_cell(dq_html *h, const dq_html_shades *s, double loss, double std_err, bool bold,
                       const char *word)
{
    const double v = loss > 0 && s->high > s->low ? (log10(loss) - s->low) / (s->high - s->low) : 0;
    char text[96];
    dq_html_page_value_text(text, sizeof text, loss, std_err);
    dq_html_page_html(h->p, "<td%s style=\"--v:%.2f\">%s%s%s%s%s</td>",
                      v > 0.78 ? " class=\"hi\"" : "", v, bold ? "<b>" : "", text,
                      bold ? "</b>" : "", *word ? "<br/>" : "", word);
}

void dq_html_heat_end(dq_html *h)
{
    dq_html_page_html(h->p, "</tbody></table></div></figure>\n");
}
