/* Help as text, Markdown, manual pages and scripts of completion, all from the rows of options. A
 * command hands its rows over where it would print its help, so all commands are run with --help.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "cmds/cli/cli.h"
#include "cmds/command.h"
#include "record/version.h"
#include "settings/options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HELP_TEXT = 1024 };

/* Prints everything about a command in another form; opts: ended, without DQ_OPT_ROWS. */
typedef void help_taker(const dq_opt *opts, const dq_usage *usage);
static help_taker *taker; /* of the process, as stdout is; NULL: help is text */

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

/* Replaces {words} in an option's text; returns the text itself where there is none, else out. */
static const char *help_text(char out[HELP_TEXT], const dq_opt *o, const char *text)
{
    static const char place[] = "{words}";
    const char *at = strstr(text, place);
    if (!at) return text;
    size_t n = (size_t)snprintf(out, HELP_TEXT, "%.*s", (int)(at - text), text);
    for (int i = 0; i < o->n_words && n < HELP_TEXT; i++) {
        const char *before = i == 0 ? "" : i == o->n_words - 1 ? " or " : ", ";
        n += (size_t)snprintf(out + n, HELP_TEXT - n, "%s%s", before, o->words[i]);
    }
    if (n < HELP_TEXT) snprintf(out + n, HELP_TEXT - n, "%s", at + strlen(place));
    return out;
}

/* Wraps text at 100 columns after the indent; '\n' starts a new line. */
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
    char left[64], text[HELP_TEXT];
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

static void help_markdown(const dq_opt *opts, const dq_usage *usage)
{
    bool open = false;
    char cell[HELP_TEXT];
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

/* The first page of a long help, and the topics that hold the rest. */
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
        printf("  %-10s%.*s\n", o->value, (int)help_title(o), o->help);
    }
    printf("  %-10severy option, and how results are to be read\n", "all");
    printf("\nexamples:\n%s", usage->first_examples);
    return DQ_OK;
}

dq_status dq_help_parse_shard(dq_args *args, int argc, char **argv, const dq_opt *rows,
                              const dq_opt *own, const dq_usage *usage, dq_err *err)
{
    dq_opt opts[DQ_OPTIONS_MAX];
    DQ_TRY(dq_options_parse_shard(args, argc, argv, rows, own, usage, err));
    if (!args->help) return DQ_OK;
    DQ_TRY(dq_options_flatten(opts, rows, err));
    if (taker)
        taker(opts, usage);
    else if (!args->topic && usage->first)
        return print_first(opts, usage, err);
    else if (!args->topic || strcmp(args->topic, "all") == 0) {
        printf("usage: dq %s %s\n\n", usage->name, usage->synopsis);
        print_wrapped(usage->about, 0, 0);
        print_options(opts, NULL, usage);
        printf("  -h, --help                      this text\n");
        if (usage->examples) printf("\nexamples:\n%s", usage->examples);
    } else if (!print_options(opts, args->topic, usage))
        return dq_fail(err, DQ_USAGE, "there is no topic \"%s\". See dq help %s.", args->topic,
                       usage->name);
    return DQ_OK;
}

dq_status dq_help_parse(dq_args *args, int argc, char **argv, const dq_opt *rows,
                        const dq_usage *usage, dq_err *err)
{
    return dq_help_parse_shard(args, argc, argv, rows, NULL, usage, err);
}

