/* tokenizer_load: tokenizer.json and tokenizer_config.json into a dq_tokenizer.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_impl.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

static const bool no = false, yes = true;

enum { MAX_ADDED = 1 << 16 };

/* The id that the reference gives: the model's when it knows the text, else one after all others.
 * A file that says otherwise is used by nobody with the ids it says. */
static dq_status check_added_id(dq_tokenizer_loader *l, const dq_added_token *a, bool *is_new,
                                dq_err *err)
{
    int32_t known = dq_strmap_get(&l->vocab, a->text, a->len);
    int32_t other = dq_strmap_get(&l->by_text, a->text, a->len);
    if (known < 0 && other >= 0) known = l->t->added[other].id;
    *is_new = known < 0;
    int64_t want = *is_new ? l->next_id : known;
    if (want == a->id) return DQ_OK;
    return dq_fail(
        err, DQ_MISMATCH,
        "added token \"%.100s\" has id %d where the vocabulary puts it at %lld. Make the "
        "ids of added tokens follow those of the vocabulary.",
        a->text, (int)a->id, (long long)want);
}

static dq_status make_form(dq_tokenizer_loader *l, dq_added_token *a, dq_err *err)
{
    char *form = NULL;
    a->form = a->text;
    a->form_len = a->len;
    if (!a->normalized) return DQ_OK;
    DQ_TRY(dq_normalizer_run(&l->t->normalizer, &form, &a->form_len, a->text, a->len, err));
    if (!form) return DQ_OK;
    a->form = dq_text(l->t->arena, form, a->form_len, err);
    dq_block_free(form);
    return a->form ? DQ_OK : err->code;
}

/* One added token; a second one of the same text replaces the flags of the first. */
static dq_status add_token(dq_tokenizer_loader *l, const json_t *v, int64_t id, dq_err *err)
{
    dq_tokenizer *t = l->t;
    dq_added_token a = {.id = (int32_t)id};
    const json_t *content = json_object_get(v, "content");
    bool is_new;
    if (!json_is_string(content))
        return dq_fail(err, DQ_DAMAGED, "added token %lld has no string \"content\"",
                       (long long)id);
    DQ_TRY(dq_json_bool(&a.special, v, "special", &no, err));
    DQ_TRY(dq_json_bool(&a.lstrip, v, "lstrip", &no, err));
    DQ_TRY(dq_json_bool(&a.rstrip, v, "rstrip", &no, err));
    DQ_TRY(dq_json_bool(&a.single_word, v, "single_word", &no, err));
    DQ_TRY(dq_json_bool(&a.normalized, v, "normalized", a.special ? &no : &yes, err));
    a.len = json_string_length(content);
    if (a.len == 0) return DQ_OK; /* the reference ignores it */
    if (a.len > MAX_ADDED)
        return dq_fail(err, DQ_MISMATCH,
                       "added token %lld of %zu bytes is not supported (at most %d)", (long long)id,
                       a.len, MAX_ADDED);
    a.text = dq_text(t->arena, json_string_value(content), a.len, err);
    if (!a.text) return err->code;
    DQ_TRY(check_added_id(l, &a, &is_new, err));
    DQ_TRY(make_form(l, &a, err));
    int32_t at = dq_strmap_get(&l->by_text, a.text, a.len);
    if (at < 0) {
        at = (int32_t)t->n_added++;
        dq_strmap_put(&l->by_text, a.text, a.len, at);
        if (is_new) l->next_id++;
    }
    t->added[at] = a;
    return DQ_OK;
}

static dq_status load_added(dq_tokenizer_loader *l, const json_t *list, dq_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        int64_t id;
        if (!json_is_object(v))
            return dq_fail(err, DQ_DAMAGED, "added_tokens[%zu] is not an object", i);
        DQ_TRY(dq_json_int(&id, v, "id", 0, INT32_MAX - 1, NULL, err));
        DQ_TRY(add_token(l, v, id, err));
    }
    return DQ_OK;
}

typedef struct numbered {
    int64_t id;
    const json_t *value;
} numbered;

