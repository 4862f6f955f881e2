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

/* The rows of one model and setting, and their mean. */
typedef struct line {
    int row[DQ_EVAL_SOURCES], n; /* n 0: there is no such line */
    dq_mean score[DQ_EVAL_SOURCES];
    dq_eval_average mean;
    bool compared, crossed; /* the two below are there */
    dq_eval_average delta, cross;
    int cross_model; /* the first model */
} line;

static const dq_eval_kind *kind_of(const dq_eval *e, int row)
{
    return dq_eval_source_of(e, &e->row[row])->kind;
}

static int quoted(const dq_eval *e, int row)
{
    return dq_eval_quoted(dq_eval_source_of(e, &e->row[row]));
}

static bool has_cross(const dq_eval *e, const int *row, int n)
{
    for (int i = 0; i < n; i++) {
        if (cmd_eval_cross_row(e, row[i]) < 0) return false;
    }
    return true;
}

static dq_mean mean_of_flips(const dq_stat_flips *f)
{
    return (dq_mean){f->delta, f->std_err, f->clusters};
}

/* l->n 0: no line begins at that row. */
static dq_status line_of(line *l, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    dq_mean delta[DQ_EVAL_SOURCES];
    dq_interval score_interval[DQ_EVAL_SOURCES], delta_interval[DQ_EVAL_SOURCES];
    *l = (line){.compared = true};
    l->n = dq_eval_average_rows(l->row, e, row);
    if (l->n == 0) return DQ_OK;
    for (int i = 0; i < l->n; i++) {
        dq_eval_numbers x;
        const int m = quoted(e, l->row[i]);
        DQ_TRY(dq_eval_numbers_of(e, l->row[i], &x, err));
        l->score[i] = x.score[m];
        score_interval[i] = x.score_interval[m];
        delta[i] = mean_of_flips(&x.flips[m]);
        delta_interval[i] = x.flips[m].interval;
        l->compared = l->compared && !x.is_ref;
    }
    l->mean = dq_eval_average_of(l->score, score_interval, l->n);
    if (l->compared) l->delta = dq_eval_average_of(delta, delta_interval, l->n);
    dq_mean mean[DQ_EVAL_SOURCES];
    dq_interval interval[DQ_EVAL_SOURCES];
    l->crossed = has_cross(e, l->row, l->n);
    for (int i = 0; l->crossed && i < l->n; i++) {
        dq_stat_flips f;
        const int other = cmd_eval_cross_row(e, l->row[i]);
        DQ_TRY(dq_eval_compare(e, other, l->row[i], quoted(e, l->row[i]), &f, err));
        mean[i] = mean_of_flips(&f);
        interval[i] = f.interval;
        l->cross_model = e->row[other].model;
    }
    if (l->crossed) l->cross = dq_eval_average_of(mean, interval, l->n);
    return DQ_OK;
}

static dq_interval loss_interval(const line *l)
{
    return (dq_interval){-l->delta.interval.high, -l->delta.interval.low};
}

int cmd_eval_averages_compared(const dq_eval *e)
{
    int n = 0;
    for (int i = 0; i < e->n_rows; i++) {
        int row[DQ_EVAL_SOURCES];
        const int k = dq_eval_average_rows(row, e, i);
        if (k == 0 || e->row[i].same != i) continue;
        n += e->row[i].ref != i;
        n += has_cross(e, row, k);
    }
    return n;
}

typedef struct columns {
    bool math, kv, difference, cross;
} columns;

static dq_status columns_of(columns *c, const cmd_eval_view *v, const dq_eval_kind *kind,
                            dq_err *err)
{
    *c = (columns){.math = cmd_eval_math_swept(v->e), .kv = cmd_eval_kv_swept(v->e)};
    for (int i = 0; i < v->e->n_rows; i++) {
        line l;
        if (kind_of(v->e, i) != kind) continue;
        DQ_TRY(line_of(&l, v, i, err));
        c->difference = c->difference || (l.n && l.compared);
        c->cross = c->cross || (l.n && l.crossed);
    }
    return DQ_OK;
}

static void difference_cell(dq_table *t, bool there, const dq_eval_average *x)
{
    if (there)
        cmd_eval_score_cell(t, x->mean, x->interval, "+");
    else
        dq_table_cell(t, "-");
}

