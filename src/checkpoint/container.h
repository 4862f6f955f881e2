/* container: reading the HDF5 container `dq-model` (FORMAT.md). Payloads stay in the page cache:
 * the file is mapped and every pointer it gives goes into that mapping.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CONTAINER_H
#define DQ_CONTAINER_H

#include "checkpoint/checkpoint.h"
#include "kv/kv.h"

#define DQ_PATH_OBJECTS "/objects"
#define DQ_PATH_GATES   "/config/kv_gates_json"
/* Texts belong to the container. */
typedef struct dq_container_info {
    const char *version;      /* encoding-version, "1.0" */
    const char *dq_version;   /* program that wrote it */
    const char *architecture; /* "diffllama" */
    int64_t params;           /* elements of all tensors */
    int64_t weight_bytes;     /* bytes of all payloads under /tensors */
    int64_t file_bytes;
    double bits_per_weight;   /* all tensors together, scales and padding included */
    int weight_bits;          /* of the packed tensors; 16: none is packed; 0: mixed */
    const char *weight_group; /* "128", "row", "tensor", "mixed"; "" when none is packed */
    const char *scale_mode;   /* "absmax", "search", "asym", "trellis", "mixed"; "" when none */
    bool
        is_rounded; /* some weights are not the source's: codes, or another type of what is dense */
    dq_logit_spec logit;      /* as /attention says */
    dq_kv_config kv;          /* as /kv_cache says */
    const char *source;       /* base name of the source checkpoint */
    const char *source_types; /* types of its tensors, where it was a GGUF file; else NULL */
    const char *arithmetic;   /* on which the bits of codes depend; NULL: it is not said */
    char fingerprint[65];     /* of the source checkpoint, as dq_model has it */
    char content_sha256[65];
} dq_container_info;

typedef struct dq_payload {
    const char *path;     /* "/tensors/NAME/packed" */
    const char *encoding; /* of a dataset of a coded tensor, or "dense", "text", "bytes", "table" */
    int bits;
    int64_t group_size, rows, cols, bytes;
    double bits_per_weight; /* packed: with its scales; 0 where it has no meaning */
    double sqnr_db;         /* packed: may be infinite; NaN elsewhere */
    char sha256[65];
    int n_dims; /* of the dataset, in its own shape */
    int64_t shape[DQ_MAX_DIMS];
    /* of a coded tensor's dataset; NULL elsewhere, and then the next two mean nothing */
    const dq_dataset_row *row;
    dq_dataset dataset;
    dq_scale_mode mode;  /* of the tensor's scales */
    const uint8_t *data; /* in the mapping */
    bool sound;          /* checked before it was used */
} dq_payload;

typedef struct dq_source_file {
    const char *name;
    int64_t bytes;
    char sha256[65];
} dq_source_file;

/* Owns the mapping, every name and every text; only what reads it changes it. */
typedef struct dq_container {
    dq_arena *arena; /* owns this struct too */
    dq_os_map map;
    const char *path;
    dq_container_info info;
    dq_payload *payload; /* [n_payloads], in path order */
    int64_t n_payloads;
    bool sound; /* dq_container_check_weights was content */
    bool objects_sound;
    dq_weight *tensor; /* in name order */
    int64_t n_tensors;
    int n_datasets;     /* read so far of the coded tensor after them */
    dq_scale_mode mode; /* of that tensor */
    const char *config, *recipe, *objects;
    size_t config_len, recipe_len, objects_len;
    dq_source_file *source; /* [n_sources] */
    int n_sources;
    const uint8_t *index;
    int64_t index_bytes;
    char index_sha256[65];
} dq_container;

/* Checks the whole structure: versions, types, shapes, that every payload lies inside the file, and
 * that /index lists exactly what is there. Hashes are checked by the functions below. Anything
 * that is not a complete container is DQ_DAMAGED; another major version is DQ_MISMATCH. */
dq_status dq_container_open(dq_container **out, const char *path, dq_err *err);
void dq_container_close(dq_container *c); /* NULL allowed */
/* The source's config.json and the settings it was quantized with; a NUL follows. */
const char *dq_container_config(const dq_container *c, size_t *len);
const char *dq_container_recipe(const dq_container *c, size_t *len);
const char *dq_container_gates(const dq_container *c, size_t *len); /* NULL: it has none */
/* *text NULL: no such file. No NUL follows a tokenizer's file, whose hash is compared once. */
dq_status dq_container_file(dq_container *c, const char *name, const char **text, size_t *len,
                            dq_err *err);
/* Valid until the container is closed. Vectors and scalars come with rows = numel, cols = 1. */
dq_source dq_container_source(dq_container *c);

