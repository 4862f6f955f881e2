/* test_cuda_blas_find: the order in which cuBLAS is looked for, in planted folders.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "kernels/cuda/host/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX = 512 };
/* Another for each test, for the loader knows by its name what it has opened. Brackets are no pattern in a name. */
static char top[64];
static dq_arena *arena;

static void path_of(char *to, const char *name)
{
    assert_in_range(snprintf(to, MAX, "%s/%s", top, name), 1, MAX - 1);
}

/* The folders of a file below `top`. */
static void make_folders(const char *name)
{
    char path[MAX];
    path_of(path, name);
    for (char *p = path + strlen(top) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        mkdir(path, 0777);
    }
}

static void link_to(const char *target, const char *name)
{
    char path[MAX];
    make_folders(name);
    path_of(path, name);
    assert_int_equal(symlink(target, path), 0);
}

static void write_file(const char *name, const char *text)
{
    char path[MAX];
    dq_err err = {0};
    make_folders(name);
    path_of(path, name);
    assert_int_equal(dq_file_write(path, text, strlen(text), &err), DQ_OK);
}

static void remove_file(const char *name)
{
    char path[MAX];
    path_of(path, name);
    assert_int_equal(unlink(path), 0);
}

/* The fake library as FOLDER/NAME, with its companion beside it. */
static void plant(const char *folder, const char *name)
{
    char path[MAX];
    assert_in_range(snprintf(path, sizeof path, "%s/%s", folder, name), 1, MAX - 1);
    link_to(FAKE_CUBLAS, path);
    assert_in_range(snprintf(path, sizeof path, "%s/libcublasLt.so.13", folder), 1, MAX - 1);
    link_to(FAKE_CUBLASLT, path);
}

static void set(const char *variable, const char *below)
{
    char path[MAX];
    path_of(path, below);
    assert_int_equal(setenv(variable, path, 1), 0);
}

static int setup(void **state)
{
    static const char *const all[] = {"DQ_CUBLAS", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "HOME"};
    (void)state;
    snprintf(top, sizeof top, "/tmp/dq blas [x] XXXXXX");
    if (!mkdtemp(top)) return 1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unsetenv(all[i]);
    setenv("PATH", "/no-such-folder", 1);
    arena = dq_arena_new();
    return arena ? 0 : 1;
}

static int teardown(void **state)
{
    char command[MAX];
    (void)state;
    dq_arena_free(arena);
    setenv("PATH", "/usr/bin:/bin", 1);
    snprintf(command, sizeof command, "rm -rf '%s'", top);
    return system(command);
}

/* Found at `want` below top ("": missing, and the error has `text`). */
static void finds(const char *want, const char *text)
{
    char path[MAX];
    dq_cuda_blas_file f;
    dq_err err = {0};
    const dq_status status = dq_cuda_blas_find(&f, top, arena, &err);
    if (*want) {
        path_of(path, want);
        if (status != DQ_OK) fail_msg("%s", err.text);
        assert_string_equal(f.path, path);
        assert_non_null(dq_os_library_function(f.library, "cublasGetProperty"));
        assert_non_null(dq_os_library_function(f.library, "cublasLtMatmul")); /* of its companion */
    } else {
        assert_int_equal(status, DQ_RESOURCE);
        assert_null(f.library);
        if (!strstr(err.text, text)) fail_msg("\"%s\" is not in: %s", text, err.text);
    }
}

/* --------------------------------------------------------------------------------------------- loader */
/* Before all folders; runs where the fake one is on the loader's path. */
TEST(test_loader)
{
    const char *path = getenv("LD_LIBRARY_PATH");
    dq_cuda_blas_file f;
    dq_err err = {0};
    if (!path || strncmp(path, FAKE_CUBLAS, strlen(path)) != 0) skip();
    plant("home/lib64", "libcublas.so.13");
    set("CUDA_HOME", "home");
    assert_int_equal(dq_cuda_blas_find(&f, "", arena, &err), DQ_OK);
    assert_string_equal(f.path, FAKE_CUBLAS);
    set("DQ_CUBLAS", "nowhere");
    assert_int_equal(dq_cuda_blas_find(&f, "", arena, &err), DQ_RESOURCE);
}

