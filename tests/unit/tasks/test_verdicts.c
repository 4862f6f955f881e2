/* Verdicts: the forms of a line, groups and what they are compared with.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"

#include "tasks/questions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct rig {
    dq_arena *a;
    dq_verdicts v;
    dq_err err;
} rig;

static void load(rig *x, const char *text)
{
    memset(x, 0, sizeof *x);
    x->a = given_arena();
    dq_verdicts_load(&x->v, "f", text, strlen(text), x->a, &x->err);
}

static void end(rig *x)
{
    dq_verdicts_end(&x->v);
}

static const struct {
    const char *verdict;
    double score;
} words[] = {{"true", 1},    {"false", 0},       {"1", 1},   {"0", 0},
             {"0.25", 0.25}, {"\"correct\"", 1}, {"1.0", 1}, {"\"incorrect\"", 0}};

TEST(reads_words)
{
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char line[128];
        rig x;
        strcpy(line, i % 2 ? "\xef\xbb\xbf" : "\n"); /* a byte order mark says nothing */
        strcat(line, "{\"item\": 3, \"verdict\": ");
        strcat(line, words[i].verdict);
        load(&x, strcat(line, "}"));
        assert_string_equal(x.err.text, "");
        assert_int_equal(x.v.n, 1);
        assert_int_equal(x.v.group[0].n, 1);
        assert_int_equal(x.v.group[0].verdict[0].item, 3);
        assert_true(x.v.group[0].verdict[0].score == words[i].score);
        assert_string_equal(x.v.group[0].model, "model");
        assert_int_equal(x.v.group[0].bits, 16);
        assert_int_equal(x.v.group[0].ref, 0);
        end(&x);
    }
}

static const struct {
    const char *text, *message;
} refused[] = {
    {"", "f: holds no verdicts"},
    {"\n\n", "f: holds no verdicts"},
    {"{\"item\": 1, \"verdict\": true}\n{\"item\": 1}", "f: line 2: key \"verdict\" is missing"},
    {"{\"verdict\": true}", "f: line 1: key \"item\" is missing"},
    {"{\"item\": 1, \"verdict\": 2}", "f: line 1: key \"verdict\": expected true"},
    {"{\"item\": 1, \"verdict\": -0.5}", "f: line 1: key \"verdict\": expected true"},
    {"{\"item\": 1, \"verdict\": \"yes\"}", "f: line 1: key \"verdict\": expected true"},
    {"{\"item\": 1, \"verdict\": null}", "f: line 1: key \"verdict\" is missing"},
    {"{\"item\": 1, \"verdict\": 1, \"logit_bits\": 40}", "f: line 1: key \"logit_bits\""},
    {"5", "f: line 1: expected a JSON object"},
    {"{\"item\": 1", "f: line 1: verdict: not valid JSON"},
    {"{\"item\": 1, \"verdict\": 1}\n\n{\"item\": 0, \"verdict\": 1}\n{\"item\": 1, \"verdict\": "
     "0}",
     "f: line 4: item 1 of this model and setting has a verdict in line 1 already"},
};

TEST(refuses)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        rig x;
        load(&x, refused[i].text);
        assert_int_equal(x.err.code, DQ_DAMAGED);
        if (!strstr(x.err.text, refused[i].message))
            fail_msg("\"%s\" is not in \"%s\"", refused[i].message, x.err.text);
        end(&x);
    }
}

/* Two models, three settings of the first; lines in any order, one item missing at 4 bits. */
static const char many[] =
    "{\"model\": \"a\", \"logit_bits\": 4, \"logit_granularity\": \"row\", \"item\": 2, "
    "\"verdict\": 0}\n"
    "{\"model\": \"a\", \"logit_bits\": 16, \"logit_granularity\": \"row\", \"item\": 0, "
    "\"verdict\": "
    "1}\n"
    "{\"model\": \"a\", \"logit_bits\": 16, \"item\": 2, \"verdict\": true}\n"
    "{\"model\": \"a\", \"logit_bits\": 16, \"item\": 1, \"verdict\": false}\n"
    "{\"model\": \"a\", \"logit_bits\": 4, \"logit_granularity\": \"row\", \"item\": 1, "
    "\"verdict\": 1}\n"
    "{\"model\": \"a\", \"logit_bits\": 4, \"logit_granularity\": \"tensor\", \"item\": 0, "
    "\"verdict\": "
    "1}\n"
    "{\"model\": \"a\", \"kv\": {\"k_bits\": 8, \"v_bits\": 4}, \"item\": 0, \"verdict\": 0.5}\n"
    "{\"model\": \"a\", \"kv\": {\"v_bits\": 4, \"k_bits\": 8}, \"item\": 1, \"verdict\": 0.5}\n"
    "{\"model\": \"b\", \"item\": 0, \"verdict\": 1}\n"
    "{\"model\": \"b\", \"item\": 1, \"verdict\": 1}\n"
    "{\"model\": \"b\", \"item\": 2, \"verdict\": 0}\n"
    "{\"model\": \"b\", \"task\": \"t\", \"item\": 2, \"verdict\": 0}\n";

