/* pass_options: how a model runs: rounding of attention logits, arithmetic, KV cache. Options of commands that run one
 * setting, and settings of the library.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PASS_OPTIONS_H
#define DQ_PASS_OPTIONS_H

#include "engine/runner.h"
#include "settings/kv_options.h"

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
                    "{words} (default f32); int8 takes a packed container and --kv-bits 8 or "     \
                    "fewer; what the device lacks is refused"),                                    \
        DQ_KV_OPTION_ROWS((o).kv)

/* Nothing given. seed_of: as for dq_kv_options_begin. */
void dq_pass_options_begin(dq_pass_options *o, const char *seed_of);
/* Checks the words, before any model is open. DQ_USAGE. */
dq_status dq_pass_options_read(dq_pass_options *o, dq_err *err);
/* What they mean for a model: a container's own settings hold unless an option says otherwise. Gates that are given become
 * the model's. Sets logit and math of *pass, and *kv; fails as dq_kv_options_spec and dq_kv_options_check do, and as
 * dq_backend_can. */
dq_status dq_pass_options_of(dq_pass *pass, dq_kv_spec *kv, dq_pass_options *o, dq_model *m,
                             const dq_backend *b, dq_err *err);

#endif
