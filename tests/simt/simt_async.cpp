/* simt_async: cp.async. A copy is only noted where it is started; the bytes land at the wait that covers
 * them, or at a random earlier point. Until then the destination is poison.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include <stdlib.h>

static void land(simt_pending *c)
{
    if (c->bytes) memcpy(c->dst, c->src, c->bytes);
    memset(c->dst + c->bytes, 0, c->size - c->bytes);
}

/* Copies of a group may land in any order; what is left stays in the order of its start. */
static void remove(simt_thread *t, size_t i)
{
    land(&t->pending[i]);
    memmove(&t->pending[i], &t->pending[i + 1], (t->n_pending - i - 1) * sizeof *t->pending);
    t->n_pending--;
}

void simt_copy_some(simt_thread *t)
{
    if (simt_set.schedule != DQ_SIMT_GREEDY) return;
    if (t->block->hopper) simt_hopper_some(t);
    if (t->n_pending && simt_random(&t->random) % 16 == 0)
        remove(t, simt_random(&t->random) % t->n_pending);
}

void simt_copy_all(simt_thread *t)
{
    for (size_t i = 0; i < t->n_pending; i++) land(&t->pending[i]);
    t->n_pending = 0;
}

void simt_copy(void *smem, const void *global, unsigned size, unsigned bytes, int line)
{
    simt_thread *t = simt_self();
    simt_check_aligned(smem, size, "cp.async, destination", line);
    simt_check_aligned(global, size, "cp.async, source", line);
    simt_check_shared(smem, size, "cp.async", line);
    if (bytes > size) simt_fail(line, "cp.async of %u bytes of %u", bytes, size);
    simt_copy_some(t);
    if (t->n_pending == t->room_pending) {
        t->room_pending = t->room_pending ? 2 * t->room_pending : 16;
        void *p = realloc(t->pending, t->room_pending * sizeof *t->pending);
        if (!p) abort();
        t->pending = (simt_pending *)p;
    }
    simt_pending c = {(unsigned char *)smem, (const unsigned char *)global, size, bytes, t->group};
    land(&c); /* bad addresses show here, where the copy is written */
    memset(smem, SIMT_POISON, size);
    t->pending[t->n_pending++] = c;
}

void simt_copy_commit(int line)
{
    (void)line;
    simt_thread *t = simt_self();
    simt_copy_some(t);
    t->group++;
}

void simt_copy_wait(int groups, int line)
{
    (void)line;
    simt_thread *t = simt_self();
    simt_pause();
    /* Groups 0 .. group-1 are closed; the newest `groups` of them may stay. */
    size_t left = 0;
    for (size_t i = 0; i < t->n_pending; i++) {
        simt_pending *c = &t->pending[i];
        if (c->group + (uint64_t)groups < t->group)
            land(c);
        else
            t->pending[left++] = *c;
    }
    t->n_pending = left;
}
