/* container_impl: what container.c, which opens a container, container_check.c and container_summary.c share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CONTAINER_IMPL_H
#define DQ_CONTAINER_IMPL_H

#include "base/os.h"
#include "checkpoint/container.h"

#include <string.h>

#define DQ_PATH_TENSORS "/tensors/"
#define DQ_PATH_FILES   "/tokenizer/"

struct dq_container {
    dq_arena *arena; /* owns this struct too */
    dq_os_map map;
    const char *path;
    dq_container_info info;
    dq_payload *payload;
    int64_t n_payloads;
    bool sound; /* dq_container_check_weights was content */
    bool objects_sound;
    dq_weight *tensor; /* in name order */
    int64_t n_tensors;
    int n_parts;        /* read so far of the coded tensor after them */
    dq_scale_mode mode; /* of that tensor */
    const char *config, *recipe, *objects;
    size_t config_len, recipe_len, objects_len;
    dq_source_file *source;
    int n_sources;
    const uint8_t *index;
    int64_t index_bytes;
    char index_sha256[65];
};

static inline bool dq_container_payload_in(const dq_payload *p, const char *folder)
{
    return strncmp(p->path, folder, strlen(folder)) == 0;
}

/* dq_container_payload_check, but nothing the second time. */
dq_status dq_container_payload_check_once(dq_container *c, int64_t i, dq_err *err);
/* When all payloads are read: completes c->info. DQ_DAMAGED where the header or the recipe says otherwise. */
dq_status dq_container_sum_up(dq_container *c, dq_err *err);

#endif
