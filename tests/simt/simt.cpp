/* simt: launches, blocks, shared memory, and the reports of what went wrong.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum {
    GAP = 64 /* bytes between shared variables that nobody may touch */
};

static simt_settings from_environment(void)
{
    const char *schedule = getenv("DQ_SIMT_SCHEDULE"), *seed = getenv("DQ_SIMT_SEED");
    const char *workers = getenv("DQ_SIMT_WORKERS");
    simt_settings s;
    s.schedule =
        schedule && !strcmp(schedule, "round-robin") ? DQ_SIMT_ROUND_ROBIN : DQ_SIMT_GREEDY;
    s.seed = seed ? strtoull(seed, NULL, 10) : 1;
    s.workers = workers ? atoi(workers) : 1;
    s.corners = false;
    s.quiet = getenv("DQ_SIMT_QUIET") != NULL;
    return s;
}

simt_settings simt_set = from_environment();
const char *const simt_left_out = getenv("DQ_SIMT_WITHOUT");

/* --------------------------------------------------------------------------------------- failures */
static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static char report[8192];
static bool failed;

bool simt_failed(void)
{
    pthread_mutex_lock(&report_lock);
    bool f = failed;
    pthread_mutex_unlock(&report_lock);
    return f;
}

void simt_forget_failure(void)
{
    pthread_mutex_lock(&report_lock);
    failed = false;
    report[0] = '\0';
    pthread_mutex_unlock(&report_lock);
}

const char *dq_simt_report(void)
{
    return report;
}

void simt_record(simt_block *b, const simt_thread *t, int line, const char *text)
{
    pthread_mutex_lock(&report_lock);
    if (!failed) {
        failed = true;
        int n = snprintf(report, sizeof report, "kernel %s, block (%u,%u,%u)", b->launch->name,
                         b->index.x, b->index.y, b->index.z);
        if (t)
            n += snprintf(report + n, sizeof report - (size_t)n, ", thread %u, line %d",
                          t->place.thread, line);
        snprintf(report + n, sizeof report - (size_t)n, ": %s", text);
        if (!simt_set.quiet) fprintf(stderr, "simt: %s\n", report);
    }
    pthread_mutex_unlock(&report_lock);
    b->failed = true;
}

void simt_fail(int line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    simt_thread *t = simt_self();
    simt_lock(t->block);
    simt_record(t->block, t, line, text);
    simt_leave(t);
}

/* "lanes 0-3,7", for a mask that is not 0 */
static int lanes_text(char *out, size_t capacity, uint32_t mask)
{
    int n = snprintf(out, capacity, "lane%s ", mask & (mask - 1) ? "s" : "");
    const char *comma = "";
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1u)) continue;
        unsigned end = i;
        while (end < 31 && mask >> (end + 1) & 1u) end++;
        if (end > i)
            n += snprintf(out + n, capacity - (size_t)n, "%s%u-%u", comma, i, end);
        else
            n += snprintf(out + n, capacity - (size_t)n, "%s%u", comma, i);
        comma = ",";
        i = end;
    }
    return n;
}

static bool same_wait(const simt_thread *a, const simt_thread *b)
{
    return a->state == b->state && a->barrier == b->barrier && a->post.op == b->post.op &&
           a->line == b->line && a->waits == b->waits && a->waits_at == b->waits_at;
}

static int wait_text(char *out, size_t capacity, const simt_block *b, const simt_thread *t)
{
    if (t->state == SIMT_DONE) return snprintf(out, capacity, " returned");
    if (t->barrier == 0)
        return snprintf(out, capacity, " wait in dq_sync, line %d (%u of %u there)", t->line,
                        b->barrier[0].arrived, b->live);
    if (t->barrier > 0)
        return snprintf(out, capacity, " wait at barrier %d, line %d (%u of %u there)", t->barrier,
                        t->line, b->barrier[t->barrier].arrived, b->barrier[t->barrier].expected);
    if (t->waits) return simt_hopper_text(out, capacity, t);
    if (t->post.op)
        return snprintf(out, capacity, " wait in %s, line %d, for lanes %08x", t->post.what,
                        t->line, t->post.mask & ~b->posted[t->warp]);
    return snprintf(out, capacity, " run");
}

/* Lines about who waits for what in the block. */
static int block_text(char *text, size_t capacity, const simt_block *b)
{
    int n = 0;
    for (unsigned w = 0; w < b->n / 32; w++) {
        uint32_t seen = 0;
        for (unsigned i = 0; i < 32 && (size_t)n + 500 < capacity; i++) {
            if (seen >> i & 1u) continue;
            const simt_thread *t = &b->thread[32 * w + i];
            uint32_t same = 0;
            for (unsigned j = i; j < 32; j++)
                if (same_wait(t, t - i + j)) same |= 1u << j;
            seen |= same;
            n += snprintf(text + n, capacity - (size_t)n, "\n  warp %u ", w);
            n += lanes_text(text + n, capacity - (size_t)n, same);
            n += wait_text(text + n, capacity - (size_t)n, b, t);
        }
    }
    return n;
}

