/* model_config: what a config.json says of a model, before any tensor is looked at. For model*.c.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MODEL_CONFIG_H
#define DQ_MODEL_CONFIG_H

#include "model/model.h"

typedef struct dq_model_config {
    bool wanted[DQ_ROLE_COUNT]; /* tensors of this role must exist */
    int64_t rows[DQ_ROLE_COUNT], cols[DQ_ROLE_COUNT];
    bool head_norm; /* RMS norm per output head */
    float head_eps;
    bool constant_lambda_init; /* the same lambda_init in every layer */
    double lambda_init;
} dq_model_config;

/* Fills *plan and, in *m, architecture, sizes, head order, rotation, norm_eps, tied. */
dq_status dq_model_config_read(dq_model_config *plan, dq_model *m, const json_t *config,
                               dq_pairing pairing, dq_arena *a, dq_err *err);

/* Whether a tensor is one that old programs wrote and no model reads. */
bool dq_model_config_left_over(const char *tensor);

/* The object that holds the rotary parameters (NULL: none) and its key, for messages. Defined in
 * rope.c. */
dq_status dq_model_config_rope(const json_t **out, const char **where, const json_t *config,
                               dq_err *err);

/* One more of m->warnings; the text must live as long as the model. */
dq_status dq_model_config_warn(dq_model *m, dq_arena *a, const char *text, dq_err *err);

#endif
