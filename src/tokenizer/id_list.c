/* id_list: see id_list.h.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/id_list.h"

#include <string.h>

dq_status dq_ids_room(dq_ids *ids, size_t more, dq_err *err)
{
    if (ids->room - ids->n >= more) return DQ_OK;
    size_t room = ids->room + ids->room / 2 + more;
    int32_t *grown = dq_block_new(room, sizeof *grown, err);
    if (!grown) return err->code;
    if (ids->n) memcpy(grown, ids->id, ids->n * sizeof *grown);
    dq_block_free(ids->id);
    ids->id = grown;
    ids->room = room;
    return DQ_OK;
}

dq_status dq_ids_push(dq_ids *ids, int32_t id, dq_err *err)
{
    if (ids->n == ids->room) DQ_TRY(dq_ids_room(ids, 1, err));
    ids->id[ids->n++] = id;
    return DQ_OK;
}
