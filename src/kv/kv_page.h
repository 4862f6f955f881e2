/* kv_page: how a page of the KV cache stores the tokens of one KV head, and its bytes: what every backend allocates, and what
 * kv_size.h foretells.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_PAGE_H
#define DQ_KV_PAGE_H

#include "kv/kv_spec.h"

/* How all pages store their keys or their values. */
typedef struct dq_kv_page_form {
    int bits;  /* the largest, where layers or heads differ */
    int group; /* channels per scale; the last run of a head may be shorter */
    int64_t
        n_scales; /* numbers per token and head: scales, or the steps of all runs, then their lows; 0: per-channel codes */
    bool has_lows;
    /* of per-channel codes, per set and head: a step for each channel, then a low; else 0 */
    int64_t set_scales;
    int64_t plain_floats; /* of one head and page, each of dq_kv_dense_bytes */
    int64_t code_bytes;   /* of one head and page; 0: 16 bits */
} dq_kv_page_form;
dq_kv_page_form dq_kv_page_form_of(const dq_kv_spec *spec, bool values, int head_dim);
/* Of one head and page with n_sets of per-channel codes; of two bytes each, or where `wide` of four. */
int64_t dq_kv_page_scale_bytes(const dq_kv_page_form *form, int64_t n_sets, bool wide);

/* Bytes of a page's positions, counts and pointers; of those of a list, and of a pointer for each page that it has room for. */
enum { DQ_KV_PAGE_INDEX = 360, DQ_KV_LIST_INDEX = 48, DQ_KV_POINTER_INDEX = 8 };
/* Pages that a list of n has room for. */
int64_t dq_kv_page_capacity(int64_t n);

#endif
