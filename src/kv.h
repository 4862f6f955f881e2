/* kv: what a KV cache stores, as numbers: widths, windows, bytes. The cache itself lives in the
 * backend (backend.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_H
#define DQ_KV_H

#include "attention.h"

enum { DQ_PAGE = 64 }; /* tokens per page */

/* Which arithmetic runs. One word per product, as results report it. */
typedef enum dq_num { DQ_NUM_F32, DQ_NUM_BF16, DQ_NUM_INT8 } dq_num;
typedef struct dq_math {
    dq_num linear, qk, pv, kv;
} dq_math;
extern const char *const dq_num_name[]; /* "f32", "bf16", "int8" */

/* Storage of keys and values. Width 16 is the math type `num`, unrounded. A cache has one spec for its
 * life. */
typedef struct dq_kv_spec {
    dq_num num;
    int k_bits, v_bits;
    int group;   /* channels per scale at <= 4 bits */
    bool rotate; /* Hadamard over head_dim before quantizing */
    int sink;    /* tokens at positions below it stay unquantized and are never evicted */
    int recent;  /* tokens of the last `recent` positions are not coded yet */
} dq_kv_spec;

extern const dq_kv_spec dq_kv_plain; /* 16:16 */

/* What a cache holds, as allocated. */
typedef struct dq_kv_bytes {
    int64_t codes, scales, unquantized, index;
    int64_t tokens; /* sum over sequences, layers and groups of tokens held */
} dq_kv_bytes;

#endif
