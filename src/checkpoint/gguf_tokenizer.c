/* A table of names, and the two questions it answers: what a name stands for, and which name
 * stands for what a tokenizer.json says. Of the latter only what splits a text is compared, with
 * defaults spelled out.
 *
 * Source: the patterns are those of the models' own tokenizer.json, as src/llama-vocab.cpp of
 * llama.cpp names them.
 * SPDX-License-Identifier: MIT */
#include "checkpoint/inside.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct dq_gguf_vocab {
    dq_gguf_span *token;              /* [n]; of Gemma runs of U+2581 where the file has spaces */
    const dq_gguf_list *type, *score; /* [n]; NULL: not there */
    size_t n;
    bool by_id; /* merges are in the order of ids, not of scores */
    /* tokenizer.ggml.merges, [n_merges] of "left right"; NULL: the pairs of SentencePiece */
    dq_gguf_span *merge;
    struct dq_gguf_vocab_pair *pair; /* [n_merges] */
    size_t n_merges;
} dq_gguf_vocab;

static const char qwen2_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char llama3_pattern[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                                     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* Mistral's, since Nemo. */
static const char tekken_pattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static const dq_gguf_pre known[] = {
    {.name = "gpt-2"},
    {.name = "smollm", .digits = true},
    {.name = "starcoder", .digits = true},
    {.name = "refact", .digits = true},
    {.name = "codeshell", .digits = true},
    {.name = "qwen2", .pattern = qwen2_pattern, .nfc = true},
    {.name = "llama-bpe", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .pattern = llama3_pattern, .ignore_merges = true, .add_bos = true},
    {.name = "smaug-bpe", .pattern = llama3_pattern}, /* SmolLM3 */
    {.name = "deepseek-r1-qwen", .pattern = qwen2_pattern},
    {.name = "tekken", .pattern = tekken_pattern, .ignore_merges = true, .add_bos = true},
};
enum { N_KNOWN = sizeof known / sizeof *known };

/* DQ_MISMATCH by name: none, or an unknown one. */
static dq_status find_pre(const dq_gguf_pre **out, const json_t *f, dq_err *err)
{
    static const char *const none = "";
    const char *name;
    DQ_TRY(dq_gguf_text(&name, f, "tokenizer.ggml.pre", &none, err));
    for (int i = 0; i < N_KNOWN; i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        *out = &known[i];
        return DQ_OK;
    }
    if (!name[0])
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.pre\" is missing, so that the split of text into "
                       "words is not known. Convert the model again with a converter of today.");
    return dq_fail(
        err, DQ_MISMATCH,
        "key \"tokenizer.ggml.pre\": \"%s\" is not known (known are gpt-2, smollm, starcoder, "
        "refact, codeshell, qwen2, llama-bpe, smaug-bpe, deepseek-r1-qwen, tekken). Texts cannot "
        "be read with this file; ids can.",
        name);
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", (int)use_regex);
}

static json_t *pre_json(const dq_gguf_pre *p)
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

static bool flag(const json_t *step, const char *key, bool usual)
{
    const json_t *v = json_object_get(step, key);
    return json_is_boolean(v) ? json_is_true(v) : usual;
}

/* Keeps only the members that matter; a step of another type stays as it is. */
static json_t *plain_step(json_t *step)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    if (!type) return json_incref(step);
    if (strcmp(type, "ByteLevel") == 0)
        return json_pack("{s:s, s:b, s:b}", "type", type, "add_prefix_space",
                         (int)flag(step, "add_prefix_space", true), "use_regex",
                         (int)flag(step, "use_regex", true));
    if (strcmp(type, "Digits") == 0)
        return json_pack("{s:s, s:b}", "type", type, "individual_digits",
                         (int)flag(step, "individual_digits", false));
    if (strcmp(type, "Split") == 0)
        return json_pack("{s:s, s:O?, s:O?, s:b}", "type", type, "pattern",
                         json_object_get(step, "pattern"), "behavior",
                         json_object_get(step, "behavior"), "invert",
                         (int)flag(step, "invert", false));
    return json_incref(step);
}

/* Flattens sequences. */
static void add_steps(json_t *list, json_t *v, int depth)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *inner = json_object_get(v, "pretokenizers");
    if (json_is_null(v) || !v) return;
    if (depth < 8 && type && strcmp(type, "Sequence") == 0 && json_is_array(inner)) {
        for (size_t i = 0; i < json_array_size(inner); i++)
            add_steps(list, json_array_get(inner, i), depth + 1);
        return;
    }
    json_array_append_new(list, plain_step(v));
}

