/* Drivers come without cuBLAS, and where Python brought it the loader does not look.
 * SPDX-License-Identifier: MIT */
#include "base/base.h"
#include "base/file.h"
#include "base/os.h"
#include "engine/backend.h"
#include "kernels/cuda/host/cuda.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- CUDA BLAS find ---- */

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

/* ---- opening */
/* libcublas needs the libcublasLt beside it, which LD_LIBRARY_PATH could hide: that opens first. */
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

/* ---- places */
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

static size_t folder_len(const char *path, size_t len)
{
    while (len > 0 && path[len - 1] != '/') len--;
    while (len > 0 && path[len - 1] == '/') len--;
    return len;
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
    if (!done(s)) {
        const char *at = variable("PATH");
        while (at && !done(s)) {
            const size_t len = strcspn(at, ":");
            const char *path = dq_textf(s->arena, s->err, "%.*s/python3", (int)len, at);
            if (path && path[0] == '/' && dq_file_exists(path)) {
                /* A virtual environment's python3 links to the system's, whose packages count. */
                while (path && !done(s)) { /* it exists: its links form no circle */
                    try_python(s,
                               literal(s, path, folder_len(path, folder_len(path, strlen(path)))));
                    path = done(s) ? NULL : dq_file_link_target(path, s->arena, s->err);
                }
            }
            at = at[len] ? at + len + 1 : NULL;
        }
    }
    if (!done(s)) try_python(s, dq_textf(s->arena, s->err, "%s/usr/local", root));
    if (!done(s)) try_python(s, dq_textf(s->arena, s->err, "%s/usr", root));
    if (!done(s) && home) try_python(s, dq_textf(s->arena, s->err, "%s/.local", home));
}

/* Says that there is none; `why` may tell of one that does not open ("": none was there). */
static dq_status blas_missing(const char *why, dq_err *err)
{
    return dq_fail_with(
        err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
        "cuBLAS is missing: no libcublas.so.13 or libcublas.so.12 on the loader's path, in CUDA's "
        "folders (CUDA_HOME, CUDA_PATH, /usr/local/cuda*) or in Python's nvidia "
        "packages%s%.400s%s. Install NVIDIA's package libcublas-13-0 or pip's nvidia-cublas, or "
        "name the file with DQ_CUBLAS=PATH",
        *why ? " opens (" : "", why, *why ? ")" : "");
}

dq_status dq_cuda_blas_find(dq_cuda_blas_file *out, const char *root, dq_arena *a, dq_err *err)
{
    search s = {.out = out, .root = root, .arena = a, .err = err};
    const char *named = variable("DQ_CUBLAS");
    *out = (dq_cuda_blas_file){0};
    if (named) {
        if (dq_file_is_dir(named)) {
            try_folder(&s, named);
        } else { /* a name without a slash would be searched for by the loader */
            const char *path = dq_textf(s.arena, s.err, strchr(named, '/') ? "%s" : "./%s", named);
            if (path) open_file(&s, path);
        }
        if (done(&s)) return s.err->code;
        if (!s.why[0])
            snprintf(s.why, sizeof s.why, "neither %s nor %s is there", names[0], names[1]);
        return dq_fail(s.err, DQ_RESOURCE,
                       "DQ_CUBLAS=%.300s: cuBLAS does not open (%.400s). Name libcublas.so.13, "
                       "libcublas.so.12 or a folder that holds one, or unset DQ_CUBLAS to have it "
                       "searched for",
                       named, s.why);
    }
    if (!*root) {
        for (int i = 0; i < N_NAMES && !done(&s); i++) {
            const char *why;
            s.out->library = dq_os_library_open(names[i], &why);
            if (s.out->library)
                s.out->path = dq_os_library_path(s.out->library, s.arena, s.err);
            else if (!s.why[0] && strncmp(why, names[i], strlen(names[i])) != 0)
                snprintf(s.why, sizeof s.why, "%s",
                         why); /* not the name: a file, or what it needs */
        }
    }
    if (!done(&s)) try_places(&s);
    return done(&s) ? err->code : blas_missing(s.why, err);
}

