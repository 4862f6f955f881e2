/* html_bench: what dq bench measured: a table for each kind of work, and the time per token over the context. What is known of a
 * kind of work is one row here: its columns, and which members make its curve.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 620, HIGH = 360, COLUMNS = 14, LABELS = 2 };

/* A member of a result as a column. */
typedef struct column {
    const char *title, *member;
    double times; /* of the number; 0: text */
    int digits;
} column;

/* One kind of work. */
typedef struct work {
    const char *what, *caption;
    const char *x, *seconds,
        *each;                 /* time per token at x: seconds / each, "": 1; x NULL: no curve */
    const char *label[LABELS]; /* members that tell curves of a model apart */
    column of[COLUMNS];        /* ends with {0} */
} work;
static const work works[] = {
    {.what = "prefill",
     .caption =
         "Prefill of one prompt: shares are of one dense product of the same model, and of the "
         "peak, multiply-adds on registers alone, which products of other instructions may "
         "exceed; products and attention are shares of the pass, times is against unrounded "
         "logits.",
     .x = "tokens",
     .seconds = "seconds_median",
     .each = "tokens",
     .label = {"weights"},
     .of = {{"tokens", "tokens", 1, 0},
            {"<weights", "weights", 0, 0},
            {"median s", "seconds_median", 1, 3},
            {"tokens/s", "tokens_per_second", 1, 0},
            {"GFLOP/s", "flops_per_second", 1e-9, 1},
            {"share of matmul", "share_of_matmul", 1, 2},
            {"share of peak", "share_of_peak", 1, 2},
            {"products", "share_of_products", 1, 3},
            {"attention", "share_of_attention", 1, 3},
            {"logit bits", "logit_bits", 1, 0},
            {"<granularity", "logit_granularity", 0, 0},
            {"times", "times_first_median", 1, 3}}},
    {.what = "attention",
     .caption =
         "Attention of one layer over a prompt: two softmaxes are both maps as attentions of their "
         "own over the same keys and values; times is against the first form, unrounded; as codes "
         "is "
         "the share of the pairs of query and key that are multiplied in int8.",
     .x = "tokens",
     .seconds = "seconds_median",
     .each = "tokens",
     .label = {"form"},
     .of = {{"tokens", "tokens", 1, 0},
            {"<form", "form", 0, 0},
            {"logit bits", "logit_bits", 1, 0},
            {"<granularity", "logit_granularity", 0, 0},
            {"ms", "seconds_median", 1e3, 2},
            {"GFLOP/s", "flops_per_second", 1e-9, 1},
            {"share of peak", "share_of_peak", 1, 2},
            {"times", "times_first_median", 1, 3},
            {"as codes", "share_of_codes", 1, 3}}},
    {.what = "generate",
     .caption =
         "Decoding with the whole model: GB/s are stored bytes of the weights and KV that a step "
         "reads, over its time; the shares are of a plain read of memory, and of the peak, "
         "multiply-adds on registers alone, timed in turns.",
     .x = "context",
     .seconds = "step_seconds_median",
     .each = "batch",
     .label = {"weights", "batch"},
     .of = {{"context", "context", 1, 0},
            {"batch", "batch", 1, 0},
            {"<weights", "weights", 0, 0},
            {"bits per weight", "bits_per_weight", 1, 2},
            {"ms/step", "step_seconds_median", 1e3, 3},
            {"tokens/s", "tokens_per_second", 1, 1},
            {"least", "tokens_per_second_min", 1, 1},
            {"most", "tokens_per_second_max", 1, 1},
            {"GB/s", "bytes_per_second", 1e-9, 1},
            {"share of read", "share_of_read", 1, 2},
            {"share of peak", "share_of_peak", 1, 2}}},
    {.what = "decode",
     .caption =
         "Attention of one token after a context, with nothing in the caches: the share is of a "
         "plain read of the KV; ms/token is the whole model, projections in f32.",
     .x = "context",
     .seconds = "token_seconds_median",
     .each = "",
     .label = {"kv_bits", "attention_math"},
     .of = {{"context", "context", 1, 0},
            {"<KV bits", "kv_bits", 0, 0},
            {"<attention", "attention_math", 0, 0},
            {"KV, MiB", "kv_bytes", 1.0 / 1048576, 2},
            {"ms", "attention_seconds_median", 1e3, 3},
            {"GB/s", "attention_bytes_per_second", 1e-9, 1},
            {"share of read", "share_of_read", 1, 2},
            {"times 16 bits", "speedup_over_16_bits", 1, 2},
            {"ms/token", "token_seconds_median", 1e3, 2}}},
    {.what = "evict",
     .caption =
         "Evicting three quarters of a context: what watching the prefill and evicting after it "
         "took more than a prefill that nobody watches, as a share of that.",
     .of = {{"tokens", "tokens", 1, 0},
            {"<policy", "policy", 0, 0},
            {"prefill s", "prefill_seconds_median", 1, 3},
            {"more", "over_prefill_median", 1, 3},
            {"least", "over_prefill_min", 1, 3},
            {"most", "over_prefill_max", 1, 3},
            {"evicting", "evicting_over_prefill_median", 1, 3}}},
    {.what = "items",
     .caption =
         "Scoring of short items: computed tokens, and beside them one long prefill and the bare "
         "products of the same rows.",
     .of = {{"<task", "task", 0, 0},
            {"items", "items", 1, 0},
            {"computed/s", "computed_tokens_per_second_median", 1, 0},
            {"naive/s", "naive_tokens_per_second_median", 1, 0},
            {"prefill/s", "prefill_tokens_per_second_median", 1, 0},
            {"of prefill", "share_of_prefill_median", 1, 2},
            {"of floor", "share_of_floor_median", 1, 2}}},
};
enum { N_WORKS = sizeof works / sizeof *works };

