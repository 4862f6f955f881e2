/* fused_rig_rows: what a rig's scores and rows must be, see fused_rig.h: computed in f64 from the arrays that pages were made of,
 * without any code of the kernels.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/fused_rig.h"

#include "tests/simt/numerics.h"

#include <math.h>

/* --------------------------------------------------------------------------------------- reading */

/* Whether a row reads a token as a code. */
static bool is_coded(const rig_list *l, int side, int row, int t)
{
    const dq_page *p = &l->page[t / 64];
    const int n = rig_slots(l->unit.coded[row >= l->unit.split], t / 64);
    if (!p->side[side].codes || t % 64 < p->n_sinks) return false;
    return !p->side[side].plain || t % 64 < n;
}

/* What the code 0 stands for. */
static float middle_of(const rig_list *l, int side, int head, int t, int c)
{
    const rig_side *s = &l->side[side];
    const dq_page *p = &l->page[t / 64];
    const int set = rig_set_of(p, t % 64), g = s->form.has_lows ? c / s->form.group : 0;
    const float half = (float)(1 << (dq_page_bits(&s->form, p, side, head) - 1));
    const float(*run)[64] = s->scale[t / 64][head] + g;
    if (s->form.has_lows) return run[s->form.n_scales / 2][t % 64] + half * run[0][t % 64];
    return s->low[t / 64][head][set][c] + half * s->step[t / 64][head][set][c];
}

static float value_of(const rig *r, const rig_list *l, int side, int row, int head, int t, int c)
{
    const rig_side *s = &l->side[side];
    const dq_page *page = &l->page[t / 64];
    if (!is_coded(l, side, row, t)) return s->plain[t / 64][head][t % 64][c];
    const float q = (float)s->code[t / 64][head][t % 64][c];
    if (rig_has_sets(r, side)) {
        const float x = q - rig_dither(r, page, side, t % 64);
        return x * s->step[t / 64][head][rig_set_of(page, t % 64)][c] +
               middle_of(l, side, head, t, c);
    }
    const float x = q * s->scale[t / 64][head][c / s->form.group][t % 64];
    return s->form.has_lows ? x + middle_of(l, side, head, t, c) : x;
}

static float bf16(float x)
{
    return dq_float_of((uint32_t)numerics_f32_bf16(x) << 16);
}

static float score_of_codes(const rig_list *l, const float *q, int head, int t)
{
    const rig_side *s = &l->side[0];
    float total = 0;
    for (int g = 0; g < s->form.n_scales; g++) {
        const int begin = g * s->form.group, end = begin + s->form.group;
        const int stop = end < s->form.dim ? end : s->form.dim;
        float max = 0;
        int32_t sum = 0;
        for (int c = begin; c < stop; c++) max = fmaxf(max, fabsf(q[c]));
        const float scale = max / 127.0f;
        for (int c = begin; c < stop; c++)
            sum += (scale > 0 ? (int)rintf(q[c] / scale) : 0) * s->code[t / 64][head][t % 64][c];
        const float part = (float)sum * (scale * s->scale[t / 64][head][g][t % 64]);
        total = g ? total + part : part;
    }
    return total;
}

static float score_of_set(const rig_list *l, const float *q, int head, int t, int dim)
{
    const rig_side *s = &l->side[0];
    const float *step = s->step[t / 64][head][rig_set_of(&l->page[t / 64], t % 64)];
    float max = 0, base[16] = {};
    int32_t sum = 0;
    for (int c = 0; c < dim; c++) max = fmaxf(max, fabsf(q[c] * step[c]));
    for (int c = 0; c < dim; c++) base[c % 16] += q[c] * middle_of(l, 0, head, t, c);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) base[i] += base[i + half];
    for (int c = 0; c < dim && max > 0; c++)
        sum += (int)rintf(q[c] * step[c] * (127.0f / max)) * s->code[t / 64][head][t % 64][c];
    return (float)sum * (max / 127.0f) + base[0];
}

float rig_score(const rig *r, int unit, int i, int row, int t)
{
    const rig_list *l = &r->list[unit];
    const int dim = r->spec.dim, head = r->q_head[i].key;
    const float *q = r->q->host + ((l->unit.row + row) * r->units.n_q + r->q_head[i].head) * dim;
    if (r->spec.math == DQ_FUSED_BF16) {
        double sum = 0;
        for (int c = 0; c < dim; c++)
            sum += (double)bf16(q[c]) * (double)bf16(value_of(r, l, 0, row, head, t, c));
        return (float)sum * r->units.scale;
    }
    if (is_coded(l, 0, row, t) && r->spec.sets)
        return score_of_set(l, q, head, t, dim) * r->units.scale;
    if (is_coded(l, 0, row, t)) return score_of_codes(l, q, head, t) * r->units.scale;
    float sum = 0;
    for (int c = 0; c < dim; c++) sum = fmaf(q[c], l->side[0].plain[t / 64][head][t % 64][c], sum);
    return sum * r->units.scale;
}

static float row_absmax(const rig *r, int unit, int i, int row)
{
    float max = 0;
    for (int t = 0; t < r->list[unit].visible[row]; t++)
        max = fmaxf(max, fabsf(rig_score(r, unit, i, row, t)));
    return max;
}

float rig_absmax(const rig *r, int unit, int i)
{
    float max = 0;
    for (int row = 0; row < r->list[unit].unit.n; row++)
        max = fmaxf(max, row_absmax(r, unit, i, row));
    return max;
}

/* -------------------------------------------------------------------------------------- products */

