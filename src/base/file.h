/* Files, folders and their hashes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_FILE_H
#define DQ_FILE_H

#include "base/base.h"
#include "base/text.h"

/* ---- SHA256 ----
 * SHA-256 over OpenSSL, as 64 hex digits. */

typedef struct dq_sha256 {
    void *state; /* NULL: ended */
} dq_sha256;

dq_status dq_sha256_begin(dq_sha256 *h, dq_err *err);
void dq_sha256_add(dq_sha256 *h, const void *p, size_t bytes);
/* Writes 64 hex digits and a NUL, and frees the state. */
dq_status dq_sha256_end(dq_sha256 *h, char hex[65], dq_err *err);
void dq_sha256_drop(dq_sha256 *h); /* frees without a result; may be called again */

dq_status dq_sha256_of(char hex[65], const void *p, size_t bytes, dq_err *err);
/* A mapped range, giving pages back to the kernel after it. */
dq_status dq_sha256_mapped(char hex[65], const void *p, size_t bytes, dq_err *err);

/* ---- Folder ----
 * A folder that appears whole or not at all. Its files are written into PATH.partial, each of them
 * to the disk; then the folder gets its name by one rename. */

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

/* ---- File ----
 * Whole files, folders and what their names lead to. */

/* A whole text or data file into an arena, with a NUL after it: a regular file, a pipe or "-" for
 * standard input. DQ_FILE for folders and devices, DQ_RESOURCE where it has more than a third of memory, as reading holds it up to
 * three times. */
dq_status dq_file_read(char **out, size_t *len, const char *path, dq_arena *a, dq_err *err);
/* A text of at most `max` bytes (0: that third); DQ_MISMATCH: no text (dq_utf8_check_text), or more. */
dq_status dq_file_read_text(char **out, size_t *len, const char *path, size_t max, dq_arena *a,
                            dq_err *err);
/* A regular file of at most `max` bytes, whose size is looked at first; else DQ_FILE or DQ_DAMAGED. */
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
/* Through links too: one device and inode or, where nothing is there yet, one name in one folder. */
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
/* Free bytes of the file system that holds path's folder; -1 unknown. */
int64_t dq_file_disk_free(const char *path);

/* ---- File out ----
 * A file that appears whole or not at all: written as PATH.partial in pieces, then renamed. */

typedef struct dq_file_out {
    const char *path, *partial; /* in the arena: where a link leads */
    int fd;                     /* -1: not open */
    bool force;                 /* what lies at `partial` is written over */
    bool begun;                 /* `partial` is this run's */
} dq_file_out;

/* Both places are looked at (dq_file_check), and nothing touched. DQ_FILE: PATH.partial is a link, or is there, without force. */
dq_status dq_file_out_name(dq_file_out *f, const char *path, bool force, dq_arena *a, dq_err *err);
/* Then pieces, and commit; or drop, which removes what was written and may be called at any time. */
dq_status dq_file_out_begin(dq_file_out *f, dq_err *err);
dq_status dq_file_out_put(dq_file_out *f, const void *data, size_t bytes, dq_err *err);
dq_status dq_file_out_commit(dq_file_out *f, dq_err *err);
void dq_file_out_drop(dq_file_out *f);

/* ---- Inplace file ----
 * A file whose size is known before its content, written at offsets, in any order, and perhaps
 * finished by a later process (work.h says how that one knows what is there). */

/* An open file; fd -1: none. */
typedef struct dq_inplace_file {
    int fd;
    const char *path; /* borrowed */
} dq_inplace_file;

dq_status dq_inplace_file_open(dq_inplace_file *p, const char *path,
                               dq_err *err);    /* an existing file */
void dq_inplace_file_close(dq_inplace_file *p); /* may be called again */
dq_status dq_inplace_file_put(dq_inplace_file *p, int64_t at, const void *data, size_t bytes,
                              dq_err *err);
dq_status dq_inplace_file_get(const dq_inplace_file *p, int64_t at, void *data, size_t bytes,
                              dq_err *err); /* DQ_FILE where the file is shorter too */
/* A hint: the disk may begin with these bytes now, so that a later sync has less to wait for. */
void dq_inplace_file_start(dq_inplace_file *p, int64_t at, size_t bytes);
dq_status dq_inplace_file_sync(dq_inplace_file *p, dq_err *err);

/* ---- Scratch file ----
 * Bytes that do not fit into memory, in a file without a name: it is gone when it is closed, and
 * when the process ends, however it ends. */

typedef struct dq_scratch_file {
    int fd;           /* -1: none */
    const char *path; /* the file beside which it lies; borrowed */
} dq_scratch_file;

/* In the folder of `beside`, with space for `bytes` where the file system can promise it. DQ_FILE. */
dq_status dq_scratch_file_open(dq_scratch_file *s, const char *beside, int64_t bytes, dq_err *err);
void dq_scratch_file_close(dq_scratch_file *s); /* may be called again */
dq_status dq_scratch_file_put(dq_scratch_file *s, int64_t at, const void *data, size_t bytes,
                              dq_err *err);
/* DQ_FILE too when less was ever put there. */
dq_status dq_scratch_file_get(const dq_scratch_file *s, int64_t at, void *data, size_t bytes,
                              dq_err *err);

#endif
