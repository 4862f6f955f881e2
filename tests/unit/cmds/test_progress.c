/* test_progress: when a line is due, on a terminal and in a file.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/cli.h"

#include "tests/rigs/suite.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Lines of a run of so many seconds that is looked at ten times a second, and when the first one comes. */
static int lines_of(dq_progress *p, double seconds, double *first)
{
    int n = 0;
    for (int i = 1; i <= 10 * seconds; i++) {
        const double now = p->start + i / 10.0, share = i / 10.0 / seconds;
        if (!dq_progress_due(p, now, share)) continue;
        if (n++ == 0) *first = now - p->start;
        p->shown = true;
        p->last_time = now;
        p->last_share = share;
    }
    return n;
}

TEST(a_file_has_a_line_now_and_then)
{
    static const struct {
        double seconds;
        int least, most;
    } cases[] = {{2, 0, 0}, {60, 10, 12}, {3600, 40, 70}, {36000, 100, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dq_progress p = {.start = 1000, .last_time = 1000};
        double first = 0;
        const int n = lines_of(&p, cases[i].seconds, &first);
        assert_in_range(n, cases[i].least, cases[i].most);
        assert_true(n == 0 || (first >= 3 && first <= 5));
    }
}

/* Always: a line for every 5 % of a run that is over before the first one would be due. */
TEST(always_has_every_twentieth)
{
    double first;
    dq_progress p = {.often = true};
    assert_in_range(lines_of(&p, 2, &first), 10, 20);
}

TEST(a_terminal_is_redrawn)
{
    const dq_progress p = {.redraw = true, .start = 10, .last_time = 10};
    assert_false(dq_progress_due(&p, 10.05, 0.5));
    assert_true(dq_progress_due(&p, 10.2, 0.5));
    assert_true(dq_progress_due(&p, 10.05, 1)); /* what is done is said */
}

/* What a run that began `passed` seconds ago, and has so many seconds left, says on stderr; twice. */
static void said(char *text, size_t cap, double passed, double left, bool wait)
{
    dq_logger logger = {.command = NULL};
    dq_progress p;
    dq_err err = {0};
    FILE *f = tmpfile();
    const int kept = dup(STDERR_FILENO);
    assert_true(f && kept >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0);
    assert_int_equal(dq_progress_listen(&logger, "eval", &err), DQ_OK);
    dq_progress_begin(&p, &logger, "work", 1);
    p.start -= passed;
    p.wait = wait;
    for (int i = 0; i < 2; i++) dq_progress_left(&p, left, NULL);
    dup2(kept, STDERR_FILENO);
    close(kept);
    dq_logger_end(&logger);
    rewind(f);
    text[fread(text, 1, cap - 1, f)] = 0;
    fclose(f);
}

/* Once, after a second, of what is long; not before all of it is known. */
TEST(the_time_is_announced_once)
{
    char text[500];
    said(text, sizeof text, 2, 598, false);
    const char *first = strstr(text, "dq eval: takes about 10 min on ");
    assert_non_null(first);
    assert_null(strstr(first + 30, "takes about"));
    said(text, sizeof text, 0.5, 598, false);
    assert_null(strstr(text, "takes about"));
    said(text, sizeof text, 2, 5, false);
    assert_null(strstr(text, "takes about"));
    said(text, sizeof text, 2, 598, true);
    assert_null(strstr(text, "takes about"));
}
