/* Task files: what they may hold, the program's own, and the records that they read.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/names.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"
#include "template/record_template.h"
#include "tokenizer/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files of tasks/, which the build embeds and names. */
#define DECLARE(name) extern const char dq_task_##name[];
DQ_TASKS_OF_CHOICES(DECLARE)
DQ_TASKS_OF_QUESTIONS(DECLARE)

#define NAME(name) #name,
const char *const dq_task_choices[] = {DQ_TASKS_OF_CHOICES(NAME) NULL};
const char *const dq_task_questions[] = {DQ_TASKS_OF_QUESTIONS(NAME) NULL};

static const char *embedded(const char *name)
{
#define ROW(name) {#name, dq_task_##name},
    static const struct {
        const char *name, *text;
    } all[] = {DQ_TASKS_OF_CHOICES(ROW) DQ_TASKS_OF_QUESTIONS(ROW)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(name, all[i].name) == 0) return all[i].text;
    }
    return NULL;
}

bool dq_task_is_file(const char *name)
{
    const size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

/* What a template may call. A value that is no text stays as it is, for those who expect one. */

static json_t *take_text(const char *text, dq_err *err)
{
    json_t *out = text ? json_string(text) : NULL;
    if (!out) dq_fail(err, DQ_RESOURCE, "out of memory");
    return out;
}

static bool is_text(const json_t *v)
{
    return json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v);
}

/* `out` has space for the result. */
static void replace_all(char *out, const char *s, const char *from, const char *to)
{
    size_t n = strlen(from), m = strlen(to);
    while (*s) {
        if (strncmp(s, from, n) == 0) {
            memcpy(out, to, m);
            out += m;
            s += n;
        } else {
            *out++ = *s++;
        }
    }
    *out = 0;
}

/* Deletes the shortest "[...]" on one line, in place. */
static void delete_brackets(char *s)
{
    char *out = s;
    while (*s) {
        size_t n = *s == '[' ? strcspn(s, "]\n") : 0;
        if (n && s[n] == ']')
            s += n + 1;
        else
            *out++ = *s++;
    }
    *out = 0;
}

/* Cleans one field.
 * Source: lm-evaluation-harness lm_eval/tasks/hellaswag/utils.py (behaviour). */
static char *clean_hellaswag(dq_arena *a, const char *s, dq_err *err)
{
    size_t bytes;
    while (*s && dq_items_is_strip_space(dq_utf8_first(s, &bytes))) s += bytes;
    size_t len = dq_items_strip_end(s, strlen(s));
    char *stripped = dq_text(a, s, len, err);
    char *titled = dq_alloc(a, len + 1, 1, err);
    char *out = dq_alloc(a, len + 1, 1, err);
    if (!stripped || !titled || !out) return NULL;
    replace_all(titled, stripped, " [title]", ". "); /* shrinks */
    delete_brackets(titled);
    replace_all(out, titled, "  ", " ");
    return out;
}

static json_t *hellaswag(json_t *v, dq_arena *a, dq_err *err)
{
    if (!is_text(v)) return json_incref(v);
    return take_text(clean_hellaswag(a, json_string_value(v), err), err);
}

static json_t *number(json_t *v, dq_arena *a, dq_err *err)
{
    const char *gold = NULL;
    return dq_answer_gold(&gold, v, a, err) == DQ_OK ? take_text(gold, err) : NULL;
}

static json_t *boxed(json_t *v, dq_arena *a, dq_err *err)
{
    if (!is_text(v)) return json_incref(v);
    const dq_span found = dq_math_answer_boxed(json_string_value(v), json_string_length(v));
    if (found.s) return take_text(dq_text(a, found.s, found.len, err), err);
    dq_fail(err, DQ_DAMAGED, "the \"solution\" has no \\boxed{answer}");
    return NULL;
}

static const dq_record_function functions[] = {{"hellaswag", hellaswag, true},
                                               {"number", number, false},
                                               {"boxed", boxed, false},
                                               {NULL, NULL, false}};

dq_status dq_task_make(const dq_task *t, json_t *record, dq_err *err)
{
    return dq_record_template_fill(record, t->made, t->n_made, functions, err);
}

