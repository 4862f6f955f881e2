/* question_sets: see question_sets.h. A reader knows the keys of its set by name; a key that is missing is named. Prompts of
 * summaries and of questions about a source are dq's own.
 * SPDX-License-Identifier: MIT */
#include "tasks/question_sets.h"

#include "base/text.h"
#include "tasks/math_answer.h"

#include <stdlib.h>
#include <string.h>

/* ---- Numbers ---- */

/* The record's "answer" (or "Answer") as gsm8k has it. */
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
    /* an answer with its reasoning stays as it stands; a bare one is given as it is judged */
    const json_t *answer = json_object_get(record, "answer");
    const char *text = json_string_value(answer ? answer : json_object_get(record, "Answer"));
    out->worked = text && strstr(text, "#### ") ? text : out->gold;
    return err->code;
}

/* A text or number as a gold answer, in the form that it is judged in. */
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

/* "9 (apples)" as "9". */
static dq_status without_units(const char **out, const char *text, dq_arena *a, dq_err *err)
{
    size_t n = 0;
    char *s = dq_text(a, text, strlen(text), err);
    if (!s) return err->code;
    const char *last = strrchr(text, ')');
    for (const char *c = text; *c; c++) {
        if (*c == '(' && c < last)
            c = strchr(c, ')');
        else
            s[n++] = *c;
    }
    while (n && (s[n - 1] == ' ' || s[n - 1] == '\n' || s[n - 1] == '\r')) n--;
    s[n] = 0;
    *out = s + strspn(s, " \r\n");
    return DQ_OK;
}

static dq_status read_asdiv(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const bool upper = json_object_get(record, "Body") != NULL;
    const char *body, *question, *answer;
    DQ_TRY(dq_json_text(&body, record, upper ? "Body" : "body", NULL, err));
    DQ_TRY(dq_json_text(&question, record, upper ? "Question" : "question", NULL, err));
    DQ_TRY(dq_json_text(&answer, record, upper ? "Answer" : "answer", NULL, err));
    DQ_TRY(without_units(&answer, answer, a, err));
    DQ_TRY(gold_of(&out->gold, json_string(answer), a, err));
    out->question = dq_textf(a, err, "%s %s", body, question);
    out->passage = body;
    out->worked = out->gold;
    out->rule = dq_answer_rules_for(out->gold);
    return err->code;
}

/* The one solution of a list of numbers. */
static dq_status only_solution(json_t **out, const json_t *record, dq_err *err)
{
    const json_t *list = json_object_get(record, "lSolutions");
    *out = json_array_get(list, 0);
    if (json_array_size(list) != 1 || !json_is_number(*out))
        return dq_json_wrong("lSolutions", "a list of one number", list, err);
    return DQ_OK;
}

static dq_status read_mawps(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const bool original = json_object_get(record, "sQuestion") != NULL;
    json_t *value = json_object_get(record, "target");
    DQ_TRY(dq_json_text(&out->question, record, original ? "sQuestion" : "input", NULL, err));
    if (original) DQ_TRY(only_solution(&value, record, err));
    if (!json_is_number(value) && !json_is_string(value))
        return dq_json_wrong("target", "a number or a text", value, err);
    DQ_TRY(gold_of(&out->gold, json_incref(value), a, err));
    out->worked = out->gold;
    out->rule = dq_answer_rules_for(out->gold);
    return DQ_OK;
}

/* ---- Expressions ---- */

/* The answer of a solution, or that of the record. */
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

/* ---- Questions about a table ---- */

/* The text that was written to f, which is closed, in the arena. */
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

/* ---- Texts for a judge ---- */

static dq_status read_prompt(dq_question_parts *out, const json_t *record, dq_arena *a, dq_err *err)
{
    const char *key =
        json_object_get(record, "prompt") || !json_object_get(record, "ctx") ? "prompt" : "ctx";
    (void)a;
    return dq_json_text(&out->question, record, key, NULL, err);
}

/* The JSON text of a list, which is given up. */
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

/* XSum and Multi-News as published; CNN/DailyMail has other names for the same. */
static dq_status read_summary(dq_question_parts *out, const json_t *record, dq_arena *a,
                              dq_err *err)
{
    const bool daily = json_object_get(record, "article") != NULL;
    const char *source, *reference;
    DQ_TRY(dq_json_text(&source, record, daily ? "article" : "document", NULL, err));
    DQ_TRY(dq_json_text(&reference, record, daily ? "highlights" : "summary", NULL, err));
    return summary(out, source, json_pack("[s]", reference), a, err);
}

/* LongBench's records: a source, a question (empty for summaries), right answers. */
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

/* [[title, [sentence, ...]], ...] as paragraphs. */
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

/* The release of HotpotQA, whose form 2WikiMultihopQA has too, or LongBench's. */
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

/* ---- The table ---- */

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
