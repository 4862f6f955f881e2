/* eval_gate: a name is looked up in the JSON of each result, and of the baseline's; which names there are before anything is
 * scored, the kinds say.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_gate.h"

#include "base/text.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_kv.h"
#include "record/record.h"
#include "stat/stat.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_NAME = 60 }; /* bytes of a model's name in an error */

static dq_status read_one(cmd_eval_gate *g, const char *text, dq_err *err)
{
    const size_t at = strcspn(text, "<>");
    size_t n = at;
    while (n > 0 && text[n - 1] == ' ') n--;
    g->text = text;
    if (n == 0) return cmd_eval_gate_expr_refuse(text, 0, "the name of a number", err);
    if (n >= sizeof g->name)
        return cmd_eval_gate_expr_refuse(text, sizeof g->name, "< <= > or >= before this", err);
    if (!text[at]) return cmd_eval_gate_expr_refuse(text, at, "< <= > or >= after a name", err);
    memcpy(g->name, text, n);
    g->name[n] = 0;
    g->less = text[at] == '<';
    g->equal = text[at + 1] == '=';
    DQ_TRY(cmd_eval_gate_expr_read(&g->limit, text, at + 1 + g->equal, err));
    if (g->limit.baseline || isfinite(cmd_eval_gate_expr_value(&g->limit, 0))) return DQ_OK;
    return dq_fail(err, DQ_USAGE, "--fail-if \"%s\": the limit is no finite number.", text);
}

dq_status cmd_eval_gates_read(cmd_eval_gates *g, const dq_list *texts, const char *baseline,
                              dq_err *err)
{
    for (int i = 0; i < texts->n; i++) {
        cmd_eval_gate *one = &g->gate[g->n++];
        DQ_TRY(read_one(one, texts->item[i], err));
        g->uses_baseline = g->uses_baseline || one->limit.baseline;
        if (one->limit.baseline && !baseline)
            return dq_fail(err, DQ_USAGE,
                           "--fail-if \"%s\": names a baseline. Add --baseline OLD.json.",
                           one->text);
    }
    if (baseline && !g->uses_baseline)
        return dq_fail(err, DQ_USAGE,
                       "--baseline has nothing to act on: no --fail-if has the word baseline, as "
                       "'kld_nats > 1.1 * baseline' has.");
    return DQ_OK;
}

/* The member of an object at a path with dots. */
static const json_t *at_path(const json_t *o, const char *path)
{
    char key[DQ_GATE_NAME];
    while (o && *path) {
        size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = 0;
        o = json_object_get(o, key);
        path += n + (path[n] == '.');
    }
    return o;
}

static bool ends_in(const char *name, const char *end, char *base)
{
    size_t n = strlen(name), k = strlen(end);
    if (n <= k || strcmp(name + n - k, end) != 0) return false;
    memcpy(base, name, n - k);
    base[n - k] = 0;
    return true;
}

/* What the name means in one result. NULL: the result has no such thing; JSON null: it has no value. */
static const json_t *find(const json_t *row, const char *name)
{
    const json_t *metrics = json_object_get(row, "metrics"),
                 *paired = json_object_get(row, "paired");
    char base[DQ_GATE_NAME];
    if (strcmp(name, "ppl_ratio") == 0) return at_path(metrics, "ln_ppl_ratio.value");
    const json_t *v = at_path(metrics, name);
    if (json_is_object(v)) return json_object_get(v, "value");
    if (v) return v;
    if (ends_in(name, "_delta", base) && json_object_get(metrics, base))
        return json_is_null(paired) ? NULL : at_path(json_object_get(paired, base), "delta");
    if (ends_in(name, "_p", base) && json_object_get(metrics, base))
        return json_is_null(paired) ? NULL : at_path(json_object_get(paired, base), "p");
    v = at_path(row, name);
    return json_is_object(v) || json_is_array(v) || json_is_string(v) ? NULL : v;
}

