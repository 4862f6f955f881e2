/* cuda_memory: device memory of the CUDA backend: a pool of blocks and the named scratch buffers.
 *
 * All work of a backend is in one stream, so a block may be given out again as soon as it is freed:
 * whatever uses it next is launched after what used it before. Taking memory from the driver costs a
 * hundred times more than that and may stop the device, so blocks go back only at the end, or when an
 * allocation would fail otherwise. Free blocks stand in a list for each class of sizes, and a table of addresses
 * finds the block that is freed: both take the same time for two blocks and for the hundred thousand of a long cache.
 *
 * DQ_CUDA_POOL=exact of the environment is for compute-sanitizer and the like, which cannot see an access to
 * what a pool holds: every request is a block of exactly its size from the driver, and goes back as soon as it
 * is freed; both look at all blocks. Red zones are the tool's own (compute-sanitizer --padding 256; guard pages of the simulation).
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, CLASSES = 8 * 64 };

typedef struct block {
    void *p;
    size_t bytes;
    bool used;
    uint32_t next; /* of the free blocks of its class: an index plus one, 0: none */
} block;

struct dq_cuda_pool {
    block *block; /* [n] */
    size_t n, capacity;
    uint32_t *slot; /* [2 * capacity] block at an address, hashed: an index plus one, 0: empty */
    uint32_t free[CLASSES]; /* first free block of each class */
    size_t free_bytes;
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
    dq_block_free(pool->block);
    dq_block_free(pool->slot);
    dq_block_free(pool);
}

/* Sizes in steps of an eighth, so that a request a little larger than an earlier one finds its block. */
static size_t round_up(size_t bytes)
{
    size_t step = ALIGN;
    while (step * 16 <= bytes) step *= 2;
    return bytes > SIZE_MAX - step ? SIZE_MAX / ALIGN * ALIGN : (bytes + step - 1) / step * step;
}

/* Of sizes that round_up makes, in their order: eight classes from one power of two to the next. */
static size_t class_of(size_t bytes)
{
    size_t step = ALIGN, power = 0;
    while (step * 16 <= bytes) {
        step *= 2;
        power++;
    }
    return 8 * power + bytes / step;
}

/* Where the block at p stands in the table of addresses, or would stand. */
static uint32_t *slot_of(const dq_cuda_pool *pool, const void *p)
{
    const size_t mask = 2 * pool->capacity - 1;
    size_t i = (size_t)((uint64_t)(uintptr_t)p / ALIGN * 0x9e3779b97f4a7c15u >> 20) & mask;
    while (pool->slot[i] && pool->block[pool->slot[i] - 1].p != p) i = (i + 1) & mask;
    return &pool->slot[i];
}

/* Tables of addresses and of free blocks, made anew. */
static void index_blocks(dq_cuda_pool *pool)
{
    memset(pool->slot, 0, 2 * pool->capacity * sizeof *pool->slot);
    memset(pool->free, 0, sizeof pool->free);
    pool->free_bytes = 0;
    for (size_t i = 0; i < pool->n; i++) {
        block *k = &pool->block[i];
        *slot_of(pool, k->p) = (uint32_t)i + 1;
        if (k->used) continue;
        uint32_t *first = &pool->free[class_of(k->bytes)];
        k->next = *first;
        *first = (uint32_t)i + 1;
        pool->free_bytes += k->bytes;
    }
}

/* A free block of at most twice the size, out of its list; NULL: none. */
static block *take_free(dq_cuda_pool *pool, size_t bytes)
{
    const size_t class = class_of(bytes);
    for (size_t i = class; i <= class + 8 && i < CLASSES; i++) {
        if (!pool->free[i]) continue;
        block *k = &pool->block[pool->free[i] - 1];
        pool->free[i] = k->next;
        pool->free_bytes -= k->bytes;
        k->used = true;
        return k;
    }
    return NULL;
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
    if (pool->slot) index_blocks(pool);
}

static bool reserve(dq_backend *b, dq_cuda_pool *pool)
{
    if (pool->n < pool->capacity) return true;
    if (pool->n > UINT32_MAX / 4) {
        dq_fail(&b->err, DQ_RESOURCE, "out of memory (%zu blocks of device memory)", pool->n);
        return false;
    }
    size_t capacity = pool->capacity;
    block *list = dq_grow(NULL, pool->block, pool->n + 1, &capacity, sizeof *list, &b->err);
    if (!list) return false;
    pool->block = list;
    uint32_t *slot = dq_block_new(2 * capacity, sizeof *slot, &b->err);
    if (!slot) return false; /* pool->capacity still is that of the table */
    dq_block_free(pool->slot);
    pool->slot = slot;
    pool->capacity = capacity;
    index_blocks(pool);
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
    dq_fail_with(&b->err, DQ_RESOURCE, (dq_remedy){.code = DQ_REMEDY_CPU},
                 "cuda:%d: out of memory (%s, %.2f MiB of %.2f MiB free)", dq_cuda_of(b)->device,
                 needed, (double)free_bytes / mib, (double)total / mib);
}

size_t dq_cuda_memory(const dq_backend *b)
{
    const dq_cuda *c = dq_cuda_of(b);
    size_t bytes = 0, total = 0;
    if (cudaMemGetInfo(&bytes, &total) != cudaSuccess) bytes = 0;
    bytes += c->pool->free_bytes;
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
    if (b->err.code != DQ_OK || !reserve(b, pool)) return NULL;
    bytes = bytes ? bytes : 1;
    if (!pool->exact) bytes = round_up(bytes);
    block *found = take_free(pool, bytes);
    if (found) return found->p;
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
    pool->block[pool->n] = (block){.p = p, .bytes = bytes, .used = true};
    *slot_of(pool, p) = (uint32_t)++pool->n;
    return p;
}

void dq_cuda_free(dq_backend *b, void *p)
{
    dq_cuda_pool *pool = dq_cuda_of(b)->pool;
    if (!p) return;
    const uint32_t at = pool->slot ? *slot_of(pool, p) : 0;
    block *k = at ? &pool->block[at - 1] : NULL;
    if (!k || !k->used) {
        dq_fail(&b->err, DQ_BUG, "memory is freed that the CUDA backend did not give out");
        return;
    }
    uint32_t *first = &pool->free[class_of(k->bytes)];
    k->used = false;
    k->next = *first;
    *first = at;
    pool->free_bytes += k->bytes;
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
