/* model_size: what a model takes on a disk, as the field tells it: bits per weight over all parameters, and bytes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_MODEL_SIZE_H
#define DQ_MODEL_SIZE_H

#include "model/model.h"

/* Scales, zero points and padding are part of the bytes, norms and biases of both. A matrix that is the embedding and the
 * head counts once, also where a file stores it twice. */
typedef struct dq_model_size {
    int64_t params;       /* of all tensors that the model uses */
    int64_t weight_bytes; /* of these tensors as the files store them */
    int64_t
        file_bytes; /* of the weight files: of a container, a GGUF file with all its parts, or all safetensors */
    double bits_per_weight; /* 8 * weight_bytes / params */
} dq_model_size;

dq_model_size dq_model_size_of(const dq_model *m);
/* Whether a tensor of the model's files is one of those: not a second copy of the embedding, nor what old programs left. */
bool dq_model_size_counts(const dq_model *m, const char *tensor);

#endif