/* ---- CUDA BLAS ----
 * CuBLAS, opened when a product of floats first needs it: half a gigabyte that nobody should load
 * who does not use it, and dq must start where it is missing. */

#ifdef DQ_SIMT
#include "tests/simt/simt_blas.h"
#endif

/* The part of the cuBLAS interface that is used; its numbers do not change between versions. */
enum {
    OP_N = 0,
    OP_T = 1,
    R_32F = 0,
    R_8I = 3,
    R_32I = 10,
    R_16BF = 14,
    COMPUTE_32F = 68,
    COMPUTE_32I = 72,
    GEMM_DEFAULT = -1
};
/* Products in the type of their operands (no TF32), and no sums in bf16. */
enum { DEFAULT_MATH = 0, NO_REDUCED_SUMS = 16 };
enum { STATUS_OK = 0, STATUS_NO_MEMORY = 3 };

typedef int property_fn(int which, int *value); /* 0, 1, 2: major, minor, patch */
typedef int create_fn(void **handle);
typedef int destroy_fn(void *handle);
typedef int set_stream_fn(void *handle, cudaStream_t s);
typedef int set_math_fn(void *handle, int mode);
typedef int sgemm_fn(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha,
                     const float *a, int lda, const float *b, int ldb, const float *beta, float *c,
                     int ldc);
typedef int gemm_ex_fn(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,
                       const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                       const void *beta, void *c, int c_type, int ldc, int compute, int algorithm);

struct dq_cuda_blas {
    void *handle;
    create_fn *create;
    destroy_fn *destroy;
    set_stream_fn *set_stream;
    set_math_fn *set_math;
    sgemm_fn *sgemm;
    gemm_ex_fn *gemm_ex;
};

#ifdef DQ_SIMT
static dq_status open_library(dq_cuda_blas_file *f, dq_arena *a, dq_err *err)
{
    (void)a;
    *f = (dq_cuda_blas_file){.library = dq_simt_blas_library(), .path = "simulated"};
    return f->library ? DQ_OK : blas_missing("", err);
}

static dq_os_function *function(void *library, const char *name)
{
    (void)library;
    return dq_simt_blas_function(name);
}
#else
static dq_status open_library(dq_cuda_blas_file *f, dq_arena *a, dq_err *err)
{
    return dq_cuda_blas_find(f, "", a, err);
}

static dq_os_function *function(void *library, const char *name)
{
    return dq_os_library_function(library, name);
}
#endif

static dq_status bind(dq_cuda_blas *k, const dq_cuda_blas_file *f, dq_err *err)
{
    k->create = (create_fn *)function(f->library, "cublasCreate_v2");
    k->destroy = (destroy_fn *)function(f->library, "cublasDestroy_v2");
    k->set_stream = (set_stream_fn *)function(f->library, "cublasSetStream_v2");
    k->set_math = (set_math_fn *)function(f->library, "cublasSetMathMode");
    k->sgemm = (sgemm_fn *)function(f->library, "cublasSgemm_v2");
    k->gemm_ex = (gemm_ex_fn *)function(f->library, "cublasGemmEx");
    if (!k->create || !k->destroy || !k->set_stream || !k->set_math || !k->sgemm || !k->gemm_ex)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
            "%.400s lacks functions (expected cuBLAS 12 or 13). Install NVIDIA's package "
            "libcublas-13-0 or pip's nvidia-cublas, or name another file with DQ_CUBLAS=PATH",
            f->path);
    return DQ_OK;
}

/* "13.0.2", NULL where the library does not say. Needs no device. */
static const char *version(void *library, dq_arena *a, dq_err *err)
{
    property_fn *property = (property_fn *)function(library, "cublasGetProperty");
    int part[3];
    for (int i = 0; i < 3; i++)
        if (!property || property(i, &part[i]) != STATUS_OK) return NULL;
    return dq_textf(a, err, "%d.%d.%d", part[0], part[1], part[2]);
}

