/* forecast: see forecast.h. Two walks over q k of a sequence: maxima of rows, tiles and heads first, then each block of
 * 64 rows is rounded in every way. A task is an output head of a sequence; tasks keep sums of their own, which are added in
 * their order.
 * SPDX-License-Identifier: MIT */
#include "plan/sensitivity/forecast.h"

#include <math.h>
#include <string.h>

enum { TILE = DQ_PAGE_TOKENS };
const int dq_forecast_bits[DQ_FORECAST_WIDTHS] = {8, 6, 4, 3};

/* ---- Sums ---- */

void dq_forecast_logits_merge(dq_forecast_logits *into, const dq_forecast_logits *from)
{
    into->n += from->n;
    into->sum2 += from->sum2;
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        into->absmax2[g] += from->absmax2[g];
        for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) into->error2[w][g] += from->error2[w][g];
    }
}

void dq_forecast_maps_merge(dq_forecast_maps *into, const dq_forecast_maps *from)
{
    into->d2 += from->d2;
    for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) {
        for (int g = 0; g < DQ_GRANULARITIES; g++) {
            into->first2[w][g] += from->first2[w][g];
            into->second2[w][g] += from->second2[w][g];
            into->both2[w][g] += from->both2[w][g];
        }
    }
}

static double max_code(int bits)
{
    return (double)((1 << (bits - 1)) - 1);
}

double dq_forecast_predicted(const dq_forecast_logits *x, int bits, dq_granularity g)
{
    const double q = max_code(bits), even = x->absmax2[g] / (12 * q * q);
    return x->n ? sqrt(fmin(even, x->sum2) / (double)x->n) : (double)NAN;
}

double dq_forecast_predicted_all(const dq_forecast_logits *x, int64_t n, int bits, dq_granularity g)
{
    double sum = 0, count = 0;
    for (int64_t i = 0; i < n; i++) {
        const double one = dq_forecast_predicted(&x[i], bits, g);
        if (x[i].n == 0) continue;
        sum += (double)x[i].n * one * one;
        count += (double)x[i].n;
    }
    return count > 0 ? sqrt(sum / count) : (double)NAN;
}

double dq_forecast_measured(const dq_forecast_logits *x, int width, dq_granularity g)
{
    return x->n ? sqrt(x->error2[width][g] / (double)x->n) : (double)NAN;
}

double dq_forecast_map_error(const dq_forecast_maps *x, int width, dq_granularity g)
{
    return x->d2 > 0 ? sqrt(x->both2[width][g] / x->d2) : (double)NAN;
}

double dq_forecast_cancellation(const dq_forecast_maps *x, int width, dq_granularity g)
{
    const double each = sqrt(x->first2[width][g]) + sqrt(x->second2[width][g]);
    return each > 0 ? sqrt(x->both2[width][g]) / each : (double)NAN;
}

/* The root mean square of the maxima of a cluster. */
static double absmax_of(const dq_forecast *f, int64_t c, dq_granularity g)
{
    return sqrt(f->logits_of[c].absmax2[g] / (double)f->logits_of[c].n);
}

/* The width, between those that are measured, at which maps have an error; NaN: there is none. */
static double width_of(const dq_forecast_maps *x, double error, dq_granularity g)
{
    for (int w = 0; w + 1 < DQ_FORECAST_WIDTHS; w++) {
        const double fine = dq_forecast_map_error(x, w, g),
                     coarse = dq_forecast_map_error(x, w + 1, g);
        if (!(error >= fine && error <= coarse && fine > 0)) continue;
        const double share = coarse > fine ? log2(error / fine) / log2(coarse / fine) : 0;
        return dq_forecast_bits[w] + share * (dq_forecast_bits[w + 1] - dq_forecast_bits[w]);
    }
    return (double)NAN;
}

