/* cuda_transfer: copies between host and device. What goes up passes a ring of pinned blocks, so that
 * the caller's memory is free when a call returns and the device need not wait; what comes down waits
 * in pinned memory until the backend is synchronized.
 * SPDX-License-Identifier: MIT */
#include "kernels/cuda/host/cuda.h"

#include <string.h>

enum { RING_BYTES = 4 << 20, RING = 4, AREA_BYTES = 1 << 20 };

typedef struct ring_block {
    uint8_t *p;        /* pinned, NULL until first used */
    cudaEvent_t empty; /* after the last copy out of it */
    bool busy;
} ring_block;

typedef struct area {
    uint8_t *p; /* pinned */
    size_t bytes, used;
} area;

typedef struct result {
    dq_cuda_take *take;
    void *arg;
    const void *data;
    size_t bytes;
} result;

/* A list of n things of one size. */
typedef struct list {
    void *item;
    size_t n, capacity;
} list;

struct dq_cuda_transfer {
    ring_block ring[RING];
    int current;
    size_t ring_used; /* of the current block */
    list upload;      /* void *: device memory to free at dq_cuda_upload_end */
    list area, result;
    list note; /* void *: host memory */
};

/* Capacity for one more; NULL with the sticky error set. */
static void *push(dq_backend *b, list *l, size_t size)
{
    void *item = dq_grow(NULL, l->item, l->n + 1, &l->capacity, size, &b->err);
    if (!item) return NULL;
    l->item = item;
    return (uint8_t *)l->item + size * l->n++;
}

dq_cuda_transfer *dq_cuda_transfer_new(dq_err *err)
{
    return dq_block_new(1, sizeof(dq_cuda_transfer), err);
}

static void forget_results(dq_cuda_transfer *t)
{
    area *a = t->area.item;
    void **note = t->note.item;
    for (size_t i = 0; i < t->area.n; i++) a[i].used = 0;
    for (size_t i = 0; i < t->note.n; i++) dq_block_free(note[i]);
    t->result.n = t->note.n = 0;
}

void dq_cuda_transfer_free(dq_cuda_transfer *t)
{
    if (!t) return;
    for (int i = 0; i < RING; i++) {
        if (t->ring[i].p) cudaFreeHost(t->ring[i].p);
        if (t->ring[i].empty) cudaEventDestroy(t->ring[i].empty);
    }
    forget_results(t);
    area *a = t->area.item;
    for (size_t i = 0; i < t->area.n; i++) cudaFreeHost(a[i].p);
    dq_block_free(t->upload.item);
    dq_block_free(t->area.item);
    dq_block_free(t->result.item);
    dq_block_free(t->note.item);
    dq_block_free(t);
}

static void *pinned(dq_backend *b, size_t bytes)
{
    void *p = NULL;
    const cudaError_t e = cudaMallocHost(&p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        dq_fail(&b->err, DQ_RESOURCE, "out of memory (%zu bytes of pinned host memory)", bytes);
        return NULL;
    }
    return dq_cuda_ok(b, e, "cudaMallocHost") ? p : NULL;
}

/* ----------------------------------------------------------------------------------------------- up */
/* The current block, with space left in it. */
static ring_block *ring_reserve(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    ring_block *k = &t->ring[t->current];
    if (t->ring_used == RING_BYTES) {
        if (!dq_cuda_ok(b, cudaEventRecord(k->empty, c->stream), "cudaEventRecord")) return NULL;
        k->busy = true;
        t->current = (t->current + 1) % RING;
        t->ring_used = 0;
        k = &t->ring[t->current];
    }
    if (!k->p) {
        if (!k->empty && !dq_cuda_ok(b, cudaEventCreateWithFlags(&k->empty, cudaEventDisableTiming),
                                     "cudaEventCreate"))
            return NULL;
        k->p = pinned(b, RING_BYTES);
        if (!k->p) return NULL;
    }
    if (k->busy) {
        if (!dq_cuda_ok(b, cudaEventSynchronize(k->empty), "cudaEventSynchronize")) return NULL;
        k->busy = false;
    }
    return k;
}

