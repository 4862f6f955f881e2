/* The page of dq eval --html: a whole document, nothing from outside, all text escaped, a section exactly where the data
 * for it are, no half files; and what pages are made of. Pictures need gnuplot; what shows them is
 * skipped without it. The fixture holds rows of every kind, with made-up numbers.
 * SPDX-License-Identifier: MIT */
#define FIXTURE DQ_TEST_DIR "/golden/html/all.json"
#include "tests/rigs/page_rig.h"
#include "tests/rigs/suite.h"

#include "cmds/page/html_page.h"
#include "cmds/page/svg.h"

#include <math.h>

/* The document with the rows of one task only, and without a member of these rows; a copy. */
static json_t *only(const place *p, const char *task, const char *without, const char *inside)
{
    json_t *d = json_deep_copy(p->all), *results = json_object_get(d, "results");
    for (size_t i = json_array_size(results); i-- > 0;) {
        json_t *row = json_array_get(results, i);
        if (strcmp(json_string_value(json_object_get(row, "task")), task) != 0)
            json_array_remove(results, i);
        else if (without)
            json_object_del(inside ? json_object_get(row, inside) : row, without);
    }
    assert_true(json_array_size(results) > 0);
    return d;
}

DRAWING_TEST(a_page_is_whole_and_alone)
{
    const char *page = page_of(p, p->all);
    assert_balanced(page);
    assert_entities(page);
    assert_alone(page);
    assert_true(strncmp(page, "<!DOCTYPE html>\n", 16) == 0);
    /* pictures: each is named for those who do not see it, and takes its colours from the page */
    assert_true(count(page, "<svg class=\"plot\"") >= 12);
    assert_int_equal(count(page, "<svg class=\"plot\""), count(page, "role=\"img\" aria-label=\""));
    assert_null(strstr(page, "rgb(0"));
    assert_null(strstr(page, "rgb( "));
    assert_null(strstr(page, "\"black\""));
    assert_non_null(strstr(page, "stroke=\"var(--s0)\""));
    assert_non_null(strstr(page, "prefers-color-scheme:dark"));
    assert_non_null(strstr(page, "@media print"));
    assert_null(strstr(page, "nan"));
    assert_null(strstr(page, "NaN"));
    assert_int_equal(count(page, "<figcaption"), count(page, "</figure>"));
}

DRAWING_TEST(text_of_others_is_escaped)
{
    const char *page = page_of(p, p->all);
    assert_null(strstr(page, "<ird>"));
    assert_true(count(page, "we&lt;ird&gt; &amp; &quot;quoted&quot; &#39;naïve&#39; 模型") >= 4);
    assert_non_null(strstr(page, "&lt;script&gt;alert(1)&lt;/script&gt;"));
}

/* What an attacker would try in every text of a document: gnuplot runs none of it. */
DRAWING_TEST(no_name_reaches_gnuplot)
{
    static const char evil[] = "\"`touch owned`\"'; system(\"touch owned\") # \\ \x01 EOD\n%s%n";
    json_t *d = json_deep_copy(p->all), *row;
    size_t i;
    char owned[96];
    json_array_foreach(json_object_get(d, "results"), i, row)
    {
        json_object_set_new(row, "model", json_string(evil));
        json_object_set_new(
            row, "task",
            json_sprintf("%s%s", evil, json_string_value(json_object_get(row, "task"))));
        json_object_set_new(row, "logit_granularity", json_string(evil));
        json_object_set_new(json_object_get(row, "kv"), "policy", json_string(evil));
    }
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(p->dir), 0);
    const char *page = page_of(p, d);
    assert_int_equal(chdir(here), 0);
    json_decref(d);
    snprintf(owned, sizeof owned, "%s/owned", p->dir);
    assert_false(dq_file_exists(owned));
    assert_balanced(page);
    assert_entities(page);
    assert_null(strchr(page, '\x01'));
}

static const char *const sections[] = {"run",        "verdicts", "accuracy",  "kld", "kv",
                                       "positions",  "needle",   "attention", "icl", "slices",
                                       "generation", "results",  "paired"};
enum { SECTIONS = sizeof sections / sizeof *sections };

static void assert_sections(const char *page, const char *want)
{
    for (int i = 0; i < SECTIONS; i++) {
        char id[40], link[40], word[40];
        snprintf(id, sizeof id, "<section id=\"%s\">", sections[i]);
        snprintf(link, sizeof link, "<a href=\"#%s\">", sections[i]);
        snprintf(word, sizeof word, " %s ", sections[i]);
        int expected = strstr(want, word) != NULL;
        if (count(page, id) != expected || count(page, link) != expected)
            fail_msg("section %s: expected %d of it in a page of%s", sections[i], expected, want);
    }
}

