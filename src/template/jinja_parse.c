/* Text up to the next tag is one token; within a tag a token is taken at a time until its end,
 * which counts only where all brackets are closed. Lines are counted in what is passed over. The
 * grammar is that of Jinja2's own lexer.
 * SPDX-License-Identifier: MIT */
#include "template/inside.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum dq_jinja_token_kind {
    DQ_JINJA_END,
    DQ_JINJA_DATA, /* text outside of tags */
    DQ_JINJA_PRINT_BEGIN,
    DQ_JINJA_PRINT_END,
    DQ_JINJA_BLOCK_BEGIN,
    DQ_JINJA_BLOCK_END,
    DQ_JINJA_NAME,
    DQ_JINJA_LITERAL, /* a string or a number */
    DQ_JINJA_OPERATOR,
} dq_jinja_token_kind;

typedef struct dq_jinja_token {
    dq_jinja_token_kind kind;
    int line;
    dq_jinja_text text;   /* as it stands there */
    dq_jinja_value value; /* of a literal */
} dq_jinja_token;

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

static void fail(lexer *x, dq_status code, const char *text)
{
    dq_jinja_fail(x->r, code, "%s", text);
}

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

/* Advances to s[to] and counts lines. */
static void go(lexer *x, size_t to)
{
    for (; x->at < to; x->at++) x->r->line += x->s[x->at] == '\n';
}

static size_t after_spaces(const lexer *x, size_t at)
{
    for (size_t bytes; at < x->n; at += bytes) {
        if (!dq_utf8_is_strip(dq_utf8_first(x->s + at, &bytes))) break;
    }
    return at;
}

static size_t before_spaces(const lexer *x, size_t from, size_t to)
{
    for (size_t bytes; to > from; to -= bytes) {
        if (!dq_utf8_is_strip(dq_utf8_last(x->s, to, &bytes))) break;
    }
    return to;
}

/* Digits with single underscores between them. */
static size_t after_digits(const lexer *x, size_t at)
{
    while (isdigit((unsigned char)x->s[at])) {
        at++;
        if (x->s[at] == '_' && isdigit((unsigned char)x->s[at + 1])) at++;
    }
    return at;
}

/* The end of a real at s[at], or at. */
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

/* Decodes at most `digits` digits from s[*at] on. */
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

/* Decodes the escape after a backslash before s[*at] to out; returns its bytes. */
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

