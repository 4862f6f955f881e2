/* output: see output.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/output.h"

#include "base/os.h"
#include "base/utf8.h"
#include "cmds/version.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

dq_status dq_talk_begin(dq_talk *t, const char *command, dq_err *err)
{
    t->command = command;
    if (!t->progress) t->progress = "auto";
    if (strcmp(t->progress, "auto") != 0 && strcmp(t->progress, "always") != 0 &&
        strcmp(t->progress, "never") != 0)
        return dq_fail(err, DQ_USAGE, "--progress: expected auto, always or never, found \"%s\".",
                       t->progress);
    t->warnings = json_array();
    return t->warnings ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

void dq_talk_end(dq_talk *t)
{
    json_decref(t->warnings);
    t->warnings = NULL;
}

void dq_warn(dq_talk *t, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    size_t i;
    json_t *old;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    dq_one_line(line);
    json_t *text = dq_name_json(line);
    json_array_foreach(t->warnings, i, old)
    {
        if (!json_equal(old, text)) continue;
        json_decref(text);
        return;
    }
    json_array_append_new(t->warnings, text);
    if (!t->quiet) fprintf(stderr, "dq %s: warning: %s\n", t->command, line);
}

void dq_say(dq_talk *t, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    if (!t->verbose) return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    dq_one_line(line);
    fprintf(stderr, "dq %s: %s\n", t->command, line);
}

void dq_progress_begin(dq_progress *p, const dq_talk *t, const char *label, double total)
{
    memset(p, 0, sizeof *p);
    p->talk = t;
    p->label = label;
    p->total = total > 0 ? total : 1;
    p->start = p->last_time = dq_seconds();
    p->first = -1;
    p->redraw = isatty(STDERR_FILENO) != 0;
    p->on = !t->quiet && strcmp(t->progress, "never") != 0 &&
            (p->redraw || strcmp(t->progress, "always") == 0);
}

/* "12 s left", "3:20 left", "2:05:00 left" */
static void time_text(char *out, size_t cap, double seconds)
{
    long s = seconds < 1e9 ? (long)(seconds + 0.5) : 1000000000L;
    if (s < 100)
        snprintf(out, cap, "%ld s left", s);
    else if (s < 3600)
        snprintf(out, cap, "%ld:%02ld left", s / 60, s % 60);
    else
        snprintf(out, cap, "%ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
}

void dq_progress_set(dq_progress *p, double done, const char *note)
{
    double now = dq_seconds(), share = done / p->total;
    p->done = done;
    if (p->first < 0) p->first = share;
    if (!p->on) return;
    if (p->redraw ? now - p->last_time < 0.1 && share < 1
                  : share - p->last_share < 0.05 && now - p->last_time < 30)
        return;
    char left[32] = "";
    if (share > p->first)
        time_text(left, sizeof left, (now - p->start) * (1 - share) / (share - p->first));
    fprintf(stderr, "%sdq %s: %s %3.0f %%  %s  %s%s", p->redraw ? "\r" : "", p->talk->command,
            p->label, 100 * share, left, note ? note : "", p->redraw ? "\033[K" : "\n");
    fflush(stderr);
    p->shown = true;
    p->last_time = now;
    p->last_share = share;
}

void dq_progress_end(dq_progress *p)
{
    if (p->shown && p->redraw) fprintf(stderr, "\r\033[K");
    p->shown = false;
}

struct dq_table {
    int n_cols, n_cells, cap;
    char **cell; /* row by row, first the titles */
    bool *rule;  /* [cap] a rule stands before the row that starts here */
    bool failed;
};

static void add_cell(dq_table *t, const char *text)
{
    if (t->n_cells == t->cap) {
        int cap = t->cap ? 2 * t->cap : 64;
        char **cell = realloc(t->cell, (size_t)cap * sizeof *cell);
        if (cell) t->cell = cell;
        bool *rule = realloc(t->rule, (size_t)cap * sizeof *rule);
        if (rule) t->rule = rule;
        if (!cell || !rule) {
            t->failed = true;
            return;
        }
        memset(rule + t->cap, 0, (size_t)(cap - t->cap) * sizeof *rule);
        t->cap = cap;
    }
    size_t n = strlen(text) + 1;
    char *copy = malloc(n);
    if (!copy) {
        t->failed = true;
        return;
    }
    memcpy(copy, text, n);
    t->cell[t->n_cells++] = copy;
}

dq_status dq_table_new(dq_table **out, const char *const *titles, int n_cols, dq_err *err)
{
    dq_table *t = calloc(1, sizeof *t);
    *out = t;
    if (!t) return dq_fail(err, DQ_RESOURCE, "out of memory");
    t->n_cols = n_cols;
    for (int i = 0; i < n_cols; i++) add_cell(t, titles[i]);
    return DQ_OK;
}

void dq_table_free(dq_table *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_cells; i++) free(t->cell[i]);
    free(t->cell);
    free(t->rule);
    free(t);
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
    if (t->n_cells < t->cap) t->rule[t->n_cells] = true;
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
    if (t->failed) return dq_fail(err, DQ_RESOURCE, "out of memory");
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
            int w = width(t->cell[i]);
            if (w > wide[c]) wide[c] = w;
            if (i >= t->n_cols && !is_number(t->cell[i])) right[c] = false;
        }
    }
    for (int i = 0; i < t->n_cells; i++) {
        int c = i % t->n_cols, pad = wide[c] - width(t->cell[i]);
        if (c == 0 && (t->rule[i] || i == t->n_cols)) {
            for (int k = 0; k < t->n_cols; k++) {
                for (int d = 0; d < wide[k]; d++) putchar('-');
                fputs(k + 1 < t->n_cols ? "  " : "\n", stdout);
            }
        }
        if (right[c])
            printf("%*s%s", pad, "", t->cell[i]);
        else if (c + 1 < t->n_cols)
            printf("%s%*s", t->cell[i], pad, "");
        else
            printf("%s", t->cell[i]);
        fputs(c + 1 < t->n_cols ? "  " : "\n", stdout);
    }
    return DQ_OK;
}

