/* help: see help.h. Text is wrapped at 100 columns; Markdown is left to its reader.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/help.h"

#include <stdio.h>
#include <string.h>

static dq_help_taker *taker; /* of the process, as stdout is */

void dq_help_take(dq_help_taker *other)
{
    taker = other;
}

size_t dq_help_title(const dq_opt *heading)
{
    size_t n = strcspn(heading->help, "(:");
    while (n > 0 && heading->help[n - 1] == ' ') n--;
    return n;
}

bool dq_help_is_elsewhere(const dq_opt *heading, const dq_usage *usage)
{
    return heading->value && !usage->first;
}

/* "a, b or c" */
static size_t put_words(char *out, size_t cap, const dq_opt *o)
{
    size_t n = 0;
    for (int i = 0; i < o->n_words && n < cap; i++) {
        const char *before = i == 0 ? "" : i == o->n_words - 1 ? " or " : ", ";
        n += (size_t)snprintf(out + n, cap - n, "%s%s", before, o->words[i]);
    }
    return n < cap ? n : cap;
}

const char *dq_help_text(char out[DQ_HELP_TEXT], const dq_opt *o, const char *text)
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

/* ---- Text ---- */

/* Text in lines of at most 100 columns after an indent; '\n' starts a new line. */
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

/* --name VALUE and what it is. */
static void print_option(const dq_opt *o, const char *help)
{
    char left[64], text[DQ_HELP_TEXT];
    int n = o->letter ? snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name)
                      : snprintf(left, sizeof left, "      --%s", o->name);
    if (dq_opt_takes_value(o)) snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
    printf("%-34s", left);
    if (strlen(left) > 33) printf("\n%34s", "");
    print_wrapped(dq_help_text(text, o, help), 34, 34);
}

/* Options that dq eval explains. Returns the last row. */
static const dq_opt *print_names(const dq_opt *heading, bool markdown)
{
    const dq_opt *o = heading;
    int at = (int)dq_help_title(heading);
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

/* Options of `topic`, NULL: all, under their headings. False: there is no such topic. */
static bool print_options(const dq_opt *opts, const char *topic, const dq_usage *usage)
{
    bool shown = !topic, found = !topic;
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && topic) shown = o->value && strcmp(o->value, topic) == 0;
        if (!shown) continue;
        if (!o->name && !topic && dq_help_is_elsewhere(o, usage))
            o = print_names(o, false);
        else if (o->name)
            print_option(o, o->help);
        else
            printf("%s%s\n", topic && !found ? "" : "\n", o->help);
        found = true;
    }
    return found;
}

static void print_all(const dq_opt *opts, const dq_usage *usage)
{
    printf("usage: dq %s %s\n\n", usage->name, usage->synopsis);
    print_wrapped(usage->about, 0, 0);
    print_options(opts, NULL, usage);
    printf("  -h, --help                      this text\n");
    if (usage->examples) printf("\nexamples:\n%s", usage->examples);
}

static dq_status print_first(const dq_opt *opts, const dq_usage *usage, dq_err *err)
{
    printf("usage: dq %s %s\n\n", usage->name, usage->synopsis);
    print_wrapped(usage->first_about, 0, 0);
    for (const dq_opt_brief *b = usage->first; b->text; b++) {
        const dq_opt *o = opts;
        if (!b->name) {
            printf("\n%s\n", b->text);
            continue;
        }
        while (!dq_opt_is_end(o) && (!o->name || strcmp(o->name, b->name) != 0)) o++;
        if (dq_opt_is_end(o)) return dq_fail(err, DQ_BUG, "help: there is no option --%s", b->name);
        print_option(o, b->text);
    }
    printf("\nall of them, by topic: dq help %s TOPIC\n", usage->name);
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (o->name || !o->value) continue;
        printf("  %-10s%.*s\n", o->value, (int)dq_help_title(o), o->help);
    }
    printf("  %-10severy option, and how results are to be read\n", "all");
    printf("\nexamples:\n%s", usage->first_examples);
    return DQ_OK;
}

/* ---- Markdown ---- */

/* A cell of a table: lines become one, and what would end the cell is escaped. */
static void print_cell(const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            fputs("<br>", stdout);
        else if (*text == '|' || *text == '<')
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

void dq_help_markdown(const dq_opt *opts, const dq_usage *usage)
{
    bool open = false;
    char cell[DQ_HELP_TEXT];
    printf("## dq %s\n\n```\ndq %s %s\n```\n\n%s\n", usage->name, usage->name, usage->synopsis,
           usage->about);
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && dq_help_is_elsewhere(o, usage)) {
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
        print_cell(dq_help_text(cell, o, o->help));
        printf(" |\n");
    }
    if (usage->examples) printf("\n```\n%s```\n", usage->examples);
    putchar('\n');
}

dq_status dq_help_print(const dq_opt *opts, const dq_usage *usage, const char *topic, dq_err *err)
{
    if (taker)
        taker(opts, usage);
    else if (!topic && usage->first)
        return print_first(opts, usage, err);
    else if (!topic || strcmp(topic, "all") == 0)
        print_all(opts, usage);
    else if (!print_options(opts, topic, usage))
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
    return dq_help_print(all, usage, args->topic, err);
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
