/* task_forms: see task_forms.h. One function per form of record: it takes the object apart, checks what it uses,
 * and fills an item with a context, choices and the index of the answer, in the words of lm-evaluation-harness.
 * SPDX-License-Identifier: MIT */
#include "tasks/task_forms.h"

#include "base/text.h"
#include "tasks/repeats.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

dq_status dq_read_mc(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *ctx, *delimiter;
    int64_t gold;
    DQ_TRY(dq_json_text(&ctx, o, "ctx", NULL, err));
    DQ_TRY(dq_json_text(&delimiter, o, "delimiter", &item->delimiter, err));
    item->delimiter = dq_text(a, delimiter, strlen(delimiter), err);
    if (!item->delimiter) return err->code;
    DQ_TRY(dq_task_file_read_choices(item, o, "choices", NULL, a, err));
    DQ_TRY(dq_json_int(&gold, o, "gold", 0, item->n_choices - 1, NULL, err));
    item->gold = (int)gold;
    return dq_task_file_set_context(item, a, err, "%s", ctx);
}

/* Choice i of [{"text", "label"}, ...] or {"text": [...], "label": [...]}. */
static dq_status labelled(const json_t *choices, size_t i, const char **text, const char **label,
                          dq_err *err)
{
    const json_t *one = json_array_get(choices, i);
    const json_t *t =
        one ? json_object_get(one, "text") : json_array_get(json_object_get(choices, "text"), i);
    const json_t *l =
        one ? json_object_get(one, "label") : json_array_get(json_object_get(choices, "label"), i);
    *text = json_string_value(t);
    *label = json_string_value(l);
    if (!*text || !*label || strlen(*text) != json_string_length(t))
        return dq_fail(err, DQ_DAMAGED,
                       "key \"choices\": entry %zu lacks a string \"text\" or \"label\"", i);
    return DQ_OK;
}

/* The labels there are, for a message. */
static void list_labels(char *out, size_t cap, const char *const *label, int n)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < n && used + 1 < cap; i++) {
        int k = snprintf(out + used, cap - used, "%s%.8s", i ? ", " : "", label[i]);
        used += k > 0 ? (size_t)k : 0;
    }
}

static dq_status find_answer(dq_item *item, const json_t *o, const char *const *label, dq_err *err)
{
    const char *key;
    char all[96];
    size_t bytes;
    DQ_TRY(dq_json_text(&key, o, "answerKey", NULL, err));
    const char *at = key;
    while (*at && dq_items_is_strip_space(dq_utf8_first(at, &bytes))) at += bytes;
    for (item->gold = 0; item->gold < item->n_choices; item->gold++) {
        if (strcmp(label[item->gold], at) == 0) return DQ_OK;
    }
    list_labels(all, sizeof all, label, item->n_choices);
    return dq_fail(err, DQ_DAMAGED,
                   "key \"answerKey\": expected one of the labels %s, found \"%.40s\"", all, key);
}

/* Choices of `holder`, and which of them the answerKey of o names. */
static dq_status read_labelled(dq_item *item, const json_t *o, const json_t *holder, dq_arena *a,
                               dq_err *err)
{
    const json_t *choices = json_object_get(holder, "choices");
    const json_t *texts = json_is_object(choices) ? json_object_get(choices, "text") : choices;
    size_t n = json_array_size(texts);
    if (!choices) return dq_fail(err, DQ_DAMAGED, "key \"choices\" is missing");
    if (n < 2 || n > INT_MAX)
        return dq_fail(err, DQ_DAMAGED, "key \"choices\": expected at least two choices, found %zu",
                       n);
    const char **text = dq_alloc(a, n, sizeof *text, err);
    const char **label = dq_alloc(a, n, sizeof *label, err);
    if (!text || !label) return err->code;
    for (size_t i = 0; i < n; i++) DQ_TRY(labelled(choices, i, &text[i], &label[i], err));
    DQ_TRY(dq_task_file_set_choices(item, text, (int)n, a, err));
    return find_answer(item, o, label, err);
}

/* The question: {"question": {"stem", "choices"}} of the original files, or text under `flat` with the
 * choices beside it. *holder: the object that has the choices. */
static dq_status read_stem(const json_t *o, const char *flat, const char **stem,
                           const json_t **holder, dq_err *err)
{
    const json_t *q = json_object_get(o, "question");
    *holder = json_is_object(q) ? q : o;
    return dq_json_text(stem, *holder, json_is_object(q) ? "stem" : flat, NULL, err);
}

dq_status dq_read_arc(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *stem;
    const json_t *holder;
    DQ_TRY(read_stem(o, "question", &stem, &holder, err));
    DQ_TRY(read_labelled(item, o, holder, a, err));
    return dq_task_file_set_context(item, a, err, "Question: %s\nAnswer:", stem);
}