/* ---- Names, before anything is scored ---- */

/* Lists end with NULL; NULL has nothing. */
static bool among(const char *word, const char *const *list)
{
    for (; list && *list; list++) {
        if (strcmp(word, *list) == 0) return true;
    }
    return false;
}

/* Whether `metric` is one that results of the source hold under "metrics". */
static bool is_metric(const char *metric, const dq_eval_source *s)
{
    const cmd_eval_kind_output *own = &cmd_eval_kind_of(s)->out;
    for (int m = 0; m < 2 && s->kind->metric[m]; m++) {
        if (strcmp(metric, s->kind->metric[m]) == 0) return true;
    }
    return cmd_eval_field_known(own->fields, s, metric, NULL) ||
           (own->metric && strcmp(metric, own->metric) == 0);
}

static bool is_member(const char *metric, const char *member, const dq_eval_source *s)
{
    static const char *const of_all[] = {"value", "stderr", NULL};
    return among(member, of_all) ||
           cmd_eval_field_known(cmd_eval_kind_of(s)->out.fields, s, metric, member);
}

/* Whether the name is a paired difference of a metric of the source, or its p. */
static bool is_paired(const char *name, const dq_eval_source *s)
{
    const char *loss = cmd_eval_kind_of(s)->out.loss;
    char base[DQ_GATE_NAME];
    bool delta = ends_in(name, "_delta", base);
    if (!delta && !ends_in(name, "_p", base)) return false;
    for (int m = 0; m < 2 && s->kind->metric[m]; m++) {
        if (strcmp(base, s->kind->metric[m]) == 0) return true;
    }
    return delta && loss && strcmp(base, loss) == 0;
}

/* Whether the name says how a result of the source differs from its reference. */
static bool is_difference(const char *name, const dq_eval_source *s)
{
    const cmd_eval_kind_output *own = &cmd_eval_kind_of(s)->out;
    return is_paired(name, s) || (own->differs && own->differs(name));
}

/* Of a path into other objects only the beginning is known here. */
static bool known(const char *name, const dq_eval_source *s)
{
    static const char *const part[] = {"kv", "throughput", "weights", NULL};
    char base[DQ_GATE_NAME];
    size_t n = strcspn(name, ".");
    if (!name[n]) return is_metric(name, s) || is_difference(name, s);
    memcpy(base, name, n);
    base[n] = 0;
    name += n + 1;
    if (is_metric(base, s)) return is_member(base, name, s);
    return *name && (among(base, part) || among(base, cmd_eval_kind_of(s)->out.parts));
}

dq_status cmd_eval_gates_check(const cmd_eval_gates *g, const dq_eval_source *source, int n_sources,
                               dq_err *err)
{
    const char *first = cmd_eval_kind_of(&source[0])->out.gates;
    if (!first) first = source[0].kind->metric[0];
    for (int i = 0; i < g->n; i++) {
        bool there = false;
        for (int k = 0; k < n_sources; k++) there = there || known(g->gate[i].name, &source[k]);
        if (!there)
            return dq_fail(err, DQ_USAGE,
                           "--fail-if \"%s\": what is scored has no %s. There are: %s%s"
                           "kv.kept_fraction and other numbers of the JSON results under kv, "
                           "throughput and weights.",
                           g->gate[i].text, g->gate[i].name, first ? first : "", first ? ", " : "");
    }
    return DQ_OK;
}

/* Which row it is, whose model is called so: "x.h5, text, 16-bit logits (per-tensor), f32, KV 4:4 h2o 0.5". */
static const char *row_text(char *buf, size_t cap, const char *model, const dq_eval *e, int index)
{
    const dq_eval_row *r = &e->row[index];
    char label[DQ_KV_LABEL] = "";
    dq_kv_report_label(label, sizeof label, &r->kv);
    snprintf(buf, cap, "%s, %s, %d-bit logits (%s), %s, KV %s", model,
             dq_eval_source_of(e, r)->name, r->logit.bits,
             dq_granularity_name[r->logit.granularity], dq_num_name[r->math.linear], label);
    return buf;
}

