/* Requests to a judge and what it replied: names, texts, words, and replies that belong to nothing.
 * SPDX-License-Identifier: MIT */
#include "tasks/questions.h"

#include "tests/rigs/given.h"

#include "tests/rigs/suite.h"
#include <stdio.h>
#include <string.h>

static const char completions[] =
    "{\"task\": \"xsum\", \"item\": 0, \"prompt\": \"Article: A.\\n\\nSummary:\", \"query\": null, "
    "\"reference\": [\"R.\"], \"completion\": \" S.\"}\n"
    "\n"
    "{\"task\": \"qasper\", \"item\": 1, \"prompt\": \"P\", \"query\": \"q?\", \"reference\": "
    "[\"a\", "
    "\"b\"], \"completion\": \"c\"}\n"
    "{\"task\": \"generate\", \"item\": 2, \"prompt\": \"P\", \"completion\": \"c\"} \n";

typedef struct taken {
    char id[3][64];
    char *question[3], *all[3];
    int n;
} taken;

static dq_status take(void *arg, json_t *request, dq_err *err)
{
    taken *t = arg;
    const json_t *body = json_object_get(request, "body");
    const json_t *message = json_array_get(json_object_get(body, "messages"), 0);
    (void)err;
    assert_in_range(t->n, 0, 2);
    snprintf(t->id[t->n], sizeof t->id[0], "%s",
             json_string_value(json_object_get(request, "custom_id")));
    t->question[t->n] = strdup(json_string_value(json_object_get(message, "content")));
    t->all[t->n++] = json_dumps(request, JSON_COMPACT);
    assert_string_equal(json_string_value(json_object_get(body, "model")), "some-judge");
    return DQ_OK;
}

static taken requests(void)
{
    taken t = {.n = 0};
    dq_err err = {0};
    dq_judge_requests(completions, strlen(completions), "some-judge", take, &t, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(t.n, 3);
    return t;
}

static void end(taken *t)
{
    for (int i = 0; i < t->n; i++) {
        free(t->question[i]);
        free(t->all[i]);
    }
}

TEST(test_requests)
{
    taken t = requests();
    assert_true(strncmp(t.id[0], "dq-1-", 5) == 0 && strncmp(t.id[1], "dq-3-", 5) == 0);
    assert_non_null(strstr(t.question[0], "<text>\nArticle: A.\n\nSummary:\n</text>"));
    assert_non_null(strstr(t.question[0], "These are right:\n\n- R.\n"));
    assert_non_null(strstr(t.question[0], "<summary>\n S.\n</summary>"));
    assert_non_null(strstr(t.question[1], "- a\n- b\n"));
    assert_non_null(strstr(t.question[1], "<answer>\nc\n</answer>"));
    assert_null(strstr(t.question[2], "These are right"));
    assert_non_null(strstr(t.question[2], "Reply with one word, correct or incorrect."));
    assert_non_null(strstr(t.all[0], "\"url\":\"/v1/chat/completions\""));
    end(&t);
}

static dq_status join(dq_strbuf *out, dq_judge_tally *tally, const char *replies, dq_err *err)
{
    return dq_judge_join(out, tally, completions, strlen(completions), "r", replies,
                         strlen(replies), given_arena(), err);
}

TEST(test_replies)
{
    static const char form[] =
        "{\"custom_id\": \"%s\", \"response\": {\"status_code\": 200, \"body\": {\"choices\": "
        "[{\"message\": {\"role\": \"assistant\", \"content\": \"%s\"}}]}}, \"error\": null}\n";
    static const struct {
        const char *said, *verdict;
    } rows[] = {
        {"correct", "\"correct\""},
        {"Incorrect.", "\"incorrect\""},
        {"**Correct**", "\"correct\""},
        {"INCORRECT because of S", "\"incorrect\""},
        {"correctly said", NULL},
        {"It is correct", NULL},
        {"", NULL},
        {"CORRECT!", "\"correct\""},
        {" `incorrect`", "\"incorrect\""},
        {"Verdict: incorrect.", "\"incorrect\""},
        {"**Final answer:** Correct", "\"correct\""},
        {"{\\\"verdict\\\": \\\"incorrect\\\"}", "\"incorrect\""},
        {"correct/incorrect", NULL},
        {"Correct or incorrect", NULL},
        {"incorrect|correct", NULL},
        {"[correct, incorrect]: correct", NULL},
        {"Incorrect. The correct answer is S", NULL},
        {"Verdict: correct/incorrect", NULL},
        {"not correct", NULL},
        {"Not incorrect.", NULL},
        {"Correct? Not.", NULL},
        {"Correct - not", NULL},
        {"Partially correct", NULL},
        {"Correct, partially", NULL},
        {"Correct answer: S", NULL},
        {"Answer: correct answer is S", NULL},
        {"Correct: S", NULL},
        {"correct?", NULL},
        {"Correct, as the text says so.", "\"correct\""},
        {"Incorrect - the text says T", "\"incorrect\""},
        {"Incorrect.\\n\\nThe text says T, not S.", "\"incorrect\""},
        {"correctness", NULL},
        {"incorrectly", NULL},
        {"correct-ish", NULL},
        {"Neither correct", NULL},
        {"I cannot judge that.", NULL},
        {"Verdict:", NULL},
        {"...", NULL},
    };
    taken t = requests();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char replies[1024], want[64];
        dq_strbuf out = {0};
        dq_judge_tally tally;
        dq_err err = {0};
        snprintf(replies, sizeof replies, form, t.id[1], rows[i].said);
        join(&out, &tally, replies, &err);
        assert_string_equal(err.text, "");
        dq_strbuf_add(&out, "", 1, &err);
        assert_int_equal(tally.completions, 3);
        assert_int_equal(tally.replies, 1);
        assert_int_equal(tally.unclear, !rows[i].verdict);
        assert_int_equal(tally.lacking, rows[i].verdict ? 2 : 3);
        if (rows[i].verdict) {
            snprintf(want, sizeof want, "\"completion\": \"c\", \"verdict\": %s}\n\n",
                     rows[i].verdict);
            assert_non_null(strstr(out.s, want));
            assert_true(strncmp(out.s, "\n\n{\"task\": \"qasper\"", 19) ==
                        0); /* lines keep their numbers */
        } else {
            assert_string_equal(out.s, "\n\n\n\n");
        }
        dq_block_free(out.s);
    }
    end(&t);
}

