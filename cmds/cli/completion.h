/* completion: a script with which a shell completes the command line of dq: commands, options, words that an option takes, and
 * names of files. One script is printed, in the order of the functions below.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_COMPLETION_H
#define DQ_COMPLETION_H

#include "settings/options.h"

/* shell: "bash" or "zsh"; DQ_USAGE for another. */
dq_status dq_completion_begin(const char *shell, dq_err *err);
/* What is completed after the name of a command (a dq_help_taker). */
void dq_completion_command(const dq_opt *opts, const dq_usage *usage);
/* Then the names that may follow dq (group "") or a group's name: each group, its names, and its end. */
void dq_completion_names(void);
void dq_completion_group(const char *group);
void dq_completion_name(const char *name, const char *purpose);
void dq_completion_group_end(void);
void dq_completion_end(void);

/* completion.bash and completion.zsh. */
extern const char dq_completion_bash[], dq_completion_zsh[];
extern const size_t dq_completion_bash_len, dq_completion_zsh_len;

#endif
