/* journal: see journal.h.
 * SPDX-License-Identifier: MIT */
#include "base/journal.h"

#include "base/os.h"
#include "base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct dq_steps {
    int fd;
    off_t end;  /* of the last whole line */
    int64_t n;  /* lines */
    char *path; /* block */
};

static const char head[] = "{\"sha256\": \"", middle[] = "\", \"step\": ", tail[] = "}\n";
enum {
    HASH = 64,
    BEFORE = sizeof head - 1 + HASH + sizeof middle - 1, /* bytes in front of the step */
    BEHIND = sizeof tail - 1
};

/* Whether the path still leads to the open file: whoever had it before may have removed it. */
static bool is_there(const dq_steps *j)
{
    struct stat mine, named;
    return fstat(j->fd, &mine) == 0 && stat(j->path, &named) == 0 && mine.st_dev == named.st_dev &&
           mine.st_ino == named.st_ino;
}

void dq_steps_close(dq_steps *j, bool done)
{
    if (!j) return;
    if (done && is_there(j)) unlink(j->path);
    close(j->fd); /* lets go of the lock */
    dq_block_free(j->path);
    dq_block_free(j);
}

/* Opens and locks. Where the file system has no locks, none is taken. */
static dq_status lock_file(dq_steps *j, int flags, dq_err *err)
{
    for (;;) {
        j->fd = open(j->path, O_RDWR | O_APPEND | O_CLOEXEC | flags, 0666);
        if (j->fd < 0) return dq_fail(err, DQ_FILE, "%s: %s", j->path, strerror(errno));
        if (flock(j->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(j->fd);
            return dq_fail(err, DQ_RESOURCE,
                           "%s: another dq is writing to it. Wait for it, or stop it", j->path);
        }
        if (is_there(j)) return DQ_OK;
        close(j->fd);
    }
}

int64_t dq_steps_count(const dq_steps *j)
{
    return j->n;
}

bool dq_steps_busy(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool busy = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (fd >= 0) close(fd);
    return busy;
}

/* What is in the file stays. */
static dq_status open_file(dq_steps **out, const char *path, int flags, dq_err *err)
{
    dq_steps *j = dq_block_new(1, sizeof *j, err);
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

dq_status dq_steps_new(dq_steps **out, const char *path, dq_err *err)
{
    DQ_TRY(open_file(out, path, O_CREAT, err));
    if (ftruncate((*out)->fd, 0) == 0) return DQ_OK;
    dq_fail(err, DQ_FILE, "%s: %s", path, strerror(errno));
    dq_steps_close(*out, false);
    *out = NULL;
    return err->code;
}

static dq_status write_all(const dq_steps *j, const char *p, size_t n, dq_err *err)
{
    while (n > 0) {
        ssize_t k = write(j->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return dq_fail(err, DQ_FILE, "%s: %s", j->path, strerror(errno));
        p += k;
        n -= (size_t)k;
    }
    return DQ_OK;
}

dq_status dq_steps_add(dq_steps *j, const char *step, size_t len, dq_err *err)
{
    char hex[HASH + 1];
    DQ_TRY(dq_sha256_of(hex, step, len, err));
    char *line = dq_block_new(len + BEFORE + BEHIND, 1, err);
    if (!line) return err->code;
    char *p = line;
    memcpy(p, head, sizeof head - 1);
    p += sizeof head - 1;
    memcpy(p, hex, HASH);
    p += HASH;
    memcpy(p, middle, sizeof middle - 1);
    p += sizeof middle - 1;
    memcpy(p, step, len);
    memcpy(p + len, tail, BEHIND);
    if (write_all(j, line, len + BEFORE + BEHIND, err) == DQ_OK) {
        j->end += (off_t)(len + BEFORE + BEHIND);
        j->n++;
    } else if (ftruncate(j->fd, j->end) != 0) {
        errno = 0; /* the line that was cut off is dropped when it is read */
    }
    dq_block_free(line);
    return err->code;
}

/* Whether a line has the form and its step the hash. */
static dq_status check_line(bool *fits, const char *line, size_t len, dq_err *err)
{
    char hex[HASH + 1];
    *fits = len >= BEFORE + BEHIND && memcmp(line, head, sizeof head - 1) == 0 &&
            memcmp(line + BEFORE - (sizeof middle - 1), middle, sizeof middle - 1) == 0 &&
            memcmp(line + len - BEHIND, tail, BEHIND) == 0;
    if (!*fits) return DQ_OK;
    DQ_TRY(dq_sha256_of(hex, line + BEFORE, len - BEFORE - BEHIND, err));
    *fits = memcmp(hex, line + sizeof head - 1, HASH) == 0;
    return DQ_OK;
}

static dq_status read_step(const char *line, size_t len, int64_t number, dq_steps_read *read,
                           void *arg, dq_err *err)
{
    json_t *step = NULL;
    if (dq_json_parse(&step, line + BEFORE, len - BEFORE - BEHIND, "step", err) == DQ_OK)
        read(arg, step, number, err);
    json_decref(step);
    return err->code;
}

static dq_status read_all(const char *text, size_t len, size_t *good, int64_t *n_lines,
                          dq_steps_read *read, void *arg, dq_err *err)
{
    *good = 0;
    for (int64_t number = 0; *good < len; *n_lines = ++number) {
        const char *line = text + *good, *end = memchr(line, '\n', len - *good);
        if (!end) break; /* cut off while it was written */
        size_t n = (size_t)(end - line) + 1;
        bool fits;
        DQ_TRY(check_line(&fits, line, n, err));
        if (!fits && *good + n == len) break; /* so does what a crash left at the end */
        if (!fits)
            return dq_fail(err, DQ_DAMAGED, "line %lld was altered (its hash does not fit)",
                           (long long)number + 1);
        DQ_TRY(read_step(line, n, number, read, arg, err));
        *good += n;
    }
    return DQ_OK;
}

dq_status dq_steps_resume(dq_steps **out, const char *path, dq_steps_read *read, void *arg,
                          dq_err *err)
{
    char *text;
    size_t len, good = 0;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (open_file(out, path, 0, err) == DQ_OK) {
        if (dq_file_read(&text, &len, path, a, err) == DQ_OK &&
            read_all(text, len, &good, &(*out)->n, read, arg, err) != DQ_OK)
            dq_in(err, "%s: ", path);
        if (err->code == DQ_OK && ftruncate((*out)->fd, (off_t)good) != 0)
            dq_fail(err, DQ_FILE, "%s: %s", path, strerror(errno));
        if (err->code == DQ_OK) (*out)->end = (off_t)good;
        if (err->code != DQ_OK) {
            dq_steps_close(*out, false);
            *out = NULL;
        }
    }
    dq_arena_free(a);
    return err->code;
}
