/* eval_options: the command line of dq eval and what it means, before any file is read.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_EVAL_OPTIONS_H
#define DQ_EVAL_OPTIONS_H

#include "cmds/eval/eval_gate.h"
#include "cmds/eval/eval_kind.h"
#include "cmds/shard.h"
#include "eval/eval.h"
#include "record/record.h"
#include "settings/cache_options.h"
#include "settings/inputs.h"
#include "settings/options.h"

enum {
    DQ_EVAL_MODELS = 64,
    DQ_EVAL_SOURCES = 16,
    DQ_EVAL_BITS = 8,
    DQ_EVAL_LENGTHS = 32,
    DQ_EVAL_SHOTS = 64
};

typedef struct cmd_eval_options {
    dq_list tasks, data, fewshot, fail_if;
    const char *logit_bits, *ref, *device, *dump, *requests, *csv, *document, *html, *baseline;
    dq_words logit_granularity, math_words; /* dq_granularity, dq_num */
    dq_word bos, too_long;                  /* a dq_bos; one of dq_eval_long_name after "" */
    const char *lengths_word, *shots_word;
    int64_t ctx, threads, limit;
    double margin;
    bool json, resume, dry_run, force;
    dq_shard part;
    const dq_shard_merge *
        merge; /* the parts that results come from; NULL: they are computed; set before argv is read */
    dq_input_head_order head_order;
    dq_kv_options kv;
    void *own[DQ_EVAL_KINDS]; /* the options of each kind, and what they mean */
    dq_logger logger;
    /* what they mean */
    cmd_eval_gates gates;
    int bits[DQ_EVAL_BITS], n_bits; /* 0: as each model says */
    dq_granularity granularity[DQ_GRANULARITIES];
    int n_granularities; /* 0: as each model says */
    dq_math math[DQ_NUMS];
    int n_math;
    int length[DQ_EVAL_LENGTHS], n_lengths; /* 0: not given */
    int64_t samples;                        /* prompts per length */
    int shots[DQ_EVAL_SHOTS], n_shots;      /* of --num-fewshot; n_shots 0: not given */
    int64_t num_fewshot;                    /* before items with answers */
    int fewshot_used;                       /* files without a name that tasks have taken */
    dq_eval_source source[DQ_EVAL_SOURCES]; /* name, path, task and its examples */
    const char *examples[DQ_EVAL_SOURCES];  /* path of the few-shot examples; NULL: none */
    int n_sources;
} cmd_eval_options;

/* What the options of a kind mean, in this run. */
void *cmd_eval_own(const cmd_eval_options *o, const cmd_eval_kind *kind);
/* Appends the parts of text between commas; words live in the arena. */
dq_status cmd_eval_split(const char *text, const char *option, dq_list *out, dq_arena *a,
                         dq_err *err);
/* Sets the defaults and reads argv; what kinds keep lives in the arena. */
dq_status cmd_eval_parse(cmd_eval_options *o, dq_args *args, int argc, char **argv, dq_arena *a,
                         dq_err *err);
/* Fills the second part; words live in the arena. */
dq_status cmd_eval_understand(cmd_eval_options *o, const dq_args *args, dq_arena *a, dq_err *err);
/* All that the run writes beside all that it reads, before it begins (journal: NULL); and once more with the file of finished
 * work, whose name is known when inputs have been read. */
dq_status cmd_eval_check_outputs(const cmd_eval_options *o, const dq_args *args,
                                 const char *journal, dq_arena *a, dq_err *err);

#endif
