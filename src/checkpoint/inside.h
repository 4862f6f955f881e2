/* What the files of src/checkpoint share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECKPOINT_INSIDE_H
#define DQ_CHECKPOINT_INSIDE_H

#include "checkpoint/gguf.h"
#include "checkpoint/h5.h"
#include "checkpoint/h5_result.h"

#include <hdf5.h>

/* What reading and writing containers share of HDF5; private to checkpoint (tests/layers.sh). */

#define DQ_H5_FORMAT "dq-model"
enum {
    DQ_H5_IDS = 64,
    DQ_H5_ALIGN = 4096,
    DQ_H5_ENCODING = 12, /* width of the column `encoding` */
    DQ_H5_SHA = 64
};

/* Identifiers of any kind, closed in reverse order. */
typedef struct dq_h5 {
    hid_t id[DQ_H5_IDS];
    int n;
} dq_h5;

void dq_h5_begin(dq_h5 *h); /* sets up first */
/* A negative id is passed through. */
hid_t dq_h5_keep(dq_h5 *h, hid_t id);
/* Closes what was opened after `mark` identifiers; false when a close failed. */
bool dq_h5_drop(dq_h5 *h, int mark);

/* No lock, for read-only file systems; strong close. */
hid_t dq_h5_access(dq_h5 *h, bool writing);

/* DQ_FILE: the file cannot be opened; DQ_DAMAGED: it is not HDF5. */
dq_status dq_h5_open(hid_t *out, dq_h5 *h, const char *path, dq_err *err);

/* The caller keeps the new identifiers; negative: no such type. */
hid_t dq_h5_type(dq_dtype dtype);
enum { DQ_COL_NAME, DQ_COL_SIZE, DQ_COL_FILE_SHA, DQ_SOURCE_COLUMNS };
size_t dq_h5_source_columns(dq_h5_column col[DQ_SOURCE_COLUMNS], size_t len);
hid_t dq_h5_table_type(dq_h5 *h, const dq_h5_column *col, int n, size_t row_bytes);
const char *dq_object_list_table(dq_object_list *l, int64_t rows, const dq_h5_column *col, int n);
/* "f32", in buf. */
const char *dq_object_list_dtype(char buf[16], dq_dtype dtype);

typedef struct dq_container_h5 {
    dq_h5 h;
    hid_t file;
    int base; /* identifiers that stay open until dq_container_h5_close */
    const dq_os_map *map;
    const char *path; /* of the file, for messages */
    dq_err *err;
} dq_container_h5;

dq_status dq_container_h5_open(dq_container_h5 *r, const dq_os_map *map, const char *path,
                               dq_err *err);
void dq_container_h5_close(dq_container_h5 *r);

/* dq_json_text for a key of `fields`; DQ_DAMAGED where its text is not UTF-8. */
dq_status dq_gguf_text(const char **out, const json_t *fields, const char *key,
                       const char *const *fallback, dq_err *err);
/* *out is NULL where the key is absent or no list. DQ_DAMAGED: an item has a fault. */
dq_status dq_gguf_find_list(const dq_gguf_list **out, const dq_gguf *g, const char *key,
                            dq_err *err);
/* "Q4_K"; NULL: unknown. */
const char *dq_gguf_type_name(uint32_t type);

/* Longest SentencePiece piece, in bytes: the work on its splits grows with the square. */
enum { DQ_GGUF_PIECE_BYTES = 1024 };

/* The name in transformers; NULL without an error: the architecture has no such tensor. */
const char *dq_gguf_name_hf(dq_gguf_rows *rows, const dq_gguf_architecture *arch, const char *gguf,
                            dq_arena *a, dq_err *err);
/* Whether the tensor holds divisors of rotary frequencies, which are in the configuration. */
bool dq_gguf_divides(const dq_gguf_architecture *arch, const char *gguf);
/* Says if a matrix of this name has a bias by `config`; the file may lack it. */
bool dq_gguf_has_bias(const dq_gguf_architecture *arch, const json_t *config, const char *gguf);

typedef struct dq_gguf_entry {
    const char *name; /* as transformers has it */
    const dq_gguf_tensor *t;
    int64_t heads; /* rows are in the order of rotary pairs of so many heads; 0: as they are */
    dq_weight w;
    uint8_t *own; /* where it is laid out anew; NULL: it stays */
    dq_err err;
} dq_gguf_entry;

typedef struct dq_gguf_file {
    const char *name;
    dq_os_map map;
    dq_gguf g;
} dq_gguf_file;

enum { DQ_GGUF_MODEL_TEXTS = 4 };

struct dq_gguf_model {
    dq_arena *arena;    /* owns this struct too */
    dq_gguf_file *file; /* [n_open] */
    int n_open;         /* open, of n_files */
    int64_t n_files;
    dq_gguf all; /* the first file's keys, which are the model's, and the tensors of every file */
    const dq_gguf_architecture *arch;
    json_t *config;
    /* the texts of the tokenizer are made on first use */
    dq_strbuf text[DQ_GGUF_MODEL_TEXTS];
    bool tokenizer_made;
    dq_gguf_entry *entry; /* [n_entries], by name */
    int64_t n_entries;
    const char *about;
    dq_os_block own;
    size_t own_bytes;
    bool loaded;
};

/* A whole file, or the first of a split one. DQ_MISMATCH: another architecture or type. */
dq_status dq_gguf_model_open(dq_gguf_model **out, const char *path, dq_err *err);
/* Repacks codes and permutes rows of q and k, once. DQ_DAMAGED: a scale is not finite; DQ_RESOURCE:
 * memory. */
dq_status dq_gguf_model_load(dq_gguf_model *m, dq_err *err);
typedef struct dq_gguf_pre {
    const char *name;    /* tokenizer.ggml.pre */
    bool digits;         /* each digit on its own, then GPT-2's pattern */
    const char *pattern; /* NULL: GPT-2's */
    bool nfc;            /* text is brought to that form first */
    bool ignore_merges;  /* a word that is a token is one */
    bool add_bos;        /* where the file does not say */
} dq_gguf_pre;

/* The first that splits as this pre_tokenizer of tokenizer.json, one that has the rest alike before
 * others; NULL: none known. */
const dq_gguf_pre *dq_gguf_pre_of(json_t *pre_tokenizer, bool nfc, bool ignore_merges);

enum {
    DQ_GGUF_NORMAL = 1,
    DQ_GGUF_UNKNOWN,
    DQ_GGUF_CONTROL,
    DQ_GGUF_USER_DEFINED,
    DQ_GGUF_UNUSED,
    DQ_GGUF_BYTE
};

/* Whether the token ends a text in libllama.
 * Source: llama.cpp src/llama-vocab.cpp (special_eog_ids). */
bool dq_gguf_vocab_ends(const char *text, size_t len);

#endif
