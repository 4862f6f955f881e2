/* shard: commands of which several processes compute a part each, with --shard I/N, and dq merge, which makes one of the parts.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SHARD_H
#define DQ_SHARD_H

#include "base/work.h"
#include "engine/backend.h"
#include "record/record.h"
#include "settings/options.h"

enum { DQ_SHARDS = 9999 };

/* --shard, and what it means. */
typedef struct dq_shard {
    const char *word; /* NULL: not given */
    int shard, n;     /* from 1; 0: all is computed here */
} dq_shard;
#define DQ_SHARD_OPTION(part)                                                                      \
    dq_opt_manner(dq_opt_text(                                                                     \
        "shard", "I/N", &(part).word,                                                              \
        "compute the I-th of N parts, I from 1 to N, into the file of -o; dq merge makes "         \
        "one document of all N. With --resume it goes on with that file"))
/* file: that of -o, NULL: none; also: of dq_args. DQ_USAGE: no I/N, nowhere to write it, something else to write, or several
 * ranks. */
dq_status dq_shard_read(dq_shard *part, const char *file, const char *also, dq_err *err);

/* What the first line of a part says besides its form and key: what computes, conditions and arguments. *about is the caller's;
 * `conditions` is taken over. DQ_USAGE: an argument is not UTF-8. */
typedef struct dq_shard_about {
    const char *command; /* "eval" */
    const dq_shard *part;
    const char *program; /* of dq_identity_text */
    const dq_backend *backend;
    json_t *conditions; /* what has to be the same in all parts beside the key */
} dq_shard_about;
dq_status dq_shard_head(json_t **about, const dq_shard_about *a, int argc, char **argv,
                        dq_err *err);

/* That the part is there; share: of all work. out: "OUT.json", what -o of dq merge takes. */
void dq_shard_say(const dq_shard *part, const char *file, double share, const char *out,
                  dq_logger *logger);
/* Replaces the message of an interruption by one that says how to go on. whole: `file` has all that was finished. */
dq_status dq_shard_stopped(const char *command, const char *file, bool whole, int argc, char **argv,
                           dq_err *err);

/* Parts that belong together, as dq merge has found them, and what it is to write. */
typedef struct dq_shard_merge {
    const char *const *path; /* [n] */
    int n;
    const char *program;            /* what computed them */
    const json_t *device, *threads; /* of the document's settings */
    const dq_opt *own;              /* what it was given, and nothing of the parts' command */
} dq_shard_merge;

/* A command with the parts in place of computing. merge NULL: the command itself. */
typedef dq_status dq_shard_merged(const dq_shard_merge *merge, int argc, char **argv, dq_err *err);
dq_shard_merged cmd_eval_merged, cmd_stats_merged;

#endif
