/* eval_tasks: see eval_tasks.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_tasks.h"

#include "base/os.h"
#include "tasks/fewshot.h"

#include <stdio.h>
#include <string.h>

static const char verdicts[] = "verdicts", needle[] = "needle";

static bool is_task(const char *name)
{
    for (int i = 0; i < dq_n_tasks; i++) {
        if (strcmp(dq_tasks[i].name, name) == 0) return true;
    }
    return dq_icl_task_find(name) || dq_generate_is_task(name) || strcmp(name, needle) == 0 ||
           strcmp(name, verdicts) == 0;
}

/* "NAME=FILE" with the name of a task. */
static bool is_named(const char *given)
{
    char name[32];
    size_t n = strcspn(given, "=");
    if (!given[n] || n >= sizeof name) return false;
    memcpy(name, given, n);
    name[n] = 0;
    return is_task(name);
}

/* NAME=FILE with one name twice. */
static dq_status check_twice(const dq_list *given, const char *option, dq_err *err)
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

/* The path of a task: the one given with its name, else the next one given without a name. */
static const char *path_for(const dq_list *given, const char *name, int *used)
{
    size_t n = strlen(name);
    for (int i = 0; i < given->n; i++) {
        if (strncmp(given->item[i], name, n) == 0 && given->item[i][n] == '=')
            return given->item[i] + n + 1;
    }
    for (int i = 0, plain = 0; i < given->n; i++) {
        if (is_named(given->item[i]) || plain++ < *used) continue;
        ++*used;
        return given->item[i];
    }
    return NULL;
}

static dq_status add_source(dq_eval_options *o, const dq_eval_source *source, dq_err *err)
{
    if (o->n_sources == DQ_EVAL_SOURCES)
        return dq_fail(err, DQ_USAGE, "more than %d tasks.", DQ_EVAL_SOURCES);
    o->source[o->n_sources++] = *source;
    return DQ_OK;
}

/* The source of a task but for its path. *form: of its file. */
static dq_status source_for(dq_eval_options *o, const char *name, dq_eval_source *out,
                            const char **form, dq_err *err)
{
    *out = (dq_eval_source){.name = name};
    out->kind = dq_generate_task(&o->generate, name, &out->settings);
    if (out->kind) {
        *form = dq_generate_form(out->kind);
        return DQ_OK;
    }
    if (strcmp(name, needle) == 0) {
        out->kind = &dq_eval_needle;
        out->settings = &o->needle.settings;
        *form = "a UTF-8 text to hide numbers in";
        return DQ_OK;
    }
    out->task = dq_task_find(name, err);
    if (!out->task) {
        size_t n = strlen(err->text);
        if (n && err->text[n - 1] == '.') n--;
        snprintf(err->text + n, sizeof err->text - n, ", %s, %s", needle, dq_generate_tasks);
        for (int i = 0; i < dq_icl_n_tasks; i++) {
            n = strlen(err->text);
            snprintf(err->text + n, sizeof err->text - n, ", %s", dq_icl_tasks[i].name);
        }
        n = strlen(err->text);
        snprintf(err->text + n, sizeof err->text - n, ", %s.", verdicts);
        return err->code;
    }
    out->kind = &dq_eval_choices;
    *form = out->task->form;
    return DQ_OK;
}

/* Where the examples in front of the last source come from. */
static dq_status take_examples(dq_eval_options *o, const char *form, int *used, dq_err *err)
{
    dq_eval_source *s = &o->source[o->n_sources - 1];
    dq_generate_options *g = &o->generate;
    if (o->num_fewshot == 0) return DQ_OK;
    if (!s->task && s->kind != &dq_eval_answers)
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot is for items with answers; prompts of --task %s are taken as "
                       "they are.",
                       s->name);
    const char *path = path_for(&o->fewshot, s->name, used);
    if (!path)
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot %lld: --task %s needs the file of its examples: give "
                       "--fewshot-data FILE (expected %s).",
                       (long long)o->num_fewshot, s->name, form);
    o->examples[o->n_sources - 1] = path;
    if (s->task) {
        s->n_shots = o->num_fewshot;
        s->seed = o->kv.seed >= 0 ? o->kv.seed : DQ_FEWSHOT_SEED;
        o->kv.draws = true;
        return DQ_OK;
    }
    if (g->shots_path && strcmp(g->shots_path, path) != 0)
        return dq_fail(err, DQ_USAGE,
                       "--fewshot-data: questions take their examples from one file, found %s and "
                       "%s. Score them in two runs.",
                       g->shots_path, path);
    g->num_fewshot = o->num_fewshot;
    g->shots_path = path;
    return DQ_OK;
}

