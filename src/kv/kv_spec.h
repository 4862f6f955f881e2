/* kv_spec: what a KV cache stores, as numbers: widths, windows, bytes. The cache itself lives in the
 * backend (backend.h).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_SPEC_H
#define DQ_KV_SPEC_H

#include "base/base.h"

enum { DQ_PAGE = 64 }; /* tokens per page */

/* Which arithmetic runs. One word per product, as results report it. kv int8: codes are multiplied as they
 * are stored; only where K and V have at most 8 bits. */
typedef enum dq_num { DQ_NUM_F32, DQ_NUM_BF16, DQ_NUM_INT8 } dq_num;
typedef struct dq_math {
    dq_num linear, qk, pv, kv;
} dq_math;
enum { DQ_NUMS = 3 };
extern const char *const dq_num_name[DQ_NUMS]; /* "f32", "bf16", "int8" */

/* Storage of keys and values. Width 16 is the math type `num`, unrounded. A cache has one spec for its
 * life.
 *
 * Which form a query reads goes by positions alone, as if tokens had arrived one by one: at position t
 * the tokens of positions sink .. dq_kv_coded_end(t) - 1 are read as codes, all others unquantized.
 * Prefill, chunks and decoding are therefore equal. The rule holds after eviction too, by a token's
 * original position.
 *
 * Codes: one scale per token and head at 8 and 6 bits, one per `group` channels below (the last group of
 * a head may be short); scale = absmax / Qmax rounded to f16 (f32 where f16 would be subnormal or
 * infinite), code = clamp(rint(x / scale), +-Qmax). head_dim is padded with zeros to a multiple of 16.
 * 6 bits are a plane of the 4 low bits and one of the 2 high bits, 3 bits one of 2 and one of 1. */
typedef struct dq_kv_spec {
    dq_num num;
    int k_bits;              /* 16, 8, 6 or 4 */
    int v_bits;              /* 16, 8, 6, 4, 3 or 2 */
    int group;               /* channels per scale at <= 4 bits */
    bool rotate_k, rotate_v; /* normalized Hadamard over head_dim: on Q and K after RoPE, on V */
    int sink;                /* tokens at positions below it are never coded and never evicted */
    int recent;              /* a page is coded once its last token is this far behind */
} dq_kv_spec;

extern const dq_kv_spec dq_kv_plain; /* 16:16, nothing rotated */

/* DQ_USAGE for widths, groups or windows that do not exist, DQ_MISMATCH for a rotation of a head_dim
 * that is no power of two. */
dq_status dq_kv_check(const dq_kv_spec *spec, int head_dim, dq_err *err);
/* First position that a query at position t reads unquantized, sinks aside. */
int32_t dq_kv_coded_end(const dq_kv_spec *spec, int32_t t);
/* How many of the n ascending positions a query at position t reads, and how many of these as codes. */
void dq_kv_reads(const dq_kv_spec *spec, int32_t t, const int32_t *pos, int64_t n, int64_t *reads,
                 int64_t *coded);
/* Whether something is stored as codes at all. */
bool dq_kv_has_codes(const dq_kv_spec *spec);
/* Bytes of one coded token in one KV head, K and V, with f16 scales; 16-bit widths count 2 bytes per
 * element. */
double dq_kv_token_bytes(const dq_kv_spec *spec, int head_dim);

/* What a cache holds, as allocated: padding and page tails included. */
typedef struct dq_kv_bytes {
    int64_t codes, scales, unquantized, index;
    int64_t tokens;       /* sum over sequences, layers and groups of tokens held */
    int64_t tokens_coded; /* those of them that are held as codes only */
} dq_kv_bytes;

#endif
