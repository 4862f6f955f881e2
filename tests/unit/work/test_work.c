/* test_work: what a file of finished work gives back after anything that can end a program or spoil a file.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "work/work.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[80];

static int begin(void **state)
{
    const int failed = folder_begin(state);
    strcpy(path, at("a.shard"));
    return failed;
}

/* Lines are counted from 1, in order. */
static dq_status take(void *arg, const json_t *line, bool told, dq_err *err)
{
    int64_t *n = arg;
    assert_false(told);
    assert_int_equal(json_integer_value(json_object_get(line, "step")), ++*n);
    return json_object_get(line, "bad") ? dq_fail(err, DQ_DAMAGED, "is bad") : DQ_OK;
}

static dq_work_how how_of(int64_t *n)
{
    *n = 0;
    return (dq_work_how){.path = path,
                         .schema = "form/1",
                         .key = "key",
                         .shard = 2,
                         .n_shards = 3,
                         .force = true,
                         .take = take,
                         .arg = n};
}

static json_t *step_of(int64_t i)
{
    return json_pack("{s:I}", "step", (json_int_t)i);
}

/* A file of a head and n steps. */
static void make(int64_t n, bool ends)
{
    int64_t none;
    const dq_work_how how = how_of(&none);
    dq_work w;
    dq_err err = {0};
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    for (int64_t i = 1; i <= n; i++) assert_int_equal(dq_work_put(&w, step_of(i), &err), DQ_OK);
    assert_int_equal(dq_work_has_lines(&w), n > 0);
    if (ends) assert_int_equal(dq_work_end(&w, &err), DQ_OK);
    dq_work_close(&w, false);
}

TEST(what_is_written_is_read)
{
    for (int64_t n = 0; n < 3; n++) {
        dq_err err = {0}, unfinished = {0};
        int64_t taken;
        json_t *head;
        bool ended;
        dq_work_how how = how_of(&taken);
        make(n, true);
        assert_int_equal(dq_work_merge(&how, path, &err), DQ_OK);
        assert_int_equal(taken, n);
        assert_int_equal(dq_work_head(&head, &ended, path, &err), DQ_OK);
        assert_true(ended && json_integer_value(json_object_get(head, "shards")) == 3);
        json_decref(head);
        make(n, false);
        how = how_of(&taken);
        assert_int_equal(dq_work_merge(&how, path, &unfinished), DQ_MISMATCH);
        assert_non_null(strstr(unfinished.text, "a.shard: is not finished"));
        assert_int_equal(dq_work_head(&head, &ended, path, &err), DQ_OK);
        assert_false(ended);
        json_decref(head);
    }
}

TEST(a_file_goes_on)
{
    size_t whole, len;
    make(2, true);
    char *bytes = bytes_of(path, &whole);
    for (size_t n = 0; n <= whole; n++) {
        dq_err err = {0};
        dq_work w;
        int64_t taken;
        dq_work_how how = how_of(&taken);
        how.resume = true;
        put_bytes(path, bytes, n);
        assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
        assert_int_equal(w.ended, n == whole);
        for (int64_t i = taken + 1; i <= 2; i++) dq_work_put(&w, step_of(i), &err);
        dq_work_end(&w, &err);
        dq_work_close(&w, false);
        assert_int_equal(err.code, DQ_OK);
        char *now = bytes_of(path, &len);
        assert_int_equal(len, whole);
        assert_memory_equal(now, bytes, len);
        free(now);
    }
    free(bytes);
}

/* The bytes of a file of a head and two lines, which goes on; *len: how many. */
static char *whole(size_t *len)
{
    make(2, false);
    return bytes_of(path, len);
}

static size_t lines_of(const char *bytes, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += bytes[i] == '\n';
    return n;
}

/* Goes on from the first n lines to the bytes of a run that was never stopped. */
static void resumes(size_t n, bool beside, const char *bytes, size_t len)
{
    int64_t taken;
    size_t now_len;
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&taken);
    how.resume = true;
    how.beside = beside;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    assert_int_equal(taken, n > 0 ? n - 1 : 0);
    for (int64_t i = taken + 1; i <= 2; i++) dq_work_put(&w, step_of(i), &err);
    dq_work_close(&w, false);
    assert_int_equal(err.code, DQ_OK);
    char *now = bytes_of(path, &now_len);
    assert_int_equal(now_len, len);
    assert_memory_equal(now, bytes, len);
    free(now);
}

