/* cuda: the CUDA backend's table, opening and closing, and its error texts.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"

#include "kernels/cuda/host/cuda_blas.h"
#include "kernels/cuda/host/cuda_kv.h"
#include "kernels/cuda/host/cuda_ops.h"

#include <stdio.h>
#include <string.h>

enum { OLDEST = 80 }; /* compute capability of the oldest device that the kernels are built for */

/* Strips of a launch take 1/SHARE of the device's memory, and no more than MAX_STRIPS bytes: that keeps every
 * multiprocessor busy, and small launches stay in the cache between kernels. */
enum { SHARE = 64, MAX_STRIPS = 256 << 20 };

bool dq_cuda_ok(dq_backend *b, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return b->err.code == DQ_OK;
    if (e == cudaErrorMemoryAllocation)
        dq_cuda_no_memory(b, 0, what);
    else
        dq_fail(&b->err, DQ_BUG, "cuda:%d: %s failed: %s (%s)", dq_cuda_of(b)->device, what,
                cudaGetErrorString(e), cudaGetErrorName(e));
    return false;
}

static void cuda_sync(dq_backend *b)
{
    dq_cuda_finish_uploads(b);
    dq_cuda_upload_end(b); /* what an operation that failed half-way left */
}

static void cuda_close(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    if (!c) return;
    if (c->stream) cudaStreamSynchronize(c->stream);
    dq_cuda_blas_free(c->blas);
    dq_cuda_weights_free(c->weights);
    dq_cuda_transfer_free(c->transfer);
    dq_cuda_pool_free(c->pool);
    dq_block_free(c->fresh);
    if (c->stream) cudaStreamDestroy(c->stream);
    dq_block_free(c);
    b->state = NULL;
}

/* What kernels want of heads and caches. */
static dq_status cuda_can(const dq_need *need, dq_err *err)
{
    const dq_kv_spec *kv = need->kv;
    const int d = need->head_dim ? need->head_dim : 16;
    const bool mixed = kv->quant == DQ_KV_MIXED && kv->v_bits < 16;
    const int run = mixed ? 2 * kv->group : kv->group;
    const bool short_groups = (mixed || !dq_kv_by_page(kv)) &&
                              (mixed || kv->k_bits <= 4 || kv->v_bits <= 4) && run % 16 && run < d;
    if (need->math.qk == DQ_NUM_F32) return DQ_OK;
    const char *name = dq_num_name[need->math.qk];
    if (need->math.qk == DQ_NUM_INT8 && kv->dense != DQ_KV_F32)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_KV_DENSE},
                            "math %s on the cuda backend holds keys and values that are not codes "
                            "in f32, not in %s",
                            name, dq_kv_dense_name[kv->dense]);
    if (d % 16 || d > 128) {
        dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_MATH_HEADS},
                     "math %s on the cuda backend needs a head_dim that is a multiple of 16 "
                     "up to 128, and this model has %d",
                     name, d);
        return dq_in(err, "%s: ", need->path);
    }
    if (short_groups)
        return dq_fail_with(
            err, DQ_MISMATCH,
            (dq_remedy){.code = DQ_REMEDY_MATH_GROUP, .number = {kv->group}, .word = name},
            "math %s on the cuda backend needs a group of the KV cache that is a multiple of 16, "
            "found %d",
            name, kv->group);
    return DQ_OK;
}

static const dq_ops ops_cuda = {
    .name = "cuda",
    .alloc = dq_cuda_alloc,
    .free = dq_cuda_free,
    .put = dq_cuda_put,
    .get = dq_cuda_get,
    .sync = cuda_sync,
    .close = cuda_close,
    .can = cuda_can,
    .memory = dq_cuda_memory,
    .weight_acquire = dq_cuda_weight_acquire,
    .weight_release = dq_cuda_weight_release,
    .kv_new = dq_cuda_kv_new,
    .kv_free = dq_kv_pages_free,
    .kv_seq_new = dq_kv_pages_seq_new,
    .kv_fork = dq_kv_pages_fork,
    .kv_seq_free = dq_kv_pages_seq_free,
    .kv_append = dq_kv_pages_append,
    .kv_rewind = dq_kv_pages_rewind,
    .kv_keep = dq_kv_pages_keep,
    .kv_compact = dq_kv_pages_compact,
    .kv_key_norms = dq_cuda_kv_key_norms,
    .kv_key_cosines = dq_cuda_kv_key_cosines,
    .kv_key_leverages = dq_cuda_kv_key_leverages,
    .kv_rows = dq_cuda_kv_rows,
    .kv_count = dq_kv_pages_count,
    .kv_bytes = dq_kv_pages_bytes,
    .attn_absmax = dq_cuda_attn_absmax,
    .absmax_join = dq_cuda_absmax_join,
    .attend = dq_cuda_attend,
    .attend_kernel = dq_cuda_attend_kernel,
    .attn_observe = dq_cuda_attn_observe,
    .observe = dq_cuda_observe,
    .embed = dq_cuda_embed,
    .first_bad_row = dq_cuda_first_bad_row,
    .rms_norm = dq_cuda_rms_norm,
    .matmul = dq_cuda_matmul,
    .matmul_kernel = dq_cuda_matmul_kernel,
    .rope_table = dq_cuda_rope_table,
    .rope = dq_cuda_rope,
    .ffn_act = dq_cuda_ffn_act,
    .sigmoid = dq_cuda_sigmoid,
    .hadamard = dq_cuda_hadamard,
    .add = dq_cuda_add,
    .gather = dq_cuda_gather,
    .logprob = dq_cuda_logprob,
    .kld = dq_cuda_kld,
};

