/* Two walks over q k of a sequence: maxima of rows, tiles and heads first, then each block of 64
 * rows is rounded in every way. A task is an output head of a sequence; tasks keep sums of their
 * own, which are added in their order.
 * SPDX-License-Identifier: MIT */
#include "plan/sensitivity.h"

#include "base/os.h"
#include "calibrate/calibrate.h"
#include "engine/runner.h"
#include "plan/inside.h"
#include "stat/stat.h"

#include <math.h>
#include <string.h>

enum { TILE = DQ_PAGE_TOKENS };
const int dq_forecast_bits[DQ_FORECAST_WIDTHS] = {8, 6, 4, 3};

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

/* Root mean square of the maxima of a cluster. */
static double absmax_of(const dq_forecast *f, int64_t c, dq_granularity g)
{
    return sqrt(f->logits_of[c].absmax2[g] / (double)f->logits_of[c].n);
}

/* The width at which maps have an error, interpolated between measured ones; NaN: none. */
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

/* The first key that row r sees. */
static int64_t first_key(const sequence *x, int64_t r)
{
    const int window = x->s->layer->attn.window;
    return window && r >= window ? r + 1 - window : 0;
}

static void logits_of_row(float *s, const sequence *x, int head, int64_t r)
{
    const dq_head_order *map = &x->s->m->map;
    const int d = map->head_dim;
    const float *q = x->s->q.p + (x->first + r) * x->s->q.cols + (int64_t)head * d;
    const float *k = x->s->k.p + x->first * x->s->k.cols + (int64_t)map->key[head] * d;
    for (int64_t i = first_key(x, r); i <= r; i++) {
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
        for (int64_t i = first_key(x, r); i <= r; i++) {
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

static int64_t end_of_tile(int64_t key, int64_t n)
{
    const int64_t end = (key / TILE + 1) * TILE;
    return end < n ? end : n;
}

/* p may be s. */
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

typedef struct task {
    dq_forecast_logits logits[2];
    dq_forecast_maps maps;
    float *s[2], *p[2], *rounded[2]; /* [n] */
} task;

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
    const int64_t n = r + 1, first = first_key(x, r);
    logits_of_row(t->s[map], x, head, r);
    softmax(t->p[map] + first, t->s[map] + first, n - first);
    l->n += n - first;
    double sum = 0;
    for (int64_t i = first; i < n; i++) sum += (double)t->s[map][i] * (double)t->s[map][i];
    l->sum2 += sum;
    for (int g = 0; g < DQ_GRANULARITIES; g++) {
        for (int64_t i = first, end; i < n; i = end) {
            const double a = (double)absmax_at(x, head, (dq_granularity)g, r, i);
            end = end_of_tile(i, n);
            l->absmax2[g] += a * a * (double)(end - i);
        }
    }
}

static void round_maps(task *t, const sequence *x, const int *head, int n_maps, int width,
                       dq_granularity g, int64_t r, double lambda)
{
    const int64_t n = r + 1, from = first_key(x, r);
    double first = 0, second = 0, both = 0;
    for (int k = 0; k < n_maps; k++) {
        double error = 0;
        /* Keys in a run share one maximum. */
        const float qmax = (float)max_code(dq_forecast_bits[width]);
        for (int64_t begin = from, end; begin < n; begin = end) {
            end = g == DQ_GRANULARITY_TILE ? end_of_tile(begin, n) : n;
            const float a = absmax_at(x, head[k], g, r, begin);
            const float up = a > 0 ? qmax / a : 0, down = a / qmax;
            for (int64_t i = begin; i < end; i++)
                t->rounded[k][i] = fminf(fmaxf(rintf(t->s[k][i] * up), -qmax), qmax) * down;
        }
        for (int64_t i = from; i < n; i++) {
            const double off = (double)t->rounded[k][i] - (double)t->s[k][i];
            error += off * off;
        }
        t->logits[k].error2[width][g] += error;
        softmax(t->rounded[k] + from, t->rounded[k] + from, n - from);
    }
    for (int64_t i = from; i < n; i++) {
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
        for (int64_t i = first_key(x, r); i <= r; i++) {
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

/* A query head of several output heads counts with the first. */
static bool is_first(const dq_head_order *map, int out, int k)
{
    for (int i = 0; i < out; i++) {
        if (map->head[i].q[k] == map->head[out].q[k]) return false;
    }
    return true;
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
    for (int i = 0; i < map->n_out; i++) {
        for (int k = 0; k < map->n_maps; k++) {
            if (!is_first(map, i, k)) continue;
            dq_forecast_logits_merge(&f->logits[(int64_t)layer * f->n_q + map->head[i].q[k]],
                                     &t[i].logits[k]);
            dq_forecast_logits_merge(&f->logits_of[cluster], &t[i].logits[k]);
        }
        dq_forecast_maps_merge(&f->maps[(int64_t)layer * f->n_out + i], &t[i].maps);
        dq_forecast_maps_merge(&f->maps_of[cluster], &t[i].maps);
    }
    return DQ_OK;
}

/* Adds a layer's rows, with q and k in host memory: whole sequences, each within a cluster. Results
 * do not depend on the number of threads. DQ_RESOURCE. */
static dq_status forecast_add(dq_forecast *f, int layer, const dq_layer_steps *s,
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

/* Clusters alternate between two halves, so that a choice on one half is judged on the other. */

/* KLD per token on every second cluster, starting at `half`. */
static double on_half(const dq_sensitivity *s, const dq_sensitivity_unit *u, const int64_t *scored,
                      int half)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t c = half; c < s->text->n_clusters; c += 2) {
        sum += u->sums[c];
        n += scored[c];
    }
    return n ? sum / (double)n : (double)NAN;
}

typedef struct columns {
    int64_t n;
    double *kld, *local, *logit, *half[2];
} columns;

static dq_status fill(columns *x, const dq_sensitivity *s, dq_sensitivity_kind kind,
                      const int64_t *scored, dq_err *err)
{
    double *all = dq_block_new((size_t)s->n + 1, 5 * sizeof *all, err);
    if (!all) return err->code;
    *x = (columns){.kld = all,
                   .local = all + s->n,
                   .logit = all + 2 * s->n,
                   .half = {all + 3 * s->n, all + 4 * s->n}};
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->kind != kind || !u->known) continue;
        x->kld[x->n] = u->kld.value;
        x->local[x->n] = u->local;
        x->logit[x->n] = u->logit_error;
        for (int h = 0; h < 2; h++) x->half[h][x->n] = on_half(s, u, scored, h);
        x->n++;
    }
    return DQ_OK;
}

/* Over units that have this forecast. */
static dq_status correlate(double *r, dq_interval *interval, const double *forecast,
                           const double *kld, int64_t n, dq_err *err)
{
    double *x = dq_block_new((size_t)n + 1, 2 * sizeof *x, err);
    int64_t m = 0;
    for (int64_t i = 0; x && i < n; i++) {
        if (!isfinite(forecast[i])) continue;
        x[m] = forecast[i];
        x[n + m++] = kld[i];
    }
    if (x) dq_rank_spearman(r, interval, x, x + n, m, err);
    dq_block_free(x);
    return err->code;
}

dq_status dq_sensitivity_rank_of(dq_sensitivity_rank *out, const dq_sensitivity *s,
                                 dq_sensitivity_kind kind, dq_err *err)
{
    columns x = {0};
    *out = (dq_sensitivity_rank){.repeat = (double)NAN};
    if (fill(&x, s, kind, s->scored_of, err) != DQ_OK) return err->code;
    out->n = x.n;
    correlate(&out->local, &out->local_interval, x.local, x.kld, x.n, err);
    correlate(&out->logit_error, &out->logit_interval, x.logit, x.kld, x.n, err);
    if (s->text->n_clusters > 1)
        dq_rank_spearman(&out->repeat, NULL, x.half[0], x.half[1], x.n, err);
    dq_block_free(x.kld);
    return err->code;
}

/* The unit with the largest KLD on a half, other than `but`. */
static int64_t largest(const dq_sensitivity *s, dq_sensitivity_kind kind, int half, int64_t but)
{
    int64_t best = -1;
    double most = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->kind != kind || !u->known || i == but) continue;
        const double kld = on_half(s, u, s->scored_of, half);
        if (best >= 0 && kld <= most) continue;
        best = i;
        most = kld;
    }
    return best;
}

