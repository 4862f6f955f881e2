/* faults: a library to be loaded before a program (LD_PRELOAD). The allocation of number
 * DQ_FAULT_AT fails, like all after it if DQ_FAULT_ON is set; with DQ_FAULT_COUNT=FILE their number
 * is written at the end. Calls from before main, from the loader, OpenMP and HDF5 are neither counted nor
 * failed: those end the process by themselves. With DQ_FAULT_LIBRARY=NAME only calls
 * from the library of that name are.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <dlfcn.h>
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
} range[MAX_RANGES]; /* code of the libraries that are spared, or of the one that is not */
static int n_ranges;
static const char *library;
static atomic_long count;
static long fail_at;
static int fail_on, ready;

static void add_ranges(const struct dl_phdr_info *info)
{
    for (int i = 0; i < info->dlpi_phnum && n_ranges < MAX_RANGES; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        range[n_ranges].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        range[n_ranges].end = range[n_ranges].begin + info->dlpi_phdr[i].p_memsz;
        n_ranges++;
    }
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    static const char *const spared[] = {"libhdf5", "libgomp", "ld-linux", "libsz", "libaec"};
    (void)size;
    (void)arg;
    if (library && strstr(info->dlpi_name, library)) add_ranges(info);
    for (size_t k = 0; !library && k < sizeof spared / sizeof *spared; k++)
        if (strstr(info->dlpi_name, spared[k])) add_ranges(info);
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("DQ_FAULT_AT"), *on = getenv("DQ_FAULT_ON");
    library = getenv("DQ_FAULT_LIBRARY");
    dl_iterate_phdr(look, NULL);
    fail_at = at ? strtol(at, NULL, 10) : 0;
    fail_on = on && *on;
}

typedef int main_fn(int argc, char **argv, char **env);
typedef int start_fn(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                     void (*rtld_fini)(void), void *stack_end);
start_fn __libc_start_main;
static main_fn *program;

static int counted(int argc, char **argv, char **env)
{
    ready = 1;
    return program(argc, argv, env);
}

/* Initialisers of static libraries, like CUDA's, have run when main begins. */
int __libc_start_main(main_fn *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end)
{
    union {
        void *found;
        start_fn *call;
    } next = {.found = dlsym(RTLD_NEXT, "__libc_start_main")};
    program = main;
    return next.call(counted, argc, argv, init, fini, rtld_fini, stack_end);
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
    int inside = 0;
    if (!ready) return 0;
    for (int i = 0; i < n_ranges; i++) inside |= at >= range[i].begin && at < range[i].end;
    if (library ? !inside : inside) return 0;
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
