/* The forward pass, layer by layer, and what is evicted from its cache.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RUNNER_H
#define DQ_RUNNER_H

#include "engine/backend.h"
#include "model/model.h"

/* ---- Layer steps ----
 * One layer of a model in steps on the rows of a batch: norm, q k v, attend, o; norm, gate and up,
 * down. A step's input and output are matrices of the caller, so that somebody who wants to look
 * at the input of a product, or to exchange a weight between two steps, sees what the forward pass
 * sees. */

/* Matrices are backend memory, a row per row of the batch, without overlap. Errors stick in the
 * backend. */
typedef struct dq_layer_steps {
    dq_backend *b;
    const dq_model *m;
    const dq_layer *layer; /* the model's, or a copy with other weights of the same shapes */
    const dq_batch *batch;
    dq_math math;
    dq_kv *kv;
    const dq_kv_spec *kv_spec;
    int kv_layer;   /* the layer of kv that this one fills */
    dq_mat x, h;    /* [n_rows, dim] residual stream; its norm, and what is added to it */
    dq_mat q, k, v; /* [n_rows, heads * head_dim] */
    dq_mat y;       /* [n_rows, n_out * n_slabs * head_dim] */
    dq_mat angles;  /* [n_rows, head_dim] from rope_table, of the layer's rope */
    dq_mat lambda;  /* [n_rows, n_out], DQ_LAMBDA_TOKEN only */
} dq_layer_steps;

/* h = norm(x), before attention or the feed-forward part. */
void dq_layer_steps_norm_attn(const dq_layer_steps *s);
void dq_layer_steps_norm_ffn(const dq_layer_steps *s);
/* The head's input, after the last layer. */
void dq_layer_steps_norm_out(const dq_layer_steps *s);
/* q, k and lambda of h, positioned and rotated; and v, with k and v appended to the cache. */
void dq_layer_steps_qk(const dq_layer_steps *s);
void dq_layer_steps_qkv(const dq_layer_steps *s);
/* y of q and the cache. extra: logit, absmax and observers; the rest is filled in. */
void dq_layer_steps_attend(const dq_layer_steps *s, const dq_attend_args *extra);
dq_attend_args dq_layer_steps_args(const dq_layer_steps *s, const dq_attend_args *extra);
/* h = y Wo + bias */
void dq_layer_steps_o(const dq_layer_steps *s);
/* x += h, which the layer may normalize first: what attention, or the feed-forward part, adds. */
void dq_layer_steps_add_attn(const dq_layer_steps *s);
void dq_layer_steps_add_ffn(const dq_layer_steps *s);
/* The step o with what it adds. */
void dq_layer_steps_out(const dq_layer_steps *s);
/* gate = act(in Wgate) * (in Wup) for rows of h; up is scratch. */
void dq_layer_steps_gate_up(const dq_layer_steps *s, dq_mat gate, dq_mat up, dq_mat in);
/* out = gate Wdown + bias, rows of h for add_ffn */
void dq_layer_steps_down(const dq_layer_steps *s, dq_mat out, dq_mat gate);

static inline dq_mat dq_layer_steps_rows(dq_mat m, int64_t begin, int64_t end)
{
    return (dq_mat){.p = m.p ? m.p + begin * m.cols : NULL, .rows = end - begin, .cols = m.cols};
}

/* One model on one backend: passes over ragged batches, layer by layer. */

/* Observes a pass layer by layer and may call operations ("Layer steps"); functions may be NULL. */
typedef struct dq_watch {
    /* After attention: q, k, v, their input in h, y, and the stream before the layer in x. args: of
     * attend. */
    void (*attended)(void *arg, int layer, const dq_layer_steps *s, const dq_attend_args *args);
    /* Rows first .. first + in.rows - 1 of the inputs of gate and up, and of down. */
    void (*fed)(void *arg, int layer, const dq_layer_steps *s, int64_t first, dq_mat in,
                dq_mat gate);
    /* After the layer, with its output in x. */
    void (*passed)(void *arg, int layer, const dq_layer_steps *s);
    void *arg;
    dq_head_measure *measure; /* [n_layers][n_out] (host), added to; NULL: none */
    const dq_head_look *look; /* [n_layers]; NULL: none */
} dq_watch;

/* Hears progress within passes, as one of a large model takes minutes. */
typedef struct dq_pass_listener {
    /* Between layers: rows through one layer, as a fraction of the model, so that a pass adds up to
     * its rows. NULL: not wanted. */
    void (*tell)(void *arg, double rows);
    void *arg;
} dq_pass_listener;

typedef struct dq_pass {
    dq_logit_spec logit;
    dq_math math;
    dq_pass_listener listener;
    const dq_watch *watch;           /* NULL: none */
    const dq_columns *columns;       /* [n_layers], NULL: none */
    const dq_attention_spans *spans; /* [n_layers], NULL: none */
    bool maps_only; /* ends with the last layer's maps, for columns alone; needs has_peaks */
} dq_pass;

/* A model on a backend with its cache and scratch memory, which grows on demand. Runners may share
 * a backend or a model; both must outlive them. */
typedef struct dq_runner dq_runner;

dq_status dq_runner_new(dq_runner **out, const dq_model *m, dq_backend *b, const dq_kv_spec *kv,
                        dq_err *err);
void dq_runner_free(dq_runner *r); /* NULL allowed */
const dq_model *dq_runner_model(const dq_runner *r);
dq_backend *dq_runner_backend(const dq_runner *r);
dq_kv *dq_runner_kv(dq_runner *r);
const dq_kv_spec *dq_runner_kv_spec(const dq_runner *r);

