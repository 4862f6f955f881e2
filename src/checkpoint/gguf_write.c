/* Keys are appended as the file has them; a failure stays with them until the head is asked for.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call per item follows: texts, i32 or f32. */
typedef enum dq_gguf_item { DQ_GGUF_TEXTS, DQ_GGUF_I32S, DQ_GGUF_F32S } dq_gguf_item;

enum { U32 = 4, I32 = 5, F32 = 6, BOOL = 7, TEXT = 8, LIST = 9 };

static void add(dq_strbuf *b, const void *p, size_t n, dq_err *err)
{
    if (err->code == DQ_OK) dq_strbuf_add(b, p, n, err);
}

static void add_number(dq_strbuf *b, uint64_t x, size_t bytes, dq_err *err)
{
    uint8_t p[8];
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(x >> 8 * i);
    add(b, p, bytes, err);
}

static void add_text(dq_strbuf *b, const char *s, size_t len, dq_err *err)
{
    add_number(b, len, 8, err);
    add(b, s, len, err);
}

static void begin(dq_gguf_fields *f, const char *key, uint32_t type)
{
    f->n++;
    add_text(&f->bytes, key, strlen(key), &f->err);
    add_number(&f->bytes, type, 4, &f->err);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void dq_gguf_write_u32(dq_gguf_fields *f, const char *key, uint32_t x)
{
    begin(f, key, U32);
    add_number(&f->bytes, x, 4, &f->err);
}

void dq_gguf_write_f32(dq_gguf_fields *f, const char *key, float x)
{
    begin(f, key, F32);
    add_number(&f->bytes, bits_of(x), 4, &f->err);
}

static void write_bool(dq_gguf_fields *f, const char *key, bool x)
{
    begin(f, key, BOOL);
    add_number(&f->bytes, x, 1, &f->err);
}

void dq_gguf_write_text(dq_gguf_fields *f, const char *key, const char *s, size_t len)
{
    begin(f, key, TEXT);
    add_text(&f->bytes, s, len, &f->err);
}

static void write_list(dq_gguf_fields *f, const char *key, dq_gguf_item type, size_t n)
{
    static const uint32_t types[] = {
        [DQ_GGUF_TEXTS] = TEXT, [DQ_GGUF_I32S] = I32, [DQ_GGUF_F32S] = F32};
    begin(f, key, LIST);
    add_number(&f->bytes, types[type], 4, &f->err);
    add_number(&f->bytes, n, 8, &f->err);
}

static void write_item(dq_gguf_fields *f, const char *s, size_t len)
{
    add_text(&f->bytes, s, len, &f->err);
}

dq_status dq_gguf_write_head(dq_strbuf *out, const dq_gguf_fields *f, const dq_gguf_tensor *tensor,
                             int64_t n, dq_err *err)
{
    static const uint8_t zeros[DQ_GGUF_ALIGNMENT];
    uint64_t offset = 0;
    DQ_TRY(dq_fail_as(err, &f->err));
    const size_t from = out->n;
    add(out, "GGUF", 4, err);
    add_number(out, 3, 4, err);
    add_number(out, (uint64_t)n, 8, err);
    add_number(out, f->n, 8, err);
    add(out, f->bytes.s, f->bytes.n, err);
    for (int64_t i = 0; i < n; i++) {
        const dq_gguf_tensor *t = &tensor[i];
        add_text(out, t->name, strlen(t->name), err);
        add_number(out, (uint64_t)t->n_dims, 4, err);
        for (int k = t->n_dims - 1; k >= 0; k--) add_number(out, (uint64_t)t->shape[k], 8, err);
        add_number(out, t->type, 4, err);
        add_number(out, offset, 8, err);
        offset += dq_gguf_write_stride(t->bytes);
    }
    const size_t bytes = out->n - from;
    add(out, zeros, dq_gguf_write_stride(bytes) - bytes, err);
    return err->code;
}

/* Tokens come by id first, then what splits and joins text, then tokens with a role. Whatever
 * llama.cpp would do otherwise is refused, so that ids are the same or there is no file. */

typedef struct token {
    const char *text; /* NULL: none of this id */
    size_t len;
    int type;
    bool normalized; /* an added token that is matched after the normalizer */
} token;

typedef struct vocabulary {
    const dq_gguf_tokenizer_files *files;
    const json_t *model;
    dq_gguf_merges *merges;
    token *token;   /* [n] */
    bool *is_piece; /* [n]: of the vocabulary, and no added token */
    int64_t n;
    int64_t bos, eos;
    bool add_bos, add_eos;
    dq_arena *arena;
} vocabulary;

static const char space_mark[] = "\xe2\x96\x81"; /* U+2581 */

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

static bool is_set(const json_t *v)
{
    return v && !json_is_null(v);
}

static dq_status refuse(const char *what, dq_err *err)
{
    return dq_fail(err, DQ_MISMATCH, "tokenizer.json: %s, which llama.cpp does not do", what);
}

static dq_status add_special(vocabulary *v, const json_t *t, json_int_t id, dq_err *err)
{
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    const json_t *text = json_object_get(t, "content");
    if (!json_is_string(text) || id < 0)
        return dq_fail(err, DQ_DAMAGED, "tokenizer.json: an added token has no text or no id");
    const char *s = json_string_value(text);
    if (id >= v->n)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: token %lld has no row in the embedding, which has %lld",
                       (long long)id, (long long)v->n);
    for (int i = 0; i < 3; i++) {
        if (json_is_true(json_object_get(t, flags[i])))
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: added token \"%s\" has \"%s\", which GGUF cannot say",
                           s, flags[i]);
    }
    const bool special = json_is_true(json_object_get(t, "special"));
    const json_t *normalized = json_object_get(t, "normalized");
    v->is_piece[id] = false;
    v->token[id] =
        (token){.text = s,
                .len = json_string_length(text),
                .type = special ? DQ_GGUF_CONTROL : DQ_GGUF_USER_DEFINED,
                .normalized = json_is_boolean(normalized) ? json_is_true(normalized) : !special};
    return DQ_OK;
}

