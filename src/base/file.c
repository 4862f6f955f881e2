/* A thin layer over OpenSSL. A mapping is hashed in steps, and the pages of each are given back to
 * the kernel after it, so that hashing a large file does not fill memory.
 * SPDX-License-Identifier: MIT */
/* Uses the functions without providers: EVP reads configuration files, allocates thousands of times
 * and ends the process where that fails. */
#define OPENSSL_SUPPRESS_DEPRECATED
#define _XOPEN_SOURCE 700 /* realpath */
#define _GNU_SOURCE       /* sync_file_range */
#include "base/file.h"

#include "base/base.h"
#include "base/os.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static dq_status file_put(int fd, const char *name, const void *data, size_t bytes, dq_err *err);

enum { STEP = 8 << 20 }; /* bytes of a mapping hashed before their pages are given back */

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err)
{
    SHA256_CTX *state = h->state = dq_block_new(1, sizeof *state, err);
    if (!state) return err->code;
    SHA256_Init(state);
    return DQ_OK;
}

void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes)
{
    if (h->state && bytes) SHA256_Update(h->state, p, bytes);
}

dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err)
{
    unsigned char sum[SHA256_DIGEST_LENGTH];
    if (!h->state) return dq_fail(err, DQ_BUG, "a SHA-256 was ended twice");
    SHA256_Final(sum, h->state);
    dq_sha256_drop(h);
    for (size_t i = 0; i < sizeof sum; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return DQ_OK;
}

void dq_sha256_drop(dq_sha256 *h)
{
    dq_block_free(h->state);
    h->state = NULL;
}

dq_status dq_sha256_of(char hex[65], const void *p, size_t bytes, dq_err *err)
{
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    dq_sha256_add(&h, p, bytes);
    return dq_sha256_end(&h, hex, err);
}

dq_status dq_sha256_mapped(char hex[65], const void *p, size_t bytes, dq_err *err)
{
    const uint8_t *at = p;
    dq_sha256 h;
    DQ_TRY(dq_sha256_begin(&h, err));
    for (size_t done = 0; done < bytes;) {
        size_t n = bytes - done < STEP ? bytes - done : STEP;
        dq_sha256_add(&h, at + done, n);
        const size_t from = done < DQ_OS_MAP_AROUND ? 0 : done - DQ_OS_MAP_AROUND;
        done += n;
        dq_os_map_release(at + from, done - from);
    }
    return dq_sha256_end(&h, hex, err);
}

/* Files are made with O_EXCL in a folder that this process has made, and removed by name in an open
 * folder. */

dq_status dq_folder_name(dq_folder *f, const char *path, dq_arena *a, dq_err *err)
{
    size_t n = strlen(path);
    *f = (dq_folder){.arena = a, .fd = -1};
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0 || strcmp(path, "-") == 0)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OUTPUT},
                            "expected the name of a folder, found \"%s\".", path);
    f->path = dq_text(a, path, n, err);
    f->partial = dq_textf(a, err, "%.*s.partial", (int)n, path);
    f->old = dq_textf(a, err, "%.*s.old", (int)n, path);
    return err->code;
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Lists the files of a folder that may be replaced; none: an empty list. */
static dq_status look(dq_folder *f, dq_folder_names *list, const char *path, const char *mark,
                      dq_folder_owns *owns, dq_err *err)
{
    struct stat st;
    bool marked = !mark;
    *list = (dq_folder_names){0};
    if (lstat(path, &st) != 0) return DQ_OK;
    if (!S_ISDIR(st.st_mode))
        return dq_fail(err, DQ_FILE, "%s: is not a folder. Choose another name.", path);
    DQ_TRY(dq_file_dir_names(&list->name, &list->n, path, f->arena, err));
    for (size_t i = 0; i < list->n; i++) {
        const char *name = list->name[i], *file = dq_textf(f->arena, err, "%s/%s", path, name);
        if (!file) return err->code;
        if (lstat(file, &st) != 0 || !S_ISREG(st.st_mode) || !owns(name))
            return dq_fail(err, DQ_FILE,
                           "%s: exists and is not replaced, because it holds %s, which was not "
                           "written with it. Choose another name.",
                           path, name);
        marked = marked || strcmp(name, mark) == 0;
    }
    if (list->n > 0 && !marked)
        return dq_fail(err, DQ_FILE,
                       "%s: exists and is not replaced, because it has no %s and so was made by "
                       "something else. Choose another name.",
                       path, mark);
    return DQ_OK;
}

dq_status dq_folder_check(dq_folder *f, const char *mark, dq_folder_owns *owns, bool force,
                          dq_err *err)
{
    const dq_remedy remedy = {.code = DQ_REMEDY_FORCE};
    DQ_TRY(dq_file_check_folder(f->path, err));
    f->replaces = exists(f->path);
    if (!force && f->replaces) return dq_fail_with(err, DQ_FILE, remedy, "%s: exists.", f->path);
    DQ_TRY(look(f, &f->earlier, f->path, mark, owns, err));
    DQ_TRY(look(f, &f->left, f->partial, NULL, owns, err));
    if (!force && exists(f->partial))
        return dq_fail_with(err, DQ_FILE, remedy, "%s: exists from an interrupted run.",
                            f->partial);
    if (exists(f->old))
        return dq_fail(err, DQ_FILE,
                       "%s: exists, which is the name of the earlier folder while it is replaced. "
                       "Rename or remove it.",
                       f->old);
    return DQ_OK;
}

