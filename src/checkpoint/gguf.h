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

/* Row-major: the last dimension is contiguous, the reverse of the file's order. */
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

typedef struct dq_gguf_span {
    const char *s;
    size_t len;
} dq_gguf_span;

typedef struct dq_gguf {
    /* Every key with its value; the caller ends it with json_decref. A list is empty here and its
     * items are in `list`: a vocabulary would make a million JSON values. */
    json_t *fields;
    dq_gguf_list *list; /* [n_lists], as the file has them */
    size_t n_lists, lists_cap;
    dq_gguf_tensor *tensor; /* [n_tensors], by name */
    int64_t n_tensors;
    size_t header_bytes; /* before the data of tensors */
} dq_gguf;

/* Parses a GGUF file in memory; fuzzed. Checks version, lengths, types, duplicates, ranges,
 * alignment and overlap. An unusable value (not finite, not UTF-8) fails only where its key is
 * read. Names and tables live in the arena, data points into `bytes`. DQ_MISMATCH: an unsupported
 * tensor type (by name), a big-endian file or version 1. On failure g->fields is NULL. */
dq_status dq_gguf_parse(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a, dq_err *err);
/* The metadata alone: tensors are not read, and the file may end after its keys. */
dq_status dq_gguf_parse_fields(dq_gguf *g, const uint8_t *bytes, size_t len, dq_arena *a,
                               dq_err *err);
const dq_gguf_tensor *dq_gguf_find(const dq_gguf *g, const char *name); /* NULL: absent */
dq_status dq_gguf_list_texts(dq_gguf_span **out, const dq_gguf_list *l, dq_arena *a, dq_err *err);
double dq_gguf_list_number(const dq_gguf_list *l, size_t i);

/* What GGUF and transformers say otherwise of an architecture: a row of gguf_architecture.c. */
typedef struct dq_gguf_architecture dq_gguf_architecture;
/* By general.architecture; NULL: dq reads no such file. */
const dq_gguf_architecture *dq_gguf_architecture_find(const char *name);
/* By model_type; NULL: dq writes no such file. */
const dq_gguf_architecture *dq_gguf_architecture_writes(const char *model_type);
const char *dq_gguf_architecture_name(const dq_gguf_architecture *arch);
/* Whether llama.cpp reads divisors of rotary frequencies (rope_freqs.weight) for it. */
bool dq_gguf_architecture_divides(const dq_gguf_architecture *arch);
/* DQ_MISMATCH by name: no language model, or an architecture that has no such row. */
dq_status dq_gguf_config_kind(const json_t *fields, dq_err *err);
/* The equivalent config.json; the caller ends it with json_decref. DQ_MISMATCH by name:
 * a key changes the model in a way that dq does not run. `heads` and `kv_heads` serve to permute
 * rows back. */
dq_status dq_gguf_config(json_t **out, int64_t *heads, int64_t *kv_heads, const dq_gguf *g,
                         dq_err *err);
/* The equivalents of tokenizer.json, tokenizer_config.json and generation_config.json, blocks that
 * the caller ends with dq_block_free. All empty: the file has no tokenizer; the last one empty: no
 * token ends a text. Tokens that end one are those of libllama's llama_vocab_is_eog. DQ_MISMATCH by
 * name: an unknown model or pre-tokenizer. */
dq_status dq_gguf_config_tokenizer(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                                   const dq_gguf *g, dq_err *err);

/* A GGUF file, or the parts of a split one, as a Hugging Face folder: configuration, tokenizer, and
 * tensors under the names of transformers. Values equal those of the package gguf to the bit. Types
 * with values code times scale (Q8_0, Q4_0, Q5_0) become codes of dq in groups of 32; others stay
 * in their blocks. Rows of q and k are permuted back from llama.cpp's order, and 1 is taken off the
 * norms of gemma3, in f32. */

/* Owns mappings, names and texts. */
typedef struct dq_gguf_model dq_gguf_model;

/* The tokenizer alone, of any architecture, from the first part of a split file. */
dq_status dq_gguf_model_open_tokenizer(dq_gguf_model **out, const char *path, dq_err *err);
void dq_gguf_model_close(dq_gguf_model *m); /* NULL allowed */
/* "config.json", "tokenizer.json", "tokenizer_config.json" or "generation_config.json", owned by
 * the model; NULL: no such file. All but the first are made on first use, by one thread;
 * DQ_MISMATCH by name: unknown. */
dq_status dq_gguf_model_text(dq_gguf_model *m, const char *name, const char **out, size_t *len,
                             dq_err *err);

/* How a GGUF file stores a tensor. */
typedef enum {
    DQ_GGUF_ROWS_PLAIN, /* as transformers does */
    DQ_GGUF_ROWS_Q,     /* rows of heads in the order of rotary pairs */
    DQ_GGUF_ROWS_K,     /* the same, of KV heads */
    DQ_GGUF_ROWS_NORM,  /* with 1 added */
} dq_gguf_rows;
/* The name in GGUF of a tensor of transformers; NULL without an error: there is none. */
const char *dq_gguf_name_of(dq_gguf_rows *rows, const dq_gguf_architecture *arch, const char *hf,
                            dq_arena *a, dq_err *err);

static inline int64_t dq_gguf_name_hf_row(int64_t stored, int64_t size)
{
    const int64_t half = size / 2, head = stored / size, i = stored % size;
    return head * size + i % 2 * half + i / 2;
}

/* The head of a GGUF file: version 3, little-endian, alignment 32.
 * Source: ggml-org/ggml docs/gguf.md. */

enum { DQ_GGUF_ALIGNMENT = 32 };

/* {0} is empty; end `bytes.s` with dq_block_free. The first failure is kept. */
typedef struct dq_gguf_fields {
    dq_strbuf bytes;
    uint64_t n;
    dq_err err;
} dq_gguf_fields;

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x);
void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x);
void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len);
static inline size_t dq_gguf_write_stride(size_t bytes)
{
    return (bytes + DQ_GGUF_ALIGNMENT - 1) / DQ_GGUF_ALIGNMENT * DQ_GGUF_ALIGNMENT;
}

/* Writes what precedes the data; each tensor is padded to dq_gguf_write_stride. */
dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err);

/* Writes a Hugging Face tokenizer as keys with which llama.cpp gives the same ids.
 * Source: llama.cpp convert_hf_to_gguf.py (get_vocab_base, _set_vocab_sentencepiece, SpecialVocab)
 * and src/llama-vocab.cpp (what is made of the keys). */

/* The texts of a folder; all but tokenizer.json and config.json may be NULL. `chat`:
 * chat_template.jinja, which precedes the template in tokenizer_config.json. */
typedef struct dq_gguf_tokenizer_files {
    json_t *tokenizer, *tokenizer_config, *config, *generation_config, *special_tokens_map;
    const char *chat;
    size_t chat_len;
} dq_gguf_tokenizer_files;

/* Byte-level BPE with a known pre-tokenizer becomes `gpt2`, BPE with byte fallback `llama`.
 * n_tokens: rows of the embedding; those without a token become unused ones. DQ_MISMATCH by name:
 * llama.cpp would split, normalize or merge otherwise. Files must be those of a tokenizer that
 * dq_tokenizer_load accepts. */
dq_status dq_gguf_tokenizer_write(dq_gguf_fields *f, const dq_gguf_tokenizer_files *files,
                                  int64_t n_tokens, dq_err *err);

#endif
