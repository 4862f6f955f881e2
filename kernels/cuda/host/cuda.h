/* The CUDA backend: opening, memory, products, attention, the cache.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_H
#define DQ_CUDA_H

#include "base/base.h"
#include "engine/backend.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/paged/kv_pages.h"

/* ---- CUDA open ----
 * The functions by which the rest of dq reaches the CUDA backend; needs no CUDA header. */

/* DQ_RESOURCE names a missing driver, an old one, or a device that does not exist. Backends of
 * several devices may not be open at a time. */
dq_status dq_cuda_open(dq_backend *b, int device, dq_err *err);
/* For the nth process of a machine: each takes the next device, and after the last the first. */
dq_status dq_cuda_open_nth(dq_backend *b, int nth, dq_err *err);
/* cuda_linear.c: see dq_backend_blas. */
dq_status dq_cuda_blas_about(dq_blas_about *out, dq_backend *b, dq_arena *a, dq_err *err);

/* ---- CUDA ----
 * The state of the CUDA backend and what its files share. Private to kernels/cuda.
 *
 * `device/NAME.cu` holds kernels and the C functions that launch them (launch.h), which know base
 * types alone, so that they also compile for the host and are tested alone; `host/cuda_NAME.c`
 * makes operations of backend.h out of them. */

/* Named device scratch: two operations that use one slot are ordered by the stream. */
enum {
    DQ_CUDA_SCRATCH_A, /* the largest buffer of an operation */
    DQ_CUDA_SCRATCH_B,
    DQ_CUDA_SCRATCH_C,
    DQ_CUDA_SCRATCH_BATCH, /* what a batch looks like: rows, pages, visible keys */
    DQ_CUDA_SCRATCH_SPANS, /* masses of rows, till they are on their way to the host */
    DQ_CUDA_SCRATCH_OPERANDS,
    DQ_CUDA_SCRATCH_SHARES,
    DQ_CUDA_SCRATCH_ROWS, /* maxima by rows */
    DQ_CUDA_N_SCRATCH
};

typedef struct dq_cuda_blas dq_cuda_blas;         /* cuda_linear.c */
typedef struct dq_cuda_pool dq_cuda_pool;         /* cuda.c */
typedef struct dq_cuda_transfer dq_cuda_transfer; /* cuda.c */
typedef struct dq_cuda_weights dq_cuda_weights;   /* cuda_linear.c */

typedef struct dq_cuda {
    int device;
    cudaStream_t stream; /* all operations run on it, in the order of their calls */
    int n_sm;
    int cc;               /* compute capability, 10 * major + minor */
    size_t smem_optin;    /* shared memory that a block may ask for */
    size_t total_bytes;   /* of device memory */
    size_t strip_bytes;   /* of it that strips of one launch may take, */
    size_t operand_bytes; /* and operands, but for those of a single list */
    dq_cuda_pool *pool;
    dq_cuda_transfer *transfer;
    dq_cuda_blas *blas; /* NULL until first used */
    dq_cuda_weights *weights;
    const dq_kv *viewed; /* whose appended rows the operands in scratch are for; NULL: none */
    void *scratch[DQ_CUDA_N_SCRATCH];
    size_t scratch_bytes[DQ_CUDA_N_SCRATCH];
} dq_cuda;

static inline dq_cuda *dq_cuda_of(const dq_backend *b)
{
    return b->state;
}

/* Where work is put: asked for at each launch, as what was uploaded before is on its way then. */
cudaStream_t dq_cuda_stream(dq_backend *b);

/* True for cudaSuccess; else sets the sticky error: DQ_RESOURCE for memory, otherwise DQ_BUG. */
bool dq_cuda_ok(dq_backend *b, cudaError_t e, const char *what);
/* The text for a device that cudaGetDeviceCount does not give: versions as CUDA numbers them. */
dq_status dq_cuda_refuse(cudaError_t e, int driver, int runtime, dq_err *err);

/* 256-byte aligned, contents undefined, NULL with the sticky error set; freed blocks are reused in
 * stream order and returned to the driver when memory is short or at close. */
