/* plan_kv_space: see plan_kv_space.h. A text is made by the code that reads it, which joins runs with the same widths.
 * SPDX-License-Identifier: MIT */
#include "plan/cache/plan_kv_space.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dq_plan_kv_unit dq_plan_kv_space_unit(const dq_plan_kv_space *s, int unit)
{
    const int keys = s->n_runs * s->n_maps;
    const bool values = unit >= keys;
    const int run = values ? unit - keys : unit / s->n_maps;
    const int first = run * s->together, left = s->n_layers - first;
    return (dq_plan_kv_unit){.first = first,
                             .layers = left < s->together ? left : s->together,
                             .map = values || s->n_maps == 1 ? -1 : unit % 2,
                             .values = values};
}

double dq_plan_kv_space_cost(const dq_plan_kv_space *s, int unit)
{
    const dq_plan_kv_unit u = dq_plan_kv_space_unit(s, unit);
    return u.layers * (u.values ? s->n_maps : 1);
}

double dq_plan_kv_space_budget(const dq_plan_kv_space *s, double mean)
{
    return mean * 2 * s->n_layers * s->n_maps + 1e-9;
}

static double cost_of(const dq_plan_kv_space *s, const int *width)
{
    double sum = 0;
    for (int u = 0; u < s->n_units; u++) sum += width[u] * dq_plan_kv_space_cost(s, u);
    return sum;
}

double dq_plan_kv_space_mean(const dq_plan_kv_space *s, const int *width)
{
    return cost_of(s, width) / (2.0 * s->n_layers * s->n_maps);
}

dq_status dq_plan_kv_space_text(char text[DQ_KV_LISTS], const dq_plan_kv_space *s, const int *width,
                                dq_err *err)
{
    dq_kv_widths w = {.n = {s->n_runs, s->n_runs}};
    for (int u = 0; u < s->n_units; u++) {
        const dq_plan_kv_unit x = dq_plan_kv_space_unit(s, u);
        dq_kv_run *r = &w.run[x.values][x.first / s->together];
        r->layers = s->n_runs > 1 ? x.layers : -1;
        for (int map = 0; map < 2; map++) {
            if (x.map < 0 || x.map == map) r->bits[map] = width[u];
        }
    }
    DQ_TRY(dq_kv_widths_fit(&w, s->n_layers, err));
    return dq_kv_widths_text(text, &w, err);
}

/* A mix of which no two neighbours are alike has the longest text. */
static bool is_sayable(const dq_plan_kv_space *s)
{
    int width[DQ_PLAN_KV_UNITS];
    char text[DQ_KV_LISTS];
    dq_err err = {0};
    if (s->n_runs > DQ_KV_RUNS) return false;
    for (int u = 0; u < s->n_units; u++) {
        const dq_plan_kv_unit x = dq_plan_kv_space_unit(s, u);
        width[u] = 2 + (x.first / s->together + (x.map == 1)) % 2;
    }
    return dq_plan_kv_space_text(text, s, width, &err) == DQ_OK;
}

static void divide(dq_plan_kv_space *s, int together)
{
    s->together = together;
    s->n_runs = (s->n_layers + together - 1) / together;
    s->n_units = s->n_runs * (s->n_maps + 1);
}

dq_status dq_plan_kv_space_begin(dq_plan_kv_space *s, int n_layers, int together, int n_maps,
                                 dq_err *err)
{
    s->n_layers = n_layers;
    s->n_maps = n_maps;
    divide(s, together);
    if (is_sayable(s)) return DQ_OK;
    while (!is_sayable(s)) divide(s, s->together + 1);
    char how[32] = "one by one";
    if (together > 1) snprintf(how, sizeof how, "%d together", together);
    return dq_fail_with(err, DQ_USAGE, (dq_remedy){.code = DQ_REMEDY_KV_OPTION},
                        "layers %d: widths of %d layers %s take more text than a KV setting "
                        "holds. Give at least %d layers one width.",
                        together, n_layers, how, s->together);
}

/* ---- Steps ---- */

/* The next width up (1) or down (-1); 0: none. */
static int step(const dq_plan_kv_space *s, int width, int by)
{
    int i = 0;
    while (s->bits[i] != width) i++;
    i += by;
    return i < 0 || i >= s->n_bits ? 0 : s->bits[i];
}

dq_status dq_plan_kv_space_near(const dq_plan_kv_space *s, const int *width, double mean,
                                dq_plan_kv_space_take *take, void *arg, dq_err *err)
{
    const double budget = dq_plan_kv_space_budget(s, mean), spent = cost_of(s, width);
    int one[DQ_PLAN_KV_UNITS];
    memcpy(one, width, (size_t)s->n_units * sizeof *one);
    for (int u = 0; u < s->n_units; u++) {
        const int up = step(s, width[u], 1);
        const double more = spent + (up - width[u]) * dq_plan_kv_space_cost(s, u);
        if (!up) continue;
        one[u] = up;
        if (more <= budget) DQ_TRY(take(arg, one, err));
        for (int v = 0; more > budget && v < s->n_units; v++) {
            const int down = step(s, width[v], -1);
            const double less = more - (width[v] - down) * dq_plan_kv_space_cost(s, v);
            if (v == u || !down || less > budget) continue;
            one[v] = down;
            DQ_TRY(take(arg, one, err));
            one[v] = width[v];
        }
        one[u] = width[u];
    }
    return DQ_OK;
}

void dq_plan_kv_space_between(double *loss, const dq_plan_kv_space *s, int k)
{
    const double low = loss[k - 1], high = loss[k + 1];
    const double way =
        (double)(s->bits[k] - s->bits[k - 1]) / (double)(s->bits[k + 1] - s->bits[k - 1]);
    loss[k] = low > 0 && high > 0 ? low * pow(high / low, way) : low + way * (high - low);
}

int dq_plan_kv_space_uniform(int pair[2][2], double mean)
{
    static const int bits[] = {2, 3, 4, 5, 6, 8};
    enum { N = sizeof bits / sizeof *bits };
    int best = 0, apart = 0, n = 0;
    for (int i = 0; i < N * N; i++) {
        const int k = bits[i / N], v = bits[i % N], d = abs(k - v);
        if (k + v > 2 * mean + 1e-9 || k + v < best || (k + v == best && d > apart)) continue;
        if (k + v > best || d < apart) n = 0;
        best = k + v;
        apart = d;
        pair[n][0] = k;
        pair[n++][1] = v;
    }
    return n;
}
