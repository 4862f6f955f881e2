/* cache_numbers: what both plans of a KV cache say of what a cache loses: members of their documents, and lines.
 * SPDX-License-Identifier: MIT */
#ifndef DQ_CACHE_NUMBERS_H
#define DQ_CACHE_NUMBERS_H

#include "base/json.h"
#include "plan/plan_cache.h"

/* {"kld_nats", "ln_ppl_ratio", "clusters"}. */
json_t *dq_cache_numbers_json(const dq_plan_caches_numbers *x);
/* The same of what a plan loses by itself, with intervals. */
json_t *dq_cache_numbers_found(const dq_plan_caches_numbers *x);
/* The same of a difference. outside: of each of its intervals. */
json_t *dq_cache_numbers_difference(const dq_plan_caches_numbers *x, dq_interval kld,
                                    dq_interval loss, double outside);
/* Of the logarithm of a ratio of perplexities. */
double dq_cache_numbers_percent(double loss);
/* "less", "more" or "open", by where the interval lies. */
const char *dq_cache_numbers_verdict(dq_interval i, const char *less, const char *more,
                                     const char *open);
/* A line of a dry run: how long so many tokens, at least and at most, take at a pace, seconds a token. */
void dq_cache_numbers_time(double seconds, double min, double max);
/* Lines of a table: what a plan loses on windows that it has not seen. */
void dq_cache_numbers_print(const dq_plan_caches_numbers *x, const dq_plan_caches *c);

#endif
