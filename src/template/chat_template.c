/* The template of a model and its special tokens, from the texts that came with it: those of a
 * folder, of a GGUF file or of a container, which dq_model_file makes alike.
 * SPDX-License-Identifier: MIT */
#include "base/json.h"
#include "model/model.h"
#include "template/inside.h"

#include <string.h>

/* The tree is made once; a rendering has its own arena and two scopes: what the template is given,
 * and what it sets. */

enum { MAX_TEXT = 1 << 20 };

struct dq_chat_template {
    dq_arena *arena;
    dq_jinja_nodes body;
    dq_jinja_dict names; /* that were defined */
};

static dq_status check_text(const char *text, size_t len, const char *what, dq_err *err)
{
    int64_t bad;
    if (dq_utf8_check(text, len, &bad) == 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: byte %lld is not UTF-8", what, (long long)bad);
}

/* DQ_MISMATCH names what is not implemented, with its line; DQ_DAMAGED: Jinja2 refuses the template
 * too. */
static dq_status new_template(dq_chat_template **out, const char *text, size_t len, dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_chat_template *t = arena ? dq_alloc(arena, 1, sizeof *t, err) : NULL;
    *out = NULL;
    if (!t) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    t->arena = arena;
    if (len > MAX_TEXT)
        dq_fail(err, DQ_MISMATCH, "chat template: more than %d bytes are not supported", MAX_TEXT);
    else if (check_text(text, len, "chat template", err) == DQ_OK)
        t->body = dq_jinja_parse(&(dq_jinja_run){.arena = arena, .err = err}, text, len);
    if (err->code == DQ_OK)
        *out = t;
    else
        dq_chat_template_free(t);
    return err->code;
}

void dq_chat_template_free(dq_chat_template *t)
{
    if (t) dq_arena_free(t->arena);
}

/* Defines "bos_token", "eos_token" and so on; other names are undefined. Both texts are copied. */
static dq_status define(dq_chat_template *t, const char *name, const char *text, dq_err *err)
{
    dq_jinja_run r = {.arena = t->arena, .err = err};
    DQ_TRY(check_text(text, strlen(text), name, err));
    const char *copy = dq_text(t->arena, text, strlen(text), err);
    const char *key = dq_text(t->arena, name, strlen(name), err);
    if (copy && key)
        dq_jinja_dict_put(&r, &t->names, dq_jinja_text_of(key),
                          dq_jinja_string(copy, strlen(copy)));
    return err->code;
}

static const char config_name[] = "tokenizer_config.json";

/* *out NULL: there is no "chat_template". */
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

/* Each is a string or an object with one. */
static dq_status define_tokens(dq_chat_template *t, const json_t *config, dq_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *v = json_object_get(config, names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (json_is_string(v)) DQ_TRY(define(t, names[i], json_string_value(v), err));
    }
    return DQ_OK;
}

/* The older file's tokens come before those of tokenizer_config.json, unless that has an
 * added_tokens_decoder. */
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
    if (err->code == DQ_OK && text && new_template(out, text, len, err) == DQ_OK)
        define_all(*out, m, config, err);
    json_decref(config);
    if (err->code == DQ_OK) return DQ_OK;
    dq_chat_template_free(*out);
    *out = NULL;
    return dq_in(err, "%s: ", m->path);
}

static dq_jinja_value message_of(dq_jinja_run *r, const dq_chat_message *m)
{
    dq_jinja_value v = dq_jinja_dict_new(r, DQ_JINJA_DICT);
    const char *const texts[] = {m->role, m->content}, *const names[] = {"role", "content"};
    for (int i = 0; i < 2 && dq_jinja_ok(r); i++) {
        const size_t n = strlen(texts[i]);
        if (check_text(texts[i], n, names[i], r->err) == DQ_OK)
            dq_jinja_dict_put(r, v.dict, dq_jinja_text_of(names[i]), dq_jinja_string(texts[i], n));
    }
    return v;
}