dq_status dq_cuda_blas_about(const char **path, const char **number, dq_arena *a, dq_err *err)
{
    dq_cuda_blas unused;
    dq_cuda_blas_file f;
    *path = *number = NULL;
    DQ_TRY(open_library(&f, a, err));
    DQ_TRY(bind(&unused, &f, err));
    *number = version(f.library, a, err);
    *path = f.path;
    return err->code;
}

static dq_status load(dq_cuda_blas *k, dq_err *err)
{
    dq_cuda_blas_file f;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (open_library(&f, a, err) == DQ_OK) bind(k, &f, err);
    dq_arena_free(a);
    return err->code;
}

static bool check(dq_backend *b, int status, const char *what)
{
    if (status == STATUS_OK) return b->err.code == DQ_OK;
    if (status == STATUS_NO_MEMORY)
        dq_cuda_no_memory(b, 0, what);
    else
        dq_fail(&b->err, DQ_BUG, "cuda:%d: %s failed: cuBLAS status %d", dq_cuda_of(b)->device,
                what, status);
    return false;
}

static dq_cuda_blas *blas_of(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    if (c->blas || b->err.code != DQ_OK) return c->blas;
    dq_cuda_blas *k = dq_block_new(1, sizeof *k, &b->err);
    if (!k) return NULL;
    if (load(k, &b->err) == DQ_OK && check(b, k->create(&k->handle), "cublasCreate") &&
        check(b, k->set_stream(k->handle, c->stream), "cublasSetStream") &&
        check(b, k->set_math(k->handle, DEFAULT_MATH | NO_REDUCED_SUMS), "cublasSetMathMode"))
        c->blas = k;
    else
        dq_cuda_blas_free(k);
    return c->blas;
}

void dq_cuda_blas_free(dq_cuda_blas *k)
{
    if (!k) return;
    if (k->handle) k->destroy(k->handle);
    dq_block_free(k);
}

void dq_cuda_gemm(dq_backend *b, bool bf16, float *dst, int64_t ldd, const void *src, const void *w,
                  int64_t n, int64_t k)
{
    enum { M = DQ_CUDA_TILE_ROWS };
    const dq_cuda_blas *blas = blas_of(b);
    const float one = 1, zero = 0;
    if (!blas || n == 0) return;
    if (ldd > INT32_MAX || n > INT32_MAX || k > INT32_MAX) {
        dq_fail(&b->err, DQ_MISMATCH, "a product of %lld columns is too large for cuBLAS",
                (long long)ldd);
        return;
    }
    dq_trace_begin(bf16 ? "cublasGemmEx" : "cublasSgemm", dq_cuda_stream(b));
    /* cuBLAS counts columns first: dst^T[n][M] = W[n][k] src^T[k][M] */
    if (bf16)
        check(b,
              blas->gemm_ex(blas->handle, OP_T, OP_N, (int)n, M, (int)k, &one, w, R_16BF, (int)k,
                            src, R_16BF, (int)k, &zero, dst, R_32F, (int)ldd, COMPUTE_32F,
                            GEMM_DEFAULT),
              "cublasGemmEx");
    else
        check(b,
              blas->sgemm(blas->handle, OP_T, OP_N, (int)n, M, (int)k, &one, w, (int)k, src, (int)k,
                          &zero, dst, (int)ldd),
              "cublasSgemm");
    dq_trace_end(dq_cuda_stream(b));
}

bool dq_cuda_gemm_square(dq_backend *b, bool int8, void *c, const void *x, const void *y, int n)
{
    const dq_cuda_blas *blas = blas_of(b);
    const float one = 1, zero = 0;
    const int32_t one_i = 1, zero_i = 0;
    if (!blas) return false;
    const int in = int8 ? R_8I : R_16BF, out = int8 ? R_32I : R_32F;
    const int compute = int8 ? COMPUTE_32I : COMPUTE_32F;
    const void *alpha = int8 ? (const void *)&one_i : &one;
    const void *beta = int8 ? (const void *)&zero_i : &zero;
    return blas->gemm_ex(blas->handle, OP_T, OP_N, n, n, n, alpha, y, in, n, x, in, n, beta, c, out,
                         n, compute, GEMM_DEFAULT) == STATUS_OK;
}

