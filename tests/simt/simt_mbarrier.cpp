/* simt_mbarrier: mbarriers, bulk copies, what the async proxy sees of shared memory, and clusters.
 * A copy is noted where it is started; its bytes land, and are counted, at a random later moment,
 * at the latest when no thread of the cluster can run.
 *
 * Stores to shared memory are plain C++, so the pages of a block are write-protected while it runs:
 * what differs from the last note where a thread gives way, on pages that have faulted since, is
 * what that thread has written.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_hopper_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize_address))
#else
#define UNCHECKED
#endif
/* ThreadSanitizer orders what it is told to: there plain stores are its business. */
#ifdef __SANITIZE_THREAD__
enum { WATCHED = 0 };
#else
enum { WATCHED = 1 };
#endif

static __thread simt_block *open_blocks[SIMT_MAX_CLUSTER]; /* of this OS thread */
static __thread unsigned n_open;

/* ----------------------------------------------------------------------------------------- reports */
simt_hopper *simt_hopper_here(const char *what, int line)
{
    simt_block *b = simt_self()->block;
    if (!b->hopper)
        simt_fail(line, "%s needs compute capability 9.0, the device has %d.%d", what,
                  b->launch->capability / 10, b->launch->capability % 10);
    return b->hopper;
}

void simt_say(simt_block *b, int line, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (simt_self()) simt_fail(line, "%s", text);
    simt_record(b, NULL, line, text);
}

struct place_text {
    char text[48];
};

static place_text place_of(const simt_block *b)
{
    place_text p;
    snprintf(p.text, sizeof p.text, "block (%u,%u,%u)", b->index.x, b->index.y, b->index.z);
    return p;
}

struct barrier_text {
    char text[160];
};

/* "mbarrier &full[s] (byte 16 of shared memory, block (0,0,0))" */
static barrier_text name_of(const simt_hopper *h, const simt_mbarrier *m)
{
    barrier_text t;
    snprintf(t.text, sizeof t.text, "mbarrier %s (byte %td of the shared memory of %s)", m->name,
             m->at - h->block->arena, place_of(h->block).text);
    return t;
}

int simt_hopper_text(char *out, size_t capacity, const simt_thread *t)
{
    const simt_hopper *h = t->block->hopper;
    if (t->waits == SIMT_WAITS_CLUSTER)
        return snprintf(out, capacity, " wait in dq_cluster_wait, line %d (%u arrivals there)",
                        t->line, h->cluster->arrived);
    if (t->waits != SIMT_WAITS_MBARRIER) return simt_warpgroup_text(out, capacity, t);
    const simt_mbarrier *m = (const simt_mbarrier *)t->waits_at;
    return snprintf(out, capacity,
                    " wait in %s, line %d, for parity %u of %s, which is in phase %llu: %lld of %u "
                    "arrivals there, %lld bytes missing",
                    t->waits_name, t->line, t->waits_parity, name_of(h, m).text,
                    (unsigned long long)m->phase, (long long)m->count - (long long)m->pending,
                    m->count, (long long)m->bytes);
}

void simt_block_on(simt_thread *t, simt_waits what, int line)
{
    t->waits = what;
    t->line = line;
    t->state = SIMT_WAITING;
    simt_wait(t);
}

void simt_wake(simt_thread *t)
{
    t->waits = SIMT_WAITS_NONE;
    simt_ready(t);
}

/* ------------------------------------------------------------------------------ the async proxy's view */
static size_t pages(const simt_block *b)
{
    return b->arena_size / SIMT_PAGE;
}

static void protect(simt_block *b, size_t page, size_t n, int how)
{
    if (WATCHED && mprotect(b->arena + page * SIMT_PAGE, n * SIMT_PAGE, how)) abort();
}

