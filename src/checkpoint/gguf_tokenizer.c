/* gguf_tokenizer: tokenizer.json out of the keys `tokenizer.ggml.*`, so that one loader serves both. A vocabulary of `gpt2`
 * is byte-level BPE, whose pre-tokenizer is a row of a table by its name. One of `llama` is SentencePiece's BPE: its merges
 * are all ways in which a piece is made of two, best score first, as transformers lists them.
 *
 * Source: transformers convert_slow_tokenizer.py (generate_merges, LlamaConverter, GGUFLlamaConverter); the patterns are those
 * of the models' own tokenizer.json, as src/llama-vocab.cpp of llama.cpp names them.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_config.h"

#include "base/strmap.h"

#include <stdlib.h>
#include <string.h>

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* ---- Pre-tokenizers of byte-level BPE ---- */

static const char qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct pre_tokenizer {
    const char *name;    /* tokenizer.ggml.pre */
    bool digits;         /* each digit on its own, then GPT-2's pattern */
    const char *pattern; /* NULL: GPT-2's */
    bool ignore_merges;  /* a word that is a token is one */
    bool add_bos;        /* where the file does not say */
} pre_tokenizer;

static const pre_tokenizer known[] = {
    {.name = "gpt-2"},
    {.name = "smollm", .digits = true},
    {.name = "starcoder", .digits = true},
    {.name = "refact", .digits = true},
    {.name = "codeshell", .digits = true},
    {.name = "qwen2", .pattern = qwen2_pattern},
    {.name = "llama-bpe", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
};
enum { N_KNOWN = sizeof known / sizeof *known };

static dq_status find_pre(const pre_tokenizer **out, const json_t *f, dq_err *err)
{
    static const char *const none = "";
    const char *name;
    DQ_TRY(dq_json_text(&name, f, "tokenizer.ggml.pre", &none, err));
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        *out = &known[i];
        return DQ_OK;
    }
    if (!name[0])
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.pre\" is missing, so that the split of text into "
                       "words is not known. Convert "
                       "the model again with a converter of today, or use its folder.");
    return dq_fail(err, DQ_MISMATCH,
                   "key \"tokenizer.ggml.pre\": \"%s\" is not known (known are gpt-2, smollm, "
                   "starcoder, refact, codeshell, "
                   "qwen2, llama-bpe). Use the model's folder with its tokenizer.json.",
                   name);
}

/* ByteLevel; with a pattern of its own it splits nothing itself. */
static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", (int)use_regex);
}

static json_t *pre_tokenizer_json(const pre_tokenizer *p)
{
    json_t *first = NULL;
    if (p->digits)
        first = json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1);
    else if (p->pattern)
        first = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                          p->pattern, "behavior", "Isolated", "invert", 0);
    json_t *list = json_array();
    if (first) json_array_append_new(list, first);
    json_array_append_new(list, byte_level(!p->pattern));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

/* ---- Vocabulary ---- */

typedef struct vocabulary {
    const json_t *token, *type, *score; /* lists; type and score may be NULL */
    size_t n;
} vocabulary;

static dq_status list_of(const json_t **out, const json_t *f, const char *key, bool needed,
                         dq_err *err)
{
    *out = json_object_get(f, key);
    if (!*out && !needed) return DQ_OK;
    return json_is_array(*out) ? DQ_OK : dq_json_wrong(key, "a list", *out, err);
}

static dq_status read_vocabulary(vocabulary *v, const json_t *f, bool scores, dq_err *err)
{
    DQ_TRY(list_of(&v->token, f, "tokenizer.ggml.tokens", true, err));
    DQ_TRY(list_of(&v->type, f, "tokenizer.ggml.token_type", false, err));
    DQ_TRY(list_of(&v->score, f, "tokenizer.ggml.scores", scores, err));
    v->n = json_array_size(v->token);
    if ((v->type && json_array_size(v->type) != v->n) ||
        (v->score && json_array_size(v->score) != v->n))
        return dq_fail(err, DQ_DAMAGED,
                       "the lists of tokens, their types and scores differ in length");
    for (size_t i = 0; i < v->n; i++) {
        if (!json_is_string(json_array_get(v->token, i)))
            return dq_fail(err, DQ_DAMAGED, "key \"tokenizer.ggml.tokens\": token %zu is no text",
                           i);
    }
    return DQ_OK;
}

