/* ranks: the processes that compute one job, started together by mpirun, each with a number; 0 alone writes and prints. Without
 * MPI, or without mpirun, there is one. Functions that are called by all say so; they have to come in the same order.
 *
 * A rank that fails before such a call makes it fail everywhere, so that none waits for ever. One that dies is the launcher's
 * matter: mpirun ends the others. Nobody helps where one hangs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RANKS_H
#define DQ_RANKS_H

#include "base/base.h"

/* Before anything else here. DQ_MISMATCH: mpirun has started several, but there is no MPI in this program. */
dq_status dq_ranks_begin(dq_err *err);
/* Last of all, after dq_ranks_agree and messages. Ends the job where ranks do not answer. */
void dq_ranks_end(dq_status status);

int dq_ranks_count(void);
int dq_ranks_number(void);      /* 0 .. count - 1 */
int dq_ranks_number_here(void); /* among those of the same machine, from 0 on */
const char *dq_ranks_mpi(void); /* "Open MPI 4.1.4", "" without it */

/* By all: waits until all are here. Fails where one has failed (`err` of each), or where `same` (text; NULL: none) is not the
 * same for all: DQ_MISMATCH, `what` names it. */
dq_status dq_ranks_agree(const char *what, const char *same, dq_err *err);
/* By all: bytes p[n] of rank 0 become those of all. */
dq_status dq_ranks_share(void *p, size_t n, dq_err *err);

/* Takes bytes that another rank has told. */
typedef dq_status dq_ranks_take(void *arg, const char *text, size_t len, dq_err *err);
/* By all: on rank 0 `take` gets text[len] of every other rank, from the first to the last. */
dq_status dq_ranks_collect(const char *text, size_t len, dq_ranks_take *take, void *arg,
                           dq_err *err);

/* ---- In step: each computes a part of the same thing and passes it on ---- */

/* By all: all[count], the number of each. Fails as dq_ranks_agree does. */
dq_status dq_ranks_gather(int64_t *all, int64_t own, dq_err *err);
/* By all: *x becomes the sum of that of all. Likewise. */
dq_status dq_ranks_sum(int64_t *x, dq_err *err);
/* The following fail nowhere: they come after one of the calls above, and after it nothing may fail before they are done.
 * By all: bytes p[n] of rank `from` become those of all. */
void dq_ranks_spread(int from, void *p, size_t n);
/* p[n] for another rank, which receives what another sends it in the order in which that is sent. p stays as it is until
 * dq_ranks_sent has returned, which waits for all that was sent from within p[n]. */
void dq_ranks_send(int to, const void *p, size_t n);
void dq_ranks_sent(const void *p, size_t n);
void dq_ranks_receive(int from, void *p, size_t n);

/* Rows first .. end - 1 of n, for rank `rank`: as many whole units of rows as the others have, or one more. */
typedef struct dq_ranks_rows {
    int64_t first, end;
} dq_ranks_rows;
dq_ranks_rows dq_ranks_stripe(int rank, int64_t n, int64_t unit);
/* As dq_ranks_spread: rows p[n], of `bytes` each, of each rank's stripe. */
void dq_ranks_join(void *p, int64_t n, int64_t unit, size_t bytes);

/* ---- Pieces of work, which have no order ---- */

typedef struct dq_ranks_work {
    int64_t n;
    /* Computes a piece, on any rank. Results are told by dq_ranks_tell on ranks other than 0, and are in their place on 0. */
    dq_status (*run)(void *arg, int64_t piece, dq_err *err);
    dq_ranks_take *take; /* on rank 0, within dq_ranks_poll or between pieces */
    void *arg;
} dq_ranks_work;
/* By all: every piece is computed by one of them, handed out from the first to the last as they become free. Alone: in that
 * order. The first failure of any ends it everywhere, at the latest with the pieces at hand. */
dq_status dq_ranks_run(const dq_ranks_work *w, dq_err *err);
/* Within run, on a rank other than 0: copies the text, and sends it. */
dq_status dq_ranks_tell(const char *text, size_t len, dq_err *err);
/* Now and then within run, by the thread that runs it, so that others need not wait: a microsecond. */
void dq_ranks_poll(void);

#endif
