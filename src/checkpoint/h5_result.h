/* h5_result: writes results (named arrays and attributes) as one HDF5 file that appears under its
 * name only when it is complete. Containers of models are container.h.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_H5_RESULT_H
#define DQ_H5_RESULT_H

#include "base/base.h"

typedef enum dq_h5_result_type { DQ_OUT_I32, DQ_OUT_I64, DQ_OUT_F32, DQ_OUT_F64 } dq_h5_result_type;

typedef struct dq_h5_result dq_h5_result;

/* DQ_FILE when `path` cannot become a new file: it exists without `force`, is no regular file, or
 * its folder is missing or not writable. Writes nothing; commands ask before long work. */
dq_status dq_h5_result_check(const char *path, bool force, dq_err *err);
/* Starts path.partial (check included). Ended by dq_h5_result_commit or dq_h5_result_drop. */
dq_status dq_h5_result_new(dq_h5_result **out, const char *path, bool force, dq_err *err);
/* Flushes and closes the partial file, so that a full disk shows here. */
dq_status dq_h5_result_close(dq_h5_result *h, dq_err *err);
/* Closes and renames; a failure leaves no file. Frees *h and sets it to NULL. */
dq_status dq_h5_result_commit(dq_h5_result **h, dq_err *err);
void dq_h5_result_drop(dq_h5_result *h); /* removes the partial file and frees h; NULL allowed */

dq_status dq_h5_result_group(dq_h5_result *h, const char *name, dq_err *err);
dq_status dq_h5_result_array(dq_h5_result *h, const char *name, dq_h5_result_type type, int n_dims,
                             const int64_t *shape, const void *data, dq_err *err);
/* Filled by blocks of rows; its space is allocated at once. A new matrix ends the previous one. */
dq_status dq_h5_result_matrix(dq_h5_result *h, const char *name, int64_t rows, int64_t cols,
                              dq_err *err);
dq_status dq_h5_result_rows(dq_h5_result *h, int64_t first, int64_t n, const float *data,
                            dq_err *err);
/* Attributes of a group or array; "/" is the root. Texts are UTF-8, at most 60 000 bytes. */
dq_status dq_h5_result_text(dq_h5_result *h, const char *object, const char *name, const char *text,
                            dq_err *err);
dq_status dq_h5_result_int(dq_h5_result *h, const char *object, const char *name, int64_t value,
                           dq_err *err);

/* "1.10.8", of the library in use. */
const char *dq_h5_result_version(char *buf, size_t cap);

#endif
