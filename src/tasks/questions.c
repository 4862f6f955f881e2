/* Elements of a problem are found by their tags: they have no attributes and hold text alone. No
 * other XML is read.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"

#include "base/json.h"
#include "base/random.h"
#include "base/text.h"
#include "tasks/documents.h"
#include "tasks/items.h"
#include "tasks/tasks.h"
#include "tokenizer/regex.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Prompts of summaries and of questions about a source are dq's own. */

/* The record's "answer" (or "Answer") in gsm8k's form. */
static dq_status read_answered(dq_question_parts *out, const json_t *record, dq_arena *a,
                               dq_err *err)
{
    const char *body, *question;
    if (!json_object_get(record, "Body")) {
        DQ_TRY(dq_json_text(&out->question, record,
                            json_object_get(record, "Question") ? "Question" : "question", NULL,
                            err));
    } else {
        DQ_TRY(dq_json_text(&body, record, "Body", NULL, err));
        DQ_TRY(dq_json_text(&question, record, "Question", NULL, err));
        out->question = dq_textf(a, err, "%s %s", body, question);
        out->passage = body;
    }
    DQ_TRY(dq_answer_gold(&out->gold, record, a, err));
    /* An answer with reasoning is shown as it stands, a bare one in the form that is judged. */
    const json_t *answer = json_object_get(record, "answer");
    const char *text = json_string_value(answer ? answer : json_object_get(record, "Answer"));
    out->worked = text && strstr(text, "#### ") ? text : out->gold;
    return err->code;
}

/* A text or number in the form that is judged. */
static dq_status gold_of(const char **gold, json_t *value, dq_arena *a, dq_err *err)
{
    json_t *record = json_object();
    json_object_set_new(record, "answer", value);
    if (record && value)
        dq_answer_gold(gold, record, a, err);
    else
        dq_fail(err, DQ_RESOURCE, "out of memory");
    json_decref(record);
    return err->code;
}

static dq_status read_asdiv(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const bool upper = json_object_get(record, "Body") != NULL;
    const char *body, *question, *answer;
    DQ_TRY(dq_json_text(&body, record, upper ? "Body" : "body", NULL, err));
    DQ_TRY(dq_json_text(&question, record, upper ? "Question" : "question", NULL, err));
    DQ_TRY(dq_json_text(&answer, record, upper ? "Answer" : "answer", NULL, err));
    /* "9 (apples)" becomes "9". */
    size_t n = 0;
    char *s = dq_text(a, answer, strlen(answer), err);
    if (!s) return err->code;
    const char *last = strrchr(answer, ')');
    for (const char *c = answer; *c; c++) {
        if (*c == '(' && c < last)
            c = strchr(c, ')');
        else
            s[n++] = *c;
    }
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\n' || s[n - 1] == '\r')) n--;
    s[n] = 0;
    answer = s + strspn(s, " \r\n");
    DQ_TRY(gold_of(&out->gold, json_string(answer), a, err));
    out->question = dq_textf(a, err, "%s %s", body, question);
    out->passage = body;
    out->worked = out->gold;
    out->rule = dq_answer_rules_for(out->gold);
    return err->code;
}

static dq_status read_mawps(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const bool original = json_object_get(record, "sQuestion") != NULL;
    json_t *value = json_object_get(record, "target");
    DQ_TRY(dq_json_text(&out->question, record, original ? "sQuestion" : "input", NULL, err));
    if (original) {
        /* A list must hold exactly one solution. */
        const json_t *list = json_object_get(record, "lSolutions");
        value = json_array_get(list, 0);
        if (json_array_size(list) != 1 || !json_is_number(value))
            return dq_json_wrong("lSolutions", "a list of one number", list, err);
    }
    if (!json_is_number(value) && !json_is_string(value))
        return dq_json_wrong("target", "a number or a text", value, err);
    DQ_TRY(gold_of(&out->gold, json_incref(value), a, err));
    out->worked = out->gold;
    out->rule = dq_answer_rules_for(out->gold);
    return DQ_OK;
}