static dq_status refused(bool beside, const char *why)
{
    int64_t n;
    size_t before, after;
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&n);
    how.resume = true;
    how.beside = beside;
    free(bytes_of(path, &before));
    dq_work_open(&w, &how, &err);
    free(bytes_of(path, &after));
    assert_false(w.open);
    if (!strstr(err.text, why)) fail_msg("expected \"%s\", found \"%s\"", why, err.text);
    assert_int_equal(before, after);
    dq_work_close(&w, false);
    return err.code;
}

TEST(the_form_is_a_hash_and_the_text)
{
    size_t len;
    char *bytes = whole(&len);
    /* printf '{"step":1}' | sha256sum */
    static const char want[] =
        "\n8565a568653654ae5b4d4444245fa76e8bdea8c7d0db4a75bcffbb60bd6a0452 {\"step\":1}\n";
    assert_non_null(strstr(bytes, want));
    free(bytes);
}

TEST(a_damaged_line_is_found)
{
    size_t len;
    char *bytes = whole(&len), *bad = malloc(len);
    const size_t last = len - (64 + 1 + strlen("{\"step\":2}") + 1);
    for (size_t i = 0, line = 0; i < len; i++) {
        memcpy(bad, bytes, len);
        bad[i] = bad[i] == '0' ? '1' : '0';
        put_bytes(path, bad, len);
        line += i > 0 && bytes[i - 1] == '\n';
        if (i >= 64 && i < 64 + strlen(" {\"schema\":")) { /* no journal begins so */
            assert_int_equal(refused(true, "not a journal of this version"), DQ_MISMATCH);
            continue;
        }
        if (i + 1 >= last) { /* as if cut off */
            resumes(line, false, bytes, len);
            continue;
        }
        char why[40];
        snprintf(why, sizeof why, "line %zu was altered", line + 1);
        assert_int_equal(refused(false, why), DQ_DAMAGED);
        resumes(line, true, bytes, len);
    }
    free(bad);
    free(bytes);
}

TEST(other_forms_are_refused_by_name)
{
    static const char *const old[] = {
        "dq-journal 2 5c6a8a6e\nversion 0.4.0 0d0f4c0e\nsettings {} 12345678\n",
        "{\"sha256\": \"a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e\", "
        "\"step\": {}}\n",
        "words\n",
        "{\"my\": \"results\"}",
        "8565a568653654ae5b4d4444245fa76e8bdea8c7d0db4a75bcffbb60bd6a0452  step.txt\n",
    };
    for (int i = 0; i < 5; i++) {
        put_bytes(path, old[i], strlen(old[i]));
        assert_int_equal(refused(true, "not a journal of this version of dq"), DQ_MISMATCH);
        assert_int_equal(refused(false, path), DQ_MISMATCH);
    }
}

/* A child that holds the file until it is killed, with a line and a half in it. */
static pid_t holder(void)
{
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int64_t n;
        dq_work w;
        dq_err err = {0};
        const dq_work_how how = how_of(&n);
        if (dq_work_open(&w, &how, &err) != DQ_OK) _exit(1);
        if (dq_work_put(&w, step_of(1), &err) != DQ_OK) _exit(1);
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
    int64_t n;
    char *bytes = whole(&len);
    const pid_t pid = holder();
    dq_work w;
    dq_err err = {0};
    const dq_work_how how = how_of(&n);
    assert_true(dq_work_busy(path));
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "another dq is writing to it"));
    assert_int_equal(refused(false, "another dq is writing to it"), DQ_RESOURCE);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_false(dq_work_busy(path));
    resumes(2, false, bytes, len);
    free(bytes);
}

/* Whoever finds the name gone makes a new file. */
TEST(a_removed_file_is_not_written_to)
{
    int64_t n;
    dq_work w, v;
    dq_err err = {0};
    const dq_work_how how = how_of(&n);
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(dq_work_open(&v, &how, &err), DQ_OK);
    assert_int_equal(dq_work_put(&v, step_of(1), &err), DQ_OK);
    dq_work_close(&w, true); /* not this one's file any more */
    assert_true(dq_file_exists(path));
    dq_work_close(&v, true);
    assert_false(dq_file_exists(path));
}

