/* tasks: see tasks.h. The table of tasks, and one loader for all: the row's function reads records into a list,
 * then a file of labels beside it, if the task has one, answers those that lack an answer.
 * SPDX-License-Identifier: MIT */
#include "tasks/tasks.h"

#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/hellaswag.h"
#include "tasks/repeats.h"
#include "tasks/task_forms.h"

#include <stdio.h>
#include <string.h>

#define JSONL_LOADER(name)                                                                         \
    static dq_status load_##name(dq_task_items *l, const char *text, size_t len, int64_t limit,    \
                                 dq_err *err)                                                      \
    {                                                                                              \
        return dq_task_file_read_jsonl(l, text, len, limit, dq_read_##name, err);                  \
    }
JSONL_LOADER(mc)
JSONL_LOADER(arc)
JSONL_LOADER(openbookqa)
JSONL_LOADER(boolq)
JSONL_LOADER(piqa)
JSONL_LOADER(winogrande)

#define ARC_FORM                                                                                   \
    "JSON lines {\"question\": {\"stem\", \"choices\": [{\"text\", \"label\"}]}, \"answerKey\"} "  \
    "or {\"question\", \"choices\": {\"text\", \"label\"}, \"answerKey\"}"

const dq_task dq_tasks[] = {
    {.name = "mc",
     .form = "JSON lines {\"ctx\", \"choices\", \"gold\"}",
     .first_label = -1,
     .load = load_mc},
    {.name = "hellaswag",
     .form = "the official JSON lines, or six lines an item",
     .metric = "acc_norm",
     .by_norm = true,
     .draws_extra = true,
     .first_label = -1,
     .load = dq_hellaswag_load},
    {.name = "arc_easy", .form = ARC_FORM, .metric = "acc", .first_label = -1, .load = load_arc},
    {.name = "arc_challenge",
     .form = ARC_FORM,
     .metric = "acc",
     .first_label = -1,
     .load = load_arc},
    {.name = "boolq",
     .form = "JSON lines {\"passage\", \"question\", \"label\"} or {\"title\", \"passage\", "
             "\"question\", \"answer\"}",
     .metric = "acc",
     .draws_extra = true,
     .first_label = -1,
     .load = load_boolq},
    {.name = "openbookqa",
     .form = "JSON lines {\"question\": {\"stem\", \"choices\": [{\"text\", \"label\"}]}, "
             "\"answerKey\"} or {\"question_stem\", \"choices\": {\"text\", \"label\"}, "
             "\"answerKey\"}",
     .metric = "acc",
     .first_label = -1,
     .load = load_openbookqa},
    {.name = "piqa",
     .form = "JSON lines {\"goal\", \"sol1\", \"sol2\"} with X-labels.lst beside X.jsonl",
     .metric = "acc",
     .draws_extra = true,
     .first_label = 0,
     .load = load_piqa},
    {.name = "winogrande",
     .form = "JSON lines {\"sentence\", \"option1\", \"option2\", \"answer\"}",
     .metric = "acc",
     .draws_extra = true,
     .first_label = 1,
     .load = load_winogrande},
};
const int dq_tasks_n = sizeof dq_tasks / sizeof dq_tasks[0];

const dq_task *dq_task_find(const char *name, dq_err *err)
{
    char all[256] = "";
    for (int i = 0; i < dq_tasks_n; i++) {
        if (strcmp(name, dq_tasks[i].name) == 0) return &dq_tasks[i];
        if (i) strncat(all, ", ", sizeof all - strlen(all) - 1);
        strncat(all, dq_tasks[i].name, sizeof all - strlen(all) - 1);
    }
    dq_fail(err, DQ_USAGE, "unknown task \"%s\". There are: %s.", name, all);
    return NULL;
}

char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err)
{
    static const char end[] = ".jsonl";
    size_t n = strlen(path), m = sizeof end - 1;
    if (n > m && strcmp(path + n - m, end) == 0) n -= m;
    return dq_textf(a, err, "%.*s-labels.lst", (int)n, path);
}

static int64_t count_items(const char *text, size_t len)
{
    const char *line;
    size_t at = 0, n;
    int64_t items = 0;
    while (dq_task_file_next_line(text, len, &at, &line, &n))
        items += !dq_task_file_is_blank(line, n);
    return items;
}

