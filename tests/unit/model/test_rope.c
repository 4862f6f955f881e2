/* Tests of rotary frequencies: every form of the configuration, golden values, refusals.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGROPE(a, b, gain)                                                                       \
    "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":" a ",\"long_factor\":" b      \
    ",\"attention_factor\":" gain "}}"
#define LLAMA3 "\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,\"high_freq_factor\":4"
#define M8192  ",\"original_max_position_embeddings\":8192"

TEST(frequencies_come_out)
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
        {LONGROPE("[1,2.5]", "[1,2.5]", "1"), 4, 2048, 1, 4e-3},
        {LONGROPE("[4,2.5]", "[4,2.5]", "1"), 4, 2048, 0, 0.25},
        /* Which theta counts. */
        {"{\"rope_theta\":1e6,\"rope_parameters\":{}}", 64, 2048, 16, 1e-3},
        {"{\"rope_theta\":1e6,\"rope_parameters\":{\"rope_theta\":1e4}}", 64, 2048, 16, 1e-2},
        {"{\"rope_theta\":1e6,\"rope_scaling\":{\"rope_theta\":1e4}}", 64, 2048, 16, 1e-2},
        {"{\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":{\"type\":\"default\"}}", 64,
         2048, 16, 1e-2},
        {"{\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":null}", 64, 2048, 16, 1e-3},
        {"{\"rope_parameters\":{\"rope_theta\":1e6},\"rope_scaling\":{}}", 64, 2048, 16, 1e-3},
        {"{\"partial_rotary_factor\":1.0}", 64, 2048, 16, 1e-2},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_rope rope;
        dq_err err = {0};
        json_t *config = given_document(t[i].config);
        dq_model_rope_read(&rope, DQ_ROPE_HALVES, t[i].dim, config, t[i].max_positions,
                           given_arena(), &err);
        assert_string_equal(err.text, "");
        const float *f = rope.inv_freq;
        if (fabs((double)f[t[i].i] / t[i].want - 1.0) > 1e-7) print_error("%s\n", t[i].config);
        assert_true(fabs((double)f[t[i].i] / t[i].want - 1.0) <= 1e-7);
        json_decref(config);
    }
}

#define YARN "{\"rope_theta\":10000,\"rope_scaling\":{\"rope_type\":\"yarn\""
#define LONGROPE_OF(more)                                                                          \
    "{\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,2.5],\"long_factor\":[1,2." \
    "5]" more "}}"
#define M4096 ",\"original_max_position_embeddings\":4096"

/* Wanted values were computed apart from this code, from the formulas of arXiv 2309.00071 as
 * transformers has them. Rounded to whole dimensions the ramp goes from 10 to 23, else from 10.47 to
 * 22.51. */
TEST(yarn_stretches_and_amplifies)
{
    static const struct {
        const char *config;
        int dim, i;
        double want, amplitude;
    } t[] = {
        {YARN M4096 ",\"factor\":16}}", 64, 0, 1.0, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 10, 5.6234132519e-02, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 11, 3.9128569789e-02, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 16, 5.6730769231e-03, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 22, 2.3938376674e-04, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 23, 8.3345089510e-05, 1.277258872},
        {YARN M4096 ",\"factor\":16}}", 64, 31, 8.3345089510e-06, 1.277258872},
        {YARN M4096 ",\"factor\":16,\"truncate\":true}}", 64, 16, 5.6730769231e-03, 1.277258872},
        {YARN M4096 ",\"factor\":16,\"truncate\":false}}", 64, 11, 4.0436894719e-02, 1.277258872},
        {YARN M4096 ",\"factor\":16,\"truncate\":null}}", 64, 11, 4.0436894719e-02, 1.277258872},
        {YARN M4096 ",\"factor\":16,\"truncate\":false}}", 64, 16, 5.6962144014e-03, 1.277258872},
        {YARN M4096 ",\"factor\":16,\"truncate\":false}}", 64, 22, 1.8222971922e-04, 1.277258872},
        /* Without a factor it is the ratio of the two lengths: 65536 / 4096. */
        {YARN M4096 ",\"factor\":null}}", 64, 16, 5.6730769231e-03, 1.277258872},
        {YARN M4096 "}}", 64, 16, 5.6730769231e-03, 1.277258872},
        {YARN M4096 ",\"factor\":0.5}}", 64, 31, 2.6670428643e-04, 1.0},
        /* A ramp of no length, and one that turns earlier. */
        {YARN ",\"original_max_position_embeddings\":6,\"factor\":4}}", 8, 0, 1.0, 1.138629436},
        {YARN ",\"original_max_position_embeddings\":6,\"factor\":4}}", 8, 1, 2.5e-02, 1.138629436},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"beta_fast\":16,"
         "\"beta_slow\":2" M8192 "}}",
         64, 11, 9.3868889566e-03, 1.207944154},
        {"{\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8,\"beta_fast\":16,"
         "\"beta_slow\":2" M8192 "}}",
         64, 15, 5.7717820791e-04, 1.207944154},
        /* A ramp that would end after the last dimension ends there: from 1 to 7, not to 12. */
        {"{\"rope_theta\":10,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"beta_fast\":"
         "256" M4096 "}}",
         8, 3, 0.13337095575, 1.138629436},
        /* A stated amplitude, DeepSeek's two strengths, and what wins. */
        {YARN M4096 ",\"factor\":16,\"attention_factor\":0.75}}", 64, 0, 1.0, 0.75},
        {YARN M4096 ",\"factor\":16,\"attention_factor\":null}}", 64, 0, 1.0, 1.277258872},
        {YARN M4096 ",\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":1.0}}", 64, 0, 1.0,
         0.921042355},
        {YARN M4096 ",\"factor\":40,\"mscale\":1,\"mscale_all_dim\":1}}", 64, 0, 1.0, 1.0},
        {YARN M4096 ",\"factor\":40,\"mscale\":0.707}}", 64, 0, 1.0, 1.368887945},
        {YARN M4096 ",\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":0}}", 64, 0, 1.0,
         1.368887945},
        {YARN M4096 ",\"factor\":40,\"mscale\":0,\"mscale_all_dim\":0}}", 64, 0, 1.0, 1.368887945},
        {YARN M4096 ",\"factor\":40,\"mscale\":0.707,\"mscale_all_dim\":null}}", 64, 0, 1.0,
         1.368887945},
        {YARN M4096 ",\"factor\":40,\"attention_factor\":2,\"mscale\":0.707,\"mscale_all_dim\":1}}",
         64, 0, 1.0, 2.0},
        /* longrope: by the factor, else by the ratio of the lengths, and none below 1. */
        {LONGROPE_OF(M4096), 4, 0, 1.0, 1.154700538},
        {LONGROPE_OF(M4096 ",\"attention_factor\":null,\"factor\":4"), 4, 0, 1.0, 1.080123450},
        {LONGROPE_OF(M4096 ",\"attention_factor\":1.5"), 4, 1, 4e-3, 1.5},
        {LONGROPE_OF(M4096 ",\"factor\":0.5"), 4, 0, 1.0, 1.0},
        {LONGROPE_OF(""), 4, 0, 1.0, 1.0},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_rope rope;
        dq_err err = {0};
        json_t *config = given_document(t[i].config);
        dq_model_rope_read(&rope, DQ_ROPE_HALVES, t[i].dim, config, 65536, given_arena(), &err);
        assert_string_equal(err.text, "");
        if (fabs((double)rope.inv_freq[t[i].i] / t[i].want - 1.0) > 1e-7 ||
            fabs((double)rope.amplitude - t[i].amplitude) > 2e-7)
            fail_msg("%s: %.9g, amplitude %.9g", t[i].config, (double)rope.inv_freq[t[i].i],
                     (double)rope.amplitude);
        assert_int_equal(rope.max_positions, 0);
        json_decref(config);
    }
}

