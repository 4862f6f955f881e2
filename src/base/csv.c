/* csv: see csv.h. One record at a time, character by character, into a buffer that the caller has sized to the
 * text: fields become shorter when quotes are taken off, never longer. Quotes may hold line ends.
 * SPDX-License-Identifier: MIT */
#include "base/csv.h"

#include <string.h>

/* The field at c->at, which begins with a quote. */
static dq_status quoted_field(dq_csv *c, char *out, size_t *n, dq_err *err)
{
    const long long begin = c->line;
    for (c->at++; c->at < c->n; c->at++) {
        char x = c->s[c->at];
        if (x == '"') {
            if (c->at + 1 >= c->n || c->s[c->at + 1] != '"') break;
            c->at++; /* two quotes are one */
        }
        c->line += x == '\n';
        out[(*n)++] = x;
    }
    if (c->at >= c->n)
        return dq_fail(err, DQ_DAMAGED, "line %lld: the quoted field that begins here has no end",
                       begin);
    c->at++;
    if (c->at < c->n && c->s[c->at] == '\r') c->at++;
    if (c->at < c->n && c->s[c->at] != ',' && c->s[c->at] != '\n')
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: text after a closing quote (expected a comma or the end of the "
                       "line)",
                       (long long)c->line);
    return DQ_OK;
}

static dq_status plain_field(dq_csv *c, char *out, size_t *n, dq_err *err)
{
    for (; c->at < c->n && c->s[c->at] != ',' && c->s[c->at] != '\n'; c->at++) {
        if (c->s[c->at] == '"')
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: a quote inside a field that does not begin with one",
                           (long long)c->line);
        out[(*n)++] = c->s[c->at];
    }
    bool ends = c->at >= c->n || c->s[c->at] == '\n';
    if (ends && *n > 0 && out[*n - 1] == '\r') --*n;
    return DQ_OK;
}

dq_status dq_csv_record(dq_csv *c, char *out, const char **field, int want, int *have, dq_err *err)
{
    bool last = false;
    for (*have = 0; !last; ++*have) {
        size_t n = 0;
        if (c->at < c->n && c->s[c->at] == '"')
            DQ_TRY(quoted_field(c, out, &n, err));
        else
            DQ_TRY(plain_field(c, out, &n, err));
        if (memchr(out, 0, n))
            return dq_fail(err, DQ_DAMAGED, "line %lld: contains a NUL", (long long)c->line);
        out[n] = 0;
        if (*have < want) field[*have] = out;
        out += n + 1;
        last = c->at >= c->n || c->s[c->at] == '\n';
        if (c->at < c->n) c->line += c->s[c->at++] == '\n';
    }
    return DQ_OK;
}
