/* A block that at least doubles.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "tokenizer/inside.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DQ_TOKENIZER_MAX_ID = INT32_MAX - 1 };

dq_status dq_id_list_reserve(dq_id_list *ids, size_t more, dq_err *err)
{
    int32_t *list = dq_grow(NULL, ids->id, ids->n + more, &ids->capacity, sizeof *list, err);
    if (!list) return err->code;
    ids->id = list;
    return DQ_OK;
}

dq_status dq_id_list_push(dq_id_list *ids, int32_t id, dq_err *err)
{
    if (ids->n == ids->capacity) DQ_TRY(dq_id_list_reserve(ids, 1, err));
    ids->id[ids->n++] = id;
    return DQ_OK;
}

/* A scanner for objects, lists, texts and whole numbers walks the document once, skips all values
 * but the two lists, and gives up at the first thing that it does not know. The parser judges the
 * rest of the text. */

typedef struct scanner {
    const char *p, *end;
    dq_arena *a;
    dq_err err; /* of memory */
} scanner;

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Skips spaces and then c. */
static bool take(scanner *s, char c)
{
    while (s->p < s->end && is_space(*s->p)) s->p++;
    if (s->p == s->end || *s->p != c) return false;
    s->p++;
    return true;
}

/* The end of the text after the quote at s->p, or NULL; *escaped: it holds a backslash. */
static const char *end_of_text(const scanner *s, bool *escaped)
{
    *escaped = false;
    for (const char *p = s->p; p < s->end; p++) {
        if (*p == '"') return p;
        if ((unsigned char)*p < 32) return NULL;
        if (*p != '\\') continue;
        *escaped = true;
        if (++p == s->end) return NULL;
    }
    return NULL;
}

static int hex_of(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \uXXXX without surrogates and NUL; 0: none of these. */
static unsigned unit_of(const char *p, const char *end)
{
    unsigned c = 0;
    if (end - p < 4) return 0;
    for (int i = 0; i < 4; i++) {
        const int x = hex_of(p[i]);
        if (x < 0) return 0;
        c = c << 4 | (unsigned)x;
    }
    return c >= 0xD800 && c < 0xE000 ? 0 : c;
}

static char *put_unit(char *out, unsigned c)
{
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xC0 | c >> 6);
        *out++ = (char)(0x80 | (c & 63));
    } else {
        *out++ = (char)(0xE0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 63));
        *out++ = (char)(0x80 | (c & 63));
    }
    return out;
}

static bool unescape(scanner *s, const char *p, const char *end, const char **text, size_t *len)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *out = dq_alloc(s->a, (size_t)(end - p), 1, &s->err), *at = out;
    if (!out) return false;
    while (p < end) {
        if (*p != '\\') {
            *at++ = *p++;
            continue;
        }
        const char *known = p[1] ? strchr(from, p[1]) : NULL;
        const unsigned c = p[1] == 'u' ? unit_of(p + 2, end) : 0;
        if (!known && !c) return false;
        if (known)
            *at++ = to[known - from];
        else
            at = put_unit(at, c);
        p += known ? 2 : 6;
    }
    *text = out;
    *len = (size_t)(at - out);
    return true;
}

static bool take_text(scanner *s, const char **text, size_t *len)
{
    bool escaped;
    if (!take(s, '"')) return false;
    const char *begin = s->p, *end = end_of_text(s, &escaped);
    if (!end) return false;
    s->p = end + 1;
    if (escaped) return unescape(s, begin, end, text, len);
    *text = begin;
    *len = (size_t)(end - begin);
    return true;
}

static bool take_id(scanner *s, int32_t *id)
{
    int64_t x = 0;
    while (s->p < s->end && is_space(*s->p)) s->p++;
    const char *begin = s->p;
    for (; s->p < s->end && *s->p >= '0' && *s->p <= '9' && s->p - begin < 10; s->p++)
        x = 10 * x + (*s->p - '0');
    *id = (int32_t)x;
    return s->p > begin && x <= DQ_TOKENIZER_MAX_ID && (*begin != '0' || s->p == begin + 1);
}

