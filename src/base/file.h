/* Files, folders and their hashes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FILE_H
#define DQ_FILE_H

#include "base/text.h"

typedef struct dq_sha256 {
    void *state; /* NULL: ended */
} dq_sha256;

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err);
void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes);
/* Writes 64 hex digits and a NUL, and frees the state. */
dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err);
void dq_sha256_drop(dq_sha256 *h); /* frees without a result; may be called again */

dq_status dq_sha256_of(char hex[65], const void *p, size_t bytes, dq_err *err);

/* Reads a whole regular file, pipe or "-" (standard input) into an arena with a NUL after it.
 * DQ_FILE: folders and devices; DQ_RESOURCE: more than a third of memory, as reading may hold it
 * three times. */
dq_status dq_file_read(char **out, size_t *len, const char *path, dq_arena *a, dq_err *err);
/* At most `max` bytes (0: that third); DQ_MISMATCH: more, or no text (dq_utf8_check_text). */
dq_status dq_file_read_text(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                            dq_err *err);
/* DQ_FILE: no regular file; DQ_DAMAGED: more than `max` bytes, which is checked before reading. */
enum {
    DQ_MAX_CONFIG = 16 << 20,
    DQ_MAX_INDEX = 256 << 20,
    DQ_MAX_TOKENIZER = 256 << 20,
    DQ_MAX_DOCUMENT = 64 << 20, /* of dq, in JSON: results, recipes, gates */
    DQ_MAX_JOURNAL = 1 << 30
};
dq_status dq_file_read_small(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                             dq_err *err);
/* DQ_MISMATCH: the bytes are a Git LFS pointer in the file's place. */
dq_status dq_file_check_bytes(const char *path, const void *data, size_t bytes, dq_err *err);
bool dq_file_exists(const char *path);
int64_t dq_file_bytes(const char *path); /* -1: there is no file */
bool dq_file_is_dir(const char *path);
bool dq_file_is_regular(const char *path); /* or a link to such a file */
/* Sorted, without "." and "..", in the arena. */
dq_status dq_file_dir_names(const char ***names, size_t *n, const char *dir, dq_arena *a,
                            dq_err *err);
/* Paths that match a shell pattern, sorted, in the arena; none is no error. */
dq_status dq_file_paths_like(const char ***paths, size_t *n, const char *pattern, dq_arena *a,
                             dq_err *err);
/* A link's target, seen from where the link is seen; in the arena. NULL: not a link, or an
 * error. */
const char *dq_file_link_target(const char *path, dq_arena *a, dq_err *err);
/* Through links: the same device and inode or, for new files, the same folder and name. */
bool dq_file_same(const char *a, const char *b);
/* An existing file's path without links, else path itself; in the arena. */
const char *dq_file_resolved(const char *path, dq_arena *a, dq_err *err);
/* fsync `partial`, rename it to `path`, fsync the folder. */
dq_status dq_file_commit(const char *partial, const char *path, dq_err *err);
dq_status dq_file_remove(const char *path, dq_err *err); /* an absent file is fine */
/* DQ_FILE: the folder of `path` is missing or not writable. */
dq_status dq_file_check_folder(const char *path, dq_err *err);
/* DQ_FILE when `path` cannot become a file: it is a folder, device or pipe, its folder (a link's
 * target's) is not writable, or PATH.partial is a link. Writes nothing; commands ask before long
 * work. */
dq_status dq_file_check(const char *path, dq_err *err);
/* Writes through path.partial, after dq_file_check, and commits; a link's target is replaced. */
dq_status dq_file_write(const char *path, const char *text, size_t len, dq_err *err);
/* Free bytes of the file system of path's folder; -1: unknown. */
int64_t dq_file_disk_free(const char *path);

/* A file of known size written at offsets in any order, perhaps finished by a later process (work.h
 * says how that knows what is there). */

/* fd -1: none. */
typedef struct dq_inplace_file {
    int fd;
    const char *path; /* borrowed */
    bool scratch;     /* without a name: `path` is that of the file beside which it lies */
} dq_inplace_file;

dq_status dq_inplace_file_open(dq_inplace_file *p, const char *path,
                               dq_err *err); /* an existing file */
/* Data beyond memory in a file without a name, which vanishes when it is closed or the process
 * ends: in the folder of `beside`, with `bytes` reserved where the file system can. DQ_FILE. */
dq_status dq_inplace_file_scratch(dq_inplace_file *p, const char *beside, int64_t bytes,
                                  dq_err *err);
void dq_inplace_file_close(dq_inplace_file *p); /* may be called again */
dq_status dq_inplace_file_put(const dq_inplace_file *p, int64_t at, const void *data, size_t bytes,
                              dq_err *err);
dq_status dq_inplace_file_get(const dq_inplace_file *p, int64_t at, void *data, size_t bytes,
                              dq_err *err); /* DQ_FILE where the file is shorter too */
/* A hint to start writing these bytes, so that a later sync waits less. */
void dq_inplace_file_start(dq_inplace_file *p, int64_t at, size_t bytes);
dq_status dq_inplace_file_sync(dq_inplace_file *p, dq_err *err);

/* A file or folder that appears whole or not at all: written and synced in PATH.partial, which is
 * then renamed. */

typedef struct dq_out_names {
    const char **name;
    size_t n, capacity;
} dq_out_names;

/* Whether a folder of this kind may hold such a file; a folder with any other file is never
 * replaced. */
typedef bool dq_out_owns(const char *name);

/* Memory, texts too, belongs to the arena. {.file.fd = -1} may be dropped. */
typedef struct dq_out {
    dq_arena *arena;
    dq_out_owns *owns;                /* NULL: a file */
    const char *path, *partial, *old; /* PATH (of a file: where a link leads), PATH.partial; of a
                                         folder PATH.old */
    dq_out_names earlier, left, made; /* files of PATH and PATH.partial as found, and of this run */
    dq_inplace_file file;             /* being written */
    int64_t at;                       /* what is written of it */
    bool replaces;                    /* what there was, of a file at `partial` */
    bool begun;                       /* PATH.partial is this run's */
} dq_out;

/* Touches nothing. DQ_FILE when PATH cannot become a file (dq_file_check), or PATH.partial is a
 * link or exists without force. Or when it cannot become a folder: it exists without force, or is
 * neither empty nor made before, which means the file `mark` and only regular files that `owns`
 * accepts; the same for PATH.partial (without `mark`) of an interrupted run, and PATH.old. Drops
 * final slashes. DQ_USAGE: an empty name of a folder. */
dq_status dq_out_check(dq_out *o, const char *path, const char *mark, dq_out_owns *owns, bool force,
                       dq_arena *a, dq_err *err);
/* Begins the file, or one of the folder, which the first makes anew; then its bytes and dq_out_end
 * follow, and the next. After all dq_out_commit; or, at any time, dq_out_drop, which removes what
 * this run has made. Only files that were seen or made are removed, never later ones. */
dq_status dq_out_begin(dq_out *o, const char *name, dq_err *err);
dq_status dq_out_put(dq_out *o, const void *data, size_t bytes, dq_err *err);
dq_status dq_out_end(dq_out *o, dq_err *err); /* with fsync */
/* An earlier folder becomes PATH.old briefly. DQ_FILE: a PATH has appeared meanwhile. Needs no
 * memory. */
dq_status dq_out_commit(dq_out *o, dq_err *err);
void dq_out_drop(dq_out *o);

#endif
