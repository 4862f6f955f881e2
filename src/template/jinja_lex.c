/* jinja_lex: see jinja_lex.h. Text up to the next tag is one token; within a tag a token is taken at a time until its end,
 * which counts only where all brackets are closed. Lines are counted in what is passed over. The grammar is that of Jinja2's
 * own lexer.
 * SPDX-License-Identifier: MIT */
#include "template/jinja_lex.h"

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BRACKETS = 200 };

typedef struct lexer {
    dq_jinja_run *r; /* its line is that of s[at] */
    char *s;         /* with NULs after it, which no look ahead passes */
    size_t n, at;
    dq_jinja_token *token;
    size_t n_tokens, capacity;
    dq_jinja_token none;        /* where memory is short */
    char bracket[MAX_BRACKETS]; /* that closes an open one */
    int n_brackets;
} lexer;

bool dq_jinja_lex_is_space(uint32_t c)
{
    return dq_utf8_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static void fail(lexer *x, dq_status code, const char *text)
{
    dq_jinja_fail(x->r, code, "%s", text);
}

/* The token s[from .. to), where x is. */
static dq_jinja_token *add(lexer *x, dq_jinja_token_kind kind, size_t from, size_t to)
{
    dq_jinja_token *more =
        dq_grow(x->r->arena, x->token, x->n_tokens + 1, &x->capacity, sizeof *more, x->r->err);
    if (!more) return &x->none;
    x->token = more;
    more[x->n_tokens] =
        (dq_jinja_token){.kind = kind, .line = x->r->line, .text = {x->s + from, to - from}};
    return &more[x->n_tokens++];
}

static bool looks_at(const lexer *x, size_t at, const char *s)
{
    const size_t n = strlen(s);
    return at + n <= x->n && memcmp(x->s + at, s, n) == 0;
}

/* Goes on to s[to], counting lines. */
static void go(lexer *x, size_t to)
{
    for (; x->at < to; x->at++) x->r->line += x->s[x->at] == '\n';
}

static size_t after_spaces(const lexer *x, size_t at)
{
    for (size_t bytes; at < x->n; at += bytes) {
        if (!dq_jinja_lex_is_space(dq_utf8_first(x->s + at, &bytes))) break;
    }
    return at;
}

static size_t before_spaces(const lexer *x, size_t from, size_t to)
{
    for (size_t bytes; to > from; to -= bytes) {
        if (!dq_jinja_lex_is_space(dq_utf8_last(x->s, to, &bytes))) break;
    }
    return to;
}

/* ---- Within a tag ---- */

/* Digits with single underscores between them. */
static size_t after_digits(const lexer *x, size_t at)
{
    while (isdigit((unsigned char)x->s[at])) {
        at++;
        if (x->s[at] == '_' && isdigit((unsigned char)x->s[at + 1])) at++;
    }
    return at;
}

/* The end of a real that begins at s[at], or at. */
static size_t after_real(const lexer *x)
{
    const char *s = x->s;
    size_t end = after_digits(x, x->at), part = end;
    if (x->at > 0 && s[x->at - 1] == '.') return x->at;
    if (s[end] == '.' && isdigit((unsigned char)s[end + 1])) part = after_digits(x, end + 1);
    if (s[part] == 'e' || s[part] == 'E') {
        const size_t digits = part + 1 + (s[part + 1] == '+' || s[part + 1] == '-');
        if (isdigit((unsigned char)s[digits])) return after_digits(x, digits);
    }
    return part > end ? part : x->at;
}

static void lex_number(lexer *x)
{
    const size_t real = after_real(x), end = real > x->at ? real : after_digits(x, x->at);
    char text[64], *rest;
    size_t n = 0;
    for (size_t i = x->at; i < end && n + 1 < sizeof text; i++) {
        if (x->s[i] != '_') text[n++] = x->s[i];
    }
    text[n] = 0;
    errno = 0;
    add(x, DQ_JINJA_LITERAL, x->at, end)->value = real > x->at
                                                      ? dq_jinja_float(dq_real_parse(text, &rest))
                                                      : dq_jinja_int(strtoll(text, NULL, 10));
    if (errno || n + 1 == sizeof text) fail(x, DQ_MISMATCH, "a number is too large");
    if (end == x->at + 1 && text[0] == '0' && x->s[end] && strchr("bBoOxX", x->s[end]))
        fail(x, DQ_MISMATCH, "numbers to another base than 10 are not supported");
    if (real == x->at && text[0] == '0' && strspn(text, "0") < n) /* a number ends after its 0 */
        fail(x, DQ_DAMAGED, "a number begins with 0");
    go(x, end);
}

/* The character of up to `digits` digits from s[*at] on. */
static uint32_t unescape_number(lexer *x, size_t *at, int digits, int base)
{
    static const char all[] = "0123456789abcdef";
    uint32_t c = 0;
    int n = 0;
    for (; n < digits && x->s[*at]; n++, ++*at) {
        const char *p = strchr(all, tolower((unsigned char)x->s[*at]));
        if (!p || p - all >= base) break;
        c = c * (uint32_t)base + (uint32_t)(p - all);
    }
    if (base == 16 && (n < digits || c > 0x10FFFF))
        fail(x, DQ_DAMAGED, "an escape in a string is not a character");
    if (c >= 0xD800 && c < 0xE000)
        fail(x, DQ_MISMATCH, "half of a pair of surrogates is not supported");
    return dq_jinja_ok(x->r) ? c : '?';
}

/* What the backslash before s[*at] makes of it, at out; returns its bytes. */
static size_t unescape(lexer *x, size_t *at, char *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char c = x->s[(*at)++], *p = strchr(from, c);
    if (c == '\n') return 0;
    if (c == 'x') return dq_utf8_put(out, unescape_number(x, at, 2, 16));
    if (c == 'u') return dq_utf8_put(out, unescape_number(x, at, 4, 16));
    if (c == 'U') return dq_utf8_put(out, unescape_number(x, at, 8, 16));
    if (c >= '0' && c <= '7') {
        --*at;
        return dq_utf8_put(out, unescape_number(x, at, 3, 8));
    }
    if (c == 'N' || (c & 0x80))
        fail(x, DQ_MISMATCH, "escapes of names and of characters beyond ASCII are not supported");
    if (c && p) {
        *out = to[p - from];
        return 1;
    }
    out[0] = '\\';
    out[1] = c;
    return 2;
}

static void lex_string(lexer *x)
{
    const char quote = x->s[x->at];
    size_t end = x->at + 1, n = 0;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    char *text = dq_alloc(x->r->arena, end - x->at + 4, 1, x->r->err);
    if (end >= x->n) fail(x, DQ_DAMAGED, "a string has no end");
    if (!dq_jinja_ok(x->r)) return;
    for (size_t i = x->at + 1; i < end;) {
        if (x->s[i++] == '\\')
            n += unescape(x, &i, text + n);
        else
            text[n++] = x->s[i - 1];
    }
    add(x, DQ_JINJA_LITERAL, x->at, end + 1)->value = dq_jinja_string(text, n);
    go(x, end + 1);
}

static void lex_operator(lexer *x)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = x->s[x->at];
    size_t n = c && strchr("+-/*%~[](){}><=.:|,;", c) ? 1 : 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (looks_at(x, x->at, two[i])) n = 2;
    }
    if (n == 0 && (c & 0x80)) fail(x, DQ_MISMATCH, "names beyond ASCII are not supported");
    if (n == 0) fail(x, DQ_DAMAGED, "unexpected character");
    if (n == 1 && strchr("([{", c)) {
        if (x->n_brackets == MAX_BRACKETS)
            fail(x, DQ_MISMATCH, "too many open brackets");
        else
            x->bracket[x->n_brackets++] = (char)(c == '(' ? ')' : c + 2);
    }
    if (n == 1 && strchr(")]}", c) && (x->n_brackets == 0 || x->bracket[--x->n_brackets] != c))
        fail(x, DQ_DAMAGED, "a bracket closes that was not open");
    add(x, DQ_JINJA_OPERATOR, x->at, x->at + n);
    x->at += n;
}