/* dynamic changes nothing up to the model's positions, and says where they end. */
TEST(dynamic_has_an_end)
{
    dq_rope rope;
    dq_err err = {0};
    json_t *config = given_document("{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}");
    assert_int_equal(
        dq_model_rope_read(&rope, DQ_ROPE_ADJACENT, 64, config, 777, given_arena(), &err), DQ_OK);
    assert_int_equal(rope.max_positions, 777);
    assert_int_equal(rope.order, DQ_ROPE_ADJACENT);
    assert_true(fabs((double)rope.inv_freq[16] / 1e-2 - 1) < 1e-7);
    assert_true(fabs((double)rope.amplitude - 1) <= 0);
    json_decref(config);
}

TEST(odd_rotations_are_refused)
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
        {YARN ",\"factor\":2,\"mscale\":1e300,\"mscale_all_dim\":1e-300}}", 64, DQ_DAMAGED,
         "mscale"},
        {YARN ",\"factor\":2,\"mscale\":\"1\"}}", 64, DQ_DAMAGED, "\"mscale\""},
        {YARN ",\"factor\":2,\"truncate\":1}}", 64, DQ_DAMAGED, "\"truncate\""},
        {YARN ",\"factor\":2,\"beta_fast\":-1}}", 64, DQ_DAMAGED, "\"beta_fast\""},
        {YARN ",\"factor\":1e-300}}", 64, DQ_DAMAGED, "not finite"},
        {"{\"rope_theta\":1e-300}", 64, DQ_DAMAGED, "config: frequency"},
        {"{\"rope_scaling\":{\"type\":\"dynamic\"}}", 64, DQ_DAMAGED, "\"factor\" is missing"},
        {"{\"rope_scaling\":{\"type\":\"longrope\"}}", 64, DQ_DAMAGED, "\"short_factor\""},
        {LONGROPE("[1,2]", "[1,3]", "1"), 4, DQ_MISMATCH, "short_factor and long_factor differ"},
        {LONGROPE("[1,2]", "[1]", "1"), 4, DQ_DAMAGED, "\"long_factor\": expected a list of 2"},
        {LONGROPE("[1,0]", "[1,0]", "1"), 4, DQ_DAMAGED, "\"short_factor\": number 1"},
        {LONGROPE("[1,\"2\"]", "[1,2]", "1"), 4, DQ_DAMAGED, "\"short_factor\": number 1"},
        {LONGROPE("[1,2]", "[1,2]", "0"), 4, DQ_DAMAGED, "attention_factor"},
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
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        dq_rope rope;
        dq_err err = {0};
        json_t *config = given_document(t[i].config);
        dq_model_rope_read(&rope, DQ_ROPE_HALVES, t[i].dim, config, 2048, given_arena(), &err);
        check_error(&err, t[i].status, t[i].text);
        json_decref(config);
    }
}
