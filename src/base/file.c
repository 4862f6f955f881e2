/* A thin layer over OpenSSL and POSIX.
 * SPDX-License-Identifier: MIT */
/* Uses the functions without providers: EVP reads configuration files, allocates thousands of times
 * and ends the process where that fails. */
#define OPENSSL_SUPPRESS_DEPRECATED
#define _XOPEN_SOURCE 700 /* realpath */
#define _GNU_SOURCE       /* sync_file_range */
#include "base/file.h"

#include "base/os.h"

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

/* Files of a folder are made with O_EXCL in one that this process has made, and removed by name in
 * an open folder. */

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Lists the files of a folder that may be replaced; none: an empty list. */
static dq_status look(const dq_out *o, dq_out_names *list, const char *path, const char *mark,
                      dq_err *err)
{
    struct stat st;
    bool marked = !mark;
    *list = (dq_out_names){0};
    if (lstat(path, &st) != 0) return DQ_OK;
    if (!S_ISDIR(st.st_mode))
        return dq_fail(err, DQ_FILE, "%s: is not a folder. Choose another name.", path);
    DQ_TRY(dq_file_dir_names(&list->name, &list->n, path, o->arena, err));
    for (size_t i = 0; i < list->n; i++) {
        const char *name = list->name[i], *file = dq_textf(o->arena, err, "%s/%s", path, name);
        if (!file) return err->code;
        if (lstat(file, &st) != 0 || !S_ISREG(st.st_mode) || !o->owns(name))
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

static dq_status check_folder(dq_out *o, const char *path, const char *mark, bool force,
                              dq_err *err)
{
    const dq_remedy remedy = {.code = DQ_REMEDY_FORCE};
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0 || strcmp(path, "-") == 0)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OUTPUT},
                            "expected the name of a folder, found \"%s\".", path);
    o->path = dq_text(o->arena, path, n, err);
    o->partial = dq_textf(o->arena, err, "%.*s.partial", (int)n, path);
    o->old = dq_textf(o->arena, err, "%.*s.old", (int)n, path);
    if (err->code != DQ_OK) return err->code;
    DQ_TRY(dq_file_check_folder(o->path, err));
    o->replaces = exists(o->path);
    if (!force && o->replaces) return dq_fail_with(err, DQ_FILE, remedy, "%s: exists.", o->path);
    DQ_TRY(look(o, &o->earlier, o->path, mark, err));
    DQ_TRY(look(o, &o->left, o->partial, NULL, err));
    if (!force && exists(o->partial))
        return dq_fail_with(err, DQ_FILE, remedy, "%s: exists from an interrupted run.",
                            o->partial);
    if (exists(o->old))
        return dq_fail(err, DQ_FILE,
                       "%s: exists, which is the name of the earlier folder while it is replaced. "
                       "Rename or remove it.",
                       o->old);
    return DQ_OK;
}

dq_status dq_out_check(dq_out *o, const char *path, const char *mark, dq_out_owns *owns, bool force,
                       dq_arena *a, dq_err *err)
{
    *o = (dq_out){.arena = a, .owns = owns, .file.fd = -1, .replaces = force};
    if (owns) return check_folder(o, path, mark, force, err);
    DQ_TRY(dq_file_check(path, err));
    o->path = dq_file_resolved(path, a, err);
    if (o->path) o->partial = dq_textf(a, err, "%s.partial", o->path);
    if (!o->partial) return err->code;
    DQ_TRY(dq_file_check(o->partial, err));
    if (force || !dq_file_exists(o->partial)) return DQ_OK;
    return dq_fail_with(err, DQ_FILE, (dq_remedy){.code = DQ_REMEDY_FORCE},
                        "%s: exists from an interrupted run.", o->partial);
}

/* Removes the files, then their folder; absent ones are fine. */
static dq_status clear(const char *path, const dq_out_names *list, dq_err *err)
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

static dq_status begin_folder(dq_out *o, dq_err *err)
{
    if (o->begun) return DQ_OK;
    DQ_TRY(clear(o->partial, &o->left, err));
    if (mkdir(o->partial, 0777) != 0) return dq_os_fail(err, o->partial, "cannot create");
    o->begun = true;
    return DQ_OK;
}

dq_status dq_out_begin(dq_out *o, const char *name, dq_err *err)
{
    const int there = o->owns || !o->replaces ? O_EXCL : O_TRUNC;
    const char *copy = NULL;
    o->at = 0;
    o->file.path = o->partial;
    if (o->owns) {
        dq_out_names *m = &o->made;
        DQ_TRY(begin_folder(o, err));
        const char **list = dq_grow(o->arena, m->name, m->n + 1, &m->capacity, sizeof *list, err);
        o->file.path = dq_textf(o->arena, err, "%s/%s", o->partial, name);
        copy = dq_text(o->arena, name, strlen(name), err);
        if (!list || !o->file.path || !copy) return err->code;
        m->name = list;
    }
    o->file.fd = open(o->file.path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | there, 0666);
    if (o->file.fd < 0) return dq_os_fail(err, o->file.path, "cannot create");
    if (o->owns) o->made.name[o->made.n++] = copy;
    o->begun = true;
    return DQ_OK;
}

