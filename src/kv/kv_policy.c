/* Scores of NaN count as the lowest, pooling takes the maximum over neighbours by position, and
 * ties go to the earlier token. A pool over groups divides each group's scores by the sum of their
 * magnitudes.
 * SPDX-License-Identifier: MIT */
#include "base/random.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void score_streaming(double *score, const dq_kv_policy *p, const dq_token_columns *c)
{
    (void)p;
    for (int64_t i = 0; i < c->n; i++) score[i] = (double)c->pos[i];
}

/* Sums the policy's one or two columns; a missing second map counts as zero. */
static void score_sum(double *score, const dq_kv_policy *p, const dq_token_columns *c)
{
    const double *const all[] = {c->mass[0], c->mass[1],    c->lambda_mass,  c->diff, c->key_norm,
                                 c->peak,    c->key_cosine, c->key_leverage, c->gate};
    const double *of[2] = {NULL, NULL};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && n < 2; i++) {
        if (p->needs >> i & 1) of[n++] = all[i];
    }
    for (int64_t i = 0; i < c->n; i++)
        score[i] = (of[0] ? of[0][i] : 0.0) + (of[1] ? of[1][i] : 0.0);
}

static void score_key_norm(double *score, const dq_kv_policy *p, const dq_token_columns *c)
{
    (void)p;
    for (int64_t i = 0; i < c->n; i++) score[i] = -c->key_norm[i];
}

enum { LAYER_SHIFT = 32 };

uint64_t dq_kv_policy_seed(uint64_t seed, int layer, int group)
{
    const uint64_t stream = (uint64_t)(uint32_t)layer << LAYER_SHIFT | (uint64_t)(uint32_t)group;
    return dq_random_of(seed, stream).state;
}

static void score_key_cosine(double *score, const dq_kv_policy *p, const dq_token_columns *c)
{
    (void)p;
    for (int64_t i = 0; i < c->n; i++) score[i] = -c->key_cosine[i];
}

/* 53 bits, so that the double is exact and equal everywhere. */
static void score_random(double *score, const dq_kv_policy *p, const dq_token_columns *c)
{
    (void)p;
    for (int64_t i = 0; i < c->n; i++) {
        uint64_t h = dq_random_mix(c->seed ^ dq_random_mix((uint64_t)(uint32_t)c->pos[i] + 1));
        score[i] = (double)(h >> 11) * 0x1p-53;
    }
}

const dq_kv_policy dq_kv_policies[] = {
    {.name = "streaming",
     .about = "the most recent tokens. arXiv 2309.17453",
     .pool = 1,
     .score = score_streaming},
    {.name = "h2o",
     .about = "attention of both maps, all rows. arXiv 2306.14048",
     .needs = DQ_NEEDS_MASS1 | DQ_NEEDS_MASS2,
     .pool = 1,
     .score = score_sum},
    {.name = "snapkv",
     .about = "attention of both maps, last 64 rows, maximum of 5 positions. arXiv 2404.14469",
     .needs = DQ_NEEDS_MASS1 | DQ_NEEDS_MASS2,
     .window = 64,
     .pool = 5,
     .score = score_sum},
    {.name = "knorm",
     .about = "keys of small norm. arXiv 2406.11430",
     .needs = DQ_NEEDS_KEY_NORM,
     .pool = 1,
     .score = score_key_norm},
    {.name = "random",
     .about = "a seeded hash of the position: the floor for all others",
     .pool = 1,
     .draws = true,
     .score = score_random},
    {.name = "diff",
     .about = "|A1 - lambda A2|, all rows",
     .needs = DQ_NEEDS_DIFF,
     .pool = 1,
     .score = score_sum},
    {.name = "kvzip",
     .about = "largest attention when the context is read again. arXiv 2505.23416",
     .needs = DQ_NEEDS_PEAK,
     .pool = 1,
     .common = true,
     .budget = {DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_GLOBAL},
     .score = score_sum},
    {.name = "kvzap",
     .about = "what kvzip finds, foretold from keys and values. After arXiv 2601.07891",
     .needs = DQ_NEEDS_GATES,
     .pool = 1,
     .common = true,
     .budget = {DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_GLOBAL},
     .score = score_sum},
    {.name = "keydiff",
     .about = "keys unlike the mean of all keys. arXiv 2504.15364",
     .needs = DQ_NEEDS_KEY_COSINE,
     .pool = 1,
     .common = true,
     .budget = {DQ_KV_BUDGET_GLOBAL, DQ_KV_BUDGET_UNIFORM},
     .score = score_key_cosine},
    {.name = "leverage",
     .about = "keys that others cannot stand for, before RoPE. arXiv 2507.08143",
     .needs = DQ_NEEDS_KEY_LEVERAGE,
     .pool = 1,
     .common = true,
     .score = score_sum},
    {.name = "a1",
     .about = "attention of the first map, all rows",
     .needs = DQ_NEEDS_MASS1,
     .pool = 1,
     .baseline = true,
     .score = score_sum},
    {.name = "a2",
     .about = "attention of the second map, all rows",
     .needs = DQ_NEEDS_MASS2,
     .pool = 1,
     .baseline = true,
     .score = score_sum},
    {.name = "sum",
     .about = "A1 + lambda A2, all rows",
     .needs = DQ_NEEDS_MASS1 | DQ_NEEDS_LAMBDA_MASS,
     .pool = 1,
     .baseline = true,
     .score = score_sum},
};
const int dq_kv_n_policies = sizeof dq_kv_policies / sizeof dq_kv_policies[0];
const char *const dq_kv_budget_name[DQ_KV_BUDGETS + 1] = {"uniform", "adaptive", "global", "heads",
                                                          "usual"};

