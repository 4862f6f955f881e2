/* os_memory: how much memory this process could still take. What cannot be read sets no bound.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/os_groups.h"

#include <sys/resource.h>

static void lower(int64_t *left, int64_t limit, int64_t taken)
{
    const int64_t more = limit > taken ? limit - taken : 0;
    if (limit >= 0 && more < *left) *left = more;
}

/* Pages of files that a control group has read are given back before it runs short. */
static void lower_by_group(void *bound, const char *root, const char *folder)
{
    int64_t *left = bound;
    const int64_t limit = dq_os_groups_number(root, folder, "/memory.max", "");
    int64_t taken = dq_os_groups_number(root, folder, "/memory.current", "");
    static const char *const files[] = {"active_file ", "inactive_file "};
    if (limit < 0 || taken < 0) return;
    for (int i = 0; i < 2; i++) {
        const int64_t bytes = dq_os_groups_number(root, folder, "/memory.stat", files[i]);
        if (bytes > 0) taken -= bytes;
    }
    lower(left, limit, taken > 0 ? taken : 0);
}

/* Of what processes of this job on this machine take together, each has its share. */

int64_t dq_os_memory_left(const char *root)
{
    int64_t left = INT64_MAX;
    const int64_t machine = dq_os_memory_bytes();
    const int64_t free_kib = dq_os_groups_number(root, "/proc", "/meminfo", "MemAvailable:");
    const int64_t mapped_kib = dq_os_groups_number(root, "/proc/self", "/status", "VmSize:");
    struct rlimit limit;
    if (machine > 0) lower(&left, machine, 0);
    int64_t of_all = INT64_MAX;
    if (free_kib >= 0) lower(&of_all, free_kib * 1024, 0);
    dq_os_groups_each(root, lower_by_group, &of_all);
    if (of_all < INT64_MAX) lower(&left, of_all / dq_os_sharing(), 0);
    if (mapped_kib >= 0 && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < INT64_MAX)
        lower(&left, (int64_t)limit.rlim_cur, mapped_kib * 1024);
    return left < INT64_MAX ? left : 0;
}
