/* Tables and CSV read the document's results: a column names a path, a cell function its form.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/eval.h"
#include "eval/kinds.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const json_t *cmd_eval_at(const json_t *o, const char *path)
{
    char key[DQ_GATE_NAME];
    while (o && *path) {
        const size_t n = strcspn(path, ".");
        if (n >= sizeof key) return NULL;
        memcpy(key, path, n);
        key[n] = 0;
        o = json_object_get(o, key);
        path += n + (path[n] == '.');
    }
    return o;
}

const json_t *cmd_eval_result(const cmd_eval_view *v, int row)
{
    return json_array_get(json_object_get(v->doc, "results"),
                          (size_t)cmd_eval_result_of(v->e, row));
}

double cmd_eval_real(const json_t *o, const char *member)
{
    const json_t *x = json_object_get(o, member);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* Of a metric perplexities alone, whose infinity is no number of JSON. */
static bool is_infinite(const json_t *metric)
{
    const char *reason = json_string_value(json_object_get(metric, "reason"));
    return reason && strncmp(reason, "e^NLL", 5) == 0;
}

dq_mean cmd_eval_mean_of(const json_t *o)
{
    const json_t *clusters = json_object_get(o, "n_clusters");
    dq_mean m = {cmd_eval_real(o, json_object_get(o, "delta") ? "delta" : "value"),
                 cmd_eval_real(o, "stderr"), json_integer_value(clusters)};
    if (!is_infinite(o)) return m;
    m.value = INFINITY;
    if (m.clusters > 1) m.std_err = INFINITY;
    return m;
}

dq_interval cmd_eval_interval_of(const json_t *o)
{
    const json_t *x = json_object_get(o, "interval");
    if (json_array_size(x) != 2) return dq_interval_none;
    return (dq_interval){json_number_value(json_array_get(x, 0)),
                         json_number_value(json_array_get(x, 1))};
}

static bool rolls(const dq_eval_source *source)
{
    const dq_text_settings *s = source->settings;
    return s->scheme == DQ_WINDOW_ROLLING;
}

static void kld_cell(dq_table *t, const json_t *x)
{
    const dq_mean m = cmd_eval_mean_of(x);
    if (isnan(m.value))
        dq_table_cell(t, "-");
    else if (isnan(m.std_err))
        dq_table_cell(t, "%.3e", m.value);
    else
        dq_table_cell(t, "%.3e \u00b1 %.1e", m.value, m.std_err);
}

static void value_cell(dq_table *t, const json_t *x)
{
    cmd_eval_cell_real(t, json_object_get(x, "value"));
}

#define AT(member) .at = offsetof(dq_eval_numbers, member)
#define KLD_POINT(i, point, about)                                                                 \
    {                                                                                              \
        point, about, "kld_nats", "kld_" point, AT(kld_at[i]), .type = DQ_FIELD_REAL,              \
                                                               .differs = true                     \
    }
const cmd_eval_field cmd_eval_fields[] = {
    {"nll_nats", "Mean NLL of a token, nats.", AT(nll), .title = "NLL (nats)",
     .cell = cmd_eval_cell_mean},
    {"ppl", "Perplexity.", AT(ppl), .title = "PPL", .cell = cmd_eval_cell_mean},
    {"ln_ppl_ratio", "ln of the perplexity over the reference's.", AT(ln_ratio), .differs = true},
    {"kld_nats", "KL divergence from the reference, mean over scored tokens, nats.", AT(kld),
     .differs = true, .title = "KLD (nats)", .cell = kld_cell},
    KLD_POINT(0, "p001", "The percentile 0.1."),
    KLD_POINT(1, "p01", "The percentile 1."),
    KLD_POINT(2, "p05", "The percentile 5."),
    KLD_POINT(3, "p10", "The percentile 10."),
    KLD_POINT(4, "p50", "The percentile 50."),
    KLD_POINT(5, "p90", "The percentile 90."),
    KLD_POINT(6, "p95", "The percentile 95."),
    KLD_POINT(7, "p99", "The percentile 99."),
    KLD_POINT(8, "p999", "The percentile 99.9."),
    KLD_POINT(9, "max", "The largest."),
    {"noise_floor", "KLD of the reference with itself, moved in the last place.", "kld_nats",
     "kld_noise_floor", AT(noise_floor), .type = DQ_FIELD_REAL},
    {"same_top1", "Share of tokens with the reference's most likely one.", AT(same),
     .differs = true, .title = "same top-1", .cell = value_cell},
    {"delta_p", "Mean change of the probability of the text's own token.", .csv = "delta_p", AT(dp),
     .differs = true},
    {"rms", "Root of its mean square.", "delta_p", "delta_p_rms", AT(dp_rms), .differs = true},
    {"word_ppl", "Perplexity per word, of rolling windows.", .csv = "word_ppl", AT(word_ppl),
     .type = DQ_FIELD_REAL, .there = rolls},
    {"byte_ppl", "Perplexity per byte.", .csv = "byte_ppl", AT(byte_ppl), .type = DQ_FIELD_REAL,
     .there = rolls},
    {"bits_per_byte", "Bits per byte.", .csv = "bits_per_byte", AT(bits_per_byte),
     .type = DQ_FIELD_REAL, .there = rolls},
    {.name = NULL},
};

