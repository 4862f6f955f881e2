/* gguf_model: a GGUF file, or the parts of a split one, as what a Hugging Face folder would hold: configuration, tokenizer
 * and tensors under the names of transformers. Values are those that the package gguf dequantizes, to the bit. Types whose
 * values are code times scale (Q8_0, Q4_0, Q5_0) become codes of dq in groups of 32; others stay in their blocks. Rows of q
 * and k come back from llama.cpp's order of rotary pairs.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_GGUF_MODEL_H
#define DQ_GGUF_MODEL_H

#include "checkpoint/gguf.h"

/* Owns mappings, names and texts. */
typedef struct dq_gguf_model dq_gguf_model;

/* `path` is a whole file, or the first part NAME-00001-of-0000N.gguf of a split one whose other parts lie beside it. Reads
 * headers only. DQ_MISMATCH by name: another architecture or type of tensors. */
dq_status dq_gguf_model_open(dq_gguf_model **out, const char *path, dq_err *err);
/* The texts of the tokenizer alone: of any architecture, with or without tensors, by the first part of a split file. */
dq_status dq_gguf_model_open_tokenizer(dq_gguf_model **out, const char *path, dq_err *err);
void dq_gguf_model_close(dq_gguf_model *m); /* NULL allowed */
const json_t *dq_gguf_model_config(const dq_gguf_model *m);
/* "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", which belong to the model; NULL: no such
 * file. All but the first are made when one of them is asked for first, by one thread: DQ_MISMATCH by name for one that is not known. */
dq_status dq_gguf_model_text(dq_gguf_model *m, const char *name, const char **out, size_t *len,
                             dq_err *err);
/* For people: "GGUF, 210 Q4_1, 1 Q8_0, 61 F32". */
const char *dq_gguf_model_about(const dq_gguf_model *m);
/* Makes what lies anew: codes, and rows of q and k. Once; until then such weights have shapes, but no values to read. A
 * scale that is not finite is DQ_DAMAGED by name; DQ_RESOURCE where memory is too short. */
dq_status dq_gguf_model_load(dq_gguf_model *m, dq_err *err);
/* Tensors in the order of the names of transformers: the stored one, its name there and, in *w, the weight. */
int64_t dq_gguf_model_count(const dq_gguf_model *m);
const dq_gguf_tensor *dq_gguf_model_at(const dq_gguf_model *m, int64_t i, dq_weight *w);
/* The files: base name, mapping, and where the data of tensors begin. */
int dq_gguf_model_n_files(const dq_gguf_model *m);
const char *dq_gguf_model_file(const dq_gguf_model *m, int i, size_t *bytes, const uint8_t **data,
                               size_t *header);

#endif
