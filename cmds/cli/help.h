/* help: what a command prints about its options: text for a terminal, or a section of Markdown.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HELP_H
#define DQ_HELP_H

#include "cmds/cli/options.h"

/* From now on dq_help_print prints a section of Markdown with every option. */
void dq_help_markdown(void);
/* topic NULL: the first page, or all options where there is none; "all": every option; else those of the topic. opts: ended, without
 * DQ_OPT_ROWS. DQ_USAGE: there is no such topic. */
dq_status dq_help_print(const dq_opt *opts, const dq_usage *usage, const char *topic, dq_err *err);

/* A text about an option with its words in the place of {words}: the text itself where there is none, else out. */
enum { DQ_HELP_TEXT = 1024 };
const char *dq_help_text(char out[DQ_HELP_TEXT], const dq_opt *o, const char *text);

#endif
