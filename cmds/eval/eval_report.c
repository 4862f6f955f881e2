/* eval_report: results as JSON: members that every row has, and between them what its kind adds.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_report.h"

#include "base/text.h"
#include "cmds/cli/kv_report.h"
#include "cmds/eval/eval_cells.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/eval/eval_verdict.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *weights_json(const dq_model *m)
{
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
    return w;
}

/* Numbers that a row has not, being its own reference, say why. */
static void give_reason(json_t *metrics, const char *reason)
{
    const char *key;
    json_t *m;
    json_object_foreach(metrics, key, m)
    {
        if (json_is_null(json_object_get(m, "value")) && !json_object_get(m, "reason"))
            json_object_set_new(m, "reason", json_string(reason));
    }
}

/* What the kind judges by, and what it says besides. */
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
    if (reason) give_reason(o, reason);
    return DQ_OK;
}

/* Null for the reference itself: there is nothing to pair it with. */
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
    json_object_set_new(o, "weights", weights_json(cmd_eval_model_of(e, row)));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
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

/* A line for every request. */
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
