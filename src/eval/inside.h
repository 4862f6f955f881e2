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

/* Opens an empty sequence, or a copy of `parent` unless negative. -1: see err. */
int32_t dq_score_open(dq_scorer *s, int32_t parent, dq_err *err);
void dq_score_close(dq_scorer *s, const int32_t *seq, int64_t n);
/* Tokens between two evictions after the context: kv->evict.every, or INT32_MAX without further
 * evictions. */
int64_t dq_score_piece(const dq_scorer *s);

typedef struct dq_pass_plan {
    dq_scorer *s;
    dq_arena *a;
    const dq_attention_spans *spans; /* [n_layers] that the pass sums up; NULL: none */
    int64_t *cu;
    int32_t *seq, *ids, *pos;
    int n_seq;
    int64_t n_rows;
    int64_t *row;    /* [n_requested] */
    int32_t *target; /* [n_requested] */
    int64_t *value;  /* [n_requested] where the answer goes */
    int64_t n_requested;
} dq_pass_plan;

/* Makes an empty plan for so many sequences, rows and requested rows. */
dq_status dq_pass_plan_begin(dq_pass_plan *p, dq_scorer *s, dq_arena *a, int64_t seqs, int64_t rows,
                             int64_t requested, dq_err *err);
void dq_pass_plan_clear(dq_pass_plan *p);
/* Adds a sequence to the pass; and n rows to the last sequence. */
void dq_pass_plan_sequence(dq_pass_plan *p, int32_t seq);
void dq_pass_plan_rows(dq_pass_plan *p, const int32_t *ids, int64_t n, int64_t pos);
/* Requested rows of a sequence must ascend. */
void dq_pass_plan_ask(dq_pass_plan *p, int64_t row, int32_t target, int64_t value);

/* Runs the pass, which the scorer's evictor observes. *hidden as in dq_runner_pass. */
dq_status dq_pass_plan_run(dq_pass_plan *p, dq_mat *hidden, dq_err *err);
/* Runs the pass; final states of requested rows go to `state`, results to `out` in order. */
dq_status dq_pass_plan_answer(dq_pass_plan *p, dq_mat state, dq_scores out, dq_err *err);
/* After a pass: evicts in its sequences, if there is an evictor, and measures them as contexts
 * alone in the cache. floor: see dq_kv_cached_floor; NULL: no measurement. */
dq_status dq_pass_plan_compress(const dq_pass_plan *p, const dq_kv_bytes *floor, dq_err *err);

/* Of windows, what dq_eval_numbers_of (a zeroed *out but for is_task and is_ref) and dq_eval_worse
 * give. */
dq_status dq_text_numbers(dq_eval_numbers *out, const dq_eval *e, const dq_eval_row *row,
                          dq_err *err);
dq_status dq_text_worse(dq_interval_loss *out, const dq_eval *e, const dq_eval_row *before,
                        const dq_eval_row *after, dq_err *err);

/* The end of a run from `at` on of units that are all finished or all not. */
int64_t dq_eval_alike(const dq_eval_row *row, int64_t at, int64_t end);

#endif
