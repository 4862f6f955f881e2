/* scratch_file: bytes that do not fit into memory, in a file without a name: it is gone when it is closed, and when the
 * process ends, however it ends.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SCRATCH_FILE_H
#define DQ_SCRATCH_FILE_H

#include "base/base.h"

typedef struct dq_scratch_file {
    int fd;           /* -1: none */
    const char *path; /* the file beside which it lies; borrowed */
} dq_scratch_file;

/* In the folder of `beside`, with space for `bytes` where the file system can promise it. DQ_FILE. */
dq_status dq_scratch_file_open(dq_scratch_file *s, const char *beside, int64_t bytes, dq_err *err);
void dq_scratch_file_close(dq_scratch_file *s); /* may be called again */
dq_status dq_scratch_file_put(dq_scratch_file *s, int64_t at, const void *data, size_t bytes,
                              dq_err *err);
/* DQ_FILE too when less was ever put there. */
dq_status dq_scratch_file_get(const dq_scratch_file *s, int64_t at, void *data, size_t bytes,
                              dq_err *err);

#endif
