/* id_list: a block that at least doubles.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/id_list.h"

dq_status dq_id_list_reserve(dq_id_list *ids, size_t more, dq_err *err)
{
    int32_t *list = dq_grow(NULL, ids->id, ids->n + more, &ids->capacity, sizeof *list, err);
    if (!list) return err->code;
    ids->id = list;
    return DQ_OK;
}

dq_status dq_id_list_push(dq_id_list *ids, int32_t id, dq_err *err)
{
    if (ids->n == ids->capacity) DQ_TRY(dq_id_list_reserve(ids, 1, err));
    ids->id[ids->n++] = id;
    return DQ_OK;
}
