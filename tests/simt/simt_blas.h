/* simt_blas: a stand-in for the part of cuBLAS and cuBLASLt that dq calls, whose products are launches of the
 * simulation; so they wait in the stream like any other kernel.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_BLAS_H
#define DQ_SIMT_BLAS_H

#include "tests/simt/simt_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void dq_simt_function(void);
void *dq_simt_blas_library(void); /* NULL after dq_simt_set_blas(0) */
dq_simt_function *dq_simt_blas_function(const char *name);
/* What is installed; a backend looks once. */
enum {
    DQ_SIMT_BLAS_NONE,
    DQ_SIMT_BLAS_WHOLE,      /* the default */
    DQ_SIMT_BLAS_OLD,        /* lacks cublasGemmEx */
    DQ_SIMT_BLAS_WITHOUT_LT, /* lacks cuBLASLt */
    DQ_SIMT_BLAS_OLD_LT      /* lacks cublasLtMatmulAlgoGetHeuristic */
};
void dq_simt_set_blas(int there);
/* What cuBLASLt does. */
enum {
    DQ_SIMT_LT_EVEN,   /* the default: a row's sums are in one order */
    DQ_SIMT_LT_UNEVEN, /* rows after the 32nd of a product are summed the other way */
    DQ_SIMT_LT_NONE,   /* no algorithm is found */
    DQ_SIMT_LT_FEW,    /* more than 7 rows are refused */
    DQ_SIMT_LT_ONE,    /* one row is refused */
    DQ_SIMT_LT_FAILS   /* more than one row: status 14 */
};
void dq_simt_set_lt(int mode);
/* Products since the start, and the m, n and k of the last, as cuBLAS counts them. */
int dq_simt_blas_calls(int *m, int *n, int *k);

#ifdef __cplusplus
}
#endif

#endif
