/* record_template: members of a JSON record that templates make of its others, as in the task files
 * of lm-evaluation-harness. An undefined value is an error, and "key "X" is missing" where X is a
 * key; what {{X}} prints must be a string; a template that is one {{expression}} gives its value.
 * Source: lm-evaluation-harness lm_eval/utils.py apply_template (behaviour).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RECORD_TEMPLATE_H
#define DQ_RECORD_TEMPLATE_H

#include "base/json.h"

/* A function that templates may call with one value. `of` gives a text, or its value with one more
 * reference. NULL: see err. */
typedef struct dq_record_function {
    const char *name; /* NULL: after the last */
    json_t *(*of)(json_t *value, dq_arena *a, dq_err *err);
    bool of_each; /* called with a list it gives a list */
} dq_record_function;

typedef struct dq_record_template {
    const char *name;                  /* of the member */
    const struct dq_jinja_nodes *body; /* [n] */
    size_t n;
    bool is_list; /* the member is a list of the text of each */
} dq_record_template;

/* In the arena; name is borrowed. DQ_DAMAGED, DQ_MISMATCH: as of a chat template, or `text` is
 * neither a template nor a list of them. */
dq_status dq_record_template_new(dq_record_template *out, const char *name, const json_t *text,
                                 dq_arena *a, dq_err *err);
/* Sets the members t[n] of the record, each from what is there and from those before it. */
dq_status dq_record_template_fill(json_t *record, const dq_record_template *t, int n,
                                  const dq_record_function *own, dq_err *err);

#endif