void *dq_cuda_alloc(dq_backend *b, size_t bytes);
/* n of them at once, or none and false; p[n], NULL before, holds no block then. */
bool dq_cuda_alloc_blocks(dq_backend *b, void **p, int64_t n, int64_t bytes);
/* Sets the sticky error; bytes 0: as many as `what` wanted, which CUDA does not say. */
void dq_cuda_no_memory(dq_backend *b, size_t bytes, const char *what);
void dq_cuda_free(dq_backend *b, void *p); /* NULL allowed; after an error too */
/* At least `bytes` of scratch, growing; what it held is lost. NULL with the sticky error set. */
void *dq_cuda_scratch(dq_backend *b, int slot, size_t bytes);

void dq_cuda_put(dq_backend *b, void *dst, const void *host, size_t bytes); /* as backend.h says */
void dq_cuda_get(dq_backend *b, void *host, const void *src, size_t bytes);
/* host[bytes] on the device, for operations that are launched before the next
 * dq_cuda_upload_end, in a stream that is asked for after this; host may change at once. What is
 * uploaded between two launches is one copy. NULL with the sticky error set (bytes 0: a valid
 * pointer). */
void *dq_cuda_upload(dq_backend *b, const void *host, size_t bytes);
/* Every operation that uploads calls it after its launches. */
void dq_cuda_upload_end(dq_backend *b);
/* host[bytes], which seldom changes, on the device: copied when it is new or has changed. NULL
 * with the sticky error set. */
const void *dq_cuda_constant(dq_backend *b, const void *host, size_t bytes);
/* Zeros of the host's that kernels write and the host reads once it has waited: good until the
 * next call. NULL with the sticky error set. */
int32_t *dq_cuda_flags(dq_backend *b, size_t n);
/* A number that stays the host's: where attention finds a query, key or value that f16 does not
 * hold, it becomes 1, and the next wait fails. NULL with the sticky error set. */
int32_t *dq_cuda_range_flag(dq_backend *b);
/* Waits for the device, but leaves what was downloaded. False with the sticky error set. */
bool dq_cuda_wait(dq_backend *b, const char *what);
/* At the next sync or get: take(arg, data, bytes) on the host, in the order of the calls, with
 * what src holds after the operations launched so far; src may be reused at once. take NULL:
 * data is copied to arg. */
typedef void dq_cuda_take(void *arg, const void *data, size_t bytes);
void dq_cuda_download(dq_backend *b, const void *src, size_t bytes, dq_cuda_take *take, void *arg);
/* Host memory for `arg` of take, freed after it or by a get. NULL with the sticky error set. */
void *dq_cuda_note(dq_backend *b, size_t bytes);

/* ---- cuda_linear.c: weights on the device, shared by all that acquired them. */
dq_cuda_weights *dq_cuda_weights_new(dq_err *err);
void dq_cuda_weights_free(dq_cuda_weights *all);                /* NULL allowed */
bool dq_cuda_weight_acquire(dq_backend *b, const dq_weight *w); /* as backend.h says */
void dq_cuda_weight_release(dq_backend *b, const dq_weight *w);
/* Of a weight that is acquired, valid until another is. NULL with the sticky error set. */
const dq_cuda_weight *dq_cuda_weight_of(dq_backend *b, const dq_weight *w);

/* ---- CUDA KV ----
 * The KV cache of the CUDA backend and the operations that read it. Private to kernels/cuda. */

/* ---- Operations of backend.h; those not named here are dq_kv_pages_*. */
dq_kv *dq_cuda_kv_new(dq_backend *b, const dq_head_order *map, int n_layers,
                      const dq_kv_spec *spec);
void dq_cuda_kv_free(dq_backend *b, dq_kv *kv); /* NULL allowed */
/* cuda_kv.c */
void dq_cuda_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t t, double *sum);
void dq_cuda_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                            int32_t t, double *cosine);
void dq_cuda_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                              int32_t t, const dq_rope *rope, double *leverage);
void dq_cuda_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                     const dq_rope *rope, float *row);
void dq_cuda_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args);
void dq_cuda_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q);
void dq_cuda_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args);
bool dq_cuda_keys_in_int8(const dq_backend *b, const dq_kv_spec *kv, int head_dim);
const char *dq_cuda_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, int head_dim,
                                  dq_math math);
