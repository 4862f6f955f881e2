/* Multi-needle retrieval: where needles go, what prompts hold, how answers are judged, and transformers' numbers
 * on the embedded pair.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "eval/kind_needle.c" /* what is private there */

#include "base/file.h"
#include "base/json.h"
#include "tests/rigs/device.h"
#include "tests/rigs/given.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Places ---- */

TEST(cities_differ)
{
    for (int i = 0; i < DQ_NEEDLE_CITIES; i++) {
        assert_true(strlen(cities[i]) >= 4);
        for (int k = 0; k < i; k++) assert_string_not_equal(cities[i], cities[k]);
    }
}

/* A ring of 20 tokens: sentences end at 4, 9, 14 and 19. */
static filler ring(void)
{
    static bool ends[20];
    for (int i = 0; i < 20; i++) ends[i] = i % 5 == 4;
    return (filler){.ends = ends, .n = 20};
}

/* 64 tokens, 3 needles of 3, a question of 2 x 3, a BOS and no room for answers leave 48. */
TEST(worked_placement)
{
    const filler f = ring();
    const uint64_t tie[] = {2, 1, 0};
    int order[3];
    const int64_t left = 48;
    assert_int_equal(anchor_of(50, left), 24);
    assert_int_equal(anchor_of(25, 50), 13); /* 12.5 */
    assert_int_equal(anchor_of(100, left), left);
    int64_t at[] = {24, 3, 47};
    place(at, order, tie, 3, 50, &f, 0, left);
    assert_int_equal(at[0], 20); /* after id 19 */
    assert_int_equal(at[1], 0);  /* no end before it */
    assert_int_equal(at[2], 45);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 0);
    assert_int_equal(order[2], 2);
}

TEST(ties)
{
    static const struct {
        int depth;
        int64_t at[3];
        int order[3];
    } rows[] = {
        {0, {0, 0, 2}, {0, 2, 1}},      /* needle 0 first, whatever its tie says */
        {100, {48, 48, 48}, {2, 1, 0}}, /* and last */
        {50, {24, 22, 20}, {2, 1, 0}},  /* by their ties */
        {50, {25, 24, 23}, {2, 1, 0}},  /* 25 is after an end; the others move to 20 */
        {100, {48, 47, 48}, {1, 2, 0}},
    };
    const filler f = ring();
    const uint64_t tie[] = {2, 1, 0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t at[3];
        int order[3];
        memcpy(at, rows[i].at, sizeof at);
        place(at, order, tie, 3, rows[i].depth, &f, 0, 48);
        assert_memory_equal(order, rows[i].order, sizeof order);
    }
    int64_t at[] = {7};
    int order[1];
    place(at, order, tie, 1, 50, &f, 13, 48); /* the filler begins at id 13 */
    assert_int_equal(at[0], 7);               /* after id 19 */
    at[0] = 6;
    place(at, order, tie, 1, 50, &f, 13, 48);
    assert_int_equal(at[0], 2); /* after id 14 */
}

/* ---- A sweep over the embedded pair ---- */

typedef struct rig {
    dq_eval e;
    dq_backend *b;
    dq_model *m[2];
    dq_tokenizer *tok[2];
    dq_runner *r[2];
    dq_eval_model model[2];
    dq_eval_source source;
    dq_needle_settings s;
    dq_err err;
} rig;

static const char *const pair[] = {"llama", "diffllama"};

static void rig_model(rig *x, int i)
{
    dq_eval_model *em = &x->model[i];
    x->m[i] = given_model(DQ_SOURCE_DIR "/calib/pair/%s", pair[i]);
    x->r[i] = given_runner(x->m[i], x->b);
    x->tok[i] = given_tokenizer_of(x->m[i], &em->tok_text, &em->tok_len);
    em->m = x->m[i];
    em->tok = x->tok[i];
    em->runner = x->r[i];
    em->ref = i;
    em->shown = true;
}

