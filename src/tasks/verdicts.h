/* verdicts: what somebody else made of generated texts, read back from a file and compared.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_VERDICTS_H
#define DQ_VERDICTS_H

#include "base/json.h"
#include "stat/stat.h"

typedef struct dq_verdict {
    int64_t item;
    double score;     /* 0 (wrong) to 1 */
    int64_t line;     /* of the file, from 1 */
    uint64_t cluster; /* items of one number depend on each other */
} dq_verdict;

/* Lines that agree in task, model, logit bits (and, below 16, granularity), arithmetic and KV cache. */
typedef struct dq_verdict_group {
    const char *task; /* NULL: the lines name none */
    const char *model, *granularity;
    const char *math; /* "f32", ...; NULL: the lines name none, and count as f32 */
    int bits;
    const json_t *kv;    /* owned by the dq_verdicts; NULL: plain */
    dq_verdict *verdict; /* [n] by rising item */
    int64_t n;
    dq_mean acc;
    dq_interval acc_interval;
    int ref; /* group of its task and model at 16 bits with a plain cache, in f32 where there is one, else in
                  its own arithmetic; -1: none */
    /* group of its task and setting of the first model, where that is another; -1: none */
    int cross;
    dq_stat_flips flips, cross_flips; /* over items that both groups have; see stat.h */
} dq_verdict_group;

typedef struct dq_verdicts {
    dq_verdict_group *group; /* [n] in the order of their first lines */
    int n;
    json_t *kept; /* what groups borrow */
} dq_verdicts;

/* Reads JSON lines {"item", "verdict", "model"?, "logit_bits"?, "logit_granularity"?, "math"?, "kv"?, "task"?, "cluster"?,
 * "prompt"?}: items of one `cluster`, or where a line has none of one prompt, depend on each other. verdict is
 * true, false, "correct", "incorrect" or a number from 0 to 1; without the others a line is of the model
 * "model" at 16 bits. Lists live in the arena; end it with dq_verdicts_end, whatever happened. DQ_DAMAGED
 * names path and line. */
dq_status dq_verdicts_load(dq_verdicts *out, const char *path, const char *text, size_t len,
                           dq_arena *a, dq_err *err);
void dq_verdicts_end(dq_verdicts *v);

#endif
