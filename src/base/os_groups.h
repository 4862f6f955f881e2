/* os_groups: what the kernel's files say of this process and of the control groups (version 2) that it is in. Private to
 * src/base. All paths begin after `root`, "" but in tests.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_OS_GROUPS_H
#define DQ_OS_GROUPS_H

#include <stdint.h>
#include <stdio.h>

/* NULL: it cannot be opened. The caller closes it. */
FILE *dq_os_groups_open(const char *root, const char *folder, const char *name);
/* The number after the word `key` at the begin of a line, "": the file's first number; -1: none. */
int64_t dq_os_groups_number(const char *root, const char *folder, const char *name,
                            const char *key);
/* Calls visit for the folder of this process's group and of each above it; a container may see its own as the top one. */
typedef void dq_os_group_visit(void *arg, const char *root, const char *folder);
void dq_os_groups_each(const char *root, dq_os_group_visit *visit, void *arg);

#endif
