/* test_cuda_open: how the CUDA backend opens, what it says when it cannot, its memory, and the order of
 * its work.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/cuda_rig.h"
#include "tests/rigs/suite.h"

#include "kernels/cuda/host/cuda.h"
#include "model/model.h"

static dq_status open_status(const char *name, dq_err *err)
{
    dq_backend *b;
    memset(err, 0, sizeof *err);
    const dq_status status = dq_backend_open(&b, name, 1, err);
    assert_int_equal(b != NULL, status == DQ_OK);
    dq_backend_close(b);
    return status;
}

TEST(test_devices)
{
    dq_err err;
    assert_int_equal(open_status("cuda", &err), DQ_OK);
    assert_int_equal(open_status("cuda:0", &err), DQ_OK);
    assert_int_equal(open_status("cuda:00", &err), DQ_OK);
    assert_int_equal(open_status("cuda:1", &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "cuda:1 does not exist (expected cuda:0 to cuda:0)"));
    assert_int_equal(open_status("cuda:99999999999999999999", &err), DQ_RESOURCE);
    dq_backend *b = rig_device("cuda");
    assert_string_equal(b->ops->name, "cuda");
    assert_non_null(strstr(b->device, "cuda:0, simulated"));
    dq_backend_close(b);
    b = rig_device("auto");
    assert_string_equal(b->ops->name, "cpu");
    dq_backend_close(b);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* Each in one line that says what is there, what should be, and what to do. */
