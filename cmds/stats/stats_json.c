/* stats_json: the results of dq stats as JSON. Numbers of all tokens stand beside those of ordinary ones.
 * SPDX-License-Identifier: MIT */
#include "calib/elements.h"
#include "cmds/stats/stats_attention.h"
#include "cmds/stats/stats_cells.h"
#include "cmds/stats/stats_weights.h"
#include "record/record.h"
#include "settings/inputs.h"

#include <math.h>
#include <stdio.h>

static json_t *ratio_json(double x, double y)
{
    return dq_document_real(y > 0 ? x / y : (double)NAN);
}

static void quantiles_json(json_t *x, const dq_tally *t)
{
    for (int i = 0; i < CMD_STATS_QUANTILES; i++)
        json_object_set_new(x, cmd_stats_quantile[i].name,
                            dq_document_real(dq_tally_quantile(t, cmd_stats_quantile[i].p, NULL)));
}

static json_t *tally_json(const dq_tally *t, dq_median m)
{
    char key[16];
    json_t *x = json_object();
    json_object_set_new(x, "n", json_integer(t->n));
    for (int c = 0; c < CMD_STATS_TOPS; c++) {
        snprintf(key, sizeof key, "top%d", cmd_stats_tops[c]);
        json_object_set_new(x, key, dq_document_real(dq_outlier_top(t, cmd_stats_tops[c])));
    }
    json_object_set_new(x, "median", dq_document_real(m.value));
    json_object_set_new(x, "median_bound", dq_document_real(m.bound));
    quantiles_json(x, t);
    json_object_set_new(
        x, "mean_magnitude",
        dq_document_real(t->n ? dq_fixed_value(&t->sum) / (double)t->n : (double)NAN));
    json_object_set_new(x, "rms", dq_document_real(dq_outlier_rms(t)));
    json_object_set_new(x, "crest", ratio_json(dq_outlier_top(t, 1), dq_outlier_rms(t)));
    json_object_set_new(x, "kurtosis0", dq_document_real(dq_outlier_kurtosis0(t)));
    json_object_set_new(x, "n_not_finite", json_integer(t->n_bad));
    return x;
}

/* ordinary NULL: there is no profile. */
static json_t *kind_json(const dq_tally *t, dq_median m, const dq_tally *ordinary)
{
    json_t *x = tally_json(t, m);
    if (ordinary)
        json_object_set_new(x, "ordinary", tally_json(ordinary, dq_outlier_median(ordinary)));
    return x;
}

static void token_json(json_t *x, const char *id_key, const char *text_key,
                       const cmd_stats_entry *e, int32_t seq, int32_t pos)
{
    char buf[CMD_STATS_CELL];
    const int32_t id = cmd_stats_id_at(e, seq, pos);
    const char *text = cmd_stats_word(buf, e->tokenizer, id);
    json_object_set_new(x, id_key, json_integer(id));
    json_object_set_new(x, text_key, text ? json_string(text) : json_null());
}

static json_t *map_json(const cmd_stats_entry *e, int head)
{
    const int map = dq_outlier_map(&e->model->map, head);
    return map ? json_integer(map) : json_null();
}

/* The members of a place. */
static void place_json(json_t *x, const cmd_stats_entry *e, int k, const dq_place *p)
{
    json_object_set_new(x, "sequence", json_integer(p->seq));
    json_object_set_new(x, "layer", json_integer(p->layer));
    if (k == DQ_KIND_LOGITS) {
        json_object_set_new(x, "head", json_integer(p->head));
        json_object_set_new(x, "map", map_json(e, p->head));
        json_object_set_new(x, "query", json_integer(p->row));
        token_json(x, "query_id", "query_token", e, p->seq, p->row);
        json_object_set_new(x, "key", json_integer(p->col));
        token_json(x, "key_id", "key_token", e, p->seq, p->col);
    } else {
        json_object_set_new(x, "position", json_integer(p->row));
        token_json(x, "id", "token", e, p->seq, p->row);
        json_object_set_new(x, "channel", json_integer(p->col));
    }
}

static json_t *top_json(const cmd_stats_entry *e, int n_places)
{
    json_t *top = json_array();
    for (int k = 0; k < DQ_N_TABLE5; k++) {
        const dq_tally *t = &e->out.kind[k].pooled;
        for (int i = 0; i < n_places && i < t->n_top; i++) {
            json_t *x = json_object();
            json_object_set_new(x, "values", json_string(dq_outlier_name[k]));
            json_object_set_new(x, "rank", json_integer(i + 1));
            json_object_set_new(x, "magnitude", json_real((double)t->top[i]));
            place_json(x, e, k, &t->place[i]);
            json_array_append_new(top, x);
        }
    }
    return top;
}

/* ----- profile ----- */

static json_t *element_json(const cmd_stats_entry *e, const dq_element *y)
{
    json_t *x = json_object();
    json_object_set_new(x, "values", json_string(dq_outlier_name[y->kind]));
    json_object_set_new(x, "tokens", json_string(dq_token_class_name[y->class]));
    json_object_set_new(x, "magnitude", json_real((double)y->max));
    place_json(x, e, y->kind, &y->at);
    json_object_set_new(x, "rms", dq_document_real(y->rms));
    json_object_set_new(x, "over_median", dq_document_real(y->ratio));
    json_object_set_new(x, "first_layer", json_integer(y->first));
    json_object_set_new(x, "last_layer", json_integer(y->last));
    json_object_set_new(x, "layers_between_without", json_integer(y->n_gaps));
    json_object_set_new(x, "magnitude_before", dq_document_real(y->before));
    return x;
}

