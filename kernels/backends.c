/* backends: the devices, a row each: "cpu", "cuda[:N]". Only this file knows more than one of them.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "work/ranks.h"
#ifdef DQ_HAVE_CUDA
#include "kernels/cuda/host/cuda.h"
#endif

#include <stdlib.h>
#include <string.h>

/* Devices of a kind are numbered from 0; name is what the user wrote. */
typedef struct dq_device_kind {
    const char *name;
    bool numbered; /* "NAME:N" is allowed */
    dq_status (*open)(dq_backend *b, const char *name, const char *number, dq_err *err);
} dq_device_kind;

static dq_status open_cpu(dq_backend *b, const char *name, const char *number, dq_err *err)
{
    (void)name;
    (void)number;
    return dq_cpu_open(b, err);
}

#ifdef DQ_HAVE_CUDA
static dq_status open_cuda(dq_backend *b, const char *name, const char *number, dq_err *err)
{
    enum { MAX_DIGITS = 6 };
    if (!*number) return dq_cuda_open_nth(b, dq_ranks_number_here(), err);
    number += strspn(number, "0");
    if (strlen(number) > MAX_DIGITS)
        return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_OTHER_DEVICE},
                            "device %.40s... does not exist", name);
    return dq_cuda_open(b, (int)strtol(number, NULL, 10), err);
}

dq_status dq_backend_blas(dq_blas_about *out, dq_backend *b, dq_arena *a, dq_err *err)
{
    return dq_cuda_blas_about(out, b, a, err);
}
#else
static dq_status open_cuda(dq_backend *b, const char *name, const char *number, dq_err *err)
{
    (void)b;
    (void)number;
    return dq_fail_with(err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                        "this build of dq has no CUDA backend (device %s)", name);
}

dq_status dq_backend_blas(dq_blas_about *out, dq_backend *b, dq_arena *a, dq_err *err)
{
    (void)b;
    (void)a;
    *out = (dq_blas_about){0};
    return dq_fail(err, DQ_RESOURCE, "not used: this build of dq has no CUDA backend");
}
#endif

/* "auto" is the first: the CPU, until the kernels for a GPU were seen right on one. */
static const dq_device_kind kinds[] = {{"cpu", false, open_cpu}, {"cuda", true, open_cuda}};

/* The decimal number after "NAME:"; "" after a bare NAME; NULL: name is not of this kind. */
static const char *number_in(const char *name, const dq_device_kind *kind)
{
    const size_t n = strlen(kind->name);
    if (strncmp(name, kind->name, n) != 0) return NULL;
    if (name[n] == 0) return name + n;
    const char *number = name + n + 1;
    const size_t digits = strspn(number, "0123456789");
    return kind->numbered && name[n] == ':' && digits && !number[digits] ? number : NULL;
}

static dq_status find_kind(const dq_device_kind **out, const char **number, const char *name,
                           dq_err *err)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        *out = &kinds[i];
        *number = strcmp(name, "auto") == 0 ? "" : number_in(name, &kinds[i]);
        if (*number) return DQ_OK;
    }
    return dq_fail(err, DQ_USAGE, "unknown device %s (expected cpu, cuda, cuda:N or auto)", name);
}

dq_status dq_backend_open(dq_backend **out, const char *name, int threads, dq_err *err)
{
    const dq_device_kind *kind;
    const char *number;
    bool unknown;
    *out = NULL;
    DQ_TRY(find_kind(&kind, &number, name, err));
    if (threads < 0)
        return dq_fail(err, DQ_USAGE, "%d threads: the number must not be negative", threads);
    dq_os_cpu_features(&unknown);
    if (unknown)
        return dq_fail(err, DQ_USAGE,
                       "environment variable DQ_CPU: unknown value %s (expected scalar, avx2 or "
                       "avx512)",
                       getenv("DQ_CPU"));
    dq_backend *b = dq_block_new(1, sizeof *b, err);
    if (!b) return err->code;
    b->threads = threads ? threads : dq_os_cpu_count("");
    if (kind->open(b, name, number, err) != DQ_OK) {
        dq_block_free(b);
        return err->code;
    }
    *out = b;
    return DQ_OK;
}
