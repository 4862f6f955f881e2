/* journal: finished work as a file that only grows, one line a step, so that whatever ends the program, at any
 * moment, a later one goes on from what was done.
 *
 *   HASH TEXT        64 hex digits: the SHA-256 of the text, which holds no newline
 *
 * A line is with the system when dq_journal_add returns, so a kill costs at most the line at hand. What must
 * outlive the machine's own end needs dq_journal_sync.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_JOURNAL_H
#define DQ_JOURNAL_H

#include "base/base.h"

/* An open journal is locked: no other process can open it. */
typedef struct dq_journal dq_journal;

/* What was found in a file: text without hashes, each with a NUL after it. */
typedef struct dq_journal_lines {
    char **text; /* [n] */
    int64_t n;
} dq_journal_lines;

/* A line after which others follow, and which does not fit its hash. */
typedef enum dq_journal_damage {
    DQ_JOURNAL_REFUSE, /* DQ_DAMAGED: a program that was killed does not leave that */
    DQ_JOURNAL_CUT /* it goes, and so does all after it: a machine that went down may keep any of the
                        * lines after the last sync */
} dq_journal_damage;

/* Whether another process has it open. */
bool dq_journal_busy(const char *path);
/* An empty journal in place of what is there. DQ_RESOURCE: another process has it open. */
dq_status dq_journal_new(dq_journal **out, const char *path, dq_err *err);
/* Reads the lines of an existing file, into the arena, and goes on after them. A last line that was cut off,
 * or does not fit its hash, is dropped. DQ_MISMATCH: the file is none of these journals; it stays as it is. */
dq_status dq_journal_resume(dq_journal **out, const char *path, dq_journal_damage damage,
                            dq_journal_lines *found, dq_arena *a, dq_err *err);
/* The lines of a file that stays as it is, whoever has it open; one that is cut off at the end is left out. */
dq_status dq_journal_read(dq_journal_lines *found, const char *path, dq_arena *a, dq_err *err);
/* After a failure the file is as it was before. DQ_BUG: a newline in the text. */
dq_status dq_journal_add(dq_journal *j, const char *text, size_t len, dq_err *err);
dq_status dq_journal_sync(dq_journal *j, dq_err *err);
/* Drops all lines. */
dq_status dq_journal_clear(dq_journal *j, dq_err *err);
/* Lines in the file. */
int64_t dq_journal_count(const dq_journal *j);
/* `done`: nothing is to be resumed, the file goes away. NULL allowed. */
void dq_journal_close(dq_journal *j, bool done);

#endif
