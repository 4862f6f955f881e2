/* help: what a command prints about its options: text for a terminal, or a section of Markdown.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HELP_H
#define DQ_HELP_H

#include "settings/options.h"

/* Prints all that there is to a command in another form. opts: ended, without DQ_OPT_ROWS. */
typedef void dq_help_taker(const dq_opt *opts, const dq_usage *usage);
/* From now on dq_help_print calls it instead; topics do not count. */
void dq_help_take(dq_help_taker *taker);
/* A taker: a section of Markdown. */
void dq_help_markdown(const dq_opt *opts, const dq_usage *usage);
/* topic NULL: the first page, or all options where there is none; "all": every option; else those of the topic. opts: ended, without
 * DQ_OPT_ROWS. DQ_USAGE: there is no such topic. */
dq_status dq_help_print(const dq_opt *opts, const dq_usage *usage, const char *topic, dq_err *err);

/* What takers need: the length of a heading's title, after which it says more; and whether the options under a heading are explained
 * by dq eval, since the command has no topics. */
size_t dq_help_title(const dq_opt *heading);
bool dq_help_is_elsewhere(const dq_opt *heading, const dq_usage *usage);
/* A text about an option with its words in the place of {words}: the text itself where there is none, else out. */
enum { DQ_HELP_TEXT = 1024 };
const char *dq_help_text(char out[DQ_HELP_TEXT], const dq_opt *o, const char *text);

/* dq_options_parse and dq_options_parse_part, and the help where it is asked for: then args->help, and the command returns. */
dq_status dq_help_parse(dq_args *args, int argc, char **argv, const dq_opt *rows,
                        const dq_usage *usage, dq_err *err);
dq_status dq_help_parse_part(dq_args *args, int argc, char **argv, const dq_opt *rows,
                             const dq_opt *own, const dq_usage *usage, dq_err *err);

#endif