void simt_stuck(simt_block *b)
{
    char text[7000];
    int n = snprintf(text, sizeof text, "deadlock");
    n += block_text(text + n, sizeof text - (size_t)n, b);
    simt_block *of[SIMT_MAX_CLUSTER];
    const unsigned blocks = simt_cluster_of(b, of);
    for (unsigned k = 0; k < blocks; k++) {
        if (of[k] == b) continue;
        n += snprintf(text + n, sizeof text - (size_t)n, "\n block (%u,%u,%u)%s", of[k]->index.x,
                      of[k]->index.y, of[k]->index.z, of[k]->live ? "" : " has ended");
        if (of[k]->live) n += block_text(text + n, sizeof text - (size_t)n, of[k]);
    }
    simt_record(b, NULL, 0, text);
}

/* ----------------------------------------------------------------------------------------- threads */
const simt_place *simt_here(void)
{
    return &simt_self()->place;
}

void simt_thread_main(simt_thread *t)
{
    t->block->launch->run(t->block->launch->body);
    simt_lock(t->block);
    simt_copy_all(t);
    if (t->block->hopper) simt_absorb(t->block, t);
    t->state = SIMT_DONE;
    t->block->live--;
    t->block->running--;
    t->block->runnable[t->warp] &= ~(1u << t->lane);
    simt_exit_barriers(t->block);
    if (t->block->hopper) simt_hopper_exit(t);
    simt_unlock(t->block);
}

/* ----------------------------------------------------------------------------------- shared memory */
static unsigned char *carve(simt_block *b, size_t bytes, size_t align)
{
    size_t at = (b->arena_used + align - 1) / align * align;
    if (at + bytes > b->arena_size) return NULL;
    b->arena_used = at + bytes + GAP;
    ASAN_UNPOISON_MEMORY_REGION(b->arena + at, bytes);
    return b->arena + at;
}

void *simt_shared(const void *key, size_t bytes, size_t align)
{
    simt_block *b = simt_self()->block;
    unsigned char *p = NULL;
    bool too_much = false;
    simt_lock(b);
    for (int i = 0; i < b->n_shared && !p; i++)
        if (b->shared[i].key == key) p = b->shared[i].p;
    if (!p) {
        b->static_bytes += bytes;
        too_much = b->static_bytes > SIMT_SMEM_DEFAULT ||
                   b->static_bytes + b->launch->smem > SIMT_SMEM_LIMIT ||
                   b->n_shared == SIMT_MAX_SHARED;
        p = too_much ? NULL : carve(b, bytes, align);
        if (p) {
            b->shared[b->n_shared].key = key;
            b->shared[b->n_shared].bytes = bytes;
            b->shared[b->n_shared++].p = p;
        }
    }
    simt_unlock(b);
    if (!p) simt_fail(0, "too much static shared memory (%zu bytes)", b->static_bytes);
    return p;
}

unsigned char *simt_shared_dynamic(void)
{
    return simt_self()->block->dynamic;
}

void simt_check_shared(const void *p, size_t bytes, const char *what, int line)
{
    const simt_block *b = simt_self()->block;
    uintptr_t at = (uintptr_t)p, low = (uintptr_t)b->arena;
    if (at < low || at + bytes > low + b->arena_size)
        simt_fail(line, "%s: address %p is not in the block's shared memory", what, p);
}

bool simt_inside(const simt_block *b, const void *p, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)p;
    if (at >= b->dynamic && at + bytes <= b->dynamic + b->launch->smem) return true;
    for (int i = 0; i < b->n_shared; i++)
        if (at >= b->shared[i].p && at + bytes <= b->shared[i].p + b->shared[i].bytes) return true;
    return false;
}

/* Variables lie in the order in which a block's threads came to them, unlike in other blocks. */
unsigned char *simt_same_place(simt_block *peer, const simt_block *own, const void *p)
{
    const unsigned char *at = (const unsigned char *)p;
    if (peer == own) return own->arena + (at - own->arena);
    for (int i = 0; i < own->n_shared; i++) {
        const ptrdiff_t offset = at - own->shared[i].p;
        if (offset < 0 || (size_t)offset >= own->shared[i].bytes) continue;
        for (int k = 0; k < peer->n_shared; k++)
            if (peer->shared[k].key == own->shared[i].key) return peer->shared[k].p + offset;
        return NULL; /* no thread of the peer has come to it */
    }
    return peer->dynamic + (at - own->dynamic);
}

/* -------------------------------------------------------------------------------------------- blocks */
/* Blocks of a launch that run, along each axis; along x, whole clusters. */
static dim3 blocks_of(const simt_launch_args *l)
{
    if (!simt_set.corners) return l->grid;
    const unsigned x = l->grid.x / l->cluster;
    return dim3((x < 3 ? x : 3) * l->cluster, l->grid.y < 3 ? l->grid.y : 3,
                l->grid.z < 3 ? l->grid.z : 3);
}

/* The i-th of `some` among n: all of them, or the first, middle and last. */
static unsigned nth_of(uint64_t i, unsigned some, unsigned n)
{
    if (some == n || i == 0) return (unsigned)i;
    return i == 1 ? n / 2 : n - 1;
}

