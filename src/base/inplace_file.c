/* inplace_file: see inplace_file.h.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* sync_file_range */
#include "base/inplace_file.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static dq_status open_flags(dq_inplace *p, const char *path, int flags, dq_err *err)
{
    p->path = path;
    p->fd = open(path, flags | O_CLOEXEC, 0666);
    return p->fd < 0 ? dq_fail_errno(err, path, "cannot open for writing") : DQ_OK;
}

dq_status dq_inplace_open(dq_inplace *p, const char *path, dq_err *err)
{
    return open_flags(p, path, O_RDWR, err);
}

void dq_inplace_close(dq_inplace *p)
{
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
}

dq_status dq_inplace_put(dq_inplace *p, int64_t at, const void *data, size_t bytes, dq_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(p->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) DQ_TRY(dq_maps_check(err)); /* the source has shrunk */
        if (n < 0) return dq_fail_errno(err, p->path, "cannot write");
        if (n == 0) return dq_fail(err, DQ_FILE, "%s: cannot write: disk full", p->path);
        from += n;
        at += n;
        bytes -= (size_t)n;
    }
    return DQ_OK;
}

void dq_inplace_start(dq_inplace *p, int64_t at, size_t bytes)
{
#if defined(__linux__)
    sync_file_range(p->fd, (off_t)at, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
#else
    (void)p, (void)at, (void)bytes;
#endif
}

dq_status dq_inplace_sync(dq_inplace *p, dq_err *err)
{
    return fsync(p->fd) == 0 ? DQ_OK : dq_fail_errno(err, p->path, "cannot sync");
}

bool dq_is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

dq_status dq_remove(const char *path, dq_err *err)
{
    if (unlink(path) != 0 && errno != ENOENT) return dq_fail_errno(err, path, "cannot remove");
    return DQ_OK;
}

/* FNV-1a, 32 bits: tells a torn line from a whole one, no more. */
static unsigned check_sum(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

enum { SUM = 10 }; /* a blank, eight digits, a newline */

/* Takes whole lines until the first that is not. */
static dq_status read_lines(dq_journal *j, char *text, size_t len, dq_arena *a, dq_err *err)
{
    size_t cap = 0, at = 0;
    for (size_t i = 0; i < len; i++) cap += text[i] == '\n';
    j->line = dq_alloc(a, cap + 1, sizeof *j->line, err);
    while (j->line && at < len) {
        char *end = memchr(text + at, '\n', len - at), want[SUM + 1];
        size_t n = end ? (size_t)(end - (text + at)) + 1 : 0;
        if (n <= SUM) break;
        snprintf(want, sizeof want, " %08x\n", check_sum(text + at, n - SUM));
        if (memcmp(end + 1 - SUM, want, SUM) != 0) break;
        text[at + n - SUM] = 0;
        j->line[j->n_lines++] = text + at;
        at += n;
    }
    j->end = (int64_t)at;
    return err->code;
}

static dq_status lock_and_read(dq_journal *j, const char *path, dq_arena *a, dq_err *err)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char *text;
    size_t len;
    if (fcntl(j->file.fd, F_SETLK, &lock) != 0 && (errno == EACCES || errno == EAGAIN))
        return dq_fail(err, DQ_FILE, "%s: another process is writing this output.", path);
    /* not dq_file_read: closing a second descriptor of the file would give up the lock */
    struct stat st;
    if (fstat(j->file.fd, &st) != 0) return dq_fail_errno(err, path, "cannot stat");
    if (!S_ISREG(st.st_mode)) return dq_fail(err, DQ_FILE, "%s: not a regular file", path);
    len = (size_t)st.st_size;
    text = dq_alloc(a, len + 1, 1, err);
    for (size_t got = 0; text && got < len;) {
        ssize_t n = pread(j->file.fd, text + got, len - got, (off_t)got);
        if (n <= 0) return dq_fail_errno(err, path, "cannot read");
        got += (size_t)n;
    }
    if (text) read_lines(j, text, len, a, err);
    if (err->code == DQ_OK && ftruncate(j->file.fd, (off_t)j->end) != 0)
        return dq_fail_errno(err, path, "cannot write");
    return err->code;
}

dq_status dq_journal_open(dq_journal *j, const char *path, dq_arena *a, dq_err *err)
{
    memset(j, 0, sizeof *j);
    DQ_TRY(open_flags(&j->file, path, O_RDWR | O_CREAT, err));
    /* a journal that failed to open is another's: the caller must not clean it up */
    if (lock_and_read(j, path, a, err) != DQ_OK) dq_journal_close(j);
    return err->code;
}

void dq_journal_close(dq_journal *j)
{
    dq_inplace_close(&j->file);
}

dq_status dq_journal_clear(dq_journal *j, dq_err *err)
{
    j->end = 0;
    j->n_lines = 0;
    if (ftruncate(j->file.fd, 0) != 0) return dq_fail_errno(err, j->file.path, "cannot write");
    return DQ_OK;
}

dq_status dq_journal_add(dq_journal *j, const char *text, dq_err *err)
{
    char tail[SUM + 1];
    size_t n = strlen(text);
    snprintf(tail, sizeof tail, " %08x\n", check_sum(text, n));
    DQ_TRY(dq_inplace_put(&j->file, j->end, text, n, err));
    DQ_TRY(dq_inplace_put(&j->file, j->end + (int64_t)n, tail, SUM, err));
    j->end += (int64_t)n + SUM;
    return DQ_OK;
}

dq_status dq_journal_sync(dq_journal *j, dq_err *err)
{
    return dq_inplace_sync(&j->file, err);
}
