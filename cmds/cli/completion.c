/* completion: see completion.h. Of each command there is one function of the script, made from the rows of options. What
 * finds the command on the line and asks its function are completion.bash and completion.zsh, built into the program; the
 * functions take the place of their line "# COMMANDS".
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/completion.h"

#include "cmds/cli/help.h"

#include <stdio.h>
#include <string.h>

typedef enum shell { BASH, ZSH } shell;
static const char *const shell_name[] = {"bash", "zsh"}, *const script[] = {dq_completion_bash,
                                                                            dq_completion_zsh};
static const char place[] = "# COMMANDS\n";
static shell of; /* of the process, as stdout is */

/* ---- What a value is ---- */

typedef enum value { NONE, WORDS, PATH, OTHER } value;

static value value_of(const dq_opt *o)
{
    if (!dq_opt_takes_value(o)) return NONE;
    return o->n_words ? WORDS : dq_opt_is_path(o) ? PATH : OTHER;
}

/* "plan_kv" */
static void put_name(const char *name)
{
    for (; *name; name++) putchar(*name == ' ' ? '_' : *name);
}

/* "_dq_of_plan_kv() {" */
static void put_function(const dq_usage *usage)
{
    printf("_dq_of_");
    put_name(usage->name);
    printf("() {\n");
}

static void put_words(const dq_opt *o)
{
    for (int i = 0; i < o->n_words; i++) printf("%s%s", i ? " " : "", o->words[i]);
}

/* "tasks text ... all" */
static void put_topics(const dq_opt *opts)
{
    for (const dq_opt *o = opts; !dq_opt_is_end(o); o++) {
        if (!o->name && o->value) printf("%s ", o->value);
    }
    printf("all");
}

/* ---- bash ---- */

static void put_bash_name(const dq_opt *o)
{
    printf("--%s", o->name);
    if (o->letter) printf(" | -%c", o->letter);
}

/* "    --text | --output | -o) value=path ;;" of all options with such a value. */
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

static void put_bash(const dq_opt *opts, const dq_usage *usage)
{
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
        put_words(o);
        printf("' ;;\n");
    }
    put_bash_values(opts, PATH, "path");
    put_bash_values(opts, OTHER, "other");
    printf("    esac\n}\n\n");
}

/* ---- zsh ---- */

/* Text inside single quotes, where _arguments reads it. */
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

/* What an option is, in a few words: its help up to where that says more, or what fits a line. */
static void put_zsh_about(const dq_opt *o)
{
    enum { SHORTEST = 12, LONGEST = 72 };
    char text[DQ_HELP_TEXT];
    const char *help = dq_help_text(text, o, o->help), *const more[] = {"\n", "; ", " (", ". "};
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
}

/* ":FILE:_files" */
static void put_zsh_value(const dq_opt *o)
{
    const value v = value_of(o);
    if (v == NONE) return;
    putchar(':');
    put_zsh_text(o->value, strlen(o->value));
    if (v == PATH) printf(":_files");
    if (v == OTHER) printf(": ");
    if (v == WORDS) printf(o->kind == DQ_OPT_WORD ? ":(" : ": _sequence compadd - ");
    if (v == WORDS) put_words(o);
    if (v == WORDS && o->kind == DQ_OPT_WORD) putchar(')');
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
    put_zsh_about(o);
    putchar(']');
    put_zsh_value(o);
    putchar('\'');
}

static void put_zsh(const dq_opt *opts, const dq_usage *usage)
{
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

/* ---- Both ---- */

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
    if (of == BASH)
        put_bash(opts, usage);
    else
        put_zsh(opts, usage);
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
