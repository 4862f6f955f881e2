/* os_map: The mappings of os.h. A list of all of them lets a handler of SIGBUS say which file shrank: entries are
 * linked when they are whole and never freed, only used again, so that the handler may walk the list while another
 * thread maps.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* madvise, st_mtim, MAP_ANONYMOUS */
#include "base/file.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Entries are never freed, only used again: a handler may walk the list at any moment. */
struct dq_mapping {
    _Atomic(uintptr_t) begin; /* 0: free */
    size_t bytes;
    char *path;
    struct stat opened;
    struct dq_mapping *next;
};

static _Atomic(struct dq_mapping *) first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of writers */

static struct dq_mapping *new_entry(void)
{
    struct dq_mapping *e = first;
    while (e && e->path) e = e->next;
    if (e) return e;
    e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->next = first;
    first = e; /* visible when it is whole */
    return e;
}

static dq_status remember(dq_os_map *m, const char *path, const struct stat *st, dq_err *err)
{
    size_t n = strlen(path) + 1;
    char *copy = malloc(n);
    pthread_mutex_lock(&lock);
    struct dq_mapping *e = copy ? new_entry() : NULL;
    if (e) {
        memcpy(copy, path, n);
        e->path = copy;
        e->bytes = m->bytes;
        e->opened = *st;
        e->begin = (uintptr_t)m->data; /* visible when all else is */
        m->entry = e;
    }
    pthread_mutex_unlock(&lock);
    if (e) return DQ_OK;
    free(copy);
    return dq_fail(err, DQ_RESOURCE, "%s: out of memory", path);
}

static void forget(struct dq_mapping *e)
{
    pthread_mutex_lock(&lock);
    e->begin = 0;
    free(e->path);
    e->path = NULL;
    pthread_mutex_unlock(&lock);
}

dq_status dq_os_map_open(dq_os_map *m, const char *path, dq_err *err)
{
    struct stat st;
    memset(m, 0, sizeof *m);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (fd < 0) return dq_os_fail(err, path, "cannot open");
    if (fstat(fd, &st) != 0) {
        dq_os_fail(err, path, "cannot stat");
    } else if (S_ISDIR(st.st_mode)) {
        dq_fail(err, DQ_FILE, "%s: is a folder, a file is needed", path);
    } else if (!S_ISREG(st.st_mode)) {
        dq_fail(err, DQ_FILE, "%s: not a regular file", path);
    } else if (st.st_size > 0) {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            dq_os_fail(err, path, "cannot map");
        } else {
            m->data = p;
            m->bytes = (size_t)st.st_size;
            if (dq_file_check_bytes(path, p, m->bytes, err) != DQ_OK ||
                remember(m, path, &st, err) != DQ_OK)
                dq_os_map_close(m);
        }
    }
    close(fd);
    return err->code;
}

void dq_os_map_close(dq_os_map *m)
{
    union { /* munmap takes a pointer to writable memory; the mapping is ours */
        const uint8_t *in;
        void *out;
    } p = {.in = m->data};
    if (m->entry) forget(m->entry);
    if (m->data) munmap(p.out, m->bytes);
    memset(m, 0, sizeof *m);
}

/* Of the pages that lie in [p, p + bytes) whole. */
static void advise_whole(const void *p, size_t bytes, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)p + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)p + bytes) / page * page;
    union { /* the address is rounded as a number */
        uintptr_t in;
        void *out;
    } at = {.in = begin};
    if (end > begin) madvise(at.out, end - begin, advice);
}

void dq_os_map_release(const void *p, size_t bytes)
{
    advise_whole(p, bytes, MADV_DONTNEED);
}

void dq_os_memory_touch(void *p, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14 */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)p / page * page;
    union { /* the address is rounded as a number */
        uintptr_t in;
        void *out;
    } at = {.in = begin};
    madvise(at.out, (uintptr_t)p + bytes - begin, MADV_POPULATE_WRITE);
#else
    (void)p;
    (void)bytes;
#endif
}

void dq_os_memory_large(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    enum { LARGE = 2 << 20 }; /* fewer bytes would only cut the system's map in pieces */
    if (bytes >= LARGE) advise_whole(p, bytes, MADV_HUGEPAGE);
#else
    (void)p;
    (void)bytes;
#endif
}

bool dq_os_block_reserve(dq_os_block *b, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *b = (dq_os_block){.data = NULL};
    if (p != MAP_FAILED) *b = (dq_os_block){.data = p, .bytes = bytes};
    return b->data;
}

bool dq_os_block_take(dq_os_block *b)
{
    return b->data && mprotect(b->data, b->bytes, PROT_READ | PROT_WRITE) == 0;
}

void dq_os_block_free(dq_os_block *b)
{
    if (b->data) munmap(b->data, b->bytes);
    *b = (dq_os_block){.data = NULL};
}

static bool written_since(const struct dq_mapping *e)
{
    struct stat now;
    const struct stat *then = &e->opened;
    if (stat(e->path, &now) != 0 || now.st_dev != then->st_dev || now.st_ino != then->st_ino)
        return false; /* another file has the name now; the mapped one lives on without it */
    return now.st_size != then->st_size || now.st_mtim.tv_sec != then->st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != then->st_mtim.tv_nsec;
}

dq_status dq_os_maps_check(dq_err *err)
{
    pthread_mutex_lock(&lock);
    for (const struct dq_mapping *e = first; e; e = e->next) {
        if (!e->begin || !written_since(e)) continue;
        dq_fail(err, DQ_FILE,
                "%s: was written to while it was read, so that numbers may come from both of its "
                "states. Run again when nothing writes to it.",
                e->path);
        break;
    }
    pthread_mutex_unlock(&lock);
    return err->code;
}

const char *dq_os_map_at(const void *p, bool *cut)
{
    uintptr_t at = (uintptr_t)p;
    for (const struct dq_mapping *e = first; e; e = e->next) {
        uintptr_t begin = e->begin;
        struct stat now;
        if (!begin || at < begin || at - begin >= e->bytes) continue;
        *cut = stat(e->path, &now) == 0 && now.st_dev == e->opened.st_dev &&
               now.st_ino == e->opened.st_ino && now.st_size < e->opened.st_size;
        return e->path;
    }
    *cut = false;
    return NULL;
}