static void lex_one(lexer *x)
{
    const char c = x->s[x->at];
    size_t end = x->at;
    while (isalnum((unsigned char)x->s[end]) || x->s[end] == '_') end++;
    if (isdigit((unsigned char)c)) {
        lex_number(x);
    } else if (c == '\'' || c == '"') {
        lex_string(x);
    } else if (end == x->at) {
        lex_operator(x);
    } else {
        add(x, DQ_JINJA_NAME, x->at, end);
        x->at = end;
    }
}

/* Where s[at] ends a tag with `close`, the place after it and what it takes along; else at. */
static size_t after_close(const lexer *x, size_t at, const char *close)
{
    const bool print = strcmp(close, "}}") == 0;
    if (x->s[at] == '-' && looks_at(x, at + 1, close)) return after_spaces(x, at + 3);
    if (!print && x->s[at] == '+' && looks_at(x, at + 1, close)) return at + 3;
    if (!looks_at(x, at, close)) return at;
    return at + 2 + (!print && x->s[at + 2] == '\n');
}

static void lex_tag(lexer *x, bool print)
{
    const char *close = print ? "}}" : "%}";
    x->n_brackets = 0;
    while (dq_jinja_ok(x->r)) {
        go(x, after_spaces(x, x->at));
        if (x->at >= x->n) return; /* the parser misses the end */
        const size_t end = x->n_brackets ? x->at : after_close(x, x->at, close);
        if (end > x->at) {
            add(x, print ? DQ_JINJA_PRINT_END : DQ_JINJA_BLOCK_END, x->at, end);
            go(x, end);
            return;
        }
        lex_one(x);
    }
}

