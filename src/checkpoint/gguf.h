/* gguf: one GGUF file in memory: its metadata as a JSON object, and its tensors.
 * Source: ggml-org/ggml docs/gguf.md (format, versions 2 and 3, little-endian).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_H
#define DQ_GGUF_H

#include "base/json.h"
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

/* A list of metadata where it lies in the file. */
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
/* The tensors of n files, [*n_out], by name, in the arena. DQ_DAMAGED: one is there twice. */
dq_status dq_gguf_join(dq_gguf_tensor **out, int64_t *n_out, const dq_gguf *const *g, int n,
                       dq_arena *a, dq_err *err);
const dq_gguf_tensor *dq_gguf_find(const dq_gguf *g, const char *name); /* NULL: absent */
/* dq_json_text for a key of `fields`, whose texts need not be UTF-8: DQ_DAMAGED. */
dq_status dq_gguf_text(const char **out, const json_t *fields, const char *key,
                       const char *const *fallback, dq_err *err);
/* *out is NULL where there is no such key, or no list. DQ_DAMAGED: an item has a fault. */
dq_status dq_gguf_find_list(const dq_gguf_list **out, const dq_gguf *g, const char *key,
                            dq_err *err);
/* The items of a list of texts, [l->n]; in the arena. */
dq_status dq_gguf_list_texts(dq_gguf_span **out, const dq_gguf_list *l, dq_arena *a, dq_err *err);
/* Item i of a list of numbers. */
double dq_gguf_list_number(const dq_gguf_list *l, size_t i);
/* Name of a ggml_type, "Q4_K"; NULL: unknown. */
const char *dq_gguf_type_name(uint32_t type);

#endif
