/* model_size: tensors were added up when the model was built; files are asked for their sizes.
 * SPDX-License-Identifier: MIT */
#include "model/model_size.h"

#include "checkpoint/container.h"
#include "model/model_config.h"
#include "tensor/weight_format.h"

#include <string.h>

static int64_t file_bytes(const dq_model *m)
{
    const dq_checkpoint *c = dq_model_checkpoint(m);
    int64_t sum = 0;
    if (m->container) return dq_container_header(m->container)->file_bytes;
    for (int i = 0; i < dq_checkpoint_n_files(c); i++) {
        const uint8_t *data;
        size_t bytes;
        dq_checkpoint_file(c, i, &bytes, &data);
        sum += (int64_t)bytes;
    }
    return sum;
}

dq_model_size dq_model_size_of(const dq_model *m)
{
    return (dq_model_size){.params = m->n_params,
                           .weight_bytes = m->stored_bytes,
                           .file_bytes = file_bytes(m),
                           .bits_per_weight = dq_weight_bits_over(m->stored_bytes, m->n_params)};
}

bool dq_model_size_counts(const dq_model *m, const char *tensor)
{
    const char *head = m->architecture->tensor[DQ_ROLE_HEAD];
    if (dq_model_config_left_over(tensor)) return false;
    return !m->tied || strcmp(tensor, head) != 0 || strcmp(tensor, m->embed.name) == 0;
}
