/* oracle: see oracle.h. Attention token by token and row by row in f64, from the definition in docs/math/model.md: no pages,
 * no tiles, no sharing. Slow on purpose; the kernels are compared with it.
 * SPDX-License-Identifier: MIT */
#include "tests/rigs/oracle.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t row_floats(const dq_head_order *map)
{
    return (size_t)map->n_kv * (size_t)map->head_dim;
}

dq_oracle *dq_oracle_new(const dq_head_order *map)
{
    dq_oracle *o = calloc(1, sizeof *o);
    o->map = map;
    o->spec = dq_kv_plain;
    for (int s = 0; s < DQ_ORACLE_SEQ; s++) {
        for (int g = 0; g < map->n_groups; g++) {
            dq_oracle_list *l = &o->list[s][g];
            float **all[] = {&l->k, &l->v, &l->k_coded, &l->v_coded};
            for (int i = 0; i < 4; i++)
                *all[i] = malloc(DQ_ORACLE_TOKENS * row_floats(map) * sizeof(float));
        }
    }
    return o;
}

void dq_oracle_free(dq_oracle *o)
{
    for (int s = 0; s < DQ_ORACLE_SEQ; s++) {
        for (int g = 0; g < o->map->n_groups; g++) {
            free(o->list[s][g].k);
            free(o->list[s][g].v);
            free(o->list[s][g].k_coded);
            free(o->list[s][g].v_coded);
        }
    }
    free(o);
}

void dq_oracle_codes(float *out, const float *x, int n, int bits, int group)
{
    int8_t q[256];
    for (int c = 0; c < n; c++) out[c] = x[c];
    if (bits == 16) return;
    if (bits > 4) group = n;
    for (int c = 0; c < n; c += group) {
        const int run = n - c < group ? n - c : group;
        const float exact = dq_quant_group_scale(x + c, run, bits, DQ_ABSMAX, DQ_F32);
        float scale = dq_quant_stored_scale(exact, DQ_F16);
        if (exact != 0 && (scale < 0x1p-14f || isinf(scale))) scale = exact;
        dq_quant_encode(q, x + c, run, bits, scale, DQ_ABSMAX);
        for (int i = 0; i < run; i++) out[c + i] = (float)q[i] * scale;
    }
}

static float in_f16(float x)
{
    return dq_f32_from_f16(dq_f16_from_f32(x));
}

/* n values, each so many after the one before, by the rule of codes with a low in kv.h. pos: they are dithered. */
static void code_values(float *out, const float *x, int64_t n, int64_t apart, int bits,
                        const int32_t *pos)
{
    const bool dithers = pos != NULL;
    float least = x[0], largest = least;
    for (int64_t i = 0; i < n; i++) {
        least = fminf(least, x[i * apart]);
        largest = fmaxf(largest, x[i * apart]);
    }
    const int top = (1 << bits) - 1;
    const float exact = (largest - least) / (float)(dithers ? top - 1 : top), half = in_f16(exact);
    const float step = exact != 0 && (half < 0x1p-14f || isinf(half)) ? exact : half;
    const float from = dithers ? least - step / 2 : least, room = dithers ? 0.0f : 0.5f;
    float low = in_f16(from);
    if (step == 0 ? low != least
                  : low - least > room * step || largest - low > ((float)top + room) * step)
        low = from;
    for (int64_t i = 0; i < n; i++) {
        const float d = dithers ? dq_kv_dither(pos[i]) : 0.0f;
        float u = step == 0 ? 0.0f : rintf((x[i * apart] - low) / step + d);
        u = fminf(fmaxf(u, 0), (float)top);
        out[i * apart] = (u - d) * step + low;
    }
}

/* Of channel `at`; the cache has one layer. */
static int bits_of(const dq_oracle *o, int side, int64_t at)
{
    dq_kv_widths w;
    dq_err err = {0};
    if (!o->spec.widths[0]) return side ? o->spec.v_bits : o->spec.k_bits;
    if (dq_kv_widths_parse(&w, o->spec.widths, &err) != DQ_OK) abort();
    if (dq_kv_widths_fit(&w, 1, &err) != DQ_OK) abort();
    bool second = false; /* KV heads that only a subtracted map reads */
    for (int i = 0; i < o->map->n_out && o->map->n_maps == 2; i++)
        second = second || o->map->key[o->map->head[i].q[1]] == at / o->map->head_dim;
    return w.run[side][0].bits[second];
}

