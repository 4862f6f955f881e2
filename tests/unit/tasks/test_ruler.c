/* Prompts made up for long contexts: each one is read back, by other means than it was written, and asked its own
 * question; lengths, cuts and draws; the score.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "eval/kind_ruler.c" /* what is private there */

#include "base/base.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 3, VOCAB = 640 };

typedef struct rig {
    dq_arena *a;
    dq_tokenizer *t;
    ruler_text text;
    dq_err err;
} rig;

static void rig_open(rig *x)
{
    size_t len, n;
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    const char *json = given_file(&len, DQ_SOURCE_DIR "/calib/longpair/llama-0/tokenizer.json");
    x->t = given_tokenizer(json, len, NULL);
    const char *words = given_file(&n, DQ_SOURCE_DIR "/calib/sample.txt");
    read_text(&x->text, words, n, x->a, &x->err);
    assert_string_equal(x->err.text, "");
}

static void rig_close(rig *x)
{
    dq_tokenizer_free(x->t);
}

static maker maker_of(const rig *x, const dq_ruler_task *task)
{
    return (maker){task, task->takes_text ? &x->text : NULL, x->t, DQ_BOS_AUTO, VOCAB, x->a};
}

static dq_ruler_prompt make(rig *x, const char *task, int64_t length, uint64_t seed, int64_t sample)
{
    const maker m = maker_of(x, dq_ruler_find(task));
    dq_ruler_prompt p;
    make_prompt(&p, &m, length, seed, sample, &x->err);
    assert_string_equal(x->err.text, "");
    return p;
}

/* Text of tokens, in the arena. */
static char *text_of(rig *x, const int32_t *ids, int64_t n)
{
    char *bytes;
    size_t len;
    dq_tokenizer_decode(x->t, ids, n, 0, &bytes, &len, &x->err);
    char *text = dq_text(x->a, bytes, len, &x->err);
    dq_block_free(bytes);
    assert_string_equal(x->err.text, "");
    return text;
}

static char *last(char *text, const char *what)
{
    char *found = NULL;
    for (char *p = text; (p = strstr(p, what)); p++) found = p;
    assert_non_null(found);
    return found;
}

static bool has_answer(const dq_ruler_prompt *p, const char *word, size_t len)
{
    for (int i = 0; i < p->n_answers; i++) {
        if (strlen(p->answer[i]) == len && memcmp(p->answer[i], word, len) == 0) return true;
    }
    return false;
}

/* ---- Read back ---- */

/* Every number of a key in the question, and no other, is an answer. */
static void check_niah(const dq_ruler_prompt *p, char *text)
{
    static const char is[] = "A special number for ";
    char *question = last(text, "\nWhat ");
    int asked = 0, others = 0;
    for (char *at = text; (at = strstr(at, is)) != NULL && at < question; at++) {
        char key[64], number[32];
        assert_int_equal(sscanf(at + strlen(is), "%63s is %31[0-9].", key, number), 2);
        assert_int_equal(strlen(number), 7);
        if (strstr(question, key)) {
            assert_true(has_answer(p, number, strlen(number)));
            asked++;
        } else {
            assert_false(has_answer(p, number, strlen(number)));
            others++;
        }
    }
    assert_int_equal(asked, p->n_answers);
    assert_true(asked + others == 1 || asked + others == 4);
}

/* What a variable comes to, by looking its name up as often as it takes; 0: it is not assigned. */
static long value_of(const char *lines, const char *name)
{
    char what[32];
    snprintf(what, sizeof what, "VAR %s = ", name);
    const char *at = strstr(lines, what);
    if (!at) return 0;
    at += strlen(what);
    if (strncmp(at, "VAR ", 4) != 0) return strtol(at, NULL, 10);
    char next[16];
    assert_int_equal(sscanf(at + 4, "%15[A-Z]", next), 1);
    return value_of(lines, next);
}

static void check_vt(const dq_ruler_prompt *p, char *text)
{
    char *lines = last(text, "Assignments of variables");
    char *question = last(lines, "\nQuestion: ");
    const long value = strtol(last(question, " the value ") + strlen(" the value "), NULL, 10);
    int n = 0;
    for (char *at = lines; (at = strstr(at, "\nVAR ")) != NULL; at++, n++) {
        char name[16];
        assert_int_equal(sscanf(at, "\nVAR %15[A-Z]", name), 1);
        assert_true(has_answer(p, name, strlen(name)));
        assert_int_equal(value_of(lines, name), value);
    }
    assert_int_equal(n, 5);
    assert_int_equal(n, p->n_answers);
    char *example =
        strstr(text, ":"); /* the solved one has another value, and all of its answers */
    assert_true(example < lines);
}

