/* help_pages: what dq help prints of all commands: pages of the manual, completion of a shell, docs/commands.md. Texts and
 * rows come from the commands themselves.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HELP_PAGES_H
#define DQ_HELP_PAGES_H

#include "cmds/command.h"

#include <stdio.h>

typedef struct dq_help_pages {
    const dq_cmd *cmd; /* [n] */
    int n;
} dq_help_pages;

/* "exit status: 0 done, 1 bug, ...", wrapped. */
void dq_help_pages_exits(FILE *f);
/* docs/commands.md. */
dq_status dq_help_pages_markdown(const dq_help_pages *all, dq_err *err);
/* The names of all commands, groups too, a line each. */
dq_status dq_help_pages_commands(const dq_help_pages *all, dq_err *err);
/* A page in roff. cmd: a row of `all`, or NULL for that of dq itself. */
dq_status dq_help_pages_manual(const dq_help_pages *all, const dq_cmd *cmd, dq_err *err);
/* A script for a shell: "bash" or "zsh", DQ_USAGE for another. */
dq_status dq_help_pages_completion(const dq_help_pages *all, const char *shell, dq_err *err);

#endif
