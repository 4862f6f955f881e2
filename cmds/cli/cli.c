/* The time left is that of the share done since the first call, so that what a resumed run has
 * found done makes it no faster.
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* fopencookie */
#include "cmds/cli/cli.h"

#include "base/os.h"
#include "base/text.h"
#include "quantize/quantize.h"
#include "record/record.h"
#include "record/version.h"
#include "settings/options.h"
#include "work/ranks.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Replaces {words} in an option's text; returns the text itself where there is none, else out. */
enum { DQ_HELP_TEXT = 1024 };

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
    char text[32], on[32] = "";
    if (logger->progress.at == DQ_LOGGER_NEVER || seconds < 10 || dq_ranks_count() > 1) return;
    if (threads) snprintf(on, sizeof on, " on %d thread%s", threads, threads == 1 ? "" : "s");
    dq_logger_say(logger, "takes about %s%s", dq_document_time_text(text, sizeof text, seconds),
                  on);
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

/* Text is wrapped at 100 columns; Markdown is not. */

static dq_help_taker *taker; /* of the process, as stdout is */

void dq_help_take(dq_help_taker *other)
{
    taker = other;
}

/* For takers: the length of a heading's title, before its explanation; and whether dq eval explains
 * its options, as the command has no topics. */
static size_t help_title(const dq_opt *heading)
{
    size_t n = strcspn(heading->help, "(:");
    while (n > 0 && heading->help[n - 1] == ' ') n--;
    return n;
}

static bool help_is_elsewhere(const dq_opt *heading, const dq_usage *usage)
{
    return heading->value && !usage->first;
}

static size_t put_words(char *out, size_t cap, const dq_opt *o)
{
    size_t n = 0;
    for (int i = 0; i < o->n_words && n < cap; i++) {
        const char *before = i == 0 ? "" : i == o->n_words - 1 ? " or " : ", ";
        n += (size_t)snprintf(out + n, cap - n, "%s%s", before, o->words[i]);
    }
    return n < cap ? n : cap;
}

static const char *help_text(char out[DQ_HELP_TEXT], const dq_opt *o, const char *text)
{
    static const char place[] = "{words}";
    const char *at = strstr(text, place);
    if (!at) return text;
    size_t n = (size_t)snprintf(out, DQ_HELP_TEXT, "%.*s", (int)(at - text), text);
    if (n > DQ_HELP_TEXT) n = DQ_HELP_TEXT;
    n += put_words(out + n, DQ_HELP_TEXT - n, o);
    snprintf(out + n, DQ_HELP_TEXT - n, "%s", at + strlen(place));
    return out;
}

/* Wraps at 100 columns after the indent; '\n' starts a new line. */
static void print_wrapped(const char *text, int indent, int at)
{
    bool space = false; /* one is due before the next word, if that stays on the line */
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (at + space + (int)word > 100 && at > indent) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (space) {
            putchar(' ');
            at++;
        }
        printf("%.*s", (int)word, text);
        at += (int)word;
        text += word;
        space = *text == ' ';
        if (*text == '\n') {
            printf("\n%*s", text[1] ? indent : 0, "");
            at = indent;
        }
        if (*text) text++;
    }
    putchar('\n');
}

static void print_option(const dq_opt *o, const char *help)
{
    char left[64], text[DQ_HELP_TEXT];
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "      --%s", o->name);
    if (dq_opt_takes_value(o)) snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
    printf("%-34s", left);
    if (strlen(left) > 33) printf("\n%34s", "");
    print_wrapped(help_text(text, o, help), 34, 34);
}

/* Lists options that dq eval explains; returns the last row. */
static const dq_opt *print_names(const dq_opt *heading, bool markdown)
{
    const dq_opt *o = heading;
    int at = (int)help_title(heading);
    printf(markdown ? "\n**%.*s**, as `dq help eval %s` explains:"
                    : "\n%.*s, as dq help eval %s explains:",
           at, heading->help, heading->value);
    for (at = 100; o[1].name; o++) {
        if (o != heading) putchar(',');
        at += (int)strlen(o[1].name) + 4;
        if (!markdown && at > 100) at = printf("\n     ") + (int)strlen(o[1].name) + 3;
        printf(markdown ? " `--%s`" : " --%s", o[1].name);
    }
    putchar('\n');
    return o;
}

/* Options of `topic` (NULL: all) under their headings; false: no such topic. */
static bool print_options(const dq_opt *opts, const char *topic, const dq_usage *usage)
{
    bool shown = !topic, found = !topic;
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && topic) shown = o->value && strcmp(o->value, topic) == 0;
        if (!shown) continue;
        if (!o->name && !topic && help_is_elsewhere(o, usage))
            o = print_names(o, false);
        else if (o->name)
            print_option(o, o->help);
        else
            printf("%s%s\n", topic && !found ? "" : "\n", o->help);
        found = true;
    }
    return found;
}

