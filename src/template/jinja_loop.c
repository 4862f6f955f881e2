/* jinja_loop: see jinja_loop.h.
 * Every iteration has names of its own; else runs where no iteration came to its end, as in Jinja2.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_loop.h"

/* Whether the loop has an item of this number. */
static bool has_item(dq_jinja_run *r, dq_jinja_loop *l, size_t number)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_node *condition = l->node->c;
    while (l->taken.n <= number && l->at < l->source.n && dq_jinja_ok(r)) {
        const dq_jinja_value item = l->source.item[l->at++];
        dq_jinja_value yes = dq_jinja_bool(true);
        if (condition && dq_jinja_eval_scope(r, l->scope)) {
            dq_jinja_eval_assign(r, l->node->a, item);
            yes = dq_jinja_eval(r, condition);
        }
        if (dq_jinja_truth(&yes)) dq_jinja_list_add(r, &l->taken, item);
    }
    r->scope = before;
    return number < l->taken.n && dq_jinja_ok(r);
}

dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name)
{
    const int64_t index = (int64_t)l->index;
    if (dq_jinja_text_is(name, "index")) return dq_jinja_int(index + 1);
    if (dq_jinja_text_is(name, "index0")) return dq_jinja_int(index);
    if (dq_jinja_text_is(name, "first")) return dq_jinja_bool(index == 0);
    if (dq_jinja_text_is(name, "last")) return dq_jinja_bool(!has_item(r, l, l->index + 1));
    if (dq_jinja_text_is(name, "previtem"))
        return index ? l->taken.item[index - 1]
                     : dq_jinja_undefined(r, "there is no previous item");
    if (dq_jinja_text_is(name, "nextitem"))
        return has_item(r, l, l->index + 1) ? l->taken.item[index + 1]
                                            : dq_jinja_undefined(r, "there is no next item");
    has_item(r, l, SIZE_MAX);
    const int64_t n = (int64_t)l->taken.n;
    if (dq_jinja_text_is(name, "length")) return dq_jinja_int(n);
    if (dq_jinja_text_is(name, "revindex")) return dq_jinja_int(n - index);
    if (dq_jinja_text_is(name, "revindex0")) return dq_jinja_int(n - index - 1);
    return (dq_jinja_value){0};
}

void dq_jinja_loop_run(dq_jinja_run *r, const dq_jinja_node *n)
{
    dq_jinja_scope *const before = r->scope;
    const dq_jinja_value over = dq_jinja_eval(r, n->b);
    dq_jinja_loop *l = dq_jinja_ok(r) ? dq_jinja_alloc(r, 1, sizeof *l) : NULL;
    bool ended = false;
    if (!l) return;
    *l = (dq_jinja_loop){.node = n, .scope = before, .source = dq_jinja_items(r, &over)};
    for (; has_item(r, l, l->index); l->index++) {
        const dq_jinja_value self = {.kind = DQ_JINJA_LOOP, .loop = l};
        if (!dq_jinja_eval_scope(r, before)) break;
        dq_jinja_dict_put(r, &r->scope->names, dq_jinja_text_of("loop"), self);
        dq_jinja_eval_assign(r, n->a, l->taken.item[l->index]);
        dq_jinja_eval_body(r, &n->body);
        r->scope = before;
        const dq_jinja_flow flow = r->flow;
        r->flow = DQ_JINJA_ON;
        if (flow == DQ_JINJA_ON) ended = true;
        if (flow == DQ_JINJA_BREAK) break;
    }
    r->scope = before;
    if (ended || !n->item.n || !dq_jinja_ok(r)) return;
    if (dq_jinja_eval_scope(r, before)) dq_jinja_eval_body(r, &n->item);
    r->scope = before;
}
