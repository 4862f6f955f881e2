/* gguf_tokenizer: tokenizer.json out of the keys `tokenizer.ggml.*`, so that one loader serves both. A vocabulary of `gpt2`
 * is byte-level BPE, whose pre-tokenizer has a name (gguf_pre.h). One of `llama` is SentencePiece's BPE: its merges
 * are all ways in which a piece is made of two, best score first, as transformers lists them.
 *
 * Source: transformers convert_slow_tokenizer.py (generate_merges, LlamaConverter, GGUFLlamaConverter).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_config.h"

#include "checkpoint/gguf_pre.h"
#include "checkpoint/gguf_vocab.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- The files ---- */

/* What the keys say, but for the vocabulary and the merges, which are written into the text. */
typedef struct files {
    const dq_gguf *g;
    dq_gguf_vocab v;
    json_t *root,
        *config, /* of tokenizer.json, whose vocabulary and merges are null, and of tokenizer_config.json */
        *ends;    /* ids */
    bool add_bos; /* where the file does not say */
    bool spm;     /* SentencePiece: BOS is 1 and EOS 2 where the file does not say */
} files;

static bool holds(const char *s, size_t len, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= len; i++) {
        if (strncasecmp(s + i, word, n) == 0) return true;
    }
    return false;
}

/* Special tokens of Phi-3 take the spaces after them, which a file does not say: libllama too goes by the name. */
static bool takes_spaces(const json_t *f, const dq_gguf_span *token)
{
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    const json_t *name = json_object_get(f, "general.name");
    const char *s = json_string_value(name);
    if (!s || !(holds(s, json_string_length(name), "phi-3") ||
                holds(s, json_string_length(name), "phi3")))
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (token->len == strlen(plain[i]) && memcmp(token->s, plain[i], token->len) == 0)
            return false;
    }
    return true;
}

static json_t *added_json(const dq_gguf_vocab *v, const json_t *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n; i++) {
        const dq_gguf_span *t = &v->token[i];
        const int type = dq_gguf_vocab_type(v, i);
        if (type != DQ_GGUF_CONTROL && type != DQ_GGUF_USER_DEFINED && type != DQ_GGUF_UNKNOWN)
            continue;
        json_array_append_new(list,
                              json_pack("{s:I, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                        "content", t->s, t->len, "single_word", 0, "lstrip", 0,
                                        "rstrip", (int)takes_spaces(f, t), "normalized", 0,
                                        "special", (int)(type != DQ_GGUF_USER_DEFINED)));
    }
    return list;
}

static json_t *text_json(const dq_gguf_span *s)
{
    return s ? json_stringn(s->s, s->len) : json_null();
}

static json_t *bpe_json(const dq_gguf_span *unknown, bool byte_fallback, bool ignore_merges)
{
    return json_pack("{s:s, s:n, s:o, s:n, s:n, s:b, s:b, s:b, s:n, s:n}", "type", "BPE", "dropout",
                     "unk_token", text_json(unknown), "continuing_subword_prefix",
                     "end_of_word_suffix", "fuse_unk", (int)byte_fallback, "byte_fallback",
                     (int)byte_fallback, "ignore_merges", (int)ignore_merges, "vocab", "merges");
}

static dq_status fill_gpt2(files *x, dq_arena *a, dq_err *err)
{
    const dq_gguf_pre *pre = NULL;
    DQ_TRY(dq_gguf_pre_find(&pre, x->g->fields, err));
    DQ_TRY(dq_gguf_vocab_read(&x->v, x->g, false, a, err));
    x->add_bos = pre->add_bos;
    json_object_set_new(x->root, "added_tokens", added_json(&x->v, x->g->fields));
    json_object_set_new(x->root, "normalizer",
                        pre->nfc ? json_pack("{s:s}", "type", "NFC") : json_null());
    json_object_set_new(x->root, "pre_tokenizer", dq_gguf_pre_json(pre));
    json_object_set_new(x->root, "decoder", dq_gguf_pre_byte_level(true));
    json_object_set_new(x->root, "model", bpe_json(NULL, false, pre->ignore_merges));
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

static dq_status fill_llama(files *x, dq_arena *a, dq_err *err)
{
    static const bool yes = true;
    bool prefix;
    DQ_TRY(dq_json_bool(&prefix, x->g->fields, "tokenizer.ggml.add_space_prefix", &yes, err));
    DQ_TRY(dq_gguf_vocab_read(&x->v, x->g, true, a, err));
    x->add_bos = x->spm = true;
    json_object_set_new(x->root, "added_tokens", added_json(&x->v, x->g->fields));
    json_object_set_new(x->root, "normalizer", spaces_json(prefix));
    json_object_set_new(x->root, "pre_tokenizer", json_null());
    json_object_set_new(x->root, "decoder", spaces_back_json(prefix));
    json_object_set_new(x->root, "model",
                        bpe_json(dq_gguf_vocab_first(&x->v, DQ_GGUF_UNKNOWN),
                                 dq_gguf_vocab_first(&x->v, DQ_GGUF_BYTE) != NULL, false));
    return DQ_OK;
}

/* The token that a key names, else `usual`, -1 for none; NULL: no such token. */
static dq_status named_token(const dq_gguf_span **token, int64_t *id, const files *x,
                             const char *key, int64_t usual, dq_err *err)
{
    if (usual >= (int64_t)x->v.n) usual = -1;
    DQ_TRY(dq_json_int(id, x->g->fields, key, 0, INT32_MAX, &usual, err));
    *token = NULL;
    if (*id >= (int64_t)x->v.n)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": there is no token %lld", key, (long long)*id);
    if (*id >= 0) *token = &x->v.token[*id];
    return DQ_OK;
}