/* Removes the files, then their folder; absent ones are fine. */
static dq_status clear(const char *path, const dq_folder_names *list, dq_err *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? DQ_OK : dq_os_fail(err, path, "cannot open");
    for (size_t i = 0; i < list->n; i++) {
        if (unlinkat(fd, list->name[i], 0) != 0 && errno != ENOENT)
            dq_os_fail(err, path, "cannot remove a file");
    }
    close(fd);
    if (err->code == DQ_OK && rmdir(path) != 0) dq_os_fail(err, path, "cannot remove");
    return err->code;
}

dq_status dq_folder_begin(dq_folder *f, dq_err *err)
{
    DQ_TRY(clear(f->partial, &f->left, err));
    if (mkdir(f->partial, 0777) != 0) return dq_os_fail(err, f->partial, "cannot create");
    f->begun = true;
    return DQ_OK;
}

dq_status dq_folder_file_begin(dq_folder *f, const char *name, dq_err *err)
{
    dq_folder_names *m = &f->made;
    const char **list = dq_grow(f->arena, m->name, m->n + 1, &m->capacity, sizeof *list, err);
    f->file = dq_textf(f->arena, err, "%s/%s", f->partial, name);
    const char *copy = dq_text(f->arena, name, strlen(name), err);
    if (!list || !f->file || !copy) return err->code;
    m->name = list;
    f->fd = open(f->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) return dq_os_fail(err, f->file, "cannot create");
    m->name[m->n++] = copy;
    return DQ_OK;
}

dq_status dq_folder_file_put(dq_folder *f, const void *data, size_t bytes, dq_err *err)
{
    return file_put(f->fd, f->file, data, bytes, err);
}

dq_status dq_folder_file_end(dq_folder *f, dq_err *err)
{
    const int fd = f->fd;
    f->fd = -1;
    if (fsync(fd) != 0) dq_os_fail(err, f->file, "cannot sync");
    if (close(fd) != 0) dq_os_fail(err, f->file, "cannot write");
    return err->code;
}

dq_status dq_folder_commit(dq_folder *f, dq_err *err)
{
    if (!f->replaces && exists(f->path))
        return dq_fail(err, DQ_FILE, "%s: has come while it was written. Choose another name.",
                       f->path);
    if (f->replaces && rename(f->path, f->old) != 0)
        return dq_os_fail(err, f->path, "cannot be renamed");
    if (dq_file_commit(f->partial, f->path, err) != DQ_OK) {
        if (f->replaces && !exists(f->path) && rename(f->old, f->path) != 0)
            dq_fail_more(err, dq_remedy_none, ". The earlier folder is %.200s", f->old);
        return err->code;
    }
    f->begun = false;
    return f->replaces ? clear(f->old, &f->earlier, err) : DQ_OK;
}

void dq_folder_drop(dq_folder *f)
{
    dq_err ignore = {0};
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    if (f->begun) clear(f->partial, &f->made, &ignore);
    f->begun = false;
}

/* Every input passes one check of what may be opened, and output appears by rename, so that no
 * reader meets half of it. */

/* Opens a regular file, or a pipe where `pipes`: devices may be endless, and opening a pipe waits.
 * -1: failed. */
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

/* fd may grow while it is read; `expected` bytes are likely. */
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
        "%s: a Git LFS pointer stands in the file's place. Fetch the file itself: git lfs pull.",
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

/* Where a path leads: an existing file, or a folder and the new name in it. */
typedef struct place {
    dev_t device;
    ino_t inode;
    char name[PATH_MAX]; /* "": what is there */
} place;

/* Replaces a link by its target, seen from here. False: no link, or too long. */
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

static dq_status file_put(int fd, const char *name, const void *data, size_t bytes, dq_err *err)
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

/* Writing through a link at PATH.partial would change its target. */
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
    file_put(fd, partial, text, len, err);
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

dq_status dq_file_out_name(dq_file_out *f, const char *path, bool force, dq_arena *a, dq_err *err)
{
    *f = (dq_file_out){.fd = -1, .force = force};
    DQ_TRY(dq_file_check(path, err));
    f->path = dq_file_resolved(path, a, err);
    if (f->path) f->partial = dq_textf(a, err, "%s.partial", f->path);
    if (!f->partial) return err->code;
    DQ_TRY(dq_file_check(f->partial, err));
    if (f->force || !dq_file_exists(f->partial)) return DQ_OK;
    return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE},
                        "%s: exists from an interrupted run.", f->partial);
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
    return file_put(f->fd, f->partial, data, bytes, err);
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

/* A file of a folder without a name; where the file system has none, its name is removed as soon as
 * the file is open, which a kill may precede. */
static int open_nameless(const char *folder, char *name)
{
#if defined(O_TMPFILE)
    const int nameless = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (nameless >= 0) return nameless;
#endif
    const int fd = mkstemp(name);
    if (fd >= 0) unlink(name);
    if (fd >= 0) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

dq_status dq_scratch_file_open(dq_scratch_file *s, const char *beside, int64_t bytes, dq_err *err)
{
    char folder[PATH_MAX], name[PATH_MAX + 32];
    *s = (dq_scratch_file){.fd = -1, .path = beside};
    if (!folder_of(folder, sizeof folder, beside))
        return dq_fail(err, DQ_FILE, "%s: the path is too long", beside);
    snprintf(name, sizeof name, "%s/.dq-scratch-XXXXXX", folder);
    s->fd = open_nameless(folder, name);
    if (s->fd < 0) return dq_os_fail(err, name, "cannot make a scratch file");
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

/* Messages name the output beside which it stands. */
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
