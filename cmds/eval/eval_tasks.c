/* eval_tasks: a name of --task finds the kind that has it, which makes the task's sources; a file is the task's
 * by its name or by its place.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_tasks.h"

#include "base/file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* "NAME=FILE" with the name of a task. */
static bool is_named(const char *given)
{
    char name[32];
    size_t n = strcspn(given, "=");
    if (!given[n] || n >= sizeof name) return false;
    memcpy(name, given, n);
    name[n] = 0;
    return cmd_eval_kind_named(name) >= 0;
}

dq_status cmd_eval_check_twice(const dq_list *given, const char *option, dq_err *err)
{
    for (int i = 0; i < given->n; i++) {
        size_t n = strcspn(given->item[i], "=") + 1;
        for (int k = 0; k < i && is_named(given->item[i]); k++) {
            if (strncmp(given->item[k], given->item[i], n) == 0)
                return dq_fail(err, DQ_USAGE, "--%s: %.*s is given twice.", option, (int)n - 1,
                               given->item[i]);
        }
    }
    return DQ_OK;
}

const char *cmd_eval_path_for(const dq_list *given, const char *task, int *used)
{
    size_t n = strlen(task);
    for (int i = 0; i < given->n; i++) {
        if (strncmp(given->item[i], task, n) == 0 && given->item[i][n] == '=')
            return given->item[i] + n + 1;
    }
    for (int i = 0, plain = 0; i < given->n; i++) {
        if (is_named(given->item[i]) || plain++ < *used) continue;
        ++*used;
        return given->item[i];
    }
    return NULL;
}

dq_status cmd_eval_add_source(cmd_eval_options *o, const dq_eval_source *source, const char *what,
                              dq_err *err)
{
    if (o->n_sources == DQ_EVAL_SOURCES)
        return dq_fail(err, DQ_USAGE, "more than %d %s.", DQ_EVAL_SOURCES, what);
    o->source[o->n_sources++] = *source;
    return DQ_OK;
}

static dq_status refuse_unknown(const char *name, dq_err *err)
{
    char all[512] = "";
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        const char *task;
        for (int k = 0; kind->cli.task && (task = kind->cli.task(k)) != NULL; k++) {
            size_t n = strlen(all);
            snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", task);
        }
    }
    return dq_fail(err, DQ_USAGE, "unknown task \"%s\". There are: %s.", name, all);
}

enum { MAX_FEWSHOT = 1000 };
/* Where the examples before source i, just chosen, come from. */
static dq_status take_examples(cmd_eval_options *o, int i, dq_err *err)
{
    dq_eval_source *s = &o->source[i];
    const cmd_eval_kind *kind = cmd_eval_kind_of(s);
    if (o->n_shots == 0 || o->shots[o->n_shots - 1] == 0 || kind->cli.own_examples) return DQ_OK;
    if (!s->kind->answered)
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot is for items with answers; prompts of --task %s are taken as "
                       "they are.",
                       s->name);
    if (o->n_shots > 1)
        return dq_fail(err, DQ_USAGE, "--num-fewshot %s: --task %s takes one number.",
                       o->shots_word, s->name);
    if (o->num_fewshot > MAX_FEWSHOT)
        return dq_fail(err, DQ_USAGE, "--num-fewshot %lld: --task %s takes at most %d.",
                       (long long)o->num_fewshot, s->name, MAX_FEWSHOT);
    o->examples[i] = cmd_eval_path_for(&o->fewshot, s->name, &o->fewshot_used);
    if (!o->examples[i])
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot %lld: --task %s needs the file of its examples: give "
                       "--fewshot-data FILE (expected %s).",
                       (long long)o->num_fewshot, s->name, kind->cli.form(s->name));
    return kind->cli.examples(cmd_eval_own(o, kind), o, s, o->examples[i], err);
}

/* One task with its file and that of its examples. */
static dq_status choose_task(cmd_eval_options *o, const char *name, int *used, dq_arena *a,
                             dq_err *err)
{
    const int i = cmd_eval_kind_named(name), first = o->n_sources;
    if (i < 0) return refuse_unknown(name, err);
    for (int k = 0; k < first; k++) {
        if (strcmp(o->source[k].name, name) == 0)
            return dq_fail(err, DQ_USAGE, "--task: %s stands twice.", name);
    }
    const cmd_eval_kind *kind = cmd_eval_kinds[i];
    const bool fileless = kind->cli.fileless && kind->cli.fileless(name);
    int none = INT_MAX; /* a file without a name is for another task */
    const char *path = cmd_eval_path_for(&o->data, name, fileless ? &none : used);
    if (path && fileless)
        return dq_fail(err, DQ_USAGE, "--data %s=%s: --task %s takes no file.", name, path, name);
    if (!path && !fileless)
        return dq_fail(err, DQ_USAGE, "--task %s needs its file: give --data FILE (expected %s).",
                       name, kind->cli.form(name));
    DQ_TRY(kind->cli.choose(o->own[i], o, name, path, a, err));
    return take_examples(o, first, err);
}

/* Whether some source has examples before its items. */
static bool takes_examples(const cmd_eval_options *o)
{
    for (int i = 0; i < o->n_sources; i++) {
        if (o->examples[i] || cmd_eval_kind_of(&o->source[i])->cli.own_examples) return true;
    }
    return false;
}

