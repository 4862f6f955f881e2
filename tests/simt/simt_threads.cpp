/* simt_threads: every CUDA thread is an OS thread, for ThreadSanitizer, which then names the lines of a
 * race. Blocks run one after another. Slow; for blocks of a few warps.
 *
 * The tool looks away while a thread works in the simulation itself; only what orders memory on a device
 * does so here: barriers and dq_warp_sync, but no shuffle, vote or matrix product. Atomics are relaxed.
 * SPDX-License-Identifier: MIT */
#include "simt_core.h"

#include <stdlib.h>

static __thread simt_thread *self;

simt_thread *simt_self(void)
{
    return self;
}

/* Of the run-time library of ThreadSanitizer. */
extern "C" {
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void __tsan_acquire(void *p);
void __tsan_release(void *p);
}

void simt_lock(simt_block *b)
{
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    pthread_mutex_lock(&b->lock);
}

void simt_unlock(simt_block *b)
{
    pthread_mutex_unlock(&b->lock);
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
}

void simt_order_before(void *p)
{
    __tsan_release(p);
}

void simt_order_after(void *p)
{
    __tsan_acquire(p);
}

void simt_touch(const void *p, size_t bytes)
{
    const volatile unsigned char *at = (const volatile unsigned char *)p;
    for (size_t i = 0; i < bytes; i++) (void)at[i];
}

static void wake_all(simt_block *b)
{
    for (unsigned i = 0; i < b->n; i++) pthread_cond_signal(&b->thread[i].wake);
}

/* The tool forgets where a thread was that has ended: all stay until the last is through. The lock is
 * held, as in all below. */
static void stay(simt_thread *t)
{
    simt_block *b = t->block;
    if (++b->ended == b->n || b->failed) wake_all(b);
    while (b->ended < b->n) pthread_cond_wait(&t->wake, &b->lock);
}

void simt_leave(simt_thread *t)
{
    stay(t);
    simt_unlock(t->block);
    pthread_exit(NULL);
}

void simt_wait(simt_thread *t)
{
    simt_block *b = t->block;
    if (--b->running == 0 && !b->failed) simt_stuck(b);
    while (t->state == SIMT_WAITING && !b->failed) pthread_cond_wait(&t->wake, &b->lock);
    if (b->failed) simt_leave(t);
}

void simt_ready(simt_thread *t)
{
    t->state = SIMT_READY;
    t->block->running++;
    pthread_cond_signal(&t->wake);
}

void simt_pause(void)
{
    simt_copy_some(self);
}

void simt_release_stacks(void)
{
}

static void *thread_main(void *arg)
{
    self = (simt_thread *)arg;
    pthread_mutex_lock(
        &self->block->lock); /* all start when all are there; what was before them counts */
    pthread_mutex_unlock(&self->block->lock);
    simt_thread_main(self);
    simt_lock(self->block);
    stay(self);
    simt_unlock(self->block);
    return NULL;
}

void simt_run_threads(simt_block *b)
{
    pthread_attr_t attr;
    b->ended = 0;
    pthread_mutex_init(&b->lock, NULL);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024);
    for (unsigned i = 0; i < b->n; i++) pthread_cond_init(&b->thread[i].wake, NULL);
    pthread_mutex_lock(&b->lock);
    for (unsigned i = 0; i < b->n; i++)
        if (pthread_create(&b->thread[i].os, &attr, thread_main, &b->thread[i])) abort();
    pthread_mutex_unlock(&b->lock);
    for (unsigned i = 0; i < b->n; i++) pthread_join(b->thread[i].os, NULL);
    for (unsigned i = 0; i < b->n; i++) pthread_cond_destroy(&b->thread[i].wake);
    pthread_attr_destroy(&attr);
    pthread_mutex_destroy(&b->lock);
}
