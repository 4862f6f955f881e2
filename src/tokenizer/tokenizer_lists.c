/* tokenizer_lists: see tokenizer_lists.h. A scanner that knows objects, lists, texts and whole numbers walks the document
 * once, passes over all values but the two lists, and gives up at the first thing that it does not know. What it accepts
 * is JSON wherever it looked closely; the rest is judged by the parser, which reads all that is left.
 * SPDX-License-Identifier: MIT */
#include "tokenizer/tokenizer_lists.h"

#include <string.h>

typedef struct scanner {
    const char *p, *end;
    dq_arena *a;
    dq_err err; /* of memory */
} scanner;

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Passes over spaces and then c. */
static bool take(scanner *s, char c)
{
    while (s->p < s->end && is_space(*s->p)) s->p++;
    if (s->p == s->end || *s->p != c) return false;
    s->p++;
    return true;
}

/* ---- Texts ---- */

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

/* Undoes the escapes of p[..end). */
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

/* ---- The lists ---- */

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

/* "left right" in its halves. */
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

/* ---- The document ---- */

/* Passes over a value, whose brackets alone are looked at. */
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

/* Goes to the value of a member of the object at s->p; false: there is none. */
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

/* The document with null for what lies between `from` and `to` of two places. */
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

/* ---- Out of a tree ---- */

dq_status dq_tokenizer_lists_of_tokens(dq_tokenizer_lists *out, json_t *vocab, dq_arena *a,
                                       dq_err *err)
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
            return dq_fail(err, DQ_DAMAGED,
                           "model vocab: the id of token \"%.100s\" is not a whole number from 0 "
                           "to %d",
                           key, DQ_TOKENIZER_MAX_ID);
        out->token[out->n_tokens++] = (dq_tokenizer_token){key, strlen(key), (int32_t)id};
    }
    return DQ_OK;
}

/* The two halves of one merge: "a b" or ["a", "b"]. */
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

dq_status dq_tokenizer_lists_of_merges(dq_tokenizer_lists *out, const json_t *merges, dq_arena *a,
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