/* Per-channel codes of all that a row at t reads so and that has none: a set is what shares a page of positions and one of slots. */
static void code_due(const dq_oracle *o, dq_oracle_list *l, int32_t t)
{
    const int64_t width = (int64_t)row_floats(o->map);
    for (int64_t i = 0, end; dq_kv_by_page(&o->spec) && i < l->n; i = end) {
        end = i + 1;
        if (l->made[i] || l->pos[i] < o->spec.sink || l->pos[i] >= dq_kv_coded_end(&o->spec, t))
            continue;
        while (end < l->n && l->pos[end] / 64 == l->pos[i] / 64 && end / 64 == i / 64) end++;
        for (int64_t c = 0; c < width; c++) {
            const int k_bits = bits_of(o, 0, c), v_bits = bits_of(o, 1, c);
            const int64_t at = i * width + c;
            if (k_bits < 16) code_values(l->k_coded + at, l->k + at, end - i, width, k_bits, NULL);
            if (v_bits < 16 && dq_kv_by_channel(&o->spec, true))
                code_values(l->v_coded + at, l->v + at, end - i, width, v_bits,
                            dq_kv_dithers(&o->spec) ? l->pos + i : NULL);
        }
        for (int64_t k = i; k < end; k++) l->made[k] = true;
    }
}

static void code_token(const dq_oracle *o, dq_oracle_list *l, int64_t i)
{
    const int d = o->map->head_dim;
    const bool pages = dq_kv_by_page(&o->spec);
    l->made[i] = false;
    for (int64_t h = i * o->map->n_kv; pages && h < (i + 1) * o->map->n_kv; h++) {
        memcpy(l->k_coded + h * d, l->k + h * d, (size_t)d * sizeof(float)); /* where 16 bits */
        memcpy(l->v_coded + h * d, l->v + h * d, (size_t)d * sizeof(float));
    }
    for (int64_t c = 0; pages && !dq_kv_by_channel(&o->spec, true) && c < o->map->n_kv * d;) {
        const int64_t at = i * o->map->n_kv * d + c, left = d - c % d, run = 2 * o->spec.group;
        const int64_t n = left < run ? left : run;
        const int bits = bits_of(o, 1, c);
        if (bits < 16) code_values(l->v_coded + at, l->v + at, n, 1, bits, NULL);
        c += n;
    }
    for (int64_t h = i * o->map->n_kv; !pages && h < (i + 1) * o->map->n_kv; h++) {
        dq_oracle_codes(l->k_coded + h * d, l->k + h * d, d, o->spec.k_bits, o->spec.group);
        dq_oracle_codes(l->v_coded + h * d, l->v + h * d, d, o->spec.v_bits, o->spec.group);
    }
}

/* Whether a query at t reads the i-th token as codes. */
static bool coded(const dq_oracle *o, const dq_oracle_list *l, int64_t i, int32_t t)
{
    return l->pos[i] >= o->spec.sink && l->pos[i] < dq_kv_coded_end(&o->spec, t);
}

const float *dq_oracle_key(const dq_oracle *o, const dq_oracle_list *l, int64_t i, int head,
                           int32_t t)
{
    return (coded(o, l, i, t) ? l->k_coded : l->k) + (i * o->map->n_kv + head) * o->map->head_dim;
}

const float *dq_oracle_value(const dq_oracle *o, const dq_oracle_list *l, int64_t i, int head,
                             int32_t t)
{
    return (coded(o, l, i, t) ? l->v_coded : l->v) + (i * o->map->n_kv + head) * o->map->head_dim;
}

static void round_dense(float *to, const float *from, size_t n, dq_kv_dense dense)
{
    for (size_t i = 0; i < n; i++)
        to[i] = dense == DQ_KV_F16    ? in_f16(from[i])
                : dense == DQ_KV_BF16 ? dq_f32_from_bf16(dq_bf16_from_f32(from[i]))
                                      : from[i];
}