static bool take_vocab(scanner *s, dq_tokenizer_lists *out)
{
    size_t cap = 0;
    if (!take(s, '{')) return false;
    for (bool more = !take(s, '}'); more; more = take(s, ',')) {
        dq_tokenizer_token t;
        if (!take_text(s, &t.s, &t.len) || !take(s, ':') || !take_id(s, &t.id)) return false;
        out->token = dq_grow(s->a, out->token, out->n_tokens + 1, &cap, sizeof t, &s->err);
        if (!out->token) return false;
        out->token[out->n_tokens++] = t;
    }
    return out->n_tokens == 0 || take(s, '}');
}

static bool split(dq_tokenizer_merge *m, const char *text, size_t len)
{
    const char *space = memchr(text, ' ', len);
    if (!space) return false;
    const size_t left = (size_t)(space - text);
    *m = (dq_tokenizer_merge){{text, space + 1}, {left, len - left - 1}};
    return !memchr(m->text[1], ' ', m->len[1]);
}

static bool is_version(const char *text, size_t len)
{
    return len >= 8 && memcmp(text, "#version", 8) == 0; /* copied from merges.txt; has no rank */
}

static bool take_merge(scanner *s, dq_tokenizer_merge *m)
{
    const char *text;
    size_t len;
    if (take(s, '['))
        return take_text(s, &m->text[0], &m->len[0]) && take(s, ',') &&
               take_text(s, &m->text[1], &m->len[1]) && take(s, ']');
    return take_text(s, &text, &len) && !is_version(text, len) && split(m, text, len);
}

static bool take_merges(scanner *s, dq_tokenizer_lists *out)
{
    size_t cap = 0;
    if (!take(s, '[')) return false;
    for (bool more = !take(s, ']'); more; more = take(s, ',')) {
        dq_tokenizer_merge m;
        if (!take_merge(s, &m)) return false;
        out->merge = dq_grow(s->a, out->merge, out->n_merges + 1, &cap, sizeof m, &s->err);
        if (!out->merge) return false;
        out->merge[out->n_merges++] = m;
    }
    return out->n_merges == 0 || take(s, ']');
}

/* Only brackets of the skipped value are checked. */
static bool pass(scanner *s)
{
    bool escaped;
    int depth = 0;
    for (; s->p < s->end; s->p++) {
        const char c = *s->p;
        if (c == '"') {
            s->p++;
            s->p = end_of_text(s, &escaped);
            if (!s->p) return false;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return true;
            depth--;
        } else if (c == ',' && depth == 0) {
            return true;
        }
    }
    return false;
}

/* Enters a member of the object at s->p; false: there is none. */
static bool enter(scanner *s, const char *name)
{
    const char *key;
    size_t len;
    if (!take(s, '{')) return false;
    do {
        if (!take_text(s, &key, &len) || !take(s, ':')) return false;
        if (len == strlen(name) && memcmp(key, name, len) == 0) return true;
        if (!pass(s)) return false;
    } while (take(s, ','));
    return false;
}

/* The document with null in place of two stretches, `from` to `to`. */
static char *without(const char *from[2], const char *to[2], const char *json, size_t len,
                     size_t *out_len, scanner *s)
{
    const int first = from[0] < from[1] ? 0 : 1;
    const char *at = json;
    char *out = dq_alloc(s->a, len + 8, 1, &s->err), *p = out;
    for (int i = 0; out && i < 3; i++) {
        const int k = i ? 1 - first : first;
        const char *end = i < 2 ? from[k] : json + len;
        memcpy(p, at, (size_t)(end - at));
        p += end - at;
        if (i == 2) break;
        memcpy(p, "null", 4);
        p += 4;
        at = to[k];
    }
    *out_len = out ? (size_t)(p - out) : 0;
    return out;
}