const dq_gguf_pre *dq_gguf_pre_of(json_t *pre_tokenizer, bool nfc, bool ignore_merges)
{
    const dq_gguf_pre *found = NULL;
    bool exact = false;
    json_t *want = json_array();
    add_steps(want, pre_tokenizer, 0);
    for (int i = 0; i < N_KNOWN && !exact; i++) {
        json_t *whole = pre_json(&known[i]), *steps = json_array();
        add_steps(steps, whole, 0);
        exact = json_equal(steps, want) && known[i].nfc == nfc &&
                known[i].ignore_merges == ignore_merges;
        if (exact || (!found && json_equal(steps, want))) found = &known[i];
        json_decref(steps);
        json_decref(whole);
    }
    json_decref(want);
    return found;
}

/* Texts are written without a tree of JSON values: a vocabulary has 100000 tokens and as many
 * merges, and the first token waits for them.
 * Source: transformers convert_slow_tokenizer.py (generate_merges). */

static dq_status list_of(const dq_gguf_list **out, const dq_gguf *g, const char *key, bool texts,
                         bool needed, dq_err *err)
{
    const json_t *v = json_object_get(g->fields, key);
    DQ_TRY(dq_gguf_find_list(out, g, key, err));
    if (!v && !needed) return DQ_OK;
    if (!*out) return dq_json_wrong(key, "a list", v, err);
    if ((*out)->texts == texts) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": the list holds no %s", key,
                   texts ? "texts" : "numbers");
}

static int type_of(const dq_gguf_vocab *v, size_t i)
{
    return v->type ? (int)dq_gguf_list_number(v->type, i) : DQ_GGUF_NORMAL;
}

bool dq_gguf_vocab_ends(const char *text, size_t len)
{
    static const char *const names[] = {"<|eot_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<|flush|>",
                                        "<|calls|>",
                                        "<end_of_turn>",
                                        "<|endoftext|>",
                                        "</s>",
                                        "<|eom_id|>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<|end_of_text|>",
                                        "<end_of_utterance>",
                                        "<eos>",
                                        "<turn|>",
                                        "<|tool_response>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (len == strlen(names[i]) && memcmp(text, names[i], len) == 0) return true;
    }
    return false;
}

static const dq_gguf_span *first_of_type(const dq_gguf_vocab *v, int type)
{
    for (size_t i = 0; i < v->n; i++) {
        if (type_of(v, i) == type) return &v->token[i];
    }
    return NULL;
}

typedef struct dq_gguf_vocab_pair {
    const char *piece; /* left, then right */
    size_t left, bytes;
    int64_t left_chars, chars;
    double score; /* of the piece */
    int32_t left_id, right_id;
    size_t order; /* of the piece */
} merge;

/* Best score first, then longer parts, then in the order in which transformers finds them. */
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

/* Limits on merges and bytes of pieces: published vocabularies have a few merges per token. */
typedef struct room {
    size_t merges, bytes;
} room;

static dq_status add_merges(dq_gguf_vocab *v, size_t *cap, room *left_over, const dq_strmap *ids,
                            size_t i, dq_arena *a, dq_err *err)
{
    const char *s = v->token[i].s;
    const size_t n = v->token[i].len;
    if (n > DQ_GGUF_PIECE_BYTES)
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.tokens\": token %zu has %zu bytes (expected at most "
                       "%d in a vocabulary of SentencePiece)",
                       i, n, DQ_GGUF_PIECE_BYTES);
    for (size_t k = 1; k < n; k++) {
        if (!dq_utf8_begins(s[k])) continue;
        const int32_t left = dq_strmap_get(ids, s, k);
        const int32_t right = left < 0 ? -1 : dq_strmap_get(ids, s + k, n - k);
        if (right < 0) continue;
        if (left_over->merges == 0 || left_over->bytes < n)
            return dq_fail(err, DQ_MISMATCH,
                           "key \"tokenizer.ggml.tokens\": pieces are made of one another in more "
                           "than %zu ways, as in no vocabulary of SentencePiece",
                           v->n_merges);
        left_over->merges--;
        left_over->bytes -= n;
        v->pair = dq_grow(a, v->pair, v->n_merges + 1, cap, sizeof *v->pair, err);
        if (!v->pair) return err->code;
        v->pair[v->n_merges++] =
            (merge){.piece = s,
                    .left = k,
                    .bytes = n,
                    .left_chars = dq_utf8_count(s, k),
                    .chars = dq_utf8_count(s, n),
                    .score = v->by_id ? -(double)i : dq_gguf_list_number(v->score, i),
                    .left_id = left,
                    .right_id = right,
                    .order = i};
    }
    return DQ_OK;
}