TEST(groups_and_pairs)
{
    rig x;
    load(&x, many);
    assert_string_equal(x.err.text, "");
    assert_int_equal(x.v.n, 6);
    const dq_verdict_group *row4 = &x.v.group[0], *a16 = &x.v.group[1], *kv = &x.v.group[3],
                           *b16 = &x.v.group[4], *of_task = &x.v.group[5];
    assert_int_equal(a16->n, 3);
    assert_true(fabs(a16->acc.value - 2.0 / 3) < 1e-15);
    assert_true(fabs(a16->acc.std_err - sqrt(2.0 / 9 / 2)) < 1e-15);
    assert_int_equal(row4->ref, 1);
    assert_int_equal(row4->flips.n, 2); /* item 0 has no verdict at 4 bits */
    assert_int_equal(row4->flips.n01, 1);
    assert_int_equal(row4->flips.n10, 1);
    assert_true(row4->flips.p == 1);
    assert_int_equal(x.v.group[2].n, 1); /* another granularity */
    assert_int_equal(kv->n, 2);          /* the same cache, whatever the order of its keys */
    assert_true(kv->acc.value == 0.5 && kv->acc.std_err == 0);
    assert_int_equal(b16->ref, 4);
    assert_int_equal(b16->cross, 1);
    assert_int_equal(b16->cross_flips.n, 3);
    assert_int_equal(b16->cross_flips.n01, 1);
    assert_int_equal(b16->cross_flips.n10, 1);
    assert_int_equal(a16->cross, -1);
    assert_string_equal(of_task->task, "t");
    assert_int_equal(of_task->ref, 5);
    assert_int_equal(of_task->cross, -1);
    end(&x);
}

/* Lines of one cluster, or of one prompt where they name none, are one piece: two of each are as good as one. */
TEST(clusters)
{
    dq_mean acc[3];
    dq_stat_flips flips[3];
    for (int k = 0; k < 3; k++) {
        char text[8192], *at = text;
        rig x;
        for (int i = 0; i < (k ? 16 : 8); i++) {
            for (int bits = 16; bits >= 4; bits -= 12) {
                const int of = i % 8;
                at += sprintf(at, "{\"item\": %d, ", i);
                if (k == 1) at += sprintf(at, "\"prompt\": \"p%d%s\", ", of, i < 8 ? "" : " ");
                if (k == 2) at += sprintf(at, "\"prompt\": \"p\", \"cluster\": %d, ", of);
                at += sprintf(at, "\"logit_bits\": %d, \"verdict\": %d}\n", bits,
                              bits == 16 ? of < 6 : of % 3 == 0);
            }
        }
        load(&x, text);
        assert_string_equal(x.err.text, "");
        acc[k] = x.v.group[1].acc;
        flips[k] = x.v.group[1].flips;
        end(&x);
        assert_true(fabs(acc[k].std_err - acc[0].std_err) < 1e-12 && acc[k].std_err > 0.1);
        /* n - 1 instead of n makes 7 % of it, 16 independent items would make -29 % */
        assert_true(fabs(flips[k].std_err / flips[0].std_err - 1) < 0.1);
        assert_int_equal(flips[k].clusters, 8);
    }
}

static const char arithmetic[] =
    "{\"math\": \"int8\", \"item\": 0, \"verdict\": 1}\n"
    "{\"math\": \"f32\", \"item\": 0, \"verdict\": 0}\n"
    "{\"item\": 1, \"verdict\": 0}\n"
    "{\"model\": \"b\", \"math\": \"bf16\", \"item\": 0, \"verdict\": 0}\n"
    "{\"model\": \"b\", \"math\": \"bf16\", \"logit_bits\": 4, \"item\": 0, \"verdict\": 0}\n";

TEST(arithmetic_makes_groups)
{
    rig x;
    load(&x, arithmetic);
    assert_string_equal(x.err.text, "");
    assert_int_equal(x.v.n, 4);
    assert_string_equal(x.v.group[0].math, "int8");
    assert_int_equal(x.v.group[0].ref, 1); /* f32 where there is such a group */
    assert_int_equal(x.v.group[0].flips.n, 1);
    assert_int_equal(x.v.group[1].n, 2); /* a line that names none is of f32 */
    assert_int_equal(x.v.group[1].ref, 1);
    assert_int_equal(x.v.group[3].ref, 2); /* else its own */
    assert_int_equal(x.v.group[2].cross, -1);
    end(&x);
}
