/* Task files: what they may hold, the program's own, and the records that they read; these as items
 * and questions, with few-shot examples before them.
 * SPDX-License-Identifier: MIT */
#include "tasks/tasks.h"

#include "base/file.h"
#include "base/json.h"
#include "base/os.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/names.h"
#include "tasks/questions.h"
#include "template/record_template.h"
#include "tokenizer/regex.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dq_task_file_next_line(const char *text, size_t len, size_t *at, const char **line, size_t *n)
{
    if (*at >= len) return false;
    const char *nl = memchr(text + *at, '\n', len - *at);
    *line = text + *at;
    *n = nl ? (size_t)(nl - *line) : len - *at;
    *at += *n + (nl != NULL);
    return true;
}

static bool is_white(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool dq_task_file_is_blank(const char *line, size_t n)
{
    while (n > 0 && is_white(line[n - 1])) n--;
    return n == 0;
}

int64_t dq_task_file_count(const char *text, size_t len)
{
    const char *line;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t found = 0;
    while (dq_task_file_next_line(text, len, &at, &line, &n))
        found += !dq_task_file_is_blank(line, n);
    return found;
}

dq_status dq_task_file_objects(const char *text, size_t len, const char *what, int64_t limit,
                               dq_task_take *take, void *arg, dq_err *err)
{
    const char *s;
    size_t at = dq_utf8_mark(text, len), n;
    int64_t taken = 0;
    for (int64_t line = 1; dq_task_file_next_line(text, len, &at, &s, &n); line++) {
        json_t *o = NULL;
        if (limit && taken == limit) break;
        if (dq_task_file_is_blank(s, n)) continue;
        DQ_TRY(dq_os_check_stop(err));
        dq_json_parse_line(&o, s, n, what, err);
        if (err->code == DQ_OK && !json_is_object(o))
            dq_fail(err, DQ_DAMAGED, "expected a JSON object");
        if (err->code == DQ_OK) take(arg, o, line, err);
        json_decref(o);
        if (err->code != DQ_OK) return dq_in(err, "line %lld: ", (long long)line);
        taken++;
    }
    return DQ_OK;
}

dq_status dq_task_file_text(const char **text, size_t *len, int64_t *n_bad, int64_t *first_bad,
                            dq_arena *a, dq_err *err)
{
    *first_bad = -1;
    *n_bad = dq_utf8_check(*text, *len, first_bad);
    if (*n_bad > 0) {
        char *fixed = dq_alloc(a, *len + 2 * (size_t)*n_bad + 1, 1, err);
        if (!fixed) return err->code;
        *len = dq_utf8_repair(fixed, *text, *len);
        *text = fixed;
    }
    const size_t mark = dq_utf8_mark(*text, *len);
    *text += mark;
    *len -= mark;
    return DQ_OK;
}

dq_status dq_task_file_read_cluster(uint64_t *out, const json_t *o, dq_err *err)
{
    const json_t *v = json_object_get(o, "cluster");
    if (json_is_integer(v))
        *out = dq_random_mix((uint64_t)json_integer_value(v));
    else if (json_is_string(v))
        *out = dq_strmap_hash(json_string_value(v), json_string_length(v));
    else if (v)
        return dq_json_wrong("cluster", "a text or an integer", v, err);
    return DQ_OK;
}

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
    while (*s && dq_utf8_is_strip(dq_utf8_first(s, &bytes))) s += bytes;
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

/* Adds what templates make to a record. DQ_DAMAGED: "key "X" is missing" and so on, or what a
 * template says. */
static dq_status make_record(const dq_task *t, json_t *record, dq_err *err)
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

/* The rule of a task of questions, for a record after make_record. */
static dq_status rule_of(dq_answer_rule *out, const dq_task *t, const json_t *record,
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

/* Gives the records of a data file to a function, one after another. */
typedef struct record_reader {
    const dq_task *task;
    dq_task_take *take; /* line: of the file, from 1; 0 where the file is one list */
    void *arg;
    int64_t n, limit; /* taken; at most, 0: all */
} record_reader;
static dq_status take(void *arg, json_t *record, int64_t line, dq_err *err)
{
    record_reader *r = arg;
    if (!json_is_object(record)) return dq_fail(err, DQ_DAMAGED, "expected a JSON object");
    if (r->take(r->arg, record, line, err) == DQ_OK) r->n++;
    return err->code;
}

static bool is_full(const record_reader *r)
{
    return r->limit && r->n == r->limit;
}

/* *done: it is one object of records by their ids, else one record, or JSON lines. */
static dq_status read_object(record_reader *r, bool *done, const char *text, size_t len,
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

/* text[len], which dq_task_file_text has made, is JSON lines; of questions also one JSON list, one
 * JSON object of records by their ids, or ASDiv's XML. Messages name line or item. */
static dq_status read_records(record_reader *r, const char *text, size_t len, dq_err *err)
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

/* The decimal number in s[len] minus `first`, white space aside; -1 unless in 0 .. n - 1. */
static int index_of(const char *s, size_t len, int first, int n)
{
    int64_t x = 0;
    while (len > 0 && is_white(s[len - 1])) len--;
    while (len > 0 && is_white(*s)) s++, len--;
    if (len == 0 || len > 9) return -1;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        x = 10 * x + (s[i] - '0');
    }
    return x >= first && x < (int64_t)first + n ? (int)(x - first) : -1;
}

/* A key that counts n things from `first`, a number or a string. *out counts from 0; an absent key
 * gives *fallback, or DQ_DAMAGED without one. */
static dq_status read_index(int *out, const json_t *o, const char *key, int first, int n,
                            const int *fallback, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    int64_t index;
    if (fallback && (!v || json_is_null(v))) {
        *out = *fallback;
        return DQ_OK;
    }
    if (!text) {
        DQ_TRY(dq_json_int(&index, o, key, first, first + n - 1, NULL, err));
        *out = (int)index - first;
        return DQ_OK;
    }
    *out = index_of(text, json_string_length(v), first, n);
    if (*out >= 0) return DQ_OK;
    return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected %d to %d, found \"%.40s\"", key, first,
                   first + n - 1, text);
}

/* Texts of choices, or {"text", "label"} of each, or lists of both. *label: [n_choices], NULL where
 * there is none. Where each choice has a context of its own, all may share one text. */
static dq_status read_choices(dq_item *item, const char ***label, const dq_task *t, const json_t *o,
                              dq_arena *a, dq_err *err)
{
    const char *key = t->key[DQ_TASK_CHOICE];
    const json_t *all = json_object_get(o, key), *ctx = json_object_get(o, t->key[DQ_TASK_TEXT]);
    const json_t *texts = json_is_object(all) ? json_object_get(all, "text") : all;
    const bool own = json_is_array(ctx), each = json_is_object(json_array_get(texts, 0));
    const bool labelled = json_is_object(all) || each;
    const size_t n = own ? json_array_size(ctx) : json_array_size(texts);
    if (!all) return dq_fail(err, DQ_DAMAGED, "key \"%s\" is missing", key);
    if (n < 2 || n > INT_MAX)
        return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected at least two choices, found %zu", key,
                       n);
    dq_choice *c = dq_alloc(a, n, sizeof *c, err);
    *label = dq_alloc(a, n, sizeof **label, err);
    if (!c || !*label) return err->code;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(texts) ? json_array_get(texts, i) : texts;
        const json_t *name =
            each ? json_object_get(one, "label") : json_array_get(json_object_get(all, "label"), i);
        if (each) one = json_object_get(one, "text");
        const char *s = json_string_value(one);
        (*label)[i] = json_string_value(name);
        if (!s || strlen(s) != json_string_length(one) || (labelled && !(*label)[i]))
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": entry %zu %s", key, i,
                           labelled ? "lacks a string \"text\" or \"label\""
                                    : "is not a string without NUL");
        c[i].points = dq_utf8_count(s, strlen(s)); /* of the text alone */
        c[i].delimiter = strlen(item->delimiter);
        c[i].text = dq_textf(a, err, "%s%s", item->delimiter, s);
        if (!c[i].text) return err->code;
        c[i].len = strlen(c[i].text);
        if (!own) continue;
        c[i].ctx = json_string_value(json_array_get(ctx, i));
        c[i].ctx_len = json_string_length(json_array_get(ctx, i));
        if (!c[i].ctx || strlen(c[i].ctx) != c[i].ctx_len)
            return dq_json_wrong(t->key[DQ_TASK_TEXT], "a list of texts without NUL", ctx, err);
        c[i].ctx = dq_text(a, c[i].ctx, c[i].ctx_len, err);
        if (!c[i].ctx) return err->code;
        if (c[i].points == 0) c[i].points = 1; /* of one text for all, acc_norm is acc */
    }
    item->choice = c;
    item->n_choices = (int)n;
    return DQ_OK;
}

