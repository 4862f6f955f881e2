/* cuda_blas_find: see cuda_blas_find.h. Drivers come without cuBLAS, and where Python brought it the loader does not
 * look.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda_blas_find.h"

#include "base/file.h"
#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
enum { N_NAMES = sizeof names / sizeof *names };

typedef struct search {
    dq_cuda_blas_file *out;
    const char *root;
    dq_arena *arena;
    dq_err *err;
    char why[512]; /* the first file that is there and does not open */
} search;

static bool done(const search *s)
{
    return s->out->library || s->err->code != DQ_OK;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ------------------------------------------------------------------------------------------ opening */
/* libcublas needs the libcublasLt beside it, but may not say where that is, and LD_LIBRARY_PATH goes before what it
 * says: it is open before. */
static void open_companion(search *s, const char *path)
{
    static const char stem[] = "libcublas";
    const char *name = last_part(path), *ignored;
    if (strncmp(name, stem, sizeof stem - 1) != 0) return;
    const char *lt = dq_textf(s->arena, s->err, "%.*s%sLt%s", (int)(name - path), path, stem,
                              name + sizeof stem - 1);
    if (lt && dq_file_exists(lt)) dq_os_library_open(lt, &ignored);
}

static void open_file(search *s, const char *path)
{
    const char *why;
    open_companion(s, path);
    s->out->path = path;
    s->out->library = dq_os_library_open(path, &why);
    if (!s->out->library && !s->why[0]) snprintf(s->why, sizeof s->why, "%s", why);
}

static void try_folder(search *s, const char *folder)
{
    for (int i = 0; i < N_NAMES && !done(s); i++) {
        const char *path = dq_textf(s->arena, s->err, "%s/%s", folder, names[i]);
        if (path && dq_file_exists(path)) open_file(s, path);
    }
}

static dq_status open_named(search *s, const char *named)
{
    if (dq_file_is_dir(named)) {
        try_folder(s, named);
    } else { /* a name without a slash would be searched for by the loader */
        const char *path = dq_textf(s->arena, s->err, strchr(named, '/') ? "%s" : "./%s", named);
        if (path) open_file(s, path);
    }
    if (done(s)) return s->err->code;
    if (!s->why[0])
        snprintf(s->why, sizeof s->why, "neither %s nor %s is there", names[0], names[1]);
    return dq_fail(s->err, DQ_RESOURCE,
                   "DQ_CUBLAS=%.300s: cuBLAS does not open (%.400s). Name libcublas.so.13, "
                   "libcublas.so.12 or a folder that holds one, or unset DQ_CUBLAS to have it "
                   "searched for",
                   named, s->why);
}

static void ask_loader(search *s)
{
    for (int i = 0; i < N_NAMES && !done(s); i++) {
        const char *why;
        s->out->library = dq_os_library_open(names[i], &why);
        if (s->out->library)
            s->out->path = dq_os_library_path(s->out->library, s->arena, s->err);
        else if (!s->why[0] && strncmp(why, names[i], strlen(names[i])) != 0)
            snprintf(s->why, sizeof s->why, "%s", why); /* not the name: a file, or what it needs */
    }
}

/* ------------------------------------------------------------------------------------------- places */
static void try_pattern(search *s, const char *pattern)
{
    const char **folders;
    size_t n;
    if (!pattern || dq_file_paths_like(&folders, &n, pattern, s->arena, s->err) != DQ_OK) return;
    for (size_t i = 0; i < n && !done(s); i++) try_folder(s, folders[i]);
}

/* A path in a pattern, where it stands for itself. */
static const char *literal(search *s, const char *path, size_t len)
{
    char *to = dq_alloc(s->arena, 2 * len + 1, 1, s->err);
    if (!to) return NULL;
    for (size_t i = 0, n = 0; i < len; i++) {
        if (strchr("*?[\\", path[i])) to[n++] = '\\';
        to[n++] = path[i];
    }
    return to;
}

/* `base` is a pattern of folders that CUDA was installed into. */
static void try_cuda(search *s, const char *base)
{
    static const char *const below[] = {"lib64", "targets/*/lib", "lib"};
    for (size_t i = 0; base && i < sizeof below / sizeof *below && !done(s); i++)
        try_pattern(s, dq_textf(s->arena, s->err, "%s/%s", base, below[i]));
}

/* `prefix` is a pattern of folders that hold lib/python3.*; pyenv keeps several of them in one. */
static void try_python(search *s, const char *prefix)
{
    static const char *const between[] = {"", "/versions/*"};
    for (size_t i = 0; prefix && i < sizeof between / sizeof *between && !done(s); i++)
        try_pattern(s, dq_textf(s->arena, s->err, "%s%s/lib*/python3*/*-packages/nvidia/*/lib",
                                prefix, between[i]));
}

/* Bytes of path[len] without its last part. */
static size_t folder_len(const char *path, size_t len)
{
    while (len > 0 && path[len - 1] != '/') len--;
    while (len > 0 && path[len - 1] == '/') len--;
    return len;
}

/* PREFIX/bin/python3, and all that it links to: a virtual environment's is a link to the system's. */
static void try_interpreter(search *s, const char *path)
{
    while (path && !done(s)) { /* it exists: its links form no circle */
        try_python(s, literal(s, path, folder_len(path, folder_len(path, strlen(path)))));
        path = done(s) ? NULL : dq_file_link_target(path, s->arena, s->err);
    }
}

static void try_path(search *s)
{
    const char *at = variable("PATH");
    while (at && !done(s)) {
        const size_t len = strcspn(at, ":");
        const char *path = dq_textf(s->arena, s->err, "%.*s/python3", (int)len, at);
        if (path && path[0] == '/' && dq_file_exists(path)) try_interpreter(s, path);
        at = at[len] ? at + len + 1 : NULL;
    }
}

static const char *variable_literal(search *s, const char *name)
{
    const char *value = variable(name);
    return value ? literal(s, value, strlen(value)) : NULL;
}

static void try_places(search *s)
{
    const char *root = literal(s, s->root, strlen(s->root));
    const char *home = variable_literal(s, "HOME");
    if (done(s)) return;
    try_cuda(s, variable_literal(s, "CUDA_HOME"));
    if (!done(s)) try_cuda(s, variable_literal(s, "CUDA_PATH"));
    if (!done(s)) try_cuda(s, dq_textf(s->arena, s->err, "%s/usr/local/cuda", root));
    if (!done(s)) try_cuda(s, dq_textf(s->arena, s->err, "%s/usr/local/cuda-*", root));
    if (!done(s)) try_python(s, variable_literal(s, "VIRTUAL_ENV"));
    if (!done(s)) try_path(s);
    if (!done(s)) try_python(s, dq_textf(s->arena, s->err, "%s/usr/local", root));
    if (!done(s)) try_python(s, dq_textf(s->arena, s->err, "%s/usr", root));
    if (!done(s) && home) try_python(s, dq_textf(s->arena, s->err, "%s/.local", home));
}

dq_status dq_cuda_blas_missing(const char *why, dq_err *err)
{
    return dq_fail_with(
        err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
        "cuBLAS is missing: no libcublas.so.13 or libcublas.so.12 on the loader's path, in "
        "CUDA's folders (CUDA_HOME, CUDA_PATH, /usr/local/cuda*) or in Python's nvidia "
        "packages%s%.400s%s. Install NVIDIA's package libcublas-13-0 or pip's "
        "nvidia-cublas, or name the file with DQ_CUBLAS=PATH",
        *why ? " opens (" : "", why, *why ? ")" : "");
}

dq_status dq_cuda_blas_find(dq_cuda_blas_file *out, const char *root, dq_arena *a, dq_err *err)
{
    search s = {.out = out, .root = root, .arena = a, .err = err};
    const char *named = variable("DQ_CUBLAS");
    *out = (dq_cuda_blas_file){0};
    if (named) return open_named(&s, named);
    if (!*root) ask_loader(&s);
    if (!done(&s)) try_places(&s);
    return done(&s) ? err->code : dq_cuda_blas_missing(s.why, err);
}
