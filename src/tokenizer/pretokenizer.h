/* pretokenizer: cuts text into the words that a model takes one by one: patterns run by PCRE2, classes
 * of characters, and the steps that rewrite spaces.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PRETOKENIZER_H
#define DQ_PRETOKENIZER_H

#include "base/json.h"
#include "tokenizer/regex.h"

enum { DQ_PRETOKENIZER_MAX_STEPS = 16 };

/* What is searched; characters count one by one. */
typedef enum dq_delimiter {
    DQ_NO_CUT,
    DQ_BY_PATTERN,
    DQ_BY_CHARACTER,   /* c8 */
    DQ_BY_SPACE,       /* White_Space */
    DQ_BY_NUMBER,      /* a number of any kind */
    DQ_BY_PUNCTUATION, /* P*, and what ASCII counts as such */
    DQ_BY_KIND         /* maximal runs of word characters and of the others but white space */
} dq_delimiter;

/* What becomes of the matches and of the gaps between them. */
typedef enum dq_behavior {
    DQ_REMOVED,
    DQ_ISOLATED,
    DQ_MERGED_WITH_PREVIOUS,
    DQ_MERGED_WITH_NEXT,
    DQ_CONTIGUOUS
} dq_behavior;

typedef enum dq_prefix { DQ_NEVER, DQ_FIRST, DQ_ALWAYS } dq_prefix;

typedef struct dq_pretokenizer_step {
    dq_delimiter by;
    dq_behavior behavior;
    bool invert; /* the gaps count as matches, the matches as gaps */
    dq_regex regex;
    dq_prefix prefix; /* which pieces that do not begin with c8 get it in front */
    bool spaces;      /* before that, every U+0020 becomes c8 */
    char c8[4];       /* one character in UTF-8 */
    size_t c8_len;
} dq_pretokenizer_step;

/* Read-only while text is cut: any number of runs may share it. */
typedef struct dq_pretokenizer {
    dq_pretokenizer_step step[DQ_PRETOKENIZER_MAX_STEPS];
    int n_steps;
    bool byte_level; /* the words' bytes are to be read as byte-level characters */
} dq_pretokenizer;

/* From the value of "pre_tokenizer" (NULL and null: none, the text is one word). A type that is not
 * implemented, and a step after ByteLevel, is DQ_MISMATCH by name. The caller ends *p with
 * dq_pretokenizer_free, after a failure too; *p must be zeroed before. */
dq_status dq_pretokenizer_load(dq_pretokenizer *p, const json_t *value, dq_arena *a, dq_err *err);
void dq_pretokenizer_free(dq_pretokenizer *p);

/* What happens to each word; the text is valid during the call only. */
typedef dq_status dq_word_fn(void *arg, const char *word, size_t len, dq_err *err);

/* One text in progress; belongs to one thread. */
typedef struct dq_pretokenizer_run {
    const dq_pretokenizer *p;
    dq_word_fn *word;
    void *arg;
    bool at_start; /* the next piece begins where the text given to the tokenizer begins */
    dq_regex_matcher match[DQ_PRETOKENIZER_MAX_STEPS];
    /* the piece as the step's spaces and prefix make it */
    char *changed[DQ_PRETOKENIZER_MAX_STEPS];
    size_t changed_capacity[DQ_PRETOKENIZER_MAX_STEPS];
    size_t original, told; /* bytes of the text, and of the words that it became so far */
} dq_pretokenizer_run;

/* Words of a piece of well-formed UTF-8, in order. *run is {.p, .word, .arg} before the first call
 * and is ended by dq_pretokenizer_run_end, after a failure too. */
dq_status dq_pretokenizer_cut(dq_pretokenizer_run *run, const char *text, size_t len, dq_err *err);
void dq_pretokenizer_run_end(dq_pretokenizer_run *run);

#endif
