/* html_bits: accuracy and KL divergence over logit bits.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 290, POINTS = 16 };

/* The widths of a task, widest first, evenly spaced on the axis. */
typedef struct axis {
    int bits[17], n;
} axis;

static axis axis_of(const dq_html *h, const char *task)
{
    axis x = {.n = 0};
    for (int bits = 16; bits > 0; bits--) {
        bool found = false;
        for (int i = 0; i < h->n; i++)
            found = found || (h->row[i].bits == bits && strcmp(h->row[i].task, task) == 0);
        if (found) x.bits[x.n++] = bits;
    }
    return x;
}

static double place(const axis *x, int bits)
{
    for (int i = 0; i < x->n; i++) {
        if (x->bits[i] == bits) return i;
    }
    return (double)NAN;
}

static void draw_axis(dq_picture *c, const axis *x)
{
    dq_picture_set(c, "set xrange [-0.35:%g]\nset xlabel \"bits of the attention logits\"\n",
                   x->n - 0.65);
    dq_picture_set(c, "set xtics (");
    for (int i = 0; i < x->n; i++) dq_picture_set(c, "%s\"%d\" %d", i ? ", " : "", x->bits[i], i);
    dq_picture_set(c, ")\n");
}

/* Whether any line of the task holds at least two widths. */
static bool has_lines(const dq_html *h, const char *task)
{
    for (int i = 0; i < h->n; i++) {
        if (strcmp(h->row[i].task, task) == 0 && h->row[i].n_line > 1) return true;
    }
    return false;
}

/* Lines beside each other by a little, so that their error bars do not cover each other. */
static double shift(const dq_html *h, const char *task, int first)
{
    int n = 0, mine = 0;
    for (int i = 0; i < h->n; i++) {
        if (h->row[i].n_line < 2 || strcmp(h->row[i].task, task) != 0) continue;
        if (i < first) mine++;
        n++;
    }
    return n < 2 ? 0 : 0.2 * ((double)mine / (n - 1) - 0.5);
}

/* One line: places, values, ends of the error bars, and the 99th percentile where there is one. */
typedef struct curve {
    int n;
    double x[POINTS], y[POINTS], lo[POINTS], hi[POINTS], p99[POINTS];
} curve;

static void fill(curve *c, const dq_html *h, const axis *x, int first, const char *metric, bool log)
{
    int index[POINTS];
    const double aside = shift(h, h->row[first].task, first);
    c->n = dq_html_line(h, first, index, POINTS);
    for (int i = 0; i < c->n; i++) {
        const dq_html_row *r = &h->row[index[i]];
        double se, y = dq_html_metric(r->metrics, metric ? metric : dq_html_main_metric(r), &se);
        bool shown = isfinite(y) && (!log || y > 0);
        c->x[i] = place(x, r->bits) + aside;
        c->y[i] = shown ? y : (double)NAN;
        c->lo[i] = shown && se > 0 ? (log && y - se <= y / 100 ? y / 100 : y - se) : (double)NAN;
        c->hi[i] = shown && se > 0 ? y + se : (double)NAN;
        c->p99[i] = shown ? dq_html_real(json_object_get(r->metrics, metric), "p99") : (double)NAN;
        if (!(c->p99[i] > y)) c->p99[i] = (double)NAN;
    }
}

static void legend(const dq_html *h, const char *task)
{
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (r->n_line > 1 && strcmp(r->task, task) == 0)
            dq_picture_legend_item(h->p, r->line_style, r->line);
    }
    dq_picture_legend_end(h->p);
}

static void draw_lines(dq_html *h, dq_picture *c, const char *task, const char *metric, bool log)
{
    axis x = axis_of(h, task);
    draw_axis(c, &x);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        curve k;
        if (r->n_line < 2 || strcmp(r->task, task) != 0) continue;
        fill(&k, h, &x, i, metric, log);
        if (log) dq_picture_whiskers(c, r->line_style, k.n, k.x, k.y, k.p99);
        dq_picture_line(c, r->line_style, k.n, k.x, k.y, k.lo, k.hi);
    }
}

/* Tenths around all values and their error bars, within 0 to 1. */
static void accuracy_axis(const dq_html *h, dq_picture *c, const char *task)
{
    double min = 1, max = 0;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const char *m = strcmp(r->task, task) == 0 ? dq_html_main_metric(r) : NULL;
        double se = 0, y = m ? dq_html_metric(r->metrics, m, &se) : (double)NAN;
        if (!isfinite(y)) continue;
        min = fmin(min, y - (se > 0 ? se : 0));
        max = fmax(max, y + (se > 0 ? se : 0));
    }
    min = fmax(0, floor(10 * min - 0.2) / 10);
    max = fmin(1, ceil(10 * max + 0.2) / 10);
    dq_picture_set(c, "set yrange [%g:%g]\nset ytics %g\n", min, max + 0.03 * (max - min),
                   max - min > 0.6 ? 0.2 : 0.1);
}

