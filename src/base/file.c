/* file: everything goes through one check of what may be opened, and what is written appears by a rename, so that no
 * reader meets half of it.
 * SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700 /* realpath */
#include "base/file.h"

#include "base/os.h"
#include "base/strbuf.h"
#include "base/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Opens for reading what is a regular file, or a pipe where `pipes`, and nothing else: a device may be
 * endless, and opening a pipe waits for its other end. -1: failed. */
static int open_input(const char *path, bool pipes, struct stat *st, dq_err *err)
{
    const bool waits = pipes && stat(path, st) == 0 && S_ISFIFO(st->st_mode);
    int fd;
    do fd = open(path, O_RDONLY | O_CLOEXEC | (waits ? 0 : O_NONBLOCK));
    while (fd < 0 && errno == EINTR && dq_os_check_stop(err) == DQ_OK);
    if (fd < 0) {
        dq_os_fail(err, path, "cannot open");
        return -1;
    }
    if (fstat(fd, st) != 0)
        dq_os_fail(err, path, "cannot stat");
    else if (S_ISDIR(st->st_mode))
        dq_fail(err, DQ_FILE, "%s: is a folder, a file is needed", path);
    else if (!S_ISREG(st->st_mode) && !(waits && S_ISFIFO(st->st_mode)))
        dq_fail(err, DQ_FILE, "%s: not a regular file%s", path, pipes ? " or a pipe" : "");
    if (err->code == DQ_OK) return fd;
    close(fd);
    return -1;
}

typedef struct input {
    const char *path;
    size_t max;       /* more bytes are refused */
    dq_status beyond; /* what it is then */
} input;

static dq_status too_large(const input *in, dq_err *err)
{
    return dq_fail(err, in->beyond, "%s: more than the %zu bytes that %s", in->path, in->max,
                   in->beyond == DQ_RESOURCE ? "a third of this machine's memory has"
                                             : "such a file may have");
}

/* To the end of fd, which may grow while it is read; `expected` bytes are likely. */
static dq_status read_to_end(dq_strbuf *b, int fd, const input *in, size_t expected, dq_err *err)
{
    for (;;) {
        const size_t step = expected > b->n ? expected - b->n + 1 : (size_t)1 << 16;
        if (dq_strbuf_reserve(b, step, err) != DQ_OK) return dq_in(err, "%s: ", in->path);
        ssize_t n = read(fd, b->s + b->n, b->capacity - b->n);
        if (n < 0 && errno == EINTR) {
            DQ_TRY(dq_os_check_stop(err));
            continue;
        }
        if (n < 0) return dq_os_fail(err, in->path, "cannot read");
        if (n == 0) return DQ_OK;
        b->n += (size_t)n;
        if (b->n > in->max) return too_large(in, err);
        DQ_TRY(dq_os_check_stop(err));
    }
}

dq_status dq_file_check_bytes(const char *path, const void *data, size_t bytes, dq_err *err)
{
    enum { LARGEST = 1024 }; /* the pointer's own limit */
    static const char begin[] = "version https://git-lfs.github.com/spec/";
    const size_t n = sizeof begin - 1;
    if (bytes < n || bytes > LARGEST || memcmp(data, begin, n) != 0) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "%s: a Git LFS pointer stands in the file's place. Fetch the file itself: git lfs "
        "pull.",
        path);
}

static dq_status read_input(char **out, size_t *len, const input *in, bool text, dq_arena *a,
                            dq_err *err)
{
    const bool from_stdin = text && strcmp(in->path, "-") == 0;
    struct stat st = {0};
    dq_strbuf b = {0};
    *out = NULL;
    *len = 0;
    int fd = from_stdin ? STDIN_FILENO : open_input(in->path, text, &st, err);
    if (fd < 0) return err->code;
    if (st.st_size > 0 && (uintmax_t)st.st_size > in->max)
        too_large(in, err);
    else
        read_to_end(&b, fd, in, (size_t)st.st_size, err);
    if (!from_stdin) close(fd);
    if (err->code == DQ_OK && dq_file_check_bytes(in->path, b.s, b.n, err) == DQ_OK) {
        *out = dq_text(a, b.s, b.n, err);
        *len = b.n;
    }
    dq_block_free(b.s);
    return err->code;
}

dq_status dq_file_read(char **out, size_t *len, const char *path, dq_arena *a, dq_err *err)
{
    const int64_t memory = dq_os_memory_bytes();
    const input in = {path, memory > 0 ? (size_t)memory / 3 : SIZE_MAX, DQ_RESOURCE};
    return read_input(out, len, &in, true, a, err);
}

