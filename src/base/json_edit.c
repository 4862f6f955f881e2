/* json_edit: one walk over the text, which counts brackets outside of strings and remembers where members of depth one
 * begin and end. The text is JSON already, so that nothing is checked.
 * SPDX-License-Identifier: MIT */
#include "base/json_edit.h"

#include <string.h>

/* Offsets into the text; npos: there is none. */
typedef struct places {
    size_t comma;         /* before the member found, npos: it is the first */
    size_t begin, at;     /* of the member's key, and of its value; npos: there is no such member */
    size_t end;           /* after its value */
    size_t next;          /* the comma after it, npos: it is the last */
    size_t last, closing; /* after the last member (npos: there is none), and the last bracket */
} places;
static const size_t npos = (size_t)-1;

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_blank(const char *s, size_t i, size_t len)
{
    while (i < len && is_blank(s[i])) i++;
    return i;
}

/* After the string that begins at s[i]. */
static size_t skip_string(const char *s, size_t i, size_t len)
{
    for (i++; i < len && s[i] != '"'; i++) i += s[i] == '\\';
    return i + 1;
}

/* After the value that begins at s[i]. */
static size_t skip_value(const char *s, size_t i, size_t len)
{
    int depth = 0;
    while (i < len) {
        if (s[i] == '"') {
            i = skip_string(s, i, len);
            if (depth == 0) return i;
            continue;
        }
        if (depth == 0 && (s[i] == ',' || s[i] == '}' || s[i] == ']' || is_blank(s[i]))) return i;
        depth += s[i] == '{' || s[i] == '[';
        depth -= s[i] == '}' || s[i] == ']';
        i++;
        if (depth == 0 && (s[i - 1] == '}' || s[i - 1] == ']')) return i;
    }
    return len;
}

static places find(const char *s, size_t len, const char *key)
{
    places p = {npos, npos, npos, npos, npos, npos, len};
    const size_t n = strlen(key);
    size_t comma = npos, i = 0;
    while (i < len && s[i] != '{') i++;
    for (i = skip_blank(s, i + 1, len); i < len && s[i] == '"';) {
        const size_t begin = i, after = skip_string(s, i, len);
        const bool found = after - begin == n + 2 && memcmp(s + begin + 1, key, n) == 0;
        const size_t colon = skip_blank(s, after, len), at = skip_blank(s, colon + 1, len);
        const size_t end = skip_value(s, at, len), next = skip_blank(s, end, len);
        const bool more = next < len && s[next] == ',';
        if (found) {
            p.comma = comma;
            p.begin = begin;
            p.at = at;
            p.end = end;
            p.next = more ? next : npos;
        }
        p.last = end;
        comma = next;
        i = more ? skip_blank(s, next + 1, len) : next;
    }
    p.closing = i < len ? i : len;
    return p;
}

static dq_status add(dq_strbuf *out, const char *s, dq_err *err)
{
    return dq_strbuf_add(out, s, strlen(s), err);
}

/* The lines after the first stand as members of the object do. */
static dq_status add_value(dq_strbuf *out, const char *s, dq_err *err)
{
    for (const char *end; (end = strchr(s, '\n')); s = end + 1) {
        DQ_TRY(dq_strbuf_add(out, s, (size_t)(end - s) + 1, err));
        DQ_TRY(add(out, "  ", err));
    }
    return add(out, s, err);
}

/* Without the member, and without one of the commas beside it. */
static dq_status leave_out(dq_strbuf *out, const char *s, size_t len, const places *p, dq_err *err)
{
    size_t from = p->begin, to = p->end;
    if (p->comma != npos)
        from = p->comma;
    else if (p->next != npos)
        to = skip_blank(s, p->next + 1, len);
    DQ_TRY(dq_strbuf_add(out, s, from, err));
    return dq_strbuf_add(out, s + to, len - to, err);
}

dq_status dq_json_edit_member(dq_strbuf *out, const char *text, size_t len, const char *key,
                              const char *value, dq_err *err)
{
    const places p = find(text, len, key);
    const bool found = p.begin != npos;
    if (!value && !found) return dq_strbuf_add(out, text, len, err);
    if (!value) return leave_out(out, text, len, &p, err);
    const size_t from = found ? p.at : p.last != npos ? p.last : p.closing;
    const size_t to = found ? p.end : from;
    DQ_TRY(dq_strbuf_add(out, text, from, err));
    if (!found) {
        DQ_TRY(add(out, p.last != npos ? ",\n  \"" : "\n  \"", err));
        DQ_TRY(add(out, key, err));
        DQ_TRY(add(out, "\": ", err));
    }
    DQ_TRY(add_value(out, value, err));
    return dq_strbuf_add(out, text + to, len - to, err);
}
