/* Published forms of sets of questions and of texts for a judge, from files of a record or three in each form, and how answers
 * are judged by each rule.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"
#include "tasks/tasks.h"

#include "tests/rigs/given.h"

#include "tests/rigs/suite.h"
#include <stdio.h>
#include <string.h>

#define SETS DQ_TEST_DIR "/golden/questions/sets/"

static const struct {
    const char *set, *file;
    int64_t n;
    int at; /* record */
    const char *id, *prompt, *gold;
    dq_answer_rule rule;
} rows[] = {
    {"math", "math.jsonl", 2, 0, NULL,
     "Question: What is $\\frac{1}{4}+\\frac{1}{4}$?\nAnswer:", "\\frac{1}{2}", DQ_ANSWER_MATH},
    {"math", "math.jsonl", 2, 1, NULL, "Question: Solve $x-3=4$.\nAnswer:", "7", DQ_ANSWER_MATH},
    {"asdiv", "asdiv.xml", 3, 0, "\"own-0001\"",
     "Question: Three mice & four cats sit by the door. How many animals sit there?\nAnswer:", "7",
     DQ_ANSWER_VALUE},
    {"asdiv", "asdiv.xml", 3, 1, "\"own-0002\"",
     "Question: A jug holds 1,500 ml. Caf\xc3\xa9 cups hold < 1 litre. How much do two jugs "
     "hold?\nAnswer:",
     "3000", DQ_ANSWER_VALUE},
    {"asdiv", "asdiv.xml", 3, 2, "\"own-0003\"",
     "Question: There are 2 red and 3 blue balls. What is the ratio of red to blue "
     "balls?\nAnswer:",
     "2:3", DQ_ANSWER_MATH},
    {"mawps", "mawps.json", 2, 0, NULL,
     "Question: Ada had 9 pens and gave 4 away. How many has she now?\nAnswer:", "5",
     DQ_ANSWER_VALUE},
    {"mawps", "mawps.json", 2, 1, NULL,
     "Question: A rope of 5 m is cut in halves. How long is each?\nAnswer:", "2.5",
     DQ_ANSWER_VALUE},
    {"mawps", "mawps.jsonl", 1, 0, NULL,
     "Question: Ben picks 3 plums and 8 figs. How many fruits are that?\nAnswer:", "11",
     DQ_ANSWER_VALUE},
    {"carp", "carp.jsonl", 1, 0, NULL,
     "Question: What is the solution of $2 x = 6 - x$?\nAnswer:", "x = 2", DQ_ANSWER_MATH},
    {"tabmwp", "tabmwp.json", 3, 0, "\"7\"",
     "Question: Jars\nJar | Beans\nred | 900\nblue | 340\nHow many beans are in both "
     "jars?\nAnswer:",
     "1,240", DQ_ANSWER_VALUE},
    {"tabmwp", "tabmwp.json", 3, 1, "\"9\"",
     "Question: Jar | Beans\nred | 900\nblue | 340\nWhich jar has more beans? Options: red, "
     "blue.\nAnswer:",
     "red", DQ_ANSWER_WORDS},
    {"tabmwp", "tabmwp.json", 3, 2, "\"12\"",
     "Question: Eggs | Number\nbrown | 6\nwhite | 2\nWhat share of the eggs is brown? (Unit: "
     "eggs)\nAnswer:",
     "3/4", DQ_ANSWER_MATH},
    {"college_math", "college_math.jsonl", 1, 0, NULL,
     "Question: Differentiate $f(x)=x^2$.\nAnswer:", "$2x$", DQ_ANSWER_MATH},
};

static void read_set(dq_questions *q, const char *set, const char *file, dq_arena *a)
{
    size_t len;
    dq_err err = {0};
    const char *text = given_file(&len, SETS "%s", file);
    dq_questions_load(q, given_task(set), NULL, file, text, len, 0, a, &err);
    assert_string_equal(err.text, "");
}

static void expect_text(const char *got, const char *want)
{
    if (want)
        assert_string_equal(got, want);
    else
        assert_null(got);
}

TEST(test_published_forms)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        dq_questions q;
        read_set(&q, rows[i].set, rows[i].file, given_arena());
        assert_int_equal(q.n, rows[i].n);
        const dq_question *x = &q.question[rows[i].at];
        expect_text(x->id, rows[i].id);
        assert_string_equal(x->prompt, rows[i].prompt);
        assert_string_equal(x->gold, rows[i].gold);
        assert_int_equal(x->rule, rows[i].rule);
        assert_null(x->reference);
    }
}

