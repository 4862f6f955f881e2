/* test_quantize_rules: the last rule that matches decides, what matches nothing is named, and a recipe that is read
 * is the recipe that was printed.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "quantize/quantize.h"

#include <stdlib.h>
#include <string.h>

enum { Q, DOWN, EMBED, NORM, TENSORS };

/* What the roles of four tensors give. */
static void begin(dq_quantize_choice c[TENSORS])
{
    const dq_quantize_choice of = {
        .packable = true, .projection = true, .bits = 4, .group = 128, .mode = DQ_SEARCH};
    for (int i = 0; i < TENSORS; i++) c[i] = of;
    c[Q].name = "model.layers.0.self_attn.q_proj.weight";
    c[DOWN].name = "model.layers.1.mlp.down_proj.weight";
    c[EMBED].name = "model.embed_tokens.weight";
    c[NORM].name = "model.norm.weight";
    c[EMBED].bits = c[NORM].bits = 16;
    c[EMBED].projection = c[NORM].projection = c[NORM].packable = false;
}

static dq_status apply(dq_quantize_choice c[TENSORS], const char *rules, const char *skip,
                       dq_err *err)
{
    json_t *json = given_document(rules);
    *err = (dq_err){0};
    begin(c);
    const dq_quantize_settings s = {
        .bits = 4, .group = 128, .mode = DQ_SEARCH, .skip = skip, .rules = json};
    dq_quantize_rules_apply(&s, NULL, c, TENSORS, err);
    json_decref(json);
    return err->code;
}

static void applies(dq_quantize_choice c[TENSORS], const char *rules, const char *skip)
{
    dq_err err;
    if (apply(c, rules, skip, &err) != DQ_OK) fail_msg("%s: %s", rules, err.text);
}

static void refused(dq_status want, const char *rules, const char *says)
{
    dq_quantize_choice c[TENSORS];
    dq_err err;
    if (apply(c, rules, NULL, &err) != want || !strstr(err.text, says))
        fail_msg("%s: expected %d \"%s\", found %d \"%s\"", rules, (int)want, says, (int)err.code,
                 err.text);
}

static void is(const dq_quantize_choice *c, int bits, int64_t group, dq_scale_mode mode)
{
    assert_int_equal(c->bits, bits);
    assert_int_equal(c->group, group);
    assert_int_equal(c->mode, mode);
}

TEST(the_last_match_wins)
{
    dq_quantize_choice c[TENSORS];
    applies(c, "[]", NULL);
    is(&c[Q], 4, 128, DQ_SEARCH);
    applies(c,
            "[{\"match\":\"proj\",\"bits\":6,\"group\":\"row\",\"scale\":\"asym\"},"
            "{\"match\":\"layers\\\\.1\",\"bits\":3,\"group\":64},"
            "{\"name\":\"model.embed_tokens.weight\",\"bits\":8,\"comment\":\"x\"}]",
            NULL);
    is(&c[Q], 6, DQ_GROUP_ROW, DQ_ASYM);
    is(&c[DOWN], 3, 64, DQ_SEARCH); /* a rule says everything: nothing is left of an earlier one */
    is(&c[EMBED], 8, 128, DQ_SEARCH);
    is(&c[NORM], 16, 128, DQ_SEARCH);
    applies(c, "[{\"match\":\"layers\",\"bits\":3},{\"match\":\"proj\",\"bits\":16}]", NULL);
    assert_int_equal(c[Q].bits, 16);
    assert_int_equal(c[DOWN].bits, 16);
    assert_false(c[Q].skipped);
    /* a name is no pattern */
    refused(DQ_USAGE, "[{\"name\":\"model.norm.weigh.\",\"bits\":4}]", "matches no tensor");
}