/* The settings of tests/golden/needle.py. */
static void rig_open(rig *x)
{
    memset(x, 0, sizeof *x);
    x->s = (dq_needle_settings){.length = {420},
                                .n_lengths = 1,
                                .depth = {0, 50},
                                .n_depths = 2,
                                .needles = {1, 3},
                                .requested = {1, 2},
                                .n_pairs = 2,
                                .samples = 1,
                                .seed = 6};
    x->e.a = given_arena();
    x->b = given_backend(2);
    for (int i = 0; i < 2; i++) rig_model(x, i);
    x->source = (dq_eval_source){
        .name = "needle", .path = "text.txt", .kind = &dq_eval_needle, .settings = &x->s};
    x->source.text = given_file(&x->source.len, DQ_SOURCE_DIR "/calib/pair/text.txt");
    x->e.model = x->model;
    x->e.source = &x->source;
    x->e.n_models = 2;
    x->e.n_sources = 1;
}

static void rig_close(rig *x)
{
    for (int i = 0; i < 2; i++) {
        dq_runner_free(x->r[i]);
        dq_tokenizer_free(x->tok[i]);
        dq_model_close(x->m[i]);
    }
    dq_backend_close(x->b);
}

/* Index of what the first source is encoded to for the first model; -1: see err. */
static int first_ids(dq_eval *e, dq_err *err)
{
    const dq_logit_spec logit = {.bits = 16};
    return dq_eval_add(e, 0, 0, logit, (dq_math){0}, &dq_kv_plain, err) == DQ_OK ? 0 : -1;
}

static const dq_needle_set *rig_encode(rig *x)
{
    const int at = first_ids(&x->e, &x->err);
    assert_string_equal(x->err.text, "");
    return x->e.ids[at].own;
}

static void rig_run(rig *x, int model, const dq_kv_spec *kv)
{
    dq_eval_add(&x->e, model, 0, (dq_logit_spec){.bits = 16}, (dq_math){0}, kv, &x->err);
    assert_string_equal(x->err.text, "");
    dq_eval_run(&x->e, &x->err);
    assert_string_equal(x->err.text, "");
}

static bool same_prompt(const dq_needle_prompt *a, const dq_needle_prompt *b)
{
    return a->n == b->n && a->n_answer == b->n_answer &&
           memcmp(a->ids, b->ids, (size_t)(a->n + a->n_answer) * sizeof *a->ids) == 0;
}

/* ---- Prompts ---- */

static int64_t count(const char *text, const char *what)
{
    int64_t n = 0;
    for (const char *p = text; (p = strstr(p, what)); p++) n++;
    return n;
}

/* Ended by dq_block_free. */
static char *text_of(const rig *x, const int32_t *ids, int64_t n)
{
    dq_err err = {0};
    char *bytes, *text;
    size_t len;
    dq_tokenizer_decode(x->tok[0], ids, n, 0, &bytes, &len, &err);
    text = dq_block_new(len + 1, 1, &err);
    assert_string_equal(err.text, "");
    memcpy(text, bytes, len);
    dq_block_free(bytes);
    return text;
}

static bool ends_in(const char *text, const char *end)
{
    return strlen(text) >= strlen(end) && strcmp(text + strlen(text) - strlen(end), end) == 0;
}