/* In one cluster. */
static double bits_fewer(const dq_forecast *model, const dq_forecast *other, int64_t c,
                         dq_forecast_error of, dq_granularity g)
{
    enum { AT = DQ_FORECAST_ADVANTAGE_BITS, AT_WIDTH = 2 };
    if (of == DQ_FORECAST_OF_MAPS)
        return AT - width_of(&model->maps_of[c],
                             dq_forecast_map_error(&other->maps_of[c], AT_WIDTH, g), g);
    const double larger = absmax_of(model, c, g) / absmax_of(other, c, g);
    return AT - 1 - log2(1 + max_code(AT) * larger);
}

dq_status dq_forecast_advantage_of(dq_forecast_advantage *out, const dq_forecast *model,
                                   const dq_forecast *other, dq_forecast_error of, dq_granularity g,
                                   dq_err *err)
{
    const int64_t n = model->n_clusters;
    *out = (dq_forecast_advantage){dq_mean_none, dq_interval_none};
    if (n < 2 || other->n_clusters != n) return DQ_OK;
    double *x = dq_block_new((size_t)n, sizeof *x, err);
    int64_t used = 0;
    for (int64_t c = 0; x && c < n; c++) {
        x[used] = bits_fewer(model, other, c, of, g);
        used += isfinite(x[used]);
    }
    if (used > 1) {
        out->bits = dq_mean_of(x, used);
        out->interval = dq_mean_interval(out->bits);
    }
    dq_block_free(x);
    return err->code;
}

dq_status dq_forecast_new(dq_forecast *f, const dq_model *m, int64_t n_clusters, dq_arena *a,
                          dq_err *err)
{
    *f = (dq_forecast){.n_layers = m->n_layers,
                       .n_q = m->map.n_q,
                       .n_out = m->map.n_out,
                       .n_clusters = n_clusters};
    f->logits = dq_alloc(a, (size_t)f->n_layers * (size_t)f->n_q, sizeof *f->logits, err);
    f->maps = dq_alloc(a, (size_t)f->n_layers * (size_t)f->n_out, sizeof *f->maps, err);
    f->logits_of = dq_alloc(a, (size_t)n_clusters, sizeof *f->logits_of, err);
    f->maps_of = dq_alloc(a, (size_t)n_clusters, sizeof *f->maps_of, err);
    return err->code;
}

/* ---- One sequence ---- */

/* Maxima of a query head's logits: of all, of rows, of tiles [n_tiles][n_tiles]. */
typedef struct maxima {
    float head, *row, *tile;
} maxima;

typedef struct sequence {
    const dq_layer_steps *s;
    int64_t first, n, n_tiles; /* rows */
    maxima *of;                /* [n_q] */
    float tensor;              /* of all heads */
} sequence;

/* s[i] of query row r and keys 0 .. r of a head. */
static void logits_of_row(float *s, const sequence *x, int head, int64_t r)
{
    const dq_head_order *map = &x->s->m->map;
    const int d = map->head_dim;
    const float *q = x->s->q.p + (x->first + r) * x->s->q.cols + (int64_t)head * d;
    const float *k = x->s->k.p + x->first * x->s->k.cols + (int64_t)map->key[head] * d;
    for (int64_t i = 0; i <= r; i++) {
        const float *key = k + i * x->s->k.cols;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < d; c++) sum += q[c] * key[c];
        s[i] = sum * map->scale;
    }
}

static void find_maxima(maxima *m, const sequence *x, int head, float *s)
{
    m->head = 0;
    memset(m->tile, 0, (size_t)(x->n_tiles * x->n_tiles) * sizeof *m->tile);
    for (int64_t r = 0; r < x->n; r++) {
        float *tile = m->tile + r / TILE * x->n_tiles, row = 0;
        logits_of_row(s, x, head, r);
        for (int64_t i = 0; i <= r; i++) {
            const float size = fabsf(s[i]);
            if (size > tile[i / TILE]) tile[i / TILE] = size;
            row = fmaxf(row, size);
        }
        m->row[r] = row;
        m->head = fmaxf(m->head, row);
    }
}

static float absmax_at(const sequence *x, int head, dq_granularity g, int64_t r, int64_t i)
{
    const maxima *m = &x->of[head];
    if (g == DQ_GRANULARITY_TENSOR) return x->tensor;
    if (g == DQ_GRANULARITY_HEAD) return m->head;
    if (g == DQ_GRANULARITY_ROW) return m->row[r];
    return m->tile[r / TILE * x->n_tiles + i / TILE];
}