/* Where `close` ends a tag at s[at]: the place after it and the whitespace it strips; else at. */
static size_t after_close(const lexer *x, size_t at, const char *close)
{
    const bool print = strcmp(close, "}}") == 0;
    if (x->s[at] == '-' && looks_at(x, at + 1, close)) return after_spaces(x, at + 3);
    if (!print && x->s[at] == '+' && looks_at(x, at + 1, close)) return at + 3;
    if (!looks_at(x, at, close)) return at;
    return at + 2 + (!print && !x->r->member && x->s[at + 2] == '\n');
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

/* Where a block of one `word` begins at s[at]: the place before its end; else 0. */
static size_t before_close(const lexer *x, size_t at, const char *word)
{
    if (!looks_at(x, at, "{%")) return 0;
    at += 2;
    if (x->s[at] == '-' || x->s[at] == '+') at++;
    at = after_spaces(x, at);
    return looks_at(x, at, word) ? after_spaces(x, at + strlen(word)) : 0;
}

/* Text up to the tag at s[to], less the whitespace that the tag strips. */
static void lex_data(lexer *x, size_t to)
{
    const bool at_line = x->at == 0 || x->s[x->at - 1] == '\n';
    size_t end = to, line = to;
    if (x->s[to + 2] == '-') {
        end = before_spaces(x, x->at, to);
    } else if (x->s[to + 2] != '+' && x->s[to + 1] != '{' && !x->r->member) {
        while (line > x->at && x->s[line - 1] != '\n') line--;
        if ((line > x->at || at_line) && before_spaces(x, line, to) == line) end = line;
    }
    if (end > x->at) add(x, DQ_JINJA_DATA, x->at, end);
    go(x, to);
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

/* The tag at s[at]; the text before it is done. */
static void lex_open(lexer *x)
{
    const char kind = x->s[x->at + 1], sign = x->s[x->at + 2];
    const size_t raw = before_close(x, x->at, "raw");
    if (raw && (looks_at(x, raw, "%}") || looks_at(x, raw, "-%}"))) {
        size_t end = 0, to;
        go(x, x->s[raw] == '-' ? after_spaces(x, raw + 3) : raw + 2);
        for (to = x->at; to < x->n; to++) {
            const size_t at = before_close(x, to, "endraw");
            end = at ? after_close(x, at, "%}") : 0;
            if (end > at) break;
        }
        if (to >= x->n) fail(x, DQ_DAMAGED, "raw has no end");
        if (dq_jinja_ok(x->r)) {
            lex_data(x, to);
            go(x, end);
        }
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

/* Tokens in the arena, ended by DQ_JINJA_END. DQ_DAMAGED: Jinja2 refuses the text too; DQ_MISMATCH:
 * it does not. */
static const dq_jinja_token *lex(dq_jinja_run *r, const char *text, size_t len)
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

/* Recursive descent, one function per level of Jinja2's precedence, which differs from Python's: **
 * binds to the left, ~ more than +, and a filter more than all operators. */

/* After a failure the parser is at the end of the template; no function returns NULL. */
typedef struct dq_jinja_parser {
    dq_jinja_run *r; /* its depth is that of what is being parsed */
    const struct dq_jinja_token *t;
    int loops, macros; /* around what is parsed, loops those of the same macro */
    bool is_branch;    /* right within an if, where a missing filter fails only when used */
    const dq_jinja_node *missing; /* elsewhere: the first one that uses such a filter or test */
    dq_jinja_node none;           /* where memory is short */
} dq_jinja_parser;

typedef dq_jinja_parser parser;
typedef dq_jinja_node node;
static node *parse_expression(parser *p);
static node *parse_tuple(parser *p, bool is_condition);

enum { MAX_NESTING = 200 };

static node *fail_at(parser *p, dq_status code, const char *fmt, ...) DQ_PRINTF(3, 4);
static node *fail_at(parser *p, dq_status code, const char *fmt, ...)
{
    static const dq_jinja_token end[2]; /* one to look at, and one ahead */
    char text[300];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    p->r->line = p->t->line;
    dq_jinja_fail(p->r, code, "%s", text);
    p->t = end;
    return &p->none;
}

/* Fails at the current token where `expected` should be. */
static node *unexpected(parser *p, const char *expected)
{
    const dq_jinja_text t = p->t->text;
    if (p->t->kind == DQ_JINJA_END)
        return fail_at(p, DQ_DAMAGED, "the template ends where %s is expected", expected);
    return fail_at(p, DQ_DAMAGED, "expected %s, found \"%.*s\"", expected,
                   (int)(t.n < 50 ? t.n : 50), t.s);
}

static bool is_word(const dq_jinja_token *t, const char *word)
{
    return (t->kind == DQ_JINJA_OPERATOR || t->kind == DQ_JINJA_NAME) &&
           dq_jinja_text_is(t->text, word);
}

/* The word is an operator or a name. */
static bool is_at(const parser *p, const char *word)
{
    return is_word(p->t, word);
}

static void advance(parser *p)
{
    if (p->t->kind != DQ_JINJA_END) p->t++;
}

static bool skip(parser *p, const char *word)
{
    const bool is = is_at(p, word);
    if (is) advance(p);
    return is;
}

static void expect(parser *p, const char *word)
{
    if (!skip(p, word)) unexpected(p, word);
}

static dq_jinja_text take_name(parser *p)
{
    const dq_jinja_text t = p->t->text;
    if (p->t->kind == DQ_JINJA_NAME)
        advance(p);
    else
        unexpected(p, "a name");
    return t;
}

static bool is_literal(const dq_jinja_token *t, dq_jinja_kind kind)
{
    return t->kind == DQ_JINJA_LITERAL && t->value.kind == kind;
}

static node *new_node(parser *p, dq_jinja_node_kind kind)
{
    node *n = dq_alloc(p->r->arena, 1, sizeof *n, p->r->err);
    if (!n) n = &p->none;
    *n = (node){.kind = kind, .line = p->t->line};
    return n;
}

static void add_node(parser *p, dq_jinja_nodes *list, const node *n)
{
    const node **more =
        dq_grow(p->r->arena, list->at, list->n + 1, &list->capacity, sizeof *more, p->r->err);
    if (!more) return;
    list->at = more;
    list->at[list->n++] = n;
}

static void measure(node *n, const node *part)
{
    if (part && part->depth >= n->depth) n->depth = part->depth + 1;
}

/* Completes a node; fails if it nests too deeply. */
static node *end_node(parser *p, node *n)
{
    measure(n, n->a);
    measure(n, n->b);
    measure(n, n->c);
    for (size_t i = 0; i < n->item.n; i++) measure(n, n->item.at[i]);
    for (size_t i = 0; i < n->body.n; i++) measure(n, n->body.at[i]);
    if (n->depth <= MAX_NESTING) return n;
    return fail_at(p, DQ_MISMATCH, "the template nests too deeply (limit %d)", MAX_NESTING);
}

/* Enters a nested part, false on failure; --p->r->depth leaves it. */
static bool deeper(parser *p)
{
    if (p->r->depth++ < MAX_NESTING) return true;
    fail_at(p, DQ_MISMATCH, "the template nests too deeply (limit %d)", MAX_NESTING);
    return false;
}

static node *with(parser *p, dq_jinja_node_kind kind, const node *a, const node *b)
{
    node *n = new_node(p, kind);
    n->line = a->line;
    n->a = a;
    n->b = b;
    return end_node(p, n);
}

/* Items with commas up to `close`; `one` parses an item and may add another before it. */
static node *parse_items(parser *p, node *n, const char *close, node *(*one)(parser *, node *))
{
    advance(p);
    while (dq_jinja_ok(p->r) && !skip(p, close)) {
        if (n->item.n) {
            expect(p, ",");
            if (skip(p, close)) break;
        }
        add_node(p, &n->item, one(p, n));
    }
    return end_node(p, n);
}

static node *parse_item(parser *p, node *list)
{
    (void)list;
    return parse_expression(p);
}

static node *parse_pair(parser *p, node *dict)
{
    add_node(p, &dict->item, parse_expression(p));
    expect(p, ":");
    return parse_expression(p);
}

static dq_jinja_value join_literals(parser *p)
{
    size_t n = 0, at = 0;
    for (const dq_jinja_token *t = p->t; is_literal(t, DQ_JINJA_STRING); t++) n += t->value.text.n;
    char *s = dq_alloc(p->r->arena, n, 1, p->r->err);
    for (; is_literal(p->t, DQ_JINJA_STRING); advance(p)) {
        const dq_jinja_text one = p->t->value.text;
        if (s) memcpy(s + at, one.s, one.n);
        at += one.n;
    }
    return dq_jinja_string(s ? s : "", s ? n : 0);
}

static node *parse_literal(parser *p)
{
    node *n = new_node(p, DQ_JINJA_CONSTANT);
    const bool joins = is_literal(p->t, DQ_JINJA_STRING) && is_literal(p->t + 1, DQ_JINJA_STRING);
    n->value = p->t->value;
    if (joins)
        n->value = join_literals(p);
    else
        advance(p);
    return n;
}

static node *parse_primary(parser *p)
{
    if (p->t->kind == DQ_JINJA_NAME) {
        static const struct {
            const char *name;
            dq_jinja_value value;
        } constant[] = {
            {"true", {.kind = DQ_JINJA_BOOL, .truth = true}},
            {"True", {.kind = DQ_JINJA_BOOL, .truth = true}},
            {"false", {.kind = DQ_JINJA_BOOL}},
            {"False", {.kind = DQ_JINJA_BOOL}},
            {"none", {.kind = DQ_JINJA_NONE}},
            {"None", {.kind = DQ_JINJA_NONE}},
        };
        node *n = new_node(p, DQ_JINJA_VARIABLE);
        for (size_t i = 0; i < sizeof constant / sizeof *constant; i++) {
            if (!is_at(p, constant[i].name)) continue;
            n->kind = DQ_JINJA_CONSTANT;
            n->value = constant[i].value;
        }
        if (p->macros && (is_at(p, "caller") || is_at(p, "varargs") || is_at(p, "kwargs")))
            return fail_at(p, DQ_MISMATCH,
                           "caller, varargs and kwargs of a macro are not supported");
        n->name = take_name(p);
        return n;
    }
    if (p->t->kind == DQ_JINJA_LITERAL) return parse_literal(p);
    if (is_at(p, "(")) {
        node *n = new_node(p, DQ_JINJA_TUPLE_OF);
        advance(p);
        if (!is_at(p, ")")) n = parse_tuple(p, false);
        expect(p, ")");
        return n;
    }
    if (is_at(p, "[")) return parse_items(p, new_node(p, DQ_JINJA_LIST_OF), "]", parse_item);
    if (is_at(p, "{")) return parse_items(p, new_node(p, DQ_JINJA_DICT_OF), "}", parse_pair);
    return unexpected(p, "an expression");
}

static node *parse_argument(parser *p, node *call)
{
    const dq_jinja_nodes *before = &call->item;
    node *n = new_node(p, DQ_JINJA_KEYWORD);
    if (is_at(p, "*") || is_at(p, "**"))
        return fail_at(p, DQ_MISMATCH, "arguments with * and ** are not supported");
    if (p->t->kind != DQ_JINJA_NAME || !is_word(p->t + 1, "=")) {
        if (before->n && before->at[before->n - 1]->kind == DQ_JINJA_KEYWORD)
            return fail_at(p, DQ_DAMAGED, "an argument without a name after one with it");
        return parse_expression(p);
    }
    for (size_t i = 0; i < before->n; i++) {
        if (before->at[i]->kind == DQ_JINJA_KEYWORD &&
            dq_jinja_text_same(p->r, before->at[i]->name, p->t->text))
            return fail_at(p, DQ_DAMAGED, "two arguments have one name");
    }
    n->name = take_name(p);
    advance(p);
    n->a = parse_expression(p);
    return end_node(p, n);
}

/* a[b], or a slice with up to three parts. */
static node *parse_subscript(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_SUBSCRIPT, a, NULL);
    advance(p);
    if (is_at(p, "]")) return fail_at(p, DQ_MISMATCH, "an empty subscript is not supported");
    if (!is_at(p, ":")) n->b = parse_expression(p);
    if (is_at(p, ":")) {
        n->kind = DQ_JINJA_SLICE;
        add_node(p, &n->item, n->b);
        n->b = NULL;
        for (int i = 0; i < 2; i++) {
            const bool there = skip(p, ":") && !is_at(p, ":") && !is_at(p, "]");
            add_node(p, &n->item, there ? parse_expression(p) : NULL);
        }
    }
    if (is_at(p, ",")) return fail_at(p, DQ_MISMATCH, "several subscripts are not supported");
    expect(p, "]");
    return end_node(p, n);
}

static node *parse_call(parser *p, node *a)
{
    return parse_items(p, with(p, DQ_JINJA_CALL, a, NULL), ")", parse_argument);
}

static node *parse_postfix(parser *p, node *a)
{
    for (;;) {
        if (is_at(p, ".")) {
            node *n = with(p, DQ_JINJA_ATTRIBUTE, a, NULL);
            advance(p);
            if (is_literal(p->t, DQ_JINJA_INT)) { /* a.0 is a[0] */
                n->kind = DQ_JINJA_SUBSCRIPT;
                n->b = parse_literal(p);
            } else {
                n->name = take_name(p);
            }
            a = n;
        } else if (is_at(p, "["))
            a = parse_subscript(p, a);
        else if (is_at(p, "("))
            a = parse_call(p, a);
        else
            return a;
    }
}

static void parse_function(parser *p, node *n, dq_jinja_table table)
{
    n->name = take_name(p);
    n->function = dq_jinja_find(table, n->name);
    while (skip(p, ".")) { /* no function of Jinja2 has such a name */
        take_name(p);
        n->function = NULL;
    }
    if (n->function && !n->function->code)
        fail_at(p, DQ_MISMATCH, "the filter or test \"%.*s\" is not supported", (int)n->name.n,
                n->name.s);
    if (!n->function && !p->is_branch && !p->missing) p->missing = n;
}

static node *parse_filter(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_FILTER, a, NULL);
    advance(p);
    parse_function(p, n, DQ_JINJA_FILTERS);
    return is_at(p, "(") ? parse_items(p, n, ")", parse_argument) : n;
}

static node *parse_filters(parser *p, node *a)
{
    while (is_at(p, "|")) a = parse_filter(p, a);
    return a;
}

/* Whether the token begins the argument of a test without parentheses. */
static bool begins_argument(const parser *p)
{
    if (is_at(p, "else") || is_at(p, "or") || is_at(p, "and")) return false;
    return p->t->kind == DQ_JINJA_NAME || p->t->kind == DQ_JINJA_LITERAL || is_at(p, "[") ||
           is_at(p, "{");
}

static node *parse_test(parser *p, node *a)
{
    node *n = with(p, DQ_JINJA_TEST, a, NULL);
    advance(p);
    const bool negated = skip(p, "not");
    parse_function(p, n, DQ_JINJA_TESTS);
    if (is_at(p, "(")) {
        n = parse_items(p, n, ")", parse_argument);
    } else if (begins_argument(p)) {
        if (is_at(p, "is")) return unexpected(p, "no second test");
        add_node(p, &n->item, parse_postfix(p, parse_primary(p)));
        n = end_node(p, n);
    }
    return negated ? with(p, DQ_JINJA_NOT, n, NULL) : n;
}

static node *parse_unary(parser *p, bool with_filters)
{
    const bool minus = is_at(p, "-");
    node *n;
    if (!deeper(p)) return &p->none;
    if (minus || is_at(p, "+")) {
        advance(p);
        n = with(p, DQ_JINJA_SIGN, parse_unary(p, false), NULL);
        n->operation = minus ? DQ_JINJA_SUBTRACT : DQ_JINJA_ADD;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (with_filters) {
        if (is_at(p, "|"))
            n = parse_filter(p, n);
        else if (is_at(p, "is"))
            n = parse_test(p, n);
        else if (is_at(p, "("))
            n = parse_call(p, n);
        else
            break;
    }
    p->r->depth--;
    return n;
}

typedef struct operator_row {
    const char *sign;
    dq_jinja_operation operation;
} operator_row;

static const operator_row *find_operator(const parser *p, const operator_row *row)
{
    while (row->sign && !is_at(p, row->sign)) row++;
    return row->sign ? row : NULL;
}

/* Left-associative operators of `rows` between operands parsed by `next`. */
static node *parse_chain(parser *p, const operator_row *rows, node *next(parser *))
{
    node *a = next(p);
    for (const operator_row *row; (row = find_operator(p, rows));) {
        advance(p);
        a = with(p, DQ_JINJA_ARITHMETIC, a, next(p));
        a->operation = row->operation;
    }
    return a;
}

static node *parse_factor(parser *p)
{
    return parse_unary(p, true);
}

static node *parse_power(parser *p)
{
    static const operator_row rows[] = {{"**", DQ_JINJA_POWER}, {0}};
    return parse_chain(p, rows, parse_factor);
}

static node *parse_product(parser *p)
{
    static const operator_row rows[] = {{"*", DQ_JINJA_MULTIPLY},
                                        {"/", DQ_JINJA_DIVIDE},
                                        {"//", DQ_JINJA_FLOOR_DIVIDE},
                                        {"%", DQ_JINJA_MODULO},
                                        {0}};
    return parse_chain(p, rows, parse_power);
}

static node *parse_join(parser *p)
{
    node *a = parse_product(p), *n = NULL;
    if (!is_at(p, "~")) return a;
    n = new_node(p, DQ_JINJA_JOIN);
    add_node(p, &n->item, a);
    while (skip(p, "~")) add_node(p, &n->item, parse_product(p));
    return end_node(p, n);
}

static node *parse_sum(parser *p)
{
    static const operator_row rows[] = {{"+", DQ_JINJA_ADD}, {"-", DQ_JINJA_SUBTRACT}, {0}};
    return parse_chain(p, rows, parse_join);
}

static node *parse_compare(parser *p)
{
    static const operator_row rows[] = {
        {"==", DQ_JINJA_EQUAL},       {"!=", DQ_JINJA_NOT_EQUAL}, {"<", DQ_JINJA_LESS},
        {"<=", DQ_JINJA_NOT_GREATER}, {">", DQ_JINJA_GREATER},    {">=", DQ_JINJA_NOT_LESS},
        {"in", DQ_JINJA_IN},          {"not", DQ_JINJA_NOT_IN},   {0}};
    node *a = parse_sum(p), *n = NULL;
    for (const operator_row *row; (row = find_operator(p, rows));) {
        const bool negated = row->operation == DQ_JINJA_NOT_IN;
        if (negated && !is_word(p->t + 1, "in")) break;
        advance(p);
        if (negated) advance(p);
        if (!n) n = with(p, DQ_JINJA_COMPARE, a, NULL);
        node *operand = with(p, DQ_JINJA_OPERAND, parse_sum(p), NULL);
        operand->operation = row->operation;
        add_node(p, &n->item, operand);
    }
    return n ? end_node(p, n) : a;
}

static node *parse_not(parser *p)
{
    int negations = 0;
    while (skip(p, "not")) negations++;
    node *n = parse_compare(p);
    while (negations-- > 0) n = with(p, DQ_JINJA_NOT, n, NULL);
    return n;
}

static node *parse_and(parser *p)
{
    node *a = parse_not(p);
    while (skip(p, "and")) a = with(p, DQ_JINJA_AND, a, parse_not(p));
    return a;
}

static node *parse_condition(parser *p)
{
    node *a = parse_and(p);
    while (skip(p, "or")) a = with(p, DQ_JINJA_OR, a, parse_and(p));
    return a;
}

static node *parse_expression(parser *p)
{
    const node *missing = p->missing;
    if (!deeper(p)) return &p->none;
    node *a = parse_condition(p);
    while (skip(p, "if")) {
        a = with(p, DQ_JINJA_IF_ELSE, a, parse_condition(p));
        if (skip(p, "else")) a->c = parse_expression(p);
        a = end_node(p, a);
        p->missing = missing; /* what does not exist matters where it is used */
    }
    p->r->depth--;
    return a;
}

/* One expression or several with commas; is_condition: no a if b else c. */
static node *parse_tuple(parser *p, bool is_condition)
{
    node *(*const one)(parser *) = is_condition ? parse_condition : parse_expression;
    node *a = one(p), *n = NULL;
    if (!is_at(p, ",")) return a;
    n = new_node(p, DQ_JINJA_TUPLE_OF);
    add_node(p, &n->item, a);
    while (skip(p, ",")) {
        if (is_at(p, ")") || p->t->kind == DQ_JINJA_PRINT_END || p->t->kind == DQ_JINJA_BLOCK_END)
            break;
        add_node(p, &n->item, one(p));
    }
    return end_node(p, n);
}
/* A row of `tags` is a tag with its parser, which starts after the tag's name and ends after its
 * own or the closing tag. */

static void parse_statements(parser *p, dq_jinja_nodes *out, const char *const *ends);

/* Finishes the current tag and parses up to a tag of `ends`, stopping at its name. */
static void parse_body(parser *p, dq_jinja_nodes *out, const char *const *ends)
{
    skip(p, ":"); /* as in Python */
    if (p->t->kind != DQ_JINJA_BLOCK_END) unexpected(p, "%}");
    advance(p);
    if (deeper(p)) parse_statements(p, out, ends);
    p->r->depth--;
}

/* The same for a body with its own names and so many loops around it. */
static void parse_inner(parser *p, dq_jinja_nodes *out, const char *const *ends, int loops)
{
    const bool was_branch = p->is_branch;
    const int had = p->loops;
    p->is_branch = false;
    p->loops = loops;
    parse_body(p, out, ends);
    p->is_branch = was_branch;
    p->loops = had;
}

static node *parse_target(parser *p, bool with_namespace, const char *end);

static node *parse_target_one(parser *p, bool with_namespace)
{
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None"};
    node *n = new_node(p, DQ_JINJA_VARIABLE);
    if (is_at(p, "(") && deeper(p)) {
        advance(p);
        n = parse_target(p, with_namespace, ")");
        expect(p, ")");
        p->r->depth--;
        return n;
    }
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
        if (is_at(p, constants[i])) unexpected(p, "a name");
    }
    if (p->loops && is_at(p, "loop")) unexpected(p, "another name within a loop");
    n->name = take_name(p);
    if (!with_namespace || !skip(p, ".")) return n;
    node *attribute = new_node(p, DQ_JINJA_ATTRIBUTE);
    attribute->a = n;
    attribute->name = take_name(p);
    return attribute;
}

/* Names with commas, up to the word `end`. */
static node *parse_target(parser *p, bool with_namespace, const char *end)
{
    node *one = parse_target_one(p, with_namespace), *n = NULL;
    if (!is_at(p, ",")) return one;
    n = new_node(p, DQ_JINJA_TUPLE_OF);
    add_node(p, &n->item, one);
    while (skip(p, ",") && !is_at(p, end))
        add_node(p, &n->item, parse_target_one(p, with_namespace));
    return end_node(p, n);
}

static void parse_for(parser *p, node *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->kind = DQ_JINJA_FOR;
    p->loops++;
    n->a = parse_target(p, false, "in");
    p->loops--;
    expect(p, "in");
    n->b = parse_tuple(p, true);
    if (skip(p, "if")) n->c = parse_expression(p);
    if (is_at(p, "recursive")) fail_at(p, DQ_MISMATCH, "a recursive loop is not supported");
    parse_inner(p, &n->body, ends, p->loops + 1);
    if (skip(p, "else")) parse_inner(p, &n->item, ends, p->loops);
    expect(p, "endfor");
}

static void parse_if(parser *p, node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    node *const first = n;
    const bool was = p->is_branch;
    int depth = 0;
    p->is_branch = true;
    for (bool more = true; more;) {
        n->kind = DQ_JINJA_IF;
        n->a = parse_tuple(p, true);
        parse_body(p, &n->body, ends);
        more = skip(p, "elif");
        if (!more && skip(p, "else")) parse_body(p, &n->item, ends + 2);
        end_node(p, n);
        if (n->depth > depth) depth = n->depth;
        node *next = more ? new_node(p, DQ_JINJA_IF) : NULL;
        n->c = next;
        n = next;
    }
    expect(p, "endif");
    first->depth = depth; /* a chain of elif is not walked by recursion */
    p->is_branch = was;
}

static void parse_set(parser *p, node *n)
{
    static const char *const ends[] = {"endset", NULL};
    n->a = parse_target(p, true, "=");
    if (skip(p, "=")) {
        n->kind = DQ_JINJA_SET;
        n->b = parse_tuple(p, false);
        return;
    }
    n->kind = DQ_JINJA_SET_TEXT;
    n->b = parse_filters(p, new_node(p, DQ_JINJA_CAPTURED));
    parse_inner(p, &n->body, ends, p->loops);
    expect(p, "endset");
}

static void parse_macro(parser *p, node *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    bool with_default = false;
    n->kind = DQ_JINJA_MACRO_OF;
    n->name = take_name(p);
    p->macros++;
    expect(p, "(");
    while (dq_jinja_ok(p->r) && !skip(p, ")")) {
        if (n->item.n) expect(p, ",");
        node *one = new_node(p, DQ_JINJA_PARAMETER);
        one->name = take_name(p);
        if (skip(p, "="))
            one->a = parse_expression(p);
        else if (with_default)
            unexpected(p, "a default, as before");
        with_default = one->a != NULL;
        add_node(p, &n->item, end_node(p, one));
    }
    parse_inner(p, &n->body, ends, 0);
    p->macros--;
    expect(p, "endmacro");
}

/* Marks for training are plain text here. */
static void parse_generation(parser *p, node *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    n->kind = DQ_JINJA_SCOPE;
    parse_inner(p, &n->body, ends, 0);
    expect(p, "endgeneration");
}

static void parse_break(parser *p, node *n)
{
    n->kind = DQ_JINJA_LEAVE;
    if (!p->loops) fail_at(p, DQ_DAMAGED, "break and continue need a loop");
}

static void parse_continue(parser *p, node *n)
{
    parse_break(p, n);
    n->value = dq_jinja_bool(true);
}

static const struct {
    const char *name;
    void (*parse)(parser *p, node *n); /* NULL: not supported */
} tags[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"generation", parse_generation},
    {"break", parse_break},
    {"continue", parse_continue},
    {"autoescape", NULL},
    {"block", NULL},
    {"call", NULL},
    {"extends", NULL},
    {"filter", NULL},
    {"from", NULL},
    {"import", NULL},
    {"include", NULL},
    {"print", NULL},
    {"with", NULL},
};

static node *parse_tag(parser *p)
{
    node *n = new_node(p, DQ_JINJA_SET);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        if (p->t->kind != DQ_JINJA_NAME || !is_at(p, tags[i].name)) continue;
        if (!tags[i].parse)
            return fail_at(p, DQ_MISMATCH, "the tag \"%s\" is not supported", tags[i].name);
        advance(p);
        tags[i].parse(p, n);
        if (p->t->kind != DQ_JINJA_BLOCK_END) unexpected(p, "%}");
        advance(p);
        return n->kind == DQ_JINJA_IF ? n : end_node(p, n);
    }
    return unexpected(p, "a tag");
}

