/* failing_malloc: preloaded, makes one allocation of one library fail, to see what a command makes of it.
 *   FAIL_LIBRARY=libhdf5 FAIL_AT=N LD_PRELOAD=... dq ...    the N-th allocation from within that library
 *   FAIL_COUNT=FILE                                        writes how many there were when the process ends
 * For glibc. SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *p, size_t bytes);

static uintptr_t begin, end; /* the library's code and data */
static atomic_long count;
static long fail_at;

static int find_library(struct dl_phdr_info *info, size_t size, void *name)
{
    (void)size;
    if (!strstr(info->dlpi_name, name)) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + h->p_vaddr, to = from + h->p_memsz;
        if (h->p_type != PT_LOAD) continue;
        if (!begin || from < begin) begin = from;
        if (to > end) end = to;
    }
    return 1;
}

__attribute__((constructor)) static void prepare(void)
{
    char *library = getenv("FAIL_LIBRARY"), *at = getenv("FAIL_AT");
    if (library) dl_iterate_phdr(find_library, library);
    if (at) fail_at = atol(at);
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("FAIL_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", atomic_load(&count));
    fclose(f);
}

static int fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    return at >= begin && at < end && atomic_fetch_add(&count, 1) + 1 == fail_at;
}

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(p, bytes);
}
