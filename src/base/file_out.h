/* file_out: a file that appears whole or not at all: written as PATH.partial in pieces, then renamed.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FILE_OUT_H
#define DQ_FILE_OUT_H

#include "base/base.h"

typedef struct dq_file_out {
    const char *path, *partial; /* in the arena: where a link leads */
    int fd;                     /* -1: not open */
    bool force;                 /* what lies at `partial` is written over */
    bool begun;                 /* `partial` is this run's */
} dq_file_out;

/* Both places are looked at (dq_file_check), and nothing touched. DQ_FILE: PATH.partial is a link, or is there, without force. */
dq_status dq_file_out_name(dq_file_out *f, const char *path, bool force, dq_arena *a, dq_err *err);
/* Then pieces, and commit; or drop, which removes what was written and may be called at any time. */
dq_status dq_file_out_begin(dq_file_out *f, dq_err *err);
dq_status dq_file_out_put(dq_file_out *f, const void *data, size_t bytes, dq_err *err);
dq_status dq_file_out_commit(dq_file_out *f, dq_err *err);
void dq_file_out_drop(dq_file_out *f);

#endif
