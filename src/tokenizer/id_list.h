/* id_list: a growing list of token ids.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ID_LIST_H
#define DQ_ID_LIST_H

#include "base/base.h"

typedef struct dq_id_list {
    int32_t *id; /* [n], a block; the holder may take it and put NULL here */
    size_t n, capacity;
} dq_id_list;

/* Makes room for `more` ids after the last one. */
dq_status dq_id_list_reserve(dq_id_list *ids, size_t more, dq_err *err);
dq_status dq_id_list_push(dq_id_list *ids, int32_t id, dq_err *err);

#endif