void dq_cuda_put(dq_backend *b, void *dst, const void *host, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    uint8_t *to = dst;
    const uint8_t *from = host;
    if (b->err.code != DQ_OK) return;
    while (bytes > 0) {
        const ring_block *k = ring_reserve(b);
        if (!k) return;
        const size_t left = RING_BYTES - t->ring_used, n = bytes < left ? bytes : left;
        memcpy(k->p + t->ring_used, from, n);
        if (!dq_cuda_ok(
                b, cudaMemcpyAsync(to, k->p + t->ring_used, n, cudaMemcpyHostToDevice, c->stream),
                "copy to the device"))
            return;
        /* in steps of 64 bytes: what is read by the device and what is written next share no line */
        t->ring_used = n == left ? RING_BYTES : (t->ring_used + n + 63) / 64 * 64;
        to += n;
        from += n;
        bytes -= n;
    }
}

const void *dq_cuda_upload(dq_backend *b, const void *host, size_t bytes)
{
    void *p = dq_cuda_alloc(b, bytes);
    if (!p) return NULL;
    void **slot = push(b, &dq_cuda_of(b)->transfer->upload, sizeof *slot);
    if (!slot) {
        dq_cuda_free(b, p);
        return NULL;
    }
    *slot = p;
    dq_cuda_put(b, p, host, bytes);
    return b->err.code == DQ_OK ? p : NULL;
}

void dq_cuda_upload_end(dq_backend *b)
{
    list *l = &dq_cuda_of(b)->transfer->upload;
    void **p = l->item;
    for (size_t i = 0; i < l->n; i++) dq_cuda_free(b, p[i]);
    l->n = 0;
}

/* --------------------------------------------------------------------------------------------- down */
static void *area_take(dq_backend *b, size_t bytes)
{
    dq_cuda_transfer *t = dq_cuda_of(b)->transfer;
    area *a = t->area.item;
    const size_t whole = (bytes + 63) / 64 * 64;
    for (size_t i = 0; i < t->area.n; i++) {
        if (a[i].bytes - a[i].used < whole) continue;
        a[i].used += whole;
        return a[i].p + a[i].used - whole;
    }
    const area fresh = {.bytes = whole > AREA_BYTES ? whole : AREA_BYTES, .used = whole};
    area *more = push(b, &t->area, sizeof *more);
    if (!more) return NULL;
    *more = fresh;
    more->p = pinned(b, fresh.bytes);
    if (!more->p) t->area.n--;
    return more->p;
}

void dq_cuda_finish_uploads(dq_backend *b)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    dq_cuda_ok(b, cudaStreamSynchronize(c->stream), "a kernel");
    const result *r = t->result.item;
    for (size_t i = 0; i < t->result.n && b->err.code == DQ_OK; i++) {
        if (r[i].take)
            r[i].take(r[i].arg, r[i].data, r[i].bytes);
        else
            memcpy(r[i].arg, r[i].data, r[i].bytes);
    }
    forget_results(t);
}

void dq_cuda_download(dq_backend *b, const void *src, size_t bytes, dq_cuda_take *take, void *arg)
{
    dq_cuda *c = dq_cuda_of(b);
    dq_cuda_transfer *t = c->transfer;
    if (b->err.code != DQ_OK) return;
    void *data = area_take(b, bytes);
    result *r = data ? push(b, &t->result, sizeof *r) : NULL;
    if (!r) return;
    *r = (result){.take = take, .arg = arg, .data = data, .bytes = bytes};
    if (bytes)
        dq_cuda_ok(b, cudaMemcpyAsync(data, src, bytes, cudaMemcpyDeviceToHost, c->stream),
                   "copy from the device");
}

void *dq_cuda_note(dq_backend *b, size_t bytes)
{
    if (b->err.code != DQ_OK) return NULL;
    void **slot = push(b, &dq_cuda_of(b)->transfer->note, sizeof *slot);
    if (!slot) return NULL;
    *slot = dq_block_new(1, bytes ? bytes : 1, &b->err);
    return *slot;
}

void dq_cuda_get(dq_backend *b, void *host, const void *src, size_t bytes)
{
    dq_cuda *c = dq_cuda_of(b);
    if (b->err.code != DQ_OK) return;
    if (bytes)
        dq_cuda_ok(b, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, c->stream),
                   "copy from the device");
    dq_cuda_finish_uploads(b);
}