/* The label of a choice, or its number from the task's first, as a number or a text. */
static dq_status read_target(dq_item *item, const char *const *label, const dq_task *t,
                             const json_t *o, dq_err *err)
{
    static const int none = -1;
    const char *key = t->key[DQ_TASK_TARGET];
    const int first = t->first_label > 0 ? t->first_label : 0;
    const char *text = json_string_value(json_object_get(o, key));
    size_t bytes;
    item->gold = -1;
    if (!label[0]) { /* copies of a test split have an empty answer */
        if (text && !*text && t->first_label >= 0) return DQ_OK;
        return read_index(&item->gold, o, key, first, item->n_choices,
                          t->first_label < 0 ? NULL : &none, err);
    }
    DQ_TRY(dq_json_text(&text, o, key, NULL, err));
    const char *at = text;
    while (*at && dq_utf8_is_strip(dq_utf8_first(at, &bytes))) at += bytes;
    for (item->gold = 0; item->gold < item->n_choices; item->gold++) {
        if (strcmp(label[item->gold], at) == 0) return DQ_OK;
    }
    dq_fail(err, DQ_DAMAGED, "key \"%s\": expected one of the labels ", key);
    for (int i = 0; i < item->n_choices && i < 12; i++)
        dq_fail_more(err, dq_remedy_none, "%s%.8s", i ? ", " : "", label[i]);
    return dq_fail_more(err, dq_remedy_none, ", found \"%.40s\"", text);
}

