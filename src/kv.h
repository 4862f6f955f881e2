/* kv: what a KV cache stores, as numbers: widths, windows, bytes. The cache itself lives in the
 * backend (backend.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_H
#define DQ_KV_H

#include "attention.h"

enum { DQ_PAGE = 64 }; /* tokens per page */

/* Storage of keys and values. Width 16 is the math type, unrounded. */
typedef struct dq_kv_spec {
    int k_bits, v_bits;
    int group;        /* channels per scale at <= 4 bits */
    bool rotate;      /* Hadamard over head_dim before quantizing */
    int sink, recent; /* tokens that stay unquantized and are never evicted */
} dq_kv_spec;

extern const dq_kv_spec dq_kv_plain; /* 16:16 */

/* What a cache holds, as allocated. */
typedef struct dq_kv_bytes {
    int64_t codes, scales, unquantized, index;
    int64_t tokens; /* sum over sequences, layers and groups of tokens held */
} dq_kv_bytes;

#endif