bool simt_first_write(uintptr_t at)
{
    for (unsigned k = 0; k < n_open; k++) {
        simt_block *b = open_blocks[k];
        const uintptr_t low = (uintptr_t)b->arena;
        if (at < low || at >= low + b->arena_size) continue;
        const size_t page = (at - low) / SIMT_PAGE;
        if (b->hopper->dirty[page]) return false; /* it was writable */
        b->hopper->dirty[page] = true;
        protect(b, page, 1, PROT_READ | PROT_WRITE);
        return true;
    }
    return false;
}

static void note_write(simt_hopper *h, const simt_thread *t, size_t at)
{
    const size_t cell = at / SIMT_CELL;
    if (h->writing[cell])
        simt_say(h->block, t->line,
                 "thread %u writes byte %zu of shared memory, to which a bulk copy is on its way",
                 t->place.thread, at);
    else if (h->reading[cell])
        simt_say(
            h->block, t->line,
            "thread %u writes byte %zu of shared memory, which the wgmma of line %d still reads",
            t->place.thread, at, simt_product_at(h, (uint32_t)cell));
    h->writer[at / SIMT_WORD] = (uint16_t)(t->place.thread + 1);
    h->wrote[t->place.thread][at / SIMT_PAGE] = true;
}

/* A word belongs to who has changed a byte of it last: a store of what stood there before cannot be
 * seen. */
UNCHECKED static void absorb_page(simt_hopper *h, const simt_thread *t, size_t page)
{
    const unsigned char *now = h->block->arena;
    for (size_t word = page * SIMT_PAGE; word < (page + 1) * SIMT_PAGE; word += SIMT_WORD) {
        uint32_t a, b;
        __builtin_memcpy(&a, now + word, sizeof a);
        __builtin_memcpy(&b, &h->seen[word], sizeof b);
        if (a == b) continue;
        __builtin_memcpy(&h->seen[word], &a, sizeof a);
        note_write(h, t, word + (size_t)__builtin_ctz(a ^ b) / 8);
    }
}

void simt_stored(const void *p)
{
    simt_unseen unseen;
    const simt_thread *t = simt_self();
    simt_hopper *h = t->block->hopper;
    const size_t at = (size_t)((const unsigned char *)p - t->block->arena);
    if (!WATCHED || !h || at >= t->block->arena_size) return;
    for (size_t i = 0; i < SIMT_CELL; i += SIMT_WORD) note_write(h, t, at + i);
}

void simt_absorb(simt_block *b, const simt_thread *t)
{
    simt_hopper *h = b->hopper;
    if (h->dirty.none()) return;
    for (size_t page = 0; page < pages(b); page++) {
        if (!h->dirty[page]) continue;
        absorb_page(h, t, page);
        protect(b, page, 1, PROT_READ);
        h->dirty[page] = false;
    }
}

/* Bytes as the async proxy writes them. */
static void put(simt_hopper *h, unsigned char *dst, const unsigned char *src, size_t bytes)
{
    const simt_thread *t = simt_self();
    const size_t at = (size_t)(dst - h->block->arena);
    if (t && t->block == h->block) simt_absorb(h->block, t);
    if (src)
        memcpy(&h->seen[at], src, bytes);
    else
        memset(&h->seen[at], SIMT_POISON, bytes);
    memcpy(dst, &h->seen[at], bytes);
}

unsigned simt_unfenced(const simt_hopper *h, uint32_t cell)
{
    enum { EACH = SIMT_CELL / SIMT_WORD };
    for (size_t i = cell * EACH; i < (cell + 1) * (size_t)EACH; i++)
        if (h->writer[i]) return h->writer[i];
    return 0;
}

void simt_fence_async(int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_hopper *h = simt_hopper_here("dq_fence_async", line);
    simt_pause();
    simt_absorb(h->block, t);
    std::bitset<SIMT_MAX_PAGES> &mine = h->wrote[t->place.thread];
    for (size_t page = 0; page < pages(h->block) && mine.any(); page++) {
        if (!mine[page]) continue;
        for (size_t i = page * SIMT_PAGE / SIMT_WORD; i < (page + 1) * SIMT_PAGE / SIMT_WORD; i++)
            if (h->writer[i] == t->place.thread + 1) h->writer[i] = 0;
        mine[page] = false;
    }
    for (int i = 0; i < h->n_barriers; i++)
        if (h->barrier[i].thread == t->place.thread) h->barrier[i].fenced = true;
}

