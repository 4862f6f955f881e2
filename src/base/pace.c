/* pace: see pace.h. A kind begins with the ratio of all kinds, and its own takes over within few seconds of its work.
 * SPDX-License-Identifier: MIT */
#include "base/pace.h"

#include <string.h>

/* A kind is known by its own time once so many seconds, or so much of it, are done. */
static const double few_seconds = 0.2, few = 0.02;

void dq_pace_begin(dq_pace *p, double now)
{
    memset(p, 0, sizeof *p);
    p->last = now;
}

void dq_pace_expect(dq_pace *p, int kind, double seconds)
{
    const double left = p->left[kind] + seconds;
    p->left[kind] = left > 0 ? left : 0;
}

void dq_pace_step(dq_pace *p, int kind, double seconds, double now)
{
    p->done[kind] += seconds;
    p->taken[kind] += now - p->last;
    p->last = now;
    dq_pace_expect(p, kind, -seconds);
}

static double sum(const double x[DQ_PACE_KINDS])
{
    double all = 0;
    for (int k = 0; k < DQ_PACE_KINDS; k++) all += x[k];
    return all;
}

double dq_pace_taken(const dq_pace *p)
{
    return sum(p->taken);
}

/* Seconds for each that was expected, where `before` is what is thought until much is done. */
static double ratio(double taken, double done, double left, double before)
{
    const double some = few * (done + left), weight = some < few_seconds ? some : few_seconds;
    return done + weight > 0 ? (taken + before * weight) / (done + weight) : before;
}

double dq_pace_left(const dq_pace *p)
{
    const double all = ratio(sum(p->taken), sum(p->done), sum(p->left), 1);
    double left = 0;
    for (int k = 0; k < DQ_PACE_KINDS; k++)
        left += p->left[k] * ratio(p->taken[k], p->done[k], p->left[k], all);
    return left;
}