void dq_oracle_append(dq_oracle *o, const dq_batch *batch, const float *k, const float *v)
{
    const size_t w = row_floats(o->map);
    for (int i = 0; i < batch->n_seq; i++) {
        for (int g = 0; g < o->map->n_groups; g++) {
            dq_oracle_list *l = &o->list[batch->seq[i]][g];
            for (int64_t row = batch->cu_rows[i]; row < batch->cu_rows[i + 1]; row++) {
                l->pos[l->n] = batch->pos[row];
                round_dense(l->k + (size_t)l->n * w, k + (size_t)row * w, w, o->spec.dense);
                round_dense(l->v + (size_t)l->n * w, v + (size_t)row * w, w, o->spec.dense);
                code_token(o, l, l->n);
                l->n++;
            }
            /* the row after it finds all there, but one that would make a page full */
            if (l->n) code_due(o, l, l->pos[l->n - 1] + (o->spec.recent > 0));
        }
    }
}

static void copy_token(dq_oracle_list *to, int64_t at, const dq_oracle_list *from, int64_t i,
                       size_t w)
{
    to->pos[at] = from->pos[i];
    to->made[at] = from->made[i];
    memmove(to->k_coded + (size_t)at * w, from->k_coded + (size_t)i * w, w * sizeof(float));
    memmove(to->v_coded + (size_t)at * w, from->v_coded + (size_t)i * w, w * sizeof(float));
    memmove(to->k + (size_t)at * w, from->k + (size_t)i * w, w * sizeof(float));
    memmove(to->v + (size_t)at * w, from->v + (size_t)i * w, w * sizeof(float));
}

void dq_oracle_fork(dq_oracle *o, int to, int from)
{
    for (int g = 0; g < o->map->n_groups; g++) {
        o->list[to][g].n = o->list[from][g].n;
        for (int64_t i = 0; i < o->list[from][g].n; i++) {
            copy_token(&o->list[to][g], i, &o->list[from][g], i, row_floats(o->map));
        }
    }
}

void dq_oracle_rewind(dq_oracle *o, int seq, int32_t length)
{
    for (int g = 0; g < o->map->n_groups; g++) {
        dq_oracle_list *l = &o->list[seq][g];
        while (l->n > 0 && l->pos[l->n - 1] >= length) l->n--;
        for (int64_t i = 0; i < l->n; i++) l->made[i] = l->made[i] && l->pos[i] / 64 < length / 64;
    }
}

void dq_oracle_keep(dq_oracle *o, int seq, int group, const int32_t *kept, int64_t n)
{
    dq_oracle_list *l = &o->list[seq][group];
    for (int64_t i = 0; i < n; i++) copy_token(l, i, l, kept[i], row_floats(o->map));
    l->n = n;
}

int dq_oracle_seq_of(const dq_batch *batch, int64_t row)
{
    int i = 0;
    while (batch->cu_rows[i + 1] <= row) i++;
    return i;
}

static const dq_oracle_list *list_of(const dq_oracle *o, const dq_oracle_args *a, int64_t row,
                                     int head)
{
    return &o->list[a->batch->seq[dq_oracle_seq_of(a->batch, row)]]
                   [o->map->group[o->map->key[head]]];
}

double dq_oracle_logit(const dq_oracle *o, const dq_oracle_args *a, int64_t row, int head,
                       int64_t i)
{
    const int d = o->map->head_dim;
    const float *q = a->q + (row * o->map->n_q + head) * d;
    const float *k =
        dq_oracle_key(o, list_of(o, a, row, head), i, o->map->key[head], a->batch->pos[row]);
    double dot = 0;
    for (int c = 0; c < d; c++) dot += (double)q[c] * (double)k[c];
    if (a->logit.bits < 16) return (double)((float)dot * o->map->scale);
    return dot * (double)o->map->scale;
}

enum { TILES = 32 }; /* positions stay below TILES * 64 */

/* Entries with the same number share one maximum. */
static int64_t absmax_group(const dq_oracle *o, const dq_oracle_args *a, int64_t row, int head,
                            int32_t key)
{
    const int seq = dq_oracle_seq_of(a->batch, row);
    const int64_t n_q = o->map->n_q;
    switch (a->logit.granularity) {
    case DQ_GRANULARITY_TENSOR: return seq;
    case DQ_GRANULARITY_HEAD: return seq * n_q + head;
    case DQ_GRANULARITY_ROW: return row * n_q + head;
    case DQ_GRANULARITY_TILE:
        return ((seq * n_q + head) * TILES + a->batch->pos[row] / 64) * TILES + key / 64;
    }
    return 0;
}

static bool sees(const dq_oracle_args *a, int64_t row, int32_t key)
{
    const int32_t t = a->batch->pos[row];
    return key <= t && (a->attn->window == 0 || key > t - a->attn->window);
}