static dq_status check_lists(const cmd_eval_options *o, int n_tasks, dq_err *err)
{
    const char *end = n_tasks == 1 ? "" : "s";
    if (o->data.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--data is given %d times for %d task%s.", o->data.n, n_tasks,
                       end);
    if (o->n_shots > 0 && n_tasks == 0)
        return dq_fail(err, DQ_USAGE, "--num-fewshot is for items of a --task; there is none.");
    if (o->fewshot.n > 0 && o->fewshot_used == 0 && !takes_examples(o))
        return dq_fail(err, DQ_USAGE, "--fewshot-data has nothing to act on: add --num-fewshot N.");
    if (o->fewshot.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--fewshot-data is given %d times for %d task%s.",
                       o->fewshot.n, n_tasks, end);
    return DQ_OK;
}

/* Files without a name that no task has taken. */
static dq_status check_data(const cmd_eval_options *o, int used, dq_err *err)
{
    for (int i = 0, plain = 0; i < o->data.n; i++) {
        if (!is_named(o->data.item[i]) && plain++ >= used)
            return dq_fail(err, DQ_USAGE, "--data %s: no task takes it.", o->data.item[i]);
    }
    return DQ_OK;
}

/* The first option of a file of results that is given; NULL: none is. */
static const char *given_file(const cmd_eval_options *o)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        const cmd_eval_kind *kind = cmd_eval_kinds[i];
        if (kind->cli.file && kind->cli.file(o->own[i])) return kind->cli.file_option;
    }
    return NULL;
}

static const char *dumped(const cmd_eval_kind *kind)
{
    return kind->out.dump || kind->out.keys ? kind->cli.has : NULL;
}

static const char *shown(const cmd_eval_kind *kind)
{
    return kind->out.requests ? kind->cli.has : NULL;
}

/* Outputs that something must come out for. */
static dq_status check_dumps(const cmd_eval_options *o, dq_err *err)
{
    bool items = false, requests = false;
    char what[200];
    for (int i = 0; i < o->n_sources; i++) {
        const cmd_eval_kind *kind = cmd_eval_kind_of(&o->source[i]);
        items = items || kind->out.dump || kind->out.keys;
        requests = requests || kind->out.requests;
    }
    if (o->dump && !items)
        return dq_fail(
            err, DQ_USAGE,
            "--dump-items writes windows of a --text and items of a --task with %s; there "
            "is none.",
            cmd_eval_kind_join(what, sizeof what, dumped, " or "));
    if (o->requests && !requests)
        return dq_fail(err, DQ_USAGE,
                       "--dump-requests writes items of a --task with %s; there is none.",
                       cmd_eval_kind_join(what, sizeof what, shown, " or "));
    const char *scored = o->dump            ? "dump-items"
                         : o->csv           ? "csv"
                         : o->html          ? "html"
                         : o->resume        ? "resume"
                         : o->fail_if.n > 0 ? "fail-if"
                                            : given_file(o);
    if (o->dry_run && scored)
        return dq_fail(err, DQ_USAGE, "--dry-run scores nothing, so --%s cannot go with it.",
                       scored);
    return DQ_OK;
}

/* Sources that options of their own name, without --task. */
static dq_status choose_more(cmd_eval_options *o, dq_err *err)
{
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->cli.choose_more)
            DQ_TRY(cmd_eval_kinds[i]->cli.choose_more(o->own[i], o, err));
    }
    return DQ_OK;
}

dq_status cmd_eval_choose(cmd_eval_options *o, dq_arena *a, dq_err *err)
{
    dq_list names = {.n = 0};
    int used = 0; /* files without a name that earlier tasks have taken */
    DQ_TRY(cmd_eval_check_twice(&o->data, "data", err));
    DQ_TRY(cmd_eval_check_twice(&o->fewshot, "fewshot-data", err));
    for (int i = 0; i < o->tasks.n; i++)
        DQ_TRY(cmd_eval_split(o->tasks.item[i], "task", &names, a, err));
    for (int i = 0; i < names.n; i++) DQ_TRY(choose_task(o, names.item[i], &used, a, err));
    DQ_TRY(check_lists(o, names.n, err));
    DQ_TRY(check_data(o, used, err));
    DQ_TRY(choose_more(o, err));
    if (o->n_sources == 0)
        return dq_fail(err, DQ_USAGE,
                       "nothing to score: give --task NAME --data FILE or --text FILE.");
    return check_dumps(o, err);
}

dq_status cmd_eval_inputs_add(cmd_eval_inputs *in, const char *path, dq_arena *a, dq_err *err)
{
    const char **item = dq_grow(a, in->path, (size_t)in->n + 1, &in->capacity, sizeof *item, err);
    if (!item) return err->code;
    in->path = item;
    in->path[in->n++] = path;
    return DQ_OK;
}

dq_status cmd_eval_inputs_list(cmd_eval_inputs *in, const cmd_eval_options *o, const dq_args *args,
                               dq_arena *a, dq_err *err)
{
    for (int i = 0; i < args->n_inputs; i++)
        DQ_TRY(cmd_eval_inputs_add(in, args->input[i], a, err));
    for (int i = 0; i < DQ_EVAL_KINDS; i++) {
        if (cmd_eval_kinds[i]->cli.reads)
            DQ_TRY(cmd_eval_kinds[i]->cli.reads(in, o->own[i], o, a, err));
    }
    return DQ_OK;
}
