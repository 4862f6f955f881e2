/* fuzz_container: any bytes as a container: opened, walked, every payload checked.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/container.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* HDF5 1.10 leaks small blocks when it refuses damaged metadata; that is not ours to fix. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

static void walk(dq_container *c)
{
    dq_err err = {0};
    dq_source s = dq_container_source(c);
    dq_container_check_index(c, &err);
    for (int64_t i = 0; i < c->n_payloads; i++) {
        dq_err one = {0};
        dq_container_payload_check(c, i, &one);
    }
    for (int64_t i = 0; i < s.count; i++) {
        dq_weight w;
        if (!s.find(s.arg, s.name_at(s.arg, i), &w)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/dq-fuzz-XXXXXX";
    dq_container *c;
    dq_err err = {0};
    int fd = mkstemp(path);
    if (fd < 0) return 0;
    if (write(fd, data, size) == (ssize_t)size && dq_container_open(&c, path, &err) == DQ_OK) {
        walk(c);
        dq_container_close(c);
    }
    close(fd);
    unlink(path);
    return 0;
}
