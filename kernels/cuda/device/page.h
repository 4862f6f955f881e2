/* page: pages of the KV cache as kernels of the CUDA backend see them; page.cuh says how tokens lie in
 * them. C and C++; device pointers throughout.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_H
#define DQ_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DQ_PAGE_SLOTS = 64 }; /* tokens of a page */

/* Keys (side 0) or values (side 1) of one page. Each array holds the KV heads of the page's group one after the
 * other. */
typedef struct dq_page_side {
    void *plain;    /* in the form's dense type; NULL: none */
    uint8_t *codes; /* NULL: none */
    /* f16, or f32 where the page's side is wide; of per-channel codes [sets][heads][set_numbers] */
    void *scale;
    void *sinks; /* the same [n_sinks][dim] a head; NULL: none */
} dq_page_side;

typedef struct dq_page {
    dq_page_side side[2];
    uint64_t begins; /* per-channel codes: bit i: slot i is the first of a set */
    uint64_t widths
        [2]; /* bits of each head's codes, 4 bits a head from the lowest; 0: those of the form */
    int32_t dither;    /* row of the form's dither; -1: none */
    int32_t first_set; /* per-channel codes: sets of the pages before it in a list */
    int16_t n_sinks, heads;
    uint8_t wide[2];
} dq_page;

enum { DQ_PAGE_WIDTHS = 16 }; /* heads that `widths` holds */

/* What is not coded. */
enum { DQ_PAGE_F32, DQ_PAGE_F16, DQ_PAGE_BF16 };

/* How all pages store a side. */
typedef struct dq_page_form {
    int32_t bits;     /* 16: no codes; the largest, where pages say more */
    int32_t group;    /* channels per scale */
    int32_t n_scales; /* per token and head: scales, or the steps of all runs, then their lows */
    int32_t has_lows;
    int32_t dim;        /* channels of a head */
    int32_t cols;       /* the same, padded to a multiple of 16: channels that have codes */
    int32_t stride;     /* elements from token to token in `plain` */
    int32_t code_bytes; /* of one head and page */
    /* per-channel codes: of a set and head, a step for each channel, then a low; else 0 */
    int32_t set_numbers;
    int32_t dense;       /* type of `plain` and `sinks` */
    const float *dither; /* of values: rows of DQ_PAGE_SLOTS, one number a slot; NULL: none */
} dq_page_form;

#endif