static dq_status print_kind(const cmd_eval_view *v, const dq_eval_kind *kind, const line *first,
                            dq_err *err)
{
    const char *titles[8 + DQ_EVAL_SOURCES + 4] = {"model", "weights", "logit bits"};
    char within[48];
    int n = 3;
    columns c;
    dq_table *t = NULL;
    DQ_TRY(columns_of(&c, v, kind, err));
    if (c.kv) titles[n++] = "KV";
    if (c.math) titles[n++] = "math";
    const int keys = n;
    for (int i = 0; i < first->n; i++) titles[n++] = cmd_eval_title(v->e, first->row[i]);
    titles[n++] = "mean";
    snprintf(within, sizeof within, "loss \u2264 %g", v->margin);
    if (c.difference) titles[n++] = "against reference";
    if (c.difference) titles[n++] = within;
    if (c.cross) titles[n++] = "against first model";
    DQ_TRY(dq_table_new(&t, titles, n, err));
    dq_table_keys(t, keys);
    for (int i = 0; err->code == DQ_OK && i < v->e->n_rows; i++) {
        line l;
        if (kind_of(v->e, i) == kind && line_of(&l, v, i, err) == DQ_OK && l.n) {
            const dq_eval_row *r = &v->e->row[l.row[0]];
            char label[DQ_KV_LABEL];
            dq_table_cell(t, "%s", v->names[r->model]);
            cmd_eval_weights_cell(t, cmd_eval_model_of(v->e, l.row[0]));
            if (r->logit.bits == 16)
                dq_table_cell(t, "16");
            else
                dq_table_cell(t, "%d %s", r->logit.bits, dq_granularity_name[r->logit.granularity]);
            if (c.kv) dq_table_cell(t, "%s", dq_kv_report_label(label, sizeof label, &r->kv));
            if (c.math) dq_table_cell(t, "%s", dq_num_name[r->math.linear]);
            for (int k = 0; k < l.n; k++) dq_table_cell(t, "%.4f", l.score[k].value);
            cmd_eval_score_cell(t, l.mean.mean, l.mean.interval, "");
            if (c.difference) {
                difference_cell(t, l.compared, &l.delta);
                dq_table_cell(t, "%s",
                              l.compared ? dq_interval_decision_name[dq_interval_decide(
                                               loss_interval(&l), v->margin)]
                                         : "-");
            }
            if (c.cross) difference_cell(t, l.crossed, &l.cross);
        }
    }
    if (err->code == DQ_OK) {
        printf("\nMean over %d tasks, each counting as much (", first->n);
        /* "acc", or "acc_norm of hellaswag, acc of the others". */
        int second = 0;
        for (int i = 0; i < first->n; i++) {
            if (quoted(v->e, first->row[i]) == 0) continue;
            if (second == 0) printf("%s of ", kind->metric[1]);
            printf("%s%s", second++ ? ", " : "", cmd_eval_title(v->e, first->row[i]));
        }
        if (second < first->n)
            printf("%s%s%s", second ? ", " : "", kind->metric[0], second ? " of the others" : "");
        printf("):\n");
        dq_table_print(t, err);
    }
    dq_table_free(t);
    return err->code;
}

dq_status cmd_eval_averages(const cmd_eval_view *v, dq_err *err)
{
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_kind *kind = kind_of(v->e, i);
        line l;
        bool seen = false;
        DQ_TRY(line_of(&l, v, i, err));
        for (int k = 0; k < i && l.n; k++) {
            int row[DQ_EVAL_SOURCES];
            seen = seen || (kind_of(v->e, k) == kind && dq_eval_average_rows(row, v->e, k) > 0);
        }
        if (l.n && !seen) DQ_TRY(print_kind(v, kind, &l, err));
    }
    return DQ_OK;
}

static json_t *difference_json(const dq_eval_average *x)
{
    json_t *o = json_object();
    json_object_set_new(o, "delta", dq_document_real(x->mean.value));
    json_object_set_new(o, "stderr", dq_document_real(x->mean.std_err));
    json_object_set_new(o, "interval", cmd_eval_interval_json(x->interval));
    return o;
}

static json_t *verdict_json(const line *l, double margin)
{
    const dq_interval loss = loss_interval(l);
    json_t *o = json_object();
    json_object_set_new(o, "loss", dq_document_real(-l->delta.mean.value));
    json_object_set_new(o, "interval", cmd_eval_interval_json(loss));
    json_object_set_new(o, "margin", dq_document_real(margin));
    json_object_set_new(o, "is",
                        json_string(dq_interval_decision_name[dq_interval_decide(loss, margin)]));
    return o;
}

