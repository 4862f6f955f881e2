/* cpu_blocks: the memory of KV pages. Scoring frees and takes as many pages with every group of items; what the
 * system would have to map and clear again is kept for the next ones.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_kv.h"

#include <string.h>

/* Kept at most: small pages are the ones that cost more to map than to fill. */
enum { KEPT_BYTES = 1 << 28 };

/* Stands in front of every block, in 64 bytes so that blocks are aligned. */
struct dq_cpu_kept {
    struct dq_cpu_kept *next; /* kept ones of the same size */
    size_t bytes;             /* of the block, without this */
};
enum { HEAD = 64 };

static void *block_of(dq_cpu_kept *k)
{
    return (char *)k + HEAD;
}

/* Where blocks of that size are kept, or could be; NULL: nowhere. */
static dq_cpu_kept **bin_of(dq_cpu *cpu, size_t bytes)
{
    dq_cpu_kept **empty = NULL;
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        dq_cpu_kept **bin = &cpu->kept[i];
        if (*bin && (*bin)->bytes == bytes) return bin;
        if (!*bin && !empty) empty = bin;
    }
    return empty;
}

void *dq_cpu_block_new(dq_backend *b, int64_t bytes)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const size_t n = (size_t)bytes;
    dq_cpu_kept **bin = bin_of(cpu, n), *k = bin ? *bin : NULL;
    if (k) {
        *bin = k->next;
        cpu->kept_bytes -= n;
        memset(block_of(k), 0, n);
        return block_of(k);
    }
    k = dq_block_new(1, HEAD + n, &b->err);
    if (!k) return NULL;
    k->bytes = n;
    return block_of(k);
}

void dq_cpu_block_free(dq_backend *b, void *p)
{
    dq_cpu *cpu = dq_cpu_of(b);
    if (!p) return;
    dq_cpu_kept *k = (dq_cpu_kept *)((char *)p - HEAD);
    dq_cpu_kept **bin = bin_of(cpu, k->bytes);
    if (!bin || k->bytes > KEPT_BYTES - cpu->kept_bytes) {
        dq_block_free(k);
        return;
    }
    k->next = *bin;
    *bin = k;
    cpu->kept_bytes += k->bytes;
}

void dq_cpu_blocks_end(dq_backend *b)
{
    dq_cpu *cpu = dq_cpu_of(b);
    for (int i = 0; i < DQ_CPU_BINS; i++) {
        while (cpu->kept[i]) {
            dq_cpu_kept *k = cpu->kept[i];
            cpu->kept[i] = k->next;
            dq_block_free(k);
        }
    }
    cpu->kept_bytes = 0;
}