/* A limit on the size of files is met like a full disk: the line is refused, those before it stay. */
TEST(a_full_disk_keeps_whole_lines)
{
    size_t len;
    char *bytes = whole(&len);
    for (size_t limit = 0; limit < len; limit += 7) {
        const size_t lines = lines_of(bytes, limit);
        int status;
        const pid_t pid = fork();
        if (pid == 0) {
            const struct rlimit l = {limit, limit};
            int64_t n;
            dq_work w;
            dq_err err = {0};
            const dq_work_how how = how_of(&n);
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &l) != 0) _exit(1);
            dq_work_open(&w, &how, &err);
            for (int i = 1; err.code == DQ_OK && i <= 2; i++) dq_work_put(&w, step_of(i), &err);
            _exit(strstr(err.text, "File too large") && w.open == (lines > 0) ? (int)err.code : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), DQ_FILE);
        if (lines > 0) resumes(lines, false, bytes, len);
        if (lines == 0) assert_false(dq_file_exists(path));
    }
    free(bytes);
}

TEST(failing_allocations_are_reported)
{
    size_t len;
    char *bytes = whole(&len);
    for (int64_t n = 1;; n++) {
        int64_t taken;
        dq_work w;
        dq_err err = {0};
        dq_work_how how = how_of(&taken);
        how.resume = true;
        dq_alloc_fail_at(n);
        const dq_status status = dq_work_open(&w, &how, &err);
        dq_alloc_fail_at(0);
        dq_work_close(&w, false);
        if (status == DQ_OK) break;
        assert_int_equal(status, DQ_RESOURCE);
    }
    resumes(3, false, bytes, len);
    free(bytes);
}

static void refuses(const dq_work_how *want, bool merges, const char *why)
{
    dq_err err = {0}, merge = {0};
    dq_work w;
    dq_work_how how = *want;
    how.resume = true;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_MISMATCH);
    if (!strstr(err.text, why)) fail_msg("expected \"%s\", found \"%s\"", why, err.text);
    assert_int_equal(err.remedy[0].code, how.beside || how.n_shards ? DQ_REMEDY_REPEAT_OR_FORCE
                                                                    : DQ_REMEDY_REMOVE_OR_ANEW);
    assert_false(w.open);
    assert_true(dq_file_exists(path));
    assert_int_equal(dq_work_merge(&how, path, &merge), merges ? DQ_OK : DQ_MISMATCH);
    dq_work_close(&w, false);
}

TEST(heads_of_others_are_refused)
{
    int64_t n;
    const dq_work_how mine = how_of(&n);
    dq_work_how how = mine;
    make(0, true);
    how.schema = "form/2";
    refuses(&how, false, "is not a journal of this version of dq (expected form/2)");
    how = mine;
    how.key = "yek";
    refuses(&how, false, "a.shard: belongs to a run with other inputs or settings.");
    how = mine;
    how.shard = 1;
    refuses(&how, true, "is shard 2 of 3, and not 1 of 3");
    how.shard = how.n_shards = 0;
    how.beside = true;
    refuses(&how, true, "is shard 2 of 3, and not 0 of 0");
    how.beside = false;
    static const char old[] = /* printf 'dq-journal 3' | sha256sum */
        "d1789f96b22ad5ef1bfe96ba27b4490a233792b3cb7956af6ef68904490a2dff dq-journal 3\n";
    put_bytes(path, old, sizeof old - 1);
    refuses(&how, false, "is not a journal of this version of dq");
    put_bytes(path, "", 0);
    json_t *head;
    bool ended;
    dq_err err = {0};
    assert_int_equal(dq_work_head(&head, &ended, path, &err), DQ_DAMAGED);
}

TEST(a_line_that_is_refused_names_the_file)
{
    int64_t n;
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&n);
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    assert_int_equal(dq_work_put(&w, json_pack("{s:i, s:b}", "step", 1, "bad", 1), &err), DQ_OK);
    dq_work_close(&w, false);
    how.resume = how.beside = true;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_DAMAGED);
    assert_non_null(strstr(err.text, "a.shard: is bad."));
    assert_int_equal(err.remedy[0].code, DQ_REMEDY_START_OVER);
    dq_err there = {0};
    how.resume = how.force = false;
    assert_int_equal(dq_work_open(&w, &how, &there), DQ_FILE);
    assert_int_equal(there.remedy[0].code, DQ_REMEDY_RESUME_OR_FORCE);
}

