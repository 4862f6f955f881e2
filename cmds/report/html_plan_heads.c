/* html_plan_heads: what a plan of which KV heads are for retrieval found: who shares what the cache may keep and who is cut, what
 * cutting each group alone costs, the loss by number of groups that share, and the comparison with the uniform share. Groups
 * stand in the document in order of need; the map puts them back into their layers.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_plan_cache.h"
#include "cmds/report/html_sections.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDE = 620, HIGH = 330, GROUPS = 1024 /* of a model, at most */, SINGLE_TICKS = 16 };

/* ----- reading ----- */

/* Text for a command line to copy: of nothing but these characters. */
static dq_status check_word(const json_t *kv, const char *key, const char *of, const char *where,
                            dq_err *err)
{
    DQ_TRY(dq_html_check(kv, key, DQ_NEED_TEXT, where, err));
    const char *text = dq_html_text(kv, key);
    if (*text && text[strspn(text, of)] == 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED,
                   "%s: \"%s\" is \"%.40s\" (expected one or more of %s). Is the document edited?",
                   where, key, text, of);
}

static dq_status check_kv(const json_t *kv, const char *where, dq_err *err)
{
    static const char *const numbers[] = {"keep", "sink", "recent"};
    DQ_TRY(check_word(kv, "policy", "abcdefghijklmnopqrstuvwxyz0123456789_", where, err));
    DQ_TRY(check_word(kv, "heads", "0123456789.,/", where, err));
    for (int k = 0; k < 3; k++) DQ_TRY(dq_html_check(kv, numbers[k], DQ_NEED_NUMBER, where, err));
    return DQ_OK;
}

static dq_status check_trial(const json_t *row, const char *where, dq_err *err)
{
    DQ_TRY(dq_html_check(row, "sharing", DQ_NEED_NUMBER, where, err));
    DQ_TRY(dq_html_check(row, "kld_nats", DQ_NEED_NUMBER_OR_NULL, where, err));
    DQ_TRY(dq_html_check(row, "lack_nats", DQ_NEED_NUMBER_OR_NULL, where, err));
    return dq_html_check(row, "taken", DQ_NEED_BOOL, where, err);
}

static dq_status check_group(const json_t *row, const char *where, dq_err *err)
{
    static const char *const place[] = {"layer", "group"};
    char inside[100];
    for (int k = 0; k < 2; k++) {
        DQ_TRY(dq_html_check(row, place[k], DQ_NEED_NUMBER, where, err));
        const double x = dq_html_real(row, place[k]);
        if (!(x >= 0 && x < GROUPS && x == floor(x)))
            return dq_fail(err, DQ_DAMAGED, "%s: \"%s\" is %g (expected a number from 0 to %d)",
                           where, place[k], x, GROUPS - 1);
    }
    DQ_TRY(dq_html_check(row, "shares", DQ_NEED_BOOL, where, err));
    DQ_TRY(dq_html_check(row, "alone", DQ_NEED_OBJECT_OR_NULL, where, err));
    if (json_is_object(json_object_get(row, "alone")))
        DQ_TRY(dq_html_check_losses(row, "alone", where, err));
    DQ_TRY(dq_html_check(row, "lack_nats", DQ_NEED_OBJECT_OR_NULL, where, err));
    if (json_is_null(json_object_get(row, "lack_nats"))) {
        if (json_is_object(json_object_get(row, "alone"))) return DQ_OK;
        return dq_fail(err, DQ_DAMAGED,
                       "%s: \"alone\" and \"lack_nats\" are null (expected what windows or "
                       "questions measured). Is the document edited?",
                       where);
    }
    snprintf(inside, sizeof inside, "%s.lack_nats", where);
    return dq_html_check(json_object_get(row, "lack_nats"), "value", DQ_NEED_NUMBER_OR_NULL, inside,
                         err);
}

static dq_status check_uniform(const json_t *row, const char *where, dq_err *err)
{
    DQ_TRY(dq_html_check_losses(row, "unseen", where, err));
    return dq_html_check_intervals(row, "plan_less_it", where, err);
}

/* Layers and groups of each; and where in the list each group stands: at[layer * groups + group]. */
typedef struct map {
    int layers, groups;
    const json_t *at[GROUPS];
} map;

