/* plan_probe: how far a model goes from itself when one tensor alone is rounded, for each tensor and width.
 *
 * A tensor is rounded at each width, by the method that the plan is for and with the Hessian of its inputs in the model before
 * rounding; an embedding that is no head, to the nearest code. What it costs is measured at one width. At the others it goes by
 * the loss of the rounding, the output's squared error: for small errors KLD is a quadratic form of them. A tensor of layer l
 * costs the layers from l on for the text it is measured on, whose stream at layer l is kept; memory is that of one layer's
 * Hessians, and of a head.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_PROBE_H
#define DQ_PLAN_PROBE_H

#include "calibrate/calibrate.h"
#include "plan/plan_alloc.h"
#include "plan/weights/plan_part.h"

typedef enum dq_plan_slot {
    DQ_PLAN_Q,
    DQ_PLAN_K,
    DQ_PLAN_V,
    DQ_PLAN_OUT,
    DQ_PLAN_GATE,
    DQ_PLAN_UP,
    DQ_PLAN_DOWN_PROJ,
    DQ_PLAN_EMBED,
    DQ_PLAN_HEAD
} dq_plan_slot;

/* Of a layer: any slot but DQ_PLAN_EMBED and DQ_PLAN_HEAD. */
dq_weight *dq_plan_probe_weight(dq_layer *l, dq_plan_slot slot);

/* A tensor that is packed, the widths that it may have, and what each costs. */
typedef struct dq_plan_tensor {
    const char *name;
    dq_plan_slot slot;
    int layer; /* 0 for embedding and head */
    int64_t rows, cols;
    dq_quant_spec spec; /* but for its width */
    int n;
    int bits[DQ_PLAN_WIDTHS];      /* ascending */
    int64_t bytes[DQ_PLAN_WIDTHS]; /* with scales */
    double loss[DQ_PLAN_WIDTHS];   /* squared error of the output over its square, where known */
    dq_mean kld;                   /* nats at bits[measured], where known */
    int measured;
    bool known;
} dq_plan_tensor;

/* KLD at a width, by the loss; the error is a share of it at all of them. */
dq_mean dq_plan_probe_kld(const dq_plan_tensor *t, int option);
/* The option to be measured: the narrowest of at least 3 bits, where errors are small and yet seen; else the widest. */
int dq_plan_probe_measured(const dq_plan_tensor *t);

typedef struct dq_plan_probe {
    const dq_model *m;
    const dq_calibrate_rule *rule;
    dq_backend *b;
    const char *beside;         /* where scratch files are */
    const dq_calib_text *calib; /* for Hessians */
    dq_plan_part *search;       /* with its stream at layer 0; it is moved on */
    dq_plan_tensor *tensor;     /* [n] in any order */
    int64_t n;
    /* Told of every tensor when its numbers are there; what is known already is not computed. */
    dq_status (*found)(void *arg, int64_t tensor, dq_err *err);
    void *arg;
    dq_plan_work *work;
} dq_plan_probe;

/* By all ranks (base/ranks.h), which know the same tensors. Fills loss and kld of all tensors. DQ_DAMAGED for inputs or weights that are not finite; DQ_STOPPED. */
dq_status dq_plan_probe_run(dq_plan_probe *p, dq_err *err);
/* Multiplications and additions of what is not known yet, for texts of so many tokens. */
double dq_plan_probe_flop(const dq_plan_probe *p, int64_t calib_ids, int64_t search_ids);

#endif
