/* Thin layers over POSIX and CPUID.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE     /* dlinfo */
#define _DEFAULT_SOURCE /* madvise, st_mtim, MAP_ANONYMOUS */
#define _GNU_SOURCE     /* sched_getaffinity */
#include "base/os.h"

#include "base/file.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Visits the folders of this process's group and its parents; a container may see its own as the
 * top. */
typedef void dq_os_group_visit(void *arg, const char *root, const char *folder);
static int os_sharing(void); /* n, 1 at first */

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if __has_include(<gnu/libc-version.h>)
#include <gnu/libc-version.h>
#endif
dq_status dq_os_fail(dq_err *err, const char *path, const char *what)
{
    return dq_fail(err, errno == ENOMEM ? DQ_RESOURCE : DQ_FILE, "%s: %s: %s", path, what,
                   strerror(errno));
}

unsigned dq_os_cpu_features(bool *unknown)
{
    unsigned have = 0, allow = ~0u;
    const char *limit = getenv("DQ_CPU");
    if (unknown) *unknown = false;
#if defined(__x86_64__)
    unsigned a, b, c = 0, d; /* F16C by CPUID: clang has no name for it */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C))
        have |= DQ_CPU_AVX2;
    if ((have & DQ_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        have |= DQ_CPU_AVX512;
    if ((have & DQ_CPU_AVX512) && __builtin_cpu_supports("avx512vnni")) have |= DQ_CPU_VNNI;
    if ((have & DQ_CPU_AVX512) && __builtin_cpu_supports("avx512vbmi")) have |= DQ_CPU_VBMI;
#endif
    if (limit && *limit) {
        if (strcmp(limit, "scalar") == 0)
            allow = 0;
        else if (strcmp(limit, "avx2") == 0)
            allow = DQ_CPU_AVX2;
        else if (strcmp(limit, "avx512") != 0 && unknown)
            *unknown = true;
    }
    return have & allow;
}

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "an unknown compiler"
#endif

void dq_os_arithmetic(char about[DQ_OS_ARITHMETIC])
{
    const bool fused = dq_os_cpu_features(NULL) & DQ_CPU_AVX2;
#if defined(__GLIBC__)
    const char *library = "glibc ", *version = gnu_get_libc_version();
#else
    const char *library = "an unknown C library", *version = "";
#endif
    snprintf(about, DQ_OS_ARITHMETIC, "ISA %s, %.80s, %s%.20s", fused ? "avx2 or avx512" : "scalar",
             COMPILER, library, version);
    dq_one_line(about);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double dq_os_seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double dq_os_own_seconds(void)
{
    return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

int64_t dq_os_peak_bytes(void)
{
    /* Not getrusage, whose peak survives exec: a child would report its parent's. */
    char line[128];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "VmHWM: %lld", &kib) == 1) break;
    }
    fclose(f);
    return kib * 1024;
}

/* From the kernel: on some processors sysconf gives a sum over the machine. */
int64_t dq_os_cache_bytes(void)
{
    long long kib = 0;
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (!f) return 0;
    if (fscanf(f, "%lldK", &kib) != 1) kib = 0;
    fclose(f);
    return kib * 1024;
}

int64_t dq_os_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const int64_t machine = pages > 0 && page > 0 ? (int64_t)pages * page / os_sharing() : 0;
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return machine;
    const int64_t own = limit.rlim_cur < INT64_MAX ? (int64_t)limit.rlim_cur : INT64_MAX;
    return machine > 0 && machine < own ? machine : own;
}

void *dq_os_library_open(const char *name, const char **why)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    *why = library ? NULL : dlerror();
    return library;
}

const char *dq_os_library_path(void *library, dq_arena *a, dq_err *err)
{
    struct link_map *map;
    const char *path = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "unknown";
    return dq_text(a, path, strlen(path), err);
}

dq_os_function *dq_os_library_function(void *library, const char *name)
{
    dq_os_function *f;
    void *p = dlsym(library, name);
    _Static_assert(sizeof f == sizeof p, "POSIX");
    memcpy(&f, &p, sizeof f);
    return f;
}

dq_status dq_os_process_begin(dq_err *err)
{
    /* Wrong way round on purpose: reading and writing fail, and only messages vanish. */
    static const int flags[3] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", flags[fd]) != fd) return dq_os_fail(err, "/dev/null", "cannot open");
    }
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is a write error like a full disk */
    return DQ_OK;
}

static _Atomic sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