/* ---- CUDA weights ----
 * The weights that are on the device, by the address of their data on the host. */

typedef struct entry {
    const void *key; /* dq_weight.data */
    int users;
    void *data, *scale, *zero;
    dq_cuda_weight w;
} entry;

struct dq_cuda_weights {
    dq_address_list entries;
};

enum { STAGE_BYTES = 1 << 20 };

dq_cuda_weights *dq_cuda_weights_new(dq_err *err)
{
    dq_cuda_weights *all = dq_block_new(1, sizeof *all, err);
    if (all) all->entries.size = sizeof(entry);
    return all;
}

void dq_cuda_weights_free(dq_cuda_weights *all)
{
    if (!all) return;
    dq_address_list_free(&all->entries); /* device memory goes with the pool */
    dq_block_free(all);
}

static int64_t padded(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* ---- uploads */
static int stored_kind(const dq_weight *w)
{
    if (dq_weight_is_affine(w)) return DQ_STORED_PACKED;
    if (dq_weight_is_coded(w)) return DQ_STORED_F32;
    if (w->dtype == DQ_F32) return DQ_STORED_F32;
    return w->dtype == DQ_F16 ? DQ_STORED_F16 : DQ_STORED_BF16;
}

/* Turned to [groups][scale_pitch]; one scale of the whole tensor becomes one per row. */
static void put_scales(dq_backend *b, entry *e, const dq_weight *w)
{
    const dq_cuda_weight *d = &e->w;
    const size_t size = d->scale_f16 ? 2 : 4;
    const size_t bytes = (size_t)(d->groups * d->scale_pitch) * size;
    uint8_t *turned = dq_block_new(1, bytes, &b->err);
    e->scale = dq_cuda_alloc(b, bytes);
    if (turned && e->scale) {
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t g = 0; g < d->groups; g++) {
                const int64_t from = (w->scale_rows == 1 ? 0 : r) * d->groups + g;
                memcpy(turned + (size_t)(g * d->scale_pitch + r) * size,
                       (const uint8_t *)w->scale + (size_t)from * size, size);
            }
        dq_cuda_put(b, e->scale, turned, bytes);
    }
    dq_block_free(turned);
}

/* Zero points likewise, a byte each. */
static void put_zeros(dq_backend *b, entry *e, const dq_weight *w)
{
    const dq_cuda_weight *d = &e->w;
    const size_t bytes = (size_t)(d->groups * d->zero_pitch);
    uint8_t *turned = dq_block_new(1, bytes, &b->err);
    e->zero = dq_cuda_alloc(b, bytes);
    if (turned && e->zero) {
        for (int64_t r = 0; r < w->rows; r++)
            for (int64_t g = 0; g < d->groups; g++)
                turned[g * d->zero_pitch + r] = (uint8_t)dq_weight_zero(w, r, g);
        dq_cuda_put(b, e->zero, turned, bytes);
    }
    dq_block_free(turned);
}