/* Those of tokenizer.json, then those only in tokenizer_config.json. */
static dq_status add_specials(vocabulary *v, dq_err *err)
{
    const json_t *added = json_object_get(v->files->tokenizer, "added_tokens");
    json_t *more = json_object_get(v->files->tokenizer_config, "added_tokens_decoder"), *t;
    const char *key;
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *id = json_object_get(json_array_get(added, i), "id");
        DQ_TRY(add_special(v, json_array_get(added, i),
                           json_is_integer(id) ? json_integer_value(id) : -1, err));
    }
    json_object_foreach(more, key, t)
    {
        const char *text = json_string_value(json_object_get(t, "content"));
        char *end;
        const long long id = strtoll(key, &end, 10);
        if (key[0] < '0' || key[0] > '9' || *end)
            return dq_fail(err, DQ_DAMAGED,
                           "tokenizer_config.json: added_tokens_decoder \"%.100s\" is not an id",
                           key);
        if (id >= 0 && id < v->n && text && v->token[id].text && !v->is_piece[id] &&
            strcmp(v->token[id].text, text) == 0)
            continue;
        DQ_TRY(add_special(v, t, id, err));
    }
    return DQ_OK;
}

static bool same_runs(const token *a, const token *b)
{
    size_t one;
    if (dq_utf8_first(a->text, &one) != dq_utf8_first(b->text, &one)) return false;
    return memcmp(a->text, a->text + one, a->len - one) == 0 &&
           memcmp(b->text, b->text + one, b->len - one) == 0;
}

/* Whether b may begin within a, at byte `at` or later. */
static bool may_begin_in(const token *a, const token *b, size_t at)
{
    for (; at < a->len; at++) {
        const size_t left = a->len - at;
        if (memcmp(a->text + at, b->text, left < b->len ? left : b->len) == 0) return true;
    }
    return false;
}

