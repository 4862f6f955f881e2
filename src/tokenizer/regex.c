/* One walk over the pattern by recursive descent, without a tree: what has been read is written at
 * once in PCRE2's syntax. The reference runs Oniguruma with Ruby syntax, and the two differ where
 * they look alike: - \s, \d, \w and \p{..} are sets of Unicode there; scripts mean the script
 * itself, not its extensions. - A class may nest, intersect (&&) and name POSIX sets; here they
 * are written out or refused. - X{n,m}+ repeats a group there and is possessive here; ^ and $ are
 * anchors of lines whatever the options say. - Case folding may join two letters there, never
 * here: a literal under (?i) that could fold so is refused. Everything that is not known to mean
 * the same in both is refused by name; nothing is passed on in hope.
 * SPDX-License-Identifier: MIT */
#include "base/os.h"
#include "base/text.h"
#include "tokenizer/inside.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_PATTERN = 1 << 16,
    MAX_DEPTH = 200,
    GROWTH = 64 /* most output bytes for one input byte */
};

#define WORD_ITEMS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Oniguruma's \w outside a class follows ISO 8859-1 below U+0100, where six numbers are letters. */
#define WORD_ALONE WORD_ITEMS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

typedef enum { NOTHING, ATOM, FIXED } last_item; /* FIXED: may not be repeated (again) */

typedef struct group {
    size_t start; /* in the output */
    bool fold;    /* inside (?i: */
    bool look;    /* look-around */
} group;

typedef struct translator {
    const char *in;
    size_t len, at;
    char *out;
    size_t used;
    size_t atom; /* where the last item begins in the output */
    last_item last;
    char letter; /* the last item if it was one lower-case ASCII letter in a (?i: group, else 0 */
    group stack[MAX_DEPTH];
    int depth;
    dq_err *err;
} translator;

static dq_status refuse(translator *t, const char *what)
{
    return dq_fail(t->err, DQ_MISMATCH, "pattern \"%.*s\" is not supported: %s (at byte %zu)",
                   (int)(t->len < 300 ? t->len : 300), t->in, what, t->at);
}

static void emit(translator *t, const char *s)
{
    size_t n = strlen(s);
    memcpy(t->out + t->used, s, n);
    t->used += n;
}

static void emit_code(translator *t, uint32_t c)
{
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", (unsigned)c);
    emit(t, text);
}

static bool folding(const translator *t)
{
    return t->depth > 0 && t->stack[t->depth - 1].fold;
}

static int peek(const translator *t, size_t ahead)
{
    return t->at + ahead < t->len ? (unsigned char)t->in[t->at + ahead] : -1;
}

static void begin_atom(translator *t)
{
    t->atom = t->used;
    t->last = ATOM;
    t->letter = 0;
}

static bool is_category(const char *name, size_t n)
{
    static const char *const names[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me",
                                        "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi",
                                        "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl",
                                        "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return true;
    }
    return false;
}

/* A bare script name means the script in the reference, but its extensions in PCRE2. */
static dq_status property(translator *t, char kind)
{
    char name[40], text[64];
    size_t n = 0;
    bool negated = false;
    if (peek(t, 0) != '{') return refuse(t, "a property needs braces");
    t->at++;
    if (peek(t, 0) == '^') {
        negated = true;
        t->at++;
    }
    while (peek(t, 0) != '}') {
        int c = peek(t, 0);
        bool ok = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!ok || n + 1 >= sizeof name) return refuse(t, "this property name");
        name[n++] = (char)c;
        t->at++;
    }
    t->at++;
    name[n] = 0;
    if (folding(t) && n == 2 && name[0] == 'L' && strchr("ult", name[1]))
        return refuse(t, "a property of case inside (?i:");
    snprintf(text, sizeof text, "\\%c{%s%s%s}", kind, negated ? "^" : "",
             is_category(name, n) ? "" : "sc:", name);
    emit(t, text);
    return DQ_OK;
}