static json_t *elements_json(const cmd_stats_entry *e, int most)
{
    static dq_element found[DQ_TOP];
    json_t *list = json_array();
    for (int k = 0; k < e->out.n_kinds; k++) {
        for (int c = DQ_TOKEN_CLASSES - 1; c >= 0; c--) {
            const int n = dq_elements_find(found, most, &e->out, k, c);
            for (int i = 0; i < n; i++) json_array_append_new(list, element_json(e, &found[i]));
        }
    }
    return list;
}

static json_t *moments_json(const dq_moments *m)
{
    json_t *x = json_object();
    const double max = m->n ? (double)m->max : (double)NAN;
    json_object_set_new(x, "n", json_integer(m->n));
    json_object_set_new(x, "max", dq_document_real(max));
    json_object_set_new(x, "rms", dq_document_real(dq_moments_rms(m)));
    json_object_set_new(x, "crest", ratio_json(max, dq_moments_rms(m)));
    json_object_set_new(x, "kurtosis0", dq_document_real(dq_moments_kurtosis0(m)));
    return x;
}

static json_t *heads_json(const cmd_stats_entry *e, int layer)
{
    json_t *heads = json_array();
    for (int q = 0; q < e->out.n_q; q++) {
        const dq_moments all = dq_outlier_head(&e->out, layer, q, ~0u);
        const dq_moments ordinary = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
        json_t *x = moments_json(&all);
        json_object_set_new(x, "head", json_integer(q));
        json_object_set_new(x, "map", map_json(e, q));
        json_object_set_new(x, "ordinary", moments_json(&ordinary));
        json_array_append_new(heads, x);
    }
    return heads;
}

/* Both maps of a layer: heads of each together; of a model of one map, all. */
static json_t *maps_json(const cmd_stats_entry *e, int layer)
{
    json_t *maps = json_array();
    for (int map = 0; map < e->model->map.n_maps; map++) {
        dq_moments both[2] = {{0}};
        for (int q = 0; q < e->out.n_q; q++) {
            const int of = dq_outlier_map(&e->model->map, q);
            if (of && of != map + 1) continue;
            const dq_moments all = dq_outlier_head(&e->out, layer, q, ~0u);
            const dq_moments some = dq_outlier_head(&e->out, layer, q, 1u << DQ_TOKEN_ORDINARY);
            dq_moments_merge(&both[0], &all);
            dq_moments_merge(&both[1], &some);
        }
        json_t *x = moments_json(&both[0]);
        json_object_set_new(x, "ordinary", moments_json(&both[1]));
        json_array_append_new(maps, x);
    }
    return maps;
}

static json_t *tokens_json(const cmd_stats_entry *e, int layer)
{
    json_t *x = json_object();
    for (int c = 0; c < DQ_TOKEN_CLASSES; c++)
        json_object_set_new(x, dq_token_class_name[c],
                            json_integer(e->out.tokens[layer * DQ_TOKEN_CLASSES + c]));
    return x;
}

/* ----- all ----- */

static json_t *layer_json(const cmd_stats_entry *e, int layer)
{
    json_t *l = json_object();
    json_object_set_new(l, "layer", json_integer(layer));
    for (int k = 0; k < e->out.n_kinds; k++) {
        const dq_outlier_kind *x = &e->out.kind[k];
        json_object_set_new(l, dq_outlier_name[k],
                            kind_json(&x->layer[layer], x->layer_median[layer],
                                      x->ordinary ? &x->ordinary[layer] : NULL));
    }
    if (e->out.measure) json_object_set_new(l, "attention", cmd_stats_attention_json(e, layer));
    if (!e->out.head) return l;
    json_object_set_new(l, "tokens", tokens_json(e, layer));
    json_object_set_new(l, "heads", heads_json(e, layer));
    json_object_set_new(l, "maps", maps_json(e, layer));
    return l;
}

json_t *cmd_stats_json(const cmd_stats_entry *e, int n_places)
{
    const dq_outliers *o = &e->out;
    json_t *x = json_object(), *table = json_object(), *kinds = json_object();
    json_t *layers = json_array();
    for (int k = 0; k < o->n_kinds; k++) {
        const dq_outlier_kind *y = &o->kind[k];
        json_object_set_new(
            k < DQ_N_TABLE5 ? table : kinds, dq_outlier_name[k],
            kind_json(&y->pooled, y->pooled_median, y->ordinary ? &y->pooled_ordinary : NULL));
    }
    for (int i = 0; i < o->n_layers; i++) json_array_append_new(layers, layer_json(e, i));
    json_object_set_new(x, "model", dq_document_name(e->model->path));
    dq_size_report_json(x, e->model);
    json_object_set_new(x, "architecture", json_string(e->model->architecture->name));
    json_object_set_new(x, "n_sequences", json_integer(e->in.n_seq));
    json_object_set_new(x, "n_tokens", json_integer(o->n_rows));
    json_object_set_new(x, "ctx", e->ctx ? json_integer(e->ctx) : json_null());
    json_object_set_new(x, "table5", table);
    json_object_set_new(x, "values", kinds);
    json_object_set_new(x, "layers", layers);
    json_object_set_new(x, "top", top_json(e, n_places));
    json_object_set_new(x, "weights", cmd_stats_weights_json(e));
    json_object_set_new(x, "outliers", o->head ? elements_json(e, n_places) : json_array());
    return x;
}