/* --------------------------------------------------------------------------------------- mbarriers */
static const uint64_t tag = 0xb0b0b0b0a77eb0b0u; /* what stands where an mbarrier is */

static simt_mbarrier *lookup(simt_hopper *h, const unsigned char *at)
{
    for (int i = 0; i < h->n_barriers; i++)
        if (h->barrier[i].at == at) return &h->barrier[i];
    return NULL;
}

static void check_place(const void *p, const char *what, int line)
{
    const simt_block *b = simt_self()->block;
    simt_check_aligned(p, 8, what, line);
    simt_check_shared(p, 8, what, line);
    if (!simt_inside(b, p, 8))
        simt_fail(line, "%s: byte %td is outside the block's shared memory", what,
                  (const unsigned char *)p - b->arena);
}

void simt_mbarrier_init(void *barrier, unsigned count, const char *name, int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_hopper *h = simt_hopper_here("dq_mbarrier_init", line);
    check_place(barrier, "dq_mbarrier_init", line);
    const simt_mbarrier *old = lookup(h, (unsigned char *)barrier);
    if (old)
        simt_fail(line, "%s, of line %d, is initialised again", name_of(h, old).text, old->line);
    if (count < 1 || count >= 1u << 20) simt_fail(line, "mbarrier %s for %u arrivals", name, count);
    if (h->n_barriers == SIMT_MBARRIERS) simt_fail(line, "more than %d mbarriers", SIMT_MBARRIERS);
    simt_mbarrier *m = &h->barrier[h->n_barriers++];
    *m = {};
    m->at = (unsigned char *)barrier;
    m->name = name;
    m->line = line;
    m->count = count;
    m->pending = count;
    m->thread = t->place.thread;
    m->crossed = t->crossed;
    put(h, m->at, (const unsigned char *)&tag, sizeof tag);
}

void simt_fence_mbarrier_init(int line)
{
    simt_unseen unseen;
    const simt_thread *t = simt_self();
    simt_hopper *h = simt_hopper_here("dq_fence_mbarrier_init", line);
    for (int i = 0; i < h->n_barriers; i++) {
        simt_mbarrier *m = &h->barrier[i];
        if (m->thread != t->place.thread || m->fenced_cluster) continue;
        m->fenced = m->fenced_cluster = true;
        m->cluster_crossed = t->cluster_crossed;
    }
}

static void check_whole(const simt_hopper *h, const simt_mbarrier *m, int line)
{
    if (memcmp(m->at, &tag, sizeof tag)) simt_fail(line, "%s was written over", name_of(h, m).text);
}

/* The barrier at p of the thread's own block. */
static simt_mbarrier *own_barrier(void *p, const char *what, int line)
{
    const simt_thread *t = simt_self();
    simt_hopper *h = simt_hopper_here(what, line);
    check_place(p, what, line);
    simt_mbarrier *m = lookup(h, (unsigned char *)p);
    if (!m)
        simt_fail(line, "%s: no mbarrier was initialised at byte %td of shared memory", what,
                  (unsigned char *)p - h->block->arena);
    check_whole(h, m, line);
    if (m->thread != t->place.thread && h->block->thread[m->thread].crossed == m->crossed)
        simt_fail(line,
                  "%s: no barrier stands between the initialisation of %s by thread %u, line %d, "
                  "and this use",
                  what, name_of(h, m).text, m->thread, m->line);
    return m;
}

/* The barrier in the block of that rank which lies where p is in this one; for copies also the own
 * one. */