static const dq_kv_policy *policy_named(const char *name)
{
    for (int i = 0; i < dq_kv_n_policies; i++) {
        if (strcmp(dq_kv_policies[i].name, name) == 0) return &dq_kv_policies[i];
    }
    return NULL;
}

const dq_kv_policy *dq_kv_policy_usual(bool gates)
{
    return policy_named(gates ? "kvzap" : DQ_POLICY_USUAL);
}

dq_kv_budget dq_kv_budget_for(dq_kv_budget b, const dq_kv_policy *p, int n_maps)
{
    if (b != DQ_KV_BUDGET_USUAL) return b;
    return p ? p->budget[n_maps > 1] : DQ_KV_BUDGET_UNIFORM;
}

const dq_kv_policy *dq_kv_policy_find(const char *name, dq_err *err)
{
    const dq_kv_policy *p = policy_named(name);
    char names[256] = "";
    if (p) return p;
    for (int i = 0; i < dq_kv_n_policies; i++) {
        const size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", dq_kv_policies[i].name);
    }
    dq_fail(err, DQ_USAGE, "unknown policy %s (expected one of %s)", name, names);
    return NULL;
}

const dq_kv_policy *dq_kv_policy_stored(const char *name, dq_arena *a, dq_err *err)
{
    const dq_kv_policy *known = policy_named(name);
    if (known) return known;
    dq_kv_policy *p = dq_alloc(a, 1, sizeof *p, err);
    if (!p) return NULL;
    p->name = dq_text(a, name, strlen(name), err);
    return p->name ? p : NULL;
}

bool dq_kv_policy_same(const dq_kv_policy *a, const dq_kv_policy *b)
{
    return a && b ? strcmp(a->name, b->name) == 0 : a == b;
}

static bool is_protected(int32_t pos, dq_kv_protected safe)
{
    return pos < safe.sink || pos >= (int64_t)safe.end - safe.recent;
}

int64_t dq_kv_policy_protected(const int32_t *pos, int64_t n, dq_kv_protected safe)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += is_protected(pos[i], safe);
    return count;
}

static double plain(double score)
{
    return isnan(score) ? -(double)INFINITY : score;
}

/* In place from left to right; `before` keeps overwritten values still in reach. */
static void pool_scores(double *score, const int32_t *pos, int64_t n, int width,
                        dq_kv_protected safe)
{
    enum { MAX = 64 };
    double before[MAX];
    const int reach = width / 2 < MAX ? width / 2 : MAX;
    for (int64_t i = 0; i < n; i++) {
        const double own = score[i];
        double best = own;
        if (!is_protected(pos[i], safe)) {
            for (int64_t j = i - 1; j >= 0 && i - j <= reach && pos[i] - pos[j] <= reach; j--)
                if (!is_protected(pos[j], safe)) best = fmax(best, before[j % MAX]);
            for (int64_t j = i + 1; j < n && pos[j] - pos[i] <= reach; j++)
                if (!is_protected(pos[j], safe)) best = fmax(best, score[j]);
        }
        before[i % MAX] = own;
        score[i] = best;
    }
}

