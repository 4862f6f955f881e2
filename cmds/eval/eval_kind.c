/* eval_kind: the table of the kinds of evaluation, and how a source finds its row.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_kind.h"

#include <stdio.h>
#include <string.h>

const cmd_eval_kind *const cmd_eval_kinds[DQ_EVAL_KINDS] = {
    &cmd_eval_choices, &cmd_eval_text, &cmd_eval_generate,
    &cmd_eval_needle,  &cmd_eval_icl,  &cmd_eval_ruler,
};

static bool shows(const cmd_eval_kind *kind, const dq_eval_kind *of)
{
    for (int k = 0; k < DQ_EVAL_KIND_ROWS && kind->kind[k]; k++) {
        if (kind->kind[k] == of) return true;
    }
    return false;
}

json_t *cmd_eval_kind_scored(const cmd_eval_kind *kind, const void *own, const dq_eval *e)
{
    json_t *o = json_object();
    if (kind->settings) kind->settings(o, own, e);
    for (const char *const *name = kind->unscored; name && *name; name++) {
        const char *key;
        json_t *value;
        json_object_del(o, *name);
        json_object_foreach(o, key, value) json_object_del(value, *name);
    }
    return o;
}

const cmd_eval_kind *cmd_eval_kind_of(const dq_eval_source *source)
{
    int i = 0;
    while (!shows(cmd_eval_kinds[i], source->kind)) i++;
    return cmd_eval_kinds[i];
}

int cmd_eval_kind_named(const char *task)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        const char *name;
        for (int k = 0; kind->cli.task && (name = kind->cli.task(k)) != NULL; k++) {
            if (strcmp(name, task) == 0) return i;
        }
    }
    return -1;
}

bool cmd_eval_kind_writes(const dq_eval_source *source)
{
    (void)source;
    return true;
}

bool cmd_eval_kind_stops(const dq_eval *e)
{
    for (int i = 0; i < e->n_sources; i++) {
        const cmd_eval_kind *kind = cmd_eval_kind_of(&e->source[i]);
        if (kind->stops && kind->stops(&e->source[i])) return true;
    }
    return false;
}

bool cmd_eval_kind_shows(const cmd_eval_kind *kind, const dq_eval *e, int row)
{
    return e->row[row].shown && cmd_eval_kind_of(dq_eval_source_of(e, &e->row[row])) == kind;
}

const char *cmd_eval_kind_join(char *buf, size_t cap, cmd_eval_kind_word *word, const char *between)
{
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < DQ_EVAL_KINDS && n < cap; i++) {
        const char *own = word(cmd_eval_kinds[i]), *other;
        bool again = !own;
        for (int k = 0; k < i && !again; k++)
            again = (other = word(cmd_eval_kinds[k])) != NULL && strcmp(own, other) == 0;
        if (!again) n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? between : "", own);
    }
    return buf;
}

const dq_eval_source *cmd_eval_kind_source(const cmd_eval_kind *kind, const dq_eval_source *source,
                                           int n_sources)
{
    for (int i = 0; i < n_sources; i++) {
        if (cmd_eval_kind_of(&source[i]) == kind) return &source[i];
    }
    return NULL;
}
