/* Steps of all tensors are sorted by what they save for their cost; along one tensor's hull that
 * falls, so that its steps keep their order.
 * SPDX-License-Identifier: MIT */
#include "plan/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A step, and what it saves per unit of cost. */
typedef struct move {
    dq_plan_step step;
    double rate;
} move;

/* More bits never hurt, so an option loses at most what a cheaper one loses. */
static double loss_of(const dq_plan_item *t, int option)
{
    double least = t->loss[0];
    for (int i = 1; i <= option; i++) least = t->loss[i] < least ? t->loss[i] : least;
    return least;
}

static double rate_of(const dq_plan_item *t, int from, int to)
{
    return (loss_of(t, from) - loss_of(t, to)) / (t->cost[to] - t->cost[from]);
}

/* By falling rate, then by tensor, then upwards within a tensor. */
static int compare(const void *left, const void *right)
{
    const move *x = left, *y = right;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    if (x->step.item != y->step.item) return x->step.item < y->step.item ? -1 : 1;
    return x->step.to < y->step.to ? -1 : x->step.to > y->step.to;
}

dq_status dq_plan_alloc_curve(dq_plan_curve *out, const dq_plan_item *item, int64_t n, dq_arena *a,
                              dq_err *err)
{
    size_t max = 1;
    *out = (dq_plan_curve){.item = item, .n_items = n};
    for (int64_t i = 0; i < n; i++) max += (size_t)item[i].n - 1;
    move *all = dq_alloc(a, max, sizeof *all, err);
    int *choice = dq_alloc(a, (size_t)n, sizeof *choice, err);
    out->step = dq_alloc(a, max, sizeof *out->step, err);
    out->cost = dq_alloc(a, max, sizeof *out->cost, err);
    out->loss = dq_alloc(a, max, sizeof *out->loss, err);
    if (err->code != DQ_OK) return err->code;
    /* Along a hull rates fall, but for rounding. */
    int64_t steps = 0;
    for (int64_t t = 0; t < n; t++) {
        double last = 0;
        for (int from = 0, to; from + 1 < item[t].n; from = to) {
            /* The next corner saves most per cost; of equals, the farthest. */
            to = from + 1;
            for (int k = from + 2; k < item[t].n; k++) {
                if (rate_of(&item[t], from, k) >= rate_of(&item[t], from, to)) to = k;
            }
            double rate = rate_of(&item[t], from, to);
            if (from > 0 && rate > last) rate = last;
            all[steps++] = (move){{t, to}, last = rate};
        }
    }
    qsort(all, (size_t)steps, sizeof *all, compare);
    out->n = steps + 1;
    for (int64_t k = 0; k < out->n; k++) {
        out->cost[k] = dq_plan_alloc_cost(out, choice);
        out->loss[k] = dq_plan_alloc_loss(out, choice);
        if (k == steps) break;
        out->step[k] = all[k].step;
        choice[all[k].step.item] = all[k].step.to;
    }
    return DQ_OK;
}

void dq_plan_alloc_at(int *choice, const dq_plan_curve *c, int64_t point)
{
    memset(choice, 0, (size_t)c->n_items * sizeof *choice);
    for (int64_t k = 0; k < point; k++) choice[c->step[k].item] = c->step[k].to;
}

int64_t dq_plan_alloc_by_cost(const dq_plan_curve *c, double cost)
{
    int64_t k = -1;
    while (k + 1 < c->n && c->cost[k + 1] <= cost) k++;
    return k;
}

int64_t dq_plan_alloc_by_loss(const dq_plan_curve *c, double loss)
{
    int64_t k = 0;
    while (k < c->n && c->loss[k] > loss) k++;
    return k;
}

void dq_plan_alloc_fill(int *choice, const dq_plan_curve *c, int64_t point, double cost)
{
    for (int64_t k = point; k + 1 < c->n; k++) {
        const dq_plan_step s = c->step[k];
        const int before = choice[s.item];
        choice[s.item] = s.to;
        if (dq_plan_alloc_cost(c, choice) > cost) choice[s.item] = before;
    }
}

double dq_plan_alloc_cost(const dq_plan_curve *c, const int *choice)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n_items; i++) sum += c->item[i].cost[choice[i]];
    return sum;
}

double dq_plan_alloc_loss(const dq_plan_curve *c, const int *choice)
{
    double sum = 0;
    for (int64_t i = 0; i < c->n_items; i++) sum += loss_of(&c->item[i], choice[i]);
    return sum;
}

dq_interval dq_plan_interval(dq_plan_mean m, double outside)
{
    return dq_interval_t_skewed(m.of.value, m.of.std_err, m.of.clusters, m.skew, outside);
}

