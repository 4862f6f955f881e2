/* regex: finds a compiled pattern in a text, and literal text in a text.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REGEX_H
#define DQ_REGEX_H

#include "tokenizer/regex_syntax.h"

/* A compiled pattern; read-only while it is used, so that any number of matchers may share it. */
typedef struct dq_regex {
    pcre2_code *code; /* NULL: none */
    bool jit;
} dq_regex;

/* What matching one pattern needs; belongs to one thread. {0} is a valid one. */
typedef struct dq_regex_matcher {
    pcre2_match_data *data; /* made when first needed, like the rest */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    size_t done; /* end of the last match in the text at hand */
    size_t at;   /* where the search goes on */
    bool any;
    uint64_t steps; /* of backtracking that the text at hand may still cost */
    size_t window;  /* the last beginning that is tried next */
    size_t last;    /* what the context says: the last beginning, */
    uint32_t limit; /* and steps for each; 0: nothing yet */
} dq_regex_matcher;

/* A pattern that backtracks without end is DQ_RESOURCE after a bounded number of steps, whatever the
 * text; signals are seen on the way.
 * Next match in text[len] as the reference's iterator tells them: an empty match counts too, except
 * right after a match. A text begins with dq_regex_begin; *found is false after the last one. */
dq_status dq_regex_begin(dq_regex_matcher *m, size_t len, dq_err *err);
dq_status dq_regex_next(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                        size_t *begin, size_t *end, bool *found, dq_err *err);
void dq_regex_end(dq_regex_matcher *m);

/* First place at or after `at` where part[part_len] (not empty) stands; SIZE_MAX: nowhere. */
size_t dq_regex_find_text(const char *text, size_t len, size_t at, const char *part,
                          size_t part_len);

#endif