/* -------------------------------------------------------------------------------------------- order */
/* First to last: each is found when those before it are gone. A link to an interpreter is followed step by step. */
TEST(test_order)
{
    static const char *const order[] = {
        "home/lib64",
        "home/targets/x86_64-linux/lib",
        "home/lib",
        "path/lib64",
        "usr/local/cuda/lib64",
        "usr/local/cuda-13.0/lib64",
        "usr/local/cuda-12.4/targets/sbsa-linux/lib",
        "usr/local/cuda-12.4/lib",
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
        "first/lib/python3.9/site-packages/nvidia/cublas/lib",
        "torch/.venv/lib/python3.11/site-packages/nvidia/cu13/lib",
        "opt/python/lib/python3.11/site-packages/nvidia/cu13/lib",
        "pyenv/versions/3.13.1/lib/python3.13/site-packages/nvidia/cu13/lib",
        "usr/local/lib/python3.10/dist-packages/nvidia/cu13/lib",
        "usr/local/lib/python3.10/site-packages/nvidia/cu13/lib",
        "usr/lib/python3/dist-packages/nvidia/cu13/lib",
        "usr/lib64/python3.9/site-packages/nvidia/cu13/lib",
        "me/.local/lib/python3.12/site-packages/nvidia/cu13/lib"};
    enum { N = sizeof order / sizeof *order };
    char path[MAX], name[MAX];
    set("CUDA_HOME", "home");
    set("CUDA_PATH", "path");
    set("VIRTUAL_ENV", "venv");
    set("HOME", "me");
    assert_in_range(snprintf(path, sizeof path,
                             "relative::/no-such-folder:%s/first/bin:%s/pyenv/shims/", top, top),
                    1, MAX - 1);
    setenv("PATH", path, 1);
    link_to("../../torch/.venv/bin/python3", "first/bin/python3");
    path_of(path, "opt/python/bin/python3.11");
    link_to(path, "torch/.venv/bin/python3");
    write_file("opt/python/bin/python3.11", "#!");
    write_file("pyenv/shims/python3", "#!");
    finds("", "cuBLAS is missing: no libcublas.so.13 or libcublas.so.12 on the loader's path");
    for (int i = 0; i < N; i++) plant(order[i], i % 2 ? "libcublas.so.12" : "libcublas.so.13");
    for (int i = 0; i < N; i++) {
        const char *link = i == 10 ? "first/bin/../../" : ""; /* as the link says it */
        snprintf(name, sizeof name, "%s/libcublas.so.%d", order[i], i % 2 ? 12 : 13);
        snprintf(path, sizeof path, "%s%s/libcublas.so.%d", link, order[i], i % 2 ? 12 : 13);
        finds(path, "");
        remove_file(name);
    }
    finds("", "Install NVIDIA's package libcublas-13-0 or pip's nvidia-cublas, or name the file "
              "with DQ_CUBLAS=");
}

/* The newer one of a folder; one that does not open is passed over, and told of where nothing else is. */
TEST(test_choice)
{
    plant("usr/local/cuda/lib64", "libcublas.so.12");
    finds("usr/local/cuda/lib64/libcublas.so.12", "");
    write_file("usr/local/cuda/lib64/libcublas.so.13", "not a library");
    finds("usr/local/cuda/lib64/libcublas.so.12", "");
    remove_file("usr/local/cuda/lib64/libcublas.so.12");
    finds("", "/usr/local/cuda/lib64/libcublas.so.13: ");
    remove_file("usr/local/cuda/lib64/libcublas.so.13");
    link_to(FAKE_CUBLAS, "usr/local/cuda/lib64/libcublas.so.13");
    finds("usr/local/cuda/lib64/libcublas.so.13", "");
}

TEST(test_links_in_a_circle)
{
    link_to("python3.1", "bin/python3");
    link_to("python3", "bin/python3.1");
    set("PATH", "bin");
    finds("", "cuBLAS is missing");
}

/* ------------------------------------------------------------------------------------------ DQ_CUBLAS */
TEST(test_named)
{
    plant("here", "libcublas.so.13");
    plant("usr/local/cuda/lib64", "libcublas.so.13");
    set("DQ_CUBLAS", "here");
    finds("here/libcublas.so.13", "");
    set("DQ_CUBLAS", "here/libcublas.so.13");
    finds("here/libcublas.so.13", "");
    setenv("DQ_CUBLAS", "", 1); /* as if it were not set */
    finds("usr/local/cuda/lib64/libcublas.so.13", "");
}

/* Never something else instead. */
TEST(test_named_wrongly)
{
    plant("usr/local/cuda/lib64", "libcublas.so.13");
    set("DQ_CUBLAS", "nowhere");
    finds("", "/nowhere: cuBLAS does not open (");
    finds("", "No such file or directory). Name libcublas.so.13, libcublas.so.12 or a folder");
    write_file("empty/x", "");
    set("DQ_CUBLAS", "empty");
    finds("",
          "/empty: cuBLAS does not open (neither libcublas.so.13 nor libcublas.so.12 is there)");
    write_file("text", "not a library");
    set("DQ_CUBLAS", "text");
    finds("", "/text: cuBLAS does not open (");
    setenv("DQ_CUBLAS", "libm.so.6", 1); /* a file of this folder, not of the loader's */
    finds("", "DQ_CUBLAS=libm.so.6: cuBLAS does not open (./libm.so.6: ");
}

TEST(test_memory)
{
    plant("usr/lib/python3/dist-packages/nvidia/cu13/lib", "libcublas.so.13");
    set("HOME", "me");
    for (int n = 1;; n++) {
        dq_cuda_blas_file f;
        dq_err err = {0};
        dq_alloc_fail_at(n);
        const dq_status status = dq_cuda_blas_find(&f, top, arena, &err);
        dq_alloc_fail_at(0);
        if (status == DQ_OK) break;
        assert_int_equal(status, DQ_RESOURCE);
        assert_non_null(strstr(err.text, "out of memory"));
        assert_in_range(n, 1, 1000);
    }
}

CASE_FIXTURES(setup, teardown)
