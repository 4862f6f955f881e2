/* Task files: a user's own beside the program's, what they refuse, and what their templates make of a record.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "tasks/questions.h"
#include "tasks/tasks.h"
#include "template/record_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

FIXTURES(folder_begin, folder_end)

static const char *put(const char *text)
{
    put_bytes(at("own.json"), text, strlen(text));
    return at("own.json");
}

/* Every file of tasks/ is embedded, and is the same task when it is given by its path. */
TEST(own_file_is_the_embedded_one)
{
    static const char *const *const all[] = {dq_task_choices, dq_task_questions};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; all[k][i]; i++) {
            char path[1024];
            snprintf(path, sizeof path, "%s/tasks/%s.json", DQ_SOURCE_DIR, all[k][i]);
            const dq_task *embedded = given_task(all[k][i]), *own = given_task(path);
            assert_string_equal(embedded->name, all[k][i]);
            assert_string_equal(own->name, embedded->name);
            assert_string_equal(own->form, embedded->form);
            assert_int_equal(embedded->choices, k == 0);
            assert_int_equal(own->first_label, embedded->first_label);
            assert_int_equal(own->n_made, embedded->n_made);
            assert_int_equal(own->rule, embedded->rule);
            assert_null(embedded->path);
            assert_string_equal(own->path, path);
            for (int m = 0; m < DQ_TASK_MEMBERS; m++) {
                if (embedded->key[m])
                    assert_string_equal(own->key[m], embedded->key[m]);
                else
                    assert_null(own->key[m]);
            }
        }
    }
}

static void expect_items(const char *task, const char *text, const char *want)
{
    dq_err err = {0};
    dq_items items;
    char got[400] = "";
    if (dq_task_load(&items, given_task(task), "data", text, strlen(text), 0, given_arena(),
                     &err) != DQ_OK) {
        assert_string_equal(err.text, want);
        return;
    }
    for (int64_t i = 0; i < items.n; i++) {
        const dq_item *x = &items.item[i];
        for (int c = 0; c < x->n_choices; c++) {
            const size_t n = strlen(got);
            size_t len;
            snprintf(got + n, sizeof got - n, "%s>%s%s|", dq_item_context(x, c, &len),
                     x->choice[c].text, x->gold == c ? "*" : "");
        }
    }
    assert_string_equal(got, want);
}

#define HEAD "{\"task\": \"own\", \"output_type\": \"multiple_choice\", \"form\": \"F\", "

