/* html_kv: what a score costs in bytes of the KV cache.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_settings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 460, HIGH = 310, POINTS = 24, LABELS = 64, LABEL_WORDS = 6 };

/* What is drawn of one task: KLD of a text, else its main metric. */
static const char *metric_of(const dq_html_row *r, bool *log)
{
    *log = json_object_get(r->metrics, "kld_nats") != NULL;
    return *log ? "kld_nats" : dq_html_main_metric(r);
}

static const json_t *kv_of(const dq_html_row *r)
{
    return json_object_get(r->j, "kv");
}

/* Bytes held as a share of what 16 bits for every token would take. */
static double share_of(const dq_html_row *r)
{
    double base = dq_html_real(kv_of(r), "baseline_bytes");
    return base > 0 ? dq_html_real(kv_of(r), "bytes_held") / base : (double)NAN;
}

static const char *kept_of(const dq_html_row *r)
{
    return r->kept[0] ? r->kept : "all tokens kept";
}

static bool same_line(const dq_html_row *a, const dq_html_row *b)
{
    return a->model_index == b->model_index && a->bits == b->bits &&
           strcmp(a->task, b->task) == 0 && strcmp(kept_of(a), kept_of(b)) == 0 &&
           (a->bits == 16 || strcmp(a->granularity, b->granularity) == 0);
}

static bool begins_line(const dq_html *h, int i)
{
    for (int k = 0; k < i; k++) {
        if (same_line(&h->row[k], &h->row[i])) return false;
    }
    return true;
}

static bool can_draw(const dq_html_row *r)
{
    bool log;
    const char *m = metric_of(r, &log);
    double y = m ? dq_html_metric(r->metrics, m, NULL) : (double)NAN;
    return isfinite(y) && (!log || y > 0) && isfinite(share_of(r));
}

/* Whether a row has neighbours in the same task that differ in the cache and in nothing else. */
static bool is_swept(const dq_html *h, const dq_html_row *r)
{
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *o = &h->row[i];
        if (o->model_index == r->model_index && o->bits == r->bits &&
            strcmp(o->task, r->task) == 0 && strcmp(o->granularity, r->granularity) == 0 &&
            strcmp(o->kv, r->kv) != 0)
            return true;
    }
    return false;
}

/* Rows of the line of row i by bytes held. */
static int line_of(const dq_html *h, int i, const dq_html_row **row)
{
    int n = 0;
    if (!is_swept(h, &h->row[i])) return 0;
    for (int k = i; k < h->n && n < POINTS; k++) {
        const dq_html_row *r = &h->row[k];
        int at = n;
        if (!same_line(r, &h->row[i]) || !can_draw(r)) continue;
        for (; at > 0 && share_of(row[at - 1]) > share_of(r); at--) row[at] = row[at - 1];
        row[at] = r;
        n++;
    }
    return n;
}

static dq_picture_style style_of(const dq_html *h, int i)
{
    int before = 0;
    for (int k = 0; k < i; k++)
        before += h->row[k].model_index == h->row[i].model_index && begins_line(h, k) &&
                  strcmp(h->row[k].task, h->row[i].task) == 0;
    return (dq_picture_style){h->row[i].model_index, before, before};
}

/* The value of a row, and from where to where its bar goes: NAN where there is none. */
static double value_of(const dq_html_row *r, double *lo, double *hi, bool *log)
{
    double se;
    const double y = dq_html_metric(r->metrics, metric_of(r, log), &se);
    *lo = !(se > 0) ? (double)NAN : *log ? fmax(y - se, y / 100) : y - se;
    *hi = se > 0 ? y + se : (double)NAN;
    return y;
}

static void draw_line(dq_html *h, dq_picture *c, int i)
{
    const dq_html_row *row[POINTS];
    double x[POINTS], y[POINTS], lo[POINTS], hi[POINTS];
    int n = line_of(h, i, row);
    for (int k = 0; k < n; k++) {
        bool log;
        x[k] = share_of(row[k]);
        y[k] = value_of(row[k], &lo[k], &hi[k], &log);
    }
    if (n) dq_picture_line(c, style_of(h, i), n, x, y, lo, hi);
}

/* A label that points of one model share where they stand together. */
typedef struct label {
    double x, y; /* of the first of them */
    double at;   /* y as far as the eye goes: a logarithm on such an axis */
    int model;
    bool below, hidden; /* as it was drawn */
    const char *words[LABEL_WORDS];
    int n;
} label;