/* The member of a template's list, and what it stands for. */
static void add_special(json_t *single, json_t *special, const dq_gguf_span *token, int64_t id)
{
    json_array_append_new(
        single, json_pack("{s:{s:o, s:i}}", "SpecialToken", "id", text_json(token), "type_id", 0));
    json_object_setn_new(special, token->s, token->len,
                         json_pack("{s:o, s:[I], s:[o]}", "id", text_json(token), "ids",
                                   (json_int_t)id, "tokens", text_json(token)));
}

/* ---- What ends a text ---- */

enum { FIM_NAMES = 5 };

/* Ids that a key names; where it is not there, the token that has one of these names. */
typedef struct ending {
    const char *key, *names[FIM_NAMES];
} ending;

static const ending endings[] = {
    {"tokenizer.ggml.eot_token_id", {NULL}},
    {"tokenizer.ggml.eom_token_id", {NULL}},
    {"tokenizer.ggml.fim_pad_token_id",
     {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"tokenizer.ggml.fim_rep_token_id",
     {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"tokenizer.ggml.fim_sep_token_id", {"<|file_sep|>"}},
};

static int64_t id_of(const files *x, const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i < x->v.n; i++) {
        if (x->v.token[i].len == len && memcmp(x->v.token[i].s, text, len) == 0) return (int64_t)i;
    }
    return -1;
}

/* Of calls, o200k_harmony and solar-open end their texts at others than <|end|>, gemma4 at others than </s>. */
static bool goes_on(const files *x, const dq_gguf_span *t)
{
    const bool call = id_of(x, "<|call|>") >= 0 || id_of(x, "<|calls|>") >= 0;
    if (t->len == 7 && memcmp(t->s, "<|end|>", 7) == 0)
        return call && (id_of(x, "<|return|>") >= 0 || id_of(x, "<|flush|>") >= 0);
    return t->len == 4 && memcmp(t->s, "</s>", 4) == 0 && id_of(x, "<|tool_response>") >= 0;
}

static void add_end(const files *x, int64_t id)
{
    if (id < 0 || goes_on(x, &x->v.token[id])) return;
    for (size_t i = 0; i < json_array_size(x->ends); i++) {
        if (json_integer_value(json_array_get(x->ends, i)) == id) return;
    }
    json_array_append_new(x->ends, json_integer(id));
}

/* Source: llama.cpp src/llama-vocab.cpp (special_eog_ids). */
static dq_status find_ends(files *x, int64_t eos, dq_err *err)
{
    add_end(x, eos);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const dq_gguf_span *t;
        int64_t id;
        DQ_TRY(named_token(&t, &id, x, endings[i].key, -1, err));
        for (int k = 0; id < 0 && k < FIM_NAMES && endings[i].names[k]; k++)
            id = id_of(x, endings[i].names[k]);
        add_end(x, id);
    }
    for (size_t i = 0; i < x->v.n; i++) {
        if (dq_gguf_vocab_ends(x->v.token[i].s, x->v.token[i].len)) add_end(x, (int64_t)i);
    }
    return DQ_OK;
}

/* ---- Around a text ---- */

