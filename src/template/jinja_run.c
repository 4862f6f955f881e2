/* jinja_run: statements of a template, a row of `execute` for each kind; macros, which see the names around their definition.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_loop.h"
#include "template/jinja_print.h"

typedef dq_jinja_run run;
typedef dq_jinja_node node;
typedef dq_jinja_value value;

typedef struct dq_jinja_macro {
    const node *node;
    dq_jinja_scope *scope;
} dq_jinja_macro;

bool dq_jinja_eval_scope(run *r, dq_jinja_scope *parent)
{
    dq_jinja_scope *s = dq_jinja_alloc(r, 1, sizeof *s);
    if (!s) return false;
    s->parent = parent;
    r->scope = s;
    return true;
}

static void set_attribute(run *r, const node *target, value v)
{
    const value space = dq_jinja_eval(r, target->a);
    if (space.kind == DQ_JINJA_NAMESPACE)
        dq_jinja_dict_put(r, space.dict, target->name, v);
    else
        dq_jinja_fail(r, DQ_DAMAGED, "cannot assign attribute on non-namespace object");
}

void dq_jinja_eval_assign(run *r, const node *target, value v)
{
    if (target->kind == DQ_JINJA_VARIABLE) {
        dq_jinja_dict_put(r, &r->scope->names, target->name, v);
    } else if (target->kind == DQ_JINJA_ATTRIBUTE) {
        set_attribute(r, target, v);
    } else {
        const dq_jinja_list items = dq_jinja_items(r, &v);
        if (items.n != target->item.n)
            dq_jinja_fail(r, DQ_DAMAGED, "%zu values for %zu names", items.n, target->item.n);
        for (size_t i = 0; i < items.n && dq_jinja_ok(r); i++)
            dq_jinja_eval_assign(r, target->item.at[i], items.item[i]);
    }
}

/* Text of a body with names of its own, which the caller has put r->scope to. */
static value capture_body(run *r, const dq_jinja_nodes *body)
{
    dq_strbuf mine, *before = dq_jinja_capture(r, &mine);
    dq_jinja_eval_body(r, body);
    return dq_jinja_captured(r, &mine, before);
}

/* ---- Macros ---- */

static void bind_parameter(run *r, const node *parameter, size_t i, const dq_jinja_call *c,
                           size_t *named)
{
    const dq_jinja_text name = parameter->name;
    const value *by_name = dq_jinja_dict_get(r, &c->named, name);
    value v = {0};
    if (i < c->arg.n) {
        v = c->arg.item[i]; /* an argument of this name as well is one too many */
    } else if (by_name) {
        v = *by_name;
        ++*named;
    } else if (parameter->a) {
        v = dq_jinja_eval(r, parameter->a);
    } else {
        v = dq_jinja_undefined(r, "parameter '%.*s' was not provided", (int)name.n, name.s);
    }
    dq_jinja_dict_put(r, &r->scope->names, name, v);
}

value dq_jinja_eval_macro(run *r, const dq_jinja_macro *m, const dq_jinja_call *c)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_nodes *parameters = &m->node->item;
    value out = {0};
    size_t named = 0;
    if (c->arg.n > parameters->n)
        return dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' takes not more than %zu argument(s)",
                             (int)m->node->name.n, m->node->name.s, parameters->n);
    if (!dq_jinja_enter(r) || !dq_jinja_eval_scope(r, m->scope)) return out;
    for (size_t i = 0; i < parameters->n && dq_jinja_ok(r); i++)
        bind_parameter(r, parameters->at[i], i, c, &named);
    if (named < c->named.n)
        dq_jinja_fail(r, DQ_DAMAGED, "macro '%.*s' has a keyword argument too many",
                      (int)m->node->name.n, m->node->name.s);
    if (dq_jinja_ok(r)) out = capture_body(r, &m->node->body);
    r->scope = before;
    r->depth--;
    return out;
}

/* ---- Statements ---- */

static void run_text(run *r, const node *n)
{
    dq_jinja_put(r, n->name.s, n->name.n);
}

static void run_output(run *r, const node *n)
{
    const value v = dq_jinja_eval(r, n->a);
    r->line = n->line;
    if (dq_jinja_ok(r)) dq_jinja_print(r, &v);
}

static void run_if(run *r, const node *n)
{
    for (; n && dq_jinja_ok(r); n = n->c) {
        const value condition = dq_jinja_eval(r, n->a);
        const bool yes = dq_jinja_truth(&condition);
        dq_jinja_eval_body(r, yes ? &n->body : &n->item);
        if (yes) break;
    }
}

static void run_set(run *r, const node *n)
{
    const value v = dq_jinja_eval(r, n->b);
    if (dq_jinja_ok(r)) dq_jinja_eval_assign(r, n->a, v);
}

static void run_set_text(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (!dq_jinja_eval_scope(r, before)) return;
    const value text = capture_body(r, &n->body);
    dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of(""), text);
    const value v = dq_jinja_eval(r, n->b);
    r->scope = before;
    if (dq_jinja_ok(r) && r->flow == DQ_JINJA_ON) dq_jinja_eval_assign(r, n->a, v);
}

static void run_macro(run *r, const node *n)
{
    dq_jinja_macro *m = dq_jinja_alloc(r, 1, sizeof *m);
    if (!m) return;
    *m = (dq_jinja_macro){n, r->scope};
    dq_jinja_dict_put(r, &r->scope->names, n->name, (value){.kind = DQ_JINJA_MACRO, .macro = m});
}

static void run_scope(run *r, const node *n)
{
    dq_jinja_scope *const before = r->scope;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->body);
    r->scope = before;
}

static void run_leave(run *r, const node *n)
{
    r->flow = n->value.truth ? DQ_JINJA_CONTINUE : DQ_JINJA_BREAK;
}

void dq_jinja_eval_body(run *r, const dq_jinja_nodes *body)
{
    static void (*const execute[DQ_JINJA_NODE_KINDS])(run *, const node *) = {
        [DQ_JINJA_TEXT] = run_text,         [DQ_JINJA_OUTPUT] = run_output,
        [DQ_JINJA_FOR] = dq_jinja_loop_run, [DQ_JINJA_IF] = run_if,
        [DQ_JINJA_SET] = run_set,           [DQ_JINJA_SET_TEXT] = run_set_text,
        [DQ_JINJA_MACRO_OF] = run_macro,    [DQ_JINJA_SCOPE] = run_scope,
        [DQ_JINJA_LEAVE] = run_leave,
    };
    if (!dq_jinja_enter(r)) return;
    for (size_t i = 0; i < body->n && r->flow == DQ_JINJA_ON; i++) {
        r->line = body->at[i]->line;
        if (!dq_jinja_spend(r, DQ_JINJA_STEP)) return;
        execute[body->at[i]->kind](r, body->at[i]);
    }
    r->depth--;
}
