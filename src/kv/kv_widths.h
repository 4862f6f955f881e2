/* kv_widths: widths of the codes of a KV cache by layer, and of keys by map, as a text: the layers' entries with | between
 * them, keys and values with : between them, the widths of the first and of the second map's keys with + between them:
 * "3|5+3:3|6". An entry for several layers says so, "4*6|5+3"; one that ends with * is for those that are left, and an
 * entry alone is for all.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_WIDTHS_H
#define DQ_KV_WIDTHS_H

#include "base/base.h"

enum { DQ_KV_LISTS = 240 /* bytes of a text, with its 0 */, DQ_KV_RUNS = 64 };

/* Consecutive layers with the same widths. */
typedef struct dq_kv_run {
    int layers;  /* 0: those that are left, -1: all */
    int bits[2]; /* of the first and of the second map; alike where nothing else is said */
} dq_kv_run;

typedef struct dq_kv_widths {
    dq_kv_run run[2][DQ_KV_RUNS]; /* keys, values */
    int n[2];                     /* at least 1 */
} dq_kv_widths;

/* DQ_USAGE: no such text, no such width, or values by map. 16 bits: all layers of a side, or none. */
dq_status dq_kv_widths_parse(dq_kv_widths *out, const char *text, dq_err *err);
/* The same for a model of n_layers: each run has its layers, neighbours differ, one alone is for all. DQ_MISMATCH: they are not that many. */
dq_status dq_kv_widths_fit(dq_kv_widths *w, int n_layers, dq_err *err);
/* As dq_kv_widths_parse reads it. DQ_USAGE: longer than DQ_KV_LISTS. */
dq_status dq_kv_widths_text(char text[DQ_KV_LISTS], const dq_kv_widths *w, dq_err *err);

/* All of a side have one width. */
bool dq_kv_widths_uniform(const dq_kv_widths *w, int side);
bool dq_kv_widths_by_map(const dq_kv_widths *w);
int dq_kv_widths_largest(const dq_kv_widths *w, int side);
/* Of what dq_kv_widths_fit has seen; the two maps have as many keys. map: 0 or 1. */
double dq_kv_widths_mean(const dq_kv_widths *w, int side);
int dq_kv_widths_of(const dq_kv_widths *w, int side, int layer, int map);

#endif
