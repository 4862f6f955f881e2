/* id_list: a block that at least doubles.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/id_list.h"

dq_status dq_ids_room(dq_ids *ids, size_t more, dq_err *err)
{
    int32_t *list = dq_grow(NULL, ids->id, ids->n + more, &ids->room, sizeof *list, err);
    if (!list) return err->code;
    ids->id = list;
    return DQ_OK;
}

dq_status dq_ids_push(dq_ids *ids, int32_t id, dq_err *err)
{
    if (ids->n == ids->room) DQ_TRY(dq_ids_room(ids, 1, err));
    ids->id[ids->n++] = id;
    return DQ_OK;
}
