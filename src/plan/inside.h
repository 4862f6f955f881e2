/* What the files of src/plan share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_INSIDE_H
#define DQ_PLAN_INSIDE_H

#include "base/json.h"
#include "calibrate/calibrate.h"
#include "eval/eval.h"
#include "kv/kv.h"
#include "plan/plan_cache.h"
#include "plan/plan_weights.h"
#include "plan/sensitivity.h"
#include "quantize/quantize.h"
#include "stat/stat.h"
#include "tensor/tensor.h"
#include "work/work.h"

/* The interval's upper end is at most the limit; false without an interval. */
bool dq_plan_decide_keeps(dq_interval i, double limit);

/* DQ_RESOURCE. */
dq_status dq_plan_numbers_of(dq_plan_numbers *out, const dq_plan_sums *s, dq_err *err);

/* As dq_work_take_reals. DQ_DAMAGED: also one that is no number of nats. */
dq_status dq_plan_take_nats(double *x, int64_t n, const json_t *line, const char *key, dq_err *err);

/* How a layer differs from the model's own; {0}: not at all. */
typedef struct dq_plan_change {
    const dq_layer *layer;      /* a copy with other weights; NULL: the model's */
    const dq_logit_spec *logit; /* of attention logits; NULL: not rounded */
    const bool
        *rounds; /* [n_q] query heads that are rounded; NULL: all. Backends that have_rounds */
    const dq_kv_spec *kv; /* of its cache; NULL: plain */
} dq_plan_change;

/* Products that have inputs of their own. */
typedef enum dq_plan_product {
    DQ_PLAN_QKV,
    DQ_PLAN_O,
    DQ_PLAN_GATE_UP,
    DQ_PLAN_DOWN,
    DQ_PLAN_PRODUCTS
} dq_plan_product;
/* Hears the inputs of every product of a layer, in the order of products, and heads before they
 * attend. Rows of DQ_PLAN_DOWN come in pieces of at most DQ_FFN_ROWS; with several ranks, as whole
 * chunks. */
typedef struct dq_plan_inputs {
    void (*see)(void *arg, dq_plan_product product, dq_mat x); /* NULL: nobody is told */
    void (*see_heads)(void *arg,
                      const dq_layer_steps *s); /* q, k, v as attention has them; NULL likewise */
    void *arg;
} dq_plan_inputs;

typedef struct dq_plan_reference {
    const dq_calib_text *text;
    const dq_model *source;
    dq_calib_pass pass;
    /* STREAM: of the source at some layer; BEFORE, with keeps_next: a layer later; OTHER: its final
     * states */
    dq_activations act;
    bool keeps_next;
    double *logp;    /* [pass.n_rows] of the source: ln p of the id after each row */
    int64_t *scored; /* [n_clusters of the text] ids */
    dq_plan_work *work;
    dq_arena *arena;
} dq_plan_reference;

/* By all ranks. Runs the source once, whose stream then stands at layer 0. b: a backend in host
 * memory; `beside`: where the scratch file goes. DQ_DAMAGED: the model's logits are not finite. */
dq_status dq_plan_reference_new(dq_plan_reference *p, const dq_calib_text *text,
                                const dq_model *source, dq_backend *b, const char *beside,
                                bool keeps_next, dq_plan_work *work, dq_err *err);
/* Multiplications and additions of running the source over `ids` tokens, and of measuring from
 * layer `from` on. */
double dq_plan_reference_source_flop(const dq_model *m, double ids);
double dq_plan_reference_flop(const dq_model *m, int from, double ids);
double dq_plan_reference_kld_flop(const dq_model *m, int from, double ids); /* the KLD alone */
void dq_plan_reference_end(dq_plan_reference *p); /* {.act.file.fd = -1} allowed */
typedef struct dq_plan_other {
    const dq_model *m; /* whose weights count but for those below */
    int from; /* first layer that differs, where the source's stream is; n_layers: the head */
    const dq_plan_change *change; /* of m->layer[from]; NULL: none */
    const dq_weight *embed; /* it begins here, whatever `from` is; NULL: with the source's stream */
    const dq_weight *head;
    const char *what; /* for progress */
} dq_plan_other;
/* By all ranks. kld[n] and loss[n] of *out are the caller's; loss NULL: not wanted. DQ_DAMAGED:
 * logits are not finite; DQ_STOPPED. */
dq_status dq_plan_reference_measure(dq_plan_sums *out, dq_plan_reference *p,
                                    const dq_plan_other *other, dq_err *err);

/* For one with `keeps_next`: runs the source through layer `from`, where its stream stands, and
 * keeps the output beside it; -1: the embeddings. inputs NULL: none. */
dq_status dq_plan_reference_next(dq_plan_reference *p, int from, const dq_plan_inputs *inputs,
                                 dq_err *err);
/* By all ranks, after it: how far a change moves the residual stream within its layer alone: the
 * mean over scored rows of |x' - x|^2 / |x|^2, x being the source's after layer `from` of `other`,
 * or its embeddings where these differ. DQ_DAMAGED where it is not finite. */
dq_status dq_plan_reference_local(double *out, dq_plan_reference *p, const dq_plan_other *other,
                                  dq_err *err);
/* By all ranks: the output that dq_plan_reference_next kept becomes the stream. */
dq_status dq_plan_reference_move(dq_plan_reference *p, dq_err *err);

/* Any slot but DQ_PLAN_EMBED and DQ_PLAN_HEAD. */
dq_weight *dq_plan_probe_weight(dq_layer *l, dq_plan_slot slot);

