/* simt_memory: what stands for the memory of a device.
 * SPDX-License-Identifier: MIT */
#include "tests/simt/simt_core.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

simt_pieces simt_device_memory;

/* Device memory is the heap, but a block that the machine may not have is made of pages that appear when they
 * are touched, as zeros; and with guards every block ends at a page that nobody may touch. */
enum { PAGE = SIMT_PAGE, CELL = 16 };
static const size_t vast = (size_t)256 << 20;
static bool guarded = getenv("DQ_SIMT_GUARD") != NULL;

static bool has_pages(size_t bytes)
{
    return guarded || bytes >= vast;
}

/* Of a block, the last page a guard. */
static size_t pages_of(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
}

static void *map_pages(size_t bytes)
{
    const size_t whole = pages_of(bytes), used_bytes = (bytes + CELL - 1) / CELL * CELL;
    void *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) return NULL;
    unsigned char *end = (unsigned char *)p + whole - PAGE;
    if (mprotect(end, PAGE, PROT_NONE)) abort();
    return end - used_bytes;
}

void simt_device_free(void *p)
{
    const size_t bytes = simt_device_memory[(uintptr_t)p];
    simt_device_memory.erase((uintptr_t)p);
    if (has_pages(bytes))
        munmap((void *)((uintptr_t)p / PAGE * PAGE), pages_of(bytes));
    else
        free(p);
}

static struct sigaction before;
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;

/* The first write to a page of shared memory that is watched; of any other access it says whose it
 * was, and dies of it. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    const uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    if (simt_first_write(at)) return;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    sigaction(sig, &before, NULL); /* the access is made again, and their own report follows */
#else
    const simt_thread *t = simt_self();
    signal(sig, SIG_DFL);
    if (t)
        fprintf(stderr, "simt: kernel %s, block (%u,%u,%u), thread %u: ", t->block->launch->name,
                t->block->index.x, t->block->index.y, t->block->index.z, t->place.thread);
    auto it = simt_device_memory.upper_bound(at);
    if (it != simt_device_memory.begin() && at - (--it)->first < it->second + 2 * PAGE)
        fprintf(stderr, "access after the end of a block of %zu bytes of device memory\n",
                it->second);
    else
        fprintf(stderr, "access outside of device memory\n");
    raise(sig);
#endif
}

/* Again after each test of cmocka, which has a handler of its own. */
void simt_watch_faults(void)
{
    struct sigaction a = {}, now;
    a.sa_sigaction = on_fault;
    a.sa_flags = SA_SIGINFO;
    pthread_mutex_lock(&watch_lock);
    if (!sigaction(SIGSEGV, NULL, &now) && now.sa_sigaction != on_fault)
        sigaction(SIGSEGV, &a, &before);
    pthread_mutex_unlock(&watch_lock);
}

void *simt_device_new(size_t bytes, bool filled)
{
    void *p = NULL;
    if (has_pages(bytes)) {
        simt_watch_faults();
        p = map_pages(bytes);
    } else if (posix_memalign(&p, 256, bytes)) {
        return NULL;
    }
    if (p && filled && bytes < vast) memset(p, SIMT_POISON, bytes);
    if (p) simt_device_memory[(uintptr_t)p] = bytes;
    return p;
}
