/* pretokenize: cuts text into the words that are merged: patterns run by PCRE2, and the byte-level
 * step that ends every sequence.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PRETOKENIZE_H
#define DQ_PRETOKENIZE_H

#include "json.h"
#include "pattern.h"

enum { DQ_MAX_STEPS = 16 };

typedef struct dq_split_step {
    pcre2_code *code; /* NULL: no cut */
    bool jit;
    bool drop_gaps;    /* text between matches goes */
    bool drop_matches; /* matches go */
    bool prefix_space; /* a piece that does not begin with U+0020 gets one in front */
} dq_split_step;

/* Read-only while text is cut: any number of runs may share it. */
typedef struct dq_pretokenizer {
    dq_split_step step[DQ_MAX_STEPS];
    int n_steps;
} dq_pretokenizer;

/* From the value of "pre_tokenizer". What is not ByteLevel, Split, Digits or a Sequence of them that
 * ends in ByteLevel is DQ_MISMATCH by name. The caller ends *p with dq_pretokenizer_free, after a
 * failure too; *p must be zeroed before. */
dq_status dq_pretokenizer_load(dq_pretokenizer *p, const json_t *value, dq_arena *a, dq_err *err);
void dq_pretokenizer_free(dq_pretokenizer *p);

/* What happens to each word; the text is valid during the call only. */
typedef dq_status dq_word_fn(void *arg, const char *word, size_t len, dq_err *err);

/* One text in progress; belongs to one thread. */
typedef struct dq_pretokenize_run {
    const dq_pretokenizer *p;
    dq_word_fn *word;
    void *arg;
    pcre2_match_data *match[DQ_MAX_STEPS]; /* made when first needed, like the rest */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    char *prefixed[DQ_MAX_STEPS];
    size_t prefixed_room[DQ_MAX_STEPS];
} dq_pretokenize_run;

/* Words of a piece of well-formed UTF-8, in order. *run is {.p, .word, .arg} before the first call
 * and is ended by dq_pretokenize_end, after a failure too. */
dq_status dq_pretokenize(dq_pretokenize_run *run, const char *text, size_t len, dq_err *err);
void dq_pretokenize_end(dq_pretokenize_run *run);

#endif