static dq_status find_merges(dq_gguf_vocab *v, dq_arena *a, dq_err *err)
{
    size_t cap = 0;
    room left_over = {4096 + 16 * v->n, 1 << 16};
    for (size_t i = 0; i < v->n; i++) left_over.bytes += 16 * v->token[i].len;
    dq_strmap ids;
    DQ_TRY(dq_strmap_new(&ids, v->n, a, err));
    for (size_t i = 0; i < v->n; i++)
        dq_strmap_put(&ids, v->token[i].s, v->token[i].len, (int32_t)i);
    for (size_t i = 0; i < v->n; i++) DQ_TRY(add_merges(v, &cap, &left_over, &ids, i, a, err));
    if (v->n_merges) qsort(v->pair, v->n_merges, sizeof *v->pair, by_rank);
    return DQ_OK;
}

/* Vocabularies of Gemma: runs of spaces, which a file has as such, are made by merges as any word,
 * and merges are in the order of ids.
 * Source: transformers integrations/gguf/gguf_tokenizer_mapping.py (gemma_tokenizer). */
static bool is_gemma(const dq_gguf *g)
{
    static const char *const names[] = {"gemma", "gemma2", "gemma3"};
    const char *s = json_string_value(json_object_get(g->fields, "general.architecture"));
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++) {
        if (strcmp(s, names[i]) == 0) return true;
    }
    return false;
}

static const char space_sign[] = "\xe2\x96\x81";

static dq_status respell_spaces(dq_gguf_vocab *v, dq_arena *a, dq_err *err)
{
    for (size_t i = 0; i < v->n; i++) {
        dq_gguf_span *t = &v->token[i];
        size_t n = 0;
        while (n < t->len && t->s[n] == ' ') n++;
        if (!n || n < t->len || n > DQ_GGUF_PIECE_BYTES) continue;
        char *s = dq_alloc(a, n, 3, err);
        if (!s) return err->code;
        for (size_t k = 0; k < n; k++) memcpy(s + 3 * k, space_sign, 3);
        *t = (dq_gguf_span){s, 3 * n};
    }
    return DQ_OK;
}

/* Tokens, types and, with spm, scores and all splits of a token into two, best first. DQ_MISMATCH:
 * a piece beyond DQ_GGUF_PIECE_BYTES, or far more merges than published vocabularies have. */
static dq_status read_tokens(dq_gguf_vocab *v, const dq_gguf *g, bool spm, dq_arena *a, dq_err *err)
{
    const dq_gguf_list *tokens, *merges;
    *v = (dq_gguf_vocab){.by_id = spm && is_gemma(g)};
    DQ_TRY(list_of(&tokens, g, "tokenizer.ggml.tokens", true, true, err));
    DQ_TRY(list_of(&v->type, g, "tokenizer.ggml.token_type", false, false, err));
    DQ_TRY(list_of(&v->score, g, "tokenizer.ggml.scores", false, spm, err));
    v->n = tokens->n;
    if (v->n > INT32_MAX / 2)
        return dq_fail(err, DQ_DAMAGED, "key \"tokenizer.ggml.tokens\": %zu tokens are too many",
                       v->n);
    if ((v->type && v->type->n != v->n) || (v->score && v->score->n != v->n))
        return dq_fail(err, DQ_DAMAGED,
                       "the lists of tokens, their types and scores differ in length");
    for (size_t i = 0; v->type && i < v->n; i++) {
        const double type = dq_gguf_list_number(v->type, i);
        if (!(type >= 0 && type <= DQ_GGUF_BYTE) || (double)(int)type < type)
            return dq_fail(err, DQ_DAMAGED,
                           "key \"tokenizer.ggml.token_type\": token %zu has %g (expected a whole "
                           "number from 0 to %d)",
                           i, type, DQ_GGUF_BYTE);
    }
    DQ_TRY(dq_gguf_list_texts(&v->token, tokens, a, err));
    if (v->by_id) DQ_TRY(respell_spaces(v, a, err));
    if (spm) return find_merges(v, a, err);
    DQ_TRY(list_of(&merges, g, "tokenizer.ggml.merges", true, true, err));
    v->n_merges = merges->n;
    return dq_gguf_list_texts(&v->merge, merges, a, err);
}

