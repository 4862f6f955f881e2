/* jinja_print: values as text: as Python prints them, and as JSON.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_PRINT_H
#define DQ_JINJA_PRINT_H

#include "template/jinja_value.h"

/* How json.dumps is called. */
typedef struct dq_jinja_json {
    dq_jinja_text between, colon; /* what stands between items, and after a key */
    dq_jinja_text indent;         /* of a level; s NULL: all on one line */
    bool ascii, sorted;           /* other characters as \u; keys in order */
} dq_jinja_json;

/* str(v) to the output; what has no text of its own in Python (a loop, a macro) is DQ_MISMATCH. */
void dq_jinja_print(dq_jinja_run *r, const dq_jinja_value *v);
/* str(v); the bytes of a string are not copied. */
dq_jinja_text dq_jinja_print_text(dq_jinja_run *r, const dq_jinja_value *v);
/* json.dumps(v) as a string. */
dq_jinja_value dq_jinja_print_json(dq_jinja_run *r, const dq_jinja_value *v,
                                   const dq_jinja_json *form);

#endif