static const struct {
    const char *set, *file;
    int at;
    const char *prompt, *query, *reference;
} texts[] = {
    {"xsum", "xsum.jsonl", 0,
     "Article: A duck crossed the road in Mainz. Nobody was hurt.\n\nSummary:", NULL,
     "[\"A duck has crossed a road.\"]"},
    {"cnn_dailymail", "cnn_dailymail.jsonl", 0,
     "Article: The mill was sold on Monday for two coins.\n\nSummary:", NULL, "[\"Mill sold .\"]"},
    {"multi_news", "multi_news.jsonl", 0,
     "Article: The fox sleeps. ||||| The fox slept all day.\n\nSummary:", NULL,
     "[\"A fox sleeps.\"]"},
    {"multi_news", "multi_news.jsonl", 1, "Article: One goat. Two goats.\n\nSummary:", NULL,
     "[\"Goats.\"]"},
    {"qasper", "qasper.jsonl", 0,
     "We use a small model.\n\nQuestion: Which model is used?\nAnswer:", "Which model is used?",
     "[\"a small model\",\"small\"]"},
    {"hotpotqa", "hotpotqa.json", 0,
     "The Mill\nThe Mill is a book. Ida wrote it.\n\nIda\nIda was born in Oslo.\n\nQuestion: Where "
     "was the author of The Mill born?\nAnswer:",
     "Where was the author of The Mill born?", "[\"Oslo\"]"},
    {"2wikimqa", "2wikimqa.jsonl", 0,
     "Passage 1:\nAnn is 30.\nPassage 2:\nBob is 20.\n\nQuestion: Who is older?\nAnswer:",
     "Who is older?", "[\"Ann\"]"},
};

TEST(test_texts_for_a_judge)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        dq_questions q;
        read_set(&q, texts[i].set, texts[i].file, given_arena());
        const dq_question *x = &q.question[texts[i].at];
        assert_string_equal(x->prompt, texts[i].prompt);
        expect_text(x->query, texts[i].query);
        assert_string_equal(x->reference, texts[i].reference);
        assert_null(x->gold);
    }
}

static const struct {
    const char *set, *text, *message;
} refused[] = {
    {"math", "{\"problem\": \"p\", \"solution\": \"none\"}",
     "f: line 1: the \"solution\" has no \\boxed{answer}"},
    {"math", "{\"question\": \"p\"}", "f: line 1: key \"problem\" is missing"},
    {"math", "{\"problem\": \"p\", \"solution\": \"\\\\boxed{}\"}",
     "f: line 1: the answer is empty"},
    {"asdiv", "<Problem ID=\"1\"><Body>b</Body><Question>q</Question></Problem>",
     "f: item 0: element Answer is missing"},
    {"asdiv", "<Problem ID=\"1\"><Body>b</Body>", "f: item 0: a <Problem> that does not end"},
    {"asdiv", "<Problem><Body>&no;</Body><Question>q</Question><Answer>1</Answer></Problem>",
     "f: item 0: element Body: an entity that is not known"},
    {"asdiv", "<ProblemSet></ProblemSet>", "f: holds no items (expected ASDiv.xml"},
    {"mawps", "[{\"sQuestion\": \"q\", \"lSolutions\": [1, 2]}]",
     "f: item 0: key \"lSolutions\": expected a list of one number"},
    {"mawps", "[{\"question\": \"q\", \"answer\": 1}]", "f: item 0: key \"input\" is missing"},
    {"carp", "{\"content\": \"c\"}", "f: line 1: key \"answer\" is missing"},
    {"tabmwp", "{\"1\": {\"question\": \"q\"}}", "f: item 0: key \"table\" is missing"},
    {"tabmwp",
     "{\"table\": \"t\", \"question\": \"q\", \"answer\": \"1\", \"ans_type\": \"x\", \"choices\": "
     "4}",
     "f: line 1: key \"choices\": expected null or a list of texts"},
    {"college_math", "{\"question\": \"q\", \"answer\": 4}",
     "f: line 1: key \"answer\": expected a string"},
    {"xsum", "{\"article\": \"a\"}", "f: line 1: key \"highlights\" is missing"},
    {"qasper", "{\"title\": \"t\", \"full_text\": []}", "f: line 1: key \"context\" is missing"},
    {"hotpotqa", "{\"question\": \"q\", \"answer\": \"a\", \"context\": [[\"t\", \"s\"]]}",
     "f: line 1: key \"context\": expected a list of titles with sentences"},
    {"2wikimqa", "{\"input\": \"q\", \"context\": \"c\", \"answers\": []}",
     "f: line 1: key \"answers\": expected a list of texts"},
};