void dq_kv_policy_score(double *score, const dq_kv_policy *p, const dq_token_columns *c,
                        dq_kv_protected safe)
{
    p->score(score, p, c);
    for (int64_t i = 0; i < c->n; i++) score[i] = plain(score[i]);
    if (p->pool > 1) pool_scores(score, c->pos, c->n, p->pool, safe);
}

/* A competing token or page; `order` breaks ties. */
typedef struct candidate {
    double score;
    int32_t order, group;
} candidate;

static int better_first(const void *left, const void *right)
{
    const candidate *a = left, *b = right;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->order != b->order) return a->order < b->order ? -1 : 1;
    return (a->group > b->group) - (a->group < b->group);
}

/* Unprotected tokens of a group, best first; `scale` divides their scores. Returns how many. */
static int64_t list_candidates(candidate *list, const dq_pool_group *g, double scale, int group,
                               dq_kv_protected safe)
{
    int64_t count = 0;
    for (int64_t i = 0; i < g->n; i++) {
        if (is_protected(g->pos[i], safe)) continue;
        list[count++] = (candidate){plain(g->score[i]) / scale, (int32_t)i, group};
    }
    qsort(list, (size_t)count, sizeof *list, better_first);
    return count;
}

static double relative_gap(double kept, double dropped)
{
    if (kept == dropped) return 0;
    if (isinf(kept) || isinf(dropped)) return INFINITY;
    return (kept - dropped) / fmax(fabs(kept), fabs(dropped));
}

/* Sums magnitudes, as scores may be negative; leaves out what is not finite. */
static double magnitude(const dq_pool_group *g, dq_kv_protected safe)
{
    double sum = 0;
    for (int64_t i = 0; i < g->n; i++) {
        if (!is_protected(g->pos[i], safe) && isfinite(g->score[i])) sum += fabs(g->score[i]);
    }
    return sum > 0 && isfinite(sum) ? sum : 1;
}

/* A budget while it is shared out. */
typedef struct sharing {
    candidate *open;      /* of all groups, best first */
    int64_t n_open, left; /* tokens to be dealt out */
    /* pages compete by their best token: the mean would drop groups that need few tokens badly */
    candidate *offer;
    int64_t n_offers;
    int64_t *room; /* [n_groups] the most that a group may have */
    int64_t free;  /* of that, beyond what the groups have */
} sharing;

/* A group joins with its candidates, best first, `share` tokens, and the rest of their last
 * page. */
static void join(sharing *s, const dq_pool *pool, int group, const candidate *of, int64_t n,
                 int64_t share)
{
    const int64_t all = share + n;
    s->room[group] = all;
    if (!pool->page) return;
    const int64_t pages = (share + pool->page - 1) / pool->page;
    for (int64_t i = pages; i * pool->page < all; i++)
        s->offer[s->n_offers++] = (candidate){of[i * pool->page - share].score, (int32_t)i, group};
    if (pages * pool->page < all) s->room[group] = pages * pool->page;
    s->free += s->room[group] - share;
}

/* Deals to the best with space left; returns the gap. */
static double deal(int64_t *share, sharing *s)
{
    double last = 0;
    if (s->left == 0) return (double)INFINITY;
    qsort(s->open, (size_t)s->n_open, sizeof *s->open, better_first);
    for (int64_t i = 0; i < s->n_open; i++) {
        const int g = s->open[i].group;
        if (share[g] == s->room[g]) continue;
        if (s->left == 0) return relative_gap(last, s->open[i].score);
        share[g]++;
        s->left--;
        last = s->open[i].score;
    }
    return (double)INFINITY;
}

