/* plan_decide: see plan_decide.h. A turn says where to look, a look says what was found, and nothing is kept beside these.
 * SPDX-License-Identifier: MIT */
#include "plan/plan_decide.h"

#include "plan/weights/plan_search.h"

#include <math.h>

dq_interval dq_plan_decide_interval(dq_mean m, double skew, double outside)
{
    return dq_interval_t_skewed(m.value, m.std_err, m.clusters, skew, outside);
}

dq_interval dq_plan_decide_kld(dq_mean m, double skew, double outside)
{
    dq_interval i = dq_plan_decide_interval(m, skew, outside);
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

dq_interval dq_plan_decide_look(dq_plan_decider *l, dq_mean found, double skew, int look)
{
    const dq_interval i = dq_plan_decide_interval(found, skew, dq_plan_decide_outside(look));
    l->n++;
    l->met = dq_plan_decide_keeps(i, l->limit);
    return i;
}

bool dq_plan_decide_uniform(dq_plan_offer mix, dq_plan_offer uniform)
{
    if (uniform.excess > 0) return false;
    return mix.excess > 0 || uniform.kld < mix.kld;
}

dq_status dq_plan_decide_mean(dq_mean *out, const double *sums, const int64_t *ids, int64_t n,
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
    if (err->code == DQ_OK) *out = dq_mean_clustered(x, cluster, all);
    dq_block_free(x);
    dq_block_free(cluster);
    return err->code;
}

double dq_plan_decide_skew(const double *sums, const int64_t *ids, int64_t n)
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
