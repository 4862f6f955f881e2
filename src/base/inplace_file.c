/* inplace_file: pwrite until all is written, and the system's own hints and syncs.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* sync_file_range */
#include "base/inplace_file.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

dq_status dq_inplace_file_open(dq_inplace_file *p, const char *path, dq_err *err)
{
    p->path = path;
    p->fd = open(path, O_RDWR | O_CLOEXEC);
    return p->fd < 0 ? dq_os_fail(err, path, "cannot open for writing") : DQ_OK;
}

void dq_inplace_file_close(dq_inplace_file *p)
{
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

dq_status dq_inplace_file_put(dq_inplace_file *p, int64_t at, const void *data, size_t bytes,
                              dq_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(p->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) DQ_TRY(dq_os_maps_check(err)); /* the source has shrunk */
        if (n < 0) return dq_os_fail(err, p->path, "cannot write");
        if (n == 0) return dq_fail(err, DQ_FILE, "%s: cannot write: disk full", p->path);
        from += n;
        at += n;
        bytes -= (size_t)n;
    }
    return DQ_OK;
}

dq_status dq_inplace_file_get(const dq_inplace_file *p, int64_t at, void *data, size_t bytes,
                              dq_err *err)
{
    char *to = data;
    while (bytes > 0) {
        const ssize_t n = pread(p->fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return dq_os_fail(err, p->path, "cannot read");
        if (n == 0) return dq_fail(err, DQ_FILE, "%s: is shorter than expected", p->path);
        to += n;
        at += n;
        bytes -= (size_t)n;
    }
    return DQ_OK;
}

void dq_inplace_file_start(dq_inplace_file *p, int64_t at, size_t bytes)
{
#if defined(__linux__)
    sync_file_range(p->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)p, (void)at, (void)bytes;
#endif
}

dq_status dq_inplace_file_sync(dq_inplace_file *p, dq_err *err)
{
    return fsync(p->fd) == 0 ? DQ_OK : dq_os_fail(err, p->path, "cannot sync");
}