/* The answer in a solution, or else of the record. */
static dq_status read_math(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    DQ_TRY(dq_json_text(&out->question, record, "problem", NULL, err));
    DQ_TRY(dq_json_text(&out->worked, record, "solution", NULL, err));
    const dq_span boxed = dq_math_answer_boxed(out->worked, strlen(out->worked));
    if (json_object_get(record, "answer"))
        DQ_TRY(dq_json_text(&out->gold, record, "answer", NULL, err));
    else if (boxed.s)
        out->gold = dq_text(a, boxed.s, boxed.len, err);
    else
        return dq_fail(err, DQ_DAMAGED, "the \"solution\" has no \\boxed{answer}");
    out->rule = DQ_ANSWER_MATH;
    return err->code;
}

static dq_status read_carp(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    static const char none[] = "";
    const char *steps, *const empty = none;
    DQ_TRY(dq_json_text(&out->question, record, "content", NULL, err));
    DQ_TRY(dq_json_text(&out->gold, record, "answer", NULL, err));
    DQ_TRY(dq_json_text(&steps, record, "steps", &empty, err));
    out->worked = dq_textf(a, err, "%s%sThe answer is $%s$.", steps, *steps ? " " : "", out->gold);
    out->rule = DQ_ANSWER_MATH;
    return err->code;
}

static dq_status read_college_math(dq_question_parts *out, const json_t *record, dq_arena *a,
                                   dq_err *err)
{
    DQ_TRY(dq_json_text(&out->question, record,
                        json_object_get(record, "problem") ? "problem" : "question", NULL, err));
    DQ_TRY(dq_json_text(&out->gold, record, "answer", NULL, err));
    out->worked = dq_textf(a, err, "The answer is %s.", out->gold);
    out->rule = DQ_ANSWER_MATH;
    return err->code;
}

/* Closes f; the text moves to the arena. */
static dq_status take_text(const char **out, FILE *f, dq_strbuf *b, dq_arena *a, dq_err *err)
{
    if (dq_strbuf_memory_close(f, err) == DQ_OK) *out = dq_text(a, b->s ? b->s : "", b->n, err);
    dq_block_free(b->s);
    return err->code;
}

/* " Options: a, b." */
static dq_status put_options(FILE *f, const json_t *choices, dq_err *err)
{
    if (!choices || json_is_null(choices)) return DQ_OK;
    if (json_array_size(choices) < 2)
        return dq_json_wrong("choices", "null or a list of texts", choices, err);
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const char *choice = json_string_value(json_array_get(choices, i));
        if (!choice) return dq_json_wrong("choices", "null or a list of texts", choices, err);
        fprintf(f, "%s%s", i ? ", " : " Options: ", choice);
    }
    fputc('.', f);
    return DQ_OK;
}

static dq_status read_tabmwp(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    static const char none[] = "";
    const char *title, *table, *question, *unit, *type, *solution, *const empty = none;
    dq_strbuf text = {0};
    DQ_TRY(dq_json_text(&table, record, "table", NULL, err));
    DQ_TRY(dq_json_text(&question, record, "question", NULL, err));
    DQ_TRY(dq_json_text(&out->gold, record, "answer", NULL, err));
    DQ_TRY(dq_json_text(&type, record, "ans_type", NULL, err));
    DQ_TRY(dq_json_text(&title, record, "table_title", &empty, err));
    DQ_TRY(dq_json_text(&unit, record, "unit", &empty, err));
    DQ_TRY(dq_json_text(&solution, record, "solution", &empty, err));
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    fprintf(f, "%s%s%s\n%s", title, *title ? "\n" : "", table, question);
    if (*unit) fprintf(f, " (Unit: %s)", unit);
    put_options(f, json_object_get(record, "choices"), err);
    DQ_TRY(take_text(&out->question, f, &text, a, err));
    out->passage = table;
    out->worked =
        dq_textf(a, err, "%s%sThe answer is %s.", solution, *solution ? " " : "", out->gold);
    const bool number = strcmp(type, "integer_number") == 0 || strcmp(type, "decimal_number") == 0;
    out->rule = !number                  ? DQ_ANSWER_WORDS
                : strchr(out->gold, '/') ? DQ_ANSWER_MATH
                                         : DQ_ANSWER_VALUE;
    return err->code;
}

static dq_status read_prompt(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const char *key =
        json_object_get(record, "prompt") || !json_object_get(record, "ctx") ? "prompt" : "ctx";
    (void)a;
    return dq_json_text(&out->question, record, key, NULL, err);
}

