/* jinja_eval: what the nodes of a template give and put.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_EVAL_H
#define DQ_JINJA_EVAL_H

#include "template/jinja_parse.h"

/* Names of the template, of a body, of a macro's call. */
typedef struct dq_jinja_scope {
    struct dq_jinja_scope
        *parent; /* where names are looked for that this one lacks; NULL: among the functions */
    dq_jinja_dict names;
} dq_jinja_scope;

/* Makes r->scope a new one within the parent; false with the failure. The caller puts back what it was. */
bool dq_jinja_eval_scope(dq_jinja_run *r, dq_jinja_scope *parent);
dq_jinja_value dq_jinja_eval(dq_jinja_run *r, const dq_jinja_node *n);
/* Calls the function of a row: arguments become its parameters. */
dq_jinja_value dq_jinja_eval_apply(dq_jinja_run *r, const dq_jinja_function *f, dq_jinja_call *c);
/* What calls a macro has made of it. */
dq_jinja_value dq_jinja_eval_macro(dq_jinja_run *r, const struct dq_jinja_macro *m,
                                   const dq_jinja_call *c);
/* Gives the value to the names of a target. */
void dq_jinja_eval_assign(dq_jinja_run *r, const dq_jinja_node *target, dq_jinja_value v);
/* Runs statements, up to a break or continue, which r->flow says then. */
void dq_jinja_eval_body(dq_jinja_run *r, const dq_jinja_nodes *body);

#endif
