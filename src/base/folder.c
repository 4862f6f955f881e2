/* folder: files are made with O_EXCL in a folder that this process has made; what is removed is removed by its name, in a
 * folder that is open.
 * SPDX-License-Identifier: MIT */
#include "base/folder.h"

#include "base/file.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The files of a folder that may be replaced; nothing is there: none. */
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

/* Files, then their folder; one that is not there is fine. */
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
    return dq_file_put(f->fd, f->file, data, bytes, err);
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
