/* file: whole files, folders and what their names lead to.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FILE_H
#define DQ_FILE_H

#include "base/strbuf.h"

/* A whole text or data file into an arena, with a NUL after it: a regular file, a pipe or "-" for
 * standard input. DQ_FILE for folders and devices, DQ_RESOURCE where it has more than a third of memory, as reading holds it up to
 * three times. */
dq_status dq_file_read(char **out, size_t *len, const char *path, dq_arena *a, dq_err *err);
/* The same for a text, of at most `max` bytes (0: of that third), which are counted before more is read; DQ_MISMATCH where it
 * is no text (dq_utf8_check_text) or has more. */
dq_status dq_file_read_text(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                            dq_err *err);
/* The same for what belongs to a model: a regular file of at most `max` bytes, else DQ_FILE or
 * DQ_DAMAGED; its size is looked at before it is read. */
enum {
    DQ_MAX_CONFIG = 16 << 20,
    DQ_MAX_INDEX = 256 << 20,
    DQ_MAX_TOKENIZER = 256 << 20,
    DQ_MAX_DOCUMENT = 64 << 20, /* of dq, in JSON: results, recipes, gates */
    DQ_MAX_JOURNAL = 1 << 30
};
dq_status dq_file_read_small(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                             dq_err *err);
/* What opens files asks this of their bytes: DQ_MISMATCH where they are the pointer that Git LFS leaves in a file's place. */
dq_status dq_file_check_bytes(const char *path, const void *data, size_t bytes, dq_err *err);
bool dq_file_exists(const char *path);
int64_t dq_file_bytes(const char *path); /* -1: there is no file */
bool dq_file_is_dir(const char *path);
bool dq_file_is_regular(const char *path); /* or a link to such a file */
/* Names in a folder, sorted, without "." and "..", in the arena. */
dq_status dq_file_dir_names(const char ***names, size_t *n, const char *dir, dq_arena *a,
                            dq_err *err);
/* Paths that a shell's pattern stands for, sorted, in the arena; none is no error. */
dq_status dq_file_paths_like(const char ***paths, size_t *n, const char *pattern, dq_arena *a,
                             dq_err *err);
/* What a symbolic link names, seen from where the link is seen from; in the arena. NULL: not a link, or an error. */
const char *dq_file_link_target(const char *path, dq_arena *a, dq_err *err);
/* Whether both names lead to one file, through links too: same device and inode, or, where nothing is there yet, the
 * same name in the same folder. */
bool dq_file_same(const char *a, const char *b);
/* An existing file's path without links; else path itself. In the arena. */
const char *dq_file_resolved(const char *path, dq_arena *a, dq_err *err);
/* fsync `partial`, rename it to `path`, fsync the folder. */
dq_status dq_file_commit(const char *partial, const char *path, dq_err *err);
dq_status dq_file_remove(const char *path, dq_err *err); /* an absent file is fine */
/* DQ_FILE when the folder of `path` is missing or this process may not write in it. */
dq_status dq_file_check_folder(const char *path, dq_err *err);
/* DQ_FILE when `path` cannot become a file: it is a folder, a device or a pipe, or its folder (a link's
 * target's) cannot take one, or PATH.partial, which it is written into, is a link. Nothing is written. Commands ask before
 * long work. */
dq_status dq_file_check(const char *path, dq_err *err);
/* Writes text to path (checked; a link's target) through path.partial, then commits. */
dq_status dq_file_write(const char *path, const char *text, size_t len, dq_err *err);
/* All bytes into an open file, which messages call `name`. */
dq_status dq_file_put(int fd, const char *name, const void *data, size_t bytes, dq_err *err);
/* Free bytes of the file system that holds path's folder; -1 unknown. */
int64_t dq_file_disk_free(const char *path);

#endif
