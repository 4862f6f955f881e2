/* jinja_strings: what methods of strings and filters do, and arguments as what they need.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JINJA_STRINGS_H
#define DQ_JINJA_STRINGS_H

#include "template/jinja_value.h"

/* The bytes of an argument that is a string; DQ_DAMAGED for another value, DQ_MISMATCH for what safe gives. */
dq_jinja_text dq_jinja_strings_text(dq_jinja_run *r, const dq_jinja_value *v);
/* An argument that is an integer or a truth value; absent or None: the fallback. */
int64_t dq_jinja_strings_int(dq_jinja_run *r, const dq_jinja_value *v, int64_t fallback);

typedef enum dq_jinja_case {
    DQ_JINJA_LOWER,
    DQ_JINJA_UPPER,
    DQ_JINJA_CAPITALIZE, /* the first character in upper case, others in lower */
    DQ_JINJA_TITLE,      /* str.title(): the first letter after another character; ASCII only */
    DQ_JINJA_WORDS /* the filter title: the first character, and those after blanks and - ( { [ < */
} dq_jinja_case;
/* DQ_MISMATCH for characters that become several, or that depend on those beside them. */
dq_jinja_value dq_jinja_strings_case(dq_jinja_run *r, dq_jinja_text t, dq_jinja_case form);
/* Without the characters at its ends that chars has; absent or None: without whitespace. */
dq_jinja_value dq_jinja_strings_strip(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *chars,
                                      bool left, bool right);
/* Place of `part` from byte `at` on; SIZE_MAX: none. */
size_t dq_jinja_strings_find(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text part, size_t at);
/* The first `count` places with the other text; negative: all. */
dq_jinja_value dq_jinja_strings_replace(dq_jinja_run *r, dq_jinja_text t, dq_jinja_text old,
                                        dq_jinja_text with, int64_t count);
/* Its parts between `by`, at most `count` times; negative: all. by absent or None: runs of whitespace. */
dq_jinja_value dq_jinja_strings_split(dq_jinja_run *r, dq_jinja_text t, const dq_jinja_value *by,
                                      int64_t count);
dq_jinja_value dq_jinja_strings_lines(dq_jinja_run *r, dq_jinja_text t); /* str.splitlines() */
/* str() of the items with a text between them. */
dq_jinja_value dq_jinja_strings_join(dq_jinja_run *r, dq_jinja_text between,
                                     const dq_jinja_list *items);

#endif
