/* cpu_blocks: the memory of KV pages. Blocks of one size are cut from chunks in large pages of the system (small chunks of a
 * small cache aside), so that attention reads many small blocks as if they were one stream: memory is translated, and fetched
 * ahead, across them. Scoring frees and takes as many pages with every group of items; what the system would have to
 * map and clear again is kept for the next ones.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/kv/cpu_kv.h"

#include <string.h>

enum {
    /* Kept at most: small pages are the ones that cost more to map than to fill. */
    KEPT_BYTES = 1 << 28,
    /* Of a chunk, where there are blocks of SMALL_BYTES already. What is not handed out yet is not touched. */
    CHUNK_BYTES = 1 << 24,
    SMALL_BYTES = 1 << 19,
    LARGE_PAGE = 1 << 21,
    HEAD = 64 /* before every chunk and block, so that these are aligned */
};

/* Stands before every block. */
typedef struct head {
    dq_cpu_chunk *chunk;
    struct head *next; /* free ones of the chunk */
} head;

/* A chunk with free blocks stands in the list of its bin; a full one is known to its blocks alone. */
struct dq_cpu_chunk {
    dq_cpu_chunk *next, *before;
    dq_cpu_bin *bin; /* NULL: none was left, and the chunk has one block */
    void *memory;    /* that it lies in */
    head *free;
    int64_t capacity, cut, live; /* blocks: that fit, handed out once or more, in use */
};

_Static_assert(sizeof(dq_cpu_chunk) <= HEAD && sizeof(head) <= HEAD, "heads");

static size_t chunk_bytes(const dq_cpu_chunk *c, size_t block)
{
    return HEAD + (size_t)c->capacity * (HEAD + block);
}

/* Where blocks of that size are, or could be; NULL: nowhere. */
static dq_cpu_bin *bin_of(dq_cpu *cpu, size_t bytes)
{
    dq_cpu_bin *empty = NULL;
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        dq_cpu_bin *bin = &cpu->bin[i];
        if (bin->chunks && bin->bytes == bytes) return bin;
        if (!bin->chunks && !empty) empty = bin;
    }
    if (empty) *empty = (dq_cpu_bin){.bytes = bytes};
    return empty;
}

static void open_chunk(dq_cpu_chunk *c)
{
    c->before = NULL;
    c->next = c->bin->open;
    if (c->next) c->next->before = c;
    c->bin->open = c;
}

static void close_chunk(dq_cpu_chunk *c)
{
    if (c->next) c->next->before = c->before;
    if (c->before)
        c->before->next = c->next;
    else
        c->bin->open = c->next;
}

/* Of at least a large page: at the beginning of one. */
static dq_cpu_chunk *chunk_memory(size_t bytes, void **memory, dq_err *err)
{
    const bool large = bytes >= LARGE_PAGE;
    const size_t more = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    *memory = dq_block_raw(1, large ? more + LARGE_PAGE : bytes, err);
    if (!*memory || !large) return *memory;
    char *at = *memory;
    at += (LARGE_PAGE - (uintptr_t)at % LARGE_PAGE) % LARGE_PAGE;
    dq_os_memory_large(at, more);
    return (dq_cpu_chunk *)(void *)at;
}

/* Sanitizers see what goes beyond memory of its own. */
#if defined(__SANITIZE_ADDRESS__)
enum { CHUNKS = false };
#else
enum { CHUNKS = true };
#endif

static int64_t chunk_capacity(const dq_cpu_bin *bin, size_t bytes)
{
    const size_t held = bin ? (size_t)bin->capacity * (HEAD + bytes) : 0;
    const int64_t most = (int64_t)((CHUNK_BYTES - HEAD) / (HEAD + bytes));
    if (!CHUNKS || !bin || bin->capacity == 0 || most == 0) return 1;
    return held < SMALL_BYTES ? bin->capacity : most; /* as many again */
}

static dq_cpu_chunk *chunk_new(dq_backend *b, dq_cpu_bin *bin, size_t bytes)
{
    dq_cpu_chunk shape = {.bin = bin, .capacity = chunk_capacity(bin, bytes)};
    size_t size = chunk_bytes(&shape, bytes);
    dq_err many = {0};
    dq_cpu_chunk *c = chunk_memory(size, &shape.memory, shape.capacity > 1 ? &many : &b->err);
    if (many.code != DQ_OK) { /* there may be memory for a block still */
        shape.capacity = 1;
        c = chunk_memory(size = chunk_bytes(&shape, bytes), &shape.memory, &b->err);
    }
    if (!c) return NULL;
    *c = shape;
    if (!bin) return c;
    bin->chunks++;
    bin->capacity += c->capacity;
    dq_cpu_of(b)->kept_bytes += size;
    open_chunk(c);
    return c;
}

static void chunk_free(dq_cpu *cpu, dq_cpu_chunk *c)
{
    dq_cpu_bin *bin = c->bin;
    if (bin) {
        close_chunk(c);
        bin->chunks--;
        bin->capacity -= c->capacity;
        cpu->kept_bytes -= chunk_bytes(c, bin->bytes);
    }
    dq_block_free(c->memory);
}

void *dq_cpu_block_new(dq_backend *b, int64_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const size_t n = (size_t)(bytes + 63) / 64 * 64;
    dq_cpu_bin *bin = bin_of(cpu, n);
    dq_cpu_chunk *c = bin ? bin->open : NULL;
    if (!c) c = chunk_new(b, bin, n);
    if (!c) return NULL;
    head *h = c->free;
    if (h)
        c->free = h->next;
    else
        h = (head *)(void *)((char *)c + HEAD + (size_t)c->cut++ * (HEAD + n));
    h->chunk = c;
    if (bin && c->live == 0) cpu->kept_bytes -= chunk_bytes(c, n);
    c->live++;
    if (bin && c->live == c->capacity) close_chunk(c);
    return memset((char *)h + HEAD, 0, n);
}

void dq_cpu_block_free(dq_backend *b, void *p)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (!p) return;
    head *h = (head *)(void *)((char *)p - HEAD);
    dq_cpu_chunk *c = h->chunk;
    if (!c->bin) {
        chunk_free(cpu, c);
        return;
    }
    if (c->live == c->capacity) open_chunk(c);
    h->next = c->free;
    c->free = h;
    if (--c->live > 0) return;
    cpu->kept_bytes += chunk_bytes(c, c->bin->bytes);
    if (cpu->kept_bytes > KEPT_BYTES) chunk_free(cpu, c);
}

void dq_cpu_blocks_end(dq_backend *b)
{
    dq_cpu *cpu = dq_cpu_of(b);
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        for (dq_cpu_chunk *c = cpu->bin[i].open, *next; c; c = next) {
            next = c->next;
            if (c->live == 0) chunk_free(cpu, c);
        }
    }
}
