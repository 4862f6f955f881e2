/* level: the instruction levels of the CPU backend, one row each. A new level (AMX, say) is a row of level.c and the files
 * that it names.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LEVEL_H
#define DQ_LEVEL_H

#include "kernels/cpu/level/simd_peak.h"
#include "kernels/cpu/simd.h"

typedef struct dq_cpu_level {
    unsigned needs;                 /* feature bits of dq_os_cpu_features(), all of them */
    const dq_simd *simd;            /* f32, and reading codes */
    const dq_simd_blocked *blocked; /* packed weights in their own layout */
    const dq_simd_pages *pages;     /* packed KV pages in integers */
    const dq_simd_peak *peak;
} dq_cpu_level;

/* The highest level whose needs `features` has. */
const dq_cpu_level *dq_cpu_level_of(unsigned features);

#endif