/* to[0 .. r] = s[0 .. r] rounded, a run of keys with one maximum after the other. */
static void round_row(float *to, const float *s, const sequence *x, int head, dq_granularity g,
                      int64_t r, float qmax)
{
    for (int64_t begin = 0, end; begin <= r; begin = end) {
        end = g == DQ_GRANULARITY_TILE && begin + TILE <= r ? begin + TILE : r + 1;
        const float a = absmax_at(x, head, g, r, begin);
        const float up = a > 0 ? qmax / a : 0, down = a / qmax;
        for (int64_t i = begin; i < end; i++)
            to[i] = fminf(fmaxf(rintf(s[i] * up), -qmax), qmax) * down;
    }
}

/* p[n] = softmax of s[n]; p may be s. */
static void softmax(float *p, const float *s, int64_t n)
{
    float top = s[0];
    double sum = 0;
    for (int64_t i = 1; i < n; i++) top = fmaxf(top, s[i]);
    for (int64_t i = 0; i < n; i++) {
        p[i] = expf(s[i] - top);
        sum += (double)p[i];
    }
    const float by = (float)(1 / sum);
    for (int64_t i = 0; i < n; i++) p[i] *= by;
}

/* ---- A task ---- */

/* Sums of an output head and of its maps, and rows of scratch. */
typedef struct task {
    dq_forecast_logits logits[2];
    dq_forecast_maps maps;
    float *s[2], *p[2], *rounded[2]; /* [n] */
} task;

static double squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static double lambda_at(const sequence *x, int out, int64_t r)
{
    const dq_attn *attn = &x->s->layer->attn;
    if (attn->map->n_maps == 1) return 0;
    return attn->lambda_kind == DQ_LAMBDA_TOKEN
               ? (double)x->s->lambda.p[(x->first + r) * x->s->lambda.cols + out]
               : (double)attn->lambda;
}

static void add_row(task *t, const sequence *x, int map, int head, int64_t r)
{
    dq_forecast_logits *l = &t->logits[map];
    const int64_t n = r + 1;
    logits_of_row(t->s[map], x, head, r);
    softmax(t->p[map], t->s[map], n);
    l->n += n;
    l->sum2 += squares(t->s[map], n);
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        for (int64_t i = 0; i < n; i += TILE) {
            const double a = (double)absmax_at(x, head, (dq_granularity)g, r, i);
            l->absmax2[g] += a * a * (double)(n - i < TILE ? n - i : TILE);
        }
    }
}

/* Both maps of a row rounded in one way. */
static void round_maps(task *t, const sequence *x, const int *head, int n_maps, int width,
                       dq_granularity g, int64_t r, double lambda)
{
    const int64_t n = r + 1;
    double first = 0, second = 0, both = 0;
    for (int k = 0; k < n_maps; k++) {
        double error = 0;
        round_row(t->rounded[k], t->s[k], x, head[k], g, r,
                  (float)max_code(dq_forecast_bits[width]));
        for (int64_t i = 0; i < n; i++) {
            const double off = (double)t->rounded[k][i] - (double)t->s[k][i];
            error += off * off;
        }
        t->logits[k].error2[width][g] += error;
        softmax(t->rounded[k], t->rounded[k], n);
    }
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)t->rounded[0][i] - (double)t->p[0][i];
        const double b = n_maps == 2 ? lambda * ((double)t->rounded[1][i] - (double)t->p[1][i]) : 0;
        first += a * a;
        second += b * b;
        both += (a - b) * (a - b);
    }
    t->maps.first2[width][g] += first;
    t->maps.second2[width][g] += second;
    t->maps.both2[width][g] += both;
}

