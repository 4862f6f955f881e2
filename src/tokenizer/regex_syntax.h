/* regex_syntax: regular expressions of tokenizer files (Oniguruma, Ruby syntax) in PCRE2's spelling.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REGEX_SYNTAX_H
#define DQ_REGEX_SYNTAX_H

#include "base/base.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Rewrites what the two engines read differently (\s, \w, \d, scripts, ^, $, X{n,m}+); what cannot be
 * rewritten faithfully is DQ_MISMATCH with the construct and the pattern. The result belongs to the
 * arena. */
dq_status dq_regex_syntax_translate(char **out, size_t *out_len, const char *pattern, size_t len,
                                    dq_arena *a, dq_err *err);
/* Translates and compiles, with JIT where the machine has it (*jit). The caller frees *code. */
dq_status dq_regex_syntax_compile(pcre2_code **code, bool *jit, const char *pattern, size_t len,
                                  dq_arena *a, dq_err *err);
/* Same for a pattern that is plain text. */
dq_status dq_regex_syntax_literal(pcre2_code **code, bool *jit, const char *text, size_t len,
                                  dq_arena *a, dq_err *err);

#endif
