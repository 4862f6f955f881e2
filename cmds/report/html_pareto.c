/* html_pareto: what the bytes of a KV cache buy, a curve for each policy and budget, and each code where they are compared: the
 * best that it reaches with so many bytes or fewer, over shares and widths. Its other points are dots. Rings are what dq eval has
 * decided to be on the Pareto front.
 * SPDX-License-Identifier: MIT */
#include "cmds/page/page_style.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <string.h>

/* As many as a list of 32 policies with five budgets each makes, and that of all tokens, each with three codes. */
enum { WIDE = 520, HIGH = 350, CURVES = (32 * 5 + 1) * 3 };

static const json_t *fronts_of(const dq_html *h)
{
    return json_object_get(h->document, "pareto_fronts");
}

static bool loses(const json_t *front)
{
    return strcmp(dq_html_text(front, "metric"), "kld_nats") == 0;
}

/* What a front is of: "model, task, 8-bit logits (row), f32". */
static const char *title_of(dq_html *h, const json_t *front)
{
    const double bits = dq_html_real(front, "logit_bits");
    const char *granularity =
        bits < 16 ? dq_html_words(h, " (%s)", dq_html_text(front, "logit_granularity")) : "";
    return dq_html_words(h, "%s, %s, %g-bit logits%s, %s", dq_html_text(front, "model"),
                         dq_html_text(front, "task"), bits, granularity,
                         dq_html_text(json_object_get(front, "math"), "linear"));
}

/* What chooses the tokens of a point: its policy, and what layers and heads get where that is not the same. Where codes are
 * compared, also how numbers become codes. */
typedef struct curve {
    const char *policy; /* "": all tokens are kept */
    const char *budget; /* "uniform": the same for all */
    const char *code;   /* "": any, or none */
    bool undithered;    /* of a point: its per-channel codes are dithered ones too */
} curve;

static curve curve_of(const dq_html *h, const json_t *point)
{
    const double at = dq_html_real(point, "result");
    const bool there = at >= 0 && at < h->n;
    const json_t *kv = there ? json_object_get(h->row[(int)at].j, "kv") : NULL;
    curve c = {dq_html_text(point, "policy"), dq_html_text(kv, "budget"),
               there && h->codes_differ ? h->row[(int)at].code : "",
               there && h->row[(int)at].undithered};
    if (!c.policy[0] || !c.budget[0]) c.budget = "uniform";
    if (strcmp(dq_html_text(point, "kept"), "least") == 0)
        c.policy = "nothing but first and last tokens";
    return c;
}

/* Whether a point is one of the curve: without codes it is one of the curve of each code, and per-channel codes that dithering leaves
 * alone are on both curves. */
static bool is_of(const curve *point, const curve *c)
{
    const bool code = !point->code[0] || strcmp(point->code, c->code) == 0 ||
                      (point->undithered && strcmp(c->code, "dither") == 0);
    return strcmp(point->policy, c->policy) == 0 && strcmp(point->budget, c->budget) == 0 && code;
}

/* By how many curves a point may belong to: those of one code alone come first, as others may lie on them. */
typedef enum stage { OF_ONE, OF_TWO, OF_ALL, STAGES } stage;

static stage stage_of(const curve *c)
{
    return !c->code[0] ? OF_ALL : c->undithered ? OF_TWO : OF_ONE;
}

/* The curves of a front in the order of the results, those of all tokens first. */
typedef struct curves {
    curve of[CURVES];
    int n;
} curves;

/* Adds the curves of points that keep all tokens or do not, that belong to one code, to two or to any. */
static void add_curves(curves *all, const dq_html *h, const json_t *front, bool cut, stage now)
{
    const json_t *points = json_object_get(front, "points"), *point;
    for (int row = 0; row < h->n; row++) {
        size_t i;
        json_array_foreach(points, i, point)
        {
            const curve c = curve_of(h, point);
            int at = 0;
            if (dq_html_real(point, "result") != row) continue;
            if ((c.policy[0] != 0) != cut || stage_of(&c) != now) continue;
            while (at < all->n && !is_of(&c, &all->of[at])) at++;
            if (at == all->n && all->n < CURVES) all->of[all->n++] = c;
        }
    }
}

static curves curves_of(const dq_html *h, const json_t *front)
{
    curves all = {{{"", "uniform", "", false}}, 0};
    for (int s = 0; s < STAGES; s++) add_curves(&all, h, front, false, (stage)s);
    if (!all.n) all.n = 1; /* its place and colour are kept */
    for (int s = 0; s < STAGES; s++) add_curves(&all, h, front, true, (stage)s);
    return all;
}

