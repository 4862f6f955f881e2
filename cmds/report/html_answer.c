/* html_answer: what the documents of a page say in short, before its table of contents. A sentence stands only where an interval
 * bears it; the table below has these intervals.
 * SPDX-License-Identifier: MIT */
#include "cmds/report/html_sensitivity.h"
#include "cmds/report/html_settings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ----- lowest settings ----- */

/* Whether another document has the same kind of settings of the model, so that a sentence must say which one it is about. */
static bool in_several(const dq_html_setting *all, int n, const dq_html_setting *s)
{
    for (int i = 0; i < n; i++) {
        const dq_html_setting *o = &all[i];
        if (o->axis == s->axis && (o->h != s->h || strcmp(o->row->task, s->row->task) != 0) &&
            strcmp(o->model, s->model) == 0 && strcmp(o->kind, s->kind) == 0)
            return true;
    }
    return false;
}

/* "8 bits", "8.26 bits per weight (w8.h5)", "4:4 (0.31 of its 16-bit bytes)". */
static const char *found_words(dq_html *h, const dq_html_setting *s)
{
    if (s->axis == DQ_HTML_LOGITS) return s->label;
    if (s->axis == DQ_HTML_WEIGHTS)
        return dq_html_words(h, "%.2f bits per weight (%s)", s->size, s->label);
    return dq_html_words(h, "%s (%.2f of 16-bit bytes)", s->label, s->size);
}

static bool any_open(const dq_html_setting *group, int n)
{
    for (int i = 0; i < n; i++) {
        if (group[i].is != DQ_EXCEEDS) return true;
    }
    return false;
}

static void group_words(dq_html *h, const dq_html_setting *all, int n_all,
                        const dq_html_setting *group, int n, const char *before)
{
    const dq_html_setting *found = dq_html_settings_lowest(group, n);
    dq_html_page_html(h->p, "%s%s ", before, dq_html_axis_names[group->axis]);
    if (*group->kind) {
        dq_html_page_text(h->p, group->kind);
        dq_html_page_html(h->p, " ");
    }
    dq_html_page_html(h->p, "<b>");
    dq_html_page_text(h->p, found                ? found_words(h, found)
                            : any_open(group, n) ? "inconclusive"
                                                 : "none that was tested");
    dq_html_page_html(h->p, "</b>");
    if (!in_several(all, n_all, group)) return;
    dq_html_page_html(h->p, " (");
    dq_html_page_text(h->p, dq_html_settings_where(h, group));
    dq_html_page_html(h->p, ")");
}

/* One sentence a model; settings lower in several ways answer for no axis. */
static void sentences(dq_html *h, const dq_html_setting *all, int n)
{
    for (int i = 0, next; i < n; i = next) {
        bool begun = false;
        for (next = i; next < n && strcmp(all[next].model, all[i].model) == 0;) {
            const int size = dq_html_settings_group(&all[next], n - next);
            if (all[next].axis != DQ_HTML_MIXED) {
                if (!begun) {
                    dq_html_page_html(h->p, "<p class=\"says\">Lowest settings of ");
                    dq_html_page_text(h->p, all[i].model);
                    dq_html_page_html(h->p, " within KLD %g nats: ", DQ_HTML_KLD_LIMIT);
                }
                group_words(h, all, n, &all[next], size, begun ? "; " : "");
                begun = true;
            }
            next += size;
        }
        if (begun) dq_html_page_html(h->p, ".</p>\n");
    }
}

/* "6 bits, 5 bits": labels of a group with a decision; the first few of many. */
static const char *labels_of(dq_html *h, const dq_html_setting *group, int n,
                             dq_interval_decision is)
{
    enum { MOST = 4 };
    const char *words = "";
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (group[i].is != is || ++found > MOST) continue;
        words = dq_html_words(h, "%s%s%s", words, *words ? ", " : "", group[i].label);
    }
    if (found > MOST) return dq_html_words(h, "%s and %d more", words, found - MOST);
    return *words ? words : "–";
}

