/* isa: the instruction sets of the CPU backend, one row each. A new instruction set (AMX, say) is a row of isa.c and the files
 * that it names.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ISA_H
#define DQ_ISA_H

#include "kernels/cpu/isa/levels.h"
#include "kernels/cpu/isa/peak.h"
#include "kernels/cpu/simd.h"

typedef struct dq_cpu_isa {
    unsigned needs;                     /* feature bits of dq_os_cpu_features(), all of them */
    const dq_simd *simd;                /* f32, and reading codes */
    const dq_simd_prepacked *prepacked; /* products with prepacked weights */
    dq_levels_chunks *levels;           /* of trellis codes */
    const dq_simd_pages *pages;         /* packed KV pages in integers */
    const dq_simd_peak *peak;
} dq_cpu_isa;

/* The highest instruction set whose needs `features` has. */
const dq_cpu_isa *dq_cpu_isa_of(unsigned features);

#endif