bool dq_help_begin(dq_args *args, int argc, char **argv, const dq_opt *rows, const dq_usage *usage,
                   dq_logger *logger, dq_err *err)
{
    return dq_help_parse(args, argc, argv, rows, usage, err) == DQ_OK && !args->help &&
           dq_progress_listen(logger, usage->name, err) == DQ_OK;
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
static void put_part(const char *text, size_t len)
{
    char word[WORD];
    escape_all(word, text, len);
    fputs(word, stdout);
}

static void put(const char *before, const char *text, const char *after)
{
    fputs(before, stdout);
    put_part(text, strlen(text));
    fputs(after, stdout);
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

/* Title and section NAME; name NULL: dq itself. Dated by SOURCE_DATE_EPOCH, else today. */
static void manual_begin(const char *name, const char *purpose)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    const time_t when = epoch && *epoch ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    char day[16] = "", page[PAGE];
    struct tm tm;
    if (gmtime_r(&when, &tm)) strftime(day, sizeof day, "%Y-%m-%d", &tm);
    page_name(page, name);
    for (char *p = page; *p; p++) *p = (char)toupper((unsigned char)*p);
    put(".TH ", page, "");
    printf(" 1 \"%s\" \"dq " DQ_VERSION "\" \"Commands of dq\"\n.SH NAME\n", day);
    put("", page_name(page, name), " \\- "); /* on one line, as lexgrog(1) reads it best */
    put("", purpose, "\n");
}

/* The command with each line that may follow it: options bold, capitals italic. */
static void manual_synopsis(const char *name, const char *text)
{
    printf(".SH SYNOPSIS\n");
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
            put_part(text + i, n);
            if (option || capitals) fputs("\\fR", stdout);
        }
    }
    putchar('\n');
}

static void manual_item(const char *tag, const char *text)
{
    put(".TP\n\\fB", tag, "\\fR\n");
    put_filled(text, ".br");
}

/* Lists options that the page of dq eval explains; returns the last row. */
static const dq_opt *put_names(const dq_opt *heading)
{
    const dq_opt *o = heading;
    printf(".SS ");
    put_part(heading->help, help_title(heading));
    printf("\n.BR dq\\-eval (1)\nexplains these:\n");
    for (; o[1].name; o++) put(".B \\-\\-", o[1].name, "\n");
    return o;
}

static void help_manual(const dq_opt *opts, const dq_usage *usage)
{
    manual_synopsis(usage->name, usage->synopsis);
    printf(".SH DESCRIPTION\n");
    put_filled(usage->about, ".PP");
    printf(".SH OPTIONS\n");
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (o->name) {
            char text[HELP_TEXT];
            printf(".TP\n");
            if (o->letter) printf("\\fB\\-%c\\fR, ", o->letter);
            put("\\fB\\-\\-", o->name, "\\fR");
            if (dq_opt_takes_value(o)) put(" \\fI", o->value, "\\fR");
            putchar('\n');
            put_filled(help_text(text, o, o->help), ".br");
        } else if (help_is_elsewhere(o, usage))
            o = put_names(o);
        else {
            /* A heading may have an explanation in parentheses. */
            const size_t n = help_title(o);
            const char *more = strchr(o->help, '('), *end = more ? strrchr(more, ')') : NULL;
            printf(".SS ");
            put_part(o->help, n);
            putchar('\n');
            if (end && !(more != o->help + n + 1)) {
                char text[HELP_TEXT];
                snprintf(text, sizeof text, "%.*s", (int)(end - more - 1), more + 1);
                put_filled(text, ".PP");
            }
        }
    }
    printf(".TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nprint the options\n");
    if (!usage->examples) return;
    printf(".SH EXAMPLES\n.EX\n");
    for (const char *p = usage->examples, *end; *p; p = end + 1) {
        end = p + strcspn(p, "\n");
        put_part(p, (size_t)(end - p));
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

static void put_offered(const dq_opt *o)
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
    char text[HELP_TEXT];
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
        if (v == WORDS) put_offered(o);
        if (v == WORDS && o->kind == DQ_OPT_WORD) putchar(')');
    }
    putchar('\'');
}

static void help_completion(const dq_opt *opts, const dq_usage *usage)
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
        if (usage->args && !usage->max_args) printf("    arguments=none\n");
        printf("    case $1 in\n");
        for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
            if (!o->name || value_of(o) != WORDS) continue;
            printf("    ");
            put_bash_name(o);
            printf(") value=words words='");
            put_offered(o);
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
        if (!usage->args || usage->max_args) printf(" \\\n        '*:argument:_files'");
        printf("\n}\n\n");
    }
}