/* ---- Reading ---- */

/* NULL: none of these. */
static const work *work_of(const json_t *result)
{
    const char *what = dq_html_text(result, "what");
    for (int i = 0; i < N_WORKS; i++) {
        if (strcmp(works[i].what, what) == 0) return &works[i];
    }
    return NULL;
}

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    static const dq_html_members members[] = {{"", "model what", DQ_NEED_TEXT}, {0}};
    DQ_TRY(dq_html_check_members(result, where, members, err));
    const work *w = work_of(result);
    if (!w)
        return dq_fail(err, DQ_DAMAGED,
                       "%s: \"what\" is \"%.60s\" (expected prefill, attention, generate, decode, "
                       "evict or items)",
                       where, dq_html_text(result, "what"));
    const char *const number[] = {w->x, w->seconds, w->each};
    for (int i = 0; i < 3; i++) {
        const dq_html_members one[] = {{"", number[i], DQ_NEED_NUMBER}, {0}};
        if (number[i] && *number[i]) DQ_TRY(dq_html_check_members(result, where, one, err));
    }
    return DQ_OK;
}

dq_status dq_html_bench_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "model", check_result, err));
    for (int i = 0; i < h->n; i++) h->item[i].name = dq_html_text(h->item[i].j, "model");
    h->about =
        "Times are medians; one thread of the CPU is timed by processor time, several by the "
        "clock on the wall.";
    return err->code;
}

/* ---- Tables ---- */

static const json_t *settings_of(const dq_html *h, int i)
{
    return json_object_get(h->item[i].in->document, "settings");
}

static void put_row(dq_html *h, int i, const work *w)
{
    const json_t *j = h->item[i].j;
    const char *math = dq_html_text(settings_of(h, i), "math");
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, h->item[i].name);
    if (h->n_in > 1) dq_html_page_cell(h->p, dq_html_last(h->item[i].in->name));
    dq_html_count_cell(h, dq_html_real(settings_of(h, i), "threads"));
    dq_html_page_cell(h->p, *math ? math : "–");
    for (const column *c = w->of; c->title; c++) {
        const double x = c->times * dq_html_real(j, c->member);
        const char *text = dq_html_text(j, c->member);
        if (c->times == 0)
            dq_html_page_cell(h->p, *text ? text : "–");
        else if (isfinite(x))
            dq_html_page_cellf(h->p, "%.*f", c->digits, x);
        else
            dq_html_page_cellf(h->p, "–");
    }
    dq_html_page_html(h->p, "</tr>\n");
}

static void put_table(dq_html *h, const work *w)
{
    bool begun = false;
    for (int i = 0; i < h->n; i++) {
        if (work_of(h->item[i].j) != w) continue;
        if (!begun) {
            const char *titles[COLUMNS + 5] = {"<model"};
            int n = 1;
            if (h->n_in > 1) titles[n++] = "<document";
            titles[n++] = "threads";
            titles[n++] = "<arithmetic";
            for (const column *c = w->of; c->title; c++) titles[n++] = c->title;
            dq_html_page_table(h->p, w->caption, titles);
            begun = true;
        }
        put_row(h, i, w);
    }
    if (begun) dq_html_page_table_end(h->p);
}

void dq_html_bench_tables(dq_html *h)
{
    for (int i = 0; i < N_WORKS; i++) put_table(h, &works[i]);
}

/* ---- The curves ---- */

