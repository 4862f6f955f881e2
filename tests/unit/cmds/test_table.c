/* test_table: cells, rules and CSV of a table of any size.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/given.h"
#include "tests/rigs/suite.h"
#include "tests/rigs/test_folder.h"

#include "base/file.h"
#include "cmds/cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COLS = 4 };
static const char *const titles[COLS] = {"name", "x", "y", "note"};
static char path[80];

static int begin(void **state)
{
    const int failed = folder_begin(state);
    strcpy(path, at("table"));
    return failed;
}

/* `rows` rows, and a rule before row `ruled`. */
static dq_table *made(int rows, int ruled)
{
    dq_table *t;
    dq_err err = {0};
    assert_int_equal(dq_table_new(&t, titles, COLS, &err), DQ_OK);
    for (int i = 0; i < rows; i++) {
        if (i == ruled) dq_table_rule(t);
        dq_table_cell(t, "row %d", i);
        dq_table_real(t, i);
        dq_table_real(t, (double)NAN);
        dq_table_cell(t, "%s", i ? "a, \"b\"" : "\xC3\xA9");
    }
    return t;
}

/* What dq_table_print writes to stdout. */
static char *printed(const dq_table *t)
{
    dq_err err = {0};
    size_t len;
    char *text;
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    assert_true(kept >= 0 && freopen(path, "w", stdout));
    const dq_status status = dq_table_print(t, &err);
    fflush(stdout);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0 && close(kept) == 0);
    assert_int_equal(status, DQ_OK);
    assert_int_equal(dq_file_read(&text, &len, path, given_arena(), &err), DQ_OK);
    return text;
}

TEST(columns_line_up)
{
    dq_table *t = made(2, 1);
    assert_string_equal(printed(t), "name   x  y  note\n"
                                    "-----  -  -  ------\n"
                                    "row 0  0     \xC3\xA9\n"
                                    "-----  -  -  ------\n"
                                    "row 1  1     a, \"b\"\n");
    dq_table_free(t);
}

/* Two rows that are wider than a line: keys, a column of nothing, some of one thing, three of 40 characters. */
static dq_table *wide(int models)
{
    static const char *const names[] = {"model", "bits", "granularity", "task",
                                        "is",    "a",    "b",           "c"};
    dq_table *t;
    dq_err err = {0};
    assert_int_equal(dq_table_new(&t, names, 8, &err), DQ_OK);
    dq_table_keys(t, 2);
    for (int i = 0; i < 2; i++) {
        if (i == 1) dq_table_rule(t);
        dq_table_cell(t, "m%d", i % models);
        dq_table_cell(t, "%d", 16 - i);
        dq_table_cell(t, "-");
        dq_table_cell(t, "text");
        dq_table_cell(t, "%s",
                      "one thing that no row has otherwise, and which does not end where the "
                      "line with the task ends");
        for (int c = 0; c < 3; c++) dq_table_cell(t, "%0*d", models == 1 ? 35 : 40, 7 * i + c);
    }
    return t;
}

TEST(wide_tables_fold)
{
    static const char line[] = "----------------------------------------";
    char want[2000];
    int n = 0;
    dq_table *t = wide(2);
    n += snprintf(want, sizeof want,
                  "In every row: task text;\n"
                  "  is one thing that no row has otherwise, and which does not end where the line "
                  "with the task ends.\n"
                  "model  bits  %40s  %40s\n-----  ----  %s  %s\nm0       16  %040d  %040d\n"
                  "-----  ----  %s  %s\nm1       15  %040d  %040d\n\n",
                  "a", "b", line, line, 0, 1, line, line, 7, 8);
    snprintf(want + n, sizeof want - (size_t)n,
             "model  bits  %40s\n-----  ----  %s\nm0       16  %040d\n-----  ----  %s\n"
             "m1       15  %040d\n",
             "c", line, 2, line, 9);
    assert_string_equal(printed(t), want);
    dq_table_free(t);
    t = wide(1); /* with the only model in front, one block is enough */
    const char *text = printed(t);
    assert_non_null(strstr(text, " ends.\nbits  "));
    assert_memory_equal(text, "In every row: model m0; task text;\n", 35);
    assert_null(strstr(text, "\n\n"));
    dq_table_free(t);
}

/* Keys a and b, then results of some widths: how many blocks, and the longest line. */
static int blocks(const char *text, int *longest)
{
    int n = 1;
    *longest = 0;
    for (const char *s = text; *s; s += strcspn(s, "\n") + 1) {
        int w = 0;
        for (const char *p = s; *p != '\n'; p++) w += ((unsigned char)*p & 0xc0) != 0x80;
        if (w > *longest) *longest = w;
        n += *s == '\n';
    }
    return n;
}

