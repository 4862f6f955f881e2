/* checkpoint: folders in the layout of Hugging Face: config.json, one or many *.safetensors, perhaps
 * tokenizer.json. Weights stay in the page cache; nothing is copied.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CHECKPOINT_H
#define DQ_CHECKPOINT_H

#include "base/json.h"
#include "checkpoint/source.h"

/* Owns every mapping, every name and the configuration. */
typedef struct dq_checkpoint dq_checkpoint;

/* `dir` holds config.json and either model.safetensors or model.safetensors.index.json. */
dq_status dq_checkpoint_open(dq_checkpoint **out, const char *dir, dq_err *err);
/* Paths of the weight files that the index of a folder lists, sorted, in the arena; none where it has no index, or one that
 * cannot be read. */
dq_status dq_checkpoint_index_files(const char ***file, size_t *n, const char *dir, dq_arena *a,
                                    dq_err *err);
void dq_checkpoint_close(dq_checkpoint *c); /* NULL allowed */
const json_t *dq_checkpoint_config(const dq_checkpoint *c);
/* config.json byte for byte. */
const char *dq_checkpoint_config_text(const dq_checkpoint *c, size_t *len);
int64_t dq_checkpoint_count(const dq_checkpoint *c);
/* By position in name order (byte-wise), or by name; NULL when absent. */
const dq_tensor *dq_checkpoint_at(const dq_checkpoint *c, int64_t i);
const dq_tensor *dq_checkpoint_find(const dq_checkpoint *c, const char *name);
/* The tensor as a dense weight, as dq_source.find; and all of them as a source. */
bool dq_checkpoint_weight(const dq_checkpoint *c, const char *name, dq_weight *w);
dq_source dq_checkpoint_source(dq_checkpoint *c);
/* The weight files: base name and mapping, in name order. */
int dq_checkpoint_n_files(const dq_checkpoint *c);
const char *dq_checkpoint_file(const dq_checkpoint *c, int i, size_t *bytes, const uint8_t **data);
/* Gives all their pages back to the kernel. Reading one byte may map two megabytes around it, so resident
 * memory stays bounded only if this is called now and then. */
void dq_checkpoint_release(const dq_checkpoint *c);

#endif
