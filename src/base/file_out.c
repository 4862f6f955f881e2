/* file_out: what lies at PATH.partial is looked at first, and again by the system when it is opened.
 * SPDX-License-Identifier: MIT */
#include "base/file_out.h"

#include "base/file.h"
#include "base/os.h"

#include <fcntl.h>
#include <unistd.h>

static dq_status check_partial(const dq_file_out *f, dq_err *err)
{
    DQ_TRY(dq_file_check(f->partial, err));
    if (f->force || !dq_file_exists(f->partial)) return DQ_OK;
    return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE},
                        "%s: exists from an interrupted run.", f->partial);
}

dq_status dq_file_out_name(dq_file_out *f, const char *path, bool force, dq_arena *a, dq_err *err)
{
    *f = (dq_file_out){.fd = -1, .force = force};
    DQ_TRY(dq_file_check(path, err));
    f->path = dq_file_resolved(path, a, err);
    if (f->path) f->partial = dq_textf(a, err, "%s.partial", f->path);
    if (!f->partial) return err->code;
    return check_partial(f, err);
}

dq_status dq_file_out_begin(dq_file_out *f, dq_err *err)
{
    const int what_is_there = f->force ? O_TRUNC : O_EXCL;
    f->fd = open(f->partial, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | what_is_there, 0666);
    if (f->fd < 0) return dq_os_fail(err, f->partial, "cannot create");
    f->begun = true;
    return DQ_OK;
}

dq_status dq_file_out_put(dq_file_out *f, const void *data, size_t bytes, dq_err *err)
{
    return dq_file_put(f->fd, f->partial, data, bytes, err);
}

dq_status dq_file_out_commit(dq_file_out *f, dq_err *err)
{
    const int fd = f->fd;
    f->fd = -1;
    if (close(fd) != 0) return dq_os_fail(err, f->partial, "cannot write");
    DQ_TRY(dq_file_commit(f->partial, f->path, err));
    f->begun = false;
    return DQ_OK;
}

void dq_file_out_drop(dq_file_out *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    if (f->begun) unlink(f->partial);
    f->begun = false;
}
