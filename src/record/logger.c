/* logger: see logger.h. Warnings go into the document as well, where each text stands once.
 * SPDX-License-Identifier: MIT */
#include "record/logger.h"

#include "base/ranks.h"
#include "base/strbuf.h"
#include "record/document.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

/* The line becomes one of its kind. */
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
