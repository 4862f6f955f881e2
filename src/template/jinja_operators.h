/* jinja_operators: what operators make of values, as Python does.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_OPERATORS_H
#define DQ_JINJA_OPERATORS_H

#include "template/jinja_parse.h"

/* a + b and its like. DQ_DAMAGED where Python has an exception; DQ_MISMATCH for what int64 cannot hold, for a string % and
 * for what safe gives. */
dq_jinja_value dq_jinja_operators_arithmetic(dq_jinja_run *r, dq_jinja_operation operation,
                                             const dq_jinja_value *a, const dq_jinja_value *b);
/* a < b, a in b and their like. */
bool dq_jinja_operators_compare(dq_jinja_run *r, dq_jinja_operation operation,
                                const dq_jinja_value *a, const dq_jinja_value *b);
/* v[i] of a list or string, negative ones from its end; absent: it has none. */
dq_jinja_value dq_jinja_operators_item(dq_jinja_run *r, const dq_jinja_value *v, int64_t i);
/* v[part[0]:part[1]:part[2]], where absent is as None. */
dq_jinja_value dq_jinja_operators_slice(dq_jinja_run *r, const dq_jinja_value *v,
                                        const dq_jinja_value part[3]);

#endif