/* ---- Outside of tags ---- */

/* Where a block of the one word `word` begins at s[at], the place before its end; else 0. */
static size_t before_close(const lexer *x, size_t at, const char *word)
{
    if (!looks_at(x, at, "{%")) return 0;
    at += 2;
    if (x->s[at] == '-' || x->s[at] == '+') at++;
    at = after_spaces(x, at);
    return looks_at(x, at, word) ? after_spaces(x, at + strlen(word)) : 0;
}

/* Text up to the tag at s[to], without the whitespace that the tag takes away. */
static void lex_data(lexer *x, size_t to)
{
    const bool at_line = x->at == 0 || x->s[x->at - 1] == '\n';
    size_t end = to, line = to;
    if (x->s[to + 2] == '-') {
        end = before_spaces(x, x->at, to);
    } else if (x->s[to + 2] != '+' && x->s[to + 1] != '{') {
        while (line > x->at && x->s[line - 1] != '\n') line--;
        if ((line > x->at || at_line) && before_spaces(x, line, to) == line) end = line;
    }
    if (end > x->at) add(x, DQ_JINJA_DATA, x->at, end);
    go(x, to);
}

static void lex_raw(lexer *x, size_t close)
{
    size_t end = 0, to;
    go(x, x->s[close] == '-' ? after_spaces(x, close + 3) : close + 2);
    for (to = x->at; to < x->n; to++) {
        const size_t at = before_close(x, to, "endraw");
        end = at ? after_close(x, at, "%}") : 0;
        if (end > at) break;
    }
    if (to >= x->n) fail(x, DQ_DAMAGED, "raw has no end");
    if (!dq_jinja_ok(x->r)) return;
    lex_data(x, to);
    go(x, end);
}

static void lex_comment(lexer *x)
{
    for (size_t at = x->at; at < x->n; at++) {
        const size_t end = after_close(x, at, "#}");
        if (end == at) continue;
        go(x, end);
        return;
    }
    fail(x, DQ_DAMAGED, "a comment has no end");
}

/* The tag at s[at], whose text before it is taken. */
static void lex_open(lexer *x)
{
    const char kind = x->s[x->at + 1], sign = x->s[x->at + 2];
    const size_t raw = before_close(x, x->at, "raw");
    if (raw && (looks_at(x, raw, "%}") || looks_at(x, raw, "-%}"))) {
        lex_raw(x, raw);
        return;
    }
    if (kind != '#')
        add(x, kind == '{' ? DQ_JINJA_PRINT_BEGIN : DQ_JINJA_BLOCK_BEGIN, x->at, x->at + 2);
    x->at += sign == '-' || sign == '+' ? 3 : 2;
    if (kind == '#')
        lex_comment(x);
    else
        lex_tag(x, kind == '{');
}

const dq_jinja_token *dq_jinja_lex(dq_jinja_run *r, const char *text, size_t len)
{
    lexer x = {.r = r, .s = dq_alloc(r->arena, len + 8, 1, r->err)};
    r->line = 1;
    for (size_t i = 0; x.s && i < len; i++) { /* every end of a line is \n */
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n') continue;
        x.s[x.n++] = (char)(text[i] == '\r' ? '\n' : text[i]);
    }
    if (x.n && x.s[x.n - 1] == '\n') x.s[--x.n] = 0; /* the last one does not count */
    while (x.at < x.n && dq_jinja_ok(r)) {
        size_t to = x.at;
        while (to < x.n && !(x.s[to] == '{' && x.s[to + 1] && strchr("{%#", x.s[to + 1]))) to++;
        if (to < x.n) {
            lex_data(&x, to);
            lex_open(&x);
        } else {
            add(&x, DQ_JINJA_DATA, x.at, x.n);
            go(&x, x.n);
        }
    }
    add(&x, DQ_JINJA_END, x.n, x.n);
    return x.token;
}
