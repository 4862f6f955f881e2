/* command: the commands of dq. Only this folder reads argv, prints, or exits.
 * ARCHITECTURE.md says what a new command touches.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_COMMAND_H
#define DQ_COMMAND_H

#include "base/base.h"
#include "engine/backend.h"
#include "record/record.h"
#include "settings/options.h"
#include "work/work.h"

#include <stdio.h>

/* Runs a command; argv[0] is its name. Results go to stdout; main prints the failure in err. */
typedef dq_status dq_cmd_run(int argc, char **argv, dq_err *err);

/* A row of main.c. A group such as plan has no `run`; its commands follow, with its name in
 * front. */
typedef struct dq_cmd {
    const char *name, *purpose; /* "plan kv" */
    dq_cmd_run *run;
    int by; /* processes: 0: one; DQ_CMD_RANKS: mpirun may start several; DQ_CMD_STEPS: it may, but
             * the work is not cut into shards */
} dq_cmd;
enum { DQ_CMD_RANKS = 1, DQ_CMD_STEPS };
/* group NULL: whether it is no group's, as dq --help lists it. */
bool dq_cmd_is_of(const dq_cmd *c, const char *group);

extern const dq_document dq_info_document, dq_verify_document, dq_logits_document,
    dq_export_document, dq_doctor_document, dq_generate_document, dq_quantize_document,
    dq_bench_document, dq_stats_document, dq_plan_document, dq_gates_document, dq_recipe_document,
    dq_eval_document, dq_eval_plan_document;

dq_cmd_run dq_cmd_stats, dq_cmd_quantize, dq_cmd_eval, dq_cmd_generate, dq_cmd_info, dq_cmd_verify,
    dq_cmd_logits, dq_cmd_tokenize, dq_cmd_judged, dq_cmd_merge, dq_cmd_doctor, dq_cmd_report,
    dq_cmd_export;
dq_cmd_run dq_cmd_plan_weights, dq_cmd_plan_kv, dq_cmd_plan_heads, dq_cmd_plan_gates;
dq_cmd_run dq_cmd_bench_prefill, dq_cmd_bench_generate, dq_cmd_bench_decode, dq_cmd_bench_attention,
    dq_cmd_bench_items, dq_cmd_bench_evict, dq_cmd_bench_compare;

/* Commands that several processes can share with --shard I/N, and dq merge, which joins the
 * shards. */

/* --shard, parsed. */
typedef struct dq_shard {
    const char *word; /* NULL: not given */
    int index, n;     /* from 1; 0: all is computed here */
} dq_shard;
#define DQ_SHARD_OPTION(shard)                                                                     \
    dq_opt_manner(dq_opt_text(                                                                     \
        "shard", "I/N", &(shard).word,                                                             \
        "compute the I-th of N shards, I from 1 to N, into the file of -o; dq merge makes "        \
        "one document of all N. With --resume it goes on with that file"))
/* file: of -o, NULL: none; also: of dq_args. DQ_USAGE: no I/N, no file, another output, or several
 * ranks. */
dq_status dq_shard_read(dq_shard *shard, const char *file, const char *also, dq_err *err);

/* A shard's first line, besides schema and key: program, conditions and arguments. *about is the
 * caller's; takes `conditions`. DQ_USAGE: an argument is not UTF-8. */
typedef struct dq_shard_about {
    const char *command; /* "eval" */
    const dq_shard *shard;
    const char *program; /* of dq_identity_text */
    const dq_backend *backend;
    json_t *conditions; /* what has to be the same in all shards beside the key */
} dq_shard_about;
dq_status dq_shard_head(json_t **about, const dq_shard_about *a, int argc, char **argv,
                        dq_err *err);

/* Says that the shard is complete; share: of all work. out: "OUT.json" for -o of dq merge. */
void dq_shard_say(const dq_shard *shard, const char *file, double share, const char *out,
                  dq_logger *logger);
/* The shards that dq merge has found, and what it is to write. */
typedef struct dq_shard_merge {
    const char *const *path; /* [n] */
    int n;
    const char *program;            /* what computed them */
    const json_t *device, *threads; /* of the document's settings */
    const dq_opt *own;              /* what it was given, and nothing of the shards' command */
} dq_shard_merge;

/* Runs a command from shards instead of computing; merge NULL: the command itself. */
typedef dq_status dq_shard_merged(const dq_shard_merge *merge, int argc, char **argv, dq_err *err);
dq_shard_merged cmd_eval_merged, cmd_stats_merged;

/* What dq help prints of all commands: manual pages, completion, docs/commands.md; texts and rows
 * come from the commands. */

typedef struct dq_help_pages {
    const dq_cmd *cmd; /* [n] */
    int n;
    const dq_document *const *document; /* that they print with --json; ends with NULL */
} dq_help_pages;

/* "exit status: 0 done, 1 bug, ...", wrapped. */
void dq_help_pages_exits(FILE *f);
dq_status dq_help_pages_markdown(const dq_help_pages *all, dq_err *err);
/* The JSON Schema of a document, "dq-info/1"; without a name those of all, a line each. */
dq_status dq_help_pages_schema(const dq_help_pages *all, const char *name, dq_err *err);
/* Names of all commands and groups, a line each. */
dq_status dq_help_pages_commands(const dq_help_pages *all, dq_err *err);
/* cmd: a row of `all`, or NULL for dq itself. */
dq_status dq_help_pages_manual(const dq_help_pages *all, const dq_cmd *cmd, dq_err *err);
/* "bash" or "zsh"; DQ_USAGE for another. */
dq_status dq_help_pages_completion(const dq_help_pages *all, const char *shell, dq_err *err);

#endif
