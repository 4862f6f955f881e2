/* second_pass: runs a context once more after itself, and notes for every token how much the rows that repeat the text
 * around it look at it. What the text needs to be repeated is what any query can ask for (KVzip,
 * arXiv 2505.23416).
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SECOND_PASS_H
#define DQ_SECOND_PASS_H

#include "engine/runner.h"

/* Ids of the context that are repeated at a time, and ids before them that lead in: those of the first have none. The
 * source has an instruction there, which presumes a model that follows it, and the 8 tokens from the second on. */
enum { DQ_SECOND_PASS_CHUNK = 2048, DQ_SECOND_PASS_LEAD = 8 };

typedef struct dq_second_pass {
    dq_runner *r;
    dq_pass pass; /* logit and math of the passes; what they watch is left out */
    int32_t seq;  /* holds some tokens of the context; as it was afterwards */
    const int32_t *ids;
    int64_t n; /* ids of the context, at positions 0 .. n - 1 */
    int sink;  /* positions below it are part of every softmax */
    const int64_t *
        at; /* [n_layers * n_groups + 1]: tokens that each layer and group holds, one list after another */
    const int32_t *pos;
} dq_second_pass;

/* peak[at[n_lists]]: see dq_columns. Reads n + lead-ins rows in passes of one chunk, each after a fork of the
 * sequence, at positions from n on. */
dq_status dq_second_pass_peaks(double *peak, const dq_second_pass *w, dq_err *err);
/* Rows that it computes, and the first position after all of them. */
int64_t dq_second_pass_rows(int64_t n);
int64_t dq_second_pass_end(int64_t n);

#endif
