/* folder: a folder that appears whole or not at all. Its files are written into PATH.partial, each of them to the disk;
 * then the folder gets its name by one rename.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FOLDER_H
#define DQ_FOLDER_H

#include "base/base.h"

typedef struct dq_folder_names {
    const char **name;
    size_t n, capacity;
} dq_folder_names;

/* Memory, texts too, belongs to the arena. */
typedef struct dq_folder {
    dq_arena *arena;
    const char *path, *partial, *old; /* PATH, PATH.partial, PATH.old */
    dq_folder_names earlier, left,
        made;         /* files of PATH and PATH.partial as found, and of this run */
    const char *file; /* being written, "PATH.partial/NAME" */
    int fd;           /* -1: no file is open */
    bool replaces;    /* there was a PATH */
    bool begun;       /* PATH.partial is this run's */
} dq_folder;

/* Whether a folder of this kind may hold a file of this name; what holds another is never replaced. */
typedef bool dq_folder_owns(const char *name);

/* Names only; touches nothing. Slashes at the end are dropped. DQ_USAGE for an empty name. */
dq_status dq_folder_name(dq_folder *f, const char *path, dq_arena *a, dq_err *err);
/* DQ_FILE when PATH cannot become a folder: it exists, without force; or with it, but is no folder that was made before:
 * one that is empty, or has the file `mark` and nothing but regular files that `owns` is content with. The same for
 * PATH.partial (without `mark`), which an interrupted run leaves, and PATH.old. */
dq_status dq_folder_check(dq_folder *f, const char *mark, dq_folder_owns *owns, bool force,
                          dq_err *err);

/* After dq_folder_check: makes PATH.partial anew. Then files, one after the other, and dq_folder_commit; or
 * dq_folder_drop, which removes PATH.partial with what this run wrote into it and may be called at any time. What is
 * removed are files that were looked at or made, never others that have come since. */
dq_status dq_folder_begin(dq_folder *f, dq_err *err);
dq_status dq_folder_file_begin(dq_folder *f, const char *name, dq_err *err);
dq_status dq_folder_file_put(dq_folder *f, const void *data, size_t bytes, dq_err *err);
dq_status dq_folder_file_end(dq_folder *f, dq_err *err); /* with fsync */
/* An earlier folder is PATH.old for a moment, and removed. DQ_FILE for a PATH that has come since. Needs no memory. */
dq_status dq_folder_commit(dq_folder *f, dq_err *err);
void dq_folder_drop(dq_folder *f);

#endif