static int by_number(const void *x, const void *y)
{
    const numbered *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

/* Decimal digits only; -1 otherwise. */
static int64_t parse_id(const char *s)
{
    int64_t id = 0;
    size_t n = 0;
    for (; s[n] >= '0' && s[n] <= '9' && n < 10; n++) id = id * 10 + (s[n] - '0');
    return n == 0 || s[n] || id >= INT32_MAX ? -1 : id;
}

/* Tokens that only tokenizer_config.json has, by rising id. Where both files have one, the flags of
 * tokenizer.json stay: they are what the reference library reads. */
static dq_status load_added_decoder(dq_tokenizer_loader *l, json_t *decoder, dq_err *err)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    l->file = "tokenizer_config.json";
    numbered *item = dq_alloc(l->scratch, json_object_size(decoder), sizeof *item, err);
    if (!item) return err->code;
    json_object_foreach(decoder, key, value)
    {
        item[n] = (numbered){parse_id(key), value};
        if (item[n].id < 0 || !json_is_object(value))
            return dq_fail(err, DQ_DAMAGED,
                           "added_tokens_decoder \"%.100s\" is not an id with an object", key);
        n++;
    }
    if (n) qsort(item, n, sizeof *item, by_number);
    for (size_t i = 0; i < n; i++) {
        const json_t *content = json_object_get(item[i].value, "content");
        int32_t at = -1;
        if (json_is_string(content))
            at =
                dq_strmap_get(&l->by_text, json_string_value(content), json_string_length(content));
        if (at >= 0 && l->t->added[at].id == item[i].id) continue;
        if (add_token(l, item[i].value, item[i].id, err) != DQ_OK)
            return dq_in(err, "added_tokens_decoder: ");
    }
    l->file = "tokenizer.json";
    return DQ_OK;
}

static dq_status load_all_added(dq_tokenizer_loader *l, const json_t *root, const json_t *config,
                                dq_err *err)
{
    dq_tokenizer *t = l->t;
    json_t *list = json_object_get(root, "added_tokens");
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    if (list && !json_is_null(list) && !json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "\"added_tokens\" is not a list");
    if (decoder && !json_is_null(decoder) && !json_is_object(decoder)) {
        l->file = "tokenizer_config.json";
        return dq_fail(err, DQ_DAMAGED, "\"added_tokens_decoder\" is not an object");
    }
    size_t capacity = json_array_size(list) + json_object_size(decoder);
    l->next_id = (int64_t)l->vocab_count;
    t->added = dq_alloc(t->arena, capacity, sizeof *t->added, err);
    if (!t->added) return err->code;
    DQ_TRY(dq_strmap_new(&l->by_text, capacity, l->scratch, err));
    DQ_TRY(load_added(l, list, err));
    DQ_TRY(load_added_decoder(l, decoder, err));
    for (size_t i = 0; i < t->n_added; i++) {
        int32_t same = dq_strmap_get(&l->by_text, t->added[i].form, t->added[i].form_len);
        t->added[i].told_special = same >= 0 && t->added[same].special;
    }
    DQ_TRY(dq_added_tokens_new(&t->in_raw, t->added, t->n_added, false, t->arena, err));
    return dq_added_tokens_new(&t->in_normalized, t->added, t->n_added, true, t->arena, err);
}

/* All pieces by id; added tokens that the model knows take their text. */
static dq_status load_pieces(dq_tokenizer_loader *l, const json_t *vocab, dq_err *err)
{
    dq_tokenizer *t = l->t;
    DQ_TRY(dq_tokenizer_load_pieces(l, vocab, t->n_added, err));
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        if (dq_strmap_get(&l->vocab, a->text, a->len) >= 0) continue;
        t->piece[t->n_pieces++] = (dq_tokenizer_entry){a->text, a->len, a->id};
    }
    dq_tokenizer_sort(t->piece, t->n_pieces);
    for (size_t i = 1; i < t->n_pieces; i++) {
        const dq_tokenizer_entry *p = &t->piece[i - 1];
        if (p->id == p[1].id)
            return dq_fail(err, DQ_DAMAGED, "tokens \"%.*s\" and \"%.*s\" have the same id %d",
                           (int)(p->len < 60 ? p->len : 60), p->text,
                           (int)(p[1].len < 60 ? p[1].len : 60), p[1].text, (int)p->id);
    }
    for (size_t i = 0; i < t->n_added; i++) {
        const dq_added_token *a = &t->added[i];
        dq_tokenizer_entry key = {NULL, 0, a->id};
        dq_tokenizer_entry *p = bsearch(&key, t->piece, t->n_pieces, sizeof *p, dq_tokenizer_by_id);
        if (p) *p = (dq_tokenizer_entry){a->text, a->len, a->id};
    }
    return DQ_OK;
}

