/* Questions and prompts: the forms of their files; the completions of transformers and the verdicts of lm-eval
 * on the embedded pair, however units are grouped; verdicts on texts that are given.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "eval/eval.h"
#include "eval/kind_items.c" /* what is private there */

#include "base/file.h"
#include "base/json.h"
#include "tasks/questions.h"
#include "tasks/tasks.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <stdio.h>
#include <string.h>

#define HERE DQ_TEST_DIR "/golden/questions/"
enum { NEW = 32, N_ANSWERS = 6 };

/* ---- Files ---- */

static dq_status read_text(dq_questions *q, const char *set, const char *text, dq_arena *a,
                           dq_err *err)
{
    return dq_questions_load(q, given_task(set), NULL, "f", text, strlen(text), 0, a, err);
}

static const struct {
    const char *set;
    const char *text, *prompt, *gold, *id;
} forms[] = {
    {"gsm8k", "{\"question\": \"1 + 1?\", \"answer\": \"so\\n#### 2\"}",
     "Question: 1 + 1?\nAnswer:", "2", NULL},
    {"gsm8k", "\n \r\n{\"question\": \"q\", \"answer\": \"576.0\", \"id\": 7}\n",
     "Question: q\nAnswer:", "576", "7"},
    {"gsm8k",
     " [ {\"ID\": \"chal-1\", \"Body\": \"A has 2\", \"Question\": \"How many?\", \"Answer\": "
     "2.0}]",
     "Question: A has 2 How many?\nAnswer:", "2", "\"chal-1\""},
    {"gsm8k", "{\"Question\": \"q\", \"Answer\": 1.5}", "Question: q\nAnswer:", "1.5", NULL},
    {"generate", "{\"prompt\": \" as it is \", \"id\": [1]}", " as it is ", NULL, "[1]"},
    {"generate", "{\"ctx\": \"c\"}", "c", NULL, NULL},
    {"generate", "\xef\xbb\xbf{\"ctx\": \"c\"}", "c", NULL, NULL},
    {"generate", "\xef\xbb\xbf[{\"ctx\": \"c\"}]", "c", NULL, NULL},
    {"generate", "{\"prompt\": \"\xff\"}", "\xef\xbf\xbd", NULL, NULL},
};

TEST(reads_forms)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        dq_arena *a = given_arena();
        dq_questions q;
        dq_err err = {0};
        read_text(&q, forms[i].set, forms[i].text, a, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(q.n, 1);
        assert_string_equal(q.question[0].prompt, forms[i].prompt);
        assert_int_equal(q.question[0].len, strlen(forms[i].prompt));
        if (forms[i].gold)
            assert_string_equal(q.question[0].gold, forms[i].gold);
        else
            assert_null(q.question[0].gold);
        if (forms[i].id)
            assert_string_equal(q.question[0].id, forms[i].id);
        else
            assert_null(q.question[0].id);
    }
}

static const struct {
    const char *set;
    const char *text, *message;
} refused[] = {
    {"gsm8k", "", "f: holds no items (expected JSON lines or one JSON list"},
    {"gsm8k", "[]", "f: holds no items"},
    {"gsm8k", "\n{\"answer\": \"1\"}", "f: line 2: key \"question\" is missing"},
    {"gsm8k", "{\"question\": \"q\"}", "f: line 1: expected an \"answer\""},
    {"gsm8k", "{\"Body\": \"b\", \"Answer\": 1}", "f: line 1: key \"Question\" is missing"},
    {"gsm8k", "[{\"question\": \"q\", \"answer\": 1}, {\"question\": 2, \"answer\": 1}]",
     "f: item 1: key \"question\": expected a string, found an integer"},
    {"gsm8k", "[{\"question\": \"q\", \"answer\": 1}, 5]", "f: item 1: expected a JSON object"},
    {"gsm8k", "{\"question\": \"q\", \"answer\": 1}\n{", "f: line 2: item: not valid JSON"},
    {"generate", "{\"text\": \"q\"}", "f: line 1: key \"prompt\" is missing"},
    {"generate", "{\"prompt\": \"\"}", "f: line 1: the prompt is empty"},
};

TEST(refuses)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        dq_arena *a = given_arena();
        dq_questions q;
        dq_err err = {0};
        assert_int_equal(read_text(&q, refused[i].set, refused[i].text, a, &err), DQ_DAMAGED);
        if (!strstr(err.text, refused[i].message))
            fail_msg("\"%s\" is not in \"%s\"", refused[i].message, err.text);
    }
}

