/* A line stands at the first of its rows; the others are found from it. Each row gives the metric
 * that is quoted of its task.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/inside.h"
#include "eval/eval.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static const dq_eval_kind *kind_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->kind;
}

static int quoted(const dq_eval *e, int row)
{
    return dq_eval_quoted(dq_eval_source_of(e, &e->row[row]));
}

/* What a result has of its quoted metric, under "metrics", "paired" or "cross_paired"; NULL:
 * nothing. */
static const json_t *quoted_of(const cmd_eval_view *v, int row, const char *of)
{
    const char *metric = kind_of(v->e, row)->metric[quoted(v->e, row)];
    return json_object_get(json_object_get(cmd_eval_result(v, row), of), metric);
}

/* Of n rows; false: one has none. */
static bool average_of(dq_eval_average *out, const cmd_eval_view *v, const int *row, int n,
                       const char *of)
{
    dq_mean mean[DQ_EVAL_SOURCES];
    dq_interval interval[DQ_EVAL_SOURCES];
    for (int i = 0; i < n; i++) {
        const json_t *x = quoted_of(v, row[i], of);
        if (!x) return false;
        mean[i] = cmd_eval_mean_of(x);
        interval[i] = cmd_eval_interval_of(x);
    }
    *out = dq_eval_average_of(mean, interval, n);
    return true;
}

/* Whether a mean of the kind has the member. */
static bool some_have(const cmd_eval_view *v, const dq_eval_kind *kind, const char *member)
{
    int row[DQ_EVAL_SOURCES];
    size_t at = 0;
    for (int i = 0; i < v->e->n_rows; i++) {
        if (!dq_eval_average_rows(row, v->e, i)) continue;
        const json_t *of = json_array_get(json_object_get(v->doc, "averages"), at++);
        if (kind_of(v->e, i) == kind && json_is_object(json_object_get(of, member))) return true;
    }
    return false;
}

static dq_status print_kind(const cmd_eval_view *v, const dq_eval_kind *kind, const int *first,
                            int n_tasks, dq_err *err)
{
    static const cmd_eval_key keys[] = {DQ_KEY_MODEL,    DQ_KEY_WEIGHTS, DQ_KEY_LOGIT,
                                        DQ_KEY_KV_SWEPT, DQ_KEY_MATH,    DQ_KEYS_END};
    static const cmd_eval_column mean = DQ_COLUMN("mean", "mean", cmd_eval_cell_score),
                                 paired[] = {DQ_COLUMN("against reference", "paired",
                                                       cmd_eval_cell_score_change),
                                             DQ_COLUMN(NULL, "verdict.is", cmd_eval_cell_text)},
                                 cross = DQ_COLUMN("against first model", "cross_paired",
                                                   cmd_eval_cell_score_change);
    const bool compared = some_have(v, kind, "paired"),
               crossed = some_have(v, kind, "cross_paired");
    const char *titles[DQ_KEYS + DQ_EVAL_SOURCES + 4];
    char within[48];
    int n = cmd_eval_key_titles(titles, v->e, keys);
    const int n_keys = n;
    size_t at = 0;
    dq_table *t;
    for (int i = 0; i < n_tasks; i++) titles[n++] = cmd_eval_title(v->e, first[i]);
    titles[n++] = mean.title;
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    if (compared) titles[n++] = paired[0].title;
    if (compared) titles[n++] = within;
    if (crossed) titles[n++] = cross.title;
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, n_keys);
    for (int i = 0; i < v->e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES];
        if (!dq_eval_average_rows(row, v->e, i)) continue;
        const json_t *of = json_array_get(json_object_get(v->doc, "averages"), at++);
        if (kind_of(v->e, i) != kind) continue;
        cmd_eval_key_cells(t, v, i, keys);
        for (int k = 0; k < n_tasks; k++)
            cmd_eval_cell_real(t, json_object_get(quoted_of(v, row[k], "metrics"), "value"));
        cmd_eval_column_cells(t, of, &mean, 1);
        if (compared) cmd_eval_column_cells(t, of, paired, 2);
        if (crossed) cmd_eval_column_cells(t, of, &cross, 1);
    }
    printf("\nMean over %d tasks, each counting as much (", n_tasks);
    /* "acc", or "acc_norm of hellaswag, acc of the others". */
    int second = 0;
    for (int i = 0; i < n_tasks; i++) {
        if (quoted(v->e, first[i]) == 0) continue;
        if (second == 0) printf("%s of ", kind->metric[1]);
        printf("%s%s", second++ ? ", " : "", cmd_eval_title(v->e, first[i]));
    }
    if (second < n_tasks)
        printf("%s%s%s", second ? ", " : "", kind->metric[0], second ? " of the others" : "");
    printf("):\n");
    return dq_table_finish(t, err);
}

dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES], other[DQ_EVAL_SOURCES];
        const int n = dq_eval_average_rows(row, v->e, i);
        bool seen = false;
        for (int k = 0; k < i && n; k++)
            seen = seen || (kind_of(v->e, k) == kind_of(v->e, i) &&
                            dq_eval_average_rows(other, v->e, k) > 0);
        if (n && !seen) DQ_TRY(print_kind(v, kind_of(v->e, i), row, n, err));
    }
    return DQ_OK;
}

static json_t *verdict_json(const dq_eval_average *delta, double margin)
{
    const dq_interval loss = {-delta->interval.high, -delta->interval.low};
    return json_pack("{s:o,s:o,s:o,s:s}", "loss", dq_document_real(-delta->mean.value), "interval",
                     cmd_eval_interval_json(loss), "margin", dq_document_real(margin), "is",
                     dq_interval_decision_name[dq_interval_decide(loss, margin)]);
}

static json_t *average_json(const cmd_eval_view *v, const int *row, int n)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row[0]];
    dq_eval_average x;
    json_t *tasks = json_array(), *metrics = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(tasks, json_string(cmd_eval_title(e, row[i])));
        json_array_append_new(metrics, json_string(kind_of(e, row[i])->metric[quoted(e, row[i])]));
    }
    json_t *o = json_pack("{s:s,s:s}", "model", v->names[r->model], "reference",
                          v->names[e->row[r->ref].model]);
    dq_kv_report_logit(o, r->logit);
    average_of(&x, v, row, n, "metrics");
    json_t *mean = cmd_eval_metric_json(x.mean);
    json_object_set_new(mean, "interval", cmd_eval_interval_json(x.interval));
    const bool compared = average_of(&x, v, row, n, "paired");
    json_object_update_new(
        o,
        json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "kv", dq_kv_spec_json(&r->kv), "math",
                  dq_kv_report_math_json(r->math), "tasks", tasks, "metrics", metrics, "mean", mean,
                  "paired", compared ? cmd_eval_delta_json(x.mean, x.interval) : json_null(),
                  "verdict", compared ? verdict_json(&x, v->margin) : json_null()));
    if (!average_of(&x, v, row, n, "cross_paired")) return o;
    json_t *cross = cmd_eval_delta_json(x.mean, x.interval);
    json_object_set_new(cross, "model", json_string(v->names[0]));
    json_object_set_new(o, "cross_paired", cross);
    return o;
}

void cmd_eval_averages_json(json_t *document, const cmd_eval_view *v)
{
    json_t *all = json_array();
    json_object_set_new(document, "averages", all);
    for (int i = 0; i < v->e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES];
        const int n = dq_eval_average_rows(row, v->e, i);
        if (n) json_array_append_new(all, average_json(v, row, n));
    }
}

/* Why a row has none; NULL: it is compared. */
static const char *no_difference(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    if (r->ref != row) return NULL;
    return e->model[r->model].sourceless ? "its source checkpoint is not in the run"
                                         : "is the reference";
}

