/* simt_core: the parts of a running block, for the simulation's own files.
 *
 * A thread that waits says so in its state and calls simt_wait; whoever completes what it waits for
 * calls simt_ready on it. Threads run one at a time. ThreadSanitizer, where the build has it, takes every one
 * for a thread of its own; it looks away between simt_lock and simt_unlock.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_CORE_H
#define DQ_SIMT_CORE_H

#include "kernels/cuda/device/hopper.cuh"

#include <map>

enum {
    SIMT_MAX_THREADS = 1024,
    SIMT_MAX_WARPS = SIMT_MAX_THREADS / 32,
    SIMT_BARRIERS = 16,
    SIMT_MAX_SHARED = 32, /* DQ_SHARED variables of a kernel */
#ifdef __SANITIZE_THREAD__
    SIMT_TOGETHER = 8, /* blocks that run side by side, of no more threads than the largest has */
#else
    SIMT_TOGETHER = 2,
#endif
    SIMT_MAX_CLUSTER = 8, /* blocks of a cluster, which always run side by side */
    SIMT_PAGE = 4096,
    SIMT_SMEM_DEFAULT = 48 * 1024,
    SIMT_SMEM_LIMIT = 227 * 1024,
    SIMT_POISON = 0xa5
};

enum simt_state { SIMT_READY, SIMT_WAITING, SIMT_DONE };
/* What a thread may wait for beside barriers of its block and lanes of its warp. */
enum simt_waits {
    SIMT_WAITS_NONE,
    SIMT_WAITS_MBARRIER,
    SIMT_WAITS_CLUSTER,
    SIMT_WAITS_WGMMA,
    SIMT_WAITS_REGISTERS
};

/* What the lanes of a warp do together. run gets the posts of all lanes of the mask. */
struct simt_post;
struct simt_op {
    const char *name;
    void (*run)(simt_post *lane[32], uint32_t mask);
};
struct simt_post {
    const simt_op *op;
    uint32_t mask;
    const void *in[2];
    void *out;
    uint64_t value;
    unsigned source;
    const char *what;
    int line;
};

struct simt_pending { /* a copy on its way */
    unsigned char *dst;
    const unsigned char *src;
    unsigned size, bytes;
    uint64_t group;
};

struct simt_block;
struct simt_thread {
    simt_place place; /* first: simt_here returns it */
    simt_block *block;
    unsigned warp, lane;
    simt_state state;
    int barrier;    /* id it waits at, -1: none */
    simt_post post; /* what it waits in, op NULL: none */
    int line;       /* where it waits */
    simt_pending *pending;
    size_t n_pending, room_pending;
    uint64_t group;  /* open group of copies */
    uint64_t random; /* of this thread's copies and pauses */
    void *sp;        /* saved stack pointer */
    char *stack;
    void *fake;  /* of the address sanitizer */
    void *fiber; /* of ThreadSanitizer */
    simt_waits waits;
    const void *waits_at; /* the mbarrier */
    unsigned waits_parity;
    bool waits_poll; /* it may go on although the phase has not ended */
    const char *waits_name;
    uint64_t crossed;         /* barriers of any kind that it has arrived at */
    uint64_t cluster_crossed; /* those of the cluster */
    uint64_t cluster_ticket;  /* openings of the cluster's barrier when it arrived there */
    bool cluster_arrived;     /* and has not waited */
    simt_wgmma_thread wgmma;
};

struct simt_launch_args {
    const char *name;
    int capability;   /* of the device, ten times */
    unsigned cluster; /* blocks, 1: no cluster */
    dim3 grid;
    unsigned threads;
    size_t smem;
    void (*run)(void *);
    void *body;
};

/* Two tokens in turns: what a thread does after one opening must not seem to come before what a slower one
 * does after the opening before. */
struct simt_tokens {
    unsigned opened;
    char token[2];
};

struct simt_barrier {
    unsigned expected, arrived;    /* threads; expected 0: nobody yet */
    uint8_t lanes[SIMT_MAX_WARPS]; /* that have arrived */
    simt_tokens order;
};