/* Members of a task file; those of dq_task_member come first, as a record gets them. */
static const struct {
    const char *name;
    int of; /* the sum of 1: choices, 2: questions with answers, 4: prompts */
} member[] = {{"doc_to_text", 7},    {"doc_to_choice", 1},    {"doc_to_answer", 2},
              {"doc_to_target", 3},  {"doc_to_reference", 4}, {"doc_to_query", 4},
              {"doc_to_passage", 7}, {"target_delimiter", 1}, {"metric", 3},
              {"task", 7},           {"include", 7},          {"output_type", 7},
              {"form", 7},           {"process_docs", 7},     {"six_lines", 1},
              {"labels_from", 1},    {"fewshot_spare", 1}};
enum { MEMBERS = sizeof member / sizeof *member };
static const char *const type_name[] = {"multiple_choice", "generate_until"};
static const char *const metric_name[] = {"acc", "acc_norm"};
static const char *const rule_name[] = {"gsm8k", "value", "math", "words", "number"};
enum { RULES = 5 };

static dq_status missing(const char *key, dq_err *err)
{
    return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
}

static dq_status check_members(json_t *o, int kind, dq_err *err)
{
    static const char *const is_for[] = {[1] = "multiple_choice",
                                         [2] = "generate_until with doc_to_answer",
                                         [3] = "generate_until with doc_to_answer",
                                         [4] = "generate_until without doc_to_answer"};
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v)
    {
        int i = 0;
        while (i < MEMBERS && strcmp(key, member[i].name) != 0) i++;
        if (i < MEMBERS && (member[i].of & kind)) continue;
        if (i < MEMBERS)
            return dq_fail(err, DQ_DAMAGED, "key \"%s\" is for %s", key, is_for[member[i].of]);
        dq_fail(err, DQ_DAMAGED, "key \"%s\" is unknown (expected ", key);
        for (i = 0; i < MEMBERS; i++)
            dq_fail_more(err, dq_remedy_none, "%s%s", i ? ", " : "", member[i].name);
        return dq_fail_more(err, dq_remedy_none, ")");
    }
    return DQ_OK;
}

/* In the arena; NULL: there is none. */
static dq_status text_of(const char **out, const json_t *o, const char *key, dq_arena *a,
                         dq_err *err)
{
    static const char *const none = NULL;
    DQ_TRY(dq_json_text(out, o, key, &none, err));
    if (*out) *out = dq_text(a, *out, strlen(*out), err);
    return err->code;
}

/* The index of a member among word[n]; -1: there is none. */
static dq_status word_of(int *out, const json_t *o, const char *key, const char *const *word, int n,
                         dq_err *err)
{
    static const char *const none = NULL;
    const char *s;
    DQ_TRY(dq_json_text(&s, o, key, &none, err));
    *out = s ? 0 : -1;
    while (s && *out < n && strcmp(s, word[*out]) != 0) ++*out;
    if (*out < n) return DQ_OK;
    dq_fail(err, DQ_DAMAGED, "key \"%s\": found \"%.40s\", expected ", key, s);
    for (int i = 0; i < n; i++) dq_fail_more(err, dq_remedy_none, "%s%s", i ? " or " : "", word[i]);
    return err->code;
}

dq_status dq_task_rule(dq_answer_rule *out, const dq_task *t, const json_t *record,
                       const char *gold, dq_err *err)
{
    int at = t->rule;
    if (t->key[DQ_TASK_METRIC]) {
        DQ_TRY(word_of(&at, record, t->key[DQ_TASK_METRIC], rule_name, RULES, err));
        if (at < 0) return missing(t->key[DQ_TASK_METRIC], err);
    }
    *out = at == DQ_ANSWER_WORDS + 1 ? dq_answer_rules_for(gold) : (dq_answer_rule)at;
    return DQ_OK;
}

