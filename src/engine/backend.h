/* Batches, and the operations of a device.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_BACKEND_H
#define DQ_BACKEND_H

#include "engine/observe.h"
#include "kv/kv.h"
#include "model/head_order.h"
#include "tensor/tensor.h"

/* f32 activations, row-major, in backend memory; only the backend dereferences p. */
typedef struct dq_mat {
    float *p;
    int64_t rows, cols;
} dq_mat;

/* A pass appends rows cu_rows[i] .. cu_rows[i+1]-1 to sequence seq[i]. A sequence occurs at most
 * once in a batch; a range may be empty. Positions are absolute, not negative, ascend by 1 inside a
 * range and lie above those that the sequence holds; they need not start at 0 or right after them
 * (goldens start at 60 000). The batch is a view: arrays belong to the caller, on the host. */
typedef struct dq_batch {
    int n_seq;
    int64_t n_rows;         /* cu_rows[n_seq] */
    const int64_t *cu_rows; /* [n_seq + 1], from 0 */
    const int32_t *seq;     /* [n_seq] handles from kv_seq_new or kv_fork of dq_ops */
    const int32_t *ids;     /* [n_rows] */
    const int32_t *pos;     /* [n_rows] */
} dq_batch;

/* Operations of the forward pass, the KV cache and reducers, a table per device. The CPU in f32
 * defines correct results; kernels never learn an architecture's name. */

typedef struct dq_kv dq_kv; /* cache of all layers and sequences, defined by each backend */
typedef struct dq_backend dq_backend;
struct dq_model; /* operations see numbers, never a model */

/* Per-key sums that eviction policies read, over the rows of one attend call (or the last
 * `last_rows` of each sequence; 0: all). For sequence i of the batch and KV head group g the
 * n = kv_count(b, kv, seq, layer, g, NULL) values start at column offset[i * n_groups + g].
 * mass[m]: sum over rows and output heads of the group of the probability that map m gives the key
 * (a map that several output heads share counts for each of them); lambda_mass: of lambda A2; diff:
 * of |A1 - lambda A2|. Values are added to the arrays (host memory, f64), any of which may be NULL.
 * peak: for tokens from .. to - 1 of a list's range, the maximum over rows and output heads of the
 * group (and what the array holds) of the larger of A1 and |lambda| A2, each map a softmax over the
 * list's first `sinks` tokens, these, and those from `own` on, alone. Only where has_peaks. */
typedef struct dq_column_range {
    int64_t sinks, from, to, own; /* indices in the list; sinks <= from <= to <= own */
} dq_column_range;

typedef struct dq_columns {
    int64_t last_rows;
    const int64_t *offset; /* [n_seq * n_groups] */
    double *mass[2], *lambda_mass, *diff;
    double *peak;
    const dq_column_range *range; /* [n_seq * n_groups], with peak only */
} dq_columns;

/* Attention for all rows of a batch, whose keys and values are appended already. */
typedef struct dq_attend_args {
    const dq_attn *attn;
    const dq_batch *batch;
    dq_kv *kv;
    int layer;
    dq_mat q;      /* [n_rows, n_q * head_dim], after RoPE */
    dq_mat lambda; /* [n_rows, n_out], DQ_LAMBDA_TOKEN only, else p NULL */
    dq_logit_spec logit;
    const bool *rounds; /* [n_q] query heads with rounded logits, NULL: all; needs has_rounds */
    dq_math math;       /* qk, pv */
    const float
        *absmax; /* [n_seq, n_q] backend memory from attn_absmax: tensor and head granularity;
                             for tensor granularity every entry of a sequence holds the maximum */
    const dq_columns *columns; /* NULL: none, as where attn has a window */
    dq_head_measure *measure;  /* [n_out] on the host: adds what the rows look like; NULL: none */
    const dq_head_look *look;  /* observe.h; NULL: none. Only where profile_logits is there */
    /* attention to classes of tokens (observe.h); NULL: none */
    const dq_attention_spans *spans;
} dq_attend_args;