/* Writes s[len] as JSON into 6 * len + 2 bytes; returns its end. */
static char *quote(char *out, const char *s, size_t len)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char named[32] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    *out++ = '"';
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c >= 32 && c != '"' && c != '\\') {
            *out++ = (char)c;
            continue;
        }
        *out++ = '\\';
        if (c >= 32 || named[c]) {
            *out++ = c >= 32 ? (char)c : named[c];
        } else {
            memcpy(out, "u00", 3);
            out[3] = digits[c >> 4];
            out[4] = digits[c & 15];
            out += 5;
        }
    }
    *out++ = '"';
    return out;
}

static char *put_number(char *out, size_t x)
{
    char digits[24];
    size_t n = sizeof digits;
    do {
        digits[--n] = (char)('0' + x % 10);
        x /= 10;
    } while (x);
    memcpy(out, digits + n, sizeof digits - n);
    return out + sizeof digits - n;
}

/* Starts a line of a list or object and reserves `bytes` after its indent; NULL: see err. */
static char *line(dq_strbuf *out, bool comma, int indent, size_t bytes, dq_err *err)
{
    if (dq_strbuf_reserve(out, bytes + (size_t)indent + 2, err) != DQ_OK) return NULL;
    char *p = out->s + out->n;
    if (comma) *p++ = ',';
    *p++ = '\n';
    memset(p, ' ', (size_t)indent);
    return p + indent;
}

static void end_at(dq_strbuf *out, const char *p)
{
    out->n = (size_t)(p - out->s);
}

/* Brackets without members are adjacent. */
static dq_status close_with(dq_strbuf *out, size_t n, const char *bracket, int indent, dq_err *err)
{
    char *p = n ? line(out, false, indent, 1, err) : NULL;
    if (p) end_at(out, p);
    DQ_TRY(err->code);
    return dq_strbuf_add(out, bracket, 1, err);
}

static dq_status write_pair(dq_strbuf *out, const merge *m, bool comma, int indent, dq_err *err)
{
    char *p = line(out, comma, indent, 1, err);
    if (!p) return err->code;
    *p++ = '[';
    end_at(out, p);
    for (int k = 0; k < 2; k++) {
        const size_t len = k ? m->bytes - m->left : m->left;
        p = line(out, k > 0, indent + 2, 6 * len + 2, err);
        if (!p) return err->code;
        end_at(out, quote(p, m->piece + (k ? m->left : 0), len));
    }
    return close_with(out, 2, "]", indent, err);
}

static dq_status write_merges(dq_strbuf *out, const dq_gguf_vocab *v, int indent, dq_err *err)
{
    DQ_TRY(dq_strbuf_add(out, "[", 1, err));
    for (size_t i = 0; i < v->n_merges; i++) {
        if (!v->merge) {
            DQ_TRY(write_pair(out, &v->pair[i], i > 0, indent + 2, err));
            continue;
        }
        char *p = line(out, i > 0, indent + 2, 6 * v->merge[i].len + 2, err);
        if (!p) return err->code;
        end_at(out, quote(p, v->merge[i].s, v->merge[i].len));
    }
    return close_with(out, v->n_merges, "]", indent, err);
}

/* A vocabulary of `gpt2` is byte-level BPE, whose pre-tokenizer has a name (gguf.h). One of `llama`
 * is SentencePiece's BPE: its merges are all splits of a piece into two, best score first, as
 * transformers lists them.
 * Source: transformers convert_slow_tokenizer.py (generate_merges, LlamaConverter,
 * GGUFLlamaConverter). */

/* Vocabulary and merges are streamed into the text and are not here. */
typedef struct vocab_files {
    const dq_gguf *g;
    dq_gguf_vocab v;
    json_t *root,
        *config,  /* tokenizer.json with null vocabulary and merges; tokenizer_config.json */
        *ends;    /* ids */
    bool add_bos; /* where the file does not say */
    bool spm;     /* SentencePiece: BOS is 1 and EOS 2 where the file does not say */
} vocab_files;

