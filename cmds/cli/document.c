/* document: values of jansson, which become text in base/json, where a key that memory was too short for is noticed.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "cmds/cli/document.h"

#include "base/file.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "settings/version.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

bool dq_document_reader_left(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return ferror(stdout) && poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

/* The stream that stdout is: what was written last may be the beginning of a character, which waits for the rest. */
enum { CHUNK = 1 << 16 };
static struct {
    size_t waiting;
    bool exact;
    char s[CHUNK + 4];
} sink;

static bool write_all(const char *s, size_t n)
{
    while (n) {
        const ssize_t done = write(STDOUT_FILENO, s, n);
        if (done < 0 && errno != EINTR) return false;
        if (done > 0) s += done;
        if (done > 0) n -= (size_t)done;
    }
    return true;
}

/* Bytes at the end of sink.s[n] that begin a character and are fewer than it has. */
static size_t unfinished(size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char c = (unsigned char)sink.s[n - k];
        const size_t whole = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
        if (dq_utf8_begins((char)c)) return k < whole ? k : 0;
    }
    return 0;
}

static ssize_t put_plain(void *cookie, const char *s, size_t n)
{
    (void)cookie;
    if (sink.exact) return write_all(s, n) ? (ssize_t)n : 0; /* 0: an error of the stream */
    for (size_t i = 0, more; i < n; i += more) {
        more = n - i < CHUNK ? n - i : CHUNK;
        memcpy(sink.s + sink.waiting, s + i, more);
        const size_t all = sink.waiting + more, left = unfinished(all);
        char rest[4];
        memcpy(rest, sink.s + all - left, left);
        const bool fine = write_all(sink.s, dq_utf8_plain(sink.s, sink.s, all - left));
        memcpy(sink.s, rest, left);
        sink.waiting = left;
        if (!fine) return 0;
    }
    return (ssize_t)n;
}

dq_status dq_document_begin(dq_err *err)
{
    FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = put_plain});
    if (!f) return dq_fail(err, DQ_RESOURCE, "out of memory");
    setvbuf(f, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, CHUNK);
    stdout = f;
    return DQ_OK;
}

void dq_document_put_exact(const char *s, size_t len)
{
    fflush(stdout);
    sink.exact = !isatty(STDOUT_FILENO);
    fwrite(s, 1, len, stdout);
    fflush(stdout);
    sink.exact = false;
}

void dq_document_put_json(const char *text)
{
    const char *plain = text, *end = text + strlen(text);
    for (size_t n; text < end; text += n) {
        bool control;
        size_t bytes;
        n = dq_utf8_next(text, (size_t)(end - text), &control);
        if (!control) continue;
        fwrite(plain, 1, (size_t)(text - plain), stdout);
        printf("\\u%04x", (unsigned)dq_utf8_first(text, &bytes));
        plain = text + n;
    }
    fwrite(plain, 1, (size_t)(end - plain), stdout);
    putchar('\n');
}

dq_status dq_document_flush(dq_err *err)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && !dq_document_reader_left())
        return dq_fail(err, DQ_FILE, "standard output: cannot write: %s", strerror(errno));
    return DQ_OK;
}

dq_status dq_document_print(json_t *doc, dq_err *err)
{
    char *text;
    dq_json_dump(&text, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(doc);
    if (!text) return err->code;
    dq_document_put_json(text);
    free(text);
    return dq_document_flush(err);
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

json_t *dq_document_metric(double value, double std_err)
{
    json_t *m = json_object();
    json_object_set_new(m, "value", dq_document_real(value));
    json_object_set_new(m, "stderr", dq_document_real(std_err));
    if (isinf(value)) /* of a metric perplexities alone */
        json_object_set_new(m, "reason", json_string("e^NLL is beyond the range of f64"));
    return m;
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