static dq_mean field_value(const cmd_eval_field *f, const dq_eval_numbers *x)
{
    if (!x) return dq_mean_none;
    const void *at = (const char *)x + f->at;
    if (f->type == DQ_FIELD_MEAN) return *(const dq_mean *)at;
    return (dq_mean){*(const double *)at, (double)NAN, 0};
}

/* A reason stands where the number is infinite, or where a row has none. */
#define INFINITE "e^NLL is beyond the range of f64"

static void value_rows(dq_row_writer *w, dq_mean m)
{
    DQ_PUT(w, "value", m.value, "The number; null: there is none.", .when = DQ_NULL);
    DQ_PUT(w, "stderr", m.std_err, "Its standard error; null: not known.", .when = DQ_NULL);
    DQ_PUT(w, "reason", isinf(m.value) ? INFINITE : NULL, "Why there is none.", .when = DQ_OUT,
           DQ_WORD(INFINITE));
}

static void why_row(dq_row_writer *w, const char *why)
{
    DQ_PUT(w, "reason", why, NULL, .when = DQ_OUT,
           DQ_WORD(DQ_EVAL_IS_REFERENCE, DQ_EVAL_SOURCELESS));
}

static void clusters_row(dq_row_writer *w, dq_mean m, unsigned when)
{
    DQ_PUT(w, "n_clusters", m.clusters, "Clusters that the error is over; null: none.",
           .when = when);
}

void cmd_eval_number_put(dq_row_writer *w, cmd_eval_form form, const dq_row *row, bool there,
                         cmd_eval_number n)
{
    static const char *const def[] = {
        "mean", "score", "estimate", "difference", "cross_difference", "nll_difference"};
    const bool delta = form >= DQ_FORM_DELTA;
    dq_row object = *row;
    object.type = DQ_ROW_OBJECT;
    object.def = def[form];
    if (!dq_row_begin(w, &object, there)) return;
    if (form == DQ_FORM_MEAN) {
        value_rows(w, n.mean);
    } else {
        DQ_PUT(w, delta ? "delta" : "value", n.mean.value,
               delta ? "The difference; null: there is none." : "The number; null: there is none.",
               .when = DQ_NULL);
        DQ_PUT(w, "stderr", n.mean.std_err, "Its standard error; null: not known.",
               .when = DQ_NULL);
    }
    if (form <= DQ_FORM_SCORE) clusters_row(w, n.mean, DQ_NULL | DQ_AT_0);
    if (form != DQ_FORM_MEAN)
        DQ_INTERVAL(w, "interval", n.interval, "Of 95 %; null: there is none.");
    if (form == DQ_FORM_LOSS) clusters_row(w, n.mean, 0);
    if (form == DQ_FORM_MEAN) why_row(w, NULL);
    if (form == DQ_FORM_CROSS) DQ_PUT(w, "model", n.model, "That model.");
    dq_row_end(w);
}

