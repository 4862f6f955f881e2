/* gguf_names: one table, read in both directions.
 *
 * Source: llama.cpp gguf-py/gguf/tensor_mapping.py (names); convert_hf_to_gguf.py, LlamaModel.permute (which rows).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_names.h"

#include <string.h>

typedef struct name_row {
    const char *gguf, *hf; /* after "blk.N." and "model.layers.N." */
    bool pairs;            /* rows are in the order of rotary pairs */
} name_row;

static const name_row outer_names[] = {{"token_embd.weight", "model.embed_tokens.weight", false},
                                       {"output_norm.weight", "model.norm.weight", false},
                                       {"output.weight", "lm_head.weight", false}};
static const name_row layer_names[] = {
    {"attn_norm.weight", "input_layernorm.weight", false},
    {"attn_q.weight", "self_attn.q_proj.weight", true},
    {"attn_k.weight", "self_attn.k_proj.weight", true},
    {"attn_v.weight", "self_attn.v_proj.weight", false},
    {"attn_output.weight", "self_attn.o_proj.weight", false},
    {"attn_q.bias", "self_attn.q_proj.bias", true},
    {"attn_k.bias", "self_attn.k_proj.bias", true},
    {"attn_v.bias", "self_attn.v_proj.bias", false},
    {"attn_output.bias", "self_attn.o_proj.bias", false},
    {"ffn_norm.weight", "post_attention_layernorm.weight", false},
    {"ffn_gate.weight", "mlp.gate_proj.weight", false},
    {"ffn_up.weight", "mlp.up_proj.weight", false},
    {"ffn_down.weight", "mlp.down_proj.weight", false},
    {"ffn_gate.bias", "mlp.gate_proj.bias", false},
    {"ffn_up.bias", "mlp.up_proj.bias", false},
    {"ffn_down.bias", "mlp.down_proj.bias", false},
};
enum { N_OUTER = sizeof outer_names / sizeof *outer_names };
enum { N_LAYER = sizeof layer_names / sizeof *layer_names };
static const char gguf_layer[] = "blk.", hf_layer[] = "model.layers.";

/* The row whose name in one of the two columns it is; NULL: none. */
static const name_row *row_of(const name_row *rows, size_t n, const char *name, bool by_hf)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(by_hf ? rows[i].hf : rows[i].gguf, name) == 0) return &rows[i];
    }
    return NULL;
}

/* The same name in the other column; NULL without an error: it has none. */
static const char *other(bool *pairs, const char *name, bool by_hf, dq_arena *a, dq_err *err)
{
    const char *from = by_hf ? hf_layer : gguf_layer, *to = by_hf ? gguf_layer : hf_layer;
    const size_t k = strlen(from);
    const name_row *row = row_of(outer_names, N_OUTER, name, by_hf);
    *pairs = false;
    if (row) return by_hf ? row->gguf : row->hf;
    if (strncmp(name, from, k) != 0) return NULL;
    const size_t digits = strspn(name + k, "0123456789");
    if (digits == 0 || name[k + digits] != '.') return NULL;
    row = row_of(layer_names, N_LAYER, name + k + digits + 1, by_hf);
    if (!row) return NULL;
    *pairs = row->pairs;
    return dq_textf(a, err, "%s%.*s.%s", to, (int)digits, name + k, by_hf ? row->gguf : row->hf);
}

const char *dq_gguf_name_hf(bool *pairs, const char *gguf, dq_arena *a, dq_err *err)
{
    return other(pairs, gguf, false, a, err);
}

const char *dq_gguf_name_of(bool *pairs, const char *hf, dq_arena *a, dq_err *err)
{
    return other(pairs, hf, true, a, err);
}