dq_status dq_cuda_refuse(cudaError_t e, int driver, int runtime, dq_err *err)
{
    /* versions are 1000 * major + 10 * minor */
    const int major = runtime / 1000, minor = runtime % 1000 / 10;
    if (e == cudaErrorNoDevice)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                            "no CUDA device is visible (nvidia-smi lists them; "
                            "CUDA_VISIBLE_DEVICES hides some)");
    if (e == cudaErrorInsufficientDriver && driver == 0)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
            "no NVIDIA driver is installed (expected one for CUDA %d.%d). Install it", major,
            minor);
    if (e == cudaErrorInsufficientDriver)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OR_CPU},
                            "the NVIDIA driver is too old (expected one for CUDA %d.%d, found one "
                            "for CUDA %d.%d). Update it",
                            major, minor, driver / 1000, driver % 1000 / 10);
    return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                        "CUDA does not start: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
}

static dq_status count_devices(int *count, dq_err *err)
{
    int driver = 0, runtime = 0;
    *count = 0;
    const cudaError_t e = cudaGetDeviceCount(count);
    if (e == cudaSuccess && *count > 0) return DQ_OK;
    cudaGetLastError();
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    return dq_cuda_refuse(e == cudaSuccess ? cudaErrorNoDevice : e, driver, runtime, err);
}

static dq_status check_device(int device, dq_err *err)
{
    int count;
    DQ_TRY(count_devices(&count, err));
    if (device >= count)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OTHER_DEVICE},
                            "device cuda:%d does not exist (expected cuda:0 to cuda:%d)", device,
                            count - 1);
    return DQ_OK;
}

static dq_status describe(dq_backend *b, int device, dq_err *err)
{
    dq_cuda *c = dq_cuda_of(b);
    struct cudaDeviceProp p;
    cudaError_t e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaGetDeviceProperties(&p, device);
    if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        cudaGetLastError();
        return dq_cuda_refuse(e, 0, 0, err);
    }
    c->device = device;
    c->n_sm = p.multiProcessorCount;
    c->cc = 10 * p.major + p.minor;
    c->smem_optin = p.sharedMemPerBlockOptin;
    c->total_bytes = p.totalGlobalMem;
    c->strip_bytes = c->total_bytes / SHARE < MAX_STRIPS ? c->total_bytes / SHARE : MAX_STRIPS;
    if (c->cc < OLDEST)
        return dq_fail_with(
            err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
            "cuda:%d (%.100s) has compute capability %d.%d (expected %d.%d or later)", device,
            p.name, p.major, p.minor, OLDEST / 10, OLDEST % 10);
    snprintf(b->device, sizeof b->device, "cuda:%d, %.80s, %d multiprocessors", device, p.name,
             c->n_sm);
    return DQ_OK;
}

dq_status dq_cuda_open(dq_backend *b, int device, dq_err *err)
{
    DQ_TRY(check_device(device, err));
    dq_cuda *c = dq_block_new(1, sizeof *c, err);
    if (!c) return err->code;
    b->state = c;
    b->ops = &ops_cuda;
    c->pool = dq_cuda_pool_new(err);
    c->transfer = dq_cuda_transfer_new(err);
    c->weights = dq_cuda_weights_new(err);
    if (!c->pool || !c->transfer || !c->weights || describe(b, device, err) != DQ_OK) cuda_close(b);
    return err->code;
}

dq_status dq_cuda_open_nth(dq_backend *b, int nth, dq_err *err)
{
    int count;
    DQ_TRY(count_devices(&count, err));
    return dq_cuda_open(b, nth % count, err);
}
