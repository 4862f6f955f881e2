/* kv_launch: kernels that fill and move pages of the KV cache. Structs and pointers in device memory unless
 * they are passed by value; form[0] is that of keys.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_LAUNCH_H
#define DQ_KV_LAUNCH_H

#include "kernels/cuda/device/page.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* n rows from `row` on go to slots slot .. slot+n-1 of one page. */
typedef struct dq_kv_write_job {
    void *plain[2];
    int32_t row, n, slot, group;
} dq_kv_write_job;

/* Slots from .. to-1 of a page of a group get codes: one side, or both (side -1). */
typedef struct dq_kv_encode_job {
    dq_page page;
    int32_t group, side, from, to;
} dq_kv_encode_job;

/* KV heads of all groups: heads first[g] .. first[g+1]-1 of `head`, in the order of their slots. */
typedef struct dq_kv_group_heads {
    const int32_t *first, *head;
    int32_t n_groups, max; /* heads of the largest group */
} dq_kv_group_heads;

/* Memory of a page, 16-byte aligned. */
typedef struct dq_kv_block {
    void *p;
    int64_t bytes;
} dq_kv_block;

cudaError_t dq_kv_launch_zero(const dq_kv_block *blocks, int n, cudaStream_t s);
/* k and v[rows][row_cols], heads of form.dim channels. beyond: becomes the
 * maximum of itself and the bits of all finite |x| that the form's dense type
 * makes infinite; NULL with f32. */
cudaError_t dq_kv_launch_write(const dq_kv_write_job *jobs, int n, dq_page_form const form[2],
                               dq_kv_group_heads heads, const float *k, const float *v,
                               int64_t row_cols, uint32_t *beyond, cudaStream_t s);
/* overflow[n][2], zero before: becomes 1 where a scale or low of a side that is not wide stays f32 (kv.h). */
cudaError_t dq_kv_launch_encode(const dq_kv_encode_job *jobs, int n, dq_page_form const form[2],
                                dq_kv_group_heads heads, int32_t *overflow, cudaStream_t s);
/* Tokens source[i] (64 * index in `from` + slot), i < n <= 64, become slots i of `to`, which has codes
 * for slots n_sinks .. coded-1; `heads` KV heads. */
cudaError_t dq_kv_launch_move(dq_page to, int coded, const dq_page *from, const int32_t *source,
                              int n, dq_page_form const form[2], int heads, cudaStream_t s);
/* Slots 0 .. n-1 of the sinks of one side from its unquantized part, or back. */
cudaError_t dq_kv_launch_sinks(dq_page page, int side, int n, bool back, dq_page_form form,
                               int heads, cudaStream_t s);
cudaError_t dq_kv_launch_widen(float *to, const uint16_t *from, int64_t n, cudaStream_t s);
/* sum[count] = |k|^2 over `heads` heads of each token; the first `coded` ones are read as codes. */
cudaError_t dq_kv_launch_norms(double *sum, const dq_page *pages, int64_t count, int64_t coded,
                               dq_page_form form, int heads, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
