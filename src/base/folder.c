/* folder: files are made with O_EXCL in a folder that this process has made; what is removed is removed name by name,
 * never below a link.
 * SPDX-License-Identifier: MIT */
#include "base/folder.h"

#include "base/file.h"
#include "base/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

dq_status dq_folder_name(dq_folder *f, const char *path, dq_arena *a, dq_err *err)
{
    size_t n = strlen(path);
    *f = (dq_folder){.fd = -1};
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0 || strcmp(path, "-") == 0)
        return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_OUTPUT},
                            "expected the name of a folder, found \"%s\".", path);
    f->path = dq_text(a, path, n, err);
    f->partial = dq_textf(a, err, "%.*s.partial", (int)n, path);
    f->old = dq_textf(a, err, "%.*s.old", (int)n, path);
    return err->code;
}

/* Whether a folder made before is here, perhaps an empty one; nothing: *there is false. */
static dq_status look(const char *path, const char *mark, dq_folder_owns *owns, bool *there,
                      dq_arena *a, dq_err *err)
{
    struct stat st;
    const char **name;
    size_t n;
    bool marked = !mark;
    *there = lstat(path, &st) == 0;
    if (!*there) return DQ_OK;
    if (!S_ISDIR(st.st_mode))
        return dq_fail(err, DQ_FILE, "%s: is not a folder. Choose another name.", path);
    DQ_TRY(dq_file_dir_names(&name, &n, path, a, err));
    for (size_t i = 0; i < n; i++) {
        const char *file = dq_textf(a, err, "%s/%s", path, name[i]);
        if (!file) return err->code;
        if (lstat(file, &st) != 0 || !S_ISREG(st.st_mode) || !owns(name[i]))
            return dq_fail(err, DQ_FILE,
                           "%s: exists and is not replaced, because it holds %s, which was not "
                           "written with it. Choose another name.",
                           path, name[i]);
        marked = marked || strcmp(name[i], mark) == 0;
    }
    if (n > 0 && !marked)
        return dq_fail(err, DQ_FILE,
                       "%s: exists and is not replaced, because it has no %s and so was made by "
                       "something else. Choose another name.",
                       path, mark);
    return DQ_OK;
}

static dq_status check_all(const dq_folder *f, const char *mark, dq_folder_owns *owns, bool force,
                           dq_arena *a, dq_err *err)
{
    struct stat st;
    bool there;
    const dq_remedy remedy = {.code = DQ_REMEDY_FORCE};
    if (!force && lstat(f->path, &st) == 0)
        return dq_fail_with(err, DQ_FILE, remedy, "%s: exists.", f->path);
    DQ_TRY(look(f->path, mark, owns, &there, a, err));
    DQ_TRY(look(f->partial, NULL, owns, &there, a, err));
    if (there && !force)
        return dq_fail_with(err, DQ_FILE, remedy, "%s: exists from an interrupted run.",
                            f->partial);
    if (lstat(f->old, &st) == 0)
        return dq_fail(err, DQ_FILE,
                       "%s: exists, which is the name of the earlier folder while it is replaced. "
                       "Rename or remove it.",
                       f->old);
    return DQ_OK;
}

dq_status dq_folder_check(const dq_folder *f, const char *mark, dq_folder_owns *owns, bool force,
                          dq_err *err)
{
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_file_check_folder(f->path, err) == DQ_OK) check_all(f, mark, owns, force, a, err);
    dq_arena_free(a);
    return err->code;
}

/* Its files, then the folder; no folder in it, and no memory is needed. */
static dq_status clear(const char *path, dq_err *err)
{
    DIR *d = opendir(path);
    if (!d) return errno == ENOENT ? DQ_OK : dq_os_fail(err, path, "cannot open");
    for (struct dirent *e; (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0) dq_os_fail(err, path, "cannot remove a file");
    }
    closedir(d);
    if (err->code == DQ_OK && rmdir(path) != 0) dq_os_fail(err, path, "cannot remove");
    return err->code;
}

dq_status dq_folder_begin(dq_folder *f, dq_err *err)
{
    DQ_TRY(clear(f->partial, err));
    if (mkdir(f->partial, 0777) != 0) return dq_os_fail(err, f->partial, "cannot create");
    f->made = true;
    return DQ_OK;
}

dq_status dq_folder_file_begin(dq_folder *f, const char *name, dq_arena *a, dq_err *err)
{
    f->file = dq_textf(a, err, "%s/%s", f->partial, name);
    if (!f->file) return err->code;
    f->fd = open(f->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return f->fd < 0 ? dq_os_fail(err, f->file, "cannot create") : DQ_OK;
}

dq_status dq_folder_file_put(dq_folder *f, const void *data, size_t bytes, dq_err *err)
{
    const char *from = data;
    while (bytes > 0) {
        const ssize_t n = write(f->fd, from, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EFAULT) DQ_TRY(dq_os_maps_check(err)); /* the source has shrunk */
        if (n < 0) return dq_os_fail(err, f->file, "cannot write");
        if (n == 0) return dq_fail(err, DQ_FILE, "%s: cannot write: disk full", f->file);
        from += n;
        bytes -= (size_t)n;
    }
    return DQ_OK;
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
    struct stat st;
    const bool replaces = lstat(f->path, &st) == 0;
    if (replaces && rename(f->path, f->old) != 0)
        return dq_os_fail(err, f->path, "cannot be renamed");
    if (dq_file_commit(f->partial, f->path, err) != DQ_OK) {
        if (replaces && lstat(f->path, &st) != 0 && rename(f->old, f->path) != 0)
            dq_fail_more(err, dq_remedy_none, ". The earlier folder is %.200s", f->old);
        return err->code;
    }
    f->made = false;
    return replaces ? clear(f->old, err) : DQ_OK;
}

void dq_folder_drop(dq_folder *f)
{
    dq_err ignore = {0};
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    if (f->made) clear(f->partial, &ignore);
    f->made = false;
}
