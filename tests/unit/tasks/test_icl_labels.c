/* In-context learning before any model: the files' forms, what is drawn and in which order, labels as ids, and
 * constrained decoding against a loop with a mask on random labels.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "base/text.h"
#include "eval/kind_icl.c" /* what is private there */

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rig {
    dq_arena *a;
    dq_icl_data d;
    dq_err err;
} rig;

static dq_icl_file file(const char *path, const char *text)
{
    return (dq_icl_file){path, text, text ? strlen(text) : 0};
}

static dq_status load(rig *x, const char *task, const char *queries, const char *demos)
{
    const dq_icl_file q = file("q", queries), d = file("d", demos);
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    return read_data(&x->d, dq_icl_task_find(task), &q, &d, x->a, &x->err);
}

static void check(const rig *x, const dq_icl_example *e, const char *text, const char *label)
{
    assert_string_equal(e->text, text);
    assert_int_equal(e->len, strlen(text));
    assert_string_equal(x->d.label[e->label], label);
}

TEST(test_trec)
{
    rig x;
    const char queries[] = "NUM:date When ?\r\n\n  \nENTY:techmeth How was the caf\xe9 built ?  \n";
    const char demos[] = "\xef\xbb\xbf"
                         "ABBR:exp What is PTO ?";
    assert_int_equal(load(&x, "trec", queries, demos), DQ_OK);
    assert_int_equal(x.d.n_labels, 6);
    assert_int_equal(x.d.queries.n, 2);
    assert_int_equal(x.d.demos.n, 1);
    check(&x, &x.d.queries.ex[0], "When ?", "numeric");
    check(&x, &x.d.queries.ex[1], "How was the caf\xc3\xa9 built ?", "entity");
    check(&x, &x.d.demos.ex[0], "What is PTO ?", "abbreviation");

    assert_int_equal(load(&x, "trec_fine", queries, "HUM:gr caf\xc3\xa9 ?\nLOC:mount b\n"), DQ_OK);
    assert_int_equal(x.d.n_labels, 50);
    check(&x, &x.d.queries.ex[0], "When ?", "numeric date");
    check(&x, &x.d.queries.ex[1], "How was the caf\xc3\xa9 built ?", "entity technique");
    check(&x, &x.d.demos.ex[0], "caf\xc3\xa9 ?", "human group"); /* UTF-8 already */
    check(&x, &x.d.demos.ex[1], "b", "location mountain");
    for (int i = 1; i < 50; i++) assert_true(strcmp(x.d.label[i - 1], x.d.label[i]) < 0);
}

TEST(test_banking)
{
    rig x;
    const char queries[] =
        "\xef\xbb\xbftext,category\r\n\"a, \"\"b\"\"\r\nc\",card_lost\r\n\r\nplain,top_up";
    const char demos[] = "text,category\n\"x\",\"top_up\"\n y ,a_z\n\xff,top_up\n";
    assert_int_equal(load(&x, "banking77", queries, demos), DQ_OK);
    assert_int_equal(x.d.n_labels, 3);
    assert_string_equal(x.d.label[0], "a z");
    assert_int_equal(x.d.queries.n, 2);
    check(&x, &x.d.queries.ex[0], "a, \"b\"\r\nc", "card lost");
    check(&x, &x.d.queries.ex[1], "plain", "top up");
    assert_int_equal(x.d.demos.n, 3);
    check(&x, &x.d.demos.ex[0], "x", "top up");
    check(&x, &x.d.demos.ex[1], " y ", "a z");
    check(&x, &x.d.demos.ex[2], "\xef\xbf\xbd", "top up");
    assert_int_equal(x.d.n_bad, 0);
    assert_int_equal(x.d.n_bad_demos, 1);
}

TEST(test_clinc)
{
    rig x;
    const char both[] =
        "{\"train\": [[\"a\", \"set_timer\"]], \"val\": [], \"test\": [[\"b\", \"w2\"]],"
        "\"oos_train\": [[\"c\", \"oos\"]], \"oos_test\": [[\"d\", \"oos\"]]}";
    assert_int_equal(load(&x, "clinic150", both, NULL), DQ_OK);
    assert_int_equal(x.d.n_labels, 3);
    assert_int_equal(x.d.demos.n, 2);
    assert_int_equal(x.d.queries.n, 2);
    check(&x, &x.d.demos.ex[0], "a", "set timer");
    check(&x, &x.d.demos.ex[1], "c", "oos");
    check(&x, &x.d.queries.ex[1], "d", "oos");
    assert_int_equal(load(&x, "clinic150", both, "\xef\xbb\xbf{\"train\": [[\"e\", \"w2\"]]}"),
                     DQ_OK);
    assert_int_equal(x.d.demos.n, 1);
    check(&x, &x.d.demos.ex[0], "e", "w2");
}

