/* plan_state: what a plan has found, in a journal beside its output, so that a later run goes on from it to the same numbers.
 * The first line names all that numbers depend on; the budget is not among it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_STATE_H
#define DQ_PLAN_STATE_H

#include "plan/plan_journal.h"
#include "plan/weights/plan_weights.h"

typedef struct dq_plan_state {
    dq_plan_journal journal;
    json_t *kept; /* {KEY: result} of trials */
    char *begun;  /* the choice whose trial was begun last, NULL: none */
    json_t *look; /* [{"look", "goal", "value"}] at the unseen text, as they came */
} dq_plan_state;

/* All that numbers depend on but for what is in the plan's settings of budget, as one hash; *out: member by member, a new
 * reference; codes: what the method's codes go by. DQ_RESOURCE. */
dq_status dq_plan_state_key(char hex[65], json_t **out, const dq_plan_weights *p,
                            const dq_quantize_needs *codes, dq_err *err);
/* By all ranks (base/ranks.h), of which 0 has the journal: opens it, and takes over what an earlier run has found. DQ_FILE for one that is there, where nothing is to be
 * resumed; DQ_MISMATCH for one of other inputs or settings, and where those of ranks differ. */
dq_status dq_plan_state_begin(dq_plan_weights *p, dq_err *err);
void dq_plan_state_end(dq_plan_weights *p, bool done);
dq_status dq_plan_state_put_probe(dq_plan_weights *p, int64_t tensor, dq_err *err);
/* A trial's results go in and come back by its choice; *found: whether they were there. */
dq_status dq_plan_state_put_trial(dq_plan_weights *p, const dq_plan_trial *t, dq_err *err);
dq_status dq_plan_state_get_trial(bool *found, dq_plan_weights *p, dq_plan_trial *t, dq_err *err);
/* Writes down that the trial of a choice is begun; *again: an earlier run had begun it last, and what it left is its. */
dq_status dq_plan_state_begin_trial(bool *again, dq_plan_weights *p, const dq_plan_trial *t,
                                    dq_err *err);
/* The number of the look at a trial for the budget, from 1, over all of the journal; written down before anybody uses what it
 * says. DQ_MISMATCH after DQ_PLAN_LAST_LOOK. */
dq_status dq_plan_state_look(int *number, dq_plan_weights *p, const dq_plan_trial *t, dq_err *err);
/* Room for the sums of a trial. */
dq_status dq_plan_state_alloc(dq_plan_weights *p, dq_plan_trial *t, dq_err *err);

#endif