/* SHA-256 of the lines "path sha256\n" of /index under /tensors: equal for equal weights. */
dq_status dq_container_weights_sha256(char hex[65], const dq_container *c, dq_err *err);

/* Compares the payload's hash; scales must also be finite, those of absmax, asym and trellis not
 * negative, and padding bits zero. DQ_DAMAGED names the dataset. Releases pages as it goes. */
dq_status dq_container_payload_check(const dq_container *c, int64_t i, dq_err *err);
/* The two hashes over /index itself. */
dq_status dq_container_check_index(const dq_container *c, dq_err *err);
/* Compares every group, dataset and attribute with /objects, both ways. DQ_DAMAGED names the first
 * that differs, is missing or was added. /objects itself is trusted: it is a hashed payload. */
dq_status dq_container_check_objects(const dq_container *c, dq_err *err);
/* Compares with the list of another container; DQ_DAMAGED names the first object that differs. */
dq_status dq_container_compare_objects(const dq_container *c, const char *want, size_t len,
                                       dq_err *err);
int64_t dq_container_n_objects(const dq_container *c); /* groups and datasets that /objects lists */
/* Checks of what a model reads: /index, texts and objects; then every tensor, in parallel and once.
 * dq_model_open and dq_model_check_weights call them, so that no number comes from damaged
 * weights. */
dq_status dq_container_check_header(dq_container *c, dq_err *err);
dq_status dq_container_check_weights(dq_container *c, dq_err *err);

/* Writes the skeleton of a container: every group, attribute and dataset, with space for the
 * payloads. HDF5 is closed then; payloads, /index and the two hashes are written in place at the
 * offsets found here. */

typedef enum dq_encoding {
    DQ_ENC_DENSE,   /* a tensor as it was */
    DQ_ENC_DATASET, /* a dataset of a coded tensor */
    DQ_ENC_TEXT,    /* scalar UTF-8 string */
    DQ_ENC_BYTES,   /* a file, byte for byte */
    DQ_ENC_TABLE    /* source_files */
} dq_encoding;

typedef struct dq_slot {
    const char *path; /* "/tensors/NAME/packed" */
    int64_t origin;   /* the caller's own number for where the bytes come from */
    dq_encoding encoding;
    dq_dtype dtype; /* of the elements: U8 for codes and bytes */
    int n_dims;
    int64_t shape[DQ_MAX_DIMS]; /* of the dataset; a table: rows and bytes per row */
    int64_t bytes;
    /* columns of /index */
    int bits;
    int64_t group_size, rows, cols;
    double bits_per_weight;
    /* only for DQ_ENC_DATASET */
    int dataset;
    dq_weight weight; /* without data */
    dq_scale_mode mode;
    dq_dtype source_dtype;
    /* known after the skeleton */
    int64_t offset;
    /* known after the payload is written */
    double sqnr_db;
    char sha256[65];
} dq_slot;

typedef struct dq_container_skeleton {
    dq_slot *slot; /* in path order */
    int64_t n_slots;
    const char *dq_version, *architecture, *source, *fingerprint;
    const char *source_types;          /* as dq_checkpoint_about says; NULL: a folder */
    char arithmetic[DQ_OS_ARITHMETIC]; /* on which the bits of codes depend; "": on none */
    int64_t params, weight_bytes;
    double bits_per_weight;
    dq_logit_spec logit;
    dq_kv_config kv;
    /* offsets and sizes of what is written last */
    int64_t index_at, index_bytes, content_at, index_sha_at, file_bytes;
} dq_container_skeleton;

/* The payload of /objects (h5.h), in the arena; it depends on the skeleton alone. */
dq_status dq_container_objects(const char **text, size_t *len, const dq_container_skeleton *s,
                               dq_arena *a, dq_err *err);
/* Replaces an existing file. */
dq_status dq_container_skeleton_create(const dq_container_skeleton *s, const char *path,
                                       dq_err *err);
dq_status dq_container_skeleton_locate(dq_container_skeleton *s, const char *path, dq_err *err);

/* The bytes of /index (index_bytes of them) from the slots. */
dq_status dq_container_index_encode(uint8_t *out, const dq_container_skeleton *s, dq_err *err);
int64_t dq_container_index_bytes(const dq_container_skeleton *s);
dq_status dq_container_content_sha256(char hex[65], const dq_container_skeleton *s, dq_err *err);

/* Encodes the table of source files and returns the bytes of a row; out NULL: only that. */
size_t dq_container_source_table(uint8_t *out, int n, const char *const *name, const int64_t *size,
                                 const char (*sha)[65]);

#endif