/* Of two overlapping added tokens the tokenizers library takes one that is not normalized, else the
 * left one, else the longer one, and llama.cpp the longer one. Each pair is asked both ways. */
static bool same_choice(const token *a, const token *b)
{
    if (a->len > b->len || (a->normalized && !b->normalized)) return true;
    if (a->normalized == b->normalized) return same_runs(a, b) || !may_begin_in(a, b, 1);
    return !may_begin_in(a, b, 1) && !may_begin_in(b, a, 0);
}

static int64_t id_of(const vocabulary *v, const char *text)
{
    for (int64_t i = 0; i < v->n; i++) {
        if (v->token[i].text && strcmp(v->token[i].text, text) == 0) return i;
    }
    return -1;
}

static int64_t model_id(const vocabulary *v, const char *text)
{
    const json_t *id = json_object_get(json_object_get(v->model, "vocab"), text);
    return id ? json_integer_value(id) : -1;
}

static void write_tokens(dq_gguf_fields *f, const vocabulary *v)
{
    write_list(f, "tokenizer.ggml.tokens", DQ_GGUF_TEXTS, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        char unused[32];
        const token *t = &v->token[i];
        const int n = snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        write_item(f, t->text ? t->text : unused, t->text ? t->len : (size_t)n);
    }
    write_list(f, "tokenizer.ggml.token_type", DQ_GGUF_I32S, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        add_number(&f->bytes, (uint32_t)(v->token[i].text ? v->token[i].type : DQ_GGUF_UNUSED), 4,
                   &f->err);
    }
}

/* -1: it is not one token. */
static int64_t template_id(const json_t *template, const json_t *item)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
    const json_t *t =
        name ? json_object_get(json_object_get(template, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(t, "ids");
    return json_array_size(ids) == 1 ? json_integer_value(json_array_get(ids, 0)) : -1;
}

static dq_status read_post(vocabulary *v, const json_t *post, int depth, dq_err *err)
{
    const json_t *type = json_object_get(post, "type"), *list = json_object_get(post, "processors");
    if (!is_set(post) || is_text(type, "ByteLevel")) return DQ_OK;
    if (is_text(type, "TemplateProcessing")) {
        const json_t *single = json_object_get(post, "single");
        const size_t n = json_array_size(single);
        size_t at = 0;
        while (at < n && !json_object_get(json_array_get(single, at), "Sequence")) at++;
        if (at > 1 || at == n || n - at > 2)
            return refuse("its template puts more than one token before or after a text", err);
        v->add_bos = at == 1;
        v->add_eos = n - at == 2;
        if (v->add_bos) v->bos = template_id(post, json_array_get(single, 0));
        if (v->add_eos) v->eos = template_id(post, json_array_get(single, at + 1));
        if ((v->add_bos && (v->bos < 0 || v->bos >= v->n)) ||
            (v->add_eos && (v->eos < 0 || v->eos >= v->n)))
            return dq_fail(err, DQ_DAMAGED,
                           "tokenizer.json: its template names a token that is not one");
        return DQ_OK;
    }
    if (!is_text(type, "Sequence") || depth > 4)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: post_processor \"%s\" has no form in GGUF",
                       json_is_string(type) ? json_string_value(type) : "");
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(read_post(v, json_array_get(list, i), depth + 1, err));
    return DQ_OK;
}

/* The id from tokenizer_config.json ("eos_token") or config.json ("eos_token_id"); -1: neither. */
static dq_status role_id(int64_t *id, const vocabulary *v, const char *role, dq_err *err)
{
    const json_t *t = json_object_get(v->files->tokenizer_config, role);
    const char *key = dq_textf(v->arena, err, "%s_id", role);
    if (!key) return err->code;
    if (json_is_object(t)) t = json_object_get(t, "content");
    *id = json_is_string(t) ? id_of(v, json_string_value(t)) : -1;
    if (*id >= 0) return DQ_OK;
    t = json_object_get(v->files->config, key);
    if (json_is_array(t)) t = json_array_get(t, 0);
    if (json_is_integer(t)) *id = json_integer_value(t);
    if (*id >= v->n) *id = -1;
    return DQ_OK;
}

