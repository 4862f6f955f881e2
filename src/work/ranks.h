/* ranks: the processes that compute one job, started together by mpirun, each with a number; 0
 * alone writes and prints. Without MPI, or without mpirun, there is one. Functions that are called
 * by all say so; they have to come in the same order.
 *
 * A rank that fails before such a call makes it fail everywhere, so that none waits for ever. One
 * that dies is the launcher's matter: mpirun ends the others. Rank 0 names one
 * of those that it has waited for long.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANKS_H
#define DQ_RANKS_H

#include "base/base.h"

/* First of all. DQ_MISMATCH: mpirun has started several ranks of a program without MPI. */
dq_status dq_ranks_begin(dq_err *err);
/* Last of all, after dq_ranks_agree and messages; aborts the job if ranks do not answer. */
void dq_ranks_end(dq_status status);

/* From here on rank 0 tells once of each wait that takes longer which rank it waits for, and to do
 * what. */
typedef void dq_ranks_late(int rank, const char *what);
void dq_ranks_listen(dq_ranks_late *late, double seconds);

int dq_ranks_count(void);
int dq_ranks_number(void);      /* 0 .. count - 1 */
int dq_ranks_number_here(void); /* among those of the same machine, from 0 on */
const char *dq_ranks_mpi(void); /* "Open MPI 4.1.4", "" without it */

/* By all: waits for all. Fails where one has failed (`err` of each). DQ_MISMATCH: `same` (NULL:
 * none) differs between ranks; `what` names it. */
dq_status dq_ranks_agree(const char *what, const char *same, dq_err *err);
/* By all: p[n] of rank 0 goes to all. */
dq_status dq_ranks_share(void *p, size_t n, dq_err *err);

/* Receives bytes from another rank. */
typedef dq_status dq_ranks_take(void *arg, const char *text, size_t len, dq_err *err);
/* By all: all[count] becomes the number of each. Fails as dq_ranks_agree does. */
dq_status dq_ranks_gather(int64_t *all, int64_t own, dq_err *err);
/* By all: *x becomes the sum over ranks. Fails likewise. */
dq_status dq_ranks_sum(int64_t *x, dq_err *err);
/* These cannot fail, and nothing may fail between one of the calls above and them. By all: p[n] of
 * rank `from` goes to all. */
void dq_ranks_spread(int from, void *p, size_t n);
/* Sends p[n]; a rank receives messages of another in the order sent. p must not change until
 * dq_ranks_sent, which waits for everything sent from p[n]. */
void dq_ranks_send(int to, const void *p, size_t n);
void dq_ranks_sent(const void *p, size_t n);
void dq_ranks_receive(int from, void *p, size_t n);

/* Rank `rank` has rows first .. end - 1 of n: whole units, as many as others or one more. */
typedef struct dq_ranks_rows {
    int64_t first, end;
} dq_ranks_rows;
dq_ranks_rows dq_ranks_stripe(int rank, int64_t n, int64_t unit);
/* As dq_ranks_spread: each rank has its stripe of rows p[n] of `bytes` each. */
void dq_ranks_join(void *p, int64_t n, int64_t unit, size_t bytes);

typedef struct dq_ranks_work {
    int64_t n;
    /* Computes a piece on any rank, which sends results by dq_ranks_tell unless it is rank 0. */
    dq_status (*run)(void *arg, int64_t piece, dq_err *err);
    dq_status (*last)(void *arg, dq_err *err); /* on ranks other than 0, after their last piece */
    dq_ranks_take *take; /* on rank 0, within dq_ranks_poll or between pieces */
    void *arg;
} dq_ranks_work;
/* By all: ranks take pieces in order as they become free. The first failure ends all, at the latest
 * after the current pieces. */
dq_status dq_ranks_run(const dq_ranks_work *w, dq_err *err);
/* Within run on ranks other than 0: sends a copy of the text. */
dq_status dq_ranks_tell(const char *text, size_t len, dq_err *err);
/* Called now and then within run, by its thread, so that others need not wait; takes a
 * microsecond. */
void dq_ranks_poll(void);

#endif
