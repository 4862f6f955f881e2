/* cuda_blas_find: which file cuBLAS is opened from. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_BLAS_FIND_H
#define DQ_CUDA_BLAS_FIND_H

#include "base/base.h"

typedef struct dq_cuda_blas_file {
    void *library;    /* stays open */
    const char *path; /* in the arena */
} dq_cuda_blas_file;

/* Opens cuBLAS 13 or else 12 from the first place that has one:
 *   DQ_CUBLAS, a file or a folder; when it is set, nothing else is tried
 *   the loader's own search
 *   CUDA_HOME, CUDA_PATH, /usr/local/cuda, /usr/local/cuda-*
 *   the nvidia packages of VIRTUAL_ENV, of each python3 in PATH and what it links to, of the system, of ~/.local
 * `root` stands before the places that no variable names: "" in earnest; tests plant a folder, and then the loader is
 * not asked. DQ_RESOURCE when nothing opens; a file that is there and does not open is named. */
dq_status dq_cuda_blas_find(dq_cuda_blas_file *out, const char *root, dq_arena *a, dq_err *err);
/* Says that there is none; `why` may tell of one that does not open ("": none was there). */
dq_status dq_cuda_blas_missing(const char *why, dq_err *err);

#endif
