/* cache_plan: dq plan MODEL --kv BITS: the widths of a KV cache.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CACHE_PLAN_H
#define DQ_CACHE_PLAN_H

#include "cmds/cli/logger.h"
#include "plan/plan_kv.h"

/* Options of the cache alone, as given; {0} and dq_cache_plan_rows before they are read. A number of 0, one of -1 among the last
 * two, or a NULL was not given. */
typedef struct dq_cache_plan {
    double mean; /* --kv; 0: weights are planned */
    const char *text, *code, *weights, *device;
    int64_t ctx, windows, together, recent, sink;
    dq_opt row[12];
    /* of dq plan as a whole */
    const char *out, *widths;
    int64_t trials, threads;
    bool dry_run, json, resume, force;
    dq_logger *logger;
} dq_cache_plan;

/* The options as one row of a command's table. */
#define DQ_CACHE_PLAN_OPTIONS(c)                                                                   \
    {                                                                                              \
        .kind = DQ_OPT_ROWS, .to = dq_cache_plan_rows(&(c)), .help = ""                            \
    }
dq_opt *dq_cache_plan_rows(dq_cache_plan *c);
/* The first option besides --kv that is given, without its dashes; NULL: none is. */
const char *dq_cache_plan_given(const dq_cache_plan *c);
/* All of it, with results on stdout. The logger is open. */
dq_status dq_cache_plan_run(dq_cache_plan *c, const char *model, dq_err *err);

#endif
