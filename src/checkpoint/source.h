/* source: where a model's tensors come from, a checkpoint or a container.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_SOURCE_H
#define DQ_SOURCE_H

#include "base/base.h"
#include "tensor/tensor.h"

/* `find` gives a weight or vector by its name in the checkpoint. */
typedef struct dq_source {
    void *arg;
    /* Fills *w (dense or packed; vectors and scalars have rows = numel, cols = 1; anything of n > 2
     * dimensions cols = -n, which no architecture accepts). False: absent. */
    bool (*find)(void *arg, const char *name, dq_weight *w);
    int64_t count; /* tensors there are, for the check that all are used */
    const char *(*name_at)(void *arg, int64_t i);
    /* Bytes of the weight in its file; NULL: those of its parts. */
    int64_t (*stored_bytes)(void *arg, const char *name);
    /* Lets the values of packed weights be read, which may take memory and time; NULL: they can be. */
    dq_status (*load)(void *arg, dq_err *err);
} dq_source;

#endif