static int type_of(const vocabulary *v, size_t i)
{
    const json_t *t = json_array_get(v->type, i);
    return t ? (int)json_integer_value(t) : NORMAL;
}

/* Of two tokens of one text the first counts. */
static json_t *vocab_json(const vocabulary *v)
{
    json_t *vocab = json_object();
    for (size_t i = 0; i < v->n; i++) {
        const char *text = json_string_value(json_array_get(v->token, i));
        if (!json_object_get(vocab, text))
            json_object_set_new(vocab, text, json_integer((json_int_t)i));
    }
    return vocab;
}

static json_t *added_json(const vocabulary *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const int type = type_of(v, i);
        if (type != CONTROL && type != USER_DEFINED && type != UNKNOWN) continue;
        json_array_append_new(
            list, json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i, "content",
                            json_array_get(v->token, i), "single_word", 0, "lstrip", 0, "rstrip", 0,
                            "normalized", 0, "special", (int)(type != USER_DEFINED)));
    }
    return list;
}

/* ---- Merges of SentencePiece ---- */

typedef struct merge {
    const char *piece; /* left, then right */
    size_t left, bytes;
    int64_t left_chars, chars;
    double score; /* of the piece */
    int32_t left_id, right_id;
    size_t order; /* of the piece */
} merge;

/* Best score first, then longer parts, then as transformers comes by them. */
static int by_rank(const void *x, const void *y)
{
    const merge *a = x, *b = y;
    if (a->score < b->score || a->score > b->score) return a->score > b->score ? -1 : 1;
    if (a->left_chars != b->left_chars) return a->left_chars > b->left_chars ? -1 : 1;
    if (a->chars != b->chars) return a->chars > b->chars ? -1 : 1;
    if (a->order != b->order) return a->order < b->order ? -1 : 1;
    if (a->left_id != b->left_id) return a->left_id < b->left_id ? -1 : 1;
    return a->right_id < b->right_id ? -1 : a->right_id > b->right_id;
}

typedef struct merges {
    merge *item;
    size_t n, cap;
} merge_list;