static void write_id(dq_gguf_fields *f, const char *role, int64_t id)
{
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", role);
    if (id >= 0) dq_gguf_write_u32(f, key, (uint32_t)id);
}

static void add_ends(int32_t *id, int64_t *n, int64_t max, const vocabulary *v, const json_t *named)
{
    for (size_t i = 0; i < json_array_size(named); i++)
        add_ends(id, n, max, v, json_array_get(named, i));
    const int64_t x = json_is_integer(named) ? json_integer_value(named) : -1;
    if (x < 0 || x >= v->n || *n == max) return;
    for (int64_t i = 0; i < *n; i++) {
        if (id[i] == x) return;
    }
    id[(*n)++] = (int32_t)x;
}

/* llama.cpp would use fixed ids where none are given. Without BOS a text begins with EOS. */
static dq_status write_roles(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    int64_t bos, eos, unk, pad;
    DQ_TRY(role_id(&bos, v, "bos_token", err));
    DQ_TRY(role_id(&eos, v, "eos_token", err));
    DQ_TRY(role_id(&unk, v, "unk_token", err));
    DQ_TRY(role_id(&pad, v, "pad_token", err));
    if (v->add_bos) bos = v->bos;
    if (v->add_eos) eos = v->eos;
    if (eos < 0)
        return dq_fail(err, DQ_MISMATCH,
                       "neither tokenizer_config.json (\"eos_token\") nor config.json "
                       "(\"eos_token_id\") says which token ends a text, and llama.cpp would take "
                       "some other one. Name it in the source.");
    if (bos < 0) bos = eos;
    if (unk < 0 && json_is_string(json_object_get(v->model, "unk_token")))
        unk = id_of(v, json_string_value(json_object_get(v->model, "unk_token")));
    write_id(f, "bos", bos);
    write_id(f, "eos", eos);
    /* End tokens beyond eos that llama.cpp does not know by name go under two keys. */
    enum { ENDS = 64 };
    static const char key[] = "eos_token_id", *const roles[] = {"eot", "eom"};
    const json_t *t = json_object_get(v->files->special_tokens_map, "eos_token");
    int32_t id[ENDS];
    int64_t n = 0;
    int used = 0;
    add_ends(id, &n, ENDS, v, json_object_get(v->files->config, key));
    add_ends(id, &n, ENDS, v, json_object_get(v->files->generation_config, key));
    if (json_is_object(t)) t = json_object_get(t, "content");
    json_t *named = json_integer(json_is_string(t) ? id_of(v, json_string_value(t)) : -1);
    add_ends(id, &n, ENDS, v, named);
    json_decref(named);
    for (int64_t i = 0; i < n; i++) {
        const token *x = &v->token[id[i]];
        if (id[i] == eos || (x->text && dq_gguf_vocab_ends(x->text, x->len))) continue;
        if (used == 2)
            return dq_fail(err, DQ_MISMATCH,
                           "a text ends at more than three tokens that llama.cpp does not know by "
                           "their names, and GGUF has keys for eos, eot and eom alone");
        write_id(f, roles[used++], id[i]);
    }
    write_id(f, "unknown", unk);
    write_id(f, "padding", pad);
    write_bool(f, "tokenizer.ggml.add_bos_token", v->add_bos);
    write_bool(f, "tokenizer.ggml.add_eos_token", v->add_eos);
    return DQ_OK;
}