/* The words of a text with the number of times each stands in it. */
typedef struct tally {
    char word[600][32];
    int times[600], n;
} tally;

static void count_words(tally *t, char *from, const char *to)
{
    *t = (tally){.n = 0};
    for (char *at = from; at < to;) {
        char word[32];
        int used = 0, i = 0;
        while (at < to && !(*at >= 'a' && *at <= 'z')) at++;
        if (at >= to || sscanf(at, "%31[a-z]%n", word, &used) != 1) break;
        at += used;
        while (i < t->n && strcmp(t->word[i], word) != 0) i++;
        if (i == t->n) strcpy(t->word[t->n++], word);
        assert_true(t->n < 600);
        t->times[i]++;
    }
}

/* Answers are the words that stand most often, each more often than any other. */
static void check_counts(const dq_ruler_prompt *p, const tally *t)
{
    int least = 1 << 30, most = 0, n = 0;
    for (int i = 0; i < t->n; i++) {
        const bool is = has_answer(p, t->word[i], strlen(t->word[i]));
        n += is;
        if (is && t->times[i] < least) least = t->times[i];
        if (!is && t->times[i] > most) most = t->times[i];
    }
    assert_int_equal(n, p->n_answers);
    assert_true(least > most);
}

static void check_cwe(const dq_ruler_prompt *p, char *text)
{
    static tally t;
    count_words(&t, last(text, "Remember those.\n") + strlen("Remember those.\n"),
                last(text, "\nQuestion: "));
    assert_int_equal(p->n_answers, 10);
    check_counts(p, &t);
    assert_int_equal(t.n, p->units);
}

static void check_fwe(const dq_ruler_prompt *p, char *text)
{
    static tally t;
    count_words(&t, strchr(text, '\n'), last(text, "\nQuestion: "));
    assert_int_equal(p->n_answers, 3);
    check_counts(p, &t);
}

typedef void check_text(const dq_ruler_prompt *p, char *text);
typedef struct reading {
    const char *task;
    check_text *check;
    const char *question; /* what it begins with */
    int64_t length;
    uint64_t hash; /* of the tokens of sample 0, seed 1 */
} reading;

static const reading readings[] = {
    {"niah_single", check_niah, "\nWhat ", 1500, 0x42ff8e6364204f51},
    {"niah_multikey", check_niah, "\nWhat ", 2000, 0x85a24cf8d8e4874f},
    {"niah_multivalue", check_niah, "\nWhat ", 2001, 0x9b71c52e45ee4ad0},
    {"niah_multiquery", check_niah, "\nWhat ", 2002, 0x04294b98aba5474a},
    {"vt", check_vt, "\nQuestion: ", 2500, 0x4e4fb042d72901da},
    {"cwe", check_cwe, "\nQuestion: ", 2500, 0x3ff89611b59c919a},
    {"fwe", check_fwe, "\nQuestion: ", 2500, 0x6245e46244230b20},
};
enum { READINGS = sizeof readings / sizeof *readings };

/* Ids of the prompt of seed 1 with so many units, drawn as ruler.c draws. */
static int64_t ids_with(rig *x, const reading *r, int64_t sample, int64_t units)
{
    const maker m = maker_of(x, dq_ruler_find(r->task));
    draft d = {.task = m.task,
               .text = m.text,
               .length = r->length,
               .random = dq_random_of(1, (uint64_t)sample),
               .a = x->a,
               .err = &x->err};
    int32_t *ids;
    int64_t n;
    d.random.state ^= dq_random_mix((uint64_t)r->length);
    for (const char *c = r->task; *c; c++)
        d.random.state = dq_random_mix(d.random.state ^ (uint64_t)*c);
    m.task->write(&d, units);
    const unsigned flags = dq_items_bos_flags(m.t, m.bos, d.prompt.s, d.prompt.n);
    dq_tokenizer_encode(m.t, d.prompt.s, d.prompt.n, flags, &ids, &n, NULL, NULL, &x->err);
    assert_string_equal(x->err.text, "");
    dq_block_free(ids);
    dq_block_free(d.prompt.s);
    return n;
}

