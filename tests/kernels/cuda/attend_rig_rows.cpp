/* attend_rig_rows: what a rig's scores and rows must be, see attend_rig.h: computed in f64 from the arrays that pages were made of,
 * without any code of the kernels.
 * SPDX-License-Identifier: MIT */
#include "tests/kernels/cuda/attend_rig.h"

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

/* As kernels/kv defines it, each operation rounded to f32. */
static float value_of(const rig *r, const rig_list *l, int side, int row, int head, int t, int c)
{
    const rig_side *s = &l->side[side];
    const dq_page *page = &l->page[t / 64];
    if (!is_coded(l, side, row, t)) return s->plain[t / 64][head][t % 64][c];
    const float q = (float)s->code[t / 64][head][t % 64][c],
                half = (float)(1 << (dq_page_bits(&s->form, page, side, head) - 1));
    if (rig_has_sets(r, side)) {
        const int set = rig_set_of(page, t % 64);
        const float u = q + half - rig_dither(r, page, side, t % 64);
        return u * s->step[t / 64][head][set][c] + s->low[t / 64][head][set][c];
    }
    const float(*run)[64] = s->scale[t / 64][head] + c / s->form.group;
    const float x = q * run[0][t % 64];
    if (!s->form.has_lows) return x;
    return x + (half * run[0][t % 64] + run[s->form.n_scales / 2][t % 64]);
}

static double f16(float x)
{
    return (double)numerics_f16_f32(numerics_f32_f16(x));
}

bool rig_is_exact(const rig *r, int unit, int row, int t)
{
    return r->spec.int8 && is_coded(&r->list[unit], 0, row, t);
}

/* As the CPU multiplies codes: each operation rounded to f32. */
static float code_score(const rig *r, const rig_list *l, const float *q, int head, int t)
{
    const rig_side *s = &l->side[0];
    float max = 0;
    for (int c = 0; c < r->spec.dim; c++) max = fmaxf(max, fabsf(q[c]));
    const float q_scale = max / 127.0f;
    int sum = 0;
    for (int c = 0; c < r->spec.dim && q_scale > 0; c++)
        sum += (int)rintf(q[c] / q_scale) * s->code[t / 64][head][t % 64][c];
    const float scale = q_scale * s->scale[t / 64][head][0][t % 64];
    return (float)sum * scale * r->units.scale;
}

double rig_score(const rig *r, int unit, int i, int row, int t)
{
    const rig_list *l = &r->list[unit];
    const int dim = r->spec.dim, head = r->q_head[i].key;
    const float *q = r->q->host + ((l->unit.row + row) * r->units.n_q + r->q_head[i].head) * dim;
    if (rig_is_exact(r, unit, row, t)) return (double)code_score(r, l, q, head, t);
    double sum = 0;
    for (int c = 0; c < dim; c++) sum += f16(q[c]) * f16(value_of(r, l, 0, row, head, t, c));
    return sum * (double)r->units.scale;
}

double rig_row_absmax(const rig *r, int unit, int i, int row)
{
    double max = 0;
    for (int t = r->list[unit].hidden[row]; t < r->list[unit].visible[row]; t++)
        max = fmax(max, fabs(rig_score(r, unit, i, row, t)));
    return max;
}

double rig_absmax(const rig *r, int unit, int i)
{
    double max = 0;
    for (int row = 0; row < r->list[unit].unit.n; row++)
        max = fmax(max, rig_row_absmax(r, unit, i, row));
    return max;
}

/* -------------------------------------------------------------------------------------- products */

/* Probabilities of a map, and how far each may be off: f16 of exps up to 2^8 too large, f32 of scores
 * and sums, and a step of the grid where a score lies between two numbers of it. */
