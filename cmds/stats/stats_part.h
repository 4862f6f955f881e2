/* stats_part: parts of a dq stats of one pass: what each process writes, and what dq merge makes of all.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_STATS_PART_H
#define DQ_STATS_PART_H

#include "cmds/shard.h"
#include "cmds/stats/stats_out.h"
#include "settings/inputs.h"

/* What the bits of the numbers depend on, which all parts of a run share. */
typedef struct cmd_stats_key {
    char program[DQ_IDENTITY], text[65];
} cmd_stats_key;
/* head_order: of the command line, NULL: none. key->program is there. */
dq_status cmd_stats_key_make(cmd_stats_key *key, const cmd_stats_entry *e, int n,
                             const char *head_order, dq_outlier_detail detail, dq_err *err);

typedef struct cmd_stats_part {
    cmd_stats_entry *entry; /* [n] with their inputs */
    int n;
    const cmd_stats_key *key;
    const dq_shard *part;
    const char *path; /* of the part */
    json_t *about;    /* more members of its head */
    bool resume;      /* goes on with it, if it is there */
    dq_outlier_detail detail;
    dq_outlier_plan plan;
    /* Before the blocks of a model that are computed here, and after them. */
    dq_status (*begin)(void *arg, int model, int64_t rows, dq_runner **r, dq_err *err);
    void (*end)(void *arg, dq_runner *r);
    void *arg;
    double share; /* of all work, that of this part; afterwards */
} cmd_stats_part;
/* Computes the blocks of a part that its file lacks; the file has all of them then. */
dq_status cmd_stats_part_run(cmd_stats_part *x, dq_err *err);
/* Fills entry[].out from the files of all parts. DQ_MISMATCH: of another run, or not all of it. */
dq_status cmd_stats_part_merge(const cmd_stats_part *x, const dq_shard_merge *merge, dq_err *err);

#endif