/* Accumulates magnitudes of logits or activations (host). */
typedef struct dq_profile {
    dq_tally *all, *ordinary; /* of all tokens; of the ordinary ones */
    dq_moments *head;         /* of logits: [n_q][DQ_TOKEN_CLASSES] */
    dq_channels *channels;    /* of activations */
    const uint8_t *class;     /* [n_rows of the batch] dq_token_class */
    int32_t seq_base;         /* + index in the batch is place.seq */
} dq_profile;

/* A run's needs, for dq_ops.can. */
typedef struct dq_need {
    const char *path; /* of the model, for messages */
    int head_dim;     /* 0: not known yet */
    dq_math math;
    const dq_kv_spec *kv;
} dq_need;

/* The operations of one device.
 *
 * Errors: kernels return nothing; the first failure sticks in b->err, later kernels do nothing,
 * sync reports it. free, kv_free, kv_seq_free and weight_release work after a failure too;
 * kv_count, kv_bytes and kv_seq_new act on the host and at once.
 *
 * Order: operations run in the order of their calls and may be asynchronous. Argument structs,
 * batches and other host inputs are consumed before a call returns, except that a batch and its
 * arrays must stay as they are from pass to sync. Host outputs (logp, top1, kld, rows, columns,
 * measures, spans, tallies) are valid, and must stay alive, until sync. get blocks. Memory given to
 * free may still be in use by earlier calls: the backend orders that.
 *
 * Rows: dst never overlaps src unless said so. A row's result does not depend on the other rows of
 * a call, on how many there are, or on the number of threads (bit for bit), except where a group of
 * dq_logit_spec spans rows. */