/* ---- The baseline ---- */

/* A result that is compared with another model than it was there says another thing. */
static bool same_reference(const json_t *there, const cmd_eval_view *v, const dq_eval_row *r)
{
    const char *name = json_string_value(json_object_get(there, "reference"));
    const char *weights = json_string_value(json_object_get(there, "reference_weights"));
    return name && strcmp(name, v->names[v->e->row[r->ref].model]) == 0 && weights &&
           strcmp(weights, cmd_eval_reference_weights(v->e, r)) == 0;
}

/* NaN where there is none; a number beyond the range of doubles is read as the largest, and is none. */
static double number_of(const json_t *row, const char *name)
{
    const json_t *x = find(row, name);
    if (!json_is_number(x) || fabs(json_number_value(x)) >= DBL_MAX) return (double)NAN;
    return strcmp(name, "ppl_ratio") == 0 ? exp(json_number_value(x)) : json_number_value(x);
}

/* What a metric without a value says of that; NULL: nothing. */
static const char *why_none(const json_t *row, const char *name)
{
    char base[DQ_GATE_NAME];
    const json_t *m =
        at_path(json_object_get(row, "metrics"), ends_in(name, ".value", base) ? base : name);
    return json_string_value(json_object_get(m, "reason"));
}

/* Why a row has no number in the baseline; NULL: it has. */
static const char *why_unmatched(const cmd_eval_gates *all, const cmd_eval_gate *g,
                                 const cmd_eval_view *v, int row)
{
    const json_t *there = cmd_eval_baseline_result(&all->baseline, row);
    const dq_eval_row *r = &v->e->row[row];
    if (!there) return "the baseline has no such result";
    if (isnan(number_of(there, g->name))) return "its result in the baseline has no such number";
    if (is_difference(g->name, dq_eval_source_of(v->e, r)) && !same_reference(there, v, r))
        return "it is compared with another reference in the baseline";
    return NULL;
}

/* Whether a row will have the number of a gate. */
static bool will_have(const cmd_eval_gate *g, const dq_eval *e, int row)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    return e->row[row].shown && known(g->name, s) &&
           !(e->row[row].ref == row && is_difference(g->name, s));
}

static void plan_baseline(const cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                          const cmd_eval_view *v)
{
    char result[800];
    for (int r = 0; r < v->e->n_rows; r++) {
        const char *why = will_have(g, v->e, r) ? why_unmatched(all, g, v, r) : NULL;
        if (why)
            dq_logger_warn(logger, "--fail-if \"%s\": %s: cannot be checked, %s", g->text,
                           row_text(result, sizeof result, v->names[v->e->row[r].model], v->e, r),
                           why);
    }
}

void cmd_eval_gates_plan(const cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    for (int i = 0; i < g->n; i++) {
        const char *name = g->gate[i].name;
        bool requested = false, there = false;
        if (g->gate[i].limit.baseline) plan_baseline(g, &g->gate[i], logger, v);
        for (int r = 0; r < e->n_rows; r++) {
            const bool is =
                e->row[r].shown && is_difference(name, dq_eval_source_of(e, &e->row[r]));
            requested = requested || is;
            there = there || (is && e->row[r].ref != r);
        }
        if (requested && !there)
            dq_logger_warn(
                logger,
                "--fail-if \"%s\": every result is its own reference, so there will be no %s. "
                "Add what differs (a source checkpoint, --ref, --logit-bits, ...)",
                g->gate[i].text, name);
    }
}

/* ---- Results ---- */

static bool holds(const cmd_eval_gate *g, double x, double limit)
{
    if (g->less) return g->equal ? x <= limit : x < limit;
    return g->equal ? x >= limit : x > limit;
}