/* Rows that differ in a long name; columns of one thing and of numbers after it. */
static char *long_keys(const char *const *name, int n_same, int n_real)
{
    static const char *const names[] = {"model", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    dq_table *t;
    dq_err err = {0};
    assert_int_equal(dq_table_new(&t, names, 2 + n_same + n_real, &err), DQ_OK);
    dq_table_keys(t, 2);
    for (int i = 0; i < 2; i++) {
        dq_table_cell(t, "%s", name[i]);
        dq_table_cell(t, "key of a row %d", i);
        for (int c = 0; c < n_real; c++) dq_table_cell(t, "%020d", 2 * c + i);
        for (int c = 0; c < n_same; c++) dq_table_cell(t, "%s", "same in all rows");
    }
    char *text = printed(t);
    dq_table_free(t);
    return text;
}

TEST(long_keys_leave_room)
{
    static const char *const apart[] = {"\xC3\xA9-a-model-with-a-long-name-that-says-everything-"
                                        "about-how-it-was-made-and-when-0.h5",
                                        "\xC3\xA9-a-model-with-a-long-name-that-says-everything-"
                                        "about-how-it-was-made-and-when-1.h5"};
    static const char *const alike[] = {"a-model-with-a-long-name-that-says-0-everything-about-how-"
                                        "it-was-made-and-when-it-was-made",
                                        "a-model-with-a-long-name-that-says-1-everything-about-how-"
                                        "it-was-made-and-when-it-was-made"};
    static const char *const brief[] = {"m0", "m1"};
    int longest;
    const char *text = long_keys(
        apart, 2, 4); /* what one thing fills is taken out and makes no block of keys alone */
    assert_int_equal(blocks(text, &longest), 2);
    assert_true(longest <= 120);
    assert_non_null(strstr(text, "\n\xC3\xA9-a-model"));
    assert_non_null(strstr(text, "\xE2\x80\xA6"));
    assert_non_null(strstr(text, "when-1.h5"));
    text = long_keys(alike, 0, 2); /* shortened they would be one */
    assert_null(strstr(text, "\xE2\x80\xA6"));
    text = long_keys(brief, 4, 2); /* one of the four taken out is enough */
    assert_int_equal(blocks(text, &longest), 1);
    assert_memory_equal(text, "In every row: e same in all rows.\n", 34);
}

/* A rule stands before its row wherever that falls in the memory of the table. */
TEST(every_rule_is_there)
{
    for (int ruled = 1; ruled < 70; ruled++) {
        dq_table *t = made(ruled + 1, ruled);
        int rules = 0;
        for (const char *s = printed(t); (s = strstr(s, "\n--")); s++) rules++;
        if (rules != 2) fail_msg("a rule before row %d: found %d, expected 2", ruled, rules);
        dq_table_free(t);
    }
}

TEST(csv_quotes)
{
    dq_table *t = made(2, 1);
    dq_err err = {0};
    char *text;
    size_t len;
    assert_int_equal(dq_table_csv(t, path, &err), DQ_OK);
    assert_int_equal(dq_file_read(&text, &len, path, given_arena(), &err), DQ_OK);
    assert_string_equal(text, "name,x,y,note\nrow 0,0,,\xC3\xA9\nrow 1,1,,\"a, \"\"b\"\"\"\n");
    dq_table_free(t);
}

/* A name that a spreadsheet would compute is marked, a number is not. */
TEST(csv_computes_nothing)
{
    static const char *const columns[] = {"name", "x"};
    static const char *const cell[][2] = {
        {"=1+1", "'=1+1"},
        {"+x", "'+x"},
        {"-x|y", "'-x|y"},
        {"@SUM(1)", "'@SUM(1)"},
        {"\t=1", "'\t=1"},
        {"a=b", "a=b"},
        {"-1.5", "-1.5"},
        {"+2e-3", "+2e-3"},
        {"-", "-"},
        {"-inf", "-inf"},
        {"=a,b", "\"'=a,b\""},
        {"=\"a\"", "\"'=\"\"a\"\"\""},
        {"-1+cmd|' /C calc'!A0", "'-1+cmd|' /C calc'!A0"},
    };
    for (size_t i = 0; i < sizeof cell / sizeof *cell; i++) {
        dq_table *t;
        dq_err err = {0};
        char *text, want[80];
        size_t len;
        assert_int_equal(dq_table_new(&t, columns, 2, &err), DQ_OK);
        dq_table_cell(t, "%s", cell[i][0]);
        dq_table_real(t, -0.5);
        assert_int_equal(dq_table_csv(t, path, &err), DQ_OK);
        assert_int_equal(dq_file_read(&text, &len, path, given_arena(), &err), DQ_OK);
        snprintf(want, sizeof want, "name,x\n%s,-0.5\n", cell[i][1]);
        assert_string_equal(text, want);
        dq_table_free(t);
    }
}

/* Memory that was too short for a cell is remembered until the table is shown. */
TEST(a_lost_cell_is_no_table)
{
    dq_table *t = made(0, -1);
    dq_err err = {0};
    dq_alloc_fail_at(1);
    for (int i = 0; i < 4000; i++) dq_table_cell(t, "%d", i);
    dq_alloc_fail_at(0);
    assert_int_equal(dq_table_print(t, &err), DQ_RESOURCE);
    dq_table_free(t);
    dq_table_free(NULL);
}

FIXTURES(begin, folder_end)
