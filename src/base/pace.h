/* pace: how long work of several kinds still takes. Work is counted in the seconds that were expected of it. What a kind has
 * really taken so far says how its rest goes; of a kind that has hardly begun, what all kinds have taken.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PACE_H
#define DQ_PACE_H

enum { DQ_PACE_KINDS = 64 };

typedef struct dq_pace {
    double left[DQ_PACE_KINDS], done[DQ_PACE_KINDS]; /* expected seconds */
    double taken[DQ_PACE_KINDS];                     /* seconds of what is done */
    double last;                                     /* time of the last step */
} dq_pace;

/* Nothing is expected. now: seconds of dq_os_seconds. */
void dq_pace_begin(dq_pace *p, double now);
/* So much more is expected; less than 0: so much less. */
void dq_pace_expect(dq_pace *p, int kind, double seconds);
/* What was expected to take so long is done, and took the time since the last step. */
void dq_pace_step(dq_pace *p, int kind, double seconds, double now);
double dq_pace_taken(const dq_pace *p);
double dq_pace_left(const dq_pace *p); /* seconds that the rest will take */

#endif
