/* plan_alloc: see plan_alloc.h. Steps of all tensors are sorted by what they save for their cost; along one tensor's hull that
 * falls, so that its steps keep their order.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_alloc.h"

#include <stdlib.h>
#include <string.h>

/* A step with what it saves per unit of cost. */
typedef struct move {
    dq_plan_step step;
    double rate;
} move;

/* Of an option, where more bits never hurt. */
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

/* The next option of the hull: the one that saves most for its cost, the farthest of equals. */
static int next_of(const dq_plan_item *t, int from)
{
    int best = from + 1;
    for (int to = from + 2; to < t->n; to++) {
        if (rate_of(t, from, to) >= rate_of(t, from, best)) best = to;
    }
    return best;
}

/* By falling rate; equal ones as the tensors stand, and along one tensor upwards. */
static int compare(const void *left, const void *right)
{
    const move *x = left, *y = right;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    if (x->step.item != y->step.item) return x->step.item < y->step.item ? -1 : 1;
    return x->step.to < y->step.to ? -1 : x->step.to > y->step.to;
}

/* Along a hull rates fall but for rounding. */
static int64_t list_moves(move *out, const dq_plan_item *item, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        double last = 0;
        for (int from = 0, to; from + 1 < item[i].n; from = to) {
            to = next_of(&item[i], from);
            double rate = rate_of(&item[i], from, to);
            if (from > 0 && rate > last) rate = last;
            out[count++] = (move){{i, to}, last = rate};
        }
    }
    return count;
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
    const int64_t steps = list_moves(all, item, n);
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
