/* attention: the kernels of attention in f32 over paged keys and values, and the units of rows that they and the
 * kernels which observe the maps work on. The order of every sum depends on a row's own keys only, and is that of
 * the CPU's vector code.
 *
 * Work is cut into units: rows of one sequence whose positions share a tile of 64, and one KV head group.
 * A unit has a strip for every query head of its group: S, then exp(S - max), of rows by keys. A launch
 * takes units that follow each other, as many as memory holds strips for.
 *
 * Structs with pointers to device memory; they are passed by value.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ATTENTION_H
#define DQ_ATTENTION_H

#include "kernels/cuda/device/page.h"
#include "kernels/cuda/host/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dq_attention_unit {
    int64_t strip;  /* of its first strip, in floats */
    int64_t page;   /* of its list's first page, in the table of pages */
    int64_t edge;   /* of its list's first edge (granularity `tile`), in the table of edges */
    int32_t record; /* of its first row and query head */
    int32_t factor; /* of its first row and output head */
    int32_t row, n; /* rows of the batch */
    /* Rows before `split` read the first coded[0] tokens as codes, rows from it on the first coded[1]. Sinks are
     * counted in, although they are never read as codes. */
    int32_t split, coded[2];
    int32_t keys, ld; /* what the last row sees; floats from row to row */
    int32_t n_edges;
    int32_t n_parts; /* of an output head, that dq_fused_decode keeps: pages, or sets of values */
    int32_t seq, group;
    int32_t first;         /* row of the unit from which on columns count; n: none */
    int32_t sinks;         /* tokens at positions where attention is parked (measure) */
    int32_t counted, span; /* row of the unit from which on spans count, n: none; and its record */
} dq_attention_unit;

/* A query head of a group, and the slot of the key head it reads. */
typedef struct dq_q_head {
    int32_t head, key;
} dq_q_head;

/* An output head: its maps as indices among the group's query heads, and slots of its values; -1: none. */
typedef struct dq_o_head {
    int32_t out, q[2], v[2];
} dq_o_head;

typedef struct dq_attention_units {
    const dq_attention_unit *unit;
    int32_t n;
    int32_t max_rows, max_keys, max_q, max_out, max_edges; /* of any of them */
    const dq_page *pages;
    dq_page_form form[2];
    const int32_t *visible; /* [rows of the batch][n_groups] */
    const int32_t *edge;    /* ends of runs of keys in one tile of positions, ascending */
    const dq_q_head *q_head;
    const dq_o_head *o_head;
    const int32_t *q_first, *o_first; /* [n_groups + 1] */
    int32_t n_groups, n_q, n_out, n_slabs, n_maps;
    const float *q; /* [rows][n_q * dim] */
    float scale;
    float *strip;
    double *sum;         /* [records] of exp(S - max) */
    float *factor;       /* [factors][3]: 1 / sum of both maps, lambda / second sum */
    const float *lambda; /* [rows][n_out]; NULL: lambda_layer */
    float lambda_layer;
} dq_attention_units;

/* Strips: S = scale * (q . k). */
cudaError_t dq_attention_scores(dq_attention_units u, cudaStream_t s);
/* max[seq][n_q] = max of itself and bits of |S| over what rows see; no strips. */
cudaError_t dq_attention_absmax(dq_attention_units u, uint32_t *max, cudaStream_t s);
/* Each row of x[n][cols] becomes its maximum; NaN wins. */
cudaError_t dq_attention_join(float *x, int n, int cols, cudaStream_t s);

enum {
    DQ_ROUND_NOT,
    DQ_ROUND_GIVEN, /* by absmax[seq][n_q] */
    DQ_ROUND_ROW,
    DQ_ROUND_TILE
};
/* S to exp(S - max), sums and factors. */
cudaError_t dq_attention_softmax(dq_attention_units u, int round, float qmax, const float *absmax,
                                 cudaStream_t s);

typedef struct dq_attention_finish {
    float *out; /* [rows][out_cols]: heads of n_slabs * dim */
    int64_t out_cols;
    const float *gain; /* [n_slabs * dim]; NULL: none */
    float norm_eps, out_scale;
    bool rotated, norm;
} dq_attention_finish;
/* (P1 - lambda P2) V, then norm and scale. dim a power of two where rotated. */
cudaError_t dq_attention_values(dq_attention_units u, dq_attention_finish f, cudaStream_t s);

#ifdef __cplusplus
}
#endif

#endif
