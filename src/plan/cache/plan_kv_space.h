/* plan_kv_space: which widths the codes of a KV cache can have: units, which are keys of a run of layers and a map, or values of a
 * run of layers, each with one of some widths. A mix is a width for each unit. Numbers alone; plan_kv.h measures.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_KV_SPACE_H
#define DQ_PLAN_KV_SPACE_H

#include "kv/kv.h"
#include "plan/plan_alloc.h"

enum { DQ_PLAN_KV_UNITS = 3 * DQ_KV_RUNS };

/* Units are keys by run and map, then values by run. */
typedef struct dq_plan_kv_space {
    int n_layers, together; /* layers of a run, of which the last may have fewer */
    int n_maps;             /* widths that keys of a layer can have: 2, or 1 */
    int n_runs, n_units;
    int bits[DQ_PLAN_WIDTHS], n_bits; /* ascending */
} dq_plan_kv_space;

typedef struct dq_plan_kv_unit {
    int first, layers; /* first .. first + layers - 1 */
    int map;           /* of keys, 0 or 1; -1: of both, or the only one */
    bool values;
} dq_plan_kv_unit;

/* bits[] of the space are there. DQ_USAGE where a text of widths may not hold the mixes: for more layers together it does. */
dq_status dq_plan_kv_space_begin(dq_plan_kv_space *s, int n_layers, int together, int n_maps,
                                 dq_err *err);
dq_plan_kv_unit dq_plan_kv_space_unit(const dq_plan_kv_space *s, int unit);
/* What a bit of the unit costs; costs of all are whole numbers. And a mean of so many bits over keys and values. */
double dq_plan_kv_space_cost(const dq_plan_kv_space *s, int unit);
double dq_plan_kv_space_budget(const dq_plan_kv_space *s, double mean);
/* Mean over keys and values of width[n_units]. */
double dq_plan_kv_space_mean(const dq_plan_kv_space *s, const int *width);
/* As dq_kv_widths_parse reads width[n_units]; every mix has one text. */
dq_status dq_plan_kv_space_text(char text[DQ_KV_LISTS], const dq_plan_kv_space *s, const int *width,
                                dq_err *err);

/* Mixes that are a step away from width[n_units] and within the mean: a unit a width up, and where that does not fit,
 * another one down with it, so that it does. Gives each to `take` until that fails. */
typedef dq_status dq_plan_kv_space_take(void *arg, const int *width, dq_err *err);
dq_status dq_plan_kv_space_near(const dq_plan_kv_space *s, const int *width, double mean,
                                dq_plan_kv_space_take *take, void *arg, dq_err *err);

/* loss[k] of the k-th width from those of its two neighbours: ln of it is nearly a line over bits. Without two that lose something,
 * on the line between them. */
void dq_plan_kv_space_between(double *loss, const dq_plan_kv_space *s, int k);

/* Widths of all keys and of all values that come next to a mean from below, the nearest to each other of those: 4:4 for 4, 5:4
 * and 4:5 for 4.5. Their number, 1 or 2. */
int dq_plan_kv_space_uniform(int pair[2][2], double mean);

#endif