static int hex_value(int c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* \xHH, \x{H...} and \uHHHH, with t->at after the letter. */
static dq_status code_escape(translator *t, char kind)
{
    uint32_t c = 0;
    size_t digits = 0, want = kind == 'u' ? 4 : 2;
    bool braces = kind == 'x' && peek(t, 0) == '{';
    if (braces) {
        t->at++;
        want = 6;
    }
    for (int v; digits < want && (v = hex_value(peek(t, 0))) >= 0; digits++, t->at++)
        c = c << 4 | (uint32_t)v;
    if (braces) {
        if (peek(t, 0) != '}') return refuse(t, "this \\x escape");
        t->at++;
    }
    if (digits == 0 || (kind == 'u' && digits < 4) || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) ||
        (kind == 'x' && !braces && c >= 0x80))
        return refuse(t, "this character escape");
    if (folding(t) && c >= 0x80) return refuse(t, "a character above U+007F inside (?i:");
    emit_code(t, c);
    return DQ_OK;
}

/* *done: c is an escape for a set of characters. */
static dq_status set_escape(translator *t, char c, bool in_class, bool *done)
{
    *done = true;
    switch (c) {
    case 's': emit(t, "\\p{White_Space}"); return DQ_OK;
    case 'S': emit(t, "\\P{White_Space}"); return DQ_OK;
    case 'd': emit(t, "\\p{Nd}"); return DQ_OK;
    case 'D': emit(t, "\\P{Nd}"); return DQ_OK;
    case 'w': emit(t, in_class ? WORD_ITEMS : "[" WORD_ALONE "]"); return DQ_OK;
    case 'W':
        if (in_class) return refuse(t, "\\W inside a class");
        emit(t, "[^" WORD_ALONE "]");
        return DQ_OK;
    case 'p':
    case 'P': return property(t, c);
    default: *done = false; return DQ_OK;
    }
}

static dq_status escape(translator *t, bool in_class)
{
    int next = peek(t, 1);
    char c = (char)next, text[3] = {'\\', c, 0};
    bool done;
    if (next < 0) return refuse(t, "it ends in a backslash");
    t->at += 2;
    DQ_TRY(set_escape(t, c, in_class, &done));
    if (done) return DQ_OK;
    switch (c) {
    case 'x':
    case 'u': return code_escape(t, c);
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'a':
    case 'e': emit(t, text); return DQ_OK;
    case 'v': emit(t, "\\x{b}"); return DQ_OK;
    case 'A':
    case 'z':
        if (in_class) break;
        emit(t, text);
        t->last = FIXED;
        return DQ_OK;
    default: break;
    }
    if (next >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))
        return refuse(t, "this escape");
    emit_code(t, (uint32_t)next);
    return DQ_OK;
}

/* Nested classes, intersections and POSIX names exist in the reference; PCRE2 reads them as plain
 * characters. */
static dq_status class(translator *t)
{
    begin_atom(t);
    emit(t, "[");
    t->at++;
    if (peek(t, 0) == '^') {
        emit(t, "^");
        t->at++;
    }
    if (peek(t, 0) == ']') return refuse(t, "a class that begins with ]");
    for (;;) {
        int c = peek(t, 0), next = peek(t, 1);
        if (c < 0) return refuse(t, "a class without end");
        if (c == ']') break;
        if (c == '[') return refuse(t, "a class inside a class");
        if ((c == '&' || c == '-' || c == '~') && next == c)
            return refuse(t, "operations on classes (&&, --, ~~)");
        if (folding(t) && c >= 0x80) return refuse(t, "a character above U+007F inside (?i:");
        if (c == '\\') {
            DQ_TRY(escape(t, true));
        } else {
            t->out[t->used++] = (char)c;
            t->at++;
        }
    }
    emit(t, "]");
    t->at++;
    return DQ_OK;
}

static dq_status open_group(translator *t)
{
    static const struct {
        const char *text;
        bool fold, look;
    } kinds[] = {{"(?:", false, false}, {"(?i:", true, false}, {"(?=", false, true},
                 {"(?!", false, true},  {"(?<=", false, true}, {"(?<!", false, true},
                 {"(?>", false, false}};
    group g = {t->used, folding(t), false};
    size_t n = 1;
    if (t->depth == MAX_DEPTH) return refuse(t, "too many nested groups");
    if (peek(t, 1) == '?') {
        n = 0;
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            size_t k = strlen(kinds[i].text);
            if (t->len - t->at < k || memcmp(t->in + t->at, kinds[i].text, k) != 0) continue;
            n = k;
            g.fold = g.fold || kinds[i].fold;
            g.look = kinds[i].look;
        }
        if (n == 0) return refuse(t, "this kind of group");
    }
    memcpy(t->out + t->used, t->in + t->at, n);
    t->used += n;
    t->at += n;
    t->stack[t->depth++] = g;
    t->last = NOTHING;
    t->letter = 0;
    return DQ_OK;
}