/* Of a name all, or in an error, which has room for little, what fits, in whole characters. */
static const char *shortened(char buf[SHORT_NAME + 4], const char *name)
{
    size_t n = strlen(name);
    if (n <= SHORT_NAME) return name;
    for (n = SHORT_NAME; n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80;) n--;
    snprintf(buf, SHORT_NAME + 4, "%.*s\u2026", (int)n, name);
    return buf;
}

/* The interval of 95 % of what `find` gives: the result's own, or by its standard error; none where there is neither. */
static dq_interval find_interval(const json_t *row, const char *name)
{
    const json_t *metrics = json_object_get(row, "metrics"), *o;
    char base[DQ_GATE_NAME];
    if (strcmp(name, "ppl_ratio") == 0)
        o = json_object_get(metrics, "ln_ppl_ratio");
    else if (ends_in(name, "_delta", base) && json_object_get(metrics, base))
        o = json_object_get(json_object_get(row, "paired"), base);
    else
        o = at_path(metrics, ends_in(name, ".value", base) ? base : name);
    const json_t *own = json_object_get(o, "interval"), *value = json_object_get(o, "value"),
                 *std_err = json_object_get(o, "stderr");
    if (json_array_size(own) == 2)
        return (dq_interval){json_number_value(json_array_get(own, 0)),
                             json_number_value(json_array_get(own, 1))};
    if (!json_is_number(value) || !json_is_number(std_err)) return dq_interval_none;
    return dq_interval_t(json_number_value(value), json_number_value(std_err),
                         json_integer_value(json_object_get(o, "n_clusters")));
}

