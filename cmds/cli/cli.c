/* The time left is that of the share done since the first call, so that what a resumed run has
 * found done makes it no faster.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "cmds/cli/cli.h"

#include "base/os.h"
#include "base/text.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "work/ranks.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 200 };

static void put_line(const char *line)
{
    fprintf(stderr, "%s\n", line);
}

dq_status dq_progress_listen(dq_logger *logger, const char *command, dq_err *err)
{
    logger->listener = put_line;
    return dq_logger_begin(logger, command, err);
}

void dq_progress_begin(dq_progress *p, const dq_logger *logger, const char *label, double total)
{
    memset(p, 0, sizeof *p);
    p->logger = logger;
    p->label = label;
    p->total = total > 0 ? total : 1;
    p->start = p->last_time = dq_os_seconds();
    p->first = -1;
    p->redraw = isatty(STDERR_FILENO) != 0;
    p->often = logger->progress.at == DQ_LOGGER_ALWAYS;
    p->threads = dq_os_threads();
    p->on = !logger->quiet && logger->progress.at != DQ_LOGGER_NEVER;
}

/* "12 s left", "3:20 left", "~2:05:00 left" */
static void time_text(char *out, size_t cap, double seconds, bool rough)
{
    const long s = seconds < 1e9 ? (long)(seconds + 0.5) : 1000000000L;
    const char *about = rough ? "~" : "";
    if (s < 100)
        snprintf(out, cap, "%s%ld s left", about, s);
    else if (s < 3600)
        snprintf(out, cap, "%s%ld:%02ld left", about, s / 60, s % 60);
    else
        snprintf(out, cap, "%s%ld:%02ld:%02ld left", about, s / 3600, s / 60 % 60, s % 60);
}

void dq_progress_label(dq_progress *p, const char *label)
{
    p->label = label;
}

/* In a file every 5 s at first, then each tenth of the time so far, at most 5 minutes apart. */
bool dq_progress_due(const dq_progress *p, double now, double share)
{
    const double since = now - p->last_time;
    double gap = (now - p->start) / 10;
    if (p->redraw) return since >= 0.1 || share >= 1;
    if (p->often && share - p->last_share >= 0.05) return true;
    if (gap < 5) gap = p->shown ? 5 : 3;
    return since >= (gap < 300 ? gap : 300);
}

/* A name of any bytes becomes one line of UTF-8 from at most NAME of them. */
static void name_text(char *out, const char *name)
{
    out[dq_utf8_repair(out, name, strnlen(name, NAME))] = 0;
    dq_one_line(out);
}

void dq_progress_announce(const dq_logger *logger, double seconds, int threads)
{
    char on[32] = "";
    if (logger->progress.at == DQ_LOGGER_NEVER || seconds < 10 || dq_ranks_count() > 1) return;
    if (threads) snprintf(on, sizeof on, " on %d thread%s", threads, threads == 1 ? "" : "s");
    dq_logger_say(logger, "takes about %s%s", DQ_TIME(seconds), on);
}

/* Prints a line if one is due; seconds below 0: unknown. */
static void show(dq_progress *p, double now, double share, double seconds, const char *note)
{
    char left[32] = "", label[3 * NAME + 1], what[3 * NAME + 1];
    if (!p->on) return;
    const bool due = dq_progress_due(p, now, share);
    if (!p->announced && !p->wait && seconds >= 0 && (due || now - p->start >= 1)) {
        p->announced = true;
        if (p->shown && p->redraw) fprintf(stderr, "\r\033[K");
        dq_progress_announce(p->logger, now - p->start + seconds, p->threads);
    }
    if (!due) return;
    name_text(label, p->label);
    name_text(what, note ? note : "");
    if (seconds >= 0) time_text(left, sizeof left, seconds, p->rough);
    fprintf(stderr, "%sdq %s: %s %3.0f %%  %s  %s%s", p->redraw ? "\r" : "", p->logger->command,
            label, 100 * share, left, what, p->redraw ? "\033[K" : "\n");
    fflush(stderr);
    p->shown = true;
    p->last_time = now;
    p->last_share = share;
}

void dq_progress_set(dq_progress *p, double done, const char *note)
{
    const double now = dq_os_seconds(), share = done / p->total;
    p->done = done;
    if (p->first < 0) p->first = share;
    show(p, now, share, share > p->first ? (now - p->start) * (1 - share) / (share - p->first) : -1,
         note);
}

void dq_progress_left(dq_progress *p, double seconds, const char *note)
{
    const double now = dq_os_seconds(), taken = now - p->start;
    show(p, now, taken + seconds > 0 ? taken / (taken + seconds) : 1, seconds, note);
}

void dq_progress_pace(void *progress, const dq_pace *pace, const char *note)
{
    dq_progress_left(progress, dq_pace_left(pace), note);
}

void dq_progress_step(void *progress, double done, double total, const char *note)
{
    dq_progress *p = progress;
    p->total = total > 0 ? total : 1;
    dq_progress_set(p, done, note);
}

void dq_progress_end(dq_progress *p)
{
    if (p->shown && p->redraw) fprintf(stderr, "\r\033[K");
    p->shown = false;
}

bool dq_progress_is_long(double seconds)
{
    return seconds >= 5;
}

bool dq_stdout_reader_left(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return ferror(stdout) && poll(&p, 1, 0) > 0 && (p.revents & POLLERR);
}

/* stdout's stream: an incomplete character at the end waits for its rest. */
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

/* Bytes of an incomplete character at the end of sink.s[n]. */
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

/* In a JSON text escapes stand for control characters. */
static void stdout_put_json(const char *text)
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
    stdout_put_json(text);
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
    if (text) stdout_put_json(text);
    free(text);
    return err->code;
}
