/* eval_kv: what dq eval says about KV caches besides its rows.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_KV_H
#define DQ_EVAL_KV_H

#include "cmds/cli/kv_report.h"
#include "cmds/eval/eval_view.h"
#include "eval/eval.h"
#include "record/record.h"
#include "settings/cache_options.h"

enum { DQ_KV_KEEP = 32 };

/* Puts what runs, what --kv-size has come to, and what each container remembers, into `settings`. */
void cmd_eval_kv_settings(json_t *settings, const dq_eval *e, const dq_kv_options *o,
                          const char *const *names);
/* After the run. */
void cmd_eval_kv_warn(dq_logger *logger, const dq_eval *e, const char *const *names);
/* What --kv-size has come to, a line each. */
void cmd_eval_kv_print_sizes(const dq_kv_options *o);
/* A note for each cache that several rows name: what they have in common, and that it was computed once. */
void cmd_eval_kv_print_same(const cmd_eval_view *v);
/* Whether some shown row has a cache that is not plain; whether shown rows differ in what chooses the
 * tokens. */
bool cmd_eval_kv_swept(const dq_eval *e);
bool cmd_eval_kv_policies(const dq_eval *e);
/* What --kv-keep or --kv-tokens asks of a row: "0.25", "300 tokens", "-" of a cache that evicts nothing; whether shown rows
 * differ in it. */
const char *cmd_eval_kv_keep_text(char buf[DQ_KV_KEEP], const dq_kv_spec *s);
bool cmd_eval_kv_keeps(const dq_eval *e);
/* Whether some shown row gives layers and heads other budgets than the same. */
bool cmd_eval_kv_budgets(const dq_eval *e);
/* With -v: the layers' kernels for every arithmetic and cache among the rows of a model, references too. */
void cmd_eval_say_routes(dq_logger *logger, const dq_backend *b, const dq_eval *e, int model);

#endif
