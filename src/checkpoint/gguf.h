/* gguf: one GGUF file in memory: its metadata as a JSON object, and its tensors.
 * Source: ggml-org/ggml docs/gguf.md (format, versions 2 and 3, little-endian).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_H
#define DQ_GGUF_H

#include "base/base.h"
#include "base/json.h"
#include "base/text.h"
#include "tensor/tensor.h"

enum { DQ_GGUF_DIMS = 4 };

/* Row-major as in the rest of dq: the last dimension is contiguous, the reverse of the file's order. */
typedef struct dq_gguf_tensor {
    const char *name;
    uint32_t type; /* ggml_type */
    int n_dims;
    int64_t shape[DQ_GGUF_DIMS];
    const uint8_t *data;
    size_t bytes;
} dq_gguf_tensor;

typedef struct dq_gguf_list {
    const char *key;
    bool texts;           /* it holds texts, else numbers */
    uint32_t type;        /* of the items; of gguf.c */
    size_t n;             /* items */
    const uint8_t *first; /* of them */
    const char *fault;    /* "not finite", "not UTF-8": what an item is; NULL: every item is fine */
} dq_gguf_list;

/* Bytes of a list of texts, in the file; UTF-8, NUL allowed. */
typedef struct dq_gguf_span {
    const char *s;
    size_t len;
} dq_gguf_span;

typedef struct dq_gguf {
    /* Every key with its value; of the caller, who ends it with json_decref. A list is empty here: its items are in `list`,
     * as the vocabularies of models would make a million values. */
    json_t *fields;
    dq_gguf_list *list; /* [n_lists], as the file has them */
    size_t n_lists, lists_cap;
    dq_gguf_tensor *tensor; /* [n_tensors], by name */
    int64_t n_tensors;
    size_t header_bytes; /* before the data of tensors */
} dq_gguf;

/* The part that is fuzzed. Checks version, lengths, types, duplicate keys and names, ranges inside the file, alignment,
 * overlap. A value that no reader can take (not finite, not UTF-8) fails where its key is read, and nowhere else. Names and tables live in the arena, data points into `bytes`. A type of tensors that dq does not read is
 * DQ_MISMATCH by name; big-endian files and version 1 too. On failure g->fields is NULL. */
dq_status dq_gguf_parse(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a, dq_err *err);
/* The metadata alone: no tensor is looked at, and the file may end after its keys. */
dq_status dq_gguf_parse_fields(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a,
                               dq_err *err);
const dq_gguf_tensor *dq_gguf_find(const dq_gguf *g, const char *name); /* NULL: absent */
/* The items of a list of texts, [l->n]; in the arena. */
dq_status dq_gguf_list_texts(dq_gguf_span **out, const dq_gguf_list *l, dq_arena *a, dq_err *err);
double dq_gguf_list_number(const dq_gguf_list *l, size_t i);

/* ---- GGUF config ----
 * The metadata of a GGUF file as the files of a Hugging Face folder. For gguf.c. */

/* DQ_MISMATCH by name: the keys are not those of a language model, or of another architecture than `llama`. */
dq_status dq_gguf_config_kind(const json_t *fields, dq_err *err);
/* What config.json of a Llama would say; the caller ends it with json_decref. DQ_MISMATCH by name: a key whose value changes the
 * model in a way dq does not run. `heads`, `kv_heads`: for whoever brings rows back into order. */
dq_status dq_gguf_config(json_t **out, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                         dq_err *err);
/* What tokenizer.json, tokenizer_config.json and generation_config.json would say, blocks that the caller ends with
 * dq_block_free; all empty: the file has no tokenizer, the last alone: no token ends a text. Those that do are all for which
 * libllama's llama_vocab_is_eog is true. DQ_MISMATCH by name: a model or a pre-tokenizer that is not known. */
dq_status dq_gguf_config_tokenizer(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                                   const dq_gguf *g, dq_err *err);

