/* container_read: finds the parts of a container through HDF5 and checks each against the file's size
 * before a pointer to it is made. Private to checkpoint.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CONTAINER_READ_H
#define DQ_CONTAINER_READ_H

#include "base/os.h"
#include "checkpoint/container.h"
#include "checkpoint/h5.h"
#include "checkpoint/object_list.h"
#include "kv/kv.h"

typedef struct dq_container_h5 {
    dq_h5 h;
    hid_t file;
    int base; /* identifiers that stay open until dq_container_h5_close */
    const dq_os_map *map;
    const char *path; /* of the file, for messages */
    dq_err *err;
} dq_container_h5;

/* A contiguous dataset in the mapping. */
typedef struct dq_container_h5_block {
    const uint8_t *data;
    int64_t bytes;
    int n_dims;
    int64_t shape[DQ_MAX_DIMS];
    size_t item; /* bytes per element */
    hid_t type;  /* kept in the reader until the caller drops it */
} dq_container_h5_block;

dq_status dq_container_h5_open(dq_container_h5 *r, const dq_os_map *map, const char *path,
                               dq_err *err);
void dq_container_h5_close(dq_container_h5 *r);
void dq_container_h5_reset(dq_container_h5 *r); /* closes what dq_container_h5_find left open */
/* DQ_DAMAGED with the dataset's path unless all of it lies inside the file. */
dq_status dq_container_h5_find(dq_container_h5 *r, const char *path, dq_container_h5_block *b);
/* Attributes of the object at `path`: n integers, or a text into buf. */
dq_status dq_container_h5_ints(dq_container_h5 *r, const char *path, const char *name, int64_t *v,
                               int n);
dq_status dq_container_h5_real(dq_container_h5 *r, const char *path, const char *name, double *v);
bool dq_container_h5_has(dq_container_h5 *r, const char *path, const char *name);
/* What /kv_cache says. An unknown policy goes to
 * the arena. */
dq_status dq_container_h5_kv_config(dq_container_h5 *r, dq_kv_config *c, dq_arena *a);
/* DQ_DAMAGED where /attention or /kv_cache says something else than the recipe. */
dq_status dq_container_agrees(const dq_container_info *info, const json_t *recipe, dq_arena *a,
                              dq_err *err);
dq_status dq_container_h5_words(dq_container_h5 *r, const char *path, const char *name, char *buf,
                                size_t cap);
/* The element type is exactly the one dq writes for dtype; or a fixed-length text. */
bool dq_container_h5_is(dq_container_h5 *r, const dq_container_h5_block *b, dq_dtype dtype);
bool dq_container_h5_is_text(const dq_container_h5_block *b);
/* Finds the columns of a table by name; other columns are allowed. */
dq_status dq_container_h5_columns(dq_container_h5 *r, const char *path,
                                  const dq_container_h5_block *b, dq_h5_column *col, int n);
/* The object at `path` as one of the list, with all its attributes; where there is none, as "missing". */
void dq_container_h5_describe(dq_container_h5 *r, const char *path, dq_object_list *l);
/* Names of the links of a group, in the arena; none where it cannot be read. */
dq_status dq_container_h5_links(dq_container_h5 *r, const char *group, const char ***name,
                                size_t *n, dq_arena *a);
int64_t dq_container_h5_count_links(dq_container_h5 *r, const char *group); /* -1: no such group */

#endif
