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
enum { STATUS_OK = 0, STATUS_NO_MEMORY = 3, STATUS_INVALID = 7, STATUS_NOT_SUPPORTED = 15 };
/* Attributes of cuBLASLt. */
enum { LAYOUT_COLS = 3, DESC_OP_A = 3, PREF_REDUCTIONS = 3, PREF_ALIGNMENT_A = 5 };

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

/* An algorithm of cuBLASLt: 64 bytes, which only it reads. */
typedef struct algorithm {
    uint64_t data[8];
} algorithm;

typedef struct found {
    algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
} found;

typedef int lt_destroy_fn(void *of);
typedef int lt_set_fn(void *of, int attribute, const void *value, size_t bytes);
typedef int lt_desc_fn(void **desc, int compute, int scale_type);
typedef int lt_layout_fn(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
typedef int lt_preference_fn(void **preference);
typedef int lt_heuristic_fn(void *handle, void *desc, void *a, void *b, void *c, void *d,
                            void *preference, int requested, found *results, int *n);
typedef int lt_matmul_fn(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                         const void *b, void *b_layout, const void *beta, const void *c,
                         void *c_layout, void *d, void *d_layout, const algorithm *with,
                         void *workspace, size_t workspace_bytes, cudaStream_t s);

/* What cuBLASLt adds: libcublas needs its library, so that its functions are found through it. */
typedef struct lt_functions {
    lt_desc_fn *desc;
    lt_layout_fn *layout;
    lt_preference_fn *preference;
    lt_set_fn *set_desc, *set_layout, *set_preference;
    lt_destroy_fn *desc_free, *layout_free, *preference_free;
    lt_heuristic_fn *heuristic;
    lt_matmul_fn *matmul;
    const char *lack; /* the first that is not there; NULL: none */
} lt_functions;

typedef struct shape {
    int64_t n, k, ldd;
    bool bf16;
} shape;

/* How products of a shape are done: one algorithm for any number of rows. */
typedef struct plan plan;
struct plan {
    plan *next;
    shape shape;
    void *w, *src, *dst; /* layouts; those of src and dst get their rows with each product */
    algorithm algorithm;
    const char *lack; /* why cuBLASLt does not do them; NULL: it does */
};

struct dq_cuda_blas {
    void *handle;
    create_fn *create;
    destroy_fn *destroy;
    set_stream_fn *set_stream;
    set_math_fn *set_math;
    sgemm_fn *sgemm;
    gemm_ex_fn *gemm_ex;
    lt_functions lt;
    void *desc; /* of all its products */
    plan *plans;
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

static void bind_lt(lt_functions *lt, void *library)
{
    enum { N = 11 };
    static const char *const name[N] = {"cublasLtMatmulDescCreate",
                                        "cublasLtMatrixLayoutCreate",
                                        "cublasLtMatmulPreferenceCreate",
                                        "cublasLtMatmulDescSetAttribute",
                                        "cublasLtMatrixLayoutSetAttribute",
                                        "cublasLtMatmulPreferenceSetAttribute",
                                        "cublasLtMatmulDescDestroy",
                                        "cublasLtMatrixLayoutDestroy",
                                        "cublasLtMatmulPreferenceDestroy",
                                        "cublasLtMatmulAlgoGetHeuristic",
                                        "cublasLtMatmul"};
    dq_os_function *f[N];
    lt->lack = NULL;
    for (int i = N - 1; i >= 0; i--) {
        f[i] = function(library, name[i]);
        if (!f[i]) lt->lack = name[i];
    }
    lt->desc = (lt_desc_fn *)f[0];
    lt->layout = (lt_layout_fn *)f[1];
    lt->preference = (lt_preference_fn *)f[2];
    lt->set_desc = (lt_set_fn *)f[3];
    lt->set_layout = (lt_set_fn *)f[4];
    lt->set_preference = (lt_set_fn *)f[5];
    lt->desc_free = (lt_destroy_fn *)f[6];
    lt->layout_free = (lt_destroy_fn *)f[7];
    lt->preference_free = (lt_destroy_fn *)f[8];
    lt->heuristic = (lt_heuristic_fn *)f[9];
    lt->matmul = (lt_matmul_fn *)f[10];
}

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
    bind_lt(&k->lt, f->library);
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

/* A cuBLAS handle is one of cuBLASLt too. */
static bool begin_lt(dq_backend *b, dq_cuda_blas *k)
{
    const int transposed = OP_T;
    return k->lt.lack ||
           (check(b, k->lt.desc(&k->desc, COMPUTE_32F, R_32F), "cublasLtMatmulDescCreate") &&
            check(b, k->lt.set_desc(k->desc, DESC_OP_A, &transposed, sizeof transposed),
                  "cublasLtMatmulDescSetAttribute"));
}

static dq_cuda_blas *blas_of(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    if (c->blas || b->err.code != DQ_OK) return c->blas;
    dq_cuda_blas *k = dq_block_new(1, sizeof *k, &b->err);
    if (!k) return NULL;
    if (load(k, &b->err) == DQ_OK && check(b, k->create(&k->handle), "cublasCreate") &&
        check(b, k->set_stream(k->handle, c->stream), "cublasSetStream") &&
        check(b, k->set_math(k->handle, DEFAULT_MATH | NO_REDUCED_SUMS), "cublasSetMathMode") &&
        begin_lt(b, k))
        c->blas = k;
    else
        dq_cuda_blas_free(k);
    return c->blas;
}

static void free_plan(const dq_cuda_blas *k, plan *p)
{
    void *const layout[] = {p->w, p->src, p->dst};
    for (int i = 0; i < 3; i++)
        if (layout[i]) k->lt.layout_free(layout[i]);
    dq_block_free(p);
}

void dq_cuda_blas_free(dq_cuda_blas *k)
{
    if (!k) return;
    for (plan *p = k->plans, *next; p; p = next) {
        next = p->next;
        free_plan(k, p);
    }
    if (k->desc) k->lt.desc_free(k->desc);
    if (k->handle) k->destroy(k->handle);
    dq_block_free(k);
}

/* ---- dense products
 * cuBLAS counts columns first: dst^T[n][m] = W[n][k] src^T[k][m]. It picks a kernel, and so the
 * order of sums, by a product's shape and alignment. So that a row's result does not depend on the
 * rows beside it, cuBLASLt is asked once a shape, for PLAN_ROWS rows, and keeps that algorithm. A
 * shape whose rows differ all the same runs in tiles of TILE_ROWS rows. */

#ifdef DQ_SIMT /* tests see several pieces of a small matrix */
enum { TILE_ROWS = 32, WIDE_BYTES = 1 << 16, WIDE_STEP = 32, FEW_ROWS = 9, PLAN_ROWS = 40 };
#else
enum { TILE_ROWS = 256, WIDE_BYTES = 64 << 20, WIDE_STEP = 128, FEW_ROWS = 300, PLAN_ROWS = 4096 };
#endif

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % 256 == 0;
}

static size_t size_of(bool bf16)
{
    return bf16 ? 2 : 4;
}

/* Of rows without gaps in a block of the pool. */
static uint32_t alignment(int64_t cols, size_t size)
{
    uint32_t to = 16;
    while ((size_t)cols * size % to != 0) to /= 2;
    return to;
}

static bool choose(const dq_cuda_blas *blas, plan *p)
{
    const lt_functions *lt = &blas->lt;
    const uint64_t n = (uint64_t)p->shape.n, k = (uint64_t)p->shape.k;
    const int type = p->shape.bf16 ? R_16BF : R_32F;
    const uint32_t in = alignment(p->shape.k, size_of(p->shape.bf16)),
                   out = alignment(p->shape.ldd, sizeof(float)), in_one_sequence = 0;
    const uint32_t of[] = {in, in, out, out};
    void *preference = NULL;
    found best = {.status = STATUS_NOT_SUPPORTED};
    int n_found = 0;
    bool ok = lt->layout(&p->w, type, k, n, p->shape.k) == STATUS_OK &&
              lt->layout(&p->src, type, k, PLAN_ROWS, p->shape.k) == STATUS_OK &&
              lt->layout(&p->dst, R_32F, n, PLAN_ROWS, p->shape.ldd) == STATUS_OK &&
              lt->preference(&preference) == STATUS_OK &&
              lt->set_preference(preference, PREF_REDUCTIONS, &in_one_sequence,
                                 sizeof in_one_sequence) == STATUS_OK;
    for (int i = 0; i < 4 && ok; i++)
        ok =
            lt->set_preference(preference, PREF_ALIGNMENT_A + i, &of[i], sizeof of[i]) == STATUS_OK;
    ok = ok && lt->heuristic(blas->handle, blas->desc, p->w, p->src, p->dst, p->dst, preference, 1,
                             &best, &n_found) == STATUS_OK;
    if (preference) lt->preference_free(preference);
    p->algorithm = best.algorithm;
    return ok && n_found == 1 && best.status == STATUS_OK;
}

static bool refused(int status)
{
    return status == STATUS_NOT_SUPPORTED || status == STATUS_INVALID;
}

/* A number of rows that the algorithm refuses is taken in halves. */
static int multiply_whole(dq_backend *b, const plan *p, float *dst, const void *src, const void *w,
                          int64_t m)
{
    const dq_cuda_blas *k = dq_cuda_of(b)->blas;
    const cudaStream_t s = dq_cuda_stream(b);
    const float one = 1, zero = 0;
    int status = STATUS_OK;
    for (int64_t m0 = 0, part = m; m0 < m && status == STATUS_OK;) {
        const uint64_t rows = (uint64_t)(m - m0 < part ? m - m0 : part);
        float *to = dst + m0 * p->shape.ldd;
        const uint8_t *from =
            (const uint8_t *)src + (size_t)(m0 * p->shape.k) * size_of(p->shape.bf16);
        k->lt.set_layout(p->src, LAYOUT_COLS, &rows, sizeof rows);
        k->lt.set_layout(p->dst, LAYOUT_COLS, &rows, sizeof rows);
        status = k->lt.matmul(k->handle, k->desc, &one, w, p->w, from, p->src, &zero, to, p->dst,
                              to, p->dst, &p->algorithm, NULL, 0, s);
        if (status == STATUS_OK) {
            m0 += (int64_t)rows;
        } else if (refused(status) && rows > 1) {
            part = (int64_t)rows / 2;
            status = STATUS_OK;
        }
    }
    return status;
}

/* Of both signs, 2^-7 to 2, as bf16 and, two at a time, as f32: their sums are not exact. */
static uint16_t *random_numbers(size_t bytes, dq_err *err)
{
    uint16_t *x = dq_block_new(1, bytes, err);
    uint32_t state = 9;
    for (size_t i = 0; x && i < bytes / sizeof *x; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (uint16_t)(0x3c00 | (state >> 16 & 0x83ff));
    }
    return x;
}

/* Multiplies the same row alone and among others. Waits for the device. */
static void try_rows(dq_backend *b, plan *p, const void *w)
{
    const shape *of = &p->shape;
    const size_t row = (size_t)of->k * size_of(of->bf16), pitch = (size_t)of->ldd * sizeof(float);
    const size_t fit = WIDE_BYTES / (row > pitch ? row : pitch);
    const size_t many = fit > PLAN_ROWS ? PLAN_ROWS : fit > FEW_ROWS ? fit : FEW_ROWS;
    const int64_t rows[] = {1, FEW_ROWS, (int64_t)many};
    uint8_t *src = dq_cuda_alloc(b, many * row);
    float *alone = dq_cuda_alloc(b, (1 + many) * pitch), *all = alone + of->ldd;
    int32_t *differs = dq_cuda_flags(b, 1);
    uint16_t *host = random_numbers(row, &b->err);
    if (b->err.code == DQ_OK) dq_cuda_put(b, src, host, row);
    for (size_t at = 1, n; at < many && b->err.code == DQ_OK; at += n) {
        n = at < many - at ? at : many - at;
        dq_cuda_ok(b,
                   cudaMemcpyAsync(src + at * row, src, n * row, cudaMemcpyDeviceToDevice,
                                   dq_cuda_stream(b)),
                   "rows to try");
    }
    for (int i = 0; i < 3 && b->err.code == DQ_OK && !p->lack; i++) {
        const int status = multiply_whole(b, p, i ? all : alone, src, w, rows[i]);
        if (refused(status))
            p->lack = "cublasLtMatmul refuses it";
        else if (check(b, status, "cublasLtMatmul") && i)
            dq_cuda_ok(
                b,
                dq_linear_differ(differs, all, of->ldd, alone, rows[i], of->n, dq_cuda_stream(b)),
                "rows to try");
    }
    if (dq_cuda_wait(b, "rows to try") && *differs)
        p->lack = "a row's bits depend on the rows beside it";
    dq_block_free(host);
    dq_cuda_free(b, alone);
    dq_cuda_free(b, src);
}

/* NULL: sticky error. */
static const plan *plan_of(dq_backend *b, dq_cuda_blas *k, shape of, const void *w)
{
    for (const plan *p = k->plans; p; p = p->next)
        if (p->shape.n == of.n && p->shape.k == of.k && p->shape.ldd == of.ldd &&
            p->shape.bf16 == of.bf16)
            return p;
    plan *p = dq_block_new(1, sizeof *p, &b->err);
    if (!p) return NULL;
    *p = (plan){.next = k->plans, .shape = of};
    if (choose(k, p))
        try_rows(b, p, w);
    else
        p->lack = "cuBLASLt has no algorithm for it";
    if (b->err.code != DQ_OK) {
        free_plan(k, p);
        return NULL;
    }
    return k->plans = p;
}

/* dst and src are aligned to 256 bytes, which counts for the choice of a kernel. */
static void multiply_tile(dq_backend *b, const shape *of, float *dst, const void *src,
                          const void *w)
{
    const dq_cuda_blas *k = dq_cuda_of(b)->blas;
    const float one = 1, zero = 0;
    const char *name = of->bf16 ? "cublasGemmEx" : "cublasSgemm";
    const int n = (int)of->n, depth = (int)of->k, ldd = (int)of->ldd;
    dq_trace_begin(name, dq_cuda_stream(b));
    check(b,
          of->bf16
              ? k->gemm_ex(k->handle, OP_T, OP_N, n, TILE_ROWS, depth, &one, w, R_16BF, depth, src,
                           R_16BF, depth, &zero, dst, R_32F, ldd, COMPUTE_32F, GEMM_DEFAULT)
              : k->sgemm(k->handle, OP_T, OP_N, n, TILE_ROWS, depth, &one, w, depth, src, depth,
                         &zero, dst, ldd),
          name);
    dq_trace_end(dq_cuda_stream(b));
}

static void multiply_tiles(dq_backend *b, const shape *of, float *dst, const void *src,
                           const void *w, int64_t m)
{
    const size_t row = (size_t)of->k * size_of(of->bf16), pitch = (size_t)of->ldd * sizeof(float);
    for (int64_t m0 = 0; m0 < m && b->err.code == DQ_OK; m0 += TILE_ROWS) {
        const size_t rows = (size_t)(m - m0 < TILE_ROWS ? m - m0 : TILE_ROWS);
        const uint8_t *from = (const uint8_t *)src + (size_t)m0 * row;
        float *to = dst + m0 * of->ldd, *tile = to;
        const cudaStream_t s = dq_cuda_stream(b);
        if (rows < TILE_ROWS || !is_aligned(from) || !is_aligned(to)) {
            tile = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_C, TILE_ROWS * (pitch + row));
            if (!tile) return;
            float *copy = tile + TILE_ROWS * of->ldd; /* rows after the last hold anything */
            if (!dq_cuda_ok(b, cudaMemcpyAsync(copy, from, rows * row, cudaMemcpyDeviceToDevice, s),
                            "rows of a tile"))
                return;
            from = (const uint8_t *)copy;
        }
        multiply_tile(b, of, tile, from, w);
        if (tile != to && b->err.code == DQ_OK)
            dq_cuda_ok(b,
                       cudaMemcpy2DAsync(to, pitch, tile, pitch, (size_t)of->n * sizeof *to, rows,
                                         cudaMemcpyDeviceToDevice, s),
                       "rows of a product");
    }
}