dq_interval dq_plan_interval_kld(dq_plan_mean m, double outside)
{
    dq_interval i = dq_plan_interval(m, outside);
    if (i.low < 0) i.low = 0;
    return i;
}

double dq_plan_decide_outside(int look)
{
    return 0.05 / ldexp(1, look - 1);
}

double dq_plan_decide_outside_of(int look, int n)
{
    return 0.05 / ldexp(1, look) / (n > 1 ? n : 1);
}

bool dq_plan_decide_keeps(dq_interval i, double limit)
{
    return i.high <= limit;
}

dq_plan_turn dq_plan_decide_turn(dq_plan_decider *l)
{
    const int64_t last = l->curve->n - 1;
    const bool first = l->n == 0;
    if (l->met || l->n >= l->max || (!first && !l->at_uniform && l->point == last))
        return DQ_PLAN_TURN_END;
    if (first && l->point < 0) l->point = last;
    if (first && l->uniform) {
        l->at_uniform = true;
        return DQ_PLAN_TURN_UNIFORM;
    }
    if (!first && !l->at_uniform) l->point = dq_plan_search_next(l->curve, l->point);
    if (!first && l->n == l->max - 1) l->point = last;
    l->at_uniform = false;
    return DQ_PLAN_TURN_POINT;
}

dq_interval dq_plan_decide_look(dq_plan_decider *l, dq_plan_mean found, int look)
{
    const dq_interval i = dq_plan_interval(found, dq_plan_decide_outside(look));
    l->n++;
    l->met = dq_plan_decide_keeps(i, l->limit);
    return i;
}

bool dq_plan_decide_uniform(dq_plan_offer mix, dq_plan_offer uniform)
{
    if (uniform.excess > 0) return false;
    return mix.excess > 0 || uniform.kld < mix.kld;
}

static double skew_of(const double *sums, const int64_t *ids, int64_t n)
{
    double all = 0, total = 0, two = 0, three = 0, used = 0;
    for (int64_t c = 0; c < n; c++) {
        total += sums[c];
        all += (double)ids[c];
    }
    for (int64_t c = 0; c < n; c++) {
        if (ids[c] == 0) continue;
        const double d = sums[c] - total / all * (double)ids[c];
        two += d * d;
        three += d * d * d;
        used++;
    }
    return two > 0 ? three / used / pow(two / used, 1.5) : 0;
}

dq_status dq_plan_mean_of(dq_plan_mean *out, const double *sums, const int64_t *ids, int64_t n,
                          dq_err *err)
{
    int64_t all = 0, at = 0;
    for (int64_t c = 0; c < n; c++) all += ids[c];
    double *x = dq_block_new((size_t)all, sizeof *x, err);
    int32_t *cluster = dq_block_new((size_t)all, sizeof *cluster, err);
    for (int64_t c = 0; err->code == DQ_OK && c < n; c++) {
        for (int64_t i = 0; i < ids[c]; i++, at++) {
            x[at] = sums[c] / (double)ids[c];
            cluster[at] = (int32_t)c;
        }
    }
    if (err->code == DQ_OK)
        *out = (dq_plan_mean){dq_mean_clustered(x, cluster, all), skew_of(sums, ids, n)};
    dq_block_free(x);
    dq_block_free(cluster);
    return err->code;
}

dq_status dq_plan_numbers_of(dq_plan_numbers *out, const dq_plan_sums *s, dq_err *err)
{
    DQ_TRY(dq_plan_mean_of(&out->kld, s->kld, s->ids, s->n, err));
    return dq_plan_mean_of(&out->loss, s->loss, s->ids, s->n, err);
}

dq_status dq_plan_found_of(dq_plan_found *out, const dq_plan_sums *s, bool differs, double outside,
                           dq_err *err)
{
    DQ_TRY(dq_plan_numbers_of(&out->of, s, err));
    out->outside = outside;
    out->kld = (differs ? dq_plan_interval : dq_plan_interval_kld)(out->of.kld, outside);
    out->loss = dq_plan_interval(out->of.loss, outside);
    return DQ_OK;
}

/* Bound on nats per token in a file: more than any model's, and small enough for finite sums. */
static const double MAX_NATS = 1e9;

dq_status dq_plan_take_nats(double *x, int64_t n, const json_t *line, const char *key, dq_err *err)
{
    DQ_TRY(dq_work_take_reals(x, n, line, key, err));
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(x[i]) < MAX_NATS))
            return dq_fail(err, DQ_DAMAGED, "\"%s\" holds %g, which is no loss of a cache", key,
                           x[i]);
    }
    return DQ_OK;
}
