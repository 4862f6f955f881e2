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

/* "8 bits", "8.26 bits per weight (w8.h5)", "4:4, 0.31 of the bytes of 16 bits". */
static const char *found_words(dq_html *h, const dq_html_setting *s)
{
    if (s->axis == DQ_HTML_LOGITS) return s->label;
    if (s->axis == DQ_HTML_WEIGHTS)
        return dq_html_words(h, "%.2f bits per weight (%s)", s->size, s->label);
    return dq_html_words(h, "%s, %.2f of the bytes of 16 bits", s->label, s->size);
}

/* Of a group where no setting is found. */
static const char *not_found(const dq_html_setting *group, int n)
{
    const char *words = DQ_HTML_SAVES_NOTHING;
    for (int i = 0; i < n; i++) {
        if (dq_html_saves_nothing(&group[i])) continue;
        if (group[i].is != DQ_EXCEEDS) return "inconclusive";
        words = "none that was tested";
    }
    return words;
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
    dq_html_page_text(h->p, found ? found_words(h, found) : not_found(group, n));
    dq_html_page_html(h->p, "</b>");
    if (!in_several(all, n_all, group)) return;
    dq_html_page_html(h->p, " (");
    dq_html_page_text(h->p, dq_html_settings_where(h, group));
    dq_html_page_html(h->p, ")");
}

/* One sentence a model and margin; settings lower in several ways answer for no axis. */
static void sentences(dq_html *h, const dq_html_setting *all, int n)
{
    for (int i = 0, next; i < n; i = next) {
        bool begun = false;
        for (next = i; next < n && strcmp(all[next].model, all[i].model) == 0 &&
                       all[next].margin == all[i].margin;) {
            const int size = dq_html_settings_group(&all[next], n - next);
            if (all[next].axis != DQ_HTML_MIXED) {
                if (!begun) {
                    dq_html_page_html(h->p, "<p class=\"says\">Lowest settings of ");
                    dq_html_page_text(h->p, all[i].model);
                    dq_html_page_html(
                        h->p, " whose loss is within the margin, %g nats of NLL: ", all[i].margin);
                }
                group_words(h, all, n, &all[next], size, begun ? "; " : "");
                begun = true;
            }
            next += size;
        }
        if (begun) dq_html_page_html(h->p, ".</p>\n");
    }
}

static bool is_open(const dq_html_setting *s)
{
    return s->is == DQ_INCONCLUSIVE && !dq_html_saves_nothing(s);
}

static bool exceeds(const dq_html_setting *s)
{
    return s->is == DQ_EXCEEDS && !dq_html_saves_nothing(s);
}

/* "6 bits, 5 bits": labels of those of a group; the first few of many. */
static const char *labels_of(dq_html *h, const dq_html_setting *group, int n,
                             bool (*is)(const dq_html_setting *s))
{
    enum { MOST = 4 };
    const char *words = "";
    int found = 0;
    for (int i = 0; i < n; i++) {
        if (!is(&group[i]) || ++found > MOST) continue;
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
    dq_html_real_cell(h, found ? dq_html_real(found->verdict, "loss") : (double)NAN);
    dq_html_interval_cell(h, found ? found->verdict : NULL);
    dq_html_real_cell(h, found ? found->kld : (double)NAN);
    dq_html_real_cell(h, group->margin);
    dq_html_page_cell(h->p, labels_of(h, group, n, is_open));
    dq_html_page_cell(h->p, labels_of(h, group, n, exceeds));
    dq_html_page_cell(h->p, labels_of(h, group, n, dq_html_saves_nothing));
    dq_html_page_html(h->p, "</tr>\n");
}

static void lowest_table(dq_html *h, const dq_html_setting *all, int n)
{
    static const char *const titles[] = {
        "<model", "<what",  "<task",         "<lowest within", "loss",           "95 % interval",
        "KLD",    "margin", "<inconclusive", "<exceeds",       "<saves nothing", NULL};
    const char *model = "";
    dq_html_page_fold(h->p, "What this follows from", false);
    dq_html_page_html(
        h->p,
        "<p>The verdicts are those of dq eval on the loss: nats of NLL per token against the "
        "reference. A setting is within the margin if the upper end of the paired 95 %% interval "
        "of its loss is at most the margin; it exceeds the margin if the lower end is above; else "
        "it is inconclusive. The KL divergence is shown, not judged. A width of logits counts if "
        "every larger one that was tested is within the margin too. A cache of as many bytes as "
        "all tokens take in 16 bits saves nothing at this context, and does not count. Nothing but "
        "the named setting differs from the reference. %d settings: about %.1f of their intervals "
        "are expected to miss by chance.</p>\n",
        n, 0.05 * n);
    dq_html_page_table(h->p, "The lowest settings within the margin.", titles);
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

/* What windows that did not choose the first unit of a kind say of it. */
typedef struct verdict {
    const char *kind, *first, *next; /* "logits by head"; kind NULL: they say nothing */
    double low, high;                /* of what the first loses more than any other, nats a token */
} verdict;

static verdict verdict_of(dq_html *h, int i, const dq_html_units *u)
{
    const json_t *test = dq_html_units_decided(h, i, u);
    const json_t *ends = json_object_get(json_object_get(test, "more_nats"), "interval");
    verdict v = {.low = dq_html_real_at(ends, 0), .high = dq_html_real_at(ends, 1)};
    if (!isfinite(v.low) || !isfinite(v.high)) return v;
    v.kind = dq_html_words(h, "%s by %s", u->at[0].of, u->at[0].by);
    v.first = dq_html_unit_name(h, json_object_get(test, "first"));
    v.next = dq_html_unit_name(h, json_object_get(test, "next"));
    return v;
}

/* A line of what is decided. */
static void decided_words(dq_html *h, const verdict *v)
{
    dq_html_page_html(h->p, "<li>");
    dq_html_page_text(h->p, dq_html_words(h, "%s: ", v->kind));
    dq_html_page_html(h->p, "<b>");
    dq_html_page_text(h->p, v->first);
    dq_html_page_html(h->p, "</b>, %.3g to %.3g nats a token more than any other; next ", v->low,
                      v->high);
    dq_html_page_text(h->p, v->next);
    dq_html_page_html(h->p, "</li>\n");
}

static void first_heading(dq_html *h, int i)
{
    const json_t *s = dq_html_sensitivity_of(h, i);
    const char *granularity = dq_html_text(s, "granularity");
    dq_html_page_html(h->p, "<p class=\"says\">First to break of ");
    dq_html_page_text(h->p, h->item[i].name);
    dq_html_page_html(h->p, ", each alone at %.0f bits", dq_html_real(s, "bits"));
    if (*granularity) dq_html_page_text(h->p, dq_html_words(h, ", logits %s", granularity));
    dq_html_page_html(h->p, ":</p>\n<ul>\n");
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
            const verdict v = verdict_of(h, i, &u);
            if (head != (pass == 0) || !v.kind) continue;
            if (!begun) first_heading(h, i);
            begun = true;
            if (v.low > 0)
                decided_words(h, &v);
            else
                open = dq_html_words(h, "%s%s%s (%s or %s)", open, *open ? "; " : "", v.kind,
                                     v.first, v.next);
        }
    }
    if (*open) {
        dq_html_page_html(h->p, "<li>inconclusive: ");
        dq_html_page_text(h->p, open);
        dq_html_page_html(h->p, "</li>\n");
    }
    if (begun) dq_html_page_html(h->p, "</ul>\n");
}

