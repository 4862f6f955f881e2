/* id_list: a growing list of token ids.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_ID_LIST_H
#define DQ_ID_LIST_H

#include "base/base.h"

typedef struct dq_ids {
    int32_t *id; /* [n], a block; the holder may take it and put NULL here */
    size_t n, room;
} dq_ids;

/* Makes room for `more` ids behind the last one. */
dq_status dq_ids_room(dq_ids *ids, size_t more, dq_err *err);
dq_status dq_ids_push(dq_ids *ids, int32_t id, dq_err *err);

#endif