dq_status dq_read_openbookqa(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *stem;
    const json_t *holder;
    DQ_TRY(read_stem(o, "question_stem", &stem, &holder, err));
    DQ_TRY(read_labelled(item, o, holder, a, err));
    return dq_task_file_set_context(item, a, err, "%s", stem);
}

/* A boolean; also 0, 1 and the strings that copies have in its place. */
static dq_status read_truth(int *gold, const json_t *o, const char *key, dq_err *err)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    bool yes;
    if (json_is_number(v)) return dq_task_file_read_index(gold, o, key, 0, 2, NULL, err);
    if (!text) {
        DQ_TRY(dq_json_bool(&yes, o, key, NULL, err));
    } else {
        yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0;
        if (!yes && strcmp(text, "false") != 0 && strcmp(text, "False") != 0)
            return dq_fail(err, DQ_DAMAGED, "key \"%s\": expected true or false, found \"%.40s\"",
                           key, text);
    }
    *gold = yes;
    return DQ_OK;
}

dq_status dq_read_boolq(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    static const char *const answers[] = {"no", "yes"};
    const char *passage, *question, *title = NULL;
    bool original = !json_object_get(o, "label") && json_object_get(o, "answer");
    if (original) DQ_TRY(dq_json_text(&title, o, "title", NULL, err));
    DQ_TRY(dq_json_text(&passage, o, "passage", NULL, err));
    DQ_TRY(dq_json_text(&question, o, "question", NULL, err));
    DQ_TRY(read_truth(&item->gold, o, original ? "answer" : "label", err));
    DQ_TRY(dq_task_file_set_choices(item, answers, 2, a, err));
    item->cluster = dq_repeats_key(passage, strlen(passage));
    return dq_task_file_set_context(item, a, err,
                                    "%s%s%s\nQuestion: %s?\nAnswer:", title ? title : "",
                                    title ? " -- " : "", passage, question);
}

dq_status dq_read_piqa(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    static const int none = -1;
    const char *goal, *solution[2];
    DQ_TRY(dq_json_text(&goal, o, "goal", NULL, err));
    DQ_TRY(dq_json_text(&solution[0], o, "sol1", NULL, err));
    DQ_TRY(dq_json_text(&solution[1], o, "sol2", NULL, err));
    DQ_TRY(dq_task_file_read_index(&item->gold, o, "label", 0, 2, &none, err));
    DQ_TRY(dq_task_file_set_choices(item, solution, 2, a, err));
    return dq_task_file_set_context(item, a, err, "Question: %s\nAnswer:", goal);
}

/* What the copies of the test split have for an answer is an empty string. */
static dq_status read_option_number(dq_item *item, const json_t *o, dq_err *err)
{
    static const int none = -1;
    const char *text = json_string_value(json_object_get(o, "answer"));
    item->gold = -1;
    return text && !text[0] ? DQ_OK
                            : dq_task_file_read_index(&item->gold, o, "answer", 1, 2, &none, err);
}

dq_status dq_read_winogrande(dq_item *item, const json_t *o, dq_arena *a, dq_err *err)
{
    const char *sentence, *option[2];
    size_t bytes;
    DQ_TRY(dq_json_text(&sentence, o, "sentence", NULL, err));
    DQ_TRY(dq_json_text(&option[0], o, "option1", NULL, err));
    DQ_TRY(dq_json_text(&option[1], o, "option2", NULL, err));
    DQ_TRY(read_option_number(item, o, err));
    const char *blank = strchr(sentence, '_');
    if (!blank)
        return dq_fail(err, DQ_DAMAGED, "key \"sentence\": has no blank (expected a \"_\")");
    const char *rest = blank + 1;
    while (*rest && dq_items_is_strip_space(dq_utf8_first(rest, &bytes))) rest += bytes;
    rest = dq_text(a, rest, dq_items_strip_end(rest, strlen(rest)), err);
    dq_choice *c = dq_alloc(a, 2, sizeof *c, err);
    if (!rest || !c) return err->code;
    for (int i = 0; i < 2; i++) {
        DQ_TRY(dq_task_file_set_choice(item, &c[i], rest, a, err));
        if (c[i].points == 0) c[i].points = 1; /* of one text for both, acc_norm is acc */
        c[i].ctx = dq_textf(a, err, "%.*s%s", (int)(blank - sentence), sentence, option[i]);
        if (!c[i].ctx) return err->code;
        c[i].ctx_len = strlen(c[i].ctx);
    }
    item->choice = c;
    item->n_choices = 2;
    return DQ_OK;
}