void dq_cuda_gemm(dq_backend *b, bool bf16, float *dst, int64_t ldd, const void *src, const void *w,
                  int64_t m, int64_t n, int64_t k)
{
    dq_cuda_blas *blas = blas_of(b);
    const shape of = {n, k, ldd, bf16};
    if (!blas || m == 0 || n == 0) return;
    if (ldd > INT32_MAX || n > INT32_MAX || k > INT32_MAX) {
        dq_fail(&b->err, DQ_MISMATCH, "a product of %lld columns is too large for cuBLAS",
                (long long)ldd);
        return;
    }
    const plan *p = blas->lt.lack ? NULL : plan_of(b, blas, of, w);
    if (b->err.code != DQ_OK) return;
    if (!p || p->lack) {
        multiply_tiles(b, &of, dst, src, w, m);
        return;
    }
    dq_trace_begin("cublasLtMatmul", dq_cuda_stream(b));
    check(b, multiply_whole(b, p, dst, src, w, m), "cublasLtMatmul");
    dq_trace_end(dq_cuda_stream(b));
}

/* ---- about
 * For `dq doctor`. */

/* Shapes of layers of models of 1B to 8B. */
#ifdef DQ_SIMT
static const int tried[][2] = {{24, 32}, {40, 64}};
#else
static const int tried[][2] = {
    {2048, 2048}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {4096, 14336}};