/* Appends the ids of one special token of a template to list[*n]; *n does not pass `capacity`. */
static dq_status template_ids(const dq_tokenizer *t, const json_t *special, const char *name,
                              int32_t *list, int *n, int capacity, dq_err *err)
{
    const json_t *ids = json_object_get(json_object_get(special, name), "ids");
    if (!json_is_array(ids))
        return dq_fail(
            err, DQ_DAMAGED,
            "post_processor: special token \"%.100s\" of the template has no list of ids", name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        int64_t id;
        if (!dq_json_whole(&id, v) || id < 0 || id > INT32_MAX ||
            !dq_tokenizer_find(t, (int32_t)id))
            return dq_fail(
                err, DQ_DAMAGED,
                "post_processor: special token \"%.100s\" of the template has an id that "
                "no token has",
                name);
        if (*n == capacity)
            return dq_fail(err, DQ_MISMATCH, "post_processor: more than %d template tokens",
                           capacity);
        list[(*n)++] = (int32_t)id;
    }
    return DQ_OK;
}

enum { MAX_TEMPLATE = 256, MAX_DEPTH = 8 };

static dq_status begin_template(dq_tokenizer *t, dq_err *err)
{
    if (t->before)
        return dq_fail(err, DQ_MISMATCH, "post_processor: two templates are not supported");
    t->before = dq_alloc(t->arena, MAX_TEMPLATE, sizeof *t->before, err);
    t->after = dq_alloc(t->arena, MAX_TEMPLATE, sizeof *t->after, err);
    return t->before && t->after ? DQ_OK : err->code;
}

/* BertProcessing and RobertaProcessing: "cls" before the text and "sep" after it, each as [token,
 * id]. */
static dq_status load_cls_sep(dq_tokenizer *t, const json_t *v, const char *type, dq_err *err)
{
    DQ_TRY(begin_template(t, err));
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "sep" : "cls";
        const json_t *id = json_array_get(json_object_get(v, key), 1);
        int64_t n;
        if (!dq_json_whole(&n, id) || n < 0 || n > INT32_MAX || !dq_tokenizer_find(t, (int32_t)n))
            return dq_fail(err, DQ_DAMAGED,
                           "post_processor %s: \"%s\" is not [token, id] of a known token", type,
                           key);
        *(i ? t->after : t->before) = (int32_t)n;
        *(i ? &t->n_after : &t->n_before) = 1;
    }
    return DQ_OK;
}

/* "single" of a template: special tokens around one $A. */
static dq_status load_template(dq_tokenizer *t, const json_t *v, dq_err *err)
{
    const json_t *single = json_object_get(v, "single");
    const json_t *special = json_object_get(v, "special_tokens");
    bool seen = false;
    DQ_TRY(begin_template(t, err));
    if (!json_is_array(single))
        return dq_fail(err, DQ_DAMAGED, "post_processor TemplateProcessing has no list \"single\"");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *text = json_object_get(piece, "Sequence");
        const json_t *token = json_object_get(piece, "SpecialToken");
        const char *id;
        DQ_TRY(dq_json_text(&id, text ? text : token, "id", NULL, err));
        if (text && (seen || strcmp(id, "A") != 0))
            return dq_fail(err, DQ_MISMATCH,
                           "post_processor: a template for one text uses another one, or it twice");
        if (text) {
            seen = true;
        } else if (seen) {
            DQ_TRY(template_ids(t, special, id, t->after, &t->n_after, MAX_TEMPLATE, err));
        } else {
            DQ_TRY(template_ids(t, special, id, t->before, &t->n_before, MAX_TEMPLATE, err));
        }
    }
    if (!seen)
        return dq_fail(err, DQ_DAMAGED, "post_processor: the template has no place for the text");
    return DQ_OK;
}

static dq_status load_post(dq_tokenizer *t, const json_t *v, int depth, dq_err *err)
{
    const char *type;
    if (!v || json_is_null(v)) return DQ_OK;
    if (!json_is_object(v)) return dq_fail(err, DQ_DAMAGED, "a post_processor is not an object");
    DQ_TRY(dq_json_text(&type, v, "type", NULL, err));
    if (strcmp(type, "ByteLevel") == 0) return DQ_OK; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, v, err);
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0)
        return load_cls_sep(t, v, type, err);
    const json_t *list = json_object_get(v, "processors");
    if (strcmp(type, "Sequence") != 0 || depth == MAX_DEPTH)
        return dq_fail(err, DQ_MISMATCH, "post_processor type \"%s\" is not supported", type);
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "post_processor Sequence has no list \"processors\"");
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(load_post(t, json_array_get(list, i), depth + 1, err));
    return DQ_OK;
}