DRAWING_TEST(sections_stand_where_their_data_are)
{
    static const struct {
        const char *task, *without, *inside, *want;
    } c[] = {
        {"hellaswag", NULL, NULL, " run verdicts accuracy results paired "},
        {"hellaswag", "paired", NULL,
         " run verdicts accuracy results paired "}, /* cross_paired is left */
        {"hellaswag", "verdict", NULL, " run accuracy results paired "},
        {"arc_easy", NULL, NULL, " run accuracy results "},
        {"text", NULL, NULL, " run verdicts kld kv positions slices results paired "},
        {"text", "positions", NULL, " run verdicts kld kv slices results paired "},
        {"text", "slices", NULL, " run verdicts kld kv positions results paired "},
        {"text", "paired", NULL, " run verdicts kld kv positions slices results "},
        {"text", "kv", NULL, " run verdicts kld positions slices results paired "},
        {"text", "kld_nats", "metrics", " run verdicts positions slices results paired "},
        {"needle", NULL, NULL, " run accuracy needle attention results "},
        {"needle", "needle", NULL, " run accuracy results "},
        {"trec", NULL, NULL, " run accuracy icl results "},
        {"trec", "icl", NULL, " run accuracy results "},
        {"gsm8k", NULL, NULL, " run accuracy generation results "},
        {"gsm8k", "generation", NULL, " run accuracy results "},
        {"generate", NULL, NULL, " run generation results "},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        json_t *d = only(p, c[i].task, c[i].without, c[i].inside);
        const char *page = page_of(p, d);
        assert_sections(page, c[i].want);
        assert_balanced(page);
        json_decref(d);
    }
    json_t *d = only(p, "needle", NULL, NULL), *row, *cell;
    size_t i, k;
    json_array_foreach(json_object_get(d, "results"), i, row)
    {
        json_array_foreach(json_object_get(json_object_get(row, "needle"), "cells"), k, cell)
            json_object_set_new(cell, "attention", json_null());
    }
    assert_sections(page_of(p, d), " run accuracy needle results ");
    json_decref(d);
}

/* A document of one model whose logits have three widths, each with the verdict on its loss; KLDs say nothing. */
static const char *answer_of(place *p, const char *at8, const char *at6, const char *at4)
{
    static const char *const document = "{\"schema\":\"dq-eval/1\",\"results\":[%s]}",
                             *const row =
                                 "%s{\"model\":\"m<1>\",\"reference\":\"m<1>\",\"task\":\"text\","
                                 "\"logit_bits\":%d,\"logit_granularity\":\"per-row\",\"metrics\":{"
                                 "\"kld_nats\":{\"value\":0.5,\"stderr\":0.1,\"n_clusters\":9}},"
                                 "\"verdict\":{\"margin\":0.02,\"loss\":0.0321,\"is\":\"%s\"}}";
    const char *const is[] = {at8, at6, at4};
    char rows[2048] = "", text[4096];
    for (int i = 0, bits = 8; i < 3; i++, bits -= 2)
        snprintf(rows + strlen(rows), sizeof rows - strlen(rows), row, i ? "," : "", bits, is[i]);
    snprintf(text, sizeof text, document, rows);
    json_t *d = json_loads(text, 0, NULL);
    assert_non_null(d);
    const char *page = page_of(p, d), *answer = strstr(page, "<section class=\"answer\"");
    json_decref(d);
    assert_balanced(page);
    assert_non_null(answer);
    assert_true(answer < strstr(page, "<nav"));
    return answer;
}

#define IN   "within the margin"
#define OUT  "exceeds the margin"
#define OPEN "inconclusive"

/* The verdicts are the document's, with its margin; logits are within it only with all wider ones. */
DRAWING_TEST(the_answer_has_the_verdicts_of_the_document)
{
    static const struct {
        const char *at8, *at6, *at4, *want;
    } c[] = {
        {IN, OPEN, OUT, "<b>8 bits</b>."},         {IN, IN, OUT, "<b>6 bits</b>."},
        {IN, OUT, IN, "<b>8 bits</b>."},           {OPEN, OPEN, OUT, "<b>inconclusive</b>."},
        {"", "holds", "", "<b>inconclusive</b>."}, {OUT, OUT, OUT, "<b>none that was tested</b>."},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const char *answer = answer_of(p, c[i].at8, c[i].at6, c[i].at4);
        char want[128];
        snprintf(want, sizeof want,
                 "of m&lt;1&gt; whose loss is within the margin, 0.02 nats of NLL: logits per-row "
                 "%s",
                 c[i].want);
        if (!strstr(answer, want)) fail_msg("%s is not in: %.300s", want, answer);
    }
    json_t *d = only(p, "hellaswag", NULL, NULL); /* has no KLD */
    assert_null(strstr(page_of(p, d), "class=\"answer\""));
    json_decref(d);
}