/* Largest |S| of every group, by its number. */
static float *absmax_table(const dq_oracle *o, const dq_oracle_args *a)
{
    const int64_t n = (a->batch->n_rows + a->batch->n_seq) * o->map->n_q * TILES * TILES;
    float *max = calloc((size_t)n, sizeof *max);
    for (int64_t t = 0; t < a->batch->n_rows; t++) {
        for (int h = 0; h < o->map->n_q; h++) {
            const dq_oracle_list *l = list_of(o, a, t, h);
            for (int64_t i = 0; i < l->n; i++) {
                if (!sees(a, t, l->pos[i])) continue;
                float s = fabsf((float)dq_oracle_logit(o, a, t, h, i));
                float *into = &max[absmax_group(o, a, t, h, l->pos[i])];
                *into = s > *into ? s : *into;
            }
        }
    }
    return max;
}

static double rounded(double s, float absmax, int bits)
{
    const float qmax = (float)((1 << (bits - 1)) - 1);
    if (absmax == 0) return 0;
    const float r = qmax / absmax, delta = absmax / qmax;
    float c = rintf((float)s * r);
    c = c > qmax ? qmax : c < -qmax ? -qmax : c;
    return (double)(c * delta);
}

/* p[list count] = softmax of one row of one query head, 0 where the row sees nothing. */
static void softmax(double *p, const dq_oracle *o, const dq_oracle_args *a, const float *absmax,
                    int64_t row, int head)
{
    const dq_oracle_list *l = list_of(o, a, row, head);
    double max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < l->n; i++) {
        p[i] = -INFINITY;
        if (!sees(a, row, l->pos[i])) continue;
        p[i] = dq_oracle_logit(o, a, row, head, i);
        if (absmax) {
            p[i] = rounded(p[i], absmax[absmax_group(o, a, row, head, l->pos[i])], a->logit.bits);
        }
        max = p[i] > max ? p[i] : max;
    }
    for (int64_t i = 0; i < l->n; i++) {
        p[i] = exp(p[i] - max);
        sum += p[i];
    }
    for (int64_t i = 0; i < l->n; i++) p[i] /= sum;
}

static void count_columns(const dq_oracle *o, const dq_oracle_args *a, int64_t row, int out,
                          const double *p1, const double *p2, double lambda)
{
    const dq_head_order *map = o->map;
    const dq_columns *c = a->columns;
    const int seq = dq_oracle_seq_of(a->batch, row), group = map->group[map->head[out].v[0]];
    const dq_oracle_list *l = &o->list[a->batch->seq[seq]][group];
    if (c->last_rows && row < a->batch->cu_rows[seq + 1] - c->last_rows) return;
    const int64_t at = c->offset[seq * map->n_groups + group];
    int64_t n = 0;
    while (n < l->n && l->pos[n] <= a->batch->pos[row]) n++;
    for (int64_t i = 0; i < n; i++) {
        if (c->mass[0]) c->mass[0][at + i] += p1[i];
        if (c->mass[1] && map->n_maps == 2) c->mass[1][at + i] += p2[i];
        if (c->lambda_mass && map->n_maps == 2) c->lambda_mass[at + i] += lambda * p2[i];
        if (c->diff) c->diff[at + i] += fabs(p1[i] - lambda * p2[i]);
    }
}

/* Every run of d values times the normalized Hadamard matrix, entry by entry. */
static void rotate_back(double *y, int width, int d)
{
    double x[2 * 256];
    memcpy(x, y, (size_t)width * sizeof *x);
    for (int c = 0; c < width; c++) {
        y[c] = 0;
        for (int k = 0; k < d; k++) {
            int common = (c % d) & k, ones = 0;
            for (; common; common &= common - 1) ones++;
            y[c] += (ones % 2 ? -x[c / d * d + k] : x[c / d * d + k]) / sqrt(d);
        }
    }
}

/* The maps of one row of one output head; p2 is left alone where there is one. Returns lambda. */
static double both_maps(double *p1, double *p2, const dq_oracle *o, const dq_oracle_args *a,
                        const float *absmax, int64_t row, int out)
{
    const dq_head *h = &o->map->head[out];
    softmax(p1, o, a, absmax, row, h->q[0]);
    if (o->map->n_maps == 1) return 0;
    softmax(p2, o, a, absmax, row, h->q[1]);
    return (double)(a->attn->lambda_kind == DQ_LAMBDA_TOKEN ? a->lambda[row * o->map->n_out + out]
                                                            : a->attn->lambda);
}