void cmd_eval_flips_put(dq_row_writer *w, const dq_row *row, bool there, const dq_stat_flips *f)
{
    dq_row object = *row;
    object.type = DQ_ROW_OBJECT;
    object.def = "flips";
    if (!dq_row_begin(w, &object, there)) return;
    DQ_PUT(w, "n01", f->n01, "Items whose score fell.");
    DQ_PUT(w, "n10", f->n10, "Items whose score rose.");
    DQ_PUT(w, "delta", f->delta, "Mean score less that of the other run.", .when = DQ_NULL);
    DQ_PUT(w, "stderr", f->std_err, "Paired standard error of delta.", .when = DQ_NULL);
    DQ_INTERVAL(w, "interval", f->interval, "95 % interval of delta.");
    DQ_PUT(w, "n_clusters", f->clusters, "Clusters that the error is over.");
    DQ_PUT(w, "p", f->p, "Of a two-sided test that both are equal.", .when = DQ_NULL);
    DQ_PUT(w, "test", f->clustered ? "t, clustered" : "McNemar, exact", "Which one.",
           DQ_WORD("t, clustered", "McNemar, exact"));
    DQ_PUT(w, "mcnemar_p", f->clustered ? DQ_NO_REAL : f->p,
           "p where the test is McNemar's, else null.", .when = DQ_NULL);
    dq_row_end(w);
}

void cmd_eval_field_rows(dq_row_writer *w, const dq_eval_numbers *x, const char *why)
{
    for (const cmd_eval_field *f = cmd_eval_fields; f->name; f++) {
        const bool real = f->type == DQ_FIELD_REAL;
        const dq_mean m = field_value(f, x);
        if (f->of) continue;
        if (!dq_row_begin(w,
                          &(const dq_row){.name = f->name,
                                          .about = f->about,
                                          .type = DQ_ROW_OBJECT,
                                          .when = real ? DQ_OUT : 0,
                                          .def = real      ? "perplexity"
                                                 : f[1].of ? NULL
                                                           : "mean"},
                          !w->live || !real || !isnan(m.value)))
            continue;
        value_rows(w, m);
        if (!real) clusters_row(w, m, DQ_NULL | DQ_AT_0);
        for (const cmd_eval_field *k = f + 1; k->of; k++) {
            char std_err[64];
            const dq_mean of = field_value(k, x);
            DQ_PUT(w, k->name, of.value, k->about, .when = DQ_NULL);
            snprintf(std_err, sizeof std_err, "%s_stderr", k->name);
            if (k->type == DQ_FIELD_MEAN)
                DQ_PUT(w, std_err, of.std_err, "Its standard error.", .when = DQ_NULL);
        }
        if (!real) why_row(w, isnan(m.value) ? why : NULL);
        dq_row_end(w);
    }
}

/* "rms_stderr" belongs to a metric with the mean "rms". */
static bool names_member(const cmd_eval_field *f, const char *member)
{
    const size_t n = strlen(f->name);
    if (strncmp(member, f->name, n) != 0) return false;
    return !member[n] || (f->type == DQ_FIELD_MEAN && strcmp(member + n, "_stderr") == 0);
}

const cmd_eval_field *cmd_eval_field_find(const dq_eval_source *source, const char *metric,
                                          const char *member)
{
    for (const cmd_eval_field *f = cmd_eval_fields; source->kind->windows && f->name; f++) {
        if (f->there && !f->there(source)) continue;
        if (!member && !f->of && strcmp(metric, f->name) == 0) return f;
        if (member && f->of && strcmp(metric, f->of) == 0 && names_member(f, member)) return f;
    }
    return NULL;
}

/* Columns by path. */

static const json_t *found(const json_t *result, const cmd_eval_column *c)
{
    const json_t *x = cmd_eval_at(result, c->path), *element;
    const json_t *labels = c->labels ? cmd_eval_at(result, c->labels) : x;
    size_t i;
    if (!json_is_array(x)) return x;
    if (!c->label && !c->labels) return json_array_get(x, (size_t)c->at);
    json_array_foreach(labels, i, element)
    {
        if (c->label) element = json_object_get(element, c->label);
        if (json_integer_value(element) == c->at) return json_array_get(x, i);
    }
    return NULL;
}