static void write_chat(dq_gguf_fields *f, const vocabulary *v)
{
    const json_t *chat = json_object_get(v->files->tokenizer_config, "chat_template");
    if (v->files->chat) {
        dq_gguf_write_text(f, "tokenizer.chat_template", v->files->chat, v->files->chat_len);
        return;
    }
    for (size_t i = 0; i < json_array_size(chat); i++) { /* several, by name */
        const json_t *one = json_array_get(chat, i);
        if (!is_text(json_object_get(one, "name"), "default")) continue;
        chat = json_object_get(one, "template");
        break;
    }
    if (json_is_string(chat))
        dq_gguf_write_text(f, "tokenizer.chat_template", json_string_value(chat),
                           json_string_length(chat));
}

static const char *type_name(const json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    return type ? type : "none";
}

/* ignore_merges follows from the pre-tokenizer's name in llama.cpp; it is moot where merges make
 * every token. */
static dq_status check_ignored(const vocabulary *v, bool theirs, const char *name, dq_err *err)
{
    const bool ignored = json_is_true(json_object_get(v->model, "ignore_merges"));
    if (ignored == theirs) return DQ_OK;
    const int32_t unmade = dq_gguf_merges_unmade(v->merges, v->is_piece, err);
    if (unmade < 0) return err->code;
    return dq_fail(err, DQ_MISMATCH,
                   "tokenizer.json: \"ignore_merges\" is %s and merges do not make token %d, which "
                   "llama.cpp reads otherwise with the pre-tokenizer \"%s\"",
                   ignored ? "true" : "false", unmade, name);
}

static dq_status write_gpt2(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    json_t *normalizer = json_object_get(v->files->tokenizer, "normalizer");
    json_t *steps = json_object_get(v->files->tokenizer, "pre_tokenizer");
    const dq_gguf_pre *pre = dq_gguf_pre_of(steps);
    if (is_set(normalizer) &&
        !(pre && pre->nfc && is_text(json_object_get(normalizer, "type"), "NFC")))
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: normalizer \"%s\" beside byte-level BPE has no form in GGUF",
            type_name(normalizer));
    if (!pre)
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: pre_tokenizer \"%s\" is none of those that have a name in GGUF files "
            "(gpt-2, smollm, qwen2, llama-bpe), so that llama.cpp would split words otherwise",
            type_name(steps));
    DQ_TRY(check_ignored(v, pre->ignore_merges, pre->name, err));
    /* The tokenizers library joins across bytes without a token, llama.cpp does not. Control
     * characters and empty planes may lack one, as in real models. */
    for (unsigned b = 0; b < 256; b++) {
        char text[3] = {0};
        const bool control = (b < 0x20 && b != '\t' && b != '\n' && b != '\r') || b == 0x7f;
        if (control || b == 0xc0 || b == 0xc1 || b == 0xf1 || b == 0xf2 || b > 0xf3) continue;
        dq_utf8_of_byte(text, (uint8_t)b);
        if (model_id(v, text) < 0)
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: byte 0x%02X (\"%s\") has no token, and llama.cpp would "
                           "not join what stands around it",
                           b, text);
    }
    dq_gguf_write_text(f, "tokenizer.ggml.model", "gpt2", 4);
    dq_gguf_write_text(f, "tokenizer.ggml.pre", pre->name, strlen(pre->name));
    write_tokens(f, v);
    const int64_t n = v->merges->n_merges;
    write_list(f, "tokenizer.ggml.merges", DQ_GGUF_TEXTS, (size_t)n);
    for (int64_t i = 0; i < n && err->code == DQ_OK; i++) {
        const dq_gguf_merge *m = &v->merges->merge[i];
        const char *text = dq_textf(v->arena, err, "%.*s %.*s", (int)m->len[0], m->text[0],
                                    (int)m->len[1], m->text[1]);
        if (text) write_item(f, text, m->len[0] + m->len[1] + 1);
    }
    return err->code;
}