dq_status dq_sensitivity_first_of(dq_sensitivity_first *out, const dq_sensitivity *s,
                                  dq_sensitivity_kind kind, dq_err *err)
{
    const int64_t n = s->text->n_clusters / 2; /* of the half that judges */
    *out = (dq_sensitivity_first){-1, -1, dq_mean_none, dq_interval_none};
    if (s->text->n_clusters < DQ_SENSITIVITY_WINDOWS) return DQ_OK;
    const int64_t first = largest(s, kind, 0, -1);
    out->next = first < 0 ? -1 : largest(s, kind, 1, first);
    if (out->next < 0) return DQ_OK;
    double *more = dq_block_new((size_t)n, sizeof *more, err);
    int64_t *tokens = dq_block_new((size_t)n, sizeof *tokens, err);
    for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
        /* Excess loss of the first in a cluster over each other unit. */
        const int64_t c = 2 * i + 1;
        double least = INFINITY;
        for (int64_t k = 0; k < s->n; k++) {
            const dq_sensitivity_unit *u = &s->unit[k];
            if (u->kind == kind && u->known && k != first)
                least = fmin(least, s->unit[first].sums[c] - u->sums[c]);
        }
        more[i] = least;
        tokens[i] = s->scored_of[2 * i + 1];
    }
    dq_plan_mean m;
    if (err->code == DQ_OK && dq_plan_mean_of(&m, more, tokens, n, err) == DQ_OK) {
        out->more = m.of;
        out->interval = dq_plan_interval(m, 0.05);
    }
    if (isfinite(out->interval.low)) out->first = first;
    dq_block_free(more);
    dq_block_free(tokens);
    return err->code;
}

