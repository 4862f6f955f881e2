/* cuda: the state of the CUDA backend and what its files share. Private to kernels/cuda.
 *
 * Two kinds of files: `device/NAME.cu` holds kernels and the C functions that launch them (NAME.h: device pointers
 * and numbers in, a cudaError_t out; nothing of dq but base types), so that it also compiles for the host
 * and is tested alone; `host/cuda_NAME.c` makes operations of backend.h out of them. Those of fused*.cu are chosen
 * in cuda_attention.c, those of linear_packed.cu in cuda_linear.c; the other files of host have no kernels.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_H
#define DQ_CUDA_H

#include "engine/backend.h"
#include "kernels/cuda/device/cuda_weight.h"
#include "kernels/cuda/host/cuda_open.h"
#include "kernels/cuda/host/runtime.h"

/* Named device scratch: two operations that use one slot are ordered by the stream. */
enum {
    DQ_CUDA_SCRATCH_A, /* the largest buffer of an operation */
    DQ_CUDA_SCRATCH_B,
    DQ_CUDA_SCRATCH_C,
    DQ_CUDA_SCRATCH_BATCH, /* what a batch looks like: rows, pages, visible keys */
    DQ_CUDA_SCRATCH_SPANS, /* masses of rows, till they are on their way to the host */
    DQ_CUDA_N_SCRATCH
};

typedef struct dq_cuda_blas dq_cuda_blas;         /* cuda_blas.c */
typedef struct dq_cuda_pool dq_cuda_pool;         /* cuda_memory.c */
typedef struct dq_cuda_transfer dq_cuda_transfer; /* cuda_transfer.c */
typedef struct dq_cuda_weights dq_cuda_weights;   /* cuda_weights.c */

typedef struct dq_cuda {
    int device;
    cudaStream_t stream; /* all operations run on it, in the order of their calls */
    int n_sm;
    int cc;             /* compute capability, 10 * major + minor */
    size_t smem_optin;  /* shared memory that a block may ask for */
    size_t total_bytes; /* of device memory */
    size_t strip_bytes; /* of it that strips of one launch may take */
    dq_cuda_pool *pool;
    dq_cuda_transfer *transfer;
    dq_cuda_blas *blas; /* NULL until first used */
    dq_cuda_weights *weights;
    struct dq_kv_block *fresh; /* [n_fresh] memory of pages that is not zeroed yet: cuda_kv.c */
    size_t n_fresh, fresh_capacity;
    void *scratch[DQ_CUDA_N_SCRATCH];
    size_t scratch_bytes[DQ_CUDA_N_SCRATCH];
} dq_cuda;

static inline dq_cuda *dq_cuda_of(const dq_backend *b)
{
    return b->state;
}

static inline cudaStream_t dq_cuda_stream(const dq_backend *b)
{
    return dq_cuda_of(b)->stream;
}

/* True for cudaSuccess; else the sticky error is set: memory is DQ_RESOURCE with what was asked for and what
 * is free, anything else DQ_BUG with CUDA's name for it and `what`. */
bool dq_cuda_ok(dq_backend *b, cudaError_t e, const char *what);
/* The text for a device that cudaGetDeviceCount does not give: versions as CUDA numbers them. */
dq_status dq_cuda_refuse(cudaError_t e, int driver, int runtime, dq_err *err);

/* ---- cuda_memory.c */
dq_cuda_pool *dq_cuda_pool_new(dq_err *err);
void dq_cuda_pool_free(dq_cuda_pool *pool); /* NULL allowed */
/* Device memory from a pool that returns blocks to the driver only at close or when memory is short; freed
 * blocks are reused in stream order. 256-byte aligned, contents undefined. NULL with the sticky error set. */
void *dq_cuda_alloc(dq_backend *b, size_t bytes);
/* Sets the sticky error: `bytes` of device memory are not there; 0: as many as `what` wanted, which CUDA does
 * not say. */
void dq_cuda_no_memory(dq_backend *b, size_t bytes, const char *what);
size_t dq_cuda_memory(const dq_backend *b); /* as backend.h says */
void dq_cuda_free(dq_backend *b, void *p);  /* NULL allowed; after an error too */
/* At least `bytes` of scratch, growing; what it held is lost. NULL with the sticky error set. */
void *dq_cuda_scratch(dq_backend *b, int slot, size_t bytes);

/* ---- cuda_transfer.c */
dq_cuda_transfer *dq_cuda_transfer_new(dq_err *err);
void dq_cuda_transfer_free(dq_cuda_transfer *t);                            /* NULL allowed */
void dq_cuda_put(dq_backend *b, void *dst, const void *host, size_t bytes); /* as backend.h says */
void dq_cuda_get(dq_backend *b, void *host, const void *src, size_t bytes);
/* Waits; then what was downloaded is given to the caller, or forgotten after an error. */
void dq_cuda_finish_uploads(dq_backend *b);
/* host[bytes] on the device, for operations that are launched before the next dq_cuda_upload_end; copied
 * through pinned memory, so host may change at once. NULL with the sticky error set (bytes 0: a valid
 * pointer). */
const void *dq_cuda_upload(dq_backend *b, const void *host, size_t bytes);
/* Every operation that uploads calls it after its launches, and zeros of pages after theirs. */
void dq_cuda_upload_end(dq_backend *b);
/* At the next sync or get: take(arg, data, bytes) on the host, in the order of the calls, with what src holds
 * after the operations launched so far; src may be reused at once. take NULL: data is copied to arg. */
typedef void dq_cuda_take(void *arg, const void *data, size_t bytes);
void dq_cuda_download(dq_backend *b, const void *src, size_t bytes, dq_cuda_take *take, void *arg);
/* A block of host memory for `arg` of take, freed after it. A get between the two frees it too. NULL with
 * the sticky error set. */
void *dq_cuda_note(dq_backend *b, size_t bytes);

/* ---- cuda_weights.c: weights on the device, shared by all that acquired them. */
dq_cuda_weights *dq_cuda_weights_new(dq_err *err);
void dq_cuda_weights_free(dq_cuda_weights *all); /* NULL allowed */
int dq_cuda_stored_kind(const dq_weight *w);     /* DQ_STORED_ that it has or will have there */
bool dq_cuda_weight_acquire(dq_backend *b, const dq_weight *w); /* as backend.h says */
void dq_cuda_weight_release(dq_backend *b, const dq_weight *w);
/* Of a weight that is acquired, valid until another is. NULL with the sticky error set. */
const dq_cuda_weight *dq_cuda_weight_of(dq_backend *b, const dq_weight *w);

#endif