static void start_block(simt_block *b, uint64_t index)
{
    const simt_launch_args *l = b->launch;
    const dim3 some = blocks_of(l);
    const unsigned cluster = l->cluster;
    const uint64_t x = index % some.x;
    b->index = dim3(nth_of(x / cluster, some.x / cluster, l->grid.x / cluster) * cluster +
                        (unsigned)(x % cluster),
                    nth_of(index / some.x % some.y, some.y, l->grid.y),
                    nth_of(index / some.x / some.y, some.z, l->grid.z));
    b->live = b->running = b->n;
    b->failed = false;
    memset(b->barrier, 0, sizeof b->barrier);
    memset(b->posted, 0, sizeof b->posted);
    for (unsigned w = 0; w < SIMT_MAX_WARPS; w++) b->runnable[w] = w < b->n / 32 ? DQ_LANES : 0;
    b->warp = 0;
    b->last = b->n - 1;
    b->random = simt_set.seed * 0x2545f4914f6cdd1du + index * 0xd1342543de82ef95u;
    ASAN_UNPOISON_MEMORY_REGION(b->arena, b->arena_size);
    memset(b->arena, SIMT_POISON, b->arena_size);
    ASAN_POISON_MEMORY_REGION(b->arena, b->arena_size);
    b->arena_used = b->static_bytes = 0;
    b->n_shared = 0;
    b->dynamic = carve(b, l->smem, 1024);
    for (unsigned i = 0; i < b->n; i++) {
        simt_thread *t = &b->thread[i];
        t->place.thread = i;
        t->place.threads = b->n;
        t->place.block = b->index;
        t->place.grid = l->grid;
        t->block = b;
        t->warp = i / 32;
        t->lane = i % 32;
        t->state = SIMT_READY;
        t->barrier = -1;
        t->post.op = NULL;
        t->n_pending = 0;
        t->group = 0;
        t->waits = SIMT_WAITS_NONE;
        t->waits_at = NULL;
        t->crossed = t->cluster_crossed = 0;
        t->cluster_arrived = false;
        t->wgmma = {};
        t->random = b->random + (i + 1) * 0xaf251af3b0f025b5u;
    }
}

static void *must(void *p)
{
    if (!p) abort();
    return p;
}

struct simt_work {
    const simt_launch_args *launch;
    uint64_t next, n;
};

static simt_block *new_block(const simt_launch_args *l)
{
    simt_block *b = (simt_block *)must(calloc(1, sizeof *b));
    b->launch = l;
    b->n = l->threads;
    b->thread = (simt_thread *)must(calloc(b->n, sizeof *b->thread));
    b->arena_size =
        (l->smem + SIMT_SMEM_DEFAULT + (SIMT_MAX_SHARED + 2) * (GAP + 16) + SIMT_PAGE - 1) /
        SIMT_PAGE * SIMT_PAGE;
    b->arena = (unsigned char *)must(aligned_alloc(SIMT_PAGE, b->arena_size));
    return b;
}

static void free_block(simt_block *b)
{
    for (unsigned k = 0; k < b->n; k++) free(b->thread[k].pending);
    simt_hopper_free(b);
    ASAN_UNPOISON_MEMORY_REGION(b->arena, b->arena_size);
    free(b->arena);
    free(b->thread);
    free(b);
}

static void *run_blocks(void *arg)
{
    simt_work *w = (simt_work *)arg;
    const unsigned capacity = SIMT_MAX_THREADS / w->launch->threads, cluster = w->launch->cluster;
    unsigned together = capacity < SIMT_TOGETHER ? capacity : (unsigned)SIMT_TOGETHER;
    if (cluster > 1) together = cluster;
    simt_block *b[SIMT_MAX_CLUSTER];
    for (unsigned k = 0; k < together; k++) b[k] = new_block(w->launch);
    while (!simt_failed()) {
        unsigned n = 0;
        uint64_t i;
        while (n < together && (i = __atomic_fetch_add(&w->next, cluster, __ATOMIC_RELAXED)) < w->n)
            for (unsigned k = 0; k < cluster; k++) start_block(b[n++], i + k);
        if (n == 0) break;
        if (w->launch->capability >= 90) simt_hopper_open(b, n);
        simt_run_threads(b, n);
        if (w->launch->capability >= 90) simt_hopper_close(b, n);
    }
    for (unsigned k = 0; k < together; k++) free_block(b[k]);
    return NULL;
}

static void *run_worker(void *arg)
{
    run_blocks(arg);
    simt_release_stacks();
    return NULL;
}

bool simt_run(const simt_launch_args *l)
{
    const dim3 some = blocks_of(l);
    simt_work w = {l, 0, (uint64_t)some.x * some.y * some.z};
    enum { MAX = 64 };
    pthread_t os[MAX];
    int workers = simt_set.workers < MAX ? simt_set.workers : MAX;
    int n = 0;
    while (n < workers - 1 && !pthread_create(&os[n], NULL, run_worker, &w)) n++;
    run_blocks(&w);
    for (int i = 0; i < n; i++) pthread_join(os[i], NULL);
    return !simt_failed();
}
