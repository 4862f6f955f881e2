/* kv_heads: a text is read from left to right; a share is what the protected tokens are, then grows in turns over those
 * that share, and in one more over all in order of need. See kv_heads.h.
 * SPDX-License-Identifier: MIT */
#include "kv/kv_heads.h"

#include <string.h>

/* A number below 10000, written without zeros in front; -1: none stands there. */
static int take_number(const char **text)
{
    int x = 0, digits = 0;
    if (**text == '0') {
        ++*text;
        return 0;
    }
    for (; **text >= '0' && **text <= '9' && digits < 4; digits++) x = 10 * x + *(*text)++ - '0';
    return digits ? x : -1;
}

static dq_status wrong(const char *at, dq_err *err)
{
    return dq_fail(err, DQ_USAGE,
                   "expected layers and their groups of KV heads in order of need, as "
                   "\"1.0,1.1,0.0,0.1\", or with one / between those that share and the others, "
                   "at \"%.40s\".",
                   at);
}

static dq_status take_role(dq_kv_heads *r, const char **text, dq_err *err)
{
    const char *begin = *text;
    const int layer = take_number(text);
    if (layer < 0 || **text != '.') return wrong(begin, err);
    ++*text;
    const int group = take_number(text);
    if (group < 0 || !strchr(",/", **text)) return wrong(begin, err);
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].layer == layer && r->at[i].group == group)
            return dq_fail(err, DQ_USAGE, "group %d.%d stands twice.", layer, group);
    }
    if (r->n == DQ_KV_HEADS_MAX)
        return dq_fail(err, DQ_USAGE, "more than %d groups of KV heads.", DQ_KV_HEADS_MAX);
    r->at[r->n++] = (dq_kv_heads_group){(int16_t)layer, (int16_t)group};
    return DQ_OK;
}

dq_status dq_kv_heads_parse(dq_kv_heads *out, const char *text, dq_err *err)
{
    out->n = out->sharing = 0;
    if (strlen(text) >= DQ_KV_HEADS_TEXT)
        return dq_fail(err, DQ_USAGE, "the heads take %zu characters (at most %d).", strlen(text),
                       DQ_KV_HEADS_TEXT - 1);
    for (const char *p = text;; p++) {
        DQ_TRY(take_role(out, &p, err));
        if (!*p) return DQ_OK;
        if (*p == '/' && out->sharing) return wrong(p, err);
        if (*p == '/') out->sharing = out->n;
        if (*p == '/' && !p[1]) return DQ_OK;
    }
}

dq_status dq_kv_heads_fit(const dq_kv_heads *r, int n_layers, int n_groups, dq_err *err)
{
    const dq_remedy remedy = {.code = DQ_REMEDY_KV_HEADS};
    for (int i = 0; i < r->n; i++) {
        if (r->at[i].layer >= n_layers || r->at[i].group >= n_groups)
            return dq_fail_with(err, DQ_MISMATCH, remedy,
                                "the heads name group %d.%d, and the model has %d layers of %d "
                                "groups of KV heads",
                                r->at[i].layer, r->at[i].group, n_layers, n_groups);
    }
    if (r->n == n_layers * n_groups) return DQ_OK; /* none stands twice */
    return dq_fail_with(err, DQ_MISMATCH, remedy,
                        "the heads name %d of the %d groups of KV heads that the model has (%d "
                        "layers of %d)",
                        r->n, n_layers * n_groups, n_layers, n_groups);
}

/* What a group still lacks of all that it holds. */
static int64_t lack(const int64_t *share, const dq_pool *pool, int group)
{
    return pool->group[group].n - share[group];
}

/* The most that a group can take of `tokens`; what is left of them. */
static int64_t give(int64_t *share, const dq_pool *pool, int group, int64_t tokens, int64_t left)
{
    const int64_t lacks = lack(share, pool, group), most = tokens < left ? tokens : left;
    const int64_t gets = most < lacks ? most : lacks;
    share[group] += gets;
    return left - gets;
}

void dq_kv_budget_of_heads(int64_t *share, const dq_pool *pool, const dq_kv_heads *r, int n_groups)
{
    int64_t left = 0;
    int open = r->sharing;
    for (int g = 0; g < pool->n_groups; g++) {
        share[g] = dq_kv_policy_protected(pool->group[g].pos, pool->group[g].n, pool->safe);
        left += pool->budget > share[g] ? pool->budget - share[g] : 0;
    }
    while (open && left) { /* dealt out in turns */
        const int64_t part = left > open ? left / open : 1;
        open = 0;
        for (int i = 0; i < r->sharing; i++) {
            const int g = r->at[i].layer * n_groups + r->at[i].group;
            left = give(share, pool, g, part, left);
            open += lack(share, pool, g) > 0;
        }
    }
    for (int i = 0; i < r->n; i++)
        left = give(share, pool, r->at[i].layer * n_groups + r->at[i].group, left, left);
}