dq_status dq_file_read_text(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                            dq_err *err)
{
    const input in = {path, max, DQ_MISMATCH};
    if (max)
        DQ_TRY(read_input(out, len, &in, true, a, err));
    else
        DQ_TRY(dq_file_read(out, len, path, a, err));
    return dq_utf8_check_text(*out, *len, err) == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

dq_status dq_file_read_small(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                             dq_err *err)
{
    const input in = {path, max, DQ_DAMAGED};
    return read_input(out, len, &in, false, a, err);
}

bool dq_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

int64_t dq_file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

bool dq_file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool dq_file_is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int by_text(const void *x, const void *y)
{
    return strcmp(*(const char *const *)x, *(const char *const *)y);
}

dq_status dq_file_dir_names(const char ***names, size_t *n, const char *dir, dq_arena *a,
                            dq_err *err)
{
    DIR *d = opendir(dir);
    size_t capacity = 0;
    *names = NULL;
    *n = 0;
    if (!d) return dq_os_fail(err, dir, "cannot open");
    for (const struct dirent *e; err->code == DQ_OK && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        const char **list = dq_grow(a, *names, *n + 1, &capacity, sizeof *list, err);
        if (!list) break;
        *names = list;
        (*names)[*n] = dq_text(a, e->d_name, strlen(e->d_name), err);
        *n += (*names)[*n] != NULL;
    }
    closedir(d);
    if (err->code == DQ_OK && *n) qsort(*names, *n, sizeof **names, by_text);
    return err->code;
}

dq_status dq_file_paths_like(const char ***paths, size_t *n, const char *pattern, dq_arena *a,
                             dq_err *err)
{
    glob_t found;
    *n = 0;
    *paths = NULL;
    const int status = glob(pattern, 0, NULL, &found);
    if (status == GLOB_NOSPACE) dq_fail(err, DQ_RESOURCE, "out of memory (paths like %s)", pattern);
    if (status != 0) return err->code;
    *paths = dq_alloc(a, found.gl_pathc, sizeof **paths, err);
    for (size_t i = 0; *paths && i < found.gl_pathc; i++) {
        (*paths)[i] = dq_text(a, found.gl_pathv[i], strlen(found.gl_pathv[i]), err);
        if (!(*paths)[i]) break;
        *n = i + 1;
    }
    globfree(&found);
    return err->code;
}

const char *dq_file_link_target(const char *path, dq_arena *a, dq_err *err)
{
    char to[PATH_MAX];
    const ssize_t len = readlink(path, to, sizeof to - 1);
    const char *slash = strrchr(path, '/');
    if (len <= 0 || (size_t)len >= sizeof to - 1) return NULL;
    to[len] = 0;
    if (to[0] == '/' || !slash) return dq_text(a, to, (size_t)len, err);
    return dq_textf(a, err, "%.*s/%s", (int)(slash - path), path, to);
}

/* The folder of a path, "." when it has none. False when it does not fit. */
static bool folder_of(char *dir, size_t cap, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash) return snprintf(dir, cap, ".") > 0;
    if (n == 0) n = 1;
    if (n >= cap) return false;
    memcpy(dir, path, n);
    dir[n] = 0;
    return true;
}

/* Where a name leads: a file, or a folder and the name in it that a file would get. */
typedef struct place {
    dev_t device;
    ino_t inode;
    char name[PATH_MAX]; /* "": what is there */
} place;

/* The target of a link at path, as seen from here, in its place. False: no link, or too long. */
static bool follow(char path[PATH_MAX])
{
    char dir[PATH_MAX], to[PATH_MAX], from_here[2 * PATH_MAX];
    const ssize_t len = readlink(path, to, sizeof to - 1);
    if (len <= 0 || !folder_of(dir, sizeof dir, path)) return false;
    to[len] = 0;
    snprintf(from_here, sizeof from_here, "%s%s%s", to[0] == '/' ? "" : dir,
             to[0] == '/' ? "" : "/", to);
    if (strlen(from_here) >= PATH_MAX) return false;
    memcpy(path, from_here, strlen(from_here) + 1);
    return true;
}

static bool find_place(place *p, const char *path)
{
    enum { MAX_LINKS = 40 };
    char at[PATH_MAX], dir[PATH_MAX];
    struct stat st;
    size_t n = strlen(path);
    if (n >= sizeof at) return false;
    memcpy(at, path, n + 1);
    for (int i = 0; stat(at, &st) != 0; i++) {
        if (i < MAX_LINKS && follow(at)) continue;
        for (n = strlen(at); n > 1 && at[n - 1] == '/'; n--) at[n - 1] = 0;
        if (!folder_of(dir, sizeof dir, at) || stat(dir, &st) != 0) return false;
        const char *slash = strrchr(at, '/');
        snprintf(p->name, sizeof p->name, "%s", slash ? slash + 1 : at);
        p->device = st.st_dev;
        p->inode = st.st_ino;
        return true;
    }
    *p = (place){.device = st.st_dev, .inode = st.st_ino};
    return true;
}