/* Takes the list. */
static dq_status list_text(const char **out, json_t *list, dq_arena *a, dq_err *err)
{
    char *text = NULL;
    if (dq_json_dump(&text, list, JSON_COMPACT, err) == DQ_OK)
        *out = dq_text(a, text, strlen(text), err);
    free(text);
    json_decref(list);
    return err->code;
}

static dq_status summary(dq_question_parts *out, const char *source, json_t *references,
                         dq_arena *a, dq_err *err)
{
    out->question = dq_textf(a, err, "Article: %s\n\nSummary:", source);
    return list_text(&out->reference, references, a, err);
}

/* CNN/DailyMail has other keys than XSum and Multi-News. */
static dq_status read_summary(dq_question_parts *out, const json_t *record, dq_arena *a,
                              dq_err *err)
{
    const bool daily = json_object_get(record, "article") != NULL;
    const char *source, *reference;
    DQ_TRY(dq_json_text(&source, record, daily ? "article" : "document", NULL, err));
    DQ_TRY(dq_json_text(&reference, record, daily ? "highlights" : "summary", NULL, err));
    return summary(out, source, json_pack("[s]", reference), a, err);
}

/* LongBench: a source, a question (empty for summaries), and right answers. */
static dq_status read_long(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    json_t *answers = json_object_get(record, "answers");
    const char *source, *query;
    DQ_TRY(dq_json_text(&source, record, "context", NULL, err));
    DQ_TRY(dq_json_text(&query, record, "input", NULL, err));
    if (!json_is_string(json_array_get(answers, 0)))
        return dq_json_wrong("answers", "a list of texts", answers, err);
    if (!*query) return summary(out, source, json_incref(answers), a, err);
    out->query = query;
    out->passage = source;
    out->question = dq_textf(a, err, "%s\n\nQuestion: %s\nAnswer:", source, query);
    return list_text(&out->reference, json_incref(answers), a, err);
}

static dq_status read_multi_news(dq_question_parts *out, const json_t *record, dq_arena *a,
                                 dq_err *err)
{
    return json_object_get(record, "context") ? read_long(out, record, a, err)
                                              : read_summary(out, record, a, err);
}

/* [[title, [sentence, ...]], ...] becomes paragraphs. */
static dq_status put_paragraphs(FILE *f, const json_t *context, dq_err *err)
{
    for (size_t i = 0; i < json_array_size(context); i++) {
        const json_t *part = json_array_get(context, i), *list = json_array_get(part, 1);
        const char *title = json_string_value(json_array_get(part, 0));
        if (!title || !json_is_array(list))
            return dq_json_wrong("context", "a list of titles with sentences", context, err);
        fprintf(f, "%s%s\n", i ? "\n\n" : "", title);
        for (size_t k = 0; k < json_array_size(list); k++) {
            const char *sentence = json_string_value(json_array_get(list, k));
            if (!sentence)
                return dq_json_wrong("context", "a list of titles with sentences", context, err);
            fputs(sentence, f);
        }
    }
    return DQ_OK;
}

/* HotpotQA's and 2WikiMultihopQA's release, or LongBench's form. */
static dq_status read_hops(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const json_t *context = json_object_get(record, "context");
    const char *answer, *source = "";
    dq_strbuf text = {0};
    if (!json_is_array(context)) return read_long(out, record, a, err);
    DQ_TRY(dq_json_text(&out->query, record, "question", NULL, err));
    DQ_TRY(dq_json_text(&answer, record, "answer", NULL, err));
    FILE *f = dq_strbuf_memory_open(&text, err);
    if (!f) return err->code;
    put_paragraphs(f, context, err);
    DQ_TRY(take_text(&source, f, &text, a, err));
    out->passage = source;
    out->question = dq_textf(a, err, "%s\n\nQuestion: %s\nAnswer:", source, out->query);
    return list_text(&out->reference, json_pack("[s]", answer), a, err);
}

#define LINES "JSON lines or one JSON list of "
static const char answered_form[] =
    LINES "{\"question\", \"answer\"} or {\"Body\", \"Question\", \"Answer\"}";
