/* What kernels see of a model: which heads meet, rotary angles, activations.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_HEAD_ORDER_H
#define DQ_HEAD_ORDER_H

#include "base/base.h"

typedef enum dq_act {
    DQ_ACT_SILU,
    DQ_ACT_GELU,    /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    DQ_ACT_POLYNORM /* w0 n(x^3) + w1 n(x^2) + w2 n(x) + b, n(z) = z / sqrt(mean z^2 + 1e-6) */
} dq_act;

/* Which projection heads meet in one output head. One formula serves every architecture; kernels
 * never learn an architecture's name. */

/* All indices count heads of size head_dim in the order in which the checkpoint stores its
 * projection rows. For query row t and the keys s it sees:
 *
 *   S_h[s] = scale * Q[h][t] . K[key[h]][s]                   every query head h
 *   A_h    = softmax(S_h)
 *   y_o    = (A_{q[0]} - lambda * A_{q[1]}) [V[v[0]] | V[v[1]]]    width n_slabs * head_dim
 *   out_o  = out_scale * rms_norm(y_o, gain, norm_eps)        the norm only if the layer has one
 *
 * Source: arXiv 2410.05258 eq. 1-3; head orders of each architecture in docs/math/model.md. */
typedef struct dq_head {
    int16_t q[2]; /* added (map 1), subtracted (map 2; -1: none) */
    int16_t v[2]; /* value slabs, concatenated in this order (second -1: none) */
} dq_head;

typedef enum dq_pairing {
    DQ_PAIR_NONE,           /* Llama: one map */
    DQ_PAIR_ADJACENT,       /* DIFF V1 flash files, Motif 2.6B: 2i with 2i+1 in Q, K and V */
    DQ_PAIR_ADJACENT_NAIVE, /* DIFF V1 plain file: K is indexed after GQA repetition */
    DQ_PAIR_HALVES,         /* DiffLlama: h with h + n/2 */
    DQ_PAIR_GROUPED,        /* Motif-2: r signal heads share one noise head */
    DQ_PAIR_SHARED_KV,      /* DIFF V2: 2i with 2i+1, both on one KV head */
    DQ_PAIR_COUNT
} dq_pairing;
/* "plain", "adjacent", "adjacent-naive", "halves", "grouped", "shared-kv". */
const char *dq_head_order_pairing_name(dq_pairing pairing);
/* Whether both have the same maps and value slabs per output head, and as many output heads. */
bool dq_head_order_pairing_same_shape(dq_pairing a, dq_pairing b);

typedef struct dq_head_order {
    dq_pairing pairing; /* for people; kernels read the arrays */
    int head_dim;
    int n_q, n_kv;        /* projection heads; the cache holds n_kv keys and n_kv values */
    int n_out, n_maps;    /* output heads; 1 or 2 maps each */
    int n_slabs;          /* value slabs per output head, 1 or 2 */
    int n_groups;         /* KV head groups: their tokens are kept or dropped together */
    const int16_t *key;   /* [n_q] key head read by each query head */
    const dq_head *head;  /* [n_out] */
    const int16_t *group; /* [n_kv] group of each KV head (its K and its V) */
    float scale;          /* 1/sqrt(head_dim), unless the model states another */
} dq_head_order;

/* Fills all fields, arrays in the arena. DQ_MISMATCH with the numbers: a pairing does not divide
 * them. n_noise: for DQ_PAIR_GROUPED, else 0. Groups are connected components of KV heads read
 * together, numbered by lowest head. */
dq_status dq_head_order_build(dq_head_order *out, dq_pairing pairing, int n_q, int n_kv,
                              int head_dim, int n_noise, dq_arena *a, dq_err *err);

/* The map that a KV head's keys serve: 0 the first (or only), 1 the second, -1 both. */
int dq_head_order_key_map(const dq_head_order *map, int kv);
int64_t dq_head_order_key_channels(const dq_head_order *map, int group);

typedef enum dq_lambda_kind {
    DQ_LAMBDA_NONE,  /* one map */
    DQ_LAMBDA_LAYER, /* exp(lq1 . lk1) - exp(lq2 . lk2) + lambda_init, one scalar per layer */
    DQ_LAMBDA_TOKEN  /* sigmoid of a projection, per row and output head */
} dq_lambda_kind;

/* What a layer adds to the head order. */
typedef struct dq_attn {
    const dq_head_order *map; /* shared by all layers */
    int window;               /* a query at t sees positions above t - window; 0: all up to t */
    dq_lambda_kind lambda_kind;
    float lambda;    /* DQ_LAMBDA_LAYER only */
    float out_scale; /* 1 - lambda_init, or 1 */
    bool head_norm;  /* RMS norm over n_slabs * head_dim */
    float norm_eps;
    const float *gain; /* [n_slabs * head_dim], NULL: no gain */
} dq_attn;

typedef enum dq_rope_order { DQ_ROPE_HALVES, DQ_ROPE_ADJACENT } dq_rope_order;

typedef struct dq_rope {
    dq_rope_order order;
    int dim;               /* rotated elements per head = head_dim */
    const float *inv_freq; /* [dim/2], scaling applied; computed in double, rounded once */
    float amplitude;       /* multiplies cos and sin: 1 but for yarn and longrope */
    int max_positions;     /* positions from here on would need other frequencies; 0: none do */
} dq_rope;

#endif