static json_t *metrics_json(const cmd_eval_view *v, int index, const dq_eval_numbers *x)
{
    const dq_eval_source *source = dq_eval_source_of(v->e, &v->e->row[index]);
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    const char *reason = no_difference(v->e, index);
    json_t *o = json_object();
    for (int m = 0; m < x->n_metrics; m++) {
        json_object_set_new(o, source->kind->metric[m],
                            cmd_eval_score_json(x->score[m], x->score_interval[m]));
    }
    cmd_eval_field_json(o, kind->out.fields, x);
    if (reason) {
        /* A reference has no differences, and the document says why. */
        const char *key;
        json_t *m;
        json_object_foreach(o, key, m)
        {
            if (json_is_null(json_object_get(m, "value")) && !json_object_get(m, "reason"))
                json_object_set_new(m, "reason", json_string(reason));
        }
    }
    return o;
}

/* Null for the reference itself. */
static json_t *paired_json(const dq_eval_numbers *x, const dq_eval_source *source)
{
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    if (x->is_ref) return json_null();
    json_t *o = json_object();
    for (int m = 0; m < x->n_metrics; m++)
        json_object_set_new(o, source->kind->metric[m], cmd_eval_flips_json(&x->flips[m]));
    if (source->kind->windows) {
        json_t *d = cmd_eval_delta_json(x->ln_ratio, dq_mean_interval(x->ln_ratio));
        json_object_set_new(d, "n_clusters", json_integer((json_int_t)x->ln_ratio.clusters));
        json_object_set_new(o, kind->out.loss, d);
    }
    return o;
}

static dq_status add_cross(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_kind *kind = dq_eval_source_of(v->e, &v->e->row[row])->kind;
    int other = cmd_eval_cross_row(v->e, row);
    if (other < 0) return DQ_OK;
    json_t *c = json_pack("{s:s}", "model", v->names[v->e->row[other].model]);
    json_object_set_new(o, "cross_paired", c);
    for (int m = 0; m < 2 && kind->metric[m]; m++) {
        dq_stat_flips f;
        DQ_TRY(dq_eval_compare(v->e, other, row, m, &f, err));
        json_object_set_new(c, kind->metric[m], cmd_eval_flips_json(&f));
    }
    return DQ_OK;
}

static json_t *weights_json(const dq_model *m)
{
    json_t *w = json_object();
    const char *g = m->weight_group;
    const bool packed = g[0], number = isdigit((unsigned char)g[0]);
    dq_size_report_json(w, m);
    json_object_update_new(
        w, json_pack("{s:o,s:o,s:o}", "bits",
                     m->weight_bits ? json_integer(m->weight_bits) : json_string("mixed"), "group",
                     !packed  ? json_null()
                     : number ? json_integer(strtol(g, NULL, 10))
                              : json_string(g),
                     "scale", packed ? json_string(m->scale_mode) : json_null()));
    if (m->embed_bits != 16) json_object_set_new(w, "embed_bits", json_integer(m->embed_bits));
    if (m->head_bits != 16) json_object_set_new(w, "head_bits", json_integer(m->head_bits));
    if (!m->weight_bits || m->embed_bits != 16 || m->head_bits != 16)
        json_object_set_new(w, "packed_bits_per_weight", dq_document_real(m->packed_bits));
    return w;
}

static dq_status row_json(json_t *results, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *source = dq_eval_source_of(e, r);
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    dq_eval_numbers x;
    DQ_TRY(dq_eval_numbers_of(e, row, &x, err));
    json_t *o =
        json_pack("{s:s,s:s,s:s,s:o}", "model", v->names[r->model], "reference",
                  v->names[e->row[r->ref].model], "reference_weights",
                  cmd_eval_reference_weights(e, r), "weights", weights_json(e->model[r->model].m));
    json_array_append_new(results, o);
    dq_kv_report_logit(o, r->logit);
    json_object_update_new(
        o, json_pack("{s:o,s:o,s:o,s:s,s:s,s:I,s:I,s:s,s:o,s:o,s:o,s:{s:I,s:I,s:o,s:o}}", "kv",
                     dq_kv_report_json(&r->kv, &r->work.cached), "same_as",
                     cmd_eval_same_as_json(e, row), "math", dq_kv_report_math_json(r->math),
                     "passes", dq_eval_passes(r), "task", source->name, "n", (json_int_t)x.n,
                     "n_clusters", (json_int_t)x.n_clusters, "cluster", dq_eval_cluster(e, r),
                     "metrics", metrics_json(v, row, &x), "paired", paired_json(&x, source),
                     "verdict", cmd_eval_verdict_json(v, row, &x), "throughput", "tokens",
                     (json_int_t)r->work.tokens, "computed_tokens", (json_int_t)r->work.computed,
                     "seconds", dq_document_real(r->work.seconds), "tokens_per_second",
                     dq_document_real(cmd_eval_rate(&r->work))));
    if (kind->out.details) DQ_TRY(kind->out.details(o, v, row, err));
    return add_cross(o, v, row, err);
}