/* The standard error of what `find` gives; NaN: it has none. A mean that is a member has its error beside it, NAME_stderr. */
static double find_error(const json_t *row, const char *name)
{
    const json_t *metrics = json_object_get(row, "metrics"), *x;
    char base[DQ_GATE_NAME], beside[DQ_GATE_NAME + 8];
    if (ends_in(name, "_delta", base) && json_object_get(metrics, base)) {
        x = at_path(json_object_get(row, "paired"), base);
    } else {
        x = at_path(metrics, ends_in(name, ".value", base) ? base : name);
        if (x && !json_is_object(x)) {
            snprintf(beside, sizeof beside, "%s_stderr", name);
            x = at_path(metrics, beside);
            return json_is_number(x) ? json_number_value(x) : (double)NAN;
        }
    }
    x = json_object_get(x, "stderr");
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* What became of one gate. */
typedef struct looked {
    int n, bad;       /* results with such a number, and those in which the condition holds */
    int sourceless;   /* results that would have one if their source were in the run */
    int unmatched;    /* and those that the baseline has nothing to compare with */
    json_t *met;      /* an object for each bad one */
    json_t *compared; /* and for each that is to be compared with the baseline */
} looked;

/* A result as a gate sees it. */
typedef struct seen {
    const char *name, *brief; /* whole, and for an error */
    int number;               /* among the results */
    double x;                 /* NaN: it has no value */
    const char *why;          /* of that; NULL: nothing says */
    dq_interval in;
    double baseline, limit; /* NaN: there is none */
} seen;

/* A result that meets the condition. */
static void say(dq_logger *logger, cmd_eval_gates *all, const cmd_eval_gate *g, looked *sum,
                const seen *it)
{
    char value[96], around[80] = "", against[80] = "";
    json_t *o = json_object(), *interval = json_null();
    if (!isnan(it->x))
        snprintf(value, sizeof value, "is %.6g", it->x);
    else
        snprintf(value, sizeof value, "has no value%s%s", it->why ? ", as " : "",
                 it->why ? it->why : "");
    if (!isnan(it->x) && !isnan(it->in.low)) {
        snprintf(around, sizeof around, " (95 %% interval %.6g to %.6g)", it->in.low, it->in.high);
        interval = json_array();
        json_array_append_new(interval, dq_document_real(it->in.low));
        json_array_append_new(interval, dq_document_real(it->in.high));
    }
    if (g->limit.baseline)
        snprintf(against, sizeof against, ", baseline %.6g, limit %.6g", it->baseline, it->limit);
    json_object_set_new(o, "result", json_integer(it->number));
    json_object_set_new(o, "value", dq_document_real(it->x));
    json_object_set_new(o, "interval", interval);
    json_array_append_new(sum->met, o);
    dq_logger_warn(logger, "--fail-if \"%s\": %s: %s %s%s%s", g->text, it->name, g->name, value,
                   around, against);
    if (all->missed + sum->bad < DQ_GATES_TOLD)
        snprintf(all->told[all->missed + sum->bad], sizeof all->told[0],
                 "%s: %s %s%s%s, \"%.100s\"", it->brief, g->name, value, around, against, g->text);
    sum->bad++;
}

/* Beside its number in the baseline; why: that there is none. */
static void note_compared(looked *sum, const cmd_eval_gate *g, const json_t *row,
                          const json_t *there, const seen *it, const char *why)
{
    json_t *o = json_object();
    json_object_set_new(o, "result", json_integer(it->number));
    json_object_set_new(o, "value", dq_document_real(it->x));
    json_object_set_new(o, "stderr", dq_document_real(find_error(row, g->name)));
    json_object_set_new(o, "baseline", dq_document_real(it->baseline));
    json_object_set_new(o, "baseline_stderr",
                        isnan(it->baseline) ? json_null()
                                            : dq_document_real(find_error(there, g->name)));
    json_object_set_new(o, "change", dq_document_real(it->x - it->baseline));
    json_object_set_new(o, "limit", dq_document_real(it->limit));
    json_object_set_new(
        o, "met", why ? json_null() : json_boolean(isnan(it->x) || holds(g, it->x, it->limit)));
    json_object_set_new(o, "unchecked", why ? json_string(why) : json_null());
    json_array_append_new(sum->compared, o);
}

/* Fills what a limit needs; false: it has none, and the result is not checked. */
static bool take_limit(const cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                       const cmd_eval_view *v, int index, const json_t *row, seen *it, looked *sum)
{
    const char *why = g->limit.baseline ? why_unmatched(all, g, v, index) : NULL;
    const json_t *there = cmd_eval_baseline_result(&all->baseline, index);
    if (g->limit.baseline && !why) it->baseline = number_of(there, g->name);
    if (!why) it->limit = cmd_eval_gate_expr_value(&g->limit, it->baseline);
    if (!why && !isfinite(it->limit)) {
        why = "the limit is no finite number with that baseline";
        dq_logger_warn(logger, "--fail-if \"%s\": %s: cannot be checked, %s (%.6g)", g->text,
                       it->name, why, it->baseline);
    }
    if (g->limit.baseline) note_compared(sum, g, row, there, it, why);
    sum->unmatched += why != NULL;
    return !why;
}

static void look_at(cmd_eval_gates *all, const cmd_eval_gate *g, dq_logger *logger,
                    const cmd_eval_view *view, int index, const json_t *row, int number,
                    looked *sum)
{
    const dq_eval *e = view->e;
    const char *model = view->names[e->row[index].model];
    char result[800], brief[320], name[SHORT_NAME + 4];
    const json_t *v = find(row, g->name);
    seen it = {.name = row_text(result, sizeof result, model, e, index),
               .brief = row_text(brief, sizeof brief, shortened(name, model), e, index),
               .number = number,
               .x = number_of(row, g->name),
               .why = why_none(row, g->name),
               .baseline = (double)NAN,
               .limit = (double)NAN};
    if (e->row[index].ref == index &&
        is_difference(g->name, dq_eval_source_of(e, &e->row[index]))) {
        if (!e->model[e->row[index].model].sourceless)
            return; /* a reference differs from nothing */
        sum->sourceless++;
        dq_logger_warn(
            logger,
            "--fail-if \"%s\": %s: could not be checked, its source checkpoint is not in the "
            "run",
            g->text, result);
        return;
    }
    if (!v || !take_limit(all, g, logger, view, index, row, &it, sum)) return;
    it.in = find_interval(row, g->name);
    if (strcmp(g->name, "ppl_ratio") == 0) it.in = (dq_interval){exp(it.in.low), exp(it.in.high)};
    sum->n++;
    if (isnan(it.x) || holds(g, it.x, it.limit)) say(logger, all, g, sum, &it);
}

static json_t *gate_json(const cmd_eval_gate *g, looked *sum)
{
    json_t *o = json_object();
    json_object_set_new(o, "fail_if", dq_document_name(g->text));
    json_object_set_new(o, "checked", json_integer(sum->n));
    json_object_set_new(o, "missed", json_integer(sum->bad));
    json_object_set_new(o, "met", sum->met);
    json_object_set_new(o, "unchecked", json_integer(sum->sourceless + sum->unmatched));
    if (g->limit.baseline)
        json_object_set_new(o, "compared", sum->compared);
    else
        json_decref(sum->compared);
    return o;
}

void cmd_eval_gates_apply(cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v,
                          json_t *document)
{
    const json_t *results = json_object_get(document, "results");
    const dq_eval *e = v->e;
    json_t *list = json_array();
    for (int i = 0; i < g->n; i++) {
        looked sum = {.met = json_array(), .compared = json_array()};
        int at = 0;
        for (int r = 0; r < e->n_rows; r++) {
            if (!e->row[r].shown) continue;
            look_at(g, &g->gate[i], logger, v, r, json_array_get(results, (size_t)at), at, &sum);
            at++;
        }
        if (sum.n == 0 && sum.sourceless == 0 && sum.unmatched == 0)
            dq_logger_warn(logger, "--fail-if \"%s\": no result has a %s, so nothing was looked at",
                           g->gate[i].text, g->gate[i].name);
        g->missed += sum.bad;
        g->unchecked += sum.n == 0 || sum.sourceless > 0 || sum.unmatched > 0;
        g->sourceless += sum.sourceless > 0;
        g->unmatched += sum.unmatched > 0;
        json_array_append_new(list, gate_json(&g->gate[i], &sum));
    }
    if (g->n) json_object_set(document, "gates", list);
    if (g->baseline.path)
        json_object_set_new(document, "baseline", cmd_eval_baseline_json(&g->baseline));
    json_decref(list);
}

dq_status cmd_eval_gates_outcome(const cmd_eval_gates *g, dq_err *err)
{
    char missed[DQ_GATES_TOLD * sizeof g->told[0] + 120] = "", unchecked[80] = "";
    size_t n = 0;
    if (g->missed == 0 && g->unchecked == 0) return DQ_OK;
    if (g->missed)
        n = (size_t)snprintf(missed, sizeof missed, "%d result%s a condition of --fail-if",
                             g->missed, g->missed == 1 ? " meets" : "s meet");
    for (int i = 0; i < g->missed && i < DQ_GATES_TOLD; i++)
        n += (size_t)snprintf(missed + n, sizeof missed - n, "%s%s", i ? "; " : " (", g->told[i]);
    if (g->missed > DQ_GATES_TOLD)
        n += (size_t)snprintf(missed + n, sizeof missed - n, "; and %d more",
                              g->missed - DQ_GATES_TOLD);
    if (g->missed) snprintf(missed + n, sizeof missed - n, ")");
    if (g->unchecked)
        snprintf(unchecked, sizeof unchecked, "%d condition%s of --fail-if could not be checked",
                 g->unchecked, g->unchecked == 1 ? "" : "s");
    return dq_fail(err, DQ_GATE, "%s%s%s; all results are written%s%s", missed,
                   g->missed && g->unchecked ? ", and " : "", unchecked,
                   g->sourceless ? ". Add the source checkpoint to the run, or --ref MODEL" : "",
                   g->unmatched ? ". Make the baseline anew (-o FILE), or compare what it has"
                                : "");
}
