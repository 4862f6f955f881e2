/* Multiple choice in dq eval. Its options, those of few-shot examples, are shared with questions
 * and stand in eval_inputs.c.
 * SPDX-License-Identifier: MIT */
#include "cmds/eval/inside.h"
#include "record/record.h"
#include "tasks/tasks.h"

#include <string.h>

static const char *task(int i)
{
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
    return cmd_eval_add_source(o, &source, "tasks", err);
}

static dq_status examples(void *own, const cmd_eval_options *o, dq_eval_source *source,
                          const char *path, dq_err *err)
{
    (void)own;
    (void)path;
    (void)err;
    source->n_shots = o->num_fewshot;
    source->seed = o->kv.seed >= 0 ? o->kv.seed : DQ_FEWSHOT_SEED;
    return DQ_OK;
}

/* Labels files are named after those of the items. */
static dq_status reads(cmd_eval_inputs *in, const void *own, const cmd_eval_options *o, dq_err *err)
{
    (void)own;
    for (int i = 0; i < o->n_sources; i++) {
        const dq_task *of = task_of(&o->source[i]);
        const char *items[] = {o->source[i].path, o->examples[i]};
        for (int k = 0; of && of->first_label >= 0 && k < 2 && items[k]; k++) {
            const char *labels = dq_task_labels_path(items[k], o->a, err);
            if (!labels) return err->code;
            DQ_TRY(cmd_eval_inputs_add(in, labels, o->a, err));
        }
    }
    return DQ_OK;
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

/* NULL: items differ in it. */
static const char *delimiter_of(const dq_items *items)
{
    for (int64_t i = 1; i < items->n; i++) {
        if (strcmp(items->item[i].delimiter, items->item[0].delimiter) != 0) return NULL;
    }
    return items->item[0].delimiter;
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

static void dry_run(dq_row_writer *w, const dq_eval *e, const dq_eval_row *r)
{
    const dq_eval_source *s = DQ_LIVE(w, dq_eval_source_of(e, r));
    DQ_PUT(w, "num_fewshot", s->n_shots, "Solved examples before every item.");
    DQ_PUT(w, "seed", s->n_shots ? s->seed : -1, "Of their draw; null: none.",
           .when = DQ_NULL | DQ_BELOW_0);
    DQ_PUT(w, "paper_metric", s->task->metric, "The metric that papers quote; null: not known.",
           .when = DQ_NULL, DQ_WORD("acc", "acc_norm"));
    DQ_PUT(w, "delimiter", delimiter_of(&s->items),
           "What stands between contexts and choices; null: not the same in all items.",
           .when = DQ_NULL);
    DQ_PUT(w, "truncated_items", e->ids[r->ids].req.n_truncated,
           "Items that lost the beginning of their context.");
}

static dq_status details(dq_row_writer *w, const cmd_eval_view *v, int row, dq_err *err)
{
    const dq_eval *e = DQ_LIVE(w, v->e);
    const dq_eval_row *r = DQ_LIVE(w, &e->row[row]);
    dry_run(w, e, r);
    DQ_PUT(w, "skipped_items", dq_eval_source_of(e, r)->n_skipped,
           "Items that were too long and are left out.");
    return err->code;
}

static dq_status item(dq_row_writer *w, const cmd_eval_view *v, const dq_eval_row *row,
                      int64_t unit, dq_err *err)
{
    const dq_eval_source *s = dq_eval_source_of(v->e, row);
    const dq_requests *q = &v->e->ids[row->ids].req;
    const dq_request *first = &q->req[q->at[unit]];
    const dq_item *of = &s->items.item[unit];
    DQ_PUT(w, "shots", s->n_shots, NULL);
    DQ_PUT(w, "gold", of->gold, NULL);
    DQ_OBJECT(w, "pick", NULL);
    for (int m = 0; m < 2; m++)
        DQ_PUT(w, s->kind->metric[m], dq_eval_pick(of, row, first, m), NULL);
    dq_row_end(w);
    return err->code;
}

static dq_status requests(FILE *f, const dq_eval_source *s, dq_err *err)
{
    for (int64_t k = 0; k < s->items.n; k++) {
        const dq_item *one = &s->items.item[k];
        for (int c = 0; c < one->n_choices; c++) {
            size_t n;
            const char *ctx = dq_item_context(one, c, &n);
            json_t *o = json_object();
            dq_row_writer w = dq_row_json(o);
            DQ_PUT(&w, "task", s->name, NULL);
            DQ_PUT(&w, "item", dq_eval_number(s, k), NULL);
            DQ_PUT(&w, "choice", c, NULL);
            DQ_PUT(&w, "context", json_stringn(ctx, n), NULL);
            DQ_PUT(&w, "continuation", json_stringn(one->choice[c].text, one->choice[c].len), NULL);
            DQ_TRY(dq_document_put_line(f, o, err));
        }
    }
    return DQ_OK;
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
        const char *delimiter = delimiter_of(&s->items);
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
    .name = "choices",
    .kind = {&dq_eval_choices},
    .cli = {.tasks_help =
                "mc: your own items, JSON lines {\"ctx\", \"choices\", \"gold\"}, and if you like "
                "\"delimiter\" (what stands before a choice; one space) and \"cluster\" (items of "
                "one depend on each other);\narc_easy, "
                "arc_challenge, boolq, hellaswag, openbookqa, piqa, winogrande: the official JSON "
                "lines, in their original and their flat form (hellaswag: or six lines an item; "
                "piqa: with X-labels.lst beside X.jsonl)",
            .has = "choices",
            .tasks = "tasks with choices",
            .task = task,
            .choose = choose,
            .examples = examples,
            .reads = reads},
    .load = load,
    .out = {.dry_run = dry_run,
            .details = details,
            .item = item,
            .requests = requests,
            .tables = tables},
};