typedef struct dq_ops {
    const char *name;                            /* "cpu", "cuda" */
    void *(*alloc)(dq_backend *b, size_t bytes); /* NULL on failure; 64-byte aligned */
    void (*free)(dq_backend *b, void *p);
    void (*put)(dq_backend *b, void *dst, const void *host, size_t bytes);
    void (*get)(dq_backend *b, void *host, const void *src, size_t bytes);
    void (*sync)(dq_backend *b);
    void (*close)(dq_backend *b);
    /* DQ_MISMATCH with what is missing: kernels do not support the need. */
    dq_status (*can)(const dq_need *need, dq_err *err);
    /* Optional (NULL: unknown): bytes that alloc can still give, less what operations will take.
     * Works after a failure too. */
    size_t (*memory)(const dq_backend *b);
    /* Optional (NULL: none): what attend takes of it for a sequence of so many tokens. */
    double (*attend_bytes)(const dq_backend *b, const dq_kv *kv, int64_t tokens);

    /* Optional (NULL: unknown): host bytes that logprob and kld take, and keep, for so many rows of
     * logits. */
    int64_t (*logit_bytes)(int64_t rows, int64_t vocab);
    /* What benchmarks compare with; they time the calls. Both optional (NULL: not known). A
     * millisecond or so, on all threads, of nothing but the multiply-adds of which products in
     * `num` with w are made (w NULL: those of attention), on registers alone, so that no such
     * product is faster. Returns the operations of the product that this would be (a multiply-add
     * counts as two) and the instruction's name (static); 0 and NULL: there are no products in
     * `num`. */
    double (*peak_ops)(dq_backend *b, dq_num num, const dq_weight *w, const char **instruction);
    /* Reads p[bytes] from alloc once, a share per thread; bytes is a multiple of 64. */
    void (*peak_read)(dq_backend *b, const void *p, size_t bytes);

    /* Both optional (NULL: weights are used where they lie). Makes w ready for the operations
     * below, on the device, under the address of its data; counted, so that what is acquired twice
     * is there once, until it is released as often. w->data must not change meanwhile. False, with
     * nothing acquired and the sticky error set, when memory is short. */
    bool (*weight_acquire)(dq_backend *b, const dq_weight *w);
    void (*weight_release)(dq_backend *b, const dq_weight *w);

    /* embed reads in place: a table that no product reads need not be acquired. */
    bool embeds_in_place;
    /* dst[rows, cols] = table[ids[row]], decoded, times scale; ids on the host, checked by the
     * caller. */
    void (*embed)(dq_backend *b, dq_mat dst, const dq_weight *table, const int32_t *ids,
                  float scale);
    /* dst may be src. gain[cols] on the host. */
    void (*rms_norm)(dq_backend *b, dq_mat dst, dq_mat src, const float *gain, float eps);
    /* dst = src W^T + bias (bias on the host, or NULL), in the arithmetic `num`. int8: W is packed;
     * src is rounded to 8 bits by row and column group of W, sums are exact, groups are added in
     * f32. */
    void (*matmul)(dq_backend *b, dq_mat dst, dq_mat src, const dq_weight *w, const float *bias,
                   dq_num num);
    /* What matmul runs for w in `num`, by the name (static) that reports give it; NULL: nothing,
     * matmul fails. matmul itself goes by the decision after it; of a weight that is not acquired
     * yet it may name both kernels that are possible. */
    const char *(*matmul_kernel)(const dq_backend *b, const dq_weight *w, dq_num num);
    /* table[n, dim]: cos of the angles in the first half of columns, sin in the second, times
     * rope->amplitude; the angle is the f32 product pos * inv_freq. pos on the host. */
    void (*rope_table)(dq_backend *b, dq_mat table, const int32_t *pos, const dq_rope *rope);
    /* In place; x[rows, heads * dim], table from rope_table for the same rows. */
    void (*rope)(dq_backend *b, dq_mat x, dq_mat table, dq_rope_order order);
    /* In place: every dim values (a power of two) times the normalized Hadamard matrix (Sylvester's
     * order: stages of distance 1, 2, 4 ..., then 1/sqrt(dim)). */
    void (*hadamard)(dq_backend *b, dq_mat x, int dim);
    /* gate = act(gate) * up, in place. param[4] on the host: dq_layer.act. */
    void (*ffn_act)(dq_backend *b, dq_mat gate, dq_mat up, dq_act act, const float *param);
    /* x = 1 / (1 + exp(-x)), in place. */
    void (*sigmoid)(dq_backend *b, dq_mat x);
    /* dst += src */
    void (*add)(dq_backend *b, dq_mat dst, dq_mat src);
    /* dst[i] = src[index[i]], index on the host. */
    void (*gather)(dq_backend *b, dq_mat dst, dq_mat src, const int64_t *index);
    /* *row = the first row of x with a NaN or an infinity, or -1. */
    void (*first_bad_row)(dq_backend *b, int64_t *row, dq_mat x);
    /* A head in codes is multiplied by their values, as `matmul` does in f32; num int8 multiplies
     * any head in f32. For each row of hidden[n, dim] (after the last norm): logp[i] = ln
     * softmax(hidden head^T) [target[i]] in nats, top1[i] = index of the largest logit (the lowest
     * among equals). Host outputs, either may be NULL; no [n][vocab] array is made. target -1, or
     * NULL: that of top1. A logit of NaN or infinity makes logp NaN (top1 does not show it): see
     * dq_score_check_logp. */
    void (*logprob)(dq_backend *b, double *logp, int32_t *top1, dq_mat hidden,
                    const dq_weight *head, const int32_t *target, dq_num num);
    /* kld[i] = KL(softmax(ref ref_head^T) || softmax(hidden head^T)) in nats, on the host; heads
     * have equally many rows. */
    void (*kld)(dq_backend *b, double *kld, dq_mat ref, const dq_weight *ref_head, dq_num ref_num,
                dq_mat hidden, const dq_weight *head, dq_num num);

    /* For any number of sequences, n_layers of one head order; map must outlive it. */
    dq_kv *(*kv_new)(dq_backend *b, const dq_head_order *map, int n_layers, const dq_kv_spec *spec);
    void (*kv_free)(dq_backend *b, dq_kv *kv);
    /* Makes an empty sequence; or a copy (pages are shared, copied on write). Handles are small
     * integers, reused after kv_seq_free; -1 on failure. */
    int32_t (*kv_seq_new)(dq_backend *b, dq_kv *kv);
    int32_t (*kv_fork)(dq_backend *b, dq_kv *kv, int32_t seq);
    void (*kv_seq_free)(dq_backend *b, dq_kv *kv, int32_t seq);
    /* Appends rows k, v[n_rows, n_kv * head_dim] (k after RoPE) to a layer; new positions must lie
     * above those held. reads: the math.qk in which these rows attend. A device may keep what they
     * read unquantized for that alone, till the next kv_append, kv_keep or kv_compact; DQ_BUG
     * later. */
    void (*kv_append)(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, dq_mat k,
                      dq_mat v, dq_num reads);
    /* Drops tokens at positions >= `length` in all layers and groups. DQ_BUG: a query at `length`
     * would read unquantized what is held as codes only, or see what has left a window; rewind
     * less, or fork before. */
    void (*kv_rewind)(dq_backend *b, dq_kv *kv, int32_t seq, int32_t length);
    /* Keeps tokens kept[n] (ascending indices) of one layer and group; codes stay as they are. */
    void (*kv_keep)(dq_backend *b, dq_kv *kv, int32_t seq, int layer, int group,
                    const int32_t *kept, int64_t n);
    /* After attend: keeps only codes of what every later row reads as codes, and no page of which
     * none sees a token; never changes a result. window: of the layer's dq_attn. */
    void (*kv_compact)(dq_backend *b, dq_kv *kv, int layer, const dq_batch *batch, int window);
    /* sum[count]: per token, |k|^2 over the group's key heads, as a query at position t reads them
     * (host). DQ_BUG: the cache does not hold what that query reads. */
    void (*kv_key_norms)(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                         int32_t t, double *sum);
    /* Optional (NULL). cosine[count]: per token, the sum over the group's key heads of the cosine
     * between its key and the mean of k / |k|, read likewise (0 for a zero key). */
    void (*kv_key_cosines)(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                           int32_t t, double *cosine);
    /* Optional (NULL: not there). leverage[count] = x (X'X + e I)^-1 x' for each token, read in the
     * same way: its x has the group's key heads side by side as they were before `rope`, less the
     * mean over all tokens held; e = 0.01, or more by the first power of ten with which there is a
     * factor. DQ_DAMAGED for keys that are not finite. */
    void (*kv_key_leverages)(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                             int32_t t, const dq_rope *rope, double *leverage);
    /* Optional (NULL). row[count][2 * channels] (host): per token, read likewise, the group's keys
     * before `rope`, then its values. */
    void (*kv_rows)(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group, int32_t t,
                    const dq_rope *rope, float *row);
    bool has_peaks;      /* attend knows the column `peak` */
    bool has_rounds;     /* attend knows `rounds` */
    bool attends_in_f16; /* unless in f32 (launch.h) */
    /* Optional (NULL: no). Where it attends in f16: whether keys of this cache that are read as
     * codes are multiplied in int8 all the same. */
    bool (*keys_in_int8)(const dq_backend *b, const dq_kv_spec *kv, int head_dim);
    /* Tokens held; pos[count] (host), unless NULL, gets their positions. */
    int64_t (*kv_count)(dq_backend *b, const dq_kv *kv, int32_t seq, int layer, int group,
                        int32_t *pos);
    dq_kv_bytes (*kv_bytes)(dq_backend *b, const dq_kv *kv);

    /* absmax[n_seq, n_q] (backend memory) = max |S| over what the rows see, 0 without rows; ignores
     * args->absmax and args->logit. */
    void (*attn_absmax)(dq_backend *b, float *absmax, const dq_attend_args *args);
    /* For granularity `tensor`: each row of absmax[n_seq, n_q] becomes its maximum. */
    void (*absmax_join)(dq_backend *b, float *absmax, int n_seq, int n_q);
    /* dst[n_rows, n_out * n_slabs * head_dim] by the formula of head_order.h; dst.p NULL, where
     * has_peaks: only what the arguments have noted of the maps.
     *
     * math.qk int8: a query row is rounded to 8 bits per head and run of channels that keys have
     * one scale for (scale absmax/127, code rint(q / scale)); q . k of a token that the row reads
     * as codes is, in f32 over runs in order, the sum of (float)(exact sum of codes) * (q scale * k
     * scale). attn_absmax and attn_observe see the same S. math.pv int8: for each page, row and run
     * of channels, e_t = D_t * (v scale of t), with D = 0 for what is not read as codes, is rounded
     * to 16 bits (scale max|e|/32512, code rint(e * (32512/max|e|)), nothing where max|e| <
     * 2^-100); y takes, page by page, the f32 product of the page's unquantized tokens, then
     * (float)(exact sum of codes) * scale. Tokens read unquantized (sinks, recent ones, unfilled
     * pages) are multiplied in f32 as ever.
     *
     * With rotate_v the rotation is
     * undone before the norm; q and what was appended are rotated by the caller. */
    void (*attend)(dq_backend *b, dq_mat dst, const dq_attend_args *args);
    /* As matmul_kernel: the kernel of attend for a cache, math.qk and math.pv. */
    const char *(*attend_kernel)(const dq_backend *b, const dq_kv_spec *kv, int head_dim,
                                 dq_math math);
    /* Adds |S| before rounding and softmax, of all query heads and visible entries, to *tally
     * (host); seq_base + index in the batch is place.seq. */
    void (*attn_observe)(dq_backend *b, dq_tally *tally, const dq_attend_args *args,
                         int32_t seq_base);
    /* Adds |x| of x[n_rows, cols] to *tally (host). */
    void (*observe)(dq_backend *b, dq_tally *tally, dq_mat x, const dq_batch *batch, int layer,
                    int32_t seq_base);
    /* Both optional (NULL: not there), and of first passes. The same by classes of tokens and by
     * heads or channels. Of logits: the class is that of the key, and every sequence of the cache
     * has the rows of the batch alone. Of x[n, cols]: rows first .. first + n - 1 of the batch. */
    void (*profile_logits)(dq_backend *b, const dq_profile *to, const dq_attend_args *args);
    void (*profile_rows)(dq_backend *b, const dq_profile *to, dq_mat x, int64_t first,
                         const dq_batch *batch, int layer);
} dq_ops;

