/* What the files of src/model share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MODEL_INSIDE_H
#define DQ_MODEL_INSIDE_H

#include "model/model.h"

/* What differs between the architectures of checkpoints, a row each. */

/* The row for config.json by model_type or, without it, by class. DQ_MISMATCH by name with the
 * reason: unknown or unsupported, no language model, or contradicting keys.
 * Source: transformers AutoConfig, which goes by model_type. */
dq_status dq_architecture_find(const dq_architecture **out, const json_t *config, dq_err *err);

typedef struct dq_model_config {
    bool wanted[DQ_ROLE_COUNT]; /* tensors of this role must exist */
    int64_t rows[DQ_ROLE_COUNT], cols[DQ_ROLE_COUNT];
    bool *no_rope;  /* [n_layers]; NULL: all layers rotate */
    int *window;    /* [n_layers] dq_attn.window; NULL: none has one */
    bool head_norm; /* RMS norm per output head */
    float head_eps;
    bool constant_lambda_init; /* the same lambda_init in every layer */
    double lambda_init;
} dq_model_config;

/* Fills *plan and, in *m, architecture, sizes, head order, rotation, norm_eps, tied. */
dq_status dq_model_config_read(dq_model_config *plan, dq_model *m, const json_t *config,
                               dq_pairing pairing, dq_arena *a, dq_err *err);

/* Whether old programs wrote this tensor, which no model reads. */
bool dq_model_config_left_over(const char *tensor);

/* Adds to m->warnings; the text must live as long as the model. */
dq_status dq_model_config_warn(dq_model *m, dq_arena *a, const char *text, dq_err *err);

#endif
