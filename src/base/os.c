/* os: thin layers over POSIX and CPUID.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* dlinfo */
#include "base/os.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#if __has_include(<gnu/libc-version.h>)
#include <gnu/libc-version.h>
#endif
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

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
    /* Not getrusage: its figure outlives exec, so a child of a large process would report its parent. */
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

/* The kernel's word: sysconf gives a sum over the machine on some processors. */
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
    const int64_t machine = pages > 0 && page > 0 ? (int64_t)pages * page / dq_os_sharing() : 0;
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
    /* The wrong way round on purpose: reading from a standard input that does not exist fails, and so
     * does writing to such an output. Only messages go nowhere. */
    static const int flags[3] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (open("/dev/null", flags[fd]) != fd) return dq_os_fail(err, "/dev/null", "cannot open");
    }
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is a write error like a full disk */
    return DQ_OK;
}

/* Set by a handler, read by all threads. */
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