/* The text as dq_chat_template_prompt has it, empty or not. */
static dq_status render_template(const dq_chat_template *t, const dq_chat_message *m, int n,
                                 bool add_generation_prompt, char **out, size_t *len, dq_err *err)
{
    dq_strbuf text = {0};
    dq_jinja_run r = {.arena = dq_arena_new(), .err = err, .out = &text, .line = 1};
    *out = NULL;
    if (!r.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_jinja_eval_scope(&r, NULL)) {
        static const char *const absent[] = {"tools", "documents"};
        const dq_jinja_value none = {.kind = DQ_JINJA_NONE};
        dq_jinja_dict *names = &r.scope->names;
        dq_jinja_value messages = dq_jinja_list_new(&r, DQ_JINJA_LIST, (size_t)n);
        for (int i = 0; i < n && dq_jinja_ok(&r); i++)
            dq_jinja_list_add(&r, messages.list, message_of(&r, &m[i]));
        dq_jinja_dict_put(&r, names, dq_jinja_text_of("messages"), messages);
        dq_jinja_dict_put(&r, names, dq_jinja_text_of("add_generation_prompt"),
                          dq_jinja_bool(add_generation_prompt));
        for (int i = 0; i < 2; i++) dq_jinja_dict_put(&r, names, dq_jinja_text_of(absent[i]), none);
        for (size_t i = 0; i < t->names.n; i++)
            dq_jinja_dict_put(&r, names, t->names.entry[i].key, t->names.entry[i].value);
        if (dq_jinja_ok(&r) && dq_jinja_eval_scope(&r, r.scope)) dq_jinja_eval_body(&r, &t->body);
    }
    if (dq_jinja_ok(&r)) dq_strbuf_add(&text, "", 1, err);
    dq_arena_free(r.arena);
    *out = text.s;
    *len = text.n - (text.n > 0);
    if (err->code == DQ_OK) return DQ_OK;
    dq_block_free(text.s);
    *out = NULL;
    *len = 0;
    return err->code;
}

dq_status dq_chat_template_prompt(const dq_chat_template *t, const char *path,
                                  const dq_chat_message *m, int n, bool add_generation_prompt,
                                  char **out, size_t *len, dq_err *err)
{
    if (render_template(t, m, n, add_generation_prompt, out, len, err) == DQ_OK && *len > 0)
        return DQ_OK;
    dq_block_free(*out);
    *out = NULL;
    if (err->code == DQ_STOPPED) return err->code;
    if (err->code == DQ_OK)
        dq_fail(err, DQ_MISMATCH,
                "the chat template makes an empty text, so nothing can follow it");
    return dq_in(err, "%s: ", path);
}

static const char *trimmed(const char *s, size_t *n)
{
    s += strspn(s, " \t\r\n");
    *n = strlen(s);
    while (*n && strchr(" \t\r\n", s[*n - 1])) --*n;
    return s;
}

static size_t count(const char *text, size_t len, const char *s, size_t n)
{
    size_t found = 0;
    for (const char *at = text, *end = text + len;
         n && (at = memchr(at, *s, (size_t)(end - at))) != NULL && (size_t)(end - at) >= n; at++)
        found += memcmp(at, s, n) == 0;
    return found;
}

const char *dq_chat_template_lost(const char *text, size_t len, const dq_chat_message *m, int n)
{
    for (int i = 0; i < n; i++) {
        size_t own, all = 0, other;
        const char *s = trimmed(m[i].content, &own);
        if (strcmp(m[i].role, "system") != 0 && strcmp(m[i].role, "user") != 0) continue;
        for (int k = 0; k < n;
             k++) { /* a word of the system may stand in the user's text as well */
            const char *in = trimmed(m[k].content, &other);
            if (strcmp(m[k].role, "system") == 0 || strcmp(m[k].role, "user") == 0)
                all += count(in, other, s, own);
        }
        if (count(text, len, s, own) < all) return m[i].role;
    }
    return NULL;
}