DRAWING_TEST(numbers_stand_with_their_errors)
{
    const char *page = page_of(p, p->all);
    assert_non_null(strstr(page, "<td>0.6340 ±\u00a00.0048</td>")); /* 0.634 of 10042 items */
    assert_non_null(strstr(page, "acc_norm *</th>"));
    assert_non_null(strstr(page, "<td>2.4e-15</td>")); /* McNemar */
    assert_non_null(strstr(page, "the noise floor"));
    assert_non_null(strstr(page, "moved by one unit in the last place"));
    assert_non_null(strstr(page, "(windows as clusters)"));
    /* difference in a range */
    assert_non_null(strstr(page, "<td>0.00125 ±\u00a00.00025</td></tr>"));
    assert_non_null(strstr(page, "<td>0.0225</td></tr>"));                 /* margin of orders */
    assert_non_null(strstr(page, "<td>87.25</td><td class=\"l\">asked ")); /* ends of answers */
    assert_non_null(strstr(page, " A KV cache that evicts or rounds does so before the question."));
    assert_non_null(strstr(page, "N&#160;=&#160;8"));
    assert_non_null(strstr(page, "AR hit"));
    assert_non_null(strstr(page, "within the margin, 0.01, if all of the interval of its loss is "
                                 "at most that; it exceeds the margin if all of it is more"));
    assert_non_null(strstr(page, "intervals are expected to miss by chance.</p>"));
    assert_non_null(strstr(page, "<td class=\"l\">inconclusive</td>"));
    assert_non_null(strstr(page, "<td>8</td><td>8</td><td>4, 3</td><td>6</td></tr>"));
    assert_non_null(strstr(page, "<td>none</td><td>–</td><td>16, 8</td><td>–</td></tr>"));
    assert_non_null(strstr(page, "<p>Normalization: absolute values, divided by their sum.</p>"));
    assert_non_null(strstr(page, "<p>The sum is below 0.1 in "));
}

/* A document of one row whose numbers are missing needs no picture, hence no gnuplot. */
static json_t *smallest(const char *name)
{
    return json_pack("{s:s, s:[{s:s, s:s, s:i, s:s, s:{s:{s:n, s:n}, s:{s:f, s:n}}}]}", "schema",
                     "dq-eval/1", "results", "model", name, "task", "mc", "logit_bits", 16,
                     "logit_granularity", "tensor", "metrics", "acc", "value", "stderr", "acc_norm",
                     "value", 0.5, "stderr");
}