typedef struct reader {
    const dq_task *task;
    dq_arena *a;
    dq_item *item; /* [n] */
    int64_t n;
    size_t cap;
} reader;

static dq_status add_record(void *arg, json_t *o, int64_t line, dq_err *err)
{
    reader *r = arg;
    const dq_task *t = r->task;
    dq_arena *a = r->a;
    const char *s, **label = NULL, *const *key = t->key;
    dq_item *list = dq_grow(a, r->item, (size_t)r->n + 1, &r->cap, sizeof *list, err);
    if (!list) return err->code;
    r->item = list;
    dq_item *item = &list[r->n++];
    *item = (dq_item){.line = line};
    DQ_TRY(make_record(t, o, err));
    if (!json_is_array(json_object_get(o, key[DQ_TASK_TEXT]))) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_TEXT], NULL, err));
        item->ctx_len = strlen(s);
        item->ctx = dq_text(a, s, item->ctx_len, err);
        if (!item->ctx) return err->code;
    }
    item->delimiter = t->delimiter;
    if (key[DQ_TASK_DELIMITER]) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_DELIMITER], NULL, err));
        item->delimiter = dq_text(a, s, strlen(s), err);
        if (!item->delimiter) return err->code;
    }
    DQ_TRY(read_choices(item, &label, t, o, a, err));
    DQ_TRY(read_target(item, label, t, o, err));
    if (key[DQ_TASK_PASSAGE]) {
        DQ_TRY(dq_json_text(&s, o, key[DQ_TASK_PASSAGE], NULL, err));
        item->cluster = dq_repeats_key(s, strlen(s));
    }
    return dq_task_file_read_cluster(&item->cluster, o, err);
}

enum { TEXT_LINES = 6, TEXT_ENDINGS = 4 };

/* HellaSwag's other form, as a record {"six_lines": true, "ctx", "label", "endings"} an item. At
 * most `limit` items (0: all). */