#endif
enum { N_TRIED = sizeof tried / sizeof *tried };

static void *random_weights(dq_backend *b)
{
    enum { PIECE = 1 << 20 };
    const size_t bytes = (size_t)tried[N_TRIED - 1][0] * (size_t)tried[N_TRIED - 1][1] * 4;
    uint16_t *host = random_numbers(PIECE, &b->err);
    uint8_t *w = dq_cuda_alloc(b, bytes);
    for (size_t at = 0, n; at < bytes && b->err.code == DQ_OK; at += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        dq_cuda_put(b, w + at, host, n);
    }
    dq_block_free(host);
    return w;
}

static dq_status try_shapes(const char **products, dq_backend *b, dq_arena *a, dq_err *err)
{
    const char *fell = "";
    int n = 0;
    void *w = random_weights(b);
    dq_cuda_blas *k = blas_of(b);
    for (int i = 0; i < 2 * N_TRIED && b->err.code == DQ_OK; i++) {
        const int *to = tried[i % N_TRIED];
        const bool bf16 = i >= N_TRIED;
        const plan *p = plan_of(b, k, (shape){to[0], to[1], to[0], bf16}, w);
        if (!p || !p->lack) continue;
        n++;
        fell = dq_textf(a, &b->err, "%s; %d x %d in %s runs in tiles of %d rows: %s", fell, to[0],
                        to[1], bf16 ? "bf16" : "f32", TILE_ROWS, p->lack);
    }
    dq_cuda_free(b, w);
    DQ_TRY(dq_backend_sync(b, err));
    *products = dq_textf(a, err,
                         "cublasLtMatmul; of %d shapes tried, %d give a row the same bits alone "
                         "and among others%s",
                         2 * N_TRIED, 2 * N_TRIED - n, fell);
    return err->code;
}

