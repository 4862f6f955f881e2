/* questions: texts for a model to continue, with the answer of each where there is one.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUESTIONS_H
#define DQ_QUESTIONS_H

#include "tasks/question_sets.h"

typedef struct dq_question {
    const char *id;     /* JSON text of the record's "id" (or "ID"); NULL: none */
    const char *prompt; /* well-formed UTF-8 */
    size_t len;
    const char *gold;              /* NULL: prompts have none */
    dq_answer_rule rule;           /* that it is judged by */
    const char *query, *reference; /* as dq_question_parts has them, for a judge */
    int64_t line;                  /* of the file, from 1; 0 where the file is one list */
    uint64_t cluster;              /* hash of what makes it depend on others: see dq_item */
} dq_question;

typedef struct dq_questions {
    const dq_question *question; /* [n] */
    int64_t n;
    int64_t n_bad, first_bad; /* ill-formed UTF-8 that became U+FFFD; offset in the file or -1 */
    int64_t n_own_shots; /* questions that an example with the same question was taken out for */
} dq_questions;

typedef struct dq_question_shot {
    const char *text; /* "Question: ...\nAnswer: ...\n\n" */
    uint64_t content; /* hash of its question */
} dq_question_shot;

/* Solved examples before questions. */
typedef struct dq_question_shots {
    int64_t n; /* before every question; 0: none */
    bool
        drawn; /* anew for each question, as lm-evaluation-harness draws them; else the first of the file */
    uint64_t seed;                   /* of the draws */
    const dq_question_shot *example; /* [n_examples] */
    int64_t n_examples;
} dq_question_shots;

/* Records of text[len], JSON lines, one JSON list or what else files of the set may be, at most `limit` (0: all). The prompt
 * of an answered
 * one is "Question: ...\nAnswer:", after `shots` (NULL: none), none of which has the same question: DQ_MISMATCH where
 * too few others are left. DQ_DAMAGED names the path and the line, or the item of a list.
 * Source: lm-evaluation-harness lm_eval/tasks/gsm8k/gsm8k.yaml (behaviour). */
dq_status dq_questions_load(dq_questions *out, const dq_question_set *set,
                            const dq_question_shots *shots, const char *path, const char *text,
                            size_t len, int64_t limit, dq_arena *a, dq_err *err);
/* Fills the examples of *shots with the answered records of a file. One with fewer than n is DQ_MISMATCH. In the arena. */
dq_status dq_questions_shots(dq_question_shots *shots, const dq_question_set *set, const char *path,
                             const char *text, size_t len, dq_arena *a, dq_err *err);

#endif