static dq_status read_six_lines(reader *r, const char *text, size_t len, int64_t limit, dq_err *err)
{
    const char *s;
    char *line[TEXT_LINES];
    size_t at = 0, n;
    int64_t number = 0;
    int have = 0;
    while (!(limit && r->n == limit) && dq_task_file_next_line(text, len, &at, &s, &n)) {
        number++;
        n -= n > 0 && s[n - 1] == '\r'; /* lines end at U+000A; before it, U+000D is no text */
        if (memchr(s, 0, n))
            return dq_fail(err, DQ_DAMAGED, "item %lld, line %lld: contains a NUL", (long long)r->n,
                           (long long)number);
        line[have] = dq_text(r->a, s, n, err);
        if (!line[have]) return err->code;
        if (++have < TEXT_LINES) continue;
        const int64_t i = r->n, first = number - TEXT_LINES + 1;
        const char *label = line[1];
        if (label[0] < '0' || label[0] >= '0' + TEXT_ENDINGS || label[1])
            return dq_fail(err, DQ_DAMAGED,
                           "item %lld, line %lld: expected a label from 0 to %d, found \"%.40s\"",
                           (long long)i, (long long)first + 1, TEXT_ENDINGS - 1, label);
        json_t *o = json_pack("{s:b, s:s, s:s, s:[ssss]}", "six_lines", 1, "ctx", line[0], "label",
                              label, "endings", line[2], line[3], line[4], line[5]);
        if (!o) return dq_fail(err, DQ_RESOURCE, "out of memory");
        add_record(r, o, first, err);
        json_decref(o);
        if (err->code != DQ_OK)
            return dq_in(err, "item %lld, line %lld: ", (long long)i, (long long)first);
        have = 0;
    }
    if (have)
        return dq_fail(err, DQ_DAMAGED,
                       "item %lld, line %lld: the last item has %d lines (expected %d: context, "
                       "label, four endings)",
                       (long long)r->n, (long long)number, have, TEXT_LINES);
    return DQ_OK;
}

/* Draws n examples for one item after another, all from one stream; none of them has the item's own
 * content: with a spare, another one stays; else, or if too few do, n are drawn anew from the
 * others. */
typedef struct shots_draw {
    const uint64_t *content; /* [n_all] of what may be drawn */
    int64_t n_all, n, spare; /* n + spare <= n_all */
    bool first;              /* the first ones are taken, none is drawn */
    int64_t *at, *other;     /* at: [n], what was drawn; other: for own use */
    int64_t n_own;           /* items that an example was taken out for */
    dq_random_mt random;
} shots_draw;
static dq_status shots_begin(shots_draw *d, uint64_t seed, dq_arena *a, dq_err *err)
{
    d->at = dq_alloc(a, (size_t)(d->n + d->spare), sizeof *d->at, err);
    d->other = dq_alloc(a, (size_t)d->n_all, sizeof *d->other, err);
    dq_random_mt_seed(&d->random, seed);
    return err->code;
}

static dq_status sample(shots_draw *d, int64_t of, int64_t n, dq_err *err)
{
    for (int64_t i = 0; d->first && i < n; i++) d->at[i] = i;
    return d->first ? DQ_OK : dq_random_mt_sample(&d->random, d->at, of, n, err);
}

/* *left below n: only so many differ from the item. */
static dq_status shots_next(shots_draw *d, uint64_t content, int64_t *left, dq_err *err)
{
    const int64_t all = d->n + d->spare;
    int64_t kept = 0, n = 0;
    DQ_TRY(sample(d, d->n_all, all, err));
    for (int64_t i = 0; i < all; i++) {
        if (d->content[d->at[i]] != content) d->at[kept++] = d->at[i];
    }
    d->n_own += kept < all;
    *left = kept;
    if (kept >= d->n) return DQ_OK;
    /* The pool may hold an item more than once, so that the spare does not suffice. */
    for (int64_t i = 0; i < d->n_all; i++) {
        if (d->content[i] != content) d->other[n++] = i;
    }
    *left = n;
    if (n < d->n) return DQ_OK;
    DQ_TRY(sample(d, n, d->n, err));
    for (int64_t i = 0; i < d->n; i++) d->at[i] = d->other[d->at[i]];
    return DQ_OK;
}

typedef struct drawer {
    const dq_items *pool;
    shots_draw draw;
    int64_t scored; /* index of the item that examples are drawn for */
    dq_strbuf text;
} drawer;

static void say_examples(int64_t n, dq_err *err)
{
    dq_fail_more(err, (dq_remedy){.code = DQ_REMEDY_EXAMPLES, .number = {n}}, "%lld examples",
                 (long long)n);
}

/* Context, answer and two newlines. An empty answer after a choice's own context leaves the context
 * alone. */
static dq_status add_example(drawer *d, const dq_item *item, dq_err *err)
{
    size_t n;
    const dq_choice *c = &item->choice[item->gold];
    const char *ctx = dq_item_context(item, item->gold, &n);
    DQ_TRY(dq_strbuf_add(&d->text, ctx, n, err));
    if (c->ctx && c->len == c->delimiter) return DQ_OK;
    DQ_TRY(dq_strbuf_add(&d->text, c->text, c->len, err));
    return dq_strbuf_add(&d->text, "\n\n", 2, err);
}