/* The source's stream passes through the model once. At each layer every unit is changed in a copy
 * of the layer: run through the layer for the local forecast, and through all later ones for the
 * KLD. */

const char *const dq_sensitivity_name[DQ_SENSITIVITY_KINDS] = {"layers", "heads",  "maps",
                                                               "keys",   "values", "weights"};

static bool wants(const dq_sensitivity *s, dq_sensitivity_kind kind)
{
    return s->set.kinds >> kind & 1;
}

static const dq_weight *weight_of(const dq_model *m, const dq_sensitivity_unit *u)
{
    if (u->slot == DQ_PLAN_EMBED) return &m->embed;
    if (u->slot == DQ_PLAN_HEAD) return &m->head;
    return dq_plan_probe_weight(&m->layer[u->layer], u->slot);
}

static void add(dq_sensitivity *s, dq_sensitivity_unit unit)
{
    if (!s->unit) { /* they are counted first */
        s->n++;
        return;
    }
    unit.local = unit.logit_error = (double)NAN;
    if (unit.kind == DQ_SENSITIVITY_WEIGHTS) unit.name = weight_of(s->m, &unit)->name;
    s->unit[s->n++] = unit;
}

static bool is_shared(const dq_head_order *map, int out)
{
    for (int i = 0; i < out; i++) {
        if (map->head[i].q[1] == map->head[out].q[1]) return true;
    }
    return false;
}

