/* safetensors_write: a JSON object made with jansson, whose members keep the order in which they are put in.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/safetensors_write.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int dq_safetensors_write_order(const dq_tensor *a, const dq_tensor *b)
{
    const size_t x = dq_dtypes[a->dtype].bytes, y = dq_dtypes[b->dtype].bytes;
    return x != y ? (x > y ? -1 : 1) : strcmp(a->name, b->name);
}

static json_t *entry(const dq_tensor *t, int64_t begin)
{
    json_t *o = json_object(), *shape = json_array(), *range = json_array();
    for (int i = 0; i < t->n_dims; i++) json_array_append_new(shape, json_integer(t->shape[i]));
    json_array_append_new(range, json_integer(begin));
    json_array_append_new(range, json_integer(begin + (int64_t)dq_tensor_bytes(t)));
    json_object_set_new(o, "dtype", json_string(dq_dtypes[t->dtype].name));
    json_object_set_new(o, "shape", shape);
    json_object_set_new(o, "data_offsets", range);
    return o;
}

static dq_status add(dq_strbuf *out, const char *json, dq_err *err)
{
    const size_t n = strlen(json);
    const uint64_t padded = (n + 7) / 8 * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(padded >> 8 * i);
    DQ_TRY(dq_strbuf_add(out, (const char *)length, sizeof length, err));
    DQ_TRY(dq_strbuf_add(out, json, n, err));
    return dq_strbuf_add(out, "        ", (size_t)padded - n, err);
}

dq_status dq_safetensors_write_head(dq_strbuf *out, const dq_tensor *const *tensor, int64_t n,
                                    dq_err *err)
{
    json_t *head = json_object(), *meta = json_object();
    int64_t at = 0;
    char *text = NULL;
    json_object_set_new(meta, "format", json_string("pt")); /* without it transformers refuses */
    json_object_set_new(head, "__metadata__", meta);
    for (int64_t i = 0; i < n; i++) {
        json_object_set_new(head, tensor[i]->name, entry(tensor[i], at));
        at += (int64_t)dq_tensor_bytes(tensor[i]);
    }
    dq_json_dump(&text, head, JSON_COMPACT, err);
    json_decref(head);
    if (text) add(out, text, err);
    free(text);
    return err->code;
}
