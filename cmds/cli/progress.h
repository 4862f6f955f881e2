/* progress: how far a command is, and how long it will take.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PROGRESS_H
#define DQ_PROGRESS_H

#include "base/work.h"
#include "record/record.h"

/* Progress on stderr: on a terminal a line that is redrawn, in a file a line now and then: the first after 3 s, then as a
 * log of hours stays short, see dq_progress_due. `always` adds one for every 5 %.
 * After a second of work comes dq_progress_announce, once. */
typedef struct dq_progress {
    const dq_logger *logger;
    const char *label;
    double total, done, start, first, last_time,
        last_share;                /* first: share done before the start */
    bool redraw, shown, on, often; /* often: `always` */
    int threads;
    bool wait, announced; /* what is left is not to be announced yet; or it was */
    bool rough;           /* how much there is to do is an estimate, and so is the time left: "~" */
} dq_progress;
/* dq_logger_begin of a command, whose lines go to stderr. */
dq_status dq_progress_listen(dq_logger *logger, const char *command, dq_err *err);
void dq_progress_begin(dq_progress *p, const dq_logger *logger, const char *label, double total);
/* Another label for what follows of the same work. The text must outlive it. */
void dq_progress_label(dq_progress *p, const char *label);
/* `note` says what is being done now; may be NULL. */
void dq_progress_set(dq_progress *p, double done, const char *note);
/* The same for work whose total is told with every step; `progress` is a dq_progress. */
void dq_progress_step(void *progress, double done, double total, const char *note);
/* Seconds are left. */
void dq_progress_left(dq_progress *p, double seconds, const char *note);
/* The same of a quantization: step of dq_quantize_progress. */
void dq_progress_pace(void *progress, const dq_pace *pace, const char *note);
void dq_progress_end(dq_progress *p);
/* "takes about 4 min on 2 threads", where that is long enough to be worth a line, and for one process; threads 0: elsewhere. */
void dq_progress_announce(const dq_logger *logger, double seconds, int threads);
/* Whether what takes so many seconds by a rough estimate is worth timing. */
bool dq_progress_is_long(double seconds);
/* Whether a line is due at `now`, seconds of dq_os_seconds. */
bool dq_progress_due(const dq_progress *p, double now, double share);

#endif
