/* dq eval on running text against numbers worked out in Python: tests/golden/text.py.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/suite.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The output of dq eval with the arguments of a case; '@' is the root of the checkout. */
static json_t *run(const json_t *args)
{
    char command[4096];
    int n = snprintf(command, sizeof command, "'%s' eval", DQ_PROGRAM);
    for (size_t i = 0; i < json_array_size(args); i++) {
        const char *s = json_string_value(json_array_get(args, i));
        n += snprintf(command + n, sizeof command - (size_t)n, " '%s%s'",
                      *s == '@' ? DQ_SOURCE_DIR : "", *s == '@' ? s + 1 : s);
    }
    snprintf(command + n, sizeof command - (size_t)n, " --json --progress never -q");
    FILE *f = popen(command, "r");
    assert_non_null(f);
    json_t *doc = json_loadf(f, 0, NULL);
    if (pclose(f) != 0 || !doc) fail_msg("failed: %s", command);
    return doc;
}

/* The number at a path like "a.3.b". */
static double at(const json_t *o, const char *path)
{
    char step[64];
    for (const char *p = path; *p;) {
        size_t n = strcspn(p, ".");
        snprintf(step, sizeof step, "%.*s", (int)n, p);
        o = json_is_array(o) ? json_array_get(o, (size_t)atoi(step)) : json_object_get(o, step);
        p += n + (p[n] == '.');
    }
    if (!json_is_number(o)) fail_msg("%s is no number", path);
    return json_number_value(o);
}

/* Log-probabilities come from f32 logits: 1e-5 relative for mean NLL; differences and divergences of
 * two models carry that error whole, and single tokens more of it. */
static double tolerance(const char *path, double want)
{
    bool nll = strstr(path, "nll_nats") || strstr(path, "word_ppl") || strstr(path, "byte");
    bool error = strstr(path, "stderr");
    if (strstr(path, "same_top1") || strstr(path, "share")) return 1e-9 * fabs(want);
    if (nll && !error) return 1e-5 * fabs(want);
    return 1e-4 * fabs(want) + 2e-5;
}

static void check(const json_t *one)
{
    json_t *doc = run(json_object_get(one, "args"));
    const json_t *row = json_array_get(json_object_get(doc, "results"), 0), *v;
    const char *path, *window = json_string_value(json_object_get(row, "window"));
    json_object_foreach(json_object_get(one, "exact"), path, v)
    {
        if (at(row, path) != json_number_value(v))
            fail_msg("%s, %s: %g, expected %g", window, path, at(row, path), json_number_value(v));
    }
    json_object_foreach(json_object_get(one, "want"), path, v)
    {
        double want = json_number_value(v), got = at(row, path);
        if (!(fabs(got - want) <= tolerance(path, want)))
            fail_msg("%s, %s: %.10g, expected %.10g", window, path, got, want);
        if (strcmp(path, "metrics.nll_nats.value") == 0)
            printf("%-9s %6.0f ids: NLL %.8f, reference %.8f\n", window, at(row, "n"), got, want);
    }
    json_decref(doc);
}

TEST(test_golden)
{
    json_t *cases = json_load_file(DQ_TEST_DIR "/golden/text/golden.json", 0, NULL);
    assert_int_equal(json_array_size(cases), 14);
    for (size_t i = 0; i < json_array_size(cases); i++) check(json_array_get(cases, i));
    json_decref(cases);
}
