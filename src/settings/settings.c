/* settings: see settings.h. The rows of the command line's options do the work, with their checks and nearest names; getopt does
 * not: the program that calls may be in the midst of its own arguments.
 * SPDX-License-Identifier: MIT */
#include "settings/settings.h"

#include <string.h>

static bool is_flag(const dq_opt *rows, const char *name)
{
    for (const dq_opt *o = rows; !dq_opt_is_end(o); o++) {
        if (o->kind == DQ_OPT_ROWS && is_flag(o->to, name)) return true;
        if (o->name && strcmp(o->name, name) == 0) return o->kind == DQ_OPT_FLAG;
    }
    return false;
}

/* Reads one setting, of which `text` becomes a copy: NAME, a NUL, and VALUE. */
static dq_status read_one(char *text, const char *setting, const dq_opt *rows, dq_err *err)
{
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting)
        return dq_fail(err, DQ_USAGE, "expected NAME=VALUE, found \"%.80s\"", setting);
    const size_t n = (size_t)(equals - setting);
    char *value = text + n + 1;
    memcpy(text, setting, strlen(setting) + 1);
    text[n] = 0;
    for (char *c = text; *c; c++) {
        if (*c == '_') *c = '-';
    }
    if (!is_flag(rows, text)) return dq_options_set(rows, text, value, err);
    if (strcmp(value, "true") == 0) return dq_options_set(rows, text, NULL, err);
    if (strcmp(value, "false") == 0) return DQ_OK;
    return dq_fail(err, DQ_USAGE, "%.80s: expected true or false", setting);
}

dq_status dq_settings_read(dq_settings *s, const char *const *settings, const dq_opt *rows,
                           dq_err *err)
{
    size_t bytes = 1, at = 0;
    *s = (dq_settings){0};
    for (int i = 0; settings && settings[i]; i++) bytes += strlen(settings[i]) + 1;
    s->text = dq_block_new(bytes, 1, err);
    if (!s->text) return err->code;
    for (int i = 0; settings && settings[i]; i++) {
        DQ_TRY(read_one(s->text + at, settings[i], rows, err));
        at += strlen(settings[i]) + 1;
    }
    return DQ_OK;
}

void dq_settings_free(dq_settings *s)
{
    dq_block_free(s->text);
    s->text = NULL;
}
