/* test_backend: names of devices and instruction sets, what a backend refuses, and how failures travel.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "engine/backend.h"
#include "model/model.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

static const struct name_case {
    const char *name;
    dq_status status;
    const char *text; /* part of the message */
} names[] = {
    {"cpu", DQ_OK, ""},
    {"auto", DQ_OK, ""},
    {"cuda", DQ_RESOURCE, "CUDA"}, /* built with CUDA: no driver */
    {"cuda:1234567", DQ_RESOURCE, "cuda:1234567"},
    {"cuda:", DQ_USAGE, "unknown device"},
    {"cuda:x", DQ_USAGE, "unknown device"},
    {"cudagraph", DQ_USAGE, "unknown device"},
    {"gpu", DQ_USAGE, "expected cpu"},
    {"", DQ_USAGE, "unknown device"},
};

TEST(devices)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        dq_err err = {0};
        dq_backend *b;
        const dq_status status = dq_backend_open(&b, names[i].name, 1, &err);
        if (status == DQ_OK && strcmp(b->ops->name, "cuda") == 0) { /* there is a GPU */
            dq_backend_close(b);
            continue;
        }
        assert_int_equal(status, names[i].status);
        assert_int_equal(b != NULL, names[i].status == DQ_OK);
        assert_non_null(strstr(err.text, names[i].text));
        if (b) assert_non_null(strstr(b->device, "1 thread"));
        dq_backend_close(b);
    }
}

TEST(thread_counts)
{
    dq_err err = {0};
    dq_backend *b;
    assert_int_equal(dq_backend_open(&b, "cpu", 0, &err), DQ_OK);
    assert_int_equal(b->threads, dq_os_cpu_count(""));
    dq_backend_close(b);
    assert_int_equal(dq_backend_open(&b, "cpu", -1, &err), DQ_USAGE);
    assert_null(b);
}

TEST(isas)
{
    dq_err err = {0};
    dq_backend *b;
    setenv("DQ_CPU", "sse9", 1);
    assert_int_equal(dq_backend_open(&b, "cpu", 1, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "sse9"));
    assert_non_null(strstr(err.text, "avx512"));
    memset(&err, 0, sizeof err);
    setenv("DQ_CPU", "scalar", 1);
    assert_int_equal(dq_backend_open(&b, "cpu", 1, &err), DQ_OK);
    assert_string_equal(b->device, "cpu, scalar, 1 thread");
    dq_backend_close(b);
    unsetenv("DQ_CPU");
}

TEST(refusals)
{
    const dq_math plain = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32};
    dq_err err = {0};
    dq_backend *b;
    dq_kv_spec kv = dq_kv_plain;
    dq_math math = plain;
    assert_int_equal(dq_backend_open(&b, "cpu", 1, &err), DQ_OK);
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    math.linear = DQ_NUM_BF16;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "math bf16"));
    memset(&err, 0, sizeof err);
    math = plain;
    math.qk = math.pv = DQ_NUM_F16;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "math f16 is not available on the cpu backend"));
    assert_null(b->ops->attend_kernel(b, &kv, 64, math));
    memset(&err, 0, sizeof err);
    math = dq_backend_math(b, DQ_NUM_INT8);
    assert_true(math.linear == DQ_NUM_INT8 && math.qk == DQ_NUM_INT8 && math.pv == DQ_NUM_INT8);
    kv.num = DQ_NUM_INT8;
    kv.k_bits = 8;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "on the cpu backend needs a packed KV cache, and this one has "
                                     "8-bit keys and 16-bit values"));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_MATH_CACHE);
    memset(&err, 0, sizeof err);
    kv.v_bits = 4;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    dq_layer layer = {
        .down = {
            .name = "layers.0.down", .rows = 2, .cols = 2, .format = &dq_format_int, .bits = 4}};
    dq_model m = {.path = "m.h5", .n_layers = 1, .layer = &layer};
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_OK);
    layer.down.format = &dq_format_dense;
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "layers.0.down is not packed"));
    memset(&err, 0, sizeof err);
    kv.num = DQ_NUM_F32;
    assert_int_equal(dq_backend_can(b, NULL, plain, &kv, &err), DQ_OK);
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_BUG);
    dq_backend_close(b);
}

TEST(memory)
{
    for (int n = 1; n <= 3; n++) {
        dq_err err = {0};
        dq_backend *b;
        dq_alloc_fail_at(n);
        assert_int_equal(dq_backend_open(&b, "cpu", 2, &err), DQ_RESOURCE);
        dq_alloc_fail_at(0);
        assert_null(b);
    }
    dq_err err = {0};
    dq_backend *b;
    char back[5] = "";
    assert_int_equal(dq_backend_open(&b, "cpu", 2, &err), DQ_OK);
    void *p = b->ops->alloc(b, 5);
    assert_int_equal((uintptr_t)p % 64, 0);
    b->ops->put(b, p, "abcd", 5);
    b->ops->get(b, back, p, 5);
    assert_string_equal(back, "abcd");
    b->ops->free(b, p);
    assert_int_equal(dq_backend_sync(b, &err), DQ_OK);
    dq_backend_close(b);
    dq_backend_close(NULL);
}
