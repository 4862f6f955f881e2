/* runner: one model on one backend; passes over ragged batches, layer by layer.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_RUNNER_H
#define DQ_RUNNER_H

#include "engine/backend.h"
#include "engine/layer_steps.h"
#include "model/model.h"

/* Who looks at a pass on its way, layer by layer, and calls operations on what is there (layer_steps.h). Any function may be
 * NULL. */
typedef struct dq_watch {
    /* After attention: q, k, v, their input in h, y, and the stream before the layer in x. args: of attend. */
    void (*attended)(void *arg, int layer, const dq_layer_steps *s, const dq_attend_args *args);
    /* Rows first .. first + in.rows - 1 of the inputs of gate and up, and of down. */
    void (*fed)(void *arg, int layer, const dq_layer_steps *s, int64_t first, dq_mat in,
                dq_mat gate);
    /* After the layer, whose output is in x. */
    void (*passed)(void *arg, int layer, const dq_layer_steps *s);
    void *arg;
    dq_head_measure *measure; /* [n_layers][n_out] (host), added to; NULL: none */
    const dq_head_look *look; /* [n_layers]; NULL: none */
} dq_watch;

/* Who is told how far passes are, from within them: a pass of a large model takes minutes. */
typedef struct dq_pass_listener {
    /* Between layers: rows that went through one, each as its part of the model, so that a pass adds up to its rows.
     * NULL: nobody is. */
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
    bool
        maps_only; /* ends with the maps of the last layer, whose columns are all that is wanted: where has_peaks */
} dq_pass;

/* A model placed on a backend, its cache and scratch memory (grown as passes need it). Several
 * runners may share a backend, and several may share a model; both must outlive them. */
typedef struct dq_runner dq_runner;

dq_status dq_runner_new(dq_runner **out, const dq_model *m, dq_backend *b, const dq_kv_spec *kv,
                        dq_err *err);
void dq_runner_free(dq_runner *r); /* NULL allowed */
const dq_model *dq_runner_model(const dq_runner *r);
dq_backend *dq_runner_backend(const dq_runner *r);
dq_kv *dq_runner_kv(dq_runner *r);
const dq_kv_spec *dq_runner_kv_spec(const dq_runner *r);

/* Appends the batch to its sequences. All rows finish layer l before l + 1. *hidden is the state
 * after the last norm, [n_rows, dim], backend memory, valid until the next pass of this runner.
 * Ids outside the vocabulary are DQ_MISMATCH; a NaN or infinity in the final state is DQ_DAMAGED
 * naming the row's sequence and position. maps_only: *hidden is empty, and the state before the last layer's
 * attention is looked at. DQ_STOPPED between layers after Ctrl-C. After any failure the
 * sequences of the batch hold a different length in each layer and must be freed. */
dq_status dq_runner_pass(dq_runner *r, const dq_batch *batch, const dq_pass *pass, dq_mat *hidden,
                         dq_err *err);
/* Rows of one pass that memory holds beside what others have taken, at most `max`; all where the backend does
 * not know its memory. Counts scratch, cache and final states, with an eighth more for what is rounded up. */
int64_t dq_runner_rows(const dq_runner *r, int64_t max);
/* Says after the text of a DQ_RESOURCE, met in a pass of so many rows, how many would fit. */
dq_status dq_runner_advise(const dq_runner *r, int64_t rows, dq_err *err);

#endif