struct dq_backend {
    const dq_ops *ops;
    dq_err err; /* sticky */
    int threads;
    void *state;      /* private */
    char device[128]; /* for reports: "cpu, AVX-512, 2 threads" */
};

/* In kernels/backends.c, as dq_backend_blas: "cpu", "auto" (the CPU) or "cuda[:N]". DQ_RESOURCE: no
 * such device, or built without CUDA. threads 0: all processors. */
dq_status dq_backend_open(dq_backend **out, const char *name, int threads, dq_err *err);
void dq_backend_close(dq_backend *b); /* NULL allowed */
/* Waits, and moves the sticky error to err. */
dq_status dq_backend_sync(dq_backend *b, dq_err *err);
/* The clock of what a token costs, in `dq bench` and in the throughput of `dq eval`. One thread of
 * the CPU is timed by what it gets of a processor, which other work on the machine disturbs less;
 * waiting threads may spin, so several are timed by the clock on the wall. */
double dq_backend_seconds(const dq_backend *b);
const char *dq_backend_clock(const dq_backend *b); /* "processor" or "wall" */
/* In what the backend computes where `num` is asked for; and what becomes of that with a cache. */
dq_math dq_backend_math(const dq_backend *b, dq_num num);
dq_math dq_backend_math_of(const dq_backend *b, dq_math math, const dq_kv_spec *kv, int head_dim);
/* DQ_MISMATCH with what is missing: the backend cannot run `math` on this model and KV; int8 needs
 * packed projections, on the CPU a packed cache, too. m NULL: weights are not checked. */
dq_status dq_backend_can(const dq_backend *b, const struct dq_model *m, dq_math math,
                         const dq_kv_spec *kv, dq_err *err);
/* Checks only what a policy (NULL: none) needs. */
dq_status dq_backend_can_evict(const dq_backend *b, const dq_kv_policy *policy, dq_err *err);

/* cuBLAS, which cuda's float products need; in an arena. */
typedef struct dq_blas_about {
    const char *path, *version; /* its file; "13.0.2", NULL: unknown */
    const char *products;       /* what multiplies, and where it may not */
} dq_blas_about;

/* b: an open cuda, on which a few shapes are tried; NULL: the library alone, without a device.
 * DQ_RESOURCE: missing, it does not open, or built without CUDA. */
dq_status dq_backend_blas(dq_blas_about *out, dq_backend *b, dq_arena *a, dq_err *err);

extern const dq_ops dq_ops_cpu;

#endif
