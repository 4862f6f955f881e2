/* stats_sensitivity: dq stats --forecast and --sensitivity: what rounding will do, and what rounding one thing alone does.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_SENSITIVITY_H
#define DQ_STATS_SENSITIVITY_H

#include "cmds/cli/progress.h"
#include "cmds/stats/stats_out.h"
#include "settings/options.h"

/* What is asked for. */
typedef struct cmd_stats_sensitivity {
    bool forecast;  /* of logits alone */
    dq_words kinds; /* of cmd_stats_sensitivity_kinds; n 0: none */
    dq_word granularity;
    int64_t bits, windows, tokens; /* 0: not given */
} cmd_stats_sensitivity;

/* "all", then dq_sensitivity_name. */
enum { CMD_STATS_SENSITIVITY_KINDS = DQ_SENSITIVITY_KINDS + 1 };
extern const char *const cmd_stats_sensitivity_kinds[CMD_STATS_SENSITIVITY_KINDS];

#define CMD_STATS_SENSITIVITY_OPTIONS(x)                                                           \
    dq_opt_heading("rounding:"),                                                                   \
        dq_opt_flag("forecast", &(x).forecast,                                                     \
                    "what rounding attention logits to 8, 6, 4 and 3 bits does to them and to "    \
                    "the maps of every head, at every granularity"),                               \
        dq_opt_words("sensitivity", "KINDS", &(x).kinds, cmd_stats_sensitivity_kinds,              \
                     CMD_STATS_SENSITIVITY_KINDS,                                                  \
                     "{words}: round the attention logits of one layer, head or map alone, the "   \
                     "keys or values of one layer, one matrix of weights, and measure the KL "     \
                     "divergence; takes minutes to hours, and includes --forecast"),               \
        dq_opt_int("sensitivity-bits", "B", &(x).bits, 2, 8,                                       \
                   "bits that they are rounded to (default 4)"),                                   \
        dq_opt_int("sensitivity-windows", "N", &(x).windows, 2, 4096,                              \
                   "windows that both read, at even intervals in the text (default 8)"),           \
        dq_opt_int("sensitivity-tokens", "N", &(x).tokens, 3, 32768,                               \
                   "tokens of each of them, from its beginning (default 512)"),                    \
        dq_opt_word("logit-granularity", "WHICH", &(x).granularity, dq_granularity_name,           \
                    DQ_GRANULARITIES, "logits with one scale: {words} (default per-tensor)")

bool cmd_stats_sensitivity_wanted(const cmd_stats_sensitivity *x);
/* Puts what is usual in the place of what is not given. DQ_USAGE for settings without what they are about, DQ_MISMATCH where it
 * cannot run. */
dq_status cmd_stats_sensitivity_check(cmd_stats_sensitivity *x, const dq_backend *b, dq_err *err);
void cmd_stats_sensitivity_settings(const cmd_stats_sensitivity *x, json_t *settings);

/* Fills entry[n].sensitivity. */
typedef struct cmd_stats_sensitivity_run {
    const cmd_stats_sensitivity *set;
    cmd_stats_entry *entry;
    int n;
    const char *out; /* beside which a journal lies; NULL: nothing is kept */
    const char *key; /* of models and ids */
    bool resume, force;
    dq_backend *backend;
    dq_logger *logger;
    dq_arena *arena;
    /* private */
    dq_plan_journal journal;
    dq_progress bar;
} cmd_stats_sensitivity_run;
/* Before anything is computed: what would be refused, and what an earlier run has found. DQ_MISMATCH for windows or models that
 * have nothing of a kind. */
dq_status cmd_stats_sensitivity_begin(cmd_stats_sensitivity_run *r, dq_err *err);
dq_status cmd_stats_sensitivity_compute(cmd_stats_sensitivity_run *r, dq_err *err);
/* The journal goes away if all was handed over, else it is kept, which the error says. {0} allowed. */
void cmd_stats_sensitivity_end(cmd_stats_sensitivity_run *r, dq_err *err);

#endif
