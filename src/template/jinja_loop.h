/* jinja_loop: a loop while it runs. Items that its condition leaves out are not there for it, and the condition is asked as
 * late as in Jinja2: when an item is next, or when the template asks for what follows.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_LOOP_H
#define DQ_JINJA_LOOP_H

#include "template/jinja_eval.h"

typedef struct dq_jinja_loop {
    const dq_jinja_node *node;
    dq_jinja_scope *scope; /* around the loop */
    dq_jinja_list source;  /* all items */
    size_t at;             /* of them, the next one to be asked about */
    dq_jinja_list taken;   /* those that the condition takes, up to there */
    size_t index;          /* of them, the present one */
} dq_jinja_loop;

/* loop.name; absent: there is none. */
dq_jinja_value dq_jinja_loop_attribute(dq_jinja_run *r, dq_jinja_loop *l, dq_jinja_text name);
/* Runs the statement. */
void dq_jinja_loop_run(dq_jinja_run *r, const dq_jinja_node *n);

#endif