static bool is_replace(const json_t *v)
{
    return is_text(json_object_get(v, "type"), "Replace") &&
           is_text(json_object_get(json_object_get(v, "pattern"), "String"), " ") &&
           is_text(json_object_get(v, "content"), space_mark);
}

static bool is_prepend(const json_t *v)
{
    return is_text(json_object_get(v, "type"), "Prepend") &&
           is_text(json_object_get(v, "prepend"), space_mark);
}

/* Accepts only what llama.cpp does: a mark for each space, and perhaps one before the text. */
static bool read_spaces(bool *prefix, const json_t *tokenizer)
{
    const json_t *normalizer = json_object_get(tokenizer, "normalizer");
    const json_t *list = json_object_get(normalizer, "normalizers");
    if (is_set(json_object_get(tokenizer, "pre_tokenizer"))) return false;
    *prefix = false;
    if (is_replace(normalizer)) return true;
    if (!is_text(json_object_get(normalizer, "type"), "Sequence")) return false;
    const size_t n = json_array_size(list);
    *prefix = n == 2 && is_prepend(json_array_get(list, 0));
    return (n == 1 || *prefix) && is_replace(json_array_get(list, n - 1));
}

/* llama.cpp needs a token for every byte and finds neither those nor the unknown one in text. */
static dq_status mark_bytes(vocabulary *v, dq_err *err)
{
    const char *unk = json_string_value(json_object_get(v->model, "unk_token"));
    const int64_t unknown = unk ? id_of(v, unk) : -1;
    int n = 0;
    for (unsigned b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", b);
        const int64_t id = model_id(v, text);
        if (id < 0 || !v->is_piece[id]) continue;
        v->token[id].type = DQ_GGUF_BYTE;
        n++;
    }
    if (unknown >= 0 && !v->is_piece[unknown]) v->token[unknown].type = DQ_GGUF_UNKNOWN;
    if (n == 256) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "tokenizer.json: %d of 256 tokens of bytes are there, and llama.cpp needs all of them", n);
}

static int32_t first_piece(const vocabulary *v)
{
    for (int64_t i = 0; i < v->n; i++) {
        if (v->is_piece[i] && v->token[i].type == DQ_GGUF_NORMAL) return (int32_t)i;
    }
    return 0;
}

static dq_status write_llama(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    const char *why = NULL;
    bool prefix;
    if (!read_spaces(&prefix, v->files->tokenizer))
        return refuse("it makes more of spaces than U+2581, or of other characters", err);
    float *score = dq_alloc(v->arena, (size_t)v->n, sizeof *score, err);
    if (!score) return err->code;
    /* Normalized added tokens are matched after spaces became marks; llama.cpp matches all
     * before. */
    for (int64_t i = 0; i < v->n; i++) {
        const token *t = &v->token[i];
        if (!t->text || !t->normalized) continue;
        if (prefix || strchr(t->text, ' ') || strstr(t->text, space_mark))
            return dq_fail(err, DQ_MISMATCH,
                           "tokenizer.json: added token \"%s\" has \"normalized\", so that the "
                           "normalizer changes it, which llama.cpp does not do",
                           t->text);
    }
    DQ_TRY(check_ignored(v, false, "default", err));
    DQ_TRY(mark_bytes(v, err));
    DQ_TRY(
        dq_gguf_merges_scores(score, &why, v->merges, v->is_piece, first_piece(v), v->arena, err));
    if (why)
        return dq_fail(err, DQ_MISMATCH,
                       "tokenizer.json: its merges are not those of a SentencePiece vocabulary "
                       "(%s), so that llama.cpp would give other tokens",
                       why);
    dq_gguf_write_text(f, "tokenizer.ggml.model", "llama", 5);
    dq_gguf_write_text(f, "tokenizer.ggml.pre", "default", 7);
    write_tokens(f, v);
    write_list(f, "tokenizer.ggml.scores", DQ_GGUF_F32S, (size_t)v->n);
    for (int64_t i = 0; i < v->n; i++) {
        add_number(&f->bytes, bits_of(v->token[i].type == DQ_GGUF_NORMAL ? score[i] : 0), 4,
                   &f->err);
    }
    write_bool(f, "tokenizer.ggml.add_space_prefix", prefix);
    return DQ_OK;
}

