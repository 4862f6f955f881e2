/* Long jobs: the time that is left, shards of a run, what an interrupted one has done.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_WORK_H
#define DQ_WORK_H

#include "base/base.h"
#include "base/json.h"

/* Time left for work of several kinds, in seconds that were expected of it: scaled by what a kind
 * has taken so far or, for one that has hardly begun, all kinds. */

enum { DQ_PACE_KINDS = 64 };

typedef struct dq_pace {
    double left[DQ_PACE_KINDS], done[DQ_PACE_KINDS]; /* expected seconds */
    double taken[DQ_PACE_KINDS];                     /* seconds of what is done */
    double last;                                     /* time of the last step */
} dq_pace;

/* now: dq_os_seconds. */
void dq_pace_begin(dq_pace *p, double now);
/* Adds to what is expected; negative: removes. */
void dq_pace_expect(dq_pace *p, int kind, double seconds);
/* So many expected seconds are done and took the time since the last step. */
void dq_pace_step(dq_pace *p, int kind, double seconds, double now);
double dq_pace_taken(const dq_pace *p);
double dq_pace_left(const dq_pace *p); /* seconds that the rest will take */

/* ---- Ledger ----
 * A long job is a list of pieces. What a piece finds is a line, a JSON object, and reading it back
 * puts the numbers where computing leaves them. Whether this process, another rank, an earlier run
 * that was interrupted or a shard has computed a piece makes no difference to the caller.
 *
 *   {"schema": .., "key": .., ..}     the head; of a shard also "shard": I, from 1, and "shards": N
 *   {..}                              lines, in any order
 *   {"end": true}                     of a shard: nothing is left to do
 *
 * Each line of the file begins with the SHA-256 of what follows. A line is with the system when
 * dq_work_put returns, so a kill costs at most the line at hand; what must outlive the machine's
 * own end needs dq_work_sync. A lock keeps other processes from writing to an open file. An invalid
 * last line is dropped; one before others is DQ_DAMAGED, as a kill does not leave that, or (beside)
 * dropped with all after it, as a crash of the machine may keep any later lines. */

/* Reads a line back. told: on rank 0, another has computed it just now. Else it was in a file, or
 * rank 0 passes on what it has or has been told. */
typedef dq_status dq_work_take(void *arg, const json_t *line, bool told, dq_err *err);
typedef dq_status dq_work_compute(void *arg, int64_t piece, dq_err *err);

/* A member of `of` that comes from a file, for messages. */
typedef struct dq_work_source {
    const char *member, *path;
} dq_work_source;
enum { DQ_WORK_SOURCES = 6 };

typedef struct dq_work_how {
    const char *path;                       /* NULL: nothing is written down */
    const char *kept;                       /* what a failure keeps, for messages; NULL: `path` */
    const char *schema, *key;               /* the form of lines; what their bits depend on */
    const json_t *of;                       /* key NULL: its members, which have names */
    dq_work_source source[DQ_WORK_SOURCES]; /* up to one without a member */
    const json_t *about;                    /* more members of the head; NULL: none */
    int shard, n_shards;                    /* from 1; 0 and 0: the whole */
    bool resume, force;                     /* goes on from a file that is there, or replaces it */
    bool beside;   /* the output, whose --force messages name where the file cannot be used */
    bool goes_on;  /* what cannot be written down ends the file, not the run */
    bool shared;   /* every rank takes every line */
    bool rewrites; /* by dq_work_rewrite */
    dq_work_take *take;
    dq_status (*flush)(void *arg, dq_err *err); /* puts what a rank holds back, after its pieces */
    void *arg;
} dq_work_how;

typedef struct dq_work {
    dq_work_how how;
    char key[65];   /* the hash of `of` */
    bool open;      /* the file */
    bool made;      /* by this run: with the head alone it goes away where the run fails */
    bool ended;     /* its last line is there */
    bool runs;      /* within dq_work_run */
    dq_err lost;    /* why lines are no longer written down, if they are not */
    dq_strbuf news; /* lines that other ranks lack */
    int fd;         /* of the file */
    int64_t end, n; /* of its last whole line; lines with the head */
} dq_work;

/* SHA-256 of a value with sorted keys. */
dq_status dq_work_key(char hex[65], const json_t *of, dq_err *err);
bool dq_work_busy(const char *path); /* another process has it open */
/* DQ_FILE: something is there that is no regular file. */
dq_status dq_work_place(const char *path, dq_err *err);
/* Opens the file and takes its lines: with `shared` by all ranks, else by rank 0. DQ_FILE: as
 * dq_work_place, or it exists and is neither resumed nor replaced; DQ_MISMATCH: of another form,
 * run or shard, something else at PATH.partial (rewrites), or ranks differ in `of`; DQ_DAMAGED. */
dq_status dq_work_open(dq_work *w, const dq_work_how *how, dq_err *err);
/* Computes pieces 0 .. n - 1, by all ranks, which take them in order as they become free. */
dq_status dq_work_run(dq_work *w, int64_t n, dq_work_compute *compute, void *arg, dq_err *err);
/* Writes a line down, which it takes over. Within dq_work_run it is what this rank has computed,
 * else what all have. */
dq_status dq_work_put(dq_work *w, json_t *line, dq_err *err);
bool dq_work_records(const dq_work *w); /* whether a line that is put goes anywhere */
dq_status dq_work_sync(dq_work *w, dq_err *err);
/* Replaces the file by one of the lines that `put` puts, with the last one where `ends`. */
dq_status dq_work_rewrite(dq_work *w, dq_status (*put)(void *arg, dq_err *err), bool ends,
                          dq_err *err);
/* Appends the last line, and syncs. */
dq_status dq_work_end(dq_work *w, dq_err *err);
bool dq_work_has_lines(const dq_work *w);
/* Whether a failure leaves a file to go on from: not for one of the inputs. */
bool dq_work_resumable(const dq_err *err);
/* Says what is kept, or removes a file without lines. Returns err->code. */
dq_status dq_work_failed(dq_work *w, dq_err *err);
/* done: removes the file, as its content is written elsewhere or is nothing. {0} allowed. */
void dq_work_close(dq_work *w, bool done);

/* Takes the lines of a shard's file. DQ_MISMATCH: of another form or run, or not finished. */
dq_status dq_work_merge(const dq_work_how *how, const char *path, dq_err *err);
/* The head alone, which is the caller's, and whether the last line is there. DQ_DAMAGED without a
 * line. */
dq_status dq_work_head(json_t **head, bool *ended, const char *path, dq_err *err);

/* "X X ..": numbers to the last bit; NULL: see dq_json_complete. */
json_t *dq_work_reals(const double *x, int64_t n);
/* The n numbers of a member. DQ_DAMAGED: more, fewer or none. */
dq_status dq_work_take_reals(double *x, int64_t n, const json_t *line, const char *key,
                             dq_err *err);

#endif
