/* stop_ids: ids of the configurations come first, then the named token, each once.
 * SPDX-License-Identifier: MIT */
#include "session/stop_ids.h"

#include "base/json.h"

bool dq_stop_ids_has(const dq_stop_ids *s, int32_t id)
{
    for (int64_t i = 0; i < s->n; i++) {
        if (s->id[i] == id) return true;
    }
    return false;
}

static void add_id(dq_stop_ids *s, int64_t id, int vocab)
{
    if (id < 0 || id >= vocab || s->n == DQ_STOP_IDS || dq_stop_ids_has(s, (int32_t)id)) return;
    s->id[s->n++] = (int32_t)id;
}

/* eos_token_id of a configuration: a number or a list of them. */
static dq_status add_configured(dq_stop_ids *s, const dq_model *m, const char *name, int vocab,
                                dq_err *err)
{
    const char *text;
    size_t len;
    json_t *root = NULL;
    DQ_TRY(dq_model_file(m, name, &text, &len, err));
    if (!text) return DQ_OK;
    if (dq_json_parse_config(&root, text, len, name, err) != DQ_OK)
        return dq_in(err, "%s: ", m->path);
    const json_t *eos = json_object_get(root, "eos_token_id");
    int64_t id;
    if (dq_json_whole(&id, eos)) add_id(s, id, vocab);
    for (size_t i = 0; i < json_array_size(eos); i++) {
        if (dq_json_whole(&id, json_array_get(eos, i))) add_id(s, id, vocab);
    }
    json_decref(root);
    return DQ_OK;
}

dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err)
{
    DQ_TRY(add_configured(s, m, "config.json", vocab, err));
    DQ_TRY(add_configured(s, m, "generation_config.json", vocab, err));
    if (t) add_id(s, dq_tokenizer_eos(t), vocab);
    return DQ_OK;
}