int cmd_eval_labels(int label[DQ_EVAL_LABELS], const cmd_eval_view *v, const cmd_eval_column *c)
{
    int n = 0;
    for (int i = 0; i < v->e->n_rows; i++) {
        const json_t *x,
            *list = cmd_eval_at(cmd_eval_result(v, i), c->labels ? c->labels : c->path);
        size_t k;
        if (!v->e->row[i].shown || (int)json_array_size(list) <= n) continue;
        n = 0;
        json_array_foreach(list, k, x)
        {
            if (c->label) x = json_object_get(x, c->label);
            if (n < DQ_EVAL_LABELS) label[n++] = (int)json_integer_value(x);
        }
    }
    return n;
}

/* Writes what the columns of a table stand for: "2 shots". */
static int expand(cmd_eval_column *out, const cmd_eval_column *column, int n, char title[][32],
                  const int *label, int n_labels)
{
    int m = 0;
    for (int i = 0; i < n; i++) {
        const char *unit = column[i].unit;
        if (!unit) out[m++] = column[i];
        for (int k = 0; unit && k < n_labels; k++) {
            snprintf(title[k], sizeof title[k], "%d%s%.*s", label[k], *unit ? " " : "",
                     (int)strlen(unit) - (*unit && label[k] == 1), unit);
            out[m] = column[i];
            out[m].title = title[k];
            out[m++].at = label[k];
        }
    }
    return m;
}

void cmd_eval_column_cells(dq_table *t, const json_t *result, const cmd_eval_column *column, int n)
{
    for (int i = 0; i < n; i++) column[i].cell(t, found(result, &column[i]));
}

void cmd_eval_column_csv(dq_table *t, const json_t *result, const cmd_eval_column *c)
{
    const json_t *of = found(result, c), *x = c->member ? json_object_get(of, c->member) : of;
    const dq_mean m = cmd_eval_mean_of(of);
    if (json_is_string(x))
        dq_table_cell(t, "%s", json_string_value(x));
    else if (json_is_integer(x))
        dq_table_cell(t, "%lld", (long long)json_integer_value(x));
    else if (json_is_null(x) && isinf(m.value))
        dq_table_real(t, strcmp(c->member, "stderr") == 0 ? m.std_err : m.value);
    else
        dq_table_real(t, json_is_real(x) ? json_real_value(x) : (double)NAN);
}

/* Four decimals, or two significant digits where the error is small. */

static void mean_cell(dq_table *t, dq_mean m, const char *sign)
{
    if (isnan(m.value))
        dq_table_cell(t, "-");
    else if (isinf(m.value))
        dq_table_cell(t, "beyond f64");
    else if (sign[0] && m.value == 0 && m.std_err == 0)
        dq_table_cell(t, "0 (all equal)");
    else if (isnan(m.std_err))
        dq_table_cell(t, sign[0] ? "%+.4f" : "%.4f", m.value);
    else if (fabs(m.value) >= 1e6) /* a perplexity without bounds */
        dq_table_cell(t, "%.4g \u00b1 %.2g", m.value, m.std_err);
    else if (m.std_err > 0 && m.std_err < 5e-5)
        dq_table_cell(t, sign[0] ? "%+.1e \u00b1 %.1e" : "%.6f \u00b1 %.1e", m.value, m.std_err);
    else
        dq_table_cell(t, sign[0] ? "%+.4f \u00b1 %.4f" : "%.4f \u00b1 %.4f", m.value, m.std_err);
}

/* Where all scores are equal, the ends of the interval replace an error of 0. */
static void score_cell(dq_table *t, dq_mean m, dq_interval x, const char *sign)
{
    if (m.std_err != 0 || isnan(x.low))
        mean_cell(t, m, sign);
    else if (sign[0] && m.value == 0)
        dq_table_cell(t, "0 (within \u00b1 %.4f)", x.high);
    else if (x.high <= m.value)
        dq_table_cell(t, sign[0] ? "%+.4f (\u2265 %+.4f)" : "%.4f (\u2265 %.4f)", m.value, x.low);
    else if (x.low >= m.value)
        dq_table_cell(t, sign[0] ? "%+.4f (\u2264 %+.4f)" : "%.4f (\u2264 %.4f)", m.value, x.high);
    else
        dq_table_cell(t, "%.4f (%.4f to %.4f)", m.value, x.low, x.high);
}