/* ---- GGUF model ----
 * A GGUF file, or the parts of a split one, as what a Hugging Face folder would hold:
 * configuration, tokenizer and tensors under the names of transformers. Values are those that the
 * package gguf dequantizes, to the bit. Types whose values are code times scale (Q8_0, Q4_0, Q5_0)
 * become codes of dq in groups of 32; others stay in their blocks. Rows of q and k come back from
 * llama.cpp's order of rotary pairs. */

/* Owns mappings, names and texts. */
typedef struct dq_gguf_model dq_gguf_model;

/* The texts of the tokenizer alone: of any architecture, with or without tensors, by the first part of a split file. */
dq_status dq_gguf_model_open_tokenizer(dq_gguf_model **out, const char *path, dq_err *err);
void dq_gguf_model_close(dq_gguf_model *m); /* NULL allowed */
/* "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", which belong to the model; NULL: no such
 * file. All but the first are made when one of them is asked for first, by one thread: DQ_MISMATCH by name for one that is not known. */
dq_status dq_gguf_model_text(dq_gguf_model *m, const char *name, const char **out, size_t *len,
                             dq_err *err);

/* ---- GGUF names ----
 * Names of tensors in GGUF files of Llamas and in checkpoints of transformers, and how rows of q
 * and k stand in either. */

/* The other way. */
const char *dq_gguf_name_of(bool *pairs, const char *hf, dq_arena *a, dq_err *err);

static inline int64_t dq_gguf_name_hf_row(int64_t stored, int64_t size)
{
    const int64_t half = size / 2, head = stored / size, i = stored % size;
    return head * size + i % 2 * half + i / 2;
}

/* ---- GGUF write ----
 * The head of a GGUF file: metadata and the list of tensors. Version 3, little-endian, alignment
 * 32. Source: ggml-org/ggml docs/gguf.md. */

enum { DQ_GGUF_ALIGNMENT = 32 };

/* {0} is empty; `bytes.s` is a block, ended by dq_block_free. The first failure is kept. */
typedef struct dq_gguf_fields {
    dq_strbuf bytes;
    uint64_t n;
    dq_err err;
} dq_gguf_fields;

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x);
void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x);
void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len);
/* Bytes from one tensor's first to the next one's. */
static inline size_t dq_gguf_write_stride(size_t bytes)
{
    return (bytes + DQ_GGUF_ALIGNMENT - 1) / DQ_GGUF_ALIGNMENT * DQ_GGUF_ALIGNMENT;
}

/* What stands before the data of tensors, each of which is padded to dq_gguf_write_stride. */
dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err);

/* ---- GGUF tokenizer write ----
 * The tokenizer of a Hugging Face folder as the keys of a GGUF file, with which llama.cpp gives
 * the same ids; the other way of "GGUF config". Source: llama.cpp convert_hf_to_gguf.py
 * (get_vocab_base, _set_vocab_sentencepiece, SpecialVocab) and src/llama-vocab.cpp (what is made
 * of the keys). */

/* The texts of a folder; config.json is an object, the other ones but tokenizer.json may be NULL. chat: those of chat_template.jinja,
 * which stands before what tokenizer_config.json has; NULL: there is none. */
typedef struct dq_gguf_tokenizer_files {
    json_t *tokenizer, *tokenizer_config, *config, *generation_config, *special_tokens_map;
    const char *chat;
    size_t chat_len;
} dq_gguf_tokenizer_files;

/* Byte-level BPE with a pre-tokenizer that has a name becomes `gpt2`, BPE with byte fallback `llama`. n_tokens: rows of the
 * embedding, of which those without a token become unused ones. DQ_MISMATCH by name: what llama.cpp would split, normalize or
 * merge otherwise. Files are those of a tokenizer that dq_tokenizer_load reads: what it refuses is not looked for again. */
dq_status dq_gguf_tokenizer_write(dq_gguf_fields *f, const dq_gguf_tokenizer_files *files,
                                  int64_t n_tokens, dq_err *err);

#endif
