/* test_plan_state: what a resumed plan must find unchanged, and which journals a failure leaves.
 * SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "tests/rigs/suite.h"

#include "base/file.h"
#include "base/os.h"
#include "plan/plan_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void key_of(char hex[65], const dq_plan_weights *p, const char *values)
{
    dq_err err = {0};
    dq_quantize_needs codes = {.calib = json_pack("{s: i}", "tokens", 500)};
    if (values) json_object_set_new(codes.calib, "values", json_string(values));
    json_t *of = NULL;
    if (dq_plan_state_key(hex, &of, p, &codes, &err) != DQ_OK) fail_msg("%s", err.text);
    json_decref(of);
    json_decref(codes.calib);
}

TEST(what_codes_depend_on_is_in_the_key)
{
    dq_model m = {.fingerprint = "of a model"};
    dq_plan_weights p = {.model = &m,
                         .set = {.rule = &dq_calibrate_rules[1], .n_bits = 2, .bits = {2, 4}}};
    char key[65], same[65], plain[65], form[65];
    p.set.set = (dq_quantize_settings){
        .bits = 2, .group = 128, .mode = DQ_SEARCH, .scale_dtype = DQ_F16, .dq_version = "test"};
    p.set.set.logit = dq_logit_plain;
    p.set.set.kv = dq_kv_config_plain;
    key_of(key, &p, "maps");
    key_of(same, &p, "maps");
    key_of(form, &p, NULL);
    assert_string_equal(key, same);
    assert_string_not_equal(key, form);
    if (!(dq_os_cpu_features(NULL) & DQ_CPU_AVX2)) return; /* there is but one level */
    const char *was = getenv("DQ_CPU");
    assert_int_equal(setenv("DQ_CPU", "avx2", 1), 0);
    key_of(same, &p, "maps");
    assert_int_equal(setenv("DQ_CPU", "scalar", 1), 0);
    key_of(plain, &p, "maps");
    assert_int_equal(was ? setenv("DQ_CPU", was, 1) : unsetenv("DQ_CPU"), 0);
    assert_string_equal(key, same); /* AVX2 and AVX-512 give the same bits */
    assert_string_not_equal(key, plain);
}

static dq_status take_none(void *arg, json_t *line, dq_err *err)
{
    (void)arg, (void)line, (void)err;
    return DQ_OK;
}

/* A run that opens the journal of `out`, writes so many lines after the key and fails; whether the journal is there then. */
static bool left_by(const char *out, bool resume, int lines, dq_status status)
{
    char key[65], path[100];
    dq_plan_journal j;
    dq_err err = {0};
    dq_arena *a = dq_arena_new();
    json_t *of = json_pack("{s: i}", "tokens", 500);
    assert_int_equal(dq_plan_journal_key(key, of, &err), DQ_OK);
    const dq_plan_journal_how how = {
        .out = out, .key = key, .of = of, .resume = resume, .take = take_none};
    if (dq_plan_journal_open(&j, &how, a, &err) != DQ_OK) fail_msg("%s", err.text);
    for (int i = 0; i < lines; i++)
        assert_int_equal(dq_plan_journal_put(&j, json_pack("{s: i}", "line", i), &err), DQ_OK);
    dq_fail(&err, status, "as planned");
    assert_int_equal(dq_plan_journal_failed(&j, &err), status);
    dq_plan_journal_end(&j, false);
    json_decref(of);
    dq_arena_free(a);
    snprintf(path, sizeof path, "%s.journal", out);
    return dq_file_exists(path);
}

TEST(a_failure_leaves_what_can_be_resumed)
{
    static const dq_status all[] = {DQ_USAGE, DQ_MISMATCH, DQ_DAMAGED, DQ_FILE, DQ_RESOURCE};
    const char *tmp = getenv("TMPDIR");
    char dir[64], out[80], path[100];
    snprintf(dir, sizeof dir, "%.40s/dq-plan-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(dir));
    snprintf(out, sizeof out, "%s/r.json", dir);
    snprintf(path, sizeof path, "%s.journal", out);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_false(left_by(out, false, 0, all[i]));
        assert_false(left_by(out, true, 0, all[i]));
    }
    assert_true(left_by(out, false, 1, DQ_RESOURCE));
    assert_true(left_by(out, true, 0, DQ_MISMATCH));
    unlink(path);
    assert_true(left_by(out, false, 0, DQ_STOPPED));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(left_by(out, true, 0, all[i])); /* an earlier run's */
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}