static bool is_empty(const json_t *v)
{
    return !is_set(v) || is_text(v, "");
}

static dq_status write_all(dq_gguf_fields *f, vocabulary *v, dq_err *err)
{
    v->model = json_object_get(v->files->tokenizer, "model");
    const json_t *type = json_object_get(v->model, "type");
    if (json_is_string(type) && !is_text(type, "BPE"))
        return dq_fail(
            err, DQ_MISMATCH,
            "tokenizer.json: a model of type \"%s\" is not written to GGUF (expected BPE)",
            json_string_value(type));
    if (!is_empty(json_object_get(v->model, "continuing_subword_prefix")) ||
        !is_empty(json_object_get(v->model, "end_of_word_suffix")))
        return refuse("pieces inside a word have a prefix or a suffix", err);
    if (json_number_value(json_object_get(v->model, "dropout")) > 0)
        return refuse("merges are dropped by chance", err);
    DQ_TRY(dq_gguf_merges_new(&v->merges, v->model, v->n, v->arena, err));
    union { /* the iteration macro takes a pointer to non-const, but changes nothing */
        const json_t *in;
        json_t *out;
    } vocab = {.in = json_object_get(v->model, "vocab")};
    const char *key;
    json_t *id;
    v->token = dq_alloc(v->arena, (size_t)v->n, sizeof *v->token, err);
    v->is_piece = dq_alloc(v->arena, (size_t)v->n, sizeof *v->is_piece, err);
    if (!v->token || !v->is_piece) return err->code;
    json_object_foreach(vocab.out, key, id)
    {
        token *t = &v->token[json_integer_value(id)]; /* dq_gguf_merges_new has looked at it */
        if (t->text)
            return dq_fail(err, DQ_DAMAGED, "tokenizer.json: two tokens have the id %lld",
                           (long long)json_integer_value(id));
        *t = (token){.text = key, .len = strlen(key), .type = DQ_GGUF_NORMAL};
        v->is_piece[json_integer_value(id)] = true;
    }
    DQ_TRY(add_specials(v, err));
    int64_t n = 0;
    const token **added = dq_alloc(v->arena, (size_t)v->n, sizeof *added, err);
    if (!added) return err->code;
    for (int64_t i = 0; i < v->n; i++) {
        if (v->token[i].text && v->token[i].len && !v->is_piece[i]) added[n++] = &v->token[i];
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k < n; k++) {
            if (i != k && !same_choice(added[i], added[k]))
                return dq_fail(err, DQ_MISMATCH,
                               "tokenizer.json: added tokens \"%s\" and \"%s\" overlap in a text, "
                               "where llama.cpp would take the longer one first",
                               added[i]->text, added[k]->text);
        }
    }
    DQ_TRY(read_post(v, json_object_get(v->files->tokenizer, "post_processor"), 0, err));
    const bool bytes = json_is_true(json_object_get(v->model, "byte_fallback"));
    DQ_TRY(bytes ? write_llama(f, v, err) : write_gpt2(f, v, err));
    DQ_TRY(write_roles(f, v, err));
    write_chat(f, v);
    return DQ_OK;
}

dq_status dq_gguf_tokenizer_write(dq_gguf_fields *f, const dq_gguf_tokenizer_files *files,
                                  int64_t n_tokens, dq_err *err)
{
    vocabulary v = {.files = files, .n = n_tokens, .arena = dq_arena_new(), .bos = -1, .eos = -1};
    if (!v.arena) return dq_fail(err, DQ_RESOURCE, "out of memory");
    write_all(f, &v, err);
    dq_arena_free(v.arena);
    return err->code;
}