typedef struct labels {
    label of[LABELS];
    int n;
    double x[2], at[2]; /* least and most of all points */
} labels;

/* Words that would cover each other become one. */
static void add_word(labels *l, label it, const char *word)
{
    double wide = l->x[1] - l->x[0], high = l->at[1] - l->at[0];
    label *to = NULL;
    for (int i = 0; i < l->n && !to; i++) {
        label *o = &l->of[i];
        if (o->model == it.model && fabs(o->x - it.x) <= 0.08 * wide &&
            fabs(o->at - it.at) <= 0.07 * high)
            to = o;
    }
    if (!to && l->n == LABELS) return;
    if (!to) {
        to = &l->of[l->n++];
        *to = it;
    }
    for (int i = 0; i < to->n; i++) {
        if (strcmp(to->words[i], word) == 0) return;
    }
    if (to->n < LABEL_WORDS) to->words[to->n++] = word;
}

/* Whether the words of label i would cover a mark, or the words of a label before it. */
static bool covers(const labels *l, int i, bool below)
{
    const double wide = l->x[1] - l->x[0], high = l->at[1] - l->at[0], off = 0.08 * high;
    const label *a = &l->of[i];
    const double at = a->at + (below ? -off : off);
    for (int k = 0; k < l->n; k++) {
        const label *b = &l->of[k];
        const double apart = fabs(a->x - b->x);
        if (k != i && fabs(at - b->at) <= 0.05 * high && apart <= (0.05 * a->n + 0.02) * wide)
            return true;
        if (k < i && !b->hidden && apart <= 0.06 * wide * (a->n + b->n) &&
            fabs(at - b->at - (b->below ? -off : off)) <= 0.085 * high)
            return true;
    }
    return false;
}

/* Above the point, for the second model below it, or where there is room. */
static void draw_label(dq_html *h, dq_picture *c, labels *l, int i)
{
    label *o = &l->of[i];
    dq_strbuf words = {0};
    o->below = o->model == 1;
    if (covers(l, i, o->below)) o->below = !o->below;
    o->hidden = covers(l, i, o->below);
    if (o->hidden) return;
    for (int k = 0; k < o->n; k++) dq_html_list_add(h, &words, o->words[k]);
    dq_picture_word(c, o->x, o->y, o->below, dq_html_list_end(h, &words));
}

/* Losses and scores have axes of their own; labels know how high they are. */
static void value_axis(dq_picture *c, labels *l, bool log)
{
    if (log) {
        dq_html_loss_axis(c, pow(10, l->at[0]), pow(10, l->at[1]));
        return;
    }
    dq_html_score_axis(c, l->at[0], l->at[1]);
    if (l->at[1] <= l->at[0]) l->at[1] = l->at[0] + 0.1;
}

/* All points are passed twice: to see how far they reach, then to label them. */
static void label_points(dq_html *h, dq_picture *c, const char *task)
{
    bool log = false;
    double lo, hi;
    labels l = {.x = {HUGE_VAL, -HUGE_VAL}, .at = {HUGE_VAL, -HUGE_VAL}};
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < h->n; i++) {
            const dq_html_row *r = &h->row[i];
            if (strcmp(r->task, task) != 0 || !can_draw(r) || !is_swept(h, r)) continue;
            label it = {.x = share_of(r), .model = r->model_index};
            it.y = value_of(r, &lo, &hi, &log);
            it.at = log ? log10(it.y) : it.y;
            if (pass == 1 && r->model_index < 2) /* more would cover each other */
                add_word(&l, it,
                         dq_html_words(h, "%.3g:%.3g", dq_html_real(kv_of(r), "k_bits"),
                                       dq_html_real(kv_of(r), "v_bits")));
            if (pass == 1) continue;
            l.x[0] = fmin(l.x[0], it.x);
            l.x[1] = fmax(l.x[1], it.x);
            l.at[0] = fmin(l.at[0], log ? log10(fmin(it.y, lo)) : it.at);
            l.at[1] = fmax(l.at[1], log ? log10(fmax(it.y, hi)) : it.at);
        }
    }
    value_axis(c, &l, log);
    for (int i = 0; i < l.n; i++) draw_label(h, c, &l, i);
}

static bool several_widths(const dq_html *h, const char *task)
{
    int bits = 0;
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (strcmp(r->task, task) != 0 || !is_swept(h, r)) continue;
        if (bits && bits != r->bits) return true;
        bits = r->bits;
    }
    return false;
}

