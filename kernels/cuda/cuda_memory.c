/* cuda_memory: device memory of the CUDA backend: a pool of blocks and the named scratch buffers.
 *
 * All work of a backend is in one stream, so a block may be given out again as soon as it is freed:
 * whatever uses it next is launched behind what used it before. Taking memory from the driver costs a
 * hundred times more than that and may stop the device, so blocks go back only at the end, or when an
 * allocation would fail otherwise.
 *
 * DQ_CUDA_POOL=exact of the environment is for compute-sanitizer and the like, which cannot see an access to
 * what a pool holds: every request is a block of exactly its size from the driver, and goes back as soon as it
 * is freed. Red zones are the tool's own (compute-sanitizer --padding 256; guard pages of the simulation).
 * SPDX-License-Identifier: MIT */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

typedef struct block {
    void *p;
    size_t bytes;
    bool used;
} block;

struct dq_cuda_pool {
    block *block; /* [n], by address */
    size_t n, room;
    bool exact;
};

dq_cuda_pool *dq_cuda_pool_new(dq_err *err)
{
    const char *kind = getenv("DQ_CUDA_POOL");
    const bool exact = kind && strcmp(kind, "exact") == 0;
    if (kind && *kind && !exact) {
        dq_fail(err, DQ_USAGE,
                "environment variable DQ_CUDA_POOL: unknown value %.40s (expected exact)", kind);
        return NULL;
    }
    dq_cuda_pool *pool = dq_block_new(1, sizeof *pool, err);
    if (pool) pool->exact = exact;
    return pool;
}

void dq_cuda_pool_free(dq_cuda_pool *pool)
{
    if (!pool) return;
    for (size_t i = 0; i < pool->n; i++) cudaFree(pool->block[i].p);
    free(pool->block);
    dq_block_free(pool);
}

/* Sizes in steps of an eighth, so that a request a little larger than an earlier one finds its block. */
static size_t round_up(size_t bytes)
{
    size_t step = ALIGN;
    while (step * 16 <= bytes) step *= 2;
    return bytes > SIZE_MAX - step ? SIZE_MAX / ALIGN * ALIGN : (bytes + step - 1) / step * step;
}

/* Index of the first block whose address is not below p. */
static size_t place_of(const dq_cuda_pool *pool, const void *p)
{
    size_t low = 0, high = pool->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uintptr_t)pool->block[middle].p < (uintptr_t)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static block *best_free(dq_cuda_pool *pool, size_t bytes)
{
    block *best = NULL;
    for (size_t i = 0; i < pool->n; i++) {
        block *k = &pool->block[i];
        if (!k->used && k->bytes >= bytes && k->bytes / 2 <= bytes &&
            (!best || k->bytes < best->bytes))
            best = k;
    }
    return best;
}

static void give_back_free(dq_cuda *c)
{
    dq_cuda_pool *pool = c->pool;
    size_t kept = 0;
    cudaStreamSynchronize(c->stream);
    for (size_t i = 0; i < pool->n; i++) {
        if (pool->block[i].used)
            pool->block[kept++] = pool->block[i];
        else
            cudaFree(pool->block[i].p);
    }
    pool->n = kept;
}

static bool make_room(dq_backend *b, dq_cuda_pool *pool)
{
    if (pool->n < pool->room) return true;
    const size_t room = pool->room ? 2 * pool->room : 64;
    block *more = realloc(pool->block, room * sizeof *more);
    if (!more) {
        dq_fail(&b->err, DQ_RESOURCE, "out of memory (%zu bytes for the list of device memory)",
                room * sizeof *more);
        return false;
    }
    pool->block = more;
    pool->room = room;
    return true;
}

void dq_cuda_no_memory(dq_backend *b, size_t bytes, const char *what)
{
    const double mib = 1024.0 * 1024.0;
    size_t free_bytes = 0, total = dq_cuda_of(b)->total_bytes;
    char needed[64];
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) free_bytes = 0;
    if (bytes)
        snprintf(needed, sizeof needed, "%.2f MiB needed", (double)bytes / mib);
    else
        snprintf(needed, sizeof needed, "in %.50s", what);
    dq_fail(&b->err, DQ_RESOURCE,
            "cuda:%d: out of memory (%s, %.2f MiB of %.2f MiB free). Use --device cpu",
            dq_cuda_of(b)->device, needed, (double)free_bytes / mib, (double)total / mib);
}

size_t dq_cuda_memory(const dq_backend *b)
{
    const dq_cuda *c = dq_cuda_of(b);
    size_t bytes = 0, total = 0;
    if (cudaMemGetInfo(&bytes, &total) != cudaSuccess) bytes = 0;
    for (size_t i = 0; i < c->pool->n; i++) {
        if (!c->pool->block[i].used) bytes += c->pool->block[i].bytes;
    }
    /* strips are the largest scratch; what it has already is not free */
    const size_t had = c->scratch_bytes[DQ_CUDA_SCRATCH_A];
    const size_t own = had < c->strip_bytes ? c->strip_bytes - had : 0;
    return bytes > own ? bytes - own : 0;
}

void *dq_cuda_alloc(dq_backend *b, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_pool *pool = c->pool;
    void *p = NULL;
    if (b->err.code != DQ_OK || !make_room(b, pool)) return NULL;
    bytes = bytes ? bytes : 1;
    if (!pool->exact) bytes = round_up(bytes);
    block *found = best_free(pool, bytes);
    if (found) {
        found->used = true;
        return found->p;
    }
    cudaError_t e = cudaMalloc(&p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* or the next launch would seem to have failed */
        give_back_free(c);
        e = cudaMalloc(&p, bytes);
        if (e == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            dq_cuda_no_memory(b, bytes, NULL);
            return NULL;
        }
    }
    if (!dq_cuda_ok(b, e, "cudaMalloc")) return NULL;
    const size_t at = place_of(pool, p);
    memmove(pool->block + at + 1, pool->block + at, (pool->n - at) * sizeof *pool->block);
    pool->block[at] = (block){.p = p, .bytes = bytes, .used = true};
    pool->n++;
    return p;
}

void dq_cuda_free(dq_backend *b, void *p)
{
    dq_cuda_pool *pool = dq_cuda_of(b)->pool;
    if (!p) return;
    const size_t at = place_of(pool, p);
    if (at == pool->n || pool->block[at].p != p || !pool->block[at].used) {
        dq_fail(&b->err, DQ_BUG, "memory is freed that the CUDA backend did not give out");
        return;
    }
    pool->block[at].used = false;
    if (pool->exact) give_back_free(dq_cuda_of(b));
}

void *dq_cuda_scratch(dq_backend *b, int slot, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    if (b->err.code != DQ_OK) return NULL;
    const size_t has = c->scratch_bytes[slot];
    if (c->scratch[slot] && (c->pool->exact ? bytes == has : bytes <= has)) return c->scratch[slot];
    dq_cuda_free(b, c->scratch[slot]);
    c->scratch[slot] = dq_cuda_alloc(b, bytes);
    c->scratch_bytes[slot] = c->scratch[slot] ? bytes : 0;
    return c->scratch[slot];
}
