/* calibrate_work: the arithmetic of a calibrated run, multiplications and additions, for progress and for what is reported.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_WORK_H
#define DQ_CALIBRATE_WORK_H

#include "calibrate/calibrate.h"

enum { DQ_CALIBRATE_F64_FLOP = 4 }; /* of f32, in time */

double dq_calibrate_work_layer(const dq_layer *l); /* of its weights, for one token */
double dq_calibrate_work_attention(const dq_model *m, int64_t rows); /* of a sequence, its maps */
double dq_calibrate_work_rows(const dq_weight *w, int64_t rows);     /* of a product */
double dq_calibrate_work_hessian(double rows, double n);             /* the lower triangle */
double dq_calibrate_work_cross(double rows, double m, double n);     /* cross.h */
double dq_calibrate_work_factor(double n);
double dq_calibrate_work_correction(double m,
                                    double n); /* with factors, as shrinkage.h judges it */
/* What is fed back and the signal of the loss; for new scales H and a rounding; of aligned weights the loss apart. */
double dq_calibrate_work_rounding(double rows, double n, dq_scale_mode mode,
                                  const dq_calibrate_rule *rule);
/* What codes that are found together take besides. */
double dq_calibrate_work_found(double rows, double n, dq_scale_mode mode,
                               const dq_calibrate_rule *rule);
/* Of a run with every projection coded, in f32 operations; and what a coded embedding adds that is the head. */
double dq_calibrate_work_all(const dq_model *m, const dq_calibrate_rule *rule,
                             const dq_calib_text *text);
double dq_calibrate_work_embedding(const dq_model *m, const dq_calibrate_rule *rule, double tokens);

#endif
