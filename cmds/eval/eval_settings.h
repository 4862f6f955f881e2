/* eval_settings: what a run is asked to do, as its documents say it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_SETTINGS_H
#define DQ_EVAL_SETTINGS_H

#include "cmds/eval/eval_options.h"
#include "cmds/eval/eval_view.h"

/* Sets the members of `s`, an object: `settings` of dq-eval/1 and dq-eval-plan/1. Needs all rows; may be called again when more
 * is known. */
void cmd_eval_settings(json_t *s, const cmd_eval_options *o, const cmd_eval_view *v);
/* --fail-if with what it goes by, which has to be the same in all parts. */
json_t *cmd_eval_conditions(const cmd_eval_options *o);

#endif