TEST(what_is_skipped_stays)
{
    dq_quantize_choice c[TENSORS];
    dq_err err;
    applies(c, "[{\"match\":\"embed|q_proj\",\"bits\":8}]", "embed|down|norm");
    assert_int_equal(c[EMBED].bits, 16);
    assert_int_equal(c[DOWN].bits, 16);
    assert_int_equal(c[Q].bits, 8);
    assert_true(c[EMBED].skipped && c[DOWN].skipped);
    assert_false(c[Q].skipped || c[NORM].skipped); /* nobody wanted to pack a norm */
    assert_int_equal(apply(c, "[]", "no_such", &err), DQ_USAGE);
    assert_non_null(strstr(err.text, "skip \"no_such\" matches no tensor"));
}

TEST(what_is_wrong_is_named)
{
    refused(DQ_USAGE, "[{\"match\":\"down_prj\",\"bits\":4}]",
            "rule \"down_prj\" matches no tensor. Closest names: "
            "model.layers.1.mlp.down_proj.weight");
    refused(DQ_USAGE, "[{\"match\":\"norm\",\"bits\":4}]",
            "only tensors that are never packed, as model.norm.weight");
    refused(DQ_USAGE, "[{\"match\":\"q(\",\"bits\":4}]", "rule \"q(\": missing closing");
    refused(DQ_USAGE, "[{\"match\":\"^(([a-z._0-9]+)+)+[!?]\",\"bits\":4}]",
            "gives up on model.layers.0.self_attn.q_proj.weight");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4},{\"match\":\"q\",\"bits\":9}]",
            "rule 2: key \"bits\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\"}]", "rule 1: key \"bits\" is missing");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4,\"group\":0}]", "key \"group\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4,\"group\":\"12x\"}]", "key \"group\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4,\"group\":null}]", "key \"group\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4,\"scale\":\"max\"}]", "key \"scale\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"bits\":4,\"widht\":1}]", "unknown key \"widht\"");
    refused(DQ_DAMAGED, "[{\"match\":\"q\",\"name\":\"q\",\"bits\":4}]", "either \"match\"");
    refused(DQ_DAMAGED, "[{\"bits\":4}]", "either \"match\"");
    refused(DQ_DAMAGED, "[4]", "rule 1: not an object");
    refused(DQ_DAMAGED, "{}", "not an array of rules");
}

/* ---- Recipes ---- */

static dq_status read_recipe(dq_quantize_settings *s, json_t **file, const char *text, dq_err *err)
{
    *err = (dq_err){0};
    *file = given_document(text);
    return dq_quantize_recipe_read(s, *file, err);
}

static void recipe_refused(dq_status want, const char *text, const char *says)
{
    dq_quantize_settings s = {.bits = 4};
    dq_err err;
    json_t *file;
    if (read_recipe(&s, &file, text, &err) != want || !strstr(err.text, says))
        fail_msg("%s: expected %d \"%s\", found %d \"%s\"", text, (int)want, says, (int)err.code,
                 err.text);
    json_decref(file);
}

TEST(wrong_recipes_are_named)
{
    recipe_refused(DQ_DAMAGED, "[]", "not a JSON object");
    recipe_refused(DQ_DAMAGED, "{\"bits\":4}", "schema");
    recipe_refused(DQ_MISMATCH, "{\"schema\":\"dq-recipe/9\"}", "dq-recipe/9");
    recipe_refused(DQ_DAMAGED, "{\"schema\":\"dq-recipe/1\",\"bit\":4}", "unknown key \"bit\"");
    recipe_refused(DQ_DAMAGED, "{\"schema\":\"dq-recipe/1\",\"kv\":{\"bits\":4}}",
                   "\"kv\": unknown key \"bits\"");
    static const char *const values[] = {
        "\"bits\":1",   "\"bits\":\"4\"", "\"embed_bits\":9",      "\"head_bits\":4.5",
        "\"group\":-1", "\"scale\":4",    "\"scale_dtype\":\"x\"", "\"dense_type\":\"f32\"",
        "\"skip\":4",   "\"plan\":[]"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[100], key[32] = "key ";
        snprintf(text, sizeof text, "{\"schema\":\"dq-recipe/1\",%s}", values[i]);
        strncat(key, values[i], strcspn(values[i], ":"));
        recipe_refused(DQ_DAMAGED, text, key);
    }
}