void dq_os_catch_signals(void)
{
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    act.sa_flags = (int)SA_RESETHAND; /* a second Ctrl-C ends the process at once */
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

int dq_os_stop_signal(void)
{
    return atomic_load_explicit(&stop_signal, memory_order_relaxed);
}

void dq_os_clear_stop(void)
{
    stop_signal = 0;
    dq_os_catch_signals(); /* a signal that came has its usual effect again */
}

dq_status dq_os_check_stop(dq_err *err)
{
    return dq_os_stop_signal() ? dq_fail(err, DQ_STOPPED, "interrupted") : DQ_OK;
}

/* The process's own group is the line "0::PATH" of /proc/self/cgroup. */

enum { PATH_BYTES = 4096 };

static FILE *open_group(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s%s%s", root, folder, name);
    return n > 0 && n < PATH_BYTES ? fopen(path, "r") : NULL;
}

/* The number after `key` at the start of a line ("": the file's first number); -1: none. */
static int64_t group_number(const char *root, const char *folder, const char *name, const char *key)
{
    char line[256];
    long long x = -1;
    FILE *f = open_group(root, folder, name);
    if (!f) return -1;
    while (x < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 &&
            (sscanf(line + strlen(key), " %lld", &x) != 1 || x < 0))
            x = -1;
    fclose(f);
    return x;
}

static void each_group(const char *root, dq_os_group_visit *visit, void *arg)
{
    static const char mount[] = "/sys/fs/cgroup";
    char line[PATH_BYTES / 2] = "", folder[PATH_BYTES] = "";
    FILE *f = open_group(root, "/proc/self", "/cgroup");
    if (!f) return;
    while (fgets(line, sizeof line, f) && strncmp(line, "0::", 3) != 0) line[0] = 0;
    fclose(f);
    if (!line[0]) return;
    line[strcspn(line, "\n")] = 0;
    snprintf(folder, sizeof folder, "%s%s", mount, line + 3);
    for (char *end; (end = strrchr(folder, '/')) >= folder + sizeof mount - 1; *end = 0)
        visit(arg, root, folder);
    visit(arg, root, mount);
}

/* A list of mappings lets a SIGBUS handler say which file shrank: entries are linked when complete
 * and reused, never freed, so that it can walk the list while another thread maps. */

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
    if (m->entry) {
        struct dq_mapping *e = m->entry;
        pthread_mutex_lock(&lock);
        e->begin = 0;
        free(e->path);
        e->path = NULL;
        pthread_mutex_unlock(&lock);
    }
    if (m->data) munmap(p.out, m->bytes);
    memset(m, 0, sizeof *m);
}

/* Only pages entirely in [p, p + bytes). */
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

/* What cannot be read sets no bound. */

static void lower(int64_t *left, int64_t limit, int64_t taken)
{
    const int64_t more = limit > taken ? limit - taken : 0;
    if (limit >= 0 && more < *left) *left = more;
}

/* The kernel reclaims a group's file pages before it runs short. */
static void lower_by_group(void *bound, const char *root, const char *folder)
{
    int64_t *left = bound;
    const int64_t limit = group_number(root, folder, "/memory.max", "");
    int64_t taken = group_number(root, folder, "/memory.current", "");
    static const char *const files[] = {"active_file ", "inactive_file "};
    if (limit < 0 || taken < 0) return;
    for (int i = 0; i < 2; i++) {
        const int64_t bytes = group_number(root, folder, "/memory.stat", files[i]);
        if (bytes > 0) taken -= bytes;
    }
    lower(left, limit, taken > 0 ? taken : 0);
}

/* Processes of this job on this machine have equal shares. */

int64_t dq_os_memory_left(const char *root)
{
    int64_t left = INT64_MAX;
    const int64_t machine = dq_os_memory_bytes();
    const int64_t free_kib = group_number(root, "/proc", "/meminfo", "MemAvailable:");
    const int64_t mapped_kib = group_number(root, "/proc/self", "/status", "VmSize:");
    struct rlimit limit;
    if (machine > 0) lower(&left, machine, 0);
    int64_t of_all = INT64_MAX;
    if (free_kib >= 0) lower(&of_all, free_kib * 1024, 0);
    each_group(root, lower_by_group, &of_all);
    if (of_all < INT64_MAX) lower(&left, of_all / os_sharing(), 0);
    if (mapped_kib >= 0 && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < INT64_MAX)
        lower(&left, (int64_t)limit.rlim_cur, mapped_kib * 1024);
    return left < INT64_MAX ? left : 0;
}

/* What cannot be read sets no bound. */

/* "MAX PERIOD" in microseconds of processor time per period; "max PERIOD": no bound. */
static void lower_by_quota(void *bound, const char *root, const char *folder)
{
    long long most, period;
    int *count = bound;
    FILE *f = open_group(root, folder, "/cpu.max");
    if (!f) return;
    if (fscanf(f, "%lld %lld", &most, &period) == 2 && most > 0 && period > 0) {
        const long long whole = (most + period - 1) / period;
        if (whole < *count) *count = (int)whole;
    }
    fclose(f);
}

static int shared_by = 1;

void dq_os_share_machine(int n)
{
    shared_by = n;
}

static int os_sharing(void)
{
    return shared_by;
}

int dq_os_cpu_count(const char *root)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const bool whole = n >= sysconf(_SC_NPROCESSORS_ONLN);
    each_group(root, lower_by_quota, &n);
    if (whole) n /= shared_by;
    return n > 0 ? n : 1;
}

int dq_os_threads(void)
{
    return omp_get_max_threads();
}

void dq_os_threads_set(int64_t n)
{
    omp_set_num_threads(n > 0 ? (int)n : dq_os_cpu_count(""));
}

/* GCC's OpenMP reads its environment when loaded, so the program restarts itself. By default it
 * spins 6 ms and more before it sleeps, at the expense of others on that processor. */
void dq_os_threads_begin(char **argv)
{
#if defined(__GNUC__) && !defined(__clang__)
    char path[4096]; /* by its own name, which ps and killall show */
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0 || n >= (ssize_t)sizeof path) return;
    path[n] = 0;
    if (setenv("GOMP_SPINCOUNT", "2000", 0) == 0) execv(path, argv);
#else
    (void)argv;
#endif
}

static int n_forks; /* written where there is one thread */

static void end_team(void)
{
    omp_pause_resource_all(omp_pause_hard);
}

static void count_fork(void)
{
    n_forks++;
}

static void watch_forks(void)
{
    pthread_atfork(end_team, NULL, count_fork);
}

int dq_os_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return n_forks;
}
