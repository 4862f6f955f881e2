/* gguf_vocab: see gguf_vocab.h. The texts are written without a tree of JSON values in between: a vocabulary has 100000
 * tokens and as many merges, and whoever waits for a first token waits for them.
 *
 * Source: transformers convert_slow_tokenizer.py (generate_merges).
 * SPDX-License-Identifier: MIT */
#include "checkpoint/gguf_vocab.h"

#include "base/base.h"
#include "base/text.h"
#include "checkpoint/gguf_merges.h"

#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

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

/* Numbers of any type are whole ones of the enumeration, or 0, which says nothing. */
static dq_status check_types(const dq_gguf_vocab *v, dq_err *err)
{
    for (size_t i = 0; v->type && i < v->n; i++) {
        const double type = dq_gguf_list_number(v->type, i);
        if (!(type >= 0 && type <= DQ_GGUF_BYTE) || (double)(int)type < type)
            return dq_fail(err, DQ_DAMAGED,
                           "key \"tokenizer.ggml.token_type\": token %zu has %g (expected a whole "
                           "number from 0 to %d)",
                           i, type, DQ_GGUF_BYTE);
    }
    return DQ_OK;
}

int dq_gguf_vocab_type(const dq_gguf_vocab *v, size_t i)
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

const dq_gguf_span *dq_gguf_vocab_first(const dq_gguf_vocab *v, int type)
{
    for (size_t i = 0; i < v->n; i++) {
        if (dq_gguf_vocab_type(v, i) == type) return &v->token[i];
    }
    return NULL;
}

/* ---- Merges of SentencePiece ---- */

typedef struct dq_gguf_vocab_pair {
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

/* Merges, and bytes of their pieces, that there may be: a few for each token in published vocabularies (Llama 2: 1.9 merges a
 * token), but as many as a piece has bytes where pieces are runs of one character. */
typedef struct room {
    size_t merges, bytes;
} room;

static room room_of(const dq_gguf_vocab *v)
{
    room r = {4096 + 16 * v->n, 1 << 16};
    for (size_t i = 0; i < v->n; i++) r.bytes += 16 * v->token[i].len;
    return r;
}

/* All ways in which piece i is made of two others. */
static dq_status add_merges(dq_gguf_vocab *v, size_t *cap, room *left_over, const dq_strmap *ids,
                            size_t i, dq_arena *a, dq_err *err)
{
    const char *s = v->token[i].s;
    const size_t n = v->token[i].len;
    if (n > DQ_GGUF_PIECE_BYTES)
        return dq_fail(
            err, DQ_MISMATCH,
            "key \"tokenizer.ggml.tokens\": token %zu has %zu bytes (expected at most %d in a "
            "vocabulary of SentencePiece)",
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
        v->pair[v->n_merges++] = (merge){.piece = s,
                                         .left = k,
                                         .bytes = n,
                                         .left_chars = dq_utf8_count(s, k),
                                         .chars = dq_utf8_count(s, n),
                                         .score = dq_gguf_list_number(v->score, i),
                                         .left_id = left,
                                         .right_id = right,
                                         .order = i};
    }
    return DQ_OK;
}

static dq_status find_merges(dq_gguf_vocab *v, dq_arena *a, dq_err *err)
{
    size_t cap = 0;
    room left_over = room_of(v);
    dq_strmap ids;
    DQ_TRY(dq_strmap_new(&ids, v->n, a, err));
    for (size_t i = 0; i < v->n; i++)
        dq_strmap_put(&ids, v->token[i].s, v->token[i].len, (int32_t)i);
    for (size_t i = 0; i < v->n; i++) DQ_TRY(add_merges(v, &cap, &left_over, &ids, i, a, err));
    if (v->n_merges) qsort(v->pair, v->n_merges, sizeof *v->pair, by_rank);
    return DQ_OK;
}

dq_status dq_gguf_vocab_read(dq_gguf_vocab *v, const dq_gguf *g, bool spm, dq_arena *a, dq_err *err)
{
    const dq_gguf_list *tokens, *merges;
    *v = (dq_gguf_vocab){0};
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
    DQ_TRY(check_types(v, err));
    DQ_TRY(dq_gguf_list_texts(&v->token, tokens, a, err));
    if (spm) return find_merges(v, a, err);
    DQ_TRY(list_of(&merges, g, "tokenizer.ggml.merges", true, true, err));
    v->n_merges = merges->n;
    return dq_gguf_list_texts(&v->merge, merges, a, err);
}

/* ---- Writing ---- */

/* s[len] as JSON has it, into room for 6 * len + 2 bytes; returns its end. */
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

/* A new line of a list or an object, after a comma where one is due, with room for `bytes` after its indent; NULL: see err. */
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

/* The brackets of what has no members stand side by side. */
static dq_status close_with(dq_strbuf *out, size_t n, const char *bracket, int indent, dq_err *err)
{
    char *p = n ? line(out, false, indent, 1, err) : NULL;
    if (p) end_at(out, p);
    DQ_TRY(err->code);
    return dq_strbuf_add(out, bracket, 1, err);
}

dq_status dq_gguf_vocab_write(dq_strbuf *out, const dq_gguf_vocab *v, int indent, dq_err *err)
{
    DQ_TRY(dq_strbuf_add(out, "{", 1, err));
    for (size_t i = 0; i < v->n; i++) {
        char *p = line(out, i > 0, indent + 2, 6 * v->token[i].len + 32, err);
        if (!p) return err->code;
        p = quote(p, v->token[i].s, v->token[i].len);
        *p++ = ':';
        *p++ = ' ';
        end_at(out, put_number(p, i));
    }
    return close_with(out, v->n, "}", indent, err);
}

/* [left, right] */
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

dq_status dq_gguf_vocab_write_merges(dq_strbuf *out, const dq_gguf_vocab *v, int indent,
                                     dq_err *err)
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
