/* chat_template_of: the template of a model and its special tokens, from the texts that came with it: those of a folder, of a
 * GGUF file or of a container, which dq_model_file makes alike.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "model/model.h"
#include "template/chat_template.h"

#include <string.h>

static const char config_name[] = "tokenizer_config.json";

/* The text under "chat_template"; NULL in *out: there is none. */
static dq_status find_text(const char **out, size_t *len, const json_t *config, dq_err *err)
{
    const json_t *t = json_object_get(config, "chat_template"), *one;
    size_t i;
    *out = NULL;
    if (!t || json_is_null(t)) return DQ_OK;
    if (json_is_array(t)) { /* several, by name */
        const json_t *all = t;
        t = NULL;
        json_array_foreach(all, i, one)
        {
            const char *name = json_string_value(json_object_get(one, "name"));
            if (name && strcmp(name, "default") == 0) t = json_object_get(one, "template");
        }
        if (!t)
            return dq_fail(err, DQ_MISMATCH, "%s: no chat template is named \"default\"",
                           config_name);
    }
    if (!json_is_string(t))
        return dq_json_wrong("chat_template", "a string, or a list of names and templates", t, err);
    *out = json_string_value(t);
    *len = json_string_length(t);
    return DQ_OK;
}

/* Special tokens, each a string or an object that has one. */
static dq_status define_tokens(dq_chat_template *t, const json_t *config, dq_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(config, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v))
            DQ_TRY(dq_chat_template_define(t, names[i], json_string_value(v), err));
    }
    return DQ_OK;
}

/* What the older file names stands before what tokenizer_config.json does, unless that has an added_tokens_decoder. */
static dq_status define_all(dq_chat_template *t, const dq_model *m, const json_t *config,
                            dq_err *err)
{
    static const char name[] = "special_tokens_map.json";
    const json_t *decoder = json_object_get(config, "added_tokens_decoder");
    const char *text;
    size_t len;
    json_t *map = NULL;
    DQ_TRY(define_tokens(t, config, err));
    if (decoder && !json_is_null(decoder)) return DQ_OK;
    DQ_TRY(dq_model_file(m, name, &text, &len, err));
    if (text && dq_json_parse_config(&map, text, len, name, err) == DQ_OK)
        define_tokens(t, map, err);
    json_decref(map);
    return err->code;
}

dq_status dq_chat_template_of(dq_chat_template **out, const dq_model *m, dq_err *err)
{
    const char *text, *file;
    size_t len, file_len;
    json_t *config = NULL;
    *out = NULL;
    DQ_TRY(dq_model_file(m, config_name, &file, &file_len, err));
    if (file && dq_json_parse_config(&config, file, file_len, config_name, err) != DQ_OK)
        return dq_in(err, "%s: ", m->path);
    if (dq_model_file(m, "chat_template.jinja", &text, &len, err) == DQ_OK && !text)
        find_text(&text, &len, config, err);
    if (err->code == DQ_OK && text && dq_chat_template_new(out, text, len, err) == DQ_OK)
        define_all(*out, m, config, err);
    json_decref(config);
    if (err->code == DQ_OK) return DQ_OK;
    dq_chat_template_free(*out);
    *out = NULL;
    return dq_in(err, "%s: ", m->path);
}