void dq_cuda_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                          int32_t seq_base);
void dq_cuda_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                     int32_t seq_base);

/* ---- What kernels want to know of a cache. */
/* Without dither, which its values must not be read with. */
dq_page dq_cuda_page(const dq_kv *kv, const dq_kv_page *p);
void dq_cuda_forms(dq_page_form form[2], const dq_kv *kv);

/* Which heads belong to which group: the same tables on the host and on the device, made with
 * the cache. */
typedef struct dq_cuda_heads {
    uint8_t *host, *device;
    const int32_t *q_first,
        *o_first; /* [n_groups + 1] on the host: first query and output head of a group */
    int32_t max_q, max_out, max_kv, max_pairs; /* of the largest group */
    int32_t head_keys; /* different heads of keys that an output head reads, at most */
} dq_cuda_heads;

const dq_cuda_heads *dq_cuda_heads_of(const dq_kv *kv);
/* Where the device has what the host has at p, a pointer into its tables. */
const void *dq_cuda_heads_at(const dq_cuda_heads *h, const void *p);
/* Records of pages, which stay on the device and are patched where pages have changed. An
 * operation that reads pages begins, asks for each list once, and sends. False with the sticky
 * error set. */
bool dq_cuda_records_begin(dq_backend *b, const dq_kv *kv);
/* *first: of the list's first page in the table. */
bool dq_cuda_records_of(dq_backend *b, const dq_kv *kv, dq_kv_list *list, int64_t *first);
bool dq_cuda_records_send(dq_backend *b, const dq_kv *kv);
/* The table, after all lists have been asked for. */
const dq_page *dq_cuda_records(const dq_kv *kv);

/* Operands that kv_append left for its rows, if this batch is those: [n_seq][n_groups], of lists
 * with rows. Whoever unfolds what is missing of a list sets its `end` to 0. NULL: none. */
dq_unfold_list *dq_cuda_views_of(dq_backend *b, const dq_kv *kv, int layer, const dq_batch *batch);

/* ---- CUDA units ----
 * A call of attention as units of rows (launch.h), with everything about them that kernels
 * read, cut into launches whose strips fit in memory. Private to kernels/cuda. */

/* Units stand by sequence, KV head group and position: those of one list follow each other. */
typedef struct dq_cuda_units {
    dq_attention_units dev;  /* for kernels, but for what a launch fills in */
    dq_attention_unit *unit; /* [n] on the host */
    int n, next;             /* units; the first one that has not been launched */
    int64_t max_strips, max_records, max_factors; /* of any launch */
    const int32_t *pos;                           /* [n_rows] on the device */
} dq_cuda_units;

/* What a call needs beside the strips of query heads. */
typedef struct dq_cuda_units_request {
    bool strips;   /* of all units. Without any: one launch for as many units as a grid takes */
    bool counted;  /* strips of units with rows that spans count */
    bool operands; /* launches of lists whose operands fit in memory */
    bool edges;
    bool places; /* positions of rows in `pos`; of keys as edges */
} dq_cuda_units_request;

/* Whether attention by tensor cores uses what compute capability 9.0 alone has, for heads of up to
 * 128 channels; and whether it multiplies codes of keys: of a cache of int8 arithmetic, with 8 or 6
 * bits per token. */
bool dq_cuda_on_hopper(const dq_backend *b, int head_dim);
bool dq_cuda_multiplies_codes(const dq_backend *b, const dq_kv *kv);

/* dq_cuda_units_end ends it and the operation's uploads; after false there is nothing to end. */
bool dq_cuda_units_begin(dq_backend *b, dq_cuda_units *u, const dq_attend_args *args,
                         dq_cuda_units_request request);