static bool holds(const char *s, size_t len, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= len; i++) {
        if (strncasecmp(s + i, word, n) == 0) return true;
    }
    return false;
}

/* Special tokens of Phi-3 take the spaces after them; like libllama, this goes by the name. */
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
        const int type = type_of(v, i);
        if (type != DQ_GGUF_CONTROL && type != DQ_GGUF_USER_DEFINED && type != DQ_GGUF_UNKNOWN)
            continue;
        if (v->by_id && t->len > 2 && memcmp(t->s, space_sign, 3) == 0) continue; /* merged */
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

/* A space becomes U+2581, and one precedes a text unless the file says no. */
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

/* The token that a key names, else `usual`, -1 for none; NULL: no such token. */
static dq_status named_token(const dq_gguf_span **token, int64_t *id, const vocab_files *x,
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

static void add_special(json_t *single, json_t *special, const dq_gguf_span *token, int64_t id)
{
    json_array_append_new(
        single, json_pack("{s:{s:o, s:i}}", "SpecialToken", "id", text_json(token), "type_id", 0));
    json_object_setn_new(special, token->s, token->len,
                         json_pack("{s:o, s:[I], s:[o]}", "id", text_json(token), "ids",
                                   (json_int_t)id, "tokens", text_json(token)));
}

enum { FIM_NAMES = 5 };

/* Ids that a key names; without it, the token with one of these names. */
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

static int64_t id_of_name(const vocab_files *x, const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i < x->v.n; i++) {
        if (x->v.token[i].len == len && memcmp(x->v.token[i].s, text, len) == 0) return (int64_t)i;
    }
    return -1;
}

/* o200k_harmony and solar-open do not end at <|end|>, nor gemma4 at </s>: those tokens belong to
 * calls. */
static bool goes_on(const vocab_files *x, const dq_gguf_span *t)
{
    const bool call = id_of_name(x, "<|call|>") >= 0 || id_of_name(x, "<|calls|>") >= 0;
    if (t->len == 7 && memcmp(t->s, "<|end|>", 7) == 0)
        return call && (id_of_name(x, "<|return|>") >= 0 || id_of_name(x, "<|flush|>") >= 0);
    return t->len == 4 && memcmp(t->s, "</s>", 4) == 0 && id_of_name(x, "<|tool_response>") >= 0;
}

static void add_end(const vocab_files *x, int64_t id)
{
    if (id < 0 || goes_on(x, &x->v.token[id])) return;
    for (size_t i = 0; i < json_array_size(x->ends); i++) {
        if (json_integer_value(json_array_get(x->ends, i)) == id) return;
    }
    json_array_append_new(x->ends, json_integer(id));
}

static dq_status fill(vocab_files *x, const char *model, dq_arena *a, dq_err *err)
{
    static const char *const none = NULL;
    const char *chat;
    json_object_set_new(x->root, "version", json_string("1.0"));
    if (strcmp(model, "gpt2") == 0) {
        const dq_gguf_pre *pre = NULL;
        DQ_TRY(find_pre(&pre, x->g->fields, err));
        DQ_TRY(read_tokens(&x->v, x->g, false, a, err));
        x->add_bos = pre->add_bos;
        json_object_set_new(x->root, "added_tokens", added_json(&x->v, x->g->fields));
        json_object_set_new(x->root, "normalizer",
                            pre->nfc ? json_pack("{s:s}", "type", "NFC") : json_null());
        json_object_set_new(x->root, "pre_tokenizer", pre_json(pre));
        json_object_set_new(x->root, "decoder", byte_level(true));
        json_object_set_new(x->root, "model", bpe_json(NULL, false, pre->ignore_merges));
    } else if (strcmp(model, "llama") == 0) {
        static const bool yes = true;
        bool prefix;
        DQ_TRY(dq_json_bool(&prefix, x->g->fields, "tokenizer.ggml.add_space_prefix", &yes, err));
        DQ_TRY(read_tokens(&x->v, x->g, true, a, err));
        x->add_bos = x->spm = true;
        json_object_set_new(x->root, "added_tokens", added_json(&x->v, x->g->fields));
        json_object_set_new(x->root, "normalizer", spaces_json(prefix));
        json_object_set_new(x->root, "pre_tokenizer", json_null());
        json_object_set_new(x->root, "decoder", spaces_back_json(prefix));
        json_object_set_new(x->root, "model",
                            bpe_json(first_of_type(&x->v, DQ_GGUF_UNKNOWN),
                                     first_of_type(&x->v, DQ_GGUF_BYTE) != NULL, false));
    } else
        return dq_fail(err, DQ_MISMATCH,
                       "key \"tokenizer.ggml.model\": \"%s\" is not supported (expected \"gpt2\" "
                       "or \"llama\"). Texts cannot be read with this file; ids can.",
                       model);
    DQ_TRY(dq_gguf_text(&chat, x->g->fields, "tokenizer.chat_template", &none, err));
    if (chat) json_object_set_new(x->config, "chat_template", json_string(chat));
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
    add_end(x, eos_id);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const dq_gguf_span *t;
        int64_t id;
        DQ_TRY(named_token(&t, &id, x, endings[i].key, -1, err));
        for (int k = 0; id < 0 && k < FIM_NAMES && endings[i].names[k]; k++)
            id = id_of_name(x, endings[i].names[k]);
        add_end(x, id);
    }
    for (size_t i = 0; i < x->v.n; i++) {
        if (dq_gguf_vocab_ends(x->v.token[i].s, x->v.token[i].len)) add_end(x, (int64_t)i);
    }
    return DQ_OK;
}

