/* device: the device that tests of the operations of backend.h run on: DQ_TEST_DEVICE, else the CPU.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_DEVICE_H
#define DQ_DEVICE_H

#include "engine/backend.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline const char *test_device(void)
{
    const char *name = getenv("DQ_TEST_DEVICE");
    return name && *name ? name : "cpu";
}

/* Some of what a cache holds is seen on the CPU alone. */
static inline bool on_cpu(void)
{
    return strcmp(test_device(), "cpu") == 0;
}

/* Kernels that are simulated take a thousand times as long: tests of many cases leave some out. Every
 * `one_in`-th of them runs there, fewer with sanitizers, all of them elsewhere. */
static inline bool test_runs(int i, int one_in)
{
#ifdef DQ_SIMT
#ifdef __SANITIZE_ADDRESS__
    one_in *= 4;
#endif
    return i % one_in == 0;
#else
    (void)i, (void)one_in;
    return true;
#endif
}

/* One array on both sides. put and get copy `n` elements. */
typedef struct test_array {
    float *host, *device;
} test_array;

static inline test_array test_array_new(dq_backend *b, size_t n)
{
    const test_array a = {calloc(n, sizeof(float)), b->ops->alloc(b, n * sizeof(float))};
    return a;
}

static inline void test_array_free(dq_backend *b, test_array *a)
{
    free(a->host);
    b->ops->free(b, a->device);
}

static inline void test_put(dq_backend *b, const test_array *a, int64_t n)
{
    b->ops->put(b, a->device, a->host, (size_t)n * sizeof(float));
}

static inline void test_get(dq_backend *b, const test_array *a, int64_t n)
{
    b->ops->get(b, a->host, a->device, (size_t)n * sizeof(float));
}

#endif