TEST(test_bad_files)
{
    static const char questions[] = "NUM:date When ?\n", csv[] = "text,category\na,b\n";
    static const struct {
        const char *task, *queries, *demos, *part;
    } bad[] = {
        {"trec", "", questions, "q: holds no examples"},
        {"trec", questions, "NUM:date\n", "d: line 1: no question"},
        {"trec", "NUM:date When ?\nNUM:dat x\n", questions, "q: line 2: expected a class"},
        {"trec", "When ?\n", questions, "q: line 1: expected a class"},
        {"trec_fine", "date:NUM x\n", questions, "q: line 1: expected a class"},
        {"banking77", "a,b\n", csv, "q: line 1: expected the header"},
        {"banking77", csv, "text,category\n", "d: holds no examples"},
        {"banking77", "text,category\na,b\nc\n", csv, "q: line 3: expected 2 fields"},
        {"banking77", "text,category\na,b,c\n", csv, "found 3"},
        {"banking77", "text,category\n\"a\n\n\",b\n\"c", csv, "q: line 5: the quoted field"},
        {"banking77", "text,category\n\"a\"x,b\n", csv, "q: line 2: text after"},
        {"banking77", "text,category\na\"b,c\n", csv, "q: line 2: a quote inside"},
        {"banking77", "text,category\n,b\n", csv, "q: line 2: the text is empty"},
        {"banking77", "text,category\na,\n", csv, "q: line 2: the category is empty"},
        {"clinic150", "[1]", NULL, "q: expected a JSON object"},
        {"clinic150", "{\"test\": [[\"a\", \"b\"]]}", NULL, "\"train\": expected a list"},
        {"clinic150", "{\"train\": [[\"a\", \"b\"]], \"test\": [[\"a\", \"b\"], [\"a\"]]}", NULL,
         "\"test\", entry 1: expected [text, intent]"},
        {"clinic150", "{\"train\": [[\"a\", 1]], \"test\": []}", NULL, "\"train\", entry 0"},
        {"clinic150", "{\"train\": [", NULL, "line 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rig x;
        assert_int_equal(load(&x, bad[i].task, bad[i].queries, bad[i].demos), DQ_DAMAGED);
        if (!strstr(x.err.text, bad[i].part))
            fail_msg("\"%s\" lacks \"%s\"", x.err.text, bad[i].part);
    }
    const char nul[] = "text,category\na\0b,c\n";
    const dq_icl_file q = {"q", nul, sizeof nul - 1}, d = file("d", csv);
    rig x = {.a = given_arena()};
    assert_int_equal(read_data(&x.d, dq_icl_task_find("banking77"), &q, &d, x.a, &x.err),
                     DQ_DAMAGED);
    assert_non_null(strstr(x.err.text, "line 2: contains a NUL"));
    assert_null(dq_icl_task_find("mc"));
}

/* The vectors are those of tests/golden/icl.py. */
TEST(test_permutations)
{
    static const struct {
        uint64_t stream;
        int32_t want[10];
    } vector[] = {{0, {1, 9, 6, 5, 7, 4, 3, 2, 8, 0}},
                  {1, {6, 1, 7, 5, 3, 2, 4, 8, 0, 9}},
                  {(uint64_t)1 << 32 | 10, {0, 3, 1, 6, 5, 4, 2, 9, 8, 7}}};
    int32_t p[1000];
    bool seen[1000] = {false};
    for (int i = 0; i < 3; i++) {
        permute(p, 10, 1, vector[i].stream);
        assert_memory_equal(p, vector[i].want, sizeof vector[i].want);
    }
    permute(p, 1000, 7, 3);
    for (int i = 0; i < 1000; i++) {
        assert_in_range(p[i], 0, 999);
        assert_false(seen[p[i]]);
        seen[p[i]] = true;
    }
    int count[3] = {0}; /* where 0 of three goes: a third of all streams each, 5 sigma = 236 */
    for (uint64_t s = 0; s < 9000; s++) {
        permute(p, 3, 1, s);
        for (int i = 0; i < 3; i++) count[i] += p[i] == 0;
    }
    for (int i = 0; i < 3; i++) assert_in_range(count[i], 2764, 3236);
}

TEST(test_orders)
{
    dq_icl_example ex[8];
    static const int label[8] = {2, 0, 2, 2, 0, 3, 2, 0};
    static const int32_t drawn[7] = {6, 5, 1, 3, 7, 0, 4};
    static const int32_t want[DQ_ICL_ORDERS][7] = {
        {6, 5, 1, 3, 7, 0, 4}, {1, 7, 4, 6, 3, 0, 5}, {1, 6, 5, 7, 3, 4, 0}};
    const dq_icl_pool pool = {.ex = ex, .n = 8};
    dq_err err = {0};
    for (int i = 0; i < 8; i++) ex[i].label = label[i];
    for (int o = 0; o < DQ_ICL_ORDERS; o++) {
        int32_t demo[7];
        memcpy(demo, drawn, sizeof demo);
        assert_int_equal(arrange(demo, 7, &pool, 5, (dq_icl_order)o, &err), DQ_OK);
        assert_memory_equal(demo, want[o], sizeof demo);
        assert_int_equal(arrange(demo, 0, &pool, 5, (dq_icl_order)o, &err), DQ_OK);
    }
}

/* ---- Constrained decoding ---- */

enum { MAX_LABELS = 12, MAX_LEN = 5, IDS = 4, VOCAB = 6 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The logit that a made-up model gives an id after some ids; few values, so that there are ties. */
static double logit(uint64_t model, const int32_t *before, int64_t n, int32_t id)
{
    uint64_t h = mix(model);
    for (int64_t i = 0; i < n; i++) h = mix(h * 31 + (uint64_t)before[i] + 1);
    return (double)(mix(h * 131 + (uint64_t)id) % 5);
}

static double logp_of(uint64_t model, const int32_t *ids, int64_t at)
{
    double sum = 0;
    for (int32_t i = 0; i < VOCAB; i++) sum += exp(logit(model, ids, at, i));
    return logit(model, ids, at, ids[at]) - log(sum);
}

/* Labels of random ids, none the beginning of another. */
static int random_labels(dq_icl_label *label, int32_t ids[MAX_LABELS][MAX_LEN], uint64_t seed)
{
    int n = 0;
    int64_t at = 0;
    for (uint64_t t = 0; t < 40 && n < MAX_LABELS; t++) {
        uint64_t h = mix(seed * 1000 + t);
        int64_t len = 1 + (int64_t)(h % MAX_LEN);
        bool clash = false;
        for (int i = 0; i < len; i++) ids[n][i] = (int32_t)(mix(h + (uint64_t)i) % IDS);
        for (int k = 0; k < n; k++) {
            int64_t m = label[k].n_cont < len ? label[k].n_cont : len;
            clash = clash || memcmp(ids[k], ids[n], (size_t)m * sizeof ids[n][0]) == 0;
        }
        if (clash) continue;
        label[n] = (dq_icl_label){.ids = ids[n], .n = len, .n_cont = len, .at = at};
        at += len;
        n++;
    }
    return n;
}

/* Decodes id by id under a mask. */
static int masked(const dq_icl_label *label, int n, uint64_t model)
{
    int32_t done[MAX_LEN];
    for (int64_t at = 0;; at++) {
        int best = -1, alive = 0, last = -1;
        for (int i = 0; i < n; i++) {
            if (memcmp(label[i].ids, done, (size_t)at * sizeof *done) != 0) continue;
            alive++;
            last = i;
        }
        if (alive == 1) return last;
        for (int32_t id = 0; id < VOCAB; id++) {
            bool allowed = false;
            for (int i = 0; i < n; i++)
                allowed = allowed || (memcmp(label[i].ids, done, (size_t)at * sizeof *done) == 0 &&
                                      label[i].ids[at] == id);
            if (allowed && (best < 0 || logit(model, done, at, id) > logit(model, done, at, best)))
                best = id;
        }
        done[at] = best;
    }
}

TEST(test_walk)
{
    int differ = 0, several = 0;
    for (uint64_t t = 0; t < 3000; t++) {
        static int32_t ids[MAX_LABELS][MAX_LEN];
        dq_icl_label label[MAX_LABELS];
        double logp[MAX_LABELS * MAX_LEN], max = -INFINITY;
        int alive[MAX_LABELS], best = 0;
        int n = random_labels(label, ids, t);
        for (int i = 0; i < n; i++) {
            double ll = 0;
            for (int64_t k = 0; k < label[i].n; k++)
                ll += logp[label[i].at + k] = logp_of(t, ids[i], k);
            if (ll > max) best = i;
            if (ll > max) max = ll;
        }
        assert_int_equal(walk(label, n, logp, alive), masked(label, n, t));
        assert_int_equal(likeliest(label, n, logp), best);
        differ += masked(label, n, t) != best;
        several += n > 1;
    }
    assert_true(differ > 500);
    assert_true(several > 2900);
}

/* The newline counts for the walk, and not for the log-likelihood. */
TEST(test_contained)
{
    static const int32_t a[] = {1, 9}, ab[] = {1, 2};
    const dq_icl_label label[] = {{.ids = a, .n = 1, .n_cont = 2, .at = 0},
                                  {.ids = ab, .n = 2, .n_cont = 2, .at = 2}};
    const double longer[] = {-1, -3, -1, -2}, shorter[] = {-1, -2, -1, -3},
                 tie[] = {-1, -2, -1, -2};
    int alive[2];
    assert_int_equal(walk(label, 2, longer, alive), 1);
    assert_int_equal(walk(label, 2, shorter, alive), 0);
    assert_int_equal(walk(label, 2, tie, alive), 1); /* the lower id */
    assert_int_equal(likeliest(label, 2, longer), 0);
}