static void put_packed(dq_backend *b, entry *e, const dq_weight *w)
{
    dq_cuda_weight *d = &e->w;
    d->bits = w->bits;
    d->group = w->group_size;
    d->groups = dq_quant_groups(w->cols, w->group_size);
    d->group_codes = padded(w->group_size, DQ_GROUP_STEP);
    d->pitch = padded((int64_t)dq_quant_row_bytes(d->groups * d->group_codes, w->bits), 16);
    d->scale_f16 = w->scale_dtype == DQ_F16;
    d->scale_pitch = padded(w->rows, 8);
    d->zero_pitch = padded(w->rows, 16);
    const bool whole = d->groups == 1 || d->group % DQ_GROUP_STEP == 0;
    const int64_t bytes = (int64_t)dq_quant_row_bytes(w->cols, w->bits);
    const int64_t stage_rows = d->pitch < STAGE_BYTES ? STAGE_BYTES / d->pitch : 1;
    const size_t spread = (size_t)(padded(d->cols, 64) + d->groups * d->group_codes);
    uint8_t *stage = dq_block_new((size_t)stage_rows, (size_t)d->pitch, &b->err);
    int8_t *codes = dq_block_new(1, spread, &b->err);
    e->data = dq_cuda_alloc(b, (size_t)(d->rows * d->pitch));
    for (int64_t r = 0; r < w->rows && b->err.code == DQ_OK; r += stage_rows) {
        const int64_t n = w->rows - r < stage_rows ? w->rows - r : stage_rows;
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *from = (const uint8_t *)w->data + (r + i) * bytes;
            uint8_t *to = stage + i * d->pitch;
            if (whole)
                memcpy(to, from, (size_t)bytes); /* the rest of the pitch stays zero */
            else {
                int8_t *wide = codes + padded(d->cols, 64);
                dq_quant_unpack_row(codes, from, d->cols, d->bits);
                memset(wide, 0, (size_t)(d->groups * d->group_codes));
                for (int64_t k = 0; k < d->cols; k++)
                    wide[k / d->group * d->group_codes + k % d->group] = codes[k];
                dq_quant_pack_row(to, wide, d->groups * d->group_codes, d->bits);
            }
        }
        dq_cuda_put(b, (uint8_t *)e->data + r * d->pitch, stage, (size_t)(n * d->pitch));
    }
    dq_block_free(codes);
    dq_block_free(stage);
    put_scales(b, e, w);
    if (w->zero) put_zeros(b, e, w);
}

/* ---- for operations */
bool dq_cuda_weight_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cuda_weights *all = dq_cuda_of(b)->weights;
    if (b->err.code != DQ_OK) return false;
    entry *known = dq_address_list_find(&all->entries, w->data);
    if (known) {
        known->users++;
        return true;
    }
    if (dq_weight_is_coded(w) && !dq_weight_is_integer(w)) {
        dq_fail(&b->err, DQ_MISMATCH,
                "%s: weights of format %s are not available on the cuda backend. Use the cpu",
                w->name ? w->name : "a weight", w->format->name);
        return false;
    }
    if (!dq_address_list_reserve(&all->entries, &b->err)) return false;
    entry e = {.key = w->data, .users = 1, .w = {.rows = w->rows, .cols = w->cols}};
    e.w.kind = stored_kind(w);
    if (e.w.kind == DQ_STORED_PACKED)
        put_packed(b, &e, w);
    else if (dq_weight_is_coded(w)) {
        /* Levels have no kernel of their own: they are uploaded as what they stand for. */
        const size_t row = (size_t)w->cols * sizeof(float);
        const int64_t fit = STAGE_BYTES / (int64_t)row, step = fit > 0 ? fit : 1;
        float *stage = dq_block_new((size_t)step, row, &b->err);
        e.data = dq_cuda_alloc(b, (size_t)w->rows * row);
        for (int64_t r = 0; r < w->rows && b->err.code == DQ_OK; r += step) {
            const int64_t n = w->rows - r < step ? w->rows - r : step;
            dq_weight_dequantize_rows(stage, w, r, r + n);
            dq_cuda_put(b, (uint8_t *)e.data + (size_t)r * row, stage, (size_t)n * row);
        }
        dq_block_free(stage);
    } else {
        const size_t size = w->dtype == DQ_F32 ? 4 : 2, bytes = (size_t)(w->rows * w->cols) * size;
        e.data = dq_cuda_alloc(b, bytes);
        if (e.data) dq_cuda_put(b, e.data, w->data, bytes);
    }
    if (b->err.code != DQ_OK) {
        dq_cuda_free(b, e.data);
        dq_cuda_free(b, e.scale);
        dq_cuda_free(b, e.zero);
        return false;
    }
    e.w.data = e.data;
    e.w.scale = e.scale;
    e.w.zero = e.zero;
    dq_address_list_add(&all->entries, &e);
    return true;
}

