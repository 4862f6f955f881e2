/* simt_blas: a stand-in for the part of cuBLAS that dq calls, whose products are launches of the
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
/* 0: cuBLAS is not installed; 2: it lacks cublasGemmEx. Default 1. */
void dq_simt_set_blas(int there);
/* Products since the start, and the m, n and k of the last, as cuBLAS counts them. */
int dq_simt_blas_calls(int *m, int *n, int *k);

#ifdef __cplusplus
}
#endif

#endif