static void accuracy_picture(dq_html *h, const char *task, const char *metric)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set ylabel \"%s\"\n",
                   strcmp(metric, "exact_match") == 0 ? "exact match" : "accuracy");
    accuracy_axis(h, &c, task);
    draw_lines(h, &c, task, NULL, false);
    dq_picture_end(&c, dq_html_words(h,
                                     "Accuracy on %s over the bits of the attention logits. The "
                                     "table of results holds the numbers.",
                                     task));
    legend(h, task);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, task);
    dq_html_page_html(h->p, ": <code>");
    dq_html_page_text(h->p, metric);
    dq_html_page_html(
        h->p, "</code> (a fraction) over the bits of the attention logits; 16 is not "
              "rounded. "
              "Bars are one standard error over the items. Points of one width stand a little "
              "apart to be seen.");
    dq_picture_figure_end(h->p);
}

/* Without a sweep of widths: a bar for each row. */
static void accuracy_bars(dq_html *h, const char *task, const char *metric)
{
    static const char *const titles[] = {"<row", "<0 to 1", "value", NULL};
    dq_html_page_table(
        h->p,
        "A bar per row, from 0 to 1; the thin bar reaches one standard error over the items "
        "to either side.",
        titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        double se, y = dq_html_metric(r->metrics, metric, &se);
        if (strcmp(r->task, task) != 0 || !isfinite(y)) continue;
        double from = fmax(0, y - (se > 0 ? se : 0)), to = fmin(1, y + (se > 0 ? se : 0));
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_html(
            h->p,
            "<td><div class=\"bar\" aria-hidden=\"true\"><i style=\"width:%.1f%%\"></i>"
            "<b style=\"left:%.1f%%;width:%.1f%%\"></b></div></td>",
            100 * fmin(1, fmax(0, y)), 100 * from, 100 * fmax(0, to - from));
        dq_html_metric_cell(h, r->metrics, metric);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static const char *metric_of_task(const dq_html *h, int first)
{
    for (int i = first; i < h->n; i++) {
        const char *m = dq_html_main_metric(&h->row[i]);
        if (m && strcmp(h->row[i].task, h->row[first].task) == 0 &&
            isfinite(dq_html_metric(h->row[i].metrics, m, NULL)))
            return m;
    }
    return NULL;
}

bool dq_html_has_accuracy(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (dq_html_first_of_task(h, i) && metric_of_task(h, i)) return true;
    }
    return false;
}

void dq_html_accuracy(dq_html *h)
{
    for (int sweep = 1; sweep >= 0; sweep--) { /* pictures first, side by side */
        int n = 0;
        for (int i = 0; i < h->n; i++) {
            const char *task = h->row[i].task, *m = metric_of_task(h, i);
            if (!m || !dq_html_first_of_task(h, i) || has_lines(h, task) != (sweep == 1)) continue;
            if (sweep && n++ == 0) dq_html_page_html(h->p, "<div class=\"pair\">\n");
            if (sweep) {
                accuracy_picture(h, task, m);
            } else {
                dq_html_page_heading(h->p);
                dq_html_page_text(h->p, task);
                dq_html_page_html(h->p, ", <code>");
                dq_html_page_text(h->p, m);
                dq_html_page_html(h->p, "</code>");
                dq_html_page_heading_end(h->p);
                accuracy_bars(h, task, m);
            }
        }
        if (n) dq_html_page_html(h->p, "</div>\n");
    }
}

/* A number, or an object with a value. */
static double floor_of(const dq_html_row *r)
{
    const json_t *kld = json_object_get(r->metrics, "kld_nats");
    double x = dq_html_real(kld, "noise_floor");
    return isfinite(x) ? x : dq_html_metric(kld, "noise_floor", NULL);
}

static double highest_floor(const dq_html *h, const char *task)
{
    double max = (double)NAN;
    for (int i = 0; i < h->n; i++) {
        double x = strcmp(h->row[i].task, task) == 0 ? floor_of(&h->row[i]) : (double)NAN;
        if (x > 0) max = fmax(max, x);
    }
    return max;
}

/* A row that differs from its reference, so that KLD says something. */
static bool has_kld(const dq_html_row *r)
{
    double x = dq_html_metric(r->metrics, "kld_nats", NULL);
    return isfinite(x) && !(x == 0 && r->bits == 16);
}

/* Whether the floor is near enough to the values to be drawn: decades below, it would take the picture from
 * them. */
static bool shows_floor(const dq_html *h, const char *task, double level)
{
    double min = (double)INFINITY;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        double x = dq_html_metric(r->metrics, "kld_nats", NULL);
        if (strcmp(r->task, task) == 0 && has_kld(r) && x > 0) min = fmin(min, x);
    }
    return isfinite(level) && level > min / 100;
}