void dq_cuda_weight_release(dq_backend *b, const dq_weight *w)
{
    dq_cuda_weights *all = dq_cuda_of(b)->weights;
    entry *e = dq_address_list_find(&all->entries, w->data);
    if (!e || --e->users > 0) return;
    dq_cuda_free(b, e->data);
    dq_cuda_free(b, e->scale);
    dq_cuda_free(b, e->zero);
    dq_address_list_remove(&all->entries, e);
}

const dq_cuda_weight *dq_cuda_weight_of(dq_backend *b, const dq_weight *w)
{
    if (b->err.code != DQ_OK) return NULL;
    const entry *e = dq_address_list_find(&dq_cuda_of(b)->weights->entries, w->data);
    if (!e || e->w.rows != w->rows || e->w.cols != w->cols) {
        dq_fail(&b->err, DQ_BUG, "%s: is used on cuda:%d without being acquired",
                w->name ? w->name : "a weight", dq_cuda_of(b)->device);
        return NULL;
    }
    return &e->w;
}

/* ---- CUDA linear ----
 * Products with weights of any storage. Floats go to cuBLAS in tiles of a fixed number of rows;
 * 8-bit activations times packed weights are the last chapter of linear.cu. */

#ifdef DQ_SIMT /* tests see several pieces of a small matrix */
enum { WIDE_BYTES = 1 << 16, WIDE_STEP = 32 };
#else
enum { WIDE_BYTES = 64 << 20, WIDE_STEP = 128 };
#endif

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 256 == 0;
}

static bool is_whole(int kind, bool bf16)
{
    return kind == (bf16 ? DQ_STORED_BF16 : DQ_STORED_F32);
}

typedef enum way { WAY_NONE, WAY_PACKED, WAY_F32, WAY_WIDE_F32, WAY_BF16, WAY_WIDE_BF16 } way;

static way way_of(int kind, dq_num num)
{
    if (num == DQ_NUM_INT8) return kind == DQ_STORED_PACKED ? WAY_PACKED : WAY_NONE;
    if (num == DQ_NUM_BF16) return is_whole(kind, true) ? WAY_BF16 : WAY_WIDE_BF16;
    return is_whole(kind, false) ? WAY_F32 : WAY_WIDE_F32;
}

const char *dq_cuda_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num)
{
    static const char *const name[] = {NULL,           "gemm_packed",
                                       "cublasSgemm",  "widen + cublasSgemm",
                                       "cublasGemmEx", "widen + cublasGemmEx"};
    (void)b;
    return name[way_of(stored_kind(w), num)];
}

static int64_t wide_count(const dq_cuda_weight *w)
{
    const int64_t rows = WIDE_BYTES / (4 * w->cols) / WIDE_STEP * WIDE_STEP;
    return rows > WIDE_STEP ? rows : WIDE_STEP;
}

const void *dq_cuda_wide_rows(dq_backend *b, const dq_cuda_weight *w, int64_t n0, int64_t n,
                              bool bf16)
{
    const int64_t size = bf16 ? 2 : 4;
    if (is_whole(w->kind, bf16)) return (const uint8_t *)w->data + n0 * w->cols * size;
    void *to = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, (size_t)(n * w->cols * size));
    if (to && !dq_cuda_ok(b, dq_linear_widen(to, bf16, w, n0, n, dq_cuda_stream(b)), "widen"))
        return NULL;
    return to;
}

const void *dq_cuda_tile_rows(dq_backend *b, dq_mat src, int64_t m0, bool bf16)
{
    enum { M = DQ_CUDA_TILE_ROWS };
    const int64_t left = src.rows - m0, rows = left < M ? left : M;
    const float *from = src.p + m0 * src.cols;
    cudaStream_t s = dq_cuda_stream(b);
    if (!bf16 && rows == M && is_aligned(from)) return from;
    void *to = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, (size_t)(M * src.cols * (bf16 ? 2 : 4)));
    if (!to) return NULL;
    const cudaError_t e = bf16 ? dq_linear_bf16(to, from, rows * src.cols, s)
                               : cudaMemcpyAsync(to, from, (size_t)(rows * src.cols) * sizeof *from,
                                                 cudaMemcpyDeviceToDevice, s);
    return dq_cuda_ok(b, e, "a tile of rows") ? to : NULL;
}

