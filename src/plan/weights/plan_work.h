/* plan_work: how far a whole plan is, over all of its stages, in multiplications and additions of f32; one of f64 counts as
 * DQ_CALIBRATE_F64_FLOP. What is left is an expectation: nobody knows before how many whole models a search takes.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_PLAN_WORK_H
#define DQ_PLAN_WORK_H

#include "base/work.h"

typedef struct dq_plan_work {
    void (*step)(void *arg, double done, double total, const char *what); /* NULL: nobody is told */
    void *arg;
    double done, total; /* of this run */
} dq_plan_work;

/* So much was done. */
void dq_plan_work_add(dq_plan_work *w, double flop, const char *what);
/* So much is expected from here on. */
void dq_plan_work_expect(dq_plan_work *w, double flop);

/* Takes the progress of a quantization, that of dq_quantize_progress, as a share of what is expected of it. */
typedef struct dq_plan_work_share {
    dq_plan_work *work;
    double flop, told; /* of all of it; of what is done */
} dq_plan_work_share;
void dq_plan_work_step(void *share, const dq_pace *pace, const char *what);

#endif