/* Files without a name that earlier tasks have taken. */
typedef struct files_used {
    int data, fewshot, demos;
} files_used;

/* One task with its file and that of its examples. */
static dq_status choose_task(dq_eval_options *o, const char *name, files_used *used, dq_arena *a,
                             dq_err *err)
{
    const dq_icl_task *icl = dq_icl_task_find(name);
    dq_eval_source source;
    const char *form = icl ? icl->form : NULL;
    if (!icl) DQ_TRY(source_for(o, name, &source, &form, err));
    for (int k = 0; k < o->n_sources; k++) {
        if (strcmp(o->source[k].name, name) == 0)
            return dq_fail(err, DQ_USAGE, "--task: %s stands twice.", name);
    }
    source.path = path_for(&o->data, name, &used->data);
    if (!source.path)
        return dq_fail(err, DQ_USAGE, "--task %s needs its file: give --data FILE (expected %s).",
                       name, form);
    if (icl)
        return dq_eval_icl_add(&o->icl, icl, source.path,
                               path_for(&o->icl.demos, name, &used->demos), o->source,
                               &o->n_sources, DQ_EVAL_SOURCES, a, err);
    DQ_TRY(add_source(o, &source, err));
    return take_examples(o, form, &used->fewshot, err);
}

/* Verdicts run no model, so they go with nothing that does. */
static dq_status choose_verdicts(dq_eval_options *o, const dq_list *names, const dq_args *args,
                                 dq_err *err)
{
    int used = 0;
    if (names->n > 1 || o->text.files.n)
        return dq_fail(err, DQ_USAGE, "--task verdicts runs no model: give no other task or text.");
    if (args->n)
        return dq_fail(err, DQ_USAGE,
                       "--task verdicts runs no model, the file names the models: leave out %s.",
                       args->item[0]);
    if (o->num_fewshot || o->fewshot.n)
        return dq_fail(err, DQ_USAGE,
                       "--task verdicts runs no model, so there is nothing to put examples in "
                       "front of.");
    o->verdicts = path_for(&o->data, verdicts, &used);
    if (!o->verdicts || o->data.n > 1)
        return dq_fail(err, DQ_USAGE,
                       "--task verdicts needs one file: give --data FILE (expected JSON lines "
                       "{\"item\", \"verdict\"}).");
    return DQ_OK;
}

static dq_status check_lists(const dq_eval_options *o, int n_tasks, dq_err *err)
{
    const char *end = n_tasks == 1 ? "" : "s";
    if (o->data.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--data is given %d times for %d task%s.", o->data.n, n_tasks,
                       end);
    if (o->num_fewshot > 0 && n_tasks == 0)
        return dq_fail(err, DQ_USAGE, "--num-fewshot is for items of a --task; there is none.");
    if (o->num_fewshot == 0 && o->fewshot.n > 0)
        return dq_fail(err, DQ_USAGE, "--fewshot-data has nothing to act on: add --num-fewshot N.");
    if (o->fewshot.n > n_tasks)
        return dq_fail(err, DQ_USAGE, "--fewshot-data is given %d times for %d task%s.",
                       o->fewshot.n, n_tasks, end);
    return DQ_OK;
}

static dq_status check_icl(dq_eval_options *o, dq_err *err)
{
    const dq_eval_icl *icl = &o->icl;
    DQ_TRY(dq_eval_icl_check(icl, err));
    o->kv.draws = o->kv.draws || icl->n > 0;
    if (icl->n > 0 && icl->n == o->n_sources && o->num_fewshot > 0)
        return dq_fail(err, DQ_USAGE,
                       "--num-fewshot: in-context learning has --shots instead; there is no other "
                       "task.");
    if (icl->demos.n > icl->n / icl->n_orders_of)
        return dq_fail(err, DQ_USAGE, "--demos is given %d times for %d task%s.", icl->demos.n,
                       icl->n / icl->n_orders_of, icl->n == icl->n_orders_of ? "" : "s");
    return DQ_OK;
}

