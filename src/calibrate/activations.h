/* activations: what all tokens of a calibration text look like between two passes: the residual stream, and one further matrix
 * that every pass may use anew. They lie in a scratch file; passes take rows of them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ACTIVATIONS_H
#define DQ_ACTIVATIONS_H

#include "base/file.h"
#include "engine/backend.h"

typedef enum dq_activations_kind {
    DQ_ACTIVATIONS_STREAM, /* [rows, dim] */
    DQ_ACTIVATIONS_BEFORE, /* [rows, dim] the stream of the model before rounding, where two are kept */
    DQ_ACTIVATIONS_OTHER /* [rows, at most width], as wide as what is put */
} dq_activations_kind;

typedef struct dq_activations {
    dq_scratch_file file;
    dq_backend *b;
    int64_t rows, dim, width;
    int streams; /* 1 or 2 */
    void *host;  /* between file and backend */
    size_t host_bytes;
} dq_activations;

int64_t dq_activations_bytes(int64_t rows, int64_t dim, int streams,
                             int64_t width); /* of the file */
/* DQ_FILE, DQ_RESOURCE. */
dq_status dq_activations_open(dq_activations *a, dq_backend *b, const char *beside, int64_t rows,
                              int64_t dim, int streams, int64_t width, dq_err *err);
void dq_activations_close(dq_activations *a); /* {.file.fd = -1} allowed */
/* Rows first .. of backend memory m, whose columns are those of the matrix. Both wait for the backend, and give its error. */
dq_status dq_activations_put(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err);
dq_status dq_activations_get(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err);

#endif