static void check_prompt(const rig *x, const dq_needle_prompt *p, const dq_needle_cell *c)
{
    char *text = text_of(x, p->ids, p->n), line[200];
    int64_t sentences = 0;
    assert_int_equal(p->n + p->budget, c->length);
    assert_true(p->n + p->n_answer <= c->length);
    assert_int_equal(count(text, "\nThe special magic "), c->n);
    assert_int_equal(count(text, "The special magic "), c->n + 1); /* and the question */
    for (int i = 0; i < c->n; i++) {
        snprintf(line, sizeof line, "\nThe special magic %s number is: %s\n", p->city[i],
                 p->number[i]);
        assert_int_equal(count(text, line), 1);
        assert_int_equal(strlen(p->number[i]), DIGITS);
        assert_true(p->number[i][0] >= '1');
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(p->number[i], p->number[k]);
            assert_string_not_equal(p->city[i], p->city[k]);
        }
        sentences += p->len[i];
    }
    assert_int_equal(p->n_bos + p->filler + sentences, p->question);
    if (c->depth == 0) assert_int_equal(p->at[0], p->n_bos);
    if (c->depth == 100) assert_int_equal(p->at[0] + p->len[0], p->question);
    snprintf(line, sizeof line,
             "Answer: The special magic %s number is:", p->city[p->answer[0].needle]);
    assert_true(ends_in(text, line));
    for (int k = 0; k < p->requested; k++) assert_in_range(p->answer[k].needle, 0, c->r - 1);
    dq_block_free(text);
}

TEST(prompts_hold_what_they_should)
{
    rig x;
    rig_open(&x);
    x.s = (dq_needle_settings){.length = {450, 512},
                               .n_lengths = 2,
                               .depth = {0, 30, 100},
                               .n_depths = 3,
                               .needles = {1, 4, 5},
                               .requested = {1, 2, 1},
                               .n_pairs = 3,
                               .samples = 4,
                               .seed = 3};
    const dq_needle_set *set = rig_encode(&x);
    bool turned = false;
    assert_int_equal(set->n_cells, 18);
    assert_int_equal(set->samples, 4);
    for (int64_t i = 0; i < 72; i++) {
        const dq_needle_prompt *p = &set->prompt[i];
        check_prompt(&x, p, &set->cell[i / 4]);
        turned = turned || p->answer[0].needle != 0;
        for (int64_t k = 0; k < i; k++) assert_false(same_prompt(p, &set->prompt[k]));
    }
    assert_true(turned); /* the order of questions is drawn */
    rig_close(&x);
}

/* The needle at the depth is asked for first; cities, numbers, filler and places are those of the drawn order. */
TEST(order_of_the_question)
{
    rig drawn, depth;
    int turned = 0;
    rig_open(&drawn);
    rig_open(&depth);
    drawn.s.needles[1] = depth.s.needles[1] = 4;
    drawn.s.requested[1] = depth.s.requested[1] = 3;
    drawn.s.samples = depth.s.samples = 8;
    depth.s.depth_first = true;
    const dq_needle_set *a = rig_encode(&drawn), *b = rig_encode(&depth);
    for (int64_t i = 0; i < a->n_cells * a->samples; i++) {
        const dq_needle_prompt *p = &a->prompt[i], *q = &b->prompt[i];
        check_prompt(&depth, q, &b->cell[i / b->samples]);
        assert_int_equal(p->question, q->question);
        assert_memory_equal(p->ids, q->ids, (size_t)p->question * sizeof *p->ids);
        for (int k = 0; k < q->requested; k++) assert_int_equal(q->answer[k].needle, k);
        turned += p->answer[0].needle != 0;
    }
    assert_true(turned > 5);
    rig_close(&drawn);
    rig_close(&depth);
}

/* Tokenizers of other kinds: what each makes of a text's beginning, of digits and of newlines stays out of the
 * joints. */