/* The option to measure: the narrowest of at least 3 bits, whose error is small yet visible; else
 * the widest. */
int dq_plan_probe_measured(const dq_plan_tensor *t);

typedef struct dq_plan_probe {
    const dq_model *m;
    const dq_calibrate_rule *rule;
    dq_backend *b;
    const char *beside;         /* where scratch files are */
    const dq_calib_text *calib; /* for Hessians */
    dq_plan_reference *search;  /* with its stream at layer 0; it is moved on */
    dq_plan_tensor *tensor;     /* [n] in any order */
    int64_t n;
    /* Called for each tensor whose numbers are complete; known ones are not computed again. */
    dq_status (*found)(void *arg, int64_t tensor, dq_err *err);
    void *arg;
    dq_plan_work *work;
} dq_plan_probe;

/* By all ranks, which know the same tensors; fills loss and kld. DQ_DAMAGED: inputs or weights are
 * not finite; DQ_STOPPED. */
dq_status dq_plan_probe_run(dq_plan_probe *p, dq_err *err);
/* Multiplications and additions still to do, for texts of so many tokens. */
double dq_plan_probe_flop(const dq_plan_probe *p, int64_t calib_ids, int64_t search_ids);

dq_quantize_settings dq_plan_weights_uniform(const dq_plan_weights *p, int bits);

/* DQ_RESOURCE: the machine, or this process, has too little memory. */
dq_status dq_plan_memory_check(const dq_plan_weights *p, dq_err *err);

/* The values of w[rows, cols], freed by dq_block_free, after a failure too. DQ_DAMAGED: one is not
 * finite; DQ_RESOURCE. */
dq_status dq_plan_round_values(float **out, const dq_weight *w, dq_err *err);
/* F32 where some group's scale may exceed F16, as in a container. */
dq_dtype dq_plan_round_scale(const float *w, int64_t rows, int64_t cols, const dq_quant_spec *spec);
/* Rounds to nearest, with all inputs weighted equally; adds to *loss. DQ_RESOURCE. */
dq_status dq_plan_round_nearest(dq_coded *out, dq_gptq_loss *loss, const float *w, int64_t rows,
                                int64_t cols, const dq_quant_spec *spec, dq_err *err);

/* out NULL: nothing is run. */
dq_calibrate_settings dq_plan_trial_calibrate(const dq_plan_weights *p, const char *out);

/* Replaces in->ctx 0 by 2048 tokens, or all positions. DQ_MISMATCH: windows beyond the model's
 * positions. */
dq_status dq_plan_caches_fit(dq_plan_caches_input *in, dq_err *err);
/* Cuts the text and reads questions; `in` and the arena must outlive it. With too little text win.n
 * is 0 or too small: the caller says what it needs. */
dq_status dq_plan_caches_cut(dq_plan_caches *c, const dq_plan_caches_input *in,
                             const dq_plan_caches_kind *kind, dq_arena *a, dq_err *err);
/* Windows begin .. end - 1 search. DQ_MISMATCH: all others lie in one of several documents, so
 * intervals between documents cannot be given. */
dq_status dq_plan_caches_split(dq_plan_caches *c, int64_t begin, int64_t end, dq_err *err);
/* By all ranks. Opens the runner, and the journal with earlier results. DQ_MISMATCH: those had
 * other inputs or settings. */
dq_status dq_plan_caches_begin(dq_plan_caches *c, dq_err *err);
void dq_plan_caches_end(dq_plan_caches *c); /* {0} allowed */
/* Finds or adds a cache by name; -1: see err. */
int dq_plan_caches_find(dq_plan_caches *c, const char *name, dq_err *err);
/* The configuration behind a name. DQ_MISMATCH: the model, or the device, does not have it. */
dq_status dq_plan_caches_spec(dq_kv_spec *out, const dq_plan_caches *c, const char *name,
                              dq_err *err);
/* By all ranks. Measures cache[n] on such windows, where that is not done. Finished work
 * survives DQ_STOPPED. */
dq_status dq_plan_caches_run(dq_plan_caches *c, const int *cache, int n,
                             dq_plan_caches_windows which, const char *what, dq_err *err);
/* By one rank. Seconds per token, the unquantized cache included, from a window run now; ranks
 * count as equally fast. */
dq_status dq_plan_caches_pace(double *seconds, dq_plan_caches *c, int cache, dq_err *err);
/* What a cache loses on such windows. */
dq_status dq_plan_caches_numbers_of(dq_plan_numbers *out, const dq_plan_caches *c, int cache,
                                    dq_plan_caches_windows which, dq_err *err);
/* The same on the unseen windows, minus what cache `less` loses there; less -1: nothing. */
dq_status dq_plan_caches_found_of(dq_plan_found *out, const dq_plan_caches *c, int cache, int less,
                                  double outside, dq_err *err);
/* Announces so many caches of each from here on, for progress. */
void dq_plan_caches_expect(dq_plan_caches *c, int64_t search, int64_t unseen);
void dq_plan_caches_stage(const dq_plan_caches *c, const char *name);

/* By all ranks. Asks cache[n] all questions, where that is not done. Finished work survives
 * DQ_STOPPED. */
dq_status dq_plan_caches_ask_run(dq_plan_caches *c, const int *cache, int n, const char *what,
                                 dq_err *err);
/* Announces so many more caches to ask, for progress. */
void dq_plan_caches_ask_expect(dq_plan_caches *c, int64_t caches);
/* The cache must have been asked. */
dq_status dq_plan_caches_ask_mean(dq_mean *out, const dq_plan_caches *c, int cache, dq_err *err);

#endif
