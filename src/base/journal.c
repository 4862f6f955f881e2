/* journal: an open file with an flock, which the kernel gives up when the process ends, however it ends. Lines are
 * written at the end that is known to be good, never where an earlier write has failed, and the lock counts only
 * while the path still leads to the file: whoever had it before may have removed it.
 * SPDX-License-Identifier: MIT */
#include "base/journal.h"

#include "base/file.h"
#include "base/os.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct dq_journal {
    int fd;
    off_t end;  /* of the last whole line */
    int64_t n;  /* lines */
    char *path; /* block */
};

enum { HASH = 64, BEFORE = HASH + 1 }; /* bytes before the text: its hash and a blank */

/* Whether the path still leads to the open file. */
static bool is_there(const dq_journal *j)
{
    struct stat mine, named;
    return fstat(j->fd, &mine) == 0 && stat(j->path, &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
}

void dq_journal_close(dq_journal *j, bool done)
{
    if (!j) return;
    if (done && is_there(j)) unlink(j->path);
    close(j->fd); /* lets go of the lock */
    dq_block_free(j->path);
    dq_block_free(j);
}

static bool locked_by_another(int fd)
{
    return flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

bool dq_journal_busy(const char *path)
{
    int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    bool busy = fd >= 0 && locked_by_another(fd);
    if (fd >= 0) close(fd);
    return busy;
}

/* Opens and locks. Where the file system has no locks, none is taken. */
static dq_status lock_file(dq_journal *j, int flags, dq_err *err)
{
    for (;;) {
        j->fd = open(j->path, O_RDWR | O_NONBLOCK | O_CLOEXEC | flags, 0666);
        if (j->fd < 0) return dq_os_fail(err, j->path, "cannot open for writing");
        if (locked_by_another(j->fd))
            dq_fail(err, DQ_RESOURCE, "%s: another dq is writing to it. Wait for it, or stop it",
                    j->path);
        else if (is_there(j))
            return DQ_OK;
        close(j->fd);
        DQ_TRY(err->code);
    }
}

/* What is in the file stays. */
static dq_status open_file(dq_journal **out, const char *path, int flags, dq_err *err)
{
    dq_journal *j = dq_block_new(1, sizeof *j, err);
    size_t n = strlen(path) + 1;
    *out = NULL;
    if (!j) return err->code;
    j->path = dq_block_new(n, 1, err);
    if (j->path) memcpy(j->path, path, n);
    if (j->path && lock_file(j, flags, err) == DQ_OK) {
        *out = j;
        return DQ_OK;
    }
    dq_block_free(j->path);
    dq_block_free(j);
    return err->code;
}

/* The file ends here, after n lines. */
static dq_status cut(dq_journal *j, size_t end, int64_t n, dq_err *err)
{
    if (ftruncate(j->fd, (off_t)end) != 0) return dq_os_fail(err, j->path, "cannot write");
    j->end = (off_t)end;
    j->n = n;
    return DQ_OK;
}

static dq_status give_up(dq_journal **j, dq_err *err)
{
    dq_journal_close(*j, false);
    *j = NULL;
    return err->code;
}

dq_status dq_journal_new(dq_journal **out, const char *path, dq_err *err)
{
    DQ_TRY(open_file(out, path, O_CREAT, err));
    return cut(*out, 0, 0, err) == DQ_OK ? DQ_OK : give_up(out, err);
}

dq_status dq_journal_clear(dq_journal *j, dq_err *err)
{
    return cut(j, 0, 0, err);
}

int64_t dq_journal_count(const dq_journal *j)
{
    return j->n;
}

dq_status dq_journal_sync(dq_journal *j, dq_err *err)
{
    return fsync(j->fd) == 0 ? DQ_OK : dq_os_fail(err, j->path, "cannot sync");
}

static dq_status write_at(const dq_journal *j, off_t at, const char *p, size_t n, dq_err *err)
{
    while (n > 0) {
        ssize_t k = pwrite(j->fd, p, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k == 0) errno = ENOSPC;
        if (k <= 0) return dq_os_fail(err, j->path, "cannot write");
        p += k;
        at += k;
        n -= (size_t)k;
    }
    return DQ_OK;
}

dq_status dq_journal_add(dq_journal *j, const char *text, size_t len, dq_err *err)
{
    char before[BEFORE];
    if (memchr(text, '\n', len)) return dq_fail(err, DQ_BUG, "%s: a line of two lines", j->path);
    DQ_TRY(dq_sha256_of(before, text, len, err));
    before[HASH] = ' ';
    const off_t after = j->end + BEFORE + (off_t)len;
    if (write_at(j, j->end, before, BEFORE, err) == DQ_OK &&
        write_at(j, j->end + BEFORE, text, len, err) == DQ_OK &&
        write_at(j, after, "\n", 1, err) == DQ_OK) {
        j->end = after + 1;
        j->n++;
    } else if (ftruncate(j->fd, j->end) != 0) {
        errno =
            0; /* what stays of the line is overwritten by the next, or dropped when it is read */
    }
    return err->code;
}

/* line[len], without its newline. */
static bool has_form(const char *line, size_t len)
{
    if (len < BEFORE || line[HASH] != ' ') return false;
    for (int i = 0; i < HASH; i++) {
        if (!strchr("0123456789abcdef", line[i]) || !line[i]) return false;
    }
    return true;
}

static dq_status check_line(bool *fits, const char *line, size_t len, dq_err *err)
{
    char hex[HASH + 1];
    *fits = has_form(line, len);
    if (!*fits) return DQ_OK;
    DQ_TRY(dq_sha256_of(hex, line + BEFORE, len - BEFORE, err));
    *fits = memcmp(hex, line, HASH) == 0;
    return DQ_OK;
}

/* The lines of text[len] up to *good, where the first that does not fit begins. */
static dq_status read_lines(dq_journal_lines *found, size_t *good, char *text, size_t len,
                            dq_journal_damage damage, dq_err *err)
{
    for (char *line = text, *end; (end = memchr(line, '\n', len - *good)); line = end + 1) {
        bool fits;
        DQ_TRY(check_line(&fits, line, (size_t)(end - line), err));
        if (!fits && found->n == 0 && !has_form(line, (size_t)(end - line)))
            return dq_fail(err, DQ_MISMATCH, "is not a journal of this version of dq");
        if (!fits && (damage == DQ_JOURNAL_CUT || end + 1 == text + len)) break;
        if (!fits)
            return dq_fail(err, DQ_DAMAGED, "line %lld was altered (its hash does not fit)",
                           (long long)found->n + 1);
        *end = 0;
        found->text[found->n++] = line + BEFORE;
        *good = (size_t)(end + 1 - text);
    }
    return DQ_OK;
}

/* The lines of the file up to byte *good, after which none is whole. */
static dq_status read_file(dq_journal_lines *found, size_t *good, const char *path,
                           dq_journal_damage damage, dq_arena *a, dq_err *err)
{
    char *text;
    size_t len, max = 0;
    *good = 0;
    DQ_TRY(dq_file_read_small(&text, &len, path, DQ_MAX_JOURNAL, a, err));
    for (size_t i = 0; i < len; i++) max += text[i] == '\n';
    *found = (dq_journal_lines){dq_alloc(a, max, sizeof *found->text, err), 0};
    if (!found->text) return err->code;
    return read_lines(found, good, text, len, damage, err) == DQ_OK ? DQ_OK
                                                                    : dq_in(err, "%s: ", path);
}

dq_status dq_journal_read(dq_journal_lines *found, const char *path, dq_arena *a, dq_err *err)
{
    size_t good;
    return read_file(found, &good, path, DQ_JOURNAL_REFUSE, a, err);
}

static dq_status take_up(dq_journal *j, dq_journal_damage damage, dq_journal_lines *found,
                         dq_arena *a, dq_err *err)
{
    size_t good;
    DQ_TRY(read_file(found, &good, j->path, damage, a, err));
    return cut(j, good, found->n, err);
}

dq_status dq_journal_resume(dq_journal **out, const char *path, dq_journal_damage damage,
                            dq_journal_lines *found, dq_arena *a, dq_err *err)
{
    DQ_TRY(open_file(out, path, 0, err));
    return take_up(*out, damage, found, a, err) == DQ_OK ? DQ_OK : give_up(out, err);
}
