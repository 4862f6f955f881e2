/* Cells are kept as text, in the order they come; widths are worked out when it is printed. What
 * is wider than a line loses columns in steps until it fits: those that hold nothing, then those
 * that hold one thing in all rows, which a line in front says; what is still too wide goes on in
 * further blocks of the same rows, where long names lose their middle.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cmds/cli/cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 120, GAP = 2, MAX_COLS = 64, CELL = 512, LEAST_NAME = 16 };

typedef struct cell {
    const char *text;
    bool rule; /* one stands before the row that starts here */
} cell;

struct dq_table {
    dq_arena *a; /* holds the cells and this */
    int n_cols, n_cells, n_keys;
    cell *cell; /* row by row, first the titles */
    size_t cap;
    bool rule; /* before the next cell */
    dq_err err;
};

static void add_cell(dq_table *t, const char *text)
{
    cell *list = dq_grow(t->a, t->cell, (size_t)t->n_cells + 1, &t->cap, sizeof *list, &t->err);
    const char *copy = list ? dq_text(t->a, text, strlen(text), &t->err) : NULL;
    if (list) t->cell = list;
    if (!copy) return;
    list[t->n_cells++] = (cell){copy, t->rule};
    t->rule = false;
}

dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err)
{
    dq_arena *a = dq_arena_new();
    dq_table *t = a ? dq_alloc(a, 1, sizeof *t, err) : NULL;
    *out = t;
    if (!t) {
        dq_arena_free(a);
        return dq_fail(err, DQ_RESOURCE, "out of memory");
    }
    t->a = a;
    t->n_cols = n_cols;
    t->n_keys = 1;
    for (int i = 0; i < n_cols; i++) add_cell(t, titles[i]);
    return DQ_OK;
}

void dq_table_free(dq_table *t)
{
    if (t) dq_arena_free(t->a);
}

void dq_table_known(dq_table *t, bool known, const char *fmt, ...)
{
    char text[CELL];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_cell(t, known ? text : "-");
}

void dq_table_real(dq_table *t, double x)
{
    if (isnan(x))
        add_cell(t, "");
    else
        dq_table_cell(t, "%.17g", x);
}

static void take_title(void *arg, const dq_row *row, const char *text)
{
    dq_table *t = arg;
    (void)text;
    add_cell(t, row->title);
    t->n_cols++;
}

static void take_cell(void *arg, const dq_row *row, const char *text)
{
    (void)row;
    add_cell(arg, text);
}

dq_status dq_table_begin(dq_table **t, dq_row_items *rows, const void *arg, int64_t item,
                         dq_err *err)
{
    DQ_TRY(dq_table_new(t, NULL, 0, err));
    dq_row_writer titles = dq_row_cells(take_title, *t);
    rows(&titles, arg, item);
    return DQ_OK;
}

dq_status dq_table_add_rows(dq_table **t, dq_row_items *rows, const void *arg, int64_t item,
                            dq_err *err)
{
    if (!*t) DQ_TRY(dq_table_begin(t, rows, arg, item, err));
    dq_row_writer cells = dq_row_cells(take_cell, *t);
    rows(&cells, arg, item);
    return DQ_OK;
}

void dq_table_keys(dq_table *t, int n)
{
    t->n_keys = n;
}

void dq_table_rule(dq_table *t)
{
    t->rule = true;
}