static json_t *line_json(const cmd_eval_view *v, const line *l)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[l->row[0]];
    json_t *o = json_object(), *tasks = json_array(), *metrics = json_array(), *mean, *cross;
    for (int i = 0; i < l->n; i++) {
        json_array_append_new(tasks, json_string(cmd_eval_title(e, l->row[i])));
        json_array_append_new(metrics,
                              json_string(kind_of(e, l->row[i])->metric[quoted(e, l->row[i])]));
    }
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "reference", json_string(v->names[e->row[r->ref].model]));
    dq_kv_report_logit(o, r->logit);
    json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "tasks", tasks);
    json_object_set_new(o, "metrics", metrics);
    mean = dq_document_metric(l->mean.mean.value, l->mean.mean.std_err);
    json_object_set_new(mean, "interval", cmd_eval_interval_json(l->mean.interval));
    json_object_set_new(o, "mean", mean);
    json_object_set_new(o, "paired", l->compared ? difference_json(&l->delta) : json_null());
    json_object_set_new(o, "verdict", l->compared ? verdict_json(l, v->margin) : json_null());
    if (!l->crossed) return o;
    cross = difference_json(&l->cross);
    json_object_set_new(cross, "model", json_string(v->names[l->cross_model]));
    json_object_set_new(o, "cross_paired", cross);
    return o;
}

dq_status cmd_eval_averages_json(json_t *document, const cmd_eval_view *v, dq_err *err)
{
    json_t *all = json_array();
    json_object_set_new(document, "averages", all);
    for (int i = 0; i < v->e->n_rows; i++) {
        line l;
        DQ_TRY(line_of(&l, v, i, err));
        if (l.n) json_array_append_new(all, line_json(v, &l));
    }
    return DQ_OK;
}

static dq_status add_metrics(json_t *row, const cmd_eval_view *v, int index,
                             const dq_eval_numbers *x, dq_err *err)
{
    const dq_eval_source *source = dq_eval_source_of(v->e, &v->e->row[index]);
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    const char *reason = cmd_eval_no_difference(v->e, index);
    json_t *o = json_object();
    json_object_set_new(row, "metrics", o);
    for (int m = 0; m < x->n_metrics; m++) {
        json_t *y = cmd_eval_mean_json(x->score[m]);
        json_object_set_new(y, "interval", cmd_eval_interval_json(x->score_interval[m]));
        json_object_set_new(o, source->kind->metric[m], y);
    }
    cmd_eval_field_json(o, kind->out.fields, x);
    if (kind->out.metrics) DQ_TRY(kind->out.metrics(o, v, index, err));
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
    return DQ_OK;
}

/* Null for the reference itself. */
static json_t *paired_json(const dq_eval_numbers *x, const dq_eval_source *source)
{
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    if (x->is_ref) return json_null();
    json_t *o = json_object();
    for (int m = 0; m < x->n_metrics; m++)
        json_object_set_new(o, source->kind->metric[m], cmd_eval_flips_json(&x->flips[m]));
    if (kind->out.paired) kind->out.paired(o, x);
    return o;
}

static dq_status add_cross(json_t *o, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval_kind *kind = dq_eval_source_of(v->e, &v->e->row[row])->kind;
    int other = cmd_eval_cross_row(v->e, row);
    if (other < 0) return DQ_OK;
    json_t *c = json_object();
    json_object_set_new(o, "cross_paired", c);
    json_object_set_new(c, "model", json_string(v->names[v->e->row[other].model]));
    for (int m = 0; m < 2 && kind->metric[m]; m++) {
        dq_stat_flips f;
        DQ_TRY(dq_eval_compare(v->e, other, row, m, &f, err));
        json_object_set_new(c, kind->metric[m], cmd_eval_flips_json(&f));
    }
    return DQ_OK;
}

static json_t *work_json(const dq_score_work *w)
{
    json_t *o = json_object();
    json_object_set_new(o, "tokens", json_integer((json_int_t)w->tokens));
    json_object_set_new(o, "computed_tokens", json_integer((json_int_t)w->computed));
    json_object_set_new(o, "seconds", dq_document_real(w->seconds));
    json_object_set_new(o, "tokens_per_second", dq_document_real(cmd_eval_rate(w)));
    return o;
}

