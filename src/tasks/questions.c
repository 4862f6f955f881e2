/* questions: see questions.h. A file is one JSON list or lines, one JSON object of records by their ids, or XML; all give records,
 * one after the other, to the same function. Examples are read from another file in the same way; the text before each question is joined from those
 * that it takes, drawn in the order of the questions.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"

#include "base/random.h"
#include "base/text.h"
#include "tasks/question_xml.h"
#include "tasks/repeats.h"
#include "tasks/task_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* One JSON object of records; *is false where it is one record, or lines of them. */
static dq_status read_object(reader *r, bool *is, const char *text, size_t len, dq_err *err)
{
    json_t *all = NULL, *record;
    const char *key;
    dq_err lines = {0};
    *is = dq_json_parse(&all, text, len, "object", &lines) == DQ_OK;
    json_object_foreach(all, key, record) *is = *is && json_is_object(record);
    json_object_foreach(all, key, record)
    {
        if (!*is || is_full(r) || err->code != DQ_OK) break;
        if (!json_object_get(record, "id")) json_object_set_new(record, "id", json_string(key));
        take(r, record, 0, err);
    }
    json_decref(all);
    return lines.code == DQ_RESOURCE ? dq_fail(err, DQ_RESOURCE, "%s", lines.text) : err->code;
}

static dq_status read_xml(reader *r, const char *text, size_t len, dq_err *err)
{
    json_t *record = NULL;
    for (size_t at = 0; !is_full(r);) {
        if (dq_question_xml_next(&record, text, len, &at, err) != DQ_OK)
            return dq_in(err, "item %lld: ", (long long)r->n);
        if (!record) return DQ_OK;
        take(r, record, 0, err);
        json_decref(record);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

/* Every record of the file goes to r->take. */
static dq_status read_records(reader *r, const dq_question_set *set, dq_questions *out,
                              const char *path, const char *text, size_t len, dq_arena *a,
                              dq_err *err)
{
    bool object = false;
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
    else if (set->xml && first < len && text[first] == '<')
        read_xml(r, text, len, err);
    else if (!set->keyed || (read_object(r, &object, text, len, err) == DQ_OK && !object))
        read_lines(r, text, len, err);
    return err->code == DQ_OK ? DQ_OK : dq_in(err, "%s: ", path);
}

typedef struct list {
    dq_question *question;
    int64_t n;
    size_t cap;
    const dq_question_set *set;
    const dq_question_shots *shots; /* NULL: none */
    dq_random_mt random;
    int64_t *draw;  /* [shots->n] */
    int64_t *other; /* [shots->n_examples] */
    int64_t n_own;
    dq_strbuf text; /* of the examples before the next question */
    dq_arena *a;
} list;

/* The examples before a question whose text has that hash, none of which is that question. */
static dq_status choose_shots(list *l, uint64_t content, dq_err *err)
{
    const dq_question_shots *s = l->shots;
    int64_t n = 0;
    bool own = false;
    for (int64_t i = 0; i < s->n; i++) l->draw[i] = i;
    if (s->drawn) DQ_TRY(dq_random_mt_sample(&l->random, l->draw, s->n_examples, s->n, err));
    for (int64_t i = 0; i < s->n; i++) own = own || s->example[l->draw[i]].content == content;
    if (!own) return DQ_OK;
    l->n_own++;
    for (int64_t i = 0; i < s->n_examples; i++) {
        if (s->example[i].content != content) l->other[n++] = i;
    }
    if (n < s->n)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SHOTS, .number = {n}},
                            "the file of examples has %lld that are not this question, %lld are "
                            "asked for as shots",
                            (long long)n, (long long)s->n);
    for (int64_t i = 0; i < s->n; i++) l->draw[i] = i;
    if (s->drawn) DQ_TRY(dq_random_mt_sample(&l->random, l->draw, n, s->n, err));
    for (int64_t i = 0; i < s->n; i++) l->draw[i] = l->other[l->draw[i]];
    return DQ_OK;
}