dq_status dq_kv_budget_of_groups(int64_t *share, double *gap, const dq_pool *pool, dq_err *err)
{
    const dq_pool_group *group = pool->group;
    const dq_kv_protected safe = pool->safe;
    int64_t total = 0;
    *gap = (double)INFINITY;
    for (int g = 0; g < pool->n_groups; g++) total += group[g].n;
    dq_arena *a = dq_arena_new();
    if (!a) return dq_fail(err, DQ_RESOURCE, "out of memory");
    sharing s = {.open = dq_alloc(a, (size_t)total, sizeof *s.open, err),
                 .offer = dq_alloc(a, (size_t)total, sizeof *s.offer, err),
                 .room = dq_alloc(a, (size_t)pool->n_groups, sizeof *s.room, err)};
    for (int g = 0; err->code == DQ_OK && g < pool->n_groups; g++) {
        /* the floor is granted at once; the rest joins the pool */
        candidate *of = s.open + s.n_open;
        const int64_t safe_tokens = dq_kv_policy_protected(group[g].pos, group[g].n, safe);
        const bool joins = group[g].n > 0 && pool->budget > safe_tokens;
        const int64_t spare = joins ? pool->budget - safe_tokens : 0;
        const int64_t floor = pool->floor ? (spare + pool->floor - 1) / pool->floor : 0;
        const double unit = pool->common ? 1 : magnitude(&group[g], safe);
        const int64_t n = list_candidates(of, &group[g], unit, g, safe);
        const int64_t tokens = safe_tokens + (floor < n ? floor : n);
        const int page = pool->page;
        const int64_t begun = page ? (safe_tokens + page - 1) / page * page : tokens;
        share[g] = tokens <= begun ? tokens : begun + (tokens - begun) / page * page;
        const int64_t least = share[g] - safe_tokens;
        memmove(of, of + least, (size_t)(n - least) * sizeof *of);
        join(&s, pool, g, of, n - least, share[g]);
        s.n_open += n - least;
        s.left += spare - least;
    }
    if (err->code == DQ_OK) {
        if (s.left > s.n_open) s.left = s.n_open;
        /* Opens as many pages as the tokens need, best first; a group's last may be shorter.
         * Returns the gap. */
        int64_t i = 0;
        qsort(s.offer, (size_t)s.n_offers, sizeof *s.offer, better_first);
        for (; i < s.n_offers && s.free < s.left; i++) {
            const int g = s.offer[i].group;
            const int64_t more = pool->group[g].n - s.room[g];
            const int64_t got = more < pool->page ? more : pool->page;
            s.room[g] += got;
            s.free += got;
        }
        *gap = i > 0 && i < s.n_offers ? relative_gap(s.offer[i - 1].score, s.offer[i].score)
                                       : (double)INFINITY;
        *gap = fmin(*gap, deal(share, &s));
    }
    dq_arena_free(a);
    return err->code;
}

static int ascending(const void *left, const void *right)
{
    const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

dq_status dq_kv_policy_keep(int32_t *kept, int64_t *n_kept, const double *score, const int32_t *pos,
                            int64_t n, int64_t budget, dq_kv_protected safe, dq_err *err)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (budget >= n || is_protected(pos[i], safe)) kept[count++] = (int32_t)i;
    }
    *n_kept = count;
    if (count >= budget || count == n) return DQ_OK;
    candidate *list = dq_block_new((size_t)n, sizeof *list, err);
    if (!list) return err->code;
    list_candidates(list, &(dq_pool_group){score, pos, n}, 1, 0, safe);
    for (int64_t i = 0; count < budget; i++) kept[count++] = list[i].order;
    dq_block_free(list);
    qsort(kept, (size_t)count, sizeof *kept, ascending);
    *n_kept = count;
    return DQ_OK;
}

double dq_kv_policy_gap(const int32_t *kept, int64_t n_kept, const double *score,
                        const int32_t *pos, int64_t n, dq_kv_protected safe)
{
    double last = (double)INFINITY, first = -(double)INFINITY;
    int64_t chosen = 0, dropped = 0, k = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool is_kept = k < n_kept && kept[k] == i;
        k += is_kept;
        if (is_protected(pos[i], safe)) continue;
        if (is_kept) {
            last = fmin(last, plain(score[i]));
            chosen++;
        } else {
            first = fmax(first, plain(score[i]));
            dropped++;
        }
    }
    return chosen && dropped ? relative_gap(last, first) : (double)INFINITY;
}
