/* eval_settings: see eval_settings.h. Widths and granularities are those of the rows, which know more than the options where
 * a model stores its own; each kind of evaluation adds its members.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_settings.h"

#include "cmds/eval/eval_kv.h"
#include "record/record.h"

static json_t *int_list(const int *v, int n)
{
    json_t *l = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(l, json_integer(v[i]));
    return l;
}

/* The widths and granularities that occur, in the order of the rows. */
static void put_sweep(json_t *s, const dq_eval *e)
{
    int bits[16], n = 0;
    bool seen[DQ_GRANULARITIES] = {false};
    json_t *granularities = json_array();
    for (int i = 0; i < e->n_rows; i++) {
        const dq_eval_row *r = &e->row[i];
        bool known = !r->shown;
        for (int k = 0; k < n; k++) known = known || bits[k] == r->logit.bits;
        if (!known && n < 16) bits[n++] = r->logit.bits;
        if (r->shown && !seen[r->logit.granularity]) {
            seen[r->logit.granularity] = true;
            json_array_append_new(granularities,
                                  json_string(dq_granularity_name[r->logit.granularity]));
        }
    }
    json_object_set_new(s, "logit_bits", int_list(bits, n));
    json_object_set_new(s, "logit_granularity", granularities);
}

/* The seed of few-shot examples, one for all; null where none are drawn. */
static json_t *drawn_seed(const dq_eval *e)
{
    for (int i = 0; i < e->n_sources; i++) {
        if (e->source[i].n_shots) return json_integer((json_int_t)e->source[i].seed);
    }
    return json_null();
}

void cmd_eval_settings(json_t *s, const cmd_eval_options *o, const cmd_eval_view *v)
{
    const dq_eval *e = v->e;
    json_t *tasks = json_array();
    for (int i = 0; i < e->n_sources; i++)
        json_array_append_new(tasks, json_string(e->source[i].name));
    json_object_set_new(s, "tasks", tasks);
    json_object_set_new(s, "long", o->too_long.text ? json_string(o->too_long.text) : json_null());
    json_object_set_new(s, "num_fewshot", json_integer((json_int_t)o->num_fewshot));
    json_object_set_new(s, "seed", drawn_seed(e));
    put_sweep(s, e);
    json_object_set_new(s, "head_order", dq_input_head_order_json(&o->head_order));
    cmd_eval_kv_settings(s, e, &o->kv, v->names);
    json_object_set_new(s, "math", json_string(o->math_words.text));
    json_object_set_new(s, "margin", dq_document_real(o->margin));
    json_object_set_new(s, "ref", o->ref ? dq_document_name(o->ref) : json_null());
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->settings) cmd_eval_kinds[i]->settings(s, o->own[i], e);
    }
    json_object_set_new(s, "bos", json_string(o->bos.text));
    json_object_set_new(s, "limit", o->limit ? json_integer((json_int_t)o->limit) : json_null());
    json_object_set_new(s, "device", json_string(e->backend->device));
    json_object_set_new(s, "threads", json_integer(e->backend->threads));
}

json_t *cmd_eval_conditions(const cmd_eval_options *o)
{
    json_t *list = json_array();
    json_array_append_new(list, o->baseline ? dq_document_name(o->baseline) : json_null());
    for (int i = 0; i < o->fail_if.n; i++)
        json_array_append_new(list, dq_document_name(o->fail_if.item[i]));
    json_array_append_new(list, dq_document_real(o->margin));
    return list;
}
