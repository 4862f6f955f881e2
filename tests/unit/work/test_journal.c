/* test_journal: what a journal holds after anything that can end a program or spoil a file.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "work/work.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[80];

static int begin(void **state)
{
    const int failed = folder_begin(state);
    strcpy(path, at("a.journal"));
    return failed;
}

static const char *const text[] = {"first", "", "third {\"with\": \"quotes\"} \\ \t and more",
                                   "last"};
enum { LINES = 4 };

/* A journal of the lines above; its bytes. */
static char *written(size_t *len)
{
    dq_journal *j;
    dq_err err = {0};
    char *bytes;
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_OK);
    for (int i = 0; i < LINES; i++) {
        assert_int_equal(dq_journal_count(j), i);
        assert_int_equal(dq_journal_add(j, text[i], strlen(text[i]), &err), DQ_OK);
    }
    assert_int_equal(dq_journal_sync(j, &err), DQ_OK);
    dq_journal_close(j, false);
    assert_int_equal(dq_file_read(&bytes, len, path, given_arena(), &err), DQ_OK);
    return bytes;
}

static void put(const char *bytes, size_t len)
{
    put_bytes(path, bytes, len);
}

static size_t file_bytes(void)
{
    size_t len;
    given_file(&len, "%s", path);
    return len;
}

/* Resumes, finds the first n of the lines and goes on to the bytes of a run that was never stopped. */
static void resumes(int n, dq_journal_damage damage, const char *whole, size_t len)
{
    dq_journal *j;
    dq_journal_lines found;
    dq_err err = {0};
    char *now;
    size_t now_len;
    assert_int_equal(dq_journal_resume(&j, path, damage, &found, given_arena(), &err), DQ_OK);
    assert_int_equal(found.n, n);
    assert_int_equal(dq_journal_count(j), n);
    for (int i = 0; i < n; i++) assert_string_equal(found.text[i], text[i]);
    for (int i = n; i < LINES; i++)
        assert_int_equal(dq_journal_add(j, text[i], strlen(text[i]), &err), DQ_OK);
    dq_journal_close(j, false);
    assert_int_equal(dq_file_read(&now, &now_len, path, given_arena(), &err), DQ_OK);
    assert_int_equal(now_len, len);
    assert_memory_equal(now, whole, len);
}

static dq_status refused(dq_journal_damage damage, const char *why)
{
    dq_journal *j;
    dq_journal_lines found;
    dq_err err = {0};
    const size_t before = file_bytes();
    dq_journal_resume(&j, path, damage, &found, given_arena(), &err);
    assert_null(j);
    if (!strstr(err.text, why)) fail_msg("expected \"%s\", found \"%s\"", why, err.text);
    assert_int_equal(file_bytes(), before);
    return err.code;
}

TEST(the_form_is_a_hash_and_the_text)
{
    size_t len;
    const char *bytes = written(&len);
    /* printf first | sha256sum */
    static const char want[] =
        "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e first\n";
    assert_true(len > sizeof want);
    assert_memory_equal(bytes, want, sizeof want - 1);
}

TEST(a_file_cut_off_anywhere_goes_on)
{
    size_t len;
    const char *whole = written(&len);
    for (size_t cut = 0, lines = 0; cut <= len; cut++) {
        if (cut && whole[cut - 1] == '\n') lines++;
        put(whole, cut);
        resumes((int)lines, DQ_JOURNAL_REFUSE, whole, len);
    }
}

TEST(a_damaged_line_is_found)
{
    size_t len;
    char *whole = written(&len), bad[1024];
    assert_true(len < sizeof bad);
    const size_t last = len - (64 + 1 + strlen(text[3]) + 1);
    for (size_t i = 0, line = 0; i < len; i++) {
        memcpy(bad, whole, len);
        bad[i] = bad[i] == '0' ? '1' : '0';
        put(bad, len);
        line += i > 0 && whole[i - 1] == '\n';
        if (i == 64) { /* without its blank the first line is no journal's */
            assert_int_equal(refused(DQ_JOURNAL_CUT, "not a journal of this version"), DQ_MISMATCH);
            continue;
        }
        if (i + 1 >= last) { /* as if cut off */
            resumes((int)line, DQ_JOURNAL_REFUSE, whole, len);
            continue;
        }
        char why[40];
        snprintf(why, sizeof why, "line %zu was altered", line + 1);
        assert_int_equal(refused(DQ_JOURNAL_REFUSE, why), DQ_DAMAGED);
        resumes((int)line, DQ_JOURNAL_CUT, whole, len);
    }
}