/* Labels of all items of the file, for those in the list that lack an answer. */
static dq_status apply_labels(dq_task_items *l, const dq_task *task, const dq_items *file,
                              int64_t n_items, dq_err *err)
{
    const char *line;
    size_t at = dq_utf8_mark(file->labels, file->labels_len), n;
    int64_t number = 0, i = 0;
    while (dq_task_file_next_line(file->labels, file->labels_len, &at, &line, &n)) {
        number++;
        if (dq_task_file_is_blank(line, n)) continue;
        if (i == n_items)
            return dq_fail(err, DQ_DAMAGED,
                           "line %lld: is after the labels of all %lld items (expected as many "
                           "labels as items)",
                           (long long)number, (long long)n_items);
        int n_choices = l->item[i < l->n ? i : 0].n_choices;
        int gold = dq_task_file_index_of(line, n, task->first_label, n_choices);
        if (gold < 0)
            return dq_fail(err, DQ_DAMAGED,
                           "item %lld, line %lld: expected a label from %d to %d, found \"%.*s\"",
                           (long long)i, (long long)number, task->first_label,
                           task->first_label + n_choices - 1, n < 40 ? (int)n : 40, line);
        if (i < l->n && l->item[i].gold < 0) l->item[i].gold = gold;
        i++;
    }
    if (i < n_items)
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: the labels end (expected one for each of %lld items)",
                       (long long)number, (long long)n_items);
    return DQ_OK;
}

static dq_status find_labels(dq_items *out, dq_task_items *l, const dq_task *task, const char *path,
                             const char *text, size_t len, dq_err *err)
{
    bool lacking = false;
    for (int64_t i = 0; i < l->n; i++) lacking = lacking || l->item[i].gold < 0;
    if (!lacking) return DQ_OK;
    char *labels, *labels_path = dq_task_labels_path(path, l->a, err);
    if (!labels_path) return err->code;
    if (!dq_file_exists(labels_path))
        return dq_fail(err, DQ_FILE,
                       "%s: is missing; the items of %s have no answers of their own. Put the file "
                       "of labels there",
                       labels_path, path);
    DQ_TRY(dq_file_read_text(&labels, &out->labels_len, labels_path, 0, l->a, err));
    out->labels = labels;
    out->labels_path = labels_path;
    if (apply_labels(l, task, out, count_items(text, len), err) == DQ_OK) return DQ_OK;
    return dq_in(err, "%s: ", labels_path);
}

/* The first item fails where the whole file has another form. */
static void add_form(dq_err *err, const dq_task *task)
{
    dq_fail_more(err, dq_remedy_none, " (expected %s)", task->form);
}

static uint64_t content_of(const dq_item *item)
{
    uint64_t sum = 0;
    for (int c = 0; c < item->n_choices; c++) {
        size_t n;
        const char *ctx = dq_item_context(item, c, &n);
        sum += dq_random_mix(dq_repeats_key(item->choice[c].text, item->choice[c].len) +
                             dq_random_mix(dq_repeats_key(ctx, n)));
    }
    return dq_random_mix(sum);
}

dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err)
{
    dq_task_items l = {.a = a};
    int64_t first_bad = -1, n_bad = dq_utf8_check(text, len, &first_bad);
    *out = (dq_items){.n_bad = n_bad, .first_bad = first_bad};
    if (n_bad > 0) {
        char *fixed = dq_alloc(a, len + 2 * (size_t)n_bad + 1, 1, err);
        if (!fixed) return err->code;
        len = dq_utf8_repair(fixed, text, len);
        text = fixed;
    }
    const size_t mark = dq_utf8_mark(text, len);
    text += mark;
    len -= mark;
    if (task->load(&l, text, len, limit, err) == DQ_OK && l.n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no items (expected %s)", task->form);
    else if (err->code == DQ_DAMAGED && l.n <= 1)
        add_form(err, task);
    if (err->code != DQ_OK) return dq_in(err, "%s: ", path);
    DQ_TRY(find_labels(out, &l, task, path, text, len, err));
    for (int64_t i = 0; i < l.n; i++) {
        l.item[i].content = content_of(&l.item[i]);
        if (!l.item[i].cluster) l.item[i].cluster = l.item[i].content;
    }
    out->item = l.item;
    out->n = l.n;
    return DQ_OK;
}