/* False: not each group of each layer is there once. */
static bool map_of(map *m, const json_t *result)
{
    const json_t *list = json_object_get(result, "units"), *row;
    size_t i;
    memset(m, 0, sizeof *m);
    json_array_foreach(list, i, row)
    {
        m->layers = (int)fmax(m->layers, dq_html_real(row, "layer") + 1);
        m->groups = (int)fmax(m->groups, dq_html_real(row, "group") + 1);
    }
    if (m->layers * m->groups > GROUPS) return false;
    json_array_foreach(list, i, row)
    {
        const json_t **at =
            &m->at[(int)dq_html_real(row, "layer") * m->groups + (int)dq_html_real(row, "group")];
        if (*at) return false;
        *at = row;
    }
    return i > 0 && (int)i == m->layers * m->groups;
}

/* Members that say the same thing twice. */
static dq_status check_shares(const json_t *result, const char *where, dq_err *err)
{
    const json_t *list = json_object_get(result, "units"), *row;
    const double sharing = dq_html_real(json_object_get(result, "chosen"), "sharing");
    size_t i, n = 0;
    map m;
    if (!map_of(&m, result))
        return dq_fail(err, DQ_DAMAGED,
                       "%s: \"units\" holds %zu groups, which are no map (expected each group of "
                       "each layer once, at most %d). Is the document cut or edited?",
                       where, json_array_size(list), GROUPS);
    json_array_foreach(list, i, row) n += json_is_true(json_object_get(row, "shares"));
    if (!(sharing == (double)n))
        return dq_fail(err, DQ_DAMAGED,
                       "%s: \"sharing\" is %g (expected %zu, the groups that share). Is the "
                       "document edited?",
                       where, sharing, n);
    if (json_array_size(json_object_get(result, "baselines")) != (n == i ? 0 : 1))
        return dq_fail(err, DQ_DAMAGED,
                       "%s: \"baselines\" holds %zu (expected none where all groups share, else "
                       "one). Is the document edited?",
                       where, json_array_size(json_object_get(result, "baselines")));
    return DQ_OK;
}

static dq_status check_result(const json_t *result, const char *where, dq_err *err)
{
    static const dq_html_members members[] = {{"chosen", "sharing", DQ_NEED_NUMBER}, {0}};
    char inside[60];
    DQ_TRY(dq_html_check_whole_run(result, where, err));
    snprintf(inside, sizeof inside, "%s.chosen.kv", where);
    DQ_TRY(check_kv(json_object_get(json_object_get(result, "chosen"), "kv"), inside, err));
    DQ_TRY(dq_html_check_members(result, where, members, err));
    DQ_TRY(dq_html_check_list(result, "baselines", check_uniform, where, err));
    DQ_TRY(dq_html_check_list(result, "trials", check_trial, where, err));
    DQ_TRY(dq_html_check_list(result, "units", check_group, where, err));
    return check_shares(result, where, err);
}

dq_status dq_html_plan_heads_read(dq_html *h, dq_err *err)
{
    DQ_TRY(dq_html_items(h, "path", check_result, err));
    h->about = "KLD is in nats per id. It and the perplexity are against the same weights with a "
               "cache that evicts nothing, on the second half of each window. What answers lack "
               "is −ln of the right answer&#39;s share of all choices, in nats, the mean over "
               "questions. ± is one standard error: between documents, or between windows of a "
               "single one; of answers between questions.";
    return err->code;
}

/* ----- the heads, and the uniform share ----- */

/* The settings of dq eval and of the other commands, to copy. */
static void settings_line(dq_html *h, int i)
{
    const json_t *kv = dq_html_chosen(h, i, "kv");
    dq_html_page_html(h->p, "<p>");
    dq_html_page_text(h->p, h->item[i].name);
    dq_html_page_html(h->p, ", as settings of a command:</p>\n<pre>");
    dq_html_page_text(h->p,
                      dq_html_words(h,
                                    "--kv-policy %s --kv-keep %.15g --kv-sink %.0f --kv-recent "
                                    "%.0f --kv-budget heads --kv-heads %s",
                                    dq_html_text(kv, "policy"), dq_html_real(kv, "keep"),
                                    dq_html_real(kv, "sink"), dq_html_real(kv, "recent"),
                                    dq_html_text(kv, "heads")));
    dq_html_page_html(h->p, "</pre>\n");
}