dq_status dq_out_put(dq_out *o, const void *data, size_t bytes, dq_err *err)
{
    DQ_TRY(dq_inplace_file_put(&o->file, o->at, data, bytes, err));
    o->at += (int64_t)bytes;
    return DQ_OK;
}

dq_status dq_out_end(dq_out *o, dq_err *err)
{
    const int fd = o->file.fd;
    o->file.fd = -1;
    if (fsync(fd) != 0) dq_os_fail(err, o->file.path, "cannot sync");
    if (close(fd) != 0) dq_os_fail(err, o->file.path, "cannot write");
    return err->code;
}

dq_status dq_out_commit(dq_out *o, dq_err *err)
{
    const bool replaces = o->owns && o->replaces;
    if (o->owns && !replaces && exists(o->path))
        return dq_fail(err, DQ_FILE, "%s: has come while it was written. Choose another name.",
                       o->path);
    if (replaces && rename(o->path, o->old) != 0)
        return dq_os_fail(err, o->path, "cannot be renamed");
    if (dq_file_commit(o->partial, o->path, err) != DQ_OK) {
        if (replaces && !exists(o->path) && rename(o->old, o->path) != 0)
            dq_fail_more(err, dq_remedy_none, ". The earlier folder is %.200s", o->old);
        return err->code;
    }
    o->begun = false;
    return replaces ? clear(o->old, &o->earlier, err) : DQ_OK;
}

void dq_out_drop(dq_out *o)
{
    dq_err ignore = {0};
    dq_inplace_file_close(&o->file);
    if (o->begun && o->owns) clear(o->partial, &o->made, &ignore);
    if (o->begun && !o->owns) unlink(o->partial);
    o->begun = false;
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
    if (err->code == DQ_OK && *n) qsort(*names, *n, sizeof **names, dq_name_compare);
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
    dq_inplace_file_put(&(dq_inplace_file){.fd = fd, .path = partial}, 0, text, len, err);
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

/* Messages about a scratch file name the file beside which it lies. */
static dq_status place_failed(const dq_inplace_file *p, dq_err *err)
{
    return p->scratch ? dq_in(err, "scratch file beside ") : err->code;
}

dq_status dq_inplace_file_put(const dq_inplace_file *p, int64_t at, const void *data, size_t bytes,
                              dq_err *err)
{
    const char *from = data;
    while (bytes > 0 && err->code == DQ_OK) {
        const ssize_t n = pwrite(p->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) DQ_TRY(dq_os_maps_check(err)); /* the source has shrunk */
        if (n == 0) dq_fail(err, DQ_FILE, "%s: cannot write: disk full", p->path);
        if (n < 0) dq_os_fail(err, p->path, "cannot write");
        from += n;
        at += n;
        bytes -= (size_t)n;
    }
    return err->code == DQ_OK ? DQ_OK : place_failed(p, err);
}

dq_status dq_inplace_file_get(const dq_inplace_file *p, int64_t at, void *data, size_t bytes,
                              dq_err *err)
{
    char *to = data;
    while (bytes > 0 && err->code == DQ_OK) {
        const ssize_t n = pread(p->fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) dq_fail(err, DQ_FILE, "%s: is shorter than expected", p->path);
        if (n < 0) dq_os_fail(err, p->path, "cannot read");
        to += n;
        at += n;
        bytes -= (size_t)n;
    }
    return err->code == DQ_OK ? DQ_OK : place_failed(p, err);
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

dq_status dq_inplace_file_scratch(dq_inplace_file *s, const char *beside, int64_t bytes,
                                  dq_err *err)
{
    char folder[PATH_MAX], name[PATH_MAX + 32];
    *s = (dq_inplace_file){.fd = -1, .path = beside, .scratch = true};
    if (!folder_of(folder, sizeof folder, beside))
        return dq_fail(err, DQ_FILE, "%s: the path is too long", beside);
    snprintf(name, sizeof name, "%s/.dq-scratch-XXXXXX", folder);
    s->fd = open_nameless(folder, name);
    if (s->fd < 0) return dq_os_fail(err, name, "cannot make a scratch file");
    const int why = bytes > 0 ? posix_fallocate(s->fd, 0, (off_t)bytes) : 0;
    if (why == ENOSPC || why == EFBIG) {
        errno = why;
        dq_os_fail(err, name, "cannot reserve space for activations");
        dq_inplace_file_close(s);
    }
    return err->code;
}
