/* test_plan_state: what a resumed plan must find unchanged.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "base/os.h"
#include "plan/plan_weights.h"

#include <stdlib.h>

static void key_of(char hex[65], const dq_plan_weights *p, const char *values)
{
    dq_err err = {0};
    dq_quantize_needs codes = {.calib = json_pack("{s: i}", "tokens", 500)};
    if (values) json_object_set_new(codes.calib, "values", json_string(values));
    json_t *of = NULL;
    if (dq_plan_state_of(&of, p, &codes, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_int_equal(dq_work_key(hex, of, &err), DQ_OK);
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
