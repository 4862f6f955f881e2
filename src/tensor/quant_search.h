/* quant_search: the pieces of DQ_SEARCH, for groups that do not fit in memory at once (one scale for
 * a whole tensor). A first sweep ranks a grid of scales by their error in f32, a second one measures the
 * best of them beside the scales of the other modes, as dq_quant_error does, so that no other mode can win. The
 * caller adds up what each sweep says of the pieces.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_QUANT_SEARCH_H
#define DQ_QUANT_SEARCH_H

#include "tensor/quant.h"
#include "tensor/quant_loops.h"

enum { DQ_N_CANDIDATES = DQ_QUANT_LOOP_SCALES, DQ_N_FINALISTS = 5 };

typedef struct dq_quant_search {
    int bits, n_finalists;
    float candidate
        [DQ_N_CANDIDATES]; /* absmax / Qmax down to a fifth of it, with either sign, as stored;
                                         0: this one cannot be stored */
    float inverse[DQ_N_CANDIDATES];
    float finalist[DQ_N_FINALISTS]; /* as stored: absmax, signed, both as F16 too where F32 is
                                       stored, the best candidate */
} dq_quant_search;

/* The scales for a group whose value of largest magnitude (the first of equals), not 0, is `peak`. */
void dq_quant_search_begin(dq_quant_search *s, float peak, int bits, dq_dtype dtype);
/* First sweep: error[k] += the sum of (w - candidate[k] q)^2, in f32. */
void dq_quant_search_rank(const dq_quant_search *s, double error[DQ_N_CANDIDATES], const float *w,
                          int64_t n);
/* After it: the candidate of least error joins the finalists. */
void dq_quant_search_narrow(dq_quant_search *s, const double error[DQ_N_CANDIDATES]);
/* Second sweep: adds the noise of n values, as one dq_quant_error_add does, for each finalist. */
void dq_quant_search_measure(const dq_quant_search *s, double error[DQ_N_FINALISTS], const float *w,
                             int64_t n);
/* After it: the finalist of least error, the first of equals. */
float dq_quant_search_end(const dq_quant_search *s, const double error[DQ_N_FINALISTS]);
/* All of it, for a group in memory; a peak of 0 gives 0. */
float dq_quant_search_group(const float *w, int64_t n, int bits, float peak, dq_dtype dtype);

/* Of the candidates, and the scales of absmax and sign, the one of least error where value i counts weight[i] times. */
float dq_quant_search_weighted(const float *w, const double *weight, int64_t n, int bits,
                               dq_dtype dtype);

/* Two scales, before they are stored, for a group whose value of largest magnitude (the first of equals) is `peak`:
 * |peak| / Qmax, and the one by which the peak becomes the code -2^(b-1), whose sign is that of -peak. */
float dq_quant_absmax_scale(float peak, int bits);
float dq_quant_signed_scale(float peak, int bits);
/* The value of largest magnitude, the first of equals, sign kept. 0 for n = 0. */
float dq_quant_peak(const float *w, int64_t n);
/* Whether F16 holds a scale as 0 or as a normal number. */
bool dq_quant_scale_fits_f16(float scale);

#endif