/* Outputs that something must come out for. */
static dq_status check_dumps(const dq_eval_options *o, dq_err *err)
{
    bool choices = false;
    bool requests = false; /* that are made when the source is encoded */
    for (int i = 0; i < o->n_sources; i++) {
        const dq_eval_kind *kind = o->source[i].kind;
        choices = choices || o->source[i].task;
        requests = requests || kind == &dq_eval_needle || kind == &dq_eval_icl_kind;
    }
    if (o->dump && !choices && !requests)
        return dq_fail(err, DQ_USAGE,
                       "--dump-items writes items of a --task with choices or needles; there is "
                       "none.");
    if (o->requests && !choices)
        return dq_fail(err, DQ_USAGE,
                       "--dump-requests writes items of a --task with choices; there is none.");
    if (o->dry_run &&
        (o->dump || o->csv || o->resume || o->html || o->fail_if.n > 0 || o->generate.completions))
        return dq_fail(err, DQ_USAGE, "--dry-run scores nothing, so --%s cannot go with it.",
                       o->dump            ? "dump-items"
                       : o->csv           ? "csv"
                       : o->html          ? "html"
                       : o->resume        ? "resume"
                       : o->fail_if.n > 0 ? "fail-if"
                                          : "dump-completions");
    return DQ_OK;
}

dq_status dq_eval_choose(dq_eval_options *o, const dq_args *args, const dq_usage *usage,
                         dq_arena *a, dq_err *err)
{
    dq_list names = {.n = 0};
    files_used used = {0, 0, 0};
    DQ_TRY(check_twice(&o->data, "data", err));
    DQ_TRY(check_twice(&o->fewshot, "fewshot-data", err));
    DQ_TRY(check_twice(&o->icl.demos, "demos", err));
    for (int i = 0; i < o->tasks.n; i++)
        DQ_TRY(dq_eval_split(o->tasks.item[i], "task", &names, a, err));
    for (int i = 0; i < names.n; i++) {
        if (strcmp(names.item[i], verdicts) == 0) return choose_verdicts(o, &names, args, err);
    }
    if (args->n == 0)
        return dq_fail(err, DQ_USAGE, "expected %s, found 0 arguments. Usage: dq eval %s",
                       usage->args, usage->synopsis);
    for (int i = 0; i < names.n; i++) DQ_TRY(choose_task(o, names.item[i], &used, a, err));
    DQ_TRY(check_lists(o, names.n, err));
    DQ_TRY(check_icl(o, err));
    if (o->text.files.n) {
        const dq_eval_source text = {.name = "text",
                                     .path = o->text.files.item[0],
                                     .kind = &dq_eval_text,
                                     .settings = &o->text.settings};
        DQ_TRY(add_source(o, &text, err));
    }
    if (o->n_sources == 0)
        return dq_fail(err, DQ_USAGE,
                       "nothing to score: give --task NAME --data FILE or --text FILE.");
    return check_dumps(o, err);
}

dq_status dq_eval_is_input(bool *is, const dq_eval_options *o, const char *out, dq_arena *a,
                           dq_err *err)
{
    *is = (o->verdicts && dq_same_file(out, o->verdicts)) || dq_text_options_names(&o->text, out);
    for (int i = 0; i < o->n_sources; i++) {
        const dq_task *task = o->source[i].task;
        const char *path[] = {o->source[i].path, o->examples[i]};
        for (int k = 0; k < 2 && path[k]; k++) {
            const char *labels = path[k];
            if (task && task->first_label >= 0) labels = dq_task_labels_path(path[k], a, err);
            if (!labels) return err->code;
            *is = *is || dq_same_file(out, path[k]) || dq_same_file(out, labels);
        }
    }
    for (int i = 0; i < o->icl.n; i++) {
        const char *demos = o->icl.setting[i].demos.path;
        *is = *is || (demos && dq_same_file(out, demos));
    }
    return DQ_OK;
}
