/* test_os_memory: the lowest of what machine, control groups and address space leave, of memory and of processors.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUP "/sys/fs/cgroup"
static const char *const folders[] = {"/proc",        "/proc/self",      "/sys", "/sys/fs", GROUP,
                                      GROUP "/outer", GROUP "/outer/own"};
enum { N_FOLDERS = sizeof folders / sizeof *folders };
static char root[80];

static const char *below(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s%s", root, name);
    return path;
}

static int begin(void **state)
{
    if (folder_begin(state) != 0) return -1;
    strcpy(root, at(""));
    for (int i = 0; i < N_FOLDERS; i++)
        if (mkdir(below(folders[i]), 0700) != 0) return -1;
    return 0;
}

static void put(const char *name, const char *text)
{
    put_bytes(below(name), text, strlen(text));
}

static void expect(int64_t bytes)
{
    assert_int_equal(dq_os_memory_left(root), bytes);
}

TEST(the_lowest_bound_holds)
{
    expect(dq_os_memory_bytes());
    put("/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 9 kB\nMemAvailable:    2048 kB\n");
    expect(2048 * 1024);
    put("/proc/self/cgroup", "4:memory:/old\n0::/outer/own\n");
    expect(2048 * 1024);
    put(GROUP "/outer/memory.max", "1000000\n");
    expect(2048 * 1024);
    put(GROUP "/outer/memory.current", "400000\n"); /* a group above counts */
    expect(600000);
    put(GROUP "/outer/own/memory.max", "max\n");
    put(GROUP "/outer/own/memory.current", "399999\n");
    expect(600000);
    put(GROUP "/outer/own/memory.max", "500000\n");
    expect(100001);
    put(GROUP "/outer/own/memory.stat", "anon 5\nactive_file 1000\ninactive_file 2000\n");
    expect(103001);
    put(GROUP "/memory.max", "70000\n");
    put(GROUP "/memory.current", "80000\n"); /* over its limit */
    expect(0);
    put(GROUP "/memory.current", "10000\n");
    expect(60000);
    put("/proc/self/cgroup", "0::/\n"); /* as a container sees itself */
    expect(60000);
    put("/proc/self/cgroup", "0::/elsewhere/and/deeper\n");
    expect(60000);
    put("/proc/self/cgroup", "4:memory:/outer\n"); /* version 1 only */
    expect(2048 * 1024);
}

TEST(an_address_space_is_a_bound)
{
    struct rlimit old, less;
    put("/proc/self/status", "Name:\tdq\nVmPeak:\t 99 kB\nVmSize:\t 1000 kB\n");
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    less = old;
    less.rlim_cur = (rlim_t)1 << 46; /* more than there is */
    if (old.rlim_cur != RLIM_INFINITY || setrlimit(RLIMIT_AS, &less) != 0) skip();
    expect(2048 * 1024);
    put("/proc/self/status", "VmSize:\t 68719475736 kB\n"); /* 1000 KiB below */
    expect(1000 * 1024);
    put("/proc/self/status", "VmSize:\t 68719477000 kB\n");
    expect(0);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
}

TEST(this_machine_has_some)
{
    const int64_t left = dq_os_memory_left("");
    assert_true(left > 0 && left <= dq_os_memory_bytes());
}

/* The machine may have one processor only, so quotas of less than one are what is sure to lower. */
TEST(quotas_of_processors_hold)
{
    const int all = dq_os_cpu_count("");
    put("/proc/self/cgroup", "0::/outer/own\n");
    assert_int_equal(dq_os_cpu_count(root), all);
    put(GROUP "/outer/own/cpu.max", "max 100000\n");
    put(GROUP "/outer/cpu.max", "900000000 100000\n");
    assert_int_equal(dq_os_cpu_count(root), all);
    put(GROUP "/outer/cpu.max", "20000 100000\n"); /* a fifth of a processor is one */
    assert_int_equal(dq_os_cpu_count(root), 1);
    put(GROUP "/outer/cpu.max", "100001 100000\n"); /* rounded up */
    assert_int_equal(dq_os_cpu_count(root), all < 2 ? all : 2);
    put(GROUP "/outer/cpu.max", "nothing\n");
    put(GROUP "/cpu.max", "0 100000\n");
    assert_int_equal(dq_os_cpu_count(root), all);
}

FIXTURES(begin, folder_end)