TEST(test_unusable_devices)
{
    static const struct {
        int devices, driver, capability;
        const char *text;
    } cases[] = {
        {1, 0, 80, "no NVIDIA driver is installed (expected one for CUDA 13.0). Install it"},
        {1, 12040, 80, "too old (expected one for CUDA 13.0, found one for CUDA 12.4). Update it"},
        {0, 13000, 80, "no CUDA device is visible (nvidia-smi lists them"},
        {1, 13000, 75, "cuda:0 (simulated) has compute capability 7.5 (expected 8.0 or later)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dq_err err;
        dq_simt_set_devices(cases[i].devices);
        dq_simt_set_driver(cases[i].driver);
        dq_simt_set_capability(cases[i].capability);
        assert_int_equal(open_status("cuda", &err), DQ_RESOURCE);
        if (!strstr(err.text, cases[i].text)) fail_msg("%s", err.text);
        assert_int_equal(err.n_remedies, 1);
        assert_true(err.remedy[0].code == DQ_REMEDY_CPU || err.remedy[0].code == DQ_REMEDY_OR_CPU);
        dq_backend *b = rig_device("auto");
        assert_string_equal(b->ops->name, "cpu");
        dq_backend_close(b);
    }
    dq_simt_set_devices(1);
    dq_simt_set_driver(13000);
    dq_simt_set_capability(80);
    assert_int_equal(dq_simt_memory_used(), 0);
}

TEST(test_refusal_texts)
{
    static const struct {
        cudaError_t e;
        int driver;
        const char *text;
    } cases[] = {{cudaErrorNoDevice, 13000, "no CUDA device is visible"},
                 {cudaErrorInsufficientDriver, 0, "no NVIDIA driver is installed"},
                 {cudaErrorInsufficientDriver, 12040,
                  "too old (expected one for CUDA 13.0, found one for CUDA 12.4)"},
                 {cudaErrorLaunchFailure, 13000, "cudaErrorLaunchFailure"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dq_err err = {0};
        assert_int_equal(dq_cuda_refuse(cases[i].e, cases[i].driver, 13000, &err), DQ_RESOURCE);
        if (!strstr(err.text, cases[i].text)) fail_msg("%s", err.text);
        assert_true(err.remedy[0].code == DQ_REMEDY_CPU || err.remedy[0].code == DQ_REMEDY_OR_CPU);
    }
}

TEST(test_host_memory)
{
    for (int n = 1; n <= 5; n++) {
        dq_err err = {0};
        dq_backend *b;
        dq_alloc_fail_at(n);
        assert_int_equal(dq_backend_open(&b, "cuda", 1, &err), DQ_RESOURCE);
        dq_alloc_fail_at(0);
        assert_null(b);
        assert_int_equal(dq_simt_memory_used(), 0);
    }
}

/* ------------------------------------------------------------------------------------------- memory */
TEST(test_pool)
{
    dq_backend *b = rig_device("cuda");
    void *p = b->ops->alloc(b, 100000), *q = b->ops->alloc(b, 5);
    assert_int_equal((uintptr_t)p % 256, 0);
    assert_ptr_not_equal(p, q);
    const size_t used = dq_simt_memory_used();
    b->ops->free(b, p);
    b->ops->free(b, NULL);
    assert_ptr_equal(b->ops->alloc(b, 99000), p); /* used again */
    assert_int_equal(dq_simt_memory_used(), used);
    assert_non_null(b->ops->alloc(b, 0));
    rig_sync(b);
    dq_backend_close(b);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* Blocks of one size come from the driver in few chunks, which hold twice as much at most, and stay as long as one of
 * their blocks is in use. */
TEST(test_chunks)
{
    enum { N = 3000, BYTES = 4096, MIB = 1 << 20 };
    static uint8_t *p[N];
    dq_err err = {0};
    dq_backend *b = rig_device("cuda");
    const size_t used = dq_simt_memory_used();
    dq_simt_take_calls();
    for (int i = 0; i < N; i++) p[i] = b->ops->alloc(b, BYTES);
    assert_in_range(dq_simt_take_calls().blocks, 10, 20);
    assert_in_range(dq_simt_memory_used() - used, N * BYTES, N * BYTES + 2 * MIB);
    for (int i = 0; i < N; i++) {
        assert_int_equal((uintptr_t)p[i] % 256, 0);
        for (int j = i + 1; j < N; j++) assert_true(p[i] + BYTES <= p[j] || p[j] + BYTES <= p[i]);
    }
    for (int i = 0; i < N; i++)
        if (i != N / 2) b->ops->free(b, p[i]);
    assert_int_equal(dq_simt_take_calls().blocks, 0);
    dq_simt_set_memory(64 * MIB);
    void *large = b->ops->alloc(b, 56 * MIB); /* the other chunks go back first */
    assert_non_null(large);
    assert_in_range(dq_simt_memory_used(), 56 * MIB, 58 * MIB + used);
    for (int i = 0; i < 100; i++) p[i] = b->ops->alloc(b, BYTES); /* from the chunk that stayed */
    assert_int_equal(dq_simt_take_calls().blocks, 1);
    b->ops->free(b, p[N / 2]);
    rig_sync(b);
    b->ops->free(b, p[N / 2]);
    assert_int_equal(dq_backend_sync(b, &err), DQ_BUG);
    assert_string_equal(err.text, "memory is freed that the CUDA backend did not give out");
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* Where the driver has no memory for a chunk, it may have some for a block. */
TEST(test_short_chunk)
{
    enum { BYTES = 100 << 10 };
    dq_backend *b = rig_device("cuda");
    for (int i = 0; i < 4; i++) assert_non_null(b->ops->alloc(b, BYTES));
    dq_simt_set_memory(dq_simt_memory_used() + 2 * BYTES);
    assert_non_null(b->ops->alloc(b, BYTES));
    rig_sync(b);
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* Where not all of them fit there are none. */
TEST(test_blocks)
{
    enum { N = 5, FIT = 3, BYTES = 2 << 20 };
    dq_backend *b = rig_device("cuda");
    dq_err err = {0};
    void *p[N] = {NULL};
    dq_simt_set_memory(dq_simt_memory_used() + FIT * BYTES);
    assert_false(dq_cuda_alloc_blocks(b, p, N, BYTES));
    for (int i = 0; i < N; i++) assert_null(p[i]);
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    assert_true(dq_cuda_alloc_blocks(b, p, FIT, BYTES));
    for (int i = 0; i < FIT; i++)
        for (int k = 0; k < i; k++) assert_true(p[i] != p[k]);
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* As compute-sanitizer wants it: no byte more than asked for, and nothing is used again. */
TEST(test_exact_pool)
{
    dq_err err = {0};
    setenv("DQ_CUDA_POOL", "exact", 1);
    dq_backend *b = rig_device("cuda");
    const size_t used = dq_simt_memory_used();
    void *p = b->ops->alloc(b, 100001), *q = b->ops->alloc(b, 5);
    assert_int_equal(dq_simt_memory_used(), used + 100001 + 5);
    b->ops->free(b, p);
    assert_int_equal(dq_simt_memory_used(), used + 5);
    b->ops->free(b, q);
    rig_sync(b);
    dq_backend_close(b);
    assert_int_equal(dq_simt_memory_used(), 0);
    setenv("DQ_CUDA_POOL", "exactly", 1);
    assert_int_equal(dq_backend_open(&b, "cuda", 1, &err), DQ_USAGE);
    assert_string_equal(
        err.text, "environment variable DQ_CUDA_POOL: unknown value exactly (expected exact)");
    unsetenv("DQ_CUDA_POOL");
}

TEST(test_out_of_memory)
{
    dq_backend *b = rig_device("cuda");
    dq_err err = {0};
    const size_t mib = 1 << 20;
    dq_simt_set_memory(64 * mib);
    void *p = b->ops->alloc(b, 40 * mib);
    assert_non_null(p);
    assert_null(b->ops->alloc(b, 40 * mib));
    assert_null(b->ops->alloc(b, 5)); /* the error sticks */
    b->ops->free(b, p);
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    assert_string_equal(err.text,
                        "cuda:0: out of memory (40.00 MiB needed, 24.00 MiB of 64.00 MiB free)");
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_CPU);
    /* what lies free in another size goes back to the driver before anything fails */
    p = b->ops->alloc(b, 4 * mib);
    void *q = b->ops->alloc(b, 56 * mib);
    assert_non_null(p);
    assert_non_null(q);
    b->ops->free(b, p);
    b->ops->free(b, q);
    rig_sync(b);
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    assert_int_equal(dq_simt_memory_used(), 0);
}

/* An operation that runs out of memory half-way ends there, and runs when there is enough. */
TEST(test_out_of_memory_inside)
{
    dq_backend *b = rig_device("cuda");
    dq_weight head = rig_dense(70, 40, DQ_BF16, 4);
    int failures = 0;
    dq_mat x = rig_put(b, NULL, 33, 40);
    assert_true(b->ops->weight_acquire(b, &head));
    const size_t before = dq_simt_memory_used();
    for (size_t more = 0; more < (1 << 16); more += 1 << 10) {
        dq_err err = {0};
        int32_t top[33];
        dq_simt_set_memory(before + more);
        b->ops->logprob(b, NULL, top, x, &head, NULL, DQ_NUM_F32);
        const dq_status status = dq_backend_sync(b, &err);
        assert_true(status == DQ_OK || status == DQ_RESOURCE);
        failures += status == DQ_RESOURCE;
        if (status == DQ_RESOURCE) assert_non_null(strstr(err.text, "out of memory"));
    }
    assert_in_range(failures, 5, 60);
    b->ops->weight_release(b, &head);
    b->ops->free(b, x.p);
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    assert_int_equal(dq_simt_memory_used(), 0);
    rig_drop_weight(&head);
}

/* A weight that does not fit leaves nothing behind; one that several use is there once. */
TEST(test_weights)
{
    dq_backend *b = rig_device("cuda");
    dq_err err = {0};
    dq_weight w = rig_packed(64, 512, 4, 128, DQ_F16, 1), big = rig_dense(2048, 512, DQ_F32, 2);
    dq_simt_set_memory(1 << 20);
    assert_true(b->ops->weight_acquire(b, &w));
    const size_t used = dq_simt_memory_used();
    assert_true(b->ops->weight_acquire(b, &w));
    assert_int_equal(dq_simt_memory_used(), used);
    assert_false(b->ops->weight_acquire(b, &big));
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    b->ops->weight_release(b, &big); /* never acquired */
    b->ops->weight_release(b, &w);
    assert_non_null(dq_cuda_weight_of(b, &w));
    b->ops->weight_release(b, &w);
    assert_null(dq_cuda_weight_of(b, &w));
    memset(&err, 0, sizeof err);
    assert_int_equal(dq_backend_sync(b, &err), DQ_BUG);
    dq_backend_close(b);
    dq_simt_set_memory((size_t)1 << 30);
    rig_drop_weight(&w);
    rig_drop_weight(&big);
}

/* -------------------------------------------------------------------------------------------- order */
/* Host inputs may change when a call returns; outputs come with sync, not before. */
TEST(test_asynchronous)
{
    dq_backend *b = rig_device("cuda");
    float x[4] = {1, 2, 3, 4}, back[4] = {0};
    int64_t index[2] = {1, 0}, row = -7;
    dq_mat m = rig_put(b, x, 2, 2), n = rig_put(b, NULL, 2, 2);
    x[0] = 99;
    b->ops->gather(b, n, m, index);
    index[0] = 0;
    x[1] = INFINITY;
    b->ops->put(b, m.p, x, sizeof x);
    b->ops->first_bad_row(b, &row, m);
    assert_int_equal(row, -1); /* set at once, so that a failed pass has a value */
    b->ops->free(b, m.p);
    assert_int_equal(row, -1);
    rig_sync(b);
    assert_int_equal(row, 0);
    b->ops->get(b, back, n.p, sizeof back);
    assert_true(back[0] == 3 && back[1] == 4 && back[2] == 1 && back[3] == 2);
    b->ops->free(b, n.p);
    dq_backend_close(b);
}

/* More than the ring of pinned memory holds, from host memory that is overwritten at once. */
TEST(test_large_copies)
{
    dq_backend *b = rig_device("cuda");
    const size_t n = (size_t)9 << 20;
    uint32_t *x = rig_block(n / 4, 4), *y = rig_block(n / 4, 4);
    void *p[3];
    for (uint32_t k = 0; k < 3; k++) {
        for (size_t i = 0; i < n / 4; i++) x[i] = (uint32_t)i * 2654435761u + k;
        p[k] = b->ops->alloc(b, n);
        b->ops->put(b, p[k], x, n);
    }
    for (uint32_t k = 0; k < 3; k++) {
        b->ops->get(b, y, p[k], n);
        for (size_t i = 0; i < n / 4; i += 1021)
            assert_int_equal(y[i], (uint32_t)i * 2654435761u + k);
        assert_int_equal(y[n / 4 - 1], (uint32_t)(n / 4 - 1) * 2654435761u + k);
    }
    rig_sync(b);
    rig_drop(x);
    rig_drop(y);
    dq_backend_close(b);
}

static void add_bytes(void *arg, const void *data, size_t bytes)
{
    int **at = arg;
    for (size_t i = 0; i < bytes; i++) **at = **at * 10 + ((const uint8_t *)data)[i];
}

/* Results are given in the order of the calls, notes die after them; after an error nothing is. */
TEST(test_downloads)
{
    dq_backend *b = rig_device("cuda");
    int sum = 0;
    uint8_t got[2] = {0};
    for (int fails = 0; fails < 2; fails++) {
        dq_err err = {0};
        for (uint8_t i = 0; i < 2; i++) {
            const uint8_t bytes[2] = {(uint8_t)(2 * i + 1), (uint8_t)(2 * i + 2)};
            const void *up = dq_cuda_upload(b, bytes, 2);
            int **note = dq_cuda_note(b, sizeof(int *));
            *note = &sum;
            dq_cuda_download(b, up, 2, add_bytes, note);
            dq_cuda_download(b, up, 2, NULL, got);
            dq_cuda_upload_end(b);
        }
        assert_int_equal(sum, fails ? 1234 : 0);
        if (fails) dq_fail(&b->err, DQ_DAMAGED, "planted");
        assert_int_equal(dq_backend_sync(b, &err), fails ? DQ_DAMAGED : DQ_OK);
        assert_int_equal(sum, 1234);
        assert_true(got[0] == 3 && got[1] == 4);
    }
    dq_backend_close(b);
}

TEST(test_missing_blas)
{
    dq_backend *b = rig_device("cuda");
    dq_err err = {0};
    dq_weight w = rig_dense(4, 4, DQ_F32, 3);
    dq_simt_set_blas(DQ_SIMT_BLAS_NONE);
    dq_mat x = rig_put(b, NULL, 1, 4), y = rig_put(b, NULL, 1, 4);
    assert_true(b->ops->weight_acquire(b, &w));
    b->ops->matmul(b, y, x, &w, NULL, DQ_NUM_F32);
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "cuBLAS is missing"));
    assert_non_null(strstr(err.text, "libcublas-13-0"));
    dq_simt_set_blas(DQ_SIMT_BLAS_OLD);
    memset(&err, 0, sizeof err);
    b->ops->matmul(b, y, x, &w, NULL, DQ_NUM_F32);
    assert_int_equal(dq_backend_sync(b, &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "lacks functions (expected cuBLAS 12 or 13). Install"));
    dq_simt_set_blas(DQ_SIMT_BLAS_WHOLE);
    b->ops->matmul(b, y, x, &w, NULL, DQ_NUM_F32);
    rig_sync(b);
    dq_backend_close(b);
    rig_drop_weight(&w);
}

/* Whether what doctor prints of products has `text`. */
static void products_say(int blas, int lt, dq_backend *b, const char *text)
{
    dq_arena *a = dq_arena_new();
    dq_err err = {0};
    dq_blas_about is;
    dq_simt_set_blas(blas);
    dq_simt_set_lt(lt);
    assert_int_equal(dq_backend_blas(&is, b, a, &err), DQ_OK);
    dq_simt_set_blas(DQ_SIMT_BLAS_WHOLE);
    dq_simt_set_lt(DQ_SIMT_LT_EVEN);
    if (!strstr(is.products, text)) fail_msg("expected \"%s\" in \"%s\"", text, is.products);
    dq_arena_free(a);
}

TEST(test_products_by_name)
{
    static const struct {
        int lt;
        const char *text[2];
    } with[] = {
        {DQ_SIMT_LT_EVEN, {"cublasLtMatmul; of 4 shapes tried, 4 give a row the same bits"}},
        {DQ_SIMT_LT_UNEVEN,
         {"of 4 shapes tried, 0 give", "; 40 x 64 in bf16 runs in tiles of 32 rows: a row's bits "
                                       "depend on the rows beside it"}},
        {DQ_SIMT_LT_NONE, {"0 give", "; 24 x 32 in f32 runs in tiles of 32 rows: cuBLASLt has no"}},
        {DQ_SIMT_LT_ONE,
         {"0 give", "; 24 x 32 in f32 runs in tiles of 32 rows: cublasLtMatmul "
                    "refuses it"}},
        {DQ_SIMT_LT_FEW, {"4 give"}}};
    for (size_t i = 0; i < sizeof with / sizeof *with; i++)
        for (int k = 0; k < 2 && with[i].text[k]; k++) {
            dq_backend *b = rig_device("cuda");
            products_say(DQ_SIMT_BLAS_WHOLE, with[i].lt, b, with[i].text[k]);
            rig_sync(b);
            dq_backend_close(b);
        }
    products_say(DQ_SIMT_BLAS_WHOLE, DQ_SIMT_LT_EVEN, NULL, "cublasLtMatmul");
    products_say(DQ_SIMT_BLAS_WITHOUT_LT, DQ_SIMT_LT_EVEN, NULL,
                 "cublasSgemm and cublasGemmEx in tiles of 32 rows, as cublasLtMatmulDescCreate is "
                 "missing");
    products_say(DQ_SIMT_BLAS_OLD_LT, DQ_SIMT_LT_EVEN, NULL,
                 "in tiles of 32 rows, as cublasLtMatmulAlgoGetHeuristic is missing");
}

/* What kernels are announced is what products run or refuse. */
TEST(test_kernels)
{
    static const char *const names[3][3] = {{"cublas", "widen + cublas", "widen + cublas"},
                                            {"widen + cublas", "cublas", "widen + cublas"},
                                            {NULL, NULL, "gemm_packed"}};
    dq_backend *b = rig_device("cuda");
    dq_weight w[3] = {rig_dense(8, 64, DQ_F32, 3), rig_dense(8, 64, DQ_BF16, 4),
                      rig_packed(8, 64, 4, 32, DQ_F16, 5)};
    dq_mat x = rig_put(b, NULL, 1, 64), y = rig_put(b, NULL, 1, 8);
    for (int i = 0; i < 3; i++) {
        assert_true(b->ops->weight_acquire(b, &w[i]));
        for (int num = DQ_NUM_F32; num <= DQ_NUM_INT8; num++) {
            dq_err err = {0};
            int m, n, k; /* a shape that is new is tried by three products more */
            const int before = dq_simt_blas_calls(&m, &n, &k);
            const char *name = b->ops->matmul_kernel(b, &w[i], (dq_num)num);
            if (names[num][i])
                assert_string_equal(name, names[num][i]);
            else
                assert_null(name);
            b->ops->matmul(b, y, x, &w[i], NULL, (dq_num)num);
            assert_int_equal(dq_backend_sync(b, &err), name ? DQ_OK : DQ_MISMATCH);
            const int calls = dq_simt_blas_calls(&m, &n, &k) - before;
            if (!name || !strstr(name, "cublas"))
                assert_int_equal(calls, 0);
            else
                assert_int_equal(calls, i == 0 ? 4 : 1);
        }
        b->ops->weight_release(b, &w[i]);
    }
    dq_backend_close(b);
    for (int i = 0; i < 3; i++) rig_drop_weight(&w[i]);
}

/* Attention is in f16 wherever it is not in f32. */
TEST(test_math)
{
    dq_backend *b = rig_device("cuda");
    for (int i = 0; i < DQ_NUMS; i++) {
        const dq_num num = (dq_num)i, attends = num == DQ_NUM_F32 ? DQ_NUM_F32 : DQ_NUM_F16;
        const dq_math math = dq_backend_math(b, num);
        assert_true(math.linear == num && math.kv == num);
        assert_true(math.qk == attends && math.pv == attends);
        assert_true((strstr(b->ops->attend_kernel(b, &dq_kv_plain, 128, math), "f16") != NULL) ==
                    (attends == DQ_NUM_F16));
    }
    dq_backend_close(b);
}

TEST(test_can)
{
    const dq_math plain = {DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32, DQ_NUM_F32};
    dq_backend *b = rig_device("cuda");
    dq_layer layer = {.q = {.name = "q", .rows = 1, .format = &dq_format_int, .bits = 4},
                      .k = {.name = "k_proj", .rows = 1, .bits = 16}};
    dq_model m = {.path = "m", .n_layers = 1, .layer = &layer};
    dq_math math = plain;
    dq_err err = {0};
    math.linear = DQ_NUM_BF16;
    assert_int_equal(dq_backend_can(b, &m, math, &dq_kv_plain, &err), DQ_OK);
    math.linear = DQ_NUM_INT8;
    assert_int_equal(dq_backend_can(b, &m, math, &dq_kv_plain, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text, "k_proj is not packed"));
    math = dq_backend_math(b, DQ_NUM_BF16);
    dq_kv_spec kv = dq_kv_plain;
    kv.num = DQ_NUM_BF16;
    m.map.head_dim = 24;
    memset(&err, 0, sizeof err);
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_MISMATCH);
    assert_non_null(strstr(err.text,
                           "math bf16 on the cuda backend needs a head_dim that is a multiple "
                           "of 16 up to 128"));
    m.map.head_dim = 64;
    kv.v_bits = 4;
    kv.group = 24;
    memset(&err, 0, sizeof err);
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_MISMATCH);
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_MATH_GROUP);
    assert_int_equal(err.remedy[0].number[0], 24);
    kv.group = 32;
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_OK);
    kv.num = DQ_NUM_F32;
    kv.quant = DQ_KV_PER_CHANNEL;
    memset(&err, 0, sizeof err);
    assert_int_equal(dq_backend_can(b, &m, plain, &kv, &err), DQ_OK);
    kv.num = DQ_NUM_BF16;
    assert_int_equal(dq_backend_can(b, &m, math, &kv, &err), DQ_OK);
    math = dq_backend_math(b, kv.num = DQ_NUM_INT8);
    kv.k_bits = 8;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    kv.quant = DQ_KV_PER_TOKEN;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    kv.dense = DQ_KV_BF16;
    kv.k_bits = kv.v_bits = 16;
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    kv.num = DQ_NUM_F32;
    assert_int_equal(dq_backend_can(b, &m, plain, &kv, &err), DQ_OK);
    math = dq_backend_math(b, kv.num = DQ_NUM_BF16);
    assert_int_equal(dq_backend_can(b, NULL, math, &kv, &err), DQ_OK);
    dq_backend_close(b);
}

static int begin(void **unused)
{
    (void)unused;
    return unsetenv("DQ_CUDA_POOL"); /* the pool itself is tested here */
}

FIXTURES(begin, NULL)