void dq_html_plan_heads_chosen(dq_html *h)
{
    static const char *const titles[] = {"<plan",        "<--kv-policy", "--kv-keep",
                                         "--kv-sink",    "--kv-recent",  "groups that share",
                                         "KLD",          "its interval", "perplexity, %",
                                         "its interval", "nominally, %", NULL};
    dq_html_page_table(h->p, "What was chosen, and what it loses on windows that no choice saw.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *kv = dq_html_chosen(h, i, "kv");
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, h->item[i].name);
        dq_html_page_cell(h->p, dq_html_text(kv, "policy"));
        dq_html_page_cellf(h->p, "%.15g", dq_html_real(kv, "keep"));
        dq_html_count_cell(h, dq_html_real(kv, "sink"));
        dq_html_count_cell(h, dq_html_real(kv, "recent"));
        dq_html_page_cellf(h->p, "%.0f of %zu",
                           dq_html_real(dq_html_member(h, i, "chosen"), "sharing"),
                           json_array_size(dq_html_member(h, i, "units")));
        dq_html_found_cells(h, dq_html_chosen(h, i, "unseen"));
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_page_table_end(h->p);
    for (int i = 0; i < h->n; i++) settings_line(h, i);
}

static dq_html_baselines baselines_of(dq_html *h)
{
    dq_html_baselines r = {.all = "the uniform share", .one = "the uniform share"};
    r.at = dq_alloc(h->a, (size_t)h->n, sizeof *r.at, h->p->err);
    for (int i = 0; i < h->n && r.at; i++) {
        const json_t *uniform = json_array_get(dq_html_member(h, i, "baselines"), 0);
        if (!uniform) continue;
        r.at[r.n++] = (dq_html_baseline){
            i, i, dq_html_words(h, "%s against the uniform share", h->item[i].name),
            dq_html_chosen(h, i, "unseen"), uniform};
    }
    return r;
}

void dq_html_plan_heads_uniform(dq_html *h)
{
    static const char *const titles[] = {"<plan",        "<what",      "of the plan",
                                         "of uniform",   "difference", "its interval",
                                         "nominally, %", "<decision",  NULL};
    const dq_html_baselines r = baselines_of(h);
    if (r.n) {
        dq_html_baselines_pictures(h, &r);
        dq_html_page_table(h->p,
                           "The plan beside the uniform share, which keeps as much in every group, "
                           "on windows that no choice saw. An interval that holds 0 decides "
                           "nothing.",
                           titles);
        for (int i = 0; i < 2 * r.n; i++) {
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, i % 2 ? "" : h->item[r.at[i / 2].plan].name);
            dq_html_baseline_cells(h, &r, i / 2, i % 2);
            dq_html_page_html(h->p, "</tr>\n");
        }
        dq_html_page_table_end(h->p);
    }
    for (int i = 0; i < h->n; i++) {
        if (json_array_size(dq_html_member(h, i, "baselines"))) continue;
        dq_html_page_html(h->p, "<p>");
        dq_html_page_text(h->p, h->item[i].name);
        dq_html_page_html(h->p, ": the plan is this one: all groups share, so each keeps as much. "
                                "Nothing is compared.</p>\n");
    }
}

/* ----- groups alone ----- */

/* What cutting a group alone costs: the KLD, or what answers lack. */
static double cost_of(const json_t *group, bool asked, double *std_err)
{
    return asked ? dq_html_metric(group, "lack_nats", std_err)
                 : dq_html_metric(json_object_get(group, "alone"), "kld_nats", std_err);
}

static const char *role_of(const json_t *group)
{
    return json_is_true(json_object_get(group, "shares")) ? "shares" : "cut";
}

/* Whether windows found the heads, or questions. */
static bool is_measured(const dq_html *h, int i, bool asked)
{
    const json_t *group = json_array_get(dq_html_member(h, i, "units"), 0);
    return json_is_object(json_object_get(group, asked ? "lack_nats" : "alone"));
}

