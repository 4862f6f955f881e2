/* The tokens are a list of pieces in one buffer; each step rewrites one list into another, and the
 * two swap. A step that would make far more bytes of the text than it had is stopped.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/text.h"
#include "tokenizer/inside.h"

#include <string.h>

enum { MAX_DEPTH = 8 };

static dq_status load_text(const char **text, size_t *len, const json_t *s, const char *type,
                           const char *key, dq_arena *a, dq_err *err)
{
    if (!json_is_string(s))
        return dq_fail(err, DQ_DAMAGED, "decoder %s: \"%s\" is not a string", type, key);
    *len = json_string_length(s);
    *text = dq_text(a, json_string_value(s), *len, err);
    return *text ? DQ_OK : err->code;
}

static dq_status load_character(dq_decoder_step *s, const json_t *v, const char *type,
                                const char *key, dq_arena *a, dq_err *err)
{
    size_t used = 0;
    DQ_TRY(load_text(&s->part, &s->part_len, json_object_get(v, key), type, key, a, err));
    if (s->part_len) dq_utf8_first(s->part, &used);
    if (s->part_len && used == s->part_len) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "decoder %s: \"%s\" is not one character", type, key);
}

static dq_status load(dq_decoder *d, const json_t *v, int depth, dq_arena *a, dq_err *err)
{
    const char *type;
    if (!json_is_object(v)) return dq_fail(err, DQ_DAMAGED, "a decoder is not an object");
    DQ_TRY(dq_json_text(&type, v, "type", NULL, err));
    if (strcmp(type, "Sequence") != 0) {
        if (d->n_steps == DQ_DECODER_MAX_STEPS)
            return dq_fail(err, DQ_MISMATCH, "more than %d decoder steps are not supported",
                           DQ_DECODER_MAX_STEPS);
        dq_decoder_step *s = &d->step[d->n_steps++];
        if (strcmp(type, "Replace") == 0) {
            const json_t *pattern = json_object_get(v, "pattern");
            const json_t *text = json_object_get(pattern, "String");
            s->kind = DQ_DECODER_REPLACE;
            if (json_is_string(json_object_get(pattern, "Regex")))
                return dq_fail(err, DQ_MISMATCH,
                               "decoder Replace with a Regex pattern is not supported");
            DQ_TRY(load_text(&s->part, &s->part_len, text, "Replace", "pattern", a, err));
            DQ_TRY(load_text(&s->text, &s->text_len, json_object_get(v, "content"), "Replace",
                             "content", a, err));
            if (s->part_len) return DQ_OK;
            return dq_fail(err, DQ_MISMATCH,
                           "decoder Replace with an empty pattern is not supported");
        }
        if (strcmp(type, "Strip") == 0) {
            s->kind = DQ_DECODER_STRIP;
            DQ_TRY(load_character(s, v, "Strip", "content", a, err));
            DQ_TRY(dq_json_int(&s->start, v, "start", 0, INT64_MAX, NULL, err));
            return dq_json_int(&s->stop, v, "stop", 0, INT64_MAX, NULL, err);
        }
        if (strcmp(type, "Metaspace") == 0) {
            static const bool yes = true;
            const char *scheme, *old_scheme = "always";
            bool old;
            s->kind = DQ_DECODER_METASPACE;
            DQ_TRY(load_character(s, v, "Metaspace", "replacement", a, err));
            DQ_TRY(dq_json_bool(&old, v, "add_prefix_space", &yes, err));
            if (!old) old_scheme = "never";
            DQ_TRY(dq_json_text(&scheme, v, "prepend_scheme", &old_scheme, err));
            s->drop_first = strcmp(scheme, "never") != 0;
            if (!s->drop_first || strcmp(scheme, "always") == 0 || strcmp(scheme, "first") == 0)
                return DQ_OK;
            return dq_fail(err, DQ_MISMATCH,
                           "decoder Metaspace with prepend_scheme \"%s\" is not supported", scheme);
        }
        if (strcmp(type, "ByteLevel") == 0) {
            s->kind = DQ_DECODER_BYTE_LEVEL;
        } else if (strcmp(type, "ByteFallback") == 0) {
            s->kind = DQ_DECODER_BYTE_FALLBACK;
        } else if (strcmp(type, "Fuse") == 0) {
            s->kind = DQ_DECODER_FUSE;
        } else {
            return dq_fail(err, DQ_MISMATCH, "decoder type \"%s\" is not supported", type);
        }
        return DQ_OK;
    }
    const json_t *list = json_object_get(v, "decoders");
    if (!json_is_array(list))
        return dq_fail(err, DQ_DAMAGED, "decoder Sequence has no list \"decoders\"");
    if (depth == MAX_DEPTH)
        return dq_fail(err, DQ_MISMATCH, "a decoder Sequence more than %d deep is not supported",
                       MAX_DEPTH);
    for (size_t i = 0; i < json_array_size(list); i++)
        DQ_TRY(load(d, json_array_get(list, i), depth + 1, a, err));
    return DQ_OK;
}

dq_status dq_decoder_load(dq_decoder *d, const json_t *value, dq_arena *a, dq_err *err)
{
    d->none = !value || json_is_null(value);
    return d->none ? DQ_OK : load(d, value, 0, a, err);
}

/* Pieces in order. No step makes more pieces than it got, except from an empty list. */
typedef struct list {
    dq_strbuf text;
    size_t *end; /* [n], of each piece */
    size_t n;
} list;

