/* architecture: all that differs between the architectures of checkpoints, one row each.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ARCHITECTURE_H
#define DQ_ARCHITECTURE_H

#include "base/json.h"
#include "model/act.h"
#include "model/head_order.h"
#include "model/rope.h"

typedef enum dq_role {
    DQ_ROLE_EMBED,
    DQ_ROLE_NORM_OUT,
    DQ_ROLE_HEAD,
    DQ_ROLE_NORM_ATTN,
    DQ_ROLE_Q,
    DQ_ROLE_K,
    DQ_ROLE_V,
    DQ_ROLE_O,
    DQ_ROLE_Q_BIAS,
    DQ_ROLE_K_BIAS,
    DQ_ROLE_V_BIAS,
    DQ_ROLE_O_BIAS,
    DQ_ROLE_LAMBDA_Q1,
    DQ_ROLE_LAMBDA_K1,
    DQ_ROLE_LAMBDA_Q2,
    DQ_ROLE_LAMBDA_K2,
    DQ_ROLE_LAMBDA_PROJ, /* a lambda per token and output head */
    DQ_ROLE_HEAD_GAIN,   /* of the norm over each output head */
    DQ_ROLE_NORM_FFN,
    DQ_ROLE_GATE,
    DQ_ROLE_UP,
    DQ_ROLE_DOWN,
    DQ_ROLE_GATE_BIAS,
    DQ_ROLE_UP_BIAS,
    DQ_ROLE_DOWN_BIAS,
    DQ_ROLE_ACT_WEIGHT, /* of the activation: PolyNorm */
    DQ_ROLE_ACT_BIAS,
    DQ_ROLE_COUNT
} dq_role;

/* A key that changes the model in a way dq does not run, and the only value of it that is fine. */
typedef struct dq_only {
    const char *key; /* NULL ends a list */
    double value;    /* true is 1 */
} dq_only;

/* A new architecture is one more row of the table in architecture.c. */
typedef struct dq_architecture {
    const char *name;       /* "llama", "motif2": name in messages and containers */
    const char *about;      /* one line for people */
    const char *model_type; /* config.json model_type, compared without case */
    const char *class_name; /* config.json architectures, compared without case; NULL: any that
                               is not another row's */
    const char *variant;    /* value of diff_variant that chooses this row; NULL: not looked at */
    dq_pairing pairing;     /* DQ_PAIR_GROUPED is chosen by num_noise_heads > 0 */
    dq_lambda_kind lambda;
    double depth_shift; /* lambda_init = 0.8 - 0.6 exp(-0.3 (layer - depth_shift)) */
    dq_rope_order rope;
    dq_act act;
    bool head_norm;           /* RMS norm per output head, with a gain if the table names one */
    const char *head_eps_key; /* config key of its epsilon, NULL: none */
    double default_head_eps;
    bool mlp_bias;                     /* honours the config key mlp_bias */
    bool ablation;                     /* honours the config keys sub_norm and lambda_init */
    double default_norm_eps;           /* rms_norm_eps when the key is absent */
    bool warn_eps;                     /* says so when an epsilon is absent */
    bool remote_code;                  /* published with code of its own (auto_map) */
    const char *const *required;       /* keys that must be there, NULL-terminated list or NULL */
    const dq_only *only;               /* NULL: no such key */
    const char *tensor[DQ_ROLE_COUNT]; /* its name, %d for the layer; NULL: does not exist */
} dq_architecture;

/* The row for a config.json: that of its model_type, where there is none that of its class. Unknown and
 * unsupported architectures, classes that are no language model, and two keys that disagree are DQ_MISMATCH by
 * name, with the reason. Source: transformers AutoConfig, which goes by model_type. */
dq_status dq_architecture_find(const dq_architecture **out, const json_t *config, dq_err *err);

#endif
