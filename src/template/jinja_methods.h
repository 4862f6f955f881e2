/* jinja_methods: attributes, methods and items of values.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_METHODS_H
#define DQ_JINJA_METHODS_H

#include "template/jinja_value.h"

/* of.name, an undefined value where there is none; DQ_MISMATCH: Python has it, and it is not implemented. */
dq_jinja_value dq_jinja_methods_attribute(dq_jinja_run *r, const dq_jinja_value *of,
                                          dq_jinja_text name);
/* of[key], which of a dict is the key before the method of this name. */
dq_jinja_value dq_jinja_methods_subscript(dq_jinja_run *r, const dq_jinja_value *of,
                                          const dq_jinja_value *key);
/* Keys (0), values (1) or pairs (2) of a dict as a list of the kind. */
dq_jinja_value dq_jinja_methods_of_dict(dq_jinja_run *r, const dq_jinja_dict *d, int part,
                                        dq_jinja_kind kind);

#endif