static void multiply_packed(dq_backend *b, dq_mat dst, dq_mat src, const dq_cuda_weight *w,
                            const float *bias)
{
    cudaStream_t s = dq_cuda_stream(b);
    const size_t codes = (size_t)(src.rows * dq_linear_code_pitch(w));
    const int64_t words = w->groups * dq_linear_scale_pitch(src.rows); /* scales; as many sums */
    const size_t scales = (size_t)(w->zero ? 2 * words : words) * sizeof(float);
    int8_t *code = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_A, codes);
    float *scale = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, scales);
    if (!code || !scale) return;
    int32_t *sum = w->zero ? (int32_t *)(void *)(scale + words) : NULL;
    if (dq_cuda_ok(b, dq_linear_round(code, scale, sum, src.p, src.rows, w, s),
                   "rounding to 8 bits"))
        dq_cuda_ok(b, dq_linear_packed(dst.p, code, scale, sum, src.rows, w, bias, s),
                   "gemm_packed");
}

void dq_cuda_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                    dq_num num)
{
    const dq_cuda_weight *stored = dq_cuda_weight_of(b, w);
    if (!stored) return;
    const char *name = w->name ? w->name : "weight";
    if (src.cols != w->cols || dst.cols != w->rows || dst.rows != src.rows)
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes", name);
    else if (way_of(stored->kind, num) == WAY_NONE && dq_weight_is_coded(w))
        dq_fail(&b->err, DQ_MISMATCH, "%s: has %s, of which there are no int8 products on a GPU",
                name, w->format->note);
    else if (way_of(stored->kind, num) == WAY_NONE)
        dq_fail(&b->err, DQ_MISMATCH, "%s: is not packed, so there is no int8 product with it",
                name);
    if (src.rows == 0 || b->err.code != DQ_OK) return;
    const float *added = NULL;
    if (bias) added = dq_cuda_constant(b, bias, (size_t)w->rows * sizeof *bias);
    if (b->err.code == DQ_OK && way_of(stored->kind, num) == WAY_PACKED) {
        multiply_packed(b, dst, src, stored, added);
    } else if (b->err.code == DQ_OK) {
        const bool bf16 = num == DQ_NUM_BF16;
        const int64_t step = is_whole(stored->kind, bf16) ? stored->rows : wide_count(stored);
        for (int64_t n0 = 0; n0 < stored->rows && b->err.code == DQ_OK; n0 += step) {
            const int64_t n = stored->rows - n0 < step ? stored->rows - n0 : step;
            const void *wide = dq_cuda_wide_rows(b, stored, n0, n, bf16);
            for (int64_t m0 = 0; m0 < dst.rows && b->err.code == DQ_OK; m0 += DQ_CUDA_TILE_ROWS) {
                enum { M = DQ_CUDA_TILE_ROWS };
                const int64_t left = dst.rows - m0, rows = left < M ? left : M;
                const size_t pitch = (size_t)dst.cols * sizeof *dst.p;
                float *to = dst.p + m0 * dst.cols;
                /* the same distance between rows in scratch: see DQ_CUDA_TILE_ROWS */
                const bool direct = rows == M && is_aligned(to);
                float *tile = direct ? to : dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, M * pitch);
                const void *from = dq_cuda_tile_rows(b, src, m0, bf16);
                if (!tile || !from) continue;
                dq_cuda_gemm(b, bf16, tile + n0, dst.cols, from, wide, n, src.cols);
                if (direct || b->err.code != DQ_OK) continue;
                dq_cuda_ok(b,
                           cudaMemcpy2DAsync(to + n0, pitch, tile + n0, pitch,
                                             (size_t)n * sizeof *to, (size_t)rows,
                                             cudaMemcpyDeviceToDevice, dq_cuda_stream(b)),
                           "rows of a product");
            }
        }
        if (added && b->err.code == DQ_OK)
            dq_cuda_ok(b, dq_linear_bias(dst.p, added, dst.rows, dst.cols, dq_cuda_stream(b)),
                       "bias");
    }
}