static void end_piece(list *l)
{
    l->end[l->n++] = l->text.n;
}

/* A token with a character outside the byte alphabet (an added one) stands for itself. */
static dq_status byte_level(list *out, const list *in, dq_err *err)
{
    dq_strbuf raw = {0};
    int64_t first;
    DQ_TRY(dq_strbuf_reserve(&raw, in->text.n, err));
    for (size_t i = 0, begin = 0; i < in->n; begin = in->end[i++]) {
        const char *s = in->text.s + begin;
        size_t len = in->end[i] - begin, n;
        if (!dq_utf8_to_bytes(raw.s + raw.n, &n, s, len)) {
            memcpy(raw.s + raw.n, s, len);
            n = len;
        }
        raw.n += n;
    }
    int64_t bad = dq_utf8_check(raw.s, raw.n, &first);
    dq_status status = dq_strbuf_reserve(&out->text, raw.n + 2 * (size_t)bad, err);
    if (status == DQ_OK) {
        out->text.n = dq_utf8_repair(out->text.s, raw.s, raw.n);
        end_piece(out);
    }
    dq_block_free(raw.s);
    return status;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of a token <0xHH>, else -1; like the reference's parser it takes + for the first
 * digit. */
static int byte_of(const char *s, size_t len)
{
    if (len != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    int high = s[3] == '+' ? 0 : hex(s[3]), low = hex(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Byte tokens raw[n] become their text, or one U+FFFD each. */
static dq_status end_run(list *out, dq_strbuf *raw, dq_err *err)
{
    int64_t first;
    size_t n = raw->n;
    raw->n = 0;
    if (n == 0) return DQ_OK;
    if (dq_utf8_check(raw->s, n, &first) == 0) {
        DQ_TRY(dq_strbuf_add(&out->text, raw->s, n, err));
        end_piece(out);
        return DQ_OK;
    }
    for (; n; n--) {
        DQ_TRY(dq_strbuf_add(&out->text, "\xEF\xBF\xBD", 3, err));
        end_piece(out);
    }
    return DQ_OK;
}

static dq_status byte_fallback(list *out, const list *in, dq_err *err)
{
    dq_strbuf raw = {0};
    dq_status status = dq_strbuf_reserve(&raw, in->n, err);
    for (size_t i = 0, begin = 0; status == DQ_OK && i < in->n; begin = in->end[i++]) {
        const char *s = in->text.s + begin;
        int byte = byte_of(s, in->end[i] - begin);
        if (byte >= 0) {
            raw.s[raw.n++] = (char)byte;
            continue;
        }
        status = end_run(out, &raw, err);
        if (status == DQ_OK) status = dq_strbuf_add(&out->text, s, in->end[i] - begin, err);
        if (status == DQ_OK) end_piece(out);
    }
    if (status == DQ_OK) status = end_run(out, &raw, err);
    dq_block_free(raw.s);
    return status;
}

static dq_status replace(list *l, const char *s, size_t len, const dq_decoder_step *step,
                         const char *by, size_t by_len, size_t original, dq_err *err)
{
    dq_strbuf *out = &l->text;
    size_t done = 0, at;
    while ((at = dq_regex_find_text(s, len, done, step->part, step->part_len)) != SIZE_MAX) {
        DQ_TRY(dq_strbuf_add(out, s + done, at - done, err));
        DQ_TRY(dq_strbuf_add(out, by, by_len, err));
        DQ_TRY(dq_strbuf_check_growth(out->n, original, "decoder Replace", err));
        done = at + step->part_len;
    }
    return dq_strbuf_add(out, s + done, len - done, err);
}

static dq_status strip(dq_strbuf *out, const char *s, size_t len, const dq_decoder_step *step,
                       dq_err *err)
{
    const size_t n = step->part_len;
    size_t begin = 0;
    for (int64_t i = 0; i < step->start && len - begin >= n; i++, begin += n) {
        if (memcmp(s + begin, step->part, n) != 0) break;
    }
    for (int64_t i = 0; i < step->stop && len - begin >= n; i++, len -= n) {
        if (memcmp(s + len - n, step->part, n) != 0) break;
    }
    return dq_strbuf_add(out, s + begin, len - begin, err);
}

static dq_status each(list *out, const list *in, const dq_decoder_step *step, size_t original,
                      dq_err *err)
{
    for (size_t i = 0, begin = 0; i < in->n; begin = in->end[i++]) {
        const char *s = in->text.s + begin;
        size_t len = in->end[i] - begin;
        if (step->kind == DQ_DECODER_STRIP) {
            DQ_TRY(strip(&out->text, s, len, step, err));
        } else if (step->kind == DQ_DECODER_METASPACE) {
            DQ_TRY(
                replace(out, s, len, step, " ", i == 0 && step->drop_first ? 0 : 1, original, err));
        } else {
            DQ_TRY(replace(out, s, len, step, step->text, step->text_len, original, err));
        }
        end_piece(out);
        DQ_TRY(dq_os_check_stop(err));
    }
    return DQ_OK;
}

/* `original`: bytes before the first step. */
static dq_status apply(list *out, const list *in, const dq_decoder_step *step, size_t original,
                       dq_err *err)
{
    out->n = 0;
    out->text.n = 0;
    switch (step->kind) {
    case DQ_DECODER_BYTE_LEVEL: return byte_level(out, in, err);
    case DQ_DECODER_BYTE_FALLBACK: return byte_fallback(out, in, err);
    case DQ_DECODER_FUSE:
        DQ_TRY(dq_strbuf_add(&out->text, in->text.s, in->text.n, err));
        end_piece(out);
        return DQ_OK;
    default: return each(out, in, step, original, err);
    }
}

static dq_status decode(const dq_decoder *d, list both[2], const char *const *token,
                        const size_t *len, size_t n, list **result, dq_err *err)
{
    list *in = &both[0], *out = &both[1];
    *result = in;
    for (int i = 0; i < 2; i++) {
        both[i].end = dq_block_new(n + 1, sizeof *both[i].end, err);
        if (!both[i].end) return err->code;
        DQ_TRY(dq_strbuf_reserve(&both[i].text, 1, err));
    }
    for (size_t i = 0; i < n; i++) {
        if (d->none && i) DQ_TRY(dq_strbuf_add(&in->text, " ", 1, err));
        DQ_TRY(dq_strbuf_add(&in->text, token[i], len[i], err));
        end_piece(in);
    }
    const size_t original = in->text.n;
    for (int i = 0; i < d->n_steps; i++) {
        DQ_TRY(apply(out, in, &d->step[i], original, err));
        *result = out;
        out = in;
        in = *result;
    }
    return DQ_OK;
}

dq_status dq_decoder_run(const dq_decoder *d, const char *const *token, const size_t *len,
                         int64_t n, char **text, size_t *text_len, dq_err *err)
{
    list both[2] = {0}, *result;
    dq_status status = decode(d, both, token, len, (size_t)n, &result, err);
    *text = NULL;
    *text_len = 0;
    if (status == DQ_OK) {
        *text = result->text.s;
        *text_len = result->text.n;
        result->text.s = NULL;
    }
    for (int i = 0; i < 2; i++) {
        dq_block_free(both[i].end);
        dq_block_free(both[i].text.s);
    }
    return status;
}
