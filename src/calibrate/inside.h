/* What the files of src/calibrate share.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CALIBRATE_INSIDE_H
#define DQ_CALIBRATE_INSIDE_H

#include "calibrate/calibrate.h"
#include "tokenizer/tokenizer.h"

#include <stdint.h>

static inline int64_t dq_least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* NULL: the model has none. */
dq_status dq_calib_tokenizer(dq_tokenizer **out, const dq_model *m, dq_err *err);
/* An empty text with the defaults of dq_calib_text_read. */
dq_status dq_calib_text_begin(dq_calib_text *out, const dq_model *m, int64_t tokens, int64_t ctx,
                              dq_err *err);

/* The f64 product under factorization and rounding. Every element is its own chain in ascending k,
 * so that bits are equal on every machine. */

enum { DQ_F64_TILE = 64 }; /* columns of c, and the step of its rows */

/* c[m, 64] += a^T b for a[k, m] (row stride lda) and b[k, 64] (row stride 64); c has row stride 64.
 * m is a multiple of 4. b and c are 64-byte aligned. */
void dq_f64_tile_add(double *c, const double *a, int64_t lda, const double *b, int64_t m,
                     int64_t k);
/* dst[cols, 64] = src[rows, cols]^T (row stride ld), rows <= 64; columns rows .. 63 of dst become
 * 0. */
void dq_f64_tile_transpose(double *dst, const double *src, int64_t ld, int64_t rows, int64_t cols);

void dq_tile_sums_transpose(float *dst, dq_mat x);

/* Factors the same means with another damping. */
dq_status dq_hessian_refactor(dq_hessian *h, double share, const char *what, dq_err *err);

int64_t dq_cross_bytes(int64_t max_m, int64_t max_n, int64_t max_rows);

/* By all ranks, each solving for some rows. */
dq_status dq_correction_solve_in_step(dq_cross *x, const dq_hessian *h, dq_err *err);

enum { DQ_SHRINKAGE_RIDGES = 7 }; /* that are tried at most */

int64_t dq_shrinkage_bytes(int64_t max_m, int64_t max_n, int64_t max_rows);

/* Codes of w[rows, cols], all finite, for the factored Hessian of its inputs. `spec` is taken as it
 * is: width 2..8, group, mode, type of scales (which must hold them). Grids are those of the mode.
 * For modes with tries each row is rounded DQ_GPTQ_TRIES times and keeps what loses least: with the
 * scales of least squared error, these times the mode's tries, and with those of least squared
 * error weighted by D, what a column's own rounding costs. Then scales are found anew from the
 * codes (calibrate.h) and rows rounded by them, `refits` times; again a row keeps what loses less.
 * Where codes are found together, it is strips of rows that keep it. loss[rows], of each row, may
 * be NULL. The result depends neither on the number of threads, nor on how rows are divided:
 * between strips, if codes are found together. An input that is always 0 (h->dead) sets no scale:
 * its weights are limited to the range of the others. Columns zero[cols] (NULL: none) make up for
 * no error, so that a pruned channel stays pruned. DQ_RESOURCE; DQ_STOPPED between strips of
 * rows. */
enum { DQ_GPTQ_TRIES = 5 };

double dq_value_maps_flop(const dq_model *m, int64_t rows);

int64_t dq_reference_bytes(const dq_model *m, int64_t max_rows);
/* h of x by the feed-forward part, or that added to x as well; gate and up are scratch of at most
 * DQ_FFN_ROWS rows. */
void dq_reference_feed(const dq_layer_steps *s, dq_mat gate, dq_mat up);
void dq_reference_feed_forward(const dq_layer_steps *s, dq_mat gate, dq_mat up);

/* Rows corrected and rounded at a time; a matrix with one scale is rounded whole. */
enum { DQ_CALIBRATE_BAND_ROWS = 4096 };

typedef struct dq_calibrate_job {
    dq_calibrate *c;
    const dq_quantizer *q;
    dq_quantize_feed *feed; /* NULL: nothing is run */
    const dq_model *m;
    dq_backend *b;
    dq_activations act;
    dq_hessian *h;
    dq_reference ref;    /* of a rule that aligns */
    dq_value_maps *maps; /* likewise */
    dq_calib_pass pass;
    dq_layer layer; /* the current one, with rounded weights */
    dq_coded coded[7];
    float *dense[8]; /* values of the layer's matrices that are stored in another type */
    int n_coded, n_dense, number; /* of the layer */
    double at_once;               /* rows of the round at hand, in units of this rank's own */
    int n_layers; /* after them nothing is left to round but the head; 0: no layer is */
    bool embed;   /* a tied embedding is left to round */
    bool head;    /* a head of its own is left to round */
} dq_calibrate_job;

bool dq_calibrate_job_is_left(const dq_calibrate_job *j, const dq_weight *const *w, int n);

/* Nominal rates. */
extern const dq_calibrate_rates dq_calibrate_pace_usual;
/* Adds the rest of a job, for dq_quantize_method. */
void dq_calibrate_pace_expect(const dq_calibrate_job *j, dq_pace *p);
double dq_calibrate_pace_rounding(const dq_calibrate *c, double rows, double cols,
                                  const dq_quant_spec *spec);

double dq_calibrate_work_attention(const dq_model *m, int64_t rows); /* of a sequence, its maps */
double dq_calibrate_work_rows(const dq_weight *w, int64_t rows);     /* of a product */
double dq_calibrate_work_cross(double rows, double m, double n);     /* calibrate.h */
double dq_calibrate_work_correction(double m,
                                    double n); /* with factors, as calibrate.h judges it */

#endif
