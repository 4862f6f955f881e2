/* cpu_dense: see cpu_dense.h. What is copied at once lies in one pool, since a large page is larger than many a weight; the
 * memory of a weight that is released is given back, and with the last of them the pool.
 * SPDX-License-Identifier: MIT */
#include "kernels/cpu/linear/cpu_dense.h"
#include "base/base.h"
#include "base/os.h"
#include "tensor/tensor.h"

#include <string.h>

enum { COPY_AFTER = 16, LINE = 64 };

typedef struct pool {
    dq_os_block block;
    int64_t users; /* weights */
} pool;

typedef struct entry {
    const void *key; /* dq_weight.data */
    dq_weight w;
    int users;
    int uses;     /* products with few rows, up to COPY_AFTER */
    size_t bytes; /* of a copy */
    pool *pool;   /* NULL: it is not copied */
    const uint8_t *copy;
} entry;

struct dq_cpu_dense {
    dq_address_list entries; /* every dense weight that is acquired */
};

static entry *find(const dq_cpu_dense *all, const dq_weight *w)
{
    return all ? dq_address_list_find(&all->entries, w->data) : NULL;
}

bool dq_cpu_dense_takes(const dq_weight *w)
{
    return !dq_weight_is_coded(w) || w->format->block;
}

static size_t copy_bytes(const dq_weight *w)
{
    if (!dq_weight_is_coded(w)) return dq_weight_bytes(w);
    return (size_t)w->rows * (size_t)w->cols * sizeof(float);
}

static dq_cpu_dense *new_list(dq_err *err)
{
    dq_cpu_dense *all = dq_block_new(1, sizeof *all, err);
    if (all) all->entries.size = sizeof(entry);
    return all;
}

bool dq_cpu_dense_acquire(dq_backend *b, const dq_weight *w)
{
    dq_cpu *cpu = dq_cpu_of(b);
    const entry e = {.key = w->data, .w = *w, .users = 1, .bytes = copy_bytes(w)};
    if (b->err.code != DQ_OK) return false;
    if (!cpu->dense) cpu->dense = new_list(&b->err);
    if (!cpu->dense) return false;
    entry *known = find(cpu->dense, w);
    if (known) {
        known->users++;
        return true;
    }
    if (!dq_address_list_reserve(&cpu->dense->entries, &b->err)) return false;
    dq_address_list_add(&cpu->dense->entries, &e);
    return true;
}

static void leave_pool(pool *p)
{
    if (!p || --p->users > 0) return;
    dq_os_block_free(&p->block);
    dq_block_free(p);
}

void dq_cpu_dense_release(dq_backend *b, const dq_weight *w)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    entry *e = find(all, w);
    if (!e || --e->users > 0) return;
    if (e->pool) dq_os_map_release(e->copy, e->bytes);
    leave_pool(e->pool);
    dq_address_list_remove(&all->entries, e);
}

void dq_cpu_dense_end(dq_backend *b)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    if (!all) return;
    const entry *e = all->entries.item;
    for (size_t i = 0; i < all->entries.n; i++) leave_pool(e[i].pool);
    dq_address_list_free(&all->entries);
    dq_block_free(all);
}

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static bool is_wanted(const entry *e)
{
    bool cut;
    return !e->pool && (dq_weight_is_coded(&e->w) || dq_os_map_at(e->key, &cut) != NULL);
}

/* A pool for all that have none; NULL: none is wanted, or memory is short. */
static pool *new_pool(const dq_cpu_dense *all)
{
    const entry *e = all->entries.item;
    size_t bytes = 0;
    dq_err short_of = {0};
    for (size_t i = 0; i < all->entries.n; i++)
        bytes += is_wanted(&e[i]) ? whole_lines(e[i].bytes) : 0;
    if (bytes == 0 || (int64_t)bytes > dq_os_memory_left("") / 4 * 3) return NULL;
    pool *p = dq_block_new(1, sizeof *p, &short_of);
    if (p && dq_os_block_reserve(&p->block, bytes) && dq_os_block_take(&p->block)) return p;
    if (p) dq_os_block_free(&p->block);
    dq_block_free(p);
    return NULL;
}

/* In pieces, so that file and copy are not both resident. */
static void copy_one(uint8_t *to, const entry *e)
{
    enum { PIECE = 4 << 20 };
    const uint8_t *from = e->key;
    if (dq_weight_is_coded(&e->w)) {
        dq_weight_dequantize_rows((float *)(void *)to, &e->w, 0, e->w.rows);
        return;
    }
    for (size_t at = 0; at < e->bytes; at += PIECE) {
        const size_t n = e->bytes - at < PIECE ? e->bytes - at : PIECE;
        memcpy(to + at, from + at, n);
        dq_os_map_release(from + at, n);
    }
}

static void copy_all(dq_backend *b, dq_cpu_dense *all)
{
    entry *e = all->entries.item;
    const int64_t n = (int64_t)all->entries.n;
    pool *p = new_pool(all);
    uint8_t *to = p ? p->block.data : NULL;
    if (!p) return;
    dq_os_memory_large(p->block.data, p->block.bytes);
    for (int64_t i = 0; i < n; i++) {
        if (!is_wanted(&e[i])) continue;
        e[i].pool = p;
        e[i].copy = to;
        to += whole_lines(e[i].bytes);
        p->users++;
    }
#pragma omp parallel for num_threads(b->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < n; i++) {
        if (e[i].pool == p) copy_one(p->block.data + (e[i].copy - p->block.data), &e[i]);
    }
}

dq_weight dq_cpu_dense_weight(dq_backend *b, const dq_weight *w, bool few_rows)
{
    dq_cpu_dense *all = dq_cpu_of(b)->dense;
    entry *e = find(all, w);
    dq_weight copied = *w;
    if (!e || e->bytes != copy_bytes(w)) return copied;
    if (few_rows && e->uses < COPY_AFTER && ++e->uses == COPY_AFTER && !e->pool) copy_all(b, all);
    if (!e->pool) return copied;
    copied = dq_weight_of_f32(w->name, w->rows, w->cols, NULL);
    if (!dq_weight_is_coded(w)) copied.dtype = w->dtype;
    copied.data = e->copy;
    return copied;
}
