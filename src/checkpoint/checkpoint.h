/* checkpoint: folders in the layout of Hugging Face (config.json, one or many *.safetensors, perhaps tokenizer.json) and
 * GGUF files, which look the same (gguf_model.h). Weights stay in the page cache; of a folder nothing is copied.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECKPOINT_H
#define DQ_CHECKPOINT_H

#include "base/json.h"
#include "checkpoint/source.h"

/* Owns every mapping, every name and the configuration. */
typedef struct dq_checkpoint dq_checkpoint;

/* `path` is a folder that holds config.json and either model.safetensors or model.safetensors.index.json, or a GGUF file. */
dq_status dq_checkpoint_open(dq_checkpoint **out, const char *path, dq_err *err);
/* Whether it is a file that begins as a GGUF file does. */
bool dq_checkpoint_is_gguf(const char *path);
/* Paths of the weight files that the index of a folder lists, sorted, in the arena; none where it has no index, or one that
 * cannot be read. */
dq_status dq_checkpoint_index_files(const char ***file, size_t *n, const char *dir, dq_arena *a,
                                    dq_err *err);
void dq_checkpoint_close(dq_checkpoint *c); /* NULL allowed */
const json_t *dq_checkpoint_config(const dq_checkpoint *c);
/* config.json byte for byte; of a GGUF file what it would say. */
const char *dq_checkpoint_config_text(const dq_checkpoint *c, size_t *len);
/* For people, of a GGUF file: "GGUF, 210 Q4_1, 61 F32, 1 Q8_0"; NULL: a folder. */
const char *dq_checkpoint_about(const dq_checkpoint *c);
/* tokenizer.json, tokenizer_config.json or generation_config.json, as a GGUF file has them: NULL where it has none, and of a folder. See
 * dq_gguf_model_text. */
dq_status dq_checkpoint_tokenizer_text(const dq_checkpoint *c, const char *name, const char **text,
                                       size_t *len, dq_err *err);
/* Lets the values of weights be read that lie anew, once; see dq_gguf_model_load. */
dq_status dq_checkpoint_load(dq_checkpoint *c, dq_err *err);
int64_t dq_checkpoint_count(const dq_checkpoint *c);
/* By position in name order (byte-wise), or by name; NULL when absent. Of a tensor in blocks of ggml, or whose rows lie
 * anew, `dtype` is that of its values and `data` the stored bytes, dq_checkpoint_stored_bytes of them: values come from
 * dq_checkpoint_weight. */
const dq_tensor *dq_checkpoint_at(const dq_checkpoint *c, int64_t i);
const dq_tensor *dq_checkpoint_find(const dq_checkpoint *c, const char *name);
/* Bytes of tensor i in its file, and what people call its type: "BF16", "Q4_K". */
size_t dq_checkpoint_stored_bytes(const dq_checkpoint *c, int64_t i);
const char *dq_checkpoint_type(const dq_checkpoint *c, int64_t i);
/* The tensor as a weight, as dq_source.find; and all of them as a source. */
bool dq_checkpoint_weight(const dq_checkpoint *c, const char *name, dq_weight *w);
dq_source dq_checkpoint_source(dq_checkpoint *c);
/* The weight files: base name and mapping, in name order; and how many bytes stand before the data of tensors. */
int dq_checkpoint_n_files(const dq_checkpoint *c);
const char *dq_checkpoint_file(const dq_checkpoint *c, int i, size_t *bytes, const uint8_t **data);
size_t dq_checkpoint_header_bytes(const dq_checkpoint *c, int i);
/* Gives all their pages back to the kernel. Reading one byte may map two megabytes around it, so resident
 * memory stays bounded only if this is called now and then. */
void dq_checkpoint_release(const dq_checkpoint *c);

#endif