static void weights_cell(dq_table *t, const dq_model *m)
{
    char embed[32] = "", head[32] = "";
    if (m->embed_bits != 16) snprintf(embed, sizeof embed, ", embed %d", m->embed_bits);
    if (m->head_bits != 16 && !m->tied) snprintf(head, sizeof head, ", head %d", m->head_bits);
    if (m->weight_bits == 0)
        dq_table_cell(t, "mixed");
    else if (m->weight_bits == 16)
        dq_table_cell(t, "16%s%s", embed, head);
    else
        dq_table_cell(t, "%d/%s%s%s", m->weight_bits, m->weight_group, embed, head);
}

void cmd_eval_cell_mean(dq_table *t, const json_t *x)
{
    mean_cell(t, cmd_eval_mean_of(x), "");
}

void cmd_eval_cell_change(dq_table *t, const json_t *x)
{
    mean_cell(t, cmd_eval_mean_of(x), "+");
}

void cmd_eval_cell_score(dq_table *t, const json_t *x)
{
    score_cell(t, cmd_eval_mean_of(x), cmd_eval_interval_of(x), "");
}

void cmd_eval_cell_score_change(dq_table *t, const json_t *x)
{
    score_cell(t, cmd_eval_mean_of(x), cmd_eval_interval_of(x), "+");
}

void cmd_eval_cell_real(dq_table *t, const json_t *x)
{
    dq_table_known(t, json_is_real(x), "%.4f", json_real_value(x));
}

void cmd_eval_cell_text(dq_table *t, const json_t *x)
{
    dq_table_cell(t, "%s", json_is_string(x) ? json_string_value(x) : "-");
}

void cmd_eval_ints_put(dq_row_writer *w, const dq_row *row, const int32_t *x, int64_t n)
{
    if (!dq_row_begin(w, row, n || !(row->when & DQ_NULL))) return;
    for (int64_t i = 0; DQ_MORE(w, i, n); i++) DQ_PUT(w, NULL, x[i], NULL);
    dq_row_end(w);
}

bool cmd_eval_math_swept(const dq_eval *e)
{
    const dq_eval_row *first = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (first && e->row[i].math.linear != first->math.linear) return true;
        first = &e->row[i];
    }
    return false;
}

const char *cmd_eval_title(const dq_eval *e, int row)
{
    const dq_eval_source *s = dq_eval_source_of(e, &e->row[row]);
    return s->title ? s->title : s->name;
}

const char *cmd_eval_reference_weights(const dq_eval *e, const dq_eval_row *r)
{
    const dq_eval_model *m = &e->model[r->model], *ref = &e->model[m->ref];
    if (m == ref) return "own";
    return strcmp(m->m->fingerprint, ref->m->fingerprint) == 0 && !ref->m->is_container ? "source"
                                                                                        : "other";
}

static bool has_usual_budget(const dq_eval *e, const dq_eval_row *r)
{
    const dq_evict_spec *x = &r->kv.evict;
    return x->policy && x->budget == dq_kv_budget_for(DQ_KV_BUDGET_USUAL, x->policy,
                                                      e->model[r->model].m->map.n_maps);
}

static bool same_but_usual(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    dq_kv_spec kv = a->kv;
    if (!has_usual_budget(e, a) || !has_usual_budget(e, b)) return false;
    kv.evict.budget = b->kv.evict.budget;
    return dq_kv_spec_same(&kv, &b->kv);
}

int cmd_eval_cross_row(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *s = dq_eval_source_of(e, r);
    const dq_eval_kind *kind = s->kind;
    int usual = -1;
    if (kind->windows || !kind->metric[0] || e->model[r->model].ref == e->model[0].ref) return -1;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *o = &e->row[i];
        if (o->model == 0 && o->shown && dq_eval_source_of(e, o) == s &&
            (o->ids == r->ids ||
             (s->task && s->task->choices)) && /* one tokenizer, or items before it */
            dq_logit_same(o->logit, r->logit)) {
            if (dq_kv_spec_same(&o->kv, &r->kv)) return i;
            if (usual < 0 && same_but_usual(e, o, r)) usual = i;
        }
    }
    return usual;
}

int cmd_eval_result_of(const dq_eval *e, int row)
{
    int n = 0;
    for (int i = 0; i < row; i++) n += e->row[i].shown;
    return n;
}

int cmd_eval_same_as(const dq_eval *e, int row)
{
    for (int i = 0; i < row; i++) {
        if (e->row[i].shown && e->row[i].same == e->row[row].same) return cmd_eval_result_of(e, i);
    }
    return -1;
}

