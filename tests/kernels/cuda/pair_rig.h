/* pair_rig: one scene on two backends, the CPU and the CUDA device, simulated or a GPU, for tests that compare them.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAIR_RIG_H
#define DQ_PAIR_RIG_H

#include "kernels/cpu/kv/cpu_kv.h"
#include "kernels/cuda/host/cuda.h"
#include "tests/kernels/cuda/cuda_rig.h"
#include "tests/rigs/pairings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CPU,
    CUDA,
    PAIR_Q = 8,
    PAIR_KV = 4,
    PAIR_SEQ = 4,
    PAIR_FIRST = 110,
    PAIR_ROWS = 320,
    PAIR_WIDTH = 8 * 2 * 128,
    PAIR_LABELS = 61000,
    PAIR_CLASSES = 6
};

/* Arrays: queries, keys, values, lambdas, outputs. */
enum { A_Q, A_K, A_V, A_LAMBDA, A_OUT, N_ARRAYS };

typedef struct pair {
    dq_arena *arena;
    dq_head_order map;
    dq_kv_spec spec;
    dq_attn attn;
    dq_math math, cpu_math; /* of the device; of the CPU, f32 */
    int layer; /* that all calls are about: the last one that spec.widths names, else 0 */
    float gain[256];
    dq_backend *b[2];
    dq_kv *kv[2];
    float *host[N_ARRAYS], *at[2][N_ARRAYS]; /* at: memory of a backend */
    int32_t length[PAIR_SEQ];                /* next position of each sequence */
    uint32_t seed;
    int64_t cu_rows[PAIR_SEQ + 1];
    int32_t seq[PAIR_SEQ], pos[PAIR_ROWS], ids[PAIR_ROWS];
    dq_batch batch;
    dq_attention_spans spans[2]; /* sums NULL: none */
    uint8_t label[PAIR_LABELS];
    int64_t label_at[PAIR_SEQ], counted[PAIR_SEQ];
    dq_span_share shares[2][PAIR_SEQ * PAIR_Q];
} pair;

static const int dims[] = {24, 64, 80, 32, 16, 128};

dq_kv_spec spec_of(int i);
/* Types of what is not coded, in another order for each three. */
dq_kv_dense dense_of(int i);
/* Per-channel codes, with dither and without, of every width; some go by the maps of keys. */
dq_kv_spec page_spec_of(int i);
/* The same widths as mixed codes, in runs of 16 or 64 channels. */
dq_kv_spec mixed_spec_of(int i);
float pair_value(pair *p);
void pair_open(pair *p, dq_pairing pairing, int head_dim, dq_kv_spec spec);
/* One map, KV heads in groups of three and of one, as no pairing makes them. */
void pair_open_uneven(pair *p, int head_dim, dq_kv_spec spec);
void pair_sync(pair *p);
void pair_close(pair *p);
int32_t pair_seq(pair *p, int32_t start);
int32_t pair_fork(pair *p, int32_t from);
void pair_begin(pair *p);

/* Keys have a loud channel, so that scales differ between runs of channels. */
void pair_rows(pair *p, int32_t seq, int n);
dq_mat pair_mat(const pair *p, int k, int array);

/* The batch's rows to both backends, and into their caches. */
void pair_append(pair *p);
void pair_compact(pair *p);
void pair_keep(pair *p, int32_t seq, int group, const int32_t *kept, int64_t n);
dq_attend_args pair_args(const pair *p, int k, dq_logit_spec logit);

/* a + n tokens of sequence 0, in pages some of which are evicted differently in every group, and a fork
 * of it with rows of its own; b starts at a far position. The batch left after is ragged and appended. */
void pair_scene(pair *p, bool evicts);

/* Beyond two windows of 130, in chunks and tokens; sequence 1 stands far away, 2 is a fork of 0. Compacts, then appends the
 * step's rows, as pair_scene leaves them; false: there are no more. */
bool pair_window_step(pair *p, int step);

/* Damage i % N_DAMAGES of per-channel codes, or mixed ones: what is not finite, or has no finite step, in keys, values or the last row's queries; and
 * in all heads channel 2 of a page is alike, so that its step is 0; of mixed values a token. */
enum { N_DAMAGES = 6 };
dq_kv_spec damaged_spec_of(int i, bool mixed);
/* 200 tokens with that damage, of which odd i evict some; then `rows` more, which read its page as codes. What is left
 * after is as in pair_scene. */
void pair_damaged_scene(pair *p, int i, int rows);
/* Outputs of both are NaN at the same places, of which there are some, and near elsewhere; or the same bit for bit. */
void compare_damaged(pair *p, double tolerance, bool equal);

/* Outputs of both, within `tolerance` of the largest; or bit for bit. */
void compare_within(pair *p, double tolerance, bool equal);

/* The CPU adds fused products in the same order; without them outputs are only near. */
void compare_outputs(pair *p);
void attend_both(pair *p, dq_logit_spec logit, const dq_columns columns[2],
                 dq_head_measure *const measure[2]);

/* The next calls of attend count the last last[i] rows of sequence i. */
void pair_count_spans(pair *p, const int64_t last[PAIR_SEQ]);

/* Shares of both: of equal f32 numbers added in another order, or of other arithmetic. */
void compare_spans(const pair *p, double tolerance);
void set_options(pair *p, int i);

#endif
