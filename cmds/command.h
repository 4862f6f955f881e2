/* command: the commands of dq. Only this folder reads argv, prints, or exits.
 * ARCHITECTURE.md says what a new command touches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_COMMAND_H
#define DQ_COMMAND_H

#include "base/base.h"

/* Runs one command; argv[0] is its name. Results go to stdout; the message of a failure is left in
 * err and printed once by main. */
typedef dq_status dq_cmd_run(int argc, char **argv, dq_err *err);

/* A row of the table of commands, in main.c. Of a group, such as plan, the rows that follow begin with its name; its own row
 * has no `run`. */
typedef struct dq_cmd {
    const char *name, *purpose; /* "plan kv" */
    dq_cmd_run *run;
} dq_cmd;

dq_cmd_run dq_cmd_stats, dq_cmd_quantize, dq_cmd_eval, dq_cmd_generate, dq_cmd_info, dq_cmd_verify,
    dq_cmd_logits, dq_cmd_tokenize, dq_cmd_judged, dq_cmd_merge, dq_cmd_doctor, dq_cmd_report,
    dq_cmd_export;
dq_cmd_run dq_cmd_plan_weights, dq_cmd_plan_kv, dq_cmd_plan_heads, dq_cmd_plan_gates;
dq_cmd_run dq_cmd_bench_prefill, dq_cmd_bench_generate, dq_cmd_bench_decode, dq_cmd_bench_attention,
    dq_cmd_bench_items, dq_cmd_bench_evict, dq_cmd_bench_compare;

#endif