bool dq_tokenizer_lists_scan(dq_tokenizer_lists *out, char **rest, size_t *rest_len,
                             const char *json, size_t len, dq_arena *a)
{
    scanner model = {json, json + len, a, {0}};
    const char *from[2], *to[2];
    *out = (dq_tokenizer_lists){0};
    if (!enter(&model, "model")) return false;
    scanner vocab = model, merges = model;
    if (!enter(&vocab, "vocab") || !enter(&merges, "merges")) return false;
    from[0] = vocab.p;
    from[1] = merges.p;
    if (!take_vocab(&vocab, out) || !take_merges(&merges, out)) return false;
    to[0] = vocab.p;
    to[1] = merges.p;
    *rest = without(from, to, json, len, rest_len, &model);
    return *rest != NULL;
}

/* The same lists from "model", with all errors by name. */
static dq_status lists_of_tokens(dq_tokenizer_lists *out, json_t *vocab, dq_arena *a, dq_err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(vocab)) return dq_fail(err, DQ_DAMAGED, "model vocab is not an object");
    out->token = dq_alloc(a, json_object_size(vocab), sizeof *out->token, err);
    if (!out->token) return err->code;
    json_object_foreach(vocab, key, value)
    {
        int64_t id;
        if (!dq_json_whole(&id, value) || id < 0 || id > DQ_TOKENIZER_MAX_ID)
            return dq_fail(
                err, DQ_DAMAGED,
                "model vocab: the id of token \"%.100s\" is not a whole number from 0 to %d", key,
                DQ_TOKENIZER_MAX_ID);
        out->token[out->n_tokens++] = (dq_tokenizer_token){key, strlen(key), (int32_t)id};
    }
    return DQ_OK;
}

static bool merge_of(dq_tokenizer_merge *m, const json_t *merge)
{
    if (json_is_string(merge)) return split(m, json_string_value(merge), json_string_length(merge));
    if (!json_is_array(merge) || json_array_size(merge) != 2) return false;
    for (size_t k = 0; k < 2; k++) {
        const json_t *part = json_array_get(merge, k);
        if (!json_is_string(part)) return false;
        m->text[k] = json_string_value(part);
        m->len[k] = json_string_length(part);
    }
    return true;
}

static dq_status lists_of_merges(dq_tokenizer_lists *out, const json_t *merges, dq_arena *a,
                                 dq_err *err)
{
    if (!json_is_array(merges)) return dq_fail(err, DQ_DAMAGED, "model merges is not a list");
    out->merge = dq_alloc(a, json_array_size(merges), sizeof *out->merge, err);
    if (!out->merge) return err->code;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);
        if (json_is_string(m) && is_version(json_string_value(m), json_string_length(m))) continue;
        if (!merge_of(&out->merge[out->n_merges++], m))
            return dq_fail(err, DQ_DAMAGED,
                           "model merges[%zu] is neither \"left right\" nor [\"left\", \"right\"]",
                           i);
    }
    return DQ_OK;
}

static const bool no = false;
static const char *const none = "";
static const char mark[] = "\xE2\x96\x81";
/* Duplicate texts are the parser's business, if it was asked. */
static dq_status load_vocab(dq_tokenizer_loader *l, json_t *vocab, dq_err *err)
{
    dq_tokenizer_lists *x = &l->lists;
    if (!l->listed) DQ_TRY(lists_of_tokens(x, vocab, l->scratch, err));
    l->vocab_count = x->n_tokens;
    DQ_TRY(dq_strmap_new(&l->vocab, l->vocab_count, l->scratch, err));
    for (size_t i = 0; i < x->n_tokens; i++) {
        const dq_tokenizer_token *t = &x->token[i];
        dq_strmap_put(&l->vocab, t->s, t->len, t->id);
        if (l->vocab.n == i)
            return dq_fail(err, DQ_DAMAGED, "model vocab: token \"%.*s\" is there twice",
                           (int)(t->len < 100 ? t->len : 100), t->s);
    }
    return DQ_OK;
}

static dq_status unknown_token(dq_err *err, int32_t index, const char *text, size_t len)
{
    return dq_fail(err, DQ_DAMAGED, "model merges[%d]: token \"%.*s\" is not in the vocabulary",
                   (int)index, (int)(len < 100 ? len : 100), text);
}

