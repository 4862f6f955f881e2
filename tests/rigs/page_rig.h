/* page_rig: a folder for a page of dq report, a document of dq eval with rows of every kind, and what every page must be. For
 * tests, which say where the document is: FIXTURE.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PAGE_RIG_H
#define DQ_PAGE_RIG_H

#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "cmds/page/gnuplot.h"
#include "cmds/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct place {
    char dir[64], page[96];
    json_t *all;
    bool drawing; /* gnuplot is here */
} place;

static inline int begin(void **state)
{
    static place p;
    dq_err err = {0};
    if (folder_begin(state) != 0) return -1;
    snprintf(p.dir, sizeof p.dir, "%s", at(""));
    snprintf(p.page, sizeof p.page, "%s", at("page.html"));
    p.all = json_load_file(FIXTURE, 0, NULL);
    assert_non_null(p.all);
    p.drawing = dq_gnuplot_check(&err) == DQ_OK;
    *state = &p;
    return 0;
}

static inline int end(void **state)
{
    place *p = *state;
    json_decref(p->all);
    return folder_end(state);
}

/* A case, given the place p, that draws: skipped where gnuplot is missing. */
#define DRAWING_TEST(name)                                                                         \
    static void name##_there(place *p);                                                            \
    TEST(name)                                                                                     \
    {                                                                                              \
        place *there = *case_state;                                                                \
        if (!there->drawing) skip();                                                               \
        name##_there(there);                                                                       \
    }                                                                                              \
    static void name##_there(place *p)

/* One document as a page. */
static inline dq_status write_one(const json_t *document, const char *path, dq_err *err)
{
    const dq_report_input in = {"one.json", document};
    return dq_report_write(&in, 1, path, err);
}

/* The page made from a document. */
static inline const char *page_of(place *p, const json_t *document)
{
    dq_err err = {0};
    size_t len;
    write_one(document, p->page, &err);
    assert_string_equal(err.text, "");
    const char *text = given_file(&len, "%s", p->page);
    assert_int_equal(strlen(text), len);
    return text;
}

/* Tags are balanced and attributes quoted, as XML wants it; attribute values hold no '<'. */
static inline void assert_balanced(const char *page)
{
    char open[64][24];
    int depth = 0;
    const char *at = strstr(page, "<html");
    assert_non_null(at);
    for (; (at = strchr(at, '<')); at++) {
        bool closing = at[1] == '/';
        const char *name = at + 1 + closing;
        size_t n = strcspn(name, " \n>/");
        assert_in_range(n, 1, 23);
        const char *c = name + n;
        for (char quote = 0; *c && (quote || *c != '>'); c++) {
            assert_int_not_equal(*c, '<');
            if (*c == '"') quote = quote ? 0 : '"';
        }
        assert_int_equal(*c, '>');
        if (closing) {
            assert_true(depth > 0 && strlen(open[depth - 1]) == n);
            assert_memory_equal(open[--depth], name, n);
        } else if (c[-1] != '/') {
            assert_in_range(depth, 0, 63);
            snprintf(open[depth++], sizeof open[0], "%.*s", (int)n, name);
        }
        at = c;
    }
    assert_int_equal(depth, 0);
}

/* Every & begins one of the entities that the page uses. */
static inline void assert_entities(const char *page)
{
    static const char *const known[] = {"&lt;", "&gt;", "&amp;", "&quot;", "&#39;", "&#160;"};
    for (const char *at = page; (at = strchr(at, '&')); at++) {
        bool good = false;
        for (int i = 0; i < 6; i++) good = good || strncmp(at, known[i], strlen(known[i])) == 0;
        if (!good) fail_msg("a bare & in: %.60s", at);
    }
}

static inline int count(const char *page, const char *what)
{
    int n = 0;
    for (const char *at = page; (at = strstr(at, what)); at++) n++;
    return n;
}

/* Links lead to one element each of the page; ids are unique; nothing else is loaded. */
static inline void assert_alone(const char *page)
{
    static const char *const outside[] = {"http:",   "https:",  "src=",       "@import",
                                          "url(",    "<script", "<link",      "<iframe",
                                          "<object", "srcset",  "javascript:"};
    char id[80];
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
        assert_null(strstr(page, outside[i]));
    for (const char *at = page; (at = strstr(at, " href=\"")); at++) {
        assert_int_equal(at[7], '#');
        snprintf(id, sizeof id, " id=\"%.*s\"", (int)strcspn(at + 8, "\""), at + 8);
        assert_int_equal(count(page, id), 1);
    }
    for (const char *at = page; (at = strstr(at, " id=\"")); at++) {
        snprintf(id, sizeof id, "%.*s\"", (int)strcspn(at + 5, "\"") + 5, at);
        assert_int_equal(count(page, id), 1);
    }
}

#endif