/* Bits fewer than another model, of logits or maps with a scale a tensor; false where no interval decides it. */
static bool decided_bits(dq_html *h, int i, const char *of, double *value, dq_interval *interval)
{
    const json_t *all = json_object_get(dq_html_member(h, i, "forecast"), "bit_advantage");
    const json_t *x = json_object_get(json_object_get(all, of), "per-tensor");
    const json_t *ends = json_object_get(x, "interval");
    *value = dq_html_real(x, "value");
    *interval = (dq_interval){dq_html_real_at(ends, 0), dq_html_real_at(ends, 1)};
    return interval->low > 0 || interval->high < 0;
}

static const char *const bits_of[] = {"logits", "maps"};

static void bits_fewer(dq_html *h, int i)
{
    const json_t *all = json_object_get(dq_html_member(h, i, "forecast"), "bit_advantage");
    bool begun = false;
    for (int k = 0; k < 2; k++) {
        dq_interval x;
        double value;
        if (!decided_bits(h, i, bits_of[k], &value, &x)) continue;
        if (!begun) {
            dq_html_page_html(h->p, "<p class=\"says\">For the error that ");
            dq_html_page_text(h->p, dq_html_last(dq_html_text(all, "over")));
            dq_html_page_html(h->p, " has at 4 bits per-tensor, ");
            dq_html_page_text(h->p, h->item[i].name);
            dq_html_page_html(h->p, " needs");
        }
        dq_html_page_html(h->p, "%s <b>%.2f bits %s</b> for %s (%.2f to %.2f)", begun ? "," : ":",
                          fabs(value), x.low > 0 ? "fewer" : "more", bits_of[k],
                          x.low > 0 ? x.low : -x.high, x.low > 0 ? x.high : -x.low);
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

static bool answers(const dq_html_setting *all, int n)
{
    for (int i = 0; i < n; i++) {
        if (all[i].axis != DQ_HTML_MIXED) return true;
    }
    return false;
}

/* Whether there is a sentence about item i of dq stats. */
static bool has_words(dq_html *h, int i)
{
    dq_html_units u;
    dq_interval x;
    double value;
    if (largest(h, i, "attention_logits") || largest(h, i, "hidden_states")) return true;
    for (int k = 0; k < 2; k++) {
        if (decided_bits(h, i, bits_of[k], &value, &x)) return true;
    }
    for (int k = 0; (u = dq_html_units_of(h, i, k)).n; k++) {
        if (verdict_of(h, i, &u).kind) return true;
    }
    return false;
}

static bool any_words(dq_html_part *part, int n)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; part[i].kind == DQ_HTML_STATS && k < part[i].h.n; k++) {
            if (has_words(&part[i].h, k)) return true;
        }
    }
    return false;
}

void dq_html_answer(dq_html_part *part, int n)
{
    int n_all;
    const dq_html_setting *all = dq_html_settings_of(part, n, &n_all);
    const bool settings = answers(all, n_all);
    if (!settings && !any_words(part, n)) return;
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
    if (settings) lowest_table(h, all, n_all);
    dq_html_page_html(h->p, "</section>\n");
    dq_html_page_lead_end(h->p);
}