static dq_status join_shots(list *l, uint64_t content, dq_err *err)
{
    const dq_question_shots *s = l->shots;
    l->text.n = 0;
    if (!s || s->n == 0) return DQ_OK;
    DQ_TRY(choose_shots(l, content, err));
    for (int64_t i = 0; i < s->n; i++) {
        const char *text = s->example[l->draw[i]].text;
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

/* The record's parts, of which an answered one has an answer. */
static dq_status read_parts(dq_question_parts *out, const dq_question_set *set,
                            const json_t *record, dq_arena *a, dq_err *err)
{
    *out = (dq_question_parts){.question = NULL};
    DQ_TRY(set->read(out, record, a, err));
    if (set->answered && !out->gold[0]) return dq_fail(err, DQ_DAMAGED, "the answer is empty");
    return DQ_OK;
}

/* A text of the record, which ends, in the arena; NULL stays NULL. */
static dq_status keep(const char **out, const char *text, dq_arena *a, dq_err *err)
{
    *out = text ? dq_text(a, text, strlen(text), err) : NULL;
    return err->code;
}

static dq_status add_question(void *arg, const json_t *record, int64_t line, dq_err *err)
{
    list *l = arg;
    dq_question_parts p;
    dq_question *q = next_question(l, err);
    if (!q) return err->code;
    *q = (dq_question){.line = line};
    DQ_TRY(id_of(&q->id, record, l->a, err));
    DQ_TRY(read_parts(&p, l->set, record, l->a, err));
    DQ_TRY(keep(&q->gold, p.gold, l->a, err));
    DQ_TRY(keep(&q->query, p.query, l->a, err));
    DQ_TRY(keep(&q->reference, p.reference, l->a, err));
    q->rule = p.rule;
    const uint64_t content = dq_repeats_key(p.question, strlen(p.question));
    q->cluster = p.passage ? dq_repeats_key(p.passage, strlen(p.passage)) : content;
    DQ_TRY(dq_task_file_read_cluster(&q->cluster, record, err));
    if (l->set->answered) DQ_TRY(join_shots(l, content, err));
    if (l->set->answered)
        q->prompt = dq_textf(l->a, err, "%.*sQuestion: %s\nAnswer:", (int)l->text.n,
                             l->text.n ? l->text.s : "", p.question);
    else
        q->prompt = dq_text(l->a, p.question, strlen(p.question), err);
    if (!q->prompt) return err->code;
    q->len = strlen(q->prompt);
    return q->len ? DQ_OK : dq_fail(err, DQ_DAMAGED, "the prompt is empty");
}

dq_status dq_questions_load(dq_questions *out, const dq_question_set *set,
                            const dq_question_shots *shots, const char *path, const char *text,
                            size_t len, int64_t limit, dq_arena *a, dq_err *err)
{
    list l = {.set = set, .shots = shots, .a = a};
    reader r = {.take = add_question, .arg = &l, .limit = limit};
    *out = (dq_questions){.first_bad = -1};
    if (shots && shots->n) {
        l.draw = dq_alloc(a, (size_t)shots->n, sizeof *l.draw, err);
        l.other = dq_alloc(a, (size_t)shots->n_examples, sizeof *l.other, err);
        if (!l.draw || !l.other) return err->code;
        dq_random_mt_seed(&l.random, shots->seed);
    }
    read_records(&r, set, out, path, text, len, a, err);
    dq_block_free(l.text.s);
    DQ_TRY(err->code);
    if (l.n == 0)
        return dq_fail(err, DQ_DAMAGED, "%s: holds no items (expected %s)", path, set->form);
    out->question = l.question;
    out->n = l.n;
    out->n_own_shots = l.n_own;
    return DQ_OK;
}

typedef struct shot_list {
    dq_question_shot *example;
    int64_t n;
    size_t cap;
    const dq_question_set *set;
    dq_arena *a;
} shot_list;

static dq_status add_shot(void *arg, const json_t *record, int64_t line, dq_err *err)
{
    shot_list *s = arg;
    dq_question_parts p;
    (void)line;
    DQ_TRY(read_parts(&p, s->set, record, s->a, err));
    dq_question_shot *more =
        dq_grow(s->a, s->example, (size_t)s->n + 1, &s->cap, sizeof *more, err);
    if (!more) return err->code;
    s->example = more;
    more[s->n++] = (dq_question_shot){
        dq_textf(s->a, err, "Question: %s\nAnswer: %s\n\n", p.question, p.worked),
        dq_repeats_key(p.question, strlen(p.question))};
    return err->code;
}

dq_status dq_questions_shots(dq_question_shots *shots, const dq_question_set *set, const char *path,
                             const char *text, size_t len, dq_arena *a, dq_err *err)
{
    dq_questions read;
    const int64_t n = shots->n;
    shot_list s = {.set = set, .a = a};
    reader r = {.take = add_shot, .arg = &s, .limit = 0};
    DQ_TRY(read_records(&r, set, &read, path, text, len, a, err));
    if (r.n < n)
        return dq_fail_with(err, DQ_MISMATCH, (dq_remedy){.code = DQ_REMEDY_SHOTS, .number = {r.n}},
                            "%s: has %lld items, %lld are asked for as shots", path, (long long)r.n,
                            (long long)n);
    shots->example = s.example;
    shots->n_examples = s.n;
    return DQ_OK;
}