/* Words for the curve that a result lies on; equal ones lie on the same. NULL: on none. */
static const char *label_of(dq_html *h, int i)
{
    const json_t *j = h->item[i].j;
    const work *w = work_of(j);
    const char *math = dq_html_text(settings_of(h, i), "math");
    if (!w->x) return NULL;
    const char *label = dq_html_words(h, "%s: %s", h->item[i].name, w->what);
    for (int k = 0; k < LABELS && w->label[k]; k++) {
        const json_t *v = json_object_get(j, w->label[k]);
        if (json_is_string(v))
            label = dq_html_words(h, "%s, %s", label, json_string_value(v));
        else if (json_is_number(v))
            label = dq_html_words(h, "%s, %s %g", label, w->label[k], json_number_value(v));
    }
    const json_t *bits = json_object_get(j, "logit_bits"); /* 16 or none: not rounded */
    if (json_is_number(bits) && json_number_value(bits) < 16) {
        const char *granularity = dq_html_text(j, "logit_granularity");
        label = dq_html_words(h, "%s, %g-bit logits", label, json_number_value(bits));
        if (*granularity) label = dq_html_words(h, "%s, %s", label, granularity);
    }
    if (*math) label = dq_html_words(h, "%s, %s", label, math);
    label =
        dq_html_words(h, "%s, threads: %.0f", label, dq_html_real(settings_of(h, i), "threads"));
    if (h->n_in > 1) label = dq_html_words(h, "%s (%s)", label, dq_html_last(h->item[i].in->name));
    return label;
}

typedef struct point {
    double x, y; /* tokens, milliseconds */
} point;

static int by_x(const void *a, const void *b)
{
    const double x = ((const point *)a)->x, y = ((const point *)b)->x;
    return (x > y) - (x < y);
}

static point point_of(const json_t *j)
{
    const work *w = work_of(j);
    const double each = *w->each ? dq_html_real(j, w->each) : 1;
    const point p = {dq_html_real(j, w->x), 1e3 * dq_html_real(j, w->seconds) / each};
    const bool fits = p.x >= 1 && p.x <= 1e12 && p.y > 0 && p.y <= 1e12; /* logarithmic axes */
    return fits ? p : (point){(double)NAN, (double)NAN};
}

static void set_axis(const dq_html *h, dq_picture *c)
{
    double min = HUGE_VAL, max = 0;
    for (int i = 0; i < h->n; i++) {
        if (!work_of(h->item[i].j)->x) continue;
        const double x = point_of(h->item[i].j).x; /* fmin takes the other of a NaN and a number */
        min = fmin(min, x);
        max = fmax(max, x);
    }
    dq_html_token_axis(c, min, max);
}

/* The results that share the label of result `first`, upwards. */
static void draw_curve(dq_html *h, dq_picture *c, const char *const *label, int first, int number)
{
    int n = 0;
    for (int i = first; i < h->n; i++) n += label[i] && strcmp(label[i], label[first]) == 0;
    point *p = dq_alloc(h->a, (size_t)n, sizeof *p, h->p->err);
    double *x = dq_alloc(h->a, (size_t)n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, (size_t)n, sizeof *y, h->p->err);
    if (!p || !x || !y) return;
    n = 0;
    for (int i = first; i < h->n; i++) {
        if (!label[i] || strcmp(label[i], label[first]) != 0) continue;
        p[n] = point_of(h->item[i].j);
        n += isfinite(p[n].x);
    }
    qsort(p, (size_t)n, sizeof *p, by_x);
    for (int i = 0; i < n; i++) {
        x[i] = p[i].x;
        y[i] = p[i].y;
    }
    if (n) dq_picture_line(c, (dq_picture_style){number, number, number / 7}, n, x, y, NULL, NULL);
}

static bool is_first(const char *const *label, int i)
{
    if (!label[i]) return false;
    for (int k = 0; k < i; k++) {
        if (label[k] && strcmp(label[k], label[i]) == 0) return false;
    }
    return true;
}

bool dq_html_has_curves(const dq_html *h)
{
    for (int i = 0; i < h->n; i++) {
        if (work_of(h->item[i].j)->x) return true;
    }
    return false;
}

void dq_html_bench_growth(dq_html *h)
{
    const char **label = dq_alloc(h->a, (size_t)h->n, sizeof *label, h->p->err);
    dq_picture c;
    int number = 0;
    if (!label) return;
    for (int i = 0; i < h->n; i++) label[i] = label_of(h, i);
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"tokens in the context\"\nset logscale y\n"
                       "set ylabel \"milliseconds per token\"\n");
    set_axis(h, &c);
    for (int i = 0; i < h->n; i++) {
        if (is_first(label, i)) draw_curve(h, &c, label, i, number++);
    }
    dq_picture_end(
        &c, "Milliseconds per token over the tokens in the context. Tables hold the numbers.");
    dq_picture_legend_begin(h->p);
    for (int i = 0, k = 0; i < h->n; i++) {
        if (!is_first(label, i)) continue;
        dq_picture_legend_item(h->p, (dq_picture_style){k, k, k / 7}, label[i]);
        k++;
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "Time per token: of prefill and attention (one layer) the mean over "
                            "the prompt, of decoding that of one "
                            "token after the context, a batch sharing its step.");
    dq_picture_figure_end(h->p);
}
