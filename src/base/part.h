/* part: finished work as a journal of JSON objects. The first, its head, says what the work belongs to: the whole of a run, or
 * the part of it that one of several processes computes. The last one of a part says that nothing is left to do.
 *
 *   {"schema": .., "key": .., ...}     the head; of a part also "shard": I, from 1, and "shards": N
 *   {...}                              steps, in any order
 *   {"end": true}
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PART_H
#define DQ_PART_H

#include "base/journal.h"
#include "base/json.h"

#include <stdio.h>

/* What a head has to say. */
typedef struct dq_part_head {
    const char *schema, *key; /* the form of the steps; what their bits depend on */
    int shard, n_shards;      /* from 1; 0 and 0: the whole */
} dq_part_head;

/* Appends an object, which it takes over. */
dq_status dq_part_add(dq_journal *j, json_t *step, dq_err *err);
/* Appends the last line, and syncs. */
dq_status dq_part_end(dq_journal *j, dq_err *err);

/* Takes an object of a file; line 0 is the head. */
typedef dq_status dq_part_take(void *arg, int64_t line, const json_t *step, dq_err *err);
/* DQ_MISMATCH: of another form, of another run, or (any_shard false) of another part of it. */
dq_status dq_part_check(const json_t *head, const dq_part_head *want, bool any_shard, dq_err *err);
/* Takes all lines but the last one of a file that stays as it is. DQ_MISMATCH: there is no last one. */
dq_status dq_part_read(const char *path, dq_part_take *take, void *arg, dq_err *err);
/* Takes all lines, and goes on after them. *ended: the last one is there, and stays. */
dq_status dq_part_resume(dq_journal **j, bool *ended, const char *path, dq_part_take *take,
                         void *arg, dq_err *err);
/* The head alone, which is the caller's, and whether the last line is there. DQ_DAMAGED without a line. */
dq_status dq_part_read_head(json_t **head, bool *ended, const char *path, dq_err *err);

/* , "KEY": "X X .."      numbers to the last bit, with single spaces between */
void dq_part_put_reals(FILE *f, const char *key, const double *x, int64_t n);
/* The n numbers of a key. DQ_DAMAGED: more, fewer or none. */
dq_status dq_part_get_reals(double *x, int64_t n, const json_t *step, const char *key, dq_err *err);

#endif
