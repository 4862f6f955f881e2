/* compare: the common beginning stands once; the rest is cut into lines at spaces, in two columns by the width that a terminal
 * gives characters.
 * SPDX-License-Identifier: MIT */
#include "cmds/generate/compare.h"

#include "base/text.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { COLUMN = 48 };

static int32_t id_at(const dq_writer_text *t, int64_t i)
{
    return i < t->n ? t->ids[i] : -1;
}

dq_status dq_compare_texts(dq_compare_parting *out, dq_conversation side[2], dq_err *err)
{
    const dq_writer_text *a = &side[0].text, *b = &side[1].text;
    *out = (dq_compare_parting){.id = {-1, -1}};
    while (out->same < a->n && out->same < b->n && a->ids[out->same] == b->ids[out->same])
        out->same++;
    out->parts = out->same < a->n || out->same < b->n;
    for (int i = 0; i < 2; i++) {
        out->id[i] = id_at(&side[i].text, out->same);
        for (int k = 0; k < 2; k++) out->p[i][k] = (double)NAN;
    }
    if (!out->parts) return DQ_OK;
    const int32_t known = out->id[0] >= 0 ? out->id[0] : out->id[1];
    const int32_t asked[2] = {out->id[0] >= 0 ? out->id[0] : known,
                              out->id[1] >= 0 ? out->id[1] : known};
    for (int i = 0; i < 2; i++) {
        double logp[2];
        DQ_TRY(dq_conversation_probe(logp, &side[i], out->same, asked, err));
        for (int k = 0; k < 2; k++) {
            if (out->id[k] >= 0) out->p[i][k] = exp(logp[k]);
        }
    }
    return DQ_OK;
}

json_t *dq_compare_json(const dq_compare_parting *p)
{
    json_t *o = json_object(), *ids = json_array(), *rows = json_array();
    json_object_set_new(o, "equal_tokens", json_integer(p->same));
    json_object_set_new(o, "parts", json_boolean(p->parts));
    for (int i = 0; i < 2; i++) {
        json_t *row = json_array();
        json_array_append_new(ids, p->id[i] < 0 ? json_null() : json_integer(p->id[i]));
        for (int k = 0; k < 2; k++) json_array_append_new(row, dq_document_real(p->p[i][k]));
        json_array_append_new(rows, row);
    }
    json_object_set_new(o, "token_ids", ids);
    json_object_set_new(o, "probabilities", rows);
    return o;
}

/* ---- Columns ---- */

/* Bytes of the next line of s, and its width; a line ends at a newline, or at the last space that fits. */
static size_t next_line(const char *s, int *width)
{
    size_t end = 0, n = 0;
    int wide = 0;
    *width = 0;
    while (s[n] && s[n] != '\n') {
        utf8proc_int32_t c;
        utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s + n, -1, &c);
        if (len < 1) {
            len = 1;
            c = '?';
        }
        if (wide + utf8proc_charwidth(c) > COLUMN) break;
        wide += utf8proc_charwidth(c);
        n += (size_t)len;
        if (c == ' ') {
            end = n;
            *width = wide;
        }
    }
    if (!s[n] || s[n] == '\n' || end == 0) {
        *width = wide;
        return n;
    }
    return end;
}

static const char *print_cell(const char *s, bool pad)
{
    int width = 0;
    const size_t n = next_line(s, &width);
    fwrite(s, 1, n, stdout);
    if (pad) printf("%*s", COLUMN - width, "");
    s += n;
    return *s == '\n' ? s + 1 : s;
}

static void print_columns(const char *a, const char *b)
{
    while (*a || *b) {
        a = print_cell(a, true);
        fputs(" | ", stdout);
        b = print_cell(b, false);
        putchar('\n');
    }
}

/* Control characters and tabs would break the columns. Returns the new length, at most n. */
static size_t make_plain(char *s, size_t n)
{
    const size_t to = dq_utf8_plain(s, s, n);
    for (size_t i = 0; i < to; i++) {
        if (s[i] == '\t') s[i] = ' ';
    }
    return to;
}

/* ---- The whole ---- */

static dq_status print_token(const dq_conversation *t, int32_t id, dq_err *err)
{
    char *text;
    size_t len;
    if (id < 0) {
        printf("its end");
        return DQ_OK;
    }
    DQ_TRY(dq_conversation_text(&text, &len, t, &id, 1, DQ_TOK_SPECIAL, err));
    json_t *quoted = json_stringn(text, len);
    char *line = quoted ? json_dumps(quoted, JSON_ENCODE_ANY) : NULL;
    printf("%s", line ? line : "\"?\"");
    free(line);
    json_decref(quoted);
    dq_block_free(text);
    return DQ_OK;
}

static dq_status print_parting(const dq_compare_parting *p, const dq_conversation side[2],
                               dq_err *err)
{
    printf("\nThey part after %lld equal token%s:\n", (long long)p->same, p->same == 1 ? "" : "s");
    for (int i = 0; i < 2; i++) {
        printf("  %s writes ", side[i].lm.model->name);
        DQ_TRY(print_token(&side[i], p->id[i], err));
        if (p->id[i] >= 0) printf(", probability %.3f", p->p[i][i]);
        if (p->id[1 - i] >= 0) printf("; the other's has %.3f", p->p[i][1 - i]);
        putchar('\n');
    }
    return DQ_OK;
}

typedef struct answer {
    char *s; /* n bytes, and a NUL */
    size_t n;
} answer;

/* Bytes that two texts have in common, of whole characters. */
static size_t common(answer a, answer b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.s[n] == b.s[n]) n++;
    while (n > 0 && ((a.s[n] & 0xC0) == 0x80 || (b.s[n] & 0xC0) == 0x80)) n--;
    return n;
}

/* Empty lines at the end say nothing. */
static void end_text(answer *a)
{
    while (a->n > 0 && (a->s[a->n - 1] == ' ' || a->s[a->n - 1] == '\n')) a->n--;
    a->s[a->n] = 0;
}

static void print_texts(answer text[2], const dq_conversation side[2], bool parts)
{
    end_text(&text[0]);
    end_text(&text[1]);
    const size_t n = common(text[0], text[1]);
    for (int i = 0; i < 2; i++) text[i].s[n + make_plain(text[i].s + n, text[i].n - n)] = 0;
    const int plain = (int)make_plain(text[0].s, n);
    if (n) printf("%s:\n%.*s\n", parts ? "both" : "both, every token", plain, text[0].s);
    if (!parts) return;
    if (n) putchar('\n');
    print_columns(side[0].lm.model->name, side[1].lm.model->name);
    print_columns(text[0].s + n, text[1].s + n);
}

dq_status dq_compare_print(const dq_compare_parting *p, const dq_conversation side[2], dq_err *err)
{
    answer text[2] = {{NULL, 0}, {NULL, 0}};
    for (int i = 0; i < 2 && err->code == DQ_OK; i++)
        dq_conversation_text(&text[i].s, &text[i].n, &side[i], side[i].text.ids, side[i].text.n, 0,
                             err);
    if (err->code == DQ_OK) {
        print_texts(text, side, p->parts);
        if (p->parts) print_parting(p, side, err);
    }
    for (int i = 0; i < 2; i++) dq_block_free(text[i].s);
    return err->code;
}