static dq_status read_templates(dq_task *t, const json_t *o, dq_arena *a, dq_err *err)
{
    json_t *docs = json_object_get(o, "process_docs");
    const char *key;
    json_t *v;
    if (docs && !json_is_object(docs))
        return dq_json_wrong("process_docs", "an object of templates", docs, err);
    dq_record_template *made =
        dq_alloc(a, json_object_size(docs) + DQ_TASK_MEMBERS, sizeof *made, err);
    if (!made) return err->code;
    t->made = made;
    json_object_foreach(docs, key, v)
    {
        const char *name = dq_text(a, key, strlen(key), err);
        if (!name) return err->code;
        DQ_TRY(dq_record_template_new(&made[t->n_made++], name, v, a, err));
    }
    t->delimiter = " ";
    for (int m = 0; m < DQ_TASK_MEMBERS; m++) {
        const json_t *given = json_object_get(o, member[m].name);
        const char *text = json_string_value(given);
        if (given && (!text || strstr(text, "{{") || strstr(text, "{%"))) {
            t->key[m] = member[m].name;
            DQ_TRY(dq_record_template_new(&made[t->n_made++], t->key[m], given, a, err));
        } else if (m < DQ_TASK_DELIMITER) { /* without braces it is the key of a record */
            DQ_TRY(text_of(&t->key[m], o, member[m].name, a, err));
        } else if (m == DQ_TASK_DELIMITER && text) {
            DQ_TRY(text_of(&t->delimiter, o, member[m].name, a, err));
        }
    }
    return DQ_OK;
}

static dq_status read_task(dq_task *t, json_t *o, dq_arena *a, dq_err *err)
{
    static const char *const needed[][6] = {
        {"task", "form", "doc_to_text"},
        {"task", "form", "doc_to_text", "doc_to_choice", "doc_to_target"},
        {"task", "form", "doc_to_text", "doc_to_answer", "doc_to_target", "metric"}};
    static const int64_t no_labels = -1;
    static const bool no = false;
    int type, metric;
    int64_t first;
    DQ_TRY(word_of(&type, o, "output_type", type_name, 2, err));
    t->choices = type == 0;
    t->answered =
        type == 1 && (json_object_get(o, "doc_to_answer") || json_object_get(o, "doc_to_target"));
    DQ_TRY(check_members(o, type < 0 ? 7 : t->choices ? 1 : t->answered ? 2 : 4, err));
    if (type < 0) return missing("output_type", err);
    const char *const *need = needed[t->choices ? 1 : t->answered ? 2 : 0];
    for (int i = 0; i < 6 && need[i]; i++) {
        if (!json_object_get(o, need[i])) return missing(need[i], err);
    }
    DQ_TRY(text_of(&t->name, o, "task", a, err));
    bool plain = *t->name;
    for (const char *s = t->name; *s; s++)
        plain = plain && ((*s & 0x80) || (*s > ' ' && *s < 0x7f && !strchr("/=,", *s)));
    if (!plain)
        return dq_json_wrong("task",
                             "a name without \"/\", \"=\", \",\", spaces and control characters",
                             json_object_get(o, "task"), err);
    DQ_TRY(text_of(&t->form, o, "form", a, err));
    DQ_TRY(dq_json_bool(&t->six_lines, o, "six_lines", &no, err));
    DQ_TRY(dq_json_int(&first, o, "labels_from", 0, 1, &no_labels, err));
    t->first_label = (int)first;
    DQ_TRY(dq_json_bool(&t->draws_extra, o, "fewshot_spare", &no, err));
    DQ_TRY(read_templates(t, o, a, err));
    if (t->answered && t->key[DQ_TASK_METRIC]) return DQ_OK; /* records say it */
    DQ_TRY(word_of(&metric, o, "metric", t->choices ? metric_name : rule_name,
                   t->choices ? 2 : RULES, err));
    if (t->choices && metric >= 0) t->metric = metric_name[metric];
    t->by_norm = t->choices && metric == 1;
    t->rule = metric;
    return DQ_OK;
}

