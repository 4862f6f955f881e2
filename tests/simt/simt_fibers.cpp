/* simt_fibers: every CUDA thread is a fiber, a stack of its own that gives way only where it must wait.
 * The schedule picks who runs next. For x86-64 System V.
 * SPDX-License-Identifier: MIT */
#include "simt_core.h"

#include <stdlib.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "simt_fibers.cpp knows the stacks of x86-64 only; leave these tests out elsewhere"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 512 * 1024 }; /* red zones make frames large */
#else
enum { STACK = 128 * 1024 };
#endif
enum { PAGE = 4096 };

/* Saves the registers that a call must preserve, and the stack pointer in *from; continues at to. */
extern "C" void dq_simt_switch(void **from, void *to);
asm(R"(
    .text
    .globl dq_simt_switch
    .hidden dq_simt_switch
    .type dq_simt_switch, @function
dq_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size dq_simt_switch, .-dq_simt_switch
)");

static __thread simt_thread *self;
static __thread char *stacks;
static __thread size_t n_stacks;

simt_thread *simt_self(void)
{
    return self;
}

void simt_lock(simt_block *b)
{
    (void)b;
}

void simt_unlock(simt_block *b)
{
    (void)b;
}

/* ------------------------------------------------------------------------------------- switching */
static void enter(simt_block *b, simt_thread *t)
{
    self = t;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&b->fake, t->stack, STACK);
#endif
    dq_simt_switch(&b->sp, t->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(b->fake, NULL, NULL);
#endif
    self = NULL;
}

/* Back to the scheduler; for_good: this stack is not used again. */
static void leave(simt_thread *t, bool for_good)
{
    simt_block *b = t->block;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? NULL : &t->fake, b->stack, b->stack_size);
#else
    (void)for_good;
#endif
    dq_simt_switch(&t->sp, b->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t->fake, &b->stack, &b->stack_size);
#endif
}

static void fiber_main(void)
{
    simt_thread *t = self;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &t->block->stack, &t->block->stack_size);
#endif
    simt_thread_main(t);
    leave(t, true);
    __builtin_unreachable();
}

void simt_wait(simt_thread *t)
{
    simt_block *b = t->block;
    b->runnable[t->warp] &= ~(1u << t->lane);
    b->running--;
    while (t->state == SIMT_WAITING) leave(t, false);
}

void simt_ready(simt_thread *t)
{
    t->state = SIMT_READY;
    t->block->runnable[t->warp] |= 1u << t->lane;
    t->block->running++;
}

void simt_leave(simt_thread *t)
{
    leave(t, true);
    __builtin_unreachable();
}

void simt_order_before(void *p)
{
    (void)p;
}

void simt_order_after(void *p)
{
    (void)p;
}

void simt_touch(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}

void simt_pause(void)
{
    simt_thread *t = self;
    simt_copy_some(t);
    if (simt_set.schedule == DQ_SIMT_GREEDY && simt_random(&t->random) % 8 == 0) leave(t, false);
}

/* -------------------------------------------------------------------------------------- schedule */
static unsigned nth_bit(uint32_t mask, unsigned n)
{
    while (n--) mask &= mask - 1;
    return (unsigned)__builtin_ctz(mask);
}

static simt_thread *pick_greedy(simt_block *b)
{
    if (!b->runnable[b->warp]) {
        unsigned warps = 0, which[SIMT_MAX_WARPS];
        for (unsigned w = 0; w < b->n / 32; w++)
            if (b->runnable[w]) which[warps++] = w;
        if (!warps) return NULL;
        b->warp = which[simt_random(&b->random) % warps];
    }
    uint32_t mask = b->runnable[b->warp];
    unsigned count = (unsigned)__builtin_popcount(mask);
    unsigned lane = nth_bit(mask, count > 1 ? (unsigned)(simt_random(&b->random) % count) : 0);
    return &b->thread[32 * b->warp + lane];
}

static simt_thread *pick_next(simt_block *b)
{
    for (unsigned k = 1; k <= b->n; k++) {
        unsigned i = (b->last + k) % b->n;
        if (b->runnable[i / 32] >> i % 32 & 1u) {
            b->last = i;
            return &b->thread[i];
        }
    }
    return NULL;
}

/* A stack is entered as if dq_simt_switch had been called just before the first instruction of
 * fiber_main: six registers, then where to return to. */
static void set_stack(simt_thread *t)
{
    void **top = (void **)(t->stack + STACK);
    *--top =
        NULL; /* where fiber_main would return to; and a call leaves 8 beyond a multiple of 16 */
    *--top = (void *)fiber_main;
    for (int i = 0; i < 6; i++) *--top = NULL;
    t->sp = top;
    t->fake = NULL;
}

void simt_release_stacks(void)
{
    if (stacks) munmap(stacks, n_stacks * (STACK + PAGE));
    stacks = NULL;
    n_stacks = 0;
}

static void make_stacks(size_t n)
{
    if (n <= n_stacks) return;
    simt_release_stacks();
    void *p = mmap(NULL, n * (STACK + PAGE), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    stacks = (char *)p;
    n_stacks = n;
    for (size_t i = 0; i < n; i++)
        if (mprotect(stacks + i * (STACK + PAGE), PAGE, PROT_NONE)) abort();
}

void simt_run_threads(simt_block *b)
{
    make_stacks(b->n);
    for (unsigned i = 0; i < b->n; i++) {
        b->thread[i].stack = stacks + i * (STACK + PAGE) + PAGE;
#if defined(__SANITIZE_ADDRESS__) /* frames that were left in the middle have marked it */
        __asan_unpoison_memory_region(b->thread[i].stack, STACK);
#endif
        set_stack(&b->thread[i]);
    }
    while (b->live && !b->failed) {
        simt_thread *t = simt_set.schedule == DQ_SIMT_GREEDY ? pick_greedy(b) : pick_next(b);
        if (!t) {
            simt_stuck(b);
            break;
        }
        enter(b, t);
        if (t->state == SIMT_DONE) b->runnable[t->warp] &= ~(1u << t->lane);
    }
}
