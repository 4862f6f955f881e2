/* ranks_none: see ranks.h. One process, without MPI.
 * SPDX-License-Identifier: MIT */
#include "base/ranks.h"

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

int dq_ranks_count(void)
{
    return 1;
}

int dq_ranks_number(void)
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

dq_status dq_ranks_collect(const char *text, size_t len, dq_ranks_take *take, void *arg,
                           dq_err *err)
{
    (void)text;
    (void)len;
    (void)take;
    (void)arg;
    return err->code;
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
