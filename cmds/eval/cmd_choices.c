/* Multiple choice in dq eval. Its options, those of few-shot examples, are shared with questions
 * and stand in eval_inputs.c.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/inside.h"
#include "record/record.h"
#include "tasks/tasks.h"

#include <string.h>

static const char *task(int i, const char **form)
{
    *form = NULL;
    return dq_task_choices[i];
}

/* NULL: the source is of another kind. */
static const dq_task *task_of(const dq_eval_source *s)
{
    return s->task && s->task->choices ? s->task : NULL;
}

static dq_status choose(void *own, cmd_eval_options *o, const char *name, const char *path,
                        dq_err *err)
{
    const dq_eval_source source = {
        .name = name, .path = path, .kind = &dq_eval_choices, .task = o->task};
    (void)own;
    DQ_TRY(cmd_eval_add_source(o, &source, "tasks", err));
    return cmd_eval_take_examples(o, true, err);
}

/* A task's data file and its labels; `what` follows the task's name in `inputs`. */
static dq_status read_items(dq_items *items, const dq_task *of, const char *path, int64_t limit,
                            const char *what, cmd_eval_files *f, dq_arena *a, dq_err *err)
{
    const char *text, *kind = dq_textf(a, err, "%s%s", of->name, what);
    const char *labels = dq_textf(a, err, "%s%s labels", of->name, what);
    size_t len;
    if (!kind || !labels) return err->code;
    DQ_TRY(cmd_eval_file_read(f, f->sha[f->n++], kind, path, &text, &len, a, err));
    DQ_TRY(dq_task_load(items, of, path, text, len, limit, a, err));
    dq_input_warn_bad(f->logger, path, items->n_bad, items->first_bad);
    if (!of->metric)
        dq_input_warn_spaces(items, path, f->logger); /* published ones are as they are */
    if (!items->labels_path) return DQ_OK;
    return cmd_eval_file_note(f, f->sha[f->n++], labels, items->labels_path, items->labels,
                              items->labels_len, err);
}

static dq_status load(void *own, dq_eval *e, const cmd_eval_options *o, int i,
                      cmd_eval_files *files, dq_err *err)
{
    dq_eval_source *s = &e->source[i];
    dq_items pool;
    (void)own;
    DQ_TRY(read_items(&s->items, s->task, s->path, o->limit, "", files, e->a, err));
    if (s->n_shots == 0) return DQ_OK;
    DQ_TRY(read_items(&pool, s->task, o->examples[i], 0, " few-shot", files, e->a, err));
    if (dq_fewshot(&s->items, &s->n_own_shots, &pool, s->task, s->n_shots, (uint64_t)s->seed, e->a,
                   err) == DQ_OK)
        return DQ_OK;
    return dq_in(err, "%s: ", o->examples[i]);
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    cmd_eval_choices_rows(w, e, r);
    DQ_PUT(w, "skipped_items", dq_eval_source_of(e, r)->n_skipped,
           "Items that were too long and are left out.");
    return err->code;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *row, int64_t k,
                      dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, row);
    const dq_requests *q = &v->e->ids[row->ids].req;
    const dq_request *r = &q->req[k];
    const dq_item *of = &s->items.item[r->item];
    cmd_eval_choice_rows(w, s, r->item, r->choice);
    cmd_eval_request_rows(w, v, row, r, r->n_cont);
    DQ_PUT(w, "shots", s->n_shots, NULL);
    DQ_PUT(w, "gold", of->gold, NULL);
    DQ_OBJECT(w, "pick", NULL);
    for (int m = 0; m < 2; m++)
        DQ_PUT(w, s->kind->metric[m], dq_eval_pick(of, row, &q->req[q->at[r->item]], m), NULL);
    dq_row_end(w);
    return err->code;
}

/* Prints which metric publications quote, and what precedes the items. */
static dq_status tables(const cmd_eval_view *v, dq_err *err)
{
    static const char *const metrics[] = {"acc", "acc_norm"};
    const dq_eval *e = v->e;
    int said = 0;
    (void)err;
    for (int m = 0; m < 2; m++) {
        int n = 0;
        for (int i = 0; i < e->n_sources; i++) {
            const dq_task *of = task_of(&e->source[i]);
            if (!of || !of->metric || strcmp(of->metric, metrics[m]) != 0) continue;
            if (n == 0) printf(said++ ? "; %s of " : "published results quote %s of ", metrics[m]);
            printf(n++ ? ", %s" : "%s", of->name);
        }
    }
    if (said) printf("\n");
    for (int i = 0; i < e->n_sources; i++) {
        const dq_eval_source *s = &e->source[i];
        if (!task_of(s) || s->task->metric) continue;
        const char *delimiter = dq_items_delimiter(&s->items);
        if (!delimiter)
            printf("between a context of %s and its choices stands the item's \"delimiter\"\n",
                   s->name);
        else if (!delimiter[0])
            printf("choices of %s follow their contexts without a delimiter\n", s->name);
        else if (strcmp(delimiter, " ") == 0)
            printf("choices of %s follow their contexts after one space; \"delimiter\" of an item "
                   "changes it\n",
                   s->name);
        else
            printf("choices of %s follow their contexts after their \"delimiter\"\n", s->name);
    }
    for (int i = 0; i < e->n_sources; i++) { /* all that have examples have as many */
        const dq_eval_source *s = &e->source[i];
        if (!s->n_shots) continue;
        printf("%lld few-shot examples before every item, drawn with seed %lld\n",
               (long long)s->n_shots, (long long)s->seed);
        break;
    }
    return DQ_OK;
}

const cmd_eval_kind cmd_eval_choices = {
    .kind = {&dq_eval_choices},
    .tasks_help =
        "mc: your own items, JSON lines {\"ctx\", \"choices\", \"gold\"}, and if you like "
        "\"delimiter\" (what stands before a choice; one space) and \"cluster\" (items of one "
        "depend on each other);\narc_easy, arc_challenge, boolq, hellaswag, openbookqa, piqa, "
        "winogrande: the official JSON lines, in their original and their flat form (hellaswag: "
        "or six lines an item; piqa: with X-labels.lst beside X.jsonl)",
    .task = task,
    .choose = choose,
    .load = load,
    .details = details,
    .tables = tables,
    .item = item,
};