dq_status dq_cuda_blas_about(dq_blas_about *out, dq_backend *b, dq_arena *a, dq_err *err)
{
    dq_cuda_blas unused;
    dq_cuda_blas_file f;
    *out = (dq_blas_about){0};
    DQ_TRY(open_library(&f, a, err));
    DQ_TRY(bind(&unused, &f, err));
    out->version = version(f.library, a, err);
    out->path = f.path;
    out->products = "cublasLtMatmul";
    if (unused.lt.lack)
        out->products = dq_textf(a, err,
                                 "cublasSgemm and cublasGemmEx in tiles of %d rows, as %s is "
                                 "missing",
                                 TILE_ROWS, unused.lt.lack);
    else if (b)
        DQ_TRY(try_shapes(&out->products, b, a, err));
    return err->code;
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
 * Products with weights of any storage. Floats go to cuBLAS;
 * 8-bit activations times packed weights are the last chapter of linear.cu. */

static bool is_whole(int kind, bool bf16)
{
    return kind == (bf16 ? DQ_STORED_BF16 : DQ_STORED_F32);
}

const char *dq_cuda_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num)
{
    const int kind = stored_kind(w);
    (void)b;
    if (num == DQ_NUM_INT8) return kind == DQ_STORED_PACKED ? "gemm_packed" : NULL;
    return is_whole(kind, num == DQ_NUM_BF16) ? "cublas" : "widen + cublas";
}

