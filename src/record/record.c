/* Values of jansson, which become text in base/json, where a key that memory was too short for is
 * noticed.
 * SPDX-License-Identifier: MIT */
#include "record/record.h"

#include "base/file.h"
#include "base/text.h"
#include "record/version.h"
#include "work/ranks.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *dq_document_new(const dq_logger *logger, const char *schema)
{
    json_t *doc = json_object();
    json_object_set_new(doc, "schema", json_string(schema));
    json_object_set_new(doc, "dq_version", json_string(DQ_VERSION));
    json_object_set_new(doc, "command", json_string(logger->command));
    json_object_set_new(doc, "inputs", json_array());
    json_object_set_new(doc, "settings", json_object());
    json_object_set_new(doc, "results", json_array());
    json_object_set(doc, "warnings", logger->warnings);
    return doc;
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

dq_status dq_document_read(json_t **doc, const char *path, dq_err *err)
{
    char *text;
    size_t len;
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    if (dq_file_read_text(&text, &len, path, DQ_MAX_DOCUMENT, a, err) == DQ_OK)
        dq_json_parse(doc, text, len, name, err);
    dq_arena_free(a);
    return err->code;
}

dq_status dq_document_put_line(FILE *f, json_t *value, dq_err *err)
{
    char *text;
    dq_json_dump(&text, value, JSON_REAL_PRECISION(17), err);
    json_decref(value);
    if (!text) return err->code;
    fprintf(f, "%s\n", text);
    free(text);
    return DQ_OK;
}

dq_status dq_document_name_text(const char **out, const char *s, dq_arena *a, dq_err *err)
{
    int64_t first_bad, n_bad = dq_utf8_check(s, strlen(s), &first_bad);
    char *text = dq_alloc(a, strlen(s) + 2 * (size_t)n_bad + 1, 1, err);
    if (!text) return err->code;
    text[dq_utf8_repair(text, s, strlen(s))] = 0;
    dq_one_line(text);
    *out = text;
    return DQ_OK;
}

json_t *dq_document_name(const char *s)
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

json_t *dq_document_real(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

dq_status dq_document_write_lines(const char *path, dq_document_lines *make, const void *arg,
                                  dq_err *err)
{
    dq_strbuf text = {0};
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    make(f, arg, err);
    if (dq_strbuf_memory_close(f, err) == DQ_OK && err->code == DQ_OK)
        dq_file_write(path, text.s, text.n, err);
    dq_block_free(text.s);
    return err->code;
}

const char *dq_document_size_text(char *buf, size_t cap, int64_t bytes)
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

const char *dq_document_time_text(char *buf, size_t cap, double seconds)
{
    if (seconds < 100)
        snprintf(buf, cap, "%.0f s", ceil(seconds));
    else if (seconds < 100 * 60)
        snprintf(buf, cap, "%.0f min", seconds / 60);
    else
        snprintf(buf, cap, "%.1f h", seconds / 3600);
    return buf;
}

/* Warnings also go into the document, each text once. */

const char *const dq_logger_when_name[DQ_LOGGER_WHENS] = {"auto", "always", "never"};

dq_status dq_logger_begin(dq_logger *logger, const char *command, dq_err *err)
{
    logger->command = command;
    logger->warnings = json_array();
    if (dq_ranks_number() > 0) { /* rank 0 says the same */
        logger->quiet = true;
        logger->verbose = 0;
    }
    return logger->warnings ? DQ_OK : dq_fail(err, DQ_RESOURCE, "out of memory");
}

void dq_logger_end(dq_logger *logger)
{
    json_decref(logger->warnings);
    json_decref(logger->left_out);
    logger->warnings = logger->left_out = NULL;
}

static void put(const dq_logger *logger, const char *kind, const char *text)
{
    char line[4096 + 64];
    if (!logger->listener) return;
    snprintf(line, sizeof line, "dq %s: %s%s", logger->command, kind, text);
    logger->listener(line);
}

void dq_logger_warn(dq_logger *logger, const char *fmt, ...)
{
    char line[4096];
    va_list args;
    size_t i;
    json_t *old;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    dq_one_line(line);
    json_t *text = dq_document_name(line);
    json_array_foreach(logger->warnings, i, old)
    {
        if (!json_equal(old, text)) continue;
        json_decref(text);
        return;
    }
    json_array_append_new(logger->warnings, text);
    if (!logger->quiet) put(logger, "warning: ", line);
}

void dq_logger_left_out(dq_logger *logger, const char *what, const char *why)
{
    size_t i;
    json_t *of, *old;
    if (!logger->left_out) logger->left_out = json_object();
    of = json_object_get(logger->left_out, why);
    if (!of && json_object_set_new_nocheck(logger->left_out, why, of = json_array()) != 0) return;
    if (!what) return;
    json_array_foreach(of, i, old)
    {
        if (strcmp(json_string_value(old), what) == 0) return;
    }
    json_array_append_new(of, json_string_nocheck(what));
}

void dq_logger_say_left_out(dq_logger *logger)
{
    const char *why;
    json_t *of, *what;
    size_t i;
    json_object_foreach(logger->left_out, why, of)
    {
        dq_strbuf text = {0};
        dq_err err = {0};
        json_array_foreach(of, i, what)
        {
            const char *name = json_string_value(what);
            if (i) dq_strbuf_add(&text, ", ", 2, &err);
            dq_strbuf_add(&text, name, strlen(name), &err);
        }
        if (json_array_size(of)) dq_strbuf_add(&text, ": ", 2, &err);
        const size_t n = strlen(why);
        dq_strbuf_add(&text, why, n > 0 && why[n - 1] == '.' ? n - 1 : n, &err);
        if (text.n) dq_logger_warn(logger, "left out: %.*s", (int)text.n, text.s);
        dq_block_free(text.s);
    }
    json_decref(logger->left_out);
    logger->left_out = NULL;
}

DQ_PRINTF(2, 0)
static void put_line(const dq_logger *logger, const char *fmt, va_list args)
{
    char line[1024];
    vsnprintf(line, sizeof line, fmt, args);
    dq_one_line(line);
    put(logger, "", line);
}

void dq_logger_say(const dq_logger *logger, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!logger->quiet) put_line(logger, fmt, args);
    va_end(args);
}

void dq_logger_note(dq_logger *logger, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (logger->verbose) put_line(logger, fmt, args);
    va_end(args);
}
