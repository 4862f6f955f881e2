/* simt_attend: a kernel in the shape of an attention over unfolded pages on Hopper, for the tests
 * of the simulation: a producer thread with bulk copies that both blocks of a cluster receive, a
 * ring of stages, a warpgroup a map.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SIMT_ATTEND_H
#define DQ_SIMT_ATTEND_H

#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a tile, keys of a page, channels of a map, channels of a value. */
enum { DQ_ATTEND_ROWS = 64, DQ_ATTEND_KEYS = 64, DQ_ATTEND_HEAD = 128, DQ_ATTEND_VALUE = 256 };

/* out[tile][64][256] = softmax(q1 k1^T / sqrt 128) v - lambda softmax(q2 k2^T / sqrt 128) v, in
 * f32. In f16: q[tile][map][64][128]; k[page][map], element c of key t at ((c / 8) * 64 + t) * 8 +
 * c % 8; v[page], channel c of key t at ((t / 8) * 256 + c) * 8 + t % 8. Two tiles a pair, shared
 * by one of `clusters` clusters. */
cudaError_t dq_attend_sample(float *out, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                             int pages, int pairs, int clusters, float lambda, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
