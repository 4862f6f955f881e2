/* container_write: makes the skeleton of a container: every group, attribute and dataset, with space
 * for all payloads but no payload. The HDF5 library is done with the file then; payloads, /index and
 * the two hashes are written in place at the offsets found here.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CONTAINER_WRITE_H
#define DQ_CONTAINER_WRITE_H

#define DQ_PATH_OBJECTS "/objects"
#define DQ_PATH_GATES   "/config/kv_gates_json"

#include "base/os.h"
#include "kv/kv.h"
#include "tensor/tensor.h"

typedef enum dq_encoding {
    DQ_ENC_DENSE, /* a tensor as it was */
    DQ_ENC_PART,  /* a dataset of a coded tensor */
    DQ_ENC_TEXT,  /* scalar UTF-8 string */
    DQ_ENC_BYTES, /* a file, byte for byte */
    DQ_ENC_TABLE  /* source_files */
} dq_encoding;

/* One payload dataset. */
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
    /* DQ_ENC_PART only: which one, and what the attributes of the tensor's group say */
    int part;
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

/* The payload of /objects: see object_list.h. It has a slot of that path, whose bytes need not be known yet. In the arena;
 * depends on the plan alone. */
dq_status dq_container_objects(const char **text, size_t *len, const dq_container_skeleton *s,
                               dq_arena *a, dq_err *err);
/* Writes the file at `path` (an existing one is replaced) and closes it. */
dq_status dq_container_skeleton_create(const dq_container_skeleton *s, const char *path,
                                       dq_err *err);
/* Fills every offset from a finished skeleton. */
dq_status dq_container_skeleton_locate(dq_container_skeleton *s, const char *path, dq_err *err);

/* The bytes of /index (index_bytes of them) from the slots. */
dq_status dq_container_index_encode(uint8_t *out, const dq_container_skeleton *s, dq_err *err);
int64_t dq_container_index_bytes(const dq_container_skeleton *s);
/* SHA-256 over "path sha256\n" of all slots, in path order. */
dq_status dq_container_content_sha256(char hex[65], const dq_container_skeleton *s, dq_err *err);

/* The bytes of the table of source files; name[n], size[n], sha[n]. out NULL: only the row's size. */
size_t dq_container_source_table(uint8_t *out, int n, const char *const *name, const int64_t *size,
                                 const char (*sha)[65]);

#endif
