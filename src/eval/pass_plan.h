/* pass_plan: a pass in the making: its sequences and rows, and the rows whose successor is asked
 * for. What the files of score share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PASS_PLAN_H
#define DQ_PASS_PLAN_H

#include "eval/score.h"

typedef struct dq_score_plan {
    dq_runner *r;
    dq_arena *a;
    dq_evictor *evictor; /* watches the pass; NULL: nobody does */
    int64_t *cu;
    int32_t *seq, *ids, *pos;
    int n_seq;
    int64_t n_rows;
    int64_t *row;    /* [n_asked] */
    int32_t *target; /* [n_asked] */
    int64_t *value;  /* [n_asked] where the answer goes */
    int64_t n_asked;
} dq_score_plan;

/* Room for so many sequences, rows and questions. */
dq_status dq_score_plan_begin(dq_score_plan *p, dq_runner *r, dq_arena *a, int64_t seqs,
                              int64_t rows, int64_t asked, dq_err *err);
/* Opens an empty sequence, or a copy of `parent` if that is not negative. -1: see err. */
int32_t dq_score_open(dq_runner *r, dq_evictor *evictor, int32_t parent, dq_err *err);
void dq_score_close(dq_runner *r, dq_evictor *evictor, const int32_t *seq, int64_t n);
/* The next sequence of the pass, and n rows for the sequence that came last. */
void dq_score_plan_sequence(dq_score_plan *p, int32_t seq);
void dq_score_plan_rows(dq_score_plan *p, const int32_t *ids, int64_t n, int64_t pos);
void dq_score_plan_ask(dq_score_plan *p, int64_t row, int32_t target, int64_t value);

dq_batch dq_score_batch(const dq_score_plan *p);
/* Position of the next row of each sequence of a pass that ran (0 where it had no rows): [n_seq], a block
 * that the caller ends with dq_block_free. NULL: see err. */
int32_t *dq_score_plan_next(const dq_score_plan *p, dq_err *err);
/* Behind a pass that p->evictor watched: forgets tokens of its sequences. */
dq_status dq_score_plan_evict(const dq_score_plan *p, dq_evict_report *report, dq_work *work,
                              dq_err *err);
/* Runs the pass. *hidden as dq_runner_pass has it. */
dq_status dq_score_plan_pass(dq_score_plan *p, const dq_pass *pass, dq_mat *hidden, dq_work *work,
                             dq_err *err);
/* Runs it; the asked rows' final states go to `state`, their answers to logp and top1. */
dq_status dq_score_plan_run(dq_score_plan *p, const dq_pass *pass, dq_mat state, double *logp,
                            int32_t *top1, dq_work *work, dq_err *err);
/* Runs it over items; what it answers goes to logp[value] and top1[value]. */
dq_status dq_score_plan_items(dq_score_plan *p, const dq_pass *pass, double *logp, int32_t *top1,
                              dq_work *work, dq_err *err);

/* Ids that are fed behind the trunk: the last one's successor is not asked for. */
int64_t dq_score_fed(const dq_request *r);
/* Whether all choices of an item have one context; truncation may have cut them differently. */
bool dq_score_same_context(const dq_requests *q, int64_t item);

#endif
