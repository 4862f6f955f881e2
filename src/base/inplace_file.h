/* inplace_file: files that are written in place and may be finished by a later process: a lock, writes at an
 * offset, and a journal of checked lines that survives a kill at any moment. Needs POSIX, like os.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_INPLACE_FILE_H
#define DQ_INPLACE_FILE_H

#include "base/base.h"

/* An open file; fd -1: none. */
typedef struct dq_inplace {
    int fd;
    const char *path; /* borrowed */
} dq_inplace;

dq_status dq_inplace_open(dq_inplace *p, const char *path, dq_err *err); /* an existing file */
void dq_inplace_close(dq_inplace *p);                                    /* may be called again */
dq_status dq_inplace_put(dq_inplace *p, int64_t at, const void *data, size_t bytes, dq_err *err);
/* A hint: the disk may begin with these bytes now, so that a later sync has less to wait for. */
void dq_inplace_start(dq_inplace *p, int64_t at, size_t bytes);
dq_status dq_inplace_sync(dq_inplace *p, dq_err *err);
bool dq_is_regular(const char *path); /* exists, and is a regular file (or a link to one) */
dq_status dq_remove(const char *path, dq_err *err); /* an absent file is fine */

/* Lines of text, each with a check sum. A line counts once its end is on the disk; a torn last line is
 * cut off when the journal is opened again. */
typedef struct dq_journal {
    dq_inplace file;
    int64_t end; /* bytes of whole lines */
    char **line; /* found when opened, in the arena */
    int64_t n_lines;
} dq_journal;

/* Opens or creates the journal and locks it: DQ_FILE when another process holds the lock. */
dq_status dq_journal_open(dq_journal *j, const char *path, dq_arena *a, dq_err *err);
void dq_journal_close(dq_journal *j);
dq_status dq_journal_clear(dq_journal *j, dq_err *err); /* no lines any more */
/* Appends a line (without newline inside); it is safe after dq_journal_sync. */
dq_status dq_journal_add(dq_journal *j, const char *text, dq_err *err);
dq_status dq_journal_sync(dq_journal *j, dq_err *err);

#endif
