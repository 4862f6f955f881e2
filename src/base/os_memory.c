/* os_memory: how much memory this process could still take. What cannot be read sets no bound.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { PATH_BYTES = 4096 };

static FILE *open_below(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s%s%s", root, folder, name);
    return n > 0 && n < PATH_BYTES ? fopen(path, "r") : NULL;
}

/* The number behind the word `key` at the begin of a line, "": the file's first number; -1: none. */
static int64_t number_in(const char *root, const char *folder, const char *name, const char *key)
{
    char line[256];
    long long x = -1;
    FILE *f = open_below(root, folder, name);
    if (!f) return -1;
    while (x < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 &&
            (sscanf(line + strlen(key), " %lld", &x) != 1 || x < 0))
            x = -1;
    fclose(f);
    return x;
}

static void lower(int64_t *left, int64_t limit, int64_t taken)
{
    const int64_t more = limit > taken ? limit - taken : 0;
    if (limit >= 0 && more < *left) *left = more;
}

/* Pages of files that a control group has read are given back before it runs short. */
static void lower_by_group(int64_t *left, const char *root, const char *folder)
{
    const int64_t limit = number_in(root, folder, "/memory.max", "");
    int64_t taken = number_in(root, folder, "/memory.current", "");
    static const char *const files[] = {"active_file ", "inactive_file "};
    if (limit < 0 || taken < 0) return;
    for (int i = 0; i < 2; i++) {
        const int64_t bytes = number_in(root, folder, "/memory.stat", files[i]);
        if (bytes > 0) taken -= bytes;
    }
    lower(left, limit, taken > 0 ? taken : 0);
}

/* The group of this process and those above it. A container may see its own as the top one. */
static void lower_by_groups(int64_t *left, const char *root)
{
    static const char mount[] = "/sys/fs/cgroup";
    char line[PATH_BYTES / 2] = "", folder[PATH_BYTES] = "";
    FILE *f = open_below(root, "/proc/self", "/cgroup");
    if (!f) return;
    while (fgets(line, sizeof line, f) && strncmp(line, "0::", 3) != 0) line[0] = 0;
    fclose(f);
    if (!line[0]) return;
    line[strcspn(line, "\n")] = 0;
    snprintf(folder, sizeof folder, "%s%s", mount, line + 3);
    for (char *end; (end = strrchr(folder, '/')) >= folder + sizeof mount - 1; *end = 0)
        lower_by_group(left, root, folder);
    lower_by_group(left, root, mount);
}

int64_t dq_os_memory_left(const char *root)
{
    int64_t left = INT64_MAX;
    const int64_t machine = dq_os_memory_bytes();
    const int64_t free_kib = number_in(root, "/proc", "/meminfo", "MemAvailable:");
    const int64_t mapped_kib = number_in(root, "/proc/self", "/status", "VmSize:");
    struct rlimit limit;
    if (machine > 0) lower(&left, machine, 0);
    if (free_kib >= 0) lower(&left, free_kib * 1024, 0);
    lower_by_groups(&left, root);
    if (mapped_kib >= 0 && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < INT64_MAX)
        lower(&left, (int64_t)limit.rlim_cur, mapped_kib * 1024);
    return left < INT64_MAX ? left : 0;
}
