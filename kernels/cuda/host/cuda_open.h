/* cuda_open: the functions by which the rest of dq reaches the CUDA backend; needs no CUDA header.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_OPEN_H
#define DQ_CUDA_OPEN_H

#include "engine/backend.h"

/* Fills b->state, b->ops and b->device, or says why there is none: DQ_RESOURCE naming a missing driver,
 * one that is too old, or a device number that does not exist. One device per process: backends of
 * several numbers may not be open at a time. */
dq_status dq_cuda_open(dq_backend *b, int device, dq_err *err);
/* The same of a device for the nth process of a machine: as many as there are devices have one each, and others begin anew. */
dq_status dq_cuda_open_nth(dq_backend *b, int nth, dq_err *err);
/* cuda_blas.c: see dq_backend_blas. */
dq_status dq_cuda_blas_about(const char **path, const char **number, dq_arena *a, dq_err *err);

#endif