void dq_help_markdown(const dq_opt *opts, const dq_usage *usage)
{
    bool open = false;
    char cell[DQ_HELP_TEXT];
    printf("## dq %s\n\n```\ndq %s %s\n```\n\n%s\n", usage->name, usage->name, usage->synopsis,
           usage->about);
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && help_is_elsewhere(o, usage)) {
            o = print_names(o, true);
            open = false;
            continue;
        }
        if (!o->name) {
            printf("\n**%s**\n", o->help);
            open = false;
            continue;
        }
        if (!open) printf("\n| option | |\n|---|---|\n");
        open = true;
        printf("| `--%s%s%s`", o->name, dq_opt_takes_value(o) ? " " : "",
               dq_opt_takes_value(o) ? o->value : "");
        if (o->letter) printf(", `-%c`", o->letter);
        printf(" | ");
        /* Joins lines and escapes what would end the cell. */
        const char *text = help_text(cell, o, o->help);
        for (; *text; text++) {
            if (*text == '\n')
                fputs("<br>", stdout);
            else if (*text == '|' || *text == '<')
                printf("\\%c", *text);
            else
                putchar(*text);
        }
        printf(" |\n");
    }
    if (usage->examples) printf("\n```\n%s```\n", usage->examples);
    putchar('\n');
}

/* topic NULL: the first page, or all options without one; "all": every option. opts: ended, without
 * DQ_OPT_ROWS. DQ_USAGE: no such topic. */
static dq_status help_print(const dq_opt *opts, const dq_usage *usage, const char *topic,
                            dq_err *err)
{
    if (taker)
        taker(opts, usage);
    else if (!topic && usage->first) {
        printf("usage: dq %s %s\n\n", usage->name, usage->synopsis);
        print_wrapped(usage->first_about, 0, 0);
        for (const dq_opt_brief *b = usage->first; b->text; b++) {
            const dq_opt *o = opts;
            if (!b->name) {
                printf("\n%s\n", b->text);
                continue;
            }
            while (!dq_opt_is_end(o) && (!o->name || strcmp(o->name, b->name) != 0)) o++;
            if (dq_opt_is_end(o))
                return dq_fail(err, DQ_BUG, "help: there is no option --%s", b->name);
            print_option(o, b->text);
        }
        printf("\nall of them, by topic: dq help %s TOPIC\n", usage->name);
        for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
            if (o->name || !o->value) continue;
            printf("  %-10s%.*s\n", o->value, (int)help_title(o), o->help);
        }
        printf("  %-10severy option, and how results are to be read\n", "all");
        printf("\nexamples:\n%s", usage->first_examples);
        return DQ_OK;
    } else if (!topic || strcmp(topic, "all") == 0) {
        printf("usage: dq %s %s\n\n", usage->name, usage->synopsis);
        print_wrapped(usage->about, 0, 0);
        print_options(opts, NULL, usage);
        printf("  -h, --help                      this text\n");
        if (usage->examples) printf("\nexamples:\n%s", usage->examples);
    } else if (!print_options(opts, topic, usage))
        return dq_fail(err, DQ_USAGE, "there is no topic \"%s\". See dq help %s.", topic,
                       usage->name);
    return DQ_OK;
}

static dq_status print_asked(const dq_args *args, const dq_opt *rows, const dq_usage *usage,
                             dq_err *err)
{
    dq_opt all[DQ_OPTIONS_MAX];
    if (err->code != DQ_OK || !args->help) return err->code;
    DQ_TRY(dq_options_flatten(all, rows, err));
    return help_print(all, usage, args->topic, err);
}

dq_status dq_help_parse(dq_args *args, int argc, char **argv, const dq_opt *rows,
                        const dq_usage *usage, dq_err *err)
{
    dq_options_parse(args, argc, argv, rows, usage, err);
    return print_asked(args, rows, usage, err);
}

dq_status dq_help_parse_part(dq_args *args, int argc, char **argv, const dq_opt *rows,
                             const dq_opt *own, const dq_usage *usage, dq_err *err)
{
    dq_options_parse_part(args, argc, argv, rows, own, usage, err);
    return print_asked(args, rows, usage, err);
}

/* A word is escaped as a whole and wraps as a whole: no source line begins with a roff command
 * character, and none but examples exceeds 80 bytes. */

enum { COLUMNS = 78, WORD = 1024 };

