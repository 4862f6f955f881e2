/* kind_generate: kinds of source whose units are prompts that a model continues greedily.
 * A request's n_cont is the number of new ids asked for; a row's top1 holds them, -1 after the last.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KIND_GENERATE_H
#define DQ_KIND_GENERATE_H

#include "eval/eval.h"
#include "eval/generate.h"
#include "tasks/questions.h"

/* source->own is a dq_questions, source->settings one of these. */
typedef struct dq_eval_generate {
    const dq_question_set *set;
    int64_t max_new; /* new ids of a prompt at most */
    const char *const *stop;
    int n_stop;              /* texts that end a continuation and are not part of it */
    dq_question_shots shots; /* before answered questions */
} dq_eval_generate;

extern const dq_eval_kind dq_eval_answers; /* answered questions: exact_match, strict_match */
extern const dq_eval_kind dq_eval_prompts; /* continued for somebody else to judge: no metric */

/* What row->extra holds of each unit. */
typedef enum dq_eval_generated {
    DQ_GEN_COUNT, /* new ids */
    DQ_GEN_END,   /* dq_text_end */
    DQ_GEN_EXACT, /* dq_answer_verdict.flexible; of prompts 0, like the next */
    DQ_GEN_STRICT,
    DQ_GEN_EXTRA
} dq_eval_generated;

/* The unit's new ids as text, up to the first stop text. *text is a block (dq_block_free). */
dq_status dq_eval_completion(const dq_eval *e, const dq_eval_row *row, int64_t unit, char **text,
                             size_t *len, dq_err *err);
/* Writes a unit's ids and what they are worth into the row. */
dq_status dq_eval_keep(const dq_eval *e, dq_eval_row *row, int64_t unit,
                       const dq_generate_result *g, dq_err *err);

#endif