/* One row of one output head. */
static void attend_row(double *y, const dq_oracle *o, const dq_oracle_args *a, const float *absmax,
                       int64_t row, int out)
{
    const dq_head_order *map = o->map;
    const dq_head *h = &map->head[out];
    const int d = map->head_dim, width = map->n_slabs * d;
    const dq_oracle_list *l = list_of(o, a, row, h->q[0]);
    double p1[DQ_ORACLE_TOKENS], p2[DQ_ORACLE_TOKENS] = {0}, squares = 0;
    const double lambda = both_maps(p1, p2, o, a, absmax, row, out);
    if (a->columns) count_columns(o, a, row, out, p1, p2, lambda);
    for (int c = 0; c < width; c++) y[c] = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const float *v = coded(o, l, i, a->batch->pos[row]) ? l->v_coded : l->v;
        const double weight = p1[i] - lambda * p2[i];
        for (int e = 0; e < map->n_slabs; e++) {
            for (int c = 0; c < d; c++)
                y[e * d + c] += weight * (double)v[(i * map->n_kv + h->v[e]) * d + c];
        }
    }
    for (int c = 0; c < width; c++) squares += y[c] * y[c];
    if (o->spec.rotate_v) rotate_back(y, width, d);
    for (int c = 0; c < width; c++) {
        if (a->attn->head_norm) y[c] /= sqrt(squares / width + (double)a->attn->norm_eps);
        if (a->attn->head_norm && a->attn->gain) y[c] *= (double)a->attn->gain[c];
        y[c] *= (double)a->attn->out_scale;
    }
}

void dq_oracle_attend(double *out, const dq_oracle *o, const dq_oracle_args *a)
{
    const int64_t width = (int64_t)o->map->n_slabs * o->map->head_dim;
    float *absmax = a->logit.bits < 16 ? absmax_table(o, a) : NULL;
    for (int64_t row = 0; row < a->batch->n_rows; row++) {
        for (int h = 0; h < o->map->n_out; h++) {
            attend_row(out + (row * o->map->n_out + h) * width, o, a, absmax, row, h);
        }
    }
    free(absmax);
}

/* One norm of one row. */
static void add_shares(dq_span_share *to, int norm, const double *d, const uint8_t *label,
                       const dq_oracle_list *l, int64_t n)
{
    double part[DQ_ORACLE_TOKENS], whole = 0;
    for (int64_t i = 0; i < n; i++) {
        part[i] = norm == DQ_SPAN_SUM        ? d[i]
                  : norm == DQ_SPAN_POSITIVE ? fmax(d[i], 0)
                                             : fabs(d[i]);
        whole += part[i];
    }
    if (norm == DQ_SPAN_SUM ? fabs(whole) < 1e-3 : whole == 0) {
        to->skipped[norm]++;
        return;
    }
    for (int64_t i = 0; i < n; i++) to->share[norm][label[l->pos[i]]] += part[i] / whole;
}

void dq_oracle_spans(const dq_oracle *o, const dq_oracle_args *a, const dq_attention_spans *spans)
{
    float *absmax = a->logit.bits < 16 ? absmax_table(o, a) : NULL;
    for (int64_t row = 0; row < a->batch->n_rows; row++) {
        const int seq = dq_oracle_seq_of(a->batch, row);
        if (a->batch->cu_rows[seq + 1] - row > spans->last_rows[seq]) continue;
        for (int out = 0; out < o->map->n_out; out++) {
            double p1[DQ_ORACLE_TOKENS], p2[DQ_ORACLE_TOKENS] = {0};
            const double lambda = both_maps(p1, p2, o, a, absmax, row, out);
            const dq_oracle_list *l = list_of(o, a, row, o->map->head[out].q[0]);
            dq_span_share *to = &spans->sums[seq * o->map->n_out + out];
            int64_t n = 0;
            for (; n < l->n && l->pos[n] <= a->batch->pos[row]; n++) p1[n] -= lambda * p2[n];
            for (int k = 0; k < DQ_N_SPAN_NORMS; k++)
                add_shares(to, k, p1, spans->label + spans->at[seq], l, n);
            to->rows++;
        }
    }
    free(absmax);
}
