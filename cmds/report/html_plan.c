/* html_plan: what a plan found: the trade-off of bits against KL divergence, predicted and measured, what was chosen, and the
 * width of every tensor.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 620, HIGH = 360 };

/* ----- reading ----- */

static dq_status check_list(const json_t *result, const char *key, const char *const *numbers,
                            const char *where, dq_err *err)
{
    const json_t *row;
    size_t i;
    DQ_TRY(dq_html_check(result, key, DQ_NEED_LIST, where, err));
    json_array_foreach(json_object_get(result, key), i, row)
    {
        char inside[60];
        snprintf(inside, sizeof inside, "%s.%s[%zu]", where, key, i);
        for (int k = 0; numbers[k]; k++)
            DQ_TRY(dq_html_check(row, numbers[k], DQ_NEED_NUMBER, inside, err));
    }
    return DQ_OK;
}

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    static const char *const point[] = {"packed_bits_per_weight", "predicted_kld", NULL};
    static const char *const tensor[] = {"weights", "bits", NULL};
    DQ_TRY(dq_html_check(result, "budget", DQ_NEED_TEXT, where, err));
    DQ_TRY(dq_html_check(result, "packed_bits_per_weight", DQ_NEED_NUMBER, where, err));
    DQ_TRY(dq_html_check(result, "interim_looks", DQ_NEED_NUMBER, where, err));
    DQ_TRY(dq_html_check(result, "chosen", DQ_NEED_OBJECT, where, err));
    DQ_TRY(check_list(result, "curve", point, where, err));
    DQ_TRY(check_list(result, "trials", point, where, err));
    return check_list(result, "units", tensor, where, err);
}

dq_status dq_html_plan_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "path", check_result, err));
    h->about =
        "Bits are those of packed tensors, scales included. The prediction is the sum of what each "
        "tensor loses when it alone is rounded; measured are whole models on the search text, "
        "and the chosen one on text that the search has not seen.";
    return err->code;
}

/* ----- the curve ----- */

static const json_t *search_of(const json_t *trial)
{
    return json_object_get(trial, "search");
}

static void draw_curve(dq_html *h, dq_picture *c, int i)
{
    const json_t *list = dq_html_member(h, i, "curve"), *row;
    const size_t n = json_array_size(list);
    double *x = dq_alloc(h->a, n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, n, sizeof *y, h->p->err);
    size_t k;
    if (!x || !y) return;
    json_array_foreach(list, k, row)
    {
        x[k] = dq_html_real(row, "packed_bits_per_weight");
        y[k] = dq_html_real(row, "predicted_kld");
        if (!(y[k] > 0)) y[k] = (double)NAN; /* has no place on a logarithmic axis */
    }
    dq_picture_line(c, (dq_picture_style){i, 7, 1}, (int)n, x, y, NULL, NULL);
}

static void draw_trials(dq_html *h, dq_picture *c, int i)
{
    const json_t *list = dq_html_member(h, i, "trials"), *row;
    size_t k;
    json_array_foreach(list, k, row)
    {
        double se, x = dq_html_real(row, "packed_bits_per_weight");
        double y = dq_html_metric(search_of(row), "kld", &se);
        double low = fmax(y - se, y / 100), high = y + se;
        if (y > 0) dq_picture_line(c, (dq_picture_style){i, 0, 0}, 1, &x, &y, &low, &high);
    }
}

void dq_html_plan_curve(dq_html *h)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"bits per weight of packed tensors\"\n"
                       "set logscale y\nset format y \"10^{%%T}\"\n"
                       "set ylabel \"KL divergence, nats per id\"\n");
    for (int i = 0; i < h->n; i++) draw_curve(h, &c, i);
    for (int i = 0; i < h->n; i++) draw_trials(h, &c, i);
    dq_picture_end(
        &c, "KL divergence over bits per weight, predicted and measured. The tables hold the "
            "numbers.");
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        dq_picture_legend_item(h->p, (dq_picture_style){i, 7, 1},
                               dq_html_words(h, "%s, predicted", h->item[i].name));
        dq_picture_legend_item(h->p, (dq_picture_style){i, 0, 0},
                               dq_html_words(h, "%s, measured", h->item[i].name));
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "The trade-off: lines are predicted, points are whole models measured on the "
                      "search text. Bars are one standard error.");
    dq_picture_figure_end(h->p);
}

/* ----- tables ----- */

void dq_html_plan_chosen(dq_html *h)
{
    static const char *const titles[] = {"<plan",           "<budget", "<met",
                                         "bits per weight", "KLD",     "<its interval",
                                         "interim looks",   NULL};
    dq_html_page_table(h->p,
                       "What was chosen, on unseen text: the interval is that of the look that "
                       "decided, wider for each look before it.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *j = h->item[i].j, *result = json_object_get(j, "chosen");
        const json_t *unseen = json_object_get(result, "unseen");
        const json_t *interval = json_object_get(unseen, "kld_interval");
        double se, kld = dq_html_metric(unseen, "kld", &se);
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->item[i].name);
        dq_html_page_cell(h->p, dq_html_text(j, "budget"));
        dq_html_page_cell(h->p, json_is_true(json_object_get(j, "met")) ? "yes" : "no");
        dq_html_page_cellf(h->p, "%.3f", dq_html_real(j, "packed_bits_per_weight"));
        dq_html_page_value(h->p, kld, se);
        dq_html_page_cell(h->p, dq_html_words(h, "%.3g to %.3g", dq_html_real_at(interval, 0),
                                              dq_html_real_at(interval, 1)));
        dq_html_page_cellf(h->p, "%.0f", dq_html_real(j, "interim_looks"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

void dq_html_plan_tensors(dq_html *h)
{
    static const char *const titles[] = {"<plan", "<tensor", "weights", "bits", "KLD alone", NULL};
    dq_html_page_table(h->p,
                       "The width of every tensor, and what the model loses when it alone is "
                       "rounded to that.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *row, *w;
        size_t k, m;
        json_array_foreach(dq_html_member(h, i, "units"), k, row)
        {
            const double bits = dq_html_real(row, "bits");
            double se = (double)NAN, kld = (double)NAN;
            json_array_foreach(json_object_get(row, "widths"), m, w)
            {
                if (dq_html_real(w, "bits") == bits) kld = dq_html_metric(w, "kld", &se);
            }
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, h->item[i].name);
            dq_html_page_cell(h->p, dq_html_text(row, "name"));
            dq_html_page_cellf(h->p, "%.0f", dq_html_real(row, "weights"));
            dq_html_page_cellf(h->p, "%.0f", bits);
            dq_html_page_value(h->p, kld, se);
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    dq_html_page_table_end(h->p);
}