static node *parse_output(parser *p)
{
    node *n = new_node(p, DQ_JINJA_OUTPUT);
    n->a = parse_tuple(p, false);
    if (p->t->kind != DQ_JINJA_PRINT_END) unexpected(p, "}}");
    advance(p);
    return end_node(p, n);
}

static bool is_end(const parser *p, const char *const *ends)
{
    while (ends && *ends && !is_at(p, *ends)) ends++;
    return ends && *ends;
}

/* Up to a tag of the list, at whose name it stops; NULL: to the end of the template. */
static void parse_statements(parser *p, dq_jinja_nodes *out, const char *const *ends)
{
    while (p->t->kind != DQ_JINJA_END) {
        node *n = new_node(p, DQ_JINJA_TEXT);
        const dq_jinja_token_kind kind = p->t->kind;
        n->name = p->t->text;
        advance(p);
        if (kind == DQ_JINJA_PRINT_BEGIN) n = parse_output(p);
        if (kind == DQ_JINJA_BLOCK_BEGIN) {
            if (is_end(p, ends)) return;
            n = parse_tag(p);
        }
        add_node(p, out, n);
    }
    if (ends) unexpected(p, *ends);
}

dq_jinja_nodes dq_jinja_parse(dq_jinja_run *r, const char *text, size_t len)
{
    dq_jinja_nodes out = {0};
    parser p = {.r = r, .t = lex(r, text, len)};
    if (!dq_jinja_ok(r)) return out;
    parse_statements(&p, &out, NULL);
    if (p.missing) {
        r->line = p.missing->line;
        dq_jinja_fail(r, DQ_DAMAGED, "there is no filter or test \"%.*s\"", (int)p.missing->name.n,
                      p.missing->name.s);
    }
    return out;
}