/* BOS and EOS around a text, as far as they are added; config names them. */
static dq_status set_template(files *x, dq_err *err)
{
    static const bool no = false;
    const json_t *f = x->g->fields;
    const dq_gguf_span *bos, *eos, *unk, *pad;
    int64_t bos_id, eos_id, other_id;
    bool add_bos, add_eos;
    json_t *single = json_array(), *special = json_object();
    json_object_set_new(x->root, "post_processor",
                        json_pack("{s:s, s:o, s:[], s:o}", "type", "TemplateProcessing", "single",
                                  single, "pair", "special_tokens", special));
    DQ_TRY(named_token(&bos, &bos_id, x, "tokenizer.ggml.bos_token_id", x->spm ? 1 : -1, err));
    DQ_TRY(named_token(&eos, &eos_id, x, "tokenizer.ggml.eos_token_id", x->spm ? 2 : -1, err));
    DQ_TRY(named_token(&unk, &other_id, x, "tokenizer.ggml.unknown_token_id", -1, err));
    DQ_TRY(named_token(&pad, &other_id, x, "tokenizer.ggml.padding_token_id", -1, err));
    DQ_TRY(dq_json_bool(&add_bos, f, "tokenizer.ggml.add_bos_token", &x->add_bos, err));
    DQ_TRY(dq_json_bool(&add_eos, f, "tokenizer.ggml.add_eos_token", &no, err));
    if (bos) json_object_set_new(x->config, "bos_token", text_json(bos));
    if (eos) json_object_set_new(x->config, "eos_token", text_json(eos));
    if (unk) json_object_set_new(x->config, "unk_token", text_json(unk));
    if (pad) json_object_set_new(x->config, "pad_token", text_json(pad));
    if (bos && add_bos) add_special(single, special, bos, bos_id);
    json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0));
    if (eos && add_eos) add_special(single, special, eos, eos_id);
    return find_ends(x, eos_id, err);
}

static dq_status fill(files *x, const char *model, dq_arena *a, dq_err *err)
{
    static const char *const none = NULL;
    const char *chat;
    json_object_set_new(x->root, "version", json_string("1.0"));
    if (strcmp(model, "gpt2") == 0)
        DQ_TRY(fill_gpt2(x, a, err));
    else if (strcmp(model, "llama") == 0)
        DQ_TRY(fill_llama(x, a, err));
    else
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.model\": \"%s\" is not supported (expected \"gpt2\" "
                       "or \"llama\"). Texts cannot be read with this file; ids can.",
                       model);
    DQ_TRY(dq_gguf_text(&chat, x->g->fields, "tokenizer.chat_template", &none, err));
    if (chat) json_object_set_new(x->config, "chat_template", json_string(chat));
    return set_template(x, err);
}

/* Quotes within texts of JSON have a backslash in front, so that these stand nowhere else. */
static const char no_vocab[] = "\"vocab\": null", no_merges[] = "\"merges\": null";
enum { INDENT = 4, VALUE = 4 }; /* of the members of "model"; bytes of null */

static dq_status write_tokenizer(dq_strbuf *out, const files *x, const char *text, dq_err *err)
{
    const char *vocab = strstr(text, no_vocab) + sizeof no_vocab - 1 - VALUE;
    const char *merges = strstr(vocab, no_merges) + sizeof no_merges - 1 - VALUE;
    DQ_TRY(dq_strbuf_add(out, text, (size_t)(vocab - text), err));
    DQ_TRY(dq_gguf_vocab_write(out, &x->v, INDENT, err));
    vocab += VALUE;
    DQ_TRY(dq_strbuf_add(out, vocab, (size_t)(merges - vocab), err));
    DQ_TRY(dq_gguf_vocab_write_merges(out, &x->v, INDENT, err));
    return dq_strbuf_add(out, merges + VALUE, strlen(merges + VALUE), err);
}

static dq_status write_files(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                             const files *x, dq_err *err)
{
    char *text = NULL, *more = NULL, *ends = NULL;
    json_t *o = json_pack("{s:O}", "eos_token_id", x->ends);
    if (dq_json_dump(&text, x->root, JSON_INDENT(2), err) == DQ_OK &&
        dq_json_dump(&more, x->config, JSON_INDENT(2), err) == DQ_OK &&
        write_tokenizer(tokenizer, x, text, err) == DQ_OK &&
        dq_strbuf_add(config, more, strlen(more), err) == DQ_OK && json_array_size(x->ends) &&
        dq_json_dump(&ends, o, JSON_INDENT(2), err) == DQ_OK)
        dq_strbuf_add(generation, ends, strlen(ends), err);
    json_decref(o);
    free(text);
    free(more);
    free(ends);
    return err->code;
}

dq_status dq_gguf_config_tokenizer(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                                   const dq_gguf *g, dq_err *err)
{
    files x = {.g = g};
    const char *model;
    *tokenizer = *config = *generation = (dq_strbuf){0};
    if (!json_object_get(g->fields, "tokenizer.ggml.model")) return DQ_OK;
    DQ_TRY(dq_gguf_text(&model, g->fields, "tokenizer.ggml.model", NULL, err));
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x.root = json_object();
    x.config = json_object();
    x.ends = json_array();
    if (fill(&x, model, a, err) == DQ_OK) write_files(tokenizer, config, generation, &x, err);
    json_decref(x.root);
    json_decref(x.config);
    json_decref(x.ends);
    dq_arena_free(a);
    if (err->code == DQ_OK) return DQ_OK;
    dq_block_free(tokenizer->s);
    dq_block_free(config->s);
    dq_block_free(generation->s);
    *tokenizer = *config = *generation = (dq_strbuf){0};
    return err->code;
}