static const char *name_of(dq_html *h, const curve *c)
{
    const char *code = c->code[0] ? dq_html_words(h, ", %s codes", c->code) : "";
    if (!c->policy[0]) return dq_html_words(h, "all tokens kept%s", code);
    if (strcmp(c->budget, "uniform") == 0) return dq_html_words(h, "%s%s", c->policy, code);
    return dq_html_words(h, "%s, budget %s%s", c->policy, c->budget, code);
}

static dq_picture_style style_of(int place)
{
    return (dq_picture_style){place, place + place / DQ_PAGE_MARKS,
                              place / (DQ_PAGE_MARKS * DQ_PAGE_MARKS)};
}

/* Points of a picture, of one curve (NULL: of all). */
typedef struct points {
    double *x, *y;
    int n;
} points;

static bool can_draw(const json_t *front, const json_t *point)
{
    const double y = dq_html_real(point, "value");
    return isfinite(dq_html_real(point, "share")) && isfinite(y) && (y > 0 || !loses(front));
}

typedef bool takes_point(const json_t *front, const json_t *point, double best);

/* Better than all with fewer bytes. */
static bool improves(const json_t *front, const json_t *point, double best)
{
    const double y = dq_html_real(point, "value");
    return isnan(best) || (loses(front) ? y < best : y > best);
}

static bool is_dot(const json_t *front, const json_t *point, double best)
{
    return !improves(front, point, best);
}

static bool is_ringed(const json_t *front, const json_t *point, double best)
{
    (void)front;
    (void)best;
    return strcmp(dq_html_text(point, "is"), "on the Pareto front") == 0;
}

/* Points come by bytes. */
static void collect(points *p, const dq_html *h, const json_t *front, const curve *of,
                    takes_point *takes)
{
    double best = (double)NAN;
    const json_t *point;
    size_t i;
    p->n = 0;
    json_array_foreach(json_object_get(front, "points"), i, point)
    {
        const curve its = curve_of(h, point);
        if (!can_draw(front, point) || (of && !is_of(&its, of))) continue;
        if (takes(front, point, best)) {
            p->x[p->n] = dq_html_real(point, "share");
            p->y[p->n++] = dq_html_real(point, "value");
        }
        if (improves(front, point, best)) best = dq_html_real(point, "value");
    }
}

/* The least and the most of the values that are drawn. */
static void reach_of(double reach[2], const json_t *front)
{
    const json_t *point;
    size_t i;
    reach[0] = reach[1] = (double)NAN;
    json_array_foreach(json_object_get(front, "points"), i, point)
    {
        if (!can_draw(front, point)) continue;
        reach[0] = fmin(reach[0], dq_html_real(point, "value"));
        reach[1] = fmax(reach[1], dq_html_real(point, "value"));
    }
}

static void draw(dq_html *h, const json_t *front, const curves *all)
{
    const size_t n = json_array_size(json_object_get(front, "points"));
    const char *task = dq_html_text(front, "task");
    dq_picture c;
    double reach[2];
    points p = {dq_alloc(h->a, n, sizeof *p.x, h->p->err),
                dq_alloc(h->a, n, sizeof *p.y, h->p->err), 0};
    if (!p.x || !p.y) return;
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    dq_picture_set(&c, "set xlabel \"bytes held / bytes of a 16-bit cache of all tokens\"\n"
                       "set logscale x 2\nset format x \"%%g\"\n"
                       "set offsets graph 0.05, graph 0.05, graph 0.08, graph 0.05\n");
    reach_of(reach, front);
    if (loses(front)) {
        dq_html_loss_axis(&c, reach[0], reach[1]);
        dq_picture_set(&c, "set ylabel \"KL divergence, nats per token\"\n");
    } else {
        dq_html_score_axis(&c, reach[0], reach[1]);
        dq_picture_set(&c, "set ylabel \"%s\"\n",
                       strcmp(dq_html_text(front, "metric"), "exact_match") == 0 ? "exact match"
                                                                                 : "accuracy");
    }
    collect(&p, h, front, NULL, is_ringed);
    dq_picture_rings(&c, p.n, p.x, p.y);
    for (int i = 0; i < all->n; i++) {
        collect(&p, h, front, &all->of[i], improves);
        dq_picture_line(&c, style_of(i), p.n, p.x, p.y, NULL, NULL);
        collect(&p, h, front, &all->of[i], is_dot);
        dq_picture_dots(&c, style_of(i), p.n, p.x, p.y);
    }
    dq_picture_end(
        &c,
        dq_html_words(
            h,
            "%s on %s over the bytes that the KV cache holds, by policy%s. The table holds the "
            "numbers.",
            loses(front) ? "KL divergence" : "Accuracy", task, h->codes_differ ? " and code" : ""));
}

