/* question_sets: the table of sets whose records a model answers or continues in free text, with their published forms. To add
 * a set: a reader in question_sets.c and a row in the table.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUESTION_SETS_H
#define DQ_QUESTION_SETS_H

#include "base/json.h"
#include "tasks/answer_rules.h"

/* What a record says; text in the arena or in the record. */
typedef struct dq_question_parts {
    const char *question; /* of prompts the whole prompt */
    const char *gold;     /* not empty; NULL: prompts have none */
    const char *worked;   /* the answer as an example shows it */
    const char *passage;  /* what other questions are asked about as well; NULL: none */
    dq_answer_rule rule;
    /* What a judge of the continuation is told: the question that is asked of a source (NULL: for a summary), and right
     * answers as a JSON list of texts. reference NULL: nothing is known to judge it by. */
    const char *query, *reference;
} dq_question_parts;

typedef struct dq_question_set {
    const char *name, *form; /* form: of its files, for messages */
    bool answered;           /* else prompts, which nothing here judges */
    bool keyed;              /* a file may be one JSON object of records by their ids */
    bool xml;                /* or ASDiv's XML (question_xml.h) */
    dq_status (*read)(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err);
} dq_question_set;

extern const dq_question_set dq_question_sets[];
extern const int dq_question_sets_n;
const dq_question_set *dq_question_set_find(const char *name); /* NULL: none */

#endif