static void heat_map(dq_html *h, int i, bool asked)
{
    dq_html_shades s = DQ_HTML_NO_SHADES;
    map m;
    map_of(&m, h->item[i].j);
    for (int g = 0; g < m.layers * m.groups; g++)
        dq_html_shades_add(&s, cost_of(m.at[g], asked, NULL));
    dq_html_heat_begin(
        h, dq_html_words(h, "%s: %s", h->item[i].name, asked ? "what the answers lack" : "KLD"),
        asked ? "Groups alone, answers" : "Groups alone", "layer \\ group");
    for (int g = 0; g < m.groups; g++) dq_html_page_html(h->p, "<th scope=\"col\">%d</th>", g);
    dq_html_heat_rows(h);
    for (int l = 0; l < m.layers; l++) {
        dq_html_page_html(h->p, "<tr><th scope=\"row\">%d</th>", l);
        for (int g = 0; g < m.groups; g++) {
            const json_t *group = m.at[l * m.groups + g];
            const char *role = role_of(group);
            double se, x = cost_of(group, asked, &se);
            dq_html_heat_cell(h, &s, x, se, strcmp(role, "shares") == 0, role);
        }
        dq_html_page_html(h->p, "</tr>\n");
    }
    dq_html_heat_end(h);
}

static void group_rows(dq_html *h, int i)
{
    const json_t *group;
    size_t k;
    json_array_foreach(dq_html_member(h, i, "units"), k, group)
    {
        dq_html_page_html(h->p, "<tr>");
        dq_html_page_cell(h->p, k ? "" : h->item[i].name);
        dq_html_page_cellf(h->p, "%.0f.%.0f", dq_html_real(group, "layer"),
                           dq_html_real(group, "group"));
        dq_html_page_cell(h->p, role_of(group));
        for (int asked = 0; asked < 2; asked++) {
            double se, x = cost_of(group, asked, &se);
            dq_html_page_value(h->p, x, se);
        }
        dq_html_page_html(h->p, "</tr>\n");
    }
}