static void check_prompt(rig *x, const reading *r, int64_t sample, const dq_ruler_prompt *p)
{
    const dq_ruler_task *task = dq_ruler_find(r->task);
    assert_true(p->n + task->max_new <= r->length);
    assert_int_equal(ids_with(x, r, sample, p->units), p->n);
    assert_true(ids_with(x, r, sample, p->units + 1) + task->max_new > r->length);
    for (int64_t i = 0; i < p->n; i++) assert_in_range(p->ids[i], 0, VOCAB - 1);
    r->check(p, text_of(x, p->ids, p->n));
    /* what is before the question holds the whole context and nothing of the question */
    assert_true(p->question > 0 && p->question < p->n);
    char *context = text_of(x, p->ids, p->question), *all = text_of(x, p->ids, p->n);
    const size_t end = (size_t)(last(all, r->question) - all);
    assert_true(strlen(context) <= end + 1 && strlen(context) + 1 >= end);
    assert_memory_equal(context, all, strlen(context));
}

TEST(prompts_hold_their_answers)
{
    rig x;
    rig_open(&x);
    assert_int_equal(READINGS, dq_ruler_n_tasks);
    for (int i = 0; i < READINGS; i++) {
        for (int64_t s = 0; s < SAMPLES; s++) {
            const dq_ruler_prompt p = make(&x, readings[i].task, readings[i].length, 1, s);
            check_prompt(&x, &readings[i], s, &p);
        }
    }
    rig_close(&x);
}

static uint64_t hash_of(const dq_ruler_prompt *p)
{
    return dq_strmap_hash(p->ids, (size_t)p->n * sizeof *p->ids);
}

/* The same on every machine and in every version, for results are named by their seeds. */
TEST(draws_are_fixed)
{
    rig x;
    int wrong = 0;
    rig_open(&x);
    for (int i = 0; i < READINGS; i++) {
        const reading *r = &readings[i];
        const dq_ruler_prompt p = make(&x, r->task, r->length, 1, 0);
        const dq_ruler_prompt again = make(&x, r->task, r->length, 1, 0);
        assert_int_equal(p.n, again.n);
        assert_memory_equal(p.ids, again.ids, (size_t)p.n * sizeof *p.ids);
        if (hash_of(&p) != r->hash) wrong++;
        if (hash_of(&p) != r->hash)
            print_message("%s: 0x%016llx\n", r->task, (unsigned long long)hash_of(&p));
        const dq_ruler_prompt other[] = {make(&x, r->task, r->length, 2, 0),
                                         make(&x, r->task, r->length, 1, 1),
                                         make(&x, r->task, r->length + 300, 1, 0)};
        for (int k = 0; k < 3; k++) assert_string_not_equal(p.answer[0], other[k].answer[0]);
    }
    assert_int_equal(wrong, 0);
    rig_close(&x);
}

/* ---- What is refused ---- */

static void expect_refused(rig *x, const maker *m, int64_t length, const char *what)
{
    dq_ruler_prompt p;
    assert_int_equal(make_prompt(&p, m, length, 1, 0, &x->err), DQ_MISMATCH);
    assert_non_null(strstr(x->err.text, what));
    x->err = (dq_err){0};
}

TEST(what_does_not_fit)
{
    rig x;
    ruler_text few;
    char *text = NULL;
    rig_open(&x);
    for (int i = 0; i < READINGS; i++) {
        const maker m = maker_of(&x, dq_ruler_find(readings[i].task));
        expect_refused(&x, &m, 60, "the shortest prompt of");
    }
    maker m = maker_of(&x, dq_ruler_find("cwe"));
    text = dq_text(x.a, "one two three four five six seven eight nine ten eleven ten.", 60, &x.err);
    read_text(&few, text, strlen(text), x.a, &x.err);
    assert_string_equal(x.err.text, "");
    assert_int_equal(few.n_words, 11);
    m.text = &few;
    expect_refused(&x, &m, 2500, "has 11 different words");
    m.text = &x.text; /* its words are fewer than a list of that length takes */
    expect_refused(&x, &m, 3000000, "different words of 3 to 12 small letters");
    assert_int_equal(read_text(&few, "no end of it", 12, x.a, &x.err), DQ_DAMAGED);
    x.err = (dq_err){0};
    assert_int_equal(read_text(&few, " \n", 2, x.a, &x.err), DQ_DAMAGED);
    rig_close(&x);
}

/* ---- The score ---- */

TEST(scores)
{
    static const char *const answer[] = {"ABCDE", "12345", "dog"};
    static const struct {
        const char *text;
        double found;
    } rows[] = {
        {"", 0},
        {"abcde", 1.0 / 3},               /* whatever the case */
        {"ABCD E 1234", 0},               /* whole answers only */
        {"it is 912345, dogma", 2.0 / 3}, /* also inside of others, as in RULER */
        {"DOG abcDE\n12345", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(found_in(rows[i].text, strlen(rows[i].text), answer, 3) == rows[i].found);
}
