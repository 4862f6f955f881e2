/* gguf_pre: a table of names, and the two questions it answers: what a name stands for, and which name stands for what a
 * tokenizer.json says. Of the latter only what splits a text is compared, with defaults spelled out.
 *
 * Source: the patterns are those of the models' own tokenizer.json, as src/llama-vocab.cpp of llama.cpp names them.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_pre.h"

#include <string.h>

static const char qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const dq_gguf_pre known[] = {
    {.name = "gpt-2"},
    {.name = "smollm", .digits = true},
    {.name = "starcoder", .digits = true},
    {.name = "refact", .digits = true},
    {.name = "codeshell", .digits = true},
    {.name = "qwen2", .pattern = qwen2_pattern, .nfc = true},
    {.name = "llama-bpe", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
};
enum { N_KNOWN = sizeof known / sizeof *known };

dq_status dq_gguf_pre_find(const dq_gguf_pre **out, const json_t *f, dq_err *err)
{
    static const char *const none = "";
    const char *name;
    DQ_TRY(dq_gguf_text(&name, f, "tokenizer.ggml.pre", &none, err));
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        *out = &known[i];
        return DQ_OK;
    }
    if (!name[0])
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.pre\" is missing, so that the split of text into "
                       "words is not known. Convert "
                       "the model again with a converter of today.");
    return dq_fail(err, DQ_MISMATCH,
                   "key \"tokenizer.ggml.pre\": \"%s\" is not known (known are gpt-2, smollm, "
                   "starcoder, refact, codeshell, "
                   "qwen2, llama-bpe). Texts cannot be read with this file; ids can.",
                   name);
}

json_t *dq_gguf_pre_byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", (int)use_regex);
}

json_t *dq_gguf_pre_json(const dq_gguf_pre *p)
{
    json_t *first = NULL;
    if (p->digits)
        first = json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);
    else if (p->pattern)
        first = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                          p->pattern, "behavior", "Isolated", "invert", 0);
    json_t *list = json_array();
    if (first) json_array_append_new(list, first);
    json_array_append_new(list, dq_gguf_pre_byte_level(!p->pattern));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

/* ---- The other way ---- */

/* A flag of a step, spelled out. */
static bool flag(const json_t *step, const char *key, bool usual)
{
    const json_t *v = json_object_get(step, key);
    return json_is_boolean(v) ? json_is_true(v) : usual;
}

/* One step with what matters of it; as it is where it is of another type. */
static json_t *plain_step(json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    if (!type) return json_incref(step);
    if (strcmp(type, "ByteLevel") == 0)
        return json_pack("{s:s, s:b, s:b}", "type", type, "add_prefix_space",
                         (int)flag(step, "add_prefix_space", true), "use_regex",
                         (int)flag(step, "use_regex", true));
    if (strcmp(type, "Digits") == 0)
        return json_pack("{s:s, s:b}", "type", type, "individual_digits",
                         (int)flag(step, "individual_digits", false));
    if (strcmp(type, "Split") == 0)
        return json_pack("{s:s, s:O?, s:O?, s:b}", "type", type, "pattern",
                         json_object_get(step, "pattern"), "behavior",
                         json_object_get(step, "behavior"), "invert",
                         (int)flag(step, "invert", false));
    return json_incref(step);
}

/* Steps one after the other, sequences taken apart. */
static void add_steps(json_t *list, json_t *v, int depth)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *inner = json_object_get(v, "pretokenizers");
    if (json_is_null(v) || !v) return;
    if (depth < 8 && type && strcmp(type, "Sequence") == 0 && json_is_array(inner)) {
        for (size_t i = 0; i < json_array_size(inner); i++)
            add_steps(list, json_array_get(inner, i), depth + 1);
        return;
    }
    json_array_append_new(list, plain_step(v));
}

const dq_gguf_pre *dq_gguf_pre_of(json_t *pre_tokenizer)
{
    const dq_gguf_pre *found = NULL;
    json_t *want = json_array();
    add_steps(want, pre_tokenizer, 0);
    for (int i = 0; i < N_KNOWN && !found; i++) {
        json_t *whole = dq_gguf_pre_json(&known[i]), *steps = json_array();
        add_steps(steps, whole, 0);
        if (json_equal(steps, want)) found = &known[i];
        json_decref(steps);
        json_decref(whole);
    }
    json_decref(want);
    return found;
}