void dq_html_plan_heads_groups(dq_html *h)
{
    static const char *const titles[] = {"<plan", "layer.group",  "<role",
                                         "KLD",   "answers lack", NULL};
    dq_html_page_html(h->p, "<p>What it costs ± one standard error to cut one group of KV heads to "
                            "the first and last tokens, while the others keep all: the KLD on the "
                            "windows that find, and where questions count what their answers lack. "
                            "Darker: more, by its logarithm. In bold: the groups that share what "
                            "the cache may keep; the others are cut.</p>\n<div class=\"maps\">\n");
    for (int i = 0; i < h->n; i++) {
        for (int asked = 0; asked < 2; asked++) {
            if (is_measured(h, i, asked)) heat_map(h, i, asked);
        }
    }
    dq_html_page_html(h->p, "</div>\n");
    dq_html_page_fold(h->p, "All groups in order of need", false);
    dq_html_page_table(h->p, "All groups, the first needs most, with what it costs to cut each.",
                       titles);
    for (int i = 0; i < h->n; i++) group_rows(h, i);
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

/* ----- how many share ----- */

/* What a choice goes by, and of what it is the sum where both windows and questions count. */
typedef enum part { ALL, KLD, LACK, PARTS } part;

static double lost(const json_t *trial, part of)
{
    const double kld = dq_html_real(trial, "kld_nats"), lack = dq_html_real(trial, "lack_nats");
    if (of == ALL) return isnan(kld) ? lack : isnan(lack) ? kld : kld + lack;
    return of == KLD ? kld : lack;
}

static const char *part_name(const dq_html *h, int i, part of)
{
    static const char *const names[] = {"KLD + answers", "KLD", "answers lack"};
    if (of == ALL && !is_measured(h, i, true)) return names[KLD];
    if (of == ALL && !is_measured(h, i, false)) return names[LACK];
    return names[of];
}

/* Parts that are drawn of a plan: the sum, and its terms where there are two. */
static int parts_of(const dq_html *h, int i)
{
    return is_measured(h, i, false) && is_measured(h, i, true) ? PARTS : 1;
}

static dq_picture_style style_of(int i, part of)
{
    return (dq_picture_style){i, i + (int)of, (int)of};
}

/* Least and most of the numbers that share, and of the losses above 0, of the plans of a page. */
static void reach_of(double x[2], double y[2], const dq_html *h)
{
    const json_t *trial;
    size_t k;
    x[0] = x[1] = y[0] = y[1] = (double)NAN;
    for (int i = 0; i < h->n; i++) {
        json_array_foreach(dq_html_member(h, i, "trials"), k, trial)
        {
            x[0] = fmin(x[0], dq_html_real(trial, "sharing"));
            x[1] = fmax(x[1], dq_html_real(trial, "sharing"));
            for (int of = 0; of < parts_of(h, i); of++) {
                const double its = lost(trial, (part)of);
                if (!(its > 0)) continue;
                y[0] = fmin(y[0], its);
                y[1] = fmax(y[1], its);
            }
        }
    }
}

/* The lines of a plan, or a ring around what was taken. */
static void draw_plan(dq_html *h, dq_picture *c, int i, bool taken)
{
    const json_t *list = dq_html_member(h, i, "trials"), *trial;
    const size_t n = json_array_size(list);
    double *x = dq_alloc(h->a, n, sizeof *x, h->p->err);
    double *y = dq_alloc(h->a, n, sizeof *y, h->p->err);
    size_t k;
    if (!x || !y) return;
    for (int of = 0; of < (taken ? 1 : parts_of(h, i)); of++) {
        json_array_foreach(list, k, trial)
        {
            const bool its = !taken || json_is_true(json_object_get(trial, "taken"));
            x[k] = dq_html_real(trial, "sharing");
            y[k] = lost(trial, (part)of);
            if (!its || !(y[k] > 0)) y[k] = (double)NAN; /* 0 has no place on a logarithmic axis */
        }
        if (taken)
            dq_picture_rings(c, (int)n, x, y);
        else
            dq_picture_line(c, style_of(i, (part)of), (int)n, x, y, NULL, NULL);
    }
}

static void sharing_picture(dq_html *h)
{
    dq_picture c;
    double x[2], y[2];
    reach_of(x, y, h);
    dq_picture_figure_begin(h->p);
    dq_picture_begin(&c, h->p, WIDE, HIGH);
    if (x[1] > SINGLE_TICKS)
        dq_html_token_axis(&c, x[0], x[1]);
    else if (isfinite(x[1]))
        dq_picture_set(&c, "set xrange [%g:%g]\nset xtics 1\n", x[0] - 0.4, x[1] + 0.4);
    dq_picture_set(&c, "set xlabel \"groups that share\"\nset ylabel \"loss, nats\"\n");
    dq_html_loss_axis(&c, y[0], y[1]);
    for (int i = 0; i < h->n; i++) draw_plan(h, &c, i, true);
    for (int i = 0; i < h->n; i++) draw_plan(h, &c, i, false);
    dq_picture_end(&c, "Loss over the number of groups that share. The next table holds the "
                       "numbers.");
    dq_picture_legend_begin(h->p);
    for (int i = 0; i < h->n; i++) {
        for (int of = 0; of < parts_of(h, i); of++)
            dq_picture_legend_item(
                h->p, style_of(i, (part)of),
                dq_html_words(h, "%s, %s", h->item[i].name, part_name(h, i, (part)of)));
    }
    dq_picture_legend_end(h->p);
    dq_picture_figure_caption(h->p);
    dq_html_page_html(h->p, "What is lost where so many groups, in order of need, share what the "
                            "cache may keep and the others are cut, on the windows and questions "
                            "that find. A ring: taken, as it loses least. Points have no "
                            "intervals: other windows decide.");
    dq_picture_figure_end(h->p);
}

static void loss_cell(dq_html *h, double x)
{
    if (isfinite(x))
        dq_html_page_cellf(h->p, "%.4g", x);
    else
        dq_html_page_cellf(h->p, "–");
}

void dq_html_plan_heads_sharing(dq_html *h)
{
    static const char *const titles[] = {
        "<plan", "groups that share", "KLD", "answers lack", "what counts", "<taken", NULL};
    static const part order[] = {KLD, LACK, ALL};
    sharing_picture(h);
    dq_html_page_table(h->p,
                       "What is lost by number of groups that share. What counts is the KLD, what "
                       "answers lack, or the sum where both are asked for.",
                       titles);
    for (int i = 0; i < h->n; i++) {
        const json_t *trial;
        size_t k;
        json_array_foreach(dq_html_member(h, i, "trials"), k, trial)
        {
            dq_html_page_html(h->p, "<tr>");
            dq_html_page_cell(h->p, k ? "" : h->item[i].name);
            dq_html_count_cell(h, dq_html_real(trial, "sharing"));
            for (int of = 0; of < PARTS; of++) loss_cell(h, lost(trial, order[of]));
            dq_html_page_cell(h->p, json_is_true(json_object_get(trial, "taken")) ? "yes" : "");
            dq_html_page_html(h->p, "</tr>\n");
        }
    }
    dq_html_page_table_end(h->p);
}