TEST(other_forms_are_refused_by_name)
{
    static const char *const old[] = {
        "dq-journal 2 5c6a8a6e\nversion 0.4.0 0d0f4c0e\nsettings {} 12345678\n",
        "{\"sha256\": \"a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e\", "
        "\"step\": {}}\n",
        "words\n",
    };
    for (int i = 0; i < 3; i++) {
        put(old[i], strlen(old[i]));
        assert_int_equal(refused(DQ_JOURNAL_CUT, "not a journal of this version of dq"),
                         DQ_MISMATCH);
        assert_int_equal(refused(DQ_JOURNAL_REFUSE, path), DQ_MISMATCH);
    }
}

TEST(new_begins_anew)
{
    dq_journal *j;
    dq_err err = {0}, newline = {0};
    size_t len;
    const char *whole = written(&len);
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_OK);
    assert_int_equal(file_bytes(), 0);
    assert_int_equal(dq_journal_count(j), 0);
    assert_int_equal(dq_journal_add(j, "two\nlines", 9, &newline), DQ_BUG);
    dq_journal_close(j, false);
    resumes(0, DQ_JOURNAL_REFUSE, whole, len);
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_OK);
    dq_journal_close(j, true);
    assert_false(dq_file_exists(path));
    dq_journal_lines found;
    assert_int_equal(dq_journal_resume(&j, path, DQ_JOURNAL_CUT, &found, given_arena(), &err),
                     DQ_FILE);
    assert_null(j);
}

/* A child that holds the journal until it is killed, with a line and a half in it. */
static pid_t holder(void)
{
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dq_journal *j;
        dq_err err = {0};
        if (dq_journal_new(&j, path, &err) != DQ_OK) _exit(1);
        if (dq_journal_add(j, text[0], strlen(text[0]), &err) != DQ_OK) _exit(1);
        FILE *f = fopen(path, "ab"); /* closing another descriptor must not give up the lock */
        if (!f || fputs("a7937b64b8", f) < 0 || fclose(f) != 0) _exit(1);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_true(pid > 0);
    close(ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return pid;
}

TEST(another_process_keeps_out_until_it_is_killed)
{
    size_t len;
    int status;
    const char *whole = written(&len);
    const pid_t pid = holder();
    dq_journal *j;
    dq_err err = {0};
    assert_true(dq_journal_busy(path));
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "another dq is writing to it"));
    assert_int_equal(refused(DQ_JOURNAL_REFUSE, "another dq is writing to it"), DQ_RESOURCE);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_false(dq_journal_busy(path));
    resumes(1, DQ_JOURNAL_REFUSE, whole, len);
}

/* The first run ends while the second waits for nothing: whoever finds the name gone makes a new file. */
TEST(a_removed_file_is_not_written_to)
{
    dq_journal *j, *k;
    dq_err err = {0};
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dq_journal_new(&k, path, &err), DQ_OK);
    assert_int_equal(dq_journal_add(k, "kept", 4, &err), DQ_OK);
    dq_journal_close(j, true); /* not this one's file any more */
    assert_true(dq_file_exists(path));
    dq_journal_close(k, true);
    assert_false(dq_file_exists(path));
}

/* A limit on the size of files is met like a full disk: the line is refused, those before it stay. */
TEST(a_full_disk_keeps_whole_lines)
{
    size_t len;
    const char *whole = written(&len);
    for (size_t limit = 0; limit < len; limit += 7) {
        int lines = 0, status;
        for (size_t i = 0; i < limit; i++) lines += whole[i] == '\n';
        const pid_t pid = fork();
        if (pid == 0) {
            const struct rlimit l = {limit, limit};
            dq_journal *j;
            dq_err err = {0};
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &l) != 0) _exit(1);
            dq_journal_new(&j, path, &err);
            for (int i = 0; err.code == DQ_OK && i < LINES; i++)
                dq_journal_add(j, text[i], strlen(text[i]), &err);
            _exit(j && strstr(err.text, "File too large") && dq_journal_count(j) == lines
                      ? (int)err.code
                      : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), DQ_FILE);
        resumes(lines, DQ_JOURNAL_REFUSE, whole, len);
    }
    dq_journal *j;
    dq_err err = {0};
    assert_int_not_equal(dq_journal_new(&j, "/dev/full", &err), DQ_OK);
    assert_null(j);
}

TEST(failing_allocations_are_reported)
{
    size_t len;
    const char *whole = written(&len);
    for (int64_t n = 1;; n++) {
        dq_journal *j;
        dq_journal_lines found;
        dq_err err = {0};
        dq_arena *a = dq_arena_new();
        assert_non_null(a);
        dq_alloc_fail_at(n);
        const dq_status status = dq_journal_resume(&j, path, DQ_JOURNAL_REFUSE, &found, a, &err);
        dq_alloc_fail_at(0);
        dq_journal_close(j, false);
        dq_arena_free(a);
        if (status == DQ_OK) break;
        assert_int_equal(status, DQ_RESOURCE);
        assert_null(j);
    }
    resumes(LINES, DQ_JOURNAL_REFUSE, whole, len);
}

FIXTURES(begin, folder_end)
