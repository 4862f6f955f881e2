/* repeats: what a text says twice. Runs of tokens that are copies of an earlier one are no pieces of their own for an error, and
 * a text that goes on repeating itself teaches and tests little.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_REPEATS_H
#define DQ_REPEATS_H

#include "base/json.h"

typedef struct dq_repeats_run {
    const int32_t *ids; /* [n] */
    int64_t n;
    int32_t
        unit; /* runs of one unit stand side by side and are compared together: a document in several sequences */
} dq_repeats_run;

/* cluster[i] of run i: its unit's number from 0, in the order in which they come; units with the same runs, by a hash of
 * 64 bits, have the same number. *n_clusters: how many there are; *n_copies (may be NULL): units that are copies. DQ_RESOURCE. */
dq_status dq_repeats_clusters(int32_t *cluster, int64_t *n_clusters, int64_t *n_copies,
                              const dq_repeats_run *run, int64_t n, dq_err *err);

/* The same of units that are known by a key each. *cluster is in the arena; NULL: no two keys are equal. DQ_RESOURCE. */
dq_status dq_repeats_keys(const int32_t **cluster, const uint64_t *key, int64_t n, dq_arena *a,
                          dq_err *err);

/* Places that put units of a cluster side by side: unit i goes to at[i], where of[] has its cluster. DQ_RESOURCE. */
dq_status dq_repeats_order(int64_t *at, int32_t *of, const int32_t *cluster, int64_t n,
                           dq_err *err);

/* Key of a text, the same whatever white space is around and between its words. */
uint64_t dq_repeats_key(const char *s, size_t len);

/* Places of runs at which DQ_REPEATS_IDS ids begin, and how many of them begin ids that stand nowhere before. DQ_RESOURCE. */
enum { DQ_REPEATS_IDS = 16 };
dq_status dq_repeats_count(int64_t *n_places, int64_t *n_new, const dq_repeats_run *run, int64_t n,
                           dq_err *err);

/* What a text leaves behind, so that another one can be asked for parts of it: the smallest hashes of its places, a uniform
 * draw of what it says. Of a text that has 1 % of another, about 3 of 256 are found again. */
enum { DQ_REPEATS_SKETCH = 256 };
typedef struct dq_repeats_sketch {
    uint64_t hash[DQ_REPEATS_SKETCH]; /* [n], rising */
    int n;
} dq_repeats_sketch;
/* Adds the places of ids[n]. */
void dq_repeats_sketch_add(dq_repeats_sketch *s, const int32_t *ids, int64_t n);
/* found[i] becomes true where a place of ids[n] has hash i. */
void dq_repeats_sketch_find(bool *found, const dq_repeats_sketch *s, const int32_t *ids, int64_t n);
/* A text of 16 hex digits a hash, and back; false: it is none. */
json_t *dq_repeats_sketch_json(const dq_repeats_sketch *s);
bool dq_repeats_sketch_read(dq_repeats_sketch *s, const json_t *text);

#endif