static bool begins_char(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static int64_t count_chars(const char *s, size_t n)
{
    int64_t chars = 0;
    for (size_t i = 0; i < n; i++) chars += begins_char(s[i]);
    return chars;
}

/* All ways in which piece i is made of two others. */
static dq_status add_merges(merge_list *m, const vocabulary *v, const dq_strmap *ids, size_t i,
                            dq_arena *a, dq_err *err)
{
    const json_t *token = json_array_get(v->token, i);
    const char *s = json_string_value(token);
    const size_t n = json_string_length(token);
    for (size_t k = 1; k < n; k++) {
        if (!begins_char(s[k])) continue;
        const int32_t left = dq_strmap_get(ids, s, k), right = dq_strmap_get(ids, s + k, n - k);
        if (left < 0 || right < 0) continue;
        m->item = dq_grow(a, m->item, m->n + 1, &m->cap, sizeof *m->item, err);
        if (!m->item) return err->code;
        m->item[m->n++] = (merge){.piece = s,
                                  .left = k,
                                  .bytes = n,
                                  .left_chars = count_chars(s, k),
                                  .chars = count_chars(s, n),
                                  .score = json_number_value(json_array_get(v->score, i)),
                                  .left_id = left,
                                  .right_id = right,
                                  .order = i};
    }
    return DQ_OK;
}

static dq_status find_merges(json_t **out, const vocabulary *v, dq_arena *a, dq_err *err)
{
    merge_list m = {0};
    dq_strmap ids;
    DQ_TRY(dq_strmap_new(&ids, v->n, a, err));
    for (size_t i = v->n; i-- > 0;) { /* of two tokens of one text the first stays */
        const json_t *token = json_array_get(v->token, i);
        dq_strmap_put(&ids, json_string_value(token), json_string_length(token), (int32_t)i);
    }
    for (size_t i = 0; i < v->n; i++) DQ_TRY(add_merges(&m, v, &ids, i, a, err));
    if (m.n) qsort(m.item, m.n, sizeof *m.item, by_rank);
    *out = json_array();
    for (size_t i = 0; i < m.n; i++) {
        const merge *x = &m.item[i];
        json_array_append_new(
            *out, json_pack("[s%, s%]", x->piece, x->left, x->piece + x->left, x->bytes - x->left));
    }
    return DQ_OK;
}

/* ---- The files ---- */

/* The first token of a type; NULL: none. */
static const char *token_of_type(const vocabulary *v, int type)
{
    for (size_t i = 0; i < v->n; i++) {
        if (type_of(v, i) == type) return json_string_value(json_array_get(v->token, i));
    }
    return NULL;
}

static json_t *bpe_json(const vocabulary *v, json_t *merges, const char *unknown,
                        bool byte_fallback, bool ignore_merges)
{
    return json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                     "dropout", "unk_token", unknown, "continuing_subword_prefix",
                     "end_of_word_suffix", "fuse_unk", (int)byte_fallback, "byte_fallback",
                     (int)byte_fallback, "ignore_merges", (int)ignore_merges, "vocab",
                     vocab_json(v), "merges", merges);
}

static dq_status fill_gpt2(json_t *root, bool *add_bos, const json_t *f, dq_err *err)
{
    vocabulary v;
    const pre_tokenizer *pre = NULL;
    const json_t *merges;
    DQ_TRY(find_pre(&pre, f, err));
    DQ_TRY(read_vocabulary(&v, f, false, err));
    DQ_TRY(list_of(&merges, f, "tokenizer.ggml.merges", true, err));
    *add_bos = pre->add_bos;
    json_object_set_new(root, "added_tokens", added_json(&v));
    json_object_set_new(root, "normalizer", json_null());
    json_object_set_new(root, "pre_tokenizer", pre_tokenizer_json(pre));
    json_object_set_new(root, "decoder", byte_level(true));
    json_object_set_new(root, "model",
                        bpe_json(&v, json_deep_copy(merges), NULL, false, pre->ignore_merges));
    return DQ_OK;
}

/* A space becomes U+2581, and one stands before a text, unless the file says that it does not. */
static json_t *spaces_json(bool prefix)
{
    json_t *list = json_array();
    if (prefix)
        json_array_append_new(
            list, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", "\xe2\x96\x81"));
    json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                          "String", " ", "content", "\xe2\x96\x81"));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", list);
}

static json_t *spaces_back_json(bool prefix)
{
    json_t *list =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  "\xe2\x96\x81", "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix)
        json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                              " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", list);
}

static dq_status fill_llama(json_t *root, bool *add_bos, const json_t *f, dq_arena *a, dq_err *err)
{
    static const bool yes = true;
    vocabulary v;
    json_t *merges;
    bool prefix;
    DQ_TRY(read_vocabulary(&v, f, true, err));
    DQ_TRY(dq_json_bool(&prefix, f, "tokenizer.ggml.add_space_prefix", &yes, err));
    DQ_TRY(find_merges(&merges, &v, a, err));
    *add_bos = true;
    json_object_set_new(root, "added_tokens", added_json(&v));
    json_object_set_new(root, "normalizer", spaces_json(prefix));
    json_object_set_new(root, "pre_tokenizer", json_null());
    json_object_set_new(root, "decoder", spaces_back_json(prefix));
    json_object_set_new(
        root, "model",
        bpe_json(&v, merges, token_of_type(&v, UNKNOWN), token_of_type(&v, BYTE) != NULL, false));
    return DQ_OK;
}