/* Within JSON texts quotes are escaped, so these strings occur nowhere else. */
static const char no_vocab[] = "\"vocab\": null", no_merges[] = "\"merges\": null";
enum { INDENT = 4, VALUE = 4 }; /* of the members of "model"; bytes of null */

static dq_status write_tokenizer(dq_strbuf *out, const vocab_files *x, const char *text,
                                 dq_err *err)
{
    const char *vocab = strstr(text, no_vocab) + sizeof no_vocab - 1 - VALUE;
    const char *merges = strstr(vocab, no_merges) + sizeof no_merges - 1 - VALUE;
    DQ_TRY(dq_strbuf_add(out, text, (size_t)(vocab - text), err));
    const dq_gguf_vocab *v = &x->v;
    DQ_TRY(dq_strbuf_add(out, "{", 1, err));
    for (size_t i = 0; i < v->n; i++) {
        char *p = line(out, i > 0, INDENT + 2, 6 * v->token[i].len + 32, err);
        if (!p) return err->code;
        p = quote(p, v->token[i].s, v->token[i].len);
        *p++ = ':';
        *p++ = ' ';
        end_at(out, put_number(p, i));
    }
    DQ_TRY(close_with(out, v->n, "}", INDENT, err));
    vocab += VALUE;
    DQ_TRY(dq_strbuf_add(out, vocab, (size_t)(merges - vocab), err));
    DQ_TRY(write_merges(out, &x->v, INDENT, err));
    return dq_strbuf_add(out, merges + VALUE, strlen(merges + VALUE), err);
}

dq_status dq_gguf_config_tokenizer(dq_strbuf *tokenizer, dq_strbuf *config, dq_strbuf *generation,
                                   const dq_gguf *g, dq_err *err)
{
    vocab_files x = {.g = g};
    const char *model;
    *tokenizer = *config = *generation = (dq_strbuf){0};
    if (!json_object_get(g->fields, "tokenizer.ggml.model")) return DQ_OK;
    DQ_TRY(dq_gguf_text(&model, g->fields, "tokenizer.ggml.model", NULL, err));
    if (strcmp(model, "none") == 0 || strcmp(model, "no_vocab") == 0) return DQ_OK;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    x.root = json_object();
    x.config = json_object();
    x.ends = json_array();
    if (fill(&x, model, a, err) == DQ_OK) {
        char *text = NULL, *more = NULL, *ends = NULL;
        json_t *o = json_pack("{s:O}", "eos_token_id", x.ends);
        if (dq_json_dump(&text, x.root, JSON_INDENT(2), err) == DQ_OK &&
            dq_json_dump(&more, x.config, JSON_INDENT(2), err) == DQ_OK &&
            write_tokenizer(tokenizer, &x, text, err) == DQ_OK &&
            dq_strbuf_add(config, more, strlen(more), err) == DQ_OK && json_array_size(x.ends) &&
            dq_json_dump(&ends, o, JSON_INDENT(2), err) == DQ_OK)
            dq_strbuf_add(generation, ends, strlen(ends), err);
        json_decref(o);
        free(text);
        free(more);
        free(ends);
    }
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
