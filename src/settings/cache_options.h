/* Options of a KV cache and of a pass, and what they become.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CACHE_OPTIONS_H
#define DQ_CACHE_OPTIONS_H

#include "engine/backend.h"
#include "engine/runner.h"
#include "kv/kv.h"
#include "model/model.h"
#include "settings/options.h"

/* ---- KV help ----
 * What --help says of an option of KV caches. */

enum { DQ_KV_HELP = 512 };

/* ---- KV options ----
 * The options of KV caches that eval, logits and quantize have, made from the rows of kv.h, and
 * what they mean for a model that may bring settings of its own. */

enum { DQ_KV_LIST = 32 };

typedef struct dq_kv_options {
    struct {
        const char *text; /* as given; NULL: not given */
        int64_t number;   /* the same; also the index of a word. -1: not given, or swept */
    } given[DQ_KV_FIELDS];
    /* what they mean */
    struct {
        int k_bits, v_bits;
        char widths[DQ_KV_LISTS];
        dq_kv_dense dense;
    } bits[DQ_KV_LIST]; /* as in dq_kv_config */
    int n_bits;
    double share[DQ_KV_LIST];
    int64_t count[DQ_KV_LIST];
    int n_budgets;               /* of share (--kv-keep) or count (--kv-tokens), the other is 0 */
    int codes[DQ_KV_QUANTS + 1]; /* of --kv-quant, each a dq_kv_quant */
    int n_codes;
    const dq_kv_policy *policies[DQ_KV_LIST];
    int n_policies;
    int kinds[DQ_KV_BUDGETS]; /* of --kv-budget, each a dq_kv_budget */
    int n_kinds;
    bool all;      /* --kv-policy all: what is not given besides is swept too */
    int64_t seed;  /* -1: not given */
    unsigned uses; /* what some config that dq_kv_sweep_list gave makes use of: DQ_KV_CODES ... */
    bool draws;    /* set by a command that draws something else with --seed */
    dq_logger *logger; /* set by a command that sweeps: gathers what is left out */
    const char *gates; /* a file of them; NULL: not given */
    /* [n_budgets] of --kv-size; the context is 0 where it is `context`, which a command sets (0:
     * none is known) */
    const char *size_text;
    dq_kv_size size[DQ_KV_LIST];
    int64_t context;
    dq_kv_sized sized[DQ_KV_LIST * 4]; /* [n_sized] what they have come to, each once */
    int n_sized;
    dq_opt row[DQ_KV_OPTIONS + 4];
    char help[DQ_KV_OPTIONS][DQ_KV_HELP];
    const char *policy_name[DQ_KV_LIST + 1];
} dq_kv_options;

/* The options as one row of a command's table; after dq_kv_options_begin. */
#define DQ_KV_OPTION_ROWS(o)                                                                       \
    {                                                                                              \
        .kind = DQ_OPT_ROWS, .to = (o).row, .help = ""                                             \
    }

/* Resets all. seed_of: what --seed is for, for --help. */
void dq_kv_options_begin(dq_kv_options *o, const char *seed_of);
/* Reads the words before any model is opened. sweep: lists are allowed. DQ_USAGE. */
dq_status dq_kv_options_read(dq_kv_options *o, bool sweep, dq_err *err);
/* After the last model: DQ_USAGE for an option that nothing used. */
dq_status dq_kv_options_check(const dq_kv_options *o, dq_err *err);

/* Resolves and checks *c for a model. */
dq_status dq_kv_options_spec(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_num num,
                             dq_err *err);

/* The same for a backend and its arithmetic. */
dq_status dq_kv_options_fit(dq_kv_spec *out, const dq_kv_config *c, const dq_model *m, dq_math math,
                            const dq_backend *b, dq_err *err);

/* What the command line makes of settings that a container remembers (or dq_kv_config_plain), for a
 * model (NULL: not known yet): every combination, n of them in a block that the caller ends with
 * dq_block_free. Where nobody names a policy it is kvzap where there are gates, else
 * DQ_POLICY_USUAL, and where nobody names a budget DQ_KV_BUDGET_USUAL. With several codes, a cache
 * that is the same by two of them stands once, and a code without such widths is left out of them,
 * as is from all policies what the model has no gates for. */
dq_status dq_kv_sweep_list(dq_kv_config **out, int *n, dq_kv_options *o, const dq_kv_config *stored,
                           const dq_model *m, dq_err *err);

/* The i-th --kv-size with the other settings. */
dq_kv_size dq_kv_sweep_size(const dq_kv_options *o, int i);
/* "0.125 of 2048 tokens: --kv-bits 6 --kv-keep 0.19, at most 0.1249 of 16 bits"; returns text. */
enum { DQ_KV_SIZED = 160 };
const char *dq_kv_sweep_sized(char text[DQ_KV_SIZED], const dq_kv_sized *s);

/* How a model runs: logit rounding, arithmetic, KV cache; for commands with one setting, and the
 * library. */

typedef struct dq_pass_options {
    int64_t logit_bits;        /* 0: not given */
    dq_word granularity, math; /* a dq_granularity, a dq_num */
    dq_kv_options kv;
} dq_pass_options;

#define DQ_PASS_OPTION_ROWS(o)                                                                     \
    dq_opt_bits("logit-bits", "N", &(o).logit_bits,                                                \
                "round attention logits to 2..8 bits; 16: leave them (default: as the container "  \
                "says, else 16)"),                                                                 \
        dq_opt_word("logit-granularity", "GRANULARITY", &(o).granularity, dq_granularity_name,     \
                    DQ_GRANULARITIES,                                                              \
                    "{words}: what shares a scale (default: as the container says, else "          \
                    "per-tensor)"),                                                                \
        dq_opt_word("math", "TYPE", &(o).math, dq_num_name, DQ_NUMS,                               \
                    "{words} (default f32); int8 takes a packed container and, on the CPU, "       \
                    "--kv-bits 8 or fewer; what the device lacks is refused"),                     \
        DQ_KV_OPTION_ROWS((o).kv)

/* Resets all. seed_of: as for dq_kv_options_begin. */
void dq_pass_options_begin(dq_pass_options *o, const char *seed_of);
/* Options override a container's settings; given gates are attached to the model. Sets logit and
 * math of *pass, and *kv. Fails as dq_kv_options_spec, dq_kv_options_check and dq_backend_can
 * do. */
dq_status dq_pass_options_of(dq_pass *pass, dq_kv_spec *kv, dq_pass_options *o, dq_model *m,
                             const dq_backend *b, dq_err *err);

#endif
