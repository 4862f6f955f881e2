/* stop_ids: ids of the configurations come first, then the named tokens, each once.
 * SPDX-License-Identifier: MIT */
#include "session/stop_ids.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>

bool dq_stop_ids_has(const dq_stop_ids *s, int32_t id)
{
    for (int64_t i = 0; i < s->n; i++) {
        if (s->id[i] == id) return true;
    }
    return false;
}

/* What adds to a list: one file of one model. */
typedef struct adding {
    dq_stop_ids *s;
    const dq_tokenizer *t;
    const char *file;
    int vocab;
} adding;

/* What a file says and no text can end at; the first of them is said. */
static void pass_over(const adding *x, const char *key, const json_t *v)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (!x->s->unknown[0])
        snprintf(x->s->unknown, sizeof x->s->unknown, "%s: %s %.60s", x->file, key,
                 text ? text : "");
    free(text);
}

static void add_id(const adding *x, const char *key, const json_t *v, int64_t id)
{
    dq_stop_ids *s = x->s;
    if (id < 0 || id >= x->vocab || (s->n == DQ_STOP_IDS && !dq_stop_ids_has(s, (int32_t)id)))
        pass_over(x, key, v);
    else if (!dq_stop_ids_has(s, (int32_t)id))
        s->id[s->n++] = (int32_t)id;
}

/* eos_token_id: a number or a list of them. */
static void add_number(const adding *x, const json_t *v)
{
    static const char key[] = "eos_token_id";
    int64_t id;
    for (size_t i = 0; i < json_array_size(v); i++) add_number(x, json_array_get(v, i));
    if (json_is_array(v) || !v || json_is_null(v)) return;
    add_id(x, key, v, dq_json_whole(&id, v) ? id : -1);
}

/* eos_token: a text, or an object that has one. */
static void add_named(const adding *x, const json_t *v)
{
    static const char key[] = "eos_token";
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!v || json_is_null(v) || !x->t) return;
    add_id(x, key, v,
           json_is_string(v) ? dq_tokenizer_id(x->t, json_string_value(v), json_string_length(v))
                             : -1);
}

dq_status dq_stop_ids_add(dq_stop_ids *s, const dq_model *m, const dq_tokenizer *t, int vocab,
                          dq_err *err)
{
    static const char *const files[] = {"config.json", "generation_config.json",
                                        "tokenizer_config.json", "special_tokens_map.json"};
    for (int i = 0; i < 4; i++) {
        const adding x = {s, t, files[i], vocab};
        const char *text;
        size_t len;
        json_t *root = NULL;
        DQ_TRY(dq_model_file(m, files[i], &text, &len, err));
        if (!text) continue;
        if (dq_json_parse_config(&root, text, len, files[i], err) == DQ_OK && !json_is_object(root))
            dq_fail(err, DQ_DAMAGED, "%s: the document is not an object", files[i]);
        if (err->code != DQ_OK) {
            json_decref(root);
            return dq_in(err, "%s: ", m->path);
        }
        if (i < 2)
            add_number(&x, json_object_get(root, "eos_token_id"));
        else
            add_named(&x, json_object_get(root, "eos_token"));
        json_decref(root);
    }
    return DQ_OK;
}
