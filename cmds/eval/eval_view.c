/* eval_view: rows of a sweep beside each other; a policy that nobody names counts as the same in all models.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_view.h"

#include "cmds/cli/kv_report.h"

#include <math.h>
#include <string.h>

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

const dq_model *cmd_eval_model_of(const dq_eval *e, int row)
{
    return e->model[e->row[row].model].m;
}

double cmd_eval_rate(const dq_score_work *w)
{
    return w->seconds > 0 ? (double)w->computed / w->seconds : (double)NAN;
}

const char *cmd_eval_no_difference(const dq_eval *e, int row)
{
    const dq_eval_row *r = &e->row[row];
    if (r->ref != row) return NULL;
    return e->model[r->model].sourceless ? "its source checkpoint is not in the run"
                                         : "is the reference";
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

/* The budget that nobody names is another one by a model's maps, and counts as the same. */
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
            (o->ids == r->ids || s->items.n) && /* one tokenizer, or items before it */
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

json_t *cmd_eval_same_as_json(const dq_eval *e, int row)
{
    for (int i = 0; i < row; i++) {
        if (e->row[i].shown && e->row[i].same == e->row[row].same)
            return json_integer(cmd_eval_result_of(e, i));
    }
    return json_null();
}

void cmd_eval_row_keys(json_t *o, const cmd_eval_view *v, const dq_eval_row *r)
{
    json_object_set_new(o, "model", json_string(v->names[r->model]));
    json_object_set_new(o, "task", json_string(dq_eval_source_of(v->e, r)->name));
    json_object_set_new(o, "logit_bits", json_integer(r->logit.bits));
    json_object_set_new(o, "logit_granularity",
                        json_string(dq_granularity_name[r->logit.granularity]));
    if (!dq_kv_spec_is_plain(&r->kv)) json_object_set_new(o, "kv", dq_kv_spec_json(&r->kv));
    json_object_set_new(o, "math", json_string(dq_num_name[r->math.linear]));
}
