/* ranks_none: see ranks.h. One process, without MPI.
 * SPDX-License-Identifier: MIT */
#include "work/ranks.h"

#include "base/os.h"

#include <stdlib.h>

dq_status dq_ranks_begin(dq_err *err)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    if (!size || atoi(size) < 2) return DQ_OK;
    return dq_fail(err, DQ_MISMATCH,
                   "started %s times by mpirun, but built without MPI, so each would do all of the "
                   "work. Build it where Open MPI is installed (libopenmpi-dev)",
                   size);
}

void dq_ranks_end(dq_status status)
{
    (void)status;
}

void dq_ranks_listen(dq_ranks_late *late, double seconds)
{
    (void)late;
    (void)seconds;
}

int dq_ranks_count(void)
{
    return 1;
}

int dq_ranks_number(void)
{
    return 0;
}

int dq_ranks_number_here(void)
{
    return 0;
}

const char *dq_ranks_mpi(void)
{
    return "";
}

dq_status dq_ranks_agree(const char *what, const char *same, dq_err *err)
{
    (void)what;
    (void)same;
    return err->code;
}

dq_status dq_ranks_share(void *p, size_t n, dq_err *err)
{
    (void)p;
    (void)n;
    return err->code;
}

dq_status dq_ranks_gather(int64_t *all, int64_t own, dq_err *err)
{
    *all = own;
    return err->code;
}

dq_status dq_ranks_sum(int64_t *x, dq_err *err)
{
    (void)x;
    return err->code;
}

/* One rank already has everything in place. */
void dq_ranks_spread(int from, void *p, size_t n)
{
    (void)from;
    (void)p;
    (void)n;
}

void dq_ranks_send(int to, const void *p, size_t n)
{
    (void)to;
    (void)p;
    (void)n;
}

void dq_ranks_sent(const void *p, size_t n)
{
    (void)p;
    (void)n;
}

void dq_ranks_receive(int from, void *p, size_t n)
{
    (void)from;
    (void)p;
    (void)n;
}

dq_ranks_rows dq_ranks_stripe(int rank, int64_t n, int64_t unit)
{
    (void)rank;
    (void)unit;
    return (dq_ranks_rows){0, n};
}

void dq_ranks_join(void *p, int64_t n, int64_t unit, size_t bytes)
{
    (void)p;
    (void)n;
    (void)unit;
    (void)bytes;
}

dq_status dq_ranks_run(const dq_ranks_work *w, dq_err *err)
{
    for (int64_t i = 0; err->code == DQ_OK && i < w->n; i++) w->run(w->arg, i, err);
    return err->code;
}

dq_status dq_ranks_tell(const char *text, size_t len, dq_err *err)
{
    (void)text;
    (void)len;
    return dq_fail(err, DQ_BUG, "the only rank tells itself");
}

void dq_ranks_poll(void)
{
}