/* Appends the batch to its sequences. All rows finish layer l before l + 1. *hidden is the state
 * after the last norm, [n_rows, dim], backend memory, valid until the next pass of this runner. Ids
 * outside the vocabulary are DQ_MISMATCH; a NaN or infinity in the final state is DQ_DAMAGED naming
 * the row's sequence and position. maps_only: *hidden is empty, and the state before the last
 * layer's attention is looked at. DQ_STOPPED between layers after Ctrl-C. After any failure the
 * sequences of the batch hold a different length in each layer and must be freed. */
dq_status dq_runner_pass(dq_runner *r, const dq_batch *batch, const dq_pass *pass, dq_mat *hidden,
                         dq_err *err);
/* Rows of a pass that fit in free memory, at most `max`; all where memory is unknown. Counts
 * scratch, cache and final states, plus an eighth. */
int64_t dq_runner_rows(const dq_runner *r, int64_t max);
/* Adds to a DQ_RESOURCE from a pass of so many rows how many would fit. */
dq_status dq_runner_advise(const dq_runner *r, int64_t rows, dq_err *err);

/* Runs a context again after itself and notes how much each token is attended to when the text
 * around it is repeated, which stands for any query (KVzip, arXiv 2505.23416). */

/* Ids repeated at a time, and ids before them that lead in, except at the start. The source uses an
 * instruction there, which needs a model that follows it, and 8 tokens later on. */
enum { DQ_SECOND_PASS_CHUNK = 2048, DQ_SECOND_PASS_LEAD = 8 };

typedef struct dq_second_pass {
    dq_runner *r;
    dq_pass pass; /* logit and math of the passes; what they watch is left out */
    int32_t seq;  /* holds some tokens of the context; as it was afterwards */
    const int32_t *ids;
    int64_t n;         /* ids of the context, at positions 0 .. n - 1 */
    int sink;          /* positions below it are part of every softmax */
    const int64_t *at; /* [n_layers * n_groups + 1] offsets of each layer and group's tokens */
    const int32_t *pos;
} dq_second_pass;

/* peak[at[n_lists]]: see dq_columns. Reads n + lead-ins rows, a pass per chunk on a fork of the
 * sequence, at positions from n on. */
dq_status dq_second_pass_peaks(double *peak, const dq_second_pass *w, dq_err *err);
/* Rows computed; and the first position after all of them. */
int64_t dq_second_pass_rows(int64_t n);
int64_t dq_second_pass_end(int64_t n);

/* Estimated memory of a model and a pass, plus an eighth for rounding, and what fits into given
 * memory. */

enum { DQ_FFN_ROWS = 1024 }; /* rows of the feed-forward part at a time: bounds its scratch */

/* Adds to a DQ_RESOURCE the bits of weights that fit into `available` bytes. Returns its code. */
dq_status dq_memory_fit_advise_bits(const dq_model *m, double available, dq_err *err);

/* Collects a policy's statistics while a prefix runs, then evicts tokens in every layer and KV head
 * group. */

/* Sums over sequences, layers and groups; calls add to it. */
typedef struct dq_evict_report {
    int64_t before, kept; /* tokens */
    int64_t raised;       /* evictions of a sequence whose budget was raised to sink + recent */
    double gap_min;       /* see dq_kv_policy_gap */
    int64_t second_pass;  /* rows that second passes computed */
    int64_t
        beyond; /* contexts of which some of these stood after the positions that the model has */
    /* contexts weighed by key directions where some group held no more tokens than channels: all
     * score alike */
    int64_t flat;
} dq_evict_report;
extern const dq_evict_report dq_evict_report_none; /* gap_min INFINITY */

typedef struct dq_evictor dq_evictor;

/* The runner must outlive it and its cache is used. pass: logit, math and listener of second
 * passes, if the policy needs them. Fails as dq_evict_check and dq_backend_can_evict do. */
dq_status dq_evictor_new(dq_evictor **out, dq_runner *r, const dq_kv_spec *spec,
                         const dq_pass *pass, dq_err *err);
void dq_evictor_free(dq_evictor *e); /* NULL allowed */

/* Before a pass that appends to sequences: what to put into dq_pass.columns ([n_layers], valid
 * until the next call), NULL when the policy needs no sums. Sums of earlier passes of the same
 * sequences go on (a prefix in chunks, a continuation that is evicted again), as far as the
 * sequence has not been rewound; a sequence is new when it holds nothing. Where the policy reads
 * contexts again, the batch's ids are remembered. A window of last rows starts anew with every pass
 * that has as many rows of a sequence and with every eviction: hand the last `window` rows of a
 * prefix to one pass. */
dq_status dq_evictor_watch(dq_evictor *e, const dq_batch *batch, const dq_columns **out,
                           dq_err *err);
/* After the pass: evicts in each sequence of the batch. prefix[i]: tokens so far, evicted ones
 * included, which the budget is for. The choice depends on the sequence alone, not on batch or
 * threads. */
dq_status dq_evictor_run(dq_evictor *e, const dq_batch *batch, const int32_t *prefix,
                         dq_evict_report *report, dq_err *err);
/* A copy of a sequence inherits its parent's sums. */
dq_status dq_evictor_fork(dq_evictor *e, int32_t from, int32_t to, dq_err *err);
void dq_evictor_forget(dq_evictor *e, int32_t seq); /* before the sequence is freed */

#endif