static void list(dq_sensitivity *s)
{
    dq_sensitivity_unit end = {
        .kind = DQ_SENSITIVITY_WEIGHTS, .layer = -1, .head = -1, .map = -1, .slot = DQ_PLAN_EMBED};
    s->n = 0;
    if (wants(s, end.kind)) add(s, end);
    for (int l = 0; l < s->m->n_layers; l++) {
        const dq_head_order *map = &s->m->map;
        const dq_sensitivity_unit none = {.layer = l, .head = -1, .map = -1};
        dq_sensitivity_unit u = none;
        static const dq_sensitivity_kind whole[] = {DQ_SENSITIVITY_LAYERS, DQ_SENSITIVITY_KEYS,
                                                    DQ_SENSITIVITY_VALUES};
        for (int i = 0; i < 3; i++) {
            u.kind = whole[i];
            if (wants(s, u.kind)) add(s, u);
        }
        for (u.head = 0; u.head < map->n_out; u.head++) {
            u.kind = DQ_SENSITIVITY_HEADS;
            u.map = -1;
            if (wants(s, u.kind)) add(s, u);
            u.kind = DQ_SENSITIVITY_MAPS;
            for (u.map = 0; u.map < 2 && map->n_maps == 2 && wants(s, u.kind); u.map++) {
                if (u.map == 0 || !is_shared(map, u.head)) add(s, u);
            }
        }
        u = none;
        u.kind = DQ_SENSITIVITY_WEIGHTS;
        for (int slot = DQ_PLAN_Q; slot <= DQ_PLAN_DOWN_PROJ && wants(s, u.kind); slot++) {
            u.slot = (dq_plan_slot)slot;
            if (weight_of(s->m, &u)->rows > 0) add(s, u);
        }
    }
    end.slot = DQ_PLAN_HEAD;
    if (wants(s, end.kind) && !s->m->tied) add(s, end);
}

static dq_status cache_of(dq_kv_spec *out, const dq_sensitivity *s, dq_sensitivity_kind kind,
                          dq_err *err)
{
    dq_kv_config c = s->set.kv;
    c.k_bits = kind == DQ_SENSITIVITY_KEYS ? s->set.bits : 16;
    c.v_bits = kind == DQ_SENSITIVITY_VALUES ? s->set.bits : 16;
    return dq_model_kv_spec(out, &c, s->m, DQ_NUM_F32, err);
}

