/* manual: see manual.h. A word is escaped as a whole and goes to the next line where it does not fit: no line of the
 * source begins with a character that roff reads as a command, and none has more than 80 bytes but for examples.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/manual.h"

#include "base/text.h"
#include "cmds/cli/help.h"
#include "record/version.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COLUMNS = 78, WORD = 1024 };

/* ---- Words ---- */

/* What text[bytes] begins with, and stands for it in roff; every dash is one that can be copied. Returns its length. */
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

/* text[len] escaped. Returns its length, at most WORD - 1: what does not fit is left out. */
static size_t escape_all(char out[WORD], const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0, bytes; i < len && n + 16 < WORD; i += bytes)
        n += escape(out + n, text + i, &bytes);
    out[n] = 0;
    return n;
}

/* The same on the page, without a line's end. */
static void put(const char *text, size_t len)
{
    char word[WORD];
    escape_all(word, text, len);
    fputs(word, stdout);
}

/* Filled lines. between: what stands between parts that a line's end parts. */
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

/* Options in bold, what is in capitals in italics. */
static void put_styled(const char *text, size_t len)
{
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

/* ---- Parts of a page ---- */

/* "dq-plan-kv", of which NULL is "dq". */
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
        put_styled(text, (size_t)(end - text));
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

/* ---- The options of a command ---- */

/* A heading, which may say more in parentheses. */
static void put_heading(const dq_opt *heading)
{
    const size_t n = dq_help_title(heading);
    const char *more = strchr(heading->help, '('), *end = more ? strrchr(more, ')') : NULL;
    printf(".SS ");
    put(heading->help, n);
    putchar('\n');
    if (!end || more != heading->help + n + 1) return;
    char text[DQ_HELP_TEXT];
    snprintf(text, sizeof text, "%.*s", (int)(end - more - 1), more + 1);
    dq_manual_text(text);
}

static void put_option(const dq_opt *o)
{
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
    put_filled(dq_help_text(text, o, o->help), ".br");
}

/* Options that the page of dq eval explains. Returns the last row. */
static const dq_opt *put_names(const dq_opt *heading)
{
    const dq_opt *o = heading;
    printf(".SS ");
    put(heading->help, dq_help_title(heading));
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
        if (o->name)
            put_option(o);
        else if (dq_help_is_elsewhere(o, usage))
            o = put_names(o);
        else
            put_heading(o);
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
