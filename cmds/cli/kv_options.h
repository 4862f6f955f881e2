/* kv_options: the --kv-* options of eval, logits and quantize, and what they mean for a model that may
 * bring settings of its own.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_KV_OPTIONS_H
#define DQ_KV_OPTIONS_H

#include "cmds/cli/options.h"
#include "eval/score.h"
#include "model/model.h"

/* What --kv-policy is when only a budget is given. */
#define DQ_KV_POLICY "h2o" /* results/kv: the best of the named ones on DIFF models */

enum { DQ_KV_LIST = 16 };

typedef struct dq_kv_options {
    /* as given; NULL and -1: not given */
    const char *bits, *rotate, *keep, *tokens, *policy, *budget;
    int64_t group, window, sink, recent, every, seed;
    /* what they mean */
    int k_bits[DQ_KV_LIST], v_bits[DQ_KV_LIST], n_bits;
    double share[DQ_KV_LIST];
    int64_t count[DQ_KV_LIST];
    int n_budgets; /* of share (--kv-keep) or count (--kv-tokens), the other is 0 */
    const dq_policy *policies[DQ_KV_LIST];
    int n_policies, rotate_index, budget_index;
    /* what some setting that dq_kv_options_list gave makes use of */
    bool coded, narrow, evicts, sums, random;
    bool draws; /* set by a command that draws something else with --seed */
} dq_kv_options;

/* seed_of: what --seed is for. */
#define DQ_KV_OPTIONS(o, seed_of)                                                                  \
    {.help = "KV cache (in dq eval, commas sweep):"},                                              \
        {.name = "kv-bits",                                                                        \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).bits,                                                                          \
         .value = "K[:V]",                                                                         \
         .help =                                                                                   \
             "widths of keys (16, 8, 6, 4) and values (3 and 2 too); 16: as computed (default: "   \
             "as a container says, else 16)"},                                                     \
        {.name = "kv-group",                                                                       \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).group,                                                                         \
         .min = 1,                                                                                 \
         .max = 65536,                                                                             \
         .value = "N",                                                                             \
         .help = "channels per scale at 4 bits and fewer (default 32)"},                           \
        {.name = "kv-rotate",                                                                      \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).rotate,                                                                        \
         .value = "WHEN",                                                                          \
         .help =                                                                                   \
             "Hadamard rotation: auto (keys and values of at most 4 bits, where head_dim is a "    \
             "power of two), on (both) or off (default auto)"},                                    \
        {.name = "kv-keep",                                                                        \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).keep,                                                                          \
         .value = "FRACTION",                                                                      \
         .help =                                                                                   \
             "forget all but this share of a context's tokens, above 0 and up to 1 (1: none)"},    \
        {.name = "kv-tokens",                                                                      \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).tokens,                                                                        \
         .value = "N",                                                                             \
         .help = "forget all but N tokens"},                                                       \
        {.name = "kv-policy",                                                                      \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).policy,                                                                        \
         .value = "NAME",                                                                          \
         .help =                                                                                   \
             "what decides which: streaming, h2o, snapkv, knorm, random, diff, loo; to compare "   \
             "them with: a1, a2, sum (default " DQ_KV_POLICY ")"},                                 \
        {.name = "kv-budget",                                                                      \
         .kind = DQ_OPT_TEXT,                                                                      \
         .to = &(o).budget,                                                                        \
         .value = "KIND",                                                                          \
         .help = "what layers and heads get: uniform, pyramid or adaptive (default uniform)"},     \
        {.name = "kv-window",                                                                      \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).window,                                                                        \
         .min = 0,                                                                                 \
         .max = 1e9,                                                                               \
         .value = "N",                                                                             \
         .help = "last rows whose attention counts, 0 for all (default: as the policy says)"},     \
        {.name = "kv-sink",                                                                        \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).sink,                                                                          \
         .min = 0,                                                                                 \
         .max = 1e9,                                                                               \
         .value = "N",                                                                             \
         .help = "first tokens that are never coded and never forgotten (default 4)"},             \
        {.name = "kv-recent",                                                                      \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).recent,                                                                        \
         .min = 0,                                                                                 \
         .max = 1e9,                                                                               \
         .value = "N",                                                                             \
         .help = "last tokens that are not coded yet and not forgotten (default 64)"},             \
        {.name = "kv-every",                                                                       \
         .kind = DQ_OPT_INT,                                                                       \
         .to = &(o).every,                                                                         \
         .min = 0,                                                                                 \
         .max = 1e9,                                                                               \
         .value = "N",                                                                             \
         .help = "forget again after every N tokens behind the context (default 0: never)"},       \
    {                                                                                              \
        .name = "seed", .kind = DQ_OPT_INT, .to = &(o).seed, .min = 0, .max = 1e15, .value = "N",  \
        .help = seed_of                                                                            \
    }

void dq_kv_options_begin(dq_kv_options *o); /* nothing given */
/* Reads the words, before any model is opened. sweep: lists are allowed. DQ_USAGE. */
dq_status dq_kv_options_read(dq_kv_options *o, bool sweep, dq_err *err);
/* What the command line makes of settings that a container remembers (or dq_kv_settings_plain):
 * every combination, n of them in a block that the caller ends with dq_block_free. */
dq_status dq_kv_options_list(dq_kv_settings **out, int *n, dq_kv_options *o,
                             const dq_kv_settings *stored, dq_err *err);
/* After the last model: DQ_USAGE for an option that no setting made use of. */
dq_status dq_kv_options_check(const dq_kv_options *o, dq_err *err);

/* Settings for a model: rotation resolved, checked. */
dq_status dq_kv_setting_of(dq_kv_setting *out, const dq_kv_settings *s, const dq_model *m,
                           dq_num num, dq_err *err);

#endif