static dq_status row_json(json_t *results, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = v->e;
    const dq_eval_row *r = &e->row[row];
    const dq_eval_source *source = dq_eval_source_of(e, r);
    const cmd_eval_kind *kind = cmd_eval_kind_of(source);
    dq_eval_numbers x;
    DQ_TRY(dq_eval_numbers_of(e, row, &x, err));
    json_t *o = json_object();
    json_array_append_new(results, o);
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "reference", json_string(v->names[e->row[r->ref].model]));
    json_object_set_new(o, "reference_weights", json_string(cmd_eval_reference_weights(e, r)));
    const dq_model *m = cmd_eval_model_of(e, row);
    json_t *w = json_object();
    const char *g = m->weight_group;
    bool packed = g[0], number = g[0] && isdigit((unsigned char)g[0]);
    dq_size_report_json(w, m);
    json_object_set_new(w, "bits",
                        m->weight_bits ? json_integer(m->weight_bits) : json_string("mixed"));
    json_object_set_new(w, "group",
                        !packed  ? json_null()
                        : number ? json_integer(strtol(g, NULL, 10))
                                 : json_string(g));
    json_object_set_new(w, "scale", packed ? json_string(m->scale_mode) : json_null());
    if (m->embed_bits != 16) json_object_set_new(w, "embed_bits", json_integer(m->embed_bits));
    if (m->head_bits != 16) json_object_set_new(w, "head_bits", json_integer(m->head_bits));
    if (!m->weight_bits || m->embed_bits != 16 || m->head_bits != 16)
        json_object_set_new(w, "packed_bits_per_weight", dq_document_real(m->packed_bits));
    json_object_set_new(o, "weights", w);
    dq_kv_report_logit(o, r->logit);
    json_object_set_new(o, "kv", dq_kv_report_json(&r->kv, &r->work.cached));
    json_object_set_new(o, "same_as", cmd_eval_same_as_json(e, row));
    json_object_set_new(o, "math", dq_kv_report_math_json(r->math));
    json_object_set_new(o, "passes", json_string(dq_eval_passes(r)));
    json_object_set_new(o, "task", json_string(source->name));
    json_object_set_new(o, "n", json_integer((json_int_t)x.n));
    json_object_set_new(o, "n_clusters", json_integer((json_int_t)x.n_clusters));
    json_object_set_new(o, "cluster", json_string(dq_eval_cluster(e, r)));
    DQ_TRY(add_metrics(o, v, row, &x, err));
    json_object_set_new(o, "paired", paired_json(&x, source));
    json_object_set_new(o, "verdict", cmd_eval_verdict_json(v, row, &x));
    json_object_set_new(o, "throughput", work_json(&r->work));
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
    const cmd_eval_kind *kind = cmd_eval_kind_of(dq_eval_source_of(e, r));
    const dq_shared_prefix *shared_prefix = dq_items_shared_prefix(&e->ids[r->ids].req, a->item);
    dq_request own = *a;
    own.n_cont = w->n_cont;
    json_t *o = json_object();
    cmd_eval_row_keys(o, v, r);
    json_object_set_new(o, "item",
                        json_integer((json_int_t)dq_eval_number(dq_eval_source_of(e, r), a->item)));
    json_object_set_new(o, "choice", json_integer(a->choice));
    json_object_set_new(o, "context", text_json(&w->ctx));
    json_object_set_new(o, "continuation", text_json(&w->cont));
    json_object_set_new(o, "n_ctx", json_integer((json_int_t)(shared_prefix->n + a->n_ctx)));
    json_object_set_new(o, "n_cont", json_integer((json_int_t)own.n_cont));
    json_object_set_new(o, "ll", dq_document_real(dq_eval_ll(r, &own)));
    json_object_set_new(o, "greedy", json_boolean(dq_eval_greedy(r, &own)));
    if (kind->out.keys) kind->out.keys(o, e, r, a->item);
    return dq_document_put_line(f, o, err);
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

static dq_status dump_rows(FILE *f, const void *view, dq_err *err)
{
    const cmd_eval_view *v = view;
    for (int i = 0; i < v->e->n_rows; i++) {
        const dq_eval_source *s = dq_eval_source_of(v->e, &v->e->row[i]);
        const cmd_eval_kind *kind = cmd_eval_kind_of(s);
        if (!v->e->row[i].shown) continue;
        if (kind->out.dump)
            DQ_TRY(kind->out.dump(f, v, i, err));
        else if (s->kind->words)
            DQ_TRY(dump_row(f, v, i, err));
    }
    return DQ_OK;
}

dq_status cmd_eval_dump(const cmd_eval_view *v, const char *path, dq_err *err)
{
    return dq_document_write_lines(path, dump_rows, v, err);
}