/* What the key is the hash of has names, and some of them a file. */
TEST(a_difference_has_a_name)
{
    static const char *const was = "{\"a\": 1, \"in\": {\"b\": [1], \"same\": 0}, \"c\": \"x\"}";
    static const struct {
        const char *now, *why;
    } cases[] = {
        {"{\"a\": 2, \"in\": {\"b\": [1], \"same\": 0}, \"c\": \"x\"}",
         "(a: begun with 1, this run has 2)."},
        {"{\"a\": 1, \"in\": {\"b\": [2], \"same\": 0}, \"c\": \"x\"}",
         "(in.b: begun with [1], this run has [2])."},
        {"{\"a\": 1, \"in\": {\"b\": [1], \"same\": 0}, \"d\": true}",
         "(c: begun with \"x\", this run has none (text.txt); d: begun with none, this run has "
         "true)."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t n;
        char key[65];
        dq_work w;
        dq_err err = {0};
        dq_work_how how = how_of(&n);
        json_t *old = json_loads(was, 0, NULL), *now = json_loads(cases[i].now, 0, NULL);
        how.source[0] = (dq_work_source){"c", "text.txt"};
        how.of = old;
        how.key = key;
        assert_int_equal(dq_work_key(key, old, &err), DQ_OK);
        assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
        dq_work_close(&w, false);
        assert_int_equal(dq_work_key(key, now, &err), DQ_OK);
        how.of = now;
        refuses(&how, false, cases[i].why);
        json_decref(old);
        json_decref(now);
    }
}

TEST(what_cannot_be_written_ends_the_run_or_the_file)
{
    struct rlimit old, l = {300, 300};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    l.rlim_max = old.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    for (int goes_on = 0; goes_on < 2; goes_on++) {
        int64_t n;
        dq_work w;
        dq_err err = {0}, end = {0};
        dq_work_how how = how_of(&n);
        how.goes_on = goes_on;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
        assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
        for (int i = 1; i <= 5; i++) dq_work_put(&w, step_of(i), &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(err.code, goes_on ? DQ_OK : DQ_FILE);
        assert_int_equal(w.lost.code, goes_on ? DQ_FILE : DQ_OK);
        assert_int_equal(dq_work_records(&w), !goes_on);
        if (goes_on) assert_int_equal(dq_work_end(&w, &end), DQ_FILE);
        dq_work_close(&w, true);
        assert_false(dq_file_exists(path));
    }
}

static dq_work *rewritten;
static int64_t steps;
static dq_status put_steps(void *arg, dq_err *err)
{
    (void)arg;
    for (int64_t i = 1; i <= steps; i++) DQ_TRY(dq_work_put(rewritten, step_of(i), err));
    return steps > 3 ? dq_fail(err, DQ_FILE, "as planned") : DQ_OK;
}

TEST(a_rewritten_file_is_there_as_a_whole_or_not)
{
    int64_t n;
    dq_work w;
    dq_err err = {0}, failed = {0};
    dq_work_how how = how_of(&n);
    rewritten = &w;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    steps = 3;
    assert_int_equal(dq_work_rewrite(&w, put_steps, false, &err), DQ_OK);
    steps = 4;
    assert_int_equal(dq_work_rewrite(&w, put_steps, false, &failed), DQ_FILE);
    assert_false(dq_file_exists(at("a.shard.partial")));
    steps = 2;
    assert_int_equal(dq_work_rewrite(&w, put_steps, true, &err), DQ_OK);
    dq_work_close(&w, false);
    assert_int_equal(dq_work_merge(&how, path, &err), DQ_OK);
    assert_int_equal(n, 2);
}

/* What stands where the new file is to be written, and is no dq's, is found before anything is computed. */
TEST(a_rewritten_file_replaces_nothing_else)
{
    static const char mine[] = "mine\n";
    char partial[80], link[80], real[80];
    int64_t n;
    size_t len;
    strcpy(partial, at("a.shard.partial"));
    strcpy(link, at("link"));
    strcpy(real, path);
    remove(path);
    for (int i = 0; i < 4; i++) {
        dq_work w;
        dq_err err = {0};
        dq_work_how how = how_of(&n);
        how.rewrites = true;
        if (i == 0) put_bytes(partial, mine, sizeof mine);
        if (i == 1) assert_int_equal(mkfifo(partial, 0600), 0);
        if (i == 2) assert_int_equal(mkdir(partial, 0700), 0);
        if (i == 3) assert_int_equal(symlink(real, partial), 0);
        assert_int_equal(dq_work_open(&w, &how, &err), i == 0 ? DQ_MISMATCH : DQ_FILE);
        assert_non_null(strstr(err.text, "a.shard.partial: "));
        assert_false(dq_file_exists(path));
        if (i == 0) free(bytes_of(partial, &len));
        if (i == 0) assert_int_equal(len, sizeof mine);
        assert_int_equal(remove(partial), 0);
        dq_work_close(&w, false);
    }
    /* What a killed run has left gives way. */
    make(1, false);
    assert_int_equal(rename(path, partial), 0);
    assert_int_equal(symlink(real, link), 0);
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&n);
    how.rewrites = true;
    how.path = link;
    rewritten = &w;
    steps = 2;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    assert_int_equal(dq_work_rewrite(&w, put_steps, true, &err), DQ_OK);
    dq_work_close(&w, false);
    assert_false(dq_file_exists(partial));
    assert_int_equal(dq_work_merge(&how, real, &err), DQ_OK);
    assert_int_equal(n, 2);
    assert_int_equal(unlink(link), 0);
    assert_true(dq_file_exists(real)); /* the link stayed one */
}

TEST(without_a_file_nothing_is_written)
{
    int64_t n;
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&n);
    how.path = NULL;
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    w.fd = -1;
    assert_int_equal(dq_work_put(&w, step_of(1), &err), DQ_OK);
    assert_int_equal(dq_work_sync(&w, &err), DQ_OK);
    assert_int_equal(dq_work_rewrite(&w, put_steps, true, &err), DQ_OK);
    assert_int_equal(dq_work_end(&w, &err), DQ_OK);
    dq_work_close(&w, false);
}