/* Joins text to a U+2581 after it. */
static bool crosses(const dq_tokenizer_merge *m)
{
    if (m->len[1] < 3 || memcmp(m->text[1], mark, 3) != 0) return false;
    return m->len[0] < 3 || memcmp(m->text[0] + m->len[0] - 3, mark, 3) != 0;
}

/* Most vocabularies list results of merges in their order, so the token after the last one is tried
 * first. */
static int32_t find_joined(dq_tokenizer_loader *l, const char *s, size_t len)
{
    const dq_tokenizer_lists *x = &l->lists;
    const dq_tokenizer_token *t = l->next_joined < x->n_tokens ? &x->token[l->next_joined] : NULL;
    if (t && t->len == len && memcmp(t->s, s, len) == 0) {
        l->next_joined++;
        return t->id;
    }
    const int32_t id = dq_strmap_get(&l->vocab, s, len);
    if (id >= 0) l->next_joined = (size_t)id + 1;
    return id;
}

static dq_status load_merge(dq_tokenizer_loader *l, const dq_tokenizer_merge *m, int32_t rank,
                            dq_err *err)
{
    char small[256], *joined = small;
    size_t len = m->len[0] + m->len[1];
    int32_t id[3];
    for (size_t k = 0; k < 2; k++) {
        id[k] = dq_strmap_get(&l->vocab, m->text[k], m->len[k]);
        if (id[k] < 0) return unknown_token(err, rank, m->text[k], m->len[k]);
    }
    if (len > sizeof small) {
        joined = dq_alloc(l->scratch, len, 1, err);
        if (!joined) return err->code;
    }
    memcpy(joined, m->text[0], m->len[0]);
    memcpy(joined + m->len[0], m->text[1], m->len[1]);
    id[2] = find_joined(l, joined, len);
    if (id[2] < 0) return unknown_token(err, rank, joined, len);
    DQ_TRY(dq_bpe_merge_put(&l->t->bpe, id[0], id[1], rank, id[2], err));
    l->t->bpe.cuts &= !crosses(m);
    return DQ_OK;
}

/* -1: missing; without fallback, all. */
static void load_byte_ids(int32_t id[256], const dq_strmap *vocab, bool fallback)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        id[b] = fallback ? dq_strmap_get(vocab, name, strlen(name)) : -1;
    }
}

/* -1: the token is no <0xHH> with this id. */
static int byte_of(const dq_tokenizer *t, const char *s, size_t len, int32_t id)
{
    const int32_t *byte_id = t->is_unigram ? t->unigram.byte_id : t->bpe.byte_id;
    if (len != 6 || s[0] != '<') return -1;
    for (int b = 0; b < 256; b++) {
        if (byte_id[b] == id) return b;
    }
    return -1;
}

/* A token of a vocabulary of characters as text, into len bytes; returns its length. */
static size_t plain_text(const dq_tokenizer *t, char *out, const char *s, size_t len, int32_t id)
{
    int byte = byte_of(t, s, len, id);
    size_t n = 0;
    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    for (size_t i = 0; i < len;) {
        bool space = len - i >= 3 && memcmp(s + i, mark, 3) == 0;
        out[n++] = space ? ' ' : s[i];
        i += space ? 3 : 1;
    }
    return n;
}

typedef struct raw {
    const char *s; /* as the file writes it, [len]; lives as long as the tokenizer */
    size_t len;
    int32_t id;
    bool is_word; /* words can be it: not so for what stands for no bytes, byte-level */
} raw;

/* Token i of a list of [token, score]. */
static const json_t *listed(const json_t *vocab, size_t i)
{
    return json_array_get(json_array_get(vocab, i), 0);
}

static void list_tokens(const dq_tokenizer_loader *l, raw *token, const json_t *vocab, char *pool)
{
    for (size_t i = 0; i < l->vocab_count; i++) {
        if (l->t->is_unigram) {
            const json_t *s = listed(vocab, i);
            token[i] = (raw){json_string_value(s), json_string_length(s), (int32_t)i, true};
        } else {
            const dq_tokenizer_token *t = &l->lists.token[i];
            token[i] = (raw){t->s, t->len, t->id, true};
        }
        token[i].s = memcpy(pool, token[i].s, token[i].len);
        pool += token[i].len;
    }
}

