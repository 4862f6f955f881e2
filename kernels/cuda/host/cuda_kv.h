/* cuda_kv: the KV cache of the CUDA backend and the operations that read it. Private to kernels/cuda.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CUDA_KV_H
#define DQ_CUDA_KV_H

#include "kernels/cuda/device/page.h"
#include "kernels/cuda/host/cuda.h"
#include "kernels/paged/kv_pages.h"

/* ---- Operations of backend.h; those not named here are dq_kv_pages_*. */
dq_kv *dq_cuda_kv_new(dq_backend *b, const dq_head_order *map, int n_layers,
                      const dq_kv_spec *spec);
/* cuda_keys.c */
void dq_cuda_kv_key_norms(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                          int32_t t, double *sum);
void dq_cuda_kv_key_cosines(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                            int32_t t, double *cosine);
void dq_cuda_kv_key_leverages(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                              int32_t t, const dq_rope *rope, double *leverage);
void dq_cuda_kv_rows(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                     const dq_rope *rope, float *row);
void dq_cuda_attn_absmax(dq_backend *b, float *absmax, const dq_attend_args *args);
void dq_cuda_absmax_join(dq_backend *b, float *absmax, int n_seq, int n_q);
void dq_cuda_attend(dq_backend *b, dq_mat dst, const dq_attend_args *args);
const char *dq_cuda_attend_kernel(const dq_backend *b, const dq_kv_spec *kv, dq_math math,
                                  int64_t rows);
void dq_cuda_attn_observe(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                          int32_t seq_base);
void dq_cuda_observe(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                     int32_t seq_base);

/* ---- What kernels want to know of a cache. */
/* Without dither, which its values must not be read with. */
dq_page dq_cuda_page(const dq_kv *kv, const dq_kv_page *p);
void dq_cuda_forms(dq_page_form form[2], const dq_kv *kv);
/* Rows of dither that the pages of one launch name: the first is that of pages whose slots lie in the order of positions, of
 * the others each has its own. Of a cache without dither there is none. */
typedef struct dq_cuda_dither {
    float *row; /* [n][DQ_PAGE_TOKENS]; NULL: none */
    int32_t n;
} dq_cuda_dither;
/* For at most n_pages pages. False with the sticky error set; dq_block_free(d->row) ends it. */
bool dq_cuda_dither_new(dq_backend *b, dq_cuda_dither *d, const dq_kv *kv, int64_t n_pages);
/* Whether a page takes a row of its own. */
bool dq_cuda_dithers_own(const dq_kv *kv, const dq_kv_page *p);
/* dq_cuda_page with its dither. */
dq_page dq_cuda_page_dithered(dq_cuda_dither *d, const dq_kv *kv, const dq_kv_page *p);
/* Into the forms of this operation's launches. False with the sticky error set. */
bool dq_cuda_dither_upload(dq_backend *b, dq_page_form form[2], const dq_cuda_dither *d);

#endif