static void group_row(dq_html *h, const dq_html_setting *group, int n, const char *model)
{
    const dq_html_setting *found = dq_html_settings_lowest(group, n);
    dq_html_page_html(h->p, "<tr>");
    dq_html_page_cell(h->p, model);
    dq_html_page_cell(h->p, dq_html_words(h, "%s%s%s", dq_html_axis_names[group->axis],
                                          *group->kind ? ", " : "", group->kind));
    dq_html_page_cell(h->p, dq_html_settings_where(h, group));
    dq_html_page_cell(h->p, found ? found_words(h, found) : "–");
    dq_html_real_cell(h, found ? found->kld : (double)NAN);
    dq_html_ends_cell(h, found ? found->interval.low : (double)NAN,
                      found ? found->interval.high : (double)NAN);
    dq_html_page_cell(h->p, labels_of(h, group, n, DQ_INCONCLUSIVE));
    dq_html_page_cell(h->p, labels_of(h, group, n, DQ_EXCEEDS));
    dq_html_page_html(h->p, "</tr>\n");
}

static void lowest_table(dq_html *h, const dq_html_setting *all, int n)
{
    static const char *const titles[] = {"<model",         "<what",    "<task",
                                         "<lowest within", "KLD",      "95 % interval",
                                         "<inconclusive",  "<exceeds", NULL};
    const char *model = "";
    dq_html_page_fold(h->p, "What this follows from", false);
    dq_html_page_html(
        h->p,
        "<p>A setting is within the limit if the upper end of the 95 %% interval of its KL "
        "divergence from its reference is at most %g nats per token; it exceeds it if the lower "
        "end is above; else it is inconclusive. Of logits the lowest counts with every larger "
        "width that was tested. What else could be lower is as in the reference. %d settings: "
        "about %.1f of their intervals are expected to miss by chance.</p>\n",
        DQ_HTML_KLD_LIMIT, n, 0.05 * n);
    dq_html_page_table(h->p, "The lowest settings within the limit.", titles);
    for (int i = 0, size; i < n; i += size) {
        size = dq_html_settings_group(&all[i], n - i);
        if (all[i].axis == DQ_HTML_MIXED) continue;
        group_row(h, &all[i], size, strcmp(model, all[i].model) == 0 ? "" : all[i].model);
        model = all[i].model;
    }
    dq_html_page_table_end(h->p);
    dq_html_page_fold_end(h->p);
}

/* ----- first to break ----- */

/* Whether it is decided what breaks first of a kind: windows that did not choose it say so, or where there are none, no interval
 * reaches into that of the first. */
static bool is_decided(const dq_html *h, int i, const dq_html_units *u)
{
    const json_t *test = dq_html_units_decided(h, i, u);
    const json_t *ends = json_object_get(json_object_get(test, "more_nats"), "interval");
    return test ? dq_html_real_at(ends, 0) > 0 : dq_html_units_first(u) == 1;
}

/* A line of what is decided. */
static void decided_words(dq_html *h, int i, const dq_html_units *u)
{
    const json_t *test = dq_html_units_decided(h, i, u);
    const json_t *ends = json_object_get(json_object_get(test, "more_nats"), "interval");
    dq_html_page_html(h->p, "<li>");
    dq_html_page_text(h->p, dq_html_words(h, "%s by %s: ", u->at[0].of, u->at[0].by));
    dq_html_page_html(h->p, "<b>");
    dq_html_page_text(h->p,
                      test ? dq_html_unit_name(h, json_object_get(test, "first")) : u->at[0].name);
    dq_html_page_html(h->p, "</b>");
    if (test) {
        dq_html_page_html(h->p, ", %.3g to %.3g nats more than ", dq_html_real_at(ends, 0),
                          dq_html_real_at(ends, 1));
        dq_html_page_text(h->p, dq_html_unit_name(h, json_object_get(test, "next")));
    }
    dq_html_page_html(h->p, "</li>\n");
}