struct simt_block {
    const simt_launch_args *launch;
    dim3 index;
    simt_thread *thread; /* [launch->threads] */
    unsigned n, live, running;
    bool failed;
    simt_barrier barrier[SIMT_BARRIERS];
    uint32_t posted[SIMT_MAX_WARPS];   /* lanes waiting in a collective */
    bool uniform[SIMT_MAX_WARPS];      /* all of them in the same one */
    simt_tokens order[SIMT_MAX_WARPS]; /* of dq_warp_sync */
    uint32_t runnable[SIMT_MAX_WARPS]; /* lanes that the schedule may run */
    unsigned warp, last;               /* that ran last */
    uint64_t random;                   /* of the schedule */
    unsigned char *arena;              /* shared memory */
    size_t arena_size, arena_used;
    size_t static_bytes; /* asked for by DQ_SHARED */
    unsigned char *dynamic;
    struct {
        const void *key;
        unsigned char *p;
        size_t bytes;
    } shared[SIMT_MAX_SHARED];
    int n_shared;
    void *sp; /* of the scheduler */
    void *fake, *fiber;
    const void *stack;
    size_t stack_size;
    struct simt_hopper *hopper; /* NULL below compute capability 9.0 */
};

struct simt_settings {
    dq_simt_schedule schedule;
    uint64_t seed;
    int workers;
    bool quiet, corners;
};
extern simt_settings simt_set;

/* Of simt_fibers.cpp. */
simt_thread *simt_self(void);
void simt_lock(simt_block *b);
void simt_unlock(simt_block *b);
void simt_wait(simt_thread *t);  /* state WAITING; returns when it is READY */
void simt_ready(simt_thread *t); /* WAITING to READY */
void simt_yield(simt_thread *t); /* others run before it goes on */
/* Where the schedule is greedy, that warp of that block runs next, if this thread yields. */
void simt_run_next(simt_block *b, unsigned warp);
[[noreturn]] void simt_leave(simt_thread *t); /* the block has failed */
/* For the build that finds races, which sees no order in the simulation's own locks: what a thread did
 * before comes, for all that pass simt_order_after with the same address later, before what they do; and a
 * read that another thread performs for this one. */
void simt_order_before(void *p);
void simt_order_after(void *p);
void simt_touch(const void *p, size_t bytes);
/* Runs all threads of n blocks to their ends, or until one fails. The blocks take turns. */
void simt_run_threads(simt_block *const *b, unsigned n);
void simt_release_stacks(void);

/* Of simt.cpp. */
void simt_thread_main(simt_thread *t); /* the kernel, then what follows its return */
void simt_stuck(simt_block *b);        /* no thread can run: reports and marks the block failed */
void simt_record(simt_block *b, const simt_thread *t, int line, const char *text);
static inline uint64_t simt_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z >> 16;
}
bool simt_failed(void);
void simt_forget_failure(void);
void simt_check_shared(const void *p, size_t bytes, const char *what, int line);
/* Whether all the bytes are of one variable or of the dynamic memory of the block. */
bool simt_inside(const simt_block *b, const void *p, size_t bytes);
/* Where the shared memory of `peer` has what `own` has at p, which is inside. */
unsigned char *simt_same_place(simt_block *peer, const simt_block *own, const void *p);
/* Runs a launch; false: it failed. */
bool simt_run(const simt_launch_args *l);

/* Of simt_collective.cpp and simt_async.cpp. */
void simt_exit_barriers(simt_block *b);
/* All lanes of the warp meet in op; the last one runs it. */
void simt_together(const simt_op *op, const void *in, int line);
void simt_copy_some(simt_thread *t); /* at random */
void simt_copy_all(simt_thread *t);

/* Of simt_memory.cpp: blocks as cudaMalloc has them, start: bytes. NULL: there is no memory. */
typedef std::map<uintptr_t, size_t> simt_pieces;
extern simt_pieces simt_device_memory;
void *simt_device_new(size_t bytes, bool filled);
void simt_device_free(void *p);
void simt_watch_faults(void);

/* Of simt_mbarrier.cpp. n blocks, whole clusters, are about to run, or have. */
void simt_hopper_open(simt_block *const *b, unsigned n);
void simt_hopper_close(simt_block *const *b, unsigned n);
void simt_hopper_free(simt_block *b);
void simt_hopper_some(simt_thread *t); /* what goes on beside threads, at random */
/* No thread of b can run: whether it may be able to later. */
bool simt_hopper_idle(simt_block *b);
void simt_hopper_exit(simt_thread *t); /* which no longer counts as live */
int simt_hopper_text(char *out, size_t capacity, const simt_thread *t);
/* The blocks of b's cluster, b among them. */
unsigned simt_cluster_of(simt_block *b, simt_block *of[SIMT_MAX_CLUSTER]);
/* Notes what t has written to shared memory since the last time. */
void simt_absorb(simt_block *b, const simt_thread *t);
bool simt_first_write(uintptr_t at); /* false: not into shared memory */

#endif
