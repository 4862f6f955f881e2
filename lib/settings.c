/* settings: see settings.h. The parser of the command line does the work, with its checks and its nearest names.
 * SPDX-License-Identifier: MIT */
#include "lib/settings.h"

#include <stdio.h>
#include <string.h>

static const dq_usage usage = {.name = "settings", .synopsis = "", .about = "", .args = "none"};

static bool is_flag(const dq_opt *rows, const char *name)
{
    for (const dq_opt *o = rows; !dq_opt_is_end(o); o++) {
        if (o->name && strcmp(o->name, name) == 0) return o->kind == DQ_OPT_FLAG;
    }
    return false;
}

/* Puts "--name=value" of one setting to *at, and whether it says anything. */
static dq_status put(char **at, bool *says, const char *setting, const dq_opt *rows, dq_err *err)
{
    const char *equals = strchr(setting, '=');
    char *name = *at + 2;
    *says = true;
    if (!equals || equals == setting)
        return dq_fail(err, DQ_USAGE, "expected NAME=VALUE, found \"%.80s\"", setting);
    const size_t n = (size_t)(equals - setting);
    memcpy(*at, "--", 2);
    for (size_t i = 0; i < n; i++) name[i] = setting[i] == '_' ? '-' : setting[i];
    name[n] = 0;
    if (strcmp(name, "help") == 0) return dq_fail(err, DQ_USAGE, "help is no setting");
    if (is_flag(rows, name)) {
        *says = strcmp(equals + 1, "true") == 0;
        if (!*says && strcmp(equals + 1, "false") != 0)
            return dq_fail(err, DQ_USAGE, "%.80s: expected true or false", setting);
        *at = name + n + 1;
        return DQ_OK;
    }
    const size_t rest = strlen(equals) + 1;
    memcpy(name + n, equals, rest);
    *at = name + n + rest;
    return DQ_OK;
}

dq_status dq_settings_read(dq_settings *s, const char *const *settings, const dq_opt *rows,
                           dq_err *err)
{
    size_t n = 0, bytes = 0;
    dq_args args;
    int argc = 0;
    *s = (dq_settings){0};
    for (; settings && settings[n]; n++) bytes += strlen(settings[n]) + 3;
    const size_t pointers = (n + 2) * sizeof *s->argument;
    s->argument = dq_block_new(1, pointers + bytes + sizeof "settings", err);
    if (!s->argument) return err->code;
    char *at = (char *)s->argument + pointers;
    memcpy(at, "settings", sizeof "settings");
    s->argument[argc++] = at;
    at += sizeof "settings";
    for (size_t i = 0; i < n; i++) {
        bool says;
        s->argument[argc] = at;
        DQ_TRY(put(&at, &says, settings[i], rows, err));
        argc += says;
    }
    s->argument[argc] = NULL;
    dq_options_parse(&args, argc, s->argument, rows, &usage, err);
    char *help = strstr(err->text, " See dq settings"); /* which there is none of */
    if (help) *help = 0;
    return err->code;
}

void dq_settings_free(dq_settings *s)
{
    dq_block_free(s->argument);
    s->argument = NULL;
}