static dq_status close_group(translator *t)
{
    if (t->depth == 0) return refuse(t, "a ) without (");
    group g = t->stack[--t->depth];
    emit(t, ")");
    t->at++;
    t->atom = g.start;
    t->last = g.look ? FIXED : ATOM;
    t->letter = 0;
    return DQ_OK;
}

/* Length of {n}, {n,} or {n,m} at t->at, else 0. *fixed: it is {n}. */
static size_t interval(const translator *t, bool *fixed)
{
    size_t n = 1, digits = 0;
    *fixed = true;
    for (; peek(t, n) >= '0' && peek(t, n) <= '9'; n++) digits++;
    if (peek(t, n) == ',') {
        *fixed = false;
        for (n++; peek(t, n) >= '0' && peek(t, n) <= '9'; n++) digits++;
    }
    return digits && peek(t, n) == '}' ? n + 1 : 0;
}

static dq_status repeat(translator *t)
{
    if (t->last != ATOM) return refuse(t, "a repetition of nothing or of a repetition");
    t->letter = 0;
    if (peek(t, 0) == '{') {
        bool fixed;
        size_t n = interval(t, &fixed);
        if (peek(t, 1) == ',') return refuse(t, "a repetition without lower bound");
        memcpy(t->out + t->used, t->in + t->at, n);
        t->used += n;
        t->at += n;
        if (peek(t, 0) == '?') {
            if (fixed) return refuse(t, "{n}?");
            emit(t, "?");
            t->at++;
        } else if (peek(t, 0) == '+') {
            memmove(t->out + t->atom + 3, t->out + t->atom, t->used - t->atom);
            memcpy(t->out + t->atom, "(?:", 3);
            t->used += 3;
            emit(t, ")+");
            t->at++;
        }
        t->last = FIXED;
        return DQ_OK;
    }
    t->out[t->used++] = t->in[t->at++];
    if (peek(t, 0) == '+' || peek(t, 0) == '?') t->out[t->used++] = t->in[t->at++];
    t->last = FIXED;
    return DQ_OK;
}

static dq_status literal(translator *t)
{
    unsigned char c = (unsigned char)t->in[t->at];
    char before = t->letter, lower = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    size_t n = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (c == '{' || c == '}' || c == ']') {
        begin_atom(t);
        emit_code(t, c);
        t->at++;
        return DQ_OK;
    }
    begin_atom(t);
    if (folding(t)) {
        if (n > 1) return refuse(t, "a character above U+007F inside (?i:");
        if ((before == 's' && (lower == 's' || lower == 't')) ||
            (before == 'f' && (lower == 'f' || lower == 'i' || lower == 'l')))
            return refuse(t, "letters that fold into one inside (?i:");
        t->letter = lower;
    }
    memcpy(t->out + t->used, t->in + t->at, n);
    t->used += n;
    t->at += n;
    return DQ_OK;
}

/* Ruby's anchors match at lines. A final newline opens no further line for ^, but does for $. */
static void anchor(translator *t, const char *text)
{
    emit(t, text);
    t->at++;
    t->last = FIXED;
    t->letter = 0;
}

static dq_status item(translator *t)
{
    bool fixed;
    switch (t->in[t->at]) {
    case '\\': begin_atom(t); return escape(t, false);
    case '[': return class(t);
    case '(': return open_group(t);
    case ')': return close_group(t);
    case '|':
        emit(t, "|");
        t->at++;
        t->last = NOTHING;
        t->letter = 0;
        return DQ_OK;
    case '^': anchor(t, "(?:\\A|(?<=\\n)(?!\\z))"); return DQ_OK;
    case '$': anchor(t, "(?=\\n|\\z)"); return DQ_OK;
    case '*':
    case '+':
    case '?': return repeat(t);
    case '.':
        begin_atom(t);
        emit(t, ".");
        t->at++;
        return DQ_OK;
    case '{': return interval(t, &fixed) ? repeat(t) : literal(t);
    default: return literal(t);
    }
}

