/* stdout: see stdout.h. Values of jansson become text in base/json, where a key that memory was too short for is noticed.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "cmds/cli/stdout.h"

#include "base/text.h"
#include "quantize/quantize.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool dq_stdout_reader_left(void)
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

dq_status dq_stdout_begin(dq_err *err)
{
    FILE *f = fopencookie(NULL, "w", (cookie_io_functions_t){.write = put_plain});
    if (!f) return dq_fail(err, DQ_RESOURCE, "out of memory");
    setvbuf(f, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, CHUNK);
    stdout = f;
    return DQ_OK;
}

void dq_stdout_put_exact(const char *s, size_t len)
{
    fflush(stdout);
    sink.exact = !isatty(STDOUT_FILENO);
    fwrite(s, 1, len, stdout);
    fflush(stdout);
    sink.exact = false;
}

void dq_stdout_put_json(const char *text)
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

dq_status dq_stdout_flush(dq_err *err)
{
    if ((fflush(stdout) != 0 || ferror(stdout)) && !dq_stdout_reader_left())
        return dq_fail(err, DQ_FILE, "standard output: cannot write: %s", strerror(errno));
    return DQ_OK;
}

dq_status dq_stdout_print(json_t *doc, dq_err *err)
{
    char *text;
    dq_json_dump(&text, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(17), err);
    json_decref(doc);
    if (!text) return err->code;
    dq_stdout_put_json(text);
    free(text);
    return dq_stdout_flush(err);
}

void dq_stdout_print_bits(double bits_per_weight, int64_t params)
{
    printf("bits per weight    %.3f over all %lld parameters", bits_per_weight, (long long)params);
}

dq_status dq_stdout_print_recipe(const char *recipe, dq_err *err)
{
    json_t *file = NULL;
    char *text = NULL;
    if (dq_quantize_recipe_file(&file, recipe, err) == DQ_OK)
        dq_json_dump(&text, file, JSON_INDENT(2), err);
    json_decref(file);
    if (text) dq_stdout_put_json(text);
    free(text);
    return err->code;
}