/* The escaped form of what text[bytes] begins with; dashes stay copyable. Returns its length. */
static size_t escape(char out[16], const char *text, size_t *bytes)
{
    static const char *const of[] = {"\\\\e",  "-\\-",   "'\\(aq", "`\\(ga",
                                     "^\\(ha", "~\\(ti", "\"\\(dq"};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (*text != *of[i]) continue;
        *bytes = 1;
        return (size_t)snprintf(out, 16, "%s", of[i] + 1);
    }
    const uint32_t c = dq_utf8_first(text, bytes);
    return (size_t)snprintf(out, 16, c < 0x80 ? "%c" : "\\[u%04X]", (int)c);
}

/* Escapes text[len] into at most WORD - 1 bytes, dropping the rest; returns the length. */
static size_t escape_all(char out[WORD], const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, bytes; i < len && n + 16 < WORD; i += bytes)
        n += escape(out + n, text + i, &bytes);
    out[n] = 0;
    return n;
}

/* Without a line end. */
static void put(const char *text, size_t len)
{
    char word[WORD];
    escape_all(word, text, len);
    fputs(word, stdout);
}

/* Fills lines; between: separates parts where a line ends. */
static void put_filled(const char *text, const char *between)
{
    size_t at = 0;
    for (;;) {
        char word[WORD];
        const size_t len = strcspn(text, " \n"), n = escape_all(word, text, len);
        if (n && at && at + 1 + n > COLUMNS) {
            putchar('\n');
            at = 0;
        }
        if (n) printf("%s%s%s", at ? " " : "", !at && word[0] == '.' ? "\\&" : "", word);
        if (n) at += n + (at > 0);
        text += len;
        const bool ends = *text == '\n';
        if (!*text || !text[1]) break;
        if (ends) printf("\n%s\n", between);
        if (ends) at = 0;
        text++;
    }
    putchar('\n');
}

/* "dq-plan-kv"; "dq" for NULL. */
enum { PAGE = 64 };
static const char *page_name(char page[PAGE], const char *name)
{
    snprintf(page, PAGE, name ? "dq-%s" : "dq", name);
    for (char *p = page; *p; p++) *p = *p == ' ' ? '-' : *p;
    return page;
}

static void put_page(const char *name)
{
    char page[PAGE];
    page_name(page, name);
    put(page, strlen(page));
}

void dq_manual_begin(const char *name, const char *purpose)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    const time_t when = epoch && *epoch ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    char day[16] = "", page[PAGE];
    struct tm tm;
    if (gmtime_r(&when, &tm)) strftime(day, sizeof day, "%Y-%m-%d", &tm);
    page_name(page, name);
    for (char *p = page; *p; p++) *p = (char)toupper((unsigned char)*p);
    printf(".TH ");
    put(page, strlen(page));
    printf(" 1 \"%s\" \"dq " DQ_VERSION "\" \"Commands of dq\"\n.SH NAME\n", day);
    put_page(name); /* on one line, as lexgrog(1) reads it best */
    printf(" \\- ");
    put(purpose, strlen(purpose));
    putchar('\n');
}

void dq_manual_section(const char *title)
{
    printf(".SH %s\n", title);
}

void dq_manual_text(const char *text)
{
    put_filled(text, ".PP");
}

void dq_manual_synopsis(const char *name, const char *text)
{
    static const char again[] = "\n.br\n";
    bool first = true;
    for (const char *end; *text; text = *end ? end + 1 : end, first = false) {
        end = text + strcspn(text, "\n");
        printf("%s\\fBdq", first ? "" : again);
        if (name) printf(" %s", name);
        printf("\\fR ");
        /* Options in bold, capitals in italics. */
        const size_t len = (size_t)(end - text);
        static const char lower[] = "-abcdefghijklmnopqrstuvwxyz0123456789",
                          *const upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        for (size_t i = 0, n; i < len; i += n) {
            const bool option = text[i] == '-' && strchr(lower, text[i + 1]);
            n = strspn(text + i, option ? lower : upper);
            const bool capitals = !option && n > 0;
            if (capitals && text[i + n] == '.') /* OUT.h5, but not MODEL... */
                n += strspn(text + i + n + 1, lower) ? 1 + strspn(text + i + n + 1, lower) : 0;
            if (n == 0) n = 1;
            if (option || capitals) fputs(option ? "\\fB" : "\\fI", stdout);
            put(text + i, n);
            if (option || capitals) fputs("\\fR", stdout);
        }
    }
    putchar('\n');
}

