/* eval_same: see eval_same.h. The longest prefix that is evicted from decides: a share of a shorter one is no more tokens, and a
 * budget that holds all of a prefix holds all of a shorter one.
 * SPDX-License-Identifier: MIT */
#include "eval/eval_same.h"

#include "kv/kv.h"

/* Ids of the longest window, or of the longest context of one, after which a cache is cut. */
static int64_t longest_of_windows(const dq_windows *w, bool whole)
{
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t here = whole ? w->win[i].n : w->win[i].first;
        if (here > n) n = here;
    }
    return n;
}

/* whole: to the end of each request. A shared prefix is what is cut, where there is one. */
static int64_t longest_of_requests(const dq_requests *q, bool whole)
{
    int64_t n = 0;
    for (int64_t k = 0; k < q->n; k++) {
        const dq_request *r = &q->req[k];
        const int64_t prefix = dq_items_shared_prefix(q, r->item)->n;
        int64_t here = prefix ? prefix : r->n_ctx;
        if (whole) here = prefix + r->n_ctx + r->n_cont;
        if (here > n) n = here;
    }
    return n;
}

static int64_t longest(const dq_eval *e, const dq_eval_row *row)
{
    const dq_eval_ids *ids = &e->ids[row->ids];
    const dq_eval_kind *kind = dq_eval_source_of(e, row)->kind;
    const bool again = row->kv.evict.every > 0;
    return kind->windows ? longest_of_windows(&ids->win, again)
                         : longest_of_requests(&ids->req, again || kind->score);
}

/* Before the row ran. */
static dq_eval_kept planned(const dq_eval *e, const dq_eval_row *row)
{
    const int64_t n = row->kv.evict.policy ? longest(e, row) : 0;
    const int64_t budget = n ? dq_evict_budget(&row->kv, n, NULL) : 0;
    if (budget >= n) return DQ_EVAL_KEPT_ALL;
    return budget > (int64_t)row->kv.sink + row->kv.recent ? DQ_EVAL_KEPT_CHOSEN
                                                           : DQ_EVAL_KEPT_LEAST;
}

/* What was measured of contexts says nothing of later evictions. */
dq_eval_kept dq_eval_kept_of(const dq_eval *e, const dq_eval_row *row)
{
    const dq_kv_cached *had = &row->work.cached;
    const dq_eval_kept kept = planned(e, row);
    if (kept != DQ_EVAL_KEPT_CHOSEN || row->kv.evict.every || had->evicted == 0) return kept;
    return had->raised == had->evicted ? DQ_EVAL_KEPT_LEAST : kept;
}

dq_kv_spec dq_eval_effective_kv(const dq_eval *e, const dq_eval_row *row)
{
    dq_kv_spec kv = row->kv;
    if (!kv.evict.policy || dq_eval_kept_of(e, row) == DQ_EVAL_KEPT_CHOSEN) return kv;
    dq_err unknown = {0};
    kv.evict.policy = dq_kv_policy_find("streaming", &unknown);
    kv.evict.budget = DQ_KV_BUDGET_UNIFORM;
    kv.evict.window = -1;
    return kv;
}

/* Whether as many budgets are raised. A share of at most a half is less than its context wherever that has two tokens; where the
 * longest context is not raised and keeps all, none is. */
static bool same_raised(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    const dq_evict_spec *x = &a->kv.evict, *y = &b->kv.evict;
    const int64_t n = longest(e, a);
    bool raised = false, other = false;
    if (!x->policy || (x->keep == y->keep && x->tokens == y->tokens)) return true;
    const int64_t budget = dq_evict_budget(&a->kv, n, &raised);
    dq_evict_budget(&b->kv, n, &other);
    if (raised != other) return false;
    return raised ? x->keep <= 0.5 && y->keep <= 0.5 : budget >= n;
}

bool dq_eval_same_numbers(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    return dq_eval_same_cache(e, a, b) && same_raised(e, a, b);
}

bool dq_eval_same_cache(const dq_eval *e, const dq_eval_row *a, const dq_eval_row *b)
{
    dq_kv_spec other = b->kv;
    if (dq_kv_spec_same(&a->kv, &b->kv)) return true;
    if (!a->kv.evict.policy != !b->kv.evict.policy || a->kv.evict.every != b->kv.evict.every)
        return false; /* fed in other passes, or not measured */
    other.evict = a->kv.evict;
    if (!dq_kv_spec_same(&a->kv, &other)) return false;
    const dq_eval_kept kept = dq_eval_kept_of(e, a);
    return kept != DQ_EVAL_KEPT_CHOSEN && kept == dq_eval_kept_of(e, b);
}