TEST(no_file_is_too_long_to_be_read_again)
{
    int64_t n;
    dq_work w;
    dq_err err = {0};
    const dq_work_how how = how_of(&n);
    assert_int_equal(dq_work_open(&w, &how, &err), DQ_OK);
    w.end = DQ_MAX_JOURNAL - 70;
    assert_int_equal(dq_work_put(&w, step_of(1), &err), DQ_RESOURCE);
    dq_work_close(&w, true);
}

/* A run that opens the file, writes so many lines and fails; whether the file is there then. */
static bool left_by(bool resume, int lines, dq_status status)
{
    int64_t n;
    dq_work w;
    dq_err err = {0};
    dq_work_how how = how_of(&n);
    how.resume = resume;
    how.force = !resume;
    if (dq_work_open(&w, &how, &err) != DQ_OK) fail_msg("%s", err.text);
    for (int i = 1; i <= lines; i++) assert_int_equal(dq_work_put(&w, step_of(i), &err), DQ_OK);
    dq_fail(&err, status, "as planned");
    assert_int_equal(dq_work_failed(&w, &err), status);
    dq_work_close(&w, false);
    return dq_file_exists(path);
}

TEST(a_failure_leaves_what_can_be_resumed)
{
    static const dq_status all[] = {DQ_USAGE, DQ_MISMATCH, DQ_DAMAGED, DQ_FILE, DQ_RESOURCE};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_false(left_by(false, 0, all[i]));
        assert_false(left_by(true, 0, all[i]));
    }
    assert_false(left_by(false, 1, DQ_DAMAGED));
    assert_true(left_by(false, 1, DQ_RESOURCE));
    assert_true(left_by(true, 0, DQ_MISMATCH));
    remove(path);
    assert_true(left_by(false, 0, DQ_STOPPED));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(left_by(true, 0, all[i])); /* an earlier run's */
}

TEST(numbers_keep_their_bits)
{
    const double x[] = {0.1, -0.0, 1e308, 5e-324, (double)INFINITY};
    for (int64_t n = 0; n <= 5; n++) {
        dq_err err = {0};
        double y[6];
        json_t *o = json_pack("{s:o}", "reals", dq_work_reals(x, n));
        assert_int_equal(dq_work_take_reals(y, n, o, "reals", &err), DQ_OK);
        assert_memory_equal(x, y, (size_t)n * sizeof *y);
        assert_int_equal(dq_work_take_reals(y, n + 1, o, "reals", &err), DQ_DAMAGED);
        err = (dq_err){0};
        if (n) assert_int_equal(dq_work_take_reals(y, n - 1, o, "reals", &err), DQ_DAMAGED);
        err = (dq_err){0};
        assert_int_equal(dq_work_take_reals(y, n, o, "none", &err), DQ_DAMAGED);
        json_decref(o);
    }
}

FIXTURES(begin, folder_end)
