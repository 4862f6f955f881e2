/* scratch_file: see scratch_file.h. The name is removed as soon as the file is open.
 * SPDX-License-Identifier: MIT */
#include "base/scratch_file.h"

#include "base/inplace_file.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

dq_status dq_scratch_file_open(dq_scratch_file *s, const char *beside, int64_t bytes, dq_err *err)
{
    char name[4096];
    const char *slash = strrchr(beside, '/');
    const int folder = slash ? (int)(slash - beside) + 1 : 0;
    *s = (dq_scratch_file){.fd = -1, .path = beside};
    if (snprintf(name, sizeof name, "%.*s.dq-scratch-XXXXXX", folder, beside) >= (int)sizeof name)
        return dq_fail(err, DQ_FILE, "%s: the path is too long", beside);
    s->fd = mkstemp(name);
    if (s->fd < 0) return dq_os_fail(err, name, "cannot make a scratch file");
    unlink(name);
    fcntl(s->fd, F_SETFD, FD_CLOEXEC);
    const int why = bytes > 0 ? posix_fallocate(s->fd, 0, (off_t)bytes) : 0;
    if (why == ENOSPC || why == EFBIG) {
        errno = why;
        dq_os_fail(err, name, "cannot reserve space for activations");
        dq_scratch_file_close(s);
    }
    return err->code;
}

void dq_scratch_file_close(dq_scratch_file *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

/* Reads and writes as any file at known places; messages name the output that it stands beside. */
static dq_inplace_file places_of(const dq_scratch_file *s)
{
    return (dq_inplace_file){.fd = s->fd, .path = s->path};
}

dq_status dq_scratch_file_put(dq_scratch_file *s, int64_t at, const void *data, size_t bytes,
                              dq_err *err)
{
    dq_inplace_file f = places_of(s);
    if (dq_inplace_file_put(&f, at, data, bytes, err) == DQ_OK) return DQ_OK;
    return dq_in(err, "scratch file beside ");
}

dq_status dq_scratch_file_get(const dq_scratch_file *s, int64_t at, void *data, size_t bytes,
                              dq_err *err)
{
    const dq_inplace_file f = places_of(s);
    if (dq_inplace_file_get(&f, at, data, bytes, err) == DQ_OK) return DQ_OK;
    return dq_in(err, "scratch file beside ");
}