static void softmax_row(const rig *r, int unit, int i, int row, double *p, double *off)
{
    const int first = r->list[unit].hidden[row], n = r->list[unit].visible[row];
    double absmax = 0, top = -INFINITY, s[64 * MAX_PAGES], far[64 * MAX_PAGES], sum = 0, moved = 0;
    if (r->spec.round == DQ_ROUND_ROW) absmax = rig_row_absmax(r, unit, i, row);
    if (r->spec.round == DQ_ROUND_GIVEN)
        absmax = (double)r->absmax->host[unit * r->units.n_q + r->q_head[i].head];
    const double qmax = (double)r->logits.qmax, step = absmax / qmax;
    for (int t = first; t < n; t++) {
        s[t] = rig_score(r, unit, i, row, t);
        far[t] = 1e-5;
        if (r->spec.round != DQ_ROUND_NOT && absmax > 0) {
            const double x = s[t] / step, k = rint(x);
            if (fabs(fabs(x - k) - 0.5) < 1e-3) far[t] = expm1(step);
            s[t] = fmin(fmax(k, -qmax), qmax) * step;
        }
        top = fmax(top, s[t]);
    }
    for (int t = first; t < n; t++) sum += p[t] = exp(s[t] - top);
    for (int t = first; t < n; t++) {
        p[t] /= sum;
        moved += p[t] * far[t];
    }
    for (int t = first; t < n; t++) off[t] = p[t] * (far[t] + moved + 0x1p-11) + 0x1p-24 / sum;
}

static void hadamard(double *y, int n)
{
    for (int step = 1; step < n; step *= 2)
        for (int i = 0; i < n; i++) {
            if (i & step) continue;
            const double a = y[i], b = y[i + step];
            y[i] = a + b;
            y[i + step] = a - b;
        }
    for (int i = 0; i < n; i++) y[i] /= sqrt((double)n);
}

static void finish_row(const rig *r, double *y, double *bound)
{
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

/* v[dim] of a token as the row reads it, turned back where it is rotated, in f16: one step of f16 less where the f32
 * sums of the device may round to another number. */
static void token_values(const rig *r, const rig_list *l, int row, int head, int t, double *v,
                         double *off)
{
    const int dim = r->spec.dim;
    for (int c = 0; c < dim; c++) v[c] = (double)value_of(r, l, 1, row, head, t, c);
    if (r->spec.rotated) hadamard(v, dim);
    for (int c = 0; c < dim; c++) {
        off[c] = r->spec.rotated ? fabs(v[c]) * 0x1p-10 + 1e-7 : 0;
        v[c] = f16((float)v[c]);
    }
}

void rig_row(const rig *r, int unit, int out, int row, double *y, double *bound)
{
    const rig_list *l = &r->list[unit];
    const dq_o_head *o = &r->o_head[out];
    const int n = l->visible[row];
    double p[2][64 * MAX_PAGES] = {}, off[2][64 * MAX_PAGES] = {},
                     lambda = (double)r->units.lambda_layer;
    if (r->units.lambda)
        lambda = (double)r->lambda->host[(l->unit.row + row) * r->units.n_out + o->out];
    for (int m = 0; m < r->spec.maps; m++) softmax_row(r, unit, o->q[m], row, p[m], off[m]);
    if (r->spec.maps == 1) lambda = 0;
    for (int c = 0; c < r->width; c++) y[c] = bound[c] = 0;
    for (int slab = 0; slab < r->spec.slabs; slab++)
        for (int t = l->hidden[row]; t < n; t++) {
            double v[MAX_DIM], v_off[MAX_DIM];
            token_values(r, l, row, o->v[slab], t, v, v_off);
            const double d = p[0][t] - lambda * p[1][t];
            for (int k = 0; k < r->spec.dim; k++) {
                const int c = slab * r->spec.dim + k;
                y[c] += d * v[k];
                bound[c] +=
                    (off[0][t] + fabs(lambda) * off[1][t]) * fabs(v[k]) + fabs(d) * v_off[k];
            }
        }
    if (n) {
        finish_row(r, y, bound);
    }
}
