/* Tests of rotary frequencies: every form of the configuration, golden values, refusals.
 * SPDX-License-Identifier: MIT */
#include "model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_error(const dq_err *err, dq_status want, const char *text)
{
    if (err->code != want || !strstr(err->text, text))
        print_error("status %d, \"%s\" (wanted %d, \"%s\")\n", (int)err->code, err->text, (int)want,
                    text);
    assert_int_equal(err->code, want);
    assert_non_null(strstr(err->text, text));
}

#define LLAMA3 "\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,\"high_freq_factor\":4"
#define M8192  ",\"original_max_position_embeddings\":8192"

static void frequencies_come_out(void **state)
{
    static const struct {
        const char *config;
        int dim, max_positions, i;
        double want;
    } t[] = {
        {"{}", 64, 2048, 0, 1.0},
        {"{}", 64, 2048, 16, 1e-2},
        {"{\"rope_theta\":500000}", 64, 2048, 8, 3.760603093e-02},
        {"{\"rope_theta\":5e5}", 64, 2048, 31, 3.013858152e-06},
        {"{\"rope_theta\":1e6}", 128, 2048, 63, 1.240937761e-06},
        {"{\"rope_theta\":5e5}", 128, 2048, 63, 2.455140791e-06},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 M8192 "}}", 64, 131072, 0, 1.0},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 M8192 "}}", 64, 131072, 14,
         3.211445995e-03},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 M8192 "}}", 64, 131072, 15,
         1.290547928e-03},
        {"{\"rope_parameters\":{\"rope_theta\":5e5," LLAMA3 M8192 "}}", 64, 131072, 16,
         4.295567966e-04},
        {"{\"rope_scaling_dict\":{\"rope_theta\":5e5," LLAMA3 M8192 "}}", 64, 131072, 17,
         9.708287803e-05},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 M8192 "}}", 64, 131072, 31,
         9.418306725e-08},
        /* The original length: top level, then beside the factors, then the model's own. */
        {"{\"rope_theta\":5e5,\"rope_scaling\":{" LLAMA3 "}}", 64, 8192, 16, 4.295567966e-04},
        {"{\"rope_theta\":5e5,\"original_max_position_embeddings\":8192,\"rope_scaling\":{" LLAMA3
         ",\"original_max_position_embeddings\":77}}",
         64, 131072, 16, 4.295567966e-04},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", 64, 2048, 16, 2.5e-3},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"rope_type\":\"linear\",\"factor\":4}}", 64, 2048,
         16, 2.5e-3},
        {"{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0}}", 64, 2048, 0, 0.5},
        {"{\"rope_scaling\":{\"factor\":4}}", 64, 2048, 16, 1e-2},
        /* Which theta counts. */
        {"{\"rope_theta\":1e6,\"rope_parameters\":{}}", 64, 2048, 16, 1e-3},
        {"{\"rope_theta\":1e6,\"rope_parameters\":{\"rope_theta\":1e4}}", 64, 2048, 16, 1e-2},
        {"{\"rope_theta\":1e6,\"rope_scaling\":{\"rope_theta\":1e4}}", 64, 2048, 16, 1e-2},
        {"{\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":{\"type\":\"default\"}}", 64,
         2048, 16, 1e-2},
        {"{\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":null}", 64, 2048, 16, 1e-3},
        {"{\"partial_rotary_factor\":1.0}", 64, 2048, 16, 1e-2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_rope rope;
        dq_arena *a = dq_arena_new();
        dq_err err = {0};
        json_t *config = json_loads(t[i].config, 0, NULL);
        assert_non_null(config);
        dq_rope_read(&rope, DQ_ROPE_HALVES, t[i].dim, config, t[i].max_positions, a, &err);
        assert_string_equal(err.text, "");
        const float *f = rope.inv_freq;
        if (fabs((double)f[t[i].i] / t[i].want - 1.0) > 1e-7) print_error("%s\n", t[i].config);
        assert_true(fabs((double)f[t[i].i] / t[i].want - 1.0) <= 1e-7);
        json_decref(config);
        dq_arena_free(a);
    }
}

static void odd_rotations_are_refused(void **state)
{
    static const struct {
        const char *config;
        int dim;
        dq_status status;
        const char *text;
    } t[] = {
        {"{}", 63, DQ_MISMATCH, "63"},
        {"{\"rope_theta\":0}", 64, DQ_DAMAGED, "\"rope_theta\""},
        {"{\"rope_theta\":-1e4}", 64, DQ_DAMAGED, "\"rope_theta\""},
        {"{\"rope_theta\":\"10000\"}", 64, DQ_DAMAGED, "\"rope_theta\""},
        {"{\"rope_theta\":1e-300}", 64, DQ_DAMAGED, "not finite"},
        {"{\"rope_scaling\":4}", 64, DQ_DAMAGED, "\"rope_scaling\""},
        {"{\"rope_parameters\":[]}", 64, DQ_DAMAGED, "\"rope_parameters\""},
        {"{\"rope_scaling\":{\"rope_type\":4}}", 64, DQ_DAMAGED, "\"rope_type\""},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":0}}", 64, DQ_DAMAGED, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"attention_factor\":0}}", 64,
         DQ_DAMAGED, "attention_factor"},
        {"{\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}}", 64, DQ_DAMAGED,
         "rope_theta"},
        {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", 64, DQ_DAMAGED, "\"factor\" is missing"},
        {"{\"rope_scaling\":{\"type\":\"longrope\"}}", 64, DQ_MISMATCH, "\"longrope\""},
        {"{\"rope_scaling\":{\"type\":\"linear\"}}", 64, DQ_DAMAGED, "\"factor\" is missing"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", 64, DQ_DAMAGED, "\"factor\""},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", 64, DQ_DAMAGED, "low_freq"},
        {"{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,"
         "\"high_freq_factor\":4}}",
         64, DQ_DAMAGED, "high_freq"},
        {"{\"partial_rotary_factor\":0.5}", 64, DQ_MISMATCH, "partial_rotary_factor"},
        {"{\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", 64, DQ_MISMATCH, "partial"},
        {"{\"rope_parameters\":{\"full_attention\":{\"rope_theta\":1e4}}}", 64, DQ_MISMATCH,
         "full_attention"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_rope rope;
        dq_arena *a = dq_arena_new();
        dq_err err = {0};
        json_t *config = json_loads(t[i].config, 0, NULL);
        assert_non_null(config);
        dq_rope_read(&rope, DQ_ROPE_HALVES, t[i].dim, config, 2048, a, &err);
        check_error(&err, t[i].status, t[i].text);
        json_decref(config);
        dq_arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_come_out),
        cmocka_unit_test(odd_rotations_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