static dq_status load_start(dq_tokenizer_loader *l, const raw *token, dq_err *err)
{
    dq_bpe *bpe = &l->t->bpe;
    bool known = bpe->byte_level; /* every character is */
    size_t chars = 0;
    for (unsigned b = 0; b < (bpe->byte_level ? 256 : 128); b++) {
        char text[2] = {(char)b};
        size_t len = bpe->byte_level ? dq_utf8_of_byte(text, (uint8_t)b) : 1;
        bpe->start[b] = dq_bpe_start_of(bpe, dq_strmap_get(&l->vocab, text, len), text, len);
        known &= bpe->start[b].n > 0;
    }
    if (l->lost_unknown && !known)
        return dq_fail(err, DQ_DAMAGED, "model unk_token \"%.100s\" is not in the vocabulary",
                       l->lost_unknown);
    if (bpe->byte_level) return DQ_OK;
    for (size_t i = 0; i < l->vocab_count; i++)
        chars += dq_utf8_count(token[i].s, token[i].len) == 1;
    DQ_TRY(dq_strmap_new(&bpe->chars, chars, l->t->arena, err));
    for (size_t i = 0; i < l->vocab_count; i++) {
        if (dq_utf8_count(token[i].s, token[i].len) == 1)
            dq_strmap_put(&bpe->chars, token[i].s, token[i].len, token[i].id);
    }
    return DQ_OK;
}

static dq_tokenizer_entry word_of(const dq_tokenizer *t, const raw *token, size_t i)
{
    if (t->bpe.byte_level) return t->piece[i];
    return (dq_tokenizer_entry){token[i].s, token[i].len, token[i].id};
}

/* known[i]: merging alone makes token i from its text; tokens are independent, so threads share
 * them. */
static dq_status find_known(bool *known, const dq_tokenizer_loader *l, const raw *token,
                            dq_err *err)
{
    const dq_tokenizer *t = l->t;
#pragma omp parallel
    {
        dq_bpe_run run = {.bpe = &t->bpe};
        dq_id_list ids = {0};
        dq_err own = {0};
#pragma omp for schedule(dynamic, 1024)
        for (size_t i = 0; i < l->vocab_count; i++) {
            const dq_tokenizer_entry w = word_of(t, token, i);
            if (token[i].is_word && w.len > 0 && own.code == DQ_OK)
                dq_bpe_makes(&known[i], &run, &ids, w.text, w.len, w.id, &own);
        }
        dq_bpe_run_end(&run);
        dq_block_free(ids.id);
#pragma omp critical
        dq_fail_as(err, &own);
    }
    return err->code;
}

