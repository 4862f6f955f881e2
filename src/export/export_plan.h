/* export_plan: what becomes of each tensor, and where it stands: what the files of this folder share. Private to export.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EXPORT_PLAN_H
#define DQ_EXPORT_PLAN_H

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/container.h"
#include "export/export.h"

/* What a tensor of the folder is made of. */
typedef enum dq_export_kind {
    DQ_EXPORT_COPY,   /* the container's bytes */
    DQ_EXPORT_VALUES, /* values, in the type of the slot */
    DQ_EXPORT_CODES,  /* codes, perhaps of more bits */
    DQ_EXPORT_SCALES, /* the one scale of a tensor for every row */
    DQ_EXPORT_SHAPE,  /* rows, cols */
    DQ_EXPORT_ZEROS,  /* zero points, packed along the rows */
    DQ_EXPORT_BLOCKS, /* codes and scales in blocks of ggml, bytes of a row */
    DQ_EXPORT_OWN     /* bytes that were made with the plan */
} dq_export_kind;

typedef struct dq_export_slot {
    dq_tensor tensor; /* name, type and shape in the folder; data of DQ_EXPORT_COPY and _OWN */
    dq_export_kind kind;
    int64_t row;
    int64_t pair_rows; /* rows of a head that go in the order of rotary pairs; 0: as they are */
    int shard;
} dq_export_slot;

/* A file: a text, or the slots first .. end - 1 after a head. */
typedef struct dq_export_content {
    const char *text;
    size_t len;
    int64_t first, end; /* first == end: a text */
} dq_export_content;

struct dq_export {
    dq_arena *arena;
    const dq_model *model;
    dq_export_settings set;
    dq_export_info info;
    dq_export_row *row;
    int64_t *order;    /* dq_export_row_at */
    dq_weight *weight; /* [n_rows], of the container */
    dq_export_slot *slot;
    int64_t n_slots;
    int n_shards;
    dq_export_scheme *scheme;
    size_t max_schemes;
    dq_export_file *file;
    dq_export_content *content; /* [n_files] */
    dq_folder folder;
    dq_file_out out; /* DQ_EXPORT_GGUF */
};

/* Rows and slots, in the order of the files. Defined in export_plan.c. */
dq_status dq_export_plan_tensors(dq_export *x, dq_err *err);
/* "model-00001-of-00003.safetensors", in the arena. */
const char *dq_export_plan_shard_name(dq_export *x, int shard, dq_err *err);

/* Texts in the arena, of *len bytes: config.json, dq_settings.json, the index. Defined in export_config.c. */
dq_status dq_export_config_json(const char **out, size_t *len, dq_export *x, dq_err *err);
dq_status dq_export_config_settings(const char **out, size_t *len, dq_export *x, dq_err *err);
dq_status dq_export_config_index(const char **out, size_t *len, dq_export *x, dq_err *err);

/* Rows first .. first + n - 1 (of the leading dimension; a scalar has one) of a slot that is no copy. `values` has capacity
 * for n rows of the weight. DQ_MISMATCH for a value that the type cannot hold. Defined in export_tensor.c. */
dq_status dq_export_tensor_rows(uint8_t *out, float *values, const dq_export *x,
                                const dq_export_slot *s, int64_t first, int64_t n, dq_err *err);

#endif