dq_status dq_sensitivity_new(dq_sensitivity *s, const dq_model *m, const dq_calib_text *text,
                             const dq_sensitivity_settings *set, dq_arena *a, dq_err *err)
{
    *s = (dq_sensitivity){.set = *set, .m = m, .text = text, .arena = a, .work = s->work};
    for (int k = DQ_SENSITIVITY_KEYS; k <= DQ_SENSITIVITY_VALUES; k++) {
        dq_kv_spec spec;
        if (wants(s, (dq_sensitivity_kind)k))
            DQ_TRY(cache_of(&spec, s, (dq_sensitivity_kind)k, err));
    }
    list(s);
    s->unit = dq_alloc(a, (size_t)s->n + 1, sizeof *s->unit, err);
    if (!s->unit) return err->code;
    list(s);
    for (int64_t i = 0; i < s->n; i++) {
        s->unit[i].sums = dq_alloc(a, (size_t)text->n_clusters, sizeof(double), err);
        if (!s->unit[i].sums) return err->code;
    }
    s->scored_of = dq_plan_reference_scored(text, a, err);
    if (!s->scored_of) return err->code;
    for (int64_t i = 0; i < text->n_clusters; i++) s->scored += s->scored_of[i];
    /* Memory in the arena. */
    dq_forecast *f = &s->forecast;
    const int64_t n_clusters = text->n_clusters;
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

bool dq_sensitivity_is_mine(const dq_sensitivity *s, int64_t unit)
{
    const int n = s->set.n_shards;
    return n == 0 || (unit == s->n ? 0 : unit % n) == s->set.shard - 1;
}

/* Sums of a forecast as numbers in a row, or back; counts are exact. x NULL: how many. */
static int64_t forecast_numbers(dq_forecast *f, double *x, bool take)
{
    enum {
        LOGITS = sizeof(dq_forecast_logits) / sizeof *x,
        MAPS = sizeof(dq_forecast_maps) / sizeof *x
    };
    const int64_t n_logits = (int64_t)f->n_layers * f->n_q + f->n_clusters,
                  n_maps = (int64_t)f->n_layers * f->n_out + f->n_clusters;
    for (int64_t i = 0; x && i < n_logits; i++, x += LOGITS) {
        dq_forecast_logits *l =
            i < f->n_clusters ? &f->logits_of[i] : &f->logits[i - f->n_clusters];
        if (!take) memcpy(x, l, sizeof *l);
        if (!take) x[0] = (double)l->n;
        if (take) memcpy(l, x, sizeof *l);
        if (take) l->n = (int64_t)fmin(x[0], 9e15); /* counts are exact up to there */
    }
    for (int64_t i = 0; x && i < n_maps; i++, x += MAPS) {
        dq_forecast_maps *m = i < f->n_clusters ? &f->maps_of[i] : &f->maps[i - f->n_clusters];
        take ? memcpy(m, x, sizeof *m) : memcpy(x, m, sizeof *m);
    }
    return n_logits * LOGITS + n_maps * MAPS;
}

json_t *dq_sensitivity_line(const dq_sensitivity *s, int64_t unit, dq_err *err)
{
    const dq_sensitivity_unit *u = &s->unit[unit];
    dq_forecast f = s->forecast;
    const int64_t n = s->text->n_clusters;
    if (unit == s->n ? !s->foretold : !u->known) return NULL;
    if (unit < s->n) {
        json_t *line = json_object();
        dq_row_writer w = dq_row_json(line);
        DQ_PUT(&w, "model", s->set.number, NULL);
        DQ_PUT(&w, "unit", unit, NULL);
        DQ_PUT(&w, "kld", dq_work_reals(u->sums, n), NULL);
        DQ_PUT(&w, "local", u->local, NULL, .when = DQ_OUT);
        return line;
    }
    double *x = dq_block_new((size_t)forecast_numbers(&f, NULL, false), sizeof *x, err);
    if (!x) return NULL;
    const int64_t all = forecast_numbers(&f, x, false);
    json_t *line =
        json_pack("{s:i, s:o}", "model", s->set.number, "forecast", dq_work_reals(x, all));
    dq_block_free(x);
    return line;
}

static dq_status conclude(const dq_sensitivity *s, dq_sensitivity_unit *u, dq_err *err)
{
    dq_plan_mean m;
    DQ_TRY(dq_plan_mean_of(&m, u->sums, s->scored_of, s->text->n_clusters, err));
    u->kld = m.of;
    u->interval = dq_plan_interval_kld(m, 0.05);
    u->known = true;
    return DQ_OK;
}

dq_status dq_sensitivity_take(void *arg, const json_t *line, bool told, dq_err *err)
{
    (void)told;
    dq_sensitivity *s = arg;
    const json_int_t at = json_integer_value(json_object_get(line, "unit"));
    const json_t *local = json_object_get(line, "local");
    if (json_object_get(line, "forecast")) {
        const int64_t n = forecast_numbers(&s->forecast, NULL, true);
        if (s->foretold || !dq_sensitivity_is_mine(s, s->n))
            return dq_fail(err, DQ_DAMAGED, "the forecast is %s",
                           s->foretold ? "there twice" : "not of this shard");
        double *x = dq_block_new((size_t)n, sizeof *x, err);
        if (x) dq_work_take_reals(x, n, line, "forecast", err);
        for (int64_t i = 0; err->code == DQ_OK && i < n; i++) {
            if (!(x[i] >= 0 && isfinite(x[i])))
                dq_fail(err, DQ_DAMAGED, "\"forecast\" holds %g, which is no sum", x[i]);
        }
        if (err->code == DQ_OK) forecast_numbers(&s->forecast, x, true);
        s->foretold = err->code == DQ_OK;
        dq_block_free(x);
        return err->code;
    }
    if (!json_is_integer(json_object_get(line, "unit")) || at < 0 || at >= s->n)
        return dq_fail(err, DQ_DAMAGED, "has a unit that is none of 0 to %lld",
                       (long long)s->n - 1);
    dq_sensitivity_unit *u = &s->unit[at];
    if (u->known || !dq_sensitivity_is_mine(s, at))
        return dq_fail(err, DQ_DAMAGED, "unit %lld is %s", (long long)at,
                       u->known ? "there twice" : "not of this shard");
    DQ_TRY(dq_plan_take_nats(u->sums, s->text->n_clusters, line, "kld", err));
    if (local && !(json_is_real(local) && json_real_value(local) >= 0))
        return dq_fail(err, DQ_DAMAGED, "\"local\" holds what is no error");
    if (local) u->local = json_real_value(local);
    s->n_known++;
    return conclude(s, u, err);
}

typedef struct change {
    dq_plan_change of;
    dq_layer layer;
    dq_kv_spec kv;
    dq_logit_spec logit;
    dq_coded coded;
    bool *rounds;
} change;

static dq_status make_change(change *c, const dq_sensitivity *s, const dq_sensitivity_unit *u,
                             dq_err *err)
{
    const dq_head_order *map = &s->m->map;
    if (u->kind == DQ_SENSITIVITY_WEIGHTS) {
        const dq_weight *w = weight_of(s->m, u);
        const bool ends = w == &s->m->embed || w == &s->m->head;
        dq_quant_spec spec = {.bits = s->set.bits, .group = s->set.group, .scale_dtype = DQ_F16};
        dq_gptq_loss loss = {0};
        float *values;
        spec.mode = dq_quantize_mode(DQ_SEARCH, spec.bits, !ends);
        if (dq_plan_round_values(&values, w, err) == DQ_OK) {
            spec.scale_dtype = dq_plan_round_scale(values, w->rows, w->cols, &spec);
            dq_plan_round_nearest(&c->coded, &loss, values, w->rows, w->cols, &spec, err);
            c->coded.weight.name = w->name;
        }
        dq_block_free(values);
        if (err->code != DQ_OK) return err->code;
        if (u->layer < 0) return DQ_OK;
        c->layer = s->m->layer[u->layer];
        *dq_plan_probe_weight(&c->layer, u->slot) = c->coded.weight;
        c->of.layer = &c->layer;
        return DQ_OK;
    }
    if (u->kind == DQ_SENSITIVITY_KEYS || u->kind == DQ_SENSITIVITY_VALUES) {
        c->of.kv = &c->kv;
        return cache_of(&c->kv, s, u->kind, err);
    }
    c->logit = (dq_logit_spec){s->set.bits, s->set.granularity};
    c->of.logit = &c->logit;
    if (u->head < 0) return DQ_OK;
    c->rounds = dq_block_new((size_t)map->n_q, sizeof *c->rounds, err);
    if (!c->rounds) return err->code;
    for (int k = 0; k < map->n_maps; k++)
        c->rounds[map->head[u->head].q[k]] = u->map < 0 || u->map == k;
    c->of.rounds = c->rounds;
    return DQ_OK;
}

static const char *const what_name[DQ_SENSITIVITY_KINDS] = {
    "logits of layers", "logits of heads", "logits of maps", "keys", "values", "weights"};

static int first_layer(const dq_model *m, const dq_sensitivity_unit *u)
{
    if (u->layer >= 0) return u->layer;
    return u->slot == DQ_PLAN_HEAD ? m->n_layers : 0;
}

static dq_status measure(dq_sensitivity *s, dq_plan_reference *ref, dq_sensitivity_unit *u,
                         const change *c, dq_err *err)
{
    const dq_model *m = s->m;
    dq_plan_other other = {.m = m,
                           .from = first_layer(m, u),
                           .change = &c->of,
                           .head = &m->head,
                           .what = what_name[u->kind]};
    dq_plan_sums sums = {.kld = u->sums};
    if (u->kind == DQ_SENSITIVITY_WEIGHTS && u->slot == DQ_PLAN_EMBED) {
        other.embed = &c->coded.weight;
        if (m->tied) other.head = &c->coded.weight;
    }
    if (u->kind == DQ_SENSITIVITY_WEIGHTS && u->slot == DQ_PLAN_HEAD) other.head = &c->coded.weight;
    if (u->layer >= 0 || other.embed) DQ_TRY(dq_plan_reference_local(&u->local, ref, &other, err));
    DQ_TRY(dq_plan_reference_measure(&sums, ref, &other, err));
    DQ_TRY(conclude(s, u, err));
    return s->set.found ? s->set.found(s->set.arg, s, u - s->unit, err) : DQ_OK;
}

typedef struct seen {
    dq_sensitivity *s;
    const dq_plan_reference *ref;
    int layer;
    dq_err *err;
} seen;

static void see_heads(void *arg, const dq_layer_steps *steps)
{
    const seen *x = arg;
    const dq_plan_reference *p = x->ref;
    const dq_calib_chunk *k = p->pass.chunk;
    while (&k->batch != steps->batch) k++;
    if (dq_backend_sync(p->pass.b, x->err) != DQ_OK) return;
    forecast_add(&x->s->forecast, x->layer, steps, p->text->cluster + k->first_seq, x->err);
}

/* Before the first layer comes the embedding, after the last one the head. */
static dq_status run_units(dq_sensitivity *s, dq_plan_reference *ref, int layer, bool head,
                           dq_err *err)
{
    for (int64_t i = 0; i < s->n; i++) {
        dq_sensitivity_unit *u = &s->unit[i];
        if (u->known || u->layer != layer || !dq_sensitivity_is_mine(s, i)) continue;
        if (layer < 0 && (u->slot == DQ_PLAN_HEAD) != head) continue;
        DQ_TRY(dq_os_check_stop(err));
        change c = {.coded.bytes = NULL};
        if (make_change(&c, s, u, err) == DQ_OK) measure(s, ref, u, &c, err);
        dq_coded_free(&c.coded);
        dq_block_free(c.rounds);
        if (err->code != DQ_OK) return err->code;
    }
    return DQ_OK;
}

static dq_status run_layers(dq_sensitivity *s, dq_plan_reference *ref, dq_err *err)
{
    DQ_TRY(dq_plan_reference_next(ref, -1, NULL, err));
    DQ_TRY(run_units(s, ref, -1, false, err));
    const bool foretells = !s->foretold && dq_sensitivity_is_mine(s, s->n);
    for (int l = 0; l < s->m->n_layers; l++) {
        seen x = {s, ref, l, err};
        const dq_plan_inputs inputs = {.see_heads = foretells ? see_heads : NULL, .arg = &x};
        DQ_TRY(dq_plan_reference_next(ref, l, &inputs, err));
        DQ_TRY(run_units(s, ref, l, false, err));
        DQ_TRY(dq_plan_reference_move(ref, err));
    }
    s->foretold = s->foretold || foretells;
    return run_units(s, ref, -1, true, err);
}

/* The predicted error over all logits that the unit rounds. */
static double logit_error(const dq_sensitivity *s, const dq_sensitivity_unit *u)
{
    const dq_head_order *map = &s->m->map;
    dq_forecast_logits of[2] = {{0}};
    if (u->kind > DQ_SENSITIVITY_MAPS) return (double)NAN;
    const dq_forecast_logits *layer = s->forecast.logits + (int64_t)u->layer * map->n_q;
    if (u->head < 0)
        return dq_forecast_predicted_all(layer, map->n_q, s->set.bits, s->set.granularity);
    for (int k = 0; k < map->n_maps; k++) {
        if (u->map < 0 || u->map == k) of[k] = layer[map->head[u->head].q[k]];
    }
    return dq_forecast_predicted_all(of, 2, s->set.bits, s->set.granularity);
}

dq_status dq_sensitivity_run(dq_sensitivity *s, dq_err *err)
{
    dq_plan_reference ref;
    /* Announces the arithmetic still to do. */
    const double ids = (double)s->text->n_ids;
    double flop = dq_plan_reference_source_flop(s->m, ids);
    bool lacks = !s->foretold && dq_sensitivity_is_mine(s, s->n);
    for (int l = 0; l < s->m->n_layers; l++) flop += ids * dq_calibrate_work_layer(&s->m->layer[l]);
    for (int64_t i = 0; i < s->n; i++) {
        const dq_sensitivity_unit *u = &s->unit[i];
        if (u->known || !dq_sensitivity_is_mine(s, i)) continue;
        lacks = true;
        flop += dq_plan_reference_kld_flop(s->m, first_layer(s->m, u), ids);
        if (u->layer >= 0) flop += ids * dq_calibrate_work_layer(&s->m->layer[u->layer]);
    }
    if (lacks) {
        dq_plan_work_expect(&s->work, flop);
        if (dq_plan_reference_new(&ref, s->text, s->m, s->set.backend, s->set.beside, true,
                                  &s->work, err) == DQ_OK)
            run_layers(s, &ref, err);
        dq_plan_reference_end(&ref);
    }
    for (int64_t i = 0; i < s->n; i++) s->unit[i].logit_error = logit_error(s, &s->unit[i]);
    return err->code;
}
