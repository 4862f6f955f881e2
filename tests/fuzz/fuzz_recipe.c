/* fuzz_recipe: any bytes as a recipe file, applied to four tensors. What is accepted has widths that exist, and comes
 * back from the text that a container would store.
 * SPDX-License-Identifier: MIT */
#include "quantize/quantize.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_choices(const dq_quantize_settings *s)
{
    dq_quantize_choice c[] = {
        {.name = "model.layers.0.self_attn.q_proj.weight", .packable = true, .projection = true},
        {.name = "model.layers.1.mlp.down_proj.weight", .packable = true, .projection = true},
        {.name = "model.embed_tokens.weight", .packable = true},
        {.name = "model.norm.weight"}};
    enum { N = sizeof c / sizeof *c };
    dq_err err = {0};
    for (int i = 0; i < N; i++) {
        c[i].bits = c[i].projection ? s->bits : 16;
        c[i].group = s->group;
        c[i].mode = s->mode;
    }
    if (dq_quantize_rules_apply(s, NULL, c, N, &err) != DQ_OK) {
        if (!err.text[0]) abort(); /* every refusal explains itself */
        return;
    }
    for (int i = 0; i < N; i++) {
        const bool coded = c[i].bits >= 2 && c[i].bits <= 8;
        if ((!coded && c[i].bits != 16) || (coded && !c[i].packable)) abort();
        if (c[i].group == 0 || c[i].group < DQ_GROUP_TENSOR || c[i].mode >= DQ_QUANT_MODES) abort();
    }
}

static void check_text(const dq_quantize_settings *s)
{
    dq_err err = {0};
    json_t *stored = NULL, *file = NULL, *again = NULL;
    dq_quantize_settings back = {.logit = s->logit, .kv = s->kv};
    char *text = NULL;
    if (dq_quantize_recipe_of(&stored, s, &err) != DQ_OK ||
        dq_json_dump(&text, stored, JSON_SORT_KEYS, &err) != DQ_OK ||
        dq_quantize_recipe_file(&file, text, &err) != DQ_OK ||
        dq_quantize_recipe_read(&back, file, &err) != DQ_OK ||
        dq_quantize_recipe_of(&again, &back, &err) != DQ_OK)
        abort();
    if (!json_equal(stored, again)) abort();
    free(text);
    json_decref(stored);
    json_decref(file);
    json_decref(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    json_t *file = NULL;
    dq_quantize_settings s = {.bits = 4,
                              .group = 128,
                              .scale_dtype = DQ_F16,
                              .logit = {.bits = 16},
                              .kv = dq_kv_config_plain};
    if (dq_json_parse(&file, (const char *)data, size, "recipe", &err) == DQ_OK &&
        dq_quantize_recipe_read(&s, file, &err) == DQ_OK) {
        check_choices(&s);
        check_text(&s);
    } else if (!err.text[0]) {
        abort();
    }
    json_decref(file);
    return 0;
}
