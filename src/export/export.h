/* export: a container as what other programs load: a folder of Hugging Face form, with codes as
 * compressed-tensors packs them or values, or one GGUF file with codes in blocks of ggml. The
 * layout first, then the bytes; it reads no weights, but for GGUF scales and zero points, which
 * decide about types.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EXPORT_H
#define DQ_EXPORT_H

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/container.h"
#include "checkpoint/gguf.h"
#include "model/model.h"
#include "record/record.h"
#include "tensor/tensor.h"

typedef enum dq_export_form {
    /* Source: compressed-tensors, compressors/pack_quantized and quantization/quant_config.py
     * (form); vLLM, quantization/compressed_tensors (what it reads of that). */
    DQ_EXPORT_COMPRESSED_TENSORS,
    DQ_EXPORT_SAFETENSORS,
    /* Source: checkpoint/gguf.h. */
    DQ_EXPORT_GGUF,
    DQ_EXPORT_FORMS
} dq_export_form;
extern const dq_document dq_settings_document;
extern const char *const dq_export_form_name[DQ_EXPORT_FORMS];

typedef struct dq_export_settings {
    dq_export_form form;
    /* F32, F16 or BF16: for all tensors (DQ_EXPORT_SAFETENSORS), or those that lose their codes */
    dq_dtype dtype;
    bool values; /* codes that the form lacks become values; else only ends and short groups do */
    int64_t shard_bytes; /* of the tensors in one weight file, unless one alone has more */
    const char *dq_version;
} dq_export_settings;

/* A config group of compressed-tensors. */
typedef struct dq_export_scheme {
    int bits; /* 4 or 8 */
    bool symmetric;
    int64_t group; /* columns per scale; 0: the whole row */
} dq_export_scheme;

typedef struct dq_export_row {
    const char *name;
    const char *why; /* it has codes, and the folder has its values: for this reason; NULL else */
    int64_t rows, cols;
    int bits; /* of its codes; 16: it has none */
    int64_t group_size;
    int scheme;                     /* of its codes in the folder; -1: values, or blocks */
    const dq_weight_format *blocks; /* of its codes in a GGUF file, a format of ggml; NULL else */
    float lowest_error; /* largest rounding of a lowest value by f16, in steps; 0: none */
    dq_dtype dtype;     /* of values, or of scales */
    int64_t bytes;      /* in the folder, all parts */
} dq_export_row;

typedef struct dq_export_file {
    const char *name;
    int64_t bytes;
    char sha256[65]; /* "" until written */
} dq_export_file;

typedef struct dq_export_info {
    int64_t n_rows, n_packed, n_widened, n_decoded; /* decoded: had codes */
    int n_schemes, n_files;
    int64_t bytes; /* of all files */
    /* settings that this form cannot express are in this file */
    bool has_logit, has_kv;
    /* the first layer whose tensors vLLM would join and refuse, as they are coded differently; -1:
     * none */
    int split_layer;
} dq_export_info;

typedef struct dq_export dq_export;

/* m must be a container's model and outlive it. DQ_MISMATCH: the form can hold none of its codes
 * or, for GGUF and by name, not the model, its tokenizer or a tensor. */
dq_status dq_export_open(dq_export **out, const dq_model *m, const dq_export_settings *s,
                         dq_err *err);
void dq_export_close(dq_export *x); /* NULL allowed; what was written and not committed goes */
const dq_export_row *dq_export_row_at(const dq_export *x,
                                      int64_t i); /* dq_name_order: layer 2 before 10 */

/* DQ_FILE: as dq_out_check, where force replaces only an earlier export or, for GGUF, any file,
 * which is the caller's business; or the disk is too full. Touches nothing. */
dq_status dq_export_check(dq_export *x, const char *path, bool force, dq_err *err);

/* Called now and then with bytes written. */
typedef struct dq_export_progress {
    void (*step)(void *arg, double done, double total, const char *what);
    void *arg;
} dq_export_progress;

/* After dq_export_check: checks the container's hashes and writes PATH.partial, with the same bytes
 * for any number of threads. DQ_MISMATCH: a value that the type cannot hold. */
dq_status dq_export_write(dq_export *x, const dq_export_progress *p, dq_err *err);
dq_status dq_export_commit(dq_export *x, dq_err *err);

/* What becomes of each tensor, and where it goes; private to export. */

/* The origin of a tensor's data. */
typedef enum dq_export_kind {
    DQ_EXPORT_COPY,   /* the container's bytes */
    DQ_EXPORT_VALUES, /* values, in the type of the slot */
    DQ_EXPORT_CODES,  /* codes, perhaps of more bits */
    DQ_EXPORT_SCALES, /* the one scale of a tensor for every row */
    DQ_EXPORT_SHAPE,  /* rows, cols */
    DQ_EXPORT_ZEROS,  /* zero points, packed along the rows */
    DQ_EXPORT_BLOCKS, /* codes and scales in blocks of ggml, bytes of a row */
    DQ_EXPORT_OWN     /* bytes that were made with the layout */
} dq_export_kind;

typedef struct dq_export_slot {
    dq_tensor tensor; /* name, type and shape in the folder; data of DQ_EXPORT_COPY and _OWN */
    dq_export_kind kind;
    int64_t row;
    int64_t pair_rows; /* rows of a head that go in the order of rotary pairs; 0: as they are */
    int shard;
} dq_export_slot;

/* A text, or the slots first .. end - 1 after a head. */
typedef struct dq_export_content {
    const char *text;
    size_t len;
    int64_t first, end; /* first == end: a text */
} dq_export_content;

struct dq_export {
    dq_arena *arena;
    const dq_model *model;
    dq_export_settings set;
    const dq_gguf_architecture *gguf; /* of DQ_EXPORT_GGUF */
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
    dq_out out;
};

#endif