/* "keys by layer (layer 1, layer 0)": units whose intervals overlap. */
static const char *open_words(dq_html *h, const dq_html_units *u)
{
    enum { MOST = 4 };
    const int first = dq_html_units_first(u), n = first > 1 ? first : 2;
    const char *names = u->at[0].name;
    for (int k = 1; k < n && k < MOST; k++)
        names = dq_html_words(h, "%s, %s", names, u->at[k].name);
    if (n > MOST) names = dq_html_words(h, "%s and %d more", names, n - MOST);
    return dq_html_words(h, "%s by %s (%s)", u->at[0].of, u->at[0].by, names);
}

/* Whether there is more than one unit, and an interval. */
static bool speaks(const dq_html *h, int i, const dq_html_units *u)
{
    const json_t *test = dq_html_units_decided(h, i, u);
    const json_t *ends = json_object_get(json_object_get(test, "more_nats"), "interval");
    return u->n > 1 && (test ? isfinite(dq_html_real_at(ends, 0)) : dq_html_units_first(u) > 0);
}

static void first_heading(dq_html *h, int i)
{
    dq_html_page_html(h->p, "<p class=\"says\">First to break of ");
    dq_html_page_text(h->p, h->item[i].name);
    dq_html_page_html(h->p, ", each alone at %.0f bits:</p>\n<ul>\n",
                      dq_html_real(dq_html_sensitivity_of(h, i), "bits"));
}

/* What is decided, a line each, logits by head (or map) first; then what is not, in one line. */
static void first_to_break(dq_html *h, int i)
{
    dq_html_units u;
    const char *open = "";
    bool begun = false;
    for (int pass = 0; pass < 2; pass++) {
        for (int k = 0; (u = dq_html_units_of(h, i, k)).n; k++) {
            const bool head = strcmp(u.at[0].of, "logits") == 0 && strcmp(u.at[0].by, "layer") != 0;
            if (head != (pass == 0) || !speaks(h, i, &u)) continue;
            if (!begun) first_heading(h, i);
            begun = true;
            if (is_decided(h, i, &u))
                decided_words(h, i, &u);
            else
                open = dq_html_words(h, "%s%s%s", open, *open ? "; " : "", open_words(h, &u));
        }
    }
    if (*open) {
        dq_html_page_html(h->p, "<li>inconclusive: ");
        dq_html_page_text(h->p, open);
        dq_html_page_html(h->p, "</li>\n");
    }
    if (begun) dq_html_page_html(h->p, "</ul>\n");
}

/* "0.39 (0.32 to 0.47) for logits per-tensor": bits fewer than another model for the same error, where an interval decides it. */
static void bits_fewer(dq_html *h, int i)
{
    static const struct {
        const char *key, *name;
    } of[] = {{"logits", "logits"}, {"maps_4_bits", "maps at 4 bits"}};
    const json_t *all = json_object_get(dq_html_member(h, i, "forecast"), "bit_advantage");
    bool begun = false;
    for (int k = 0; k < 2; k++) {
        const json_t *x = json_object_get(json_object_get(all, of[k].key), "per-tensor");
        const json_t *ends = json_object_get(x, "interval");
        const double low = dq_html_real_at(ends, 0), high = dq_html_real_at(ends, 1);
        if (!(low > 0 || high < 0)) continue;
        if (!begun) {
            dq_html_page_html(h->p, "<p class=\"says\">For the same error as ");
            dq_html_page_text(h->p, dq_html_last(dq_html_text(all, "over")));
            dq_html_page_html(h->p, ", per-tensor, ");
            dq_html_page_text(h->p, h->item[i].name);
            dq_html_page_html(h->p, " needs");
        }
        dq_html_page_html(h->p, "%s <b>%.2f bits %s</b> for %s (%.2f to %.2f)", begun ? "," : ":",
                          fabs(dq_html_real(x, "value")), low > 0 ? "fewer" : "more", of[k].name,
                          low > 0 ? low : -high, low > 0 ? high : -low);
        begun = true;
    }
    if (begun) dq_html_page_html(h->p, ".</p>\n");
}