static void run_task(task *t, const sequence *x, int out)
{
    const dq_head_order *map = &x->s->m->map;
    const int head[2] = {map->head[out].q[0], map->n_maps == 2 ? map->head[out].q[1] : 0};
    for (int64_t r = 0; r < x->n; r++) {
        const double lambda = lambda_at(x, out, r);
        for (int k = 0; k < map->n_maps; k++) add_row(t, x, k, head[k], r);
        for (int64_t i = 0; i <= r; i++) {
            const double d =
                (double)t->p[0][i] - (map->n_maps == 2 ? lambda * (double)t->p[1][i] : 0);
            t->maps.d2 += d * d;
        }
        for (int w = 0; w < DQ_FORECAST_WIDTHS; w++) {
            for (int g = 0; g < DQ_GRANULARITIES; g++)
                round_maps(t, x, head, map->n_maps, w, (dq_granularity)g, r, lambda);
        }
    }
}

/* ---- A layer ---- */

/* A query head that several output heads read is counted with the first of them. */
static bool is_first(const dq_head_order *map, int out, int k)
{
    for (int i = 0; i < out; i++) {
        if (map->head[i].q[k] == map->head[out].q[k]) return false;
    }
    return true;
}

static void add_task(dq_forecast *f, int layer, int64_t cluster, const dq_head_order *map, int out,
                     const task *t)
{
    for (int k = 0; k < map->n_maps; k++) {
        if (!is_first(map, out, k)) continue;
        dq_forecast_logits_merge(&f->logits[(int64_t)layer * f->n_q + map->head[out].q[k]],
                                 &t->logits[k]);
        dq_forecast_logits_merge(&f->logits_of[cluster], &t->logits[k]);
    }
    dq_forecast_maps_merge(&f->maps[(int64_t)layer * f->n_out + out], &t->maps);
    dq_forecast_maps_merge(&f->maps_of[cluster], &t->maps);
}

static dq_status add_sequence(dq_forecast *f, int layer, sequence *x, int64_t cluster, dq_arena *a,
                              dq_err *err)
{
    const dq_head_order *map = &x->s->m->map;
    const size_t n = (size_t)x->n, tiles = (size_t)(x->n_tiles * x->n_tiles);
    task *t = dq_alloc(a, (size_t)map->n_out, sizeof *t, err);
    float *scratch = dq_alloc(a, (size_t)map->n_q, n * sizeof *scratch, err);
    x->of = dq_alloc(a, (size_t)map->n_q, sizeof *x->of, err);
    for (int i = 0; err->code == DQ_OK && i < map->n_q; i++) {
        x->of[i].row = dq_alloc(a, n, sizeof(float), err);
        x->of[i].tile = dq_alloc(a, tiles, sizeof(float), err);
    }
    for (int i = 0; err->code == DQ_OK && i < map->n_out; i++) {
        float *rows = dq_alloc(a, 6 * n, sizeof *rows, err);
        for (size_t k = 0; rows && k < 2; k++) {
            t[i].s[k] = rows + 3 * k * n;
            t[i].p[k] = t[i].s[k] + n;
            t[i].rounded[k] = t[i].p[k] + n;
        }
    }
    DQ_TRY(err->code);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < map->n_q; i++) find_maxima(&x->of[i], x, i, scratch + (size_t)i * n);
    for (int i = 0; i < map->n_q; i++) x->tensor = fmaxf(x->tensor, x->of[i].head);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < map->n_out; i++) run_task(&t[i], x, i);
    for (int i = 0; i < map->n_out; i++) add_task(f, layer, cluster, map, i, &t[i]);
    return DQ_OK;
}

dq_status dq_forecast_add(dq_forecast *f, int layer, const dq_layer_steps *s,
                          const int32_t *cluster, dq_err *err)
{
    for (int i = 0; err->code == DQ_OK && i < s->batch->n_seq; i++) {
        const int64_t first = s->batch->cu_rows[i], n = s->batch->cu_rows[i + 1] - first;
        sequence x = {.s = s, .first = first, .n = n, .n_tiles = (n + TILE - 1) / TILE};
        dq_arena *a = dq_arena_new();
        if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
        add_sequence(f, layer, &x, cluster[i], a, err);
        dq_arena_free(a);
    }
    return err->code;
}