dq_status dq_table_csv(const dq_table *t, const char *path, dq_err *err)
{
    dq_strbuf text = {0};
    DQ_TRY(complete(t, err));
    FILE *f = dq_memory_open(&text, err);
    if (!f) return err->code;
    for (int i = 0; i < t->n_cells; i++) {
        const char *s = t->cell[i];
        bool quote = strpbrk(s, ",\"\n") != NULL;
        if (quote) fputc('"', f);
        for (; *s; s++) {
            if (*s == '"') fputc('"', f);
            fputc(*s, f);
        }
        if (quote) fputc('"', f);
        fputc(i % t->n_cols + 1 < t->n_cols ? ',' : '\n', f);
    }
    if (dq_memory_close(f, err) == DQ_OK) dq_file_write(path, text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}

const char *dq_size_text(char *buf, size_t cap, int64_t bytes)
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

json_t *dq_document(const dq_talk *t, const char *schema)
{
    json_t *doc = json_object();
    json_object_set_new(doc, "schema", json_string(schema));
    json_object_set_new(doc, "dq_version", json_string(DQ_VERSION));
    json_object_set_new(doc, "command", json_string(t->command));
    json_object_set_new(doc, "inputs", json_array());
    json_object_set_new(doc, "settings", json_object());
    json_object_set_new(doc, "results", json_array());
    json_object_set(doc, "warnings", t->warnings);
    return doc;
}

bool dq_stdout_left(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return ferror(stdout) && poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

dq_status dq_flush_stdout(dq_err *err)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && !dq_stdout_left())
        return dq_fail(err, DQ_FILE, "standard output: cannot write: %s", strerror(errno));
    return DQ_OK;
}

dq_status dq_document_print(json_t *doc, dq_err *err)
{
    char *text;
    dq_json_dump(&text, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(doc);
    if (!text) return err->code;
    fputs(text, stdout);
    putchar('\n');
    free(text);
    return dq_flush_stdout(err);
}

dq_status dq_document_write(json_t *doc, const char *path, dq_err *err)
{
    char *text;
    dq_json_dump(&text, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(doc);
    if (!text) return err->code;
    dq_file_write(path, text, strlen(text), err);
    free(text);
    return err->code;
}

dq_status dq_line_put(FILE *f, json_t *value, dq_err *err)
{
    char *text;
    dq_json_dump(&text, value, JSON_REAL_PRECISION(17), err);
    json_decref(value);
    if (!text) return err->code;
    fprintf(f, "%s\n", text);
    free(text);
    return DQ_OK;
}

dq_status dq_name_text(const char **out, const char *s, dq_arena *a, dq_err *err)
{
    int64_t first_bad, n_bad = dq_utf8_check(s, strlen(s), &first_bad);
    char *text = dq_alloc(a, strlen(s) + 2 * (size_t)n_bad + 1, 1, err);
    if (!text) return err->code;
    text[dq_utf8_repair(text, s, strlen(s))] = 0;
    dq_one_line(text);
    *out = text;
    return DQ_OK;
}

json_t *dq_name_json(const char *s)
{
    dq_err full = {0};
    int64_t first_bad, n_bad = dq_utf8_check(s, strlen(s), &first_bad);
    if (n_bad == 0) return json_string(s);
    char *well = dq_block_new(strlen(s) + 2 * (size_t)n_bad, 1, &full);
    if (!well) return NULL; /* as json_string does */
    json_t *text = json_stringn(well, dq_utf8_repair(well, s, strlen(s)));
    dq_block_free(well);
    return text;
}

json_t *dq_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

json_t *dq_metric(double value, double std_err)
{
    json_t *m = json_object();
    json_object_set_new(m, "value", dq_real(value));
    json_object_set_new(m, "stderr", dq_real(std_err));
    return m;
}

dq_status dq_lines_write(const char *path, dq_make_lines *make, const void *arg, dq_err *err)
{
    dq_strbuf text = {0};
    FILE *f = dq_memory_open(&text, err);
    if (!f) return err->code;
    make(f, arg, err);
    if (dq_memory_close(f, err) == DQ_OK && err->code == DQ_OK)
        dq_file_write(path, text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}