static simt_mbarrier *barrier_of(unsigned rank, void *p, const char *what, int line)
{
    simt_hopper *own = simt_hopper_here(what, line);
    simt_cluster *c = own->cluster;
    if (rank >= c->n) simt_fail(line, "%s: rank %u of a cluster of %u", what, rank, c->n);
    if (rank == own->rank) return own_barrier(p, what, line);
    check_place(p, what, line);
    simt_block *peer = c->block[rank];
    if (!peer->live)
        simt_fail(line, "%s: to %s (rank %u), which has ended", what, place_of(peer).text, rank);
    const unsigned char *at = simt_same_place(peer, own->block, p);
    simt_mbarrier *m = at ? lookup(peer->hopper, at) : NULL;
    if (!m)
        simt_fail(line, "%s: no mbarrier was initialised there in %s (rank %u)", what,
                  place_of(peer).text, rank);
    check_whole(peer->hopper, m, line);
    const simt_thread *by = &peer->thread[m->thread];
    if (!m->fenced_cluster || by->cluster_crossed == m->cluster_crossed)
        simt_fail(line,
                  "%s: %s is used from another block before dq_fence_mbarrier_init and a barrier "
                  "of the cluster have made it visible",
                  what, name_of(peer->hopper, m).text);
    return m;
}

/* Ends the phase if all is there. Returns a thread that waited for it, or NULL. */
static simt_thread *settle(simt_hopper *h, simt_mbarrier *m, int line)
{
    if (m->pending || m->bytes > 0) return NULL;
    if (m->bytes < 0) {
        simt_say(h->block, line, "%s: %lld bytes more than phase %llu expects", name_of(h, m).text,
                 -(long long)m->bytes, (unsigned long long)m->phase);
        return NULL;
    }
    for (const simt_bulk &c : h->cluster->copies)
        if (c.signal == m) {
            simt_say(h->block, line,
                     "%s: phase %llu ends while the bulk copy of line %d to it is on its way: it "
                     "expects fewer bytes than are copied",
                     name_of(h, m).text, (unsigned long long)m->phase, c.line);
            return NULL;
        }
    m->phase++;
    m->pending = m->count;
    h->cluster->polls = 0;
    simt_thread *woken = NULL;
    for (unsigned i = 0; i < h->block->n; i++) {
        simt_thread *t = &h->block->thread[i];
        if (t->waits != SIMT_WAITS_MBARRIER || t->waits_at != m) continue;
        if ((m->phase & 1u) == t->waits_parity) continue;
        simt_wake(t);
        if (!woken || simt_random(&h->cluster->random) % 2) woken = t;
    }
    return woken;
}

static void arrive(simt_hopper *h, simt_mbarrier *m, unsigned bytes, int line)
{
    if (!m->pending)
        simt_fail(line, "%s: more than the %u arrivals of phase %llu, which waits for %lld bytes",
                  name_of(h, m).text, m->count, (unsigned long long)m->phase, (long long)m->bytes);
    m->pending--;
    m->bytes += bytes;
    simt_order_before(&m->token[m->phase & 1u]);
    if (m->bytes >= 1 << 20)
        simt_fail(line, "%s expects %lld bytes, which is too much", name_of(h, m).text,
                  (long long)m->bytes);
    simt_thread *woken = settle(h, m, line);
    simt_thread *t = simt_self();
    /* Who waited may well be faster than who arrived. */
    if (woken && simt_set.schedule == DQ_SIMT_GREEDY && simt_random(&t->random) % 2) {
        simt_run_next(h->block, woken->warp);
        simt_yield(t);
    }
}

void simt_mbarrier_arrive(void *barrier, unsigned bytes, int line)
{
    simt_unseen unseen;
    simt_pause();
    simt_mbarrier *m = own_barrier(barrier, "dq_mbarrier_arrive", line);
    arrive(simt_self()->block->hopper, m, bytes, line);
}

void simt_mbarrier_arrive_remote(void *barrier, unsigned rank, int line)
{
    simt_unseen unseen;
    simt_pause();
    simt_mbarrier *m = barrier_of(rank, barrier, "dq_mbarrier_arrive_remote", line);
    arrive(simt_self()->block->hopper->cluster->block[rank]->hopper, m, 0, line);
}