/* ---- Pages of all commands ---- */

static const struct {
    const char *status, *meaning;
} exits[] = {
    {"0", "done"},
    {"1", "bug"},
    {"2", "usage"},
    {"3", "damaged input"},
    {"4", "inputs that do not fit or are unsupported"},
    {"5", "resources"},
    {"6", "files"},
    {"7", "quality gate missed"},
    {"130/143", "interrupted"},
    {"141", "the reader of standard output left (| head): files are complete"},
};
enum { N_EXITS = sizeof exits / sizeof exits[0] };

void dq_help_pages_exits(FILE *f)
{
    int at = fprintf(f, "exit status:");
    for (int i = 0; i < N_EXITS; i++) {
        const int n = (int)(strlen(exits[i].status) + strlen(exits[i].meaning)) + 3;
        if (at + n > 100) {
            fprintf(f, "\n            ");
            at = 12;
        }
        at +=
            fprintf(f, " %s %s%s", exits[i].status, exits[i].meaning, i < N_EXITS - 1 ? "," : "\n");
    }
}

/* The command passes its rows to the taker. */
static dq_status hand_over(const dq_cmd *c, dq_err *err)
{
    char name[] = "dq", requested[] = "--help", *argv[] = {name, requested, NULL};
    return c->run(2, argv, err);
}

static dq_status hand_over_all(const dq_help_pages *all, dq_err *err)
{
    for (int i = 0; i < all->n; i++) {
        if (all->cmd[i].run) DQ_TRY(hand_over(&all->cmd[i], err));
    }
    return dq_stdout_flush(err);
}

bool dq_cmd_is_of(const dq_cmd *c, const char *group)
{
    const char *space = strchr(c->name, ' ');
    const size_t n = group ? strlen(group) : 0;
    if (!group || !space) return !group && !space;
    return (size_t)(space - c->name) == n && strncmp(c->name, group, n) == 0;
}

dq_status dq_help_pages_commands(const dq_help_pages *all, dq_err *err)
{
    for (int i = 0; i < all->n; i++) printf("%s\n", all->cmd[i].name);
    return dq_stdout_flush(err);
}

dq_status dq_help_pages_schema(const dq_help_pages *all, const char *name, dq_err *err)
{
    for (const dq_document *const *d = all->document; *d; d++) {
        if (!name) printf("%s\n", (*d)->name);
        if (name && strcmp(name, (*d)->name) == 0)
            return dq_stdout_print(dq_document_schema(*d), err);
    }
    if (name)
        return dq_fail(err, DQ_USAGE, "no document is named \"%s\". See dq help --schema.", name);
    return dq_stdout_flush(err);
}

dq_status dq_help_pages_markdown(const dq_help_pages *all, dq_err *err)
{
    printf("# Commands and options\n\n`dq help --markdown` prints this page.\n\n");
    taker = help_markdown;
    DQ_TRY(hand_over_all(all, err));
    printf("## dq help\n\n"
           "| Option | |\n|---|---|\n"
           "| `--man [COMMAND]` | a page of the manual, in roff |\n"
           "| `--completion SHELL` | the script for bash or zsh |\n"
           "| `--schema [NAME]` | the JSON Schema of a document, or the names of all |\n"
           "| `--markdown` | this page |\n"
           "| `--commands` | the names of all commands |\n");
    return DQ_OK;
}

static void put_list(const dq_help_pages *all, const char *group)
{
    char page[PAGE];
    printf(".SH COMMANDS\n");
    for (int i = 0; i < all->n; i++) {
        const dq_cmd *c = &all->cmd[i];
        if (group && !dq_cmd_is_of(c, group)) continue;
        put(".TP\n.BR ", page_name(page, c->name), " (1)\n");
        put_filled(c->purpose, ".br");
    }
}

