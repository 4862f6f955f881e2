/* eval_sources: see eval_sources.h.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/eval_sources.h"

#include "base/os.h"
#include "base/sha256.h"
#include "cmds/cli/document.h"
#include "cmds/cli/progress.h"
#include "tasks/fewshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void dq_eval_warn_bad(dq_talk *t, const char *path, int64_t n_bad, int64_t first)
{
    if (n_bad > 0)
        dq_warn(t,
                "%s: %lld ill-formed UTF-8 sequences read as U+FFFD, the first at byte "
                "%lld",
                path, (long long)n_bad, (long long)first);
}

static dq_status note_file(dq_eval_files *f, const char *name, const char *what, const char *path,
                           const char *text, size_t len, dq_err *err)
{
    char kind[64];
    DQ_TRY(dq_sha256_of(f->sha[f->n], text, len, err));
    snprintf(kind, sizeof kind, "%s%s", name, what);
    json_t *in = json_object();
    json_object_set_new(in, "kind", json_string(kind));
    json_object_set_new(in, "path", dq_name_json(path));
    json_object_set_new(in, "bytes", json_integer((json_int_t)len));
    json_object_set_new(in, "sha256", json_string(f->sha[f->n++]));
    json_array_append_new(f->inputs, in);
    return DQ_OK;
}

/* A file of a task and the labels that belong to it; what[2] names them in `inputs`. */
static dq_status read_items(dq_items *items, const dq_task *task, const char *path, int64_t limit,
                            const char *const *what, dq_eval_files *f, dq_arena *a, dq_err *err)
{
    char *text;
    size_t len;
    DQ_TRY(dq_file_read(&text, &len, path, a, err));
    DQ_TRY(note_file(f, task->name, what[0], path, text, len, err));
    DQ_TRY(dq_task_load(items, task, path, text, len, limit, a, err));
    dq_eval_warn_bad(f->talk, path, items->n_bad, items->first_bad);
    if (!items->labels_path) return DQ_OK;
    return note_file(f, task->name, what[1], items->labels_path, items->labels, items->labels_len,
                     err);
}

dq_status dq_eval_source_read(dq_eval *e, dq_eval_options *o, int i, dq_eval_files *files,
                              dq_err *err)
{
    dq_eval_source *s = &e->source[i];
    dq_arena *a = e->a;
    static const char *const own[] = {"", " labels"};
    static const char *const examples[] = {" few-shot", " few-shot labels"};
    if (dq_eval_icl_again(&o->icl, e->source, i)) return DQ_OK;
    if (s->kind == &dq_eval_text)
        return dq_text_options_load(&o->text, files->talk, files->inputs, files->sha[files->n++], a,
                                    err);
    if (!s->task) {
        char *text;
        DQ_TRY(dq_file_read(&text, &s->len, s->path, a, err));
        s->text = text;
        DQ_TRY(note_file(files, s->name, "", s->path, text, s->len, err));
        DQ_TRY(dq_eval_icl_demos(&o->icl, s, files->inputs, a, err));
        return s->kind->load ? s->kind->load(e, s, err) : DQ_OK;
    }
    dq_items pool;
    DQ_TRY(read_items(&s->items, s->task, s->path, o->limit, own, files, a, err));
    if (s->n_shots == 0) return DQ_OK;
    DQ_TRY(read_items(&pool, s->task, o->examples[i], 0, examples, files, a, err));
    if (dq_fewshot(&s->items, &pool, s->task, s->n_shots, (uint64_t)s->seed, a, err) == DQ_OK)
        return DQ_OK;
    return dq_in(err, "%s: ", o->examples[i]);
}

void dq_eval_task_json(json_t *row, const dq_eval_source *s)
{
    const char *metric = s->task->metric;
    json_object_set_new(row, "num_fewshot", json_integer((json_int_t)s->n_shots));
    json_object_set_new(row, "seed", s->n_shots ? json_integer((json_int_t)s->seed) : json_null());
    json_object_set_new(row, "paper_metric", metric ? json_string(metric) : json_null());
}

void dq_eval_tasks_note(const dq_eval *e)
{
    static const char *const metrics[] = {"acc", "acc_norm"};
    int said = 0;
    for (int m = 0; m < 2; m++) {
        int n = 0;
        for (int i = 0; i < e->n_sources; i++) {
            const dq_task *task = e->source[i].task;
            if (!task || !task->metric || strcmp(task->metric, metrics[m]) != 0) continue;
            if (n == 0) printf(said++ ? "; %s of " : "published results quote %s of ", metrics[m]);
            printf(n++ ? ", %s" : "%s", task->name);
        }
    }
    if (said) printf("\n");
    for (int i = 0; i < e->n_sources; i++) { /* all that have examples have as many */
        const dq_eval_source *s = &e->source[i];
        if (!s->n_shots) continue;
        printf("%lld few-shot examples in front of every item, drawn with seed %lld\n",
               (long long)s->n_shots, (long long)s->seed);
        break;
    }
}

static dq_status dump_item(FILE *f, const char *task, const dq_item *item, int64_t index,
                           dq_err *err)
{
    for (int c = 0; c < item->n_choices; c++) {
        size_t n;
        const char *ctx = dq_item_context(item, c, &n);
        json_t *o = json_object();
        json_object_set_new(o, "task", json_string(task));
        json_object_set_new(o, "item", json_integer((json_int_t)index));
        json_object_set_new(o, "choice", json_integer(c));
        json_object_set_new(o, "context", json_stringn(ctx, n));
        json_object_set_new(o, "continuation",
                            json_stringn(item->choice[c].text, item->choice[c].len));
        DQ_TRY(dq_line_put(f, o, err));
    }
    return DQ_OK;
}

static dq_status dump_items(FILE *f, const void *sweep, dq_err *err)
{
    const dq_eval *e = sweep;
    for (int i = 0; i < e->n_sources; i++) {
        const dq_eval_source *s = &e->source[i];
        for (int64_t k = 0; s->task && k < s->items.n; k++)
            DQ_TRY(dump_item(f, s->name, &s->items.item[k], dq_eval_number(s, k), err));
    }
    return DQ_OK;
}

dq_status dq_eval_dump_requests(const dq_eval *e, const char *path, dq_err *err)
{
    return dq_lines_write(path, dump_items, e, err);
}