/* Rewrites what both engines read differently (\s, \w, \d, scripts, ^, $, X{n,m}+). DQ_MISMATCH
 * with construct and pattern: it cannot be rewritten faithfully. The result belongs to the
 * arena. */
static dq_status translate(char **out, size_t *out_len, const char *pattern, size_t len,
                           dq_arena *a, dq_err *err)
{
    translator *t = dq_alloc(a, 1, sizeof *t, err);
    if (!t) return err->code;
    t->in = pattern;
    t->len = len;
    t->err = err;
    if (len > MAX_PATTERN) return refuse(t, "it is longer than 65536 bytes");
    if (memchr(pattern, 0, len)) return refuse(t, "it contains a NUL");
    t->out = dq_alloc(a, len + 1, GROWTH, err);
    if (!t->out) return err->code;
    while (t->at < len) DQ_TRY(item(t));
    if (t->depth) return refuse(t, "a ( without )");
    *out = t->out;
    *out_len = t->used;
    return DQ_OK;
}

static dq_status compile(pcre2_code **code, bool *jit, const char *text, size_t len,
                         const char *shown, size_t shown_len, dq_err *err)
{
    int number = 0;
    PCRE2_SIZE offset = 0;
    PCRE2_UCHAR message[160] = "";
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return dq_fail(err, DQ_RESOURCE, "out of memory (compiling a pattern)");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    *code = pcre2_compile((PCRE2_SPTR)text, len,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY |
                              PCRE2_USE_OFFSET_LIMIT,
                          &number, &offset, context);
    pcre2_compile_context_free(context);
    if (!*code) {
        pcre2_get_error_message(number, message, sizeof message);
        return dq_fail(err, number == PCRE2_ERROR_HEAP_FAILED ? DQ_RESOURCE : DQ_MISMATCH,
                       "pattern \"%.*s\" is not supported: PCRE2 says: %s",
                       (int)(shown_len < 300 ? shown_len : 300), shown, (const char *)message);
    }
    *jit = pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE) == 0;
    return DQ_OK;
}

dq_status dq_regex_syntax_compile(pcre2_code **code, bool *jit, const char *pattern, size_t len,
                                  bool literal, dq_arena *a, dq_err *err)
{
    char *text = NULL;
    size_t n = 0;
    *code = NULL;
    if (!literal) {
        DQ_TRY(translate(&text, &n, pattern, len, a, err));
        return compile(code, jit, text, n, pattern, len, err);
    }
    if (len > MAX_PATTERN)
        return dq_fail(err, DQ_MISMATCH, "a pattern longer than 65536 bytes is not supported");
    text = dq_alloc(a, len + 1, GROWTH, err);
    if (!text) return err->code;
    for (size_t i = 0, used; i < len; i += used)
        n += (size_t)snprintf(text + n, GROWTH, "\\x{%x}",
                              (unsigned)dq_utf8_first(pattern + i, &used));
    return compile(code, jit, text, n, pattern, len, err);
}

/* PCRE2 limits backtracking per start of a match, the reference per call: starts are tried in
 * windows with few steps each; where those do not suffice, one by one from a budget for the
 * text. */

enum {
    JIT_STACK = 128 << 20,
    WINDOW = 4096,      /* bytes where a match may begin that are tried with one call */
    FEW_STEPS = 4096,   /* backtracking steps at one beginning that cost nothing */
    STEPS = 64 << 20,   /* further ones that one text may cost ... */
    STEPS_PER_BYTE = 64 /* ... and for each of its bytes */
};

static dq_status no_memory(dq_err *err)
{
    return dq_fail(err, DQ_RESOURCE, "out of memory (matching a pattern)");
}

dq_status dq_regex_begin(dq_regex_matcher *m, size_t len, dq_err *err)
{
    m->at = m->done = 0;
    m->any = false;
    m->limit = 0;
    m->window = 0;
    m->steps = STEPS + STEPS_PER_BYTE * (uint64_t)len;
    if (!m->context) m->context = pcre2_match_context_create(NULL);
    if (!m->context) return no_memory(err);
    if (!m->data) m->data = pcre2_match_data_create(1, NULL);
    if (!m->data) return no_memory(err);
    return DQ_OK;
}

static int match_once(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len)
{
    if (r->jit)
        return pcre2_jit_match(r->code, (PCRE2_SPTR)text, len, m->at, 0, m->data, m->context);
    return pcre2_match(r->code, (PCRE2_SPTR)text, len, m->at, PCRE2_NO_UTF_CHECK, m->data,
                       m->context);
}

