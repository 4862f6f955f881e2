/* Records become prompts and what judges their answers. Examples come from another file likewise
 * and are drawn in the order of the questions.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/tasks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct list {
    dq_question *question;
    int64_t n;
    size_t cap;
    const dq_task *task;
    const dq_question_shots *shots; /* NULL: none */
    dq_shots_draw draw;
    dq_strbuf text; /* of the examples before the next question */
    dq_arena *a;
} list;

/* The record's own id, of any JSON type. */
static dq_status id_of(const char **id, const json_t *record, dq_arena *a, dq_err *err)
{
    const json_t *v = json_object_get(record, "id");
    if (!v) v = json_object_get(record, "ID");
    *id = NULL;
    if (!v) return DQ_OK;
    char *s;
    if (json_is_real(v) && fabs(json_real_value(v)) >= 0x1p63)
        return dq_fail(err, DQ_DAMAGED,
                       "the \"id\" is a number of too many digits. Write it as a string.");
    DQ_TRY(dq_json_dump(&s, v, JSON_ENCODE_ANY | JSON_COMPACT, err));
    *id = dq_text(a, s, strlen(s), err);
    free(s);
    return err->code;
}

/* Copies a text of the record, which may lack it. */
static dq_status keep(const char **out, const dq_task *t, dq_task_member member,
                      const json_t *record, dq_arena *a, dq_err *err)
{
    static const char *const none = NULL;
    const char *text = NULL;
    if (t->key[member]) DQ_TRY(dq_json_text(&text, record, t->key[member], &none, err));
    *out = text ? dq_text(a, text, strlen(text), err) : NULL;
    return err->code;
}

/* A list of texts as JSON. */
static dq_status keep_list(const char **out, const dq_task *t, const json_t *record, dq_arena *a,
                           dq_err *err)
{
    const char *key = t->key[DQ_TASK_REFERENCE];
    const json_t *texts = key ? json_object_get(record, key) : NULL;
    char *text = NULL;
    *out = NULL;
    if (!key) return DQ_OK;
    if (!json_is_string(json_array_get(texts, 0)))
        return dq_json_wrong(key, "a list of texts", texts, err);
    if (dq_json_dump(&text, texts, JSON_COMPACT, err) == DQ_OK)
        *out = dq_text(a, text, strlen(text), err);
    free(text);
    return err->code;
}

/* Examples before the question, which is not among them. */
static dq_status put_shots(list *l, uint64_t content, dq_err *err)
{
    const int64_t n = l->shots->n;
    int64_t left;
    DQ_TRY(dq_shots_next(&l->draw, content, &left, err));
    if (left < n)
        return dq_fail_with(err, DQ_MISMATCH,
                            (dq_remedy){.code = DQ_REMEDY_SHOTS, .number = {left}},
                            "the file of examples has %lld that are not this question, %lld are "
                            "asked for as shots",
                            (long long)left, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const dq_question *x = &l->shots->example[l->draw.at[i]];
        const char *const part[] = {x->prompt, " ", x->worked, "\n\n"};
        for (int k = 0; k < 4; k++) DQ_TRY(dq_strbuf_add(&l->text, part[k], strlen(part[k]), err));
    }
    return DQ_OK;
}

static dq_status add_question(void *arg, json_t *record, int64_t line, dq_err *err)
{
    list *l = arg;
    const dq_task *t = l->task;
    const char *prompt, *passage;
    dq_question *more = dq_grow(l->a, l->question, (size_t)l->n + 1, &l->cap, sizeof *more, err);
    if (!more) return err->code;
    l->question = more;
    dq_question *q = &more[l->n++];
    *q = (dq_question){.line = line};
    DQ_TRY(id_of(&q->id, record, l->a, err));
    DQ_TRY(dq_task_make(t, record, err));
    DQ_TRY(dq_json_text(&prompt, record, t->key[DQ_TASK_TEXT], NULL, err));
    if (t->answered) {
        DQ_TRY(dq_json_text(&q->gold, record, t->key[DQ_TASK_ANSWER], NULL, err));
        DQ_TRY(dq_json_text(&q->worked, record, t->key[DQ_TASK_TARGET], NULL, err));
        if (!*q->gold) return dq_fail(err, DQ_DAMAGED, "the answer is empty");
        DQ_TRY(dq_task_rule(&q->rule, t, record, q->gold, err));
    }
    DQ_TRY(keep(&q->gold, t, DQ_TASK_ANSWER, record, l->a, err));
    DQ_TRY(keep(&q->worked, t, DQ_TASK_TARGET, record, l->a, err));
    DQ_TRY(keep(&q->query, t, DQ_TASK_QUERY, record, l->a, err));
    DQ_TRY(keep_list(&q->reference, t, record, l->a, err));
    DQ_TRY(keep(&passage, t, DQ_TASK_PASSAGE, record, l->a, err));
    q->content = dq_repeats_key(prompt, strlen(prompt));
    q->cluster = passage ? dq_repeats_key(passage, strlen(passage)) : q->content;
    DQ_TRY(dq_task_file_read_cluster(&q->cluster, record, err));
    l->text.n = 0;
    if (t->answered && l->shots && l->shots->n) DQ_TRY(put_shots(l, q->content, err));
    q->prompt = dq_textf(l->a, err, "%.*s%s", (int)l->text.n, l->text.n ? l->text.s : "", prompt);
    if (!q->prompt) return err->code;
    q->len = strlen(q->prompt);
    return q->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "the prompt is empty");
}

static dq_status read_file(list *l, dq_questions *out, const char *path, const char *text,
                           size_t len, int64_t limit, dq_err *err)
{
    dq_task_reader r = {.task = l->task, .take = add_question, .arg = l, .limit = limit};
    *out = (dq_questions){.first_bad = -1};
    if (dq_task_file_text(&text, &len, &out->n_bad, &out->first_bad, l->a, err) == DQ_OK)
        dq_task_records(&r, text, len, err);
    dq_block_free(l->text.s);
    out->question = l->question;
    out->n = l->n;
    out->n_own_shots = l->draw.n_own;
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

dq_status dq_questions_load(dq_questions *out, const dq_task *task, const dq_question_shots *shots,
                            const char *path, const char *text, size_t len, int64_t limit,
                            dq_arena *a, dq_err *err)
{
    list l = {.task = task, .shots = shots, .a = a};
    if (shots && shots->n) {
        uint64_t *content = dq_alloc(a, (size_t)shots->n_examples, sizeof *content, err);
        if (!content) return err->code;
        for (int64_t i = 0; i < shots->n_examples; i++) content[i] = shots->example[i].content;
        l.draw = (dq_shots_draw){
            .content = content, .n_all = shots->n_examples, .n = shots->n, .first = !shots->drawn};
        DQ_TRY(dq_shots_begin(&l.draw, shots->seed, a, err));
    }
    DQ_TRY(read_file(&l, out, path, text, len, limit, err));
    if (l.n > 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "%s: holds no items (expected %s)", path, task->form);
}

dq_status dq_questions_shots(dq_question_shots *shots, const dq_task *task, const char *path,
                             const char *text, size_t len, dq_arena *a, dq_err *err)
{
    dq_questions read;
    list l = {.task = task, .a = a};
    DQ_TRY(read_file(&l, &read, path, text, len, 0, err));
    if (l.n < shots->n)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SHOTS, .number = {l.n}},
                            "%s: has %lld items, %lld are asked for as shots", path, (long long)l.n,
                            (long long)shots->n);
    shots->example = l.question;
    shots->n_examples = l.n;
    return DQ_OK;
}