static const char *joined(const drawer *d, const char *ctx, size_t *len, dq_arena *a, dq_err *err)
{
    char *s = dq_alloc(a, d->text.n + *len + 1, 1, err);
    if (!s) return NULL;
    if (d->text.n) memcpy(s, d->text.s, d->text.n);
    memcpy(s + d->text.n, ctx, *len);
    *len += d->text.n;
    return s;
}

static dq_status add_examples(drawer *d, dq_item *item, dq_arena *a, dq_err *err)
{
    int64_t left;
    d->text.n = 0;
    DQ_TRY(shots_next(&d->draw, item->content, &left, err));
    if (left < d->draw.n) {
        dq_fail(err, DQ_MISMATCH,
                "has %lld items that differ from the one that is scored, item %lld, line %lld "
                "(expected %lld for ",
                (long long)left, (long long)d->scored, (long long)item->line, (long long)d->draw.n);
        say_examples(d->draw.n, err);
        return dq_fail_more(err, dq_remedy_none, "). Use a larger file or fewer examples");
    }
    for (int64_t i = 0; i < d->draw.n; i++)
        DQ_TRY(add_example(d, &d->pool->item[d->draw.at[i]], err));
    dq_choice *c = dq_alloc(a, (size_t)item->n_choices, sizeof *c, err);
    if (!c) return err->code;
    memcpy(c, item->choice, (size_t)item->n_choices * sizeof *c);
    if (item->ctx) item->ctx = joined(d, item->ctx, &item->ctx_len, a, err);
    for (int k = 0; k < item->n_choices; k++) {
        if (c[k].ctx) c[k].ctx = joined(d, c[k].ctx, &c[k].ctx_len, a, err);
    }
    item->choice = c;
    return err->code;
}

dq_status dq_fewshot(dq_items *items, int64_t *n_own, const dq_items *pool, const dq_task *task,
                     int64_t n, uint64_t seed, dq_arena *a, dq_err *err)
{
    const int64_t spare = task->draws_extra;
    *n_own = 0;
    if (n == 0) return DQ_OK;
    if (pool->n < n + spare) {
        dq_fail(err, DQ_MISMATCH, "has %lld items (expected at least %lld for ", (long long)pool->n,
                (long long)(n + spare));
        say_examples(n, err);
        return dq_fail_more(err, dq_remedy_none, "%s). Use a larger file or fewer examples",
                            spare ? ": one more is drawn, to leave out the item itself" : "");
    }
    dq_item *item = dq_alloc(a, (size_t)items->n, sizeof *item, err);
    uint64_t *content = dq_alloc(a, (size_t)pool->n, sizeof *content, err);
    if (!item || !content) return err->code;
    for (int64_t i = 0; i < pool->n; i++) content[i] = pool->item[i].content;
    drawer d = {.pool = pool,
                .draw = {.content = content, .n_all = pool->n, .n = n, .spare = spare}};
    DQ_TRY(shots_begin(&d.draw, seed, a, err));
    memcpy(item, items->item, (size_t)items->n * sizeof *item);
    for (d.scored = 0; err->code == DQ_OK && d.scored < items->n; d.scored++)
        add_examples(&d, &item[d.scored], a, err);
    dq_block_free(d.text.s);
    items->item = item;
    *n_own = d.draw.n_own;
    return err->code;
}

char *dq_task_labels_path(const char *path, dq_arena *a, dq_err *err)
{
    static const char end[] = ".jsonl";
    size_t n = strlen(path), m = sizeof end - 1;
    if (n > m && strcmp(path + n - m, end) == 0) n -= m;
    return dq_textf(a, err, "%.*s-labels.lst", (int)n, path);
}

/* A labels file covers all items of the data file. */
static dq_status apply_labels(reader *l, const dq_items *file, int64_t n_items, dq_err *err)
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
        int gold = index_of(line, n, l->task->first_label, n_choices);
        if (gold < 0)
            return dq_fail(err, DQ_DAMAGED,
                           "item %lld, line %lld: expected a label from %d to %d, found \"%.*s\"",
                           (long long)i, (long long)number, l->task->first_label,
                           l->task->first_label + n_choices - 1, n < 40 ? (int)n : 40, line);
        if (i < l->n && l->item[i].gold < 0) l->item[i].gold = gold;
        i++;
    }
    if (i < n_items)
        return dq_fail(err, DQ_DAMAGED,
                       "line %lld: the labels end (expected one for each of %lld items)",
                       (long long)number, (long long)n_items);
    return DQ_OK;
}