void dq_manual_item(const char *tag, const char *text)
{
    printf(".TP\n\\fB");
    put(tag, strlen(tag));
    printf("\\fR\n");
    put_filled(text, ".br");
}

void dq_manual_entry(const char *name, const char *purpose)
{
    printf(".TP\n.BR ");
    put_page(name);
    printf(" (1)\n");
    put_filled(purpose, ".br");
}

void dq_manual_see(const char *name, bool more)
{
    printf(".BR ");
    put_page(name);
    printf(" (1)%s\n", more ? "," : "");
}

/* Lists options that the page of dq eval explains; returns the last row. */
static const dq_opt *put_names(const dq_opt *heading)
{
    const dq_opt *o = heading;
    printf(".SS ");
    put(heading->help, help_title(heading));
    printf("\n.BR dq\\-eval (1)\nexplains these:\n");
    for (; o[1].name; o++) {
        printf(".B \\-\\-");
        put(o[1].name, strlen(o[1].name));
        putchar('\n');
    }
    return o;
}

void dq_manual_command(const dq_opt *opts, const dq_usage *usage)
{
    dq_manual_section("SYNOPSIS");
    dq_manual_synopsis(usage->name, usage->synopsis);
    dq_manual_section("DESCRIPTION");
    dq_manual_text(usage->about);
    dq_manual_section("OPTIONS");
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (o->name) {
            char text[DQ_HELP_TEXT];
            printf(".TP\n");
            if (o->letter) printf("\\fB\\-%c\\fR, ", o->letter);
            printf("\\fB\\-\\-");
            put(o->name, strlen(o->name));
            printf("\\fR");
            if (dq_opt_takes_value(o)) {
                printf(" \\fI");
                put(o->value, strlen(o->value));
                printf("\\fR");
            }
            putchar('\n');
            put_filled(help_text(text, o, o->help), ".br");
        } else if (help_is_elsewhere(o, usage))
            o = put_names(o);
        else {
            /* A heading may have an explanation in parentheses. */
            const size_t n = help_title(o);
            const char *more = strchr(o->help, '('), *end = more ? strrchr(more, ')') : NULL;
            printf(".SS ");
            put(o->help, n);
            putchar('\n');
            if (end && !(more != o->help + n + 1)) {
                char text[DQ_HELP_TEXT];
                snprintf(text, sizeof text, "%.*s", (int)(end - more - 1), more + 1);
                dq_manual_text(text);
            }
        }
    }
    printf(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprint the options\n");
    if (!usage->examples) return;
    dq_manual_section("EXAMPLES");
    printf(".EX\n");
    for (const char *p = usage->examples, *end; *p; p = end + 1) {
        end = p + strcspn(p, "\n");
        put(p, (size_t)(end - p));
        putchar('\n');
        if (!*end) break;
    }
    printf(".EE\n");
}

/* Of each command there is one function of the script, made from the rows of options. What finds
 * the command on the line and asks its function are completion.bash and completion.zsh, built into
 * the program; the functions take the place of their line "# COMMANDS". */

typedef enum shell { BASH, ZSH } shell;
static const char *const shell_name[] = {"bash", "zsh"}, *const script[] = {dq_completion_bash,
                                                                            dq_completion_zsh};
static const char place[] = "# COMMANDS\n";
static shell of; /* of the process, as stdout is */

typedef enum value { NONE, WORDS, PATH, OTHER } value;

static value value_of(const dq_opt *o)
{
    if (!dq_opt_takes_value(o)) return NONE;
    return o->n_words ? WORDS : dq_opt_is_path(o) ? PATH : OTHER;
}

static void put_name(const char *name)
{
    for (; *name; name++) putchar(*name == ' ' ? '_' : *name);
}

static void put_function(const dq_usage *usage)
{
    printf("_dq_of_");
    put_name(usage->name);
    printf("() {\n");
}

static void completed_put_words(const dq_opt *o)
{
    for (int i = 0; i < o->n_words; i++) printf("%s%s", i ? " " : "", o->words[i]);
}

static void put_topics(const dq_opt *opts)
{
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && o->value) printf("%s ", o->value);
    }
    printf("all");
}

static void put_bash_name(const dq_opt *o)
{
    printf("--%s", o->name);
    if (o->letter) printf(" | -%c", o->letter);
}

/* "    --text | --output | -o) value=path ;;" for all options with such a value. */
static void put_bash_values(const dq_opt *opts, value v, const char *name)
{
    bool any = false;
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name || value_of(o) != v) continue;
        printf(any ? " | " : "    ");
        put_bash_name(o);
        any = true;
    }
    if (any) printf(") value=%s ;;\n", name);
}

