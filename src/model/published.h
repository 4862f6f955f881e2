/* published: checkpoints of the field whose sizes are known, to recognise one and to check its total.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PUBLISHED_H
#define DQ_PUBLISHED_H

#include "model/model.h"

typedef struct dq_published {
    const char *names; /* repositories, comma separated */
    const char *architecture;
    int vocab, dim, n_layers, n_q, n_kv, head_dim, n_out, ffn;
    bool tied;
    int64_t params;
} dq_published;

/* The row with the model's sizes, NULL: none. */
const dq_published *dq_published_find(const dq_model *m);

#endif
