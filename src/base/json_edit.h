/* json_edit: changes of one member of a JSON object's text that leave the rest of it byte for byte.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JSON_EDIT_H
#define DQ_JSON_EDIT_H

#include "base/strbuf.h"

/* Appends to `out` the text of an object, which dq_json_parse has taken, with the member `key` (plain ASCII, not escaped)
 * of the outermost object set to `value`, the text of a value: in the place of what is there, or as the last member;
 * lines of it after the first get two spaces in front. NULL: without the member. DQ_RESOURCE. */
dq_status dq_json_edit_member(dq_strbuf *out, const char *text, size_t len, const char *key,
                              const char *value, dq_err *err);

#endif
