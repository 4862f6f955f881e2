/* questions: see questions.h. A file is one JSON list or lines; both give records, one after the other, to the
 * same function. Examples are read from another file in the same way; the text before each question is joined from those
 * that it takes, drawn in the order of the questions.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"

#include "base/random_mt.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "tasks/answers.h"
#include "tasks/task_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const dq_question_form_text[] = {
    "JSON lines or one JSON list of {\"question\", \"answer\"} or {\"Body\", \"Question\", "
    "\"Answer\"}",
    "JSON lines or one JSON list of {\"prompt\"}"};

typedef dq_status take_record(void *arg, const json_t *record, int64_t line, dq_err *err);

/* What the records of a file become. */
typedef struct reader {
    take_record *take;
    void *arg;
    int64_t n, limit; /* taken; at most, 0: all */
} reader;

static bool is_full(const reader *r)
{
    return r->limit && r->n == r->limit;
}

static dq_status take(reader *r, const json_t *record, int64_t line, dq_err *err)
{
    if (!json_is_object(record))
        dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    else
        r->take(r->arg, record, line, err);
    r->n++;
    if (err->code == DQ_OK) return DQ_OK;
    return line ? dq_in(err, "line %lld: ", (long long)line)
                : dq_in(err, "item %lld: ", (long long)r->n - 1);
}

