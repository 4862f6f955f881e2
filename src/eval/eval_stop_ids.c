/* eval_stop_ids: ids of the configurations come first, then the named token, each once.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_stop_ids.h"

#include "base/json.h"

enum { STOP_IDS = 64 };

typedef struct id_list {
    int32_t *ids; /* [STOP_IDS] */
    int64_t n;
    int vocab;
} id_list;

static void add_id(id_list *l, int64_t id)
{
    if (id < 0 || id >= l->vocab || l->n == STOP_IDS) return;
    for (int64_t i = 0; i < l->n; i++) {
        if (l->ids[i] == id) return;
    }
    l->ids[l->n++] = (int32_t)id;
}

/* eos_token_id of a configuration: a number or a list of them. */
static dq_status add_configured(id_list *l, const dq_model *m, const char *name, dq_err *err)
{
    const char *text;
    size_t len;
    json_t *root = NULL;
    DQ_TRY(dq_model_file(m, name, &text, &len, err));
    if (!text) return DQ_OK;
    if (dq_json_parse(&root, text, len, name, err) != DQ_OK) return dq_in(err, "%s: ", m->path);
    const json_t *eos = json_object_get(root, "eos_token_id");
    int64_t id;
    if (dq_json_whole(&id, eos)) add_id(l, id);
    for (size_t i = 0; i < json_array_size(eos); i++) {
        if (dq_json_whole(&id, json_array_get(eos, i))) add_id(l, id);
    }
    json_decref(root);
    return DQ_OK;
}

/* eos_token of tokenizer_config.json, where it is one id. */
static dq_status add_named(id_list *l, const dq_eval_model *m, dq_err *err)
{
    const char *text;
    size_t len;
    json_t *root = NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    DQ_TRY(dq_model_file(m->m, "tokenizer_config.json", &text, &len, err));
    if (!text || !m->tok) return DQ_OK;
    if (dq_json_parse(&root, text, len, "tokenizer_config.json", err) != DQ_OK)
        return dq_in(err, "%s: ", m->m->path);
    const json_t *eos = json_object_get(root, "eos_token");
    if (json_is_object(eos)) eos = json_object_get(eos, "content");
    if (json_is_string(eos) &&
        dq_tokenizer_encode(m->tok, json_string_value(eos), json_string_length(eos), 0, &ids, &n,
                            NULL, NULL, err) == DQ_OK &&
        n == 1)
        add_id(l, ids[0]);
    dq_block_free(ids);
    json_decref(root);
    return err->code;
}

dq_status dq_eval_stop_ids(const dq_eval *e, int model, const int32_t **ids, int64_t *n,
                           dq_arena *a, dq_err *err)
{
    const dq_eval_model *of[2] = {&e->model[model], &e->model[e->model[model].ref]};
    id_list l = {.vocab = of[0]->m->vocab};
    l.ids = dq_alloc(a, STOP_IDS, sizeof *l.ids, err);
    if (!l.ids) return err->code;
    for (int i = 0; i < (of[1] == of[0] ? 1 : 2); i++) {
        DQ_TRY(add_configured(&l, of[i]->m, "config.json", err));
        DQ_TRY(add_configured(&l, of[i]->m, "generation_config.json", err));
        DQ_TRY(add_named(&l, of[i], err));
    }
    *ids = l.ids;
    *n = l.n;
    return DQ_OK;
}
