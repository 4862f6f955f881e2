/* quant_search: see quant_search.h. Candidates lie denser near absmax, and lanes of one loop serve them all: the
 * squared distance of w / scale to its code, times scale^2 at the end. Finalists are encoded and measured in full.
 * SPDX-License-Identifier: MIT */
#include "tensor/quant_search.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 256 }; /* values at once: a multiple of the eight sums of dq_quant_error_add */

bool dq_quant_scale_fits_f16(float scale)
{
    unsigned mag = dq_f16_from_f32(scale) & 0x7fffu;
    return scale == 0 || (mag >= 0x0400u && mag < 0x7c00u);
}

/* A scale as stored; 0 where it would not be a normal number. */
static float normal_scale(float scale, dq_dtype dtype)
{
    if (dtype == DQ_F16)
        scale = dq_quant_scale_fits_f16(scale) ? dq_quant_stored_scale(scale, DQ_F16) : 0;
    return scale >= FLT_MIN ? scale : 0;
}

/* Pairs of either sign: close together near absmax, where many codes want to be, far apart below. */
static void list_candidates(dq_quant_search *s, float absmax, dq_dtype dtype)
{
    const int pairs = DQ_N_CANDIDATES / 2;
    const float last = (float)((pairs - 1) * (pairs - 1));
    for (int k = 0; k < pairs; k++) {
        float share = 1.0f - 0.8f * (float)(k * k) / last;
        float scale = normal_scale(absmax * share / (float)dq_quant_max_code(s->bits), dtype);
        float inverse = scale != 0 ? 1.0f / scale : 0;
        s->candidate[2 * k] = scale;
        s->candidate[2 * k + 1] = -scale;
        s->inverse[2 * k] = inverse;
        s->inverse[2 * k + 1] = -inverse;
    }
}

void dq_quant_search_begin(dq_quant_search *s, float peak, int bits, dq_dtype dtype)
{
    const float plain[] = {dq_quant_absmax_scale(peak, bits), dq_quant_signed_scale(peak, bits)};
    s->bits = bits;
    s->n_finalists = 0;
    for (int i = 0; i < 2; i++)
        s->finalist[s->n_finalists++] = dq_quant_stored_scale(plain[i], dtype);
    for (int i = 0; i < 2 && dtype != DQ_F16; i++) {
        if (dq_quant_scale_fits_f16(plain[i]))
            s->finalist[s->n_finalists++] = dq_quant_stored_scale(plain[i], DQ_F16);
    }
    list_candidates(s, fabsf(peak), dtype);
}

void dq_quant_search_rank(const dq_quant_search *s, double error[DQ_N_CANDIDATES], const float *w,
                          int64_t n)
{
    float high = (float)dq_quant_max_code(s->bits);
    for (int64_t i = 0; i < n; i += BLOCK) {
        float misses[DQ_N_CANDIDATES] = {0};
        dq_quant_loops()->misses(misses, s->inverse, w + i, n - i < BLOCK ? n - i : BLOCK,
                                 -high - 1, high);
        for (int k = 0; k < DQ_N_CANDIDATES; k++)
            error[k] += (double)s->candidate[k] * (double)s->candidate[k] * (double)misses[k];
    }
}

void dq_quant_search_narrow(dq_quant_search *s, const double error[DQ_N_CANDIDATES])
{
    int best = -1;
    for (int k = 0; k < DQ_N_CANDIDATES; k++) {
        if (s->candidate[k] != 0 && (best < 0 || error[k] < error[best])) best = k;
    }
    if (best >= 0) s->finalist[s->n_finalists++] = s->candidate[best];
}

void dq_quant_search_measure(const dq_quant_search *s, double error[DQ_N_FINALISTS], const float *w,
                             int64_t n)
{
    int8_t q[BLOCK];
    float got[BLOCK];
    for (int f = 0; f < s->n_finalists; f++) {
        double sums[24] = {0};
        for (int64_t i = 0; i < n; i += BLOCK) {
            int64_t m = n - i < BLOCK ? n - i : BLOCK;
            dq_quant_encode_back(q, got, w + i, m, s->bits, s->finalist[f], DQ_SEARCH);
            dq_quant_loops()->error(sums, w + i, got, m);
        }
        for (int j = 0; j < 8; j++) error[f] += sums[8 + j];
    }
}

float dq_quant_search_end(const dq_quant_search *s, const double error[DQ_N_FINALISTS])
{
    int best = 0;
    for (int f = 1; f < s->n_finalists; f++) {
        if (error[f] < error[best]) best = f;
    }
    return s->finalist[best];
}

float dq_quant_search_group(const float *w, int64_t n, int bits, float peak, dq_dtype dtype)
{
    dq_quant_search s;
    double rank[DQ_N_CANDIDATES] = {0}, error[DQ_N_FINALISTS] = {0};
    if (peak == 0) return 0;
    dq_quant_search_begin(&s, peak, bits, dtype);
    dq_quant_search_rank(&s, rank, w, n);
    dq_quant_search_narrow(&s, rank);
    dq_quant_search_measure(&s, error, w, n);
    return dq_quant_search_end(&s, error);
}

float dq_quant_search_weighted(const float *w, const double *weight, int64_t n, int bits,
                               dq_dtype dtype)
{
    dq_quant_search s;
    double error[DQ_N_CANDIDATES + 2] = {0}, least = (double)INFINITY;
    float scale[DQ_N_CANDIDATES + 2], best = 0;
    const float peak = dq_quant_peak(w, n);
    if (peak == 0) return 0;
    dq_quant_search_begin(&s, peak, bits, dtype);
    memcpy(scale, s.finalist, 2 * sizeof *scale); /* absmax and signed, as stored */
    memcpy(scale + 2, s.candidate, sizeof s.candidate);
    for (int k = 0; k < DQ_N_CANDIDATES + 2; k++) {
        int8_t q[BLOCK];
        float got[BLOCK];
        if (scale[k] == 0) continue;
        for (int64_t at = 0; at < n; at += BLOCK) {
            const int64_t m = n - at < BLOCK ? n - at : BLOCK;
            dq_quant_encode_back(q, got, w + at, m, bits, scale[k], DQ_SEARCH);
            for (int64_t i = 0; i < m; i++) {
                const double d = (double)w[at + i] - (double)got[i];
                error[k] += weight[at + i] * d * d;
            }
        }
        if (error[k] < least) best = scale[k];
        if (error[k] < least) least = error[k];
    }
    return best;
}