void cmd_eval_row_keys(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *r)
{
    DQ_PUT(w, "model", v->names[r->model], NULL);
    DQ_PUT(w, "task", dq_eval_source_of(v->e, r)->name, NULL);
    dq_kv_report_logit_rows(w, &r->logit, NULL);
    DQ_PUT(w, "kv", dq_kv_spec_is_plain(&r->kv) ? NULL : dq_kv_spec_json(&r->kv), NULL,
           .when = DQ_OUT, DQ_KV_SPEC);
    DQ_PUT(w, "math", dq_num_name[r->math.linear], NULL);
}

bool cmd_eval_kv_swept(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        if (e->row[i].shown && !dq_kv_spec_is_plain(&e->row[i].kv)) return true;
    }
    return false;
}

bool cmd_eval_kv_policies(const dq_eval *e)
{
    const dq_kv_policy *seen = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_kv_policy *p = e->row[i].shown ? e->row[i].kv.evict.policy : NULL;
        if (p && seen && p != seen) return true;
        if (p) seen = p;
    }
    return false;
}

/* The budget of a row: "0.25", "300 tokens", "-" without eviction. */
enum { DQ_KV_KEEP = 32 };
static const char *keep_text(char buf[DQ_KV_KEEP], const dq_kv_spec *s)
{
    const dq_evict_spec *x = &s->evict;
    if (!x->policy) return "-";
    if (x->tokens)
        snprintf(buf, DQ_KV_KEEP, "%lld tokens", (long long)x->tokens);
    else
        snprintf(buf, DQ_KV_KEEP, "%g", x->keep);
    return buf;
}

static bool differ_in_keep(const dq_eval *e)
{
    char one[DQ_KV_KEEP], other[DQ_KV_KEEP];
    const char *first = NULL;
    for (int i = 0; i < e->n_rows; i++) {
        if (!e->row[i].shown) continue;
        if (!first)
            first = keep_text(one, &e->row[i].kv);
        else if (strcmp(first, keep_text(other, &e->row[i].kv)) != 0)
            return true;
    }
    return false;
}

/* Whether layers and heads of some shown row have different budgets. */
static bool has_budgets(const dq_eval *e)
{
    for (int i = 0; i < e->n_rows; i++) {
        const dq_evict_spec *s = &e->row[i].kv.evict;
        if (e->row[i].shown && s->policy && s->budget != DQ_KV_BUDGET_UNIFORM) return true;
    }
    return false;
}

/* Columns that identify a row; some stand only where rows differ in them. */

static bool is_there(const dq_eval *e, cmd_eval_key key)
{
    switch (key) {
    case DQ_KEY_MATH: return cmd_eval_math_swept(e);
    case DQ_KEY_KV_SWEPT:
    case DQ_KEY_CODES: return cmd_eval_kv_swept(e);
    case DQ_KEY_POLICY: return cmd_eval_kv_policies(e);
    case DQ_KEY_BUDGET: return has_budgets(e);
    case DQ_KEY_KEEP: return cmd_eval_kv_swept(e) && differ_in_keep(e);
    default: return true;
    }
}

int cmd_eval_key_titles(const char **titles, const dq_eval *e, const cmd_eval_key *keys)
{
    static const char *const name[] = {[DQ_KEY_MODEL] = "model",
                                       [DQ_KEY_WEIGHTS] = "weights",
                                       [DQ_KEY_BITS] = "logit bits",
                                       [DQ_KEY_GRANULARITY] = "granularity",
                                       [DQ_KEY_LOGIT] = "logit bits",
                                       [DQ_KEY_MATH] = "math",
                                       [DQ_KEY_KV] = "KV",
                                       [DQ_KEY_KV_SWEPT] = "KV",
                                       [DQ_KEY_CODES] = "KV bits",
                                       [DQ_KEY_POLICY] = "policy",
                                       [DQ_KEY_BUDGET] = "budget",
                                       [DQ_KEY_KEEP] = "keep",
                                       [DQ_KEY_TASK] = "task",
                                       [DQ_KEY_TITLE] = "task"};
    int n = 0;
    for (; *keys; keys++) {
        if (is_there(e, *keys)) titles[n++] = name[*keys];
    }
    return n;
}

