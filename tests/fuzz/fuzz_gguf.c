/* fuzz_gguf: any bytes as a GGUF file; what is accepted must be readable to its last byte.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every item of every list, and the tokenizer and the configuration that the keys are. */
static void read_lists(const dq_gguf *g, dq_arena *a)
{
    volatile double sink = 0;
    dq_gguf_span *text;
    dq_strbuf tokenizer, config, generation;
    json_t *model;
    int64_t heads, kv_heads;
    dq_err err = {0};
    if (dq_gguf_config_kind(g->fields, &err) == DQ_OK &&
        dq_gguf_config(&model, &heads, &kv_heads, g, &err) == DQ_OK)
        json_decref(model);
    err = (dq_err){0};
    for (size_t i = 0; i < g->n_lists; i++) {
        const dq_gguf_list *l = &g->list[i];
        if (l->texts && dq_gguf_list_texts(&text, l, a, &err) != DQ_OK) return;
        for (size_t k = 0; k < l->n; k++)
            sink += l->texts ? (double)text[k].len : dq_gguf_list_number(l, k);
    }
    dq_gguf_config_tokenizer(&tokenizer, &config, &generation, g, &err);
    dq_block_free(tokenizer.s);
    dq_block_free(config.s);
    dq_block_free(generation.s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dq_err err = {0};
    dq_gguf g;
    dq_arena *a = dq_arena_new();
    if (!a) return 0;
    if (dq_gguf_parse(&g, data, size, a, &err) == DQ_OK) {
        volatile uint8_t sink = 0;
        for (int64_t i = 0; i < g.n_tensors; i++) {
            const dq_gguf_tensor *t = &g.tensor[i];
            if (t->bytes > size || t->data < data || t->data + t->bytes > data + size) abort();
            for (size_t j = 0; j < t->bytes; j++) sink = (uint8_t)(sink ^ t->data[j]);
        }
        read_lists(&g, a);
        json_decref(g.fields);
    } else if (err.text[0] == 0) {
        abort(); /* every refusal explains itself */
    }
    dq_arena_free(a);
    return 0;
}