static void legend(dq_html *h, const char *task)
{
    const dq_html_row *row[POINTS];
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (strcmp(r->task, task) != 0 || !begins_line(h, i) || line_of(h, i, row) == 0) continue;
        const char *kept = kept_of(r);
        dq_picture_legend_item(
            h->p, style_of(h, i),
            several_widths(h, task)
                ? dq_html_words(h, "%s, %d logit bits, %s", r->model, r->bits, kept)
                : dq_html_words(h, "%s, %s", r->model, kept));
    }
    dq_picture_legend_end(h->p);
}

static void picture(dq_html *h, const char *task, const char *metric, bool log)
{
    dq_picture c;
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"bytes held / bytes of a 16-bit cache of all tokens\"\n"
                       "set offsets graph 0.08, graph 0.08, graph 0.1, graph 0.05\n");
    if (log)
        dq_picture_set(&c, "set ylabel \"KL divergence, nats per token\"\n");
    else
        dq_picture_set(&c, "set ylabel \"%s\"\n",
                       strcmp(metric, "exact_match") == 0 ? "exact match" : "accuracy");
    for (int i = 0; i < h->n; i++) {
        if (strcmp(h->row[i].task, task) == 0 && begins_line(h, i)) draw_line(h, &c, i);
    }
    label_points(h, &c, task);
    dq_picture_end(&c, dq_html_words(h,
                                     "%s on %s over the bytes that the KV cache holds. The table "
                                     "of results holds the numbers.",
                                     log ? "KL divergence" : "Accuracy", task));
    legend(h, task);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, task);
    dq_html_page_html(
        h->p,
        ": %s over the bytes that the KV cache holds (codes, scales, unquantized "
        "tokens and indices, as allocated), as a share of 2 bytes for every element "
        "of every token. Points are labelled K bits:V bits where there is room. Bars are "
        "one standard "
        "error.",
        log ? "KL divergence from the reference" : "the score");
    dq_picture_figure_end(h->p);
}

/* Whether the task of row `first` has lines to draw. */
static bool task_can_draw(const dq_html *h, int first)
{
    for (int i = first; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (strcmp(r->task, h->row[first].task) == 0 && can_draw(r) && is_swept(h, r)) return true;
    }
    return false;
}

static const char *share_words(dq_html *h, double share)
{
    if (!isfinite(share)) return "–";
    return dq_html_words(h, "%.4g%s", share, share >= 1 ? ", " DQ_HTML_SAVES_NOTHING : "");
}

static void held_table(dq_html *h)
{
    static const char *const titles[] = {
        "<row",        "<task",         "bytes held", "per token", "share of 16 bits",
        "tokens kept", "read as codes", NULL};
    dq_html_page_table(
        h->p,
        "What the caches hold: bytes over all contexts and per token of context, as a "
        "share of 16 bits, the share of tokens kept, and the share of codes among the keys that "
        "scored rows read.",
        titles);
    for (int i = 0; i < h->n; i++) {
        const dq_html_row *r = &h->row[i];
        if (!is_swept(h, r) || !isfinite(dq_html_real(kv_of(r), "bytes_held"))) continue;
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, r->label);
        dq_html_page_cell(h->p, r->task);
        dq_html_page_cellf(h->p, "%.0f", dq_html_real(kv_of(r), "bytes_held"));
        dq_html_page_value(h->p, dq_html_real(kv_of(r), "bytes_per_token"), (double)NAN);
        dq_html_page_cell(h->p, share_words(h, share_of(r)));
        dq_html_page_value(h->p, dq_html_real(kv_of(r), "kept_fraction"), (double)NAN);
        dq_html_page_value(h->p, dq_html_real(kv_of(r), "lowbit_fraction"), (double)NAN);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

bool dq_html_has_kv(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (dq_html_first_of_task(h, i) && task_can_draw(h, i)) return true;
    }
    return false;
}

void dq_html_kv(dq_html *h)
{
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    for (int i = 0; i < h->n; i++) {
        bool log;
        if (!dq_html_first_of_task(h, i) || !task_can_draw(h, i)) continue;
        if (dq_html_front_shows(h, h->row[i].task)) continue; /* a curve for each policy */
        const char *metric = metric_of(&h->row[i], &log);
        if (metric) picture(h, h->row[i].task, metric, log);
    }
    dq_html_page_html(h->p, "</div>\n");
    held_table(h);
}
