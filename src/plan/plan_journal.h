/* plan_journal: results of a plan in a journal beside its output, each a line of JSON. The first line names all that they depend
 * on: {"key": HASH, "of": {...}}; a run with other inputs or settings does not go on from it.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_JOURNAL_H
#define DQ_PLAN_JOURNAL_H

#include "base/json.h"
#include "base/work.h"

typedef struct dq_plan_journal {
    dq_journal *file; /* NULL: not open */
    char *path;       /* OUT.journal, in the arena */
    bool ours;        /* it belongs to this run */
    bool made;        /* by this run: with the key alone it goes away where the run fails */
    bool resumes;     /* what an earlier run left stays, even where this one fails */
} dq_plan_journal;

/* What a line after the first means; the line goes away after it. */
typedef dq_status dq_plan_journal_take(void *arg, json_t *line, dq_err *err);

/* A member of `of` that comes of a file, for messages. */
typedef struct dq_plan_journal_file {
    const char *member, *path;
} dq_plan_journal_file;
enum { DQ_PLAN_JOURNAL_FILES = 6 };

typedef struct dq_plan_journal_how {
    const char *out;                                  /* beside which it lies */
    const char *key;                                  /* 64 hex digits, of `of` */
    const json_t *of;                                 /* member by member what results depend on */
    dq_plan_journal_file file[DQ_PLAN_JOURNAL_FILES]; /* up to one without a member */
    bool resume, force;         /* go on from one that is there, or replace it */
    dq_plan_journal_take *take; /* told each line that is found */
    void *arg;
} dq_plan_journal_how;

/* SHA-256 of an object's text with its keys in order. */
dq_status dq_plan_journal_key(char hex[65], const json_t *of, dq_err *err);
/* DQ_FILE for what is there and no regular file: a folder or a FIFO holds no journal. */
dq_status dq_plan_journal_check(const char *path, dq_err *err);
/* By all ranks (base/ranks.h): rank 0 alone has the file, and all take the lines that it finds. DQ_FILE as dq_plan_journal_check, and for one that is there, where nothing is to be resumed; DQ_MISMATCH for one of other
 * inputs or settings, and for a file that is none. */
dq_status dq_plan_journal_open(dq_plan_journal *j, const dq_plan_journal_how *how, dq_arena *a,
                               dq_err *err);
/* Numbers as a member of a line; and back: at most n of them to x, *found: how many. DQ_DAMAGED for a member with fewer than one,
 * or with what is no number of nats. */
json_t *dq_plan_journal_reals(const double *x, int64_t n);
dq_status dq_plan_journal_take_reals(double *x, int64_t n, int64_t *found, const json_t *line,
                                     const char *key, dq_err *err);
/* On rank 0. Takes the value. */
dq_status dq_plan_journal_put(dq_plan_journal *j, json_t *line, dq_err *err);
/* done: what it holds is written elsewhere, or is nothing. {0} allowed. */
void dq_plan_journal_end(dq_plan_journal *j, bool done);
/* Whether a failure leaves what a later run goes on from: it is none of the inputs'. */
bool dq_plan_journal_resumable(const dq_err *err);
/* After a failure: says what is kept, or ends a journal with nothing in it. Returns err->code. */
dq_status dq_plan_journal_failed(dq_plan_journal *j, dq_err *err);

#endif