dq_status dq_help_pages_manual(const dq_help_pages *all, const dq_cmd *cmd, dq_err *err)
{
    manual_begin(cmd ? cmd->name : NULL,
                 cmd ? cmd->purpose : "low-bit quantization of Differential Transformers");
    taker = help_manual;
    if (!cmd) {
        manual_synopsis(NULL, "COMMAND [options] ARGUMENTS\nhelp [COMMAND [TOPIC]]\n--version");
        printf(".SH DESCRIPTION\n");
        put_filled(
            "Quantizes the weights, attention logits and KV caches of Differential Transformers "
            "and of plain ones, and measures what is lost by it.\n"
            "A MODEL is a folder with config.json and *.safetensors, a .gguf file, or a .h5 "
            "container that dq quantize wrote.",
            ".PP");
        put_list(all, NULL);
        printf(".SH HELP\n");
        manual_item("dq COMMAND --help",
                    "the options of a command, as does dq help COMMAND; of dq eval the "
                    "most important ones, and the topics that hold the others");
        manual_item("dq help --man [COMMAND]", "a page of this manual, in roff");
        manual_item("dq help --completion bash|zsh", "completion for a shell");
        manual_item("dq help --schema [NAME]",
                    "the JSON Schema of a document, such as dq-info/1, or the names of all");
        manual_item("dq help --markdown", "all options of all commands, in Markdown");
        manual_item("dq help --commands", "the names of all commands");
        manual_item("dq --version",
                    "the version, and the commit that dq was built from where that is known");
    } else if (!cmd->run) {
        manual_synopsis(cmd->name, "COMMAND [options] ARGUMENTS");
        put_list(all, cmd->name);
    } else
        DQ_TRY(hand_over(cmd, err));
    printf(".SH EXIT STATUS\n");
    for (int i = 0; i < N_EXITS; i++) manual_item(exits[i].status, exits[i].meaning);
    if (cmd) {
        /* The pages of dq and of cmd's group. */
        const dq_cmd *group = NULL;
        for (int i = 0; i < all->n; i++) {
            if (!all->cmd[i].run && dq_cmd_is_of(cmd, all->cmd[i].name)) group = &all->cmd[i];
        }
        printf(".SH SEE ALSO\n");
        printf(".BR dq (1)%s\n", group ? "," : "");
        if (group) printf(".BR dq\\-%s (1)\n", group->name);
    }
    return dq_stdout_flush(err);
}

/* The names after dq (group "") or after a group's name. */
static void put_completed(const dq_help_pages *all, const char *group)
{
    printf(of == BASH ? "    '%s') words='" : "    '%s')\n        names=(", group);
    for (int i = 0; i < all->n; i++) {
        const dq_cmd *c = &all->cmd[i];
        if (!dq_cmd_is_of(c, *group ? group : NULL)) continue;
        const char *name = c->name + (*group ? strlen(group) + 1 : 0);
        printf(of == BASH ? "%s " : "\n            '%s:", name);
        if (of == BASH) continue;
        put_zsh_text(c->purpose, strlen(c->purpose));
        putchar('\'');
    }
    printf(of == BASH ? "' ;;\n" : "\n        )\n        ;;\n");
}

dq_status dq_help_pages_completion(const dq_help_pages *all, const char *shell_of, dq_err *err)
{
    const int which = dq_options_word(shell_of, "completion", shell_name, 2, err);
    if (which < 0) return err->code;
    of = (shell)which;
    printf("%.*s", (int)(strstr(script[of], place) - script[of]), script[of]);
    taker = help_completion;
    DQ_TRY(hand_over_all(all, err));
    printf("_dq_names() {\n%s    case $1 in\n",
           of == BASH ? "    words=''\n" : "    local -a names\n");
    put_completed(all, "");
    for (int i = 0; i < all->n; i++) {
        if (!all->cmd[i].run) put_completed(all, all->cmd[i].name);
    }
    printf("    esac\n%s}\n\n", of == BASH ? "" : "    (( $#names )) && _describe command names\n");
    fputs(strstr(script[of], place) + strlen(place), stdout);
    return dq_stdout_flush(err);
}
