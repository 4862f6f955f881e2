/* plan_gates: fits what the policy kvzap goes by (kv.h) to a model, on a text.
 *
 * Each window runs once, then again after itself, which gives every token its peak (runner.h). Of each layer and group of KV
 * heads, ln(peak + floor) is fitted to the features of its tokens by least squares with a small ridge; the first tokens, which
 * every cache keeps, are left out. The last quarter of the windows is not fitted: it says how much of the variance is explained,
 * and how much of the quarter that kvzip keeps of all layers and groups together is kept by the gates too.
 * Source: KVzap, arXiv 2601.07891, fits the same numbers to hidden states.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_GATES_H
#define DQ_PLAN_GATES_H

#include "engine/backend.h"
#include "kv/kv.h"
#include "model/model.h"
#include "stat/stat.h"
#include "tasks/windows.h"

enum {
    DQ_PLAN_GATES_WINDOWS = 16, /* without other words */
    DQ_PLAN_GATES_CTX = 1024,
    DQ_PLAN_GATES_LEAST = 8, /* windows */
    DQ_PLAN_GATES_PART = 4   /* one window in so many is not fitted */
};

typedef struct dq_plan_gates_settings {
    const dq_model *model;
    const dq_tokenizer *tok;
    const dq_docs *docs;
    const char *text; /* its path, for messages */
    dq_backend *backend;
    int64_t ctx,
        windows; /* ids of a window, 0: DQ_PLAN_GATES_CTX, or half of the positions; windows at most */
    /* Windows done, of all. */
    void (*step)(void *arg, double done, double total, const char *what);
    void *arg;
} dq_plan_gates_settings;

typedef struct dq_plan_gates {
    dq_plan_gates_settings set;
    dq_windows win;
    int64_t fitted; /* windows 0 .. fitted - 1 */
    dq_kv_gates *gates;
    /* of the windows that were not fitted */
    double
        explained; /* share of the variance of ln(peak + floor) over all tokens of all layers and groups */
    dq_mean kept; /* share of kvzip's quarter, mean over windows */
    /* private */
    int n_lists;
    struct dq_plan_gates_sums *sums; /* [n_lists] */
    dq_arena *arena;
} dq_plan_gates;

/* Cuts the text. DQ_MISMATCH for too little of it, for windows that the model has no positions for, for a device that cannot. */
dq_status dq_plan_gates_open(dq_plan_gates **out, const dq_plan_gates_settings *s, dq_err *err);
/* By all ranks (base/ranks.h), which share the windows; rank 0 has what comes of it. */
dq_status dq_plan_gates_run(dq_plan_gates *p, dq_err *err);
void dq_plan_gates_close(dq_plan_gates *p); /* NULL allowed */

/* The fit alone: normal equations of n features, of which the last is 1. */
typedef struct dq_plan_gates_sums {
    int64_t n;
    double *squares; /* [n][n], the lower triangle */
    double *by;      /* [n] sums of feature times target */
} dq_plan_gates_sums;
/* Adds rows f[rows][n] with their targets y[rows]; the result does not depend on the number of threads. */
void dq_plan_gates_add(dq_plan_gates_sums *s, const double *f, const double *y, int64_t rows);
/* weight[n] that minimize the sum of squared errors plus a thousandth of each feature's own variance. DQ_DAMAGED where no
 * token was added or sums are not finite. */
dq_status dq_plan_gates_solve(double *weight, const dq_plan_gates_sums *s, dq_err *err);

#endif
