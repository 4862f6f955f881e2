/* simulated: what tests of kernels set and ask of the simulation. On a GPU, without DQ_SIMT, the same names are
 * there and do nothing, so that one source of a test serves both; simulated() tells them apart.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMULATED_H
#define DQ_SIMULATED_H

#include "kernels/cuda/host/runtime.h"

#include <stdbool.h>

#ifdef DQ_SIMT

static inline bool simulated(void)
{
    return true;
}

#else

static inline bool simulated(void)
{
    return false;
}

enum { DQ_SIMT_GREEDY, DQ_SIMT_ROUND_ROBIN }; /* a GPU has its own order of threads */
static inline void dq_simt_set_schedule(int schedule, uint64_t seed)
{
    (void)schedule, (void)seed;
}
static inline void dq_simt_set_quiet(int quiet)
{
    (void)quiet;
}
static inline void dq_simt_set_memory(size_t bytes)
{
    (void)bytes;
}
static inline size_t dq_simt_memory_used(void)
{
    return 0;
}
static inline void dq_simt_set_capability(int ten_times)
{
    (void)ten_times;
}
static inline const char *dq_simt_report(void)
{
    return "";
}
static inline void dq_simt_reset(void)
{
}

#endif

#endif
