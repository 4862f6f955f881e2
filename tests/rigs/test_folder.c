/* test_folder: see test_folder.h. One folder a process, which is what a test is.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "tests/rigs/test_folder.h"
#include "tests/rigs/suite.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* HDF5 1.10 leaks small blocks when it refuses damaged metadata; that is not ours to fix. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}

static char dir[64];

int folder_begin(void **unused)
{
    (void)unused;
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%.40s/dq-test-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

int folder_end(void **unused)
{
    (void)unused;
    return shell("rm -rf", dir, "");
}

const char *at(const char *name)
{
    static char path[8][256];
    static int turn;
    char *p = path[turn = (turn + 1) % 8];
    snprintf(p, sizeof path[0], "%s%s%s", dir, *name ? "/" : "", name);
    return p;
}

int shell(const char *verb, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof command, "%s %s %s", verb, a, b);
    return system(command);
}

char *bytes_of(const char *path, size_t *len)
{
    dq_err err = {0};
    dq_os_map m;
    if (dq_os_map_open(&m, path, &err) != DQ_OK) fail_msg("%s", err.text);
    char *copy = malloc(m.bytes + 1);
    assert_non_null(copy);
    memcpy(copy, m.data, m.bytes);
    *len = m.bytes;
    dq_os_map_close(&m);
    return copy;
}

void put_bytes(const char *path, const void *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

bool same_bytes(const char *a, const char *b)
{
    return shell("cmp -s", a, b) == 0;
}

dq_quantize_settings settings_of(int bits, int64_t group, dq_scale_mode mode)
{
    return (dq_quantize_settings){.bits = bits,
                                  .group = group,
                                  .mode = mode,
                                  .scale_dtype = DQ_F16,
                                  .logit = {.bits = 16},
                                  .kv = dq_kv_config_plain,
                                  .dq_version = "test"};
}

dq_status write_container(const char *source, const char *out, const dq_quantize_settings *s,
                          bool force, bool resume, const dq_quantize_progress *p, dq_err *err)
{
    dq_quantizer *q;
    *err = (dq_err){0};
    if (dq_quantize_open(&q, source, s, err) != DQ_OK) return err->code;
    dq_quantize_write(q, out, force, resume, p, err);
    dq_quantize_close(q);
    return err->code;
}

void make_container(const char *source, const char *out, const dq_quantize_settings *s)
{
    dq_err err;
    if (write_container(source, out, s, true, false, NULL, &err) != DQ_OK) fail_msg("%s", err.text);
}
