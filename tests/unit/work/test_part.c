/* test_part: what a file of finished work gives back, whole, cut off and forged.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/text.h"
#include "work/work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char path[80];

static int begin(void **state)
{
    const int failed = folder_begin(state);
    strcpy(path, at("a.part"));
    return failed;
}

static const dq_part_head head = {"form/1", "key", 2, 3};

static json_t *step_of(int64_t i)
{
    json_t *o = json_object();
    json_object_set_new(o, "step", json_integer(i));
    return o;
}

static json_t *head_of(const dq_part_head *h)
{
    json_t *o = json_object();
    json_object_set_new(o, "schema", json_string(h->schema));
    json_object_set_new(o, "key", json_string(h->key));
    if (h->n_shards) {
        json_object_set_new(o, "shard", json_integer(h->shard));
        json_object_set_new(o, "shards", json_integer(h->n_shards));
    }
    return o;
}

/* A file of a head and n steps. */
static void make(int64_t n, bool ended)
{
    dq_journal *j;
    dq_err err = {0};
    assert_int_equal(dq_journal_new(&j, path, &err), DQ_OK);
    assert_int_equal(dq_part_add(j, head_of(&head), &err), DQ_OK);
    for (int64_t i = 1; i <= n; i++) assert_int_equal(dq_part_add(j, step_of(i), &err), DQ_OK);
    if (ended) assert_int_equal(dq_part_end(j, &err), DQ_OK);
    dq_journal_close(j, false);
}

typedef struct taken {
    const dq_part_head *want;
    bool any_shard;
    int64_t n;
} taken;

static dq_status take(void *arg, int64_t line, const json_t *step, dq_err *err)
{
    taken *x = arg;
    if (line == 0) return dq_part_check(step, x->want, x->any_shard, err);
    assert_int_equal(json_integer_value(json_object_get(step, "step")), line);
    x->n++;
    return DQ_OK;
}

TEST(what_is_written_is_read)
{
    for (int64_t n = 0; n < 3; n++) {
        dq_err err = {0}, unfinished = {0};
        taken x = {.want = &head}, y = {.want = &head};
        json_t *first;
        bool ended;
        make(n, true);
        assert_int_equal(dq_part_read(path, take, &x, &err), DQ_OK);
        assert_int_equal(x.n, n);
        assert_int_equal(dq_part_read_head(&first, &ended, path, &err), DQ_OK);
        assert_true(ended && json_integer_value(json_object_get(first, "shards")) == 3);
        json_decref(first);
        make(n, false);
        assert_int_equal(dq_part_read(path, take, &y, &unfinished), DQ_MISMATCH);
        assert_non_null(strstr(unfinished.text, "a.part: is not finished"));
        assert_int_equal(dq_part_read_head(&first, &ended, path, &err), DQ_OK);
        assert_false(ended);
        json_decref(first);
    }
}

TEST(a_file_goes_on)
{
    size_t whole;
    make(2, true);
    char *bytes = bytes_of(path, &whole);
    for (size_t n = 0; n <= whole; n++) {
        dq_err err = {0};
        dq_journal *j;
        bool ended;
        taken x = {.want = &head}, y = {.want = &head};
        put_bytes(path, bytes, n);
        assert_int_equal(dq_part_resume(&j, &ended, path, take, &x, &err), DQ_OK);
        assert_int_equal(ended, n == whole);
        if (dq_journal_count(j) == 0) dq_part_add(j, head_of(&head), &err);
        for (int64_t i = x.n + 1; i <= 2; i++) dq_part_add(j, step_of(i), &err);
        if (!ended) dq_part_end(j, &err);
        dq_journal_close(j, false);
        assert_int_equal(err.code, DQ_OK);
        assert_int_equal(dq_part_read(path, take, &y, &err), DQ_OK);
        assert_int_equal(y.n, 2);
    }
    free(bytes);
}

static void refuses(const dq_part_head *want, bool any_shard, const char *why)
{
    dq_err err = {0}, again = {0};
    dq_journal *j = NULL;
    bool ended;
    taken x = {want, any_shard, 0};
    assert_int_equal(dq_part_read(path, take, &x, &err), DQ_MISMATCH);
    assert_int_equal(dq_part_resume(&j, &ended, path, take, &x, &again), DQ_MISMATCH);
    assert_non_null(strstr(err.text, why));
    assert_string_equal(err.text, again.text);
    assert_null(j);
}

TEST(heads_of_others_are_refused)
{
    const dq_part_head form = {"form/2", "key", 2, 3}, key = {"form/1", "yek", 2, 3},
                       shard = {"form/1", "key", 1, 3}, whole = {"form/1", "key", 0, 0};
    dq_err err = {0};
    taken x = {&shard, true, 0};
    make(1, true);
    refuses(&form, true, "is not a state file of this dq (expected form/2)");
    refuses(&key, true, "belongs to a run with other inputs or settings");
    refuses(&shard, false, "is part 2 of 3, and not 1 of 3");
    refuses(&whole, false, "is part 2 of 3, and not 0 of 0");
    assert_int_equal(dq_part_read(path, take, &x, &err), DQ_OK);
    put_bytes(path, "", 0);
    json_t *first;
    bool ended;
    assert_int_equal(dq_part_read_head(&first, &ended, path, &err), DQ_DAMAGED);
}

/* {"x": 0, KEY: NUMBERS} */
static json_t *numbers(const double *x, int64_t n)
{
    dq_err err = {0};
    dq_strbuf text = {0};
    json_t *o;
    FILE *f = dq_strbuf_memory_open(&text, &err);
    assert_non_null(f);
    fputs("{\"x\": 0", f);
    dq_part_put_reals(f, "reals", x, n);
    fputc('}', f);
    assert_int_equal(dq_strbuf_memory_close(f, &err), DQ_OK);
    assert_int_equal(dq_json_parse(&o, text.s, text.n, "numbers", &err), DQ_OK);
    dq_block_free(text.s);
    return o;
}

TEST(numbers_keep_their_bits)
{
    const double x[] = {0.1, -0.0, 1e308, 5e-324, (double)INFINITY};
    for (int64_t n = 0; n <= 5; n++) {
        dq_err err = {0};
        double y[6];
        json_t *o = numbers(x, n);
        assert_int_equal(dq_part_get_reals(y, n, o, "reals", &err), DQ_OK);
        assert_memory_equal(x, y, (size_t)n * sizeof *y);
        assert_int_equal(dq_part_get_reals(y, n + 1, o, "reals", &err), DQ_DAMAGED);
        err = (dq_err){0};
        if (n) assert_int_equal(dq_part_get_reals(y, n - 1, o, "reals", &err), DQ_DAMAGED);
        err = (dq_err){0};
        assert_int_equal(dq_part_get_reals(y, n, o, "none", &err), DQ_DAMAGED);
        json_decref(o);
    }
}

FIXTURES(begin, folder_end)
