/* activations: see activations.h. Streams come first in the file, the other matrix after them.
 * SPDX-License-Identifier: MIT */
#include "calibrate/activations.h"

int64_t dq_activations_bytes(int64_t rows, int64_t dim, int streams, int64_t width)
{
    return rows * (streams * dim + width) * (int64_t)sizeof(float);
}

dq_status dq_activations_open(dq_activations *a, dq_backend *b, const char *beside, int64_t rows,
                              int64_t dim, int streams, int64_t width, dq_err *err)
{
    *a = (dq_activations){.b = b, .rows = rows, .dim = dim, .streams = streams, .width = width};
    return dq_scratch_file_open(&a->file, beside, dq_activations_bytes(rows, dim, streams, width),
                                err);
}

void dq_activations_close(dq_activations *a)
{
    dq_scratch_file_close(&a->file);
    dq_block_free(a->host);
    a->host = NULL;
    a->host_bytes = 0;
}

static dq_status reserve(dq_activations *a, size_t bytes, dq_err *err)
{
    if (bytes <= a->host_bytes) return DQ_OK;
    dq_block_free(a->host);
    a->host_bytes = 0;
    a->host = dq_block_new(bytes, 1, err);
    if (a->host) a->host_bytes = bytes;
    return err->code;
}

static int64_t place_of(const dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m)
{
    const int before = kind == DQ_ACTIVATIONS_OTHER ? a->streams : (int)kind; /* streams */
    return (before * a->rows * a->dim + first * m.cols) * (int64_t)sizeof(float);
}

dq_status dq_activations_put(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * sizeof(float);
    DQ_TRY(dq_backend_sync(a->b, err));
    DQ_TRY(reserve(a, bytes, err));
    a->b->ops->get(a->b, a->host, m.p, bytes);
    DQ_TRY(dq_backend_sync(a->b, err));
    return dq_scratch_file_put(&a->file, place_of(a, kind, first, m), a->host, bytes, err);
}

dq_status dq_activations_get(dq_activations *a, dq_activations_kind kind, int64_t first, dq_mat m,
                             dq_err *err)
{
    const size_t bytes = (size_t)(m.rows * m.cols) * sizeof(float);
    DQ_TRY(dq_backend_sync(a->b, err));
    DQ_TRY(reserve(a, bytes, err));
    DQ_TRY(dq_scratch_file_get(&a->file, place_of(a, kind, first, m), a->host, bytes, err));
    a->b->ops->put(a->b, m.p, a->host, bytes);
    return dq_backend_sync(a->b, err);
}