TEST(test_refusals)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dq_questions q;
        dq_err err = {0};
        assert_int_equal(dq_questions_load(&q, given_task(refused[i].set), NULL, "f",
                                           refused[i].text, strlen(refused[i].text), 0,
                                           given_arena(), &err),
                         DQ_DAMAGED);
        if (!strstr(err.text, refused[i].message))
            fail_msg("\"%s\" is not in \"%s\"", refused[i].message, err.text);
    }
}

/* What stands before questions as a solved example. */
TEST(test_examples)
{
    static const char *const want[][3] = {
        {"math", "math.jsonl",
         "Question: Solve $x-3=4$.\nAnswer: Add 3 to both sides: $x=\\boxed{7}$.\n\n"},
        {"tabmwp", "tabmwp.json",
         "Question: Jar | Beans\nred | 900\nblue | 340\nWhich jar has more beans? Options: red, "
         "blue.\nAnswer: 900 is more than 340. The answer is red.\n\n"},
        {"asdiv", "asdiv.xml",
         "Question: A jug holds 1,500 ml. Caf\xc3\xa9 cups hold < 1 litre. How much do two jugs "
         "hold?\nAnswer: 3000\n\n"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        size_t len;
        dq_err err = {0};
        dq_question_shots shots = {.n = 2};
        const char *text = given_file(&len, SETS "%s", want[i][1]);
        dq_questions_shots(&shots, given_task(want[i][0]), "f", text, len, given_arena(), &err);
        assert_string_equal(err.text, "");
        assert_true(shots.n_examples >= 2);
        char got[400];
        snprintf(got, sizeof got, "%s %s\n\n", shots.example[1].prompt, shots.example[1].worked);
        assert_string_equal(got, want[i][2]);
    }
}

TEST(test_rules)
{
    static const struct {
        dq_answer_rule rule;
        const char *gold, *text;
        bool right, strict;
    } all[] = {
        {DQ_ANSWER_VALUE, "7", "There are 3 and 4, so 7", true, false},
        {DQ_ANSWER_VALUE, "7", "The answer is 7 animals.\nThen 3 leave.", true, false},
        {DQ_ANSWER_VALUE, "7", "\\boxed{7.0} and 5", true, true},
        {DQ_ANSWER_VALUE, "1,240", "It is $1,240.00.", true, false},
        {DQ_ANSWER_VALUE, "54%", "the answer is 54", true, false},
        {DQ_ANSWER_VALUE, "7", "seven", false, false},
        {DQ_ANSWER_VALUE, "7", "7 and then 8", false, false},
        {DQ_ANSWER_MATH, "\\frac{1}{2}", "so $\\boxed{\\tfrac12}$", true, true},
        {DQ_ANSWER_MATH, "\\frac{1}{2}", "The answer is $1/2$.", true, false},
        {DQ_ANSWER_MATH, "$2x$", "The answer is 2 x.", true, false},
        {DQ_ANSWER_MATH, "1,000", "\\boxed{1000}", true, true},
        {DQ_ANSWER_MATH, "7", "it must be 7", true, false},
        {DQ_ANSWER_MATH, "x = 2", "\\boxed{2}", true, true},
        {DQ_ANSWER_MATH, "7", "\\boxed{8} is not 7", false, false},
        {DQ_ANSWER_WORDS, "red", "The answer is Red.", true, false},
        {DQ_ANSWER_WORDS, "red", " red\n", true, false},
        {DQ_ANSWER_WORDS, "red", "\\boxed{red}", true, true},
        {DQ_ANSWER_WORDS, "red", "a red jar", false, false},
        {DQ_ANSWER_GSM8K, "7", "so\n#### 7", true, true},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_answer_verdict v;
        dq_err err = {0};
        assert_int_equal(dq_answer_rules_judge(&v, all[i].rule, all[i].text, strlen(all[i].text),
                                               all[i].gold, &err),
                         DQ_OK);
        if (v.flexible != all[i].right || v.strict != all[i].strict)
            fail_msg("\"%s\" for \"%s\": %d %d", all[i].text, all[i].gold, v.flexible, v.strict);
    }
}
