/* Regular expressions of tokenizer files.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REGEX_H
#define DQ_REGEX_H

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Compiles, with JIT where available (*jit), a pattern, or (literal) plain text. What both engines
 * read differently is rewritten (\s, \w, \d, scripts, ^, $, X{n,m}+). DQ_MISMATCH with construct
 * and pattern: it cannot be rewritten faithfully. The caller frees *code. */
dq_status dq_regex_syntax_compile(pcre2_code **code, bool *jit, const char *pattern, size_t len,
                                  bool literal, dq_arena *a, dq_err *err);

/* Read-only in use, so that matchers may share it. */
typedef struct dq_regex {
    pcre2_code *code; /* NULL: none */
    bool jit;
} dq_regex;

/* Belongs to one thread; {0} is valid. */
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

/* First place of part[part_len] (not empty) from `at` on; SIZE_MAX: none. */
size_t dq_regex_find_text(const char *text, size_t len, size_t at, const char *part,
                          size_t part_len);

#endif
