/* eval_gate: conditions on results under which dq eval fails (exit 7): --fail-if 'kld_nats > 0.01'.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_GATE_H
#define DQ_EVAL_GATE_H

#include "cmds/eval/eval_baseline.h"
#include "cmds/eval/eval_gate_expr.h"
#include "record/record.h"
#include "settings/options.h"

enum { DQ_GATE_NAME = 64, DQ_GATES_TOLD = 2 };

/* NAME OP LIMIT; OP is one of < <= > >=, LIMIT what eval_gate_expr.h reads, in which `baseline` is the same number of the same
 * row in an older document. NAME is a metric ("acc", "kld_nats"), a member of one ("kld_nats.p99",
 * "acc.stderr"), its paired difference to the reference ("acc_delta", "nll_nats_delta"), its p
 * ("acc_p"), "ppl_ratio", or the path of a number under "kv", "throughput", "weights", "positions" or "slices"
 * of a result ("kv.kept_fraction"). */
typedef struct cmd_eval_gate {
    const char *text; /* as given */
    char name[DQ_GATE_NAME];
    bool less, equal; /* < or <=; <= or >= */
    cmd_eval_gate_expr limit;
} cmd_eval_gate;

typedef struct cmd_eval_gates {
    cmd_eval_gate gate[DQ_LIST_MAX];
    int n;
    bool uses_baseline;            /* some limit has the word */
    cmd_eval_baseline baseline;    /* its path NULL: none is given */
    int missed;                    /* results that meet a condition */
    char told[DQ_GATES_TOLD][640]; /* the first of them: which, its value, the condition */
    int unchecked;  /* conditions that no result has a number for, or not every one that should */
    int sourceless; /* those of them where the source of a quantized model is not in the run */
    int unmatched;  /* and those where a result has no number in the baseline */
} cmd_eval_gates;

/* DQ_USAGE: not such an expression, or a baseline (NULL: none) that no expression names, or the other way round. */
dq_status cmd_eval_gates_read(cmd_eval_gates *g, const dq_list *texts, const char *baseline,
                              dq_err *err);
/* DQ_USAGE, before anything is scored: a name that no source of the run has. */
dq_status cmd_eval_gates_check(const cmd_eval_gates *g, const dq_eval_source *source, int n_sources,
                               dq_err *err);
/* When the rows are known, and the baseline is fitted to them: warns of a difference where every row is its own reference, and
 * of what cannot be compared with the baseline. */
void cmd_eval_gates_plan(const cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v);
/* Looks at every result of the document, says on stderr where a condition holds (or a value is missing, or
 * there was nothing to look at), counts that, and puts "gates" into the document. Differences of references are
 * left out, but those of a quantized model without its source cannot be checked. */
void cmd_eval_gates_apply(cmd_eval_gates *g, dq_logger *logger, const cmd_eval_view *v,
                          json_t *document);
/* DQ_GATE when something was missed or could not be checked. */
dq_status cmd_eval_gates_outcome(const cmd_eval_gates *g, dq_err *err);

#endif
