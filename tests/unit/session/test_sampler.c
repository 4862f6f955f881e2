/* The sampler: what may be drawn, with which probability, by transformers (tests/golden/sampling.py); draws by seed.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include "session/session.c" /* what is private there */
#include "tests/rigs/given.h"

#include <math.h>
#include <stdio.h>

enum { VOCAB = 40, DRAWS = 20000 };

static void read_logits(float logits[VOCAB], const json_t *list)
{
    assert_int_equal(json_array_size(list), VOCAB);
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = (float)json_number_value(json_array_get(list, i));
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static dq_sampling how_of(const json_t *c)
{
    return (dq_sampling){.temperature = number(c, "temperature"),
                         .top_k = (int64_t)number(c, "top_k"),
                         .top_p = number(c, "top_p"),
                         .min_p = number(c, "min_p"),
                         .seed = 5};
}

static void begin(dq_sampler *s, const dq_sampling *how)
{
    dq_err err = {0};
    dq_sampler_begin(s, how, VOCAB, &err);
    assert_string_equal(err.text, "");
}

TEST(leaves_what_transformers_leave)
{
    json_t *root = given_json(DQ_TEST_DIR "/golden/sampling.json");
    const json_t *cases = json_object_get(root, "cases"),
                 *vectors = json_object_get(root, "logits");
    float logits[VOCAB];
    assert_true(json_array_size(cases) > 30);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *p = json_object_get(c, "p");
        const dq_sampling how = how_of(c);
        dq_sampler s;
        read_logits(logits, json_array_get(vectors, (size_t)number(c, "logits")));
        begin(&s, &how);
        const int64_t n = choices(&s, logits);
        if (n != (int64_t)json_object_size(p))
            fail_msg("case %zu: %lld ids are left, %zu expected", i, (long long)n,
                     json_object_size(p));
        for (int64_t k = 0; k < n; k++) {
            char id[16];
            snprintf(id, sizeof id, "%d", (int)s.choice[k].id);
            const json_t *want = json_object_get(p, id);
            if (!want || fabs(json_number_value(want) - s.choice[k].p) > 1e-12)
                fail_msg("case %zu, id %s: probability %.17g", i, id, s.choice[k].p);
        }
        dq_sampler_end(&s);
    }
    json_decref(root);
}

/* Shares of draws are within five standard deviations of the probabilities. */
TEST(draws_by_probability)
{
    const dq_sampling how = {.temperature = 0.8, .top_p = 1, .seed = 3};
    float logits[VOCAB];
    double share[VOCAB] = {0}, p[VOCAB];
    dq_sampler s;
    for (int i = 0; i < VOCAB; i++) logits[i] = (float)(i % 7) * 0.5F;
    begin(&s, &how);
    const int64_t n = choices(&s, logits);
    assert_int_equal(n, VOCAB);
    for (int64_t k = 0; k < n; k++) p[s.choice[k].id] = s.choice[k].p;
    for (int i = 0; i < DRAWS; i++) share[pick(&s, logits, NULL)] += 1.0 / DRAWS;
    for (int i = 0; i < VOCAB; i++)
        assert_true(fabs(share[i] - p[i]) < 5 * sqrt(p[i] * (1 - p[i]) / DRAWS));
    dq_sampler_end(&s);
}

TEST(same_seed_same_draws)
{
    dq_sampling how = {.temperature = 1, .top_p = 1, .seed = 8};
    float logits[VOCAB] = {0};
    dq_sampler a, b, c;
    int differ = 0;
    begin(&a, &how);
    begin(&b, &how);
    how.seed = 9;
    begin(&c, &how);
    for (int i = 0; i < 100; i++) {
        const int32_t id = pick(&a, logits, NULL);
        assert_int_equal(id, pick(&b, logits, NULL));
        differ += id != pick(&c, logits, NULL);
    }
    assert_true(differ > 80);
    dq_sampler_end(&a);
    dq_sampler_end(&b);
    dq_sampler_end(&c);
}

TEST(greedy_takes_the_first_of_the_largest)
{
    float logits[VOCAB] = {0};
    double logp;
    dq_sampler s;
    logits[11] = logits[30] = 2;
    begin(&s, &dq_sampler_greedy);
    assert_int_equal(pick(&s, logits, &logp), 11);
    assert_true(fabs(logp - (2 - log(2 * exp(2) + VOCAB - 2))) < 1e-14);
    dq_sampler_end(&s);
}

TEST(refuses_what_is_no_setting)
{
    static const struct {
        dq_sampling how;
        const char *text;
    } bad[] = {
        {{.temperature = -1, .top_p = 1}, "temperature: expected 0 or more, found -1"},
        {{.temperature = 1, .top_p = 1, .top_k = -2}, "top_k: expected 0 or more, found -2"},
        {{.temperature = 1, .top_p = 0}, "top_p: expected more than 0 and at most 1, found 0"},
        {{.temperature = 1, .top_p = 1.5}, "top_p: expected more than 0 and at most 1"},
        {{.temperature = 1, .top_p = 1, .min_p = 2}, "min_p: expected 0 to 1, found 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dq_err err = {0};
        dq_sampler s;
        dq_sampler_begin(&s, &bad[i].how, VOCAB, &err);
        check_error(&err, DQ_USAGE, bad[i].text);
        dq_sampler_end(&s);
    }
}

TEST(a_small_temperature_is_nearly_greedy)
{
    const dq_sampling how = {.temperature = 1e-320, .top_p = 1, .seed = 1};
    float logits[VOCAB] = {0};
    dq_sampler s;
    logits[11] = -3;
    logits[30] = 4;
    begin(&s, &how);
    for (int i = 0; i < 20; i++) assert_int_equal(pick(&s, logits, NULL), 30);
    assert_true(s.choice[0].p == 1 && s.choice[1].p == 0);
    dq_sampler_end(&s);
}