void dq_cuda_units_end(dq_backend *b, dq_cuda_units *u);
/* Scratch for strips (A, `after` bytes more after them at *more), sums and factors (B). */
bool dq_cuda_units_scratch(dq_backend *b, dq_cuda_units *u, size_t after, void **more);
/* The next launch; false after the last one. first: index of its first unit. */
bool dq_cuda_units_next(dq_cuda_units *u, dq_attention_units *launch, int *first);

/* ---- CUDA ops ----
 * The operations of the CUDA backend, for its table; backend.h says what they do. */

/* cuda_attention.c */
void dq_cuda_embed(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids,
                   float scale);
void dq_cuda_first_bad_row(dq_backend *b, int64_t *row, dq_mat x);
void dq_cuda_rms_norm(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps);
void dq_cuda_rope_table(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope);
void dq_cuda_rope(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order);
void dq_cuda_ffn_act(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param);
void dq_cuda_sigmoid(dq_backend *b, dq_mat x);
void dq_cuda_hadamard(dq_backend *b, dq_mat x, int dim);
void dq_cuda_add(dq_backend *b, dq_mat dst, dq_mat src);
void dq_cuda_gather(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index);

/* cuda_linear.c */
void dq_cuda_matmul(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                    dq_num num);
const char *dq_cuda_matmul_kernel(const dq_backend *b, const dq_weight *w, dq_num num);

/* cuda_attention.c */
void dq_cuda_logprob(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                     const dq_weight *head, const int32_t *target, dq_num num);
void dq_cuda_kld(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                 dq_mat hidden, const dq_weight *head, dq_num num);

/* ---- CUDA BLAS find ----
 * Which file cuBLAS is opened from. Private to kernels/cuda. */

typedef struct dq_cuda_blas_file {
    void *library;    /* stays open */
    const char *path; /* in the arena */
} dq_cuda_blas_file;

/* Opens cuBLAS 13 or else 12 from the first place that has one:
 *   DQ_CUBLAS, a file or a folder; when it is set, nothing else is tried
 *   the loader's own search
 *   CUDA_HOME, CUDA_PATH, /usr/local/cuda, /usr/local/cuda-*
 *   nvidia packages of VIRTUAL_ENV, each python3 in PATH and its links, the system, ~/.local
 * Tests plant a folder `root` before these places (else ""), and then the loader is not asked.
 * DQ_RESOURCE when nothing opens; a file that is there and does not open is named. */
dq_status dq_cuda_blas_find(dq_cuda_blas_file *out, const char *root, dq_arena *a, dq_err *err);

/* ---- CUDA BLAS ----
 * Dense products by cuBLAS. Private to kernels/cuda. */

/* dst[m][ldd] = src[m][k] w[n][k]^T, its first n columns, of f32, or of bf16 with sums in f32. A
 * row's bits do not depend on m or on the rows beside it. Each matrix begins with a row of a block
 * of dq_cuda_alloc, dst within its row at a multiple of 16 bytes. A shape's first product waits for
 * the device and takes up to 128 MiB, or 300 rows, till then. DQ_RESOURCE without cuBLAS. */
void dq_cuda_gemm(dq_backend *b, bool bf16, float *dst, int64_t ldd, const void *src, const void *w,
                  int64_t m, int64_t n, int64_t k);
/* c[n][n] = x[n][n] y[n][n]^T, of int8 with int32 or of bf16 with f32, a peak to measure against.
 * False, and no sticky error, where cuBLAS refuses. */
bool dq_cuda_gemm_square(dq_backend *b, bool int8, void *c, const void *x, const void *y, int n);
void dq_cuda_blas_free(dq_cuda_blas *k); /* NULL allowed */

/* ---- CUDA linear ----
 * Pieces of products with weights, for matmul and for logits. Private to kernels/cuda. */

/* Rows n0 .. n0 + n of w in a product's type, in place or in scratch A. NULL: sticky error. */
const void *dq_cuda_wide_rows(dq_backend *b, const dq_cuda_weight *w, int64_t n0, int64_t n,
                              bool bf16);

#endif