bool simt_mbarrier_try_wait(void *barrier, unsigned parity, bool poll, const char *name, int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    if (parity > 1) simt_fail(line, "%s: parity %u", name, parity);
    simt_pause();
    simt_mbarrier *m = own_barrier(barrier, name, line);
    const bool greedy = simt_set.schedule == DQ_SIMT_GREEDY;
    if (greedy && simt_random(&t->random) % 8 == 0) { /* although it may have ended */
        simt_yield(t);
        return false;
    }
    if ((m->phase & 1u) == parity) {
        t->waits_at = m;
        t->waits_parity = parity;
        t->waits_poll = poll;
        t->waits_name = name;
        simt_block_on(t, SIMT_WAITS_MBARRIER, line);
        t->waits_at = NULL;
    }
    if ((m->phase & 1u) == parity) return false;
    simt_order_after(&m->token[parity]);
    return true;
}

/* ------------------------------------------------------------------------------------- bulk copies */
static void mark(std::vector<uint16_t> &cells, size_t at, size_t bytes, int by)
{
    for (size_t i = at / SIMT_CELL; i < (at + bytes) / SIMT_CELL; i++)
        cells[i] = (uint16_t)(cells[i] + by);
}

/* Nothing here owns memory where a report may end the thread. */
static void land(simt_cluster *c, size_t i)
{
    const simt_bulk *copy = &c->copies[i];
    simt_hopper *h = copy->to;
    simt_mbarrier *signal = copy->signal;
    const unsigned bytes = copy->bytes;
    const int line = copy->line;
    if (memcmp(copy->src, copy->was.data(), bytes)) {
        simt_say(h->block, line,
                 "the source of the bulk copy of line %d was written while it was read", line);
        return;
    }
    put(h, copy->dst, copy->src, bytes);
    mark(h->writing, (size_t)(copy->dst - h->block->arena), bytes, -1);
    c->copies.erase(c->copies.begin() + (ptrdiff_t)i);
    signal->bytes -= bytes;
    settle(h, signal, line);
}

/* The destination in one block: nobody reads or writes it any more, and the async proxy sees all
 * that was written. */
static void check_free(simt_hopper *h, size_t at, size_t bytes, int line)
{
    for (size_t i = at / SIMT_CELL; i < (at + bytes) / SIMT_CELL; i++) {
        if (h->reading[i])
            simt_fail(
                line,
                "dq_bulk_copy to byte %zu of the shared memory of %s, which the wgmma of line "
                "%d still reads",
                i * SIMT_CELL, place_of(h->block).text, simt_product_at(h, (uint32_t)i));
        if (h->writing[i])
            simt_fail(
                line,
                "dq_bulk_copy to byte %zu of the shared memory of %s, to which another copy is "
                "on its way",
                i * SIMT_CELL, place_of(h->block).text);
        if (const unsigned writer = simt_unfenced(h, (uint32_t)i))
            simt_fail(line,
                      "dq_bulk_copy over bytes that thread %u of %s has written without a "
                      "dq_fence_async since",
                      writer - 1, place_of(h->block).text);
    }
}

static void check_source(const void *global, unsigned bytes, int line)
{
    simt_check_aligned(global, 16, "dq_bulk_copy, source", line);
    const uintptr_t at = (uintptr_t)global;
    auto it = simt_device_memory.upper_bound(at);
    if (it == simt_device_memory.begin() || at + bytes > (--it)->first + it->second)
        simt_fail(line,
                  "dq_bulk_copy: its source, %u bytes, is not within a block of device memory",
                  bytes);
}