static dq_status read_lines(reader *r, const char *text, size_t len, dq_err *err)
{
    const char *s;
    size_t at = 0, n;
    for (int64_t line = 1; !is_full(r) && dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        json_t *record = NULL;
        if (dq_task_file_is_blank(s, n)) continue;
        if (dq_json_parse_line(&record, s, n, "item", err) != DQ_OK)
            return dq_in(err, "line %lld: ", (long long)line);
        take(r, record, line, err);
        json_decref(record);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

static dq_status read_list(reader *r, const char *text, size_t len, dq_err *err)
{
    json_t *list = NULL;
    DQ_TRY(dq_json_parse(&list, text, len, "list", err));
    for (size_t i = 0; i < json_array_size(list) && !is_full(r); i++) {
        if (take(r, json_array_get(list, i), 0, err) != DQ_OK) break;
    }
    json_decref(list);
    return err->code;
}

/* Every record of the file goes to r->take. */
static dq_status read_records(reader *r, dq_questions *out, const char *path, const char *text,
                              size_t len, dq_arena *a, dq_err *err)
{
    size_t first = 0;
    out->n_bad = dq_utf8_check(text, len, &out->first_bad);
    if (out->n_bad > 0) {
        char *fixed = dq_alloc(a, len + 2 * (size_t)out->n_bad + 1, 1, err);
        if (!fixed) return err->code;
        len = dq_utf8_repair(fixed, text, len);
        text = fixed;
    }
    const size_t mark = dq_utf8_mark(text, len);
    text += mark;
    len -= mark;
    while (first < len && dq_task_file_is_blank(text + first, 1)) first++;
    if (first < len && text[first] == '[')
        read_list(r, text, len, err);
    else
        read_lines(r, text, len, err);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

/* The question of an answered record: one text, or SVAMP's two with a space between. */
static dq_status question_of(const char **out, const json_t *record, dq_arena *a, dq_err *err)
{
    const char *body, *question;
    if (!json_object_get(record, "Body"))
        return dq_json_text(
            out, record, json_object_get(record, "Question") ? "Question" : "question", NULL, err);
    DQ_TRY(dq_json_text(&body, record, "Body", NULL, err));
    DQ_TRY(dq_json_text(&question, record, "Question", NULL, err));
    *out = dq_textf(a, err, "%s %s", body, question);
    return err->code;
}

typedef struct list {
    dq_question *question;
    int64_t n;
    size_t cap;
    dq_question_form form;
    const dq_question_shots *shots; /* NULL: none */
    dq_random_mt random;
    int64_t *draw;  /* [shots->n] */
    dq_strbuf text; /* of the examples before the next question */
    dq_arena *a;
} list;

/* The examples before the next question. */
static dq_status join_shots(list *l, dq_err *err)
{
    const dq_question_shots *s = l->shots;
    l->text.n = 0;
    if (!s || s->n == 0) return DQ_OK;
    if (s->drawn) DQ_TRY(dq_random_mt_sample(&l->random, l->draw, s->n_examples, s->n, err));
    for (int64_t i = 0; i < s->n; i++) {
        const char *text = s->example[s->drawn ? l->draw[i] : i];
        DQ_TRY(dq_strbuf_add(&l->text, text, strlen(text), err));
    }
    return DQ_OK;
}

static dq_question *next_question(list *l, dq_err *err)
{
    dq_question *more = dq_grow(l->a, l->question, (size_t)l->n + 1, &l->cap, sizeof *more, err);
    if (!more) return NULL;
    l->question = more;
    return &l->question[l->n++];
}

/* The record's own name, whatever its type, for what is given. */
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

static dq_status add_question(void *arg, const json_t *record, int64_t line, dq_err *err)
{
    list *l = arg;
    const char *text;
    dq_question *q = next_question(l, err);
    if (!q) return err->code;
    *q = (dq_question){.line = line};
    DQ_TRY(id_of(&q->id, record, l->a, err));
    if (l->form == DQ_FORM_PROMPT) {
        const char *key =
            json_object_get(record, "prompt") || !json_object_get(record, "ctx") ? "prompt" : "ctx";
        DQ_TRY(dq_json_text(&text, record, key, NULL, err));
        q->prompt = dq_text(l->a, text, strlen(text), err);
    } else {
        DQ_TRY(question_of(&text, record, l->a, err));
        DQ_TRY(dq_answer_gold(&q->gold, record, l->a, err));
        DQ_TRY(join_shots(l, err));
        q->prompt = dq_textf(l->a, err, "%.*sQuestion: %s\nAnswer:", (int)l->text.n,
                             l->text.n ? l->text.s : "", text);
    }
    if (!q->prompt) return err->code;
    q->len = strlen(q->prompt);
    return q->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "the prompt is empty");
}

dq_status dq_questions_load(dq_questions *out, dq_question_form form,
                            const dq_question_shots *shots, const char *path, const char *text,
                            size_t len, int64_t limit, dq_arena *a, dq_err *err)
{
    list l = {.form = form, .shots = shots, .a = a};
    reader r = {.take = add_question, .arg = &l, .limit = limit};
    *out = (dq_questions){.first_bad = -1};
    if (shots && shots->drawn) {
        l.draw = dq_alloc(a, (size_t)shots->n, sizeof *l.draw, err);
        if (!l.draw) return err->code;
        dq_random_mt_seed(&l.random, shots->seed);
    }
    read_records(&r, out, path, text, len, a, err);
    dq_block_free(l.text.s);
    DQ_TRY(err->code);
    if (l.n == 0)
        return dq_fail(err, DQ_DAMAGED, "%s: holds no items (expected %s)", path,
                       dq_question_form_text[form]);
    out->question = l.question;
    out->n = l.n;
    return DQ_OK;
}

typedef struct shot_list {
    const char **example;
    int64_t n;
    size_t cap;
    dq_arena *a;
} shot_list;

/* An answer with its reasoning stays as it stands; a bare one is given as it is judged. */
static dq_status add_shot(void *arg, const json_t *record, int64_t line, dq_err *err)
{
    shot_list *s = arg;
    const char *question, *gold;
    (void)line;
    DQ_TRY(question_of(&question, record, s->a, err));
    DQ_TRY(dq_answer_gold(&gold, record, s->a, err));
    const json_t *answer = json_object_get(record, "answer");
    if (!answer) answer = json_object_get(record, "Answer");
    const char *text = json_string_value(answer);
    const char **more = dq_grow(s->a, s->example, (size_t)s->n + 1, &s->cap, sizeof *more, err);
    if (!more) return err->code;
    s->example = more;
    more[s->n++] = dq_textf(s->a, err, "Question: %s\nAnswer: %s\n\n", question,
                            text && strstr(text, "#### ") ? text : gold);
    return err->code;
}

dq_status dq_questions_shots(dq_question_shots *shots, const char *path, const char *text,
                             size_t len, dq_arena *a, dq_err *err)
{
    dq_questions read;
    const int64_t n = shots->n;
    shot_list s = {.a = a};
    reader r = {.take = add_shot, .arg = &s, .limit = shots->drawn ? 0 : n};
    DQ_TRY(read_records(&r, &read, path, text, len, a, err));
    if (r.n < n)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SHOTS, .number = {r.n}},
                            "%s: has %lld items, %lld are asked for as shots", path, (long long)r.n,
                            (long long)n);
    shots->example = s.example;
    shots->n_examples = s.n;
    return DQ_OK;
}