/* Printed, read and printed again it is the same; a file keeps what it does not name. */
TEST(recipes_come_back)
{
    static const char text[] =
        "{\"schema\":\"dq-recipe/1\",\"bits\":3,\"group\":\"row\",\"scale\":\"asym\","
        "\"scale_dtype\":\"f32\",\"skip\":\"o_proj\",\"embed_bits\":6,\"head_bits\":8,"
        "\"dense_type\":\"bf16\",\"rules\":[{\"match\":\"down\",\"bits\":5,\"group\":64}],"
        "\"kv\":{\"k_bits\":null,\"v_bits\":null,\"quant\":\"per-channel\",\"widths\":\"3|5+3:3|"
        "6\","
        "\"group\":32,\"rotate\":\"auto\",\"sink\":4,\"recent\":16,\"policy\":\"h2o\",\"keep\":0."
        "25,"
        "\"tokens\":null,\"budget\":\"uniform\",\"every\":0,\"window\":-1,\"seed\":1},"
        "\"plan\":{\"budget\":[1,{\"kld\":0.01}]},\"comment\":\"by hand\"}";
    dq_quantize_settings s = {.bits = 4, .logit = {.bits = 16}, .kv = dq_kv_config_plain};
    dq_err err;
    json_t *file, *recipe = NULL, *again = NULL;
    char *stored = NULL;
    if (read_recipe(&s, &file, text, &err) != DQ_OK) fail_msg("%s", err.text);
    assert_int_equal(s.bits, 3);
    assert_int_equal(s.group, DQ_GROUP_ROW);
    assert_int_equal(s.mode, DQ_ASYM);
    assert_int_equal(s.scale_dtype, DQ_F32);
    assert_string_equal(s.skip, "o_proj");
    assert_int_equal(s.embed_bits, 6);
    assert_int_equal(s.head_bits, 8);
    assert_int_equal(s.dense_type, DQ_DENSE_BF16);
    assert_string_equal(s.kv.widths, "3|5+3:3|6");
    assert_int_equal(s.kv.recent, 16);
    assert_int_equal(dq_quantize_recipe_of(&recipe, &s, &err), DQ_OK);
    assert_int_equal(dq_json_dump(&stored, recipe, JSON_SORT_KEYS, &err), DQ_OK);
    assert_int_equal(dq_quantize_recipe_file(&again, stored, &err), DQ_OK);
    assert_true(json_equal(again, file));
    free(stored);
    json_decref(again);
    json_decref(recipe);
    json_decref(file);
    s = (dq_quantize_settings){.bits = 7, .group = 32, .embed_bits = 5};
    assert_int_equal(read_recipe(&s, &file, "{\"schema\":\"dq-recipe/1\",\"skip\":null}", &err),
                     DQ_OK);
    assert_true(s.bits == 7 && s.group == 32 && s.embed_bits == 5 && !s.skip && !s.rules);
    json_decref(file);
}

/* What was not a setting once is not stored where nothing is asked: such files keep their bytes. */
TEST(plain_settings_keep_their_recipe)
{
    const dq_quantize_settings s = {.bits = 4,
                                    .group = 128,
                                    .scale_dtype = DQ_F16,
                                    .logit = {.bits = 16},
                                    .kv = dq_kv_config_plain};
    dq_err err = {0};
    json_t *recipe = NULL;
    char *text = NULL;
    assert_int_equal(dq_quantize_recipe_of(&recipe, &s, &err), DQ_OK);
    assert_int_equal(dq_json_dump(&text, recipe, JSON_SORT_KEYS, &err), DQ_OK);
    assert_string_equal(
        text, "{\"bits\": 4, \"group\": \"128\", \"logit_bits\": 16, \"logit_granularity\": "
              "\"per-tensor\", \"scale\": \"absmax\", \"scale_dtype\": \"f16\", \"skip\": null}");
    free(text);
    json_decref(recipe);
}