dq_status cmd_eval_json(json_t *results, const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        if (v->e->row[i].shown) DQ_TRY(row_json(results, v, i, err));
    }
    return DQ_OK;
}

static json_t *text_json(const dq_strbuf *b)
{
    return json_stringn(b->s ? b->s : "", b->n);
}

static dq_status dump_request(FILE *f, const cmd_eval_view *v, int row, const dq_request *a,
                              const dq_eval_words *w, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *source = dq_eval_source_of(e, r);
    const int64_t prefix = dq_items_shared_prefix(&e->ids[r->ids].req, a->item)->n;
    dq_request own = *a;
    own.n_cont = w->n_cont;
    json_t *o = json_object();
    cmd_eval_row_keys(o, v, r);
    json_object_update_new(
        o, json_pack("{s:I,s:i,s:o,s:o,s:I,s:I,s:o,s:b}", "item",
                     (json_int_t)dq_eval_number(source, a->item), "choice", a->choice, "context",
                     text_json(&w->ctx), "continuation", text_json(&w->cont), "n_ctx",
                     (json_int_t)(prefix + a->n_ctx), "n_cont", (json_int_t)own.n_cont, "ll",
                     dq_document_real(dq_eval_ll(r, &own)), "greedy", dq_eval_greedy(r, &own)));
    cmd_eval_kind_of(source)->out.item(o, v, r, a->item, err);
    dq_document_put_line(f, o, err);
    return err->code;
}

static dq_status dump_row(FILE *f, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_ids *ids = &v->e->ids[v->e->row[row].ids];
    const dq_eval_kind *kind = v->e->source[ids->source].kind;
    dq_eval_words w = {0};
    for (int64_t k = 0; k < ids->req.n; k++) {
        w.ctx.n = w.cont.n = 0;
        if (kind->words(v->e, ids, &ids->req.req[k], &w, err) != DQ_OK) break;
        if (dump_request(f, v, row, &ids->req.req[k], &w, err) != DQ_OK) break;
    }
    dq_block_free(w.ctx.s);
    dq_block_free(w.cont.s);
    return err->code;
}

typedef struct dump {
    const cmd_eval_view *v;
    const cmd_eval_kind *kind; /* NULL: all that have no file of their own */
} dump;

static dq_status dump_rows(FILE *f, const void *arg, dq_err *err)
{
    const dump *d = arg;
    const dq_eval *e = d->v->e;
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        const dq_eval_source *s = dq_eval_source_of(e, r);
        const cmd_eval_kind *kind = cmd_eval_kind_of(s);
        if (!r->shown || (d->kind ? kind != d->kind : !cmd_eval_kind_dumps(kind))) continue;
        if (s->kind->words) DQ_TRY(dump_row(f, d->v, i, err));
        for (int64_t k = 0; !s->kind->words && k < dq_eval_units(e, r); k++) {
            json_t *o = json_object();
            cmd_eval_row_keys(o, d->v, r);
            kind->out.item(o, d->v, r, k, err);
            dq_document_put_line(f, o, err);
            DQ_TRY(err->code);
        }
    }
    return DQ_OK;
}

dq_status cmd_eval_dump(const cmd_eval_view *v, const cmd_eval_kind *kind, const char *path,
                        dq_err *err)
{
    const dump d = {v, kind};
    return dq_document_write_lines(path, dump_rows, &d, err);
}
