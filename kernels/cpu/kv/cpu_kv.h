/* cpu_kv: how pages of the KV cache lie in memory on the CPU, and how attention reads them.
 *
 * A line of codes (kv_lines.h) is one channel of all tokens for keys, which attention wants
 * transposed, and one token for values:
 *   plain  keys [head_dim][DQ_PAGE_TOKENS], values [DQ_PAGE_TOKENS][v_cols]
 *   codes  keys [v_cols][64 codes], values [DQ_PAGE_TOKENS][v_cols codes]
 *   scale  keys [n_scales][DQ_PAGE_TOKENS], values [DQ_PAGE_TOKENS][n_scales], or see kv_pages.h
 * Elements of `plain` and `sinks` of two bytes become f32 where they are read.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CPU_KV_H
#define DQ_CPU_KV_H

#include "kernels/cpu/cpu.h"
#include "kernels/paged/kv_pages.h"

/* ---- Reading. A page of one KV head for a query that takes tokens below `coded_end` as codes:
 * keys [head_dim][DQ_PAGE_TOKENS], values [DQ_PAGE_TOKENS][v_cols]. It is the page itself where all
 * is f32 and none coded, else scratch [dq_cpu_kv_scratch_floats(kv)], valid until that is used
 * again. Slots after the list's count hold anything. */
const float *dq_cpu_kv_read(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                            int64_t page, int side, int head, int64_t coded_end, float *scratch);
int64_t dq_cpu_kv_scratch_floats(const dq_kv *kv);
/* The page in kv->dense; NULL where that is f32 or something is read as codes. */
const void *dq_cpu_kv_half_page(const dq_kv *kv, const dq_kv_list *list, int64_t page, int side,
                                int head, int64_t coded_end);

/* The same without reading codes back: which slots are read as codes, and the others as f32. */
typedef struct dq_cpu_kv_view {
    const float *plain; /* as above, zero where coded; NULL: nothing is read there */
    const uint8_t *codes;
    const uint8_t *next; /* codes of the following page of the list; NULL: it has none */
    const float *scale;  /* [runs][DQ_PAGE_TOKENS]; of values zero where not coded */
    const float *middle; /* of values with lows, likewise; else NULL */
    const float *sets;   /* of per-channel codes: as in dq_simd_set_page; NULL: none */
    const float *dither; /* [DQ_PAGE_TOKENS] of values with sets; NULL: keys */
    uint64_t begins;
    int64_t first, end;          /* slots read as codes; the same: none */
    int bits;                    /* of the codes */
    const dq_kv_page_form *form; /* NULL: none */
} dq_cpu_kv_view;
dq_cpu_kv_view dq_cpu_kv_view_page(const dq_simd *simd, const dq_kv *kv, const dq_kv_list *list,
                                   int64_t page, int side, int head, int64_t coded_end,
                                   float *scratch);

/* For tests: codes q[v_cols] of token i, and scales [n_scales] or steps and lows [2 * head_dim]. */
void dq_cpu_kv_token_codes(const dq_kv *kv, const dq_kv_list *list, int64_t i, int head, int side,
                           int8_t *q, float *scale);
dq_kv *dq_cpu_kv_new(dq_backend *b, const dq_head_order *map, int n_layers, const dq_kv_spec *spec);
void dq_cpu_kv_free(dq_backend *b, dq_kv *kv);
/* cpu_kv.c: memory of pages, zeroed and 64-byte aligned, on one thread at a time. Up to 256 MiB of
 * freed blocks are kept for others of their size until `end`, which works after errors. */
void *dq_cpu_block_new(dq_backend *b, int64_t bytes);
void dq_cpu_block_free(dq_backend *b, void *p); /* NULL allowed */
void dq_cpu_blocks_end(dq_backend *b);
void dq_cpu_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum);
void dq_cpu_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                           int32_t t, double *cosine);
void dq_cpu_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                    const dq_rope *rope, float *row);
void dq_cpu_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                             int32_t t, const dq_rope *rope, double *leverage);

#endif