/* Id of a token that tokenizer_config.json names as a string or as an object; -1. */
static int32_t named_token(const dq_tokenizer_loader *l, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    if (!json_is_string(v)) return -1;
    int32_t at = dq_strmap_get(&l->by_text, json_string_value(v), json_string_length(v));
    if (at >= 0) return l->t->added[at].id;
    return dq_strmap_get(&l->vocab, json_string_value(v), json_string_length(v));
}

static dq_status load_parts(dq_tokenizer_loader *l, json_t *root, json_t *config, dq_err *err)
{
    static const char *const version_1 = "1.0";
    dq_tokenizer *t = l->t;
    const char *version;
    if (!json_is_object(root)) return dq_fail(err, DQ_DAMAGED, "the document is not an object");
    if (config && !json_is_object(config)) {
        l->file = "tokenizer_config.json";
        return dq_fail(err, DQ_DAMAGED, "the document is not an object");
    }
    DQ_TRY(dq_json_text(&version, root, "version", &version_1, err));
    if (strcmp(version, version_1) != 0)
        return dq_fail(err, DQ_MISMATCH, "version \"%s\" is not supported (expected \"1.0\")",
                       version);
    json_t *model = json_object_get(root, "model");
    if (!model) return dq_fail(err, DQ_DAMAGED, "key \"model\" is missing");
    DQ_TRY(dq_normalizer_load(&t->normalizer, json_object_get(root, "normalizer"), t->arena, err));
    DQ_TRY(dq_decoder_load(&t->decoder, json_object_get(root, "decoder"), t->arena, err));
    DQ_TRY(dq_tokenizer_load_model(l, model, err));
    DQ_TRY(dq_pretokenizer_load(&t->pre, json_object_get(root, "pre_tokenizer"), l->scratch, err));
    DQ_TRY(load_all_added(l, root, config, err));
    DQ_TRY(load_pieces(l, json_object_get(model, "vocab"), err));
    DQ_TRY(load_post(t, json_object_get(root, "post_processor"), 0, err));
    t->prefix = named_token(l, config, "bos_token");
    if (t->prefix < 0) t->prefix = named_token(l, config, "eos_token");
    return dq_tokenizer_keep_steps(t, root, err);
}

/* The document without the lists of a BPE model, which stand in l->lists; where they are not found, or what is left is
 * no JSON, the whole, so that the parser's words are about the file. */
static dq_status parse_document(json_t **root, dq_tokenizer_loader *l, const char *json, size_t len,
                                dq_err *err)
{
    int64_t first_bad;
    char *rest;
    size_t rest_len;
    dq_err other = {0};
    l->listed = dq_utf8_check(json, len, &first_bad) == 0 &&
                dq_tokenizer_lists_scan(&l->lists, &rest, &rest_len, json, len, l->scratch) &&
                dq_json_parse(root, rest, rest_len, l->file, &other) == DQ_OK;
    if (l->listed) return DQ_OK;
    l->lists = (dq_tokenizer_lists){0};
    return dq_json_parse(root, json, len, l->file, err);
}

static dq_status load(dq_tokenizer *t, const char *json, size_t len, const char *config,
                      size_t config_len, dq_err *err)
{
    dq_tokenizer_loader l = {.t = t, .scratch = dq_arena_new(), .file = "tokenizer.json"};
    json_t *root = NULL, *extra = NULL;
    if (!l.scratch) dq_fail(err, DQ_RESOURCE, "out of memory (loading a tokenizer)");
    if (!err->code) parse_document(&root, &l, json, len, err);
    if (!err->code && config)
        dq_json_parse_config(&extra, config, config_len, "tokenizer_config.json", err);
    if (!err->code && load_parts(&l, root, extra, err) != DQ_OK) dq_in(err, "%s: ", l.file);
    json_decref(root);
    json_decref(extra);
    dq_arena_free(l.scratch);
    return err->code;
}

dq_status dq_tokenizer_load(dq_tokenizer **out, const char *json, size_t len, const char *config,
                            size_t config_len, dq_err *err)
{
    dq_arena *arena = dq_arena_new();
    dq_tokenizer *t = arena ? dq_alloc(arena, 1, sizeof *t, err) : NULL;
    *out = NULL;
    if (!t) {
        dq_arena_free(arena);
        return dq_fail(err, DQ_RESOURCE, "out of memory (loading a tokenizer)");
    }
    t->arena = arena;
    t->prefix = -1;
    if (load(t, json, len, config, config_len, err) != DQ_OK) {
        dq_tokenizer_free(t);
        return err->code;
    }
    *out = t;
    return DQ_OK;
}
