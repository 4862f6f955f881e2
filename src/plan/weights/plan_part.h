/* plan_part: a part of a text with the source model's answers on it, and how far other weights are from them.
 * Of ranks (base/ranks.h) each runs chunks of its own (calib_pass.h), and all have the sums.
 *
 * Numbers are summed by cluster, the unit of the text that a sequence is of (calib_text.h): ids of one depend on each other.
 * What is scored is the second half of every sequence, as evaluation in chunks does.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_PART_H
#define DQ_PLAN_PART_H

#include "calibrate/activations.h"
#include "plan/weights/plan_pass.h"
#include "plan/weights/plan_work.h"
#include "stat/stat.h"

typedef struct dq_plan_part {
    const dq_calib_text *text;
    const dq_model *source;
    dq_calib_pass pass;
    /* STREAM: of the source at some layer; BEFORE, with keeps_next: a layer later; OTHER: its final states */
    dq_activations act;
    bool keeps_next;
    double *logp;    /* [pass.n_rows] of the source: ln p of the id after each row */
    int64_t *scored; /* [n_clusters of the text] ids */
    dq_plan_work *work;
    dq_arena *arena;
} dq_plan_part;

/* The first id of a sequence of n that is scored, after the row before it; n where none is. */
int64_t dq_plan_part_first(int64_t n);

/* Of each cluster of the text, in the arena. NULL: DQ_RESOURCE. */
int64_t *dq_plan_part_scored(const dq_calib_text *t, dq_arena *a, dq_err *err);

/* Sums over the ids of each cluster. */
typedef struct dq_plan_sums {
    int64_t n; /* clusters */
    const int64_t *ids;
    double *kld,
        *loss; /* [n] KLD against the source, ln p of the source less that of the model, nats */
} dq_plan_sums;

/* By all ranks. Runs the source once; its stream is that of layer 0 then. b: one that computes in host memory. `beside`: where the
 * scratch file is. work: told what is done, now and later. DQ_DAMAGED for a model whose answers are not finite. */
dq_status dq_plan_part_new(dq_plan_part *p, const dq_calib_text *text, const dq_model *source,
                           dq_backend *b, const char *beside, bool keeps_next, dq_plan_work *work,
                           dq_err *err);
/* Multiplications and additions of the source's run over so many tokens, and of measuring, with the layers from `from` on. */
double dq_plan_part_source_flop(const dq_model *m, double ids);
double dq_plan_part_flop(const dq_model *m, int from, double ids);
double dq_plan_part_kld_flop(const dq_model *m, int from, double ids); /* the KLD alone */
void dq_plan_part_end(dq_plan_part *p); /* {.act.file.fd = -1} allowed */
int64_t dq_plan_part_bytes(const dq_calib_text *text, const dq_model *m); /* of the file */
/* Takes the source's stream through one of its layers. */
dq_status dq_plan_part_advance(dq_plan_part *p, int layer, dq_err *err);

/* A model that differs from the source. */
typedef struct dq_plan_other {
    const dq_model *m; /* whose weights count but for those below */
    int from; /* layer at which the source's stream is, and differences begin; n_layers: the head alone differs */
    const dq_plan_change *change; /* of m->layer[from]; NULL: none */
    const dq_weight *embed; /* it begins here, whatever `from` is; NULL: with the source's stream */
    const dq_weight *head;
    const char *what; /* for progress */
} dq_plan_other;
/* By all ranks. kld[n], loss[n] of *out are the caller's; loss NULL: not wanted. DQ_DAMAGED for answers that are not finite;
 * DQ_STOPPED. */
dq_status dq_plan_part_measure(dq_plan_sums *out, dq_plan_part *p, const dq_plan_other *other,
                               dq_err *err);

/* Of a part with `keeps_next`. Runs the source through layer `from`, at whose start its stream is, and keeps what comes out beside
 * it; -1: its embeddings. inputs: NULL for none. */
dq_status dq_plan_part_next(dq_plan_part *p, int from, const dq_plan_inputs *inputs, dq_err *err);
/* By all ranks, after it: how far a change takes the residual stream away within its layer alone. Over scored rows, the mean of
 * |x' - x|^2 / |x|^2, with x what the source has after layer `from` of `other`, or as its embeddings where these differ.
 * DQ_DAMAGED where it is not finite. */
dq_status dq_plan_part_local(double *out, dq_plan_part *p, const dq_plan_other *other, dq_err *err);
/* Likewise: what it kept becomes the stream. */
dq_status dq_plan_part_move(dq_plan_part *p, dq_err *err);

#endif
