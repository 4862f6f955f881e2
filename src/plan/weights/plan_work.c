/* plan_work: see plan_work.h. A total that turns out too small grows with what is done.
 * SPDX-License-Identifier: MIT */
#include "plan/weights/plan_work.h"

#include "calibrate/calibrate_work.h"

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

double dq_plan_work_of_bytes(double bytes)
{
    return bytes * DQ_CALIBRATE_FLOP_PER_BYTE;
}

void dq_plan_work_step(void *share, double done, double total, const char *what)
{
    dq_plan_work_share *s = share;
    (void)total;
    if (s->last < 0)
        s->work->total -= dq_plan_work_of_bytes(done);
    else
        dq_plan_work_add(s->work, dq_plan_work_of_bytes(done - s->last), what);
    s->last = done;
}
