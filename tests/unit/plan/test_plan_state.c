/* test_plan_state: what a resumed plan must find unchanged.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void key_of(char hex[65], const dq_plan *p, const char *lapack, const char *values)
{
    dq_err err = {0};
    dq_quantize_needs codes = {.lapack = lapack, .calib = json_pack("{s: i}", "tokens", 500)};
    if (values) json_object_set_new(codes.calib, "values", json_string(values));
    json_t *of = NULL;
    if (dq_plan_state_key(hex, &of, p, &codes, &err) != DQ_OK) fail_msg("%s", err.text);
    json_decref(of);
    json_decref(codes.calib);
}

static void what_codes_depend_on_is_in_the_key(void **unused)
{
    dq_model m = {.fingerprint = "of a model"};
    dq_plan p = {.model = &m, .set = {.rule = &dq_calibrate_rules[1], .n_bits = 2, .bits = {2, 4}}};
    char key[65], same[65], library[65], form[65];
    (void)unused;
    p.set.set = (dq_quantize_settings){
        .bits = 2, .group = 128, .mode = DQ_SEARCH, .scale_dtype = DQ_F16, .dq_version = "test"};
    p.set.set.logit = dq_logit_plain;
    p.set.set.kv = dq_kv_config_plain;
    key_of(key, &p, "LAPACK 3.11.0, factor 13b863ae8e008978", "maps");
    key_of(same, &p, "LAPACK 3.11.0, factor 13b863ae8e008978", "maps");
    key_of(library, &p, "LAPACK 3.9.0, factor c4f08102c68529c0", "maps");
    key_of(form, &p, "LAPACK 3.11.0, factor 13b863ae8e008978", NULL);
    assert_string_equal(key, same);
    assert_string_not_equal(key, library);
    assert_string_not_equal(key, form);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_codes_depend_on_is_in_the_key)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
