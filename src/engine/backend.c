/* backend: which device runs, and what it can do. See backend.h.
 * SPDX-License-Identifier: MIT */
#include "engine/backend.h"
#include "base/os.h"
#include "kernels/cpu/cpu.h"
#ifdef DQ_HAVE_CUDA
#include "kernels/cuda/host/cuda_open.h"
#endif

#include <stdlib.h>
#include <string.h>

const char *const dq_num_name[] = {"f32", "bf16", "int8"};
const char *const dq_grain_name[] = {"tensor", "head", "row", "tile"};

/* "cuda" or "cuda:N" with a decimal N. */
static bool is_cuda(const char *name)
{
    if (strncmp(name, "cuda", 4) != 0) return false;
    if (name[4] == 0) return true;
    return name[4] == ':' && name[5] != 0 && strspn(name + 5, "0123456789") == strlen(name + 5);
}

static dq_status check_name(const char *name, dq_err *err)
{
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0 || is_cuda(name)) return DQ_OK;
    return dq_fail(err, DQ_USAGE, "unknown device %s (expected cpu, cuda, cuda:N or auto)", name);
}

#ifdef DQ_HAVE_CUDA
static dq_status open_cuda(dq_backend *b, const char *name, dq_err *err)
{
    enum { MOST_DIGITS = 6 };
    const char *number = name[4] == ':' ? name + 5 : "0";
    number += strspn(number, "0");
    if (strlen(number) > MOST_DIGITS)
        return dq_fail(err, DQ_RESOURCE, "device %.40s... does not exist. Use another --device",
                       name);
    return dq_cuda_open(b, (int)strtol(number, NULL, 10), err);
}

dq_status dq_backend_blas(const char **path, const char **version, dq_arena *a, dq_err *err)
{
    return dq_cuda_blas_about(path, version, a, err);
}
#else
static dq_status open_cuda(dq_backend *b, const char *name, dq_err *err)
{
    (void)b;
    return dq_fail(err, DQ_RESOURCE,
                   "this build of dq has no CUDA backend (device %s). Use --device cpu", name);
}

dq_status dq_backend_blas(const char **path, const char **version, dq_arena *a, dq_err *err)
{
    (void)a;
    *path = *version = NULL;
    return dq_fail(err, DQ_RESOURCE, "not used: this build of dq has no CUDA backend");
}
#endif

/* "auto" is the CPU until the kernels for a GPU have been seen right on one (tests/gpu/run_all.sh). */
static dq_status open_device(dq_backend *b, const char *name, dq_err *err)
{
    return is_cuda(name) ? open_cuda(b, name, err) : dq_cpu_open(b, err);
}

dq_status dq_backend_open(dq_backend **out, const char *name, int threads, dq_err *err)
{
    bool unknown;
    *out = NULL;
    DQ_TRY(check_name(name, err));
    if (threads < 0)
        return dq_fail(err, DQ_USAGE, "%d threads: the number must not be negative", threads);
    dq_cpu_features(&unknown);
    if (unknown)
        return dq_fail(err, DQ_USAGE,
                       "environment variable DQ_CPU: unknown value %s (expected scalar, avx2 or "
                       "avx512)",
                       getenv("DQ_CPU"));
    dq_backend *b = dq_block_new(1, sizeof *b, err);
    if (!b) return err->code;
    b->threads = threads ? threads : dq_cpu_count();
    if (open_device(b, name, err) != DQ_OK) {
        dq_block_free(b);
        return err->code;
    }
    *out = b;
    return DQ_OK;
}

void dq_backend_close(dq_backend *b)
{
    if (!b) return;
    b->ops->close(b);
    dq_block_free(b);
}

dq_status dq_backend_sync(dq_backend *b, dq_err *err)
{
    b->ops->sync(b);
    const dq_err found = b->err;
    memset(&b->err, 0, sizeof b->err);
    if (found.code == DQ_OK) return err->code;
    return dq_fail(err, found.code, "%s", found.text);
}

/* The first projection that is not packed; NULL: all are. */
static const dq_weight *find_dense(const dq_model *m)
{
    for (int i = 0; i < m->n_layers; i++) {
        const dq_layer *l = &m->layer[i];
        const dq_weight *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            if (all[k]->rows && all[k]->bits > 8) return all[k];
        }
    }
    return NULL;
}

static dq_status can_int8(const dq_model *m, dq_math math, const dq_kv_spec *kv, dq_err *err)
{
    const dq_weight *dense = m && math.linear == DQ_NUM_INT8 ? find_dense(m) : NULL;
    const bool attends = math.qk == DQ_NUM_INT8 || math.pv == DQ_NUM_INT8 || math.kv == DQ_NUM_INT8;
    if (dense)
        return dq_fail(err, DQ_MISMATCH,
                       "%s: --math int8 needs packed weights, and %s is not packed. Use the "
                       "container that dq quantize makes (--skip leaves tensors unpacked)",
                       m->path, dense->name);
    if (attends && (kv->k_bits > 8 || kv->v_bits > 8))
        return dq_fail(err, DQ_MISMATCH,
                       "--math int8 needs a packed KV cache, and this one has %d-bit keys and "
                       "%d-bit values. Add --kv-bits 8 (or fewer)",
                       kv->k_bits, kv->v_bits);
    return DQ_OK;
}

/* What the tensor-core kernels of the CUDA backend want of heads. */
static dq_status can_fused(const dq_model *m, dq_math math, const dq_kv_spec *kv, dq_err *err)
{
    const int d = m ? m->map.head_dim : 16;
    const bool short_groups =
        (kv->k_bits <= 4 || kv->v_bits <= 4) && kv->group % 16 && kv->group < d;
    if (math.qk == DQ_NUM_F32) return DQ_OK;
    if (d % 16 || d > 128)
        return dq_fail(
            err, DQ_MISMATCH,
            "%s: --math %s on the cuda backend needs a head_dim that is a multiple of 16 "
            "up to 128, and this model has %d. Use --math f32 or --device cpu",
            m->path, dq_num_name[math.qk], d);
    if (short_groups)
        return dq_fail(err, DQ_MISMATCH,
                       "--math %s on the cuda backend needs a --kv-group that is a multiple of 16, "
                       "found %d. Use --kv-group 16 or --math f32",
                       dq_num_name[math.qk], kv->group);
    return DQ_OK;
}

dq_status dq_backend_can(const dq_backend *b, const dq_model *m, dq_math math, const dq_kv_spec *kv,
                         dq_err *err)
{
    const bool cuda = strcmp(b->ops->name, "cuda") == 0;
    const dq_num asked[] = {math.linear, math.qk, math.pv, math.kv, kv->num};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        if (!cuda && asked[i] == DQ_NUM_BF16)
            return dq_fail(
                err, DQ_MISMATCH,
                "--math %s is not available on the %s backend yet. Use f32, or int8 with "
                "packed weights and --kv-bits 8",
                dq_num_name[asked[i]], b->ops->name);
    }
    DQ_TRY(can_int8(m, math, kv, err));
    if (cuda) DQ_TRY(can_fused(m, math, kv, err));
    if (math.kv != kv->num)
        return dq_fail(err, DQ_BUG, "the cache is for %s, the pass for %s", dq_num_name[kv->num],
                       dq_num_name[math.kv]);
    return DQ_OK;
}
