/* Regular expressions of tokenizer files.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REGEX_H
#define DQ_REGEX_H

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- Regex syntax ----
 * Regular expressions of tokenizer files (Oniguruma, Ruby syntax) in PCRE2's spelling. */

/* Rewrites what the two engines read differently (\s, \w, \d, scripts, ^, $, X{n,m}+); what cannot be
 * rewritten faithfully is DQ_MISMATCH with the construct and the pattern. The result belongs to the
 * arena. */
dq_status dq_regex_syntax_translate(char **out, size_t *out_len, const char *pattern, size_t len,
                                    dq_arena *a, dq_err *err);
/* Translates and compiles, with JIT where the machine has it (*jit). The caller frees *code. */
dq_status dq_regex_syntax_compile(pcre2_code **code, bool *jit, const char *pattern, size_t len,
                                  dq_arena *a, dq_err *err);

/* ---- Regex ----
 * Finds a compiled pattern in a text, and literal text in a text. */

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

/* First place at or after `at` where part[part_len] (not empty) stands; SIZE_MAX: nowhere. */
size_t dq_regex_find_text(const char *text, size_t len, size_t at, const char *part,
                          size_t part_len);

#endif
