/* table: cells are kept as text, in the order they come; widths are worked out when it is printed.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/table.h"

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cell {
    const char *text;
    bool rule; /* one stands before the row that starts here */
} cell;

struct dq_table {
    dq_arena *a; /* holds the cells and this */
    int n_cols, n_cells;
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
    for (int i = 0; i < n_cols; i++) add_cell(t, titles[i]);
    return DQ_OK;
}

void dq_table_free(dq_table *t)
{
    if (t) dq_arena_free(t->a);
}

void dq_table_cell(dq_table *t, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_cell(t, text);
}

void dq_table_real(dq_table *t, double x)
{
    if (isfinite(x))
        dq_table_cell(t, "%.17g", x);
    else
        dq_table_cell(t, "%s", "");
}

void dq_table_rule(dq_table *t)
{
    t->rule = true;
}

/* Columns on a terminal: code points, which is right for everything but wide characters. */
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

/* Cells come from documents: where one is not whole, neither is the table. */
static dq_status complete(const dq_table *t, dq_err *err)
{
    if (t->err.code != DQ_OK) return dq_fail_as(err, &t->err);
    return dq_json_complete(err);
}

dq_status dq_table_print(const dq_table *t, dq_err *err)
{
    int wide[64];
    bool right[64];
    DQ_TRY(complete(t, err));
    if (t->n_cols > 64) return dq_fail(err, DQ_BUG, "table of %d columns", t->n_cols);
    for (int c = 0; c < t->n_cols; c++) {
        wide[c] = 0;
        right[c] = true;
        for (int i = c; i < t->n_cells; i += t->n_cols) {
            int w = width(t->cell[i].text);
            if (w > wide[c]) wide[c] = w;
            if (i >= t->n_cols && !is_number(t->cell[i].text)) right[c] = false;
        }
    }
    for (int i = 0; i < t->n_cells; i++) {
        int c = i % t->n_cols, pad = wide[c] - width(t->cell[i].text);
        if (c == 0 && (t->cell[i].rule || i == t->n_cols)) {
            for (int k = 0; k < t->n_cols; k++) {
                for (int d = 0; d < wide[k]; d++) putchar('-');
                fputs(k + 1 < t->n_cols ? "  " : "\n", stdout);
            }
        }
        if (right[c])
            printf("%*s%s", pad, "", t->cell[i].text);
        else if (c + 1 < t->n_cols)
            printf("%s%*s", t->cell[i].text, pad, "");
        else
            printf("%s", t->cell[i].text);
        fputs(c + 1 < t->n_cols ? "  " : "\n", stdout);
    }
    return DQ_OK;
}

dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err)
{
    dq_strbuf text = {0};
    DQ_TRY(complete(t, err));
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    for (int i = 0; i < t->n_cells; i++) {
        const char *s = t->cell[i].text;
        bool quote = strpbrk(s, ",\"\n") != NULL;
        if (quote) fputc('"', f);
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

const char *dq_table_size_text(char *buf, size_t cap, int64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)bytes;
    int u = 0;
    while (x >= 1024 && u < 4) {
        x /= 1024;
        u++;
    }
    snprintf(buf, cap, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
    return buf;
}