/* Members that a file lacks come from the program's own task that it includes. */
static dq_status parse(json_t **out, const char *text, size_t len, dq_err *err)
{
    static const char *const none = NULL;
    const char *base;
    json_t *of = NULL;
    DQ_TRY(dq_json_parse(out, text, len, "task", err));
    if (!json_is_object(*out)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    DQ_TRY(dq_json_text(&base, *out, "include", &none, err));
    if (!base) return DQ_OK;
    text = embedded(base);
    if (!text)
        return dq_json_wrong("include", "the name of a task of the program",
                             json_object_get(*out, "include"), err);
    if (parse(&of, text, strlen(text), err) == DQ_OK) json_object_update_missing(*out, of);
    json_decref(of);
    return err->code;
}

const dq_task *dq_task_find(const char *name, dq_arena *a, dq_err *err)
{
    dq_task *t = dq_alloc(a, 1, sizeof *t, err);
    json_t *o = NULL;
    char *own = NULL;
    const char *text = embedded(name);
    size_t len = text ? strlen(text) : 0;
    if (!t) return NULL;
    if (dq_task_is_file(name)) {
        if (dq_file_read_text(&own, &len, name, 0, a, err) != DQ_OK) return NULL;
        t->path = name;
        t->text = text = own;
        t->len = len;
    } else if (!text) {
        dq_fail(err, DQ_USAGE, "unknown task \"%s\". There are: ", name);
        for (int i = 0; dq_task_choices[i]; i++)
            dq_fail_more(err, dq_remedy_none, "%s%s", i ? ", " : "", dq_task_choices[i]);
        dq_fail_more(err, dq_remedy_none, ".");
        return NULL;
    }
    if (parse(&o, text, len, err) == DQ_OK) read_task(t, o, a, err);
    json_decref(o);
    if (err->code == DQ_OK) return t;
    dq_in(err, "%s: ", name);
    return NULL;
}

/* Elements of a problem of ASDiv are found by their tags: they have no attributes and hold text
 * alone. No other XML is read. */

static size_t find(const char *text, size_t len, size_t at, const char *part)
{
    return dq_regex_find_text(text, len, at, part, strlen(part));
}

/* Decodes &name; or &#number; and returns its bytes; 0: no entity. */
static size_t entity(dq_strbuf *out, const char *s, size_t len, dq_err *err)
{
    static const char *const names[][2] = {
        {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&apos;", "'"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const size_t n = strlen(names[i][0]);
        if (len < n || memcmp(s, names[i][0], n) != 0) continue;
        dq_strbuf_add(out, names[i][1], 1, err);
        return n;
    }
    char bytes[4], *end;
    if (len < 4 || s[1] != '#') return 0;
    const bool hex = s[2] == 'x';
    const unsigned long c = strtoul(s + 2 + hex, &end, hex ? 16 : 10);
    if (*end != ';' || c == 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    dq_strbuf_add(out, bytes, dq_utf8_put(bytes, (uint32_t)c), err);
    return (size_t)(end + 1 - s);
}

static dq_status take_element(json_t *record, const char *key, const char *s, size_t len,
                              dq_err *err)
{
    char open[24], close[24];
    snprintf(open, sizeof open, "<%s>", key);
    snprintf(close, sizeof close, "</%s>", key);
    const size_t at = find(s, len, 0, open);
    const size_t end = at == SIZE_MAX ? SIZE_MAX : find(s, len, at, close);
    if (end == SIZE_MAX) return dq_fail(err, DQ_DAMAGED, "element %s is missing", key);
    const size_t begin = at + strlen(open);
    const char *from = s + begin;
    const size_t n = end - begin;
    dq_strbuf text = {0};
    for (size_t i = 0; err->code == DQ_OK && i < n;) {
        const size_t used = from[i] == '&' ? entity(&text, from + i, n - i, err) : 1;
        if (used == 0)
            dq_fail(err, DQ_DAMAGED, "element %s: an entity that is not known", key);
        else if (from[i] != '&')
            dq_strbuf_add(&text, from + i, 1, err);
        i += used;
    }
    if (err->code == DQ_OK)
        json_object_set_new(record, key, json_stringn(text.n ? text.s : "", text.n));
    dq_block_free(text.s);
    return err->code;
}

/* The next <Problem ID="..."> from *at on as {"ID", "Body", "Question", "Answer"} with entities
 * replaced; *out NULL: none. DQ_DAMAGED: unterminated, or an unknown element or entity. The caller
 * ends *out with json_decref. */
static dq_status question_xml_next(json_t **out, const char *text, size_t len, size_t *at,
                                   dq_err *err)
{
    static const char *const keys[] = {"Body", "Question", "Answer"};
    static const char id[] = "ID=\"";
    size_t begin, from = *at;
    *out = NULL;
    do { /* not <ProblemSet> */
        begin = find(text, len, from, "<Problem");
        if (begin == SIZE_MAX) return DQ_OK;
        from = begin + 1;
    } while (begin + 8 < len && !strchr(" \t\r\n>", text[begin + 8]));
    const size_t end = find(text, len, begin, "</Problem>");
    if (end == SIZE_MAX) return dq_fail(err, DQ_DAMAGED, "a <Problem> that does not end");
    *at = end + 1;
    json_t *record = json_object();
    const size_t name = find(text, end, begin, id), tag = find(text, end, begin, ">");
    if (name != SIZE_MAX && name < tag) {
        const char *first = text + name + sizeof id - 1, *last = memchr(first, '"', end - name);
        if (last) json_object_set_new(record, "ID", json_stringn(first, (size_t)(last - first)));
    }
    for (int i = 0; err->code == DQ_OK && i < 3; i++)
        take_element(record, keys[i], text + begin, end - begin, err);
    if (err->code == DQ_OK)
        *out = record;
    else
        json_decref(record);
    return err->code;
}

static dq_status take(void *arg, json_t *record, int64_t line, dq_err *err)
{
    dq_task_reader *r = arg;
    if (!json_is_object(record)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    if (r->take(r->arg, record, line, err) == DQ_OK) r->n++;
    return err->code;
}

static bool is_full(const dq_task_reader *r)
{
    return r->limit && r->n == r->limit;
}

/* *done: it is one object of records by their ids, else one record, or JSON lines. */
static dq_status read_object(dq_task_reader *r, bool *done, const char *text, size_t len,
                             dq_err *err)
{
    json_t *all = NULL, *record;
    const char *key;
    dq_err lines = {0};
    *done = dq_json_parse(&all, text, len, "object", &lines) == DQ_OK && json_object_size(all);
    json_object_foreach(all, key, record) *done = *done && json_is_object(record);
    json_object_foreach(all, key, record)
    {
        if (!*done || is_full(r) || err->code != DQ_OK) break;
        if (!json_object_get(record, "id")) json_object_set_new(record, "id", json_string(key));
        take(r, record, 0, err);
    }
    json_decref(all);
    return lines.code == DQ_RESOURCE ? dq_fail(err, DQ_RESOURCE, "%s", lines.text) : err->code;
}

dq_status dq_task_records(dq_task_reader *r, const char *text, size_t len, dq_err *err)
{
    size_t at = 0;
    while (at < len && dq_task_file_is_blank(text + at, 1)) at++;
    const char begin = at < len && !r->task->choices ? text[at] : 0;
    bool done = begin == '[' || begin == '<';
    json_t *all = NULL, *record = NULL;
    if (begin == '[') {
        DQ_TRY(dq_json_parse(&all, text, len, "list", err));
        for (size_t i = 0; err->code == DQ_OK && i < json_array_size(all) && !is_full(r); i++)
            take(r, json_array_get(all, i), 0, err);
        json_decref(all);
    } else if (begin == '<') {
        do {
            json_decref(record);
            question_xml_next(&record, text, len, &at, err);
        } while (record && !is_full(r) && take(r, record, 0, err) == DQ_OK);
        json_decref(record);
    } else if (begin == '{') {
        read_object(r, &done, text, len, err);
    }
    if (!done && err->code == DQ_OK)
        dq_task_file_objects(text, len, "item", r->limit, take, r, err);
    if (err->code == DQ_OK || (!done && !r->task->choices)) return err->code;
    return dq_in(err, done ? "item %lld: " : "item %lld, ", (long long)r->n);
}