static void figure(dq_html *h, const json_t *front)
{
    const curves all = curves_of(h, front);
    dq_picture_figure_begin(h->p);
    draw(h, front, &all);
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < all.n; i++)
        dq_picture_legend_item(h->p, style_of(i), name_of(h, &all.of[i]));
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_text(h->p, title_of(h, front));
    dq_html_page_html(
        h->p,
        ": %s over the bytes held (codes, scales, unquantized tokens and indices, as allocated), "
        "as a share of 2 bytes "
        "for every element of every token. A curve joins the best points of a policy and budget%s, "
        "over shares kept and widths; "
        "dots are its others. A ring: decided to be better than everything that holds no more.",
        loses(front) ? "KL divergence from the reference" : "the score",
        h->codes_differ
            ? " with one kind of codes (16 bits have none and belong to all, per-channel codes "
              "of values that dithering leaves alone also to dithered ones)"
            : "");
    dq_picture_figure_end(h->p);
}

/* The label of the point whose result has this index. */
static const char *label_at(const json_t *front, const json_t *result)
{
    const json_t *point;
    size_t i;
    json_array_foreach(json_object_get(front, "points"), i, point)
    {
        if (json_is_integer(result) && json_equal(json_object_get(point, "result"), result))
            return dq_html_text(point, "kv_label");
    }
    return "nothing holds as little";
}

static void table(dq_html *h, const json_t *front)
{
    static const char *const titles[] = {"<KV cache", "bytes held", "share of 16 bits",
                                         "value",     "<front",     "<compared with",
                                         "worse by",  "interval",   NULL};
    const double n = dq_html_real(front, "comparisons");
    const json_t *point;
    size_t i;
    dq_html_page_html(h->p, "<p>");
    dq_html_page_text(h->p, title_of(h, front));
    dq_html_page_html(
        h->p,
        ": on the Pareto front is what is better than each cache of no more bytes (up to 1 %% "
        "more), by paired 95 %% intervals; "
        "after is what one of them is better than; about the others nothing is "
        "decided. From a share of 1 on a cache saves nothing at this context. %.0f comparisons: "
        "about "
        "%.1f of their intervals are expected to miss by chance.</p>\n",
        n, 0.05 * n);
    dq_html_page_table(h->p,
                       "Caches by bytes held; value is the score, or nats of KLD. Each is compared "
                       "with the one of no "
                       "more bytes that decided, or came nearest to it.",
                       titles);
    json_array_foreach(json_object_get(front, "points"), i, point)
    {
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, dq_html_text(point, "kv_label"));
        dq_html_page_cellf(h->p, "%.0f", dq_html_real(point, "bytes_held"));
        dq_html_page_value(h->p, dq_html_real(point, "share"), (double)NAN);
        dq_html_page_value(h->p, dq_html_real(point, "value"), dq_html_real(point, "stderr"));
        dq_html_page_cell(h->p, dq_html_text(point, "is"));
        dq_html_page_cell(h->p, label_at(front, json_object_get(point, "against")));
        dq_html_page_value(h->p, dq_html_real(point, "worse"), (double)NAN);
        dq_html_interval_cell(h, point);
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
}

bool dq_html_has_pareto(const dq_html *h)
{
    return json_array_size(fronts_of(h)) > 0;
}

void dq_html_pareto(dq_html *h)
{
    const json_t *front;
    size_t i;
    dq_html_page_html(h->p, "<div class=\"pair\">\n");
    json_array_foreach(fronts_of(h), i, front) figure(h, front);
    dq_html_page_html(h->p, "</div>\n");
    json_array_foreach(fronts_of(h), i, front) table(h, front);
}

bool dq_html_front_shows(const dq_html *h, const char *task)
{
    const json_t *front;
    size_t i;
    json_array_foreach(fronts_of(h), i, front)
    {
        const double at =
            dq_html_real(json_array_get(json_object_get(front, "points"), 0), "result");
        if (at >= 0 && at < h->n && strcmp(h->row[(int)at].task, task) == 0) return true;
    }
    return false;
}