static void key_cell(dq_table *t, const cmd_eval_view *v, int row, cmd_eval_key key)
{
    const dq_eval_row *r = &v->e->row[row];
    const dq_evict_spec *evict = &r->kv.evict;
    const char *granularity = dq_granularity_name[r->logit.granularity];
    const bool plain = r->logit.bits == 16;
    const bool cuts = evict->policy && evict->keep != 1; /* else there is nothing to choose */
    char text[DQ_KV_LABEL];
    switch (key) {
    case DQ_KEY_MODEL: dq_table_cell(t, "%s", v->names[r->model]); break;
    case DQ_KEY_WEIGHTS: weights_cell(t, v->e->model[r->model].m); break;
    case DQ_KEY_BITS: dq_table_cell(t, "%d", r->logit.bits); break;
    case DQ_KEY_GRANULARITY: dq_table_cell(t, "%s", plain ? "-" : granularity); break;
    case DQ_KEY_LOGIT:
        dq_table_cell(t, "%d%s%s", r->logit.bits, plain ? "" : " ", plain ? "" : granularity);
        break;
    case DQ_KEY_MATH: dq_table_cell(t, "%s", dq_num_name[r->math.linear]); break;
    case DQ_KEY_KV:
    case DQ_KEY_KV_SWEPT:
        dq_table_cell(t, "%s", dq_kv_report_label(text, sizeof text, &r->kv));
        break;
    case DQ_KEY_CODES: dq_table_cell(t, "%s", dq_kv_codes_text(text, &r->kv)); break;
    case DQ_KEY_POLICY: dq_table_cell(t, "%s", cuts ? evict->policy->name : "-"); break;
    case DQ_KEY_BUDGET:
        dq_table_cell(t, "%s", cuts ? dq_kv_budget_name[evict->budget] : "-");
        break;
    case DQ_KEY_KEEP: dq_table_cell(t, "%s", keep_text(text, &r->kv)); break;
    case DQ_KEY_TASK: dq_table_cell(t, "%s", dq_eval_source_of(v->e, r)->name); break;
    case DQ_KEY_TITLE: dq_table_cell(t, "%s", cmd_eval_title(v->e, row)); break;
    case DQ_KEYS_END: break;
    }
}

void cmd_eval_key_cells(dq_table *t, const cmd_eval_view *v, int row, const cmd_eval_key *keys)
{
    for (; *keys; keys++) {
        if (is_there(v->e, *keys)) key_cell(t, v, row, *keys);
    }
}

dq_status cmd_eval_pivot(const cmd_eval_view *v, const cmd_eval_kind *kind, const char *head,
                         const cmd_eval_table_of *p, dq_err *err)
{
    const char *titles[DQ_KEYS + DQ_EVAL_COLUMNS];
    char title[DQ_EVAL_LABELS][32];
    cmd_eval_column line[2][DQ_EVAL_COLUMNS];
    int label[DQ_EVAL_LABELS], n_labels = 0;
    const int keys = cmd_eval_key_titles(titles, v->e, p->keys);
    dq_table *t;
    for (int i = 0; i < p->n; i++) {
        if (p->column[i].unit) n_labels = cmd_eval_labels(label, v, &p->column[i]);
    }
    if (n_labels < p->labels || !cmd_eval_kind_source(kind, v->e->source, v->e->n_sources))
        return DQ_OK;
    const int n = expand(line[0], p->column, p->n, title, label, n_labels);
    if (p->second) expand(line[1], p->second, p->n, title, label, n_labels);
    for (int i = 0; i < n; i++) titles[keys + i] = line[0][i].title;
    DQ_TRY(dq_table_new(&t, titles, keys + n, err));
    dq_table_keys(t, keys + p->n_keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        const json_t *result = cmd_eval_result(v, i);
        if (!cmd_eval_kind_shows(kind, v->e, i)) continue;
        for (int k = 0; k < (p->second ? 2 : 1); k++) {
            if (k && !found(result, &line[k][p->n_keys])) continue;
            cmd_eval_key_cells(t, v, i, p->keys);
            cmd_eval_column_cells(t, result, line[k], n);
        }
    }
    printf("\n%s\n", head);
    return dq_table_finish(t, err);
}
