/* test_os_map: what is remembered of mapped files, and that their changes are seen.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/os.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 4, PAGE = 4096, BYTES = PAGES * PAGE };
static void put(const char *path, int byte)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < BYTES; i++) fputc(byte, f);
    assert_int_equal(fclose(f), 0);
}

/* A file system's clock may tick in steps of some milliseconds: an old time shows any change. */
static void put_old(const char *path)
{
    const struct timespec old[2] = {{1000000000, 5}, {1000000000, 5}};
    put(path, 'x');
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

static dq_os_map open_map(const char *path)
{
    dq_err err = {0};
    dq_os_map m;
    if (dq_os_map_open(&m, path, &err) != DQ_OK) fail_msg("%s", err.text);
    return m;
}

TEST(addresses_lead_to_files)
{
    bool cut;
    int local = 0;
    put(at("a"), 1);
    put(at("b"), 2);
    for (int turn = 0; turn < 3; turn++) {
        dq_os_map a = open_map(at("a")), b = open_map(at("b"));
        assert_string_equal(dq_os_map_at(a.data, &cut), at("a"));
        assert_false(cut);
        assert_string_equal(dq_os_map_at(a.data + BYTES - 1, &cut), at("a"));
        assert_string_equal(dq_os_map_at(b.data + PAGE, &cut), at("b"));
        assert_null(dq_os_map_at(&local, &cut));
        const uint8_t *was = a.data;
        dq_os_map_close(&a);
        assert_null(dq_os_map_at(was, &cut));
        assert_string_equal(dq_os_map_at(b.data, &cut), at("b"));
        dq_os_map_close(&b);
        dq_os_map_close(&b);
    }
}

static void change(const char *path, char what)
{
    switch (what) {
    case 'c': assert_int_equal(truncate(path, PAGE), 0); break;
    case 'l': assert_int_equal(truncate(path, BYTES + 1), 0); break;
    case 'w': put(path, 'y'); break;
    case 'r':
        put(at("b"), 'y');
        assert_int_equal(rename(at("b"), path), 0);
        break;
    case 'u': assert_int_equal(unlink(path), 0); break;
    default: fail();
    }
}

TEST(changes_are_seen)
{
    static const struct {
        char what;
        bool seen;
    } list[] = {{'c', true}, {'l', true}, {'w', true}, {'r', false}, {'u', false}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        dq_err err = {0};
        put_old(at("a"));
        dq_os_map m = open_map(at("a"));
        assert_int_equal(dq_os_maps_check(&err), DQ_OK);
        change(at("a"), list[i].what);
        if (dq_os_maps_check(&err) != (list[i].seen ? DQ_FILE : DQ_OK))
            fail_msg("%c: %d %s", list[i].what, err.code, err.text);
        if (list[i].seen) assert_memory_equal(err.text, at("a"), strlen(at("a")));
        dq_os_map_close(&m);
        err = (dq_err){0};
        assert_int_equal(dq_os_maps_check(&err), DQ_OK); /* nobody reads it any more */
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    bool cut = false;
    const char *path = dq_os_map_at(info->si_addr, &cut);
    (void)number;
    (void)context;
    _exit(path && strcmp(path + strlen(path) - 2, "/a") == 0 && cut ? 42 : 43);
}

/* A page that a file lost while it was mapped: the handler learns whose it was. */
TEST(a_lost_page_has_a_name)
{
    put(at("a"), 1);
    pid_t pid = fork();
    if (pid == 0) {
        struct sigaction act;
        dq_os_map m = open_map(at("a"));
        memset(&act, 0, sizeof act);
        act.sa_sigaction = on_bus_error;
        act.sa_flags = SA_SIGINFO;
        sigaction(SIGBUS, &act, NULL);
        if (truncate(at("a"), PAGE) != 0) _exit(1);
        volatile const uint8_t *p = m.data;
        _exit(p[2 * PAGE] ? 2 : 3);
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

/* In a child, whose descriptors 0 and 1 are closed: neither becomes a file. */
TEST(closed_descriptors_are_taken)
{
    put(at("a"), 1);
    pid_t pid = fork();
    if (pid == 0) {
        dq_err err = {0};
        char byte = 0;
        close(0);
        close(1);
        if (dq_os_process_begin(&err) != DQ_OK) _exit(1);
        int fd = fileno(fopen(at("a"), "rb"));
        _exit(fd > 2 && read(0, &byte, 1) < 0 && write(1, &byte, 1) < 0 ? 42 : 43);
    }
    int status = -1;
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

/* Addresses cost nothing, however many; memory that is taken holds zeros. */
TEST(blocks_are_taken_late)
{
    dq_os_block b;
    assert_true(dq_os_block_reserve(&b, (size_t)1 << 42));
    assert_non_null(b.data);
    dq_os_block_free(&b);
    assert_null(b.data);
    assert_false(dq_os_block_take(&b));
    assert_true(dq_os_block_reserve(&b, BYTES));
    assert_true(dq_os_block_take(&b));
    for (int i = 0; i < BYTES; i++) assert_int_equal(b.data[i]++, 0);
    dq_os_memory_touch(b.data + 1, BYTES - 2);
    assert_true(dq_os_block_take(&b)); /* again: as it is */
    assert_int_equal(b.data[BYTES - 1], 1);
    dq_os_block_free(&b);
    assert_false(dq_os_block_reserve(&b, SIZE_MAX / 2));
    assert_null(b.data);
}

/* Whether Linux knows of a wish for large pages at p: 0 or 1, or -1 where it does not tell. */
static int is_large(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool inside = false, told = false, large = false;
    while (f && !told && fgets(line, sizeof line, f)) {
        unsigned long long begin, end;
        if (sscanf(line, "%llx-%llx ", &begin, &end) == 2)
            inside = begin <= (uintptr_t)p && (uintptr_t)p < end;
        told = inside && strncmp(line, "VmFlags:", 8) == 0;
        large = told && strstr(line, " hg");
    }
    if (f) fclose(f);
    return told ? large : -1;
}

TEST(large_pages_hold_what_small_ones_held)
{
    enum { MANY = 9 << 20, STEP = 4093 };
    const bool can = access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0;
    dq_os_block b;
    assert_true(dq_os_block_reserve(&b, MANY));
    assert_true(dq_os_block_take(&b));
    for (int i = 0; i < MANY / 2; i += STEP) b.data[i] = (uint8_t)(i % 251);
    assert_true(!can || is_large(b.data + MANY / 2) != 1);
    dq_os_memory_large(b.data + 1, MANY - 2);
    assert_true(!can || is_large(b.data + MANY / 2) != 0);
    dq_os_memory_large(b.data + 1, BYTES); /* too few bytes */
    for (int i = MANY / 2 / STEP * STEP + STEP; i < MANY; i += STEP) b.data[i] = (uint8_t)(i % 251);
    for (int i = 0; i < MANY; i += STEP) assert_int_equal(b.data[i], i % 251);
    dq_os_block_free(&b);
}

FIXTURES(folder_begin, folder_end)