TEST(other_tokenizers)
{
    static const char *const names[] = {"gpt2",       "llama3",    "digits",   "whole",
                                        "sp_first",   "sp_legacy", "sp_cross", "sp_never",
                                        "uni_legacy", "prefix"};
    const dq_needle_cell cell = {.length = 1600, .depth = 50, .n = 3, .r = 2};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *text, line[200], want[400];
        size_t len;
        dq_err err = {0};
        rig x = {0};
        filler f = {0};
        dq_needle_prompt p;
        dq_arena *a = given_arena();
        text = given_file(&len, DQ_TEST_DIR "/golden/tokenizer/%s.json", names[i]);
        x.tok[0] = given_tokenizer(text, len, NULL);
        text = given_file(&len, DQ_SOURCE_DIR "/calib/sample.txt");
        const maker m = {.t = x.tok[0], .filler = &f, .vocab = 1 << 20, .a = a};
        read_filler(&f, &m, text, len, &err);
        make_prompt(&p, &m, &cell, 1, 0, &err);
        assert_string_equal(err.text, "");
        check_prompt(&x, &p, &cell);
        text = text_of(&x, p.ids, p.n + p.n_answer);
        snprintf(line, sizeof line, "The special magic %s number is: %s",
                 p.city[p.answer[1].needle], p.number[p.answer[1].needle]);
        snprintf(want, sizeof want, "Answer: The special magic %s number is: %s\n%s",
                 p.city[p.answer[0].needle], p.number[p.answer[0].needle], line);
        assert_true(ends_in(text, want));
        dq_block_free(text);
        dq_tokenizer_free(x.tok[0]);
    }
}

/* A sample is the same whatever else is drawn; another seed gives another. */
TEST(samples_stand_alone)
{
    rig one, many;
    rig_open(&one);
    rig_open(&many);
    many.s.length[0] = 430;
    many.s.length[1] = 420;
    many.s.n_lengths = 2;
    many.s.depth[2] = 100;
    many.s.n_depths = 3;
    many.s.samples = 3;
    const dq_needle_set *a = rig_encode(&one), *b = rig_encode(&many);
    assert_int_equal(b->samples, 3);
    /* by needles, then lengths, then depths */
    assert_true(same_prompt(&a->prompt[0], &b->prompt[3 * 3]));
    assert_true(same_prompt(&a->prompt[1], &b->prompt[4 * 3]));
    assert_true(same_prompt(&a->prompt[3], &b->prompt[10 * 3]));
    rig_close(&many);
    rig_open(&many);
    many.s.generated = true;
    assert_true(same_prompt(&a->prompt[3], &rig_encode(&many)->prompt[3]));
    rig_close(&many);
    rig_open(&many);
    many.s.seed = 7;
    assert_false(same_prompt(&a->prompt[3], &rig_encode(&many)->prompt[3]));
    rig_close(&many);
    rig_close(&one);
}

TEST(short_fillers_wrap)
{
    rig x;
    rig_open(&x);
    x.source.text = " a cold hare hears . the owl";
    x.source.len = strlen(x.source.text);
    const dq_needle_prompt *p = &rig_encode(&x)->prompt[0]; /* one needle, in front */
    const int32_t *text = p->ids + p->at[0] + p->len[0];
    for (int64_t i = 7; i < p->filler; i++) assert_int_equal(text[i], text[i - 7]);
    check_prompt(&x, p, &(dq_needle_cell){.length = 420, .n = 1, .r = 1});
    rig_close(&x);
}

