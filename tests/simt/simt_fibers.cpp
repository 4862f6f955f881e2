/* simt_fibers: every CUDA thread is a fiber, a stack of its own that gives way only where it must wait.
 * The schedule picks who runs next; some blocks that follow each other take turns. For x86-64 System V.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include <stdlib.h>
#include <sys/mman.h>
#ifdef __BMI2__
#include <immintrin.h>
#endif

#ifndef __x86_64__
#error "simt_fibers.cpp knows the stacks of x86-64 only; leave these tests out elsewhere"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 512 * 1024 }; /* red zones make frames large */
#elif defined(__SANITIZE_THREAD__)
enum { STACK = 256 * 1024 };
#else
enum { STACK = 128 * 1024 };
#endif
enum { PAGE = 4096, COLOURS = 32, COLOUR = PAGE / COLOURS };

/* ThreadSanitizer names the lines of a race: it takes every fiber for a thread, and as ordered only what
 * simt_order_before and _after order: barriers and dq_warp_sync, but no shuffle, vote or matrix product.
 * Atomics are relaxed. */
#ifdef __SANITIZE_THREAD__
#define UNSEEN __attribute__((no_sanitize("thread")))
enum { NO_ORDER = 1 };
extern "C" {
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void __tsan_acquire(void *p);
void __tsan_release(void *p);
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
}
#else
#define UNSEEN
#endif

/* Leaves where it goes on in *from, as the top of its stack; continues at to. A jump and no return: a processor takes it for
 * granted that returns match calls, and the next thread mostly stands where this one does. */
