/* cache_numbers: see cache_numbers.h. A perplexity stands in documents as the logarithm of its ratio to that of the cache that
 * it is compared with, in tables as percent.
 * SPDX-License-Identifier: MIT */
#include "cmds/plan/cache_numbers.h"

#include "cmds/cli/table.h"

#include "plan/plan_weights.h"
#include "record/record.h"

#include <math.h>
#include <stdio.h>

static const double OUTSIDE = 0.05; /* of the interval of the plan by itself */

static json_t *interval_json(dq_interval i)
{
    return json_pack("[o, o]", dq_document_real(i.low), dq_document_real(i.high));
}

json_t *dq_cache_numbers_json(const dq_plan_caches_numbers *x)
{
    json_t *o = json_object();
    json_object_set_new(o, "kld_nats", dq_document_metric(x->kld.value, x->kld.std_err));
    json_object_set_new(o, "ln_ppl_ratio", dq_document_metric(x->loss.value, x->loss.std_err));
    json_object_set_new(o, "clusters", json_integer(x->kld.clusters));
    return o;
}

json_t *dq_cache_numbers_found(const dq_plan_caches_numbers *x)
{
    json_t *o = dq_cache_numbers_json(x);
    json_object_set_new(o, "kld_interval",
                        interval_json(dq_plan_decide_kld(x->kld, x->kld_skew, OUTSIDE)));
    json_object_set_new(o, "ln_ppl_interval",
                        interval_json(dq_plan_decide_interval(x->loss, x->loss_skew, OUTSIDE)));
    json_object_set_new(o, "outside", dq_document_real(OUTSIDE));
    return o;
}

json_t *dq_cache_numbers_difference(const dq_plan_caches_numbers *x, dq_interval kld,
                                    dq_interval loss, double outside)
{
    json_t *o = dq_cache_numbers_json(x);
    json_object_set_new(o, "kld_interval", interval_json(kld));
    json_object_set_new(o, "ln_ppl_interval", interval_json(loss));
    json_object_set_new(o, "outside", dq_document_real(outside));
    return o;
}

double dq_cache_numbers_percent(double loss)
{
    return 100 * expm1(loss);
}

const char *dq_cache_numbers_verdict(dq_interval i, const char *less, const char *more,
                                     const char *open)
{
    return i.high < 0 ? less : i.low > 0 ? more : open;
}

void dq_cache_numbers_time(double seconds, double min, double max)
{
    char a[32], b[32];
    printf("time               about %s", dq_document_time_text(a, sizeof a, min * seconds));
    if (max > min) printf(" to %s", dq_document_time_text(b, sizeof b, max * seconds));
    printf(" here, at the %.3g tokens a second of one window\n", 1 / seconds);
}

void dq_cache_numbers_print(const dq_plan_caches_numbers *x, const dq_plan_caches *c)
{
    const dq_interval k = dq_plan_decide_kld(x->kld, x->kld_skew, OUTSIDE);
    const dq_interval l = dq_plan_decide_interval(x->loss, x->loss_skew, OUTSIDE);
    printf("on unseen windows  KLD %.3g ± %.2g (nominally %.5g %%: %.3g to %.3g); perplexity "
           "%+.3f %% (%+.3f to %+.3f)\n",
           x->kld.value, x->kld.std_err, 100 * (1 - OUTSIDE), k.low, k.high,
           dq_cache_numbers_percent(x->loss.value), dq_cache_numbers_percent(l.low),
           dq_cache_numbers_percent(l.high));
    printf("                   between %lld %s\n", (long long)x->kld.clusters,
           c->win.n_docs < 2 ? "windows" : "documents");
}
