/* commit: the state of the repository that the program was built from, which the build looks up each time (commit.cmake).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_COMMIT_H
#define DQ_COMMIT_H

/* "0123456789ab", "-dirty" after it where files that git knows were changed; NULL: not known. */
const char *dq_commit_text(void);
/* The version, and in parentheses the commit where it is known. */
const char *dq_commit_version(void);

#endif
