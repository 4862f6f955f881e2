/* info_lists: dq info --tensors: every dataset of a container, every tensor of a checkpoint.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_INFO_LISTS_H
#define DQ_INFO_LISTS_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/container.h"

/* A table on stdout after an empty line. DQ_RESOURCE. */
dq_status dq_info_lists_payloads(const dq_container *c, dq_err *err);
dq_status dq_info_lists_tensors(const dq_checkpoint *k, dq_err *err);

#endif