static dq_status load_unigram(dq_tokenizer_loader *l, const json_t *model, dq_err *err)
{
    dq_unigram *u = &l->t->unigram;
    const int64_t absent = -1;
    int64_t unknown;
    DQ_TRY(dq_json_bool(&u->fallback, model, "byte_fallback", &no, err));
    const json_t *vocab = json_object_get(model, "vocab");
    size_t n = l->vocab_count = json_array_size(vocab);
    double lowest = 0, *score;
    if (!json_is_array(vocab)) return dq_fail(err, DQ_DAMAGED, "model vocab is not a list");
    if (n > (size_t)DQ_TOKENIZER_MAX_ID)
        return dq_fail(err, DQ_DAMAGED, "model vocab: too many pieces");
    score = dq_alloc(l->t->arena, n, sizeof *score, err);
    if (!score) return err->code;
    DQ_TRY(dq_strmap_new(&l->vocab, n, l->scratch, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(vocab, i), *s = listed(vocab, i);
        const json_t *number = json_array_get(pair, 1);
        if (!json_is_string(s) || !json_is_number(number) || json_array_size(pair) != 2)
            return dq_fail(err, DQ_DAMAGED, "model vocab[%zu] is not [piece, score]", i);
        score[i] = json_number_value(number);
        if (!(fabs(score[i]) < DBL_MAX))
            return dq_fail(err, DQ_DAMAGED, "model vocab[%zu]: the score is too large", i);
        if (i == 0 || score[i] < lowest) lowest = score[i];
        dq_strmap_put(&l->vocab, json_string_value(s), json_string_length(s), (int32_t)i);
    }
    l->t->unigram.score = score;
    l->t->unigram.n = n;
    l->t->unigram.unknown_score = lowest - 10;
    DQ_TRY(dq_json_int(&unknown, model, "unk_id", 0, DQ_TOKENIZER_MAX_ID, &absent, err));
    if (unknown < 0) /* the reference fails at the first unknown character, fallback or not */
        return dq_fail(err, DQ_MISMATCH,
                       "a Unigram model without unk_id is not supported: text with a character "
                       "that it lacks would have no tokens");
    if (unknown >= (int64_t)u->n)
        return dq_fail(err, DQ_DAMAGED, "model unk_id %lld is not below the %zu pieces of vocab",
                       (long long)unknown, u->n);
    u->unknown = (int32_t)unknown;
    load_byte_ids(u->byte_id, &l->vocab, u->fallback);
    return DQ_OK;
}

dq_status dq_tokenizer_load_model(dq_tokenizer_loader *l, json_t *model, dq_err *err)
{
    const char *type = none;
    if (!json_is_object(model)) return dq_fail(err, DQ_DAMAGED, "\"model\" is not an object");
    DQ_TRY(dq_json_text(&type, model, "type", &none, err));
    if (!*type) { /* files of old versions; merges exist in no other model */
        bool merges = json_object_get(model, "merges") != NULL;
        type = merges                                           ? "BPE"
               : json_is_array(json_object_get(model, "vocab")) ? "Unigram"
                                                                : "unknown";
    }
    l->t->is_unigram = strcmp(type, "Unigram") == 0;
    if (!l->t->is_unigram && strcmp(type, "BPE") != 0)
        return dq_fail(err, DQ_MISMATCH, "model type \"%s\" is not supported yet", type);
    if (l->t->is_unigram) return load_unigram(l, model, err);
    dq_bpe *bpe = &l->t->bpe;
    bool fallback;
    const char *unknown;
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const double zero = 0;
    double dropout;
    DQ_TRY(dq_json_float(&dropout, model, "dropout", &zero, err));
    if (dropout < 0 || dropout > 0)
        return dq_fail(err, DQ_MISMATCH, "model dropout %g is not supported: ids would be random",
                       dropout);
    for (size_t i = 0; i < 2; i++) {
        const char *text;
        DQ_TRY(dq_json_text(&text, model, affixes[i], &none, err));
        if (*text)
            return dq_fail(err, DQ_MISMATCH, "model %s \"%s\" is not supported yet", affixes[i],
                           text);
    }
    DQ_TRY(dq_json_bool(&bpe->whole_words, model, "ignore_merges", &no, err));
    DQ_TRY(dq_json_bool(&bpe->fuse_unknown, model, "fuse_unk", &no, err));
    DQ_TRY(dq_json_bool(&fallback, model, "byte_fallback", &no, err));
    DQ_TRY(dq_json_text(&unknown, model, "unk_token", &none, err));
    DQ_TRY(load_vocab(l, json_object_get(model, "vocab"), err));
    bpe->cuts = dq_strmap_get(&l->vocab, mark, 3) >= 0;
    dq_tokenizer_lists *x = &l->lists;
    if (!l->listed) DQ_TRY(lists_of_merges(x, json_object_get(model, "merges"), l->scratch, err));
    if (x->n_merges > (size_t)DQ_TOKENIZER_MAX_ID)
        return dq_fail(err, DQ_DAMAGED, "model merges: too many");
    DQ_TRY(dq_map64_new(&l->t->bpe.merges, x->n_merges, l->t->arena, err));
    for (size_t i = 0; i < x->n_merges; i++) DQ_TRY(load_merge(l, &x->merge[i], (int32_t)i, err));
    load_byte_ids(bpe->byte_id, &l->vocab, fallback);
    bpe->unknown = *unknown ? dq_strmap_get(&l->vocab, unknown, strlen(unknown)) : -1;
    l->lost_unknown = *unknown && bpe->unknown < 0 ? unknown : NULL;
    return DQ_OK;
}

dq_status dq_tokenizer_load_pieces(dq_tokenizer_loader *l, const json_t *vocab, size_t extra,
                                   dq_err *err)
{
    dq_tokenizer *t = l->t;
    size_t bytes = 0;
    for (size_t i = 0; i < l->vocab_count; i++)
        bytes += l->t->is_unigram ? json_string_length(listed(vocab, i)) : l->lists.token[i].len;
    raw *token = dq_alloc(l->scratch, l->vocab_count, sizeof *token, err);
    char *pool = dq_alloc(t->arena, bytes, 2, err);
    t->piece = dq_alloc(t->arena, l->vocab_count + extra, sizeof *t->piece, err);
    t->written = dq_alloc(t->arena, l->vocab_count, sizeof *t->written, err);
    if (!token || !pool || !t->piece || !t->written) return err->code;
    list_tokens(l, token, vocab, pool);
    pool += bytes;
    for (size_t i = 0; i < l->vocab_count; i++) {
        raw *r = &token[i];
        dq_tokenizer_entry *p = &t->piece[t->n_pieces++];
        *p = (dq_tokenizer_entry){pool, r->len, r->id};
        if (!t->pre.byte_level) {
            p->len = plain_text(t, pool, r->s, r->len, r->id);
        } else if (!dq_utf8_to_bytes(pool, &p->len, r->s, r->len)) {
            memcpy(pool, r->s, r->len); /* the text stays */
            p->len = r->len;
            r->is_word = false;
        }
        pool += p->len;
        if (p->len != r->len || memcmp(p->text, r->s, r->len) != 0)
            t->written[t->n_written++] = (dq_tokenizer_entry){r->s, r->len, r->id};
    }
    if (t->is_unigram) {
        dq_unigram *u = &l->t->unigram;
        size_t used = 0;
        dq_unigram_piece *piece = dq_alloc(l->scratch, u->n, sizeof *piece, err);
        if (!piece) return err->code;
        if (l->t->pre.byte_level)
            return dq_fail(err, DQ_MISMATCH,
                           "a Unigram model after a ByteLevel pre_tokenizer is not supported yet");
        DQ_TRY(dq_strmap_new(&u->pieces, u->n, l->t->arena, err));
        for (size_t j = 0; j < u->n; j++) {
            const raw *r = &token[j];
            if (dq_strmap_get(&l->vocab, r->s, r->len) != r->id)
                continue; /* a later one is equal */
            dq_strmap_put(&u->pieces, r->s, r->len, r->id);
            piece[used++] = (dq_unigram_piece){r->s, r->len, r->id};
        }
        return dq_unigram_trie(u, piece, used, l->t->arena, err);
    }
    dq_bpe *bpe = &l->t->bpe;
    bpe->byte_level = l->t->pre.byte_level;
    bpe->cuts &= !bpe->byte_level;
    DQ_TRY(load_start(l, token, err));
    /* Words that always are one token (ignore_merges), and after merging, as in t->piece. */
    bool *known = dq_alloc(l->scratch, l->vocab_count, sizeof *known, err);
    if (!known) return err->code;
    if (bpe->whole_words) DQ_TRY(dq_strmap_new(&bpe->words, l->vocab_count, l->t->arena, err));
    DQ_TRY(dq_strmap_new(&bpe->known, l->vocab_count, l->t->arena, err));
    if (!bpe->whole_words || bpe->cuts) DQ_TRY(find_known(known, l, token, err));
    for (size_t k = 0; k < l->vocab_count; k++) {
        const dq_tokenizer_entry w = word_of(l->t, token, k);
        if (bpe->whole_words && token[k].is_word && w.len > 0)
            dq_strmap_put(&bpe->words, w.text, w.len, w.id);
        if (known[k]) dq_strmap_put(&bpe->known, w.text, w.len, w.id);
    }
    return DQ_OK;
}