TEST(refusals)
{
    static const struct {
        const char *text, *message;
        int length;
        dq_status status;
    } rows[] = {
        {NULL, "has 512 positions. Use lengths up to 512", 513, DQ_MISMATCH},
        {NULL, "needles 1:1 with their question", 100, DQ_MISMATCH},
        {" a cold hare", "no end of a sentence", 420, DQ_DAMAGED},
        {". . .", "no end of a sentence", 420, DQ_DAMAGED},
        {"", "holds no text", 420, DQ_DAMAGED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rig x;
        rig_open(&x);
        x.s.length[0] = rows[i].length;
        if (rows[i].text) {
            x.source.text = rows[i].text;
            x.source.len = strlen(rows[i].text);
        }
        assert_int_equal(first_ids(&x.e, &x.err), -1);
        assert_int_equal(x.err.code, rows[i].status);
        if (!strstr(x.err.text, rows[i].message)) fail_msg("%s", x.err.text);
        rig_close(&x);
    }
    rig x;
    rig_open(&x);
    x.source.len = 0;
    assert_int_equal(dq_eval_needle.load(&x.e, &x.source, &x.err), DQ_DAMAGED);
    rig_close(&x);
}

TEST(default_length_fits)
{
    rig x;
    rig_open(&x);
    x.s.n_lengths = 0;
    assert_int_equal(rig_encode(&x)->cell[0].length, 512);
    rig_close(&x);
}

/* ---- Judging ---- */

TEST(judging)
{
    rig x;
    rig_open(&x);
    const dq_needle_prompt *p = &rig_encode(&x)->prompt[3]; /* 3 needles, 2 asked for */
    const dq_needle_answer *a = &p->answer[1];
    assert_int_equal(a->to - a->from, DIGITS);
    const char *own = p->number[a->needle], *requested = p->number[p->answer[0].needle];
    char near_miss[8], far[8];
    strcpy(near_miss, own);
    near_miss[6] = own[6] == '9' ? '8' : '9';
    near_miss[2] = own[2] == '9' ? '8' : '9';
    strcpy(far, near_miss);
    far[4] = own[4] == '9' ? '8' : '9';
    const struct {
        const char *digits;
        int want;
    } rows[] = {{own, DQ_NEEDLE_AT_CORRECT},
                {requested, DQ_NEEDLE_AT_OTHER}, /* asked for, but not here */
                {p->number[2], DQ_NEEDLE_AT_OTHER},
                {near_miss, DQ_NEEDLE_AT_NEAR},
                {far, DQ_NEEDLE_AT_NONE}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(judge_text(p, 1, rows[i].digits, DIGITS), rows[i].want);
    char answer[64];
    snprintf(answer, sizeof answer, " it is %s, or so", own);
    assert_int_equal(judge_text(p, 1, answer, strlen(answer)), DQ_NEEDLE_AT_CORRECT);
    assert_int_equal(judge_text(p, 0, answer, strlen(answer)), DQ_NEEDLE_AT_OTHER);
    rig_close(&x);
}

TEST(metrics_count_numbers)
{
    rig x;
    double score[4];
    dq_needle_numbers n;
    rig_open(&x);
    rig_run(&x, 0, &dq_kv_plain);
    dq_eval_row *row = &x.e.row[0];
    assert_int_equal(x.e.ids[row->ids].n_extra, DQ_NEEDLE_AT_SHARE);
    const double made[4][DQ_NEEDLE_AT_SHARE] = {
        {1, 0, 0, 0, -3}, {0, 0, 1, 0, -5}, {1, 1, 0, 0, -8}, {2, 0, 0, 0, -2}};
    memcpy(row->extra, made, sizeof made);
    dq_eval_needle.judge(&x.e, row, 0, score);
    assert_memory_equal(score, ((double[]){1, 0, 0.5, 1}), sizeof score);
    dq_eval_needle.judge(&x.e, row, 1, score);
    assert_memory_equal(score, ((double[]){1, 0, 0, 1}), sizeof score);
    assert_int_equal(dq_needle_numbers_of(&n, &x.e, row, -1, &x.err), DQ_OK);
    assert_true(n.acc.value == 0.625 && n.all_correct.value == 0.5);
    assert_true(n.ll.value == (-3 - 5 - 4 - 1) / 4.0);
    for (int k = 0; k < 4; k++)
        assert_true(fabs(n.confusion[k] - ((double[]){4, 1, 1, 0})[k] / 6) < 1e-15);
    assert_int_equal(dq_needle_numbers_of(&n, &x.e, row, 3, &x.err), DQ_OK);
    assert_true(n.n == 1 && n.acc.value == 1 && n.ll.value == -1 && n.best_layer == -1);
    rig_close(&x);
}

/* ---- Attention ---- */

TEST(labels_cover_the_prompt)
{
    rig x;
    uint8_t label[512];
    int64_t n[DQ_NEEDLE_CLASSES] = {0};
    rig_open(&x);
    const dq_needle_prompt *p = &rig_encode(&x)->prompt[3];
    const int answers = p->answer[0].needle;
    put_labels(label, p);
    for (int64_t i = 0; i < p->n; i++) n[label[i]]++;
    assert_int_equal(label[0], DQ_NEEDLE_BOS);
    assert_int_equal(n[DQ_NEEDLE_BOS], 1);
    assert_int_equal(n[DQ_NEEDLE_ANSWER], p->len[answers]);
    assert_int_equal(label[p->at[answers]], DQ_NEEDLE_ANSWER);
    assert_int_equal(n[DQ_NEEDLE_DISTRACTOR], p->len[0] + p->len[1] + p->len[2] - p->len[answers]);
    assert_int_equal(n[DQ_NEEDLE_NOISE], p->filler);
    assert_int_equal(n[DQ_NEEDLE_QUERY], p->n - p->question);
    assert_int_equal(label[p->question], DQ_NEEDLE_QUERY);
    assert_int_not_equal(label[p->question - 1], DQ_NEEDLE_QUERY);
    rig_close(&x);
}

/* BOS c c A A c q q: (.10 .00 .01 .20 .15 -.01 .05 .00), sum .50; beside it a head that is skipped in the sum,
 * and a layer that looks at the answer only. */
TEST(worked_shares)
{
    static const dq_span_mass worked[DQ_NEEDLE_CLASSES] = {{.positive = .10},
                                                           {.positive = .35},
                                                           {.positive = 0},
                                                           {.positive = .01, .negative = .01},
                                                           {.positive = .05}};
    static const dq_span_mass none[DQ_NEEDLE_CLASSES] = {{.positive = .2}, {.negative = .2}};
    static const dq_span_mass all[DQ_NEEDLE_CLASSES] = {{0}, {.positive = .7}};
    double into[DQ_NEEDLE_AT_HEADS - DQ_NEEDLE_AT_SHARE + 4];
    dq_span_share sums[4] = {0};
    dq_attention_spans_add_row(&sums[0], worked, DQ_NEEDLE_CLASSES);
    dq_attention_spans_add_row(&sums[1], none, DQ_NEEDLE_CLASSES);
    dq_attention_spans_add_row(&sums[2], all, DQ_NEEDLE_CLASSES);
    dq_attention_spans_add_row(&sums[3], all, DQ_NEEDLE_CLASSES);
    put_shares(into, sums, 2, 2);
    const double sum[] = {.20, .70, 0, .00, .10};
    const double positive[] = {.10 / .51, .35 / .51, 0, .01 / .51, .05 / .51};
    const double absolute[] = {.10 / .52, .35 / .52, 0, .02 / .52, .05 / .52};
    for (int c = 0; c < DQ_NEEDLE_CLASSES; c++) {
        const double other = c == DQ_NEEDLE_ANSWER, bos = c == DQ_NEEDLE_BOS;
        const double *x = into + c;
        assert_true(fabs(x[0] - (sum[c] + other) / 2) < 1e-12);
        assert_true(fabs(x[DQ_NEEDLE_CLASSES] - ((positive[c] + bos) / 2 + other) / 2) < 1e-12);
        assert_true(fabs(x[2 * DQ_NEEDLE_CLASSES] -
                         ((absolute[c] + .5 * (bos + other)) / 2 + other) / 2) < 1e-12);
    }
    const double *skipped = into + DQ_NEEDLE_AT_SKIPPED - DQ_NEEDLE_AT_SHARE;
    assert_true(skipped[0] == 1 && skipped[1] == 0 && skipped[2] == 0);
    const double *heads = into + DQ_NEEDLE_AT_HEADS - DQ_NEEDLE_AT_SHARE;
    assert_true(fabs(heads[0] - .35 / .52) < 1e-12 && heads[1] == .5 && heads[2] == 1);
    assert_true(into[DQ_NEEDLE_AT_ROWS - DQ_NEEDLE_AT_SHARE] == 4);
    assert_true(into[DQ_NEEDLE_AT_SMALL - DQ_NEEDLE_AT_SHARE] == 1);
    put_shares(into, sums + 1, 1, 1);
    assert_true(isnan(into[DQ_NEEDLE_ANSWER]) && !isnan(into[DQ_NEEDLE_CLASSES]));
}

TEST(no_attention_where_tokens_are_forgotten)
{
    rig x;
    dq_kv_spec kv = dq_kv_plain;
    rig_open(&x);
    x.s.attention = true;
    kv.evict.policy = dq_kv_policy_find("h2o", &x.err);
    kv.evict.keep = 0.5;
    dq_eval_add(&x.e, 0, 0, (dq_logit_spec){.bits = 16}, (dq_math){0}, &dq_kv_plain, &x.err);
    assert_string_equal(x.err.text, "");
    assert_int_equal(
        dq_eval_add(&x.e, 0, 0, (dq_logit_spec){.bits = 16}, (dq_math){0}, &kv, &x.err),
        DQ_MISMATCH);
    assert_int_equal(x.e.n_rows, 1);
    rig_close(&x);
}

/* ---- transformers ---- */

static void expect_ids(const json_t *list, const int32_t *ids, int64_t n)
{
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_int_equal(json_integer_value(json_array_get(list, i)), ids[i]);
}

static void expect_answers(const rig *x, const dq_eval_row *row, int64_t unit, const json_t *want)
{
    const dq_needle_prompt *p = &set_of(&x->e, row)->prompt[unit];
    assert_int_equal(json_array_size(want), p->requested);
    for (int k = 0; k < p->requested; k++) {
        const json_t *o = json_array_get(want, (size_t)k);
        const int64_t v = dq_needle_value(&x->e, row, unit, k),
                      n = p->answer[k].to - p->answer[k].from;
        double ll = 0;
        assert_int_equal(json_integer_value(json_object_get(o, "needle")), p->answer[k].needle);
        assert_int_equal(json_integer_value(json_object_get(o, "from")), p->answer[k].from);
        expect_ids(json_object_get(o, "top1"), row->top1 + v, n);
        for (int64_t i = 0; i < n; i++) ll += row->logp[v + i];
        assert_true(fabs(ll - json_real_value(json_object_get(o, "ll"))) < 2e-5);
    }
}

/* Rounding is magnified where the sum of a is small beside the sum of |a|. */
static double expect_shares(const double *x, const json_t *want, double wide)
{
    static const char *const norm[] = {"sum", "positive", "absolute"};
    double worst = 0;
    for (int k = 0; k < DQ_N_SPAN_NORMS; k++) {
        const json_t *list = json_object_get(want, norm[k]);
        for (int c = 0; c < DQ_NEEDLE_CLASSES; c++) {
            const double d = fabs(x[DQ_NEEDLE_AT_SHARE + k * DQ_NEEDLE_CLASSES + c] -
                                  json_number_value(json_array_get(list, (size_t)c)));
            assert_true(d <= 1e-5 * (k == DQ_SPAN_SUM ? wide : 1));
            worst = fmax(worst, k == DQ_SPAN_SUM ? d / wide : d);
        }
        assert_true(x[DQ_NEEDLE_AT_SKIPPED + k] ==
                    json_number_value(json_array_get(list, DQ_NEEDLE_CLASSES)));
    }
    return worst;
}

TEST(as_transformers)
{
    double worst = 0;
    for (int i = 0; i < 4; i++) { /* model, rows of attention */
        rig x;
        rig_open(&x);
        json_t *root = given_json(DQ_TEST_DIR "/golden/needle/golden.json");
        x.s.attention = true;
        x.s.query_rows = i % 2;
        rig_run(&x, i / 2, &dq_kv_plain);
        const dq_eval_row *row = &x.e.row[0];
        const dq_needle_set *set = set_of(&x.e, row);
        assert_int_equal(json_array_size(root), set->n_cells);
        for (int64_t u = 0; u < set->n_cells; u++) {
            const json_t *o = json_array_get(root, (size_t)u),
                         *want = json_object_get(o, pair[i / 2]);
            const dq_needle_prompt *p = &set->prompt[u];
            expect_ids(json_object_get(o, "prompt"), p->ids, p->n);
            expect_ids(json_object_get(o, "answer"), p->ids + p->n, p->n_answer);
            expect_answers(&x, row, u, json_object_get(want, "asked"));
            const json_t *wide = json_array_get(json_object_get(want, "wide"), (size_t)(i % 2));
            const double d = expect_shares(unit_of(&x.e, row, u),
                                           json_object_get(want, i % 2 ? "query" : "last"),
                                           json_number_value(wide));
            worst = fmax(worst, d);
        }
        json_decref(root);
        rig_close(&x);
    }
    printf("attention: at most %.1e from transformers\n", worst);
}

/* ---- Generated answers ---- */

/* What the runner says after ids[n], without grouping or a stop. */
static int64_t continued(const rig *x, const int32_t *ids, int64_t n, int32_t *out)
{
    dq_pass pass = {.logit = {.bits = 16}};
    dq_generate_prompt prompt = {.ids = ids, .n = n, .max_new = DQ_NEEDLE_NEW};
    dq_generate_spec spec = {.prompt = &prompt, .n = 1};
    dq_scorer s;
    dq_err err = {0};
    const int32_t eos = 0;
    spec.stop_id = &eos;
    spec.n_stop_ids = 1;
    dq_score_begin(&s, x->r[0], &pass, &dq_kv_plain, &err);
    const dq_generate_result *g = dq_generate(&s, &spec, given_arena(), &err);
    dq_score_end(&s);
    assert_string_equal(err.text, "");
    const int64_t got = g->n;
    memcpy(out, g->ids, (size_t)got * sizeof *out);
    return got;
}

/* Ids before the first one with a newline or a period. */
static int64_t until_end(const rig *x, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *piece = dq_tokenizer_piece(x->tok[0], ids[i], &len);
        if (memchr(piece, '\n', len) || memchr(piece, '.', len)) return i;
    }
    return n;
}

TEST(generated_answers_follow_each_other)
{
    rig x;
    int64_t cut_ones = 0;
    rig_open(&x);
    x.s.generated = true;
    x.s.samples = 6;
    x.s.seed = 5; /* one of these answers has a period */
    rig_run(&x, 0, &dq_kv_plain);
    const dq_eval_row *row = &x.e.row[0];
    const dq_needle_set *set = set_of(&x.e, row);
    for (int64_t u = 0; u < set->n_cells * set->samples; u++) {
        const dq_needle_prompt *p = &set->prompt[u];
        int32_t ids[600], got[DQ_NEEDLE_NEW];
        int64_t n = p->n;
        memcpy(ids, p->ids, (size_t)n * sizeof *ids);
        for (int k = 0; k < p->requested; k++) {
            const int32_t *have = row->top1 + dq_needle_value(&x.e, row, u, k);
            const int64_t new = continued(&x, ids, n, got);
            assert_memory_equal(have, got, (size_t) new * sizeof *got);
            for (int64_t i = new; i < DQ_NEEDLE_NEW; i++) assert_int_equal(have[i], -1);
            if (k + 1 == p->requested) break;
            const int64_t kept = until_end(&x, got, new);
            cut_ones += kept < new;
            memcpy(ids + n, got, (size_t)kept * sizeof *ids);
            n += kept;
            for (int64_t i = p->answer[k].to; i < p->answer[k + 1].begin; i++)
                ids[n++] = p->ids[p->n + i];
            assert_true(n + DQ_NEEDLE_NEW <= 420);
        }
        assert_true(unit_of(&x.e, row, u)[DQ_NEEDLE_AT_LL] == 0);
    }
    assert_true(cut_ones > 0);
    rig_close(&x);
}
