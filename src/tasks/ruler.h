/* ruler: prompts for long contexts that a program makes up: needles with keys, chains of variables, words that a list
 * has most often. As arXiv 2404.06654 (RULER) builds them, in words of its own; MODEL.md names what differs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RULER_H
#define DQ_RULER_H

#include "base/random.h"
#include "base/text.h"
#include "tasks/items.h"

enum { DQ_RULER_ANSWERS = 16 }; /* of a prompt, at most */

/* A text of the user's: what needles are hidden in, and where words come from. All of it is borrowed. */
typedef struct dq_ruler_piece {
    const char *s; /* [len], no white space */
    int32_t len;
    bool ends; /* a sentence: in . ! or ? */
} dq_ruler_piece;
typedef struct dq_ruler_text {
    const dq_ruler_piece *piece; /* [n], read as a ring */
    int64_t n;
    const int64_t *start; /* [n_starts] pieces that begin a sentence */
    int64_t n_starts;
    const char *const *word; /* [n_words] all different, 3 to 12 letters a to z, as they come */
    int64_t n_words;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 */
} dq_ruler_text;
/* DQ_DAMAGED: no words, or no end of a sentence. */
dq_status dq_ruler_text_read(dq_ruler_text *out, const char *text, size_t len, dq_arena *a,
                             dq_err *err);

/* A prompt in the making, as its task writes it. */
typedef struct dq_ruler_draft {
    const struct dq_ruler_task *task;
    const dq_ruler_text *text; /* NULL: the task needs none */
    int64_t length;            /* ids of the prompt and of the room for its answer */
    dq_random random;
    dq_arena *a; /* for as long as the draft */
    dq_err *err; /* of the first failure */
    dq_strbuf prompt;
    size_t question; /* bytes before the question */
    const char *answer[DQ_RULER_ANSWERS];
    int n_answers;
} dq_ruler_draft;
/* printf after what is there. */
void dq_ruler_draft_put(dq_ruler_draft *d, const char *fmt, ...) DQ_PRINTF(2, 3);
/* perm[n]: 0 .. n - 1, shuffled; NULL: see d->err. */
int32_t *dq_ruler_draft_shuffled(dq_ruler_draft *d, int64_t n);
void dq_ruler_draft_answer(dq_ruler_draft *d, const char *answer);

/* A task is one row and one function. */
typedef struct dq_ruler_task {
    const char *name;
    bool takes_text;
    bool by_words;   /* units are different words of the text, which has only so many */
    int64_t max_new; /* ids that an answer may have */
    int64_t least;   /* units */
    /* Writes prompt, question and answers; `units` is what makes it longer: words of text, lines, different words. */
    void (*write)(dq_ruler_draft *d, int64_t units);
    int keys, values, requested; /* of needles: keys, values of each, keys that are requested */
} dq_ruler_task;
extern const dq_ruler_task dq_ruler_tasks[];
extern const int dq_ruler_n_tasks;
const dq_ruler_task *dq_ruler_find(const char *name); /* NULL: none has that name */

void dq_ruler_niah(dq_ruler_draft *d, int64_t units);
void dq_ruler_vt(dq_ruler_draft *d, int64_t units);
void dq_ruler_cwe(dq_ruler_draft *d, int64_t units);
void dq_ruler_fwe(dq_ruler_draft *d, int64_t units);

typedef struct dq_ruler_prompt {
    const int32_t *ids; /* [n], template included; n + max_new is at most the length asked for */
    int64_t n;
    int64_t question; /* ids 0 .. question - 1 are those of the text before the question alone */
    const char *const *answer; /* [n_answers] */
    int n_answers;
    int64_t units;
} dq_ruler_prompt;

/* What all prompts of a task and a tokenizer need; everything is borrowed. */
typedef struct dq_ruler_maker {
    const dq_ruler_task *task;
    const dq_ruler_text *text; /* NULL where the task takes none */
    const dq_tokenizer *t;
    dq_bos bos;
    int64_t vocab;
    dq_arena *a; /* prompts live here */
} dq_ruler_maker;
/* The prompt with the most units that fit. It depends on task, text, tokenizer, length, seed and sample alone.
 * DQ_MISMATCH: none fits, or the text has fewer words than would. */
dq_status dq_ruler_make(dq_ruler_prompt *out, const dq_ruler_maker *m, int64_t length,
                        uint64_t seed, int64_t sample, dq_err *err);

/* The share of the answers that stand in text[len], whatever the case of letters.
 * Source: RULER scripts/eval/synthetic/constants.py, string_match_all. */
double dq_ruler_found(const char *text, size_t len, const char *const *answer, int n);

#endif