TEST(choices)
{
    static const struct {
        const char *task, *record, *want;
    } all[] = {
        /* as the harness's own files have them */
        {HEAD "\"doc_to_text\": \"Q: {{question}}\\nA:\", \"doc_to_choice\": \"{{choices.text}}\", "
              "\"doc_to_target\": \"{{choices.label.index(answerKey)}}\"}",
         "{\"question\": \"q\", \"choices\": {\"text\": [\"a\", \"b\"], \"label\": [\"A\", "
         "\"B\"]}, "
         "\"answerKey\": \"B\"}",
         "Q: q\nA:> a|Q: q\nA:> b*|"},
        {HEAD "\"doc_to_text\": \"q\", \"doc_to_choice\": [\"no\", \"{{b}}\"], "
              "\"doc_to_target\": \"gold\", \"target_delimiter\": \"\\n\"}",
         "{\"q\": \"x\", \"b\": \"B\", \"gold\": \"0\"}", "x>\nno*|x>\nB|"},
        {HEAD "\"doc_to_text\": [\"{{a}} 1\", \"{{a}} 2\"], \"doc_to_choice\": \"rest\", "
              "\"doc_to_target\": \"gold\", \"labels_from\": 1}",
         "{\"a\": \"x\", \"rest\": \"y\", \"gold\": 2}", "x 1> y|x 2> y*|"},
        {HEAD
         "\"process_docs\": {\"q\": \"{{ q|upper }}\", \"both\": \"{{ [q, w] }}\"}, "
         "\"doc_to_text\": \"q\", \"doc_to_choice\": \"both\", \"doc_to_target\": \"{{ 0 }}\"}",
         "{\"q\": \"x\", \"w\": \"y\"}", "X> X*|X> y|"},
        {"{\"include\": \"piqa\", \"task\": \"own\", \"doc_to_text\": \"{{goal}} ->\"}",
         "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\", \"label\": 1}", "g ->> a|g ->> b*|"},
        /* six lines are a record like others */
        {"{\"include\": \"hellaswag\", \"task\": \"own\", \"doc_to_text\": \"Q: {{ctx}}\", "
         "\"target_delimiter\": \"_\", \"doc_to_target\": \"{{ 3 - label|int }}\"}",
         "c  d\n1\n[x] a\nb\nc\nd\n", "Q: c  d>_[x] a|Q: c  d>_b|Q: c  d>_c*|Q: c  d>_d|"},
        {"{\"include\": \"hellaswag\", \"task\": \"own\", \"doc_to_text\": \"{{ctx_a}}?\"}",
         "c\n1\na\nb\nc\nd\n",
         "data: item 0, line 1: key \"ctx_a\" is missing (expected the official JSON lines, or six "
         "lines an item)"},
        {HEAD "\"doc_to_text\": \"{{q}}\", \"doc_to_choice\": \"c\", \"doc_to_target\": \"g\"}",
         "{\"q\": 3, \"c\": [\"a\", \"b\"], \"g\": 0}",
         "data: item 0, line 1: key \"doc_to_text\": expected a string, found an integer (expected "
         "F)"},
        {HEAD "\"doc_to_text\": \"{{q.r}}.\", \"doc_to_choice\": \"c\", \"doc_to_target\": \"g\"}",
         "{\"q\": {}, \"c\": [\"a\", \"b\"], \"g\": 0}",
         "data: item 0, line 1: key \"r\" is missing (expected F)"},
        {HEAD "\"doc_to_text\": \"{{q}}.\", \"doc_to_choice\": \"c\", \"doc_to_target\": \"g\"}",
         "{\"q\": true, \"c\": [\"a\", \"b\"], \"g\": 0}",
         "data: item 0, line 1: key \"q\": expected a string, found a boolean (expected F)"},
        {HEAD
         "\"doc_to_text\": \"{{q + 1}}.\", \"doc_to_choice\": \"c\", \"doc_to_target\": \"g\"}",
         "{\"q\": \"x\", \"c\": [\"a\", \"b\"], \"g\": 0}",
         "data: item 0, line 1: doc_to_text, line 1: an operator between 'str' and 'int' (expected "
         "F)"},
        {HEAD "\"doc_to_text\": \"c\", \"doc_to_choice\": \"o\", \"doc_to_target\": \"g\"}",
         "{\"c\": [\"a\\u0000b\", \"d\"], \"o\": \"x\", \"g\": 0}",
         "data: item 0, line 1: key \"c\": expected a list of texts without NUL, found an array "
         "(expected F)"},
        {HEAD "\"doc_to_text\": \"c\", \"doc_to_choice\": \"o\", \"doc_to_target\": \"g\"}",
         "{\"c\": [\"a\", \"b\"], \"o\": {\"text\": \"x\", \"label\": [\"A\", \"B\"]}, \"g\": "
         "\"B\"}",
         "a> x|b> x*|"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        expect_items(put(all[i].task), all[i].record, all[i].want);
}

TEST(damaged_files)
{
    static const char *const all[][2] = {
        {"[1]", "expected a JSON object"},
        {"{\"task\": ", "task: not valid JSON at line 1"},
        {"{}", "key \"output_type\" is missing"},
        {"{\"output_type\": \"loglikelihood\"}", "key \"output_type\": found \"loglikelihood\", "
                                                 "expected multiple_choice or generate_until"},
        {"{\"output_type\": \"multiple_choice\"}", "key \"task\" is missing"},
        {HEAD "\"doc_to_text\": \"t\"}", "key \"doc_to_choice\" is missing"},
        {HEAD "\"doc_to_text\": \"t\", \"doc_to_choice\": \"c\"}",
         "key \"doc_to_target\" is missing"},
        {HEAD "\"doc_to_txt\": \"t\"}",
         "key \"doc_to_txt\" is unknown (expected doc_to_text, doc_to_choice, "},
        {HEAD "\"doc_to_answer\": \"t\"}", "key \"doc_to_answer\" is for generate_until"},
        {"{\"include\": \"gsm8k\", \"labels_from\": 0}",
         "key \"labels_from\" is for multiple_choice"},
        {"{\"include\": \"gsm9k\"}",
         "key \"include\": expected the name of a task of the program, found \"gsm9k\""},
        {"{\"include\": \"piqa\", \"metric\": \"f1\"}",
         "key \"metric\": found \"f1\", expected acc or acc_norm"},
        {"{\"include\": \"gsm8k\", \"metric\": \"acc\"}",
         "key \"metric\": found \"acc\", expected gsm8k or value or math or words or number"},
        {"{\"include\": \"piqa\", \"labels_from\": 2}",
         "key \"labels_from\": expected 0 to 1, found 2"},
        {"{\"include\": \"piqa\", \"fewshot_spare\": 1}",
         "key \"fewshot_spare\": expected a boolean"},
        {"{\"include\": \"piqa\", \"task\": \"a=b\"}", "key \"task\": expected a name without"},
        {"{\"include\": \"piqa\", \"task\": \"a\\nb\"}", "key \"task\": expected a name without"},
        {"{\"include\": \"piqa\", \"task\": \"a\\u007f\"}",
         "key \"task\": expected a name without"},
        {"{\"include\": \"piqa\", \"task\": \"\"}", "key \"task\": expected a name without"},
        {"{\"include\": \"generate\", \"metric\": \"gsm8k\"}",
         "key \"metric\" is for generate_until with doc_to_answer"},
        {"{\"include\": \"gsm8k\", \"doc_to_query\": \"question\"}",
         "key \"doc_to_query\" is for generate_until without doc_to_answer"},
        {"{\"include\": \"gsm8k\", \"doc_to_reference\": [\"{{question}}\"]}",
         "key \"doc_to_reference\" is for generate_until without doc_to_answer"},
        {"{\"include\": \"piqa\", \"process_docs\": \"x\"}",
         "key \"process_docs\": expected an object of templates"},
        {"{\"include\": \"piqa\", \"process_docs\": {\"x\": 1}}",
         "key \"x\": expected a text, found 1"},
        {"{\"include\": \"piqa\", \"doc_to_text\": \"{{ goal\"}", "doc_to_text, line 1: "},
        {"{\"include\": \"piqa\", \"doc_to_text\": \"a\\n{% for x in y %}\"}",
         "doc_to_text, line 2: "},
        {"{\"include\": \"piqa\", \"doc_to_choice\": [\"{{sol1}}\", 2]}",
         "key \"doc_to_choice\": expected a list of texts, found 2"},
        {"{\"output_type\": \"generate_until\", \"task\": \"q\", \"form\": \"F\", \"doc_to_text\": "
         "\"q\", \"doc_to_answer\": \"a\", \"doc_to_target\": \"a\"}",
         "key \"metric\" is missing"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_err err = {0};
        const char *path = put(all[i][0]);
        assert_null(dq_task_find(path, given_arena(), &err));
        assert_int_equal(err.code, DQ_DAMAGED);
        if (strncmp(err.text, path, strlen(path)) != 0) fail_msg("no path in \"%s\"", err.text);
        if (!strstr(err.text, all[i][1])) fail_msg("\"%s\" lacks \"%s\"", err.text, all[i][1]);
    }
    dq_err err = {0};
    assert_null(dq_task_find(at("none.json"), given_arena(), &err));
    assert_int_equal(err.code, DQ_FILE);
}

TEST(questions)
{
    static const char task[] =
        "{\"task\": \"own\", \"output_type\": \"generate_until\", \"form\": \"F\", "
        "\"doc_to_text\": "
        "\"{{q}} =\", \"doc_to_answer\": \"{{ number(a) }}\", \"doc_to_target\": "
        "\"so #### {{doc_to_answer}}\", \"metric\": \"{{ 'words' if a is string else 'number' "
        "}}\"}";
    static const char text[] =
        "{\"1\": {\"q\": \"1+1\", \"a\": 2.0}, \"x\": {\"q\": \"red\", \"a\": "
        "\"blue\"}}";
    dq_questions q;
    dq_err err = {0};
    dq_questions_load(&q, given_task(put(task)), NULL, "f", text, strlen(text), 0, given_arena(),
                      &err);
    assert_string_equal(err.text, "");
    assert_int_equal(q.n, 2);
    assert_string_equal(q.question[0].prompt, "1+1 =");
    assert_string_equal(q.question[0].gold, "2");
    assert_string_equal(q.question[0].worked, "so #### 2");
    assert_string_equal(q.question[0].id, "\"1\"");
    assert_int_equal(q.question[0].rule, DQ_ANSWER_VALUE);
    assert_int_equal(q.question[1].rule, DQ_ANSWER_WORDS);
}

static json_t *twice(json_t *v, dq_arena *a, dq_err *err)
{
    const char *s = json_string_value(v);
    return s ? json_string(dq_textf(a, err, "%s%s", s, s)) : json_incref(v);
}

static json_t *broken(json_t *v, dq_arena *a, dq_err *err)
{
    (void)v, (void)a, (void)err;
    return json_string_nocheck("\xff");
}

/* What one template makes of a record, as JSON; or the message. */
TEST(templates)
{
    static const dq_record_function own[] = {{"twice", twice, true},
                                             {"once", twice, false},
                                             {"broken", broken, false},
                                             {NULL, NULL, false}};
    static const char record[] =
        "{\"s\": \"x\", \"i\": 3, \"r\": 0.5, \"l\": [\"a\", \"b\"], \"o\": {\"k\": [null, true]}, "
        "\"nul\": \"a\\u0000\", \"n\": null}";
    static const char *const all[][2] = {
        {"{{ i }}", "3"},
        {"{{ i + 1 }}", "4"},
        {"{{ o }}", "{\"k\":[null,true]}"},
        {"{{ [s, l[1], r] }}", "[\"x\",\"b\",0.5]"},
        {"{{ l|map('upper')|list }}", "[\"A\",\"B\"]"},
        {"{{ twice(s) }}", "\"xx\""},
        {"{{ twice(l) }}", "[\"aa\",\"bb\"]"},
        {"{{ twice(i) }}", "3"},
        {"{{ once(l) }}", "[\"a\",\"b\"]"},
        {"{{ l.index('b') }}", "1"},
        {"{{ l.index('c') }}", "m, line 1: index: the value is not in the list"},
        {"{% if i %}\n  {{s}}{% endif %}", "\"\\n  x\""}, /* no newline is trimmed */
        {"{{s}}{{i}}", "key \"i\": expected a string, found an integer"},
        {"{{s}}{{n}}", "key \"n\" is missing"},
        {"{{s}}{{o.k}}", "key \"k\": expected a string, found an array"},
        {"{{s}}{{r}}", "key \"r\": expected a string, found a real number"},
        {"{{s}}{{nul}}", "key \"nul\": the string contains a NUL"},
        {"{{s}}{{i|string}}", "\"x3\""},
        {"{{ none_such }}", "key \"none_such\" is missing"},
        {"{{s}}{{ s if false }}", "m, line 1: the inline if-expression"},
        {"{{ raise_exception('own words') }}", "own words"},
        {"{{ twice }}", "m, line 1: "},
        {"{{ broken(s) }}", "m, line 1: a text that JSON does not have"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_err err = {0};
        dq_record_template t;
        json_t *o = given_document(record), *text = json_string(all[i][0]);
        char *got = NULL;
        if (dq_record_template_new(&t, "m", text, given_arena(), &err) == DQ_OK &&
            dq_record_template_fill(o, &t, 1, own, &err) == DQ_OK)
            dq_json_dump(&got, json_object_get(o, "m"), JSON_ENCODE_ANY | JSON_COMPACT, &err);
        if (!got && (err.code != DQ_DAMAGED || !strstr(err.text, all[i][1])))
            fail_msg("%s: \"%s\"", all[i][0], err.text);
        if (got) assert_string_equal(got, all[i][1]);
        free(got);
        json_decref(text);
        json_decref(o);
    }
}