/* Questions about one paper or the same paragraphs depend on each other. */
TEST(shared_contexts)
{
    static const struct {
        const char *set, *text;
    } all[] = {
        {"qasper", "{\"context\": \"c\", \"input\": \"a?\", \"answers\": [\"x\"]}\n"
                   "{\"context\": \"c \", \"input\": \"b?\", \"answers\": [\"y\"]}\n"
                   "{\"context\": \"d\", \"input\": \"b?\", \"answers\": [\"y\"]}\n"},
        {"hotpotqa",
         "{\"context\": [[\"t\", [\"s\"]]], \"question\": \"a?\", \"answer\": \"x\"}\n"
         "{\"context\": [[\"t\", [\"s\"]]], \"question\": \"b?\", \"answer\": \"y\"}\n"
         "{\"context\": [[\"u\", [\"s\"]]], \"question\": \"b?\", \"answer\": \"y\"}\n"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dq_questions q;
        dq_err err = {0};
        dq_questions_load(&q, given_task(all[i].set), NULL, "f", all[i].text, strlen(all[i].text),
                          0, given_arena(), &err);
        assert_string_equal(err.text, "");
        assert_true(q.question[0].cluster == q.question[1].cluster);
        assert_true(q.question[1].cluster != q.question[2].cluster);
    }
}

TEST(makes_shots)
{
    static const char text[] = "{\"question\": \"a\", \"answer\": \"1 + 1\\n#### 2\"}\n"
                               "{\"question\": \"b\", \"answer\": \"3.0\"}\n";
    dq_arena *a = given_arena();
    static const char asked[] = "{\"question\": \"c\", \"answer\": \"4\"}\n"
                                "{\"question\": \"d\", \"answer\": \"5\", \"cluster\": 7}\n"
                                "{\"question\": \"a\", \"answer\": \"2\", \"cluster\": 7}\n";
    dq_question_shots shots = {.n = 2};
    dq_questions q;
    dq_err err = {0};
    dq_questions_shots(&shots, given_task("gsm8k"), "f", text, strlen(text), a, &err);
    assert_int_equal(shots.n_examples, 2);
    assert_string_equal(shots.example[0].prompt, "Question: a\nAnswer:");
    assert_string_equal(shots.example[0].worked, "1 + 1\n#### 2");
    assert_string_equal(shots.example[1].worked, "3");
    dq_questions_load(&q, given_task("gsm8k"), &shots, "f", asked, strlen(asked), 2, a, &err);
    assert_string_equal(err.text, "");
    assert_string_equal(q.question[1].prompt,
                        "Question: a\nAnswer: 1 + 1\n#### 2\n\nQuestion: b\nAnswer: "
                        "3\n\nQuestion: d\nAnswer:");
    assert_int_equal(q.n_own_shots, 0);
    assert_int_equal(
        dq_questions_load(&q, given_task("gsm8k"), &shots, "f", asked, strlen(asked), 0, a, &err),
        DQ_MISMATCH); /* without the question itself one is left */
    assert_non_null(strstr(err.text, "line 3: the file of examples has 1 that are not this"));
    shots.n = 1;
    for (int drawn = 0; drawn < 2; drawn++) {
        err = (dq_err){0};
        shots.drawn = drawn;
        dq_questions_load(&q, given_task("gsm8k"), &shots, "f", asked, strlen(asked), 0, a, &err);
        assert_string_equal(err.text, "");
        assert_string_equal(q.question[2].prompt, "Question: b\nAnswer: 3\n\nQuestion: a\nAnswer:");
    }
    assert_true(q.question[1].cluster == q.question[2].cluster);
    assert_true(q.question[0].cluster != q.question[1].cluster);
    shots.n = 3;
    err = (dq_err){0};
    assert_int_equal(
        dq_questions_shots(&shots, given_task("gsm8k"), "f", text, strlen(text), a, &err),
        DQ_MISMATCH);
    assert_non_null(strstr(err.text, "f: has 2 items, 3 are asked for"));
}

/* Prompts with drawn examples, equal to lm-evaluation-harness's (tests/golden/drawn.py). */
TEST(draws_shots)
{
    json_t *all = given_json(HERE "drawn.json");
    size_t len, pool_len, i, k;
    const char *text = given_file(&len, HERE "gsm8k.jsonl");
    const char *pool = given_file(&pool_len, HERE "train.jsonl");
    json_t *one, *prompt;
    dq_arena *a = given_arena();
    assert_true(json_array_size(json_object_get(all, "cases")) == 3);
    json_array_foreach(json_object_get(all, "cases"), i, one)
    {
        const json_t *prompts = json_object_get(one, "prompts");
        dq_questions q;
        dq_err err = {0};
        dq_question_shots shots = {.n = json_integer_value(json_object_get(one, "shots")),
                                   .drawn = true,
                                   .seed =
                                       (uint64_t)json_integer_value(json_object_get(one, "seed"))};
        dq_questions_shots(&shots, given_task("gsm8k"), "t", pool, pool_len, a, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(shots.n_examples, 12);
        dq_questions_load(&q, given_task("gsm8k"), &shots, "f", text, len, 0, a, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(q.n, json_array_size(prompts));
        json_array_foreach(prompts, k, prompt)
            assert_string_equal(q.question[k].prompt, json_string_value(prompt));
    }
    json_decref(all);
}

/* ---- The embedded pair ---- */

typedef struct rig {
    dq_arena *a;
    dq_backend *b;
    dq_model *m;
    dq_tokenizer *tok;
    dq_eval_model model;
    dq_eval_source source;
    dq_eval_generate settings;
    dq_eval e;
} rig;

static void rig_open(rig *x, const char *model)
{
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    x->m = given_model(DQ_SOURCE_DIR "/calib/pair/%s", model);
    x->b = given_backend(2);
    x->model = (dq_eval_model){.m = x->m, .shown = true};
    x->tok = given_tokenizer_of(x->m, &x->model.tok_text, &x->model.tok_len);
    x->model.runner = given_runner(x->m, x->b);
    x->model.tok = x->tok;
    x->e = (dq_eval){
        .a = x->a, .model = &x->model, .source = &x->source, .n_models = 1, .n_sources = 1};
}

static void rig_close(rig *x)
{
    dq_runner_free(x->model.runner);
    dq_tokenizer_free(x->tok);
    dq_model_close(x->m);
    dq_backend_close(x->b);
}

/* A source of text[len]: what `kind` makes of it. */
static void set_source(rig *x, const dq_eval_kind *kind, const char *text, size_t len)
{
    static const char *const dot[] = {" ."};
    dq_err err = {0};
    x->settings.max_new = NEW;
    x->settings.stop = kind == &dq_eval_prompts ? dot : dq_answer_stop;
    x->settings.n_stop = kind == &dq_eval_prompts ? 1 : dq_answer_n_stops;
    x->source =
        (dq_eval_source){.name = "s",
                         .path = "f",
                         .kind = kind,
                         .task = given_task(kind == &dq_eval_prompts ? "generate" : "gsm8k"),
                         .settings = &x->settings,
                         .text = text,
                         .len = len};
    kind->load(&x->e, &x->source, &err);
    assert_string_equal(err.text, "");
}

static void use_file(rig *x, const char *name, int64_t shots)
{
    size_t len, shots_len;
    dq_err err = {0};
    const char *text = given_file(&len, HERE "%s", name),
               *shots_text = given_file(&shots_len, HERE "shots.jsonl");
    x->settings.shots = (dq_question_shots){.n = shots};
    if (shots)
        dq_questions_shots(&x->settings.shots, given_task("gsm8k"), "s", shots_text, shots_len,
                           x->a, &err);
    assert_string_equal(err.text, "");
    set_source(x, strcmp(name, "prompts.jsonl") == 0 ? &dq_eval_prompts : &dq_eval_answers, text,
               len);
    x->e.n_ids = x->e.n_rows = 0; /* a sweep of its own */
}

/* Adds a row and computes all. */
static dq_eval_row *run_row(rig *x, int bits, dq_granularity granularity, const dq_kv_spec *kv)
{
    dq_err err = {0};
    const int at = x->e.n_rows;
    dq_eval_add(&x->e, 0, 0, (dq_logit_spec){.bits = bits, .granularity = granularity},
                (dq_math){0}, kv, &err);
    assert_string_equal(err.text, "");
    dq_eval_run(&x->e, &err);
    assert_string_equal(err.text, "");
    return &x->e.row[at];
}

static void expect_case(const rig *x, const dq_eval_row *row, int64_t unit, const json_t *want)
{
    const double *extra = row->extra + unit * DQ_GEN_EXTRA;
    char *text;
    size_t len;
    dq_err err = {0};
    assert_string_equal(x->source.items.item[unit].ctx,
                        json_string_value(json_object_get(want, "prompt")));
    dq_eval_completion(&x->e, row, unit, &text, &len, &err);
    assert_string_equal(err.text, "");
    json_t *got = json_stringn(text, len);
    assert_true(json_equal(got, json_object_get(want, "completion")));
    assert_int_equal((int)extra[DQ_GEN_COUNT], json_integer_value(json_object_get(want, "tokens")));
    assert_string_equal(dq_text_end_name[(int)extra[DQ_GEN_END]],
                        json_string_value(json_object_get(want, "end")));
    for (int i = (int)extra[DQ_GEN_COUNT]; i < NEW; i++)
        assert_int_equal(row->top1[unit * NEW + i], -1);
    assert_int_equal(extra[DQ_GEN_EXACT] == 1, json_is_true(json_object_get(want, "exact_match")));
    assert_int_equal(extra[DQ_GEN_STRICT] == 1,
                     json_is_true(json_object_get(want, "strict_match")));
    json_decref(got);
    dq_block_free(text);
}

/* The cases of golden.json for one model, file and number of shots are its units. */
static int expect_golden(rig *x, const json_t *root, const char *model, const char *file,
                         int64_t shots)
{
    int n = 0;
    use_file(x, file, shots);
    const dq_eval_row *row = run_row(x, 16, DQ_GRANULARITY_TENSOR, &dq_kv_plain);
    for (size_t i = 0; i < json_array_size(root); i++) {
        const json_t *c = json_array_get(root, i);
        if (strcmp(json_string_value(json_object_get(c, "model")), model) == 0 &&
            strcmp(json_string_value(json_object_get(c, "file")), file) == 0 &&
            json_integer_value(json_object_get(c, "shots")) == shots)
            expect_case(x, row, n++, c);
    }
    assert_int_equal(n, dq_eval_units(&x->e, row));
    return n;
}

TEST(equals_transformers)
{
    static const char *const models[] = {"llama", "diffllama"};
    for (int i = 0; i < 2; i++) {
        rig x;
        rig_open(&x, models[i]);
        json_t *root = given_json(HERE "golden.json");
        int n = expect_golden(&x, root, models[i], "gsm8k.jsonl", 0);
        n += expect_golden(&x, root, models[i], "gsm8k.jsonl", 2);
        n += expect_golden(&x, root, models[i], "svamp.json", 0);
        n += expect_golden(&x, root, models[i], "prompts.jsonl", 0);
        assert_int_equal(2 * n, json_array_size(root));
        json_decref(root);
        rig_close(&x);
    }
}

/* ---- Groups ---- */

/* Units one by one, backwards, give what a whole group gave. */
static void expect_alone(rig *x, const dq_eval_row *row)
{
    dq_eval_row one = *row;
    dq_runner *r = NULL;
    dq_err err = {0};
    const int64_t units = dq_eval_units(&x->e, row);
    const size_t n = (size_t)units;
    one.top1 = dq_alloc(x->a, n * NEW, sizeof *one.top1, &err);
    one.extra = dq_alloc(x->a, n * DQ_GEN_EXTRA, sizeof *one.extra, &err);
    dq_runner_new(&r, x->m, x->b, &row->kv, &err);
    for (int64_t i = units - 1; i >= 0; i--) {
        const dq_pass pass = {.logit = row->logit, .math = row->math};
        dq_scorer s;
        dq_score_begin(&s, r, &pass, &row->kv, &err);
        x->source.kind->score(&x->e, &one, &s, i, i + 1, x->a, &err);
        assert_string_equal(err.text, "");
        assert_true(s.work.tokens > 0 && s.work.computed > 0);
        dq_score_end(&s);
    }
    assert_memory_equal(one.top1, row->top1, n * NEW * sizeof *one.top1);
    assert_memory_equal(one.extra, row->extra, n * DQ_GEN_EXTRA * sizeof *one.extra);
    dq_runner_free(r);
}

static dq_kv_spec coded(int k, int v)
{
    dq_kv_spec s = dq_kv_plain;
    s.k_bits = k;
    s.v_bits = v;
    s.group = 32;
    s.sink = 4;
    s.recent = 16;
    return s;
}

TEST(groups_do_not_matter)
{
    static const char *const models[] = {"llama", "diffllama"};
    for (int i = 0; i < 2; i++) {
        rig x;
        dq_err err = {0};
        dq_kv_spec evicts = coded(16, 16);
        evicts.evict = dq_evict_none;
        evicts.evict.policy = dq_kv_policy_find("knorm", &err);
        assert_string_equal(err.text, "");
        evicts.evict.keep = 0.5;
        evicts.evict.every = 4;
        const dq_kv_spec kv[] = {dq_kv_plain, coded(8, 4), evicts};
        rig_open(&x, models[i]);
        use_file(&x, "prompts.jsonl", 0);
        expect_alone(&x, run_row(&x, 16, DQ_GRANULARITY_TENSOR, &kv[0]));
        for (int g = DQ_GRANULARITY_TENSOR; g <= DQ_GRANULARITY_TILE; g++)
            expect_alone(&x, run_row(&x, 6, (dq_granularity)g, &kv[0]));
        const dq_eval_row *row = run_row(&x, 16, DQ_GRANULARITY_TENSOR, &kv[1]);
        assert_true(row->work.cached.contexts == dq_eval_units(&x.e, row));
        expect_alone(&x, row);
        row = run_row(&x, 8, DQ_GRANULARITY_ROW, &kv[2]);
        assert_true(row->work.cached.evicted > 0);
        expect_alone(&x, row);
        rig_close(&x);
    }
}

/* Prompts that nobody judges need no reference row. */
TEST(prompts_have_no_reference)
{
    rig x;
    dq_eval_numbers n;
    dq_err err = {0};
    rig_open(&x, "llama");
    use_file(&x, "prompts.jsonl", 0);
    run_row(&x, 4, DQ_GRANULARITY_ROW, &dq_kv_plain);
    assert_int_equal(x.e.n_rows, 1);
    dq_eval_numbers_of(&x.e, 0, &n, &err);
    assert_int_equal(err.code, DQ_OK);
    assert_true(n.is_task && n.is_ref && n.n_metrics == 0);
    rig_close(&x);
}

/* ---- Texts that are given ---- */

static const struct {
    const char *gold, *text;
    bool exact, strict;
} answers[N_ANSWERS] = {
    {"18", " 16 - 3 = 13, so\n#### 18", true, true},
    {"18", " It is 18.", true, false},
    {"18", " It is 18.\n\nQuestion: what is 4?", true, false},
    {"1285", " #### 1,285\nor 3", false, true},
    {"-5", " minus 5", false, false},
    {"7", "", false, false},
};

TEST(judges_given_texts)
{
    char text[2048] = "";
    rig x;
    dq_err err = {0};
    double exact[N_ANSWERS], strict[N_ANSWERS];
    rig_open(&x, "llama");
    for (int i = 0; i < N_ANSWERS; i++) {
        const size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "{\"question\": \"q\", \"answer\": \"#### %s\"}\n",
                 answers[i].gold);
    }
    set_source(&x, &dq_eval_answers, text, strlen(text));
    dq_eval_add(&x.e, 0, 0, (dq_logit_spec){.bits = 16}, (dq_math){0}, &dq_kv_plain, &err);
    assert_string_equal(err.text, "");
    for (int i = 0; i < N_ANSWERS; i++) {
        double *right = x.e.row[0].extra + i * DQ_GEN_EXTRA + DQ_GEN_EXACT;
        judge_answer(right, &x.e, &x.e.row[0], i, answers[i].text, strlen(answers[i].text), &err);
        assert_string_equal(err.text, "");
    }
    dq_eval_answers.judge(&x.e, &x.e.row[0], 0, exact);
    dq_eval_answers.judge(&x.e, &x.e.row[0], 1, strict);
    for (int i = 0; i < N_ANSWERS; i++) {
        assert_int_equal(exact[i] == 1, answers[i].exact);
        assert_int_equal(strict[i] == 1, answers[i].strict);
    }
    rig_close(&x);
}

/* ---- Lengths ---- */

/* Index of what the first source is encoded to for the first model; -1: see err. */
static int first_ids(dq_eval *e, dq_err *err)
{
    const dq_logit_spec logit = {.bits = 16};
    return dq_eval_add(e, 0, 0, logit, (dq_math){0}, &dq_kv_plain, err) == DQ_OK ? 0 : -1;
}

static void expect_refused(rig *x, const char *text, int64_t max_new, const char *message)
{
    dq_err err = {0};
    set_source(x, &dq_eval_prompts, text, strlen(text));
    x->settings.max_new = max_new;
    assert_int_equal(first_ids(&x->e, &err), -1);
    assert_int_equal(err.code, DQ_MISMATCH);
    if (!strstr(err.text, message)) fail_msg("\"%s\" is not in \"%s\"", message, err.text);
}

TEST(refuses_lengths)
{
    static char text[4096];
    rig x;
    rig_open(&x, "llama");
    size_t n = (size_t)snprintf(text, sizeof text, "{\"prompt\": \"a\"}\n\n{\"prompt\": \"");
    memset(text + n, '7', 1600);
    memcpy(text + n + 1600, "\"}", 3);
    for (int way = DQ_LONG_USUAL; way < DQ_LONG_CUT; way++) {
        dq_err err = {0};
        set_source(&x, &dq_eval_prompts, text, strlen(text));
        x.e.too_long = (dq_long)way;
        assert_int_equal(dq_eval_long_fit(&x.e, 0, &err),
                         way == DQ_LONG_SKIP ? DQ_OK : DQ_MISMATCH);
        if (way != DQ_LONG_SKIP)
            assert_non_null(strstr(err.text, "f: 1 of 2 items are too long"));
        else
            assert_true(x.source.items.n == 1 && x.source.n_skipped == 1);
    }
    expect_refused(&x, "{\"prompt\": \"a\"}", 513, "513 new tokens are asked for");
    x.e.too_long = DQ_LONG_CUT;
    expect_refused(&x, "{\"prompt\": \"a\"}", 512, "nothing is left of a prompt");
    rig_close(&x);
}

/* What is cut is the beginning, BOS too, until all new ids have room; what fits stays as it is. */
TEST(cuts_the_beginning)
{
    enum { LONG = 700 };
    static char text[8 * LONG];
    rig x;
    for (int n = LONG; n > 2; n = n > 480 ? n - 9 : n / 2) {
        int32_t *whole;
        int64_t n_whole;
        dq_err err = {0};
        size_t len = (size_t)snprintf(text, sizeof text, "{\"prompt\": \"");
        const size_t at = len;
        rig_open(&x, "llama");
        for (int i = 0; i < n; i++)
            len += (size_t)snprintf(text + len, sizeof text - len, "%d", i * i % 10);
        const size_t prompt = len - at;
        dq_tokenizer_encode(x.tok, text + at, prompt,
                            dq_items_bos_flags(x.tok, DQ_BOS_AUTO, text + at, prompt), &whole,
                            &n_whole, NULL, NULL, &err);
        memcpy(text + len, "\"}", 3);
        set_source(&x, &dq_eval_prompts, text, len + 2);
        x.e.too_long = DQ_LONG_CUT;
        assert_int_equal(dq_eval_long_fit(&x.e, 0, &err), DQ_OK);
        assert_int_equal(first_ids(&x.e, &err), 0);
        const int64_t capacity = x.m->max_positions - NEW;
        const dq_request *r = x.e.ids[0].req.req;
        assert_int_equal(r->n_ctx, n_whole > capacity ? capacity : n_whole);
        assert_int_equal(r->truncated, n_whole > capacity);
        assert_int_equal(x.e.ids[0].req.n_truncated, n_whole > capacity);
        assert_memory_equal(r->ctx, whole + n_whole - r->n_ctx, (size_t)r->n_ctx * sizeof *whole);
        dq_block_free(whole);
        rig_close(&x);
    }
}

/* A prompt that leaves 3 positions gets 4 new ids: the last one is not fed. */
TEST(ends_at_the_last_position)
{
    char text[4096];
    rig x;
    int64_t n_ids = 0;
    rig_open(&x, "llama");
    size_t n = (size_t)snprintf(text, sizeof text, "{\"prompt\": \"");
    for (; n_ids < 509; n += 2, n_ids++) memcpy(text + n, " a", 2);
    memcpy(text + n, "\"}", 3);
    set_source(&x, &dq_eval_prompts, text, strlen(text));
    x.settings.n_stop = 0;
    const dq_eval_row *row = run_row(&x, 16, DQ_GRANULARITY_TENSOR, &dq_kv_plain);
    const int64_t capacity = 512 - x.e.ids[0].req.req[0].n_ctx + 1;
    assert_in_range(capacity, 1, NEW - 1);
    assert_int_equal((int)row->extra[DQ_GEN_END], DQ_TEXT_END_POSITIONS);
    assert_int_equal((int)row->extra[DQ_GEN_COUNT], capacity);
    rig_close(&x);
}

/* ---- What ends ---- */

TEST(finds_stop_ids)
{
    rig x;
    dq_stop_ids stops;
    dq_err err = {0};
    rig_open(&x, "diffllama");
    dq_eval_stop_ids(&stops, &x.e, 0, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(stops.n, 1);
    assert_int_equal(stops.id[0], 0);
    rig_close(&x);
}