void simt_bulk_copy(void *smem, const void *global, unsigned bytes, void *barrier, unsigned ranks,
                    int line)
{
    simt_unseen unseen;
    const char *what = "dq_bulk_copy";
    simt_pause();
    simt_thread *t = simt_self();
    simt_hopper *own = simt_hopper_here(what, line);
    simt_cluster *c = own->cluster;
    if (bytes == 0 || bytes % 16) simt_fail(line, "%s of %u bytes, no multiple of 16", what, bytes);
    simt_check_aligned(smem, 16, "dq_bulk_copy, destination", line);
    if (!simt_inside(own->block, smem, bytes))
        simt_fail(line, "%s: its destination, %u bytes, is not within the block's shared memory",
                  what, bytes);
    check_source(global, bytes, line);
    if (!ranks || ranks >> c->n)
        simt_fail(line, "%s to ranks %x of a cluster of %u", what, ranks, c->n);
    simt_absorb(own->block, t);
    for (unsigned rank = 0; rank < c->n; rank++) {
        if (!(ranks >> rank & 1u)) continue;
        simt_mbarrier *m = barrier_of(rank, barrier, what, line);
        simt_hopper *to = c->block[rank]->hopper;
        if (!m->fenced)
            simt_fail(line,
                      "%s: %s is used by a copy before dq_fence_mbarrier_init has made it visible",
                      what, name_of(to, m).text);
        unsigned char *dst = simt_same_place(to->block, own->block, smem);
        if (!dst)
            simt_fail(line, "%s: its destination is unknown in %s", what, place_of(to->block).text);
        const size_t at = (size_t)(dst - to->block->arena);
        check_free(to, at, bytes, line);
        put(to, dst, NULL, bytes);
        mark(to->writing, at, bytes, 1);
        const unsigned char *src = (const unsigned char *)global;
        const bool late = simt_random(&c->random) % 2;
        c->copies.push_back(simt_bulk{to, dst, src, bytes, m, {src, src + bytes}, line, late});
    }
}

/* ---------------------------------------------------------------------------------------- clusters */
unsigned simt_cluster_rank(int line)
{
    simt_unseen unseen;
    return simt_hopper_here("dq_cluster_rank", line)->rank;
}

unsigned simt_cluster_of(simt_block *b, simt_block *of[SIMT_MAX_CLUSTER])
{
    of[0] = b;
    if (!b->hopper) return 1;
    const simt_cluster *c = b->hopper->cluster;
    for (unsigned k = 0; k < c->n; k++) of[k] = c->block[k];
    return c->n;
}

static void open_cluster(simt_cluster *c)
{
    unsigned live = 0;
    for (unsigned k = 0; k < c->n; k++) live += c->block[k]->live;
    if (!c->arrived || c->arrived != live) return;
    c->arrived = 0;
    c->opened++;
    for (unsigned k = 0; k < c->n; k++)
        for (unsigned i = 0; i < c->block[k]->n; i++)
            if (c->block[k]->thread[i].waits == SIMT_WAITS_CLUSTER)
                simt_wake(&c->block[k]->thread[i]);
}

static void run_none(simt_post *lane[32], uint32_t mask)
{
    (void)lane, (void)mask;
}
static const simt_op op_cluster_arrive = {"dq_cluster_arrive", run_none};
static const simt_op op_cluster_wait = {"dq_cluster_wait", run_none};

void simt_cluster_arrive(int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_cluster *c = simt_hopper_here("dq_cluster_arrive", line)->cluster;
    simt_together(&op_cluster_arrive, NULL, line);
    if (t->cluster_arrived)
        simt_fail(line, "dq_cluster_arrive: the thread has arrived, and has not waited since");
    t->cluster_arrived = true;
    t->cluster_ticket = c->opened;
    simt_order_before(&c->token[c->opened & 1u]);
    t->crossed++;
    t->cluster_crossed++;
    c->arrived++;
    open_cluster(c);
}

void simt_cluster_wait(int line)
{
    simt_unseen unseen;
    simt_thread *t = simt_self();
    simt_cluster *c = simt_hopper_here("dq_cluster_wait", line)->cluster;
    simt_together(&op_cluster_wait, NULL, line);
    if (!t->cluster_arrived) simt_fail(line, "dq_cluster_wait: the thread has not arrived");
    if (t->cluster_ticket == c->opened) simt_block_on(t, SIMT_WAITS_CLUSTER, line);
    t->cluster_arrived = false;
    simt_order_after(&c->token[t->cluster_ticket & 1u]);
}