TEST(documents_may_lack_almost_everything)
{
    place *p = *case_state;
    json_t *d = smallest("m");
    const char *page = page_of(p, d);
    assert_sections(page, " run results ");
    assert_balanced(page);
    assert_non_null(strstr(page, "<td>–</td><td>0.5000</td>"));
    json_object_set_new(d, "results", json_array());
    page = page_of(p, d);
    assert_sections(page, " run ");
    assert_balanced(page);
    /* parts of another type are as good as absent */
    json_decref(d);
    d = smallest("m");
    json_t *row = json_array_get(json_object_get(d, "results"), 0);
    static const char *const keys[] = {"weights", "kv",     "needle",       "positions", "icl",
                                       "slices",  "paired", "cross_paired", "throughput"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        json_object_set_new(row, keys[i], i % 2 ? json_string("x") : json_pack("[i]", 3));
    json_object_set_new(row, "metrics", json_pack("{s:s, s:i}", "acc", "high", "kld_nats", 4));
    assert_balanced(page_of(p, d));
    json_decref(d);
}

TEST(gnuplot_may_be_missing)
{
    place *p = *case_state;
    dq_err err = {0};
    const char *path = getenv("PATH");
    char *kept = strdup(path ? path : "");
    remove(p->page);
    setenv("PATH", p->dir, 1);
    assert_int_equal(dq_gnuplot_check(&err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "gnuplot-nox"));
    memset(&err, 0, sizeof err);
    assert_int_equal(write_one(p->all, p->page, &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "gnuplot-nox"));
    assert_false(dq_file_exists(p->page));
    setenv("PATH", kept, 1);
    free(kept);
}

DRAWING_TEST(scripts_leave_nothing_behind)
{
    static const char bad[] = "set terminal svg\nplot nothing_of_that_name\n";
    dq_err err = {0};
    char *out = NULL;
    const char **names;
    size_t len, n;
    remove(p->page);
    setenv("TMPDIR", p->dir, 1);
    assert_int_equal(dq_gnuplot_run(&out, &len, "print 1\nset print '-'\nprint 6*7\n", 32, &err),
                     DQ_OK);
    assert_non_null(strstr(out, "42"));
    free(out);
    assert_int_equal(dq_gnuplot_run(&out, &len, bad, strlen(bad), &err), DQ_RESOURCE);
    assert_non_null(strstr(err.text, "undefined"));
    memset(&err, 0, sizeof err);
    assert_int_equal(dq_file_dir_names(&names, &n, p->dir, given_arena(), &err), DQ_OK);
    assert_int_equal(n, 0);
    setenv("TMPDIR", "/nowhere/at/all", 1);
    assert_int_equal(dq_gnuplot_run(&out, &len, bad, strlen(bad), &err), DQ_FILE);
    unsetenv("TMPDIR");
}

/* What stands in an SVG of gnuplot, and what becomes of it. */
TEST(drawings_are_taken_apart)
{
#define HEAD "<svg viewBox=\"0 0 10 20\"><g id=\"gnuplot_canvas\">"
    static const struct {
        const char *svg, *want; /* NULL: refused */
    } c[] = {
        {HEAD "</g></svg>", "\">\n</svg>"},
        {HEAD "<defs><circle id='gpDot'/></defs><g class='x' stroke='rgb(  0,   1,   2)'>\n"
              "<path d='M0,0' id='q'/></g></g></svg>",
         "<g stroke=\"var(--s2)\"><path d=\"M0,0\"/></g>"},
        {HEAD "<g fill='white'></g><text><tspan dy=\"-6\">1 &lt; 2</tspan></text></g></svg>",
         "<text><tspan dy=\"-6\">1 &lt; 2</tspan></text></g>"},
        {HEAD "<use xlink:href='#gpPt6' color='white'/><use xlink:href='#gpPt6' color='black'/>"
              "</g></svg>",
         "<g><use href=\"#gpPt6\" color=\"var(--ink)\"/></g>"},
        {HEAD "<polygon fill = '#000201' points = '1,2 '/></g></svg>",
         "<polygon fill=\"var(--ink)\" points=\"1,2 \"/>"},
        {"", NULL},
        {"<svg viewBox=\"0 0 10 20\"></svg>", NULL},
        {HEAD, NULL},
        {HEAD "</svg>", NULL},
        {HEAD "</g></g></svg>", NULL},
        {HEAD "<path d='M0,0", NULL},
        {HEAD "<path d=M0,0/></g></svg>", NULL},
        {HEAD "<text>words</g></svg>", NULL},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        dq_err err = {0};
        dq_html_page page;
        dq_html_page_begin(&page, &err);
        dq_svg_inline(&page, c[i].svg, "a \"picture\"");
        if (!c[i].want) {
            assert_int_equal(err.code, DQ_RESOURCE);
        } else {
            assert_int_equal(err.code, DQ_OK);
            dq_html_page_html(&page, "%c", 0); /* an end for strstr */
            if (!strstr(page.body.s, c[i].want)) fail_msg("%s", page.body.s);
            assert_non_null(strstr(page.body.s, "aria-label=\"a &quot;picture&quot;\""));
            assert_non_null(strstr(page.body.s, "viewBox=\"0 0 10 20\""));
        }
        dq_html_page_free(&page);
    }
}

TEST(values_show_two_digits_of_their_error)
{
    static const struct {
        double value, std_err;
        const char *want;
    } c[] = {
        {0.634, 0.004807, "0.6340 ±\u00a00.0048"},
        {0.5, 0.0926, "0.500 ±\u00a00.093"},
        {17827.9, 3872.6, "17828 ±\u00a03873"},
        {9.78854, 0.2172, "9.79 ±\u00a00.22"},
        {1.73e-5, 4.1e-6, "1.73e-05 ±\u00a04.1e-06"},
        {-0.0012, 0.0013, "-0.0012 ±\u00a00.0013"},
        {0, 2e-9, "0.0e+00 ±\u00a02.0e-09"},
        {1, 0, "1.0000"},
        {0.5, (double)NAN, "0.5000"},
        {3.2e-6, (double)NAN, "3.20e-06"},
        {123.456, (double)NAN, "123.46"},
        {1075.25, (double)NAN, "1075.2"},
        {2.5e7, (double)NAN, "2.50e+07"},
        {(double)NAN, 1, "–"},
        {(double)INFINITY, 1, "–"},
        {0, 0, "0.0000"},
    };
    char text[96];
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        assert_string_equal(dq_html_page_value_text(text, sizeof text, c[i].value, c[i].std_err),
                            c[i].want);
}

TEST(failing_memory_is_survived)
{
    place *p = *case_state;
    json_t *d = smallest("m");
    int failures = 0;
    for (int64_t n = 1; n < 200; n++) {
        dq_err err = {0};
        remove(p->page);
        dq_alloc_fail_at(n);
        dq_status s = write_one(d, p->page, &err);
        dq_alloc_fail_at(0);
        if (s == DQ_OK) break;
        assert_int_equal(s, DQ_RESOURCE);
        assert_false(dq_file_exists(p->page));
        failures++;
    }
    assert_in_range(failures, 3, 150);
    json_decref(d);
}

FIXTURES(begin, end)