/* Rows that scratch holds at a time. */
static int64_t count_in(int64_t cols, bool bf16)
{
    const int64_t rows = WIDE_BYTES / ((int64_t)size_of(bf16) * cols) / WIDE_STEP * WIDE_STEP;
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

/* Rows m0 .. m0 + m of src in a product's type, in place or in scratch B. */
static const void *rows_of(dq_backend *b, dq_mat src, int64_t m0, int64_t m, bool bf16)
{
    const float *from = src.p + m0 * src.cols;
    if (!bf16) return from;
    void *to = dq_cuda_scratch(b, DQ_CUDA_SCRATCH_B, (size_t)(m * src.cols) * 2);
    if (to &&
        !dq_cuda_ok(b, dq_linear_bf16(to, from, m * src.cols, dq_cuda_stream(b)), "rows in bf16"))
        return NULL;
    return to;
}

static void multiply_floats(dq_backend *b, dq_mat dst, dq_mat src, const dq_cuda_weight *w,
                            bool bf16)
{
    const int64_t step = is_whole(w->kind, bf16) ? w->rows : count_in(w->cols, bf16);
    const int64_t part = bf16 ? count_in(src.cols, bf16) : src.rows;
    for (int64_t m0 = 0; m0 < src.rows && b->err.code == DQ_OK; m0 += part) {
        const int64_t m = src.rows - m0 < part ? src.rows - m0 : part;
        const void *from = rows_of(b, src, m0, m, bf16);
        for (int64_t n0 = 0; from && n0 < w->rows && b->err.code == DQ_OK; n0 += step) {
            const int64_t n = w->rows - n0 < step ? w->rows - n0 : step;
            const void *wide = dq_cuda_wide_rows(b, w, n0, n, bf16);
            if (wide)
                dq_cuda_gemm(b, bf16, dst.p + m0 * dst.cols + n0, dst.cols, from, wide, m, n,
                             src.cols);
        }
    }
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
    const char *name = w->name ? w->name : "weight", *kernel = dq_cuda_matmul_kernel(b, w, num);
    if (src.cols != w->cols || dst.cols != w->rows || dst.rows != src.rows)
        dq_fail(&b->err, DQ_BUG, "%s: product of unfitting shapes", name);
    else if (!kernel && dq_weight_is_coded(w))
        dq_fail(&b->err, DQ_MISMATCH, "%s: has %s, of which there are no int8 products on a GPU",
                name, w->format->note);
    else if (!kernel)
        dq_fail(&b->err, DQ_MISMATCH, "%s: is not packed, so there is no int8 product with it",
                name);
    if (src.rows == 0 || b->err.code != DQ_OK) return;
    const float *added = NULL;
    if (bias) added = dq_cuda_constant(b, bias, (size_t)w->rows * sizeof *bias);
    if (b->err.code == DQ_OK && num == DQ_NUM_INT8) {
        multiply_packed(b, dst, src, stored, added);
    } else if (b->err.code == DQ_OK) {
        multiply_floats(b, dst, src, stored, num == DQ_NUM_BF16);
        if (added && b->err.code == DQ_OK)
            dq_cuda_ok(b, dq_linear_bias(dst.p, added, dst.rows, dst.cols, dq_cuda_stream(b)),
                       "bias");
    }
}
