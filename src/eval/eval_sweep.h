/* eval_sweep: a sweep while it runs: how far it is, how much it does at a time, and the model whose rows are at work.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_SWEEP_H
#define DQ_EVAL_SWEEP_H

#include "base/work.h"
#include "eval/eval.h"

typedef struct dq_eval_sweep {
    dq_eval *e;
    dq_pace pace; /* a row a kind; rows share kinds where there are many */
    /* The step at hand: units of a row that are finished together. */
    dq_eval_row *row;
    double fed, feeds;  /* rows that passes have computed, and will */
    double rate;        /* seconds that are expected of each; 0: it is done again */
    double begun, told; /* seconds */
    int model;          /* whose rows are at work; -1: none */
    dq_runner *runner;  /* its plain one: the caller's, or the sweep's own */
} dq_eval_sweep;

void dq_eval_sweep_begin(dq_eval_sweep *s, dq_eval *e);
/* Another rank has computed units of a row. */
void dq_eval_sweep_told(dq_eval_sweep *s, const dq_eval_row *row, int64_t begin, int64_t end);

void dq_eval_sweep_end(dq_eval_sweep *s);

/* Rows of the model begin: what memory the one before has taken, packed weights, activations, cached tokens and pages of its
 * files, is given back, and this one has its runner. */
dq_status dq_eval_sweep_hold(dq_eval_sweep *s, int model, dq_err *err);
/* Settings of the row's passes, which tell the sweep how far they are. */
dq_pass dq_eval_sweep_pass(dq_eval_sweep *s, const dq_eval_row *row);
/* The runner of the model that is held, which is the row's, or a new one with the row's cache: a cache has one form for its life. */
dq_status dq_eval_sweep_runner(dq_runner **r, const dq_eval_sweep *s, const dq_eval_row *row,
                               dq_err *err);
void dq_eval_sweep_runner_end(dq_runner *r, const dq_eval_sweep *s);

/* Rows that the row's next step may compute, at most `max`: 512 at first, and more while its own steps take less than half a
 * second; after one of more than a second as many as half a second takes at its pace. A step is at least one unit, so a stop
 * loses one unit of a row, or several that take about a second or have 512 rows. How units are grouped changes no result. */
int64_t dq_eval_sweep_rows(const dq_eval_row *row, int64_t max);
/* Ids that the sequences of the units feed, each counted for itself. */
double dq_eval_sweep_feeds(const dq_eval *e, const dq_eval_row *row, int64_t begin, int64_t end);
/* A step of units begin .. end - 1 of the row begins, and ends. again: the units are finished, and only what is not kept of
 * them is computed once more. */
void dq_eval_sweep_step(dq_eval_sweep *s, dq_eval_row *row, int64_t begin, int64_t end, bool again);
void dq_eval_sweep_step_end(dq_eval_sweep *s);

/* A shard has computed a piece in so many seconds, which its file says. */
void dq_eval_journal_piece(dq_eval *e, int64_t piece, double work, double seconds);
/* What another rank has finished, as dq_eval_finish told it: into the rows and the journal, if there is one. */
dq_status dq_eval_sweep_take(dq_eval_sweep *s, const char *text, size_t len, dq_err *err);

/* Texts: windows begin .. end - 1 of all rows with the reference row `ref`, and of that row; once: the first step of them. */
dq_status dq_eval_sweep_windows(dq_eval_sweep *s, int ref, int64_t begin, int64_t end, bool once,
                                dq_err *err);

#endif