/* The outlier with the largest magnitude of a kind; NULL: none. */
static const json_t *largest(const dq_html *h, int i, const char *values)
{
    const json_t *x, *found = NULL;
    size_t k;
    json_array_foreach(dq_html_member(h, i, "outliers"), k, x)
    {
        if (strcmp(dq_html_text(x, "values"), values) != 0) continue;
        if (!found || dq_html_real(x, "magnitude") > dq_html_real(found, "magnitude")) found = x;
    }
    return found;
}

/* Maxima are exact, of the text that was read. */
static void largest_outliers(dq_html *h, int i)
{
    const json_t *logit = largest(h, i, "attention_logits"),
                 *state = largest(h, i, "hidden_states");
    char text[96];
    if (!logit && !state) return;
    dq_html_page_html(h->p, "<p class=\"says\">Largest of ");
    dq_html_page_text(h->p, h->item[i].name);
    dq_html_page_html(h->p, " on this text: ");
    if (logit) {
        dq_html_page_html(h->p, "attention logit <b>%s</b> in layer %.0f head %.0f",
                          dq_html_page_value_text(text, sizeof text,
                                                  dq_html_real(logit, "magnitude"), (double)NAN),
                          dq_html_real(logit, "layer"), dq_html_real(logit, "head"));
        if (isfinite(dq_html_real(logit, "map")))
            dq_html_page_html(h->p, " map %.0f", dq_html_real(logit, "map"));
        dq_html_page_text(h->p, dq_html_words(h, ", key: %s token", dq_html_text(logit, "tokens")));
    }
    if (state) {
        dq_html_page_html(h->p, "%shidden state <b>%s</b> in channel %.0f of layer %.0f, ",
                          logit ? "; " : "",
                          dq_html_page_value_text(text, sizeof text,
                                                  dq_html_real(state, "magnitude"), (double)NAN),
                          dq_html_real(state, "channel"), dq_html_real(state, "layer"));
        dq_html_page_text(h->p, dq_html_words(h, "%s token", dq_html_text(state, "tokens")));
    }
    dq_html_page_html(h->p, ".</p>\n");
}

static bool has_words(dq_html_part *part, int n, const dq_html_setting *all, int n_all)
{
    for (int i = 0; i < n_all; i++) {
        if (all[i].axis != DQ_HTML_MIXED) return true;
    }
    for (int i = 0; i < n; i++) {
        const dq_html *h = &part[i].h;
        for (int k = 0; part[i].kind == DQ_HTML_STATS && k < h->n; k++) {
            if (dq_html_sensitivity_of(h, k) || largest(h, k, "attention_logits") ||
                largest(h, k, "hidden_states"))
                return true;
        }
    }
    return false;
}

void dq_html_answer(dq_html_part *part, int n)
{
    int n_all;
    const dq_html_setting *all = dq_html_settings_of(part, n, &n_all);
    if (!n || !has_words(part, n, all, n_all)) return;
    dq_html *h = &part->h;
    dq_html_page_lead(h->p);
    dq_html_page_html(h->p, "<section class=\"answer\" id=\"answer\">\n<h2>In short</h2>\n");
    sentences(h, all, n_all);
    for (int i = 0; i < n; i++) {
        dq_html *s = &part[i].h;
        for (int k = 0; part[i].kind == DQ_HTML_STATS && k < s->n; k++) {
            first_to_break(s, k);
            bits_fewer(s, k);
            largest_outliers(s, k);
        }
    }
    if (n_all) lowest_table(h, all, n_all);
    dq_html_page_html(h->p, "</section>\n");
    dq_html_page_lead_end(h->p);
}