/* The text of the token that a key names; NULL: no key. */
static dq_status named_token(const char **text, int64_t *id, const json_t *f, const char *key,
                             dq_err *err)
{
    static const int64_t none = -1;
    const json_t *tokens = json_object_get(f, "tokenizer.ggml.tokens");
    DQ_TRY(dq_json_int(id, f, key, 0, INT32_MAX, &none, err));
    *text = *id < 0 ? NULL : json_string_value(json_array_get(tokens, (size_t)*id));
    if (*id >= 0 && !*text)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": there is no token %lld", key, (long long)*id);
    return DQ_OK;
}

static json_t *special_json(const char *text, int64_t id)
{
    return json_pack("{s:s, s:[I], s:[s]}", "id", text, "ids", (json_int_t)id, "tokens", text);
}

/* BOS and EOS around a text, as far as they are added; config names them. */
static dq_status set_template(json_t *root, json_t *config, bool bos_usual, const json_t *f,
                              dq_err *err)
{
    static const bool no = false;
    const char *bos, *eos;
    int64_t bos_id, eos_id;
    bool add_bos, add_eos;
    json_t *single = json_array(), *special = json_object();
    json_object_set_new(root, "post_processor",
                        json_pack("{s:s, s:o, s:[], s:o}", "type", "TemplateProcessing", "single",
                                  single, "pair", "special_tokens", special));
    DQ_TRY(named_token(&bos, &bos_id, f, "tokenizer.ggml.bos_token_id", err));
    DQ_TRY(named_token(&eos, &eos_id, f, "tokenizer.ggml.eos_token_id", err));
    DQ_TRY(dq_json_bool(&add_bos, f, "tokenizer.ggml.add_bos_token", &bos_usual, err));
    DQ_TRY(dq_json_bool(&add_eos, f, "tokenizer.ggml.add_eos_token", &no, err));
    if (bos) json_object_set_new(config, "bos_token", json_string(bos));
    if (eos) json_object_set_new(config, "eos_token", json_string(eos));
    if (bos && add_bos) {
        json_array_append_new(single,
                              json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", bos, "type_id", 0));
        json_object_set_new(special, bos, special_json(bos, bos_id));
    }
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    if (eos && add_eos) {
        json_array_append_new(single,
                              json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", eos, "type_id", 0));
        json_object_set_new(special, eos, special_json(eos, eos_id));
    }
    return DQ_OK;
}

static dq_status fill(json_t *root, json_t *config, const char *model, const json_t *f, dq_err *err)
{
    bool add_bos = false;
    json_t *chat = json_object_get(f, "tokenizer.chat_template");
    json_object_set_new(root, "version", json_string("1.0"));
    if (strcmp(model, "gpt2") == 0) {
        DQ_TRY(fill_gpt2(root, &add_bos, f, err));
    } else if (strcmp(model, "llama") == 0) {
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        fill_llama(root, &add_bos, f, a, err);
        dq_arena_free(a);
        DQ_TRY(err->code);
    } else {
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.model\": \"%s\" is not supported (expected \"gpt2\" "
                       "or \"llama\"). Use the "
                       "model's folder with its tokenizer.json.",
                       model);
    }
    if (json_is_string(chat)) json_object_set(config, "chat_template", chat);
    return set_template(root, config, add_bos, f, err);
}

dq_status dq_gguf_config_tokenizer(json_t **tokenizer, json_t **config, const dq_gguf *g,
                                   dq_err *err)
{
    const char *model;
    *tokenizer = *config = NULL;
    if (!json_object_get(g->fields, "tokenizer.ggml.model")) return DQ_OK;
    DQ_TRY(dq_json_text(&model, g->fields, "tokenizer.ggml.model", NULL, err));
    *tokenizer = json_object();
    *config = json_object();
    if (fill(*tokenizer, *config, model, g->fields, err) == DQ_OK) return DQ_OK;
    json_decref(*tokenizer);
    json_decref(*config);
    *tokenizer = *config = NULL;
    return err->code;
}
