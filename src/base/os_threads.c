/* os_threads: how many threads this process should have, and how they wait for each other. What cannot be read sets no
 * bound.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* sched_getaffinity */
#include "base/os.h"
#include "base/os_groups.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

/* "MAX PERIOD" in microseconds: so much time of processors in each period; "max PERIOD": no bound. */
static void lower_by_quota(void *bound, const char *root, const char *folder)
{
    long long most, period;
    int *count = bound;
    FILE *f = dq_os_groups_open(root, folder, "/cpu.max");
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

int dq_os_sharing(void)
{
    return shared_by;
}

int dq_os_cpu_count(const char *root)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    const bool whole = n >= sysconf(_SC_NPROCESSORS_ONLN);
    dq_os_groups_each(root, lower_by_quota, &n);
    if (whole) n /= shared_by;
    return n > 0 ? n : 1;
}

int dq_os_threads(void)
{
    return omp_get_max_threads();
}

/* GCC's runtime of OpenMP reads its environment while it is loaded, before any line of this program, so the program
 * starts itself once more. It spins 300 000 times before it sleeps, 6 ms and more: where something else runs, a thread
 * spins through its share of the processor while the one that it waits for has none. */
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
