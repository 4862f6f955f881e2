/* What the files of src/eval share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_INSIDE_H
#define DQ_EVAL_INSIDE_H

#include "base/json.h"
#include "base/text.h"
#include "eval/eval.h"
#include "eval/kinds.h"
#include "eval/score.h"
#include "session/session.h"
#include "stat/stat.h"
#include "tasks/documents.h"
#include "tasks/tasks.h"
#include "work/work.h"

/* Whether the text so far of a unit has all that is wanted; and how right it is by both metrics. */
typedef bool dq_eval_is_over(const dq_eval *e, const dq_eval_row *row, int64_t unit,
                             const char *text, size_t len);
typedef dq_status dq_eval_judge_text(double right[2], const dq_eval *e, const dq_eval_row *row,
                                     int64_t unit, const char *text, size_t len, dq_err *err);
/* Continues n prompts, those of units from `begin` on, with a row's stop tokens, and until `over`
 * says so (NULL: nobody is asked); see dq_generate. */
dq_generate_result *dq_eval_continue(const dq_eval *e, const dq_eval_row *row, dq_scorer *s,
                                     int64_t begin, const dq_generate_prompt *prompt, int64_t n,
                                     dq_eval_is_over *over, bool logp, dq_arena *a, dq_err *err);
/* Stores new ids in a row's top1 from `at` on, -1 after the last one up to `n`. */
void dq_eval_store(dq_eval_row *row, int64_t at, int64_t n, const dq_generate_result *g);
/* Continues the requests of units begin .. end - 1, and stores ids, numbers (dq_eval_generated) and
 * what `judge` says. */
dq_status dq_eval_write(const dq_eval *e, dq_eval_row *row, dq_scorer *s, int64_t begin,
                        int64_t end, dq_eval_is_over *over, dq_eval_judge_text *judge, dq_arena *a,
                        dq_err *err);
/* dq_eval_kind.judge of what dq_eval_write stored. */
void dq_eval_judge_written(const dq_eval *e, const dq_eval_row *row, int metric, double *score);
/* A request an item, with memory from a. NULL: see err. */
dq_request *dq_eval_requests(dq_requests *out, int64_t n, dq_arena *a, dq_err *err);
/* Lengths of prompts, given or (none) one: DQ_DEFAULT_LENGTH, or the fewest positions of all
 * models. DQ_MISMATCH: a model has fewer positions. */
enum { DQ_DEFAULT_LENGTH = 4096 };
dq_status dq_eval_lengths(int *length, int *n, const int *given, int n_given, const dq_eval *e,
                          dq_err *err);

/* Of windows, what dq_eval_numbers_of (a zeroed *out but for is_task and is_ref) and dq_eval_worse
 * give. */
dq_status dq_text_numbers(dq_eval_numbers *out, const dq_eval *e, const dq_eval_row *row,
                          dq_err *err);
dq_status dq_text_worse(dq_interval_loss *out, const dq_eval *e, const dq_eval_row *before,
                        const dq_eval_row *after, dq_err *err);

#endif
