/* faults: a library to be loaded in front of a program (LD_PRELOAD). The allocation of number
 * DQ_FAULT_AT fails, like all behind it if DQ_FAULT_ON is set; with DQ_FAULT_COUNT=FILE their number
 * is written at the end. Calls that come from the loader, the C library's start, OpenMP and HDF5 are
 * neither counted nor failed: those end the process by themselves.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

void *aligned_alloc(size_t align, size_t n);
int posix_memalign(void **p, size_t align, size_t n);

enum { MAX_RANGES = 64 };
static struct {
    uintptr_t begin, end;
} spared[MAX_RANGES];
static int n_spared;
static atomic_long count;
static long fail_at;
static int fail_on, ready;

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char *const names[] = {"libhdf5", "libgomp", "ld-linux", "libsz", "libaec"};
    (void)size;
    (void)arg;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        if (!strstr(info->dlpi_name, names[k])) continue;
        for (int i = 0; i < info->dlpi_phnum && n_spared < MAX_RANGES; i++) {
            if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
            spared[n_spared].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            spared[n_spared].end = spared[n_spared].begin + info->dlpi_phdr[i].p_memsz;
            n_spared++;
        }
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("DQ_FAULT_AT"), *on = getenv("DQ_FAULT_ON");
    dl_iterate_phdr(look, NULL);
    fail_at = at ? strtol(at, NULL, 10) : 0;
    fail_on = on && *on;
    ready = 1;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("DQ_FAULT_COUNT");
    ready = 0;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", atomic_load(&count));
    fclose(f);
}

static int fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (!ready) return 0;
    for (int i = 0; i < n_spared; i++) {
        if (at >= spared[i].begin && at < spared[i].end) return 0;
    }
    long n = atomic_fetch_add(&count, 1) + 1;
    if (!fail_at || (fail_on ? n < fail_at : n != fail_at)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, n);
}

char *strdup(const char *s)
{
    const size_t n = strlen(s) + 1;
    char *copy = fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
    return copy ? memcpy(copy, s, n) : NULL;
}

int posix_memalign(void **p, size_t align, size_t n)
{
    void *got = fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, n);
    if (!got) return ENOMEM;
    *p = got;
    return 0;
}