TEST(test_verdicts_and_refusals)
{
    taken t = requests();
    char replies[512];
    dq_strbuf out = {0};
    dq_judge_tally tally;
    dq_err err = {0};
    snprintf(replies, sizeof replies,
             "{\"id\": \"%s\", \"verdict\": 0.5}\n\n{\"custom_id\": \"%s\", \"verdict\": true}\n",
             t.id[2], t.id[0]);
    join(&out, &tally, replies, &err);
    assert_string_equal(err.text, "");
    dq_strbuf_add(&out, "", 1, &err);
    assert_non_null(strstr(out.s, "\"completion\": \" S.\", \"verdict\": true}\n"));
    assert_non_null(strstr(out.s, "\"completion\": \"c\", \"verdict\": 0.5}\n"));
    assert_int_equal(tally.lacking, 1);
    const char *const wrong[][2] = {
        {"{\"custom_id\": \"dq-1-0000000000000000\", \"verdict\": true}",
         "r: line 1: a reply to none of these completions"},
        {"{\"custom_id\": \"x\"}", "r: line 1: neither a \"verdict\" nor a \"response\""},
        {"{\"verdict\": true}", "r: line 1: key \"custom_id\" is missing"},
        {"{\"id\": \"x\", \"verdict\": true}\n{\"id\": \"x\", \"verdict\": true}",
         "r: line 2: x has a reply in line 1 already"},
    };
    for (size_t i = 0; i < 4; i++) {
        dq_err refused = {0};
        assert_int_not_equal(join(&out, &tally, wrong[i][0], &refused), DQ_OK);
        if (!strstr(refused.text, wrong[i][1]))
            fail_msg("\"%s\" is not in \"%s\"", wrong[i][1], refused.text);
    }
    dq_block_free(out.s);
    end(&t);
}