/* Probabilities of a map, of a single one not yet divided. */
static void softmax_row(const rig *r, int unit, int i, int row, double *p, double *sum)
{
    const int n = r->list[unit].visible[row];
    float absmax = 0, top = -INFINITY, s[64 * MAX_PAGES];
    if (r->spec.round == DQ_ROUND_ROW) absmax = row_absmax(r, unit, i, row);
    if (r->spec.round == DQ_ROUND_GIVEN)
        absmax = r->absmax->host[unit * r->units.n_q + r->q_head[i].head];
    for (int t = 0; t < n; t++) {
        s[t] = rig_score(r, unit, i, row, t);
        if (r->spec.round != DQ_ROUND_NOT) {
            const float x = rintf(s[t] * (r->logits.qmax / absmax));
            s[t] = fminf(fmaxf(x, -r->logits.qmax), r->logits.qmax) * (absmax / r->logits.qmax);
        }
        top = fmaxf(top, s[t]);
    }
    *sum = 0;
    for (int t = 0; t < n; t++) *sum += p[t] = exp((double)s[t] - (double)top);
}

/* What rounding of D to 16 bits may cost channel c: half a step for every code. */
static double rounding_of(const rig *r, const rig_list *l, int head, int row, const double *d,
                          int n, int c)
{
    const rig_side *s = &l->side[1];
    double total = 0;
    for (int t = 0, end; rig_has_sets(r, 1) && t < n; t = end) {
        double peak = 0, codes = 0;
        const int set = rig_set_of(&l->page[t / 64], t % 64);
        for (end = t;
             end < n && end / 64 == t / 64 && rig_set_of(&l->page[t / 64], end % 64) == set;
             end++) {
            if (!is_coded(l, 1, row, end)) continue;
            peak = fmax(peak, fabs(d[end]));
            codes += abs(s->code[t / 64][head][end % 64][c]);
        }
        if (set >= 0) total += peak * codes / 65024.0 * (double)s->step[t / 64][head][set][c];
    }
    if (rig_has_sets(r, 1)) return 1.01 * total;
    for (int p = 0; p * 64 < n; p++) {
        double peak = 0, codes = 0;
        for (int t = 64 * p; t < n && t < 64 * p + 64; t++) {
            if (!is_coded(l, 1, row, t)) continue;
            peak = fmax(peak, fabs(d[t]) * (double)s->scale[p][head][c / s->form.group][t % 64]);
            codes += abs(s->code[p][head][t % 64][c]);
        }
        total += peak * codes / 65024.0;
    }
    return r->spec.math == DQ_FUSED_INT8 ? 1.01 * total : 0;
}

static void hadamard(double *y, int n, bool all_plus)
{
    for (int step = 1; step < n; step *= 2)
        for (int i = 0; i < n; i++) {
            if (i & step) continue;
            const double a = y[i], b = y[i + step];
            y[i] = a + b;
            y[i + step] = all_plus ? a + b : a - b;
        }
    for (int i = 0; i < n; i++) y[i] /= sqrt((double)n);
}

static void finish_row(const rig *r, double *y, double *bound)
{
    const int dim = r->spec.dim;
    for (int c = 0; r->spec.rotated && c < r->width; c += dim) {
        hadamard(y + c, dim, false);
        hadamard(bound + c, dim, true);
    }
    double squares = 0, moved = 0, by = r->finish.out_scale;
    for (int c = 0; c < r->width; c++) {
        squares += y[c] * y[c];
        moved += bound[c] * bound[c];
    }
    const double rms = sqrt(squares / r->width + (double)r->finish.norm_eps);
    if (r->finish.norm) by /= rms;
    for (int c = 0; c < r->width; c++) {
        const double gain = r->finish.gain ? r->gain->host[c] : 1.0;
        y[c] *= by * gain;
        bound[c] *= fabs(by * gain);
        if (r->finish.norm) bound[c] += fabs(y[c]) * sqrt(moved / r->width) / rms;
        bound[c] += 1e-6 * fabs(y[c]) + 1e-7;
    }
}

void rig_row(const rig *r, int unit, int out, int row, double *y, double *bound)
{
    const rig_list *l = &r->list[unit];
    const dq_o_head *o = &r->o_head[out];
    const int n = l->visible[row], bytes = r->spec.math == DQ_FUSED_INT8;
    double p[2][64 * MAX_PAGES] = {}, d[64 * MAX_PAGES], sum[2] = {1, 1},
                     lambda = (double)r->units.lambda_layer;
    if (r->units.lambda)
        lambda = (double)r->lambda->host[(l->unit.row + row) * r->units.n_out + o->out];
    for (int m = 0; m < r->spec.maps; m++) softmax_row(r, unit, o->q[m], row, p[m], &sum[m]);
    if (r->spec.maps == 1) lambda = 0;
    for (int t = 0; t < n; t++) d[t] = p[0][t] / sum[0] - lambda * p[1][t] / sum[1];
    for (int c = 0; c < r->width; c++) {
        const int head = o->v[c / r->spec.dim], k = c % r->spec.dim;
        y[c] = 0;
        bound[c] = bytes && n ? rounding_of(r, l, head, row, d, n, k) : 0;
        for (int t = 0; t < n; t++) {
            float v = value_of(r, l, 1, row, head, t, k);
            const bool set = r->spec.sets && is_coded(l, 1, row, t);
            if (!bytes) v = bf16(v);
            const double size = p[0][t] / sum[0] + fabs(lambda) * p[1][t] / sum[1];
            y[c] += d[t] * (double)v;
            bound[c] += (size * 1e-5 + (bytes ? 0 : fabs(d[t]) * 0x1p-8)) * fabs((double)v);
            if (set) bound[c] += size * 1e-5 * fabs((double)middle_of(l, 1, head, t, k));
        }
    }
    if (n) {
        finish_row(r, y, bound);
    }
}
