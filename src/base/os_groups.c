/* os_groups: see os_groups.h. The process's own group is the line "0::PATH" of /proc/self/cgroup.
 * SPDX-License-Identifier: MIT */
#include "base/os_groups.h"

#include <string.h>

enum { PATH_BYTES = 4096 };

FILE *dq_os_groups_open(const char *root, const char *folder, const char *name)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s%s%s", root, folder, name);
    return n > 0 && n < PATH_BYTES ? fopen(path, "r") : NULL;
}

int64_t dq_os_groups_number(const char *root, const char *folder, const char *name, const char *key)
{
    char line[256];
    long long x = -1;
    FILE *f = dq_os_groups_open(root, folder, name);
    if (!f) return -1;
    while (x < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 &&
            (sscanf(line + strlen(key), " %lld", &x) != 1 || x < 0))
            x = -1;
    fclose(f);
    return x;
}

void dq_os_groups_each(const char *root, dq_os_group_visit *visit, void *arg)
{
    static const char mount[] = "/sys/fs/cgroup";
    char line[PATH_BYTES / 2] = "", folder[PATH_BYTES] = "";
    FILE *f = dq_os_groups_open(root, "/proc/self", "/cgroup");
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