/* ------------------------------------------------------------------------------- beside the threads */
void simt_hopper_some(simt_thread *t)
{
    simt_unseen unseen;
    simt_cluster *c = t->block->hopper->cluster;
    if (!c->copies.empty() && simt_random(&t->random) % 64 == 0) {
        const size_t i = simt_random(&t->random) % c->copies.size();
        if (!c->copies[i].late) land(c, i);
    }
    if (simt_random(&t->random) % 64 == 0) simt_product_some(t);
}

bool simt_hopper_idle(simt_block *b)
{
    simt_unseen unseen;
    simt_cluster *c = b->hopper->cluster;
    for (unsigned k = 0; k < c->n; k++)
        if (c->block[k]->live && c->block[k]->running) return true;
    if (!c->copies.empty()) {
        c->polls = 0;
        land(c, simt_random(&c->random) % c->copies.size());
        return true;
    }
    enum { POLLS = 1000 }; /* then it is a loop */
    bool woken = false;
    for (unsigned i = 0; i < b->n && c->polls < POLLS; i++) {
        simt_thread *t = &b->thread[i];
        if (t->waits != SIMT_WAITS_MBARRIER || !t->waits_poll) continue;
        simt_wake(t);
        woken = true;
    }
    c->polls += woken;
    return woken;
}

/* Nothing may be on its way to a block that ends. */
static void end_block(simt_hopper *h)
{
    for (const simt_bulk &c : h->cluster->copies)
        if (c.to == h)
            simt_say(h->block, c.line,
                     "the block ends while the bulk copy of line %d to it is on its way", c.line);
    for (int i = 0; i < h->n_barriers; i++)
        if (h->barrier[i].bytes)
            simt_say(h->block, h->barrier[i].line,
                     "the block ends while %s waits for %lld bytes in phase %llu (less than 0: "
                     "nobody expected them)",
                     name_of(h, &h->barrier[i]).text, (long long)h->barrier[i].bytes,
                     (unsigned long long)h->barrier[i].phase);
    simt_warpgroups_end(h);
}

void simt_hopper_exit(simt_thread *t)
{
    simt_hopper *h = t->block->hopper;
    if (t->cluster_arrived && t->cluster_ticket == h->cluster->opened) h->cluster->arrived--;
    open_cluster(h->cluster);
    if (!t->block->live) end_block(h);
}

void simt_hopper_open(simt_block *const *b, unsigned n)
{
    if (WATCHED) simt_watch_faults();
    const unsigned size = b[0]->launch->cluster;
    simt_cluster *c = NULL;
    for (unsigned k = 0; k < n; k++) {
        if (b[k]->hopper) simt_hopper_free(b[k]);
        simt_hopper *h = b[k]->hopper = new simt_hopper();
        if (k % size == 0) {
            c = new simt_cluster();
            c->random = b[k]->random + 1;
        }
        c->block[c->n] = b[k];
        h->block = b[k];
        h->cluster = c;
        h->rank = c->n++;
        if (pages(b[k]) > SIMT_MAX_PAGES) abort();
        h->seen.assign(b[k]->arena_size, SIMT_POISON);
        h->writer.assign(b[k]->arena_size / SIMT_WORD, 0);
        h->reading.assign(b[k]->arena_size / SIMT_CELL, 0);
        h->writing.assign(b[k]->arena_size / SIMT_CELL, 0);
        h->wrote.resize(b[k]->n);
        simt_warpgroups_open(h);
        open_blocks[k] = b[k];
        protect(b[k], 0, pages(b[k]), PROT_READ);
    }
    n_open = n;
}

void simt_hopper_close(simt_block *const *b, unsigned n)
{
    for (unsigned k = 0; k < n; k++) protect(b[k], 0, pages(b[k]), PROT_READ | PROT_WRITE);
    n_open = 0;
}

void simt_hopper_free(simt_block *b)
{
    if (!b->hopper) return;
    if (b->hopper->rank == 0) delete b->hopper->cluster;
    delete b->hopper;
    b->hopper = NULL;
}