static inline __attribute__((always_inline)) void switch_to(void **from, void *to)
{
    asm volatile(R"(
        leaq -128(%%rsp), %%rsp /* past the red zone */
        pushq %%rbp
        pushq %%rbx
        leaq 1f(%%rip), %%rax
        pushq %%rax
        movq %%rsp, (%%rdi)
        movq %%rsi, %%rsp
        popq %%rax
        jmp *%%rax
    1:
        popq %%rbx
        popq %%rbp
        leaq 128(%%rsp), %%rsp
    )"
                 : "+D"(from), "+S"(to)
                 :
                 : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
                   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

static __thread simt_thread *self;
static __thread char begun,
    ended;                 /* order threads after what comes before them, and before what follows */
static __thread bool turn; /* another block is to run */
static __thread char *stacks;
static __thread size_t n_stacks;
static __thread void *
    *fibers; /* [n_stacks], of ThreadSanitizer: making one takes longer than a block */

UNSEEN simt_thread *simt_self(void)
{
    return self;
}

void simt_lock(simt_block *b)
{
    (void)b;
#ifdef __SANITIZE_THREAD__
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

void simt_unlock(simt_block *b)
{
    (void)b;
#ifdef __SANITIZE_THREAD__
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

/* ------------------------------------------------------------------------------------- switching */
UNSEEN static void enter(simt_block *b, simt_thread *t)
{
    self = t;
#ifdef __SANITIZE_THREAD__
    b->fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(t->fiber, NO_ORDER);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&b->fake, t->stack, STACK);
#endif
    switch_to(&b->sp, t->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(b->fake, NULL, NULL);
#endif
    self = NULL;
}

/* Back to the scheduler; for_good: this stack is not used again. */
UNSEEN static void leave(simt_thread *t, bool for_good)
{
    simt_block *b = t->block;
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(b->fiber, NO_ORDER);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? NULL : &t->fake, b->stack, b->stack_size);
#else
    (void)for_good;
#endif
    switch_to(&t->sp, b->sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(t->fake, &b->stack, &b->stack_size);
#endif
}

UNSEEN static void fiber_main(void)
{
    simt_thread *t = self;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &t->block->stack, &t->block->stack_size);
#endif
    simt_order_after(&begun);
    simt_thread_main(t);
    simt_order_before(&ended);
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
    simt_unlock(t->block);
    leave(t, true);
    __builtin_unreachable();
}

void simt_order_before(void *p)
{
    (void)p;
#ifdef __SANITIZE_THREAD__
    __tsan_release(p);
#endif
}

void simt_order_after(void *p)
{
    (void)p;
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(p);
#endif
}

void simt_touch(const void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
#ifdef __SANITIZE_THREAD__
    const volatile unsigned char *at = (const volatile unsigned char *)p;
    for (size_t i = 0; i < bytes; i++) (void)at[i];
#endif
}

/* As likely any block and any warp as the one that has its turn. */
void simt_yield(simt_thread *t)
{
    turn = true;
    leave(t, false);
}

void simt_run_next(simt_block *b, unsigned warp)
{
    b->warp = warp;
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
#ifdef __BMI2__
    return (unsigned)__builtin_ctz(_pdep_u32(1u << n, mask));
#else
    while (n--) mask &= mask - 1;
    return (unsigned)__builtin_ctz(mask);
#endif
}

UNSEEN static simt_thread *pick_greedy(simt_block *b)
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

UNSEEN static simt_thread *pick_next(simt_block *b)
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

/* A stack is entered at the first instruction of fiber_main. The stacks of a warp begin at different places of a page: at the
 * same one, they would push each other out of the processor's cache. */
static void set_stack(simt_thread *t)
{
    void **top = (void **)(t->stack + STACK - t->lane % COLOURS * COLOUR);
    *--top =
        NULL; /* where fiber_main would return to; and a call leaves 8 beyond a multiple of 16 */
    *--top = (void *)fiber_main;
    t->sp = top;
    t->fake = NULL;
}

void simt_release_stacks(void)
{
    if (stacks) munmap(stacks, n_stacks * (STACK + PAGE));
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < n_stacks; i++) __tsan_destroy_fiber(fibers[i]);
#endif
    free(fibers);
    fibers = NULL;
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
    fibers = (void **)calloc(n, sizeof *fibers);
    if (!fibers) abort();
    for (size_t i = 0; i < n; i++) {
        if (mprotect(stacks + i * (STACK + PAGE), PAGE, PROT_NONE)) abort();
#ifdef __SANITIZE_THREAD__
        fibers[i] = __tsan_create_fiber(0);
#endif
    }
}

/* On stacks from the first-th on. */
static void open_block(simt_block *b, size_t first)
{
    for (unsigned i = 0; i < b->n; i++) {
        simt_thread *t = &b->thread[i];
        t->stack = stacks + (first + i) * (STACK + PAGE) + PAGE;
#if defined(__SANITIZE_ADDRESS__) /* frames that were left in the middle have marked it */
        __asan_unpoison_memory_region(t->stack, STACK);
#endif
        t->fiber = fibers[first + i];
        set_stack(t);
    }
}

/* One thread of the block, up to where it waits; false: none is left, or it fails. */
UNSEEN static bool run_some(simt_block *b)
{
    simt_thread *t = simt_set.schedule == DQ_SIMT_GREEDY ? pick_greedy(b) : pick_next(b);
    if (!t) {
        if (b->hopper && simt_hopper_idle(b)) return !b->failed;
        simt_stuck(b);
        return false;
    }
    enter(b, t);
    if (b->hopper) simt_absorb(b, t);
    if (t->state == SIMT_DONE) b->runnable[t->warp] &= ~(1u << t->lane);
    return b->live && !b->failed;
}

/* Another block has its turn where a warp cannot go on. */
UNSEEN static void run_blocks(simt_block **b, unsigned n)
{
    uint64_t random = b[0]->random;
    for (unsigned at = 0; n;) {
        if (!run_some(b[at])) {
            if (b[at]->failed || simt_failed()) return;
            b[at] = b[--n];
            at = 0;
        } else if (turn || simt_set.schedule != DQ_SIMT_GREEDY || !b[at]->runnable[b[at]->warp]) {
            at = (unsigned)(simt_random(&random) % n);
            turn = false;
        }
    }
}

void simt_run_threads(simt_block *const *b, unsigned n)
{
    simt_block *left[SIMT_MAX_CLUSTER];
    make_stacks((size_t)n * b[0]->n);
    for (unsigned k = 0; k < n; k++) {
        left[k] = b[k];
        open_block(b[k], (size_t)k * b[k]->n);
    }
    simt_order_before(&begun);
    run_blocks(left, n);
    simt_order_after(&ended);
}