static const char summary_form[] = LINES "{\"document\", \"summary\"}";
static const char long_form[] = LINES "{\"input\", \"context\", \"answers\"}, as LongBench has it";
static const char hops_form[] = LINES
    "{\"question\", \"answer\", \"context\": [[title, [sentence, ...]], ...]}, or LongBench's "
    "{\"input\", \"context\", \"answers\"}";

const dq_question_set dq_question_sets[] = {
    {"gsm8k", answered_form, .answered = true, .read = read_answered},
    {"svamp", answered_form, .answered = true, .read = read_answered},
    {"generate", LINES "{\"prompt\"}", .read = read_prompt},
    {"math", LINES "{\"problem\", \"solution\"}, with an \"answer\" or a \\boxed{} in the solution",
     .answered = true, .read = read_math},
    {"asdiv",
     "ASDiv.xml, or " LINES "{\"body\", \"question\", \"answer\"}, the unit in parentheses",
     .answered = true, .xml = true, .read = read_asdiv},
    {"mawps", LINES "{\"sQuestion\", \"lSolutions\"} or {\"input\", \"target\"}", .answered = true,
     .read = read_mawps},
    {"carp", LINES "{\"content\", \"answer\", \"steps\"}", .answered = true, .read = read_carp},
    {"tabmwp",
     "one JSON object of {\"table\", \"question\", \"choices\", \"answer\", \"ans_type\"} by their "
     "ids, JSON lines or one JSON list of them",
     .answered = true, .keyed = true, .read = read_tabmwp},
    {"college_math", LINES "{\"question\", \"answer\"}", .answered = true,
     .read = read_college_math},
    {"xsum", summary_form, .read = read_summary},
    {"cnn_dailymail", LINES "{\"article\", \"highlights\"}", .read = read_summary},
    {"multi_news",
     LINES "{\"document\", \"summary\"}, or LongBench's {\"input\", \"context\", \"answers\"}",
     .read = read_multi_news},
    {"qasper", long_form, .read = read_long},
    {"hotpotqa", hops_form, .read = read_hops},
    {"2wikimqa", hops_form, .read = read_hops},
};
const int dq_question_sets_n = sizeof dq_question_sets / sizeof dq_question_sets[0];

const dq_question_set *dq_question_set_find(const char *name)
{
    for (int i = 0; i < dq_question_sets_n; i++) {
        if (strcmp(dq_question_sets[i].name, name) == 0) return &dq_question_sets[i];
    }
    return NULL;
}

/* A file is a JSON list, JSON lines, an object of records by id, or XML; each record goes to the
 * same function. Examples come from another file likewise and are drawn in the order of the
 * questions. */

typedef dq_status take_record(void *arg, const json_t *record, int64_t line, dq_err *err);

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

/* One object of records by id; *is false: it is one record, or JSON lines. */
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
        if (question_xml_next(&record, text, len, &at, err) != DQ_OK)
            return dq_in(err, "item %lld: ", (long long)r->n);
        if (!record) return DQ_OK;
        take(r, record, 0, err);
        json_decref(record);
        DQ_TRY(err->code);
    }
    return DQ_OK;
}

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

/* `content` is the hash of the question, which must not be among its examples. */
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

static dq_question *next_question(list *l, dq_err *err)
{
    dq_question *more = dq_grow(l->a, l->question, (size_t)l->n + 1, &l->cap, sizeof *more, err);
    if (!more) return NULL;
    l->question = more;
    return &l->question[l->n++];
}

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

/* Answered records must have an answer. */
static dq_status read_parts(dq_question_parts *out, const dq_question_set *set,
                            const json_t *record, dq_arena *a, dq_err *err)
{
    *out = (dq_question_parts){.question = NULL};
    DQ_TRY(set->read(out, record, a, err));
    if (set->answered && !out->gold[0]) return dq_fail(err, DQ_DAMAGED, "the answer is empty");
    return DQ_OK;
}

/* Copies a text that ends with the record; NULL stays NULL. */
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
    if (l->set->answered) {
        const dq_question_shots *s = l->shots;
        l->text.n = 0;
        if (s && s->n != 0) {
            DQ_TRY(choose_shots(l, content, err));
            for (int64_t i = 0; i < s->n; i++) {
                const char *text = s->example[l->draw[i]].text;
                DQ_TRY(dq_strbuf_add(&l->text, text, strlen(text), err));
            }
        }
    }
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