static void kld_picture(dq_html *h, const char *task)
{
    dq_picture c;
    double level = highest_floor(h, task);
    bool drawn = shows_floor(h, task, level);
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set logscale y\nset format y \"10^{%%T}\"\nset ylabel \"KL divergence, "
                       "nats per token\"\n");
    dq_picture_level(&c, drawn ? level : (double)NAN);
    draw_lines(h, &c, task, "kld_nats", true);
    dq_picture_end(&c, "KL divergence from the reference over the bits of the attention logits. "
                       "The next table holds the numbers.");
    legend(h, task);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "KL divergence of the next-token distribution from that of the reference, "
                      "in nats per token, over the bits of the attention logits. Marks are "
                      "means; bars are one standard error, each %s a cluster; thin dotted lines "
                      "reach up to the 99th percentile of single tokens (squares).",
                      dq_html_cluster(h));
    if (isfinite(level))
        dq_html_page_html(
            h->p,
            " %s the noise floor, %.1e nats: the divergence of the reference from itself when "
            "every number of its final states is moved by one unit in the last place; rounding in "
            "the layers before comes on top.",
            drawn ? "The dotted level is" : "Far below the picture lies", level);
    dq_picture_figure_end(h->p);
}

static void difference_picture(dq_html *h, const char *task)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set ylabel \"NLL minus reference, nats per token\"\nset xzeroaxis\n");
    draw_lines(h, &c, task, "ln_ppl_ratio", false);
    dq_picture_end(&c, "Difference of the negative log-likelihood to the reference over the bits "
                       "of the attention logits.");
    legend(h, task);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p,
                      "Mean negative log-likelihood less that of the reference on the same tokens "
                      "(the logarithm of the ratio of perplexities). Bars are one paired standard "
                      "error, each %s a cluster.",
                      dq_html_cluster(h));
    dq_picture_figure_end(h->p);
}

static void kld_table(dq_html *h)
{
    static const char *const titles[] = {"<row",  "mean", "p50",         "p90", "p99",
                                         "p99.9", "max",  "noise floor", NULL};
    static const char *const keys[] = {"p50", "p90", "p99", "p999", "max"};
    dq_html_page_table(
        h->p,
        dq_html_words(h,
                      "KL divergence from the reference, nats per token: mean ± standard "
                      "error (%ss as clusters), and percentiles of single tokens.",
                      dq_html_cluster(h)),
        titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *kld = json_object_get(r->metrics, "kld_nats");
        double se, x = dq_html_metric(r->metrics, "kld_nats", &se);
        if (!has_kld(r)) continue;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_value(h->p, x, se);
        for (int k = 0; k < 5; k++)
            dq_html_page_value(h->p, dq_html_real(kld, keys[k]), (double)NAN);
        dq_html_page_value(h->p, floor_of(r), (double)NAN);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static void probability_table(dq_html *h)
{
    static const char *const titles[] = {"<row", "same top-1", "Δp", "RMS Δp", NULL};
    dq_html_page_table(
        h->p,
        "The share of tokens whose most probable successor is the reference&#39;s. Δp: "
        "what the probability of the text&#39;s next token gains, as a mean and as a "
        "root mean square.",
        titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        const json_t *dp = json_object_get(r->metrics, "delta_p");
        double se, x = dq_html_metric(r->metrics, "same_top1", &se);
        if (!has_kld(r)) continue;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_value(h->p, x, se);
        dq_html_page_value(h->p, dq_html_real(dp, "value"), dq_html_real(dp, "stderr"));
        dq_html_page_value(h->p, dq_html_real(dp, "rms"), dq_html_real(dp, "rms_stderr"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

static void confidence_table(dq_html *h)
{
    static const char *const titles[] = {
        "<row", "reference's top-1 probability", "tokens", "KLD", "same top-1", NULL};
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        const json_t *bins = json_object_get(h->row[i].j, "kld_by_confidence"), *b;
        size_t k;
        if (!has_kld(&h->row[i])) continue;
        json_array_foreach(bins, k, b)
        {
            double se, x = dq_html_metric(b, "kld_nats", &se);
            if (!begun) {
                dq_html_page_fold(h->p, "By how sure the reference is", false);
                dq_html_page_table(h->p, "The same by how sure the reference is.", titles);
            }
            begun = true;
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, k ? "" : h->row[i].label);
            dq_html_page_cellf(h->p, "%g to %g", dq_html_real(b, "from"), dq_html_real(b, "to"));
            dq_html_count_cell(h, dq_html_real(b, "n"));
            dq_html_page_value(h->p, x, se);
            x = dq_html_metric(b, "same_top1", &se);
            dq_html_page_value(h->p, x, se);
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    if (!begun) return;
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

bool dq_html_has_kld(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (has_kld(&h->row[i])) return true;
    }
    return false;
}

void dq_html_kld(dq_html *h)
{
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++) {
        const char *task = h->row[i].task;
        if (!dq_html_first_of_task(h, i) || !has_lines(h, task) ||
            !json_object_get(h->row[i].metrics, "kld_nats"))
            continue;
        kld_picture(h, task);
        difference_picture(h, task);
    }
    dq_html_page_html(h->p, "</div>\n");
    kld_table(h);
    probability_table(h);
    confidence_table(h);
}
