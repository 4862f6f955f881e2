/* progress: see progress.h. The time left is that of the share done since the first call, so that what a resumed
 * run has found done makes it no faster.
 * SPDX-License-Identifier: MIT */
#include "cmds/cli/progress.h"

#include "base/os.h"
#include "base/ranks.h"
#include "base/text.h"
#include "cmds/cli/table.h"
#include "record/record.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAME = 200 };

static void put_line(const char *line)
{
    fprintf(stderr, "%s\n", line);
}

dq_status dq_progress_listen(dq_logger *logger, const char *command, dq_err *err)
{
    logger->listener = put_line;
    return dq_logger_begin(logger, command, err);
}

void dq_progress_begin(dq_progress *p, const dq_logger *logger, const char *label, double total)
{
    memset(p, 0, sizeof *p);
    p->logger = logger;
    p->label = label;
    p->total = total > 0 ? total : 1;
    p->start = p->last_time = dq_os_seconds();
    p->first = -1;
    p->redraw = isatty(STDERR_FILENO) != 0;
    p->often = logger->progress.at == DQ_LOGGER_ALWAYS;
    p->threads = dq_os_threads();
    p->on = !logger->quiet && logger->progress.at != DQ_LOGGER_NEVER;
}

/* "12 s left", "3:20 left", "~2:05:00 left" */
static void time_text(char *out, size_t cap, double seconds, bool rough)
{
    const long s = seconds < 1e9 ? (long)(seconds + 0.5) : 1000000000L;
    const char *about = rough ? "~" : "";
    if (s < 100)
        snprintf(out, cap, "%s%ld s left", about, s);
    else if (s < 3600)
        snprintf(out, cap, "%s%ld:%02ld left", about, s / 60, s % 60);
    else
        snprintf(out, cap, "%s%ld:%02ld:%02ld left", about, s / 3600, s / 60 % 60, s % 60);
}

void dq_progress_label(dq_progress *p, const char *label)
{
    p->label = label;
}

/* In a file: every 5 s at first, then a tenth of the time so far apart, and at most 5 minutes. */
bool dq_progress_due(const dq_progress *p, double now, double share)
{
    const double since = now - p->last_time;
    double gap = (now - p->start) / 10;
    if (p->redraw) return since >= 0.1 || share >= 1;
    if (p->often && share - p->last_share >= 0.05) return true;
    if (gap < 5) gap = p->shown ? 5 : 3;
    return since >= (gap < 300 ? gap : 300);
}

/* A name may be any bytes: out[3 NAME + 1] becomes UTF-8 of one line, of at most NAME bytes of it. */
static void name_text(char *out, const char *name)
{
    out[dq_utf8_repair(out, name, strnlen(name, NAME))] = 0;
    dq_one_line(out);
}

void dq_progress_announce(const dq_logger *logger, double seconds, int threads)
{
    char text[32], on[32] = "";
    if (logger->progress.at == DQ_LOGGER_NEVER || seconds < 10 || dq_ranks_count() > 1) return;
    if (threads) snprintf(on, sizeof on, " on %d thread%s", threads, threads == 1 ? "" : "s");
    dq_logger_say(logger, "takes about %s%s", dq_document_time_text(text, sizeof text, seconds),
                  on);
}

/* A line, if one is due, with the seconds that are left; below 0: nobody knows. */
static void show(dq_progress *p, double now, double share, double seconds, const char *note)
{
    char left[32] = "", label[3 * NAME + 1], what[3 * NAME + 1];
    if (!p->on) return;
    const bool due = dq_progress_due(p, now, share);
    if (!p->announced && !p->wait && seconds >= 0 && (due || now - p->start >= 1)) {
        p->announced = true;
        if (p->shown && p->redraw) fprintf(stderr, "\r\033[K");
        dq_progress_announce(p->logger, now - p->start + seconds, p->threads);
    }
    if (!due) return;
    name_text(label, p->label);
    name_text(what, note ? note : "");
    if (seconds >= 0) time_text(left, sizeof left, seconds, p->rough);
    fprintf(stderr, "%sdq %s: %s %3.0f %%  %s  %s%s", p->redraw ? "\r" : "", p->logger->command,
            label, 100 * share, left, what, p->redraw ? "\033[K" : "\n");
    fflush(stderr);
    p->shown = true;
    p->last_time = now;
    p->last_share = share;
}

void dq_progress_set(dq_progress *p, double done, const char *note)
{
    const double now = dq_os_seconds(), share = done / p->total;
    p->done = done;
    if (p->first < 0) p->first = share;
    show(p, now, share, share > p->first ? (now - p->start) * (1 - share) / (share - p->first) : -1,
         note);
}

void dq_progress_left(dq_progress *p, double seconds, const char *note)
{
    const double now = dq_os_seconds(), taken = now - p->start;
    show(p, now, taken + seconds > 0 ? taken / (taken + seconds) : 1, seconds, note);
}

void dq_progress_pace(void *progress, const dq_pace *pace, const char *note)
{
    dq_progress_left(progress, dq_pace_left(pace), note);
}

void dq_progress_step(void *progress, double done, double total, const char *note)
{
    dq_progress *p = progress;
    p->total = total > 0 ? total : 1;
    dq_progress_set(p, done, note);
}

void dq_progress_end(dq_progress *p)
{
    if (p->shown && p->redraw) fprintf(stderr, "\r\033[K");
    p->shown = false;
}

bool dq_progress_is_long(double seconds)
{
    return seconds >= 5;
}
