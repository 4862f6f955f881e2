/* inplace_file: a file whose size is known before its content, written at offsets, in any order, and perhaps finished
 * by a later process (journal.h says how that one knows what is there).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_INPLACE_FILE_H
#define DQ_INPLACE_FILE_H

#include "base/base.h"

/* An open file; fd -1: none. */
typedef struct dq_inplace_file {
    int fd;
    const char *path; /* borrowed */
} dq_inplace_file;

dq_status dq_inplace_file_open(dq_inplace_file *p, const char *path,
                               dq_err *err);    /* an existing file */
void dq_inplace_file_close(dq_inplace_file *p); /* may be called again */
dq_status dq_inplace_file_put(dq_inplace_file *p, int64_t at, const void *data, size_t bytes,
                              dq_err *err);
dq_status dq_inplace_file_get(const dq_inplace_file *p, int64_t at, void *data, size_t bytes,
                              dq_err *err); /* DQ_FILE where the file is shorter too */
/* A hint: the disk may begin with these bytes now, so that a later sync has less to wait for. */
void dq_inplace_file_start(dq_inplace_file *p, int64_t at, size_t bytes);
dq_status dq_inplace_file_sync(dq_inplace_file *p, dq_err *err);

#endif
