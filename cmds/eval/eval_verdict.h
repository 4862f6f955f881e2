/* eval_verdict: what a sweep may claim: whether a row lost no more than a margin against its reference, by the paired
 * 95 % interval of the loss; the lowest width that holds; how many such comparisons there are.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_VERDICT_H
#define DQ_EVAL_VERDICT_H

#include "cmds/eval/eval_view.h"
#include "record/record.h"

/* Accuracy, or nats of NLL: one point, or 1 % of perplexity. */
#define DQ_EVAL_MARGIN 0.01
/* With fewer clusters than these there is a warning. */
enum { DQ_EVAL_FEW_CLUSTERS = 10 };

typedef struct cmd_eval_verdict {
    bool there; /* else the row has no loss */
    dq_interval_loss loss;
    dq_interval_decision is;
    int64_t missing; /* clusters that would decide, roughly; 0: unknown, or decided */
} cmd_eval_verdict;
cmd_eval_verdict cmd_eval_verdict_of(const cmd_eval_view *v, int row, const dq_eval_numbers *x);

/* Prints what the lines of the table rest on, and for every model that was scored at several widths of logits the
 * lowest one that holds. */
dq_status cmd_eval_claims(const cmd_eval_view *v, dq_err *err);
/* "verdict" of a row; "comparisons" and "lowest_logit_bits" of the document. */
json_t *cmd_eval_verdict_json(const cmd_eval_view *v, int row, const dq_eval_numbers *x);
dq_status cmd_eval_claims_json(json_t *document, const cmd_eval_view *v, dq_err *err);
/* Warns of standard errors that rest on few clusters. */
dq_status cmd_eval_warn_clusters(dq_logger *logger, const cmd_eval_view *v, dq_err *err);
/* Warns, before anything is scored, of quantized models without their source; made_from[i]: base name of what model i
 * was made from, NULL for a checkpoint. */
void cmd_eval_warn_sources(dq_logger *logger, const cmd_eval_view *v, const char *const *made_from);

#endif
