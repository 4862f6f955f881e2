/* kv_stage: a cache with codes, its oracle, and batches of rows, for the tests of the KV cache.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_STAGE_H
#define DQ_KV_STAGE_H

#include "tests/rigs/device.h"
#include "tests/rigs/grid.h"
#include "tests/rigs/oracle.h"
#include "tests/rigs/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_Q = 8, N_KV = 4, MAX_ROWS = 512, MAX_WIDTH = 8 * 2 * 128 };

typedef struct stage {
    dq_arena *arena;
    dq_backend *b;
    dq_head_order map;
    dq_kv_spec spec;
    dq_kv *kv;
    dq_oracle *oracle; /* follows sequences that are below DQ_ORACLE_SEQ */
    dq_attn attn;
    dq_math math;                  /* f32, until a test says otherwise */
    int32_t length[DQ_ORACLE_SEQ]; /* next position */
    int tag[DQ_ORACLE_SEQ];        /* seeds a sequence's data */
    int64_t cu_rows[DQ_ORACLE_SEQ + 1];
    int32_t seq[DQ_ORACLE_SEQ], pos[MAX_ROWS], ids[MAX_ROWS];
    dq_batch batch;
    float *q, *k, *v, *out; /* on the host */
    test_array both[4];     /* the same, on both sides */
} stage;

enum { Q, K, V, OUT };
float uniform(uint32_t seed);
dq_mat mat(float *p, int64_t rows, int64_t cols);

int64_t out_cols(const stage *s);
/* The spec with these widths, as dq_kv_widths_parse reads them and for n_layers. */
dq_kv_spec with_widths(dq_kv_spec spec, const char *widths, int n_layers);
void open_stage(stage *s, dq_pairing pairing, int head_dim, dq_kv_spec spec, int threads);
dq_status end_stage(stage *s);
void close_stage(stage *s);
int32_t new_seq(stage *s, int tag, int32_t start);
int32_t fork_seq(stage *s, int32_t from, int tag);
void begin_batch(stage *s);

/* n rows of a sequence; what they hold depends on its tag and the position only. Keys have a loud
 * channel, so that scales differ between runs of channels. */
void add_rows(stage *s, int32_t seq, int n);

/* Batch into the cache and the oracle. */
void append(stage *s);
dq_attend_args arguments(stage *s, int bits, dq_granularity granularity);
void attend(stage *s, int bits);
void compact_stage(stage *s);
void expect_no_error(stage *s);

/* Attends and compares with the oracle. */
void check_attend(stage *s);

/* n more tokens of one sequence, attended and compacted. */
void stream(stage *s, int32_t seq, int n);

/* The same, compared with the oracle. */
void stream_checked(stage *s, int32_t seq, int n);
void keep(stage *s, int32_t seq, int group, const int32_t *kept, int64_t n);

#endif