/* For text in single quotes that _arguments parses. */
static void put_zsh_text(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", text[i]))
            printf("\\%c", text[i]);
        else
            putchar(text[i]);
    }
}

static void put_zsh_option(const dq_opt *o)
{
    const char *equals = dq_opt_takes_value(o) ? "=" : "",
               *star = o->kind == DQ_OPT_LIST ? "*" : "";
    printf(" \\\n        ");
    if (o->letter)
        printf("'(-%c --%s)'{-%c%s,--%s%s}'[", o->letter, o->name, o->letter, *equals ? "+" : "",
               o->name, equals);
    else
        printf("'%s--%s%s[", star, o->name, equals);
    /* The first part of an option's help, or what fits a line. */
    enum { SHORTEST = 12, LONGEST = 72 };
    char text[DQ_HELP_TEXT];
    const char *help = help_text(text, o, o->help), *const more[] = {"\n", "; ", " (", ". "};
    size_t n = strlen(help);
    for (size_t i = 0; n > SHORTEST && i < sizeof more / sizeof *more; i++) {
        const char *at = strstr(help + SHORTEST, more[i]);
        if (at && (size_t)(at - help) < n) n = (size_t)(at - help);
    }
    const bool cut = n > LONGEST;
    if (cut) {
        n = LONGEST;
        while (n > 0 && help[n] != ' ') n--;
    }
    while (n > 0 && strchr(";:,", help[n - 1])) n--;
    put_zsh_text(help, n);
    if (cut) printf(" ...");
    putchar(']');
    const value v = value_of(o);
    if (v != NONE) {
        putchar(':');
        put_zsh_text(o->value, strlen(o->value));
        if (v == PATH) printf(":_files");
        if (v == OTHER) printf(": ");
        if (v == WORDS) printf(o->kind == DQ_OPT_WORD ? ":(" : ": _sequence compadd - ");
        if (v == WORDS) completed_put_words(o);
        if (v == WORDS && o->kind == DQ_OPT_WORD) putchar(')');
    }
    putchar('\'');
}

dq_status dq_completion_begin(const char *name, dq_err *err)
{
    const int i = dq_options_word(name, "completion", shell_name, 2, err);
    if (i < 0) return err->code;
    of = (shell)i;
    printf("%.*s", (int)(strstr(script[of], place) - script[of]), script[of]);
    return DQ_OK;
}

void dq_completion_command(const dq_opt *opts, const dq_usage *usage)
{
    if (of == BASH) {
        bool any = false;
        put_function(usage);
        printf("    options='");
        for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
            if (!o->name) continue;
            printf("%s--%s", any ? " " : "", o->name);
            any = true;
        }
        printf("'\n");
        if (usage->first) {
            printf("    topics='");
            put_topics(opts);
            printf("'\n");
        }
        if (usage->max_args == 0) printf("    arguments=none\n");
        printf("    case $1 in\n");
        for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
            if (!o->name || value_of(o) != WORDS) continue;
            printf("    ");
            put_bash_name(o);
            printf(") value=words words='");
            completed_put_words(o);
            printf("' ;;\n");
        }
        put_bash_values(opts, PATH, "path");
        put_bash_values(opts, OTHER, "other");
        printf("    esac\n}\n\n");
    } else {
        if (usage->first) {
            printf("typeset -ga _dq_topics_");
            put_name(usage->name);
            printf("=(");
            put_topics(opts);
            printf(")\n\n");
        }
        put_function(usage);
        printf("    _arguments -s -S : '(- *)'{-h,--help}'[print the options]'");
        for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
            if (o->name) put_zsh_option(o);
        }
        if (usage->max_args) printf(" \\\n        '*:argument:_files'");
        printf("\n}\n\n");
    }
}

void dq_completion_names(void)
{
    printf("_dq_names() {\n%s    case $1 in\n",
           of == BASH ? "    words=''\n" : "    local -a names\n");
}

void dq_completion_group(const char *group)
{
    printf(of == BASH ? "    '%s') words='" : "    '%s')\n        names=(", group);
}

void dq_completion_name(const char *name, const char *purpose)
{
    if (of == BASH) {
        printf("%s ", name);
        return;
    }
    printf("\n            '%s:", name);
    put_zsh_text(purpose, strlen(purpose));
    putchar('\'');
}

void dq_completion_group_end(void)
{
    printf(of == BASH ? "' ;;\n" : "\n        )\n        ;;\n");
}

void dq_completion_end(void)
{
    printf("    esac\n%s}\n\n", of == BASH ? "" : "    (( $#names )) && _describe command names\n");
    fputs(strstr(script[of], place) + strlen(place), stdout);
}