/* Counts code points, which is wrong only for wide characters. */
static int width(const char *s)
{
    int n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool is_number(const char *s)
{
    char *end;
    if (!*s || strcmp(s, "-") == 0) return true;
    strtod(s, &end);
    return end != s;
}

/* Whether a spreadsheet would evaluate a name: OWASP's rule for CSV, which puts an apostrophe
 * first. */
static bool is_formula(const char *s)
{
    char *end;
    if (!*s || !strchr("=+-@\t\r", *s) || strcmp(s, "-") == 0) return false;
    strtod(s, &end);
    return *end != 0;
}

/* Fails where memory was short for a document that cells come from. */
static dq_status complete(const dq_table *t, dq_err *err)
{
    if (t->err.code != DQ_OK) return dq_fail_as(err, &t->err);
    return dq_json_complete(err);
}

typedef struct layout {
    int wide[MAX_COLS];
    bool right[MAX_COLS], shown[MAX_COLS];
} layout;

/* Width of the shown columns first .. end-1, with gaps. */
static int columns(const layout *l, int first, int end)
{
    int n = 0;
    for (int c = first; c < end; c++) n += l->shown[c] ? l->wide[c] + GAP : 0;
    return n;
}

static bool fits(const layout *l, const dq_table *t)
{
    return columns(l, 0, t->n_cols) - GAP <= LINE;
}

/* Whether all rows (at least one) agree in column c. */
static bool is_constant(const dq_table *t, int c)
{
    for (int i = t->n_cols + c; i < t->n_cells; i += t->n_cols) {
        if (strcmp(t->cell[i].text, t->cell[t->n_cols + c].text) != 0) return false;
    }
    return t->n_cells > t->n_cols;
}

static bool is_empty(const dq_table *t, int c)
{
    const char *text = is_constant(t, c) ? t->cell[t->n_cols + c].text : "one";
    return !*text || strcmp(text, "-") == 0;
}

/* Removes column c and prints its common cell; *at: place in the line. */
static void say_constant(layout *l, const dq_table *t, int c, int *at)
{
    const char *title = t->cell[c].text, *text = t->cell[t->n_cols + c].text;
    const int n = width(title) + 1 + width(text);
    if (*at == 0)
        *at = printf("In every row:");
    else
        *at += printf(";");
    if (*at + 1 + n + 1 > LINE) {
        printf("\n ");
        *at = 1;
    }
    printf(" %s %s", title, text);
    *at += 1 + n;
    l->shown[c] = false;
}

/* Start of the n-th code point of s, or the end. */
static const char *at_point(const char *s, int n)
{
    for (; *s; s++) {
        if (((unsigned char)*s & 0xc0) != 0x80 && n-- == 0) break;
    }
    return s;
}

/* "begin…end" in `wide` columns. */
static const char *shortened(char *buf, size_t cap, const char *text, int wide)
{
    const int n = width(text), tail = (wide - 1) / 2;
    if (n <= wide) return text;
    const char *end = at_point(text, wide - 1 - tail);
    snprintf(buf, cap, "%.*s\u2026%s", (int)(end - text), text, at_point(text, n - tail));
    return buf;
}

/* If keys take more than half of a line, names in the first column lose their middle, where they
 * stay distinct. */
static void shorten_names(layout *l, const dq_table *t)
{
    const int keys = columns(l, 0, t->n_keys), old = l->wide[0];
    int wide = old - (keys - LINE / 2);
    char a[CELL], b[CELL];
    if (!l->shown[0] || wide >= old) return;
    if (wide < LEAST_NAME) wide = LEAST_NAME;
    if (wide >= old) return;
    for (int i = t->n_cols; i < t->n_cells; i += t->n_cols) {
        for (int k = t->n_cols; k < i; k += t->n_cols) {
            const char *x = t->cell[i].text, *y = t->cell[k].text;
            if (strcmp(x, y) != 0 &&
                strcmp(shortened(a, sizeof a, x, wide), shortened(b, sizeof b, y, wide)) == 0)
                return;
        }
    }
    l->wide[0] = wide;
}

dq_status dq_table_print(const dq_table *t, dq_err *err)
{
    layout l;
    DQ_TRY(complete(t, err));
    if (t->n_cols > MAX_COLS) return dq_fail(err, DQ_BUG, "table of %d columns", t->n_cols);
    for (int c = 0; c < t->n_cols; c++) {
        l.wide[c] = 0;
        l.right[c] = l.shown[c] = true;
        for (int i = c; i < t->n_cells; i += t->n_cols) {
            int w = width(t->cell[i].text);
            if (w > l.wide[c]) l.wide[c] = w;
            if (i >= t->n_cols && !is_number(t->cell[i].text)) l.right[c] = false;
        }
    }
    for (int c = 1; !fits(&l, t) && c < t->n_cols; c++) l.shown[c] = !is_empty(t, c);
    if (!fits(&l, t) && t->n_cells > 2 * t->n_cols) {
        /* Removes constant columns from the left until the table fits; the first column stays if it
         * alone identifies rows, or fits. */
        layout rest = l;
        int at = 0;
        bool other_keys = false;
        for (int c = 1; c < t->n_cols; c++) {
            rest.shown[c] = l.shown[c] && !is_constant(t, c);
            other_keys = other_keys || (rest.shown[c] && c < t->n_keys);
        }
        const bool keep = fits(&rest, t) || !other_keys || !is_constant(t, 0);
        for (int c = keep; c < t->n_cols && !fits(&l, t); c++) {
            if (l.shown[c] && is_constant(t, c)) say_constant(&l, t, c, &at);
        }
        if (at) printf(".\n");
    }
    if (!fits(&l, t)) shorten_names(&l, t);
    /* Each block has the keys and as many columns as fit, at least one. */
    const int keys = columns(&l, 0, t->n_keys);
    int first = t->n_keys, end;
    do {
        for (end = first; end < t->n_cols; end++) {
            if (l.shown[end] && columns(&l, first, end) &&
                keys + columns(&l, first, end + 1) - GAP > LINE)
                break;
        }
        /* The keys, and columns first .. end-1. */
        int list[MAX_COLS], n = 0;
        for (int c = 0; c < end; c++) {
            if (l.shown[c] && (c < t->n_keys || c >= first)) list[n++] = c;
        }
        for (int row = 0; row < t->n_cells; row += t->n_cols) {
            const bool rule = t->cell[row].rule || row == t->n_cols;
            for (int i = 0; rule && i < n; i++) {
                const bool last = i + 1 == n;
                for (int k = 0; k < l.wide[list[i]]; k++) putchar('-');
                printf("%s", last ? "\n" : "  ");
            }
            for (int i = 0; i < n; i++) {
                char buf[CELL];
                const int c = list[i];
                const char *text = shortened(buf, sizeof buf, t->cell[row + c].text, l.wide[c]);
                const int pad = l.wide[c] - width(text);
                printf("%*s%s%*s%s", l.right[c] ? pad : 0, "", text,
                       l.right[c] || i + 1 == n ? 0 : pad, "", i + 1 == n ? "\n" : "  ");
            }
        }
        first = end;
        if (first < t->n_cols) printf("\n");
    } while (first < t->n_cols);
    return DQ_OK;
}

dq_status dq_table_finish(dq_table *t, dq_err *err)
{
    if (t && err->code == DQ_OK) dq_table_print(t, err);
    dq_table_free(t);
    return err->code;
}

dq_status dq_table_rows(dq_row_items *rows, const void *arg, int64_t n, int keys, dq_err *err)
{
    dq_table *t = NULL;
    for (int64_t i = 0; i < n; i++) dq_table_add_rows(&t, rows, arg, i, err);
    if (t) t->n_keys = keys;
    return dq_table_finish(t, err);
}

dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err)
{
    dq_strbuf text = {0};
    DQ_TRY(complete(t, err));
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    for (int i = 0; i < t->n_cells; i++) {
        const char *s = t->cell[i].text;
        bool quote = strpbrk(s, ",\"\n\r") != NULL;
        if (quote) fputc('"', f);
        if (is_formula(s)) fputc('\'', f);
        for (; *s; s++) {
            if (*s == '"') fputc('"', f);
            fputc(*s, f);
        }
        if (quote) fputc('"', f);
        fputc(i % t->n_cols + 1 < t->n_cols ? ',' : '\n', f);
    }
    if (dq_strbuf_memory_close(f, err) == DQ_OK) dq_file_write(path, text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}
