/* layouts: all that differs between families of checkpoints, one row each.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_LAYOUTS_H
#define DQ_LAYOUTS_H

#include "attention.h"
#include "json.h"

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
    DQ_ROLE_NORM_FFN,
    DQ_ROLE_GATE,
    DQ_ROLE_UP,
    DQ_ROLE_DOWN,
    DQ_ROLE_GATE_BIAS,
    DQ_ROLE_UP_BIAS,
    DQ_ROLE_DOWN_BIAS,
    DQ_ROLE_COUNT
} dq_role;

typedef enum dq_rope_order { DQ_ROPE_HALVES, DQ_ROPE_ADJACENT } dq_rope_order;
typedef enum dq_act { DQ_ACT_SILU } dq_act;

/* A new checkpoint layout is one more row of the table in layouts.c. */
typedef struct dq_layout {
    const char *family;       /* "llama", "diffllama": name in messages and containers */
    const char *architecture; /* config.json architectures[0] */
    dq_pairing pairing;
    dq_lambda_kind lambda;
    double depth_shift; /* lambda_init = 0.8 - 0.6 exp(-0.3 (layer - depth_shift)) */
    dq_rope_order rope;
    dq_act act;
    bool head_norm;                  /* RMS norm per output head */
    const char *head_eps_key;        /* config key of its epsilon */
    bool mlp_bias;                   /* honours the config key mlp_bias */
    double default_norm_eps;         /* rms_norm_eps when the key is absent */
    const char *name[DQ_ROLE_COUNT]; /* tensor name, %d for the layer; NULL: does not exist */
} dq_layout;

/* The row for a config.json. Unknown and unsupported families are DQ_MISMATCH by name, with the
 * reason. */
dq_status dq_layout_find(const dq_layout **out, const json_t *config, dq_err *err);

#endif
