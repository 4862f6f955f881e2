/* plan_work: see plan_work.h. A total that turns out too small grows with what is done.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_work.h"

void dq_plan_work_add(dq_plan_work *w, double flop, const char *what)
{
    w->done += flop;
    if (w->total < w->done) w->total = w->done;
    if (w->step) w->step(w->arg, w->done, w->total, what);
}

void dq_plan_work_expect(dq_plan_work *w, double flop)
{
    w->total = w->done + flop;
}

void dq_plan_work_step(void *share, const dq_pace *pace, const char *what)
{
    dq_plan_work_share *s = share;
    const double taken = dq_pace_taken(pace), all = taken + dq_pace_left(pace);
    const double done = all > 0 ? s->flop * taken / all : 0;
    if (done <= s->told) return;
    dq_plan_work_add(s->work, done - s->told, what);
    s->told = done;
}