static dq_status find_labels(dq_items *out, reader *l, const char *path, const char *text,
                             size_t len, dq_err *err)
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
    if (apply_labels(l, out, dq_task_file_count(text, len), err) == DQ_OK) return DQ_OK;
    return dq_in(err, "%s: ", labels_path);
}

dq_status dq_task_load(dq_items *out, const dq_task *task, const char *path, const char *text,
                       size_t len, int64_t limit, dq_arena *a, dq_err *err)
{
    reader r = {.task = task, .a = a};
    record_reader records = {.task = task, .take = add_record, .arg = &r, .limit = limit};
    size_t first = 0;
    *out = (dq_items){.n = 0};
    DQ_TRY(dq_task_file_text(&text, &len, &out->n_bad, &out->first_bad, a, err));
    while (first < len && dq_task_file_is_blank(text + first, 1)) first++;
    if (task->six_lines && !(first < len && text[first] == '{'))
        read_six_lines(&r, text, len, limit, err);
    else
        read_records(&records, text, len, err);
    if (err->code == DQ_OK && r.n == 0)
        dq_fail(err, DQ_DAMAGED, "holds no items (expected %s)", task->form);
    else if (err->code == DQ_DAMAGED && records.n == 0 &&
             r.n <= 1) /* the file probably has another form */
        dq_fail_more(err, dq_remedy_none, " (expected %s)", task->form);
    if (err->code != DQ_OK) return dq_in(err, "%s: ", path);
    DQ_TRY(find_labels(out, &r, path, text, len, err));
    for (int64_t i = 0; i < r.n; i++) {
        uint64_t sum = 0;
        for (int c = 0; c < r.item[i].n_choices; c++) {
            size_t n;
            const char *ctx = dq_item_context(&r.item[i], c, &n);
            sum += dq_random_mix(dq_repeats_key(r.item[i].choice[c].text, r.item[i].choice[c].len) +
                                 dq_random_mix(dq_repeats_key(ctx, n)));
        }
        r.item[i].content = dq_random_mix(sum);
        if (!r.item[i].cluster) r.item[i].cluster = r.item[i].content;
    }
    out->item = r.item;
    out->n = r.n;
    return DQ_OK;
}

/* Records become prompts and what judges their answers. Examples come from another file likewise
 * and are drawn in the order of the questions. */

typedef struct list {
    dq_question *question;
    int64_t n;
    size_t cap;
    const dq_task *task;
    const dq_question_shots *shots; /* NULL: none */
    shots_draw draw;
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
static dq_status keep(const char **out, const dq_task *t, dq_task_member of, const json_t *record,
                      dq_arena *a, dq_err *err)
{
    *out = NULL;
    return t->key[of] ? text_of(out, record, t->key[of], a, err) : DQ_OK;
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
    DQ_TRY(shots_next(&l->draw, content, &left, err));
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
    DQ_TRY(make_record(t, record, err));
    DQ_TRY(dq_json_text(&prompt, record, t->key[DQ_TASK_TEXT], NULL, err));
    if (t->answered) {
        DQ_TRY(dq_json_text(&q->gold, record, t->key[DQ_TASK_ANSWER], NULL, err));
        DQ_TRY(dq_json_text(&q->worked, record, t->key[DQ_TASK_TARGET], NULL, err));
        if (!*q->gold) return dq_fail(err, DQ_DAMAGED, "the answer is empty");
        DQ_TRY(rule_of(&q->rule, t, record, q->gold, err));
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
    record_reader r = {.task = l->task, .take = add_question, .arg = l, .limit = limit};
    *out = (dq_questions){.first_bad = -1};
    if (dq_task_file_text(&text, &len, &out->n_bad, &out->first_bad, l->a, err) == DQ_OK)
        read_records(&r, text, len, err);
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
        l.draw = (shots_draw){
            .content = content, .n_all = shots->n_examples, .n = shots->n, .first = !shots->drawn};
        DQ_TRY(shots_begin(&l.draw, shots->seed, a, err));
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
