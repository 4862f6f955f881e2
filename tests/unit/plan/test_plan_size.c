/* test_plan_size: widths for a size: the container keeps it and leaves less than a step of one role, more bits come with more room,
 * what costs most for its bytes has them, and too little room is refused with what there must be.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "plan/plan_weights.h"
#include "tests/rigs/edits.h"
#include "tests/rigs/test_folder.h"

#include <string.h>

static const char *const models[] = {MODELS "diffllama-f32", MODELS "llama-bf16-bias"};

static dq_quantize_settings usual(void)
{
    return (dq_quantize_settings){.group = DQ_QUANTIZE_GROUP_AUTO,
                                  .mode = DQ_TRELLIS,
                                  .scale_dtype = DQ_F16,
                                  .logit = dq_logit_plain,
                                  .kv = dq_kv_config_plain,
                                  .dq_version = "test"};
}

/* Bits per weight of the container; bits of each role go to width[DQ_ROLE_COUNT]. */
static double take(const char *model, double size, int *width)
{
    dq_err err = {0};
    dq_quantize_settings s = usual();
    json_t *rules;
    dq_quantizer *q;
    if (dq_plan_size_choose(&s, &rules, model, size, &err) != DQ_OK ||
        dq_quantize_open(&q, model, &s, &err) != DQ_OK)
        fail_msg("%s", err.text);
    const dq_quantize_info *i = &q->info;
    const double bits = i->bits_per_weight;
    for (int64_t t = 0; t < i->n_tensors; t++) {
        const dq_quantize_row r = dq_quantize_row_at(q, t);
        if (r.packed) width[r.role] = r.bits;
    }
    dq_quantize_close(q);
    json_decref(rules);
    return bits;
}

TEST(a_size_is_kept_and_used)
{
    for (int m = 0; m < 2; m++) {
        double before = 0;
        for (double size = 4.5; size <= 9; size += 0.5) {
            int width[DQ_ROLE_COUNT] = {0};
            const double bits = take(models[m], size, width);
            assert_true(bits <= size && bits > size - 0.8);
            assert_true(bits >= before);
            before = bits;
        }
    }
}

TEST(values_have_most_bits)
{
    for (int m = 0; m < 2; m++) {
        int width[DQ_ROLE_COUNT] = {0};
        take(models[m], 4.5, width);
        for (dq_role r = 0; r < DQ_ROLE_COUNT; r++) {
            if (width[r] && r != DQ_ROLE_EMBED && r != DQ_ROLE_HEAD)
                assert_true(width[r] <= width[DQ_ROLE_V]);
        }
        assert_true(width[DQ_ROLE_GATE] <= width[DQ_ROLE_DOWN]);
    }
}

TEST(too_little_room_is_refused)
{
    dq_err err = {0};
    dq_quantize_settings s = usual();
    json_t *rules;
    assert_int_equal(dq_plan_size_choose(&s, &rules, models[0], 2, &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "the narrowest codes"));
    json_decref(rules);
}

TEST(presets_ascend)
{
    for (int i = 1; i < DQ_PLAN_SIZES; i++)
        assert_true(dq_plan_sizes[i].bits > dq_plan_sizes[i - 1].bits);
    assert_string_equal(dq_plan_sizes[DQ_PLAN_SIZE_USUAL].name, "balanced");
}