static dq_status refused(int rc, size_t len, dq_err *err)
{
    PCRE2_UCHAR message[160] = "";
    pcre2_get_error_message(rc, message, sizeof message);
    return dq_fail(
        err, DQ_RESOURCE,
        "matching the tokenizer's pattern on a piece of %zu bytes failed: PCRE2 says: %s", len,
        (const char *)message);
}

/* Searches starts from m->at to `last` with `limit` steps each; *rc: PCRE2's code. */
static dq_status match_from(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                            size_t last, uint32_t steps, int *rc, dq_err *err)
{
    if (last != m->last || steps != m->limit) {
        DQ_TRY(dq_os_check_stop(err));
        pcre2_set_offset_limit(m->context, m->last = last);
        pcre2_set_match_limit(m->context, m->limit = steps);
    }
    *rc = match_once(m, r, text, len);
    if (*rc == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) {
        /* The machine stack sufficed until now; only used pages of this one become resident. */
        m->stack = pcre2_jit_stack_create((size_t)64 << 10, JIT_STACK, NULL);
        if (!m->stack) return no_memory(err);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        *rc = match_once(m, r, text, len);
    }
    if (*rc >= 0 || *rc == PCRE2_ERROR_NOMATCH || *rc == PCRE2_ERROR_MATCHLIMIT) return DQ_OK;
    return refused(*rc, len, err);
}

static size_t next_character(const char *text, size_t len, size_t at)
{
    size_t used = 1;
    if (at < len) dq_utf8_first(text + at, &used);
    return at + used;
}

/* One start at a time up to `last`. PCRE2 does not report steps: only those of failed tries are
 * counted, at most four times too few. */
static dq_status match_each(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                            size_t last, int *rc, dq_err *err)
{
    for (*rc = PCRE2_ERROR_NOMATCH; m->at <= last; m->at = next_character(text, len, m->at)) {
        for (uint32_t steps = FEW_STEPS;; steps *= 4) {
            DQ_TRY(match_from(m, r, text, len, m->at, steps, rc, err));
            if (*rc != PCRE2_ERROR_MATCHLIMIT) break;
            if (steps > m->steps || steps > UINT32_MAX / 4) return refused(*rc, len, err);
            m->steps -= steps;
        }
        if (*rc >= 0) break;
    }
    return DQ_OK;
}

static dq_status match(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                       bool *found, dq_err *err)
{
    for (*found = false; !*found && m->at <= len;) {
        int rc;
        if (m->limit == 0 || m->at > m->window) {
            m->window = len - m->at > WINDOW ? m->at + WINDOW : len;
            while (m->window < len && !dq_utf8_begins(text[m->window])) m->window++;
        }
        DQ_TRY(match_from(m, r, text, len, m->window, FEW_STEPS, &rc, err));
        if (rc == PCRE2_ERROR_MATCHLIMIT) DQ_TRY(match_each(m, r, text, len, m->window, &rc, err));
        *found = rc >= 0;
        if (!*found) m->at = next_character(text, len, m->window);
    }
    return DQ_OK;
}

dq_status dq_regex_next(dq_regex_matcher *m, const dq_regex *r, const char *text, size_t len,
                        size_t *begin, size_t *end, bool *found, dq_err *err)
{
    *found = false;
    while (m->at <= len) {
        DQ_TRY(match(m, r, text, len, found, err));
        if (!*found) return DQ_OK;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        *begin = span[0];
        *end = span[1];
        if (*begin < *end || !m->any || *end != m->done) {
            m->at = m->done = *end;
            m->any = true;
            return DQ_OK;
        }
        m->at = next_character(text, len, m->at);
    }
    *found = false;
    return DQ_OK;
}

void dq_regex_end(dq_regex_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (dq_regex_matcher){0};
}

size_t dq_regex_find_text(const char *text, size_t len, size_t at, const char *part,
                          size_t part_len)
{
    while (at < len && len - at >= part_len) {
        const char *hit = memchr(text + at, part[0], len - at - (part_len - 1));
        if (!hit) break;
        if (memcmp(hit, part, part_len) == 0) return (size_t)(hit - text);
        at = (size_t)(hit - text) + 1;
    }
    return SIZE_MAX;
}