bool dq_file_same(const char *a, const char *b)
{
    place x, y;
    if (strcmp(a, b) == 0) return true;
    if (!find_place(&x, a) || !find_place(&y, b)) return false;
    return x.device == y.device && x.inode == y.inode && strcmp(x.name, y.name) == 0;
}

const char *dq_file_resolved(const char *path, dq_arena *a, dq_err *err)
{
    char *real = realpath(path, NULL); /* NULL: a new file */
    const char *out = dq_text(a, real ? real : path, strlen(real ? real : path), err);
    free(real);
    return out;
}

dq_status dq_file_commit(const char *partial, const char *path, dq_err *err)
{
    char dir[4096];
    int fd = open(partial, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return dq_os_fail(err, partial, "cannot open");
    if (fsync(fd) != 0) dq_os_fail(err, partial, "cannot sync");
    close(fd);
    if (err->code != DQ_OK) return err->code;
    if (rename(partial, path) != 0) return dq_os_fail(err, path, "cannot rename into place");
    if (folder_of(dir, sizeof dir, path)) {
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd); /* best effort: some file systems refuse it on folders */
            close(fd);
        }
    }
    return DQ_OK;
}

dq_status dq_file_put(int fd, const char *name, const void *data, size_t bytes, dq_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        const ssize_t n = write(fd, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) DQ_TRY(dq_os_maps_check(err)); /* the source has shrunk */
        if (n < 0) return dq_os_fail(err, name, "cannot write");
        if (n == 0) return dq_fail(err, DQ_FILE, "%s: cannot write: disk full", name);
        from += n;
        bytes -= (size_t)n;
    }
    return DQ_OK;
}

dq_status dq_file_remove(const char *path, dq_err *err)
{
    if (unlink(path) != 0 && errno != ENOENT) return dq_os_fail(err, path, "cannot remove");
    return DQ_OK;
}

dq_status dq_file_check_folder(const char *path, dq_err *err)
{
    char dir[4096];
    if (!folder_of(dir, sizeof dir, path))
        return dq_fail(err, DQ_FILE, "%.60s...: path too long", path);
    if (!dq_file_is_dir(dir))
        return dq_fail(err, DQ_FILE, "%s: folder %s does not exist", path, dir);
    if (access(dir, W_OK | X_OK) != 0)
        return dq_fail(err, DQ_FILE, "%s: folder %s cannot be written: %s", path, dir,
                       strerror(errno));
    return DQ_OK;
}

/* Opening it to write would change what it leads to. */
static dq_status check_partial(const char *path, dq_err *err)
{
    char partial[PATH_MAX];
    struct stat st;
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial ||
        lstat(partial, &st) != 0 || !S_ISLNK(st.st_mode))
        return DQ_OK;
    return dq_fail(err, DQ_FILE, "%s: is a link. Choose another name.", partial);
}

dq_status dq_file_check(const char *path, dq_err *err)
{
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return dq_fail(err, DQ_FILE, "%s: is a folder. Name a file in it.", path);
        if (!S_ISREG(st.st_mode)) /* renaming would put a file in the place of the device */
            return dq_fail(err, DQ_FILE, "%s: not a regular file. Choose another name.", path);
    }
    char *real = realpath(path, NULL); /* NULL: a new file */
    if (dq_file_check_folder(real ? real : path, err) == DQ_OK)
        check_partial(real ? real : path, err);
    free(real);
    return err->code;
}

static dq_status write_text(const char *path, const char *text, size_t len, dq_err *err)
{
    char partial[4096];
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return dq_fail(err, DQ_FILE, "%s: path too long", path);
    const int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return dq_os_fail(err, partial, "cannot create");
    dq_file_put(fd, partial, text, len, err);
    if (close(fd) != 0 && err->code == DQ_OK) dq_os_fail(err, partial, "cannot write");
    if (err->code == DQ_OK) dq_file_commit(partial, path, err);
    if (err->code != DQ_OK) unlink(partial);
    return err->code;
}

dq_status dq_file_write(const char *path, const char *text, size_t len, dq_err *err)
{
    DQ_TRY(dq_file_check(path, err));
    char *real = realpath(path, NULL); /* NULL: a new file */
    write_text(real ? real : path, text, len, err);
    free(real);
    return err->code;
}

int64_t dq_file_disk_free(const char *path)
{
    char dir[4096];
    struct statvfs st;
    if (!folder_of(dir, sizeof dir, path) || statvfs(dir, &st) != 0) return -1;
    return (int64_t)st.f_bavail * (int64_t)st.f_frsize;
}
